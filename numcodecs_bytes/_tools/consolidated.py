"""Compares consolidated metadata, by which zarr opens arrays from a group, with the arrays' own."""

import json
from collections.abc import Iterator

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import StorePath

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.hierarchy import (
    Consolidated,
    Document,
    array_of,
    differing,
    document_at,
    join,
)

_REMEDY = "consolidate them again, with zarr.consolidate_metadata"


def stale_metadata(
    store_path: StorePath, document: Document, consolidated: list[Consolidated]
) -> Iterator[str]:
    """Yield what is wrong with the consolidated metadata of an array in the groups above it."""
    if not isinstance(document, dict):
        return
    path, zarr_format = store_path.path, document.get("zarr_format")
    for group, consolidated_format, arrays in consolidated:
        if consolidated_format != zarr_format or (group and not path.startswith(f"{group}/")):
            continue
        if path not in arrays:
            yield f"the consolidated metadata of group /{group} lack it: {_REMEDY}"
            continue
        if zarr_format == 2:
            attributes = document_at(store_path.store, join(path, ".zattrs"))
            document = document | {"attributes": attributes or {}}
        own, stated = [
            value_or_error(_as_zarr_writes, each, store_path) for each in (document, arrays[path])
        ]
        if isinstance(own, Exception):  # which is reported
            return
        of_group = f"the consolidated metadata of group /{group}"
        if isinstance(stated, Exception):
            yield f"{of_group} have it in a way that zarr can't open: {_REMEDY}"
        elif names := differing(own, stated):
            yield f"{of_group} differ from its own in {names}: {_REMEDY}"


def _as_zarr_writes(document: Document, store_path: StorePath) -> JSONObject:
    """Return the metadata in a document of an array in the form that this zarr writes."""
    buffers = array_of(document, store_path).metadata.to_buffer_dict(default_buffer_prototype())
    written: JSONObject = {}
    for name, buffer in buffers.items():
        content = json.loads(buffer.to_bytes())
        written |= {"attributes": content} if name == ".zattrs" else content
    return written


def deleted_arrays(
    store: Store, consolidated: list[Consolidated], found: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield the path of each array that only consolidated metadata have, and the problem."""
    for group, zarr_format, arrays in consolidated:
        name = ".zarray" if zarr_format == 2 else "zarr.json"
        problem = f"it has no {name}, but the consolidated metadata of group /{group} have it"
        for path in arrays:
            # A folder that two paths lead to is found by one of them.
            if path not in found and document_at(store, join(path, name)) is None:
                yield path, f"{problem}: {_REMEDY}"
