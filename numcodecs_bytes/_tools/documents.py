"""Walks the folders of a store, reads the metadata documents in them, and compares these."""

import contextlib
import json
import os
import re
import reprlib
import stat
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, ZipStore

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.lengths import explain_stand_in
from numcodecs_bytes._sources.obstore_local import folder_of
from numcodecs_bytes._zarr_api.file_systems import is_local, unwrapped
from numcodecs_bytes._zarr_api.private_names import ensure_open

T = TypeVar("T")

METADATA_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
# What Zarr and NCZarr store next to chunks, and in groups.
METADATA = re.compile(r"zarr\.json|\.z(array|attrs|group|metadata)|\.ncz(array|attr|var)")

# A member of a zip archive may be a thousand times as long as what is stored of it.
_MAX_MEMBER_BYTES = 100_000_000

_MEND = "correct it, or restore it from a backup"


@dataclass(frozen=True)
class Broken:
    """A document that can't be read.

    The error is what the store raises or, if what it returns is no JSON object, a ValueError that
    names the document.
    """

    error: Exception
    raw: bytes | None = None  # what is stored, if that is not JSON: perhaps a part of a document


# A document that is found, broken, or missing.
Document = JSONObject | Broken | None


def walk(
    store: Store,
    visit: Callable[[str], tuple[T, list[str]]],
    start: str = "",
    may_repeat: Callable[[str], bool] = lambda _: False,
) -> Iterator[T]:
    """Yield what `visit` finds in each folder, parents first.

    Given the path of a folder, `visit` returns that, and the names of the folders to visit in it.
    A local folder that several paths lead to, by symbolic links, is visited by the first of them,
    preferably one without links, and by those that may repeat it: links may lead back, and two that
    do make 2^40 paths.
    """
    sync(ensure_open(store))
    paths, links = [start], list[str]()
    seen: set[Hashable] = set()
    while paths or links:
        path = (paths or links).pop()
        if (local := local_path(store, path)) is not None:
            with contextlib.suppress(OSError):  # it is raised when the folder is read
                status = local.stat()
                # Some file systems number no files.
                folder = status.st_dev, status.st_ino or os.path.realpath(local)
                if folder in seen and not may_repeat(path):
                    continue
                seen.add(folder)
        found, names = visit(path)
        yield found
        for each in [join(path, name) for name in reversed(names)]:
            below = local_path(store, each)
            is_link = below is not None and os.path.islink(below)  # noqa: PTH114 # raises nothing
            (links if is_link else paths).append(each)


def local_path(store: Any, path: str) -> Path | None:
    """Return the local path of a folder in a store, or None."""
    if isinstance(store, LocalStore):
        return store.root / path
    files = unwrapped(getattr(store, "fs", None))
    if is_local(files):
        return Path(files._strip_protocol(store.path), path)
    folder = folder_of(getattr(store, "store", None))
    return None if folder is None else Path(folder, path)


def leads_nowhere(store: Any, path: str) -> bool:
    """Whether a local file or folder is a symbolic link to one that is missing."""
    local = local_path(store, path)
    # Unlike those of Path, these raise no error.
    return local is not None and os.path.islink(local) and not os.path.exists(local)  # noqa: PTH110, PTH114


def names_in(store: Store, path: str) -> list[str]:
    """Return the names in a folder of a store; an empty list if the store can't list."""

    async def names() -> list[str]:  # the path of a file lists ""
        return sorted([name async for name in store.list_dir(path) if name])

    try:
        found = sync(names()) if store.supports_listing else []
    except NotADirectoryError:
        return []
    if len(found) == 1 and path.split("/")[-8:] == found * 8:
        why = "the store lists a folder as part of itself"
        raise ValueError(f"{why}: download the zip file, or upgrade zarr")
    return found


def join(path: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{path}/{name}".strip("/")


def groups_above(path: str) -> Iterator[str]:
    """Yield the paths of the groups above a node, the root last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def document_at(store: Store, key: str) -> Document:
    """Return a JSON object in the store; None if it is missing."""
    raw = value_or_error(_read, store, key)
    if raw is None or isinstance(raw, FileNotFoundError | NotADirectoryError):
        if leads_nowhere(store, key):
            missing = f"{key} is a symbolic link to a missing file: restore that file first"
            return Broken(ValueError(f"{missing} (git annex get, for example)"))
        return None
    if isinstance(raw, Exception) and "kind: NotADirectory," in str(raw):  # of obstore
        return None
    if isinstance(raw, Exception):
        return Broken(raw)
    try:
        return object_of(json.loads(raw), key)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        what = error if raw.strip(b"\0 \n") else "it is empty"
        mend = "consolidate metadata again" if key.endswith(".zmetadata") else _MEND
        why = explain_stand_in(raw) or f"{what}; {mend}"
        return Broken(ValueError(f"{key} is not JSON: {why}"), raw)
    except RecursionError:
        return Broken(ValueError(f"{key} is nested too deeply; {_MEND}"))
    except ValueError:  # its message advises to change a setting of Python
        return Broken(ValueError(f"{key} has a number with too many digits; {_MEND}"))


def _read(store: Store, key: str) -> bytes | None:
    """Return a document in a store, None if it is missing, or raise an error."""
    if isinstance(store, LocalStore):
        mode = (store.root / key).stat().st_mode  # Path.is_file hides some errors
        if stat.S_ISDIR(mode):
            raise ValueError(f"{key} is a folder, which zarr ignores")
        if not stat.S_ISREG(mode):
            return None  # reading a pipe, for example, might never end
    is_zip = isinstance(store, ZipStore)
    part = RangeByteRequest(0, _MAX_MEMBER_BYTES + 1) if is_zip else None
    raw = sync(store.get(key, default_buffer_prototype(), part))
    if raw is not None and is_zip and len(raw) > _MAX_MEMBER_BYTES:
        raise ValueError(f"{key} has more than {_MAX_MEMBER_BYTES} bytes, so it was not read")
    return None if raw is None else raw.to_bytes()


def object_of(data: object, key: str) -> JSONObject | Broken:
    """Return what the JSON at a key holds; it is broken unless that is an object."""
    if isinstance(data, dict):
        return data
    return Broken(ValueError(f"{key} is not a JSON object, but {reprlib.repr(data)}; {_MEND}"))


def as_json(value: object) -> str:
    """Return a value as JSON, in which NaN equals itself."""
    return json.dumps(value, sort_keys=True)


def differing(document: JSONObject, other: JSONObject) -> str:
    """Return the names whose values differ in two documents."""
    names = {**document, **other}
    return ", ".join(n for n in names if as_json(document.get(n)) != as_json(other.get(n)))
