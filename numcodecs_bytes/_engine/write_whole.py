"""Writes whole chunks to local files, many of them together.

A file is written beside the chunk and replaces it, as zarr's LocalStore does. Whatever can't be
written this way, or fails, is left to zarr, which writes it or raises its own error: replacing a
whole chunk twice does no harm.
"""

import contextlib
import math
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from zarr.core.buffer import cpu

from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, has_same_elements
from numcodecs_bytes._core.invalid_bytes import has_invalid_bytes
from numcodecs_bytes._engine import constants, unexpected
from numcodecs_bytes._engine.chunks import ChunkWrite, leave
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.plan import plan_of, split
from numcodecs_bytes._engine.shards import AnyLayout
from numcodecs_bytes._engine.workers import Workers
from numcodecs_bytes._engine.write_file import raise_unless, write_runs
from numcodecs_bytes._names import add_name
from numcodecs_bytes._threads import MAX_FILE_THREADS, IsWanted, write_pool
from numcodecs_bytes._zarr_versions import concurrency

# Returns the elements of a chunk, as zarr puts them together from the values.
Merge = Callable[[ChunkWrite], Array]

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def check_values(value: Any, layout: AnyLayout | None) -> None:
    """Raise `LeftToZarr` unless whole chunks of a layout can be written from these values."""
    if not isinstance(layout, Layout) or not layout.item_size:
        raise LeftToZarr("a shard, or elements without bytes")
    array = value.as_ndarray_like()
    if type(value) is not cpu.NDBuffer or type(array) not in (np.ndarray, np.memmap):
        raise LeftToZarr("the values are not in a plain NumPy array")
    if not has_same_elements(array.dtype, layout.dtype):
        raise LeftToZarr(f"the values have the data type {array.dtype}, the array {layout.dtype}")


async def write_whole(
    chunks: Sequence[ChunkWrite],
    values: Array,
    drop_axes: tuple[int, ...],
    merge: Merge,
    num_threads: int | None,
) -> None:
    """Write whole chunks, or leave them to zarr; note what became of each."""
    num_bytes = math.prod(chunks[0].spec.shape) * values.itemsize
    is_parallel = num_bytes >= constants.WHOLE_PARALLEL_BYTES
    batch = _Batch(np.asarray(values), drop_axes, merge, f".{uuid.uuid4().hex}.partial")
    workers = Workers(
        chunks,
        lambda is_wanted: partial(_write_or_leave, batch=batch, is_wanted=is_wanted),
        num_threads=num_threads,
        # As many as zarr itself would use.
        num_default=(concurrency() or MAX_FILE_THREADS) if is_parallel else 1,
    )
    await workers.run(write_pool())


@dataclass(frozen=True, slots=True)
class _Batch:
    """Values for whole chunks, and how they are written."""

    values: Array
    drop_axes: tuple[int, ...]  # axes of the chunks that the values lack
    merge: Merge
    suffix: str  # of temporary names


def _write_or_leave(chunk: ChunkWrite, batch: _Batch, is_wanted: IsWanted) -> None:
    """Write a chunk, or leave it to zarr, which may raise its own error."""
    try:
        _write(chunk, batch, is_wanted)
        chunk.note_written_whole()
    except LeftToZarr as why:
        leave([chunk], why)
    except OSError as error:
        leave([chunk], LeftToZarr(str(error) or type(error).__name__))
    except Exception as error:
        if not unexpected.is_unexpected(error):
            add_name(error, chunk.setter, "writing")
            raise
        unexpected.log(error)
        leave([chunk], LeftToZarr(f"unexpected {type(error).__name__}: {error}"))


def _write(chunk: ChunkWrite, batch: _Batch, is_wanted: IsWanted) -> None:
    """Write a chunk, or delete it if zarr would not store it."""
    layout: Any = chunk.layout  # a Layout, as `check_values` has found
    elements = _elements_of(chunk, batch)
    if not layout.is_converted_by_copy and has_invalid_bytes(elements):
        raise LeftToZarr("it depends on the codec how invalid bytes are stored")
    if chunk.would_be_empty(_pieces_of(elements, layout)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(chunk.path)  # noqa: PTH108 # a Path takes 2 us
        return
    pieces = _pieces_of(elements, layout)
    _replace(chunk.path, batch.suffix, pieces, layout.stored_dtype, is_wanted)


def _elements_of(chunk: ChunkWrite, batch: _Batch) -> Array:
    """Return the elements of a chunk, in its shape."""
    try:
        if batch.values.shape:
            selected: Array = batch.values[chunk.place]
            if batch.drop_axes:
                selected = np.expand_dims(selected, batch.drop_axes)
            if selected.shape == chunk.spec.shape:
                return selected
        return batch.merge(chunk)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise LeftToZarr(f"the values do not fit: {error}") from error


def _pieces_of(elements: Array, layout: Layout) -> Iterable[Array]:
    """Return pieces of a chunk that stay in the CPU cache, one after the other as stored."""
    if layout.num_bytes <= constants.BLOCK_BYTES:
        return [elements.transpose(layout.axis_order)]
    plan = plan_of(tuple([slice(0, size) for size in layout.shape]), layout, gap=0)
    pieces = split(plan, layout.item_size)
    return (elements[place].transpose(piece.stored_axes) for place, piece in pieces)


def _replace(
    path: str, suffix: str, pieces: Iterable[Array], stored: AnyDType, is_wanted: IsWanted
) -> None:
    """Write a file beside the chunk, and give it the chunk's name."""
    name = path + suffix
    try:
        descriptor = os.open(name, _FLAGS, 0o666)
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(name, _FLAGS, 0o666)
    try:
        try:
            start = 0
            for piece in pieces:
                raw = as_bytes(encode_array(piece, stored))
                write_runs(descriptor, raw, [start], len(raw), is_wanted)
                start += len(raw)
        finally:
            os.close(descriptor)
        raise_unless(is_wanted)
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)  # noqa: PTH108
        raise
