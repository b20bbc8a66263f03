"""What is requested, and what is not; what is left behind."""

import asyncio
import gc
import json
import logging
import multiprocessing
import pickle
import random
import sys
import weakref

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import ranges_from, select
from servers import Server
from test_random_selections import make_array, random_selections

import numcodecs_bytes
from numcodecs_bytes._engine import constants, strikes

pytest.importorskip("aiohttp")
fsspec = pytest.importorskip("fsspec")
upstream = pytest.importorskip("obstore.store")
ALONE = {
    "codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "codecs.bytes": "zarr.codecs.bytes.BytesCodec",
}
MB = 1 << 20


def objects_of(name, data, **how):
    """Return the objects of an array by name."""
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, data=data, compressors=None, **how)
    return {f"{name}/{key}": buffer.to_bytes() for key, buffer in store._store_dict.items()}


LARGE = np.random.default_rng(0).integers(0, 256, (16, MB), np.uint8)
SHARDS = {"chunks": (1, MB // 8), "shards": LARGE.shape}
WIDE = np.random.default_rng(1).integers(0, 256, (12, 4 * MB // 10), np.uint8)


@pytest.fixture(scope="module")
def server():
    objects = objects_of("large", LARGE, chunks=LARGE.shape)
    objects |= objects_of("chunks", WIDE, chunks=(1, WIDE.shape[1]))
    objects |= objects_of("shards", LARGE, **SHARDS)
    many = zarr.storage.MemoryStore()
    zarr.create_array(many, shape=(10_000, MB), chunks=(1, MB), dtype="u1", compressors=None)
    objects["missing/zarr.json"] = many._store_dict["zarr.json"].to_bytes()
    with Server(objects).running() as running:
        yield running


class Opened:
    """An array, and the requests for it."""

    def __init__(self, server, kind, client, name):
        self.token = f"{random.randrange(10**12)}"  # noqa: S311
        self.address = f"{server.address}/{kind}/{self.token}".replace(" ", "%20")
        self._server = server
        if client == "fsspec":
            store = zarr.storage.FsspecStore.from_url(f"{self.address}/{name}", read_only=True)
        else:
            options = {"client_options": {"allow_http": True}}
            made = upstream.HTTPStore.from_url(f"{self.address}/{name}", **options)
            store = zarr.storage.ObjectStore(made, read_only=True)
        self.array = zarr.open_array(store, mode="r")
        self.forget()

    def forget(self):
        self._server.requests[self.token].clear()
        self._server.most_at_once[self.token] = 0

    @property
    def ranges(self):
        return [asked and asked.removeprefix("bytes=") for _, asked in self.requests]

    @property
    def requests(self):
        return self._server.requests[self.token]

    @property
    def num_at_once(self):
        return self._server.most_at_once[self.token]


@pytest.fixture(params=["obstore", "fsspec"])
def opened(server, request):
    """Return what opens an array by name."""
    return lambda name, kind="properly": Opened(server, kind, request.param, name)


class TestRequests:
    def test_a_row_is_one_range(self, opened):
        large = opened("large")
        assert np.array_equal(large.array[3, 1000:1500], LARGE[3, 1000:1500])
        assert large.ranges == [f"{3 * MB + 1000}-{3 * MB + 1499}"]

    def test_pieces_that_are_far_apart(self, opened):
        """Each is a range; zarr's limit is kept."""
        large = opened("large")
        with zarr.config.set({"async.concurrency": 3}):
            assert np.array_equal(large.array[:, 7], LARGE[:, 7])
        # A gap of 1 MiB is more than a third of what the latency is worth.
        assert sorted(map(int, (r.partition("-")[0] for r in large.ranges))) == [
            k * MB + 7 for k in range(16)
        ]
        assert large.num_at_once <= 3

    def test_pieces_that_are_close_together_are_one_range(self, opened):
        large = opened("large")
        assert np.array_equal(large.array[5, ::1000], LARGE[5, ::1000])
        assert len(large.ranges) == 1

    def test_a_long_range_is_requested_in_parts(self, opened):
        large = opened("large")
        assert np.array_equal(large.array[...], LARGE)
        assert len(large.ranges) == 8
        assert sum(int(b) - int(a) + 1 for a, b in (r.split("-") for r in large.ranges)) == 16 * MB
        large.forget()
        with zarr.config.set({"async.concurrency": 1}):
            assert np.array_equal(large.array[...], LARGE)
        assert large.ranges == [None]

    def test_no_parts_without_versions(self, opened):
        """They could not be compared: it is found out once."""
        large = opened("large", "no ETag")
        assert np.array_equal(large.array[...], LARGE)
        assert large.ranges[-1] == f"0-{16 * MB - 1}"
        large.forget()
        assert np.array_equal(large.array[...], LARGE)
        assert large.ranges == [None]
        assert np.array_equal(large.array[3], LARGE[3])  # which is no reason to distrust ranges
        assert len(large.ranges) == 2
        assert large.ranges[1] is not None

    def test_a_gap_that_is_set(self, opened):
        """Is kept exactly; set to the length of a chunk, each chunk is one request."""
        large = opened("large")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": LARGE.nbytes}):
            for selection in (np.s_[...], np.s_[:, 7], np.s_[::5, ::7]):
                assert np.array_equal(large.array[selection], LARGE[selection])
        assert len(large.ranges) == 3
        large.forget()
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            assert np.array_equal(large.array[2, 4:10:3], LARGE[2, 4:10:3])
        assert sorted(large.ranges) == [f"{2 * MB + 4}-{2 * MB + 4}", f"{2 * MB + 7}-{2 * MB + 7}"]

    def test_whole_chunks_are_left_to_zarr_together(self, opened):
        chunks = opened("chunks")
        assert np.array_equal(chunks.array[...], WIDE)
        assert chunks.ranges == [None] * 12

    def test_a_shard(self, opened):
        """Its index, then what is selected of its inner chunks."""
        shards = opened("shards")
        assert np.array_equal(shards.array[3, 1000:1500], LARGE[3, 1000:1500])
        index, piece = shards.ranges
        assert index == f"-{16 * 8 * 16 + 4}"
        assert int(piece.split("-")[1]) - int(piece.split("-")[0]) == 499
        shards.forget()
        points = (np.array([0, 15, 3, 3]), np.array([5, MB - 1, 9, 9]))
        assert np.array_equal(shards.array.vindex[points], LARGE[points])
        assert len(shards.ranges) <= 4
        assert np.array_equal(shards.array[...], LARGE)

    @pytest.mark.parametrize("num_times", [0, 1, 2])
    def test_a_shard_that_is_replaced_after_its_index(self, opened, server, num_times):
        """All is of one version: it is asked for once more, then left to zarr."""
        shards = opened("shards", "an ETag of the content")
        other = objects_of("shards", LARGE + np.uint8(1), **SHARDS)
        versions = [server.objects["shards/c/0/0"], other["shards/c/0/0"]]

        class Replaced(dict):
            def get(self, name):
                if name == "shards/c/0/0":
                    times = (len(shards.requests) + 1) // 2  # after each index
                    self[name] = versions[min(times, num_times) % 2]
                return super().get(name)

        whole, server.objects = server.objects, Replaced(server.objects)
        try:
            row = shards.array[3, 1000:1500]
        finally:
            server.objects = whole
        either = [np.array_equal(row, LARGE[3, 1000:1500] + np.uint8(k)) for k in (0, 1)]
        assert sum(either) == 1
        assert bool(strikes.state_of(shards.array.store).why_struck) == (num_times == 2)

    @pytest.mark.parametrize("concurrency", [1, 2, 10, None])
    def test_all_in_all_no_more_at_once_than_zarr_says(self, opened, concurrency):
        chunks = opened("chunks")
        with zarr.config.set({"async.concurrency": concurrency}):
            assert np.array_equal(chunks.array[:, ::200_000], WIDE[:, ::200_000])
            assert np.array_equal(chunks.array[:, 5:90], WIDE[:, 5:90])
        assert chunks.num_at_once <= (concurrency or constants.UNLIMITED)

    def test_chunks_that_are_missing(self, opened):
        """Of 10,000, all missing, no more than two requests more than with zarr alone."""
        missing = opened("missing")
        assert (missing.array[:, :10] == 0).all()
        assert len(missing.requests) <= 10_002

    def test_missing_is_not_believed_without_a_proper_answer(self, opened, caplog):
        """A server that answers 404 to ranges gave the fill value."""
        large = opened("chunks", "status 404")
        assert np.array_equal(large.array[:, 5:9], WIDE[:, 5:9])
        assert strikes.state_of(large.array.store).why_struck
        assert caplog.records == []  # it may be right

    def test_a_strike_is_forgotten(self, opened, caplog, monkeypatch):
        large = opened("large", "status 403")
        for _ in range(2):
            assert np.array_equal(large.array[3, :9], LARGE[3, :9])
        assert large.ranges == ["3145728-3145736", None, None]
        (record,) = caplog.records
        assert "does not answer byte ranges as requested (" in record.getMessage()
        assert record.levelno == logging.WARNING
        monkeypatch.setattr(constants, "STRUCK_SECONDS", 0.0)
        other = opened("large", "status 403")
        for _ in range(2):
            assert np.array_equal(other.array[3, :9], LARGE[3, :9])
        assert other.ranges == ["3145728-3145736", None] * 2

    def test_an_object_that_changed_is_asked_once_more(self, opened):
        large = opened("large", "overwritten once")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0, "async.concurrency": 1}):
            assert np.array_equal(large.array[:, 7], LARGE[:, 7] + np.uint8(1))
        assert len(large.ranges) == 2 + 16

    def test_trace(self, opened):
        """Counts what failed, too."""
        for kind, num in (("properly", 1), ("status 403", 2)):
            large = opened("large", kind)
            with numcodecs_bytes.trace() as traced:
                large.array[3, :9]
            total = traced.report()["total"]
            assert total["requests"] == len(large.requests) == num
            assert total["bytes_fetched"] == (9 if num == 1 else LARGE.nbytes)
            assert bool(total["why_whole"]) == (num == 2)


class TestReferences:
    NUM, NUM_BYTES = 40, 4096

    def open(self, server, gap, chunks=None, kind="properly"):
        data = np.random.default_rng(2).integers(0, 256, (self.NUM, self.NUM_BYTES), np.uint8)
        raw = b"".join(row.tobytes() + bytes(gap) for row in data)
        server.objects["file"] = raw
        meta = objects_of("a", data, chunks=(1, self.NUM_BYTES))["a/zarr.json"].decode()
        step = self.NUM_BYTES + gap
        parts = {f"c/{k}/0": (k * step, self.NUM_BYTES) for k in chunks or range(self.NUM)}
        array, requests = self.referring_to(server, kind, parts, meta)
        return array, data, requests

    def referring_to(self, server, kind, parts, meta):
        """Return an array whose chunks are parts of a file, and the requests for it."""
        token = f"{random.randrange(10**12)}"  # noqa: S311
        url = f"{server.address}/{kind}/{token}/file".replace(" ", "%20")
        refs = {key: [url, *part] for key, part in parts.items()}
        options = {"asynchronous": True, "skip_instance_cache": True}
        files = fsspec.filesystem(
            "reference",
            fo=json.loads(json.dumps(refs | {"zarr.json": meta})),
            remote_protocol="http",
            remote_options=options,
            **options,
        )
        array = zarr.open_array(zarr.storage.FsspecStore(files, read_only=True), mode="r")
        return array, server.requests[token]

    @pytest.mark.parametrize(
        ("gap", "num"), [(0, 10), (10_000, 10), (20_000, 40)], ids=["adjacent", "near", "apart"]
    )
    def test_side_by_side_they_are_read_in_runs(self, server, gap, num):
        """As many as keep zarr's requests busy, never one for all."""
        array, data, requests = self.open(server, gap)
        assert np.array_equal(array[...], data)
        assert len(requests) == num
        assert np.array_equal(array[:, 5:9], data[:, 5:9])

    def test_some_are_missing(self, server):
        array, data, requests = self.open(server, 0, [1, 2, 3, 9])
        expected = np.where(np.isin(np.arange(self.NUM), [1, 2, 3, 9])[:, None], data, 0)
        assert np.array_equal(array[...], expected)
        assert len(requests) <= 4

    def test_a_run_that_fails_is_a_strike(self, server):
        """zarr's own requests are ranges of the same object."""
        array, data, requests = self.open(server, 0, kind="a status of 200")
        assert np.array_equal(array[...], data)
        assert strikes.state_of(array.store).why_struck
        requests.clear()
        assert np.array_equal(array[...], data)
        assert len(requests) == self.NUM

    def test_shards_are_zarr_s(self, server):
        """The index was read at the end of the file."""
        data = np.random.default_rng(2).integers(1, 256, (64, 64), np.uint8)
        how = {"chunks": (8, 64), "shards": data.shape}
        objects = objects_of("a", data, **how)
        shard = objects["a/c/0/0"]
        server.objects["file"] = shard + bytes(1000)
        meta = objects["a/zarr.json"].decode()
        array, _ = self.referring_to(server, "properly", {"c/0/0": (0, len(shard))}, meta)
        assert np.array_equal(array[3:30, 5], data[3:30, 5])
        assert not strikes.state_of(array.store).why_struck


class Ranges(zarr.storage.LocalStore):
    """A store that answers ranges, and tells no versions."""

    _supports_sync_io = False


@pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 spec",
    "ignore:The data type",
    "ignore:invalid value encountered:RuntimeWarning",  # NaN of bfloat16, by zarr
)
@pytest.mark.parametrize("seed", range(6))
def test_any_selection_of_any_array(tmp_path, seed, monkeypatch):
    """Whatever the data type, the byte order, the layout, the shards, and the gap."""
    rng = random.Random(seed)  # noqa: S311
    for k in range(12):
        for name in ("LATENCY_BYTES", "PART_BYTES", "WORTH_BYTES"):
            monkeypatch.setattr(
                constants, name, rng.choice([1, 30, 1000, getattr(constants, name)])
            )
        _, values = make_array(rng, tmp_path / str(k))
        array = zarr.open_array(Ranges(tmp_path / str(k)), mode="r")
        config = {"numcodecs_bytes.max_gap_bytes": rng.choice([None, 0, 30, 10**6])}
        with ranges_from(Ranges), zarr.config.set(config), numcodecs_bytes.trace() as traced:
            for way, selection, expect in random_selections(rng, values.shape):
                got, expected = (
                    np.asarray(select(array, way, selection)),
                    np.asarray(expect(values)),
                )
                assert got.shape == expected.shape
                if got.dtype.kind == "b":  # zarr passes on what it reads whole, as 0xFF for true
                    got = got.view("u1") != 0
                is_same = got.tobytes() == expected.astype(got.dtype).tobytes()
                assert is_same, (seed, k, way, selection, array.metadata)
        assert not strikes.state_of(array.store).why_struck
        assert traced.report()["total"]["chunks"] or not values.size


class Nested(zarr.storage.LocalStore):
    """A store that reads another array inside `get`."""

    _supports_sync_io = False

    async def get(self, key, prototype=None, byte_range=None):
        if not key.endswith("zarr.json"):
            await self.another._async_array.getitem((slice(None), 3))
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize("concurrency", [1, 2, 10, None])
def test_a_store_that_reads_another_array_does_not_hang(tmp_path, concurrency):
    data = np.arange(5 * 6).reshape(5, 6)
    for name in "ab":
        zarr.create_array(tmp_path / name, data=data, compressors=None)
    outer, inner = Nested(tmp_path / "a"), Nested(tmp_path / "b")
    inner.another = zarr.open_array(tmp_path / "b")
    outer.another = zarr.open_array(inner)
    array = zarr.open_array(outer)
    config = {
        "numcodecs_bytes.max_gap_bytes": 0,
        "async.concurrency": concurrency,
        "async.timeout": 50,
    }

    async def read_50():
        reads = [array._async_array.getitem((slice(None), k % 6)) for k in range(50)]
        return await asyncio.gather(*reads)

    with ranges_from(Nested), zarr.config.set(config):
        assert np.array_equal(array[:, 5], data[:, 5])
        for k, column in enumerate(zarr.core.sync.sync(read_50())):
            assert np.array_equal(column, data[:, k % 6])


class Failing(zarr.storage.LocalStore):
    """A store whose ranges are those of a dict, and which loses connections after long."""

    _supports_sync_io = False
    seconds, is_lost = 0.0, True

    async def get(self, key, prototype=None, byte_range=None):
        if self.is_lost and key.endswith("c/3"):
            await asyncio.sleep(self.seconds)
            raise ConnectionError("lost")
        return await super().get(key, prototype, byte_range)


FLAT = LARGE[:8].reshape(-1)
EVERY = slice(None, None, 700_000)


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """Return an array of eight chunks of 1 MiB."""
    monkeypatch.setattr(constants, "PATIENCE_SECONDS", 0.05)
    zarr.create_array(tmp_path, data=FLAT, chunks=(MB,), compressors=None)
    with ranges_from(Failing):
        yield zarr.open_array(Failing(tmp_path), mode="r")


class TestLostConnections:
    def test_after_long_it_is_raised(self, failing):
        """If the store has answered ranges before."""
        assert failing[5] == FLAT[5]
        failing.store.seconds = 0.1
        with pytest.raises(ConnectionError, match="lost") as caught:
            failing[EVERY]
        assert "while reading chunk 'c/3'" in caught.value.__notes__[0]

    def test_soon_or_without_an_answer_before_the_chunk_is_asked_again(self, failing):
        get, failing.store.seconds = Failing.get, 0.1

        async def only_ranges(self, key, prototype=None, byte_range=None):
            self.is_lost = byte_range is not None
            return await get(self, key, prototype, byte_range)

        Failing.get = only_ranges
        try:
            assert np.array_equal(failing[3 * MB + 5 : 3 * MB + 9], FLAT[3 * MB + 5 : 3 * MB + 9])
            assert strikes.state_of(failing.store).why_struck
        finally:
            Failing.get = get

    def test_nothing_is_kept(self, failing):
        """An error held what had been fetched, until the next collection."""
        assert failing[5] == FLAT[5]
        failing.store.seconds = 0.1
        buffers, get = [], Failing.get

        async def noting(self, key, prototype=None, byte_range=None):
            buffer = await get(self, key, prototype, byte_range)
            buffers.append(weakref.ref(buffer))
            return buffer

        Failing.get = noting
        gc.disable()
        try:
            failing[EVERY]
        except ConnectionError as error:
            kept = error
            assert len(buffers) >= 7
            assert [ref() for ref in buffers if ref() is not None] == []
            assert kept.__notes__
        finally:
            gc.enable()
            Failing.get = get

    def test_all_ends_before_an_error_is_raised(self, failing):
        async def read():
            with pytest.raises(ConnectionError):
                await failing._async_array.getitem(EVERY)
            return len(asyncio.all_tasks())

        assert failing[5] == FLAT[5]
        failing.store.seconds = 0.1
        assert zarr.core.sync.sync(read()) == 1

    def test_a_read_that_is_cancelled(self, failing):
        async def read():
            task = asyncio.ensure_future(failing._async_array.getitem(EVERY))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            return len(asyncio.all_tasks())

        failing.store.seconds = 30
        assert zarr.core.sync.sync(read()) == 1
        failing.store.is_lost = False
        assert np.array_equal(failing[EVERY], FLAT[EVERY])


def read_row(array):
    return array[3, 1000:1500]


@pytest.mark.skipif(sys.platform == "win32", reason="it can't fork")
def test_pickled_and_in_other_processes(opened):
    large = opened("large")
    read_row(large.array)
    again = pickle.loads(pickle.dumps(large.array))  # noqa: S301
    assert np.array_equal(read_row(again), LARGE[3, 1000:1500])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(pool.apply(read_row, (large.array,)), LARGE[3, 1000:1500])
