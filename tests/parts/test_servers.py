"""Servers that answer byte ranges in unusual ways: the values, requests and bytes of zarr alone."""

import contextlib
import datetime as dt
import itertools
import threading
import time

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import EVERYTHING, ZARRS_PIPELINE, set_costs
from servers import DeadServer, Server

from numcodecs_bytes._parts import refusals, stores

obstore = pytest.importorskip("obstore")
pytest.importorskip("aiohttp")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.implementations.dirfs")
pytestmark = pytest.mark.usefixtures("our_pipeline")
DATA = np.arange(64 * 4096.0).reshape(64, 4096)
ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "codecs.bytes": "zarr.codecs.bytes.BytesCodec"}
STATUSES = [400, 401, 403, 405, 416, 429, 501, 500, 503]


def ends_in(answer):
    """Return a function that answers the same, but promises one byte more the first time."""
    num_left = itertools.count(1, -1)

    def answer_less(*of):
        status, headers, body = answer(*of)
        more = {"Content-Length": str(len(body) + 1), "Connection": "close"}
        return status, headers | (more if next(num_left) > 0 else {}), body

    return answer_less


TAGS = [f'"{k}"' for k in range(8)]  # of eight servers
SELECTIONS = [np.s_[:], np.s_[5, 7], np.s_[:, ::512], np.s_[3:5]]


# What is answered to a range: path, first byte, end and the whole body.
ODD_ANSWERS = {
    "shorter": lambda _, first, end, body: (
        206,
        {"Content-Range": f"bytes {first}-{first}/{len(body)}"},
        body[first : first + 1] if end - first > 1 else b"",
    ),
    "empty": lambda _, first, end, body: (
        206,
        {"Content-Range": f"bytes {first}-{end - 1}/{len(body)}"},
        b"",
    ),
    "no content": lambda *_: (204, {}, b""),
    "not modified": lambda *_: (304, {}, b""),
    "redirected to itself": lambda path, *_: (302, {"Location": f"/{path}"}, b""),
    "of what is compressed": lambda _, first, end, body: (
        206,
        {
            "Content-Range": f"bytes {first}-{end - 1}/{len(body) - 9}",
            "Content-Encoding": "gzip",
        },
        b"x" * (end - first),
    ),
}


@pytest.fixture
def folder(tmp_path):
    """Return the folder of arrays of one chunk, two chunks and a shard, 2 MiB each."""
    settings = {"shape": DATA.shape, "dtype": "f8", "compressors": None}
    zarr.create_array(tmp_path / "chunk", chunks=DATA.shape, **settings)[:] = DATA
    zarr.create_array(tmp_path / "chunks", chunks=(32, 4096), **settings)[:] = DATA
    zarr.create_array(tmp_path / "shard", shards=(64, 4096), chunks=(8, 512), **settings)[:] = DATA
    return tmp_path


@pytest.fixture(params=["ObjectStore", "FsspecStore"])
def open_store(request, monkeypatch):
    """Return a function that opens the store of an address."""
    set_costs(monkeypatch, stores.Remote, part_bytes=1 << 18)

    def of_obstore(address, max_retries=0):
        http = obstore.store.HTTPStore.from_url(
            address,
            client_options={"allow_http": True},
            retry_config={
                "max_retries": max_retries,
                "backoff": {"init_backoff": dt.timedelta(milliseconds=10)},
            },
        )
        return zarr.storage.ObjectStore(http, read_only=True)

    def of_fsspec(address, **_):
        return zarr.storage.FsspecStore.from_url(
            address, read_only=True, storage_options={"skip_instance_cache": True}
        )

    return of_obstore if request.param == "ObjectStore" else of_fsspec


def read(server, array, selection):
    """Return what is selected, and the requests for it."""
    server.requests.clear()
    found = array[selection]
    return found, sorted(server.of_chunks(), key=str)


def costs_of(requests):
    return len(requests), sum(length for *_, length in requests)


class TestRefusals:
    @pytest.mark.parametrize("selection", SELECTIONS, ids=str)
    @pytest.mark.parametrize("status", STATUSES[:: 2 if EVERYTHING else 3])
    def test_a_status_is_an_answer(self, folder, open_store, status, selection):
        """The chunk is read as by zarr alone; the second time, nothing else is requested."""
        with Server(folder, lambda *_: (status, {}, b"no")).running() as server:
            address = f"{server.address}/chunk"
            with zarr.config.set(ALONE):
                alone = zarr.open_array(open_store(address), mode="r")
            ours = zarr.open_array(open_store(address), mode="r")
            expected, requests = read(server, alone, selection)
            first, of_first = read(server, ours, selection)
            second, of_second = read(server, ours, selection)
        assert np.array_equal(expected, DATA[selection])
        assert np.array_equal(first, expected)
        assert np.array_equal(second, expected)
        assert len(of_first) <= len(requests) + 1
        assert of_second == requests

    @pytest.mark.parametrize("name", ["chunk", "shard"])
    @pytest.mark.parametrize("status", [300, 301, 999])
    def test_statuses_that_are_no_errors(self, folder, open_store, status, name):
        """Redirections to nowhere, for example, are no lost connections."""
        with Server(folder, lambda *_: (status, {}, b"no")).running() as server:
            array = zarr.open_array(open_store(server.address), path=name, mode="r")
            for _ in range(2):
                assert np.array_equal(array[:], DATA)
                if name == "chunk":
                    assert np.array_equal(array[:, ::512], DATA[:, ::512])
                    assert array[5, 7] == DATA[5, 7]

    @pytest.mark.parametrize("selection", SELECTIONS[1:], ids=str)
    @pytest.mark.parametrize("kind", ODD_ANSWERS)
    def test_odd_answers(self, folder, open_store, kind, selection):
        """Whatever no client can take is asked for once."""
        with Server(folder, ODD_ANSWERS[kind]).running() as server:
            array = zarr.open_array(open_store(server.address), path="chunk", mode="r")
            assert np.array_equal(array[selection], DATA[selection])
            found, requests = read(server, array, selection)
        assert np.array_equal(found, DATA[selection])
        num, num_bytes = costs_of(requests)
        assert num == 1
        assert num_bytes <= DATA.nbytes

    def test_one_odd_object_of_many(self, folder, open_store):
        """Is read whole; the others of a store that has answered rightly are not."""
        server = Server(folder)
        server.answer = lambda path, *of: (
            ODD_ANSWERS["empty"] if path.endswith("c/1/0") else server.partial
        )(path, *of)
        with server.running():
            array = zarr.open_array(open_store(server.address), path="chunks", mode="r")
            assert array[3, 3] == DATA[3, 3]
            for num_requests in (2, 1, 1):
                found, requests = read(server, array, (40, 5))
                assert found == DATA[40, 5]
                assert costs_of(requests) == (num_requests, DATA.nbytes // 2)
                assert costs_of(read(server, array, (3, 3))[1]) == (1, 8)

    @pytest.mark.parametrize("name", ["chunk", "shard"])
    def test_a_connection_that_is_lost_in_an_answer(self, folder, open_store, name):
        """Says nothing of the server; one that is lost twice, of the chunk."""
        server = Server(folder)
        with server.running():
            array = zarr.open_array(open_store(server.address), path=name, mode="r")
            costs = costs_of(read(server, array, (5, 7))[1])
            server.answer = ends_in(server.partial)
            assert np.array_equal(array[::16, ::2048], DATA[::16, ::2048])
            time.sleep(0.2)  # until requests have arrived that were cancelled
            assert costs_of(read(server, array, (5, 7))[1]) == costs
            server.answer = ends_in(server.partial)
            assert np.array_equal(array[::16, ::2048], DATA[::16, ::2048])
            time.sleep(0.2)
            with zarr.config.set(ALONE):
                alone = zarr.open_array(open_store(server.address), path=name, mode="r")
            costs = costs_of(read(server, alone, (5, 7))[1])
            assert costs_of(read(server, array, (5, 7))[1]) == costs

    @pytest.mark.parametrize("status", STATUSES[::3])
    def test_missing_chunks(self, folder, open_store, status):
        """Cost no more, either."""
        (folder / "chunk/c/0/0").unlink()
        server = Server(folder)
        respond = server.respond
        server.respond = lambda path, asked: (
            respond(path, asked) if asked is None else (status, {}, b"")
        )
        with server.running():
            array = zarr.open_array(open_store(server.address), path="chunk", mode="r")
            assert array[5, 7] == 0
            found, requests = read(server, array, (5, 7))
        assert found == 0
        assert len(requests) == 1

    @pytest.mark.parametrize("name", ["chunk", "chunks", "shard"])
    @pytest.mark.parametrize("selection", [np.s_[:], np.s_[:, ::512], np.s_[::16]], ids=str)
    @pytest.mark.parametrize("status", [429, 503])
    def test_a_limit_of_requests_at_once(self, folder, open_store, status, selection, name):
        """zarr alone makes one request for a chunk; for a part of a shard, more."""
        if name == "shard" and "slice(None, None, 16)" in str(selection):
            pytest.skip("zarr alone makes too many requests at once")
        server = Server(folder)
        lock, counts = threading.Lock(), {"now": 0}

        def respond(path, asked):
            with lock:
                counts["now"] += 1
                is_refused = counts["now"] > 2
            if is_refused:
                answer = status, {}, b"too many"
            else:
                time.sleep(0.05 * (asked is not None))
                answer = Server.respond(server, path, asked)
            with lock:
                counts["now"] -= 1
            return answer

        with server.running():
            array = zarr.open_array(open_store(server.address), path=name, mode="r")
            assert array[0, 0] == 0  # it answers ranges
            server.respond = respond
            for _ in range(2):
                assert np.array_equal(array[selection], DATA[selection])

    def test_it_is_remembered_for_a_while(self, folder, open_store, monkeypatch):
        server = Server(folder, lambda *_: (503, {}, b"overloaded"))
        with server.running():
            array = zarr.open_array(open_store(f"{server.address}/chunk"), mode="r")
            assert array[1, 1] == DATA[1, 1]
            server.answer = server.partial
            assert costs_of(read(server, array, (1, 1))[1])[1] == DATA.nbytes
            now = time.monotonic()
            monkeypatch.setattr(time, "monotonic", lambda: now + refusals.REMEMBERED_SECONDS)
            assert costs_of(read(server, array, (1, 1))[1])[1] < DATA.nbytes

    def test_one_chunk_that_can_not_be_read_says_nothing(self, folder, open_store):
        """Its error is that of zarr alone."""
        server = Server(folder, lambda *_: (403, {}, b"no"))
        server.whole = server.answer
        with server.running():
            store = open_store(f"{server.address}/chunk")
            server.whole = Server.whole.__get__(server)
            array = zarr.open_array(store, mode="r")
            server.whole = server.answer
            with zarr.config.set(ALONE), pytest.raises(Exception, match="403") as alone:
                zarr.open_array(store, mode="r")
            with pytest.raises(type(alone.value), match="403"):
                array[1, 1]
            assert store not in refusals.refusing


class TestLost:
    @pytest.mark.parametrize(
        ("selection", "num_in_flight"),
        [((5, 7), 1), (np.s_[:, ::512], 10), (np.s_[:], 10)],
        ids=["element", "columns", "all"],
    )
    @pytest.mark.parametrize("which", ["chunk", "shard", "chunk, has answered"])
    def test_a_dead_server_is_not_asked_again(
        self, folder, open_store, selection, num_in_flight, which
    ):
        """Each request is made as often as zarr alone makes its own, if several are at once."""
        with DeadServer() as dead, Server(folder).running() as server:
            stores = [open_store(server.address, max_retries=1) for _ in range(2)]
            with zarr.config.set(ALONE):
                alone = zarr.open_array(stores[0], path=which[:5], mode="r")
            ours = zarr.open_array(stores[1], path=which[:5], mode="r")
            if "answered" in which:
                assert ours[2, 2] == DATA[2, 2]
            for store in stores:
                move(store, server, dead, open_store)
            counts = []
            for array in (alone, ours):
                dead.num = 0
                with pytest.raises(Exception, match=".") as caught:
                    array[selection]
                counts.append((dead.num, type(caught.value)))
        (num, kind), (num_ours, kind_ours) = counts
        assert kind_ours is kind
        assert 0 < num_ours <= num * num_in_flight


def move(store, server, dead, open_store):
    """Let a store ask the dead server."""
    other = open_store(dead.address, max_retries=1)
    if isinstance(store, zarr.storage.ObjectStore):
        store.store = other.store
    else:
        store.path = store.path.replace(server.address, dead.address)


class TestReplicas:
    """A balancer over servers whose tags for the same object differ."""

    @pytest.mark.parametrize("name", ["chunk", "shard"])
    @pytest.mark.parametrize("tags", [['"a"', '"b"'], ['"a"', None], ['"a"', 'W/"b"'], TAGS])
    def test_what_zarr_alone_requests(self, folder, open_store, name, tags):
        """From the second read on; and never a whole shard for one element."""
        for selection in SELECTIONS:
            of_replicas = itertools.cycle(tags)
            server = Server(folder, tag=lambda *_, tags=of_replicas: next(tags))
            with server.running():
                with zarr.config.set(ALONE):
                    alone = zarr.open_array(open_store(server.address), path=name, mode="r")
                ours = zarr.open_array(open_store(server.address), path=name, mode="r")
                expected, requests = read(server, alone, selection)
                costs = []
                for _ in range(5):
                    found, of_ours = read(server, ours, selection)
                    assert np.array_equal(found, expected)
                    costs.append(costs_of(of_ours))
            num, num_bytes = costs_of(requests)
            if name == "shard" and selection == (5, 7) and tags is not TAGS:
                assert costs[0][1] < 2 * num_bytes
            if isinstance(ours.store, zarr.storage.ObjectStore) and costs[0][0] > 1:
                if tags is TAGS:
                    assert costs[-1][1] <= num_bytes
                else:
                    assert costs[-1] == (num, num_bytes)

    def test_a_large_shard(self, folder, open_store, monkeypatch):
        """Costs a few more requests, not all of its bytes; nor do later reads."""
        set_costs(monkeypatch, stores.Remote, part_bytes=1 << 18, latency_bytes=1 << 16)
        of_replicas = itertools.cycle(TAGS)
        with Server(folder, tag=lambda *_: next(of_replicas)).running() as server:
            array = zarr.open_array(open_store(server.address), path="shard", mode="r")
            for num_requests in (2 * len(TAGS), 3):
                found, requests = read(server, array, (5, 7))
                assert found == DATA[5, 7]
                assert costs_of(requests)[0] <= num_requests
                assert costs_of(requests)[1] < 1 << 17

    def test_a_shard_that_is_overwritten_by_a_shorter_one(self, folder, open_store):
        """Says nothing of the server, which answers 416."""
        server = Server(folder)
        with server.running():
            array = zarr.open_array(open_store(server.address), path="shard", mode="r")
            file = folder / "shard/c/0/0"
            data = np.zeros_like(DATA)
            data[:8] = DATA[:8]
            answer = server.partial

            def then_shorter(path, first, end, body):
                answered = answer(path, first, end, body)
                if server.answer is then_shorter:
                    server.answer = beyond
                    zarr.open_array(folder / "shard")[:] = data
                return answered

            def beyond(path, first, end, body):
                if first >= len(body):
                    return 416, {}, b""
                return answer(path, first, end, body)

            num_bytes = file.stat().st_size
            server.answer = then_shorter
            if open_store.__name__ == "of_obstore":
                assert array[60, 5] == 0
            else:
                with contextlib.suppress(Exception):  # as with zarr alone
                    array[60, 5]
            assert file.stat().st_size < num_bytes
            assert array.store not in refusals.refusing

    def test_an_overwritten_chunk_is_none(self, folder, open_store):
        """Versions stay checked."""
        if open_store.__name__ != "of_obstore":
            pytest.skip("this store tells no versions")
        tags = iter([*"aaaa", *"b" * 1000])
        with Server(folder, tag=lambda *_: f'"{next(tags)}"').running() as server:
            array = zarr.open_array(open_store(server.address), path="chunk", mode="r")
            assert np.array_equal(array[:, ::512], DATA[:, ::512])
            assert array.store not in refusals.refusing


class TestOtherRanges:
    """A cache that answers all ranges of an object with the first one that it has seen."""

    @pytest.mark.parametrize("kind", ["http", "dir", "dir in dir", "reference"])
    def test_another_range_is_no_answer(self, folder, kind):
        server = Server(folder)
        first = {}

        def answer(path, start, end, body):
            first.setdefault(path, (start, end))
            if end - start != first[path][1] - first[path][0]:
                return server.partial(path, start, end, body)
            return server.partial(path, *first[path], body)

        server.answer = answer
        with server.running():
            options = {"skip_instance_cache": True}
            address = f"{server.address}/chunk"
            if kind == "http":
                store = zarr.storage.FsspecStore.from_url(
                    address, read_only=True, storage_options=options
                )
            elif kind == "reference":
                references = {
                    "zarr.json": (folder / "chunk/zarr.json").read_text(),
                    "c/0/0": [f"{address}/c/0/0", 0, DATA.nbytes],
                }
                files = fsspec.filesystem(
                    "reference",
                    fo=references,
                    remote_protocol="http",
                    remote_options={"asynchronous": True, **options},
                    asynchronous=True,
                )
                store = zarr.storage.FsspecStore(files, read_only=True)
            else:
                files = fsspec.filesystem("http", asynchronous=True, **options)
                for path in (server.address, "chunk") if kind == "dir in dir" else (address,):
                    files = fsspec.implementations.dirfs.DirFileSystem(
                        path, files, asynchronous=True
                    )
                store = zarr.storage.FsspecStore(files, read_only=True)
            array = zarr.open_array(store, mode="r")
            for row in (3, 9, 11):
                assert np.array_equal(array[row], DATA[row])
            assert store in refusals.refusing

    def test_ranges_that_are_right(self, folder):
        """At the end of a chunk, and of a shard."""
        with Server(folder).running() as server:
            store = zarr.storage.FsspecStore.from_url(server.address, read_only=True)
            for name in ("chunk", "shard"):
                array = zarr.open_array(store, path=name, mode="r")
                assert np.array_equal(array[-1], DATA[-1])
            assert store not in refusals.refusing

    @pytest.mark.parametrize("where", ["kwargs", "client_kwargs"])
    def test_a_user_who_looks_at_responses(self, folder, where):
        """Goes on doing so."""
        seen = []

        async def see(response):
            seen.append(response.status)

        options = {"raise_for_status": see}
        options = options if where == "kwargs" else {"client_kwargs": options}
        with Server(folder).running() as server:
            store = zarr.storage.FsspecStore.from_url(
                f"{server.address}/chunk", read_only=True, storage_options=options
            )
            array = zarr.open_array(store, mode="r")
            seen.clear()
            assert np.array_equal(array[5], DATA[5])
        assert seen == [206]


class TestVersions:
    @pytest.mark.parametrize(
        ("steps", "expected"),
        [
            ("+1 1a +2 2a +3 3a", "---"),
            ("+1 1a +2 2b +3 3a", "--a"),  # one after the other
            ("+1 1a +2 2b +3 3b", "---"),
            ("+1 +2 +3 1a 2b 3a", "---"),  # all at once
            ("+1 +2 2b 1a +3 3b", "---"),  # overwritten; the old one arrives late
            ("+1 +2 1a 2b +3 +4 3a 4b +5 5a", "----a"),
            ("+1 1a +2 2b +3 3c +4 4b", "---b"),
        ],
    )
    def test_which_come_back(self, steps, expected):
        versions, sent, found = refusals.Versions(), {}, ""
        for step in steps.split():
            if step.startswith("+"):
                sent[step[1]] = versions.now()
            else:
                is_of_replicas = versions.are_of_replicas(step[1], sent[step[0]])
                found += step[1] if is_of_replicas else "-"
        assert found == expected
