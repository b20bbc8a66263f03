"""Where the elements of a selection are stored. Works on integers only: no array data, no I/O."""

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numcodecs_bytes._parts.layout import Layout, strides_of
from numcodecs_bytes._parts.ranges import Indices
from numcodecs_bytes._parts.selection import (
    Axis,
    are_points,
    as_array,
    parse_axes,
    parse_points,
    selectors_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Cut = tuple[slice, ...]  # a part of each axis


class Product(NamedTuple):
    """Elements at the sums of one offset along each axis, in C order.

    Attributes
    ----------
    offsets : tuple of (range or numpy.ndarray)
        Offsets along each axis in bytes, at least one each. Ascending, but those of points may be
        in any order: points are a product of one axis.
    item_size : int
        Size of an element in bytes.
    start : int
        What is added to each sum: where the chunk begins in its file.
    """

    offsets: tuple[Any, ...]
    item_size: int
    start: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """First byte and end of all between the first and the last element."""
        start, num = self.start, self.item_size
        for low, high in map(_ends_of, self.offsets):
            start, num = start + low, num + high - low
        return start, start + num

    def count_runs(self) -> tuple[int, int]:
        """Return the number of contiguous runs, and their length in bytes."""
        num, length = self._num_outer()
        return math.prod(map(len, self.offsets[:num])), length

    def runs(self) -> tuple[Indices, int]:
        """Return where each contiguous run begins, and their length in bytes.

        In the order of the elements; runs may be adjacent.
        """
        num, length = self._num_outer()
        start = self.start + sum([int(along[0]) for along in self.offsets[num:]])
        return sums(self.offsets[:num], start), length

    def _num_outer(self) -> tuple[int, int]:
        """Return along how many of the axes runs lie, and the length of a run in bytes."""
        num, length = len(self.offsets), self.item_size
        while num:
            along = self.offsets[num - 1]
            if len(along) != 1 and getattr(along, "step", None) != length:
                break
            num, length = num - 1, length * len(along)
        return num, length

    def cuts(self, max_bytes: int, *, in_pieces: bool = False) -> list[list[slice]]:
        """Return the parts of each axis, for which `split` yields parts of the product.

        Parameters
        ----------
        max_bytes : int
            Largest number of bytes of such a part, unless it is a single element: all from its
            first element to its last one, or if `in_pieces` those of its elements. Points must be
            in the order of `blocks_of`.
        in_pieces : bool
            Whether the gaps between the elements are not to be counted.
        """
        offsets, nums = self.offsets, tuple(map(len, self.offsets))
        cuts = [[slice(0, num)] for num in nums]
        if in_pieces:
            steps = [stride * self.item_size for stride in strides_of(nums, None)]
            offsets = tuple(range(0, n * s, s) for n, s in zip(nums, steps, strict=True))
        if _span(map(_ends_of, offsets), self.item_size) <= max_bytes:  # common
            return cuts
        for k, along in enumerate(offsets):
            inner = _span(map(_ends_of, offsets[k + 1 :]), self.item_size)
            room = max(max_bytes - inner, 0)
            if isinstance(along, range):
                num = 1 + room // along.step
                cuts[k] = [slice(i, min(i + num, len(along))) for i in range(0, len(along), num)]
            else:
                edges = np.flatnonzero(np.diff(blocks_of(along, room + 1))) + 1
                pairs = itertools.pairwise([0, *edges.tolist(), len(along)])
                cuts[k] = [slice(*pair) for pair in pairs]
            if inner <= max_bytes:
                break
        return cuts

    def split(self, cuts: list[list[slice]]) -> "Iterator[tuple[Cut, Product]]":
        """Yield parts of the product, in C order, and which part of each axis they are."""
        for cut in itertools.product(*cuts):
            parts = tuple(along[part] for along, part in zip(self.offsets, cut, strict=True))
            yield cut, Product(parts, self.item_size, self.start)


class Selected(NamedTuple):
    """The selected elements of a chunk.

    Attributes
    ----------
    shape : tuple of int
        The shape of the selection.
    product : Product
        Where they are stored; without any if nothing is selected.
    expand : tuple or None
        What gives the selection all axes of the chunk; None for points.
    order : tuple of int
        These axes in the order in which they are stored.
    axes : tuple of Axis
        What is selected along them, in that order.
    """

    shape: tuple[int, ...]
    product: Product
    expand: tuple[Any, ...] | None = None
    order: tuple[int, ...] = ()
    axes: tuple[Axis, ...] = ()

    def as_stored(self, values: Any) -> Any:
        """Return values in the shape of the selection as one axis for each of the product."""
        if self.expand is None:
            return values.reshape(-1)
        return values[(*self.expand, ...)].transpose(self.order)

    def boxes(self, max_bytes: int, *, in_pieces: bool) -> "Iterator[tuple[Cut, tuple[Any, ...]]]":
        """Yield parts of a selection of slices and integers, in the order in which they are stored.

        Each is where it belongs in the selection, and what it selects from the chunk; see
        `Product.cuts`.
        """
        in_order = [self.order.index(k) for k in range(len(self.order))]
        for cut in itertools.product(*self.product.cuts(max_bytes, in_pieces=in_pieces)):
            parts: list[Any] = [self.axes[k].indices[cut[k]] for k in in_order]
            are_kept = [not self.axes[k].is_dropped for k in in_order]
            yield (
                tuple(cut[k] for k, is_kept in zip(in_order, are_kept, strict=True) if is_kept),
                tuple(
                    slice(along[0], along[-1] + 1, along.step) if is_kept else along[0]
                    for along, is_kept in zip(parts, are_kept, strict=True)
                ),
            )


def parse_product(selection: Any, layout: Layout) -> Selected | None:
    """Return where the elements that are selected from a chunk are stored.

    None if the selection is of another kind, or out of bounds.
    """
    shape, item_size = layout.shape, layout.item_size
    selectors = selectors_of(selection, len(shape))
    arrays = [s for s in selectors if isinstance(s, np.ndarray) and s.dtype != bool]
    strides = tuple(stride * item_size for stride in layout.strides)
    if len(shape) == len(arrays) == 1 or (arrays and are_points(selectors)):
        positions = parse_points(selectors, shape, strides)
        if positions is None:
            return None
        return Selected(positions.shape, Product((positions.ravel(),), item_size))
    if (axes := parse_axes(selectors, shape)) is None:
        return None
    order = tuple(layout.as_stored)
    offsets = tuple(_times(axes[k].indices, strides[k]) for k in order)
    return Selected(
        tuple(axis.num_selected for axis in axes if not axis.is_dropped),
        Product(offsets, item_size),
        tuple(None if axis.is_dropped else slice(None) for axis in axes),
        order,
        tuple(axes[k] for k in order),
    )


def sums(offsets: "Sequence[Any]", start: int) -> Indices:
    """Return `start` plus the sums of the offsets along all axes, in C order."""
    if not offsets:
        return np.array([start], np.intp)
    found: Indices = as_array(offsets[0]) + start
    for along in offsets[1:]:
        found = np.add.outer(found, as_array(along)).ravel()
    return found


def blocks_of(offsets: Indices, num_bytes: int) -> Indices:
    """Return in which block of so many bytes each of the offsets lies, counted from the lowest."""
    blocks: Indices = (offsets - offsets.min()) // num_bytes
    return blocks


def _times(indices: range | Indices, stride: int) -> range | Indices:
    """Return the offsets of indices along an axis, in bytes."""
    if isinstance(indices, range):
        return range(indices.start * stride, indices.stop * stride, indices.step * stride)
    return indices * stride


def _ends_of(offsets: Any) -> tuple[int, int]:
    """Return the lowest and the highest of some offsets."""
    if isinstance(offsets, range):
        return offsets[0], offsets[-1]
    return int(offsets.min()), int(offsets.max())


def _span(ends: "Iterable[tuple[int, int]]", item_size: int) -> int:
    """Return the number of bytes from the first to the last element."""
    return item_size + sum([high - low for low, high in ends])  # a generator takes longer
