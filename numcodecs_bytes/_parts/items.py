"""Selections of chunks that lie in one object: a shard, or a file into which references point."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._parts.assemble import ready_to_copy, select_fetched
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.plan import Plan, plan_read
from numcodecs_bytes._parts.ranges import Coalescing, Indices

# The plan for no elements.
NOTHING = plan_read(
    (slice(0),), Layout((1,), np.dtype(np.uint8), np.dtype(np.uint8)), Coalescing(0)
)


class Item(NamedTuple):
    """What is selected from a chunk.

    Attributes
    ----------
    selection : tuple
        The selection from the chunk.
    place : tuple
        Where it belongs in the output.
    plan : Plan
        Which bytes of the chunk to read.
    num_bytes : int
        How many of them are kept.
    """

    selection: Any
    place: Any
    plan: Plan
    num_bytes: int


def pieces_of(items: Sequence[Item], starts: Indices) -> tuple[Indices, Indices]:
    """Return first byte and end of each piece, in bytes of the object.

    Parameters
    ----------
    items : sequence of Item
        What to read of each chunk.
    starts : numpy.ndarray
        Where each chunk begins in bytes, ascending, shape ``(num_chunks,)``.
    """
    plans = [item.plan for item in items] or [NOTHING]
    if all([plan is plans[0] for plan in plans]):  # noqa: C419
        plans, moved_to = plans[:1], [starts[:, np.newaxis]]
    else:
        moved_to = starts.tolist()
    moved = list(zip(plans, moved_to, strict=True))
    firsts = np.concatenate([(p.ranges.piece_starts + start).ravel() for p, start in moved])
    ends = np.concatenate([(p.ranges.piece_ends + start).ravel() for p, start in moved])
    return firsts, ends


def groups_of(items: Sequence[Item], max_bytes: int) -> Iterator[slice]:
    """Yield consecutive chunks of which so many bytes are kept at most, at least one each."""
    first, num_bytes = 0, 0
    for k, item in enumerate(items):
        if k > first and num_bytes + item.num_bytes > max_bytes:
            yield slice(first, k)
            first, num_bytes = k, 0
        num_bytes += item.num_bytes
    if items:
        yield slice(first, len(items))


def scatter(
    out: Array,
    fetched: UInt8Array,
    items: Sequence[Item],
    layout: Layout,
    drop_axes: tuple[int, ...] = (),
) -> None:
    """Write what was fetched of chunks, end to end, to its places.

    Parameters
    ----------
    out : numpy.ndarray
        The output.
    fetched : numpy.ndarray
        The pieces of the chunks, uint8, shape ``(num_bytes,)``.
    items : sequence of Item
        What is selected from each of them.
    layout : Layout
        How each of them is stored.
    drop_axes : tuple of int
        Axes of length 1 of the selections that are missing in `out`.
    """
    start = 0
    for selection, place, plan, num_bytes in items:
        part = fetched[start : start + num_bytes]
        selected = ready_to_copy(select_fetched(part, layout.stored, plan, selection), layout.dtype)
        out[place] = selected.squeeze(axis=drop_axes) if drop_axes else selected
        start += num_bytes
