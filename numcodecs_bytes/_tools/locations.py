"""Paths and URLs -> open stores."""

import contextlib
import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import zarr.abc.store
import zarr.storage
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from numcodecs_bytes._tools.icechunk_storage import PROTOCOLS, storage_at

# How the file `repo` of an Icechunk repository begins, since Icechunk 2.
_MAGIC = "ICE\N{ICE CUBE}CHUNK".encode()


def open_store(
    location: str | Path,
    *,
    read_only: bool = True,
    storage_options: dict[str, Any] | None = None,
    version: dict[str, str] | None = None,
) -> zarr.abc.store.Store:
    """Open the store at a location; its kind is detected.

    Parameters
    ----------
    location : str or Path
        A folder, a zip file, kerchunk references (JSON, or a folder of Parquet files), an Icechunk
        repository, or a URL of one of these that fsspec or Icechunk supports.
    read_only : bool
        Whether to open the store read-only, as a zip file always is.
    storage_options : dict, optional
        What fsspec is given for a URL or for references. Unless they name `target_options` and
        `remote_options`, they are both for references: for the file that holds them, if it is at a
        URL, and for what they refer to.
    version : dict, optional
        The "branch", "tag" or "snapshot" of an Icechunk repository; by default branch `main`.

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
    options = dict(storage_options or {})
    is_url = "://" in location
    if not is_url and not path.exists():
        raise FileNotFoundError(
            f"no Zarr hierarchy at {location}: expected a folder, a file or a URL"
        )
    if read_only and _is_icechunk(location, options, is_chosen=bool(version)):
        return _open_icechunk(location, options, version or {"branch": "main"})
    if version:
        raise ValueError(f"it is not an Icechunk repository, so it has no {next(iter(version))}")
    if location.endswith((".json", ".parq", ".parquet")):
        if not read_only:
            raise ValueError("kerchunk references are read-only")
        return _open_references(location, options)
    if is_url:
        return _open_url(location, options, read_only=read_only)
    if options:
        raise ValueError(
            "storage options are for URLs and kerchunk references, not for local files"
        )
    if path.is_file():
        try:
            archive: zarr.abc.store.Store = sync(zarr.storage.ZipStore.open(location, mode="r"))
        except zipfile.BadZipFile as error:
            raise ValueError(
                f"it is a file, but not a zip file, or a damaged one ({error}); the name of "
                "kerchunk references must end in .json"
            ) from error
        return archive
    return zarr.storage.LocalStore(location, read_only=read_only)


def _open_url(url: str, options: dict[str, Any], *, read_only: bool) -> zarr.storage.FsspecStore:
    _need("fsspec", "stores")
    if url.endswith(".zip") and not url.startswith("zip:"):
        if not read_only:
            raise ValueError("a zip file at a URL can't be changed: download it, give its path")
        options = {url.partition("://")[0]: options}
        url = f"zip://::{url}"
    return zarr.storage.FsspecStore.from_url(url, storage_options=options, read_only=read_only)


class ParquetReferences(zarr.storage.FsspecStore):
    """kerchunk's references in Parquet, which would take `zarr.json` for a chunk and raise."""

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        return None if key.endswith("zarr.json") else await super().get(key, *args, **kwargs)


def _open_references(location: str, options: dict[str, Any]) -> zarr.abc.store.Store:
    _need("fsspec", "kerchunk")
    is_json = location.endswith(".json")
    if not is_json and importlib.util.find_spec("pyarrow") is None:
        _need("fastparquet", "kerchunk")
    import fsspec  # noqa: PLC0415 # only needed here

    if options.keys().isdisjoint({"target_options", "remote_options"}):
        target = {"target_options": options} if "://" in location else {}
        options = {"remote_options": options, **target}
    remote = {"asynchronous": True, **options.pop("remote_options", {})}
    file_system = fsspec.filesystem(
        "reference", fo=location, remote_options=remote, asynchronous=True, **options
    )
    kind = zarr.storage.FsspecStore if is_json else ParquetReferences
    return kind(file_system, read_only=True)


def _is_icechunk(location: str, options: dict[str, Any], *, is_chosen: bool) -> bool:
    """Whether there is an Icechunk repository; at a URL, nothing is asked if a version is chosen.

    Icechunk 2 has a file `repo`, and before that a branch `main` was a file.
    """
    protocol, _, rest = location.rpartition("://")
    path = Path(rest)
    if not protocol:
        has_refs = (path / "refs").is_dir() or (path / "repo").is_file()
        return has_refs and (path / "snapshots").is_dir()
    if protocol not in PROTOCOLS or location.endswith((".json", ".parq", ".parquet", ".zip")):
        return False
    return is_chosen or sync(_has_repository(_open_url(location, options, read_only=True)))


async def _has_repository(store: zarr.abc.store.Store) -> bool:
    prototype = default_buffer_prototype()
    with contextlib.suppress(Exception):  # whatever it is, it is raised again without Icechunk
        first = await store.get("repo", prototype, RangeByteRequest(0, len(_MAGIC)))
        if first is not None and first.to_bytes().startswith(_MAGIC):
            return True
        return await store.get("refs/branch.main/ref.json", prototype) is not None
    return False


def _open_icechunk(
    location: str, options: dict[str, Any], version: dict[str, str]
) -> zarr.abc.store.Store:
    _need("icechunk", "icechunk")
    import icechunk  # noqa: PLC0415 # only needed here

    chosen: Any = {"snapshot_id" if k == "snapshot" else k: name for k, name in version.items()}
    repository = icechunk.Repository.open(storage_at(location, options))
    store: zarr.abc.store.Store = repository.readonly_session(**chosen).store
    return store


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"this needs {package}: pip install {package}, or with all that belongs to it, "
            f"pip install 'numcodecs-bytes[{extra}]' (in a clone, '.[{extra}]')"
        )
