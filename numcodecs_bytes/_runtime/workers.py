"""Threads that read or write the items of a batch together: chunks, or groups of them.

Each of them calls `work` once, with the workers and with the items that it takes, one after the
other. Both kinds have `add_threads`, by which a thread has others help, as many as help.
"""

import _thread
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._runtime.threads import (
    MAX_FILE_THREADS,
    IsWanted,
    helper_pool,
    num_cores,
    submit,
)
from numcodecs_bytes._zarr_api.versions import concurrency

if TYPE_CHECKING:
    from concurrent.futures import Future

# If at least this much is selected per chunk, all cores together are faster than one thread. Below
# it, threads wait for each other: most of the time is spent in Python.
PARALLEL_BYTES = 1 << 19

Work = TypeVar("Work")


def num_threads_for(num_bytes: int, num_chunks: int) -> int:
    """Return how many threads share chunks that hold so many bytes in all: one, or one per core."""
    return num_cores() if num_bytes >= PARALLEL_BYTES * num_chunks else 1


class PoolWorkers(Generic[Work]):
    """A thread of a pool, and others that help it: one per core, or as many as zarr would use."""

    num_helpers = 0  # other threads, which may make each other wait

    def __init__(
        self,
        items: Sequence[Work],
        work: "Callable[[PoolWorkers[Work], Iterator[Work]], None]",
        *,
        num_threads: int | None,  # None: the user has not set it
        num_default: int,  # how many work then, unless they wait for files
        begins_alone: bool = False,  # the first item then shows whether threads wait for files
    ) -> None:
        self._waiting, self._work = deque(items), work
        self._num_threads, self._num_default = num_threads, num_default
        self._begins_alone = begins_alone and not num_threads
        self._errors: list[BaseException] = []
        self._state = threading.Condition()
        self._helpers: list[Future[None]] = []
        self._num_working, self._is_over = 0, False
        self.is_wanted: IsWanted = lambda: True

    def run(self, is_wanted: IsWanted) -> None:
        """Work on all items in this thread; when this returns, no thread works any more."""
        self.is_wanted = is_wanted
        try:
            if not self._begins_alone:
                self.add_threads()
            self._work_in_thread()
        finally:
            with self._state:
                self._is_over = True
                self._state.wait_for(lambda: not self._num_working)
            for helper in self._helpers:
                helper.cancel()  # it may still wait for a thread
        _raise_first(self._errors)

    def add_threads(self, *, io_bound: bool = False) -> None:
        """Have other threads help: as many as zarr itself would use if they wait for files."""
        num = self._num_threads or self._num_default
        if io_bound and not self._num_threads:
            num = concurrency() or MAX_FILE_THREADS
        max_threads = min(num, self._num_working + len(self._waiting), MAX_FILE_THREADS)
        if self.num_helpers >= max_threads - 1:
            return
        with self._state:
            while self.num_helpers < max_threads - 1:
                context = contextvars.copy_context()
                helper = submit(helper_pool(), partial(context.run, self._work_in_thread))
                if helper is None:
                    return
                self._helpers.append(helper)
                self.num_helpers += 1

    def _work_in_thread(self) -> None:
        """Work on items until there are no more."""
        with self._state:
            if self._is_over:
                return
            self._num_working += 1
        try:
            self._work(self, self._take())
        except BaseException as error:  # noqa: BLE001 # raised by `run`
            self._errors.append(error)
            self._waiting.clear()
        finally:
            with self._state:
                self._num_working -= 1
                self._state.notify_all()

    def _take(self) -> Iterator[Work]:
        """Yield one item after the other; several threads take from the same queue."""
        while self._waiting and self.is_wanted():
            try:
                item = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            yield item
            if self._begins_alone:  # the first item is done, even if nothing was learnt from it
                self._begins_alone = False
                self.add_threads()


class CallerWorkers(Generic[Work]):
    """The calling thread, which works on few items, and a new thread for each other one.

    In the caller's thread, a signal handler may raise anything, and do all of this again at any
    line. So there is no lock of Python's here, as pools have, and nothing is caught.
    """

    num_helpers = 0  # other threads

    def __init__(
        self, items: Sequence[Work], work: "Callable[[CallerWorkers[Work], Iterator[Work]], None]"
    ) -> None:
        self._items, self._num_others = iter(items), len(items) - 1  # threads share the iterator
        self._work, self._caller = work, threading.get_ident()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self) -> None:
        """Work on all items; what is raised in this thread is raised at once."""
        try:
            self._work(self, self._items)
            ended = [self._ended.get() for _ in range(self.num_helpers)]
        finally:
            deque(self._items, maxlen=0)  # no helper begins another one
        errors = [error for error in ended if error is not None]
        del ended
        _raise_first(errors)

    def add_threads(self, *, io_bound: bool = False) -> None:
        """Have other threads help if the calling thread waits for files."""
        if not io_bound or threading.get_ident() != self._caller:  # two threads may lose a count
            return
        while self.num_helpers < self._num_others:
            help_here = partial(contextvars.copy_context().run, self._help)
            self.num_helpers += 1
            try:
                _thread.start_new_thread(help_here, ())
            except RuntimeError as error:  # the system sets a limit, or the interpreter ends
                raise_interrupt(error)
                self.num_helpers -= 1
                self._num_others = self.num_helpers

    def _help(self) -> None:
        try:
            self._work(self, self._items)
        except BaseException as error:  # noqa: BLE001 # raised by `run`
            deque(self._items, maxlen=0)
            self._ended.put(error)
        else:
            self._ended.put(None)


def _raise_first(errors: list[BaseException]) -> None:
    """Raise the first error, and keep none: it would keep the output by its traceback."""
    if errors:
        del errors[1:]
        raise errors.pop()
