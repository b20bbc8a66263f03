"""Checks the chunks of an array for `check`: their lengths, decoding errors, invalid bools.

Chunks are decoded by zarr's own codecs, and take as much memory as they do in zarr.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numcodecs
import numpy as np
from zarr.abc.codec import Codec
from zarr.abc.store import RangeByteRequest
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.common import concurrent_map
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync
from zarr.storage import ZipStore
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import async_value_or_error
from numcodecs_bytes._core.dtypes import Array, leaf_dtypes, pack_dtype, stored_dtype
from numcodecs_bytes._plan.shards import REMEDY
from numcodecs_bytes._tools.arrays import array_of
from numcodecs_bytes._tools.documents import join
from numcodecs_bytes._tools.reporting import ArrayReport, Limits, ProgressBar, describe_error
from numcodecs_bytes._tools.stored_chunks import (
    MAX_UNLISTED,
    ChunkCoords,
    Listed,
    StoredChunk,
    chunks_at,
    find_chunks,
    grid_of,
)
from numcodecs_bytes._zarr_api.names import plural, reference_of
from numcodecs_bytes._zarr_api.v2_codec import V2Codec
from numcodecs_bytes._zarr_api.versions import concurrency


def check_chunks(
    array: AnyArray,
    codecs: list[str],
    report: ArrayReport,
    limits: Limits,
    progress: ProgressBar | None,
) -> ChunkCoords | None:
    """Report the problems of an array's chunks; return the coordinates of the first one, if any."""
    try:
        num_in_all = math.prod(grid_of(array))
    except NotImplementedError as error:
        report.notes.append(f"its chunks were not checked: {error}")
        return None
    if progress is not None:
        progress.total = (progress.total or 0) + num_in_all
        progress.refresh()
    checks = _checks_of(array, codecs, report, limits)
    before = len(report.problems), report.num_problems
    found = _check_present(checks, report, limits, progress)
    if progress is not None:
        progress.update(num_in_all - report.num_chunks)
    if why := _why_all_are_wrong(array, report.num_chunks, found.lengths, checks.expected):
        del report.problems[before[0] :]  # they say the same of each chunk
        report.num_problems = before[1]
        report.add_problem(why)
    if found.num_unread:
        what = f"{found.num_unread} of {report.num_chunks} members of the zip archive"
        limit = f"the limit is {limits.max_chunk_bytes} bytes"
        report.notes.append(f"the checksums of {what} were not checked: {limit}")
    _report_listing(array, found.beside, num_in_all, report, limits)
    return found.first


@dataclass
class _Found:
    """What is found of an array, besides the problems of its chunks."""

    beside: list[Listed] = field(default_factory=list)  # what is no chunk
    first: ChunkCoords | None = None  # the first chunk that can be read
    lengths: set[int | None] = field(default_factory=set)  # None: one can't be read
    num_unread: int = 0  # how many members of a zip archive are too long to be read

    def only_chunks(self, found: Iterator[StoredChunk | Listed]) -> Iterator[StoredChunk]:
        """Yield the chunks, and keep what else is found."""
        for each in found:
            if isinstance(each, StoredChunk):
                yield each
            else:
                self.beside.append(each)


def _check_present(
    checks: "_Checks", report: ArrayReport, limits: Limits, progress: ProgressBar | None
) -> _Found:
    """Report the problem of each chunk that exists, and return what else is found."""
    array, found = checks.array, _Found()
    chunks = itertools.islice(found.only_chunks(find_chunks(array)), limits.max_chunks)
    while batch := list(itertools.islice(chunks, checks.num_at_once)):
        problems = checks.problems_of(batch)
        for chunk in batch:
            if found.first is None and chunk.error is None:
                found.first = chunk.chunk_coords
            found.lengths.add(chunk.num_bytes)
            found.num_unread += checks.leaves_unread(chunk)
            if problem := problems[chunk.chunk_coords]:
                reference = reference_of(array.store, chunk.key)
                report.add_problem(f"chunk {chunk.key}{reference} {problem}")
        report.num_chunks += len(batch)
        if progress is not None:
            progress.update(len(batch))
    return found


def _why_all_are_wrong(
    array: AnyArray, num_chunks: int, lengths: set[int | None], expected: int | None
) -> str:
    """Return what is wrong if all of several chunks have the same wrong length, or ""."""
    length = next(iter(lengths)) if len(lengths) == 1 else None
    if not length or expected in (None, length) or num_chunks == 1:
        return ""
    item_size, rest = divmod(length, math.prod(array.chunks))
    other = ""
    with contextlib.suppress(TypeError):  # NumPy has no number of that size
        if array.dtype.kind in "iufc" and not rest:
            other = f": {length} bytes are {np.dtype(f'{array.dtype.kind}{item_size}')}"
    return (
        f"each of its {num_chunks} chunks holds {length} bytes, expected {expected}; the data type "
        f"or the chunk shape may be wrong{other}"
    )


@dataclass(frozen=True)
class _Checks:
    """What is checked of the chunks of an array."""

    array: AnyArray
    expected: int | None  # the length of each chunk in bytes; None if a codec changes it
    is_blosc: bool
    decoded: AnyArray | None  # the array as it is to be read, if chunks are decoded
    max_member_bytes: int  # longer members of zip archives are not read

    @property
    def num_at_once(self) -> int:
        """How many chunks to check at a time: of those that are read, about 64 MiB."""
        num_bytes = math.prod(self.array.shards or self.array.chunks) * self.array.dtype.itemsize
        are_read = self.decoded is not None or self.reads_members
        return min(max((1 << 26) // max(num_bytes, 1), 1), 1024) if are_read else 1024

    @property
    def reads_members(self) -> bool:
        """Whether chunks are members of a zip archive that are not read whole to be decoded."""
        is_read_whole = self.decoded is not None and not self.array.shards
        return isinstance(self.array.store, ZipStore) and not is_read_whole

    def leaves_unread(self, chunk: StoredChunk) -> bool:
        """Whether a chunk is a member of a zip archive that is too long to be read."""
        return self.reads_members and (chunk.num_bytes or 0) > self.max_member_bytes

    def problems_of(self, batch: list[StoredChunk]) -> dict[ChunkCoords, str]:
        """Return the problem of each chunk, or ""."""
        lengths = [self.expected] * len(batch)
        if self.is_blosc:
            arguments = [(self.array, chunk) for chunk in batch]
            lengths = sync(concurrent_map(arguments, _length_in_header, concurrency()))
        problems = {
            chunk.chunk_coords: _problem_with_length(chunk, length)
            for chunk, length in zip(batch, lengths, strict=True)
        }
        if self.reads_members:
            intact = [chunk for chunk in batch if not problems[chunk.chunk_coords]]
            members = [chunk for chunk in intact if not self.leaves_unread(chunk)]
            arguments = [(self.array, chunk) for chunk in members]
            found = sync(concurrent_map(arguments, _problem_of_member, concurrency()))
            problems |= {chunk.chunk_coords: why for chunk, why in zip(members, found, strict=True)}
        if self.decoded is not None:
            to_decode = [coords for coords, problem in problems.items() if not problem]
            problems |= sync(_problems_in(self.decoded, to_decode))
        return problems


def _checks_of(array: AnyArray, codecs: list[str], report: ArrayReport, limits: Limits) -> _Checks:
    """Return what is checked of the chunks of an array, and report what is not."""
    expected = _expected_length(array, codecs)
    is_blosc = codecs[-1:] in (["blosc"], ["numcodecs.blosc"]) and not array.shards
    decoded = _array_to_decode(array, codecs, report, limits, is_encoded=expected is None)
    return _Checks(array, expected, is_blosc, decoded, limits.max_chunk_bytes)


def _expected_length(array: AnyArray, codecs: list[str]) -> int | None:
    """Return the expected length of each chunk in bytes; None if a codec changes it."""
    if codecs not in ([], ["bytes"], ["endian"]):
        return None
    dtype = array.dtype
    if array.metadata.zarr_format == 3 or array.filters:  # stored without padding between fields
        dtype = stored_dtype(pack_dtype(dtype), "little")
    return int(math.prod(array.chunks) * dtype.itemsize)


def _array_to_decode(
    array: AnyArray, codecs: list[str], report: ArrayReport, limits: Limits, *, is_encoded: bool
) -> AnyArray | None:
    """Return the array as it is to be read; None if only the sizes of its chunks are checked."""
    has_bools = any(leaf.kind == "b" for leaf in leaf_dtypes(array.dtype))
    if not is_encoded and not has_bools:
        return None
    of_v2 = [*array.filters, *array.compressors]
    if "pickle" in codecs or any(isinstance(codec, numcodecs.Pickle) for codec in of_v2):
        report.add_problem(
            "its chunks were not decoded, because the codec pickle runs whatever code they hold: "
            "if you trust them, copy the array to one with another codec, such as vlen-utf8"
        )
        return None
    num_bytes = math.prod(array.chunks) * array.dtype.itemsize
    if num_bytes > limits.max_chunk_bytes:
        report.notes.append(
            f"its chunks were not decoded: they have {num_bytes} bytes each, the limit is "
            f"{limits.max_chunk_bytes}"
        )
        return None
    if not has_bools:
        return array
    # zarr alone passes bools on as they are stored; our codec reads all but 0 as true.
    metadata = array.metadata
    decoded = array_of(metadata.to_dict(), array.store_path)
    if isinstance(metadata, ArrayV2Metadata):
        of_zarr: list[Codec] = [V2Codec(filters=metadata.filters, compressor=metadata.compressor)]
    else:
        of_zarr = [_codec_of_zarr(codec) for codec in metadata.codecs]
    # zarr's config would set the pipeline as well, but for all threads.
    pipeline = BatchedCodecPipeline.from_codecs(of_zarr)
    object.__setattr__(decoded.async_array, "codec_pipeline", pipeline)
    return decoded


def _codec_of_zarr(codec: Codec) -> Codec:
    """Return zarr's own codec "bytes" in place of another one, also in shards."""
    if isinstance(codec, ShardingCodec):
        return replace(codec, codecs=tuple(map(_codec_of_zarr, codec.codecs)))
    if isinstance(codec, BytesCodec):  # zarr 3.1.6 needs an endian for any structure
        return BytesCodec(endian=codec.endian or "little")
    return codec


async def _length_in_header(array: AnyArray, chunk: StoredChunk) -> int | None:
    """Return how far Blosc reads: as its header says, even beyond the chunk; None if unknown."""
    if not chunk.num_bytes:
        return None
    start = RangeByteRequest(0, 16)
    header = await array.store.get(chunk.key, default_buffer_prototype(), start)
    stated = 0 if header is None else int.from_bytes(header.to_bytes()[12:16], "little")
    return max(chunk.num_bytes, stated)


async def _problem_of_member(array: AnyArray, chunk: StoredChunk) -> str:
    """Return the problem with a member of a zip archive, or "": to read it checks its CRC-32."""
    found = await async_value_or_error(array.store.get(chunk.key, default_buffer_prototype()))
    return f"can't be read: {describe_error(found)}" if isinstance(found, Exception) else ""


def _problem_with_length(chunk: StoredChunk, expected: int | None) -> str:
    """Return the problem with a chunk's length, or ""; `expected` is None for encoded chunks."""
    if isinstance(chunk.error, IsADirectoryError):
        return "is a folder, so zarr reads the fill value: remove it, or write the chunk again"
    if chunk.error is not None:
        return f"can't be read: {describe_error(chunk.error)}"
    num_bytes = chunk.num_bytes or 0
    if expected is None:
        return "" if num_bytes else "holds 0 bytes: it is truncated"
    if num_bytes == expected:
        return ""
    why = "it is truncated" if num_bytes < expected else "it has another shape or is compressed"
    return f"holds {num_bytes} bytes, expected {expected}: {why}"


async def _problems_in(array: AnyArray, all_coords: list[ChunkCoords]) -> dict[ChunkCoords, str]:
    """Decode chunks, and return the problems of those that have any."""

    async def problems_in(run: list[ChunkCoords]) -> dict[ChunkCoords, str]:
        # To decode chunks together takes a fraction of the time.
        if len(run) > 1 and not await _problem_in(array, run):
            return {}
        return {coords: await _problem_in(array, [coords]) for coords in run}

    runs = [(run,) for run in _runs(all_coords)]
    found = await concurrent_map(runs, problems_in, concurrency())
    return {coords: problem for problems in found for coords, problem in problems.items()}


def _runs(all_coords: list[ChunkCoords]) -> Iterator[list[ChunkCoords]]:
    """Yield lists of chunks that are next to each other along the last axis."""
    run: list[ChunkCoords] = []
    for coords in sorted(all_coords):
        if run and coords != (*run[-1][:-1], run[-1][-1] + 1):
            yield run
            run = []
        run.append(coords)
    if run:
        yield run


async def _problem_in(array: AnyArray, run: list[ChunkCoords]) -> str:
    """Decode chunks that are next to each other, and return their problem, or ""."""
    num_invalid = 0
    for region in _regions_of(array, run[0], run[-1]):
        decoded = await async_value_or_error(array.async_array.getitem(region))
        if isinstance(decoded, Exception):
            why = f" (the shard may be damaged: {REMEDY})" if array.shards else ""
            return f"can't be read: {describe_error(decoded)}{why}"
        num_invalid += _count_invalid(np.asarray(decoded))
    if not num_invalid:
        return ""
    are = "that is" if num_invalid == 1 else "that are"
    return (
        f"holds {plural(num_invalid, 'bool')} {are} neither 0 nor 1: read as true here, and "
        "unchanged by other libraries"
    )


def _regions_of(
    array: AnyArray, first: ChunkCoords, last: ChunkCoords
) -> Iterator[tuple[slice, ...]]:
    """Yield the regions to decode at a time: of a shard, rows of about 64 MiB."""
    shape = array.shards or array.chunks
    grid = zip(first, last, shape, array.shape, strict=True)
    chunks = tuple(slice(i * n, min((j + 1) * n, size)) for i, j, n, size in grid)
    if not array.shards:
        yield chunks
        return
    rows, *others = chunks
    row_bytes = math.prod(shape[1:]) * array.chunks[0] * array.dtype.itemsize
    num = array.chunks[0] * max((1 << 26) // max(row_bytes, 1), 1)
    for start in range(rows.start, rows.stop, num):
        yield (slice(start, min(start + num, rows.stop)), *others)


def _count_invalid(elements: Array) -> int:
    """Count the bools that are stored as neither 0 nor 1."""
    if elements.dtype.names:
        return sum(_count_invalid(elements[name]) for name in elements.dtype.names)
    return int(np.count_nonzero(elements.view("u1") > 1)) if elements.dtype.kind == "b" else 0


def _report_listing(
    array: AnyArray,
    beside: list[Listed],
    num_in_all: int,
    report: ArrayReport,
    limits: Limits,
) -> None:
    """Report folders that can't be listed, how many chunks there are, misnamed and other files."""
    errors = [each.name for each in beside if each.kind == "error"]
    for error in errors:
        report.add_problem(f"a folder of chunks can't be listed: {error}")
    others = [each.name for each in beside if each.kind == "other"]
    others += _report_misnamed(array, beside, report)
    num_chunks = report.num_chunks
    if num_chunks == limits.max_chunks:
        report.notes.append(f"{num_chunks} of {num_in_all} chunks were checked")
        return
    num_tried = num_in_all
    if num_in_all and any(each.kind == "unlisted" for each in beside):
        num_tried = min(num_in_all, MAX_UNLISTED)
        tried = f"{num_tried} of {num_in_all} names of chunks were tried"
        report.notes.append(f"{tried}: the store lists none")
    if num_chunks < num_tried == num_in_all:
        is_sure = not errors
        missing = "missing ones are read as the fill value" if is_sure else "others were not found"
        report.notes.append(f"{num_chunks} of {num_in_all} chunks are present; the {missing}")
    if others:
        files, names = plural(len(others), "file"), ", ".join(others[:3])
        more = ", ..." if len(others) > 3 else ""
        note = f"zarr does not read {files}, because no chunk has such a name: {names}{more}"
        report.notes.append(note)


def _report_misnamed(array: AnyArray, beside: list[Listed], report: ArrayReport) -> list[str]:
    """Report chunks that have another name; return the names of those that also have their own."""
    misnamed = [each for each in beside if each.kind == "misnamed"]
    found = chunks_at(array, [each.chunk_coords for each in misnamed])
    present = {chunk.chunk_coords for chunk in found}
    for each in misnamed:
        if each.chunk_coords not in present:
            key = join(array.path, array.metadata.encode_chunk_key(each.chunk_coords))
            report.add_problem(
                f"chunk {key} is missing, but there is {join(array.path, each.name)}: the "
                "separator or the chunk key encoding in the metadata may be wrong"
            )
    return [each.name for each in misnamed if each.chunk_coords in present]
