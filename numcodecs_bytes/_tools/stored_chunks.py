"""Finds the chunks of an array that exist, their sizes, and what else is where they are."""

import asyncio
import itertools
import math
import operator
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import StorePath, ZipStore
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._core.lengths import NUM_START_BYTES, explain_stand_in
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.stores import find_extent, only_states_lengths
from numcodecs_bytes._tools.arrays import Grid
from numcodecs_bytes._tools.documents import METADATA, join, leads_nowhere, local_path, walk
from numcodecs_bytes._tools.reporting import describe_error
from numcodecs_bytes._zarr_api.file_systems import (
    is_inlined,
    is_web_server,
    references_of,
    target_of,
)

ChunkCoords = tuple[int, ...]

# How many names of chunks are tried for an array that a store does not list.
MAX_UNLISTED = 10_000
# The names of chunks under all chunk key encodings.
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")
# The temporary names of zarr, which drops what follows the last point, and of this package.
LEFTOVER = re.compile(
    rf"(.*/)?(c|(c\.)?[0-9]+(\.[0-9]+)*|zarr|{METADATA.pattern})"
    r"\.([0-9a-f]{32}|[0-9a-f]+\.in-place)\.partial"
)


class StoredChunk(NamedTuple):
    """A chunk that exists, or a shard."""

    chunk_coords: ChunkCoords
    key: str
    num_bytes: int | None  # None if the chunk can't be read
    error: Exception | None  # why it can't be read


class Listed(NamedTuple):
    """What a store lists in the folder of an array, or that it lists nothing."""

    # "misnamed": a file with the name of a chunk under another chunk key encoding. "outside": a
    # file with the name of a chunk that would be outside the shape of the array. "dangling": a link
    # that leads nowhere, with the name of a chunk, or of a folder of chunks. "error": a
    # folder can't be listed, so that chunks may be missed. "unlisted": nothing is listed, so that
    # names of chunks are tried. "leftover": a write that was killed has left the file.
    kind: Literal[
        "chunk",
        "misnamed",
        "outside",
        "dangling",
        "metadata",
        "leftover",
        "other",
        "error",
        "unlisted",
    ]
    name: str = ""  # the name of a file in that folder, or what an error says
    chunk_coords: ChunkCoords = ()


class _Size(NamedTuple):
    """The length of a chunk in bytes, or why it can't be read; neither if it is missing."""

    num_bytes: int | None = None
    error: Exception | None = None


def find_chunks(array: AnyArray) -> Iterator[StoredChunk | Listed]:
    """Yield the chunks of an array that exist, and what else is found on the way."""
    found = _listed(array, Grid.of(array).shape)
    while batch := list(itertools.islice(found, 64)):
        yield from (each for each in batch if each.kind != "chunk")
        yield from chunks_at(array, [each.chunk_coords for each in batch if each.kind == "chunk"])


def chunks_at(array: AnyArray, all_coords: Iterable[ChunkCoords]) -> Iterator[StoredChunk]:
    """Yield those chunks at some chunk_coords that exist."""
    remaining = iter(all_coords)
    while batch := list(itertools.islice(remaining, 64)):
        keys = [join(array.path, array.metadata.encode_chunk_key(each)) for each in batch]
        # A thread for each local file would take longer than reading it.
        groups = [(array.store, keys[start : start + 8]) for start in range(0, len(keys), 8)]
        sizes = itertools.chain(*sync(concurrent_map(groups, _sizes_of)))
        for chunk_coords, key, size in zip(batch, keys, sizes, strict=True):
            if size != _Size():
                yield StoredChunk(chunk_coords, key, *size)


async def _sizes_of(store: Store, keys: list[str]) -> list[_Size]:
    """Return the size of each chunk: local files are opened, other stores are asked."""
    of_files = await asyncio.to_thread(lambda: [_size_of_file(store, key) for key in keys])
    others = [(store, key) for key, size in zip(keys, of_files, strict=True) if size is None]
    stated = iter(await concurrent_map(others, _size_in_store))
    return [next(stated) if size is None else size for size in of_files]


def _size_of_file(store: Store, key: str) -> _Size | None:
    """Return the size of a chunk in a local file, or None: it may be somewhere else."""
    extent = value_or_error(find_extent, StorePath(store, key))
    if not isinstance(extent, FileExtent):
        return None
    size = value_or_error(length_of_file, extent)
    if isinstance(size, LeftToZarr):  # a compressed member of an archive
        return None
    if isinstance(size, int):
        return _Size(size)
    if isinstance(size, IsADirectoryError) or not isinstance(size, extent.missing_errors):
        return _Size(error=size)
    path = local_path(store, key)
    leads_nowhere = path is not None and path.is_symlink()
    return _Size(error=size) if leads_nowhere else _Size()


async def _size_in_store(store: Store, key: str) -> _Size:
    """Return the size of a chunk that is not in a local file."""
    size = await async_value_or_error(_size_of(store, key))
    if not isinstance(size, Exception):
        return _Size(size)
    # A file that a reference points to, but that is missing, is an error.
    has_references = references_of(store) is not None
    if has_references or not isinstance(size, FileNotFoundError | NotADirectoryError):
        return _Size(error=size)
    # fsspec raises FileNotFoundError for whatever a web server answers.
    why = size.__cause__
    if isinstance(why, Exception) and type(why).__module__.startswith("aiohttp"):
        return _Size() if getattr(why, "status", None) == 404 else _Size(error=why)
    return _Size()


async def _size_of(store: Any, key: str) -> int | None:
    """Return the length that the store states, None if it is missing; raise what it raises."""
    if references_of(store) is not None:
        try:
            reference = references_of(store)[f"{store.path}/{key}".strip("/")]
        except KeyError as error:
            if isinstance(error.__cause__, TypeError | ValueError):  # of Parquet
                what = "the file that holds its reference is damaged, so zarr reads the fill value"
                raise OSError(f"{what}: restore it, or make the references again") from error
            return None
        if is_inlined(reference):
            return len(await store.get(key, default_buffer_prototype()))
        target_of(reference, store.fs)  # raises an error if it is malformed
    size = int(await store.getsize(key))
    if size and only_states_lengths(store):
        last = RangeByteRequest(size - 1, size)
        end = await store.get(key, default_buffer_prototype(), last)
        if end is None or not len(end):
            raise OSError(f"its {size} bytes end after the end of the file that they are in")
        if len(end) > 1:
            raise OSError(
                explain_stand_in(end[:NUM_START_BYTES].to_bytes())
                or f"the server ignored the byte range, and sent the whole file of {len(end)} "
                "bytes: download that, or use a server that supports byte ranges"
            )
    return size


def _listed(array: AnyArray, grid: list[int]) -> Iterator[Listed]:
    """Yield what the store lists for an array; if it can't list, the chunk_coords of all chunks."""
    found = _named_in_folder(array, grid)
    before: list[Listed] = []
    is_web, is_listed = is_web_server(array.store), False
    for each in found:
        before.append(each)
        is_listed |= each.kind == "metadata"
        if each.kind == "chunk" or (is_listed and not is_web):
            yield from before
            yield from found
            return
    # A folder that can be listed holds at least the metadata; otherwise, what is listed are the
    # links of a web page, for example, and zarr reads the chunks nevertheless. A web server may
    # list one folder, and for another send a login form, which it then sends for each chunk.
    if is_listed:
        yield from before
    else:
        yield Listed("unlisted")
    num_tried = 1 if is_listed else MAX_UNLISTED
    for number in range(min(math.prod(grid), num_tried)):
        yield Listed("chunk", chunk_coords=tuple(map(int, np.unravel_index(number, grid))))


def _named_in_folder(array: AnyArray, grid: list[int]) -> Iterator[Listed]:
    """Yield what the names that a store lists in the folder of an array stand for."""
    encoding = getattr(array.metadata, "chunk_key_encoding", None)
    if not array.store.supports_listing or getattr(encoding, "name", "v2") not in ("default", "v2"):
        return
    prefix = f"{array.path}/".lstrip("/")
    is_local = local_path(array.store, array.path) is not None
    for key in _keys_below(array, grid):
        if isinstance(key, Exception):
            yield Listed("error", describe_error(key))
            continue
        # Some stores list more than they are asked for, and archives have members for folders.
        if not key.startswith(prefix) or (key.endswith("/") and not is_local):
            continue
        if (listed := _listed_as(array, grid, key, key.removeprefix(prefix))) is not None:
            yield listed


def _listed_as(array: AnyArray, grid: list[int], key: str, name: str) -> Listed | None:
    """Return what a name in the folder of an array stands for; None for other folders."""
    chunk_coords = _numbers_in(name) if grid else ()
    has_coords = len(chunk_coords) == len(grid)
    is_in_grid = has_coords and all(map(operator.lt, chunk_coords, grid))
    is_key = has_coords and array.metadata.encode_chunk_key(chunk_coords) == name.rstrip("/")
    if is_key and is_in_grid:
        return Listed("chunk", name, chunk_coords)  # it may be a folder
    if is_key and not name.endswith("/"):
        return Listed("outside", name, chunk_coords)
    if _CHUNK.fullmatch(name) and leads_nowhere(array.store, key):
        return Listed("dangling", name)
    if is_in_grid and _CHUNK.fullmatch(name):
        return Listed("misnamed", name, chunk_coords)
    if LEFTOVER.fullmatch(name):
        return Listed("leftover", name)
    if not name or name.endswith("/"):
        return None
    return Listed("metadata" if METADATA.fullmatch(name) else "other", name)


def _numbers_in(name: str) -> ChunkCoords:
    numbers = re.findall("[0-9]+", name)
    # Python parses no number of more digits than a setting says, at least 640.
    return tuple(map(int, numbers)) if all(len(each) < 640 for each in numbers) else ()


def _keys_below(array: AnyArray, grid: list[int]) -> Iterator[str | Exception]:
    """Yield the keys in the folder of an array; those of folders on a local disk end with "/"."""
    store, path = array.store, array.path
    if local_path(store, path) is None:
        keys = _list_prefix(store, f"{path}/".lstrip("/"))
        is_zip = isinstance(store, ZipStore)  # it lists twice what is rewritten
        members: set[str] = set()
        while isinstance(key := value_or_error(sync, _next(keys)), str):
            if key not in members:
                yield key
            if is_zip:
                members.add(key)
        if key is not None:  # an error, after which a listing may never end
            yield key
        return
    # zarr's `list_prefix` skips folders that can't be listed, and follows links for ever.
    found = walk(store, partial(_keys_in, store), path, partial(_may_hold_chunks, array, grid))
    yield from itertools.chain.from_iterable(found)


def _keys_in(store: Store, path: str) -> tuple[Iterator[str | OSError], list[str]]:
    """Return the keys in a local folder, those of folders with "/" at the end, and their names."""
    errors: list[OSError] = []
    listed = os.walk(local_path(store, path) or "", onerror=errors.append)
    _, folders, files = next(listed, ("", [], []))
    folders.sort()
    keys = (join(path, name) for name in sorted(files))
    keys_of_folders = (f"{join(path, name)}/" for name in folders)
    return itertools.chain(keys, keys_of_folders, errors), folders


def _may_hold_chunks(array: AnyArray, grid: list[int], folder: str) -> bool:
    """Whether the first chunk that has the numbers in the name of a folder is below it."""
    name = folder.removeprefix(f"{array.path}/")
    numbers = _numbers_in(name)
    num_lacking = len(grid) - len(numbers)
    if num_lacking <= 0 or not all(map(operator.lt, numbers, grid)):
        return False
    return array.metadata.encode_chunk_key(numbers + (0,) * num_lacking).startswith(f"{name}/")


async def _list_prefix(store: Store, prefix: str) -> AsyncIterator[str]:
    """Yield keys; unlike some stores' own method, this raises nothing before the first of them."""
    async for key in store.list_prefix(prefix):
        yield key


async def _next(keys: AsyncIterator[str]) -> str | None:
    return await anext(keys, None)
