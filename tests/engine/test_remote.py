"""What is requested of servers, and what is not. Servers that misbehave: test_bad_servers.py."""

import asyncio
import importlib
import json
import logging
import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import ZARR_ALONE, CountingStore, create, is_called_by_package, ranges_from
from servers import (
    RANGES,
    Server,
    is_struck,
    objects_of,
    proper,
    references,
    store_of,
    with_status,
)
from test_local_files import outcome
from zarr.codecs import ShardingCodec

import numcodecs_bytes
from numcodecs_bytes._plan import gap_policy
from numcodecs_bytes._sources.byte_ranges import answer_of

http = importlib.import_module("fsspec.implementations.http")
MB = 1 << 20
LARGE = np.random.default_rng(0).integers(0, 256, (16, MB), np.uint8)
SHARDS = {"chunks": (1, MB // 8), "shards": LARGE.shape}
WIDE = np.random.default_rng(1).integers(0, 256, (12, 4 * MB // 10), np.uint8)
FIRST = np.s_[0, 0]


@pytest.fixture(scope="module")
def server():
    objects = objects_of("large", LARGE, chunks=LARGE.shape)
    objects |= objects_of("chunks", WIDE, chunks=(1, WIDE.shape[1]))
    objects |= objects_of("shards", LARGE, **SHARDS)
    many = {}
    settings = {"chunks": (1, MB), "dtype": "u1", "compressors": None}
    zarr.create_array(zarr.storage.MemoryStore(many), shape=(1000, MB), **settings)
    objects["missing/zarr.json"] = many["zarr.json"].to_bytes()
    with Server(objects).running() as running:
        yield running


class Opened:
    """An array, and the requests for it."""

    def __init__(self, server, kind, client, name, path=None):
        self._server, self._token = server, f"{random.randrange(10**12)}"  # noqa: S311
        store = store_of(client, f"{server.url(kind, self._token)}/{name}")
        opened = zarr.open(store, mode="r")
        self.array = opened[path] if path else opened
        self.forget()

    def forget(self):
        self._server.requests[self._token].clear()
        self._server.most_at_once[self._token] = 0

    @property
    def ranges(self):
        """The ranges that were asked for; None for a request without one."""
        asked = [asked for _, asked in self._server.requests[self._token]]
        return [one and one.removeprefix("bytes=") for one in asked]

    @property
    def num_at_once(self):
        return self._server.most_at_once[self._token]


@pytest.fixture(params=["obstore", "fsspec"])
def opened(server, request):
    """Return what opens an array by name."""

    def open_it(name, kind="properly", path=None):
        return Opened(server, kind, request.param, name, path)

    return open_it


class TestRequests:
    def test_runs_of_a_chunk(self, opened):
        """A row is one range; runs that are far apart are one each; zarr's limit is kept."""
        large = opened("large")
        assert np.array_equal(large.array[3, 1000:1500], LARGE[3, 1000:1500])
        assert np.array_equal(large.array[5, ::1000], LARGE[5, ::1000])
        assert large.ranges[0] == f"{3 * MB + 1000}-{3 * MB + 1499}"
        assert len(large.ranges) == 2
        large.forget()
        with zarr.config.set({"async.concurrency": 3}):
            assert np.array_equal(large.array[:, 7], LARGE[:, 7])
        # A gap of 1 MiB is more than a third of what the latency is worth.
        assert sorted(large.ranges) == sorted(f"{k * MB + 7}-{k * MB + 7}" for k in range(16))
        assert large.num_at_once <= 3

    def test_a_long_range_is_requested_in_parts(self, opened):
        large = opened("large")
        assert np.array_equal(large.array[...], LARGE)
        assert len(large.ranges) == 8
        assert sum(int(b) - int(a) + 1 for a, b in (r.split("-") for r in large.ranges)) == 16 * MB
        large.forget()
        with zarr.config.set({"async.concurrency": 1}):
            assert np.array_equal(large.array[...], LARGE)
        assert large.ranges == [None]

    @pytest.mark.parametrize("kind", ["no ETag", "weak ETag"])
    def test_no_parts_without_versions(self, opened, kind):
        """They could not be compared: it is found out once."""
        large = opened("large", kind)
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

    @pytest.mark.parametrize(
        "selection",
        [np.s_[:, :300_001:100_000], np.s_[:, 5:300_000:1000], np.s_[...], np.s_[:, 5:-5]],
        ids=["few runs", "many runs", "all", "all but the edges"],
    )
    def test_strips_of_many_chunks(self, opened, set_constants, selection):
        """Each has one request at a time: parts took 1.3 to 2.1 of zarr's time, 30 ms away."""
        set_constants(MIN_SUBRANGE_BYTES=50_000, MAX_RANGE_BYTES=150_000, MIN_SAVED_BYTES=0)
        chunks = opened("chunks")
        for _ in range(2):
            chunks.forget()
            assert np.array_equal(chunks.array[selection], WIDE[selection])
            assert len(chunks.ranges) == 12

    def test_strips_of_few_chunks(self, opened, set_constants):
        """Each is requested in as many parts as keep all requests busy."""
        set_constants(MIN_SUBRANGE_BYTES=50_000)
        chunks = opened("chunks")
        selection = np.s_[:2, :300_001:1000]
        assert np.array_equal(chunks.array[selection], WIDE[selection])
        assert len(chunks.ranges) == 2 * 5

    def test_a_shard(self, opened):
        """Its index, then what is selected of its inner chunks."""
        shards = opened("shards")
        assert np.array_equal(shards.array[3, 1000:1500], LARGE[3, 1000:1500])
        index, run = shards.ranges
        assert index == f"-{16 * 8 * 16 + 4}"
        assert int(run.split("-")[1]) - int(run.split("-")[0]) == 499
        shards.forget()
        points = (np.array([0, 15, 3, 3]), np.array([5, MB - 1, 9, 9]))
        assert np.array_equal(shards.array.vindex[points], LARGE[points])
        assert len(shards.ranges) <= 4
        assert np.array_equal(shards.array[...], LARGE)

    @pytest.mark.parametrize("num_times", [0, 1, 2])
    def test_a_shard_that_is_replaced_after_its_index(self, opened, server, monkeypatch, num_times):
        """All is of one version: it is asked for once more, then left to zarr."""
        shards = opened("shards", "an ETag of the content")
        other = objects_of("shards", LARGE + np.uint8(1), **SHARDS)
        versions = [server.objects["shards/c/0/0"], other["shards/c/0/0"]]

        class Replaced(dict):
            def get(self, name):
                if name == "shards/c/0/0":
                    times = (len(shards.ranges) + 1) // 2  # after each index
                    self[name] = versions[min(times, num_times) % 2]
                return super().get(name)

        monkeypatch.setattr(server, "objects", Replaced(server.objects))
        row = shards.array[3, 1000:1500]
        either = [np.array_equal(row, LARGE[3, 1000:1500] + np.uint8(k)) for k in (0, 1)]
        assert sum(either) == 1
        assert is_struck(shards.array, FIRST) == (num_times == 2)

    @pytest.mark.parametrize("concurrency", [1, 2, 10, None])
    def test_all_in_all_no_more_at_once_than_zarr_says(self, opened, concurrency):
        chunks = opened("chunks")
        with zarr.config.set({"async.concurrency": concurrency}):
            assert np.array_equal(chunks.array[:, ::200_000], WIDE[:, ::200_000])
            assert np.array_equal(chunks.array[:, 5:90], WIDE[:, 5:90])
        assert chunks.num_at_once <= (concurrency or gap_policy.UNLIMITED)

    def test_chunks_that_are_missing(self, opened):
        """Of 1,000, all missing, no more than two requests more than with zarr alone."""
        missing = opened("missing")
        assert (missing.array[:, :10] == 0).all()
        assert len(missing.ranges) <= 1_002

    @pytest.mark.parametrize("stored", [{}, {"shards": (2, MB)}], ids=["chunks", "shards"])
    def test_a_missing_chunk_of_a_store_without_metadata_of_its_own(self, server, opened, stored):
        """As with consolidated metadata alone: it was a strike that zarr, too, found nothing."""
        name = f"alone{len(stored)}"
        objects = objects_of("a", LARGE[:4], chunks=(1, MB), **stored)
        metadata = json.loads(objects.pop("a/zarr.json"))
        members = {"kind": "inline", "must_understand": False, "metadata": {"a": metadata}}
        root = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        objects["zarr.json"] = json.dumps(root | {"consolidated_metadata": members}).encode()
        del objects["a/c/0/0"]
        server.objects.update({f"{name}/{key}": raw for key, raw in objects.items()})
        array = opened(name, path="a").array
        assert (array[0, :9] == 0).all()
        assert not is_struck(array, np.s_[2, 5:9])
        assert np.array_equal(array[2, 5:9], LARGE[2, 5:9])
        if stored:  # zarr itself reads ranges
            return
        array = opened(name, "status 404", path="a").array
        assert (array[0, :9] == 0).all()
        assert np.array_equal(array[2, 5:9], LARGE[2, 5:9])  # it is there, but not for ranges
        assert is_struck(array, np.s_[2, 5:9])

    def test_a_total_that_is_unknown(self, server):
        """The answer to a suffix tells the length all the same; it was taken for a wrong one."""
        shards = Opened(server, "an unknown total", "fsspec", "shards")
        for _ in range(2):
            shards.forget()
            assert np.array_equal(shards.array[3, 1000:1500], LARGE[3, 1000:1500])
            assert shards.ranges[0].startswith("-")
            assert None not in shards.ranges
        assert not is_struck(shards.array, FIRST)

    def test_a_total_that_is_unknown_but_needed(self, server):
        """Of a file without offset and length in its reference: zarr reads it, without a strike."""
        server.objects["file"] = LARGE.tobytes()
        meta = objects_of("a", LARGE, chunks=LARGE.shape)["a/zarr.json"]
        url = f"{server.url('an unknown total', 'needed')}/file"
        array = zarr.open_array(references(url, {"c/0/0": ()}, meta), mode="r")
        for _ in range(2):
            assert np.array_equal(array[3, 1000:1500], LARGE[3, 1000:1500])
        assert not is_struck(array, FIRST)

    def test_an_object_that_is_shorter_than_an_index(self, opened, server):
        """Is damaged, for zarr as well: the answer is proper."""
        objects = objects_of("short", LARGE, **SHARDS)
        server.objects["short/zarr.json"] = objects["short/zarr.json"]
        server.objects["short/c/0/0"] = b"short"
        array = opened("short").array
        with pytest.raises(ValueError, match="checksum|index|too short|crc"):
            array[3, :9]

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_request_that_is_refused_once(self, opened, server, monkeypatch, status):
        """Rows were read whole for ten minutes afterwards."""
        monkeypatch.setitem(
            RANGES,
            "refused once",
            lambda asked: with_status(status)(asked) if asked.num_before == 1 else proper(asked),
        )
        large = opened("large", "refused once")
        for row in (2, 3, 3):
            assert np.array_equal(large.array[row, :9], LARGE[row, :9])
        assert None not in large.ranges
        assert len(large.ranges) == 4

    @pytest.mark.parametrize("has_answered", [False, True])
    def test_parts_that_are_refused(self, opened, monkeypatch, has_answered):
        """Each was asked for twice, by a client that asks again: 61 requests for a chunk."""
        monkeypatch.setitem(RANGES, "refused", proper)
        large = opened("large", "refused")
        if has_answered:
            assert large.array[FIRST] == LARGE[FIRST]
        monkeypatch.setitem(RANGES, "refused", with_status(503))
        num_tries = 2 if type(large.array.store).__name__ == "ObjectStore" else 1  # of the client
        for k in range(5):
            large.forget()
            assert np.array_equal(large.array[...], LARGE)
            parts = 8 * num_tries + (k == 0 and has_answered and num_tries == 1)
            assert len(large.ranges) == 1 + (parts if k < 3 else 0)

    @pytest.mark.parametrize("selection", [np.s_[3, :9], np.s_[::5, ::700_000], np.s_[...]])
    @pytest.mark.parametrize("name", ["large", "shards"])
    def test_a_store_that_is_down(self, opened, name, selection):
        """Of one request at a time, at most twice as many as by zarr alone: it was three times."""
        with zarr.config.set({"async.concurrency": 1}):
            nums = []
            for settings in (ZARR_ALONE, {}):
                with zarr.config.set(settings):
                    down = opened(name, "to everything, 503")
                    down.forget()
                    with pytest.raises(Exception, match="503|Service"):
                        down.array[selection]
                nums.append(len(down.ranges))
        assert nums[1] <= 2 * nums[0]

    def test_a_strike_is_forgotten(self, opened, caplog, set_constants):
        large = opened("large", "status 403")
        for _ in range(2):
            assert np.array_equal(large.array[3, :9], LARGE[3, :9])
        assert large.ranges == ["3145728-3145736", None, None]
        (record,) = caplog.records
        assert "does not serve byte ranges as requested (" in record.getMessage()
        assert record.levelno == logging.WARNING
        set_constants(STRUCK_SECONDS=0.0)
        other = opened("large", "status 403")
        for _ in range(2):
            assert np.array_equal(other.array[3, :9], LARGE[3, :9])
        assert other.ranges == ["3145728-3145736", None] * 2

    def test_an_object_that_changed_is_asked_once_more(self, opened):
        large = opened("large", "overwritten once")
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0, "async.concurrency": 1}):
            assert np.array_equal(large.array[:, 7], LARGE[:, 7] + np.uint8(1))
        assert len(large.ranges) == 2 + 16


def store_with_session(url, get, **settings):
    """Return a store whose requests, of a session of aiohttp, are made by a function."""

    class Session:
        def __init__(self, session):
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def get(self, url, **kwargs):
            return get(self._session, url, **kwargs)

    async def get_client(**kwargs):
        return Session(await http.get_client(**kwargs))

    options = {"get_client": get_client, "asynchronous": True, "skip_instance_cache": True}
    file_system = http.HTTPFileSystem(**options)
    return zarr.storage.FsspecStore(file_system, path=url, read_only=True, **settings)


def test_a_client_that_hides_the_heads_of_answers(server, caplog):
    """One with a cache may answer with any range; aiohttp before 3.9 does not show them."""

    def get(session, url, **kwargs):
        kwargs.pop("raise_for_status", None)
        return session.get(url, **kwargs)

    store = store_with_session(f"{server.url('properly', 'hidden')}/large", get)
    array = zarr.open_array(store, mode="r")
    assert np.array_equal(array[3, :9], LARGE[3, :9])
    assert "does not show the headers of responses" in caplog.text
    assert is_struck(array, FIRST)


def test_an_error_before_the_head_that_may_mean_that_a_chunk_is_missing(server, caplog):
    """To the store, it does; but the client may have lost the connection: that is no strike."""

    def get(session, url, headers=(), **kwargs):
        if "Range" in headers:
            raise KeyError(url)
        return session.get(url, headers=headers, **kwargs)

    allowed = {"allowed_exceptions": (FileNotFoundError, KeyError)}
    store = store_with_session(f"{server.url('properly', 'unclear')}/large", get, **allowed)
    array = zarr.open_array(store, mode="r")
    for _ in range(4):
        assert np.array_equal(array[3, :9], LARGE[3, :9])
    assert not is_struck(array, FIRST)
    assert not caplog.messages


class TestReferences:
    NUM, NUM_BYTES = 40, 4096

    def open(self, server, gap, chunks=range(NUM), kind="properly"):
        """Return an array whose chunks are parts of a file, its values, and its requests."""
        data = np.random.default_rng(2).integers(0, 256, (self.NUM, self.NUM_BYTES), np.uint8)
        server.objects["file"] = b"".join(row.tobytes() + bytes(gap) for row in data)
        step = self.NUM_BYTES + gap
        parts = {f"c/{k}/0": (k * step, self.NUM_BYTES) for k in chunks}
        meta = objects_of("a", data, chunks=(1, self.NUM_BYTES))["a/zarr.json"]
        token = f"{random.randrange(10**12)}"  # noqa: S311
        store = references(f"{server.url(kind, token)}/file", parts, meta)
        return zarr.open_array(store, mode="r"), data, server.requests[token]

    @pytest.mark.parametrize(
        ("gap", "num"), [(0, 10), (10_000, 10), (20_000, 40)], ids=["adjacent", "near", "apart"]
    )
    def test_side_by_side_they_are_read_in_runs(self, server, gap, num):
        """As many as keep zarr's requests busy, never one for all."""
        array, data, requests = self.open(server, gap)
        assert np.array_equal(array[...], data)
        assert len(requests) == num
        assert np.array_equal(array[:, 5:9], data[:, 5:9])

    def test_each_counts_what_was_fetched_of_it(self, server):
        """Not the first one all: it seemed to be read whole."""
        array, data, requests = self.open(server, 0)
        selection = np.s_[1:, : self.NUM_BYTES * 55 // 100]
        with numcodecs_bytes.trace() as traced:
            assert np.array_equal(array[selection], data[selection])
        total = traced.report()["total"]
        assert (total["chunks"], total["chunks_whole"]) == (self.NUM - 1, 0)
        ranges = [asked.removeprefix("bytes=").split("-") for _, asked in requests]
        assert total["bytes_fetched"] == sum(int(last) + 1 - int(first) for first, last in ranges)
        assert total["requests"] == len(requests) < self.NUM

    def test_some_are_missing(self, server):
        array, data, requests = self.open(server, 0, [1, 2, 3, 9])
        expected = np.where(np.isin(np.arange(self.NUM), [1, 2, 3, 9])[:, None], data, 0)
        assert np.array_equal(array[...], expected)
        assert len(requests) <= 4

    def test_a_run_that_fails_is_a_strike(self, server):
        """zarr's own requests are ranges of the same object."""
        array, data, requests = self.open(server, 0, kind="a status of 200")
        for _ in range(2):
            requests.clear()
            assert np.array_equal(array[...], data)
        assert len(requests) == self.NUM
        assert is_struck(array, FIRST)

    def test_one_that_begins_before_its_file(self, server):
        """Is an error, whatever is selected: other bytes of the file were returned."""
        data = np.ones((1, self.NUM_BYTES), np.uint8)
        server.objects["file"] = bytes(3 * self.NUM_BYTES)
        parts, objects = {"c/0/0": (-5, self.NUM_BYTES)}, objects_of("a", data)
        url = f"{server.url('properly', 'before')}/file"
        array = zarr.open_array(references(url, parts, objects["a/zarr.json"]), mode="r")
        for selection in (np.s_[0, 9:99], np.s_[...]):
            with (
                zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}),
                pytest.raises(ValueError, match="holds 0 bytes"),
            ):
                array[selection]

    def test_one_that_ends_beyond_its_file(self, server):
        """Is an error, whatever is selected: its part before the end was returned."""
        array, data, _ = self.open(server, 0)
        server.objects["file"] = server.objects["file"][:-5]
        assert np.array_equal(array[:-1, :9], data[:-1, :9])
        for selection in (np.s_[-1, :9], np.s_[:, :9]):
            with pytest.raises(ValueError, match=f"holds {self.NUM_BYTES - 5} bytes"):
                array[selection]


class TestReferencesToShards:
    """Three shards of 8 rows of 64 bytes, in a file with other bytes around each."""

    OTHER = bytes(range(1, 101))
    NUM_INDEX_BYTES = 8 * 16 + 4

    def open(self, server, location, kind="properly"):
        """Return an array, its values, where its shards begin, and the requests for it."""
        data = np.random.default_rng(2).integers(1, 256, (24, 64), np.uint8)
        codec = ShardingCodec(
            chunk_shape=(1, 64), codecs=[zarr.codecs.BytesCodec()], index_location=location
        )
        objects = objects_of("a", data, chunks=(8, 64), serializer=codec)
        parts, file = {}, self.OTHER
        for k in range(3):
            shard = objects[f"a/c/{k}/0"]
            parts[f"c/{k}/0"] = (len(file), len(shard))
            file += shard + self.OTHER
        server.objects["file"] = file
        token = f"{random.randrange(10**12)}"  # noqa: S311
        url = f"{server.url(kind, token)}/file"
        array = zarr.open_array(references(url, parts, objects["a/zarr.json"]), mode="r")
        return array, data, [start for start, _ in parts.values()], server.requests[token]

    @pytest.mark.parametrize("num_times", [1, 2])
    def test_a_file_that_is_replaced_after_an_index(self, server, monkeypatch, num_times):
        """All is of one version: it is asked for once more, then left to zarr."""
        array, data, _, requests = self.open(server, "end", "an ETag of the content")
        raw = server.objects["file"]
        versions = [raw, raw[:-1] + b"?"]

        class Replaced(dict):
            def get(self, name):
                if name == "file":
                    times = (len(requests) + 1) // 2  # after each index
                    self[name] = versions[min(times, num_times) % 2]
                return super().get(name)

        monkeypatch.setattr(server, "objects", Replaced(server.objects))
        assert np.array_equal(array[3, 5:9], data[3, 5:9])
        assert len(requests) == 2 * (num_times + 1)
        assert is_struck(array, FIRST) == (num_times == 2)

    @pytest.mark.parametrize("location", ["start", "end"])
    def test_a_file_that_ends_in_a_shard(self, server, location):
        """Is read as by zarr alone: what is there, or an error; its last row was cut."""
        array, data, *_ = self.open(server, location)
        server.objects["file"] = server.objects["file"][: -len(self.OTHER) - 5]
        assert np.array_equal(array[:16, 5], data[:16, 5])
        for selection in (np.s_[17, 5], np.s_[23, 5:9], np.s_[23]):
            expected = outcome(array.store, selection, ZARR_ALONE)
            assert isinstance(expected, type) == (location == "end" or selection != np.s_[17, 5])
            assert outcome(array.store, selection) == expected
        assert not is_struck(array, FIRST)


def test_a_pickled_array(opened):
    large = opened("large").array
    for _ in range(2):  # before it has read, and after
        again = pickle.loads(pickle.dumps(large))  # noqa: S301
        for array in (large, again):
            assert np.array_equal(array[3, 1000:1500], LARGE[3, 1000:1500])


@pytest.mark.parametrize("name", ["a", "c"])
@pytest.mark.parametrize(
    "how",
    [
        {"zarr_format": 2},
        {},
        *({"chunk_key_encoding": {"name": "v2", "separator": each}} for each in "./"),
    ],
    ids=str,
)
def test_a_store_whose_first_chunk_is_missing(tmp_path, name, how):
    """It is believed, as it answers a range of the array's metadata; "c" begins keys of v3."""
    settings = {"dtype": "u1", "compressors": None, **how}
    zarr.create_array(tmp_path / name, shape=(4 * MB,), chunks=(MB,), **settings)
    store = CountingStore(tmp_path)
    with ranges_from(CountingStore):
        array = zarr.open_array(store, path=name)
        assert (array[5:9] == 0).all()
        assert not is_struck(array, np.s_[:3])
    assert len(store.requests) == 2


def test_a_missing_shard_where_suffixes_are_not_supported(tmp_path, monkeypatch):
    """As on Azure: its length is asked for, and that it is missing was taken for a failure."""
    obstore = pytest.importorskip("obstore")
    create(tmp_path / "a", (4, MB), (1, MB // 4), dtype="u1", endian=None, shards=(1, MB))[0] = 7
    get = obstore.get_async

    async def refuse(objects, path, *, options=None):
        if "suffix" in str(options):
            raise obstore.exceptions.NotSupportedError("suffixes")
        return await get(objects, path, options=options)

    monkeypatch.setattr(obstore, "get_async", refuse)

    class Objects(obstore.store.LocalStore):
        """They are requested: it is not obstore's own class, but zarr takes its name."""

        __module__ = "obstore_of_others"

    store = zarr.storage.ObjectStore(Objects(tmp_path))
    array = zarr.open_array(store, path="a", mode="r")
    assert (array[1, :9] == 0).all()
    assert (array[0, :9] == 7).all()
    assert not is_struck(array, np.s_[0, :3])


class TestNearStores:
    """Whose answers take as long as the clock says; all requests wait for those before them."""

    PLANES, PLANE_BYTES = 32, 270_000
    NUM_BYTES = PLANES * PLANE_BYTES

    @pytest.fixture(autouse=True)
    def _stores_are_far(self):
        """Some are near."""

    @pytest.fixture
    def read(self, tmp_path, monkeypatch):
        """Return what opens a chunk, and returns what reads a column, and tells its requests."""
        data = np.random.default_rng(3).integers(0, 256, (self.PLANES, self.PLANE_BYTES), np.uint8)
        create(tmp_path, data.shape, dtype="u1", endian=None)[...] = data
        return self.opener(tmp_path, data, monkeypatch)

    def opener(self, tmp_path, data, monkeypatch):
        now = 0.0

        def open_it(latency, bytes_per_second=3e9):
            class Store(CountingStore):
                def _count(self, key, byte_range, buffer):
                    nonlocal now
                    if key.startswith("c"):
                        now += latency() if callable(latency) else latency
                        now += len(buffer) / bytes_per_second
                    return super()._count(key, byte_range, buffer)

            store = Store(tmp_path, read_only=True)
            array = zarr.open_array(store, mode="r")

            def read_it(selection=np.s_[:, 7]):
                store.requests.clear()
                with ranges_from(Store):
                    assert np.array_equal(array[selection], data[selection])
                return [num_bytes for _, _, num_bytes in store.requests]

            return read_it

        clock = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now if is_called_by_package() else clock())
        return open_it

    def test_many_requests_become_few(self, read):
        """After the first answers; then at once, if an answer says that the store is near."""
        fresh, known = read(2e-4), read(2e-4)
        hull = 15 * self.PLANE_BYTES + 1  # of 16 planes, in 4 MiB
        few = [hull, hull]
        assert sorted(fresh()) == [1] * 10 + [5 * self.PLANE_BYTES + 1, hull]
        assert fresh() == few
        assert known(np.s_[3, 7]) == [1]
        assert known() == known() == known() == few
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            assert known() == [1] * self.PLANES

    @pytest.mark.parametrize("row_bytes", [1 << 16, 1 << 21])
    def test_a_request_never_spans_a_large_shard(self, tmp_path, monkeypatch, row_bytes):
        """A column of 512 MiB was a single request of as many bytes, and took twice the memory."""
        data = np.random.default_rng(3).integers(
            0, 256, (40 * MB // row_bytes, row_bytes), np.uint8
        )
        how = {"shards": data.shape, "dtype": "u1", "endian": None}
        create(tmp_path, data.shape, (1, row_bytes), **how)[...] = data
        column = self.opener(tmp_path, data, monkeypatch)(2e-4)
        for _ in range(2):
            index, *ranges = column()
            assert index == 16 * len(data) + 4
            if row_bytes > MB:
                assert ranges == [1] * len(data)
            else:  # gaps are read over
                assert len(ranges) == 10
                assert max(ranges) <= 4 * MB
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": data.nbytes // 2}):
            assert max(column()) <= 16 * MB

    @pytest.mark.parametrize("latency", [2e-3, 3e-2])
    def test_a_far_store_is_asked_for_what_is_selected(self, read, latency):
        column = read(latency)
        assert [column() for _ in range(3)] == [[1] * self.PLANES] * 3

    def test_a_near_store_that_sends_slowly(self, read):
        """Two long answers say so: gaps are worth no more than those of a far store."""
        column = read(2e-4, 5e8)
        column(np.s_[3, 7])
        assert [len(column()) for _ in range(4)] == [2, 2, self.PLANES, self.PLANES]

    def test_a_busy_machine(self, read):
        """Answers that are late, even most of them, do not make a near store a far one."""
        late = iter([0.0, *[0.02] * 40])
        column = read(lambda: 2e-4 + next(late, 0.0))
        assert len(column(np.s_[3, 7])) == 1
        assert [len(column()) for _ in range(3)] == [2, 2, self.PLANES]
        late = iter([])
        column(np.s_[:, : self.PLANE_BYTES // 2])
        assert len(column()) == 2


class Slow(CountingStore):
    """Each request takes a while; it notes what is in flight together."""

    def __init__(self, root, **kwargs):
        super().__init__(root, **kwargs)
        self.in_flight, self.most, self.are_of_both_kinds = [], 0, False

    async def get(self, key, prototype=None, byte_range=None):
        kind = "whole" if byte_range is None else "part"
        self.in_flight.append(kind)
        self.most = max(self.most, len(self.in_flight))
        self.are_of_both_kinds |= set(self.in_flight) == {"whole", "part"}
        await asyncio.sleep(0.02)
        self.in_flight.remove(kind)
        return await super().get(key, prototype, byte_range)


@pytest.mark.usefixtures("our_pipeline")
@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_whole_chunks_and_parts_are_requested_together(tmp_path, concurrency):
    """zarr reads the former, and began when the latter had ended."""
    data = np.random.default_rng(0).random((6 * 256, 256))
    create(tmp_path, data.shape, (256, 256))[...] = data
    with ranges_from(Slow), zarr.config.set({"async.concurrency": concurrency}):
        array = zarr.open_array(Slow(tmp_path), mode="r")
        array.store.most = 0  # metadata have been requested
        rows = np.r_[: 3 * 256, 768:784, 1024:1040, 1280:1296]  # all of three chunks, few of three
        np.testing.assert_array_equal(array.oindex[rows], data[rows])
    assert array.store.most <= concurrency
    assert array.store.are_of_both_kinds == (concurrency > 1)


class TestFirstFailure:
    """Of a store that is read by other tasks at once, or fails twice."""

    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("a", "b"):
            create(tmp_path / name, (2, 1 << 20), (1, 1 << 20))[...] = 1
        return tmp_path

    def test_a_store_that_is_given_up_while_another_chunk_is_missing(self, folder):
        """Whether it is believed was asked of a store that is read whole: AttributeError."""
        (folder / "a/c/0/0").unlink()

        class Store(CountingStore):
            async def get(self, key, prototype=None, byte_range=None):
                if key == "a/c/0/0" and byte_range is not None:
                    assert (await other.getitem((0, slice(3))) == 1).all()
                is_wrong = key.startswith("b/c/") and byte_range is not None
                return await super().get(key, prototype, None if is_wrong else byte_range)

        store = Store(folder)
        other = zarr.open_array(store, path="b").async_array
        with ranges_from(Store):
            assert (zarr.open_array(store, path="a")[0, 5:7] == 0).all()
        assert is_struck(zarr.open_array(store, path="b"), np.s_[1, :3])

    def test_a_short_answer_then_a_connection_that_is_lost_after_a_while(
        self, folder, set_constants
    ):
        """The second one decided, which is not asked again; zarr can read the chunk."""
        set_constants(MAX_SECONDS_TO_REPEAT=0.01)
        is_wrong = False

        class Store(CountingStore):
            async def get(self, key, prototype=None, byte_range=None):
                if not is_wrong or byte_range is None:
                    return await super().get(key, prototype, byte_range)
                await asyncio.sleep(0.02)
                if byte_range.start == 0:
                    return prototype.buffer.from_bytes(b"short")
                await asyncio.sleep(0.1)
                raise ConnectionError("lost")

        with ranges_from(Store), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            array = zarr.open_array(Store(folder), path="a")
            assert array[1, 5] == 1  # it answers ranges
            is_wrong = True
            assert (array[0, ::1000] == 1).all()

    def test_of_a_request_that_tasks_share(self, folder, set_constants):
        """Before Python 3.13, one that had caught the error and went on was closed: a hang."""
        set_constants(MAX_SECONDS_TO_REPEAT=0.01)

        class Store(CountingStore):
            shared = None

            async def get(self, key, prototype=None, byte_range=None):
                if self.shared and "/c/" in key:
                    try:
                        await asyncio.shield(self.shared)
                    except ConnectionError:
                        if key.startswith("a"):
                            raise
                        await self.has_failed.wait()
                return await super().get(key, prototype, byte_range)

        async def read_a(array):
            with pytest.raises(ConnectionError):
                await array.getitem((0, slice(None, None, 500_000)))
            store.has_failed.set()

        async def read_both():
            loop = asyncio.get_running_loop()
            store.shared, store.has_failed = loop.create_future(), asyncio.Event()
            loop.call_later(0.05, store.shared.set_exception, ConnectionError("lost"))
            _, got = await asyncio.gather(read_a(a), b.getitem((0, slice(None, None, 500_000))))
            return got

        store = Store(folder, read_only=True)
        a, b = (zarr.open_array(store, path=name, mode="r").async_array for name in "ab")
        with ranges_from(Store), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            assert asyncio.run(a.getitem((0, 5))) == 1  # it answers ranges
            assert (asyncio.run(asyncio.wait_for(read_both(), 10)) == 1).all()


def test_a_read_that_is_closed_in_another_thread(tmp_path):
    """As in a loop that was abandoned; there were less than none there then: ZeroDivisionError."""
    create(tmp_path, (1, 1 << 20))[...] = 1
    store = CountingStore(tmp_path, read_only=True)
    with ranges_from(CountingStore):
        array = zarr.open_array(store, mode="r").async_array
        assert asyncio.run(array.getitem((0, 5))) == 1
        reading = array.getitem((0, 5))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(reading.send, None).result() is None
        reading.close()
        assert asyncio.run(array.getitem((0, 5))) == 1


def test_a_long_reason_ends_with_a_whole_word():
    """A line of the log ended in the middle of one."""
    why = answer_of(RuntimeError("refused " * 60)).why
    assert why.startswith("RuntimeError: refused refused ")
    assert why.endswith(" refused ...")
    assert len(why) <= 200
