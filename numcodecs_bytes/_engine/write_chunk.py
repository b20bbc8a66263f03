"""Writes to the file of a chunk: in place, to a copy that replaces it, or to a new one."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._engine import constants, locks, write_file
from numcodecs_bytes._engine.chunks import ChunkWrite
from numcodecs_bytes._engine.latency import Latency
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.locks import LockedError, MissingFileError, ReplacedError
from numcodecs_bytes._engine.plan import plan_of, shape_of
from numcodecs_bytes._engine.write_file import Part
from numcodecs_bytes._names import name_of_chunk
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import fill_value_or_default


@dataclass
class Space:
    """Where an open file has space for what is written."""

    descriptor: int
    parts: list[Part]
    missing: Sequence[Part] = ()  # what has no space
    index: Any = None  # of a shard
    end: int = 0  # of the inner chunks of a shard


@dataclass
class ChunkFile:
    """The file of a chunk, and what is written to it."""

    chunk: ChunkWrite
    values: Any  # of the batch
    drop_axes: tuple[int, ...]  # axes of the selection that the values lack
    is_mapped: bool  # whether the values may be mapped from the file: then a copy replaces it
    latency: Latency  # of the batch

    def __post_init__(self) -> None:
        self.has_begun = False  # whether something may have been written
        self._parts = self._plan(self.chunk.selection)
        self._num_runs = sum([part.runs.num_runs for part in self._parts])
        self._choose()

    def _plan(self, selection: Any) -> list[Part]:
        """Return what is written to each of the chunks in the file."""
        layout = self.chunk.layout
        if not isinstance(layout, Layout):
            raise TypeError(f"not a chunk: {layout!r}")
        self._layout = layout
        runs = plan_of(selection, layout, self.drop_axes, gap=0)
        shape = shape_of(runs.axes)
        elements = write_file.elements_of(self.values, self.chunk.place, layout, shape)
        return [Part(runs, elements, layout, hulls=runs)]

    def _choose(self) -> None:
        """Choose runs or hulls, and how long a gap is worth, by how long the batch waits."""
        self._is_slow = self.latency.seconds > 0
        gap = self.latency.gap
        self._parts = write_file.with_hulls(self._parts, gap, is_slow=self._is_slow)
        self._prefers_hulls = write_file.is_faster_in_hulls(self._parts, is_slow=self._is_slow)
        # Which locks to try, one after the other: whether each is exclusive, as for hulls.
        self._locks = (True, False) if self._prefers_hulls else (False,)

    def _find_space(self, descriptor: int, num_bytes: int) -> Space:
        """Return what has space in an open file, and what has none; raise if it is invalid."""
        layout = self._layout
        if num_bytes != layout.num_bytes:
            layout.check_length(num_bytes, name_of_chunk(self.chunk.setter))
        return Space(descriptor, self._parts)

    def _fill(self, new: int, old: Space | None, is_wanted: IsWanted) -> list[Part]:
        """Fill a new file, from the old one if there is one; return where everything belongs."""
        span = range(self._layout.num_bytes)
        locks.set_length(new, len(span))
        if old is None:
            write_file.fill_span(new, self._stored_fill_value(), span, is_wanted)
        else:
            write_file.copy_span(old.descriptor, new, span, is_wanted)
        return self._parts

    def write(self, is_wanted: IsWanted) -> None:
        """Write everything.

        Nothing is written if LockedError is raised, or LeftToZarr, unless another program truncates
        the file meanwhile.
        """
        if not self._num_runs:
            return
        for _ in range(constants.MAX_TRIES):
            with contextlib.suppress(ReplacedError):
                if self._try_to_write(is_wanted):
                    return
        raise LeftToZarr("it keeps being replaced")

    def _try_to_write(self, is_wanted: IsWanted) -> bool:
        """Write to the file, or make it; if this returns False, nothing is written: try again."""
        for is_exclusive in self._locks:
            try:
                with locks.locked(self.chunk.path, is_exclusive=is_exclusive) as (
                    descriptor,
                    num_bytes,
                ):
                    if not self._change(
                        descriptor, num_bytes, is_wanted, is_exclusive=is_exclusive
                    ):
                        return False
            except LockedError:
                continue
            except MissingFileError:
                return self._create(is_wanted)
            self._note_written(num_bytes)
            return True
        raise LockedError

    def _change(
        self, descriptor: int, num_bytes: int, is_wanted: IsWanted, *, is_exclusive: bool
    ) -> bool:
        """Write to a locked file; return False if that needs another plan, or another lock."""
        space = self._find_space(descriptor, num_bytes)
        if self._has_become_slow(space):
            return False
        if not self.is_mapped and self._adds_nothing(space.missing):
            in_hulls = is_exclusive and self._prefers_hulls
            self._write(descriptor, space.parts, is_wanted, in_hulls=in_hulls)
        elif is_exclusive:
            self._replace(space, is_wanted)
        else:
            self._locks = (True,)
            return False
        return True

    def _has_become_slow(self, space: Space) -> bool:
        """Look at the file if that is due; return whether it takes another plan, as it is slow."""
        if self._is_slow or not space.parts:
            return False
        if self.latency.is_due(self._num_runs):
            positions = write_file.sample(space.parts, in_hulls=self._prefers_hulls)
            self.latency.look(space.descriptor, positions)
        if not self.latency.seconds:
            return False
        self._choose()
        return True

    def _replace(self, space: Space, is_wanted: IsWanted) -> None:
        """Replace the file, which is locked exclusively, with a copy that has more space."""
        path = self.chunk.path
        with locks.temporary(path) as (new, name):
            parts = self._fill(new, space, is_wanted)
            self._write(new, parts, is_wanted, in_hulls=self._prefers_hulls)
            locks.replace(name, path, space.descriptor)

    def _create(self, is_wanted: IsWanted) -> bool:
        """Make the file, unless zarr would not; return False if another writer has made it."""
        if self._adds_nothing(self._parts):
            return True
        with locks.temporary(self.chunk.path) as (new, name):
            parts = self._fill(new, None, is_wanted)
            self._write(new, parts, is_wanted, in_hulls=self._prefers_hulls)
            if not locks.publish(name, self.chunk.path):
                return False
        self._note_written(0)
        return True

    def _write(
        self, descriptor: int, parts: Sequence[Part], is_wanted: IsWanted, *, in_hulls: bool
    ) -> None:
        self.has_begun = True
        write_file.write_parts(descriptor, parts, self.latency, is_wanted, in_hulls=in_hulls)

    def _adds_nothing(self, parts: Sequence[Part]) -> bool:
        """Whether zarr would not store chunks of these elements."""
        return not parts or self.chunk.would_be_empty(write_file.blocks_of(parts))

    def _stored_fill_value(self) -> UInt8Array:
        fill_value: Array = np.full(1, fill_value_or_default(self.chunk.spec), self._layout.dtype)
        return as_bytes(encode_array(fill_value, self._layout.stored_dtype))

    def _note_written(self, num_bytes_before: int) -> None:
        """Note what was written to a file, given its length before."""
        num_elements = sum([part.elements.size for part in self._parts])
        self.chunk.num_bytes = num_elements * self._layout.item_size
        self.chunk.num_bytes_before = num_bytes_before
