"""A selection of a chunk -> which runs of it to read, and where they belong.

Works on integers only: no array data, no I/O. From the innermost stored axis outwards, everything
between the lowest and the highest index, the hull, is one run if it is no longer than the indices
alone would be with the largest gap between them; along the other axes, there is a run for each
index. So all runs of a plan have the same length. What a hull holds beyond the selection is left
out by a strided window over the runs, and by NumPy's indexing.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numcodecs_bytes._engine import constants, kept
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.selection import Axis, Indices, axes_of, key_of

Bounds = tuple[int, int]  # the lowest and the highest index along an axis
Where = tuple[Any, ...]  # a slice for each axis of a selection, or for one of them an array


@dataclass(slots=True, eq=False)
class Plan:
    """Which runs of a chunk to read, and where the selected elements lie in them."""

    num_runs: int
    length: int  # of each run, in bytes
    # The window over the runs, end to end, with the axes of the selection; strides in bytes.
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    has_index: bool  # whether `index` has to be applied to the window
    is_solid: bool  # whether the runs, end to end, are the selected elements in stored order
    axes: tuple[Axis, ...]  # in the order in which they are stored
    num_outer: int  # how many axes, the first ones, have a run for each index
    start: int  # the offset in the chunk of the hull along the other axes, in bytes
    gap: int  # the largest gap that was planned with, in bytes
    _offsets: Indices | None = None
    _index: Where | None = None

    @property
    def num_bytes(self) -> int:
        """The total length of the runs."""
        return self.num_runs * self.length

    @property
    def most_memory(self) -> int:
        """See `kept.Kept`."""
        return 512 + 512 * len(self.axes) + 8 * self.num_runs

    @property
    def stored_axes(self) -> tuple[int, ...]:
        """The axes of the selection in the order in which they are stored."""
        return tuple([a.to for a in self.axes if a.to is not None])

    @property
    def index(self) -> Where:
        """What to select along each axis of the window: ``slice(None)``, or a 1-D array."""
        if self._index is None:  # made here, because a plan that is split never needs it
            index: list[Any] = [slice(None)] * len(self.shape)
            for axis in self.axes[self.num_outer :]:
                if axis.to is not None and type(axis.indices) is not range:
                    index[axis.to] = axis.indices - axis.bounds[0]
            self._index = tuple(index)
        return self._index

    def starts(self, start: int = 0) -> Indices:
        """Return the offset of each run, in bytes, if the chunk begins at `start`."""
        offsets: Any = self._offsets
        if offsets is None:
            offsets = np.zeros(min(self.num_runs, 1), np.intp)
            for k, (indices, stride, _) in enumerate(reversed(self.axes[: self.num_outer])):
                along = np.asarray(indices) * stride
                offsets = np.add.outer(along, offsets).reshape(-1) if k else along
            self._offsets = offsets
        return offsets + (self.start + start)  # type: ignore[no-any-return]


def plan_of(
    selection: Any, layout: Layout, drop_axes: tuple[int, ...] = (), gap: int | None = None
) -> Plan | None:
    """Return the plan for a selection of a chunk, or None if the selection is of an unknown kind.

    It is kept, unless the selection has arrays. With a gap of 0, all bytes of all runs are
    selected, and repeated indices repeat runs.
    """
    gap = constants.GAP_BYTES if gap is None else gap
    key = layout, key_of(selection), drop_axes, gap
    try:
        plan: Plan | None = kept.find(key)
    except TypeError:  # an array has no hash
        axes = axes_of(selection, layout, drop_axes)
        return None if axes is None else _plan(axes, layout.item_size, gap)
    if plan is None and (axes := axes_of(selection, layout, drop_axes)) is not None:
        plan = _plan(axes, layout.item_size, gap)
        plan = kept.add(key, plan)
    return plan


def plan_axes(axes: tuple[Axis, ...], layout: Layout, gap: int | None = None) -> Plan:
    """Return the plan for indices along each axis, in the order in which the axes are stored."""
    return _plan(axes, layout.item_size, constants.GAP_BYTES if gap is None else gap)


def _plan(axes: tuple[Axis, ...], item_size: int, gap: int, num_outer: int | None = None) -> Plan:
    """Return the plan for indices along each axis, in stored order."""
    num_axes = sum([a.to is not None for a in axes])
    shape, strides = [0] * num_axes, [0] * num_axes
    has_index = False
    is_empty = not all([len(a.indices) for a in axes])  # noqa: C419 # a generator is slow
    start, length = 0, 0
    bounds = [] if is_empty else [a.bounds for a in axes]
    if not is_empty:
        num_outer = _num_outer(axes, bounds, item_size, gap) if num_outer is None else num_outer
        start, length = _hull(axes[num_outer:], bounds[num_outer:], item_size)
    num_outer = num_outer or 0
    distance = length
    for k, (indices, stride, to) in reversed(list(enumerate(axes))):
        num, step = len(indices), distance
        if k < num_outer:
            distance *= num
        elif type(indices) is range:
            step = indices.step * stride
        elif not is_empty:
            low, high = bounds[k]
            num, step, has_index = high - low + 1, stride, True
        if to is not None:
            shape[to], strides[to] = num, step
    return Plan(
        distance // length if length else 0,
        length,
        tuple(shape),
        tuple(strides),
        has_index,
        not has_index and distance == math.prod(shape) * item_size,
        axes,
        num_outer,
        start,
        gap,
    )


def _num_outer(axes: tuple[Axis, ...], bounds: list[Bounds], item_size: int, gap: int) -> int:
    """Return how many of the axes, the first ones, have a run for each index."""
    num, length = len(axes), item_size
    while num:
        (indices, stride, _), (low, high) = axes[num - 1], bounds[num - 1]
        longer = length + (high - low) * stride
        # Indices in an array may be repeated, and others left out.
        may_leave_out = type(indices) is not range and high > low
        if longer > len(indices) * (length + gap) - gap or (may_leave_out and not gap):
            break
        num, length = num - 1, longer
    return num


def _hull(axes: tuple[Axis, ...], bounds: list[Bounds], item_size: int) -> tuple[int, int]:
    """Return the offset and the length of the hull along some axes, in bytes."""
    start, length = 0, item_size
    for (_, stride, _), (low, high) in zip(axes, bounds, strict=True):
        start, length = start + low * stride, length + (high - low) * stride
    return start, length


def split(plan: Plan, item_size: int) -> "Iterable[tuple[Where, Plan]]":
    """Return parts of a plan, and where each belongs in the selection.

    Each part reads at most `constants.BLOCK_BYTES`, unless it is a single element, or a hull of up
    to `constants.GROUP_BYTES` around indices in arrays. If the axes are stored in another order,
    parts read up to that much, too, to fill whole cache lines of the output.
    An axis with an array of many close indices is cut into blocks of the chunk, each of which is
    read once. Elements of a part at the same place are in the order of the selection.
    """
    is_scattered = plan.has_index or list(plan.stored_axes) != sorted(plan.stored_axes)
    is_group = plan.num_runs == 1 and is_scattered
    most = constants.GROUP_BYTES if is_group else constants.BLOCK_BYTES
    if plan.num_bytes <= max(most, item_size):
        return [((slice(None),) * len(plan.shape), plan)]
    return _split(plan, item_size, constants.BLOCK_BYTES if plan.has_index else most)


def _split(plan: Plan, item_size: int, most: int) -> "Iterator[tuple[Where, Plan]]":
    """Yield the parts: for each index of the outer axes, those into which one axis is cut."""
    axes, k, num_outer, per_index = plan.axes, len(plan.axes), 0, item_size
    bounds = [a.bounds for a in axes]
    while k:
        k -= 1
        num_outer = _num_outer(axes[k:], bounds[k:], item_size, plan.gap)
        inner = k + num_outer
        _, num_bytes = _hull(axes[inner:], bounds[inner:], item_size)
        num_bytes *= math.prod([len(a.indices) for a in axes[k : k + num_outer]])
        if num_bytes > most:
            break
        per_index = num_bytes
    outer, along = axes[:k], axes[k]
    cuts = _cuts(along, per_index, most, is_hull=not num_outer)
    cuts = list(cuts) if outer else cuts
    firsts = tuple([a._replace(indices=range(1)) for a in outer])
    made: dict[int, Plan] = {}
    for where, moved_by in _each(outer, len(plan.shape)):
        for cut in cuts:
            indices: Any = along.indices[cut]
            part, start = None, moved_by
            if type(indices) is range:  # all parts with the same number of indices are alike
                start += indices[0] * along.stride
                indices = range(0, len(indices) * indices.step, indices.step)
                part = made.get(len(indices))
            if part is None:
                of_part = (*firsts, along._replace(indices=indices), *axes[k + 1 :])
                part = _plan(of_part, item_size, plan.gap, k + num_outer if num_outer else None)
                if type(indices) is range:
                    made[len(indices)] = part
            if along.to is not None:
                where[along.to] = cut
            yield tuple(where), replace(part, start=part.start + start) if start else part


def _each(axes: tuple[Axis, ...], num_axes: int) -> Iterator[tuple[list[Any], int]]:
    """Yield, for each index of the axes, where it belongs in the selection, and its offset."""
    for at in itertools.product(*[range(len(a.indices)) for a in axes]):
        where: list[Any] = [slice(None)] * num_axes
        start = 0
        for (indices, stride, to), i in zip(axes, at, strict=True):
            start += int(indices[i]) * stride
            if to is not None:
                where[to] = slice(i, i + 1)
        yield where, start


def _cuts(along: Axis, per_index: int, most: int, *, is_hull: bool) -> Iterable[Any]:
    """Return parts of an axis that read up to `most` bytes each; an index reads `per_index`."""
    if is_hull and type(along.indices) is not range:
        return _blocks(along, per_index)
    num = most // per_index
    if is_hull:
        step: int = along.indices.step * along.stride  # type: ignore[union-attr]
        num = 1 + (most - per_index) // step
    edges = [*range(0, len(along.indices), max(num, 1)), len(along.indices)]
    return itertools.starmap(slice, itertools.pairwise(edges))


def _blocks(along: Axis, per_index: int) -> Iterator[Any]:
    """Yield parts of an axis by blocks of the chunk: slices of an ascending array, else arrays."""
    indices: Any = along.indices
    low, high = along.bounds
    order, num = None, 1 + max(constants.BLOCK_BYTES - per_index, 0) // along.stride
    if not (indices[1:] >= indices[:-1]).all():
        blocks = (indices - low) // num
        is_short = (high - low) // num < 1 << 16  # NumPy sorts uint16 without comparing
        order = np.argsort(blocks.astype(np.uint16) if is_short else blocks, kind="stable")
        indices = indices[order]
    # Indices that are grouped by block are sorted well enough to find the edges of the blocks.
    edges = np.searchsorted(indices, np.arange(low, high + num, num))
    for first, end in itertools.pairwise(np.unique(np.append(edges, len(indices))).tolist()):
        yield slice(first, end) if order is None else order[first:end]
