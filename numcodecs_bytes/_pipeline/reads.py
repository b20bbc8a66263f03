"""Reads parts of uncompressed chunks, and lets zarr read the rest: plan, run, rest.

The plan says what is read here, from which file or object, to which place, and what zarr reads, and
why. Files are then read in threads and objects requested on the event loop, while zarr reads its
chunks. How many requests an object may use depends on how many are requested at that time. At last,
zarr reads what could not be read here.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from zarr.core.buffer import NDBuffer, gpu
from zarr.core.common import concurrent_map

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._pipeline.array_layouts import LayoutMixin
from numcodecs_bytes._pipeline.chunk_finder import ChunkFinder, finder_of
from numcodecs_bytes._pipeline.explain import length_check
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._read import local
from numcodecs_bytes._read.chunk_read import ChunkRead, ReadSettings, chunk_reads
from numcodecs_bytes._read.output import Output, check_output
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.stores import ObjectExtent, is_in_shard
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest, chunk_requests_of
from numcodecs_bytes._zarr_api.names import name_of_class, path_of_array
from numcodecs_bytes._zarr_api.versions import HAS_RESULTS, concurrency

if TYPE_CHECKING:
    from numcodecs_bytes._gpu.output import GPUOutput
    from numcodecs_bytes._read.object_plans import ObjectRead


class _BatchPlan(NamedTuple):
    """What is read of a batch: each chunk knows where it is, or that zarr reads it."""

    settings: ReadSettings
    chunks: Sequence[ChunkRead]
    output: "Output | GPUOutput"  # of what is read here
    zarr_output: NDBuffer  # the same, as zarr takes it
    drop_axes: tuple[int, ...]
    bugs: list[Exception]  # of this package, while it reads


class PartialReadMixin(LayoutMixin):
    """Mixin for one of zarr's pipelines: reads parts of uncompressed chunks."""

    reads_partially = True
    _own_bug = ""  # why zarr reads the array from now on
    _finder: ChunkFinder | None = None

    async def read(
        self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        length_check.set([])
        items, finder = chunk_requests_of(batch_info), self._finder
        if items and finder and finder.leaves_all_to_zarr(items) and finder.is_valid(items[0]):
            return await self._read_by_zarr(items, out, drop_axes)
        bugs: list[Exception] = []
        try:
            plan = self._plan(items, out, drop_axes, bugs)
            if plan is None:
                return await self._read_by_zarr(items, out, drop_axes)
            await self._read(plan)
        except Exception as error:
            self._forget_or_mention_bugs(bugs, error)
            raise
        finally:
            if bugs:
                own_bugs.log_all(bugs)
        results = tuple({"status": chunk.outcome.status} for chunk in plan.chunks)
        return results if HAS_RESULTS else None

    async def _read(self, plan: _BatchPlan) -> None:
        """Read what is planned, and let zarr read the rest; tell `trace` what became of each."""
        try:
            if isinstance(plan.output, Output):
                await self._run(plan, plan.chunks, plan.output)
            else:
                await plan.output.read_chunks(plan.chunks, partial(self._run, plan))
            if rest := [chunk for chunk in plan.chunks if chunk.outcome.is_left]:
                await self._let_zarr_read(plan, rest)
        finally:
            if traces.active:
                with own_bugs.catch(own_bugs.log):
                    for chunk in plan.chunks:
                        chunk.trace(has_v2_keys=plan.settings.has_v2_keys)

    def _plan(
        self,
        items: Sequence[ChunkRequest],
        out: NDBuffer,
        drop_axes: tuple[int, ...],
        bugs: list[Exception],
    ) -> _BatchPlan | None:
        """Return what to read; None if zarr has to read all of it."""
        if not items or (self._own_bug and not traces.active):
            return None
        first = items[0]  # all are of one array: at most their shapes differ
        with own_bugs.catch(partial(self._note_own_bug, bugs, ())):
            try:
                finder = self.chunk_finder(first)
                if not finder.leaves_all_to_zarr(items):
                    return self._plan_chunks(items, finder, out, drop_axes, bugs)
            except LeftToZarr as why:
                raise_interrupt(why.__cause__)
                # The read of a shard is counted by itself.
                if traces.active and not is_in_shard(first.byte_getter):
                    self._trace_left(items, why)
        return None

    def _trace_left(self, items: Sequence[ChunkRequest], why: LeftToZarr) -> None:
        counts: traces.Counts = {str(why): len(items)}
        getter, num_axes = items[0].byte_getter, len(items[0].spec.shape)
        traces.note(getter, num_axes, counts, has_v2_keys=self._has_v2_keys(), is_seen=False)

    def chunk_finder(self, first: ChunkRequest) -> ChunkFinder:
        """Return where the chunks of the array are, given one of them.

        Raises `LeftToZarr` if zarr does not ask its store directly, or because of an own bug.
        """
        if self._own_bug:
            raise LeftToZarr("numcodecs_bytes itself failed before")
        finder = self._finder
        if finder is None or not finder.is_valid(first):
            finder = finder_of(first, self._layout_of)
            if finder.may_be_cached:
                vars(self)["_finder"] = finder
        return finder

    def _plan_chunks(
        self,
        items: Sequence[ChunkRequest],
        finder: ChunkFinder,
        out: NDBuffer,
        drop_axes: tuple[int, ...],
        bugs: list[Exception],
    ) -> _BatchPlan:
        spec = items[0].spec
        if type(out) is not spec.prototype.nd_buffer:
            raise LeftToZarr(f"the output is a {name_of_class(out)}")
        array: Any = out.as_ndarray_like()
        is_on_gpu = type(out) is gpu.NDBuffer
        check_output(array, self._layout_of(spec).dtype, is_on_gpu=is_on_gpu)
        chunks = chunk_reads(items, self._layout_of, finder.source_of)
        if finder.source_of is None:
            leave(chunks, finder.why_by_zarr)
        keys = self._has_v2_keys()
        settings = ReadSettings(self._is_v2(), keys, self._num_threads(), finder.max_gap)
        on_host = Output.of_caller(array, drop_axes)
        output: Output | GPUOutput = on_host
        if is_on_gpu:
            from numcodecs_bytes._gpu import output as of_gpu  # only if it is needed

            if not settings.is_v2:  # zarr can't read all of them
                of_gpu.leave_what_is_faster(chunks)
            output = of_gpu.GPUOutput(array, on_host, partial(self._note_own_bug, bugs))
        return _BatchPlan(settings, chunks, output, out, drop_axes, bugs)

    async def _run(self, plan: _BatchPlan, chunks: Sequence[ChunkRead], out: Output) -> None:
        """Read chunks of files and objects into an output in host memory, while zarr reads others.

        What can't be read is left to zarr.
        """
        files = [chunk for chunk in chunks if isinstance(chunk.source, FileExtent)]
        if len(files) == len(chunks):  # most often
            await self._read_files(plan, files, out)
            return
        requested = [chunk for chunk in chunks if isinstance(chunk.source, ObjectExtent)]
        if not requested:
            others = [chunk for chunk in chunks if chunk.source is None]
            await together(
                partial(self._let_zarr_read, plan, others),
                partial(self._read_files, plan, files, out),
            )
            return
        from numcodecs_bytes._read.object_plans import share_requests  # only if it is needed

        run_requested = partial(self._run_requested, plan, chunks, requested, out)
        await share_requests(len(requested), run_requested)

    async def _run_requested(
        self,
        plan: _BatchPlan,
        chunks: Sequence[ChunkRead],
        requested: Sequence[ChunkRead],
        out: Output,
        num_in_flight: int,
    ) -> None:
        """Read chunks of which some are requested; the event loop requests so many by then."""
        objects = self._plan_objects(plan, requested, num_in_flight)
        files = [chunk for chunk in chunks if isinstance(chunk.source, FileExtent)]
        others = [chunk for chunk in chunks if chunk.source is None]
        limit, limit_of_zarr = concurrency(), None
        if others and objects and limit:  # as many requests at once as by zarr alone
            limit_of_zarr = max(limit * len(others) // len(chunks), 1)
            limit = max(limit - limit_of_zarr, 1)
        await together(
            partial(self._let_zarr_read, plan, others, limit_of_zarr),
            partial(self._read_files, plan, files, out),
            partial(self._read_objects, plan, objects, out, limit),
        )

    async def _read_files(self, plan: _BatchPlan, chunks: Sequence[ChunkRead], out: Output) -> None:
        if chunks:
            with own_bugs.catch(partial(self._note_own_bug, plan.bugs, chunks)):
                await local.read(plan.settings, chunks, out)

    def _plan_objects(
        self, plan: _BatchPlan, requested: Sequence[ChunkRead], num_in_flight: int
    ) -> Sequence["ObjectRead"]:
        """Return what is requested of objects; see `object_plans`."""
        from numcodecs_bytes._read.object_plans import object_plans  # only if it is needed

        with own_bugs.catch(partial(self._note_own_bug, plan.bugs, requested)):
            return object_plans(requested, num_in_flight, plan.settings.max_gap, plan.drop_axes)
        return ()

    async def _read_objects(
        self, plan: _BatchPlan, objects: Sequence["ObjectRead"], out: Output, limit: int | None
    ) -> None:
        if objects:
            from numcodecs_bytes._read import remote  # only if it is needed

            note_own_bug = partial(self._note_own_bug, plan.bugs)
            callbacks = remote.ZarrCallbacks(partial(self._let_zarr_read, plan), note_own_bug)
            item, has_v2_keys = plan.chunks[0].item, plan.settings.has_v2_keys
            path = path_of_array(
                item.byte_getter.path, len(item.spec.shape), has_v2_keys=has_v2_keys
            )
            name = ".zarray" if plan.settings.is_v2 else "zarr.json"
            await remote.read(objects, out, limit, callbacks, f"{path}/{name}".lstrip("/"))

    async def _let_zarr_read(
        self, plan: _BatchPlan, chunks: Sequence[ChunkRead], limit: int | None = None
    ) -> None:
        """Let zarr read chunks, all together, or `limit` at a time; note what became of each."""

        async def read(*some: ChunkRead) -> None:
            items = [chunk.item for chunk in some]
            results = await self._read_by_zarr(items, plan.zarr_output, plan.drop_axes)
            # zarr 3.1.6 returns nothing.
            exist = [each["status"] == "present" for each in results or ()] or [True] * len(some)
            for chunk, exists in zip(some, exist, strict=True):
                chunk.note_read_by_zarr(exists=exists)

        if limit is not None:
            await concurrent_map([(chunk,) for chunk in chunks], read, limit)
        elif chunks:
            await read(*chunks)

    async def _read_by_zarr(
        self, items: Sequence[ChunkRequest], out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Any:
        """Let zarr read chunks; the fused pipeline explains errors here."""
        pipeline: Any = super()
        return await pipeline.read(items, out, drop_axes)

    def _note_own_bug(
        self, bugs: list[Exception], chunks: Sequence[ChunkRead], error: Exception
    ) -> None:
        """Leave chunks to zarr, and the array from now on, because of an own bug."""
        bugs.append(error)
        vars(self)["_own_bug"] = _text_of(error)
        leave(chunks, LeftToZarr("numcodecs_bytes itself failed"))

    def _forget_or_mention_bugs(self, bugs: list[Exception], error: Exception) -> None:
        """Forget own bugs if zarr fails just so; else name them in its error."""
        if own_bugs.forget_alike(bugs, error):
            vars(self).pop("_own_bug", None)
        if bugs:  # of another kind
            vars(self)["_own_bug"] = _text_of(bugs[-1])
        if self._own_bug:
            with contextlib.suppress(AttributeError, TypeError):  # some errors are immutable
                error.add_note(f"before, numcodecs_bytes itself had failed: {self._own_bug}")


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


async def together(*functions: Callable[[], Awaitable[None]]) -> None:
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
