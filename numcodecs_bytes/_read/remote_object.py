"""An object that is requested: its ranges, and whether the answers agree."""

import itertools
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import numpy as np
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._plan.gap_policy import GapPolicy
from numcodecs_bytes._plan.plan import PlacedRuns
from numcodecs_bytes._plan.ranges import (
    ByteRange,
    Runs,
    coalesce,
    copy_runs,
    num_bytes_over_gaps,
    sorted_runs,
    subranges,
)
from numcodecs_bytes._sources.answers import CHANGED, Answer
from numcodecs_bytes._sources.byte_ranges import answer_of
from numcodecs_bytes._sources.store_states import state_of
from numcodecs_bytes._sources.stores import ObjectExtent

# How many requests are prepared at a time, at least: each takes 2 KiB, and there may be millions.
# All are waited for before the next are prepared, so they are several rounds of those in flight:
# with 1,000 in flight, 30 ms away, 4,096 took 0.52 s, and 0.57 if 1,024 were prepared at a time.
MIN_PREPARED = 1 << 10
ROUNDS_PREPARED = 8

# A request that fails later than that is not repeated: a read of a store that is down would take
# three times as long as with zarr alone.
MAX_SECONDS_TO_REPEAT = 1.0


class RemoteObject:
    """An object while it is read: all answers must state the same version and length."""

    def __init__(
        self, extent: ObjectExtent, expected_length: int | None = None, min_length: int = 0
    ) -> None:
        """Take the length that the object must have, if that is known, or at least has."""
        self.extent, self.state = extent, state_of(extent.store)
        self.num_requests = self.num_received = 0  # requests made, and bytes received
        self._expected_length, self._min_length = expected_length, min_length
        self.reset_version()

    def reset_version(self) -> None:
        """Accept any version again."""
        self.length: int | None = None  # None until an answer tells it
        self._seen: tuple[int | None, object] | None = None
        self._is_present = False

    @property
    def tells_versions(self) -> bool:
        """Whether subranges may be requested, because the answers tell their versions."""
        return self.extent.tells_versions and self.state.tells_versions

    def _check_head(
        self, num_bytes: int | None, version: object, *, is_subrange: bool
    ) -> Answer | None:
        """Record the length and version that an answer states; see `HeadCheck`.

        If those of a subrange have changed, or it has no version, no run is split any more.
        """
        expected, min_length = self._expected_length, self._min_length
        if num_bytes is None and self.extent.must_tell_length:
            return Answer("unclear", "the store does not tell the length of a file")
        if expected is not None and num_bytes not in (None, expected):
            return Answer("wrong", f"it says that a chunk of {expected} bytes has {num_bytes}")
        if num_bytes is not None and num_bytes < min_length:
            why = f"a chunk ends at {min_length} of an object of {num_bytes} bytes"
            return Answer("wrong", why)
        if num_bytes is None:  # the answer for the index of a shard may have told it
            num_bytes = self.length
        seen, self._seen, self.length = self._seen, (num_bytes, version), num_bytes
        is_changed = seen not in (None, self._seen) or (is_subrange and version is None)
        if is_changed and is_subrange:
            self.state.tells_versions = False
        return CHANGED if is_changed else None

    async def get_range(
        self, start: int, end: int | None, *, is_subrange: bool = False, is_timed: bool = True
    ) -> Answer:
        """Request a range; see `byte_ranges.RangeGetter`. A suffix may be all of a shorter object.

        A request that fails soon is repeated, once, if it is the first one to fail since the store
        has answered, and its client does not repeat it.
        """
        started = time.monotonic()
        check = partial(self._check_head, is_subrange=is_subrange)
        get = partial(self.extent.get, start, end, check)
        answer = await self._request(get, may_repeat=not self.extent.client_repeats)
        if answer.kind != "read":
            return self._changed_if_present(answer)
        num_bytes = answer.raw.nbytes
        self.num_received += num_bytes
        expected = min(-start, self.length or -start) if end is None else end - start
        if num_bytes != expected:
            why = f"it answers with {num_bytes} bytes to a request for {expected}"
            return Answer("wrong", why)
        self._is_present = True
        self.state.record_answer(time.monotonic() - started if is_timed else math.inf)
        return answer

    def _changed_if_present(self, answer: Answer) -> Answer:
        """Return an answer; if it is that the object is missing, it has changed if it was there."""
        if answer.kind == "missing" and self._is_present:
            return Answer("changed", "chunks are deleted while they are read")
        return answer

    async def _request(self, get: Callable[[], Awaitable[Answer]], *, may_repeat: bool) -> Answer:
        started = time.monotonic()
        self.num_requests += 1
        try:
            return await get()
        except Exception as error:  # noqa: BLE001 # stores and their clients raise anything
            raise_interrupt(error)
            may_repeat &= time.monotonic() - started < MAX_SECONDS_TO_REPEAT
            answer = answer_of(error)
        is_first, self.state.is_answering = self.state.is_answering, False
        if answer.kind == "failed" and is_first and may_repeat:
            return await self._request(get, may_repeat=False)
        return answer

    async def fetch(
        self, placed: Sequence[PlacedRuns], policy: GapPolicy, view: UInt8Array | None
    ) -> Answer:
        """Request the runs of plans, and return them end to end; in `view`, if that is given.

        The answer is the first one other than "read", after all requests have ended.
        """
        if not placed:
            return Answer("read")
        max_run_bytes = max([each.plan.run_bytes for each in placed])
        has_one_run = len(placed) == placed[0].plan.num_runs == 1
        runs = None if has_one_run else _runs_of(placed)  # sorting takes 17 us
        num_bytes = max_run_bytes if runs is None else num_bytes_over_gaps(runs, policy.max_gap)
        policy = policy.for_ranges(num_bytes)
        is_split = self.tells_versions and policy.splits(max_run_bytes)
        if runs is None and not is_split:
            return await self._fetch_run(placed[0], view)
        if view is None:
            view = np.empty(sum([each.plan.num_bytes for each in placed]), np.uint8)
        runs = runs or _runs_of(placed)
        if not is_split:
            return await self._fetch_whole_runs(runs, view, policy)
        ranges = subranges(_coalesce(runs, policy), policy.max_range_bytes)
        return await self._fetch_ranges(ranges, view, policy.num_requests, are_subranges=True)

    async def _fetch_run(self, placed: PlacedRuns, view: UInt8Array | None) -> Answer:
        """Request the only run of a plan."""
        start = placed.chunk_start + placed.plan.first_run_offset
        answer = await self.get_range(start, start + placed.plan.run_bytes)
        if view is not None and answer.kind == "read":
            view[:] = answer.raw
        return answer

    async def _fetch_whole_runs(self, runs: Runs, view: UInt8Array, policy: GapPolicy) -> Answer:
        """Request runs, none of which is split.

        If it is not known yet how fast the store is, the first answers decide on the gaps.
        """
        if not policy.is_set_by_user and self.state.least_seconds == math.inf:
            first = list(itertools.islice(_coalesce(runs, policy), policy.num_requests))
            answer = await self._fetch_ranges(iter(first), view, policy.num_requests)
            runs = runs.between(sum([len(each.runs.starts) for each in first]), None)
            if answer.kind != "read" or not len(runs.starts):
                return answer
        policy = policy.for_near_store(self.state.least_seconds, self.state.bytes_per_second)
        return await self._fetch_ranges(_coalesce(runs, policy), view, policy.num_requests)

    async def _fetch_ranges(
        self,
        ranges: Iterator[ByteRange],
        view: UInt8Array,
        num_requests: int,
        *,
        are_subranges: bool = False,
    ) -> Answer:
        """Request ranges, and copy the runs in them to their offsets in the view."""
        answers: list[Answer] = []  # those that are not "read"
        errors: list[Exception] = []
        started, num_before, num_ranges = time.monotonic(), self.num_received, 0

        async def request(each: ByteRange) -> None:
            if answers or errors:  # requests in flight are waited for
                return
            try:
                answer = await self.get_range(each.start, each.end, is_subrange=are_subranges)
                if answer.kind == "read":
                    copy_runs(answer.raw, each, view)
                else:
                    answers.append(answer)
            except Exception as error:  # noqa: BLE001 # it is raised when all have ended
                if not answers:  # after such an answer, it may be a consequence
                    errors.append(error)

        num_prepared = max(MIN_PREPARED, ROUNDS_PREPARED * num_requests)
        while batch := list(itertools.islice(ranges, num_prepared)):
            await concurrent_map([(each,) for each in batch], request, num_requests)
            if errors:
                del errors[1:]
                raise errors.pop()  # a local variable would keep what was fetched
            if answers:
                return self._changed_if_present(answers[0])
            num_ranges += len(batch)
        seconds = time.monotonic() - started
        self.state.record_rate(self.num_received - num_before, num_ranges, seconds)
        return Answer("read", raw=view)


def _runs_of(placed: Sequence[PlacedRuns]) -> Runs:
    plans = [plan for plan, *_ in placed]
    starts = np.concatenate([plan.starts(start) for plan, start, _ in placed])
    lengths = np.repeat([plan.run_bytes for plan in plans], [plan.num_runs for plan in plans])
    return sorted_runs(starts, lengths)


def _coalesce(runs: Runs, policy: GapPolicy) -> Iterator[ByteRange]:
    return coalesce(runs, max_gap=policy.max_gap, max_range_bytes=policy.max_range_bytes)
