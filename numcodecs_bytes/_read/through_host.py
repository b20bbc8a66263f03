"""Chunks of arrays on a GPU, which are read and written through host memory, group by group."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from numcodecs_bytes._core.dtypes import Array, GPUArray
from numcodecs_bytes._host import gpu, unexpected
from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan.groups import Chunk, Group, groups_of
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.places import size_of
from numcodecs_bytes._read.chunks import Batch, ChunkRead


def groups_in_buffers(chunks: Sequence[Chunk], array: GPUArray) -> list[Group[Chunk]]:
    """Return chunks in groups that fit into a buffer; their places become those in the buffer."""
    return list(groups_of(chunks, gpu.BUFFER_BYTES // array.dtype.itemsize))


def groups_to_read(batch: Batch) -> list[Group[ChunkRead]]:
    """Return what is read to a GPU here, in groups; leave to zarr what it reads faster.

    Most of a large chunk takes up to 1.2 times as long through memory that is not page-locked.
    """
    item_size = batch.out.array.dtype.itemsize
    for chunk in batch.chunks:
        size = size_of(chunk.place)
        if isinstance(chunk.layout, Layout) and not batch.is_v2:
            is_most = 2 * size > math.prod(chunk.layout.shape)
            if is_most and size * item_size > gpu.BUFFER_BYTES:
                chunk.source = None
                leave([chunk], LeftToZarr("most of a large chunk is read to a GPU"))
    here = [chunk for chunk in batch.chunks if chunk.source is not None]
    return groups_in_buffers(here, batch.out.array)


def upload(
    group: Group[ChunkRead], host: Array, device: GPUArray, chunks: Sequence[ChunkRead]
) -> None:
    """Copy the chunks of a group that have been read to the output on a GPU."""
    if group.is_full and len(chunks) == len(group.chunks):
        gpu.upload(host, device, group.box)
        return
    for chunk in chunks:
        part = np.ascontiguousarray(host[(*chunk.place, ...)])
        gpu.upload(part, device, group.place_outside(chunk))


async def each_group(
    groups: Sequence[Group[Chunk]],
    array: GPUArray,
    process: Callable[[Group[Chunk], Array], Awaitable[None]],
) -> None:
    """Process groups, each with an array in host memory, of the shape of its box.

    About as many chunks are processed at once as zarr would. All have ended before an error is
    raised.
    """
    num_chunks = sum([len(group.chunks) for group in groups])
    limit = concurrency() or num_chunks
    at_once = asyncio.Semaphore(max(round(limit * len(groups) / max(num_chunks, 1)), 1))

    async def process_one(group: Group[Chunk]) -> None:
        async with at_once, gpu.host_memory(group.shape, array) as host:
            await process(group, host)

    results = await asyncio.gather(*map(process_one, groups), return_exceptions=True)
    try:
        for error in results:
            if error is not None:
                raise error
    finally:
        del results  # the frames of the errors refer to this one, and to the output


async def write(
    chunks: Sequence[Chunk],
    values: GPUArray,
    write_group: Callable[[Sequence[Chunk], Array], Awaitable[list[Chunk]]],
) -> list[Chunk]:
    """Write chunks from values on a GPU, group by group; return what is left to zarr."""
    groups, left = [Group(chunks, (), is_full=True)], list[Chunk]()
    if values.shape:  # else it is a single value for all of them
        groups = groups_in_buffers(chunks, values)

    async def process(group: Group[Chunk], host: Array) -> None:
        try:
            gpu.download(values, group.box, host)
        except Exception as error:
            if not unexpected.is_unexpected(error):
                raise
            unexpected.log(error)
            leave(group.chunks, LeftToZarr("numcodecs_bytes itself failed"))
            left.extend(group.chunks)
        else:
            left.extend(await write_group(group.chunks, host))

    await each_group(groups, values, process)
    return left
