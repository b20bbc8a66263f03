"""Arrays by their metadata, which need not be stored, and whether they can be read in part."""

import bisect
import copy
import itertools
import json
import re
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ShardingCodec
from zarr.storage import MemoryStore, StorePath
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.dtypes import ML_DTYPES, why_missing
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import AlreadyInMemory, LeftToZarr, NoReference, NotOpen
from numcodecs_bytes._plan.shards import AnyLayout
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.stores import find_extent
from numcodecs_bytes._tools.partial_reads import check_pipeline


def array_of(document: Any, store_path: StorePath, config: Any = None) -> AnyArray:
    """Return the array with a metadata document, which need not be stored."""
    return zarr.Array(zarr.AsyncArray(document, store_path, config))


def why_not_opened(document: JSONObject) -> str:
    """Return what helps if zarr can't open an array with such metadata, or ""."""
    data_type = json.dumps(document.get("data_type", document.get("dtype")))
    # netCDF-C writes such data types, and not all versions of zarr read them.
    if found := re.search('"([<>=])([biu]1|[SV][0-9]+)"', data_type):
        order, kind = found.groups()
        return f'"{order}{kind}" has a byte order that means nothing: write "|{kind}" in .zarray'
    missing = why_missing([row.name for row in ML_DTYPES if f'"{row.name}"' in data_type])
    return missing or _why_wrong_v2_dtype(document) or _why_wrong_fill_value(document)


def _opens(document: JSONObject, changes: JSONObject) -> bool:
    def changed() -> AnyArray:
        return array_of(copy.deepcopy(document | changes), StorePath(MemoryStore()))

    return not isinstance(value_or_error(changed), Exception)


def _why_wrong_v2_dtype(document: JSONObject) -> str:
    """Return what helps if a data type is none of Zarr v2, or objects that zarr can't read."""
    given, filters = document.get("dtype"), document.get("filters")
    if given == "|O" and isinstance(filters, list):
        codecs = [str(each.get("id")) for each in filters if isinstance(each, dict)]
        if codecs and not {"vlen-utf8", "vlen-bytes"} & set(codecs):
            how = "read it with zarr 2, and write it as another data type, such as vlen-utf8"
            return f"zarr 3 can't read objects stored by {', '.join(codecs)}: {how}"
    # Those of other names, such as "long", have another size on other systems.
    name = str(given)
    if not re.fullmatch("bool|(u?int|float|complex)[0-9]+", name):
        return ""
    dtype = value_or_error(np.dtype, name)
    if not isinstance(dtype, np.dtype) or not _opens(document, {"dtype": dtype.str}):
        return ""
    return f'if these are elements of {dtype.str}, write "dtype": "{dtype.str}" in .zarray'


def _why_wrong_fill_value(document: JSONObject) -> str:
    """Return what helps if only the fill value is wrong, or ""."""
    others = (None, 0, False, "", [0.0, 0.0])  # one of them fits most data types
    if "fill_value" not in document:
        return ""
    if not any(_opens(document, {"fill_value": each}) for each in others):
        return ""
    file = "zarr.json" if document.get("zarr_format") == 3 else ".zarray"
    data_type = json.dumps(document.get("data_type", document.get("dtype")))
    given = reprlib.repr(document["fill_value"])
    return f"its fill_value, {given}, is none of data type {data_type}: correct it in {file}"


@dataclass(frozen=True)
class Grid:
    """The chunks, or shards, of an array; those of a rectilinear grid have several shapes."""

    array_shape: tuple[int, ...]
    lengths: tuple[int | tuple[int, ...], ...]  # along each axis: one for all chunks, or each one's
    inner_shape: tuple[int, ...] | None  # of the inner chunks of shards
    starts: tuple[list[int], ...]  # where chunks begin along each axis that has several lengths

    @classmethod
    def of(cls, array: AnyArray) -> "Grid":
        """Return the grid of an array."""
        metadata: Any = array.metadata
        grid = metadata.chunk_grid if metadata.zarr_format == 3 else None
        codecs: Any = metadata.codecs if metadata.zarr_format == 3 else ()
        is_sharded = len(codecs) == 1 and isinstance(codecs[0], ShardingCodec)
        inner_shape = codecs[0].chunk_shape if is_sharded else None
        lengths = getattr(grid, "chunk_shapes", None)  # of a rectilinear grid
        if lengths is None:
            lengths = array.shards or array.chunks
            if 0 in lengths and array.size:
                raise ValueError(
                    f"its chunk shape is {lengths}: expected at least 1 along each axis"
                )
            lengths = tuple(max(n, 1) for n in lengths)
        starts = [[] if isinstance(n, int) else [0, *itertools.accumulate(n)] for n in lengths]
        return cls(array.shape, lengths, inner_shape, tuple(starts))

    @property
    def is_sharded(self) -> bool:
        """Whether chunks are shards."""
        return self.inner_shape is not None

    @property
    def shape(self) -> list[int]:
        """How many chunks there are along each axis."""
        return [
            -(-size // n) if isinstance(n, int) else bisect.bisect_left(starts, size)
            for size, n, starts in zip(self.array_shape, self.lengths, self.starts, strict=True)
        ]

    @property
    def max_chunk_shape(self) -> tuple[int, ...]:
        """The shape of a chunk, or the largest length along each axis."""
        return tuple(n if isinstance(n, int) else max(n) for n in self.lengths)

    def chunk_shape(self, chunk_coords: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a chunk, which may reach beyond the end of the array."""
        axes = zip(self.lengths, chunk_coords, strict=True)
        return tuple(n if isinstance(n, int) else n[i] for n, i in axes)

    def is_at_edge(self, chunk_coords: tuple[int, ...]) -> bool:
        """Whether a chunk reaches beyond the end of the array."""
        axes = zip(self.array_shape, self.lengths, chunk_coords, strict=True)
        return any(isinstance(n, int) and (i + 1) * n > size for size, n, i in axes)

    def region(self, first: tuple[int, ...], last: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the part of the array from a first to a last chunk."""
        axes = zip(self.array_shape, self.lengths, self.starts, first, last, strict=True)
        ends = [
            (i * n, (j + 1) * n, size) if isinstance(n, int) else (starts[i], starts[j + 1], size)
            for size, n, starts, i, j in axes
        ]
        return tuple(slice(start, min(stop, size)) for start, stop, size in ends)


def layout_of(array: AnyArray, chunk_coords: tuple[int, ...]) -> AnyLayout:
    """Return how a chunk is stored; raise `LeftToZarr`, or an error on an untested zarr."""
    # An untested version of zarr may lack what this imports.
    from numcodecs_bytes._pipeline.array_layouts import layout_of_array

    return layout_of_array(array, Grid.of(array).chunk_shape(chunk_coords))


def layout_for_partial_reads(array: AnyArray) -> Layout:
    """Return the layout of an array's (inner) chunks, parts of which can be read.

    Raises `LeftToZarr` if that is not so. Nothing is requested.
    """
    check_pipeline(array)
    origin = (0,) * array.ndim
    layout = layout_of(array, origin)
    first = array.metadata.encode_chunk_key(origin)
    extent: object = value_or_error(find_extent, array.store_path / first)
    if isinstance(extent, FileExtent):
        extent = value_or_error(length_of_file, extent)
    # Other errors say that the chunk is missing or damaged. That is checked later.
    known = AlreadyInMemory | NoReference | NotOpen
    if isinstance(extent, LeftToZarr) and not isinstance(extent, known):
        raise extent
    return layout if isinstance(layout, Layout) else layout.inner
