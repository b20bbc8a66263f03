"""A file that is opened once: random ranges against its bytes, every way to read, slow files."""

import errno
import functools
import os
import sys
import time

import numpy as np
import pytest
import zarr
from helpers import OUR_PIPELINES, create

from numcodecs_bytes._parts import batch
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.open_file import BLOCK_BYTES, OpenFile, WouldWait, open_local
from numcodecs_bytes._parts.plan import Coalescing
from numcodecs_bytes._parts.read_file import FileReader

RAW = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8)
OFFSET = 1000


@pytest.fixture
def path(tmp_path):
    (tmp_path / "chunk").write_bytes(b"x" * OFFSET + RAW.tobytes() + b"behind")
    return str(tmp_path / "chunk")


def random_pieces(seed):
    """Return pieces of many sizes, equal ones and others, near and far."""
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 2, 3, 8, 100, 5000, 300_000]))
    num = int(rng.integers(1, min(3000, RAW.size // (2 * size)) + 1))
    starts = np.sort(rng.choice(RAW.size // (2 * size), num, replace=False)) * 2 * size
    return starts, starts + (size if seed % 2 else rng.integers(1, 2 * size, num))


@pytest.fixture(params=["preadv", "pread", "seek"])
def way(request, monkeypatch):
    """Take away what Windows and old macOS have not."""
    if request.param in ("pread", "seek"):
        monkeypatch.delattr(os, "preadv")
    if request.param == "seek":
        monkeypatch.delattr(os, "pread")


@pytest.mark.parametrize("gap", [0, 50, 10_000, 10**9])
@pytest.mark.usefixtures("way")
def test_pieces_are_those_of_the_file(path, gap):
    for seed in range(40):
        starts, ends = random_pieces(seed)
        ranges = Coalescing(gap, BLOCK_BYTES).coalesce(starts, ends)
        expected = np.concatenate([RAW[i:k] for i, k in zip(starts, ends, strict=True)])
        file = open_local(path).part(OFFSET, RAW.size)
        try:
            assert file.num_bytes == RAW.size
            fetched = file.read(ranges, lambda: True, adapts=True)
        finally:
            file.close()
        np.testing.assert_array_equal(fetched, expected)


@pytest.mark.parametrize("size", [8, 8192])
@pytest.mark.usefixtures("way")
def test_a_truncated_file_is_noticed(path, size):
    """It may be truncated after it was opened."""
    starts = np.arange(0, RAW.size - size, 3 * size)
    for gap in (0, 10**9):
        file = open_local(path).part(OFFSET, sys.maxsize)
        os.truncate(path, OFFSET + starts[-1] + size - 1)
        try:
            ranges = Coalescing(gap, BLOCK_BYTES).coalesce(starts, starts + size)
            with pytest.raises(EOFError):
                file.read(ranges, lambda: True, adapts=True)
        finally:
            file.close()


def test_reading_stops_when_nothing_is_wanted_any_more(path):
    starts = np.arange(0, RAW.size, 100)
    ranges = Coalescing(0, BLOCK_BYTES).coalesce(starts, starts + 8)
    asked = []
    file = open_local(path).part(OFFSET, sys.maxsize)
    try:
        with pytest.raises(EOFError):
            file.read(ranges, lambda: asked.append(1) or len(asked) < 6, adapts=False)
    finally:
        file.close()
    assert len(asked) == 6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_and_folders_are_not_opened(tmp_path):
    """Who writes to a pipe would notice that it was opened and closed."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="is not a regular file"):
            open_local(str(path))


class TimedFile:
    """A file in a world where nothing but its requests takes time."""

    def __init__(self, monkeypatch, request_seconds, bytes_per_second):
        self.now, self.sizes = -0.01, []  # what the slow request below takes
        self.seconds = lambda size: request_seconds + size / bytes_per_second
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(os, "pread", lambda _, size, position: self.read_at(size, position))
        monkeypatch.setattr(os, "preadv", self.read_into)

    def read_into(self, _, buffers, position, flags):
        assert not flags
        (view,) = buffers
        view[:] = self.read_at(len(view), position)
        return len(view)

    def read_at(self, size, position):
        self.sizes.append(size)
        # One that is slow by chance, now and then, says nothing of the others.
        self.now += self.seconds(size) + (0.01 if len(self.sizes) == 5 else 0)
        return RAW[position : position + size].tobytes()

    def read_column(self, *, adapts=True):
        """Read 8 bytes of every 32 KiB of a chunk, as of one of 4096 columns of float64."""
        starts = np.arange(7, RAW.size - 8, 1 << 15)
        ranges = Coalescing(1 << 13, BLOCK_BYTES).coalesce(starts, starts + 8)
        file = OpenFile(-1, RAW.size)
        fetched = file.read(ranges, lambda: True, adapts=adapts)
        np.testing.assert_array_equal(fetched.reshape(-1, 8), RAW[starts[:, None] + np.arange(8)])
        return len(starts)


class TestSlowFiles:
    def test_of_files_in_the_page_cache_only_the_ranges_are_read(self, monkeypatch):
        file = TimedFile(monkeypatch, 1e-6, 1e10)
        assert file.read_column() == len(file.sizes)
        assert set(file.sizes) == {8}

    @pytest.mark.parametrize(
        ("request_seconds", "bytes_per_second"), [(2e-5, 3e9), (1e-4, 1e9), (5e-3, 1e8)]
    )
    def test_gaps_are_coalesced_where_requests_take_long(
        self, monkeypatch, request_seconds, bytes_per_second
    ):
        """Thousands of requests of milliseconds would take longer than the whole chunk."""
        file = TimedFile(monkeypatch, request_seconds, bytes_per_second)
        num_ranges = file.read_column()
        assert len(file.sizes) < num_ranges / 2
        assert file.now < 0.8 * num_ranges * file.seconds(8)

    def test_gaps_are_not_coalesced_where_that_takes_longer(self, monkeypatch):
        file = TimedFile(monkeypatch, 2e-5, 3e8)
        num_ranges = file.read_column()
        assert sum(file.sizes) < RAW.size / 2
        assert file.now < 0.7 * file.seconds(BLOCK_BYTES) * RAW.size / BLOCK_BYTES
        assert len(file.sizes) > num_ranges / 2

    def test_the_gap_of_the_user_is_kept(self, monkeypatch):
        file = TimedFile(monkeypatch, 5e-3, 1e8)
        assert file.read_column(adapts=False) == len(file.sizes)


def always():
    return True


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system can't read so")
class TestWhole:
    """The whole file is read with one call; a short answer is not its end."""

    @pytest.mark.parametrize("most", [1_000_000, 10**9])
    def test_no_byte_is_asked_for_twice(self, path, monkeypatch, most):
        preadv, num_bytes = os.preadv, []

        def read_less(descriptor, buffers, position, flags=0):
            buffers = [buffers[0][:most]] if len(buffers[0]) > most else buffers
            num_bytes.append(preadv(descriptor, buffers, position, flags))
            return num_bytes[-1]

        monkeypatch.setattr(os, "preadv", read_less)
        out = np.empty(OFFSET + RAW.size + len("behind"), np.uint8)
        file = open_local(path)
        try:
            file.read_all(out, always)
            assert file.counted[1] == sum(num_bytes) == out.size
        finally:
            file.close()
        np.testing.assert_array_equal(out[OFFSET : OFFSET + RAW.size], RAW)

    @pytest.mark.parametrize("size", [OFFSET + RAW.size + 5, OFFSET + RAW.size + 7])
    def test_another_length_is_noticed(self, path, size):
        file = open_local(path)
        try:
            with pytest.raises(EOFError):
                file.read_all(np.empty(size, np.uint8), always)
        finally:
            file.close()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system can't read at once")
class TestAtOnce:
    """What is in the page cache is read without a thread."""

    RANGES = Coalescing(10).coalesce(np.array([3, 100, 112]), np.array([5, 108, 120]))
    EXPECTED = np.concatenate([RAW[3:5], RAW[100:108], RAW[112:120]])

    def test_pieces_in_the_page_cache(self, path):
        file = open_local(path).part(OFFSET, RAW.size)
        try:
            file.must_not_wait()
            fetched = file.read(self.RANGES, always, adapts=False)
        except OSError:
            pytest.skip("the file system of temporary files can't read at once")
        finally:
            file.close()
        np.testing.assert_array_equal(fetched, self.EXPECTED)

    @pytest.mark.parametrize("number", [errno.EAGAIN, errno.EOPNOTSUPP])
    def test_what_is_not_there_is_left_to_a_thread(self, path, monkeypatch, number):
        preadv = os.preadv

        def wait(descriptor, buffers, position, flags=0):
            if flags:
                raise OSError(number, "would wait")
            return preadv(descriptor, buffers, position)

        monkeypatch.setattr(os, "preadv", wait)
        file = open_local(path).part(OFFSET, RAW.size)
        try:
            expected = BlockingIOError if number == errno.EAGAIN else OSError
            file.must_not_wait()
            with pytest.raises(expected):
                file.read(self.RANGES, always, adapts=False)
        finally:
            file.close()
        file = open_local(path).part(OFFSET, RAW.size)
        fetched = file.read(self.RANGES, always, adapts=True)
        file.close()
        np.testing.assert_array_equal(fetched, self.EXPECTED)

    def test_thousands_of_pieces_are_left_to_a_thread(self, path):
        starts = np.arange(0, 100_000, 100)
        file = open_local(path).part(OFFSET, RAW.size)
        reader = FileReader(Coalescing(0), always, adapts=False, may_wait=False)
        try:
            fetched = reader.fetch_pieces(file, starts[:20], starts[:20] + 1)
            np.testing.assert_array_equal(fetched, RAW[starts[:20]])
            with pytest.raises(WouldWait):
                reader.fetch_pieces(file, starts, starts + 1)
        finally:
            file.close()

    def test_a_part_that_is_there_is_not_taken_for_all(self, path, monkeypatch):
        preadv = os.preadv
        monkeypatch.setattr(os, "preadv", lambda d, b, p, _: preadv(d, [b[0][:1]], p))
        ranges = Coalescing(0).coalesce(np.array([5]), np.array([9000]))
        file = open_local(path).part(OFFSET, RAW.size)
        file.must_not_wait()
        fetched = file.read(ranges, always, adapts=False)
        file.close()
        np.testing.assert_array_equal(fetched, RAW[5:9000])


def test_an_output_of_another_shape_is_broadcast_or_refused(tmp_path):
    """Also where axes are transposed, and bytes are read straight to their place."""
    (tmp_path / "chunk").write_bytes(RAW[:480].tobytes())
    dtype = np.dtype("u2")
    layout = Layout((4, 60), dtype, dtype, axis_order=(1, 0))
    expected = RAW[:480].view("u2").reshape(60, 4).T
    reader = FileReader(Coalescing(0), always, adapts=False)
    file = open_local(str(tmp_path / "chunk"))
    try:
        out = np.zeros((3, 4, 60), dtype)
        reader.read(file, layout, (slice(None), slice(None)), out, (slice(None),))
        assert (out == expected).all()
        with pytest.raises(ValueError, match="broadcast"):
            reader.read(file, layout, (slice(None), slice(None)), out[0, 0], (slice(None),))
    finally:
        file.close()


class TestThreads:
    """Whether a short read is tried on the event loop."""

    @pytest.fixture
    def read(self, tmp_path, disk):
        """Return a function that reads elements, and whether each was read on the event loop."""
        create(tmp_path, (400, 400), dtype="f8")[:] = 1
        with zarr.config.set({"codec_pipeline.path": OUR_PIPELINES[0]}):
            yield functools.partial(disk.read, zarr.open_array(tmp_path, mode="r"))

    def test_on_the_loop_where_the_last_one_was_quick(self, read):
        assert read() == [False, True, True]

    @pytest.mark.parametrize(
        "how", [{"open_seconds": 2e-4}, {"read_seconds": 1e-3}, {"is_local": False}], ids=str
    )
    def test_in_threads_elsewhere(self, read, disk, how):
        """On a network to open a file may take long, and for ever where it is gone."""
        vars(disk).update(how)
        assert not any(read())

    def test_in_a_thread_where_it_would_wait(self, read, disk):
        """Until a read there is quick again."""
        disk.error = BlockingIOError()
        assert read() == [False, True, False, True, False]

    def test_once_where_the_file_system_does_not_know(self, read, disk):
        disk.error = OSError(errno.EOPNOTSUPP, "not supported")
        assert read() == [False, True, False, False]

    def test_once_where_the_system_can_not_try(self, read, monkeypatch):
        monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
        assert read() == [False, True, False, False]

    def test_few_places_are_remembered(self):
        places = batch._QuickPlaces()
        for k in range(3 * batch.MAX_PLACES):
            places.note(f"quick {k}", 0)
            places.ban(f"banned {k}")
        assert "quick 2999" in places
        assert "banned 2999" not in places
        assert max(len(places._places), len(places._banned._places)) <= batch.MAX_PLACES
