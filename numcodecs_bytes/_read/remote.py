"""Reads selections of chunks, and of shards, that are requested from stores.

An object is a chunk, a shard, or a file that references point into. Its runs are coalesced into
ranges, requested at once, and must be of one version. If its ranges can't be requested, or are not
answered properly, zarr reads its chunks in its turn. Those of other objects are requested all the
same, unless it was an answer that was wrong.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from zarr.core.common import concurrent_map

from numcodecs_bytes._plan.out_selections import out_selection_within
from numcodecs_bytes._plan.outcome import FetchCounts, LeftToZarr, Outcome, leave
from numcodecs_bytes._plan.plan import PlacedRuns, RunPlan
from numcodecs_bytes._plan.shards import AnyShardPlan, ShardLayout
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.object_plans import ObjectRead
from numcodecs_bytes._read.output import Output, memory_of, write_selected
from numcodecs_bytes._read.remote_object import RemoteObject
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.shard_index import index_of
from numcodecs_bytes._sources.store_states import Changed, Missing, RequestError, Unexpected
from numcodecs_bytes._sources.stores import ObjectExtent, locator_for
from numcodecs_bytes._zarr_api.versions import HAS_RESULTS


class Fallback(NamedTuple):
    """What reads chunks that can't be read here."""

    # Lets zarr read chunks; raises its errors.
    read: Callable[[Sequence[ChunkRead]], Awaitable[None]]
    # Leaves chunks to zarr because of an own bug.
    note_own_bug: Callable[[Sequence[ChunkRead], Exception], None]


async def read(
    reads: Sequence[ObjectRead],
    out: Output,
    limit: int | None,
    fallback: Fallback,
    metadata_path: str,
) -> None:
    """Read objects, at most `limit` at a time, and note what became of their chunks.

    `metadata_path` is where the metadata of the array is in its store. After an error, no other
    object is requested; it is raised when all requests in flight have ended.
    """
    reader = _ObjectReader(out, fallback, metadata_path)
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
    fallback: Fallback
    metadata_path: str
    metadata_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    error: Exception | None = None  # the first one, after which nothing is read
    wrong_answer: str = ""  # what was wrong with the first one, after which nothing is requested

    async def read(self, object_plan: ObjectRead) -> None:
        """Read an object, or let zarr read its chunks."""
        state = object_plan.target.state
        num_failures = state.num_failures
        try:
            failure = None if self.error else await self._try(object_plan)
            if failure is not None and not self.error:
                await self.fallback.read(object_plan.chunks)
                await self._note_failure(object_plan, failure, num_failures)
        except Exception as error:  # noqa: BLE001 # raised when all have ended
            self.error = self.error or error

    async def _try(self, object_plan: ObjectRead) -> LeftToZarr | None:
        """Read an object, or leave its chunks to zarr; return how the store has failed, if so."""
        with own_bugs.catch(partial(self.fallback.note_own_bug, object_plan.chunks)):
            try:
                if self.wrong_answer:
                    raise Unexpected(self.wrong_answer)
                object_plan.target.state.check()
                await self._read_or_fill(object_plan)
            except LeftToZarr as why:
                return self._leave(object_plan, why)
        return None

    def _leave(self, object_plan: ObjectRead, why: LeftToZarr) -> LeftToZarr | None:
        """Leave the chunks of an object to zarr; return how the store has failed, if so."""
        target, chunks = object_plan.target, object_plan.chunks
        is_first_wrong = isinstance(why, Unexpected) and not self.wrong_answer
        if is_first_wrong:
            self.wrong_answer = str(why)
        leave(chunks, Unexpected(self.wrong_answer) if isinstance(why, Unexpected) else why)
        fetched = FetchCounts(target.num_requests, target.num_received)
        chunks[0].outcome = chunks[0].outcome._replace(fetched=fetched)
        if is_first_wrong or isinstance(why, RequestError):
            return why.without_frames()
        return None

    async def _note_failure(
        self, object_plan: ObjectRead, failure: LeftToZarr, num_failures: int
    ) -> None:
        """Note a strike if the store has failed in a way of its own: zarr has read the chunks.

        A chunk that is missing for zarr, too, is no failure.
        """
        state, chunk = object_plan.target.state, object_plan.chunks[0]
        if isinstance(failure, RequestError) and not state.note_failure(num_failures):
            return
        if not (isinstance(failure, Missing) and await _is_missing(chunk)):
            state.strike(chunk.byte_getter.store, failure)

    async def _read_or_fill(self, object_plan: ObjectRead) -> None:
        target = object_plan.target
        try:
            try:
                await self._read(object_plan)
            except Changed:
                target.forget()
                await self._read(object_plan)
        except Missing:
            if target.remote.num_bytes is not None or not await self._serves_ranges(object_plan):
                raise
            fetched = FetchCounts(target.num_requests, target.num_received)
            object_plan.chunks[0].read_as_missing(self.out, fetched)

    async def _serves_ranges(self, object_plan: ObjectRead) -> bool:
        """Whether the store serves ranges; if need be, request a byte of the array's metadata."""
        state, chunk = object_plan.target.state, object_plan.chunks[0]
        async with self.metadata_lock:
            if not (state.has_answered or self.wrong_answer):
                object_plan.target.num_requests += 1
                with contextlib.suppress(LeftToZarr):  # or it has been given up meanwhile
                    source = locator_for(chunk.byte_getter.store)(self.metadata_path)
                    if isinstance(source, ObjectExtent):
                        # Its time tells nothing: a store may keep metadata in memory.
                        await RemoteObject(source).ask(0, 1, is_timed=False)
        return state.has_answered

    async def _read(self, object_plan: ObjectRead) -> None:
        """Read an object; raise `LeftToZarr` if it is left to zarr."""
        target, num_by_zarr = object_plan.target, None
        if object_plan.shard is not None:
            placed, num_by_zarr = await self._place_inner_chunks(object_plan, *object_plan.shard)
        else:
            starts = [chunk.remote.start for chunk in object_plan.chunks]
            out_selections = [chunk.out_selection for chunk in object_plan.chunks]
            placed = list(map(PlacedRuns, object_plan.plans, starts, out_selections))
        array = self.out.array
        memory = None  # in the output, if that holds just what is fetched
        if len(placed) == 1:
            memory = memory_of(array, placed[0].out_selection, placed[0].plan, object_plan.layout)
        raws = await target.fetch(placed, object_plan.budget, memory)
        if memory is None:
            for raw, (plan, _, out_selection) in zip(raws, placed, strict=True):
                write_selected(raw, plan, object_plan.layout, array, out_selection)
        num_requests = target.num_requests
        shares = _bytes_of_each(target.num_received, object_plan.plans)
        for chunk, share in zip(object_plan.chunks, shares, strict=True):
            chunk.outcome = Outcome(
                "present", fetched=FetchCounts(num_requests, share, num_by_zarr)
            )
            num_requests = 0  # the others are requested with the first

    async def _place_inner_chunks(
        self, object_plan: ObjectRead, shard: ShardLayout, shard_plan: AnyShardPlan
    ) -> tuple[list[PlacedRuns], int | None]:
        """Return what to read of a shard, by its index, and how many bytes zarr alone reads.

        Fills what is missing.
        """
        (chunk,), target = object_plan.chunks, object_plan.target
        raw = await target.ask(*_range_of_index(target.remote, shard))
        try:
            index = index_of(shard, raw)
        except LeftToZarr as why:
            # Perhaps the answer is not the range that was asked for.
            raise Unexpected(str(why)) from None
        start, end = target.remote.start, target.length or sys.maxsize
        num_bytes = min(target.remote.num_bytes or end, end - start)
        inner = shard_plan.inner_chunks(index, start, num_bytes)
        chunk.fill(
            self.out,
            [
                out_selection_within(chunk.out_selection, out_selection)
                for out_selection in inner.missing
            ],
        )
        placed = [
            p._replace(out_selection=out_selection_within(chunk.out_selection, p.out_selection))
            for p in inner.present
        ]
        return placed, shard.num_bytes_by_zarr(inner) if traces.active else None


async def _is_missing(chunk: ChunkRead) -> bool:
    """Whether a chunk that zarr has read is missing; zarr 3.1.6 does not tell."""
    if not HAS_RESULTS:
        with contextlib.suppress(Exception):  # stores raise anything
            return not await chunk.byte_getter.store.exists(chunk.byte_getter.path)
    return chunk.outcome.status == "missing"


def _bytes_of_each(num_bytes: int, plans: Sequence[RunPlan]) -> list[int]:
    """Return how much of what was fetched together is each chunk's: in proportion to its plan."""
    if len(plans) < 2:
        return [num_bytes]
    planned = np.cumsum([plan.num_bytes for plan in plans])
    shares: list[int] = np.diff(planned * num_bytes // max(planned[-1], 1), prepend=0).tolist()
    return shares


def _range_of_index(remote: ObjectExtent, shard: ShardLayout) -> tuple[int, int | None]:
    """Return the range of the index of a shard in its object; see `requests.Get`.

    Raises `LeftToZarr` if the shard is too short for its index.
    """
    if remote.num_bytes is None:  # the length of the object is not known yet
        return (0, shard.index_bytes) if shard.is_index_first else (-shard.index_bytes, None)
    start = remote.start + shard.index_start(remote.num_bytes)
    return start, start + shard.index_bytes
