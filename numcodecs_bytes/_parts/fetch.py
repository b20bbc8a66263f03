"""Fetch the selection of one chunk: requests, checks of its length and version, fallback.

A chunk's ranges are planned and fetched, and the selection is applied. If its ranges turn out to be
unreliable, the chunk is read whole the way zarr does, and the selection is applied to that. Nothing
is returned before the length of the chunk is checked, if the store provides it.
"""

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any

import numpy as np
from zarr.abc.store import ByteGetter
from zarr.core.buffer import BufferPrototype

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_numpy
from numcodecs_bytes._core.copy_gpu import decode_on_device
from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._parts.assemble import copy_pieces, ready_to_copy, select_fetched
from numcodecs_bytes._parts.getters import (
    Blocking,
    Getter,
    IsWanted,
    OnLoop,
    SyncByteGetter,
    T,
    WouldWait,
    chunks_in_flight,
    in_flight_of,
    max_requests,
    quick_places,
)
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.open_file import SHORT
from numcodecs_bytes._parts.plan import Plan, plan_read, plan_whole
from numcodecs_bytes._parts.ranges import Coalescing, Ranges, Request
from numcodecs_bytes._parts.read_file import FileReader
from numcodecs_bytes._parts.refusals import (
    LIMITS,
    ReadWhole,
    answering,
    explaining,
    keeps_changing,
    limiting,
    remember_cut,
    remember_refusal,
    remember_versions,
    status_of,
    untagged,
    versions_of,
)
from numcodecs_bytes._parts.settings import configured_gap_bytes, splits_requests
from numcodecs_bytes._parts.stores import (
    REQUEST_BYTES,
    Answer,
    File,
    Remote,
    Source,
    Whole,
    coalescing_of,
    find_source,
)

# Up to this many bytes are read on the event loop if they are in the page cache, which takes 0.1
# ms; another thread would take as long to begin.
AT_ONCE_BYTES = 1 << 19
# A long range is split into requests of at least so many bytes.
MIN_PART_BYTES = 1 << 23
# How often the ranges of a chunk are requested before one that keeps changing is read whole.
NUM_TRIES = 3
# How long to wait for the range requests of other chunks to end, and how often to look.
MAX_WAIT_SECONDS, WAIT_SECONDS = 10.0, 0.005


async def fetch(
    byte_getter: ByteGetter, layout: Layout, selection: Any, prototype: BufferPrototype
) -> Any:
    """Return the selection of a chunk, or None if the chunk does not exist.

    Parameters
    ----------
    byte_getter : zarr.abc.store.ByteGetter
        The byte getter of the chunk.
    layout : Layout
        How it is stored.
    selection : tuple
        The selection that zarr passes to codecs.
    prototype : zarr.core.buffer.BufferPrototype
        The prototype of the buffers to request from the byte getter, and of the result.

    Returns
    -------
    array or None
        In the dtype of the chunk, or a view in its stored byte order, which NumPy byte-swaps when
        it is copied. On the device of the prototype's buffers.

    Raises
    ------
    ValueError
        If the chunk has the wrong length.
    Exception
        Whatever the store raises, with a note that names the chunk.
    """
    return await _fetch(OnLoop(byte_getter, prototype), layout, selection)


def fetch_sync(
    byte_getter: SyncByteGetter, layout: Layout, selection: Any, prototype: BufferPrototype
) -> Any:
    """Do the same as `fetch`, using only the byte getter's `get_sync`."""
    return run_blocking(_fetch(Blocking(byte_getter, prototype), layout, selection))


def run_blocking(coroutine: Coroutine[None, None, T]) -> T:
    """Return the result of a coroutine that uses a `Blocking` getter."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a synchronous read awaited the event loop")


async def _fetch(getter: Getter, layout: Layout, selection: Any) -> Any:
    try:
        fetched, plan, refusal = await _fetch_parts(getter, layout, selection)
    except Exception as error:
        add_name(error, getter.byte_getter)
        raise
    if plan.is_whole:
        if fetched is not None:
            name = name_of_chunk(getter.byte_getter) if fetched.nbytes != layout.num_bytes else ""
            check_length(fetched.nbytes, layout.shape, layout.dtype, layout.stored, name)
        if refusal is not None:
            remember_refusal(object_of(getter)[0], refusal, layout.num_bytes)
    if fetched is None:
        note_fetched(getter, layout, None)
        return None
    if not isinstance(fetched, np.ndarray):
        array = decode_on_device(fetched, layout.stored, layout.dtype)
        on_device = array.reshape(layout.shape)[selection]
        note_fetched(getter, layout, on_device)
        return on_device
    selected = select_fetched(fetched, layout.stored, plan, selection)
    note_fetched(getter, layout, selected)
    return ready_to_copy(selected, layout.dtype)


def note_fetched(getter: Getter, layout: Layout, selected: Any) -> None:
    """Tell `numcodecs_bytes.trace` what was fetched of a chunk, missing if `selected` is None."""
    if _trace.active:
        num = None if selected is None else selected.size * layout.stored.itemsize
        fetched = _trace.Fetched(getter.num_requests, getter.num_bytes, getter.why)
        _trace.note_read(getter.byte_getter, len(layout.shape), layout.num_bytes, fetched, num)


def add_name(error: Exception, byte_getter: object, doing: str = "reading") -> None:
    """Add a note to an error that names the chunk."""
    note = f"while {doing} {name_of_chunk(byte_getter)}"
    with contextlib.suppress(Exception):  # some errors are immutable, some are raised twice
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


async def _fetch_parts(
    getter: Getter, layout: Layout, selection: Any
) -> tuple[Any, Plan, str | None]:
    """Return the bytes, their plan, and how the store refused ranges (None if it did not)."""
    is_readable = layout.item_size and getter.is_on_cpu
    source = find_source(getter.byte_getter) if is_readable else Whole()
    if isinstance(source, Whole):
        getter.why = source.why or "that saves nothing: it is in memory, for example"
        if not getter.is_on_cpu:
            getter.why = "it is wanted on a GPU"
    if not isinstance(source, Remote):
        return await _fetch_from(getter, layout, selection, source)
    with chunks_in_flight:
        return await _fetch_from(getter, layout, selection, await share_requests(getter, source))


async def share_requests(getter: Getter, source: Remote) -> Remote:
    """Return how to read one of the `chunks_in_flight`."""
    await getter.let_others_start()
    num_requests = max(1, max_requests() // chunks_in_flight.num)
    gap_bytes = max(source.max_gap_bytes, REQUEST_BYTES // num_requests)
    max_parts = min(source.max_parts, num_requests) if getter.starts_tasks else 1
    if configured_gap_bytes() is not None or not splits_requests():
        max_parts = 1
    return source._replace(max_gap_bytes=gap_bytes, max_parts=max_parts)


async def _fetch_from(
    getter: Getter, layout: Layout, selection: Any, source: Source
) -> tuple[Any, Plan, str | None]:
    refusal = raw = None
    if not isinstance(source, Whole):
        coalescing = coalescing_of(source, configured_gap_bytes())
        plan = plan_read(selection, layout, coalescing)
        try:
            if isinstance(source, File):
                read = partial(_read_file, getter, source, layout, selection, plan, coalescing)
                if isinstance(getter, Blocking):
                    return *read(_always), None
                is_short = plan.ranges.num_bytes <= AT_ONCE_BYTES and plan.num_requests <= SHORT
                may_try = is_short and source.place in quick_places
                return *await getter.run(read, source.in_thread, may_try), None
            if not plan.is_whole or source.max_parts > 1:
                return await _get_parts(getter, source, layout, plan), plan, None
        except ReadWhole as reason:
            refusal = reason.refusal_of(*object_of(getter))
            raw, getter.why = reason.raw, reason.why
            await let_others_end(getter)
    if raw is None:
        buffer = await getter.get_whole()
        raw = None if buffer is None else as_numpy(buffer.as_array_like())
        getter.num_requests += 1
        getter.num_bytes += 0 if raw is None else raw.nbytes
    return raw, plan_whole(layout), refusal


def _always() -> bool:
    return True


def _read_file(  # noqa: PLR0913, PLR0917
    getter: Getter,
    source: File,
    layout: Layout,
    selection: Any,
    plan: Plan,
    coalescing: Coalescing,
    is_wanted: IsWanted | None,
) -> tuple[UInt8Array | None, Plan]:
    """Return the pieces of a plan, or of another one, and that; None if there is no such chunk.

    Raises `WouldWait` if `is_wanted` is None, and the file is not in the page cache.
    """
    at_once = is_wanted is None
    reader = FileReader(
        *(coalescing, is_wanted or _always),
        adapts=coalescing.dense_bytes > 0,
        may_wait=not at_once,
    )
    is_short = plan.ranges.num_bytes <= AT_ONCE_BYTES and plan.num_requests <= SHORT
    place = source.place if is_short and not getter.is_blocking else ""
    start = time.perf_counter()
    try:
        file = source.open()
        try:
            opened = time.perf_counter()
            if at_once:
                with trying(place):
                    file.must_not_wait()
                    fetched = reader.fetch(file, layout, selection, plan)
            else:
                fetched = reader.fetch(file, layout, selection, plan)
            if place and file.is_on_disk:
                seconds = 0.0 if at_once else time.perf_counter() - opened
                quick_places.note(place, opened - start, seconds)
            return fetched
        finally:
            file.close()
            getter.num_requests += file.counted[0]
            getter.num_bytes += file.counted[1]
    except source.missing:
        return None, plan
    except (OSError, EOFError) as error:
        raise ReadWhole from error  # let the store raise its own error


@contextlib.contextmanager
def trying(place: str) -> Iterator[None]:
    """Raise `WouldWait` instead of the errors of a file that is read at once."""
    try:
        yield
    except BlockingIOError:
        quick_places.discard(place)
        raise WouldWait from None
    except (OSError, NotImplementedError):
        quick_places.ban(place)
        raise WouldWait from None


async def _get_parts(
    getter: Getter, source: Remote, layout: Layout, plan: Plan
) -> UInt8Array | None:
    """Return the pieces of a plan, or None if the chunk does not exist."""
    if source.num_bytes not in (None, layout.num_bytes):
        raise ReadWhole
    store, path = object_of(getter)
    is_split = store not in untagged and not keeps_changing(store, path)
    ranges = split_ranges(source, plan.ranges) if is_split else plan.ranges
    if len(ranges.starts) > plan.num_requests:
        parts = Parts(ranges, layout.num_bytes)
        await _get_split(getter, source, parts)
        if parts.are_settled:
            return parts.fetched if parts.are_complete else None
        if parts.first is not None:
            untagged.add(store)
        note_changing(getter)
    if plan.is_whole:
        raise ReadWhole(why="its store does not tell versions, or it keeps being overwritten")
    for _ in range(NUM_TRIES if source.tells_version else 1):
        parts = Parts(plan.ranges, layout.num_bytes)
        # A store that ignores ranges would return many whole chunks at once.
        await get_all_parts(getter, source, parts, first_alone=store not in answering)
        if parts.num_present and parts.version is None:
            untagged.add(store)
        if parts.are_settled and (source.tells_missing or parts.are_complete):
            return parts.fetched if parts.are_complete else None
    note_changing(getter)
    raise ReadWhole(why="it keeps being overwritten, or was created or deleted meanwhile")


def split_ranges(source: Remote, ranges: Ranges) -> Ranges:
    """Return the ranges of a chunk, long ones split into several."""
    num_parts = min(source.max_parts, ranges.num_bytes // MIN_PART_BYTES)
    return ranges.cut(-(-ranges.num_bytes // num_parts)) if num_parts > 1 else ranges


async def _get_split(getter: Getter, source: Remote, parts: "Parts") -> None:
    """Get all ranges; only the beginning of the first if that does not tell the version."""
    request = next(parts.ranges.requests())
    with requesting(getter):
        answer = await ask(getter, source, request.start, request.end)
    if answer is None:
        parts.is_missing = True
        return
    parts.check_length(answer)
    parts.first = request.start, answer
    if answer.version is not None:
        await get_all_parts(getter, source, parts)
        parts.first = None


async def get_all_parts(getter: Getter, source: Remote, parts: "Parts", **how: bool) -> None:
    """Get the ranges of some parts, as `how` says, until all are there or the chunk has changed.

    Raises
    ------
    ReadWhole
        If a range is not answered as requested.
    Exception
        Whatever the store raises if its server is not reached, for none of them.
    """
    get = partial(_get_part, getter, source, parts)
    with contextlib.suppress(_Changed):
        await getter.get_all(parts.ranges, get, **how)
    if parts.failed is not None:
        if parts.num_present and not isinstance(parts.failed, ReadWhole):
            # One of many fails more often than the only one for all.
            raise ReadWhole(why="a connection was lost") from parts.failed
        raise parts.failed
    if parts.num_present:
        answering.add(object_of(getter)[0])


async def _get_part(getter: Getter, source: Remote, parts: "Parts", request: Request) -> None:
    if (refusal := limiting.get(object_of(getter)[0])) is not None:
        parts.failed = parts.failed or ReadWhole(refusal)  # those in flight are waited for
    if parts.is_missing or parts.failed is not None:
        return  # stop after the first missing range
    answer = None
    if parts.first is not None and parts.first[0] == request.start:
        answer = parts.first[1]
    try:
        with requesting(getter):
            if answer is None:
                answer = await ask(getter, source, request.start, request.end)
            raw = None if answer is None else await answer.read()
    except Exception as error:
        if isinstance(error, ReadWhole) and status_of(error) is None:
            raise
        # The server was not reached, or answered with an error. The other requests are waited for:
        # it may limit how many it answers at once.
        parts.failed = error
        return
    getter.num_bytes += 0 if raw is None else raw.nbytes
    parts.take(request, answer, raw)


@contextlib.contextmanager
def requesting(getter: Getter) -> Iterator[None]:
    """Raise `ReadWhole` if a range request fails, or the store has just refused so many of them."""
    store, path = object_of(getter)
    if (refusal := limiting.get(store)) is not None:
        raise ReadWhole(refusal)
    try:
        with in_flight_of(store), explaining():
            yield
    except ReadWhole as why:
        if status_of(why) in LIMITS:
            limiting.add(store, why.refusal)
        if why.is_cut:
            remember_cut(store, path)
        raise


async def let_others_end(getter: Getter) -> None:
    """Let range requests end if the server limits how many it answers at once."""
    store, _ = object_of(getter)
    end = time.monotonic() + MAX_WAIT_SECONDS
    while getter.starts_tasks and store in limiting and in_flight_of(store).num:
        if time.monotonic() > end:
            break
        await asyncio.sleep(WAIT_SECONDS)


async def ask(getter: Getter, source: Remote, start: int, end: int | None) -> Answer | None:
    """Return the beginning of an answer, or None if the chunk does not exist.

    If `end` is None, `start` is negative, and counts from the end of the chunk.

    Raises
    ------
    ReadWhole
        If the versions of chunks say nothing, because each replica of the server has its own.
    """
    getter.num_requests += 1
    if source.get is not None:
        if getter.versions is None:
            getter.versions = versions_of(*object_of(getter))
        sent = getter.versions.now()
        answer = await source.get(start, end)
        if answer is not None and getter.versions.are_of_replicas(answer.version, sent):
            raise ReadWhole("has replicas with different tags for the same chunk")
        return answer
    buffer = await getter.get_range(start, end)
    if buffer is None:
        return None
    raw = buffer.as_numpy_array()

    async def read() -> UInt8Array:
        return raw

    return Answer(read)


def note_changing(getter: Getter) -> None:
    """Remember which versions of a chunk were found that kept changing."""
    if getter.versions is not None:
        remember_versions(*object_of(getter), getter.versions)


def object_of(getter: Getter) -> tuple[Any, str]:
    """Return the store of a chunk, and its path there."""
    byte_getter = getter.byte_getter
    return getattr(byte_getter, "store", None), getattr(byte_getter, "path", "")


class _Changed(Exception):  # noqa: N818 # not an error
    """The chunk was overwritten between two requests."""


_ANY_VERSION = object()


class Parts:
    """The pieces of ranges, collected while these arrive in any order.

    Parameters
    ----------
    ranges : Ranges
        The ranges.
    num_bytes : int or None
        Length of the chunk, if known.
    version : object
        The version of the chunk that the pieces must be from; by default that of the first one.
    """

    def __init__(
        self, ranges: Ranges, num_bytes: int | None, version: object = _ANY_VERSION
    ) -> None:
        self.fetched = np.empty(0, np.uint8)
        self.num_present = 0
        self.is_missing = False
        self.failed: Exception | None = None  # how a request failed
        # The answer to a request that was asked before, and where that range starts.
        self.first: tuple[int, Answer] | None = None
        self.ranges = ranges
        self.num_requests = len(ranges.starts)
        self.version = version
        self.chunk_bytes = num_bytes

    @property
    def are_complete(self) -> bool:
        """Whether all of them are there."""
        return self.num_present == self.num_requests

    @property
    def are_settled(self) -> bool:
        """Whether all of them are there, or the chunk is missing."""
        return self.are_complete or (self.is_missing and not self.num_present)

    def check_length(self, answer: Answer) -> None:
        """Raise `ReadWhole` if the chunk has another length."""
        if (
            None not in (answer.num_bytes, self.chunk_bytes)
            and answer.num_bytes != self.chunk_bytes
        ):
            how = f"says that a chunk of {self.chunk_bytes} bytes has {answer.num_bytes}"
            raise ReadWhole(how, is_sure=False)

    def take(self, request: Request, answer: Answer | None, raw: UInt8Array | None) -> None:
        """Check an answer and copy its pieces to their place."""
        if answer is None or raw is None:
            self.is_missing = True
            return
        self.check_length(answer)
        raw = raw.view(np.uint8)
        expected = request.end - request.start
        if len(raw) != expected:
            # An answer that is too short may come from another version of the chunk.
            is_longer = len(raw) > expected
            refusal = f"returns {'more' if is_longer else 'fewer'} bytes than requested"
            raw = raw if len(raw) == self.chunk_bytes else None
            raise ReadWhole(refusal, raw, is_sure=is_longer)
        if self.version not in (_ANY_VERSION, answer.version):
            raise _Changed
        self.version = answer.version
        self.num_present += 1
        if self.num_requests == 1 and len(request.piece_starts) == 1:
            self.fetched = raw
            return
        if not len(self.fetched):
            self.fetched = np.empty(self.ranges.num_kept_bytes, np.uint8)
        kept = self.fetched[request.place : request.place + int(request.piece_lengths.sum())]
        copy_pieces(kept, raw, request.piece_starts, request.piece_lengths)
