"""Reads the selections of many chunks in local files into one array.

A thread takes one chunk after the other: it opens the file, reads, and closes it. Other threads
help if chunks are large, or their files cold. What can't be read this way is left to zarr, which
reads it whole or raises its own error.
"""

import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.files import File, Left, OpenFile
from numcodecs_bytes._engine.output import Output
from numcodecs_bytes._engine.plan import plan_of
from numcodecs_bytes._engine.read_file import read
from numcodecs_bytes._engine.shards import Shard, read_shard
from numcodecs_bytes._engine.stores import Source
from numcodecs_bytes._names import add_name, name_of_chunk
from numcodecs_bytes._threads import (
    MAX_FILE_THREADS,
    IsWanted,
    NoThreadError,
    file_pool,
    helper_pool,
    is_ending,
    run_while_wanted,
    submit,
)
from numcodecs_bytes._zarr_versions import fill_value_or_default


class Batch(NamedTuple):
    """The selections of many chunks of an array, and how to read them."""

    items: Sequence[Any]  # what zarr passes to the `read` of its pipelines
    sources: Sequence[Source]  # where each chunk is stored
    out: Array  # as `output.why_not_filled` wants it
    drop_axes: tuple[int, ...]
    stored_as: Callable[[ArraySpec], Any]  # returns a Layout, or a Shard, for every chunk
    why_left: dict[int, str]  # why chunks are left to zarr, by their position in `items`
    num_workers: int | None  # the number of threads, if the user has set it
    gap: int | None  # the largest gap to read, in bytes, if the user has set it

    def place(self, k: int) -> tuple[Any, ...]:
        """Return where the selection of a chunk belongs in the output."""
        place = self.items[k][3]
        return place if isinstance(place, tuple) else (place,)

    def fill_missing(self, k: int) -> None:
        """Fill the selection of a chunk that does not exist."""
        self.out[self.place(k)] = fill_value_or_default(self.items[k][1])

    def note(self, k: int, fetched: _trace.Fetched, *, exists: bool) -> None:
        """Tell `numcodecs_bytes.trace` what was fetched to read a chunk."""
        if _trace.active:
            byte_getter, spec, *_ = self.items[k]
            stored = self.stored_as(spec)
            layout = stored.layout if isinstance(stored, Shard) else stored
            num = np.size(self.out[self.place(k)]) * layout.item_size if exists else None
            _trace.note_read(byte_getter, len(spec.shape), stored.num_bytes, fetched, num)

    def note_whole(self, k: int, before: _trace.Fetched, *, exists: bool) -> None:
        """Do the same for a chunk that zarr has read; `before` is what was fetched before that."""
        stored = self.stored_as(self.items[k][1])
        if isinstance(stored, Shard):  # of which zarr may have read parts
            _trace.note_not_seen(before.why or "most of a shard is selected")
            return
        num_bytes = before.num_bytes + (stored.num_bytes if exists else 0)
        fetched = _trace.Fetched(before.num_requests + 1, num_bytes, before.why)
        self.note(k, fetched, exists=exists)


async def read_files(batch: Batch) -> list[bool | None]:
    """Read the selections of the chunks in local files into the output.

    Returns whether each chunk exists, or None if it is left to zarr. Raises ValueError if a file
    has the wrong length.
    """
    job = _Job(batch)
    context = contextvars.copy_context()  # with NumPy's errstate, for example
    try:
        await run_while_wanted(file_pool(), lambda is_wanted: context.run(job.run, is_wanted))
    finally:
        job.let_go_of_output()
    if is_ending():
        job.run(lambda: True, is_last=True)
    return job.exist


class _Job:
    """What the threads that read a batch share."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.exist: list[bool | None] = [None] * len(batch.items)
        self._shared: dict[Any, int] = {}  # descriptors of files that hold several chunks
        self._opening = threading.Lock()
        self._left = deque(k for k, s in enumerate(batch.sources) if isinstance(s, File))
        self._is_wanted: IsWanted = lambda: True
        self._outputs: list[Output] = []  # one for each thread
        self._errors: list[BaseException] = []
        self._state = threading.Condition()
        self._helpers: list[Any] = []  # futures
        self._num_working, self._is_over = 0, False

    def run(self, is_wanted: IsWanted, *, is_last: bool = False) -> None:
        """Read what is left; when this returns, no thread reads any more.

        When the interpreter ends, it waits for the threads of pools, so these stop. A caller that
        still waits for the chunks reads them in its own thread, with `is_last`.
        """
        batch, self._is_wanted = self.batch, is_wanted
        is_parallel = batch.out.nbytes >= constants.PARALLEL_BYTES * len(batch.items)
        try:
            if not is_last:
                self._help(batch.num_workers or (os.cpu_count() or 1 if is_parallel else 1))
            self._work(looks=batch.num_workers is None, is_last=is_last)
        finally:
            with self._state:
                self._is_over = True
                self._state.wait_for(lambda: not self._num_working)
            for helper in self._helpers:
                helper.cancel()  # if it still waits for a thread
            while self._shared:
                with contextlib.suppress(OSError):  # all has been read
                    os.close(self._shared.popitem()[1])
        if self._errors:
            raise self._errors[0]

    def let_go_of_output(self) -> None:
        """Wait until no thread changes the output; if the read was cancelled, none will."""
        for out in self._outputs:
            with out.lock:
                pass

    def _help(self, num_workers: int) -> None:
        """Have other threads help, so that `num_workers` read in all."""
        most = min(num_workers, len(self._left) + 1, MAX_FILE_THREADS)
        try:
            while len(self._helpers) < most - 1:
                work = partial(contextvars.copy_context().run, self._work)
                self._helpers.append(submit(helper_pool(), work))
        except NoThreadError:
            pass

    def _work(self, *, looks: bool = False, is_last: bool = False) -> None:
        """Read one chunk after the other, as several threads do."""
        with self._state:
            if self._is_over and not is_last:  # this thread has started too late
                return
            self._num_working += 1
            out = Output(self.batch.out, self._is_wanted, threading.Lock())
            self._outputs.append(out)
        try:
            while self._is_wanted() and not (is_ending() and not is_last):
                try:
                    k = self._left.popleft()
                except IndexError:
                    break
                is_looked_at = looks and k % constants.LOOK_EVERY == 0
                before = files.usage() if is_looked_at else None
                self._read(k, out)
                if is_looked_at and files.has_waited(before, is_alone=not self._helpers):
                    looks = False  # as many threads wait for files as zarr itself would use
                    self._help(zarr.config.get("async.concurrency") or MAX_FILE_THREADS)
        except BaseException as error:  # noqa: BLE001 # raised by `run`
            self._errors.append(error)
            self._left.clear()
        finally:
            with self._state:
                self._num_working -= 1
                self._state.notify_all()

    def _read(self, k: int, out: Output) -> None:
        """Read a chunk, or leave it to zarr, which may raise its own error."""
        file: Any = self.batch.sources[k]
        try:
            fetched = self._read_file(k, file, out)
            self.exist[k] = fetched is not None
            self.batch.note(k, fetched or _trace.Fetched(), exists=fetched is not None)
        except (Left, OSError, EOFError) as why:
            self.batch.why_left[k] = f"left to zarr: {str(why) or type(why).__name__}"
        except Exception as error:
            add_name(error, self.batch.items[k][0])
            raise

    def _read_file(self, k: int, file: File, out: Output) -> _trace.Fetched | None:
        """Read a chunk; return what was fetched, or None if it is missing, and filled."""
        try:
            descriptor = self._open(file)
        except Left:
            raise
        except file.missing:
            self._fill_missing(k, out)
            return None
        try:
            located = self._locate(file, descriptor)
            if located is not None:
                return self._read_open(k, descriptor, *located, out)
            self._fill_missing(k, out)
            return None
        finally:
            if file.key is None:
                os.close(descriptor)

    def _fill_missing(self, k: int, out: Output) -> None:
        with out.lock:
            out.check()
            self.batch.fill_missing(k)

    def _open(self, file: File) -> int:
        """Return the descriptor of a file, which may already be open."""
        if file.key is None:
            return file.open()
        with self._opening:
            if file.key not in self._shared:
                self._shared[file.key] = file.open()
            return self._shared[file.key]

    def _locate(self, file: File, descriptor: int) -> tuple[int, int] | None:
        """Return the offset and the length of a chunk in an open file; None if it is missing."""
        length = os.fstat(descriptor).st_size
        if not length:
            raise Left("the system gives its length as 0")  # of a file of procfs, for example
        located = file.locate(descriptor) if file.locate else (0, length)
        if located is not None and sum(located) > length:
            raise Left("it reaches beyond the end of its file")
        return located

    def _read_open(
        self, k: int, descriptor: int, start: int, num_bytes: int, out: Output
    ) -> _trace.Fetched:
        """Read a chunk at an offset in an open file."""
        batch = self.batch
        byte_getter, spec, selection, *_ = batch.items[k]
        stored, place = batch.stored_as(spec), batch.place(k)
        if isinstance(stored, Shard):
            if start:
                raise Left("a shard is a part of a file")
            items = stored.items_of(selection, batch.drop_axes, batch.gap)
            return read_shard(descriptor, num_bytes, stored, items, out, place)
        if num_bytes != stored.num_bytes:
            name = name_of_chunk(byte_getter)
            check_length(num_bytes, stored.shape, stored.dtype, stored.stored, name)
        plan = plan_of(selection, stored, batch.drop_axes, batch.gap)
        if plan is None:
            raise Left("its selection is of an unknown kind")
        return _trace.Fetched(*read(OpenFile(descriptor, start), stored, plan, out, place))
