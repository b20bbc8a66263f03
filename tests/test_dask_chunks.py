"""`numcodecs_bytes.dask_chunks`: aligned chunks, with which Dask fetches each byte once."""

import itertools
import math

import numpy as np
import pytest
import zarr
from helpers import ZARR_ALONE, CountingStore, bounded
from hypothesis import given
from hypothesis import strategies as st

import numcodecs_bytes

KIB = 1024
TRANSPOSE = zarr.codecs.TransposeCodec(order=(2, 0, 1))
UNCOMPRESSED = {"compressors": None}
SHARDS = {"chunks": (8, 8), "shards": (24, 32)}  # 3 x 4 inner chunks of 256 bytes each


def create(store, shape, chunks, **options):
    """Return an opened array of float32."""
    zarr.create_array(store, shape=shape, chunks=chunks, **{"dtype": "f4"} | options)
    return zarr.open_array(store, mode="r+")


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        pytest.param({"compressors": "auto"}, 200, (8, 8), id="compressed, not split"),
        pytest.param({"compressors": "auto"}, 2 * KIB, (8, 32), id="compressed, in a shard"),
        pytest.param({"compressors": "auto"}, 7 * KIB, (24, 64), id="compressed, two shards"),
        pytest.param({}, 64, (2, 8), id="parts of inner chunks"),
        pytest.param({"dtype": str}, "1 MiB", (8, 8), id="elements of unknown size"),
    ],
)
def test_shards(options, size, expected):
    """Inner chunks, or parts of them, are grouped within shards first."""
    array = create({}, (48, 64), **{**SHARDS, **UNCOMPRESSED, **options})
    assert numcodecs_bytes.dask_chunks(array, size) == expected


def test_what_reads_chunks_whole(tmp_path):
    """zarr alone, and a store without byte ranges."""
    array = create(tmp_path, (64, 8), (32, 8), **UNCOMPRESSED)
    with zarr.config.set(ZARR_ALONE):
        assert numcodecs_bytes.dask_chunks(zarr.open_array(tmp_path), 64) == (32, 8)
    array = zarr.open_array(CountingStore(tmp_path))
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


def test_spellings_of_a_size():
    array = create({}, (2**60,), (2**60,), dtype="u1", **UNCOMPRESSED)
    bases = (("", 1000), ("B", 1000), ("iB", 1024))
    sizes = [
        (f"2 {letter}{end}", 2 * base**power)
        for power, letter in enumerate("kMGTP", 1)
        for end, base in bases
    ]
    sizes += [(size, 512) for size in (512.0, np.int64(512), "512B", ".512 kb", "0.5KiB")]
    for spelled, size in sizes:
        expected = numcodecs_bytes.dask_chunks(array, size)
        assert numcodecs_bytes.dask_chunks(array, spelled) == expected


@pytest.mark.parametrize(
    "size", ["64 MiBs", "auto", "-1", "1e999", "", 0, None, True, math.nan], ids=repr
)
def test_what_is_no_size(size):
    array = create({}, (64, 8), (64, 8))
    with pytest.raises(ValueError, match=r"such as '64 MiB', got") as error:
        numcodecs_bytes.dask_chunks(array, size)
    assert repr(size) in str(error.value)


def test_a_number_in_a_string_is_no_size():
    """Somebody who writes "64" may mean 64 MiB, and got chunks of 64 bytes."""
    array = create({}, (64, 8), (64, 8))
    for size in ("64", " 5.12e2 "):
        with pytest.raises(ValueError, match="or a string with a unit, such as '64 MiB', got"):
            numcodecs_bytes.dask_chunks(array, size)


def pieces(lengths, length):
    """Return the slices of Dask's chunks along an axis."""
    return [slice(k, min(k + lengths, length)) for k in range(0, length, lengths)]


LENGTHS = st.tuples(st.integers(1, 12), st.integers(1, 7))
AXES = st.lists(LENGTHS, min_size=1, max_size=3)


@bounded(2000)
@given(AXES, st.randoms(), st.integers(1, 300), st.booleans())
def test_every_chunk_is_whole_chunks_or_one_range_of_each(lengths, random, size, in_part):
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
        for number in np.flatnonzero(np.bincount(numbers, minlength=num_held.size) % num_held):
            assert in_part
            of_range = offsets[numbers == number]
            ranges.append((number, of_range.min(), of_range.max()))
    assert seen == math.prod(shape)
    ranges.sort()
    for (one, _, last), (other, first, _) in itertools.pairwise(ranges):
        assert one != other or last < first
    smallest = 1 if in_part else math.prod(map(min, chunks, shape))
    assert largest <= max(size, smallest)
    assert largest >= min(size, math.prod(shape)) / 4


# Of 1 MiB each, because shorter chunks in local files are read whole.
SHAPE, CHUNKS = (90, 64, 128), (37, 64, 128)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param("256 KiB", {}, id="no divisor"),
        pytest.param("20 KiB", {"zarr_format": 2}, id="parts of a step"),
        pytest.param("100 KiB", {"chunks": (90, 32, 64), "filters": TRANSPOSE}, id="transposed"),
        pytest.param("300 KiB", {"chunks": (45, 64, 64), "shards": SHAPE}, id="shards"),
    ],
)
def test_each_byte_is_fetched_once(tmp_path, size, options):
    """From local files; of shards, their indices besides."""
    array = create(tmp_path, SHAPE, **{"chunks": CHUNKS, **UNCOMPRESSED, **options})
    array[...] = values = np.arange(array.size, dtype="f4").reshape(SHAPE)
    parts = list(itertools.product(*map(pieces, numcodecs_bytes.dask_chunks(array, size), SHAPE)))
    with numcodecs_bytes.trace() as traced:
        assert all((array[part] == values[part]).all() for part in parts)
    total = traced.report()["total"]
    indices = (2 * 2 * 16 + 4) * total["chunks"] if "shards" in options else 0
    assert total["bytes_selected"] == array.nbytes
    assert total["bytes_fetched"] == array.nbytes + indices
    assert len(parts) > 1


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_largest_array_of_a_group_decides(zarr_format):
    """Others decide for their own dimensions; indexes and what xarray can't read, for none."""
    group = zarr.create_group({}, zarr_format=zarr_format)
    for name, dimensions, shape in (
        ("small", ["time", "bounds"], (64, 2)),
        ("t2m", ["time", "lat", "lon"], (64, 16, 16)),
        # Of a dimension that is decided, its chunks are not larger than asked.
        ("other", ["lon", "z"], (16, 128)),
        ("time", ["time"], (64,)),
        ("station", ["station"], (1000,)),
        ("scalar", [], ()),
    ):
        names = {"dimension_names": dimensions}
        if zarr_format == 2:
            names = {"attributes": {"_ARRAY_DIMENSIONS": dimensions}}
        settings = {"shape": shape, "chunks": shape, "dtype": "f4", "compressors": None}
        group.create_array(name, **settings, **names)
    group.create_array("nameless", shape=(999, 999), dtype="f8")
    group = zarr.open_group(group.store, use_consolidated=False)
    found = numcodecs_bytes.dask_chunks(group, "4 KiB")
    assert found == {"time": 4, "lat": 16, "lon": 16, "bounds": 2, "z": 64}


@pytest.mark.parametrize("source", ["scan.zarr", np.zeros(4), None], ids=["path", "NumPy", "None"])
def test_what_it_takes(source):
    with pytest.raises(TypeError, match=r"got .*; open the store with zarr\.open$"):
        numcodecs_bytes.dask_chunks(source, "64 MiB")
    group = zarr.create_group({})
    group.create_array("a", shape=(4,), dtype="f4")
    with pytest.raises(ValueError, match="has no arrays with named dimensions"):
        numcodecs_bytes.dask_chunks(group, "1 MiB")
