"""The kernels: array -> stored bytes and back. The only code that moves bytes.

Each returns a view where nothing has to move. Callers have checked that sizes fit and that the
dtypes differ in byte order, padding and titles only.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from numcodecs_bytes._data_type import AnyDType, fields_of, has_bool

if TYPE_CHECKING:
    from numcodecs_bytes._byte_ranges import PartialReadPlan

Array = np.ndarray[Any, AnyDType]


def encode_array(array: Array, stored: AnyDType) -> Array:
    """Return the array C-contiguous in the stored dtype; shares memory where nothing moves."""
    # NumPy assigns structures by position: equal fields, so packing and swapping are one pass.
    numbers = array.view(_copied_as(array.dtype))
    encoded = numbers.astype(_copied_as(stored), order="C", copy=False).view(stored)
    return _with_valid_bools(encoded)


def decode_array(raw: Array, stored: AnyDType, dtype: AnyDType) -> Array:
    """Return flat uint8 bytes as a flat array of dtype; shares memory where nothing moves."""
    if stored == dtype:
        return _with_valid_bools(raw.view(dtype))
    source = raw.view(_copied_as(stored))
    # Zeros, because padding must not hand out old memory.
    new = np.empty if stored.itemsize == dtype.itemsize else np.zeros
    array: Array = new(source.shape, _copied_as(dtype))
    array[...] = source
    return _with_valid_bools(array.view(dtype))


def decode_into(raw: Array, stored: AnyDType, out: Array) -> None:
    """Fill out with flat uint8 bytes, in memory order: a column-major out column-major."""
    if is_column_major(out):
        out = out.T
    source = raw.view(_copied_as(stored)).reshape(out.shape)
    np.copyto(out.view(_copied_as(out.dtype)), source, casting="unsafe")
    for values in _bool_bytes(out):
        np.minimum(values, 1, out=values)


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

    In that copy it swaps them, all but datetimes without a unit.
    """
    if dtype.kind in "mM" and selected.dtype != dtype:
        return selected.view(_copied_as(selected.dtype)).astype(_copied_as(dtype)).view(dtype)
    return _with_valid_bools(selected)


def is_column_major(array: Array) -> bool:
    """Whether the elements lie in column-major order and in no other."""
    return array.flags.f_contiguous and not array.flags.c_contiguous


def as_bytes(array: Array) -> Array:
    """Return the memory of a contiguous array (C or column-major) as flat uint8; never copies."""
    flat = array.reshape(-1, order="A")
    return flat.view(np.uint8) if flat.nbytes else np.empty(0, np.uint8)


def _copied_as(dtype: AnyDType) -> AnyDType:
    """Return the dtype as which elements are copied: int64 for datetimes.

    NumPy does not swap datetimes without a unit when it casts them to the other byte order.
    """
    return np.dtype("i8").newbyteorder(dtype.byteorder) if dtype.kind in "mM" else dtype


def _bool_bytes(array: Array) -> Iterator[Array]:
    """Yield a uint8 view of every bool in the array, also of those in structures."""
    if array.dtype.names is not None:
        for name, field in fields_of(array.dtype):
            if has_bool(field):
                yield from _bool_bytes(array[name])
    elif array.dtype.kind == "b":
        yield array.view(np.uint8)


def _with_valid_bools(array: Array) -> Array:
    """Return the array with 0x01 for every bool that is true; copies where one is neither 0 nor 1.

    NumPy computes wrong values from other bytes (0xFF is what Fortran writes for true).
    """
    if has_bool(array.dtype) and any(b.max(initial=0) > 1 for b in _bool_bytes(array)):
        array = array.copy()
        for values in _bool_bytes(array):
            np.minimum(values, 1, out=values)
    return array
