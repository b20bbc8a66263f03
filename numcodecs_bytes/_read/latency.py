"""How long requests to files take: each batch learns it from its own first ones.

From memory, the system answers in a microsecond. A disk takes 30 to 10,000, but answers many
requests at once if they are made in advance; a network mount takes as long, and may answer one
after the other. Both are read in longer runs, and by more threads.
"""

import os
from collections import deque
from collections.abc import Collection, Iterable

from numcodecs_bytes._plan import constants
from numcodecs_bytes._sources import files

# If files are slow, gaps are read over that take less time than another request: what is read at
# OLD_BYTES_PER_SECOND meanwhile, up to OLD_MAX_GAP_BYTES. The requests that are prefetched share it.
# One after the other, 1 ms each, parts of 64 MiB took 0.8 to 1.0 of zarr's time.
OLD_BYTES_PER_SECOND = 2e9
OLD_MAX_GAP_BYTES = 1 << 21
OLD_NUM_PREFETCHED = 16

# A chunk of LOOK_FROM and more runs is looked at before they are read, which takes 4 us. If two
# looks take longer than OLD_WAIT_SECONDS, the system is asked to prefetch all runs: 1,000 cold points
# take 12 ms instead of 60; if nothing is cold, always asking takes 1.6 times as long as never. A
# read takes 1 us from memory, and 30 from a fast disk. Three more tell whether prefetching helps.
LOOK_FROM = 5
OLD_WAIT_SECONDS = 2e-5

# After how many chunks a batch looks again whether files are slow, or still are. If they are, as
# many threads read as zarr itself would use: cold chunks of 64 KiB take 4 ms instead of 18.
LOOK_EVERY = 8
LOOK_EVERY_SLOW = 32

# A look that takes longer than OLD_WAITED_SECONDS did not wait for another thread. If all else that a
# batch does, opening and writing files, takes that much longer in all than usual, and than
# OLD_SHORT_SECONDS each, more threads help: if each rename takes 10 or 50 ms, chunks of 1 MiB take 0.6
# of zarr's time to write, and 1.3 to 1.4 without this rule.
OLD_WAITED_SECONDS = 1e-3
OLD_SHORT_SECONDS = 1e-4


class Latency:
    """How long a batch waits for its files: for a request to read, and for anything else.

    Its threads share it without a lock: at worst, one looks once more.
    """

    def __init__(self, *, looks_first: bool = False) -> None:
        """Take whether the first chunk is looked at, whatever is read of it."""
        self.seconds = 0.0  # that a read takes; 0 if files seem to be in memory
        self.has_waited = False  # for something else, longer than usual
        self.prefetching_helps = hasattr(os, "posix_fadvise")
        self._suspected = 0.0  # the seconds that all looks at the file before took, if it was slow
        self._waited_seconds = 0.0
        self._num_until_look = 0.0 if looks_first else float("inf")

    @property
    def is_slow(self) -> bool:
        """Whether a read waits for the file."""
        return self.seconds > 0

    @property
    def gap(self) -> int:
        """The gap that takes as long to read as another request, in bytes."""
        num = OLD_NUM_PREFETCHED if self.prefetching_helps else 1
        gap = int(min(self.seconds * OLD_BYTES_PER_SECOND, OLD_MAX_GAP_BYTES) / num)
        # Rounded down to a power of two, so that few plans have to be kept.
        return max(1 << gap.bit_length() >> 1, constants.GAP_BYTES)

    def count_chunk(self, num_runs: int) -> bool:
        """Count a chunk of which so many runs are read; return whether to look at its file."""
        if not num_runs:
            return False
        self._num_until_look -= 1
        if self.is_slow:
            if self._num_until_look >= 0:
                return False
            self._num_until_look = LOOK_EVERY_SLOW  # now: other threads need not look
            return True
        return self._num_until_look < 0 or num_runs >= LOOK_FROM

    def look(
        self, descriptor: int, positions: Iterable[int], *, have_helpers: bool = False
    ) -> bool:
        """Learn whether files are slow, by reading a byte at one position of a file, or more.

        Two reads must take long. One may have been stopped by whatever else the machine does.
        Returns whether threads wait for files, so that more of them help.
        """
        may_be_threads = have_helpers and not self.is_slow
        was_long = self._suspected > OLD_WAITED_SECONDS  # a busy machine, or a mount
        limit = OLD_WAITED_SECONDS if may_be_threads or was_long else OLD_WAIT_SECONDS
        left, slow, num_fast = deque(positions), [self._suspected] if self._suspected else [], 0
        while left and len(slow) < 2:
            seconds = files.seconds_to_read(descriptor, left.popleft())
            if seconds > limit:
                slow.append(seconds)
                continue
            num_fast += 1
            if slow == [self._suspected]:  # the machine was busy then
                slow.clear()
        self.seconds = self._suspected = min(slow) if len(slow) == 2 else 0.0
        if self.is_slow:
            self._num_until_look = LOOK_EVERY_SLOW
            self._try_prefetching(descriptor, left)
        elif num_fast:
            self._num_until_look = LOOK_EVERY
        else:  # a small file: the next one decides
            self._suspected = slow[0]
            self.note_wait(slow[0])
        return self.has_waited or self.is_slow

    def _try_prefetching(self, descriptor: int, positions: Collection[int]) -> None:
        """Learn whether reads that are asked for in advance are answered together.

        If so, one of them takes no time; a busy machine may delay the others.
        """
        if len(positions) >= 3 and hasattr(os, "posix_fadvise"):
            files.prefetch(descriptor, [(position, 1) for position in positions])
            least = min([files.seconds_to_read(descriptor, each) for each in positions])
            self.prefetching_helps = least < self.seconds / 2

    def note_index(self, seconds: float) -> bool:
        """Like `note_wait`, for the read of an index; if it took long, it is the first look."""
        if seconds > OLD_WAITED_SECONDS and not self.is_slow:
            self._suspected = seconds
        return self.note_wait(seconds)

    def note_wait(self, seconds: float) -> bool:
        """Learn from how much longer than usual something else took: opening, writing.

        `seconds` is negative if it took less. Returns whether threads wait, so that more of them
        help.
        """
        waited = self._waited_seconds + seconds - OLD_SHORT_SECONDS
        self._waited_seconds = max(waited, 0.0)
        self.has_waited |= self._waited_seconds > OLD_WAITED_SECONDS
        return self.has_waited
