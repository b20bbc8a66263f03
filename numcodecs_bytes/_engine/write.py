"""Writes selections of uncompressed chunks in local files in place: runs, or hulls around them.

So writers of disjoint selections lose nothing, and writers of runs need not wait for each other.
`write_file` says how a chunk is written, `write_chunk` and `write_shard` what belongs where in a
file, `locks` what writers wait for. Threads only try to get a lock; writes that got none wait on
the event loop.
"""

import asyncio
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._engine import constants, locks, unexpected
from numcodecs_bytes._engine.chunks import ChunkWrite, Outcome, leave
from numcodecs_bytes._engine.files import join
from numcodecs_bytes._engine.latency import Latency
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.locks import LockedError
from numcodecs_bytes._engine.output import may_be_mapped
from numcodecs_bytes._engine.shards import AnyLayout, ShardLayout
from numcodecs_bytes._engine.stores import name_of_class
from numcodecs_bytes._engine.workers import Workers
from numcodecs_bytes._engine.write_chunk import ChunkFile
from numcodecs_bytes._engine.write_file import ValuesError
from numcodecs_bytes._engine.write_shard import ShardFile
from numcodecs_bytes._names import add_name, name_of_chunk
from numcodecs_bytes._threads import (
    IsWanted,
    is_ending,
    run_in_thread,
    write_pool,
)

logger = logging.getLogger("numcodecs_bytes")


def find_path(setter: object) -> str:
    """Return the path of a chunk's file; raise `LeftToZarr` if zarr has to write it."""
    if locks.fcntl is None:  # on Windows, where zarr also tries again to replace a file
        raise LeftToZarr("this system has no flock")
    if type(setter) is not StorePath:
        raise LeftToZarr(f"{name_of_class(setter)} is not a StorePath")
    store: Any = setter.store
    if type(store) is not LocalStore:
        raise LeftToZarr(f"{name_of_class(store)} is not zarr's LocalStore")
    if type(store.root) is not type(Path()):  # a UPath may be a path on a server
        raise LeftToZarr(f"{name_of_class(store.root)} is not Python's own class of paths")
    if store.read_only:
        raise LeftToZarr("the store is read-only")
    return join(str(store.root), setter.path)


def is_converted(layout: AnyLayout | None) -> bool:
    """Whether codecs convert the elements of a chunk, or of the inner chunks of a shard."""
    inner = layout.inner if isinstance(layout, ShardLayout) else layout
    return inner is not None and inner.conversion is not None


async def with_own_memory(values: Any) -> Any:
    """Return values that no write to a file changes: copied if need be, unless too large.

    Raises ValuesError if they can't be copied.
    """
    if not may_be_mapped(values) or _num_bytes(values) > constants.MAPPED_COPY_BYTES:
        return values
    try:
        # Not np.array: it trusts the `__array__` of others, which may ignore `copy`.
        return await run_in_thread(write_pool(), lambda: np.asanyarray(values).copy())
    except Exception as error:
        raise ValuesError(error) from error


def _num_bytes(values: Any) -> int:
    return int(math.prod(values.shape) * values.dtype.itemsize)


async def write(
    chunks: Sequence[ChunkWrite], values: Any, drop_axes: tuple[int, ...], *, is_required: bool
) -> None:
    """Write values to selections of chunks, or leave chunks to zarr; note what became of each."""
    latency = Latency()
    waiting = [
        _Write(chunk, values, drop_axes, latency, is_required=is_required) for chunk in chunks
    ]
    begun, has_warned = time.monotonic(), False
    while waiting := await _try_all(waiting, values, latency):
        seconds = time.monotonic() - begun
        name = name_of_chunk(waiting[0].chunk.setter)
        if seconds > constants.LONG_SECONDS and not has_warned:
            has_warned = True
            logger.warning(
                "waiting for a lock on %s: another thread or process has locked its file", name
            )
        if seconds > constants.EXIT_SECONDS and is_ending():
            raise InterruptedError(f"the program ended while a write waited to lock {name}")
        pause = max(seconds / constants.NUM_WAITS, constants.FIRST_WAIT_SECONDS)
        await asyncio.sleep(min(pause, constants.MAX_WAIT_SECONDS))


class _Write:
    """A write to part of a chunk, which may have to be tried several times."""

    def __init__(
        self,
        chunk: ChunkWrite,
        values: Any,
        drop_axes: tuple[int, ...],
        latency: Latency,
        *,
        is_required: bool,
    ) -> None:
        self.chunk, self.is_done, self._is_required = chunk, False, is_required
        self._values, self._drop_axes, self._latency = values, drop_axes, latency
        self._file: ChunkFile | None = None  # kept, because it may be locked by another writer

    def try_once(self, is_wanted: IsWanted) -> None:
        """Write, or leave the chunk to zarr; not done if another writer has locked the file."""
        try:
            self._file = self._file or self._plan()
            self._file.write(is_wanted)
            self.chunk.outcome = Outcome("written in place")
        except LockedError:
            return
        except LeftToZarr as why:
            if self._is_required and isinstance(why, ValuesError):
                add_name(why.error, self.chunk.setter, "writing")
                raise why.error from None
            leave([self.chunk], why)
        except Exception as error:
            has_begun = self._file is not None and self._file.has_begun
            if has_begun or self._is_required or not unexpected.is_unexpected(error):
                add_name(error, self.chunk.setter, "writing")
                raise
            unexpected.log(error)
            leave([self.chunk], LeftToZarr(f"unexpected {type(error).__name__}: {error}"))
        self.is_done = True

    def _plan(self) -> ChunkFile:
        chunk, values = self.chunk, self._values
        kind = ChunkFile if isinstance(chunk.layout, Layout) else ShardFile
        return kind(chunk, values, self._drop_axes, may_be_mapped(values), self._latency)


async def _try_all(writes: Sequence[_Write], values: Any, latency: Latency) -> list[_Write]:
    """Try all writes; return those to be tried again.

    One thread per core writes if they are large, and more if files are slow.
    """
    is_array = isinstance(values, np.ndarray)  # other arrays are read by one thread
    is_parallel = is_array and _num_bytes(values) > constants.PARALLEL_BYTES * len(writes)

    def begin(is_wanted: IsWanted) -> Callable[[_Write], None]:
        return functools.partial(_Write.try_once, is_wanted=is_wanted)

    await Workers(
        writes,
        begin,
        latency,
        num_threads=None if is_array else 1,
        num_default=os.cpu_count() or 1 if is_parallel else 1,
        stops_at_exit=False,  # a write that has begun is finished
    ).run(write_pool())
    return [each for each in writes if not each.is_done]
