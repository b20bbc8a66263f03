"""Writes chunks from values on a GPU, group by group, through host memory."""

from collections.abc import Awaitable, Callable, Sequence

from numcodecs_bytes._core.dtypes import Array, GPUArray
from numcodecs_bytes._host import own_bugs
from numcodecs_bytes._plan.groups import Group
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._sources.through_host import download, each_group, groups_in_buffers
from numcodecs_bytes._write.chunks import ChunkWrite


async def write_from_gpu(
    chunks: Sequence[ChunkWrite],
    values: GPUArray,
    write_group: Callable[[Sequence[ChunkWrite], Array], Awaitable[list[ChunkWrite]]],
) -> list[ChunkWrite]:
    """Write chunks from values on a GPU, group by group; return what is left to zarr."""
    left = list[ChunkWrite]()

    async def process(group: Group[ChunkWrite], host: Array) -> None:
        try:
            download(group, values, host)
        except Exception as error:
            if not own_bugs.is_own_bug(error):
                raise
            own_bugs.log(error)
            leave(group.chunks, LeftToZarr("numcodecs_bytes itself failed"))
            left.extend(group.chunks)
        else:
            left.extend(await write_group(group.chunks, host))

    await each_group(groups_in_buffers(chunks, values), values, process)
    return left
