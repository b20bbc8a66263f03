"""Random selections of random arrays in local files, compared with NumPy.

As a script, ``python tests/engine/test_random_selections.py 20000 1`` tries so many selections,
drawn from a seed.
"""

import pathlib
import random
import shutil
import sys
import tempfile
import warnings

import ml_dtypes
import numpy as np
import pytest
import zarr
import zarr.codecs
from helpers import HAS_STRUCT, OUR_PIPELINES, random_array, select
from zarr.codecs import TransposeCodec

import numcodecs_bytes
import numcodecs_bytes.zarr_data_types
from numcodecs_bytes import zarr_pipeline
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.layout import layout_of
from numcodecs_bytes.zarr import BytesCodec

STRUCT = np.dtype([("a", ">i4"), ("b", "<f8"), ("c", "?")])
DTYPES = [
    *("?", "?", "i1", "<u2", ">i4", "<f8", ">c16", "<c8", ">M8[s]", "<m8[ms]", ">U3", "S5", "V6"),
    STRUCT,
    ml_dtypes.bfloat16,
    ml_dtypes.int4,
]
V2_DTYPES = ["?", "i1", "<u2", ">i4", "<f8", ">c16", ">M8[s]", "<m8[ms]", ">U3", "S5"]
LAYOUTS = ["v3", "transposed", "v2", "v2 bytes", "shards"]


def random_numbers(rng):
    """Return a gap, a block and more: no size is special."""
    return {
        "GAP_BYTES": rng.choice([0, 1, 10, 100, 1 << 12]),
        "BLOCK_BYTES": rng.choice([1, 30, 200, 1000, 1 << 20]),
        "GROUP_BYTES": rng.choice([1, 100, 1000, 1 << 23]),
        "DIRECT_BYTES": rng.choice([0, 20, 1 << 12]),
        "LOOK_FROM": rng.choice([1, 3, 5]),
        "PARALLEL_BYTES": rng.choice([10, 1 << 19]),
    }


def random_settings(rng, shape):
    """Return how an array is stored, for zarr's `create_array`."""
    layout, endian = rng.choice(LAYOUTS), rng.choice(["little", "big"])
    chunks = tuple(rng.randint(1, n + 1) for n in shape)
    settings = {"shape": shape, "chunks": chunks, "compressors": None, "fill_value": None}
    if layout.startswith("v2"):
        filters = [numcodecs_bytes.Bytes(endian)] if layout == "v2 bytes" else None
        dtype = np.dtype(rng.choice(V2_DTYPES))
        if filters:
            filters = [numcodecs_bytes.Bytes(endian, dtype=dtype)]
        order = rng.choice("CF")
        return settings | {"zarr_format": 2, "order": order, "filters": filters, "dtype": dtype}
    dtype = np.dtype(rng.choice(DTYPES))
    settings |= {"serializer": BytesCodec(endian=endian), "dtype": dtype}
    if dtype.names:
        settings["dtype"] = dtype if HAS_STRUCT else [*map(tuple, dtype.descr)]
    if layout == "transposed" or (layout == "shards" and rng.random() < 0.3):
        settings["filters"] = [
            TransposeCodec(order=tuple(rng.sample(range(len(shape)), len(shape))))
        ]
    if layout == "shards" and shape and (HAS_STRUCT or dtype.kind != "V"):
        shards = tuple(n * rng.randint(1, 4) for n in chunks)
        settings["shards"] = {"shape": shards, "index_location": rng.choice(["start", "end"])}
    return settings


def write_invalid(rng, folder, dtype):
    """Write other bytes that mean the same: any nonzero bool is true, high bits do not count."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith((".z", "zarr.")):
            continue
        raw = np.frombuffer(path.read_bytes(), np.uint8)
        noise = np.frombuffer(rng.randbytes(len(raw)), np.uint8)
        raw = raw | (raw * (noise & 0xFE)) if dtype.kind == "b" else raw | (noise & 0xF0)
        path.write_bytes(raw.tobytes())


def make_array(rng, folder):
    """Write a random array; return it, opened again, and its values."""
    shape = tuple(rng.randint(1, 14) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 4])))
    settings = random_settings(rng, shape)
    array = zarr.create_array(folder, **settings)
    dtype = np.dtype(settings["dtype"])
    values = random_array(dtype, shape)
    if dtype == ml_dtypes.int4:
        values.view(np.uint8)[...] &= 0x0F
    array[...] = values
    is_sharded = "shards" in settings
    if dtype in (bool, np.dtype(ml_dtypes.int4)) and not is_sharded:
        write_invalid(rng, folder, dtype)
    if rng.random() < 0.3 and shape:
        chunks = settings["shards"]["shape"] if is_sharded else settings["chunks"]
        first = tuple(slice(0, n) for n in chunks)
        fill = array.metadata.dtype.default_scalar()
        if is_sharded and rng.random() < 0.7:  # an inner chunk is missing, or several
            first = tuple(slice(0, n) for n in settings["chunks"])
            array[first] = np.full(values[first].shape, fill, dtype)
        else:
            name = (
                ".".join("0" * len(shape))
                if array.metadata.zarr_format == 2
                else "c/" + "/".join("0" * len(shape))
            )
            (folder / name).unlink(missing_ok=True)
        values[first] = fill
    return zarr.open_array(folder, mode="r"), values


def random_selections(rng, shape):
    """Yield ways to select, each with what NumPy selects likewise."""

    def slices(n):
        start, stop = sorted((rng.randint(0, n), rng.randint(0, n)))
        return slice(start, stop, rng.choice([None, 1, 2, 3, n]))

    def indices(n):
        """Return repeated, unsorted, ascending or descending ones, perhaps none, or bools."""
        along = np.array([rng.randrange(n) for _ in range(rng.randint(0, 2 * n))], np.intp)
        bools = np.array([rng.random() < 0.5 for _ in range(n)])
        return rng.choice([along, np.unique(along), np.unique(along)[::-1], bools])

    basic = tuple(rng.randrange(n) if rng.random() < 0.3 else slices(n) for n in shape)
    yield "basic", basic, lambda a: a[basic]
    if not shape:
        return
    mesh = [rng.choice([indices, slices, rng.randrange])(n) for n in shape]
    ints = tuple(k for k, s in enumerate(mesh) if isinstance(s, int))
    along = [np.atleast_1d(np.arange(n)[s]) for n, s in zip(shape, mesh, strict=True)]
    yield "oindex", tuple(mesh), lambda a: a[np.ix_(*along)].squeeze(axis=ints)
    num = rng.randint(0, 100)
    points = tuple(np.array([rng.randrange(n) for _ in range(num)], np.intp) for n in shape)
    yield "vindex", points, lambda a: a[points]
    mask = np.random.default_rng(rng.randrange(1 << 32)).random(shape) < rng.random()
    yield "vindex", mask, lambda a: a[mask]


def check(num, seed):
    """Compare so many selections with NumPy; return how many chunks were read."""
    rng, done, num_read = random.Random(seed), 0, 0  # noqa: S311
    read_files = zarr_pipeline.read_files
    numbers = {name: getattr(constants, name) for name in random_numbers(rng)}

    async def counted(a_batch):
        nonlocal num_read
        exist = await read_files(a_batch)
        assert None not in exist, "a chunk was left to zarr"
        num_read += len(exist)
        return exist

    zarr_pipeline.read_files = counted
    root = pathlib.Path(tempfile.mkdtemp())
    try:
        while done < num:
            for name, number in random_numbers(rng).items():
                setattr(constants, name, number)
            layout_of.cache_clear()
            with zarr.config.set({"codec_pipeline.path": rng.choice(OUR_PIPELINES)}):
                folder = root / str(done)
                array, values = make_array(rng, folder)
                got = np.asarray(array[...])
                is_same = got.tobytes() == values.astype(got.dtype).tobytes()
                assert is_same, (seed, done, array.metadata, got, values)
                for way, selection, expect in random_selections(rng, values.shape):
                    expected = np.asarray(expect(values))
                    got = np.asarray(select(array, way, selection))
                    assert got.shape == expected.shape
                    is_same = got.tobytes() == expected.astype(got.dtype).tobytes()
                    assert is_same, (seed, done, way, selection, array.metadata)
                    done += 1
                shutil.rmtree(folder)
    finally:
        zarr_pipeline.read_files = read_files
        shutil.rmtree(root)
        for name, number in numbers.items():
            setattr(constants, name, number)
        layout_of.cache_clear()
    return num_read


@pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 spec",
    "ignore:The data type",
    "ignore:invalid value encountered:RuntimeWarning",  # NaN of bfloat16, by zarr
)
@pytest.mark.parametrize("seed", range(4))
def test_random_selections_are_what_numpy_selects(seed):
    """Whatever the data type, the byte order, the layout, the gap and the block."""
    assert check(120, seed) > 100


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(check(int(sys.argv[1]), int(sys.argv[2])), "chunks were read")  # noqa: T201
