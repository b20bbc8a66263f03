"""How a byte getter is asked: on the event loop, or without one.

Two classes with the same methods, so that what is done with the bytes is written once.
"""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import zarr
from zarr.abc.store import RangeByteRequest

from numcodecs_bytes._partial_read.plan import Ranges, Request
from numcodecs_bytes._threads import run_in_thread

T = TypeVar("T")
IsWanted = Callable[[], bool]
Get = Callable[[Request], Awaitable[None]]


class OnLoop:
    """On the event loop, as zarr's default pipeline asks.

    Parameters
    ----------
    byte_getter : zarr.abc.store.ByteGetter
        Of a chunk.
    prototype : zarr.core.buffer.BufferPrototype
        Of the buffers that it is to return.
    """

    def __init__(self, byte_getter: Any, prototype: Any) -> None:
        self.byte_getter = byte_getter
        self._prototype = prototype

    async def get_whole(self) -> Any:
        """Return the whole chunk, None where there is none; asked exactly as zarr asks."""
        return await self.byte_getter.get(self._prototype)

    async def get_range(self, start: int, end: int) -> Any:
        """Return the bytes from `start` to `end` (exclusive), None where there is no chunk."""
        return await self.byte_getter.get(self._prototype, RangeByteRequest(start, end))

    async def run(self, read: Callable[[IsWanted], T], *, in_thread: bool) -> T:
        """Return what a function returns, which gets one that says whether it is still wanted."""
        if not in_thread:
            return read(lambda: True)
        cancelled: list[bool] = []  # a thread can't be cancelled, but asked to stop
        try:
            return await run_in_thread(None, lambda: read(lambda: not cancelled))
        finally:
            cancelled.append(True)

    async def get_all(self, ranges: Ranges, get: Get, *, first_alone: bool) -> None:
        """Get all ranges, several at a time, after the first one where that is to come alone.

        This coroutine gets one after the other in any case, as zarr's own codec would get the whole
        chunk. Others help it, as long as there are fewer requests in the event loop than zarr's
        `async.concurrency`. Nobody waits for a place: its holder may be a store that reads another
        array inside `get`.
        """
        requests = ranges.requests()
        num_left = len(ranges.starts)
        if num_left == 1 or (num_left and first_alone):
            await get(next(requests))
            num_left -= 1
        if not num_left:
            return
        if asyncio.current_task() is None:  # a coroutine that is driven by hand has no helpers
            for request in requests:
                await get(request)
            return
        places = _places_of_loops.setdefault(asyncio.get_running_loop(), _Places())
        limit = zarr.config.get("async.concurrency") or num_left
        failure = None
        places.num_taken += 1
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    num_left -= 1
                    for _ in range(min(limit - places.num_taken, num_left)):
                        places.num_taken += 1
                        task = group.create_task(_help(requests, get, places, limit))
                        task.add_done_callback(places.give_back)
                        num_left -= 1
                    await get(request)
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
            errors.__traceback__ = None  # else it keeps what was read until garbage is collected
        finally:
            places.give_back()
        if failure is not None:
            try:
                raise failure  # as it is, with its own context
            finally:
                del failure


class _Places:
    """Counts the chunks that are read in several ranges in an event loop, and their helpers."""

    num_taken = 0

    def give_back(self, _task: object = None) -> None:
        self.num_taken -= 1


# Counters, which unlike asyncio's semaphores don't keep their loop alive.
_places_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Places] = (
    weakref.WeakKeyDictionary()
)


async def _help(requests: Any, get: Get, places: _Places, limit: int) -> None:
    while places.num_taken <= limit and (request := next(requests, None)) is not None:
        await get(request)


class Blocking:
    """Without an event loop, as zarr's fused pipeline asks: nothing here waits."""

    def __init__(self, byte_getter: Any, prototype: Any) -> None:
        self.byte_getter = byte_getter
        self._prototype = prototype

    async def get_whole(self) -> Any:
        """See `OnLoop`."""
        return self.byte_getter.get_sync(prototype=self._prototype)

    async def get_range(self, start: int, end: int) -> Any:
        """See `OnLoop`."""
        byte_range = RangeByteRequest(start, end)
        return self.byte_getter.get_sync(prototype=self._prototype, byte_range=byte_range)

    async def run(self, read: Callable[[IsWanted], T], *, in_thread: bool) -> T:  # noqa: ARG002
        """See `OnLoop`."""
        return read(lambda: True)

    async def get_all(self, ranges: Ranges, get: Get, *, first_alone: bool) -> None:  # noqa: ARG002
        """Get all ranges, one after the other."""
        for request in ranges.requests():
            await get(request)


Getter = OnLoop | Blocking
