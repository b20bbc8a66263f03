"""What is selected of the output, or of the values: a slice or an array for each axis."""

import math
import operator
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from numcodecs_bytes._plan.selection import Selector, as_range

OutSelection = tuple[Selector, ...]  # one for each axis
Box = tuple[slice, ...]

# zarr turns slices into arrays of indices beside other arrays. For this many elements and
# more, they become slices again: that takes 15 us, and to assign through arrays takes 8 ns longer
# for each element. 8 samples of 5 MB, unsorted, took 30 times as long as sorted ones.
MIN_MESH_SIZE = 1 << 12


def are_slices(out_selection: object) -> TypeGuard["tuple[Any, ...]"]:
    """Whether indexing the output with it returns a view."""
    return isinstance(out_selection, tuple) and all([type(s) is slice for s in out_selection])


def shape_of(out_selection: OutSelection) -> tuple[int, ...]:
    """Return the shape of what is selected; all slices have bounds.

    zarr 3.1.6 passes ``slice(0, -2)`` for the slice ``[12:10]``, which selects nothing.
    """
    return tuple(
        max(s.stop - s.start, 0) if isinstance(s, slice) else s.size for s in out_selection
    )


def size_of(out_selection: OutSelection) -> int:
    """Return how many elements are selected; all slices have bounds."""
    return int(math.prod(shape_of(out_selection)))  # zarr makes some slices of NumPy's integers


def is_within(out_selection: OutSelection, shape: tuple[int, ...]) -> bool:
    """Whether an array of a shape has all that is selected."""
    ends = [s.stop if isinstance(s, slice) else s.max(initial=-1) + 1 for s in out_selection]
    return len(ends) == len(shape) and all(map(operator.le, ends, shape))


def out_selection_of(selector: Any) -> OutSelection:
    """Return what zarr selects of the output, with slices instead of long arrays made of them."""
    out_selection = selector if isinstance(selector, tuple) else (selector,)
    num = len(out_selection)
    is_mesh = num > 1 and all([type(i) is np.ndarray and i.ndim == num for i in out_selection])
    if is_mesh and math.prod([i.size for i in out_selection]) >= MIN_MESH_SIZE:
        # This makes slices where it can.
        return out_selection_within(out_selection, (slice(None),) * num)
    return out_selection


def out_selection_within(outer: OutSelection, inner: OutSelection) -> OutSelection:
    """Return what `inner` selects of what `outer` selects of the output: all of it if it is ().

    The slices of `outer` have steps of 1.
    """
    if not inner:
        return outer
    out_selection: list[Selector] = []
    for along_outer, along_inner in zip(outer, inner, strict=True):
        if not isinstance(along_outer, slice):
            selected = np.reshape(along_outer, -1)[along_inner]
            indices = as_range(selected)
            if isinstance(indices, range) and indices.step == 1:
                out_selection.append(slice(indices.start, indices.stop))
            else:
                out_selection.append(selected)
        elif not isinstance(along_inner, slice):
            out_selection.append(along_inner + (along_outer.start or 0))
        elif along_inner == slice(None):
            out_selection.append(along_outer)
        else:
            start = along_outer.start or 0
            out_selection.append(slice(start + along_inner.start, start + along_inner.stop))
    return mesh(out_selection, None)


def mesh(out_selection: Sequence[Selector], shape: tuple[int, ...] | None) -> OutSelection:
    """Return what selects by slices and arrays along each axis: ``numpy.ix_`` of several arrays.

    `shape` is the shape of the array that is indexed, or None if all slices have bounds.
    """
    if sum([type(s) is not slice for s in out_selection]) < 2:
        return tuple(out_selection)
    sizes: Any = shape or [getattr(s, "stop", None) for s in out_selection]
    indices = [
        np.arange(*s.indices(size)) if isinstance(s, slice) else s
        for s, size in zip(out_selection, sizes, strict=True)
    ]
    return np.ix_(*indices)
