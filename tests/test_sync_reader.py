"""`SyncReader` returns what the array returns, and reads small selections in the calling thread."""

import copy
import errno
import itertools
import os
import pickle
import random
import re
import sys
import threading
import tracemalloc
import weakref
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.registry
import zarr.storage
from helpers import (
    DTYPES,
    EVERYTHING,
    HAS_STRUCT,
    OUR_PIPELINES,
    ZARRS_PIPELINE,
    create,
    eventually,
    module_or_none,
    reference_store,
    run_python,
)
from helpers import random_array as random_elements
from zarr.codecs.numcodecs import AsType
from zarr.core.buffer import cpu

import numcodecs_bytes
from numcodecs_bytes import SyncReader
from numcodecs_bytes._plan.plan import _cached_plan as plan_of_chunk

# Of zarr and of numcodecs, for data types and filters that Zarr v3 does not specify.
pytestmark = pytest.mark.filterwarnings("ignore:.*specification", "ignore:The data type:Warning")
DATA = np.arange(42.0).reshape(6, 7)


@pytest.fixture(autouse=True, params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def _our_pipeline(request):
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield


@pytest.fixture
def array(tmp_path):
    array = create(tmp_path / "a", DATA.shape, (3, 4))
    array[...] = DATA
    return array


@pytest.fixture
def asked_of_zarr(monkeypatch):
    """Return a list of the selections that are left to zarr."""
    asked, getitem = [], zarr.Array.__getitem__

    def note(self, selection):
        asked.append(selection)
        return getitem(self, selection)

    monkeypatch.setattr(zarr.Array, "__getitem__", note)
    return asked


def outcome(read):
    """Return all of a result that a program can see, or the kind of the error."""
    try:
        got = read()
    except ValueError as error:  # the texts, and some kinds of wrong lengths, are our own
        return type(error) if type(error).__module__.startswith("zarr") else ValueError
    except Exception as error:  # noqa: BLE001 # compared with zarr's
        return type(error)
    flags = got.flags
    return type(got), got.dtype, got.shape, (flags.c_contiguous, flags.f_contiguous), repr(got)


class Index:
    def __init__(self, number):
        self._number = number

    def __index__(self):
        return self._number

    def __repr__(self):
        return f"Index({self._number})"


SELECTIONS = [
    1,
    -1,
    (1, 2),
    (1, ..., 2),
    (..., 1),
    ...,
    (),
    slice(1, 5, 3),
    (slice(None), 2),
    np.int64(1),
    (np.int64(1), slice(1, 6)),
    [1, 3],
    [3, -1, 3],
    ([1, 3], slice(None, 2)),
    (slice(None, 2), np.array([6, 0])),
    (1, [0, 2]),
    (np.int64(1), np.int64(2)),
    (np.uint8(1), 2),
    (1, np.int16(-2)),
    (np.int64(1), [0, 2]),
    ([3, -1, 3], np.int64(1)),
    (np.int64(1), np.array([0, 2])),
    [np.int64(1), np.int64(3)],
    np.array([1, -3], "i4"),
    np.array([1, 3], "i1"),
    np.array([1, 3], ">i8"),
    slice(np.int64(1), np.int64(5), np.int64(3)),
]
OF_ZARR = [
    7,
    (1, -8),
    slice(5, 1),
    slice(None, None, -1),
    slice(1, 3, 0),
    True,
    1.0,
    None,
    "a",
    [],
    [7],
    [1.0],
    ([1, 3], [0, 2]),
    ([1], ...),
    (..., ...),
    (1, 2, 3),
    range(2),
    np.ones(6, bool),
    np.ones((6, 7), bool),
    np.array([[1, 3]]),
    np.array(1),
    np.timedelta64(1, "D"),
    np.array([1, 3], "u8"),
    (np.int64(1), [0, 2], ...),
    (np.uint64(1), [0, 2]),  # which zarr 3.1.6 refuses
    (np.int8(1), [0, 2]),
    [np.uint8(1)],
    [np.timedelta64(1, "D")],
    slice(0, 5, Index(2)),  # as NumPy would take it
    (slice(0, 5, Index(2)), 1),
]


class TestIntegersOfNumPy:
    """Samples are often chosen by `rng.integers`: they took ten times as long as other integers."""

    @pytest.mark.parametrize("dtype", ["u1", ">f8", "S3", "M8[s]", [("a", "<i2"), ("b", "f4")]])
    @pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
    def test_single_elements(self, tmp_path, asked_of_zarr, dtype, shape):
        array = create(tmp_path / "a", shape, dtype=np.dtype(dtype))
        array[...] = np.frombuffer(bytes(range(6 * array.dtype.itemsize)), array.dtype).reshape(
            shape
        )
        reader = SyncReader(array)
        for kind in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
            for index in np.ndindex(shape):
                numbers = tuple(map(kind, index))
                for selection in (numbers, (*index[:-1], numbers[-1]), (*numbers, ...)):
                    expected = outcome(lambda: array[selection])  # noqa: B023
                    asked_of_zarr.clear()
                    assert outcome(lambda: reader[selection]) == expected  # noqa: B023
                    assert not asked_of_zarr

    @pytest.mark.parametrize("kind", ["i1", "i2", "i4", ">i4"])
    def test_short_indices(self, tmp_path, asked_of_zarr, kind):
        """Versions of zarr compute with them in their own data type, in which some overflow."""
        most = min(np.iinfo(kind).max, 10**6)
        for size, chunk in ((most, most), (most, 7), (most + 1, most), (most - 1, most + 1)):
            array = create(tmp_path / f"{kind} {size} {chunk}", (size,), (chunk,), dtype="u1")
            indices = np.array([0, -1, 5, most - 2, -most + 2], kind)
            expected = outcome(lambda: array[indices.copy()])  # noqa: B023
            asked_of_zarr.clear()
            assert outcome(lambda: SyncReader(array)[indices]) == expected  # noqa: B023
            is_left = max(size, chunk) > np.iinfo(kind).max
            assert len(asked_of_zarr) == is_left


@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_what_is_read_without_zarr(array, asked_of_zarr, selection):
    """Scalars or arrays, in the byte order of the array."""
    expected = outcome(lambda: array[selection])
    asked_of_zarr.clear()
    assert outcome(lambda: SyncReader(array)[selection]) == expected
    assert not asked_of_zarr


@pytest.mark.parametrize("selection", OF_ZARR, ids=repr)
def test_what_zarr_reads_or_refuses(array, asked_of_zarr, selection):
    expected = outcome(lambda: array[selection])
    asked_of_zarr.clear()
    assert outcome(lambda: SyncReader(array)[selection]) == expected
    assert len(asked_of_zarr) == 1


def test_in_the_calling_thread(array, monkeypatch):
    """No other thread opens a file, and no event loop runs."""
    reader, threads, system = SyncReader(array), [], os.open

    def note(*args, **kwargs):
        threads.append(threading.current_thread())
        return system(*args, **kwargs)

    monkeypatch.setattr(os, "open", note)
    monkeypatch.setattr(zarr.core.sync, "sync", None)
    assert reader[1].tolist() == DATA[1].tolist()
    assert threads == [threading.current_thread()] * 2


@pytest.mark.needs("os.preadv")
def test_a_long_run_is_read_by_one_call(tmp_path, monkeypatch):
    """On tmpfs and overlays, a call was refused, and the bytes were copied once more."""
    array = create(tmp_path / "a", (8, 1 << 10), endian=sys.byteorder)
    array[...] = 7
    reader, calls, system = SyncReader(array), [], os.preadv

    def note(descriptor, buffers, offset, flags=0):
        calls.append((offset, flags))
        return system(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", note)
    assert reader[3].tolist() == [7] * (1 << 10)
    assert calls == [(3 << 13, 0)]


def test_samples_at_random_share_a_plan(tmp_path):
    """Each was planned: with more samples than plans are cached, a read took twice as long."""
    array = create(tmp_path / "a", (300, 9, 9), (300, 9, 9))
    array[...] = values = np.arange(300 * 81.0).reshape(300, 9, 9)
    reader = SyncReader(array)
    assert reader[0, 1:4, 2:].tolist() == values[0, 1:4, 2:].tolist()
    before = plan_of_chunk.cache_info().misses
    for number in range(1, 300):
        first = number % 5
        window = number, slice(first, first + 3), slice(2, None)
        assert reader[window].tolist() == values[window].tolist()
    assert plan_of_chunk.cache_info().misses == before


def random_array(rng, folder):
    """Return an array of any layout, data type and local store, some of it missing or damaged."""
    num_axes = rng.choice([0, 1, 1, 2, 2, 2, 3, 4])
    shape = tuple(rng.randint(0 if rng.random() < 0.05 else 1, 12) for _ in range(num_axes))
    chunks = tuple(rng.randint(1, 6) for _ in range(num_axes))
    dtype = np.dtype(rng.choice([*DTYPES, "u1", "i2", ">f8", [("a", "<i2"), ("b", "?")]]))
    if dtype.kind == "V" and not HAS_STRUCT:  # zarr 3.1.6 can't write shards of these
        dtype = np.dtype("S6")
    settings = {"shape": shape, "chunks": chunks, "dtype": dtype, "compressors": None}
    # zarr 3.1.6 loses the byte order of what a single byte is converted to.
    is_converted = dtype.kind in "iuf" and dtype.itemsize > 1 and rng.random() < 0.3
    if rng.random() < 0.3:
        filters = [numcodecs.AsType("<f8", dtype.str)] if is_converted else None
        settings |= {"zarr_format": 2, "order": rng.choice("CF"), "filters": filters}
    elif num_axes and is_converted:
        decoded = dtype.newbyteorder("=").str
        settings["filters"] = [AsType(encode_dtype="<f8", decode_dtype=decoded)]
        settings["serializer"] = zarr.codecs.BytesCodec(endian=rng.choice(["little", "big"]))
        if rng.random() < 0.5:
            settings["shards"] = tuple(2 * n for n in chunks)
    elif num_axes:
        kind = rng.choice(["plain", "transposed", "sharded"])
        if kind == "transposed":
            order = tuple(rng.sample(range(num_axes), num_axes))
            settings["filters"] = [zarr.codecs.TransposeCodec(order=order)]
        if kind == "sharded":
            settings["shards"] = tuple(n * rng.randint(1, 3) for n in chunks)
    if rng.random() < 0.2:
        settings["config"] = {"order": "F"}
    array = zarr.create_array(folder / "a", **settings)
    fill(rng, array)
    stored = [path for path in (folder / "a").rglob("*") if path.is_file()]
    stored = [path for path in stored if not path.name.startswith((".z", "zarr.json"))]
    if stored and rng.random() < 0.2:
        damage(rng, rng.choice(stored))
    return zarr.open_array(random_store(rng, folder / "a"), mode="r")


def random_store(rng, folder):
    """Return a store of the files of an array; without the packages of some, the folder itself."""
    kind = rng.choice(["folder"] * 5 + ["memory"] * 2 + ["zip", "references", "obstore"])
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): path for path in paths}
    if kind == "memory":
        raw = {name: cpu.Buffer.from_bytes(file.read_bytes()) for name, file in files.items()}
        return zarr.storage.MemoryStore(raw, read_only=True)
    if kind == "zip":
        path = folder.with_suffix(".zip")
        with zipfile.ZipFile(path, "w") as archive:
            for name, file in files.items():
                archive.write(file, name)
        return zarr.storage.ZipStore(path, mode="r")
    if kind == "references" and module_or_none("fsspec"):
        parts = {}
        for name, file in files.items():
            raw = file.read_bytes()
            if file.name.startswith((".z", "zarr.json")):
                parts[name] = raw.decode()
            else:
                file.write_bytes(b"header" + raw + b"more")
                parts[name] = [file.as_uri(), 6, len(raw)]
        return reference_store(parts)
    if kind == "obstore" and (stores := module_or_none("obstore.store")):
        return zarr.storage.ObjectStore(stores.LocalStore(folder), read_only=True)
    return folder


def fill(rng, array):
    """Write some regions of an array."""
    shape = array.shape
    values = random_elements(array.dtype, shape)
    if array.dtype.kind in "iu":
        values %= 100  # so that codecs convert them to floats and back
    for _ in range(rng.randint(0, 3)):
        along = [sorted(rng.sample(range(n + 1), 2)) if n else (0, 0) for n in shape]
        region = tuple(slice(*bounds) for bounds in along)
        array[region if shape else ...] = values[region]


def damage(rng, path):
    kind = rng.choice(["cut", "longer", "a folder"])
    if kind == "cut":
        os.truncate(path, rng.randrange(path.stat().st_size + 1))
    elif kind == "longer":
        path.write_bytes(path.read_bytes() + b"more")
    else:
        path.unlink()
        path.mkdir()


def random_selector(rng, size):
    num = max(size, 1)
    kind = rng.choice(["index"] * 4 + ["slice"] * 4 + ["list", "array", "NumPy", "odd"])
    if kind == "index":
        return rng.randint(-num - 1, num)
    if kind == "slice":
        bounds = [rng.choice([None, rng.randint(-num - 1, num + 1)]) for _ in range(2)]
        return slice(*bounds, rng.choice([None, None, None, 1, 2, 3, 7, -1, 0]))
    indices = [rng.randint(-num, num - 1) for _ in range(rng.randint(0, 5))]
    if kind == "list":
        return indices
    if kind == "array":
        return np.array(indices, rng.choice(["i8", "i2", "f8"]))
    if kind == "NumPy":
        return np.int64(rng.randint(-num, num - 1))
    return rng.choice([None, True, 1.0, "a", np.ones(size, bool), range(2), np.array(0)])


def random_selection(rng, shape):
    num = rng.choice([len(shape)] * 6 + [len(shape) + 1, max(len(shape) - 1, 0)])
    keys = [random_selector(rng, (*shape, 3)[min(k, len(shape))]) for k in range(num)]
    if rng.random() < 0.2:
        keys.insert(rng.randint(0, len(keys)), ...)
    return keys[0] if len(keys) == 1 and rng.random() < 0.5 else tuple(keys)


def moved(rng, selection):
    """Return a selection that begins elsewhere, and is of the same form."""
    if isinstance(selection, tuple):
        return tuple(moved(rng, selector) for selector in selection)
    if type(selection) is slice and selection.start is not None and selection.stop is not None:
        by = rng.randint(-2, 4)
        return slice(selection.start + by, selection.stop + by, selection.step)
    return rng.randint(-6, 6) if type(selection) is int else selection


@pytest.mark.parametrize("seed", range(40 if EVERYTHING else 20))
def test_random_programs(tmp_path, seed):
    """Each result, or kind of error, is that of the array: 25,000 in a sample."""
    rng, num_arrays = random.Random(seed), 25  # noqa: S311 # no secret
    for number in range(num_arrays):
        folder = tmp_path / str(number)
        folder.mkdir()
        array = random_array(rng, folder)
        reader = SyncReader(array)
        selection = ...
        for _ in range(50):
            is_of_same_form = rng.random() < 0.5
            selection = (
                moved(rng, selection) if is_of_same_form else random_selection(rng, array.shape)
            )
            copies = pickle.loads(pickle.dumps(selection))  # noqa: S301 # zarr changes some arrays
            expected = outcome(lambda: array[selection])  # noqa: B023
            assert outcome(lambda: reader[copies]) == expected, (array.metadata, copies)  # noqa: B023
        array.store.close()


class TestForms:
    """Selections that differ only in where they begin are planned once."""

    @pytest.mark.parametrize("order", ["C", "F"])
    def test_every_window_of_an_array(self, tmp_path, order):
        """Also those that end beyond the array, or in the next chunk."""
        array = create(tmp_path / "a", (7, 9), (3, 4), config={"order": order})
        array[...] = values = np.arange(63.0).reshape(7, 9)
        reader = SyncReader(array)
        for row, column, height, width, step in itertools.product(
            range(8), range(10), (1, 3), (1, 2, 4), (None, 2)
        ):
            window = slice(row, row + height), slice(column, column + width, step)
            got = reader[window]
            assert got.tolist() == values[window].tolist()
            assert got.flags.c_contiguous == array[window].flags.c_contiguous
        for row, column in itertools.product(range(-7, 7), range(-9, 9)):
            assert reader[row, column] == values[row, column]
            assert reader[row, column:].tolist() == values[row, column:].tolist()

    @pytest.mark.parametrize("odd", [True, np.True_, 1.0, np.float64(1), "1", None, [1], Index(1)])
    def test_selectors_that_equal_an_integer(self, array, odd):
        """They are refused, or taken for something else, as by zarr, although 1 has been read."""
        reader = SyncReader(array)
        for make in (
            lambda x: x,
            lambda x: (x, 2),
            lambda x: slice(x, 3),
            lambda x: slice(0, 3, x),
        ):
            assert outcome(lambda: reader[make(1)]) == outcome(lambda: array[make(1)])  # noqa: B023
            expected = outcome(lambda: array[make(odd)])  # noqa: B023
            assert outcome(lambda: reader[make(odd)]) == expected  # noqa: B023

    def test_more_forms_than_are_kept(self, tmp_path):
        array = create(tmp_path / "a", (300,), (300,))
        array[...] = values = np.arange(300.0)
        reader = SyncReader(array)
        for _ in range(2):
            for length in range(1, 200):
                assert reader[7 : 7 + length].tolist() == values[7 : 7 + length].tolist()

    def test_a_limit_of_gaps_that_changes(self, tmp_path):
        """The form is planned again: the bytes that are read are those that the option says."""
        array = create(tmp_path / "a", (100, 100), (100, 100))
        array[...] = values = np.arange(1e4).reshape(100, 100)
        reader = SyncReader(array)
        for gap in (0, 1 << 20, 0):
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": gap}):
                assert reader[3:6, 2:4].tolist() == values[3:6, 2:4].tolist()

    def test_a_slice_that_ends_far_away(self, array):
        """It was an own bug, as an integer that is too large for NumPy's."""
        selection = slice(np.int64(4), 2**70)
        assert SyncReader(array)[selection].tolist() == DATA[4:].tolist()

    def test_a_file_that_is_closed_with_an_error(self, array, monkeypatch):
        def close(descriptor):
            system(descriptor)
            raise OSError(errno.EIO, "it has been read")

        system = os.close
        monkeypatch.setattr(os, "close", close)
        assert SyncReader(array)[1, 2] == DATA[1, 2]

    def test_a_reference_that_changes(self, tmp_path):
        """The last chunk was still read where it was."""
        for name, first in ("a", 0), ("b", 100):
            (tmp_path / name).write_bytes(np.arange(first, first + 8, dtype="<i4").tobytes())
        array = zarr.create_array({}, shape=8, chunks=8, dtype="<i4", compressors=None)
        metadata = array.store._store_dict["zarr.json"].to_bytes().decode()
        chunk = [str(tmp_path / "a"), 0, 32]
        store = reference_store({"zarr.json": metadata, "c/0": chunk})
        reader = SyncReader(zarr.open_array(store, mode="r"))
        assert reader[3] == 3
        store.fs.references["c/0"] = [str(tmp_path / "b"), 0, 32]
        assert reader[3] == 103
        store.fs.references["c/0"] = [str(tmp_path / "b"), 4, 32]
        with pytest.raises(ValueError, match="chunk"):
            reader[3]
        del store.fs.references["c/0"]
        assert reader[3] == 0

    def test_it_moves_with_its_store(self, array, tmp_path):
        """The place of the last chunk is not kept if the store has another folder."""
        reader = SyncReader(array)
        assert reader[1, 2] == DATA[1, 2]
        other = create(tmp_path / "other" / "a", DATA.shape, (3, 4))
        other[...] = -DATA
        array.store.root = other.store.root
        assert reader[1, 2] == -DATA[1, 2]


class TestInMemory:
    """zarr's own MemoryStore is read without an event loop, too."""

    @pytest.fixture(params=["little", "big", "shards", "an index first", "no checksum"])
    def in_memory(self, request):
        settings = {"chunks": (3, 4), "compressors": None}
        if request.param in ("little", "big"):
            settings["serializer"] = zarr.codecs.BytesCodec(endian=request.param)
        elif request.param == "shards":
            settings["shards"] = 6, 8
        else:
            is_first = request.param == "an index first"
            settings["chunks"] = 6, 8
            settings["serializer"] = zarr.codecs.ShardingCodec(
                chunk_shape=(3, 4),
                codecs=[zarr.codecs.BytesCodec()],
                index_codecs=[zarr.codecs.BytesCodec(), *[zarr.codecs.Crc32cCodec()] * is_first],
                index_location="start" if is_first else "end",
            )
        array = zarr.create_array(zarr.storage.MemoryStore(), shape=(6, 7), dtype="f8", **settings)
        array[...] = DATA
        return array

    def test_small_selections_are_copies(self, in_memory, asked_of_zarr):
        reader = SyncReader(in_memory)
        for selection in [np.s_[1:3, 4:6], np.s_[3:6, 1], np.s_[2, :3], np.s_[4:, :4:2]] * 2:
            got = reader[selection]
            assert got.tolist() == DATA[selection].tolist()
            got[...] = -1
        assert reader[1, 2] == DATA[1, 2]
        assert not asked_of_zarr

    def test_a_trace_counts_the_same(self, in_memory):
        """The reason became a column, and no chunk was counted."""
        reports = []
        for read in (in_memory, SyncReader(in_memory)):
            with numcodecs_bytes.trace() as traced:
                assert read[1, 2] == DATA[1, 2]
            reports.append(traced.report())
        assert reports[0] == reports[1]

    def test_what_is_replaced_deleted_or_cut(self, in_memory):
        reader, store = SyncReader(in_memory), in_memory.store._store_dict
        assert reader[1, 2] == DATA[1, 2]
        in_memory[...] = -DATA
        assert reader[1, 2] == -DATA[1, 2]
        key = next(key for key in store if key.startswith("c/0/0"))
        whole = store.pop(key)
        assert reader[1, 2] == 0
        for raw in (whole.to_bytes()[:-1], whole.to_bytes() + b"more", b""):
            store[key] = cpu.Buffer.from_bytes(raw)
            assert outcome(lambda: reader[1, 2]) == outcome(lambda: in_memory[1, 2])
        store[key] = whole
        assert reader[1, 2] == -DATA[1, 2]

    def test_a_shard_that_is_deleted_is_freed(self, in_memory):
        """Its index was kept with all of it."""
        reader, store = SyncReader(in_memory), in_memory.store._store_dict
        assert reader[1, 2] == DATA[1, 2]
        key = next(key for key in store if key.startswith("c/0/0"))
        raw = weakref.ref(store[key].as_array_like())
        del store[key]
        assert eventually(lambda: raw() is None)

    def test_bools_that_are_neither_0_nor_1(self):
        """zarr's own codec, which reads what is in memory, returns them as they are."""
        array = zarr.create_array({}, shape=8, chunks=8, dtype="?", compressors=None)
        raw = bytes([0, 1, 2, 255, 3, 0, 1, 128])
        array.store._store_dict["c/0"] = cpu.Buffer.from_bytes(raw)
        assert [SyncReader(array)[k].tobytes() for k in range(8)] == [
            array[k].tobytes() for k in range(8)
        ]

    def test_an_index_that_is_damaged_in_place(self):
        """Its checksum was compared with that of the index that was cached, and nothing else."""
        array = zarr.create_array(
            {}, shape=(8,), chunks=(2,), shards=(8,), dtype="u1", compressors=None, fill_value=0
        )
        array[...] = np.arange(8)
        reader = SyncReader(array)
        assert reader[3] == 3
        raw = array.store._store_dict["c/0"].as_array_like()
        raw.flags.writeable = True
        raw[-20] ^= 1
        with pytest.raises(ValueError, match="checksum"):
            reader[3]

    def test_odd_stores_are_zarr_s(self, in_memory, asked_of_zarr):
        """Also zarr's own, if its chunks are not in a plain dict, or are other buffers."""

        class Store(zarr.storage.MemoryStore):
            pass

        class Mapping(dict):
            def get(self, *_):
                raise AssertionError

        class Buffer(cpu.Buffer):
            pass

        stored = in_memory.store._store_dict
        of_class = {key: Buffer.from_bytes(value.to_bytes()) for key, value in stored.items()}
        stores = zarr.storage.MemoryStore(Mapping(stored)), zarr.storage.MemoryStore(of_class)
        for store in (*stores, Store(stored)):
            array = zarr.open_array(store, mode="r")
            asked_of_zarr.clear()
            assert SyncReader(array)[1, 2] == DATA[1, 2]
            assert asked_of_zarr


def test_iteration_goes_by_the_first_axis(array):
    """It ends where the array ends, also one that is resized meanwhile."""
    reader = SyncReader(array)
    for (row, label), expected in zip(zip(reader, range(6), strict=True), DATA, strict=True):
        assert row.tolist() == expected.tolist()
        assert label == expected[0] // 7
    rows = iter(reader)
    assert next(rows).tolist() == DATA[0].tolist()
    array.resize((2, 7))
    assert [row.tolist() for row in rows] == [DATA[1].tolist()]
    assert list(SyncReader(zarr.create_array({}, shape=(), dtype="f4", compressors=None))) == []


def test_iteration_goes_on_after_an_error(array):
    reader = SyncReader(array)
    rows, path = iter(reader), array.store.root / array.path / "c/0/0"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    with pytest.raises(ValueError, match="chunk"):
        next(rows)
    path.write_bytes(raw)
    assert [row.tolist() for row in rows] == DATA.tolist()


class Scaled(SyncReader):
    def __init__(self, array, factor):
        super().__init__(array)
        self._factor = factor

    def __getitem__(self, selection):
        return super().__getitem__(selection) * self._factor


class TestLikeAnArray:
    def test_attributes(self, array):
        reader = SyncReader(array)
        assert (reader.shape, reader.dtype, reader.ndim) == ((6, 7), np.dtype("f8"), 2)
        assert (reader.size, len(reader)) == (42, 6)
        assert reader.array is array
        assert [row.tolist() for row in reader] == DATA.tolist()
        assert np.array_equal(np.asarray(reader), DATA)
        assert np.asarray(reader, "f4").dtype == "f4"
        with pytest.raises(TypeError, match="without axes"):
            len(SyncReader(zarr.create_array({}, shape=(), dtype="f4")))

    def test_truth(self):
        """`reader or default` returned the default if its length was 0."""
        for shape in ((), (0, 3), (3,)):
            array = zarr.create_array({}, shape=shape, dtype="f4")
            assert bool(SyncReader(array)) == bool(array)

    def test_equality(self, array):
        """That of their arrays, which have no hash."""
        reader, same = SyncReader(array), zarr.open_array(array.store, path=array.path)
        assert reader == SyncReader(same)
        assert reader != SyncReader(zarr.create_array({}, shape=(3,), dtype="f4"))
        assert reader != array
        with pytest.raises(TypeError, match="unhashable"):
            hash(reader)

    @pytest.mark.parametrize("other", [DATA, "a", None], ids=["NumPy", "a path", "None"])
    def test_of_something_else(self, other):
        with pytest.raises(
            TypeError, match=r"takes a zarr.Array, got .*; pass what zarr.open_array"
        ):
            SyncReader(other)

    def test_of_what_has_an_array(self, tmp_path):
        """It was told to open the array, which it has."""
        group = zarr.create_group(tmp_path)
        array = group.create_array("NAME", shape=3, dtype="f4", dimension_names=["x"])
        others = {
            'Group; pass one of its arrays, group["NAME"]': (group, lambda: group["NAME"]),
            "SyncReader; pass its array, reader.array": (SyncReader(array), lambda: array),
            "AsyncArray; pass zarr.Array(async_array)": (
                array.async_array,
                lambda: zarr.Array(array.async_array),
            ),
        }
        if xarray := module_or_none("xarray"):
            opened = xarray.open_zarr(tmp_path, consolidated=False, chunks=None)["NAME"]
            how = 'DataArray; pass the array in its store, zarr.open_group(STORE, mode="r")["NAME"]'
            others[how] = opened, lambda: zarr.open_group(tmp_path, mode="r")["NAME"]
        for said, (other, follow) in others.items():
            with pytest.raises(TypeError, match=f"^SyncReader takes a .*{re.escape(said)}$"):
                SyncReader(other)
            assert SyncReader(follow())[1] == 0

    def test_it_does_not_write(self, array):
        """Python said that it "does not support item assignment"."""
        reader = SyncReader(array)
        with pytest.raises(TypeError, match=r"only reads; write by its array: reader\.array\["):
            reader[0] = 7
        reader.array[0] = 7
        assert reader[0].tolist() == [7] * 7

    def test_repr_says_whether_it_reads_itself(self, array, tmp_path):
        assert repr(SyncReader(array)).endswith(": small selections are read directly>")
        compressed = zarr.create_array({}, shape=(4,), dtype="f4")
        assert "zarr reads it: compressed or filtered by" in repr(SyncReader(compressed))
        memory = zarr.create_array({}, shape=(4,), dtype="f4", compressors=None)
        assert repr(SyncReader(memory)).endswith(": small selections are read directly>")
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("zarr.json", "c/0/0"):
                archive.write(array.store.root / name, name)
        deflated = zarr.open_array(zarr.storage.ZipStore(tmp_path / "a.zip"), mode="r")
        assert "zarr reads it: it is compressed, or encrypted, in" in repr(SyncReader(deflated))
        with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
            other = zarr.open_array(array.store, mode="r")
        assert "BatchedCodecPipeline is the codec pipeline" in repr(SyncReader(other))

    def test_it_follows_an_array_that_is_resized(self, array):
        reader = SyncReader(array)
        assert reader[5, 6] == DATA[5, 6]
        array.resize((8, 3))
        assert reader.shape == (8, 3)
        assert reader[7].tolist() == [0] * 3
        with pytest.raises(IndexError):
            reader[5, 6]

    def test_a_pickled_reader(self, array):
        reader = SyncReader(array)
        assert reader[1, 2] == DATA[1, 2]
        raw = pickle.dumps(reader)
        assert len(raw) < len(pickle.dumps(array)) + 200
        assert pickle.loads(raw)[1, 2] == DATA[1, 2]  # noqa: S301

    @pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
    def test_a_pickled_subclass(self, array, protocol):
        """It became a `SyncReader`, and lost what it had added."""
        reader = Scaled(array, factor=2)
        assert reader[1, 2] == 2 * DATA[1, 2]
        for again in (pickle.loads(pickle.dumps(reader, protocol)), copy.copy(reader)):  # noqa: S301
            assert type(again) is Scaled
            assert again[1, 2] == 2 * DATA[1, 2]

    def test_options_hold(self, array, asked_of_zarr):
        reader = SyncReader(array)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}), numcodecs_bytes.trace() as t:
            assert reader[::2, 0].tolist() == DATA[::2, 0].tolist()
        assert t.report()["total"]["bytes_fetched"] == 3 * 8
        assert not asked_of_zarr

    def test_options_of_a_section_with_a_hyphen(self, array):
        """As YAML may write it: changes were not seen, and gaps of the first setting were read."""
        array = zarr.open_array(array.store, path=array.path)
        for size in (0, "1 MiB"):
            with zarr.config.set({"numcodecs-bytes.max_gap_bytes": size}):
                with numcodecs_bytes.trace() as traced:
                    array[:3, 0]
                assert traced.report()["total"]["requests"] == (1 if size else 3)

    def test_repr_of_a_reader_with_a_wrong_option(self, array):
        """It raised the error."""
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": "x"}):
            assert "max_gap_bytes in zarr's config must be" in repr(SyncReader(array))
            with pytest.raises(ValueError, match="max_gap_bytes in zarr's config must be"):
                SyncReader(array)[0]

    def test_missing_chunks_may_be_errors(self, array):
        """They were filled, although zarr's config says that they are errors."""
        error = getattr(zarr.errors, "ChunkNotFoundError", None)
        if error is None:
            pytest.skip("this zarr has no such setting")
        (Path(array.store.root) / array.path / "c/1/1").unlink()
        reader = SyncReader(array.with_config({"read_missing_chunks": False}))
        assert reader[0, 6] == DATA[0, 6]
        with pytest.raises(error, match="1"):
            reader[5, 6]
        assert SyncReader(array)[5, 6] == 0

    @pytest.mark.parametrize("zarr_fails", [pytest.param(False, marks=pytest.mark.own_bug), True])
    def test_an_own_bug(self, array, caplog, monkeypatch, zarr_fails):
        """zarr reads instead; if it fails just so, the bug is none. That was logged, too."""

        def fail(_, selection):
            int(selection)

        monkeypatch.setattr(numcodecs_bytes.sync_reader, "form_key", int)
        reader = SyncReader(array)
        if not zarr_fails:
            assert reader[1, 2] == DATA[1, 2]
            assert "please report this" in caplog.text
            return
        monkeypatch.setattr(zarr.Array, "__getitem__", fail)
        with pytest.raises(TypeError, match="argument"):
            reader[1, 2]
        assert not caplog.records

    def test_buffers_of_a_gpu(self, array, asked_of_zarr):
        """With ``zarr.config.enable_gpu()``, it returned an array of NumPy instead of CuPy."""

        class Other(cpu.NDBuffer):
            pass

        zarr.registry.register_ndbuffer(Other, "tests.Other")
        reader = SyncReader(array)
        reader[1]
        assert not asked_of_zarr
        with zarr.config.set({"ndbuffer": "tests.Other"}):
            assert reader[1].tolist() == DATA[1].tolist()
            assert "zarr reads it: zarr's config sets other buffers" in repr(reader)
        assert asked_of_zarr == [1]

    def test_a_trace(self, array):
        reader = SyncReader(array)
        with numcodecs_bytes.trace() as traced:
            assert reader[1].tolist() == DATA[1].tolist()
            assert reader[np.ones((6, 7), bool)].tolist() == DATA.ravel().tolist()
        total = traced.report()["total"]
        assert (total["chunks"], total["bytes_selected"]) == (2 + 4, 7 * 8 + 42 * 8)
        assert total["why_not_direct"] == {"the selection is of another kind": 1}
        assert "1 selection of " in str(traced)  # not 1 chunk
        assert "left to zarr by SyncReader: the selection is of another kind" in str(traced)


class TestOtherArrays:
    """What `array[selection]` returns is up to others, too."""

    def test_a_subclass_of_zarrs_array(self, array):
        class Doubled(zarr.Array):
            def __getitem__(self, selection):
                return super().__getitem__(selection) * 2

        reader = SyncReader(Doubled(array.async_array))
        assert reader[1].tolist() == (2 * DATA[1]).tolist()
        assert "Doubled may read in another way" in repr(reader)

    def test_zarr_is_set_to_return_another_kind(self, array):
        """As by ``zarr.config.enable_gpu()``, also after the first read."""

        class Marked(np.ndarray):
            pass

        class Buffer(zarr.core.buffer.cpu.NDBuffer):
            def as_ndarray_like(self):
                return super().as_ndarray_like().view(Marked)

        zarr.registry.register_ndbuffer(Buffer)
        reader = SyncReader(array)
        assert type(reader[1]) is np.ndarray
        with zarr.config.set({"ndbuffer": f"{__name__}.{Buffer.__qualname__}"}):
            assert type(array[1]) is Marked
            assert type(reader[1]) is Marked
        assert type(reader[1]) is np.ndarray

    def test_what_is_left_to_zarr_is_not_kept(self):
        """Each read of an array in memory kept memory for its result."""
        array = create({}, (1 << 18,), dtype="f8")  # more than a reader reads itself
        reader = SyncReader(array)
        reader[:]
        tracemalloc.start()
        try:
            for _ in range(20):
                reader[:]
            assert eventually(lambda: tracemalloc.get_traced_memory()[0] < array.nbytes)
        finally:
            tracemalloc.stop()

    def test_a_config_of_another_kind(self, array, monkeypatch):
        """As of a later zarr, whose pipeline reads: `repr` raised, and a read logged a bug."""
        with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
            reader = SyncReader(zarr.open_array(array.store, path=array.path))

        class Typed:
            def get(self, key, default=None):
                return config.get(key, default)

        config = zarr.config
        for module in (zarr, numcodecs_bytes.sync_reader.zarr):
            monkeypatch.setattr(module, "config", Typed())
        assert reader[1].tolist() == DATA[1].tolist()
        assert "BatchedCodecPipeline is the codec pipeline" in repr(reader)

    @pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**64])
    def test_arrays_that_are_longer_than_numpy_s(self, tmp_path, size):
        """A slice of one was an own bug."""
        array = create(tmp_path / "a", (size, 2), (1, 2), dtype="u1")
        reader = SyncReader(array)
        for selection in (5, np.s_[2:4], np.s_[size - 1 :], np.s_[:], ...):
            expected = outcome(lambda: array[selection])  # noqa: B023
            assert outcome(lambda: reader[selection]) == expected  # noqa: B023


DEEP = """
import sys, warnings
import numpy as np
import zarr
from numcodecs_bytes import SyncReader

warnings.simplefilter("ignore")

def read(source, depth):
    return read(source, depth - 1) if depth else source[selection]

def deepest(source):
    for depth in range(sys.getrecursionlimit(), 0, -1):
        try:
            assert read(source, depth).tolist() == expected
            return depth
        except RecursionError:
            pass

array = zarr.open_array(sys.argv[1], mode="r")
reader = SyncReader(array)
for selection in (3, np.s_[1:5:2, ::3], [1, 5]):
    expected = reader[selection].tolist()
    # How deep zarr calls depends on how soon its thread has read.
    of_reader = max(deepest(reader) for _ in range(10))
    depth = min(deepest(array) for _ in range(10))
    assert of_reader >= depth - 1, (selection, depth, of_reader)  # its own frame
"""


def test_near_the_recursion_limit(array, tmp_path):
    """Up to six frames before the limit, a read failed that zarr still does: it logged a bug."""
    program = tmp_path / "program.py"
    program.write_text(DEEP, encoding="utf-8")
    said = run_python(program, array.store.root).stderr  # by tasks of zarr, perhaps
    assert "has a bug" not in said


def test_a_trace_counts_a_chunk_once(array, monkeypatch):
    """Also if zarr reads all of them, because one of them is left to it."""
    reader, system = SyncReader(array), os.open

    def refuse_one(path, *args, **kwargs):
        if threading.current_thread() is threading.main_thread() and str(path).endswith("c/0/1"):
            raise PermissionError(errno.EACCES, "refused")
        return system(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse_one)
    with numcodecs_bytes.trace() as traced:
        assert reader[1].tolist() == DATA[1].tolist()
    assert traced.report()["total"]["chunks"] == 2


class TestLimits:
    """What takes zarr's threads less time is left to them."""

    def test_many_chunks(self, tmp_path, asked_of_zarr):
        array = create(tmp_path / "a", (64,), (4,))
        reader = SyncReader(array)
        reader[:16], reader[::16], reader[[0, 60]]
        assert not asked_of_zarr
        with numcodecs_bytes.trace() as traced:
            reader[:17], reader[::15]
        assert len(asked_of_zarr) == 2
        assert "it selects more than 4 chunks or shards" in str(traced)

    @pytest.mark.parametrize(
        "selection",
        [np.arange(0, 10**15, 10**11), slice(None, None, 10**11), slice(0, 7 * 10**14, 10**14)],
        ids=["a list", "a slice", "a slice of few"],
    )
    def test_far_apart(self, tmp_path, monkeypatch, selection):
        """Only chunks of which something is selected are looked at, and no more than are read."""
        array = create(tmp_path / "a", (10**15,), (1,), dtype="u1")
        monkeypatch.setattr(zarr.Array, "__getitem__", lambda *_: np.zeros(7, "u1"))
        assert SyncReader(array)[selection].tolist() == [0] * 7

    def test_many_bytes(self, tmp_path, asked_of_zarr):
        array = create(tmp_path / "a", (1 << 18,), dtype="f8")
        reader = SyncReader(array)
        reader[: 1 << 17]
        assert not asked_of_zarr
        reader[: (1 << 17) + 1]
        assert len(asked_of_zarr) == 1

    def test_a_slow_file(self, array, asked_of_zarr, set_constants, each_byte_takes):
        """Many short runs are left to zarr's way, whose threads and longer runs are faster."""
        each_byte_takes(1e-3)
        set_constants(GAP_BYTES=0)
        big = create(array.store.root.parent / "b", (64, 8), (64, 8))
        big[...] = 1
        asked_of_zarr.clear()
        assert SyncReader(big)[:, 3].tolist() == [1] * 64
        assert len(asked_of_zarr) == 1
        assert SyncReader(big)[3].tolist() == [1] * 8
        assert len(asked_of_zarr) == 1


class TestShards:
    @pytest.fixture
    def shard(self, tmp_path):
        array = create(tmp_path / "a", (8, 6), (1, 6), dtype="i4", endian="little", shards=(8, 6))
        array[...] = np.arange(48).reshape(8, 6)
        return array

    @pytest.mark.parametrize("change", ["replaced", "rewritten", "cut", "deleted"])
    def test_a_shard_that_changes(self, shard, tmp_path, change):
        """Its index is not believed any more."""
        path = shard.store.root / "c/0/0"
        os.utime(path, (1e9, 1e9))
        reader = SyncReader(shard)
        assert reader[7].tolist() == list(range(42, 48))
        other = create(tmp_path / "b", (8, 6), (1, 6), dtype="i4", endian="little", shards=(8, 6))
        for row in reversed(range(8)):  # inner chunks in another order
            other[row] = row
        raw = (tmp_path / "b/c/0/0").read_bytes()
        if change == "replaced":
            (tmp_path / "b/c/0/0").replace(path)
        elif change == "rewritten":
            path.write_bytes(raw)
        elif change == "cut":
            os.truncate(path, 50)
        else:
            path.unlink()
        assert outcome(lambda: reader[7]) == outcome(lambda: shard[7])
        assert (outcome(lambda: reader[7]) is ValueError) == (change == "cut")


@pytest.mark.parametrize("change", ["replaced", "cut", "deleted", "appears"])
def test_a_chunk_that_changes(array, change):
    reader, path = SyncReader(array), array.store.root / "c/0/0"
    assert reader[1, 2] == DATA[1, 2]
    if change == "replaced":
        array[:3, :4] = -1
    elif change == "cut":
        os.truncate(path, 50)
    elif change == "deleted":
        path.unlink()
    else:
        path.unlink()
        assert reader[1, 2] == 0
        array[...] = 5
    assert outcome(lambda: reader[1, 2]) == outcome(lambda: array[1, 2])


def test_errors_of_lengths_are_ours(array):
    os.truncate(array.store.root / "c/0/0", 50)
    with pytest.raises(ValueError, match="holds 50 bytes, expected 96") as caught:
        SyncReader(array)[0]
    assert "c/0/0" in str(caught.value)


def test_threads_share_a_reader(array):
    reader = SyncReader(array)

    def read(seed):
        rng = random.Random(seed)  # noqa: S311 # no secret
        rows = [rng.randrange(6) for _ in range(300)]
        return all(reader[row].tolist() == DATA[row].tolist() for row in rows)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(16)))


def num_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists descriptors")
def test_many_reads_leave_nothing_open(array):
    reader = SyncReader(array)
    for k in range(2000):
        reader[k % 6]
        with pytest.raises(IndexError):
            reader[9]
        if k == 100:
            before = num_descriptors()
    assert num_descriptors() <= before


INTERRUPTED = """
import os, signal, sys
import numcodecs_bytes, zarr

def read_until_interrupted(number):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + number % 50 * 1e-6)
        for _ in range(1000):  # one may be lost, in a weak reference that ends, for example
            got = reader[number % 6]  # CPython 3.13 does not catch what comes after `assert`
    except KeyboardInterrupt:
        return
    assert got.tolist() == expected[number % 6]

reader = numcodecs_bytes.SyncReader(zarr.open_array(sys.argv[1], mode="r"))
expected = [reader.array[number].tolist() for number in range(6)]
before = len(os.listdir("/proc/self/fd"))
for number in range(1000):
    read_until_interrupted(number)
assert len(os.listdir("/proc/self/fd")) == before
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists descriptors")
def test_interrupts_leave_nothing_open(array, tmp_path):
    """Up to an eighth of them left a file open: those that came while the system opened it."""
    program = tmp_path / "program.py"
    handler = "import signal; signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
    program.write_text(handler + INTERRUPTED, encoding="utf-8")
    run_python(program, array.store.root)


PROGRAM = """
import multiprocessing, sys
import numcodecs_bytes, zarr

def read(reader, numbers, queue):
    queue.put([reader[number].tolist() for number in numbers])

if __name__ == "__main__":
    path, method = sys.argv[1:]
    reader = numcodecs_bytes.SyncReader(zarr.open_array(path, mode="r"))
    expected = [reader.array[number].tolist() for number in range(6)]
    assert [reader[number].tolist() for number in range(6)] == expected
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    workers = [context.Process(target=read, args=(reader, range(6), queue)) for _ in range(2)]
    [worker.start() for worker in workers]
    for _ in workers:
        assert queue.get(timeout=50) == expected
    [worker.join() for worker in workers]
"""


@pytest.mark.needs("os.fork")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_program_that_has_read(array, tmp_path, method):
    """As PyTorch's DataLoader starts them: after a fork, zarr's event loop is gone."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    run_python(program, array.store.root, method)


def test_zarr_reads_if_it_lacks_a_name_that_we_need(tmp_path):
    """With a later version of zarr, SyncReader could not be imported."""
    zarr.create_array(tmp_path / "a", data=np.arange(12.0).reshape(3, 4))
    printed = run_python("-W", "ignore", "-c", WITHOUT_V2_CODEC, tmp_path / "a")
    assert printed.stdout.split() == ["[4.0,", "5.0,", "6.0,", "7.0]"]


WITHOUT_V2_CODEC = """
import contextlib, sys, zarr, zarr.codecs
with contextlib.suppress(ImportError):
    import zarrs  # a plugin that needs it as well
del zarr.codecs._v2
sys.modules["zarr.codecs._v2"] = None
import numcodecs_bytes
print(numcodecs_bytes.SyncReader(zarr.open_array(sys.argv[1], mode="r"))[1].tolist())
"""
