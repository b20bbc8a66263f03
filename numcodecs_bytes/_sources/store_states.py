"""What is remembered about stores that answer requests: strikes, and how fast they are.

A strike is what follows from an `Answer` other than a range: for `STRUCK_SECONDS`, zarr reads
everything from the store.
"""

import logging
import math
import time
import weakref

from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.answers import Answer
from numcodecs_bytes._zarr_api.names import name_of_store

# The rate of a store is learnt from answers of at least this length.
MIN_RATED_BYTES = 1 << 20

# So many objects in a row make a strike if their ranges can't be requested, but zarr reads them.
MAX_FAILURES = 3

# How long zarr reads a store after a strike. Its server may have been replaced by then.
STRUCK_SECONDS = 600.0

logger = logging.getLogger("numcodecs_bytes")


class StoreState:
    """What is known about a store."""

    has_answered = False  # whether it has answered a range properly
    is_answering = False  # whether no request has failed since its last answer
    num_failures = 0  # how many objects in a row have failed since its last answer
    tells_versions = True  # until the versions in its answers differ or are missing
    folder: str | None = None  # what obstore's LocalStore reads; None until it is found
    # Its fastest answer with bytes of a chunk so far: a busy machine can make a near store look
    # far, never the reverse.
    least_seconds = math.inf
    _num_rates, _best_rate = 0, 0.0  # of long answers, in bytes per second
    _struck_until = 0.0
    _why_struck = ""

    def __init__(self, store: weakref.ref[object]) -> None:
        self._store = store  # its name is logged

    @property
    def is_struck(self) -> bool:
        """Whether zarr reads the store."""
        return time.monotonic() < self._struck_until

    @property
    def bytes_per_second(self) -> float | None:
        """The best rate of its long answers; None until two are known: one may be by bad luck."""
        return self._best_rate if self._num_rates > 1 else None

    def record_answer(self, seconds: float) -> None:
        """Record that a range was answered properly, and how long that took."""
        self.has_answered, self.is_answering, self.num_failures = True, True, 0
        self.least_seconds = min(self.least_seconds, seconds)

    def record_failure(self, num_before: int) -> bool:
        """Record that zarr has read an object whose ranges could not be requested.

        `num_before` is `num_failures` when they were: those that fail together are one failure.
        Returns whether it is one too many.
        """
        if num_before > self.num_failures:  # a range was answered meanwhile
            num_before = 0
        self.num_failures = max(self.num_failures, num_before + 1)
        return self.num_failures >= MAX_FAILURES

    def record_rate(self, num_bytes: int, num_requests: int, seconds: float) -> None:
        """Record how long all answers for an object took, if they were long ones."""
        if num_bytes >= num_requests * MIN_RATED_BYTES and seconds:  # some clocks are coarse
            self._best_rate = max(self._best_rate, num_bytes / seconds)
            self._num_rates += 1

    def check(self) -> None:
        """Raise LeftToZarr if zarr reads the store."""
        if self.is_struck:
            why = f"the store does not serve byte ranges as requested ({self._why_struck})"
            raise LeftToZarr(why)

    def strike(self, answer: Answer) -> None:
        """Let zarr read the store from now on, and log why, once."""
        if self.is_struck:
            return
        self._why_struck, self._struck_until = answer.why, time.monotonic() + STRUCK_SECONDS
        level = logging.INFO if answer.kind == "missing" else logging.WARNING
        text = "%s does not serve byte ranges as requested (%s): whole chunks are read instead"
        logger.log(level, text, name_of_store(self._store()), answer.why)


# By `id`, because stores can't be hashed. The weak reference in a state removes it with the store.
# Threads need no lock, which a child process could find taken, because `setdefault` is atomic.
_states: dict[int, StoreState] = {}


def state_of(store: object) -> StoreState:
    """Return what is known about a store: always the same object, whichever thread is first."""
    key = id(store)
    state = _states.get(key)
    if state is None:
        new = StoreState(weakref.ref(store, lambda _: _states.pop(key, None)))
        state = _states.setdefault(key, new)
    return state
