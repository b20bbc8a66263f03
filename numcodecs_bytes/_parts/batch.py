"""Read the selections of many chunks in local files into one array.

A few threads take one chunk after the other: open, read, close. A contiguous selection is read
straight to its place. Others are read in blocks that stay in the CPU cache, from where they are
copied, and byte-swapped, to their place. What can't be read so, for whatever reason, is left to be
read chunk by chunk, which finds another way or raises the error.
"""

import contextlib
import contextvars
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._parts.assemble import ready_to_copy
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.open_file import AT_ONCE_BYTES, OpenFile, WouldWait
from numcodecs_bytes._parts.plan import is_whole
from numcodecs_bytes._parts.read_file import FileReader, are_slices
from numcodecs_bytes._parts.refusals import ReadWhole
from numcodecs_bytes._parts.selection import key_of
from numcodecs_bytes._parts.shards import Shard, ShardSelection
from numcodecs_bytes._parts.stores import File, find_source, local_coalescing, source_finder
from numcodecs_bytes._threads import (
    MAX_FILE_THREADS,
    IsWanted,
    file_pool,
    helper_pool,
    is_ending,
    run_while_wanted,
)
from numcodecs_bytes._zarr_versions import fill_value_or_default

logger = logging.getLogger("numcodecs_bytes")

# Inner chunks up to this size are copied many at a time, if a whole shard is read.
SMALL_BYTES = 1 << 14
# A thread remembers what so many selections take from a shard.
MAX_SELECTED = 64
# From so many bytes per chunk on, all cores together are faster than one thread. Below, threads
# wait for each other: most of the time is spent in Python.
PARALLEL_BYTES = 1 << 19
# A chunk that takes SLOW_SECONDS longer than its bytes at BYTES_PER_SECOND is not in the page
# cache. Then SLOW_WORKERS threads wait for files.
SLOW_SECONDS, BYTES_PER_SECOND, SLOW_WORKERS = 2e-4, 1e9, 10
# What makes a batch leave a chunk: its file can't be read or has another length, its index is
# damaged, or the output takes no such values. Read alone, it raises the error again, or is missing.
GIVES_UP = (OSError, EOFError, MemoryError, ArithmeticError, ValueError, Warning, ReadWhole)


# Nothing says beforehand whether to open a file has to wait. The event loop may do so only in
# places on a disk of this machine where the last open took no longer than this, and the last short
# read was from the page cache.
QUICK_OPEN_SECONDS, QUICK_READ_SECONDS = 1e-4, 5e-4
MAX_PLACES = 1000


class Places:
    """A set of the roots of stores, of bounded size."""

    def __init__(self) -> None:
        self._places: set[str] = set()

    def __contains__(self, place: object) -> bool:
        return place in self._places

    def add(self, place: str) -> None:
        """Remember a place."""
        if len(self._places) >= MAX_PLACES:
            self._places.clear()
        self._places.add(place)

    def discard(self, place: str) -> None:
        """Forget a place, if it was remembered."""
        self._places.discard(place)


class _QuickPlaces(Places):
    """Where short reads are tried on the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._banned = Places()

    def note(self, place: str, open_seconds: float, read_seconds: float = 0.0) -> None:
        """Remember how long it took to open a file, and to read from it."""
        if open_seconds > QUICK_OPEN_SECONDS or read_seconds > QUICK_READ_SECONDS:
            self.discard(place)
        elif place and place not in self._banned:
            self.add(place)

    def ban(self, place: str) -> None:
        """Never try again there: its file system can't read at once."""
        self.discard(place)
        self._banned.add(place)


quick_places = _QuickPlaces()


@contextlib.contextmanager
def timing(file: OpenFile, place: str, start: float, *, at_once: bool) -> Iterator[None]:
    """Note how long it takes to open a file, since `start`, and to read it.

    Raises `WouldWait` if it is read `at_once`, and would have to wait. Nothing is noted if there is
    no `place`.
    """
    opened = time.perf_counter()
    try:
        if at_once:
            file.must_not_wait()
        yield
    except BlockingIOError:
        if not at_once:
            raise
        quick_places.discard(place)
        raise WouldWait from None
    except (OSError, NotImplementedError):
        if not at_once:
            raise
        quick_places.ban(place)
        raise WouldWait from None
    if place and file.is_on_disk:
        seconds = 0.0 if at_once else time.perf_counter() - opened
        quick_places.note(place, opened - start, seconds)


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
    context = contextvars.copy_context()
    await run_while_wanted(file_pool(), lambda is_wanted: context.run(job.run, is_wanted))
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
        self.is_wanted: IsWanted = _always
        self._adapts = batch.num_workers is None
        is_parallel = batch.out.nbytes >= PARALLEL_BYTES * num
        self._num_workers = batch.num_workers or (_num_cores() if is_parallel else 1)
        self._left = deque(range(num))
        self._state = threading.Condition()
        self._files: dict[Any, OpenFile] = {}  # in which several chunks lie
        self._opening = threading.Lock()
        self._num_working, self._is_over = 0, False

    def run(self, is_wanted: IsWanted) -> None:
        """Read all chunks, with the help of other threads; none of them works afterwards."""
        self.is_wanted = is_wanted
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
            self._left = deque(range(k, num))
            return False
        finally:
            worker.close()
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
        self._left = deque(k for k, exists in enumerate(self.exist) if exists is None)
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
        if not self._left or (is_waited_for and is_ending()):
            return None
        try:
            return self._left.popleft()
        except IndexError:  # another thread has taken the last one
            return None

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
        with self._state:
            if self._is_over:  # this thread comes too late
                return False
            self._num_working += 1
        try:
            return self._read_chunks(
                starts_helpers=starts_helpers,
                only_if_slow=only_if_slow,
                is_waited_for=is_waited_for,
            )
        finally:
            with self._state:
                self._num_working -= 1
                self._state.notify_all()

    def _read_chunks(
        self, *, starts_helpers: bool, only_if_slow: bool, is_waited_for: bool
    ) -> bool:
        worker, is_slow = _Worker(self, is_waited_for=is_waited_for), False
        try:
            while self.is_wanted() and (k := self._next(is_waited_for)) is not None:
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
            worker.close()
        return is_slow


def _always() -> bool:
    return True


def _log_once(error: Exception) -> None:
    if type(error) not in _logged:
        _logged.add(type(error))
        logger.warning(
            "chunks are read again after this error, a bug in numcodecs_bytes", exc_info=error
        )


_logged: set[type[Exception]] = set()


def _num_cores() -> int:
    return os.cpu_count() or 1


class _Worker:
    """What each thread has for itself.

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
        self._find = source_finder()
        gap = job.batch.gap
        self._coalescing = local_coalescing(gap)
        self._reader = FileReader(
            self._coalescing, self._is_wanted, adapts=gap is None, may_wait=not at_once
        )
        self._spec: Any = None
        self._layout: Any = None
        self._shard: Shard | None = None
        self._selected: dict[Any, ShardSelection] = {}
        self._starts: Any = None  # of the inner chunks that were selected from

    def read(self, byte_getter: object, spec: ArraySpec, selection: Any, place: Any) -> bool | None:
        """Read a chunk; return whether it exists, or None if it was not read."""
        self.num_read = 0
        try:
            source = self._find(byte_getter)
            if type(source) is not File:
                return None
            if spec is not self._spec:  # zarr 3.1.6 makes one for each chunk
                self._set_spec(spec)
            start = time.perf_counter() if self.batch.at_once else 0.0
            try:
                file = source.open(None if source.key is None else self.job.shared(source))
            except source.missing:
                self._out[place] = fill_value_or_default(spec)
                self._note(byte_getter, [0, 0], None)
                return False
            try:
                if self.batch.at_once:
                    with timing(file, source.place, start, at_once=self._at_once):
                        self._read_file(file, selection, place)
                else:
                    self._read_file(file, selection, place)
                self.num_read = file.counted[1]
                if _trace.active:
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
            starts = self._starts
            alone = None if shard is None or starts is None else shard.num_bytes_alone(starts)
            fetched = _trace.Fetched(counted[0], counted[1], num_bytes_alone=alone)
            _trace.note_read(byte_getter, num_axes, num_bytes, fetched, num)

    def _read_file(self, file: OpenFile, selection: Any, place: Any) -> None:
        if self._shard is None:
            drop_axes = self.batch.drop_axes
            self._reader.read(file, self._layout, selection, self._out, place, drop_axes)
        else:
            self._read_shard(file, self._shard, selection, place)

    def _set_spec(self, spec: ArraySpec) -> None:
        """Prepare for chunks of a shape; of an array, they differ in nothing else."""
        if self._spec is None or spec.shape != self._spec.shape:
            found = self.batch.layout_of(spec)
            self._shard = found if isinstance(found, Shard) else None
            self._layout = found.layout if isinstance(found, Shard) else found
            self._selected = {}
        self._spec = spec

    def _read_shard(self, file: OpenFile, shard: Shard, selection: Any, place: Any) -> None:
        """Read a selection of a shard, its inner chunks in the order in which they are stored."""
        shape, is_small = shard.spec.shape, self._layout.num_bytes <= SMALL_BYTES
        if shape and is_small and is_whole(selection, shape) and are_slices(place):
            region = self._out[place]
            if region.shape == shape:
                self._read_small_chunks(file, shard, region)
                return
        selected = self._select(shard, selection)
        index = self._index_of(file, shard, selected.num_bytes)
        present, starts, missing = shard.locate_selected(index, selected, file.num_bytes)
        self._starts = starts
        drop_axes = self.batch.drop_axes
        region = self._out[(*place, ...)] if are_slices(place) and not drop_axes else None
        if region is not None and region.shape == selected.shape == selected.flat_shape:
            out = region
        else:
            out = np.empty(selected.flat_shape, self._out.dtype)
        shard.fill(out, missing)
        self._reader.read_items(file, self._layout, present, starts, out)
        if out is not region:
            out = out.reshape(selected.shape)
            self._out[place] = out.squeeze(axis=drop_axes) if drop_axes else out

    def _read_small_chunks(self, file: OpenFile, shard: Shard, region: Array) -> None:
        """Read all inner chunks of a shard, many at a time."""
        layout = self._layout
        grid, coordinates = shard.grid_of(region)
        index = self._index_of(file, shard, region.nbytes)
        present, starts, missing = shard.locate(index, coordinates, file.num_bytes)
        self._starts = starts
        if len(missing):
            grid[tuple(along[missing] for along in coordinates)] = fill_value_or_default(shard.spec)
        num = self._coalescing.costs.block_bytes // layout.num_bytes or 1
        for first in range(0, len(present), num):
            some = slice(first, first + num)
            fetched = self._reader.fetch_pieces(file, starts[some], starts[some] + layout.num_bytes)
            inner = fetched.view(layout.stored).reshape(-1, *grid.shape[len(coordinates) :])
            place = tuple(along[present[some]] for along in coordinates)
            grid[place] = ready_to_copy(inner, layout.dtype)

    def _index_of(self, file: OpenFile, shard: Shard, num_bytes: int) -> Any:
        """Return the index of a shard of which `num_bytes` are selected."""
        if self._at_once and shard.index_bytes + num_bytes > AT_ONCE_BYTES:
            raise WouldWait
        return shard.decode_index(shard.read_index(file, self._is_wanted))

    def _select(self, shard: Shard, selection: Any) -> ShardSelection:
        key = key_of(selection)
        if key is None:
            return shard.select(selection, self._coalescing)
        if key not in self._selected:
            if len(self._selected) >= MAX_SELECTED:
                self._selected.clear()
            self._selected[key] = shard.select(selection, self._coalescing)
        return self._selected[key]

    def close(self) -> None:
        """Forget what refers to this worker, and would keep its block alive."""
        del self._reader

    def _is_wanted(self) -> bool:
        return self.job.is_wanted() and not (self._is_waited_for and is_ending())
