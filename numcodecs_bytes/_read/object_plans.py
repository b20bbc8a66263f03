"""What to request of the objects that hold chunks: which bytes, and how many requests at once.

An object is a chunk, a shard, or a file that references point into.
"""

import asyncio
import collections
import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.plan import RunPlan, plan_of
from numcodecs_bytes._plan.shards import AnyShardPlan, ShardLayout, ShardPlan
from numcodecs_bytes._read import budget as budgets
from numcodecs_bytes._read.budget import UNLIMITED, Budget
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.remote_object import RemoteObject
from numcodecs_bytes._zarr_api.versions import concurrency

# Chunks in one object that are at most this far apart are requested together. zarr alone fetches
# nothing between them.
MAX_SIBLING_GAP = 1 << 14

# A chunk is left to zarr if a range would save no more than this: at 1 ms and 1 GB/s, parts of 400
# chunks of 64 KiB took 1.1 to 1.2 times as long as the chunks.
MIN_SAVED_BYTES = 1 << 16


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
    plans: Sequence[RunPlan] = ()
    shard: tuple[ShardLayout, AnyShardPlan] | None = None


def object_plans(
    chunks: Sequence[ChunkRead], num_in_flight: int, max_gap: int | None, drop_axes: tuple[int, ...]
) -> list[ObjectRead]:
    """Return what to read of chunks that are requested; zarr reads others, whose source is dropped.

    The event loop requests `num_in_flight` chunks at once, these and others. `gap` is the largest
    one, if the user has set it.
    """
    planner = _Planner(num_in_flight, max_gap, drop_axes)
    reads: list[ObjectRead] = []
    for group in planner.grouped(chunks):
        try:
            read = planner.object_plan(group)
        except LeftToZarr as why:
            leave(group, why)
        else:
            if read is not None:
                reads.append(read)
    requested = {id(chunk) for read in reads for chunk in read.chunks}
    for chunk in chunks:
        if id(chunk) not in requested:
            chunk.source = None
    return reads


class _Planner:
    """Plans what to read of the objects that hold chunks of a batch."""

    def __init__(self, num_in_flight: int, max_gap: int | None, drop_axes: tuple[int, ...]) -> None:
        self._drop_axes = drop_axes
        self._budget = Budget.of(num_in_flight, max_gap)  # of each object
        self._budget_of_one = Budget.of(1, max_gap)  # if nothing else were read
        # How many bytes of a chunk a range must save.
        self._least_saving = 0 if self._budget.is_exact else MIN_SAVED_BYTES

    def grouped(self, chunks: Sequence[ChunkRead]) -> Iterator[list[ChunkRead]]:
        """Yield what is read together: single chunks, or chunks side by side in an object."""
        in_object = collections.defaultdict[tuple[Hashable, Layout], list[ChunkRead]](list)
        total = 0  # the length of the chunks that are parts of objects, in bytes
        for chunk in chunks:
            remote, layout = chunk.remote, chunk.layout
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
        max_gap = self._budget_of_one.max_gap if self._budget.is_exact else MAX_SIBLING_GAP
        most_bytes = min(budgets.MIN_SUBRANGE_BYTES, total // self._budget_of_one.num_requests)
        group: list[ChunkRead] = []
        for chunk in sorted(chunks, key=lambda chunk: chunk.remote.start):
            end = group[-1].remote.start + num_bytes if group else 0
            is_beside = 0 <= chunk.remote.start - end <= max_gap
            if group and (not is_beside or len(group) >= most_bytes // num_bytes):
                yield group
                group = []
            group.append(chunk)
        yield group

    def object_plan(self, chunks: list[ChunkRead]) -> ObjectRead | None:
        """Return what to read of chunks in an object, or of a shard.

        Returns None if zarr reads it just as fast.
        """
        first, layout = chunks[0], chunks[0].layout
        if isinstance(layout, ShardLayout):
            return self._shard_read(first, layout)
        remote, is_alone = first.remote, len(chunks) == 1
        end = chunks[-1].remote.start + layout.num_bytes
        target = RemoteObject(remote, end if remote.num_bytes is None else None, least=end)
        # The gap within each of several chunks is that of a chunk that is read alone.
        max_gap = (self._budget if is_alone else self._budget_of_one).max_gap
        budget = self._budget._replace(max_gap=max_gap)
        how = layout, self._drop_axes, budget.copied_gap
        plans = [plan_of(chunk.chunk_selection, *how) for chunk in chunks]
        if is_alone and not _pays(target, budget, layout.num_bytes, plans, self._least_saving):
            return None
        return ObjectRead(target, chunks, layout, budget, plans)

    def _shard_read(self, chunk: ChunkRead, shard: ShardLayout) -> ObjectRead | None:
        """Return what to read of a shard; None if zarr reads it just as fast."""
        target = RemoteObject(chunk.remote)
        budget = self._budget_of_one.of_shard()  # as zarr has for each
        shard_plan = shard.plan_of(chunk.chunk_selection, self._drop_axes, budget.copied_gap)
        # Those of points are not known before the index.
        plans = shard_plan.plans if isinstance(shard_plan, ShardPlan) else []
        is_all = len(plans) == shard.num_chunks
        # The index takes one more request, which is worth a gap.
        if is_all and not _pays(target, budget, shard.num_bytes, plans, budget.max_gap):
            return None
        return ObjectRead(target, [chunk], shard.inner, budget, shard=(shard, shard_plan))


def _pays(
    target: RemoteObject,
    budget: Budget,
    num_bytes: int,
    plans: Sequence[RunPlan],
    least_saving: int,
) -> bool:
    """Whether ranges save more than `least_saving`, or a whole object would be split for speed.

    A request costs as much as a gap that is worth reading over.
    """
    cost = sum([min(plan.span, plan.num_runs * (plan.length + budget.max_gap)) for plan in plans])
    would_split = target.may_split() and budget.would_split(num_bytes)
    return would_split or num_bytes - cost > least_saving
