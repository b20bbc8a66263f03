"""Reads the selections of chunks, and of shards, in local files into the output of a batch.

A thread takes one chunk after the other: it opens the file, reads, and closes it. Other threads
help if chunks are large, or their files cold.
"""

import contextlib
import operator
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.chunks import Batch, ChunkRead, leave
from numcodecs_bytes._engine.files import File, OpenFile
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.output import Output, memory_of, place_within, view_of, write_selected
from numcodecs_bytes._engine.plan import Place, PlacedPlan, Plan, plan_of, split
from numcodecs_bytes._engine.shards import ShardLayout
from numcodecs_bytes._engine.workers import Workers
from numcodecs_bytes._names import add_name
from numcodecs_bytes._threads import IsWanted, file_pool
from numcodecs_bytes._trace import Fetched
from numcodecs_bytes._zarr_versions import fill_value_or_default

_of_thread = threading.local()


async def read(batch: Batch, chunks: Sequence[ChunkRead]) -> None:
    """Read the selections of chunks in local files, and note what became of each.

    Raises ValueError if a file has the wrong length.
    """
    shared, outputs = _SharedFiles(), list[Output]()

    def begin(is_wanted: IsWanted) -> Callable[[ChunkRead], None]:
        out = batch.out.for_thread(is_wanted)
        outputs.append(out)
        return partial(_read_or_leave, shared=shared, out=out, gap=batch.gap)

    is_parallel = batch.out.array.nbytes >= constants.PARALLEL_BYTES * len(chunks)
    workers = Workers(
        chunks,
        begin,
        num_threads=batch.num_workers,
        num_default=os.cpu_count() or 1 if is_parallel else 1,
        close=shared.close,
    )
    try:
        await workers.run(file_pool())
    finally:
        for out in outputs:  # no thread changes the output any more, if the read was cancelled
            with out.lock:
                pass


def _read_or_leave(chunk: ChunkRead, shared: "_SharedFiles", out: Output, gap: int | None) -> None:
    """Read a chunk; one that can't be read is left to zarr, which may raise its own error."""
    try:
        _read_chunk(chunk, shared, out, gap)
    except LeftToZarr as why:
        leave([chunk], why)
    except OSError as error:
        leave([chunk], LeftToZarr(str(error) or type(error).__name__))
    except Exception as error:
        add_name(error, chunk.getter)
        raise


class _SharedFiles:
    """Files that hold several chunks of a batch, and are opened once for it."""

    def __init__(self) -> None:
        self._descriptors: dict[Any, int] = {}
        self._lock = threading.Lock()

    def open(self, file: File) -> int:
        """Return the descriptor of a file."""
        with self._lock:
            if file.key not in self._descriptors:
                self._descriptors[file.key] = file.open()
            return self._descriptors[file.key]

    def close(self) -> None:
        """Close all of them."""
        while self._descriptors:
            with contextlib.suppress(OSError):  # all has been read
                os.close(self._descriptors.popitem()[1])


def _read_chunk(chunk: ChunkRead, shared: _SharedFiles, out: Output, gap: int | None) -> None:
    """Read what is selected of a chunk, or fill it if it is missing."""
    file = chunk.source
    if not isinstance(file, File):
        raise TypeError(f"not a file: {file!r}")
    try:
        descriptor = file.open() if file.key is None else shared.open(file)
    except LeftToZarr:
        raise
    except file.missing:
        chunk.fill(out)
        return
    try:
        opened = files.locate(file, descriptor)
        if opened is None:
            chunk.fill(out)
        elif isinstance(chunk.layout, ShardLayout):
            chunk.note_present(_read_shard(chunk, chunk.layout, opened, out, gap))
        else:
            chunk.check_length(opened.num_bytes)
            plan = plan_of(chunk.selection, chunk.layout, out.drop_axes, gap)
            chunk.note_present(_read_plan(opened, chunk.layout, plan, out, chunk.place))
    finally:
        if file.key is None:
            os.close(descriptor)


def _read_shard(
    chunk: ChunkRead, shard: ShardLayout, file: OpenFile, out: Output, gap: int | None
) -> Fetched:
    """Read what is selected of the inner chunks of a shard."""
    shard_plan = shard.plan_of(chunk.selection, out.drop_axes, gap)
    raw = files.new_memory(shard.index_bytes)
    files.read_exactly(file.descriptor, file.start + shard.index_start(file.num_bytes), raw)
    index = shard.decode_index(np.asarray(raw))
    present, missing, num_by_zarr = shard_plan.locate(index, file.start, file.num_bytes)
    out, place_of = view_of(out, chunk.place)
    with out.lock:
        out.check()
        for place in missing:
            out.array[place_of(place)] = fill_value_or_default(chunk.spec)
    present.sort(key=operator.attrgetter("start"))
    is_prefetched = len(present) > 1
    if is_prefetched:
        _prefetch(file.descriptor, present)
    num_requests, num_read = 1, shard.index_bytes
    for plan, start, place in present:
        inner = OpenFile(file.descriptor, start, shard.inner.num_bytes, is_prefetched)
        fetched = _read_plan(inner, shard.inner, plan, out, place_of(place))
        num_requests += fetched.num_requests
        num_read += fetched.num_bytes
    return Fetched(num_requests, num_read, num_by_zarr)


def _prefetch(descriptor: int, inner_chunks: list[PlacedPlan]) -> None:
    """Ask the system to prefetch all runs of inner chunks, unless they seem to be in memory."""
    some = inner_chunks[:: max(len(inner_chunks) // constants.NUM_LOOKED_AT, 1)]
    firsts = [int(first) for plan, start, _ in some for first in plan.starts(start)[:1]]
    num_runs = sum([plan.num_runs for plan, *_ in inner_chunks])
    if num_runs >= constants.LOOK_FROM and files.is_cold(descriptor, firsts):
        for plan, start, _ in inner_chunks:
            files.prefetch(descriptor, plan.starts(start).tolist(), plan.length)


def _read_plan(file: OpenFile, layout: Layout, plan: Plan, out: Output, place: Place) -> Fetched:
    """Read a selection of a chunk to its place in the output.

    Reads straight into the output what the system has in memory, if stored elements need no
    conversion and the output is contiguous there; else block by block through memory that stays in
    the CPU cache. Raises `LeftToZarr` if the file ends before the runs of the plan do, and
    CancelledError if the output must not be changed any more.
    """
    if not plan.num_runs or _try_straight(file, layout, plan, out, place):
        return Fetched(plan.num_runs, plan.num_bytes)
    num_requests = num_bytes = 0
    for inner_place, piece in split(plan, layout.item_size):
        is_all = piece is plan
        piece_place = place if is_all else place_within(place, inner_place)
        if is_all or not _try_straight(file, layout, piece, out, piece_place):
            starts = _prefetched_starts(file, piece)
            raw = files.read_runs(file.descriptor, starts, piece.length, _block)
            with out.lock:
                out.check()
                write_selected(raw, piece, layout, out.array, piece_place)
        num_requests += piece.num_runs
        num_bytes += piece.num_bytes
    return Fetched(num_requests, num_bytes)


def _try_straight(file: OpenFile, layout: Layout, plan: Plan, out: Output, place: Place) -> bool:
    """Read straight into the output, if possible; return whether it was."""
    region = memory_of(out.array, place, plan, layout)
    if region is None:
        return False
    starts = _prefetched_starts(file, plan)
    read = _copy_short_runs if plan.length < constants.DIRECT_BYTES else _try_long_runs
    return read(file.descriptor, starts, plan.length, region.data, out)


def _copy_short_runs(
    descriptor: int, starts: Sequence[int], length: int, memory: memoryview, out: Output
) -> bool:
    """Read runs, end to end, to their memory in the output."""
    num_at_once = max(constants.BLOCK_BYTES // length, 1)
    for first in range(0, len(starts), num_at_once):
        some = starts[first : first + num_at_once]
        raw = files.read_runs(descriptor, some, length, _block)
        with out.lock:
            out.check()
            memory[first * length : (first + len(some)) * length] = raw
    return True


def _try_long_runs(
    descriptor: int, starts: Sequence[int], length: int, memory: memoryview, out: Output
) -> bool:
    """Read runs straight into the output; return False if the system can't read without waiting."""
    num_at_once = max(constants.BLOCK_BYTES // length, 1)
    for first in range(0, len(starts), num_at_once):
        cold: list[tuple[int, memoryview]] = []
        with out.lock:
            out.check()
            for number, start in enumerate(starts[first : first + num_at_once], first):
                run = memory[number * length : (number + 1) * length]
                num_bytes = files.read_from_memory(descriptor, start, run)
                if num_bytes is None:  # which the first run shows
                    return False
                if num_bytes < length:
                    cold.append((start + num_bytes, run[num_bytes:]))
        for start, rest in cold:
            _read_run(descriptor, start, rest, out)
    return True


def _read_run(descriptor: int, start: int, run: memoryview, out: Output) -> None:
    """Read the rest of a run, which may be cold, to its place in the output.

    The system itself changes the output only while it does not wait for the file: if that took too
    long, a cancelled caller would have gone on when the bytes arrive.
    """
    while run:
        with out.lock:
            out.check()
            num_bytes = files.read_from_memory(descriptor, start, run)
        if not num_bytes:
            block = _block(min(len(run), constants.BLOCK_BYTES))
            files.read_exactly(descriptor, start, block)
            num_bytes = len(block)
            with out.lock:
                out.check()
                run[:num_bytes] = block
        run, start = run[num_bytes:], start + num_bytes


def _prefetched_starts(file: OpenFile, plan: Plan) -> list[int]:
    """Return the offset of each run of a plan in the file; prefetch them if the file is cold."""
    if not plan.num_outer:
        return [plan.start + file.start]
    starts: list[int] = plan.starts(file.start).tolist()
    is_many = plan.num_runs >= constants.LOOK_FROM and not file.is_prefetched
    if is_many and files.is_cold(file.descriptor, starts):
        files.prefetch(file.descriptor, starts, plan.length)
    return starts


def _block(num_bytes: int) -> memoryview:
    """Return memory, which the next call in the same thread returns again."""
    if num_bytes > constants.BLOCK_BYTES:  # a single element, or axes in another order
        return files.new_memory(num_bytes)
    block: memoryview | None = getattr(_of_thread, "block", None)
    if block is None or len(block) < num_bytes:
        block = _of_thread.block = files.new_memory(constants.BLOCK_BYTES)
    return block[:num_bytes]
