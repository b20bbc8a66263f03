"""What zarr selects from a chunk: indices along each axis, or points. Works on integers only."""

import sys
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._engine.layout import Layout

Indices = np.ndarray[Any, np.dtype[np.intp]]


class Axis(NamedTuple):
    """What is selected along one axis of a chunk."""

    indices: range | Indices  # a range with a positive step, or a 1-D array in any order
    stride: int  # the distance from one index to the next, in bytes of the chunk
    to: int | None  # which axis of the selected elements it becomes; None if it is dropped

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest index; there must be at least one."""
        indices = self.indices
        if type(indices) is range:
            return indices[0], indices[-1]
        return int(indices.min()), int(indices.max())


def key_of(selection: Any) -> Any:
    """Return a key for slices and integers; with arrays, it can't be hashed."""
    if sys.version_info >= (3, 12) or not isinstance(selection, tuple):
        return selection
    return tuple([(s.start, s.stop, s.step) if type(s) is slice else s for s in selection])


def axes_of(
    selection: Any, layout: Layout, drop_axes: tuple[int, ...] = ()
) -> tuple[Axis, ...] | None:
    """Return what is selected along each axis of a chunk, in the order in which they are stored.

    The selection is what zarr passes to codecs, a selector for each axis: integers, which drop
    their axis, and slices with positive steps; or arrays of integers or bools, shaped as by
    ``numpy.ix_``, or a single 1-D one together with slices; or, for points, 1-D arrays of integers.
    Points are a single axis: their indices in the flattened chunk, in stored order. Returns None if
    the selection is of another kind, or out of bounds.
    """
    shape = layout.shape
    if not isinstance(selection, tuple) or len(selection) != len(shape):
        return None
    arrays = [s for s in selection if isinstance(s, np.ndarray)]
    is_mesh = [a.ndim == len(shape) and a.size == a.shape[k] for k, a in enumerate(arrays)]
    if len(arrays) == len(shape) > 1 and not all(is_mesh):
        points = _points(arrays, layout)
        return None if points is None else (points,)
    if len(arrays) > 1 and not all(is_mesh):
        return None
    axes, to = [], 0
    for k, selector in enumerate(selection):
        indices = _indices(selector, shape[k])
        if indices is None:
            return None
        is_dropped = k in drop_axes or not isinstance(selector, slice | np.ndarray)
        axes.append(Axis(indices, layout.strides[k], None if is_dropped else to))
        to += not is_dropped
    return tuple([axes[k] for k in layout.axis_order])


def _points(arrays: list[Any], layout: Layout) -> Axis | None:
    """Return points as one axis; None if they are not 1-D integers, or out of bounds."""
    if any([a.ndim != 1 or a.dtype.kind not in "iu" or len(a) != len(arrays[0]) for a in arrays]):  # noqa: C419
        return None
    order, shape = layout.axis_order, layout.shape
    try:  # checks bounds, too
        indices: Any = np.ravel_multi_index([arrays[k] for k in order], [shape[k] for k in order])
    except ValueError:
        return None
    return Axis(_as_range(indices), layout.item_size, 0)


def _indices(selector: Any, size: int) -> range | Indices | None:
    """Return the indices along an axis; None if they are of another kind, or out of bounds."""
    if isinstance(selector, slice):
        indices = range(*selector.indices(size))
        return indices if indices.step > 0 else None
    if isinstance(selector, int | np.integer) and not isinstance(selector, bool):
        return range(int(selector), int(selector) + 1) if 0 <= selector < size else None
    if not isinstance(selector, np.ndarray) or selector.dtype.kind not in "iub":
        return None
    along = selector.reshape(-1)
    if along.dtype.kind == "b":
        return _as_range(np.flatnonzero(along)) if along.size == size else None
    if along.size and not (along.min() >= 0 and along.max() < size):
        return None
    return _as_range(along.astype(np.intp, copy=False))


def _as_range(along: Indices) -> range | Indices:
    """Return indices as a range if their step is constant: ``numpy.ix_`` makes arrays of slices."""
    num = len(along)
    if num < 2:
        return range(int(along[0]), int(along[0]) + 1) if num else range(0)
    first, step = int(along[0]), int(along[1]) - int(along[0])
    last = first + (num - 1) * step
    if step > 0 and along[-1] == last and (np.diff(along) == step).all():
        return range(first, last + 1, step)
    return along
