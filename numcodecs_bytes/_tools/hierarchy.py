"""Read stores: hierarchies, metadata documents, sizes of chunks. Never writes."""

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
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import zarr.abc.store
import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from numcodecs_bytes._engine.files import File, Left, length_of_file
from numcodecs_bytes._engine.stores import find_source

T = TypeVar("T")

# How many chunks are listed at a time, and how many of them one thread opens.
_BATCH_LENGTH, _NUM_OPENED = 64, 8
# How many chunks of an array are probed in a store that can't list them.
MAX_UNLISTED = 100_000
_NO_FILE = -1  # in place of a size
# How many files that are no chunks are named.
_MAX_NAMED = 3
# What Zarr and NCZarr store next to chunks.
_METADATA = re.compile(r"zarr\.json|\.z(array|attrs|group|metadata)|\.ncz(array|attr|var)")


@dataclass
class Listing:
    """What is found out while an array's chunks are listed, besides the chunks.

    Attributes
    ----------
    is_listed : bool
        Whether the store lists the chunks; otherwise `MAX_UNLISTED` keys are probed at most.
    others : list of str
        The first files below the array that are neither its chunks nor metadata.
    num_others : int
        Number of these files.
    errors : list of OSError
        Why folders can't be listed.
    """

    is_listed: bool = False
    others: list[str] = field(default_factory=list)
    num_others: int = 0
    errors: list[OSError] = field(default_factory=list)

    def add_other(self, name: str) -> None:
        """Count a file that is not a chunk, unless it is metadata or a folder in a zip file."""
        if name and not name.endswith("/") and not _METADATA.fullmatch(name):
            self.num_others += 1
            if self.num_others <= _MAX_NAMED:
                self.others.append(name)


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
        found = [] if names else list(_consolidated(store, path, document))
        return found, [name for name in names if not _METADATA.fullmatch(name)]

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
        if isinstance(store, zarr.storage.LocalStore):
            mode = (store.root / key).stat().st_mode  # Path.is_file hides some errors
            if not stat.S_ISREG(mode):
                return None  # reading a pipe, for example, might never end
        raw = sync(store.get(key, default_buffer_prototype()))
        return None if raw is None else _object(json.loads(raw.to_bytes()))
    except (FileNotFoundError, NotADirectoryError):
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


def chunks_of(
    array: Any, grid: list[int], bar: Any, listing: Listing
) -> Iterator[list[tuple[int, ...]]]:
    """Yield batches of the indices of chunks that exist or, if the store can't list, may exist."""
    if bar is not None:
        bar.total = (bar.total or 0) + math.prod(grid)
        bar.refresh()
    num_left = math.prod(grid)
    for batch in _listed_chunks(array, grid, listing) or _all_chunks(grid):
        yield batch
        num_left -= len(batch)
        if bar is not None:
            bar.update(len(batch))
    if bar is not None:
        bar.update(num_left)  # chunks that do not exist


def first_chunk(array: Any) -> tuple[slice, ...] | None:
    """Return the region of the first chunk that exists, within the first 100 batches, or None."""
    grid = [-(-size // n) for size, n in zip(array.shape, array.chunks, strict=True)]
    for batch in itertools.islice(chunks_of(array, grid, None, Listing()), 100):
        keys = [join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        for index, size in zip(batch, sync(sizes_of(array.store, keys)), strict=True):
            if size is not None:
                return tuple(
                    slice(i * n, (i + 1) * n) for i, n in zip(index, array.chunks, strict=True)
                )
    return None


def _listed_chunks(
    array: Any, grid: list[int], listing: Listing
) -> Iterator[list[tuple[int, ...]]] | None:
    """Return the indices of the chunks that the store lists in batches, None if it can't list."""
    encoding = getattr(array.metadata, "chunk_key_encoding", None)
    if not array.store.supports_listing or getattr(encoding, "name", "v2") not in ("default", "v2"):
        return None
    prefix = f"{array.path}/".lstrip("/")
    batches = _list_below(array.store, prefix, listing)
    first = next(batches, [])
    listing.is_listed = any(key.startswith(prefix) for key in first)  # at least the metadata
    if not listing.is_listed:
        listing.errors.clear()  # all chunks are probed
        return None

    def index_of(key: str) -> tuple[int, ...] | None:
        name = key.removeprefix(prefix)
        index = tuple(map(int, re.findall("[0-9]+", name))) if grid else ()
        is_in_grid = len(index) == len(grid) and all(map(operator.lt, index, grid))
        if is_in_grid and array.metadata.encode_chunk_key(index) == name:
            return index
        listing.add_other(name)
        return None

    batches = itertools.chain([first], batches)
    return ([i for i in map(index_of, batch) if i is not None] for batch in batches)


def _list_below(store: zarr.abc.store.Store, prefix: str, listing: Listing) -> Iterator[list[str]]:
    """Yield the keys with a prefix in batches."""
    if type(store) is zarr.storage.LocalStore:
        files = _files_below(store.root, prefix, listing)
        yield from iter(lambda: list(itertools.islice(files, _BATCH_LENGTH)), [])
    else:
        keys = store.list_prefix(prefix)
        yield from iter(lambda: sync(_take(keys)), [])


def _files_below(root: Path, prefix: str, listing: Listing) -> Iterator[str]:
    """Yield the keys of local files; zarr's `list_prefix` skips folders that can't be listed."""
    walk = os.walk(root / prefix, onerror=listing.errors.append, followlinks=True)
    for folder, folders, names in walk:
        folders[:] = sorted(name for name in folders if not _leads_back(folder, name))
        below = "/".join(Path(folder).relative_to(root).parts)
        yield from (join(below, name) for name in sorted(names))


def _leads_back(folder: str, name: str) -> bool:
    """Whether a folder is a link to one above it."""
    path = os.path.join(folder, name)  # noqa: PTH118 # quick, as what follows
    if not os.path.islink(path):  # noqa: PTH114
        return False
    here, there = (os.path.join(os.path.realpath(p), "") for p in (folder, path))  # noqa: PTH118
    return here.startswith(there)


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


async def sizes_of(store: zarr.abc.store.Store, keys: list[str]) -> list[int | Exception | None]:
    """Return the size of each chunk in bytes, None if it does not exist, or why it can't be read.

    Files are opened: their size alone does not tell whether they can be. Of an object store, the
    size may come with the listing; a request for each chunk, to see whether it is forbidden, would
    take far longer than all the rest.
    """
    parts = [keys[i : i + _NUM_OPENED] for i in range(0, len(keys), _NUM_OPENED)]
    opened = await asyncio.gather(*(asyncio.to_thread(_open_each, store, part) for part in parts))
    sizes = list(itertools.chain.from_iterable(opened))
    others = [i for i, size in enumerate(sizes) if size == _NO_FILE]
    answers = await asyncio.gather(*(_ask_for_size(store, keys[i]) for i in others))
    for i, answer in zip(others, answers, strict=True):
        sizes[i] = answer
    return sizes


async def _ask_for_size(store: zarr.abc.store.Store, key: str) -> int | Exception | None:
    try:
        return await store.getsize(key)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        return error


def _open_each(store: zarr.abc.store.Store, keys: list[str]) -> list[int | Exception | None]:
    """Return the same for chunks in local files, and `_NO_FILE` for others."""
    return [_size_of_file(find_source(zarr.storage.StorePath(store, key))) for key in keys]


def _size_of_file(source: Any) -> int | Exception | None:
    if not isinstance(source, File):
        return _NO_FILE
    try:
        return length_of_file(source)
    except Left:
        return _NO_FILE
    except Exception as error:  # noqa: BLE001 # files and archives raise anything
        return None if isinstance(error, source.missing) else error
