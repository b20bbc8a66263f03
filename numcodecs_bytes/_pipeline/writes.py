"""Writes uncompressed chunks: many whole ones together, and parts of them in place."""

from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.storage import LocalStore

from numcodecs_bytes._host import trace
from numcodecs_bytes._host.names import add_name
from numcodecs_bytes._host.options import write_in_place
from numcodecs_bytes._pipeline.array_layouts import check_readable
from numcodecs_bytes._pipeline.known_arrays import KnowsLayouts
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._read import unexpected
from numcodecs_bytes._read.chunks import ZarrItem, first_of, has_whole_chunks
from numcodecs_bytes._sources.stores import is_in_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numcodecs_bytes._write.chunks import ChunkWrite
    from numcodecs_bytes._write.in_place import Writes


class WritesParts(KnowsLayouts):
    """Mixin for one of zarr's pipelines: writes whole uncompressed chunks, and parts in place."""

    async def write(
        self, batch_info: "Iterable[Any]", value: Any, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write to the selections of chunks from `value`, like zarr's pipeline.

        Raises RuntimeError if `numcodecs_bytes.write_in_place` is "require", and part of a chunk
        can't be written in place. Other chunks may have been written by then. Raises ValueError,
        before anything is written, if chunks could not be read back.
        """
        items = list(batch_info)
        if items:
            codec: Any = self.array_bytes_codec  # type: ignore[attr-defined]
            check_readable(codec, first_of(items)[1])
        try:
            await self._write(items, value, drop_axes)
        except Exception as error:
            if items:
                add_name(error, first_of(items)[0], "writing", len(items))
            raise

    async def _write(
        self, items: "Sequence[ZarrItem]", value: Any, drop_axes: tuple[int, ...]
    ) -> None:
        """Write whole chunks together, and parts in place if that is asked for; zarr the rest."""
        pipeline: Any = super()
        mode = write_in_place()
        writes, value = await self._plan_writes(items, value, mode=mode)
        if writes is None:
            await pipeline.write(items, value, drop_axes)
            return
        whole, in_place, left = writes
        chunks = [*whole, *in_place, *left]
        try:
            if whole:
                left += await self._write_whole(whole, value, drop_axes)
            if in_place:
                must = mode == "require"
                left += await self._write_in_place(in_place, value, drop_axes, is_required=must)
            if left:
                await pipeline.write([chunk.item for chunk in left], value, drop_axes)
        finally:
            if trace.active:
                for chunk in chunks:
                    if mode or not chunk.is_complete:
                        chunk.trace(is_v2=self._is_v2())

    async def _plan_writes(
        self, items: "Sequence[ZarrItem]", value: Any, *, mode: bool | str
    ) -> "tuple[Writes | None, Any]":
        """Return how chunks are written, and the values, copied if that could change them.

        Returns None if zarr writes all of them, or if this package itself fails.
        """
        if not items or not (mode or trace.active or self._may_write_whole(items)):
            return None, value
        if is_in_shard(first_of(items)[0]):
            return None, value
        from numcodecs_bytes._write.in_place import check_required, plan_writes, with_own_memory
        from numcodecs_bytes._write.write_file import ValuesError

        try:
            writes = plan_writes(items, self._layouts.of, value, may_write_parts=bool(mode))
            if writes and mode == "require":
                check_required(writes.left)
            if writes and writes.in_place:
                own = await with_own_memory(value.as_ndarray_like())
                value = type(value).from_ndarray_like(own)
        except ValuesError as why:
            if mode == "require":
                raise why.error from None
            return None, value
        except Exception as error:
            if mode == "require" or not unexpected.is_unexpected(error):
                raise
            unexpected.log(error)
            return None, value
        return writes, value

    def _may_write_whole(self, items: "Sequence[ZarrItem]") -> bool:
        """Whether chunks may be written whole here: a quick test, without imports."""
        setter, spec = first_of(items)
        if type(getattr(setter, "store", None)) is not LocalStore or not has_whole_chunks(items):
            return False
        try:
            self._layouts.of(spec)
        except LeftToZarr:
            return False
        return True

    async def _write_whole(
        self, chunks: "Sequence[ChunkWrite]", value: Any, drop_axes: tuple[int, ...]
    ) -> "list[ChunkWrite]":
        """Write chunks that are selected as a whole; return what is left to zarr."""
        from numcodecs_bytes._write.whole import Values, write_whole

        values = Values(np.asarray(value.as_ndarray_like()), drop_axes)
        return await write_whole(chunks, values, self._num_threads())

    async def _write_in_place(
        self,
        chunks: "Sequence[ChunkWrite]",
        value: Any,
        drop_axes: tuple[int, ...],
        *,
        is_required: bool,
    ) -> "list[ChunkWrite]":
        """Write to parts of chunks in place; return what is left to zarr, if that is allowed."""
        from numcodecs_bytes._write.in_place import check_required, write_parts

        values, num_threads = value.as_ndarray_like(), self._num_threads()
        left = await write_parts(chunks, values, drop_axes, num_threads, is_required=is_required)
        if is_required:
            check_required(left)
        return left
