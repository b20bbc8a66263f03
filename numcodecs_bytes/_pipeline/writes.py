"""Writes uncompressed chunks: many whole ones together, and parts of them in place."""

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import NDBuffer, gpu
from zarr.storage import LocalStore

from numcodecs_bytes._pipeline.array_access import ArrayAccess, ArrayAccessMixin
from numcodecs_bytes._pipeline.array_layouts import check_readable
from numcodecs_bytes._pipeline.batch_bugs import BatchBugs
from numcodecs_bytes._pipeline.explain import LengthCheck, length_check
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.stores import is_in_shard
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest, chunk_requests_of
from numcodecs_bytes._zarr_api.names import add_name
from numcodecs_bytes._zarr_api.options import OptionError, WriteMode, write_in_place

if TYPE_CHECKING:
    from numcodecs_bytes._write.batch import PlannedWrites

WriteByZarr = Callable[[Sequence[ChunkRequest], NDBuffer, tuple[int, ...]], Awaitable[None]]


class PartialWriteMixin(ArrayAccessMixin):
    """Mixin for one of zarr's pipelines: writes whole uncompressed chunks, and parts in place."""

    async def write(
        self, batch_info: Iterable[Any], value: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write to the selections of chunks from `value`, like zarr's pipeline.

        Raises RuntimeError if `numcodecs_bytes.write_in_place` is "require", and part of a chunk
        can't be written in place; other chunks may have been written by then. Or if it was that
        where the array was pickled, and is not set where parts are written. Raises ValueError,
        before anything is written, if chunks could not be read back.
        """
        length_check.set(LengthCheck())
        requests = chunk_requests_of(batch_info)
        access, by_zarr = self.access, self._write_by_zarr
        bugs = BatchBugs(access, stops_reads=False)
        batch = BatchWrite(access, requests, value, drop_axes, by_zarr, bugs)
        try:
            mode = write_in_place()
            if self._was_required and not all(request.is_complete for request in requests):
                self._check_required_is_set()
            await batch.write(mode)
        except Exception as error:  # of any class: it gets a note, and is raised again
            bugs.forget_or_mention(error)
            is_of_chunk = requests and not isinstance(error, OptionError)
            if is_of_chunk and not is_in_shard(requests[0].byte_getter):  # the shard will be named
                add_name(error, requests[0].byte_getter, "writing", len(requests))
            raise
        finally:
            own_bugs.log_all(bugs.errors)

    async def _write_by_zarr(
        self, requests: Sequence[ChunkRequest], value: NDBuffer, drop_axes: tuple[int, ...]
    ) -> None:
        """Let zarr write chunks; the fused pipeline explains errors here."""
        pipeline: Any = super()
        await pipeline.write(requests, value, drop_axes)


@dataclass(slots=True, eq=False)
class BatchWrite:
    """A batch that is written: what zarr passed, what is written to each chunk, and own bugs."""

    access: ArrayAccess
    requests: Sequence[ChunkRequest]  # of one array, whose chunks may differ in shape
    value: NDBuffer
    drop_axes: tuple[int, ...]
    write_by_zarr: WriteByZarr
    bugs: BatchBugs
    planned: "PlannedWrites | None" = None  # None: zarr writes all

    async def write(self, mode: WriteMode) -> None:
        """Write whole chunks together, and parts in place if that is asked for; zarr the rest.

        `mode` is the option ``write_in_place``.
        """
        try:
            try:
                await self._write_here(mode)
            except Exception as error:
                # Elements that may have been written must not be written again.
                left = self.planned.left if self.planned is not None else []
                has_begun = any(chunk.is_changed for chunk in left)
                if mode == "require" or has_begun or not own_bugs.is_own_bug(error):
                    raise
                self.bugs.record((), error)
            if self.planned is None:
                await self.write_by_zarr(self.requests, self.value, self.drop_axes)
            elif requests := [chunk.request for chunk in self.planned.left]:
                await self.write_by_zarr(requests, self.planned.values.buffer, self.drop_axes)
        finally:
            if traces.active and self.planned is not None:
                with own_bugs.catch(own_bugs.log):
                    first = self.requests[0]
                    name = self.access.name_of_array(first.byte_getter, first.spec)
                    # Of whole chunks, there is only something to say if the option is on.
                    parts = [c for c in self.planned.chunks if mode or not c.request.is_complete]
                    traces.record_array(name, *[chunk.counts() for chunk in parts])

    async def _write_here(self, mode: WriteMode) -> None:
        """Plan how chunks are written, and write those that are not left to zarr.

        While a trace is open, there is always a plan, which says why parts are not written in
        place. It changes nothing else: zarr writes them.
        """
        if not self.requests:
            return
        first, needs_plan = self.requests[0], mode or traces.active
        check_readable(self.access.codec, first.spec)
        if is_in_shard(first.byte_getter) or not (needs_plan or self._may_write_whole()):
            return
        from numcodecs_bytes._write.batch import Values, plan_writes  # only if it is needed

        values = Values(self.value)
        if type(self.value) is gpu.NDBuffer:
            from numcodecs_bytes._gpu.values import GPUValues

            values = GPUValues(self.value)
        layout_of, num_threads = self.access.layout_of, self.access.num_threads
        self.planned = await plan_writes(self.requests, layout_of, values, mode=mode)
        await self.planned.write(self.drop_axes, num_threads, is_required=mode == "require")

    def _may_write_whole(self) -> bool:
        """Whether chunks may be written whole here: a quick test, without imports."""
        first = self.requests[0]
        is_local = type(getattr(first.byte_getter, "store", None)) is LocalStore
        if is_local and any(request.is_complete for request in self.requests):
            with contextlib.suppress(LeftToZarr):
                self.access.layout_of(first.spec)
                return True
        return False
