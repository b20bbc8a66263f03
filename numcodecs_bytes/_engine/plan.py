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
from functools import partial
from typing import Any, NamedTuple

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
        return tuple([axis.output_axis for axis in self.axes if axis.output_axis is not None])

    @property
    def index(self) -> Where:
        """What to select along each axis of the window: ``slice(None)``, or a 1-D array."""
        if self._index is None:  # made here, because a plan that is split never needs it
            index: list[Any] = [slice(None)] * len(self.shape)
            for axis in self.axes[self.num_outer :]:
                if axis.output_axis is not None and type(axis.indices) is not range:
                    index[axis.output_axis] = axis.indices - axis.bounds[0]
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
) -> Plan:
    """Return the plan for a selection of a chunk; raise `LeftToZarr` if it is of an unknown kind.

    It is kept, unless the selection has arrays. With a gap of 0, all bytes of all runs are
    selected, and repeated indices repeat runs.
    """
    gap = constants.GAP_BYTES if gap is None else gap
    key = layout, key_of(selection), drop_axes, gap
    try:
        plan: Plan | None = kept.find(key)
    except TypeError:  # an array has no hash
        return _plan(axes_of(selection, layout, drop_axes), layout.item_size, gap)
    if plan is None:
        plan = _plan(axes_of(selection, layout, drop_axes), layout.item_size, gap)
        plan = kept.add(key, plan)
    return plan


def plan_axes(axes: tuple[Axis, ...], layout: Layout, gap: int | None = None) -> Plan:
    """Return the plan for indices along each axis, in the order in which the axes are stored."""
    return _plan(axes, layout.item_size, constants.GAP_BYTES if gap is None else gap)


def _plan(axes: tuple[Axis, ...], item_size: int, gap: int, num_outer: int | None = None) -> Plan:
    """Return the plan for indices along each axis, in stored order.

    The first `num_outer` axes have a run for each index; by default, the inequality decides.
    """
    if not all([len(axis.indices) for axis in axes]):  # noqa: C419 # a generator is slow
        return _empty_plan(axes, gap)
    bounds = [axis.bounds for axis in axes]
    if num_outer is None:
        num_outer = _num_outer(axes, bounds, item_size, gap)
    outer, inner = axes[:num_outer], axes[num_outer:]
    start, length = _hull(inner, bounds[num_outer:], item_size)
    window = _Window([0] * _num_selected(axes))
    for axis, (low, high) in zip(inner, bounds[num_outer:], strict=True):
        if type(axis.indices) is range:
            window.add(axis, len(axis.indices), axis.indices.step * axis.stride)
        else:
            window.add(axis, high - low + 1, axis.stride)
            window.has_index = True
    num_bytes = length
    for axis in reversed(outer):
        window.add(axis, len(axis.indices), num_bytes)
        num_bytes *= len(axis.indices)
    is_solid = not window.has_index and num_bytes == math.prod(window.shape) * item_size
    return Plan(
        num_runs=num_bytes // length if length else 0,
        length=length,
        shape=tuple(window.shape),
        strides=tuple(window.strides),
        has_index=window.has_index,
        is_solid=is_solid,
        axes=axes,
        num_outer=num_outer,
        start=start,
        gap=gap,
    )


def _empty_plan(axes: tuple[Axis, ...], gap: int) -> Plan:
    """Return the plan for a selection of nothing."""
    window = _Window([0] * _num_selected(axes))
    for axis in axes:
        window.add(axis, len(axis.indices), 0)
    return Plan(
        num_runs=0,
        length=0,
        shape=tuple(window.shape),
        strides=tuple(window.strides),
        has_index=False,
        is_solid=True,
        axes=axes,
        num_outer=0,
        start=0,
        gap=gap,
    )


class _Window:
    """The shape and the strides, in bytes, of a window over runs: an axis for each selected one."""

    def __init__(self, shape: list[int]) -> None:
        self.shape, self.strides, self.has_index = shape, shape.copy(), False

    def add(self, axis: Axis, num: int, stride: int) -> None:
        """Set how many elements there are along an axis, and how far apart they are."""
        if axis.output_axis is not None:
            self.shape[axis.output_axis], self.strides[axis.output_axis] = num, stride


def _num_selected(axes: tuple[Axis, ...]) -> int:
    """Return how many axes a selection has."""
    return sum([axis.output_axis is not None for axis in axes])


def _num_outer(axes: tuple[Axis, ...], bounds: list[Bounds], item_size: int, gap: int) -> int:
    """Return how many of the axes, the first ones, have a run for each index."""
    length = item_size
    for num in range(len(axes), 0, -1):
        (indices, stride, _), (low, high) = axes[num - 1], bounds[num - 1]
        longer = length + (high - low) * stride
        # Indices in an array may be repeated, and others left out.
        may_leave_out = type(indices) is not range and high > low
        if longer > len(indices) * (length + gap) - gap or (may_leave_out and not gap):
            return num
        length = longer
    return 0


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
    """Yield the parts: for each index of the axes before one, the pieces into which that is cut."""
    position, num_outer, per_index = _find_cut(plan, item_size, most)
    axes, cut_axis = plan.axes, plan.axes[position]
    pieces = _pieces(cut_axis, per_index, most, is_hull=not num_outer)
    if position:
        pieces = list(pieces)
    make = partial(_plan_piece, plan, position, num_outer, item_size)
    of_length: dict[int, Plan] = {}  # all pieces with the same number of indices are alike
    for where, offset in _each(axes[:position], len(plan.shape)):
        for piece in pieces:
            indices: Any = cut_axis.indices[piece]
            if type(indices) is range:
                first = indices[0] * cut_axis.stride
                part = of_length.get(len(indices))
                if part is None:
                    from_zero = range(0, len(indices) * indices.step, indices.step)
                    part = of_length[len(indices)] = make(from_zero)
            else:
                first, part = 0, make(indices)
            if cut_axis.output_axis is not None:
                where[cut_axis.output_axis] = piece
            yield tuple(where), replace(part, start=part.start + offset + first)


class _Cut(NamedTuple):
    """Where a selection is cut into parts."""

    position: int  # of the axis
    num_outer: int  # of the axes from it on, how many have a run for each index
    per_index: int  # how much is read for an index of it, in bytes


def _find_cut(plan: Plan, item_size: int, most: int) -> _Cut:
    """Return the innermost axis along which more than `most` bytes are read."""
    axes, per_index, position, num_outer = plan.axes, item_size, 0, 0
    bounds = [axis.bounds for axis in axes]
    for position in range(len(axes) - 1, -1, -1):
        num_outer = _num_outer(axes[position:], bounds[position:], item_size, plan.gap)
        inner = position + num_outer
        _, num_bytes = _hull(axes[inner:], bounds[inner:], item_size)
        num_bytes *= math.prod([len(axis.indices) for axis in axes[position:inner]])
        if num_bytes > most:
            break
        per_index = num_bytes
    return _Cut(position, num_outer, per_index)


def _plan_piece(
    plan: Plan, position: int, num_outer: int, item_size: int, indices: range | Indices
) -> Plan:
    """Return the plan for some indices of an axis, and for the first ones of the axes before it."""
    axes = plan.axes
    before = [axis._replace(indices=range(1)) for axis in axes[:position]]
    piece = (*before, axes[position]._replace(indices=indices), *axes[position + 1 :])
    return _plan(piece, item_size, plan.gap, position + num_outer if num_outer else None)


def _each(axes: tuple[Axis, ...], num_axes: int) -> Iterator[tuple[list[Any], int]]:
    """Yield, for each index of the axes, where it belongs in the selection, and its offset."""
    for positions in itertools.product(*[range(len(axis.indices)) for axis in axes]):
        where: list[Any] = [slice(None)] * num_axes
        start = 0
        for (indices, stride, output_axis), position in zip(axes, positions, strict=True):
            start += int(indices[position]) * stride
            if output_axis is not None:
                where[output_axis] = slice(position, position + 1)
        yield where, start


def _pieces(along: Axis, per_index: int, most: int, *, is_hull: bool) -> Iterable[Any]:
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
