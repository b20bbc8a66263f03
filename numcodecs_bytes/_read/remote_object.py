"""An object that is requested: its ranges, and whether the answers agree."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.plan import PlacedRuns
from numcodecs_bytes._plan.ranges import (
    ByteRange,
    Runs,
    coalesce,
    copy_runs,
    num_bytes_over_gaps,
    num_subranges,
    sorted_runs,
)
from numcodecs_bytes._read.budget import Budget
from numcodecs_bytes._sources.byte_ranges import is_refusal, text_of
from numcodecs_bytes._sources.store_states import (
    Changed,
    Missing,
    RequestError,
    Unexpected,
    state_of,
)
from numcodecs_bytes._sources.stores import ObjectExtent

# How many requests are prepared at a time, at least: each takes 2 KiB, and there may be millions.
# All are waited for before the next are prepared, so they are several rounds of those in flight:
# with 1,000 in flight, 30 ms away, 4,096 took 0.52 s, and 0.57 if 1,024 were prepared at a time.
MIN_PREPARED = 1 << 10
ROUNDS_PREPARED = 8

# A request that takes longer until it fails is not repeated: a read of a store that is down would
# take three times as long as with zarr alone.
PATIENCE_SECONDS = 1.0


class RemoteObject:
    """An object while it is read: all answers must state the same version and length."""

    def __init__(self, remote: ObjectExtent, expected: int | None = None, least: int = 0) -> None:
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

    def _note_head(self, num_bytes: int | None, version: object) -> None:
        """Note the length and version that an answer states; raise if they are not as expected."""
        if num_bytes is None and self.remote.must_tell_length:
            raise LeftToZarr("the store does not tell the length of a file")
        if self._expected is not None and num_bytes not in (None, self._expected):
            raise Unexpected(f"it says that a chunk of {self._expected} bytes has {num_bytes}")
        if num_bytes is not None and num_bytes < self._least:
            raise Unexpected(f"a chunk ends at {self._least} of an object of {num_bytes} bytes")
        if num_bytes is None:  # the answer for the index of a shard may have told it
            num_bytes = self.length
        has_changed = self._seen not in (None, (num_bytes, version))
        self._seen, self.length = (num_bytes, version), num_bytes
        if self._is_split and (has_changed or version is None):  # parts can't be compared
            self.state.tells_versions = False  # from now on, no range is split
            has_changed = True
        if has_changed:
            raise Changed("chunks are overwritten all the time, or each answer has another version")

    async def ask(self, start: int, end: int | None, *, is_timed: bool = True) -> UInt8Array:
        """Return a range; see `requests.Get`. A suffix may be all of a shorter object.

        A request that fails soon is repeated, once, if it is the first one to fail since the store
        has answered, and its client does not repeat it. Raises `RequestError` if it fails again,
        and `Unexpected` for any other answer than the range.
        """
        begin = time.monotonic()
        may_repeat = not self.remote.client_repeats
        raw = await self._get(start, end, may_repeat=may_repeat)
        if raw is None and self._is_present:
            raise Changed("chunks are deleted while they are read")
        if raw is None:
            raise Missing("chunks are missing if parts of them are requested")
        self.num_received += raw.nbytes
        expected = min(-start, self.length or -start) if end is None else end - start
        if raw.nbytes != expected:
            raise Unexpected(f"it answers with {raw.nbytes} bytes to a request for {expected}")
        self._is_present = True
        self.state.note_answer()
        if is_timed:
            self.state.note_seconds(time.monotonic() - begin)
        return raw

    async def _get(self, start: int, end: int | None, *, may_repeat: bool) -> UInt8Array | None:
        begin = time.monotonic()
        self.num_requests += 1
        try:
            return await self.remote.get(start, end, self._note_head)
        except LeftToZarr:
            raise
        except Exception as error:  # noqa: BLE001 # stores and their clients raise anything
            may_repeat &= time.monotonic() - begin < PATIENCE_SECONDS
            kind = Unexpected if is_refusal(error) else RequestError
            why = text_of(error)
        is_first, self.state.is_answering = self.state.is_answering, False
        if kind is RequestError and is_first and may_repeat:
            return await self._get(start, end, may_repeat=False)
        raise kind(why)

    async def fetch(
        self, placed: Sequence[PlacedRuns], budget: Budget, memory: UInt8Array | None
    ) -> list[UInt8Array]:
        """Return the runs of each plan, end to end; in `memory`, if that is given.

        Raises what `ask` does, after all requests end.
        """
        if not placed:
            return []
        plans = [plan for plan, *_ in placed]
        num_bytes = [plan.num_bytes for plan in plans]
        longest_run = max([plan.run_bytes for plan in plans])
        may_split = self.may_split() and not budget.is_exact
        is_one_run = len(plans) == plans[0].num_runs == 1
        if is_one_run and not (may_split and budget.would_split(longest_run)):
            start = placed[0].start + plans[0].first_run_offset
            raw = await self.ask(start, start + longest_run)
            if memory is not None:
                memory[:] = raw
            return [raw]
        starts = np.concatenate([plan.starts(start) for plan, start, _ in placed])
        lengths = np.repeat([p.run_bytes for p in plans], [p.num_runs for p in plans])
        memory = np.empty(sum(num_bytes), np.uint8) if memory is None else memory
        runs = sorted_runs(starts, lengths)
        longest = budget.longest(num_bytes_over_gaps(runs, budget.max_gap))
        self._is_split = may_split and num_subranges(longest_run, longest) > 1
        if self._is_split or budget.is_exact:
            ranges = coalesce(runs, max_gap=budget.max_gap, longest=longest, may_split=may_split)
            await self._fetch_ranges(ranges, memory, budget.num_requests)
        else:
            await self._fetch_runs(runs, memory, budget, longest)
        return np.split(memory, np.cumsum(num_bytes)[:-1])

    async def _fetch_runs(
        self, runs: Runs, memory: UInt8Array, budget: Budget, longest: int
    ) -> None:
        """Request runs, none of which is split, and copy them to their places in memory.

        If it is not known yet how fast the store is, the first answers decide on the gaps.
        """
        num_done = 0
        while num_done < len(runs.starts):
            max_gap, most = budget.gap_and_longest(longest, self.state.near_gap())
            rest = runs.between(num_done, None)
            ranges = coalesce(rest, max_gap=max_gap, longest=most, may_split=False)
            if self.state.least_seconds == math.inf:
                ranges = itertools.islice(ranges, budget.num_requests)
            num_done += await self._fetch_ranges(ranges, memory, budget.num_requests)

    async def _fetch_ranges(
        self, ranges: Iterator[ByteRange], memory: UInt8Array, num_requests: int
    ) -> int:
        """Request ranges, and copy the runs in them to their places in memory; count the runs."""
        errors: list[Exception] = []
        begin, num_before = time.monotonic(), self.num_received
        num_runs = num_ranges = 0

        async def request(each: ByteRange) -> None:
            if errors:  # those in flight are waited for
                return
            try:
                copy_runs(await self.ask(each.start, each.end), each, memory)
            except Exception as error:  # noqa: BLE001 # raised when all have ended
                errors.append(error)

        num_prepared = max(MIN_PREPARED, ROUNDS_PREPARED * num_requests)
        while batch := list(itertools.islice(ranges, num_prepared)):
            await concurrent_map([(each,) for each in batch], request, num_requests)
            if errors:
                self._raise_first(errors)
            num_ranges += len(batch)
            num_runs += sum([len(each.runs.starts) for each in batch])
        self.state.note_rate(self.num_received - num_before, num_ranges, time.monotonic() - begin)
        return num_runs

    def _raise_first(self, errors: list[Exception]) -> NoReturn:
        """Raise the first error of several requests; those after it may be its consequences."""
        del errors[1:]
        if self._is_present and isinstance(errors[0], Missing):
            raise Changed("chunks are deleted while they are read")
        raise errors.pop()  # a local variable would keep what was fetched
