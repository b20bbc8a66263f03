"""Chunk writes: what is known about a chunk that is written, and what became of it."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from zarr.core.buffer import cpu

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection
from numcodecs_bytes._plan.outcome import PENDING, LeftToZarr, Outcome
from numcodecs_bytes._plan.shards import ShardLayout
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._runtime.threads import IsWanted, run_while_wanted, write_pool
from numcodecs_bytes._runtime.workers import PoolWorkers
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.versions import fill_value_or_default

T = TypeVar("T")


class ValuesError(LeftToZarr):
    """The values raise an error when they are taken, and do so for zarr as well."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the values do not fit: {error}")


@dataclass(slots=True, eq=False)
class ChunkWrite:
    """What is written to a part of a chunk, or all of it, and what became of it."""

    request: ChunkRequest  # zarr's, which is passed on if the chunk is left to zarr
    # Set unless zarr writes the chunk: its region in the values, or in a box on a GPU; and the
    # layout of the chunk, or of the inner chunks of a shard.
    out_selection: OutSelection = field(init=False)
    layout: Layout = field(init=False)
    shard: ShardLayout | None = None  # None if the chunk is no shard
    path: str = ""  # of its file; "" if zarr writes it
    outcome: Outcome = PENDING
    is_changed: bool = False  # whether its file may have been changed in place
    num_bytes: int | None = None  # those written in place; None if the file did not change
    num_bytes_before: int = 0  # the length of the file before

    @property
    def fill_value(self) -> Any:
        """The fill value of the array, or its default."""
        return fill_value_or_default(self.request.spec)

    def would_be_empty(self, blocks: Iterable[Array]) -> bool:
        """Whether zarr would not store a chunk of these elements: all equal the fill value."""
        if self.request.spec.config.write_empty_chunks:
            return False
        fill_value = self.fill_value
        buffer_of = cpu.NDBuffer.from_numpy_array
        return all(
            not _begins_differently(block, fill_value)  # true most often, and fast to find out
            and buffer_of(block).all_equal(fill_value)
            for block in blocks
        )

    def counts(self) -> traces.Counts:
        """Return what `numcodecs_bytes.trace` counts of the chunk."""
        if self.num_bytes is not None:
            return {
                "chunks_in_place": 1,
                "bytes_in_place": self.num_bytes,
                "bytes_zarr_alone": self.num_bytes_before,
            }
        why = self.outcome.why if self.outcome.is_left else ""
        if self.request.is_complete:
            why = "the whole chunk is written"
        return {("why_not_in_place", why): 1} if why else {}


async def write_each(
    items: Sequence[T],
    write: Callable[[T, IsWanted], None],
    *,
    num_threads: int | None,  # None if the user has set none
    num_default: int,
    slow_seconds: float = math.inf,
) -> bool:
    """Write items in threads; return whether one was to be had.

    If the first item takes longer than `slow_seconds`, as many help as zarr itself would use.
    """
    if len(items) == 1:
        return await run_while_wanted(write_pool(), partial(write, items[0]))

    def work(workers: "PoolWorkers[T]", taken: "Iterator[T]") -> None:
        for item in taken:
            begun = time.perf_counter()
            write(item, workers.is_wanted)
            if item is items[0] and time.perf_counter() - begun > slow_seconds:
                workers.add_threads(io_bound=True)

    workers = PoolWorkers(items, work, num_threads=num_threads, num_default=num_default)
    return await run_while_wanted(write_pool(), workers.run)


def _begins_differently(elements: Array, fill_value: object) -> bool:
    """Whether the first element certainly differs from the fill value."""
    if not elements.size or elements.dtype.kind not in "biufc":
        return False
    first = elements[(0,) * elements.ndim]
    return bool(first == first and first != fill_value)  # noqa: PLR0124 # NaN may be the fill value
