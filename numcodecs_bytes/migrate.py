"""python -m numcodecs_bytes migrate: add Zarr v3 metadata to Zarr v2, without touching chunks.

Everything is read, converted and compared before anything is written. zarr's own `migrate_v2_to_v3`
does not support dimension names, consolidated metadata, and hierarchies that can be migrated only
in part.
"""

import contextlib
import json
import operator
import reprlib
import warnings
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import zarr
import zarr.abc.store
import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync

from numcodecs_bytes._tools.check_report import printable
from numcodecs_bytes._tools.hierarchy import (
    describe_error,
    document_at,
    first_chunk,
    join,
    names_in,
    walk,
)
from numcodecs_bytes._tools.locations import open_store
from numcodecs_bytes._tools.v2_to_v3 import compare, v3_document
from numcodecs_bytes._tools.xarray_attributes import convert_attributes
from numcodecs_bytes._tools.zip_archives import Archive
from numcodecs_bytes._zarr_versions import HAS_STRUCT

__all__ = ["NodeReport", "migrate"]

T = TypeVar("T")

# The metadata documents of a node by name; in place of one that can't be read, the error.
_Documents = dict[str, Any]


@dataclass(repr=False)
class NodeReport:
    """The outcome for an array or a group.

    Attributes
    ----------
    path : str
        Path of the node in the store.
    kind : {'array', 'group'}
        Kind of the node.
    status : str
        The outcome: "migrated", "Zarr v3 already", "refused" or "excluded"; or, if a migration is
        undone, "undone", "Zarr v2 already" or "kept". In a dry run, "to be migrated" and "to be
        undone".
    reasons : list of str
        Why it was refused or kept, or what becomes of it, as it was excluded.
    notes : list of str
        What programs that read Zarr v3 should know of it.
    """

    path: str
    kind: str
    status: str
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return printable(f"<NodeReport {self.kind} /{self.path}: {self.status}>")

    def __str__(self) -> str:
        lines = [f"{'/' + self.path:32} {self.kind:6} {self.status}"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  note    {note}" for note in self.notes]
        return "\n".join(map(printable, lines))


@dataclass(frozen=True)
class _Options:
    """The options of `migrate`."""

    dry_run: bool
    overwrite: bool
    undo: bool
    exclude: frozenset[str]
    bar: Any


def migrate(  # noqa: PLR0913 # the options of the command
    store: zarr.abc.store.Store | str | Path,
    *,
    dry_run: bool = False,
    overwrite: bool = False,
    undo: bool = False,
    exclude: Collection[str] = (),
    bar: Any = None,
    storage_options: dict[str, Any] | None = None,
) -> list[NodeReport]:
    """Write Zarr v3 metadata next to Zarr v2 metadata, and report the outcome for each node.

    Neither chunks nor Zarr v2 metadata is changed. An array is migrated only if two chunks read the
    same with the metadata of both: a small one that is written as Zarr v2 in memory, and the first
    one of the array itself. The Zarr v3 metadata of a group hides all nodes below it that are still
    Zarr v2, so a group is migrated after all nodes below it, or not at all; only nodes that are
    excluded may be hidden.

    A zip file is not changed in place: a copy of it with the new metadata is written beside it,
    read back, and put in its place.

    Parameters
    ----------
    store : zarr.abc.store.Store, str or Path
        Where to read and write: a store, a folder, a zip file, or a URL that fsspec supports.
    dry_run : bool
        Whether to write nothing.
    overwrite : bool
        Whether to replace existing Zarr v3 metadata that is different, but does not say more.
    undo : bool
        Whether to remove Zarr v3 metadata instead: those that equal what would be written. A group
        of Zarr v3 shows only nodes of Zarr v3, so it and all nodes below it are kept if one is.
    exclude : collection of str
        Paths of arrays and groups that stay as they are, with all nodes below them.
    bar : optional
        A progress bar with tqdm's interface; it counts nodes, and the documents that are written.
    storage_options : dict, optional
        What fsspec is to be given for a URL.

    Returns
    -------
    list of NodeReport
        The outcome for each array and group, in the order in which they are changed: children
        before their parents, or after them to undo.

    Raises
    ------
    ValueError
        If the store is read-only, is an open `ZipStore`, or can't list its contents; if `undo` is
        given together with `overwrite` or `exclude`; if there is no node at an excluded path, or it
        is the root; or if `storage_options` are given for what is no URL.
    TypeError
        If `exclude` is a string.
    OSError
        If the store can't be written.
    """
    if undo and (overwrite or exclude):
        raise ValueError("undo can't be combined with overwrite or exclude")
    if isinstance(exclude, str):
        raise TypeError(f"exclude must be a collection of paths, got {exclude!r}")
    if not all(isinstance(path, str) and path.strip("/") for path in exclude):
        raise ValueError(
            f"exclude takes paths of arrays and groups below the root, got {exclude!r}"
        )
    excluded = frozenset(path.strip("/") for path in exclude)
    options = _Options(dry_run, overwrite, undo, excluded, bar)
    if not isinstance(store, str | Path):
        if storage_options:
            raise ValueError("storage_options are for URLs, not for open stores")
        return _migrate(store, None, options)
    archive = Archive(store) if Path(store).is_file() else None
    location = open_store(store, read_only=dry_run, storage_options=storage_options)
    with contextlib.closing(location) as opened:
        return _migrate(opened, archive, options)


def _migrate(
    store: zarr.abc.store.Store, archive: Archive | None, options: _Options
) -> list[NodeReport]:
    """Migrate a store, which is the content of an archive if there is one."""
    if not options.dry_run and archive is None:
        _refuse_archive(store)
        if store.read_only:
            raise ValueError("the store is read-only")
    if not store.supports_listing:
        raise ValueError("the store can't list its contents, so nodes might be missed")
    nodes = dict(_counted(_find_nodes(store), options.bar, "reading metadata"))
    unknown = sorted(options.exclude - nodes.keys())
    if unknown:
        raise ValueError(
            f"can't exclude {unknown[0]!r}: there is no such array or group; expected a path in "
            "the store, such as 'group/array'"
        )
    reports, changes = (_plan_to_undo if options.undo else _plan)(store, nodes, options)
    if options.dry_run:
        return reports
    if archive is None:
        _write(store, changes, nodes, options.bar)
    elif changes:
        store.close()  # Windows replaces no file that is open
        for members in _counted([changes], options.bar, "copying the zip file", 1):
            archive.replace(members)
    return reports


def _counted(items: Iterable[T], bar: Any, what: str, total: int | None = None) -> Iterator[T]:
    """Yield items, and show on a progress bar, if there is one, how many are done."""
    if bar is not None:
        bar.set_description(what)
        bar.reset(total)
    for item in items:
        yield item
        if bar is not None:
            bar.update()


def _refuse_archive(store: zarr.abc.store.Store) -> None:
    """Raise ValueError for a zip archive: whoever stops while it is open leaves no archive."""
    while isinstance(store, zarr.storage.WrapperStore):
        store = store._store  # noqa: SLF001 # zarr's way to wrap
    file_system = getattr(store, "fs", None)
    file_system = getattr(file_system, "sync_fs", file_system)  # fsspec's way to wrap
    is_of_fsspec = getattr(file_system, "protocol", None) == "zip"
    if is_of_fsspec or isinstance(store, zarr.storage.ZipStore):
        raise ValueError(
            "an open zip archive is not changed, since an interruption would destroy it: close it "
            "and give its path"
        )


def _find_nodes(store: zarr.abc.store.Store) -> Iterator[tuple[str, _Documents]]:
    """Yield the path and metadata documents of each node, parents before their children."""
    names = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

    def look(path: str) -> tuple[list[tuple[str, _Documents]], list[str]]:
        all_of_them = {name: document_at(store, join(path, name)) for name in names}
        documents = {name: found for name, found in all_of_them.items() if found is not None}
        nodes = [(path, documents)] if documents.keys() & set(names[:3]) else []
        if _kind(documents) == "array":
            return nodes, []
        listed = names_in(store, path)
        if ".zgroup" in documents and ".zgroup" not in listed:
            raise ValueError("the store does not list its contents, so nodes might be missed")
        return nodes, [name for name in listed if name not in names]

    return walk(store, look)


def _kind(documents: _Documents) -> str:
    """Return the kind of a node, "array" or "group", of Zarr v2 if it has metadata of both."""
    new = documents.get("zarr.json")
    is_new_array = isinstance(new, dict) and new.get("node_type") == "array"
    is_array = ".zarray" in documents or (".zgroup" not in documents and is_new_array)
    return "array" if is_array else "group"


# The outcome for each node, and what is to be written or, if it is None, removed, in that order.
_Outcome = tuple[list[NodeReport], dict[str, bytes | None]]


def _plan(store: zarr.abc.store.Store, nodes: dict[str, _Documents], options: _Options) -> _Outcome:
    """Return the outcome for each node, and what is to be written, children before parents."""
    plan = _Plan(store, nodes, options)
    for path, documents in _counted(reversed(nodes.items()), options.bar, "comparing", len(nodes)):
        plan.add(path, documents)
    return plan.reports, plan.changes


class _Plan:
    """What is to be written, in that order, and the outcome for each node."""

    def __init__(
        self, store: zarr.abc.store.Store, nodes: dict[str, _Documents], options: _Options
    ) -> None:
        self.store, self.options = store, options
        self.reports: list[NodeReport] = []
        self.changes: dict[str, bytes | None] = {}
        # Zarr v3 documents, as they will be.
        self.after = {p: found["zarr.json"] for p, found in nodes.items() if "zarr.json" in found}
        # By the path of a group, the paths of nodes below it.
        self.refused: dict[str, list[str]] = {}
        self.old: dict[str, list[str]] = {}
        self.only_new: dict[str, list[str]] = {}
        for path, documents in nodes.items():
            _note(self.old if _is_old(documents) else self.only_new, path)

    def add(self, path: str, documents: _Documents) -> None:
        """Plan what a node needs, after all nodes below it."""
        is_old = _is_old(documents)
        if not is_old and not (_is_consolidated(documents.get("zarr.json")) and path in self.old):
            return
        outcome = "to be migrated" if self.options.dry_run else "migrated"
        report = NodeReport(path, _kind(documents), outcome)
        if not self.options.exclude.isdisjoint([path, *_above(path)]):
            if is_old:
                report.status = "excluded"
                report.reasons = [_what_becomes_of(documents)]
                self.reports.append(report)
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about data types without a specification
                if not self._change(path, documents, report):
                    report.status = "Zarr v3 already"
        except Exception as error:  # noqa: BLE001 # the other nodes must still be migrated
            report.status, report.reasons, report.notes = "refused", [describe_error(error)], []
            _note(self.refused, path)
        if is_old or report.status != "Zarr v3 already":
            self.reports.append(report)

    def _change(self, path: str, documents: _Documents, report: NodeReport) -> bool:
        """Plan what a node needs; return whether that is anything."""
        document = _convert(documents, report.notes)
        if ".zarray" in documents:
            compare(zarr.storage.StorePath(self.store, path), documents[".zarray"], document)
        report.notes += _codecs_of_numcodecs(document)
        found = documents.get("zarr.json")
        is_new = found is None or not _are_equal(_without_consolidated(found), document)
        if is_new:
            if found is not None:
                self._refuse_to_replace(path, documents, document)
            _refuse_to_hide(self.refused.get(path, []))
            _refuse_struct(document)
        if _is_consolidated(found) or ".zmetadata" in documents:
            document = _consolidated(path, document, self.after)
        if not is_new and not self._is_outdated(path, found, document):
            return False
        self.after[path] = document
        self.changes[join(path, "zarr.json")] = json.dumps(document, indent=2).encode()
        return True

    def _is_outdated(self, path: str, found: Any, document: dict[str, Any]) -> bool:
        """Whether a group's consolidated metadata lacks what was migrated below it, or all."""
        if not _is_consolidated(found):
            return _is_consolidated(document)
        listed, now = (
            each["consolidated_metadata"].get("metadata", {}) for each in (found, document)
        )
        below = (other.removeprefix(path).lstrip("/") for other in self.old.get(path, []))
        return any(name in now and now[name] != listed.get(name) for name in below)

    def _refuse_to_replace(
        self, path: str, documents: _Documents, document: dict[str, Any]
    ) -> None:
        """Raise ValueError unless a different `zarr.json` may be replaced by a document."""
        found = _without_consolidated(documents["zarr.json"])
        only_in_v3 = list(_only_in_v3(found, document, documents.get(".zattrs", {})))
        only_in_v3 += [f"the node {node}" for node in self.only_new.get(path, [])]
        if document["node_type"] == found.get("node_type") == "array":
            at = zarr.storage.StorePath(self.store, path)
            only_in_v3 += _chunks_only_in_v3(at, found, document)
        if only_in_v3:
            raise ValueError(
                f"zarr.json has what Zarr v2 lacks, so it is kept: {'; '.join(only_in_v3)}. "
                "If Zarr v3 is right, nothing is to be done; to lose that, delete zarr.json"
            )
        if not self.options.overwrite:
            raise ValueError(
                f"zarr.json exists, but not with the {_differing(found, document)} that would be "
                "written; --overwrite replaces it"
            )


def _plan_to_undo(
    _store: zarr.abc.store.Store, nodes: dict[str, _Documents], options: _Options
) -> _Outcome:
    """Return the outcome for each node, and which documents to remove, parents before children.

    At every moment, the Zarr v3 groups that are left show what they have shown before.
    """
    outcome = "to be undone" if options.dry_run else "undone"
    new = {path: found["zarr.json"] for path, found in nodes.items() if "zarr.json" in found}
    kept: dict[str, list[str]] = {}  # by the path of the topmost Zarr v3 group
    reports, tops = [], {}
    for path, documents in _counted(nodes.items(), options.bar, "comparing", len(nodes)):
        report = NodeReport(path, _kind(documents), "Zarr v2 already")
        reports.append(report)
        if path not in new:
            continue
        tops[path] = next(top for top in reversed([path, *_above(path)]) if top in new)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about data types without a specification
                _refuse_to_remove(path, documents, new)
            report.status = outcome
        except Exception as error:  # noqa: BLE001 # whatever makes it differ
            report.status, report.reasons = "kept", [describe_error(error)]
            kept.setdefault(tops[path], []).append(path or "/")
    changes: dict[str, bytes | None] = {}
    for report in reports:
        others = kept.get(tops.get(report.path, ""), [])
        if report.status != outcome:
            continue
        if others:
            report.status = "kept"
            report.reasons = [f"the same Zarr v3 group has {', '.join(others)}, which is kept"]
        else:
            changes[join(report.path, "zarr.json")] = None
    return reports, changes


def _what_becomes_of(documents: _Documents) -> str:
    """Return how to read a node that is excluded."""
    if "zarr.json" in documents:
        return "its Zarr v3 metadata stays as it is"
    return (
        "it stays in Zarr v2, which groups of Zarr v3 do not show: open it by its own path, or "
        "the group above it with zarr_format=2"
    )


def _refuse_to_remove(path: str, documents: _Documents, new: dict[str, Any]) -> None:
    """Raise an error unless a node's `zarr.json` is what would be written."""
    if not _is_old(documents):
        raise ValueError("it has no Zarr v2 metadata")
    document = _convert(documents, [])
    found = documents["zarr.json"]
    if not _are_equal(_without_consolidated(found), document):
        differing = _differing(_without_consolidated(found), document)
        raise ValueError(f"its {differing} in zarr.json differ from what migrate would write")
    if _is_consolidated(found) and not _are_equal(found, _consolidated(path, document, new)):
        raise ValueError(
            "its consolidated metadata differs from the metadata of the nodes below it"
        )


def _differing(found: dict[str, Any], document: dict[str, Any]) -> str:
    """Return the names of the members in which two documents differ."""
    return ", ".join(n for n in {**found, **document} if found.get(n) != document.get(n))


def _above(path: str) -> Iterator[str]:
    """Yield the paths of the groups above a node, the root at last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _is_old(documents: _Documents) -> bool:
    return ".zarray" in documents or ".zgroup" in documents


def _is_consolidated(document: Any) -> bool:
    # zarr before 3.1.4 writes null.
    return isinstance(document, dict) and isinstance(document.get("consolidated_metadata"), dict)


def _note(nodes: dict[str, list[str]], path: str) -> None:
    """List a node for each group above it."""
    for above in _above(path):
        nodes.setdefault(above, []).append(path)


def _only_in_v3(
    found: dict[str, Any], document: dict[str, Any], old_attributes: dict[str, Any]
) -> Iterator[str]:
    """Yield what Zarr v3 metadata says, but that of Zarr v2, which became `document`, does not."""
    if found.get("node_type") != document["node_type"]:
        yield f"a node of type {found.get('node_type')!r}, not {document['node_type']!r}"
        return
    shape, old_shape = found.get("shape", []), document.get("shape", [])
    if len(shape) != len(old_shape) or any(map(operator.gt, shape, old_shape)):
        yield f"the shape {shape}, not {old_shape}"
    names, old_names = found.get("dimension_names"), document.get("dimension_names")
    if names not in (None, old_names):
        yield f"the dimension names {names}, not {old_names}"
    known = (old_attributes, document["attributes"])
    for name, value in (found.get("attributes") or {}).items():
        if not any(
            name in attributes and _are_equal(attributes[name], value) for attributes in known
        ):
            other = f", not {reprlib.repr(old_attributes[name])}" if name in old_attributes else ""
            yield f"the attribute {name} {reprlib.repr(value)}{other}"


def _chunks_only_in_v3(
    at: zarr.storage.StorePath, found: dict[str, Any], document: dict[str, Any]
) -> Iterator[str]:
    """Yield the key of a chunk that Zarr v2 does not look for."""
    documents: Any = (found, document)
    try:
        new, old = (zarr.Array(zarr.AsyncArray(each, at)) for each in documents)
        region = first_chunk(new)
    except Exception as error:  # noqa: BLE001 # metadata may say anything
        yield f"perhaps chunks, but zarr can't open it ({describe_error(error)})"
        return
    if region is not None:
        index = tuple(axis.start // n for axis, n in zip(region, new.chunks, strict=True))
        keys = [array.metadata.encode_chunk_key(index) for array in (new, old)]
        if keys[0] != keys[1]:
            yield f"chunks such as {keys[0]}"


def _refuse_to_hide(below: list[str]) -> None:
    if below:
        raise ValueError(
            "its Zarr v3 metadata would hide nodes below it that could not be migrated: "
            f"{', '.join(sorted(below))}; to migrate it without them, exclude those that can't be "
            "migrated (--exclude PATH)"
        )


def _codecs_of_numcodecs(document: dict[str, Any]) -> Iterator[str]:
    """Yield a note if an array has codecs that no specification of Zarr v3 describes."""
    names = [codec["name"] for codec in document.get("codecs", ())]
    ours = [name for name in names if name.startswith("numcodecs.")]
    if ours:
        yield (
            f"{' and '.join(ours)} in Zarr v3 are known to numcodecs alone: other implementations, "
            "such as TensorStore, may not read the array"
        )


def _refuse_struct(document: dict[str, Any]) -> None:
    """Raise ValueError for a structure if zarr alone could not open it."""
    data_type = document.get("data_type")
    if not HAS_STRUCT and isinstance(data_type, dict) and data_type["name"] == "struct":
        raise ValueError(
            f"zarr {zarr.__version__} does not have the data type struct of Zarr v3: programs that "
            "do not import numcodecs_bytes.zarr_data_types could not open the array any more; "
            "migrate it with zarr 3.2 or newer, and read it with that"
        )


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two documents are equal; NaN, which is not equal to itself, is."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _convert(documents: _Documents, notes: list[str]) -> dict[str, Any]:
    """Return the Zarr v3 document of a node, or raise the error that prevents its migration."""
    for document in documents.values():
        if isinstance(document, Exception):
            raise document
    if ".zarray" not in documents and ".zgroup" not in documents:
        return _without_consolidated(documents["zarr.json"])
    attributes = documents.get(".zattrs", {})
    if ".zarray" not in documents:
        return {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    old = documents[".zarray"]
    document = v3_document(old)
    metadata: Any = ArrayV2Metadata.from_dict(old)
    fill_value = None if old.get("fill_value") is None else metadata.fill_value
    dtype = metadata.dtype.to_native_dtype()
    for_xarray, found = convert_attributes(old, attributes, dtype, fill_value)
    notes += found
    return document | for_xarray


def _without_consolidated(document: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k != "consolidated_metadata"}


def _consolidated(path: str, document: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Return a group's document with those of all nodes below it as consolidated metadata."""
    prefix = f"{path}/".lstrip("/")
    store = zarr.storage.MemoryStore()
    for other, below in others.items():
        if other != path and other.startswith(prefix):
            if isinstance(below, Exception):
                raise below
            _put(store, f"{other.removeprefix(prefix)}/zarr.json", json.dumps(below).encode())
    _put(store, "zarr.json", json.dumps(document).encode())
    zarr.consolidate_metadata(store, zarr_format=3)
    consolidated: dict[str, Any] = document_at(store, "zarr.json")
    return consolidated


def _write(
    store: zarr.abc.store.Store,
    changes: dict[str, bytes | None],
    nodes: dict[str, _Documents],
    bar: Any,
) -> None:
    """Write or remove documents, unless another program has changed them since they were read."""
    for key, raw in _counted(changes.items(), bar, "writing", len(changes)):
        before = nodes[key.rpartition("/")[0]].get("zarr.json")
        current = document_at(store, key)
        if isinstance(current, Exception):
            raise OSError(f"{key} can't be read: {describe_error(current)}") from current
        if _are_equal(current, None if raw is None else json.loads(raw)):
            continue  # another migration did the same meanwhile
        if not _are_equal(current, before):
            raise OSError(f"{key} was changed by another program meanwhile: run migrate again")
        try:
            if raw is None:
                sync(store.delete(key))
            else:
                _put(store, key, raw)
        except Exception as error:
            # Its text may name the file that zarr writes first, with a random name.
            why = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            raise OSError(f"{key} can't be written: {why}") from error


def _put(store: zarr.abc.store.Store, key: str, raw: bytes) -> None:
    sync(store.set(key, default_buffer_prototype().buffer.from_bytes(raw)))
