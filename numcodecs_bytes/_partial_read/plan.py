"""Selection -> byte ranges: which bytes of an uncompressed chunk a selection needs.

Integers only: no array data, no I/O. The elements of a chunk lie in C order, or in that of its
permuted axes, so a selection needs ranges of bytes. Two ranges are read as one where the gap
between them is at most `max_gap_bytes`: that makes ``requests * max_gap_bytes + bytes`` least.

A selection is points (``vindex``, masks), or a product of one set of indices per axis (basic
selections, ``oindex``). The ranges of a product are found axis by axis, from the one along which
elements are neighbours: as long as the indices of an axis merge into a single range, the next axis
sees a single range. The first axis that does not is the *split axis*. Its ranges are the same for
every combination of indices of the axes after it: they are the pieces that are kept, end to end.
Where the gap between the last piece of one combination and the first of the next is small, both
come with one request.
"""

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.intp]]


class Request(NamedTuple):
    """A range, in bytes of the chunk, and what to keep of it.

    Attributes
    ----------
    start, end : int
        First byte and end (exclusive) of the range.
    place : int
        Where what is kept of it begins in all that is kept, in bytes.
    piece_starts, piece_lengths : numpy.ndarray
        What is kept of it, in bytes of the range.
    """

    start: int
    end: int
    place: int
    piece_starts: Indices
    piece_lengths: Indices


class Ranges(NamedTuple):
    """Ranges of bytes to fetch, ascending, and the pieces of them to keep.

    Attributes
    ----------
    starts, ends : numpy.ndarray
        First byte and end (exclusive) of each range, shape ``(num_ranges,)``.
    piece_starts, piece_ends : numpy.ndarray
        The same of the pieces, each within a range, shape ``(num_pieces,)``. A range begins with a
        piece.
    have_gaps : bool
        Whether there may be more in the ranges than the pieces.
    """

    starts: Indices
    ends: Indices
    piece_starts: Indices
    piece_ends: Indices
    have_gaps: bool

    @property
    def num_bytes(self) -> int:
        """Number of bytes in all ranges."""
        if len(self.starts) == 1:  # many times faster
            return int(self.ends[0]) - int(self.starts[0])
        return int((self.ends - self.starts).sum())

    @property
    def num_kept_bytes(self) -> int:
        """Number of bytes in all pieces."""
        if len(self.piece_starts) == 1:  # many times faster
            return int(self.piece_ends[0]) - int(self.piece_starts[0])
        return int((self.piece_ends - self.piece_starts).sum())

    def requests(self) -> Iterator[Request]:
        """Yield the ranges, in ascending order."""
        lengths = self.piece_ends - self.piece_starts
        first = np.searchsorted(self.piece_starts, self.starts)
        last = np.append(first[1:], len(lengths))
        places = (np.cumsum(lengths) - lengths)[first]
        # Python's integers take four times the memory of NumPy's: some at a time.
        for batch in range(0, len(first), 1024):
            some = slice(batch, batch + 1024)
            columns = (self.starts, self.ends, places, first, last)
            for start, end, place, i, k in zip(*(c[some].tolist() for c in columns), strict=True):
                yield Request(start, end, place, self.piece_starts[i:k] - start, lengths[i:k])

    def split(self, max_num: int, max_bytes: int) -> "tuple[Ranges, Ranges]":
        """Return the first ranges, at least one and else no more than that, and the others."""
        num = min(max_num, len(self.starts))
        if num > 1:
            sizes = np.cumsum(self.ends[:num] - self.starts[:num])
            num = max(int(np.searchsorted(sizes, max_bytes, side="right")), 1)
        if num >= len(self.starts):
            return self, self._of(slice(0), slice(0))
        piece = int(np.searchsorted(self.piece_starts, self.starts[num])) if self.have_gaps else num
        return (
            self._of(slice(num), slice(piece)),
            self._of(slice(num, None), slice(piece, None)),
        )

    def without(self, num_pieces: int) -> "Ranges":
        """Return the ranges without the first pieces, so many."""
        if num_pieces == len(self.piece_starts):
            return self._of(slice(0), slice(0))
        start = self.piece_starts[num_pieces]
        first = int(np.searchsorted(self.ends, start, side="right"))
        left = self._of(slice(first, None), slice(num_pieces, None))
        return left._replace(starts=np.maximum(left.starts, start))

    def _of(self, ranges: slice, pieces: slice) -> "Ranges":
        return Ranges(
            self.starts[ranges],
            self.ends[ranges],
            self.piece_starts[pieces],
            self.piece_ends[pieces],
            self.have_gaps,
        )


class Merging(NamedTuple):
    """Which pieces are read as one range.

    Attributes
    ----------
    max_gap_bytes : int
        Largest gap between two pieces that is read over, at least 0.
    block_bytes : int or None
        No range of several pieces is longer than twice that.
    is_contiguous : bool
        Whether gaps that are read over are read between two blocks as well.
    """

    max_gap_bytes: int
    block_bytes: int | None = None
    is_contiguous: bool = False

    def merge(self, starts: Indices, ends: Indices) -> Ranges:
        """Return the ranges for pieces, which are ascending, shape ``(num_pieces,)``."""
        if len(starts) <= 1:
            return Ranges(starts, ends, starts, ends, have_gaps=False)
        is_apart = starts[1:] - ends[:-1] > self.max_gap_bytes
        if self.block_bytes:
            blocks = ends // self.block_bytes
            is_apart |= blocks[1:] != blocks[:-1]
        is_edge = np.ones(len(starts) + 1, bool)
        is_edge[1:-1] = is_apart
        firsts, lasts = starts[is_edge[:-1]], ends[is_edge[1:]]
        if self.is_contiguous:
            is_near = firsts[1:] - lasts[:-1] <= self.max_gap_bytes
            lasts[:-1][is_near] = firsts[1:][is_near]
        have_gaps = self.is_contiguous or len(firsts) < len(starts)
        return Ranges(firsts, lasts, starts, ends, have_gaps)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Byte ranges to fetch, and where the selected elements lie in them.

    Laid end to end, the pieces of the fetched ranges are a flat array of items, and the strided
    window shows each item that is selected. Of a whole chunk it shows all, and NumPy takes the
    selection. Otherwise, of each axis of the window, `index` picks the distinct positions, and of
    those `order` the selected ones. To be applied axis by axis, the first axis first: until then
    the window may show the same memory many times.

    Attributes
    ----------
    ranges : Ranges
        What to fetch, in bytes of the chunk.
    window_shape, window_strides : tuple of int
        Shape, and strides in items.
    index, order : tuple of (numpy.ndarray or None)
        Per axis of the window, positions; None: all, each once and in turn.
    shape : tuple of int
        Shape of the selection; of a whole chunk, of the chunk.
    is_whole : bool
        Whether the whole chunk is to be fetched.
    """

    ranges: Ranges
    window_shape: tuple[int, ...]
    window_strides: tuple[int, ...]
    index: tuple[Indices | None, ...]
    order: tuple[Indices | None, ...]
    shape: tuple[int, ...]
    is_whole: bool = False

    @property
    def num_requests(self) -> int:
        """Number of ranges."""
        return len(self.ranges.starts)


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """What is selected along one axis.

    `indices` are the distinct indices, ascending; a range where their step is constant. `order`
    are the positions in it of the selected ones, None where these are all, each once and in turn.
    """

    indices: range | Indices
    order: Indices | None
    is_dropped: bool

    @property
    def num_selected(self) -> int:
        return len(self.indices if self.order is None else self.order)


def plan_read(
    selection: Any,
    chunk_shape: tuple[int, ...],
    item_size: int,
    merging: Merging,
    axis_order: tuple[int, ...] | None = None,
) -> Plan:
    """Return the cheapest byte ranges for a selection of a chunk.

    Parameters
    ----------
    selection : tuple
        As zarr hands it to codecs: integers, and slices with positive steps; or arrays of integers
        or bools, one per axis, shaped as by ``numpy.ix_``, or a single one beside slices; or
        arrays of integers that broadcast against each other, for points.
    chunk_shape : tuple of int
        Shape of the chunk in elements.
    item_size : int
        Stored size of an element in bytes, at least 1.
    merging : Merging
        Which ranges are read as one.
    axis_order : tuple of int, optional
        The axes of the chunk in the order in which it is stored: the elements along the last one
        are neighbours. By default C order.

    Returns
    -------
    Plan
        For the whole chunk where all its bytes are needed, or where the selection is of another
        kind or out of bounds: it is for NumPy to apply it, if there is a chunk.
    """
    selectors = selection if isinstance(selection, tuple) else (selection,)
    selectors += (slice(None),) * (len(chunk_shape) - len(selectors))
    num_bytes = math.prod(chunk_shape) * item_size
    plan = None
    # Offsets are NumPy's integers; no store has a chunk that they can't reach.
    if num_bytes <= sys.maxsize and not _is_whole(selectors, chunk_shape):
        strides = _strides(chunk_shape, axis_order)
        if _are_points(selectors):
            plan = _plan_points(selectors, chunk_shape, strides, item_size, merging)
        elif (axes := _parse_axes(selectors, chunk_shape)) is not None:
            by_stride = range(len(axes))[::-1] if axis_order is None else axis_order[::-1]
            plan = _plan_product(axes, by_stride, strides, item_size, merging)
    if plan is None or (plan.num_requests == 1 and plan.ranges.num_bytes == num_bytes):
        return plan_whole(chunk_shape, item_size, axis_order)
    return plan


@functools.lru_cache(maxsize=256)
def plan_whole(
    chunk_shape: tuple[int, ...], item_size: int, axis_order: tuple[int, ...] | None = None
) -> Plan:
    """Return the plan to fetch a whole chunk with one request; parameters as of `plan_read`."""
    # No store has a chunk that NumPy's integers can't reach.
    num_bytes = min(math.prod(chunk_shape) * item_size, sys.maxsize)
    all_of_it = (None,) * len(chunk_shape)
    return Plan(
        ranges=Merging(0).merge(np.array([0]), np.array([num_bytes])),
        window_shape=chunk_shape,
        window_strides=_strides(chunk_shape, axis_order),
        index=all_of_it,
        order=all_of_it,
        shape=chunk_shape,
        is_whole=True,
    )


@functools.lru_cache(maxsize=256)
def _strides(shape: tuple[int, ...], axis_order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the distance of neighbours along each axis, in items."""
    strides = [1] * len(shape)
    stride = 1
    for axis in reversed(range(len(shape)) if axis_order is None else axis_order):
        strides[axis] = stride
        stride *= shape[axis]
    return tuple(strides)


def _is_whole(selectors: tuple[Any, ...], chunk_shape: tuple[int, ...]) -> bool:
    """Whether a selection is a full slice of every axis, which is told quickly."""
    return len(selectors) == len(chunk_shape) and all(
        isinstance(s, slice)
        and s.start in (0, None)
        and s.stop in (size, None)
        and s.step in (1, None)
        for s, size in zip(selectors, chunk_shape, strict=True)
    )


def _is_int(selector: object) -> bool:
    return isinstance(selector, (int, np.integer)) and not isinstance(selector, bool)


def _are_points(selectors: tuple[Any, ...]) -> bool:
    """Whether arrays of integers, one per axis, are the coordinates of points."""
    return all(isinstance(s, np.ndarray) and s.dtype != bool for s in selectors) and not (
        _is_open_mesh(selectors)
    )


def _is_open_mesh(arrays: Sequence[Any]) -> bool:
    """Whether arrays, one per axis, are shaped as by `numpy.ix_`; one alone is flat."""
    return all(a.ndim == len(arrays) and a.size == a.shape[k] for k, a in enumerate(arrays))


def _parse_axes(selectors: tuple[Any, ...], chunk_shape: tuple[int, ...]) -> list[_Axis] | None:
    """Return what is selected along each axis, None where the selection is no such product."""
    arrays = [s for s in selectors if isinstance(s, np.ndarray)]
    if len(selectors) != len(chunk_shape):
        return None
    if len(arrays) == len(selectors):
        is_product = _is_open_mesh(arrays)
    else:
        is_product = not arrays or (
            len(arrays) == 1 and arrays[0].ndim == 1 and not any(map(_is_int, selectors))
        )
    if not is_product:
        return None
    axes = [_parse_axis(s, size) for s, size in zip(selectors, chunk_shape, strict=True)]
    known = [axis for axis in axes if axis is not None]
    return known if len(known) == len(axes) else None


def _parse_axis(selector: Any, size: int) -> _Axis | None:
    """Return what is selected along an axis, None where that is unknown or out of bounds."""
    if isinstance(selector, slice):
        is_ascending = selector.step is None or selector.step > 0
        indices = range(*selector.indices(size))
        return _Axis(indices, None, is_dropped=False) if is_ascending else None
    if _is_int(selector):
        index = int(selector)
        return _Axis(range(index, index + 1), None, is_dropped=True) if 0 <= index < size else None
    if not isinstance(selector, np.ndarray):
        return None
    selected = selector.ravel()
    if selected.dtype == bool and len(selected) != size:
        return None
    selected = np.flatnonzero(selected) if selected.dtype == bool else selected.astype(np.intp)
    if not len(selected):
        return _Axis(selected, None, is_dropped=False)
    if not _is_within(selected, size):
        return None
    order = None
    steps = np.diff(selected)
    if not (steps > 0).all():
        selected, order = np.unique(selected, return_inverse=True)
        steps = np.diff(selected)
    if (steps == (step := steps[0] if len(steps) else 1)).all():
        return _Axis(range(selected[0], selected[-1] + 1, step), order, is_dropped=False)
    return _Axis(selected, order, is_dropped=False)


def _is_within(indices: Any, size: int) -> bool:
    return bool(indices.min() >= 0 and indices.max() < size)


def _as_array(indices: range | Indices) -> Indices:
    if isinstance(indices, range):  # many times faster than asarray
        return np.arange(indices.start, indices.stop, indices.step)
    return indices


# Gaps in a piece are kept in memory: small ones always, because a piece takes 32 bytes of its own,
# and any that is read over in a piece of so many bytes.
KEPT_GAP_BYTES = 1 << 8
KEPT_BYTES = 1 << 16


def _plan_product(
    axes: list[_Axis],
    by_stride: Sequence[int],
    strides: tuple[int, ...],
    item_size: int,
    merging: Merging,
) -> Plan:
    """Return the plan for one set of indices per axis.

    Parameters
    ----------
    axes : list of _Axis
        What is selected along each axis of the chunk.
    by_stride : sequence of int
        The axes, those with the smallest stride first.
    strides : tuple of int
        Distance of neighbours along each axis, in items.
    item_size, merging
        As of `plan_read`.

    Returns
    -------
    Plan
        Its window has the axes that are not dropped, in the order of `axes`.
    """
    kept = [k for k, axis in enumerate(axes) if not axis.is_dropped]
    if any(len(axis.indices) == 0 for axis in axes):
        return _plan_nothing(tuple(axes[k].num_selected for k in kept))
    # Per axis: length, stride in the fetched items, and index.
    window: list[tuple[int, int, Indices | None]] = [(1, 0, None)] * len(axes)
    # In items: where what the axes before the one at hand need begins for its index 0, and the
    # length of it, as one range.
    first, length = 0, 1
    starts: Indices = np.empty(0, np.intp)
    lengths: Indices = starts
    num_items = 0  # kept for each index of the axis at hand, once split
    for k in by_stride:
        indices, stride = axes[k].indices, strides[k]
        num, low, extent = len(indices), int(indices[0]), int(indices[-1]) - int(indices[0])
        if num_items:
            starts = np.add.outer(_as_array(indices) * stride, starts).ravel()
            lengths = np.tile(lengths, num)
            window[k] = (num, num_items, None)
            num_items *= num
            continue
        kept_gap_bytes = merging.max_gap_bytes
        if (extent * stride + length) * item_size > KEPT_BYTES:
            kept_gap_bytes = min(kept_gap_bytes, max(length * item_size, KEPT_GAP_BYTES))
        if (splits := _split(indices, stride, length, item_size, kept_gap_bytes)) is None:
            if isinstance(indices, range):
                window[k] = (num, indices.step * stride, None)
            else:
                window[k] = (extent + 1, stride, indices - low)
            first += low * stride
            length += extent * stride
        else:
            all_indices = _as_array(indices)
            if isinstance(indices, range):  # every index begins a range
                starts, lengths = all_indices * stride + first, np.full(num, length)
                num_items = num * length
                window[k] = (num, length, None)
                continue
            last = np.append(splits[1:], num) - 1
            starts = all_indices[splits] * stride + first
            lengths = (all_indices[last] - all_indices[splits]) * stride + length
            num_items = int(lengths.sum())
            # Where each index lies in the items: the place of its piece, and in its piece.
            piece = np.repeat(np.arange(len(splits)), last - splits + 1)
            places = (np.cumsum(lengths) - lengths)[piece]
            places += (all_indices - all_indices[splits][piece]) * stride
            window[k] = (num_items - length + 1, 1, places)
    if not num_items:
        starts, lengths = np.array([first]), np.array([length])
    starts = starts * item_size
    return Plan(
        ranges=merging.merge(starts, starts + lengths * item_size),
        window_shape=tuple(window[k][0] for k in kept),
        window_strides=tuple(window[k][1] for k in kept),
        index=tuple(window[k][2] for k in kept),
        order=tuple(axes[k].order for k in kept),
        shape=tuple(axes[k].num_selected for k in kept),
    )


def _split(
    indices: range | Indices, stride: int, length: int, item_size: int, max_gap_bytes: int
) -> Indices | None:
    """Return the positions at which a new range begins, or None for a single range."""
    # Ranges of `length` items, `stride` items apart for consecutive indices.
    if isinstance(indices, range):
        gap = (indices.step * stride - length) * item_size
        return np.arange(len(indices)) if len(indices) > 1 and gap > max_gap_bytes else None
    gaps = (np.diff(indices) * stride - length) * item_size
    splits = np.flatnonzero(gaps > max_gap_bytes) + 1
    return np.concatenate([[0], splits]) if len(splits) else None


def _plan_points(
    arrays: tuple[Any, ...],
    chunk_shape: tuple[int, ...],
    strides: tuple[int, ...],
    item_size: int,
    merging: Merging,
) -> Plan | None:
    """Return the plan for points, None where one is out of bounds or their shapes don't fit."""
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        return None
    if len(arrays) != len(chunk_shape):
        return None
    if math.prod(shape) == 0:
        return _plan_nothing(shape)
    items: Indices = np.zeros((), np.intp)
    for array, size, stride in zip(arrays, chunk_shape, strides, strict=True):
        if not _is_within(array, size):
            return None
        items = items + array.astype(np.intp, copy=False) * stride
    items = np.broadcast_to(items, shape).ravel()
    positions = None
    if not (np.diff(items) > 0).all():
        items, positions = np.unique(items, return_inverse=True)
    return Plan(
        ranges=merging.merge(items * item_size, (items + 1) * item_size),
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
