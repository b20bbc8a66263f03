"""Finds the arrays of a store, and the consolidated metadata of its groups."""

from collections.abc import Iterator
from typing import NamedTuple

from zarr.abc.store import Store
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.consolidated import Consolidated, consolidated_in
from numcodecs_bytes._tools.documents import METADATA, Broken, Document, document_at
from numcodecs_bytes._tools.folders import join, names_in, walk


class FoundArray(NamedTuple):
    """An array; or a folder that may be one, if its metadata are broken."""

    path: str
    document: JSONObject | Broken


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
        consolidated = consolidated_in(store, path, document, names)
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
