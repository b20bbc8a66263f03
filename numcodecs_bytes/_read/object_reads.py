"""What to request of the objects that hold chunks: which bytes, and how many requests at once.

An object is a chunk, a shard, or a file that references point into.
"""

import asyncio
import collections
import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.plan import Plan, plan_of
from numcodecs_bytes._plan.ranges import num_parts
from numcodecs_bytes._plan.shards import AnyShardPlan, ShardLayout, ShardPlan
from numcodecs_bytes._read import remote_object
from numcodecs_bytes._read.chunks import Batch, ChunkRead
from numcodecs_bytes._read.remote_object import UNLIMITED, Budget, RemoteObject
from numcodecs_bytes._sources.stores import Remote

# Longer gaps are fetched, but not copied with the runs around them: a box through four chunks of
# 16 MiB, 1 ms away, took 0.57 to 0.91 of zarr's time, and 0.82 to 1.19 if they were copied.
COPIED_GAP_BYTES = 1 << 9

# Chunks in one object that are at most this far apart are requested together. zarr alone fetches
# nothing between them.
BESIDE_BYTES = 1 << 14

# A chunk is left to zarr if a range would save no more than this: at 1 ms and 1 GB/s, parts of 400
# chunks of 64 KiB took 1.1 to 1.2 times as long as the chunks.
WORTH_BYTES = 1 << 16


_counts = threading.local()  # how many objects the event loop of a thread reads at once


class InFlight:
    """A context in which chunks are requested; yields how many the event loop requests by then.

    Reads share zarr's `async.concurrency` by that number. It is a class because contexts made by
    `contextlib` change errors, and those of some stores can't be changed.
    """

    def __init__(self, num_chunks: int) -> None:
        self._num = min(num_chunks, concurrency() or UNLIMITED)
        self._of_thread = vars(_counts)  # even if another thread ends the context

    async def __aenter__(self) -> int:
        self._of_thread["num"] = self._of_thread.get("num", 0) + self._num
        try:
            await asyncio.sleep(0)  # reads that were started with this one begin, and are counted
        except BaseException:
            await self.__aexit__()
            raise
        num: int = self._of_thread["num"]
        return num

    async def __aexit__(self, *_: object) -> None:
        self._of_thread["num"] -= self._num


class ObjectRead(NamedTuple):
    """What is read of an object: chunks that it holds, and the plan for each; or a shard."""

    target: RemoteObject
    chunks: Sequence[ChunkRead]
    layout: Layout  # of the chunks, or the inner chunks
    budget: Budget
    most_with_gaps: int  # the largest length of a range over gaps, in bytes
    plans: Sequence[Plan] = ()
    shard: tuple[ShardLayout, AnyShardPlan] | None = None


def object_reads(batch: Batch, chunks: Sequence[ChunkRead], num_in_flight: int) -> list[ObjectRead]:
    """Return what to read of chunks that are requested; zarr reads those that are left out.

    The event loop requests `num_in_flight` chunks at once, these and others.
    """
    planner = _Planner(batch, num_in_flight)
    reads = list[ObjectRead]()
    for group in planner.grouped(chunks):
        try:
            read = planner.object_read(group)
        except LeftToZarr as why:
            leave(group, why)
        else:
            if read is not None:
                reads.append(read)
    return reads


class _Planner:
    """Plans what to read of the objects that hold chunks of a batch."""

    def __init__(self, batch: Batch, num_in_flight: int) -> None:
        self._batch = batch
        self._budget = Budget.of(num_in_flight, batch.gap)  # of each object
        self._budget_of_one = Budget.of(1, batch.gap)  # if nothing else were read
        # How many bytes of a chunk a range must save.
        self._least_saving = 0 if self._budget.is_exact else WORTH_BYTES

    def grouped(self, chunks: Sequence[ChunkRead]) -> Iterator[list[ChunkRead]]:
        """Yield what is read together: single chunks, or chunks side by side in an object."""
        in_object = collections.defaultdict[tuple[Hashable, Layout], list[ChunkRead]](list)
        total = 0  # the length of the chunks that are parts of objects, in bytes
        for chunk in chunks:
            remote, layout = remote_of(chunk), chunk.layout
            if isinstance(layout, ShardLayout):
                yield [chunk]
            elif remote.num_bytes is None:
                if layout.num_bytes > self._least_saving:
                    yield [chunk]
            elif 0 < remote.num_bytes == layout.num_bytes:
                in_object[remote.key or id(chunk), layout].append(chunk)
                total += layout.num_bytes
            else:
                leave([chunk], LeftToZarr("its reference has another length than a chunk"))
        for (_, layout), group in in_object.items():
            yield from self._side_by_side(group, layout.num_bytes, total)

    def _side_by_side(
        self, chunks: list[ChunkRead], num_bytes: int, total: int
    ) -> Iterator[list[ChunkRead]]:
        """Yield groups of chunks that are side by side, small enough to keep all requests busy."""
        gap = self._budget_of_one.gap if self._budget.is_exact else BESIDE_BYTES
        most_bytes = min(remote_object.PART_BYTES, total // self._budget_of_one.num_requests)
        group = list[ChunkRead]()
        for chunk in sorted(chunks, key=lambda chunk: remote_of(chunk).start):
            end = remote_of(group[-1]).start + num_bytes if group else 0
            is_beside = 0 <= remote_of(chunk).start - end <= gap
            if group and (not is_beside or len(group) >= most_bytes // num_bytes):
                yield group
                group = []
            group.append(chunk)
        yield group

    def object_read(self, chunks: list[ChunkRead]) -> ObjectRead | None:
        """Return what to read of chunks in an object, or of a shard.

        Returns None if zarr reads it just as fast.
        """
        first, layout = chunks[0], chunks[0].layout
        if isinstance(layout, ShardLayout):
            return self._shard_read(first, layout)
        remote, budget = remote_of(first), self._budget
        end = remote_of(chunks[-1]).start + layout.num_bytes
        target = RemoteObject(remote, end if remote.num_bytes is None else None, least=end)
        if len(chunks) > 1:  # the gap within each is that of a chunk that is read alone
            budget = budget._replace(gap=self._budget_of_one.gap)
        plans = self._plans(chunks, layout, budget.gap)
        num_bytes = sum([plan.num_bytes for plan in plans])
        num_saved = len(chunks) * layout.num_bytes - num_bytes
        is_alone = len(chunks) == 1
        if is_alone and not _pays(target, budget, layout.num_bytes, num_saved, self._least_saving):
            return None
        # Longer gaps are fetched, but not copied.
        plans = self._plans(chunks, layout, min(budget.gap, COPIED_GAP_BYTES))
        return ObjectRead(target, chunks, layout, budget, budget.longest_range(num_bytes), plans)

    def _plans(self, chunks: list[ChunkRead], layout: Layout, gap: int) -> list[Plan]:
        drop_axes = self._batch.out.drop_axes
        return [plan_of(chunk.selection, layout, drop_axes, gap) for chunk in chunks]

    def _shard_read(self, chunk: ChunkRead, shard: ShardLayout) -> ObjectRead | None:
        """Return what to read of a shard; None if zarr reads it just as fast."""
        target, budget = RemoteObject(remote_of(chunk)), self._budget_of_one  # as zarr has for each
        shard_plan = shard.plan_of(chunk.selection, self._batch.out.drop_axes, budget.gap)
        # Those of points are not known before the index.
        plans = shard_plan.plans if isinstance(shard_plan, ShardPlan) else []
        num_bytes = sum([plan.num_bytes for plan in plans])
        is_all = len(plans) == shard.num_chunks
        # The index takes one more request, which is worth a gap.
        num_saved = shard.num_bytes - num_bytes
        if is_all and not _pays(target, budget, shard.num_bytes, num_saved, budget.gap):
            return None
        most = budget.longest_range(num_bytes)
        return ObjectRead(target, [chunk], shard.inner, budget, most, shard=(shard, shard_plan))


def _pays(
    target: RemoteObject, budget: Budget, num_bytes: int, num_saved: int, least_saving: int
) -> bool:
    """Whether ranges save more than `least_saving`, or a whole object would be split for speed."""
    would_split = target.may_split() and num_parts(num_bytes, budget.longest_range(num_bytes)) > 1
    return would_split or num_saved > least_saving


def remote_of(chunk: ChunkRead) -> Remote:
    """Return where a chunk is requested."""
    if not isinstance(chunk.source, Remote):
        raise TypeError(f"not requested: {chunk.source!r}")
    return chunk.source
