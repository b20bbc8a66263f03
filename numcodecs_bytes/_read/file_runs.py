"""Fetches runs of an open file, and scatters them to an output, in the thread that calls it.

What the system has in memory is fetched straight into the output if stored elements need no
conversion, the output is contiguous there, and that copy is not slow; else block by block, through
memory that stays in the CPU cache.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from numcodecs_bytes._core import slow_copies
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection, are_slices, out_selection_within
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.plan import RunPlan, split
from numcodecs_bytes._read.output import Output, direct_target, scatter
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import Checksum

_thread_buffers = threading.local()


@dataclass(slots=True)
class RunFetcher:
    """Fetches and scatters runs of a chunk, or of the inner chunks of a shard, and counts them."""

    descriptor: int
    layout: Layout  # of the chunk, or of each inner chunk
    out: Output
    checksum: Checksum | None  # of all of the chunk, or the shard, that is computed meanwhile
    num_reads: int
    num_bytes: int
    can_fill: bool = True  # whether the system can fill the output without waiting

    def read(self, plan: RunPlan, start: int, out_selection: OutSelection) -> None:
        """Fetch the runs of a plan, of a chunk that begins at `start`, and scatter them.

        Raises `LeftToZarr` if the file ends before the runs do.
        """
        if plan.num_runs and not self._fill_directly(plan, start, out_selection):
            self._read_in_blocks(plan, start, out_selection)

    def _read_in_blocks(self, plan: RunPlan, start: int, out_selection: OutSelection) -> None:
        """Read a plan block by block, of which some may be contiguous in the output."""
        for inner_out_selection, block in split(plan, self.layout.item_size):
            if block is plan:
                self.read_through_buffer(plan, start, out_selection)
                return
            block_out_selection = out_selection_within(out_selection, inner_out_selection)
            if not self._fill_directly(block, start, block_out_selection):
                self.read_through_buffer(block, start, block_out_selection)

    def read_through_buffer(self, plan: RunPlan, start: int, out_selection: OutSelection) -> None:
        """Fetch runs, all at once, and scatter what is selected of them."""
        starts, begin = plan.starts(start).tolist(), 0
        if slow_copies.slow_distances and plan.run_bytes >= slow_copies.MIN_SLOW_BYTES:
            begin = self._begin_of_buffer(starts[0], out_selection)
        buffer_of = partial(thread_buffer, begin=begin)
        raw = files.read_runs(self.descriptor, starts, plan.run_bytes, buffer_of)
        if self.checksum is not None and len(starts) == 1:
            self.checksum.add(starts[0], raw)
        with self.out.lock:
            self.out.raise_if_cancelled()
            scatter(raw, plan, self.layout, self.out.array, out_selection)
        give_back(raw)
        self._count(plan)

    def _begin_of_buffer(self, first_start: int, out_selection: OutSelection) -> int:
        """Return where in a page a buffer begins to which, and from which, a copy is fast."""
        target = first_start  # where NumPy swaps bytes, no copy from the buffer is slow
        if self.layout.is_stored_as_in_memory and are_slices(out_selection):
            target = self.out.array[(*out_selection, ...)].ctypes.data
        return slow_copies.begin_between(first_start, target)

    def _fill_directly(self, plan: RunPlan, start: int, out_selection: OutSelection) -> bool:
        """Fetch runs straight into the output; return False if that is impossible, or slow.

        `slow_copies` says where it is slow. All runs are as far from where they belong, modulo a
        page, as the first one, or at all distances.
        """
        if not self.can_fill:
            return False
        target = direct_target(self.out.array, out_selection, plan, self.layout)
        if target is None:
            return False
        if slow_copies.slow_distances and plan.run_bytes >= slow_copies.MIN_SLOW_BYTES:
            first_start = next(iter(plan.blocks(start)))[0]
            if slow_copies.is_slow(first_start, target.data, plan.run_bytes):
                return False
        return self.fill(plan, start, target.data)

    def fill(self, plan: RunPlan, start: int, memory: memoryview) -> bool:
        """Fetch runs, end to end, into the output; return False if the system can't do it."""
        fill_block: Callable[[Sequence[int], int, memoryview], bool]
        if plan.run_bytes < files.MIN_READINTO_BYTES:
            fill_block = self._fill_by_copies
        elif self.out.may_be_cancelled:
            fill_block = self._fill_nowait
        else:
            fill_block = self._fill_and_wait
        first = 0
        for starts in plan.blocks(start):
            end = first + len(starts) * plan.run_bytes
            if not fill_block(starts, plan.run_bytes, memory[first:end]):
                self.can_fill = False  # which the first run shows
                return False
            if self.checksum is not None and len(starts) == 1:
                self.checksum.add(starts[0], memory[first:end])
            first = end
        self._count(plan)
        return True

    def _fill_by_copies(self, starts: Sequence[int], run_bytes: int, memory: memoryview) -> bool:
        """Fetch short runs, and copy them together."""
        raw = files.read_runs(self.descriptor, starts, run_bytes, thread_buffer)
        with self.out.lock:
            self.out.raise_if_cancelled()
            memory[:] = raw
        give_back(raw)
        return True

    def _fill_and_wait(self, starts: Sequence[int], _run_bytes: int, memory: memoryview) -> bool:
        """Fetch runs in the thread of the caller, who does not want the output back meanwhile."""
        files.read_runs_into(self.descriptor, starts, memory)
        return True

    def _fill_nowait(self, starts: Sequence[int], run_bytes: int, memory: memoryview) -> bool:
        """Fetch runs; return False if the system can't read without waiting.

        The system itself changes the output only while it does not wait for the file: if that took
        too long, a cancelled caller would have gone on when the bytes arrive. So what is cold
        passes through a buffer.
        """
        unread: list[tuple[int, memoryview]] = []
        with self.out.lock:
            self.out.raise_if_cancelled()
            for start, first in zip(starts, range(0, len(memory), run_bytes), strict=True):
                run = memory[first : first + run_bytes]
                num_bytes = files.read_cached_nowait(self.descriptor, start, run)
                if num_bytes is None:
                    return False
                if num_bytes < run_bytes:
                    unread.append((start + num_bytes, run[num_bytes:]))
        for start, run in unread:
            self._fill_cold(start, run)
        return True

    def _fill_cold(self, start: int, run: memoryview) -> None:
        """Fetch the rest of a run into the output; what has arrived meanwhile, straight."""
        while run:
            with self.out.lock:
                self.out.raise_if_cancelled()
                num_bytes = files.read_cached_nowait(self.descriptor, start, run)
            if not num_bytes:
                begin = slow_copies.begin_between(start, run)
                buffer = thread_buffer(min(len(run), constants.BLOCK_BYTES), begin)
                files.read_exactly(self.descriptor, start, buffer)
                num_bytes = len(buffer)
                with self.out.lock:
                    self.out.raise_if_cancelled()
                    run[:num_bytes] = buffer
                give_back(buffer)
            run, start = run[num_bytes:], start + num_bytes

    def _count(self, plan: RunPlan) -> None:
        self.num_reads += plan.num_runs
        self.num_bytes += plan.num_bytes


class PrefetchingFetcher(RunFetcher):
    """Fetches runs of a slow file: the system is asked for all those of a block in advance."""

    __slots__ = ()

    def fill(self, plan: RunPlan, start: int, memory: memoryview) -> bool:
        """Prefetch runs, and fetch them into the output."""
        self._prefetch(plan, start)
        return super().fill(plan, start, memory)

    def read_through_buffer(self, plan: RunPlan, start: int, out_selection: OutSelection) -> None:
        """Prefetch runs, fetch them, all at once, and scatter what is selected of them."""
        self._prefetch(plan, start)
        super().read_through_buffer(plan, start, out_selection)

    def _prefetch(self, plan: RunPlan, start: int) -> None:
        """Prefetch the runs of a plan, unless they are read at once anyway."""
        if plan.num_runs > 1 or plan.run_bytes > constants.PREFETCH_BYTES:
            files.prefetch(self.descriptor, runs_of(plan, start))


def runs_of(plan: RunPlan, start: int) -> Iterable[tuple[int, int]]:
    """Return the offset in a file and the length of each run: there may be millions."""
    return ((at, plan.run_bytes) for starts in plan.blocks(start) for at in starts)


def thread_buffer(num_bytes: int, begin: int = 0) -> memoryview:
    """Return memory, from `begin` of a page on, that no other read uses until `give_back`.

    A signal handler or a finaliser may read meanwhile; its reads take memory of their own.
    """
    try:
        if num_bytes > constants.BLOCK_BYTES:  # a single element, or axes in another order
            return files.page_aligned(num_bytes, begin)
        buffer: memoryview | None = vars(_thread_buffers).pop("buffer", None)
        if buffer is None or len(buffer) < begin + num_bytes:
            buffer = files.page_aligned(_buffer_bytes())
    except MemoryError as error:
        raise LeftToZarr("there is not enough memory for a block") from error
    return buffer[begin : begin + num_bytes]


def give_back(raw: bytes | memoryview) -> None:
    """Let the next read of this thread use a buffer, unless an error has lost it."""
    if isinstance(raw, memoryview) and len(whole := memoryview(raw.obj)) == _buffer_bytes():
        _thread_buffers.buffer = whole


def _buffer_bytes() -> int:
    return constants.BLOCK_BYTES + slow_copies.MAX_BEGIN
