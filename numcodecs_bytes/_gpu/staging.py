"""Chunks of arrays on a GPU, which are read and written through host memory, group by group."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from numcodecs_bytes._core.catch import await_all
from numcodecs_bytes._core.dtypes import Array, GPUArray
from numcodecs_bytes._gpu import buffers
from numcodecs_bytes._gpu.kernels import cupy
from numcodecs_bytes._plan.groups import (
    Chunk,
    Group,
    groups_of,
    out_selection_in_box,
    out_selection_outside_box,
)
from numcodecs_bytes._plan.out_selections import are_slices, shape_of, size_of
from numcodecs_bytes._zarr_api.versions import concurrency


async def transfer_in_groups(
    chunks: Sequence[Chunk],
    array: GPUArray,
    transfer: Callable[[Group[Chunk], Array], Awaitable[None]],
) -> None:
    """Transfer chunks of an array on a GPU, in groups that fit into a buffer.

    Each group has an array in host memory, in which its chunks get their places. About as many
    chunks are read or written at once as zarr would. After an error, no other group begins, and all
    have ended before it is raised.
    """
    groups = groups_of(chunks, buffers.BUFFER_BYTES // array.dtype.itemsize)
    limit = concurrency() or len(chunks)
    at_once = asyncio.Semaphore(max(round(limit * len(groups) / max(len(chunks), 1)), 1))
    has_failed = False

    async def transfer_one(group: Group[Chunk]) -> None:
        nonlocal has_failed
        async with at_once:
            if has_failed:
                return
            try:
                async with buffers.HostMemory(shape_of(group.box), array) as host:
                    for chunk in group.chunks:
                        chunk.out_selection = out_selection_in_box(group.box, chunk.out_selection)
                    await transfer(group, host)
            except BaseException:
                has_failed = True
                raise

    await await_all(map(transfer_one, groups))


def upload(group: Group[Chunk], host: Array, array: GPUArray, chunks: Sequence[Chunk]) -> None:
    """Copy some chunks of a group to the output on a GPU, and wait until they are there."""
    if not chunks:
        return
    fill_box = sum([size_of(chunk.out_selection) for chunk in chunks]) == host.size
    with array.device:
        stream = cupy().cuda.get_current_stream()
        view = array[(*group.box, ...)] if are_slices(group.box) else None
        if fill_box and view is not None and view.flags.c_contiguous:
            view.set(host, stream)
        else:
            copy = cupy().empty(host.shape, host.dtype)
            copy.set(host, stream)
            for chunk in chunks:
                array[out_selection_outside_box(group.box, chunk.out_selection)] = copy[
                    (*chunk.out_selection, ...)
                ]
        stream.synchronize()


def download(group: Group[Chunk], array: GPUArray, host: Array) -> None:
    """Copy the box of a group from values on a GPU, and wait until it is there."""
    with array.device:
        array[(*group.box, ...)].get(out=host)
