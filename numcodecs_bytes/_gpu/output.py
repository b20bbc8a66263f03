"""An output on a GPU: memory on the host, and what uploads what was filled."""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from numcodecs_bytes._core.dtypes import Array, GPUArray
from numcodecs_bytes._gpu import buffers, staging
from numcodecs_bytes._plan.groups import Group
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import size_of
from numcodecs_bytes._plan.outcome import PENDING, LeftToZarr, leave_to_zarr
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._runtime import own_bugs

# Leaves chunks to zarr because of an own bug.
RecordOwnBug = Callable[[Sequence[ChunkRead], Exception], None]


class GPUOutput(NamedTuple):
    """An array on a GPU that a batch is read into, part by part; see `Output`."""

    array: GPUArray
    on_host: Output  # each group of chunks is read into an array of its own
    record_own_bug: RecordOwnBug
    is_v2: bool  # whether the chunks are of Zarr v2

    async def read_chunks(
        self,
        chunks: Sequence[ChunkRead],
        read: Callable[[Sequence[ChunkRead], Output], Awaitable[None]],
    ) -> None:
        """Read chunks in groups, each into host memory, and upload it; leave others to zarr."""
        waiting: set[ChunkRead] = set()  # zarr has to read these after an own bug

        async def read_group(group: Group[ChunkRead], host: Array) -> None:
            await read(group.chunks, self.on_host._replace(array=host))
            read_here = [chunk for chunk in group.chunks if chunk.outcome.is_read_here]
            staging.upload(group, host, self.array, read_here)
            waiting.difference_update(group.chunks)

        # CuPy may behave otherwise than this package expects.
        with own_bugs.catch(lambda bug: self.record_own_bug(list(waiting), bug)):
            here = [chunk for chunk in chunks if chunk.extent is not None]
            if not self.is_v2:
                faster = (chunk for chunk in here if _is_faster_by_zarr(chunk))
                leave_to_zarr(faster, LeftToZarr("most of a large chunk is read to a GPU"))
                here = [chunk for chunk in here if chunk.outcome is PENDING]
            waiting.update(here)
            await staging.transfer_in_groups(here, self.array, read_group)


def _is_faster_by_zarr(chunk: ChunkRead) -> bool:
    """Whether zarr reads a chunk faster to a GPU: most of one that fits into no buffer.

    This package took up to 1.2 times as long. zarr can't read every chunk of Zarr v2 to a GPU, nor
    every shard, nor what is behind codecs that convert elements.
    """
    layout, size = chunk.layout, size_of(chunk.out_selection)
    if not isinstance(layout, Layout) or layout.element_codecs is not None:
        return False
    is_large = size * layout.dtype.itemsize > buffers.BUFFER_BYTES
    return is_large and 2 * size > math.prod(layout.shape)
