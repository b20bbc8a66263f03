"""The one door for stores: how to ask for parts of a chunk, and what may be relied on.

Byte ranges are a short cut, taken where they are known to be sound. In doubt a chunk is read whole,
as zarr's own codec reads it: by the byte getter's `get`, or `get_sync` in zarr's fused pipeline.

| store                             | parts of a chunk | its length      | one version      |
|-----------------------------------|------------------|-----------------|------------------|
| LocalStore                        | of an open file  | of the file     | yes              |
| MemoryStore, a shard in memory    | whole: a view    | yes             | yes              |
| ZipStore: stored members          | of an open file  | in the archive  | yes; CRC ignored |
| ZipStore: compressed members      | whole            | yes             | yes              |
| ObjectStore                       | ranges           | in the answers  | by their `e_tag` |
| FsspecStore on local files, also  | of an open file  | of the file     | yes              |
| by reference                      |                  |                 |                  |
| FsspecStore on an asynchronous    | ranges           | of a reference  | not told         |
| file system, down to its leaf     |                  |                 |                  |
| FsspecStore on any other          | whole            | yes             | yes              |
| caching wrappers (CacheStore)     | whole            | yes             | yes              |
| any other                         | ranges           | not told        | not told         |

A store stands in its own line only where it is exactly that class, with the methods that zarr gave
it, behind an exact `StorePath`: whoever overrides a method wants it called. Everything else is "any
other", unless it stands on something of which no ranges may be read.

Ranges are asked for by the byte getter's own `get`, not by `Store.get_ranges`: a wrapper that
overrides `get`, to decrypt for example, inherits a `get_ranges` that goes past it.

To add a store, write a function that returns its source (`File`, `Remote`, or None for whole
chunks), add it to `_SOURCES`, and add its line above, in docs and in `tests/test_stores.py`.
"""

import contextlib
import io
import itertools
import logging
import numbers
import re
import types
import weakref
import zipfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr.abc.store
import zarr.codecs.sharding
import zarr.storage
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, ZipStore

from numcodecs_bytes._partial_read.open_file import (
    Bytes,
    OpenFile,
    open_local,
    read_from_file,
)

logger = logging.getLogger("numcodecs_bytes")

# Largest gaps that are read over, in bytes; `numcodecs_bytes.max_gap_bytes` in zarr's config
# overrides them. Of a file in the page cache, ranges of 8 bytes took 0.8 times as long as blocks
# that hold them where they are 4 KiB apart, 0.3 times at 8 KiB, 1.7 times at 2 KiB. A cold disk or
# a network file system, which takes 0.02 to 5 ms for a request, wants 50 KiB to some MiB:
# `OpenFile` notices, and reads blocks.
LOCAL_MAX_GAP_BYTES = 1 << 12
# Elsewhere: 30 ms at 100 MB/s are 3 MB, of which 10 requests at a time (zarr's `async.concurrency`)
# leave 0.3 MB each. In a simulation of such a store with rows, boxes, columns, steps and points,
# 256 KiB took at most 1.15 times as long as the best plan; 1 MiB, zarr's own gap, 3.3 times.
REMOTE_MAX_GAP_BYTES = 1 << 18

_WRAPPER = "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper"
_LOCAL = "fsspec.implementations.local.LocalFileSystem"
_REFERENCE = "fsspec.implementations.reference.ReferenceFileSystem"
_DIR = "fsspec.implementations.dirfs.DirFileSystem"
_GENERIC = "fsspec.generic.GenericFileSystem"
_CACHE = "zarr.experimental.cache_store.CacheStore"

_READING = ("get", "get_sync")
# The methods by which zarr reads. One that was replaced before this module was loaded is in another
# file than the class.
_OWN_METHODS = {
    owner: [getattr(owner, name, None) for name in _READING]
    for owner in (LocalStore, ZipStore, FsspecStore, ObjectStore, StorePath)
    if all(
        getattr(getattr(owner, name), "__code__", None) is not None
        and getattr(owner, name).__code__.co_filename == owner.__init__.__code__.co_filename
        for name in _READING
        if hasattr(owner, name)
    )
}


class Answer(NamedTuple):
    """What a store answers when asked for a range: bytes, and what it says of the whole chunk."""

    raw: Bytes
    num_bytes: int | None = None
    version: object = None


class File(NamedTuple):
    """A chunk, or a part of something, that can be opened and then read synchronously.

    Attributes
    ----------
    open : callable
        Returns the chunk as an open file.
    missing : tuple of type
        What it raises where there is no such chunk.
    in_thread : bool
        Whether to read in a thread, as the store itself does.
    """

    open: Callable[[], OpenFile]
    missing: tuple[type[Exception], ...]
    in_thread: bool = True
    max_gap_bytes: int = LOCAL_MAX_GAP_BYTES


class Remote(NamedTuple):
    """A chunk whose ranges are asked for, several at a time.

    Attributes
    ----------
    tells_missing : bool
        Whether it is certain that there is no such chunk where a range is answered with None.
    num_bytes : int or None
        Length of the chunk where it is known before anything is asked.
    get : callable or None
        Returns the answer for the range from a first byte to an end, None where there is no such
        chunk. None: ask the byte getter.
    """

    tells_missing: bool = False
    num_bytes: int | None = None
    get: Callable[[int, int], Awaitable[Answer | None]] | None = None
    max_gap_bytes: int = REMOTE_MAX_GAP_BYTES


Source = File | Remote


class ReadWhole(Exception):  # noqa: N818 # not an error
    """Ranges of this chunk can't be relied on: it is to be read whole.

    Parameters
    ----------
    refusal : str or None
        How the store shows that it has no ranges; None where it may be for this chunk alone.
    raw : numpy.ndarray or None
        The whole chunk, where it came already.
    """

    def __init__(self, refusal: str | None = None, raw: Bytes | None = None) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.raw = raw


def find_source(byte_getter: Any) -> Source | None:
    """Return how to read parts of a chunk; None where it is to be read whole."""
    store: Any = getattr(byte_getter, "store", None)
    kind = type(store)
    if kind is MemoryStore or type(byte_getter).__module__ == zarr.codecs.sharding.__name__:
        return None  # in memory
    if store in _refusing:
        return None
    find = _SOURCES.get(kind)
    is_own = _has_own_methods(byte_getter, StorePath)
    if find is not None and is_own and _has_own_methods(store, kind):
        # `get` opens a store that is closed.
        return find(store, byte_getter.path) if store._is_open else None  # noqa: SLF001
    return Remote() if _may_be_read_in_parts(store) else None


def _has_own_methods(instance: Any, owner: type[Any]) -> bool:
    """Whether an instance is of exactly this class, and reads as zarr made it read."""
    if type(instance) is not owner:
        return False
    return (
        [getattr(owner, name, None) for name in _READING] == _OWN_METHODS.get(owner)
        and "get" not in instance.__dict__
        and "get_sync" not in instance.__dict__
    )


def _may_be_read_in_parts(store: Any) -> bool:
    """Whether a store of any class stands on nothing of which no ranges may be read."""
    held: list[Any] = [store]
    seen: set[int] = set()
    for value in held:  # grows meanwhile
        kind = type(value)
        if kind in _PLAIN or id(value) in seen or len(seen) == MAX_HELD:
            continue
        seen.add(id(value))
        if issubclass(kind, ZipStore) or _is_instance(value, _CACHE):
            return False
        if not hasattr(kind, "cat_file"):
            held.extend(_held_by(value))
        elif not _has_sound_ranges(value):
            return False
    return True


# How many objects are looked at, from the store on.
MAX_HELD = 64
_PLAIN = {str, bytes, int, float, bool, type(None)}


def _held_by(value: Any) -> list[Any]:
    """Return what an object holds, without calling any of its methods: it may be a lazy proxy."""
    held: list[Any] = []
    kind = type(value)
    if issubclass(kind, (types.ModuleType, type)):
        return held
    # A proxy may have no object, another thread may add to a collection.
    with contextlib.suppress(Exception):
        if kind is types.FunctionType:
            return [cell.cell_contents for cell in value.__closure__ or ()]
        if kind is types.MethodType:
            return [value.__self__, value.__func__]
        if kind is partial:
            return [value.func, *value.args, *value.keywords.values()]
        if issubclass(kind, (dict, list, tuple)):
            values = value.values() if issubclass(kind, dict) else value
            return list(itertools.islice(values, MAX_HELD))
        if kind.__module__ != "builtins":
            held += list(object.__getattribute__(value, "__dict__").values())
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):  # not set
                held.append(object.__getattribute__(value, name))
    return held


def _is_instance(value: object, name: str) -> bool:
    """Whether a value is of a class of this name, which may not be imported for that."""
    return any(f"{c.__module__}.{c.__qualname__}" == name for c in type(value).__mro__)


def _is_exactly(value: object, name: str) -> bool:
    return f"{type(value).__module__}.{type(value).__qualname__}" == name


def _of_local_store(store: LocalStore, path: str) -> Source | None:
    if type(store.root) is not type(Path()):  # its `read_bytes` may decrypt, for example
        return None
    name = f"{store.root}/{path}"
    return File(partial(open_local, name), ALLOWED_EXCEPTIONS)


def _of_zip_store(store: ZipStore, path: str) -> File:
    return File(partial(_open_member, store, path), (KeyError,), in_thread=False)


def _open_member(store: ZipStore, path: str) -> OpenFile:
    with contextlib.ExitStack() as stack:
        stack.enter_context(store._lock)  # noqa: SLF001
        if not store._is_open:  # noqa: SLF001 # closed meanwhile
            raise ReadWhole
        archive = store._zf  # noqa: SLF001
        member = archive.getinfo(path)
        is_encrypted = member.flag_bits & 1
        if member.compress_type != zipfile.ZIP_STORED or is_encrypted:
            raise ReadWhole
        file = stack.enter_context(archive.open(member))
        return OpenFile(partial(read_from_file, file), stack.pop_all().close, member.file_size)


def _of_object_store(store: ObjectStore[Any], path: str) -> Remote:
    return Remote(tells_missing=True, get=partial(_get_object_range, store.store, path))


async def _get_object_range(store: Any, path: str, start: int, end: int) -> Answer | None:
    import obstore  # noqa: PLC0415 # whoever has such a store has the package

    try:
        response = await obstore.get_async(store, path, options={"range": (start, end)})
        raw: Any = await response.bytes_async()
    except ALLOWED_EXCEPTIONS:
        return None
    return Answer(np.frombuffer(raw, np.uint8), response.meta["size"], response.meta["e_tag"])


ALLOWED_EXCEPTIONS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def _of_fsspec_store(store: FsspecStore, path: str) -> Source | None:
    root = store.path.rstrip("/")
    path = (f"{root}/{path}" if root else path).rstrip("/")
    file_system = store.fs
    if _is_local(file_system):
        name = file_system.sync_fs._strip_protocol(path)  # noqa: SLF001
        return File(partial(open_local, name), store.allowed_exceptions)
    if not _has_sound_ranges(file_system):
        return None
    if _is_exactly(file_system, _REFERENCE):
        return _of_reference(file_system, path)
    # Others may be what a server answers that has no such range.
    return Remote(tells_missing=set(store.allowed_exceptions) <= set(ALLOWED_EXCEPTIONS))


def _is_local(file_system: Any) -> bool:
    """Whether it is fsspec's own file system for local files, in fsspec's own wrapper."""
    if not _is_exactly(file_system, _WRAPPER) or not _is_exactly(file_system.sync_fs, _LOCAL):
        return False
    # An instance whose method was replaced is not.
    inner = file_system.sync_fs
    wrapped = getattr(vars(file_system).get("_cat_file"), "__wrapped__", None)
    return wrapped == inner.cat_file and not vars(inner).keys() & {"cat_file", "open", "_open"}


def _has_sound_ranges(file_system: Any) -> bool:
    """Whether an fsspec file system may be asked for several ranges at a time.

    The synchronous ones may not: zip and tar files share one position, caches fill while they are
    read. Nor do those that stand on others, unless it is known on which.
    """
    if _is_instance(file_system, _REFERENCE):
        return all(_has_sound_ranges(leaf) for leaf in list(file_system.fss.values()))
    if _is_exactly(file_system, _DIR):
        return _has_sound_ranges(file_system.fs)
    if _is_exactly(file_system, _WRAPPER):
        return _is_local(file_system)
    if _is_exactly(file_system, _LOCAL):
        return True
    return (
        getattr(file_system, "async_impl", None) is True
        and not _is_instance(file_system, _WRAPPER)
        and not _is_instance(file_system, _GENERIC)
        and not any(hasattr(type(inner), "cat_file") for inner in _held_by(file_system))
    )


def _of_reference(file_system: Any, path: str) -> Source | None:
    """Return how to read what a reference points to; its table has the length."""
    from fsspec.core import split_protocol  # noqa: PLC0415 # whoever has references has the package

    try:
        url, offset, num_bytes = part = file_system.references[path]
        if not isinstance(part, list | tuple):
            return None
        url = file_system.target if url is None else url
        leaf = file_system.fss[split_protocol(url)[0]]
        if not _is_local(leaf):
            return Remote(num_bytes=int(num_bytes))
        name = leaf.sync_fs._strip_protocol(url)  # noqa: SLF001
        offset, num_bytes = int(offset), int(num_bytes)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # missing, inline, a whole file, or of a form that we don't know
    return File(partial(open_local, name, offset, num_bytes), ())


_SOURCES: dict[Any, Callable[[Any, str], Source | None]] = {
    LocalStore: _of_local_store,
    ZipStore: _of_zip_store,
    ObjectStore: _of_object_store,
    FsspecStore: _of_fsspec_store,
}


def configured_gap_bytes() -> int | None:
    """Return `numcodecs_bytes.max_gap_bytes` of zarr's config, the largest gap that is read over.

    Raises
    ------
    ValueError
        If it is no number of bytes.
    """
    gap = zarr.config.get("numcodecs_bytes.max_gap_bytes", None)
    if gap is None:
        return None
    if not isinstance(gap, numbers.Integral) or isinstance(gap, bool) or gap < 0:
        raise ValueError(
            "numcodecs_bytes.max_gap_bytes in zarr's config must be a number of bytes, 0 or more, "
            f"got {gap!r}"
        )
    return int(gap)


def describe(byte_getter: Any) -> str:
    """Return the name of a chunk, and of its store where the byte getter tells it."""
    coordinates = getattr(byte_getter, "chunk_coords", None)
    if coordinates is not None:
        return f"inner chunk {coordinates} of a shard"
    path = getattr(byte_getter, "path", None)
    if path is None:
        return "a chunk"
    return f"chunk {path!r} of {describe_store(getattr(byte_getter, 'store', None))}"


def describe_store(store: object) -> str:
    """Return the name of a store, which may not know one, or hold much in it."""
    try:
        name = " ".join(repr(store).split())
    except Exception:  # noqa: BLE001 # a name is not worth an error
        name = ""
    return name if 0 < len(name) <= MAX_NAME_LENGTH else type(store).__name__


MAX_NAME_LENGTH = 200

# How stores and servers refuse ranges for good. Subclasses of ValueError, such as JSONDecodeError,
# tell of something else.
_REFUSING_ERRORS = (TypeError, ValueError)
_REFUSING_STATUS = (405, 501)  # of HTTP
_REFUSALS = re.compile("content.?range|unexpected.?range|range.?not.?supported", re.IGNORECASE)


def explain_failure(error: BaseException, num_requests: int) -> ReadWhole | None:
    """Return why to read a chunk whole after a range failed; None where the failure is to go up.

    Where the chunk is not to be had at all, that is for zarr's own way to say. But whoever waited
    for a timeout is not to wait for another one, unless it is one request of several: of these, one
    fails several times as often as that for the whole chunk.
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    for cause in causes:
        if (
            isinstance(cause, (NotImplementedError, io.UnsupportedOperation))
            or type(cause) in _REFUSING_ERRORS
            or type(cause).__name__ == "NotSupportedError"  # obstore's
            or getattr(cause, "status", None) in _REFUSING_STATUS
            or (not isinstance(cause, OSError) and _REFUSALS.search(str(cause)))
        ):
            return ReadWhole(f"raises {type(cause).__name__}")
    return (
        None
        if isinstance(error, (TimeoutError, ConnectionError)) and num_requests == 1
        else ReadWhole()
    )


class _Stores:
    """Stores, weakly and by identity: they have no hash."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, store: object) -> bool:
        reference = self._references.get(id(store))
        return reference is not None and reference() is store

    def add(self, store: object) -> None:
        """Remember a store, where its class admits of weak references."""
        key = id(store)
        with contextlib.suppress(TypeError):
            self._references[key] = weakref.ref(store, lambda _: self._references.pop(key, None))


answering = _Stores()  # those that answered a range as they should
_refusing = _Stores()
_warned_of: set[type] = set()


def remember_refusal(store: Any, refusal: str, num_bytes: int) -> None:
    """Read whole chunks of a store from now on, and say so: loudly of the first of its class."""
    if store is None or store in _refusing:
        return
    _refusing.add(store)
    kind = type(store)
    if store in _refusing or kind not in _warned_of:
        logger.log(
            logging.INFO if kind in _warned_of else logging.WARNING,
            "%s does not support byte ranges (it %s): whole chunks are read instead, %d bytes for "
            "a part of one",
            describe_store(store),
            refusal,
            num_bytes,
        )
    _warned_of.add(kind)
