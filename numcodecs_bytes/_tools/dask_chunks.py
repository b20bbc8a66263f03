"""Chunks for Dask that split stored chunks only where each byte is still read once: `dask_chunks`.

zarr is imported only when the function is called, because importing numcodecs must stay fast.
"""

import contextlib
import itertools
import math
from typing import TYPE_CHECKING, Any, overload

from numcodecs_bytes._core.dtypes import has_variable_length
from numcodecs_bytes._core.sizes import parse_size
from numcodecs_bytes._plan.outcome import LeftToZarr

if TYPE_CHECKING:
    import zarr
    from zarr.types import AnyArray

# Along an axis: the length of all of Dask's chunks but the last, or, if the stored chunks have
# several lengths, the length of each.
Lengths = int | tuple[int, ...]


@overload
def dask_chunks(source: "AnyArray", size: int | str) -> tuple[Lengths, ...]: ...
@overload
def dask_chunks(source: "zarr.Group", size: int | str) -> dict[str, Lengths]: ...
def dask_chunks(
    source: "AnyArray | zarr.Group", size: int | str
) -> tuple[Lengths, ...] | dict[str, Lengths]:
    """Return chunks for Dask of up to a given size, such that each byte is read once.

    Larger stored chunks (or inner chunks of shards) that can be read in part are split along the
    slowest axes, so that a Dask chunk is one range of bytes of each. Smaller ones are grouped.

    The chunks are for reading. Tasks that write them share stored chunks, and overwrite each other
    unless they write in place (the option `numcodecs_bytes.write_in_place`) or one by one.

    Parameters
    ----------
    source : zarr.Array or zarr.Group
        An array, or a group of arrays with named dimensions, such as xarray writes.
    size : int or str
        Largest size of a Dask chunk, in bytes as stored, such as ``"64 MiB"``. Only a single
        element, or a chunk that can't be split, may be larger.

    Returns
    -------
    tuple or dict
        For an array, for ``dask.array.from_zarr(array, chunks=...)``: the length of Dask's chunks
        along each axis, or, where the stored chunks have several lengths, the length of each.
        For a group, for ``xarray.open_zarr(path, chunks=...)``: the same by dimension name; the
        array with the most bytes decides first.

    Raises
    ------
    TypeError, ValueError
        If an argument is anything else, or no array of a group has named dimensions.
    """
    import zarr  # `import numcodecs_bytes` must not

    from numcodecs_bytes._zarr_api.names import instead_of_array

    lacks_unit = isinstance(size, str) and not size.rstrip().endswith(tuple("bBkKmMgGtTpP"))
    num_bytes = None if lacks_unit else parse_size(size)  # "64" may mean 64 MiB
    if num_bytes is None or num_bytes < 1:
        raise ValueError(
            "size must be a whole number of bytes, or a string with a unit, such as '64 MiB', got "
            f"{size!r}"
        )
    if isinstance(source, zarr.Array):
        return _plan_chunks(source, num_bytes, {})
    if isinstance(source, zarr.Group):
        return _chunks_of_group(source, num_bytes)
    got = instead_of_array(source, "open the store with zarr.open")
    raise TypeError(f"dask_chunks takes a zarr.Array or a zarr.Group, {got}")


def _plan_chunks(array: Any, size: int, given: dict[int, Lengths]) -> tuple[Lengths, ...]:
    """Return the lengths of Dask's chunks along each axis, which for some axes are given.

    The chunks grow from a unit, the least that can be read, along one axis after another, level by
    level, up to the size. So they are complete along the axes before the one that grew last, and
    one unit along those after.
    """
    from numcodecs_bytes._tools.arrays import layout_for_partial_reads  # this imports zarr

    shape, order = array.shape, tuple(range(array.ndim))
    try:
        # One element or a stored chunk; and what units are grouped into, each a part of the next.
        unit, levels = array.chunks, [*([array.shards] if array.shards else []), shape]
        with contextlib.suppress(LeftToZarr):
            order = layout_for_partial_reads(array).axis_order
            unit, levels = (1,) * array.ndim, [array.chunks, *levels]
    except NotImplementedError:  # chunks of several shapes, which zarr calls rectilinear
        unit, levels = array.read_chunk_sizes, []
    if has_variable_length(array.dtype):
        levels = []
    lengths = dict(enumerate(unit)) | given
    for level, axis in itertools.product(levels, reversed(order)):
        if axis in given:
            continue
        max_lengths = list(map(_max_length, lengths.values(), shape))
        level_length = _max_length(level[axis], shape[axis])
        num_units = math.ceil(level_length / max_lengths[axis])
        num_that_fit = max(size // max(math.prod(max_lengths) * array.dtype.itemsize, 1), 1)
        if num_units > num_that_fit:
            num_parts = math.ceil(num_units / num_that_fit)
            lengths[axis] = _split(num_units, num_parts, max_lengths[axis], shape[axis])
            break
        lengths[axis] = level_length
    return tuple(lengths.values())


def _max_length(lengths: Lengths, axis_length: int) -> int:
    """Return the length of the longest of Dask's chunks along an axis, at least 1."""
    max_length = lengths if isinstance(lengths, int) else max(lengths)
    return max(min(max_length, axis_length), 1)


def _split(num_units: int, num_parts: int, unit: int, axis_length: int) -> int:
    """Return a length that splits each `num_units` along an axis into about `num_parts` parts."""
    if num_units * unit < axis_length:
        # Equal parts, if they are not too small, end where stored chunks do.
        for divisor in range(num_parts, 2 * num_parts):
            if num_units % divisor == 0:
                return num_units // divisor * unit
    return math.ceil(num_units / num_parts) * unit


def _chunks_of_group(group: "zarr.Group", size: int) -> dict[str, Lengths]:
    arrays = [(name, array) for name, array in group.arrays() if _dimensions(array)]
    if not arrays:
        raise ValueError(
            f"the group {group.name!r} has no arrays with named dimensions, which xarray needs: "
            "pass a group that has some, or an array"
        )
    chunks: dict[str, Lengths] = {}
    for name, array in sorted(arrays, key=lambda item: (-item[1].nbytes, item[0])):
        dimensions = _dimensions(array)
        if dimensions != [name]:  # xarray loads an index into memory
            given = {axis: chunks[d] for axis, d in enumerate(dimensions) if d in chunks}
            chunks |= dict(zip(dimensions, _plan_chunks(array, size, given), strict=True))
    return chunks


def _dimensions(array: "AnyArray") -> list[str]:
    """Return the names of an array's dimensions; none if xarray can't read them."""
    names: Any = getattr(array.metadata, "dimension_names", None)
    if array.metadata.zarr_format == 2:
        names = array.attrs.get("_ARRAY_DIMENSIONS")
    return list(names) if names and None not in names and len(names) == array.ndim else []
