"""The pipelines that read parts of chunks, here Zarr v2 and transposed, against NumPy and zarr."""

import itertools
import os
import pickle
import random

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    CHUNKS,
    DTYPES,
    HAS_STRUCT,
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
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype

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


def assert_reads_as(path, data, seed=0, num=3):
    """Compare all ways to select, `num` times, of what is opened anew, with NumPy's."""
    rng = random.Random(seed)  # noqa: S311 # no secret
    for array in (zarr.open_array(path, mode="r"), opened(CountingStore(path))):
        for way, selection, of_numpy in random_selections(rng, data.shape, num):
            with ranges_from(CountingStore):
                got = select(array, way, selection)
            np.testing.assert_array_equal(got, of_numpy(data), strict=False)
        np.testing.assert_array_equal(array[...], data)


def opened(store):
    return zarr.open_array(store, mode="r")


def v2_settings():
    """Yield ways to store a chunk of Zarr v2 without compressing it."""
    for order, where in itertools.product("CF", ["raw", "filters", "compressors"]):
        for endian in ("little", "big") if where != "raw" else (None,):
            yield pytest.param(order, where, endian, id=f"{order}-{where}-{endian}")


class TestV2:
    @pytest.mark.matrix
    @pytest.mark.parametrize("dtype", [*DTYPES, STRUCT], ids=str)
    @pytest.mark.parametrize(("order", "where", "endian"), list(v2_settings()))
    def test_arrays_that_zarr_wrote_are_read(self, tmp_path, dtype, order, where, endian):
        data = random_array(dtype)
        dtype = data.dtype
        codec = numcodecs_bytes.Bytes(endian, dtype) if endian else None
        settings = {"filters": None, "compressors": None}
        if where != "raw":
            settings[where] = [codec] if where == "filters" else codec
        with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
            array = zarr.create_array(
                tmp_path,
                shape=SHAPE,
                chunks=CHUNKS,
                dtype=dtype,
                order=order,
                zarr_format=2,
                **settings,
            )
            array[...] = data
            np.testing.assert_array_equal(array[...], data)
        assert callable(zarr.open_array(tmp_path)._async_array.codec_pipeline._layout_of)
        assert_reads_as(tmp_path, data, seed=str((dtype, order, where, endian)), num=1)

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_bytes_that_others_wrote(self, tmp_path, order):
        data = np.arange(24, dtype=">i2").reshape(4, 6)
        write_v2(tmp_path, data.tobytes(order=order), ">i2", [4, 6], order=order)
        assert_reads_as(tmp_path, data)

    @pytest.mark.parametrize("selection", [slice(None), slice(0, 2)], ids=str)
    def test_invalid_bools_read_as_true(self, tmp_path, selection):
        """In whole and in part."""
        array = zarr.create_array(
            tmp_path, shape=4, dtype="?", zarr_format=2, compressors=None, filters=None
        )
        array[:] = True
        (tmp_path / "0").write_bytes(bytes([0, 2, 255, 1]))
        got = opened(tmp_path)[selection]
        assert got.view("u1").tolist() == [0, 1, 1, 1][selection]

    def test_a_chunk_of_another_length(self, tmp_path):
        array = zarr.create_array(
            tmp_path, shape=(4, 6), dtype="i2", zarr_format=2, compressors=None, filters=None
        )
        array[...] = 1
        (tmp_path / "0.0").write_bytes(bytes(30))
        message = r"chunk '0.0' of LocalStore.* holds 30 bytes, expected 48 for shape \(4, 6\)"
        for selection in (slice(None), 0):
            with pytest.raises(ValueError, match=message):
                opened(tmp_path)[selection]

    @pytest.mark.parametrize("shape", [(), (0, 3), (1,)], ids=str)
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_small_shapes(self, tmp_path, shape, order):
        data = np.ones(shape, ">f4")
        array = zarr.create_array(
            tmp_path,
            shape=shape,
            dtype=">f4",
            order=order,
            zarr_format=2,
            compressors=None,
            filters=None,
        )
        array[...] = data
        np.testing.assert_array_equal(opened(tmp_path)[...], data)


def orders(num_axes):
    return list(itertools.permutations(range(num_axes)))


class TestTransposed:
    @pytest.mark.matrix
    @pytest.mark.parametrize(
        ("kind", "endian"),
        [(BytesCodec, "big"), (zarr.codecs.BytesCodec, "big"), (zarr.codecs.BytesCodec, "little")],
    )
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize(
        "transposes",
        [*([order] for order in orders(3)), [(1, 2, 0), (0, 2, 1)], [(2, 0, 1)] * 3, []],
        ids=str,
    )
    def test_arrays_that_zarr_wrote_are_read(self, tmp_path, transposes, dtype, kind, endian):
        data = random_array(dtype)
        zarrs_own = {
            "codecs.bytes": f"{kind.__module__}.{kind.__qualname__}",
            "codec_pipeline.path": ZARRS_PIPELINE,
        }
        with zarr.config.set(zarrs_own):
            array = zarr.create_array(
                tmp_path,
                shape=SHAPE,
                chunks=CHUNKS,
                dtype=dtype,
                filters=[TransposeCodec(order=order) for order in transposes],
                compressors=None,
                serializer=kind(endian=endian),
            )
            array[...] = data
        with zarr.config.set({"codecs.bytes": zarrs_own["codecs.bytes"]}):
            pipeline = zarr.open_array(tmp_path)._async_array.codec_pipeline
            assert callable(pipeline._layout_of)
            seed = str((transposes, dtype, kind.__module__, endian))
            assert_reads_as(tmp_path, data, seed, num=1)

    def test_a_data_type_of_somebodys_own(self):
        """zarr's own codec stores it, ours does not know it."""

        class LongDouble(zarr.dtype.Float64):
            def to_native_dtype(self):
                return np.dtype("longdouble")

        spec = ArraySpec(
            shape=(2, 3),
            dtype=LongDouble(),
            fill_value=0,
            config=ArrayConfig(order="C", write_empty_chunks=True),
            prototype=default_buffer_prototype(),
        )
        codecs = [TransposeCodec(order=(1, 0)), zarr.codecs.BytesCodec()]
        pipeline = zarr_pipeline.BytesPipeline.from_codecs(codecs, batch_size=3)
        assert pipeline.batch_size == 3
        assert "float128" in pipeline._stored(spec).why

    def test_structures(self, tmp_path):
        data = random_array([("a", "<i4"), ("b", "<f8")])
        array = zarr.create_array(
            tmp_path,
            shape=SHAPE,
            chunks=CHUNKS,
            dtype=data.dtype,
            filters=[TransposeCodec(order=(2, 0, 1))],
            compressors=None,
            serializer=BytesCodec(endian="little"),
        )
        array[...] = data
        assert_reads_as(tmp_path, data)

    def test_in_shards(self, tmp_path):
        data = random_array("<i4", (8, 8))
        array = zarr.create_array(
            tmp_path,
            shape=(8, 8),
            chunks=(2, 4),
            shards=(4, 8),
            dtype="i4",
            filters=[TransposeCodec(order=(1, 0))],
            compressors=None,
        )
        array[...] = data
        assert_reads_as(tmp_path, data)


def create_transposed(store, shape, chunks, **settings):
    return zarr.create_array(
        store,
        shape=shape,
        chunks=chunks,
        dtype="<f8",
        filters=[TransposeCodec(order=(1, 0))],
        compressors=None,
        **settings,
    )


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


CREATE = {
    "Zarr v2, F": create_v2,
    "transposed": create_transposed,
}


class TestOnlyWhatIsSelected:
    @pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)
    def test_bytes_and_requests(self, tmp_path, counting, create):
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

    @pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)
    def test_a_local_file_is_opened_once(self, tmp_path, monkeypatch, create):
        create(tmp_path, (500, 500), (500, 500))[...] = 1
        array, names = opened(tmp_path), []
        open_file, pread = os.open, os.pread
        monkeypatch.setattr(os, "open", lambda *a, **k: names.append(a[0]) or open_file(*a, **k))
        positions = []
        monkeypatch.setattr(os, "pread", lambda *a: positions.append(a[1:]) or pread(*a))
        assert array[7].tolist() == [1] * 500
        assert len([name for name in names if str(tmp_path) in str(name)]) == 1
        assert positions == [(8, (column * 500 + 7) * 8) for column in range(500)] or (
            len(positions) < 500  # a slow machine, where ranges are coalesced
        )

    def test_missing_chunks(self, tmp_path, counting):
        create_v2(tmp_path, (4, 4), (2, 4), fill_value=7)[:2] = 1
        assert zarr.open_array(counting)[:, 1].tolist() == [1, 1, 7, 7]


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
        array = create_v2(tmp_path, (6, 7), (4, 4), "C", **settings)
        array[...] = data
        assert array._async_array.codec_pipeline._layout_of.why
        assert_reads_as(tmp_path, data)

    def test_other_codecs_of_v3(self, tmp_path):
        data = np.random.default_rng(0).random((6, 7))
        for name, settings in {
            "compressed": {"filters": [TransposeCodec(order=(1, 0))]},
            "sharded": {"chunks": (2, 2), "shards": (4, 4)},  # and compressed
        }.items():
            shape = {"shape": (6, 7), "chunks": (4, 4)}
            zarr.create_array(tmp_path / name, dtype="f8", **(shape | settings))[...] = data
            array = zarr.open_array(tmp_path / name)
            assert array._async_array.codec_pipeline._layout_of.why
            assert_reads_as(tmp_path / name, data)

    @pytest.mark.parametrize(
        ("dtype", "codec"),
        [
            ("<f8", numcodecs_bytes.Bytes("big", "<i8")),
            ("<f8", numcodecs_bytes.Bytes("big", ">f8")),
            ("<f8", numcodecs_bytes.Bytes("big")),
            (">f8", numcodecs_bytes.Bytes("little")),
            ("<f8", numcodecs_bytes.Bytes(None)),
            ("|V8", numcodecs_bytes.Bytes(None)),
            ("<i8", numcodecs_bytes.Bytes("big")),
        ],
        ids=str,
    )
    def test_a_filter_of_another_data_type(self, tmp_path, dtype, codec):
        """Whatever zarr makes of it, it is the same."""
        settings = {"filters": [codec.get_config()]}
        if dtype == "|V8":
            settings["fill_value"] = None
        write_v2(tmp_path, np.arange(4.0).tobytes(), dtype, **settings)
        with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
            expected = outcome(opened(tmp_path))
        assert outcome(opened(tmp_path)) == expected

    def test_strings_of_any_length(self, tmp_path):
        array = zarr.create_array(
            tmp_path,
            shape=3,
            dtype=str,
            zarr_format=2,
            filters=[numcodecs.VLenUTF8()],
            compressors=None,
        )
        array[:] = ["a", "bc", "def"]
        assert opened(tmp_path)[1:].tolist() == ["bc", "def"]

    @pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)
    def test_writes(self, tmp_path, create):
        data = np.random.default_rng(0).random((6, 7))
        array = create(tmp_path, (6, 7), (4, 4))
        array[...] = data
        array[1:5, 3] = data[1:5, 3] = 5
        array.append(data)
        assert_reads_as(tmp_path, np.concatenate([data, data]))

    @pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)
    def test_a_pickled_array(self, tmp_path, create):
        array = create(tmp_path, (6, 7), (4, 4))
        array[...] = 3
        for _ in range(2):  # before it has read, and after
            array = pickle.loads(pickle.dumps(array))  # noqa: S301
            assert array[1].tolist() == [3] * 7

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

    @pytest.mark.skipif(not HAS_STRUCT, reason="zarr 3.1.6 returns nothing")
    @pytest.mark.parametrize("create", CREATE.values(), ids=CREATE)
    def test_a_result_for_each_chunk(self, tmp_path, create):
        array = create(tmp_path, (4, 4), (2, 4))
        array[:2] = 1
        pipeline = array._async_array.codec_pipeline
        store_path = array.store_path
        keys = ["0.0", "1.0"] if array.metadata.zarr_format == 2 else ["c/0/0", "c/1/0"]
        spec = ArraySpec(
            shape=(2, 4),
            dtype=array._async_array._zdtype,
            fill_value=0,
            config=ArrayConfig(order="C", write_empty_chunks=True),
            prototype=default_buffer_prototype(),
        )
        everything = (slice(0, 2), slice(0, 4))
        batch = [
            (store_path / key, spec, everything, (slice(2 * k, 2 * k + 2), slice(0, 4)), True)
            for k, key in enumerate(keys)
        ]
        out = cpu.NDBuffer.from_numpy_array(np.full((4, 4), 9.0))
        results = zarr.core.sync.sync(pipeline.read(batch, out))
        assert [result["status"] for result in results] == ["present", "missing"]
        assert out.as_numpy_array()[:, 0].tolist() == [1, 1, 0, 0]


def test_the_fused_pipeline_is_no_public_name_where_zarr_has_none():
    has_fused = hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline")
    assert ("FusedBytesPipeline" in zarr_pipeline.__all__) == has_fused
