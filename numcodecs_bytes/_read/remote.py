"""Reads selections of chunks, and of shards, that are requested from stores.

An object is a chunk, a shard, or a file that references point into. `stores` locates it,
`object_plans` plans what to read of it, and `_ObjectReader._read` fetches and scatters that; the
index of a shard is a thing fetched that leads to a second plan. All ranges must be of one version.
If they can't be requested, or are not answered properly, zarr reads the chunks of the object in
its turn. Those of other objects are requested all the same, unless it was an answer that was wrong.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection, out_selection_within
from numcodecs_bytes._plan.outcome import FetchCounts, LeftToZarr, Outcome, ZarrFails, leave_to_zarr
from numcodecs_bytes._plan.plan import PlacedRuns
from numcodecs_bytes._plan.shards import AnyShardPlan, InnerChunks, ShardLayout
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.object_plans import ObjectRead
from numcodecs_bytes._read.output import Output, direct_view, scatter
from numcodecs_bytes._read.remote_object import RemoteObject
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.answers import Answer
from numcodecs_bytes._sources.shard_index import index_of
from numcodecs_bytes._sources.stores import ObjectExtent, locator_for
from numcodecs_bytes._zarr_api.versions import HAS_RESULTS


class Batch(NamedTuple):
    """What a batch does for the chunks of it that are requested."""

    # Lets zarr read chunks; raises its errors.
    let_zarr_read: Callable[[Sequence[ChunkRead]], Awaitable[None]]
    # Returns a context that leaves chunks to zarr after an own bug.
    catch_own_bugs: Callable[[Sequence[ChunkRead]], own_bugs.catch]
    # Returns where the metadata of the array are in its store.
    metadata_path: Callable[[], str]


async def read(reads: Sequence[ObjectRead], out: Output, limit: int | None, batch: Batch) -> None:
    """Read objects, at most `limit` at a time, and record what became of their chunks.

    After an error, no other object is requested; it is raised when all requests in flight have
    ended.
    """
    reader = _ObjectReader(out, batch)
    await concurrent_map([(each,) for each in reads], reader.read, limit)
    error, reader.error = reader.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # its frames refer to this one, and to the output


@dataclass
class _ObjectReader:
    """Reads objects that hold chunks of a batch; see `read`."""

    out: Output
    batch: Batch
    metadata_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    error: Exception | None = None  # the first one, after which nothing is read
    why_wrong: str = ""  # of the first wrong answer, after which nothing is requested

    async def read(self, planned: ObjectRead) -> None:
        """Read an object, or let zarr read its chunks."""
        num_failures = planned.remote_object.state.num_failures
        try:
            failure = None if self.error else await self._read_or_leave(planned)
            if failure is not None and not self.error:
                await self.batch.let_zarr_read(planned.chunks)
                await _record_failure(planned, failure, num_failures)
        except Exception as error:  # noqa: BLE001 # it is raised when all have ended
            self.error = self.error or error

    async def _read_or_leave(self, planned: ObjectRead) -> Answer | None:
        """Read an object, or leave its chunks to zarr; return an answer that may be a strike."""
        with self.batch.catch_own_bugs(planned.chunks):
            try:
                return await self._settle(planned)
            except LeftToZarr as why:
                _leave(planned, why)
        return None

    async def _settle(self, planned: ObjectRead) -> Answer | None:
        """Request an object, and do what follows from the answer.

        After a wrong one, nothing more of the batch is requested. Raises `LeftToZarr` if the object
        need not be requested, or can't be read, whatever the answer.
        """
        if self.why_wrong:
            raise LeftToZarr(self.why_wrong)
        planned.remote_object.state.check()
        answer = await self._read(planned)
        if answer.kind == "changed":
            planned.remote_object.reset_version()
            answer = await self._read(planned)
        if answer.kind == "read":
            return None
        if answer.kind == "missing" and await self._is_surely_missing(planned):
            planned.chunks[0].read_as_missing(self.out, _fetched(planned))
            return None
        if answer.kind == "unclear":
            raise LeftToZarr(answer.why)
        if answer.is_strike:
            if self.why_wrong:
                raise LeftToZarr(self.why_wrong)
            self.why_wrong = answer.why
        _leave(planned, LeftToZarr(answer.why))
        return answer

    async def _read(self, planned: ObjectRead) -> Answer:
        """Fetch what is planned, and scatter it; return the answer of the store.

        Raises `LeftToZarr` if zarr has to read the object, whatever the store answers.
        """
        if planned.shard is None:
            return await self._fetch_and_scatter(planned, planned.placed)
        return await self._read_shard(planned, *planned.shard)

    async def _read_shard(
        self, planned: ObjectRead, shard: ShardLayout, shard_plan: AnyShardPlan
    ) -> Answer:
        """Fetch the index of a shard, then what is selected of its inner chunks; see `_read`."""
        remote_object, extent = planned.remote_object, planned.remote_object.extent
        index_range = shard.index_range(extent.start, extent.num_bytes)
        answer = await remote_object.get_range(*index_range)
        if answer.kind != "read":
            return answer
        try:
            index = index_of(shard, answer.raw)
        except ZarrFails as why:  # the answer may not be the range that was asked for
            return Answer("wrong", str(why))
        end = remote_object.length or sys.maxsize
        num_bytes = min(extent.num_bytes or end, end - extent.start)
        inner = shard_plan.inner_chunks(index, extent.start, num_bytes)
        inner = _within(planned.chunks[0].out_selection, inner)
        del answer, index  # they may take megabytes while the inner chunks are fetched
        num_bytes_by_zarr = shard.num_bytes_by_zarr(inner) if traces.active else None
        answer = await self._fetch_and_scatter(
            planned, inner.present, num_bytes_by_zarr, inner.missing
        )
        if answer.kind == "read":
            planned.chunks[0].fill(self.out, inner.missing)
        return answer

    async def _fetch_and_scatter(
        self,
        planned: ObjectRead,
        placed: Sequence[PlacedRuns],
        num_bytes_by_zarr: int | None = None,
        missing: Sequence[OutSelection] = (),
    ) -> Answer:
        """Fetch runs of an object, straight into the output if they are just what it holds there.

        `num_bytes_by_zarr` is how many bytes zarr alone would fetch, if that is not all of it, and
        `missing` what is selected of inner chunks that do not exist.
        """
        array, direct, num_before = self.out.array, None, planned.remote_object.num_received
        if len(placed) == 1:
            plan, _, out_selection = placed[0]
            direct = direct_view(array, out_selection, plan, planned.layout)
        answer = await planned.remote_object.fetch(placed, planned.policy, direct)
        if answer.kind != "read":
            return answer
        if direct is None:
            _scatter(answer.raw, placed, planned.layout, array)
        num_in_ranges = planned.remote_object.num_received - num_before
        _record_read(planned, num_in_ranges, num_bytes_by_zarr, missing)
        return answer

    async def _is_surely_missing(self, planned: ObjectRead) -> bool:
        """Whether a chunk is missing, as the store says, because it serves ranges of other objects.

        What references point to can't be missing. If need be, requests a byte of the metadata.
        """
        if planned.remote_object.extent.num_bytes is not None:
            return False
        state, store = planned.remote_object.state, planned.chunks[0].request.byte_getter.store
        async with self.metadata_lock:
            if not (state.has_answered or self.why_wrong):
                planned.remote_object.num_requests += 1
                with contextlib.suppress(LeftToZarr):  # another read may have struck the store
                    extent = locator_for(store)(self.batch.metadata_path())
                    if isinstance(extent, ObjectExtent):
                        # Its time tells nothing: a store may keep metadata in memory.
                        await RemoteObject(extent).get_range(0, 1, is_timed=False)
        return state.has_answered


def _fetched(planned: ObjectRead) -> FetchCounts:
    return FetchCounts(planned.remote_object.num_requests, planned.remote_object.num_received)


def _leave(planned: ObjectRead, why: LeftToZarr) -> None:
    """Leave the chunks of an object to zarr; what was fetched counts for the first one."""
    leave_to_zarr(planned.chunks, why)
    first = planned.chunks[0]
    first.outcome = first.outcome._replace(fetched=_fetched(planned))


async def _record_failure(planned: ObjectRead, answer: Answer, num_failures: int) -> None:
    """Record an answer, although zarr has read the chunks: a strike, or one failure more.

    `num_failures` is how often it had failed when the object was requested.
    """
    state = planned.remote_object.state
    if answer.kind == "missing" and await _is_missing(planned.chunks[0]):
        return
    if answer.is_strike or state.record_failure(num_failures):
        state.strike(answer)


async def _is_missing(chunk: ChunkRead) -> bool:
    """Whether a chunk that zarr has read is missing; zarr 3.1.6 does not tell."""
    if not HAS_RESULTS:
        with contextlib.suppress(Exception):  # stores raise anything
            byte_getter = chunk.request.byte_getter
            return not await byte_getter.store.exists(byte_getter.path)
    return chunk.outcome.status == "missing"


def _within(outer: OutSelection, inner: InnerChunks) -> InnerChunks:
    """Return inner chunks with what they are of the output, of which their shard is `outer`."""
    present = [
        each._replace(out_selection=out_selection_within(outer, each.out_selection))
        for each in inner.present
    ]
    missing = [out_selection_within(outer, out_selection) for out_selection in inner.missing]
    return inner._replace(present=present, missing=missing)


def _scatter(raw: UInt8Array, placed: Sequence[PlacedRuns], layout: Layout, array: Array) -> None:
    """Copy runs, which `raw` holds end to end, to the output."""
    start = 0
    for plan, _, out_selection in placed:
        end = start + plan.num_bytes
        scatter(raw[start:end], plan, layout, array, out_selection)
        start = end


def _record_read(
    planned: ObjectRead,
    num_in_ranges: int,
    num_bytes_by_zarr: int | None,
    missing: Sequence[OutSelection],
) -> None:
    """Record that chunks are read; what was fetched together is each one's as it was planned."""
    num_requests, num_bytes = _fetched(planned)[:2]
    shares = [num_bytes]
    if len(planned.plans) > 1:
        ends = np.cumsum([plan.num_bytes for plan in planned.plans])
        shares = np.diff(ends * num_bytes // max(ends[-1], 1), prepend=0).tolist()
    for chunk, share in zip(planned.chunks, shares, strict=True):
        num_gap_bytes = chunk.num_gap_bytes(min(share, num_in_ranges), missing)
        fetched = FetchCounts(num_requests, share, num_bytes_by_zarr, num_gap_bytes)
        chunk.outcome = Outcome("present", fetched=fetched)
        num_requests = 0  # the other chunks were requested with the first
