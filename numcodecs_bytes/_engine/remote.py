"""Reads selections of chunks, and of shards, that are requested from stores.

An object is a chunk, a shard, or part of a file that references point into. Its runs are coalesced
into ranges, requested at once, and must be of one version. If a request is not answered properly,
zarr reads that object, and those not requested yet, when all requests in flight have ended.
"""

import asyncio
import collections
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np
import zarr
from zarr.core.common import concurrent_map

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.batch import Batch
from numcodecs_bytes._engine.files import Left
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.output import memory_of, place_within, write_selected
from numcodecs_bytes._engine.plan import Plan, Where, plan_of
from numcodecs_bytes._engine.selection import Indices
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._engine.stores import Remote, sources_of
from numcodecs_bytes._engine.strikes import Changed, Failed, Missing, Unexpected, is_lost, state_of
from numcodecs_bytes._names import add_name
from numcodecs_bytes._options import max_gap_bytes
from numcodecs_bytes._zarr_versions import fill_value_or_default

# Lets zarr read chunks of a batch, given what was requested of each; returns whether each exists.
ReadWhole = Callable[[Sequence[int], Sequence[_trace.Fetched]], Awaitable[Sequence[bool]]]


_Part = tuple[Plan, int, Where]  # what to read, the offset of its chunk, where it belongs
_Found = tuple[int, int, Remote]  # the offset of a chunk, its index in the batch, its source

_in_flight = threading.local()  # how many objects the event loop of a thread reads at once


class Share(NamedTuple):
    """An object's share of zarr's `async.concurrency`."""

    num_requests: int
    gap: int  # the largest gap over which runs are requested together, in bytes
    is_exact: bool  # whether the user has set the gap: then no range is split

    @classmethod
    def of(cls, num_in_flight: int) -> "Share":
        """Return the share of each object if `num_in_flight` of them are read at once."""
        limit = zarr.config.get("async.concurrency") or constants.UNLIMITED
        num, gap = max(1, limit // num_in_flight), max_gap_bytes()
        return cls(num, constants.LATENCY_BYTES // num if gap is None else gap, gap is not None)

    def most(self, num_bytes: int) -> int:
        """Return the largest length of a range, if all ranges have `num_bytes` together."""
        if self.is_exact:
            return sys.maxsize
        return max(constants.PART_BYTES, -(-num_bytes // self.num_requests))


class Object:
    """An object while it is read: all answers must tell the same version and the same length."""

    def __init__(self, remote: Remote, num_bytes: int | None = None, least: int = 0) -> None:
        """Take the length that it must have, if that is known, and the least that it may have."""
        self.remote, self.state = remote, state_of(remote.store)
        self.num_requests = self.num_bytes = 0  # requests made, and bytes received
        self._expected, self._least = num_bytes, least
        self.forget()

    def forget(self) -> None:
        """Accept any version again."""
        self.length: int | None = None  # if the answers tell it
        self._told: tuple[int | None, object] | None = None
        self._has_answered = self._is_split = False

    def may_split(self) -> bool:
        """Whether the versions of parts of a range can be compared."""
        return self.remote.tells_versions and self.state.tells_versions

    def _check(self, num_bytes: int | None, version: object) -> None:
        """Raise if an answer tells another length or version than expected."""
        if self._expected is not None and num_bytes not in (None, self._expected):
            raise Unexpected(f"it says that a chunk of {self._expected} bytes has {num_bytes}")
        if num_bytes is not None and num_bytes < self._least:
            raise Unexpected(f"a chunk ends at {self._least} of an object of {num_bytes} bytes")
        is_comparable = version is not None or not self._is_split
        is_same = is_comparable and self._told in (None, (num_bytes, version))
        self._told, self.length = (num_bytes, version), num_bytes
        if self._is_split and not is_same:
            self.state.tells_versions = False  # from now on, no range is split
        if not is_same:
            raise Changed("chunks are overwritten all the time, or each answer has another version")

    async def ask(self, start: int, end: int | None) -> UInt8Array:
        """Return a range; see `stores.Get`.

        Raises `Unexpected` for any other answer, and for an error that comes soon. If a connection
        is lost after a long time, raises the store's error, so that zarr does not ask again.
        """
        begin = time.monotonic()
        self.num_requests += 1
        try:
            raw = await self.remote.get(start, end, self._check)
        except Left:
            raise
        except Exception as error:  # stores and their clients raise anything
            is_long = time.monotonic() - begin > constants.PATIENCE_SECONDS
            if is_long and self.state.answers and is_lost(error):
                raise
            first_line = traceback.format_exception_only(error)[0].partition("\n")[0]
            raise Failed(first_line[:200]) from None  # `str` of an error may fail
        if raw is None and self._has_answered:
            raise Changed("chunks are deleted while they are read")
        if raw is None:
            raise Missing("chunks are missing if parts of them are requested")
        self.num_bytes += raw.nbytes
        expected = -start if end is None else end - start
        if raw.nbytes != expected:
            raise Unexpected(f"it answers with {raw.nbytes} bytes to a request for {expected}")
        self.state.answers = self._has_answered = True
        return raw

    async def fetch(
        self, parts: list[_Part], share: Share, most: int, memory: Any
    ) -> list[UInt8Array]:
        """Return the runs of each part, end to end; put those of several ranges into `memory`.

        A range over gaps has at most `most` bytes. Raises what `ask` does, after all requests end.
        """
        num_bytes = [plan.num_bytes for plan, *_ in parts]
        longest = most if self.may_split() else sys.maxsize
        (plan, start, _), *others = parts
        if plan.num_runs == 1 and not others and _num_parts(plan.length, longest) == 1:
            start += plan.start
            return [await self.ask(start, start + plan.length)]
        starts: Indices = np.concatenate([plan.starts(start) for plan, start, _ in parts])
        lengths = np.repeat([p.length for p, *_ in parts], [p.num_runs for p, *_ in parts])
        ranges = list(_ranges(starts, lengths, share.gap, most, longest))
        self._is_split = _num_parts(int(lengths.max(initial=0)), longest) > 1
        memory = np.empty(sum(num_bytes), np.uint8) if memory is None else memory
        to = np.cumsum(lengths) - lengths
        errors = list[Exception]()

        async def get(at: Indices, start: int, end: int) -> None:
            if errors:  # those in flight are waited for
                return
            try:
                raw = await self.ask(start, end)
            except Exception as error:  # noqa: BLE001 # raised when all have ended
                errors.append(error)
            else:
                _copy_runs(raw, starts[at] - start, memory, to[at], lengths[at])

        await concurrent_map(ranges, get, share.num_requests)
        if errors:
            self._raise_first(errors)
        return np.split(memory, np.cumsum(num_bytes)[:-1])

    def _raise_first(self, errors: list[Exception]) -> NoReturn:
        """Raise the first error of several requests; those after it may be its consequences."""
        del errors[1:]
        if self._has_answered and isinstance(errors[0], Missing):
            raise Changed("chunks are deleted while they are read")
        if self._has_answered and not isinstance(errors[0], Left):
            raise Unexpected("it loses connections")  # with many requests, one is lost more often
        raise errors.pop()  # a local variable would keep what was fetched


def _num_parts(num_bytes: int, most: int) -> int:
    """Return how many requests to make for a range."""
    return max(1, round(num_bytes / most))


def _ranges(
    starts: Indices, lengths: Indices, gap: int, most: int, longest: int
) -> Iterator[tuple[Indices, int, int]]:
    """Yield, for each range, the runs in it, its first byte, and its end.

    Runs with gaps of up to `gap` bytes share a range, if that has up to `most` bytes. A run of more
    than `longest` bytes is split into several ranges.
    """
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], (starts + lengths)[order]
    # Where a run ends, or an earlier one that overlaps it: chunks of a shard may share bytes.
    reached = np.maximum.accumulate(ends)
    after_gaps = np.append(np.flatnonzero(starts[1:] - reached[:-1] > gap) + 1, len(starts))
    first = 0
    while first < len(starts):
        begin = int(starts[first])
        last = int(np.searchsorted(reached, min(begin + most, sys.maxsize), side="right"))
        after_gap = int(after_gaps[np.searchsorted(after_gaps, first, side="right")])
        after = min(after_gap, max(last, first + 1))
        end = int(ends[first:after].max())
        step = -(-(end - begin) // _num_parts(end - begin, longest))
        for start in range(begin, end, step):
            yield order[first:after], start, min(start + step, end)
        first = after


def _copy_runs(
    raw: UInt8Array, starts: Indices, memory: UInt8Array, to: Indices, lengths: Indices
) -> None:
    """Copy the runs that begin at `starts` in a range; a single run may begin before it."""
    if len(starts) == 1:
        begin = to[0] - starts[0]
        memory[begin : begin + len(raw)] = raw
        return
    for length in np.unique(lengths).tolist():
        # The run that would begin at each byte. Unlike as_strided, this can't exceed the memory.
        kind, some = f"V{length}", lengths == length
        here: Any = np.ndarray(len(raw) - length + 1, kind, raw, strides=(1,))
        there: Any = np.ndarray(len(memory) - length + 1, kind, memory, strides=(1,))
        there[to[some]] = here[starts[some]]


class _Job(NamedTuple):
    """What is read of an object: chunks of the batch, and where each begins in it."""

    target: Object
    chunks: Sequence[int]
    starts: Sequence[int]
    stored: Layout | Shard
    plans: Sequence[Plan]
    share: Share
    most: int  # the largest length of a range over gaps, in bytes
    is_whole: bool  # whether zarr's own request is as good


async def read(
    batch: Batch, left: Sequence[int], read_whole: ReadWhole, metadata: str
) -> list[bool | None]:
    """Read the selections of the chunks `left`, which are requested from a store, into the output.

    `metadata` is the name of the array's metadata document. Returns whether each chunk of the batch
    exists, or None if it is left to zarr. Raises whatever zarr raises if it can't read a chunk, and
    whatever the store raises if a connection is lost.
    """
    limit = zarr.config.get("async.concurrency")
    num = min(len(left), limit or constants.UNLIMITED)
    in_flight = vars(_in_flight)  # of this thread, even if another one closes this coroutine
    in_flight["num"] = in_flight.get("num", 0) + num
    try:
        await asyncio.sleep(0)  # reads that were started with this one begin, and are counted
        exist: list[bool | None] = [None] * len(batch.items)
        reader = _Reader(batch, read_whole, metadata, exist, Share.of(in_flight["num"]))
        jobs = [(job,) for job in reader.jobs(left)]
        if not all([job.is_whole for (job,) in jobs]):  # noqa: C419 # else zarr reads all together
            await concurrent_map(jobs, reader.read, limit)
    finally:
        in_flight["num"] -= num
    if reader.errors and not isinstance(reader.errors[0], Unexpected):
        raise reader.errors.pop()
    await reader.read_rest(left)
    return exist


@dataclass
class _Reader:
    """Reads objects that hold chunks of a batch; see `read`."""

    batch: Batch
    read_whole: ReadWhole
    metadata: str
    exist: list[bool | None]
    share: Share
    alone: Share = field(default_factory=lambda: Share.of(1))
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    errors: list[Exception] = field(default_factory=list)  # the first one, if any
    fetched: dict[int, _trace.Fetched] = field(default_factory=dict)  # for chunks left to zarr

    def jobs(self, left: Sequence[int]) -> Iterator[_Job]:
        """Yield what to read: single chunks, or chunks that are side by side in an object."""
        worth = 0 if self.share.is_exact else constants.WORTH_BYTES
        together = collections.defaultdict[Any, list[_Found]](list)
        for k in left:
            remote, stored = self.batch.sources[k], self.batch.stored_as(self.batch.items[k][1])
            if not isinstance(remote, Remote):
                continue
            if remote.num_bytes is not None:
                if isinstance(stored, Layout) and 0 < remote.num_bytes == stored.num_bytes:
                    together[remote.key or k, stored].append((remote.start, k, remote))
            elif isinstance(stored, Shard) or stored.num_bytes > worth:
                yield self._job([(0, k, remote)], stored, worth)
        total = sum([len(found) * layout.num_bytes for (_, layout), found in together.items()])
        for (_, layout), found in together.items():
            for group in self._groups(found, layout.num_bytes, total):
                yield self._job(group, layout, worth)

    def _groups(self, found: list[_Found], num_bytes: int, total: int) -> Iterator[list[_Found]]:
        """Yield groups of chunks that are side by side, small enough to keep all requests busy."""
        gap = self.alone.gap if self.alone.is_exact else constants.BESIDE_BYTES
        most = min(constants.PART_BYTES, total // self.alone.num_requests) // num_bytes
        group = list[_Found]()
        for one in sorted(found, key=lambda one: one[:2]):
            between = one[0] - group[-1][0] - num_bytes if group else 0
            if group and (not 0 <= between <= gap or len(group) >= most):
                yield group
                group = []
            group.append(one)
        yield group

    def _job(self, found: list[_Found], stored: Layout | Shard, worth: int) -> _Job:
        """Plan how to read chunks in an object, in part if that saves more than `worth` bytes."""
        starts, chunks, (remote, *_) = zip(*found, strict=True)
        selections = [self.batch.items[k][2] for k in chunks]
        drop_axes, share = self.batch.drop_axes, self.share
        plans: list[Any] = []
        if isinstance(stored, Shard):
            share, worth = self.alone, self.alone.gap  # zarr, too, gives each shard that much
            with contextlib.suppress(Left):  # raised again when the shard is read
                items = stored.items_of(selections[0], drop_axes, share.gap)
                plans = [plan for plan, _ in items.plans]
            target, num_all = Object(remote), stored.num_chunks
        else:
            if len(chunks) > 1:  # the gap within each is that of a chunk that is read alone
                share = share._replace(gap=self.alone.gap)
            plans = [plan_of(each, stored, drop_axes, share.gap) for each in selections]
            num_all, end = 1, starts[-1] + stored.num_bytes
            target = Object(remote, end if remote.num_bytes is None else None, least=end)
        if None in plans:  # a selection of an unknown kind
            return _Job(target, chunks, starts, stored, plans, share, 0, is_whole=True)
        num_bytes, most = sum([plan.num_bytes for plan in plans]), share.most(stored.num_bytes)
        is_split = target.may_split() and _num_parts(stored.num_bytes, most) > 1
        is_all = len(plans) == num_all and stored.num_bytes - num_bytes <= worth
        is_whole = is_all and not is_split
        if isinstance(stored, Layout) and not is_whole:  # longer gaps are fetched, but not copied
            gap = min(share.gap, constants.COPIED_GAP_BYTES)
            plans = [plan_of(each, stored, drop_axes, gap) for each in selections]
        most = share.most(num_bytes)
        return _Job(target, chunks, starts, stored, plans, share, most, is_whole)

    async def read(self, job: _Job) -> None:
        """Read an object, or let zarr read it; note the errors of either."""
        target = job.target
        if self.errors or target.state.why_struck:
            return
        try:
            if job.is_whole:
                await self._let_zarr_read(job.chunks, [_trace.Fetched()] * len(job.chunks))
            else:
                await self._read_or_fill(job)
        except Left as why:
            if isinstance(why, Unexpected):
                self._note_error(why.with_traceback(None))
            fetched = _trace.Fetched(target.num_requests, target.num_bytes, str(why))
            self.fetched[job.chunks[0]] = fetched
        except Exception as error:  # noqa: BLE001 # raised when all have ended
            add_name(error, self.batch.items[job.chunks[0]][0])
            self._note_error(error)

    def _note_error(self, error: Exception) -> None:
        """Keep the first error, which decides; the frames of others would keep what was fetched."""
        if not self.errors:
            self.errors.append(error)

    async def read_rest(self, left: Sequence[int]) -> None:
        """Let zarr read what could not be read; if that works, the first failure is a strike."""
        if not self.fetched:
            return
        rest = [k for k in left if self.exist[k] is None]
        others = _trace.Fetched(why=str(self.errors[0]) if self.errors else "")
        await self._let_zarr_read(rest, [self.fetched.get(k, others) for k in rest])
        if self.errors:
            store = self.batch.items[rest[0]][0].store
            state_of(store).strike(store, self.errors[0])

    async def _let_zarr_read(self, chunks: Sequence[int], fetched: list[_trace.Fetched]) -> None:
        for k, exists in zip(chunks, await self.read_whole(chunks, fetched), strict=True):
            self.exist[k] = exists

    async def _read_or_fill(self, job: _Job) -> None:
        try:
            try:
                await self._read(job)
            except Changed:
                job.target.forget()
                await self._read(job)
        except Missing:
            if job.target.remote.num_bytes is not None or not await self._is_believed(job):
                raise
            self.batch.fill_missing(job.chunks[0])
            self._note(job, exists=False)

    async def _is_believed(self, job: _Job) -> bool:
        """Whether the store answers ranges; if need be, request a byte of the array's metadata."""
        state = job.target.state
        async with self.asking:
            if not state.answers and not self.errors:  # else another job has asked
                byte_getter, spec, *_ = self.batch.items[job.chunks[0]]
                path = _trace.path_of_array(byte_getter.path, len(spec.shape))
                source_of = sources_of(byte_getter.store)
                source = source_of(f"{path}/{self.metadata}".lstrip("/"))
                if isinstance(source, Remote):  # else the store has been given up meanwhile
                    job.target.num_requests += 1
                    with contextlib.suppress(Left):
                        await Object(source).ask(0, 1)
        return state.answers

    async def _read(self, job: _Job) -> None:
        """Read an object; raise `Left` if it is left to zarr."""
        out, stored, alone = self.batch.out, job.stored, None
        if isinstance(stored, Shard):
            layout = stored.layout
            parts, alone = await self._parts_of_shard(job, stored)
        else:
            layout = stored
            parts = list(zip(job.plans, job.starts, map(self.batch.place, job.chunks), strict=True))
        memory = memory_of(out, parts[0][2], parts[0][0], layout) if len(parts) == 1 else None
        runs = await job.target.fetch(parts, job.share, job.most, memory) if parts else []
        for raw, (plan, _, place) in zip(runs, parts, strict=True):
            if memory is None or not np.may_share_memory(raw, memory):
                write_selected(raw, plan, layout, out, place)
        self._note(job, alone)

    async def _parts_of_shard(self, job: _Job, shard: Shard) -> tuple[list[_Part], int]:
        """Return what to read of a shard, by its index, and how many bytes zarr alone reads."""
        k, target, num = job.chunks[0], job.target, shard.index_bytes
        _, spec, selection, *_ = self.batch.items[k]
        items = shard.items_of(selection, self.batch.drop_axes, job.share.gap)
        is_first = shard.index_range(num + 1)[0] == 0
        index = await target.ask(0 if is_first else -num, num if is_first else None)
        try:
            entries = shard.decode_index(index)
        except Left as why:
            raise Unexpected(str(why)) from None
        length, place = target.length or sys.maxsize, self.batch.place(k)
        parts, missing, num_alone = shard.parts_of(entries, items, length)
        for where in missing:
            self.batch.out[place_within(place, where)] = fill_value_or_default(spec)
        placed = [(plan, start, place_within(place, where)) for plan, start, where in parts]
        return placed, num_alone

    def _note(self, job: _Job, alone: int | None = None, *, exists: bool = True) -> None:
        """Note that chunks were read, and tell `numcodecs_bytes.trace` what was requested."""
        fetched = _trace.Fetched(job.target.num_requests, job.target.num_bytes, "", alone)
        for k in job.chunks:
            self.exist[k] = exists
            self.batch.note(k, fetched, exists=exists)
            fetched = _trace.Fetched()  # the others are read with the first
