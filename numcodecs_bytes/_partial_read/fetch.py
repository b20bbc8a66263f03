"""Fetch what is selected of one chunk: requests, its length, its version, falling back.

A chunk is planned, fetched, and the selection taken. Where its ranges turn out not to be reliable,
it is read whole, in zarr's own way, and the selection taken of that. Nothing is handed out before
the length of the chunk is checked, where the store tells it.
"""

import contextlib
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from zarr.core.buffer import cpu

from numcodecs_bytes._copy import copy_pieces, ready_to_copy, select_fetched
from numcodecs_bytes._copy_gpu import as_numpy, decode_on_device
from numcodecs_bytes._dtypes import AnyDType
from numcodecs_bytes._partial_read.getters import Blocking, Getter, IsWanted, OnLoop
from numcodecs_bytes._partial_read.open_file import BLOCK_BYTES, Bytes
from numcodecs_bytes._partial_read.plan import Merging, Plan, Request, plan_read, plan_whole
from numcodecs_bytes._partial_read.stores import (
    Answer,
    File,
    ReadWhole,
    Remote,
    answering,
    configured_gap_bytes,
    describe,
    explain_failure,
    find_source,
    remember_refusal,
)

# How often a chunk is asked for in ranges, before one that is overwritten all the time is read
# whole.
_NUM_TRIES = 3


class Chunk(NamedTuple):
    """An uncompressed chunk, and what to read of it.

    Attributes
    ----------
    selection : tuple
        As zarr hands it to codecs.
    shape : tuple of int
        In elements.
    dtype, stored : numpy.dtype
        Of its elements in memory, and as they are stored.
    prototype : zarr.core.buffer.BufferPrototype
        What the byte getter is asked for.
    axis_order : tuple of int or None
        The axes in the order in which they are stored, by default C order.
    """

    selection: Any
    shape: tuple[int, ...]
    dtype: AnyDType
    stored: AnyDType
    prototype: Any
    axis_order: tuple[int, ...] | None = None

    @property
    def num_bytes(self) -> int:
        """Length of the chunk in bytes."""
        return math.prod(self.shape) * self.stored.itemsize

    @property
    def is_on_cpu(self) -> bool:
        """Whether the chunk is wanted as NumPy's arrays."""
        return issubclass(self.prototype.nd_buffer, cpu.NDBuffer)


async def fetch(byte_getter: Any, chunk: Chunk) -> Any:
    """Return the selection of a chunk, None where there is no such chunk.

    Parameters
    ----------
    byte_getter : zarr.abc.store.ByteGetter
        Of the chunk.
    chunk : Chunk
        What to read of it.

    Returns
    -------
    array or None
        In the data type of the chunk, or a view in its stored byte order, which NumPy swaps when it
        is copied. On the device of the prototype's buffers.

    Raises
    ------
    ValueError
        If the chunk is of the wrong length.
    Exception
        Whatever the store raises, with a note that names the chunk.
    """
    return await _fetch(OnLoop(byte_getter, chunk.prototype), chunk)


def fetch_sync(byte_getter: Any, chunk: Chunk) -> Any:
    """Return the same as `fetch`, by the byte getter's `get_sync` alone."""
    coroutine = _fetch(Blocking(byte_getter, chunk.prototype), chunk)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise RuntimeError("a synchronous read waits for the event loop")


async def _fetch(getter: Getter, chunk: Chunk) -> Any:
    try:
        fetched, plan, refusal = await _fetch_parts(getter, chunk)
    except Exception as error:
        note = f"while reading {describe(getter.byte_getter)}"
        with contextlib.suppress(Exception):  # some errors are frozen; some are raised again
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        raise
    if fetched is None:
        return None
    if plan.is_whole:
        name = describe(getter.byte_getter) if fetched.nbytes != chunk.num_bytes else ""
        check_length(fetched.nbytes, chunk.shape, chunk.dtype, chunk.stored, name)
        if refusal is not None:
            remember_refusal(getattr(getter.byte_getter, "store", None), refusal, chunk.num_bytes)
        if not isinstance(fetched, np.ndarray):
            array = decode_on_device(fetched, chunk.stored, chunk.dtype)
            return array.reshape(chunk.shape)[chunk.selection]
    selected = select_fetched(fetched, chunk.stored, plan, chunk.selection)
    return ready_to_copy(selected, chunk.dtype)


def check_length(
    num_bytes: int, shape: tuple[int, ...], dtype: AnyDType, stored: AnyDType, name: str
) -> None:
    """Raise ValueError unless a chunk of a shape and data type has so many bytes."""
    expected = math.prod(shape) * stored.itemsize
    if num_bytes != expected:
        raise ValueError(
            f"{name} holds {num_bytes} bytes, expected {expected} for shape {shape} of {dtype}; "
            f"it may be {'truncated' if num_bytes < expected else 'of another shape or compressed'}"
        )


async def _fetch_parts(getter: Getter, chunk: Chunk) -> tuple[Any, Plan, str | None]:
    """Return bytes, their plan, and what showed that the store has no ranges."""
    item_size = chunk.stored.itemsize
    source = find_source(getter.byte_getter) if item_size and chunk.is_on_cpu else None
    refusal = raw = None
    if source is not None:
        gap = configured_gap_bytes()
        max_gap_bytes = source.max_gap_bytes if gap is None else gap
        merging = Merging(max_gap_bytes, BLOCK_BYTES if isinstance(source, File) else None)
        plan = plan_read(chunk.selection, chunk.shape, item_size, merging, chunk.axis_order)
        try:
            if isinstance(source, File):
                read = partial(_read_file, source, chunk, plan, adapts=gap is None)
                return await getter.run(read, in_thread=source.in_thread), plan, None
            if not plan.is_whole:
                return await _get_parts(getter, source, chunk, plan), plan, None
        except ReadWhole as reason:
            refusal, raw = reason.refusal, reason.raw
    if raw is None:
        buffer = await getter.get_whole()
        raw = None if buffer is None else as_numpy(buffer.as_array_like())
    return raw, plan_whole(chunk.shape, item_size, chunk.axis_order), refusal


def _read_file(
    source: File, chunk: Chunk, plan: Plan, is_wanted: IsWanted, *, adapts: bool
) -> Bytes | None:
    """Return the pieces of a plan, None where there is no such chunk."""
    try:
        file = source.open()
        try:
            if file.num_bytes == chunk.num_bytes:
                fetched = file.read(plan.ranges, is_wanted, adapts=adapts)
                if fetched is not None:
                    return fetched
        finally:
            file.close()
    except source.missing:
        return None
    except OSError as error:
        raise ReadWhole from error  # it is for the store to say what is wrong
    raise ReadWhole


async def _get_parts(getter: Getter, source: Remote, chunk: Chunk, plan: Plan) -> Bytes | None:
    """Return the pieces of a plan, None where there is no such chunk."""
    if source.num_bytes not in (None, chunk.num_bytes):
        raise ReadWhole
    store = getattr(getter.byte_getter, "store", None)
    for _ in range(_NUM_TRIES if source.get else 1):
        parts = _Parts(chunk, plan)
        get = partial(_get_part, getter, source, parts)
        with contextlib.suppress(_Changed):
            # One that ignores ranges would hand out many whole chunks at once.
            await getter.get_all(plan.ranges, get, first_alone=store not in answering)
            if parts.num_present:
                answering.add(store)
            if parts.num_present == plan.num_requests:
                return parts.fetched
            if parts.is_missing and not parts.num_present and source.tells_missing:
                return None
    # It is overwritten all the time, or was created or deleted meanwhile.
    raise ReadWhole


async def _get_part(getter: Getter, source: Remote, parts: "_Parts", request: Request) -> None:
    if parts.is_missing:
        return  # the ranges after the first missing one are not asked for
    try:
        if source.get is not None:
            answer = await source.get(request.start, request.end)
        else:
            buffer = await getter.get_range(request.start, request.end)
            answer = None if buffer is None else Answer(buffer.as_numpy_array())
    except Exception as error:
        reason = explain_failure(error, parts.num_requests)
        if reason is None:
            raise
        raise reason from error
    parts.take(request, answer)


class _Changed(Exception):  # noqa: N818 # not an error
    """The chunk was overwritten between two answers."""


class _Parts:
    """The pieces of a plan while their ranges come, in any order."""

    def __init__(self, chunk: Chunk, plan: Plan) -> None:
        self.fetched = np.empty(0, np.uint8)
        self.num_present = 0
        self.is_missing = False
        self._version: object = None
        self._chunk_bytes = chunk.num_bytes
        self.num_requests = plan.num_requests
        self._num_kept_bytes = plan.ranges.num_kept_bytes

    def take(self, request: Request, answer: Answer | None) -> None:
        """Check an answer and put what is kept of it where it belongs."""
        if answer is None:
            self.is_missing = True
            return
        if answer.num_bytes not in (None, self._chunk_bytes):
            raise ReadWhole
        raw = answer.raw.view(np.uint8)
        expected = request.end - request.start
        if len(raw) != expected:
            # One that is too short may be of another version.
            refusal = "answers with more than it is asked for" if len(raw) > expected else None
            raise ReadWhole(refusal, raw if len(raw) == self._chunk_bytes else None)
        if self.num_present and answer.version != self._version:
            raise _Changed
        self._version = answer.version
        self.num_present += 1
        if self.num_requests == 1 and len(request.piece_starts) == 1:
            self.fetched = raw
            return
        if not len(self.fetched):
            self.fetched = np.empty(self._num_kept_bytes, np.uint8)
        kept = self.fetched[request.place : request.place + int(request.piece_lengths.sum())]
        copy_pieces(kept, raw, request.piece_starts, request.piece_lengths)
