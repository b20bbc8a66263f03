"""Partial reads from real stores: what NumPy selects, fetched in ranges, and errors that speak.

The extra `stores` brings fsspec, obstore and an S3 server; nginx is Debian's. What is not there is
skipped.
"""

import functools
import http.server
import shutil
import socket
import subprocess
import threading
import time

import numpy as np
import pytest
import zarr
import zarr.storage
from test_partial_read import create

from numcodecs_bytes.zarr import BytesCodec

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",  # of the stores' own packages
)
SHAPE = (64, 96)
DATA = np.arange(np.prod(SHAPE)).reshape(SHAPE) * 1.5


def wait_for(port):
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)  # until the server listens, 5 s at most
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


@pytest.fixture
def plain_http(folder):
    """Return the address of a server that ignores byte ranges."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def s3(folder, monkeypatch):
    """Return the address of an S3 server whose bucket `data` holds the folder."""
    moto_server = pytest.importorskip("moto.server", reason="the extra stores is not installed")
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


def obstore_store(kind, *args, **kwargs):
    stores = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
    make = getattr(stores, kind)
    make = make.from_url if args and "://" in str(args[0]) else make
    return zarr.storage.ObjectStore(make(*args, **kwargs), read_only=True)


def memory_store(folder):
    buffers = {
        path.relative_to(folder).as_posix(): zarr.core.buffer.cpu.Buffer.from_bytes(
            path.read_bytes()
        )
        for path in folder.rglob("*")
        if path.is_file()
    }
    return zarr.storage.MemoryStore(buffers)


def zip_store(folder):
    path = shutil.make_archive(str(folder), "zip", folder)
    return zarr.storage.ZipStore(path, mode="r")


def server_of(name):
    return lambda request: request.getfixturevalue(name)


STORES = {
    "local": lambda r: zarr.storage.LocalStore(r.getfixturevalue("folder"), read_only=True),
    "memory": lambda r: memory_store(r.getfixturevalue("folder")),
    "zip": lambda r: zip_store(r.getfixturevalue("folder")),
    "fsspec local": lambda r: fsspec_store(r.getfixturevalue("folder").as_uri()),
    "fsspec http": lambda r: fsspec_store(r.getfixturevalue("nginx"), asynchronous=True),
    "fsspec s3": lambda r: fsspec_store(
        "s3://data/array",
        endpoint_url=r.getfixturevalue("s3"),
        asynchronous=True,
        skip_instance_cache=True,
    ),
    "obstore local": lambda r: obstore_store("LocalStore", str(r.getfixturevalue("folder"))),
    "obstore http": lambda r: obstore_store(
        "HTTPStore", r.getfixturevalue("nginx"), client_options={"allow_http": True}
    ),
    "obstore s3": lambda r: obstore_store(
        "S3Store",
        "data",
        prefix="array",
        endpoint=r.getfixturevalue("s3"),
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
    ),
}


@pytest.fixture(params=STORES)
def store(request):
    """Return a store with the array at its root."""
    return STORES[request.param](request)


@pytest.mark.parametrize("cost", [0, None, 10**9], ids=["every run", "default", "one range"])
@pytest.mark.usefixtures("pipeline")
def test_every_store(store, cost):
    array = zarr.open_array(store, mode="r")
    assert type(array.metadata.codecs[0]) is BytesCodec
    points = np.array([63, 0, 5, 5]), np.array([95, 0, 7, 7])
    with zarr.config.set({"numcodecs_bytes.request_cost_bytes": cost}):
        assert np.array_equal(array[7], DATA[7])
        assert np.array_equal(array[3:60:7, 5:9], DATA[3:60:7, 5:9])
        assert np.array_equal(array.vindex[points], DATA[points])
        assert np.array_equal(array.oindex[[9, 3], ::40], DATA[np.ix_([9, 3], [0, 40, 80])])
        assert np.array_equal(array[:], DATA)


@pytest.mark.parametrize("length", [100, 40_000])
@pytest.mark.parametrize("name", STORES)
@pytest.mark.usefixtures("pipeline")
def test_a_truncated_chunk_in_every_store(request, folder, name, length):
    """Each store says it in its own way: a short answer, or an error of its own."""
    chunk = folder / "c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:length])
    array = zarr.open_array(STORES[name](request), mode="r")
    with pytest.raises(ValueError, match="truncated"):
        array[60]
    with pytest.raises(ValueError, match="truncated"):
        array[::9, 90]


@pytest.mark.usefixtures("pipeline")
def test_a_server_that_ignores_byte_ranges(plain_http):
    array = zarr.open_array(fsspec_store(plain_http, asynchronous=True), mode="r")
    with pytest.raises(ValueError, match="ignore byte ranges"):
        array[7]
    assert np.array_equal(array[:], DATA)
