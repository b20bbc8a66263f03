"""Reads selections of a known form, in the thread that calls it.

The four steps are those of `in_file.read_chunk`, without what depends on the form alone. A chunk
that is not as usual, such as one of a wrong length, is left to that function.
"""

import operator
import os
import stat
from typing import Any, Literal

import numpy as np

from numcodecs_bytes._core import slow_copies
from numcodecs_bytes._core.dtypes import Array, UInt8Array, UInt64Array
from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.forms import Form, InnerPosition
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.shards import AnyLayout, ShardLayout
from numcodecs_bytes._read.file_batch import FileBatch
from numcodecs_bytes._read.file_runs import RunFetcher
from numcodecs_bytes._read.file_speed import FileSpeed
from numcodecs_bytes._read.output import Output, scatter
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.shard_index import cached_indices


def read_form_in_file(
    form: Form, layout: AnyLayout, extent: FileExtent, position: InnerPosition, out: Array
) -> Literal["present", "missing", "unusual"]:
    """Read a selection of a chunk into an array, unless the chunk is missing, or not as usual.

    The array is new, of the shape of the form. Raises `LeftToZarr` if the file is slow.
    """
    opened: list[int] = []
    try:
        # As in `local.read_file`, without a step of Python at which an interrupt would lose a file.
        opened.extend(map(operator.call, (extent.open,)))
        descriptor = opened[0]
        if isinstance(layout, ShardLayout):
            start = _start_in_shard(descriptor, extent, layout, position.inner_coords)
            layout = layout.inner
        else:
            start = _start_in_file(descriptor, extent, layout)
        if start is None:
            return "unusual"
        _fetch_and_scatter(form, layout, descriptor, start + position.offset, out)
    except (OSError, ValueError) as error:
        raise_if_of_caller(error)
        is_missing = not opened and isinstance(error, extent.missing_errors)
        return "missing" if is_missing else "unusual"
    finally:
        for descriptor in opened:
            try:
                os.close(descriptor)
            except OSError as error:  # all has been read
                raise_if_of_caller(error)
    return "present"


def _start_in_file(descriptor: int, extent: FileExtent, layout: Layout) -> int | None:
    """Return where a chunk begins in its file; None if it is not as usual."""
    status = os.fstat(descriptor)
    num_bytes = status.st_size if extent.num_bytes is None else extent.num_bytes
    is_usual = (
        stat.S_ISREG(status.st_mode)
        and extent.find_member is None
        and num_bytes == layout.num_bytes
        and extent.start + num_bytes <= status.st_size
    )
    return extent.start if is_usual else None


def _start_in_shard(
    descriptor: int, extent: FileExtent, shard: ShardLayout, inner_coords: tuple[int, ...]
) -> int | None:
    """Return where an inner chunk begins in the file of its shard; None if it is not as usual."""
    in_file = files.extent_in(extent, descriptor)
    if in_file is None or in_file.crc is not None:
        return None
    index, _ = cached_indices.read(shard, in_file)
    start = _start_by_index(index, inner_coords, shard, in_file.num_bytes)
    return None if start is None else in_file.start + start


def _start_by_index(
    index: UInt64Array, inner_coords: tuple[int, ...], shard: ShardLayout, num_bytes: int
) -> int | None:
    """Return where an inner chunk begins in a shard of `num_bytes`; None if it is not as usual."""
    start, length = index[inner_coords].tolist()
    is_usual = length == shard.inner.num_bytes and start + length <= num_bytes
    return start if is_usual else None


def _fetch_and_scatter(
    form: Form, layout: Layout, descriptor: int, origin: int, out: Array
) -> None:
    """Fetch and scatter the runs of a form; `origin` is where they would begin at offset 0."""
    plan = form.plan
    if plan.num_runs == 1 and plan.num_bytes <= constants.BLOCK_BYTES and hasattr(os, "preadv"):
        start = origin + plan.first_run_offset
        if _read_run(form, layout, descriptor, start, out):
            return
    speed = FileSpeed(plan.max_gap)
    if speed.needs_probe(plan.num_runs):
        batch = FileBatch(speed, leaves_slow_files=True)
        batch.probe(descriptor, plan.probe_offsets(origin))
    fetcher = RunFetcher(descriptor, layout, Output.of_caller(out), None)
    fetcher.fetch_and_scatter(plan, origin, form.out_selection)


def _read_run(form: Form, layout: Layout, descriptor: int, start: int, out: Array) -> bool:
    """Read the only run of a form by one call of the system; return False if that is no way.

    Then the copy would be slow, the file was truncated meanwhile, or its system never returns so
    much at once.
    """
    num_bytes = form.plan.num_bytes
    if form.is_copy:
        view: Any = out.ravel("K").view(np.uint8)
        is_slow = slow_copies.is_slow_to_new(start, view)
        return not is_slow and os.preadv(descriptor, [view], start) == num_bytes
    raw = os.pread(descriptor, num_bytes, start)
    if len(raw) < num_bytes:
        return False
    scatter(raw, form.plan, layout, out, form.out_selection)
    return True


def read_form_in_memory(
    form: Form, layout: AnyLayout, stored: UInt8Array, position: InnerPosition, out: Array
) -> bool:
    """Copy a selection of a chunk, given its bytes; return False if they are not as usual.

    The form is planned with a gap of any length, so that it has a single run.
    """
    start: int | None
    if isinstance(layout, ShardLayout):
        index = cached_indices.read_in_memory(layout, stored)
        start = _start_by_index(index, position.inner_coords, layout, len(stored))
        layout = layout.inner
    else:
        start = 0 if len(stored) == layout.num_bytes else None
    plan = form.plan
    # zarr's own codec returns invalid bytes as they are, and converts all elements of a chunk.
    is_usual = layout.is_converted_by_copy and layout.element_codecs is None
    if start is None or plan.num_runs != 1 or not is_usual:
        return False
    start += position.offset + plan.first_run_offset
    scatter(stored[start : start + plan.num_bytes], plan, layout, out, form.out_selection)
    return True
