"""Byte ranges of a chunk, and the pieces of them that are kept. Works on integers only: no I/O.

A *piece* is a contiguous part of the chunk that is kept, a *range* what one request fetches: one or
more pieces and the gaps between them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.intp]]


class Request(NamedTuple):
    """A range to fetch, and its pieces.

    Attributes
    ----------
    start, end : int
        First byte and end (exclusive) of the range, in bytes of the chunk.
    place : int
        Where its pieces begin among all pieces laid end to end, in bytes.
    piece_starts, piece_lengths : numpy.ndarray
        Position in the range and length of each piece in bytes, shape ``(num_pieces,)``.
    """

    start: int
    end: int
    place: int
    piece_starts: Indices
    piece_lengths: Indices


class Ranges(NamedTuple):
    """Byte ranges to fetch, in ascending order, and the pieces of them to keep.

    Attributes
    ----------
    starts, ends : numpy.ndarray
        First byte and end (exclusive) of each range, shape ``(num_ranges,)``.
    piece_starts, piece_ends : numpy.ndarray
        First byte and end (exclusive) of each piece, shape ``(num_pieces,)``. Every piece lies
        within one range, and every range begins with a piece.
    have_gaps : bool
        Whether the ranges may contain bytes outside of the pieces.
    """

    starts: Indices
    ends: Indices
    piece_starts: Indices
    piece_ends: Indices
    have_gaps: bool

    @property
    def num_bytes(self) -> int:
        """Number of bytes in all ranges."""
        if len(self.starts) == 1:  # common, and many times faster than the sum
            return int(self.ends[0]) - int(self.starts[0])
        return int((self.ends - self.starts).sum())

    @property
    def num_kept_bytes(self) -> int:
        """Number of bytes in all pieces."""
        if len(self.piece_starts) == 1:  # common, and many times faster than the sum
            return int(self.piece_ends[0]) - int(self.piece_starts[0])
        return int((self.piece_ends - self.piece_starts).sum())

    def requests(self) -> Iterator[Request]:
        """Yield the ranges, in ascending order."""
        lengths = self.piece_ends - self.piece_starts
        first = np.searchsorted(self.piece_starts, self.starts)
        last = np.append(first[1:], len(lengths))
        places = (np.cumsum(lengths) - lengths)[first]
        # In batches, because Python's integers take four times the memory of NumPy's.
        for batch in range(0, len(first), 1024):
            some = slice(batch, batch + 1024)
            columns = (self.starts, self.ends, places, first, last)
            for start, end, place, i, k in zip(*(c[some].tolist() for c in columns), strict=True):
                yield Request(start, end, place, self.piece_starts[i:k] - start, lengths[i:k])

    def split(self, max_num: int, max_bytes: int) -> "tuple[Ranges, Ranges]":
        """Return the first ranges, within both limits but at least one, and the remaining ones."""
        num = min(max_num, len(self.starts))
        if num > 1:
            sizes = np.cumsum(self.ends[:num] - self.starts[:num])
            num = max(int(np.searchsorted(sizes, max_bytes, side="right")), 1)
        if num >= len(self.starts):
            return self, self._of(slice(0), slice(0))
        piece = int(np.searchsorted(self.piece_starts, self.starts[num])) if self.have_gaps else num
        return (
            self._of(slice(num), slice(piece)),
            self._of(slice(num, None), slice(piece, None)),
        )

    def cut(self, max_bytes: int) -> "Ranges":
        """Return the same pieces in ranges of at most `max_bytes`, for which pieces are cut."""
        longest = int((self.ends - self.starts).max(initial=0))
        cuts = np.add.outer(self.starts, np.arange(max_bytes, longest, max_bytes))
        cuts = cuts[cuts < self.ends[:, np.newaxis]]
        piece = np.searchsorted(self.piece_starts, cuts, side="right") - 1
        inside = cuts[(self.piece_starts[piece] < cuts) & (cuts < self.piece_ends[piece])]
        starts = np.sort(np.concatenate([self.piece_starts, inside]))
        ends = np.sort(np.concatenate([self.piece_ends, inside]))
        # A range begins at the first piece at or after the beginning of a range, or after a cut.
        first = np.unique(np.searchsorted(starts, np.concatenate([self.starts, cuts])))
        last = np.append(first[1:], len(starts)) - 1
        return Ranges(starts[first], ends[last], starts, ends, self.have_gaps)

    def without(self, num_pieces: int) -> "Ranges":
        """Return the ranges without the first `num_pieces` pieces."""
        if num_pieces == len(self.piece_starts):
            return self._of(slice(0), slice(0))
        start = self.piece_starts[num_pieces]
        first = int(np.searchsorted(self.ends, start, side="right"))
        left = self._of(slice(first, None), slice(num_pieces, None))
        return left._replace(starts=np.maximum(left.starts, start))

    def _of(self, ranges: slice, pieces: slice) -> "Ranges":
        return Ranges(
            self.starts[ranges],
            self.ends[ranges],
            self.piece_starts[pieces],
            self.piece_ends[pieces],
            self.have_gaps,
        )


class Costs(NamedTuple):
    """What takes as long as to read a number of bytes, if these are in memory.

    Attributes
    ----------
    whole_bytes : int
        A chunk up to this size is read whole, which takes as long as to plan anything.
    slab_bytes : int
        The longest slab that is read: all from the first to the last element of a selection.
    plan_bytes : int
        To plan, and to assemble, several pieces.
    piece_bytes : int
        To read one of several pieces.
    cold_piece_bytes : int
        To read one of several pieces from a disk or over a network.
    block_bytes : int
        What is not read straight to its place is read in parts of this size, through memory that
        stays in the CPU cache.
    latency_bytes : int
        To wait for an answer.
    part_bytes : int
        To request a part of a long range by itself, at the same time as the others.
    beside_bytes : int
        To make one request more for several chunks that lie in one object.
    """

    whole_bytes: int = 0
    slab_bytes: int = 0
    plan_bytes: int = 0
    piece_bytes: int = 0
    cold_piece_bytes: int = 0
    block_bytes: int = 1 << 20
    latency_bytes: int = 0
    part_bytes: int = 0
    beside_bytes: int = 0

    def slab_of(self, num_pieces: int) -> int:
        """Return the length of the longest slab that takes no longer than so many pieces."""
        return min(self.slab_bytes, self.plan_bytes + num_pieces * self.piece_bytes)

    @property
    def exact(self) -> "Costs":
        """The same, but nothing is read beyond pieces and gaps."""
        return self._replace(whole_bytes=0, slab_bytes=0)


NO_COSTS = Costs()


def join_adjacent(starts: Indices, ends: Indices) -> tuple[Indices, Indices]:
    """Return the same bytes in fewer pieces; pieces are in ascending order."""
    is_edge = np.ones(len(starts) + 1, bool)
    is_edge[1:-1] = starts[1:] != ends[:-1]
    return starts[is_edge[:-1]], ends[is_edge[1:]]


class Coalescing(NamedTuple):
    """How pieces are coalesced into ranges.

    Attributes
    ----------
    max_gap_bytes : int
        Largest gap between two pieces of one range, at least 0.
    block_bytes : int or None
        No range of several pieces is longer than twice this; None means no limit.
    is_contiguous : bool
        Whether gaps of at most `max_gap_bytes` are also fetched between two ranges that
        `block_bytes` separates.
    dense_bytes : int
        Indices that are at most this far apart on average are not planned one by one: all between
        the first and the last is a single range.
    costs : Costs
        What else than bytes takes time.
    """

    max_gap_bytes: int
    block_bytes: int | None = None
    is_contiguous: bool = False
    dense_bytes: int = 0
    costs: Costs = NO_COSTS

    def coalesce(self, starts: Indices, ends: Indices) -> Ranges:
        """Return the ranges for pieces in ascending order, shape ``(num_pieces,)``."""
        if len(starts) <= 1:
            return Ranges(starts, ends, starts, ends, have_gaps=False)
        is_apart = starts[1:] - ends[:-1] > self.max_gap_bytes
        if self.block_bytes:
            blocks = ends // self.block_bytes
            is_apart |= blocks[1:] != blocks[:-1]
        is_edge = np.ones(len(starts) + 1, bool)
        is_edge[1:-1] = is_apart
        firsts, lasts = starts[is_edge[:-1]], ends[is_edge[1:]]
        if self.is_contiguous:
            is_near = firsts[1:] - lasts[:-1] <= self.max_gap_bytes
            lasts[:-1][is_near] = firsts[1:][is_near]
        have_gaps = self.is_contiguous or len(firsts) < len(starts)
        return Ranges(firsts, lasts, starts, ends, have_gaps)
