"""Threads that the event loop does not wait in, at any time, also while the interpreter ends."""

import asyncio
import functools
import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run_in_thread(executor: Executor | None, function: Callable[[], T]) -> T:
    """Return what a function returns in a thread of an executor; None: the event loop's own."""
    loop = asyncio.get_running_loop()
    try:
        future = loop.run_in_executor(executor, function)
    except RuntimeError:  # the interpreter is ending and starts no more threads
        return function()
    return await future


@functools.cache
def compute_pool() -> ThreadPoolExecutor:
    """Return threads for computations alone, one per core.

    In the event loop's own ones, stores wait for what may be computed here.
    """
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="numcodecs_bytes")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork
    os.register_at_fork(after_in_child=compute_pool.cache_clear)
