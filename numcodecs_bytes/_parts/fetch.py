"""Read chunks and shards from stores that take requests: in part, or else as zarr does.

The ranges of a chunk, or of the inner chunks of a shard, are planned and requested, and the
selection is applied. If ranges turn out to be unreliable, zarr reads the chunk. Nothing is returned
before the length of the chunk is checked, if the store provides it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import zarr
from zarr.core.common import concurrent_map

from numcodecs_bytes import _trace
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._options import max_gap_bytes
from numcodecs_bytes._parts.assemble import ready_to_copy, select_fetched
from numcodecs_bytes._parts.batch import Batch
from numcodecs_bytes._parts.getters import Getter, chunks_in_flight
from numcodecs_bytes._parts.items import pieces_of, scatter
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.names import add_name, name_of_chunk
from numcodecs_bytes._parts.objects import read_objects
from numcodecs_bytes._parts.plan import NEARLY_WHOLE, plan_read
from numcodecs_bytes._parts.read_remote import NUM_TRIES, Known, RemoteObject, let_others_end
from numcodecs_bytes._parts.refusals import Changed, ReadWhole, answering, remember_refusal
from numcodecs_bytes._parts.shards import Shard, ShardSelection
from numcodecs_bytes._parts.stores import Answer, Remote, coalescing_of, source_finder
from numcodecs_bytes._zarr_versions import fill_value_or_default

# How often the parts of a shard are requested at most, before it is left to zarr's codec.
MAX_TRIES = 16

# Lets zarr read a chunk of the batch, given what was requested of it; returns whether it exists.
ReadByZarr = Callable[[int, _trace.Fetched], Awaitable[bool]]


async def read_remote(
    batch: Batch, exist: list[bool | None], read_by_zarr: ReadByZarr
) -> list[bool | None]:
    """Read the selections of chunks that are requested from stores into the output array.

    Parameters
    ----------
    batch : Batch
        The selections of chunks.
    exist : list of (bool or None)
        Whether each chunk exists; None if it was not read so far.
    read_by_zarr : callable
        What reads a chunk whose store does not answer ranges as requested.

    Returns
    -------
    list of (bool or None)
        The same, None for chunks that are left to zarr.
    """
    find = source_finder()
    left = [k for k, exists in enumerate(exist) if exists is None]
    sources = {k: find(batch.items[k][0]) for k in left}
    remote = {k: source for k, source in sources.items() if isinstance(source, Remote)}
    layout = batch.layout_of(batch.items[0][1])
    if isinstance(layout, Layout) and any(source.object for source in remote.values()):
        some = list(remote)
        together = await read_objects(batch._replace(items=[batch.items[k] for k in some]), layout)
        for k, exists in zip(some, together, strict=True):
            exist[k] = exists

    async def read(k: int, source: Remote) -> None:
        exist[k] = await _read_one(batch, k, source, read_by_zarr)

    alone = [(k, source) for k, source in remote.items() if exist[k] is None]
    await concurrent_map(alone, read, zarr.config.get("async.concurrency"))
    return exist


async def _read_one(batch: Batch, k: int, source: Remote, read_by_zarr: ReadByZarr) -> bool | None:
    byte_getter, spec, selection, place, *_ = batch.items[k]
    stored = batch.layout_of(spec)
    if isinstance(stored, Layout) and not stored.item_size:
        return None
    getter = Getter(byte_getter, spec.prototype)
    fetch: Any = _fetch_shard if isinstance(stored, Shard) else _fetch_chunk
    try:
        with chunks_in_flight:
            remote = await RemoteObject.of_many(getter, source)
            selected = await fetch(remote, stored, selection)
    except ReadWhole as reason:
        refusal = reason.refusal_of(*getter.object)
        if refusal is None and not getter.num_requests:
            return None  # with others
        await let_others_end(getter)
        fetched = _trace.Fetched(getter.num_requests, getter.num_bytes, reason.why)
        exists = await read_by_zarr(k, fetched)
        if refusal is not None:
            remember_refusal(getter.store, refusal, stored.num_bytes)
        return exists
    except Exception as error:
        add_name(error, byte_getter)
        raise
    if _trace.active:
        num = None if selected is None else selected.nbytes
        size = stored.num_bytes - (stored.index_bytes if isinstance(stored, Shard) else 0)
        counted = _trace.Fetched(
            getter.num_requests, getter.num_bytes, getter.why, getter.num_bytes_alone
        )
        _trace.note_read(byte_getter, len(spec.shape), size, counted, num)
    if selected is None:
        batch.out[place] = fill_value_or_default(spec)
        return False
    batch.out[place] = selected.squeeze(axis=batch.drop_axes) if batch.drop_axes else selected
    return True


async def _fetch_chunk(remote: RemoteObject, layout: Layout, selection: Any) -> Any:
    """Return the selection of a chunk, None if the chunk does not exist.

    Raises `ReadWhole` if zarr must read it.
    """
    plan = plan_read(selection, layout, coalescing_of(remote.source, max_gap_bytes()))
    if plan.is_whole and remote.num_parts(layout.num_bytes) == 1:
        raise ReadWhole
    fetched = await remote.read_chunk(plan.ranges, layout.num_bytes)
    if fetched is None:
        return None
    if plan.is_whole and fetched.nbytes != layout.num_bytes:
        name = name_of_chunk(remote.getter.byte_getter)
        check_length(fetched.nbytes, layout.shape, layout.dtype, layout.stored, name)
    return ready_to_copy(select_fetched(fetched, layout.stored, plan, selection), layout.dtype)


async def _fetch_shard(remote: RemoteObject, shard: Shard, selection: Any) -> Any:
    """Return the selection of a shard, None if the shard does not exist.

    Raises `ReadWhole` if zarr's codec must read it.
    """
    gap, source = max_gap_bytes(), remote.source
    if source.in_one_request:
        raise ReadWhole
    selected = shard.select(selection, coalescing_of(source, gap))
    splits = remote.num_parts(selected.num_bytes) > 1
    if not splits and _is_nearly_whole(shard, selected, source, gap):
        raise ReadWhole
    num_tries = _num_tries(shard, selected, source) if source.tells_version else 1
    odd_version = None
    for _ in range(num_tries):
        found = await _get_index(remote, shard)
        if found is None:
            return None
        index, answer = found
        present, starts, missing = shard.locate_selected(index, selected, answer.num_bytes)
        if _trace.active:
            remote.getter.num_bytes_alone = shard.num_bytes_alone(starts)
        ranges = shard.coalescing(source, gap).coalesce(*pieces_of(present, starts))
        ranges, splits = remote.split(ranges) if splits else ranges, False  # not again
        try:
            # Another length means another version.
            fetched = await remote.read(ranges, Known(version=answer.version), of_shard=True)
        except Changed:
            continue
        except ReadWhole as why:
            # What is odd may come from another version of the shard, but not twice from the same.
            is_odd = why.refusal is not None and (why.is_sure or answer.version == odd_version)
            if answer.version is None or is_odd:
                raise
            odd_version = answer.version
            continue
        if fetched is not None:
            out = np.empty(selected.flat_shape, shard.layout.dtype)
            shard.fill(out, missing)
            scatter(out, fetched, present, shard.layout)
            return out.reshape(selected.shape)
    remote.note_changing()
    raise ReadWhole


def _is_nearly_whole(
    shard: Shard, selected: ShardSelection, source: Remote, gap: int | None
) -> bool:
    """Whether zarr reads all inner chunks in one request, and that is hardly more."""
    num_spared = shard.num_bytes - shard.index_bytes - selected.num_bytes
    nearly = shard.num_bytes * (1 - NEARLY_WHOLE) if gap is None else 0
    little = max(nearly, coalescing_of(source, gap).max_gap_bytes)
    return len(selected.inner) == shard.num_chunks and num_spared <= little


def _num_tries(shard: Shard, selected: ShardSelection, source: Remote) -> int:
    """Return how often to request parts of a shard: several times costs less than a large shard."""
    least = NUM_TRIES if NUM_TRIES * selected.num_bytes < shard.num_bytes else 1
    of_a_try = 2 * source.costs.latency_bytes + selected.num_bytes
    return max(least, min(shard.num_bytes // of_a_try, MAX_TRIES))


async def _get_index(remote: RemoteObject, shard: Shard) -> tuple[Any, Answer] | None:
    """Return the decoded index, and the answer with it; None if the shard does not exist."""
    with remote.requesting():
        answer = await remote.ask(*shard.index_range)
        if answer is None:
            return None
        raw = await answer.read()
    remote.getter.num_bytes += raw.nbytes
    if raw.nbytes > shard.index_bytes:
        raise ReadWhole("returns more bytes than requested")
    if raw.nbytes == shard.index_bytes:
        answering.add(remote.getter.store)
    try:
        return shard.decode_index(raw), answer
    except Exception as error:
        raise ReadWhole from error
