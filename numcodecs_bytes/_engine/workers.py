"""Threads that work through the chunks of a batch together: each takes one after the other."""

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from numcodecs_bytes._engine.latency import Latency
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

    Each of them calls `work` once, with the chunks that it gets, one after the other.
    """

    def __init__(  # noqa: PLR0913
        self,
        chunks: Sequence[Chunk],
        work: Callable[[IsWanted, Iterator[Chunk]], None],
        latency: Latency,
        *,
        num_threads: int | None,  # if the user has set it
        num_default: int,  # else; as many as zarr itself would use if the latency is long
        stops_at_exit: bool = True,  # then the caller's thread goes on alone
    ) -> None:
        self._waiting, self._work_on = deque(chunks), work
        self._num_threads, self._num_default = num_threads, num_default
        self._latency, self._stops_at_exit = latency, stops_at_exit
        self._errors: list[BaseException] = []
        self._state = threading.Condition()
        self._helpers: list[Future[None]] = []
        self._num_working, self._has_begun, self._is_over = 0, False, False
        self._is_wanted: IsWanted = lambda: True

    async def run(self, pool: ThreadPoolExecutor) -> None:
        """Work on all chunks, in a thread of a pool and those that help it."""
        await run_while_wanted(pool, self._run)
        if is_ending():  # which the threads of pools notice, and stop
            self._run_alone()

    def _run(self, is_wanted: IsWanted) -> None:
        """Work on all chunks; when this returns, no thread works any more."""
        self._is_wanted = is_wanted
        self._latency.on_learnt = self._start_helpers
        try:
            if self._num_threads or not self._latency.looks_first:
                self._start_helpers()
            self._work()
        finally:
            with self._state:
                self._is_over = True
                self._state.wait_for(lambda: not self._num_working)
            for helper in self._helpers:
                helper.cancel()  # if it still waits for a thread
            del self._latency.on_learnt  # else the two would keep each other, and the output
        if self._errors:
            del self._errors[1:]
            raise self._errors.pop()  # else it would keep the output by its traceback

    def _run_alone(self) -> None:
        """Work on what is left in this thread: the interpreter is ending."""
        self._stops_at_exit = False
        self._work_on(lambda: True, self._take(lambda: True))

    def _start_helpers(self) -> None:
        """Have other threads help: as many as zarr itself would use if they wait for files."""
        num = self._num_threads or self._num_default
        if self._latency.is_long and not self._num_threads:
            num = concurrency() or MAX_FILE_THREADS
        most = min(num, self._num_working + len(self._waiting), MAX_FILE_THREADS)
        with self._state, contextlib.suppress(NoThreadError):
            while len(self._helpers) < most - 1:
                context = contextvars.copy_context()
                self._helpers.append(submit(helper_pool(), partial(context.run, self._work)))
                self._latency.has_helpers = True

    def _take(self, is_wanted: IsWanted) -> Iterator[Chunk]:
        """Yield one chunk after the other, as several threads do."""
        while self._waiting and is_wanted():
            if self._stops_at_exit and is_ending():
                return
            try:
                chunk = self._waiting.popleft()
            except IndexError:  # another thread has taken the last one
                return
            yield chunk
            if not self._has_begun:  # if it is missing, nothing was learnt from it
                self._has_begun = True
                self._start_helpers()

    def _work(self) -> None:
        """Work on chunks until there are no more."""
        with self._state:
            if self._is_over:  # this thread has started too late
                return
            self._num_working += 1
        try:
            self._work_on(self._is_wanted, self._take(self._is_wanted))
        except BaseException as error:  # noqa: BLE001 # raised by `_run`
            self._errors.append(error)
            self._waiting.clear()
        finally:
            with self._state:
                self._num_working -= 1
                self._state.notify_all()
