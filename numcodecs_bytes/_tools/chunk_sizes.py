"""The sizes of stored chunks, without reading them."""

import asyncio
from typing import Any

from zarr.abc.store import RangeByteRequest, Store
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.storage import StorePath

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.stores import find_extent, only_states_lengths

# Of a chunk: its length in bytes, why it can't be read, or None if it is missing.
Size = int | Exception | None


async def sizes_of(store: Store, keys: list[str]) -> list[Size]:
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
    """Return the length that the store states, or raise what it raises."""
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
