"""How codecs decode each element by itself, so that parts of chunks can be decoded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array
from numcodecs_bytes._plan.outcome import LeftToZarr

# What codecs raise if they can't convert an element, and what NumPy's warnings may be turned into.
_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, Warning)


@dataclass(frozen=True, eq=False)
class Conversion:
    """A chain of codecs between the array and the codec ``bytes``.

    Each function takes and returns an array of one axis, in which every element depends only on the
    one at its own position.
    """

    dtype: AnyDType  # of encoded elements, in any byte order
    decoders: tuple[Callable[[Array], Array], ...]  # the last one returns the array's data type

    def decode(self, encoded: Array) -> Array:
        """Return elements of the array, in the shape of the encoded ones.

        Raises `LeftToZarr` if a codec raises an error: zarr raises it as well.
        """
        # In the order of memory: to convert elements takes less time than to transpose them.
        order = np.argsort([-abs(stride) for stride in encoded.strides], kind="stable")
        in_order = encoded.transpose(order)
        flat = _apply(self.decoders, _flatten(in_order, self.dtype))
        return flat.reshape(in_order.shape).transpose(np.argsort(order))


def _flatten(array: Array, dtype: AnyDType) -> Array:
    """Return elements along one axis, aligned in memory: otherwise, cast_value_rs panics."""
    return np.require(array, dtype, ["C", "ALIGNED"]).reshape(-1)


def _apply(functions: tuple[Callable[[Array], Array], ...], elements: Array) -> Array:
    try:
        for function in functions:
            elements = function(elements)
    except _ERRORS as error:
        raise LeftToZarr(f"an element can't be converted: {error}") from error
    return elements
