"""Read one random sample at a time: by zarr, and by `SyncReader`, about twenty times as fast.

An uncompressed chunk of 10 MB holds 10,000 samples of 1 KiB. zarr alone reads all of it for each
sample. With this package installed, ``array[i]`` reads 1 KiB, but through zarr's event loop in
another thread, which takes longer than the read itself. `SyncReader` reads in the calling thread,
and returns the same values.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import numcodecs_bytes

NUM_SAMPLES, LENGTH = 10_000, 256  # of float32: 1 KiB each


def seconds_per_sample(samples: Any, order: list[int]) -> float:
    """Return how long it takes to read a sample, on average."""
    start = time.perf_counter()
    for index in order:
        samples[index]
    return (time.perf_counter() - start) / len(order)


def main() -> None:
    """Read the same samples in both ways, and print what each took."""
    rng = np.random.default_rng(0)
    data = rng.random((NUM_SAMPLES, LENGTH), "f4")
    order = rng.integers(0, NUM_SAMPLES, 500).tolist()
    with tempfile.TemporaryDirectory() as folder:
        array = zarr.create_array(
            Path(folder, "samples.zarr"), data=data, chunks=data.shape, compressors=None
        )
        reader = numcodecs_bytes.SyncReader(array)
        print(f"read by {zarr.config.get('codec_pipeline.path')}\n{reader}\n")

        with numcodecs_bytes.trace() as traced:
            values = [reader[index] for index in order]
        assert np.array_equal(values, data[order])
        assert np.array_equal(values, [array[index] for index in order])
        print(f"{traced}\n")  # it would also say what was left to zarr, and why
        assert not traced.report()["total"]["why_not_direct"]

        for what, samples in (("array[i]", array), ("SyncReader(array)[i]", reader)):
            print(f"{what:22}{1e6 * seconds_per_sample(samples, order):5.0f} µs per sample")


if __name__ == "__main__":
    main()
