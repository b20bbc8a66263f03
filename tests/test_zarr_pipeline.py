"""The pipelines that read parts of chunks: what they request, and what they leave to zarr.

Values of any selection: engine/test_random_selections.py.
"""

import copy
import importlib.util
import json
import multiprocessing
import pickle
import random
import sys
from concurrent.futures import ProcessPoolExecutor

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    OUR_PIPELINES,
    PIPELINES,
    ZARR_ALONE,
    ZARRS_PIPELINE,
    random_selections,
    run_program,
    run_python,
    select,
    write_v2,
)
from zarr.codecs import TransposeCodec
from zarr.storage import MemoryStore

import numcodecs_bytes

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
    pytest.mark.usefixtures("our_pipeline"),
]


def opened(store):
    return zarr.open_array(store, mode="r")


def create(store, shape, chunks, **settings):
    settings = {"dtype": "<f8", "compressors": None} | settings
    return zarr.create_array(store, shape=shape, chunks=chunks, **settings)


BYTES = numcodecs_bytes.Bytes("big", "<f8")
V2 = {"zarr_format": 2, "filters": None}
KINDS = {
    "Zarr v2, F": {**V2, "order": "F"},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))]},
}
BY_KIND = pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)


class Unknown(MemoryStore):
    """A store that is not known."""


class Nameless(zarr.codecs.ZstdCodec):
    """A codec of another package, which is never written to metadata."""

    def to_dict(self):
        return {}


def test_a_codec_without_a_name(tmp_path):
    """Each read raised KeyError."""
    zarr.create_array(tmp_path, shape=(8,), dtype="f8", compressors=zarr.codecs.ZstdCodec())[:] = 1
    zarr.registry.register_codec("zstd", Nameless, qualname="Nameless")
    with zarr.config.set({"codecs.zstd": "Nameless"}), numcodecs_bytes.trace() as traced:
        array = opened(tmp_path)
        assert type(array.metadata.codecs[-1]) is Nameless
        assert (array[2:5] == 1).all()
    assert "compressed or filtered by Nameless" in str(traced)


@BY_KIND
def test_only_what_is_selected_is_requested(tmp_path, counting, settings):
    """Of column-major chunks, a column is what a row is of others."""
    data = np.random.default_rng(0).random((200, 300))
    create(tmp_path, data.shape, (100, 150), **settings)[...] = data
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


def test_a_step_of_any_size(tmp_path):
    """Of 2**63 - 1 rows: its product with the size of a row was too large for C."""
    data = np.arange(6000.0).reshape(20, 300)
    create(tmp_path, data.shape, data.shape)[...] = data
    array = opened(tmp_path)
    for first, step in ((3, 2**63 - 1), (19, 2**40), (20, 2**63 - 1), (0, 2**62)):
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(array[first::step], data[first::step])
            np.testing.assert_array_equal(array[2:4, first::step], data[2:4, first::step])
        total = traced.report()["total"]
        assert total["bytes_fetched"] < data.nbytes // 2


class TestPassedOnToZarr:
    @pytest.mark.parametrize(
        "settings",
        [
            {**V2, "compressors": numcodecs.Zstd()},
            {**V2, "filters": [numcodecs.Delta("<f8")]},
            {**V2, "filters": [BYTES], "compressors": numcodecs.Zlib()},
            {**V2, "filters": [BYTES, numcodecs.Delta("<f8", "<f8")]},
            {"compressors": "auto", "filters": [TransposeCodec(order=(1, 0))]},
            {"compressors": "auto", "shards": (8, 4)},
        ],
        ids=str,
    )
    def test_compressed_and_filtered_arrays(self, tmp_path, settings):
        data = np.random.default_rng(0).integers(0, 9, (6, 7)).astype("f8")
        create(tmp_path, (6, 7), (4, 4), **settings)[...] = data
        rng, array = random.Random(0), opened(tmp_path)  # noqa: S311 # no secret
        with numcodecs_bytes.trace() as traced:
            for way, selection, of_numpy in random_selections(rng, data.shape, 2):
                np.testing.assert_array_equal(select(array, way, selection), of_numpy(data))
        assert traced.report()["arrays"] == {}
        assert "compressed or filtered by " in str(traced)

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

        def outcome():
            try:
                return opened(tmp_path)[:2].tolist()
            except ValueError as error:
                return str(error)

        fill_value = None if dtype == "|V8" else 0
        stored = np.arange(4.0).tobytes()
        write_v2(tmp_path, stored, dtype, filters=[codec.get_config()], fill_value=fill_value)
        with zarr.config.set(ZARR_ALONE):
            expected = outcome()
        assert outcome() == expected

    def test_a_data_type_of_somebodys_own(self):
        """zarr's own codec stores it, ours does not know it."""

        class LongDouble(zarr.dtype.Float64):
            def to_native_dtype(self):
                return np.dtype("longdouble")

        settings = {"dtype": LongDouble(), "serializer": zarr.codecs.BytesCodec()}
        array = create({}, (2, 3), (2, 3), **settings, **KINDS["transposed"])
        array[...] = np.arange(6, dtype="longdouble").reshape(2, 3)
        with numcodecs_bytes.trace() as traced:
            assert array[1].tolist() == [3, 4, 5]
        assert "zarr's own codec stores" in str(traced)

    def test_a_structure_of_zarrs_own_codec(self, tmp_path):
        """zarr 3.1.6 drops its endian, and an error was raised that zarr alone does not raise."""
        data = np.ones(4, [("a", "<i4"), ("b", "<f8")])
        with zarr.config.set(ZARR_ALONE):
            zarr.create_array(tmp_path, data=data, compressors=None)
        with zarr.config.set({"codecs.bytes": ZARR_ALONE["codecs.bytes"]}):
            assert zarr.open_array(tmp_path)[1:3].tolist() == data[1:3].tolist()

    @pytest.mark.parametrize(
        "settings", [*KINDS.values(), {"shards": (8, 8)}], ids=[*KINDS, "shards"]
    )
    def test_zarrs_fused_pipeline_needs_no_event_loop(self, monkeypatch, our_pipeline, settings):
        """Not for what ours hands to it, either; it would read without threads."""
        if not our_pipeline.endswith("FusedBytesPipeline"):
            pytest.skip("not the fused pipeline")
        store = zarr.storage.MemoryStore()
        create(store, (8, 8), (4, 4), **settings)[...] = 3
        array, asked = zarr.open_array(store), []

        async def get(self, key, *_, **__):  # noqa: ARG001
            asked.append(key)

        monkeypatch.setattr(zarr.storage.MemoryStore, "get", get)
        assert (array[1].tolist(), asked) == ([3] * 8, [])

    @BY_KIND
    def test_zarrs_setting_by_which_missing_chunks_are_errors(self, tmp_path, settings):
        """Our pipelines tell zarr which chunks exist."""
        error = getattr(zarr.errors, "ChunkNotFoundError", None)
        if error is None:
            pytest.skip("this zarr has no such setting")
        create(tmp_path, (4, 4), (2, 4), **settings)[:2] = 1
        # `config` of `open_array` has no effect before zarr 3.4.2.
        array = zarr.open_array(tmp_path).with_config({"read_missing_chunks": False})
        assert array[:2].tolist() == [[1] * 4] * 2
        with pytest.raises(error, match="1"):
            array[1:, 0]


FOREIGN = numcodecs_bytes.Bytes({"little": "big", "big": "little"}[sys.byteorder])
FOREIGN_CHAINS = {
    "filter": {"filters": [FOREIGN]},
    "compressor": {"compressors": FOREIGN},
    "compressed": {"filters": [FOREIGN], "compressors": numcodecs.Zlib()},
}


class TestWhatCouldNotBeReadBack:
    """zarr tells no codec of Zarr v2 the data type, so without it bytes can't be swapped."""

    @staticmethod
    def create(path, dtype, chain, **settings):
        settings = {"shape": (4, 6), "chunks": (2, 6), **V2, "compressors": None} | settings
        return zarr.create_array(path, dtype=dtype, **settings | chain)

    @pytest.mark.parametrize("chain", FOREIGN_CHAINS.values(), ids=FOREIGN_CHAINS)
    @pytest.mark.parametrize("order", "CF")
    @pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i2", "<c16"])
    @pytest.mark.parametrize("in_place", [False, True])
    def test_is_not_written(self, tmp_path, dtype, order, chain, in_place):
        """It was, and each read raised; the error says which line is missing."""
        array = self.create(tmp_path, dtype, chain, order=order)
        before = sorted(tmp_path.iterdir())
        with zarr.config.set({"numcodecs_bytes.write_in_place": in_place}):
            for selection in (np.s_[:], np.s_[:2], np.s_[1, 2:4]):
                with pytest.raises(ValueError, match=f'"dtype": "{dtype}"') as caught:
                    array[selection] = 1
                assert ".zarray" in str(caught.value)
        assert sorted(tmp_path.iterdir()) == before

    def test_with_the_line_it_is(self, tmp_path):
        array = self.create(tmp_path, ">f4", FOREIGN_CHAINS["filter"])
        codec = FOREIGN.get_config() | {"dtype": ">f4"}
        document = json.loads((tmp_path / ".zarray").read_text()) | {"filters": [codec]}
        (tmp_path / ".zarray").write_text(json.dumps(document))
        array = zarr.open_array(tmp_path)
        array[:] = data = np.arange(24).reshape(4, 6)
        assert array[:].tolist() == data.tolist()

    def test_is_not_written_after_another_filter(self, tmp_path):
        """What the filter before it returns has another data type, which is the one to be named."""
        scale = numcodecs.FixedScaleOffset(0, 10, "<f4", "<i2")
        array = self.create(tmp_path, "<f4", {"filters": [scale, FOREIGN]})
        with pytest.raises(ValueError, match='"dtype" of the elements that the codec before it'):
            array[1, 2] = 1
        filters = [scale, numcodecs_bytes.Bytes(FOREIGN.endian, "<i2")]
        array = self.create(tmp_path / "a", "<f4", {"filters": filters})
        array[1, 2] = 1
        assert array[1, 2] == 1

    @pytest.mark.parametrize("dtype", ["|u1", "|V2"])
    def test_bytes_are_refused_by_the_codec(self, tmp_path, dtype):
        array = self.create(tmp_path, dtype, FOREIGN_CHAINS["filter"], fill_value=None)
        with pytest.raises(ValueError, match="can't byte-swap elements of unknown data type"):
            array[:] = np.arange(24, dtype="u1").reshape(4, 6).astype(dtype)
        codec = numcodecs_bytes.Bytes(sys.byteorder)
        array = self.create(tmp_path / "a", "|u1", {"filters": [codec]})
        array[:] = 7
        assert (array[:] == 7).all()


SHARDS = {"shards": (8, 8)}
ZSTD = {"compressors": "auto"}
ALL_KINDS = KINDS | {
    "Zarr v2": V2,
    "Zarr v3": {},
    "with a filter": {**V2, "filters": [BYTES]},
    "compressed": ZSTD,
    "compressed v2": {**V2, "compressors": numcodecs.Zstd()},
    "shards": SHARDS,
    "compressed shards": SHARDS | ZSTD,
}
# `from_codecs` of zarrs returns zarr's own pipeline, since zarrs itself needs a store.
CONFIGURED = {path: path for path in (*PIPELINES, *OUR_PIPELINES)}
if importlib.util.find_spec("zarrs"):
    CONFIGURED["zarrs.ZarrsCodecPipeline"] = ZARRS_PIPELINE


def pipeline_of(array):
    return array.async_array.codec_pipeline


def path_of(pipeline):
    return f"{type(pipeline).__module__}.{type(pipeline).__name__}"


class TestPickled:
    """An unpickled array has the pipeline that is configured, made as zarr makes it."""

    @pytest.mark.parametrize("settings", ALL_KINDS.values(), ids=ALL_KINDS)
    def test_it_equals_the_array(self, tmp_path, settings):
        """Its pipeline, too, down to what makes zarr's fused one fast; and after two hops."""
        dumps = pytest.importorskip("cloudpickle").dumps
        create(tmp_path, (6, 8), (4, 4), **settings)[...] = 3
        for array in (create(tmp_path / "a", (6, 8), (4, 4), **settings), opened(tmp_path)):
            for _ in range(2):  # before it has read, and after
                same = pickle.loads(pickle.dumps(pickle.loads(dumps(array))))  # noqa: S301
                assert same == array
                assert pipeline_of(same) == pipeline_of(array)
                assert same[1].tolist() == array[1].tolist()

    @pytest.mark.parametrize("configured", CONFIGURED)
    def test_where_a_pipeline_is_configured(self, tmp_path, configured):
        """Even if it can't be made from codecs, there is no error."""
        for name, settings in ALL_KINDS.items():
            create(tmp_path / name, (6, 8), (4, 4), **settings)[...] = 3
            pickled = pickle.dumps(zarr.open_array(tmp_path / name))
            with zarr.config.set({"codec_pipeline.path": configured}):
                array = pickle.loads(pickled)  # noqa: S301
                assert path_of(pipeline_of(array)) == CONFIGURED[configured]
                if CONFIGURED[configured] == configured:
                    assert array == zarr.open_array(tmp_path / name)
                array[1:, 1] = 4
            assert opened(tmp_path / name)[:2].tolist() == [[3] * 8, [3, 4] + [3] * 6]

    def test_copies_keep_theirs(self, tmp_path, our_pipeline):
        for name, settings in ALL_KINDS.items():
            create(tmp_path / name, (6, 8), (4, 4), **settings)[...] = 3
            array = zarr.open_array(tmp_path / name)
            with zarr.config.set(ZARR_ALONE):
                for same in (copy.copy(array.async_array), copy.deepcopy(array).async_array):
                    assert path_of(same.codec_pipeline) == our_pipeline
                    assert same == array.async_array


VARIABLE = "ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE"
REQUIRE = {"numcodecs_bytes.write_in_place": "require"}
# Reads an array, writes a whole chunk, and part of another: what became of each.
USE = """
import pickle, sys, numcodecs_bytes
from pathlib import Path

array = pickle.loads(Path(sys.argv[1]).read_bytes())
assert array[1].tolist() == [3] * 8
array[:4, :4] = 5
with numcodecs_bytes.trace() as traced:
    try:
        array[1:, 6] = 4
    except RuntimeError as error:
        print(error)
    else:
        print(traced.report()["total"]["chunks_in_place"], "in place")
"""
WRITTEN = {  # where an array is loaded: what is set there, and what is said of a part of a chunk
    "not set": ({}, "is not set in this process"),
    "empty": ({VARIABLE: ""}, "is not set in this process"),
    "require": ({VARIABLE: "require"}, "2 in place"),
    "True": ({VARIABLE: "True"}, "2 in place"),
    "False": ({VARIABLE: "False"}, "0 in place"),
    "another pipeline": ({"ZARR_CODEC_PIPELINE__PATH": ZARRS_PIPELINE}, "0 in place"),
}
UNCOMPRESSED = {name: ALL_KINDS[name] for name in ("Zarr v2", "Zarr v3", "with a filter")}
UNCOMPRESSED["shards"] = {"shards": (4, 4), "chunks": (2, 2)}


def reloaded(array):
    return pickle.loads(pickle.dumps(array))  # noqa: S301


def write_parts(array):
    """Write parts of chunks, in a process of a pool."""
    array[1:, 6] = 4


def require():
    zarr.config.set(REQUIRE)


# Two workers, which have not set the option before the second round, write one chunk.
WORKERS = """
import sys
import dask.array, zarr
from distributed import Client, LocalCluster

def require():
    import zarr
    zarr.config.set({"numcodecs_bytes.write_in_place": "require"})

if __name__ == "__main__":
    require()
    array = zarr.open_array(sys.argv[1])
    values = dask.array.arange(array.size, chunks=7).astype("f8")
    options = {"dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        try:
            dask.array.store(values, array, lock=False)
        except RuntimeError as error:
            print("is not set in this process" in str(error), int((array[:] == 0).sum()))
        client.register_worker_callbacks(require)
        dask.array.store(values, array, lock=False)
    print((array[:] == values.compute()).all())
"""


@pytest.mark.needs("fcntl")
class TestPickledWhileRequired:
    """Processes that had not set "require" rewrote chunks, without a word: elements were lost."""

    @staticmethod
    def create(path, **settings):
        create(path, (8, 8), **{"chunks": (4, 4)} | settings)[...] = 3
        return zarr.open_array(path)

    @pytest.mark.parametrize("where", WRITTEN)
    @pytest.mark.parametrize("settings", UNCOMPRESSED.values(), ids=UNCOMPRESSED)
    def test_parts_are_not_rewritten_unless_that_is_set(self, tmp_path, settings, where):
        """Reads and whole chunks need nothing."""
        array = self.create(tmp_path / "a", **settings)
        with zarr.config.set(REQUIRE):
            (tmp_path / "pickled").write_bytes(pickle.dumps(array))
        environment, said = WRITTEN[where]
        printed = run_program("-c", USE, tmp_path / "pickled", **environment).stdout
        assert said in printed
        expected = np.full((8, 8), 3.0)
        expected[:4, :4] = 5
        if "in place" in said:
            expected[1:, 6] = 4
        assert np.array_equal(array[...], expected)

    @pytest.mark.parametrize("settings", ALL_KINDS.values(), ids=ALL_KINDS)
    def test_what_to_set_is_said(self, tmp_path, settings):
        """Compressed chunks are no exception: each of the remedies helps, if any can."""
        array = self.create(tmp_path, **settings)
        with zarr.config.set(REQUIRE):
            pickled = pickle.dumps(array)
        for _ in range(2):  # also after two hops
            array = pickle.loads(pickled)  # noqa: S301
            with pytest.raises(RuntimeError, match=f"set it to .require.*{VARIABLE}=require"):
                array[1:, 6] = 4
            pickled = pickle.dumps(array)
        assert array[:, 6].tolist() == [3] * 8
        with zarr.config.set({"numcodecs_bytes.write_in_place": False}):
            array[1:, 6] = 4
        assert array[:, 6].tolist() == [3] + [4] * 7

    def test_only_then(self, tmp_path):
        """Not if something else was set, right or wrong."""
        array = self.create(tmp_path)
        for value in (True, False, None, "wrong"):
            with zarr.config.set({"numcodecs_bytes.write_in_place": value}):
                same = reloaded(array)
            same[1:, 6] = 4

    def test_by_a_pool_of_processes(self, tmp_path):
        array = self.create(tmp_path)
        spawn = multiprocessing.get_context("spawn")
        with zarr.config.set(REQUIRE), ProcessPoolExecutor(1, mp_context=spawn) as pool:
            with pytest.raises(RuntimeError, match="not set in this process"):
                pool.submit(write_parts, array).result()
            pool.submit(require).result()
            pool.submit(write_parts, array).result()
        assert array[:, 6].tolist() == [3] + [4] * 7

    def test_by_workers_of_dask(self, tmp_path):
        pytest.importorskip("distributed", reason="the extra examples is not installed")
        (tmp_path / "program.py").write_text(WORKERS)
        create(tmp_path / "a", (700,), (700,))
        done = run_python(tmp_path / "program.py", tmp_path / "a")
        assert done.stdout.split() == ["True", "700", "True"]
