"""Threads that work through the chunks of a batch together: each takes one after the other."""

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._threads import (
    MAX_FILE_THREADS,
    IsWanted,
    NoThreadError,
    helper_pool,
    is_ending,
    run_while_wanted,
    submit,
)
from numcodecs_bytes._zarr_versions import concurrency

if TYPE_CHECKING:
    from concurrent.futures import Future

Chunk = TypeVar("Chunk")


class Workers(Generic[Chunk]):
    """The threads that read or write the chunks of a batch.

    Each of them calls `begin` once, and then what that returned, with one chunk after the other.
    `close` is called when no thread works any more.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        begin: Callable[[IsWanted], Callable[[Chunk], None]],
        *,
        num_threads: int | None,  # if the user has set it
        num_default: int,  # else; more if threads have to wait for files
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._waiting, self._begin, self._close = deque(chunks), begin, close
        self._num_threads = num_threads or num_default
        self._may_start_more = num_threads is None
        self._errors: list[BaseException] = []
        self._state = threading.Condition()
        self._helpers: list[Future[None]] = []
        self._num_working, self._is_over = 0, False

    async def run(self, pool: ThreadPoolExecutor) -> None:
        """Work on all chunks, in a thread of a pool and those that help it."""
        await run_while_wanted(pool, self._run)
        if is_ending():  # which the threads of pools notice, and stop
            self._run_alone()

    def _run(self, is_wanted: IsWanted) -> None:
        """Work on all chunks; when this returns, no thread works any more."""
        try:
            self._start_helpers(is_wanted, self._num_threads)
            self._work(is_wanted, may_start_more=self._may_start_more)
        finally:
            with self._state:
                self._is_over = True
                self._state.wait_for(lambda: not self._num_working)
            for helper in self._helpers:
                helper.cancel()  # if it still waits for a thread
            self._close()
        if self._errors:
            del self._errors[1:]
            raise self._errors.pop()  # else it would keep the output by its traceback

    def _run_alone(self) -> None:
        """Work on what is left in this thread: the interpreter is ending."""
        try:
            work_on = self._begin(lambda: True)
            while self._waiting:
                work_on(self._waiting.popleft())
        finally:
            self._close()

    def _start_helpers(self, is_wanted: IsWanted, num_threads: int) -> None:
        """Have other threads help, so that `num_threads` work in all."""
        most = min(num_threads, len(self._waiting) + 1, MAX_FILE_THREADS)
        with contextlib.suppress(NoThreadError):
            while len(self._helpers) < most - 1:
                context = contextvars.copy_context()
                work = partial(self._work, is_wanted)
                self._helpers.append(submit(helper_pool(), partial(context.run, work)))

    def _work(self, is_wanted: IsWanted, *, may_start_more: bool = False) -> None:
        """Work on one chunk after the other, as several threads do."""
        with self._state:
            if self._is_over:  # this thread has started too late
                return
            self._num_working += 1
        try:
            work_on = self._begin(is_wanted)
            self._work_on_waiting(work_on, is_wanted, may_start_more=may_start_more)
        except BaseException as error:  # noqa: BLE001 # raised by `_run`
            self._errors.append(error)
            self._waiting.clear()
        finally:
            with self._state:
                self._num_working -= 1
                self._state.notify_all()

    def _work_on_waiting(
        self, work_on: Callable[[Chunk], None], is_wanted: IsWanted, *, may_start_more: bool
    ) -> None:
        """Take what waits; see now and then whether files are slow: then others help."""
        num_done = 0
        while self._waiting and is_wanted() and not is_ending():
            is_measured = may_start_more and num_done % constants.LOOK_EVERY == 0
            before = files.usage() if is_measured else None
            try:
                chunk = self._waiting.popleft()
            except IndexError:  # another thread has taken the last one
                return
            work_on(chunk)
            num_done += 1
            if is_measured and files.has_waited(before, is_alone=not self._helpers):
                may_start_more = False  # as many threads wait for files as zarr itself would use
                self._start_helpers(is_wanted, concurrency() or MAX_FILE_THREADS)
