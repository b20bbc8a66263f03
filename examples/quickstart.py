"""Read and write parts of uncompressed chunks: the bytes, and the speed, compared with zarr alone.

The data stand in for a model's output: 64 time steps of a field of 512 x 512, big-endian float32,
64 MiB. They are stored as one chunk, in Zarr v3 and v2, and as one shard with an inner chunk for
every 8 time steps. Reading parts of them takes no settings. Writing them in place takes two, and
locks. On Windows, which has no such locks, zarr writes the whole chunk.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import numcodecs_bytes

SHAPE = (64, 512, 512)
BIG: dict[str, Any] = {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}}
ALONE = {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
IN_PLACE = {
    "numcodecs_bytes.write_in_place": True,
    "codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
}
ROW = np.s_[10, 100]
BOX = np.s_[10, 100:132, 100:132]
SERIES = np.s_[:, 100, 100]


def count(do: Callable[[], Any]) -> dict[str, Any]:
    """Return the counts of what a function reads and writes."""
    with numcodecs_bytes.trace() as traced:
        do()
    total: dict[str, Any] = traced.report()["total"]
    return total


def milliseconds(do: Callable[[], Any]) -> float:
    """Return the median of how long a function takes, over 7 calls or more, in 0.2 s or more."""
    taken: list[float] = []
    while len(taken) < 7 or sum(taken) < 0.2:  # the shorter a call, the noisier
        start = time.perf_counter()
        do()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def show(what: str, *cells: str) -> None:
    """Print a line of a table."""
    print(f"{what:34}" + "".join(f"{cell:>12}" for cell in cells))


def size(num_bytes: float) -> str:
    """Return a number of bytes in readable units."""
    for unit in ("B", "KiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.0f} MiB"


def main() -> None:
    """Print the bytes that are fetched, or written, with zarr alone and with this package."""
    data = np.random.default_rng(0).random(SHAPE, np.float32)
    with tempfile.TemporaryDirectory() as folder:

        def create(name: str, **settings: Any) -> "zarr.Array[Any]":
            path = Path(folder, name)
            array = zarr.create_array(path, shape=SHAPE, compressors=None, **settings)
            array[:] = data
            return array

        chunk = create("chunk.zarr", chunks=SHAPE, dtype="f4", **BIG)
        shard = create("shard.zarr", shards=SHAPE, chunks=(8, *SHAPE[1:]), dtype="f4", **BIG)
        old = create("v2.zarr", chunks=SHAPE, dtype=">f4", zarr_format=2)

        print(f"read by {zarr.config.get('codec_pipeline.path')}\n")
        show("", *["zarr alone", "ours"] * 2, "times")
        show("", "fetches", "fetches", "takes", "takes", "as fast")
        for what, array, selection in (
            ("a row from a chunk", chunk, ROW),
            ("a box of 32 x 32 from a chunk", chunk, BOX),
            ("a series at a point from a chunk", chunk, SERIES),
            ("a row from a chunk of Zarr v2", old, ROW),
            ("a row from a shard", shard, ROW),
            ("a series at a point from a shard", shard, SERIES),
        ):
            read = partial(getitem, array, selection)
            with zarr.config.set(ALONE):
                read_alone = partial(getitem, zarr.open_array(array.store, mode="r"), selection)
            found = count(read)
            fetched = size(found["bytes_zarr_alone"]), size(found["bytes_fetched"])
            alone, ours = milliseconds(read_alone), milliseconds(read)
            show(what, *fetched, f"{alone:.1f} ms", f"{ours:.1f} ms", f"{alone / ours:.0f}")
            # From the page cache, only what is shown; from a slow disk, more is read at once.
            assert found["bytes_fetched"] <= found["bytes_zarr_alone"] // 4
            assert np.array_equal(array[selection], data[selection])

        print()
        with zarr.config.set(IN_PLACE):
            found = count(lambda: chunk.__setitem__(ROW, 1))
        if found["why_not_in_place"]:
            why = ", ".join(found["why_not_in_place"])
            print(f"Nothing can be written in place here, so zarr wrote the whole chunk: {why}.")
        else:
            show("", "zarr alone", "ours")
            show("", "writes", "writes")
            show("a row of a chunk, in place", size(data.nbytes), size(found["bytes_in_place"]))
            assert found["bytes_in_place"] == SHAPE[-1] * 4
        assert (chunk[ROW] == 1).all()
        assert np.array_equal(chunk[11:], data[11:])


if __name__ == "__main__":
    main()
