"""Write rows of one chunk, or shard, from eight processes, with zarr alone and in place.

zarr alone reads a chunk, changes it and writes it back, so writers that share a chunk overwrite
each other's rows. In place, each process writes only its own bytes, and no row is lost. The same is
true of a shard, which is one file of many chunks. A logger and a movie show how long writes take.

The array is uncompressed, and in local files: see docs/write-in-place.md.
"""

import multiprocessing
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr

NUM_PROCESSES, NUM_STEPS, ROW = 8, 8, 16_384
ALONE: dict[str, Any] = {}  # by default, chunks are written as by zarr alone
# With True instead of "require", zarr would rewrite what can't be written in place.
IN_PLACE = {
    "numcodecs_bytes.write_in_place": "require",
    "codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
}


def create(path: Path, *, is_shard: bool) -> "zarr.Array[Any]":
    """Create an array of one uncompressed chunk of 8 MiB, or of one shard of 16 inner chunks."""
    shape = (NUM_PROCESSES * NUM_STEPS, ROW)
    chunks = {"chunks": (16, ROW // 4), "shards": shape} if is_shard else {"chunks": shape}
    return zarr.create_array(path, shape=shape, dtype="f8", compressors=None, **chunks)


def simulate(path: Path, settings: dict[str, Any], rank: int) -> None:
    """Write the rows of one process, one after the other."""
    with zarr.config.set(settings):
        array = zarr.open_array(path, mode="r+")
        for step in range(NUM_STEPS):
            array[step * NUM_PROCESSES + rank] = np.arange(1, ROW + 1)


def num_lost(path: Path, settings: dict[str, Any], processes: Executor, *, is_shard: bool) -> int:
    """Let all processes write, and return how many rows are lost."""
    array = create(path, is_shard=is_shard)
    list(processes.map(partial(simulate, path, settings), range(NUM_PROCESSES)))
    return int((array[...] != np.arange(1, ROW + 1)).any(axis=1).sum())


def log(path: Path, settings: dict[str, Any]) -> float:
    """Append rows to an array whose chunk has room for all of them; return the seconds it took."""
    with zarr.config.set(settings):
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


def record(path: Path, settings: dict[str, Any]) -> float:
    """Write the frames of a movie whose size is set in advance; return the seconds it took."""
    shape, chunks = (64, 256, 256), (8, 256, 256)
    zarr.create_array(
        path, shape=shape, shards=shape, chunks=chunks, dtype="u2", compressors=None, fill_value=0
    )
    with zarr.config.set(settings):
        array = zarr.open_array(path, mode="r+")
        start = time.perf_counter()
        for k in range(64):
            array[k] = k + 1
        seconds = time.perf_counter() - start
        assert array[:, 7, 7].tolist() == list(range(1, 65))
    return seconds


def main() -> None:
    """Write with zarr alone and in place, and print what was lost and how long it took."""
    print(f"in place: {', '.join(f'{key} = {value}' for key, value in IN_PLACE.items())}")
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(NUM_PROCESSES, spawn) as processes,
    ):
        folder = Path(name)
        num_rows = NUM_PROCESSES * NUM_STEPS
        for is_shard in (False, True):
            what = "shard" if is_shard else "chunk"
            lost = num_lost(folder / f"{what}_alone", ALONE, processes, is_shard=is_shard)
            print(f"eight processes, one {what}, zarr alone: {lost} of {num_rows} rows are lost")
            assert num_lost(folder / what, IN_PLACE, processes, is_shard=is_shard) == 0
            print(f"eight processes, one {what}, in place:   none")
        ratio = log(folder / "log_alone", ALONE) / log(folder / "log", IN_PLACE)
        print(f"a logger that appends rows to a chunk of 32 MiB: {ratio:.0f} times as fast")
        ratio = record(folder / "m_alone", ALONE) / record(folder / "m", IN_PLACE)
        print(f"a movie of 64 frames in a shard of 8 MiB: {ratio:.0f} times as fast")


if __name__ == "__main__":
    main()
