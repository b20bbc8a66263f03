"""Eight processes write rows of one chunk, and a logger appends rows: rewritten, and in place.

zarr alone reads a chunk, changes it and writes it again, so writers that share a chunk lose each
other's rows. Written in place, each writes its own bytes and no other, and none is lost.

The array is uncompressed, and in local files: see docs/write-in-place.md.
"""

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import numcodecs_bytes

NUM_PROCESSES, NUM_STEPS, ROW = 8, 8, 65_536
ALONE: dict[str, Any] = {}
# True would rewrite what can't be written in place.
IN_PLACE = {"write_in_place": "require"}


def create(path: Path) -> "zarr.Array[Any]":
    """Create an array of one uncompressed chunk, of 32 MiB."""
    shape = (NUM_PROCESSES * NUM_STEPS, ROW)
    return zarr.create_array(path, shape=shape, chunks=shape, dtype="f8", compressors=None)


def simulate(path: Path, settings: dict[str, Any], rank: int, start: Any) -> None:
    """Write the rows of one process, one after the other."""
    with numcodecs_bytes.set_options(**settings):
        array = zarr.open_array(path, mode="r+")
        start.wait()
        for step in range(NUM_STEPS):
            array[step * NUM_PROCESSES + rank] = np.arange(1, ROW + 1)


def num_lost(path: Path, settings: dict[str, Any]) -> int:
    """Let all processes write, and return how many rows are lost."""
    array = create(path)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(NUM_PROCESSES)
    processes = [
        context.Process(target=simulate, args=(path, settings, rank, start))
        for rank in range(NUM_PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return int((array[...] != np.arange(1, ROW + 1)).any(axis=1).sum())


def log(path: Path, settings: dict[str, Any]) -> float:
    """Append rows to an array whose chunk has room for all of them; return the seconds it took."""
    with numcodecs_bytes.set_options(**settings):
        chunks = (1024, 4096)
        array = zarr.create_array(
            path, shape=(0, 4096), chunks=chunks, dtype="f8", compressors=None
        )
        start = time.perf_counter()
        for k in range(32):
            array.append(np.full((1, 4096), k))
        seconds = time.perf_counter() - start
        assert array.shape == (32, 4096)
        assert array[:, 7].tolist() == list(range(32))
    return seconds


def main() -> None:
    """Write with zarr alone and in place, and print what was lost and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        with numcodecs_bytes.set_options(**IN_PLACE):
            print(f"in place: {zarr.config.get('codec_pipeline.path')}")
        num_rows = NUM_PROCESSES * NUM_STEPS
        lost = num_lost(Path(folder, "alone"), ALONE)
        print(f"eight processes, zarr alone: {lost} of {num_rows} rows are lost")
        assert num_lost(Path(folder, "in_place"), IN_PLACE) == 0
        print("eight processes, in place:   none")
        ratio = log(Path(folder, "log_alone"), ALONE) / log(Path(folder, "log"), IN_PLACE)
        print(f"a logger that appends rows to a chunk of 32 MiB: {ratio:.0f} times as fast")


if __name__ == "__main__":
    main()
