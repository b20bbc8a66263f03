"""Read stores: hierarchies, metadata documents, sizes of chunks. Never writes."""

import asyncio
import contextlib
import itertools
import json
import math
import operator
import re
import reprlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import zarr.abc.store
import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

T = TypeVar("T")

_BATCH_LENGTH = 64
# How many chunks of an array are probed in a store that can't list them.
MAX_UNLISTED = 100_000


def describe_error(error: Exception) -> str:
    """Return the class and message of an error, without what only its package's developers need."""
    kind, text = type(error), str(error)
    if kind.__module__.startswith("icechunk"):  # which draws the calls that led to it
        text = re.split(r"\s*\|?\s*context:", text)[0].strip().removeprefix("x ")
    return f"{kind.__name__.lstrip('_')}: {text}".removesuffix(": ")


def ensure_open(store: zarr.abc.store.Store) -> None:
    """Open a store that is not open yet: zarr 3.1.6 does not do so for each request."""
    sync(store._ensure_open())  # noqa: SLF001 # zarr has no public way to do so


def walk(
    store: zarr.abc.store.Store, look: Callable[[str], tuple[list[T], list[str]]]
) -> Iterator[T]:
    """Go through the folders of a store, parents before what is below them, each of them once.

    Parameters
    ----------
    store : zarr.abc.store.Store
        The store.
    look : callable
        Takes the path of a folder; returns what was found there, and the names below it to go on
        with.

    Yields
    ------
    object
        What was found.
    """
    ensure_open(store)
    paths, seen = [""], set[Path]()
    while paths:
        path = paths.pop()
        if isinstance(store, zarr.storage.LocalStore):  # symbolic links may lead back
            folder = (store.root / path).resolve()
            if folder in seen:
                continue
            seen.add(folder)
        found, names = look(path)
        yield from found
        paths += [join(path, name) for name in reversed(names)]


def find_arrays(store: zarr.abc.store.Store) -> Iterator[tuple[str, Any]]:
    """Find the arrays in a store.

    Yields
    ------
    path : str
        Path of an array in the store.
    document : dict or Exception
        Its metadata document, or the error if that can't be read.

    Raises
    ------
    Exception
        Whatever the store raises if it can't list its root.
    """

    def look(path: str) -> tuple[list[tuple[str, Any]], list[str]]:
        document = document_at(store, join(path, "zarr.json"))
        is_group = isinstance(document, dict) and document.get("node_type") == "group"
        is_array = isinstance(document, dict) and document.get("node_type") == "array"
        if document is None:
            document = document_at(store, join(path, ".zarray"))
            is_array = isinstance(document, dict)
        if is_array:
            return [(path, document)], []
        try:
            names = names_in(store, path)
        except Exception as error:
            if not path:
                raise
            return [(path, error)], []
        if not is_group and _is_endless(store, path, names):
            why = ValueError(
                f"the store lists {path!r} as part of itself, without end, so arrays may be "
                "missing here; if it is a zip file at a URL, download it, or upgrade zarr"
            )
            return [(path, why)], []
        if document is not None and not is_group:
            # It may be an array: do not search its chunks for arrays.
            names = [name for name in names if name != "c" and not name[0].isdigit()]
            return [(path, document)], names
        return [] if names else list(_consolidated(store, path, document)), names

    return walk(store, look)


def _is_endless(store: zarr.abc.store.Store, path: str, names: list[str]) -> bool:
    """Whether a store lists a folder as part of itself, as zarr 3.1.6 does in zip files at URLs."""
    is_suspect = len(names) == 1 and path.split("/")[-3:] == names * 3
    return is_suspect and bool(names_in(store, join(path, ".no-such-folder")))


def _consolidated(store: zarr.abc.store.Store, path: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the same from a group's consolidated metadata: web servers do not list folders."""
    if group is None:
        consolidated = document_at(store, join(path, ".zmetadata"))
    else:
        consolidated = group.get("consolidated_metadata")
    documents = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    for key, data in documents.items() if isinstance(documents, dict) else ():
        name, _, file = key.rpartition("/") if group is None else (key, "", ".zarray")
        document = _object(data)
        is_group = isinstance(document, dict) and document.get("node_type") == "group"
        if file == ".zarray" and not is_group:
            yield join(path, name), document


def document_at(store: zarr.abc.store.Store, key: str) -> Any:
    """Return a JSON object in the store, None if it does not exist, or the error of reading it."""
    try:
        if isinstance(store, zarr.storage.LocalStore) and not (store.root / key).is_file():
            return None  # reading a pipe, for example, might never end
        raw = sync(store.get(key, default_buffer_prototype()))
        return None if raw is None else _object(json.loads(raw.to_bytes()))
    except NotADirectoryError:
        return None
    except Exception as error:  # noqa: BLE001 # files, stores and networks raise anything
        return error


def _object(data: Any) -> Any:
    if isinstance(data, dict):
        return data
    return TypeError(f"expected a JSON object, got {reprlib.repr(data)}")


async def _list(store: zarr.abc.store.Store, path: str) -> list[str]:
    if not store.supports_listing:
        return []
    with contextlib.suppress(NotADirectoryError):
        return sorted([name async for name in store.list_dir(path)])
    return []


def names_in(store: zarr.abc.store.Store, path: str) -> list[str]:
    """Return the names in a folder of a store; an empty list if the store can't list."""
    return sync(_list(store, path))


def join(path: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{path}/{name}".strip("/")


def chunks_of(array: Any, grid: list[int], bar: Any) -> Iterator[list[tuple[int, ...]]]:
    """Yield batches of the indices of chunks that exist or, if the store can't list, may exist."""
    if bar is not None:
        bar.total = (bar.total or 0) + math.prod(grid)
        bar.refresh()
    num_left = math.prod(grid)
    for batch in _listed_chunks(array, grid) or _all_chunks(grid):
        yield batch
        num_left -= len(batch)
        if bar is not None:
            bar.update(len(batch))
    if bar is not None:
        bar.update(num_left)  # chunks that do not exist


def first_chunk(array: Any) -> tuple[slice, ...] | None:
    """Return the region of the first chunk that exists, within the first 100 batches, or None."""
    grid = [-(-size // n) for size, n in zip(array.shape, array.chunks, strict=True)]
    for batch in itertools.islice(chunks_of(array, grid, None), 100):
        keys = [join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        for index, size in zip(batch, sync(sizes_of(array.store, keys)), strict=True):
            if size is not None:
                return tuple(
                    slice(i * n, (i + 1) * n) for i, n in zip(index, array.chunks, strict=True)
                )
    return None


def can_list(array: Any) -> bool:
    """Whether the store lists an array's chunks and their keys can be converted to indices."""
    encoding = getattr(array.metadata, "chunk_key_encoding", None)
    if not array.store.supports_listing or getattr(encoding, "name", "v2") not in ("default", "v2"):
        return False
    prefix = f"{array.path}/".lstrip("/")
    first = sync(_take(array.store.list_prefix(prefix)))
    return any(key.startswith(prefix) for key in first)  # at least the metadata


def _listed_chunks(array: Any, grid: list[int]) -> Iterator[list[tuple[int, ...]]] | None:
    """Return the indices of the chunks that the store lists in batches, None if it can't list."""
    if not can_list(array):
        return None
    prefix = f"{array.path}/".lstrip("/")
    keys = array.store.list_prefix(prefix)
    first = sync(_take(keys))

    def index_of(key: str) -> tuple[int, ...] | None:
        name = key.removeprefix(prefix)
        index = tuple(map(int, re.findall("[0-9]+", name))) if grid else ()
        is_in_grid = len(index) == len(grid) and all(map(operator.lt, index, grid))
        return index if is_in_grid and array.metadata.encode_chunk_key(index) == name else None

    batches = itertools.chain([first], iter(lambda: sync(_take(keys)), []))
    return ([i for i in map(index_of, batch) if i is not None] for batch in batches)


def _all_chunks(grid: list[int]) -> Iterator[list[tuple[int, ...]]]:
    num_chunks = min(math.prod(grid), MAX_UNLISTED)
    for start in range(0, num_chunks, _BATCH_LENGTH):
        numbers = range(start, min(start + _BATCH_LENGTH, num_chunks))
        yield [_index_of(number, grid) for number in numbers]


async def _take(keys: AsyncIterator[str]) -> list[str]:
    """Return the next batch of keys."""
    taken: list[str] = []
    async for key in keys:
        taken.append(key)
        if len(taken) == _BATCH_LENGTH:
            break
    return taken


def _index_of(number: int, grid: list[int]) -> tuple[int, ...]:
    """Return the index of a chunk from its number in C order; `numpy.unravel_index` has 64 bits."""
    index = []
    for length in reversed(grid):
        number, i = divmod(number, length)
        index.append(i)
    return tuple(reversed(index))


async def sizes_of(store: zarr.abc.store.Store, keys: list[str]) -> list[int | None]:
    """Return the size of each chunk in bytes, None for those that do not exist."""

    async def size_of(key: str) -> int | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return await store.getsize(key)
        return None

    return await asyncio.gather(*map(size_of, keys))
