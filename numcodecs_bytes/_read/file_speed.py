"""Judges how slow local files are by how long reads of them took: numbers in, verdict out.

From memory, the system answers in a microsecond. A disk takes 30 to 10,000, but answers many
requests at once if they are made in advance; a network mount takes as long, and may answer one
after the other. Both are read in longer runs, and by more threads. Each batch learns it from its
own first reads, which `FileBatch` makes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.gap_policy import GapPolicy

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


class SpeedVerdict(NamedTuple):
    """How files are read, as probes have shown."""

    max_gap: int | None  # the largest gap to read, in bytes; None for the default
    is_slow: bool = False  # False: they seem to be in memory
    prefetching_helps: bool = False


def seconds_waited(probes: Sequence[float], limit: float, last_slow_seconds: float = 0.0) -> float:
    """Return how long a read of a file waits, by the seconds that probes took; 0 if it does not.

    Two must take longer than the limit: whatever else the machine does may have stopped one. The
    last read before them counts if it was slow, and the first probe confirms it.
    """
    slow = [seconds for seconds in probes if seconds > limit]
    if last_slow_seconds and probes[0] > limit:
        slow.append(last_slow_seconds)
    return min(slow) if len(slow) > 1 else 0.0


def helps_prefetching(prefetched: Sequence[float], seconds: float) -> bool:
    """Whether reads that are asked for in advance are answered together.

    If so, one of them takes no time; a busy machine may delay the others.
    """
    return not prefetched or min(prefetched) < seconds / 2


@dataclass(slots=True)
class WaitTotal:
    """How long a batch has waited for files, besides reading runs; more threads wait together."""

    seconds: float = 0.0  # all waits, less `SHORT_SECONDS` each
    is_long: bool = False  # whether it is long, or has been

    def add(self, seconds: float) -> None:
        """Count a wait."""
        self.seconds = max(self.seconds + seconds - SHORT_SECONDS, 0.0)
        self.is_long |= self.seconds > constants.CERTAIN_WAIT_SECONDS


class FileSpeed:
    """What a batch has learnt of its files: in memory, perhaps slow after one slow read, or slow.

    `verdict` is how they are read from now on; `last_slow_seconds` is how long the last read took,
    and 0 after a fast one.
    """

    def __init__(self, max_gap: int | None, num_until_probe: int = PROBE_EVERY) -> None:
        """Take the largest gap to read, in bytes, if the user has set it.

        After `num_until_probe` chunks, one is probed, whatever is read of it.
        """
        self.verdict, self.last_slow_seconds = SpeedVerdict(max_gap), 0.0
        self._max_gap, self._num_until_probe = max_gap, num_until_probe

    def needs_probe(self, num_runs: int) -> bool:
        """Count a chunk of which so many runs are read; return whether to probe its file."""
        if not num_runs:
            return False
        self._num_until_probe -= 1
        if not self.verdict.is_slow:
            return self._num_until_probe < 0 or num_runs >= MIN_RUNS_TO_PROBE
        if self._num_until_probe >= 0:
            return False
        self._num_until_probe = PROBE_EVERY_SLOW  # set at once, as other threads need not probe
        return True

    def bytes_worth_reading(self, seconds: float, *, prefetching_helps: bool = False) -> int:
        """Return how many bytes are worth reading instead of a request that takes so long."""
        if self._max_gap is not None:
            return self._max_gap
        return GapPolicy.for_slow_file(seconds, prefetching_helps=prefetching_helps).max_gap

    def gap_to_prefetch(self, seconds: float) -> int | None:
        """Return the largest gap to prefetch in a file of which a read took so long."""
        if self.verdict.is_slow:
            return self.verdict.max_gap
        return self.bytes_worth_reading(seconds, prefetching_helps=True)

    def cached_read_limit(self, *, has_helpers: bool) -> float:
        """Return how many seconds a read may take that has not waited for the file.

        It may have waited for helpers, other threads of the batch. The machine may be busy if the
        last read took longer than any disk.
        """
        may_wait_for_threads = has_helpers and not self.verdict.is_slow
        if may_wait_for_threads or self.last_slow_seconds > constants.CERTAIN_WAIT_SECONDS:
            return constants.CERTAIN_WAIT_SECONDS
        return CACHED_READ_SECONDS

    def record_slow(self, seconds: float, *, prefetching_helps: bool) -> None:
        """Judge files to be slow: a read waits for so long."""
        max_gap = self.bytes_worth_reading(seconds, prefetching_helps=prefetching_helps)
        self.verdict = SpeedVerdict(max_gap, is_slow=True, prefetching_helps=prefetching_helps)
        self.last_slow_seconds, self._num_until_probe = seconds, PROBE_EVERY_SLOW

    def record_one_slow(self, seconds: float) -> None:
        """Judge files not to be slow yet, after one read that took so long: the next decides."""
        self.verdict, self.last_slow_seconds = SpeedVerdict(self._max_gap), seconds

    def record_fast(self) -> None:
        """Judge files to be in memory."""
        self.verdict, self.last_slow_seconds = SpeedVerdict(self._max_gap), 0.0
        self._num_until_probe = PROBE_EVERY
