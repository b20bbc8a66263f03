"""The door: which stores are read in part, how, and that all are read as by zarr alone."""

import functools
import http.server
import importlib.util
import random
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import zipfile

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import create, random_selections, select

import numcodecs_bytes
from numcodecs_bytes._engine import strikes
from numcodecs_bytes._engine.files import File
from numcodecs_bytes._engine.stores import Remote, Whole, find_source

fsspec = pytest.importorskip("fsspec")
obstore_store = pytest.importorskip("obstore.store")
SHAPE = (64, 1100)
DATA = np.random.default_rng(0).random(SHAPE)
NUM_BYTES = DATA.nbytes
ASYNC = {"asynchronous": True, "skip_instance_cache": True}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with an array in it: one chunk, big-endian."""
    create(tmp_path / "array", SHAPE)[:] = DATA
    return tmp_path / "array"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@pytest.fixture
def nginx(folder, tmp_path):
    """Return the address of nginx serving the folder."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port, logs = free_port(), tmp_path / "nginx"
    logs.mkdir()
    config = logs / "nginx.conf"
    config.write_text(f"""
        daemon off; master_process off; pid {logs}/pid; error_log {logs}/error.log;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {logs}; proxy_temp_path {logs}; fastcgi_temp_path {logs};
            uwsgi_temp_path {logs}; scgi_temp_path {logs};
            server {{ listen 127.0.0.1:{port}; root {folder}; }}
        }}
    """)
    with subprocess.Popen(["nginx", "-e", logs / "error.log", "-c", config]) as server:  # noqa: S607
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


@pytest.fixture
def simple(folder):
    """Return the address of Python's own server, which ignores byte ranges."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def s3(folder, monkeypatch):
    """Return the address of an S3 server whose bucket `data` holds the folder."""
    moto_server = pytest.importorskip("moto.server", reason="the group servers is not installed")
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    client = boto3.client("s3", endpoint_url=address)
    client.create_bucket(Bucket="data")
    for path in folder.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "data", f"array/{path.relative_to(folder)}")
    yield address
    server.stop()


# Before fsspec 2026.9, archives raise KeyError where zarr 3.1.6 looks for metadata of Zarr v2.
open_v3 = functools.partial(zarr.open_array, zarr_format=3)


def of_fsspec(url, **options):
    return zarr.storage.FsspecStore.from_url(url, storage_options=options, read_only=True)


def of_obstore(kind, *args, **kwargs):
    make = getattr(obstore_store, kind)
    make = make.from_url if "://" in str(args[0]) else make
    return zarr.storage.ObjectStore(make(*args, **kwargs), read_only=True)


def references(folder, protocol, target, start=0, **options):
    """Return a store of references: the chunk begins somewhere in a file."""
    parts = {
        "zarr.json": (folder / "zarr.json").read_text(),
        "c/0/0": [target, start, (folder / "c/0/0").stat().st_size],
    }
    remote = {"remote_protocol": protocol, "remote_options": ASYNC | options}
    files = fsspec.filesystem("reference", fo=parts, **ASYNC, **remote)
    return zarr.storage.FsspecStore(files, read_only=True, path="")


def references_to_file(folder):
    (folder / "file").write_bytes(b"header" + (folder / "c/0/0").read_bytes() + bytes(1000))
    return references(folder, "file", (folder / "file").as_uri(), 6)


def zipped(folder, compression=zipfile.ZIP_STORED):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in folder.rglob("*"):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    return path


def tarred(folder):
    path = folder.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        for file in folder.rglob("*"):
            if file.is_file():
                archive.add(file, file.relative_to(folder))
    return path


def cached(folder, cache):
    files = fsspec.filesystem(
        cache,
        fs=fsspec.filesystem("file"),
        cache_storage=str(folder.parent / cache),
        skip_instance_cache=True,
    )
    wrapper = importlib.import_module("fsspec.implementations.asyn_wrapper")
    wrapped = wrapper.AsyncFileSystemWrapper(files, asynchronous=True)
    return zarr.storage.FsspecStore(wrapped, read_only=True, path=str(folder))


def in_memory(folder):
    store = obstore_store.MemoryStore()
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return zarr.storage.ObjectStore(store, read_only=True)


def of_obstore_by_fsspec(folder):
    """Return a store on a class that obstore makes for a protocol of fsspec."""
    upstream = pytest.importorskip("obstore.fsspec")
    before = fsspec.get_filesystem_class("file")
    upstream.register("file", asynchronous=True)
    try:
        kind = fsspec.get_filesystem_class("file")
    finally:
        fsspec.register_implementation("file", before, clobber=True)
    return zarr.storage.FsspecStore(kind(asynchronous=True), read_only=True, path=str(folder))


def icechunk_store(folder):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    create(session.store, SHAPE)[:] = zarr.open_array(folder, mode="r")[:]
    session.commit("all")
    return repository.readonly_session("main").store


def manifest_store(folder, length=None):
    """Return VirtualiZarr's store of the folder's chunk, in an array at its root."""
    manifests = pytest.importorskip("virtualizarr.manifests")
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415 # comes with it

    chunk = folder / "c/0/0"
    chunk.with_name("file").write_bytes(b"header" + chunk.read_bytes() + bytes(1000))
    place = {"path": chunk.with_name("file").as_uri(), "offset": 6, "length": length or NUM_BYTES}
    array = manifests.ManifestArray(
        metadata=zarr.open_array(folder, mode="r").metadata,
        chunkmanifest=manifests.ChunkManifest({"0.0": place}),
    )
    store = manifests.ManifestStore(
        manifests.ManifestGroup(arrays={"array": array}),
        registry=ObjectStoreRegistry({"file://": obstore_store.LocalStore()}),
    )
    return zarr.storage.StorePath(store, "array")


class Subclass(zarr.storage.LocalStore):
    """A person's store."""

    _supports_sync_io = False


class Wrapper(zarr.storage.WrapperStore):
    """A person's wrapper."""

    _supports_sync_io = False


# How each store is read.
TABLE = {
    "LocalStore": (File, lambda folder, _: zarr.storage.LocalStore(folder, read_only=True)),
    "MemoryStore": (Whole, lambda _, __: zarr.storage.MemoryStore()),
    "ZipStore": (File, lambda folder, _: zarr.storage.ZipStore(zipped(folder), mode="r")),
    "obstore, local": (Remote, lambda folder, _: of_obstore("LocalStore", str(folder))),
    "obstore, memory": (Whole, lambda folder, _: in_memory(folder)),
    "obstore, http": (
        Remote,
        lambda _, get: of_obstore("HTTPStore", get("nginx"), client_options={"allow_http": True}),
    ),
    "obstore, s3": (
        Remote,
        lambda _, get: of_obstore(
            "S3Store",
            "data",
            prefix="array",
            endpoint=get("s3"),
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        ),
    ),
    "fsspec, local": (File, lambda folder, _: of_fsspec(folder.as_uri())),
    "fsspec, http": (Remote, lambda _, get: of_fsspec(get("nginx"), **ASYNC)),
    "fsspec, s3": (
        Remote,
        lambda _, get: of_fsspec("s3://data/array", endpoint_url=get("s3"), **ASYNC),
    ),
    "fsspec, obstore": (Remote, lambda folder, _: of_obstore_by_fsspec(folder)),
    "fsspec, references to files": (File, lambda folder, _: references_to_file(folder)),
    "fsspec, references to http": (
        Remote,
        lambda folder, get: references(folder, "http", f"{get('nginx')}/c/0/0"),
    ),
    "fsspec, references to s3": (
        Remote,
        lambda folder, get: references(
            folder, "s3", "s3://data/array/c/0/0", endpoint_url=get("s3")
        ),
    ),
    "Icechunk": (Remote, lambda folder, _: icechunk_store(folder)),
    "VirtualiZarr": (Remote, lambda folder, _: manifest_store(folder)),
    "fsspec, zip": (Whole, lambda folder, _: of_fsspec(f"zip://::{zipped(folder).as_uri()}")),
    "fsspec, tar": (Whole, lambda folder, _: of_fsspec(f"tar://::file://{tarred(folder)}")),
    "fsspec, simplecache": (Whole, lambda folder, _: cached(folder, "simplecache")),
    "fsspec, blockcache": (Whole, lambda folder, _: cached(folder, "blockcache")),
    "WrapperStore": (
        Whole,
        lambda folder, _: zarr.storage.WrapperStore(zarr.storage.LocalStore(folder)),
    ),
    "LoggingStore": (
        Whole,
        lambda folder, _: zarr.storage.LoggingStore(zarr.storage.LocalStore(folder)),
    ),
    "a subclass": (Whole, lambda folder, _: Subclass(folder, read_only=True)),
}
BY_LINE = pytest.mark.parametrize("name", [name for name in TABLE if name != "MemoryStore"])


@pytest.fixture
def open_store(folder, request):
    """Return what opens a store of the table on the folder."""
    return lambda name: TABLE[name][1](folder, request.getfixturevalue)


@BY_LINE
def test_every_store_is_read_as_the_table_says(open_store, name):
    """And gives the same values as zarr alone, whatever is selected."""
    array = open_v3(open_store(name), mode="r")
    assert type(find_source(array.store_path / "c/0/0")) is TABLE[name][0]
    rng = random.Random(name)  # noqa: S311
    for way, selection, expected in random_selections(rng, SHAPE, 2):
        assert np.array_equal(select(array, way, selection), expected(DATA))
    with numcodecs_bytes.trace() as traced:
        assert np.array_equal(array[7], DATA[7])
    is_part = traced.report()["total"]["bytes_fetched"] == DATA[7].nbytes
    assert is_part == (TABLE[name][0] is not Whole)


@BY_LINE
@pytest.mark.parametrize("length", [100, 400_000, NUM_BYTES + 8])
def test_a_chunk_of_the_wrong_length(open_store, folder, name, length):
    """Is an error, as with zarr alone, wherever a store tells the length or it is too short."""
    if name in ("Icechunk", "VirtualiZarr"):
        pytest.skip("it holds a copy")
    chunk = folder / "c/0/0"
    chunk.write_bytes(chunk.read_bytes().ljust(length)[:length])
    array = open_v3(open_store(name), mode="r")
    for selection in (np.s_[:], np.s_[63]):
        is_short = length < NUM_BYTES
        if is_short or selection == np.s_[:] or name not in {"fsspec, s3", "fsspec, obstore"}:
            with pytest.raises(ValueError, match=f"holds {length} bytes, expected {NUM_BYTES}"):
                array[selection]


def test_a_manifest_of_another_length_than_the_chunk(folder):
    """VirtualiZarr's store returned bytes beyond it."""
    at = manifest_store(folder, NUM_BYTES - 8)
    array = zarr.open_array(at, mode="r")
    with pytest.raises(ValueError, match=f"holds {NUM_BYTES - 8} bytes, expected {NUM_BYTES}"):
        array[63]


def test_a_name_that_obstore_encodes(tmp_path):
    """Its LocalStore stores "a b" and "a#b" under other names, which are not files to us."""
    upstream = zarr.storage.ObjectStore(obstore_store.LocalStore(str(tmp_path)))
    for name in ("a b", "a#b", "a%b", "ä"):
        create(zarr.storage.StorePath(upstream, name), SHAPE)[:] = DATA
        array = zarr.open_array(upstream, path=name, mode="r")
        assert np.array_equal(array[7], DATA[7])


class TestNamed:
    """`numcodecs_bytes.stores_with_ranges`."""

    @pytest.mark.parametrize("by", ["class", "path", "where it is defined"])
    def test_a_class_or_a_dotted_path(self, folder, by):
        kind, path = zarr.storage.LoggingStore, "zarr.storage.LoggingStore"
        defined = f"{kind.__module__}.{kind.__qualname__}"
        named = {"class": kind, "path": path, "where it is defined": defined}[by]
        store = zarr.storage.LoggingStore(zarr.storage.LocalStore(folder))
        array = zarr.open_array(store, mode="r")
        with zarr.config.set({"numcodecs_bytes.stores_with_ranges": [named]}):
            assert isinstance(find_source(array.store_path / "c/0/0"), Remote)
            assert np.array_equal(array[7], DATA[7])
            assert np.array_equal(array[:, 7], DATA[:, 7])

    @pytest.mark.parametrize(
        "name",
        ["zarr.storage.LogingStore", "zarr.strage.LoggingStore", "zarr.storage", "LoggingStore"],
    )
    def test_a_name_that_is_misspelt(self, folder, name):
        message = f"must be a list of classes such as 'package.module.Store', got '{name}'"
        array = zarr.open_array(Subclass(folder, read_only=True), mode="r")
        with (
            zarr.config.set({"numcodecs_bytes.stores_with_ranges": ["not_here.Store", name]}),
            pytest.raises(ValueError, match=message),
        ):
            array[7]

    def test_a_module_that_is_not_installed(self, folder):
        array = zarr.open_array(Subclass(folder, read_only=True), mode="r")
        with zarr.config.set({"numcodecs_bytes.stores_with_ranges": ["not_here.stores.Store"]}):
            assert np.array_equal(array[7], DATA[7])

    def test_a_wrapper_and_a_file_system(self, folder):
        wrapper = importlib.import_module("fsspec.implementations.asyn_wrapper")
        local = importlib.import_module("fsspec.implementations.local")

        class Files(local.LocalFileSystem):
            pass

        files = wrapper.AsyncFileSystemWrapper(Files(), asynchronous=True)
        for store in (
            Wrapper(zarr.storage.LocalStore(folder)),
            zarr.storage.FsspecStore(files, read_only=True, path=str(folder)),
        ):
            array = zarr.open_array(store, mode="r")
            assert isinstance(find_source(array.store_path / "c/0/0"), Whole)
            with zarr.config.set({"numcodecs_bytes.stores_with_ranges": [Wrapper, Files]}):
                assert isinstance(find_source(array.store_path / "c/0/0"), Remote)
                assert np.array_equal(array[:, 7], DATA[:, 7])


def test_a_store_that_is_not_known_is_named(folder):
    array = zarr.open_array(Subclass(folder, read_only=True), mode="r")
    with numcodecs_bytes.trace() as traced:
        assert np.array_equal(array[7], DATA[7])
        assert np.array_equal(array[8], DATA[8])
    (why,) = traced.report()["total"]["why_whole"]
    assert "test_stores.Subclass is not known to have reliable byte ranges; if it has" in why


@pytest.mark.parametrize("kind", ["obstore", "fsspec"])
def test_a_server_that_ignores_ranges(simple, kind, caplog):
    """`python -m http.server` could not be read, and the remedy did not help an open array."""
    options = {"client_options": {"allow_http": True}}
    store = of_fsspec(simple, **ASYNC) if kind == "fsspec" else None
    array = zarr.open_array(store or of_obstore("HTTPStore", simple, **options), mode="r")
    for row in (7, 8):
        assert np.array_equal(array[row], DATA[row])
    (record,) = caplog.records
    assert "does not answer byte ranges as requested" in record.getMessage()
    assert record.levelname == "WARNING"
    assert strikes.state_of(array.store).why_struck


def test_a_client_that_hides_the_heads_of_answers(simple, caplog):
    """One with a cache may answer with any range; aiohttp before 3.9 does not show them."""
    http_files = importlib.import_module("fsspec.implementations.http")

    class Hiding:
        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def get(self, url, raise_for_status=None, **kwargs):  # noqa: ARG002
            return self._session.get(url, **kwargs)

    async def get_client(**kwargs):
        return Hiding(await http_files.get_client(**kwargs))

    store = of_fsspec(simple, get_client=get_client, **ASYNC)
    assert np.array_equal(zarr.open_array(store, mode="r")[7], DATA[7])
    assert "does not show the headers of responses" in caplog.text
    assert strikes.state_of(store).why_struck


def test_a_zip_file_that_is_closed_meanwhile(folder):
    """zarr opens it again."""
    store = zarr.storage.ZipStore(zipped(folder), mode="r")
    array = zarr.open_array(store, mode="r")
    store.close()
    assert np.array_equal(array[7], DATA[7])
    store.close()
