"""The pipelines that read parts of chunks, here Zarr v2 and transposed, against NumPy and zarr."""

import itertools
import pickle
import random

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from data_types import ENDIANS
from helpers import (
    CHUNKS,
    SHAPE,
    ZARRS_PIPELINE,
    CountingStore,
    random_array,
    random_selections,
    ranges_from,
    select,
    write_v2,
)
from zarr.codecs import TransposeCodec

import numcodecs_bytes
from numcodecs_bytes import zarr_pipeline
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*does not have a Zarr V3 specification", "ignore:.*structured dtype"
    ),
    pytest.mark.usefixtures("our_pipeline"),
]
STRUCT = [("a", ">i4"), ("b", "<f8"), ("c", "?")]


def assert_reads_as(path, data, seed=0, num=3, *, in_part=True):
    """Compare all ways to select, `num` times, of what is opened anew, with NumPy's."""
    rng = random.Random(str(seed))  # noqa: S311 # no secret
    for store in (path, CountingStore(path)):
        array = opened(store)
        with ranges_from(CountingStore), numcodecs_bytes.trace() as traced:
            for way, selection, of_numpy in random_selections(rng, data.shape, num):
                got = select(array, way, selection)
                np.testing.assert_array_equal(got, of_numpy(data), strict=False)
            np.testing.assert_array_equal(array[...], data)
        assert bool(traced.report()["arrays"]) == in_part


def opened(store):
    return zarr.open_array(store, mode="r")


class TestV2:
    @pytest.mark.parametrize("where", ["filters", "compressors"])
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", [">c16", "<M8[s]", ">U3", STRUCT], ids=str)
    def test_arrays_that_zarr_wrote_are_read(self, tmp_path, dtype, order, where):
        """Without a filter, and of every data type: engine/test_layouts.py."""
        data = random_array(dtype)
        codec = numcodecs_bytes.Bytes("big", data.dtype)
        settings = {"shape": SHAPE, "chunks": CHUNKS, "dtype": data.dtype, "order": order}
        settings |= {"filters": None, "compressors": None, "zarr_format": 2}
        settings[where] = [codec] if where == "filters" else codec
        with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
            zarr.create_array(tmp_path, **settings)[...] = data
        assert_reads_as(tmp_path, data, (dtype, order, where), num=1)

    @pytest.mark.parametrize("selection", [slice(None), slice(0, 2)], ids=str)
    def test_invalid_bools_read_as_true(self, tmp_path, selection):
        """In whole and in part."""
        write_v2(tmp_path, bytes([0, 2, 255, 1]), "|b1")
        got = opened(tmp_path)[selection]
        assert got.view("u1").tolist() == [0, 1, 1, 1][selection]

    def test_a_chunk_of_another_length(self, tmp_path):
        write_v2(tmp_path, bytes(30), "<i2", [4, 6])
        message = r"chunk '0.0' of LocalStore.* holds 30 bytes, expected 48 for shape \(4, 6\)"
        for selection in (slice(None), 0):
            with pytest.raises(ValueError, match=message):
                opened(tmp_path)[selection]


class TestTransposed:
    @pytest.mark.parametrize("kind", [BytesCodec, zarr.codecs.BytesCodec])
    @pytest.mark.parametrize(
        "orders", [[], [(1, 2, 0)], [(1, 2, 0), (0, 2, 1)], [(2, 0, 1)] * 3], ids=str
    )
    def test_arrays_that_zarr_wrote_are_read(self, tmp_path, orders, kind):
        for dtype, endian in itertools.product(("?", ">i4", "<f8", "<m8[ms]", ">U3"), ENDIANS):
            data, path = random_array(dtype), tmp_path / dtype / endian
            settings = {"shape": SHAPE, "chunks": CHUNKS, "dtype": dtype, "compressors": None}
            settings["filters"] = [TransposeCodec(order=order) for order in orders]
            with zarr.config.set({"codecs.bytes": f"{kind.__module__}.{kind.__qualname__}"}):
                with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
                    zarr.create_array(path, serializer=kind(endian=endian), **settings)[...] = data
                assert_reads_as(path, data, (orders, dtype, kind.__module__, endian), num=1)

    def test_structures_and_shards(self, tmp_path):
        transpose = {"filters": [TransposeCodec(order=(2, 0, 1))], "compressors": None}
        for dtype, chunks in {
            "i4,f8": {"chunks": CHUNKS},
            "<i4": {"chunks": (2, 7, 3), "shards": (4, 7, 6)},
        }.items():
            data = random_array(dtype)
            settings = {"shape": SHAPE, "dtype": data.dtype} | transpose | chunks
            zarr.create_array(tmp_path / dtype, **settings)[...] = data
            assert_reads_as(tmp_path / dtype, data)

    def test_a_data_type_of_somebodys_own(self):
        """zarr's own codec stores it, ours does not know it."""

        class LongDouble(zarr.dtype.Float64):
            def to_native_dtype(self):
                return np.dtype("longdouble")

        settings = {"compressors": None, "filters": [TransposeCodec(order=(1, 0))]}
        zarrs = zarr.codecs.BytesCodec()
        array = zarr.create_array(
            {}, shape=(2, 3), dtype=LongDouble(), serializer=zarrs, **settings
        )
        array[...] = np.arange(6, dtype="longdouble").reshape(2, 3)
        with numcodecs_bytes.trace() as traced:
            assert array[1].tolist() == [3, 4, 5]
        assert "zarr's own codec stores" in str(traced)


def create_transposed(store, shape, chunks, **settings):
    settings = {"filters": [TransposeCodec(order=(1, 0))], "compressors": None} | settings
    return zarr.create_array(store, shape=shape, chunks=chunks, dtype="<f8", **settings)


def create_v2(store, shape, chunks, order="F", **settings):
    settings = {"compressors": None, "filters": None} | settings
    return zarr.create_array(
        store, shape=shape, chunks=chunks, dtype="<f8", order=order, zarr_format=2, **settings
    )


def create_shards(store, shape, chunks):
    inner = tuple(n // 2 for n in chunks)
    return zarr.create_array(
        store, shape=shape, chunks=inner, shards=chunks, dtype="<f8", compressors=None
    )


CREATE = {"Zarr v2, F": create_v2, "transposed": create_transposed}
BY_KIND = pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)


@BY_KIND
def test_only_what_is_selected_is_requested(tmp_path, counting, create):
    """Of column-major chunks, a column is what a row is of others."""
    data = np.random.default_rng(0).random((200, 300))
    create(tmp_path, data.shape, (100, 150))[...] = data
    array = zarr.open_array(counting)
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        for selection, num_bytes, num_requests in (
            ((5, 7), 8, 1),
            ((slice(None), 7), 200 * 8, 2),
            ((slice(None, 100), slice(3, 9)), 100 * 6 * 8, 1),
            ((5, slice(None)), 300 * 8, 300),
            ((slice(10, 20), slice(30, 50)), 10 * 20 * 8, 20),
        ):
            counting.requests.clear()
            np.testing.assert_array_equal(array[selection], data[selection])
            asked = (counting.num_bytes, len(counting.requests))
            assert asked == (num_bytes, num_requests)


def outcome(array):
    try:
        return array[:2].tolist()
    except ValueError as error:
        return str(error)


class TestPassedOnToZarr:
    @pytest.mark.parametrize(
        "settings",
        [
            {"compressors": numcodecs.Zstd()},
            {"filters": [numcodecs.Delta("<f8")]},
            {"filters": [numcodecs_bytes.Bytes("big", "<f8")], "compressors": numcodecs.Zlib()},
            {"filters": [numcodecs_bytes.Bytes("big", "<f8"), numcodecs.Delta("<f8", "<f8")]},
        ],
        ids=str,
    )
    def test_compressed_and_filtered_arrays(self, tmp_path, settings):
        data = np.random.default_rng(0).integers(0, 9, (6, 7)).astype("f8")
        create_v2(tmp_path, (6, 7), (4, 4), "C", **settings)[...] = data
        assert_reads_as(tmp_path, data, in_part=False)

    @pytest.mark.parametrize("chunks", [{"chunks": (4, 4)}, {"chunks": (2, 2), "shards": (4, 4)}])
    def test_compressed_arrays_of_v3(self, tmp_path, chunks):
        data = np.random.default_rng(0).random((6, 7))
        filters = [] if "shards" in chunks else [TransposeCodec(order=(1, 0))]
        zarr.create_array(tmp_path, shape=(6, 7), dtype="f8", filters=filters, **chunks)[...] = data
        assert_reads_as(tmp_path, data, in_part=False)

    @pytest.mark.parametrize(
        ("dtype", "codec"),
        [
            ("<f8", numcodecs_bytes.Bytes("big", "<i8")),
            ("<f8", numcodecs_bytes.Bytes("big", ">f8")),
            ("<f8", numcodecs_bytes.Bytes("big")),
            (">f8", numcodecs_bytes.Bytes("little")),
            ("<f8", numcodecs_bytes.Bytes(None)),
            ("|V8", numcodecs_bytes.Bytes(None)),
        ],
        ids=str,
    )
    def test_a_filter_of_another_data_type(self, tmp_path, dtype, codec):
        """Whatever zarr makes of it, it is the same."""
        fill_value = None if dtype == "|V8" else 0
        stored = np.arange(4.0).tobytes()
        write_v2(tmp_path, stored, dtype, filters=[codec.get_config()], fill_value=fill_value)
        with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
            expected = outcome(opened(tmp_path))
        assert outcome(opened(tmp_path)) == expected

    @BY_KIND
    def test_writes(self, tmp_path, create):
        data = np.random.default_rng(0).random((6, 7))
        array = create(tmp_path, (6, 7), (4, 4))
        array[...] = data
        array[1:5, 3] = data[1:5, 3] = 5
        array.append(data)
        assert_reads_as(tmp_path, np.concatenate([data, data]))

    @BY_KIND
    def test_a_pickled_array(self, tmp_path, create):
        create(tmp_path, (6, 7), (4, 4))[...] = 3
        array = zarr.open_array(tmp_path)
        for _ in range(2):  # before it has read, and after
            same = pickle.loads(pickle.dumps(array))  # noqa: S301
            assert same == array
            assert same[1].tolist() == array[1].tolist() == [3] * 7

    @pytest.mark.parametrize("create", [*CREATE.values(), create_shards], ids=[*CREATE, "shards"])
    def test_zarrs_fused_pipeline_needs_no_event_loop(self, monkeypatch, create):
        """Not for what ours hands to it, either; it would read without threads."""
        pipeline = zarr.config.get("codec_pipeline.path")
        if not pipeline.endswith("FusedBytesPipeline"):
            pytest.skip("not the fused pipeline")
        store = zarr.storage.MemoryStore()
        create(store, (8, 8), (4, 4))[...] = 3
        array, asked = zarr.open_array(store), []

        async def get(self, key, *_, **__):  # noqa: ARG001
            asked.append(key)

        monkeypatch.setattr(zarr.storage.MemoryStore, "get", get)
        assert (array[1].tolist(), asked) == ([3] * 8, [])

    @BY_KIND
    def test_zarrs_setting_by_which_missing_chunks_are_errors(self, tmp_path, create):
        """Our pipelines tell zarr which chunks exist."""
        error = getattr(zarr.errors, "ChunkNotFoundError", None)
        if error is None:
            pytest.skip("this zarr has no such setting")
        create(tmp_path, (4, 4), (2, 4))[:2] = 1
        array = zarr.open_array(tmp_path, config={"read_missing_chunks": False})
        assert array[:2].tolist() == [[1] * 4] * 2
        with pytest.raises(error, match="1"):
            array[1:, 0]


def test_the_fused_pipeline_is_no_public_name_where_zarr_has_none():
    has_fused = hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline")
    assert ("FusedBytesPipeline" in zarr_pipeline.__all__) == has_fused
