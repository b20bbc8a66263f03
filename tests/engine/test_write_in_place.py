"""Parts of chunks are written in place: only the selected bytes, or else by zarr, or an error."""

import asyncio
import errno
import os
import re
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import LOADS_DATA_TYPES, OPEN_FILES, ZARR_ALONE, has
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype

import numcodecs_bytes
from numcodecs_bytes._plan import constants
from numcodecs_bytes.zarr_codec import BytesCodec

pytestmark = pytest.mark.usefixtures("_in_place")
REQUIRE = {"numcodecs_bytes.write_in_place": "require"}
IF_POSSIBLE = {"numcodecs_bytes.write_in_place": True}
NOT_IN_PLACE = {"numcodecs_bytes.write_in_place": False}
SHARDS = {"shards": (8, 8), "chunks": (4, 4)}


def create(path, shape=(8, 8), chunks=None, dtype="f8", **settings):
    settings = {"compressors": None, "filters": None, **settings}
    return zarr.create_array(
        path, shape=shape, chunks=chunks or shape, dtype=dtype, overwrite=True, **settings
    )


class TestBytes:
    @pytest.mark.needs("fcntl")
    def test_only_the_selected_ones(self, tmp_path, written):
        array = create(tmp_path, serializer=BytesCodec(endian="big"))
        array[...] = 2
        written.clear()
        one = np.array(1, ">f8").tobytes()
        with numcodecs_bytes.trace() as traced:
            array[3, 2:4] = 1
            assert written == [("write", "shared", (3 * 8 + 2) * 8, one + one)]
            written.clear()
            array[:, 5] = 1
            assert written == [("write", "shared", (k * 8 + 5) * 8, one) for k in range(8)]
            written.clear()
            array.vindex[[7, 0, 7], [1, 2, 1]] = [4, 5, 6]
            assert {position for *_, position, _ in written} == {2 * 8, 57 * 8}
        assert array[7, 1] == 6  # the last one wins
        total = traced.report()["total"]
        assert (total["chunks_in_place"], total["bytes_in_place"]) == (3, (2 + 8 + 3) * 8)
        assert total["bytes_zarr_alone"] == 3 * 512

    @pytest.mark.needs("fcntl", "/proc/self/fd")
    def test_no_descriptor_is_left_open(self, tmp_path):
        array = create(tmp_path)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for k in range(8):
            array[k, 1:] = k
        assert len(list(Path("/proc/self/fd").iterdir())) <= before

    @pytest.mark.needs("fcntl")
    def test_by_as_many_threads_as_zarr_s_setting_says(self, tmp_path, calls, set_constants):
        """And else by one for each core, if the values are large."""
        set_constants(PARALLEL_BYTES=0)
        array = create(tmp_path, (64, 8), (4, 8))
        array[...] = 1
        calls.threads.clear()
        with zarr.config.set({"threading.max_workers": 1, "codec_pipeline.max_workers": 1}):
            array[:, ::2] = 2
        assert len(set(calls.threads)) == 1
        assert array[...].sum() == 64 * (4 + 8)

    @pytest.mark.needs("fcntl")
    def test_short_writes(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda d, v, p: pwrite(d, v[:3], p))
        array[2, 1:] = 5
        array[:, 0] = 7
        assert array[...].sum() == 64 - 15 + 35 + 56

    @pytest.mark.needs("fcntl")
    def test_each_block_is_read_and_written_once(self, tmp_path, written):
        """Indices in any order, grouped by block; of those at the same place, the last one wins."""
        rng = np.random.default_rng(0)
        array = create(tmp_path, (1024, 1024), dtype="u2")
        array[...] = data = rng.integers(0, 1 << 16, (1024, 1024), "u2")
        written.clear()
        points = tuple(rng.integers(0, 1024, (2, 200_000)))
        values = rng.integers(0, 1 << 16, 200_000, "u2")
        array.vindex[points] = data[points] = values
        assert sum(num for kind, _, _, num in written if kind == "read") <= data.nbytes
        assert sum(len(raw) for kind, _, _, raw in written if kind == "write") <= data.nbytes
        assert np.array_equal(array[...], data)

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize(
        "selection",
        [np.s_[:, :-1:3], (np.arange(0, 4096, 2),), (np.arange(4096) % 2 == 0,)],
        ids=["every third", "rows", "mask of rows"],
    )
    def test_memory_follows_the_block(self, tmp_path, track, selection):
        array = create(tmp_path, (4096, 4096), dtype="u1")
        array[...] = 1
        values = np.full(np.empty((4096, 4096), "u1")[selection].shape, 2, "u1")
        peak, _ = track(lambda: array.oindex.__setitem__(selection, values))
        assert peak < 6 * constants.BLOCK_BYTES
        expected = np.ones((4096, 4096), "u1")
        expected[selection] = 2
        assert np.array_equal(array[...], expected)

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("way", ["oindex", "vindex"])
    def test_some_indices_of_a_long_axis(self, tmp_path, track, way):
        """Nothing is allocated for each index of the axis."""
        array = create(tmp_path, (1 << 24,), dtype="u1")
        array[1:3] = 1
        last = (1 << 24) - 1
        peak, _ = track(lambda: getattr(array, way).__setitem__([1, 7, last], 3))
        assert peak < 1 << 20
        assert array[last] == array[7] == array[1] == 3


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize(
    ("selection", "lock", "num_writes"),
    [
        (np.s_[3, 1:], "shared", 1),
        (np.s_[:, 3], "exclusive", 1),  # elements 4 KiB apart
        (np.s_[::16, 3], "shared", 32),  # 64 KiB apart
        (np.s_[3:9, 3:9], "shared", 6),
        (np.s_[:, ::2], "exclusive", 1),
        (np.s_[::2, :], "exclusive", 1),
        (np.s_[::32, ::2], "exclusive", 16),
        ((np.arange(0, 512, 128), np.arange(0, 512, 128)), "shared", 4),
    ],
    ids=str,
)
def test_runs_or_all_between_them(tmp_path, written, selection, lock, num_writes):
    """Many short runs are read and written together, by who is alone; others one by one.

    Nothing else is read: a byte here and there told how slow the file is, and so what to write.
    """
    array = create(tmp_path, (512, 512))
    array[...] = 1
    written.clear()
    (array.vindex if isinstance(selection[0], np.ndarray) else array)[selection] = 2
    assert {held for _, held, *_ in written} == {lock}
    num_reads = num_writes if lock == "exclusive" else 0
    kinds = [kind for kind, *_ in written]
    assert (kinds.count("read"), kinds.count("write")) == (num_reads, num_writes)


class Lazy:
    """An array that is none of NumPy's."""

    def __init__(self, data):
        self._data = data
        self.shape, self.dtype, self.ndim, self.size = data.shape, data.dtype, data.ndim, data.size
        self.nbytes = data.nbytes

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._data, dtype)

    def __getitem__(self, key):
        return Lazy(self._data[key])

    def astype(self, dtype, **_):
        return Lazy(self._data.astype(dtype))


VALUES = {
    "list": list,
    "memmap": lambda data: data,
    "masked": lambda data: np.ma.masked_array(data, data > 3),
    "other dtype": lambda data: data.astype("i2"),
    "lazy": Lazy,
    "Index": lambda data: pytest.importorskip("pandas").Index(data),
    "Series": lambda data: pytest.importorskip("pandas").Series(data),
    "DataArray": lambda data: pytest.importorskip("xarray").DataArray(data, dims="x"),
    "Variable": lambda data: pytest.importorskip("xarray").Variable("x", data),
}


@pytest.fixture(params=[True, False], ids=["copied", "larger"])
def copied(request, set_constants, _in_place):
    """Whether values that may be mapped are copied to memory, or too many: then zarr writes."""
    if request.param:
        yield True
        return
    set_constants(MAPPED_COPY_BYTES=0)
    with zarr.config.set(IF_POSSIBLE):
        yield False


class TestValues:
    @pytest.mark.parametrize("kind", VALUES)
    def test_what_zarr_takes(self, tmp_path, copied, kind):
        """As zarr alone stores it; and only a part of the chunk is written, if files have locks."""
        if kind == "Series" and LOADS_DATA_TYPES:  # zarr 3.4.1 and newer, but not because of that
            pytest.skip("this zarr does not take it")
        array, data = create(tmp_path / "a", (8,)), np.arange(6.0)
        array[:] = -1
        np.save(tmp_path / "values.npy", data)
        with numcodecs_bytes.trace() as traced:
            array[1:7] = VALUES[kind](np.load(tmp_path / "values.npy", mmap_mode="r"))
        assert array[:].tolist() == [-1, *data, -1]
        if copied:
            assert traced.report()["total"]["bytes_in_place"] == 6 * 8 * has("fcntl")

    @pytest.mark.parametrize("settings", [{}, SHARDS], ids=["chunk", "shard"])
    @pytest.mark.parametrize("dtype", ["f8", "i4"])
    @pytest.mark.parametrize("value", [np.ma.masked, np.ma.masked_array(5.0, mask=True)])
    def test_a_masked_element(self, tmp_path, caplog, settings, dtype, value):
        """To a single element, NumPy assigns NaN; if that is an integer, it raises an error."""
        outcomes = []
        for config in (ZARR_ALONE, IF_POSSIBLE, {}):
            with zarr.config.set(config):
                array = create(tmp_path, dtype=dtype, **settings)
                array[...] = 1
                is_error = dtype == "i4"
                expected = pytest.raises(np.ma.MaskError) if is_error else pytest.warns(match="nan")
                with expected:
                    array[2, 3] = value
                array[3, 1:] = value  # otherwise, it assigns what the mask hides
                outcomes.append(array[...])
        np.testing.assert_array_equal(outcomes[0], outcomes[1])
        np.testing.assert_array_equal(outcomes[0], outcomes[2])
        assert is_error or np.isnan(outcomes[0][2, 3])
        assert not caplog.records

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("mode", [True, "require"])
    def test_values_of_unknown_length(self, tmp_path, caplog, mode):
        """Those of Dask after a mask: it was taken for a mistake of ours; zarr alone refuses it."""
        dask = pytest.importorskip("dask.array", reason="the extra examples is not installed")
        array = create(tmp_path, (8,), (8,))
        values = dask.from_array(np.arange(6.0), chunks=3)
        with zarr.config.set({"numcodecs_bytes.write_in_place": mode}):
            array[0:3] = values[values > 2]
        assert array[:4].tolist() == [3, 4, 5, array.fill_value]
        assert not caplog.records

    @pytest.mark.filterwarnings("ignore:Warning. converting a masked element")
    def test_a_masked_element_that_is_mapped(self, tmp_path):
        """The value under the mask was stored: copying it out of the file dropped the mask."""
        mapped = np.memmap(tmp_path / "values", "f8", "w+", shape=(1,))
        mapped[:] = 7
        for name, config in (("ours", {}), ("zarrs", ZARR_ALONE | NOT_IN_PLACE)):
            with zarr.config.set(config):
                array = create(tmp_path / name)
                array[...] = 1
                array[2, 3] = np.ma.array(mapped.reshape(()), mask=True)
                assert np.isnan(array[2, 3]), name

    @pytest.mark.needs("fcntl", OPEN_FILES)
    @pytest.mark.parametrize("kind", ["memmap", "view", "lazy"])
    @pytest.mark.parametrize("shards", [None, (64, 512)], ids=["chunks", "shards"])
    def test_the_memory_of_the_chunk_that_is_written(self, tmp_path, copied, kind, shards):
        """Rows that are moved down are those from before, not those that were just written."""
        chunks = (64, 512) if shards is None else (8, 512)
        array = create(tmp_path, (64, 512), chunks, shards=shards)
        array[...] = data = np.arange(64 * 512.0).reshape(64, 512)
        chunk = tmp_path / "c/0/0"
        mapped, inode = np.memmap(chunk, "<f8", "r+", shape=(64, 512)), chunk.stat().st_ino
        values = np.asarray(mapped)[:-1] if kind == "view" else mapped[:-1]
        array[1:] = Lazy(values) if kind == "lazy" else values
        data[1:] = data[:-1].copy()
        assert np.array_equal(array[...], data)
        assert (chunk.stat().st_ino == inode) == copied  # or a copy has taken its place

    @pytest.mark.needs("fcntl", OPEN_FILES)
    @pytest.mark.usefixtures("copied")
    @pytest.mark.parametrize("kind", ["array", "of another kind"])
    def test_the_memory_of_another_chunk(self, tmp_path, kind):
        """Nothing is taken from a chunk that was changed before, or that is changed as a whole."""
        array = create(tmp_path, (64,), (16,))
        array[...] = data = np.arange(64.0)
        chunks = [np.asarray(np.memmap(tmp_path / f"c/{k}", "<f8")) for k in range(4)]
        array[20:36] = chunks[1] if kind == "array" else Lazy(chunks[1])
        data[20:36] = data[16:32].copy()
        assert np.array_equal(array[...], data)
        rows = np.lib.stride_tricks.as_strided(chunks[0], (5, 8), (32, 8))  # overlapping ones
        array[4:44] = data[4:44] = np.array(rows).reshape(-1)
        values = Lazy(rows.reshape(-1)) if kind == "array" else rows.reshape(-1)
        array[12:52] = data[12:52] = values if kind == "array" else np.array(values)
        assert np.array_equal(array[...], data)

    @pytest.mark.needs("fcntl", OPEN_FILES)
    @pytest.mark.usefixtures("copied")
    def test_mapped_values_of_a_chunk_that_is_left_to_zarr(self, tmp_path):
        array = create(tmp_path, (64,), (16,))
        array[...] = data = np.arange(64.0)
        values = np.asarray(np.memmap(tmp_path / "c/0", "<f8"))
        (tmp_path / "c/1").rename(tmp_path / "elsewhere")
        (tmp_path / "c/1").symlink_to(tmp_path / "elsewhere")
        with zarr.config.set(IF_POSSIBLE):
            array[8:24] = values
        data[8:24] = np.arange(16.0)
        assert np.array_equal(array[...], data)

    @pytest.mark.needs("fcntl")
    def test_mapped_values_that_are_too_large_to_copy_are_written_by_zarr(
        self, tmp_path, set_constants
    ):
        """And refused if they must be written in place, before anything is written."""
        set_constants(MAPPED_COPY_BYTES=1 << 20)
        values = np.memmap(tmp_path / "values", "u1", "w+", shape=(1 << 10, 1 << 11))
        values[::5] = 3
        array = create(tmp_path / "a", values.shape, (1 << 9, 1 << 11), "u1")
        why = "the values take more than 1 MiB, and may be mapped from a file .write smaller parts"
        with pytest.raises(RuntimeError, match=f"c/0/0.*{why}"):
            array[:, 1:] = values[:, 1:]
        with pytest.raises(RuntimeError, match=f"c/1/0.*{why}"):
            array[:700] = values[:700]  # one of the chunks as a whole
        assert not (tmp_path / "a/c").exists()
        with zarr.config.set(IF_POSSIBLE), numcodecs_bytes.trace() as traced:
            array[:, 1:] = values[:, 1:]
        ((found, num),) = traced.report()["total"]["why_not_in_place"].items()
        assert re.match(why, found)
        assert num == 2
        assert np.array_equal(array[:, 1:], values[:, 1:])
        array[:, 2:500] = values[:, 2:500]  # less is copied
        array[:, 1:] = np.array(values[:, 1:]) + 1
        assert array[5, 1] == 4

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_bools_are_stored_as_0_or_1(self, tmp_path, zarr_format):
        """Whatever they are in memory, and whoever's the codec is."""
        array = create(tmp_path, (4,), dtype="?", zarr_format=zarr_format)
        array[1:3] = np.array([2, 255], "u1").view("?")
        assert (tmp_path / ("0" if zarr_format == 2 else "c/0")).read_bytes() == bytes([0, 1, 1, 0])


@pytest.mark.parametrize("settings", [{}, SHARDS], ids=["chunk", "shard"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_fill_values_alone_make_no_file(tmp_path, settings, is_empty):
    """Unless zarr is to write empty chunks."""
    config = {"write_empty_chunks": is_empty}
    array = create(tmp_path, fill_value=3.0, config=config, **settings)
    array[2, 1:3] = 3
    assert (tmp_path / "c/0/0").exists() == is_empty
    array[2, 1:3] = 4
    array[2, 1:3] = 3
    assert np.array_equal(array[...], np.full((8, 8), 3.0))


def make_hard_link(chunk):
    (chunk.parent.parent / "copy").hardlink_to(chunk)


def make_symbolic_link(chunk):
    chunk.rename(chunk.parent.parent / "elsewhere")
    chunk.symlink_to(chunk.parent.parent / "elsewhere")


class Subclass(zarr.storage.LocalStore):
    """What it does when it is written is not known."""


ZSTD, CRC = zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()
SHARDS_IN_SHARDS = zarr.codecs.ShardingCodec(
    chunk_shape=(4, 4), codecs=[zarr.codecs.ShardingCodec(chunk_shape=(2, 2))]
)
OTHERS = {  # what makes a store, settings, and why
    "subclass": (Subclass, {}, ".*Subclass is not zarr's LocalStore"),
    "wrapper": (
        lambda path: zarr.storage.LoggingStore(zarr.storage.LocalStore(path)),
        {},
        ".*LoggingStore is not zarr's LocalStore",
    ),
    "memory": (lambda _: zarr.storage.MemoryStore(), {}, ".*MemoryStore is not zarr's LocalStore"),
    "v2": (str, {"zarr_format": 2, "compressors": numcodecs.Zlib()}, "compressed .* by zlib"),
    "compressed in shards": (str, SHARDS | {"compressors": ZSTD}, "compressed .* by zstd"),
    "checked in shards": (str, SHARDS | {"compressors": CRC}, "compressed .* by crc"),
    "shards in shards": (str, {"serializer": SHARDS_IN_SHARDS}, "shards in shards"),
}


# A store that is not zarr's LocalStore is one reason; that files have no locks is another.
NO_LOCKS = "" if has("fcntl") else "|this system has no flock"


class TestNotInPlace:
    DATA = np.arange(64.0).reshape(8, 8)

    def check(self, store, why):
        """Write as required, which must raise, and as zarr does it."""
        why = f"({why}{NO_LOCKS})"
        expected = self.DATA.copy()
        expected[2, 1:] = -1
        array = zarr.open_array(store, mode="r+")
        error = pytest.raises(RuntimeError, match=f"^part of chunk .*: {why}")
        with zarr.config.set(REQUIRE), error:
            array[2, 1:] = -2
        assert np.array_equal(array[...], self.DATA)
        with zarr.config.set(IF_POSSIBLE), numcodecs_bytes.trace() as traced:
            array[2, 1:] = -1
        ((found, _),) = traced.report()["total"]["why_not_in_place"].items()
        assert re.match(why, found)
        assert np.array_equal(array[...], expected)

    @pytest.mark.parametrize("settings", [{}, SHARDS], ids=["chunk", "shard"])
    @pytest.mark.parametrize(
        ("link", "why"),
        [
            (make_hard_link, r"it has another name \(a hard link\), which keeps the old values if"),
            (make_symbolic_link, "it is a symbolic link, which zarr replaces by a file"),
        ],
    )
    def test_links(self, tmp_path, settings, link, why):
        """The other name keeps what it holds."""
        create(tmp_path / "a", **settings)[...] = self.DATA
        link(tmp_path / "a/c/0/0")
        (other,) = [p for p in (tmp_path / "a/c").iterdir() if p.is_file()]
        before = other.read_bytes()
        self.check(tmp_path / "a", why)
        assert other.read_bytes() == before

    @pytest.mark.needs("fcntl")
    def test_a_link_to_a_missing_file(self, tmp_path):
        """It was advised to let zarr replace it, by a chunk of fill values."""
        array = create(tmp_path / "a")
        array[...] = self.DATA
        make_symbolic_link(tmp_path / "a/c/0/0")
        (tmp_path / "a/c/elsewhere").unlink()
        why = r"it is a symbolic link to a missing file: restore that first \(numcodecs_bytes.write"
        with zarr.config.set(REQUIRE), pytest.raises(RuntimeError, match=why):
            array[2, 1:] = -2
        assert (tmp_path / "a/c/0/0").is_symlink()

    @pytest.mark.parametrize("name", OTHERS)
    def test_other_stores_and_codecs(self, tmp_path, name):
        make, settings, why = OTHERS[name]
        store = make(tmp_path)
        create(store, **settings)[...] = self.DATA
        self.check(store, why)

    @pytest.mark.parametrize("name", OTHERS)
    def test_chunks_that_zarr_would_delete(self, tmp_path, name):
        """They hold nothing but the fill value once part of them is written."""
        make, settings, why = OTHERS[name]
        array = create(make(tmp_path), **settings)
        array[...] = np.eye(8, k=7)
        with zarr.config.set(REQUIRE), pytest.raises(RuntimeError, match=why + NO_LOCKS):
            array[0, 7] = 0
        assert array[0, 7] == 1
        array[...] = 0  # all of it

    def test_a_setter_of_one_s_own(self, tmp_path):
        """It needs neither a path nor a store: AttributeError, instead of zarr's write."""

        class Setter:
            raw = None

            async def get(self, prototype, byte_range=None):
                return self.raw

            async def set(self, value):
                self.raw = value

        array, setter, prototype = (
            create(tmp_path).async_array,
            Setter(),
            default_buffer_prototype(),
        )
        settings = array.metadata.fill_value, ArrayConfig("C", write_empty_chunks=True), prototype
        spec = ArraySpec((8, 8), array.metadata.dtype, *settings)
        item = setter, spec, np.s_[2:3, 1:8], np.s_[0:1, 0:7], False
        values = prototype.nd_buffer.from_numpy_array(np.ones((1, 7)))
        why = f"is not a StorePath{NO_LOCKS}"
        error = pytest.raises(RuntimeError, match=f"^part of a chunk .*({why})")
        with zarr.config.set(REQUIRE), error:
            asyncio.run(array.codec_pipeline.write([item], values))
        with zarr.config.set(IF_POSSIBLE), numcodecs_bytes.trace() as traced:
            asyncio.run(array.codec_pipeline.write([item], values))
        assert np.frombuffer(setter.raw.to_bytes(), "<f8").sum() == 7
        assert re.search(why, str(traced))

    @pytest.mark.needs("fcntl")
    def test_a_link_is_found_without_listing_its_folder(self, tmp_path, monkeypatch):
        """Each chunk of a copy took 9.5 ms in a folder of 10,000."""
        array = create(tmp_path / "a")
        array[...] = self.DATA
        make_hard_link(tmp_path / "a/c/0/0")
        copy = tmp_path / "a/c/copy"
        before = copy.read_bytes()

        def refuse(_path):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "listdir", refuse)
        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(RuntimeError, match=r"it has another name \(a hard link\)"):
            array[2, 1:] = 1
        with zarr.config.set(IF_POSSIBLE):
            array[2, 1:] = 1
        assert array[2, 1:].tolist() == [1] * 7
        assert copy.read_bytes() == before

    def test_a_read_only_store(self, tmp_path):
        create(tmp_path)[...] = self.DATA
        array = zarr.open_array(zarr.storage.LocalStore(tmp_path, read_only=True), mode="r")
        for mode, why in (
            (IF_POSSIBLE, "read-only mode"),
            (REQUIRE, f"the store is read-only{NO_LOCKS}"),
        ):
            with zarr.config.set(mode), pytest.raises((ValueError, RuntimeError), match=why):
                array[2, 1:] = 1
        assert np.array_equal(array[...], self.DATA)

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("size", [0, 511, 513])
    def test_a_file_of_the_wrong_length_is_an_error_and_stays(self, tmp_path, size):
        create(tmp_path)[...] = self.DATA
        raw = bytes(range(256)) * 3
        (tmp_path / "c/0/0").write_bytes(raw[:size])
        array = zarr.open_array(tmp_path, mode="r+")
        for mode in (IF_POSSIBLE, REQUIRE):
            with zarr.config.set(mode), pytest.raises(ValueError, match=f"c/0/0.*{size}.*512"):
                array[2, 1:] = 1
        assert (tmp_path / "c/0/0").read_bytes() == raw[:size]

    @pytest.mark.parametrize(
        "settings", [{}, {"compressors": ZSTD}, SHARDS | {"compressors": ZSTD}], ids=str
    )
    def test_whole_chunks_are_written_by_zarr_also_if_required(self, tmp_path, settings):
        """A linked one, which keeps its copy, and a damaged one."""
        array = create(tmp_path / "a", (7, 8), **{"chunks": (4, 4), **settings})
        array[:] = 1
        make_hard_link(next(p for p in (tmp_path / "a/c").rglob("0/0") if p.is_file()))
        (tmp_path / "a/c/0/1").write_bytes(b"damaged")
        array[:] = 2
        assert (array[...] == 2).all()
        raw = np.frombuffer((tmp_path / "a/c/copy").read_bytes()[:8])
        assert settings or raw.tolist() == [1]


class NamedLikeAReason(zarr.storage.LocalStore):
    """A store whose name has words of reasons."""


NamedLikeAReason.__module__ = "compressed.read-only.restore the shard, or remove it"
ZLIB, DELTA = numcodecs.Zlib(), numcodecs.Delta("<f8")
V2 = {"zarr_format": 2}
COMPRESSED = {
    "zstd": {"compressors": ZSTD},
    "zstd in shards": SHARDS | {"compressors": ZSTD},
    "Zarr v2": V2 | {"compressors": ZLIB},
}
LEFT = {  # that zarr can write, however the array is compressed
    "a store": (NamedLikeAReason, {}),
    "a filter": (str, V2 | {"filters": [DELTA]}),
    "a filter and a compressor": (str, V2 | {"filters": [DELTA], "compressors": ZLIB}),
    "shards in shards": (str, {"serializer": SHARDS_IN_SHARDS}),
}


@pytest.mark.needs("fcntl")
class TestAdvice:
    """It was given by the words in a reason, such as the name of a store."""

    IF_TRUE = (
        "set the option to True to let zarr write the chunk, if nothing else writes to it meanwhile"
    )

    @staticmethod
    def refused(array):
        """Return what a write to part of a chunk is told, but that the option is "require"."""
        with zarr.config.set(REQUIRE), pytest.raises(RuntimeError, match="in place") as caught:
            array[2, 1:] = 1
        said, bracket, end = str(caught.value).rpartition(" (")
        (key,) = REQUIRE
        assert bracket + end == f" ({key} is 'require', set in this program by zarr.config.set)"
        return said

    @pytest.mark.parametrize("settings", COMPRESSED.values(), ids=COMPRESSED)
    def test_for_a_compressed_array(self, tmp_path, settings):
        said = self.refused(create(tmp_path / "a", **settings))
        assert said.endswith(f"; create the array with compressors=None, or {self.IF_TRUE}")
        array = create(tmp_path / "b", **settings | {"compressors": None})
        with zarr.config.set(REQUIRE):
            array[2, 1:] = 1

    @pytest.mark.parametrize("name", LEFT)
    def test_for_what_zarr_can_write(self, tmp_path, name):
        make, settings = LEFT[name]
        array = create(make(tmp_path), **settings)
        said = self.refused(array)
        assert said.endswith(f"; {self.IF_TRUE}")
        assert "compressors" not in said
        with zarr.config.set(IF_POSSIBLE):
            array[2, 1:] = 1
        assert array[2, 1] == 1

    def test_for_a_damaged_shard(self, tmp_path):
        create(tmp_path, **SHARDS)[...] = 1
        chunk = tmp_path / "c/0/0"
        for damage in (
            lambda: os.truncate(chunk, chunk.stat().st_size - 1),
            lambda: os.truncate(chunk, 5),
        ):
            damage()
            said = self.refused(zarr.open_array(tmp_path))
            assert "restore it; if the metadata state a wrong data type, inner chunk" in said

    def test_for_what_is_read_only(self, tmp_path, monkeypatch):
        """zarr can't write there either."""
        create(tmp_path)[...] = 1
        protected = zarr.storage.LocalStore(tmp_path, read_only=True)
        for store in (tmp_path, protected, NamedLikeAReason(tmp_path)):
            said = self.refused(zarr.open_array(store, mode="r"))
            remedy = 'open the array or group with mode="r+", and pass no read-only store'
            assert said.endswith(f"the store is read-only; {remedy}")
        array = zarr.open_array(tmp_path, mode="r+")
        with zarr.config.set(REQUIRE):
            array[2, 1:] = 1

        def refuse(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "open", refuse)
        for number in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            said = self.refused(array)
            assert said.endswith(f"opened for writing ({os.strerror(number)})")

    def test_for_a_file_that_is_protected(self, tmp_path, monkeypatch):
        """zarr would replace it by one that is not: True lost the protection."""
        create(tmp_path)[...] = 1

        def refuse(*_):
            raise PermissionError(errno.EACCES, "Permission denied")

        array = zarr.open_array(tmp_path)
        monkeypatch.setattr(os, "open", refuse)
        remedy = "if the array may change, get permission to read and write its files and folders"
        assert self.refused(array).endswith(f"opened for writing (Permission denied); {remedy}")


@pytest.mark.needs("fcntl")
def test_values_of_the_wrong_shape(tmp_path):
    """NumPy's message speaks of remapped shapes."""
    array = create(tmp_path, chunks=(8, 4))
    array[...] = 1
    said = r"can't write values of shape \(2, 4\) to a selection of shape \(3, 4\) in a chunk"
    said += r" \(all values have shape \(2, 8\)\); pass a single value, or values of the shape of"
    with zarr.config.set(REQUIRE), pytest.raises(ValueError, match=said):
        array[:3] = np.ones((2, 8))
    assert (array[...] == 1).all()


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("exists", [False, True], ids=["new", "exists"])
def test_a_full_disk(tmp_path, monkeypatch, exists):
    """Of the selected elements, some may be new; all others are as before."""
    array, pwrite, num_left = create(tmp_path, fill_value=1), os.pwrite, [2]
    if exists:
        array[...] = np.ones((8, 8)) + np.eye(8)

    def write(*args):
        num_left[0] -= 1
        if num_left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(*args)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(OSError, match="No space") as caught:
        array[:, 3] = 5
    assert "while writing chunk 'c/0/0'" in caught.value.__notes__[0]
    assert array[...].sum() == (64 + 8 + 2 * 4 if exists else 64)
    sizes = [path.stat().st_size for path in tmp_path.rglob("c/0/*")]
    assert sizes == [512] * exists


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("settings", [{}, SHARDS], ids=["chunk", "shard"])
@pytest.mark.parametrize("exists", [False, True], ids=["new", "exists"])
def test_a_file_system_with_sequential_writes_only(tmp_path, monkeypatch, settings, exists):
    """zarr can write there: OSError. As it is refused before anything changes, no value is lost."""
    array, pwrite, ends = create(tmp_path, fill_value=1, **settings), os.pwrite, {}
    if exists:
        array[...] = 2
    others = 2 if exists else 1

    def write(descriptor, raw, position):
        # The length of a new file is set first.
        if position != ends.get(descriptor, 0 if position == 0 else None):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        ends[descriptor] = position + len(raw)
        return pwrite(descriptor, raw, position)

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(OSError, match="not supported"):
        array[:, 3] = 5
    assert (array[...] == others).all()
    ends.clear()
    with zarr.config.set(IF_POSSIBLE), numcodecs_bytes.trace() as traced:
        array[:, 3] = 5
    assert (array[...] == np.where(np.arange(8) == 3, 5, others)).all()
    assert "not supported" in str(traced)
    assert [path.name for path in tmp_path.rglob("c/0/*")] == ["0"]


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("selection", [np.s_[:, 3], ...], ids=["part", "whole"])
def test_a_file_system_that_writes_nothing(tmp_path, monkeypatch, selection):
    """The write tried again for ever, and held the lock."""
    array, num_calls = create(tmp_path), 0

    def write(*_):
        nonlocal num_calls
        num_calls += 1
        assert num_calls < 1000
        return 0

    monkeypatch.setattr(os, "pwrite", write)
    if selection is not ...:  # zarr writes whole chunks that can't be written here
        with pytest.raises(OSError, match="writes nothing at byte 24 of a file"):
            array[selection] = 5
    with zarr.config.set(IF_POSSIBLE):
        array[selection] = 5
    assert (array[selection] == 5).all()
