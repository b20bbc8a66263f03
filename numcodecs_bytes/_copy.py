"""The kernels: array -> stored bytes and back. The only code that moves bytes.

Each returns a view where nothing has to move. Callers have checked that sizes fit and that the
dtypes differ in byte order, padding and titles only, and in what `copied_as` does.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from numcodecs_bytes._data_type import (
    AnyDType,
    copied_as,
    fields_of,
    has_unused_bits,
    max_byte,
    pack_dtype,
)

if TYPE_CHECKING:
    from numcodecs_bytes._byte_ranges import PartialReadPlan

Array = np.ndarray[Any, AnyDType]


def encode_array(array: Array, stored: AnyDType) -> Array:
    """Return the array C-contiguous in the stored dtype; shares memory where nothing moves."""
    # NumPy assigns structures by position: equal fields, so packing and swapping are one pass.
    encoded = array.view(copied_as(array.dtype)).astype(stored, order="C", copy=False)
    if not has_unused_bits(array.dtype):
        return encoded
    return _with_valid_bytes(encoded.view(pack_dtype(array.dtype))).view(stored)


def decode_array(raw: Array, stored: AnyDType, dtype: AnyDType) -> Array:
    """Return flat uint8 bytes as a flat array of dtype; shares memory where nothing moves."""
    copied = copied_as(dtype)
    if stored == copied:
        return _with_valid_bytes(raw.view(dtype))
    source = raw.view(stored)
    # Zeros, because padding must not hand out old memory.
    new = np.empty if stored.itemsize == dtype.itemsize else np.zeros
    array: Array = new(source.shape, copied)
    array[...] = source
    return _with_valid_bytes(array.view(dtype))


def decode_into(raw: Array, stored: AnyDType, out: Array) -> None:
    """Fill out with flat uint8 bytes, in memory order: a column-major out column-major."""
    if is_column_major(out):
        out = out.T
    out = out if out.ndim else out.reshape(1)  # of 0-d structures NumPy does not see an overlap
    source = raw.view(stored).reshape(out.shape)
    np.copyto(out.view(copied_as(out.dtype)), source, casting="unsafe")
    for numbers in _with_unused_bits(out):
        _make_valid(numbers)


def select_fetched(fetched: Array, stored: AnyDType, plan: "PartialReadPlan") -> Array:
    """Return the selected elements of the fetched ranges, in the stored dtype.

    A view, or for arrays of indices a copy that is never larger than what is fetched or selected.
    """
    if math.prod(plan.shape) == 0:
        return np.empty(plan.shape, stored)
    strides = tuple(stride * stored.itemsize for stride in plan.window_strides)
    # Unlike as_strided, this raises where a window would reach beyond the memory.
    selected: Array = np.ndarray(plan.window_shape, stored, fetched, strides=strides)

    def pick(positions: tuple[Any, ...], axes: Iterable[int]) -> None:
        nonlocal selected
        for axis in axes:
            if positions[axis] is not None:
                # Not take(), which makes its source contiguous first.
                selected = selected[(slice(None),) * axis + (positions[axis],)]

    num_axes = len(plan.window_shape)
    pick(plan.index, range(num_axes))
    growth = [
        1.0 if order is None else len(order) / length
        for order, length in zip(plan.order, selected.shape, strict=True)
    ]
    pick(plan.order, sorted(range(num_axes), key=growth.__getitem__))
    return selected.reshape(plan.shape)


def ready_to_copy(selected: Array, dtype: AnyDType) -> Array:
    """Return stored elements so that NumPy copies them right into an array of dtype.

    In that copy it swaps them, all but those that are to be copied as other types.
    """
    copied = copied_as(dtype)
    if copied == dtype:
        return _with_valid_bytes(selected)
    return _with_valid_bytes(selected.astype(copied, copy=False).view(dtype))


def is_column_major(array: Array) -> bool:
    """Whether the elements lie in column-major order and in no other."""
    return array.flags.f_contiguous and not array.flags.c_contiguous


def as_bytes(array: Array) -> Array:
    """Return the memory of a contiguous array (C or column-major) as flat uint8; never copies."""
    flat = array.reshape(-1, order="A")
    return flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)


def _with_unused_bits(array: Array) -> Iterator[Array]:
    """Yield a view of every bool and small number in the array, also of those in structures."""
    if array.dtype.names is not None:
        for name, field in fields_of(array.dtype):
            if has_unused_bits(field):
                yield from _with_unused_bits(array[name])
    elif has_unused_bits(array.dtype):
        yield array


def _make_valid(numbers: Array) -> None:
    """Make bools 0x01 where they are not 0, and small numbers 0 in the bits above, in place.

    NumPy computes wrong values from other bools (0xFF is what Fortran writes for true), ml_dtypes
    from float4 and float6 with high bits.
    """
    values = numbers.view(np.uint8)
    make = np.minimum if numbers.dtype.kind == "b" else np.bitwise_and
    make(values, max_byte(numbers.dtype), out=values)


def _with_valid_bytes(array: Array) -> Array:
    """Return the array with valid bools and small numbers; copies where one is invalid."""
    if has_unused_bits(array.dtype) and any(
        numbers.view(np.uint8).max(initial=0) > max_byte(numbers.dtype)
        for numbers in _with_unused_bits(array)
    ):
        array = array.copy()
        for numbers in _with_unused_bits(array):
            _make_valid(numbers)
    return array
