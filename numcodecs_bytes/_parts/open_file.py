"""A file that is opened once for any number of byte ranges.

If a local file is replaced in the meantime, reading continues from the file that was opened, so all
ranges come from one version. Files are not memory-mapped, because truncating a mapped file would
crash the process.
"""

import errno
import os
import stat
import time
from collections.abc import Callable

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._parts.assemble import copy_pieces
from numcodecs_bytes._parts.ranges import Coalescing, Ranges
from numcodecs_bytes._threads import IsWanted

# Ranges shorter than this are read as Python bytes, which takes 0.25 us, and copied. Longer ones
# are read directly to their place, which takes 0.5 us more.
DIRECT_BYTES = 1 << 12
# Size of the buffer that is reused for reading, small enough to stay in the CPU cache.
BLOCK_BYTES = 1 << 18
# Cancellation is checked between batches of ranges. Up to SHORT ranges are a single batch. More are
# read in batches that grow from FIRST_BATCH to at most MAX_BATCH ranges while a batch takes less
# than BATCH_SECONDS.
SHORT, FIRST_BATCH, MAX_BATCH, BATCH_SECONDS = 64, 8, 1024, 1e-3
# Up to this many bytes, in up to SHORT ranges, are read on the event loop if they are in the page
# cache, which takes 0.1 ms; another thread would take as long to begin.
AT_ONCE_BYTES = 1 << 19
# Of a longer contiguous range, cancellation is checked after so many bytes.
UNCANCELLED_BYTES = 1 << 23
# A piece takes 0.3 to 1 us if it is in the page cache. If it takes at least SLOW_SECONDS in each of
# the first NUM_TIMED batches, the file is on a disk or a network, and coalescing over larger gaps
# is tried as well. The first blocks of that may take up to LONGER_AT_FIRST times as long per piece,
# because the kernel does not read ahead yet.
SLOW_SECONDS, NUM_TIMED, LONGER_AT_FIRST = 4e-6, 3, 2
# How much is asked for first to find out whether it is in the page cache: what is asked for, and is
# not there, may be read ahead.
PAGE_BYTES = 1 << 12

# Where the system does not say whether a file is in the page cache: pieces that take no longer than
# QUICK_SECONDS are, and what arrives at this rate. A disk takes 50 us or more for each piece.
QUICK_SECONDS, MEMORY_BYTES_PER_SECOND = 2e-5, 5e8
_quick_devices: set[int] = set()

_ONE_MORE = bytearray(1)  # where a byte that should not be there is read to


class WouldWait(Exception):  # noqa: N818 # not an error
    """A file is not in the page cache, or reading it takes long."""


class OpenFile:
    """An open file, or a part of one.

    Parameters
    ----------
    descriptor : int
        The descriptor of the file.
    num_bytes : int, optional
        Length of the part in bytes; by default that of the file.
    offset : int
        Position of the part in the file in bytes.
    found : os.stat_result, optional
        What stood at the path of the file before it was opened.

    Attributes
    ----------
    counted : list of int
        How many reads there were, and of how many bytes; parts count together.
    """

    __slots__ = (
        "_descriptor",
        "_flags",
        "_found",
        "_is_shared",
        "_num_bytes",
        "_offset",
        "counted",
    )

    def __init__(
        self,
        descriptor: int,
        num_bytes: int | None = None,
        offset: int = 0,
        found: os.stat_result | None = None,
    ) -> None:
        self._descriptor, self._num_bytes, self._offset = descriptor, num_bytes, offset
        self._found = found
        self._flags, self._is_shared = 0, False
        self.counted = [0, 0]

    @property
    def num_bytes(self) -> int:
        """Length of the part in bytes."""
        if self._num_bytes is None:
            self._num_bytes = os.fstat(self._descriptor).st_size
        return self._num_bytes

    @property
    def is_on_disk(self) -> bool:
        """Whether the file is on a block device of this machine, and not on a network, say."""
        found = self._found or os.fstat(self._descriptor)
        return hasattr(os, "major") and os.major(found.st_dev) != 0

    def close(self) -> None:
        """Close the file, unless it is shared."""
        if not self._is_shared:
            os.close(self._descriptor)

    def part(self, start: int, num_bytes: int) -> "OpenFile":
        """Return a part of this part, never beyond its end, which is open as long as this is."""
        num_bytes = max(min(num_bytes, self.num_bytes - start), 0)
        part = type(self)(self._descriptor, num_bytes, self._offset + start, self._found)
        part._flags, part._is_shared = self._flags, self._is_shared  # noqa: SLF001
        part.counted = self.counted
        return part

    def shared(self) -> "OpenFile":
        """Return the same part for another thread: closing it does nothing."""
        file = type(self)(self._descriptor, self.num_bytes, self._offset, self._found)
        file._is_shared = True  # noqa: SLF001 # another instance of this class
        return file

    def must_not_wait(self) -> None:
        """Make reads raise errors where they have to wait for a disk.

        They raise BlockingIOError, or another OSError if the file system does not say whether it
        has to wait.

        Raises
        ------
        NotImplementedError
            If this system does not say so.
        """
        if not (hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")):
            raise NotImplementedError
        self._flags = os.RWF_NOWAIT

    def read_all(self, out: UInt8Array, is_wanted: IsWanted) -> None:
        """Fill contiguous memory with the whole part.

        Raises
        ------
        EOFError
            If the part has another length, or the read was cancelled.
        """
        num = 0
        # A byte more than expected is asked for instead of the length, to save a call.
        if (
            self._num_bytes is None
            and self._found is not None
            and self._found.st_size == len(out) <= UNCANCELLED_BYTES
            and hasattr(os, "preadv")
        ):
            num = os.preadv(self._descriptor, [out.data, _ONE_MORE], 0, self._flags)
            self.counted[0] += 1
            self.counted[1] += num
            if num == len(out):
                return
        if self.num_bytes != len(out):
            raise EOFError
        self.read_into(out[num:], num, is_wanted)

    def read_into(self, out: UInt8Array, start: int, is_wanted: IsWanted) -> None:
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
                raise EOFError
        self._fill(view, position)
        self._count(1, len(out))

    def read_cached(self, out: UInt8Array, start: int) -> bool | None:
        """Fill contiguous memory like `read_into`, but only from the page cache.

        It is asked for in steps, none of them longer than what was there so far: the kernel reads
        ahead what is not.

        Returns
        -------
        bool or None
            Whether all of it was there; None if the system does not say so.
        """
        if not (hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")):
            return None
        view, done = out.data, 0
        step = PAGE_BYTES - (self._offset + start) % PAGE_BYTES
        while done < len(view):
            part = view[done : done + step]
            try:
                position = self._offset + start + done
                num = os.preadv(self._descriptor, [part], position, os.RWF_NOWAIT)
            except BlockingIOError:
                num = 0
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
                return None
            done += num
            if num < len(part):
                break
            step = max(PAGE_BYTES, done)
        self._count(1, done)
        return done == len(view)

    def read(
        self, ranges: Ranges, is_wanted: IsWanted, *, adapts: bool, is_cold: bool = False
    ) -> UInt8Array:
        """Return the pieces of some ranges, end to end.

        Parameters
        ----------
        ranges : Ranges
            Positions in the part in bytes, coalesced with `BLOCK_BYTES`.
        is_wanted : callable
            Called from time to time; the read is cancelled if it returns False.
        adapts : bool
            Whether to coalesce over larger gaps if the file is slow.
        is_cold : bool
            Whether it is not in the page cache, so that a few ranges may be slow as well.

        Returns
        -------
        numpy.ndarray
            uint8, shape ``(num_kept_bytes,)``.

        Raises
        ------
        EOFError
            If the file is shorter than the ranges, or the read was cancelled.
        """
        fetched = np.empty(ranges.num_kept_bytes, np.uint8)
        out, is_short = fetched, len(ranges.starts) <= SHORT
        num_ranges = SHORT if is_short else FIRST_BATCH
        if len(ranges.starts) == len(ranges.piece_starts) == 1:
            self.read_into(fetched, int(ranges.starts[0]), is_wanted)
            return fetched
        if adapts and (is_cold or not is_short):
            ranges, out = self._choose(ranges, out, is_wanted)
        while len(ranges.starts):
            batch, ranges = ranges.split(num_ranges, BLOCK_BYTES)
            start = time.perf_counter()
            out = self._read_batch(batch, out, is_wanted)
            if time.perf_counter() - start < BATCH_SECONDS:
                num_ranges = min(2 * num_ranges, MAX_BATCH)
        return fetched

    def read_if_quick(
        self, out: UInt8Array, start: int, ranges: Callable[[], Ranges], is_wanted: IsWanted
    ) -> bool:
        """Do the same as `read_into` if the file seems to be in memory, else return False.

        Where the system does not say what is: if some of the `ranges` in that are read quickly, or
        what was read last from the same device was.
        """
        device = (self._found or os.fstat(self._descriptor)).st_dev
        if device not in _quick_devices:
            some = ranges()
            scratch = np.empty(some.num_kept_bytes, np.uint8)
            if self._time(some, scratch, is_wanted)[2] > QUICK_SECONDS:
                return False
        begin = time.perf_counter()
        self.read_into(out, start, is_wanted)
        seconds = time.perf_counter() - begin - len(out) / MEMORY_BYTES_PER_SECOND
        (_quick_devices.add if seconds < 0 else _quick_devices.discard)(device)
        return True

    def _choose(
        self, ranges: Ranges, out: UInt8Array, is_wanted: IsWanted
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
        self, ranges: Ranges, out: UInt8Array, is_wanted: IsWanted
    ) -> tuple[Ranges, UInt8Array, float]:
        """Read some ranges; return the rest, and the seconds per piece of the fastest batch."""
        fastest = float("inf")
        num_ranges = min(max(len(ranges.starts) // (4 * NUM_TIMED), 1), FIRST_BATCH)
        for _ in range(NUM_TIMED):
            if not len(ranges.starts):
                break
            batch, ranges = ranges.split(num_ranges, BLOCK_BYTES)
            start = time.perf_counter()
            out = self._read_batch(batch, out, is_wanted)
            fastest = min(fastest, (time.perf_counter() - start) / len(batch.piece_starts))
        return ranges, out, fastest

    def _read_batch(self, batch: Ranges, out: UInt8Array, is_wanted: IsWanted) -> UInt8Array:
        """Fill the beginning of `out` with the pieces of some ranges; return the rest of `out`."""
        if not is_wanted():
            raise EOFError
        starts, sizes = batch.starts + self._offset, batch.ends - batch.starts
        num_bytes = int(sizes.sum())
        is_direct = not batch.have_gaps and num_bytes >= DIRECT_BYTES * len(starts)
        if is_direct or len(starts) == 1:
            read = out[:num_bytes] if is_direct else np.empty(num_bytes, np.uint8)
            view = read.data
            for position, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                self._fill(view[:size], position)
                view = view[size:]
        else:
            read_at = self._read_at
            some = zip(sizes.tolist(), starts.tolist(), strict=True)
            read = np.frombuffer(b"".join([read_at(n, at) for n, at in some]), np.uint8)
            if len(read) != num_bytes:
                raise EOFError
        self._count(len(starts), num_bytes)
        if not batch.have_gaps:
            if not is_direct:
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
        while len(view):
            if hasattr(os, "preadv"):
                num_read = os.preadv(self._descriptor, [view], position, self._flags)
            else:
                raw = self._read_at(min(len(view), BLOCK_BYTES), position)
                num_read = len(raw)
                view[:num_read] = raw
            if not num_read:
                raise EOFError
            view, position = view[num_read:], position + num_read

    def _read_at(self, size: int, position: int) -> bytes:
        if self._flags:
            raw = bytearray(size)
            if os.preadv(self._descriptor, [raw], position, self._flags) < size:
                raise BlockingIOError
            return bytes(raw)
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, position)
        os.lseek(self._descriptor, position, os.SEEK_SET)
        return os.read(self._descriptor, size)

    def _count(self, num_requests: int, num_bytes: int) -> None:
        self.counted[0] += num_requests
        self.counted[1] += num_bytes


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
    found = os.stat(path)  # noqa: PTH116 # a Path takes 2 us
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not a regular file")
    return OpenFile(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)), found=found)
