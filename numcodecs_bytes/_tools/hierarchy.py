"""Reads stores: hierarchies, metadata documents, stored chunks. Never writes."""

import asyncio
import contextlib
import itertools
import json
import math
import operator
import os
import re
import reprlib
import stat
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import LocalStore, StorePath
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.dtypes import ML_DTYPES, why_missing
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, NothingToFetch, NotOpen
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.manifests import folder_of
from numcodecs_bytes._sources.stores import find_extent, only_states_lengths
from numcodecs_bytes._zarr_api.defaults import why_aside
from numcodecs_bytes._zarr_api.names import name_of_class

Index = tuple[int, ...]
# A metadata document, or the error from reading it.
Document = JSONObject | Exception

# How many chunks of an array are requested from a store that can't list them.
MAX_UNLISTED = 10_000
METADATA_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
# What Zarr and NCZarr store next to chunks.
_METADATA = re.compile(r"zarr\.json|\.z(array|attrs|group|metadata)|\.ncz(array|attr|var)")
# The names of chunks under all chunk key encodings.
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")


@dataclass
class Listing:
    """What a listing of the chunks of an array shows besides the chunks."""

    is_listed: bool = False  # if not, at most `MAX_UNLISTED` chunks are looked for
    others: list[str] = field(default_factory=list)  # neither chunks nor metadata
    # Files that have the name of a chunk under another chunk key encoding, and its index.
    misnamed: list[tuple[Index, str]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)  # of folders that can't be listed


def walk(
    store: Store, start: str = "", may_repeat: Callable[[str], bool] = lambda _: False
) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each folder, parents first, and a list for the names to visit in it.

    A local folder that several paths lead to, by symbolic links, is visited by the first of them,
    and by those that may repeat it: links may lead back, and two that do make 2^40 paths.
    """
    sync(store._ensure_open())  # zarr 3.1.6 does not do this for each request
    paths, seen = [start], set[Hashable]()
    while paths:
        path = paths.pop()
        if (local := _local_path(store, path)) is not None:
            with contextlib.suppress(OSError):  # to be raised when it is read
                status = local.stat()
                # Some file systems number nothing.
                folder = status.st_dev, status.st_ino or local.resolve()
                if folder in seen and not may_repeat(path):
                    continue
                seen.add(folder)
        to_visit: list[str] = []
        yield path, to_visit
        paths += [join(path, name) for name in reversed(to_visit)]


def _local_path(store: Any, path: str) -> Path | None:
    """Return the local path of a folder in a store, or None."""
    if isinstance(store, LocalStore):
        return store.root / path
    files: Any = getattr(store, "fs", None)
    files = getattr(files, "sync_fs", files)
    if name_of_class(files) == "fsspec.implementations.local.LocalFileSystem":
        return Path(files._strip_protocol(store.path), path)
    objects = getattr(store, "store", None)
    folder = folder_of(objects) if name_of_class(objects) == "obstore.store.LocalStore" else None
    return None if folder is None else Path(folder, path)


class Consolidated(NamedTuple):
    """The consolidated metadata of a group."""

    group: str  # its path
    zarr_format: int
    arrays: dict[str, Document]  # by their paths; in Zarr v2, too, with attributes


def find_arrays(store: Store, consolidated: list[Consolidated]) -> Iterator[tuple[str, Document]]:
    """Yield the path and metadata document of each array; an error if a document can't be read.

    The consolidated metadata of each group are appended before its arrays are yielded.
    """
    for path, to_visit in walk(store):
        document, node_type = _node_at(store, path)
        if document is not None and node_type == "array":
            yield path, document
            continue
        names = value_or_error(names_in, store, path)
        if isinstance(names, Exception):
            if path:
                yield path, names
                continue
            if isinstance(store, LocalStore) or isinstance(document, Exception):
                raise names
            names = []  # many web servers forbid it
        if len(names) == 1 and path.split("/")[-8:] == names * 8:
            why = "the store lists a folder as part of itself"
            yield path, ValueError(f"{why}: download the zip file, or upgrade zarr")
        elif document is not None and node_type != "group":
            yield path, document
            # It may be an array: do not search its chunks for arrays.
            to_visit += [name for name in names if name != "c" and not name[0].isdigit()]
        else:
            to_visit += [name for name in names if not _METADATA.fullmatch(name)]
            arrays = _consolidated(store, path, document, names)
            if not names:  # web servers do not list folders
                yield from (arrays or {}).items()
            elif arrays is not None:
                consolidated.append(Consolidated(path, 2 if document is None else 3, arrays))


def _node_at(store: Store, path: str) -> tuple[Document | None, object]:
    """Return the document of a node of Zarr v3 or of an array of Zarr v2, and the node's type."""
    document = document_at(store, join(path, "zarr.json"))
    if document is not None:
        return document, document.get("node_type") if isinstance(document, dict) else None
    document = document_at(store, join(path, ".zarray"))
    return document, "array" if isinstance(document, dict) else None


def _consolidated(
    store: Store, path: str, group: Document | None, names: list[str]
) -> dict[str, Document] | None:
    """Return the arrays in the consolidated metadata of a group with these names, or None."""
    if group is None and names and ".zmetadata" not in names:
        return None
    if isinstance(group, dict):
        consolidated = group.get("consolidated_metadata")
    else:
        consolidated = document_at(store, join(path, ".zmetadata"))
    found = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(found, dict):
        return None
    arrays = {}
    for key, data in found.items():
        document = _object(data, key)
        if group is None:  # Zarr v2: by the key of each document
            name, _, file = key.rpartition("/")
            is_array = file == ".zarray"
            if is_array and isinstance(document, dict):
                document = document | {"attributes": found.get(join(name, ".zattrs"), {})}
        else:  # Zarr v3: by the path of each node
            name = key
            is_array = not isinstance(document, dict) or document.get("node_type") != "group"
        if is_array:
            arrays[join(path, name)] = document
    return arrays


def document_at(store: Store, key: str) -> Document | None:
    """Return a JSON object in the store, None if it is missing, or the error from reading it.

    It is a ValueError that names the document, unless the store fails.
    """
    raw = value_or_error(_read, store, key)
    if isinstance(raw, FileNotFoundError | NotADirectoryError):
        return None
    if raw is None or isinstance(raw, Exception):
        return raw
    try:
        return _object(json.loads(raw), key)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        return ValueError(f"{key} is not JSON: {error}")
    except RecursionError:
        return ValueError(f"{key} is nested too deeply")
    except ValueError:  # which advises to change a setting of Python
        return ValueError(f"{key} has a number with too many digits")


def _read(store: Store, key: str) -> bytes | None:
    """Return a document in a store, None if it is missing, or raise an error."""
    if isinstance(store, LocalStore):
        mode = (store.root / key).stat().st_mode  # Path.is_file hides some errors
        if stat.S_ISDIR(mode):
            raise ValueError(f"{key} is a folder, which zarr ignores")
        if not stat.S_ISREG(mode):
            return None  # reading a pipe, for example, might never end
    raw = sync(store.get(key, default_buffer_prototype()))
    return None if raw is None else raw.to_bytes()


def _object(data: object, key: str) -> Document:
    if isinstance(data, dict):
        return data
    return ValueError(f"{key} is not a JSON object, but {reprlib.repr(data)}")


def names_in(store: Store, path: str) -> list[str]:
    """Return the names in a folder of a store; an empty list if the store can't list."""

    async def names() -> list[str]:
        return sorted([name async for name in store.list_dir(path) if name])  # "": a file

    try:
        return sync(names()) if store.supports_listing else []
    except NotADirectoryError:
        return []


def as_json(value: object) -> str:
    """Return a value as JSON, in which NaN equals itself."""
    return json.dumps(value, sort_keys=True)


def differing(document: JSONObject, other: JSONObject) -> str:
    """Return the names whose values differ in two documents."""
    names = {**document, **other}
    return ", ".join(n for n in names if as_json(document.get(n)) != as_json(other.get(n)))


def join(path: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{path}/{name}".strip("/")


def array_of(document: Any, store_path: StorePath, config: Any = None) -> AnyArray:
    """Return the array with a metadata document, which need not be stored."""
    return zarr.Array(zarr.AsyncArray(document, store_path, config))


def why_not_opened(document: JSONObject) -> str:
    """Return what helps if zarr does not know the data type in metadata, or ""."""
    data_type = json.dumps(document.get("data_type", document.get("dtype")))
    # Such as netCDF-C writes, which not all versions of zarr read.
    if found := re.search('"([<>=])([biu]1|[SV][0-9]+)"', data_type):
        order, kind = found.groups()
        return f'"{order}{kind}" has a byte order that means nothing: write "|{kind}" in .zarray'
    return why_missing([row.name for row in ML_DTYPES if f'"{row.name}"' in data_type])


def read_in_part(array: AnyArray) -> Layout:
    """Return the layout of an array's (inner) chunks, parts of which can be read.

    Raises `LeftToZarr` if that is not so. Nothing is requested.
    """
    pipeline = array.async_array.codec_pipeline
    if not getattr(pipeline, "reads_partially", False):  # it may be zarr's, under the name of ours
        why = f"{name_of_class(pipeline)} is the codec pipeline"
        raise LeftToZarr(why_aside.get("arrays", why))
    from numcodecs_bytes._pipeline.array_layouts import (
        layout_of_array,  # not with any version of zarr
    )

    layout = layout_of_array(array)
    first = array.metadata.encode_chunk_key((0,) * array.ndim)
    source = value_or_error(find_extent, array.store_path / first)
    found: object = (
        value_or_error(length_of_file, source) if isinstance(source, FileExtent) else source
    )
    # Other errors say that it is missing, or damaged, which is checked later.
    if isinstance(found, LeftToZarr) and not isinstance(found, NothingToFetch | NotOpen):
        raise found
    return layout if isinstance(layout, Layout) else layout.inner


def grid_of(array: AnyArray) -> list[int]:
    """Return how many chunks, or shards, an array has along each axis."""
    chunk_shape = array.shards or array.chunks
    if 0 in chunk_shape and array.size:
        raise ValueError(f"its chunk shape is {chunk_shape}: expected at least 1 along each axis")
    return [-(-size // max(n, 1)) for size, n in zip(array.shape, chunk_shape, strict=True)]


class StoredChunk(NamedTuple):
    """A chunk that exists, or a shard."""

    at: Index
    key: str
    size: int | Exception  # its length in bytes, or why it can't be read


def stored_chunks(array: AnyArray, listing: Listing) -> Iterator[StoredChunk]:
    """Yield the chunks of an array that exist."""
    return chunks_at(array, _indices(array, grid_of(array), listing))


def chunks_at(array: AnyArray, indices: Iterator[Index]) -> Iterator[StoredChunk]:
    """Yield those chunks at some indices that exist."""
    while batch := list(itertools.islice(indices, 64)):
        keys = [join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        # A thread for each local file would take longer than reading it.
        groups = [(array.store, keys[start : start + 8]) for start in range(0, len(keys), 8)]
        sizes = itertools.chain(*sync(concurrent_map(groups, _sizes_of)))
        for index, key, size in zip(batch, keys, sizes, strict=True):
            if size is not None:
                yield StoredChunk(index, key, size)


def _indices(array: AnyArray, grid: list[int], listing: Listing) -> Iterator[Index]:
    """Yield the indices of the chunks that the store lists; if it can't list, those of the grid."""
    encoding = getattr(array.metadata, "chunk_key_encoding", None)
    if array.store.supports_listing and getattr(encoding, "name", "v2") in ("default", "v2"):
        prefix = f"{array.path}/".lstrip("/")
        for key in _keys_below(array, grid, listing):
            if not key.startswith(prefix):  # the store does not list what it was asked for
                continue
            name = key.removeprefix(prefix)
            index = tuple(map(int, re.findall("[0-9]+", name))) if grid else ()
            is_in_grid = len(index) == len(grid) and all(map(operator.lt, index, grid))
            if is_in_grid and array.metadata.encode_chunk_key(index) == name.rstrip("/"):
                listing.is_listed = True
                yield index  # also for a folder
            elif _METADATA.fullmatch(name):
                listing.is_listed = True
            elif is_in_grid and _CHUNK.fullmatch(name):
                listing.misnamed.append((index, name))
            elif name and not name.endswith("/"):
                listing.others.append(name)
    if not listing.is_listed:  # or else it would have listed at least the metadata
        listing.others.clear()  # the links of a web page, for example
        listing.misnamed.clear()
        listing.errors.clear()  # zarr reads chunks in a folder that can't be listed
        for number in range(min(math.prod(grid), MAX_UNLISTED)):
            yield tuple(map(int, np.unravel_index(number, grid)))


def _keys_below(array: AnyArray, grid: list[int], listing: Listing) -> Iterator[str]:
    """Yield the keys in the folder of an array; those of folders on a local disk end with "/"."""
    store, path = array.store, array.path
    if type(store) is not LocalStore and _local_path(store, path) is None:
        keys = _list_prefix(store, f"{path}/".lstrip("/"))
        while isinstance(key := value_or_error(sync, _next(keys)), str):
            yield key
        if key is not None:
            listing.errors.append(key)
        return
    # zarr's `list_prefix` skips folders that can't be listed, and follows links for ever.
    for below, to_visit in walk(store, path, partial(_may_hold_chunks, array, grid)):
        entries = os.walk(_local_path(store, below) or "", onerror=listing.errors.append)
        for _, folders, names in itertools.islice(entries, 1):
            folders.sort()
            to_visit.extend(folders)
            yield from (join(below, name) for name in sorted(names))
            yield from (f"{join(below, name)}/" for name in folders)


def _may_hold_chunks(array: AnyArray, grid: list[int], folder: str) -> bool:
    """Whether the first chunk that has the numbers in the name of a folder is below it."""
    name = folder.removeprefix(f"{array.path}/")
    index = list(map(int, re.findall("[0-9]+", name)))
    if len(index) >= len(grid) or not all(map(operator.lt, index, grid)):
        return False
    index += [0] * (len(grid) - len(index))
    return array.metadata.encode_chunk_key(tuple(index)).startswith(f"{name}/")


async def _list_prefix(store: Store, prefix: str) -> AsyncIterator[str]:
    """Yield keys; unlike some stores' own method, this raises nothing before the first of them."""
    async for key in store.list_prefix(prefix):
        yield key


async def _next(keys: AsyncIterator[str]) -> str | None:
    return await anext(keys, None)


async def _sizes_of(store: Store, keys: list[str]) -> list[int | Exception | None]:
    """Return the length of each chunk in bytes, None if it is missing, or why it can't be read."""

    def size_of_file(key: str) -> int | Exception | None:
        """Return the same for a chunk in a local file, which is opened; `LeftToZarr` for others."""
        source = value_or_error(find_extent, StorePath(store, key))
        if not isinstance(source, FileExtent):  # in an archive, compressed members are left, too
            return LeftToZarr("not a file")
        size = value_or_error(length_of_file, source)
        is_folder = isinstance(size, IsADirectoryError)
        return None if isinstance(size, source.missing_errors) and not is_folder else size

    sizes = await asyncio.to_thread(lambda: list(map(size_of_file, keys)))
    others = [k for k, size in enumerate(sizes) if isinstance(size, LeftToZarr)]
    found = await concurrent_map([(store, keys[k]) for k in others], _size_or_error)
    for k, size in zip(others, found, strict=True):
        sizes[k] = size
    return sizes


async def _size_or_error(store: Store, key: str) -> int | Exception | None:
    """Return the same for a chunk that is not in a local file."""
    references: Any = getattr(getattr(store, "fs", None), "references", None)
    size = await async_value_or_error(_size_of(store, key, references))
    if references is not None or not isinstance(size, FileNotFoundError | NotADirectoryError):
        return size  # or the error that a file is missing to which a reference points
    # fsspec raises FileNotFoundError for whatever a web server answers.
    why = size.__cause__
    if isinstance(why, Exception) and type(why).__module__.startswith("aiohttp"):
        return None if getattr(why, "status", None) == 404 else why
    return None


async def _size_of(store: Any, key: str, references: Any) -> int | None:
    """Return the same, or raise what the store raises."""
    if references is not None:
        reference = references.get(f"{store.path}/{key}".strip("/"))
        if reference is None:
            return None
        if isinstance(reference, str | bytes):  # it holds the chunk itself
            return len(await store.get(key, default_buffer_prototype()))
    size = int(await store.getsize(key))
    if size and only_states_lengths(store):
        last = RangeByteRequest(size - 1, size)
        end = await store.get(key, default_buffer_prototype(), last)
        if end is None or len(end) != 1:
            raise EOFError(f"its {size} bytes reach beyond the end of their object")
    return size
