"""Finds the chunks of an array that exist, their sizes, and what else is where they are."""

import asyncio
import itertools
import math
import operator
import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import StorePath
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.stores import find_extent, only_states_lengths
from numcodecs_bytes._tools.documents import METADATA, join, local_path, walk
from numcodecs_bytes._zarr_api.file_systems import reference_to, references_of

ChunkCoords = tuple[int, ...]
# Of a chunk: its length in bytes, why it can't be read, or None if it is missing.
Size = int | Exception | None

# How many names of chunks are tried for an array that a store does not list.
MAX_UNLISTED = 10_000
# The names of chunks under all chunk key encodings.
_CHUNK = re.compile(r"c|(c[./])?[0-9]+([./][0-9]+)*")


class StoredChunk(NamedTuple):
    """A chunk that exists, or a shard."""

    chunk_coords: ChunkCoords
    key: str
    size: int | Exception  # its length in bytes, or why it can't be read


@dataclass(frozen=True)
class MisnamedChunk:
    """A file that has the name of a chunk under another chunk key encoding."""

    chunk_coords: ChunkCoords
    name: str


class UnlistedArray:
    """An array of which the store lists nothing: the names of its chunks are tried."""


# A text is the name of any other file, metadata or not; an error is why a folder can't be listed,
# so that chunks may be missed.
BesideChunks = MisnamedChunk | UnlistedArray | str | Exception


def grid_of(array: AnyArray) -> list[int]:
    """Return how many chunks, or shards, an array has along each axis."""
    chunk_shape = array.shards or array.chunks
    if 0 in chunk_shape and array.size:
        raise ValueError(f"its chunk shape is {chunk_shape}: expected at least 1 along each axis")
    return [-(-size // max(n, 1)) for size, n in zip(array.shape, chunk_shape, strict=True)]


def find_chunks(array: AnyArray) -> Iterator[StoredChunk | BesideChunks]:
    """Yield the chunks of an array that exist, and what else is found on the way."""
    found = _listed(array, grid_of(array))
    while batch := list(itertools.islice(found, 64)):
        yield from (each for each in batch if not isinstance(each, tuple))
        yield from chunks_at(array, [each for each in batch if isinstance(each, tuple)])


def chunks_at(array: AnyArray, all_coords: Iterable[ChunkCoords]) -> Iterator[StoredChunk]:
    """Yield those chunks at some chunk_coords that exist."""
    remaining = iter(all_coords)
    while batch := list(itertools.islice(remaining, 64)):
        keys = [join(array.path, array.metadata.encode_chunk_key(each)) for each in batch]
        # A thread for each local file would take longer than reading it.
        groups = [(array.store, keys[start : start + 8]) for start in range(0, len(keys), 8)]
        sizes = itertools.chain(*sync(concurrent_map(groups, _sizes_of)))
        for chunk_coords, key, size in zip(batch, keys, sizes, strict=True):
            if size is not None:
                yield StoredChunk(chunk_coords, key, size)


async def _sizes_of(store: Store, keys: list[str]) -> list[Size]:
    """Return the size of each chunk: local files are opened, other stores are asked."""
    sizes = await asyncio.to_thread(lambda: [_size_of_file(store, key) for key in keys])
    others = [k for k, size in enumerate(sizes) if isinstance(size, LeftToZarr)]
    found = await concurrent_map([(store, keys[k]) for k in others], _size_or_error)
    for k, size in zip(others, found, strict=True):
        sizes[k] = size
    return sizes


def _size_of_file(store: Store, key: str) -> Size:
    """Return the size of a chunk in a local file, `LeftToZarr` for others."""
    extent = value_or_error(find_extent, StorePath(store, key))
    if not isinstance(extent, FileExtent):  # in an archive, compressed members are left, too
        return LeftToZarr("not a file")
    size = value_or_error(length_of_file, extent)
    is_folder = isinstance(size, IsADirectoryError)
    return None if isinstance(size, extent.missing_errors) and not is_folder else size


async def _size_or_error(store: Store, key: str) -> Size:
    """Return the size of a chunk that is not in a local file."""
    size = await async_value_or_error(_size_of(store, key))
    # A file that a reference points to, but that is missing, is an error.
    has_references = references_of(store) is not None
    if has_references or not isinstance(size, FileNotFoundError | NotADirectoryError):
        return size
    # fsspec raises FileNotFoundError for whatever a web server answers.
    why = size.__cause__
    if isinstance(why, Exception) and type(why).__module__.startswith("aiohttp"):
        return None if getattr(why, "status", None) == 404 else why
    return None


async def _size_of(store: Any, key: str) -> int | None:
    """Return the length that the store states, or raise what it raises."""
    if references_of(store) is not None:
        reference = reference_to(store, key)
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


def _listed(array: AnyArray, grid: list[int]) -> Iterator[ChunkCoords | BesideChunks]:
    """Yield what the store lists for an array; if it can't list, the chunk_coords of all chunks."""
    found = _named_in_folder(array, grid)
    before: list[BesideChunks] = []
    for each in found:
        if isinstance(each, tuple) or (isinstance(each, str) and METADATA.fullmatch(each)):
            yield from before
            yield each
            yield from found
            return
        before.append(each)
    # Otherwise, it would have listed at least the metadata: what it lists are the links of a web
    # page, for example, and zarr reads chunks in a folder that can't be listed.
    yield UnlistedArray()
    for number in range(min(math.prod(grid), MAX_UNLISTED)):
        yield tuple(map(int, np.unravel_index(number, grid)))


def _named_in_folder(array: AnyArray, grid: list[int]) -> Iterator[ChunkCoords | BesideChunks]:
    """Yield what the names that a store lists in the folder of an array stand for."""
    encoding = getattr(array.metadata, "chunk_key_encoding", None)
    if not array.store.supports_listing or getattr(encoding, "name", "v2") not in ("default", "v2"):
        return
    prefix = f"{array.path}/".lstrip("/")
    for key in _keys_below(array, grid):
        if isinstance(key, Exception):
            yield key
            continue
        if not key.startswith(prefix):  # the store does not list what it was asked for
            continue
        name = key.removeprefix(prefix)
        chunk_coords = _numbers_in(name) if grid else ()
        is_in_grid = len(chunk_coords) == len(grid) and all(map(operator.lt, chunk_coords, grid))
        if is_in_grid and array.metadata.encode_chunk_key(chunk_coords) == name.rstrip("/"):
            yield chunk_coords  # also of a folder
        elif is_in_grid and _CHUNK.fullmatch(name):
            yield MisnamedChunk(chunk_coords, name)
        elif name and not name.endswith("/"):
            yield name


def _numbers_in(name: str) -> ChunkCoords:
    return tuple(map(int, re.findall("[0-9]+", name)))


def _keys_below(array: AnyArray, grid: list[int]) -> Iterator[str | Exception]:
    """Yield the keys in the folder of an array; those of folders on a local disk end with "/"."""
    store, path = array.store, array.path
    if local_path(store, path) is None:
        keys = _list_prefix(store, f"{path}/".lstrip("/"))
        while isinstance(key := value_or_error(sync, _next(keys)), str):
            yield key
        if key is not None:
            yield key
        return
    # zarr's `list_prefix` skips folders that can't be listed, and follows links for ever.
    found = walk(store, partial(_keys_in, store), path, partial(_may_hold_chunks, array, grid))
    yield from itertools.chain.from_iterable(found)


def _keys_in(store: Store, path: str) -> tuple[Iterator[str | Exception], list[str]]:
    """Return the keys in a local folder, those of folders with "/" at the end, and their names."""
    errors: list[OSError] = []
    listed = os.walk(local_path(store, path) or "", onerror=errors.append)
    _, folders, files = next(listed, ("", [], []))
    keys = itertools.chain(sorted(files), (f"{name}/" for name in sorted(folders)))
    return itertools.chain((join(path, name) for name in keys), errors), sorted(folders)


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
