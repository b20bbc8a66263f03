"""What the threads of a batch share while they read local files: their speed, and each other."""

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from numcodecs_bytes._core.dtypes import UInt64Array
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.outcome import FetchCounts, LeftToZarr
from numcodecs_bytes._plan.shards import ShardLayout
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.file_speed import FileSpeed, WaitTotal, helps_prefetching, seconds_waited
from numcodecs_bytes._runtime.workers import CallerWorkers, PoolWorkers
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import OpenExtent
from numcodecs_bytes._sources.shard_index import read_whole_index

InFile = tuple[Hashable, Sequence[ChunkRead]]  # chunks in the same file, and what identifies it
_ReadIndex = Callable[[ShardLayout, OpenExtent], tuple[UInt64Array, FetchCounts]]


@dataclass(slots=True)
class FileBatch:
    """What the threads of a batch share, without a lock.

    At worst, one probes once more, or a wait is not counted.
    """

    speed: FileSpeed
    leaves_slow_files: bool = False  # whether zarr reads slow files: in the caller's thread
    read_index: _ReadIndex = read_whole_index  # returns the index of a shard; may cache it
    waits: WaitTotal = field(default_factory=WaitTotal)
    # The threads, while they run, if several may.
    workers: PoolWorkers[InFile] | CallerWorkers[ChunkRead] | None = None
    has_begun: bool = False  # whether a file has been opened, or is being opened
    has_waited: bool = False  # whether one has been opened

    def record_wait(self, seconds: float) -> None:
        """Count how long it took to open a file, or to read an index; add threads if it helps."""
        self.has_waited = True
        self.waits.add(seconds)
        if self.waits.is_long:
            self._add_threads(io_bound=True)

    def record_index(self, seconds: float) -> None:
        """Count how long it took to read an index, which may be the first slow read."""
        if seconds > constants.CERTAIN_WAIT_SECONDS and not self.speed.verdict.is_slow:
            self.speed.record_one_slow(seconds)
        self.record_wait(seconds)

    def add_threads_if_opening(self) -> None:
        """Add threads if the first file is still being opened."""
        if self.has_begun and not self.has_waited:
            self._add_threads(io_bound=True)

    def _add_threads(self, *, io_bound: bool) -> None:
        workers = self.workers  # read once: the event loop forgets it after a cancelled read
        if workers is not None:
            workers.add_threads(io_bound=io_bound)

    def probe(
        self, descriptor: int, offsets: Sequence[int], *, are_prefetched: bool = False
    ) -> None:
        """Learn whether files are slow, by reading a byte at one offset of a file, or more.

        Raises `LeftToZarr` if files are slow and slow files are left to zarr, unless the offsets
        were prefetched and that helped.
        """
        if self.leaves_slow_files and not are_prefetched:
            offsets = offsets[:2]  # enough to leave the file
        workers = self.workers
        has_helpers = workers is not None and workers.num_helpers > 0
        limit = self.speed.cached_read_limit(has_helpers=has_helpers)
        probes: list[float] = []
        seconds = 0.0
        for offset in offsets:
            probes.append(files.seconds_to_read(descriptor, offset))
            seconds = seconds_waited(probes, limit, self.speed.last_slow_seconds)
            if seconds:
                break
        if seconds:
            helps = self._does_prefetching_help(descriptor, offsets[len(probes) :], seconds)
            if self.leaves_slow_files and not (are_prefetched and helps):
                raise LeftToZarr("the file is slow")
            self.speed.record_slow(seconds, prefetching_helps=helps)
        elif min(probes) > limit:  # the file is small: the next one decides
            self.speed.record_one_slow(probes[0])
            self.waits.add(probes[0])
        else:
            self.speed.record_fast()
        self._add_threads(io_bound=self.waits.is_long or self.speed.verdict.is_slow)

    def _does_prefetching_help(
        self, descriptor: int, offsets: Sequence[int], seconds: float
    ) -> bool:
        """Return whether prefetching helps: as before if there are too few offsets to tell."""
        if not hasattr(os, "posix_fadvise"):
            return False
        if len(offsets) < 3:
            return not self.speed.verdict.is_slow or self.speed.verdict.prefetching_helps
        files.prefetch(descriptor, [(offset, 1) for offset in offsets])
        prefetched = [files.seconds_to_read(descriptor, offset) for offset in offsets]
        return helps_prefetching(prefetched, seconds)
