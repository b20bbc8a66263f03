"""Writes a selection of a chunk to an open file.

Runs are written one by one. If there are many close to each other, hulls are rewritten: read,
changed in memory and written, which needs the exclusive lock. The plan of the hulls is that of the
runs, but with a larger gap.
"""

import errno
import os
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numcodecs_bytes._core import slow_copies
from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, UInt8Array
from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection, mesh
from numcodecs_bytes._plan.plan import RunPlan, plan_axes, split
from numcodecs_bytes._runtime.threads import IsWanted
from numcodecs_bytes._sources import files

# Runs are written one by one, unless there are more than this many for each hull over gaps of up to
# GAP_BYTES: then the hulls are rewritten. With a gap of 8 KiB, a run takes 1.1 us in memory (tmpfs)
# and 5.5 on ext4, the bytes around it 1.5 and 0.8. Fewer runs are not worth the exclusive lock.
MIN_RUNS_PER_HULL = 8

# How often in a row a file system may write nothing, without an error.
MAX_EMPTY_WRITES = 10


def make_file(name: str) -> int:
    """Make a file, and its folder if there is none; return the descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return os.open(name, flags, 0o666)
    except FileNotFoundError:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        return os.open(name, flags, 0o666)


@dataclass(slots=True)
class WrittenFile:
    """An open file that is written to."""

    descriptor: int
    is_wanted: IsWanted
    is_changed: bool = False  # whether something has been written


class PlacedElements(NamedTuple):
    """What is written to a chunk, or to an inner chunk of a shard."""

    runs: RunPlan  # the places of the selected elements, without gaps
    elements: Array  # the values, in the dtype of the chunk and the shape of the selection
    start: int = 0  # the offset of the chunk in the file, in bytes


def are_faster_in_hulls(plans: Sequence[RunPlan], item_size: int) -> bool:
    """Whether it is faster to rewrite all hulls than to write the runs of plans without gaps."""
    num_runs, num_hulls = 0, 0
    num_hulls_of: dict[int, int] = {}  # many inner chunks have the same plan
    for runs in plans:
        if id(runs) not in num_hulls_of:
            num_hulls_of[id(runs)] = _hulls_of(runs, item_size).num_runs
        num_runs, num_hulls = num_runs + runs.num_runs, num_hulls + num_hulls_of[id(runs)]
    return num_runs > MIN_RUNS_PER_HULL * num_hulls


def _hulls_of(runs: RunPlan, item_size: int) -> RunPlan:
    """Return the hulls around runs, over gaps of up to `constants.GAP_BYTES`; few are their own."""
    return runs if runs.num_runs <= MIN_RUNS_PER_HULL else plan_axes(runs.axes, item_size)


def elements_of(
    values: Any, out_selection: OutSelection, layout: Layout, shape: tuple[int, ...]
) -> Array:
    """Return selected values as elements of a chunk, in the shape of its selection.

    They are broadcast as NumPy would assign them.
    """
    given = values.shape
    if given != ():
        values = values[out_selection]
    if not shape:  # NumPy assigns a masked value to a single element as NaN, or raises
        element: Array = np.empty(1, layout.dtype)
        element[0] = values
        return element.reshape(())
    values = np.asarray(values)
    if values.dtype != layout.dtype:
        converted: Array = np.empty(values.shape, layout.dtype)
        converted[...] = values
        values = converted
    while values.ndim > len(shape) and len(values) == 1:  # like NumPy's assignment
        values = values.reshape(values.shape[1:])
    try:
        return np.broadcast_to(values, shape)
    except ValueError as error:
        raise_if_of_caller(error)
        others = "" if values.shape == given else f" (all values have shape {given})"
        raise ValueError(
            f"can't write values of shape {values.shape} to a selection of shape {shape} in a chunk"
            f"{others}; pass a single value, or values of the shape of the selection"
        ) from None


def write_all(
    file: WrittenFile, layout: Layout, placed: Sequence[PlacedElements], *, in_hulls: bool
) -> None:
    """Write to chunks in a file, in blocks that stay in the CPU cache."""
    hulls: dict[int, RunPlan] = {}  # many inner chunks have the same plan
    for runs, elements, start in placed:
        if in_hulls and id(runs) not in hulls:
            hulls[id(runs)] = _hulls_of(runs, layout.item_size)
        for out_selection, block in split(hulls.get(id(runs), runs), layout.item_size):
            raise_if_cancelled(file.is_wanted)
            starts = block.starts(start).tolist()
            selected = elements[(*out_selection, ...)]
            _write_block(file, selected, block, starts, layout.stored_dtype)


def _write_block(
    file: WrittenFile, elements: Array, plan: RunPlan, starts: Sequence[int], stored: AnyDType
) -> None:
    """Write elements to runs or hulls that begin at `starts` in the file."""
    if plan.is_dense:
        raw = as_bytes(encode_array(elements.transpose(plan.stored_axes), stored))
    else:
        raw = _buffer_between(starts[0], starts[0], plan.num_bytes)
        if plan.max_gap:  # without gaps, all bytes are written, some of them more than once
            files.fetch_runs_into(file.descriptor, starts, raw.data)
        shape, strides = plan.window_shape, plan.window_strides
        window: Array = np.ndarray(shape, stored, raw, 0, strides)
        index = mesh(plan.take_index, shape) if plan.needs_take else ...
        window[index] = encode_array(elements, stored)
    write_runs(file, raw, starts, plan.run_bytes)


def write_runs(file: WrittenFile, raw: UInt8Array, starts: Sequence[int], length: int) -> None:
    """Write runs of one length, which `raw` holds end to end."""
    view, pwrite = raw.data, os.pwrite
    descriptor, is_wanted = file.descriptor, file.is_wanted
    for start, first in zip(starts, range(0, len(raw), length), strict=True):
        if not is_wanted():  # asked for each run: a cancelled caller may change its values
            raise_if_cancelled(is_wanted)
        run, position, num_empty = view[first : first + length], start, 0
        if slow_copies.is_slow(run, start, length):
            _write_through_buffer(file, run, start)
            continue
        while (num := pwrite(descriptor, run, position)) < len(run):
            run, position = run[num:], position + num
            file.is_changed |= num > 0
            num_empty = 0 if num else num_empty + 1
            if num_empty == MAX_EMPTY_WRITES:
                raise OSError(errno.EIO, f"the system writes nothing at byte {position} of a file")
        file.is_changed = True


def _write_through_buffer(file: WrittenFile, run: memoryview, start: int) -> None:
    """Write a run from memory that begins where that is fast."""
    buffer = _buffer_between(run, start, min(len(run), constants.BLOCK_BYTES))
    for first in range(0, len(run), len(buffer)):
        raw = buffer[: len(run) - first]
        raw[:] = run[first : first + len(raw)]
        write_runs(file, raw, [start + first], len(raw))


def _buffer_between(source: slow_copies.Position, offset: int, num_bytes: int) -> UInt8Array:
    """Return new memory, through which is copied to an offset in a file."""
    return np.asarray(files.page_aligned(num_bytes, slow_copies.begin_between(source, offset)))


def write_repeated(file: WrittenFile, repeated: UInt8Array, written: range) -> None:
    """Write a few bytes over and over to a range of a new file, where zeros take no space."""
    if not repeated.any():
        return
    buffer = np.tile(repeated, max(constants.BLOCK_BYTES // len(repeated), 1))
    for start in range(written.start, written.stop, len(buffer)):
        raw = buffer[: written.stop - start]
        write_runs(file, raw, [start], len(raw))


def copy_range(source: int, file: WrittenFile, copied: range) -> None:
    """Copy a range of a file to the same offset in a new one, where zeros take no space."""
    buffer = _buffer_between(copied.start, copied.start, constants.BLOCK_BYTES)
    for start in range(copied.start, copied.stop, len(buffer)):
        raise_if_cancelled(file.is_wanted)
        raw = buffer[: copied.stop - start]
        files.read_exactly(source, start, raw.data)
        if raw.any():
            write_runs(file, raw, [start], len(raw))


def raise_if_cancelled(is_wanted: IsWanted) -> None:
    """Raise CancelledError if a write is no longer wanted."""
    if not is_wanted():
        raise CancelledError("the write was cancelled")
