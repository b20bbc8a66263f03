"""How the elements of an uncompressed chunk are stored."""

import functools
import math
from typing import Any

from numcodecs_bytes._core.dtypes import AnyDType, copied_as
from numcodecs_bytes._core.invalid_bytes import has_unused_bits


class Layout:
    """How the elements of a chunk are stored. Get one from `layout_of`, because it keeps plans.

    Elements along the last axis of `axis_order`, by default C order, are adjacent.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: AnyDType,
        stored: AnyDType,
        axis_order: tuple[int, ...] | None = None,
    ) -> None:
        self.shape, self.dtype, self.stored = shape, dtype, stored
        self.axis_order = tuple(range(len(shape))) if axis_order is None else axis_order
        self.item_size = stride = stored.itemsize
        strides = [0] * len(shape)
        for axis in reversed(self.axis_order):
            strides[axis] = stride
            stride *= shape[axis]
        self.strides = tuple(strides)  # the distance of elements along each axis, in bytes
        self.num_bytes = math.prod(shape) * self.item_size
        # Whether NumPy's copy converts stored elements: it can swap them, and none can be invalid.
        self.is_copied = copied_as(dtype) == dtype and not has_unused_bits(dtype)
        # Whether stored elements equal elements in memory, byte for byte.
        self.is_plain = self.is_copied and stored == dtype
        self.plans: dict[Any, Any] = {}  # what `plan.plan_of` keeps


# The chunks of an array share one layout.
layout_of = functools.lru_cache(maxsize=256)(Layout)
