"""Write selected elements of uncompressed chunks into an open file, and no other byte.

A file may contain several chunks. Few pieces are written one by one, for which a shared lock is
enough. Many short ones need the exclusive one: the blocks that contain them are read, changed and
written. Files are not memory-mapped: a full disk behind a sparse file would kill the process.
"""

import contextlib
import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import AnyDType, Array, UInt8Array
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.locks import STEP_BYTES, NotInPlace, read_at, write_at
from numcodecs_bytes._parts.product import Cut, Product, blocks_of, parse_product, sums
from numcodecs_bytes._parts.ranges import Indices
from numcodecs_bytes._parts.selection import Axis, key_of
from numcodecs_bytes._threads import IsWanted

Encode = Callable[[Array, AnyDType], Array]


class WriteCosts(NamedTuple):
    """What takes how long, or how much memory, when parts of chunks are written.

    Attributes
    ----------
    block_bytes, pieces_per_block : int
        From so many pieces per block on, to read and rewrite it takes less time than to write them
        one by one: 45 us, and `piece_seconds` for each.
    piece_seconds, slow_piece_seconds : float
        To write a piece: 1.5 to 4 us in the page cache. If all of `num_timed` times
        `num_pieces_timed` pieces take `slow_piece_seconds` each, they are not there. Then what
        contains them is read at once, if that is faster.
    dense_bytes : int
        Points that are so close to each other on average are not sorted, which takes as long as
        to read and rewrite all between the first and the last.
    memory_bytes : int
        How many bytes are encoded and written at a time, a piece counting `piece_memory` more; and
        how many of values that may be a chunk's own memory are copied to memory, not to a file.
    small_bytes, most : int
        A new chunk that is not longer, or not so many times as long as what is selected of it, is
        put together in memory. A shard that is not longer is made complete whatever its fill value:
        that takes at most 1 ms more than to write what is needed.
    parallel_bytes : int
        After more bytes of a chunk, all cores together are faster than one thread.
    slow_seconds, bytes_per_second, slow_workers : float, float, int
        A chunk that takes so much longer than its bytes at this rate is not in the page cache. Then
        so many threads wait for files.
    """

    block_bytes: int = 1 << 18
    pieces_per_block: int = 32
    piece_seconds: float = 1.5e-6
    slow_piece_seconds: float = 1e-5
    num_timed: int = 3
    num_pieces_timed: int = 8
    dense_bytes: int = 256
    memory_bytes: int = 1 << 23
    piece_memory: int = 128
    small_bytes: int = 1 << 20
    most: int = 4
    parallel_bytes: int = 1 << 19
    slow_seconds: float = 1e-3
    bytes_per_second: float = 5e8
    slow_workers: int = 10


class Assignment(NamedTuple):
    """Values for a selection of a chunk in a file.

    Attributes
    ----------
    layout : Layout
        How the chunk is stored.
    selection : tuple
        What is selected from it.
    values : object
        In the shape of the selection, or what NumPy broadcasts to it.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    """

    layout: Layout
    selection: Any
    values: Any
    encode: Encode


class Changes:
    """What is written to a file: assignments to the chunks in it.

    Attributes
    ----------
    parts : list of Prepared
        The assignments.
    num_bytes, num_pieces : int
        Number of selected bytes, and of the pieces in which they lie.
    block_bytes : int
        Number of bytes of the blocks that contain them, at most.
    """

    def __init__(self, items: Sequence[Assignment], costs: WriteCosts) -> None:
        self.parts: list[Prepared] = []
        known: dict[Any, Prepared] = {}  # those of equal selections, of chunks that are alike
        for item in items:
            key = (item.layout, key_of(item.selection))
            part = known[key].with_values(item.values) if key in known else Prepared(item, costs)
            if key[1] is not None:
                known[key] = part
            self.parts.append(part)
        self._costs = costs
        self.num_bytes = self.num_pieces = self.block_bytes = 0
        for part in self.parts:
            self.num_bytes += part.elements.size * part.item_size
            self.num_pieces += part.num_pieces
            self.block_bytes += part.block_bytes

    def suits_blocks(self, starts: Callable[[], Sequence[int | None]]) -> bool:
        """Whether it is faster to rewrite blocks, if chunks begin at `starts`, in bytes."""
        if self.num_pieces <= self._costs.pieces_per_block:
            return False
        num, end = 0, -1  # up to where no further block is needed
        for start, part in self._placed(starts()):
            first, last = part.span
            if part.num_blocks > 1 or start + last > end:
                num, end = num + part.num_blocks, start + first + self._costs.block_bytes
        return self.num_pieces > self._costs.pieces_per_block * num

    def _placed(self, starts: Sequence[int | None]) -> "list[tuple[int, Prepared]]":
        """Return the parts that are written, in the order in which they are stored."""
        pairs = zip(starts, self.parts, strict=True)
        placed = [(start, part) for start, part in pairs if start is not None and part.num_pieces]
        return sorted(placed, key=itemgetter(0))

    def write(
        self,
        descriptor: int,
        starts: Sequence[int | None],
        pace: "Pace",
        is_wanted: IsWanted,
        *,
        in_blocks: bool = False,
    ) -> None:
        """Write everything, or raise InterruptedError if it is not wanted any more.

        Parameters
        ----------
        descriptor : int
            The file, locked exclusively if `in_blocks`.
        starts : sequence of (int or None)
            Where the chunk of each of the parts begins in the file, in bytes; None if it is not
            written.
        pace : Pace
            How fast files were that were written before.
        is_wanted : callable
            Whether to go on.
        in_blocks : bool
            Whether to rewrite blocks, instead of writing each piece.
        """
        pace.begin()
        placed, block = self._placed(starts), list[_InBlock]()
        for start, part in placed:
            for cut, product in part.blocks(start) if in_blocks else part.pieces(start):
                if not is_wanted():
                    raise InterruptedError("the write was cancelled")
                if not in_blocks:
                    _write_runs(descriptor, *product.runs(), part.raw(cut), pace)
                    continue
                first, end = product.span
                if block and not (0 <= end - block[0].start <= self._costs.block_bytes):
                    _rewrite(descriptor, block)
                    block = []
                block.append(_InBlock(first, end, part, cut, product))
        if block:
            _rewrite(descriptor, block)


class _InBlock(NamedTuple):
    """Some elements of a part, which lie between two bytes of a file."""

    start: int
    end: int
    part: "Prepared"
    cut: Cut
    product: Product


def _rewrite(descriptor: int, changes: list[_InBlock]) -> None:
    """Read a block, change what is in it and write it."""
    start = min([each.start for each in changes])
    block = np.empty(max([each.end for each in changes]) - start, np.uint8)
    read_at(descriptor, block, start)
    for each in changes:
        each.part.put_into(block, start, each.cut, each.product)
    write_at(descriptor, block.data, start)


class Prepared:
    """An assignment that is ready to be written, with attributes like those of `Changes`.

    Attributes
    ----------
    elements : numpy.ndarray
        The values, in the dtype of the chunk and the shape of the selection.
    span : tuple of int
        First byte and end of all between the first and the last element, in bytes of the chunk.

    Raises
    ------
    NotInPlace
        If the selection is not known.
    """

    def __init__(self, item: Assignment, costs: WriteCosts) -> None:
        self._encode, self._layout, self._costs = item.encode, item.layout, costs
        self.item_size = item.layout.item_size
        self._void = np.dtype(f"V{self.item_size}")
        selected = parse_product(item.selection, item.layout)
        if selected is None:
            raise NotInPlace(f"its selection, {item.selection!r}, is not known")
        self._selected = selected
        self._take(item.values)
        self._product, self._are_points = selected.product, selected.expand is None
        # Along which axes which of the selected elements are written, if not all of them in order.
        self._sources = {k: _last_of(a) for k, a in enumerate(selected.axes) if a.order is not None}
        self.num_pieces = self.num_blocks = self.block_bytes = 0
        self.span = (0, 0)
        if not self.elements.size:
            return
        self.num_pieces, self._length = self._product.count_runs()
        self.span = self._product.span
        block_bytes = costs.block_bytes
        if self._are_points:
            start, end = self._product.span
            is_dense = end - start < costs.dense_bytes * self.num_pieces
            if is_dense and self.num_pieces > costs.pieces_per_block:
                block_bytes = end - start
            else:
                self._sort(block_bytes)
        self._blocks = self._product.cuts(block_bytes)
        self.num_blocks = math.prod(map(len, self._blocks))
        self.block_bytes = self.num_blocks * block_bytes

    def _take(self, values: Any) -> None:
        self.elements = elements_of(self._layout, self._selected.shape, values)
        self._as_stored = self._selected.as_stored(self.elements)

    def with_values(self, values: Any) -> "Prepared":
        """Return an assignment of other values to the same selection of a chunk that is alike."""
        other = copy.copy(self)
        other._take(values)  # noqa: SLF001 # another instance of this class
        return other

    def _sort(self, block_bytes: int) -> None:
        """Sort points by block; of those at one place, the last one stays the last."""
        (positions,) = self._product.offsets
        keys = blocks_of(positions, max(block_bytes - self.item_size, 0) + 1)
        if (np.diff(keys) >= 0).all():
            return
        # NumPy sorts short integers without comparing them.
        is_short = keys.max() <= np.iinfo(np.uint16).max
        order = np.argsort(keys.astype(np.uint16) if is_short else keys, kind="stable")
        self._product = self._product._replace(offsets=(positions[order],))
        self._sources = {0: self._sources[0][order] if self._sources else order}

    def blocks(self, start: int) -> "Iterator[tuple[Cut, Product]]":
        """Yield the elements of each block of a chunk that begins at `start`, as stored."""
        return self._product._replace(start=start).split(self._blocks)

    def pieces(self, start: int) -> "Iterator[tuple[Cut, Product]]":
        """Do the same, but yield as many elements as fit in memory."""
        if self._are_points:
            self._sort(1)
        memory, length = self._costs.memory_bytes, self._length
        num_bytes = memory * length // (length + self._costs.piece_memory)
        cuts = self._product.cuts(num_bytes, in_pieces=True)
        return self._product._replace(start=start).split(cuts)

    def put_into(self, block: UInt8Array, start: int, cut: Cut, product: Product) -> None:
        """Change a block that begins at `start`; the last of the elements at one place wins."""
        steady, others = list[int](), list[int]()
        for k, along in enumerate(product.offsets):
            (steady if isinstance(along, range) else others).append(k)
        ranges = [product.offsets[k] for k in steady]
        first = product.start - start + sum([along[0] for along in ranges])
        starts = sums([product.offsets[k] for k in others], first)
        # The elements along ranges that begin at each byte.
        num = len(block) - sum([along[-1] - along[0] for along in ranges]) - self.item_size + 1
        shape, steps = [len(along) for along in ranges], [along.step for along in ranges]
        raw = self.raw(cut, [*others, *steady]).view(self._void)
        at: Array = np.ndarray((num, *shape), self._void, block, strides=(1, *steps))
        if len(starts) == 1:
            at[starts[0]] = raw.reshape(shape)
        else:
            at[starts] = raw.reshape(len(starts), *shape)

    def raw(self, cut: Cut, order: Sequence[int] | None = None) -> UInt8Array:
        """Return a part of the elements as stored, with its axes in another order."""
        sources = self._sources
        own = [slice(None) if k in sources else part for k, part in enumerate(cut)]
        some = self._as_stored[(*own, ...)]
        for k, source in sources.items():
            if some.flags.c_contiguous:  # or take() copies all of it first
                some = some.take(source[cut[k]], k)
            else:
                some = some[(slice(None),) * k + (source[cut[k]],)]
        some = some if order is None else some.transpose(order)
        return as_bytes(self._encode(some, self._layout.stored))


def _last_of(axis: Axis) -> Indices:
    """Return where each of the indices was selected last."""
    last = np.empty(len(axis.indices), np.intp)
    last[axis.order] = np.arange(axis.num_selected)
    return last


def elements_of(layout: Layout, shape: tuple[int, ...], values: Any) -> Array:
    """Return values in the shape of a selection, in the dtype of the chunk."""
    if type(values) is np.ndarray and values.dtype == layout.dtype:
        if values.shape == shape:
            return values
        if values.ndim <= len(shape):
            with contextlib.suppress(ValueError):  # NumPy's own below is the one that is known
                return np.broadcast_to(values, shape)
    if shape:
        elements: Array = np.empty(shape, layout.dtype)
        elements[...] = values
        return elements
    # NumPy takes other values for an element than for an array without axes.
    one = np.empty((1,) * len(layout.shape), layout.dtype)
    one[(0,) * one.ndim] = values
    return one.reshape(())


def _write_runs(
    descriptor: int, starts: Indices, length: int, raw: UInt8Array, pace: "Pace"
) -> None:
    """Write pieces of one length, which lie in `raw` end to end; adjacent ones at once."""
    if len(starts) == 1:
        write_at(descriptor, raw.data, int(starts[0]))
        return
    is_edge = np.ones(len(starts) + 1, bool)
    is_edge[1:-1] = np.diff(starts) != length
    edges = np.flatnonzero(is_edge)
    starts, places = starts[edges[:-1]], edges * length
    ends = starts + np.diff(places)
    view, pwrite, first = raw.data, os.pwrite, 0
    while first < len(starts):
        last = first + pace.num_pieces(starts[first:], ends[first:])
        begin = time.perf_counter()
        if pace.reads_ahead and last > first + 1:
            num = int(ends[last - 1] - starts[first])
            if num <= STEP_BYTES:
                read_at(descriptor, np.empty(num, np.uint8), int(starts[first]))
        for start, place, end in zip(
            starts[first:last].tolist(),
            places[first:last].tolist(),
            places[first + 1 : last + 1].tolist(),
            strict=True,
        ):
            if pwrite(descriptor, view[place:end], start) < end - place:
                write_at(descriptor, view[place:end], start)
        pace.note(last - first, time.perf_counter() - begin)
        first = last


class Pace:
    """Whether to read what contains short pieces before they are written.

    To change a part of a page that is not in the page cache, the system reads that page first, one
    page after the other. If that is slow, longer reads may take less time.

    Attributes
    ----------
    reads_ahead : bool
        Whether pieces are read first.
    """

    def __init__(self, costs: WriteCosts) -> None:
        self.reads_ahead, self._costs = False, costs
        self._times: list[float] = []  # per piece
        self._is_decided = False

    def begin(self) -> None:
        """Begin with another file, of which nothing is known unless the last one was slow."""
        if not self.reads_ahead:
            self._times, self._is_decided = [], False

    def num_pieces(self, starts: Indices, ends: Indices) -> int:
        """Return how many of some pieces to write at a time."""
        if self.reads_ahead:
            return max(int(np.searchsorted(ends, starts[0] + STEP_BYTES)), 1)
        return len(starts) if self._is_decided else min(self._costs.num_pieces_timed, len(starts))

    def note(self, num: int, seconds: float) -> None:
        """Decide how to go on after some pieces took so long."""
        if self._is_decided:
            return
        self._times.append(seconds / num)
        if self.reads_ahead:
            self.reads_ahead = num > 1 and self._times[-1] < min(self._times[:-1])
            self._is_decided = True
        elif self._times[-1] < self._costs.slow_piece_seconds:
            self._is_decided = True
        else:
            self.reads_ahead = len(self._times) == self._costs.num_timed
