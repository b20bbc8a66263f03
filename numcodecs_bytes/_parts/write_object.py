"""What is written where in the file of a chunk, or of a shard, and what a new file contains.

A shard is *complete* if it has all of its inner chunks: then its index never changes again, and
parts of inner chunks are written like those of chunks. A new shard is made complete. One that
lacks an inner chunk that is written is copied to one that is complete: what is there stays at its
place, so that whoever has read the old index finds the same in the new file.

Zeros take no space in a file. A shard with another fill value that is not small gets places only
for what is written, and as many as it had before, so that it is copied a few times and not often;
on a disk that is full, for what is written alone.
"""

import errno
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._parts import locks
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.locks import Fill, LockedError, NotInPlace
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.open_file import OpenFile
from numcodecs_bytes._parts.refusals import ReadWhole
from numcodecs_bytes._parts.shards import MISSING, GrownShard, Shard
from numcodecs_bytes._parts.write_file import (
    Assignment,
    Changes,
    Encode,
    Pace,
    WriteCosts,
    elements_of,
)
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import fill_value_or_default


class ChunkWrite:
    """Values that are written to a part of a chunk.

    Parameters
    ----------
    item : tuple
        What zarr passes to the `write` of its pipelines.
    path : str
        The file of the chunk.
    stored : Layout
        How it is stored.
    values : object
        In the shape of the selection, or what NumPy broadcasts to it.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    costs : WriteCosts
        What takes how long.

    Attributes
    ----------
    changes : Changes
        What is written.

    Raises
    ------
    NotInPlace
        If the selection is not known, or the elements have no bytes.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        item: Any,
        path: str,
        stored: Any,
        values: Any,
        encode: Encode,
        costs: WriteCosts,
    ) -> None:
        self._byte_setter, self._spec, self._selection, *_ = item
        self._path, self._stored, self._encode, self._costs = path, stored, encode, costs
        self._layout = self._layout_of(stored)
        if not self._layout.item_size:
            raise NotInPlace("its elements have no bytes")
        self.changes = Changes(self._assignments(values), costs)
        self._in_blocks = self.changes.suits_blocks(self._usual_starts)
        self._starts: Sequence[int | None] = [0]  # of what is changed
        self._since = 0.0  # when the lock was refused first

    @staticmethod
    def _layout_of(stored: Any) -> Layout:
        """Return how the elements are stored."""
        return stored  # type: ignore[no-any-return]

    def _usual_starts(self) -> Sequence[int | None]:
        """Return where chunks most likely begin in the file."""
        return [0]

    def _assignments(self, values: Any) -> list[Assignment]:
        """Return what is assigned to each chunk in the file."""
        return [Assignment(self._layout, self._selection, values, self._encode)]

    def change(self, pace: Pace, is_wanted: IsWanted) -> None:
        """Write all of it, or raise LockedError or NotInPlace."""
        if not self.changes.num_pieces:
            return
        self._is_written, self._num_bytes_before = False, 0
        check = functools.partial(self._check, is_wanted)
        write = functools.partial(self._write, pace, is_wanted)
        make = functools.partial(self._make, write, is_wanted)
        try:
            locks.change(self._path, locks.Change(check, write, make, is_wanted, self._in_blocks))
        except LockedError:
            # Who writes piece by piece never waits for others who do, and does without an exclusive
            # lock if that takes less time than to wait for it any longer.
            now = time.monotonic()
            self._since = self._since or now
            if now - self._since > self.changes.num_pieces * self._costs.piece_seconds:
                self._in_blocks = False
            raise
        if self._is_written and _trace.active:
            counts = {
                "chunks_in_place": 1,
                "bytes_in_place": self.changes.num_bytes,
                "bytes_zarr_alone": self._num_bytes_before,
            }
            _trace.note(self._byte_setter, len(self._spec.shape), counts)

    def _check(self, is_wanted: IsWanted, descriptor: int, num_bytes: int) -> Fill | None:  # noqa: ARG002
        """Raise unless this is the length of the chunk."""
        layout, self._num_bytes_before = self._layout, num_bytes
        if num_bytes != layout.num_bytes:
            name = name_of_chunk(self._byte_setter)
            check_length(num_bytes, layout.shape, layout.dtype, layout.stored, name)
        return None

    def _write(self, pace: Pace, is_wanted: IsWanted, descriptor: int) -> None:
        in_blocks = self._in_blocks
        self.changes.write(descriptor, self._starts, pace, is_wanted, in_blocks=in_blocks)
        self._is_written = True

    def _make(self, write: Fill, is_wanted: IsWanted) -> bool:  # noqa: ARG002
        """Make a chunk of fill values, unless somebody else makes it.

        Returns whether it is written: one that is small, or mostly selected, in one go; or one that
        zarr would not store.
        """
        elements = self.changes.parts[0].elements
        if self._is_only_fill_value(elements):
            return True
        layout = self._layout
        num_bytes = self.changes.block_bytes if self._in_blocks else self.changes.num_bytes
        is_whole = layout.num_bytes <= max(self._costs.small_bytes, self._costs.most * num_bytes)
        if is_whole:
            filled = self._filled(layout.shape)
            filled[self._selection] = elements
            raw = as_bytes(self._encode(filled.transpose(layout.as_stored), layout.stored))
        else:
            raw = self._fill_value

        def fill(descriptor: int) -> None:
            os.ftruncate(descriptor, layout.num_bytes)
            locks.fill_with(descriptor, raw, 0, layout.num_bytes, is_wanted)

        self._is_written = locks.create(self._path, fill) and is_whole
        return self._is_written

    def _is_only_fill_value(self, elements: Array) -> bool:
        """Whether zarr would not store a chunk of these elements: it has nothing else."""
        if self._spec.config.write_empty_chunks:
            return False
        fill_value = fill_value_or_default(self._spec)
        nd_buffer: Any = self._spec.prototype.nd_buffer
        some = elements[(slice(0, 1),) * elements.ndim]  # most often, this one is different
        return all(nd_buffer.from_numpy_array(e).all_equal(fill_value) for e in (some, elements))

    def _filled(self, shape: tuple[int, ...]) -> Array:
        nd_buffer: Any = self._spec.prototype.nd_buffer
        return nd_buffer.create(  # type: ignore[no-any-return]
            shape=shape,
            dtype=self._layout.dtype,
            order="C",
            fill_value=fill_value_or_default(self._spec),
        ).as_numpy_array()

    @functools.cached_property
    def _fill_value(self) -> UInt8Array:
        """The fill value as stored."""
        one = self._filled((1,) * len(self._layout.shape))
        return as_bytes(self._encode(one, self._layout.stored))


class ShardWrite(ChunkWrite):
    """Values that are written to parts of the inner chunks of a shard."""

    _may_take_more = True  # False once the disk was full: then only what is written gets a place

    def change(self, pace: Pace, is_wanted: IsWanted) -> None:
        """Do the same; if the disk is full, try once more with less space."""
        try:
            super().change(pace, is_wanted)
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            if not is_full or not self._may_take_more:
                raise
            self._may_take_more = False
            super().change(pace, is_wanted)

    @staticmethod
    def _layout_of(stored: Shard) -> Layout:
        return stored.layout

    def _assignments(self, values: Any) -> list[Assignment]:
        parts = self._stored.parts_of(self._selection)
        self._coordinates = parts.coordinates
        elements = elements_of(self._layout, parts.shape, values).reshape(parts.flat_shape)
        return [
            Assignment(self._layout, of_chunk, elements[place], self._encode)
            for of_chunk, place in parts.inner
        ]

    def _usual_starts(self) -> Sequence[int | None]:
        return self._starts_in(self._stored.new.index)

    @functools.cached_property
    def _are_needed(self) -> list[bool]:
        """Whether each of the inner chunks is written even if it is missing."""
        return [not self._is_only_fill_value(part.elements) for part in self.changes.parts]

    def _check(self, is_wanted: IsWanted, descriptor: int, num_bytes: int) -> Fill | None:
        """Find the inner chunks; return what completes a copy if one is missing."""
        shard: Shard = self._stored
        self._num_bytes_before = num_bytes
        try:
            raw = shard.read_index(OpenFile(descriptor, num_bytes), lambda: True)
            try:
                index = shard.decode_index(raw)
            except (TypeError, ValueError) as error:  # a checksum, say, is a ValueError
                raise ReadWhole(why=f"its index can't be read ({error})") from error
            end = shard.end_of_data(index, num_bytes)
        except ReadWhole as why:
            raise NotInPlace(why.why) from why.__cause__
        self._starts = self._starts_in(index)
        if None not in self._starts or not self._lacks_any():
            return None
        begin = functools.partial(locks.copy_to, descriptor, end, is_wanted)
        return self._contents(self._grown(index, end), begin, is_wanted)

    def _starts_in(self, index: Any) -> list[int | None]:
        """Return where each of the inner chunks begins."""
        starts = index[(*self._coordinates, 0)].tolist()
        return [None if start == MISSING else start for start in starts]

    def _lacks_any(self) -> bool:
        return any(
            start is None and is_needed
            for start, is_needed in zip(self._starts, self._are_needed, strict=True)
        )

    def _grown(self, index: Any, end: int) -> GrownShard:
        """Return the shard with a place for what is written: complete if that costs no space."""
        shard: Shard = self._stored
        doubles, is_large = self._may_take_more, shard.num_bytes > self._costs.small_bytes
        if not doubles or (is_large and self._fill_value.any()):
            needed = np.array(self._are_needed)
            places = tuple(along[needed] for along in self._coordinates)
            return shard.grown(index, end, places, doubles=doubles)
        return shard.new if index is shard.no_index else shard.grown(index, end)

    def _contents(self, shard: GrownShard, begin: Fill, is_wanted: IsWanted) -> Fill:
        """Return what fills the file of a shard: it begins with what `begin` writes."""
        found = zip(self._starts, self._starts_in(shard.index), self._are_needed, strict=True)
        self._starts = [new if is_needed else old for old, new, is_needed in found]

        def fill(descriptor: int) -> None:
            try:
                begin(descriptor)
                os.ftruncate(descriptor, shard.num_bytes)
                locks.fill_with(descriptor, self._fill_value, shard.start, shard.end, is_wanted)
                locks.write_at(descriptor, shard.raw_index.data, shard.start_of_index)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                raise NotInPlace(f"it would be too long ({error.strerror})") from error

        return fill

    def _make(self, write: Fill, is_wanted: IsWanted) -> bool:
        """Make a shard, with what is written, unless somebody else makes it.

        Returns whether it is written, or zarr would not store it.
        """
        shard: Shard = self._stored
        self._starts = self._starts_in(shard.no_index)
        if not self._lacks_any():
            return True
        grown = self._grown(shard.no_index, shard.start_of_data)
        fill = self._contents(grown, lambda _: None, is_wanted)

        def fill_and_write(descriptor: int) -> None:
            fill(descriptor)
            write(descriptor)

        return locks.create(self._path, fill_and_write)
