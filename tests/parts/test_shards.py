"""Shards: values as with zarr alone, no byte that is not needed, what is odd left to zarr."""

import asyncio
import functools
import importlib.util
import itertools
import math
import os
import random
import threading
import types

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    DTYPES,
    EVERYTHING,
    HAS_STRUCT,
    ZARRS_PIPELINE,
    CountingStore,
    end_interpreter,
    random_array,
    random_selections,
    ranges_from,
    select,
    set_costs,
    spec_of,
    use_threads,
)
from zarr.codecs import Crc32cCodec, ShardingCodec, TransposeCodec, ZstdCodec

from numcodecs_bytes import zarr_pipeline
from numcodecs_bytes._parts import refusals
from numcodecs_bytes._parts.stores import LOCAL_COSTS, local_coalescing
from numcodecs_bytes._zarr_versions import encode_index
from numcodecs_bytes.check import check
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 spec"),
    pytest.mark.usefixtures("our_pipeline"),
]
ZARR_ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "codecs.bytes": "zarr.codecs.bytes.BytesCodec"}
MIB = 1 << 20


def create_shards(store, shape, shard, inner, dtype="f4", **settings):
    """Create an array; `settings` are those of the sharding codec."""
    settings = {"codecs": [BytesCodec(endian="little")], **settings}
    return zarr.create_array(
        store,
        shape=shape,
        chunks=shard,
        dtype=dtype,
        serializer=ShardingCodec(chunk_shape=inner, **settings),
        compressors=None,
        filters=None,
    )


def objects(folder=None):
    """Return an object store in memory with the files of a folder."""
    upstream = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
    store = upstream.MemoryStore()
    for path in folder.rglob("*") if folder else ():
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return zarr.storage.ObjectStore(store)


def of_fsspec(folder):
    return zarr.storage.FsspecStore.from_url(f"file://{folder}", read_only=True)


STORES = [
    of
    for of, package in ((of_fsspec, "fsspec"), (objects, "obstore"))
    if importlib.util.find_spec(package)
]


class Requests(list):
    """The ranges that are requested of objects, and what changes the answers."""

    def __init__(self, monkeypatch):
        super().__init__()
        obstore = pytest.importorskip("obstore", reason="the extra stores is not installed")
        get_async = obstore.get_async
        self.after = lambda: None

        async def get(store, path, *, options=None):
            answer = await get_async(store, path, options=options)
            asked = (options or {}).get("range")
            if asked is None:
                return answer
            self.append((-asked["suffix"], None) if isinstance(asked, dict) else tuple(asked))
            raw = await answer.bytes_async()
            self.after()
            return types.SimpleNamespace(meta=answer.meta, bytes_async=lambda: _return(raw))

        monkeypatch.setattr(obstore, "get_async", get)


async def _return(value):
    return value


@pytest.fixture
def requests(monkeypatch):
    return Requests(monkeypatch)


@pytest.fixture
def left(monkeypatch):
    """Return the list of shards that are read by zarr's own codec."""
    shards_left = []
    codec = ShardingCodec
    for name in ("_decode_partial_single", "_decode_partial_sync"):
        if hasattr(codec, name):
            method = getattr(codec, name)

            def note(self, byte_getter, *args, _method=method):
                shards_left.append(byte_getter)
                return _method(self, byte_getter, *args)

            monkeypatch.setattr(codec, name, note)
    return shards_left


@pytest.mark.parametrize("seed", range(120 if EVERYTHING else 30))
def test_any_selection_of_any_array(tmp_path, seed, monkeypatch, left):
    """Inner chunks, or all of them, may be missing; groups, blocks and gaps are of any size."""
    rng = random.Random(seed)  # noqa: S311
    # zarr 3.1.6 can't write to a part of a shard without axes.
    inner = tuple(rng.randint(1, 6) for _ in range(rng.randint(not HAS_STRUCT, 3)))
    shard = tuple(n * rng.randint(1, 4) for n in inner)
    shape = tuple(rng.randint(1, 2 * n + 1) for n in shard)
    # Nor read raw bytes or structures in shards: their fill values have no hash.
    dtypes = [*DTYPES, [("a", ">i4"), ("b", "<f8")]] if HAS_STRUCT else DTYPES[:-1]
    dtype = np.dtype(rng.choice(dtypes))
    threads = use_threads(rng.choice([1, 2]))
    set_costs(
        monkeypatch,
        local_coalescing,
        block_bytes=rng.choice([20, 200, MIB]),
        whole_bytes=rng.choice([0, LOCAL_COSTS.whole_bytes]),
    )
    codec = rng.choice([BytesCodec, zarr.codecs.BytesCodec])
    codecs = [codec(endian=rng.choice(["little", "big"]))]
    for _ in range(rng.randint(0, 2) if inner else 0):
        codecs.insert(0, TransposeCodec(order=tuple(rng.sample(range(len(inner)), len(inner)))))
    of_index = [codec(endian=rng.choice(["little", "big"]))]
    array = create_shards(
        tmp_path / "a",
        shape,
        shard,
        inner,
        dtype,
        codecs=codecs,
        index_codecs=of_index + [Crc32cCodec()] * rng.randint(0, 1),
        index_location=rng.choice(["start", "end"]),
    )
    data = random_array(dtype, shape)
    for _ in range(rng.randint(0, 3)):
        box = tuple(slice(rng.randrange(n), rng.randint(1, n)) for n in shape)
        array[box] = data[box]
    with zarr.config.set(ZARR_ALONE):
        data = zarr.open_array(tmp_path / "a", mode="r")[...]
    store = rng.choice([*STORES, str, str])(tmp_path / "a")
    gap = rng.choice([None, None, 0, 30])
    with threads, zarr.config.set({"numcodecs_bytes.max_gap_bytes": gap}):
        array = zarr.open_array(store, mode="r", config={"order": rng.choice("CF")})
        left.clear()
        for way, selection, of_numpy in random_selections(rng, shape, 5) if shape else ():
            np.testing.assert_array_equal(select(array, way, selection), of_numpy(data))
        np.testing.assert_array_equal(array[...], data)
    # Of objects, zarr reads those of which all inner chunks are selected.
    assert all(isinstance(g.store, zarr.storage.ObjectStore) for g in left)


class TestBytes:
    """What is fetched of a shard of 4 x 4 inner chunks of 8 x 8 float32."""

    INDEX = 16 * 16 + 4
    SIZE = 16 * 256 + INDEX
    DATA = np.arange(32 * 32, dtype="f4").reshape(32, 32)

    @pytest.fixture(autouse=True)
    def _gap_of_none(self):
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            yield

    @pytest.fixture(params=["start", "end"])
    def folder(self, request, tmp_path):
        # In C order: inner chunk (i, k) is the (4 * i + k)-th on zarr 3.1.6 if it is written so.
        array = create_shards(tmp_path, (32, 32), (32, 32), (8, 8), index_location=request.param)
        array[...] = self.DATA
        return tmp_path

    @pytest.fixture
    def calls(self, monkeypatch):
        """Return the list of positions and lengths that are read from files, and of opens."""
        calls = []
        pread, preadv, open_file_ = os.pread, os.preadv, os.open
        monkeypatch.setattr(os, "pread", lambda d, n, p: calls.append((p, n)) or pread(d, n, p))
        monkeypatch.setattr(
            os,
            "preadv",
            lambda d, b, p, *f: calls.append((p, sum(map(len, b)))) or preadv(d, b, p, *f),
        )
        monkeypatch.setattr(
            os,
            "open",
            lambda path, *a, **k: (
                (calls.append("open") if "c/0" in str(path) else None) or open_file_(path, *a, **k)
            ),
        )
        return calls

    def starts(self, folder):
        """Return where the index begins, and the offsets of the inner chunks."""
        raw = (folder / "c/0/0").read_bytes()
        assert len(raw) == self.SIZE
        is_first = '"start"' in (folder / "zarr.json").read_text()
        at = 0 if is_first else self.SIZE - self.INDEX
        return at, np.frombuffer(raw, "<u8", 32, at).reshape(4, 4, 2)[..., 0].astype(int)

    def test_an_element_of_a_file(self, folder, calls):
        at, offsets = self.starts(folder)
        array = zarr.open_array(folder, mode="r")
        calls.clear()
        assert array[9, 18] == self.DATA[9, 18]
        element = offsets[1, 2] + (8 * 1 + 2) * 4
        assert calls == ["open", (at, self.INDEX), (element, 4)]

    def test_an_element_of_an_object(self, folder, requests):
        at, offsets = self.starts(folder)
        array = zarr.open_array(objects(folder), mode="r")
        assert array[9, 18] == self.DATA[9, 18]
        element = int(offsets[1, 2]) + (8 * 1 + 2) * 4
        of_index = (0, self.INDEX) if at == 0 else (-self.INDEX, None)
        assert requests == [of_index, (element, element + 4)]

    @pytest.mark.parametrize("gap", [0, 28])
    def test_gaps_are_merged_across_inner_chunks(self, folder, requests, calls, gap):
        """Between two elements of a column there are 28 bytes, also from chunk to chunk."""
        at, offsets = self.starts(folder)
        below = offsets[1:, 3] == offsets[:-1, 3] + 256
        num = 32 if gap == 0 else 4 - int(below.sum())
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": gap}):
            array = zarr.open_array(objects(folder), mode="r")
            assert np.array_equal(array[:, 30], self.DATA[:, 30])
            assert len(requests) == 1 + num
            array = zarr.open_array(folder, mode="r")
            calls.clear()
            assert np.array_equal(array[:, 30], self.DATA[:, 30])
        num_bytes = 32 * 4 + (0 if gap == 0 else (32 - num) * 28)
        assert calls[:2] == ["open", (at, self.INDEX)]
        assert sum(n for _, n in calls[2:]) == num_bytes

    def test_most_of_an_object_is_one_request(self, folder, requests, left):
        array = zarr.open_array(objects(folder), mode="r")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": None}):
            assert np.array_equal(array[:31], self.DATA[:31])
        assert not requests
        assert len(left) == 1

    @pytest.mark.parametrize(
        "selection", [np.s_[:24], np.s_[:25:24], np.s_[:, 3], np.s_[5]], ids=str
    )
    def test_no_more_of_many_objects_than_by_zarr(self, tmp_path, requests, selection):
        """Where several shards are fetched at once, gaps are larger."""
        create_shards(tmp_path, (32, 32 * 12), (32, 32), (8, 8))[...] = 1

        zarrs = CountingStore(tmp_path)
        with zarr.config.set(ZARR_ALONE):
            assert (zarr.open_array(zarrs, mode="r+")[selection] == 1).all()
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": None}):
            assert (zarr.open_array(objects(tmp_path), mode="r")[selection] == 1).all()
        sizes = [-start if end is None else end - start for start, end in requests]
        assert 0 < len(sizes) <= len(zarrs.requests)
        if HAS_STRUCT:  # zarr 3.1.6 merges no gaps
            assert sum(sizes) <= zarrs.num_bytes

    def test_a_file_of_which_all_is_needed_is_read_once(self, folder, calls):
        at, _ = self.starts(folder)
        array = zarr.open_array(folder, mode="r")
        calls.clear()
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": None}):
            assert np.array_equal(array[...], self.DATA)
        assert calls == ["open", (at, self.INDEX), (self.INDEX - at if at == 0 else 0, 16 * 256)]

    def test_many_shards_are_read_together(self, tmp_path, left):
        """Also some that are missing, and in any order of axes in memory."""
        data = np.random.default_rng(0).random((40, 40)).astype("f4")
        array = create_shards(tmp_path, (40, 40), (8, 8), (4, 4))
        array[...] = data
        (tmp_path / "c/2/3").unlink()
        data[16:24, 24:32] = 0
        array = zarr.open_array(tmp_path, mode="r")
        with use_threads(3):
            assert np.array_equal(array[1:39, ::3], data[1:39, ::3])
        assert not left


# What the index of a shard says of its second inner chunk, from what it says of the first one.
ENTRIES = {
    "length": lambda offset, _: (offset + 64, 60),
    "empty": lambda offset, _: (offset + 64, 0),
    "beyond": lambda _, end: (end - 10, 64),
    "far beyond": lambda *_: (2**63, 64),
    "wraps": lambda *_: (2**64 - 32, 64),
    "half missing": lambda *_: (2**64 - 1, 64),
    "missing": lambda *_: (2**64 - 1, 2**64 - 1),
    "the same twice": lambda offset, _: (offset, 64),
    "overlap": lambda offset, _: (offset + 8, 64),
    "at the end": lambda _, end: (end - 64, 64),
    "at the beginning": lambda *_: (0, 64),
}
SHARDS = {
    "short": lambda raw: raw[:63],
    "no bytes": lambda _: b"",
    "begins late": lambda raw: bytes(64) + raw,
    "goes on": lambda raw: raw + bytes(64),
}


def damage(raw, kind, at):
    """Return a shard of inner chunks of 64 bytes, damaged; its index begins at `at`."""
    if kind in SHARDS:
        return SHARDS[kind](raw)
    raw = bytearray(raw)
    index = np.frombuffer(raw, "<u8", 8, at).reshape(4, 2)
    index[1] = ENTRIES[kind](int(index[0, 0]), len(raw))
    return bytes(raw)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("kind", [*ENTRIES, *SHARDS])
@pytest.mark.parametrize("has_checksum", [False, True])
def test_a_damaged_shard_is_read_as_by_zarr_alone(tmp_path, location, kind, has_checksum):
    index_codecs = [BytesCodec(endian="little")] + [Crc32cCodec()] * has_checksum
    array = create_shards(
        *(tmp_path, (16, 4), (16, 4), (4, 4)), index_codecs=index_codecs, index_location=location
    )
    array[...] = np.arange(64).reshape(16, 4)
    chunk = tmp_path / "c/0/0"
    raw, size = chunk.read_bytes(), 64 + 4 * has_checksum
    chunk.write_bytes(damage(raw, kind, 0 if location == "start" else len(raw) - size))

    def outcome(array, selection):
        try:
            return array[selection].tolist()
        except Exception as error:  # noqa: BLE001
            return error

    for store in (tmp_path, objects(tmp_path)):
        for selection in (np.s_[:], np.s_[5, 2], np.s_[:, 1], np.s_[0], np.s_[2:6]):
            with zarr.config.set(ZARR_ALONE):
                expected = outcome(zarr.open_array(store, mode="r"), selection)
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
                got = outcome(zarr.open_array(store, mode="r"), selection)
            if isinstance(expected, Exception):
                assert isinstance(got, Exception), (kind, selection, expected)
                notes = "".join(getattr(got, "__notes__", ()))
                assert "chunk 'c/0/0' of" in notes
            else:
                assert not isinstance(got, Exception), (kind, selection, got)
                assert got == expected, (kind, selection)


def test_an_error_names_the_shard(tmp_path):
    array = create_shards(tmp_path, (16, 4), (16, 4), (4, 4), index_codecs=[BytesCodec()])
    array[...] = 1
    raw = bytearray((tmp_path / "c/0/0").read_bytes())
    raw[-64 + 16 + 8] = 60  # the length of the second one
    (tmp_path / "c/0/0").write_bytes(raw)
    with pytest.raises(ValueError, match="60") as caught:
        zarr.open_array(tmp_path, mode="r")[5, 1]
    assert "chunk 'c/0/0' of LocalStore" in "".join(caught.value.__notes__)


class Unknown(ShardingCodec):
    """What it does is not known."""


@pytest.mark.parametrize(
    "codecs",
    [
        [BytesCodec(), ZstdCodec()],
        [BytesCodec(), Crc32cCodec()],
        [ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()])],
    ],
    ids=["compressed", "checked", "nested"],
)
def test_other_codecs_are_left_to_zarr(tmp_path, codecs, left):
    array = create_shards(tmp_path, (16, 16), (8, 8), (4, 4), codecs=codecs)
    data = np.random.default_rng(0).random((16, 16)).astype("f4")
    array[...] = data
    left.clear()
    array = zarr.open_array(tmp_path, mode="r")
    assert np.array_equal(array[3:9, 2], data[3:9, 2])
    assert len(left) >= 2  # the shards of the selection


def test_a_subclass_of_the_codec_is_left_to_zarr():
    codec = Unknown(chunk_shape=(2, 2), codecs=[BytesCodec()])
    own = ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()])
    for kind, is_ours in ((codec, False), (own, True)):
        pipeline = zarr_pipeline.BytesPipeline.from_codecs([kind])
        assert (pipeline._layout_of is not None) == is_ours


@pytest.mark.parametrize("wrap", [zarr.storage.LoggingStore, zarr.storage.MemoryStore])
def test_stores_without_ranges(tmp_path, wrap, left):
    array = create_shards(tmp_path, (16, 16), (8, 8), (4, 4))
    data = np.random.default_rng(0).random((16, 16)).astype("f4")
    array[...] = data
    if wrap is zarr.storage.MemoryStore:
        store = zarr.storage.MemoryStore()
        create_shards(store, (16, 16), (8, 8), (4, 4))[...] = data
    else:
        store = wrap(zarr.storage.LocalStore(tmp_path))
    left.clear()
    array = zarr.open_array(store, mode="r")
    assert np.array_equal(array[3:9, 2], data[3:9, 2])
    assert len(left) == 2


class TestVersions:
    DATA = np.arange(32 * 32, dtype="f4").reshape(32, 32)

    @pytest.fixture
    def raws(self, tmp_path):
        """Return two versions of a shard; in the second, one inner chunk is missing."""
        found = []
        for k, first_row in enumerate((0, 8)):
            array = create_shards(tmp_path / str(k), (32, 32), (32, 32), (8, 8))
            array[first_row:] = (-1) ** k * self.DATA[first_row:]
            found.append((tmp_path / str(k) / "c/0/0").read_bytes())
        return found

    def test_a_file_that_is_replaced_after_its_index(self, tmp_path, raws, monkeypatch):
        chunk, new, preadv = tmp_path / "0/c/0/0", tmp_path / "new", os.preadv
        new.write_bytes(raws[1])

        def then_replace(*args):
            num = preadv(*args)
            if new.exists():
                new.replace(chunk)
            return num

        monkeypatch.setattr(os, "preadv", then_replace)
        array = zarr.open_array(tmp_path / "0", mode="r")
        assert np.array_equal(array[:, 5], self.DATA[:, 5])
        assert chunk.read_bytes() == raws[1]

    @pytest.mark.parametrize("num_times", [0, 1, 9])
    def test_an_object_that_is_replaced_after_its_index(
        self, tmp_path, raws, requests, num_times, left
    ):
        store = objects(tmp_path / "0")
        num_left = num_times

        def replace():
            nonlocal num_left
            if num_left and requests[-1][1] is None:
                num_left -= 1
                store.store.put("c/0/0", raws[num_left % 2 == 0])

        requests.after = replace
        array = zarr.open_array(store, mode="r")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            column = array[:, 5]
        versions = [self.DATA[:, 5].copy(), -self.DATA[:, 5]]
        versions[1][:8] = 0
        assert any(np.array_equal(column, version) for version in versions)
        assert len(left) == (num_times == 9)  # from one version in memory

    def test_a_shorter_object_replaces_one_after_its_index(self, tmp_path, raws, requests, left):
        """The ranges then lie beyond the new one, and one after the other is of another version."""
        store = objects(tmp_path / "0")
        others = itertools.cycle([raws[1], raws[0]])

        def replace():
            store.store.put("c/0/0", next(others))

        requests.after = replace
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            column = zarr.open_array(store, mode="r")[8:, 5]
        assert any(np.array_equal(column, sign * self.DATA[8:, 5]) for sign in (1, -1))
        assert all(type(byte_getter.store) is zarr.storage.MemoryStore for byte_getter in left)


@pytest.mark.parametrize("is_shard", [False, True])
def test_a_read_that_is_not_wanted_any_more_stops(tmp_path, monkeypatch, caplog, is_shard):
    """Also inside a shard, or a large chunk; what was not read is read in the waiting thread."""
    shape = 128, 160  # no small chunk, which would be read in one go
    data = np.arange(128 * 160, dtype=">f4").reshape(shape)
    array = create_shards(tmp_path, shape, shape, (8, 8) if is_shard else shape)
    if not is_shard:
        array = zarr.create_array(tmp_path / "a", data=data, chunks=shape, compressors=None)
    array[...] = data
    calls, others, preadv = [], [], os.preadv

    def note(*args):
        name = threading.current_thread().name
        (calls if name.startswith("numcodecs_bytes") else others).append(args)
        if len(calls) == 4:
            end_interpreter(monkeypatch)
        return preadv(*args)

    monkeypatch.setattr(os, "preadv", note)
    set_costs(monkeypatch, local_coalescing, block_bytes=256)
    assert np.array_equal(array[1:, 1:], data[1:, 1:])
    assert len(others) > 40
    assert len(calls) == 4
    assert "a bug" not in caplog.text


class Refuses(CountingStore):
    """Refuse the first range, by an error or with the whole."""

    def __init__(self, root, how):
        super().__init__(root)
        self.how, self.num_refused = how, 0

    async def get(self, key, prototype=None, byte_range=None):
        if byte_range is None or self.num_refused:
            return await super().get(key, prototype, byte_range)
        self.num_refused += 1
        if self.how == "error":
            raise NotImplementedError
        return await super().get(key, prototype)


class TestRefusals:
    """A store that once refused a range is not asked again."""

    @pytest.mark.parametrize("refuse", ["whole", "error"])
    def test_a_store_that_refuses_ranges(self, tmp_path, left, refuse, caplog):
        data = np.arange(64 * 64, dtype="f4").reshape(64, 64)
        create_shards(tmp_path, (64, 64), (64, 64), (8, 8))[...] = data
        store = Refuses(tmp_path, refuse)
        caplog.set_level("INFO")
        array = zarr.open_array(store, mode="r+")
        with ranges_from(Refuses), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            # All inner chunks: zarr itself reads the whole shard.
            assert np.array_equal(array[:, 1::8], data[:, 1::8])
        assert store.num_refused == len(left) == 1
        assert array.store in refusals.refusing
        assert "does not support byte ranges" in caplog.text


class TestThreads:
    """Short reads are on the event loop where the page cache has them."""

    @pytest.fixture
    def read(self, tmp_path, disk):
        """Return a function that reads elements, and whether each was read on the event loop."""
        array = create_shards(tmp_path, (400, 400), (400, 400), (100, 100))
        array[...] = 1
        return functools.partial(disk.read, zarr.open_array(tmp_path, mode="r"))

    def test_on_the_loop_where_the_last_one_was_quick(self, read):
        assert read() == [False, True, True]

    def test_in_a_thread_where_it_would_wait(self, read, disk):
        disk.error = BlockingIOError()
        assert read() == [False, True, False, True, False]

    def test_a_large_index_is_read_in_a_thread(self, tmp_path, disk):
        array = create_shards(tmp_path, (1 << 15, 2), (1 << 15, 2), (1, 2))  # of 512 KiB
        array[3] = 1
        array = zarr.open_array(tmp_path, mode="r")
        assert [array[3, k] for k in (0, 1, 0)] == [1] * 3
        assert disk.are_on_loop == [False] + [True, False] * 2


@pytest.mark.parametrize("index_codecs", [["big"], ["little", "crc32c"]], ids=str)
def test_an_index_is_decoded_and_encoded_as_zarr_does(tmp_path, index_codecs):
    codecs = [
        zarr.codecs.Crc32cCodec() if name == "crc32c" else zarr.codecs.BytesCodec(endian=name)
        for name in index_codecs
    ]
    codec = zarr.codecs.ShardingCodec(chunk_shape=(8, 8), index_codecs=codecs)
    settings = {"shape": (32, 32), "chunks": (32, 32), "dtype": "f4", "compressors": None}
    array = zarr.create_array(tmp_path, serializer=codec, **settings)
    array[8:] = 1
    pipeline = zarr_pipeline.BytesPipeline.from_codecs(array.metadata.codecs)
    shard = pipeline._layout_of(spec_of((32, 32), "f4"))
    raw = np.frombuffer((tmp_path / "c/0/0").read_bytes(), np.uint8)[-shard.index_bytes :]
    index = shard.decode_index(raw)
    buffer = zarr.core.buffer.cpu.Buffer.from_array_like(raw)
    zarrs = asyncio.run(shard.codec._decode_shard_index(buffer, (4, 4)))
    np.testing.assert_array_equal(index, zarrs.offsets_and_lengths)
    assert index.shape == (4, 4, 2)
    assert encode_index(shard.codec, index).tobytes() == raw.tobytes()
    assert math.prod(shard.spec.shape) * 4 + shard.index_bytes == shard.num_bytes


def test_check_says_in_part(tmp_path):
    create_shards(tmp_path, (16, 16), (8, 8), (4, 4))[...] = 1
    (report,) = check(tmp_path)
    assert report.partial_reads == "yes: inner chunks in part"
    with zarr.config.set({"codec_pipeline.path": ZARRS_PIPELINE}):
        (report,) = check(tmp_path)
    assert report.partial_reads.startswith("no: ")
