"""Write parts of uncompressed chunks in local files at their places, and no other byte.

So disjoint writers need not wait for each other, and lose nothing. `write_object` says what belongs
where in a file, `write_file` how it is written, `locks` what writers wait for, and `values` which
memory must be copied before. Threads only try to get a lock. Whoever does not get it waits on the
event loop, and tries again.
"""

import asyncio
import functools
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from zarr.core.array_spec import ArraySpec
from zarr.storage import StorePath

from numcodecs_bytes._core.copy import encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, leaf_dtypes
from numcodecs_bytes._parts import locks
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.locks import LockedError, NotInPlace
from numcodecs_bytes._parts.names import add_name, name_of_chunk
from numcodecs_bytes._parts.shards import Shard
from numcodecs_bytes._parts.stores import Whole, writable_file_finder
from numcodecs_bytes._parts.values import Values
from numcodecs_bytes._parts.write_file import Encode, Pace, WriteCosts
from numcodecs_bytes._parts.write_object import ChunkWrite, ShardWrite
from numcodecs_bytes._threads import (
    IsWanted,
    is_ending,
    run_in_thread,
    run_while_wanted,
    write_pool,
)

logger = logging.getLogger("numcodecs_bytes")
T = TypeVar("T")
K = TypeVar("K")

COSTS = WriteCosts()
# How long the event loop waits at most before a lock is tried again. Most are held for less than a
# millisecond, that of a copy as long as it takes.
MAX_WAIT_SECONDS = 0.1
# After which time a log message says what a write is waiting for.
LONG_SECONDS = 5.0
# How long a write waits for a lock while the interpreter ends.
EXIT_SECONDS = 1.0


class Writes(NamedTuple):
    """Values to write to parts of chunks.

    Attributes
    ----------
    items : sequence of tuple
        What zarr passes to the `write` of its pipelines: byte setter, specification of the chunk,
        selection of it, selection of `value`, and whether that is all of the chunk.
    value : object
        The values, in whatever zarr takes as an array.
    drop_axes : tuple of int
        Axes of length 1 of the selections that are missing in `value`.
    layout_of : callable
        Takes the specification of a chunk and returns how it is stored.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    """

    items: Sequence[Any]
    value: Any
    drop_axes: tuple[int, ...]
    layout_of: Callable[[ArraySpec], Layout | Shard]
    encode: Encode


class Left(NamedTuple):
    """What is left to zarr.

    Attributes
    ----------
    why : str
        Why.
    values : object
        What to write, in the shape of the selection of the chunk; None means that of `Writes`.
    """

    why: str
    values: Any = None


def encode_unchecked(elements: Array, stored: AnyDType) -> Array:
    """Return elements as stored, like `encode_array`; but bools are what they are in memory."""
    if any(leaf.kind == "b" for leaf in leaf_dtypes(elements.dtype)):
        return np.ascontiguousarray(elements.astype(stored, copy=False))
    return encode_array(elements, stored)


def files_of(items: Sequence[Any]) -> list[str | Whole]:
    """Return the files of chunks, or why they can't be written in place."""
    find = writable_file_finder()
    return [find(byte_setter) for byte_setter, *_ in items]


async def write_to_files(
    writes: Writes, files: Mapping[int, str], costs: WriteCosts = COSTS
) -> dict[int, Left]:
    """Write parts of chunks in local files.

    Parameters
    ----------
    writes : Writes
        All that is written.
    files : mapping
        Which of it are parts to write in place, and the files of their chunks.
    costs : WriteCosts
        What takes time.

    Returns
    -------
    dict
        Which of these are left to zarr.

    Raises
    ------
    ValueError
        If a chunk has the wrong length. It is not changed.
    OSError
        If a chunk can't be written. Some of the selected bytes may be.
    """
    job = _Job(writes, files, costs)
    await _until_locked({k: writes.items[k][0] for k in files}, job.write)
    return job.left


async def hand_on(
    items: Sequence[Any],
    files: Mapping[int, str | Whole],
    write: Callable[[list[Any]], Awaitable[None]],
    *,
    are_shards: bool,
) -> None:
    """Let zarr's `write` write the chunks of some files; those that somebody copies, again."""

    async def run(waiting: Mapping[int, Any]) -> dict[int, Any]:
        await write([(path, *items[k][1:]) for k, path in waiting.items()])
        return {k: path for k, path in waiting.items() if getattr(path, "is_copied", False)}

    await _until_locked(
        {
            k: _UncopiedPath(items[k][0], file, is_shard=are_shards)
            if isinstance(file, str)
            else items[k][0]
            for k, file in files.items()
        },
        run,
    )


class _UncopiedPath(StorePath):
    """Replaces or deletes a chunk unless somebody copies it, who would undo that: `is_copied`."""

    def __init__(self, path: StorePath, file: str, *, is_shard: bool) -> None:
        super().__init__(path.store, path.path)
        self._file, self._is_shard = file, is_shard
        self.is_copied = False

    async def set(self, value: Any) -> None:
        await run_in_thread(write_pool(), functools.partial(self.set_sync, value))

    async def delete(self) -> None:
        await run_in_thread(write_pool(), self.delete_sync)

    def set_sync(self, value: Any) -> None:
        store: Any = self.store
        self._change(functools.partial(store.set_sync, self.path, value))

    def delete_sync(self) -> None:
        store: Any = self.store
        self._change(functools.partial(store.delete_sync, self.path))

    def _change(self, change: Callable[[], None]) -> None:
        self.is_copied = False
        try:
            locks.change_whole(self._file, change, may_be_copied=self._is_shard)
        except LockedError:
            self.is_copied = True


async def _until_locked(
    waiting: Mapping[K, Any], run: Callable[[Mapping[K, Any]], Awaitable[Mapping[K, Any]]]
) -> None:
    """Write to chunks, given by their byte setters, until none is locked by somebody else.

    `run` takes such chunks, and returns those that somebody else has locked.
    """
    seconds, since, ending_since = locks.LAST_WAIT_SECONDS, time.monotonic(), 0.0
    told = set[K]()
    while waiting := await run(waiting) if waiting else {}:
        now = time.monotonic()
        for k in waiting.keys() - told if now - since > LONG_SECONDS else ():
            told.add(k)
            logger.warning(
                "waiting for a lock on %s: another thread or process has locked its file",
                name_of_chunk(waiting[k]),
            )
        if is_ending():
            ending_since = ending_since or now
            if now - ending_since > EXIT_SECONDS:
                name = name_of_chunk(next(iter(waiting.values())))
                raise InterruptedError(f"the program ended while a write waited to lock {name}")
        seconds = min(2 * seconds, MAX_WAIT_SECONDS)
        await asyncio.sleep(seconds)


class _Job:
    """What the writes of several chunks have in common; `left` is what is left to zarr."""

    def __init__(self, writes: Writes, files: Mapping[int, str], costs: WriteCosts) -> None:
        self._writes, self._files, self._costs = writes, files, costs
        self.left: dict[int, Left] = {}
        self._stored: dict[Any, Layout | Shard] = {}
        self._values: Values | None = None
        self._chunks: dict[int, ChunkWrite] = {}  # that were locked

    async def write(self, waiting: Mapping[int, Any]) -> dict[int, Any]:
        """Write chunks; return those that somebody else has locked."""
        todo, locked = deque(waiting), list[int]()
        # Not the pool of reads, which need not wait for writes.
        in_thread = functools.partial(run_while_wanted, write_pool())
        num = await in_thread(functools.partial(self._run, todo, locked, may_stop=True))
        runs = [functools.partial(self._run, todo, locked) for _ in range(min(num, len(todo)))]
        for found in await asyncio.gather(*map(in_thread, runs), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
        return {k: waiting[k] for k in locked}

    def _run(
        self, todo: deque[int], locked: list[int], is_wanted: IsWanted, *, may_stop: bool = False
    ) -> int:
        """Write chunks; return how many threads are worth their while for those that are left."""
        if self._values is None:
            self._values = Values(*self._writes[:3])
            try:
                if self._values.may_be_mapped(todo[0]) and any(
                    map(os.path.lexists, self._files.values())
                ):
                    self._values.copy(self._files, self._costs.memory_bytes)
            except OSError as error:
                why = f"the values, which may be its memory, can't be copied ({error})"
                self.left.update(dict.fromkeys(todo, Left(why)))
                return 0
        costs, pace = self._costs, Pace(self._costs)
        while todo:
            start = time.perf_counter()
            try:
                k = todo.popleft()
            except IndexError:  # another thread has taken it
                break
            num_bytes = self._write(k, locked, pace, is_wanted)
            seconds = time.perf_counter() - start
            # What else takes an index may not be read by several threads.
            if may_stop and isinstance(self._writes.value, np.ndarray):
                if seconds > costs.slow_seconds + num_bytes / costs.bytes_per_second:
                    return costs.slow_workers
                if num_bytes > costs.parallel_bytes:
                    return os.cpu_count() or 1
        return 0

    def _write(self, k: int, locked: list[int], pace: Pace, is_wanted: IsWanted) -> int:
        """Write a chunk, unless it is locked or left to zarr; return how many bytes of it."""
        values: Any = self._values
        try:
            chunk = self._chunks.pop(k, None) or self._chunk(k, values.of(k))
            chunk.change(pace, is_wanted)
        except LockedError:
            self._chunks[k] = chunk
            locked.append(k)
        except NotInPlace as why:
            self.left[k] = Left(str(why), values.copies.get(k))
        except Exception as error:
            add_name(error, self._writes.items[k][0], "writing")
            raise
        else:
            return chunk.changes.num_bytes
        return 0

    def _chunk(self, k: int, values: Any) -> ChunkWrite:
        item = self._writes.items[k]
        shape = item[1].shape  # of the chunks of an array, nothing else differs
        if shape not in self._stored:
            self._stored[shape] = self._writes.layout_of(item[1])
        stored = self._stored[shape]
        more = values, self._writes.encode, self._costs
        if isinstance(stored, Shard):
            return ShardWrite(item, self._files[k], stored, *more)
        return ChunkWrite(item, self._files[k], stored, *more)
