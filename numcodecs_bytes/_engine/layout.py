"""How the elements of an uncompressed chunk are stored."""

import math

from numcodecs_bytes._core.dtypes import AnyDType, copied_as, leaf_dtypes
from numcodecs_bytes._core.invalid_bytes import has_unused_bits
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._engine import kept
from numcodecs_bytes._engine.conversion import Conversion


class Layout:
    """How the elements of a chunk are stored. Get one from `layout_of`: plans are kept for each.

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
        self.item_size = stride = stored_dtype.itemsize
        strides = [0] * len(shape)
        for axis in reversed(self.axis_order):
            strides[axis] = stride
            stride *= shape[axis]
        self.strides = tuple(strides)  # the distance of elements along each axis, in bytes
        self.num_bytes = math.prod(shape) * self.item_size
        # Whether NumPy's copy converts stored elements: it can swap them, and no bits are invalid.
        self.is_converted_by_copy = copied_as(dtype) == dtype and not has_unused_bits(dtype)
        # Whether stored elements equal elements in memory, byte for byte.
        self.is_plain = self.is_converted_by_copy and stored_dtype == dtype and conversion is None

    def check_length(self, num_bytes: int, name: str) -> None:
        """Raise LengthError unless a chunk of this name has the right length."""
        dtype = self.dtype if self.conversion is None else self.stored_dtype
        check_length(num_bytes, self.shape, dtype, self.stored_dtype, name)

    @property
    def most_memory(self) -> int:
        """See `kept.Kept`; its data types may be as large as their fields are many."""
        num_bytes = 512 + 64 * len(self.shape) + 768 * len(list(leaf_dtypes(self.dtype)))
        return num_bytes + (0 if self.conversion is None else 4096)


def layout_of(
    shape: tuple[int, ...],
    dtype: AnyDType,
    stored_dtype: AnyDType,
    axis_order: tuple[int, ...] | None = None,
    conversion: Conversion | None = None,
) -> Layout:
    """Return how chunks are stored; it is kept, so arrays of equal chunks share their plans."""
    key = Layout, shape, dtype, stored_dtype, axis_order, conversion
    layout: Layout | None = kept.find(key)
    return layout or kept.add(key, Layout(*key[1:]))
