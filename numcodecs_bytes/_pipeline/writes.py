"""Writes uncompressed chunks: many whole ones together, and parts of them in place."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from zarr.core.buffer import NDBuffer
from zarr.storage import LocalStore

from numcodecs_bytes._pipeline.array_layouts import LayoutMixin, check_readable
from numcodecs_bytes._pipeline.explain import length_check
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._sources.stores import is_in_shard
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest, chunk_requests_of
from numcodecs_bytes._zarr_api.names import add_name
from numcodecs_bytes._zarr_api.options import WriteMode, write_in_place

if TYPE_CHECKING:
    from numcodecs_bytes._write.batch import Writes


class PartialWriteMixin(LayoutMixin):
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
        length_check.set([])
        items = chunk_requests_of(batch_info)
        bugs: list[Exception] = []
        try:
            await self._write(items, value, drop_axes, bugs)
        except Exception as error:  # whichever it is: it is only given a note
            own_bugs.forget_alike(bugs, error)
            if items and not is_in_shard(items[0].byte_getter):  # the shard will be named
                add_name(error, items[0].byte_getter, "writing", len(items))
            raise
        finally:
            if bugs:
                own_bugs.log_all(bugs)

    async def _write(
        self,
        items: Sequence[ChunkRequest],
        value: NDBuffer,
        drop_axes: tuple[int, ...],
        bugs: list[Exception],
    ) -> None:
        """Write whole chunks together, and parts in place if that is asked for; zarr the rest."""
        mode, writes = write_in_place(), None
        if self._was_required and not all(item.is_complete for item in items):
            self._check_required_is_set()
        try:
            try:
                writes = await self._plan_writes(items, value, mode=mode)
                if writes is not None:
                    is_required = mode == "require"
                    await writes.write(drop_axes, self._num_threads(), is_required=is_required)
            except Exception as error:
                # An own bug: zarr writes, unless only some elements of a chunk are written.
                is_begun = writes is not None and any(chunk.is_changed for chunk in writes.left)
                if mode == "require" or is_begun or not own_bugs.is_own_bug(error):
                    raise
                bugs.append(error)
            if writes is not None:
                items = [chunk.item for chunk in writes.left]
                value = writes.values.buffer
            if items or writes is None:
                await self._write_by_zarr(items, value, drop_axes)
        finally:
            if traces.active and writes is not None:
                with own_bugs.catch(own_bugs.log):
                    for chunk in writes.chunks:
                        if mode or not chunk.item.is_complete:  # else there is nothing to say
                            chunk.trace(has_v2_keys=self._has_v2_keys())

    async def _write_by_zarr(
        self, items: Sequence[ChunkRequest], value: NDBuffer, drop_axes: tuple[int, ...]
    ) -> None:
        """Let zarr write chunks; the fused pipeline explains errors here."""
        pipeline: Any = super()
        await pipeline.write(items, value, drop_axes)

    async def _plan_writes(
        self, items: Sequence[ChunkRequest], value: NDBuffer, *, mode: WriteMode
    ) -> "Writes | None":
        """Return how chunks are written; None if zarr writes all."""
        if not items:
            return None
        check_readable(self.array_bytes_codec, items[0].spec)
        is_in_parts = mode or traces.active
        if is_in_shard(items[0].byte_getter) or not (is_in_parts or self._may_write_whole(items)):
            return None
        from numcodecs_bytes._write.batch import plan_writes  # only if it is needed

        return await plan_writes(items, self._layout_of, value, mode=mode)

    def _may_write_whole(self, items: Sequence[ChunkRequest]) -> bool:
        """Whether chunks may be written whole here: a quick test, without imports."""
        is_local = type(getattr(items[0].byte_getter, "store", None)) is LocalStore
        if not (is_local and any(item.is_complete for item in items)):
            return False
        with contextlib.suppress(LeftToZarr):
            self._layout_of(items[0].spec)
            return True
        return False
