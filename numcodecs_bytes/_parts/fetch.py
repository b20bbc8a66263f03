"""Fetch the selection of one chunk: requests, checks of its length and version, fallback.

A chunk's ranges are planned and fetched, and the selection is applied. If its ranges turn out to be
unreliable, the chunk is read whole the way zarr does, and the selection is applied to that. Nothing
is returned before the length of the chunk is checked, if the store provides it.
"""

import contextlib
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
from zarr.abc.store import ByteGetter
from zarr.core.buffer import BufferPrototype

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_numpy
from numcodecs_bytes._core.copy_gpu import decode_on_device
from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._parts.assemble import ready_to_copy, select_fetched
from numcodecs_bytes._parts.getters import (
    Blocking,
    Getter,
    OnLoop,
    T,
    chunks_in_flight,
    quick_places,
)
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.open_file import OpenFile, WouldWait
from numcodecs_bytes._parts.plan import Plan, plan_read, plan_whole
from numcodecs_bytes._parts.read_file import FileReader, is_short
from numcodecs_bytes._parts.read_remote import RemoteObject, let_others_end
from numcodecs_bytes._parts.refusals import ReadWhole, remember_refusal
from numcodecs_bytes._parts.stores import Remote, Source, Whole, coalescing_of, find_source
from numcodecs_bytes._settings import configured_gap_bytes
from numcodecs_bytes._threads import IsWanted


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


def fetch_sync(byte_getter: Any, layout: Layout, selection: Any, prototype: BufferPrototype) -> Any:
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
        if layout.item_size and getter.is_on_cpu:
            source = find_source(getter.byte_getter)
        else:
            source = Whole("" if getter.is_on_cpu else "it goes to a GPU")
        if not isinstance(source, Remote):
            fetched, plan, refusal = await _fetch_from(getter, layout, selection, source)
        else:
            with chunks_in_flight:
                fetched, plan, refusal = await _fetch_from(getter, layout, selection, source)
    except Exception as error:
        add_name(error, getter.byte_getter)
        raise
    if plan.is_whole and fetched is not None:
        name = name_of_chunk(getter.byte_getter) if fetched.nbytes != layout.num_bytes else ""
        check_length(fetched.nbytes, layout.shape, layout.dtype, layout.stored, name)
    if refusal is not None:
        remember_refusal(getter.store, refusal, layout.num_bytes)
    if fetched is None:
        selected = None
    elif isinstance(fetched, np.ndarray):
        selected = select_fetched(fetched, layout.stored, plan, selection)
    else:
        array = decode_on_device(fetched, layout.stored, layout.dtype)
        selected = array.reshape(layout.shape)[selection]
    if _trace.active:
        num = None if selected is None else selected.size * layout.item_size
        counted = _trace.Fetched(getter.num_requests, getter.num_bytes, getter.why)
        _trace.note_read(getter.byte_getter, len(layout.shape), layout.num_bytes, counted, num)
    return ready_to_copy(selected, layout.dtype) if isinstance(selected, np.ndarray) else selected


def add_name(error: Exception, byte_getter: object, doing: str = "reading") -> None:
    """Add a note to an error that names the chunk."""
    note = f"while {doing} {name_of_chunk(byte_getter)}"
    with contextlib.suppress(Exception):  # some errors are immutable, some are raised twice
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


async def _fetch_from(
    getter: Getter, layout: Layout, selection: Any, source: Source
) -> tuple[Any, Plan, str | None]:
    """Return the bytes, their plan, and how the store refused ranges (None if it did not)."""
    refusal = raw = None
    try:
        found = await _fetch_parts(getter, layout, selection, source)
        if found is not None:
            return *found, None
    except ReadWhole as reason:
        refusal = reason.refusal_of(*getter.object)
        raw, getter.why = reason.raw, reason.why
        await let_others_end(getter)
    if raw is None:
        buffer = await getter.get_whole()
        raw = None if buffer is None else as_numpy(buffer.as_array_like())
        getter.num_requests += 1
        getter.num_bytes += 0 if raw is None else raw.nbytes
    return raw, plan_whole(layout), refusal


async def _fetch_parts(
    getter: Getter, layout: Layout, selection: Any, source: Source
) -> tuple[UInt8Array | None, Plan] | None:
    """Return the bytes and their plan, or None if the chunk is read whole."""
    if isinstance(source, Whole):
        getter.why = source.why or "nothing to save: in memory, for example"
        return None
    gap = configured_gap_bytes()
    if isinstance(source, Remote):
        remote = await RemoteObject.of_many(getter, source)
        plan = plan_read(selection, layout, coalescing_of(remote.source, gap))
        if plan.is_whole and remote.num_parts(layout.num_bytes) == 1:
            return None
        return await remote.read_chunk(plan.ranges, layout.num_bytes), plan
    coalescing = coalescing_of(source, gap)
    plan = plan_read(selection, layout, coalescing)
    place = source.place if is_short(plan) and not getter.is_blocking else ""

    def read(is_wanted: IsWanted | None) -> tuple[UInt8Array | None, Plan]:
        at_once, start = is_wanted is None, time.perf_counter()
        may_wait, adapts = not at_once, gap is None
        reader = FileReader(coalescing, is_wanted or _always, adapts=adapts, may_wait=may_wait)
        try:
            file = source.open()
            try:
                with timing(file, place, start, at_once=at_once):
                    return reader.fetch(file, layout, selection, plan)
            finally:
                file.close()
                getter.num_requests += file.counted[0]
                getter.num_bytes += file.counted[1]
        except source.missing:
            return None, plan
        except (OSError, EOFError) as error:
            raise ReadWhole from error  # let the store raise its own error

    if not isinstance(getter, OnLoop):
        return read(_always)
    return await getter.run(read, source.in_thread, place in quick_places)


def _always() -> bool:
    return True


@contextlib.contextmanager
def timing(file: OpenFile, place: str, start: float, *, at_once: bool) -> Iterator[None]:
    """Note how long it takes to open a file, since `start`, and to read it.

    Raises `WouldWait` if it is read `at_once`, and would have to wait. Nothing is noted if there is
    no `place`.
    """
    opened = time.perf_counter()
    try:
        if at_once:
            file.must_not_wait()
        yield
    except BlockingIOError:
        if not at_once:
            raise
        quick_places.discard(place)
        raise WouldWait from None
    except (OSError, NotImplementedError):
        if not at_once:
            raise
        quick_places.ban(place)
        raise WouldWait from None
    if place and file.is_on_disk:
        seconds = 0.0 if at_once else time.perf_counter() - opened
        quick_places.note(place, opened - start, seconds)
