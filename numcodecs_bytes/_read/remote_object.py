"""An object that is requested: its ranges, and whether the answers agree."""

import math
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._host.unexpected import is_lost
from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.plan import PlacedPlan
from numcodecs_bytes._plan.ranges import Range, Runs, coalesce, copy_runs, num_parts, sorted_runs
from numcodecs_bytes._sources.store_states import (
    Changed,
    Missing,
    RequestError,
    Unexpected,
    state_of,
)
from numcodecs_bytes._sources.stores import Remote

# The gap that takes as long as another request, if a chunk has one request in flight: a latency of
# 30 ms at 100 MB/s is worth 3 MB. The requests in flight share it. Reads took up to 20 times as
# long with a quarter of it, 4.9 times with four times as much, and 3.2 times if it was not shared.
LATENCY_BYTES = 2_500_000

# Long ranges are requested in parts of at least this size, because a connection has a limited rate.
PART_BYTES = 1 << 21

# If a connection is lost after this time, the request is not repeated: it would be lost again.
PATIENCE_SECONDS = 1.0

# The number to use if zarr's `async.concurrency` is None.
UNLIMITED = 1000


class Budget(NamedTuple):
    """What an object may use of zarr's `async.concurrency`."""

    num_requests: int
    gap: int  # the largest gap over which runs are requested together, in bytes
    is_exact: bool  # whether the user has set the gap: then no range is split

    @classmethod
    def of(cls, num_objects: int, gap: int | None) -> "Budget":
        """Return the budget of each object if `num_objects` of them are read at once.

        `gap` is what the user has set.
        """
        limit = concurrency() or UNLIMITED
        num = max(1, limit // num_objects)
        return cls(num, LATENCY_BYTES // num if gap is None else gap, gap is not None)

    def longest_range(self, num_bytes: int) -> int:
        """Return the largest length of a range, if all ranges have `num_bytes` together."""
        if self.is_exact:
            return sys.maxsize
        return max(PART_BYTES, -(-num_bytes // self.num_requests))


class RemoteObject:
    """An object while it is read: all answers must state the same version and length."""

    def __init__(self, remote: Remote, expected: int | None = None, least: int = 0) -> None:
        """Take the length that it must have, if that is known, and the least that it may have."""
        self.remote, self.state = remote, state_of(remote.store)
        self.num_requests = self.num_received = 0  # requests made, and bytes received
        self._expected, self._least = expected, least
        self.forget()

    def forget(self) -> None:
        """Accept any version again."""
        self.length: int | None = None  # if the answers tell it
        self._seen: tuple[int | None, object] | None = None
        self._is_present = self._is_split = False

    def may_split(self) -> bool:
        """Whether the versions of parts of a range can be compared."""
        return self.remote.tells_versions and self.state.tells_versions

    def _check(self, num_bytes: int | None, version: object) -> None:
        """Raise if an answer states a length or version other than the expected one."""
        if num_bytes is None and self.remote.must_tell_length:
            raise Unexpected("it does not tell the length of a file")
        if self._expected is not None and num_bytes not in (None, self._expected):
            raise Unexpected(f"it says that a chunk of {self._expected} bytes has {num_bytes}")
        if num_bytes is not None and num_bytes < self._least:
            raise Unexpected(f"a chunk ends at {self._least} of an object of {num_bytes} bytes")
        has_changed = self._seen not in (None, (num_bytes, version))
        self._seen, self.length = (num_bytes, version), num_bytes
        if self._is_split and (has_changed or version is None):  # parts can't be compared
            self.state.tells_versions = False  # from now on, no range is split
            has_changed = True
        if has_changed:
            raise Changed("chunks are overwritten all the time, or each answer has another version")

    async def ask(self, start: int, end: int | None, *, is_timed: bool = True) -> UInt8Array:
        """Return a range; see `requests.Get`.

        Raises `Unexpected` for any other answer, and for an error that comes soon. If a connection
        is lost after a long time, raises the store's error, so that zarr does not ask again.
        """
        begin = time.monotonic()
        self.num_requests += 1
        try:
            raw = await self.remote.get(start, end, self._check)
        except LeftToZarr:
            raise
        except Exception as error:  # stores and their clients raise anything
            is_long = time.monotonic() - begin > PATIENCE_SECONDS
            if is_long and self.state.has_answered and is_lost(error):
                raise
            first_line = traceback.format_exception_only(error)[0].partition("\n")[0]
            raise RequestError(first_line[:200]) from None  # `str` of an error may fail
        if raw is None and self._is_present:
            raise Changed("chunks are deleted while they are read")
        if raw is None:
            raise Missing("chunks are missing if parts of them are requested")
        self.num_received += raw.nbytes
        expected = -start if end is None else end - start
        if raw.nbytes != expected:
            raise Unexpected(f"it answers with {raw.nbytes} bytes to a request for {expected}")
        self.state.has_answered = self._is_present = True
        if is_timed:
            self.state.note_seconds(time.monotonic() - begin)
        return raw

    async def fetch(
        self,
        placed: Sequence[PlacedPlan],
        budget: Budget,
        most_with_gaps: int,
        memory: UInt8Array | None,
    ) -> list[UInt8Array]:
        """Return the runs of each plan, end to end, in `memory` unless they are a single range.

        Raises what `ask` does, after all requests end.
        """
        if not placed:
            return []
        longest_part = most_with_gaps if self.may_split() else sys.maxsize
        plans = [plan for plan, *_ in placed]
        if len(plans) == plans[0].num_runs == 1 and num_parts(plans[0].length, longest_part) == 1:
            start = placed[0].start + plans[0].start
            return [await self.ask(start, start + plans[0].length)]
        starts = np.concatenate([plan.starts(start) for plan, start, _ in placed])
        lengths = np.repeat([p.length for p in plans], [p.num_runs for p in plans])
        runs = sorted_runs(starts, lengths)
        self._is_split = num_parts(int(lengths.max(initial=0)), longest_part) > 1
        num_bytes = [plan.num_bytes for plan in plans]
        memory = np.empty(sum(num_bytes), np.uint8) if memory is None else memory
        await self._fetch_runs(runs, memory, budget, most_with_gaps, longest_part)
        return np.split(memory, np.cumsum(num_bytes)[:-1])

    async def _fetch_runs(
        self, runs: Runs, memory: UInt8Array, budget: Budget, most_with_gaps: int, longest_part: int
    ) -> None:
        """Request runs, and copy them to their places in memory; see `fetch`.

        If it is not known yet how fast the store is, the first answers tell, and decide how many
        more requests are made.
        """
        gap, num = budget.gap, budget.num_requests
        is_flexible = not (budget.is_exact or self._is_split)
        if is_flexible and (near_gap := self.state.near_gap()) > gap:
            gap = near_gap
            most_with_gaps = longest_part = sys.maxsize  # parts are not faster
        ranges = list(
            coalesce(runs, gap=gap, most_with_gaps=most_with_gaps, longest_part=longest_part)
        )
        if is_flexible and len(ranges) > num and self.state.least_seconds == math.inf:
            await self._fetch_ranges(ranges[:num], memory, num)
            # No range is split, so that each has its own runs.
            rest = runs.between(sum([len(each.runs.starts) for each in ranges[:num]]), None)
            await self._fetch_runs(rest, memory, budget, most_with_gaps, longest_part)
            return
        begin, num_before = time.monotonic(), self.num_received
        await self._fetch_ranges(ranges, memory, num)
        seconds = time.monotonic() - begin
        self.state.note_rate(self.num_received - num_before, len(ranges), seconds)

    async def _fetch_ranges(
        self, ranges: Sequence[Range], memory: UInt8Array, num_requests: int
    ) -> None:
        """Request ranges, and copy the runs in them to their places in memory."""
        errors = list[Exception]()

        async def request(each: Range) -> None:
            if errors:  # those in flight are waited for
                return
            try:
                copy_runs(await self.ask(each.start, each.end), each, memory)
            except Exception as error:  # noqa: BLE001 # raised when all have ended
                errors.append(error)

        await concurrent_map([(each,) for each in ranges], request, num_requests)
        if errors:
            self._raise_first(errors)

    def _raise_first(self, errors: list[Exception]) -> NoReturn:
        """Raise the first error of several requests; those after it may be its consequences."""
        del errors[1:]
        if self._is_present and isinstance(errors[0], Missing):
            raise Changed("chunks are deleted while they are read")
        if self._is_present and is_lost(errors[0]):
            raise Unexpected("it loses connections")  # with many requests, one is lost more often
        raise errors.pop()  # a local variable would keep what was fetched
