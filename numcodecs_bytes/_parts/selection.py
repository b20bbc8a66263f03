"""Selections of a chunk, as zarr passes them to codecs. Works on integers only.

A selection is a product of one set of indices per axis (basic selections, ``oindex``), or a list of
points (``vindex``, masks).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numcodecs_bytes._parts.ranges import Indices

# Distinct indices of an axis are found without sorting if it is at most so many times as long as
# the selection: for 4,000,000 indices of 8,000,000, 0.1 s instead of 0.5.
COUNTED = 8


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """What is selected along one axis of a chunk.

    Attributes
    ----------
    indices : range or numpy.ndarray
        The distinct indices in ascending order; a range if their step is constant.
    order : numpy.ndarray or None
        Positions in `indices` of the selected ones; None means all positions in order.
    is_dropped : bool
        Whether the axis is selected by an integer, and so missing from the result.
    """

    indices: range | Indices
    order: Indices | None
    is_dropped: bool

    @property
    def num_selected(self) -> int:
        """Number of selected indices."""
        return len(self.indices if self.order is None else self.order)


def selectors_of(selection: Any, num_axes: int) -> tuple[Any, ...]:
    """Return a selector for each axis."""
    selectors = selection if isinstance(selection, tuple) else (selection,)
    return selectors + (slice(None),) * (num_axes - len(selectors))


def key_of(selectors: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return what identifies slices and integers; None for other selectors."""
    if not _IN_KEYS.issuperset(map(type, selectors)):
        return None
    key = selectors
    if not _SLICES_HAVE_HASHES:
        key = tuple((s.start, s.stop, s.step) if type(s) is slice else s for s in selectors)
    try:
        hash(key)
    except TypeError:  # the bounds of a slice may be arrays
        return None
    return key


_IN_KEYS = {slice, int}
_SLICES_HAVE_HASHES = sys.version_info >= (3, 12)


def is_int(selector: object) -> bool:
    """Whether a selector is an integer, and no bool."""
    return isinstance(selector, (int, np.integer)) and not isinstance(selector, bool)


def are_points(selectors: tuple[Any, ...]) -> bool:
    """Whether the selectors are arrays of integers that are the coordinates of points."""
    return all(isinstance(s, np.ndarray) and s.dtype != bool for s in selectors) and not (
        _is_open_mesh(selectors)
    )


def _is_open_mesh(arrays: Sequence[Any]) -> bool:
    """Whether arrays, one per axis, are shaped as by `numpy.ix_`; a single one is 1-D."""
    return all(a.ndim == len(arrays) and a.size == a.shape[k] for k, a in enumerate(arrays))


def parse_points(
    arrays: tuple[Any, ...], shape: tuple[int, ...], strides: tuple[int, ...]
) -> Indices | None:
    """Return the positions of points, whose coordinates are arrays that broadcast together.

    Parameters
    ----------
    arrays : tuple of numpy.ndarray
        Integer coordinates, one array per axis of the chunk.
    shape, strides : tuple of int
        Shape of the chunk in elements, and its strides in whatever the positions are to be in.

    Returns
    -------
    numpy.ndarray or None
        In the broadcast shape. None if a point is out of bounds, the shapes do not broadcast, or
        there is not one array per axis.
    """
    try:
        np.broadcast_shapes(*(a.shape for a in arrays))
    except ValueError:
        return None
    if len(arrays) != len(shape):
        return None
    positions: Any = None
    for array, size, stride in zip(arrays, shape, strides, strict=True):
        if array.size and not _is_within(array, size):
            return None
        along = array.astype(np.intp, copy=False)
        along = along * stride if stride != 1 else along
        positions = along if positions is None else positions + along
    return np.zeros((), np.intp) if positions is None else positions


def parse_axes(selectors: tuple[Any, ...], chunk_shape: tuple[int, ...]) -> list[Axis] | None:
    """Return what is selected along each axis, or None if the selection is not a product."""
    arrays = [s for s in selectors if isinstance(s, np.ndarray)]
    if len(selectors) != len(chunk_shape):
        return None
    if len(arrays) == len(selectors):
        is_product = _is_open_mesh(arrays)
    else:
        is_product = not arrays or (
            len(arrays) == 1 and arrays[0].ndim == 1 and not any(map(is_int, selectors))
        )
    if not is_product:
        return None
    axes = [_parse_axis(s, size) for s, size in zip(selectors, chunk_shape, strict=True)]
    known = [axis for axis in axes if axis is not None]
    return known if len(known) == len(axes) else None


def _parse_axis(selector: Any, size: int) -> Axis | None:
    """Return what is selected along an axis, or None if that is unsupported or out of bounds."""
    if isinstance(selector, slice):
        is_ascending = selector.step is None or selector.step > 0
        indices = range(*selector.indices(size))
        return Axis(indices, None, is_dropped=False) if is_ascending else None
    if is_int(selector):
        index = int(selector)
        return Axis(range(index, index + 1), None, is_dropped=True) if 0 <= index < size else None
    if not isinstance(selector, np.ndarray):
        return None
    selected = selector.ravel()
    if selected.dtype == bool and len(selected) != size:
        return None
    selected = np.flatnonzero(selected) if selected.dtype == bool else selected.astype(np.intp)
    if not len(selected):
        return Axis(selected, None, is_dropped=False)
    if not _is_within(selected, size):
        return None
    order = None
    steps = np.diff(selected)
    if not (steps > 0).all():
        selected, order = _distinct(selected, size)
        steps = np.diff(selected)
    if (steps == (step := steps[0] if len(steps) else 1)).all():
        indices = range(int(selected[0]), int(selected[-1]) + 1, int(step))
        return Axis(indices, order, is_dropped=False)
    return Axis(selected, order, is_dropped=False)


def _distinct(selected: Indices, size: int) -> tuple[Indices, Indices]:
    """Return the distinct ones of some indices in ascending order, and where each is among them."""
    if size > COUNTED * len(selected):
        return np.unique(selected, return_inverse=True)
    is_selected = np.zeros(size, bool)
    is_selected[selected] = True
    distinct = np.flatnonzero(is_selected)
    place = np.empty(size, np.intp)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[selected]


def _is_within(indices: Any, size: int) -> bool:
    return bool(indices.min() >= 0 and indices.max() < size)


def as_array(indices: range | Indices) -> Indices:
    """Return indices as an array."""
    if isinstance(indices, range):  # many times faster than asarray
        return np.arange(indices.start, indices.stop, indices.step)
    return indices
