"""Writes selections of uncompressed chunks in local files in place, and no other bytes.

So writers of disjoint selections need not wait for each other, and lose nothing. `write_file` says
how a chunk is written, `write_chunk` and `write_shard` what belongs where in a file, `locks` what
writers wait for. Threads only try to get a lock; writes that got none wait on the event loop.
"""

import asyncio
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from zarr.core.array_spec import ArraySpec
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._engine import constants, locks
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.locks import LockedError, NotInPlace
from numcodecs_bytes._engine.output import may_be_mapped
from numcodecs_bytes._engine.stores import Whole, name_of_class
from numcodecs_bytes._engine.write_chunk import ChunkFile
from numcodecs_bytes._engine.write_shard import ShardFile
from numcodecs_bytes._names import add_name, name_of_chunk
from numcodecs_bytes._threads import (
    IsWanted,
    is_ending,
    run_in_thread,
    run_while_wanted,
    write_pool,
)

logger = logging.getLogger("numcodecs_bytes")


def writable_path(byte_setter: Any) -> str | Whole:
    """Return the path of a chunk's file, or why it is not written in place."""
    if locks.fcntl is None:
        return Whole("this system has no flock")
    if type(byte_setter) is not StorePath:
        return Whole(f"{name_of_class(byte_setter)} is not a StorePath")
    store: Any = byte_setter.store
    if type(store) is not LocalStore:
        return Whole(f"{name_of_class(store)} is not zarr's LocalStore")
    if store.read_only:
        return Whole("the store is read-only")
    return f"{store.root}/{byte_setter.path}"


async def with_own_memory(values: Any) -> Any:
    """Return values that no write to a file changes: copied if need be, unless too large."""
    if not may_be_mapped(values) or _num_bytes(values) > constants.COPIED_BYTES:
        return values
    return await run_in_thread(write_pool(), lambda: np.asarray(values).copy())


def _num_bytes(values: Any) -> int:
    return int(math.prod(values.shape) * values.dtype.itemsize)


class Writes:
    """Writes values to parts of chunks, each with a `ChunkFile`."""

    def __init__(
        self,
        items: Sequence[Any],
        values: Any,
        drop_axes: tuple[int, ...],
        stored_as: Callable[[ArraySpec], Any],
    ) -> None:
        self._items, self._values, self._drop_axes = items, values, drop_axes
        self._stored_as, self._is_mapped = stored_as, may_be_mapped(values)
        self._locked: dict[int, ChunkFile] = {}  # those whose files another writer has locked
        self._left: dict[int, str] = {}

    async def write(self, files: Mapping[int, str]) -> dict[int, str]:
        """Write the items whose files are given; return which are left to zarr, and why."""
        begun, is_told = time.monotonic(), False
        await self._write_all(files)
        while self._locked:
            seconds = time.monotonic() - begun
            name = name_of_chunk(self._items[next(iter(self._locked))][0])
            if seconds > constants.LONG_SECONDS and not is_told:
                is_told = True
                logger.warning(
                    "waiting for a lock on %s: another thread or process has locked its file", name
                )
            if seconds > constants.EXIT_SECONDS and is_ending():
                raise InterruptedError(f"the program ended while a write waited to lock {name}")
            pause = max(seconds / constants.NUM_WAITS, constants.FIRST_WAIT_SECONDS)
            await asyncio.sleep(min(pause, constants.MAX_WAIT_SECONDS))
            await self._write_all({k: files[k] for k in self._locked})
        return self._left

    async def _write_all(self, files: Mapping[int, str]) -> None:
        """Write items, in one thread per core if they are large."""
        ks, num = list(files), 1
        is_array = isinstance(self._values, np.ndarray)  # other arrays are read by one thread
        if is_array and _num_bytes(self._values) > constants.PARALLEL_BYTES * len(ks):
            num = min(os.cpu_count() or 1, len(ks))
        shares = [functools.partial(self._run, files, ks[first::num]) for first in range(num)]
        running = [run_while_wanted(write_pool(), share) for share in shares]
        for error in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    def _run(self, files: Mapping[int, str], ks: Sequence[int], is_wanted: IsWanted) -> None:
        """Write one item after the other."""
        for k in ks:
            if not is_wanted():
                return
            try:
                chunk = self._locked.pop(k, None) or self._chunk(k, files[k])
                chunk.write(is_wanted)
            except LockedError:
                self._locked[k] = chunk
            except NotInPlace as why:
                self._left[k] = str(why)
            except Exception as error:
                add_name(error, self._items[k][0], "writing")
                raise

    def _chunk(self, k: int, path: str) -> ChunkFile:
        item = self._items[k]
        _, spec, selection, place, *_ = item
        stored = self._stored_as(spec)
        is_single = selection == () or self._values.shape == ()
        values = self._values if is_single else self._values[place]
        kind = ChunkFile if isinstance(stored, Layout) else ShardFile
        return kind(item, path, stored, values, self._drop_axes, self._is_mapped)
