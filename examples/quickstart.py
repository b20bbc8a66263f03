"""Read and write parts of uncompressed chunks, and count the bytes, beside what zarr alone fetches.

The data stand in for a model's output: 64 time steps of a field of 512 x 512, big-endian float32,
64 MiB. It is stored as one chunk, and as one shard with an inner chunk for each 8 time steps.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import numcodecs_bytes

SHAPE = (64, 512, 512)
UNCOMPRESSED = {
    "shape": SHAPE,
    "dtype": "f4",
    "compressors": None,
    "serializer": {"name": "bytes", "configuration": {"endian": "big"}},
}
ROW = np.s_[10, 100]
BOX = np.s_[10, 100:132, 100:132]
SERIES = np.s_[:, 100, 100]


def count(do: Callable[[], Any]) -> dict[str, int]:
    """Return the counts of what a function reads and writes."""
    with numcodecs_bytes.trace() as traced:
        do()
    total: dict[str, int] = traced.report()["total"]
    return total


def show(what: str, alone: str, ours: str) -> None:
    """Print a line of a table."""
    print(f"{what:36}{alone:>12}{ours:>18}")


def size(num_bytes: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "KiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.0f} MiB"


def main() -> None:
    """Print how many bytes are fetched, or written, with zarr alone and with this package."""
    # Parts of shards, and writes in place, need our pipeline; parts of chunks do not.
    numcodecs_bytes.set_options(pipeline="BytesPipeline", write_in_place="require")
    data = np.random.default_rng(0).random(SHAPE, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        chunk, shard = Path(folder, "chunk.zarr"), Path(folder, "shard.zarr")
        zarr.create_array(chunk, chunks=SHAPE, **UNCOMPRESSED)[:] = data
        inner = (8, *SHAPE[1:])
        zarr.create_array(shard, shards=SHAPE, chunks=inner, **UNCOMPRESSED)[:] = data
        array, sharded = zarr.open_array(chunk), zarr.open_array(shard)

        codec = type(array.metadata.codecs[0])
        print(f"read by {codec.__module__}.{codec.__qualname__}\n")
        show("bytes fetched", "zarr alone", "numcodecs_bytes")
        for what, opened, selection in (
            ("a row from a chunk", array, ROW),
            ("a box of 32 x 32 from a chunk", array, BOX),
            ("a series at a point from a chunk", array, SERIES),
            ("a row from a shard", sharded, ROW),
        ):
            found = count(lambda a=opened, s=selection: a[s])  # type: ignore[misc]
            show(what, size(found["bytes_zarr_alone"]), size(found["bytes_fetched"]))
            assert np.array_equal(opened[selection], data[selection])

        print()
        show("bytes written", "zarr alone", "numcodecs_bytes")
        found = count(lambda: array.__setitem__(ROW, 1))
        show("a row of a chunk, in place", size(data.nbytes), size(found["bytes_in_place"]))
        assert (array[ROW] == 1).all()
        assert np.array_equal(array[11:], data[11:])


if __name__ == "__main__":
    main()
