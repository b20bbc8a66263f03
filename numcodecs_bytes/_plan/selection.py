"""What zarr selects from a chunk: indices along each axis, or points. Works on integers only."""

import bisect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._plan.layout import Geometry
from numcodecs_bytes._plan.outcome import LeftToZarr

SLICES_HAVE_HASHES = sys.version_info >= (3, 12)

Indices = np.ndarray[Any, np.dtype[np.intp]]
Selector = slice | Indices  # what is selected along an axis


class Axis(NamedTuple):
    """What is selected along one axis of a chunk."""

    indices: range | Indices  # a range with a positive step, or a 1-D array in any order
    stride: int  # the distance from one index to the next, in bytes of the chunk
    selection_axis: int | None  # its number in what is selected; None if it is dropped

    def select(self, selector: Selector) -> "Axis":
        """Return what a slice, or an array, selects of the indices."""
        indices: Any = self.indices
        return self._replace(indices=indices[selector])

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest index; there must be at least one."""
        indices = self.indices
        if type(indices) is range:
            return indices[0], indices[-1]
        return int(indices.min()), int(indices.max())

    def offsets(self, numbers: Indices) -> Indices:
        """Return the offset in bytes of some of the indices, given by their numbers."""
        indices = self.indices
        if type(indices) is range:
            return numbers * (indices.step * self.stride) + indices.start * self.stride
        return indices[numbers] * self.stride


def key_of(selection: object) -> object:
    """Return a key for slices and integers, where slices have no hash; arrays have none either."""
    if not isinstance(selection, tuple):
        return selection
    return tuple([(s.start, s.stop, s.step) if type(s) is slice else s for s in selection])


def selection_of(key: object) -> object:
    """Return the selection that has a key."""
    if not isinstance(key, tuple):
        return key
    return tuple([slice(*of_axis) if type(of_axis) is tuple else of_axis for of_axis in key])


def moved_to_start(
    selection: Any, shape: tuple[int, ...], steps: tuple[int, ...]
) -> tuple[Any, list[int]]:
    """Return a selection moved to the start of its chunk, and by how many steps along each axis.

    Steps are elements of a chunk, or inner chunks of a shard. Selections that differ only in where
    they begin, such as samples at random, then share a plan: to plan each took a third of the time
    of a read by `SyncReader`.
    """
    num_steps = [0] * len(shape)
    if not isinstance(selection, tuple) or len(selection) != len(shape):  # as `axes_of` will say
        return selection, num_steps
    selectors = list(selection)
    for axis, (selector, step) in enumerate(zip(selection, steps, strict=True)):
        first = selector.start if type(selector) is slice else selector
        if type(first) is not int or not step <= first < shape[axis]:
            continue
        distance = first // step * step
        if type(selector) is slice:
            stop = selector.stop
            if type(stop) is not int or not first < stop <= shape[axis]:
                continue
            if selector.step is not None and selector.step < 1:
                continue
            selectors[axis] = slice(first - distance, stop - distance, selector.step)
        else:
            selectors[axis] = first - distance
        num_steps[axis] = first // step
    return tuple(selectors), num_steps


def axes_of(
    selection: object, geometry: Geometry, drop_axes: tuple[int, ...] = ()
) -> tuple[Axis, ...]:
    """Return what is selected along each axis of a chunk, in the order in which they are stored.

    The selection is what zarr passes to codecs, a selector for each axis: integers, which drop
    their axis, and slices with positive steps; or arrays of integers or bools, shaped as by
    ``numpy.ix_``, or a single 1-D one together with slices; or, for points, 1-D arrays of integers.
    Points are a single axis: their indices in the flattened chunk, in stored order. Raises
    `LeftToZarr` if the selection is of another kind, or out of bounds.
    """
    shape, strides = geometry.shape, geometry.strides
    if not isinstance(selection, tuple) or len(selection) != len(shape):
        raise _unknown(selection)
    arrays = [s for s in selection if isinstance(s, np.ndarray)]
    if any([isinstance(array, np.ma.MaskedArray) for array in arrays]):
        raise _unknown(selection)
    # zarr passes an array for every axis, the k-th is that of axis k; or for one axis only.
    fit_mesh = [a.ndim == len(shape) and a.size == a.shape[k] for k, a in enumerate(arrays)]
    if len(arrays) > 1 and not all(fit_mesh):
        if len(arrays) < len(shape):
            raise _unknown(selection)
        return (_points(arrays, geometry),)
    axes, num_selected = [], 0
    for axis, selector in enumerate(selection):
        indices = _indices(selector, shape[axis])
        is_dropped = axis in drop_axes or not isinstance(selector, slice | np.ndarray)
        axes.append(Axis(indices, strides[axis], None if is_dropped else num_selected))
        num_selected += not is_dropped
    return tuple([axes[axis] for axis in geometry.axis_order])


def _points(arrays: list[Indices], geometry: Geometry) -> Axis:
    num = len(arrays[0]) if arrays[0].ndim else 0
    if any([a.shape != (num,) or a.dtype.kind not in "iu" for a in arrays]):
        raise _unknown(arrays)
    order, shape = geometry.axis_order, geometry.shape
    try:  # checks bounds, too
        indices = np.ravel_multi_index([arrays[k] for k in order], [shape[k] for k in order])
    except ValueError as error:
        raise _unknown(arrays) from error
    return Axis(as_range(indices), geometry.item_size, 0)


def _indices(selector: object, size: int) -> range | Indices:
    """Return the indices that a slice, an integer or an array selects along an axis."""
    if isinstance(selector, slice):
        indices = range(*selector.indices(size))
        if len(indices) <= 1:  # a step that leads nowhere may be of any size
            return range(indices.start, indices.start + len(indices))
        if indices.step > 0:
            return indices
    elif isinstance(selector, int | np.integer) and not isinstance(selector, bool):
        if 0 <= selector < size:
            return range(int(selector), int(selector) + 1)
    elif isinstance(selector, np.ndarray) and selector.dtype.kind == "b":
        if selector.size == size:
            return as_range(np.flatnonzero(selector))
    elif isinstance(selector, np.ndarray) and selector.dtype.kind in "iu":
        along = selector.reshape(-1).astype(np.intp, copy=False)
        # Negative indices, taken for unsigned ones, exceed any size.
        if not along.size or along.view(np.uintp).max() < size:
            return as_range(along)
    raise _unknown(selector)


def _unknown(selection: object) -> LeftToZarr:
    return LeftToZarr(f"its selection is of an unknown kind ({type(selection).__name__})")


class InChunk(NamedTuple):
    """What is selected of the chunks at a position along an axis of their grid."""

    position: int
    indices: range | Indices  # where the chunk has them
    out_selection: Selector  # where the selection has them


def cut_at_chunks(indices: range | Indices, size: int) -> Iterator[InChunk]:
    """Cut indices along an axis, a range or an array in any order, at the edges of chunks."""
    order, ascending, first = None, indices, 0
    if type(ascending) is not range:
        chunks = ascending // size
        if not (chunks[1:] >= chunks[:-1]).all():
            order = np.argsort(chunks, kind="stable")
            ascending = ascending[order]
    while first < len(ascending):
        position = int(ascending[first]) // size
        edge = position * size
        within: range | Indices
        if type(ascending) is range:
            end_within = min(ascending.stop - edge, size)
            within = range(ascending[first] - edge, end_within, ascending.step)
            end = first + len(within)
        else:
            # Sorted by chunk is sorted well enough to find its end.
            end = bisect.bisect_left(ascending, edge + size, first)
            within = ascending[first:end] - edge
        yield InChunk(position, within, slice(first, end) if order is None else order[first:end])
        first = end


def as_range(along: Indices) -> range | Indices:
    """Return indices as a range if their step is constant: ``numpy.ix_`` makes arrays of slices."""
    num = len(along)
    if num < 2:
        return range(int(along[0]), int(along[0]) + 1) if num else range(0)
    first, step = int(along[0]), int(along[1]) - int(along[0])
    last = first + (num - 1) * step
    if step > 0 and along[-1] == last and (np.diff(along) == step).all():
        return range(first, last + 1, step)
    return along
