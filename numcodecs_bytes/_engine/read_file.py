"""Reads selections of chunks from an open file: all files are read this way."""

import threading
from collections.abc import Callable
from typing import Any

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.files import OpenFile
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.output import memory_of, place_within, write_selected
from numcodecs_bytes._engine.plan import Plan, Where, split

_of_thread = threading.local()


def read(file: OpenFile, layout: Layout, plan: Plan, out: Array, place: Where) -> tuple[int, int]:
    """Read a selection of a chunk to its place in the output; return how many reads and bytes.

    Reads straight into the output if stored elements need no conversion and the memory is
    contiguous, else block by block through memory that stays in the CPU cache. Raises EOFError if
    the file ends before the runs of the plan do.
    """
    if not plan.num_runs or _has_read_straight(file, layout, plan, out, place):
        return plan.num_runs, plan.num_bytes
    num_requests, num_bytes = 0, 0
    for where, part in split(plan, layout.item_size):
        to = place if part is plan else place_within(place, where)
        if part is plan or not _has_read_straight(file, layout, part, out, to):
            write_selected(_read_runs(file, part, _block), part, layout, out, to)
        num_requests, num_bytes = num_requests + part.num_runs, num_bytes + part.num_bytes
    return num_requests, num_bytes


def _has_read_straight(
    file: OpenFile, layout: Layout, plan: Plan, out: Array, place: Where
) -> bool:
    """Read straight into the output, if possible; return whether it was."""
    region = memory_of(out, place, plan, layout)
    if region is None:
        return False
    memory = region.data
    raw = _read_runs(file, plan, lambda _: memory)
    if raw is not memory:
        memory[:] = raw
    return True


def _read_runs(file: OpenFile, plan: Plan, memory: Callable[[int], memoryview]) -> Any:
    """Return the runs of a plan, end to end; see `files.read_runs`."""
    if not plan.num_outer:
        starts = [plan.start + file.start]
    else:
        starts = plan.starts(file.start).tolist()
        is_many = plan.num_runs >= constants.LOOK_FROM and not file.is_prefetched
        if is_many and files.is_cold(file.descriptor, starts):
            files.prefetch(file.descriptor, starts, plan.length)
    return files.read_runs(file.descriptor, starts, plan.length, memory)


def _block(num_bytes: int) -> memoryview:
    """Return memory, which the next call in the same thread returns again."""
    if num_bytes > constants.BLOCK_BYTES:  # a single element, or axes in another order
        return files.new_memory(num_bytes)
    block: memoryview | None = getattr(_of_thread, "block", None)
    if block is None or len(block) < num_bytes:
        block = _of_thread.block = files.new_memory(constants.BLOCK_BYTES)
    return block[:num_bytes]
