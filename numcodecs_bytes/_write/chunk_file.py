"""Writes to part of a chunk: to its file in place, to a copy that replaces it, or to a new one."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import Array, UInt8Array, UInt64Array
from numcodecs_bytes._host import own_bugs
from numcodecs_bytes._host.names import name_of_chunk
from numcodecs_bytes._host.threads import IsWanted
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, Outcome, leave
from numcodecs_bytes._plan.plan import plan_of, sample, shape_of
from numcodecs_bytes._read.latency import Latency
from numcodecs_bytes._write import locks, write_file
from numcodecs_bytes._write.chunks import ChunkWrite, ValuesError
from numcodecs_bytes._write.locks import LockedError, LockedFile, MissingFileError, ReplacedError
from numcodecs_bytes._write.write_file import Part, Target

# How often a file that is replaced or deleted meanwhile is reopened.
MAX_TRIES = 1000


@dataclass
class Space:
    """Where a file has space for what is written."""

    file: LockedFile
    parts: list[Part]
    missing: Sequence[Part] = ()  # what has no space, which only shards may lack
    index: UInt64Array | None = None  # of a shard
    end: int = 0  # of the inner chunks of a shard


class WriteBatch(NamedTuple):
    """What is written to parts of chunks together, and how."""

    values: Array
    drop_axes: tuple[int, ...]  # axes of the selections that the values lack
    latency: Latency
    is_required: bool  # whether they must be written in place


class ChunkFile:
    """The file of a chunk, and the parts of it that are written."""

    def __init__(self, chunk: ChunkWrite, layout: Layout, batch: WriteBatch) -> None:
        self.chunk, self._batch, self._latency = chunk, batch, batch.latency
        self._layout = layout  # of the chunk, or of the inner chunks of a shard
        self._is_planned = False
        self._has_begun = False  # whether the file may have been changed
        self._parts: list[Part] = []  # planned by the first attempt, as is what follows
        self._is_slow = self._prefers_hulls = False
        # Which locks to try, one after the other; True is the exclusive one, which hulls need.
        self._locks: tuple[bool, ...] = (False,)

    def attempt(self, is_wanted: IsWanted) -> bool:
        """Write to the file, or leave it to zarr; return False if another writer has locked it.

        If an error is raised, some of the selected elements may have been written.
        """
        try:
            if not self._is_planned:
                self._parts = self._make_parts(self.chunk.item.selection)
                self._choose()
                self._is_planned = True
            self._write(is_wanted)
            self.chunk.outcome = Outcome("written in place")
        except LockedError:
            return False
        except LeftToZarr as why:
            if self._batch.is_required and isinstance(why, ValuesError):
                raise why.error from None
            leave([self.chunk], why)
        except Exception as error:
            if self._has_begun or self._batch.is_required:
                raise
            if own_bugs.is_own_bug(error):
                own_bugs.log(error)
                error = LeftToZarr(f"unexpected {type(error).__name__}: {error}")
            elif not isinstance(error, OSError) or isinstance(error, InterruptedError):
                raise  # also if it was cancelled: then nobody writes it
            leave([self.chunk], error)
        return True

    def _make_parts(self, selection: object) -> list[Part]:
        """Return what is written to each of the chunks in the file, without hulls."""
        runs = plan_of(selection, self._layout, self._batch.drop_axes, gap=0)
        elements = self._elements_of(shape_of(runs.axes))
        return [Part(runs, elements, self._layout, hulls=runs)]

    def _elements_of(self, shape: tuple[int, ...]) -> Array:
        """Return the values for the file, in the shape of its selection."""
        return write_file.elements_of(self._batch.values, self.chunk.place, self._layout, shape)

    def _choose(self) -> None:
        """Choose runs or hulls, and how long a gap is worth, by how long the batch waits."""
        self._is_slow = self._latency.is_slow
        gap = self._latency.gap
        self._parts = write_file.with_hulls(self._parts, gap, is_slow=self._is_slow)
        self._prefers_hulls = write_file.is_faster_in_hulls(self._parts, is_slow=self._is_slow)
        self._locks = (True, False) if self._prefers_hulls else (False,)

    def _write(self, is_wanted: IsWanted) -> None:
        """Write everything; if LockedError or `LeftToZarr` is raised, nothing is written.

        That holds unless another program truncates the file meanwhile.
        """
        if not any([part.runs.num_runs for part in self._parts]):
            return
        for _ in range(MAX_TRIES):
            with contextlib.suppress(ReplacedError):
                if self._try_to_write(is_wanted):
                    return
        raise LeftToZarr("it keeps being replaced")

    def _try_to_write(self, is_wanted: IsWanted) -> bool:
        """Write to the file, or make it; if this returns False, nothing is written: try again."""
        for is_exclusive in self._locks:
            try:
                with locks.locked(self.chunk.path, is_exclusive=is_exclusive) as file:
                    return self._change(file, is_wanted)
            except LockedError:
                continue
            except MissingFileError:
                return self._create(is_wanted)
        raise LockedError

    def _change(self, file: LockedFile, is_wanted: IsWanted) -> bool:
        """Write to a locked file; return False if that takes another plan, or another lock."""
        space = self._find_space(file)
        if self._look_if_due(space):
            self._choose()
            return False
        if self._adds_nothing(space.missing):
            in_hulls = file.is_exclusive and self._prefers_hulls
            target = Target(file.descriptor, is_wanted)
            self._has_begun = True
            try:
                self._write_parts(target, space.parts, in_hulls=in_hulls)
            except OSError:  # which says that its own write has changed nothing
                self._has_begun = target.is_changed
                raise
            self._note_written(space.parts, file.num_bytes)
        elif file.is_exclusive:
            self._replace(space, is_wanted)
            self._note_written(self._parts, file.num_bytes)
        else:
            self._locks = (True,)
            return False
        return True

    def _look_if_due(self, space: Space) -> bool:
        """Look at the file if that is due; return whether it is slow, but was not planned so."""
        if self._is_slow or not space.parts:
            return False
        if self._latency.count_chunk(sum([part.runs.num_runs for part in space.parts])):
            plans = [(each.plan(in_hulls=self._prefers_hulls), each.start) for each in space.parts]
            self._latency.look(space.file.descriptor, sample(plans))
        return self._latency.is_slow

    def _replace(self, space: Space, is_wanted: IsWanted) -> None:
        """Replace the file, which is locked exclusively, with a copy that has more space."""
        with locks.temporary(self.chunk.path) as (new, name):
            target = Target(new, is_wanted)
            parts = self._fill(target, space)
            self._write_parts(target, parts, in_hulls=self._prefers_hulls)
            locks.replace(name, self.chunk.path, space.file.descriptor)
            self._has_begun = True

    def _create(self, is_wanted: IsWanted) -> bool:
        """Make the file, unless zarr would not; return False if another writer has made it."""
        if self._adds_nothing(self._parts):
            return True
        with locks.temporary(self.chunk.path) as (new, name):
            target = Target(new, is_wanted)
            parts = self._fill(target, None)
            self._write_parts(target, parts, in_hulls=self._prefers_hulls)
            if not locks.publish(name, self.chunk.path):
                return False
            self._has_begun = True
        self._note_written(self._parts, 0)
        return True

    def _find_space(self, file: LockedFile) -> Space:
        """Return what has space in a file, and what has none; raise if it is invalid."""
        if file.num_bytes != self._layout.num_bytes:
            self._layout.check_length(file.num_bytes, name_of_chunk(self.chunk.item.byte_getter))
        return Space(file, self._parts)

    def _fill(self, new: Target, old: Space | None) -> list[Part]:
        """Fill a new file, from the old one if it is a shard's; return where everything belongs."""
        span = range(self._layout.num_bytes)
        locks.set_length(new.descriptor, len(span))
        write_file.fill_span(new, self._stored_fill_value(), span)
        return self._parts

    def _write_parts(self, target: Target, parts: Sequence[Part], *, in_hulls: bool) -> None:
        write_file.write_all(target, parts, self._latency, in_hulls=in_hulls)

    def _adds_nothing(self, parts: Sequence[Part]) -> bool:
        """Whether zarr would not store chunks of these elements."""
        return not parts or self.chunk.would_be_empty(write_file.blocks_of(parts))

    def _stored_fill_value(self) -> UInt8Array:
        fill_value: Array = np.full(1, self.chunk.fill_value, self._layout.dtype)
        return as_bytes(encode_array(fill_value, self._layout.stored_dtype))

    def _note_written(self, parts: Sequence[Part], num_bytes_before: int) -> None:
        """Note what was written to a file, given its length before."""
        if not parts:
            return
        num_elements = sum([part.elements.size for part in parts])
        self.chunk.num_bytes = num_elements * self._layout.item_size
        self.chunk.num_bytes_before = num_bytes_before
