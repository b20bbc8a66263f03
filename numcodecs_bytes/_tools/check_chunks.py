"""Checks the chunks of an array for `check`: their lengths, decoding errors, invalid bools.

Chunks are decoded by zarr's own codecs, and take as much memory as they do in zarr.
"""

import itertools
import json
import math
import operator
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numcodecs
import numpy as np
from numcodecs.compat import ensure_bytes
from zarr.abc.codec import ArrayBytesCodec, Codec
from zarr.abc.store import Store
from zarr.codecs import BytesCodec, ShardingCodec, VLenBytesCodec, VLenUTF8Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer, default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.common import concurrent_map
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync
from zarr.storage import StorePath, ZipStore
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import async_value_or_error, value_or_error
from numcodecs_bytes._core.dtypes import (
    Array,
    EndianError,
    leaf_dtypes,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes._core.lengths import (
    BLOSC_START,
    CORRECT_OR_RESTORE,
    FIND_OTHERS,
    LengthError,
    SuspectChunk,
    explain_stand_in,
)
from numcodecs_bytes._plan.shards import NO_INDEX_ENDIAN, REMEDY
from numcodecs_bytes._sources.shard_index import explain_shard
from numcodecs_bytes._sources.stores import kind_of_reference, start_of
from numcodecs_bytes._tools.arrays import Grid, array_of, layout_of
from numcodecs_bytes._tools.documents import join, local_path
from numcodecs_bytes._tools.reporting import (
    ArrayReport,
    Limits,
    ProgressBar,
    describe_error,
    describe_failure,
)
from numcodecs_bytes._tools.stored_chunks import (
    LEFTOVER,
    MAX_UNLISTED,
    ChunkCoords,
    Listed,
    StoredChunk,
    chunks_at,
    find_chunks,
)
from numcodecs_bytes._zarr_api.file_systems import references_of, target_of_chunk
from numcodecs_bytes._zarr_api.names import plural, reference_of
from numcodecs_bytes._zarr_api.v2_codec import V2Codec
from numcodecs_bytes._zarr_api.versions import concurrency

# Codecs whose chunks begin with how many elements they hold, for which numcodecs allocates memory.
_WITH_COUNTS = ("vlen-utf8", "vlen-bytes", "vlen-array")

# By the length of an element in bytes.
_DTYPES = {
    1: "int8 or uint8",
    2: "int16, uint16 or float16",
    4: "int32, uint32 or float32",
    8: "int64, uint64, float64 or complex64",
    16: "complex128",
}

_ARCHIVE = ": restore the archive"
_CONVERT = "keep them, and convert or restore them"

# What to do instead of `REMEDY` if no shard can be read.
_REMEDY_OF_ALL = (
    "if the metadata, or a consolidated copy of them, state a wrong data type, inner chunk shape, "
    "codecs, index_codecs or index_location, correct them; otherwise, restore the shards; until "
    "then, write nothing"
)

# What errors of zarr and NumPy say, in words.
_IN_WORDS = (
    (r"LengthError: chunk holds", "{it} holds"),
    (r".*cannot reshape array of size (\d+) into", r"{it} holds \1 elements, expected those of"),
    (r".*changing to a larger dtype.*", "{it} ends within an element"),
    (r".*checksum do not match.*", "a checksum is wrong"),
)


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
    found = _check_present(checks, report, limits, progress)
    if progress is not None:
        progress.update(num_in_all - report.num_chunks)
    _report_wrong_chunks(checks, report, found)
    if found.num_unread:
        what = f"{found.num_unread} of {report.num_chunks} members of the zip archive"
        limit = f"the limit is {limits.max_chunk_bytes} bytes"
        report.notes.append(f"the checksums of {what} were not checked: {limit}")
    _report_listing(array, found.beside, num_in_all, report, limits)
    return found.first


class _Problem(NamedTuple):
    """What is wrong with a chunk."""

    text: str  # such as "holds 5 bytes, expected 16"
    # How long the chunk should be, if it has the wrong length; 0 if that is not known.
    expected: int | None = None


@dataclass
class _Found:
    """What is found of an array."""

    beside: list[Listed] = field(default_factory=list)  # what is no chunk
    first: ChunkCoords | None = None  # the first chunk that can be read
    # How many have each length; None: they can't be read.
    lengths: Counter[int | None] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)  # of problems, up to two
    wrong: list[tuple[StoredChunk, _Problem]] = field(default_factory=list)  # the first ten
    num_wrong: int = 0
    num_wrong_lengths: int = 0
    has_padding: bool = False  # whether a chunk at the edge of the array has its full length
    num_unread: int = 0  # how many members of a zip archive are too long to be read

    def only_chunks(self, found: Iterator[StoredChunk | Listed]) -> Iterator[StoredChunk]:
        """Yield the chunks, and keep what else is found."""
        for each in found:
            if isinstance(each, StoredChunk):
                yield each
            else:
                self.beside.append(each)

    def add(self, chunk: StoredChunk, problem: _Problem | None) -> None:
        """Keep what is found of a chunk."""
        if self.first is None and chunk.num_bytes:  # of an empty one, no byte can be requested
            self.first = chunk.chunk_coords
        self.lengths[chunk.num_bytes] += 1
        if problem is None:
            return
        self.num_wrong += 1
        self.num_wrong_lengths += problem.expected is not None
        if len(self.wrong) < 10:
            self.wrong.append((chunk, problem))
        if len(self.kinds) < 2:
            self.kinds.add(problem.text if problem.expected is None else "")


def _check_present(
    checks: "_Checks", report: ArrayReport, limits: Limits, progress: ProgressBar | None
) -> _Found:
    """Check each chunk that exists, and return what is found."""
    found = _Found()
    chunks = itertools.islice(found.only_chunks(find_chunks(checks.array)), limits.max_chunks)
    while batch := list(itertools.islice(chunks, checks.num_at_once)):
        problems = checks.problems_of(batch)
        for chunk in batch:
            problem = problems.get(chunk.chunk_coords)
            found.add(chunk, problem)
            found.has_padding |= problem is None and checks.grid.is_at_edge(chunk.chunk_coords)
            found.num_unread += checks.leaves_unread(chunk)
        report.num_chunks += len(batch)
        if progress is not None:
            progress.update(len(batch))
    return found


def _report_wrong_chunks(checks: "_Checks", report: ArrayReport, found: _Found) -> None:
    """Report what is wrong with each chunk, and what to do; once, if all have the same problem."""
    store = checks.array.store
    num_fitting = report.num_chunks - found.num_wrong_lengths - found.lengths[None]
    is_known = report.num_chunks > 1 and (num_fitting or not found.lengths[None])
    others_fit = num_fitting > 0 if is_known else None
    advice = [
        ""
        if problem.expected is None
        else _advice_on_length(checks, chunk, problem.expected, found, others_fit=others_fit)
        for chunk, problem in found.wrong
    ]
    names = [f"{chunk.key}{reference_of(store, chunk.key)}" for chunk, _ in found.wrong]
    are_others_fine = found.num_wrong < report.num_chunks if report.num_chunks > 1 else None
    texts = [
        _settled(problem.text, found.kinds, are_others_fine=are_others_fine)
        for _, problem in found.wrong
    ]
    are_alike = len(found.kinds) == 1 and len(set(advice)) == 1
    if found.num_wrong == report.num_chunks > 1 and are_alike:
        all_of_them = f"each of its {found.num_wrong} chunks"
        what = f"{all_of_them}, such as {names[0]}, {texts[0]}"
        if found.num_wrong_lengths and len(found.lengths) > 1:
            what = f"{all_of_them} has the wrong length, such as {names[0]}, which {texts[0]}"
        report.add_problem(f"{what}{advice[0]}".replace(REMEDY, _REMEDY_OF_ALL))
        return
    for name, text, why in zip(names, texts, advice, strict=True):
        report.add_problem(f"chunk {name} {text}{why}")
    report.num_problems += found.num_wrong - len(found.wrong)


def _settled(text: str, kinds: set[str], *, are_others_fine: bool | None) -> str:
    """Return a text without the alternative that other chunks rule out, if that is known.

    Reads leave open whether other chunks can be read; here, all have been.
    """
    alternatives = re.search(r"if other (chunks|shards) can be read, (.*?); otherwise, (.*)", text)
    if alternatives is None or are_others_fine is None or (not are_others_fine and len(kinds) > 1):
        return text
    remedy = f"other {alternatives[1]} can be read: {alternatives[2]}"
    return text[: alternatives.start()] + (remedy if are_others_fine else alternatives[3])


def _advice_on_length(
    checks: "_Checks",
    chunk: StoredChunk,
    expected: int,
    found: _Found,
    *,
    others_fit: bool | None,
) -> str:
    """Return what may be wrong with a chunk of the wrong length, and what to do."""
    array, num_bytes, lengths = checks.array, chunk.num_bytes or 0, found.lengths
    # A pipe has 0 bytes: reading it might never end.
    start = sync(start_of(StorePath(array.store, chunk.key), num_bytes)) if num_bytes else b""
    reference, dtype = kind_of_reference(array.store, chunk.key), ""
    wrong = SuspectChunk(num_bytes, expected, start, reference, others_fit)
    if why := wrong.explain_start():
        return f": {why}"
    are_alike = len(lengths) == 1
    if checks.item_size is not None:  # they are not encoded
        if not found.has_padding and (why := _why_not_padded(array, chunk, expected)):
            return f": {why}"
        dtype, num_alike = _dtypes_of_length(array, num_bytes), lengths[chunk.num_bytes]
        if others_fit and num_alike > 1 and num_bytes and not reference:
            return f": {num_alike} chunks have that length, and may be intact{dtype}: {_CONVERT}"
    if others_fit is False and (not are_alike or (num_bytes < expected and not dtype)):
        wrong = wrong._replace(others_fit=None)  # each may be damaged in its own way
    return f": {wrong.explain()}{dtype if wrong.others_fit is False and are_alike else ''}"


def _why_not_padded(array: AnyArray, chunk: StoredChunk, expected: int) -> str:
    """Return what to do with a chunk that holds just the elements inside the array, or ""."""
    grid = Grid.of(array)
    shape = grid.chunk_shape(chunk.chunk_coords)
    inside = tuple(s.stop - s.start for s in grid.region(chunk.chunk_coords, chunk.chunk_coords))
    if inside == shape or chunk.num_bytes != expected // math.prod(shape) * math.prod(inside):
        return ""
    return (
        f"if another program wrote only the elements inside the array, of shape {inside}, keep it, "
        f"and pad it along each axis to {shape}; if it is truncated, restore or rewrite it"
    )


def _dtypes_of_length(array: AnyArray, num_bytes: int) -> str:
    """Return which data types would give the chunks of an array a length; or ""."""
    grid = Grid.of(array)
    item_size, rest = divmod(num_bytes, math.prod(grid.max_chunk_shape))
    names = _DTYPES.get(item_size, "")
    if rest or any(grid.starts) or array.dtype.kind not in "iufc" or not names:
        return ""
    of_shape = f"if the chunk shape {grid.max_chunk_shape} is right, these may be {names}"
    return f" ({of_shape}; compare some values before you write)"


@dataclass(frozen=True)
class _Checks:
    """What is checked of the chunks of an array."""

    array: AnyArray
    grid: Grid
    codecs: list[str]  # their names
    item_size: int | None  # the length of a stored element in bytes; None if a codec changes it
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

    def expected_length(self, chunk_coords: ChunkCoords) -> int | None:
        """Return the expected length of a chunk in bytes; None if a codec changes it."""
        if self.item_size is None:
            return None
        return math.prod(self.grid.chunk_shape(chunk_coords)) * self.item_size

    def problems_of(self, batch: list[StoredChunk]) -> dict[ChunkCoords, _Problem]:
        """Return the problems of those chunks that have any."""
        found: dict[ChunkCoords, _Problem | None] = {}
        for chunk in batch:
            expected = self.expected_length(chunk.chunk_coords)
            found[chunk.chunk_coords] = _problem_with(self.array.store, chunk, expected)
        if self.codecs[-1:] in (["blosc"], ["numcodecs.blosc"]) and not self.grid.is_sharded:
            encoded = [(self, chunk) for chunk in batch if found[chunk.chunk_coords] is None]
            of_headers = sync(concurrent_map(encoded, _problem_of_blosc, concurrency()))
            found |= {
                chunk.chunk_coords: p for (_, chunk), p in zip(encoded, of_headers, strict=True)
            }
        if self.reads_members:
            intact = [chunk for chunk in batch if found[chunk.chunk_coords] is None]
            members = [chunk for chunk in intact if not self.leaves_unread(chunk)]
            arguments = [(self.array, chunk) for chunk in members]
            of_members = sync(concurrent_map(arguments, _problem_of_member, concurrency()))
            found |= dict(zip([chunk.chunk_coords for chunk in members], of_members, strict=True))
        if self.decoded is not None:
            to_decode = [chunk for chunk in batch if found[chunk.chunk_coords] is None]
            found |= sync(_problems_in(self, self.decoded, to_decode))
        return {coords: problem for coords, problem in found.items() if problem is not None}


def _checks_of(array: AnyArray, codecs: list[str], report: ArrayReport, limits: Limits) -> _Checks:
    """Return what is checked of the chunks of an array, and report what is not."""
    grid, item_size = Grid.of(array), None
    if codecs in ([], ["bytes"], ["endian"]):  # others change the length of chunks
        has_padding = array.metadata.zarr_format == 2 and not array.filters  # between fields
        dtype = array.dtype if has_padding else stored_dtype(pack_dtype(array.dtype), "little")
        item_size = dtype.itemsize
    decoded = _array_to_decode(array, codecs, report, limits, is_encoded=item_size is None)
    return _Checks(array, grid, codecs, item_size, decoded, limits.max_chunk_bytes)


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
    grid = Grid.of(array)
    chunk_shape = grid.inner_shape or grid.max_chunk_shape
    num_bytes = math.prod(chunk_shape) * array.dtype.itemsize
    if num_bytes > limits.max_chunk_bytes:
        report.notes.append(
            f"its chunks were not decoded: they have {num_bytes} bytes each, the limit is "
            f"{limits.max_chunk_bytes}"
        )
        return None
    if not has_bools and not any(name in _WITH_COUNTS for name in codecs):
        return array
    metadata = array.metadata
    decoded = array_of(metadata.to_dict(), array.store_path)
    if isinstance(metadata, ArrayV2Metadata):
        filters: Any = metadata.filters or ()
        filters = tuple(_CountedV2Filter(each, chunk_shape, each.codec_id) for each in filters)
        of_zarr: list[Codec] = [V2Codec(filters=filters, compressor=metadata.compressor)]
    else:
        of_zarr = [_codec_to_decode(codec) for codec in metadata.codecs]
    # zarr's config would set the pipeline as well, but for all threads.
    pipeline = BatchedCodecPipeline.from_codecs(of_zarr)
    object.__setattr__(decoded.async_array, "codec_pipeline", pipeline)
    return decoded


def _codec_to_decode(codec: Codec) -> Codec:
    """Return the codec that decodes in place of another one, also in shards.

    zarr's own codec "bytes" passes bools on as they are stored; ours reads all but 0 as true.
    """
    if isinstance(codec, ShardingCodec):
        return replace(codec, codecs=tuple(map(_codec_to_decode, codec.codecs)))
    if isinstance(codec, VLenUTF8Codec | VLenBytesCodec):
        return _CountedVLen(codec)
    if isinstance(codec, BytesCodec):  # zarr 3.1.6 needs an endian for any structure
        return BytesCodec(endian=codec.endian or "little")
    return codec


@dataclass(frozen=True)
class _CountedVLen(ArrayBytesCodec):
    """A codec of elements of variable length that believes no count in a damaged chunk."""

    codec: VLenUTF8Codec | VLenBytesCodec
    is_fixed_size = False

    async def decode(
        self, chunks_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        chunks = list(chunks_and_specs)
        for chunk, spec in chunks:
            if chunk is not None:
                _check_count(chunk[:4].to_bytes(), spec.shape)
        return await self.codec.decode(chunks)

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        raise NotImplementedError  # it is not known


class _CountedV2Filter(NamedTuple):
    """A filter of a Zarr v2 array that believes no count in a damaged chunk."""

    codec: Any
    chunk_shape: tuple[int, ...]
    codec_id: str

    def decode(self, buf: Any) -> Any:
        if self.codec_id in _WITH_COUNTS:
            _check_count(bytes(ensure_bytes(buf)[:4]), self.chunk_shape)
        return self.codec.decode(buf)


def _check_count(header: bytes, chunk_shape: tuple[int, ...]) -> None:
    """Raise ValueError if a chunk states another number of elements: they would be allocated."""
    stated, expected = int.from_bytes(header, "little"), math.prod(chunk_shape)
    if stated != expected:
        raise ValueError(f"it states that it holds {stated} elements, expected {expected}")


async def _problem_of_blosc(checks: _Checks, chunk: StoredChunk) -> _Problem | None:
    """Return the problem with a header of Blosc, if any: Blosc reads as far as that says."""
    stored, num_bytes = StorePath(checks.array.store, chunk.key), chunk.num_bytes or 0
    header = await start_of(stored, num_bytes)
    expected = int.from_bytes(header[12:16], "little")
    if expected <= num_bytes:
        return None
    if not header.startswith(BLOSC_START):
        why = _explain_encoding(checks, chunk, header)
        no_blosc = f"it does not begin like data of Blosc ({CORRECT_OR_RESTORE})"
        return _Problem(f"can't be read: {why or no_blosc}")
    return _Problem(f"holds {num_bytes} bytes, expected {expected}", expected)


async def _problem_of_member(array: AnyArray, chunk: StoredChunk) -> _Problem | None:
    """Return the problem with a member of a zip archive, if any: to read it checks its CRC-32."""
    found = await async_value_or_error(array.store.get(chunk.key, default_buffer_prototype()))
    if not isinstance(found, Exception):
        return None
    return _Problem(_describe(array.store, chunk.key, found))


def _problem_with(store: Store, chunk: StoredChunk, expected: int | None) -> _Problem | None:
    """Return the problem with a chunk's length, if any; `expected` is None for encoded chunks."""
    if chunk.error is not None:
        return _Problem(_describe(store, chunk.key, chunk.error))
    if expected is None:
        return None if chunk.num_bytes else _Problem("holds 0 bytes", expected=0)
    if chunk.num_bytes == expected:
        return None
    return _Problem(f"holds {chunk.num_bytes} bytes, expected {expected}", expected)


def _describe(store: Store, key: str, error: Exception) -> str:
    """Return why a chunk can't be read, and what to do."""
    if kind_of_reference(store, key):
        target = value_or_error(target_of_chunk, store, key)
        file = "" if isinstance(target, Exception) else target[0]
        is_relative = file and "://" not in file and not Path(file).is_absolute()
        if is_relative and isinstance(error, FileNotFoundError):
            what = f"{file} is missing: it is relative to the current folder, {Path.cwd()}"
            return f"can't be read: {what}: run this in another one, or refer to its absolute path"
        return describe_failure(error, is_reference=True)
    if isinstance(error, IsADirectoryError):
        what = "is a folder, so zarr reads the fill value"
        return f"{what}: move it away, or correct the separator"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        what = "is a symbolic link to a missing file, so zarr reads the fill value"
        return f"{what}: restore that file (git annex get and datalad get fetch theirs)"
    described = describe_failure(error)
    if isinstance(store, ZipStore):
        return f"{described.removesuffix(_ARCHIVE)}{_ARCHIVE}"
    return described


async def _problems_in(
    checks: _Checks, array: AnyArray, chunks: list[StoredChunk]
) -> dict[ChunkCoords, _Problem | None]:
    """Decode chunks, and return the problem of each, or none if there are none."""

    async def problems_in(run: list[StoredChunk]) -> dict[ChunkCoords, _Problem | None]:
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


async def _problem_in(checks: _Checks, array: AnyArray, run: list[StoredChunk]) -> _Problem | None:
    """Decode chunks that are next to each other, and return their problem, if any."""
    num_invalid = 0
    grid = Grid.of(array)
    first, last = run[0], run[-1]
    for region in _regions_of(array, grid, first.chunk_coords, last.chunk_coords):
        decoded = await async_value_or_error(array.async_array.getitem(region))
        if isinstance(decoded, Exception):
            chunk = StorePath(array.store, first.key)
            start = await start_of(chunk)
            if not start:  # the error is the store's
                is_reference = bool(kind_of_reference(array.store, chunk.path))
                return _Problem(describe_failure(decoded, is_reference=is_reference))
            if grid.is_sharded:
                layout = value_or_error(layout_of, array, first.chunk_coords)
                why = await explain_shard(chunk, layout)
            else:
                why = _explain_encoding(checks, first, start)
            return _Problem(f"can't be read: {why or _explain_decoding(decoded, start, grid)}")
        num_invalid += _count_invalid(np.asarray(decoded))
    if not num_invalid:
        return None
    are = "that is" if num_invalid == 1 else "that are"
    return _Problem(
        f"holds {plural(num_invalid, 'bool')} {are} neither 0 nor 1: read as true here, and "
        "unchanged by other libraries, until you write the array again"
    )


def _explain_encoding(checks: _Checks, chunk: StoredChunk, start: bytes) -> str:
    """Return how a chunk seems to be encoded if not by its codecs, and what to do; or ""."""
    dtype, shape = checks.array.dtype, checks.grid.chunk_shape(chunk.chunk_coords)
    num_decoded = -1 if dtype.hasobject else math.prod(shape) * dtype.itemsize
    suspect = SuspectChunk(chunk.num_bytes or 0, num_decoded, start)
    return suspect.explain_encoding(checks.codecs)


def _explain_decoding(error: Exception, start: bytes, grid: Grid) -> str:
    """Return why a chunk was not decoded, given its first bytes, and what to do."""
    text = describe_error(error).removesuffix(FIND_OTHERS)
    if why := explain_stand_in(start):
        return why
    if isinstance(error, EndianError) and grid.is_sharded:
        return NO_INDEX_ENDIAN
    it = "an inner chunk" if grid.is_sharded else "once decoded, it"
    for pattern, in_words in _IN_WORDS:
        text = re.sub(pattern, in_words.format(it=it), text)
    if isinstance(error, LengthError) and not grid.is_sharded:  # its advice is for shards, too
        return f"{text.partition('; ')[0]} ({CORRECT_OR_RESTORE})"
    if isinstance(error, LengthError):
        return text
    if grid.is_sharded:
        return f"{text} (the shard may be damaged: {REMEDY})"
    return f"{text} ({CORRECT_OR_RESTORE})"


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
    _report_leftovers(array, [each.name for each in beside if each.kind == "leftover"], report)
    misnamed = set(_report_misnamed(array, beside, report))
    num_misnamed = len({each.chunk_coords for each in misnamed})
    unread = [each for each in beside if each.kind in ("other", "misnamed")]
    others = [each.name for each in unread if each not in misnamed]
    num_chunks = report.num_chunks
    if num_chunks == limits.max_chunks and num_chunks < num_in_all:
        report.notes.append(f"{num_chunks} of {num_in_all} chunks were checked")
        return
    num_tried = num_in_all
    if num_in_all and any(each.kind == "unlisted" for each in beside):
        num_tried = min(num_in_all, MAX_UNLISTED)
        tried = f"{num_tried} of {num_in_all} possible chunk names were tried"
        report.notes.append(f"{tried}, because the store does not list its chunks")
    if num_chunks + num_misnamed < num_tried == num_in_all:
        missing = "others were not found" if errors else "missing ones are read as the fill value"
        if not isinstance(references_of(array.store), dict | None):
            missing += "; a chunk is missing, too, if its file of references, *.parq, is"
        report.notes.append(f"{num_chunks} of {num_in_all} chunks are present; the {missing}")
    if others:
        files, names = plural(len(others), "file"), ", ".join(others[:3])
        more = ", ..." if len(others) > 3 else ""
        note = f"zarr does not read {files}, because no chunk has such a name: {names}{more}"
        report.notes.append(note)


def _report_leftovers(array: AnyArray, names: list[str], report: ArrayReport) -> None:
    """Report the temporary files that writes have left, and how to remove them."""
    if not names:
        return
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    folder = local_path(array.store, array.path)
    how = ""
    if folder is not None and os.name == "posix" and str(folder).isprintable():
        find, extended = "find", " -regextype posix-extended"
        if sys.platform != "linux":
            find, extended = "find -E", ""
        path = shlex.quote(str(folder.resolve()))
        how = f": {find} {path}{extended} -type f -regex '{LEFTOVER.pattern}' -delete"
    files = "file is a leftover" if len(names) == 1 else "files are leftovers"
    report.notes.append(
        f"{len(names)} {files} of killed writes, or of writes that are not finished: {listed}; "
        f"remove them while nobody writes{how}"
    )


def _report_misnamed(array: AnyArray, beside: list[Listed], report: ArrayReport) -> list[Listed]:
    """Report chunks that are missing, but have another name; return these."""
    misnamed = [each for each in beside if each.kind == "misnamed"]
    present = {each.chunk_coords for each in chunks_at(array, [e.chunk_coords for e in misnamed])}
    missing = [each for each in misnamed if each.chunk_coords not in present]
    if missing:
        name, num = missing[0].name, len({each.chunk_coords for each in missing})
        key = join(array.path, array.metadata.encode_chunk_key(missing[0].chunk_coords))
        are = "chunk is missing, but has" if num == 1 else "chunks are missing, but have"
        how = "rename the files" if report.num_chunks else _how_to_name(array, name)
        if num < len(missing):
            how = "several files are for the same chunk: rename the right ones"
        report.add_problem(
            f"{num} {are} another name, such as {join(array.path, name)} instead of {key}: {how}"
        )
    return missing


def _how_to_name(array: AnyArray, name: str) -> str:
    """Return what to write in the metadata of an array, so that a chunk has a name."""
    encoding = "default" if name.startswith("c") else "v2"
    separator = "." if "." in name or (encoding == "v2" and "/" not in name) else "/"
    if array.metadata.zarr_format == 3:
        named = {"name": encoding, "configuration": {"separator": separator}}
        return f'write "chunk_key_encoding": {json.dumps(named)} in zarr.json'
    if encoding == "v2":
        return f'write "dimension_separator": "{separator}" in .zarray'
    return "rename the files"
