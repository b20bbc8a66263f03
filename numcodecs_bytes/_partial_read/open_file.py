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
# How many ranges are read before it is asked again whether they are still wanted: a few at once, of
# many as many as take so long, in seconds.
SHORT, FIRST_BATCH, MAX_BATCH, BATCH_SECONDS = 64, 8, 1024, 1e-3

# A piece takes 0.3 to 1 us where it is in the page cache. Where it takes so long, in seconds, in
# each of the first batches, the file is on a disk or a network, and reading over the gaps is tried,
# too. Of that, the first blocks take longest: the kernel does not read ahead yet.
SLOW_SECONDS, NUM_TIMED, LONGER_AT_FIRST = 4e-6, 3, 2


class _Ended(Exception):  # noqa: N818 # not an error
    """The file is too short, or nothing is wanted any more."""


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

    __slots__ = ("_block", "_offset", "_read_at", "_read_into", "close", "num_bytes")

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
        self._block = np.empty(0, np.uint8)  # memory that is used again

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
        out, is_short = fetched, len(ranges.starts) <= SHORT
        num_ranges = SHORT if is_short else FIRST_BATCH
        try:
            if len(ranges.starts) == len(ranges.piece_starts) == 1:  # many rows, or whole chunks
                self._fill(fetched.data, self._offset + int(ranges.starts[0]))
                return fetched
            if adapts and not is_short:
                ranges, out = self._choose(ranges, out, is_wanted)
            while len(ranges.starts):
                batch, ranges = ranges.split(num_ranges, BLOCK_BYTES)
                start = time.perf_counter()
                out = self._read_batch(batch, out, is_wanted)
                if time.perf_counter() - start < BATCH_SECONDS:
                    num_ranges = min(2 * num_ranges, MAX_BATCH)
        except _Ended:
            return None
        return fetched

    def _choose(
        self, ranges: Ranges, out: Bytes, is_wanted: Callable[[], bool]
    ) -> tuple[Ranges, Bytes]:
        """Return what is left of the ranges, or of larger ones where pieces take less time so."""
        ranges, out, seconds = self._time(ranges, out, is_wanted)
        if seconds < SLOW_SECONDS:
            return ranges, out
        # Contiguous, so that the kernel reads ahead.
        merging = Merging(BLOCK_BYTES, BLOCK_BYTES, is_contiguous=True)
        larger = merging.merge(ranges.piece_starts, ranges.piece_ends)
        larger, out, seconds_so = self._time(larger, out, is_wanted)
        if seconds_so < LONGER_AT_FIRST * seconds:
            return larger, out
        return ranges.without(len(ranges.piece_starts) - len(larger.piece_starts)), out

    def _time(
        self, ranges: Ranges, out: Bytes, is_wanted: Callable[[], bool]
    ) -> tuple[Ranges, Bytes, float]:
        """Read some ranges; return what is left, and the seconds that a piece took at least."""
        fastest = float("inf")
        for _ in range(NUM_TIMED):
            if not len(ranges.starts):
                break
            batch, ranges = ranges.split(FIRST_BATCH, BLOCK_BYTES)
            start = time.perf_counter()
            out = self._read_batch(batch, out, is_wanted)
            fastest = min(fastest, (time.perf_counter() - start) / len(batch.piece_starts))
        return ranges, out, fastest

    def _read_batch(self, batch: Ranges, out: Bytes, is_wanted: Callable[[], bool]) -> Bytes:
        """Fill the beginning of out with the pieces of ranges; return the rest of it."""
        if not is_wanted():
            raise _Ended
        starts, sizes = batch.starts + self._offset, batch.ends - batch.starts
        num_bytes = int(sizes.sum())
        if not batch.have_gaps and num_bytes >= DIRECT_BYTES * len(starts):
            view = out.data
            for position, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                self._fill(view[:size], position)
                view = view[size:]
            return out[num_bytes:]
        if len(starts) == 1:
            if len(self._block) < num_bytes:
                self._block = np.empty(num_bytes, np.uint8)
            read = self._block[:num_bytes]
            self._fill(read.data, int(starts[0]))
        else:
            read_at = self._read_at
            raw = b"".join(
                [
                    read_at(size, position)
                    for size, position in zip(sizes.tolist(), starts.tolist(), strict=True)
                ]
            )
            if len(raw) != num_bytes:
                raise _Ended
            read = np.frombuffer(raw, np.uint8)
        if not batch.have_gaps:
            out[:num_bytes] = read
            return out[num_bytes:]
        # Of each range: where it lies in what was read, less where it lies in the file.
        shifts = np.cumsum(sizes) - sizes - batch.starts
        ranges = np.searchsorted(batch.starts, batch.piece_starts, side="right") - 1
        piece_starts = batch.piece_starts + shifts[ranges]
        num_bytes = batch.num_kept_bytes
        copy_pieces(out[:num_bytes], read, piece_starts, batch.piece_ends - batch.piece_starts)
        return out[num_bytes:]

    def _fill(self, view: memoryview, position: int) -> None:
        while len(view):
            num_read = self._read_into(view, position)
            if not num_read:
                raise _Ended
            view = view[num_read:]
            position += num_read

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
