"""How long requests to files take: each batch learns it from its own first ones.

From memory, the system answers in a microsecond. A disk takes 30 to 10,000, but answers many
requests at once if they are made in advance; a network mount takes as long, and may answer one
after the other. Both are read in longer runs, and by more threads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable

from numcodecs_bytes._engine import constants, files


class Latency:
    """How long a request takes that has to wait for a disk or a server.

    The threads of a batch share it without a lock: at worst, one looks once more.
    """

    on_look: Callable[[], None] = staticmethod(lambda: None)  # called when something was learnt

    def __init__(self, *, looks_first: bool = False) -> None:
        self.looks_first = looks_first  # whether the first chunk is looked at, even for a run
        self.seconds = 0.0  # that a read takes; 0 if files seem to be in memory
        self.is_long = False  # whether threads wait, for a read or for anything else
        self.prefetching_helps = hasattr(os, "posix_fadvise")
        self.has_helpers = False  # whether other threads of the batch make this one wait
        self._before = 0.0  # how long the look before this one took
        self._waited = 0.0  # how much longer than expected everything else took
        self._num_until_look = 0.0 if looks_first else float("inf")

    @property
    def gap(self) -> int:
        """The gap that takes as long to read as another request, in bytes."""
        num = constants.NUM_PREFETCHED if self.prefetching_helps else 1
        gap = int(min(self.seconds * constants.BYTES_PER_SECOND, constants.MAX_GAP_BYTES) / num)
        return max(1 << gap.bit_length() >> 1, constants.GAP_BYTES)  # a power: plans are kept

    def is_due(self, num_runs: int) -> bool:
        """Whether to look at a chunk, of which as many runs are read; called once for each."""
        self._num_until_look -= 1
        if self.seconds:
            if self._num_until_look >= 0:
                return False
            self._num_until_look = constants.LOOK_EVERY_SLOW  # now: other threads need not look
            return True
        return self._num_until_look < 0 or num_runs >= constants.LOOK_FROM

    def look(self, descriptor: int, positions: Iterable[int]) -> None:
        """Learn how long it takes to read a byte at a few positions of a file.

        What takes less than `WAITED_SECONDS` may have waited for another thread: it must be seen
        twice.
        """
        may_be_threads = self.has_helpers and not self.seconds
        limit = constants.WAITED_SECONDS if may_be_threads else constants.WAIT_SECONDS
        left, first = deque(positions), 0.0
        while left and first <= limit:
            first = files.seconds_to_read(descriptor, left.popleft())
        files.prefetch(descriptor, [(position, 1) for position in left])
        others = [files.seconds_to_read(descriptor, position) for position in left]
        second, self._before = max(others, default=self._before), first
        self.seconds = 0.0
        if first <= limit:
            self._num_until_look = constants.LOOK_EVERY
        elif first > constants.WAITED_SECONDS or second > limit:  # else look again: it is not sure
            self.seconds = min(first, second) if second > limit else first
            self.is_long = True
            self._num_until_look = constants.LOOK_EVERY_SLOW
            if len(others) > 1:
                self.prefetching_helps = hasattr(os, "posix_fadvise") and sum(others) < 2 * first
        self.on_look()

    def note(self, seconds: float) -> None:
        """Learn from how long something else than a read took: opening or writing a file."""
        self._waited = max(self._waited + seconds - constants.SHORT_SECONDS, 0.0)
        if self._waited > constants.WAITED_SECONDS and not self.is_long:
            self.is_long = True
            self.on_look()
