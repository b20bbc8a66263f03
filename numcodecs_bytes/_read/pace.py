"""How long reads of files wait: each batch learns it from its own first ones.

From memory, the system answers in a microsecond. A disk takes 30 to 10,000, but answers many
requests at once if they are made in advance; a network mount takes as long, and may answer one
after the other. Both are read in longer runs, and by more threads.
"""

import itertools
import os
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources import files

if TYPE_CHECKING:
    from numcodecs_bytes._host.workers import Workers
    from numcodecs_bytes._sources.shard_index import IndexCache

# If files are slow, gaps are read over that take less time than another request: what is read at
# BYTES_PER_SECOND meanwhile, up to MAX_GAP_BYTES. The requests that are prefetched share it.
# One after the other, 1 ms each, parts of 64 MiB took 0.8 to 1.0 of zarr's time.
BYTES_PER_SECOND = 2e9
MAX_GAP_BYTES = 1 << 21
NUM_PREFETCHED = 16

# A chunk of PROBE_FROM and more runs is probed before they are read, which takes 4 us. If two
# probes take longer than WAIT_SECONDS, the system is asked to prefetch all runs: 1,000 cold points
# take 12 ms instead of 60; if nothing is cold, always asking takes 1.6 times as long as never. A
# read takes 1 us from memory, and 30 from a fast disk. Three more tell whether prefetching helps.
PROBE_FROM = 5
WAIT_SECONDS = 2e-5

# After how many chunks a batch probes again whether files are slow, or still are. If they are, as
# many threads read as zarr itself would use: cold chunks of 64 KiB take 4 ms instead of 18.
PROBE_EVERY = 8
PROBE_EVERY_SLOW = 32

# A probe that takes longer than WAITED_SECONDS did not wait for another thread. If all else that a
# batch does, opening files and reading indices, takes that much longer in all than SHORT_SECONDS
# each, more threads help.
WAITED_SECONDS = 1e-3
SHORT_SECONDS = 1e-4


def gap_worth_reading(seconds: float, *, prefetching_helps: bool) -> int:
    """Return the gap that takes as long to read as another request waits, in bytes."""
    num = NUM_PREFETCHED if prefetching_helps else 1
    gap = int(min(seconds * BYTES_PER_SECOND, MAX_GAP_BYTES) / num)
    # Rounded down to a power of two, so that few plans are cached.
    return max(1 << gap.bit_length() >> 1, constants.GAP_BYTES)


def seconds_waited(probes: Sequence[float], limit: float, suspicion: float = 0.0) -> float:
    """Return how long a read of a file waits, by the seconds that probes took; 0 if it does not.

    Two must take longer than the limit: whatever else the machine does may have stopped one. A
    suspicion, a single slow read before, counts if the first probe confirms it.
    """
    slow = [seconds for seconds in probes if seconds > limit]
    if suspicion and slow and probes[0] > limit:
        slow.append(suspicion)
    return min(slow) if len(slow) > 1 else 0.0


def helps_prefetching(prefetched: Sequence[float], seconds: float) -> bool:
    """Whether reads that are asked for in advance are answered together.

    If so, one of them takes no time; a busy machine may delay the others.
    """
    return not prefetched or min(prefetched) < seconds / 2


class Pace:
    """What a batch has learnt of its files: in memory, suspected to be slow, or slow.

    Its threads share it without a lock: at worst, one probes once more, or a wait is not counted.
    """

    def __init__(
        self,
        gap: int | None = None,
        *,
        probes_first: bool = False,
        leaves_slow_files: bool = False,
        indices: "IndexCache | None" = None,
    ) -> None:
        """Take the largest gap to read, in bytes, if the user has set it.

        `probes_first` is whether the first chunk is probed, whatever is read of it,
        `leaves_slow_files` whether what is slow is left to zarr; `indices` caches those of shards.
        """
        self.gap, self._gap_set = gap, gap  # None for the default
        self.is_slow, self.prefetching_helps = False, False
        self.has_waited = False  # for something else than a read of runs
        self.workers: Workers[Any] | None = None  # that read, while they do
        self.leaves_slow_files, self.indices = leaves_slow_files, indices
        self._num_until_probe = 0.0 if probes_first else float("inf")
        self._suspicion = 0.0  # the seconds that the last slow read took; 0 after a fast one
        self._waited_seconds = 0.0

    def is_probe_due(self, num_runs: int) -> bool:
        """Count a chunk of which so many runs are read; return whether to probe its file."""
        if not num_runs:
            return False
        self._num_until_probe -= 1
        if not self.is_slow:
            return self._num_until_probe < 0 or num_runs >= PROBE_FROM
        if self._num_until_probe >= 0:
            return False
        self._num_until_probe = PROBE_EVERY_SLOW  # now: other threads need not probe
        return True

    def probe(self, descriptor: int, positions: Iterable[int]) -> None:
        """Learn whether files are slow, by reading a byte at one position of a file, or more.

        Raises `LeftToZarr` if they are, and what is slow is left to zarr.
        """
        # The others tell whether prefetching helps.
        most = 2 if self.leaves_slow_files else None
        limit, ahead = self._limit(), deque(itertools.islice(positions, most))
        probes, seconds = list[float](), 0.0
        while ahead and not seconds:
            probes.append(files.seconds_to_read(descriptor, ahead.popleft()))
            seconds = seconds_waited(probes, limit, self._suspicion)
        self.prefetching_helps = seconds > 0 and self._try_prefetching(descriptor, ahead, seconds)
        self.is_slow, self.gap = seconds > 0, self._gap_set
        if self.is_slow and self._gap_set is None:
            self.gap = gap_worth_reading(seconds, prefetching_helps=self.prefetching_helps)
        if not seconds and min(probes) > limit:  # a small file: the next one is probed, and decides
            self._suspicion = probes[0]
            self._add_wait(probes[0])
        else:
            self._suspicion = seconds
            self._num_until_probe = PROBE_EVERY_SLOW if seconds else PROBE_EVERY
        if seconds and self.leaves_slow_files:
            raise LeftToZarr("the file is slow")
        self._start_helpers(wait_for_files=self.has_waited or self.is_slow)

    def _limit(self) -> float:
        """Return how many seconds a read takes that has not waited for the file."""
        may_wait_for_threads = bool(self.workers and self.workers.have_helpers) and not self.is_slow
        # The machine may be busy if the last one took longer than any disk.
        is_strict = may_wait_for_threads or self._suspicion > WAITED_SECONDS
        return WAITED_SECONDS if is_strict else WAIT_SECONDS

    def _try_prefetching(self, descriptor: int, positions: Iterable[int], seconds: float) -> bool:
        """Return whether prefetching helps: as before if there are too few positions to tell."""
        some = list(positions)
        if not hasattr(os, "posix_fadvise"):
            return False
        if len(some) < 3:
            return not self.is_slow or self.prefetching_helps
        files.prefetch(descriptor, [(position, 1) for position in some])
        prefetched = [files.seconds_to_read(descriptor, position) for position in some]
        return helps_prefetching(prefetched, seconds)

    def note_index(self, seconds: float) -> None:
        """Like `note_wait`, for the read of an index; if it took long, it is a suspicion."""
        if seconds > WAITED_SECONDS and not self.is_slow:
            self._suspicion = seconds
        self.note_wait(seconds)

    def note_wait(self, seconds: float) -> None:
        """Learn from how long it took to open a file; start helpers if threads wait for that."""
        self._add_wait(seconds)
        if self.has_waited:
            self._start_helpers(wait_for_files=True)

    def _start_helpers(self, *, wait_for_files: bool) -> None:
        if self.workers is not None:
            self.workers.start_helpers(wait_for_files=wait_for_files)

    def _add_wait(self, seconds: float) -> None:
        self._waited_seconds = max(self._waited_seconds + seconds - SHORT_SECONDS, 0.0)
        self.has_waited |= self._waited_seconds > WAITED_SECONDS
