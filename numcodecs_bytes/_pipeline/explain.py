"""Better errors for what zarr can't read or write: which chunk, and what is wrong with it."""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Literal, TypeVar

from zarr.abc.store import RangeByteRequest
from zarr.storage import StorePath

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._core.dtypes import LengthError
from numcodecs_bytes._pipeline.array_layouts import LayoutMixin
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.shards import REMEDY, LayoutOf, ShardLayout
from numcodecs_bytes._read.chunk_read import chunk_reads
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._sources.stores import is_in_shard, only_states_lengths, states_lengths
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.names import add_name, add_note

T = TypeVar("T")
Doing = Literal["reading", "writing"]

# How many chunks are asked for their length after an error, so that with the one that may have to
# be fetched, an error costs at most a dozen requests (with last bytes, two dozen).
_NUM_LENGTHS = 11
# What a read or write has learnt by asking for lengths, which is done after the first of its errors
# only: zarr goes on with other chunks, which may fail as well, and then wait for the answer. It is
# a text, or "", because the task of the caller keeps it: an error has frames, and they the output.
length_check: ContextVar[list[Future[str]]] = ContextVar("length_check")


async def explained(
    zarrs: Awaitable[T], items: Sequence[ChunkRequest], pipeline: LayoutMixin, doing: Doing
) -> T:
    """Await what zarr does with chunks; name them in its error, or raise a better one."""
    try:
        return await zarrs
    except Exception as error:  # whichever it is: it is only explained
        await _explain(error, items, pipeline, doing)
        raise


async def _explain(
    error: Exception, items: Sequence[ChunkRequest], pipeline: LayoutMixin, doing: Doing
) -> None:
    """Name the chunk, or the array, in zarr's error; raise a better one for a wrong length."""
    first, spec, layout_of = items[0].byte_getter, items[0].spec, pipeline._layout_of
    if is_in_shard(first):  # the shard will be named
        return
    is_asked = type(first) is StorePath and states_lengths(first.store)
    if isinstance(error, ValueError) and is_asked:
        # A whole chunk that is written is not read before.
        read = items if doing == "reading" else [each for each in items if not each.is_complete]
        if wrong := await _find_wrong_length(read[:_NUM_LENGTHS], layout_of):
            raise LengthError(wrong) from error  # which may be of another chunk
    if len(items) == 1:
        add_name(error, first, doing)
    else:
        has_v2_keys = pipeline._has_v2_keys()
        name = traces.name_of_array(first, len(spec.shape), has_v2_keys=has_v2_keys)
        check = "`numcodecs-bytes check` finds damaged ones"
        add_note(error, f"while {doing} {len(items)} chunks of {name}; {check}")
    # A store may refuse to write, for example.
    is_of_data = isinstance(error, ValueError) and (
        doing == "reading"
        or isinstance(error, LengthError)
        or "checksum" in str(value_or_error(str, error))
    )
    if is_of_data and isinstance(value_or_error(layout_of, spec), ShardLayout):
        add_note(error, f"a shard may be damaged: {REMEDY}")


async def _find_wrong_length(items: Sequence[ChunkRequest], layout_of: LayoutOf) -> str:
    """Return what is wrong with a chunk of the wrong length, or ""; it is looked for once."""
    if asked := length_check.get([]):
        return await asyncio.shield(asked[0])
    asked.append(asyncio.get_running_loop().create_future())
    wrong = ""
    try:  # if this fails, zarr's error says enough
        found = await async_value_or_error(_check_lengths(items, layout_of))
        wrong = str(found) if isinstance(found, LengthError) else ""
    finally:
        asked[0].set_result(wrong)
    return wrong


async def _check_lengths(items: Sequence[ChunkRequest], layout_of: LayoutOf) -> None:
    """Raise the error of the first chunk that has the wrong length, if there is one."""
    for chunk in chunk_reads(items, layout_of):
        if not isinstance(chunk.layout, Layout):  # a shard has no certain length
            continue
        getter, get = chunk.getter, chunk.item.byte_getter.get
        num_bytes = await async_value_or_error(getter.store.getsize(getter.path))
        if isinstance(num_bytes, Exception):  # it is missing, or can't be asked for
            continue
        if num_bytes:
            chunk.check_length(num_bytes)
            if not only_states_lengths(getter.store):
                continue
            last = RangeByteRequest(num_bytes - 1, num_bytes)
            end = await async_value_or_error(get(chunk.item.spec.prototype, last))
            if end is not None and not isinstance(end, Exception) and len(end) == 1:
                continue
        # Some file systems say 0 of files that are not empty.
        buffer = await get(chunk.item.spec.prototype)
        if buffer is not None:
            chunk.check_length(len(buffer))
        break
