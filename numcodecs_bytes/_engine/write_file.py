"""Write a selection of a chunk into an open file, and no other byte.

Pieces are written one by one. If they are many and close to each other, hulls are rewritten: read,
changed in memory and written, which needs the exclusive lock. The plan of the hulls is that of the
pieces with a larger gap.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import AnyDType, Array, UInt8Array
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.locks import raise_unless, write_at
from numcodecs_bytes._engine.output import mesh
from numcodecs_bytes._engine.plan import Plan, plan_axes, split
from numcodecs_bytes._engine.selection import Axis
from numcodecs_bytes._threads import IsWanted

Encode = Callable[[Array, AnyDType], Array]


class Part(NamedTuple):
    """What is written to a chunk.

    Attributes
    ----------
    pieces : Plan
        Where the selected elements lie, without gaps.
    hulls : Plan
        The same with gaps.
    elements : numpy.ndarray
        The values, in the dtype of the chunk and the shape of the selection.
    """

    pieces: Plan
    hulls: Plan
    elements: Array


def part_of(pieces: Plan, layout: Layout, values: Any) -> Part:
    """Return what is written to a chunk.

    Parameters
    ----------
    pieces : Plan
        The plan of the selection, without gaps.
    layout : Layout
        How the chunk is stored.
    values : object
        In the shape of the selection, or one that NumPy broadcasts to it.
    """
    hulls = pieces
    if pieces.num_pieces > constants.REWRITE_FROM:
        hulls = plan_axes(pieces.axes, layout)
    return Part(pieces, hulls, elements_of(layout, shape_of(pieces.axes), values))


def shape_of(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the shape of a selection."""
    along = {axis.to: len(axis.indices) for axis in axes if axis.to is not None}
    return tuple([along[to] for to in range(len(along))])


def elements_of(layout: Layout, shape: tuple[int, ...], values: Any) -> Array:
    """Return values in the dtype of the chunk, broadcast to a shape."""
    if not (isinstance(values, np.ndarray) and values.dtype == layout.dtype):
        is_scalar = isinstance(values, tuple) or not np.ndim(values)  # a tuple is a structure
        made: Array = np.empty(1 if is_scalar else np.shape(values), layout.dtype)
        made[0 if is_scalar else ...] = values
        values = made.reshape(()) if is_scalar else made
    while values.ndim > len(shape) and len(values) == 1:  # as NumPy's assignment does
        values = values[0:1].reshape(values.shape[1:])
    return np.broadcast_to(values, shape)


def is_faster_in_hulls(parts: Sequence[Part]) -> bool:
    """Whether it is faster to rewrite the hulls of all parts than to write their pieces."""
    num_pieces = sum([part.pieces.num_pieces for part in parts])
    num_hulls = sum([part.hulls.num_pieces for part in parts])
    return num_pieces > constants.REWRITE_FROM * num_hulls


class Writer(NamedTuple):
    """How parts are written to a file.

    Attributes
    ----------
    layout : Layout
        How each chunk is stored.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    in_hulls : bool
        Whether to rewrite hulls.
    is_wanted : callable
        Whether to go on.
    """

    layout: Layout
    encode: Encode
    in_hulls: bool
    is_wanted: IsWanted

    def write(self, descriptor: int, part: Part, start: int) -> None:
        """Write a part of the chunk that begins at `start` in the file.

        Raises InterruptedError if it is not wanted any more.
        """
        plan = part.hulls if self.in_hulls else part.pieces
        for where, some in split(plan, self.layout.item_size) if plan.num_pieces else ():
            raise_unless(self.is_wanted)
            elements = part.elements if some is plan else part.elements[(*where, ...)]
            starts = some.starts(start).tolist()
            if some.is_solid:
                stored = self.encode(elements.transpose(some.stored_axes), self.layout.stored)
                _write_pieces(descriptor, as_bytes(stored), starts, some.length)
                continue
            raw = np.empty(some.num_bytes, np.uint8)
            if some.gap:
                for k, position in enumerate(starts):
                    piece = raw[k * some.length : (k + 1) * some.length]
                    files.fill(descriptor, position, piece.data)
            window: Array = np.ndarray(some.shape, self.layout.stored, raw, 0, some.strides)
            index = mesh(some.index, some.shape) if some.has_index else ...
            window[index] = self.encode(elements, self.layout.stored)
            _write_pieces(descriptor, raw, starts, some.length)


def _write_pieces(descriptor: int, raw: UInt8Array, starts: list[int], length: int) -> None:
    """Write pieces of one length, which lie in `raw` end to end."""
    if len(starts) >= constants.LOOK_FROM and files.is_cold(descriptor, starts):
        files.ask_for(descriptor, starts, length)  # the system reads the pages around them
    view, pwrite = raw.data, os.pwrite
    for start, first in zip(starts, range(0, len(raw), length), strict=True):
        piece = view[first : first + length]
        if (num := pwrite(descriptor, piece, start)) < length:
            write_at(descriptor, piece[num:], start + num)
