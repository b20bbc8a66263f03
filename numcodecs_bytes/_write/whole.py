"""Writes whole chunks to local files, many of them together.

A file is written beside the chunk and replaces it, as zarr's LocalStore does. Whatever can't be
written this way, or fails, is left to zarr, which writes it or raises its own error: replacing a
whole chunk twice does no harm.
"""

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from zarr.core.buffer import cpu, gpu

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, has_same_elements
from numcodecs_bytes._core.invalid_bytes import has_invalid_bytes
from numcodecs_bytes._host import own_bugs
from numcodecs_bytes._host.threads import MAX_FILE_THREADS, IsWanted, num_cores, write_pool
from numcodecs_bytes._host.workers import Workers
from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, Outcome, leave
from numcodecs_bytes._plan.places import Place
from numcodecs_bytes._plan.plan import plan_of, split
from numcodecs_bytes._plan.shards import AnyLayout
from numcodecs_bytes._read.latency import Latency
from numcodecs_bytes._write.chunks import ChunkWrite, ValuesError
from numcodecs_bytes._write.locks import make_file
from numcodecs_bytes._write.write_file import Target, raise_if_cancelled, write_runs

# The lowest rate of writes that do not wait. Memory and the page cache take 1 GB/s and more.
WRITTEN_PER_SECOND = 5e8

# Whole chunks of at least this size are written by two threads per core. On tmpfs and two cores,
# two took 0.6 of the time of one with 128 KiB, 0.5 with 1 MiB, 0.8 to 1 with 64 KiB, and 1.2 with
# 4 KiB. Four took as long as two, and ten 1.05 to 1.4 times; but if each rename takes 1 ms, two
# took twice the time of four.
LARGE_WHOLE_BYTES = 1 << 17


def are_plain(value: Any, layout: AnyLayout) -> bool:
    """Whether whole chunks of a layout can be written from the values that zarr passes."""
    if not isinstance(layout, Layout) or not layout.item_size:  # a shard, or nothing to write
        return False
    if layout.conversion is not None:  # zarr itself encodes whole chunks
        return False
    array = value.as_ndarray_like()
    is_on_host = type(value) is cpu.NDBuffer and type(array) in (np.ndarray, np.memmap)
    is_known = is_on_host or type(value) is gpu.NDBuffer
    return is_known and has_same_elements(array.dtype, layout.dtype)


class Values(NamedTuple):
    """What is written to chunks that are selected as a whole."""

    array: Array
    drop_axes: tuple[int, ...]  # axes of the chunks that the array lacks

    def of(self, chunk: ChunkWrite) -> Array:
        """Return the elements of a chunk, in its shape; beyond the array, the fill value."""
        spec = chunk.item.spec
        selected = self._selected(chunk.place)
        if selected.shape == spec.shape:
            return selected
        new = cpu.NDBuffer.create(
            shape=spec.shape, dtype=self.array.dtype, order=spec.order, fill_value=chunk.fill_value
        )
        elements: Array = new.as_numpy_array()
        try:
            elements[chunk.item.selection] = selected
        except Exception as error:
            raise ValuesError(error) from error
        return elements

    def _selected(self, place: Place) -> Array:
        if not self.array.shape:  # a single value for all elements
            return self.array
        try:
            selected: Array = self.array[place]
            return np.expand_dims(selected, self.drop_axes) if self.drop_axes else selected
        except Exception as error:
            raise ValuesError(error) from error


async def write_whole(
    chunks: Sequence[ChunkWrite],
    values: Array,
    drop_axes: tuple[int, ...],
    num_threads: int | None,
) -> list[ChunkWrite]:
    """Write whole chunks, and note what became of each; return what is left to zarr.

    What this package fails to write in a way that it should not is left as well: writing it twice
    does no harm.
    """
    try:
        await _write_together(chunks, Values(np.asarray(values), drop_axes), num_threads)
    except Exception as error:
        if not own_bugs.is_own_bug(error):
            raise
        own_bugs.log(error)
    return [chunk for chunk in chunks if chunk.outcome.is_left]


async def _write_together(
    chunks: Sequence[ChunkWrite], values: Values, num_threads: int | None
) -> None:
    layout = chunks[0].layout
    is_large = layout is not None and layout.num_bytes >= LARGE_WHOLE_BYTES
    suffix = f".{uuid.uuid4().hex}.partial"  # of temporary names
    latency = Latency()
    usual_seconds = layout.num_bytes / WRITTEN_PER_SECOND if layout else 0.0

    def work(workers: "Workers[ChunkWrite]", some: "Iterator[ChunkWrite]") -> None:
        for chunk in some:
            before = time.perf_counter()
            _write_or_leave(chunk, values, suffix, workers.is_wanted)
            if latency.note_wait(time.perf_counter() - before - usual_seconds):
                workers.start_helpers(wait_for_files=True)

    num_large = min(2 * num_cores(), concurrency() or MAX_FILE_THREADS)
    num_default = num_large if is_large else 1
    workers = Workers(chunks, work, num_threads=num_threads, num_default=num_default)
    await workers.run(write_pool())


def _write_or_leave(chunk: ChunkWrite, values: Values, suffix: str, is_wanted: IsWanted) -> None:
    """Write a chunk, or leave it to zarr, which may raise its own error."""
    try:
        _store_or_delete(chunk, values.of(chunk), suffix, is_wanted)
        chunk.outcome = Outcome("written whole")
    except (LeftToZarr, OSError, MemoryError) as why:
        leave([chunk], why)  # also if it was cancelled: then nobody writes it


def _store_or_delete(chunk: ChunkWrite, elements: Array, suffix: str, is_wanted: IsWanted) -> None:
    """Write a chunk, or delete it if zarr would not store it."""
    layout = chunk.layout
    if not isinstance(layout, Layout):
        raise TypeError(f"not a chunk: {layout!r}")
    if not layout.is_converted_by_copy and has_invalid_bytes(elements):
        raise LeftToZarr("it depends on the codec how invalid bytes are stored")
    if not chunk.would_be_empty(_blocks_of(elements, layout)):
        blocks = _blocks_of(elements, layout)
        _replace_file(chunk.path, suffix, blocks, layout.stored_dtype, is_wanted)
        return
    raise_if_cancelled(is_wanted)
    if os.path.isdir(chunk.path):  # also if it is a link
        raise LeftToZarr("there is a folder of its name")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(chunk.path)


def _blocks_of(elements: Array, layout: Layout) -> Iterable[Array]:
    """Return a chunk in blocks that stay in the CPU cache, in the order in which they are stored.

    They are views, made when they are needed. What is not converted is one block: to write it block
    by block would take 1.05 to 1.15 times as long. Transposed elements are one block up to a limit,
    as tiles of smaller ones would be narrow.
    """
    as_stored = elements.transpose(layout.axis_order)
    is_plain = elements.dtype == layout.stored_dtype and as_stored.flags.c_contiguous
    is_transposed = as_stored.strides[-1:] != (elements.itemsize,)
    most = constants.GROUP_BYTES if is_transposed else constants.BLOCK_BYTES
    if is_plain or layout.num_bytes <= most:
        return [as_stored]
    plan = plan_of(tuple([slice(0, size) for size in layout.shape]), layout, gap=0)
    pieces = split(plan, layout.item_size)
    return (elements[place].transpose(piece.stored_axes) for place, piece in pieces)


def _replace_file(
    path: str, suffix: str, blocks: Iterable[Array], stored: AnyDType, is_wanted: IsWanted
) -> None:
    """Write a file beside the chunk, and give it the chunk's name."""
    name = path + suffix
    target = Target(make_file(name), is_wanted)
    try:
        try:
            start = 0
            for block in blocks:
                raw = as_bytes(encode_array(block, stored))
                write_runs(target, raw, [start], len(raw))
                start += len(raw)
        finally:
            os.close(target.descriptor)
        raise_if_cancelled(is_wanted)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
