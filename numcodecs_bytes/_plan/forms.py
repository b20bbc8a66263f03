"""Forms: what selections have in common that differ only in where they begin.

Rows, crops and elements at random positions are of one form. All that does not depend on the
position is found once, by `select` and `plan_of`; the rest is arithmetic. Works on integers only.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._plan.array_selection import select
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection
from numcodecs_bytes._plan.plan import RunPlan, plan_of

# How many forms of an array are cached. Each takes about 3 KiB.
MAX_FORMS = 64

_INTEGERS = frozenset((int, np.int64))
_BOUNDS = _INTEGERS | {type(None)}


# What is the same for all selections of a form. Of each selector: the type of an integer; Ellipsis;
# the length and the step of a slice that may begin anywhere; or all of another one.
FormKey = tuple[Any, ...]


def form_key(selection: Any) -> tuple[FormKey, list[int]] | None:
    """Return the key of the form of a selection, and where its selectors begin.

    Returns None unless they are integers, slices and Ellipsis.
    """
    key: list[Any] = []
    starts: list[int] = []
    for selector in selection if type(selection) is tuple else (selection,):
        kind: Any = type(selector)
        first = 0
        if kind in _INTEGERS:
            first = int(selector)
        elif kind is slice:
            start, stop, step = kind = selector.start, selector.stop, selector.step
            if not _BOUNDS.issuperset(map(type, kind)):
                return None
            if start is not None and stop is not None and 0 <= start < stop:
                kind, first = (int(stop) - int(start), step), int(start)
        elif selector is Ellipsis:
            kind = Ellipsis
        else:
            return None
        key.append(kind)
        starts.append(first)
    return tuple(key), starts


class MovingAxis(NamedTuple):
    """An axis along which selections of a form begin anywhere."""

    number: int  # of its selector
    axis: int
    size: int  # of the array
    chunk_size: int
    span: int  # from the first selected index to the last, in elements
    stride: int  # from one element of a chunk to the next, in bytes


class InnerPosition(NamedTuple):
    """Where a selection begins in its chunk, or in its shard."""

    inner_coords: tuple[int, ...]  # of the inner chunk in its shard; none for a chunk
    offset: int  # in the chunk, or the inner chunk, in bytes


class Form(NamedTuple):
    """What selections have in common that each select elements of a single chunk."""

    plan: RunPlan  # if the selection begins where its chunk does, along all moving axes
    shape: tuple[int, ...]  # of the result
    is_scalar: bool  # as in `ArraySelection`
    num_bytes: int  # of the result
    is_copy: bool  # whether the result is, byte for byte, the only run of the plan
    out_selection: OutSelection  # all of the result
    moving_axes: list[MovingAxis]
    chunk_coords: tuple[int, ...]  # along the other axes

    def position(self, starts: list[int]) -> tuple[list[int], int] | None:
        """Return the coordinates of the chunk of a selection, and the offset of its plan, in bytes.

        Returns None if the selection is not within the array, or not within a chunk.
        """
        chunk_coords, offset = list(self.chunk_coords), 0
        for number, axis, size, chunk_size, span, stride in self.moving_axes:
            start = starts[number]
            if start < 0:
                start += size
            chunk_coords[axis], within = divmod(start, chunk_size)
            if not 0 <= start <= size - span or within > chunk_size - span:
                return None
            offset += within * stride
        return chunk_coords, offset


class FormCache:
    """The forms of selections of an array, those that were made last.

    Threads may share it without a lock: at worst, they make a form again.
    """

    def __init__(self, shape: tuple[int, ...], layout: Layout, order: str) -> None:
        """Take the shape of an array, the layout of its chunks, and the order of results."""
        self._shape, self._layout, self._order = shape, layout, order
        self._forms: dict[tuple[FormKey, int | None], tuple[Form | None]] = {}

    def form_of(self, key: FormKey, max_gap: int | None) -> Form | None:
        """Return the form that has a key; None if no selection of it is in one chunk, or any.

        `max_gap` is the largest gap to read, in bytes. Raises `LeftToZarr` like `select`.
        """
        if (found := self._forms.get((key, max_gap))) is not None:
            return found[0]
        form = self._make(key, max_gap)
        if len(self._forms) >= MAX_FORMS:
            self._forms.clear()
        self._forms[key, max_gap] = (form,)
        return form

    def _make(self, key: FormKey, max_gap: int | None) -> Form | None:
        layout = self._layout
        selected = select(_at_start(key), self._shape, layout.shape, 1)
        if selected.num_chunks != 1 or 0 in selected.shape:
            return None
        chunk_coords, chunk_selection, out_selection = next(selected.chunks())
        plan = plan_of(chunk_selection, layout, (), max_gap)
        axes = range(len(selected.shape))
        is_copy = (
            layout.is_stored_as_in_memory
            and plan.is_dense
            and plan.num_runs == 1
            and plan.stored_axes == tuple(axes if self._order == "C" else reversed(axes))
        )
        return Form(
            plan,
            selected.shape,
            selected.is_scalar,
            num_bytes=math.prod(selected.shape) * layout.dtype.itemsize,
            is_copy=is_copy,
            out_selection=out_selection,
            moving_axes=self._moving_axes(key),
            chunk_coords=chunk_coords,
        )

    def _moving_axes(self, key: FormKey) -> list[MovingAxis]:
        """Return the axes along which selections begin anywhere."""
        num_axes, layout = len(self._shape), self._layout
        num_before = key.index(Ellipsis) if Ellipsis in key else len(key)
        moving_axes: list[MovingAxis] = []
        for number, kind in enumerate(key):
            if span := _span_of(kind):
                axis = number if number < num_before else num_axes - len(key) + number
                sizes = self._shape[axis], layout.shape[axis]
                moving_axes.append(MovingAxis(number, axis, *sizes, span, layout.strides[axis]))
        return moving_axes


def _span_of(kind: Any) -> int:
    """Return how many elements a selector spans that may begin anywhere; 0 for any other."""
    if isinstance(kind, tuple) and len(kind) == 2:
        length, step = kind
        return range(0, length, step or 1)[-1] + 1
    return int(kind in _INTEGERS)


def _at_start(key: FormKey) -> tuple[Any, ...]:
    """Return the selection that has a key and begins at 0, along all axes where it may."""
    selectors: list[Any] = []
    for kind in key:
        if type(kind) is tuple:
            selectors.append(slice(*kind) if len(kind) > 2 else slice(0, *kind))
        else:
            selectors.append(kind if kind is Ellipsis else kind(0))
    return tuple(selectors)
