"""Writes to part of a chunk: to its file in place, or to a new file that is made or replaces it.

What is written, by runs or in hulls, and with which lock, is planned before the file is opened. Two
things show only when it is open: that there is no file, and that a shard lacks space.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import Array, UInt8Array, UInt64Array
from numcodecs_bytes._plan.outcome import LeftToZarr, Outcome, leave_to_zarr
from numcodecs_bytes._plan.plan import RunPlan, plan_of, selection_shape
from numcodecs_bytes._runtime.threads import IsWanted
from numcodecs_bytes._sources.files import first_bytes
from numcodecs_bytes._write import locks, write_file
from numcodecs_bytes._write.chunk_write import ChunkWrite, ValuesError
from numcodecs_bytes._write.locks import Lock, LockedError, LockedFile, ReplacedError
from numcodecs_bytes._write.write_file import PlacedElements, WrittenFile
from numcodecs_bytes._zarr_api.names import name_of_chunk

# How often in a row a file is reopened because it was made, replaced or deleted just then. On a
# file system where a name never refers to the file that was opened by it, that does not end.
MAX_TRIES = 100


class InPlaceBatch(NamedTuple):
    """What is written to parts of chunks together, and how."""

    values: Array
    drop_axes: tuple[int, ...]  # axes of the selections that the values lack
    is_required: bool  # whether they must be written in place


SelectionPlan = TypeVar("SelectionPlan")  # a `RunPlan`, or that of a shard; without gaps


class WritePlan(NamedTuple, Generic[SelectionPlan]):
    """What is written to a file, planned before it is opened."""

    runs: SelectionPlan
    elements: Array  # the values, in the shape of the selection
    in_hulls: bool  # whether it is faster to rewrite hulls, with the exclusive lock


@dataclass
class FileSpace:
    """What has space in a file, and what has none."""

    file: LockedFile | None  # None if there is no file
    placed: Sequence[PlacedElements]
    missing: Sequence[Array] = ()  # the elements of what has none
    index: UInt64Array | None = None  # None: the file is no shard
    end: int = 0  # where the inner chunks of a shard end


class WritableFile(ABC, Generic[SelectionPlan]):
    """The file of a chunk, or of a shard, and what is written to it."""

    def __init__(self, chunk: ChunkWrite, batch: InPlaceBatch) -> None:
        self.chunk, self._batch, self._layout = chunk, batch, chunk.layout
        self._planned: WritePlan[SelectionPlan] | None = None
        self._lacks_space = False  # whether the file must be replaced, with the exclusive lock

    def attempt(self, is_wanted: IsWanted) -> bool:
        """Write to the file, or leave it to zarr; return False if another writer has locked it.

        If an error is raised, `chunk.is_changed` says whether some elements may have been written.
        """
        try:
            self._write(is_wanted)
            self.chunk.outcome = Outcome("written in place")
        except LockedError:
            return False
        except LeftToZarr as why:
            leave_to_zarr([self.chunk], why)
        except OSError as error:
            if self.chunk.is_changed or self._batch.is_required:
                raise
            leave_to_zarr([self.chunk], error)
        return True

    @property
    def _plan(self) -> WritePlan[SelectionPlan]:
        # The lock of a cached_property might be taken in a child process (Python 3.11).
        self._planned = self._planned or self._make_plan()
        return self._planned

    @abstractmethod
    def _make_plan(self) -> WritePlan[SelectionPlan]:
        """Return what is written, and how."""

    @abstractmethod
    def _find_space(self, file: LockedFile) -> FileSpace:
        """Return what has space in a file, and what has none; raise if it is invalid."""

    @abstractmethod
    def _lay_out(self, new: WrittenFile, old: FileSpace) -> Sequence[PlacedElements]:
        """Write all but the elements to a new file; return where these belong in it."""

    def _elements_of(self, shape: tuple[int, ...]) -> Array:
        """Return the values for the file, in the shape of its selection."""
        values, out_selection = self._batch.values, self.chunk.out_selection
        try:
            return write_file.elements_of(values, out_selection, self._layout, shape)
        except Exception as error:  # the user's own: their values may raise anything
            if self._batch.is_required:
                raise
            raise ValuesError(error) from error

    def _write(self, is_wanted: IsWanted) -> None:
        """Write everything; if LockedError or `LeftToZarr` is raised, nothing is written.

        That holds unless another program truncates the file meanwhile.
        """
        plan = self._plan
        if not plan.elements.size * self._layout.item_size:
            return
        for _ in range(MAX_TRIES):
            with contextlib.suppress(ReplacedError):
                if self._try_once(plan, is_wanted):
                    return
        raise LeftToZarr("it keeps being replaced")

    def _try_once(self, plan: WritePlan[SelectionPlan], is_wanted: IsWanted) -> bool:
        """Write to the file, or to a new one; return False if another lock is needed for that."""
        # Hulls hold bytes of others, too, who must not write meanwhile. Beside writers who never
        # stop, runs are written instead.
        planned = Lock.EXCLUSIVE_IF_FREE if plan.in_hulls else Lock.SHARED
        lock = Lock.EXCLUSIVE if self._lacks_space else planned
        with locks.locked(self.chunk.path, lock) as file:
            space = self._find_space(file) if file else FileSpace(None, [], [plan.elements])
            if not space.missing or self.chunk.would_be_empty(space.missing):
                self._write_in_place(space, is_wanted)
            elif file is None or file.is_exclusive:
                self._write_new_file(space, is_wanted)
            else:
                self._lacks_space = True
                return False
        return True

    def _write_in_place(self, space: FileSpace, is_wanted: IsWanted) -> None:
        """Write to what has space in a file."""
        if space.file is None or not space.placed:
            return
        file = WrittenFile(space.file.descriptor, is_wanted)
        self.chunk.is_changed = True
        in_hulls = self._plan.in_hulls and space.file.is_exclusive
        try:
            write_file.write_all(file, self._layout, space.placed, in_hulls=in_hulls)
        except OSError:  # the call that failed changed nothing, but those before it may have
            self.chunk.is_changed = file.is_changed
            raise
        self._record_written(space.placed, space.file)

    def _write_new_file(self, space: FileSpace, is_wanted: IsWanted) -> None:
        """Make the file, or a copy with more space that replaces it."""
        with locks.new_file(self.chunk.path, space.file) as new:
            file = WrittenFile(new, is_wanted)
            placed = self._lay_out(file, space)
            write_file.write_all(file, self._layout, placed, in_hulls=self._plan.in_hulls)
        self.chunk.is_changed = True
        self._record_written(placed, space.file)

    def _stored_fill_value(self) -> UInt8Array:
        fill_value: Array = np.full(1, self.chunk.fill_value, self._layout.dtype)
        return as_bytes(encode_array(fill_value, self._layout.stored_dtype))

    def _record_written(self, placed: Sequence[PlacedElements], old: LockedFile | None) -> None:
        """Record what was written, and the length of the file before."""
        num_elements = sum([each.elements.size for each in placed])
        self.chunk.num_bytes = num_elements * self._layout.item_size
        self.chunk.num_bytes_before = old.num_bytes if old else 0


class ChunkFile(WritableFile[RunPlan]):
    """The file of a chunk, which has space for all of it."""

    def _make_plan(self) -> WritePlan[RunPlan]:
        selection = self.chunk.request.chunk_selection
        runs = plan_of(selection, self._layout, self._batch.drop_axes, max_gap=0)
        in_hulls = write_file.are_faster_in_hulls([runs], self._layout.item_size)
        return WritePlan(runs, self._elements_of(selection_shape(runs.axes)), in_hulls)

    def _find_space(self, file: LockedFile) -> FileSpace:
        if file.num_bytes != self._layout.num_bytes:
            name = name_of_chunk(self.chunk.request.byte_getter)
            start = first_bytes(file.descriptor, 0, file.num_bytes)
            self._layout.check_length(file.num_bytes, name, start)
        return FileSpace(file, [PlacedElements(self._plan.runs, self._plan.elements)])

    def _lay_out(self, new: WrittenFile, old: FileSpace) -> Sequence[PlacedElements]:
        num_bytes = self._layout.num_bytes
        locks.set_length(new.descriptor, num_bytes)
        write_file.write_repeated(new, self._stored_fill_value(), range(num_bytes))
        return [PlacedElements(self._plan.runs, self._plan.elements)]
