"""Read stores: hierarchies, metadata documents, sizes of chunks. Never writes."""

import asyncio
import contextlib
import importlib.util
import itertools
import json
import math
import operator
import re
import reprlib
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import zarr.abc.store
import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

_BATCH_LENGTH = 64
# How many chunks of an array are probed in a store that can't list them.
MAX_UNLISTED = 100_000


def open_store(location: str | Path, *, read_only: bool = True) -> zarr.abc.store.Store:
    """Open the store at a location; its kind is detected.

    Parameters
    ----------
    location : str or Path
        A folder, a zip file, kerchunk references (JSON, or a folder of Parquet files), an Icechunk
        repository in a folder (its branch `main`), or a URL of one of the first three that fsspec
        supports.
    read_only : bool
        Whether to open the store read-only, as a zip file always is.

    Returns
    -------
    zarr.abc.store.Store
        The open store.

    Raises
    ------
    OSError, ValueError
        If there is no such store.
    ImportError
        If a package is missing; the message says how to install it.
    """
    location, path = str(location), Path(location)
    is_url = "://" in location
    if not is_url and not path.exists():
        raise FileNotFoundError(
            f"no Zarr hierarchy at {location}: expected a folder, a file or a URL"
        )
    if location.endswith((".json", ".parq", ".parquet")):
        if not read_only:
            raise ValueError("kerchunk references are read-only")
        return _open_references(location)
    if is_url:
        _need("fsspec")
        is_archive = location.endswith(".zip") and not location.startswith("zip:")
        if is_archive and not read_only:
            raise ValueError("a zip file at a URL can't be changed: download it, give its path")
        chain = f"zip://::{location}" if is_archive else location
        return zarr.storage.FsspecStore.from_url(chain, read_only=read_only)
    if path.is_file():
        try:
            archive: zarr.abc.store.Store = sync(zarr.storage.ZipStore.open(location, mode="r"))
        except zipfile.BadZipFile as error:
            raise ValueError(
                f"it is a file, but not a zip file, or a damaged one ({error}); the name of "
                "kerchunk references must end in .json"
            ) from error
        return archive
    if read_only and (path / "snapshots").is_dir() and (path / "manifests").is_dir():
        _need("icechunk")
        import icechunk  # noqa: PLC0415 # only needed here

        repository = icechunk.Repository.open(icechunk.local_filesystem_storage(location))
        store: zarr.abc.store.Store = repository.readonly_session("main").store
        return store
    return zarr.storage.LocalStore(location, read_only=read_only)


class _ParquetReferences(zarr.storage.FsspecStore):
    """kerchunk's references in Parquet, which would take `zarr.json` for a chunk and raise."""

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        return None if key.endswith("zarr.json") else await super().get(key, *args, **kwargs)


def _open_references(location: str) -> zarr.abc.store.Store:
    _need("fsspec")
    is_json = location.endswith(".json")
    if not is_json and importlib.util.find_spec("pyarrow") is None:
        _need("fastparquet")
    import fsspec  # noqa: PLC0415 # only needed here

    file_system = fsspec.filesystem(
        "reference", fo=location, remote_options={"asynchronous": True}, asynchronous=True
    )
    kind = zarr.storage.FsspecStore if is_json else _ParquetReferences
    return kind(file_system, read_only=True)


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        extra = "stores" if package == "fsspec" else "ecosystem"
        raise ImportError(f'this needs {package}: pip install "numcodecs_bytes[{extra}]"')


def describe(error: Exception) -> str:
    """Return the class and message of an error."""
    return f"{type(error).__name__}: {error}"


def ensure_open(store: zarr.abc.store.Store) -> None:
    """Open a store that is not open yet: zarr 3.1.6 does not do so for each request."""
    sync(store._ensure_open())  # noqa: SLF001 # zarr has no public way to do so


def was_visited(store: zarr.abc.store.Store, path: str, seen: set[Path]) -> bool:
    """Whether a local folder was seen before, which symbolic links can cause; adds it to `seen`."""
    if not isinstance(store, zarr.storage.LocalStore):
        return False
    folder = (store.root / path).resolve()
    is_known = folder in seen
    seen.add(folder)
    return is_known


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
    ensure_open(store)
    paths, seen = [""], set[Path]()
    while paths:
        path = paths.pop()
        if was_visited(store, path, seen):
            continue
        document = document_at(store, join(path, "zarr.json"))
        is_group = isinstance(document, dict) and document.get("node_type") == "group"
        is_array = isinstance(document, dict) and document.get("node_type") == "array"
        if document is None:
            document = document_at(store, join(path, ".zarray"))
            is_array = isinstance(document, dict)
        is_broken = document is not None and not (is_group or is_array)
        if is_array:
            yield path, document
            continue
        try:
            names = names_in(store, path)
        except Exception as error:
            if not path:
                raise
            yield path, error
            continue
        if is_broken:
            yield path, document
        # A broken node may be an array: do not search its chunks for arrays.
        paths += [
            join(path, name)
            for name in reversed(names)
            if not (is_broken and (name == "c" or name[0].isdigit()))
        ]
        if not names and not is_broken:
            yield from _consolidated(store, path, document)


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
