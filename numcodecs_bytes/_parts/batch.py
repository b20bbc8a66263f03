"""Read the selections of many chunks in local files into one array.

A few threads take one chunk after the other: open, read, close. A contiguous selection is read
straight to its place. Others are read in blocks that stay in the CPU cache, from where they are
copied, and byte-swapped, to their place. What can't be read so, for whatever reason, is left to be
read chunk by chunk, which finds another way or raises the error.
"""

import asyncio
import contextvars
import functools
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array, copied_as
from numcodecs_bytes._core.invalid_bytes import has_unused_bits
from numcodecs_bytes._parts.assemble import ready_to_copy, select_fetched
from numcodecs_bytes._parts.boxes import Box, box_of
from numcodecs_bytes._parts.fetch import AT_ONCE_BYTES, coalescing_of, plan_chunk, trying
from numcodecs_bytes._parts.getters import Places, WouldWait, quick_places
from numcodecs_bytes._parts.items import groups_of, pieces_of, scatter
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.open_file import OpenFile
from numcodecs_bytes._parts.plan import Plan, is_whole
from numcodecs_bytes._parts.ranges import Ranges, join_adjacent
from numcodecs_bytes._parts.refusals import ReadWhole
from numcodecs_bytes._parts.selection import key_of
from numcodecs_bytes._parts.shards import Left, Shard, ShardSelection
from numcodecs_bytes._parts.stores import File, find_source, source_finder
from numcodecs_bytes._threads import (
    MAX_FILE_THREADS,
    file_pool,
    helper_pool,
    is_ending,
    run_in_thread,
)
from numcodecs_bytes._zarr_versions import fill_value_or_default

logger = logging.getLogger("numcodecs_bytes")

# So many bytes of a box are read at a time, at once or in pieces: the output is copied from a block
# in the CPU cache. Smaller blocks make threads wait for each other more often.
BLOCK_BYTES = PIECES_BYTES = 1 << 20
# Inner chunks up to this size are copied many at a time, if a whole shard is read.
SMALL_BYTES = 1 << 14
# A thread remembers so many selections, if they are read in few steps and pieces.
MAX_RECIPES, MAX_PIECES, MAX_SEEN = 64, 256, 4096
# From so many bytes per chunk on, all cores together are faster than one thread. Below, threads
# wait for each other: most of the time is spent in Python.
PARALLEL_BYTES = 1 << 19
# A chunk that takes SLOW_SECONDS longer than its bytes at BYTES_PER_SECOND is not in the page
# cache. Then SLOW_WORKERS threads wait for files.
SLOW_SECONDS, BYTES_PER_SECOND, SLOW_WORKERS = 2e-4, 1e9, 10
# What makes a batch leave a chunk: its file can't be read or has another length, its index is
# damaged, or the output takes no such values. Read alone, it raises the error again, or is missing.
GIVES_UP = (OSError, EOFError, MemoryError, ArithmeticError, ValueError, Warning, ReadWhole, Left)
# How long a read that is cancelled waits for its threads, which may be filling the array.
LAST_SECONDS = 1.0


class Batch(NamedTuple):
    """The selections of many chunks, and how to read them.

    Attributes
    ----------
    items : sequence of tuple
        What zarr passes to the `read` of its pipelines, at least one: byte getter, specification of
        the chunk, selection of it, selection of `out` and more.
    out : numpy.ndarray
        The output array, in any layout.
    drop_axes : tuple of int
        Axes of length 1 of the selections that are missing in `out`.
    layout_of : callable
        Takes the specification of a chunk and returns how it is stored.
    gap : int or None
        Largest gap over which to read in bytes, if the user set it.
    num_workers : int or None
        Number of threads, if the user set it.
    at_once : bool
        Whether so little is selected that the event loop may read it from the page cache.
    """

    items: Sequence[Any]
    out: Array
    drop_axes: tuple[int, ...]
    layout_of: Callable[[ArraySpec], Layout | Shard]
    gap: int | None
    num_workers: int | None
    at_once: bool = False


async def read_files(batch: Batch) -> list[bool | None]:
    """Read the selections of the chunks that are in local files into the output array.

    Returns
    -------
    list of (bool or None)
        Whether each chunk exists; None if it was not read, because it is in no file, the file has
        another length or can't be read, for example.
    """
    job = _Job(batch)
    if batch.at_once and job.has_read_at_once():
        return job.exist
    run = functools.partial(contextvars.copy_context().run, job.run)
    reading = asyncio.ensure_future(run_in_thread(file_pool(), run))
    try:
        await asyncio.shield(reading)
    except asyncio.CancelledError:
        job.is_wanted = False
        await asyncio.wait([reading], timeout=LAST_SECONDS)
        reading.cancel()
        raise
    if is_ending():
        job.finish()
    return job.exist


slow_places = Places()  # where the last chunk of a batch was slow


class _Job:
    """What the threads share."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        num = len(batch.items)
        self.exist: list[bool | None] = [None] * num
        self.is_wanted = True
        self._adapts = batch.num_workers is None
        is_parallel = batch.out.nbytes >= PARALLEL_BYTES * num
        self._num_workers = batch.num_workers or (_num_cores() if is_parallel else 1)
        self._left = iter(range(num))
        self._state = threading.Condition()
        self._files: dict[Any, OpenFile] = {}  # in which several chunks lie
        self._opening = threading.Lock()
        self._num_working, self._is_over = 0, False

    def run(self) -> None:
        """Read all chunks, with the help of other threads; none of them works afterwards."""
        if self._is_over:  # queued, but run elsewhere because no thread could be started
            return
        source = find_source(self.batch.items[0][0])
        where = source.place if self._adapts and isinstance(source, File) else None
        try:
            self._start_helpers(self._num_workers - 1)
            if where in slow_places:
                self._start_helpers(SLOW_WORKERS - self._num_workers, only_if_slow=True)
            was_slow = self._work(starts_helpers=self._adapts and where not in slow_places)
            if where is not None:
                (slow_places.add if was_slow else slow_places.discard)(where)
        finally:
            with self._state:
                self._is_over = True
                self._state.wait_for(lambda: not self._num_working)
            self._close()

    def has_read_at_once(self) -> bool:
        """Read all chunks in this thread if they are in the page cache, or return False."""
        source = find_source(self.batch.items[0][0])
        if not isinstance(source, File) or source.place not in quick_places:
            return False
        worker = _Worker(self, at_once=True)
        num, k = len(self.batch.items), 0
        try:
            for k, item in enumerate(self.batch.items):  # the first that would wait
                self.exist[k] = worker.read(*item[:4])
        except WouldWait:
            self._left = iter(range(k, num))
            return False
        finally:
            worker.forget()
            self._close()
        return True

    def shared(self, source: File) -> OpenFile | None:
        """Return the file in which a chunk lies with others, opened once; None if it is alone."""
        if source.key is None:
            return None
        with self._opening:
            if source.key not in self._files:
                self._files[source.key] = source.open_object()
            return self._files[source.key].shared()

    def _close(self) -> None:
        """Close the files that were shared; no thread reads them any more."""
        while self._files:
            self._files.popitem()[1].close()

    def finish(self) -> None:
        """Read in this thread what was left because the interpreter waits for other threads."""
        self._is_over = False
        self._left = iter([k for k, exists in enumerate(self.exist) if exists is None])
        self._work(is_waited_for=False)
        self._close()

    def _start_helpers(self, num: int, *, only_if_slow: bool = False) -> None:
        for _ in range(min(num, len(self.batch.items) - 1, MAX_FILE_THREADS)):
            run = contextvars.copy_context().run  # with NumPy's errstate, for example
            try:
                helper_pool().submit(run, self._work, only_if_slow=only_if_slow)
            except RuntimeError:  # no further thread can be started
                return

    def _next(self, is_waited_for: bool) -> int | None:  # noqa: FBT001
        if is_waited_for and is_ending():
            return None
        with self._state:
            return next(self._left, None)

    def _work(
        self,
        *,
        starts_helpers: bool = False,
        only_if_slow: bool = False,
        is_waited_for: bool = True,
    ) -> bool:
        """Read one chunk after the other, as several threads do; return if the last was slow.

        If the interpreter ends, it waits for the threads of a pool, but nobody may wait for the
        result any more. So these stop if the thread `is_waited_for` then.
        """
        worker, is_slow = _Worker(self, is_waited_for=is_waited_for), False
        with self._state:
            if self._is_over:  # this thread comes too late
                return False
            self._num_working += 1
        try:
            while self.is_wanted and (k := self._next(is_waited_for)) is not None:
                start = time.perf_counter()
                byte_getter, spec, selection, place, *_ = self.batch.items[k]
                self.exist[k] = worker.read(byte_getter, spec, selection, place)
                seconds = time.perf_counter() - start
                is_slow = seconds > SLOW_SECONDS + worker.num_read / BYTES_PER_SECOND
                if starts_helpers and is_slow:
                    starts_helpers = False
                    self._start_helpers(SLOW_WORKERS - self._num_workers, only_if_slow=True)
                elif starts_helpers and self._num_workers == 1 and worker.num_read > PARALLEL_BYTES:
                    self._num_workers = _num_cores()
                    self._start_helpers(self._num_workers - 1)
                if only_if_slow and not is_slow:
                    break
        finally:
            worker.forget()
            with self._state:
                self._num_working -= 1
                self._state.notify_all()
        return is_slow


def _log_once(error: Exception) -> None:
    if type(error) not in _logged:
        _logged.add(type(error))
        logger.warning("chunks are read again after this error, a defect", exc_info=error)


_logged: set[type[Exception]] = set()


def _num_cores() -> int:
    return os.cpu_count() or 1


class _Worker:
    """What each thread has for itself: a block, and how to read boxes through it.

    Attributes
    ----------
    num_read : int
        How many bytes of the last chunk were read.
    """

    num_read = 0

    def __init__(self, job: _Job, *, at_once: bool = False, is_waited_for: bool = False) -> None:
        self.job, self.batch, self._out = job, job.batch, job.batch.out
        self._at_once = at_once  # on the event loop, which must not wait
        self._is_waited_for = is_waited_for
        self._runner = asyncio.Runner()
        self._find = source_finder()
        self._block = np.empty(0, np.uint8)
        self._spec: Any = None
        self._layout: Any = None
        self._shard: Shard | None = None
        self._recipes: dict[Any, _Recipe | None] = {}
        self._seen: set[Any] = set()  # selections of small chunks
        self._selected: dict[Any, ShardSelection] = {}

    def read(self, byte_getter: object, spec: ArraySpec, selection: Any, place: Any) -> bool | None:
        """Read a chunk; return whether it exists, or None if it was not read."""
        self.num_read = 0
        try:
            source = self._find(byte_getter)
            if not isinstance(source, File):
                return None
            if spec is not self._spec:  # zarr 3.1.6 makes one for each chunk
                self._set_spec(spec)
            start = time.perf_counter()
            try:
                file = source.open(self.job.shared(source))
            except source.missing:
                self._out[place] = fill_value_or_default(spec)
                self._note(byte_getter, [0, 0], None)
                return False
            try:
                opened = time.perf_counter()
                if self._at_once:
                    with trying(source.place):
                        self._read_file(file.at_once(), source, selection, place)
                else:
                    self._read_file(file, source, selection, place)
                if self.batch.at_once and file.is_on_disk:
                    seconds = 0.0 if self._at_once else time.perf_counter() - opened
                    quick_places.note(source.place, opened - start, seconds)
                self._note(byte_getter, file.counted, place)
            finally:
                file.close()
        except WouldWait:
            raise
        except GIVES_UP:  # chunk by chunk, it is raised again
            return None
        except Exception as error:  # noqa: BLE001 # a defect, and no reason not to read the chunk
            if _trace.active:
                counts = {"why_again": {f"{type(error).__name__} in a batch": 1}}
                _trace.note(byte_getter, len(spec.shape), counts)
            _log_once(error)
            return None
        return True

    def _note(self, byte_getter: object, counted: list[int], place: Any) -> None:
        """Tell `numcodecs_bytes.trace` what was read; `place` is None if the chunk is missing."""
        if _trace.active:
            layout, shard, num_axes = self._layout, self._shard, len(self._spec.shape)
            num_bytes = shard.num_bytes - shard.index_bytes if shard else layout.num_bytes
            num = None if place is None else np.size(self._out[place]) * layout.item_size
            fetched = _trace.Fetched(counted[0], counted[1])
            _trace.note_read(byte_getter, num_axes, num_bytes, fetched, num)

    def _read_file(self, file: OpenFile, source: File, selection: Any, place: Any) -> None:
        if self._shard is not None:
            self._read_shard(file, source, self._shard, selection, place)
        elif file.num_bytes == self._layout.num_bytes:
            self._read(file, source, selection, self._out, place)
        else:
            raise ReadWhole

    def _set_spec(self, spec: ArraySpec) -> None:
        """Prepare for chunks of a shape; of an array, they differ in nothing else."""
        if self._spec is None or spec.shape != self._spec.shape:
            found = self.batch.layout_of(spec)
            self._shard = found if isinstance(found, Shard) else None
            self._layout = found.layout if isinstance(found, Shard) else found
            self._recipes, self._selected, self._seen = {}, {}, set()
        self._spec = spec

    def _read(self, file: OpenFile, source: File, selection: Any, out: Array, place: Any) -> None:
        drop_axes = self.batch.drop_axes if out is self._out else ()
        recipe = None if drop_axes or not _is_box(place) else self._recipe(source, selection)
        if recipe is not None:
            region = out[(*place, ...)]
            if region.shape == recipe.shape:
                self._read_box(file, recipe, region)
                return
        plan = plan_chunk(source, self._layout, selection, self.batch.gap)
        selected = self._read_plan(file, selection, plan)
        out[place] = selected.squeeze(axis=drop_axes) if drop_axes else selected

    def _read_shard(
        self, file: OpenFile, source: File, shard: Shard, selection: Any, place: Any
    ) -> None:
        """Read a selection of a shard, its inner chunks in the order in which they are stored."""
        shape, is_small = shard.spec.shape, self._layout.num_bytes <= SMALL_BYTES
        if shape and is_small and is_whole(selection, shape) and _is_box(place):
            region = self._out[place]
            if region.shape == shape:
                self._read_small_chunks(file, source, shard, region)
                return
        selected = self._select(source, shard, selection)
        if self._at_once and shard.index_bytes + selected.num_bytes > AT_ONCE_BYTES:
            raise WouldWait
        index = self._index_of(file, shard)
        present, starts, missing = shard.locate_selected(index, selected, file.num_bytes)
        drop_axes = self.batch.drop_axes
        region = self._out[(*place, ...)] if _is_box(place) and not drop_axes else None
        if region is not None and region.shape == selected.shape == selected.flat_shape:
            out = region
        else:
            out = np.empty(selected.flat_shape, self._out.dtype)
        shard.fill(out, missing)
        for some in groups_of(present, BLOCK_BYTES):
            self._stop_if_unwanted()
            if some.stop - some.start == 1:
                of_chunk = file.part(int(starts[some.start]), self._layout.num_bytes)
                inner = present[some.start]
                self._read(of_chunk, source, inner.selection, out, inner.place)
                continue
            pieces = join_adjacent(*pieces_of(present[some], starts[some]))
            ranges = coalescing_of(source, self.batch.gap).coalesce(*pieces)
            scatter(out, self._fetch(file, ranges), present[some], self._layout)
        if out is not region:
            out = out.reshape(selected.shape)
            self._out[place] = out.squeeze(axis=drop_axes) if drop_axes else out

    def _read_small_chunks(self, file: OpenFile, source: File, shard: Shard, region: Array) -> None:
        """Read all inner chunks of a shard, many at a time."""
        layout = self._layout
        grid, coordinates = shard.grid_of(region)
        index = self._index_of(file, shard)
        present, starts, missing = shard.locate(index, coordinates, file.num_bytes)
        if len(missing):
            grid[tuple(along[missing] for along in coordinates)] = fill_value_or_default(shard.spec)
        num = BLOCK_BYTES // layout.num_bytes or 1
        for first in range(0, len(present), num):
            self._stop_if_unwanted()
            some = slice(first, first + num)
            pieces = join_adjacent(starts[some], starts[some] + layout.num_bytes)
            ranges = coalescing_of(source, self.batch.gap).coalesce(*pieces)
            elements = self._fetch(file, ranges).view(layout.stored)
            inner = elements.reshape(-1, *grid.shape[len(coordinates) :])
            place = tuple(along[present[some]] for along in coordinates)
            grid[place] = ready_to_copy(inner, layout.dtype)

    def _index_of(self, file: OpenFile, shard: Shard) -> Any:
        return shard.decode_index(shard.read_index(file, self._is_wanted), self._runner.run)

    def _select(self, source: File, shard: Shard, selection: Any) -> ShardSelection:
        key = key_of(selection)
        if key is None:
            return shard.select(selection, source, self.batch.gap)
        if key not in self._selected:
            if len(self._selected) >= MAX_RECIPES:
                self._selected.clear()
            self._selected[key] = shard.select(selection, source, self.batch.gap)
        return self._selected[key]

    def _recipe(self, source: File, selection: Any) -> "_Recipe | None":
        """Return how to read a selection; None if it is not a box."""
        if (key := key_of(selection)) is None:
            return None
        if key not in self._recipes:
            # A recipe takes longer than to read a small chunk whole: it must be used several times.
            is_small = self._layout.num_bytes <= source.costs.any_plan
            if is_small and (key not in self._seen or len(self._recipes) >= MAX_RECIPES):
                if len(self._seen) < MAX_SEEN:
                    self._seen.add(key)
                return None
            if len(self._recipes) >= MAX_RECIPES:
                self._recipes.clear()
            box = box_of(selection, self._layout)
            self._recipes[key] = None if box is None else _Recipe(self, source, self._layout, box)
        return self._recipes[key]

    def forget(self) -> None:
        """Forget the recipes, which refer to this worker and would keep its block alive."""
        self._recipes.clear()
        self._selected.clear()
        self._runner.close()

    def block(self, num_bytes: int) -> Array:
        """Return memory into which this thread may read anything at any time."""
        if len(self._block) < num_bytes:
            self._block = np.empty(num_bytes, np.uint8)
        return self._block[:num_bytes]

    def _read_box(self, file: OpenFile, recipe: "_Recipe", region: Array) -> None:
        if recipe.is_contiguous:
            as_stored = region if recipe.order is None else region.transpose(recipe.order)
            if as_stored.flags.c_contiguous:
                out = as_bytes(as_stored)
                self.num_read += len(out)
                file.read_into(out, recipe.start, self._is_wanted)
                return
        for step in recipe.steps():
            self._stop_if_unwanted()
            if step.plan is None:
                file.read_into(step.raw, step.start, self._is_wanted)
                self.num_read += len(step.raw)
                selected = (
                    step.elements if recipe.is_plain else ready_to_copy(step.elements, recipe.dtype)
                )
            else:
                selected = self._read_plan(file, step.selection, step.plan)
            region[step.place] = selected

    def _is_wanted(self) -> bool:
        return self.job.is_wanted and not (self._is_waited_for and is_ending())

    def _stop_if_unwanted(self) -> None:
        if not self._is_wanted():
            raise EOFError

    def _read_plan(self, file: OpenFile, selection: Any, plan: Plan) -> Array:
        fetched = self._fetch(file, plan.ranges)
        selected = select_fetched(fetched, self._layout.stored, plan, selection)
        return ready_to_copy(selected, self._layout.dtype)

    def _fetch(self, file: OpenFile, ranges: Ranges) -> UInt8Array:
        fetched = file.read(ranges, self._is_wanted, adapts=self.batch.gap is None)
        self.num_read += ranges.num_bytes
        if fetched is None:
            raise EOFError
        return fetched


def _is_box(place: Any) -> bool:
    """Whether a selection of the output consists of slices."""
    return isinstance(place, tuple) and all([type(s) is slice for s in place])  # noqa: C419


class _Step(NamedTuple):
    """A part of a box that is read at a time: into a block, or as a plan says.

    Attributes
    ----------
    place : tuple of slice
        Where it belongs in the selection.
    start : int
        Position of its first byte in the chunk.
    raw, elements : numpy.ndarray
        The part of the block to fill, and the selected elements in it.
    selection : tuple
        The part of the selection.
    plan : Plan or None
        If not None, it replaces `start`, `raw` and `elements`.
    """

    place: tuple[slice, ...]
    start: int = 0
    raw: Any = None
    elements: Any = None
    selection: Any = None
    plan: Plan | None = None


class _Recipe:
    """How a thread reads the same box of many chunks.

    Attributes
    ----------
    shape : tuple of int
        The shape of the selection.
    start : int
        Position of its first byte in the chunk.
    dtype : numpy.dtype
        The dtype of the elements in memory.
    is_plain : bool
        Whether that is their stored dtype, and any bytes are valid.
    is_contiguous : bool
        Whether the bytes of the selection can be read straight to their place.
    order : tuple of int or None
        The axes of the selection in the order in which they are stored; None means C order.
    """

    def __init__(self, worker: _Worker, source: File, layout: Layout, box: Box) -> None:
        self._worker, self._source, self._layout, self._box = worker, source, layout, box
        self.shape, self.start, self.dtype = box.shape, box.start, layout.dtype
        is_as_stored = layout.stored == self.dtype == copied_as(self.dtype)
        self.is_plain = is_as_stored and not has_unused_bits(self.dtype)
        self._is_solid = box.num_bytes == box.num_selected_bytes
        is_same = worker.batch.out.dtype == self.dtype
        self.is_contiguous = self.is_plain and self._is_solid and is_same
        order = tuple(box.kept.index(k) for k in box.order if k in box.kept)
        self.order = None if order == tuple(range(len(order))) else order
        self._steps: list[_Step] | None = None

    def steps(self) -> Iterable[_Step]:
        """Return what to read, in the order in which it is stored."""
        if self._steps is not None:
            return self._steps
        num_pieces, first = 0, []
        steps = self._made()
        for step in steps:
            first.append(step)
            num_pieces += 1 if step.plan is None else len(step.plan.ranges.piece_starts)
            if num_pieces > MAX_PIECES:
                return itertools.chain(first, steps)
        self._steps = first
        return first

    def _made(self) -> Iterator[_Step]:
        box = self._box
        if self._is_solid:
            yield from self._in_blocks(box)
            return
        for place, part in box.split(PIECES_BYTES, in_pieces=True):
            plan = plan_chunk(self._source, self._layout, part.selection, self._worker.batch.gap)
            if plan.num_requests > 1:
                yield _Step(place, selection=part.selection, plan=plan)
                continue
            for step in self._in_blocks(part):
                places = zip(place, step.place, strict=True)
                moved = tuple(slice(a.start + b.start, a.start + b.stop) for a, b in places)
                yield step._replace(place=moved)

    def _in_blocks(self, box: Box) -> Iterator[_Step]:
        """Yield steps that read all bytes of a box."""
        stored = self._layout.stored
        for place, part in box.split(BLOCK_BYTES):
            raw = self._worker.block(part.num_bytes)
            strides = [part.steps[k] for k in part.kept]
            elements: Array = np.ndarray(part.shape, stored, raw, strides=strides)
            yield _Step(place, part.start, raw, elements)
