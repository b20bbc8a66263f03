"""Reads selections of chunks from an open file: all files are read this way."""

import threading

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.files import OpenFile
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.output import Output, memory_of, place_within, write_selected
from numcodecs_bytes._engine.plan import Plan, Where, split

_of_thread = threading.local()


def read(file: OpenFile, layout: Layout, plan: Plan, out: Output, place: Where) -> tuple[int, int]:
    """Read a selection of a chunk to its place in the output; return how many reads and bytes.

    Reads straight into the output what the system has in memory, if stored elements need no
    conversion and the output is contiguous there; else block by block through memory that stays in
    the CPU cache. Raises EOFError if the file ends before the runs of the plan do, and
    CancelledError if the output must not be changed any more.
    """
    if not plan.num_runs or _has_read_straight(file, layout, plan, out, place):
        return plan.num_runs, plan.num_bytes
    num_requests, num_bytes = 0, 0
    for where, part in split(plan, layout.item_size):
        to = place if part is plan else place_within(place, where)
        if part is plan or not _has_read_straight(file, layout, part, out, to):
            starts = _prefetched_starts(file, part)
            raw = files.read_runs(file.descriptor, starts, part.length, _block)
            with out.lock:
                out.check()
                write_selected(raw, part, layout, out.array, to)
        num_requests, num_bytes = num_requests + part.num_runs, num_bytes + part.num_bytes
    return num_requests, num_bytes


def _has_read_straight(
    file: OpenFile, layout: Layout, plan: Plan, out: Output, place: Where
) -> bool:
    """Read straight into the output, if possible; return whether it was."""
    region = memory_of(out.array, place, plan, layout)
    if region is None or plan.length < constants.DIRECT_BYTES:
        return False
    for k, start in enumerate(_prefetched_starts(file, plan)):
        _read_run(file.descriptor, start, region[k * plan.length : (k + 1) * plan.length], out)
    return True


def _read_run(descriptor: int, start: int, region: UInt8Array, out: Output) -> None:
    """Read a run to its place in the output.

    The system itself changes the output only while it does not wait for the file: if that took too
    long, a cancelled caller would have gone on when the bytes arrive.
    """
    while len(region):
        with out.lock:
            out.check()
            num_bytes = files.read_from_memory(descriptor, start, region.data)
        if not num_bytes:
            block = _block(min(len(region), constants.BLOCK_BYTES))
            files.fill(descriptor, start, block)
            num_bytes = len(block)
            with out.lock:
                out.check()
                region.data[:num_bytes] = block
        region, start = region[num_bytes:], start + num_bytes


def _prefetched_starts(file: OpenFile, plan: Plan) -> list[int]:
    """Return the offset of each run of a plan in the file; prefetch them if the file is cold."""
    if not plan.num_outer:
        return [plan.start + file.start]
    starts: list[int] = plan.starts(file.start).tolist()
    is_many = plan.num_runs >= constants.LOOK_FROM and not file.is_prefetched
    if is_many and files.is_cold(file.descriptor, starts):
        files.prefetch(file.descriptor, starts, plan.length)
    return starts


def _block(num_bytes: int) -> memoryview:
    """Return memory, which the next call in the same thread returns again."""
    if num_bytes > constants.BLOCK_BYTES:  # a single element, or axes in another order
        return files.new_memory(num_bytes)
    block: memoryview | None = getattr(_of_thread, "block", None)
    if block is None or len(block) < num_bytes:
        block = _of_thread.block = files.new_memory(constants.BLOCK_BYTES)
    return block[:num_bytes]
