"""Copies that are eight times as slow on some processors, and where memory begins to avoid them.

AMD's Zen 3 and Zen 4 have a fast ``rep movsb``, with which the system copies between files and
memory, and the C library in memory. It is slow if the destination is a few bytes after the source,
modulo 4,096. GB/s of `os.preadv` from the page cache, 4 MiB at a time, by that distance:

| distance         |    0 |   1 |   8 |  15 |   16 |   31 |   32 |   64 | 2,048 | 4,080 |
|------------------|------|-----|-----|-----|------|------|------|------|-------|-------|
| EPYC 7003, Zen 3 | 25.9 | 2.7 | 2.7 | 2.8 |  2.6 |  2.5 | 22.0 | 19.4 |  25.8 |  26.3 |
| EPYC 9004, Zen 4 | 30.6 | 3.2 | 3.3 | 3.3 | 27.1 | 23.9 | 31.5 | 31.9 |  31.7 |  30.5 |

`os.pwrite` is as slow, and so are NumPy's copies of 4 to 512 KiB. Large arrays of NumPy begin 16
bytes after a page, and most chunks where a page of their file does.
"""

import re
from pathlib import Path

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array

# From this size on, a slow copy takes at least twice as long as a fast one. To read 2 KiB takes 0.6
# us more, as long as to copy it once more.
MIN_SLOW_BYTES = 1 << 12

NEW_BYTES = 16  # the memory of new arrays begins at multiples of that

ALIAS_BYTES = 1 << 12  # positions that differ by this are alike

# Where memory begins in its page if something is copied through it. Rows often have multiples of
# ROW_BYTES: also modulo that, these are further apart than any slow distance.
_BEGINNINGS = (0, 2048 + 64, 2048 + 128)
MAX_BEGIN = _BEGINNINGS[-1]
ROW_BYTES = 1 << 9

Position = int | memoryview | UInt8Array  # an offset in a file, or an address; or memory


def slow_distances_of(cpuinfo: str) -> range:
    """Return the distances at which a processor copies slowly, given what Linux says of it."""
    found = re.search(
        r"^vendor_id\s*: AuthenticAMD\ncpu family\s*: 25\nmodel\s*: (\d+)$",
        cpuinfo,
        re.MULTILINE,
    )
    if found is None:
        return range(0)
    is_zen_4 = int(found[1]) >> 4 in (1, 6, 7, 10)
    return range(1, 16) if is_zen_4 else range(1, 32)


def _cpuinfo() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 10)  # the first core only: each takes a while
    except OSError:  # another system, or a sandbox
        return ""


slow_distances = slow_distances_of(_cpuinfo())  # empty on all other processors


def is_slow(source: Position, destination: Position, num_bytes: int) -> bool:
    """Whether this processor is slow to copy so many bytes from one position to another."""
    if not slow_distances or num_bytes < MIN_SLOW_BYTES:
        return False
    return (_address_of(destination) - _address_of(source)) % ALIAS_BYTES in slow_distances


def is_slow_to_new(source: int, new: UInt8Array) -> bool:
    """Whether this processor is slow to copy to a new array from a position in a file.

    To find out its address takes 3 us, but it is a multiple of 16.
    """
    if slow_distances.stop <= NEW_BYTES and source % NEW_BYTES == 0:
        return False
    return is_slow(source, new, new.nbytes)


def begin_between(source: Position, destination: Position) -> int:
    """Return where in a page memory begins to which, and from which, a copy is fast.

    Each of the two copies rules out at most one of `_BEGINNINGS`.
    """
    if not slow_distances:
        return 0
    start, end = _address_of(source), _address_of(destination)
    return next(
        begin
        for begin in _BEGINNINGS
        if (begin - start) % ROW_BYTES not in slow_distances
        and (end - begin) % ROW_BYTES not in slow_distances
    )


def _address_of(position: Position) -> int:
    if isinstance(position, int):
        return position
    return np.asarray(position).ctypes.data
