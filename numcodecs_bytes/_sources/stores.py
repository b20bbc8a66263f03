"""Where the chunks of a store are, by a table of the classes of stores that are known.

A store is known only if its class is exactly one in the table, or the user has named that class in
the option ``stores_with_ranges``. The same holds for fsspec's file systems, except obstore's, which
have a class for each protocol. What a subclass or a wrapper does with a byte range can't be known,
so all other stores are left to zarr.

To add a store, add the path of its class to `_SOURCES`, with `_of_any` or a function that takes the
store and returns a `ChunkLocator`; add a file system of fsspec to `_FILE_SYSTEMS`.
"""

import os
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import zarr.codecs.sharding
from zarr.abc.store import RangeByteRequest
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, ZipStore

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._core.lengths import NUM_START_BYTES, Reference
from numcodecs_bytes._plan.outcome import AlreadyInMemory, LeftToZarr, NoReference, NotOpen
from numcodecs_bytes._sources.answers import Answer
from numcodecs_bytes._sources.archives import find_member, open_archive
from numcodecs_bytes._sources.byte_ranges import (
    NOT_FOUND,
    RangeGetter,
    from_file_system,
    from_http,
    from_objects,
    from_store,
)
from numcodecs_bytes._sources.files import FileExtent, opener_of, path_of_file
from numcodecs_bytes._sources.obstore_local import folder_of, is_file_name
from numcodecs_bytes._sources.store_states import state_of
from numcodecs_bytes._sources.virtualizarr import requests_of
from numcodecs_bytes._zarr_api.file_systems import (
    is_inlined,
    is_local,
    reference_to,
    references_of,
    target_of,
    target_of_chunk,
    unwrapped,
)
from numcodecs_bytes._zarr_api.names import name_of_class
from numcodecs_bytes._zarr_api.options import classes_not_installed, stores_with_ranges
from numcodecs_bytes._zarr_api.private_names import is_open


class ObjectExtent(NamedTuple):
    """Where a chunk, or a shard, is in an object that is requested."""

    get: RangeGetter
    store: object  # its `StoreState` remembers how it answers
    tells_versions: bool = False  # whether answers may tell the version of the object
    start: int = 0  # the offset of the chunk in the object, in bytes
    num_bytes: int | None = None  # the length of the chunk; None if it is the whole object
    key: Hashable = None  # identifies the object, if it may hold several chunks
    must_tell_length: bool = False  # whether answers must tell the length of the object
    client_repeats: bool = False  # whether its client repeats requests that fail

    @property
    def is_object(self) -> bool:
        """Whether the chunk is an object of its own."""
        return self.num_bytes is None and not self.must_tell_length


Extent = FileExtent | ObjectExtent
# Takes the path of a chunk in its store, or of a file or an object; may raise `LeftToZarr`.
ChunkLocator = Callable[[str], Extent]


def find_extent(byte_getter: Any) -> Extent:
    """Return where a chunk is; raise `LeftToZarr` if that is not known."""
    return locator_for(store_of(byte_getter))(byte_getter.path)


def store_of(byte_getter: object) -> Any:
    """Return the store of a chunk; raise `LeftToZarr` if zarr does not ask it directly."""
    if type(byte_getter) is StorePath:
        return byte_getter.store
    raise LeftToZarr(f"{name_of_class(byte_getter)} is not a StorePath")


def root_of(store: LocalStore) -> str:
    """Return the folder of a store; raise `LeftToZarr` unless it is certainly a local one."""
    if type(store.root) is not type(Path()):  # a UPath may be a path on a server
        raise LeftToZarr(f"{name_of_class(store.root)} is not Python's own class of paths")
    return str(store.root)


def is_in_shard(byte_getter: object) -> bool:
    """Whether a byte getter or setter is that of an inner chunk of a shard in memory."""
    return type(byte_getter).__module__ == zarr.codecs.sharding.__name__


def locator_for(store: object) -> ChunkLocator:
    """Return a function that says where the chunks of a store are.

    Raises `LeftToZarr` if all of them are left to zarr.
    """
    state_of(store).check()
    if (of_store := _SOURCES.get(name_of_class(store))) is not None:
        return of_store(store)
    if _is_named(store):
        return _of_any(store)
    if isinstance(store, MemoryStore):
        raise AlreadyInMemory("it is in memory")
    raise LeftToZarr(_why_unknown(store))


def states_lengths(store: object) -> bool:
    """Whether a store is known, so that the lengths that it states are those of its chunks."""
    if name_of_class(store) not in _SOURCES and value_or_error(_is_named, store) is not True:
        return False  # it may encrypt them
    found = value_or_error(locator_for, store)
    return callable(found) or isinstance(found, AlreadyInMemory | NotOpen)


def only_states_lengths(store: object) -> bool:
    """Whether a store states how long chunks are, whatever the files hold that they are in."""
    has_references = references_of(store) is not None
    return has_references or name_of_class(store) == "icechunk.store.IcechunkStore"


def kind_of_reference(store: object, key: str) -> Reference:
    """Return what the chunk at a key is if it may be a reference, or virtual."""
    if _SOURCES.get(name_of_class(store)) is _of_manifest_store:
        return "to part of a file"
    if references_of(store) is None:
        return "in a repository" if only_states_lengths(store) else ""
    if is_inlined(value_or_error(reference_to, store, key)):
        return "inlined"
    target = value_or_error(target_of_chunk, store, key)
    is_whole = isinstance(target, tuple) and target[1] is None
    return "to a whole file" if is_whole else "to part of a file"


async def start_of(chunk: StorePath, num_bytes: int = NUM_START_BYTES) -> bytes:
    """Return the first bytes of a chunk, also if its server ignores byte ranges; b"" on errors."""
    for part in (RangeByteRequest(0, min(num_bytes, NUM_START_BYTES)), None):
        start = await async_value_or_error(chunk.get(byte_range=part))
        if start is not None and not isinstance(start, Exception):
            return start[:NUM_START_BYTES].to_bytes()
    return b""


def may_be_cached(store: object) -> bool:
    """Whether what `locator_for` returns stays right: URLs may be registered with VirtualiZarr."""
    return _SOURCES.get(name_of_class(store)) is not _of_manifest_store


def _is_named(instance: object) -> bool:
    """Whether the user says that a class of stores or file systems has reliable byte ranges."""
    return not _is_of_fsspec(instance) and type(instance) in stores_with_ranges()


def _is_of_fsspec(instance: object) -> bool:
    """Whether a file system is fsspec's own, where threads that read one archive interfere."""
    return name_of_class(instance).startswith("fsspec.")


def _why_unknown(instance: object) -> str:
    """Return why chunks are left to zarr, of a class that is not known."""
    name = name_of_class(instance)
    if name.startswith("tifffile."):
        return f"{name} has no byte ranges; virtual-tiff opens TIFF files with them"
    why = f"{name} is not known to have reliable byte ranges"
    if not _is_of_fsspec(instance):
        option = "the option numcodecs_bytes.stores_with_ranges"
        why += f"; if it has, and fetches only the range, name it in {option}"
        if missing := classes_not_installed():
            why += f" (which can't import {', '.join(missing)})"
    return why


def _of_memory_store(_store: MemoryStore) -> ChunkLocator:
    raise AlreadyInMemory("it is in memory")


def _of_local_store(store: LocalStore) -> ChunkLocator:
    root = root_of(store)
    if not is_open(store):  # its `get` opens it, and raises if its folder is gone
        raise NotOpen("the store is not open")
    return lambda path: FileExtent(opener_of(path_of_file(root, path)), NOT_FOUND)


def _of_zip_store(store: ZipStore) -> ChunkLocator:
    if not hasattr(os, "pread"):
        raise LeftToZarr("this system can't read members of a zip file in several threads")
    if type(store.path) is not type(Path()):  # zarr 3.3 and newer take open file objects as well
        raise LeftToZarr("the archive was not opened by its path")
    open_it = partial(open_archive, store)
    key = id(store)
    return lambda path: FileExtent(open_it, (), key, find_member=partial(find_member, store, path))


def _of_any(store: Any) -> ChunkLocator:
    """Return a function that says where the chunks are in a store that serves ranges."""
    return lambda path: ObjectExtent(partial(from_store, store, path), store)


def _of_manifest_store(store: Any) -> ChunkLocator:
    """Return a function that says where VirtualiZarr's chunks are: what its manifests refer to."""
    request_of = requests_of(store)
    locators: dict[int, ChunkLocator] = {}  # by the `id` of an object store that they keep alive

    def find(path: str) -> Extent:
        request = request_of(path)
        objects, num_bytes = request.objects, request.end - request.start
        if type(objects).__module__ != "obstore.store":
            return ObjectExtent(partial(from_store, store, path), store, num_bytes=num_bytes)
        if id(objects) not in locators:
            locators[id(objects)] = _in_objects(store, objects)
        key = id(objects), request.path
        return _part_of(locators[id(objects)](request.path), request.start, num_bytes, key)

    return find


def _in_objects(store: object, objects: object) -> ChunkLocator:
    """Return a function that says where the objects of an object store are."""
    if name_of_class(objects) == "obstore.store.MemoryStore":
        raise AlreadyInMemory("it is in memory")
    folder = folder_of(objects)

    def find(path: str) -> Extent:
        if folder is not None and is_file_name(path):
            return FileExtent(opener_of(f"{folder}/{path}"), (FileNotFoundError,))
        get = partial(from_objects, objects, path)
        return ObjectExtent(get, store, tells_versions=True, client_repeats=True)

    return find


def _part_of(whole: Extent, start: int, num_bytes: int, key: Hashable) -> Extent:
    """Return where a part of a file or an object is, given where that is, and what identifies it.

    It can't be missing: then, what refers to it is broken.
    """
    if isinstance(whole, FileExtent):
        return FileExtent(whole.open, (), key, start, num_bytes)
    return whole._replace(start=start, num_bytes=num_bytes, key=key)


def _of_fsspec_store(store: FsspecStore) -> ChunkLocator:
    root, file_system = store.path.rstrip("/"), store.fs
    name = name_of_class(file_system)
    if name == "fsspec.implementations.reference.ReferenceFileSystem":
        find = _behind_references(store, file_system)
    else:
        find = _in_file_system(store, file_system)
    return lambda path: find((f"{root}/{path}" if root else path).rstrip("/"))


def _behind_references(store: FsspecStore, file_system: Any) -> ChunkLocator:
    """Return a function that says where references point: to a part of a file, or to a file."""
    from fsspec.core import split_protocol  # it is optional, but installed with references

    locators: dict[int, ChunkLocator] = {}  # by the `id` of a file system that they keep alive

    def find(path: str) -> Extent:
        reference = _reference_to(path, file_system)
        try:
            url, part = target_of(reference, file_system)
            leaf = file_system.fss[split_protocol(url)[0]]
        except Exception as error:
            raise LeftToZarr("its reference is of an unknown form") from error
        if id(leaf) not in locators:
            locators[id(leaf)] = _in_file_system(store, leaf)
        whole = locators[id(leaf)](url)
        if part:
            return _part_of(whole, *part, (id(leaf), url))
        if isinstance(whole, FileExtent):
            return whole
        if not whole.tells_versions:  # without its length, a header would be read as elements
            raise LeftToZarr(
                "its reference has no offset and length; with both, it is read in part"
            )
        return whole._replace(must_tell_length=True)

    return find


def _reference_to(path: str, file_system: Any) -> Any:
    """Return the reference to a chunk; raise `LeftToZarr` if it does not point to a file."""
    try:
        reference = file_system.references.get(path)
    except Exception as error:
        raise LeftToZarr("its reference can't be read") from error
    if reference is None:
        raise NoReference("there is no reference to it")
    if isinstance(reference, (str, bytes)):  # faster than `str | bytes`
        raise AlreadyInMemory("it is inlined in its reference")
    return reference


def _in_file_system(store: FsspecStore, file_system: Any) -> ChunkLocator:
    """Return a function that says where the files of a file system are.

    Raises `LeftToZarr` if all of them are left to zarr.
    """
    name, inner = name_of_class(file_system), unwrapped(file_system)
    # What a reference points to can't be missing: then, the reference is broken.
    missing = store.allowed_exceptions if file_system is store.fs else ()
    if is_local(inner):
        strip = inner._strip_protocol
        return lambda path: FileExtent(opener_of(strip(path)), missing)
    get = _FILE_SYSTEMS.get(name)
    # obstore has a class of file systems for each protocol.
    if get is None and (name.startswith("obstore.fsspec.FsspecStore") or _is_named(inner)):
        get = from_file_system
    if get is None:
        raise LeftToZarr(_why_unknown(inner))

    is_web = get is from_http  # the others are clients of object stores

    def find(path: str) -> Extent:
        get_range = partial(get, partial(file_system._cat_file, path), missing)
        return ObjectExtent(get_range, store, tells_versions=is_web, client_repeats=not is_web)

    return find


# File systems that answer concurrent range requests, besides those of obstore.
_FILE_SYSTEMS: dict[str, Callable[..., Awaitable[Answer]]] = {
    "adlfs.spec.AzureBlobFileSystem": from_file_system,
    "fsspec.implementations.http.HTTPFileSystem": from_http,
    "gcsfs.core.GCSFileSystem": from_file_system,
    "gcsfs.extended_gcsfs.ExtendedGcsFileSystem": from_file_system,
    "s3fs.core.S3FileSystem": from_file_system,
}
_SOURCES: dict[str, Callable[[Any], ChunkLocator]] = {
    "zarr.storage._local.LocalStore": _of_local_store,
    "zarr.storage._memory.MemoryStore": _of_memory_store,
    "zarr.storage._zip.ZipStore": _of_zip_store,
    "zarr.storage._obstore.ObjectStore": lambda store: _in_objects(store, store.store),
    "zarr.storage._fsspec.FsspecStore": _of_fsspec_store,
    "icechunk.store.IcechunkStore": _of_any,
    "virtualizarr.manifests.store.ManifestStore": _of_manifest_store,
    "numcodecs_bytes._tools.locations.References": _of_fsspec_store,
}
