"""A chunk that is read or written: what is known about it, and what became of it.

Both are made here from what zarr passes to its pipelines, which is looked into nowhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec
from zarr.storage import StorePath

from numcodecs_bytes import _trace
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.output import Output
from numcodecs_bytes._engine.plan import Where
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._engine.stores import Source, SourceOf
from numcodecs_bytes._names import name_of_chunk
from numcodecs_bytes._trace import Fetched
from numcodecs_bytes._zarr_versions import fill_value_or_default

# A byte getter or setter, the specification of the chunk, what is selected of it, where that
# belongs in the output or the values, and whether it is the whole chunk.
ZarrItem = tuple[Any, ArraySpec, Any, Any, bool]
NOTHING = Fetched()
StoredAs = Callable[[ArraySpec], Layout | Shard]  # may raise `LeftToZarr`


class Outcome(NamedTuple):
    """What became of a chunk that is read."""

    status: Literal["present", "missing", "left to zarr"]
    why: str = ""  # it is left to zarr; remains when zarr has read it
    is_by_zarr: bool = False

    @property
    def is_left(self) -> bool:
        """Whether zarr has still to read it."""
        return self.status == "left to zarr"


@dataclass(slots=True, eq=False)
class ChunkRead:
    """What is read of a chunk, where that belongs, and what became of it."""

    item: ZarrItem  # passed on if the chunk is left to zarr
    getter: StorePath
    spec: ArraySpec
    selection: Any
    place: Where  # in the output
    stored: Layout | Shard
    source: Source | None = None
    outcome: Outcome | None = None
    fetched: Fetched = NOTHING

    def found(self, fetched: Fetched) -> None:
        """Note that the chunk has been read."""
        self.outcome, self.fetched = Outcome("present"), fetched

    def fill(self, out: Output, fetched: Fetched = NOTHING) -> None:
        """Fill the selection of a chunk that is missing."""
        with out.lock:
            out.check()
            out.array[self.place] = fill_value_or_default(self.spec)
        self.outcome, self.fetched = Outcome("missing"), fetched

    def leave(self, why: Exception, fetched: Fetched = NOTHING) -> None:
        """Leave the chunk to zarr: `LeftToZarr`, or an error of the system, becomes its outcome."""
        text = str(why) if isinstance(why, LeftToZarr) else str(why) or type(why).__name__
        self.outcome, self.fetched = Outcome("left to zarr", text), fetched

    def read_by_zarr(self, *, exists: bool) -> None:
        """Note that zarr has read a chunk that was left to it."""
        why = self.outcome.why if self.outcome else ""
        self.outcome = Outcome("present" if exists else "missing", why, is_by_zarr=True)
        num_bytes = self.fetched.num_bytes + (self.stored.num_bytes if exists else 0)
        self.fetched = Fetched(self.fetched.num_requests + 1, num_bytes)

    def check_length(self, num_bytes: int) -> None:
        """Raise ValueError unless a chunk has the length that its layout gives."""
        layout = self.stored
        if isinstance(layout, Layout) and num_bytes != layout.num_bytes:
            name = name_of_chunk(self.getter)
            check_length(num_bytes, layout.shape, layout.dtype, layout.stored, name)

    def note(self, out: Output) -> None:
        """Tell `numcodecs_bytes.trace` what became of the chunk."""
        outcome = self.outcome
        if outcome is None:  # the read failed before
            return
        if outcome.is_left or (outcome.is_by_zarr and isinstance(self.stored, Shard)):
            # Whatever is still left, zarr failed to read.
            if why := outcome.why or ("" if outcome.is_left else "most of a shard is selected"):
                _trace.note_not_seen(why)
            return
        num_selected = None
        if outcome.status == "present":
            num_selected = np.size(out.array[self.place]) * self.stored.item_size
        counts = _trace.counts_of_read(
            self.stored.num_bytes, num_selected, self.fetched, outcome.why
        )
        _trace.note(self.getter, len(self.spec.shape), counts)


class Batch(NamedTuple):
    """Selections of chunks of an array that are read together, and how."""

    chunks: Sequence[ChunkRead]
    out: Output
    num_workers: int | None  # the number of threads, if the user has set it
    gap: int | None  # the largest gap to read, in bytes, if the user has set it


def first_of(items: Sequence[ZarrItem]) -> tuple[Any, ArraySpec]:
    """Return the byte getter or setter of the first chunk, and its specification."""
    getter, spec, *_ = items[0]
    return getter, spec


def chunk_reads(
    items: Sequence[ZarrItem], stored_as: StoredAs, source_of: SourceOf | None = None
) -> list[ChunkRead]:
    """Return what is read, given what zarr passes; `source_of` says where chunks are."""
    chunks = []
    for item in items:
        getter, spec, selection, place, *_ = item
        place = place if isinstance(place, tuple) else (place,)
        chunk = ChunkRead(item, getter, spec, selection, place, stored_as(spec))
        try:
            chunk.source = source_of(getter.path) if source_of else None
        except LeftToZarr as why:
            chunk.leave(why)
        chunks.append(chunk)
    return chunks


@dataclass(slots=True, eq=False)
class ChunkWrite:
    """What is written to a chunk, and why it was left to zarr."""

    item: ZarrItem  # passed on if the chunk is left to zarr
    setter: StorePath
    spec: ArraySpec
    selection: Any
    place: Where  # in the values
    is_complete: bool  # whether the whole chunk is written
    path: str = ""  # of its file, if it is to be written in place
    why_left: str | None = None


def chunk_writes(items: Sequence[ZarrItem]) -> list[ChunkWrite]:
    """Return what is written, given what zarr passes."""
    return [ChunkWrite(item, *item[:5]) for item in items]
