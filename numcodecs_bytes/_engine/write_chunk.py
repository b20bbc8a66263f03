"""Writes to the file of a chunk: in place, to a copy that replaces it, or to a new one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._engine import constants, locks, write_file
from numcodecs_bytes._engine.chunks import ChunkWrite
from numcodecs_bytes._engine.latency import Latency
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.locks import LockedError, MissingFileError, ReplacedError
from numcodecs_bytes._engine.plan import plan_of, shape_of
from numcodecs_bytes._engine.write_file import PlacedWrite, PlannedWrite
from numcodecs_bytes._names import name_of_chunk
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import fill_value_or_default


class SlowFileError(Exception):
    """Requests to a file take so long that it is faster to rewrite longer hulls."""


@dataclass
class Space:
    """Where an open file has space for what is written."""

    descriptor: int
    placed: list[PlacedWrite]
    missing: Sequence[PlannedWrite] = ()  # what has no space
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
        self._gap = constants.GAP_BYTES  # the largest within a hull
        self._planned = self._plan(self.chunk.selection)
        self._num_runs = sum([planned.run_plan.num_runs for planned in self._planned])
        self._prefers_hulls = self._in_hulls = write_file.is_faster_in_hulls(self._planned)
        self._locked_since = 0.0
        self.has_begun = False  # whether something may have been written

    def check_encodable(self, is_wanted: IsWanted) -> None:
        """Raise `LeftToZarr` if codecs can't convert an element: before anything is written."""
        for planned in self._planned:
            write_file.check_encodable(planned, is_wanted)

    def _plan(self, selection: Any) -> list[PlannedWrite]:
        """Return what is written to each of the chunks in the file."""
        layout = self.chunk.layout
        if not isinstance(layout, Layout):
            raise TypeError(f"not a chunk: {layout!r}")
        self._layout = layout
        runs = plan_of(selection, layout, self.drop_axes, gap=0)
        shape = shape_of(runs.axes)
        elements = write_file.elements_of(self.values, self.chunk.place, layout, shape)
        return [PlannedWrite(runs, write_file.hulls_of(runs, layout, self._gap), elements, layout)]

    def _find_space(self, descriptor: int, num_bytes: int) -> Space:
        """Return what has space in an open file, and what has none; raise if it is invalid."""
        layout = self._layout
        if num_bytes != layout.num_bytes:
            layout.check_length(num_bytes, name_of_chunk(self.chunk.setter))
        return Space(descriptor, [PlacedWrite(planned, 0) for planned in self._planned])

    def _fill(self, new: int, old: Space | None, is_wanted: IsWanted) -> list[PlacedWrite]:
        """Fill a new file, from the old one if there is one; return where everything belongs."""
        span = range(self._layout.num_bytes)
        locks.set_length(new, len(span))
        if old is None:
            write_file.fill_span(new, self._stored_fill_value(), span, is_wanted)
        else:
            write_file.copy_span(old.descriptor, new, span, is_wanted)
        return [PlacedWrite(planned, 0) for planned in self._planned]

    def write(self, is_wanted: IsWanted) -> None:
        """Write everything.

        Nothing is written if LockedError is raised, or LeftToZarr, unless another program truncates
        the file meanwhile, or locks or replaces it while this changes to longer hulls.
        """
        if not self._num_runs:
            return
        if self._has_longer_hulls():  # as other chunks of the batch have shown
            self._prefers_hulls = self._in_hulls = True
        for _ in range(constants.MAX_TRIES):
            try:
                if self._try_to_write(is_wanted):
                    return
            except ReplacedError:
                continue
            except SlowFileError:
                self._prefers_hulls = self._in_hulls = True
            except LockedError:
                if not self._tries_runs_instead():
                    raise
        raise LeftToZarr("it keeps being replaced")

    def _try_to_write(self, is_wanted: IsWanted) -> bool:
        """Write to the file, replace it, or make it; return False if another writer was first."""
        try:
            return self._change(is_wanted) or self._replace(is_wanted)
        except MissingFileError:
            return self._create(is_wanted)

    def _has_longer_hulls(self) -> bool:
        """Plan hulls over longer gaps if the file is slow, and rewriting them is faster, once."""
        if not self.latency.has_waited or self._gap > constants.GAP_BYTES:
            return False
        before, self._gap = self._planned, constants.PREFETCH_BYTES
        self._planned = self._plan(self.chunk.selection)
        num = sum([write_file.num_requests(each.hull_plan) for each in self._planned])
        plans = [each.plan(in_hulls=self._in_hulls) for each in before]
        if sum(map(write_file.num_requests, plans)) >= 2 * num:  # a hull is read as well
            return True
        self._planned = before
        return False

    def _tries_runs_instead(self) -> bool:
        """Write runs from now on if it can't get the exclusive lock; return whether it does.

        A writer of hulls waits for writers of runs no longer than it would take to write runs
        itself, with a shared lock: that waits only for writers of hulls.
        """
        now = time.monotonic()
        self._locked_since = self._locked_since or now
        is_long = now - self._locked_since > self._num_runs * constants.RUN_SECONDS
        switches = self._in_hulls and is_long
        self._in_hulls = self._prefers_hulls and not switches  # hulls again, if runs fail as well
        return switches

    def _change(self, is_wanted: IsWanted) -> bool:
        """Write to the file; return whether it has space for everything: else, nothing is."""
        path = self.chunk.path
        with locks.locked(path, is_exclusive=self._in_hulls) as (descriptor, num_bytes):
            space = self._find_space(descriptor, num_bytes)
            if not self._is_enough(space):
                return False
            self._write(descriptor, space.placed, is_wanted, may_change_plan=True)
        self._note_written(num_bytes)
        return True

    def _replace(self, is_wanted: IsWanted) -> bool:
        """Replace the file with a copy that has space, unless another writer has done so."""
        path = self.chunk.path
        with locks.locked(path, is_exclusive=True) as (descriptor, num_bytes):
            space = self._find_space(descriptor, num_bytes)
            if self._is_enough(space):
                self._write(descriptor, space.placed, is_wanted)
            else:
                with locks.temporary(path) as (new, name):
                    self._write(new, self._fill(new, space, is_wanted), is_wanted)
                    locks.replace(name, path, descriptor)
        self._note_written(num_bytes)
        return True

    def _create(self, is_wanted: IsWanted) -> bool:
        """Make the file, unless zarr would not; return False if another writer has made it."""
        if self._adds_nothing(self._planned):
            return True
        with locks.temporary(self.chunk.path) as (new, name):
            self._write(new, self._fill(new, None, is_wanted), is_wanted)
            if not locks.publish(name, self.chunk.path):
                return False
        self._note_written(0)
        return True

    def _is_enough(self, space: Space) -> bool:
        """Whether everything can be written to an open file, except what zarr would not store."""
        return not self.is_mapped and self._adds_nothing(space.missing)

    def _write(
        self,
        descriptor: int,
        placed: list[PlacedWrite],
        is_wanted: IsWanted,
        *,
        may_change_plan: bool = False,
    ) -> None:
        self.has_begun, in_hulls = True, self._in_hulls
        with np.errstate(all="ignore"):  # `check_encodable` has warned, or raised an error
            for each in placed:
                for seconds in write_file.write_placed(
                    descriptor, each, self.latency, is_wanted, in_hulls=in_hulls
                ):
                    self.latency.note(seconds)
                    if may_change_plan and self._has_longer_hulls():
                        raise SlowFileError

    def _adds_nothing(self, planned: Sequence[PlannedWrite]) -> bool:
        """Whether zarr would not store chunks of these elements."""
        return not planned or self.chunk.would_be_empty(write_file.blocks_of(planned))

    def _stored_fill_value(self) -> UInt8Array:
        fill_value: Array = np.full(1, fill_value_or_default(self.chunk.spec), self._layout.dtype)
        return as_bytes(self._layout.encode(fill_value))

    def _note_written(self, num_bytes_before: int) -> None:
        """Note what was written to a file, given its length before."""
        num_elements = sum([planned.elements.size for planned in self._planned])
        self.chunk.num_bytes = num_elements * self._layout.item_size
        self.chunk.num_bytes_before = num_bytes_before
