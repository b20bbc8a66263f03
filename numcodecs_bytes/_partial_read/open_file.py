"""A file that is opened once, for any number of byte ranges.

Where a local file is replaced meanwhile, the one that was opened goes on being read, so all ranges
are of one version. It is not mapped into memory: if a mapped file were truncated, the process would
end.
"""

import os
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numcodecs_bytes._copy import copy_pieces
from numcodecs_bytes._partial_read.plan import Merging, Ranges

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ReadAt = Callable[[int, int], bytes]

# Ranges of less are read as Python's bytes, which takes 0.25 us, and copied; larger ones right to
# their place, which takes 0.5 us more.
DIRECT_BYTES = 1 << 12
# What is read into memory that is reused, so that it stays in the cache and is no burden.
BLOCK_BYTES = 1 << 18
# How many ranges are read before it is asked again whether they are still wanted: as many as take
# so long, in seconds.
FIRST_BATCH, MAX_BATCH, BATCH_SECONDS = 8, 1024, 1e-3

# A small range takes 0.3 to 1 us where it is in the page cache. Where it takes so long, in seconds,
# in all of the first batches, the file is on a disk or a network, and the gaps are read over that
# take no longer than a request, at so many bytes per second.
SLOW_SECONDS, NUM_TIMED, BYTES_PER_SECOND = 2e-5, 3, 5e8


class OpenFile:
    """Part of an open file.

    Parameters
    ----------
    read_at : callable
        Returns bytes, so many, from a position in the file; fewer at its end.
    close : callable
        Closes the file.
    num_bytes : int
        Length of the part, in bytes.
    offset : int
        Where the part begins, in bytes.
    read_into : callable, optional
        Reads right into memory from a position in the file; returns the number of bytes read, 0 at
        the end.
    """

    __slots__ = ("_offset", "_read_at", "_read_into", "close", "num_bytes")

    def __init__(
        self,
        read_at: ReadAt,
        close: Callable[[], None],
        num_bytes: int,
        offset: int = 0,
        read_into: Callable[[memoryview, int], int] | None = None,
    ) -> None:
        self._read_at = read_at
        self._read_into = read_into or self._read_then_copy
        self.close = close
        self.num_bytes = num_bytes
        self._offset = offset

    def read(self, ranges: Ranges, is_wanted: Callable[[], bool], *, adapts: bool) -> Bytes | None:
        """Return the pieces of ranges, end to end.

        Parameters
        ----------
        ranges : Ranges
            In bytes of the part, merged with `BLOCK_BYTES`.
        is_wanted : callable
            Asked now and then whether to read on.
        adapts : bool
            Whether to read over larger gaps where a range takes long.

        Returns
        -------
        numpy.ndarray or None
            Flat uint8. None where the file is shorter than the ranges, or nothing is wanted any
            more.
        """
        fetched = np.empty(ranges.num_kept_bytes, np.uint8)
        place, num_ranges = 0, FIRST_BATCH
        times: list[float] = []  # per range, of the first batches
        adapts = adapts and len(ranges.starts) > 2 * NUM_TIMED * FIRST_BATCH
        while len(ranges.starts):
            if not is_wanted():
                return None
            sizes = np.cumsum(ranges.ends[:num_ranges] - ranges.starts[:num_ranges])
            batch, ranges = ranges.split(max(int(np.searchsorted(sizes, BLOCK_BYTES)), 1))
            num_bytes = batch.num_kept_bytes
            start = time.perf_counter()
            if not self._read_batch(batch, fetched[place : place + num_bytes]):
                return None
            seconds = time.perf_counter() - start
            place += num_bytes
            if seconds < BATCH_SECONDS:
                num_ranges = min(2 * num_ranges, MAX_BATCH)
            if adapts and len(times) < NUM_TIMED:
                times.append(seconds / len(batch.starts))
                if len(times) == NUM_TIMED and min(times) > SLOW_SECONDS:
                    merging = Merging(int(min(times) * BYTES_PER_SECOND), BLOCK_BYTES)
                    ranges = merging.merge(ranges.piece_starts, ranges.piece_ends)
        return fetched

    def _read_batch(self, batch: Ranges, out: Bytes) -> bool:
        """Fill out with the pieces of ranges; return whether the file has them all."""
        starts, sizes = batch.starts + self._offset, batch.ends - batch.starts
        num_bytes = int(sizes.sum())
        if not batch.have_gaps and num_bytes >= DIRECT_BYTES * len(starts):
            view = out.data
            for position, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                if not self._fill(view[:size], position):
                    return False
                view = view[size:]
            return True
        read_at = self._read_at
        raw = b"".join(
            [
                read_at(size, position)
                for size, position in zip(sizes.tolist(), starts.tolist(), strict=True)
            ]
        )
        if len(raw) != num_bytes:
            return False
        read = np.frombuffer(raw, np.uint8)
        if not batch.have_gaps:
            out[:] = read
            return True
        # Of each range: where it lies in what was read, less where it lies in the file.
        shifts = np.cumsum(sizes) - sizes - batch.starts
        ranges = np.searchsorted(batch.starts, batch.piece_starts, side="right") - 1
        piece_starts = batch.piece_starts + shifts[ranges]
        copy_pieces(out, read, piece_starts, batch.piece_ends - batch.piece_starts)
        return True

    def _fill(self, view: memoryview, position: int) -> bool:
        while len(view):
            num_read = self._read_into(view, position)
            if not num_read:
                return False
            view = view[num_read:]
            position += num_read
        return True

    def _read_then_copy(self, view: memoryview, position: int) -> int:
        raw = self._read_at(min(len(view), BLOCK_BYTES), position)
        view[: len(raw)] = raw
        return len(raw)


def open_local(path: str, offset: int = 0, num_bytes: int | None = None) -> OpenFile:
    """Open part of a local file: by default all that follows `offset`.

    Raises
    ------
    OSError
        As by `os.open`, or if it is no regular file.
    """
    # Before it is opened: a pipe would notice.
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 # a path takes 2 us
        raise OSError(f"{path} is no regular file")
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        length = max(os.fstat(descriptor).st_size - offset, 0)
    except BaseException:
        os.close(descriptor)
        raise
    if hasattr(os, "pread"):
        read_at: ReadAt = partial(os.pread, descriptor)
    else:
        read_at = partial(_seek_and_read, descriptor)
    return OpenFile(
        read_at,
        partial(os.close, descriptor),
        length if num_bytes is None else min(length, num_bytes),
        offset,
        partial(_preadv, descriptor) if hasattr(os, "preadv") else None,
    )


def _seek_and_read(descriptor: int, size: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def _preadv(descriptor: int, view: memoryview, position: int) -> int:
    return os.preadv(descriptor, [view], position)


def read_from_file(file: Any, size: int, position: int) -> bytes:
    """Read from a file object that is readable and seekable; a `ReadAt` once it is bound."""
    file.seek(position)
    data: bytes = file.read(size)
    return data
