"""Finds the arrays and groups of a store, and compares their metadata with consolidated ones.

By these, zarr opens an array from a group.
"""

import copy
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
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
    METADATA_NAMES,
    Broken,
    Document,
    differing,
    document_at,
    groups_above,
    join,
    leads_nowhere,
    local_path,
    names_in,
    object_of,
    walk,
)
from numcodecs_bytes._tools.reporting import describe_error, value_or_expected_error
from numcodecs_bytes._zarr_api.file_systems import references_of

# A name that chunks have, and groups seldom.
_CHUNK = re.compile(r"c|(c\.)?[0-9]+(\.[0-9]+)*")

# A name that arrays and groups have, unlike most files.
_NODE = re.compile(r"[^.]+(\.zarr)?")

_BY_PATH = "open it by its path"
_NAMES = {"array": "an array", "group": "a group"}
_REMEDY = "consolidate them again, with zarr.consolidate_metadata"


Kind = Literal["array", "group"]


class _Node(NamedTuple):
    """The metadata of an array or a group; or of a folder that may be one, if they are broken."""

    kind: Kind
    zarr_format: object
    document: JSONObject | Broken  # consolidated ones, and those of Zarr v2 groups, have attributes


class FoundNode(NamedTuple):
    """An array or a group; or a folder that may be one, if its metadata are broken."""

    path: str
    kind: Kind
    document: Document  # None if only consolidated metadata have it
    problems: list[str]  # with the consolidated metadata
    note: str = ""  # why groups do not show an array
    attributes_of_v2: Document = None  # those of a group of Zarr v3 that is one of Zarr v2, too


class _Consolidated(NamedTuple):
    """The consolidated metadata of a group."""

    group: str  # the path of the group
    zarr_format: int
    nodes: dict[str, _Node]  # by their paths


class _Folder(NamedTuple):
    """What is found in a folder."""

    path: str
    nodes: dict[str, _Node]  # by their paths
    consolidated: _Consolidated | None = None  # it is compared with the nodes below
    attributes_of_v2: Document = None  # as in `FoundNode`
    chunk: str = ""  # a name in it, which looks like that of a chunk, if it has no metadata


def find_nodes(store: Store) -> Iterator[FoundNode]:
    """Yield the arrays and groups of a store, and then those whose metadata are lost.

    Raises the store's error if its root can't be read.
    """
    hierarchy = _Hierarchy(store)
    for folder in walk(store, partial(_visit, store)):
        yield from hierarchy.nodes_in(folder)
    yield from hierarchy.lost_nodes()


@dataclass
class _Hierarchy:
    """What has been found in a store, parents before their children."""

    store: Store
    consolidated: dict[str, _Consolidated] = field(default_factory=dict)  # by the paths of groups
    groups: dict[str, object] = field(default_factory=dict)  # their formats
    arrays: set[str] = field(default_factory=set)
    no_groups: set[str] = field(default_factory=set)  # folders below groups that have no metadata
    lost_groups: dict[str, None] = field(default_factory=dict)  # the topmost with arrays in them
    # The name of a chunk in each folder that may have been an array.
    lost_arrays: dict[str, str] = field(default_factory=dict)

    def nodes_in(self, folder: _Folder) -> Iterator[FoundNode]:
        """Yield the nodes in a folder, compared with consolidated metadata."""
        above = list(groups_above(folder.path))
        if folder.consolidated is not None:
            self.consolidated[folder.consolidated.group] = folder.consolidated
        if not folder.nodes and not self.groups.keys().isdisjoint(above):
            self.no_groups.add(folder.path)
        if folder.chunk and next(iter(above), None) in self.groups:
            self.lost_arrays[folder.path] = folder.chunk
        for path, node in folder.nodes.items():
            note, above = "", list(groups_above(path))
            if node.kind == "group":
                self.groups[path] = node.zarr_format
            else:
                self.arrays.add(path)
                self.lost_groups |= dict.fromkeys([g for g in above if g in self.no_groups][-1:])
                note = _why_not_shown(node, [self.groups.get(group) for group in above])
            stating = [self.consolidated[g] for g in (path, *above) if g in self.consolidated]
            problems = list(_stale_metadata(self.store, path, node, stating[::-1]))
            yield FoundNode(path, node.kind, node.document, problems, note, folder.attributes_of_v2)

    def lost_nodes(self) -> Iterator[FoundNode]:
        """Yield the nodes that have no metadata, or only consolidated ones."""
        visited = {*self.arrays, *self.groups}
        for node in _unvisited_nodes(self.store, list(self.consolidated.values()), visited):
            self.lost_arrays.pop(node.path, None)
            self.lost_groups.pop(node.path, None)
            yield node
        for path in self.lost_groups:
            what = "it has no zarr.json or .zgroup, so that groups do not show what is in it"
            how = "if it was a group, restore that; if not, make it one, or move it elsewhere"
            yield FoundNode(path, "group", None, [f"{what}: {how}"])
        above_others = {group for path in visited for group in groups_above(path)}
        lost_arrays = {p: c for p, c in self.lost_arrays.items() if p not in above_others}
        for path, chunk in lost_arrays.items():
            what = f"it holds {chunk}, as an array holds chunks, but no zarr.json or .zarray"
            yield FoundNode(path, "array", None, [f"{what}: if it was one, restore that"])


def _why_not_shown(array: _Node, formats: list[object]) -> str:
    """Return why the groups above an array, which have these formats, do not show it, or ""."""
    for own, other in ((2, 3), (3, 2)):
        if array.zarr_format == own and other in formats:
            above = f"a Zarr v{other} group above it"
            return f"it is of Zarr v{own}, which {above} does not show: {_BY_PATH}"
    return ""


def _visit(store: Store, path: str) -> tuple[_Folder, list[str]]:
    """Return what a folder has, and the names in it where further arrays may be."""
    if broken := _why_no_path(store, path):  # zip archives may hold such paths
        return _Folder(path, {path: broken}), []
    document, node_type = _node_at(store, path)
    as_array = {} if document is None else {path: _array_of(document)}
    if document is not None and node_type == "array":
        return _Folder(path, as_array), []
    listed = value_or_expected_error(names_in, store, path)
    names = [] if isinstance(listed, Exception) else listed
    if isinstance(listed, Exception):
        if path:
            return _Folder(path, {path: _array_of(Broken(listed))}), []
        if isinstance(document, Broken) and not isinstance(document.error, ValueError):
            raise listed
    if document is not None and node_type != "group":
        # It may be an array: do not search its chunks for arrays.
        others = [name for name in names if name != "c" and not name[0].isdigit()]
        others = [name for name in others if not METADATA.fullmatch(name)]
        return _Folder(path, as_array), others
    consolidated = _consolidated_in(store, path, document, names)
    if isinstance(consolidated, _Consolidated) and not names:  # web servers do not list folders
        stated = {name: _why_no_path(store, name) or n for name, n in consolidated.nodes.items()}
        return _Folder(path, {path: _Node("group", consolidated.zarr_format, {})} | stated), []
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
    own, zarr_format, of_v2 = document, 3, None
    if isinstance(document, dict):
        own = _why_no_group(store, path, document) or document
        if ".zgroup" in names and ".zattrs" in names:
            of_v2 = document_at(store, join(path, ".zattrs"))
    elif document is None and ".zgroup" in names:
        own, zarr_format = _v2_group(store, path, names), 2
    if isinstance(consolidated, Broken):
        own, consolidated = consolidated, None
    if own is None:
        return _Folder(path, {}, consolidated, chunk=_chunk_in(store, path, names))
    return _Folder(path, {path: _Node("group", zarr_format, own)}, consolidated, of_v2)


def _v2_group(store: Store, path: str, names: Collection[str]) -> JSONObject | Broken:
    """Return the attributes of a group of Zarr v2, as in a document of Zarr v3."""
    group = document_at(store, join(path, ".zgroup"))
    attributes = document_at(store, join(path, ".zattrs")) if ".zattrs" in names else None
    for each in (group, attributes):
        if isinstance(each, Broken):
            return each
    if isinstance(group, dict) and group.get("zarr_format") != 2:
        stated = group.get("zarr_format")
        return Broken(ValueError(f".zgroup has zarr_format {stated!r}: write 2"))
    return {"attributes": attributes or {}}


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


def _why_no_path(store: Store, path: str) -> _Node | None:
    """Return why zarr opens no such path, as a/../b, or a link that seems to lead to a node."""
    store_path: object = value_or_error(StorePath, store, path)
    if path and _NODE.fullmatch(path.rpartition("/")[2]) and leads_nowhere(store, path):
        how = "if it led to an array or a group, restore that"
        store_path = ValueError(f"it is a symbolic link that leads nowhere: {how}")
    return _array_of(Broken(store_path)) if isinstance(store_path, Exception) else None


def _array_of(document: JSONObject | Broken) -> _Node:
    zarr_format = None if isinstance(document, Broken) else document.get("zarr_format")
    return _Node("array", zarr_format, document)


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
    found = None
    if isinstance(consolidated, dict):
        found = consolidated.get("metadata")
        if "record_size" in consolidated and references_of(store) is None:
            return None  # these are references in Parquet, a store of their own
    if not isinstance(found, dict):
        file = ".zmetadata" if group is None else "consolidated_metadata in zarr.json"
        return Broken(ValueError(f'{join(path, file)} has no object "metadata": {_REMEDY}'))
    if group is None:
        return _Consolidated(path, 2, dict(_v2_nodes(path, found)))
    return _Consolidated(path, 3, dict(_v3_nodes(path, found)))


def _v3_nodes(group: str, found: JSONObject) -> Iterator[tuple[str, _Node]]:
    """Yield the path of each array and group, and what is stated of it."""
    for key, data in found.items():
        document = object_of(data, key)
        is_group = isinstance(document, dict) and document.get("node_type") == "group"
        yield join(group, key), _Node("group" if is_group else "array", 3, document)


def _v2_nodes(group: str, found: JSONObject) -> Iterator[tuple[str, _Node]]:
    """Yield the path of each array and group, and what is stated of it, with its attributes."""
    kinds: dict[str, Kind] = {".zarray": "array", ".zgroup": "group"}
    for key, data in found.items():
        name, _, document_name = key.rpartition("/")
        if document_name not in kinds:
            continue
        document = object_of(data, key)
        if isinstance(document, dict):
            document = document | {"attributes": found.get(join(name, ".zattrs"), {})}
        yield join(group, name), _Node(kinds[document_name], 2, document)


def _stale_metadata(
    store: Store, path: str, node: _Node, consolidated: list[_Consolidated]
) -> Iterator[str]:
    """Yield what is wrong with the consolidated metadata of a node.

    Those of Zarr v2 have also the group that they are in, those of Zarr v3 only what is below it.
    """
    own: JSONObject | Exception | None = None
    for each in consolidated:
        of_group = f"the consolidated metadata of group /{each.group}"
        stated = each.nodes.get(path)
        if each.zarr_format != node.zarr_format or (stated is None and path == each.group):
            continue
        if own is None:
            own = value_or_error(_as_zarr_writes, store, path, _with_attributes(store, path, node))
        if isinstance(own, Exception):  # this is reported of the node
            return
        if stated is None:
            yield f"{of_group} lack it: {_REMEDY}"
        elif stated.kind != node.kind:
            yield f"{of_group} take it for {_NAMES[stated.kind]}: {_REMEDY}"
        elif why := _why_stale(own, value_or_error(_as_zarr_writes, store, path, stated)):
            # They may be the only ones that are left.
            is_lost = node.zarr_format == 2 and own.get("attributes") == {} and "attributes" in why
            lost = "; if .zattrs was lost, write it from them first" if is_lost else ""
            yield f"{of_group} {why}{lost}"


def _why_stale(own: JSONObject, stated: JSONObject | Exception) -> str:
    """Return in what consolidated metadata differ from a node's own, or ""."""
    if isinstance(stated, Exception):
        return f"have it in a way that zarr can't open: {_REMEDY}"
    names = differing(own, stated)
    first = "; if an append was interrupted, repeat it first" if "shape" in names else ""
    return names and f"and its own differ in {names}: if its own are right, {_REMEDY}{first}"


def _with_attributes(store: Store, path: str, node: _Node) -> _Node:
    """Return a node of a store with its attributes, which an array of Zarr v2 stores apart."""
    if node.kind == "group" or node.zarr_format != 2 or isinstance(node.document, Broken):
        return node
    attributes = document_at(store, join(path, ".zattrs")) or {}
    return node._replace(document=node.document | {"attributes": attributes})


def _as_zarr_writes(store: Store, path: str, node: _Node) -> JSONObject:
    """Return an array's metadata as this zarr writes them, or the attributes of a group."""
    document = node.document
    if isinstance(document, Broken):
        raise document.error
    if node.kind == "group":
        return {"attributes": document.get("attributes") or {}}
    array = array_of(document, StorePath(store, path))
    written: JSONObject = {}
    for name, buffer in array.metadata.to_buffer_dict(default_buffer_prototype()).items():
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
        of_group = f"the consolidated metadata of group /{each.group}"
        for path, (kind, zarr_format, _) in each.nodes.items():
            if path in found:
                continue
            name = "zarr.json" if zarr_format == 3 else f".z{kind}"
            document = document_at(store, join(path, name))
            if document is None:
                # They may be the only ones that are left.
                without = ", without its consolidated_metadata" * (name == "zarr.json")
                lost = f"if {name} was lost, write it from them first{without * (kind == 'group')}"
                deleted = f"it has no {name}, but {of_group} have it: if it was deleted, {_REMEDY}"
                problems = [f"{deleted}; {lost}"]
            else:
                if name == ".zgroup":
                    document = _v2_group(store, path, METADATA_NAMES)
                node = _Node(kind, zarr_format, document)
                problems = list(_stale_metadata(store, path, node, [each]))
            if problems:
                yield FoundNode(path, kind, None, problems)
