"""`numcodecs_bytes.dask_chunks`: aligned chunks, with which Dask fetches each byte once."""

import itertools
import math

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import ZARR_ALONE, bounded
from hypothesis import given
from hypothesis import strategies as st

import numcodecs_bytes

KIB = 1024
TRANSPOSE = zarr.codecs.TransposeCodec(order=(2, 0, 1))
UNCOMPRESSED = {"compressors": None}
V2 = {**UNCOMPRESSED, "zarr_format": 2}
SHARDS = {"chunks": (8, 8), "shards": (24, 32)}  # 3 x 4 inner chunks of 256 bytes each


def create(store, shape, chunks, **options):
    """Return an opened array of float32."""
    zarr.create_array(store, shape=shape, chunks=chunks, **{"dtype": "f4"} | options)
    return zarr.open_array(store, mode="r+")


@pytest.mark.parametrize(
    ("chunks", "size", "expected"),
    [
        pytest.param((40, 8, 8), 2 * KIB, (8, 8, 8), id="along the slowest axis"),
        pytest.param((40, 8, 8), "1e3", (2, 8, 8), id="one length for all"),
        pytest.param((40, 8, 8), 12, (1, 1, 3), id="within a row"),
        pytest.param((40, 8, 8), 20 * KIB, (40, 16, 8), id="whole chunks"),
        pytest.param((1, 4, 4), 200, (1, 4, 8), id="small chunks are grouped, first in rows"),
        pytest.param((200, 8, 8), 5 * KIB, (20, 8, 8), id="a chunk longer than the array"),
        # A chunk of 37 has no divisor: with one length for all, Dask's would cross borders.
        pytest.param((37, 8, 8), 10 * 256, ((9, 9, 9, 10) * 3 + (9,), 8, 8), id="many lengths"),
    ],
)
def test_uncompressed(chunks, size, expected):
    array = create({}, (120, 16, 8), chunks, **UNCOMPRESSED)
    assert numcodecs_bytes.dask_chunks(array, size) == expected


@pytest.mark.parametrize(
    ("options", "config", "size", "expected"),
    [
        pytest.param({"compressors": "auto"}, {}, 200, (8, 8), id="compressed, not split"),
        pytest.param({"compressors": "auto"}, {}, 2 * KIB, (8, 32), id="compressed, in a shard"),
        pytest.param({"compressors": "auto"}, {}, 5 * KIB, (24, 32), id="compressed, a shard"),
        pytest.param({"compressors": "auto"}, {}, 7 * KIB, (24, 64), id="compressed, two shards"),
        pytest.param({}, ZARR_ALONE, 64, (8, 8), id="zarr reads whole inner chunks"),
        pytest.param({}, {}, 64, (2, 8), id="our pipeline reads parts"),
        pytest.param({"dtype": str}, {}, "1 MiB", (8, 8), id="elements of unknown size"),
    ],
)
def test_shards(options, config, size, expected):
    """Inner chunks, or parts of them, are grouped within shards first."""
    with zarr.config.set(config):
        array = create({}, (48, 64), **{**SHARDS, **UNCOMPRESSED, **options})
        assert numcodecs_bytes.dask_chunks(array, size) == expected


def test_a_store_that_is_read_whole(tmp_path):
    create(tmp_path, (64, 8), (32, 8), **UNCOMPRESSED)
    array = zarr.open_array(zarr.storage.LoggingStore(zarr.storage.LocalStore(tmp_path)))
    assert numcodecs_bytes.dask_chunks(array, 64) == (32, 8)


def test_chunks_of_several_lengths():
    if not hasattr(zarr.Array, "read_chunk_sizes"):
        pytest.skip("this zarr has no such chunks")
    with zarr.config.set({"array.rectilinear_chunks": True}):
        array = create({}, (10, 4), [[4, 6], [4]], **UNCOMPRESSED)
        assert numcodecs_bytes.dask_chunks(array, 16) == ((4, 6), (4,))


@pytest.mark.parametrize(("shape", "expected"), [((), ()), ((0, 9), (1, 9))], ids=str)
def test_without_axes_or_elements(shape, expected):
    array = create({}, shape, (4, 9)[: len(shape)])
    assert numcodecs_bytes.dask_chunks(array, "1 MiB") == expected


@pytest.mark.parametrize(
    "size", [512, 512.0, np.int64(512), "512", "512B", ".512 kB", "0.5KiB", "5.12e2", "512 b"]
)
def test_spellings_of_a_size(size):
    array = create({}, (64, 8), (64, 8), **UNCOMPRESSED)
    assert numcodecs_bytes.dask_chunks(array, size) == (16, 8)


def test_units_are_those_of_dask():
    utils = pytest.importorskip("dask.utils")
    array = create({}, (2**60,), (2**60,), dtype="u1", **UNCOMPRESSED)
    for unit in utils.byte_sizes:
        size = utils.parse_bytes(f"2 {unit}")
        expected = numcodecs_bytes.dask_chunks(array, size)
        assert numcodecs_bytes.dask_chunks(array, f"2 {unit}") == expected
        assert size * 0.9 < expected[0] <= size


@pytest.mark.parametrize("size", ["64 MiBs", "auto", "-1", "1e999", "", 0, None, True, math.nan])
def test_what_is_no_size(size):
    array = create({}, (64, 8), (64, 8))
    with pytest.raises(ValueError, match=r"such as '64 MiB', got") as error:
        numcodecs_bytes.dask_chunks(array, size)
    assert repr(size) in str(error.value)


def pieces(lengths, length):
    """Return the slices of Dask's chunks along an axis."""
    if isinstance(lengths, int):
        return [slice(k, min(k + lengths, length)) for k in range(0, length, lengths)]
    assert sum(lengths) == length
    return [slice(end - n, end) for n, end in zip(lengths, np.cumsum(lengths), strict=True)]


LENGTHS = st.tuples(st.integers(1, 12), st.integers(1, 7))
AXES = st.lists(LENGTHS, min_size=1, max_size=3)


@bounded(2000)
@given(AXES, st.randoms(), st.integers(1, 300), st.booleans())
def test_every_chunk_is_whole_chunks_or_one_range(lengths, random, size, in_part):
    """And near the size, whatever the shapes: numbered elements tell which are read together."""
    shape, chunks = zip(*lengths, strict=True)
    order = random.sample(range(len(shape)), len(shape))
    options = {"dtype": "u1", "filters": zarr.codecs.TransposeCodec(order=order)}
    array = create({}, shape, chunks, compressors=None if in_part else "auto", **options)
    found = numcodecs_bytes.dask_chunks(array, size)

    index = np.indices(shape)
    grid = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    of_chunk = np.ravel_multi_index([i // c for i, c in zip(index, chunks, strict=True)], grid)
    offset = np.ravel_multi_index(
        [index[axis] % chunks[axis] for axis in order], [chunks[axis] for axis in order]
    )
    num_held = np.bincount(of_chunk.ravel())
    seen, largest, ranges = 0, 0, []
    for key in itertools.product(*map(pieces, found, shape)):
        numbers, offsets = of_chunk[key].ravel(), offset[key].ravel()
        seen, largest = seen + numbers.size, max(largest, numbers.size)
        if (np.bincount(numbers, minlength=num_held.size) % num_held).any():
            assert in_part
            assert len(set(numbers)) == 1
            ranges.append((numbers[0], offsets.min(), offsets.max()))
    assert seen == math.prod(shape)
    ranges.sort()
    for (one, _, last), (other, first, _) in itertools.pairwise(ranges):
        assert one != other or last < first
    smallest = 1 if in_part else math.prod(map(min, chunks, shape))
    assert largest <= max(size, smallest)
    assert largest >= min(size, math.prod(shape)) / 4


# Of 1 MiB each, because shorter chunks in local files are read whole.
SHAPE, CHUNKS = (90, 64, 128), (37, 64, 128)
COLUMNS = {"chunks": (128, 32, 37), "zarr_format": 2, "order": "F"}


@pytest.mark.parametrize(
    ("shape", "size", "options"),
    [
        pytest.param(SHAPE, "256 KiB", {}, id="no divisor"),
        pytest.param(SHAPE, "20 KiB", {}, id="parts of a step"),
        pytest.param(SHAPE[::-1], "9 KiB", COLUMNS, id="one column"),
        pytest.param(
            SHAPE, "100 KiB", {"chunks": (90, 32, 64), "filters": TRANSPOSE}, id="transposed"
        ),
        pytest.param(
            SHAPE, "300 KiB", {"chunks": (45, 64, 64), "shards": (90, 64, 128)}, id="shards"
        ),
    ],
)
def test_each_byte_is_fetched_once(tmp_path, shape, size, options):
    """From local files; of shards, their indices besides."""
    array = create(tmp_path, shape, **{"chunks": CHUNKS, **UNCOMPRESSED, **options})
    array[...] = values = np.arange(array.size, dtype="f4").reshape(shape)
    lengths = numcodecs_bytes.dask_chunks(array, size)
    parts = list(itertools.product(*map(pieces, lengths, shape)))
    with numcodecs_bytes.trace() as traced:
        assert all((array[part] == values[part]).all() for part in parts)
    total = traced.report()["total"]
    indices = (2 * 2 * 16 + 4) * total["chunks"] if "shards" in options else 0
    assert total["bytes_selected"] == array.nbytes
    assert total["bytes_fetched"] == array.nbytes + indices
    assert len(parts) > 1


def group_of(store, zarr_format=3, **arrays):
    """Return a group of arrays of one chunk each, given as dimensions and shape."""
    group = zarr.create_group(store, zarr_format=zarr_format)
    for name, (dimensions, shape) in arrays.items():
        names = {"dimension_names": dimensions}
        if zarr_format == 2:
            names = {"attributes": {"_ARRAY_DIMENSIONS": dimensions}}
        settings = {"shape": shape, "chunks": shape, "dtype": "f4"}
        group.create_array(name, **settings, **UNCOMPRESSED, **names)
    return zarr.open_group(store, mode="r+", use_consolidated=False)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_largest_array_of_a_group_decides(zarr_format):
    """Others decide for their own dimensions; indexes and what xarray can't read, for none."""
    group = group_of(
        {},
        zarr_format,
        small=(["time", "bounds"], (64, 2)),
        t2m=(["time", "lat", "lon"], (64, 16, 16)),
        # Of a dimension that is decided, its chunks are not larger than asked.
        other=(["lon", "z"], (16, 128)),
        time=(["time"], (64,)),
        station=(["station"], (1000,)),
        scalar=([], ()),
    )
    group.create_array("nameless", shape=(999, 999), dtype="f8")
    found = numcodecs_bytes.dask_chunks(group, "4 KiB")
    assert found == {"time": 4, "lat": 16, "lon": 16, "bounds": 2, "z": 64}


def test_chunks_of_a_group_in_xarray(tmp_path):
    """It takes the mapping, warns of what has no cost, and fetches each byte once."""
    xr, _ = pytest.importorskip("xarray"), pytest.importorskip("dask")
    group = group_of(tmp_path, t2m=(["time", "lat", "lon"], (37, 64, 128)))
    group["t2m"][...] = 1
    chunks = numcodecs_bytes.dask_chunks(group, "256 KiB")
    with pytest.warns(UserWarning, match="separate the stored chunks along"):
        dataset = xr.open_zarr(tmp_path, chunks=chunks, consolidated=False)
    unwarned = xr.open_zarr(tmp_path, chunks=None, consolidated=False).chunk(chunks)
    for lazy in (dataset, unwarned):
        assert len(lazy.chunks["time"]) == 5
        with numcodecs_bytes.trace() as traced:
            assert lazy["t2m"].mean().compute(scheduler="sync") == 1
        assert traced.report()["total"]["bytes_fetched"] == group["t2m"].nbytes


def test_a_group_without_names():
    group = zarr.create_group({})
    group.create_array("a", shape=(4,), dtype="f4")
    with pytest.raises(ValueError, match="has no arrays with named dimensions"):
        numcodecs_bytes.dask_chunks(group, "1 MiB")


@pytest.mark.parametrize("source", ["scan.zarr", np.zeros(4), None], ids=["path", "NumPy", "None"])
def test_what_it_takes(source):
    with pytest.raises(TypeError, match=f"got {type(source).__name__}: open the store with zarr"):
        numcodecs_bytes.dask_chunks(source, "64 MiB")
