"""Paths and URLs -> open stores."""

import contextlib
import importlib.util
import json
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
_ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_REFERENCES = (".json", ".parq", ".parquet")
# Files that references can point into: what they are, how they begin, the ends of their names, and
# the line that makes references.
_KERCHUNK = (
    "import json; from kerchunk.{} import *; json.dump({}('{{}}').translate(), open('{{}}', 'w'))"
)
_REFERABLE = (
    ("a NetCDF-3 file", (b"CDF",), (".nc3",), _KERCHUNK.format("netCDF3", "NetCDF3ToZarr")),
    (
        "an HDF5 or NetCDF-4 file",
        *((b"\x89HDF",), (".nc", ".nc4", ".h5", ".hdf5")),
        _KERCHUNK.format("hdf", "SingleHdf5ToZarr"),
    ),
    (
        "a TIFF file",
        *((b"II*", b"II+", b"MM\0*", b"MM\0+"), (".tif", ".tiff")),
        "from tifffile import *; TiffFile('{}').aszarr().write_fsspec('{}', url='{}')",
    ),
)


def open_store(
    location: str | Path,
    *,
    read_only: bool = True,
    storage_options: dict[str, Any] | None = None,
    version: dict[str, str] | None = None,
) -> zarr.abc.store.Store:
    """Open the store at a location; its kind is detected.

    `storage_options` are fsspec's, for a URL or for references. Unless they name `target_options`
    and `remote_options`, they are both for references: for the file that holds them, if it is at a
    URL, and for what they refer to. `version` names the "branch", "tag" or "snapshot" of an
    Icechunk repository. Raises OSError or ValueError if there is no such store, and ImportError if
    a package is missing.
    """
    location, path = str(location), Path(location)
    options = dict(storage_options or {})
    is_url = "://" in location
    if not is_url and not path.exists():
        raise FileNotFoundError("there is no such file or folder")
    folder, _, name = location.rpartition("/")
    if name in _ZARR_METADATA and (is_url or path.is_file()):
        raise ValueError(f"this is Zarr metadata: give its folder, {folder or '.'}")
    if read_only and _is_icechunk(location, options, is_chosen=bool(version)):
        return _open_icechunk(location, options, version or {"branch": "main"})
    if version:
        raise ValueError(f"this is not an Icechunk repository, so it has no {next(iter(version))}")
    if location.endswith(_REFERENCES):
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
        return _open_zip(location)
    return zarr.storage.LocalStore(path, read_only=read_only)


def _open_zip(location: str) -> zarr.abc.store.Store:
    with Path(location).open("rb") as file:
        advice = advise_references(location, file.read(8))
    if advice:
        raise ValueError(advice)
    try:
        archive: zarr.abc.store.Store = sync(zarr.storage.ZipStore.open(location, mode="r"))
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"this is a file, but not a zip file, or a damaged one ({error}); the name of "
            "kerchunk references must end in .json"
        ) from error
    return archive


def advise_references(location: str, start: bytes = b"") -> str:
    """Return how to make references to a file, known by its first bytes or its name; or ""."""
    for what, starts, ends, template in _REFERABLE:
        if start.startswith(starts) or (not start and location.lower().endswith(ends)):
            file = location if "://" in location else Path(location).resolve().as_posix()
            folder, _, name = file.rpartition("/")
            line = template.format(file, f"{name.rpartition('.')[0] or name}.json", folder)
            return f'this is {what}, not Zarr: make references first:\n  python -c "{line}"'
    return ""


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
    if options.keys().isdisjoint({"target_options", "remote_options"}):
        target = {"target_options": options} if "://" in location else {}
        options = {"remote_options": options, **target}
    kind: Any = zarr.storage.FsspecStore
    source: Any = location
    if location.endswith(".json"):
        source = _read_references(location, options.pop("target_options", {}))
    else:
        kind = ParquetReferences
        if importlib.util.find_spec("pyarrow") is None:
            _need("fastparquet", "kerchunk")
    import fsspec  # noqa: PLC0415 # only needed here

    remote = {"asynchronous": True, **options.pop("remote_options", {})}
    file_system = fsspec.filesystem(
        "reference", fo=source, remote_options=remote, asynchronous=True, **options
    )
    store: zarr.abc.store.Store = kind(file_system, read_only=True)
    return store


def _read_references(location: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return kerchunk references in JSON."""
    import fsspec  # noqa: PLC0415 # only needed here

    source: Any = fsspec.open(location, **options)
    with source as file:
        try:
            document = json.load(file)
        except ValueError as error:
            raise ValueError(f"this is not JSON, as kerchunk references are: {error}") from error
    if isinstance(document, dict) and "zarr_format" in document:
        raise ValueError("this is Zarr metadata: give the folder of the array or group")
    if not isinstance(document, dict) or not _has_references(document):
        raise ValueError(
            'this is JSON, but not kerchunk references: expected an object with "refs"'
        )
    return document


def _has_references(document: dict[str, Any]) -> bool:
    """Whether a JSON object has references, in the first version of the format, too."""
    return "refs" in document or any(key.endswith(_ZARR_METADATA) for key in document)


def _is_icechunk(location: str, options: dict[str, Any], *, is_chosen: bool) -> bool:
    """Whether there is an Icechunk repository; at a URL, nothing is asked if a version is chosen.

    Icechunk 2 has a file `repo`, and before that a branch `main` was a file.
    """
    protocol, _, rest = location.rpartition("://")
    path = Path(rest)
    if not protocol:
        has_refs = (path / "refs").is_dir() or (path / "repo").is_file()
        return has_refs and (path / "snapshots").is_dir()
    if protocol not in PROTOCOLS or location.endswith((*_REFERENCES, ".zip")):
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
