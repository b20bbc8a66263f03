"""The host memory through which arrays on a GPU are read and written."""

import asyncio
import contextlib
import logging
import math
import threading
import time

import numpy as np

from numcodecs_bytes._core.dtypes import Array, GPUArray, UInt8Array
from numcodecs_bytes._gpu.kernels import cupy

# A GPU copies to and from page-locked memory faster (`tests/gpu/run.py` compares with zarr alone).
# But locking memory takes milliseconds, and keeps it from everything else. So all reads and writes
# of a process share these buffers, 256 MiB in all.
BUFFER_BYTES = 1 << 24
MAX_BUFFERS = 16

# Smaller arrays than this part of a buffer use ordinary memory: if each of many small requests took
# a buffer, only MAX_BUFFERS of them could be made at once.
SMALL_PART = 16

# After 0.1 s without a free buffer, ordinary memory is used: requests to a slow store hold buffers
# for long, and an event loop that was stopped never returns them.
WAIT_SECONDS = 1e-3
MAX_WAITS = 100

# Buffers are freed after they were unused for this long: a program that reads one batch after the
# other computes in between.
IDLE_SECONDS = 10.0

logger = logging.getLogger("numcodecs_bytes")


class _Buffers:
    """The page-locked buffers of this process, each used by one read or write at a time.

    Threads need no lock, because `list.pop` is atomic.
    """

    def __init__(self) -> None:
        self._unused: list[UInt8Array | None] = [None] * MAX_BUFFERS  # None: not allocated
        self._last_used = 0.0
        self._freed_by: threading.Thread | None = None

    async def take(self) -> UInt8Array | None:
        """Return an unused buffer, or None if all stay in use for too long."""
        for _ in range(MAX_WAITS):
            if self._unused:
                break
            await asyncio.sleep(WAIT_SECONDS)
        try:
            buffer = self._unused.pop()
        except IndexError:
            return None
        try:
            return _page_locked() if buffer is None else buffer
        except BaseException:  # of CuPy, or an interrupt
            self._unused.append(None)
            raise

    def give_back(self, buffer: UInt8Array | None) -> None:
        """Return a buffer to the unused ones; given None, its memory is freed."""
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
        """Wait until the buffers have been idle, and free them.

        Runs in a thread, because the event loop that used them may end earlier. If two such threads
        run at once, one of them finds nothing to free.
        """
        while (seconds := self._last_used + IDLE_SECONDS - time.monotonic()) > 0:
            time.sleep(seconds)
        self._freed_by = None  # first, so that a buffer returned from now on starts a new thread
        self._free()

    def _free(self) -> None:
        """Free all unused buffers."""
        for _ in range(MAX_BUFFERS):
            with contextlib.suppress(IndexError):
                self._unused.pop()
                self._unused.insert(0, None)


_buffers = _Buffers()


def _page_locked() -> UInt8Array:
    """Return a buffer of page-locked memory, or of ordinary memory if no more can be locked."""
    cuda = cupy().cuda
    try:
        memory = cuda.PinnedMemory(BUFFER_BYTES)  # CuPy's pool would never free it
    except cuda.runtime.CUDARuntimeError as error:
        logger.debug("using memory that is not page-locked: %s", error)
        return np.empty(BUFFER_BYTES, np.uint8)
    return np.frombuffer(cuda.PinnedMemoryPointer(memory, 0), np.uint8, BUFFER_BYTES)


class HostMemory:
    """A context with an array in host memory, of the dtype of one on a GPU.

    The memory is page-locked if the array fits into a buffer and is not small. This is a class,
    because `contextlib` sets attributes of errors, which the errors of some stores do not allow.
    """

    def __init__(self, shape: tuple[int, ...], like: GPUArray) -> None:
        self._shape, self._dtype = shape, like.dtype
        self._buffer: UInt8Array | None = None

    async def __aenter__(self) -> Array:
        num_bytes = math.prod(self._shape) * self._dtype.itemsize
        if BUFFER_BYTES // SMALL_PART < num_bytes <= BUFFER_BYTES:
            self._buffer = await _buffers.take()
        return np.ndarray(self._shape, self._dtype, self._buffer)  # None: in new memory

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._buffer is not None:
            # After a cancelled write, a thread may still be writing this buffer to a slow file.
            is_unused = error is None or issubclass(error, Exception)
            _buffers.give_back(self._buffer if is_unused else None)
