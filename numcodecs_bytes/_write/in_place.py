"""Writes parts of chunks in local files in place.

Only runs are written, or hulls around them. So writers of disjoint selections lose nothing, and
writers of runs need not wait for each other. `write_file` says how a chunk is written, `chunk_file`
and `shard_file` what belongs where in a file, and `locks` what writers wait for. Threads only try
to get a lock; writes that got none wait on the event loop.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from numcodecs_bytes._runtime.threads import IsWanted
from numcodecs_bytes._runtime.workers import num_threads_for
from numcodecs_bytes._write.chunk_file import ChunkFile, InPlaceBatch
from numcodecs_bytes._write.chunk_write import ChunkWrite, write_each
from numcodecs_bytes._write.shard_file import ShardFile
from numcodecs_bytes._zarr_api.names import add_name, name_of_chunk

# A write that waits for a lock tries again after one sixteenth of the time it has waited, within
# these limits. A try takes 0.2 ms. With a quarter of the time, some of eight writers of strides got
# no lock for a second.
NUM_WAITS = 16
FIRST_WAIT_SECONDS = 2e-4
MAX_WAIT_SECONDS = 0.1

# How long a write waits before a log message says what it waits for, and how long it waits while
# the program ends.
LONG_SECONDS = 5.0
EXIT_SECONDS = 1.0

_AnyFile = ChunkFile | ShardFile

logger = logging.getLogger("numcodecs_bytes")


async def write_in_place(
    chunks: Sequence[ChunkWrite], batch: InPlaceBatch, num_threads: int | None
) -> None:
    """Write to parts of chunks, and record the outcome of each.

    If they must be written in place, whatever the values raise is raised.
    """
    waiting: list[_AnyFile] = [
        ChunkFile(chunk, batch) if chunk.shard is None else ShardFile(chunk, chunk.shard, batch)
        for chunk in chunks
    ]
    begun, has_warned = time.monotonic(), False
    while True:
        waiting, has_thread = await _try_all(batch, waiting, num_threads)
        if not waiting:
            return
        seconds = time.monotonic() - begun
        name = name_of_chunk(waiting[0].chunk.request.byte_getter)
        if seconds > LONG_SECONDS and not has_warned:
            has_warned = True
            logger.warning(
                "waiting for a lock on %s: another thread or process has locked its file", name
            )
        if seconds > EXIT_SECONDS and not has_thread:
            raise InterruptedError(f"the program ended while a write waited to lock {name}")
        pause = max(seconds / NUM_WAITS, FIRST_WAIT_SECONDS)
        await asyncio.sleep(min(pause, MAX_WAIT_SECONDS))


async def _try_all(
    batch: InPlaceBatch, waiting: Sequence[_AnyFile], num_threads: int | None
) -> tuple[list[_AnyFile], bool]:
    """Try all writes; return those whose files are locked, and whether a thread was to be had."""
    locked: list[_AnyFile] = []

    def attempt(file: _AnyFile, is_wanted: IsWanted) -> None:
        try:
            if not file.attempt(is_wanted):
                locked.append(file)
        except Exception as error:  # any error is only given a note
            add_name(error, file.chunk.request.byte_getter, "writing")
            raise

    num = num_threads_for(batch.values.nbytes, len(waiting))
    return locked, await write_each(waiting, attempt, num_threads=num_threads, num_default=num)
