"""The pipelines of `zarr_pipeline`, for the versions of zarr that this package was tested with."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.registry
from zarr.codecs._v2 import V2Codec
from zarr.core.buffer import cpu
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.common import concurrent_map
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._host import trace
from numcodecs_bytes._host.defaults import make_default
from numcodecs_bytes._host.names import add_name
from numcodecs_bytes._host.options import (
    max_gap_bytes,
    warn_of_other_pipeline,
    warn_of_unknown_keys,
    write_in_place,
)
from numcodecs_bytes._host.pickling import PickledAsConfigured
from numcodecs_bytes._host.zarr_versions import (
    HAS_RESULTS,
    FusedCodecPipeline,
    check_class,
    concurrency,
)
from numcodecs_bytes._pipeline.array_layouts import ArrayLayouts, check_readable
from numcodecs_bytes._pipeline.explain import begin_read, explain
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._read import local, unexpected
from numcodecs_bytes._read.chunks import (
    Batch,
    ChunkRead,
    Failure,
    ZarrItem,
    chunk_reads,
    first_of,
    has_whole_chunks,
)
from numcodecs_bytes._read.output import Output, check_output
from numcodecs_bytes._sources.files import File
from numcodecs_bytes._sources.stores import Remote, is_in_shard, name_of_class, sources_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from numcodecs_bytes._read.remote import ObjectRead
    from numcodecs_bytes._write.chunks import ChunkWrite
    from numcodecs_bytes._write.in_place import Writes

# The module whose attributes these classes are, as users set `codec_pipeline.path` to them.
_MODULE = "numcodecs_bytes.zarr_pipeline"


def _in_flight(num_chunks: int) -> "AbstractAsyncContextManager[int]":
    """Return a context in which so many chunks are requested; see `remote_object.InFlight`."""
    if not num_chunks:
        return contextlib.nullcontext(0)
    from numcodecs_bytes._read.remote_object import InFlight  # only if it is needed

    return InFlight(num_chunks)


def _note_own_failure(error: Exception, failure: Failure | None) -> None:
    """Note in an error of zarr that this package itself had failed before."""
    if failure and not failure.chunk:
        kind = type(failure.error).__name__
        with contextlib.suppress(Exception):  # some errors are immutable
            error.add_note(f"before, numcodecs_bytes itself had failed: {kind}: {failure.error}")


class _Once:
    """Like functools.cached_property, but no lock, which on Python 3.11 a child may find taken."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._make(instance))


class ReadsParts(PickledAsConfigured):
    """Mixin for one of zarr's pipelines: reads and writes parts of uncompressed chunks."""

    reads_parts = True
    _threads_setting: str  # zarr's setting for the number of threads
    _has_failed = False

    @classmethod
    def from_codecs(cls, codecs: "Iterable[Any]", **settings: Any) -> Any:
        """Return a pipeline of the codecs, like zarr's."""
        warn_of_unknown_keys()
        warn_of_other_pipeline("used")
        pipeline: Any = super()
        return pipeline.from_codecs(codecs, **settings)

    @_Once
    def _layouts(self) -> ArrayLayouts:
        return ArrayLayouts(self)

    async def read(
        self, batch_info: "Iterable[ZarrItem]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        items, failure = list(batch_info), None
        try:
            batch = self._batch(items, out, drop_axes)
        except LeftToZarr as why:
            if items and trace.active and not is_in_shard(first_of(items)[0]):
                getter, spec = first_of(items)  # in a shard: the shard is noted
                counts: trace.Counts = {str(why): len(items)}
                num_axes, is_v2 = len(spec.shape), self._is_v2()
                trace.note(getter, num_axes, counts, is_v2=is_v2, is_seen=False)
        except Exception as error:
            failure = self._note_failure(error)
            if failure is None:
                raise
        else:
            return await self._read(batch, out)
        try:
            return await self._read_by_zarr(items, out, drop_axes)
        except Exception as error:
            _note_own_failure(error, failure)
            raise

    def _note_failure(self, error: Exception) -> Failure | None:
        """Leave the array to zarr from now on; return None if the error must be raised."""
        if not unexpected.is_unexpected(error):
            return None
        unexpected.log(error)
        vars(self)["_has_failed"] = True
        return Failure(error.with_traceback(None))  # whose frames refer to the output

    def _batch(self, items: "Sequence[ZarrItem]", out: Any, drop_axes: tuple[int, ...]) -> Batch:
        """Return what to read; raise `LeftToZarr` if zarr has to read all of it."""
        if not items:
            raise LeftToZarr("nothing is selected")
        if self._has_failed:
            raise LeftToZarr("numcodecs_bytes itself failed before")
        getter, spec = first_of(items)  # all are of one array: at most their shapes differ
        layout = self._layouts.of(spec)
        if type(getter) is not StorePath:
            raise LeftToZarr(f"{name_of_class(getter)} is not a StorePath")
        source_of, why_left = None, None
        try:
            source_of = sources_of(getter.store)
        except LeftToZarr as why:
            if not trace.active:  # else what zarr fetches is counted for each chunk
                raise
            why_left = why
        if type(out) is not cpu.NDBuffer:
            raise LeftToZarr(f"the output is a {name_of_class(out)}")
        array: Any = out.as_ndarray_like()
        check_output(array, layout.dtype)
        chunks = chunk_reads(items, self._layouts.of, source_of)
        if why_left:
            leave(chunks, why_left)
        output = Output(array, drop_axes, lambda: True, threading.Lock())
        return Batch(chunks, output, self._is_v2(), self._num_threads(), max_gap_bytes())

    async def _read(self, batch: Batch, out: Any) -> Any:
        """Read in part what can be, while zarr reads the rest; then let zarr read what failed."""
        requested = [chunk for chunk in batch.chunks if isinstance(chunk.source, Remote)]
        failure = None
        try:
            async with _in_flight(len(requested)) as num_in_flight:
                reads, failure = self._plan_requests(batch, requested, num_in_flight)
                failure = await self._read_both(batch, out, reads) or failure
            if failed := [chunk for chunk in batch.chunks if chunk.outcome.is_left]:
                await self._read_left(batch, out, failed)
            if failure and failure.chunk:
                from numcodecs_bytes._read import remote

                await remote.confirm(failure.error, failure.chunk)
        except Exception as error:
            _note_own_failure(error, failure)
            raise
        finally:
            if trace.active:
                for chunk in batch.chunks:
                    chunk.trace(batch)
        results = tuple({"status": chunk.outcome.status} for chunk in batch.chunks)
        return results if HAS_RESULTS else None

    def _plan_requests(
        self, batch: Batch, chunks: "Sequence[ChunkRead]", num_in_flight: int
    ) -> "tuple[Sequence[ObjectRead], Failure | None]":
        """Return what to request of chunks, and why zarr reads all of them if this fails."""
        if not chunks:
            return (), None
        from numcodecs_bytes._read import remote  # only if it is needed

        try:
            return remote.plan(batch, chunks, num_in_flight), None
        except Exception as error:
            failure = self._note_failure(error)
            if failure is None:
                raise
            return (), failure

    async def _read_both(
        self, batch: Batch, out: Any, reads: "Sequence[ObjectRead]"
    ) -> Failure | None:
        """Read what can be read in part and, at the same time, let zarr read the rest.

        Returns why some of the former are left to zarr, too, if a store or this package failed.
        """
        files = [chunk for chunk in batch.chunks if isinstance(chunk.source, File)]
        in_part = {id(chunk) for chunk in files}
        in_part.update(id(chunk) for each in reads for chunk in each.chunks)
        left = [chunk for chunk in batch.chunks if id(chunk) not in in_part]
        limit, num_by_zarr = concurrency(), None
        if not left:
            return await self._read_parts(batch, files, reads, limit)
        if not in_part or limit == 1:
            failure = await self._read_parts(batch, files, reads, limit)
            await self._read_left(batch, out, left)
            return failure
        if reads and limit:  # they share what zarr may request at once
            num_by_zarr = max(limit * len(left) // len(batch.chunks), 1)
            limit = max(limit - num_by_zarr, 1)
        # Both have ended before either's error is raised: then this package writes nothing more.
        of_parts, of_zarr = await asyncio.gather(
            self._read_parts(batch, files, reads, limit),
            self._read_left(batch, out, left, num_by_zarr),
            return_exceptions=True,
        )
        try:
            if isinstance(of_zarr, BaseException):
                raise of_zarr
            if isinstance(of_parts, BaseException):
                raise of_parts
            return of_parts
        finally:
            del of_parts, of_zarr  # their frames refer to this one, and to the output

    async def _read_parts(
        self,
        batch: Batch,
        files: "Sequence[ChunkRead]",
        reads: "Sequence[ObjectRead]",
        limit: int | None,
    ) -> Failure | None:
        """Read what can be read in part; return why some of it is left, if that is a failure."""
        try:
            if files:
                await local.read(batch, files)
            if reads:
                from numcodecs_bytes._read import remote  # only if it is needed

                return await remote.read(batch, reads, limit)
        except Exception as error:
            failure = self._note_failure(error)
            if failure is None:
                raise
            chunks = [*files, *[chunk for each in reads for chunk in each.chunks]]
            leave(chunks, LeftToZarr("numcodecs_bytes itself failed"))
            return failure
        return None

    async def _read_by_zarr(self, items: "Sequence[ZarrItem]", out: Any, drop_axes: Any) -> Any:
        """Let zarr read chunks; an error names the chunk."""
        begin_read()
        pipeline: Any = super()
        return await pipeline.read(items, out, drop_axes)

    async def _read_left(
        self, batch: Batch, out: Any, chunks: "Sequence[ChunkRead]", limit: int | None = None
    ) -> None:
        """Let zarr read chunks that are left to it, all together, or `limit` at a time.

        Notes what became of each.
        """

        async def read(*some: "ChunkRead") -> None:
            items = [chunk.item for chunk in some]
            results = await self._read_by_zarr(items, out, batch.out.drop_axes)
            # zarr 3.1.6 returns nothing.
            exist = [each["status"] == "present" for each in results or ()] or [True] * len(some)
            for chunk, exists in zip(some, exist, strict=True):
                chunk.note_read_by_zarr(exists=exists)

        if limit is None:
            await read(*chunks)
        else:
            await concurrent_map([(chunk,) for chunk in chunks], read, limit)

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

    def _num_threads(self) -> int | None:
        """Return zarr's setting for the number of threads, if the user has set it."""
        num = zarr.config.get(self._threads_setting, None)
        return max(num, 1) if isinstance(num, int) else None

    def _is_v2(self) -> bool:
        return type(self.array_bytes_codec) is V2Codec  # type: ignore[attr-defined]


# AnnData, for example, uses a faster pipeline for its own reads if the path contains "Batched".
class BatchedBytesPipeline(ReadsParts, BatchedCodecPipeline):
    """zarr's default pipeline, but it reads only what a selection needs of uncompressed chunks."""

    __module__ = _MODULE
    _threads_setting = "threading.max_workers"

    async def read_batch(
        self, batch_info: "Iterable[Any]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read some of the chunks of a batch, by default one, like zarr's pipeline."""
        items = list(batch_info)
        try:
            return await super().read_batch(items, out, drop_axes)
        except Exception as error:
            await explain(error, items, self._layouts.of, is_v2=self._is_v2())
            raise


_PIPELINES: dict[Any, Any] = {BatchedCodecPipeline: BatchedBytesPipeline}
if FusedCodecPipeline is not None:

    class FusedBytesPipeline(ReadsParts, FusedCodecPipeline):  # type: ignore[misc]
        """zarr's fused pipeline (3.3 and newer) with the reads of `BatchedBytesPipeline`."""

        __module__ = _MODULE
        _threads_setting = "codec_pipeline.max_workers"

        async def _read_by_zarr(self, items: "Sequence[Any]", out: Any, drop_axes: Any) -> Any:
            try:
                return await super()._read_by_zarr(items, out, drop_axes)
            except Exception as error:
                await explain(error, items, self._layouts.of, is_v2=self._is_v2())
                raise

    _PIPELINES[FusedCodecPipeline] = FusedBytesPipeline


def use_by_default() -> None:
    """Make the pipeline that extends zarr's default pipeline the default."""
    needed = ("read", "write", "array_array_codecs", "array_bytes_codec", "bytes_bytes_codecs")
    check_class(BatchedBytesPipeline, (*needed, "read_batch"))
    replaces = {}
    for pipeline, ours in _PIPELINES.items():
        check_class(ours, needed)
        zarr.registry.register_pipeline(ours)
        path = f"{pipeline.__module__}.{pipeline.__name__}"
        replaces[path] = f"{_MODULE}.{ours.__name__}"
    default: str = zarr.config.defaults[0]["codec_pipeline"]["path"]
    if default not in (*replaces, *replaces.values()):
        raise AttributeError(f"zarr's default pipeline is {default}")
    make_default("codec_pipeline", "path", replaces.get(default, default))
