"""What check says of partial reads: whether the store answers byte ranges."""

import functools
import http.server
import threading
import zipfile

import pytest
import zarr
import zarr.storage
from helpers import CountingStore, ranges_from, write_array, write_v2

from numcodecs_bytes._engine.strikes import state_of
from numcodecs_bytes.check import Limits, check

PLAIN = [{"name": "bytes"}]
ODD = "no: the store does not answer byte ranges as requested"
TOO_MUCH = f"{ODD} (it answers with 100 bytes to a request for 1)"


@pytest.fixture
def store(tmp_path):
    """Return a store of ranges, with two arrays in it; requests for their chunks are counted."""
    for name in ("a", "b"):
        write_array(tmp_path / name, bytes(100), "uint8", PLAIN, (100,))
    with ranges_from(CountingStore):
        yield CountingStore(tmp_path)


def answers(store, limits=None):
    reports = list(check(store, limits))
    assert not any(report.problems for report in reports)
    return [report.partial_reads for report in reports]


def ranges_of(store):
    return [(key, byte_range) for key, byte_range, _ in store.requests]


class TestAsking:
    def test_a_store_is_asked_once_for_one_byte(self, store):
        """One request, in the middle of the first chunk that exists, for all arrays of a store."""
        assert answers(store) == ["yes", "yes"]
        ((key, byte_range, num_bytes),) = store.requests
        assert (key, byte_range.start, byte_range.end, num_bytes) == ("a/c/0", 50, 51, 1)
        assert answers(store) == ["yes", "yes"]
        assert len(store.requests) == 1

    def test_a_store_that_ignores_ranges(self, store):
        """It was said that partial reads work with a server that sends whole chunks."""
        whole = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(bytes(100))
        store.answer = lambda _, __: whole
        assert answers(store) == [TOO_MUCH, TOO_MUCH]
        assert len(store.requests) == 2  # for a byte, and for the whole chunk
        assert state_of(store).why_struck

    @pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_members_of_a_zip_archive(self, tmp_path, compression):
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w", compression=compression) as store:
            array = zarr.create_array(store, shape=(100,), dtype="u1", compressors=None)
            array[:] = 1
        expected = "yes" if compression == zipfile.ZIP_STORED else "no: it is compressed"
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="r") as store:
            (answer,) = answers(store)
        assert answer.startswith(expected)

    def test_a_store_that_refuses_ranges(self, store):
        """It is believed if it returns the chunk as a whole."""

        class Refuses(CountingStore):
            async def get(self, key, prototype=None, byte_range=None):
                if byte_range is not None:
                    raise NotImplementedError
                return await super().get(key, prototype)

        with ranges_from(Refuses):
            why = f"{ODD} (NotImplementedError: )"
            refusing = Refuses(store.root)
            assert answers(refusing) == [why, why]
        assert [key for key, *_ in refusing.requests] == ["a/c/0"]

    @pytest.mark.parametrize("error", [ValueError, PermissionError, TimeoutError])
    def test_an_error_of_another_cause_changes_nothing(self, store, error):
        """Where neither a range nor the whole chunk can be read, ranges are not to blame."""

        def answer(_number, _buffer):
            raise error

        store.answer = answer
        assert answers(store) == ["yes", "yes"]
        assert not state_of(store).why_struck

    def test_large_chunks_are_asked_for(self, store):
        """Of one that is too large to be decoded, a byte is not."""
        assert answers(store, Limits(max_chunk_bytes=99)) == ["yes", "yes"]
        assert ranges_of(store)[0][1].end == 51

    def test_nothing_is_asked_of_files(self, store):
        """Ranges of a local file need no question."""
        local = zarr.storage.LocalStore(store.root)
        assert answers(local) == ["yes", "yes"]
        assert not state_of(local).answers

    def test_zarr_v2(self, tmp_path):
        """A store that ignores ranges of its chunks is found, too."""
        write_v2(tmp_path, bytes(100), "|u1", (100,))

        class Ignores(CountingStore):
            async def get(self, key, prototype=None, byte_range=None):  # noqa: ARG002
                return await super().get(key, prototype, None)

        with ranges_from(Ignores):
            assert answers(Ignores(tmp_path)) == [TOO_MUCH]
            assert answers(CountingStore(tmp_path)) != ["yes"]
        with ranges_from(CountingStore):
            assert answers(CountingStore(tmp_path)) == ["yes"]

    def test_nothing_is_asked_about_compressed_arrays(self, tmp_path):
        """Their chunks are read whole in any case."""
        zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
        write_array(tmp_path, None, "uint8", [*PLAIN, zstd], (100,))
        zarr.open_array(tmp_path)[:] = 1
        with ranges_from(CountingStore):
            store = CountingStore(tmp_path)
            assert answers(store) == ["no: compressed or filtered by zstd"]
        assert [byte_range for _, byte_range in ranges_of(store)] == [None]

    def test_pythons_own_web_server(self, tmp_path):
        """It ignores ranges."""
        pytest.importorskip("aiohttp", reason="the extra stores is not installed")
        pytest.importorskip("fsspec", reason="the extra stores is not installed")
        write_array(tmp_path, bytes(100), "uint8", PLAIN, (100,))

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *_):
                pass

        handler = functools.partial(Handler, directory=tmp_path)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever).start()
            try:
                (report,) = check(f"http://127.0.0.1:{server.server_port}")
            finally:
                server.shutdown()
        why = "it answers a range with status 200, and no Content-Range to (50, 51)"
        assert (report.partial_reads, report.problems) == (f"{ODD} ({why})", [])
