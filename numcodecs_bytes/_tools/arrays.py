"""Arrays by their metadata, which need not be stored, and whether they can be read in part."""

import json
import re
from typing import Any

import zarr
from zarr.storage import StorePath
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.dtypes import ML_DTYPES, why_missing
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import AlreadyInMemory, LeftToZarr, NoReference, NotOpen
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.stores import find_extent
from numcodecs_bytes._zarr_api.defaults import why_aside
from numcodecs_bytes._zarr_api.names import other_pipeline


def array_of(document: Any, store_path: StorePath, config: Any = None) -> AnyArray:
    """Return the array with a metadata document, which need not be stored."""
    return zarr.Array(zarr.AsyncArray(document, store_path, config))


def why_not_opened(document: JSONObject) -> str:
    """Return what helps if zarr does not know the data type in metadata, or ""."""
    data_type = json.dumps(document.get("data_type", document.get("dtype")))
    # netCDF-C writes such data types, and not all versions of zarr read them.
    if found := re.search('"([<>=])([biu]1|[SV][0-9]+)"', data_type):
        order, kind = found.groups()
        return f'"{order}{kind}" has a byte order that means nothing: write "|{kind}" in .zarray'
    return why_missing([row.name for row in ML_DTYPES if f'"{row.name}"' in data_type])


def layout_for_partial_reads(array: AnyArray) -> Layout:
    """Return the layout of an array's (inner) chunks, parts of which can be read.

    Raises `LeftToZarr` if that is not so. Nothing is requested.
    """
    if why := other_pipeline(type(array.async_array.codec_pipeline)):
        raise LeftToZarr(why_aside.get("arrays", why))
    # An untested version of zarr may lack what this imports.
    from numcodecs_bytes._pipeline.array_layouts import layout_of_array

    layout = layout_of_array(array)
    first = array.metadata.encode_chunk_key((0,) * array.ndim)
    extent: object = value_or_error(find_extent, array.store_path / first)
    if isinstance(extent, FileExtent):
        extent = value_or_error(length_of_file, extent)
    # Other errors say that the chunk is missing or damaged. That is checked later.
    known = AlreadyInMemory | NoReference | NotOpen
    if isinstance(extent, LeftToZarr) and not isinstance(extent, known):
        raise extent
    return layout if isinstance(layout, Layout) else layout.inner
