"""How to get bytes from a byte getter, several ranges at a time."""

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from numcodecs_bytes._parts.ranges import Ranges, Request
from numcodecs_bytes._parts.refusals import Stores, Versions

Get = Callable[[Request], Awaitable[None]]
Got = Awaitable[Buffer | None]

# What counts as zarr's limit where that is None.
UNLIMITED = 1000


class _Counter:
    """Counts what is going on, in all threads; a context manager."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew: what another process does is not counted, nor is its lock released."""
        self.num = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.num += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.num -= 1


_OfLoops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Counter]
chunks_in_flight = _Counter()  # of stores that take requests
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=chunks_in_flight.reset)
# Coroutines and helper tasks that fetch several ranges. Counted, because asyncio's semaphores would
# keep their event loop alive.
_slots_of_loops: _OfLoops = weakref.WeakKeyDictionary()
_in_flight = Stores()  # range requests of a store, by event loop


def in_flight_of(store: object) -> _Counter:
    """Return the counter of a store's range requests in this event loop: others may wait for it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _Counter()
    of_loops: _OfLoops | None = _in_flight.get(store)
    if of_loops is None:
        of_loops = weakref.WeakKeyDictionary()
        _in_flight.add(store, of_loops)
    return of_loops.setdefault(loop, _Counter())


def max_requests() -> int:
    """Return how many requests zarr has in flight at most; a chunk alone may have as many."""
    return int(zarr.config.get("async.concurrency") or UNLIMITED)


class Getter:
    """Gets the bytes of a chunk, and counts them.

    Parameters
    ----------
    byte_getter : zarr.abc.store.ByteGetter
        The byte getter of the chunk.
    prototype : zarr.core.buffer.BufferPrototype
        The prototype of the buffers to return.

    Attributes
    ----------
    num_requests, num_bytes : int
        How much was requested so far.
    num_bytes_alone : int or None
        How much zarr alone fetches, if not all of the chunk.
    versions : Versions or None
        The versions that were found so far.
    why : str
        Why the chunk is read whole, if it is.
    """

    num_requests = num_bytes = 0
    num_bytes_alone: int | None = None
    versions: Versions | None = None
    why = ""

    def __init__(self, byte_getter: Any, prototype: BufferPrototype) -> None:
        self.byte_getter = byte_getter
        self._prototype = prototype

    @property
    def store(self) -> Any:
        """The store of the chunk."""
        return getattr(self.byte_getter, "store", None)

    @property
    def object(self) -> tuple[Any, str]:
        """The store of the chunk, and its path there."""
        return self.store, getattr(self.byte_getter, "path", "")

    def get_whole(self) -> Got:
        """Return the whole chunk, or None if it does not exist; the same request as zarr's."""
        return self.byte_getter.get(self._prototype)  # type: ignore[no-any-return]

    def get_range(self, start: int, end: int | None) -> Got:
        """Return the bytes from `start` to `end` (exclusive), or None if there is no chunk.

        If `end` is None, `start` is negative, and counts from the end of the chunk.
        """
        byte_range = SuffixByteRequest(-start) if end is None else RangeByteRequest(start, end)
        return self.byte_getter.get(self._prototype, byte_range=byte_range)  # type: ignore[no-any-return]

    async def get_all(
        self, ranges: Ranges, get: Get, *, first_alone: bool = False, of_shard: bool = False
    ) -> None:
        """Get all ranges concurrently, after the first one if `first_alone`.

        This coroutine always requests one range after the other, just as zarr's own codec would
        request the whole chunk. Helper tasks join in while the event loop has fewer requests in
        flight than zarr's `async.concurrency`. No task ever waits for a free slot, which could
        deadlock: the store that occupies one may be reading another array inside `get`. zarr takes
        that limit for each shard, so only other chunks share their slots.
        """
        requests, num_left = ranges.requests(), len(ranges.starts)
        if not num_left:
            return
        slots = _Counter()
        if not of_shard:
            slots = _slots_of_loops.setdefault(asyncio.get_running_loop(), slots)
        with slots:
            if num_left == 1 or first_alone:
                await get(next(requests))
                num_left -= 1
            if num_left:
                await _get_concurrently(requests, num_left, get, slots)


async def _get_concurrently(requests: Any, num_left: int, get: Get, slots: _Counter) -> None:
    limit = max_requests()
    failure = None
    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                num_left -= 1
                for _ in range(min(limit - slots.num, num_left)):
                    slots.__enter__()
                    task = group.create_task(_help(requests, get, slots, limit))
                    task.add_done_callback(slots.__exit__)
                    num_left -= 1
                await get(request)
    except BaseExceptionGroup as errors:
        failure = errors.exceptions[0]
        # Its reference cycle would keep the fetched bytes alive until the next collection.
        errors.__traceback__ = None
    if failure is not None:
        try:
            raise failure  # outside the except block, so that its context is unchanged
        finally:
            del failure


async def _help(requests: Any, get: Get, slots: _Counter, limit: int) -> None:
    while slots.num <= limit and (request := next(requests, None)) is not None:
        await get(request)
