"""Reads parts of uncompressed chunks, and lets zarr read the rest.

Every read takes four steps, `BatchRead.read` for what zarr requests, and `SyncReader` in its
caller's thread:

1. **Locate**: where is a chunk, in a file or an object; or does zarr read it, and why?
   (`_pipeline.array_access`, `_sources.stores`)
2. **Plan**: which byte ranges of it are read? (`_plan`; `_read.object_plans` for objects)
3. **Fetch**: read files in threads (`_read.local`), and request objects (`_read.remote`), while
   zarr reads its chunks.
4. **Scatter**: swap, convert and copy bytes to the output, or fill it. (`_read.output`)

At last, zarr reads what could not be read here.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import NDBuffer, gpu
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._pipeline.array_access import ArrayAccess, ArrayAccessMixin, ChunkLocations
from numcodecs_bytes._pipeline.batch_bugs import BatchBugs
from numcodecs_bytes._pipeline.explain import LengthCheck, length_check
from numcodecs_bytes._plan.outcome import LeftToZarr, leave_to_zarr
from numcodecs_bytes._read import local
from numcodecs_bytes._read.chunk_read import ChunkRead, chunk_reads
from numcodecs_bytes._read.output import Output, check_output
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.stores import is_in_shard
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest, chunk_requests_of
from numcodecs_bytes._zarr_api.names import name_of_class
from numcodecs_bytes._zarr_api.versions import HAS_RESULTS

if TYPE_CHECKING:
    from numcodecs_bytes._gpu.output import GPUOutput

ReadByZarr = Callable[[Sequence[ChunkRequest], NDBuffer, tuple[int, ...]], Awaitable[Any]]


class PartialReadMixin(ArrayAccessMixin):
    """Mixin for one of zarr's pipelines: reads parts of uncompressed chunks."""

    reads_partially = True

    async def read(
        self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        length_check.set(LengthCheck())
        requests, access = chunk_requests_of(batch_info), self.access
        by_zarr, bugs = self._read_by_zarr, BatchBugs(access)
        return await BatchRead(access, requests, out, drop_axes, by_zarr, bugs).read()

    async def _read_by_zarr(
        self, requests: Sequence[ChunkRequest], out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Any:
        """Let zarr read chunks; the fused pipeline explains errors here."""
        pipeline: Any = super()
        return await pipeline.read(requests, out, drop_axes)


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
                own_bugs.log_all(self.bugs.errors)
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
                await self.let_zarr_read(rest)
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
        from numcodecs_bytes._gpu import output as of_gpu  # only if it is needed

        if not access.is_v2:  # zarr can't read all of them
            of_gpu.leave_what_is_faster(self.chunks)
        return of_gpu.GPUOutput(array, on_host, self.bugs.record)

    async def _fetch(self, chunks: Sequence[ChunkRead], out: Output) -> None:
        """Plan, fetch and scatter chunks into an output in host memory; leave the rest to zarr."""
        files = [chunk for chunk in chunks if isinstance(chunk.extent, FileExtent)]
        if len(files) == len(chunks):  # most often
            await self.read_files(files, out)
            return
        from numcodecs_bytes._pipeline.mixed_reads import read_mixed  # only if it is needed

        await read_mixed(self, chunks, files, out)

    async def read_files(self, chunks: Sequence[ChunkRead], out: Output) -> None:
        """Read chunks in local files into the output."""
        if chunks:
            with self.bugs.catch(chunks):
                await local.read(chunks, out, self.max_gap, self.access.num_threads)

    async def let_zarr_read(self, chunks: Sequence[ChunkRead], limit: int | None = None) -> None:
        """Let zarr read chunks, all together, or `limit` at a time; record their outcomes."""

        async def read(*some: ChunkRead) -> None:
            requests = [chunk.request for chunk in some]
            results = await self.read_by_zarr(requests, self.zarr_output, self.drop_axes)
            # zarr 3.1.6 returns nothing.
            exist = [each["status"] == "present" for each in results or ()] or [True] * len(some)
            for chunk, exists in zip(some, exist, strict=True):
                chunk.record_read_by_zarr(exists=exists)

        if limit is not None:
            await concurrent_map([(chunk,) for chunk in chunks], read, limit)
        elif chunks:
            await read(*chunks)
