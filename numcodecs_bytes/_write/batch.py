"""How the chunks of a batch are written, whole, in place, or by zarr, and from which values."""

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from zarr.core.buffer import NDBuffer, cpu
from zarr.storage import LocalStore

from numcodecs_bytes._core.copy import may_be_mapped
from numcodecs_bytes._core.dtypes import Array, has_same_elements
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import OutSelection
from numcodecs_bytes._plan.outcome import (
    Compressed,
    DamagedShard,
    LeftToZarr,
    Protected,
    UnusualIndex,
    ZarrFails,
    leave_to_zarr,
)
from numcodecs_bytes._plan.shards import REMEDY, LayoutOf, ShardLayout
from numcodecs_bytes._runtime.threads import run_in_thread, write_pool
from numcodecs_bytes._sources.files import path_of_file
from numcodecs_bytes._sources.stores import root_of, store_of
from numcodecs_bytes._write import locks
from numcodecs_bytes._write.chunk_file import InPlaceBatch
from numcodecs_bytes._write.chunk_write import ChunkWrite, ValuesError
from numcodecs_bytes._write.in_place import write_in_place
from numcodecs_bytes._write.whole import write_whole
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.names import name_of_chunk, name_of_class
from numcodecs_bytes._zarr_api.options import WriteMode, set_by

# Values that may be mapped from a file are copied, up to this size, before parts of chunks are
# written in place: that takes 20 ms. If they are larger, zarr writes those chunks.
MAPPED_COPY_BYTES = 1 << 26

# What helps, by the reason, if a chunk must be written in place, but can't be.
_LET_ZARR_WRITE = (
    "set the option to True to let zarr write the chunk, if nothing else writes to it meanwhile"
)
_REMEDIES: dict[type[Exception], str] = {
    Compressed: f"create the array with compressors=None, or {_LET_ZARR_WRITE}",
    # zarr would replace a file that somebody has protected, perhaps on purpose.
    Protected: "if the array may change, get permission to read and write its files and folders",
    # zarr would lose inner chunks that it does not find by this index.
    UnusualIndex: f"if the shard is damaged, {REMEDY.text}",
    DamagedShard: REMEDY.text,
    ZarrFails: "",
}

# Writes chunks from an array in host memory, in which each has its `out_selection`.
Write = Callable[[Sequence[ChunkWrite], Array], Awaitable[None]]


class Values:
    """Values in host memory, or of a kind of which nothing is known."""

    def __init__(self, buffer: NDBuffer) -> None:
        self.buffer = buffer
        self._array: Any = buffer.as_ndarray_like()  # any kind of array that zarr takes
        # Whether they may be mapped from a file, which a write may change.
        self.may_be_mapped = may_be_mapped(self._array)
        # Whether zarr passes them on to codecs as they are.
        kind: Any = type(self._array)
        self.are_of_known_kind = kind in (np.ndarray, np.memmap) and type(buffer) is cpu.NDBuffer

    @property
    def num_bytes(self) -> float:
        """How much memory a copy takes; NaN, or 0, if they tell no size."""
        try:
            return float(math.prod(self._array.shape) * self._array.dtype.itemsize)
        except (AttributeError, TypeError):
            return 0

    def copied(self) -> "Values":
        """Return a copy; raise whatever the values raise."""
        # np.array would trust the `__array__` of others, which may ignore `copy`.
        return Values(type(self.buffer).from_ndarray_like(np.asanyarray(self._array).copy()))

    def are_elements_of(self, layout: Layout) -> bool:
        """Whether whole chunks of a layout can be written from them: zarr converts others."""
        if layout.element_codecs or not layout.item_size:
            return False  # zarr encodes them, or there is nothing to write
        return self.are_of_known_kind and has_same_elements(self._array.dtype, layout.dtype)

    def out_selection_of(self, selector: OutSelection) -> OutSelection:
        """Return the region of a chunk in the values, given what zarr passes."""
        return selector

    async def write(self, chunks: Sequence[ChunkWrite], write: Write) -> None:
        """Write chunks, all of them at once."""
        await write(chunks, self._array)


class PlannedWrites(NamedTuple):
    """The chunks of a batch, and how they are written: whole, in place, or by zarr."""

    chunks: list[ChunkWrite]
    values: Values  # what no write to a file changes

    @property
    def left(self) -> list[ChunkWrite]:
        """The chunks that zarr has to write."""
        return [chunk for chunk in self.chunks if chunk.outcome.is_left]

    async def write(
        self, drop_axes: tuple[int, ...], num_threads: int | None, *, is_required: bool
    ) -> None:
        """Write chunks whole and in place, and record the outcome of each.

        If they must be written in place, an error is raised for parts of chunks that are left.
        """
        whole = partial(write_whole, drop_axes=drop_axes, num_threads=num_threads)

        async def in_place(chunks: Sequence[ChunkWrite], array: Array) -> None:
            await write_in_place(chunks, InPlaceBatch(array, drop_axes, is_required), num_threads)

        ways: tuple[tuple[Write, bool], ...] = (whole, True), (in_place, False)
        for write, is_whole in ways:
            chunks = [c for c in self.chunks if c.path and c.request.is_complete == is_whole]
            if chunks:
                await self.values.write(chunks, write)
        if is_required:
            _check_required(self.left)


async def plan_writes(
    requests: Sequence[ChunkRequest], layout_of: LayoutOf, values: Values, *, mode: WriteMode
) -> PlannedWrites:
    """Return how chunks are written, given what zarr requests.

    `mode` is the option ``write_in_place``. Raises RuntimeError if it is "require", and part of a
    chunk can't be written in place.
    """
    chunks = [ChunkWrite(request) for request in requests]
    for chunk in chunks:
        try:
            _plan_chunk(chunk, layout_of, values, may_write_parts=bool(mode))
        except LeftToZarr as why:
            leave_to_zarr([chunk], why)
    if mode == "require":
        _check_required([chunk for chunk in chunks if not chunk.path])
    in_parts = any(chunk.path and not chunk.request.is_complete for chunk in chunks)
    if in_parts and values.may_be_mapped:
        try:
            values = await run_in_thread(write_pool(), values.copied)
        except Exception as error:  # the user's own: their values may raise anything
            if mode == "require":
                raise
            for chunk in chunks:
                chunk.path = ""
            leave_to_zarr(chunks, ValuesError(error))
    return PlannedWrites(chunks, values)


def _plan_chunk(
    chunk: ChunkWrite, layout_of: LayoutOf, values: Values, *, may_write_parts: bool
) -> None:
    """Find where a chunk is written, and how; raise `LeftToZarr` if zarr has to write it."""
    chunk.out_selection = values.out_selection_of(chunk.request.out_selection)
    layout = layout_of(chunk.request.spec)
    if isinstance(layout, ShardLayout):
        chunk.shard, chunk.layout = layout, layout.inner
    else:
        chunk.layout = layout
    path = _find_path(chunk.request.byte_getter)
    if not chunk.request.is_complete:
        _check_in_place(chunk.layout, values, is_on=may_write_parts)
    elif chunk.shard is not None or not values.are_elements_of(chunk.layout):
        raise LeftToZarr("zarr converts its values, or it is a shard")
    chunk.path = path


def _find_path(setter: Any) -> str:
    """Return the path of a chunk's file; raise `LeftToZarr` if zarr has to write it."""
    store = store_of(setter)
    if store.read_only:  # first, because setting the option to True does not help
        remedy = 'open the array or group with mode="r+", and pass no read-only store'
        raise ZarrFails(f"the store is read-only; {remedy}")
    if locks.fcntl is None:  # Windows: there, zarr also tries again to replace a file
        raise LeftToZarr("this system has no flock")
    if type(store) is not LocalStore:
        raise LeftToZarr(f"{name_of_class(store)} is not zarr's LocalStore")
    return path_of_file(root_of(store), setter.path)


def _check_in_place(layout: Layout, values: Values, *, is_on: bool) -> None:
    """Raise `LeftToZarr` unless part of a chunk can be written in place."""
    if layout.element_codecs is not None:
        raise LeftToZarr("codecs convert its elements")
    if values.may_be_mapped and values.num_bytes > MAPPED_COPY_BYTES:
        size = f"{MAPPED_COPY_BYTES >> 20} MiB"
        why = f"the values take more than {size}, and may be mapped from a file"
        raise LeftToZarr(f"{why} (write smaller parts, or copy them by np.array)")
    if not is_on:  # last: setting it to True helps
        raise LeftToZarr(
            "numcodecs_bytes.write_in_place is off; set it to True in zarr's config to switch it on"
        )


def _check_required(chunks: Sequence[ChunkWrite]) -> None:
    """Raise RuntimeError if a write to part of a chunk was left to zarr, but must be in place."""
    for chunk in chunks:
        if not chunk.request.is_complete:
            key, why = "numcodecs_bytes.write_in_place", chunk.outcome.why
            remedy = _REMEDIES.get(chunk.outcome.kind, _LET_ZARR_WRITE)
            name = name_of_chunk(chunk.request.byte_getter)
            raise RuntimeError(
                f"part of {name} can't be written in place: {why}{remedy and f'; {remedy}'} "
                f"({key} is 'require'{set_by(key)})"
            )
