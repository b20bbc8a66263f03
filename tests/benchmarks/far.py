"""A far object store, simulated by a server: each request waits, each connection has a rate."""

import contextlib
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import obstore.store
import zarr
import zarr.storage
from measure import Settings, as_size, cases, is_slower, measure, medians, table
from whole import PIPELINES, opened

# Latency in ms, and MB/s of a connection: a bucket on another continent, one in the same room.
LINKS = ((30, 100), (1, 1000))
# Shape and chunks of float32.
ARRAYS = (((64, 512, 512), (64, 512, 512)), ((256, 256, 512), (16, 256, 512)))
STORES = ("obstore", "fsspec", *(["icechunk"] if hasattr(icechunk, "http_storage") else []))  # 2
QUICK_ARRAYS = (((8, 256, 256), (4, 256, 256)),)


@contextlib.contextmanager
def served(folder: Path, milliseconds: float, megabytes_per_second: float) -> Iterator[str]:
    """Serve a folder; give the address."""
    script = Path(__file__).with_name("far_server.py")
    arguments = [sys.executable, str(script), str(folder)]
    arguments += [str(milliseconds), str(megabytes_per_second)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"  # type: ignore[union-attr]
        finally:
            server.kill()


def against_zarr(by: dict[str, Any], select: Any, least: int, most: int) -> list[str]:
    """Return the cells of a selection from the array of "zarr", and from that of another."""
    contenders = {who: functools.partial(select, array) for who, array in by.items()}
    times = measure(contenders, 0.1, least=least, most=most)
    found, (ours,) = medians(times), by.keys() - {"zarr"}
    milliseconds = [f"{found[who] * 1e3:.1f}" for who in by]
    slower = "yes" if is_slower(times, ours, "zarr") else ""
    return [*milliseconds, f"{found['zarr'] / found[ours]:.2f}", slower]


def create(store: Any, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    zarr.create_array(
        store,
        shape=shape,
        chunks=chunks,
        dtype="f4",
        compressors=None,
        serializer=zarr.codecs.BytesCodec(endian="big"),
    )[...] = np.random.default_rng(0).random(shape, "f4")


def store_of(kind: str, address: str) -> Any:
    if kind == "icechunk":
        storage = icechunk.http_storage(f"{address}-icechunk", opts={"allow_http": "true"})
        return icechunk.Repository.open(storage).readonly_session("main").store
    if kind == "fsspec":
        return zarr.storage.FsspecStore.from_url(address, read_only=True)
    store = obstore.store.HTTPStore.from_url(address, client_options={"allow_http": True})
    return zarr.storage.ObjectStore(store, read_only=True)


def in_threads(array: zarr.Array) -> None:
    """Read the array as Dask does: eight threads, each a part of four chunks."""
    n = array.shape[0] // 8
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: array[i * n : (i + 1) * n, ::2, 7], range(8)))


def selections(shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    points = tuple(rng.integers(0, n, 20) for n in shape)
    return {
        "row": lambda a: a[3, 7],
        "point": lambda a: a[5, 5, 5],
        "20 points": lambda a: a.vindex[points],
        "box": lambda a: a[:, 100:140, 100:160],
        "column": lambda a: a[:, 11, 13],
        "strip": lambda a: a[:, 17],
        "every 4th": lambda a: a[::4, ::4, ::4],
        "whole": lambda a: a[...],
        "in 8 threads": in_threads,
    }


def section(settings: Settings) -> str:
    rows = []
    arrays = QUICK_ARRAYS if settings.quick else ARRAYS
    links = LINKS[1:] if settings.quick else LINKS
    for i, (shape, chunks) in enumerate(arrays):
        path = settings.folder / f"far-{i}"
        create(path, shape, chunks)
        storage = icechunk.local_filesystem_storage(f"{path}-icechunk")
        session = icechunk.Repository.create(storage).writable_session("main")
        create(session.store, shape, chunks)
        session.commit("the same")
    for link, kind, i in cases(
        "a far store",
        itertools.product(links, STORES, range(len(arrays))),
    ):
        with served(settings.folder, *link) as address:
            shape, chunks = arrays[i]
            by = {
                who: opened(store_of(kind, f"{address}/far-{i}"), who, PIPELINES["default"])
                for who in ("zarr", "ours")
            }
            num = int(np.prod(shape) / np.prod(chunks))
            for name, select in selections(shape).items():
                label = f"{num} x {as_size(int(np.prod(chunks)) * 4)}"
                cells = against_zarr(by, select, 3 if settings.quick else 11, most=41)
                rows.append(["{} ms, {} MB/s".format(*link), kind, label, name, *cells])
    header = ["link", "store", "chunks", "selection", "zarr", "ours", "zarr / ours", "slower"]
    return INTRODUCTION + table(header, rows)


INTRODUCTION = """\
## A far object store, in ms

A server in another process waits before each answer, and sends each at the rate of one connection.
Big-endian float32, zarr's default pipeline with its ten requests in flight. slower: in more rounds
than chance gives once in 700 times.

"""
