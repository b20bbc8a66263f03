"""What a user selects of an array -> what is selected of each of its chunks.

Only what selects axis by axis: integers, slices, Ellipsis, and a list or array of integers along
one axis. Works on integers only: no array data, no I/O.
"""

import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._plan.out_selections import OutSelection, size_of
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.selection import Indices, Selector, cut_at_chunks


class ChunkSelection(NamedTuple):
    """What is selected of a chunk."""

    chunk_coords: tuple[int, ...]
    chunk_selection: tuple[Any, ...]  # as zarr passes it to codecs
    out_selection: OutSelection  # where the result has it

    def is_all_of_chunk(self, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> bool:
        """Whether it selects as many elements as an array of a shape has of the chunk."""
        along = zip(self.chunk_coords, shape, chunk_shape, strict=True)
        num_in_array = math.prod([min(length, size - i * length) for i, size, length in along])
        return size_of(self.out_selection) == num_in_array


class AxisCut(NamedTuple):
    """What is selected of the chunks at a position along an axis of the grid."""

    position: int
    selector: int | Selector
    out_selection: Selector | None  # None if the axis is dropped


class ArraySelection(NamedTuple):
    """What is selected of an array, cut at the edges of its chunks."""

    shape: tuple[int, ...]  # the shape of the result
    num_chunks: int
    is_scalar: bool  # whether zarr returns a NumPy scalar, instead of an array without axes
    axes: list[list[AxisCut]]

    def chunks(self) -> Iterator[ChunkSelection]:
        """Yield what is selected of each chunk."""
        for cuts in itertools.product(*self.axes):
            positions, selectors, out_selections = zip(*cuts, strict=True)
            out_selection = tuple([along for along in out_selections if along is not None])
            yield ChunkSelection(positions, selectors, out_selection)


def select(
    selection: object, shape: tuple[int, ...], chunk_shape: tuple[int, ...], max_chunks: int
) -> ArraySelection:
    """Return what is selected of an array; if that is in more than `max_chunks`, only some of it.

    Raises `LeftToZarr` for what zarr takes in another sense than axis by axis, and for what may be
    an error.
    """
    selectors, has_ellipsis = _selectors_of(selection, len(shape))
    sizes: list[int] = []
    axes: list[list[AxisCut]] = []
    num_chunks = 1
    for selector, size, length in zip(selectors, shape, chunk_shape, strict=True):
        indices = _index_or_indices(selector, size, length)
        if isinstance(indices, int):
            cuts = [AxisCut(indices // length, indices % length, None)]
        else:
            cuts = _cut(indices, length, max_chunks)
            sizes.append(len(indices))
        axes.append(cuts)
        num_chunks *= len(cuts)
    are_ints = all([type(selector) is int for selector in selectors])
    is_scalar = not sizes and (has_ellipsis or not are_ints)
    return ArraySelection(tuple(sizes), num_chunks, is_scalar, axes)


def _selectors_of(selection: object, num_axes: int) -> tuple[list[Any], bool]:
    """Return what is selected along each axis, and whether by an Ellipsis."""
    selectors = list(selection) if type(selection) is tuple else [selection]
    kinds = list(map(type, selectors))
    num_lists = kinds.count(list) + kinds.count(np.ndarray)
    has_ellipsis = type(Ellipsis) in kinds
    if num_lists > 1 or kinds.count(type(Ellipsis)) > 1:
        raise _unknown()
    if num_lists:  # beside a list, zarr takes no Ellipsis, nor NumPy's integers with slices
        has_slices = slice in kinds or len(selectors) < num_axes
        # Beside a list, versions of zarr refuse short and unsigned integers.
        is_taken = [s.dtype == np.intp for s in selectors if isinstance(s, np.integer)]
        if has_ellipsis or (has_slices and is_taken) or not all(is_taken):
            raise _unknown()
    if has_ellipsis:
        k = kinds.index(type(Ellipsis))
        selectors[k : k + 1] = [slice(None)] * (num_axes - len(selectors) + 1)
    selectors += [slice(None)] * (num_axes - len(selectors))
    if not num_axes or len(selectors) != num_axes:
        raise LeftToZarr("the array has no axes, or fewer than are selected")
    return selectors, has_ellipsis


def _index_or_indices(selector: Any, size: int, length: int) -> int | range | Indices:
    """Return what is selected along an axis, in elements; an index drops the axis."""
    if type(selector) is int or _is_index(selector):
        index = int(selector) + (size if selector < 0 else 0)
        if not 0 <= index < size:
            raise LeftToZarr("an index is out of bounds")
        return index
    if type(selector) is slice:
        if not isinstance(selector.step, int | np.integer | None):
            raise _unknown()  # zarr compares any step with integers
        try:
            indices = range(*selector.indices(size))
        except (TypeError, ValueError) as error:
            raise _unknown() from error
        if indices.step < 0:
            raise LeftToZarr("a step is negative")
        if indices.stop - indices.start > sys.maxsize:
            raise LeftToZarr("a slice is longer than NumPy's arrays")
        return indices
    if type(selector) is np.ndarray or (type(selector) is list and all(map(_is_index, selector))):
        return _indices_of_array(np.asarray(selector), size, length)
    raise _unknown()


def _is_index(selector: object) -> bool:
    if type(selector) is int:
        return True
    return isinstance(selector, np.integer) and not isinstance(selector, np.timedelta64)


def _indices_of_array(array: Array, size: int, length: int) -> Indices:
    """Return the indices in an array, none of which is negative."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise _unknown()
    # Versions of zarr refuse unsigned indices. With others, they compute in the indices' own data
    # type, where short ones may overflow.
    if array.dtype.kind == "u" or max(size, length) > np.iinfo(array.dtype).max:
        raise LeftToZarr("the indices are of a data type that zarr may refuse")
    indices: Indices = array.astype(np.intp)
    indices[indices < 0] += size
    if indices.min() < 0 or indices.max() >= size:
        raise LeftToZarr("an index is out of bounds")
    return indices


def _cut(indices: range | Indices, length: int, max_chunks: int) -> list[AxisCut]:
    """Cut indices at the edges of chunks; if they are in more than `max_chunks`, not all."""
    cuts: list[AxisCut] = []
    for position, within, out_selection in cut_at_chunks(indices, length):
        selector: Selector
        if isinstance(within, range):
            selector = slice(within.start, within.stop, within.step)
        else:
            selector = within
        cuts.append(AxisCut(position, selector, out_selection))
        if len(cuts) > max_chunks:
            break
    return cuts


def _unknown() -> LeftToZarr:
    return LeftToZarr("the selection is of another kind")
