"""python -m numcodecs_bytes migrate: add Zarr v3 metadata to Zarr v2, without touching chunks.

Everything is read, converted and compared before anything is written. An array is migrated only if
two chunks read the same with the metadata of both formats: a small one that is written as Zarr v2
in memory, and the first one of the array itself. A Zarr v3 group hides Zarr v2 nodes, so a group is
migrated after all nodes below it that are not excluded, or not at all.
"""

import json
import os
import reprlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import zarr
import zarr.storage
from zarr.abc.store import Store
from zarr.core.buffer import cpu
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.documents import (
    METADATA_NAMES,
    Broken,
    Document,
    as_json,
    differing,
    document_at,
    groups_above,
    join,
    local_path,
    names_in,
    walk,
)
from numcodecs_bytes._tools.locations import open_store
from numcodecs_bytes._tools.reporting import (
    ProgressBar,
    check_progress,
    explain_error,
    printable,
    refuse_calls,
    value_or_expected_error,
)
from numcodecs_bytes._tools.v2_to_v3 import compare, v3_document
from numcodecs_bytes._tools.xarray_attributes import convert_attributes
from numcodecs_bytes._zarr_api.file_systems import is_web_server
from numcodecs_bytes._zarr_api.versions import HAS_STRUCT

__all__ = ["NodeReport", "migrate"]

T = TypeVar("T")

_Intact = dict[str, JSONObject]
_Documents = dict[str, JSONObject | Broken]  # the metadata documents of a node that exist, by name


class _ElsewhereError(ValueError):
    """A node is in another store."""

    def __init__(self, path: str) -> None:
        where = "a symbolic link leads to it from another store"
        super().__init__(f"{where}: migrate it there, and exclude it here (--exclude {path})")


def _is_linked(documents: _Documents) -> bool:
    """Whether the documents are those of a node in another store."""
    errors = (each.error for each in documents.values() if isinstance(each, Broken))
    return any(isinstance(error, _ElsewhereError) for error in errors)


class _Change(NamedTuple):
    """What becomes of a `zarr.json`."""

    document: JSONObject | None  # None to remove it
    previous: JSONObject | None = None  # what it replaces, if that is intact


_Changes = dict[str, _Change]  # by key
_LEAVE = "if Zarr v3 is right, leave it so"
_MOVE = "if Zarr v2 is right, move zarr.json out of the store and run this again"
_HOW_TO_OPEN = (
    "it stays in Zarr v2, so it does not show in Zarr v3 groups: open it by its own path, or the "
    "group above it with zarr_format=2"
)
_PLANNED = {"migrated": "to be migrated", "undone": "to be undone"}  # statuses in a dry run


@dataclass
class NodeReport:
    """The outcome for an array or a group.

    Attributes
    ----------
    path : str
        Path of the node in the store.
    kind : {'array', 'group'}
        Kind of the node.
    status : str
        "migrated", "Zarr v3 already", "refused" or "excluded"; if a migration is undone, "undone",
        "Zarr v2 already" or "kept"; in a dry run, "to be migrated" or "to be undone".
    reasons : list of str
        Why it was refused or kept, or how to open it if it was excluded.
    notes : list of str
        What programs that read Zarr v3 should know about it.
    """

    path: str
    kind: str
    status: str
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{'/' + self.path:32} {self.kind:6} {self.status}"]
        lines += [f"  {reason}" for reason in self.reasons]
        lines += [f"  note    {note}" for note in self.notes]
        return "\n".join(map(printable, lines))


def migrate(  # noqa: PLR0913 # the options of the command
    store: Store | str | Path,
    *,
    dry_run: bool = False,
    overwrite: bool = False,
    undo: bool = False,
    exclude: Collection[str] = (),
    progress: ProgressBar | None = None,
    storage_options: JSONObject | None = None,
) -> list[NodeReport]:
    """Write Zarr v3 metadata next to Zarr v2 metadata, and report the outcome for each node.

    Parameters
    ----------
    store : zarr.abc.store.Store, str or Path
        Where to read and write: a store, a folder, or a URL that fsspec supports.
    dry_run : bool
        Whether to write nothing.
    overwrite : bool
        Whether to replace existing Zarr v3 metadata that differs, unless it says more.
    undo : bool
        Whether to remove Zarr v3 metadata that equals what would be written. If a node with Zarr v2
        metadata is kept, so are the topmost Zarr v3 group above it and all nodes below that.
    exclude : collection of str
        Paths of arrays and groups that stay as they are, with all nodes below them.
    progress : optional
        A progress bar with tqdm's interface; it counts nodes, then the documents that are written.
    storage_options : dict, optional
        Settings of fsspec for a URL.

    Returns
    -------
    list of NodeReport
        The outcome for each array and group, in the order in which they are changed.

    Raises
    ------
    ValueError, TypeError
        If the store is a zip archive or can't list its contents, or an option is wrong.
    OSError
        If the store can't be read or written, or another program changes it meanwhile.
    """
    _check_switches(dry_run=dry_run, overwrite=overwrite, undo=undo)
    opened = open_store(store, read_only=False, storage_options=storage_options)
    reports, changes = _plan(opened, progress, exclude, overwrite=overwrite, undo=undo)
    if dry_run:
        return [replace(each, status=_PLANNED.get(each.status, each.status)) for each in reports]
    _write(opened, changes, progress, "migrate --undo" if undo else "migrate")
    _refuse_if_crossed(opened, reports if changes else [], undo=undo)
    return reports


def _check_switches(**switches: object) -> None:
    """Raise TypeError unless each switch is a bool."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")


def _plan(
    store: Store,
    progress: ProgressBar | None,
    exclude: Collection[str],
    *,
    overwrite: bool,
    undo: bool,
) -> tuple[list[NodeReport], _Changes]:
    """Return the outcome for each node, and the documents to write or remove, in order."""
    check_progress(progress)
    if undo and (overwrite or exclude):
        raise ValueError("undo can't be combined with overwrite or exclude: leave these out")
    if isinstance(exclude, str | bytes) or not isinstance(exclude, Collection):
        raise TypeError(f"exclude must be a collection of paths, got {exclude!r}")
    excluded = {path.strip("/") if isinstance(path, str) else path for path in exclude}
    nodes = dict(_counted(_find_nodes(store), progress, "reading metadata"))
    if unknown := [path for path in excluded if path not in nodes or not path]:
        path = "/" if unknown[0] == "" else unknown[0]
        raise ValueError(
            f"can't exclude {path!r}: the store has no such array or group below its root; "
            "expected a path such as 'group/array'"
        )
    if undo:
        return _plan_undo(nodes, progress)
    return _Migration(store, nodes, excluded, overwrite, _nodes_below(nodes)).plan(progress)


def _write(store: Store, changes: _Changes, progress: ProgressBar | None, command: str) -> None:
    for key, change in _counted(changes.items(), progress, "writing", len(changes)):
        current = document_at(store, key)
        # Another `migrate` may have written the same.
        if isinstance(current, dict) and all(differing(current, each) for each in change if each):
            raise OSError(f"{key} has changed since it was read: run {command} again")
        error = value_or_error(_put, store, key, change.document)
        if isinstance(error, Exception):
            # Half a zarr.json would hide intact Zarr v2 metadata. To mend that may fail, too.
            written = document_at(store, key)
            if change.document is not None and _is_beginning(written, change.document):
                value_or_error(_put, store, key, change.previous)
            # The error may name zarr's temporary file, which has a random name.
            why = f"{type(error).__name__}: {getattr(error, 'strerror', None) or error}"
            advice = f"fix that and run {command} again to finish"
            if is_web_server(store) or isinstance(error, NotImplementedError):
                advice = f"web servers are rarely writable: run {command} on a copy in a folder"
            raise OSError(f"{key} can't be written: {why}; {advice}") from error


def _refuse_if_crossed(store: Store, reports: list[NodeReport], *, undo: bool) -> None:
    """Raise OSError if `migrate` and `migrate --undo` ran at once, so that nodes may be hidden.

    Each looks after it has written, so at least one of them notices.
    """
    for report in reports:
        key = join(report.path, "zarr.json")
        is_changed = report.status not in ("excluded", "kept", "refused")
        if is_changed and (document_at(store, key) is None) is not undo:
            what = "written again, so run migrate --undo" if undo else "removed, so run migrate"
            raise OSError(f"meanwhile, {key} was {what} again, when nothing else migrates")


def _counted(
    items: Iterable[T], progress: ProgressBar | None, what: str, total: int | None = None
) -> Iterator[T]:
    """Yield items, and show on a progress bar, if there is one, how many are done."""
    if progress is not None:
        progress.set_description(what)
        progress.reset(total)
    for item in items:
        yield item
        if progress is not None:
            progress.update()


def _find_nodes(store: Store) -> Iterator[tuple[str, _Documents]]:
    """Yield the path and metadata documents of each node, parents before their children."""

    def is_array(path: str) -> bool:  # links to it lead no further, and are nodes, too
        return isinstance(document_at(store, join(path, ".zarray")), dict)

    for path, documents in walk(store, partial(_visit, store), may_repeat=is_array):
        if "zarr.json" in documents or _has_v2(documents):
            yield path, documents


def _visit(store: Store, path: str) -> tuple[tuple[str, _Documents], list[str]]:
    """Return a folder's path and documents, and the names in it where further nodes may be."""
    every = {name: document_at(store, join(path, name)) for name in METADATA_NAMES}
    if _is_elsewhere(store, path):
        why = Broken(_ElsewhereError(path))
        every = {name: document and why for name, document in every.items()}
    broken = [document for document in every.values() if isinstance(document, Broken)]
    if not path and len(broken) == len(every):
        raise broken[0].error  # the store can't be read at all
    documents = {name: document for name, document in every.items() if document is not None}
    if _kind(documents) == "array":
        return (path, documents), []
    names = names_in(store, path)
    if ".zgroup" in documents and ".zgroup" not in names:
        raise ValueError("the store does not list its contents: migrate a copy in a folder")
    return (path, documents), [name for name in names if name not in METADATA_NAMES]


def _is_elsewhere(store: Store, path: str) -> bool:
    """Whether a folder is outside that of its store, because a symbolic link leads there."""
    root, folder = local_path(store, ""), local_path(store, path)
    if root is None or folder is None:
        return False
    return not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(root))


def _kind(documents: _Documents) -> str:
    """Return the kind of a node, "array" or "group", by its Zarr v2 metadata if it has any."""
    new = documents.get("zarr.json")
    is_new_array = isinstance(new, dict) and new.get("node_type") == "array"
    is_array = ".zarray" in documents or (".zgroup" not in documents and is_new_array)
    return "array" if is_array else "group"


def _has_v2(documents: _Documents) -> bool:
    return ".zarray" in documents or ".zgroup" in documents


def _nodes_below(nodes: dict[str, _Documents]) -> dict[str, dict[str, _Documents]]:
    """Return the nodes below each group, by their paths."""
    below: dict[str, dict[str, _Documents]] = defaultdict(dict)
    for path, documents in nodes.items():
        for group in groups_above(path):
            below[group][path] = documents
    return below


def _plan_undo(
    nodes: dict[str, _Documents], progress: ProgressBar | None
) -> tuple[list[NodeReport], _Changes]:
    """Return the outcome for each node, and the documents to remove, those of groups first.

    All nodes of a Zarr v3 group are kept if one of them is. A node without Zarr v2 metadata does
    not keep the groups above it: those of Zarr v2 did not show it either. Nor does one in another
    store: groups of Zarr v2 show it by its own metadata.
    """
    of_v3 = {path: documents for path, documents in nodes.items() if "zarr.json" in documents}
    below = _nodes_below(nodes)
    items = _counted(of_v3, progress, "comparing", len(of_v3))
    reasons = {path: _why_kept(path, of_v3[path], below[path]) for path in items}
    topmost: dict[str, str] = {}
    for path, documents in of_v3.items():  # parents before their children
        above = next((topmost[group] for group in groups_above(path) if group in topmost), path)
        is_apart = not _has_v2(documents) and _has_v2(of_v3[above])
        is_apart = is_apart or _is_linked(documents)
        topmost[path] = path if is_apart else above
    # The first node that is kept below each topmost group.
    first_kept = {topmost[path]: path or "/" for path in reversed(of_v3) if reasons[path]}
    reports: list[NodeReport] = []
    changes: _Changes = {}
    for path, documents in nodes.items():
        report = NodeReport(path, _kind(documents), "Zarr v2 already")
        reports.append(report)
        if path in of_v3 and topmost[path] in first_kept:
            first = first_kept[topmost[path]]
            other = f"the same Zarr v3 group has {first}, which is kept: see there what helps"
            report.status, report.reasons = "kept", [reasons[path] or other]
        elif path in of_v3:
            existing = documents["zarr.json"]
            previous = existing if isinstance(existing, dict) else None
            report.status, changes[join(path, "zarr.json")] = "undone", _Change(None, previous)
    return reports, changes


def _why_kept(path: str, documents: _Documents, below: dict[str, _Documents]) -> str:
    """Return why the Zarr v3 metadata of a node are not what `migrate` writes, or ""."""
    if not _has_v2(documents):
        return (
            "it has only Zarr v3 metadata, so Zarr v2 groups do not show it: open it by its path, "
            "or copy it to Zarr v2 (zarr_format=2)"
        )
    if _is_linked(documents):
        return "a symbolic link leads to it from another store: undo that there"
    names = value_or_expected_error(_names_that_differ, path, documents, below)
    if isinstance(names, Exception):
        return f"it can't be compared with what migrate writes: {explain_error(names)}; {_MOVE}"
    return names and f"zarr.json differs from what migrate writes in {names}; {_LEAVE}; {_MOVE}"


def _names_that_differ(path: str, documents: _Documents, below: dict[str, _Documents]) -> str:
    incomplete, intact = _intact(documents)
    document = _convert(intact, [])
    if incomplete is None:
        return differing(_without_consolidated(intact["zarr.json"]), document)
    if ".zmetadata" in intact:
        document = _consolidated(path, document, below)
    if not _is_beginning(incomplete, document):
        raise incomplete.error
    return ""


@dataclass
class _Migration:
    """The outcome for each node, and the documents to write, in order."""

    store: Store
    nodes: dict[str, _Documents]  # their documents, and the Zarr v3 ones that are planned
    excluded: set[str]
    overwrite: bool
    below: dict[str, dict[str, _Documents]]
    refused: set[str] = field(default_factory=set)

    def plan(self, progress: ProgressBar | None) -> tuple[list[NodeReport], _Changes]:
        """Plan to migrate all nodes that have Zarr v2 metadata, each after all nodes below it."""
        reports: list[NodeReport] = []
        changes: _Changes = {}
        items = reversed(self.nodes.items())
        for path, documents in _counted(items, progress, "comparing", len(self.nodes)):
            if not _has_v2(documents):
                continue
            report = NodeReport(path, _kind(documents), "Zarr v3 already")
            reports.append(report)
            existing = documents.get("zarr.json")
            if not self.excluded.isdisjoint([path, *groups_above(path)]):
                reason = _HOW_TO_OPEN if existing is None else "its zarr.json stays as it is"
                report.status, report.reasons = "excluded", [reason]
                continue
            document = value_or_expected_error(self._document, path, documents, report.notes)
            previous = existing if isinstance(existing, dict) else None
            if isinstance(document, Exception):
                reason = explain_error(document)
                is_own = isinstance(existing, Broken) and existing.error is document
                if is_own and not _is_linked(documents):
                    reason += f"; {_MOVE}"
                report.status, report.reasons, report.notes = "refused", [reason], []
                self.refused.add(path)
            elif previous is None or differing(previous, document):
                documents["zarr.json"] = document
                changes[join(path, "zarr.json")] = _Change(document, previous)
                report.status = "migrated"
        return reports, changes

    def _document(self, path: str, documents: _Documents, notes: list[str]) -> JSONObject:
        """Return the document that a node needs, or raise the error that prevents its migration."""
        incomplete, intact = _intact(documents)
        document, existing = _convert(intact, notes), intact.get("zarr.json")
        if existing is None or differing(_without_consolidated(existing), document):
            if ".zarray" in intact:
                compare(zarr.storage.StorePath(self.store, path), intact[".zarray"], document)
            if existing is not None:
                self._refuse_to_replace(path, intact, document)
            self._refuse_to_hide(path)
            self._refuse_to_lose(path, intact.get(".zmetadata", {}))
            if not HAS_STRUCT and '"struct"' in as_json(document.get("data_type")):
                raise ValueError(
                    f"zarr {zarr.__version__} alone can't open structures of Zarr v3: migrate it "
                    "with zarr 3.2 or newer, and read it with that"
                )
        # zarr before 3.1.4 writes null where there is none.
        if ".zmetadata" in intact or (existing or {}).get("consolidated_metadata") is not None:
            document = _consolidated(path, document, self.below[path])
        if incomplete is not None and not _is_beginning(incomplete, document):
            raise incomplete.error
        return document

    def _refuse_to_hide(self, path: str) -> None:
        """Raise ValueError if a node below a group could not be migrated."""
        if hidden := sorted(self.refused & self.below[path].keys()):
            others = f", and {len(hidden) - 10} more" if len(hidden) > 10 else ""
            raise ValueError(
                "its Zarr v3 metadata would hide nodes below it that could not be migrated: "
                f"{', '.join(hidden[:10])}{others}; to migrate it without them, exclude "
                "those that can't be migrated (--exclude PATH)"
            )

    def _refuse_to_lose(self, path: str, consolidated: JSONObject) -> None:
        """Raise ValueError if only the consolidated metadata of a group have another node."""
        found = consolidated.get("metadata")
        keys = [join(path, key) for key in (found if isinstance(found, dict) else ())]
        documents = [key for key in keys if key.endswith(("/.zarray", "/.zgroup"))]
        documents = [key for key in documents if ".." not in key.split("/")]
        unvisited = [key for key in documents if key.rpartition("/")[0] not in self.nodes]
        # A link may lead to a folder that is visited under another name.
        lost = [key for key in unvisited if document_at(self.store, key) is None]
        if lost:
            raise ValueError(
                f"only .zmetadata has {', '.join(lost[:10])}: write that from it or, if the node "
                "was deleted, consolidate again, with zarr.consolidate_metadata"
            )

    def _refuse_to_replace(self, path: str, intact: _Intact, document: JSONObject) -> None:
        """Raise ValueError unless a different `zarr.json` may be replaced by a document."""
        existing = _without_consolidated(intact["zarr.json"])
        of_v3 = [f"node {node}" for node, each in self.below[path].items() if not _has_v2(each)]
        if lost := [*_lost_members(intact, document), *of_v3]:
            raise ValueError(
                f"zarr.json has what would be lost, so it is kept: {', '.join(lost)}; {_LEAVE}; "
                f"{_MOVE}"
            )
        if not self.overwrite:
            what = f"differs from what migrate writes in {differing(existing, document)}"
            if not existing.keys() >= {"zarr_format", "node_type"}:
                what = "is incomplete"
            raise ValueError(f"zarr.json {what}; if Zarr v2 is right, --overwrite replaces it")


def _lost_members(intact: _Intact, document: JSONObject) -> Iterator[str]:
    """Yield which members and attributes of a `zarr.json` a document would lose."""
    existing = intact["zarr.json"]
    for name in ("node_type", "chunk_key_encoding", "dimension_names"):
        if existing.get(name) not in (None, document.get(name)):
            yield name
    shape, v2_shape = existing.get("shape", []), document.get("shape", [])
    is_within = (
        isinstance(shape, list)
        and len(shape) == len(v2_shape)
        and all(isinstance(n, int) and n <= of_v2 for n, of_v2 in zip(shape, v2_shape, strict=True))
    )
    if "shape" in existing and not is_within:
        yield f"shape {shape}"
    attributes = existing.get("attributes") or {}
    if not isinstance(attributes, dict):
        yield f"attribute {attributes!r}"
        return
    # zarr's own tool keeps attributes that are converted here.
    all_of_v2 = intact.get(".zattrs", {}), document["attributes"]
    for name, value in attributes.items():
        others = [of_v2[name] for of_v2 in all_of_v2 if name in of_v2]
        if as_json(value) not in map(as_json, others):
            in_v2 = f" ({reprlib.repr(others[0])} in Zarr v2)" if others else ""
            yield f"attribute {name} = {reprlib.repr(value)}{in_v2}"


def _intact(documents: _Documents) -> tuple[Broken | None, _Intact]:
    """Return a node's `zarr.json` that is no JSON, perhaps incomplete, and its other documents.

    Raises the error of a document that is broken in another way.
    """
    incomplete, intact = None, _Intact()
    for name, document in documents.items():
        if not isinstance(document, Broken):
            intact[name] = document
        elif name == "zarr.json" and document.raw is not None:
            incomplete = document
        else:
            raise document.error
    return incomplete, intact


def _is_beginning(written: Document, document: JSONObject) -> bool:
    """Whether what is stored is empty, or only the beginning of a document.

    That remains of an interrupted write, or with a full disk. After a crash, zeros may follow.
    """
    raw = written.raw if isinstance(written, Broken) else None
    return raw is not None and _as_stored(document).startswith(raw.rstrip(b"\0"))


def _convert(documents: _Intact, notes: list[str]) -> JSONObject:
    """Return the Zarr v3 document of a node, or raise the error that prevents its migration."""
    attributes, old = documents.get(".zattrs", {}), documents.get(".zarray")
    if old is None:
        return {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    if not isinstance(shape := old.get("shape"), list):
        why = f".zarray has the shape {shape!r}, expected a list"
        raise ValueError(f"{why}; if .zarray is damaged, correct or restore it")  # noqa: TRY004
    new = v3_document(old)
    metadata = ArrayV2Metadata.from_dict(old)
    fill_value = None if old.get("fill_value") is None else metadata.fill_value
    dtype = metadata.dtype.to_native_dtype()
    for_xarray, of_attributes = convert_attributes(old, attributes, dtype, fill_value)
    notes += of_attributes
    codecs = [codec["name"] for codec in new["codecs"]]
    if unspecified := [name for name in codecs if name.startswith("numcodecs.")]:
        notes.append(
            f"{' and '.join(unspecified)} in Zarr v3: only numcodecs defines that; other "
            "implementations, such as TensorStore, may not read the array"
        )
    return new | for_xarray


def _without_consolidated(document: JSONObject) -> JSONObject:
    return {name: value for name, value in document.items() if name != "consolidated_metadata"}


def _consolidated(path: str, document: JSONObject, below: dict[str, _Documents]) -> JSONObject:
    """Return a group's document with the documents of all nodes below it consolidated in it."""
    store = zarr.storage.MemoryStore()
    for other, documents in below.items():
        other_document = documents.get("zarr.json")
        if isinstance(other_document, Broken):
            why = explain_error(other_document.error)
            raise ValueError(f"it can't be consolidated: {why}")  # noqa: TRY004
        if other_document is not None:
            _put(store, join(other.removeprefix(path).lstrip("/"), "zarr.json"), other_document)
    _put(store, "zarr.json", document)
    zarr.consolidate_metadata(store, zarr_format=3)
    consolidated: Any = document_at(store, "zarr.json")
    return dict(consolidated)


def _put(store: Store, key: str, document: JSONObject | None) -> None:
    """Write a document, or remove it if it is None."""
    if document is None:
        sync(store.delete(key))
    else:
        sync(store.set(key, cpu.Buffer.from_bytes(_as_stored(document))))


def _as_stored(document: JSONObject) -> bytes:
    return json.dumps(document, indent=2).encode()


refuse_calls(__name__)
