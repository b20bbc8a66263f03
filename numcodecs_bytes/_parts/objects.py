"""Read the chunks together that lie in one object of a server: references point there.

What is adjacent, or nearly so, is one request for many chunks. What can't be read so, for whatever
reason, is left to be read chunk by chunk, which finds another way or raises the error.
"""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
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
    coalescing_of,
    get_all_parts,
    object_of,
    plan_chunk,
)
from numcodecs_bytes._parts.getters import OnLoop
from numcodecs_bytes._parts.items import Item, groups_of, pieces_of, scatter
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.refusals import answering
from numcodecs_bytes._parts.stores import Object, Remote, source_finder

# So many bytes of chunks are fetched together, in one request if they are adjacent: half of what a
# long range of one chunk is split into, since others are in flight.
GROUP_BYTES = MIN_PART_BYTES // 2


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
            plan = plan_chunk(source, layout, selection, batch.gap)
            item = Item(selection, place, plan, plan.ranges.num_kept_bytes)
            objects.setdefault(source.object.key, []).append(_Found(k, source.object, item))
    groups: list[Any] = []
    for found in objects.values():
        found.sort(key=lambda one: one.lies_in.start)
        starts = [one.lies_in.start for one in found]
        if any(b - a < layout.num_bytes for a, b in itertools.pairwise(starts)):
            continue  # they overlap
        parts = groups_of([one.item for one in found], GROUP_BYTES)
        groups += [(batch, layout, found[p], exist) for p in parts if p.stop - p.start > 1]
    await concurrent_map(groups, _read_group, zarr.config.get("async.concurrency"))
    return exist


async def _read_group(
    batch: Batch, layout: Layout, found: Sequence[_Found], exist: list[bool | None]
) -> None:
    byte_getter, spec, *_ = batch.items[found[0].k]
    getter = OnLoop(byte_getter, spec.prototype)
    source = Remote(get=found[0].lies_in.get)
    items, starts = [one.item for one in found], [one.lies_in.start for one in found]
    coalescing = coalescing_of(source, batch.gap)._replace(block_bytes=GROUP_BYTES)
    parts = Parts(coalescing.coalesce(*pieces_of(items, np.array(starts))), None)
    try:
        is_new = object_of(getter)[0] not in answering
        await get_all_parts(getter, source, parts, first_alone=is_new)
        if not parts.are_complete:
            return
        scatter(batch.out, parts.fetched, items, layout, batch.drop_axes)
    except GIVES_UP:  # chunk by chunk, it is raised again
        return
    except Exception as error:
        add_name(error, byte_getter)
        raise
    counted = SimpleNamespace(
        num_requests=getter.num_requests, num_bytes=getter.num_bytes, why="it lies beside others"
    )
    for one in found:
        exist[one.k] = True
        if _trace.active:
            num = np.size(batch.out[one.item.place]) * layout.item_size
            at = batch.items[one.k][0]
            _trace.note_read(at, len(layout.shape), layout.num_bytes, counted, num)
            counted.num_requests = counted.num_bytes = 0  # counted with the first
