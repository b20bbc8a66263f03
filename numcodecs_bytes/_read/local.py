"""Reads the selections of chunks, and of shards, in local files into the output of a batch.

A thread takes one file after the other: it opens the file, reads the chunks in it in the order of
their offsets, and closes it. Other threads help if chunks are large, or their files slow.
"""

import asyncio
import collections
import itertools
import operator
import os
import time
from collections.abc import Hashable, Iterator, Sequence

from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.outcome import FetchCounts, LeftToZarr, leave_to_zarr
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.file_batch import FileBatch, InFile
from numcodecs_bytes._read.file_speed import PROBE_EVERY, FileSpeed
from numcodecs_bytes._read.in_file import read_chunk
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._runtime.threads import (
    MAX_FILE_THREADS,
    IsWanted,
    file_pool,
    run_while_wanted,
)
from numcodecs_bytes._runtime.workers import CallerWorkers, PoolWorkers, num_threads_for
from numcodecs_bytes._sources.shard_index import cached_indices
from numcodecs_bytes._zarr_api.names import add_name
from numcodecs_bytes._zarr_api.versions import concurrency


async def read(
    chunks: Sequence[ChunkRead], out: Output, max_gap: int | None, num_threads: int | None
) -> None:
    """Read the selections of chunks in local files, and note what became of each.

    The largest gap to read, in bytes, and the number of threads are None if the user has set none.
    Raises ValueError if a file has the wrong length.
    """
    outputs: list[Output] = []
    # Of several chunks, the first one is probed.
    batch = FileBatch(FileSpeed(max_gap, 0 if len(chunks) > 1 else PROBE_EVERY))

    def read_alone(is_wanted: IsWanted) -> None:
        outputs.append(out.for_thread(is_wanted))
        chunks[0].share_plan()
        read_file(iter(chunks), outputs[-1], batch)

    try:
        if len(chunks) == 1:
            await run_while_wanted(file_pool(), read_alone)
        else:
            await _read_together(chunks, out, outputs, batch, num_threads)
    finally:
        # If the read was cancelled, a thread may be changing the output; it checks before the next.
        for each in outputs:
            with each.lock:
                pass


async def _read_together(
    chunks: Sequence[ChunkRead],
    out: Output,
    outputs: list[Output],
    batch: FileBatch,
    num_threads: int | None,
) -> None:
    """Read several chunks, by as many threads as help."""

    def work(workers: "PoolWorkers[InFile]", groups: "Iterator[InFile]") -> None:
        of_thread = out.for_thread(workers.is_wanted)
        outputs.append(of_thread)
        # What a thread takes next is often in the same file, which stays open.
        for _, in_file in itertools.groupby(groups, operator.itemgetter(0)):
            read_file((chunk for _, group in in_file for chunk in group), of_thread, batch)

    workers = PoolWorkers(
        list(_grouped_by_file(chunks, num_threads or concurrency() or MAX_FILE_THREADS)),
        work,
        num_threads=num_threads,
        num_default=num_threads_for(out.array.nbytes, len(chunks)),
        begins_alone=True,
    )
    # If it takes long to open the first file, the others need not wait until it is open.
    timer = asyncio.get_running_loop().call_later(
        constants.CERTAIN_WAIT_SECONDS, batch.add_threads_if_opening
    )
    try:
        batch.workers = workers
        await run_while_wanted(file_pool(), workers.run)
    finally:
        timer.cancel()
        batch.workers = None  # workers refer to the output


def read_here(
    chunks: Sequence[ChunkRead], out: Output, max_gap: int | None, num_threads: int | None
) -> None:
    """Read chunks of different files in the calling thread; others help if they open slowly.

    Stops at a chunk that is left to zarr, as are slow files. `num_threads` is the number of
    threads, if the user has set it: where it is one, no other thread helps.
    """
    batch = FileBatch(FileSpeed(max_gap), leaves_slow_files=True, read_index=cached_indices.read)

    def work(_workers: object, taken: "Iterator[ChunkRead]") -> None:
        for chunk in taken:
            chunk.share_plan()
            read_file(iter([chunk]), out, batch)
            if chunk.outcome.is_left:
                return

    if num_threads == 1:
        work(None, iter(chunks))
        return
    workers = CallerWorkers(chunks, work)
    try:
        batch.workers = workers
        workers.run()
    finally:
        batch.workers = None  # workers refer to the output


def _grouped_by_file(chunks: Sequence[ChunkRead], num_threads: int) -> Iterator[InFile]:
    """Yield chunks in the same file, in the order of their offsets, if these are known.

    If there are few files, they are divided, so that there is something to do for each thread.
    Threads that begin together get different files: from a slow one, they would read the same.
    """
    max_together = -(-len(chunks) // num_threads)
    in_file: dict[Hashable, list[ChunkRead]] = collections.defaultdict(list)
    for chunk in chunks:
        key = chunk.file_extent.key
        in_file[id(chunk) if key is None else key].append(chunk)
    for together in in_file.values():
        if len(together) > 1:
            together.sort(key=lambda chunk: chunk.file_extent.start)
    for first in range(0, max(map(len, in_file.values())), max_together):
        for key, together in in_file.items():
            if group := together[first : first + max_together]:
                yield key, group


def read_file(chunks: Iterator[ChunkRead], out: Output, batch: FileBatch) -> None:
    """Read chunks in the same file, or fill them if it is missing; leave to zarr what fails."""
    first = next(chunks)
    chunks, file, started = itertools.chain([first], chunks), first.file_extent, time.perf_counter()
    opened: list[int] = []
    batch.has_begun = True
    try:
        try:
            # No step of Python is between the system's answer and the list: at one, a
            # KeyboardInterrupt that came meanwhile would lose the descriptor.
            opened.extend(map(operator.call, (file.open,)))
        finally:  # to learn that the file is missing may take as long
            seconds = time.perf_counter() - started
            if batch.workers is not None:
                batch.record_wait(seconds)
    except LeftToZarr as why:
        leave_to_zarr(chunks, why)
    except file.missing_errors as error:
        raise_if_of_caller(error)
        for chunk in chunks:
            chunk.read_as_missing(out, FetchCounts())
    except (OSError, ValueError) as error:  # ValueError: no system has files of such a name
        leave_to_zarr(chunks, error)
    else:
        for chunk in chunks:
            _read_or_leave(chunk, opened[0], out, batch, seconds)
    finally:
        for descriptor in opened:
            try:
                os.close(descriptor)
            except OSError as error:  # all has been read
                raise_if_of_caller(error)


def _read_or_leave(
    chunk: ChunkRead, descriptor: int, out: Output, batch: FileBatch, seconds_to_open: float
) -> None:
    """Read a chunk in an open file; zarr may raise its own error."""
    try:
        read_chunk(chunk, descriptor, out, batch, seconds_to_open)
    except (LeftToZarr, OSError) as why:
        leave_to_zarr([chunk], why)
    except Exception as error:
        add_name(error, chunk.request.byte_getter)
        raise
