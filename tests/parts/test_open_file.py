"""A file that is opened once: random ranges against its bytes, every way to read, slow files."""

import os
import time

import numpy as np
import pytest

from numcodecs_bytes._parts.open_file import BLOCK_BYTES, OpenFile, open_local
from numcodecs_bytes._parts.plan import Coalescing

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
        file = open_local(path, OFFSET, RAW.size)
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
        file = open_local(path, OFFSET)
        os.truncate(path, OFFSET + starts[-1] + size - 1)
        try:
            ranges = Coalescing(gap, BLOCK_BYTES).coalesce(starts, starts + size)
            assert file.read(ranges, lambda: True, adapts=True) is None
        finally:
            file.close()


def test_reading_stops_when_nothing_is_wanted_any_more(path):
    starts = np.arange(0, RAW.size, 100)
    ranges = Coalescing(0, BLOCK_BYTES).coalesce(starts, starts + 8)
    asked = []
    file = open_local(path, OFFSET)
    try:
        assert file.read(ranges, lambda: asked.append(1) or len(asked) < 6, adapts=False) is None
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

    def read_at(self, size, position):
        self.sizes.append(size)
        # One that is slow by chance, now and then, says nothing of the others.
        self.now += self.seconds(size) + (0.01 if len(self.sizes) == 5 else 0)
        return RAW[position : position + size].tobytes()

    def read_column(self, *, adapts=True):
        """Read 8 bytes of every 32 KiB of a chunk, as of one of 4096 columns of float64."""
        starts = np.arange(7, RAW.size - 8, 1 << 15)
        ranges = Coalescing(1 << 13, BLOCK_BYTES).coalesce(starts, starts + 8)
        file = OpenFile(self.read_at, lambda: None, RAW.size)
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
