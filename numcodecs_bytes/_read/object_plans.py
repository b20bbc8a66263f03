"""What to request of the objects that hold chunks: which bytes, and how many requests at once."""

import asyncio
import collections
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from numcodecs_bytes._plan import gap_policy
from numcodecs_bytes._plan.gap_policy import UNLIMITED, GapPolicy
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import JustAsFast, LeftToZarr, leave_to_zarr
from numcodecs_bytes._plan.plan import PlacedRuns, RunPlan, plan_of
from numcodecs_bytes._plan.shards import AnyShardPlan, ShardLayout, ShardPlan
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.remote_object import RemoteObject
from numcodecs_bytes._zarr_api.versions import concurrency

_in_flight = threading.local()  # how many objects the event loop of a thread reads at once


async def share_requests(num_chunks: int, read: Callable[[int], Awaitable[None]]) -> None:
    """Call a function that requests chunks with how many the event loop requests at once by then.

    Reads share zarr's `async.concurrency` by that number.
    """
    num = min(num_chunks, concurrency() or UNLIMITED)
    of_thread = vars(_in_flight)  # another thread may end the read
    of_thread["num"] = of_thread.get("num", 0) + num
    try:
        await asyncio.sleep(0)  # reads that were started with this one begin, and are counted
        await read(of_thread["num"])
    finally:
        of_thread["num"] -= num


class ObjectRead(NamedTuple):
    """What is read of an object: chunks that it holds, and the plan for each; or a shard."""

    remote_object: RemoteObject
    chunks: Sequence[ChunkRead]
    layout: Layout  # of the chunks, or the inner chunks
    policy: GapPolicy
    plans: Sequence[RunPlan] = ()
    shard: tuple[ShardLayout, AnyShardPlan] | None = None

    @property
    def placed(self) -> list[PlacedRuns]:
        """The runs of the chunks; those of a shard are not known before its index is fetched."""
        return [
            PlacedRuns(plan, chunk.object_extent.start, chunk.out_selection)
            for plan, chunk in zip(self.plans, self.chunks, strict=False)
        ]


def object_plans(
    chunks: Sequence[ChunkRead], num_in_flight: int, max_gap: int | None, drop_axes: tuple[int, ...]
) -> list[ObjectRead]:
    """Return what to read of chunks that are requested, unless they are left to zarr.

    The event loop requests `num_in_flight` chunks at once, these and others. `max_gap` is what the
    user has set.
    """
    planner = _Planner(num_in_flight, max_gap, drop_axes)
    reads: list[ObjectRead] = []
    for group in planner.grouped(chunks):
        try:
            reads.append(planner.object_plan(group))
        except LeftToZarr as why:
            leave_to_zarr(group, why)
    return reads


class _Planner:
    """Plans what to read of the objects that hold chunks of a batch."""

    def __init__(self, num_in_flight: int, max_gap: int | None, drop_axes: tuple[int, ...]) -> None:
        self._drop_axes = drop_axes
        limit = concurrency() or UNLIMITED
        self._policy = GapPolicy.for_chunk(max(1, limit // num_in_flight), max_gap)
        self._policy_of_one = GapPolicy.for_chunk(limit, max_gap)  # for a read of one chunk
        self._policy_of_shard = GapPolicy.for_shard(limit, max_gap)  # zarr has as many for each

    def grouped(self, chunks: Sequence[ChunkRead]) -> Iterator[list[ChunkRead]]:
        """Yield what is read together: single chunks, or chunks side by side in an object."""
        in_object = collections.defaultdict[tuple[Hashable, Layout], list[ChunkRead]](list)
        total = 0  # the length of the chunks that are parts of objects, in bytes
        too_short: list[ChunkRead] = []
        for chunk in chunks:
            extent, layout = chunk.object_extent, chunk.layout
            if isinstance(layout, ShardLayout):
                yield [chunk]
            elif extent.num_bytes is None:
                if self._policy.may_pay(layout.num_bytes):
                    yield [chunk]
                else:
                    too_short.append(chunk)
            elif 0 < extent.num_bytes == layout.num_bytes:
                in_object[extent.key or id(chunk), layout].append(chunk)
                total += layout.num_bytes
            else:
                leave_to_zarr([chunk], LeftToZarr("its reference has another length than a chunk"))
        leave_to_zarr(too_short, JustAsFast())
        for (_, layout), group in in_object.items():
            yield from self._side_by_side(group, layout.num_bytes, total)

    def _side_by_side(
        self, chunks: list[ChunkRead], num_bytes: int, total: int
    ) -> Iterator[list[ChunkRead]]:
        """Yield groups of chunks that are side by side, small enough to keep all requests busy."""
        max_gap, num_requests = self._policy.max_sibling_gap, self._policy_of_one.num_requests
        max_bytes = min(gap_policy.MIN_SUBRANGE_BYTES, total // num_requests)
        group: list[ChunkRead] = []
        for chunk in sorted(chunks, key=lambda chunk: chunk.object_extent.start):
            end = group[-1].object_extent.start + num_bytes if group else 0
            is_beside = 0 <= chunk.object_extent.start - end <= max_gap
            if group and (not is_beside or len(group) >= max_bytes // num_bytes):
                yield group
                group = []
            group.append(chunk)
        yield group

    def object_plan(self, chunks: list[ChunkRead]) -> ObjectRead:
        """Return what to read of chunks in an object, or of a shard.

        Raises `JustAsFast` if that is not worth a request of our own.
        """
        first, layout = chunks[0], chunks[0].layout
        if isinstance(layout, ShardLayout):
            return self._shard_read(first, layout)
        extent, policy = first.object_extent, self._policy
        if len(chunks) > 1:  # the gap within each is that of a chunk that is read alone
            policy = policy._replace(max_gap=self._policy_of_one.max_gap)
        end = chunks[-1].object_extent.start + layout.num_bytes
        expected_length = end if extent.num_bytes is None else None
        remote_object = RemoteObject(extent, expected_length, min_length=end)
        how = layout, self._drop_axes, policy.max_copied_gap
        plans = [plan_of(chunk.chunk_selection, *how) for chunk in chunks]
        if len(chunks) == 1:
            _check_pays(remote_object, policy, layout.num_bytes, plans)
        return ObjectRead(remote_object, chunks, layout, policy, plans)

    def _shard_read(self, chunk: ChunkRead, shard: ShardLayout) -> ObjectRead:
        """Return what to read of a shard; see `object_plan`."""
        remote_object, policy = RemoteObject(chunk.object_extent), self._policy_of_shard
        shard_plan = shard.plan_of(chunk.chunk_selection, self._drop_axes, policy.max_copied_gap)
        # Points are planned when the index is known.
        if isinstance(shard_plan, ShardPlan) and len(shard_plan.plans) == shard.num_chunks:
            _check_pays(remote_object, policy, shard.num_bytes, shard_plan.plans)
        return ObjectRead(remote_object, [chunk], shard.inner, policy, shard=(shard, shard_plan))


def _check_pays(
    remote_object: RemoteObject, policy: GapPolicy, num_bytes: int, plans: Sequence[RunPlan]
) -> None:
    """Raise `JustAsFast` unless it pays to request plans of an object of `num_bytes`."""
    cost, tells_versions = policy.cost_of(plans), remote_object.tells_versions
    if not policy.pays(num_bytes, cost, tells_versions=tells_versions):
        raise JustAsFast
