"""Decides how chunks are written, and writes parts of those in local files in place.

Only runs are written, or hulls around them. So writers of disjoint selections lose nothing, and
writers of runs need not wait for each other. `write_file` says how a chunk is written, `chunk_file`
and `shard_file` what belongs where in a file, and `locks` what writers wait for. Threads only try
to get a lock; writes that got none wait on the event loop.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._host import trace
from numcodecs_bytes._host.names import add_name, name_of_chunk
from numcodecs_bytes._host.options import set_by
from numcodecs_bytes._host.threads import run_in_thread, write_pool
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.shards import ShardLayout
from numcodecs_bytes._read.chunks import LayoutOf, ZarrItem, first_of, has_whole_chunks
from numcodecs_bytes._read.latency import Latency
from numcodecs_bytes._read.output import may_be_mapped
from numcodecs_bytes._read.workers import Workers, num_threads_for
from numcodecs_bytes._sources.files import join
from numcodecs_bytes._sources.stores import name_of_class
from numcodecs_bytes._write import locks
from numcodecs_bytes._write.chunk_file import ChunkFile
from numcodecs_bytes._write.chunks import ChunkWrite
from numcodecs_bytes._write.shard_file import ShardFile
from numcodecs_bytes._write.whole import are_plain
from numcodecs_bytes._write.write_file import ValuesError

# Values that may be mapped from a file are copied, up to this size, before parts of chunks are
# written in place: that takes 20 ms. If they are larger, zarr writes those chunks.
MAPPED_COPY_BYTES = 1 << 26

# A write that waits for a lock tries again after one sixteenth of the time it has waited, within
# these limits. A try takes 0.2 ms. With a quarter of the time, some of eight writers of strides got
# no lock for a second.
NUM_WAITS, FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 16, 2e-4, 0.1

# How long a write waits before a log message says what it waits for, and how long it waits while
# the program ends.
LONG_SECONDS, EXIT_SECONDS = 5.0, 1.0

logger = logging.getLogger("numcodecs_bytes")


class Writes(NamedTuple):
    """How the chunks of a batch are written."""

    whole: list[ChunkWrite]
    in_place: list[ChunkWrite]
    left: list[ChunkWrite]  # to zarr


def plan_writes(
    items: Sequence[ZarrItem], layout_of: LayoutOf, value: Any, *, may_write_parts: bool
) -> Writes | None:
    """Return how chunks are written, given what zarr passes; None if zarr writes all of them."""
    may_write_whole = has_whole_chunks(items) and _can_write_whole(items, layout_of, value)
    if not (may_write_parts or may_write_whole or trace.active):
        return None
    writes, values = Writes([], [], []), value.as_ndarray_like()
    is_too_large = may_be_mapped(values) and _is_large(values)
    for item in items:
        chunk = ChunkWrite(item, *item[:5])
        if chunk.is_complete and not may_write_whole:
            writes.left.append(chunk)
            continue
        try:
            chunk.layout = layout_of(chunk.spec)
            chunk.path = _find_path(chunk.setter)
            if not chunk.is_complete:
                _check_in_place(chunk, is_too_large=is_too_large, is_on=may_write_parts)
        except LeftToZarr as why:
            leave([chunk], why)
            writes.left.append(chunk)
        else:
            (writes.whole if chunk.is_complete else writes.in_place).append(chunk)
    return writes


def _can_write_whole(items: Sequence[ZarrItem], layout_of: LayoutOf, value: object) -> bool:
    """Whether chunks that are selected as a whole can be written here."""
    setter, spec = first_of(items)  # all are of one array
    try:
        _find_path(setter)
        return are_plain(value, layout_of(spec))
    except LeftToZarr:
        return False


def _find_path(setter: object) -> str:
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


def _check_in_place(chunk: ChunkWrite, *, is_too_large: bool, is_on: bool) -> None:
    """Raise `LeftToZarr` unless part of a chunk can be written in place."""
    layout: Any = chunk.layout
    inner = layout.inner if isinstance(layout, ShardLayout) else layout
    if inner.conversion is not None:
        raise LeftToZarr("codecs convert its elements")
    if is_too_large:
        most = f"{MAPPED_COPY_BYTES >> 20} MiB"
        raise LeftToZarr(f"the values take more than {most}, and may be mapped from a file")
    if not is_on:  # last: setting it to True helps
        raise LeftToZarr(
            "numcodecs_bytes.write_in_place is off; set it to True in zarr's config to switch it on"
        )


def check_required(chunks: Sequence[ChunkWrite]) -> None:
    """Raise RuntimeError if a write to part of a chunk was left to zarr, but must be in place."""
    for chunk in chunks:
        if not chunk.is_complete:
            key, why = "numcodecs_bytes.write_in_place", chunk.outcome.why
            remedy = "create the array with compressors=None, or " if "compressed" in why else ""
            raise RuntimeError(
                f"part of {name_of_chunk(chunk.setter)} can't be written in place, but {key} is "
                f"'require'{set_by(key)}: {why}; {remedy}set it to True to let zarr rewrite the "
                "chunk"
            )


def _is_large(values: Any) -> bool:
    """Whether values are too large to be copied; if they tell no size, copying raises an error."""
    try:
        return bool(math.prod(values.shape) * values.dtype.itemsize > MAPPED_COPY_BYTES)
    except (AttributeError, TypeError):
        return False


async def with_own_memory(values: Any) -> Any:
    """Return values that no write to a file changes, copied if they may be mapped from one.

    Raises ValuesError if they can't be copied.
    """
    if not may_be_mapped(values):
        return values
    try:
        # Not np.array: it trusts the `__array__` of others, which may ignore `copy`.
        return await run_in_thread(write_pool(), lambda: np.asanyarray(values).copy())
    except Exception as error:
        raise ValuesError(error) from error


async def write_parts(
    chunks: Sequence[ChunkWrite],
    values: Array,
    drop_axes: tuple[int, ...],
    num_threads: int | None,
    *,
    is_required: bool,
) -> list[ChunkWrite]:
    """Write values, which have their own memory, to parts of chunks; return what is left to zarr.

    Notes what became of each. If it must be written in place, whatever the values raise is raised.
    """
    latency = Latency()
    waiting = []
    for chunk in chunks:
        kind = ShardFile if isinstance(chunk.layout, ShardLayout) else ChunkFile
        waiting.append(kind(chunk, values, drop_axes, latency, is_required))
    begun, has_warned = time.monotonic(), False
    while True:
        waiting, has_thread = await _try_all(waiting, num_threads)
        if not waiting:
            break
        seconds = time.monotonic() - begun
        name = name_of_chunk(waiting[0].chunk.setter)
        if seconds > LONG_SECONDS and not has_warned:
            has_warned = True
            logger.warning(
                "waiting for a lock on %s: another thread or process has locked its file", name
            )
        if seconds > EXIT_SECONDS and not has_thread:
            raise InterruptedError(f"the program ended while a write waited to lock {name}")
        pause = max(seconds / NUM_WAITS, FIRST_WAIT_SECONDS)
        await asyncio.sleep(min(pause, MAX_WAIT_SECONDS))
    return [chunk for chunk in chunks if chunk.outcome.is_left]


async def _try_all(
    waiting: Sequence[ChunkFile], num_threads: int | None
) -> tuple[list[ChunkFile], bool]:
    """Try all writes; return those whose files are locked, and whether a thread was to be had.

    One thread per core writes if they are large, and more if files are slow.
    """
    locked = list[ChunkFile]()

    def work(workers: Workers[ChunkFile], some: Iterator[ChunkFile]) -> None:
        for file in some:
            try:
                if file.attempt(workers.is_wanted) == "locked":
                    locked.append(file)
            except Exception as error:
                add_name(error, file.chunk.setter, "writing")
                raise
            if file.latency.seconds:
                workers.start_helpers(wait_for_files=True)

    num_default = num_threads_for(waiting[0].values.nbytes, len(waiting))
    workers = Workers(waiting, work, num_threads=num_threads, num_default=num_default)
    return locked, await workers.run(write_pool())
