"""How the elements of an uncompressed chunk are stored."""

import math
from typing import NamedTuple

from numcodecs_bytes._core.dtypes import AnyDType, check_length, copied_as
from numcodecs_bytes._core.invalid_bytes import has_unused_bits
from numcodecs_bytes._plan.conversion import Conversion


class Geometry(NamedTuple):
    """All that plans depend on: equal chunks share their plans, also those of several arrays."""

    shape: tuple[int, ...]
    axis_order: tuple[int, ...]  # elements along the last one are adjacent
    item_size: int  # of a stored element, in bytes

    @property
    def num_bytes(self) -> int:
        """The length of a chunk."""
        return math.prod(self.shape) * self.item_size

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance of elements along each axis, in bytes."""
        strides, stride = [0] * len(self.shape), self.item_size
        for axis in reversed(self.axis_order):
            strides[axis] = stride
            stride *= self.shape[axis]
        return tuple(strides)


class Layout:
    """How the elements of a chunk are stored.

    Elements along the last axis of `axis_order`, by default C order, are adjacent. If there is a
    conversion, `dtype` is that of the array, and `stored_dtype` that of converted elements.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: AnyDType,
        stored_dtype: AnyDType,
        axis_order: tuple[int, ...] | None = None,
        conversion: Conversion | None = None,
    ) -> None:
        self.shape, self.dtype, self.stored_dtype = shape, dtype, stored_dtype
        self.conversion = conversion
        self.axis_order = tuple(range(len(shape))) if axis_order is None else axis_order
        self.item_size = stored_dtype.itemsize
        self.geometry = Geometry(shape, self.axis_order, self.item_size)
        self.num_bytes = self.geometry.num_bytes
        # Whether NumPy's copy converts stored elements: it can swap them, and no bits are invalid.
        self.is_converted_by_copy = copied_as(dtype) == dtype and not has_unused_bits(dtype)
        # Whether stored elements equal elements in memory, byte for byte.
        self.is_plain = self.is_converted_by_copy and stored_dtype == dtype and conversion is None

    def check_length(self, num_bytes: int, name: str) -> None:
        """Raise LengthError unless a chunk of this name has the right length."""
        dtype = self.dtype if self.conversion is None else self.stored_dtype
        check_length(num_bytes, self.shape, dtype, self.stored_dtype, name)
