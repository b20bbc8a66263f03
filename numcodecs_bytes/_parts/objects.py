"""Read the chunks together that lie in one object of a server: references point there.

What is adjacent, or nearly so, is one request for many chunks. What can't be read so, for whatever
reason, is left to be read chunk by chunk, which finds another way or raises the error.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import zarr
from zarr.core.common import concurrent_map

from numcodecs_bytes import _trace
from numcodecs_bytes._parts.batch import GIVES_UP, Batch
from numcodecs_bytes._parts.fetch import (
    MIN_PART_BYTES,
    Parts,
    add_name,
    get_all_parts,
)
from numcodecs_bytes._parts.getters import OnLoop
from numcodecs_bytes._parts.items import Item, pieces_of, scatter
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.plan import plan_read
from numcodecs_bytes._parts.ranges import Coalescing
from numcodecs_bytes._parts.refusals import ReadWhole
from numcodecs_bytes._parts.stores import Object, Remote, coalescing_of, source_finder

# A request for many chunks is at most twice as long. This is half of what a long range of one chunk
# is split into, since other requests are in flight.
REQUESTED_BYTES = MIN_PART_BYTES // 2
# zarr alone fetches nothing that lies between chunks. So many bytes take less time than one more
# request, of ten at once: 30 ms at 10 MB/s, or 3 ms at 100 MB/s, are worth 30 KB (computed).
EXTRA_BYTES = 1 << 14


class _Found:
    """A chunk in an object.

    Attributes
    ----------
    k : int
        Its position in the batch.
    lies_in : Object
        Where it begins in which object.
    item : Item
        What is selected from it.
    """

    def __init__(self, k: int, lies_in: Object, item: Item) -> None:
        self.k, self.lies_in, self.item = k, lies_in, item


async def read_objects(batch: Batch, layout: Layout) -> list[bool | None]:
    """Read the selections of chunks that lie together in objects into the output array.

    Parameters
    ----------
    batch : Batch
        The selections of chunks.
    layout : Layout
        How each of the chunks is stored.

    Returns
    -------
    list of (bool or None)
        Whether each chunk exists; None if it was not read.
    """
    exist: list[bool | None] = [None] * len(batch.items)
    find = source_finder()
    objects: dict[Any, list[_Found]] = {}
    for k, (byte_getter, spec, selection, place, *_) in enumerate(batch.items):
        source = find(byte_getter)
        if (
            isinstance(source, Remote)
            and source.object is not None
            and spec.shape == layout.shape
            and source.num_bytes == layout.num_bytes
        ):
            plan = plan_read(selection, layout, coalescing_of(source, batch.gap))
            if not plan.num_requests:
                continue
            item = Item(selection, place, plan, plan.ranges.num_kept_bytes)
            objects.setdefault(source.object.key, []).append(_Found(k, source.object, item))
    groups: list[Any] = []
    for found in objects.values():
        groups += [
            (batch, layout, group, exist) for group in _in_one_request(found, layout, batch.gap)
        ]
    await concurrent_map(groups, _read_group, zarr.config.get("async.concurrency"))
    return exist


def _coalescing(gap: int | None) -> Coalescing:
    return coalescing_of(Remote(), gap)._replace(block_bytes=REQUESTED_BYTES)


def _in_one_request(found: list[_Found], layout: Layout, gap: int | None) -> Iterator[list[_Found]]:
    """Yield the chunks of an object that are one request each time, unless it is for one alone.

    Unless the user set a gap, what lies between chunks is at most EXTRA_BYTES for each of them.
    """
    most = layout.num_bytes + EXTRA_BYTES
    found.sort(key=lambda one: one.lies_in.start)
    items, starts = [one.item for one in found], np.array([one.lies_in.start for one in found])
    firsts, ends = pieces_of(items, starts)
    if (firsts[1:] < ends[:-1]).any():
        return  # they overlap
    ranges = _coalescing(gap).coalesce(firsts, ends)
    of_pieces = np.searchsorted(ranges.starts, firsts, side="right")
    last = np.cumsum([len(item.plan.ranges.piece_starts) for item in items])
    first = of_pieces[np.append(0, last[:-1])]
    is_in_one = first == of_pieces[last - 1]
    for _, group in itertools.groupby(np.flatnonzero(is_in_one).tolist(), first.__getitem__):
        chunks = [found[k] for k in group]
        num_bytes = chunks[-1].lies_in.start + layout.num_bytes - chunks[0].lies_in.start
        if len(chunks) > 1 and (gap is not None or num_bytes <= len(chunks) * most):
            yield chunks


async def _read_group(
    batch: Batch, layout: Layout, found: Sequence[_Found], exist: list[bool | None]
) -> None:
    byte_getter, spec, *_ = batch.items[found[0].k]
    getter = OnLoop(byte_getter, spec.prototype)
    source = Remote(get=found[0].lies_in.get)
    items, starts = [one.item for one in found], [one.lies_in.start for one in found]
    parts = Parts(_coalescing(batch.gap).coalesce(*pieces_of(items, np.array(starts))), None)
    try:
        await get_all_parts(getter, source, parts)
        if not parts.are_complete:
            return
    except ReadWhole:
        return
    except Exception as error:  # the server was not reached: it is not asked again
        add_name(error, byte_getter)
        raise
    try:
        scatter(batch.out, parts.fetched, items, layout, batch.drop_axes)
    except GIVES_UP:  # chunk by chunk, it is raised again
        return
    why = "it lies beside others"
    fetched = _trace.Fetched(getter.num_requests, getter.num_bytes, why)
    for one in found:
        exist[one.k] = True
        if _trace.active:
            num = np.size(batch.out[one.item.place]) * layout.item_size
            at = batch.items[one.k][0]
            _trace.note_read(at, len(layout.shape), layout.num_bytes, fetched, num)
            fetched = _trace.Fetched(why=why)  # the rest is counted with the first
