"""Writes to the file of a chunk: in place, to a copy that replaces it, or to a new one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._engine import constants, locks, write_file
from numcodecs_bytes._engine.chunks import ChunkWrite
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.locks import LockedError, ReplacedError
from numcodecs_bytes._engine.plan import plan_of, split
from numcodecs_bytes._engine.write_file import Part
from numcodecs_bytes._names import name_of_chunk
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import fill_value_or_default

Placed = list[tuple[Part, int]]  # what is written, and the offset of its chunk in the file


@dataclass
class ChunkFile:
    """The file of a chunk, and what is written to it."""

    chunk: ChunkWrite
    stored: Any  # its `Layout`, or `Shard`
    values: Array  # in the shape of the selection, or one that NumPy broadcasts to it
    drop_axes: tuple[int, ...]  # axes of the selection that the values lack
    is_mapped: bool  # whether the values may be mapped from the file: then a copy replaces it

    def __post_init__(self) -> None:
        self._parts = self._plan(self.chunk.selection)
        self._num_runs = sum([part.runs.num_runs for part in self._parts])
        self._prefers_hulls = self._in_hulls = write_file.is_faster_in_hulls(self._parts)
        self._locked_since = 0.0

    def _plan(self, selection: Any) -> list[Part]:
        """Return what is written to each of the chunks in the file."""
        self._layout = self.stored
        runs = plan_of(selection, self._layout, self.drop_axes, gap=0)
        shape = write_file.shape_of(runs.axes)
        elements = write_file.elements_of(self.values, self._layout, shape)
        return [Part(runs, write_file.hulls_of(runs, self._layout), elements, self._layout)]

    def _locate(self, descriptor: int, num_bytes: int) -> tuple[Placed, list[Part]]:
        """Return what has space in the file, and what has none; raise if the file is invalid."""
        layout = self._layout
        if num_bytes != layout.num_bytes:
            name = name_of_chunk(self.chunk.setter)
            check_length(num_bytes, layout.shape, layout.dtype, layout.stored, name)
        return [(part, 0) for part in self._parts], []

    def _make(self, old: int | None, new: int, is_wanted: IsWanted) -> Placed:
        """Fill a new file, from the old one if there is one; return where everything belongs."""
        span = range(self._layout.num_bytes)
        locks.set_length(new, len(span))
        if old is None:
            write_file.fill_span(new, self._stored_fill_value(), span, is_wanted)
        else:
            write_file.copy_span(old, new, span, is_wanted)
        return [(part, 0) for part in self._parts]

    def write(self, is_wanted: IsWanted) -> None:
        """Write everything; nothing is written if LockedError or LeftToZarr is raised."""
        step: Any = self._change if self._num_runs else None  # each returns the next one
        for _ in range(constants.MAX_TRIES):
            if step is None:
                return
            try:
                step = step(is_wanted)
            except FileNotFoundError:
                step = self._create
            except ReplacedError:
                step = self._change
            except LockedError:
                now = time.monotonic()
                self._locked_since = self._locked_since or now
                is_long = now - self._locked_since > self._num_runs * constants.RUN_SECONDS
                if not (self._in_hulls and is_long):
                    self._in_hulls = self._prefers_hulls
                    raise
                # A writer of hulls waits for writers of runs no longer than it would take to
                # write runs itself, with a shared lock: that waits only for writers of hulls.
                self._in_hulls, step = False, self._change
        raise LeftToZarr("it keeps being replaced")

    def _change(self, is_wanted: IsWanted, *, may_replace: bool = False) -> Any:
        """Write to the file, if it has space for everything; else `_replace` is next."""
        is_exclusive = may_replace or self._in_hulls
        with locks.locked(self.chunk.path, is_exclusive=is_exclusive) as (descriptor, num_bytes):
            placed, missing = self._locate(descriptor, num_bytes)
            if not self.is_mapped and self._are_only_fill_values(missing):
                self._write(descriptor, placed, is_wanted)
            elif may_replace:
                with locks.temporary(self.chunk.path) as (new, name):
                    self._write(new, self._make(descriptor, new, is_wanted), is_wanted)
                    locks.replace(name, self.chunk.path, descriptor)
            else:
                return self._replace
        self._note(num_bytes)
        return None

    def _replace(self, is_wanted: IsWanted) -> Any:
        """Replace the file with a copy, unless another writer has done so."""
        return self._change(is_wanted, may_replace=True)

    def _create(self, is_wanted: IsWanted) -> Any:
        """Make the file, unless zarr would not; if another writer has, `_change` is next."""
        if self._are_only_fill_values(self._parts):
            return None
        with locks.temporary(self.chunk.path) as (new, name):
            self._write(new, self._make(None, new, is_wanted), is_wanted)
            if not locks.publish(name, self.chunk.path):
                return self._change
        self._note(0)
        return None

    def _write(self, descriptor: int, placed: Placed, is_wanted: IsWanted) -> None:
        for part, start in placed:
            write_file.write_part(descriptor, part, start, is_wanted, in_hulls=self._in_hulls)

    def _are_only_fill_values(self, parts: Sequence[Part]) -> bool:
        """Whether zarr would not store chunks of these elements, as all equal the fill value."""
        if self.chunk.spec.config.write_empty_chunks:
            return not parts
        fill_value = fill_value_or_default(self.chunk.spec)
        buffer_of: Any = self.chunk.spec.prototype.nd_buffer.from_numpy_array
        return all(
            buffer_of(part.elements[(*where, ...)]).all_equal(fill_value)
            for part in parts
            for where, _ in split(part.runs, self._layout.item_size)
        )

    def _stored_fill_value(self) -> UInt8Array:
        fill_value: Array = np.full(1, fill_value_or_default(self.chunk.spec), self._layout.dtype)
        return as_bytes(encode_array(fill_value, self._layout.stored))

    def _note(self, num_bytes_before: int) -> None:
        """Tell `numcodecs_bytes.trace` what was written to a file, given its length before."""
        if _trace.active:
            num = sum([part.elements.size for part in self._parts])
            counts = {
                "chunks_in_place": 1,
                "bytes_in_place": num * self._layout.item_size,
                "bytes_zarr_alone": num_bytes_before,
            }
            _trace.note(self.chunk.setter, len(self.chunk.spec.shape), counts)
