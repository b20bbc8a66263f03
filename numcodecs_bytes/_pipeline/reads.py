"""Reads parts of uncompressed chunks, and lets zarr read the rest."""

import asyncio
import contextlib
import copy
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import zarr
from zarr.core.buffer import gpu
from zarr.core.common import concurrent_map

from numcodecs_bytes._host import trace, unexpected
from numcodecs_bytes._host.items import Item, items_of
from numcodecs_bytes._host.options import max_gap_bytes
from numcodecs_bytes._host.zarr_versions import HAS_RESULTS, concurrency
from numcodecs_bytes._pipeline.array_layouts import KnowsLayouts
from numcodecs_bytes._pipeline.explain import begin_read
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, leave
from numcodecs_bytes._read import local
from numcodecs_bytes._read.chunks import Batch, ChunkRead, chunk_reads
from numcodecs_bytes._read.output import Output, check_elements, check_host_memory
from numcodecs_bytes._sources.files import File
from numcodecs_bytes._sources.stores import (
    Remote,
    is_in_shard,
    is_known_for_good,
    name_of_class,
    sources_of,
    store_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from numcodecs_bytes._core.dtypes import Array
    from numcodecs_bytes._plan.groups import Group
    from numcodecs_bytes._plan.shards import AnyLayout
    from numcodecs_bytes._read.object_reads import ObjectRead
    from numcodecs_bytes._sources.stores import Source, SourceOf


def _in_flight(num_chunks: int) -> "AbstractAsyncContextManager[int]":
    """Return a context in which so many chunks are requested; see `object_reads.InFlight`."""
    if not num_chunks:
        return contextlib.nullcontext(0)
    from numcodecs_bytes._read.object_reads import InFlight  # only if it is needed

    return InFlight(num_chunks)


class _OfZarr(NamedTuple):
    """What zarr reads of an array, whatever is selected, as its first read has shown."""

    store: object
    options: object  # of this package, which may name the class of the store
    is_all: bool  # else it reads whole chunks

    def includes(self, items: "Sequence[Item]") -> bool:
        """Whether zarr reads all chunks of a batch; to find that out takes 4 to 6 % of its time."""
        return (
            getattr(items[0].byte_getter, "store", None) is self.store
            and not trace.active
            and (self.is_all or all(item.is_complete for item in items))
            and _options() == self.options
        )


def _options() -> object:
    """Return the options that are set, faster than `zarr.config.get`."""
    return zarr.config.config.get("numcodecs_bytes")


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


def _is_short_object(source: "Source", layout: "AnyLayout") -> bool:
    """Whether a chunk is an object that is requested, and that no request for it is split."""
    if not (isinstance(source, Remote) and source.is_object and isinstance(layout, Layout)):
        return False
    from numcodecs_bytes._read.object_reads import may_be_split  # only if it is needed

    return not may_be_split(layout.num_bytes)


class ReadsParts(KnowsLayouts):
    """Mixin for one of zarr's pipelines: reads parts of uncompressed chunks."""

    reads_parts = True
    _own_failure = ""  # why zarr reads the array from now on
    _of_zarr: _OfZarr | None = None

    @unexpected.logged_after_zarr
    async def read(
        self, batch_info: "Iterable[Any]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        items = items_of(batch_info)
        if items and self._of_zarr is not None and self._of_zarr.includes(items):
            return await self._read_by_zarr(items, out, drop_axes)
        try:
            return await self._read_items(items, out, drop_axes)
        except Exception as error:
            if self._own_failure:
                with contextlib.suppress(Exception):  # some errors are immutable
                    error.add_note(
                        f"before, numcodecs_bytes itself had failed: {self._own_failure}"
                    )
            raise

    async def _read_items(
        self, items: "Sequence[Item]", out: Any, drop_axes: tuple[int, ...]
    ) -> Any:
        try:
            batch = self._batch(items, out, drop_axes)
            groups = None
            if type(out) is gpu.NDBuffer:
                from numcodecs_bytes._read.to_gpu import groups_to_read  # only if it is needed

                groups = groups_to_read(batch)
        except LeftToZarr as why:
            if items and trace.active and not is_in_shard(items[0].byte_getter):
                first = items[0]  # in a shard: the shard is noted
                counts: trace.Counts = {str(why): len(items)}
                num_axes, is_v2 = len(first.spec.shape), self._is_v2()
                trace.note(first.byte_getter, num_axes, counts, is_v2=is_v2, is_seen=False)
        except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
            self._give_up(error, ())
        else:
            if groups is None:
                await self._read(batch, out)
            else:
                await self._read_on_gpu(batch, out, groups)
            results = tuple({"status": chunk.outcome.status} for chunk in batch.chunks)
            return results if HAS_RESULTS else None
        return await self._read_by_zarr(items, out, drop_axes)

    def _give_up(self, error: Exception, chunks: "Sequence[ChunkRead]") -> None:
        """Leave chunks to zarr, and the array from now on, because this package has failed.

        Raises the error if it is no mistake of this package.
        """
        if not unexpected.is_unexpected(error):
            raise error
        unexpected.log(error)
        vars(self)["_own_failure"] = f"{type(error).__name__}: {error}"
        leave(chunks, LeftToZarr("numcodecs_bytes itself failed"))

    def _batch(self, items: "Sequence[Item]", out: Any, drop_axes: tuple[int, ...]) -> Batch:
        """Return what to read; raise `LeftToZarr` if zarr has to read all of it."""
        if not items:
            raise LeftToZarr("nothing is selected")
        if self._own_failure:
            raise LeftToZarr("numcodecs_bytes itself failed before")
        spec = items[0].spec  # all are of one array: at most their shapes differ
        layout = self._layout_of(spec)
        source_of, why_left = self._find_sources(items, layout)
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

    def _find_sources(
        self, items: "Sequence[Item]", layout: "AnyLayout"
    ) -> "tuple[SourceOf | None, LeftToZarr | None]":
        """Return what says where chunks are, or why zarr reads them, if that is to be counted.

        Raises `LeftToZarr` if it is not.
        """
        getter = items[0].byte_getter
        store = store_of(getter)
        try:
            source_of = sources_of(store)
        except LeftToZarr as why:
            if is_known_for_good(store):
                vars(self)["_of_zarr"] = _OfZarr(store, copy.copy(_options()), is_all=True)
            if not trace.active:  # else what zarr fetches is counted for each chunk
                raise
            return None, why
        if (
            all(item.is_complete for item in items)
            and not trace.active
            and _is_short_object(source_of(getter.path), layout)
        ):
            vars(self)["_of_zarr"] = _OfZarr(store, copy.copy(_options()), is_all=False)
            raise LeftToZarr("whole chunks are requested")
        return source_of, None

    async def _read_on_gpu(
        self, batch: Batch, out: Any, groups: "Sequence[Group[ChunkRead]]"
    ) -> None:
        """Read groups of chunks through host memory; before, let zarr read the others."""
        from numcodecs_bytes._sources import through_host

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
        """Read in part what can be, while zarr reads the rest; then let zarr read what is left."""
        requested = [chunk for chunk in batch.chunks if isinstance(chunk.source, Remote)]
        try:
            async with _in_flight(len(requested)) as num_in_flight:
                await self._read_both(batch, out, self._shares(batch, requested, num_in_flight))
            if left := [chunk for chunk in batch.chunks if chunk.outcome.is_left]:
                await self._read_left(batch, out, left)
        finally:
            if trace.active:
                with unexpected.only_logged():
                    for chunk in batch.chunks:
                        chunk.trace(batch)

    def _shares(
        self, batch: Batch, requested: "Sequence[ChunkRead]", num_in_flight: int
    ) -> _Shares:
        """Return who reads what: zarr all of it if this fails."""
        try:
            objects: Sequence[ObjectRead] = ()
            if requested:
                from numcodecs_bytes._read.object_reads import object_reads  # only if needed

                objects = object_reads(batch, requested, num_in_flight)
            return _share(batch, objects)
        except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
            self._give_up(error, batch.chunks)
            return _Shares((), (), batch.chunks, None, None)

    async def _read_both(self, batch: Batch, out: Any, shares: _Shares) -> None:
        """Read what can be read in part and, at the same time, let zarr read the rest."""
        here = self._read_parts(batch, out, shares)
        if not shares.of_zarr:
            await here
            return
        by_zarr = self._read_left(batch, out, shares.of_zarr, shares.limit_of_zarr)
        if not (shares.files or shares.objects) or concurrency() == 1:
            await here
            await by_zarr
            return
        # Both have ended before either's error is raised: then this package writes nothing more.
        results = await asyncio.gather(by_zarr, here, return_exceptions=True)
        try:
            for error in results:
                if error is not None:
                    raise error
        finally:
            del results  # their frames refer to this one, and to the output

    async def _read_parts(self, batch: Batch, out: Any, shares: _Shares) -> None:
        """Read what can be read in part, or leave it to zarr."""
        try:
            if shares.files:
                await local.read(batch, shares.files)
        except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
            self._give_up(error, shares.files)
        if shares.objects:
            from numcodecs_bytes._read import remote  # only if it is needed

            fallback = remote.Fallback(partial(self._read_left, batch, out), self._give_up)
            await remote.read(batch, shares.objects, shares.limit, fallback)
        if batch.upload:
            on_host = [chunk for chunk in shares.in_part if chunk.outcome.is_read_here]
            try:
                batch.upload(on_host)
            except Exception as error:  # noqa: BLE001 # raised unless it is a mistake
                self._give_up(error, on_host)

    async def _read_by_zarr(self, items: "Sequence[Item]", out: Any, drop_axes: Any) -> Any:
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
