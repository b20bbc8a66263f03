"""Reads parts of uncompressed chunks, and lets zarr read the rest.

Every read takes four steps, `BatchRead.read` for what zarr requests, and `SyncReader` in its
caller's thread:

1. **Locate**: where is a chunk, in a file or an object; or does zarr read it, and why?
   (`_pipeline.array_access`, `_sources.stores`)
2. **Plan**: which byte ranges of it are read? (`_plan`; `_read.object_plans` for objects)
3. **Fetch**: read files in threads (`_read.local`), and request objects (`_read.remote`), while
   zarr reads its chunks.
4. **Scatter**: swap, convert and copy bytes to the output, or fill it. (`_read.output`)

Files are planned once they are open, since their speed decides how. At last, zarr reads what could
not be read here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import NDBuffer, gpu
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._pipeline.array_access import ArrayAccess, ChunkLocations
from numcodecs_bytes._pipeline.batch_bugs import BatchBugs
from numcodecs_bytes._plan.outcome import LeftToZarr, leave_to_zarr
from numcodecs_bytes._read import local
from numcodecs_bytes._read.chunk_read import ChunkRead, chunk_reads
from numcodecs_bytes._read.output import Output, check_output
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.stores import ObjectExtent, is_in_shard
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.names import name_of_class
from numcodecs_bytes._zarr_api.versions import HAS_RESULTS, concurrency

if TYPE_CHECKING:
    from numcodecs_bytes._gpu.output import GPUOutput
    from numcodecs_bytes._read.object_plans import ObjectRead

ReadByZarr = Callable[[Sequence[ChunkRequest], NDBuffer, tuple[int, ...]], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class BatchRead:
    """A batch that is read: what zarr passed, what is read of each chunk, and our own bugs."""

    access: ArrayAccess
    requests: Sequence[ChunkRequest]  # of one array: at most the shapes of their chunks differ
    zarr_output: NDBuffer
    drop_axes: tuple[int, ...]
    read_by_zarr: ReadByZarr
    bugs: BatchBugs
    chunks: Sequence[ChunkRead] = ()
    max_gap: int | None = None  # the largest gap to read, in bytes, if the user has set it

    async def read(self) -> Any:
        """Read the batch; return what zarr's pipeline returns."""
        try:
            output = self._locate()
            if output is None:
                return await self.read_by_zarr(self.requests, self.zarr_output, self.drop_axes)
            await self._read_into(output)
        except Exception as error:
            self.bugs.forget_or_mention(error)
            raise
        finally:
            if self.bugs.errors:
                self.bugs.log()
        results = [{"status": chunk.outcome.status} for chunk in self.chunks]
        return tuple(results) if HAS_RESULTS else None

    async def _read_into(self, output: "Output | GPUOutput") -> None:
        """Read chunks here, and let zarr read the rest; tell `trace` what became of each."""
        try:
            if isinstance(output, Output):
                await self._fetch(self.chunks, output)
            else:  # on a GPU: group by group
                await output.read_chunks(self.chunks, self._fetch)
            if rest := [chunk for chunk in self.chunks if chunk.outcome.is_left]:
                await self._let_zarr_read(rest)
        finally:
            if traces.active:
                with own_bugs.catch(own_bugs.log):
                    for chunk in self.chunks:
                        chunk.report_to_traces(has_v2_keys=self.access.has_v2_keys)

    def _locate(self) -> "Output | GPUOutput | None":
        """Find where the chunks are; return the output, or None if zarr reads all of them."""
        access, requests = self.access, self.requests
        if not requests or (access.own_bug and not traces.active):
            return None
        first = requests[0]
        with self.bugs.catch():
            try:
                locations = access.locate(first.byte_getter, first.spec)
                if not locations.leaves_all_to_zarr(requests):
                    return self._locate_each(locations)
            except LeftToZarr as why:
                raise_interrupt(why.__cause__)
                # The read of a shard is counted by itself.
                if traces.active and not is_in_shard(first.byte_getter):
                    name = access.name_of_array(first.byte_getter, first.spec)
                    traces.record_array(name, {str(why): len(requests)}, is_seen=False)
        return None

    def _locate_each(self, locations: ChunkLocations) -> "Output | GPUOutput":
        """Find where each chunk is; return the output, which is checked before."""
        access, out, spec = self.access, self.zarr_output, self.requests[0].spec
        if type(out) is not spec.prototype.nd_buffer:
            raise LeftToZarr(f"the output is a {name_of_class(out)}")
        array: Any = out.as_ndarray_like()
        is_on_gpu = type(out) is gpu.NDBuffer
        check_output(array, access.layout_of(spec).dtype, is_on_gpu=is_on_gpu)
        self.chunks = chunk_reads(self.requests, access.layout_of, locations.locator)
        self.max_gap = locations.max_gap
        if locations.locator is None:
            leave_to_zarr(self.chunks, locations.why_left)
        on_host = Output.of_caller(array, self.drop_axes)
        if not is_on_gpu:
            return on_host
        from numcodecs_bytes._gpu.output import gpu_output  # only if it is needed

        return gpu_output(array, on_host, self.chunks, self.bugs.record, is_v2=access.is_v2)

    async def _fetch(self, chunks: Sequence[ChunkRead], out: Output) -> None:
        """Plan, fetch and scatter chunks into an output in host memory; zarr reads others."""
        files = [chunk for chunk in chunks if isinstance(chunk.extent, FileExtent)]
        if len(files) == len(chunks):  # most often
            await self._read_files(files, out)
            return
        requested = [chunk for chunk in chunks if isinstance(chunk.extent, ObjectExtent)]
        fetch = partial(self._fetch_mixed, chunks, files, requested, out)
        if not requested:
            await fetch(num_in_flight=0)
            return
        from numcodecs_bytes._read.object_plans import share_requests  # only if it is needed

        await share_requests(len(requested), fetch)

    async def _fetch_mixed(
        self,
        chunks: Sequence[ChunkRead],
        files: Sequence[ChunkRead],
        requested: Sequence[ChunkRead],
        out: Output,
        num_in_flight: int,
    ) -> None:
        """Read files, request objects and let zarr read, all at once.

        The event loop requests `num_in_flight` chunks at once, these and others. There are as many
        requests at once as zarr alone would make.
        """
        objects = self._plan_objects(requested, num_in_flight) if requested else ()
        left = [chunk for chunk in chunks if chunk.extent is None]  # also what is not worth it
        limit, limit_of_zarr = concurrency(), None
        if left and objects and limit:
            limit_of_zarr = max(limit * len(left) // len(chunks), 1)
            limit = max(limit - limit_of_zarr, 1)
        await _together(
            partial(self._let_zarr_read, left, limit_of_zarr),
            partial(self._read_files, files, out),
            partial(self._read_objects, objects, out, limit),
        )

    def _plan_objects(
        self, requested: Sequence[ChunkRead], num_in_flight: int
    ) -> Sequence["ObjectRead"]:
        """Plan what to request; chunks that are not worth it lose their extent: zarr reads them."""
        from numcodecs_bytes._read.object_plans import object_plans  # only if it is needed

        with self.bugs.catch(requested):
            return object_plans(requested, num_in_flight, self.max_gap, self.drop_axes)
        return ()

    async def _read_files(self, chunks: Sequence[ChunkRead], out: Output) -> None:
        """Read chunks in local files into the output."""
        if chunks:
            with self.bugs.catch(chunks):
                await local.read(chunks, out, self.max_gap, self.access.num_threads)

    async def _read_objects(
        self, objects: Sequence["ObjectRead"], out: Output, limit: int | None
    ) -> None:
        """Read objects that are requested into the output, at most `limit` at a time."""
        if objects:
            from numcodecs_bytes._read import remote  # only if it is needed

            metadata_path = partial(self.access.metadata_path, self.requests[0])
            batch = remote.Batch(self._let_zarr_read, self.bugs.catch, metadata_path)
            await remote.read(objects, out, limit, batch)

    async def _let_zarr_read(self, chunks: Sequence[ChunkRead], limit: int | None = None) -> None:
        """Let zarr read chunks, all together, or `limit` at a time; record their outcomes."""

        async def read(*batch: ChunkRead) -> None:
            requests = [chunk.request for chunk in batch]
            results = await self.read_by_zarr(requests, self.zarr_output, self.drop_axes)
            # zarr 3.1.6 returns nothing.
            exist = [each["status"] == "present" for each in results or ()] or [True] * len(batch)
            for chunk, exists in zip(batch, exist, strict=True):
                chunk.record_read_by_zarr(exists=exists)

        if limit is not None:
            await concurrent_map([(chunk,) for chunk in chunks], read, limit)
        elif chunks:
            await read(*chunks)


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
