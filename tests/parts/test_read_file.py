"""What is read of a cold file, and of one in memory: pieces, and no more than pays."""

import ctypes
import errno
import mmap
import os
import time

import numpy as np
import pytest
import zarr

import numcodecs_bytes

SIZE = 2048  # a chunk of 32 MiB
FAR = [(5, 7), (slice(0, 60, 59), 5)]  # one piece, and two that are 0.5 or 1 MiB apart
NEAR = [
    (slice(0, 30), 5),
    (slice(0, 513), 5),
    (slice(100, 120), slice(100, 164)),
    np.ix_([3, 70, 300], [5, 900]),
]
pytestmark = pytest.mark.usefixtures("our_pipeline")


def num_resident_bytes(path):
    """Return how much of a file is in the page cache."""
    num_pages = -(-path.stat().st_size // mmap.PAGESIZE)
    is_there = np.empty(num_pages, np.uint8)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        memory = np.frombuffer(mapped, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        start, size = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(len(memory))
        assert libc.mincore(start, size, ctypes.c_void_p(is_there.ctypes.data)) == 0
        del memory
    return int((is_there & 1).sum()) * mmap.PAGESIZE


def drop(path):
    """Remove a file from the page cache."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture(scope="module", params=["chunk", "shard"])
def chunk(tmp_path_factory, request):
    """Return the file of an array's only chunk, or shard of 32 chunks of 1 MiB."""
    folder = tmp_path_factory.mktemp("cold")
    inner = {"chunks": (SIZE // 16, SIZE // 2), "shards": (SIZE, SIZE)}
    zarr.create_array(
        folder,
        shape=(SIZE, SIZE),
        dtype="f8",
        compressors=None,
        **(inner if request.param == "shard" else {"chunks": (SIZE, SIZE)}),
    )[...] = np.arange(SIZE**2).reshape(SIZE, SIZE)
    return folder / "c/0/0"


@pytest.fixture
def read(chunk):
    """Return a function that reads a selection; and how many bytes were fetched."""
    data = np.arange(SIZE**2, dtype="f8").reshape(SIZE, SIZE)

    def read_and_compare(selection):
        array = zarr.open_array(chunk.parents[2], mode="r")
        with numcodecs_bytes.trace() as traced:
            is_mesh = isinstance(selection[0], np.ndarray)
            got = array.oindex[tuple(map(np.ravel, selection))] if is_mesh else array[selection]
        np.testing.assert_array_equal(got, data[selection])
        return traced.report()["total"]["bytes_fetched"], got.nbytes

    return read_and_compare


@pytest.mark.skipif(
    not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"),
    reason="this system can't drop a file from the page cache, or does not say what is in it",
)
@pytest.mark.parametrize("selection", FAR, ids=str)
def test_of_a_cold_file_only_pieces_are_read(chunk, read, selection):
    """40 bytes each of two places 1 MiB apart took 1 MiB from a disk, or over a network."""
    drop(chunk)
    if num_resident_bytes(chunk):
        pytest.skip("the file system of temporary files is in memory")
    num_fetched, num_selected = read(selection)
    # And the index of a shard, and what the system had read ahead when it was asked for more.
    assert num_fetched <= num_selected + (1 << 16)
    assert num_resident_bytes(chunk) <= 1 << 18  # the system reads ahead


@pytest.mark.parametrize("selection", FAR + NEAR, ids=str)
def test_of_a_file_in_memory_what_is_near_is_read_at_once(chunk, read, selection):
    chunk.read_bytes()
    num_fetched, num_selected = read(selection)
    assert num_selected <= num_fetched <= max(1 << 23, num_selected)


@pytest.mark.parametrize("is_quick", [True, False])
def test_where_the_system_does_not_say_so_the_first_pieces_are_timed(read, monkeypatch, is_quick):
    """As on overlay, FUSE and tmpfs."""
    preadv, now = os.preadv, 0.0

    def refuse(descriptor, buffers, position, flags=0):
        if flags:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return preadv(descriptor, buffers, position)

    def clock():
        nonlocal now
        now += 0 if is_quick else 1
        return now

    monkeypatch.setattr(os, "preadv", refuse)
    monkeypatch.setattr(time, "perf_counter", clock)
    for _ in range(2):  # by the first one, it is known whether the last read of the disk was quick
        num_fetched, _ = read((slice(0, 60, 59), 5))
    assert (num_fetched > 1 << 18) == is_quick
    assert is_quick or num_fetched < 8192


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system can't read at once")
@pytest.mark.parametrize("chunk", ["chunk"], indirect=True)
def test_what_is_partly_in_memory_is_read_in_pieces(chunk, monkeypatch):
    """A short answer on the event loop was taken for a short file, and the chunk read whole."""
    preadv = os.preadv

    def half(descriptor, buffers, position, flags=0):
        if flags and len(buffers[0]) > 100:
            buffers = [memoryview(buffers[0])[:100]]
        return preadv(descriptor, buffers, position, flags)

    array = zarr.open_array(chunk.parents[2], mode="r")
    data = np.arange(SIZE**2, dtype="f8").reshape(SIZE, SIZE)
    for _ in range(3):  # then the place is known to be quick
        assert array[5, 7] == data[5, 7]
    monkeypatch.setattr(os, "preadv", half)
    with numcodecs_bytes.trace() as traced:
        got = array[5:1800:400, 100:164]
    np.testing.assert_array_equal(got, data[5:1800:400, 100:164])
    assert traced.report()["total"]["bytes_fetched"] <= 2 * got.nbytes
