"""Reduce a big-endian array of 1 GiB on Dask workers that have less memory than that.

The workers are separate processes, to which arrays are pickled, or which open them. A chunk of the
array is 128 MiB. A Dask block is 16 MiB of it, and a worker fetches only that. With zarr alone, a
worker fetches the whole chunk for each block, and runs out of memory.

Nothing below imports numcodecs_bytes: zarr finds it in the workers, too, if it is installed.

Needs ``pip install ".[examples]"``, and 1 GiB in the folder for temporary files.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import dask
import dask.array
import numcodecs
import numpy as np
import zarr
from distributed import Client, LocalCluster

SHAPE = (64, 2048, 2048)
CHUNKS = (8, 2048, 2048)
BLOCKS = (1, 2048, 2048)
MEMORY_OF_A_WORKER = "400 MB"


def pattern() -> np.ndarray:
    """Return what each layer holds, apart from its number: integers, so that sums are exact."""
    return np.add.outer(np.arange(2048), np.arange(2048)) % 251


def write(path: Path) -> float:
    """Write the array chunk by chunk; return its mean."""
    array = zarr.create_array(
        path,
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="float32",
        compressors=None,
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
    )
    layer = pattern().astype("f4")
    for start in range(0, SHAPE[0], CHUNKS[0]):
        numbers = np.arange(start, start + CHUNKS[0], dtype="f4")
        array[start : start + CHUNKS[0]] = layer + numbers[:, np.newaxis, np.newaxis]
    return pattern().mean() + (SHAPE[0] - 1) / 2


def is_imported() -> bool:
    """Whether this process has imported the package."""
    return "numcodecs_bytes" in sys.modules


def class_that_reads(array: zarr.Array) -> str:
    """Return the module and name of the class that reads an array in this process."""
    assert array[40, 100, :3].tolist() == [140, 141, 142]
    pipeline = type(array.async_array.codec_pipeline)
    return f"{pipeline.__module__}.{pipeline.__qualname__}"


def class_that_reads_path(path: Path) -> str:
    """Open the array in this process."""
    return class_that_reads(zarr.open_array(path))


def main() -> None:
    """Write the array, ask the workers what reads it, and reduce it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "big.zarr")
        expected = write(path)
        # Dask's own warnings about memory and the network do not matter here.
        options = {"dashboard_address": ":0", "silence_logs": "ERROR"}
        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, memory_limit=MEMORY_OF_A_WORKER, **options
            ) as cluster,
            Client(cluster) as client,
        ):
            assert dask.config.get("distributed.worker.multiprocessing-method") == "spawn"
            workers = client.run(os.getpid)
            assert len({os.getpid(), *workers.values()}) == 3
            assert not any(client.run(is_imported).values())
            print(f"{len(workers)} workers of {MEMORY_OF_A_WORKER}; has any imported it? No.")

            for answer in client.run(class_that_reads_path, path).values():
                print(f"  opened in the worker:   {answer}")
                assert answer == "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline"
            array = zarr.open_array(path)
            for answer in client.run(class_that_reads, array).values():
                print(f"  sent there by pickle:   {answer}")
                assert answer == "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline"
            codec = numcodecs.get_codec({"id": "bytes", "endian": "big", "dtype": "<f4"})
            decoded = client.submit(codec.decode, b"\x3f\x80\x00\x00").result()
            assert decoded.tolist() == [1.0]
            print(f"  codec sent there:       {codec!r} decodes 3f 80 00 00 as {decoded[0]}")

            mean = dask.array.from_zarr(array, chunks=BLOCKS).mean(dtype="f8")
            start = time.perf_counter()
            assert mean.compute() == expected
            print(f"\nmean of {array.nbytes >> 20} MiB: {expected:.4f}")
            print(f"  by the workers in {time.perf_counter() - start:.1f} s, none restarted")
            assert client.run(os.getpid) == workers

        start = time.perf_counter()
        assert mean.compute(scheduler="threads") == expected
        print(f"  by threads of one process in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
