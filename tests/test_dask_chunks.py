"""`numcodecs_bytes.dask_chunks`: aligned chunks, with which Dask fetches each byte once."""

import itertools
import math

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import PIPELINES, bounded
from hypothesis import given
from hypothesis import strategies as st

import numcodecs_bytes
from numcodecs_bytes._core.lengths import parse_size
from numcodecs_bytes._dask_chunks import Stored, plan_chunks

KIB = 1024
TRANSPOSE = zarr.codecs.TransposeCodec(order=(2, 0, 1))
UNCOMPRESSED = {"compressors": None}
V2 = {**UNCOMPRESSED, "zarr_format": 2}
ZARRS = {"codec_pipeline.path": PIPELINES[0]}


def create(store, shape, chunks, **options):
    """Return an opened array of float32."""
    zarr.create_array(store, shape=shape, chunks=chunks, dtype="f4", **options)
    return zarr.open_array(store, mode="r+")


def group_of(store, zarr_format=3, **arrays):
    """Return a group of arrays, given as dimensions, shape, chunks and options."""
    group = zarr.create_group(store, zarr_format=zarr_format)
    for name, (dimensions, shape, chunks, options) in arrays.items():
        names = (
            {"dimension_names": dimensions}
            if zarr_format == 3
            else {"attributes": {"_ARRAY_DIMENSIONS": dimensions}}
        )
        settings = {"dtype": "f4", **UNCOMPRESSED, **names, **options}
        group.create_array(name, shape=shape, chunks=chunks, **settings)
    return zarr.open_group(store, mode="r+", use_consolidated=False)


class TestArray:
    @pytest.mark.parametrize(
        ("chunks", "size", "expected"),
        [
            pytest.param((40, 8, 8), 2 * KIB, (8, 8, 8), id="along the slowest axis"),
            pytest.param((40, 8, 8), "1e3", (2, 8, 8), id="one length for all"),
            pytest.param((40, 8, 8), 128, (1, 4, 8), id="along the second slowest, too"),
            pytest.param((40, 8, 8), 12, (1, 1, 3), id="within a row"),
            pytest.param((40, 8, 8), 1, (1, 1, 1), id="smaller than an element"),
            pytest.param((40, 8, 8), "1 GiB", (120, 16, 8), id="the whole array"),
            pytest.param((40, 8, 8), 20 * KIB, (40, 16, 8), id="whole chunks"),
            pytest.param((1, 8, 8), 2 * KIB, (4, 16, 8), id="small chunks are grouped"),
            pytest.param((1, 4, 4), 200, (1, 4, 8), id="along the fastest axis first"),
            pytest.param((200, 8, 8), 5 * KIB, (20, 8, 8), id="a chunk longer than the array"),
        ],
    )
    def test_uncompressed(self, chunks, size, expected):
        array = create({}, (120, 16, 8), chunks, **UNCOMPRESSED)
        assert numcodecs_bytes.dask_chunks(array, size) == expected

    def test_lengths_without_a_divisor(self):
        """A chunk of 37 has none: with one length for all, Dask's chunks would cross borders."""
        array = create({}, (80, 8), (37, 8), **UNCOMPRESSED)
        lengths, width = numcodecs_bytes.dask_chunks(array, 10 * 32)
        assert (lengths, width) == ((9, 9, 9, 10, 9, 9, 9, 10, 6), 8)

    def test_other_orders(self):
        """The last axis of a column-major chunk is the slowest."""
        fortran = create({}, (16, 16, 16), (16, 16, 16), order="F", **V2)
        transposed = create({}, (16, 16, 16), (16, 16, 16), filters=[TRANSPOSE], **UNCOMPRESSED)
        for array in (fortran, transposed):
            assert numcodecs_bytes.dask_chunks(array, 4 * KIB) == (16, 16, 4)

    @pytest.mark.parametrize(
        ("options", "pipeline", "size", "expected"),
        [
            pytest.param({}, {}, 200, (8, 8), id="compressed, not split"),
            pytest.param({}, {}, 5 * KIB, (24, 32), id="compressed, a shard"),
            pytest.param({}, {}, 2 * KIB, (8, 32), id="compressed, in a shard"),
            pytest.param({}, {}, 7 * KIB, (24, 64), id="compressed, several shards"),
            pytest.param(UNCOMPRESSED, ZARRS, 64, (8, 8), id="zarr reads whole inner chunks"),
            pytest.param(UNCOMPRESSED, {}, 64, (2, 8), id="our pipeline reads parts"),
        ],
    )
    def test_shards(self, options, pipeline, size, expected):
        """Of 3 x 4 inner chunks of 256 bytes, which are grouped within shards first."""
        with zarr.config.set(pipeline):
            array = create({}, (48, 64), (8, 8), shards=(24, 32), **options)
            array = zarr.open_array(array.store)
            assert numcodecs_bytes.dask_chunks(array, size) == expected

    def test_what_cannot_be_read_in_part(self, tmp_path):
        """Compressed, in a store that is read whole, or with zarr's pipeline: never split."""
        compressed = create({}, (64, 8), (32, 8))
        with zarr.config.set(ZARRS):
            alone = create({}, (64, 8), (32, 8), **UNCOMPRESSED)
        path = tmp_path / "a"
        create(path, (64, 8), (32, 8), **UNCOMPRESSED)
        logged = zarr.open_array(zarr.storage.LoggingStore(zarr.storage.LocalStore(path)))
        for array in (compressed, alone, logged):
            assert numcodecs_bytes.dask_chunks(array, 64) == (32, 8)

    def test_chunks_of_unknown_size(self):
        """Text of variable length, which 16 bytes an element say nothing about, is not grouped."""
        array = zarr.create_array({}, shape=(64,), chunks=(4,), dtype=str)
        assert numcodecs_bytes.dask_chunks(array, "1 MiB") == (4,)

    def test_chunks_of_several_lengths(self):
        if not hasattr(zarr.Array, "read_chunk_sizes"):
            pytest.skip("this zarr has no such chunks")
        with zarr.config.set({"array.rectilinear_chunks": True}):
            array = create({}, (10, 4), [[4, 6], [4]], **UNCOMPRESSED)
            assert numcodecs_bytes.dask_chunks(array, 16) == ((4, 6), (4,))

    @pytest.mark.parametrize(("shape", "expected"), [((), ()), ((0, 9), (1, 9))], ids=str)
    def test_without_axes_or_elements(self, shape, expected):
        array = create({}, shape, (4, 9)[: len(shape)])
        assert numcodecs_bytes.dask_chunks(array, "1 MiB") == expected


class TestSize:
    @pytest.mark.parametrize(
        "size", [512, 512.0, np.int64(512), "512", "512B", ".512 kB", "0.5KiB", "5.12e2", "512 b"]
    )
    def test_spellings(self, size):
        array = create({}, (64, 8), (64, 8), **UNCOMPRESSED)
        assert numcodecs_bytes.dask_chunks(array, size) == (16, 8)

    def test_is_that_of_dask(self):
        utils = pytest.importorskip("dask.utils")
        for unit in utils.byte_sizes:
            size = f"2 {unit}"
            assert parse_size(size) == utils.parse_bytes(size)

    @pytest.mark.parametrize(
        "size", ["64 MiBs", "auto", "-1", "1e999", "", 0, None, True, math.nan]
    )
    def test_that_is_none(self, size):
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
    axes = random.sample(range(len(shape)), len(shape))
    unit, levels = ((1,) * len(shape), (chunks, shape)) if in_part else (chunks, (shape,))
    found = plan_chunks(Stored(shape, 1, unit, levels, tuple(axes)), size, {})

    index = np.indices(shape)
    grid = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    of_chunk = np.ravel_multi_index([i // c for i, c in zip(index, chunks, strict=True)], grid)
    order = axes[::-1]
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


DIMENSIONS = ("time", "lat", "lon")
# Of 1 MiB each, because shorter chunks in local files are read whole.
SHAPE, CHUNKS = (90, 64, 128), (37, 64, 128)
FETCHED_ONCE = [
    pytest.param(SHAPE, CHUNKS, UNCOMPRESSED, "256 KiB", id="no divisor"),
    pytest.param(SHAPE, (30, 64, 128), UNCOMPRESSED, "100 KiB", id="a divisor"),
    pytest.param(SHAPE, CHUNKS, UNCOMPRESSED, "20 KiB", id="parts of a step"),
    pytest.param(SHAPE, CHUNKS, UNCOMPRESSED, "2 MiB", id="whole chunks"),
    pytest.param(SHAPE[::-1], (128, 32, 37), {**V2, "order": "F"}, "256 KiB", id="column-major"),
    pytest.param(SHAPE[::-1], (128, 32, 37), {**V2, "order": "F"}, "9 KiB", id="one column"),
    pytest.param(
        SHAPE, (90, 32, 64), {**UNCOMPRESSED, "filters": [TRANSPOSE]}, "100 KiB", id="transposed"
    ),
    pytest.param(
        SHAPE, (45, 64, 64), {**UNCOMPRESSED, "shards": (90, 64, 128)}, "300 KiB", id="shards"
    ),
]


@pytest.mark.parametrize(("shape", "chunks", "options", "size"), FETCHED_ONCE)
def test_each_byte_is_fetched_once(tmp_path, shape, chunks, options, size):
    """By Dask, from local files; of shards, their indices besides."""
    dask_array = pytest.importorskip("dask.array")
    array = create(tmp_path, shape, chunks, **options)
    values = np.arange(array.size, dtype="f4").reshape(shape)
    array[...] = values
    lazy = dask_array.from_zarr(array, chunks=numcodecs_bytes.dask_chunks(array, size))
    with numcodecs_bytes.trace() as traced:
        found = lazy.compute(scheduler="sync")
    assert (found == values).all()
    total = traced.report()["total"]
    indices = (2 * 2 * 16 + 4) * total["chunks"] if "shards" in options else 0
    assert total["bytes_selected"] == array.nbytes
    assert total["bytes_fetched"] == array.nbytes + indices
    assert lazy.npartitions > 1


class TestGroup:
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_the_largest_array_decides(self, zarr_format):
        """Others decide for their own dimensions; indexes and what xarray can't read, for none."""
        group = group_of(
            {},
            zarr_format,
            small=(["time", "bounds"], (64, 2), (64, 2), {}),
            t2m=(["time", "lat", "lon"], (64, 16, 16), (64, 16, 16), {}),
            time=(["time"], (64,), (7,), {}),
            station=(["station"], (1000,), (100,), {}),
            scalar=([], (), (), {}),
        )
        group.create_array("nameless", shape=(999, 999), dtype="f8")
        found = numcodecs_bytes.dask_chunks(group, "4 KiB")
        assert found == {"time": 4, "lat": 16, "lon": 16, "bounds": 2}

    def test_what_is_given_counts(self):
        """Chunks of an array whose dimension was decided by another are not larger than asked."""
        group = group_of(
            {},
            first=(["time", "x"], (1024, 64), (1024, 64), {}),
            second=(["x", "y"], (64, 128), (64, 128), {}),
        )
        found = numcodecs_bytes.dask_chunks(group, "4 KiB")
        assert found == {"time": 16, "x": 64, "y": 16}

    def test_xarray(self, tmp_path):
        """It takes the mapping, warns of what has no cost, and fetches each byte once."""
        xr, _ = pytest.importorskip("xarray"), pytest.importorskip("dask")
        group = group_of(tmp_path, t2m=(DIMENSIONS, SHAPE, CHUNKS, {}))
        group["t2m"][...] = 1
        chunks = numcodecs_bytes.dask_chunks(group, "256 KiB")
        with pytest.warns(UserWarning, match="separate the stored chunks along"):
            dataset = xr.open_zarr(tmp_path, chunks=chunks, consolidated=False)
        unwarned = xr.open_zarr(tmp_path, chunks=None, consolidated=False).chunk(chunks)
        for lazy in (dataset, unwarned):
            assert len(lazy.chunks["time"]) == 13
            with numcodecs_bytes.trace() as traced:
                assert lazy["t2m"].mean().compute(scheduler="sync") == 1
            assert traced.report()["total"]["bytes_fetched"] == group["t2m"].nbytes

    def test_without_names(self):
        group = zarr.create_group({})
        group.create_array("a", shape=(4,), dtype="f4")
        with pytest.raises(ValueError, match="has no arrays whose dimensions have names"):
            numcodecs_bytes.dask_chunks(group, "1 MiB")


@pytest.mark.parametrize("source", ["scan.zarr", np.zeros(4), None], ids=["path", "NumPy", "None"])
def test_what_it_takes(source):
    with pytest.raises(TypeError, match=f"got {type(source).__name__}: open the store with zarr"):
        numcodecs_bytes.dask_chunks(source, "64 MiB")
