"""Reads the selections of chunks, and of shards, in local files into the output of a batch.

A thread takes one file after the other: it opens the file, reads the chunks in it in the order of
their offsets, and closes it. Other threads help if chunks are large, or their files slow.
"""

import collections
import contextlib
import itertools
import operator
import os
import threading
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from numcodecs_bytes._core.dtypes import UInt64Array
from numcodecs_bytes._host import trace
from numcodecs_bytes._host.names import add_name
from numcodecs_bytes._host.threads import MAX_FILE_THREADS, file_pool
from numcodecs_bytes._host.workers import Workers, num_threads_for
from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import Fetched, LeftToZarr, Outcome, leave
from numcodecs_bytes._plan.places import Place, place_within
from numcodecs_bytes._plan.plan import Plan, plan_of, sample, split
from numcodecs_bytes._plan.shards import InnerChunks, ShardLayout
from numcodecs_bytes._read.chunks import Batch, ChunkRead
from numcodecs_bytes._read.latency import Latency
from numcodecs_bytes._read.output import Output, memory_of, view_of, write_selected
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import File, OpenFile
from numcodecs_bytes._sources.shard_index import index_of

_memory_of_thread = threading.local()
_Group = tuple[Hashable, Sequence[ChunkRead]]  # chunks in the same file, and what identifies it


async def read(batch: Batch, chunks: Sequence[ChunkRead]) -> None:
    """Read the selections of chunks in local files, and note what became of each.

    Raises ValueError if a file has the wrong length.
    """
    outputs = list[Output]()
    latency = Latency(looks_first=len(chunks) > 1)

    def work(workers: "Workers[_Group]", groups: "Iterator[_Group]") -> None:
        out = batch.out.for_thread(workers.is_wanted)
        outputs.append(out)
        reader = _FileReader(out, batch.gap, latency, workers)
        # What a thread takes next is often in the same file, which stays open.
        for _, in_file in itertools.groupby(groups, operator.itemgetter(0)):
            reader.read_file(chunk for _, some in in_file for chunk in some)

    workers = Workers(
        list(_groups(chunks, batch.num_threads or concurrency() or MAX_FILE_THREADS)),
        work,
        num_threads=batch.num_threads,
        num_default=num_threads_for(batch.out.array.nbytes, len(chunks)),
        begins_alone=len(chunks) > 1,
    )
    try:
        await workers.run(file_pool())
    finally:
        # If the read was cancelled, a thread may be changing the output; it checks before the next.
        for out in outputs:
            with out.lock:
                pass


def _groups(chunks: Sequence[ChunkRead], num_threads: int) -> Iterator[_Group]:
    """Yield chunks in the same file, in the order of their offsets, if these are known.

    If there are few files, they are divided, so that there is something to do for each thread.
    Threads that begin together get different files: from a slow one, they would read the same.
    """
    most = -(-len(chunks) // num_threads)
    in_file = collections.defaultdict[Hashable, list[ChunkRead]](list)
    for chunk in chunks:
        key = _file_of(chunk).key
        in_file[id(chunk) if key is None else key].append(chunk)
    for together in in_file.values():
        if len(together) > 1:
            together.sort(key=lambda chunk: _file_of(chunk).start)
    for first in range(0, max(map(len, in_file.values())), most):
        for key, together in in_file.items():
            if some := together[first : first + most]:
                yield key, some


def _file_of(chunk: ChunkRead) -> File:
    """Return where a chunk is."""
    if not isinstance(chunk.source, File):
        raise TypeError(f"not a file: {chunk.source!r}")
    return chunk.source


@dataclass(slots=True)
class _FileReader:
    """What reads chunks in one of the threads of a batch.

    What can't be read is left to zarr, which may raise its own error.
    """

    out: Output
    gap: int | None  # the largest gap to read, in bytes, if the user has set it
    latency: Latency  # of the batch
    workers: Workers[_Group]

    def read_file(self, chunks: Iterator[ChunkRead]) -> None:
        """Read chunks in the same file, or fill them if it is missing."""
        first = next(chunks)
        chunks, file = itertools.chain([first], chunks), _file_of(first)
        try:
            descriptor = self._open(file)
        except LeftToZarr as why:
            leave(chunks, why)
        except file.missing_errors:
            for chunk in chunks:
                chunk.read_as_missing(self.out, Fetched())
        except (OSError, ValueError) as error:  # or no system has files of such a name
            leave(chunks, error)
        else:
            try:
                for chunk in chunks:
                    self._read_or_leave(chunk, descriptor)
            finally:
                with contextlib.suppress(OSError):  # all has been read
                    os.close(descriptor)

    def _open(self, file: File) -> int:
        """Return the descriptor of a file; it may take as long to learn that it is missing."""
        begin = time.perf_counter()
        try:
            return file.open()
        finally:
            if self.latency.note_wait(time.perf_counter() - begin):
                self.workers.start_helpers(wait_for_files=True)

    def _look(self, descriptor: int, positions: Sequence[int]) -> None:
        """Look whether files are slow; then more threads help."""
        have_helpers = self.workers.have_helpers
        is_slow = self.latency.look(descriptor, positions, have_helpers=have_helpers)
        self.workers.start_helpers(wait_for_files=is_slow)

    def _read_or_leave(self, chunk: ChunkRead, descriptor: int) -> None:
        """Read a chunk in an open file."""
        try:
            self._read_chunk(chunk, descriptor)
        except (LeftToZarr, OSError) as why:
            leave([chunk], why)
        except Exception as error:
            add_name(error, chunk.getter)
            raise

    def _read_chunk(self, chunk: ChunkRead, descriptor: int) -> None:
        """Read what is selected of a chunk, or fill it if it is missing."""
        opened = files.locate(_file_of(chunk), descriptor)
        if opened is None:
            chunk.read_as_missing(self.out, Fetched())
            return
        if isinstance(chunk.layout, ShardLayout):
            fetched = self._read_shard(chunk, chunk.layout, opened)
        else:
            chunk.check_length(opened.num_bytes)
            fetched = self._read_selection(chunk, chunk.layout, opened)
        chunk.outcome = Outcome("present", fetched=fetched)

    def _read_selection(self, chunk: ChunkRead, layout: Layout, file: OpenFile) -> Fetched:
        """Read what is selected of a chunk; with longer gaps if its file turns out to be slow."""
        drop_axes, latency = self.out.drop_axes, self.latency
        plan = plan_of(chunk.selection, layout, drop_axes, self.gap)
        # Of a single request, a look only tells whether more threads help, which may be known.
        is_one_request = plan.num_runs == 1 and plan.length <= constants.PREFETCH_BYTES
        if not (is_one_request and latency.has_waited) and latency.count_chunk(plan.num_runs):
            self._look(file.descriptor, plan.sample(file.start))
        if latency.is_slow:
            file = file._replace(is_prefetched=latency.prefetching_helps)
            if self.gap is None:
                plan = plan_of(chunk.selection, layout, drop_axes, latency.gap)
        return _read_plan(file, layout, plan, self.out, chunk.place)

    def _read_shard(self, chunk: ChunkRead, shard: ShardLayout, file: OpenFile) -> Fetched:
        """Read what is selected of the inner chunks of a shard."""
        raw, begin = files.new_memory(shard.index_bytes), time.perf_counter()
        files.read_exactly(file.descriptor, file.start + shard.index_start(file.num_bytes), raw)
        if self.latency.note_index(time.perf_counter() - begin):
            self.workers.start_helpers(wait_for_files=True)
        inner_chunks = self._find_inner_chunks(chunk, shard, file, index_of(shard, np.asarray(raw)))
        chunk.fill(self.out, [place_within(chunk.place, place) for place in inner_chunks.missing])
        out, to_view = view_of(self.out, chunk.place)
        num_requests, num_read = 1, shard.index_bytes
        for plan, start, place in inner_chunks.present:
            inner = OpenFile(file.descriptor, start, shard.inner.num_bytes)
            fetched = _read_plan(inner, shard.inner, plan, out, to_view(place))
            num_requests += fetched.num_requests
            num_read += fetched.num_bytes
        by_zarr = shard.num_bytes_by_zarr(inner_chunks) if trace.active else None
        return Fetched(num_requests, num_read, by_zarr)

    def _find_inner_chunks(
        self, chunk: ChunkRead, shard: ShardLayout, file: OpenFile, index: UInt64Array
    ) -> InnerChunks:
        """Return where the selected inner chunks are; prefetch them if the file is slow."""
        drop_axes, latency = self.out.drop_axes, self.latency

        def find(gap: int | None) -> InnerChunks:
            shard_plan = shard.plan_of(chunk.selection, drop_axes, gap)
            found = shard_plan.inner_chunks(index, file.start, file.num_bytes)
            found.present.sort(key=operator.attrgetter("start"))
            return found

        found = find(self.gap)
        present = found.present
        if latency.count_chunk(sum([plan.num_runs for plan, *_ in present])):
            self._look(file.descriptor, sample([(plan, start) for plan, start, _ in present]))
        if latency.is_slow:
            if self.gap is None:
                found = find(latency.gap)
            if latency.prefetching_helps:
                runs = (
                    (at, plan.length)
                    for plan, start, _ in found.present
                    for at in itertools.chain.from_iterable(plan.blocks(start))
                )
                files.prefetch(file.descriptor, runs, latency.gap)
        return found


def _read_plan(file: OpenFile, layout: Layout, plan: Plan, out: Output, place: Place) -> Fetched:
    """Read a selection of a chunk to its place in the output.

    Reads straight into the output what the system has in memory, if stored elements need no
    conversion and the output is contiguous there; else block by block through memory that stays in
    the CPU cache. Raises `LeftToZarr` if the file ends before the runs of the plan do, and
    CancelledError if the output must not be changed any more.
    """
    if not plan.num_runs:
        return Fetched()
    region = memory_of(out.array, place, plan, layout)
    if region is not None and _try_straight(file, plan, region.data, out):
        return Fetched(plan.num_runs, plan.num_bytes)
    may_be_straight = region is None  # if there was one, the system has just refused to fill it
    num_requests = num_bytes = 0
    for inner_place, piece in split(plan, layout.item_size):
        piece_place = place if piece is plan else place_within(place, inner_place)
        num_requests += piece.num_runs
        num_bytes += piece.num_bytes
        if may_be_straight and piece is not plan:
            region = memory_of(out.array, piece_place, piece, layout)
            if region is not None:
                may_be_straight = _try_straight(file, piece, region.data, out)
                if may_be_straight:
                    continue
        _prefetch(file, piece)
        starts = piece.starts(file.start).tolist()
        raw = files.read_runs(file.descriptor, starts, piece.length, _block)
        with out.lock:
            out.check()
            write_selected(raw, piece, layout, out.array, piece_place)
    return Fetched(num_requests, num_bytes)


def _try_straight(file: OpenFile, plan: Plan, memory: memoryview, out: Output) -> bool:
    """Read runs straight to their memory in the output; return False if the system can't do it."""
    _prefetch(file, plan)
    read = _try_long_runs if plan.length >= files.DIRECT_BYTES else _copy_short_runs
    first = 0
    for starts in plan.blocks(file.start):
        end = first + len(starts) * plan.length
        if not read(file.descriptor, starts, plan.length, memory[first:end], out):
            return False  # which the first run shows
        first = end
    return True


def _copy_short_runs(
    descriptor: int, starts: Sequence[int], length: int, memory: memoryview, out: Output
) -> bool:
    """Read runs, end to end, to their memory in the output."""
    raw = files.read_runs(descriptor, starts, length, _block)
    with out.lock:
        out.check()
        memory[:] = raw
    return True


def _try_long_runs(
    descriptor: int, starts: Sequence[int], length: int, memory: memoryview, out: Output
) -> bool:
    """Read runs straight into the output; return False if the system can't read without waiting."""
    cold: list[tuple[int, memoryview]] = []
    with out.lock:
        out.check()
        for start, first in zip(starts, range(0, len(memory), length), strict=True):
            run = memory[first : first + length]
            num_bytes = files.read_from_memory(descriptor, start, run)
            if num_bytes is None:
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


def _prefetch(file: OpenFile, plan: Plan) -> None:
    """Prefetch the runs of a plan if the file is slow."""
    if file.is_prefetched and (plan.num_runs > 1 or plan.length > constants.PREFETCH_BYTES):
        starts = itertools.chain.from_iterable(plan.blocks(file.start))
        files.prefetch(file.descriptor, zip(starts, itertools.repeat(plan.length)))


def _block(num_bytes: int) -> memoryview:
    """Return memory, which the next call in the same thread returns again."""
    if num_bytes > constants.BLOCK_BYTES:  # a single element, or axes in another order
        return files.new_memory(num_bytes)
    block: memoryview | None = getattr(_memory_of_thread, "block", None)
    if block is None or len(block) < num_bytes:
        block = _memory_of_thread.block = files.new_memory(constants.BLOCK_BYTES)
    return block[:num_bytes]
