"""Walks the folders of a store."""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import LocalStore

from numcodecs_bytes._sources.obstore_local import folder_of
from numcodecs_bytes._zarr_api.names import name_of_class
from numcodecs_bytes._zarr_api.private_names import ensure_open


def walk(
    store: Store, start: str = "", may_repeat: Callable[[str], bool] = lambda _: False
) -> Iterator[tuple[str, list[str]]]:
    """Yield the path of each folder, parents first, and a list for the names to visit in it.

    A local folder that several paths lead to, by symbolic links, is visited by the first of them,
    and by those that may repeat it: links may lead back, and two that do make 2^40 paths.
    """
    sync(ensure_open(store))
    paths = [start]
    seen: set[Hashable] = set()
    while paths:
        path = paths.pop()
        if (local := local_path(store, path)) is not None:
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


def local_path(store: Any, path: str) -> Path | None:
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


def names_in(store: Store, path: str) -> list[str]:
    """Return the names in a folder of a store; an empty list if the store can't list."""

    async def names() -> list[str]:
        return sorted([name async for name in store.list_dir(path) if name])  # "": a file

    try:
        return sync(names()) if store.supports_listing else []
    except NotADirectoryError:
        return []


def join(path: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{path}/{name}".strip("/")
