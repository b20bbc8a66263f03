"""Run functions in threads to keep the event loop free.

Each function runs at most once. If no thread can be started, because the interpreter shuts down or
the system sets a limit, the caller can run it instead.
"""

import asyncio
import contextlib
import contextvars
import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from numcodecs_bytes._core.interrupts import raise_interrupt

T = TypeVar("T")
IsWanted = Callable[[], bool]  # whether the caller still wants the result

# How long a cancelled caller waits for its thread, which may still fill an array or write a file.
CANCEL_GRACE_SECONDS = 1.0


def submit(pool: Executor, function: Callable[[], T]) -> Future[T] | None:
    """Run a function in a thread of a pool; return its future, or None if no thread will run it.

    `pool.submit` alone can't say that: it queues the function before it starts a thread. If that
    fails, it raises, but the next thread runs the function all the same.
    """
    future: Future[T] = Future()
    # A cancelled call stays in the queue of the pool; this drops the arrays that it refers to.
    waiting = [function]
    future.add_done_callback(lambda _: waiting.clear())

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = waiting.pop()()
        except BaseException as error:  # noqa: BLE001 # raised where the result is asked for
            # This frame refers to the future, and so to the error: no cycle is made of them.
            inner = error.__traceback__ and error.__traceback__.tb_next
            future.set_exception(error.with_traceback(inner))
            del inner  # it refers to the error, too
        else:
            future.set_result(result)

    try:
        pool.submit(run)
    except RuntimeError as error:
        is_cancelled = future.cancel()  # False: a thread has begun to run it
        raise_interrupt(error)
        if is_cancelled:
            return None
    return future


async def run_in_thread(pool: Executor, function: Callable[[], T]) -> T:
    """Run a function in a thread of a pool, or here if there is none; return its result."""
    future = submit(pool, function)
    return function() if future is None else await asyncio.wrap_future(future)


async def run_while_wanted(pool: Executor, function: Callable[[IsWanted], None]) -> bool:
    """Like `run_in_thread`, but the function can ask whether its result is still wanted.

    It runs in the caller's context, which includes NumPy's errstate. A cancelled caller waits for
    the function to return, for at most `CANCEL_GRACE_SECONDS`. Returns whether there was a thread.
    """
    is_wanted, context = True, contextvars.copy_context()
    future = submit(pool, lambda: context.run(function, lambda: is_wanted))
    if future is None:
        function(lambda: True)
        return False
    running, ended = asyncio.wrap_future(future), asyncio.get_running_loop().create_future()

    def record_end(_: object) -> None:
        if not running.cancelled():
            running.exception()  # asyncio logs errors that are never retrieved
        if not ended.done():
            ended.set_result(None)

    running.add_done_callback(record_end)
    try:
        # A future of its own, as cancelling `running` would cancel what runs. `asyncio.shield`
        # would do, but logs errors that are not retrieved (Python 3.14).
        await ended
        running.result()
    except asyncio.CancelledError:
        is_wanted = False
        if not future.cancel():
            await asyncio.wait([running], timeout=CANCEL_GRACE_SECONDS)
            running.cancel()
        raise
    finally:
        is_wanted = False
    return True


# The limit of Python's default pools, and so of zarr alone.
MAX_FILE_THREADS = 32


def num_cores() -> int:
    """Return how many cores the process may use, by its CPU affinity and its quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(min(num, _quota()), 1)


# The control group of the process, and the folder of all control groups, on Linux.
_GROUP_FILE, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@functools.cache
def _quota() -> int:
    """Return how many cores the control group of the process may use, rounded up.

    The smallest quota of the group and those that contain it:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    quotas = [sys.maxsize]
    with contextlib.suppress(OSError, ValueError):  # another system, or version 1 of control groups
        lines = _GROUP_FILE.read_text(encoding="utf-8").splitlines()
        (group,) = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
        for folder in [_GROUPS / group, *(_GROUPS / group).parents]:
            file = folder / "cpu.max"
            if folder.is_relative_to(_GROUPS) and file.exists():  # the root has none
                quota, period = file.read_text(encoding="utf-8").split()
                if quota != "max":
                    quotas.append(-(-int(quota) // int(period)))
    return min(quotas)


def _pool(
    name: str, num_threads: Callable[[], int] = lambda: MAX_FILE_THREADS
) -> Callable[[], ThreadPoolExecutor]:
    """Return a function that returns a pool of threads, one in a process."""
    pool = functools.cache(lambda: ThreadPoolExecutor(num_threads(), thread_name_prefix=name))
    if hasattr(os, "register_at_fork"):  # threads do not survive a fork
        os.register_at_fork(after_in_child=pool.cache_clear)
    return pool


# Four pools, so that no kind of work queues behind another: behind slow stores in the event loop's
# own pool, reads behind writes, and a short read behind the helpers of a long one.
# Computations: one thread per core.
compute_pool = _pool("numcodecs_bytes", num_cores)
# Reads of files: one thread for each batch.
file_pool = _pool("numcodecs_bytes_files")
# Helpers of a batch, until all of it is read or written. A batch never waits for a helper to start.
helper_pool = _pool("numcodecs_bytes_helpers")
# Writes to files: one thread for each batch. They never wait for a lock in a thread.
write_pool = _pool("numcodecs_bytes_writes")
