"""Read the chunks together that lie in one object of a server: references point there.

What is adjacent, or nearly so, is one request for many chunks. What can't be read so, for whatever
reason, is left to be read chunk by chunk, which finds another way or raises the error.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.core.common import concurrent_map

from numcodecs_bytes import _trace
from numcodecs_bytes._parts.batch import GIVES_UP, Batch
from numcodecs_bytes._parts.getters import Getter
from numcodecs_bytes._parts.items import Item, pieces_of, scatter
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.names import add_name
from numcodecs_bytes._parts.plan import plan_read
from numcodecs_bytes._parts.ranges import Ranges
from numcodecs_bytes._parts.read_remote import Known, RemoteObject
from numcodecs_bytes._parts.refusals import ReadWhole
from numcodecs_bytes._parts.stores import Object, Remote, coalescing_of, source_finder


class _Found(NamedTuple):
    """A chunk in an object: its position in the batch, where it lies, how it is read."""

    k: int
    lies_in: Object
    source: Remote
    item: Item


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
        if not isinstance(source, Remote) or source.object is None or spec.shape != layout.shape:
            continue
        plan = plan_read(selection, layout, coalescing_of(source, batch.gap))
        if plan.num_requests and source.num_bytes == layout.num_bytes:
            item = Item(selection, place, plan, plan.ranges.num_kept_bytes)
            found = _Found(k, source.object, source, item)
            objects.setdefault(source.object.key, []).append(found)
    groups: list[Any] = [
        (batch, layout, group, exist)
        for of_object in objects.values()
        for group in _in_one_request(of_object, layout, batch.gap)
    ]
    await concurrent_map(groups, _read_group, zarr.config.get("async.concurrency"))
    return exist


def _ranges_of(found: Sequence[_Found], gap: int | None) -> Ranges:
    # A request for many chunks is at most twice as long. This is half of what a long range of one
    # chunk is split into, since other requests are in flight.
    source = found[0].source
    coalescing = coalescing_of(source, gap)._replace(block_bytes=source.costs.part_bytes // 2)
    starts = np.array([one.lies_in.start for one in found])
    return coalescing.coalesce(*pieces_of([one.item for one in found], starts))


def _in_one_request(found: list[_Found], layout: Layout, gap: int | None) -> Iterator[list[_Found]]:
    """Yield the chunks of an object that are one request each time, unless it is for one alone.

    Unless the user set a gap, only little lies between the chunks.
    """
    found.sort(key=lambda one: one.lies_in.start)
    ranges = _ranges_of(found, gap)
    if (ranges.piece_starts[1:] < ranges.piece_ends[:-1]).any():
        return  # they overlap
    of_pieces = np.searchsorted(ranges.starts, ranges.piece_starts, side="right")
    last = np.cumsum([len(one.item.plan.ranges.piece_starts) for one in found])
    first = of_pieces[np.append(0, last[:-1])]
    is_in_one = first == of_pieces[last - 1]
    most = layout.num_bytes + found[0].source.costs.beside_bytes
    for _, group in itertools.groupby(np.flatnonzero(is_in_one).tolist(), first.__getitem__):
        chunks = [found[k] for k in group]
        num_bytes = chunks[-1].lies_in.start + layout.num_bytes - chunks[0].lies_in.start
        if len(chunks) > 1 and (gap is not None or num_bytes <= len(chunks) * most):
            yield chunks


async def _read_group(
    batch: Batch, layout: Layout, found: Sequence[_Found], exist: list[bool | None]
) -> None:
    byte_getter, spec, *_ = batch.items[found[0].k]
    getter, lies_in = Getter(byte_getter, spec.prototype), found[0].lies_in
    remote = RemoteObject(getter, Remote(get=lies_in.get))
    try:
        fetched = await remote.read(_ranges_of(found, batch.gap), Known())
    except ReadWhole:
        return
    except Exception as error:  # the server was not reached: it is not asked again
        add_name(error, byte_getter)
        raise
    if fetched is None:
        return
    try:
        scatter(batch.out, fetched, [one.item for one in found], layout, batch.drop_axes)
    except GIVES_UP:  # chunk by chunk, it is raised again
        return
    why = "it is next to others, and was read with them"
    counted = _trace.Fetched(getter.num_requests, getter.num_bytes, why)
    for one in found:
        exist[one.k] = True
        if _trace.active:
            num = np.size(batch.out[one.item.place]) * layout.item_size
            at = batch.items[one.k][0]
            _trace.note_read(at, len(layout.shape), layout.num_bytes, counted, num)
            counted = _trace.Fetched(why=why)  # the rest is counted with the first
