"""The kernels: array -> stored bytes and back.

No other code moves bytes, but for `open_file`, which puts together what it reads.

Each returns a view where nothing has to move. Callers have checked that sizes fit and that the
dtypes differ in byte order, padding and titles only, and in what `copied_as` does.
"""

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from numcodecs_bytes._dtypes import AnyDType, Array, copied_as, pack_dtype, swap_unit
from numcodecs_bytes._unused_bits import has_unused_bits, make_valid, with_valid_bytes

if TYPE_CHECKING:
    from numcodecs_bytes._partial_read.plan import Plan

Indices = np.ndarray[Any, np.dtype[np.intp]]


def encode_array(array: Array, stored: AnyDType) -> Array:
    """Return the array C-contiguous in the stored dtype; shares memory where nothing moves."""
    if array.dtype == stored:
        if array.flags.c_contiguous:
            return with_valid_bytes(array)
        if array.strides[-1] == array.itemsize:  # rows of a larger array
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
    """Return flat uint8 bytes as a flat array of dtype; shares memory where nothing moves."""
    copied = copied_as(dtype)
    if stored == copied:
        return with_valid_bytes(raw.view(dtype))
    source = raw.view(stored)
    # Zeros, because padding must not hand out old memory.
    new = np.empty if stored.itemsize == dtype.itemsize else np.zeros
    array: Array = new(source.shape, copied)
    _copy(array, source)
    return with_valid_bytes(array.view(dtype))


def decode_into(raw: Array, stored: AnyDType, out: Array) -> None:
    """Fill out with flat uint8 bytes, in memory order: a column-major out column-major."""
    if np.may_share_memory(raw, out):
        raw = raw.copy()  # of some overlaps NumPy reads what it has written
    if is_column_major(out):
        out = out.T
    _copy(out.view(copied_as(out.dtype)), raw.view(stored).reshape(out.shape))
    make_valid(out)


def _copy(out: Array, source: Array) -> None:
    """Copy elements, of any layout and byte order, in one pass."""
    if _is_small(source):
        np.copyto(out, source, casting="unsafe")
        return
    unit, source_unit = swap_unit(out.dtype), swap_unit(source.dtype)
    if unit is None or source_unit is None or unit.itemsize != source_unit.itemsize:
        # NumPy assigns structures by position: equal fields, so packing and swapping are one pass.
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
    """Whether NumPy, asked at once, is done before we have found a better way."""
    is_slow = array.dtype.kind not in "iufc" and array.flags.c_contiguous
    return array.nbytes <= (SMALL_BYTES // 16 if is_slow else SMALL_BYTES)


def _copy_then_swap(out: Array, source: Array) -> None:
    """Copy in blocks that stay in the cache, then swap them: NumPy swaps short rows slowly."""
    num_rows = max(CACHE_BYTES // out[0].nbytes, 1)
    block = np.empty((num_rows, *out.shape[1:]), source.dtype)
    for start in range(0, len(out), num_rows):
        rows = source[start : start + num_rows]
        np.copyto(block[: len(rows)], rows)
        np.copyto(out[start : start + num_rows], block[: len(rows)], casting="unsafe")


def _is_last_axis_fastest(array: Array) -> bool:
    strides = array.strides
    return abs(strides[-1]) == min(map(abs, strides))


SMALL_BYTES = 1 << 16
CACHE_BYTES = 1 << 18

# Where source and out lie in different orders, NumPy follows out, and so may read each cache line
# of the source many times. Tiles, long along the axis that is contiguous in the source and wide
# along that of out, read it once. The first-level cache holds MAX_LINES lines, but fewer the larger
# the power of two is that divides the distance between them: they share their places in it then.
# A line of 1- and 2-byte elements is read so often that this level counts; for larger ones the
# second does, CACHE_BYTES, unless the distance is a multiple of CONFLICT_BYTES. All numbers are the
# best over 60 shapes and orders of axes of 1-, 2-, 4- and 8-byte elements; NumPy itself took 1.3 to
# 1.7 times as long on average.
LINE_BYTES = 64
MAX_LINES = 512
LINES_AT_4096 = 16  # lines held that are a multiple of 4096 bytes apart
CONFLICT_BYTES = 2048
TILE_LENGTH = 512
TILE_WIDTH = 256
TILE_BYTES = 1 << 15  # at least: each costs 1 us


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
    """Return the lengths of a tile, in elements along each axis; None where NumPy does as well."""
    axes = [axis for axis, length in enumerate(shape) if length > 1]
    if math.prod(shape) * item_size <= SMALL_BYTES or len(axes) < 2:
        return None
    by_out = sorted(axes, key=lambda axis: abs(out_strides[axis]))
    along_source = min(axes, key=lambda axis: abs(source_strides[axis]))
    along_out = by_out[0]
    # What NumPy reads before it comes back to a line of the source.
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


def copy_pieces(out: Array, raw: Array, starts: Indices, lengths: Indices) -> None:
    """Fill out with pieces of raw, end to end; both flat uint8, starts and lengths in bytes."""
    length = int(lengths[0])
    if length <= SMALL_PIECE_BYTES and (lengths == length).all():
        # At each byte, what begins there. Unlike as_strided, this raises beyond the memory.
        windows = np.ndarray(len(raw) - length + 1, f"V{length}", raw, strides=(1,))
        out.view(windows.dtype)[:] = windows[starts]
        return
    place = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        out[place : place + length] = raw[start : start + length]
        place += length


SMALL_PIECE_BYTES = 1 << 12


def select_fetched(fetched: Array, stored: AnyDType, plan: "Plan", selection: Any) -> Array:
    """Return the elements of a selection, which a plan is for, in the stored dtype.

    A view, or for arrays of indices a copy that is never larger than what is fetched or selected.
    """
    if not plan.is_whole and math.prod(plan.shape) == 0:
        return np.empty(plan.shape, stored)
    strides = tuple(stride * stored.itemsize for stride in plan.window_strides)
    # Unlike as_strided, this raises where a window would reach beyond the memory.
    raw = np.ascontiguousarray(fetched)
    selected: Array = np.ndarray(plan.window_shape, stored, raw, strides=strides)
    if plan.is_whole:
        return np.asanyarray(selected[selection])

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
        return with_valid_bytes(selected)
    return with_valid_bytes(selected.astype(copied, copy=False).view(dtype))


def is_column_major(array: Array) -> bool:
    """Whether the elements lie in column-major order and in no other."""
    return array.flags.f_contiguous and not array.flags.c_contiguous


def as_bytes(array: Array) -> Array:
    """Return the memory of a contiguous array (C or column-major) as flat uint8; never copies."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    if array.ndim != 1:
        array = array.reshape(-1) if array.flags.c_contiguous else array.T.reshape(-1)
    return array.view(np.uint8)
