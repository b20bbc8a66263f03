"""How the elements of an uncompressed chunk are stored."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array, byteswap_dtype
from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._core.invalid_bytes import has_unused_bits
from numcodecs_bytes._core.lengths import Reference, check_length
from numcodecs_bytes._plan.outcome import LeftToZarr

# What codecs raise if they can't convert an element, and what NumPy's warnings may be turned into.
_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, Warning)


class Geometry(NamedTuple):
    """All that plans depend on: equal chunks share their plans, also those of several arrays."""

    shape: tuple[int, ...]
    axis_order: tuple[int, ...]  # elements along the last one are adjacent
    item_size: int  # the length of a stored element, in bytes

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


@dataclass(frozen=True, eq=False)
class ElementCodecs:
    """A chain of codecs between the array and the codec ``bytes``.

    Each function takes and returns an array of one axis, in which every element depends only on the
    one at its own position.
    """

    dtype: AnyDType  # what elements are encoded to, in any byte order
    decoders: tuple[Callable[[Array], Array], ...]  # the last one returns the array's data type

    def decode(self, encoded: Array) -> Array:
        """Return elements of the array, in the shape of the encoded ones.

        Raises `LeftToZarr` if a codec raises an error: zarr raises it as well.
        """
        # They are converted in the order of memory, which is faster than to transpose them first.
        order = np.argsort([-abs(stride) for stride in encoded.strides], kind="stable")
        in_order = encoded.transpose(order)
        # cast_value_rs panics if elements are not aligned in memory.
        flat = np.require(in_order, self.dtype, ["C", "ALIGNED"]).reshape(-1)
        try:
            for decode in self.decoders:
                flat = decode(flat)
        except _ERRORS as error:
            raise_if_of_caller(error)
            raise LeftToZarr(f"an element can't be converted: {error}") from error
        return flat.reshape(in_order.shape).transpose(np.argsort(order))


class Layout:
    """How the elements of a chunk are stored.

    Elements along the last axis of `axis_order`, by default C order, are adjacent. If there are
    codecs of elements, `dtype` is that of the array, and `stored_dtype` that of encoded elements.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: AnyDType,
        stored_dtype: AnyDType,
        axis_order: tuple[int, ...] | None = None,
        element_codecs: ElementCodecs | None = None,
    ) -> None:
        self.shape, self.dtype, self.stored_dtype = shape, dtype, stored_dtype
        self.element_codecs = element_codecs
        self.axis_order = tuple(range(len(shape))) if axis_order is None else axis_order
        self.item_size = stored_dtype.itemsize
        self.geometry = Geometry(shape, self.axis_order, self.item_size)
        self.num_bytes, self.strides = self.geometry.num_bytes, self.geometry.strides
        # Whether NumPy's copy converts stored elements: it can swap them, and no bits are invalid.
        self.is_converted_by_copy = byteswap_dtype(dtype) == dtype and not has_unused_bits(dtype)
        # Whether stored elements equal elements in memory, byte for byte.
        self.is_stored_as_in_memory = (
            self.is_converted_by_copy and stored_dtype == dtype and element_codecs is None
        )

    def check_length(
        self, num_bytes: int, name: str, start: bytes, *, reference: Reference = ""
    ) -> None:
        """Raise LengthError unless a chunk of this name has the right length."""
        dtype = self.dtype if self.element_codecs is None else self.stored_dtype
        check_length(
            num_bytes,
            self.shape,
            dtype,
            self.stored_dtype,
            name,
            start=start,
            reference=reference,
        )
