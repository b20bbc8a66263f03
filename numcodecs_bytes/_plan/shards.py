"""Shards of uncompressed inner chunks: an index, and inner chunks at the offsets that it holds.

What a selection takes from each inner chunk is planned and read as for any chunk. A chunk is not
planned as a shard of one inner chunk at offset 0: to look that up would take a row 15 us more. If
anything is wrong with a shard, it is left to zarr, which raises the error or reads it.
"""

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import UInt64Array
from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._core.lengths import EMPTY, Advice
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Geometry, Layout
from numcodecs_bytes._plan.out_selections import OutSelection
from numcodecs_bytes._plan.outcome import DamagedShard, LeftToZarr, ZarrFails
from numcodecs_bytes._plan.plan import PlacedRuns, RunPlan, plan_axes, selection_shape
from numcodecs_bytes._plan.selection import (
    SLICES_HAVE_HASHES,
    Axis,
    InChunk,
    Indices,
    Selector,
    axes_of,
    cut_at_chunks,
    key_of,
)

# How many plans of shards are cached, and of up to how many selected inner chunks. They take 0.3
# MiB in all, or 13 MiB if no two inner chunks have the same plan: so much more than those of chunks
# that they are cached apart. Planning again takes 45 us for 4 inner chunks, and 0.2 ms for 256,
# which take 4 ms to read.
CACHED_SHARD_PLANS = 1 << 4
CACHED_INNER_CHUNKS = 1 << 8

_WRONG = "a wrong data type, inner chunk shape, codecs, index_codecs or index_location"
# What to do if a shard seems to be damaged.
REMEDY = Advice(
    f"restore it; if the metadata state {_WRONG}, correct them; until then, write nothing to it, "
    "to keep inner chunks that may be intact",
    if_none=f"if the metadata, or a consolidated copy of them, state {_WRONG}, correct them; "
    "otherwise, restore the shards; until then, write nothing",
)
NO_INDEX_ENDIAN = "the bytes codec in index_codecs has no endian: add it"

MISSING = np.iinfo(np.uint64).max  # offset and length of a missing inner chunk in the index


class InnerChunks(NamedTuple):
    """Where the selected inner chunks of a shard are."""

    present: list[PlacedRuns]
    missing: list[OutSelection]  # the regions of missing ones in the selection
    starts: Indices  # where those that are present start; one for each point


class ShardPlan(NamedTuple):
    """What indices along each axis of a shard take from its inner chunks: a plan for each."""

    inner: Geometry
    shape: tuple[int, ...]  # the shape of the selection
    coordinates: tuple[Indices, ...]  # where inner chunks are along each axis of their grid
    plans: list[RunPlan]  # one for each inner chunk
    out_selections_along: list[list[Selector]]  # along each axis: at each position in the grid

    def inner_chunks(self, index: UInt64Array, shard_start: int, num_bytes: int) -> InnerChunks:
        """Return where the inner chunks are; see `_find_inner_chunks`."""
        present, starts, missing = _find_inner_chunks(self, index, shard_start, num_bytes)
        out_selections = list(itertools.product(*self.out_selections_along))
        placed = [
            PlacedRuns(self.plans[k], start, out_selections[k])
            for k, start in zip(present.tolist(), starts.tolist(), strict=True)
        ]
        return InnerChunks(placed, [out_selections[k] for k in missing], starts)


class ShardPointsPlan(NamedTuple):
    """Which points a selection takes from a shard: a plan can be made when its index is known."""

    inner: Geometry
    shape: tuple[int, ...]  # the shape of the selection
    coordinates: tuple[Indices, ...]  # where the inner chunk of each point is in the grid
    offsets: Indices  # where each point is in its inner chunk, in bytes
    max_gap: int  # the limit of gaps that is planned with, in bytes

    def inner_chunks(self, index: UInt64Array, shard_start: int, num_bytes: int) -> InnerChunks:
        """Return where the points are; see `_find_inner_chunks`."""
        present, starts, missing = _find_inner_chunks(self, index, shard_start, num_bytes)
        points = Axis(starts + self.offsets[present], 1, 0)  # the file is an axis of bytes
        plan = plan_axes((points,), self.inner.item_size, self.max_gap)
        placed = [PlacedRuns(plan, 0, (present,))] if len(present) else []
        return InnerChunks(placed, [(missing,)] if len(missing) else [], starts)


AnyShardPlan = ShardPlan | ShardPointsPlan


def _find_inner_chunks(
    plan: AnyShardPlan, index: UInt64Array, shard_start: int, num_bytes: int
) -> tuple[Indices, Indices, Indices]:
    """Return which inner chunks, or points, are present, where each begins, and which are missing.

    The object holds the shard, which has `num_bytes`, from `shard_start` on. Raises `LeftToZarr` if
    the length of an inner chunk is not its layout's, or it ends beyond the shard.
    """
    entries = index[plan.coordinates].reshape(-1, 2)
    starts, lengths, length = entries[:, 0], entries[:, 1], plan.inner.num_bytes
    is_missing = (starts == MISSING) & (lengths == MISSING)
    # They are unsigned: nothing may become negative.
    is_wrong = (lengths != length) | (starts > max(num_bytes - length, 0)) | (num_bytes < length)
    if (is_wrong & ~is_missing).any():
        raise LeftToZarr("the index has an inner chunk of a wrong length, or beyond the shard")
    present = np.flatnonzero(~is_missing)
    return present, starts[present].astype(np.intp) + shard_start, np.flatnonzero(is_missing)


class ShardLayout:
    """How the shards of an array are stored: by zarr's codec, with inner chunks of one layout."""

    def __init__(
        self, codec: Any, grid_shape: tuple[int, ...], inner: Layout, index_bytes: int
    ) -> None:
        self.codec, self.grid_shape, self.inner = codec, grid_shape, inner
        self.index_bytes = index_bytes
        self.item_size, self.dtype = inner.item_size, inner.dtype
        self.shape = tuple(map(operator.mul, grid_shape, inner.shape))
        # That of one chunk in C order: selections are cut at the inner chunks later.
        axis_order = tuple(range(len(self.shape)))
        self.geometry = Geometry(self.shape, axis_order, inner.item_size)
        self.num_bytes = self.geometry.num_bytes  # the length of all inner chunks
        self.num_chunks = math.prod(grid_shape)
        location = codec.index_location  # an Enum on zarr 3.1.6
        self.is_index_first = getattr(location, "value", location) == "start"
        # What two layouts have in common if the same bytes are the same index to both.
        how_stored = str([index_codec.to_dict() for index_codec in codec.index_codecs])
        self.index_key = self.grid_shape, inner.num_bytes, self.is_index_first, how_stored

    def num_bytes_by_zarr(self, inner_chunks: InnerChunks) -> int:
        """Return how many bytes zarr alone reads of a shard."""
        num_present = len(np.unique(inner_chunks.starts))
        return self.index_bytes + num_present * self.inner.num_bytes

    def is_all_selected(self, plan: AnyShardPlan) -> bool:
        """Whether something is selected of each inner chunk."""
        numbers = np.ravel_multi_index(np.broadcast_arrays(*plan.coordinates), self.grid_shape)
        return bool(len(np.unique(numbers)) == self.num_chunks)

    def index_start(self, num_bytes: int) -> int:
        """Return where the index of a shard of `num_bytes` begins."""
        if not num_bytes:
            raise ZarrFails(EMPTY)
        if num_bytes < self.index_bytes:
            raise DamagedShard("the shard is too short for its index")
        return 0 if self.is_index_first else num_bytes - self.index_bytes

    def find_unusual(self, index: UInt64Array, num_bytes: int) -> tuple[str, int, int] | None:
        """Return an inner chunk that does not fit a shard of `num_bytes`: why, offset and length.

        None if there is none.
        """
        starts, lengths, length = index[..., 0], index[..., 1], self.inner.num_bytes
        is_missing = (starts == MISSING) & (lengths == MISSING)
        is_wrong = (lengths != length) | (starts > max(num_bytes - length, 0))
        is_wrong |= num_bytes < length
        for coords in np.argwhere(is_wrong & ~is_missing)[:1]:
            start, stated = map(int, index[tuple(coords)])
            why = (
                f"its index says that inner chunk {tuple(map(int, coords))} has {stated} bytes at "
                f"offset {start}, expected {length} within the {num_bytes} bytes of the shard"
            )
            return why, start, stated
        return None

    def index_range(self, start: int, num_bytes: int | None) -> tuple[int, int | None]:
        """Return the range of the index in an object, in which the shard begins at `start`.

        If the length of the shard is not known yet, which is then the whole object, an index at its
        end is a suffix: minus its length, and None.
        """
        if num_bytes is None:
            return (0, self.index_bytes) if self.is_index_first else (-self.index_bytes, None)
        start += self.index_start(num_bytes)
        return start, start + self.index_bytes

    def plan_of(
        self, selection: object, drop_axes: tuple[int, ...] = (), max_gap: int | None = None
    ) -> AnyShardPlan:
        """Return what a selection takes from the inner chunks.

        It is cached, unless the selection has arrays, or takes something from many inner chunks.
        Raises `LeftToZarr` if the selection is of an unknown kind.
        """
        max_gap = constants.GAP_BYTES if max_gap is None else max_gap
        others = self.geometry, self.inner.geometry, drop_axes, max_gap
        key = selection if SLICES_HAVE_HASHES else key_of(selection), others
        try:
            if (cached := _cached_plans.get(key)) is not None:
                return cached
        except TypeError as error:  # arrays have no hash
            raise_if_of_caller(error)
            return _plan(selection, *others)
        planned = _plan(selection, *others)
        if isinstance(planned, ShardPlan) and len(planned.plans) <= CACHED_INNER_CHUNKS:
            if len(_cached_plans) >= CACHED_SHARD_PLANS:
                _cached_plans.clear()
            _cached_plans[key] = planned
        return planned


# The keys are all that plans depend on. Threads may share it: a dict needs no lock.
_cached_plans: dict[tuple[object, ...], ShardPlan] = {}


def _plan(
    selection: object, shard: Geometry, inner: Geometry, drop_axes: tuple[int, ...], max_gap: int
) -> AnyShardPlan:
    axes = axes_of(selection, shard, drop_axes)
    if len(axes) < len(shard.shape):  # points are a single axis
        return _plan_points(selection, inner, max_gap)
    cuts_along = [
        list(cut_at_chunks(axis.indices, size))
        for axis, size in zip(axes, inner.shape, strict=True)
    ]
    inner_axes = [
        _inner_axes(axis._replace(stride=stride), cuts)
        for axis, stride, cuts in zip(axes, inner.strides, cuts_along, strict=True)
    ]
    plans_by_axes: dict[tuple[int, ...], RunPlan] = {}  # many inner chunks have the same plan
    plans = []
    for of_chunk in itertools.product(*inner_axes):
        key = tuple(map(id, of_chunk))  # equal axes are one object
        if key not in plans_by_axes:
            in_stored_order = tuple([of_chunk[axis] for axis in inner.axis_order])
            plans_by_axes[key] = plan_axes(in_stored_order, inner.item_size, max_gap)
        plans.append(plans_by_axes[key])
    return ShardPlan(
        inner,
        shape=selection_shape(axes),
        coordinates=np.ix_(*[[cut.position for cut in cuts] for cuts in cuts_along]),
        plans=plans,
        out_selections_along=[
            [cut.out_selection for cut in cuts]
            for axis, cuts in zip(axes, cuts_along, strict=True)
            if axis.selection_axis is not None
        ],
    )


def _inner_axes(axis: Axis, cuts: list[InChunk]) -> list[Axis]:
    """Return what is selected of each inner chunk along an axis: one object for equal ranges."""
    by_range: dict[range, Axis] = {}
    inner_axes = []
    for _, indices, _ in cuts:
        inner = axis._replace(indices=indices)
        inner_axes.append(by_range.setdefault(indices, inner) if type(indices) is range else inner)
    return inner_axes


def _plan_points(selection: Any, inner: Geometry, max_gap: int) -> ShardPointsPlan:
    offsets, coordinates = np.zeros((), np.intp), []
    for indices, size, stride in zip(selection, inner.shape, inner.strides, strict=True):
        chunks, within = np.divmod(np.asarray(indices, np.intp), size)
        coordinates.append(chunks)
        offsets = offsets + within * stride
    return ShardPointsPlan(inner, np.shape(offsets), tuple(coordinates), offsets, max_gap)


AnyLayout = Layout | ShardLayout
# Returns the layout of a chunk, given zarr's `ArraySpec`; may raise `LeftToZarr`.
LayoutOf = Callable[[Any], AnyLayout]
