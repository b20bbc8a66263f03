"""Every line of the table of stores: what is asked for, the length of a chunk, its version.

Each store is read next to zarr's own codec, which reads whole chunks. The extra `stores` brings
fsspec and obstore, the group `servers` an S3 server; nginx is Debian's. Tests are skipped without.
"""

import asyncio
import collections
import functools
import gc
import http.server
import itertools
import logging
import os
import random
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import types
import weakref
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.experimental.cache_store
import zarr.storage
from helpers import (
    EVERYTHING,
    OUR_PIPELINES,
    PIPELINES,
    create,
    random_selections,
    ranges_from,
    run_program,
    select,
    set_costs,
)
from zarr.core.buffer import default_buffer_prototype

from numcodecs_bytes._parts import getters, refusals, stores
from numcodecs_bytes._parts.read_file import FileReader
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",  # of the stores' own packages
        "ignore:.*was not created with `asynchronous=True`",
    ),
    pytest.mark.usefixtures("our_pipeline"),
]
ZARRS_CODEC = "zarr.codecs.bytes.BytesCodec"
# Before fsspec 2026.9, archives raise KeyError where zarr 3.1.6 looks for metadata of Zarr v2.
open_array = functools.partial(zarr.open_array, zarr_format=3)
SHAPE = (64, 96)
DATA = np.arange(np.prod(SHAPE)).reshape(SHAPE) * 1.5
NUM_BYTES = DATA.nbytes


def wait_for(port):
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)  # until the server listens, 50 s at most
    raise TimeoutError(f"nothing listens on port {port}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with an array in it: one chunk, big-endian."""
    create(tmp_path / "array", SHAPE)[:] = DATA
    return tmp_path / "array"


@pytest.fixture
def nginx(folder, tmp_path):
    """Return the address of nginx serving the folder."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = free_port()
    logs = tmp_path / "nginx"
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
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serve files; ignores byte ranges, as Python's own server does."""

    def log_message(self, *_):
        pass


class WithoutTotal(Handler):
    """Answer a range without saying how long the whole is, which obstore does not take."""

    def do_GET(self):
        if "Range" not in self.headers:
            super().do_GET()
            return
        path = self.translate_path(self.path)
        first, last = map(int, re.findall("[0-9]+", self.headers["Range"]))
        body = Path(path).read_bytes()[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/*")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(params=[Handler, WithoutTotal])
def odd_server(request, folder):
    """Return the address of a server of odd answers to byte ranges, and whether it has them."""
    handler = functools.partial(request.param, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", request.param is WithoutTotal
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


def fsspec_store(url, **options):
    pytest.importorskip("fsspec", reason="the extra stores is not installed")
    return zarr.storage.FsspecStore.from_url(url, storage_options=options, read_only=True)


def http_store(address):
    return fsspec_store(address, asynchronous=True, skip_instance_cache=True)


def references(folder, target, **options):
    """Return a store of references to the folder's files, each a part of a file."""
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    chunk = folder / "c/0/0"
    parts = {
        "zarr.json": (folder / "zarr.json").read_text(),
        "c/0/0": [target, 0, chunk.stat().st_size],
    }
    if target.startswith("file:"):  # not at the beginning, as in a NetCDF file
        (folder / "file").write_bytes(b"header" + chunk.read_bytes() + bytes(1000))
        parts["c/0/0"][:2] = (folder / "file").as_uri(), 6
    file_system = fsspec.filesystem("reference", fo=parts, asynchronous=True, **options)
    return zarr.storage.FsspecStore(file_system, read_only=True, path="")


def references_over_http(folder, address):
    """Return the same for files behind a server."""
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    file_system = fsspec.filesystem("http", asynchronous=True, skip_instance_cache=True)
    return references(folder, f"{address}/c/0/0", fs={"http": file_system, None: file_system})


def wrapped(file_system):
    """Return a synchronous file system as zarr wraps it."""
    wrapper = pytest.importorskip("fsspec.implementations.asyn_wrapper")
    return wrapper.AsyncFileSystemWrapper(file_system, asynchronous=True)


def cached(cache, folder, root):
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    inner = fsspec.filesystem("http" if root.startswith("http") else "file")
    file_system = fsspec.filesystem(
        cache, fs=inner, cache_storage=str(folder.parent / cache), skip_instance_cache=True
    )
    return zarr.storage.FsspecStore(wrapped(file_system), read_only=True, path=root)


def dir_of_local(folder):
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    local = wrapped(fsspec.filesystem("file"))
    file_system = fsspec.filesystem("dir", path=str(folder), fs=local, asynchronous=True)
    return zarr.storage.FsspecStore(file_system, read_only=True, path="")


def obstore_store(kind, *args, **kwargs):
    upstream = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
    make = getattr(upstream, kind)
    make = make.from_url if args and "://" in str(args[0]) else make
    return zarr.storage.ObjectStore(make(*args, **kwargs), read_only=True)


def memory_store(folder):
    buffers = {
        path.relative_to(folder).as_posix(): default_buffer_prototype().buffer.from_bytes(
            path.read_bytes()
        )
        for path in folder.rglob("*")
        if path.is_file()
    }
    return zarr.storage.MemoryStore(buffers)


def zipped(folder, compression=zipfile.ZIP_STORED):
    """Return the path of a zip file of the folder."""
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


class Subclass(zarr.storage.LocalStore):
    """A user's store."""


class Named(Subclass):
    """Another one, which the user says answers ranges."""


class NamedWrapper(zarr.storage.WrapperStore):
    """A wrapper, which the user says hands on ranges."""


class Plain(zarr.abc.store.Store):
    """A user's store that is no wrapper: another store stands in an attribute."""

    supports_writes = supports_deletes = supports_partial_writes = supports_listing = False

    def __init__(self, inner):
        super().__init__(read_only=True)
        self.inner = inner

    def __eq__(self, other):
        return self is other

    __hash__ = None

    async def get(self, key, prototype, byte_range=None):
        return await self.inner.get(key, prototype, byte_range)

    async def get_partial_values(self, *_):
        raise NotImplementedError

    async def exists(self, key):
        return await self.inner.exists(key)

    async def set(self, *_):
        raise NotImplementedError

    async def delete(self, *_):
        raise NotImplementedError

    async def list_prefix(self, _prefix=""):
        raise NotImplementedError

    list = list_dir = list_prefix


def cache_store(store):
    return zarr.experimental.cache_store.CacheStore(store, cache_store=zarr.storage.MemoryStore())


def local_store(folder):
    return zarr.storage.LocalStore(folder, read_only=True)


@dataclass(frozen=True)
class Line:
    """A line of the table: a store on a folder, and what holds for it.

    `reads` is how it is read: of an open "file", in "ranges", or "whole". Where `has_length`, a
    chunk of the wrong length is noticed by any selection.
    """

    open: object
    reads: str
    has_length: bool = True


TABLE = {
    "LocalStore": Line(lambda folder, _: local_store(folder), "file"),
    "MemoryStore": Line(lambda folder, _: memory_store(folder), "whole"),
    "ZipStore": Line(lambda folder, _: zarr.storage.ZipStore(zipped(folder), mode="r"), "file"),
    "ZipStore, deflated": Line(
        lambda folder, _: zarr.storage.ZipStore(zipped(folder, zipfile.ZIP_DEFLATED), mode="r"),
        "whole",
    ),
    "ObjectStore, local": Line(
        lambda folder, _: obstore_store("LocalStore", str(folder)), "ranges"
    ),
    "ObjectStore, http": Line(
        lambda _, server: obstore_store(
            "HTTPStore", server("nginx"), client_options={"allow_http": True}
        ),
        "ranges",
    ),
    "ObjectStore, s3": Line(
        lambda _, server: obstore_store(
            "S3Store",
            "data",
            prefix="array",
            endpoint=server("s3"),
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        ),
        "ranges",
    ),
    "fsspec, http": Line(lambda _, server: http_store(server("nginx")), "ranges", has_length=False),
    "fsspec, s3": Line(
        lambda _, server: fsspec_store(
            "s3://data/array",
            endpoint_url=server("s3"),
            asynchronous=True,
            skip_instance_cache=True,
        ),
        "ranges",
        has_length=False,
    ),
    "fsspec, references to http": Line(
        lambda folder, server: references_over_http(folder, server("nginx")), "ranges"
    ),
    "fsspec, local": Line(lambda folder, _: fsspec_store(folder.as_uri()), "file"),
    "fsspec, references to local": Line(lambda folder, _: references(folder, "file:"), "file"),
    "fsspec, dir of local": Line(
        lambda folder, _: dir_of_local(folder), "ranges", has_length=False
    ),
    "fsspec, zip": Line(
        lambda folder, _: fsspec_store(f"zip://::{zipped(folder).as_uri()}"), "whole"
    ),
    "fsspec, references to zip": Line(
        lambda folder, _: references(
            folder, "zip://c/0/0", remote_protocol="zip", remote_options={"fo": zipped(folder)}
        ),
        "whole",
    ),
    "fsspec, tar": Line(
        lambda folder, _: fsspec_store(f"tar://::file://{tarred(folder)}"), "whole"
    ),
    "fsspec, memory": Line(lambda folder, _: in_memory_of_fsspec(folder), "whole"),
    **{
        f"fsspec, {cache}, {where}": Line(
            lambda folder, server, cache=cache, where=where: cached(
                cache, folder, str(folder) if where == "local" else server("nginx")
            ),
            "whole",
        )
        for cache in ("simplecache", "filecache", "blockcache")
        for where in ("local", "http")
    },
    "fsspec, obstore": Line(
        lambda folder, _: of_obstore_by_fsspec(folder), "ranges", has_length=False
    ),
    "WrapperStore": Line(lambda folder, _: zarr.storage.WrapperStore(local_store(folder)), "file"),
    "two WrapperStores": Line(
        lambda folder, _: zarr.storage.WrapperStore(
            zarr.storage.WrapperStore(obstore_store("LocalStore", str(folder)))
        ),
        "ranges",
    ),
    "named": Line(lambda folder, _: Named(folder, read_only=True), "ranges", has_length=False),
    "named, a wrapper": Line(
        lambda folder, _: NamedWrapper(local_store(folder)), "ranges", has_length=False
    ),
    "named, a file system": Line(
        lambda folder, _: zarr.storage.FsspecStore(
            named_file_system(), read_only=True, path=str(folder)
        ),
        "ranges",
        has_length=False,
    ),
    "CacheStore": Line(lambda folder, _: cache_store(local_store(folder)), "whole"),
    "wrapped CacheStore": Line(
        lambda folder, _: zarr.storage.WrapperStore(cache_store(local_store(folder))), "whole"
    ),
    "LoggingStore": Line(lambda folder, _: zarr.storage.LoggingStore(local_store(folder)), "whole"),
    "a subclass": Line(lambda folder, _: Subclass(folder, read_only=True), "whole"),
    "a user's": Line(lambda folder, _: Plain(local_store(folder)), "whole"),
}
BY_LINE = pytest.mark.parametrize("name", TABLE)


def named_file_system():
    """Return a synchronous file system that the user says answers concurrent ranges."""
    local = pytest.importorskip("fsspec.implementations.local")

    class NamedFileSystem(local.LocalFileSystem):
        __module__, __qualname__ = __name__, "NamedFileSystem"

    return wrapped(NamedFileSystem())


@pytest.fixture(autouse=True)
def _some_are_named():
    names = [f"{__name__}.{name}" for name in ("Named", "NamedWrapper", "NamedFileSystem")]
    with zarr.config.set({"numcodecs_bytes.stores_with_ranges": names}):
        yield


def of_obstore_by_fsspec(folder):
    """Return a store on a class that obstore generates for fsspec."""
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    upstream = pytest.importorskip("obstore.fsspec", reason="the extra stores is not installed")
    before = fsspec.get_filesystem_class("file")
    upstream.register("file", asynchronous=True)
    try:
        kind = fsspec.get_filesystem_class("file")
    finally:
        fsspec.register_implementation("file", before, clobber=True)
    assert kind.__name__ == "FsspecStore_file"
    return zarr.storage.FsspecStore(kind(asynchronous=True), read_only=True, path=str(folder))


def icechunk_store(folder):
    """Return where a snapshot holds what the folder does."""
    icechunk = pytest.importorskip("icechunk", reason="the extra examples is not installed")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    create(session.store, SHAPE)[:] = open_array(folder, mode="r")[:]
    session.commit("all")
    return zarr.storage.StorePath(repository.readonly_session("main").store)


def manifest_store(folder):
    """Return where VirtualiZarr's store of the folder's chunk has the array."""
    manifests = pytest.importorskip("virtualizarr.manifests", reason="virtualizarr is missing")
    if tuple(map(int, version("virtualizarr").split(".")[:2])) < (2, 8):
        pytest.skip("VirtualiZarr before 2.8 returns bytes beyond the chunk, and is read whole")
    from obspec_utils.registry import ObjectStoreRegistry  # noqa: PLC0415 # comes with it
    from obstore.store import LocalStore  # noqa: PLC0415

    chunk = folder / "c/0/0"
    place = {"path": chunk.as_uri(), "offset": 0, "length": chunk.stat().st_size}
    array = manifests.ManifestArray(
        metadata=open_array(folder, mode="r").metadata,
        chunkmanifest=manifests.ChunkManifest({"0.0": place}),
    )
    store = manifests.ManifestStore(
        manifests.ManifestGroup(arrays={"array": array}),
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
    )
    return zarr.storage.StorePath(store, "array")


def in_memory_of_fsspec(folder):
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    file_system = fsspec.filesystem("memory")
    file_system.put(str(folder), f"/{folder}", recursive=True)
    return fsspec_store(f"memory:///{folder}")


@pytest.fixture
def open_store(folder, request):
    """Return what opens a store of the table on the folder."""
    return lambda name: TABLE[name].open(folder, request.getfixturevalue)


@pytest.fixture
def reads(monkeypatch):
    """Return a list of how chunks are read, filled as they are."""
    seen = []

    def note(owner, name, how):
        method = getattr(owner, name)

        @functools.wraps(method)
        def noted(self, *args, **kwargs):
            seen.extend([how] * (len(args[0]) if how == "whole" else 1))
            return method(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    for path in PIPELINES:
        note(getattr(zarr.core.codec_pipeline, path.rpartition(".")[2]), "read", "whole")
    note(getters.Getter, "get_range", "ranges")
    note(stores, "_get_object_range", "ranges")
    note(stores, "_get_http_range", "ranges")
    note(FileReader, "fetch", "file")
    note(FileReader, "read", "file")
    return seen


def zarrs_own(store):
    """Return the array as zarr alone reads it."""
    own = dict(zip(OUR_PIPELINES, PIPELINES, strict=True))[zarr.config.get("codec_pipeline.path")]
    with zarr.config.set({"codec_pipeline.path": own, "codecs.bytes": ZARRS_CODEC}):
        array = open_array(store, mode="r")
    assert type(array.metadata.codecs[0]) is not BytesCodec
    return array


@BY_LINE
def test_every_store_is_read_as_the_table_says(open_store, reads, name):
    store = open_store(name)
    array = open_array(store, mode="r")
    assert type(array.metadata.codecs[0]) is BytesCodec
    reads.clear()
    assert np.array_equal(array[7], DATA[7])
    assert [how for how, _ in itertools.groupby(reads)] == [TABLE[name].reads]


@BY_LINE
def test_selections_at_random_are_as_with_zarr_alone(open_store, name):
    store = open_store(name)
    array, alone = open_array(store, mode="r"), zarrs_own(store)
    rng = random.Random(name)  # noqa: S311
    for max_gap_bytes in (None, 10**9) if "s3" in name else (0, None, 10**9):
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}):
            for way, selection, expected in random_selections(rng, SHAPE, 3 if EVERYTHING else 1):
                selected = np.asarray(select(array, way, selection))
                assert np.array_equal(selected, expected(DATA))
                if max_gap_bytes is None:  # no other gap changes what zarr alone does
                    assert np.array_equal(selected, select(alone, way, selection))
    assert np.array_equal(array[:], DATA)


@pytest.mark.matrix
@BY_LINE
@pytest.mark.parametrize("length", [100, 40_000, NUM_BYTES + 8])
def test_a_chunk_of_another_length_in_every_store(open_store, folder, name, length):
    """A gzipped chunk under "uncompressed" gave garbage."""
    chunk = folder / "c/0/0"
    chunk.write_bytes(chunk.read_bytes().ljust(length)[:length])
    array = open_array(open_store(name), mode="r")
    has_length = TABLE[name].has_length
    message = rf"(?s)(?=.*chunk 'c/0/0' of ).* holds {length} bytes, expected {NUM_BYTES} for shape"
    is_short = length < NUM_BYTES
    selections = [
        slice(None),
        *([60] if has_length or is_short else []),
        *([0] if has_length else []),
    ]
    for selection in selections:
        with pytest.raises(ValueError, match=message):
            array[selection]
    if has_length or is_short:
        with pytest.raises(ValueError, match=message):
            array[::9, 90]


@pytest.mark.parametrize("open_store", [icechunk_store, manifest_store])
def test_stores_known_by_name(folder, open_store, reads):
    array = open_array(open_store(folder), mode="r")
    reads.clear()
    assert np.array_equal(array[7], DATA[7])
    assert reads == ["ranges"]
    rng = random.Random(0)  # noqa: S311
    for way, selection, expected in random_selections(rng, SHAPE, 3):
        assert np.array_equal(select(array, way, selection), expected(DATA))


def versions_seen(array, monkeypatch, owner, names, overwrite):
    """Read a column while `overwrite` is called after the first of its ranges came."""
    calls = []

    def first_then_overwrite(method, *args, **kwargs):
        result = method(*args, **kwargs)
        calls.append(args)
        if len(calls) == 1:
            overwrite()
        return result

    for name in names:
        patched = functools.partial(first_then_overwrite, getattr(owner, name))
        monkeypatch.setattr(owner, name, patched)
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        column = array[:, 5]
    assert len(calls) > 1
    return [np.array_equal(column, data[:, 5]) for data in (DATA, -DATA)]


def overwrite(folder):
    """Write another version of the chunk, as zarr and obstore do: under another name first."""
    chunk = folder / "c/0/0"
    new = chunk.with_suffix(".new")
    new.write_bytes((-DATA).astype(">f8").tobytes())
    new.replace(chunk)


@pytest.mark.parametrize("name", ["LocalStore", "WrapperStore", "fsspec, local"])
def test_a_file_that_is_replaced_is_read_to_its_end(open_store, folder, monkeypatch, name):
    array = open_array(open_store(name), mode="r")
    write = functools.partial(overwrite, folder)
    assert versions_seen(array, monkeypatch, os, ("pread", "preadv"), write) == [True, False]
    assert np.array_equal(array[:, 5], -DATA[:, 5])


def test_a_member_that_is_replaced(folder):
    """A zip file holds both; nobody can write to it while one is read."""
    store = zarr.storage.ZipStore(zipped(folder), mode="a")
    array = open_array(store, mode="r+")
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        assert np.array_equal(array[:, 5], DATA[:, 5])
        with pytest.warns(UserWarning, match="Duplicate name"):
            array[:] = -DATA
        assert np.array_equal(array[:, 5], -DATA[:, 5])
    store.close()


class TestObjectStore:
    @pytest.fixture(params=["local", "memory"])
    def upstream(self, request, folder):
        upstream = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
        if request.param == "local":
            return upstream.LocalStore(str(folder))
        store = upstream.MemoryStore()
        for path in folder.rglob("*"):
            if path.is_file():
                store.put(path.relative_to(folder).as_posix(), path.read_bytes())
        return store

    @pytest.fixture
    def asked(self, upstream, monkeypatch, reads):
        """Return the array, and a function that reads a column while it is overwritten."""
        obstore = pytest.importorskip("obstore", reason="the extra stores is not installed")
        get_async = obstore.get_async
        reads.clear()

        def read(num_times):
            num_left = num_times

            async def get(store, path, *, options=None):
                nonlocal num_left
                answer = await get_async(store, path, options=options)
                if options and options["range"][0] == 8 * 5 and num_left:  # the first range
                    num_left -= 1
                    version = -DATA if num_left % 2 == 0 else DATA
                    await store.put_async("c/0/0", version.astype(">f8").tobytes())
                return answer

            monkeypatch.setattr(obstore, "get_async", get)
            array = open_array(zarr.storage.ObjectStore(upstream), mode="r")
            reads.clear()
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0, "async.concurrency": 1}):
                return array[:, 5]

        return read

    def test_an_object_that_does_not_change_takes_no_further_request(self, asked, reads):
        assert np.array_equal(asked(0), DATA[:, 5])
        assert reads == ["ranges"] * 64

    def test_an_object_that_changed_is_read_again(self, asked, reads):
        assert np.array_equal(asked(1), -DATA[:, 5])
        assert reads == ["ranges"] * (2 + 64)

    def test_an_object_that_changes_all_the_time_is_read_whole(self, asked, reads):
        assert np.array_equal(asked(9), -DATA[:, 5])
        assert reads == ["ranges"] * 6 + ["whole"]


class TestSplitRequests:
    """A long range of an object is fetched by several requests at once."""

    @pytest.fixture
    def near(self, tmp_path, monkeypatch):
        """Return a store of 2 chunks of 24 KiB, of which 1 KiB is long enough to be split."""
        upstream = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
        create(tmp_path, (128, 48), (64, 48))[...] = self.DATA
        set_costs(monkeypatch, stores.Remote, part_bytes=1 << 10)
        return zarr.storage.ObjectStore(upstream.LocalStore(str(tmp_path)), read_only=True)

    @pytest.fixture
    def store(self, near, monkeypatch):
        """Return the same, as if its files were far away."""
        monkeypatch.setattr(stores, "_FAR_OBJECTS", {"obstore.store.LocalStore"})
        return near

    DATA = np.arange(128 * 48).reshape(128, 48) * 1.5

    @pytest.fixture
    def asked(self, monkeypatch):
        """Return the ranges that are asked for; `change_tag` may change the versions."""
        obstore = pytest.importorskip("obstore", reason="the extra stores is not installed")
        ranges, get_async = [], obstore.get_async

        async def get(store, path, *, options=None):
            if options is None:  # a whole chunk
                return await get_async(store, path)
            ranges.append((path, *options["range"]))
            answer = await get_async(store, path, options=options)
            meta = {**answer.meta, "e_tag": get.change_tag(answer.meta["e_tag"])}
            return types.SimpleNamespace(meta=meta, bytes_async=answer.bytes_async)

        get.change_tag = lambda tag: tag
        get.ranges = ranges
        monkeypatch.setattr(obstore, "get_async", get)
        return get

    @pytest.mark.parametrize("concurrency", [1, 3, 10, None])
    def test_as_many_requests_as_zarr_s_limit_has_room_for(self, store, asked, concurrency):
        array = open_array(store, mode="r")
        with zarr.config.set({"async.concurrency": concurrency}):
            assert np.array_equal(array[:64], self.DATA[:64])
        num = {1: 0, 3: 3, 10: 10, None: 24}[concurrency]
        assert len(asked.ranges) == num
        assert sum(end - start for _, start, end in asked.ranges) == (num > 0) * 64 * 48 * 8

    def test_chunks_share_the_room(self, store, asked, reads):
        array = open_array(store, mode="r")
        reads.clear()
        assert np.array_equal(array[...], self.DATA)
        assert len(asked.ranges) == 10  # the first begins before the second, with all of them
        assert reads.count("whole") == 0

    def test_a_long_part_is_split_too(self, store, asked):
        array = open_array(store, mode="r")
        assert np.array_equal(array[8:40], self.DATA[8:40])
        assert len(asked.ranges) == 10
        assert min(start for _, start, _ in asked.ranges) == 8 * 48 * 8

    def test_a_missing_chunk_takes_one_request(self, store, asked, tmp_path):
        (tmp_path / "c/0/0").unlink()
        assert (open_array(store, mode="r")[:64] == 0).all()
        assert len(asked.ranges) == 1

    def test_without_versions_nothing_is_split_again(self, store, asked, reads):
        asked.change_tag = lambda _: None
        array = open_array(store, mode="r")
        for num in (1, 1, 1):
            reads.clear()
            assert np.array_equal(array[:64], self.DATA[:64])
            assert reads.count("whole") == 1
            assert len(asked.ranges) == num
        assert np.array_equal(array[8:40], self.DATA[8:40])
        assert len(asked.ranges) == 2

    def test_a_part_tells_that_there_are_no_versions(self, store, asked):
        asked.change_tag = lambda _: None
        array = open_array(store, mode="r")
        assert array[3, 5] == self.DATA[3, 5]
        asked.ranges.clear()
        assert np.array_equal(array[:64], self.DATA[:64])
        assert asked.ranges == []

    @pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="new in Python 3.12")
    def test_tasks_that_begin_at_once(self, store):
        array = open_array(store, mode="r").async_array

        async def read():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            return await array.getitem(slice(64))

        assert np.array_equal(asyncio.run(read()), self.DATA[:64])

    @pytest.mark.parametrize("error", [TimeoutError, ConnectionError, ConnectionResetError])
    def test_a_request_that_fails_is_not_repeated(self, store, monkeypatch, reads, error):
        async def get(*_, **__):
            reads.append("failed")
            raise error

        array = open_array(store, mode="r")
        monkeypatch.setattr(pytest.importorskip("obstore"), "get_async", get)
        reads.clear()
        with pytest.raises(error):
            array[:64]
        assert reads.count("failed") == 1

    def test_a_weak_tag_is_no_version(self, store, asked):
        asked.change_tag = lambda tag: f"W/{tag}"
        array = open_array(store, mode="r")
        for _ in range(2):
            assert np.array_equal(array[:64], self.DATA[:64])
        assert len(asked.ranges) == 1

    def test_versions_that_differ(self, store, asked, reads):
        versions = iter(range(100))
        asked.change_tag = lambda _: str(next(versions))
        array = open_array(store, mode="r")
        reads.clear()
        assert np.array_equal(array[:64], self.DATA[:64])
        assert reads.count("whole") == 1

    def test_another_length(self, store, asked, tmp_path):
        (tmp_path / "c/0/0").write_bytes(bytes(64 * 48 * 8 + 1))
        with pytest.raises(ValueError, match="holds 24577 bytes, expected 24576"):
            open_array(store, mode="r")[:64]
        assert len(asked.ranges) == 1

    def test_it_can_be_switched_off(self, store, asked):
        array = open_array(store, mode="r")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 1 << 20}):
            assert np.array_equal(array[:64], self.DATA[:64])
            assert len(asked.ranges) == 0
            assert np.array_equal(array[8:40], self.DATA[8:40])
            assert len(asked.ranges) == 1

    def test_files_of_this_machine_are_not_split(self, near, asked):
        assert np.array_equal(open_array(near, mode="r")[:64], self.DATA[:64])
        assert asked.ranges == []

    def test_the_classes_of_far_stores_have_these_names(self):
        upstream = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
        for kind in (upstream.S3Store, upstream.GCSStore, upstream.AzureStore, upstream.HTTPStore):
            assert stores._known_name(kind) in stores._FAR_OBJECTS


class TestReplacedMethods:
    """Short cuts are for exactly zarr's own classes: who overrides a method wants it called."""

    @staticmethod
    async def negated(buffer):
        prototype = default_buffer_prototype()
        buffer = await buffer
        raw = b"{" if buffer is None else buffer.to_bytes()
        if raw.startswith(b"{"):  # metadata
            return buffer
        return prototype.buffer.from_bytes((-np.frombuffer(raw, ">f8")).astype(">f8").tobytes())

    @pytest.mark.parametrize("kind", [zarr.storage.LocalStore, zarr.storage.MemoryStore])
    def test_a_get_set_on_the_instance(self, folder, kind):
        store = local_store(folder) if kind is zarr.storage.LocalStore else memory_store(folder)
        get = store.get
        store.get = lambda *args, **kwargs: self.negated(get(*args, **kwargs))
        with zarr.config.set({"codec_pipeline.path": OUR_PIPELINES[0]}):  # the fused one calls none
            assert np.array_equal(open_array(store)[7], -DATA[7])

    def test_a_get_below_that_of_the_instance(self, folder):
        """`ZipStore.get` reads by `_get`: one that decrypts was left out."""
        with zarr.storage.ZipStore(folder.parent / "a.zip", mode="w") as store:
            zarr.create_array(store, data=DATA, compressors=None)
        store = zarr.storage.ZipStore(folder.parent / "a.zip", mode="r")
        get, calls = store._get, []
        store._get = lambda key, *args, **more: calls.append(key) or get(key, *args, **more)
        assert np.array_equal(open_array(store, mode="r")[7], DATA[7])
        assert calls[-1] == "c/0/0"
        store.close()

    def test_a_subclass_of_store_path(self, folder):
        class Negating(zarr.storage.StorePath):
            async def get(self, *args, **kwargs):
                return await TestReplacedMethods.negated(super().get(*args, **kwargs))

            def get_sync(self, **kwargs):
                buffer = super().get_sync(**kwargs)
                negated = -buffer.as_numpy_array().view(">f8")
                return buffer.from_bytes(negated.astype(">f8").tobytes())

        store = zarr.storage.LocalStore(folder)
        opened = open_array(store)
        path = Negating(store, "")
        array = zarr.Array(zarr.AsyncArray(opened.metadata, path))
        assert np.array_equal(array[7], -DATA[7])

    def test_a_file_system_whose_method_is_replaced(self, folder):
        fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
        file_system = fsspec.filesystem("file", skip_instance_cache=True)
        cat_file = file_system.cat_file
        calls = []
        file_system.cat_file = lambda *args, **kwargs: (
            calls.append(args) or cat_file(*args, **kwargs)
        )
        store = zarr.storage.FsspecStore(wrapped(file_system), path=str(folder))
        array = open_array(store)
        num_calls = len(calls)
        assert np.array_equal(array[7], DATA[7])
        assert len(calls) == num_calls + 1


@pytest.fixture(autouse=True)
def _every_store_is_the_first_of_its_class():
    refusals._warned_of.clear()


@pytest.mark.parametrize("kind", ["fsspec", "obstore"])
def test_a_server_that_ignores_byte_ranges(odd_server, reads, kind, caplog):
    """`python -m http.server` could not be read, and the remedy did not help an open array."""
    address, has_ranges = odd_server
    if kind == "fsspec":
        store = http_store(address)
    else:
        store = obstore_store("HTTPStore", address, client_options={"allow_http": True})
    array = open_array(store, mode="r")
    assert np.array_equal(array[7], DATA[7])
    assert np.array_equal(array[:, 5], DATA[:, 5])
    assert np.array_equal(array[:], DATA)
    records = [record for record in caplog.records if record.name == "numcodecs_bytes"]
    if kind == "fsspec" and has_ranges:  # fsspec does not look for the total
        assert (reads, records) == (["ranges", "ranges", "whole"], [])
        return
    assert reads[-2:] == ["whole", "whole"]
    (record,) = records
    assert re.search(
        f"Store.* does not support byte ranges .* {NUM_BYTES} bytes", record.getMessage()
    )


def test_a_store_that_refused_is_forgotten_with_it(folder):
    """Stores have no hash; one may be made where another one was."""

    class Refusing(Plain):
        async def get(self, key, prototype, byte_range=None):
            if byte_range is not None:
                raise NotImplementedError
            return await super().get(key, prototype)

    store = Refusing(local_store(folder))
    with ranges_from(Refusing):
        assert np.array_equal(open_array(store)[7], DATA[7])
    assert store in refusals.refusing
    reference = weakref.ref(store)
    del store
    gc.collect()
    assert reference() is None
    others = [Refusing(local_store(folder)) for _ in range(100)]
    assert not any(other in refusals.refusing for other in others)


class Inverting:
    """A path that decrypts what it reads."""

    __slots__ = ()

    def read_bytes(self):
        raw = super().read_bytes()
        return raw if self.name == "zarr.json" else bytes(255 - byte for byte in raw)


class InvertingPath(Inverting, type(Path())):
    __slots__ = ()


def test_a_path_with_methods_of_its_own_is_read_by_them(folder):
    store = local_store(folder)
    store.root = InvertingPath(folder)
    alone = zarrs_own(store)[7]
    assert not np.array_equal(alone, DATA[7])
    assert np.array_equal(open_array(store, mode="r")[7], alone)


@pytest.mark.parametrize("name", ["LocalStore", "fsspec, local"])
def test_a_folder_in_the_place_of_a_chunk(tmp_path, name):
    """It opens as a file does, and may be as long."""
    shape = (tmp_path.stat().st_size,)
    path = tmp_path / "array"
    zarr.create_array(path, shape=shape, dtype="u1", compressors=None, fill_value=7)
    (path / "c/0").mkdir(parents=True)
    store = local_store(path)
    if name != "LocalStore":
        pytest.importorskip("fsspec")
        store = zarr.storage.FsspecStore.from_url(f"file://{path}")
    assert open_array(store, mode="r")[:3].tolist() == [7] * 3


def held_in(container):
    """Return a class of wrappers that keep what they wrap, and their requests, in a container."""

    class Holding(zarr.storage.WrapperStore):
        def __init__(self, store):
            super().__init__(store)
            self.held, self.requests = container(store), []

        async def get(self, key, prototype, byte_range=None):
            self.requests.append((key, byte_range))
            return await super().get(key, prototype, byte_range)

    return Holding


class Delegating:
    """A store by `__getattr__` alone."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)


def with_default(store):
    def get(store=store):
        return store

    return get


def cached_by_lru(store):
    get = functools.lru_cache(with_default(store))
    get()
    return get


def of_thread(store):
    local = threading.local()
    local.store = store
    return local


UNKNOWN = {
    "a wrapper": held_in(lambda _: None),
    "a subclass of WrapperStore": type("Sub", (zarr.storage.WrapperStore,), {}),
    "zarr's LoggingStore": zarr.storage.LoggingStore,
    "LoggingStore in WrapperStore": lambda s: zarr.storage.WrapperStore(
        zarr.storage.LoggingStore(s)
    ),
    "WrapperStore in LoggingStore": lambda s: zarr.storage.LoggingStore(
        zarr.storage.WrapperStore(s)
    ),
    "a Store": Plain,
    "a Store in a Store": lambda s: Plain(Plain(s)),
    "a Store in WrapperStore": lambda s: zarr.storage.WrapperStore(Plain(s)),
    "a cache": cache_store,
    **{
        f"held in {name}": held_in(container)
        for name, container in {
            "a list": lambda s: [s],
            "a long list": lambda s: [object() for _ in range(100)] + [s],
            "a dict": lambda s: {"store": s},
            "a deque": lambda s: collections.deque([s]),
            "a mapping proxy": lambda s: types.MappingProxyType({"store": s}),
            "a weak reference": weakref.ref,
            "a thread's own": of_thread,
            "a default argument": with_default,
            "a cache of a function": cached_by_lru,
            "a generator": lambda s: (_ for _ in [s]),
            "a partial function": lambda s: functools.partial(print, s),
            "a method": lambda s: s.get,
        }.items()
    },
}


@pytest.mark.parametrize(
    "below", ["fsspec, tar", "fsspec, zip", "LocalStore", "ObjectStore, local"]
)
@pytest.mark.parametrize("kind", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_store_is_asked_as_zarr_alone_asks_it(open_store, kind, below, reads):
    """A search for what it stands on gave up after 64 objects: 141 of 200 columns were wrong."""
    store = kind(open_store(below))
    array, alone = open_array(store, mode="r"), zarrs_own(store)
    for selection in np.s_[:, 5], np.s_[3], np.s_[4:9, 7:11], np.s_[:]:
        asked = []
        for opened in (array, alone):
            if hasattr(store, "requests"):
                store.requests.clear()
            assert np.array_equal(opened[selection], DATA[selection])
            asked.append(list(getattr(store, "requests", ())))
        assert asked[0] == asked[1]
    assert set(reads) == {"whole"}


def test_an_unknown_store_is_named_in_the_log(folder, caplog):
    class Unknown(Plain):
        pass

    with caplog.at_level(logging.INFO, "numcodecs_bytes"):
        for store in (Unknown(local_store(folder)), Unknown(local_store(folder))):
            open_array(store, mode="r")[7]
    (record,) = (r for r in caplog.records if "Unknown" in r.getMessage())
    assert record.levelname == "INFO"
    assert re.search(
        r"chunks are read whole: test_stores\..*Unknown is not known to have reliable byte ranges; "
        "if it has, name it in the option numcodecs_bytes.stores_with_ranges",
        record.getMessage(),
    )


class TestNamed:
    """`numcodecs_bytes.stores_with_ranges`."""

    def test_stores_named_with_another_class_below(self, open_store, reads):
        """To name LoggingStore made nothing known of what it wraps."""
        for kind in (zarr.storage.LoggingStore, NamedWrapper):
            with ranges_from(kind):
                for name in ("fsspec, tar", "fsspec, zip", "a user's"):
                    array = open_array(kind(open_store(name)), mode="r")
                    reads.clear()
                    assert np.array_equal(array[:, 5], DATA[:, 5])
                    assert reads == ["whole"]

    @pytest.mark.parametrize("name", ["LocalStore", "ObjectStore, local"])
    @pytest.mark.parametrize("num_wrappers", [1, 2, 3])
    def test_wrappers_of_stores_that_give_one_version_are_asked_once(
        self, open_store, reads, name, num_wrappers
    ):
        """Several ranges through LoggingStore mixed two versions in 85 of 95 reads."""
        store = open_store(name)
        for kind in (NamedWrapper, zarr.storage.WrapperStore, NamedWrapper)[-num_wrappers:]:
            store = kind(store)
        array = open_array(store, mode="r")
        for max_gap_bytes in (None, 0):
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}):
                reads.clear()
                assert np.array_equal(array[3:60:7, 5], DATA[3:60:7, 5])
                assert reads == ["ranges"]

    def test_wrappers_of_other_stores_may_be_asked_more_often(self, open_store, reads):
        array = open_array(NamedWrapper(open_store("fsspec, dir of local")), mode="r")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            reads.clear()
            assert np.array_equal(array[:, 5], DATA[:, 5])
            assert reads == ["ranges"] * SHAPE[0]

    def test_subclasses_of_named_classes(self, folder, reads):
        class Sub(Named):
            pass

        array = open_array(Sub(folder), mode="r")
        reads.clear()
        assert np.array_equal(array[7], DATA[7])
        assert reads == ["whole"]

    def test_an_instance_with_a_method_of_its_own(self, folder, reads):
        store = Named(folder)
        store.get = functools.partial(zarr.storage.LocalStore.get, store)
        array = open_array(store)
        reads.clear()
        assert np.array_equal(array[7], DATA[7])
        assert reads == ["whole"]

    @pytest.mark.parametrize("kind", ["tar", "zip"])
    def test_synchronous_file_systems_of_fsspec_are_never_read_in_part(
        self, open_store, reads, kind
    ):
        names = [
            "fsspec.implementations.asyn_wrapper.AsyncFileSystemWrapper",
            f"fsspec.implementations.{kind}.{kind.title()}FileSystem",
        ]
        with zarr.config.set({"numcodecs_bytes.stores_with_ranges": names}):
            array = open_array(open_store(f"fsspec, {kind}"), mode="r")
            reads.clear()
            assert np.array_equal(array[:, 5], DATA[:, 5])
        assert reads == ["whole"]

    def test_a_file_system_below_a_named_store(self, open_store, reads):
        class Sub(zarr.storage.FsspecStore):
            pass

        with ranges_from(Sub):
            for name, expected in (("fsspec, dir of local", "ranges"), ("fsspec, zip", "whole")):
                store = open_store(name)
                array = open_array(Sub(store.fs, read_only=True, path=store.path), mode="r")
                reads.clear()
                assert np.array_equal(array[7], DATA[7])
                assert reads == [expected]

    @pytest.mark.parametrize("names", [5, {"a": 1}, ["a", None]], ids=str)
    def test_a_bad_value(self, folder, names):
        array = open_array(Plain(local_store(folder)), mode="r")
        with (
            zarr.config.set({"numcodecs_bytes.stores_with_ranges": names}),
            pytest.raises(ValueError, match="must be a list of classes such as .*, got"),
        ):
            array[7]

    def test_environment(self, folder):
        program = """
import sys, zarr
class Store(zarr.storage.LocalStore):
    async def get(self, key, *args, **kwargs):
        buffer = await super().get(key, *args, **kwargs)
        print(len(buffer)) if key[0] == "c" else None
        return buffer
zarr.open_array(Store(sys.argv[1]), mode="r")[7]
"""
        for value, expected in (
            ("", NUM_BYTES),
            ("__main__.Store", 768),
            ("['__main__.Store']", 768),
        ):
            named = {"ZARR_NUMCODECS_BYTES__STORES_WITH_RANGES": value}
            done = run_program("-c", program, folder, **named)
            assert done.stdout.split() == [str(expected)]


class TestFileSystems:
    @pytest.fixture
    def zip_file_system(self, folder, tmp_path):
        fsspec = pytest.importorskip("fsspec")
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.write(folder / "c/0/0", "c/0/0")
        return fsspec.filesystem("zip", fo=str(tmp_path / "a.zip"))

    @pytest.mark.parametrize("name", ["DirFileSystem", "AsyncFileSystemWrapper"])
    def test_a_class_that_took_the_name_of_a_known_one(self, folder, reads, name):
        """One that decrypts gave what it had stored: it was known by its name."""
        module = {"DirFileSystem": "dirfs", "AsyncFileSystemWrapper": "asyn_wrapper"}[name]
        module = pytest.importorskip(f"fsspec.implementations.{module}")

        @functools.wraps(getattr(module, name), updated=())
        class Decrypting(getattr(module, name)):
            pass

        import fsspec  # noqa: PLC0415 # may not be installed

        local, path = fsspec.filesystem("file"), str(folder)
        if name == "DirFileSystem":
            file_system, path = Decrypting(path, fs=wrapped(local), asynchronous=True), ""
        else:
            file_system = Decrypting(local, asynchronous=True)
        store = zarr.storage.FsspecStore(file_system, read_only=True, path=path)
        array = open_array(store, mode="r")
        reads.clear()
        assert np.array_equal(array[7], DATA[7])
        assert reads == ["whole"]

    def test_a_client_of_the_user(self):
        """A client whose responses decrypt gave what was sent."""
        http = pytest.importorskip("fsspec.implementations.http")

        def why_no_ranges(**options):
            file_system = http.HTTPFileSystem(
                asynchronous=True, skip_instance_cache=True, **options
            )
            return stores._why_no_ranges(file_system)

        async def get_client(**_):
            raise NotImplementedError

        assert why_no_ranges(client_kwargs={"headers": {"a": "b"}, "trust_env": True}) is None
        odd = [{"client_kwargs": {"response_class": object}}, {"get_client": get_client}]
        for options in odd:
            assert "was given a client that may change" in why_no_ranges(**options).why
            with ranges_from(http.HTTPFileSystem):
                assert why_no_ranges(**options) is None

    def test_a_single_class_of_allowed_exceptions(self, open_store):
        """zarr takes it; we raised TypeError."""
        store = open_store("fsspec, dir of local")
        store.allowed_exceptions = FileNotFoundError
        array = open_array(store, mode="r")
        assert np.array_equal(array[7], DATA[7])

    def test_a_file_system_without_attributes(self):
        class Slotted:
            __slots__ = ()

        assert "is not known" in stores._why_no_ranges(Slotted()).why

    def test_a_reference_file_system_of_another_class(self, zip_file_system):
        reference = pytest.importorskip("fsspec.implementations.reference")

        class Other(reference.ReferenceFileSystem):
            pass

        for kind in (reference.ReferenceFileSystem, Other):
            references = kind({"c/0/0": ["c/0/0", 0, 8]}, fs=zip_file_system, asynchronous=True)
            assert stores._why_no_ranges(references) is not None

    def test_an_inline_reference_of_three_characters(self, tmp_path, monkeypatch):
        reference = pytest.importorskip("fsspec.implementations.reference")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a").write_bytes(b"wrong")
        references = reference.ReferenceFileSystem(
            {"c/0": "a13"}, remote_protocol="file", asynchronous=True
        )
        assert isinstance(stores._of_reference(references, "c/0"), stores.Whole)


def test_a_method_that_was_replaced_before_the_package_was_loaded(folder):
    """By tracing, for example."""
    program = """
import sys, zarr
from zarr.storage import LocalStore
get, keys = LocalStore.get, []
def traced(self, key, *args, **kwargs):
    keys.append(key)
    return get(self, key, *args, **kwargs)
LocalStore.get = traced
assert "numcodecs_bytes.zarr" not in sys.modules
array = zarr.open_array(sys.argv[1], mode="r")
assert "numcodecs_bytes.zarr" in sys.modules
array[7]
print([key for key in keys if key.startswith("c")])
"""
    assert run_program("-c", program, folder).stdout == "['c/0/0']\n"


def test_a_zip_file_that_is_closed_meanwhile(folder, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in folder.rglob("*"):
            archive.write(file, file.relative_to(folder))
    store = zarr.storage.ZipStore(tmp_path / "a.zip", mode="r")
    array = open_array(store, mode="r")

    class Closing:
        def __enter__(self):
            store._lock = lock
            store.close()
            return lock.__enter__()

        def __exit__(self, *args):
            return lock.__exit__(*args)

    lock, store._lock = store._lock, Closing()
    assert np.array_equal(array[7], DATA[7])
