"""What is wrong with the chunks of an array, and what to do: here, all of them have been seen."""

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import StorePath, ZipStore
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.dtypes import EndianError
from numcodecs_bytes._core.lengths import (
    BLOSC_START,
    FIND_OTHERS,
    Advice,
    LengthError,
    SuspectChunk,
    advise_on_codecs,
    explain_stand_in,
)
from numcodecs_bytes._plan.shards import NO_INDEX_ENDIAN, REMEDY
from numcodecs_bytes._sources.shard_index import explain_shard
from numcodecs_bytes._sources.stores import kind_of_reference, start_of
from numcodecs_bytes._tools.arrays import Grid, layout_of
from numcodecs_bytes._tools.reporting import ArrayReport, describe_error, describe_failure
from numcodecs_bytes._tools.stored_chunks import ChunkCoords, StoredChunk
from numcodecs_bytes._zarr_api.file_systems import references_of, target_of_chunk
from numcodecs_bytes._zarr_api.names import reference_of

# By the length of an element in bytes.
_DTYPES = {
    1: "int8 or uint8",
    2: "int16, uint16 or float16",
    4: "int32, uint32 or float32",
    8: "int64, uint64, float64 or complex64",
    16: "complex128",
}

_ARCHIVE = ": restore the archive"

# What errors of zarr and NumPy say, in words.
_IN_WORDS = (
    (r"LengthError: chunk holds", "{it} holds"),
    (r".*cannot reshape array of size (\d+) into", r"{it} holds \1 elements, expected those of"),
    (r".*changing to a larger dtype.*", "{it} ends within an element"),
    (r".*checksum do not match.*", "a checksum is wrong"),
)


@dataclass(frozen=True)
class CheckedArray:
    """An array whose chunks are checked."""

    array: AnyArray
    grid: Grid
    codecs: list[str]  # their names
    item_size: int | None  # the length of a stored element in bytes; None if a codec changes it


class Problem(NamedTuple):
    """What is wrong with a chunk."""

    what: str  # such as "holds 5 bytes, expected 16"
    advice: Advice | None = None
    # How long the chunk should be, if it has the wrong length, and what to do follows from that of
    # others; 0 if that is not known.
    expected: int | None = None
    num_elements: int | None = None  # how many it holds instead of those of a chunk, if known
    is_readable: bool = False


@dataclass
class FoundChunks:
    """What is found of the chunks of an array."""

    first: ChunkCoords | None = None  # the first chunk that can be read
    # How many have each length; None: they can't be read.
    lengths: Counter[int | None] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)  # of problems, up to two
    wrong: list[tuple[StoredChunk, Problem]] = field(default_factory=list)  # the first ten
    num_wrong: int = 0
    num_unreadable: int = 0
    num_unreadable_inside: int = 0  # those that are not at the edge of the array
    has_padding: bool = False  # whether a chunk at the edge of the array has its full length

    def add(self, chunk: StoredChunk, problem: Problem | None, *, is_at_edge: bool) -> None:
        """Keep what is found of a chunk."""
        if self.first is None and chunk.num_bytes:  # of an empty one, no byte can be requested
            self.first = chunk.chunk_coords
        self.lengths[chunk.num_bytes] += 1
        if problem is None:
            self.has_padding |= is_at_edge
            return
        self.num_wrong += 1
        self.num_unreadable += not problem.is_readable
        self.num_unreadable_inside += not (problem.is_readable or is_at_edge)
        if len(self.wrong) < 10:
            self.wrong.append((chunk, problem))
        if len(self.kinds) < 2:
            kind = problem.advice.text if problem.advice else problem.what
            self.kinds.add(kind if problem.expected is None else "")

    @property
    def others_can_be_read(self) -> bool | None:
        """Whether other chunks can be read than those that can't.

        None if that is not known, or none can for several reasons: each may be damaged in its way.
        """
        if self.num_unreadable < self.lengths.total():
            return True
        return False if self.num_unreadable > 1 and len(self.kinds) == 1 else None

    @property
    def may_lack_padding(self) -> bool:
        """Whether chunks at the edge may be wrong for another reason than those inside, if any."""
        is_of_edge = self.others_can_be_read is not False or not self.num_unreadable_inside
        return is_of_edge and not self.has_padding


def report_wrong_chunks(checked: CheckedArray, report: ArrayReport, found: FoundChunks) -> None:
    """Report what is wrong with each chunk, and what to do; once, if all have the same problem."""
    store = checked.array.store
    names = [f"{chunk.key}{reference_of(store, chunk.key)}" for chunk, _ in found.wrong]
    texts = [_advise(checked, chunk, problem, found) for chunk, problem in found.wrong]
    are_alike = len(found.kinds) == 1 and len(set(texts)) == 1
    if found.num_wrong == report.num_chunks > 1 and are_alike:
        (_, problem), each = found.wrong[0], f"each of its {found.num_wrong} chunks"
        what = f"{each}, such as {names[0]}, {problem.what}"
        if problem.expected is not None and len(found.lengths) > 1:
            what = f"{each} has the wrong length, such as {names[0]}, which {problem.what}"
        elif len({other.what for _, other in found.wrong}) > 1:
            what = f"{each} has a similar problem, such as {names[0]}, which {problem.what}"
        report.add_problem(f"{what}{texts[0]}")
        return
    for name, (_, problem), text in zip(names, found.wrong, texts, strict=True):
        report.add_problem(f"chunk {name} {problem.what}{text}")
    report.num_problems += found.num_wrong - len(found.wrong)


def _advise(checked: CheckedArray, chunk: StoredChunk, problem: Problem, found: FoundChunks) -> str:
    """Return what to do with a chunk, after a colon; or ""."""
    if problem.expected is not None:
        return f": {_advise_on_length(checked, chunk, problem, found)}"
    if found.may_lack_padding and (why := _why_not_padded(checked, chunk, problem)):
        return f": {why}"
    if problem.advice is None:
        return ""
    return f": {problem.advice.given(others_can_be_read=found.others_can_be_read)}"


def _advise_on_length(
    checked: CheckedArray, chunk: StoredChunk, problem: Problem, found: FoundChunks
) -> str:
    """Return what may be wrong with a chunk of the wrong length, and what to do."""
    store, num_bytes, others = checked.array.store, chunk.num_bytes or 0, found.others_can_be_read
    # A pipe has 0 bytes: reading it might never end.
    start = sync(start_of(StorePath(store, chunk.key), num_bytes)) if num_bytes else b""
    reference, expected = kind_of_reference(store, chunk.key), problem.expected or 0
    suspect = SuspectChunk(num_bytes, expected, start, reference)
    if advice := suspect.explain_start():
        return advice.given(others_can_be_read=others)
    if found.may_lack_padding and (why := _why_not_padded(checked, chunk, problem)):
        return why
    dtypes = ""
    if checked.item_size is not None:
        dtypes, num_alike = _dtypes_of_length(checked.array, num_bytes), found.lengths[num_bytes]
        if others and num_alike > 1 and num_bytes and not reference:
            may_be_intact = f"{num_alike} chunks have that length, and may be intact{dtypes}"
            return f"{may_be_intact}: keep them, and convert or restore them"
    is_alike = len(found.lengths) == 1 and (num_bytes > expected or dtypes)
    if others is False and num_bytes and not is_alike:  # each may be damaged in its own way
        return str(advise_on_codecs(reference))
    return suspect.explain().given(others_can_be_read=others) + (dtypes if others is False else "")


def _why_not_padded(checked: CheckedArray, chunk: StoredChunk, problem: Problem) -> str:
    """Return what to do with a chunk that holds just the elements inside the array, or ""."""
    grid, coords = checked.grid, chunk.chunk_coords
    shape = grid.chunk_shape(coords)
    inside = tuple(s.stop - s.start for s in grid.region(coords, coords))
    if inside == shape or problem.num_elements != math.prod(inside):
        return ""
    return (
        f"if another program wrote only the elements inside the array, of shape {inside}, keep it, "
        f"and pad it along each axis to {shape}; otherwise, restore or rewrite it"
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


def problem_with_length(
    checked: CheckedArray, chunk: StoredChunk, expected: int | None = None
) -> Problem | None:
    """Return the problem with a chunk's length, if any, or why the chunk can't be read.

    Without an expected length, it is that of its elements, or any but 0 if they are encoded.
    """
    num_bytes, item_size = chunk.num_bytes or 0, checked.item_size
    if chunk.error is not None:
        return Problem(describe_chunk(checked.array.store, chunk.key, chunk.error))
    if expected is None and item_size is None:
        return None if num_bytes else Problem("holds 0 bytes", expected=0)
    if expected is None:
        expected = math.prod(checked.grid.chunk_shape(chunk.chunk_coords)) * (item_size or 0)
    if num_bytes == expected:
        return None
    num_elements, rest = divmod(num_bytes, item_size or 1)
    return Problem(
        f"holds {num_bytes} bytes, expected {expected}",
        expected=expected,
        num_elements=None if rest or item_size is None else num_elements,
    )


def problem_with_blosc(checked: CheckedArray, chunk: StoredChunk, start: bytes) -> Problem | None:
    """Return the problem with a header of Blosc, if any: Blosc reads as far as that says."""
    expected = int.from_bytes(start[12:16], "little")
    if expected <= (chunk.num_bytes or 0):
        return None
    if start.startswith(BLOSC_START):
        return problem_with_length(checked, chunk, expected)
    if advice := _explain_encoding(checked, chunk, start):
        return Problem("can't be read", advice)
    advice = advise_on_codecs(kind_of_reference(checked.array.store, chunk.key))
    return Problem("can't be read: it does not begin like data of Blosc", advice)


async def problem_with_decoding(
    checked: CheckedArray, chunk: StoredChunk, error: Exception
) -> Problem:
    """Return the problem with a chunk that can't be decoded."""
    stored, is_sharded = StorePath(checked.array.store, chunk.key), checked.grid.is_sharded
    start = await start_of(stored)
    if not start:  # the error is the store's
        return Problem(_describe_failure(stored.store, stored.path, error))
    if why := explain_stand_in(start):
        return Problem("can't be read", Advice(why))
    if is_sharded:
        layout = value_or_error(layout_of, checked.array, chunk.chunk_coords)
        advice = await explain_shard(stored, layout)
    else:
        advice = _explain_encoding(checked, chunk, start)
    if advice is not None:
        what = f"can't be read: {advice.what}" if advice.what else "can't be read"
        return Problem(what, advice._replace(what=""))
    if isinstance(error, EndianError) and is_sharded:
        return Problem(f"can't be read: {NO_INDEX_ENDIAN}")
    text = describe_error(error).removesuffix(FIND_OTHERS)
    it = "an inner chunk" if is_sharded else "once decoded, it"
    for pattern, in_words in _IN_WORDS:
        text = re.sub(pattern, in_words.format(it=it), text)
    if is_sharded and isinstance(error, LengthError):  # it says what to do
        return Problem(f"can't be read: {text}")
    if is_sharded:
        return Problem(f"can't be read: {text} (the shard may be damaged)", REMEDY)
    what = f"can't be read: {text.partition('; ')[0] if isinstance(error, LengthError) else text}"
    advice = advise_on_codecs(kind_of_reference(stored.store, stored.path))
    return Problem(what, advice, num_elements=_num_decoded(error))


def _num_decoded(error: Exception) -> int | None:
    """Return how many elements a chunk was decoded to, if an error says so."""
    if isinstance(error, LengthError):
        return error.num_elements
    in_text = re.search(r"(?:reshape array of size|states that it holds) (\d+) ", str(error))
    return None if in_text is None else int(in_text[1])


def _explain_encoding(checked: CheckedArray, chunk: StoredChunk, start: bytes) -> Advice | None:
    """Return how a chunk seems to be encoded if not by its codecs, and what to do."""
    dtype, shape = checked.array.dtype, checked.grid.chunk_shape(chunk.chunk_coords)
    num_decoded = -1 if dtype.hasobject else math.prod(shape) * dtype.itemsize
    suspect = SuspectChunk(chunk.num_bytes or 0, num_decoded, start)
    return suspect.explain_encoding(checked.codecs)


def describe_chunk(store: Store, key: str, error: Exception) -> str:
    """Return why a chunk can't be read, and what to do."""
    if kind_of_reference(store, key):
        target = value_or_error(target_of_chunk, store, key)
        file = "" if isinstance(target, Exception) else target[0]
        is_relative = file and "://" not in file and not Path(file).is_absolute()
        if is_relative and isinstance(error, FileNotFoundError):
            what = f"{file} is missing: it is relative to the current folder, {Path.cwd()}"
            return f"can't be read: {what}: run this in another one, or refer to its absolute path"
        return _describe_failure(store, key, error)
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


def _describe_failure(store: Store, key: str, error: Exception) -> str:
    """Describe the error with which a store, or what a reference points to, returns no chunk."""
    has_references = references_of(store) is not None
    options = "remote_options of the storage options" if has_references else "storage options"
    is_reference = bool(kind_of_reference(store, key))
    return describe_failure(error, is_reference=is_reference, options=options)
