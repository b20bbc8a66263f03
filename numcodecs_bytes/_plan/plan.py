"""A selection of a chunk -> which runs of it to read, and where they belong.

Works on integers only: no array data, no I/O. From the innermost stored axis outwards, everything
between the lowest and the highest index, the hull, is one run if it is no longer than the n indices
alone would be with the largest gap between them: ``hull <= n * run + (n - 1) * max_gap``. Along the
other axes, there is a run for each index. So all runs of a plan have the same length. What a hull
holds beyond the selection is left out by a strided window over the runs, and by NumPy's indexing.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Geometry, Layout
from numcodecs_bytes._plan.out_selections import OutSelection
from numcodecs_bytes._plan.selection import (
    SLICES_HAVE_HASHES,
    Axis,
    Indices,
    Selector,
    axes_of,
    key_of,
    selection_of,
)

# How many plans of slices and integers are cached, of all arrays together: planning again for each
# chunk takes 1.2 to 1.35 times as long. Most take 1 KiB, and they take up to 4 MiB in all, because
# the offsets of more than CACHED_RUNS runs are not cached: to make them takes 5 % of the time to
# read.
CACHED_PLANS = 1 << 10
CACHED_RUNS = 1 << 8

Bounds = tuple[tuple[int, int], ...]  # the lowest and the highest index along each axis


@dataclass(slots=True, eq=False)
class RunPlan:
    """Which runs of a chunk to read, and where the selected elements lie in them.

    The default values are those of a selection of nothing.
    """

    axes: tuple[Axis, ...]  # in the order in which they are stored
    stored_axes: tuple[int, ...]  # the axes of the selection, in stored order
    max_gap: int  # the limit of gaps that is planned with, in bytes
    # The window over the runs, end to end, with the axes of the selection; strides in bytes.
    window_shape: tuple[int, ...]
    window_strides: tuple[int, ...]
    num_runs: int = 0
    run_bytes: int = 0  # the length of each run
    num_bytes: int = 0  # the length of all runs
    needs_take: bool = False  # whether `take_index` has to be applied to the window
    is_dense: bool = True  # whether the runs, end to end, are what is selected, in stored order
    num_run_axes: int = 0  # how many axes, the first ones, have a run for each index
    first_run_offset: int = 0  # the offset in the chunk of the hull along the other axes, in bytes
    bounds: Bounds = ()
    # Made when they are first needed; two threads may both make the same.
    _offsets: Indices | None = None
    _take_index: OutSelection | None = None

    @property
    def span_bytes(self) -> int:
        """The length from the start of the first run to the end of the last one, in bytes."""
        if not self.num_runs:
            return 0
        outer = zip(self.axes[: self.num_run_axes], self.bounds, strict=False)
        return self.run_bytes + sum([(high - low) * axis.stride for axis, (low, high) in outer])

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes to read all runs at once."""
        return max(self.num_bytes, (self.num_runs - 1) * constants.RUN_OVERHEAD_BYTES)

    @property
    def take_index(self) -> OutSelection:
        """What to select along each axis of the window: ``slice(None)``, or a 1-D array."""
        if self._take_index is None:  # made here, because a plan that is split never needs it
            take_index: list[Selector] = [slice(None)] * len(self.window_shape)
            for position in range(self.num_run_axes, len(self.axes)):
                axis, (low, _) = self.axes[position], self.bounds[position]
                if axis.selection_axis is not None and type(axis.indices) is not range:
                    take_index[axis.selection_axis] = axis.indices - low if low else axis.indices
            self._take_index = tuple(take_index)
        return self._take_index

    def starts(self, chunk_start: int = 0, runs: slice = slice(None)) -> Indices:
        """Return where runs start in the object, or some of them, given where the chunk does."""
        numbers, hull_start = range(self.num_runs), chunk_start + self.first_run_offset
        if self.num_runs > CACHED_RUNS:
            return self._make_offsets(numbers[runs]) + hull_start
        if self._offsets is None:
            self._offsets = self._make_offsets(numbers)
        return self._offsets[runs] + hull_start

    def first_start(self, chunk_start: int) -> int:
        """Return where the first run starts in the object, given where the chunk does."""
        along = [int(axis.indices[0]) * axis.stride for axis in self.axes[: self.num_run_axes]]
        return chunk_start + self.first_run_offset + sum(along)

    def _make_offsets(self, runs: range) -> Indices:
        """Return how far runs are, in bytes, from one at index 0 along all axes that have runs."""
        numbers, offsets = np.arange(runs.start, runs.stop, runs.step), np.zeros(len(runs), np.intp)
        for axis in reversed(self.axes[: self.num_run_axes]):
            numbers, along = np.divmod(numbers, len(axis.indices))
            offsets += axis.offsets(along)
        return offsets

    def blocks(self, chunk_start: int) -> Iterable[list[int]]:
        """Return where the runs start, in blocks that take about `constants.BLOCK_BYTES` to read.

        A block has at least one run.
        """
        if not self.num_run_axes:  # what follows takes 2 us
            return [[chunk_start + self.first_run_offset]]
        num = max(constants.BLOCK_BYTES // max(self.run_bytes, constants.RUN_OVERHEAD_BYTES), 1)
        firsts = range(0, self.num_runs, num)
        return (self.starts(chunk_start, slice(first, first + num)).tolist() for first in firsts)

    def probe_offsets(self, chunk_start: int) -> list[int]:
        """Return where a few bytes of the runs are, far apart, given where the chunk starts.

        The last one comes first: after a read at the start of a file, Linux ignores some of what it
        is asked to prefetch over FUSE.
        """
        num = constants.NUM_PROBES
        if self.num_runs > 1:
            runs = slice(None, None, -max(self.num_runs // num, 1))
            offsets: list[int] = self.starts(chunk_start, runs)[:num].tolist()
            return offsets
        first = chunk_start + self.first_run_offset
        step = max(self.run_bytes // num, constants.PREFETCH_BYTES)
        return list(range(first + self.run_bytes - 1, first - 1, -step))


class PlacedRuns(NamedTuple):
    """What is read of a chunk, and where that belongs in the output."""

    plan: RunPlan
    chunk_start: int  # the offset of the chunk in its object, in bytes
    out_selection: OutSelection


def probe_offsets(placed: Sequence[PlacedRuns]) -> list[int]:
    """Return where a few bytes of several chunks are, far apart."""
    num = constants.NUM_PROBES
    probed = placed[:: -max(len(placed) // num, 1)][:num]
    max_offsets = num // max(len(probed), 1)
    return [each for plan, start, _ in probed for each in plan.probe_offsets(start)[:max_offsets]]


def plan_of(
    selection: object, layout: Layout, drop_axes: tuple[int, ...] = (), max_gap: int | None = None
) -> RunPlan:
    """Return the plan for a selection of a chunk; raise `LeftToZarr` if it is of an unknown kind.

    It is cached, unless the selection has arrays. With a `max_gap` of 0, all bytes of all runs are
    selected, and repeated indices repeat runs.
    """
    max_gap = constants.GAP_BYTES if max_gap is None else max_gap
    key = selection if SLICES_HAVE_HASHES else key_of(selection)
    try:
        return _cached_plan(key, layout.geometry, drop_axes, max_gap)
    except TypeError as error:  # arrays have no hash; any other error is raised again here
        raise_if_of_caller(error)
        return _plan(selection, layout.geometry, drop_axes, max_gap)


# Threads may share it: Python itself protects it, also in a child process.
@functools.lru_cache(maxsize=CACHED_PLANS)
def _cached_plan(
    key: object, geometry: Geometry, drop_axes: tuple[int, ...], max_gap: int
) -> RunPlan:
    return _plan(selection_of(key), geometry, drop_axes, max_gap)


def _plan(
    selection: object, geometry: Geometry, drop_axes: tuple[int, ...], max_gap: int
) -> RunPlan:
    return plan_axes(axes_of(selection, geometry, drop_axes), geometry.item_size, max_gap)


def plan_axes(axes: tuple[Axis, ...], item_size: int, max_gap: int | None = None) -> RunPlan:
    """Return the plan for indices along each axis, in the order in which the axes are stored.

    Gaps of up to `max_gap` decide along how many axes the hull is one run.
    """
    max_gap = constants.GAP_BYTES if max_gap is None else max_gap
    if 0 in [len(axis.indices) for axis in axes]:
        shape = selection_shape(axes)
        return RunPlan(axes, _stored_axes(axes), max_gap, shape, window_strides=(0,) * len(shape))
    bounds = tuple([axis.bounds for axis in axes])
    num_run_axes = _num_run_axes(axes, bounds, item_size, max_gap)
    return _plan_hulls(axes, bounds, item_size, max_gap, num_run_axes)


def _num_run_axes(axes: tuple[Axis, ...], bounds: Bounds, item_size: int, max_gap: int) -> int:
    """Return how many axes, the first ones, have a run for each index."""
    num, run_bytes = len(axes), item_size
    for axis, (low, high) in zip(reversed(axes), reversed(bounds), strict=True):
        hull_bytes = run_bytes + (high - low) * axis.stride
        if hull_bytes > len(axis.indices) * (run_bytes + max_gap) - max_gap:
            break
        # Indices in an array may be repeated, and others left out.
        if not max_gap and type(axis.indices) is not range and high > low:
            break
        num, run_bytes = num - 1, hull_bytes
    return num


def _plan_hulls(
    axes: tuple[Axis, ...], bounds: Bounds, item_size: int, max_gap: int, num_run_axes: int
) -> RunPlan:
    """Return the plan whose runs are the hulls along all axes but the first `num_run_axes`.

    There is a run for each index along these, whatever the gaps between them.
    """
    sizes, strides = [len(axis.indices) for axis in axes], [0] * len(axes)
    first_run_offset, run_bytes, needs_take = 0, item_size, False
    for position in range(num_run_axes, len(axes)):
        axis, (low, high) = axes[position], bounds[position]
        first_run_offset += low * axis.stride
        run_bytes += (high - low) * axis.stride
        if type(axis.indices) is range:
            strides[position] = axis.stride * axis.indices.step
        else:
            strides[position] = axis.stride
            sizes[position] = high - low + 1
            needs_take = True
    num_bytes = run_bytes
    for position in reversed(range(num_run_axes)):  # a run for each index
        strides[position] = num_bytes
        num_bytes *= sizes[position]
    shape = _in_order_of_selection(axes, sizes)
    return RunPlan(
        axes,
        _stored_axes(axes),
        max_gap,
        shape,
        _in_order_of_selection(axes, strides),
        num_runs=num_bytes // run_bytes if run_bytes else 0,
        run_bytes=run_bytes,
        num_bytes=num_bytes,
        needs_take=needs_take,
        is_dense=not needs_take and num_bytes == math.prod(shape) * item_size,
        num_run_axes=num_run_axes,
        first_run_offset=first_run_offset,
        bounds=bounds,
    )


def _stored_axes(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    return tuple([axis.selection_axis for axis in axes if axis.selection_axis is not None])


def selection_shape(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    """Return the shape of what is selected along each axis."""
    return _in_order_of_selection(axes, [len(axis.indices) for axis in axes])


def _in_order_of_selection(axes: tuple[Axis, ...], numbers: list[int]) -> tuple[int, ...]:
    """Return numbers, given for each axis in stored order, for the axes of the selection."""
    by_axis = {axis.selection_axis: number for axis, number in zip(axes, numbers, strict=True)}
    by_axis.pop(None, None)  # dropped axes
    return tuple([by_axis[k] for k in range(len(by_axis))])


def split(plan: RunPlan, item_size: int) -> Iterator[tuple[OutSelection, RunPlan]]:
    """Yield a plan in blocks, in stored order, and where each is in the selection: () is all of it.

    Each reads at most `constants.BLOCK_BYTES`, or what `_max_block_bytes` says, unless it is a
    single element. An axis with an array of many close indices is cut at multiples of a number of
    indices of the chunk, so that each byte is read once. Elements of a block that belong to the
    same element of the output are in the order of the selection.
    """
    max_bytes = constants.BLOCK_BYTES
    if plan.memory_bytes > max_bytes:
        max_bytes = _max_block_bytes(plan, item_size)
    if plan.memory_bytes <= max_bytes:
        yield (), plan
        return
    cuts, max_gap = _cut_first_axes(plan, max_bytes), plan.max_gap
    are_parts_of_runs = len(cuts) > plan.num_run_axes  # in them, indices may be far apart
    for out_selection, axes in _select(plan, cuts):
        block = plan_axes(axes, item_size, max_gap) if are_parts_of_runs else None
        if block is None or block.memory_bytes > max_bytes:  # short runs take more than their hull
            bounds = tuple([axis.bounds for axis in axes])
            block = _plan_hulls(axes, bounds, item_size, max_gap, plan.num_run_axes)
        yield out_selection, block


def _max_block_bytes(plan: RunPlan, item_size: int) -> int:
    """Return how much a block may read: more for some plans of a single long run.

    That is up to `constants.GROUP_BYTES`: for a shorter hull around indices in arrays, or if axes
    are stored in another order, to fill whole cache lines of the output.
    """
    if plan.num_runs == 1:
        max_bytes = max(constants.GROUP_BYTES, item_size)
        is_transposed = list(plan.stored_axes) != sorted(plan.stored_axes)
        # A longer hull around indices is read in blocks.
        if plan.num_bytes <= max_bytes if plan.needs_take else is_transposed:
            return max_bytes
    return max(constants.BLOCK_BYTES, item_size)


def _cut_first_axes(plan: RunPlan, max_bytes: int) -> list[list[Selector]]:
    """Return what selects the indices of blocks along the first axes, up to one that is cut.

    Blocks have as many indices along it as can be read in `max_bytes`, one index along each axis
    before it, and all along those after it: of 2 planes of 10 rows, each a run of 1 KiB, 4 KiB are
    4 rows of a plane: ``[[0:1, 1:2], [0:4, 4:8, 8:10]]``.
    """
    cuts: list[list[Selector]] = []
    num_runs, hull_bytes = plan.num_runs, plan.run_bytes
    max_runs = min(max_bytes // hull_bytes, 1 + max_bytes // constants.RUN_OVERHEAD_BYTES)
    for position, axis in enumerate(plan.axes):
        size = len(axis.indices)
        if position < plan.num_run_axes:
            num_runs //= size  # now for one index
            num = max_runs // num_runs
        else:
            low, high = plan.bounds[position]
            hull_bytes -= (high - low) * axis.stride  # now for one index
            step = axis.indices.step if type(axis.indices) is range else 1
            num = 1 + (max_bytes - hull_bytes) // (axis.stride * step)
            if num > 0 and type(axis.indices) is not range:
                return [*cuts, list(_cut_array(axis.indices, low, high, num))]
        firsts = range(0, size, max(num, 1))
        cuts.append([slice(first, min(first + firsts.step, size)) for first in firsts])
        if num > 0:
            break
    return cuts


def _select(
    plan: RunPlan, cuts: list[list[Selector]]
) -> Iterator[tuple[OutSelection, tuple[Axis, ...]]]:
    """Yield where each block is in the selection, and its indices along each axis."""
    for selectors in itertools.product(*cuts):
        axes = list(plan.axes)
        out_selection: list[Selector] = [slice(None)] * len(plan.window_shape)
        for position, selector in enumerate(selectors):
            axes[position] = axis = axes[position].select(selector)
            if axis.selection_axis is not None:
                out_selection[axis.selection_axis] = selector
        yield tuple(out_selection), tuple(axes)


def _cut_array(indices: Indices, low: int, high: int, num: int) -> Iterator[Selector]:
    """Yield what selects the indices from `low` on, `num` possible ones at a time, up to `high`.

    Those are slices if the indices ascend, else arrays.
    """
    order = None
    if not (indices[1:] >= indices[:-1]).all():
        blocks = (indices - low) // num
        is_short = (high - low) // num < 1 << 16  # NumPy sorts uint16 without comparing
        order = np.argsort(blocks.astype(np.uint16) if is_short else blocks, kind="stable")
        indices = indices[order]
    # Indices that are grouped by block are sorted well enough to find the edges of the blocks.
    edges = np.searchsorted(indices, np.arange(low, high + num, num))
    for first, end in itertools.pairwise(np.unique(np.append(edges, len(indices))).tolist()):
        yield slice(first, end) if order is None else order[first:end]
