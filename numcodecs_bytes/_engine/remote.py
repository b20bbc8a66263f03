"""Reads selections of chunks, and of shards, that are requested from stores.

An object is a chunk, a shard, or a file that references point into. Its runs are coalesced into
ranges, requested at once, and must be of one version. If a request is not answered properly, zarr
reads that object, and those not requested yet, when all requests in flight have ended.
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
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import zarr
from zarr.core.common import concurrent_map

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.chunks import Batch, ChunkRead
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.output import memory_of, place_within, write_selected
from numcodecs_bytes._engine.plan import Plan, Where, plan_of
from numcodecs_bytes._engine.ranges import Range, coalesce, copy_runs, num_parts, sorted_runs
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._engine.stores import Remote, sources_of
from numcodecs_bytes._engine.strikes import Changed, Failed, Missing, Unexpected, is_lost, state_of
from numcodecs_bytes._names import add_name
from numcodecs_bytes._options import max_gap_bytes
from numcodecs_bytes._trace import Fetched
from numcodecs_bytes._zarr_versions import fill_value_or_default

# Lets zarr read chunks that were left to it, and notes what became of them.
ReadByZarr = Callable[[Sequence[ChunkRead]], Awaitable[None]]

_in_flight = threading.local()  # how many objects the event loop of a thread reads at once


class Part(NamedTuple):
    """What is read of an object: the runs of a plan."""

    plan: Plan
    start: int  # the offset of its chunk in the object, in bytes
    place: Where  # in the output


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
        self, parts: Sequence[Part], share: Share, most: int, memory: UInt8Array | None
    ) -> list[UInt8Array]:
        """Return the runs of each part, end to end; put those of several ranges into `memory`.

        A range over gaps has at most `most` bytes. Raises what `ask` does, after all requests end.
        """
        longest = most if self.may_split() else sys.maxsize
        plan, start, _ = parts[0]
        is_one_run = len(parts) == plan.num_runs == 1
        if is_one_run and num_parts(plan.length, longest) == 1:
            start += plan.start
            return [await self.ask(start, start + plan.length)]
        starts = np.concatenate([part.plan.starts(part.start) for part in parts])
        lengths = np.repeat([p.plan.length for p in parts], [p.plan.num_runs for p in parts])
        runs = sorted_runs(starts, lengths)
        ranges = list(coalesce(runs, gap=share.gap, most=most, longest=longest))
        self._is_split = num_parts(int(lengths.max(initial=0)), longest) > 1
        num_bytes = [part.plan.num_bytes for part in parts]
        memory = np.empty(sum(num_bytes), np.uint8) if memory is None else memory
        await self._fetch_ranges(ranges, memory, share.num_requests)
        return np.split(memory, np.cumsum(num_bytes)[:-1])

    async def _fetch_ranges(
        self, ranges: Sequence[Range], memory: UInt8Array, num_requests: int
    ) -> None:
        """Request ranges, and copy the runs in them to their places in memory."""
        errors = list[Exception]()

        async def fetch(fetched: Range) -> None:
            if errors:  # those in flight are waited for
                return
            try:
                raw = await self.ask(fetched.start, fetched.end)
            except Exception as error:  # noqa: BLE001 # raised when all have ended
                errors.append(error)
            else:
                copy_runs(raw, fetched, memory)

        await concurrent_map([(each,) for each in ranges], fetch, num_requests)
        if errors:
            self._raise_first(errors)

    def _raise_first(self, errors: list[Exception]) -> NoReturn:
        """Raise the first error of several requests; those after it may be its consequences."""
        del errors[1:]
        if self._has_answered and isinstance(errors[0], Missing):
            raise Changed("chunks are deleted while they are read")
        if self._has_answered and not isinstance(errors[0], LeftToZarr):
            raise Unexpected("it loses connections")  # with many requests, one is lost more often
        raise errors.pop()  # a local variable would keep what was fetched


class ObjectRead(NamedTuple):
    """What is read of an object: chunks that it holds, and the plan for each; or a shard."""

    target: Object
    chunks: Sequence[ChunkRead]
    plans: Sequence[Plan]  # none for a shard, whose index says where its inner chunks are
    share: Share
    most: int  # the largest length of a range over gaps, in bytes
    is_whole: bool  # whether zarr's own request is as good


async def read(
    batch: Batch, chunks: Sequence[ChunkRead], read_by_zarr: ReadByZarr, metadata: str
) -> None:
    """Read the selections of chunks that are requested, and note what became of each.

    `metadata` is the name of the array's metadata document. Raises whatever zarr raises if it can't
    read a chunk, and whatever the store raises if a connection is lost.
    """
    limit = zarr.config.get("async.concurrency")
    num = min(len(chunks), limit or constants.UNLIMITED)
    in_flight = vars(_in_flight)  # of this thread, even if another one closes this coroutine
    in_flight["num"] = in_flight.get("num", 0) + num
    try:
        await asyncio.sleep(0)  # reads that were started with this one begin, and are counted
        reader = _Reader(batch, read_by_zarr, metadata, Share.of(in_flight["num"]))
        reads = [(each,) for each in reader.plan(chunks)]
        if not all(each.is_whole for (each,) in reads):  # else zarr reads all together
            await concurrent_map(reads, reader.read, limit)
    finally:
        in_flight["num"] -= num
    if reader.errors and not isinstance(reader.errors[0], Unexpected):
        raise reader.errors.pop()
    await reader.read_rest(chunks)


@dataclass
class _Reader:
    """Reads objects that hold chunks of a batch; see `read`."""

    batch: Batch
    read_by_zarr: ReadByZarr
    metadata: str
    share: Share
    share_alone: Share = field(default_factory=lambda: Share.of(1))
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    errors: list[Exception] = field(default_factory=list)  # the first one, if any

    def plan(self, chunks: Sequence[ChunkRead]) -> Iterator[ObjectRead]:
        """Yield what to read: single chunks, or chunks that are side by side in an object."""
        beside = collections.defaultdict[Any, list[ChunkRead]](list)
        for chunk in chunks:
            remote = _remote_of(chunk)
            if remote.num_bytes is not None:
                is_right = isinstance(chunk.stored, Layout)
                if is_right and 0 < remote.num_bytes == chunk.stored.num_bytes:
                    beside[remote.key or id(chunk), chunk.stored].append(chunk)
            elif isinstance(chunk.stored, Shard):
                yield from self._planned(partial(self._plan_shard, chunk, chunk.stored), [chunk])
            elif chunk.stored.num_bytes > self._worth():
                plan = partial(self._plan_chunks, [chunk], chunk.stored)
                yield from self._planned(plan, [chunk])
        total = sum([len(group) * layout.num_bytes for (_, layout), group in beside.items()])
        for (_, layout), found in beside.items():
            for group in self._groups(found, layout.num_bytes, total):
                yield from self._planned(partial(self._plan_chunks, group, layout), group)

    def _planned(
        self, plan: Callable[[], ObjectRead], chunks: list[ChunkRead]
    ) -> Iterator[ObjectRead]:
        """Yield what to read of an object, unless its chunks are left to zarr."""
        try:
            yield plan()
        except LeftToZarr as why:
            for chunk in chunks:
                chunk.leave(why)

    def _worth(self) -> int:
        """Return how much a range must save of a chunk, in bytes."""
        return 0 if self.share.is_exact else constants.WORTH_BYTES

    def _groups(
        self, chunks: list[ChunkRead], num_bytes: int, total: int
    ) -> Iterator[list[ChunkRead]]:
        """Yield groups of chunks that are side by side, small enough to keep all requests busy."""
        gap = self.share_alone.gap if self.share_alone.is_exact else constants.BESIDE_BYTES
        most = min(constants.PART_BYTES, total // self.share_alone.num_requests) // num_bytes
        group = list[ChunkRead]()
        for chunk in sorted(chunks, key=lambda chunk: _remote_of(chunk).start):
            end = _remote_of(group[-1]).start + num_bytes if group else 0
            is_beside = 0 <= _remote_of(chunk).start - end <= gap
            if group and (not is_beside or len(group) >= most):
                yield group
                group = []
            group.append(chunk)
        yield group

    def _plan_shard(self, chunk: ChunkRead, shard: Shard) -> ObjectRead:
        """Plan how to read a shard, in part if that saves more than a request is worth."""
        share = self.share_alone  # zarr, too, gives each shard that much
        target = Object(_remote_of(chunk))
        items = shard.items_of(chunk.selection, self.batch.out.drop_axes, share.gap)
        num_bytes = sum([plan.num_bytes for plan in items.plan_of_each])
        is_all = len(items.plan_of_each) == shard.num_chunks
        is_whole = is_all and shard.num_bytes - num_bytes <= share.gap
        if is_whole and self._is_split(target, shard.num_bytes, share):
            is_whole = False
        return ObjectRead(target, [chunk], [], share, share.most(num_bytes), is_whole)

    def _plan_chunks(self, chunks: list[ChunkRead], layout: Layout) -> ObjectRead:
        """Plan how to read chunks in an object, in part if that saves enough."""
        remote, share = _remote_of(chunks[0]), self.share
        end = _remote_of(chunks[-1]).start + layout.num_bytes
        target = Object(remote, end if remote.num_bytes is None else None, least=end)
        if len(chunks) > 1:  # the gap within each is that of a chunk that is read alone
            share = share._replace(gap=self.share_alone.gap)
        plans = self._plans(chunks, layout, share.gap)
        num_bytes = sum([plan.num_bytes for plan in plans])
        is_all = len(chunks) == 1 and layout.num_bytes - num_bytes <= self._worth()
        if is_all and not self._is_split(target, layout.num_bytes, share):
            return ObjectRead(target, chunks, plans, share, share.most(num_bytes), is_whole=True)
        # Longer gaps are fetched, but not copied.
        plans = self._plans(chunks, layout, min(share.gap, constants.COPIED_GAP_BYTES))
        return ObjectRead(target, chunks, plans, share, share.most(num_bytes), is_whole=False)

    def _plans(self, chunks: list[ChunkRead], layout: Layout, gap: int) -> list[Plan]:
        drop_axes = self.batch.out.drop_axes
        return [plan_of(chunk.selection, layout, drop_axes, gap) for chunk in chunks]

    def _is_split(self, target: Object, num_bytes: int, share: Share) -> bool:
        """Whether a whole object would be requested in several parts."""
        return target.may_split() and num_parts(num_bytes, share.most(num_bytes)) > 1

    async def read(self, planned: ObjectRead) -> None:
        """Read an object, or let zarr read it; note the errors of either."""
        target, first = planned.target, planned.chunks[0]
        if self.errors or target.state.why_struck:
            return
        try:
            if planned.is_whole:
                await self.read_by_zarr(planned.chunks)
            else:
                await self._read_or_fill(planned)
        except LeftToZarr as why:
            if isinstance(why, Unexpected):
                self._note_error(why.with_traceback(None))
            for chunk in planned.chunks:
                chunk.leave(why)
            first.fetched = Fetched(target.num_requests, target.num_bytes)
        except Exception as error:  # noqa: BLE001 # raised when all have ended
            add_name(error, first.getter)
            self._note_error(error)

    def _note_error(self, error: Exception) -> None:
        """Keep the first error, which decides; the frames of others would keep what was fetched."""
        if not self.errors:
            self.errors.append(error)

    async def read_rest(self, chunks: Sequence[ChunkRead]) -> None:
        """Let zarr read what could not be read; if that works, the first failure is a strike."""
        rest = [c for c in chunks if c.outcome is None or c.outcome.status == "left to zarr"]
        if not self.errors:
            return  # the pipeline lets zarr read it
        for chunk in rest:
            if chunk.outcome is None:
                chunk.leave(self.errors[0])
        await self.read_by_zarr(rest)
        store = rest[0].getter.store
        state_of(store).strike(store, self.errors[0])

    async def _read_or_fill(self, planned: ObjectRead) -> None:
        try:
            try:
                await self._read(planned)
            except Changed:
                planned.target.forget()
                await self._read(planned)
        except Missing:
            target = planned.target
            if target.remote.num_bytes is not None or not await self._is_believed(planned):
                raise
            fetched = Fetched(target.num_requests, target.num_bytes)
            planned.chunks[0].fill(self.batch.out, fetched)

    async def _is_believed(self, planned: ObjectRead) -> bool:
        """Whether the store answers ranges; if need be, request a byte of the array's metadata."""
        state, chunk = planned.target.state, planned.chunks[0]
        async with self.asking:
            if not state.answers and not self.errors:  # else another one has been asked for
                path = _trace.path_of_array(chunk.getter.path, len(chunk.spec.shape))
                planned.target.num_requests += 1
                with contextlib.suppress(LeftToZarr):  # or it has been given up meanwhile
                    find = sources_of(chunk.getter.store)
                    source = find(f"{path}/{self.metadata}".lstrip("/"))
                    if isinstance(source, Remote):
                        await Object(source).ask(0, 1)
        return state.answers

    async def _read(self, planned: ObjectRead) -> None:
        """Read an object; raise `LeftToZarr` if it is left to zarr."""
        first, target, num_alone = planned.chunks[0], planned.target, None
        if isinstance(first.stored, Shard):
            layout = first.stored.layout
            parts, num_alone = await self._parts_of_shard(planned, first, first.stored)
        else:
            layout = first.stored
            starts = [_remote_of(chunk).start for chunk in planned.chunks]
            places = [chunk.place for chunk in planned.chunks]
            parts = list(map(Part, planned.plans, starts, places))
        array = self.batch.out.array
        memory = None
        if len(parts) == 1:
            memory = memory_of(array, parts[0].place, parts[0].plan, layout)
        runs = await target.fetch(parts, planned.share, planned.most, memory) if parts else []
        for raw, part in zip(runs, parts, strict=True):
            if memory is None or not np.may_share_memory(raw, memory):
                write_selected(raw, part.plan, layout, array, part.place)
        fetched = Fetched(target.num_requests, target.num_bytes, num_alone)
        for chunk in planned.chunks:
            chunk.found(fetched)
            fetched = Fetched()  # the others are read with the first

    async def _parts_of_shard(
        self, planned: ObjectRead, chunk: ChunkRead, shard: Shard
    ) -> tuple[list[Part], int]:
        """Return what to read of a shard, by its index, and how many bytes zarr alone reads."""
        target, out, num_bytes = planned.target, self.batch.out, shard.index_bytes
        items = shard.items_of(chunk.selection, out.drop_axes, planned.share.gap)
        is_first = shard.index_range(num_bytes + 1)[0] == 0
        raw = await target.ask(0 if is_first else -num_bytes, num_bytes if is_first else None)
        try:
            index = shard.decode_index(raw)
        except LeftToZarr as why:
            raise Unexpected(str(why)) from None
        found, missing, num_alone = shard.parts_of(index, items, target.length or sys.maxsize)
        for where in missing:
            out.array[place_within(chunk.place, where)] = fill_value_or_default(chunk.spec)
        parts = [Part(plan, start, place_within(chunk.place, w)) for plan, start, w in found]
        return parts, num_alone


def _remote_of(chunk: ChunkRead) -> Remote:
    """Return where a chunk is requested."""
    if not isinstance(chunk.source, Remote):
        raise TypeError(f"not requested: {chunk.source!r}")
    return chunk.source
