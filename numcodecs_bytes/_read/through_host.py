"""Chunks of arrays on a GPU, which are read and written through host memory, group by group."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from numcodecs_bytes._core.copy_gpu import cupy
from numcodecs_bytes._core.dtypes import Array, GPUArray
from numcodecs_bytes._host import gpu, unexpected
from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan.groups import Chunk, Group, groups_of, place_in_box, place_outside
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.places import are_slices, shape_of, size_of
from numcodecs_bytes._read.chunks import Batch, ChunkRead


def groups_in_buffers(chunks: Sequence[Chunk], array: GPUArray) -> list[Group[Chunk]]:
    """Return chunks of an array on a GPU in groups that fit into a buffer."""
    return groups_of(chunks, gpu.BUFFER_BYTES // array.dtype.itemsize)


def groups_to_read(batch: Batch) -> list[Group[ChunkRead]]:
    """Return what is read to a GPU here, in groups; leave to zarr what it reads faster."""
    for chunk in batch.chunks:
        if chunk.source is not None and not batch.is_v2 and _is_faster_by_zarr(chunk):
            chunk.source = None
            leave([chunk], LeftToZarr("most of a large chunk is read to a GPU"))
    here = [chunk for chunk in batch.chunks if chunk.source is not None]
    return groups_in_buffers(here, batch.out.array)


def _is_faster_by_zarr(chunk: ChunkRead) -> bool:
    """Whether zarr reads all of a chunk to a GPU faster than this package what is selected.

    That took up to 1.2 times as long for most of a chunk that fits into no buffer. zarr can't read
    every shard to a GPU, nor every chunk of Zarr v2, or behind codecs that convert elements.
    """
    if not isinstance(chunk.layout, Layout) or chunk.layout.conversion is not None:
        return False
    size = size_of(chunk.place)
    is_large = size * chunk.layout.dtype.itemsize > gpu.BUFFER_BYTES
    return is_large and 2 * size > math.prod(chunk.layout.shape)


async def each_group(
    groups: Sequence[Group[Chunk]],
    array: GPUArray,
    process: Callable[[Group[Chunk], Array], Awaitable[None]],
) -> None:
    """Process groups, each with an array in host memory, in which its chunks get their places.

    About as many chunks are processed at once as zarr would. After an error, no other group begins,
    and all have ended before it is raised.
    """
    num_chunks = sum([len(group.chunks) for group in groups])
    limit = concurrency() or num_chunks
    at_once = asyncio.Semaphore(max(round(limit * len(groups) / max(num_chunks, 1)), 1))

    has_failed = False

    async def process_one(group: Group[Chunk]) -> None:
        nonlocal has_failed
        async with at_once:
            if has_failed:
                return
            try:
                async with gpu.HostMemory(shape_of(group.box), array) as host:
                    for chunk in group.chunks:
                        chunk.place = place_in_box(group.box, chunk.place)
                    await process(group, host)
            except BaseException:
                has_failed = True
                raise

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
    left = list[Chunk]()

    async def process(group: Group[Chunk], host: Array) -> None:
        try:
            download(group, values, host)
        except Exception as error:
            if not unexpected.is_unexpected(error):
                raise
            unexpected.log(error)
            leave(group.chunks, LeftToZarr("numcodecs_bytes itself failed"))
            left.extend(group.chunks)
        else:
            left.extend(await write_group(group.chunks, host))

    await each_group(groups_in_buffers(chunks, values), values, process)
    return left


def upload(
    group: Group[ChunkRead], host: Array, device: GPUArray, chunks: Sequence[ChunkRead]
) -> None:
    """Copy some chunks of a group to the output on a GPU, and wait until they are there."""
    if not chunks:
        return
    fill_box = sum([size_of(chunk.place) for chunk in chunks]) == host.size
    with device.device:
        stream = cupy().cuda.get_current_stream()
        target = device[(*group.box, ...)] if are_slices(group.box) else None
        if fill_box and target is not None and target.flags.c_contiguous:
            target.set(host, stream)
        else:
            copy = cupy().empty(host.shape, host.dtype)
            copy.set(host, stream)
            for chunk in chunks:
                device[place_outside(group.box, chunk.place)] = copy[(*chunk.place, ...)]
        stream.synchronize()


def download(group: Group[Chunk], device: GPUArray, host: Array) -> None:
    """Copy the box of a group from values on a GPU, and wait until it is there."""
    with device.device:
        device[(*group.box, ...)].get(out=host)
