"""Reads the selections of many chunks in local files into one array.

A thread takes one chunk after the other: opens its file, reads, closes it. Others help where chunks
are large, or their files cold. What can't be read so is left to zarr, which reads it whole, or
raises its own error.
"""

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zarr.core.array_spec import ArraySpec

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.files import File, Left, OpenFile
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.plan import plan_of
from numcodecs_bytes._engine.read_file import read
from numcodecs_bytes._engine.shards import Shard, read_shard
from numcodecs_bytes._names import name_of_chunk
from numcodecs_bytes._threads import (
    MAX_FILE_THREADS,
    IsWanted,
    file_pool,
    helper_pool,
    is_ending,
    run_while_wanted,
)
from numcodecs_bytes._zarr_versions import fill_value_or_default


class Batch(NamedTuple):
    """The selections of many chunks, and how to read them.

    Attributes
    ----------
    items : sequence of tuple
        What zarr passes to the `read` of its pipelines: byte getter, specification of the chunk,
        selection of it, selection of `out` and more.
    out : numpy.ndarray
        The output, in any layout.
    drop_axes : tuple of int
        Axes of length 1 of the selections that `out` lacks.
    stored_as : callable
        Takes the specification of a chunk, and returns how it is stored.
    find : callable
        Takes a byte getter, and returns the file in which the chunk lies, or None.
    why_left : dict
        Where to say why chunks are left to zarr, by their position in `items`.
    num_workers : int or None
        The number of threads, if the user set it.
    num_waiting : int or None
        How many reads may wait at the same time; None means any number.
    gap : int or None
        Over which gaps in a file to read, in bytes, if the user set it.
    """

    items: Sequence[Any]
    out: Array
    drop_axes: tuple[int, ...]
    stored_as: Callable[[ArraySpec], Layout | Shard]
    find: Callable[[Any], File | None]
    why_left: dict[int, str]
    num_workers: int | None = None
    num_waiting: int | None = None
    gap: int | None = None


async def read_files(batch: Batch) -> list[bool | None]:
    """Read the selections of the chunks that lie in local files into the output.

    Returns
    -------
    list of (bool or None)
        Whether each chunk exists; None if it is left to zarr.

    Raises
    ------
    ValueError
        If a file has the wrong length.
    Exception
        Whatever NumPy raises if the output does not take the elements.
    """
    job = _Job(batch)
    context = contextvars.copy_context()  # with NumPy's errstate, for example
    await run_while_wanted(file_pool(), lambda is_wanted: context.run(job.run, is_wanted))
    if is_ending():
        job.run(lambda: True, is_last=True)
    return job.exist


class _Job:
    """What the threads share that read a batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.exist: list[bool | None] = [None] * len(batch.items)
        self.shared: dict[Any, int] = {}  # descriptors of files in which several chunks lie
        self.opening = threading.Lock()
        self._left = deque(range(len(batch.items)))
        self._is_wanted: IsWanted = lambda: True
        self._errors: list[BaseException] = []
        self._state = threading.Condition()
        self._num_working, self._num_helpers, self._is_over = 0, 0, False

    def run(self, is_wanted: IsWanted, *, is_last: bool = False) -> None:
        """Read what is left; no thread reads afterwards.

        When the interpreter ends, it waits for the threads of pools, so these stop. Whoever still
        waits for the chunks reads them, `is_last`, in its own thread.
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
            while self.shared:
                os.close(self.shared.popitem()[1])
        if self._errors:
            raise self._errors[0]

    def _help(self, num_workers: int) -> None:
        """Have so many threads read, together with this one."""
        most = min(num_workers, len(self._left) + 1, MAX_FILE_THREADS)
        try:
            while self._num_helpers < most - 1:
                helper_pool().submit(contextvars.copy_context().run, self._work)
                self._num_helpers += 1
        except RuntimeError:  # no further thread can be started
            pass

    def _work(self, *, looks: bool = False, is_last: bool = False) -> None:
        """Read one chunk after the other, as several threads do."""
        with self._state:
            if self._is_over and not is_last:  # this thread comes too late
                return
            self._num_working += 1
        try:
            reader = _Reader(self)
            while self._is_wanted() and not (is_ending() and not is_last):
                try:
                    k = self._left.popleft()
                except IndexError:
                    break
                before = files.usage() if looks and k % constants.LOOK_EVERY == 0 else None
                try:
                    self.exist[k] = reader.read(*self.batch.items[k][:4])
                except (Left, OSError, EOFError) as why:
                    self.batch.why_left[k] = f"left to zarr: {str(why) or type(why).__name__}"
                if before and files.has_waited(before, is_alone=not self._num_helpers):
                    looks = False
                    self._help(self.batch.num_waiting or MAX_FILE_THREADS)
        except BaseException as error:  # noqa: BLE001 # raised by `run`
            self._errors.append(error)
            self._left.clear()
        finally:
            with self._state:
                self._num_working -= 1
                self._state.notify_all()


class _Reader:
    """Reads chunks of a batch in one thread."""

    def __init__(self, job: _Job) -> None:
        self._job, self._batch = job, job.batch
        self._shape: Any = None
        self._stored: Any = None  # how chunks of this shape are stored

    def read(self, byte_getter: Any, spec: ArraySpec, selection: Any, place: Any) -> bool | None:
        """Read a chunk; return whether it exists, or None if it lies in no file.

        Raises `Left`, OSError or EOFError if zarr is to read it, or to raise its own error.
        """
        if spec.shape != self._shape:  # of an array, chunks differ in nothing else
            self._shape, self._stored = spec.shape, self._batch.stored_as(spec)
        try:
            file = self._batch.find(byte_getter)
            if file is None:
                return None
            try:
                descriptor = self._open(file)
                try:
                    counted = self._read(file, descriptor, byte_getter, selection, place)
                finally:
                    if file.key is None:
                        os.close(descriptor)
            except file.missing:
                self._batch.out[place] = fill_value_or_default(spec)
                self._note(byte_getter, None, 0, 0)
                return False
            self._note(byte_getter, place, *counted)
        except (Left, OSError, EOFError):
            raise
        except Exception as error:
            error.add_note(f"while reading {name_of_chunk(byte_getter)}")
            raise
        return True

    def _open(self, file: File) -> int:
        """Return the descriptor of a file, which may be open already."""
        if file.key is None:
            return file.open()
        with self._job.opening:
            if file.key not in self._job.shared:
                self._job.shared[file.key] = file.open()
            return self._job.shared[file.key]

    def _read(
        self, file: File, descriptor: int, byte_getter: Any, selection: Any, place: Any
    ) -> Any:
        """Read a chunk in an open file; return the number of reads, of bytes, and more."""
        out, drop_axes, stored = self._batch.out, self._batch.drop_axes, self._stored
        gap = self._batch.gap
        if file.locate is None:
            start, num_bytes = 0, files.length_of(descriptor)
            length = num_bytes
        else:  # a zip archive's own file has the same position
            start, num_bytes = file.locate(descriptor)
            length = os.fstat(descriptor).st_size
        if start + num_bytes > length:
            raise Left("it reaches beyond the end of its file")
        if isinstance(stored, Shard):
            if file.locate is not None:
                raise Left("a shard is a part of a file")
            return read_shard(descriptor, stored, selection, out, place, drop_axes, gap)
        if num_bytes != stored.num_bytes:
            name = name_of_chunk(byte_getter)
            check_length(num_bytes, stored.shape, stored.dtype, stored.stored, name)
        plan = plan_of(selection, stored, drop_axes, gap)
        if plan is None:
            raise Left("its selection is of an unknown kind")
        return read(OpenFile(descriptor, start), stored, plan, out, place)

    def _note(
        self, byte_getter: Any, place: Any, num: int, num_bytes: int, starts: Any = None
    ) -> None:
        """Tell `numcodecs_bytes.trace` what was read; `place` is None if the chunk is missing."""
        if not _trace.active:
            return
        stored, num_selected = self._stored, None
        layout = stored.layout if isinstance(stored, Shard) else stored
        if place is not None:
            num_selected = self._batch.out[place].size * layout.item_size
        alone = None if starts is None else stored.num_bytes_alone(starts)
        fetched = _trace.Fetched(num, num_bytes, num_bytes_alone=alone)
        _trace.note_read(byte_getter, len(self._shape), stored.num_bytes, fetched, num_selected)
