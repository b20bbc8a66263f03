"""Chunks of arrays on a GPU, which are read and written through host memory, group by group."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from numcodecs_bytes._core.dtypes import Array, GPUArray
from numcodecs_bytes._host import gpu
from numcodecs_bytes._host.zarr_versions import concurrency
from numcodecs_bytes._plan.groups import Chunk, Group, groups_of


def groups_for_gpu(chunks: Sequence[Chunk], array: GPUArray) -> list[Group[Chunk]]:
    """Return chunks in groups that fit into a buffer; their places become those in the buffer."""
    return list(groups_of(chunks, gpu.BUFFER_BYTES // array.dtype.itemsize))


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
