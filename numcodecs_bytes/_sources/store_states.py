"""What is remembered about stores that answer requests: strikes, and how fast they are.

If anything in the answer to a range is unexpected, zarr reads the whole chunk. If that works, zarr
reads everything from the store for `STRUCK_SECONDS`. A store that says that an object is
missing is believed only if it has answered a range properly before; else zarr asks for it, and if
it is missing for zarr, too, that is no strike. Nor is a request that fails, because the server is
overloaded, or a connection lost: it says nothing about ranges, unless it happens again and again.
"""

import logging
import math
import time
import weakref

from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._zarr_api.names import name_of_store

# A store that has answered within NEAR_SECONDS is near: there, requests do not wait, but take turns
# on the same cores. A gap is worth reading if the store sends it in less time than two of its
# fastest answers took: 100 points took 1.1 of zarr's time, and 1.7 with one answer. The rate is
# that of its answers of MIN_RATED_BYTES and more, and NEAR_BYTES_PER_SECOND until two are known.
# With the gap of a far store, parts of 16 MiB took Icechunk 1.7 times as long as all of it in a
# folder.
NEAR_SECONDS = 1e-3
NEAR_BYTES_PER_SECOND = 4e9
MIN_RATED_BYTES = 1 << 20

# Objects, one after the other, whose ranges can't be requested, although zarr can read them whole.
MOST_FAILURES = 3

# How long zarr reads a store after a strike. Its server may have been replaced by then.
STRUCK_SECONDS = 600.0

logger = logging.getLogger("numcodecs_bytes")


class Unexpected(LeftToZarr):
    """A range was not answered as requested: a strike, if zarr can read the chunk."""


class Changed(Unexpected):
    """The answers come from several versions of an object, which is then requested once more."""


class Missing(Unexpected):
    """A store says that it has no such object, which may be right."""


class RequestError(LeftToZarr):
    """Requests for a range failed: a strike only after `MOST_FAILURES` objects in a row."""


class StoreState:
    """What is known about a store."""

    has_answered = False  # whether it has answered a range properly
    is_answering = False  # whether it has, and no request has failed since then
    num_failures = 0  # objects in a row, since then, whose ranges could not be requested
    tells_versions = True  # until the versions in its answers differ or are missing
    folder: str | None = None  # that obstore's LocalStore reads, once it is found
    # Its fastest answer with bytes of a chunk so far: a busy machine can make a near store look
    # far, never the reverse.
    least_seconds = math.inf
    _num_rates, _best_rate = 0, 0.0  # of long answers, in bytes per second
    _struck_until = 0.0
    _why_struck = ""

    @property
    def is_struck(self) -> bool:
        """Whether zarr reads the store."""
        return time.monotonic() < self._struck_until

    def note_answer(self) -> None:
        """Note that a range was answered properly."""
        self.has_answered, self.is_answering, self.num_failures = True, True, 0

    def note_failure(self, num_before: int) -> bool:
        """Note that zarr has read an object whose ranges could not be requested.

        `num_before` is `num_failures` when they were: those that fail together are one failure.
        Returns whether it is one too many.
        """
        if num_before > self.num_failures:  # a range was answered meanwhile
            num_before = 0
        self.num_failures = max(self.num_failures, num_before + 1)
        return self.num_failures >= MOST_FAILURES

    def note_seconds(self, seconds: float) -> None:
        """Note how long an answer took."""
        self.least_seconds = min(self.least_seconds, seconds)

    def note_rate(self, num_bytes: int, num_requests: int, seconds: float) -> None:
        """Note how long all answers for an object took, if they were long ones."""
        if num_bytes >= num_requests * MIN_RATED_BYTES and seconds:  # some clocks are coarse
            self._best_rate = max(self._best_rate, num_bytes / seconds)
            self._num_rates += 1

    def near_gap(self) -> int:
        """Return the gap that takes as long as another request, in bytes; 0 unless it is near."""
        if self.least_seconds > NEAR_SECONDS:
            return 0
        # The first rate may be that of a busy machine.
        rate = self._best_rate if self._num_rates > 1 else NEAR_BYTES_PER_SECOND
        return int(2 * self.least_seconds * rate)

    def check(self) -> None:
        """Raise LeftToZarr if zarr reads the store."""
        if self.is_struck:
            raise LeftToZarr(
                f"the store does not serve byte ranges as requested ({self._why_struck})"
            )

    def strike(self, store: object, why: Exception) -> None:
        """Let zarr read a store from now on, and log why, once."""
        if self.is_struck:
            return
        self._why_struck, self._struck_until = str(why), time.monotonic() + STRUCK_SECONDS
        level = logging.INFO if isinstance(why, Missing) else logging.WARNING
        text = "%s does not serve byte ranges as requested (%s): whole chunks are read instead"
        logger.log(level, text, name_of_store(store), why)


# By `id`, because stores can't be hashed. The weak reference to a store removes its state with it.
# Threads need no lock, which a child process could find taken, because `setdefault` is atomic.
_states: dict[int, tuple[weakref.ref[object], StoreState]] = {}


def state_of(store: object) -> StoreState:
    """Return what is known about a store: always the same object, whichever thread is first."""
    key = id(store)
    entry = _states.get(key)
    if entry is None:
        new = weakref.ref(store, lambda _: _states.pop(key, None)), StoreState()
        entry = _states.setdefault(key, new)
    return entry[1]
