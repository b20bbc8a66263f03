"""Run functions in threads to keep the event loop free.

While the interpreter shuts down, when no thread can be started, they run in the calling thread.
"""

import asyncio
import concurrent.futures.thread
import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
IsWanted = Callable[[], bool]  # whether the caller still wants the result

# How long a cancelled caller waits for its thread, which may be filling an array or writing a file.
LAST_SECONDS = 1.0


async def run_in_thread(executor: Executor | None, function: Callable[[], T]) -> T:
    """Run a function in a thread of a pool (if None, the event loop's); return its result."""
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(executor, function)
    except RuntimeError:  # the interpreter is shutting down and starts no new threads
        return function()
    return await future


async def run_while_wanted(executor: Executor, function: Callable[[IsWanted], T]) -> T:
    """Do the same as `run_in_thread`, with a function that can ask whether to go on."""
    is_cancelled = False
    loop = asyncio.get_running_loop()
    try:  # without a task, which would take 20 us
        running = loop.run_in_executor(executor, function, lambda: not is_cancelled)
    except RuntimeError:  # as in `run_in_thread`
        return function(lambda: True)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        is_cancelled = True
        done, _ = await asyncio.wait([running], timeout=LAST_SECONDS)
        for one in done:
            one.exception()  # or asyncio logs it
        running.cancel()
        raise


def is_ending() -> bool:
    """Whether the interpreter is shutting down, and waits for the threads of pools."""
    return getattr(concurrent.futures.thread, "_shutdown", False)


MAX_FILE_THREADS = 32


def _pool(num_threads: int | None, name: str) -> Callable[[], ThreadPoolExecutor]:
    """Return a function that returns a pool of threads, always the same one in a process."""
    make = functools.partial(ThreadPoolExecutor, num_threads, thread_name_prefix=name)
    pool = functools.cache(make)
    if hasattr(os, "register_at_fork"):  # threads do not survive a fork
        os.register_at_fork(after_in_child=pool.cache_clear)
    return pool


# Four pools, because a task waits for those before it in the queue. None of them is the event
# loop's own executor, whose threads block on stores.
# Computations, one thread per core: on two cores, 32 threads took 1.7 to 2.7 times as long.
compute_pool = _pool(os.cpu_count(), "numcodecs_bytes")
# Reads of files, one thread for each batch.
file_pool = _pool(MAX_FILE_THREADS, "numcodecs_bytes_files")
# Threads that help to read a batch until all of it is read; a read waits only for its own helpers
# that have started. With one pool of 64 threads for both, a short read behind four long ones, each
# with 32 threads (on a machine with 32 cores), took 8 s instead of 0.1 s.
helper_pool = _pool(MAX_FILE_THREADS, "numcodecs_bytes_helpers")
# Writes, which may wait for a lock indefinitely.
write_pool = _pool(MAX_FILE_THREADS, "numcodecs_bytes_writes")
