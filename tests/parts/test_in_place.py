"""Written in place: as zarr stores it, only the selected bytes, and nothing of others is lost."""

import asyncio
import contextlib
import errno
import fcntl
import functools
import mmap
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    DTYPES,
    EVERYTHING,
    HAS_STRUCT,
    OUR_PIPELINES,
    PIPELINES,
    ZARRS_PIPELINE,
    random_array,
    random_selections,
    run_program,
    run_python,
    set_costs,
    start_program,
)
from zarr.codecs import TransposeCodec

import numcodecs_bytes
from numcodecs_bytes._parts import locks
from numcodecs_bytes._parts.in_place import write_to_files
from numcodecs_bytes._parts.values import may_be_mapped
from numcodecs_bytes.zarr import BytesCodec, _warn_not_in_place

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 spec", "ignore:.*structured dtype"
)
ZARR_ALONE = {"codec_pipeline.path": ZARRS_PIPELINE}
IN_PLACE = {"numcodecs_bytes.write_in_place": "require"}


@pytest.fixture(params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def required(request):
    """Write in place, or raise."""
    with zarr.config.set({"codec_pipeline.path": request.param, **IN_PLACE}):
        yield


def create(path, shape=(8, 8), chunks=None, dtype="f8", **settings):
    settings = {"compressors": None, "filters": None, **settings}
    return zarr.create_array(
        path, shape=shape, chunks=chunks or shape, dtype=dtype, overwrite=True, **settings
    )


def random_settings(rng, chunks, dtype):
    num_axes, way = len(chunks), rng.choice(["ours", "zarr's", "transposed", "v2", "v2 bytes"])
    endian = rng.choice(["little", "big"])
    settings = {"config": {"write_empty_chunks": rng.random() < 0.5}}
    if way.startswith("v2"):
        codec = numcodecs_bytes.Bytes(endian, dtype)
        filters = [codec] if way == "v2 bytes" else None
        return settings | {"zarr_format": 2, "order": rng.choice("CF"), "filters": filters}
    codec = zarr.codecs.BytesCodec if way == "zarr's" else BytesCodec
    settings["serializer"] = codec(endian=endian)
    if way == "transposed":
        order = tuple(rng.sample(range(num_axes), num_axes))
        settings["filters"] = [TransposeCodec(order=order)]
    if rng.random() < 0.5 and (HAS_STRUCT or dtype.kind != "V"):
        shape = tuple(n * rng.randint(1, 3) for n in chunks)
        location = rng.choice(["start", "end"])
        settings["shards"] = {"shape": shape, "index_location": location}
    return settings


def assign(array, way, selection, values):
    (array if way == "basic" else getattr(array, way))[selection] = values


def each(arrays):
    """Yield arrays; the first one is written as by zarr alone."""
    with zarr.config.set({"numcodecs_bytes.write_in_place": False}):
        yield arrays[0]
    yield from arrays[1:]


def random_selection(rng, array, shape):
    selections = list(random_selections(rng, shape, 1))
    if array.shards and not HAS_STRUCT:  # zarr 3.1.6 can't write others to shards
        selections = [each for each in selections if each[0] == "basic"]
    return rng.choice(selections)


def apply(rng, arrays, shape, dtype):
    """Change all arrays in the same way; return their shape."""
    kind = rng.choice(["write"] * 8 + ["scalar"] * 3 + ["delete", "resize", "append"])
    if kind == "delete":
        files = [p for p in arrays[0].store.root.rglob("*") if p.is_file() and "z" not in p.name]
        for path in rng.sample(sorted(files), min(1, len(files))):
            for array in arrays:
                (array.store.root / path.relative_to(arrays[0].store.root)).unlink(missing_ok=True)
    elif kind == "resize":
        shape = tuple(rng.randint(1, 9) for _ in shape)
        for array in each(arrays):
            array.resize(shape)
    elif kind == "append":
        more = random_array(dtype, (2, *shape[1:]))
        for array in each(arrays):
            array.append(more)
        shape = arrays[0].shape
    else:
        way, selection, of_numpy = random_selection(rng, arrays[0], shape)
        like = np.shape(of_numpy(np.empty(shape, dtype)))
        values = random_array(dtype, (1,))[0] if kind == "scalar" else random_array(dtype, like)
        if rng.random() < 0.2:
            values = arrays[0].fill_value
        for array in each(arrays):
            assign(array, way, selection, values)
    return shape


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("seed", range(100 if EVERYTHING else 30))
def test_the_same_as_zarr_stores(tmp_path, seed, monkeypatch):
    """Random arrays, writes, deletes and resizes, compared after each step."""
    rng = random.Random(seed)  # noqa: S311
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
    chunks = tuple(rng.randint(1, n) for n in shape)
    dtype = np.dtype(rng.choice(DTYPES + [[("a", ">i4"), ("b", "<f8"), ("c", "?")]] * HAS_STRUCT))
    set_costs(
        monkeypatch,
        write_to_files,
        pieces_per_block=rng.choice([0, 2, 32]),
        block_bytes=rng.choice([16, 64, 1 << 18]),
        piece_memory=rng.choice([0, 5, 128]),
        dense_bytes=rng.choice([0, 20, 256]),
        memory_bytes=rng.choice([8, 64, 1 << 23]),
        slow_piece_seconds=rng.choice([0, 1e-5]),
        slow_seconds=rng.choice([-1, 1e-3]),
        small_bytes=rng.choice([0, 100, 1 << 20]),
        most=rng.choice([0, 4]),
        num_pieces_timed=rng.choice([1, 8]),
    )
    if rng.random() < 0.3:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    settings = random_settings(rng, chunks, dtype)
    if rng.random() < 0.5 and dtype.kind in "fiu":
        settings["fill_value"] = rng.choice([0, 1, 7]) if dtype.kind != "f" else -0.0
    with zarr.config.set(ZARR_ALONE | {"numcodecs_bytes.write_in_place": False}):
        alone = create(tmp_path / "alone", shape, chunks, dtype, **settings)
    ours = create(tmp_path / "ours", shape, chunks, dtype, **settings)
    for _ in range(12):
        shape = apply(rng, (alone, ours), shape, dtype)
        np.testing.assert_array_equal(ours[...], alone[...])
        if "shards" in settings:  # ours have all inner chunks
            with zarr.config.set(ZARR_ALONE):
                found = zarr.open_array(tmp_path / "ours", mode="r")
                np.testing.assert_array_equal(found[...], alone[...])
            continue
        for path in (p for p in alone.store.root.rglob("*") if p.is_file() and "z" not in p.name):
            other = ours.store.root / path.relative_to(alone.store.root)
            assert other.read_bytes() == path.read_bytes()


WITHOUT_THE_PACKAGE = """
import importlib.metadata, pathlib, sys
every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **context: (
    d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
)
import numpy as np, zarr
num = 0
for path in pathlib.Path(sys.argv[1]).iterdir():
    expected = np.load(path / "expected.npy")
    found = zarr.open_array(path / "a", mode="r")
    assert "numcodecs_bytes" not in str(getattr(found.metadata, "codecs", "")), found
    np.testing.assert_array_equal(found[...], expected, err_msg=str(path))
    num += 1
print(num)
"""


@pytest.mark.usefixtures("required")
def test_zarr_reads_it_in_a_process_without_this_package(tmp_path):
    num = 0
    for seed in range(40):
        rng = random.Random(seed)  # noqa: S311
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
        chunks = tuple(rng.randint(1, n) for n in shape)
        dtype = np.dtype(rng.choice([d for d in DTYPES if np.dtype(d).kind in "biufc"]))
        settings = random_settings(rng, chunks, dtype)
        if settings.get("filters") and settings.get("zarr_format") == 2:
            continue  # zarr alone has no such filter
        num += 1
        array = create(tmp_path / str(seed) / "a", shape, chunks, dtype, **settings)
        for _ in range(6):
            shape = apply(rng, (array, array), shape, dtype)
        np.save(tmp_path / str(seed) / "expected.npy", array[...])
    assert run_program("-c", WITHOUT_THE_PACKAGE, tmp_path).stdout == f"{num}\n"


def test_one_warning_without_the_pipeline(tmp_path):
    _warn_not_in_place.cache_clear()
    with zarr.config.set(ZARR_ALONE | {"numcodecs_bytes.write_in_place": True}):
        create(tmp_path)
        array = zarr.open_array(tmp_path, mode="r+")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            array[1, 1:] = 1
            array[2, 1:] = 1
    (warning,) = caught
    assert "with a codec pipeline that writes whole chunks" in str(warning.message)
    assert array[...].sum() == 14


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


def num_descriptors():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


class Recorded(list):
    """Every write and every read of `os`, with the lock that is held."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.lock = None
        pwrite, preadv, flock = os.pwrite, os.preadv, fcntl.flock

        def lock(descriptor, how):
            flock(descriptor, how)
            names = {fcntl.LOCK_SH: "shared", fcntl.LOCK_EX: "exclusive"}
            self.lock = names.get(how & ~fcntl.LOCK_NB)

        def write(descriptor, view, position):
            self.append(("write", self.lock, position, bytes(view)))
            return pwrite(descriptor, view, position)

        def read(descriptor, views, position, *flags):
            self.append(("read", self.lock, position, sum(map(len, views))))
            return preadv(descriptor, views, position, *flags)

        monkeypatch.setattr(fcntl, "flock", lock)
        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(os, "preadv", read)


@pytest.mark.usefixtures("required")
class TestBytes:
    def test_only_the_selected_ones(self, tmp_path, monkeypatch):
        array = create(tmp_path, serializer=BytesCodec(endian="big"))
        array[...] = 2
        calls = Recorded(monkeypatch)
        array[3, 2:4] = 1
        one = np.array(1, ">f8").tobytes()
        assert calls == [("write", "shared", (3 * 8 + 2) * 8, one + one)]
        calls.clear()
        array[:, 5] = 1
        assert calls == [("write", "shared", (k * 8 + 5) * 8, one) for k in range(8)]
        calls.clear()
        array.vindex[[7, 0, 7], [1, 2, 1]] = [4, 5, 6]
        assert {position for *_, position, _ in calls} == {2 * 8, 57 * 8}
        assert array[7, 1] == 6  # the last one wins

    def test_blocks_are_read_and_written_under_the_exclusive_lock(self, tmp_path, monkeypatch):
        set_costs(monkeypatch, write_to_files, pieces_per_block=2, block_bytes=256)
        array = create(tmp_path)
        array[...] = data = np.arange(64.0).reshape(8, 8)
        calls = Recorded(monkeypatch)
        array[:, ::2] = -1
        assert {lock for _, lock, *_ in calls} == {"exclusive"}
        assert [kind for kind, *_ in calls] == ["read", "write"] * 2
        data[:, ::2] = -1
        assert np.array_equal(array[...], data)

    def test_a_whole_chunk_is_zarr_s(self, tmp_path, monkeypatch):
        array = create(tmp_path, (8, 8), (4, 4))
        array[...] = 3
        inodes = {p: p.stat().st_ino for p in tmp_path.rglob("c/*/*")}
        calls = Recorded(monkeypatch)
        array[:4] = 1
        assert not calls
        changed = [p for p, inode in inodes.items() if p.stat().st_ino != inode]
        assert sorted(map(str, changed)) == [f"{tmp_path}/c/0/{k}" for k in range(2)]

    def test_no_descriptor_is_left_open(self, tmp_path):
        array = create(tmp_path)
        before = num_descriptors()
        for k in range(8):
            array[k, 1:] = k
        assert num_descriptors() <= before


@pytest.mark.usefixtures("required")
class TestValues:
    @pytest.mark.parametrize("kind", ["memmap", "matrix", "masked"])
    def test_subclasses_of_arrays(self, tmp_path, kind):
        array = create(tmp_path / "a")
        array[...] = 1
        values = np.arange(14.0).reshape(2, 7)
        if kind == "memmap":
            np.save(tmp_path / "values.npy", values)
            array[2:4, 1:] = np.load(tmp_path / "values.npy", mmap_mode="r")
        elif kind == "matrix":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", PendingDeprecationWarning)
                array[2:4, 1:] = np.asmatrix(values)
        else:
            array[2:4, 1:] = np.ma.masked_array(values, values > 3)
        assert np.array_equal(array[2:4, 1:], values)

    def test_a_view_of_a_chunk_of_the_same_array(self, tmp_path):
        array = create(tmp_path, (16,), (8,))
        array[...] = data = np.arange(16.0)
        mapped = np.asarray(np.memmap(tmp_path / "c/0", "<f8"))
        array[4:12] = mapped
        data[4:12] = data[:8].copy()
        assert np.array_equal(array[...], data)

    @pytest.mark.parametrize("how", ["memmap", "buffer"])
    def test_a_view_of_the_chunk_that_is_written(self, tmp_path, how):
        """Rows that are moved down are those from before, not those that were just written."""
        array = create(tmp_path, (64, 512), (64, 512))
        array[...] = data = np.arange(64 * 512.0).reshape(64, 512)
        mapped = np.asarray(np.memmap(tmp_path / "c/0/0", "<f8", "r+", shape=(64, 512)))
        if how == "buffer":
            mapped = np.frombuffer(memoryview(mapped), "<f8").reshape(64, 512)
        array[1:] = mapped[:-1]
        data[1:] = data[:-1].copy()
        assert np.array_equal(array[...], data)

    def test_values_that_fit_are_not_copied(self, tmp_path, track):
        """A large part of a chunk takes no memory beside the values."""
        array = create(tmp_path, (512, 1024), (512, 1024))
        array[...] = 2
        values = np.ones((511, 1024))
        peak, _ = track(lambda: array.__setitem__(slice(1, None), values))
        assert peak < values.nbytes / 4
        assert np.array_equal(array[1:], values)

    @pytest.mark.parametrize("name", ["DataArray", "Variable", "Index", "Series", "lazy"])
    def test_what_zarr_takes_as_an_array(self, tmp_path, name):
        """As zarr alone stores it; and only a part of the chunk is written."""
        data = np.arange(6.0)
        if name in ("Index", "Series"):
            pandas = pytest.importorskip("pandas")
            if name == "Series" and HAS_STRUCT:
                pytest.skip("this zarr does not take it")
            values = getattr(pandas, name)(data)
        elif name == "lazy":
            values = Lazy(data)
        else:
            values = getattr(pytest.importorskip("xarray"), name)(data=data, dims="x")
        array = create(tmp_path, (8,))
        array[:] = -1
        with numcodecs_bytes.trace() as traced:
            array[1:7] = values
        assert array[:].tolist() == [-1, *data, -1]
        assert traced.report()["total"]["bytes_in_place"] == 6 * 8

    @pytest.mark.parametrize("way", ["oindex", "vindex"])
    @pytest.mark.parametrize("indices", [[1, 6, 2], [1, 2, 6]], ids=str)
    def test_arrays_of_others_by_index(self, tmp_path, way, indices):
        xarray = pytest.importorskip("xarray")
        array = create(tmp_path, (8,), (4,))
        getattr(array, way)[indices] = xarray.Variable("x", np.arange(3.0) + 1)
        expected = np.zeros(8)
        expected[indices] = [1, 2, 3]
        assert array[:].tolist() == expected.tolist()

    @pytest.mark.parametrize("is_small", [True, False])
    @pytest.mark.parametrize("kind", ["array", "of another kind"])
    def test_values_that_are_the_memory_of_chunks(self, tmp_path, monkeypatch, is_small, kind):
        """They are copied to memory or, if they are many, to a file without a name."""
        set_costs(monkeypatch, write_to_files, memory_bytes=1 << 20 if is_small else 0)
        array = create(tmp_path, (64,), (16,))
        array[...] = data = np.arange(64.0)
        chunks = [np.asarray(np.memmap(tmp_path / f"c/{k}", "<f8")) for k in range(4)]
        values = chunks[1] if kind == "array" else Lazy(chunks[1])
        array[20:36] = values  # the end of its own chunk, and the beginning of the next one
        data[20:36] = data[16:32].copy()
        assert np.array_equal(array[...], data)
        assert np.array_equal(chunks[1], data[16:32])  # which was changed in place
        names = [p.name for p in tmp_path.rglob("*") if ".fuse_hidden" not in p.name]
        assert sorted(names) == [*"0123", "c", "zarr.json"]

    @pytest.mark.parametrize("kind", ["array", "of another kind"])
    @pytest.mark.parametrize("is_small", [True, False])
    def test_values_of_whole_chunks_that_are_the_memory_of_a_part(
        self, tmp_path, monkeypatch, kind, is_small
    ):
        """Whole chunks get what was there before parts are changed."""
        set_costs(monkeypatch, write_to_files, memory_bytes=1 << 20 if is_small else 0)
        array = create(tmp_path, (4, 8), (2, 8))
        array[...] = np.arange(32.0).reshape(4, 8)
        first = np.asarray(np.memmap(tmp_path / "c/0/0", "<f8"))
        values = np.lib.stride_tricks.as_strided(first, (3, 8), (32, 8))  # overlapping rows
        expected = values.copy()
        array[1:] = values if kind == "array" else Lazy(values)
        assert np.array_equal(array[1:], expected)

    @pytest.mark.parametrize("way", ["oindex", "vindex"])
    def test_values_of_another_kind_that_are_indexed_by_arrays(self, tmp_path, monkeypatch, way):
        """Their copies are made before the first chunk is changed."""
        set_costs(monkeypatch, write_to_files, memory_bytes=0)
        array = create(tmp_path, (64,), (16,))
        array[...] = data = np.arange(64.0)
        values = Lazy(np.asarray(np.memmap(tmp_path / "c/0", "<f8")))
        places = np.random.default_rng(0).permutation(64)[:16]
        getattr(array, way)[places] = values
        data[places] = np.arange(16.0)
        assert np.array_equal(array[...], data)

    def test_values_of_a_chunk_that_is_left_to_zarr(self, tmp_path, monkeypatch):
        """They are those from before, too."""
        set_costs(monkeypatch, write_to_files, memory_bytes=0)
        array = create(tmp_path, (64,), (16,))
        array[...] = data = np.arange(64.0)
        values = np.asarray(np.memmap(tmp_path / "c/0", "<f8"))
        (tmp_path / "c/1").rename(tmp_path / "elsewhere")
        (tmp_path / "c/1").symlink_to(tmp_path / "elsewhere")
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            array[8:24] = values
        data[8:24] = np.arange(16.0)
        assert np.array_equal(array[...], data)

    @pytest.mark.parametrize("dtype", ["u1", "f8", [("a", "u1"), ("t", "f4")]], ids=str)
    def test_mapped_values_in_any_layout(self, tmp_path, monkeypatch, dtype):
        if isinstance(dtype, list) and not HAS_STRUCT:
            pytest.skip("this zarr writes no structures of Zarr v3 in place")
        set_costs(monkeypatch, write_to_files, memory_bytes=0)
        np.random.default_rng(0).integers(0, 100, 64 * 40, "u1").tofile(tmp_path / "values")
        mapped = np.memmap(tmp_path / "values", dtype, "r")[:64].reshape(8, 8)
        array = create(tmp_path / "a", dtype=dtype)
        for values in (
            mapped[:7, ::-1],
            mapped.T[:7],
            mapped[::-1][:7],
            np.broadcast_to(mapped[:, 0], (7, 8)),
            np.broadcast_to(mapped[:7, :1], (7, 8)),
        ):
            array[...] = np.ones((), dtype)
            array[1:] = values
            assert np.array_equal(array[1:], values)
        if isinstance(dtype, list):
            floats = create(tmp_path / "b", dtype="f4")
            floats[...] = 1
            floats[1:] = mapped["t"][:7]
            assert np.array_equal(floats[1:], mapped["t"][:7])

    def test_values_for_new_chunks_are_not_copied(self, tmp_path, monkeypatch):
        """None of them can be their memory."""
        np.save(tmp_path / "values.npy", np.arange(64.0))
        values = np.load(tmp_path / "values.npy", mmap_mode="r")
        array = create(tmp_path / "a", (64,), (16,))
        set_costs(monkeypatch, write_to_files, memory_bytes=0)
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
        array[1:63] = values[:62]
        assert np.array_equal(array[1:63], values[:62])

    def test_values_of_another_kind_are_read_by_one_thread(self, tmp_path, monkeypatch):
        """And once: their file may have one position, and to compute them may take long."""
        set_costs(monkeypatch, write_to_files, slow_seconds=-1)
        reading, most, num = [], [0], [0]

        class Slow(Lazy):
            def __getitem__(self, key):
                reading.append(key)
                most[0] = max(most[0], len(reading))
                num[0] += 1
                time.sleep(0.005)
                reading.pop()
                return self._data[key]

        array = create(tmp_path, (160,), (16,))
        array[...] = 1
        array[::2] = Slow(np.arange(80.0))
        assert most == [1]
        assert num == [10]
        assert np.array_equal(array[::2], np.arange(80.0))

    def test_values_that_can_not_be_copied(self, tmp_path, monkeypatch):
        """Nothing is changed if that is required; otherwise, zarr writes them."""
        set_costs(monkeypatch, write_to_files, memory_bytes=0)
        array = create(tmp_path, (64,), (16,))
        array[...] = data = np.arange(64.0)
        values = np.asarray(np.memmap(tmp_path / "c/0", "<f8"))
        full = functools.partial(fail, OSError(errno.ENOSPC, "No space left on device"))
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(RuntimeError, match="can't be copied.*No space left"):
            array[8:24] = values
        assert np.array_equal(array[...], data)
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            array[8:24] = values
        data[8:24] = np.arange(16.0)
        assert np.array_equal(array[...], data)

    def test_values_without_a_dropped_axis(self, tmp_path):
        """Whose own indexing knows no new axes."""
        xarray = pytest.importorskip("xarray")
        array = create(tmp_path, (8, 8), (4, 4))
        array.oindex[3, [1, 6, 2]] = xarray.DataArray(np.arange(3.0) + 1, dims="x")
        assert array[3].tolist() == [0, 1, 3, 0, 0, 0, 2, 0]

    def test_nothing_is_selected(self, tmp_path):
        array = create(tmp_path)
        array[...] = 1
        array[3:3, 1] = 5
        array[3:2, 1] = 5
        array.oindex[np.zeros(8, bool), 1] = 5
        array.vindex[np.array([], int), np.array([], int)] = 5
        assert array[...].sum() == 64

    def test_values_of_a_file_are_not_copied(self, tmp_path, track):
        """Neither for whole chunks, nor for parts of them if they are large."""
        np.save(tmp_path / "values.npy", np.ones((512, 1024)))
        values = np.load(tmp_path / "values.npy", mmap_mode="r")
        array = create(tmp_path / "a", (512, 1024), (16, 1024))
        peak, _ = track(lambda: array.__setitem__(slice(None), values))
        assert peak < values.nbytes / 2  # some chunks at a time
        assert (array[...] == 1).all()

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (np.ones(3), False),
            (np.broadcast_to(np.ones(3), (2, 3)), False),
            (pickle.loads(pickle.dumps(np.ones(3), 5)), False),  # noqa: S301
            (np.frombuffer(bytes(8)), False),
            (np.frombuffer(bytearray(8)), False),
            (np.frombuffer(mmap.mmap(-1, 8)), True),
            (np.frombuffer(memoryview(mmap.mmap(-1, 8)))[::1], True),
        ],
        ids=["own", "broadcast", "unpickled", "bytes", "bytearray", "mapped", "a view of it"],
    )
    def test_whose_memory_it_is(self, values, expected):
        assert may_be_mapped(values) == expected

    def test_bools_are_what_the_codec_makes_of_them(self, tmp_path):
        dtype = np.dtype([("a", "u1"), ("c", "?")])
        values = np.array([[1, 2], [2, 3]], "u1").view(dtype)[:, 0]
        array = create(tmp_path, (4,), dtype=dtype, zarr_format=2)
        array[1:3] = values
        raw = (tmp_path / "0").read_bytes()
        with zarr.config.set({"numcodecs_bytes.write_in_place": False}):
            create(tmp_path, (4,), dtype=dtype, zarr_format=2)[1:3] = values
        assert (tmp_path / "0").read_bytes() == raw == bytes([0, 0, 1, 2, 2, 3, 0, 0])

    def test_too_many_for_an_element(self, tmp_path):
        array = create(tmp_path)
        array[1, 1:] = 1
        with pytest.raises((TypeError, ValueError)):
            array[1, 2] = np.array([1.0, 2.0])

    @pytest.mark.parametrize(
        "selection",
        [np.s_[:, ::2], np.s_[:, :-1:3], (np.arange(0, 4096, 2),), (np.arange(4096) % 2 == 0,)],
        ids=["columns", "every third", "rows", "mask of rows"],
    )
    def test_memory_follows_the_selection(self, tmp_path, track, selection):
        array = create(tmp_path, (4096, 4096), dtype="u1")
        array[...] = 1
        values = np.full(np.empty((4096, 4096), "u1")[selection].shape, 2, "u1")
        peak, _ = track(lambda: array.oindex.__setitem__(selection, values))
        assert peak < 4 * values.nbytes
        expected = np.ones((4096, 4096), "u1")
        expected[selection] = 2
        assert np.array_equal(array[...], expected)

    @pytest.mark.parametrize("way", ["oindex", "vindex"])
    def test_some_indices_of_a_long_axis(self, tmp_path, track, way):
        """Nothing is allocated for each index of the axis."""
        array = create(tmp_path, (1 << 24,), dtype="u1")
        array[1:3] = 1
        last = (1 << 24) - 1
        peak, _ = track(lambda: getattr(array, way).__setitem__([1, 7, last], 3))
        assert peak < 1 << 20
        assert array[last] == array[7] == array[1] == 3

    @pytest.mark.parametrize("seed", range(3))
    def test_each_block_is_read_and_written_once(self, tmp_path, monkeypatch, seed):
        """Points and indices in any order; of points at the same place, the last one wins."""
        rng = np.random.default_rng(seed)
        array = create(tmp_path, (1024, 1024), dtype="u2")
        array[...] = data = rng.integers(0, 1 << 16, (1024, 1024), "u2")
        calls = Recorded(monkeypatch)
        rows, columns = rng.integers(0, 1024, (2, 200_000))
        values = rng.integers(0, 1 << 16, 200_000, "u2")
        array.vindex[rows, columns] = values
        data[rows, columns] = values
        assert sum(num for kind, _, _, num in calls if kind == "read") <= data.nbytes
        assert sum(len(raw) for kind, _, _, raw in calls if kind == "write") <= data.nbytes
        calls.clear()
        rows, columns = rng.permutation(1024)[:900], rng.permutation(1024)[:900]
        values = rng.integers(0, 1 << 16, (900, 900), "u2")
        array.oindex[rows, columns] = values
        data[np.ix_(rows, columns)] = values
        assert sum(num for kind, _, _, num in calls if kind == "read") <= data.nbytes
        monkeypatch.undo()
        assert np.array_equal(array[...], data)

    @pytest.mark.parametrize("is_faster", [True, False])
    def test_slow_files_are_read_ahead(self, tmp_path, monkeypatch, is_faster):
        """If pieces of a file are slow; and only if that helps."""
        array = create(tmp_path, (1 << 18,))
        array[::2] = 1
        clock, pages, num_read, seconds = [0.0], set(), [], 1e-3
        pwrite, preadv = os.pwrite, os.preadv

        def write(descriptor, view, position):
            clock[0] += 0 if position // 4096 in pages else seconds
            return pwrite(descriptor, view, position)

        def read(descriptor, views, position):
            num = preadv(descriptor, views, position)
            num_read.append(num)
            clock[0] += seconds * (1 if is_faster else 1000)
            pages.update(range(position // 4096, (position + num) // 4096 + 1))
            return num

        monkeypatch.setattr(os, "pwrite", write)
        monkeypatch.setattr(os, "preadv", read)
        monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
        array[::1024] = 2
        monkeypatch.undo()
        assert (array[::1024] == 2).all()
        assert array[::2].sum() == (1 << 17) + 256
        num = sum(num_read)
        assert 1 << 20 < num < 1 << 21 if is_faster else num <= 1 << 20


@pytest.mark.usefixtures("required")
class TestMissing:
    @pytest.fixture(params=[True, False], ids=["whole", "sparse"], autouse=True)
    def _put_together_in_memory(self, request, monkeypatch):
        if not request.param:
            set_costs(monkeypatch, write_to_files, small_bytes=0, most=0)

    @pytest.fixture(params=[True, False], ids=["unnamed", "named"])
    def _tmpfile(self, request, monkeypatch):
        if not request.param:
            monkeypatch.delattr(os, "O_TMPFILE", raising=False)
        elif not hasattr(os, "O_TMPFILE"):
            pytest.skip("this system has no files without names")

    @pytest.mark.parametrize("fill_value", [0.0, -0.0, 1.5])
    @pytest.mark.usefixtures("_tmpfile")
    def test_it_is_made_at_full_length(self, tmp_path, fill_value):
        array = create(tmp_path, fill_value=fill_value)
        array[2, 1:3] = 7
        found = np.fromfile(tmp_path / "c/0/0").reshape(8, 8)
        expected = np.full((8, 8), fill_value)
        expected[2, 1:3] = 7
        assert found.tobytes() == expected.tobytes()
        assert [p.name for p in (tmp_path / "c/0").iterdir()] == ["0"]

    @pytest.mark.usefixtures("_tmpfile")
    def test_its_mode_is_that_of_zarr(self, tmp_path):
        array = create(tmp_path, (8, 8), (4, 4))
        array[:4, :4] = 1
        array[5, 5] = 1
        modes = {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("c/*/*")}
        assert len(list(tmp_path.rglob("c/*/*"))) == 2
        assert len(modes) == 1

    def test_fill_values_alone_make_none(self, tmp_path):
        array = create(tmp_path, fill_value=3.0)
        array[2, 1:3] = 3
        assert not (tmp_path / "c").exists()
        array[2, 1:3] = 4
        array[2, 1:3] = 3
        assert np.array_equal(array[...], np.full((8, 8), 3.0))

    @pytest.mark.usefixtures("_tmpfile")
    def test_the_first_of_many_wins(self, tmp_path, monkeypatch):
        """Threads that all find it missing, and that all fill a file for it."""
        barrier = threading.Barrier(4)
        truncate = os.ftruncate

        def wait(*args):
            with contextlib.suppress(threading.BrokenBarrierError):  # one after the other
                barrier.wait(1)
            truncate(*args)

        if hasattr(os, "O_TMPFILE"):
            monkeypatch.setattr(os, "ftruncate", wait)
        array = create(tmp_path, fill_value=1.0)
        threads = [
            threading.Thread(target=array.__setitem__, args=((2 * k, slice(1, 8)), k + 2.0))
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = np.ones((8, 8))
        for k in range(4):
            expected[2 * k, 1:] = k + 2
        assert np.array_equal(array[...], expected)

    @pytest.mark.parametrize("is_linked", [False, True])
    def test_what_a_killed_writer_leaves_is_taken_away(self, tmp_path, monkeypatch, is_linked):
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
        array = create(tmp_path)
        chunk = tmp_path / "c/0/0"
        chunk.parent.mkdir(parents=True)
        unfinished = Path(f"{chunk}.unfinished")
        unfinished.write_bytes(bytes(8 * 64) if is_linked else b"abc")
        if is_linked:
            chunk.hardlink_to(unfinished)
        array[1, 1:] = 5
        assert array[...].sum() == 35
        assert list(chunk.parent.iterdir()) == [chunk]
        assert chunk.stat().st_nlink == 1


@pytest.mark.usefixtures("required")
@pytest.mark.parametrize("error", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSPC])
def test_nothing_is_left_of_a_chunk_that_can_not_be_made(tmp_path, monkeypatch, error):
    """Some file systems have no hard links."""
    array = create(tmp_path, fill_value=1.0)

    def fail(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", fail)
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    expected = OSError if error == errno.ENOSPC else RuntimeError
    with pytest.raises(expected, match=os.strerror(error)):
        array[1, 1:] = 2
    assert not list((tmp_path / "c/0").iterdir())
    if expected is RuntimeError:
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            array[1, 1:] = 2
        assert array[...].sum() == 64 + 7


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_errors_of_zarr_s_writes_name_the_chunk(tmp_path, pipeline, zarr_format):
    """NumPy's, of a chunk that is too short, name nothing."""
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        array = create(tmp_path, (8, 8), (4, 8), zarr_format=zarr_format)
        array[...] = 1
        for name in ("0.0", "c/0/0"):
            if (tmp_path / name).exists():
                (tmp_path / name).write_bytes(bytes(13))
        with pytest.raises(ValueError, match=".") as caught:
            array[:, 1:] = 2
    (note,) = caught.value.__notes__
    assert note.startswith("while writing chunk '0.0' of" if zarr_format == 2 else "while writing")
    assert note.endswith(", or another one of 2")


class TestRequire:
    """A writer whom nobody else can rely on is told so, and none else."""

    @pytest.mark.parametrize(
        "settings",
        [{}, {"compressors": zarr.codecs.ZstdCodec()}, {"shards": (8, 8), "chunks": (4, 4)}],
        ids=["uncompressed", "compressed", "shards"],
    )
    @pytest.mark.parametrize("pipeline", PIPELINES)
    def test_an_array_that_was_open_before(self, tmp_path, settings, pipeline):
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            create(
                tmp_path,
                serializer=BytesCodec() if "shards" not in settings else "auto",
                **settings,
            )
            array = zarr.open_array(tmp_path, mode="r+")
        message = "'require', but this array was opened with a codec pipeline that writes whole"
        with zarr.config.set(ZARR_ALONE | IN_PLACE):
            with pytest.raises(RuntimeError, match=message):
                array[1, 1:] = 1
            with pytest.raises(RuntimeError, match=message):
                array[...] = 1
            if pipeline == ZARRS_PIPELINE:  # the fused one calls no codec to delete a chunk
                with pytest.raises(RuntimeError, match=message):
                    array[1:3] = array[...] = 0
        assert (array[...] == 0).all()

    @pytest.mark.usefixtures("our_pipeline")
    def test_what_our_pipelines_leave_to_zarr_is_written(self, tmp_path):
        """Whole chunks, whole shards, and all that is compressed."""
        with zarr.config.set(IN_PLACE):
            for k, settings in enumerate(
                [
                    {"shape": (7, 8), "shards": (8, 8), "chunks": (4, 4)},
                    {"compressors": zarr.codecs.ZstdCodec()},
                    {"shape": (7, 8), "chunks": (4, 4)},
                    {"shards": (8, 8), "chunks": (4, 4), "compressors": zarr.codecs.ZstdCodec()},
                ]
            ):
                create(tmp_path / str(k), **settings)
                array = zarr.open_array(tmp_path / str(k), mode="r+")
                array[:] = 1
                assert array[...].sum() == array.size
                array[:] = 0
                assert array[...].sum() == 0


def hard_linked(chunk):
    (chunk.parent.parent / "copy").hardlink_to(chunk)


def symbolic_link(chunk):
    chunk.rename(chunk.parent.parent / "elsewhere")
    chunk.symlink_to(chunk.parent.parent / "elsewhere")


def fail(error, *_, **__):
    raise error


def without_fcntl(monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)


def without_locks(monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


class Subclass(zarr.storage.LocalStore):
    """What it does when it is written is not known."""


def instance_with_set(path):
    store = zarr.storage.LocalStore(path)
    store.set = store.set
    return store


SHARDS = {"shards": (8, 8), "chunks": (4, 4)}
SHARDS_IN_SHARDS = zarr.codecs.ShardingCodec(
    chunk_shape=(4, 4), codecs=[zarr.codecs.ShardingCodec(chunk_shape=(2, 2))]
)


class TestNotInPlace:
    DATA = np.arange(64.0).reshape(8, 8)

    def check(self, tmp_path, why, store=None):
        """Write with True, as zarr does it, and with "require", which must raise."""
        store = tmp_path if store is None else store
        expected = self.DATA.copy()
        expected[2, 1:] = -1
        array = zarr.open_array(store, mode="r+")
        with (
            zarr.config.set({"numcodecs_bytes.write_in_place": "require"}),
            pytest.raises(RuntimeError, match=why),
        ):
            array[2, 1:] = -2
        assert np.array_equal(array[...], self.DATA)
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            array[2, 1:] = -1
        assert np.array_equal(array[...], expected)

    @pytest.fixture(autouse=True, params=OUR_PIPELINES, ids=lambda p: p.rsplit(".", 1)[-1])
    def _pipeline(self, request):
        with zarr.config.set({"codec_pipeline.path": request.param}):
            yield

    @pytest.fixture
    def path(self, tmp_path):
        create(tmp_path / "a")[...] = self.DATA
        return tmp_path / "a"

    def test_a_symbolic_link(self, path):
        symbolic_link(path / "c/0/0")
        self.check(path, "symbolic link")

    @pytest.mark.parametrize("without", [without_fcntl, without_locks])
    def test_without_locks(self, path, monkeypatch, without):
        without(monkeypatch)
        self.check(path, "lock")

    @pytest.mark.parametrize("name", ["preadv", "pwrite", "O_NOFOLLOW"])
    def test_systems_that_lack_what_it_takes(self, path, monkeypatch, name):
        """macOS before 11 has no preadv; it is left to zarr, and no AttributeError."""
        monkeypatch.delattr(os, name)
        self.check(path, "no preadv and pwrite")

    def test_locks_that_are_not_supported(self, path, monkeypatch):
        """On macOS, ENOTSUP and EOPNOTSUPP are two numbers."""
        monkeypatch.setattr(fcntl, "flock", functools.partial(fail, OSError(errno.ENOTSUP, "no")))
        self.check(path, "no locks")

    @pytest.mark.parametrize("kind", [Subclass, instance_with_set, zarr.storage.LoggingStore])
    def test_other_stores(self, path, kind):
        is_wrapper = kind is zarr.storage.LoggingStore
        store = kind(zarr.storage.LocalStore(path) if is_wrapper else path)
        self.check(path, "LocalStore", store)

    def test_memory(self):
        store = zarr.storage.MemoryStore()
        create(store)[...] = self.DATA
        self.check(None, "MemoryStore is not zarr's LocalStore", store)

    @pytest.mark.parametrize(
        ("settings", "why"),
        [
            ({"compressors": zarr.codecs.ZstdCodec()}, "it is compressed or filtered by zstd"),
            (SHARDS | {"compressors": zarr.codecs.ZstdCodec()}, "inner chunks .* by zstd"),
            (SHARDS | {"compressors": zarr.codecs.Crc32cCodec()}, "compressed or .* by crc32c"),
            ({"serializer": SHARDS_IN_SHARDS}, "its inner chunks are shards"),
            ({"zarr_format": 2, "compressors": numcodecs.Zlib()}, "it is compressed .* by zlib"),
        ],
        ids=["compressed", "compressed in shards", "checked in shards", "shards in shards", "v2"],
    )
    def test_other_codecs(self, tmp_path, settings, why):
        create(tmp_path, **settings)[...] = self.DATA
        self.check(tmp_path, why)

    @pytest.mark.parametrize("size", [0, 511, 513])
    def test_a_file_of_another_length_is_an_error_and_stays(self, path, size):
        raw = bytes(range(256)) * 3
        (path / "c/0/0").write_bytes(raw[:size])
        array = zarr.open_array(path, mode="r+")
        for mode in (True, "require"):
            with (
                zarr.config.set({"numcodecs_bytes.write_in_place": mode}),
                pytest.raises(ValueError, match=f"c/0/0.*{size}.*512"),
            ):
                array[2, 1:] = 1
        assert (path / "c/0/0").read_bytes() == raw[:size]

    def test_a_whole_chunk_is_written_by_zarr_also_if_required(self, path):
        hard_linked(path / "c/0/0")
        with zarr.config.set(IN_PLACE):
            zarr.open_array(path, mode="r+")[...] = 1
        assert zarr.open_array(path)[...].sum() == 64

    def test_a_store_that_is_read_only(self, path):
        array = zarr.open_array(zarr.storage.LocalStore(path, read_only=True))
        with (
            zarr.config.set({"numcodecs_bytes.write_in_place": True}),
            pytest.raises(ValueError, match="read-only"),
        ):
            array[2, 1:] = 1

    @pytest.mark.parametrize("mode", ["always", 2, ["require"]])
    def test_other_settings(self, path, mode):
        array = zarr.open_array(path, mode="r+")
        with (
            zarr.config.set({"numcodecs_bytes.write_in_place": mode}),
            pytest.raises(ValueError, match="True, False or 'require'"),
        ):
            array[2, 1:] = 1


@pytest.mark.usefixtures("required")
class TestMeanwhile:
    def test_a_chunk_that_is_replaced_before_the_lock(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        new = tmp_path / "new"
        new.write_bytes(np.full(64, 2.0).tobytes())
        flock = fcntl.flock

        def replace(descriptor, how):
            flock(descriptor, how)
            if new.exists():
                new.replace(tmp_path / "c/0/0")

        monkeypatch.setattr(fcntl, "flock", replace)
        array[2, 1:] = 3
        assert array[...].sum() == 2 * 57 + 3 * 7

    def test_a_chunk_that_is_deleted_before_the_lock(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        flock, left = fcntl.flock, [1]

        def delete(descriptor, how):
            flock(descriptor, how)
            if left:
                left.pop()
                (tmp_path / "c/0/0").unlink()

        monkeypatch.setattr(fcntl, "flock", delete)
        array[2, 1:] = 3
        assert array[...].sum() == 3 * 7

    def test_a_full_disk(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        pwrite, left = os.pwrite, [1, 1]

        def write(*args):
            if not left:
                raise OSError(errno.ENOSPC, "No space left on device")
            left.pop()
            return pwrite(*args)

        monkeypatch.setattr(os, "pwrite", write)
        with pytest.raises(OSError, match="No space") as caught:
            array[:, 3] = 5
        assert "while writing chunk 'c/0/0'" in caught.value.__notes__[0]
        monkeypatch.undo()
        assert array[...].sum() == 64 + 2 * 4
        assert (tmp_path / "c/0/0").stat().st_size == 512

    def test_short_writes(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda d, v, p: pwrite(d, v[:3], p))
        array[2, 1:] = 5
        array[:, 0] = 7
        assert array[...].sum() == 64 - 15 + 35 + 56

    def test_a_write_that_is_cancelled_is_not_done_later(self, tmp_path):
        array = create(tmp_path)
        array[...] = 1
        with (tmp_path / "c/0/0").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

            async def write():
                writing = array.async_array.setitem(np.s_[1, 1:], 5)
                await asyncio.wait_for(writing, 0.1)

            with pytest.raises(TimeoutError):
                asyncio.run(write())
        time.sleep(0.05)
        assert array[...].sum() == 64

    def test_many_that_wait_for_a_lock_do_not_hinder_reads(self, tmp_path):
        array = create(tmp_path)
        array[...] = 1
        with (tmp_path / "c/0/0").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            threads = [
                threading.Thread(target=array.__setitem__, args=(np.s_[k % 8, 1:], 5))
                for k in range(40)
            ]
            for thread in threads:
                thread.start()
            assert array[...].sum() == 64
        for thread in threads:
            thread.join()
        assert array[...].sum() == 8 + 56 * 5

    def test_others_need_not_wait_for_a_locked_chunk(self, tmp_path, caplog, monkeypatch):
        """More writes than there are threads wait for one chunk, and say so; and one ends."""
        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: 200 * clock())  # 5 s have soon passed
        array = create(tmp_path, (8, 8), (8, 4))
        array[...] = 1
        with (tmp_path / "c/0/0").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            threads = [
                threading.Thread(target=array.__setitem__, args=(np.s_[k % 8, 1:4], 5))
                for k in range(40)
            ]
            for thread in threads:
                thread.start()
            array[:, 5] = 2
            deadline = clock() + 20
            while len(caplog.messages) < len(threads) and clock() < deadline:
                time.sleep(0.01)
        for thread in threads:
            thread.join()
        assert array[...].sum() == 8 + 8 * 3 * 5 + 8 * 3 + 8 * 2
        assert len(caplog.messages) == len(threads)  # once each
        assert "waiting for a lock on chunk 'c/0/0' of LocalStore" in caplog.messages[0]

    def test_blocks_are_written_piece_by_piece_if_others_never_stop(self, tmp_path, monkeypatch):
        """A writer of every second element begins beside writers of rows, who share their lock."""
        array = create(tmp_path, (64, 64))
        array[...] = 1
        calls = Recorded(monkeypatch)
        with (tmp_path / "c/0/0").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            array[:, ::2] = 2
        assert {lock for kind, lock, *_ in calls if kind == "write"} == {"shared"}
        monkeypatch.undo()
        assert array[...].sum() == 64 * (32 + 64)

    def test_whole_chunks_wait_for_who_copies_them(self, tmp_path, monkeypatch):
        """The rename of the copy would undo what is written meanwhile."""
        array = create(tmp_path)
        for values in (7, 0):  # 0 deletes the chunk
            array[...] = 1
            hard_linked(tmp_path / "c/0/0")
            copied, replace = threading.Event(), Path.replace

            def pause(path, *args, replace=replace, copied=copied):
                if path.name.endswith(".unfinished"):
                    copied.set()
                    time.sleep(0.2)
                return replace(path, *args)

            monkeypatch.setattr(Path, "replace", pause)
            writer = threading.Thread(target=array.__setitem__, args=(np.s_[1, 1:], 5))
            writer.start()
            assert copied.wait(10)
            array[...] = values
            monkeypatch.undo()
            writer.join()
            # Whoever of the two was last.
            assert array[0].tolist() == [values] * 8
            assert set(array[1, 1:].tolist()) <= {5, values}
            (tmp_path / "c/copy").unlink()

    def test_whole_chunks_that_wait_hold_no_threads(self, tmp_path):
        """Others are written, and a write that is cancelled is not done later."""
        array, other = create(tmp_path / "a", (64,), (2,)), create(tmp_path / "b", (64,), (2,))
        array[:] = other[:] = 1
        files = []
        for chunk in (tmp_path / "a/c").iterdir():
            (tmp_path / f"copy of {chunk.name}").hardlink_to(chunk)
            file = chunk.open("rb")
            fcntl.flock(file, fcntl.LOCK_EX)
            files.append(file)

        async def write():
            waiting = [asyncio.create_task(array.async_array.setitem(..., 5)) for _ in range(8)]
            await asyncio.sleep(0.2)
            await asyncio.wait_for(other.async_array.setitem(..., 7), 10)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting, timeout=10)
            assert all(task.cancelled() for task in waiting)

        zarr.core.sync.sync(write())
        time.sleep(0.5)  # threads that try to lock a chunk do so for milliseconds
        for file in files:
            file.close()
        time.sleep(0.3)
        assert (other[:] == 7).all()
        assert (array[:] == 1).all()

    def test_too_many_open_files_is_an_error(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        open_ = os.open

        def fail(path, *args, **kwargs):
            if str(path).endswith("c/0/0"):
                raise OSError(errno.EMFILE, "Too many open files")
            return open_(path, *args, **kwargs)

        monkeypatch.setattr(os, "open", fail)
        with pytest.raises(OSError, match="Too many open files"):
            array[1, 1:] = 5

    def test_a_lock_that_a_forked_process_holds_is_given_back(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = 1
        copies, flock = [], fcntl.flock

        def fork(descriptor, how):
            copies.append(os.dup(descriptor))  # as fork does
            flock(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", fork)
        array[:, 1] = 2
        monkeypatch.undo()
        with (tmp_path / "c/0/0").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for copy in copies:
            os.close(copy)


@pytest.mark.usefixtures("required")
class TestHardLinks:
    """A copy made by ``cp -al`` shares the files of an array: it keeps what it holds."""

    DATA = np.arange(64.0).reshape(8, 8)

    @pytest.fixture(params=["chunk", "shard"])
    def array(self, tmp_path, request):
        is_shard = request.param == "shard"
        array = create(tmp_path / "a", **({"shards": (8, 8), "chunks": (4, 4)} if is_shard else {}))
        array[...] = self.DATA
        (tmp_path / "copy").hardlink_to(tmp_path / "a/c/0/0")
        return array

    def check(self, tmp_path, array):
        expected = self.DATA.copy()
        expected[2, 1:] = -1
        assert np.array_equal(array[...], expected)
        chunk, copy = tmp_path / "a/c/0/0", tmp_path / "copy"
        assert chunk.stat().st_ino != copy.stat().st_ino
        kept = chunk.read_bytes()
        chunk.write_bytes(copy.read_bytes())
        assert np.array_equal(array[...], self.DATA)
        chunk.write_bytes(kept)
        assert [p.name for p in (tmp_path / "a/c/0").iterdir()] == ["0"]

    @pytest.mark.parametrize("without", [None, "copy_file_range", "SEEK_DATA"])
    def test_a_new_file_takes_the_place(self, tmp_path, array, monkeypatch, without):
        if without is not None:
            monkeypatch.delattr(os, without, raising=False)
        with numcodecs_bytes.trace() as traced:
            array[2, 1:] = -1
        assert traced.report()["total"]["chunks_in_place"] == 1
        self.check(tmp_path, array)

    def test_no_folder_is_listed(self, tmp_path, array, monkeypatch):
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
        other = create(tmp_path / "b")
        for name in ("listdir", "scandir", "walk"):
            monkeypatch.setattr(os, name, functools.partial(fail, AssertionError(name)))
        other[2, 1:] = 1
        array[2, 1:] = -1
        monkeypatch.undo()
        self.check(tmp_path, array)

    @pytest.mark.parametrize("moment", ["flock", "fstat", "lstat", "fchmod"])
    @pytest.mark.parametrize("is_deleted", [False, True])
    def test_a_chunk_that_is_replaced_at_that_moment(
        self, tmp_path, array, monkeypatch, moment, is_deleted
    ):
        """The name may stand for a file without another name, but that file is not the open one."""
        chunk, new, module = (
            tmp_path / "a/c/0/0",
            tmp_path / "new",
            fcntl if moment == "flock" else os,
        )
        new.write_bytes(chunk.read_bytes())
        function = getattr(module, moment)

        def replace(*args, **kwargs):
            result = function(*args, **kwargs)
            if new.exists():
                new.unlink() if is_deleted else new.replace(chunk)
                if is_deleted:
                    chunk.unlink()
            return result

        monkeypatch.setattr(module, moment, replace)
        array[2, 1:] = -1
        monkeypatch.undo()
        if is_deleted:
            array[:2], array[2, 0], array[3:] = self.DATA[:2], self.DATA[2, 0], self.DATA[3:]
        self.check(tmp_path, array)

    def test_what_a_killed_copier_leaves_is_removed(self, tmp_path, array):
        mode = (tmp_path / "a/c/0/0").stat().st_mode
        (tmp_path / "a/c/0/0.unfinished").write_bytes(bytes(1000))
        (tmp_path / "a/c/0/0.unfinished").chmod(0o600)
        array[2, 1:] = -1
        assert (tmp_path / "a/c/0/0").stat().st_mode == mode
        self.check(tmp_path, array)

    @pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
    def test_something_else_has_the_name_of_the_copy(self, tmp_path, array, make):
        make(tmp_path / "a/c/0/0.unfinished")
        with pytest.raises(RuntimeError, match="not a regular file"):
            array[2, 1:] = -1
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            array[2, 1:] = -1
        (tmp_path / "a/c/0/0.unfinished").rename(tmp_path / "unfinished")
        self.check(tmp_path, array)

    def test_a_full_disk(self, tmp_path, array, monkeypatch):
        full = functools.partial(fail, OSError(errno.ENOSPC, "No space left on device"))
        monkeypatch.setattr(os, "copy_file_range", full, raising=False)
        with pytest.raises(OSError, match="No space"):
            array[2, 1:] = -2
        assert np.array_equal(array[...], self.DATA)
        assert [p.name for p in (tmp_path / "a/c/0").iterdir()] == ["0"]
        monkeypatch.undo()
        array[2, 1:] = -1
        self.check(tmp_path, array)

    def test_holes_stay_holes(self, tmp_path):
        array = create(tmp_path, (1 << 21,))
        array[5:7] = 1
        with (tmp_path / "c/0").open("rb") as file:
            try:
                os.lseek(file.fileno(), 1 << 23, os.SEEK_DATA)
            except OSError:
                pass
            else:
                pytest.skip("this file system does not say where holes are")
        hard_linked(tmp_path / "c/0")
        array[7:9] = 2
        assert array[4:10].tolist() == [0, 1, 1, 2, 2, 0]
        (chunk,) = (tmp_path / "c").iterdir()
        assert chunk.stat().st_size == 1 << 24
        assert chunk.stat().st_blocks * 512 < 1 << 20


WRITER = """
import sys, time, numpy as np, zarr
path, pipeline, k, num, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
zarr.config.set({
    "codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require",
    "threading.max_workers": 2,
})
array = zarr.open_array(path, mode="r+")
print("ready", flush=True)
sys.stdin.readline()
"""
WRITES = """
n = array.shape[0] // 4
for r in range(1, rounds + 1):
    array[k:n:num] = 100 * r + k
    array[n:2 * n, k::num] = 100 * r + k
    array.vindex[np.arange(2 * n, 3 * n), (np.arange(n) + k) % num] = 100 * r + k
    array[3 * n + 16 * k:3 * n + 16 * (k + 1), 3:40] = 100 * r + k
"""
NUM, ROUNDS = (8, 20) if EVERYTHING else (4, 4)


@contextlib.contextmanager
def writing(path, pipeline, code=None):
    """Start processes that write at once; end them if they have not ended."""
    command = ["-c", code or WRITER + WRITES, path, pipeline]
    writers = [
        start_program(*command, k, NUM, ROUNDS, files=(None, None, sys.__stderr__))
        for k in range(NUM)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        yield writers
    finally:
        for writer in writers:
            writer.close()


def expected_of(array, ranks):
    data, n = np.full(array.shape, array.fill_value), array.shape[0] // 4
    for k in ranks:
        value = 100 * ROUNDS + k
        data[k:n:NUM] = value
        data[n : 2 * n, k::NUM] = value
        data[np.arange(2 * n, 3 * n), (np.arange(n) + k) % NUM] = value
        data[3 * n + 16 * k : 3 * n + 16 * (k + 1), 3:40] = value
    return data


STATES = ["missing chunks", "chunks", "missing shards", "shards", "growing shards"]


def shared_array(path, state):
    """Return an array of two chunks, or of two shards that have one of their inner chunks.

    Shards that grow are larger than those that are made complete at once.
    """
    shape, whole, inner, more = (512, 64), (256, 64), (64, 16), {}
    if "growing" in state:
        shape, whole, inner, more = (2048, 128), (1024, 128), (128, 32), {"fill_value": 1.5}
    if "shards" in state:
        array = create(path, shape, inner, "f8", shards=whole, **more)
    else:
        array = create(path, shape, whole, "f8")
    if "missing" not in state:
        array[0, 0] = array[shape[0] // 2 + 16, 0] = 1
    return array


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
@pytest.mark.parametrize("state", STATES)
def test_many_processes_lose_nothing(tmp_path, pipeline, state):
    """Rows, columns, strided columns, points and boxes of chunks that all share."""
    array = shared_array(tmp_path, state)
    with writing(tmp_path, pipeline) as writers:
        assert [writer.wait(120) for writer in writers] == [0] * NUM
    assert np.array_equal(array[...], expected_of(array, range(NUM)))
    assert len(list(tmp_path.rglob("c/*/*"))) == 2


@pytest.mark.parametrize("state", STATES)
@pytest.mark.usefixtures("required")
def test_many_threads_lose_nothing(tmp_path, state):
    array = shared_array(tmp_path, state)
    names = {"array": array, "np": np, "num": NUM, "rounds": ROUNDS}
    threads = [threading.Thread(target=exec, args=(WRITES, names | {"k": k})) for k in range(NUM)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(array[...], expected_of(array, range(NUM)))


@pytest.mark.parametrize("seed", range(10 if EVERYTHING else 2))
@pytest.mark.parametrize("inner", [None, (16, 64)], ids=["chunks", "shards"])
def test_killed_writers_harm_nobody(tmp_path, seed, inner):
    rng = random.Random(seed)  # noqa: S311
    more = {"shards": (128, 64)} if inner else {}
    array = create(tmp_path, (512, 64), inner or (128, 64), fill_value=0.0, **more)
    if inner:
        array[::128, 0] = array[64::128, 0] = 0.1  # compact shards
        array[::64, 0] = 0
    with writing(tmp_path, OUR_PIPELINES[0]) as writers:
        for k in (0, 1):
            time.sleep(rng.random() * 0.05)
            writers[k].kill()
        assert [writer.wait(120) for writer in writers[2:]] == [0] * (NUM - 2)
    data, expected = array[...], expected_of(array, range(NUM))
    of_killed = expected_of(array, (0, 1)) != 0
    assert np.array_equal(data[~of_killed], expected[~of_killed])
    assert (data[of_killed] % 100 <= 1).all()  # of theirs, or the fill value
    files = [p for p in tmp_path.rglob("c/*/*") if p.suffix != ".unfinished"]
    num_bytes = 128 * 64 * 8 + (8 * 16 + 4 if inner else 0)
    assert all(p.stat().st_size == num_bytes for p in files)
    assert len(files) == 4


def test_a_small_disk(tmp_path):
    """Each chunk is sparse: none has its bytes until they are written."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a small disk")
    try:
        settings = {"codec_pipeline.path": OUR_PIPELINES[0], **IN_PLACE}
        with zarr.config.set(settings):
            array = create(folder / "a", (1 << 19,))
            array[:1000] = 1
            with pytest.raises(OSError, match="No space"):
                array[1000 : 1 << 18] = 2
            (chunk,) = [p for p in (folder / "a").rglob("c/*") if p.is_file()]
            assert chunk.stat().st_size == 1 << 22
            assert (array[:1000] == 1).all()
            assert set(np.unique(array[...])) <= {0.0, 1.0, 2.0}
    finally:
        subprocess.run([shutil.which("umount"), str(folder)], check=True)


def test_reads_meanwhile_see_old_or_new(tmp_path):
    array = create(tmp_path, (256, 256))
    array[...] = 1
    with zarr.config.set({"codec_pipeline.path": OUR_PIPELINES[0], **IN_PLACE}):
        writing = zarr.open_array(tmp_path, mode="r+")
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.update(np.unique(array[...]).tolist())

    thread = threading.Thread(target=read)
    thread.start()
    with zarr.config.set(IN_PLACE):
        for k in range(2, 40):
            writing[:, 1::2] = k
            writing[3] = k
    stop.set()
    thread.join()
    assert seen <= set(map(float, range(1, 40)))


PROGRAM = """
import atexit, sys, zarr
zarr.config.set({"codec_pipeline.path": sys.argv[2], "numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
atexit.register(lambda: array.__setitem__((1, slice(1, None)), 5))
array[0, 1:] = 4
"""


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
def test_exit(tmp_path, pipeline):
    array = create(tmp_path)
    options = {"timeout": 60, "capture_output": True, "text": True}
    run_python("-c", PROGRAM, tmp_path, pipeline, options=options)
    assert array[:2, 1:].tolist() == [[4] * 7, [5] * 7]


WAITING = """
import signal, sys, threading, zarr
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
zarr.config.set({"codec_pipeline.path": sys.argv[2], "numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
part = (1, slice(1, None))
threads = [threading.Thread(target=array.__setitem__, args=(part, 5)) for _ in range(200)]
for thread in threads:
    thread.start()
print("ready", flush=True)
array[2, 1:] = 6
"""


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
def test_an_interrupt_ends_many_that_wait(tmp_path, pipeline):
    array = create(tmp_path)
    array[...] = 1
    with (tmp_path / "c/0/0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        program = subprocess.Popen(
            [sys.executable, "-c", WAITING, str(tmp_path), pipeline],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stdout.readline() == "ready\n"
            time.sleep(0.2)
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=30)  # it took 37 s, and takes 3
        finally:
            program.kill()
    assert "KeyboardInterrupt" in errors
    assert "the program ended while a write waited to lock chunk 'c/0/0'" in errors
    assert (array[...] == 1).all()


PART_WRITER = """
import sys, numpy as np, zarr
path, pipeline, k, num, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
zarr.config.set({"codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(path, mode="r+")
print("ready", flush=True)
sys.stdin.readline()
for chunk in np.random.default_rng(k).permutation(array.shape[0] // 8):
    array[8 * chunk + k:8 * chunk + 8:num, ::2] = k + 1
    array[8 * chunk + k:8 * chunk + 8:num, 1::2] = k + 1
"""


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
@pytest.mark.parametrize("tmpfile", [True, False])
def test_many_processes_change_no_copy(tmp_path, pipeline, tmpfile):
    """Of a folder that was copied with ``cp -al``, and lose nothing of their own."""
    num, chunks = NUM, 100 if EVERYTHING else 20
    array = create(tmp_path / "a", (8 * chunks, 16), (8, 16))
    array[...] = -1
    shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=os.link)
    code = PART_WRITER if tmpfile else "import os; del os.O_TMPFILE\n" + PART_WRITER
    with writing(tmp_path / "a", pipeline, code) as writers:
        assert [writer.wait(120) for writer in writers] == [0] * num
    expected = np.arange(8 * chunks) % 8 % num + 1
    assert np.array_equal(array[...], np.broadcast_to(expected[:, np.newaxis], array.shape))
    assert (zarr.open_array(tmp_path / "copy")[...] == -1).all()
    assert not list(tmp_path.rglob("*.unfinished"))


def test_copiers_that_are_killed(tmp_path):
    """What they leave is no hindrance, and nothing of others is lost."""
    array = create(tmp_path / "a", (8 * 20, 1 << 12), (8, 1 << 12))
    array[...] = -1
    for seed in range(8 if EVERYTHING else 2):
        rng = random.Random(seed)  # noqa: S311
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=os.link)
        before = array[...]
        with writing(tmp_path / "a", OUR_PIPELINES[0], PART_WRITER) as writers:
            for k in (0, 1):
                time.sleep(rng.random() * 0.02)
                writers[k].kill()
            assert [writer.wait(120) for writer in writers[2:]] == [0] * (NUM - 2)
        data, ranks = array[...], np.arange(8 * 20) % 8 % NUM
        for k in range(2, NUM):
            assert (data[ranks == k] == k + 1).all()
        assert set(np.unique(data[ranks < 2]).tolist()) <= {-1.0, 1.0, 2.0}
        assert np.array_equal(zarr.open_array(tmp_path / "copy")[...], before)


FORKED = """
import os, sys, zarr
array = zarr.open_array(sys.argv[1], mode="r+")
zarr.config.set({"numcodecs_bytes.write_in_place": "require"})
if os.fork() == 0:
    try:
        array[1, 1:] = 5
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_writer_with_a_handle_from_before(tmp_path):
    """It is told to open the array again, and loses nothing of others."""
    array = create(tmp_path)
    zarrs = {"ZARR_CODEC_PIPELINE__PATH": ZARRS_PIPELINE}
    printed = run_program("-W", "ignore", "-c", FORKED, tmp_path, **zarrs).stdout
    assert "this array was opened with a codec pipeline that writes whole chunks" in printed
    assert (array[...] == 0).all()
