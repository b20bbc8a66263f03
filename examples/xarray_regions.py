"""Write regions of a sharded dataset with xarray, from threads, processes and Dask's workers.

A model writes one time step after the other, and many steps share a shard. xarray warns about that
(`safe_chunks`), and with zarr alone, steps are lost: each writer reads the shard, changes it and
writes it back. Written in place, none is lost.

Every writer must write in place; see docs/write-in-place.md.

Needs ``pip install ".[examples]"``.
"""

import multiprocessing
import tempfile
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import xarray as xr
import zarr
from distributed import Client, LocalCluster

SHAPE = NUM_STEPS, NUM_ROWS, NUM_COLUMNS = 48, 256, 256
ENCODING = {"t2m": {"chunks": (5, 64, 64), "shards": (30, 256, 256), "compressors": None}}
DIMS = ("time", "y", "x")
ALONE: dict[str, Any] = {}  # by default, shards are written as by zarr alone
IN_PLACE = {
    "numcodecs_bytes.write_in_place": "require",
    "codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
}


def set_up(settings: dict[str, Any]) -> None:
    """Set zarr's config in this process."""
    zarr.config.set(settings)


def create(path: Path) -> None:
    """Write the metadata of two shards, whose size is known in advance."""
    lazy = dask.array.zeros(SHAPE, "f4", chunks=SHAPE)
    dataset = xr.Dataset({"t2m": (DIMS, lazy)})
    dataset.to_zarr(path, encoding=ENCODING, compute=False, zarr_format=3, consolidated=False)


def simulate(path: Path, step: int) -> None:
    """Write one time step."""
    values = np.full((1, NUM_ROWS, NUM_COLUMNS), step + 1, "f4")
    region = {"time": slice(step, step + 1)}
    dataset = xr.Dataset({"t2m": (DIMS, values)})
    dataset.to_zarr(path, region=region, safe_chunks=False, consolidated=False)


def simulate_in_process(path: Path, settings: dict[str, Any], step: int) -> None:
    """Write one time step in another process, which has its own config."""
    set_up(settings)
    simulate(path, step)


def by_threads(path: Path, _: dict[str, Any]) -> None:
    """Write with eight threads of this process."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(partial(simulate, path), range(NUM_STEPS)))


def by_processes(processes: Executor, path: Path, settings: dict[str, Any]) -> None:
    """Write with other processes."""
    list(processes.map(partial(simulate_in_process, path, settings), range(NUM_STEPS)))


def by_dask(client: Client, path: Path, settings: dict[str, Any]) -> None:
    """Write one Dask array, whose chunks align with no shard, on workers."""
    client.register_worker_callbacks(partial(set_up, settings))
    steps = dask.array.arange(1, NUM_STEPS + 1, dtype="f4", chunks=7)[:, None, None]
    dataset = xr.Dataset({"t2m": (DIMS, dask.array.broadcast_to(steps, SHAPE))})
    dataset = dataset.chunk(time=7, y=100, x=100)
    region = {"time": slice(NUM_STEPS)}
    dataset.to_zarr(path, region=region, safe_chunks=False, consolidated=False)


def num_lost(path: Path) -> int:
    """Return how many time steps are lost, at least in part."""
    found = xr.open_zarr(path, consolidated=False)["t2m"].values
    expected = np.arange(1, NUM_STEPS + 1)[:, None, None]
    return int((found != expected).any(axis=(1, 2)).sum())


def main() -> None:
    """Write each way, with zarr alone and in place; print how many time steps are lost."""
    print(f"in place: {', '.join(f'{key} = {value}' for key, value in IN_PLACE.items())}")
    spawn = multiprocessing.get_context("spawn")
    options: dict[str, Any] = {"dashboard_address": ":0", "silence_logs": "ERROR"}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(3, spawn) as processes,
        LocalCluster(n_workers=2, threads_per_worker=2, **options) as cluster,
        Client(cluster) as client,
    ):
        ways = {
            "eight threads": by_threads,
            "three processes": partial(by_processes, processes),
            "two Dask workers": partial(by_dask, client),
        }
        for name, write in ways.items():
            path = Path(folder, name)
            create(path / "alone")
            write(path / "alone", ALONE)
            lost = num_lost(path / "alone")
            create(path / "in place")
            with zarr.config.set(IN_PLACE):  # in this process, too
                write(path / "in place", IN_PLACE)
            assert num_lost(path / "in place") == 0
            print(f"{name}: {lost} of {NUM_STEPS} steps lost; in place: none")


if __name__ == "__main__":
    main()
