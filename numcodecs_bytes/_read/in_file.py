"""Reads what is selected of a chunk, or of a shard, in an open file, in the thread that calls it.

Four steps, the same for both: *locate* the chunk in the file, *plan* which of its bytes are read,
*fetch* them, and *scatter* them to the output. Two things are fetched only to plan once more: the
index of a shard, and probes, which tell whether the file is slow. `RunFetcher` does the last two
steps for one block after the other, so that blocks stay in the CPU cache.
"""

import operator
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, cast

from numcodecs_bytes._core.dtypes import UInt64Array
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection
from numcodecs_bytes._plan.outcome import FetchCounts, Outcome
from numcodecs_bytes._plan.plan import RunPlan, plan_of, probe_offsets
from numcodecs_bytes._plan.selection import moved_to_start
from numcodecs_bytes._plan.shards import AnyShardPlan, InnerChunks, ShardLayout
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.file_batch import FileBatch
from numcodecs_bytes._read.file_runs import PrefetchingFetcher, RunFetcher, runs_of
from numcodecs_bytes._read.output import Output, view_of
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import Checksum, OpenExtent
from numcodecs_bytes._sources.shard_index import read_whole_index

_PlanWith = Callable[[int | None], AnyShardPlan]  # given the largest gap, in bytes


class _ExtentRead(NamedTuple):
    """What is fetched of a chunk, or of the inner chunks of a shard, and where it is scattered."""

    layout: Layout  # how the chunk, or each inner chunk, is stored
    placed: Iterable[tuple[RunPlan, int, OutSelection]]  # like `PlacedRuns`
    num_bytes: int  # the length of all runs and the index
    out: Output  # the output of the batch, or a view of it
    fetcher: type[RunFetcher] = RunFetcher
    missing: Sequence[OutSelection] = ()  # where inner chunks are missing
    fetched: FetchCounts = FetchCounts()  # what was fetched to plan


def read_chunk(
    chunk: ChunkRead, descriptor: int, out: Output, batch: FileBatch, seconds_to_open: float
) -> None:
    """Read what is selected of a chunk in its open file, or fill it if it is missing there.

    Raises `LeftToZarr` or OSError if zarr has to read the chunk, ValueError if it has the wrong
    length, and CancelledError if the output must not be changed any more.
    """
    # Locate.
    extent = files.extent_in(chunk.file_extent, descriptor)
    if extent is None:
        chunk.read_as_missing(out, FetchCounts())
        return

    # Plan.
    if isinstance(chunk.layout, ShardLayout):
        planned = _plan_shard(chunk, extent, out, batch, seconds_to_open)
    else:
        planned = _plan_chunk(chunk, chunk.layout, extent, out, batch)
    checksum = None
    if extent.crc is not None and (chunk.checks_crc or planned.num_bytes >= extent.num_bytes):
        checksum = Checksum(extent)

    # Fetch and scatter.
    if planned.missing:
        chunk.fill(planned.out, planned.missing)
    fetcher = planned.fetcher(descriptor, planned.layout, planned.out, checksum)
    for plan, start, out_selection in planned.placed:
        fetcher.fetch_and_scatter(plan, start, out_selection)
    num_reads, num_bytes, num_bytes_by_zarr, _ = planned.fetched
    num_bytes += fetcher.num_bytes
    num_gap_bytes = chunk.num_gap_bytes(fetcher.num_bytes, planned.missing)
    if checksum is not None:
        checksum.verify(out.raise_if_cancelled)
        num_bytes += checksum.num_bytes_read
    num_reads += fetcher.num_reads
    fetched = FetchCounts(num_reads, num_bytes, num_bytes_by_zarr, num_gap_bytes)
    chunk.outcome = Outcome("present", fetched=fetched)


def _plan_chunk(
    chunk: ChunkRead, layout: Layout, extent: OpenExtent, out: Output, batch: FileBatch
) -> _ExtentRead:
    """Plan what is read of a chunk; once more, with longer gaps, if probes show a slow file."""
    if extent.num_bytes != layout.num_bytes:
        start_bytes = files.first_bytes(extent.descriptor, extent.start, extent.num_bytes)
        chunk.check_length(extent.num_bytes, start_bytes)
    plan_with = partial(plan_of, chunk.chunk_selection, layout, out.drop_axes)
    # All bytes are read for a CRC-32 of all of the chunk.
    reads_all = extent.crc is not None and chunk.checks_crc
    start, speed = extent.start + chunk.selection_offset, batch.speed
    plan = plan_with(extent.num_bytes if reads_all else speed.verdict.max_gap)
    # For one short run, a probe could only show that threads wait, which may be known.
    is_one_request = plan.num_runs == 1 and plan.run_bytes <= constants.PREFETCH_BYTES
    if not (is_one_request and batch.waits.is_long) and speed.needs_probe(plan.num_runs):
        batch.probe(extent.descriptor, plan.probe_offsets(start))
    verdict = speed.verdict
    if verdict.is_slow and not reads_all:
        plan = plan_with(verdict.max_gap)
    fetcher = PrefetchingFetcher if verdict.prefetching_helps else RunFetcher
    placed = [(plan, start, chunk.out_selection)]
    return _ExtentRead(layout, placed, plan.num_bytes, out, fetcher)


def _plan_shard(
    chunk: ChunkRead, extent: OpenExtent, out: Output, batch: FileBatch, seconds_to_open: float
) -> _ExtentRead:
    """Fetch the index of a shard, and plan what is read of its inner chunks.

    If the file opened slowly, a shard that zarr alone reads whole is prefetched with its index.
    """
    shard = cast("ShardLayout", chunk.layout)
    moved, first_coords = moved_to_start(chunk.chunk_selection, shard.shape, shard.inner.shape)
    plan_with = partial(shard.plan_of, moved, out.drop_axes)
    read_index = batch.read_index
    if seconds_to_open > constants.CERTAIN_WAIT_SECONDS:
        read_index = read_whole_index  # to read the checksum of a cached one may take as long
        is_worth_it = extent.num_bytes <= batch.speed.bytes_worth_reading(seconds_to_open)
        if is_worth_it and not any(first_coords) and shard.is_all_selected(plan_with()):
            files.prefetch(extent.descriptor, [(extent.start, extent.num_bytes)])
    started = time.perf_counter()
    index, (num_reads, num_bytes, *_) = read_index(shard, extent)
    seconds = time.perf_counter() - started
    batch.record_index(seconds)
    index = index[tuple([slice(first, None) for first in first_coords])]
    inner_chunks = _plan_at_speed(plan_with, index, extent, batch, seconds)
    view, to_view = view_of(out, chunk.out_selection)
    num_planned = sum([plan.num_bytes for plan, _, _ in inner_chunks.present])
    num_bytes_by_zarr = shard.num_bytes_by_zarr(inner_chunks) if traces.active else None
    return _ExtentRead(
        shard.inner,
        ((plan, start, to_view(within)) for plan, start, within in inner_chunks.present),
        shard.index_bytes + num_planned,
        view,
        missing=list(map(to_view, inner_chunks.missing)),
        fetched=FetchCounts(num_reads, num_bytes, num_bytes_by_zarr),
    )


def _plan_at_speed(
    plan_with: _PlanWith, index: UInt64Array, extent: OpenExtent, batch: FileBatch, seconds: float
) -> InnerChunks:
    """Plan inner chunks; once more, with longer gaps, and prefetch them, if the file is slow.

    If it took long to read the index, in seconds, several are prefetched before they are probed;
    points are a single plan, which longer gaps change most.
    """
    speed = batch.speed
    inner_chunks = _inner_chunks(plan_with(speed.verdict.max_gap), index, extent)
    are_prefetched = seconds > constants.CERTAIN_WAIT_SECONDS and len(inner_chunks.present) > 1
    if are_prefetched:
        _prefetch(inner_chunks, extent, speed.gap_to_prefetch(seconds))
    if speed.needs_probe(sum([plan.num_runs for plan, _, _ in inner_chunks.present])):
        offsets = probe_offsets(inner_chunks.present)
        batch.probe(extent.descriptor, offsets, are_prefetched=are_prefetched)
    verdict = speed.verdict
    if not verdict.is_slow or (are_prefetched and verdict.prefetching_helps):
        return inner_chunks
    inner_chunks = _inner_chunks(plan_with(verdict.max_gap), index, extent)
    if verdict.prefetching_helps:
        _prefetch(inner_chunks, extent, verdict.max_gap)
    return inner_chunks


def _inner_chunks(plan: AnyShardPlan, index: UInt64Array, extent: OpenExtent) -> InnerChunks:
    """Return where the selected inner chunks are, in the order of the file."""
    inner_chunks = plan.inner_chunks(index, extent.start, extent.num_bytes)
    inner_chunks.present.sort(key=operator.attrgetter("chunk_start"))
    return inner_chunks


def _prefetch(inner_chunks: InnerChunks, extent: OpenExtent, max_gap: int | None) -> None:
    runs = (run for plan, start, _ in inner_chunks.present for run in runs_of(plan, start))
    files.prefetch(extent.descriptor, runs, max_gap or 0)
