"""Selection -> byte ranges: which bytes of an uncompressed chunk a selection needs.

Integers only: no array data, no I/O. The elements of a chunk lie in C order, so what a selection
needs are runs of bytes. Two neighbouring runs are read with one request where the gap between them
is no larger than what a request costs, in bytes: that makes ``requests * cost + bytes`` least.

A selection is points (``vindex``, masks), or a product of one set of indices per axis (basic
selections, ``oindex``). The runs of a product are found axis by axis, from the last one: as long as
the indices of an axis merge into a single range, the axis before it sees a single run. The first
axis that does not is the *split axis*. Its ranges are the same for every combination of indices of
the axes before it: they are the pieces that are kept, end to end. Where the gap between the last
piece of one combination and the first of the next is cheap, both come with one request.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, slots=True, eq=False)
class PartialReadPlan:
    """Byte ranges to fetch, and where the selected elements lie in them.

    Laid end to end, the pieces of the fetched ranges are a flat array of items, and the strided
    window shows each item that is selected. Of each of its axes, `index` picks the distinct ones,
    and of those `order` the selected ones. To be applied axis by axis, the first axis first: until
    then the window may show the same memory many times.

    Attributes
    ----------
    starts, ends : numpy.ndarray
        First byte and end (exclusive) of each range in the chunk, shape ``(num_requests,)``.
    piece_starts, piece_ends : numpy.ndarray
        The same of the pieces to keep, each within a range, shape ``(num_pieces,)``.
    window_shape, window_strides : tuple of int
        Shape, and strides in items.
    index, order : tuple of (numpy.ndarray or None)
        Per axis of the window, positions; None: all, each once and in turn.
    shape : tuple of int
        Shape of the selection.
    """

    starts: Indices
    ends: Indices
    piece_starts: Indices
    piece_ends: Indices
    window_shape: tuple[int, ...]
    window_strides: tuple[int, ...]
    index: tuple[Indices | None, ...]
    order: tuple[Indices | None, ...]
    shape: tuple[int, ...]

    @property
    def num_requests(self) -> int:
        """Number of ranges."""
        return len(self.starts)

    @property
    def num_bytes(self) -> int:
        """Number of bytes in all ranges."""
        return int((self.ends - self.starts).sum())

    @property
    def num_kept_bytes(self) -> int:
        """Number of bytes in all pieces."""
        return int((self.piece_ends - self.piece_starts).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """What is selected along one axis.

    `indices` are the distinct indices, ascending; a range where their step is constant. `order`
    are the positions in it of the selected ones, None where these are all, each once and in turn.
    """

    indices: range | Indices
    order: Indices | None
    is_dropped: bool


def plan_partial_read(
    selection: Any,
    chunk_shape: tuple[int, ...],
    item_size: int,
    request_cost_bytes: int,
) -> PartialReadPlan | None:
    """Return the cheapest byte ranges for a selection of a chunk, or None to read all of it.

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
    request_cost_bytes : int
        How many bytes could be read instead of one more request, at least 0.

    Returns
    -------
    PartialReadPlan or None
        None where all bytes of the chunk are needed, or the selection is of another kind.

    Raises
    ------
    IndexError
        If an index is out of bounds.
    """
    selectors = selection if isinstance(selection, tuple) else (selection,)
    selectors += (slice(None),) * (len(chunk_shape) - len(selectors))
    if len(selectors) != len(chunk_shape) or is_whole_chunk(selectors, chunk_shape):
        return None
    arrays = [s for s in selectors if isinstance(s, np.ndarray)]
    others = [s for s in selectors if not isinstance(s, np.ndarray)]
    if not others and not _is_open_mesh(arrays):
        if any(a.dtype == bool for a in arrays):
            return None
        plan = _plan_points(arrays, chunk_shape, item_size, request_cost_bytes)
    elif (
        (others and any(len(arrays) > 1 or a.ndim != 1 for a in arrays))
        or any(isinstance(s, slice) and (s.step or 1) < 1 for s in others)
        or not all(isinstance(s, slice) or (_is_int(s) and not arrays) for s in others)
    ):
        return None
    else:
        axes = [_parse_axis(s, size) for s, size in zip(selectors, chunk_shape, strict=True)]
        plan = _plan_product(axes, chunk_shape, item_size, request_cost_bytes)
    chunk_bytes = math.prod(chunk_shape) * item_size
    return None if plan.num_requests == 1 and plan.num_bytes == chunk_bytes else plan


def is_whole_chunk(selection: Any, chunk_shape: tuple[int, ...]) -> bool:
    """Whether a selection is a full slice of every axis; a quick look, not the last word."""
    return len(selection) == len(chunk_shape) and all(
        isinstance(s, slice)
        and s.start in (0, None)
        and s.stop in (size, None)
        and s.step in (1, None)
        for s, size in zip(selection, chunk_shape, strict=True)
    )


def _is_int(selector: object) -> bool:
    return isinstance(selector, (int, np.integer)) and not isinstance(selector, bool)


def _is_open_mesh(arrays: list[Any]) -> bool:
    """Whether arrays, one per axis, are shaped as by `numpy.ix_`; one alone is flat."""
    return all(a.ndim == len(arrays) and a.size == a.shape[k] for k, a in enumerate(arrays))


def _parse_axis(selector: Any, size: int) -> _Axis:
    if isinstance(selector, slice):
        return _Axis(range(*selector.indices(size)), None, is_dropped=False)
    if _is_int(selector):
        _check_bounds(selector, selector, size)
        return _Axis(range(int(selector), int(selector) + 1), None, is_dropped=True)
    selected = selector.ravel()
    selected = np.flatnonzero(selected) if selected.dtype == bool else selected.astype(np.intp)
    if not len(selected):
        return _Axis(selected, None, is_dropped=False)
    _check_bounds(int(selected.min()), int(selected.max()), size)
    order = None
    steps = np.diff(selected)
    if not (steps > 0).all():
        selected, order = np.unique(selected, return_inverse=True)
        steps = np.diff(selected)
    if (steps == (step := steps[0] if len(steps) else 1)).all():
        return _Axis(range(selected[0], selected[-1] + 1, step), order, is_dropped=False)
    return _Axis(selected, order, is_dropped=False)


def _as_array(indices: range | Indices) -> Indices:
    if isinstance(indices, range):  # many times faster than asarray
        return np.arange(indices.start, indices.stop, indices.step)
    return indices


def _check_bounds(first: int, last: int, size: int) -> None:
    if first < 0 or last >= size:
        raise IndexError(
            f"selection is out of the chunk: got indices from {first} to {last} for an axis of "
            f"{size}, expected 0 to {size - 1}"
        )


def _plan_product(
    axes: list[_Axis], chunk_shape: tuple[int, ...], item_size: int, request_cost_bytes: int
) -> PartialReadPlan:
    if any(len(axis.indices) == 0 for axis in axes):
        return _plan_nothing(
            tuple(len(a.indices if a.order is None else a.order) for a in axes if not a.is_dropped)
        )
    strides = [math.prod(chunk_shape[k + 1 :]) for k in range(len(axes))]
    # Per axis, from the last: length, stride, index and order.
    window: list[tuple[int, int, Indices | None, Indices | None]] = []
    # In items: what the axes after the one at hand need for one index of it, as one range.
    first, span = 0, 1
    starts: Indices = np.empty(0, np.intp)
    lengths: Indices = starts
    row = 0  # items fetched for each index of the axis at hand, once split
    for axis, stride in zip(reversed(axes), reversed(strides), strict=True):
        indices = axis.indices
        num, low, extent = len(indices), int(indices[0]), int(indices[-1]) - int(indices[0])
        if row:
            starts = np.add.outer(_as_array(indices) * stride, starts).ravel()
            lengths = np.tile(lengths, num)
            window.append((num, row, None, axis.order))
            row *= num
        elif (groups := _split(indices, stride, span, item_size, request_cost_bytes)) is None:
            if isinstance(indices, range):
                window.append((num, indices.step * stride, None, axis.order))
            else:
                window.append((extent + 1, stride, indices - low, axis.order))
            first += low * stride
            span += extent * stride
        else:
            all_indices = _as_array(indices)
            last = np.append(groups[1:], num) - 1
            starts = all_indices[groups] * stride + first
            lengths = (all_indices[last] - all_indices[groups]) * stride + span
            row = int(lengths.sum())
            if isinstance(indices, range):
                window.append((num, span, None, axis.order))
            else:
                # Where each index lies in a row: its group's place, and its place in the group.
                group = np.repeat(np.arange(len(groups)), last - groups + 1)
                table = (np.cumsum(lengths) - lengths)[group]
                table += (all_indices - all_indices[groups][group]) * stride
                window.append((row - span + 1, 1, table, axis.order))
        if axis.is_dropped:
            window.pop()
    if not row:
        starts, lengths = np.array([first]), np.array([span])
    window.reverse()
    starts *= item_size
    ends = starts + lengths * item_size
    range_starts, range_ends = _merge(starts, ends, request_cost_bytes)
    return PartialReadPlan(
        starts=range_starts,
        ends=range_ends,
        piece_starts=starts,
        piece_ends=ends,
        window_shape=tuple(length for length, *_ in window),
        window_strides=tuple(stride for _, stride, *_ in window),
        index=tuple(index for *_, index, _ in window),
        order=tuple(order for *_, order in window),
        shape=tuple(
            len(order) if order is not None else length if index is None else len(index)
            for length, _, index, order in window
        ),
    )


def _merge(starts: Indices, ends: Indices, request_cost_bytes: int) -> tuple[Indices, Indices]:
    """Return ascending ranges, those merged whose gap is no larger than the cost of a request."""
    if len(starts) == 1:
        return starts, ends
    is_apart = starts[1:] - ends[:-1] > request_cost_bytes
    return (
        starts[np.concatenate([[True], is_apart])],
        ends[np.concatenate([is_apart, [True]])],
    )


def _split(
    indices: range | Indices, stride: int, span: int, item_size: int, request_cost_bytes: int
) -> Indices | None:
    """Return the positions at which a new range begins, or None for a single range."""
    # Runs of `span` items, `stride` items apart for consecutive indices.
    if isinstance(indices, range):
        gap = (indices.step * stride - span) * item_size
        return np.arange(len(indices)) if len(indices) > 1 and gap > request_cost_bytes else None
    gaps = (np.diff(indices) * stride - span) * item_size
    groups = np.flatnonzero(gaps > request_cost_bytes) + 1
    return np.concatenate([[0], groups]) if len(groups) else None


def _plan_points(
    arrays: list[Any], chunk_shape: tuple[int, ...], item_size: int, request_cost_bytes: int
) -> PartialReadPlan:
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    if math.prod(shape) == 0:
        return _plan_nothing(shape)
    arrays = [a.astype(np.intp, copy=False) for a in arrays]
    for array, size in zip(arrays, chunk_shape, strict=True):
        _check_bounds(int(array.min()), int(array.max()), size)
    # Horner's rule, in items.
    items: Indices = functools.reduce(
        lambda items, axis: items * axis[1] + axis[0],
        zip(arrays, chunk_shape, strict=True),
        np.zeros((), np.intp),
    )
    items = np.broadcast_to(items, shape).ravel()
    ordered = items if (np.diff(items) >= 0).all() else np.sort(items)
    starts, ends = _merge(ordered * item_size, (ordered + 1) * item_size, request_cost_bytes)
    # Where each range lies in the fetched items, less where it lies in the chunk.
    place = (np.cumsum(ends - starts) - ends) // item_size
    positions = items + place[np.searchsorted(starts, items * item_size, side="right") - 1]
    return PartialReadPlan(
        starts=starts,
        ends=ends,
        piece_starts=starts,
        piece_ends=ends,
        window_shape=(int((ends - starts).sum()) // item_size,),
        window_strides=(1,),
        index=(None,),
        order=(positions,),
        shape=shape,
    )


def _plan_nothing(shape: tuple[int, ...]) -> PartialReadPlan:
    nothing = np.zeros(0, np.intp)
    return PartialReadPlan(
        starts=nothing,
        ends=nothing,
        piece_starts=nothing,
        piece_ends=nothing,
        window_shape=shape,
        window_strides=(0,) * len(shape),
        index=(None,) * len(shape),
        order=(None,) * len(shape),
        shape=shape,
    )
