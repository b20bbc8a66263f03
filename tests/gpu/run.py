"""Checks and times arrays on a GPU: python tests/gpu/run.py [--quick] [--stand-in]

Needs CuPy, zarr, numcodecs and this package on the path, which need not be installed, and nothing
else of the tests but the stand-in for CuPy, which takes CuPy's place with --stand-in. Prints a
table against zarr alone; exits with 1 if a value is wrong. It should take less than two minutes.
"""

import argparse
import functools
import itertools
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1])]
if "--stand-in" in sys.argv:
    import standin_cupy

    sys.modules["cupy"] = standin_cupy

import cupy
import zarr
from zarr.codecs import BytesCodec, TransposeCodec

import numcodecs_bytes
import numcodecs_bytes.zarr_codec
import numcodecs_bytes.zarr_pipeline

OURS = {
    "codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
    "codecs.bytes": "numcodecs_bytes.zarr_codec.BytesCodec",
}
ZARR_ALONE = {
    "codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "codecs.bytes": "zarr.codecs.bytes.BytesCodec",
}
FUSED = {"codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.FusedBytesPipeline"}
ON_HOST = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}
DTYPES = ["?", "i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8", "c16"]
MIB = 1 << 20


# --- values ---

SHAPE = (70, 90)
LAYOUTS = {
    "plain": {"chunks": (16, 20)},
    "shards": {"chunks": (8, 10), "shards": (32, 40)},
    "transposed": {"chunks": (16, 20), "filters": [TransposeCodec(order=(1, 0))]},
    "v2": {"chunks": (16, 20), "zarr_format": 2},
}
EVEN = np.arange(SHAPE[0]) % 2 == 0
SELECTIONS = {  # of oindex, if they are tuples of lists or arrays
    "whole": np.s_[:],
    "slices": np.s_[5:60, 30:80],
    "steps": np.s_[::7, ::3],
    "an element": np.s_[5, 6],
    "indices": ([3, 60, 5], slice(2, 50)),
    "mask": (np.arange(SHAPE[0]) % 2 == 0, slice(None)),
}


def is_orthogonal(selection):
    """Whether a selection is one of `oindex`."""
    return isinstance(selection, tuple) and isinstance(selection[0], list | np.ndarray)


def select(array, selection):
    """Return what is selected of an array of zarr's."""
    return (array.oindex if is_orthogonal(selection) else array)[selection]


def host_array(rng, dtype):
    """Return random elements."""
    if dtype.kind == "b":
        return rng.random(SHAPE) < 0.5
    if dtype.kind in "fc":
        return (rng.random(SHAPE) * 100).astype(dtype)
    return rng.integers(0, 100, SHAPE).astype(dtype)


def check_values(folder, dtypes):
    """Read and write arrays of every kind; return how many reads there were, and what was wrong."""
    rng, num, wrong = np.random.default_rng(0), 0, []
    pipelines = [OURS]
    if hasattr(numcodecs_bytes.zarr_pipeline, "FusedBytesPipeline"):
        pipelines.append(OURS | FUSED)
    kinds = itertools.product(map(np.dtype, dtypes), ["little", "big"], LAYOUTS, pipelines)
    for number, (dtype, endian, layout, config) in enumerate(kinds):
        if layout == "v2" and endian != sys.byteorder:
            continue  # zarr asks CuPy for a dtype that it lacks
        settings = LAYOUTS[layout] | {"shape": SHAPE, "dtype": dtype, "compressors": None}
        if layout != "v2":
            settings["serializer"] = BytesCodec(endian=endian)
        path, data = folder / str(number), host_array(rng, dtype)
        with zarr.config.set(config):
            with zarr.config.set(ON_HOST):
                zarr.create_array(path, **settings)[...] = data
            for name, got, expected in read_and_write(path, data, rng, config):
                num += 1
                if got.dtype != dtype or not np.array_equal(got, expected):
                    wrong.append((name, str(dtype), endian, layout, config["codec_pipeline.path"]))
    return num, wrong


def read_and_write(path, data, rng, config):
    """Yield what is read of an array on a GPU and what should be, also after it was written."""
    with zarr.config.enable_gpu():
        array = zarr.open_array(path, mode="r+")
        for name, selection in SELECTIONS.items():
            yield name, cupy.asnumpy(select(array, selection)), data[selection]
        array[...] = cupy.asarray(data[::-1].copy())
        data = data[::-1].copy()
        is_shard_in_fused = array.shards and "Fused" in config["codec_pipeline.path"]
        modes = ["require"] if is_shard_in_fused else [False, "require"]
        for mode in modes:
            new = host_array(rng, data.dtype)[:40, :50]
            with zarr.config.set({"numcodecs_bytes.write_in_place": mode}):
                array[7:47, 3:53] = cupy.asarray(new)
            data[7:47, 3:53] = new
            with zarr.config.set(ON_HOST):
                yield f"written, in place: {mode}", array[...], data


# --- times ---


def milliseconds(function, rounds):
    """Return the median time of a function."""
    times = []
    for _ in range(rounds):
        cupy.cuda.runtime.deviceSynchronize()
        begin = time.perf_counter()
        function()
        cupy.cuda.runtime.deviceSynchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def time_arrays(folder, shape, grids, rounds):
    """Yield rows of the table: what is done, and how long it takes with us and with zarr alone."""
    data = np.random.default_rng(0).random(shape, np.float32)
    for grid in grids:
        chunk = tuple(size // num for size, num in zip(shape, grid, strict=True))
        size = math.prod(chunk) * 4 / MIB
        for endian in ("little", "big"):
            path = folder / f"{grid} {endian}"
            settings = {"chunks": chunk, "serializer": BytesCodec(endian=endian)}
            with zarr.config.set(OURS | ON_HOST):
                zarr.create_array(path, data=data, compressors=None, **settings)
            kind = f"{math.prod(grid)} chunks of {size:g} MiB, {endian}-endian"
            yield from time_array(path, kind, data, rounds)


def time_array(path, kind, data, rounds):
    """Yield rows for an array."""
    third, num_rows = len(data) // 3, len(data)
    selections = {
        "whole": np.s_[:],
        "box of 100 x 100": np.s_[third : third + 100, third : third + 100],
        "column": np.s_[:, third],
        "three rows": ([num_rows - 5, 3, third], slice(None)),
    }
    with zarr.config.enable_gpu():
        for name, selection in selections.items():

            def read(config, selection=selection):
                with zarr.config.set(config):
                    return select(zarr.open_array(path, mode="r"), selection)

            yield f"{name}, {kind}", *both(read, data[selection], rounds)
        new = cupy.asarray(data)

        def write(config):
            with zarr.config.set(config):
                zarr.open_array(path, mode="r+")[...] = new

        yield f"written whole, {kind}", *both(write, None, rounds)


def both(function, expected, rounds):
    """Return how long a function takes with us and with zarr alone, or what is wrong with that."""
    found = {}
    for name, config in (("ours", OURS), ("zarr", ZARR_ALONE)):
        try:
            got = function(config)
        except Exception as error:  # noqa: BLE001 # zarr alone raises anything
            found[name] = type(error).__name__
            continue
        if expected is not None and not np.array_equal(cupy.asnumpy(got), expected):
            found[name] = "WRONG"
    times = {"ours": [], "zarr": []}
    for number in range(rounds):
        order = [("ours", OURS), ("zarr", ZARR_ALONE)]
        for name, config in order if number % 2 else order[::-1]:
            if name not in found:
                times[name].append(milliseconds(lambda config=config: function(config), 1))
    return tuple(found.get(n) or statistics.median(times[n]) for n in ("ours", "zarr"))


def time_swaps(num_bytes, rounds):
    """Yield the share of the bandwidth of a copy on the device that swaps have."""
    from numcodecs_bytes._gpu.kernels import decode_on_device

    for size, num in ((2, num_bytes), (4, num_bytes), (8, num_bytes), (4, 1 << 16)):
        raw, dtype = cupy.empty(num, np.uint8), np.dtype(f"u{size}")
        decode = functools.partial(decode_on_device, raw, dtype.newbyteorder(), dtype)
        decode()  # compiles it
        swap, copy = milliseconds(decode, rounds), milliseconds(raw.copy, rounds)
        yield f"swap of {num / MIB:g} MiB, {size} bytes each: a copy takes", copy / swap, swap


def shown(value):
    """Return a cell of the table."""
    return value if isinstance(value, str) else f"{value:.2f}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="small arrays, a single round")
    parser.add_argument("--stand-in", action="store_true", help="without a GPU")
    arguments = parser.parse_args()
    grids, dtypes, shape, rounds = [(2, 2), (16, 32), (64, 128)], DTYPES, (8192, 16384), 3
    if arguments.quick:
        grids, dtypes, shape, rounds = grids[:2], ["?", "c8"], (128, 256), 1
    memory = Path("/dev/shm")  # noqa: S108 # in memory, so that no disk is measured
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        num, wrong = check_values(Path(folder, "values"), dtypes)
        print(f"values: {num} compared, {len(wrong)} wrong")
        for each in wrong:
            print("WRONG:", *each)
        print("\n| milliseconds | numcodecs_bytes | zarr alone |\n| --- | --- | --- |")
        for name, ours, alone in time_arrays(Path(folder), shape, grids, rounds):
            print(f"| {name} | {shown(ours)} | {shown(alone)} |", flush=True)
    print("\n| swaps on the device | of a swap's time | milliseconds |\n| --- | --- | --- |")
    for name, share, swap in time_swaps(math.prod(shape) * 4, 10 * rounds):
        print(f"| {name} | {share:.2f} | {swap:.3f} |")
    seconds = time.perf_counter() - begin
    print(f"\nzarr {zarr.__version__}, CuPy {cupy.__version__}, in {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
