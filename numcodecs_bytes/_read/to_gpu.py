"""Which chunks are read to a GPU here, in groups, through host memory."""

import math

from numcodecs_bytes._host import gpu
from numcodecs_bytes._plan.groups import Group
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._plan.places import size_of
from numcodecs_bytes._read.chunks import Batch, ChunkRead
from numcodecs_bytes._sources.through_host import groups_in_buffers


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
