"""Opens the stores at paths and URLs."""

import bisect
import contextlib
import functools
import importlib.util
import json
import os
import re
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import zarr.storage
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.lengths import NUM_START_BYTES, codec_at, explain_stand_in
from numcodecs_bytes._tools.documents import METADATA_NAMES, document_at, local_path
from numcodecs_bytes._tools.reporting import describe_error
from numcodecs_bytes._zarr_api.file_systems import is_local, unwrapped
from numcodecs_bytes._zarr_api.private_names import store_in_wrappers


def _see(recipe: str) -> str:
    return f'see "{recipe}" in the documentation, docs/recipes.md'


# Files of other formats: what they are, their first bytes, and how to open them.
_OTHER_FILES = (
    ("a NetCDF-3 file", (b"CDF",), _see("How do I read a NetCDF-3 file?")),
    ("an HDF5 or NetCDF-4 file", (b"\x89HDF",), _see("How do I read an HDF5 file?")),
    ("a TIFF file", (b"II*", b"II+", b"MM\0*", b"MM\0+"), _see("How do I read a multi-page TIFF?")),
    ("a FITS file", (b"SIMPLE",), _see("How do I read a FITS image?")),
    ("a GRIB file", (b"GRIB",), "open it with xarray and cfgrib, or make references with kerchunk"),
    ("a NumPy file", (b"\x93NUMPY",), "open it with numpy.load"),
)
_NAME_OF_OTHER_FILE = re.compile(
    r"[.](nc[34]?|h5|hdf5|tiff?|fits?|fts|grib2?|grb2?|npy)$", re.IGNORECASE
)
_MAKE_AGAIN = "restore the references, or make them again"
_WRITABLE = "migrate needs a folder, or a URL that fsspec can write to, with Zarr v2 metadata"


def open_store(
    location: Store | str | Path,
    *,
    read_only: bool = True,
    storage_options: JSONObject | None = None,
    icechunk_ref: dict[str, str] | None = None,
) -> Store:
    """Open the store at a path or URL, of any kind; return a store as it is.

    The arguments are those of `check`. Raises ValueError if the store is to be changed, but can't.
    """
    _check_types(location, storage_options)
    if not read_only and _is_zip(location):  # to interrupt it would lose its contents
        raise ValueError("a zip archive can't be changed: unpack it, migrate, and pack it again")
    if isinstance(location, Store):
        if storage_options or icechunk_ref:
            what = "storage_options and icechunk_ref"
            raise ValueError(f"{what} are for paths and URLs, not for open stores")
        return location if read_only else _with_atomic_writes(location)
    location, options = str(location), dict(storage_options or {})
    if not location:  # a variable of the shell was not set; zarr takes it for this folder
        raise ValueError("expected the path or URL of a store, got an empty text")
    store = _open_location(location, options, read_only=read_only)
    is_repository = value_or_error(_is_repository, store)
    if not read_only and is_repository is True:
        raise ValueError(f"this is an Icechunk repository, which is Zarr v3: {_WRITABLE}")
    if not read_only:
        return _with_atomic_writes(store)
    _refuse_options(is_repository, options)
    if is_repository is True:  # an error is raised again when the store is read
        return _open_repository(location, icechunk_ref or {"branch": "main"})
    if icechunk_ref:
        raise ValueError(
            f"this is not an Icechunk repository, so it has no {next(iter(icechunk_ref))}"
        )
    return store


def _check_types(location: object, storage_options: object) -> None:
    if not isinstance(location, Store | str | os.PathLike):
        raise TypeError(
            f"expected a store, or the path or URL of one, got {type(location).__name__}: pass "
            "array.store or group.store, for example"
        )
    if not isinstance(storage_options, dict | None):
        raise TypeError(
            f"storage_options must be a dict such as {{'anon': True}}, got {storage_options!r}"
        )


def _refuse_options(error: object, options: JSONObject) -> None:
    """Raise an error that says what helps if the error is due to storage options.

    Anything else, such as the result of a request that succeeded, is left alone.
    """
    if type(error).__name__ == "NoCredentialsError":
        anonymous = "--storage-options '{\"anon\": true}'"
        raise PermissionError(f"{error}: if the data are public, add {anonymous}")
    if options and isinstance(error, TypeError) and "unexpected keyword" in str(error):
        raise ValueError(f"this URL takes no such storage options: {error}")


def _with_atomic_writes(store: Store) -> Store:
    """Return zarr's own store for a local folder of fsspec's, which may write half a file."""
    folder = local_path(store, "") if is_local(unwrapped(getattr(store, "fs", None))) else None
    if folder is None:
        return store
    if _is_file(folder):
        raise ValueError(f"this is a file: {_WRITABLE}")
    return zarr.storage.LocalStore(folder, read_only=store.read_only)


def _is_repository(store: Store) -> bool:
    """Whether a store has the file `repo` of Icechunk 2, or the branch `main` of Icechunk 1."""
    local = local_path(store, "repo")
    if local is None or local.is_file():  # to open a pipe might never end
        start = sync(store.get("repo", default_buffer_prototype(), RangeByteRequest(0, 3)))
        if start is not None and start.to_bytes().startswith(b"ICE"):
            return True
    ref = document_at(store, "refs/branch.main/ref.json")
    return isinstance(ref, dict) and "snapshot" in ref


def _open_repository(location: str, icechunk_ref: dict[str, str]) -> Store:
    folder = location.removeprefix("file://")
    if "://" in folder:
        raise ValueError(
            "this is an Icechunk repository at a URL: open it with icechunk, and pass "
            'repository.readonly_session("main").store to numcodecs_bytes.check.check'
        )
    _need("icechunk", "icechunk")
    import icechunk

    storage = icechunk.local_filesystem_storage(folder)
    config = icechunk.Repository.fetch_config(storage)
    # Chunks in other files are read with the credentials of this environment, if any.
    others = dict.fromkeys((config and config.virtual_chunk_containers) or ())
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=others)
    arguments = {"snapshot": "snapshot_id"}
    chosen: Any = {arguments.get(kind, kind): name for kind, name in icechunk_ref.items()}
    session = value_or_error(lambda: repository.readonly_session(**chosen))
    if isinstance(session, Exception):
        lists = {"branch": repository.list_branches, "tag": repository.list_tags}
        names = value_or_error(lambda: sorted(lists[next(iter(icechunk_ref))]()))
        known = f"; expected one of {names}" if isinstance(names, list) else ""
        raise ValueError(f"{describe_error(session)}{known}") from session  # noqa: TRY004
    return session.store


def _open_location(location: str, options: JSONObject, *, read_only: bool) -> Store:
    path, is_url = Path(location), "://" in location
    is_file = not is_url and _is_file(path)
    name = location.rpartition("/")[2] if is_url else path.name
    if name in METADATA_NAMES and (is_url or is_file):
        folder = location.removesuffix(f"/{name}") if is_url else path.parent
        raise ValueError(f"this is Zarr metadata: give its folder, {folder}")
    is_node_itself = not is_url and is_node(path)
    is_named_so = location.endswith((".json", ".parq", ".parquet"))
    is_parquet = not is_url and b'"record_size"' in _end_of_file(path / ".zmetadata")
    if (is_named_so or is_parquet) and not is_node_itself:
        if not read_only:
            raise ValueError(f"kerchunk references are read-only: {_WRITABLE}")
        return _open_references(location, options)
    if is_url:
        return _open_url(location, options, read_only=read_only)
    if options:
        raise ValueError(
            "storage options are for URLs and kerchunk references, not for local files"
        )
    if is_file:
        if not read_only:
            with path.open("rb") as file:
                _refuse_other_format(file.read(NUM_START_BYTES))
            raise ValueError(f"this is a file: {_WRITABLE}")
        return _open_zip(location)
    return zarr.storage.LocalStore(path, read_only=read_only)


def _open_url(url: str, options: JSONObject, *, read_only: bool) -> Store:
    _need("fsspec", "stores")
    if _NAME_OF_OTHER_FILE.search(url):  # fsspec takes a file for an empty folder
        _refuse_other_format(_start_of_url(url, options))
    if url.endswith(".zip") and not url.startswith("zip:"):
        options = {url.partition("://")[0]: options}
        url = f"zip://::{url}"
    if url.startswith("reference://") and "fo" not in options:
        raise ValueError("give the file or URL of the references instead, whose name ends in .json")
    of_url = zarr.storage.FsspecStore.from_url
    store = value_or_error(of_url, url, storage_options=options, read_only=read_only)
    if isinstance(store, Exception):
        if isinstance(store, FileNotFoundError):
            raise FileNotFoundError(f"there is no such file: {url}") from store
        if "Protocol not known" in str(store):
            raise ValueError(f"{store}: correct the URL, or install what adds it to fsspec")
        if "range requests" in str(store):  # its advice is for other callers
            raise ValueError("the server serves no byte ranges: download the zip file") from store
        raise store
    if (path := local_path(store, "")) is not None:
        _is_file(path)  # zarr would find nothing where there is no such folder
    return store


def _is_file(path: Path) -> bool:
    """Whether a path is a file, not a folder; an error if it is neither, or can't be known.

    Since CPython 3.14, `Path.exists` is false for a path that may not be looked at.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = ""
        if str(path).startswith("~"):
            hint = "; shells replace ~ only if it is not quoted"
        elif scheme := re.match("([a-z][a-z0-9]+):", str(path)):
            hint = f"; if this is a URL, it begins with {scheme[1]}://"
        raise FileNotFoundError(f"there is no such file or folder: {path}{hint}") from error


def _end_of_file(path: Path) -> bytes:
    """Return the last bytes of a file; none if it can't be read."""
    with contextlib.suppress(OSError):
        if path.is_file():  # to open a pipe might never end
            with path.open("rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - 4096, 0))
                return file.read()
    return b""


def _is_zip(location: Store | str | Path) -> bool:
    if isinstance(location, Store):
        return isinstance(store_in_wrappers(location), zarr.storage.ZipStore)
    is_url = "://" in str(location)
    return str(location).endswith(".zip") if is_url else zipfile.is_zipfile(location)


def _open_zip(location: str) -> Store:
    with Path(location).open("rb") as file:
        start = file.read(NUM_START_BYTES)
    if why := explain_stand_in(start):
        raise ValueError(why)
    _refuse_other_format(start)
    if not start or start.startswith(b"PK\5\6"):  # the end of an archive
        what = "zip archive" if start else "file"
        raise ValueError(f"the {what} is empty: expected an archive with zarr.json or .zarray")
    try:
        archive: Store = sync(zarr.storage.ZipStore.open(location, mode="r"))
    except zipfile.BadZipFile as error:
        if start.startswith(b"PK") or location.endswith(".zip"):
            raise ValueError("the zip archive is damaged or truncated: restore it") from error
        if node := next(filter(is_node, Path(location).parents), None):
            what = "this is a file in a Zarr array or group"
            raise ValueError(f"{what}: give its folder, {node}") from error
        if codec := codec_at(start):
            raise ValueError(f"this is compressed by {codec}: decompress it") from error
        raise ValueError(
            "this is neither a zip archive nor references, whose name ends in .json; if it holds "
            f"plain numbers, {_see('How do I read a raw binary file?')}"
        ) from error
    return archive


def is_node(folder: Path) -> bool:
    """Whether a folder is a Zarr array or group; references in Parquet have only .zmetadata."""
    return any((folder / name).is_file() for name in (".zarray", ".zgroup", "zarr.json"))


def is_folder_without_metadata(location: str) -> bool:
    """Whether this is a local folder that is no Zarr node, references or repository itself."""
    path = Path(location)
    names = ("repo", "refs", ".zmetadata")
    return path.is_dir() and not is_node(path) and not any((path / n).exists() for n in names)


def _refuse_other_format(start: bytes) -> None:
    """Raise ValueError if a file, given its first bytes, has another format."""
    for what, starts, how in _OTHER_FILES:
        if start.startswith(starts):
            raise ValueError(f"this is {what}, not Zarr: {how}")


def _start_of_url(url: str, options: JSONObject) -> bytes:
    """Return the first bytes of a file at a URL; none if it can't be read."""
    import fsspec

    def read() -> bytes:
        source: Any = fsspec.open(url, **options)
        with source as file:
            return bytes(file.read(8))

    start = value_or_error(read)
    return b"" if isinstance(start, Exception) else start


class References(zarr.storage.FsspecStore):
    """kerchunk's references, all of whose chunks are listed.

    Those in Parquet would mistake `zarr.json` for a chunk and raise.
    """

    fs: Any

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if key.endswith("zarr.json") and not isinstance(self.fs.references, dict):
            return None
        return await super().get(key, prototype, byte_range)

    @functools.cached_property
    def _sorted_keys(self) -> list[str]:
        # To look at all keys for each folder would take the square of the number of folders.
        return sorted(self.fs.references)

    def _keys_below(self, prefix: str) -> list[str]:
        if not isinstance(self.fs.references, dict):
            return [key for key in self.fs.ls(prefix, detail=False) if key.startswith(prefix)]
        first = bisect.bisect_left(self._sorted_keys, prefix)
        end = bisect.bisect_right(self._sorted_keys, prefix, first, key=lambda k: k[: len(prefix)])
        return self._sorted_keys[first:end]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield names: fsspec lists none, or only some, if a reference is malformed."""
        start = f"{prefix}/".lstrip("/")
        for name in {key.removeprefix(start).partition("/")[0] for key in self._keys_below(start)}:
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield keys: fsspec leaves out inlined chunks in Parquet, and zarr 3.1.6 finds none."""
        for key in self._keys_below(prefix):
            yield key


def _open_references(location: str, options: JSONObject) -> Store:
    _need("fsspec", "kerchunk")
    if options.keys().isdisjoint({"target_options", "remote_options", "remote_protocol"}):
        of_references = {"target_options": options} if "://" in location else {}
        options = {"remote_options": options, **of_references}
    source: str | JSONObject = location
    if location.endswith(".json"):
        source = _read_references(location, options.pop("target_options", {}))
    elif "://" not in location and not Path(location, ".zmetadata").is_file():
        what = "references in Parquet are a folder"
        raise ValueError(f"{what}: give the one that has the file .zmetadata")
    elif importlib.util.find_spec("pyarrow") is None:
        _need("fastparquet", "kerchunk")
    options["remote_options"] = {"asynchronous": True, **options.pop("remote_options", {})}
    options = {"fo": source, **options}
    store = value_or_error(References.from_url, "reference://", options, read_only=True)
    if isinstance(store, Exception):  # fsspec reads the first of those in Parquet
        is_missing = isinstance(store, FileNotFoundError)
        is_of_server = hasattr(store, "status") or (isinstance(store, OSError) and not is_missing)
        is_unknown = isinstance(store, ImportError) or "Protocol not known" in str(store)
        if is_unknown or is_of_server:  # it says what is wrong
            raise store
        why = f"they lack {store}" if isinstance(store, KeyError) else describe_error(store)
        what = f"these references are malformed: {why}"
        raise ValueError(f"{what}; {_MAKE_AGAIN}") from store  # noqa: TRY004
    return store


def _read_references(location: str, options: JSONObject) -> JSONObject:
    """Return kerchunk references in JSON, also of the first version of the format."""
    import fsspec

    source: Any = fsspec.open(location, **options)

    def load() -> object:
        with source as file:
            raw = file.read()
        if why := explain_stand_in(raw[:NUM_START_BYTES]):
            raise OSError(why)
        if codec := codec_at(raw[:NUM_START_BYTES]):
            raise OSError(f"this is compressed by {codec}: decompress it")
        return json.loads(raw)

    document = value_or_error(load)
    if isinstance(document, json.JSONDecodeError | UnicodeDecodeError):
        raise ValueError(  # noqa: TRY004
            f"this is not JSON, as kerchunk references are: {document}; if they are damaged, "
            "restore them, or make them again"
        ) from document
    if isinstance(document, Exception) and not isinstance(document, ValueError | RecursionError):
        if document.__cause__ is None:
            raise document
        why = document.__cause__  # the error itself only names the URL
        if getattr(why, "status", None) == 404:
            raise FileNotFoundError(f"there is no such file: {location}") from document
        raise OSError(f"the references can't be read: {type(why).__name__}: {why}") from document
    if isinstance(document, dict) and (
        isinstance(document.get("refs"), dict)
        or any(name.endswith(METADATA_NAMES) for name in document)
    ):
        if "refs" in document and "version" not in document:  # fsspec finds nothing in them
            raise ValueError('these references have no version: add "version": 1 beside "refs"')
        return document
    raise ValueError('this is not a kerchunk reference file, which is a JSON object with "refs"')


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"this needs {package}: pip install {package}, or, with everything that goes with it, "
            f"pip install 'numcodecs-bytes[{extra}]' (in a clone, '.[{extra}]')"
        )
