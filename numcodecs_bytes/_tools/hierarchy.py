"""Finds the arrays and groups of a store, and compares their metadata with consolidated ones.

By these, zarr opens an array from a group.
"""

import copy
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

import zarr
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.arrays import array_of
from numcodecs_bytes._tools.documents import (
    METADATA,
    Broken,
    Document,
    differing,
    document_at,
    groups_above,
    join,
    local_path,
    names_in,
    object_of,
    walk,
)
from numcodecs_bytes._tools.reporting import describe_error, value_or_expected_error

# A name that chunks have, and groups seldom.
_CHUNK = re.compile(r"c|(c\.)?[0-9]+(\.[0-9]+)*")

_BY_PATH = "open it by its path"
_REMEDY = "consolidate them again, with zarr.consolidate_metadata"


class FoundNode(NamedTuple):
    """An array or a group; or a folder that may be one, if its metadata are broken."""

    path: str
    document: Document  # None if only consolidated metadata have it
    problems: list[str]  # with the consolidated metadata
    note: str = ""  # why groups do not show it
    kind: Literal["array", "group"] = "array"
    has_v2_attributes: bool = False  # a group of either format


class _Consolidated(NamedTuple):
    """The consolidated metadata of a group."""

    group: str  # the path of the group
    zarr_format: int
    nodes: dict[str, JSONObject | Broken]  # by their paths; those of Zarr v2 have their attributes


class _Folder(NamedTuple):
    """What is found in a folder."""

    path: str
    arrays: dict[str, JSONObject | Broken]  # by their paths
    group: JSONObject | None = None  # its document and attributes, if it is an intact group
    has_v2_attributes: bool = False  # a group
    consolidated: _Consolidated | None = None  # it is compared with the nodes below
    zarr_format: int | None = None  # if it is a group
    chunk: str = ""  # a name in it, which looks like that of a chunk, if it has no metadata


def find_nodes(store: Store) -> Iterator[FoundNode]:
    """Yield the arrays and groups of a store, and then those that only consolidated metadata have.

    Raises the store's error if its root can't be read.
    """
    consolidated: dict[str, _Consolidated] = {}  # by the paths of the groups
    groups: dict[str, int] = {}  # their formats
    paths: set[str] = set()
    lost: dict[str, str] = {}  # the name of a chunk in each folder that may have been an array
    no_groups: set[str] = set()  # folders below groups that have no metadata
    for folder in walk(store, partial(_visit, store)):
        if folder.zarr_format is not None:
            groups[folder.path] = folder.zarr_format
        elif not folder.arrays and not groups.keys().isdisjoint(groups_above(folder.path)):
            no_groups.add(folder.path)
        if folder.chunk and next(groups_above(folder.path), None) in groups:
            lost[folder.path] = folder.chunk
        if folder.consolidated is not None:
            consolidated[folder.consolidated.group] = folder.consolidated
        nodes = folder.arrays if folder.group is None else {folder.path: folder.group}
        for path, document in nodes.items():
            kind = _kind_of(document)
            above = [consolidated[g] for g in (path, *groups_above(path)) if g in consolidated]
            problems = list(_stale_metadata(store, path, document, list(reversed(above))))
            note = ""
            if kind == "array":
                paths.add(path)
                note = _why_not_shown(path, document, groups, no_groups)
            yield FoundNode(path, document, problems, note, kind, folder.has_v2_attributes)
    for node in _unvisited_nodes(store, list(consolidated.values()), {*paths, *groups}):
        lost.pop(node.path, None)
        yield node
    above_others = {group for path in (*paths, *groups) for group in groups_above(path)}
    for path in [path for path in lost if path not in above_others]:
        problem = f"it holds {lost[path]}, as an array holds chunks, but no zarr.json or .zarray"
        yield FoundNode(path, None, [f"{problem}: if it was one, restore that"])


def _kind_of(document: JSONObject | Broken) -> Literal["array", "group"]:
    """Return the kind of a node; those of Zarr v2 that are groups have been given a node type."""
    is_group = isinstance(document, dict) and document.get("node_type") == "group"
    return "group" if is_group else "array"


def _why_not_shown(
    path: str, document: JSONObject | Broken, groups: dict[str, int], no_groups: set[str]
) -> str:
    """Return why groups do not show an array, or ""; of a folder that is no group, once."""
    above = list(groups_above(path))
    is_v2 = isinstance(document, dict) and document.get("zarr_format") == 2
    if is_v2 and any(groups.get(each) == 3 for each in above):
        return f"it is of Zarr v2, which a Zarr v3 group above it does not show: {_BY_PATH}"
    unshown = [each for each in above if each in no_groups]
    no_groups.difference_update(unshown)
    if not unshown:
        return ""
    no_group = f"folder {unshown[-1]} has no zarr.json or .zgroup, so that groups do not show what"
    return f"{no_group} is in it: if it was a group, restore that; {_BY_PATH}"


def _visit(store: Store, path: str) -> tuple[_Folder, list[str]]:
    """Return what a folder has, and the names in it where further arrays may be."""
    if broken := _why_no_path(store, path):  # zip archives may hold such paths
        return _Folder(path, {path: broken}), []
    document, node_type = _node_at(store, path)
    if document is not None and node_type == "array":
        return _Folder(path, {path: document}), []
    listed = value_or_expected_error(names_in, store, path)
    names = [] if isinstance(listed, Exception) else listed
    if isinstance(listed, Exception):
        if path:
            return _Folder(path, {path: Broken(listed)}), []
        if isinstance(document, Broken) and not isinstance(document.error, ValueError):
            raise listed
    if document is not None and node_type != "group":
        # It may be an array: do not search its chunks for arrays.
        others = [name for name in names if name != "c" and not name[0].isdigit()]
        others = [name for name in others if not METADATA.fullmatch(name)]
        return _Folder(path, {path: document}), others
    consolidated = _consolidated_in(store, path, document, names)
    if isinstance(consolidated, _Consolidated) and not names:  # web servers do not list folders
        stated = consolidated.nodes.items()
        arrays = {name: each for name, each in stated if _kind_of(each) == "array"}
        return _Folder(path, {n: _why_no_path(store, n) or each for n, each in arrays.items()}), []
    if isinstance(listed, Exception) and not isinstance(listed, FileNotFoundError):
        raise OSError(
            f"it can't be listed: {describe_error(listed)}; if that is forbidden, give the path or "
            "URL of an array, or consolidate metadata"
        ) from listed
    if not names and (node_type == "group" or document_at(store, join(path, ".zgroup"))):
        raise OSError(
            "it is a group whose arrays the store does not list: give the path or URL of an array, "
            "or consolidate metadata"
        )
    others = [name for name in names if not METADATA.fullmatch(name)]
    return _group_in(store, path, document, names, consolidated), others


def _group_in(
    store: Store,
    path: str,
    document: Document,
    names: list[str],
    consolidated: "_Consolidated | Broken | None",
) -> _Folder:
    """Return what a folder is, which is no array: a group, or one without metadata.

    Its document is that of Zarr v3, if it has one.
    """
    group, zarr_format = document, None if document is None else 3
    if isinstance(document, dict):
        group = _why_no_group(store, path, document) or document
    elif document is None and ".zgroup" in names:
        group, zarr_format = _v2_group(store, path, names), 2
    broken = [each for each in (consolidated, group) if isinstance(each, Broken)]
    return _Folder(
        path,
        arrays={path: broken[0]} if broken else {},
        group=group if isinstance(group, dict) and not broken else None,
        has_v2_attributes=".zattrs" in names,
        consolidated=consolidated if isinstance(consolidated, _Consolidated) else None,
        zarr_format=zarr_format,
        chunk=_chunk_in(store, path, names) if zarr_format is None else "",
    )


def _v2_group(store: Store, path: str, names: list[str]) -> JSONObject | Broken:
    """Return the document of a group of Zarr v2, with its attributes and a node type."""
    group = document_at(store, join(path, ".zgroup"))
    attributes = document_at(store, join(path, ".zattrs")) if ".zattrs" in names else None
    for each in (group, attributes):
        if isinstance(each, Broken):
            return each
    if isinstance(group, dict) and group.get("zarr_format") != 2:
        stated = group.get("zarr_format")
        return Broken(ValueError(f".zgroup has zarr_format {stated!r}: write 2"))
    return _group_of_v2(attributes)


def _group_of_v2(attributes: object) -> JSONObject:
    return {"zarr_format": 2, "node_type": "group", "attributes": attributes or {}}


def _why_no_group(store: Store, path: str, document: JSONObject) -> Broken | None:
    """Return why zarr can't open a group of Zarr v3 with this document, if it can't."""
    own = {key: each for key, each in document.items() if key != "consolidated_metadata"}
    error = value_or_error(zarr.AsyncGroup.from_dict, StorePath(store, path), copy.deepcopy(own))
    if not isinstance(error, Exception):
        return None
    return Broken(ValueError(f"zarr can't open the group: {describe_error(error)}"))


def _chunk_in(store: Store, path: str, names: list[str]) -> str:
    """Return a name that looks like that of a chunk if a folder seems to be an array, or ""."""
    chunks = [name for name in names if _CHUNK.fullmatch(name)]
    others = [name for name in names if name not in chunks and not METADATA.fullmatch(name)]
    # Few numbers may be years, for example.
    if not chunks or others or not ("c" in chunks or ".zattrs" in names or len(chunks) > 1):
        return ""
    key, below = join(path, chunks[0]), chunks
    while below and len(key) < 1000:
        listed = value_or_error(names_in, store, key)
        below = [] if isinstance(listed, Exception) else listed
        if not all(map(_CHUNK.fullmatch, below)):
            return ""
        key = join(key, below[0]) if below else key
    if (local := local_path(store, key)) is not None:  # to read a pipe might never end
        return chunks[0] if value_or_error(local.is_file) is True else ""
    part = RangeByteRequest(0, 1)
    chunk = value_or_error(sync, store.get(key, default_buffer_prototype(), part))
    return "" if chunk is None or isinstance(chunk, Exception) else chunks[0]


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
) -> _Consolidated | Broken | None:
    """Return the consolidated metadata of a group, whose folder has these names, if it has any.

    Its own document is that of Zarr v3, or None.
    """
    if isinstance(group, dict):
        consolidated = group.get("consolidated_metadata")
    elif names and ".zmetadata" not in names:
        return None
    else:
        consolidated = document_at(store, join(path, ".zmetadata"))
    if consolidated is None or isinstance(consolidated, Broken):
        return consolidated
    found = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(found, dict):
        file = ".zmetadata" if group is None else "consolidated_metadata in zarr.json"
        return Broken(ValueError(f'{join(path, file)} has no object "metadata": {_REMEDY}'))
    if group is None:
        return _Consolidated(path, 2, dict(_v2_nodes(path, found)))
    nodes = {join(path, key): object_of(data, key) for key, data in found.items()}
    return _Consolidated(path, 3, nodes)


def _v2_nodes(group: str, found: JSONObject) -> Iterator[tuple[str, JSONObject | Broken]]:
    """Yield the path of each array and group, and its document with its attributes."""
    for key, data in found.items():
        name, _, document_name = key.rpartition("/")
        if document_name not in (".zarray", ".zgroup"):
            continue
        attributes, document = found.get(join(name, ".zattrs"), {}), object_of(data, key)
        if isinstance(document, dict):
            is_array = document_name == ".zarray"
            of_array = document | {"attributes": attributes}
            document = of_array if is_array else _group_of_v2(attributes)
        yield join(group, name), document


def _stale_metadata(
    store: Store, path: str, document: JSONObject | Broken, consolidated: list[_Consolidated]
) -> Iterator[str]:
    """Yield what is wrong with the consolidated metadata of a node in the groups above it.

    Those of Zarr v2 have the group itself, too.
    """
    if isinstance(document, Broken):
        return
    store_path, zarr_format = StorePath(store, path), document.get("zarr_format")
    of_format = [each for each in consolidated if each.zarr_format == zarr_format]
    stating = [each for each in of_format if path in each.nodes]
    for each in of_format:
        if path not in each.nodes and path != each.group:
            yield f"the consolidated metadata of group /{each.group} lack it: {_REMEDY}"
    if stating and zarr_format == 2 and "attributes" not in document:
        document = document | {"attributes": document_at(store, join(path, ".zattrs")) or {}}
    own = value_or_error(_as_zarr_writes, document, store_path)
    if isinstance(own, Exception):  # this is reported of the array
        return
    for each in stating:
        stated = value_or_error(_as_zarr_writes, each.nodes[path], store_path)
        of_group = f"the consolidated metadata of group /{each.group}"
        if isinstance(stated, Exception):
            yield f"{of_group} have it in a way that zarr can't open: {_REMEDY}"
        elif names := differing(own, stated):
            both = f"{of_group} and its own"
            yield f"{both} differ in {names}: if its own are right, {_REMEDY}"


def _as_zarr_writes(document: JSONObject | Broken, store_path: StorePath) -> JSONObject:
    """Return an array's metadata as this zarr writes them, or the attributes of a group."""
    if isinstance(document, Broken):
        raise document.error
    if _kind_of(document) == "group":
        return {"attributes": document.get("attributes") or {}}
    buffers = array_of(document, store_path).metadata.to_buffer_dict(default_buffer_prototype())
    written: JSONObject = {}
    for name, buffer in buffers.items():
        content = json.loads(buffer.to_bytes())
        written |= {"attributes": content} if name == ".zattrs" else content
    return written


def _unvisited_nodes(
    store: Store, consolidated: list[_Consolidated], found: set[str]
) -> Iterator[FoundNode]:
    """Yield each array or group that only consolidated metadata name, if that is a problem.

    It may be a folder that two paths lead to, which is found under one of them.
    """
    for each in consolidated:
        for path in [path for path in each.nodes if path not in found]:
            kind = _kind_of(each.nodes[path])
            name = "zarr.json" if each.zarr_format == 3 else f".z{kind}"
            document = document_at(store, join(path, name))
            if document is not None and kind == "group":
                continue  # it is compared as the other path
            if document is not None:
                problems = list(_stale_metadata(store, path, document, [each]))
            else:
                of_group = f"the consolidated metadata of group /{each.group}"
                # They may be the only ones that are left.
                lost = f"if {name} was lost, write it from them first"
                deleted = f"it has no {name}, but {of_group} have it: if it was deleted, {_REMEDY}"
                problems = [f"{deleted}; {lost}"]
            if problems:
                yield FoundNode(path, None, problems, kind=kind)
