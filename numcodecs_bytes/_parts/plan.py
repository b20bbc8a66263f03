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
with the smallest stride. As long as the indices of an axis form a single piece, the next axis
starts from a single piece. The first axis where they do not is the *split axis*. Its pieces repeat
for every combination of indices of the axes after it. If the gap between the last piece of one
combination and the first of the next is small, one range fetches both.
"""

import functools
import math
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.ranges import Coalescing, Indices, Ranges
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
        Shape of the selection; for a whole chunk, the shape of the chunk.
    is_whole : bool
        Whether the whole chunk is fetched.
    selection : tuple or None
        What NumPy selects from the window instead of `index` and `order`; None for a whole chunk,
        to which the caller's own selection applies.
    """

    ranges: Ranges
    window_shape: tuple[int, ...]
    window_strides: tuple[int, ...]
    index: tuple[Indices | None, ...]
    order: tuple[Indices | None, ...]
    shape: tuple[int, ...]
    is_whole: bool = False
    selection: tuple[Any, ...] | None = None

    @property
    def num_requests(self) -> int:
        """Number of ranges."""
        return len(self.ranges.starts)


def plan_read(selection: Any, layout: Layout, coalescing: Coalescing) -> Plan:
    """Return the cheapest byte ranges for a selection of a chunk.

    Parameters
    ----------
    selection : tuple
        The selection that zarr passes to codecs: integers, and slices with positive steps; or
        arrays of integers or bools, one per axis and shaped as by ``numpy.ix_``, or a single 1-D
        one together with slices; or, for points, arrays of integers that broadcast together.
    layout : Layout
        How the chunk is stored; an element takes at least 1 byte.
    coalescing : Coalescing
        How pieces are coalesced into ranges.

    Returns
    -------
    Plan
        A plan for the whole chunk if all its bytes are needed, or if the selection is of another
        kind or out of bounds: NumPy then applies it, or raises, if the chunk exists.
    """
    selectors = selectors_of(selection, len(layout.shape))
    if (of_selectors := key_of(selectors)) is None:
        sizes: list[int] = [s.size for s in selectors if isinstance(s, np.ndarray)]
        limit = min(SLAB_BYTES, coalescing.costs.of(max(sizes, default=0)))
        # What lies before and after so many indices, if they are anywhere.
        around = 2 * layout.num_bytes // (min(sizes, default=0) + 1)
        if sizes and layout.num_bytes <= limit and around < LOOK_BYTES:
            return plan_whole(layout)
        return _plan(selectors, layout, coalescing)
    key = of_selectors, layout, coalescing
    plan = _plans.get(key)
    if plan is None:
        plan = _plan(selectors, layout, coalescing)
        if len(plan.ranges.piece_starts) <= MAX_CACHED_PIECES:
            if len(_plans) >= MAX_CACHED:
                _plans.clear()
            _plans[key] = plan
    return plan


# Plans of slices and integers, which the chunks of an array share: all but those at an edge of the
# selection have the same one. They take at most 5 MB.
_plans: dict[Any, Plan] = {}
MAX_CACHED, MAX_CACHED_PIECES = 512, 256


def _plan(selectors: tuple[Any, ...], layout: Layout, coalescing: Coalescing) -> Plan:
    plan = None
    # Offsets are NumPy integers; no store has a chunk too large for them.
    if layout.num_bytes <= sys.maxsize and not is_whole(selectors, layout.shape):
        plan = _plan_slab(selectors, layout, coalescing)
        if plan is not None:
            pass
        elif are_points(selectors):
            plan = _plan_points(selectors, layout, coalescing)
        elif (axes := parse_axes(selectors, layout.shape)) is not None:
            plan = _plan_product(axes, layout, coalescing)
    if plan is None or (plan.num_requests == 1 and plan.ranges.num_bytes == layout.num_bytes):
        return plan_whole(layout)
    return plan


@functools.lru_cache(maxsize=256)
def plan_whole(layout: Layout) -> Plan:
    """Return the plan that fetches a whole chunk with one request."""
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


# A selection of at least a third of the bytes from its first to its last element is dense: to plan
# it by index, for random rows and columns of uint8, takes as long as zarr alone, and to plan all of
# them 3 times as long.
DENSE_FRACTION = 3
# From this fraction of the chunk on, a dense selection takes the whole chunk, as with zarr alone.
NEARLY_WHOLE = 0.9


# A selection of slices is also dense if the bytes from its first to its last element cost no more
# than its pieces; but only if these take at most so many bytes, or this many times the selection.
SLAB_BYTES, SLAB_FACTOR = 1 << 23, 2
# To look where indices are takes as long as to read so many bytes.
LOOK_BYTES = 1 << 19


def _plan_slab(selectors: tuple[Any, ...], layout: Layout, coalescing: Coalescing) -> Plan | None:
    """Return the plan for a dense selection: a single range; None if it is not dense.

    Nothing is sorted or allocated for each index. The range is a slab: the smallest contiguous part
    of the chunk that is a box and contains the bounds of the selection.

    Parameters
    ----------
    selectors : tuple
        A selector for each axis, as in `plan_read`.
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
    first, window_shape, selection = 0, list(layout.shape), list(selectors)
    for k in layout.as_stored:
        _, low, high = spans[k]
        first += low * strides[k]
        window_shape[k] = high - low + 1
        selection[k] = _moved(selectors[k], layout.shape[k], low)
        if high > low:
            break
    num_bytes = math.prod(window_shape) * layout.item_size
    is_slice = not any(isinstance(s, np.ndarray) for s in selectors)
    is_dense = _are_near(spans, layout, num_bytes, coalescing) if is_slice else None
    if is_dense is None:
        num_indices = [n for (n, *_), s in zip(spans, selectors, strict=True) if _is_array(s)]
        num_runs = _num_runs(selectors, spans, layout)
        is_dense = _are_dense(max(num_indices), num_runs, layout, num_bytes, coalescing)
    if not is_dense:
        return None
    if num_bytes > NEARLY_WHOLE * layout.num_bytes:
        return plan_whole(layout)
    start = np.array([first * layout.item_size])
    nothing = (None,) * len(layout.shape)
    return Plan(
        coalescing.coalesce(start, start + num_bytes),
        window_shape=tuple(window_shape),
        window_strides=strides,
        index=nothing,
        order=nothing,
        shape=tuple(window_shape),
        selection=tuple(selection),
    )


def _is_array(selector: object) -> bool:
    return isinstance(selector, np.ndarray)


def _are_dense(
    num_indices: int, num_runs: int, layout: Layout, num_bytes: int, coalescing: Coalescing
) -> bool:
    """Whether a slab of so many bytes takes less time than pieces for arrays of indices."""
    return num_runs * layout.item_size * DENSE_FRACTION >= num_bytes or (
        num_indices * coalescing.dense_bytes >= num_bytes
        or (num_bytes <= SLAB_BYTES and coalescing.costs.of(num_indices) >= num_bytes)
    )


def _are_near(
    spans: list[tuple[int, int, int]], layout: Layout, num_bytes: int, coalescing: Coalescing
) -> bool:
    """Whether a slab of so many bytes takes less time than pieces for slices and integers."""
    if not coalescing.dense_bytes:
        return False
    costs = coalescing.costs
    if num_bytes <= SLAB_BYTES and costs.pieces + _cost(spans, layout, costs.request) >= num_bytes:
        return True
    num_selected = math.prod(num for num, *_ in spans) * layout.item_size
    is_wanted = num_bytes <= SLAB_FACTOR * num_selected
    return is_wanted and _cost(spans, layout, coalescing.dense_bytes) >= num_bytes


def _cost(spans: list[tuple[int, int, int]], layout: Layout, request: int) -> int:
    """Return what the cheapest ranges for slices cost in bytes, if each costs `request` more."""
    span, cost = layout.item_size, request + layout.item_size
    for k in reversed(layout.as_stored):  # the cheapest way to fetch what is along the last axes
        num, low, high = spans[k]
        span += (high - low) * layout.strides[k] * layout.item_size
        cost = min(num * cost, request + span)
    return cost


def _num_runs(selectors: tuple[Any, ...], spans: list[tuple[int, int, int]], layout: Layout) -> int:
    """Return how many contiguous runs of elements the slices of the last axes leave to plan."""
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


# A piece may contain gaps, which then stay in memory: up to a total of KEPT_BYTES, every gap over
# which ranges are coalesced. Beyond that, only gaps of at most KEPT_GAP_BYTES, because every
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
    window: dict[int, _WindowAxis] = {}
    run, pieces = _Run(0, 1), None
    strides, item_size = layout.strides, layout.item_size
    remaining = iter(layout.as_stored[::-1])
    for k in remaining:  # as long as all indices of an axis are within one piece
        indices, stride = axes[k].indices, strides[k]
        longer = run.along(indices, stride)
        max_gap_bytes = coalescing.max_gap_bytes
        if longer.length * item_size > KEPT_BYTES:
            max_gap_bytes = min(max_gap_bytes, max(run.length * item_size, KEPT_GAP_BYTES))
        splits = _split(indices, stride, run.length, item_size, max_gap_bytes)
        if splits is not None:
            pieces, window[k] = _split_run(run, indices, stride, splits)
            break
        run, window[k] = longer, _window_of_run(indices, stride)
    if pieces is None:
        pieces = _Pieces(np.array([run.start]), np.array([run.length]), run.length)
    for k in remaining:
        window[k] = _WindowAxis(len(axes[k].indices), pieces.num_items, None)
        pieces = pieces.along(axes[k].indices, strides[k])
    starts = pieces.starts * item_size
    return Plan(
        ranges=coalescing.coalesce(starts, starts + pieces.lengths * item_size),
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


class _Run(NamedTuple):
    """The single piece, in items, that the axes so far need for index 0 of each other axis."""

    start: int
    length: int

    def along(self, indices: range | Indices, stride: int) -> "_Run":
        """Return the piece for all indices of a further axis, with the gaps between them."""
        low, high = int(indices[0]), int(indices[-1])
        return _Run(self.start + low * stride, self.length + (high - low) * stride)


class _Pieces(NamedTuple):
    """Pieces, in items, that the axes so far need for index 0 of each other axis."""

    starts: Indices
    lengths: Indices
    num_items: int

    def along(self, indices: range | Indices, stride: int) -> "_Pieces":
        """Return the pieces for all indices of a further axis: the same ones for each."""
        num = len(indices)
        starts = np.add.outer(as_array(indices) * stride, self.starts).ravel()
        return _Pieces(starts, np.tile(self.lengths, num), self.num_items * num)


def _window_of_run(indices: range | Indices, stride: int) -> _WindowAxis:
    """Return the axis of the window for indices that lie within one piece."""
    if isinstance(indices, range):
        return _WindowAxis(len(indices), indices.step * stride, None)
    low, high = int(indices[0]), int(indices[-1])
    return _WindowAxis(high - low + 1, stride, indices - low)


def _split_run(
    run: _Run, indices: range | Indices, stride: int, splits: Indices
) -> tuple[_Pieces, _WindowAxis]:
    """Return a piece for the indices from each split to the next, and the axis of the window."""
    selected, num = as_array(indices), len(indices)
    if isinstance(indices, range):  # every index begins a piece
        starts, lengths = selected * stride + run.start, np.full(num, run.length)
        return _Pieces(starts, lengths, num * run.length), _WindowAxis(num, run.length, None)
    starts = selected[splits] * stride + run.start
    last = np.append(splits[1:], num) - 1
    lengths = (selected[last] - selected[splits]) * stride + run.length
    num_items = int(lengths.sum())
    # Position of each index in the kept items: start of its piece plus offset in it.
    piece = np.repeat(np.arange(len(splits)), last - splits + 1)
    places = (np.cumsum(lengths) - lengths)[piece]
    places += (selected - selected[splits][piece]) * stride
    window = _WindowAxis(num_items - run.length + 1, 1, places)
    return _Pieces(starts, lengths, num_items), window


def _split(
    indices: range | Indices, stride: int, length: int, item_size: int, max_gap_bytes: int
) -> Indices | None:
    """Split the indices of an axis into pieces.

    Each index needs `length` consecutive items. Consecutive indices are `stride` items apart.

    Parameters
    ----------
    indices : range or numpy.ndarray
        The distinct indices in ascending order, shape ``(num_indices,)``, at least one.
    stride : int
        Stride of the axis in items.
    length : int
        Number of items that each index needs.
    item_size : int
        Stored size of an element in bytes.
    max_gap_bytes : int
        Largest gap that may remain in a piece.

    Returns
    -------
    numpy.ndarray or None
        Positions in `indices` at which a piece begins, shape ``(num_pieces,)``, the first one 0;
        None for a single piece.
    """
    if isinstance(indices, range):
        gap = (indices.step * stride - length) * item_size
        return np.arange(len(indices)) if len(indices) > 1 and gap > max_gap_bytes else None
    gaps = (np.diff(indices) * stride - length) * item_size
    splits = np.flatnonzero(gaps > max_gap_bytes) + 1
    return np.concatenate([[0], splits]) if len(splits) else None


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
