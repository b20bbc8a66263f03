"""The reading half of a pipeline: what zarr calls, and what becomes of errors."""

from collections.abc import Iterable, Sequence
from typing import Any

from zarr.core.buffer import NDBuffer

from numcodecs_bytes._pipeline.array_access import ArrayAccessMixin
from numcodecs_bytes._pipeline.batch_bugs import BatchBugs
from numcodecs_bytes._pipeline.batch_read import BatchRead
from numcodecs_bytes._pipeline.explain import LengthCheck, length_check
from numcodecs_bytes._runtime import own_bugs
from numcodecs_bytes._zarr_api.batch_items import chunk_requests_of


class PartialReadMixin(ArrayAccessMixin):
    """Mixin for one of zarr's pipelines: reads parts of uncompressed chunks."""

    reads_partially = True

    async def read(
        self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        length_check.set(LengthCheck())
        batch_info, batch = list(batch_info), None
        with own_bugs.catch(own_bugs.log):
            if requests := chunk_requests_of(batch_info):
                access, by_zarr = self.access, self._read_by_zarr
                bugs = BatchBugs(access, stops_reads=True)
                batch = BatchRead(access, requests, out, drop_axes, by_zarr, bugs)
        if batch is None:
            return await self._read_by_zarr(batch_info, out, drop_axes)
        return await batch.read()

    async def _read_by_zarr(
        self, requests: Sequence[Any], out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> Any:
        """Let zarr read chunks; the fused pipeline explains errors here."""
        pipeline: Any = super()
        return await pipeline.read(requests, out, drop_axes)
