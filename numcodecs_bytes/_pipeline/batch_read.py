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

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import NDBuffer, gpu
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.catch import await_all
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
    requests: Sequence[ChunkRequest]  # at least one; of one array, whose chunks may differ in shape
    zarr_output: NDBuffer
    drop_axes: tuple[int, ...]
    read_by_zarr: ReadByZarr
    bugs: BatchBugs
    chunks: Sequence[ChunkRead] = ()
    why_not_seen: str = ""  # why zarr reads all chunks, if nothing else is known of them
    max_gap: int | None = None  # the largest gap to read, in bytes, if the user has set it

    async def read(self) -> Any:
        """Read the batch; return what zarr's pipeline returns."""
        first, output = self.requests[0], None
        try:
            with self.bugs.catch():
                try:
                    locations = self.access.locate(first.byte_getter, first.spec)
                    if not locations.leaves_all_to_zarr(self.requests):
                        output = self._make_output()
                        self.max_gap = locations.max_gap
                    if output is not None or traces.active:  # traces count what zarr reads, too
                        self.chunks = self._locate_chunks(locations)
                except LeftToZarr as why:
                    raise_interrupt(why.__cause__)
                    self.why_not_seen = str(why)
            if output is None or not self.chunks:
                return await self._let_zarr_read_all()
            await self._read_into(output)
        except Exception as error:
            self.bugs.forget_or_mention(error)
            raise
        finally:
            if traces.active:
                with own_bugs.catch(own_bugs.log):
                    self._report_to_traces()
            if self.bugs.errors:
                own_bugs.log_all(self.bugs.errors)
        results = [{"status": chunk.outcome.status} for chunk in self.chunks]
        return tuple(results) if HAS_RESULTS else None

    def _make_output(self) -> "Output | GPUOutput":
        """Return the output; raise `LeftToZarr` if it can't be filled part by part."""
        out, spec = self.zarr_output, self.requests[0].spec
        if type(out) is not spec.prototype.nd_buffer:
            raise LeftToZarr(f"the output is a {name_of_class(out)}")
        array: Any = out.as_ndarray_like()
        is_on_gpu = type(out) is gpu.NDBuffer
        check_output(array, self.access.layout_of(spec).dtype, is_on_gpu=is_on_gpu)
        on_host = Output.of_caller(array, self.drop_axes)
        if not is_on_gpu:
            return on_host
        from numcodecs_bytes._gpu.output import GPUOutput  # only if it is needed

        return GPUOutput(array, on_host, self.bugs.record, self.access.is_v2)

    def _locate_chunks(self, locations: ChunkLocations) -> list[ChunkRead]:
        """Return what is read of each chunk, and where it is."""
        chunks = chunk_reads(self.requests, self.access.layout_of, locations.locator)
        if locations.locator is None:
            leave_to_zarr(chunks, locations.why_left)
        return chunks

    async def _let_zarr_read_all(self) -> Any:
        """Let zarr read the batch as it is; return what its pipeline returns."""
        results = await self.read_by_zarr(self.requests, self.zarr_output, self.drop_axes)
        if self.chunks:  # a trace counts them
            _record_read_by_zarr(self.chunks, results)
        return results

    async def _read_into(self, output: "Output | GPUOutput") -> None:
        """Read chunks here, and let zarr read the rest."""
        if isinstance(output, Output):
            await self._read_chunks(self.chunks, output)
        else:  # an output on a GPU is filled group by group
            await output.read_chunks(self.chunks, self._read_chunks)
        if rest := [chunk for chunk in self.chunks if chunk.outcome.is_left]:
            await self._let_zarr_read(rest)

    def _report_to_traces(self) -> None:
        """Tell `numcodecs_bytes.trace` what became of the chunks."""
        byte_getter, spec, *_ = self.requests[0]
        if not is_in_shard(byte_getter):  # the read of a shard is counted by itself
            counts = [chunk.counts() for chunk in self.chunks]
            if self.why_not_seen:
                counts.append({("not_seen", self.why_not_seen): len(self.requests)})
            traces.record_array(self.access.name_of_array(byte_getter, spec), *counts)

    async def _read_chunks(self, chunks: Sequence[ChunkRead], out: Output) -> None:
        """Plan, fetch and scatter chunks to an output in host memory; zarr reads others."""
        files = [chunk for chunk in chunks if isinstance(chunk.extent, FileExtent)]
        if len(files) == len(chunks):  # the most frequent case
            await self._read_files(files, out)
            return
        requested = [chunk for chunk in chunks if isinstance(chunk.extent, ObjectExtent)]
        read = partial(self._read_mixed, chunks, files, requested, out)
        if not requested:
            await read(num_in_flight=0)
            return
        from numcodecs_bytes._read.object_plans import share_requests  # only if it is needed

        await share_requests(len(requested), read)

    async def _read_mixed(
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
        here = {*files, *[chunk for each in objects for chunk in each.chunks]}
        left = [chunk for chunk in chunks if chunk not in here]
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
        """Plan what to request; zarr reads chunks that are not worth it."""
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
            _record_read_by_zarr(batch, results)

        if limit is not None:
            await concurrent_map([(chunk,) for chunk in chunks], read, limit)
        elif chunks:
            await read(*chunks)


def _record_read_by_zarr(chunks: Sequence[ChunkRead], results: Any) -> None:
    """Record what zarr's pipeline returns for chunks that it has read; zarr 3.1.6 returns None."""
    exist = [True] * len(chunks)
    with own_bugs.catch(own_bugs.log):  # zarr has read them
        if results:
            exist = [each["status"] == "present" for each, _ in zip(results, chunks, strict=True)]
    for chunk, exists in zip(chunks, exist, strict=True):
        chunk.record_read_by_zarr(exists=exists)


async def _together(*functions: Callable[[], Awaitable[None]]) -> None:
    """Run functions at the same time, unless zarr makes one request at a time."""
    if concurrency() == 1:
        for function in functions:
            await function()
    else:
        await await_all([function() for function in functions])
