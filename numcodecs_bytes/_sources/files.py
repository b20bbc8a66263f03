"""Runs of local files: opens files without side effects, and reads or prefetches runs.

No file is mapped into memory, because truncating a mapped file crashes the process.
"""

import errno
import mmap
import os
import stat
import time
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._core.lengths import NUM_START_BYTES
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.outcome import LeftToZarr

# Shorter runs are read as Python's bytes and joined: 0.6 us each instead of 1.0 into memory.
MIN_READINTO_BYTES = 1 << 12

# Non-blocking, in case it is a pipe.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# What file systems and sandboxes answer to what they do not support.
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM)
# macOS refuses to read 2 GiB or more at once. Between two reads, a thread can be stopped.
_AT_ONCE_BYTES = 1 << 23
_TRUNCATED = "the file was truncated while it was read"


class NowaitError(Exception):
    """The system can't read a file without waiting: only Linux can, not on tmpfs, overlay, FUSE."""


class Checksum:
    """Computes the CRC-32 of a chunk from what is read of it in order, and reads the rest."""

    def __init__(self, extent: "OpenExtent") -> None:
        self._descriptor, self._expected = extent.descriptor, extent.crc
        self._position, self._end = extent.start, extent.start + extent.num_bytes
        self._crc, self.num_bytes_read = 0, 0

    def add(self, start: int, raw: bytes | memoryview) -> None:
        """Add bytes that were read from `start` on, if they follow, over a short gap at most."""
        if 0 <= start - self._position < constants.BLOCK_BYTES:
            if start > self._position:
                self._read_block(start)
            self._add(raw)

    def verify(self, check_wanted: Callable[[], None]) -> None:
        """Raise `LeftToZarr` if the checksum is wrong; `check_wanted` is called between blocks."""
        while self._position < self._end:
            check_wanted()
            self._read_block(self._end)
        if self._crc != self._expected:
            raise LeftToZarr("its CRC-32 is wrong: it is damaged")

    def _read_block(self, end: int) -> None:
        num_bytes = min(end - self._position, constants.BLOCK_BYTES)
        raw = _read_at(self._descriptor, num_bytes, self._position)
        if len(raw) < num_bytes:
            raise LeftToZarr(_TRUNCATED)
        self._add(raw)
        self.num_bytes_read += num_bytes

    def _add(self, raw: bytes | memoryview) -> None:
        self._crc = zlib.crc32(raw, self._crc)
        self._position += len(raw)


class OpenExtent(NamedTuple):
    """An open file, and where a chunk is in it, in bytes."""

    descriptor: int
    start: int
    num_bytes: int
    crc: int | None = None  # the CRC-32 of the chunk, if it is known


class FileExtent(NamedTuple):
    """Where a chunk is in a local file."""

    # Opens the file for reading, and returns its descriptor; may raise `LeftToZarr`.
    open: Callable[[], int]
    # Exceptions that mean that the chunk does not exist if `open` raises them; nothing else does.
    missing_errors: tuple[type[Exception], ...]
    # Identifies a file that may hold other chunks, too, which are then read one after the other.
    key: Hashable = None
    start: int = 0  # the offset of the chunk in the file, in bytes
    num_bytes: int | None = None  # the length of the chunk; None if it is the whole file
    # Returns where the chunk is, given the descriptor, if only the open file tells, as an archive
    # does; or None if the file does not hold it. May raise `LeftToZarr`.
    find_member: Callable[[int], OpenExtent | None] | None = None

    def find_in(self, descriptor: int, length: int) -> OpenExtent | None:
        """Return where the chunk is in its open file of a length in bytes; None if it is not."""
        if self.find_member is not None:
            return self.find_member(descriptor)
        num_bytes = length if self.num_bytes is None else self.num_bytes
        return OpenExtent(descriptor, self.start, num_bytes)


def path_of_file(root: str, path: str) -> str:
    """Return the path of a file, given that of its store and its own in the store."""
    # Windows takes no "/" in a path that begins with "\\?\", as those of 260 characters must.
    return f"{root}{os.sep}{path.replace('/', os.sep)}"


def opener_of(path: str) -> Callable[[], int]:
    """Return a function that opens a file for reading, without waiting for the writer of a pipe.

    It returns its descriptor, and has no step of Python at which an interrupt would lose that.
    """
    return partial(os.open, path, _FLAGS)


def _length_of(descriptor: int) -> int:
    """Return the length of an open file in bytes; raise an error unless it is a regular file."""
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise LeftToZarr("it is not a regular file")
    return status.st_size


def extent_in(file_extent: FileExtent, descriptor: int) -> OpenExtent | None:
    """Return where a chunk is in its open file; None if it is missing."""
    length = _length_of(descriptor)
    if not length:
        raise LeftToZarr("the system gives its length as 0")  # as for files of procfs
    extent = file_extent.find_in(descriptor, length)
    if extent is not None and extent.start + extent.num_bytes > length:
        raise LeftToZarr("it reaches beyond the end of its file")
    return extent


def length_of_file(file_extent: FileExtent) -> int | None:
    """Return the length of a chunk in bytes; None if its file does not hold it.

    Raises what `open` and `extent_in` raise: those in `missing_errors` if there is no file.
    """
    descriptor = file_extent.open()
    try:
        length = _length_of(descriptor) or _count_bytes(descriptor)
        extent = file_extent.find_in(descriptor, length)
        return None if extent is None else max(min(extent.num_bytes, length - extent.start), 0)
    finally:
        os.close(descriptor)


def _count_bytes(descriptor: int) -> int:
    """Read a file to its end: some have bytes, although the system gives their length as 0."""
    num_bytes = 0
    while raw := os.read(descriptor, constants.BLOCK_BYTES):
        num_bytes += len(raw)
    return num_bytes


def seconds_to_read(descriptor: int, offset: int) -> float:
    """Read one byte of a file; return how long that took."""
    started = time.perf_counter()
    _read_at(descriptor, 1, offset)
    return time.perf_counter() - started


def prefetch(descriptor: int, runs: Iterable[tuple[int, int]], max_gap: int = 0) -> None:
    """Ask the system to prefetch runs of a file, all at once, if it can.

    A run is its start and its length. Those with gaps of up to `max_gap` bytes share a request.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    range_start = range_end = -max_gap - 1  # so far before the first run that they are apart
    try:
        for start, length in runs:
            if not 0 <= start - range_end <= max_gap:
                _prefetch_range(descriptor, range_start, range_end)
                range_start = start
            range_end = start + length
        _prefetch_range(descriptor, range_start, range_end)
    except OSError as error:  # to prefetch is only a hint
        raise_if_of_caller(error)


def _prefetch_range(descriptor: int, start: int, end: int) -> None:
    for offset in range(start, end, constants.PREFETCH_BYTES):
        num_bytes = min(constants.PREFETCH_BYTES, end - offset)
        os.posix_fadvise(descriptor, offset, num_bytes, os.POSIX_FADV_WILLNEED)


def fetch_runs(
    descriptor: int, starts: Sequence[int], run_bytes: int, buffer_of: Callable[[int], memoryview]
) -> bytes | memoryview:
    """Return runs of a file, end to end, all of the same length in bytes.

    Short ones are returned as bytes; others are read into what `buffer_of` returns for a number
    of bytes. Raises `LeftToZarr` if the file is too short.
    """
    if run_bytes < MIN_READINTO_BYTES and hasattr(os, "pread"):
        pread = os.pread
        raw = b"".join([pread(descriptor, run_bytes, start) for start in starts])
        if len(raw) == len(starts) * run_bytes:
            return raw
        # The file was truncated meanwhile, or its system returns less than it is asked for.
    buffer = buffer_of(len(starts) * run_bytes)
    fetch_runs_into(descriptor, starts, buffer)
    return buffer


def fetch_runs_into(descriptor: int, starts: Sequence[int], view: memoryview) -> None:
    """Read runs of a file, end to end, all of the same length, into a view."""
    run_bytes = len(view) // len(starts)
    for start, first in zip(starts, range(0, len(view), run_bytes), strict=True):
        read_exactly(descriptor, start, view[first : first + run_bytes])


def read_exactly(descriptor: int, start: int, view: memoryview) -> None:
    """Read a file into a view, from `start` on; raise `LeftToZarr` if the file is too short."""
    while view:
        if hasattr(os, "preadv"):
            num = os.preadv(descriptor, [view[:_AT_ONCE_BYTES]], start)
        else:
            raw = _read_at(descriptor, min(len(view), constants.BLOCK_BYTES), start)
            num = len(raw)
            view[:num] = raw
        if not num:
            raise LeftToZarr(_TRUNCATED)
        view, start = view[num:], start + num


def first_bytes(descriptor: int, start: int, num_bytes: int) -> bytes:
    """Return the first bytes of a chunk in a file, which tell what it is."""
    buffer = bytearray(min(num_bytes, NUM_START_BYTES))
    read_exactly(descriptor, start, memoryview(buffer))
    return bytes(buffer)


def read_cached_nowait(descriptor: int, start: int, view: memoryview) -> int:
    """Read what the system has in memory of a file, without waiting; return how many bytes.

    Raises `NowaitError` if the system can't tell.
    """
    try:
        return os.preadv(descriptor, [view[:_AT_ONCE_BYTES]], start, os.RWF_NOWAIT)
    except BlockingIOError:  # the file is cold
        return 0
    except AttributeError:  # the system is not Linux
        raise NowaitError from None
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        raise NowaitError from None


def _read_at(descriptor: int, num_bytes: int, start: int) -> bytes:
    """Return bytes of a file; on Windows, threads must not share its descriptor."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, num_bytes, start)
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, num_bytes)


def page_aligned(num_bytes: int, page_offset: int = 0) -> memoryview:
    """Return a new buffer, which begins `page_offset` bytes after a page of the system.

    Unless that is 0, where nothing is cached, 1 MiB takes nine requests of 128 KiB: 1.2 times as
    long.
    """
    memory = np.empty(num_bytes + page_offset + mmap.PAGESIZE, np.uint8)
    first = -memory.ctypes.data % mmap.PAGESIZE + page_offset
    return memory[first : first + num_bytes].data
