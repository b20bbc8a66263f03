"""Boxes: selections of slices and integers. Works on integers only: no array data, no I/O."""

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from numcodecs_bytes._parts.layout import Layout, strides_of


class Box(NamedTuple):
    """Some indices along each axis of a chunk.

    Attributes
    ----------
    indices : tuple of range
        The indices along each axis, at least one.
    kept : tuple of int
        The axes that are not selected by an integer.
    strides : tuple of int
        The strides of the chunk in bytes.
    order : tuple of int
        The axes in the order in which they are stored.
    item_size : int
        Size of an element in bytes.
    """

    indices: tuple[range, ...]
    kept: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...]
    item_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the selection."""
        return tuple(len(self.indices[k]) for k in self.kept)

    @property
    def start(self) -> int:
        """Position of the first element in bytes."""
        return sum(i[0] * stride for i, stride in zip(self.indices, self.strides, strict=True))

    @property
    def steps(self) -> tuple[int, ...]:
        """Distance between the elements along each axis in bytes."""
        return tuple(i.step * s for i, s in zip(self.indices, self.strides, strict=True))

    @property
    def num_bytes(self) -> int:
        """Number of bytes from the first element to the last one."""
        return _span(map(len, self.indices), self.steps, self.item_size)

    @property
    def num_selected_bytes(self) -> int:
        """Number of bytes of the elements."""
        return math.prod(self.shape) * self.item_size

    @property
    def selection(self) -> tuple[Any, ...]:
        """What selects the box from the chunk."""
        return tuple(
            slice(i[0], i[-1] + 1, i.step) if k in self.kept else i[0]
            for k, i in enumerate(self.indices)
        )

    def split(self, max_bytes: int, *, in_pieces: bool = False) -> Iterator[tuple[Any, "Box"]]:
        """Yield parts of the box and their places in it, in the order in which they are stored.

        Parameters
        ----------
        max_bytes : int
            Largest number of bytes of a part: all from its first element to its last one, or if
            `in_pieces` those of its elements.
        in_pieces : bool
            Whether the gaps between the elements are not to be counted.

        Yields
        ------
        index : tuple of slice
            Where the part belongs in the selection.
        box : Box
            The part; a single element may be larger than `max_bytes`.
        """
        cuts = self._cuts(max_bytes, in_pieces=in_pieces)
        for cut in itertools.product(*(cuts[k] for k in self.order)):
            of = dict(zip(self.order, cut, strict=True))
            indices = tuple(along[of[k]] for k, along in enumerate(self.indices))
            yield tuple(of[k] for k in self.kept), self._replace(indices=indices)

    def _cuts(self, max_bytes: int, *, in_pieces: bool = False) -> list[list[slice]]:
        nums = [len(i) for i in self.indices]
        steps = self.steps
        if in_pieces:
            steps = tuple(s * self.item_size for s in strides_of(tuple(nums), self.order))
        cuts = [[slice(0, num)] for num in nums]
        for depth, k in enumerate(self.order):
            inner = self.order[depth + 1 :]
            one = _span([nums[j] for j in inner], [steps[j] for j in inner], self.item_size)
            num = 1 + max(max_bytes - one, 0) // steps[k]
            cuts[k] = [slice(i, min(i + num, nums[k])) for i in range(0, nums[k], num)]
            if one <= max_bytes:
                break
        return cuts


def _span(nums: Iterable[int], steps: Iterable[int], item_size: int) -> int:
    """Return the number of bytes from the first to the last of some elements."""
    return item_size + sum((n - 1) * step for n, step in zip(nums, steps, strict=True))


def box_of(selectors: tuple[Any, ...], layout: Layout) -> Box | None:
    """Return the box that slices and integers, one per axis, select from a chunk.

    None if nothing is selected, a step is negative or an integer out of bounds.
    """
    indices = []
    for selector, size in zip(selectors, layout.shape, strict=True):
        if isinstance(selector, slice):
            along = range(*selector.indices(size))
        else:
            along = range(selector, selector + (0 <= selector < size))
        if not along or along.step < 0:
            return None
        indices.append(along)
    return Box(
        tuple(indices),
        tuple(k for k, selector in enumerate(selectors) if isinstance(selector, slice)),
        tuple(stride * layout.item_size for stride in layout.strides),
        tuple(layout.as_stored),
        layout.item_size,
    )
