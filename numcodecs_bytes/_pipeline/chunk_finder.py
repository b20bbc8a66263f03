"""Where the chunks of an array are, and which of them zarr reads anyway."""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import zarr

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._plan.gap_policy import UNLIMITED, GapPolicy
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.shards import AnyLayout, LayoutOf
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.store_states import StoreState, state_of
from numcodecs_bytes._sources.stores import (
    ChunkLocator,
    ObjectExtent,
    locator_for,
    may_be_cached,
    store_of,
)
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.options import max_gap_bytes


class ChunkFinder(NamedTuple):
    """Where the chunks of an array are, as its first read has found out.

    It is cached while the store and the options stay: to find it out again takes 4 to 6 % of the
    time in which zarr reads a small chunk.
    """

    store: Any
    attributes: list[object] | None  # of the store, such as its folder; None if it does not tell
    state: StoreState
    options: object  # of this package, which may name the class of the store
    prototype: object  # the kind of memory that chunks are read into
    source_of: ChunkLocator | None = None  # None: zarr reads all chunks
    why_by_zarr: LeftToZarr = LeftToZarr()
    max_gap: int | None = None  # the largest gap to read, in bytes, if the user has set it
    are_short_objects: bool = False  # whether chunks are too short to be requested in parts

    @property
    def may_be_cached(self) -> bool:
        """Whether it stays right: a strike ends after a while."""
        return may_be_cached(self.store) and not self.state.is_struck

    def is_valid(self, item: ChunkRequest) -> bool:
        """Whether it still says where a chunk is."""
        if self.attributes is None or getattr(item.byte_getter, "store", None) is not self.store:
            return False
        # A store may be moved, opened, or given another file system: then its attributes are other
        # objects. Those that are equal, but not the same, only cost the time to find it out again;
        # one that is new was not used.
        is_same = all(map(operator.is_, list(vars(self.store).values()), self.attributes))
        # zarr makes an equal prototype for each selection.
        is_same = is_same and item.spec.prototype == self.prototype
        return is_same and _options() == self.options and not self.state.is_struck

    def file_of(self, path: str) -> FileExtent:
        """Return the file of a chunk; raise `LeftToZarr` if it is not in a file."""
        if self.source_of is None:
            raise self.why_by_zarr.without_frames()
        source = self.source_of(path)
        if not isinstance(source, FileExtent):
            raise LeftToZarr("its chunks are requested")
        return source

    def leaves_all_to_zarr(self, items: Sequence[ChunkRequest]) -> bool:
        """Whether zarr reads all chunks of a batch, because it must, or is just as fast."""
        if self.source_of is not None and not self.are_short_objects:
            return False
        if traces.active:  # what zarr fetches is counted for each chunk
            return False
        return self.source_of is None or all(item.is_complete for item in items)


def finder_of(first: ChunkRequest, layout_of: LayoutOf) -> ChunkFinder:
    """Return where the chunks of an array are, given one of them."""
    store = store_of(first.byte_getter)
    attributes = list(vars(store).values()) if hasattr(store, "__dict__") else None
    finder = ChunkFinder(store, attributes, state_of(store), _options(), first.spec.prototype)
    try:
        layout, find = layout_of(first.spec), locator_for(store)
    except LeftToZarr as why:
        raise_interrupt(why.__cause__)  # else all reads of the array were left to zarr
        return finder._replace(why_by_zarr=why.without_frames())
    is_short = _is_short_object(find, first.byte_getter.path, layout)
    return finder._replace(source_of=find, max_gap=max_gap_bytes(), are_short_objects=is_short)


def _options() -> object:
    """Return a copy of the options that are set, faster than `zarr.config.get`."""
    config = zarr.config.config
    options = config.get("numcodecs_bytes") or config.get("numcodecs-bytes")  # as YAML may write it
    if not isinstance(options, dict):
        return options
    # Other threads may set options meanwhile, and the list of classes may be changed in place.
    names_and_values = list(options.items())
    return {name: list(v) if isinstance(v, list) else v for name, v in names_and_values}


def _is_short_object(find: ChunkLocator, path: str, layout: AnyLayout) -> bool:
    """Whether a chunk is an object that is requested, and that no request for it is split."""
    try:
        source = find(path)
    except LeftToZarr as why:  # this chunk alone
        raise_interrupt(why.__cause__)
        return False
    if not (isinstance(source, ObjectExtent) and source.is_object and isinstance(layout, Layout)):
        return False
    # The more requests there may be, the shorter are the ranges.
    policy = GapPolicy.for_chunk(UNLIMITED).for_ranges(layout.num_bytes)
    return not policy.splits(layout.num_bytes)
