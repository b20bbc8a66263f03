"""Better errors for what zarr can't read or write: which chunk, and what is wrong with it."""

import asyncio
import errno
import math
import sys
from asyncio import Future
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from traceback import walk_tb
from typing import Literal, TypeVar

from zarr.abc.store import RangeByteRequest
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.storage import StorePath

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._core.dtypes import EndianError
from numcodecs_bytes._core.interrupts import interrupt_of
from numcodecs_bytes._core.lengths import (
    FIND_OTHERS,
    NUM_START_BYTES,
    LengthError,
    SuspectChunk,
    advise_on_codecs,
    explain_stand_in,
)
from numcodecs_bytes._pipeline.array_access import ArrayAccess
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.shards import NO_INDEX_ENDIAN, REMEDY, LayoutOf
from numcodecs_bytes._read.chunk_read import chunk_reads
from numcodecs_bytes._sources.shard_index import explain_shard
from numcodecs_bytes._sources.stores import (
    is_in_shard,
    kind_of_reference,
    only_states_lengths,
    start_of,
    states_lengths,
)
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.names import add_name, add_note

T = TypeVar("T")
Doing = Literal["reading", "writing"]

# How many chunks are asked for their length after an error, so that with the first bytes or all of
# the wrong one, an error costs at most a dozen requests (with last bytes, two dozen).
_NUM_LENGTHS = 10

# The packages whose code codecs run.
_CODECS_CALL = {"numcodecs", "numpy", "zarr"} | sys.stdlib_module_names


class LengthCheck:
    """What a read or write has learnt by asking for the lengths of chunks.

    It asks after the first of its errors only: zarr goes on with other chunks, which may fail as
    well, and then wait for the answer. That is a text, or "", because the task of the caller keeps
    it: an error has frames, and they the output.
    """

    wrong: Future[str] | None = None


length_check: ContextVar[LengthCheck] = ContextVar("length_check")


async def explained(
    zarr_call: Awaitable[T], requests: Sequence[ChunkRequest], access: ArrayAccess, doing: Doing
) -> T:
    """Await what zarr does with chunks; name them in its error, or raise a better one."""
    try:
        return await zarr_call
    except Exception as error:  # of any class: it is explained, and raised again
        await _explain(error, requests, access, doing)
        raise


async def _explain(
    error: Exception, requests: Sequence[ChunkRequest], access: ArrayAccess, doing: Doing
) -> None:
    """Name the chunk, or the array, in zarr's error; raise a better one for a wrong length."""
    first, spec, layout_of = requests[0].byte_getter, requests[0].spec, access.layout_of
    if is_in_shard(first):  # the shard will be named
        return
    is_asked = type(first) is StorePath and states_lengths(first.store)
    if isinstance(error, ValueError) and is_asked:
        # What is stored of a chunk that is written whole is not read, and may have any length.
        read = [each for each in requests if doing == "reading" or not each.is_complete]
        if wrong := await _find_wrong_length(read[:_NUM_LENGTHS], layout_of):
            # In a write, zarr's error may be about the values instead.
            is_other = doing == "writing" and not isinstance(error, LengthError)
            raise LengthError(wrong) from (error if is_other else interrupt_of(error))
    if len(requests) == 1:
        add_name(error, first, doing)
    else:
        name = access.name_of_array(first, spec)
        check = "`numcodecs-bytes check` finds damaged ones"
        add_note(error, f"while {doing} {len(requests)} chunks of {name}; {check}")
    chunk = first if is_asked and len(requests) == 1 else None
    if isinstance(access.codec, ShardingCodec):
        await _advise_on_shard(error, chunk, value_or_error(layout_of, spec), doing)
    elif chunk is not None and doing == "reading":
        await _advise_on_chunk(error, chunk, spec, access)


async def _advise_on_chunk(
    error: Exception, chunk: StorePath, spec: ArraySpec, access: ArrayAccess
) -> None:
    """Note what may be wrong with a chunk, unless the error may be the store's, or another one."""
    is_of_codec = _is_of_codec(error)
    if not is_of_codec and not isinstance(error, ValueError):
        return
    start = await start_of(chunk)
    if why := explain_stand_in(start):
        add_note(error, why)
    elif is_of_codec:
        dtype = spec.dtype.to_native_dtype()
        num_decoded = -1 if dtype.hasobject else math.prod(spec.shape) * dtype.itemsize
        num_bytes = await async_value_or_error(chunk.store.getsize(chunk.path))
        suspect = SuspectChunk(num_bytes if isinstance(num_bytes, int) else -1, num_decoded, start)
        advice = suspect.explain_encoding(access.codecs.names)
        remedy = advise_on_codecs(kind_of_reference(chunk.store, chunk.path))
        add_note(error, f"{advice or remedy}{FIND_OTHERS}")


async def _advise_on_shard(
    error: Exception, shard: StorePath | None, layout: object, doing: Doing
) -> None:
    """Note what is wrong with a shard, or may be with one of several, whose layout is known."""
    if isinstance(error, EndianError):  # zarr opens an array only if its other codecs have theirs
        add_note(error, NO_INDEX_ENDIAN)
    elif _is_of_data(error, doing) or (doing == "reading" and _is_of_codec(error)):
        advice = None if shard is None else await explain_shard(shard, layout)
        if not isinstance(error, LengthError):
            which = "a shard" if shard is None else "the shard"
            add_note(error, str(advice or REMEDY._replace(what=f"{which} may be damaged")))
        elif advice is not None:  # the error says what to do with a damaged one
            is_damaged = advice._replace(what="") == REMEDY
            add_note(error, advice.what if is_damaged else str(advice))


def _is_of_data(error: Exception, doing: Doing) -> bool:
    """Whether an error may come from damaged data; a store may refuse to write, for example."""
    while isinstance(error, ExceptionGroup):  # of zarr 3.4
        error = error.exceptions[0]
    if doing == "reading":
        # A damaged index may state any offset and length, for which there is no memory.
        is_wrong_range = isinstance(error, OSError) and error.errno == errno.EINVAL
        return is_wrong_range or isinstance(error, ValueError | MemoryError | OverflowError)
    has_wrong_checksum = "checksum" in str(value_or_error(str, error))
    return isinstance(error, LengthError) or (isinstance(error, ValueError) and has_wrong_checksum)


def _is_of_codec(error: Exception) -> bool:
    """Whether a codec of zarr or numcodecs can't decode data, whatever the class of its error."""
    while isinstance(error, ExceptionGroup):  # of zarr 3.4
        error = error.exceptions[0]
    modules = [str(f.f_globals.get("__name__")) for f, _ in walk_tb(error.__traceback__)]
    # Within the codec of shards, a store may fail.
    codecs = [name for name in modules if name.startswith(("zarr.codecs.", "numcodecs."))]
    is_in_codec = any(not name.startswith("zarr.codecs.sharding") for name in codecs)
    # A handler of a signal may raise anything there, and what we raise says what helps.
    is_by_it = modules[-1:] and modules[-1].partition(".")[0] in _CODECS_CALL
    is_lack = isinstance(error, MemoryError | ImportError)
    return bool(is_in_codec and is_by_it and not is_lack)


async def _find_wrong_length(requests: Sequence[ChunkRequest], layout_of: LayoutOf) -> str:
    """Return what is wrong with a chunk of the wrong length, or ""; it is looked for once."""
    check = length_check.get(None) or LengthCheck()
    if check.wrong is not None:
        return await asyncio.shield(check.wrong)
    check.wrong = asyncio.get_running_loop().create_future()
    wrong = ""
    try:  # if this fails, zarr's error says enough
        found = await async_value_or_error(_check_lengths(requests, layout_of))
        wrong = str(found) if isinstance(found, LengthError) else ""
    finally:
        check.wrong.set_result(wrong)
    return wrong


async def _check_lengths(requests: Sequence[ChunkRequest], layout_of: LayoutOf) -> None:
    """Raise the error of the first chunk that has the wrong length, if there is one."""
    for chunk in chunk_reads(requests, layout_of):
        if not isinstance(chunk.layout, Layout):  # a shard has no certain length
            continue
        byte_getter, prototype = chunk.request.byte_getter, chunk.request.spec.prototype
        num_bytes = await async_value_or_error(byte_getter.store.getsize(byte_getter.path))
        if isinstance(num_bytes, Exception):  # the chunk is missing, or its store fails
            continue
        if kind_of_reference(byte_getter.store, byte_getter.path) == "inlined":
            num_bytes = 0  # it states the length of the text
        if num_bytes:
            if num_bytes != chunk.layout.num_bytes:
                chunk.check_length(num_bytes, await start_of(byte_getter, num_bytes))
            if not only_states_lengths(byte_getter.store):
                continue
            last = RangeByteRequest(num_bytes - 1, num_bytes)
            end = await async_value_or_error(byte_getter.get(prototype, last))
            if end is not None and not isinstance(end, Exception) and len(end) == 1:
                continue
        # Some file systems say that a file is empty although it is not.
        buffer = await byte_getter.get(prototype)
        if buffer is not None:
            chunk.check_length(len(buffer), buffer[:NUM_START_BYTES].to_bytes())
        break
