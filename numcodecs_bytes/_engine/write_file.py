"""Writes a selection of a chunk to an open file.

Runs are written one by one. If there are many close to each other, hulls are rewritten: read,
changed in memory and written, which needs the exclusive lock. The plan of the hulls is that of the
runs, but with a larger gap.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.latency import Latency
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.output import mesh
from numcodecs_bytes._engine.plan import Place, Plan, plan_axes, split
from numcodecs_bytes._threads import IsWanted


class PlannedWrite(NamedTuple):
    """What is written to a chunk, or to an inner chunk of a shard."""

    run_plan: Plan  # where the selected elements are, without gaps
    hull_plan: Plan  # the same, with gaps
    elements: Array  # the values, in the dtype of the chunk and the shape of the selection
    layout: Layout

    def plan(self, *, in_hulls: bool) -> Plan:
        """Return the plan of what is written: runs, or hulls."""
        return self.hull_plan if in_hulls else self.run_plan


class PlacedWrite(NamedTuple):
    """What is written to a chunk, and the offset of that chunk in the file, in bytes."""

    planned: PlannedWrite
    start: int


def hulls_of(runs: Plan, layout: Layout, gap: int) -> Plan:
    """Return the plan of hulls around runs, which is the same plan if there are few runs."""
    are_few = runs.num_runs <= constants.REWRITE_FROM
    return runs if are_few else plan_axes(runs.axes, layout.item_size, gap)


def is_faster_in_hulls(planned: Sequence[PlannedWrite]) -> bool:
    """Whether it is faster to rewrite all hulls than to write the runs."""
    num_runs = sum([each.run_plan.num_runs for each in planned])
    num_hulls = sum([each.hull_plan.num_runs for each in planned])
    return num_runs > constants.REWRITE_FROM * num_hulls


class ValuesError(LeftToZarr):
    """The values raise an error when they are taken, and do so for zarr as well."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"the values do not fit: {error}")
        self.error = error


def elements_of(values: Any, place: Place, layout: Layout, shape: tuple[int, ...]) -> Array:
    """Return the values for a chunk as elements of it, in the shape of its selection.

    Whatever the values raise meanwhile becomes a ValuesError.
    """
    try:
        selected = values if values.shape == () else values[place]
        return _broadcast(selected, layout, shape)
    except Exception as error:
        raise ValuesError(error) from error


def _broadcast(values: Any, layout: Layout, shape: tuple[int, ...]) -> Array:
    """Return values in the dtype of the chunk, broadcast to a shape, as NumPy would assign them."""
    if not shape:  # to a single element, NumPy assigns a masked value as NaN, or raises an error
        element: Array = np.empty(1, layout.dtype)
        element[0] = values
        return element.reshape(())
    values = np.asarray(values)
    if values.dtype != layout.dtype:
        converted: Array = np.empty(values.shape, layout.dtype)
        converted[...] = values
        values = converted
    while values.ndim > len(shape) and len(values) == 1:  # as NumPy's assignment does
        values = values.reshape(values.shape[1:])
    return np.broadcast_to(values, shape)


def blocks_of(planned: Sequence[PlannedWrite]) -> Iterator[Array]:
    """Yield the elements of all that is written, in blocks that stay in the CPU cache."""
    for each in planned:
        for place, _ in split(each.run_plan, each.layout.item_size):
            yield each.elements[(*place, ...)]


def check_encodable(planned: PlannedWrite, is_wanted: IsWanted) -> None:
    """Raise `LeftToZarr` if codecs can't convert an element."""
    if planned.layout.conversion is not None:
        for elements in blocks_of([planned]):
            raise_unless(is_wanted)
            planned.layout.encode(elements)


def usual_seconds(num_runs: int, length: int) -> float:
    """Return how long it takes at most to write runs if nothing has to wait."""
    return num_runs * (2 * constants.RUN_SECONDS + length / constants.WRITTEN_PER_SECOND)


def num_requests(plan: Plan) -> int:
    """Return how many requests to a server it takes to read or write the runs of a plan."""
    return plan.num_runs * -(-plan.length // constants.PREFETCH_BYTES)


def write_placed(
    descriptor: int, placed: PlacedWrite, latency: Latency, is_wanted: IsWanted, *, in_hulls: bool
) -> Iterator[float]:
    """Write to a chunk in a file.

    Yields how many seconds the first runs of a piece took longer than usual: whoever uses this may
    then stop.
    """
    planned, start = placed
    plan, layout = planned.plan(in_hulls=in_hulls), planned.layout
    for place, piece in split(plan, layout.item_size):
        raise_unless(is_wanted)
        elements = planned.elements if piece is plan else planned.elements[(*place, ...)]
        starts, length = piece.starts(start).tolist(), piece.length
        is_read = piece.gap and not piece.is_solid  # else all bytes are selected
        if not latency.seconds and (is_read or len(starts) >= constants.LOOK_FROM):
            latency.look(descriptor, piece.sample(start))
        if latency.seconds:  # the system reads the pages around
            files.prefetch(descriptor, [(run, length) for run in starts], latency.gap)
        if piece.is_solid:
            in_stored_order = elements.transpose(piece.stored_axes)
            raw = as_bytes(layout.encode(in_stored_order))
        else:
            raw = np.empty(piece.num_bytes, np.uint8)
            if is_read:
                files.read_runs_into(descriptor, starts, raw.data)
            window: Array = np.ndarray(piece.shape, layout.stored_dtype, raw, 0, piece.strides)
            index = mesh(piece.index, piece.shape) if piece.has_index else ...
            window[index] = layout.encode(elements)
        runs = raw.reshape(-1, length)
        for some in constants.TIMED_RUNS:
            timed = starts[some]
            if not timed:
                break
            before = time.perf_counter()
            write_runs(descriptor, runs[some].reshape(-1), timed, length, is_wanted)
            if some.stop is not None:
                yield time.perf_counter() - before - usual_seconds(len(timed), length)


def write_runs(
    descriptor: int, raw: UInt8Array, starts: Sequence[int], length: int, is_wanted: IsWanted
) -> None:
    """Write runs of one length, which `raw` holds end to end."""
    view, pwrite = raw.data, os.pwrite
    for start, first in zip(starts, range(0, len(raw), length), strict=True):
        raise_unless(is_wanted)  # each, because a cancelled caller may change its values now
        run, position = view[first : first + length], start
        while (num := pwrite(descriptor, run, position)) < len(run):
            run, position = run[num:], position + num


def fill_span(descriptor: int, repeated: UInt8Array, span: range, is_wanted: IsWanted) -> None:
    """Fill a range of a new file with repeated bytes; zeros take no space."""
    if not repeated.any():
        return
    block = np.tile(repeated, max(constants.BLOCK_BYTES // len(repeated), 1))
    for start in range(span.start, span.stop, len(block)):
        raw = block[: span.stop - start]
        write_runs(descriptor, raw, [start], len(raw), is_wanted)


def copy_span(source: int, target: int, span: range, is_wanted: IsWanted) -> None:
    """Copy a range of a file to the same offset in a new one, where zeros take no space."""
    block = np.empty(constants.BLOCK_BYTES, np.uint8)
    for start in range(span.start, span.stop, len(block)):
        raise_unless(is_wanted)
        raw = block[: span.stop - start]
        files.read_exactly(source, start, raw.data)
        if raw.any():
            write_runs(target, raw, [start], len(raw), is_wanted)


def raise_unless(is_wanted: IsWanted) -> None:
    """Raise InterruptedError if a write is no longer wanted."""
    if not is_wanted():
        raise InterruptedError("the write was cancelled")
