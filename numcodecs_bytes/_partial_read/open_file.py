"""A file that is opened once, for any number of byte ranges.

Where a local file is replaced meanwhile, the one that was opened goes on being read, so all ranges
are of one version. It is not mapped into memory: if a mapped file were truncated, the process would
end.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from numcodecs_bytes._partial_read.plan import Plan

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
ReadAt = Callable[[memoryview, int], int]


class OpenFile:
    """Part of an open file.

    Parameters
    ----------
    read_at : callable
        Reads into memory from a position in the file, in bytes; returns the number of bytes read, 0
        at the end.
    close : callable
        Closes the file.
    num_bytes : int
        Length of the part, in bytes.
    offset : int
        Where the part begins, in bytes.
    """

    __slots__ = ("_offset", "_read_at", "close", "num_bytes")

    def __init__(
        self, read_at: ReadAt, close: Callable[[], None], num_bytes: int, offset: int = 0
    ) -> None:
        self._read_at = read_at
        self.close = close
        self.num_bytes = num_bytes
        self._offset = offset

    def read(self, plan: Plan, is_wanted: Callable[[], bool]) -> Bytes | None:
        """Return the pieces of a plan, end to end.

        None where the file is shorter than the plan, or where `is_wanted`, which is asked before
        each range, says no.
        """
        fetched = np.empty(plan.num_kept_bytes, np.uint8)
        view = fetched.data
        for start, end, pieces in plan.requests():
            if not is_wanted():
                return None
            if len(pieces) == 1:
                first, last, place = pieces[0]
                if not self._read_into(view[place : place + last - first], start + first):
                    return None
                continue
            read = np.empty(end - start, np.uint8).data
            if not self._read_into(read, start):
                return None
            for first, last, place in pieces:
                view[place : place + last - first] = read[first:last]
        return fetched

    def _read_into(self, view: memoryview, start: int) -> bool:
        """Fill memory with the bytes from `start` on; return whether there are so many."""
        position = self._offset + start
        while len(view):
            num_read = self._read_at(view, position)
            if not num_read:
                return False
            view = view[num_read:]
            position += num_read
        return True


def open_local(path: str, offset: int = 0, num_bytes: int | None = None) -> OpenFile:
    """Open part of a local file: by default all that follows `offset`.

    Raises
    ------
    OSError
        As by `os.open`.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        length = max(os.fstat(descriptor).st_size - offset, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return OpenFile(
        partial(_read_local, descriptor),
        partial(os.close, descriptor),
        length if num_bytes is None else min(length, num_bytes),
        offset,
    )


def _read_local(descriptor: int, view: memoryview, position: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], position)
    os.lseek(descriptor, position, os.SEEK_SET)
    read = os.read(descriptor, len(view))
    view[: len(read)] = read
    return len(read)


def read_from_file(file: Any, view: memoryview, position: int) -> int:
    """Read from a file object that is readable and seekable; a `ReadAt` once it is bound."""
    file.seek(position)
    return int(file.readinto(view))
