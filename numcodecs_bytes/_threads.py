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


async def run_in_thread(executor: Executor | None, function: Callable[[], T]) -> T:
    """Run a function in a thread and return its result.

    Parameters
    ----------
    executor : concurrent.futures.Executor or None
        Where to run it; None uses the event loop's default executor.
    function : callable
        Called without arguments.

    Returns
    -------
    object
        What the function returns.
    """
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(executor, function)
    except RuntimeError:  # the interpreter is shutting down and starts no new threads
        return function()
    return await future


@functools.cache
def compute_pool() -> ThreadPoolExecutor:
    """Return a pool of threads for computations, one per core.

    Separate from the event loop's default executor, whose threads block on stores.
    """
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="numcodecs_bytes")


def is_ending() -> bool:
    """Whether the interpreter is shutting down, and waits for the threads of pools."""
    return getattr(concurrent.futures.thread, "_shutdown", False)


@functools.cache
def file_pool() -> ThreadPoolExecutor:
    """Return a pool of threads that wait for files: one for each read."""
    return ThreadPoolExecutor(MAX_FILE_THREADS, thread_name_prefix="numcodecs_bytes_files")


@functools.cache
def helper_pool() -> ThreadPoolExecutor:
    """Return a pool of threads that help those of `file_pool`, and that no read has to wait for."""
    return ThreadPoolExecutor(MAX_FILE_THREADS, thread_name_prefix="numcodecs_bytes_helpers")


@functools.cache
def write_pool() -> ThreadPoolExecutor:
    """Return a pool of threads that write, and wait for locks."""
    return ThreadPoolExecutor(MAX_FILE_THREADS, thread_name_prefix="numcodecs_bytes_writes")


MAX_FILE_THREADS = 32


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=compute_pool.cache_clear)
    os.register_at_fork(after_in_child=file_pool.cache_clear)
    os.register_at_fork(after_in_child=helper_pool.cache_clear)
    os.register_at_fork(after_in_child=write_pool.cache_clear)
