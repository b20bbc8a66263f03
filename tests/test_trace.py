"""`numcodecs_bytes.trace`: what it counts is what a store is asked for."""

import errno
import json
import os
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from helpers import (
    HAS_STRUCT,
    OUR_PIPELINES,
    ZARR_ALONE,
    CountingStore,
    IgnoringStore,
    bytes_codec,
    create,
    is_called_by_package,
    metadata,
    ranges_from,
    reference_store,
)

import numcodecs_bytes
from numcodecs_bytes._zarr_api import names


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
    """One chunk, one read of exactly the row, under the name of its array; also as a table."""
    with numcodecs_bytes.trace() as found:
        assert array[300].tolist() == list(range(300 * 512, 301 * 512))
    report = found.report()
    assert report["not_seen"] == {}
    ((name, counts),) = report["arrays"].items()
    assert (name, counts) == (repr(array.store), report["total"])
    assert (counts["chunks"], counts["requests"], counts["chunks_whole"]) == (1, 1, 0)
    assert counts["bytes_fetched"] == counts["bytes_selected"] == 4096
    head, line = str(found).splitlines()
    assert head.split() == ["array", "chunks", "requests", "fetched", "zarr", "alone", "selected"]
    assert line.endswith("  4.0 KiB     1.0 MiB   4.0 KiB")
    assert "this trace was not entered" in repr(numcodecs_bytes.trace())
    with numcodecs_bytes.trace() as found:
        assert repr(found) == "nothing was read through zarr in this process"
    with zarr.config.set(ZARR_ALONE):
        nothing = repr(found)
    assert nothing.startswith("nothing was counted: zarr's codec pipeline is zarr.core.codec_pip")
    with zarr.config.set({"codec_pipeline.path": "no.such"}):
        repr(numcodecs_bytes.trace())


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize(
    ("shown", "named"),
    [
        ("short", "short"),
        (f"{'long' * 30}/end", r"\.\.\..*longlong/end"),
        (f"{'long' * 100}/end", r"\.\.\..*longlong/end"),
        ("<stores.Named object at 0x7fa972552c10>", r"\.\.\..* at 0x[0-9a-f]+"),
    ],
)
def test_the_table_fits_into_100_columns(array, shown, named):
    """Whatever the names of stores are, and whatever is counted."""

    class Named(zarr.storage.LocalStore):
        def __repr__(self):
            return shown

    with ranges_from(Named), numcodecs_bytes.trace() as found:
        zarr.open_array(Named(array.store.root), mode="r")[300, 1]
        opened = zarr.open_array(array.store.root, mode="r+")
        zarr.open_array(CountingStore(array.store.root), mode="r")[300]
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            opened[300] = 1
    head, *rows, _ = str(found).splitlines()
    assert {len(row) for row in rows} == {len(head)}
    assert len(head) <= 100
    assert any(re.match(f"{named}  ", row) for row in rows)
    assert "read whole" in head


@pytest.mark.parametrize("stored", ["chunks", "shards"])
def test_what_is_fetched_in_gaps(tmp_path, stored):
    """Of a box, more than ten times what is selected was fetched, and no line said why."""
    stored_rows(tmp_path, stored)
    for store in (tmp_path, CountingStore(tmp_path)):
        with ranges_from(CountingStore), numcodecs_bytes.trace() as found:
            array = zarr.open_array(store, mode="r")
            array[200:300, 100:110]
        total = found.report()["total"]
        fetched = total["bytes_fetched"] - total["bytes_selected"]
        assert 0 <= fetched - total["bytes_in_gaps"] <= 3 * (16 * 16 + 4)
        assert total["bytes_in_gaps"] > 10 * total["bytes_selected"]
        said = f" of {array.store!r} fetched, but not selected: short gaps between selected bytes"
        assert said in str(found)
        assert "numcodecs_bytes.max_gap_bytes" in str(found)
        no_gaps = zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0})
        with no_gaps, ranges_from(CountingStore), numcodecs_bytes.trace() as found:
            array[200:300, 100:110]
        assert found.report()["total"]["bytes_in_gaps"] == 0
        assert "fetched, but not selected" not in str(found)


def test_missing_inner_chunks_hide_no_gaps(tmp_path):
    """What is selected of them is not fetched."""
    settings = {"shape": (8, 64), "shards": (8, 64), "chunks": (4, 64), "dtype": "u1"}
    zarr.create_array(tmp_path, **settings, compressors=None)[:4] = 1
    with ranges_from(CountingStore):
        for store in (tmp_path, CountingStore(tmp_path)):
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 64}):
                array = zarr.open_array(store, mode="r")
                report, _ = traced(lambda array=array: array[:, 30:34])
            assert report["total"]["bytes_in_gaps"] == 3 * 60


def test_chunks_in_one_object_share_what_is_fetched_in_gaps(tmp_path):
    """They are requested together."""
    (tmp_path / "a").write_bytes(bytes(8 * 64))
    refs = {"zarr.json": json.dumps(metadata("uint8", [bytes_codec()], (8, 64), (2, 64)))}
    path = (tmp_path / "a").as_uri()
    refs |= {f"c/{number}/0": [path, 128 * number, 128] for number in range(4)}
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 64}):
        array = zarr.open_array(reference_store(refs), mode="r")
        report, _ = traced(lambda: array[:, 30:34])
    total = report["total"]
    assert total["bytes_in_gaps"] == total["bytes_fetched"] - 8 * 4 == 4 * 60


def test_many_reads_are_not_said_to_be_one(tmp_path):
    """Of a column that took 38 requests, a report said "a single read is faster"."""
    array = create(tmp_path / "a", (2048, 1024), dtype="f4")
    array[:] = 1
    report, _ = traced(lambda: array[:, 7])
    assert report["total"]["requests"] > 1
    assert report["total"]["why_whole"] == {"the gaps between the selected bytes are short": 1}


def test_a_reason_is_one_line(array, monkeypatch):
    """With one colon, even if it is the text of an error."""
    stat = os.fstat

    def fail(descriptor):
        if is_called_by_package():
            raise OSError(errno.EIO, "first: 1\nsecond: 2")
        return stat(descriptor)

    monkeypatch.setattr(os, "fstat", fail)
    with numcodecs_bytes.trace() as found:
        array[300]
    (said,) = str(found).splitlines()[2:]
    assert (
        said == f"1 chunk of {array.store!r} read whole: [Errno {errno.EIO}] first - 1 second - 2"
    )


def test_a_reason_names_no_file(tmp_path):
    """It made a line of its own for each chunk."""
    settings = {"shape": (8, 64), "chunks": (1, 64), "dtype": "f4", "compressors": None}
    array = zarr.create_array(tmp_path, **settings)
    for number in range(8):
        chunk = tmp_path / f"c/{number}/0"
        chunk.parent.mkdir(parents=True)
        chunk.symlink_to(chunk)
    with numcodecs_bytes.trace() as found, pytest.raises(OSError, match="c/[0-7]/0"):
        array[:, 3]
    ((reason, number),) = found.report()["not_seen"].items()
    assert (number, str(tmp_path) in reason) == (8, False)


class NoName(CountingStore):
    """A store without a name."""

    __repr__ = object.__repr__


def reference_file(path):
    """Return a store of references that are in a file."""
    path.mkdir(parents=True)
    references = path / "references.json"
    document = {"zarr.json": json.dumps(metadata("int32", [bytes_codec("little")], (4,)))}
    references.write_text(json.dumps(document))
    return reference_store(str(references))


def reference_dict(_path):
    return reference_store({"zarr.json": json.dumps(metadata("int32", [bytes_codec("little")]))})


MAKERS = {
    "long paths": CountingStore,
    "no names": NoName,
    "references in files": reference_file,
    "references in memory": reference_dict,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_stores_share_no_name(tmp_path, make):
    """Arrays of two stores were one row."""
    folder = tmp_path.joinpath(*["x" * 60] * 4)
    stores = [make(folder / name) for name in "ab"]
    for store in stores:
        if not store.read_only:
            create(store, (4,), dtype="i4")
    arrays = [zarr.open_array(store, mode="r") for store in stores]  # else they share an address
    with numcodecs_bytes.trace() as found:
        for array in arrays:
            array[1:3]
    assert len(found.report()["arrays"]) + len(found.report()["arrays_not_seen"]) == 2


def test_references_in_memory_are_named_by_a_file():
    """They were named by an address alone."""
    references = {"zarr.json": json.dumps(metadata("int32", [bytes_codec("little")]))}
    references["c/0"] = ["https://name:PASSWORD@host/scan.nc?key=SECRET", 132, 16]
    name = names.name_of_store(reference_store(references, "https"))
    assert re.search(r" of memory://[0-9]+, to https://host/scan\.nc$", name)


def test_a_name_shows_no_password(tmp_path):
    """Nor a key: both may be in the URL of references."""
    store = reference_file(tmp_path / "a")
    store.fs.storage_options["fo"] = "https://name:PASSWORD@host/a@b.json?key=SECRET#TOKEN"
    name = names.name_of_store(store)
    assert name.endswith(" of https://host/a@b.json")


def test_an_error_names_the_end_of_a_long_path(tmp_path):
    """It named the class of the store."""
    folder = tmp_path.joinpath(*["x" * 60] * 4, "a.zarr")
    create(folder, (4,), dtype="i4")[:] = 1
    (folder / "c/0").write_bytes(bytes(5))
    with pytest.raises(
        ValueError, match=r"chunk 'c/0' of LocalStore\(\.\.\.x.*/a\.zarr'\) holds 5"
    ):
        zarr.open_array(folder)[:]


STORED = {
    "chunks": {"chunks": (256, 512)},
    "column-major": {"chunks": (256, 512), "filters": zarr.codecs.TransposeCodec(order=(1, 0))},
    "Zarr v2": {"chunks": (256, 512), "zarr_format": 2},
    "shards": {"shards": (256, 512), "chunks": (64, 128)},
    "shards with the index first": {
        "chunks": (256, 512),
        "serializer": zarr.codecs.ShardingCodec(chunk_shape=(64, 128), index_location="start"),
    },
}
SELECTIONS = [np.s_[300], np.s_[250:260, 120:130], np.s_[:768, 7], np.s_[...], np.s_[900:]]


def stored_rows(path, stored):
    """Write an array whose last quarter of chunks is missing."""
    settings = {"compressors": None, "dtype": "f8", "shape": (1024, 512)} | STORED[stored]
    zarr.create_array(path, **settings)[:700] = np.arange(700 * 512).reshape(700, 512)


def fetched_alone(path, do):
    """Return how many bytes zarr alone fetches of chunks for what a function does."""
    with zarr.config.set(ZARR_ALONE):
        array = zarr.open_array(CountingStore(path), mode="r+")
        do(array)
    return array.store.num_bytes


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
def test_what_a_store_and_zarr_alone_count(tmp_path, pipeline, stored):
    """Of parts of chunks and shards, of all of them, and of missing ones, in files and servers."""
    stored_rows(tmp_path, stored)
    rows = np.arange(1024).reshape(1024, 1).repeat(512, 1)
    for selection in SELECTIONS:
        alone = fetched_alone(tmp_path, lambda array, at=selection: array[at])
        selected = rows[selection]
        # zarr 3.1.6 does not tell which chunks of a server are missing.
        for store in (tmp_path, CountingStore(tmp_path))[: 1 + (selected.max() < 768)]:
            with ranges_from(CountingStore), zarr.config.set({"codec_pipeline.path": pipeline}):
                array = zarr.open_array(store, mode="r")
                report, _ = traced(lambda array=array, at=selection: array[at])
            assert report["not_seen"] == {}
            total = report["total"]
            assert total["chunks"] == len(np.unique(selected // 256))
            assert total["chunks_missing"] == (selected.max() >= 768)
            assert total["bytes_selected"] == 8 * np.count_nonzero(selected < 768)
            # Newer versions of zarr read short gaps in a shard, too.
            least = min(alone, 1) if HAS_STRUCT and "shards" in stored else alone
            assert least <= total["bytes_zarr_alone"] <= alone
            if selection is ...:  # indices of shards are fetched, and not selected
                assert (total["chunks_whole"], total["bytes_fetched"]) == (0, alone)
            if store is tmp_path:
                assert total["bytes_fetched"] <= alone
            else:
                assert total["bytes_fetched"] == array.store.num_bytes
                assert total["requests"] == len(array.store.requests)


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("stored", ["chunks", "shards"])
def test_parts_that_are_not_written_in_place(tmp_path, stored):
    """Nobody has asked for it: how to switch it on is said, and nothing of whole chunks."""
    stored_rows(tmp_path / "a", stored)
    array = zarr.open_array(tmp_path / "a", mode="r+")
    with numcodecs_bytes.trace() as traced:
        array[:600] = 2
    total = traced.report()["total"]
    (why,) = total["why_not_in_place"]
    assert total == total | {"why_not_in_place": {why: 1}, "chunks": 0, "chunks_in_place": 0}
    said = "not written in place: numcodecs_bytes.write_in_place is off; set it to True in "
    assert str(traced).startswith(f"1 chunk of {array.store!r} {said}")
    in_memory = zarr.create_array({}, shape=4, dtype="i1", compressors=None)
    compressed = zarr.create_array(tmp_path / "b", shape=4, dtype="i1")
    for other, expected in (
        (in_memory, "zarr.storage._memory.MemoryStore is not zarr's LocalStore"),
        (compressed, "compressed or filtered by zstd"),
    ):
        for selection, num in ((slice(2), 1), (slice(None), 0)):
            with numcodecs_bytes.trace() as traced:
                other[selection] = 1
            found = traced.report()["total"]["why_not_in_place"]
            assert found == ({expected: 1} if num else {})
    assert (array[:600] == 2).all()


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("stored", ["chunks", "shards"])
def test_what_zarr_alone_fetches_to_write(tmp_path, stored):
    """The chunks of which parts are written, and nothing where there is none."""

    def write(array):
        array[200:900, 3:] = 2

    for name in ("alone", "ours"):
        stored_rows(tmp_path / name, stored)
    alone = fetched_alone(tmp_path / "alone", write)
    with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
        report, _ = traced(lambda: write(zarr.open_array(tmp_path / "ours", mode="r+")))
    assert report["total"]["bytes_zarr_alone"] == alone > 2 << 20
    assert report["total"]["bytes_fetched"] == 0
    assert report["total"]["bytes_in_place"] == 700 * 509 * 8


@pytest.mark.parametrize(
    ("kind", "num_requests", "why"),
    [
        (CountingStore, 2, "helpers.CountingStore is not known to have reliable byte ranges"),
        (IgnoringStore, 3, "bytes to a request for"),  # one of them was in vain
    ],
)
def test_why_chunks_are_read_whole(tmp_path, array, kind, num_requests, why):
    """And the total adds up the arrays; a report is a copy."""
    create(tmp_path / "b.zarr", (64, 64), (32, 64))[:] = 1
    with ranges_from(IgnoringStore), numcodecs_bytes.trace() as found:
        array = zarr.open_array(kind(tmp_path / "a.zarr"), mode="r")
        assert (array[300, 1], array[700, 2]) == (300 * 512 + 1, 700 * 512 + 2)
        report = found.report()
        zarr.open_array(CountingStore(tmp_path / "b.zarr"), mode="r")[0]
    total = report["total"]
    assert total["requests"] == len(array.store.requests) == num_requests
    assert total["bytes_fetched"] == array.store.num_bytes == num_requests << 20
    assert total["chunks_whole"] == sum(total["why_whole"].values()) == 2
    assert all(why in each for each in total["why_whole"])
    both = found.report()
    assert [counts["chunks_whole"] for counts in both["arrays"].values()] == [2, 1]
    assert both["total"]["chunks"] == sum(both["total"]["why_whole"].values()) == 3
    assert f"read whole: {next(iter(total['why_whole']))}" in str(found)


@pytest.mark.parametrize("kwargs", [{}, {"shards": (64, 64)}, {"zarr_format": 2}], ids=str)
def test_compressed_chunks(tmp_path, kwargs):
    """Only their number is known, and by what they are compressed; of zarr's pipeline nothing."""
    zarr.create_array(tmp_path, shape=(64, 64), chunks=(32, 64), dtype="i4", **kwargs)[:] = 1
    expected = {"compressed or filtered by zstd": 1}
    for config, not_seen in (({}, expected), (ZARR_ALONE, {})):
        with zarr.config.set(config):
            array = zarr.open_array(tmp_path)
            report, _ = traced(lambda array=array: array[0])
        assert (report["arrays"], report["not_seen"]) == ({}, not_seen)
        by_array = {repr(array.store): not_seen} if not_seen else {}
        assert report["arrays_not_seen"] == by_array


def test_the_arrays_that_zarr_reads_are_named(tmp_path):
    """By their paths if all are in one store: else one suspects the array that one has written."""
    group = zarr.create_group(tmp_path / "a")
    names = [*"abcdef", "plain"]
    for name in names:
        more = {"compressors": None} if name == "plain" else {}
        group.create_array(name, shape=4, dtype="i4", **more)[:] = 1
    other = zarr.create_array(tmp_path / "b", shape=4, dtype="i4")
    why = "compressed or filtered by zstd"
    with numcodecs_bytes.trace() as found:
        for name in names[3:]:
            group[name][1]
        group["a"][0] = 1
        _, *rows, in_place, whole = str(found).splitlines()
        assert [row.split()[0].endswith("/plain") for row in rows] == [True]
        assert in_place == f"1 chunk of /a not written in place: {why}"
        assert whole == f"3 chunks of /d, /e, /f read by zarr, whole: {why}"
        for name in "abc":
            group[name][1]
        assert f"6 chunks of /d, /e, /f, /a, /b, 1 more read by zarr, whole: {why}" in str(found)
        other[0]
    assert f", {group.store!r}/b, 2 more read by zarr" in str(found)


def test_nothing_is_fetched_from_memory():
    """It was counted as fetched."""
    array = zarr.create_array({}, shape=(8, 8), chunks=(4, 8), dtype="i4", compressors=None)
    array[:] = 1
    report, _ = traced(lambda: array[:, 3])
    expected = {"chunks": 2, "bytes_selected": 32, "requests": 0, "bytes_fetched": 0}
    expected |= {"bytes_zarr_alone": 0, "why_whole": {"it is in memory": 2}}
    assert report["total"] == report["total"] | expected


@pytest.mark.parametrize(
    ("path", "shape", "settings"),
    [
        ("a", (4, 4), {}),
        ("a", (4, 4), {"chunk_key_encoding": {"name": "default", "separator": "."}}),
        ("2020", (4, 4), {"chunk_key_encoding": {"name": "v2", "separator": "/"}}),
        ("2020", (4,), {"zarr_format": 2}),
        ("", (), {"zarr_format": 2}),
        ("c", (4, 4), {"chunk_key_encoding": {"name": "v2", "separator": "."}}),
        # These were counted as the group's.
        ("c", (4, 4), {"chunk_key_encoding": {"name": "v2", "separator": "/"}}),
        ("a/c", (4,), {"chunk_key_encoding": {"name": "v2", "separator": "."}}),
        ("c", (4,), {"zarr_format": 2}),
        (
            "a/c",
            (4, 4),
            {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        ),
    ],
    ids=str,
)
def test_name_of_an_array(path, shape, settings):
    """Whatever the keys of its chunks are."""
    settings |= {"name": path or None, "shape": shape, "dtype": "f8", "compressors": None}
    created = zarr.create_array({}, **settings)
    created[...] = 1
    for array in (created, zarr.open_array(created.store, path=path)):
        report, _ = traced(lambda array=array: array[...])
        assert list(report["arrays"]) == [f"{array.store!r}/{path}".rstrip("/")]


def test_name_of_an_array_in_files(tmp_path):
    """By whichever way it is read or written."""
    keys = {"name": "v2", "separator": "/"}
    array = create(tmp_path / "c", (4, 4), (2, 4), chunk_key_encoding=keys)
    array = zarr.open_array(tmp_path, path="c")
    reader, loaded = numcodecs_bytes.SyncReader(array), pickle.loads(pickle.dumps(array))  # noqa: S301
    array[...] = 1
    reads = lambda: array[3, 3], lambda: reader[3, 3], lambda: loaded[3, 3]
    for do in (*reads, lambda: array.__setitem__((1, 1), 2)):
        report, _ = traced(do)
        assert list(report["arrays"]) == [f"{array.store!r}/c"]


def test_every_thread_is_counted_and_only_meanwhile(array):
    """In traces that overlap, too."""
    with numcodecs_bytes.trace() as outer, ThreadPoolExecutor(4) as pool:
        assert array[0, 0] == 0
        with numcodecs_bytes.trace() as inner:
            list(pool.map(lambda k: array[k * 200], range(4)))
        assert array[1, 0] == 512
    assert array[2, 0] == 1024
    assert inner.report()["total"]["chunks"] == 4
    assert outer.report()["total"]["chunks"] == 6


def test_a_trace_that_is_entered_again(array):
    """It goes on counting; while it is open, each chunk counts once."""
    found = numcodecs_bytes.trace()
    with found:
        with found:
            array[3]
        array[300]
    array[600]
    assert found.report()["total"]["chunks"] == 2
    with found:
        array[900]
    assert found.report()["total"]["chunks"] == 3


def test_a_report_can_be_written_as_json(tmp_path):
    """After reads of masks and points, it held integers of NumPy."""
    array = zarr.create_array(tmp_path, data=np.eye(8), chunks=(4, 8), compressors=None)
    with numcodecs_bytes.trace() as traced:
        array.get_mask_selection(np.eye(8, dtype=bool))
        array.oindex[[1, 6], :]
    assert json.loads(json.dumps(traced.report()))["total"]["bytes_selected"] == 8 * (8 + 16)
