"""`numcodecs_bytes.trace`: what it counts is what a store is asked for."""

import os
import threading
import warnings

import numpy as np
import pytest
import zarr
from helpers import OUR_PIPELINES, PIPELINES, CountingStore, create, ranges_from, run_program

import numcodecs_bytes
from numcodecs_bytes import _trace


def traced(read):
    """Return the report of what a function does, and what it returns."""
    with numcodecs_bytes.trace() as found:
        result = read()
    return found.report(), result


@pytest.fixture
def array(tmp_path):
    """Four chunks of 1 MiB of big-endian float64, 256 rows each."""
    written = create(tmp_path / "a.zarr", (1024, 512), (256, 512))
    written[:] = np.arange(written.size).reshape(written.shape)
    return zarr.open_array(tmp_path / "a.zarr")


def test_a_row_of_a_local_file(array):
    """One chunk, one read of exactly the row, under the name of its array."""
    report, row = traced(lambda: array[300])
    assert row.tolist() == list(range(300 * 512, 301 * 512))
    assert list(report["arrays"]) == [repr(array.store)]
    assert report["not_seen"] == {}
    (counts,) = report["arrays"].values()
    assert counts == report["total"]
    assert (counts["chunks"], counts["requests"], counts["chunks_whole"]) == (1, 1, 0)
    assert counts["bytes_fetched"] == counts["bytes_selected"] == 4096


def test_all_chunks(array):
    """Whole chunks that are selected whole are not counted as read whole."""
    total = traced(lambda: array[:])[0]["total"]
    assert (total["chunks"], total["requests"], total["chunks_whole"]) == (4, 4, 0)
    assert total["bytes_fetched"] == total["bytes_selected"] == array.nbytes


def test_what_a_store_is_asked_for(tmp_path):
    """The requests and bytes are those that a store counts itself."""
    create(tmp_path, (1024, 512), (256, 512))[:] = 1
    with ranges_from(CountingStore):
        array = zarr.open_array(CountingStore(tmp_path), mode="r")
        total = traced(lambda: array[[3, 200, 600], [7, 9, 11]])[0]["total"]
    assert total["requests"] == len(array.store.requests) > 0
    assert total["bytes_fetched"] == array.store.num_bytes > 0
    assert total["bytes_selected"] == 3 * 8


def test_why_chunks_are_read_whole(tmp_path):
    """A store that is not known to have reliable byte ranges is named."""
    create(tmp_path, (1024, 512), (256, 512))[:] = 1
    array = zarr.open_array(CountingStore(tmp_path), mode="r")
    report, _ = traced(lambda: array[300])
    assert report["total"]["chunks_whole"] == 1
    assert report["total"]["bytes_fetched"] == 1 << 20
    (why,) = report["total"]["why_whole"]
    assert "helpers.CountingStore is not known to have reliable byte ranges" in why


def test_store_that_ignores_ranges(tmp_path):
    """What was fetched in vain is counted, once per store, and why the chunk was read whole."""
    create(tmp_path, (1024, 512), (256, 512))[:] = 1

    class Ignores(CountingStore):
        async def get(self, key, prototype=None, byte_range=None):  # noqa: ARG002
            return await super().get(key, prototype, None)

    with ranges_from(Ignores):
        array = zarr.open_array(Ignores(tmp_path), mode="r")
        total = traced(lambda: (array[300], array[700]))[0]["total"]
    assert total["chunks_whole"] == 2
    assert total["requests"] == len(array.store.requests) == 3
    assert total["bytes_fetched"] == array.store.num_bytes == 3 << 20
    assert all("bytes to a request for" in why for why in total["why_whole"])


def test_missing_chunks(tmp_path):
    """They cost a request, and no bytes."""
    array = create(tmp_path, (1024, 512), (256, 512))
    total = traced(lambda: zarr.open_array(tmp_path)[300])[0]["total"]
    assert (total["chunks"], total["chunks_missing"], total["bytes_fetched"]) == (1, 1, 0)
    assert total["bytes_selected"] == 0
    assert array.nchunks_initialized == 0


def test_shards(tmp_path):
    """Their index and the parts; nothing of other pipelines."""
    kwargs = {"shape": (512, 512), "shards": (512, 512), "chunks": (64, 64), "dtype": "f8"}
    zarr.create_array(tmp_path, compressors=None, **kwargs)[:] = 1
    with zarr.config.set({"codec_pipeline.path": PIPELINES[0]}):
        report, _ = traced(lambda: zarr.open_array(tmp_path)[5])
    assert report["arrays"] == {}
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        report, _ = traced(lambda: zarr.open_array(tmp_path)[5])
    assert report["not_seen"] == {}
    assert report["total"]["bytes_fetched"] == 64 * 16 + 4 + 512 * 8
    assert (report["total"]["chunks"], report["total"]["bytes_selected"]) == (1, 512 * 8)


class Counts(zarr.storage.LocalStore):
    """Counts what zarr alone fetches of chunks and shards."""

    num_bytes = 0
    _supports_sync_io = False

    async def get(self, key, *args, **kwargs):
        buffer = await super().get(key, *args, **kwargs)
        if buffer is not None and not key.endswith(("zarr.json", ".zarray", ".zattrs")):
            Counts.num_bytes += len(buffer)
        return buffer

    async def get_partial_values(self, prototype, key_ranges):
        return [await self.get(key, prototype, each) for key, each in key_ranges]


@pytest.fixture
def fetched_alone(monkeypatch):
    """Return a function that returns what zarr alone fetches for what a function does."""
    codecs = {"codecs.bytes": "zarr.codecs.bytes.BytesCodec", "codec_pipeline.path": PIPELINES[0]}
    options = {"numcodecs_bytes.write_in_place": False}

    def fetch(path, do):
        monkeypatch.setattr(Counts, "num_bytes", 0)
        with zarr.config.set(codecs | options):
            do(zarr.open_array(Counts(path), mode="r+"))
        return Counts.num_bytes

    return fetch


SHARDED = {"shards": (256, 512), "chunks": (64, 128)}
ALONE = {
    "chunks": {"chunks": (256, 512)},
    "column-major": {"chunks": (256, 512), "filters": zarr.codecs.TransposeCodec(order=(1, 0))},
    "Zarr v2": {"chunks": (256, 512), "zarr_format": 2},
    "shards": SHARDED,
}


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
@pytest.mark.parametrize("stored", ALONE)
@pytest.mark.parametrize(
    "selection",
    [np.s_[300], np.s_[250:260, 120:130], np.s_[:, 7], np.s_[...], np.s_[900:]],
    ids=str,
)
def test_what_zarr_alone_fetches(tmp_path, fetched_alone, pipeline, stored, selection):
    """It is what a store counts; the last chunks are missing."""
    settings = {"compressors": None, "dtype": "f8", "shape": (1024, 512)} | ALONE[stored]
    zarr.create_array(tmp_path, **settings)[:700] = np.arange(700 * 512).reshape(700, 512)
    expected = fetched_alone(tmp_path, lambda array: array[selection])
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        array = zarr.open_array(tmp_path)
        report, _ = traced(lambda: array[selection])
    assert report["not_seen"] == {}
    total = report["total"]
    if stored == "shards":  # newer versions of zarr read short gaps between inner chunks, too
        assert min(expected, 1) <= total["bytes_zarr_alone"] <= expected
    else:
        assert total["bytes_zarr_alone"] == expected
    assert total["chunks_missing"] == sum(start >= 768 for start in starts(selection))
    assert total["bytes_fetched"] <= expected


def starts(selection):
    """Return where the chunks begin along the first axis of which something is selected."""
    rows = np.unique(np.arange(1024).reshape(1024, 1).repeat(512, 1)[selection])
    return np.unique(rows // 256) * 256


@pytest.mark.parametrize("location", ["start", "end"])
def test_what_zarr_alone_fetches_of_shards_in_servers(tmp_path, fetched_alone, location):
    """The same as from files: its index, and whole inner chunks."""
    codec = zarr.codecs.ShardingCodec(chunk_shape=(64, 128), index_location=location)
    settings = {"shape": (512, 512), "chunks": (512, 512), "dtype": "f8", "compressors": None}
    zarr.create_array(tmp_path, serializer=codec, **settings)[:300] = 1
    expected = fetched_alone(tmp_path, lambda array: array[290:330, 100:140])
    assert expected >= 8 * 4 * 16 + 4 + 2 * 64 * 128 * 8
    with ranges_from(CountingStore):
        array = zarr.open_array(CountingStore(tmp_path), mode="r")
        total = traced(lambda: array[290:330, 100:140])[0]["total"]
    assert total["bytes_zarr_alone"] == expected


@pytest.mark.parametrize("stored", ["chunks", "shards"])
def test_what_zarr_alone_fetches_to_write(tmp_path, fetched_alone, stored):
    """The chunks of which parts are written, and nothing where there is none."""
    settings = {"compressors": None, "dtype": "f8", "shape": (1024, 512)} | ALONE[stored]
    for name in ("alone", "ours"):
        zarr.create_array(tmp_path / name, **settings)[:700] = 1
    expected = fetched_alone(tmp_path / "alone", lambda a: a.__setitem__(np.s_[200:900, 3:], 2))
    with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
        array = zarr.open_array(tmp_path / "ours", mode="r+")
        report, _ = traced(lambda: array.__setitem__(np.s_[200:900, 3:], 2))
    assert report["total"]["bytes_zarr_alone"] == expected > 2 << 20
    assert report["total"]["bytes_fetched"] == 0


@pytest.mark.parametrize(
    ("kwargs", "why"),
    [
        ({"chunks": (32, 64)}, "compressed or filtered by zstd"),
        ({"chunks": (32, 32), "shards": (64, 64)}, "compressed or filtered by zstd"),
        ({"chunks": (32, 64), "zarr_format": 2, "filters": []}, "compressed or filtered by zstd"),
    ],
    ids=["plain", "shards", "v2"],
)
def test_compressed_chunks(tmp_path, kwargs, why):
    """Only their number is known, and by what they are compressed."""
    zarr.create_array(tmp_path, shape=(64, 64), dtype="i4", **kwargs)[:] = 1
    report, _ = traced(lambda: zarr.open_array(tmp_path)[0])
    assert report["not_seen"] == {why: 1}
    assert report["arrays"] == {}


def test_written_in_place(tmp_path, array):
    """The bytes that are written, and why others are not."""
    with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
        array = zarr.open_array(tmp_path / "a.zarr", mode="r+")
        counts = traced(lambda: array.__setitem__((slice(250, 260), slice(0, 2)), 0))[0]["total"]
        assert (counts["chunks_in_place"], counts["bytes_in_place"]) == (2, 10 * 2 * 8)
        assert counts["why_not_in_place"] == {}
        counts = traced(lambda: array.__setitem__(slice(0, 256), 0))[0]["total"]
    assert counts["bytes_in_place"] == 0
    assert counts["why_not_in_place"] == {"the whole chunk is written": 1}


def test_every_thread_is_counted_and_only_meanwhile(array):
    """In traces that overlap, too."""

    def read():
        threads = [threading.Thread(target=array.__getitem__, args=(k * 200,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with numcodecs_bytes.trace() as outer:
        assert array[0, 0] == 0
        with numcodecs_bytes.trace() as inner:
            read()
        assert array[1, 0] == 512
    assert array[2, 0] == 1024
    assert inner.report()["total"]["chunks"] == 4
    assert outer.report()["total"]["chunks"] == 6


ROW = ["4.0", "KiB", "0", "B"]


def test_the_table(array):
    """Printed, it has a line per array, and says what it is about."""
    with numcodecs_bytes.trace() as found:
        array[300]
    head, line = str(found).splitlines()
    assert head.split("  ")[0].strip() == "array"
    assert line.split()[1:] == ["1", "0", "1", "4.0", "KiB", "1.0", "MiB", *ROW]
    assert len(head) == len(line)
    assert "numcodecs_bytes read and wrote nothing" in repr(numcodecs_bytes.trace())


@pytest.mark.parametrize(
    ("key", "num_axes", "path"),
    [
        ("a/c/0/1", 2, "a"),
        ("c/0/1", 2, ""),
        ("a/c", 0, "a"),
        ("a/c.0.1", 2, "a"),
        ("2020/c/3", 1, "2020"),
        ("a/0.1", 2, "a"),
        ("2020/0/1", 2, "2020"),
        ("0", 0, ""),
        ("7", 1, ""),
    ],
)
def test_name_of_an_array(key, num_axes, path):
    """From a chunk's key in every encoding."""
    assert _trace.path_of_array(key, num_axes) == path


def test_the_total_and_a_report_stay_as_they_are(tmp_path):
    """It adds up reasons with their numbers, and is a copy."""
    for name in "ab":
        create(tmp_path / name, (64, 64), (32, 64))[:] = 1
    with numcodecs_bytes.trace() as found:
        for name in "aab":
            zarr.open_array(CountingStore(tmp_path / name), mode="r")[0]
        report = found.report()
        zarr.open_array(CountingStore(tmp_path / "a"), mode="r")[0]
    assert [sum(c["why_whole"].values()) for c in report["arrays"].values()] == [2, 1]
    assert list(report["total"]["why_whole"].values()) == [3]
    assert found.report()["total"]["chunks"] == report["total"]["chunks"] + 1 == 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_counts_nothing():
    """And does not wait for a lock that another thread held meanwhile."""
    code = """
        import os, signal, numcodecs_bytes
        from numcodecs_bytes import _trace
        with numcodecs_bytes.trace() as found:
            _trace._lock.acquire()
            if not os.fork():
                signal.alarm(20)
                _trace.note_not_seen("x")
                os._exit(found.report()["not_seen"] != {})
            _trace._lock.release()
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
            _trace.note_not_seen("x")
        assert found.report()["not_seen"] == {"x": 1}
    """
    run_program("-c", "\n".join(line[8:] for line in code.splitlines()))


def test_elements_that_numpy_returns_as_scalars(tmp_path):
    """Bytes of a fixed width have their width, whatever they hold."""
    data = np.array([b"ab", b""], "S10")
    with warnings.catch_warnings(action="ignore"):  # of zarr: no specification
        zarr.create_array(tmp_path, data=data, chunks=(2,), compressors=None)
    assert traced(lambda: zarr.open_array(tmp_path)[1])[0]["total"]["bytes_selected"] == 10


def test_a_whole_shard(tmp_path):
    """Its index is fetched, but not selected: the shard is not read whole in vain."""
    kwargs = {"shape": (64, 64), "shards": (64, 64), "chunks": (8, 64), "dtype": "f8"}
    zarr.create_array(tmp_path, compressors=None, **kwargs)[:] = 1
    total = traced(lambda: zarr.open_array(tmp_path)[:])[0]["total"]
    assert (total["chunks"], total["chunks_whole"]) == (1, 0)
    assert total["bytes_fetched"] == total["bytes_selected"] + 8 * 16 + 4
