"""Run functions in threads to keep the event loop free.

A function that was handed to a pool runs once, or not at all. Where no thread can be started, while
the interpreter shuts down or at a limit of the system, the caller may run it.
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

T = TypeVar("T")
IsWanted = Callable[[], bool]  # whether the caller still wants the result

# How long a cancelled caller waits for its thread, which may be filling an array or writing a file.
LAST_SECONDS = 1.0


def submit(pool: Executor, function: Callable[[], T]) -> Future[T] | None:
    """Run a function in a thread of a pool; return its future, or None if no thread will run it.

    The pool alone would not do: it queues a function before it starts a thread and, if that fails,
    runs it whenever a later one starts.
    """
    future: Future[T] = Future()
    waiting = [function]
    # A pool keeps what was cancelled in its queue, but not the large arrays that it would fill.
    future.add_done_callback(lambda _: waiting.clear())

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = waiting.pop()()
        except BaseException as error:  # noqa: BLE001 # raised where the result is asked for
            # Without this frame, which refers to the future, and would be kept by the error.
            inner = error.__traceback__ and error.__traceback__.tb_next
            future.set_exception(error.with_traceback(inner))
            del inner  # its frames refer to this one
        else:
            future.set_result(result)

    try:
        pool.submit(run)
    except RuntimeError:
        if future.cancel():  # else a thread that was there before has taken it
            return None
    return future


async def run_in_thread(pool: Executor, function: Callable[[], T]) -> T:
    """Run a function in a thread of a pool, or here if there is none; return its result."""
    future = submit(pool, function)
    return function() if future is None else await asyncio.wrap_future(future)


async def run_while_wanted(pool: Executor, function: Callable[[IsWanted], None]) -> bool:
    """Like `run_in_thread`, but the function can ask whether what it does is still wanted.

    It runs in the context of the caller, with NumPy's errstate, for example. A caller that is
    cancelled waits for the function to end, but only `LAST_SECONDS`. Returns whether the pool had a
    thread.
    """
    is_wanted, context = True, contextvars.copy_context()
    future = submit(pool, lambda: context.run(function, lambda: is_wanted))
    if future is None:
        function(lambda: True)
        return False
    running, ended = asyncio.wrap_future(future), asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not running.cancelled():
            running.exception()  # if nobody waits for it, asyncio logs it
        if not ended.done():
            ended.set_result(None)

    running.add_done_callback(end)
    try:
        # Cancelling this does not cancel what runs. A task would take 20 us, and from Python 3.14
        # on, `asyncio.shield` logs errors that nobody waits for any more.
        await ended
        running.result()
    except asyncio.CancelledError:
        is_wanted = False
        if not future.cancel():  # it has begun
            await asyncio.wait([running], timeout=LAST_SECONDS)
            running.cancel()
        raise
    finally:
        is_wanted = False
    return True


# As many as Python's own pools have at most: zarr alone has no more for files.
MAX_FILE_THREADS = 32


def num_cores() -> int:
    """Return how many cores the process may use at a time, by its affinity and its quota."""
    has_affinity = hasattr(os, "sched_getaffinity")
    num = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(min(num, _quota()), 1)


# Where Linux says of which control group the process is, and where the files of all groups are.
_GROUP_FILE, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@functools.cache
def _quota() -> int:
    """Return how many cores the control group of the process may use, rounded up.

    The least quota of a group and those that contain it counts:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    quotas = [sys.maxsize]
    with contextlib.suppress(OSError, ValueError):  # another system, or an older kind of groups
        lines = _GROUP_FILE.read_text(encoding="utf-8").splitlines()
        (group,) = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
        for folder in [_GROUPS / group, *(_GROUPS / group).parents]:
            file = folder / "cpu.max"
            if folder.is_relative_to(_GROUPS) and file.exists():  # the root has none
                most, period = file.read_text(encoding="utf-8").split()
                if most != "max":
                    quotas.append(-(-int(most) // int(period)))
    return min(quotas)


def _pool(
    name: str, num_threads: Callable[[], int] = lambda: MAX_FILE_THREADS
) -> Callable[[], ThreadPoolExecutor]:
    """Return a function that returns a pool of threads, always the same one in a process."""
    pool = functools.cache(lambda: ThreadPoolExecutor(num_threads(), thread_name_prefix=name))
    if hasattr(os, "register_at_fork"):  # threads do not survive a fork
        os.register_at_fork(after_in_child=pool.cache_clear)
    return pool


# Four pools, because a task waits for those before it in the queue. None of them is the event
# loop's own executor, whose threads block on stores.
# Computations, one thread per core: on two cores, 32 threads took 1.7 to 2.7 times as long.
compute_pool = _pool("numcodecs_bytes", num_cores)
# Reads of files, one thread for each batch.
file_pool = _pool("numcodecs_bytes_files")
# Threads that help with a batch until all of it is read or written; a batch waits only for its own
# helpers that have started. With one pool of 64 threads for both, a short read behind four long
# ones, each with 32 threads (on a machine with 32 cores), took 8 s instead of 0.1 s.
helper_pool = _pool("numcodecs_bytes_helpers")
# Writes to files, one thread for each batch. They never wait for a lock in a thread.
write_pool = _pool("numcodecs_bytes_writes")
