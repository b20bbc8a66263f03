"""The kernels: array -> stored bytes and back.

Elements in host memory are copied and byte-swapped here, by `copy_elements`; `_gpu.kernels` has
the kernels for arrays on a GPU. Partial reads put their bytes together in `_read.output`.

Throughout this module `stored` is the stored dtype, as `stored_dtype` returns it, and `raw` the
stored bytes: uint8, shape ``(num_bytes,)``. Callers have checked that sizes match, and that the two
dtypes differ only in byte order, padding, titles and the integers of `byteswap_dtype`.
"""

import itertools
import math
from collections.abc import Iterable
from types import EllipsisType

import numpy as np

from numcodecs_bytes._core.dtypes import (
    AnyDType,
    Array,
    GPUArray,
    byteswap_dtype,
    pack_dtype,
    swap_unit,
)
from numcodecs_bytes._core.invalid_bytes import has_unused_bits, make_valid, with_valid_bytes

# Transposed elements are copied in tiles of this shape if the lines of the CPU cache are a multiple
# of FAR_BYTES apart, and TILED_BYTES or more from the first to the last. Byte-swapping 2048 x 2048
# transposed float32 took 26 ms without tiles and 5.6 with them; 6.4 if they were 8 wide, 7.0 if 16
# and 8.4 if 32. With half of TILED_BYTES, some arrays took 1.7 times as long as without tiles, and
# with half of FAR_BYTES 1.2 times.
TILE_LENGTH = 512
TILE_WIDTH = 12
TILED_BYTES = 1 << 19
FAR_BYTES = 1 << 11


def encode_array(array: Array, stored: AnyDType) -> Array:
    """Return an array of any layout as a C-contiguous array of the same shape and dtype `stored`.

    Shares memory with `array` if no byte has to change: same byte order, no padding, C-contiguous
    and no invalid bytes (see `has_invalid_bytes`).
    """
    if array.dtype == stored and array.flags.c_contiguous and not has_unused_bits(stored):
        return array
    copied = byteswap_dtype(array.dtype)
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
    if dtype == stored and not has_unused_bits(dtype):
        return raw.view(dtype)
    copied = byteswap_dtype(dtype)
    if stored == copied:
        return with_valid_bytes(raw.view(dtype))
    source = raw.view(stored)
    # Zeroed if there is padding, which would expose uninitialized memory otherwise.
    new = np.empty if stored.itemsize == dtype.itemsize else np.zeros
    array: Array = new(source.shape, copied)
    copy_elements(array, source)
    return with_valid_bytes(array.view(dtype))


def decode_into(raw: Array, stored: AnyDType, out: Array) -> None:
    """Fill an array with the elements that stored bytes hold; the two may overlap.

    `out` may have any layout; it is filled in C order, or column by column if it is column-major.
    """
    if np.may_share_memory(raw, out):
        raw = raw.copy()  # NumPy may read what it has just overwritten
    if is_column_major(out):
        out = out.T
    copy_elements(out.view(byteswap_dtype(out.dtype)), raw.view(stored).reshape(out.shape))
    make_valid(out)


def copy_elements(out: Array, source: Array) -> None:
    """Copy elements between arrays of the same shape and any layout, and byte-swap them if needed.

    The one place where bytes of host memory are swapped: NumPy's copy does both in a single pass.
    It assigns fields of structures by position, and so packs them, too.
    """
    is_flat = out.flags.c_contiguous and source.flags.c_contiguous
    if is_flat and out.dtype.kind in "cUV":  # NumPy swaps other kinds as fast as units
        unit, source_unit = swap_unit(out.dtype), swap_unit(source.dtype)
        if unit is not None and source_unit is not None and unit.itemsize == source_unit.itemsize:
            out, source = out.reshape(-1).view(unit), source.reshape(-1).view(source_unit)
    if is_flat or out.nbytes < TILED_BYTES or np.may_share_memory(out, source):
        np.copyto(out, source, casting="unsafe")
        return
    for tile in _plan_tiles(out, source):
        np.copyto(out[tile], source[tile], casting="unsafe")


def _plan_tiles(out: Array, source: Array) -> Iterable[EllipsisType | tuple[slice, ...]]:
    """Return an index for each tile; one of everything if NumPy alone is as fast.

    NumPy copies in the order of `out`. If the source is contiguous along another axis, each element
    is in another line of the CPU cache, and its neighbour in that line comes with the next row of
    `out`. A tile is narrow in `out` and long in the source: its lines stay in the cache until then.
    """
    narrow = _contiguous_axis(out)
    if narrow is None or not _evicts_lines(source, narrow):
        return [...]
    shape, num_left = [TILE_WIDTH] * out.ndim, TILE_LENGTH
    for axis in sorted(set(range(out.ndim)) - {narrow}, key=lambda i: abs(source.strides[i])):
        shape[axis] = max(min(num_left, out.shape[axis]), 1)
        num_left //= shape[axis]
    if math.prod(shape) < TILE_WIDTH * TILE_LENGTH // 2:  # a tile would take less than 1 us
        return [...]
    slices = [
        [slice(start, start + length) for start in range(0, size, length)]
        for size, length in zip(out.shape, shape, strict=True)
    ]
    return itertools.product(*slices)


def _evicts_lines(source: Array, axis: int) -> bool:
    """Whether elements along an axis are in so many lines that these do not stay in the CPU cache.

    Lines that are a multiple of a large power of two apart compete for the same few places.
    """
    if _contiguous_axis(source) in (None, axis):
        return False
    step = abs(source.strides[axis])
    distance = math.gcd(step, TILED_BYTES // 32)  # 32 lines and fewer always stay
    is_far = step > 0 and distance >= FAR_BYTES
    return is_far and distance * source.shape[axis] >= TILED_BYTES


def _contiguous_axis(array: Array) -> int | None:
    """Return the axis along which elements are next to each other in memory, if there is one."""
    return array.strides.index(array.itemsize) if array.itemsize in array.strides else None


def as_numpy(array: Array | GPUArray) -> Array | GPUArray:
    """Return an array-like as a NumPy array, without a copy, or a GPU array as it is."""
    try:
        return np.asarray(array)
    except TypeError:  # CuPy raises it when NumPy converts its arrays
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


def may_be_mapped(array: object) -> bool:
    """Whether the memory of an array may be mapped from a file, not private to this process."""
    base = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    # Arrays that are not NumPy's may take their values from anywhere.
    return base is not None and not isinstance(base, bytes | bytearray)
