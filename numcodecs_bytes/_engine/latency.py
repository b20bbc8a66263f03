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
    """How long a batch waits for its files: for a request to read, and for anything else.

    Its threads share it without a lock: at worst, one looks once more.
    """

    on_learnt: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *, looks_first: bool = False) -> None:
        self.looks_first = looks_first  # whether the first chunk is looked at, whatever is read
        self.seconds = 0.0  # that a read takes; 0 if files seem to be in memory
        self.has_waited = False  # for something else, longer than usual
        self.prefetching_helps = hasattr(os, "posix_fadvise")
        self.has_helpers = False  # whether other threads of the batch make this one wait
        self._seconds_before = 0.0  # that the look before this one took
        self._waited_seconds = 0.0
        self._num_until_look = 0.0 if looks_first else float("inf")

    @property
    def is_long(self) -> bool:
        """Whether threads wait for files, so that more of them help."""
        return self.has_waited or self.seconds > 0

    @property
    def gap(self) -> int:
        """The gap that takes as long to read as another request, in bytes."""
        num = constants.NUM_PREFETCHED if self.prefetching_helps else 1
        gap = int(min(self.seconds * constants.BYTES_PER_SECOND, constants.MAX_GAP_BYTES) / num)
        # Rounded down to a power of two, so that few plans have to be kept.
        return max(1 << gap.bit_length() >> 1, constants.GAP_BYTES)

    def is_due(self, num_runs: int) -> bool:
        """Whether to look at a chunk of which as many runs are read; to be asked once for each."""
        if not num_runs:
            return False
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
        second, self._seconds_before = max(others, default=self._seconds_before), first
        self.seconds = 0.0
        if first <= limit:
            self._num_until_look = constants.LOOK_EVERY
        elif first > constants.WAITED_SECONDS or second > limit:  # else look again: it is not sure
            self.seconds = min(first, second) if second > limit else first
            self._num_until_look = constants.LOOK_EVERY_SLOW
            if len(others) > 1:
                together = sum(others) < 2 * first
                self.prefetching_helps = hasattr(os, "posix_fadvise") and together
        self.on_learnt()

    def note(self, seconds: float) -> None:
        """Learn from how much longer than usual something else took: opening, writing.

        `seconds` is negative if it took less.
        """
        waited = self._waited_seconds + seconds - constants.SHORT_SECONDS
        self._waited_seconds = max(waited, 0.0)
        if self._waited_seconds > constants.WAITED_SECONDS and not self.has_waited:
            self.has_waited = True
            self.on_learnt()
