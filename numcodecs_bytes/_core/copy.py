"""The kernels: array -> stored bytes and back.

Elements in host memory are copied and byte-swapped here, by `copy_elements`; `copy_gpu` has the
kernels for arrays on a GPU. A partial read puts its bytes together in `_engine.output`.

Throughout this module `stored` is the stored dtype, as `stored_dtype` returns it, and `raw` the
stored bytes: uint8, shape ``(num_bytes,)``. Callers have checked that sizes match, and that the two
dtypes differ only in byte order, padding, titles and the integers that `copied_as` substitutes.
"""

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array, copied_as, pack_dtype, swap_unit
from numcodecs_bytes._core.invalid_bytes import has_unused_bits, make_valid, with_valid_bytes


def encode_array(array: Array, stored: AnyDType) -> Array:
    """Return an array of any layout as a C-contiguous array of the same shape and dtype `stored`.

    Shares memory with `array` if no byte has to change: same byte order, no padding, C-contiguous
    and no invalid bytes (see `has_invalid_bytes`).
    """
    copied = copied_as(array.dtype)
    source = array if copied == array.dtype else array.view(copied)
    if copied == stored and source.flags.c_contiguous:
        encoded = source
    else:
        encoded = np.empty(array.shape, stored)
        copy_elements(encoded, source)
    if not has_unused_bits(array.dtype):
        return encoded
    return with_valid_bytes(encoded.view(pack_dtype(array.dtype))).view(stored)


def decode_array(raw: Array, stored: AnyDType, dtype: AnyDType) -> Array:
    """Return the elements that stored bytes hold, shape ``(num_elements,)``; padding is zero.

    Shares memory with `raw` if no byte has to change, and is then read-only if `raw` is.
    """
    copied = copied_as(dtype)
    if stored == copied:
        return with_valid_bytes(raw.view(dtype))
    source = raw.view(stored)
    # Zeroed if there is padding, which would expose uninitialized memory otherwise.
    new = np.empty if stored.itemsize == dtype.itemsize else np.zeros
    array: Array = new(source.shape, copied)
    copy_elements(array, source)
    return with_valid_bytes(array.view(dtype))


def decode_into(raw: Array, stored: AnyDType, out: Array) -> None:
    """Fill an array with the elements that stored bytes hold, which may overlap it.

    Any layout of `out` is filled in C order, or column by column if it is column-major.
    """
    if np.may_share_memory(raw, out):
        raw = raw.copy()  # for some overlaps NumPy would read what it has already overwritten
    if is_column_major(out):
        out = out.T
    copy_elements(out.view(copied_as(out.dtype)), raw.view(stored).reshape(out.shape))
    make_valid(out)


def copy_elements(out: Array, source: Array) -> None:
    """Copy elements between arrays of the same shape and any layout, and byte-swap them if needed.

    The one place where bytes of host memory are swapped: NumPy's copy does both in a single pass.
    It assigns fields of structures by position, and so packs them, too.
    """
    if out.nbytes <= SMALL_BYTES:
        np.copyto(out, source, casting="unsafe")
        return
    if out.flags.c_contiguous and source.flags.c_contiguous:
        unit, source_unit = swap_unit(out.dtype), swap_unit(source.dtype)
        if unit is not None and source_unit is not None and unit.itemsize == source_unit.itemsize:
            out, source = out.reshape(-1).view(unit), source.reshape(-1).view(source_unit)
    for tile in _plan_tiles(out, source):
        np.copyto(out[tile], source[tile], casting="unsafe")


SMALL_BYTES = 1 << 14  # copying less takes no longer than planning

# If source and out have different axis orders, NumPy iterates in the order of out and may load each
# cache line of the source many times. Tiles, long along the axis that is contiguous in the source
# and wide along the one that is contiguous in out, load it once. The L1 cache holds MAX_LINES
# lines, but fewer if the distance between them is a multiple of a large power of two: they then
# compete for the same cache sets. Over 72 combinations of shape and axis order with 1-, 2-, 4- and
# 8-byte elements, tiles took 0.65 times as long as NumPy on average, and 0.2 at best.
MAX_LINES = 512
LINES_AT_4096 = 16  # lines that L1 holds if they are a multiple of 4096 bytes apart
TILE_BYTES = 1 << 15  # minimum, because each tile costs 1 us


def _plan_tiles(out: Array, source: Array) -> Iterable[Any]:
    """Return what selects each tile; one of everything if NumPy's own order is as fast."""
    shape = out.shape
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    if len(axes) < 2:
        return [...]
    by_out = sorted(axes, key=lambda axis: abs(out.strides[axis]))
    along_out = by_out[0]
    along_source = min(axes, key=lambda axis: abs(source.strides[axis]))
    # Lines of the source that NumPy reads before it returns to the first one.
    num_lines = math.prod(shape[axis] for axis in by_out[: by_out.index(along_source)])
    distance = math.gcd(source.strides[along_out], 4096)
    num_held = min(LINES_AT_4096 * 4096 // distance, MAX_LINES)
    is_short = shape[along_source] * out.itemsize < 64 or shape[along_out] < 2 * LINES_AT_4096
    if num_lines <= num_held or is_short:
        return [...]
    lengths = dict.fromkeys(range(out.ndim), 1)
    lengths |= {along_source: MAX_LINES, along_out: num_held}
    for axis in by_out:
        if axis not in (along_source, along_out):
            lengths[axis] = max(TILE_BYTES // (math.prod(lengths.values()) * out.itemsize), 1)
    return itertools.product(
        *[
            [slice(start, start + lengths[axis]) for start in range(0, length, lengths[axis])]
            for axis, length in enumerate(shape)
        ]
    )


def as_numpy(array: Any) -> Any:
    """Return an array-like as a NumPy array, without a copy, or a GPU array as it is."""
    try:
        return np.asarray(array)
    except TypeError:  # CuPy's, when NumPy converts its arrays
        return array


def is_column_major(array: Array) -> bool:
    """Whether an array is Fortran-contiguous and not also C-contiguous."""
    return array.flags.f_contiguous and not array.flags.c_contiguous


def as_bytes(array: Array) -> Array:
    """Return the memory of a C- or Fortran-contiguous array as flat uint8, without a copy."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    if array.ndim != 1:
        array = array.reshape(-1) if array.flags.c_contiguous else array.T.reshape(-1)
    return array.view(np.uint8)
