"""Reads what is selected of a chunk, or of a shard, in an open file, in the thread that calls it.

Batches call `read_chunk` from their threads (`local`).
"""

import itertools
import operator
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from numcodecs_bytes._core import slow_copies
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection, are_slices, out_selection_within
from numcodecs_bytes._plan.outcome import FetchCounts, LeftToZarr, Outcome
from numcodecs_bytes._plan.plan import RunPlan, plan_of, sample, split
from numcodecs_bytes._plan.shards import InnerChunks, ShardLayout
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.output import Output, memory_of, view_of, write_selected
from numcodecs_bytes._read.pace import Pace
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import Checksum, OpenExtent
from numcodecs_bytes._sources.shard_index import cached_indices, read_index

_memory_of_thread = threading.local()


def read_chunk(
    chunk: ChunkRead, descriptor: int, out: Output, pace: Pace, seconds_to_open: float
) -> None:
    """Read what is selected of a chunk in its open file, or fill it if it is missing there.

    Raises `LeftToZarr` or OSError if zarr has to read the chunk, ValueError if it has the wrong
    length, and CancelledError if the output must not be changed any more.
    """
    file = files.locate(chunk.file, descriptor)
    if file is None:
        chunk.read_as_missing(out, FetchCounts())
        return
    layout = chunk.layout
    if isinstance(layout, ShardLayout):
        if seconds_to_open > constants.CERTAIN_WAIT_SECONDS:
            pace.caches_indices = False  # to read a checksum may take as long as the index
            if file.num_bytes <= pace.bytes_worth(seconds_to_open):
                _prefetch_shard(chunk, layout, file, out)
        fetched = _read_shard(chunk, layout, file, out, pace)
    else:
        if file.num_bytes != layout.num_bytes:
            chunk.check_length(file.num_bytes)
        if chunk.selection_offset:  # faster than `_replace`
            file = OpenExtent(descriptor, file.start + chunk.selection_offset, file.num_bytes)
        max_gap = _max_gap(chunk, file, pace)
        plan = plan_of(chunk.chunk_selection, layout, out.drop_axes, max_gap)
        # For one short run, a probe could only show that threads wait, which may be known.
        is_one_request = plan.num_runs == 1 and plan.length <= constants.PREFETCH_BYTES
        if not (is_one_request and pace.waits.is_long) and pace.count_chunk(plan.num_runs):
            pace.probe(file.descriptor, plan.sample(file.start))
        if pace.speed.is_slow:
            file = file._replace(is_prefetched=pace.speed.prefetching_helps)
            max_gap = _max_gap(chunk, file, pace)
            plan = plan_of(chunk.chunk_selection, layout, out.drop_axes, max_gap)
        file = _with_checksum(chunk, file, plan.num_bytes)
        fetched = read_plan(file, layout, plan, out, chunk.out_selection)
        fetched = _check_crc(file, fetched, out)
    chunk.outcome = Outcome("present", fetched=fetched)


def _max_gap(chunk: ChunkRead, file: OpenExtent, pace: Pace) -> int | None:
    """Return the largest gap to read, in bytes: any, if all bytes are read for their CRC-32."""
    return pace.speed.max_gap if file.crc is None or not chunk.checks_crc else file.num_bytes


def _with_checksum(chunk: ChunkRead, file: OpenExtent, num_bytes: int) -> OpenExtent:
    """Return the file with a `Checksum` if all of the chunk is selected, or read anyway."""
    if file.crc is None or not (chunk.checks_crc or num_bytes >= file.num_bytes):
        return file
    return file._replace(checksum=Checksum(file))


def _check_crc(file: OpenExtent, fetched: FetchCounts, out: Output) -> FetchCounts:
    """Raise `LeftToZarr` if the checksum of a file that was read is wrong."""
    if file.checksum is None:
        return fetched
    file.checksum.verify(out.check)
    return fetched._replace(num_bytes=fetched.num_bytes + file.checksum.num_bytes_read)


def _prefetch_shard(chunk: ChunkRead, shard: ShardLayout, file: OpenExtent, out: Output) -> None:
    """Prefetch a shard with its index if zarr alone reads it whole."""
    if shard.is_all_selected(shard.plan_of(chunk.chunk_selection, out.drop_axes)):
        files.prefetch(file.descriptor, [(file.start, file.num_bytes)])


def _read_shard(
    chunk: ChunkRead, shard: ShardLayout, file: OpenExtent, out: Output, pace: Pace
) -> FetchCounts:
    """Read what is selected of the inner chunks of a shard."""
    begin = time.perf_counter()
    if pace.caches_indices:
        index, of_index = cached_indices.read(shard, file)
    else:
        index, of_index = read_index(shard, file)[0], FetchCounts(1, shard.index_bytes)
    seconds = time.perf_counter() - begin
    pace.note_index(seconds)

    def find() -> InnerChunks:
        shard_plan = shard.plan_of(chunk.chunk_selection, out.drop_axes, pace.speed.max_gap)
        inner_chunks = shard_plan.inner_chunks(index, file.start, file.num_bytes)
        inner_chunks.present.sort(key=operator.attrgetter("start"))
        return inner_chunks

    inner_chunks = _find_at_pace(find, file, pace, seconds)
    chunk.fill(
        out,
        [
            out_selection_within(chunk.out_selection, out_selection)
            for out_selection in inner_chunks.missing
        ],
    )
    view, to_view = view_of(out, chunk.out_selection)
    num_requests, num_bytes, _ = of_index
    num_planned = sum([plan.num_bytes for plan, _, _ in inner_chunks.present])
    file = _with_checksum(chunk, file, shard.index_bytes + num_planned)
    for plan, start, out_selection in inner_chunks.present:
        inner = OpenExtent(file.descriptor, start, shard.inner.num_bytes, checksum=file.checksum)
        fetched = read_plan(inner, shard.inner, plan, view, to_view(out_selection))
        num_requests += fetched.num_requests
        num_bytes += fetched.num_bytes
    by_zarr = shard.num_bytes_by_zarr(inner_chunks) if traces.active else None
    return _check_crc(file, FetchCounts(num_requests, num_bytes, by_zarr), out)


def _find_at_pace(
    find: Callable[[], InnerChunks], file: OpenExtent, pace: Pace, seconds: float
) -> InnerChunks:
    """Return where the selected inner chunks are; prefetch them if the file is slow.

    If it took long to read the index, in seconds, several are prefetched before they are probed;
    points are a single plan, which longer gaps change most.
    """
    inner_chunks = find()
    is_prefetched = seconds > constants.CERTAIN_WAIT_SECONDS and len(inner_chunks.present) > 1
    if is_prefetched:
        _prefetch_inner_chunks(inner_chunks, file, pace.gap_after(seconds))
    placed = [(plan, start) for plan, start, _ in inner_chunks.present]
    if pace.count_chunk(sum([plan.num_runs for plan, _ in placed])):
        pace.probe(file.descriptor, sample(placed), are_prefetched=is_prefetched)
    helps = pace.speed.prefetching_helps
    if not pace.speed.is_slow or (is_prefetched and helps):
        return inner_chunks
    inner_chunks = find()  # with longer gaps
    if helps:
        _prefetch_inner_chunks(inner_chunks, file, pace.speed.max_gap)
    return inner_chunks


def _prefetch_inner_chunks(
    inner_chunks: InnerChunks, file: OpenExtent, max_gap: int | None
) -> None:
    runs = (
        (at, plan.length) for plan, start, _ in inner_chunks.present for at in _starts(plan, start)
    )
    files.prefetch(file.descriptor, runs, max_gap or 0)


def read_plan(
    file: OpenExtent, layout: Layout, plan: RunPlan, out: Output, out_selection: OutSelection
) -> FetchCounts:
    """Read a selection of a chunk to its place in the output.

    Reads straight into the output what the system has in memory, if stored elements need no
    conversion, the output is contiguous there, and that copy is not slow; else block by block
    through memory that stays in the CPU cache. Raises `LeftToZarr` if the file ends before the runs
    of the plan do.
    """
    if not plan.num_runs:
        return FetchCounts()
    region = _region_of(file, layout, plan, out, out_selection)
    if region is not None and _read_straight(file, plan, region, out):
        return FetchCounts(plan.num_runs, plan.num_bytes)
    is_refused = region is not None  # by the system, which will not fill other regions, either
    num_requests = num_bytes = 0
    for inner_out_selection, piece in split(plan, layout.item_size):
        block_out_selection = (
            out_selection
            if piece is plan
            else out_selection_within(out_selection, inner_out_selection)
        )
        num_requests += piece.num_runs
        num_bytes += piece.num_bytes
        region = None
        if not is_refused and piece is not plan:
            region = _region_of(file, layout, piece, out, block_out_selection)
        if region is not None:
            is_refused = not _read_straight(file, piece, region, out)
        if region is None or is_refused:
            _read_through_block(file, layout, piece, out, block_out_selection)
    return FetchCounts(num_requests, num_bytes)


def _region_of(
    file: OpenExtent, layout: Layout, plan: RunPlan, out: Output, out_selection: OutSelection
) -> memoryview | None:
    """Return the memory of a place in the output if the runs of a plan can be read straight to it.

    `slow_copies` says where that is slow. All runs are as far from their places, modulo a page, as
    the first one, or at all distances.
    """
    memory = memory_of(out.array, out_selection, plan, layout)
    if memory is None:
        return None
    if slow_copies.slow_distances and plan.length >= slow_copies.MIN_SLOW_BYTES:
        start = next(iter(plan.blocks(file.start)))[0]
        if slow_copies.is_slow(start, memory.data, plan.length):
            return None
    return memory.data


def _read_through_block(
    file: OpenExtent, layout: Layout, plan: RunPlan, out: Output, out_selection: OutSelection
) -> None:
    """Read runs, all at once, and copy what is selected of them to its place in the output."""
    if file.is_prefetched:
        _prefetch(file, plan)
    starts = plan.starts(file.start).tolist()
    begin = 0
    if slow_copies.slow_distances and plan.length >= slow_copies.MIN_SLOW_BYTES:
        end = starts[0]  # where NumPy swaps bytes, no copy from the block is slow
        if layout.is_plain and are_slices(out_selection):
            end = out.array[(*out_selection, ...)].ctypes.data
        begin = slow_copies.begin_between(starts[0], end)
    take_block = partial(_take_block, begin=begin)
    raw = files.read_runs(file.descriptor, starts, plan.length, take_block)
    if file.checksum is not None and len(starts) == 1:
        file.checksum.add(starts[0], raw)
    with out.lock:
        out.check()
        write_selected(raw, plan, layout, out.array, out_selection)
    _give_back(raw)


def _read_straight(file: OpenExtent, plan: RunPlan, memory: memoryview, out: Output) -> bool:
    """Read runs straight to their memory in the output; return False if the system can't do it."""
    if file.is_prefetched:
        _prefetch(file, plan)
    read = _read_long_runs if plan.length >= files.MIN_READINTO_BYTES else _copy_short_runs
    first = 0
    for starts in plan.blocks(file.start):
        end = first + len(starts) * plan.length
        if not read(file.descriptor, starts, plan.length, memory[first:end], out):
            return False  # which the first run shows
        if file.checksum is not None and len(starts) == 1:
            file.checksum.add(starts[0], memory[first:end])
        first = end
    return True


def _copy_short_runs(
    descriptor: int, starts: Sequence[int], length: int, memory: memoryview, out: Output
) -> bool:
    """Read runs, end to end, to their memory in the output."""
    raw = files.read_runs(descriptor, starts, length, _take_block)
    with out.lock:
        out.check()
        memory[:] = raw
    _give_back(raw)
    return True


def _read_long_runs(
    descriptor: int, starts: Sequence[int], length: int, memory: memoryview, out: Output
) -> bool:
    """Read runs straight into the output; return False if the system can't read without waiting.

    The system itself changes the output only while it does not wait for the file: if that took too
    long, a cancelled caller would have gone on when the bytes arrive. So what is cold passes
    through a block, unless the caller is this thread.
    """
    if not out.may_be_cancelled:
        files.read_runs_into(descriptor, starts, memory)
        return True
    unread: list[tuple[int, memoryview]] = []
    with out.lock:
        out.check()
        for start, first in zip(starts, range(0, len(memory), length), strict=True):
            run = memory[first : first + length]
            num_bytes = files.read_cached_nowait(descriptor, start, run)
            if num_bytes is None:
                return False
            if num_bytes < length:
                unread.append((start + num_bytes, run[num_bytes:]))
    for start, run in unread:
        _read_cold_run(descriptor, start, run, out)
    return True


def _read_cold_run(descriptor: int, start: int, run: memoryview, out: Output) -> None:
    """Read the rest of a run to its place in the output; what has arrived meanwhile, straight."""
    while run:
        with out.lock:
            out.check()
            num_bytes = files.read_cached_nowait(descriptor, start, run)
        if not num_bytes:
            begin = slow_copies.begin_between(start, run)
            block = _take_block(min(len(run), constants.BLOCK_BYTES), begin)
            files.read_exactly(descriptor, start, block)
            num_bytes = len(block)
            with out.lock:
                out.check()
                run[:num_bytes] = block
            _give_back(block)
        run, start = run[num_bytes:], start + num_bytes


def _prefetch(file: OpenExtent, plan: RunPlan) -> None:
    """Prefetch the runs of a plan, unless they are read at once anyway."""
    if plan.num_runs > 1 or plan.length > constants.PREFETCH_BYTES:
        runs = zip(_starts(plan, file.start), itertools.repeat(plan.length))
        files.prefetch(file.descriptor, runs)


def _starts(plan: RunPlan, start: int) -> Iterable[int]:
    """Return the offset of each run in a file, one after the other: there may be millions."""
    return itertools.chain.from_iterable(plan.blocks(start))


def _take_block(num_bytes: int, begin: int = 0) -> memoryview:
    """Return memory, from `begin` of a page on, that no other read uses until `_give_back`.

    A signal handler or a finaliser may read meanwhile; its reads take memory of their own.
    """
    try:
        if num_bytes > constants.BLOCK_BYTES:  # a single element, or axes in another order
            return files.new_memory(num_bytes, begin)
        block: memoryview | None = vars(_memory_of_thread).pop("block", None)
        if block is None or len(block) < begin + num_bytes:
            block = files.new_memory(_whole_block_bytes())
    except MemoryError as error:
        raise LeftToZarr("there is not enough memory for a block") from error
    return block[begin : begin + num_bytes]


def _give_back(raw: bytes | memoryview) -> None:
    """Let the next read of this thread use a block, unless an error has lost it."""
    if isinstance(raw, memoryview) and len(whole := memoryview(raw.obj)) == _whole_block_bytes():
        _memory_of_thread.block = whole


def _whole_block_bytes() -> int:
    return constants.BLOCK_BYTES + slow_copies.MAX_BEGIN
