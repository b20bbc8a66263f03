"""Selection -> byte ranges: which bytes of an uncompressed chunk a selection needs.

Works on integers only: no array data, no I/O. The elements of a chunk are in C order, or in C order
of its permuted axes. Three terms:

- A *piece* is a contiguous part of the chunk that is kept. The pieces, end to end, are the fetched
  items (elements, some of which may not be selected).
- A *range* is what one request fetches: one or more pieces and the gaps between them. Pieces are
  coalesced into one range if the gap between them is at most `max_gap_bytes`, which minimizes
  ``requests * max_gap_bytes + bytes``.
- The *window* is a strided view of the fetched items that shows the selected ones.

A selection is either a list of points (``vindex``, masks) or a product of one set of indices per
axis (basic selections, ``oindex``). The pieces of a product are found axis by axis, from the axis
with the smallest stride. As long as the indices of an axis are close together, they are one piece.
That piece repeats for every combination of indices of the other axes. If the gap between two of
these is small, one range fetches both.
"""

import functools
import itertools
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.product import parse_product
from numcodecs_bytes._parts.ranges import Coalescing, Indices, Ranges, join_adjacent
from numcodecs_bytes._parts.selection import (
    Axis,
    are_points,
    as_array,
    is_int,
    key_of,
    parse_axes,
    parse_points,
    selectors_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Byte ranges to fetch, and where the selected elements lie in them.

    The pieces of the fetched ranges, laid end to end, are a flat array of items. The window is a
    strided view of that array that shows every selected item. For a whole chunk or a contiguous
    part of it, it shows all items, and NumPy applies the selection. Otherwise, along each axis of
    the window, `index` picks the distinct positions, and `order` picks the selected ones from
    those. Apply `index` one axis at a time, the first axis first: the window may overlap itself,
    and so be larger than its memory.

    Attributes
    ----------
    ranges : Ranges
        What to fetch, in bytes of the chunk.
    window_shape, window_strides : tuple of int
        Shape of the window, and its strides in items.
    index, order : tuple of (numpy.ndarray or None)
        Positions along each axis of the window; None means all positions in order.
    shape : tuple of int
        Shape of the selection; for a whole chunk, the shape of the chunk. If `selection` is set and
        not `is_solid`, that of the window.
    is_whole : bool
        Whether the whole chunk is fetched.
    selection : tuple or None
        What NumPy selects from the window instead of `index` and `order`; None for a whole chunk,
        to which the caller's own selection applies.
    is_solid : bool
        Whether the fetched bytes are those of slices and integers, and no others.
    is_slab : bool
        Whether more is fetched than pieces and gaps of at most `max_gap_bytes`, because that takes
        no more time if it is in memory.
    """

    ranges: Ranges
    window_shape: tuple[int, ...]
    window_strides: tuple[int, ...]
    index: tuple[Indices | None, ...]
    order: tuple[Indices | None, ...]
    shape: tuple[int, ...]
    is_whole: bool = False
    selection: tuple[Any, ...] | None = None
    is_solid: bool = False
    is_slab: bool = False

    @property
    def num_requests(self) -> int:
        """Number of ranges."""
        return len(self.ranges.starts)


class Part(NamedTuple):
    """A part of a selection.

    Attributes
    ----------
    place : tuple of slice
        Where it belongs in the selection.
    selection : tuple
        What it selects from the chunk.
    plan : Plan
        Which bytes to fetch.
    """

    place: tuple[slice, ...]
    selection: Any
    plan: Plan


class Planner:
    """Plans selections of the chunks of an array; those of slices and integers once each.

    Parameters
    ----------
    layout : Layout
        How a chunk is stored; an element takes at least 1 byte.
    coalescing : Coalescing
        How pieces are coalesced into ranges.
    """

    def __init__(self, layout: Layout, coalescing: Coalescing) -> None:
        self.layout, self.coalescing = layout, coalescing
        self._is_small = layout.num_bytes <= coalescing.costs.whole_bytes
        self._plans: dict[Any, Plan] = {}
        self._parts: dict[Any, list[Part] | None] = {}

    def plan(self, selection: Any) -> Plan:
        """Return the cheapest byte ranges for a selection of a chunk.

        Parameters
        ----------
        selection : tuple
            The selection that zarr passes to codecs: integers, and slices with positive steps; or
            arrays of integers or bools, one per axis and shaped as by ``numpy.ix_``, or a single
            1-D one together with slices; or, for points, arrays of integers that broadcast
            together.

        Returns
        -------
        Plan
            A plan for the whole chunk if all its bytes are needed, or if the selection is of
            another kind or out of bounds: NumPy then applies it, or raises, if the chunk exists.
        """
        selectors = selection
        if type(selection) is not tuple or len(selection) != len(self.layout.shape):
            selectors = selectors_of(selection, len(self.layout.shape))
        key = key_of(selectors)
        plan = None if key is None else self._plans.get(key)
        if plan is None:
            plan = self._made(selectors)
            if key is not None and len(plan.ranges.piece_starts) <= MAX_CACHED_PIECES:
                if len(self._plans) >= MAX_CACHED:
                    self._plans.clear()
                self._plans[key] = plan
        return plan

    def _made(self, selectors: tuple[Any, ...]) -> Plan:
        layout, costs = self.layout, self.coalescing.costs
        if self._is_small and not is_whole(selectors, layout.shape):
            return plan_whole(layout, is_solid=False)
        sizes: list[int] = [s.size for s in selectors if isinstance(s, np.ndarray)]
        if sizes and layout.num_bytes <= costs.slab_of(max(sizes)):
            # What lies before and after so many indices, if they are anywhere.
            around = 2 * layout.num_bytes // (min(sizes) + 1)
            if around < LOOK_BYTES:
                return plan_whole(layout, is_solid=False, is_slab=True)
        return _plan(selectors, layout, self.coalescing)

    def parts(
        self, selection: Any, plan: Plan, shape: tuple[int, ...], max_bytes: int
    ) -> Iterable[Part] | None:
        """Return parts of a selection, in the order in which they are stored.

        None if it is not a box of that shape, or has but one part.

        Parameters
        ----------
        selection, plan
            The selection, and its plan.
        shape : tuple of int
            The shape of the selection.
        max_bytes : int
            Largest number of bytes that a part fetches, but a single element may be larger.
        """
        in_pieces = plan.num_requests > 1
        ranges = plan.ranges
        if (ranges.num_kept_bytes if in_pieces else ranges.num_bytes) <= max_bytes:
            return None
        selectors = selectors_of(selection, len(self.layout.shape))
        if (key := key_of(selectors)) is None:
            return None
        known: Any = self._parts.get((key, shape, max_bytes), ())  # another thread may clear it
        if known != ():
            return known  # type: ignore[no-any-return]
        selected = parse_product(selectors, self.layout)
        if selected is None or selected.shape != shape:
            return None
        boxes = selected.boxes(max_bytes, in_pieces=in_pieces)
        first = list(itertools.islice(boxes, 2))
        num_pieces, found = 0, []
        made = (
            Part(place, of_part, _plan(of_part, self.layout, self.coalescing))
            for place, of_part in itertools.chain(first if len(first) > 1 else (), boxes)
        )
        for part in made:
            found.append(part)
            num_pieces += len(part.plan.ranges.piece_starts)
            if num_pieces > MAX_CACHED_PIECES:
                return itertools.chain(found, made)
        if len(self._parts) >= MAX_CACHED:
            self._parts.clear()
        self._parts[key, shape, max_bytes] = found or None
        return found or None


@functools.lru_cache(maxsize=32)
def planner_of(layout: Layout, coalescing: Coalescing) -> Planner:
    """Return the planner for the chunks of an array."""
    return Planner(layout, coalescing)


# To look where indices are takes as long as to read so many bytes.
LOOK_BYTES = 1 << 19
# How many plans of an array are kept, and of up to how many pieces: at most 0.5 MB, and as much for
# their parts.
MAX_CACHED, MAX_CACHED_PIECES = 64, 256


def plan_read(selection: Any, layout: Layout, coalescing: Coalescing) -> Plan:
    """Return the cheapest byte ranges for a selection of a chunk: see `Planner`."""
    return planner_of(layout, coalescing).plan(selection)


def _plan(selectors: tuple[Any, ...], layout: Layout, coalescing: Coalescing) -> Plan:
    plan = None
    # Offsets are NumPy integers; no store has a chunk too large for them.
    if layout.num_bytes <= sys.maxsize and not is_whole(selectors, layout.shape):
        plan = _plan_one_range(selectors, layout, coalescing)
        if plan is not None:
            pass
        elif are_points(selectors):
            plan = _plan_points(selectors, layout, coalescing)
        elif (axes := parse_axes(selectors, layout.shape)) is not None:
            plan = _plan_product(axes, layout, coalescing)
    if plan is None:
        return plan_whole(layout, is_solid=is_whole(selectors, layout.shape))
    if plan.num_requests == 1 and plan.ranges.num_bytes == layout.num_bytes:
        return plan_whole(layout, is_solid=plan.is_solid, is_slab=plan.is_slab)
    return plan


@functools.lru_cache(maxsize=256)
def plan_whole(layout: Layout, *, is_solid: bool = True, is_slab: bool = False) -> Plan:
    """Return the plan that fetches a whole chunk with one request, for a selection of a kind."""
    # No store has a chunk too large for NumPy's integers.
    num_bytes = min(layout.num_bytes, sys.maxsize)
    all_positions = (None,) * len(layout.shape)
    return Plan(
        ranges=Coalescing(0).coalesce(np.array([0]), np.array([num_bytes])),
        window_shape=layout.shape,
        window_strides=layout.strides,
        index=all_positions,
        order=all_positions,
        shape=layout.shape,
        is_whole=True,
        is_solid=is_solid,
        is_slab=is_slab,
    )


def is_whole(selectors: tuple[Any, ...], chunk_shape: tuple[int, ...]) -> bool:
    """Whether a selection is a full slice of every axis (a fast check)."""
    return len(selectors) == len(chunk_shape) and all(
        isinstance(s, slice)
        and s.start in (0, None)
        and s.stop in (size, None)
        and s.step in (1, None)
        for s, size in zip(selectors, chunk_shape, strict=True)
    )


# A selection by arrays of at least a third of the bytes from its first to its last element is
# dense: to plan it by index, for random rows and columns of uint8, takes as long as zarr alone, and
# to plan all of them 3 times as long.
DENSE_FRACTION = 3
# From this fraction of the chunk on, it takes the whole chunk, as with zarr alone.
NEARLY_WHOLE = 0.9


def _plan_one_range(
    selectors: tuple[Any, ...], layout: Layout, coalescing: Coalescing
) -> Plan | None:
    """Return a plan that fetches all from the first to the last element, if that costs no more.

    Nothing is sorted or allocated for each index.

    Parameters
    ----------
    selectors : tuple
        A selector for each axis, as in `Planner.plan`.
    layout : Layout
        How the chunk is stored.
    coalescing : Coalescing
        How pieces are coalesced into ranges.

    Returns
    -------
    Plan or None
        None also if the selection is empty, of another kind, or out of bounds.
    """
    if len(selectors) != len(layout.shape):
        return None
    found = [_num_and_bounds(s, size) for s, size in zip(selectors, layout.shape, strict=True)]
    spans = [span for span in found if span is not None]
    if len(spans) < len(found):
        return None
    strides = layout.strides
    first = sum(low * stride for (_, low, _), stride in zip(spans, strides, strict=True))
    last = sum(high * stride for (*_, high), stride in zip(spans, strides, strict=True))
    num_bytes = (last - first + 1) * layout.item_size
    num_runs = _num_runs(selectors, spans, layout)
    nums = [n for (n, *_), s in zip(spans, selectors, strict=True) if isinstance(s, np.ndarray)]
    is_solid = num_runs == 1 and not nums
    costs = coalescing.costs
    is_dense = bool(nums) and (
        num_runs * layout.item_size * DENSE_FRACTION >= num_bytes
        or _are_near(selectors, spans, layout, coalescing.dense_bytes)
    )
    is_cheap = num_bytes <= costs.slab_of(num_runs)
    if not (is_solid or is_dense or is_cheap):
        return None
    if is_dense and num_bytes > NEARLY_WHOLE * layout.num_bytes:
        return plan_whole(layout, is_solid=False)
    start = np.array([first * layout.item_size])
    nothing = (None,) * len(layout.shape)
    window_shape = tuple(high - low + 1 for _, low, high in spans)
    moved = zip(selectors, layout.shape, spans, strict=True)
    shape = [n for n, s in zip(window_shape, selectors, strict=True) if isinstance(s, slice)]
    return Plan(
        coalescing.coalesce(start, start + num_bytes),
        window_shape=window_shape,
        window_strides=strides,
        index=nothing,
        order=nothing,
        shape=tuple(shape) if is_solid else window_shape,
        selection=tuple(_moved(selector, size, low) for selector, size, (_, low, _) in moved),
        is_solid=is_solid,
        is_slab=not (is_solid or is_dense),
    )


def _are_near(
    selectors: tuple[Any, ...], spans: list[tuple[int, int, int]], layout: Layout, num_bytes: int
) -> bool:
    """Whether points, or the indices along each axis, are on average that close or closer."""
    strides, item_size = layout.strides, layout.item_size
    along = [
        (num, (high - low) * stride * item_size)
        for (num, low, high), stride in zip(spans, strides, strict=True)
    ]
    if are_points(selectors):
        return sum(span for _, span in along) <= along[0][0] * num_bytes
    return all(num and span <= num * num_bytes for num, span in along)


def _num_runs(selectors: tuple[Any, ...], spans: list[tuple[int, int, int]], layout: Layout) -> int:
    """Return how many contiguous runs of elements a selection has, at most."""
    if are_points(selectors):
        return max(num for num, *_ in spans)
    num = math.prod(num for num, *_ in spans)
    for k in reversed(layout.as_stored):
        num_along, low, high = spans[k]
        if not isinstance(selectors[k], slice) or high - low + 1 != num_along:
            break
        num //= num_along
        if num_along != layout.shape[k]:
            break
    return num


def _num_and_bounds(selector: Any, size: int) -> tuple[int, int, int] | None:
    """Return how many indices of an axis are selected, the lowest and the highest; None if none."""
    if isinstance(selector, slice):
        indices = range(*selector.indices(size))
        return (len(indices), indices[0], indices[-1]) if indices and indices.step > 0 else None
    if isinstance(selector, np.ndarray):
        if selector.dtype == bool:
            is_mask = selector.shape == (size,) and size
            return (int(np.count_nonzero(selector)), 0, size - 1) if is_mask else None
        low, high = (int(selector.min()), int(selector.max())) if selector.size else (-1, -1)
        num = selector.size
    else:
        low = high = int(selector) if is_int(selector) else -1
        num = 1
    return (num, low, high) if 0 <= low <= high < size else None


def _moved(selector: Any, size: int, low: int) -> Any:
    """Return a selector for a part of an axis that begins at index `low`."""
    if isinstance(selector, slice):  # also one that counts from the end of the axis
        start, stop, step = selector.indices(size)
        return slice(start - low, stop - low, step)
    return selector - low if low else selector


# A piece may contain gaps, which then stay in memory: in pieces of up to KEPT_BYTES, every gap over
# which ranges are coalesced. In longer ones, only gaps of at most KEPT_GAP_BYTES, because every
# additional piece takes 32 bytes itself, or of at most the bytes that one index needs.
KEPT_GAP_BYTES = 1 << 8
KEPT_BYTES = 1 << 16


def _plan_product(axes: list[Axis], layout: Layout, coalescing: Coalescing) -> Plan:
    """Return the plan for the product of one set of indices per axis.

    Parameters
    ----------
    axes : list of Axis
        What is selected along each axis of the chunk; all indices are within bounds.
    layout : Layout
        How the chunk is stored.
    coalescing : Coalescing
        How pieces are coalesced into ranges.

    Returns
    -------
    Plan
        The axes of its window are those of `axes` that are not dropped, in the same order.
        `plan.shape` is the number of selected indices along each of them. It has no ranges if
        nothing is selected.
    """
    kept = [k for k, axis in enumerate(axes) if not axis.is_dropped]
    if any(len(axis.indices) == 0 for axis in axes):
        return _plan_nothing(tuple(axes[k].num_selected for k in kept))
    strides, item_size = layout.strides, layout.item_size
    window: dict[int, _WindowAxis] = {}
    # One piece, in items, for index 0 of each axis that is left.
    start, length, left = 0, 1, list(layout.as_stored)
    while left:
        indices, stride = axes[left[-1]].indices, strides[left[-1]]
        low, high = int(indices[0]), int(indices[-1])
        longer = length + (high - low) * stride
        max_gap_bytes = coalescing.max_gap_bytes
        if longer * item_size > KEPT_BYTES:
            max_gap_bytes = min(max_gap_bytes, max(length * item_size, KEPT_GAP_BYTES))
        if (_largest_step(indices) * stride - length) * item_size > max_gap_bytes:
            break
        if isinstance(indices, range):
            window[left.pop()] = _WindowAxis(len(indices), indices.step * stride, None)
        else:
            window[left.pop()] = _WindowAxis(high - low + 1, stride, indices - low)
        start, length = start + low * stride, longer
    starts, num_items = np.array([start]), length
    for k in reversed(left):  # the same pieces for each index
        indices = as_array(axes[k].indices)
        window[k] = _WindowAxis(len(indices), num_items, None)
        starts = np.add.outer(indices * strides[k], starts).ravel()
        num_items *= len(indices)
    pieces = join_adjacent(starts * item_size, (starts + length) * item_size)
    return Plan(
        ranges=coalescing.coalesce(*pieces),
        window_shape=tuple(window[k].length for k in kept),
        window_strides=tuple(window[k].stride for k in kept),
        index=tuple(window[k].indices for k in kept),
        order=tuple(axes[k].order for k in kept),
        shape=tuple(axes[k].num_selected for k in kept),
    )


class _WindowAxis(NamedTuple):
    """An axis of a plan's window: length, stride in the fetched items, and index."""

    length: int
    stride: int
    indices: Indices | None


def _largest_step(indices: range | Indices) -> int:
    """Return the largest distance between consecutive indices of an axis."""
    if len(indices) == 1:
        return 0
    return indices.step if isinstance(indices, range) else int(np.diff(indices).max())


def _plan_points(arrays: tuple[Any, ...], layout: Layout, coalescing: Coalescing) -> Plan | None:
    """Return the plan for points.

    Parameters
    ----------
    arrays : tuple of numpy.ndarray
        Integer coordinates of the points, one array per axis of the chunk, of shapes that broadcast
        together.
    layout : Layout
        How the chunk is stored.
    coalescing : Coalescing
        How pieces are coalesced into ranges.

    Returns
    -------
    Plan or None
        The window is flat and shows the distinct points in the order in which they are stored;
        `plan.shape` is the broadcast shape. None if a point is out of bounds, the shapes do not
        broadcast, or there is not one array per axis.
    """
    found = parse_points(arrays, layout.shape, layout.strides)
    if found is None:
        return None
    if not found.size:
        return _plan_nothing(found.shape)
    items, shape = found.ravel(), found.shape
    positions = None
    if not (np.diff(items) > 0).all():
        items, positions = np.unique(items, return_inverse=True)
    return Plan(
        ranges=coalescing.coalesce(items * layout.item_size, (items + 1) * layout.item_size),
        window_shape=(len(items),),
        window_strides=(1,),
        index=(None,),
        order=(positions,),
        shape=shape,
    )


def _plan_nothing(shape: tuple[int, ...]) -> Plan:
    nothing = (None,) * len(shape)
    none = np.empty(0, np.intp)
    nowhere = Ranges(none, none, none, none, have_gaps=False)
    return Plan(nowhere, shape, (0,) * len(shape), nothing, nothing, shape)
