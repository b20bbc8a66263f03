"""Checks the chunks of an array for `check`: their lengths, decoding errors, invalid bools.

Chunks are decoded by zarr's own codecs, and take as much memory as they do in zarr.
"""

import itertools
import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import StorePath, ZipStore
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import async_value_or_error
from numcodecs_bytes._core.dtypes import Array, pack_dtype, stored_dtype
from numcodecs_bytes._sources.stores import start_of
from numcodecs_bytes._tools.arrays import Grid
from numcodecs_bytes._tools.beside_chunks import report_listing
from numcodecs_bytes._tools.chunk_problems import (
    CheckedArray,
    FoundChunks,
    Problem,
    describe_chunk,
    problem_with_blosc,
    problem_with_decoding,
    problem_with_length,
    report_wrong_chunks,
)
from numcodecs_bytes._tools.decoding import array_to_decode
from numcodecs_bytes._tools.reporting import ArrayReport, Limits, ProgressBar
from numcodecs_bytes._tools.stored_chunks import ChunkCoords, Listed, StoredChunk, find_chunks
from numcodecs_bytes._zarr_api.names import plural
from numcodecs_bytes._zarr_api.versions import concurrency


def check_chunks(
    array: AnyArray,
    codecs: list[str],
    report: ArrayReport,
    limits: Limits,
    progress: ProgressBar | None,
) -> ChunkCoords | None:
    """Report the problems of an array's chunks; return the first that can be read, if any."""
    checks = _checks_of(array, codecs, report, limits)
    num_in_all = math.prod(checks.grid.shape)
    if progress is not None:
        progress.total = (progress.total or 0) + num_in_all
        progress.refresh()
    beside: list[Listed] = []  # what is no chunk
    present = _only_chunks(find_chunks(array), beside)
    found = FoundChunks()
    num_unread = 0  # how many members of a zip archive are too long to be read
    chunks = itertools.islice(present, limits.max_chunks)
    while batch := list(itertools.islice(chunks, checks.num_at_once)):
        problems = checks.problems_of(batch)
        for chunk in batch:
            is_at_edge = checks.grid.is_at_edge(chunk.chunk_coords)
            found.add(chunk, problems.get(chunk.chunk_coords), is_at_edge=is_at_edge)
            num_unread += checks.leaves_unread(chunk)
        report.num_chunks += len(batch)
        if progress is not None:
            progress.update(len(batch))
    if progress is not None:
        progress.update(num_in_all - report.num_chunks)
    report_wrong_chunks(checks, report, found)
    if num_unread:
        what = f"{num_unread} of {report.num_chunks} members of the zip archive"
        limit = f"the limit is {limits.max_chunk_bytes} bytes"
        report.notes.append(f"the checksums of {what} were not checked: {limit}")
    report_listing(array, beside, num_in_all, report, limits)
    return found.first


def _only_chunks(
    found: Iterable[StoredChunk | Listed], beside: list[Listed]
) -> Iterator[StoredChunk]:
    """Yield the chunks, and add what else is found to a list."""
    for each in found:
        if isinstance(each, StoredChunk):
            yield each
        else:
            beside.append(each)


@dataclass(frozen=True)
class _Checks(CheckedArray):
    """What is checked of the chunks of an array."""

    decoded: AnyArray | None  # the array as it is to be read, if chunks are decoded
    max_member_bytes: int  # longer members of zip archives are not read

    @property
    def num_at_once(self) -> int:
        """How many chunks to check at a time: of those that are read, about 64 MiB."""
        num_bytes = math.prod(self.grid.max_chunk_shape) * self.array.dtype.itemsize
        are_read = self.decoded is not None or self.reads_members
        return min(max((1 << 26) // max(num_bytes, 1), 1), 1024) if are_read else 1024

    @property
    def reads_members(self) -> bool:
        """Whether chunks are members of a zip archive that are not read whole to be decoded."""
        is_read_whole = self.decoded is not None and not self.grid.is_sharded
        return isinstance(self.array.store, ZipStore) and not is_read_whole

    def leaves_unread(self, chunk: StoredChunk) -> bool:
        """Whether a chunk is a member of a zip archive that is too long to be read."""
        return self.reads_members and (chunk.num_bytes or 0) > self.max_member_bytes

    def problems_of(self, batch: list[StoredChunk]) -> dict[ChunkCoords, Problem]:
        """Return the problems of those chunks that have any."""
        found = {chunk.chunk_coords: problem_with_length(self, chunk) for chunk in batch}

        def intact() -> list[StoredChunk]:
            return [chunk for chunk in batch if found[chunk.chunk_coords] is None]

        if self.codecs[-1:] in (["blosc"], ["numcodecs.blosc"]) and not self.grid.is_sharded:
            encoded = [(self, chunk) for chunk in intact()]
            found |= sync(concurrent_map(encoded, _problem_of_blosc, concurrency()))
        if self.reads_members:
            members = [(self, chunk) for chunk in intact() if not self.leaves_unread(chunk)]
            found |= sync(concurrent_map(members, _problem_of_member, concurrency()))
        if self.decoded is not None:
            found |= sync(_problems_in(self, self.decoded, intact()))
        return {coords: problem for coords, problem in found.items() if problem is not None}


def _checks_of(array: AnyArray, codecs: list[str], report: ArrayReport, limits: Limits) -> _Checks:
    """Return what is checked of the chunks of an array, and report what is not."""
    grid, item_size = Grid.of(array), None
    if codecs in ([], ["bytes"], ["endian"]):  # others change the length of chunks
        has_padding = array.metadata.zarr_format == 2 and not array.filters  # between fields
        dtype = array.dtype if has_padding else stored_dtype(pack_dtype(array.dtype), "little")
        item_size = dtype.itemsize
    decoded = array_to_decode(array, codecs, report, limits, is_encoded=item_size is None)
    return _Checks(array, grid, codecs, item_size, decoded, limits.max_chunk_bytes)


async def _problem_of_blosc(
    checks: _Checks, chunk: StoredChunk
) -> tuple[ChunkCoords, Problem | None]:
    start = await start_of(StorePath(checks.array.store, chunk.key), chunk.num_bytes or 0)
    return chunk.chunk_coords, problem_with_blosc(checks, chunk, start)


async def _problem_of_member(
    checks: _Checks, chunk: StoredChunk
) -> tuple[ChunkCoords, Problem | None]:
    """Return the problem with a member of a zip archive, if any: to read it checks its CRC-32."""
    store = checks.array.store
    found = await async_value_or_error(store.get(chunk.key, default_buffer_prototype()))
    if not isinstance(found, Exception):
        return chunk.chunk_coords, None
    return chunk.chunk_coords, Problem(describe_chunk(store, chunk.key, found))


async def _problems_in(
    checks: _Checks, array: AnyArray, chunks: list[StoredChunk]
) -> dict[ChunkCoords, Problem | None]:
    """Decode chunks, and return the problem of each, or none if there are none."""

    async def problems_in(run: list[StoredChunk]) -> dict[ChunkCoords, Problem | None]:
        # To decode chunks together takes a fraction of the time.
        if len(run) > 1 and await _problem_in(checks, array, run) is None:
            return {}
        return {chunk.chunk_coords: await _problem_in(checks, array, [chunk]) for chunk in run}

    runs = [(run,) for run in _runs(chunks)]
    found = await concurrent_map(runs, problems_in, concurrency())
    return {coords: problem for problems in found for coords, problem in problems.items()}


def _runs(chunks: list[StoredChunk]) -> Iterator[list[StoredChunk]]:
    """Yield lists of chunks that are next to each other along the last axis."""
    run: list[StoredChunk] = []
    for chunk in sorted(chunks, key=operator.attrgetter("chunk_coords")):
        if run:
            *others, last = run[-1].chunk_coords
            if chunk.chunk_coords != (*others, last + 1):
                yield run
                run = []
        run.append(chunk)
    if run:
        yield run


async def _problem_in(checks: _Checks, array: AnyArray, run: list[StoredChunk]) -> Problem | None:
    """Decode chunks that are next to each other, and return their problem, if any."""
    num_invalid = 0
    first, last = run[0], run[-1]
    for region in _regions_of(array, checks.grid, first.chunk_coords, last.chunk_coords):
        decoded = await async_value_or_error(array.async_array.getitem(region))
        if isinstance(decoded, Exception):
            return await problem_with_decoding(checks, first, decoded)
        num_invalid += _count_invalid(np.asarray(decoded))
    if not num_invalid:
        return None
    are = "that is" if num_invalid == 1 else "that are"
    return Problem(
        f"holds {plural(num_invalid, 'bool')} {are} neither 0 nor 1: read as true here, and "
        "unchanged by other libraries, until you write the array again",
        is_readable=True,
    )


def _regions_of(
    array: AnyArray, grid: Grid, first: ChunkCoords, last: ChunkCoords
) -> Iterator[tuple[slice, ...]]:
    """Yield the regions to decode at a time: of a shard, rows of about 64 MiB."""
    chunks = grid.region(first, last)
    if grid.inner_shape is None:
        yield chunks
        return
    rows, *others = chunks
    row_bytes = math.prod(grid.max_chunk_shape[1:]) * grid.inner_shape[0] * array.dtype.itemsize
    num = grid.inner_shape[0] * max((1 << 26) // max(row_bytes, 1), 1)
    for start in range(rows.start, rows.stop, num):
        yield (slice(start, min(start + num, rows.stop)), *others)


def _count_invalid(elements: Array) -> int:
    """Count the bools that are stored as neither 0 nor 1."""
    if elements.dtype.names:
        return sum(_count_invalid(elements[name]) for name in elements.dtype.names)
    return int(np.count_nonzero(elements.view("u1") > 1)) if elements.dtype.kind == "b" else 0
