"""The host memory through which arrays on a GPU are read and written."""

import asyncio
import contextlib
import logging
import math
import threading
import time

import numpy as np

from numcodecs_bytes._core.copy_gpu import cupy
from numcodecs_bytes._core.dtypes import Array, GPUArray, UInt8Array

# Through page-locked memory, arrays on an H100 were read and written in 0.4 to 0.7 of the time (a
# prototype). But it takes milliseconds to lock memory, which nothing else can use meanwhile. So the
# process shares buffers of one size: 256 MiB in all. By calculation, it takes 0.6 ms to copy 16 MiB
# at the 26 GB/s of PCIe 4, and 0.02 to begin.
BUFFER_BYTES = 1 << 24
MAX_BUFFERS = 16

# What is smaller than this part of a buffer takes none: as many requests are made at once as by
# zarr alone, and each would have a buffer. Eight threads that read shuffled rows from a store of
# 20 ms, 64 requests at once, took 9 s if each did, 1.3 now, and 2 with zarr alone. Nor does what
# has waited for one MAX_WAITS times: requests to a slow store keep buffers for long, and a stopped
# event loop keeps them for ever.
SMALL_PART = 16
WAIT_SECONDS = 1e-3
MAX_WAITS = 100

# Buffers are freed when none was used for so long. A program that reads batch after batch computes
# in between.
IDLE_SECONDS = 10.0

logger = logging.getLogger("numcodecs_bytes")


class _Buffers:
    """The page-locked buffers of this process, each used by one read or write at a time.

    Threads share them without a lock: what is popped from a list is popped once.
    """

    def __init__(self) -> None:
        self._unused: list[UInt8Array | None] = [None] * MAX_BUFFERS  # None: it is not allocated
        self._last_used = 0.0
        self._freed_by: threading.Thread | None = None

    async def take(self) -> UInt8Array | None:
        """Return an unused buffer; None if all were used for too long."""
        for _ in range(MAX_WAITS):
            if self._unused:
                break
            await asyncio.sleep(WAIT_SECONDS)
        try:
            buffer = self._unused.pop()
        except IndexError:
            return None
        try:
            return _page_locked(BUFFER_BYTES) if buffer is None else buffer
        except MemoryError:
            self._unused.append(None)
            raise

    def give_back(self, buffer: UInt8Array | None) -> None:
        """End the use of a buffer; None in its place frees it."""
        self._unused.append(buffer)
        self._last_used = time.monotonic()
        thread = self._freed_by
        if thread is None or not thread.is_alive():  # after a fork, it is not
            name = "numcodecs_bytes_buffers"
            self._freed_by = threading.Thread(target=self._free_when_idle, name=name, daemon=True)
            try:
                self._freed_by.start()
            except RuntimeError:  # there are too many threads, or the program ends
                self._free()

    def _free_when_idle(self) -> None:
        """Free unused buffers once none was used for a while.

        This runs in a thread, because the event loop that has used them may end before. At worst,
        two such threads run at once, and one of them finds nothing to free.
        """
        while (seconds := self._last_used + IDLE_SECONDS - time.monotonic()) > 0:
            time.sleep(seconds)
        self._freed_by = None  # first: what is given back from now on is watched again
        self._free()

    def _free(self) -> None:
        """Free all unused buffers."""
        for _ in range(MAX_BUFFERS):
            with contextlib.suppress(IndexError):
                self._unused.pop()
                self._unused.insert(0, None)


_buffers = _Buffers()


def _page_locked(num_bytes: int) -> UInt8Array:
    """Return page-locked memory; other memory if the system gives none."""
    cuda = cupy().cuda
    try:
        memory = cuda.PinnedMemory(num_bytes)  # not of CuPy's pool, which keeps it for ever
    except cuda.runtime.CUDARuntimeError as error:
        logger.debug("using memory that is not page-locked: %s", error)
        return np.empty(num_bytes, np.uint8)
    return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, num_bytes)


class HostMemory:
    """A context with an array in host memory, of the dtype of one on a GPU.

    If it is larger than a buffer, or small, its memory is not page-locked. This is a class because
    contexts made by `contextlib` change errors, and those of some stores can't be changed.
    """

    def __init__(self, shape: tuple[int, ...], like: GPUArray) -> None:
        self._shape, self._dtype = shape, like.dtype
        self._buffer: UInt8Array | None = None

    async def __aenter__(self) -> Array:
        num_bytes = math.prod(self._shape) * self._dtype.itemsize
        if BUFFER_BYTES // SMALL_PART < num_bytes <= BUFFER_BYTES:
            self._buffer = await _buffers.take()
        return np.ndarray(self._shape, self._dtype, self._buffer)  # or in memory of its own

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._buffer is not None:
            # If a write was cancelled, a slow file may still keep a thread that writes from it.
            is_over = error is None or issubclass(error, Exception)
            _buffers.give_back(self._buffer if is_over else None)
