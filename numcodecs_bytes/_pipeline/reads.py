"""Reads parts of uncompressed chunks, and lets zarr read the rest."""

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from zarr.core.buffer import gpu
from zarr.core.common import concurrent_map

from numcodecs_bytes._host import trace, unexpected
from numcodecs_bytes._host.options import max_gap_bytes
from numcodecs_bytes._host.zarr_versions import HAS_RESULTS, concurrency
from numcodecs_bytes._pipeline.array_layouts import KnowsLayouts
from numcodecs_bytes._pipeline.explain import begin_read
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._read import local
from numcodecs_bytes._read.chunks import (
    Batch,
    ChunkRead,
    Failure,
    ZarrItem,
    chunk_reads,
    first_of,
)
from numcodecs_bytes._read.output import Output, check_elements, check_host_memory
from numcodecs_bytes._sources.files import File
from numcodecs_bytes._sources.stores import Remote, is_in_shard, name_of_class, sources_of, store_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from numcodecs_bytes._core.dtypes import Array
    from numcodecs_bytes._plan.groups import Group
    from numcodecs_bytes._read.object_reads import ObjectRead


def _in_flight(num_chunks: int) -> "AbstractAsyncContextManager[int]":
    """Return a context in which so many chunks are requested; see `object_reads.InFlight`."""
    if not num_chunks:
        return contextlib.nullcontext(0)
    from numcodecs_bytes._read.object_reads import InFlight  # only if it is needed

    return InFlight(num_chunks)


def _note_own_failure(error: Exception, failure: Failure | None) -> None:
    """Note in an error of zarr that this package itself had failed before."""
    if failure and not failure.chunk:
        kind = type(failure.error).__name__
        with contextlib.suppress(Exception):  # some errors are immutable
            error.add_note(f"before, numcodecs_bytes itself had failed: {kind}: {failure.error}")


class _Shares(NamedTuple):
    """Who reads what of a batch: this package files and objects, and zarr the rest."""

    files: "Sequence[ChunkRead]"
    objects: "Sequence[ObjectRead]"
    of_zarr: "Sequence[ChunkRead]"
    limit: int | None  # how many objects are requested at once
    limit_of_zarr: int | None  # how many chunks zarr reads at once; None if it reads them together

    @property
    def in_part(self) -> "list[ChunkRead]":
        """What is read here."""
        return [*self.files, *[chunk for each in self.objects for chunk in each.chunks]]


def _share(batch: Batch, objects: "Sequence[ObjectRead]") -> _Shares:
    """Return who reads what; both together make as many requests at once as zarr alone."""
    files = [chunk for chunk in batch.chunks if isinstance(chunk.source, File)]
    limit = concurrency()
    shares = _Shares(files, objects, (), limit, None)
    in_part = set(map(id, shares.in_part))
    of_zarr = [chunk for chunk in batch.chunks if id(chunk) not in in_part]
    if not (of_zarr and objects and limit):
        return shares._replace(of_zarr=of_zarr)
    num_of_zarr = max(limit * len(of_zarr) // len(batch.chunks), 1)
    return _Shares(files, objects, of_zarr, max(limit - num_of_zarr, 1), num_of_zarr)


class ReadsParts(KnowsLayouts):
    """Mixin for one of zarr's pipelines: reads parts of uncompressed chunks."""

    reads_parts = True
    _has_failed = False

    @unexpected.logged_after_zarr
    async def read(
        self, batch_info: "Iterable[ZarrItem]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        items, failure = list(batch_info), None
        try:
            batch = self._batch(items, out, drop_axes)
            groups = None
            if type(out) is gpu.NDBuffer:
                from numcodecs_bytes._read import through_host  # only if it is needed

                groups = through_host.groups_to_read(batch)
        except LeftToZarr as why:
            if items and trace.active and not is_in_shard(first_of(items)[0]):
                getter, spec = first_of(items)  # in a shard: the shard is noted
                counts: trace.Counts = {str(why): len(items)}
                num_axes, is_v2 = len(spec.shape), self._is_v2()
                trace.note(getter, num_axes, counts, is_v2=is_v2, is_seen=False)
        except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
            failure = self._leave_array(error)
        else:
            if groups is None:
                await self._read(batch, out)
            else:
                await self._read_on_gpu(batch, out, groups)
            results = tuple({"status": chunk.outcome.status} for chunk in batch.chunks)
            return results if HAS_RESULTS else None
        try:
            return await self._read_by_zarr(items, out, drop_axes)
        except Exception as error:
            _note_own_failure(error, failure)
            raise

    def _leave_array(self, error: Exception) -> Failure:
        """Leave the array to zarr from now on, because this package has failed.

        Raises the error if it is no mistake of this package.
        """
        if not unexpected.is_unexpected(error):
            raise error
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
        layout = self._layout_of(spec)
        store = store_of(getter)
        source_of, why_left = None, None
        try:
            source_of = sources_of(store)
        except LeftToZarr as why:
            if not trace.active:  # else what zarr fetches is counted for each chunk
                raise
            why_left = why
        if type(out) is not spec.prototype.nd_buffer:
            raise LeftToZarr(f"the output is a {name_of_class(out)}")
        array: Any = out.as_ndarray_like()
        if type(out) is not gpu.NDBuffer:
            check_host_memory(array)
        check_elements(array, layout.dtype)
        chunks = chunk_reads(items, self._layout_of, source_of)
        if why_left:
            leave(chunks, why_left)
        output = Output(array, drop_axes, lambda: True, threading.Lock())
        return Batch(chunks, output, self._is_v2(), self._num_threads(), max_gap_bytes())

    async def _read_on_gpu(
        self, batch: Batch, out: Any, groups: "Sequence[Group[ChunkRead]]"
    ) -> None:
        """Read groups of chunks through host memory; before, let zarr read the others."""
        from numcodecs_bytes._read import through_host

        if others := [chunk for chunk in batch.chunks if chunk.source is None]:
            await self._read(batch._replace(chunks=others), out)
        device = batch.out.array

        async def read(group: "Group[ChunkRead]", host: "Array") -> None:
            on_host = batch.out._replace(array=host)
            upload = partial(through_host.upload, group, host, device)
            of_group = batch._replace(chunks=group.chunks, out=on_host, upload=upload)
            await self._read(of_group, out)

        await through_host.each_group(groups, device, read)

    async def _read(self, batch: Batch, out: Any) -> None:
        """Read in part what can be, while zarr reads the rest; then let zarr read what failed."""
        requested = [chunk for chunk in batch.chunks if isinstance(chunk.source, Remote)]
        failure = None
        try:
            async with _in_flight(len(requested)) as num_in_flight:
                shares, failure = self._shares(batch, requested, num_in_flight)
                failure = await self._read_both(batch, out, shares) or failure
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
                with unexpected.only_logged():
                    for chunk in batch.chunks:
                        chunk.trace(batch)

    def _shares(
        self, batch: Batch, requested: "Sequence[ChunkRead]", num_in_flight: int
    ) -> "tuple[_Shares, Failure | None]":
        """Return who reads what, and why zarr reads all of it if this fails."""
        try:
            objects: Sequence[ObjectRead] = ()
            if requested:
                from numcodecs_bytes._read.object_reads import object_reads  # only if needed

                objects = object_reads(batch, requested, num_in_flight)
            return _share(batch, objects), None
        except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
            return _Shares((), (), batch.chunks, None, None), self._leave_array(error)

    async def _read_both(self, batch: Batch, out: Any, shares: _Shares) -> Failure | None:
        """Read what can be read in part and, at the same time, let zarr read the rest.

        Returns why some of the former are left to zarr, too, if a store or this package failed.
        """
        if not shares.of_zarr:
            return await self._read_parts(batch, shares)
        if not (shares.files or shares.objects) or concurrency() == 1:
            failure = await self._read_parts(batch, shares)
            await self._read_left(batch, out, shares.of_zarr)
            return failure
        # Both have ended before either's error is raised: then this package writes nothing more.
        of_parts, of_zarr = await asyncio.gather(
            self._read_parts(batch, shares),
            self._read_left(batch, out, shares.of_zarr, shares.limit_of_zarr),
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

    async def _read_parts(self, batch: Batch, shares: _Shares) -> Failure | None:
        """Read what can be read in part; return why some of it is left, if that is a failure."""
        failure: Failure | None = None
        try:
            if shares.files:
                await local.read(batch, shares.files)
            if shares.objects:
                from numcodecs_bytes._read import remote  # only if it is needed

                failure = await remote.read(batch, shares.objects, shares.limit)
            if batch.upload:
                batch.upload([chunk for chunk in shares.in_part if not chunk.outcome.is_left])
        except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
            failure = self._leave_array(error)
            leave(shares.in_part, LeftToZarr("numcodecs_bytes itself failed"))
        return failure

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
