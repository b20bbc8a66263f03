"""How the chunks of a batch are written: whole, in place, or by zarr."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from zarr.core.buffer import gpu
from zarr.storage import LocalStore

from numcodecs_bytes._core.copy import may_be_mapped
from numcodecs_bytes._host import trace
from numcodecs_bytes._host.items import Item
from numcodecs_bytes._host.names import name_of_chunk
from numcodecs_bytes._host.options import set_by
from numcodecs_bytes._host.threads import run_in_thread, write_pool
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.places import Place, is_within, place_of
from numcodecs_bytes._plan.shards import LayoutOf, ShardLayout
from numcodecs_bytes._read.latency import Latency
from numcodecs_bytes._sources.files import path_of_file
from numcodecs_bytes._sources.stores import name_of_class, root_of, store_of
from numcodecs_bytes._write import locks
from numcodecs_bytes._write.chunk_file import WriteBatch
from numcodecs_bytes._write.chunks import ChunkWrite
from numcodecs_bytes._write.in_place import write_parts
from numcodecs_bytes._write.whole import are_plain, write_whole

# Values that may be mapped from a file are copied, up to this size, before parts of chunks are
# written in place: that takes 20 ms. If they are larger, zarr writes those chunks.
MAPPED_COPY_BYTES = 1 << 26


class Writes(NamedTuple):
    """How the chunks of a batch are written."""

    whole: list[ChunkWrite]
    in_place: list[ChunkWrite]
    left: list[ChunkWrite]  # to zarr
    value: Any  # zarr's buffer of what is written, which no write to a file changes

    @property
    def all(self) -> list[ChunkWrite]:
        """All chunks of the batch."""
        return [*self.whole, *self.in_place, *self.left]

    async def write(
        self, drop_axes: tuple[int, ...], num_threads: int | None, *, is_required: bool
    ) -> list[ChunkWrite]:
        """Write chunks whole and in place; return what is left to zarr, if that is allowed."""

        async def whole(chunks: Sequence[ChunkWrite], values: Any) -> list[ChunkWrite]:
            return await write_whole(chunks, values, drop_axes, num_threads)

        async def in_place(chunks: Sequence[ChunkWrite], values: Any) -> list[ChunkWrite]:
            batch = WriteBatch(values, drop_axes, Latency(), is_required)
            return await write_parts(chunks, batch, num_threads)

        left = list(self.left)
        for write, chunks in (whole, self.whole), (in_place, self.in_place):
            if chunks and type(self.value) is gpu.NDBuffer:
                from numcodecs_bytes._write.from_gpu import write_from_gpu  # only if it is needed

                left += await write_from_gpu(chunks, self.value.as_ndarray_like(), write)
            elif chunks:
                left += await write(chunks, self.value.as_ndarray_like())
        if is_required:
            _check_required(left)
        return left


async def plan_writes(
    items: Sequence[Item], layout_of: LayoutOf, value: Any, *, mode: bool | str
) -> Writes | None:
    """Return how chunks are written, given what zarr passes; None if zarr writes all of them.

    `mode` is the option ``write_in_place``. Raises RuntimeError if it is "require", and part of a
    chunk can't be written in place.
    """
    writes = _sort(items, layout_of, value, may_write_parts=bool(mode))
    if writes is None:
        return None
    if mode == "require":
        _check_required(writes.left)
    values = value.as_ndarray_like()
    if not (writes.in_place and _may_be_mapped(value)):
        return writes
    # Not np.array: it trusts the `__array__` of others, which may ignore `copy`.
    try:
        own = await run_in_thread(write_pool(), lambda: np.asanyarray(values).copy())
    except Exception:  # whatever the values raise
        if mode == "require":
            raise
        return None
    return writes._replace(value=type(value).from_ndarray_like(own))


def _sort(
    items: Sequence[Item], layout_of: LayoutOf, value: Any, *, may_write_parts: bool
) -> Writes | None:
    """Sort chunks by how they are written; return None if zarr writes all of them."""
    may_write_whole = any(item.is_complete for item in items) and _can_write_whole(
        items, layout_of, value
    )
    if not (may_write_parts or may_write_whole or trace.active):
        return None
    writes = Writes([], [], [], value)
    is_too_large = _may_be_mapped(value) and _is_large(value.as_ndarray_like())
    for item in items:
        chunk = ChunkWrite(item, item.place)
        if item.is_complete and not may_write_whole:
            writes.left.append(chunk)
            continue
        try:
            if type(value) is gpu.NDBuffer:
                chunk.place = _place_on_gpu(item.place, value.shape)
            chunk.layout = layout_of(item.spec)
            chunk.path = _find_path(item.byte_getter)
            if not item.is_complete:
                _check_in_place(chunk, is_too_large=is_too_large, is_on=may_write_parts)
        except LeftToZarr as why:
            leave([chunk], why)
            writes.left.append(chunk)
        else:
            (writes.whole if item.is_complete else writes.in_place).append(chunk)
    return writes


def _place_on_gpu(selector: Any, shape: tuple[int, ...]) -> Place:
    """Return the place of a chunk in values on a GPU; raise `LeftToZarr` if they have none."""
    if not shape:  # a single value for all elements
        return ()
    place = place_of(selector)
    if not is_within(place, shape):
        raise LeftToZarr("the values have another shape than the selection")
    return place


def _can_write_whole(items: Sequence[Item], layout_of: LayoutOf, value: object) -> bool:
    """Whether chunks that are selected as a whole can be written here."""
    first = items[0]  # all are of one array
    try:
        _find_path(first.byte_getter)
        return are_plain(value, layout_of(first.spec))
    except LeftToZarr:
        return False


def _find_path(setter: Any) -> str:
    """Return the path of a chunk's file; raise `LeftToZarr` if zarr has to write it."""
    if locks.fcntl is None:  # on Windows, where zarr also tries again to replace a file
        raise LeftToZarr("this system has no flock")
    store = store_of(setter)
    if type(store) is not LocalStore:
        raise LeftToZarr(f"{name_of_class(store)} is not zarr's LocalStore")
    root = root_of(store)
    if store.read_only:
        raise LeftToZarr("the store is read-only")
    return path_of_file(root, setter.path)


def _check_in_place(chunk: ChunkWrite, *, is_too_large: bool, is_on: bool) -> None:
    """Raise `LeftToZarr` unless part of a chunk can be written in place."""
    layout: Any = chunk.layout
    inner = layout.inner if isinstance(layout, ShardLayout) else layout
    if inner.conversion is not None:
        raise LeftToZarr("codecs convert its elements")
    if is_too_large:
        most = f"{MAPPED_COPY_BYTES >> 20} MiB"
        raise LeftToZarr(f"the values take more than {most}, and may be mapped from a file")
    if not is_on:  # last: setting it to True helps
        raise LeftToZarr(
            "numcodecs_bytes.write_in_place is off; set it to True in zarr's config to switch it on"
        )


def _check_required(chunks: Sequence[ChunkWrite]) -> None:
    """Raise RuntimeError if a write to part of a chunk was left to zarr, but must be in place."""
    for chunk in chunks:
        if not chunk.item.is_complete:
            key, why = "numcodecs_bytes.write_in_place", chunk.outcome.why
            remedy = "create the array with compressors=None, or " if "compressed" in why else ""
            name = name_of_chunk(chunk.item.byte_getter)
            raise RuntimeError(
                f"part of {name} can't be written in place, but {key} is "
                f"'require'{set_by(key)}: {why}; {remedy}set it to True to let zarr rewrite the "
                "chunk"
            )


def _may_be_mapped(value: Any) -> bool:
    """Whether values may be mapped from a file."""
    return type(value) is not gpu.NDBuffer and may_be_mapped(value.as_ndarray_like())


def _is_large(values: Any) -> bool:
    """Whether values are too large to be copied; if they tell no size, copying raises an error."""
    try:
        return bool(math.prod(values.shape) * values.dtype.itemsize > MAPPED_COPY_BYTES)
    except (AttributeError, TypeError):
        return False
