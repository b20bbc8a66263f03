"""Reads of which not all chunks are in local files: objects are requested, too, or zarr reads some.

All of that happens at the same time. How many requests an object may use depends on how many are
requested at that time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._sources.stores import ObjectExtent
from numcodecs_bytes._zarr_api.versions import concurrency

if TYPE_CHECKING:
    from numcodecs_bytes._pipeline.reads import BatchRead
    from numcodecs_bytes._read.object_plans import ObjectRead


async def read_mixed(
    batch: "BatchRead", chunks: Sequence[ChunkRead], files: Sequence[ChunkRead], out: Output
) -> None:
    """Read chunks of a batch, some of them in files, into an output in host memory."""
    requested = [chunk for chunk in chunks if isinstance(chunk.extent, ObjectExtent)]
    read_files = partial(batch.read_files, files, out)
    if not requested:
        others = [chunk for chunk in chunks if chunk.extent is None]
        await _together(partial(batch.let_zarr_read, others), read_files)
        return
    from numcodecs_bytes._read.object_plans import share_requests  # only if it is needed

    async def read(num_in_flight: int) -> None:
        objects = _plan_objects(batch, requested, num_in_flight)
        others = [chunk for chunk in chunks if chunk.extent is None]  # also what is not worth it
        limit, limit_of_zarr = concurrency(), None
        if others and objects and limit:  # as many requests at once as by zarr alone
            limit_of_zarr = max(limit * len(others) // len(chunks), 1)
            limit = max(limit - limit_of_zarr, 1)
        await _together(
            partial(batch.let_zarr_read, others, limit_of_zarr),
            read_files,
            partial(_read_objects, batch, objects, out, limit),
        )

    await share_requests(len(requested), read)


def _plan_objects(
    batch: "BatchRead", requested: Sequence[ChunkRead], num_in_flight: int
) -> Sequence["ObjectRead"]:
    """Return what is requested of objects; see `object_plans`."""
    from numcodecs_bytes._read.object_plans import object_plans  # only if it is needed

    with batch.bugs.catch(requested):
        return object_plans(requested, num_in_flight, batch.max_gap, batch.drop_axes)
    return ()


async def _read_objects(
    batch: "BatchRead", objects: Sequence["ObjectRead"], out: Output, limit: int | None
) -> None:
    if objects:
        from numcodecs_bytes._read import remote  # only if it is needed

        callbacks = remote.ZarrCallbacks(batch.let_zarr_read, batch.bugs.record)
        metadata_path = partial(batch.access.metadata_path, batch.requests[0])
        await remote.read(objects, out, limit, callbacks, metadata_path)


async def _together(*functions: Callable[[], Awaitable[None]]) -> None:
    """Run functions at the same time, unless zarr makes one request at a time.

    All have ended before the error of one is raised: then this package writes nothing more.
    """
    if concurrency() == 1:
        for function in functions:
            await function()
        return
    results = await asyncio.gather(*[each() for each in functions], return_exceptions=True)
    try:
        for error in results:
            if error is not None:
                raise error
    finally:
        del results  # their frames refer to this one, and to the output
