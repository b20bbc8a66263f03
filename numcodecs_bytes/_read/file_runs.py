"""Fetches runs of an open file, and scatters them to an output, in the thread that calls it.

What the system has in memory is fetched straight into the output if stored elements need no
conversion, the output is contiguous there, and that copy is not slow; else block by block, through
a buffer that stays in the CPU cache.
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
from numcodecs_bytes._read.output import Output, direct_view, scatter
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import Checksum

_thread_buffers = threading.local()
_Fetch = Callable[[Sequence[int], memoryview], None]  # runs that start there, into a view


@dataclass(slots=True)
class RunFetcher:
    """Fetches and scatters runs of a chunk, or of the inner chunks of a shard, and counts them."""

    descriptor: int
    layout: Layout  # how the chunk, or each inner chunk, is stored
    out: Output
    checksum: Checksum | None  # computed meanwhile, of the whole chunk or shard
    num_reads: int = 0
    num_bytes: int = 0
    may_be_direct: bool = True  # False once the system can't fill the output without waiting

    def fetch_and_scatter(
        self, plan: RunPlan, chunk_start: int, out_selection: OutSelection
    ) -> None:
        """Fetch the runs of a plan, of a chunk that starts at `chunk_start`, and scatter them.

        Raises `LeftToZarr` if the file ends before the runs do.
        """
        if not plan.num_runs or self._fetch_directly(plan, chunk_start, out_selection):
            return
        for within, block in split(plan, self.layout.item_size):
            of_block = out_selection_within(out_selection, within)
            # A block may be contiguous in the output although the plan, which was tried, is not.
            if not within or not self._fetch_directly(block, chunk_start, of_block):
                self.fetch_buffered(block, chunk_start, of_block)

    def fetch_buffered(self, plan: RunPlan, chunk_start: int, out_selection: OutSelection) -> None:
        """Fetch runs, all at once, and scatter what is selected of them."""
        starts = plan.starts(chunk_start).tolist()
        buffer_of = partial(self._buffer_for, starts[0], out_selection)
        raw = files.fetch_runs(self.descriptor, starts, plan.run_bytes, buffer_of)
        if self.checksum is not None and len(starts) == 1:
            self.checksum.add(starts[0], raw)
        with self.out.lock:
            self.out.raise_if_cancelled()
            scatter(raw, plan, self.layout, self.out.array, out_selection)
        give_back(raw)
        self.num_reads += plan.num_runs
        self.num_bytes += plan.num_bytes

    def _buffer_for(
        self, first_start: int, out_selection: OutSelection, num_bytes: int
    ) -> memoryview:
        """Return a buffer, so placed that copies to it and from it are fast."""
        out_address = first_start  # NumPy swaps bytes as fast from anywhere in a page
        is_copied = self.layout.is_stored_as_in_memory and are_slices(out_selection)
        if slow_copies.slow_distances and is_copied:
            out_address = self.out.array[(*out_selection, ...)].ctypes.data
        return thread_buffer(num_bytes, slow_copies.begin_between(first_start, out_address))

    def _fetch_directly(self, plan: RunPlan, chunk_start: int, out_selection: OutSelection) -> bool:
        """Fetch runs straight into the output; return False if that is impossible, or slow.

        `slow_copies` says where it is slow. All runs are as far from where they belong, modulo a
        page, as the first one, or at all distances.
        """
        if not self.may_be_direct:
            return False
        out_view = direct_view(self.out.array, out_selection, plan, self.layout)
        if out_view is None:
            return False
        fetch: _Fetch
        if plan.run_bytes < files.MIN_READINTO_BYTES:
            fetch = self._fetch_by_copies
        elif slow_copies.is_slow(plan.first_start(chunk_start), out_view.data, plan.run_bytes):
            return False
        elif self.out.may_be_cancelled:
            fetch = self._fetch_nowait
        else:
            fetch = partial(files.fetch_runs_into, self.descriptor)
        try:
            self.fetch_into(out_view.data, plan, chunk_start, fetch)
        except files.NowaitError:
            self.may_be_direct = False
        return self.may_be_direct

    def fetch_into(
        self, out_view: memoryview, plan: RunPlan, chunk_start: int, fetch: _Fetch
    ) -> None:
        """Fetch runs, end to end, into the output, in one way for all blocks of them."""
        first = 0
        for starts in plan.blocks(chunk_start):
            view = out_view[first : first + len(starts) * plan.run_bytes]
            fetch(starts, view)
            if self.checksum is not None and len(starts) == 1:
                self.checksum.add(starts[0], view)
            first += len(view)
        self.num_reads += plan.num_runs
        self.num_bytes += plan.num_bytes

    def _fetch_by_copies(self, starts: Sequence[int], view: memoryview) -> None:
        """Fetch short runs, and copy them together."""
        raw = files.fetch_runs(self.descriptor, starts, len(view) // len(starts), thread_buffer)
        with self.out.lock:
            self.out.raise_if_cancelled()
            view[:] = raw
        give_back(raw)

    def _fetch_nowait(self, starts: Sequence[int], view: memoryview) -> None:
        """Fetch runs; raise `NowaitError` if the system can't read without waiting.

        The system itself changes the output only while it does not wait for the file: if that took
        too long, a cancelled caller would have gone on when the bytes arrive. So what is cold
        passes through a buffer.
        """
        unread: list[tuple[int, memoryview]] = []
        run_bytes = len(view) // len(starts)
        with self.out.lock:
            self.out.raise_if_cancelled()
            for start, first in zip(starts, range(0, len(view), run_bytes), strict=True):
                of_run = view[first : first + run_bytes]
                num_bytes = files.read_cached_nowait(self.descriptor, start, of_run)
                if num_bytes < run_bytes:
                    unread.append((start + num_bytes, of_run[num_bytes:]))
        for start, of_run in unread:
            self._fetch_cold(start, of_run)

    def _fetch_cold(self, start: int, view: memoryview) -> None:
        """Fetch the rest of a run into the output; what has arrived meanwhile, straight."""
        while view:
            with self.out.lock:
                self.out.raise_if_cancelled()
                num_bytes = files.read_cached_nowait(self.descriptor, start, view)
            if not num_bytes:
                page_offset = slow_copies.begin_between(start, view)
                buffer = thread_buffer(min(len(view), constants.BLOCK_BYTES), page_offset)
                files.read_exactly(self.descriptor, start, buffer)
                num_bytes = len(buffer)
                with self.out.lock:
                    self.out.raise_if_cancelled()
                    view[:num_bytes] = buffer
                give_back(buffer)
            view, start = view[num_bytes:], start + num_bytes


class PrefetchingFetcher(RunFetcher):
    """Fetches runs of a slow file: the system is asked for all those of a block in advance."""

    __slots__ = ()

    def fetch_into(
        self, out_view: memoryview, plan: RunPlan, chunk_start: int, fetch: _Fetch
    ) -> None:
        self._prefetch(plan, chunk_start)
        super().fetch_into(out_view, plan, chunk_start, fetch)

    def fetch_buffered(self, plan: RunPlan, chunk_start: int, out_selection: OutSelection) -> None:
        self._prefetch(plan, chunk_start)
        super().fetch_buffered(plan, chunk_start, out_selection)

    def _prefetch(self, plan: RunPlan, chunk_start: int) -> None:
        """Prefetch the runs of a plan, unless they are read at once anyway."""
        if plan.num_runs > 1 or plan.run_bytes > constants.PREFETCH_BYTES:
            files.prefetch(self.descriptor, runs_of(plan, chunk_start))


def runs_of(plan: RunPlan, chunk_start: int) -> Iterable[tuple[int, int]]:
    """Return the start in a file and the length of each run: there may be millions."""
    return ((first, plan.run_bytes) for starts in plan.blocks(chunk_start) for first in starts)


def thread_buffer(num_bytes: int, page_offset: int = 0) -> memoryview:
    """Return a buffer, from an offset in a page on, that no other read uses until `give_back`.

    A signal handler or a finaliser may read meanwhile; its reads take buffers of their own.
    """
    try:
        if num_bytes > constants.BLOCK_BYTES:  # `split` allows it for some plans
            return files.page_aligned(num_bytes, page_offset)
        buffer: memoryview | None = vars(_thread_buffers).pop("buffer", None)
        if buffer is None or len(buffer) < page_offset + num_bytes:
            buffer = files.page_aligned(_buffer_bytes())
    except MemoryError as error:
        raise LeftToZarr("there is not enough memory for a block") from error
    return buffer[page_offset : page_offset + num_bytes]


def give_back(raw: bytes | memoryview) -> None:
    """Let the next read of this thread use a buffer, unless an error has lost it."""
    if isinstance(raw, memoryview) and len(whole := memoryview(raw.obj)) == _buffer_bytes():
        _thread_buffers.buffer = whole


def _buffer_bytes() -> int:
    return constants.BLOCK_BYTES + slow_copies.MAX_BEGIN
