"""Writes a selection of a chunk to an open file.

Runs are written one by one. If there are many close to each other, hulls are rewritten: read,
changed in memory and written, which needs the exclusive lock. The plan of the hulls is that of the
runs, but with a larger gap.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._host.threads import IsWanted
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.places import Place, mesh
from numcodecs_bytes._plan.plan import Plan, plan_axes, split
from numcodecs_bytes._read.latency import Latency
from numcodecs_bytes._sources import files
from numcodecs_bytes._write.chunks import ValuesError

# Runs are written one by one, unless there are more than this many for each hull over gaps of up to
# GAP_BYTES: then the hulls are rewritten. With a gap of 8 KiB, a run takes 1.1 us in memory (tmpfs)
# and 5.5 on ext4, the bytes around it 1.5 and 0.8. Fewer runs are not worth the exclusive lock.
REWRITE_FROM = 8

# How often in a row a file system may write nothing, without an error.
MAX_EMPTY_WRITES = 10


@dataclass(slots=True)
class Target:
    """An open file that is written to."""

    descriptor: int
    is_wanted: IsWanted
    is_changed: bool = False  # whether something has been written


class Part(NamedTuple):
    """What is written to a chunk, or to an inner chunk of a shard."""

    runs: Plan  # where the selected elements are, without gaps
    elements: Array  # the values, in the dtype of the chunk and the shape of the selection
    layout: Layout
    hulls: Plan  # as `runs`, but with gaps
    start: int = 0  # the offset of the chunk in the file, in bytes

    def plan(self, *, in_hulls: bool) -> Plan:
        """Return the plan of what is written: runs, or hulls."""
        return self.hulls if in_hulls else self.runs


def with_hulls(parts: Sequence[Part], gap: int, *, is_slow: bool) -> list[Part]:
    """Return parts with hulls over gaps of up to `gap` bytes; few runs are their own hulls."""
    most = 1 if is_slow else REWRITE_FROM
    hulls: dict[int, Plan] = {}  # many inner chunks have the same plan
    for runs, _, layout, *_ in parts:
        if id(runs) not in hulls:
            are_few = runs.num_runs <= most
            hulls[id(runs)] = runs if are_few else plan_axes(runs.axes, layout.item_size, gap)
    return [part._replace(hulls=hulls[id(part.runs)]) for part in parts]


def is_faster_in_hulls(parts: Sequence[Part], *, is_slow: bool) -> bool:
    """Whether it is faster to rewrite all hulls than to write the runs.

    On a slow file, whatever takes fewer requests is faster; to write a run also reads it, because
    the system reads the pages around it.
    """
    num_runs = sum([part.runs.num_runs for part in parts])
    if is_slow:
        fewer = sum([_num_requests(part.runs) - _num_requests(part.hulls) for part in parts])
        return num_runs > REWRITE_FROM and fewer > 0
    return num_runs > REWRITE_FROM * sum([part.hulls.num_runs for part in parts])


def _num_requests(plan: Plan) -> int:
    """Return how many requests to a server it takes to read or write the runs of a plan."""
    return plan.num_runs * -(-plan.length // constants.PREFETCH_BYTES)


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


def blocks_of(parts: Sequence[Part]) -> Iterator[Array]:
    """Yield the elements of all that is written, in blocks that stay in the CPU cache."""
    for each in parts:
        for place, _ in split(each.runs, each.layout.item_size):
            yield each.elements[(*place, ...)]


class _Piece(NamedTuple):
    """What is written of a part at once."""

    part: Part
    place: Place  # in the elements of the part
    plan: Plan

    @property
    def starts(self) -> list[int]:
        """The offset of each run in the file, in bytes."""
        starts: list[int] = self.plan.starts(self.part.start).tolist()
        return starts


def write_all(target: Target, parts: Sequence[Part], latency: Latency, *, in_hulls: bool) -> None:
    """Write to chunks in a file."""
    for pieces in _grouped(parts, in_hulls=in_hulls):
        if latency.is_slow:  # the system reads the pages around
            runs = [(start, piece.plan.length) for piece in pieces for start in piece.starts]
            files.prefetch(target.descriptor, sorted(runs), latency.gap)
        for piece in pieces:
            raise_if_cancelled(target.is_wanted)
            _write_piece(target, piece)


def _grouped(parts: Sequence[Part], *, in_hulls: bool) -> Iterator[list[_Piece]]:
    """Yield what is written, in groups that stay in the CPU cache."""
    group, num_bytes = list[_Piece](), 0
    for part in parts:
        for place, plan in split(part.plan(in_hulls=in_hulls), part.layout.item_size):
            num_bytes += plan.memory_bytes
            if group and num_bytes > constants.BLOCK_BYTES:
                yield group
                group, num_bytes = [], plan.memory_bytes
            group.append(_Piece(part, place, plan))
    yield group


def _write_piece(target: Target, piece: _Piece) -> None:
    part, place, plan = piece
    layout, starts = part.layout, piece.starts
    elements = part.elements[(*place, ...)]
    if plan.is_solid:
        in_stored_order = elements.transpose(plan.stored_axes)
        raw = as_bytes(encode_array(in_stored_order, layout.stored_dtype))
    else:
        raw = np.empty(plan.num_bytes, np.uint8)
        if plan.gap:  # else all bytes are selected, some of them more than once
            files.read_runs_into(target.descriptor, starts, raw.data)
        shape, strides = plan.window_shape, plan.window_strides
        window: Array = np.ndarray(shape, layout.stored_dtype, raw, 0, strides)
        index = mesh(plan.index, shape) if plan.has_index else ...
        window[index] = encode_array(elements, layout.stored_dtype)
    write_runs(target, raw, starts, plan.length)


def write_runs(target: Target, raw: UInt8Array, starts: Sequence[int], length: int) -> None:
    """Write runs of one length, which `raw` holds end to end."""
    view, pwrite = raw.data, os.pwrite
    descriptor, is_wanted = target.descriptor, target.is_wanted
    for start, first in zip(starts, range(0, len(raw), length), strict=True):
        if not is_wanted():  # for each run, because a cancelled caller may change its values
            raise_if_cancelled(is_wanted)
        run, position, num_empty = view[first : first + length], start, 0
        while (num := pwrite(descriptor, run, position)) < len(run):
            run, position = run[num:], position + num
            target.is_changed |= num > 0
            num_empty = 0 if num else num_empty + 1
            if num_empty == MAX_EMPTY_WRITES:
                raise OSError(errno.EIO, f"the system writes nothing at byte {position} of a file")
        target.is_changed = True


def fill_span(target: Target, repeated: UInt8Array, span: range) -> None:
    """Fill a range of a new file with repeated bytes; zeros take no space."""
    if not repeated.any():
        return
    block = np.tile(repeated, max(constants.BLOCK_BYTES // len(repeated), 1))
    for start in range(span.start, span.stop, len(block)):
        raw = block[: span.stop - start]
        write_runs(target, raw, [start], len(raw))


def copy_span(source: int, target: Target, span: range) -> None:
    """Copy a range of a file to the same offset in a new one, where zeros take no space."""
    block = np.empty(constants.BLOCK_BYTES, np.uint8)
    for start in range(span.start, span.stop, len(block)):
        raise_if_cancelled(target.is_wanted)
        raw = block[: span.stop - start]
        files.read_exactly(source, start, raw.data)
        if raw.any():
            write_runs(target, raw, [start], len(raw))


def raise_if_cancelled(is_wanted: IsWanted) -> None:
    """Raise InterruptedError if a write is no longer wanted."""
    if not is_wanted():
        raise InterruptedError("the write was cancelled")
