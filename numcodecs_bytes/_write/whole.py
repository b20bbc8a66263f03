"""Writes whole chunks to local files, many of them together.

A file is written beside the chunk and replaces it, as zarr's LocalStore does. Whatever can't be
written this way, or fails, is left to zarr, which writes it or raises its own error: replacing a
whole chunk twice does no harm.
"""

import contextlib
import os
import uuid
from collections.abc import Iterable, Sequence

import numpy as np
from zarr.core.buffer import cpu

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array
from numcodecs_bytes._core.invalid_bytes import has_invalid_bytes
from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, Outcome, leave_to_zarr
from numcodecs_bytes._plan.plan import plan_of, split
from numcodecs_bytes._runtime.threads import MAX_FILE_THREADS, IsWanted, num_cores
from numcodecs_bytes._write.chunk_write import ChunkWrite, ValuesError, write_each
from numcodecs_bytes._write.write_file import WrittenFile, make_file, raise_if_cancelled, write_runs
from numcodecs_bytes._zarr_api.versions import concurrency

# Whole chunks of at least this size are written by two threads per core. On tmpfs and two cores,
# two took 0.6 of the time of one with 128 KiB, 0.5 with 1 MiB, 0.8 to 1 with 64 KiB, and 1.2 with
# 4 KiB. Four took as long as two, and ten 1.05 to 1.4 times; but if each rename takes 1 ms, two
# took twice the time of four.
LARGE_WHOLE_BYTES = 1 << 17

# If the first file takes longer than this for each 128 KiB of it, rounded up, as many threads
# write as zarr itself would use. If each rename takes 10 or 50 ms, chunks of 1 MiB take 0.5 of
# zarr's time; if it takes 1 ms, chunks of 4 KiB take 0.3, and 2.6 in one thread.
SLOW_SECONDS = 5e-4


async def write_whole(
    chunks: Sequence[ChunkWrite], values: Array, drop_axes: tuple[int, ...], num_threads: int | None
) -> None:
    """Write whole chunks, and record the outcome of each.

    `drop_axes` are the axes of the chunks that the values lack.
    """
    array = np.asarray(values)
    suffix = f".{uuid.uuid4().hex}.partial"  # how temporary names end

    def write(chunk: ChunkWrite, is_wanted: IsWanted) -> None:
        try:
            elements = _elements_of(chunk, array, drop_axes)
            _store_or_delete(chunk, elements, suffix, is_wanted)
            chunk.outcome = Outcome("written whole")
        except (LeftToZarr, OSError, MemoryError) as why:
            leave_to_zarr([chunk], why)

    num_bytes, num_default = chunks[0].layout.num_bytes, 1
    slow_seconds = SLOW_SECONDS * (1 + (num_bytes >> 17))
    if num_bytes >= LARGE_WHOLE_BYTES and len(chunks) > 1:
        num_default = min(2 * num_cores(), concurrency() or MAX_FILE_THREADS)
    await write_each(
        chunks, write, num_threads=num_threads, num_default=num_default, slow_seconds=slow_seconds
    )


def _elements_of(chunk: ChunkWrite, array: Array, drop_axes: tuple[int, ...]) -> Array:
    """Return the elements of a chunk, in its shape; beyond the array, the fill value."""
    spec, elements = chunk.request.spec, array
    try:
        if array.shape:  # no axes: a single value for all elements
            elements = array[chunk.out_selection]
            elements = np.expand_dims(elements, drop_axes) if drop_axes else elements
        if elements.shape == spec.shape:
            return elements
        new = cpu.NDBuffer.create(
            shape=spec.shape, dtype=array.dtype, order=spec.order, fill_value=chunk.fill_value
        ).as_numpy_array()
        new[chunk.request.chunk_selection] = elements
    except (IndexError, TypeError, ValueError) as error:  # NumPy's, if they have another shape
        raise ValuesError(error) from error
    return new


def _store_or_delete(chunk: ChunkWrite, elements: Array, suffix: str, is_wanted: IsWanted) -> None:
    """Write a chunk, or delete it if zarr would not store it."""
    layout = chunk.layout
    if not layout.is_converted_by_copy and has_invalid_bytes(elements):
        raise LeftToZarr("it depends on the codec how invalid bytes are stored")
    if not chunk.would_be_empty(_blocks_of(elements, layout)):
        blocks = _blocks_of(elements, layout)
        _replace_file(chunk.path, suffix, blocks, layout.stored_dtype, is_wanted)
        return
    raise_if_cancelled(is_wanted)
    if os.path.isdir(chunk.path):  # a folder, or a link to one
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
    is_stored_as_in_memory = elements.dtype == layout.stored_dtype and as_stored.flags.c_contiguous
    is_transposed = as_stored.strides[-1:] != (elements.itemsize,)
    max_bytes = constants.GROUP_BYTES if is_transposed else constants.BLOCK_BYTES
    if is_stored_as_in_memory or layout.num_bytes <= max_bytes:
        return [as_stored]
    plan = plan_of(tuple([slice(0, size) for size in layout.shape]), layout, max_gap=0)
    blocks = split(plan, layout.item_size)
    return (elements[out_selection].transpose(block.stored_axes) for out_selection, block in blocks)


def _replace_file(
    path: str, suffix: str, blocks: Iterable[Array], stored: AnyDType, is_wanted: IsWanted
) -> None:
    """Write a file beside the chunk, and give it the chunk's name."""
    name = path + suffix
    file = WrittenFile(make_file(name), is_wanted)
    try:
        try:
            start = 0
            for block in blocks:
                raw = as_bytes(encode_array(block, stored))
                write_runs(file, raw, [start], len(raw))
                start += len(raw)
        finally:
            os.close(file.descriptor)
        raise_if_cancelled(is_wanted)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
