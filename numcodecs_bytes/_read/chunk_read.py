"""Chunk reads: what is known about a chunk that is read, and what became of it."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.lengths import LengthError
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection, out_selection_of, size_of
from numcodecs_bytes._plan.outcome import (
    PENDING,
    AlreadyInMemory,
    FetchCounts,
    LeftToZarr,
    NoReference,
    Outcome,
    leave_to_zarr,
)
from numcodecs_bytes._plan.selection import moved_to_start
from numcodecs_bytes._plan.shards import AnyLayout, LayoutOf, ShardLayout
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.stores import ChunkLocator, Extent, ObjectExtent, kind_of_reference
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.file_systems import target_of_chunk
from numcodecs_bytes._zarr_api.names import name_of_chunk
from numcodecs_bytes._zarr_api.versions import fill_value_or_default

# Why a chunk was fetched whole, if nothing else is the reason.
_GAPS = "the gaps between the selected bytes are short"
_AS_FAST = "a part would take as long, since the chunk is small, or the gaps are short"


@dataclass(slots=True, eq=False)
class ChunkRead:
    """What is read of a chunk, where that belongs, and what became of it."""

    request: ChunkRequest  # zarr's, which it gets back if the chunk is left to it
    chunk_selection: Any  # that of the request, or moved to the start of the chunk
    out_selection: OutSelection  # in the output; or, on a GPU, in the box of the chunk's group
    layout: AnyLayout
    extent: Extent | None = None  # None: nobody knows it, and zarr reads the chunk
    outcome: Outcome = PENDING
    selection_offset: int = 0  # of the origin of `chunk_selection` in the chunk, in bytes

    @property
    def file_extent(self) -> FileExtent:
        """Where a chunk is that is in a file."""
        return cast("FileExtent", self.extent)

    @property
    def object_extent(self) -> ObjectExtent:
        """Where a chunk is that is requested."""
        return cast("ObjectExtent", self.extent)

    @property
    def checks_crc(self) -> bool:
        """Whether a checksum is checked, if the chunk has one: all of the chunk is selected."""
        return self.request.is_complete

    def share_plan(self) -> None:
        """Move the selection to the start of the chunk: then samples at random share a plan."""
        if isinstance(layout := self.layout, Layout):
            elements = (1,) * len(layout.shape)
            moved, distances = moved_to_start(self.chunk_selection, layout.shape, elements)
            self.chunk_selection = moved
            self.selection_offset += sum(map(operator.mul, distances, layout.strides))

    def num_gap_bytes(self, num_in_ranges: int, missing: Iterable[OutSelection] = ()) -> int:
        """Return how many bytes of the ranges were in gaps, if a trace counts them.

        `missing` is what is selected of inner chunks that do not exist.
        """
        if not traces.active:
            return 0
        num_elements = size_of(self.out_selection) - sum(map(size_of, missing))
        return max(num_in_ranges - num_elements * self.layout.item_size, 0)

    def read_as_missing(self, out: Output, fetched: FetchCounts) -> None:
        """Fill what is selected of the chunk, because it does not exist."""
        self.fill(out, [self.out_selection])
        self.outcome = Outcome("missing", fetched=fetched)

    def fill(self, out: Output, out_selections: Iterable[OutSelection]) -> None:
        """Fill parts of the output with the fill value."""
        fill_value = fill_value_or_default(self.request.spec)
        with out.lock:
            out.raise_if_cancelled()
            for out_selection in out_selections:
                out.array[out_selection] = fill_value

    def record_read_by_zarr(self, *, exists: bool) -> None:
        """Record that zarr has read a chunk that was left to it."""
        # zarr 3.1.6 does not tell whether a chunk exists.
        exists = exists and not issubclass(self.outcome.kind, NoReference)
        status: Literal["present", "missing"] = "present" if exists else "missing"
        num_requests, num_bytes, *_ = self.outcome.fetched  # what was fetched here was in vain
        fetched = FetchCounts(
            num_requests + 1, num_bytes + (self.layout.num_bytes if exists else 0)
        )
        if issubclass(self.outcome.kind, AlreadyInMemory | NoReference):
            fetched = FetchCounts(num_bytes_by_zarr=0)  # zarr fetched nothing either
        self.outcome = self.outcome._replace(status=status, is_by_zarr=True, fetched=fetched)

    def check_length(self, num_bytes: int, start: bytes) -> None:
        """Raise LengthError unless a chunk has the length that its layout gives."""
        layout, byte_getter = self.layout, self.request.byte_getter
        if not isinstance(layout, Layout) or num_bytes == layout.num_bytes:
            return
        store, name = getattr(byte_getter, "store", None), name_of_chunk(byte_getter)
        path = getattr(byte_getter, "path", "")
        target = value_or_error(target_of_chunk, store, path)
        part = None if isinstance(target, Exception) else target[1]
        if part and num_bytes > part[1]:
            raise LengthError(
                f"got {num_bytes} bytes for {name}: the server ignored the byte range and sent the "
                "whole file; use a server that serves byte ranges, or a local copy"
            )
        layout.check_length(num_bytes, name, start, reference=kind_of_reference(store, path))

    def counts(self) -> traces.Counts:
        """Return what `numcodecs_bytes.trace` counts of the chunk."""
        outcome = self.outcome
        if outcome.is_left:  # zarr failed to read it
            return {("not_seen", outcome.why): 1} if outcome.why else {}
        is_missing = outcome.status == "missing"
        if outcome.is_by_zarr and not is_missing and isinstance(self.layout, ShardLayout):
            # How much zarr fetches of a shard is not known.
            return {("not_seen", outcome.why or "most of a shard is selected"): 1}
        num_requests, num_fetched, by_zarr, num_in_gaps = outcome.fetched
        counts: traces.Counts = {
            "chunks": 1,
            "requests": num_requests,
            "bytes_fetched": num_fetched,
            "bytes_in_gaps": num_in_gaps,
        }
        if is_missing:
            return counts | {"chunks_missing": 1}
        num_bytes = self.layout.num_bytes
        num_selected = size_of(self.out_selection) * self.layout.item_size
        by_zarr = num_bytes if by_zarr is None else by_zarr
        counts |= {"bytes_zarr_alone": by_zarr, "bytes_selected": num_selected}
        # A chunk counts as read whole if less than nine tenths of it was selected, and all of it
        # was fetched; or nothing, since it was in memory.
        is_whole = num_fetched >= 0.9 * num_bytes or not by_zarr
        if num_selected < 0.9 * num_bytes and is_whole:
            default = _AS_FAST if outcome.is_by_zarr else _GAPS
            counts |= {"chunks_whole": 1, ("why_whole", outcome.why or default): 1}
        return counts


def chunk_reads(
    requests: Sequence[ChunkRequest], layout_of: LayoutOf, locator: ChunkLocator | None = None
) -> list[ChunkRead]:
    """Return what is read of the chunks that zarr requests, and where each is, by the locator."""
    chunks = []
    for request in requests:
        out_selection, layout = out_selection_of(request.out_selection), layout_of(request.spec)
        chunk = ChunkRead(request, request.chunk_selection, out_selection, layout)
        try:
            chunk.extent = locator(request.byte_getter.path) if locator else None
        except LeftToZarr as why:
            leave_to_zarr([chunk], why)
        chunks.append(chunk)
    return chunks
