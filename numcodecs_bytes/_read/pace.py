"""How long reads of files wait: each batch learns it from its own first ones.

From memory, the system answers in a microsecond. A disk takes 30 to 10,000, but answers many
requests at once if they are made in advance; a network mount takes as long, and may answer one
after the other. Both are read in longer runs, and by more threads.
"""

import itertools
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.gap_policy import GapPolicy
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources import files

if TYPE_CHECKING:
    from numcodecs_bytes._runtime.workers import Workers, WorkersHere

# A chunk of MIN_RUNS_TO_PROBE and more runs is probed before they are read: that takes 4 us. If two
# probes take longer than CACHED_READ_SECONDS, the file is slow, and the system is asked to prefetch
# all runs: 1,000 cold points take 12 ms instead of 60; if nothing is cold, always asking takes 1.6
# times as long as never. A read takes 1 us from memory, and 30 from a fast disk. Three more tell
# whether prefetching helps.
MIN_RUNS_TO_PROBE = 5
CACHED_READ_SECONDS = 2e-5

# After how many chunks a batch probes again whether files are slow, or still are. If they are, as
# many threads read as zarr itself would use: cold chunks of 64 KiB take 4 ms instead of 18.
PROBE_EVERY = 8
PROBE_EVERY_SLOW = 32

# If all that a batch does besides reading runs, opening files and reading indices, takes longer in
# all, by CERTAIN_WAIT_SECONDS, than SHORT_SECONDS each, more threads help.
SHORT_SECONDS = 1e-4


class Speed(NamedTuple):
    """How files are read, as probes have shown."""

    max_gap: int | None  # the largest gap to read, in bytes; None for the default
    is_slow: bool = False  # else they seem to be in memory
    prefetching_helps: bool = False


def gap_worth_reading(seconds: float, *, prefetching_helps: bool) -> int:
    """Return the gap that takes as long to read as another request waits, in bytes."""
    return GapPolicy.for_slow_file(seconds, prefetching_helps=prefetching_helps).max_gap


def seconds_waited(probes: Sequence[float], limit: float, suspicion: float = 0.0) -> float:
    """Return how long a read of a file waits, by the seconds that probes took; 0 if it does not.

    Two must take longer than the limit: whatever else the machine does may have stopped one. A
    suspicion, a single slow read before, counts if the first probe confirms it.
    """
    slow = [seconds for seconds in probes if seconds > limit]
    if suspicion and probes[0] > limit:
        slow.append(suspicion)
    return min(slow) if len(slow) > 1 else 0.0


def helps_prefetching(prefetched: Sequence[float], seconds: float) -> bool:
    """Whether reads that are asked for in advance are answered together.

    If so, one of them takes no time; a busy machine may delay the others.
    """
    return not prefetched or min(prefetched) < seconds / 2


@dataclass
class Waits:
    """How long a batch has waited for files, besides reading runs; more threads wait together.

    Its threads share it without a lock: at worst, a wait is not counted.
    """

    is_long: bool = False
    seconds: float = 0.0  # beyond `SHORT_SECONDS` each
    has_begun: bool = False  # to open the first file
    has_waited: bool = False  # until it was open
    workers: "Workers[Any] | WorkersHere[Any] | None" = (
        None  # the threads of the batch, while they run
    )

    def note(self, seconds: float) -> None:
        """Note how long it took to open a file, or to read an index; start helpers if it helps."""
        self.has_waited = True
        self.add(seconds)
        if self.is_long:
            self.add_threads(io_bound=True)

    def add(self, seconds: float) -> None:
        """Count a wait."""
        self.seconds = max(self.seconds + seconds - SHORT_SECONDS, 0.0)
        self.is_long |= self.seconds > constants.CERTAIN_WAIT_SECONDS

    def look(self) -> None:
        """Start helpers if the first file is still being opened."""
        if self.has_begun and not self.has_waited:
            self.add_threads(io_bound=True)

    def add_threads(self, *, io_bound: bool) -> None:
        """Have other threads help, if there are any: as many as help."""
        if self.workers is not None:
            self.workers.add_threads(io_bound=io_bound)


class Pace:
    """What a batch has learnt of its files: in memory, suspected to be slow, or slow.

    Its threads share it without a lock: at worst, one probes once more.
    """

    def __init__(
        self,
        max_gap: int | None = None,
        *,
        probes_first: bool = False,
        leaves_slow_files: bool = False,
        caches_indices: bool = False,
    ) -> None:
        """Take the largest gap to read, in bytes, if the user has set it.

        `probes_first` is whether the first chunk is probed, whatever is read of it,
        `leaves_slow_files` whether what is slow is left to zarr, and `caches_indices` whether those
        of shards are cached.
        """
        self.speed, self.waits = Speed(max_gap), Waits()
        self.caches_indices = caches_indices
        self._gap, self._leaves_slow_files = max_gap, leaves_slow_files
        self._num_until_probe = 0.0 if probes_first else float("inf")
        self._suspicion = 0.0  # the seconds that the last slow read took; 0 after a fast one

    def count_chunk(self, num_runs: int) -> bool:
        """Count a chunk of which so many runs are read; return whether to probe its file."""
        if not num_runs:
            return False
        self._num_until_probe -= 1
        if not self.speed.is_slow:
            return self._num_until_probe < 0 or num_runs >= MIN_RUNS_TO_PROBE
        if self._num_until_probe >= 0:
            return False
        self._num_until_probe = PROBE_EVERY_SLOW  # now: other threads need not probe
        return True

    def bytes_worth(self, seconds: float) -> int:
        """Return how many bytes are worth reading instead of a request that takes so long."""
        if self._gap is not None:
            return self._gap
        return gap_worth_reading(seconds, prefetching_helps=False)

    def gap_after(self, seconds: float) -> int | None:
        """Return the largest gap to prefetch in a file of which a read took so long."""
        if self._gap is None and not self.speed.is_slow:
            return gap_worth_reading(seconds, prefetching_helps=True)
        return self.speed.max_gap

    def probe(
        self, descriptor: int, positions: Iterable[int], *, are_prefetched: bool = False
    ) -> None:
        """Learn whether files are slow, by reading a byte at one position of a file, or more.

        Raises `LeftToZarr` if files are slow and slow files are left to zarr, unless the positions
        were prefetched and that helped.
        """
        ahead, limit = deque(positions), self._limit()
        if self._leaves_slow_files and not are_prefetched:  # how they are read does not matter
            ahead = deque(itertools.islice(ahead, 2))
        probes: list[float] = []
        seconds = 0.0
        while ahead and not seconds:
            probes.append(files.seconds_to_read(descriptor, ahead.popleft()))
            seconds = seconds_waited(probes, limit, self._suspicion)
        if seconds:
            helps = self._does_prefetching_help(descriptor, list(ahead), seconds)
            if self._leaves_slow_files and not (are_prefetched and helps):
                raise LeftToZarr("the file is slow")
            self._note_slow(seconds, prefetching_helps=helps)
        elif min(probes) > limit:  # of a small file: the next one is probed, and decides
            self.speed, self._suspicion = Speed(self._gap), probes[0]
            self.waits.add(probes[0])
        else:
            self.speed, self._suspicion = Speed(self._gap), 0.0
            self._num_until_probe = PROBE_EVERY
        io_bound = self.waits.is_long or self.speed.is_slow
        self.waits.add_threads(io_bound=io_bound)

    def _note_slow(self, seconds: float, *, prefetching_helps: bool) -> None:
        """Note that files are slow."""
        max_gap = self._gap
        if max_gap is None:
            max_gap = gap_worth_reading(seconds, prefetching_helps=prefetching_helps)
        self.speed = Speed(max_gap, is_slow=True, prefetching_helps=prefetching_helps)
        self._suspicion = seconds
        self._num_until_probe = PROBE_EVERY_SLOW

    def _limit(self) -> float:
        """Return how many seconds a read takes that has not waited for the file."""
        workers = self.waits.workers
        may_wait_for_threads = workers and workers.has_helpers and not self.speed.is_slow
        # The machine may be busy if the last one took longer than any disk.
        is_strict = may_wait_for_threads or self._suspicion > constants.CERTAIN_WAIT_SECONDS
        return constants.CERTAIN_WAIT_SECONDS if is_strict else CACHED_READ_SECONDS

    def _does_prefetching_help(
        self, descriptor: int, positions: Sequence[int], seconds: float
    ) -> bool:
        """Return whether prefetching helps: as before if there are too few positions to tell."""
        if not hasattr(os, "posix_fadvise"):
            return False
        if len(positions) < 3:
            return not self.speed.is_slow or self.speed.prefetching_helps
        files.prefetch(descriptor, [(position, 1) for position in positions])
        prefetched = [files.seconds_to_read(descriptor, position) for position in positions]
        return helps_prefetching(prefetched, seconds)

    def note_index(self, seconds: float) -> None:
        """Note how long it took to read an index; a long time is a suspicion."""
        if seconds > constants.CERTAIN_WAIT_SECONDS and not self.speed.is_slow:
            self._suspicion = seconds
        self.waits.note(seconds)
