"""The kernels: array -> stored bytes and back.

Array data in host memory is copied and byte-swapped here, in `_copy`. A partial read puts its bytes
together in `_engine.output`, and leaves the byte swap to the copy into zarr's output array.
`copy_gpu` has the kernels for arrays on a GPU.

Throughout this module `stored` is the stored dtype, as `stored_dtype` returns it. Callers have
checked that sizes match, and that the two dtypes differ only in byte order, padding, titles and the
integers that `copied_as` substitutes.
"""

import itertools
import math
from typing import Any

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array, copied_as, pack_dtype, swap_unit
from numcodecs_bytes._core.invalid_bytes import has_unused_bits, make_valid, with_valid_bytes


def encode_array(array: Array, stored: AnyDType) -> Array:
    """Return an array in C order and in the stored dtype.

    Parameters
    ----------
    array : numpy.ndarray
        Any shape and memory layout.
    stored : numpy.dtype
        The stored dtype of the elements.

    Returns
    -------
    numpy.ndarray
        C-contiguous, of the same shape, dtype `stored`. Shares memory with `array` if no byte has
        to change: same byte order, no padding, C-contiguous and no invalid bytes (see
        `has_invalid_bytes`).
    """
    if array.dtype == stored:
        if array.flags.c_contiguous:
            return with_valid_bytes(array)
        if array.strides[-1] == array.itemsize:  # rows are contiguous: a slice of a larger array
            return with_valid_bytes(np.ascontiguousarray(array))
    copied = copied_as(array.dtype)
    source = array if copied == array.dtype else array.view(copied)
    if copied == stored and source.flags.c_contiguous:
        encoded = source
    elif _is_small(source):
        encoded = source.astype(stored, order="C")
    else:
        encoded = np.empty(array.shape, stored)
        _copy(encoded, source)
    if not has_unused_bits(array.dtype):
        return encoded
    return with_valid_bytes(encoded.view(pack_dtype(array.dtype))).view(stored)


def decode_array(raw: Array, stored: AnyDType, dtype: AnyDType) -> Array:
    """Return the elements that stored bytes hold.

    Parameters
    ----------
    raw : numpy.ndarray
        The stored bytes, uint8, shape ``(num_bytes,)``.
    stored : numpy.dtype
        The stored dtype of the elements.
    dtype : numpy.dtype
        The dtype of the elements in memory.

    Returns
    -------
    numpy.ndarray
        Shape ``(num_elements,)``, dtype `dtype`; padding is zero. Shares memory with `raw` if no
        byte has to change, and is then read-only if `raw` is.

    Raises
    ------
    ValueError
        If the number of bytes is not a multiple of the stored item size.
    """
    copied = copied_as(dtype)
    if stored == copied:
        return with_valid_bytes(raw.view(dtype))
    source = raw.view(stored)
    # Zeroed if there is padding, which would expose uninitialized memory otherwise.
    new = np.empty if stored.itemsize == dtype.itemsize else np.zeros
    array: Array = new(source.shape, copied)
    _copy(array, source)
    return with_valid_bytes(array.view(dtype))


def decode_into(raw: Array, stored: AnyDType, out: Array) -> None:
    """Fill an array with the elements that stored bytes hold.

    Parameters
    ----------
    raw : numpy.ndarray
        The stored bytes, uint8, shape ``(num_bytes,)``. May overlap `out`.
    stored : numpy.dtype
        The stored dtype of the elements.
    out : numpy.ndarray
        Writable, any shape and layout, with as many elements as `raw` holds. Filled in C order, or
        column by column if it is column-major.

    Raises
    ------
    ValueError
        If the number of elements differs.
    """
    if np.may_share_memory(raw, out):
        raw = raw.copy()  # for some overlaps NumPy would read what it has already overwritten
    if is_column_major(out):
        out = out.T
    _copy(out.view(copied_as(out.dtype)), raw.view(stored).reshape(out.shape))
    make_valid(out)


def _copy(out: Array, source: Array) -> None:
    """Copy elements between arrays of the same shape and any layout, and byte-swap them if needed.

    The one place where bytes of host memory are swapped: NumPy's copy does both in a single pass.
    """
    if _is_small(source):
        np.copyto(out, source, casting="unsafe")
        return
    unit, source_unit = swap_unit(out.dtype), swap_unit(source.dtype)
    if unit is None or source_unit is None or unit.itemsize != source_unit.itemsize:
        # NumPy assigns fields by position, so this packs and byte-swaps in a single pass.
        np.copyto(out, source, casting="unsafe")
    elif out.flags.c_contiguous and source.flags.c_contiguous:
        np.copyto(out.reshape(-1).view(unit), source.reshape(-1).view(source_unit))
    elif _is_last_axis_fastest(out) and _is_last_axis_fastest(source):
        np.copyto(out, source, casting="unsafe")
    elif unit != source_unit and 4 <= out.shape[-1] <= 16 and out.flags.c_contiguous:
        _copy_then_swap(out, source)
    else:
        _copy_in_tiles(out, source)


def _is_small(array: Array) -> bool:
    """Whether planning would cost more than a plain copy."""
    # NumPy is slow on contiguous elements other than numbers, so planning pays off earlier.
    is_slow = array.dtype.kind not in "iufc" and array.flags.c_contiguous
    return array.nbytes <= (SMALL_BYTES // 16 if is_slow else SMALL_BYTES)


def _copy_then_swap(out: Array, source: Array) -> None:
    """Copy, then byte-swap blocks that fit in the cache: NumPy swaps short rows slowly."""
    num_rows = max(CACHE_BYTES // out[0].nbytes, 1)
    block = np.empty((num_rows, *out.shape[1:]), source.dtype)
    for start in range(0, len(out), num_rows):
        rows = source[start : start + num_rows]
        np.copyto(block[: len(rows)], rows)
        np.copyto(out[start : start + num_rows], block[: len(rows)], casting="unsafe")


def _is_last_axis_fastest(array: Array) -> bool:
    """Whether no axis has a smaller stride than the last one."""
    strides = array.strides
    return abs(strides[-1]) == min(map(abs, strides))


SMALL_BYTES = 1 << 16
CACHE_BYTES = 1 << 18

# If source and out have different axis orders, NumPy iterates in the order of out and may load each
# cache line of the source many times. Tiles, long along the axis that is contiguous in the source
# and wide along the one that is contiguous in out, load it once. The L1 cache holds MAX_LINES
# lines, but fewer if the distance between them is a multiple of a large power of two: they then
# compete for the same cache sets. For 1- and 2-byte elements, L1 limits the tile. For larger ones
# it is L2 (CACHE_BYTES), unless the distance is a multiple of CONFLICT_BYTES. All constants were
# the fastest over 60 combinations of shape and axis order with 1-, 2-, 4- and 8-byte elements;
# plain NumPy took 1.3 to 1.7 times as long on average.
LINE_BYTES = 64
MAX_LINES = 512
LINES_AT_4096 = 16  # lines that L1 holds if they are a multiple of 4096 bytes apart
CONFLICT_BYTES = 2048
TILE_LENGTH = 512
TILE_WIDTH = 256
TILE_BYTES = 1 << 15  # minimum, because each tile costs 1 us


def _copy_in_tiles(out: Array, source: Array) -> None:
    tile = _plan_tiles(out.shape, out.strides, source.strides, out.itemsize)
    if tile is None:
        np.copyto(out, source, casting="unsafe")
        return
    starts = (range(0, n, length) for n, length in zip(out.shape, tile, strict=True))
    for start in itertools.product(*starts):
        block = tuple(slice(s, s + length) for s, length in zip(start, tile, strict=True))
        np.copyto(out[block], source[block], casting="unsafe")


def _plan_tiles(
    shape: tuple[int, ...],
    out_strides: tuple[int, ...],
    source_strides: tuple[int, ...],
    item_size: int,
) -> list[int] | None:
    """Return the shape of a tile in elements, or None if plain NumPy is as fast."""
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    if math.prod(shape) * item_size <= SMALL_BYTES or len(axes) < 2:
        return None
    by_out = sorted(axes, key=lambda axis: abs(out_strides[axis]))
    along_source = min(axes, key=lambda axis: abs(source_strides[axis]))
    along_out = by_out[0]
    # Lines of the source that NumPy reads before it returns to the first one.
    num_lines = math.prod(shape[axis] for axis in by_out[: by_out.index(along_source)])
    distance = math.gcd(source_strides[along_out], 4096)
    held = min(LINES_AT_4096 * 4096 // distance, MAX_LINES)
    is_first_level = item_size <= 2 or distance >= CONFLICT_BYTES
    fits_cache = num_lines <= (held if is_first_level else CACHE_BYTES // LINE_BYTES)
    least_bytes = LINE_BYTES if is_first_level else 4 * LINE_BYTES
    is_short = shape[along_source] * item_size < least_bytes or shape[along_out] < LINES_AT_4096
    if along_source == along_out or fits_cache or is_short:
        return None
    tile = [1] * len(shape)
    tile[along_source] = min(TILE_LENGTH, shape[along_source])
    tile[along_out] = min(held, TILE_WIDTH, shape[along_out])
    for axis in by_out:
        if tile[axis] == 1:
            room = TILE_BYTES // (math.prod(tile) * item_size)
            tile[axis] = min(max(room, 1), shape[axis])
    return tile


def as_numpy(array: Any) -> Any:
    """Return an array-like as a NumPy array, or a GPU array as it is.

    Parameters
    ----------
    array : array-like
        Any shape and dtype.

    Returns
    -------
    numpy.ndarray or array
        Shares memory with `array` if it is in host memory. CuPy arrays, which raise TypeError when
        NumPy converts them, are returned unchanged.
    """
    if isinstance(array, np.ndarray):
        return array
    try:
        return np.asarray(array)
    except TypeError:
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
