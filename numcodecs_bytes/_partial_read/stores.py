"""Everything specific to stores: how to read parts of a chunk, and what can be relied on.

Range requests are an optimization, used only if they are known to be reliable. In doubt a chunk is
read whole, as zarr's own codec does: by the byte getter's `get`, or `get_sync` in zarr's fused
pipeline.

| store                             | parts of a chunk | its length      | one version      |
|-----------------------------------|------------------|-----------------|------------------|
| LocalStore                        | of an open file  | of the file     | yes              |
| MemoryStore, a shard in memory    | whole: a view    | yes             | yes              |
| ZipStore: stored members          | of an open file  | in the archive  | yes; CRC ignored |
| ZipStore: compressed members      | whole            | yes             | yes              |
| ObjectStore                       | ranges           | in responses    | by their `e_tag` |
| FsspecStore on local files, also  | of an open file  | of the file     | yes              |
| by reference                      |                  |                 |                  |
| FsspecStore on an asynchronous    | ranges           | of a reference  | unknown          |
| file system, down to its leaf     |                  |                 |                  |
| FsspecStore on any other          | whole            | yes             | yes              |
| caching wrappers (CacheStore)     | whole            | yes             | yes              |
| any other                         | ranges           | unknown         | unknown          |

"Its length" is how the length of the chunk is checked, "one version" whether all parts of a chunk
are known to come from the same version of it.

A store has its own line only if it is exactly that class, with zarr's own methods, and is accessed
through an exact `StorePath`: an overridden method must be called. Everything else is "any other",
or read whole if it wraps something without reliable range requests.

Ranges are requested with the byte getter's own `get`, not with `Store.get_ranges`: a wrapper that
overrides `get`, to decrypt for example, inherits a `get_ranges` that bypasses it.

To add a store:

1. Write a function ``_of_...(store, path)`` that returns its source: a `File`, a `Remote`, or None
   for whole chunks. What a `File` opens may raise `ReadWhole`, for example if the store was closed
   meanwhile (see `_open_member`).
2. Add it to `_SOURCES` under the exact class of the store, and add that class to `_OWN_METHODS`, or
   `find_source` never calls the function. The class must define ``__init__``, ``get`` and, if it
   has one, ``get_sync`` in the same file.
3. If it has its own way to refuse range requests, add that to `explain_failure`.
4. If wrappers of it must read whole chunks, exclude it in `_may_be_read_in_parts`, or an fsspec
   file system in `_has_sound_ranges`.
5. Add a line to the table above, to that in ``docs/partial-reads.md`` and to `TABLE` in
   ``tests/test_stores.py``.
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

# Largest gaps over which ranges are coalesced, in bytes; `numcodecs_bytes.max_gap_bytes` in zarr's
# config overrides them. For a file in the page cache, reading ranges of 8 bytes took 1.7 times as
# long as reading the blocks that contain them at distances of 2 KiB, 0.8 times at 4 KiB and 0.3
# times at 8 KiB. A cold disk or a network file system, which takes 0.02 to 5 ms per request, would
# need 50 KiB to several MiB: `OpenFile` detects these and reads blocks.
LOCAL_MAX_GAP_BYTES = 1 << 12
# For other stores: a latency of 30 ms at 100 MB/s is worth 3 MB, or 0.3 MB for each of 10
# concurrent requests (zarr's `async.concurrency`). In a simulation of such a store with rows,
# boxes, columns, steps and points, 256 KiB took at most 1.15 times as long as the best plan; 1 MiB,
# zarr's own gap, took 3.3 times as long.
REMOTE_MAX_GAP_BYTES = 1 << 18

_WRAPPER = "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper"
_LOCAL = "fsspec.implementations.local.LocalFileSystem"
_REFERENCE = "fsspec.implementations.reference.ReferenceFileSystem"
_DIR = "fsspec.implementations.dirfs.DirFileSystem"
_GENERIC = "fsspec.generic.GenericFileSystem"
_CACHE = "zarr.experimental.cache_store.CacheStore"

_READING = ("get", "get_sync")
# The methods that zarr uses for reading. A method that was replaced before this module was imported
# comes from another file than its class; such a class is left out.
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
    """The response to a range request.

    Attributes
    ----------
    raw : numpy.ndarray
        The bytes of the range, uint8.
    num_bytes : int or None
        Length of the whole chunk, if the store provides it.
    version : object
        Identifies the version of the chunk, if the store provides it.
    """

    raw: Bytes
    num_bytes: int | None = None
    version: object = None


class File(NamedTuple):
    """A chunk in a file, or in part of one, that is opened and then read synchronously.

    Attributes
    ----------
    open : callable
        Returns the chunk as an open file.
    missing : tuple of type
        The exceptions that `open` raises if the chunk does not exist.
    in_thread : bool
        Whether to read in a thread, like the store itself does.
    max_gap_bytes : int
        Largest gap over which ranges are coalesced.
    """

    open: Callable[[], OpenFile]
    missing: tuple[type[Exception], ...]
    in_thread: bool = True
    max_gap_bytes: int = LOCAL_MAX_GAP_BYTES


class Remote(NamedTuple):
    """A chunk that is read with concurrent range requests.

    Attributes
    ----------
    tells_missing : bool
        Whether None as the response to a range proves that the chunk does not exist.
    num_bytes : int or None
        Length of the chunk, if known before the first request.
    get : callable or None
        Takes the first byte and the end (exclusive) of a range and returns the answer, or None if
        the chunk does not exist. If this is None, the byte getter is used.
    max_gap_bytes : int
        Largest gap over which ranges are coalesced.
    """

    tells_missing: bool = False
    num_bytes: int | None = None
    get: Callable[[int, int], Awaitable[Answer | None]] | None = None
    max_gap_bytes: int = REMOTE_MAX_GAP_BYTES


Source = File | Remote


class ReadWhole(Exception):  # noqa: N818 # not an error
    """Ranges of this chunk are not reliable: it must be read whole.

    Parameters
    ----------
    refusal : str or None
        How the store showed that it does not support ranges; None if that may be specific to this
        chunk.
    raw : numpy.ndarray or None
        The whole chunk, if it was received already.
    """

    def __init__(self, refusal: str | None = None, raw: Bytes | None = None) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.raw = raw


def find_source(byte_getter: Any) -> Source | None:
    """Return how to read parts of a chunk, or None if it must be read whole."""
    store: Any = getattr(byte_getter, "store", None)
    kind = type(store)
    if kind is MemoryStore or type(byte_getter).__module__ == zarr.codecs.sharding.__name__:
        return None  # in memory
    if store in _refusing:
        return None
    find = _SOURCES.get(kind)
    is_own = _has_own_methods(byte_getter, StorePath)
    if find is not None and is_own and _has_own_methods(store, kind):
        # A closed store is read whole, because `get` opens it.
        return find(store, byte_getter.path) if store._is_open else None  # noqa: SLF001
    return Remote() if _may_be_read_in_parts(store) else None


def _has_own_methods(instance: Any, owner: type[Any]) -> bool:
    """Whether an instance is of exactly this class, and its reading methods are zarr's own."""
    if type(instance) is not owner:
        return False
    return (
        [getattr(owner, name, None) for name in _READING] == _OWN_METHODS.get(owner)
        and "get" not in instance.__dict__
        and "get_sync" not in instance.__dict__
    )


def _may_be_read_in_parts(store: Any) -> bool:
    """Whether a store of any class wraps nothing that must be read whole."""
    held: list[Any] = [store]
    seen: set[int] = set()
    for value in held:  # grows during the iteration
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


# How many objects are inspected, starting with the store.
MAX_HELD = 64
_PLAIN = {str, bytes, int, float, bool, type(None)}


def _held_by(value: Any) -> list[Any]:
    """Return what an object holds, without calling its methods, because it may be a lazy proxy."""
    held: list[Any] = []
    kind = type(value)
    if issubclass(kind, (types.ModuleType, type)):
        return held
    # A proxy may be unbound, or another thread may be adding to a collection.
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
    """Whether a value is an instance of the class of this name, without importing that class."""
    return any(f"{c.__module__}.{c.__qualname__}" == name for c in type(value).__mro__)


def _is_exactly(value: object, name: str) -> bool:
    return f"{type(value).__module__}.{type(value).__qualname__}" == name


def _of_local_store(store: LocalStore, path: str) -> Source | None:
    if type(store.root) is not type(Path()):  # `read_bytes` of a subclass may decrypt, for example
        return None
    name = f"{store.root}/{path}"
    return File(partial(open_local, name), ALLOWED_EXCEPTIONS)


def _of_zip_store(store: ZipStore, path: str) -> File:
    return File(partial(_open_member, store, path), (KeyError,), in_thread=False)


def _open_member(store: ZipStore, path: str) -> OpenFile:
    with contextlib.ExitStack() as stack:
        stack.enter_context(store._lock)  # noqa: SLF001
        if not store._is_open:  # noqa: SLF001 # closed in the meantime
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
    import obstore  # noqa: PLC0415 # optional, but installed if there is such a store

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
    # Other exceptions may mean that the server does not support the range.
    return Remote(tells_missing=set(store.allowed_exceptions) <= set(ALLOWED_EXCEPTIONS))


def _is_local(file_system: Any) -> bool:
    """Whether a file system is fsspec's own local file system, in fsspec's own wrapper."""
    if not _is_exactly(file_system, _WRAPPER) or not _is_exactly(file_system.sync_fs, _LOCAL):
        return False
    # Not if a method of the instance was replaced.
    inner = file_system.sync_fs
    wrapped = getattr(vars(file_system).get("_cat_file"), "__wrapped__", None)
    return wrapped == inner.cat_file and not vars(inner).keys() & {"cat_file", "open", "_open"}


def _has_sound_ranges(file_system: Any) -> bool:
    """Whether an fsspec file system supports concurrent range requests.

    Synchronous file systems do not: zip and tar files share one file position, and caches fill up
    while they are read. File systems that wrap others do not either, unless they are known.
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
    """Return how to read what a reference points to; the reference contains its length."""
    from fsspec.core import split_protocol  # noqa: PLC0415 # optional, but installed with references

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
        return None  # missing, inline, a whole file, or of an unknown form
    return File(partial(open_local, name, offset, num_bytes), ())


_SOURCES: dict[Any, Callable[[Any, str], Source | None]] = {
    LocalStore: _of_local_store,
    ZipStore: _of_zip_store,
    ObjectStore: _of_object_store,
    FsspecStore: _of_fsspec_store,
}


def configured_gap_bytes() -> int | None:
    """Return `numcodecs_bytes.max_gap_bytes` from zarr's config, or None if it is not set.

    Raises
    ------
    ValueError
        If it is not a non-negative integer.
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
    """Return the name of a chunk, and of its store if the byte getter has one."""
    coordinates = getattr(byte_getter, "chunk_coords", None)
    if coordinates is not None:
        return f"inner chunk {coordinates} of a shard"
    path = getattr(byte_getter, "path", None)
    if path is None:
        return "a chunk"
    return f"chunk {path!r} of {describe_store(getattr(byte_getter, 'store', None))}"


def describe_store(store: object) -> str:
    """Return the `repr` of a store, or the name of its class if that fails or is too long."""
    try:
        name = " ".join(repr(store).split())
    except Exception:  # noqa: BLE001 # a name is not worth an error
        name = ""
    return name if 0 < len(name) <= MAX_NAME_LENGTH else type(store).__name__


MAX_NAME_LENGTH = 200

# How stores and servers show that they do not support ranges at all. Subclasses of ValueError, such
# as JSONDecodeError, have other causes.
_REFUSING_ERRORS = (TypeError, ValueError)
_REFUSING_STATUS = (405, 501)  # HTTP status codes
_REFUSALS = re.compile("content.?range|unexpected.?range|range.?not.?supported", re.IGNORECASE)


def explain_failure(error: BaseException, num_requests: int) -> ReadWhole | None:
    """Return why to read a chunk whole after a range request failed; None to raise its error.

    If the chunk can't be read at all, reading it whole raises zarr's own error. But after a timeout
    or a lost connection the caller should not wait for another one, unless this was one of several
    requests: one of many fails more often than the single request for the whole chunk.
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
    """A set of weakly referenced stores, compared by identity because they are not hashable."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def __contains__(self, store: object) -> bool:
        reference = self._references.get(id(store))
        return reference is not None and reference() is store

    def add(self, store: object) -> None:
        """Remember a store, if its class supports weak references."""
        key = id(store)
        with contextlib.suppress(TypeError):
            self._references[key] = weakref.ref(store, lambda _: self._references.pop(key, None))


answering = _Stores()  # those that answered a range request correctly
_refusing = _Stores()
_warned_of: set[type] = set()


def remember_refusal(store: Any, refusal: str, num_bytes: int) -> None:
    """Read whole chunks from a store from now on, and log it: a warning, then INFO, per class."""
    if store is None or store in _refusing:
        return
    _refusing.add(store)
    kind = type(store)
    if store in _refusing or kind not in _warned_of:
        logger.log(
            logging.INFO if kind in _warned_of else logging.WARNING,
            "%s does not support byte ranges (it %s): whole chunks of %d bytes are read instead",
            describe_store(store),
            refusal,
            num_bytes,
        )
    _warned_of.add(kind)
