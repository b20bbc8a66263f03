"""What check says of partial reads: whether the store answers byte ranges."""

import zipfile

import pytest
import zarr
import zarr.storage
from helpers import CountingStore, IgnoringStore, ranges_from, write_array, write_v2
from zarr.abc.store import SuffixByteRequest

from numcodecs_bytes.check import Limits, check

PLAIN = [{"name": "bytes"}]
ODD = "no: the store does not serve byte ranges as requested"
TOO_MUCH = f"{ODD} (it answers with 100 bytes to a request for 1)"


class Refuses(CountingStore):
    async def get(self, key, prototype=None, byte_range=None):
        if byte_range is not None:
            raise NotImplementedError
        return await super().get(key, prototype)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with two arrays; ranges of the stores above are used."""
    for name in ("a", "b"):
        write_array(tmp_path / name, bytes(100), "uint8", PLAIN, (100,))
    with ranges_from(CountingStore, IgnoringStore, Refuses):
        yield tmp_path


def answers(store, limits=None):
    reports = list(check(store, limits))
    assert not any(report.problems for report in reports)
    return [report.partial_reads for report in reports]


@pytest.mark.parametrize("limits", [None, Limits(max_chunk_bytes=99)], ids=["", "not decoded"])
def test_a_byte_of_each_array_is_requested(folder, limits):
    store = CountingStore(folder)
    assert answers(store, limits) == ["yes", "yes"]
    assert [(key, r.start, r.end) for key, r, _ in store.requests] == [
        ("a/c/0", 0, 1),
        ("b/c/0", 0, 1),
    ]


@pytest.mark.parametrize(
    ("kind", "why", "num_requests"),
    [(IgnoringStore, TOO_MUCH, 2), (Refuses, f"{ODD} (NotImplementedError)", 1)],
)
def test_a_store_without_ranges(folder, kind, why, num_requests):
    """It is asked once, for a byte, and then for the whole chunk, which it returns."""
    store = kind(folder)
    assert answers(store) == [why] * 2
    assert [key for key, *_ in store.requests] == ["a/c/0"] * num_requests


class RefusesEnds(CountingStore):
    async def get(self, key, prototype=None, byte_range=None):
        if isinstance(byte_range, SuffixByteRequest):
            raise NotImplementedError
        return await super().get(key, prototype, byte_range)


@pytest.mark.parametrize(
    ("location", "answer"),
    [("start", "yes: inner chunks in part"), ("end", f"{ODD} (NotImplementedError)")],
)
def test_a_store_without_ranges_from_the_end(tmp_path, location, answer):
    """Azure's, for example; there, the index of a shard has no offset that is known."""
    settings = {"shape": (8,), "chunks": (2,), "dtype": "u1", "compressors": None}
    shards = {"shape": (4,), "index_location": location}
    zarr.create_array(tmp_path, shards=shards, **settings)[:] = 1
    with ranges_from(RefusesEnds):
        store = RefusesEnds(tmp_path)
        (report,) = check(store)
    assert report.partial_reads == answer


@pytest.mark.parametrize("error", [ValueError, PermissionError, TimeoutError])
def test_an_error_of_another_cause(folder, error):
    """Nothing was said of a chunk of which neither a range nor all can be read."""

    def answer(_number, _buffer):
        raise error

    store = CountingStore(folder)
    store.answer = answer
    for report in check(store):
        assert report.partial_reads == "not known: a chunk can't be read"
        assert report.problems == [f"chunk {report.path}/c/0 can't be read: {error.__name__}"]


@pytest.mark.parametrize(("kind", "answer"), [(CountingStore, "yes"), (IgnoringStore, TOO_MUCH)])
def test_zarr_v2(tmp_path, kind, answer):
    write_v2(tmp_path, bytes(100), "|u1", (100,))
    (why,) = answers(kind(tmp_path))
    assert "name it in the option numcodecs_bytes.stores_with_ranges" in why
    with ranges_from(kind):
        assert answers(kind(tmp_path)) == [answer]


def test_nothing_is_requested_of_compressed_arrays(tmp_path):
    """Their chunks are read whole in any case: once, to decode them."""
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    write_array(tmp_path, None, "uint8", [*PLAIN, zstd], (100,))
    zarr.open_array(tmp_path)[:] = 1
    with ranges_from(CountingStore):
        store = CountingStore(tmp_path)
        assert answers(store) == ["no: compressed or filtered by zstd"]
    assert [byte_range for _, byte_range, _ in store.requests] == [None]


@pytest.mark.needs("os.pread")
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_a_zip_archive(tmp_path, compression):
    path = tmp_path / "a.zip"
    with zarr.storage.ZipStore(path, mode="w", compression=compression) as store:
        zarr.create_array(store, shape=(100,), dtype="u1", compressors=None)[:] = 1
    with zarr.storage.ZipStore(path, mode="r") as store:
        (answer,) = answers(store)
    assert answer.startswith("yes" if compression == zipfile.ZIP_STORED else "no: it is compressed")
