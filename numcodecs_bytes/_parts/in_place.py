"""Write parts of uncompressed chunks in local files at their places, and no other byte.

So disjoint writers need not wait for each other, and lose nothing. `write_file` says how, `locks`
what they wait for, and `values` which memory must be copied before. Threads only try to get a lock.
Whoever does not get it waits on the event loop, and tries again.
"""

import asyncio
import functools
import logging
import os
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import zarr.registry
from zarr.core.array_spec import ArraySpec
from zarr.storage import StorePath

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, UInt8Array, leaf_dtypes
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._parts import locks
from numcodecs_bytes._parts.fetch import add_name
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.locks import STEP_BYTES, LockedError, NotInPlace
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.settings import configured_write_in_place
from numcodecs_bytes._parts.stores import Whole, writable_file_finder
from numcodecs_bytes._parts.values import Values
from numcodecs_bytes._parts.write_file import Changes, Costs, Encode, Item, Pace
from numcodecs_bytes._threads import (
    IsWanted,
    is_ending,
    run_in_thread,
    run_while_wanted,
    write_pool,
)
from numcodecs_bytes._zarr_versions import fill_value_or_default

logger = logging.getLogger("numcodecs_bytes")
T = TypeVar("T")
K = TypeVar("K")

COSTS = Costs()
# How long the event loop waits at most before a lock is tried again. Locks of blocks are held for
# less than a millisecond.
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
    layout_of: Callable[[ArraySpec], Layout]
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


async def write_in_place(writes: Writes, files: Mapping[int, str]) -> dict[int, Left]:
    """Write parts of chunks in local files.

    Parameters
    ----------
    writes : Writes
        All that is written.
    files : mapping
        Which of it are parts to write in place, and the files of their chunks.

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
    job = _Job(writes, files)
    await _until_locked({k: writes.items[k][0] for k in files}, job.write)
    return job.left


async def hand_on(
    items: Sequence[Any],
    files: Mapping[int, str | Whole],
    write: Callable[[list[Any]], Awaitable[None]],
) -> None:
    """Let zarr's `write` write the chunks of some files; those that somebody copies, again."""

    async def run(waiting: Mapping[int, Any]) -> dict[int, Any]:
        await write([(path, *items[k][1:]) for k, path in waiting.items()])
        return {k: path for k, path in waiting.items() if getattr(path, "is_copied", False)}

    await _until_locked(
        {
            k: _UncopiedPath(items[k][0], file) if isinstance(file, str) else items[k][0]
            for k, file in files.items()
        },
        run,
    )


class _UncopiedPath(StorePath):
    """Replaces or deletes a chunk unless somebody copies it, who would undo that: `is_copied`."""

    def __init__(self, path: StorePath, file: str) -> None:
        super().__init__(path.store, path.path)
        self._file = file
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
            locks.change_whole(self._file, change)
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

    def __init__(self, writes: Writes, files: Mapping[int, str]) -> None:
        self._writes, self._files, self._costs = writes, files, COSTS
        self.left: dict[int, Left] = {}
        self._values: Values | None = None
        self._chunks: dict[int, _Chunk] = {}  # that were locked

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

    def _chunk(self, k: int, values: Any) -> "_Chunk":
        item = self._writes.items[k]
        layout = self._writes.layout_of(item[1])
        if not layout.item_size:
            raise NotInPlace("its elements have no bytes")
        what = Item(layout, item[2], values, self._writes.encode)
        return _Chunk(item, self._files[k], what, self._costs)


class _Chunk:
    """A part of a chunk that is written: `changes` of its file."""

    def __init__(self, item: Any, path: str, what: Item, costs: Costs) -> None:
        self._byte_setter, self._spec, *_ = item
        self._path, self._what, self._costs = path, what, costs
        self.changes = Changes([what], costs)
        self._in_blocks = self.changes.in_blocks
        self._since = 0.0  # when the lock was refused first

    def change(self, pace: Pace, is_wanted: IsWanted) -> None:
        """Write all of it, or raise LockedError or NotInPlace."""
        if not self.changes.num_pieces:
            return
        write = functools.partial(self._write, pace, is_wanted)
        try:
            how = locks.Change(self._check, write, self._make, is_wanted, self._in_blocks)
            locks.change(self._path, how)
        except LockedError:
            # Who writes piece by piece never waits for others who do, and does without an exclusive
            # lock if that takes less time than to wait for it any longer.
            now = time.monotonic()
            self._since = self._since or now
            if now - self._since > self.changes.num_pieces * self._costs.piece_seconds:
                self._in_blocks = False
            raise

    def _check(self, num_bytes: int) -> None:
        """Raise unless this is the length of the chunk."""
        layout = self._what.layout
        if num_bytes != layout.num_bytes:
            name = name_of_chunk(self._byte_setter)
            check_length(num_bytes, layout.shape, layout.dtype, layout.stored, name)

    def _write(self, pace: Pace, is_wanted: IsWanted, descriptor: int) -> None:
        self.changes.write(descriptor, pace, is_wanted, in_blocks=self._in_blocks)
        self._note()

    def _make(self) -> bool:
        """Make a chunk of fill values, unless somebody else makes it.

        Returns whether it is written: one that is small, or mostly selected, in one go; or one that
        zarr would not store.
        """
        fill_value = fill_value_or_default(self._spec)
        nd_buffer: Any = self._spec.prototype.nd_buffer
        elements = self.changes.parts[0].elements
        if not self._spec.config.write_empty_chunks:
            some = elements[(slice(0, 1),) * elements.ndim]  # most often, this one is different
            if all(nd_buffer.from_numpy_array(e).all_equal(fill_value) for e in (some, elements)):
                return True
        layout = self._what.layout
        num_bytes = self.changes.block_bytes if self._in_blocks else self.changes.num_bytes
        is_whole = layout.num_bytes <= max(self._costs.small_bytes, self._costs.most * num_bytes)
        shape = layout.shape if is_whole else (1,) * len(layout.shape)
        filled: Any = nd_buffer.create(
            shape=shape, dtype=layout.dtype, order="C", fill_value=fill_value
        ).as_numpy_array()
        if is_whole:
            filled[self._what.selection] = elements
            filled = filled.transpose(layout.as_stored)
        raw = as_bytes(self._what.encode(filled, layout.stored))
        is_made = locks.create(self._path, functools.partial(_fill, layout.num_bytes, raw))
        if is_made and is_whole:
            self._note()
        return is_made and is_whole

    def _note(self) -> None:
        if _trace.active:
            counts = {"chunks_in_place": 1, "bytes_in_place": self.changes.num_bytes}
            _trace.note(self._byte_setter, len(self._spec.shape), counts)


def _fill(num_bytes: int, repeated: UInt8Array, descriptor: int) -> None:
    os.ftruncate(descriptor, num_bytes)
    if len(repeated) < num_bytes and not repeated.any():
        return  # the system fills it with zeros
    num = min(STEP_BYTES, num_bytes) // len(repeated)
    block = np.tile(repeated, num).data if num > 1 else repeated.data
    for start in range(0, num_bytes, len(block)):
        locks.write_at(descriptor, block[: num_bytes - start], start)


def check_pipeline() -> None:
    """Say that a chunk is not written in place: it is not written by one of our pipelines.

    Raises
    ------
    RuntimeError
        If `numcodecs_bytes.write_in_place` is "require".
    """
    if not (mode := configured_write_in_place()):
        return
    if mode == "require":
        raise RuntimeError(
            "the option numcodecs_bytes.write_in_place requires a pipeline of numcodecs_bytes, but "
            f"this array was opened with another one; {_remedy()}"
        )
    _warn()


def _remedy() -> str:
    if has_pipeline():
        return "open it again"
    return (
        f"codec_pipeline.path is {zarr.config.get('codec_pipeline.path')}: set it to "
        "numcodecs_bytes.zarr_pipeline.BytesPipeline, and open the array again"
    )


def has_pipeline() -> bool:
    """Whether arrays that are opened now are written by one of our pipelines."""
    return hasattr(zarr.registry.get_pipeline_class(), "_write_in_place")


@functools.cache
def _warn() -> None:
    warnings.warn(
        "numcodecs_bytes.write_in_place is set, but an array that was opened with another pipeline "
        f"than those of numcodecs_bytes is written as by zarr alone; {_remedy()}",
        stacklevel=2,
    )
