"""A file that is opened once for any number of byte ranges.

If a local file is replaced in the meantime, reading continues from the file that was opened, so all
ranges come from one version. Files are not memory-mapped, because truncating a mapped file would
crash the process.
"""

import os
import stat
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._parts.assemble import copy_pieces
from numcodecs_bytes._parts.ranges import Coalescing, Ranges

ReadAt = Callable[[int, int], bytes]
# Takes a memoryview and a position in the file, reads directly into the memoryview, and returns the
# number of bytes read, 0 at the end of the file.
ReadInto = Callable[[memoryview, int], int]

# Ranges shorter than this are read as Python bytes, which takes 0.25 us, and copied. Longer ones
# are read directly to their place, which takes 0.5 us more.
DIRECT_BYTES = 1 << 12
# Size of the buffer that is reused for reading, small enough to stay in the CPU cache.
BLOCK_BYTES = 1 << 18
# Cancellation is checked between batches of ranges. Up to SHORT ranges are a single batch. More are
# read in batches that grow from FIRST_BATCH to at most MAX_BATCH ranges while a batch takes less
# than BATCH_SECONDS.
SHORT, FIRST_BATCH, MAX_BATCH, BATCH_SECONDS = 64, 8, 1024, 1e-3

# Of a longer contiguous range, cancellation is checked after so many bytes.
UNCANCELLED_BYTES = 1 << 23

# A piece takes 0.3 to 1 us if it is in the page cache. If it takes at least SLOW_SECONDS in each of
# the first NUM_TIMED batches, the file is on a disk or a network, and coalescing over larger gaps
# is tried as well. The first blocks of that may take up to LONGER_AT_FIRST times as long per piece,
# because the kernel does not read ahead yet.
SLOW_SECONDS, NUM_TIMED, LONGER_AT_FIRST = 4e-6, 3, 2


class _Stopped(EOFError):  # noqa: N818 # not an error
    """The file is too short, or the read was cancelled."""


class OpenFile:
    """Part of an open file.

    Parameters
    ----------
    read_at : callable
        Takes a number of bytes and a position in the file, and returns that many bytes, fewer at
        the end of the file.
    close : callable
        Closes the file.
    num_bytes : int
        Length of the part in bytes.
    offset : int
        Position of the part in the file in bytes.
    descriptor : int, optional
        The descriptor of the file, to read directly into memory, and at once.

    Attributes
    ----------
    counted : list of int
        How many reads there were, and of how many bytes; parts count together.
    """

    __slots__ = (
        *("_block", "_descriptor", "_offset", "_read_at", "_read_into"),
        *("close", "counted", "num_bytes"),
    )

    def __init__(
        self,
        read_at: ReadAt,
        close: Callable[[], None],
        num_bytes: int,
        offset: int = 0,
        descriptor: int | None = None,
    ) -> None:
        self._read_at = read_at
        self._read_into: ReadInto = self._read_then_copy
        if descriptor is not None and hasattr(os, "preadv"):
            self._read_into = partial(_preadv, descriptor)
        self.close = close
        self.num_bytes = num_bytes
        self._offset = offset
        self._descriptor = descriptor
        self._block: UInt8Array | None = None  # reused by all reads
        self.counted = [0, 0]

    def read(
        self, ranges: Ranges, is_wanted: Callable[[], bool], *, adapts: bool
    ) -> UInt8Array | None:
        """Return the pieces of some ranges, end to end.

        Parameters
        ----------
        ranges : Ranges
            Positions in the part in bytes, coalesced with `BLOCK_BYTES`.
        is_wanted : callable
            Called from time to time; the read is cancelled if it returns False.
        adapts : bool
            Whether to coalesce over larger gaps if the file is slow.

        Returns
        -------
        numpy.ndarray or None
            uint8, shape ``(num_kept_bytes,)``. None if the file is shorter than the ranges, or the
            read was cancelled.
        """
        fetched = np.empty(ranges.num_kept_bytes, np.uint8)
        out, is_short = fetched, len(ranges.starts) <= SHORT
        num_ranges = SHORT if is_short else FIRST_BATCH
        try:
            if len(ranges.starts) == len(ranges.piece_starts) == 1:  # contiguous, or a whole chunk
                self.read_into(fetched, int(ranges.starts[0]), is_wanted)
                return fetched
            if adapts and not is_short:
                ranges, out = self._choose(ranges, out, is_wanted)
            while len(ranges.starts):
                batch, ranges = ranges.split(num_ranges, BLOCK_BYTES)
                start = time.perf_counter()
                out = self._read_batch(batch, out, is_wanted)
                if time.perf_counter() - start < BATCH_SECONDS:
                    num_ranges = min(2 * num_ranges, MAX_BATCH)
        except _Stopped:
            return None
        return fetched

    def read_into(self, out: UInt8Array, start: int, is_wanted: Callable[[], bool]) -> None:
        """Fill contiguous memory with the bytes of the part that begin at `start`.

        Raises
        ------
        EOFError
            If the file is too short, or the read was cancelled.
        """
        view, position = out.data, self._offset + start
        while len(view) > UNCANCELLED_BYTES:
            self._fill(view[:UNCANCELLED_BYTES], position)
            view, position = view[UNCANCELLED_BYTES:], position + UNCANCELLED_BYTES
            if not is_wanted():
                raise _Stopped
        self._fill(view, position)
        self._count(1, len(out))

    def _count(self, num_requests: int, num_bytes: int) -> None:
        self.counted[0] += num_requests
        self.counted[1] += num_bytes

    def part(self, start: int, num_bytes: int) -> "OpenFile":
        """Return a part of this part, never beyond its end, which is open as long as this is."""
        read_into = None if self._descriptor is None else self._read_into
        num_bytes = max(min(num_bytes, self.num_bytes - start), 0)
        return self._with(self._read_at, read_into, start, num_bytes)

    def shared(self) -> "OpenFile":
        """Return the same part for another thread: closing it does nothing."""
        return OpenFile(self._read_at, _nothing, self.num_bytes, self._offset, self._descriptor)

    def _with(
        self, read_at: ReadAt, read_into: ReadInto | None, start: int, num_bytes: int
    ) -> "OpenFile":
        file = OpenFile(read_at, self.close, num_bytes, self._offset + start, self._descriptor)
        if read_into is not None:
            file._read_into = read_into  # another instance of this class
        file.counted = self.counted
        return file

    @property
    def is_on_disk(self) -> bool:
        """Whether the file is on a block device of this machine, and not on a network, say."""
        if self._descriptor is None or not hasattr(os, "major"):
            return False
        return os.major(os.fstat(self._descriptor).st_dev) != 0

    def at_once(self) -> "OpenFile":
        """Return the same part, whose reads raise errors where they have to wait for a disk.

        They raise BlockingIOError, or another OSError if the file system does not say whether it
        has to wait.

        Raises
        ------
        NotImplementedError
            If this system does not say so.
        """
        descriptor = self._descriptor
        if descriptor is None or not (hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")):
            raise NotImplementedError
        read_at = partial(_pread_at_once, descriptor)
        read_into = partial(_preadv_at_once, descriptor)
        return self._with(read_at, read_into, 0, self.num_bytes)

    def _choose(
        self, ranges: Ranges, out: UInt8Array, is_wanted: Callable[[], bool]
    ) -> tuple[Ranges, UInt8Array]:
        """Read some ranges with and without larger gaps; return the remaining ones of the faster.

        Returns
        -------
        ranges : Ranges
            What remains to be read, coalesced over larger gaps if that takes less time per piece.
        out : numpy.ndarray
            The part of `out` that remains to be filled.
        """
        ranges, out, seconds = self._time(ranges, out, is_wanted)
        if seconds < SLOW_SECONDS:
            return ranges, out
        # Contiguous, so that the kernel reads ahead.
        coalescing = Coalescing(BLOCK_BYTES, BLOCK_BYTES, is_contiguous=True)
        larger = coalescing.coalesce(ranges.piece_starts, ranges.piece_ends)
        larger, out, seconds_larger = self._time(larger, out, is_wanted)
        if seconds_larger < LONGER_AT_FIRST * seconds:
            return larger, out
        return ranges.without(len(ranges.piece_starts) - len(larger.piece_starts)), out

    def _time(
        self, ranges: Ranges, out: UInt8Array, is_wanted: Callable[[], bool]
    ) -> tuple[Ranges, UInt8Array, float]:
        """Read some ranges; return the rest, and the seconds per piece of the fastest batch."""
        fastest = float("inf")
        for _ in range(NUM_TIMED):
            if not len(ranges.starts):
                break
            batch, ranges = ranges.split(FIRST_BATCH, BLOCK_BYTES)
            start = time.perf_counter()
            out = self._read_batch(batch, out, is_wanted)
            fastest = min(fastest, (time.perf_counter() - start) / len(batch.piece_starts))
        return ranges, out, fastest

    def _read_batch(
        self, batch: Ranges, out: UInt8Array, is_wanted: Callable[[], bool]
    ) -> UInt8Array:
        """Fill the beginning of `out` with the pieces of some ranges; return the rest of `out`."""
        if not is_wanted():
            raise _Stopped
        starts, sizes = batch.starts + self._offset, batch.ends - batch.starts
        num_bytes = int(sizes.sum())
        if not batch.have_gaps and num_bytes >= DIRECT_BYTES * len(starts):
            view = out.data
            for position, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                self._fill(view[:size], position)
                view = view[size:]
            self._count(len(starts), num_bytes)
            return out[num_bytes:]
        if len(starts) == 1:
            if self._block is None or len(self._block) < num_bytes:
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
                raise _Stopped
            read = np.frombuffer(raw, np.uint8)
        self._count(len(starts), num_bytes)
        if not batch.have_gaps:
            out[:num_bytes] = read
            return out[num_bytes:]
        # Per range: its position in `read` minus its position in the part.
        shifts = np.cumsum(sizes) - sizes - batch.starts
        ranges = np.searchsorted(batch.starts, batch.piece_starts, side="right") - 1
        piece_starts = batch.piece_starts + shifts[ranges]
        num_bytes = batch.num_kept_bytes
        copy_pieces(out[:num_bytes], read, piece_starts, batch.piece_ends - batch.piece_starts)
        return out[num_bytes:]

    def _fill(self, view: memoryview, position: int) -> None:
        while (num_read := self._read_into(view, position)) < len(view):
            if not num_read:
                raise _Stopped
            view = view[num_read:]
            position += num_read

    def _read_then_copy(self, view: memoryview, position: int) -> int:
        raw = self._read_at(min(len(view), BLOCK_BYTES), position)
        view[: len(raw)] = raw
        return len(raw)


def _nothing() -> None:
    pass


def open_local(path: str) -> OpenFile:
    """Open a local file.

    Parameters
    ----------
    path : str
        Path of the file.

    Returns
    -------
    OpenFile
        The file; close it after use.

    Raises
    ------
    OSError
        If the file can't be opened, or is not a regular file.
    """
    # Checked before opening, because opening a pipe affects its writer.
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 # a Path takes 2 us
        raise OSError(f"{path} is not a regular file")
    return open_descriptor(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))


def open_descriptor(descriptor: int) -> OpenFile:
    """Return a file that is open; closing it, or an error, closes the descriptor."""
    try:
        length = os.fstat(descriptor).st_size
    except BaseException:
        os.close(descriptor)
        raise
    if hasattr(os, "pread"):
        read_at: ReadAt = partial(os.pread, descriptor)
    else:
        read_at = partial(_seek_and_read, descriptor)
    return OpenFile(read_at, partial(os.close, descriptor), length, 0, descriptor)


def _seek_and_read(descriptor: int, size: int, position: int) -> bytes:
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def _preadv(descriptor: int, view: memoryview, position: int) -> int:
    return os.preadv(descriptor, [view], position)


def _preadv_at_once(descriptor: int, view: memoryview, position: int) -> int:
    return os.preadv(descriptor, [view], position, os.RWF_NOWAIT)


def _pread_at_once(descriptor: int, size: int, position: int) -> bytes:
    raw = bytearray(size)
    return bytes(raw[: os.preadv(descriptor, [raw], position, os.RWF_NOWAIT)])
