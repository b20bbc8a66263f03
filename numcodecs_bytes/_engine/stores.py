"""Where the chunks of a store are, by a table of the classes of stores that are known.

A store is known only if its class is exactly one in the table, or the user has named that class in
the option ``stores_with_ranges``. The same holds for file systems of fsspec. What a subclass or a
wrapper does with a byte range can't be known, so all other stores are left to zarr.

To add a store, add the path of its class to `_SOURCES`, with `_of_any` or a function that takes the
store and returns a function from paths to sources; add a file system of fsspec to `_FILE_SYSTEMS`.
"""

import os
import sys
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

# Takes the length of an object and its version, as far as an answer tells them, and raises if they
# are not as expected, if possible before the bytes arrive.
Check = Callable[[int | None, object], None]
# Takes the first byte and the end (exclusive) of a range, or minus the length of a suffix and None;
# and a `Check`. Returns the bytes, or None if the object is missing.
Get = Callable[[int, int | None, Check], Awaitable[UInt8Array | None]]


class Remote(NamedTuple):
    """Where a chunk, or a shard, is in an object that is requested."""

    get: Get
    store: Any  # how it answers is remembered
    tells_versions: bool = False  # whether answers may tell the version of the object
    start: int = 0  # the offset of the chunk in the object, in bytes
    num_bytes: int | None = None  # the length of the chunk; None if it is the whole object
    key: Any = None  # identifies the object, if it may hold several chunks


class Whole(NamedTuple):
    """A chunk that is read as zarr alone reads it; `why` is empty if nothing is lost by that."""

    why: str = ""


Source = File | Remote | Whole
SourceOf = Callable[[str], Source]  # takes the path of a chunk in its store
MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def find_source(byte_getter: Any) -> Source:
    """Return where a chunk is."""
    if type(byte_getter) is StorePath:
        return sources_of(byte_getter.store)(byte_getter.path)
    is_known = is_in_shard(byte_getter)
    return Whole("" if is_known else f"{name_of_class(byte_getter)} is not a StorePath")


def is_in_shard(byte_getter: object) -> bool:
    """Whether a byte getter or setter is that of an inner chunk of a shard in memory."""
    return type(byte_getter).__module__ == zarr.codecs.sharding.__name__


def sources_of(store: Any) -> SourceOf:
    """Return a function that says where the chunks of a store are."""
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
    """Whether the user says that a class of stores or file systems has reliable byte ranges."""
    return type(instance) in stores_with_ranges() and not _is_of_fsspec(instance)


def _is_of_fsspec(instance: object) -> bool:
    """Whether a file system is fsspec's own, where threads that read one archive interfere."""
    return name_of_class(instance).startswith("fsspec.")


def _unknown(instance: object) -> Whole:
    """Return the source for a class that is not known."""
    why = f"{name_of_class(instance)} is not known to have reliable byte ranges"
    if not _is_of_fsspec(instance):
        why += "; if it has, name it in the option numcodecs_bytes.stores_with_ranges"
    return Whole(why)


def _of_local_store(store: LocalStore) -> SourceOf:
    if type(store.root) is not type(Path()):  # a UPath may be a path on a server
        return _always(Whole(f"{name_of_class(store.root)} is not Python's own class of paths"))
    if not store._is_open:  # noqa: SLF001 # its `get` opens it, and raises if its folder is gone
        return _always(Whole())
    root = str(store.root)
    return lambda path: File(partial(open_file, f"{root}/{path}"), MISSING)


def _of_zip_store(store: ZipStore) -> SourceOf:
    if not hasattr(os, "pread"):
        return _always(Whole("this system can't read members of a zip file in several threads"))
    if type(store.path) is not type(Path()):  # zarr 3.3 and newer take open file objects as well
        return _always(Whole("the archive was not opened by its path"))
    open_it = partial(open_archive, store)
    return lambda path: File(open_it, (), id(store), partial(locate_member, store, path))


def _of_any(store: Any) -> SourceOf:
    """Return a function that says where the chunks are in a store that answers ranges."""
    return lambda path: Remote(partial(_from_store, store, path), store)


async def _from_store(
    store: Any, path: str, start: int, end: int | None, _check: Check
) -> UInt8Array | None:
    """Return a range of a chunk from its store, which tells neither length nor version."""
    request = SuffixByteRequest(-start) if end is None else RangeByteRequest(start, end)
    buffer = await store.get(path, default_buffer_prototype(), request)
    return None if buffer is None else np.asarray(buffer.as_numpy_array()).view(np.uint8)


def _of_manifest_store(store: Any) -> SourceOf:
    """Return a function that says where VirtualiZarr's chunks are; a manifest gives their lengths.

    Before 2.8, its store returns bytes beyond a chunk if the manifest gives too short a length.
    """
    module = sys.modules[type(store).__module__]

    def find(path: str) -> Source:
        try:
            array, _ = module._get_deepest_group_or_array(store._group, path)  # noqa: SLF001
            separator = getattr(array.metadata.chunk_key_encoding, "separator", ".")
            index = module.parse_manifest_index(path, separator, expand_pattern=True)
            entry = array.manifest.get_entry(index)
            num_bytes = entry and int(entry["length"])
        except Exception:  # noqa: BLE001 # another version may raise anything
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
    """Return a range from obstore, which compares it with what the server says it is."""
    import obstore  # noqa: PLC0415 # optional, but installed if there is such a store

    byte_range: Any = {"suffix": -start} if end is None else (start, end)
    try:
        response = await obstore.get_async(objects, path, options={"range": byte_range})
        check(response.meta["size"], _strong(response.meta["e_tag"]))
        raw: Any = await response.bytes_async()
    except MISSING:
        return None
    except obstore.exceptions.NotSupportedError:  # Azure supports no suffixes
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
    root, file_system = store.path.rstrip("/"), store.fs
    is_reference = (
        name_of_class(file_system) == "fsspec.implementations.reference.ReferenceFileSystem"
    )
    find = _of_reference if is_reference else _in_file_system
    return lambda path: find(store, file_system, (f"{root}/{path}" if root else path).rstrip("/"))


def _of_reference(store: FsspecStore, file_system: Any, path: str) -> Source:
    """Return where a reference points; it contains the length of the chunk."""
    from fsspec.core import split_protocol  # noqa: PLC0415 # optional, but installed with references

    try:
        reference = file_system.references[path]
        if isinstance(reference, str):  # inline: three digits must not be unpacked
            return Whole()
        url, offset, num_bytes = reference
        url = file_system.target if url is None else url
        leaf = file_system.fss[split_protocol(url)[0]]
        offset, num_bytes = int(offset), int(num_bytes)
    except (KeyError, TypeError, ValueError, AttributeError):
        return Whole()  # missing, inline, a whole file, or of an unknown form
    if offset < 0:  # but some bytes of the chunk may be there
        return Whole()
    return _in_file_system(store, leaf, url, offset, num_bytes)


def _in_file_system(
    store: FsspecStore, file_system: Any, path: str, start: int = 0, num_bytes: int | None = None
) -> Source:
    """Return the source of a chunk that is a file, or `num_bytes` of one."""
    name, inner = name_of_class(file_system), file_system
    if name == "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper":
        inner = file_system.sync_fs
    if name_of_class(inner) == "fsspec.implementations.local.LocalFileSystem":
        file = inner._strip_protocol(path)  # noqa: SLF001
        missing: Any = store.allowed_exceptions
        if num_bytes is None:
            return File(partial(open_file, file), missing)
        key = file if hasattr(os, "pread") else None  # else threads would share one position
        return File(partial(open_file, file), (), key, lambda _descriptor: (start, num_bytes))
    get = _FILE_SYSTEMS.get(name)
    # obstore has a class of file systems for each protocol.
    if get is None and (name.startswith("obstore.fsspec.FsspecStore") or _is_named(inner)):
        get = _from_file_system
    if get is None:
        return _unknown(inner)
    key = None if num_bytes is None else (id(file_system), path)
    request = partial(file_system._cat_file, path)  # noqa: SLF001
    get_range = partial(get, request, store.allowed_exceptions)
    return Remote(get_range, store, get is _from_http, start, num_bytes, key)


async def _from_file_system(
    request: Any, missing: Any, start: int, end: int | None, _check: Any, **options: Any
) -> UInt8Array | None:
    """Return a range from a file system, which tells neither length nor version.

    `missing` are the errors that the store takes for a missing object. They may be any, and others
    than those of missing objects say nothing about the whole object.
    """
    try:
        raw = await request(start=start, end=end, **options)
    except Left:
        raise
    except missing as error:
        if isinstance(error, (*MISSING, PermissionError)):  # S3 may deny what does not exist
            return None
        raise Left(f"the store takes {type(error).__name__} for a missing chunk") from None
    return np.frombuffer(raw, np.uint8)


async def _from_http(
    request: Any, missing: Any, start: int, end: int | None, check: Check
) -> UInt8Array | None:
    """Return a range from a web server; its headers are checked before the body arrives."""
    is_seen = False

    async def see(response: Any) -> None:
        nonlocal is_seen
        is_seen = True
        if response.status >= 400:
            return  # fsspec raises its own error
        of = ", ".join(response.headers.getall("Content-Range", ()))
        total = of.rpartition("/")[2]
        num_bytes = int(total) if total.isdecimal() else None
        first, after = start, end
        if after is None:
            first, after = max((num_bytes or 0) + start, 0), num_bytes or 0
        is_right = response.status == 206 and of == f"bytes {first}-{after - 1}/{total}"
        try:
            if not is_right or "Content-Encoding" in response.headers:
                raise Unexpected(
                    f"it answers a range with status {response.status} and "
                    f"{of or 'no Content-Range'} instead of bytes {first, after}"
                )
            check(num_bytes, _strong(response.headers.get("ETag")))
        except Left:
            response.close()  # instead of receiving the rest
            raise

    raw = await _from_file_system(request, missing, start, end, check, raise_for_status=see)
    if not is_seen:  # a client with a cache, for example
        raise Unexpected("its client does not show the headers of responses; aiohttp 3.9 does")
    return raw


# File systems that answer concurrent range requests, besides those of obstore.
_FILE_SYSTEMS: dict[str, Callable[..., Awaitable[UInt8Array | None]]] = {
    "adlfs.spec.AzureBlobFileSystem": _from_file_system,
    "fsspec.implementations.http.HTTPFileSystem": _from_http,
    "gcsfs.core.GCSFileSystem": _from_file_system,
    "gcsfs.extended_gcsfs.ExtendedGcsFileSystem": _from_file_system,
    "s3fs.core.S3FileSystem": _from_file_system,
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
