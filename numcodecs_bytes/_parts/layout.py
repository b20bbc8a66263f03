"""How the elements of an uncompressed chunk are stored."""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from numcodecs_bytes._core.dtypes import AnyDType


class Layout(NamedTuple):
    """How the elements of a chunk are stored.

    Attributes
    ----------
    shape : tuple of int
        Shape of the chunk in elements.
    dtype, stored : numpy.dtype
        The dtype of the elements in memory, and their stored dtype.
    axis_order : tuple of int or None
        The axes in the order in which they are stored: elements along the last one are adjacent.
        None means C order.
    """

    shape: tuple[int, ...]
    dtype: AnyDType
    stored: AnyDType
    axis_order: tuple[int, ...] | None = None

    @property
    def item_size(self) -> int:
        """Stored size of an element in bytes."""
        return self.stored.itemsize

    @property
    def num_bytes(self) -> int:
        """Length of the chunk in bytes."""
        return math.prod(self.shape) * self.stored.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements."""
        return strides_of(self.shape, self.axis_order)

    @property
    def as_stored(self) -> Sequence[int]:
        """The axes in the order in which they are stored."""
        return range(len(self.shape)) if self.axis_order is None else self.axis_order


@functools.lru_cache(maxsize=256)
def strides_of(shape: tuple[int, ...], axis_order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the strides of a chunk in elements."""
    strides = [1] * len(shape)
    stride = 1
    for axis in reversed(range(len(shape)) if axis_order is None else axis_order):
        strides[axis] = stride
        stride *= shape[axis]
    return tuple(strides)
