"""What codecs do to each element by itself, so that elements are read and written alone."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr

# What codecs raise if they can't convert an element, and what NumPy's warnings may be turned into.
_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, Warning)
_MEMORY = ["C", "ALIGNED"]  # for cast_value_rs, which panics if memory is not aligned


@dataclass(frozen=True, eq=False)
class Conversion:
    """A chain of codecs between the array and the codec ``bytes``.

    Each function takes and returns an array of one axis, in which every element depends only on the
    one at its own position.
    """

    dtype: AnyDType  # of encoded elements, in any byte order
    encoders: tuple[Callable[[Array], Array], ...]
    decoders: tuple[Callable[[Array], Array], ...]  # the last one returns the array's data type

    def encode(self, elements: Array) -> Array:
        """Return elements as they are given to the codec ``bytes``, C-contiguous, in their shape.

        Raises `LeftToZarr` if a codec raises an error: zarr raises it as well.
        """
        flat = _apply(self.encoders, np.require(elements, None, _MEMORY).reshape(-1))
        if len(flat) != elements.size or flat.itemsize != self.dtype.itemsize:
            raise LeftToZarr(f"a codec encodes to {flat.dtype}, expected {self.dtype}")
        # BitRound returns integers that hold floats.
        return flat.view(self.dtype.newbyteorder(flat.dtype.byteorder)).reshape(elements.shape)

    def decode(self, encoded: Array) -> Array:
        """Return elements of the array, in the shape of the encoded ones.

        Raises `LeftToZarr` if a codec raises an error: zarr raises it as well.
        """
        flat = np.require(encoded, self.dtype, _MEMORY).reshape(-1)
        return _apply(self.decoders, flat).reshape(encoded.shape)


def _apply(functions: tuple[Callable[[Array], Array], ...], elements: Array) -> Array:
    try:
        for function in functions:
            elements = function(elements)
    except _ERRORS as error:
        raise LeftToZarr(f"an element can't be converted: {error}") from error
    return elements
