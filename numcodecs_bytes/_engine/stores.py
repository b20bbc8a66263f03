"""The one door to stores: a table of the classes that are known -> where a chunk lies.

A byte range is a short cut, taken where it is known to be sound. A store is known only if it is
exactly a class of the table, behind zarr's own `StorePath`, as are the file systems of fsspec: what
the methods of a subclass or of a wrapper do with a range can't be known. All others are zarr's.
Users name further classes in the option ``stores_with_ranges``, and promise what
``docs/partial-reads.md`` lists.

To add a store, write a function that takes it and returns a function from paths to sources, and add
its class to `_SOURCES`; a file system of fsspec to `_FILE_SYSTEMS`.
"""

import logging
import os
import re
import sys
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr.codecs.sharding
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, StorePath, ZipStore

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine.archives import locate_member, open_archive
from numcodecs_bytes._engine.files import File, Left, open_file
from numcodecs_bytes._engine.strikes import Unexpected, state_of
from numcodecs_bytes._options import stores_with_ranges

logger = logging.getLogger("numcodecs_bytes")

# Takes the length of an object and its version, as far as an answer tells them, and raises if they
# are not as expected: where possible before the bytes arrive.
Check = Callable[[int | None, object], None]
# Takes the first byte and the end (exclusive) of a range, and such a function; returns the bytes,
# or None if the object is missing. If the end is None, the first byte is negative, and counts from
# the end of the object.
Get = Callable[[int, int | None, Check], Awaitable[UInt8Array | None]]


class Remote(NamedTuple):
    """Where a chunk, or a shard, lies in an object that is requested.

    Attributes
    ----------
    get : callable
        Gets ranges of the object.
    store : object
        The store, of which is remembered how it answers.
    tells_versions : bool
        Whether answers may tell the version of the object.
    start : int
        Where the chunk begins in the object, in bytes.
    num_bytes : int or None
        Length of the chunk; None if it is the whole object.
    key : object
        Identifies the object, if several chunks may lie in it.
    """

    get: Get
    store: Any
    tells_versions: bool = False
    start: int = 0
    num_bytes: int | None = None
    key: Any = None


class Whole(NamedTuple):
    """A chunk that is read as zarr alone reads it; `why` is empty if nothing is lost."""

    why: str = ""


Source = File | Remote | Whole
SourceOf = Callable[[str], Source]  # takes the path of a chunk in its store
MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def find_source(byte_getter: Any) -> Source:
    """Return where a chunk lies."""
    if type(byte_getter) is not StorePath:
        return Whole(
            "" if is_in_shard(byte_getter) else f"{name_of_class(byte_getter)} is no StorePath"
        )
    return sources_of(byte_getter.store)(byte_getter.path)


def is_in_shard(byte_getter: object) -> bool:
    """Whether a byte getter or setter is that of an inner chunk, in a shard in memory."""
    return type(byte_getter).__module__ == zarr.codecs.sharding.__name__


def sources_of(store: Any) -> SourceOf:
    """Return a function that says where the chunks of a store lie."""
    if why := state_of(store).why_struck:
        return _always(Whole(f"the store does not answer byte ranges as requested ({why})"))
    if (of_store := _SOURCES.get(name_of_class(store))) is not None:
        return of_store(store)
    if _is_named(store):
        return _of_any(store)
    return _always(Whole() if isinstance(store, MemoryStore) else _unknown(store))


def _always(source: Source) -> SourceOf:
    return lambda _path: source


def name_of_class(instance: object) -> str:
    """Return the path of the class of an instance."""
    return f"{type(instance).__module__}.{type(instance).__qualname__}"


def _is_named(instance: object) -> bool:
    """Whether a person says that a class of stores or file systems has reliable byte ranges."""
    return type(instance) in stores_with_ranges()


def _unknown(instance: object, why: str = "is not known to have reliable byte ranges") -> Whole:
    """Return the source for a class that is not known, and log it once per class."""
    name = name_of_class(instance)
    if not name.startswith("fsspec.") or name == _HTTP:
        why += "; if it has, name it in the option numcodecs_bytes.stores_with_ranges"
    if type(instance) not in _told_of:
        _told_of.add(type(instance))
        logger.info("chunks are read whole: %s %s", name, why)
    return Whole(f"{name} {why}")


_told_of: weakref.WeakSet[type] = weakref.WeakSet()


def _of_local_store(store: LocalStore) -> SourceOf:
    if type(store.root) is not type(Path()):  # `read_bytes` of a subclass may decrypt, for example
        return _always(Whole(f"{name_of_class(store.root)} is not a path of Python's own"))
    if not store._is_open:  # noqa: SLF001 # `get` opens it, and raises if its folder is gone
        return _always(Whole())
    root = str(store.root)
    return lambda path: File(partial(open_file, f"{root}/{path}"), MISSING)


def _of_zip_store(store: ZipStore) -> SourceOf:
    if not hasattr(os, "pread"):
        return _always(Whole("this system can't read members of a zip file in several threads"))
    return lambda path: File(
        partial(open_archive, store), (KeyError,), id(store), partial(locate_member, store, path)
    )


def _of_any(store: Any) -> SourceOf:
    """Return where the chunks of a store lie that answers ranges."""
    return lambda path: Remote(partial(_from_store, store, path), store)


async def _from_store(
    store: Any, path: str, start: int, end: int | None, _check: Check
) -> UInt8Array | None:
    """Return a range of a chunk from its store, which tells neither length nor version."""
    request = SuffixByteRequest(-start) if end is None else RangeByteRequest(start, end)
    buffer = await store.get(path, default_buffer_prototype(), request)
    return None if buffer is None else np.asarray(buffer.as_numpy_array()).view(np.uint8)


def _of_manifest_store(store: Any) -> SourceOf:
    """Return where VirtualiZarr's chunks lie: as long as their manifest says.

    Its store may return bytes beyond a chunk if the manifest gives too short a length.
    """
    module = sys.modules[type(store).__module__]

    def find(path: str) -> Source:
        try:
            array, _ = module._get_deepest_group_or_array(store._group, path)  # noqa: SLF001
            separator = getattr(array.metadata.chunk_key_encoding, "separator", ".")
            index = module.parse_manifest_index(path, separator, expand_pattern=True)
            entry = array.manifest.get_entry(index)
            num_bytes = entry and int(entry["length"])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return Whole("its manifest is of an unknown form")
        if num_bytes is None:
            return Whole()  # missing
        return Remote(partial(_from_store, store, path), store, num_bytes=num_bytes)

    return find


def _of_object_store(store: ObjectStore[Any]) -> SourceOf:
    objects = store.store
    if name_of_class(objects) == "obstore.store.MemoryStore":
        return _always(Whole())
    return lambda path: Remote(partial(_from_objects, objects, path), store, tells_versions=True)


async def _from_objects(
    objects: Any, path: str, start: int, end: int | None, check: Check
) -> UInt8Array | None:
    """Return a range from obstore, which compares it with what the server says that it is."""
    import obstore  # noqa: PLC0415 # optional, but installed if there is such a store

    byte_range: Any = {"suffix": -start} if end is None else (start, end)
    try:
        response = await obstore.get_async(objects, path, options={"range": byte_range})
        check(response.meta["size"], _strong(response.meta["e_tag"]))
        raw: Any = await response.bytes_async()
    except MISSING:
        return None
    except obstore.exceptions.NotSupportedError:  # a suffix, by Azure
        if end is not None:
            raise
        num_bytes = (await obstore.head_async(objects, path))["size"]
        start = max(num_bytes + start, 0)
        return await _from_objects(objects, path, start, num_bytes, check)
    return np.frombuffer(raw, np.uint8)


def _strong(tag: str | None) -> str | None:
    """Return an ETag if it identifies the bytes of an object."""
    return None if not tag or tag.startswith("W/") else tag


def _of_fsspec_store(store: FsspecStore) -> SourceOf:
    root = store.path.rstrip("/")
    file_system: Any = store.fs
    allowed: Any = store.allowed_exceptions  # zarr takes a single class as well
    allowed = allowed if isinstance(allowed, tuple) else (allowed,)

    def full(path: str) -> str:
        return (f"{root}/{path}" if root else path).rstrip("/")

    if _is_local(file_system):
        strip = file_system.sync_fs._strip_protocol  # noqa: SLF001
        return lambda path: File(partial(open_file, strip(full(path))), allowed)
    if name_of_class(file_system) == _REFERENCE:
        getters: dict[int, Any] = {}
        return lambda path: _of_reference(store, file_system, full(path), getters)
    get = _getter_of(file_system)
    if isinstance(get, Whole):
        return _always(get)
    tells = get is _from_http
    return lambda path: Remote(
        partial(_or_missing, partial(get, file_system, full(path))), store, tells
    )


async def _or_missing(get: Get, start: int, end: int | None, check: Check) -> UInt8Array | None:
    try:
        return await get(start, end, check)
    except MISSING:
        return None


def _is_local(file_system: Any) -> bool:
    """Whether a file system is fsspec's own local file system, in fsspec's own wrapper."""
    return name_of_class(file_system) == _WRAPPER and name_of_class(file_system.sync_fs) == _LOCAL


def _getter_of(file_system: Any) -> Any:
    """Return a function that gets ranges of a file system, or why it is not known."""
    name = name_of_class(file_system)
    if name == _HTTP and not _is_named(file_system):
        version = re.findall("[0-9]+", sys.modules["aiohttp"].__version__)
        get_client = sys.modules[type(file_system).__module__].get_client
        is_plain = file_system.get_client is get_client and tuple(map(int, version[:2])) >= (3, 9)
        options = file_system.client_kwargs.keys()
        if is_plain and options <= _CLIENT_OPTIONS and _SEES not in file_system.kwargs:
            return _from_http
        return _unknown(file_system, "was given a client that may change what it receives")
    is_obstore = name.startswith("obstore.fsspec.FsspecStore")  # a class for each protocol
    if name in _FILE_SYSTEMS or is_obstore or _is_named(file_system):
        return _from_file_system
    inner = file_system.sync_fs if name == _WRAPPER else file_system
    if (
        inner is not file_system
        and not name_of_class(inner).startswith("fsspec.")
        and _is_named(inner)
    ):
        return _from_file_system
    return _unknown(inner)


async def _from_file_system(
    file_system: Any, path: str, start: int, end: int | None, _check: Check
) -> UInt8Array:
    """Return a range from a file system, which tells neither length nor version."""
    return np.frombuffer(await file_system._cat_file(path, start=start, end=end), np.uint8)  # noqa: SLF001


async def _from_http(
    file_system: Any, path: str, start: int, end: int | None, check: Check
) -> UInt8Array:
    """Return a range from a web server; the head of its answer is checked before its body comes."""

    async def see(response: Any) -> None:
        if response.status >= 400:
            return  # fsspec raises its own error
        headers = response.headers
        match = _CONTENT_RANGE.fullmatch(", ".join(headers.getall("Content-Range", ())))
        first, end_of, num_bytes = -1, 0, None
        if match is not None:
            first, end_of = int(match[1]), int(match[2]) + 1
            num_bytes = None if match[3] == "*" else int(match[3])
        wanted = start, end
        if end is None and num_bytes is not None:
            wanted = max(num_bytes + start, 0), num_bytes
        is_right = response.status == 206 and (first, end_of) == wanted
        try:
            if not is_right or "Content-Encoding" in headers:
                raise Unexpected(
                    f"it answers a range with status {response.status}, and "
                    f"{match[0] if match else 'no single Content-Range'} to {wanted}"
                )
            check(num_bytes, _strong(headers.get("ETag")))
        except Left:
            response.close()  # instead of receiving the rest
            raise

    options = {_SEES: see}
    data = await file_system._cat_file(path, start=start, end=end, **options)  # noqa: SLF001
    return np.frombuffer(data, np.uint8)


_SEES = "raise_for_status"  # of aiohttp's requests: takes a function of the response
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


def _of_reference(store: Any, file_system: Any, path: str, getters: dict[int, Any]) -> Source:
    """Return where a reference points; it contains the length of the chunk.

    `getters` keeps what `_getter_of` returns, by the `id` of a file system.
    """
    from fsspec.core import split_protocol  # noqa: PLC0415 # optional, but installed with references

    try:
        url, offset, num_bytes = file_system.references[path]
        url = file_system.target if url is None else url
        leaf = file_system.fss[split_protocol(url)[0]]
        offset, num_bytes = int(offset), int(num_bytes)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Whole()  # missing, inline, a whole file, or of an unknown form
    if _is_local(leaf):
        name = leaf.sync_fs._strip_protocol(url)  # noqa: SLF001
        key = name if hasattr(os, "pread") else None  # else threads would share one position
        return File(partial(open_file, name), (), key, lambda _descriptor: (offset, num_bytes))
    get = getters.get(id(leaf)) or getters.setdefault(id(leaf), _getter_of(leaf))
    if isinstance(get, Whole):
        return get
    of_url, tells = partial(get, leaf, url), get is _from_http
    return Remote(of_url, store, tells, offset, num_bytes, (id(leaf), url))


_WRAPPER = "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper"
_LOCAL = "fsspec.implementations.local.LocalFileSystem"
_REFERENCE = "fsspec.implementations.reference.ReferenceFileSystem"
_HTTP = "fsspec.implementations.http.HTTPFileSystem"
# File systems that answer concurrent range requests, besides HTTP and those of obstore.
_FILE_SYSTEMS = {
    "adlfs.spec.AzureBlobFileSystem",
    "gcsfs.core.GCSFileSystem",
    "gcsfs.extended_gcsfs.ExtendedGcsFileSystem",
    "s3fs.core.S3FileSystem",
}
# Arguments of aiohttp's client that leave the responses as they are.
_CLIENT_OPTIONS = {
    *("auth", "connector", "connector_owner", "cookie_jar", "cookies", "headers", "loop"),
    *("proxy", "proxy_auth", "read_bufsize", "timeout", "trust_env"),
}
_SOURCES: dict[str, Callable[[Any], SourceOf]] = {
    "zarr.storage._local.LocalStore": _of_local_store,
    "zarr.storage._zip.ZipStore": _of_zip_store,
    "zarr.storage._obstore.ObjectStore": _of_object_store,
    "zarr.storage._fsspec.FsspecStore": _of_fsspec_store,
    "icechunk.store.IcechunkStore": _of_any,
    "virtualizarr.manifests.store.ManifestStore": _of_manifest_store,
    "numcodecs_bytes._tools.locations.ParquetReferences": _of_fsspec_store,
}
