"""How the elements of an uncompressed chunk are stored."""

import functools
import math
from typing import Any

from numcodecs_bytes._core.dtypes import AnyDType, copied_as
from numcodecs_bytes._core.invalid_bytes import has_unused_bits


class Layout:
    """How the elements of a chunk are stored. Get one from `layout_of`: it keeps plans.

    Parameters
    ----------
    shape : tuple of int
        Shape of the chunk in elements.
    dtype, stored : numpy.dtype
        The dtype of the elements in memory, and their stored dtype.
    axis_order : tuple of int, optional
        The axes in the order in which they are stored: elements along the last one are adjacent.
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
        # Whether NumPy's copy makes elements of stored ones: it swaps bytes, and none is invalid.
        self.is_copied = copied_as(dtype) == dtype and not has_unused_bits(dtype)
        # Whether stored elements are elements in memory, byte for byte.
        self.is_plain = self.is_copied and stored == dtype
        self.plans: dict[Any, Any] = {}  # what `plan.plan_of` keeps


@functools.lru_cache(maxsize=256)
def layout_of(
    shape: tuple[int, ...],
    dtype: AnyDType,
    stored: AnyDType,
    axis_order: tuple[int, ...] | None = None,
) -> Layout:
    """Return the `Layout` of the chunks of an array: the same one each time."""
    return Layout(shape, dtype, stored, axis_order)
