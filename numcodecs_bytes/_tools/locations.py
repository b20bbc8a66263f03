"""Paths and URLs -> open stores."""

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import zarr.abc.store
import zarr.storage
from zarr.core.sync import sync


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
        _need("fsspec", "stores")
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
        _need("icechunk", "icechunk")
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
    _need("fsspec", "kerchunk")
    is_json = location.endswith(".json")
    if not is_json and importlib.util.find_spec("pyarrow") is None:
        _need("fastparquet", "kerchunk")
    import fsspec  # noqa: PLC0415 # only needed here

    file_system = fsspec.filesystem(
        "reference", fo=location, remote_options={"asynchronous": True}, asynchronous=True
    )
    kind = zarr.storage.FsspecStore if is_json else _ParquetReferences
    return kind(file_system, read_only=True)


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f'this needs {package}: pip install "numcodecs-bytes[{extra}]"')
