"""Read selections of chunks that lie in an open file: the one way to read files.

A contiguous selection is read straight to its place. What is close together is read through a block
that stays in the CPU cache, from where it is copied, and byte-swapped, to its place. Else pieces
are read. What lies between pieces is read only if it is a small gap, or in the page cache.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array, copied_as
from numcodecs_bytes._core.invalid_bytes import has_unused_bits
from numcodecs_bytes._parts.assemble import ready_to_copy, select_fetched
from numcodecs_bytes._parts.items import Item, groups_of, pieces_of, scatter
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.open_file import AT_ONCE_BYTES, SHORT, OpenFile, WouldWait
from numcodecs_bytes._parts.plan import Plan, Planner, planner_of
from numcodecs_bytes._parts.ranges import Coalescing, Indices, Ranges, join_adjacent
from numcodecs_bytes._parts.selection import selectors_of
from numcodecs_bytes._threads import IsWanted


class FileReader:
    """Reads selections of chunks in open files, in one thread.

    Parameters
    ----------
    coalescing : Coalescing
        How pieces are coalesced.
    is_wanted : callable
        Called from time to time; a read raises EOFError if it returns False.
    adapts : bool
        Whether to coalesce over larger gaps if a file is slow.
    may_wait : bool
        Whether to wait for what is not in the page cache, instead of raising BlockingIOError.
    """

    def __init__(
        self, coalescing: Coalescing, is_wanted: IsWanted, *, adapts: bool, may_wait: bool = True
    ) -> None:
        self._coalescing, self._is_wanted = coalescing, is_wanted
        self._adapts, self._may_wait = adapts, may_wait
        self._block_bytes = coalescing.costs.block_bytes
        self._block = np.empty(0, np.uint8)
        self._layout: Layout | None = None
        self._planner: Any = None  # of this layout
        self._is_plain = False

    def read(  # noqa: PLR0913, PLR0917
        self,
        file: OpenFile,
        layout: Layout,
        selection: Any,
        out: Array,
        place: Any,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Read a selection of a chunk into an array.

        Parameters
        ----------
        file : OpenFile
            The chunk.
        layout : Layout
            How it is stored.
        selection : tuple
            The selection that zarr passes to codecs.
        out : numpy.ndarray
            The array.
        place : object
            Where the selection belongs in the array.
        drop_axes : tuple of int
            Axes of length 1 of the selection that are missing in the array.

        Raises
        ------
        EOFError
            If the file has another length than the chunk, or the read was cancelled.
        WouldWait
            If more is to be read than may be without waiting.
        """
        planner = self._planner if layout is self._layout else self._use(layout)
        plan = planner.plan(selection)
        if not (self._may_wait or is_short(plan)):
            raise WouldWait
        if not drop_axes and are_slices(place):
            self._read(file, planner, selection, plan, out[(*place, ...)])
            return
        selected = self._select(file, planner, selection, plan)
        out[place] = selected.squeeze(axis=drop_axes) if drop_axes else selected

    def read_items(
        self, file: OpenFile, layout: Layout, items: Sequence[Item], starts: Indices, out: Array
    ) -> None:
        """Read selections of chunks that lie in one file into an array.

        Parameters
        ----------
        file : OpenFile
            The file.
        layout : Layout
            How each of the chunks is stored.
        items : sequence of Item
            What to read of each of them.
        starts : numpy.ndarray
            Where each of them begins in bytes, ascending.
        out : numpy.ndarray
            The array.
        """
        for some in groups_of(items, self._block_bytes):
            self._stop_if_unwanted()
            if some.stop - some.start == 1:
                item = items[some.start]
                of_chunk = file.part(int(starts[some.start]), layout.num_bytes)
                self.read(of_chunk, layout, item.selection, out, item.place)
            else:
                self._read_group(file, layout, items[some], starts[some], out)

    def _read_group(
        self, file: OpenFile, layout: Layout, items: Sequence[Item], starts: Indices, out: Array
    ) -> None:
        fetched, are_slabs = None, any(item.plan.is_slab for item in items)
        if are_slabs:
            exact = functools.cache(lambda: self._exact_items(layout, items))
            slabs, num_bytes = pieces_of(items, starts), len(items) * layout.num_bytes
            coalesce = self._coalescing.coalesce
            fetched = self._read_slabs(
                file, slabs, _new, num_bytes, lambda: coalesce(*pieces_of(exact(), starts))
            )
            items = items if fetched is not None else exact()
        if fetched is None:
            fetched = self.fetch_pieces(file, *pieces_of(items, starts), is_cold=are_slabs)
        scatter(out, fetched, items, layout)

    def fetch_pieces(
        self, file: OpenFile, starts: Indices, ends: Indices, *, is_cold: bool = False
    ) -> UInt8Array:
        """Return pieces of a file, end to end; see `OpenFile.read`."""
        self._stop_if_unwanted()
        ranges = self._coalescing.coalesce(*join_adjacent(starts, ends))
        if not self._may_wait and len(ranges.starts) > SHORT:
            raise WouldWait
        return file.read(ranges, self._is_wanted, adapts=self._adapts, is_cold=is_cold)

    def fetch(
        self, file: OpenFile, layout: Layout, selection: Any, plan: Plan
    ) -> tuple[UInt8Array, Plan]:
        """Return the bytes that a plan says, or another one, and that plan."""
        return self._fetch(file, self._use(layout), selection, plan, _new)

    def _use(self, layout: Layout) -> Planner:
        if layout is not self._layout:
            self._planner = planner_of(layout, self._coalescing)
            self._layout, dtype = layout, layout.dtype
            self._is_plain = layout.stored == dtype == copied_as(dtype)
            self._is_plain = self._is_plain and not has_unused_bits(dtype)
        return self._planner  # type: ignore[no-any-return]

    def _read(
        self, file: OpenFile, planner: Planner, selection: Any, plan: Plan, out: Array
    ) -> None:
        layout = planner.layout
        is_plain = self._is_plain and out.dtype == layout.dtype and out.shape == plan.shape
        if plan.is_solid and is_plain:
            as_stored = out
            if layout.axis_order is not None:
                as_stored = out.transpose(_stored_axes(layout, selection))
            if as_stored.flags.c_contiguous:
                self._fill(file, layout, plan, as_bytes(as_stored))
                return
        parts = planner.parts(selection, plan, out.shape, self._block_bytes)
        if parts is None:
            out[...] = self._select(file, planner, selection, plan)
            return
        for part in parts:
            self._stop_if_unwanted()
            place: tuple[Any, ...] = (*part.place, ...)
            self._read(file, planner, part.selection, part.plan, out[place])

    def _select(self, file: OpenFile, planner: Planner, selection: Any, plan: Plan) -> Array:
        """Return a selection, which may lie in the block."""
        fetched, plan = self._fetch(file, planner, selection, plan, self._in_block)
        layout = planner.layout
        return ready_to_copy(select_fetched(fetched, layout.stored, plan, selection), layout.dtype)

    def _fetch(
        self,
        file: OpenFile,
        planner: Planner,
        selection: Any,
        plan: Plan,
        memory: Callable[[int], UInt8Array],
    ) -> tuple[UInt8Array, Plan]:
        layout, ranges = planner.layout, plan.ranges
        if not plan.is_slab:
            if len(ranges.starts) == len(ranges.piece_starts) == 1:
                raw = memory(ranges.num_bytes)
                self._fill(file, layout, plan, raw)
                return raw, plan
            _check_length(file, layout)
            return file.read(ranges, self._is_wanted, adapts=self._adapts), plan
        _check_length(file, layout)
        exact = functools.cache(lambda: self._exact(layout).plan(selection))
        where = ranges.starts, ranges.ends
        slab = self._read_slabs(file, where, memory, layout.num_bytes, lambda: exact().ranges)
        if slab is not None:
            return slab, plan
        fetched = file.read(exact().ranges, self._is_wanted, adapts=self._adapts, is_cold=True)
        return fetched, exact()

    def _read_slabs(
        self,
        file: OpenFile,
        where: tuple[Indices, Indices],
        memory: Callable[[int], UInt8Array],
        num_bytes: int,
        exact: Callable[[], Ranges],
    ) -> UInt8Array | None:
        """Return slabs, end to end, or None if to read the exact ranges in them takes less time.

        That is so if the slabs are not in memory, unless it takes less time to read all of the
        chunks, which have `num_bytes`: zarr alone would.
        """
        starts, ends = where
        raw, place = memory(int((ends - starts).sum())), 0
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            slab = raw[place : place + end - start]
            is_there = file.read_cached(slab, start)
            if not (is_there or self._may_wait):
                raise NotImplementedError if is_there is None else BlockingIOError
            if is_there is None:
                is_there = file.read_if_quick(slab, start, exact, self._is_wanted)
            if not is_there:
                if num_bytes > len(exact().starts) * self._coalescing.costs.cold_piece_bytes:
                    return None
                file.read_into(slab, start, self._is_wanted)
            place += end - start
        return raw

    def _exact(self, layout: Layout) -> Planner:
        """Return a planner of pieces and small gaps only."""
        costs = self._coalescing.costs.exact
        return planner_of(layout, self._coalescing._replace(dense_bytes=0, costs=costs))

    def _exact_items(self, layout: Layout, items: Sequence[Item]) -> list[Item]:
        planner = self._exact(layout)
        plans = [planner.plan(item.selection) for item in items]
        return [
            item._replace(plan=plan, num_bytes=plan.ranges.num_kept_bytes)
            for item, plan in zip(items, plans, strict=True)
        ]

    def _fill(self, file: OpenFile, layout: Layout, plan: Plan, raw: UInt8Array) -> None:
        """Read a contiguous part of a chunk, or all of it."""
        if plan.is_whole:
            file.read_all(raw, self._is_wanted)
        else:
            _check_length(file, layout)
            file.read_into(raw, int(plan.ranges.starts[0]), self._is_wanted)

    def _in_block(self, num_bytes: int) -> UInt8Array:
        """Return memory that is used again for the next part."""
        if num_bytes > self._block_bytes:
            return _new(num_bytes)
        if len(self._block) < num_bytes:
            self._block = _new(num_bytes)
        return self._block[:num_bytes]

    def _stop_if_unwanted(self) -> None:
        if not self._is_wanted():
            raise EOFError


def is_short(plan: Plan) -> bool:
    """Whether so little is read that the event loop may do it, if it is in the page cache."""
    return plan.ranges.num_bytes <= AT_ONCE_BYTES and plan.num_requests <= SHORT


def are_slices(place: Any) -> bool:
    """Whether a selection of the output consists of slices."""
    return isinstance(place, tuple) and all([type(s) is slice for s in place])  # noqa: C419


def _new(num_bytes: int) -> UInt8Array:
    return np.empty(num_bytes, np.uint8)


def _check_length(file: OpenFile, layout: Layout) -> None:
    if file.num_bytes != layout.num_bytes:
        raise EOFError


def _stored_axes(layout: Layout, selection: Any) -> list[int]:
    """Return the axes of a box in the order in which they are stored."""
    selectors = selectors_of(selection, len(layout.shape))
    kept = [k for k, selector in enumerate(selectors) if isinstance(selector, slice)]
    return [kept.index(k) for k in layout.as_stored if k in kept]
