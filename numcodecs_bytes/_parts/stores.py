"""Everything specific to stores: how to read parts of a chunk, and what can be relied on.

Range requests are an optimization, used only if they are known to be reliable. In doubt a chunk is
read whole, as zarr's own codec does: by the byte getter's `get`, or `get_sync` in zarr's fused
pipeline.

``docs/partial-reads.md`` has a table of the stores: how parts of a chunk are read, whether its
length is checked, whether all parts are known to come from one version of a chunk that is replaced,
and whether parts are written in place.

A store is known only if it is exactly the class of a line, with the methods of that class, and is
accessed through an exact `StorePath`: an overridden method must be called, and what it does with a
range can't be known. Nothing is inferred from what a store contains. Users name further classes in
the option `stores_with_ranges`; they promise what ``docs/partial-reads.md`` lists.

Ranges are requested with the byte getter's own `get`, not with `Store.get_ranges`: a wrapper that
overrides `get`, to decrypt for example, inherits a `get_ranges` that bypasses it.

To add a store:

1. Write a function ``_of_...(store)`` that returns a function from paths to sources: `File`,
   `Remote`, or `Whole`. What a `File` opens may raise `ReadWhole`, for example if the store was
   closed meanwhile (see `_member_of`). If several chunks may lie in one file or object, say which
   (`File.key` and `File.part`, `Remote.object`): it is opened once, or read in few requests.
2. If it is a class of zarr, add it to `_SOURCES`, and to `_OWN_METHODS`, or `find_source` never
   calls the function. The class must define ``__init__``, ``get`` and, if it has one, ``get_sync``
   in the same file. If it is a class of another package, add its name to `_SOURCES_BY_NAME`; an
   fsspec file system only to `_FILE_SYSTEMS`.
3. If it has its own way to refuse range requests, or to lose connections, add that to
   ``refusals.py``.
4. Add a line to the table in ``docs/partial-reads.md`` and to `TABLE` in
   ``tests/parts/test_stores.py``.
"""

import logging
import os
import re
import struct
import sys
import weakref
import zipfile
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr.abc.store
import zarr.codecs.sharding
import zarr.storage
from zarr.storage import (
    FsspecStore,
    LocalStore,
    MemoryStore,
    ObjectStore,
    StorePath,
    WrapperStore,
    ZipStore,
)

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._options import stores_with_ranges
from numcodecs_bytes._parts.open_file import BLOCK_BYTES, OpenFile, open_local
from numcodecs_bytes._parts.ranges import Coalescing, Costs
from numcodecs_bytes._parts.refusals import ReadWhole, odd, refusing, status_of

logger = logging.getLogger("numcodecs_bytes")
_told_of: weakref.WeakSet[type] = weakref.WeakSet()

# Largest gaps over which ranges are coalesced, in bytes; `numcodecs_bytes.max_gap_bytes` in zarr's
# config overrides them. For a file in the page cache, reading ranges of 8 bytes took 1.7 times as
# long as reading the blocks that contain them at distances of 2 KiB, 0.8 times at 4 KiB and 0.3
# times at 8 KiB. A cold disk or a network file system, which takes 0.02 to 5 ms per request, would
# need 50 KiB to several MiB: `OpenFile` detects these and reads blocks.
LOCAL_MAX_GAP_BYTES = 1 << 12
# In a file in the page cache, 64 KiB are read while a plan is made, 2.25 MiB while several pieces
# are planned and assembled, and 48 KiB in the time of one piece. Of 27 selections of chunks of 1 to
# 128 MiB, one took 1.27 times as long with this as with the better way, the others at most 1.1.
# Blocks smaller than 1 MiB make threads wait for each other more often. From a disk, a piece takes
# 60 to 100 us, over a network 500 us, in which each reads about 96 KiB: 15 cold pieces of 1 MiB
# took 1.25 times as long as all of it.
LOCAL_COSTS = Costs(
    whole_bytes=1 << 16,
    slab_bytes=1 << 23,
    plan_bytes=9 << 18,
    piece_bytes=3 << 14,
    cold_piece_bytes=3 << 15,
    block_bytes=1 << 20,
)
# For other stores: a latency of 30 ms at 100 MB/s is worth 3 MB, or 0.3 MB for each of 10
# concurrent requests (zarr's `async.concurrency`) if a chunk has these to itself. In a simulation
# of such a store with rows, boxes, columns, steps and points, 256 KiB took at most 1.15 times as
# long as the best plan; 1 MiB, zarr's own gap, took 3.3 times as long. But where 10 chunks were
# fetched at once, 256 KiB took 3.5 times as long as whole chunks.
REMOTE_MAX_GAP_BYTES = 1 << 18
# `latency_bytes` is what was said above, less a little. `part_bytes`: parts of 8 MiB of 32 took
# 0.46 times as long as one request at 30 ms and 100 MB/s, parts of 2 MiB 0.4; but at 1 ms and
# 1 GB/s, these took 1.2 times as long as parts of 8 MiB, and parts of 1 MiB 1.5 times.
# `beside_bytes`: zarr alone fetches nothing that lies between chunks; 30 ms at 10 MB/s, or 3 ms at
# 100 MB/s, are worth 30 KB for each of ten requests (computed). Plans, and what assembles their
# pieces, cost nothing there.
REMOTE_COSTS = Costs(latency_bytes=2_500_000, part_bytes=1 << 23, beside_bytes=1 << 14)

_WRAPPER = "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper"
_LOCAL = "fsspec.implementations.local.LocalFileSystem"
_REFERENCE = "fsspec.implementations.reference.ReferenceFileSystem"
_DIR = "fsspec.implementations.dirfs.DirFileSystem"
_HTTP = "fsspec.implementations.http.HTTPFileSystem"
_OBSTORE = "obstore.fsspec.FsspecStore"
# File systems that answer concurrent range requests.
_FILE_SYSTEMS = {
    _DIR,  # like the one below it
    _REFERENCE,  # the same
    "adlfs.spec.AzureBlobFileSystem",
    _HTTP,
    "gcsfs.core.GCSFileSystem",
    "gcsfs.extended_gcsfs.ExtendedGcsFileSystem",
    _OBSTORE,
    "s3fs.core.S3FileSystem",
}
# The methods that read a file, of asynchronous file systems and of the local one.
_READING_OF_FSSPEC = ("_cat_file", "_cat_common")
_READING_OF_LOCAL = ("cat_file", "open", "_open")
# Arguments of aiohttp's client that leave the responses as they are. A list of those that do not
# would be shorter, but trust what new versions add, as they did `middlewares`.
_CLIENT_OPTIONS = {
    *("auth", "connector", "connector_owner", "cookie_jar", "cookies", "headers", "loop"),
    *("proxy", "proxy_auth", "raise_for_status", "read_bufsize", "timeout", "trust_env"),
}

_PATH = type(Path())
_READING = ("get", "get_sync", "_get")
# The methods that zarr uses for reading. If one was replaced before this module was imported, by
# one that decrypts for example, it must be called, so its class is left out. Only the file of its
# code shows that: `functools.wraps` copies the module and the name.
_OWN_METHODS: dict[type[Any], tuple[Callable[[Any], Any], Any]] = {}  # how to look them up, too
for _owner in (LocalStore, ZipStore, FsspecStore, ObjectStore, WrapperStore, StorePath):
    _names = [name for name in _READING if hasattr(_owner, name)]
    _codes = [getattr(getattr(_owner, name), "__code__", None) for name in _names]
    _file = _owner.__init__.__code__.co_filename
    if all(_code is not None and _code.co_filename == _file for _code in _codes):
        _look_up = attrgetter(*_names)
        _OWN_METHODS[_owner] = _look_up, _look_up(_owner)


class Answer(NamedTuple):
    """The response to a range request.

    Attributes
    ----------
    read : callable
        Returns the bytes of the range, which may still be on their way, as uint8.
    num_bytes : int or None
        Length of the whole chunk, if the store provides it.
    version : object
        Identifies the version of the chunk, if the store provides it.
    """

    read: Callable[[], Awaitable[UInt8Array]]
    num_bytes: int | None = None
    version: object = None

    @classmethod
    def of(cls, raw: UInt8Array) -> "Answer":
        """Return the answer whose bytes are there, and of which nothing else is known."""

        async def read() -> UInt8Array:
            return raw

        return cls(read)


class File(NamedTuple):
    """A chunk in a file, or in part of one, that is opened and then read synchronously.

    Attributes
    ----------
    open_object : callable
        Opens the file.
    missing : tuple of type
        The exceptions that `open` raises if the chunk does not exist.
    in_thread : bool
        Whether to read in a thread, like the store itself does.
    place : str
        Where files are opened as quickly as this one: the root of the store.
    key : object
        Identifies a file in which several chunks lie; None if it is the chunk.
    part : callable or None
        Takes the open file, and returns the chunk in it.
    """

    open_object: Callable[[], OpenFile]
    missing: tuple[type[Exception], ...]
    in_thread: bool = True
    place: str = ""
    key: Any = None
    part: Callable[[OpenFile], OpenFile] | None = None

    def open(self, file: OpenFile | None = None) -> OpenFile:
        """Return the chunk as an open file: part of a file that is open already, if it is given."""
        if file is None:
            file = self.open_object()
        if self.part is None:
            return file
        try:
            return self.part(file)
        except BaseException:
            file.close()
            raise


class Object(NamedTuple):
    """An object in which chunks lie.

    Attributes
    ----------
    key : tuple
        Identifies it.
    start : int
        Where a chunk begins in it, in bytes.
    get : callable
        See `Remote`.
    """

    key: tuple[Any, ...]
    start: int
    get: "GetRange"


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
        the chunk does not exist. If the end is None, the first byte is negative, and counts from
        the end of the chunk. If `get` is None, the byte getter is used.
    tells_version : bool
        Whether the answers of `get` tell the version of the chunk.
    max_gap_bytes : int
        Largest gap over which ranges are coalesced.
    costs : Costs
        What else than bytes takes time.
    in_one_request : bool
        Whether only one range of a chunk may be requested, because two might be of different
        versions.
    max_parts : int
        In how many requests a long range may be fetched.
    object : Object or None
        In which object it lies, perhaps together with others; None if that is not known.
    """

    tells_missing: bool = True
    num_bytes: int | None = None
    get: "GetRange | None" = None
    tells_version: bool = False
    max_gap_bytes: int = REMOTE_MAX_GAP_BYTES
    costs: Costs = REMOTE_COSTS
    in_one_request: bool = False
    max_parts: int = 1
    object: Object | None = None


class Whole(NamedTuple):
    """A chunk that is read whole, like zarr's own codec does.

    Attributes
    ----------
    why : str
        What in its store prevents partial reads; empty if nothing does.
    """

    why: str = ""


def coalescing_of(source: File | Remote, gap: int | None) -> Coalescing:
    """Return how pieces are coalesced; `gap` is the largest gap in bytes, if the user set it."""
    if isinstance(source, File):
        return local_coalescing(gap)
    max_gap_bytes = source.max_gap_bytes if gap is None else gap
    if source.in_one_request:
        max_gap_bytes = sys.maxsize
    return Coalescing(max_gap_bytes, dense_bytes=max_gap_bytes if gap is None else 0)


def local_coalescing(gap: int | None, costs: Costs = LOCAL_COSTS) -> Coalescing:
    """Return how pieces of files are coalesced; see `coalescing_of`."""
    if gap is not None:
        return Coalescing(gap, BLOCK_BYTES, costs=costs.exact)
    most = LOCAL_MAX_GAP_BYTES
    return Coalescing(most, BLOCK_BYTES, dense_bytes=most, costs=costs)


_WRITING = ("set", "set_sync", "_set", "set_if_not_exists", "delete", "delete_sync")
_OWN_WRITING = {
    owner: [getattr(owner, name, None) for name in _WRITING] for owner in (LocalStore, StorePath)
}


def writable_file_finder() -> Callable[[Any], str | Whole]:
    """Return a function that returns the path of a chunk's file, or why it is not written in place.

    Only of a LocalStore, exactly that class, with its own methods: others may do more than write.
    Like `source_finder`, it judges a store once for many of its chunks.
    """
    judged: Any = None
    why: str | None = None

    def find(byte_setter: Any) -> str | Whole:
        nonlocal judged, why
        if type(byte_setter) is not StorePath:
            return Whole(f"{_name_of(type(byte_setter))} is not a StorePath")
        store: Any = byte_setter.store
        if judged is None or store is not judged:
            judged, why = store, _why_not_writable(byte_setter)
        if why is None and not _attributes(byte_setter).isdisjoint((*_WRITING, *_READING)):
            return Whole("methods of a StorePath are replaced")
        return f"{store.root}/{byte_setter.path}" if why is None else Whole(why)

    return find


def _why_not_writable(path: StorePath) -> str | None:
    store = path.store
    if type(store) is not LocalStore:
        return f"{_name_of(type(store))} is not zarr's LocalStore"
    for instance, owner in ((path, StorePath), (store, LocalStore)):
        own = [getattr(owner, name, None) for name in _WRITING]
        is_own = own == _OWN_WRITING[owner] and _attributes(instance).isdisjoint(_WRITING)
        if not is_own or not _has_own_methods(instance, owner):
            return f"methods of {_name_of(owner)} are replaced"
    if type(store.root) is not _PATH:
        return f"{_name_of(type(store.root))} is not a path of Python's own"
    if store.read_only or not store._is_open:  # noqa: SLF001
        return "the store is read-only, or closed"
    return None


Source = File | Remote | Whole
GetRange = Callable[[int, int | None], Awaitable[Answer | None]]
SourceOf = Callable[[str], Source]  # takes the path of a chunk in its store


def find_source(byte_getter: object) -> Source:
    """Return how to read parts of a chunk."""
    if type(byte_getter) is StorePath and _has_own_methods(byte_getter, StorePath):
        return _of_store(byte_getter.store)(byte_getter.path)
    why = f"{_name_of(type(byte_getter))} is not a StorePath"
    return Whole("" if is_in_shard(byte_getter) else why)


def is_in_shard(byte_getter: object) -> bool:
    """Whether a byte getter or setter is that of an inner chunk, in a shard in memory."""
    return type(byte_getter).__module__ == zarr.codecs.sharding.__name__


def source_finder() -> Callable[[object], Source]:
    """Return a function like `find_source` that judges a store once for many of its chunks."""
    judged: Any = None
    source_of = _always(Whole())

    def find(byte_getter: Any) -> Source:
        nonlocal judged, source_of
        is_plain = type(byte_getter) is StorePath
        if not (is_plain and byte_getter.__dict__.keys().isdisjoint(_READING)) or (
            byte_getter.store is not judged and not _has_own_methods(byte_getter, StorePath)
        ):
            return find_source(byte_getter)
        if byte_getter.store is not judged:
            judged, source_of = byte_getter.store, _of_store(byte_getter.store)
        return source_of(byte_getter.path)

    return find


def _of_store(store: Any) -> SourceOf:
    if (refusal := refusing.get(store)) is not None:
        return _always(Whole(f"the store does not support byte ranges (it {refusal})"))
    source_of = _of_any(store)
    if (objects := odd.get(store)) is None:
        return source_of

    def unless_odd(path: str) -> Source:
        if (how := objects.get(path)) is not None:
            return Whole(f"the store does not answer its byte ranges (it {how})")
        return source_of(path)

    return unless_odd


def _of_any(store: Any) -> SourceOf:
    kind = type(store)
    if kind in _SOURCES and _has_own_methods(store, kind):
        # A closed store is read whole, because `get` opens it.
        return _SOURCES[kind](store) if store._is_open else _always(Whole())  # noqa: SLF001
    if _attributes(store).isdisjoint(_READING):
        name = _known_name(kind)
        if name in _SOURCES_BY_NAME:
            return _SOURCES_BY_NAME[name](store)
        if _is_named(kind):
            return _of_named(store)
    return _always(Whole() if issubclass(kind, MemoryStore) else _unknown(kind))


def _always(source: Source) -> SourceOf:
    return lambda _path: source


def _has_own_methods(instance: Any, owner: type[Any]) -> bool:
    """Whether an instance is of exactly this class, and its reading methods are zarr's own."""
    if type(instance) is not owner or owner not in _OWN_METHODS:
        return False
    look_up, own = _OWN_METHODS[owner]
    try:
        return bool(look_up(owner) == own) and instance.__dict__.keys().isdisjoint(_READING)
    except AttributeError:  # one was deleted
        return False


def _name_of(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _known_name(kind: type[Any]) -> str:
    """Return the name of a class, or "" if its module has another class of that name, or none."""
    module = sys.modules.get(kind.__module__)
    return _name_of(kind) if getattr(module, kind.__qualname__, None) is kind else ""


def _attributes(instance: object) -> AbstractSet[str]:
    return getattr(instance, "__dict__", {}).keys()


def _is_named(kind: type[Any]) -> bool:
    """Whether the user says that a class of stores or file systems has reliable byte ranges."""
    return _name_of(kind) in stores_with_ranges()


def _unknown(kind: type[Any]) -> Whole:
    """Return the source for a class that is not known, and log it once per class."""
    name = _name_of(kind)
    why = f"{name} is not known to have reliable byte ranges"
    if not name.startswith("fsspec."):
        why += "; if it has, name it in the option numcodecs_bytes.stores_with_ranges"
    if kind not in _told_of:
        _told_of.add(kind)
        logger.info("chunks are read whole: %s", why)
    return Whole(why)


def _of_named(store: Any) -> SourceOf:
    if isinstance(store, WrapperStore):
        below = _of_any(store._store)  # noqa: SLF001
        return lambda path: _through_named_wrapper(below(path))
    why = _why_no_ranges(store.fs) if isinstance(store, FsspecStore) else None
    return _always(why or Remote())


def _through_named_wrapper(source: Source) -> Source:
    if isinstance(source, Whole):
        return source
    # Requested from the wrapper, several ranges could come from different versions.
    if isinstance(source, Remote) and not source.tells_version:
        return Remote(in_one_request=source.in_one_request)
    return Remote(in_one_request=True)


def _of_wrapper_store(store: WrapperStore[Any]) -> SourceOf:
    return _of_any(store._store)  # noqa: SLF001


def _of_manifest_store(store: Any) -> SourceOf:
    """Return the source for VirtualiZarr's store.

    Before 2.8, if a manifest gives a length that is too short, ranges return the bytes beyond it.
    """
    version = sys.modules["virtualizarr"].__version__
    release = tuple(map(int, re.findall("[0-9]+", version)[:2]))
    is_known = release >= (2, 8) or _is_named(type(store))
    return _always(Remote() if is_known else _unknown(type(store)))


def _is_exactly(value: object, name: str) -> bool:
    return _known_name(type(value)) == name


def _of_local_store(store: LocalStore) -> SourceOf:
    if type(store.root) is not _PATH:  # `read_bytes` of a subclass may decrypt, for example
        return _always(Whole(f"{_name_of(type(store.root))} is not a path of Python's own"))
    root = str(store.root)
    return lambda path: File(partial(open_local, f"{root}/{path}"), ALLOWED_EXCEPTIONS, place=root)


def _of_zip_store(store: ZipStore) -> SourceOf:
    if not hasattr(os, "pread"):
        return _always(Whole("this system can't read members of a zip file in several threads"))
    open_archive = partial(_open_archive, store)
    return lambda path: File(
        open_archive,
        (KeyError,),
        in_thread=False,
        key=id(store),
        part=partial(_member_of, store, path),
    )


def _open_archive(store: ZipStore) -> OpenFile:
    with store._lock:  # noqa: SLF001
        archive = _archive_of(store)
        # The archive's own file has one position for all threads, and may be closed at any time.
        archive.fp.flush()
        return OpenFile(os.dup(archive.fp.fileno()))


def _archive_of(store: ZipStore) -> Any:
    if not store._is_open:  # noqa: SLF001 # closed in the meantime
        raise ReadWhole
    return store._zf  # noqa: SLF001


def _member_of(store: ZipStore, path: str, file: OpenFile) -> OpenFile:
    with store._lock:  # noqa: SLF001
        archive = _archive_of(store)
        member = archive.getinfo(path)
        is_encrypted = member.flag_bits & 1
        is_stored = member.compress_type == zipfile.ZIP_STORED
        if not is_stored or is_encrypted or member.compress_size != member.file_size:
            raise ReadWhole(why="it is compressed, or encrypted, in its zip archive")
        archive.open(member).close()  # raises if what precedes the member is damaged
    header = np.empty(_ZIP_HEADER.size, np.uint8)
    try:
        file.read_into(header, member.header_offset, lambda: True)
    except EOFError:
        raise ReadWhole from None
    file.counted[:] = 0, 0  # what follows is the chunk
    name_length, extra_length = _ZIP_HEADER.unpack(header.data)
    start = member.header_offset + _ZIP_HEADER.size + int(name_length + extra_length)
    return file.part(start, member.file_size)


# What precedes a member: in its last 4 bytes the lengths of the name and of the field that follow.
_ZIP_HEADER = struct.Struct("<26xHH")


def _of_object_store(store: ObjectStore[Any]) -> SourceOf:
    objects = store.store
    max_parts = MAX_PARTS if _known_name(type(objects)) in _FAR_OBJECTS else 1
    return lambda path: Remote(
        get=partial(_get_object_range, objects, path), tells_version=True, max_parts=max_parts
    )


async def _get_object_range(store: Any, path: str, start: int, end: int | None) -> Answer | None:
    import obstore  # noqa: PLC0415 # optional, but installed if there is such a store

    byte_range: Any = {"suffix": -start} if end is None else (start, end)
    try:
        response = await obstore.get_async(store, path, options={"range": byte_range})
    except ALLOWED_EXCEPTIONS as error:
        if status_of(error) in (None, 404):
            return None
        raise  # 405, to zarr's own request a missing object
    except obstore.exceptions.NotSupportedError:  # a suffix, by Azure
        if end is not None:
            raise
        num_bytes = (await obstore.head_async(store, path))["size"]
        return await _get_object_range(store, path, max(num_bytes + start, 0), num_bytes)

    async def read() -> UInt8Array:
        raw: Any = await response.bytes_async()
        return np.frombuffer(raw, np.uint8)

    tag = response.meta["e_tag"] or ""
    return Answer(read, response.meta["size"], None if tag.startswith("W/") else tag or None)


# Those whose connections, not the memory of this machine, limit how quickly bytes arrive.
_FAR_OBJECTS = {f"obstore.store.{name}Store" for name in ("Azure", "GCS", "HTTP", "S3")}
MAX_PARTS = 64
ALLOWED_EXCEPTIONS = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def _of_fsspec_store(store: FsspecStore) -> SourceOf:
    root, file_system = store.path.rstrip("/"), store.fs

    def full(path: str) -> str:
        return (f"{root}/{path}" if root else path).rstrip("/")

    if _is_local(file_system):
        sync: Any = file_system
        missing, name_of = store.allowed_exceptions, sync.sync_fs._strip_protocol  # noqa: SLF001
        return lambda path: File(partial(open_local, name_of(full(path))), missing, place=root)
    if (why := _why_no_ranges(file_system)) is not None:
        return _always(why)
    if _is_exactly(file_system, _REFERENCE):
        return lambda path: _of_reference(file_system, full(path))
    # Other exceptions may mean that the server does not support the range.
    allowed: Any = store.allowed_exceptions  # zarr takes a single class as well
    allowed = allowed if isinstance(allowed, tuple) else (allowed,)
    tells_missing = set(allowed) <= set(ALLOWED_EXCEPTIONS)
    if not _shows_responses(file_system):
        return _always(Remote(tells_missing=tells_missing))
    return lambda path: Remote(
        get=partial(_get_http_range, file_system, full(path), allowed), tells_missing=tells_missing
    )


def _shows_responses(file_system: Any) -> bool:
    """Whether an fsspec file system is one for HTTP that lets us see what a server answers."""
    while _is_exactly(file_system, _DIR):
        file_system = file_system.fs
    if not _is_exactly(file_system, _HTTP):
        return False
    version = sys.modules["aiohttp"].__version__
    return tuple(map(int, re.findall("[0-9]+", version)[:2])) >= (3, 9) and not any(
        _SEES in options for options in (file_system.kwargs, file_system.client_kwargs)
    )


async def _get_http_range(
    file_system: Any, path: str, missing: tuple[Any, ...], start: int, end: int | None
) -> Answer | None:
    """Return a range, unless the server, or a cache before it, answers with another one."""
    found: list[str] = []
    statuses: list[int] = []

    async def see(response: Any) -> None:
        found.extend(response.headers.getall("Content-Range", ()))
        statuses.append(response.status)

    try:
        data = await file_system._cat_file(path, start=start, end=end, **{_SEES: see})  # noqa: SLF001
    except missing:
        return None
    if statuses and statuses[-1] not in (200, 206):
        raise ReadWhole(f"answers with status {statuses[-1]}")
    match = _CONTENT_RANGE.fullmatch(found[0]) if len(found) == 1 else None
    if match is not None:
        first, last = int(match[1]), int(match[2])
        total = None if match[3] == "*" else int(match[3])
        if end is None:  # all of a shorter object is a suffix of it
            is_right = total is None or (first, last) == (max(total + start, 0), total - 1)
        else:
            is_right = first == start and last < end
        if not is_right:
            raise ReadWhole(f"answers with bytes {first} to {last} to other ranges")
    return Answer.of(np.frombuffer(data, np.uint8))


def _range_of(file_system: Any, url: str) -> "GetRange":
    """Return how to get ranges of an object to which references point."""
    if _shows_responses(file_system):
        return partial(_get_http_range, file_system, url, ())

    async def get(start: int, end: int | None) -> Answer | None:
        data = await file_system._cat_file(url, start=start, end=end)  # noqa: SLF001
        return Answer.of(np.frombuffer(data, np.uint8))

    return get


async def _get_part(lies_in: Object, num_bytes: int, start: int, end: int | None) -> Answer | None:
    """Return a range of a chunk that lies in an object."""
    if end is None:
        start, end = max(num_bytes + start, 0), num_bytes
    return await lies_in.get(lies_in.start + start, lies_in.start + end)


# The argument of aiohttp's requests that takes a function of the response.
_SEES = "raise_for_status"
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


def _is_local(file_system: Any) -> bool:
    """Whether a file system is fsspec's own local file system, in fsspec's own wrapper."""
    if not _is_exactly(file_system, _WRAPPER) or not _is_exactly(file_system.sync_fs, _LOCAL):
        return False
    # Not if a method of the instance was replaced.
    inner = file_system.sync_fs
    wrapped = getattr(vars(file_system).get("_cat_file"), "__wrapped__", None)
    return wrapped == inner.cat_file and _attributes(inner).isdisjoint(_READING_OF_LOCAL)


def _why_no_ranges(file_system: Any) -> Whole | None:
    """Return why an fsspec file system must read whole chunks; None if it need not.

    Synchronous file systems must: zip and tar files share one file position, and caches fill up
    while they are read.
    """
    kind = type(file_system)
    name = _known_name(kind)
    below: list[Any] = []
    if name == _REFERENCE:
        below = list(file_system.fss.values())
    elif name == _DIR:
        below = [file_system.fs]
    elif name == _WRAPPER:
        inner = type(file_system.sync_fs)
        is_named = not _name_of(inner).startswith("fsspec.") and _is_named(inner)
        return None if _is_local(file_system) or is_named else _unknown(inner)
    is_known = name in _FILE_SYSTEMS or _is_of_obstore(kind) or _is_named(kind)
    if not is_known or not _attributes(file_system).isdisjoint(_READING_OF_FSSPEC):
        return _unknown(kind)
    if name == _HTTP and _has_own_client(file_system) and not _is_named(kind):
        return Whole(
            f"{name} was given a client that may change what it receives; if it does not, name "
            "that class in the option numcodecs_bytes.stores_with_ranges"
        )
    return next(filter(None, map(_why_no_ranges, below)), None)


def _is_of_obstore(kind: type[Any]) -> bool:
    """Whether a class is one of those that obstore generates, one per protocol."""
    bases = [_known_name(base) for base in kind.__bases__]
    is_generated = _name_of(kind).startswith(f"{_OBSTORE}_") and bases == [_OBSTORE]
    return is_generated and vars(kind).keys().isdisjoint(_READING_OF_FSSPEC)


def _has_own_client(file_system: Any) -> bool:
    """Whether the user's code makes the client of an HTTP file system, or reads its responses."""
    make_client = getattr(sys.modules[type(file_system).__module__], "get_client", None)
    return (
        file_system.get_client is not make_client
        or not file_system.client_kwargs.keys() <= _CLIENT_OPTIONS
    )


def _of_reference(file_system: Any, path: str) -> Source:
    """Return how to read what a reference points to; the reference contains its length."""
    from fsspec.core import split_protocol  # noqa: PLC0415 # optional, but installed with references

    try:
        url, offset, num_bytes = part = file_system.references[path]
        if not isinstance(part, list | tuple):
            return Whole()
        url = file_system.target if url is None else url
        leaf = file_system.fss[split_protocol(url)[0]]
        offset, num_bytes = int(offset), int(num_bytes)
        if not _is_local(leaf):
            lies_in = Object((id(leaf), url), offset, _range_of(leaf, url))
            get = partial(_get_part, lies_in, num_bytes) if _shows_responses(leaf) else None
            return Remote(get=get, num_bytes=num_bytes, object=lies_in)
        name = leaf.sync_fs._strip_protocol(url)  # noqa: SLF001
    except (KeyError, TypeError, ValueError, AttributeError):
        return Whole()  # missing, inline, a whole file, or of an unknown form
    part = partial(_part_of, offset, num_bytes)
    key = name if hasattr(os, "pread") else None  # else threads would share one position
    return File(partial(open_local, name), (), place=name, key=key, part=part)


def _part_of(start: int, num_bytes: int, file: OpenFile) -> OpenFile:
    return file.part(start, num_bytes)


_SOURCES: dict[Any, Callable[[Any], SourceOf]] = {
    LocalStore: _of_local_store,
    ZipStore: _of_zip_store,
    ObjectStore: _of_object_store,
    FsspecStore: _of_fsspec_store,
    WrapperStore: _of_wrapper_store,
}
_SOURCES_BY_NAME: dict[str, Callable[[Any], SourceOf]] = {
    "icechunk.store.IcechunkStore": lambda _store: _always(Remote()),
    "numcodecs_bytes._tools.locations.ParquetReferences": _of_fsspec_store,
    "virtualizarr.manifests.store.ManifestStore": _of_manifest_store,
}
