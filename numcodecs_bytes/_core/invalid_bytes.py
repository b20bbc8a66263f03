"""Invalid bools (neither 0 nor 1), and numbers of fewer than 8 bits with unused bits set.

Any nonzero byte reads as true (Fortran writes 0xFF), and the unused high bits of small numbers are
ignored. NumPy and ml_dtypes would compute wrong values from such bytes if they were left unchanged.
"""

import functools
from collections.abc import Iterator

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array, fields_of, find_ml_dtype, leaf_dtypes


def max_byte(dtype: AnyDType) -> int:
    """Return the largest valid byte of a bool or small number; 0xFF for other data types."""
    row = find_ml_dtype(dtype)
    num_bits = 1 if dtype.kind == "b" else 8 if row is None else min(row.num_bits, 8)
    return (1 << num_bits) - 1


@functools.lru_cache(maxsize=256)
def has_unused_bits(dtype: AnyDType) -> bool:
    """Whether elements of a data type can hold invalid bytes."""
    return any(max_byte(leaf) < 0xFF for leaf in leaf_dtypes(dtype))


def has_invalid_bytes(array: Array) -> bool:
    """Whether an array holds a bool other than 0x00 and 0x01, or a small number out of range."""
    return has_unused_bits(array.dtype) and any(
        numbers.view(np.uint8).max(initial=0) > max_byte(numbers.dtype)
        for numbers in _with_unused_bits(array)
    )


def with_valid_bytes(array: Array) -> Array:
    """Return the array with valid bools and small numbers; a copy if any is invalid."""
    if not has_invalid_bytes(array):
        return array
    # Zeroed, because `copy` would expose uninitialized memory in the padding.
    valid = np.zeros(array.shape, array.dtype)
    valid[...] = array
    make_valid(valid)
    return valid


def make_valid(array: Array) -> None:
    """Set invalid bools to 0x01 and clear the unused high bits of small numbers, in place."""
    for numbers in _with_unused_bits(array):
        raw = numbers.view(np.uint8)
        if numbers.dtype.kind == "b":
            np.not_equal(raw, 0, out=numbers)  # many times faster than minimum
        else:
            np.bitwise_and(raw, max_byte(numbers.dtype), out=raw)


def _with_unused_bits(array: Array) -> Iterator[Array]:
    """Yield views of the bools and small numbers in an array, including those in structures."""
    if array.dtype.names is not None:
        for name, field in fields_of(array.dtype):
            if has_unused_bits(field):
                yield from _with_unused_bits(array[name])
    elif has_unused_bits(array.dtype):
        yield np.asarray(array)  # a masked array would hide its masked elements
