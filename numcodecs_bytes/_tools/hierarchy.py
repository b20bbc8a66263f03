"""Finds the arrays of a store, and the consolidated metadata by which zarr opens them from a group.

These are compared with the arrays' own metadata.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.arrays import array_of
from numcodecs_bytes._tools.documents import (
    METADATA,
    Broken,
    Document,
    differing,
    document_at,
    join,
    names_in,
    object_of,
    walk,
)

_REMEDY = "consolidate them again, with zarr.consolidate_metadata"


class FoundArray(NamedTuple):
    """An array; or a folder that may be one, if its metadata are broken."""

    path: str
    document: JSONObject | Broken


class Consolidated(NamedTuple):
    """The consolidated metadata of a group."""

    group: str  # its path
    zarr_format: int
    arrays: dict[str, JSONObject | Broken]  # by their paths; in Zarr v2, too, with attributes


def find_arrays(store: Store) -> Iterator[FoundArray | Consolidated]:
    """Yield the arrays of a store, and the consolidated metadata of each group before its arrays.

    Raises the store's error if its root can't be read.
    """
    for path, to_visit in walk(store):
        if broken := _why_no_path(store, path):  # as in a zip archive
            yield FoundArray(path, broken)
        else:
            yield from _found_at(store, path, to_visit)


def _found_at(store: Store, path: str, to_visit: list[str]) -> Iterator[FoundArray | Consolidated]:
    """Yield what is found in a folder, and add the names in it that are to be visited."""
    document, node_type = _node_at(store, path)
    if document is not None and node_type == "array":
        yield FoundArray(path, document)
        return
    names = value_or_error(names_in, store, path)
    if isinstance(names, Exception):
        if path:
            yield FoundArray(path, Broken(names))
            return
        if isinstance(store, LocalStore) or isinstance(document, Broken):
            raise names
        names = []  # many web servers forbid it
    if len(names) == 1 and path.split("/")[-8:] == names * 8:
        why = "the store lists a folder as part of itself"
        error = ValueError(f"{why}: download the zip file, or upgrade zarr")
        yield FoundArray(path, Broken(error))
    elif document is not None and node_type != "group":
        yield FoundArray(path, document)
        # It may be an array: do not search its chunks for arrays.
        to_visit += [name for name in names if name != "c" and not name[0].isdigit()]
    else:
        to_visit += [name for name in names if not METADATA.fullmatch(name)]
        consolidated = _consolidated_in(store, path, document, names)
        if consolidated is not None and names:
            yield consolidated
        elif consolidated is not None:  # web servers do not list folders
            for name, stated in consolidated.arrays.items():
                yield FoundArray(name, _why_no_path(store, name) or stated)


def _why_no_path(store: Store, path: str) -> Broken | None:
    """Return why zarr opens no such path, as a/../b, if it does not."""
    store_path = value_or_error(StorePath, store, path)
    return Broken(store_path) if isinstance(store_path, Exception) else None


def _node_at(store: Store, path: str) -> tuple[Document, object]:
    """Return the document of a node of Zarr v3 or of an array of Zarr v2, and the node's type."""
    document = document_at(store, join(path, "zarr.json"))
    if document is not None:
        return document, document.get("node_type") if isinstance(document, dict) else None
    document = document_at(store, join(path, ".zarray"))
    return document, "array" if isinstance(document, dict) else None


def _consolidated_in(
    store: Store, path: str, group: Document, names: list[str]
) -> Consolidated | None:
    """Return the consolidated metadata of a group, whose folder has these names, if it has any.

    Its own document is that of Zarr v3, or None.
    """
    if isinstance(group, dict):
        consolidated = group.get("consolidated_metadata")
    elif names and ".zmetadata" not in names:
        return None
    else:
        consolidated = document_at(store, join(path, ".zmetadata"))
    found = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(found, dict):
        return None
    if group is None:
        return Consolidated(path, 2, dict(_v2_arrays(path, found)))
    documents = {key: object_of(data, key) for key, data in found.items()}
    arrays = {
        join(path, key): document
        for key, document in documents.items()
        if isinstance(document, Broken) or document.get("node_type") != "group"
    }
    return Consolidated(path, 3, arrays)


def _v2_arrays(group: str, found: JSONObject) -> Iterator[tuple[str, JSONObject | Broken]]:
    """Yield the path of each array, and its document with its attributes."""
    for key, data in found.items():
        name, _, document_name = key.rpartition("/")
        if document_name != ".zarray":
            continue
        document = object_of(data, key)
        if isinstance(document, dict):
            document = document | {"attributes": found.get(join(name, ".zattrs"), {})}
        yield join(group, name), document


def stale_metadata(
    store_path: StorePath, document: JSONObject, consolidated: list[Consolidated]
) -> Iterator[str]:
    """Yield what is wrong with the consolidated metadata of an array in the groups above it."""
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
        own = value_or_error(_as_zarr_writes, document, store_path)
        if isinstance(own, Exception):  # which is reported
            return
        stated = value_or_error(_as_zarr_writes, arrays[path], store_path)
        of_group = f"the consolidated metadata of group /{group}"
        if isinstance(stated, Exception):
            yield f"{of_group} have it in a way that zarr can't open: {_REMEDY}"
        elif names := differing(own, stated):
            yield f"{of_group} differ from its own in {names}: {_REMEDY}"


def _as_zarr_writes(document: JSONObject | Broken, store_path: StorePath) -> JSONObject:
    """Return the metadata in a document of an array in the form that this zarr writes."""
    if isinstance(document, Broken):
        raise document.error
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
