"""Reads small selections of uncompressed arrays, local or in memory, in the thread that calls it.

zarr passes every read through an event loop in another thread, which takes 0.3 ms, also for a few
bytes. `SyncReader` reads an array's files directly, with the plans and checks of the pipelines, and
remembers the plan for each form of a selection in a single chunk. Whatever it does not read itself,
it hands to the array.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import zarr

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.interrupts import is_of_caller, raise_interrupt
from numcodecs_bytes._plan.array_selection import ChunkSelection, select
from numcodecs_bytes._plan.forms import InnerPosition, form_key
from numcodecs_bytes._plan.outcome import AlreadyInMemory, LeftToZarr
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.form_read import read_form_in_file, read_form_in_memory
from numcodecs_bytes._read.local import read_here
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._tools.partial_reads import reason_of, why_read_whole
from numcodecs_bytes._zarr_api.batch_items import ChunkName, ChunkRequest
from numcodecs_bytes._zarr_api.names import (
    instead_of_array,
    name_of_class,
    name_of_store,
    other_pipeline,
)
from numcodecs_bytes._zarr_api.private_names import bytes_in_memory
from numcodecs_bytes._zarr_api.versions import fill_value_or_default

if TYPE_CHECKING:
    from numcodecs_bytes._pipeline.array_access import ArrayChunks, ChunkLocations

# Selections of more chunks, or bytes, are left to zarr's way, whose threads wait for several files
# at a time from the first one on. In the page cache, this thread is faster even for 64 chunks; see
# `tests/benchmarks/samples.py`.
MAX_CHUNKS = 4
MAX_BYTES = 1 << 20


class SyncReader:
    """Reads selections of an array in the calling thread, without an event loop.

    ``reader[selection]`` returns what ``array[selection]`` returns: the same values, data type and
    shape, or an error of the same type. It reads itself what is selected by integers, slices,
    Ellipsis, and a list or array of integers along one axis, if that is up to 1 MiB in up to 4
    chunks, or shards, that `numcodecs_bytes` reads in part from local files; or of one chunk in a
    `MemoryStore`. Everything else is read by ``array[selection]``.

    Threads may share a reader. It is pickled like its array.

    Parameters
    ----------
    array : zarr.Array
        An array of any store.

    Raises
    ------
    TypeError
        If that is not a `zarr.Array`.

    Examples
    --------
    >>> import zarr, numcodecs_bytes
    >>> array = zarr.create_array({}, shape=(4, 3), dtype="f4", compressors=None)
    >>> reader = numcodecs_bytes.SyncReader(array)
    >>> reader[2].shape
    (3,)
    """

    def __init__(self, array: "zarr.Array[Any]") -> None:
        if not isinstance(array, zarr.Array):
            raise TypeError(f"SyncReader takes a zarr.Array, {instead_of_array(array)}")
        self._array = array
        self._chunks: ArrayChunks | None = None  # as found last
        # The path of the last chunk, which takes 1 us to make.
        self._last_path: tuple[ArrayChunks, list[int], str, tuple[int, ...]] | None = None

    @property
    def array(self) -> "zarr.Array[Any]":
        """The array that is read."""
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array, in elements."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy data type of the array."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._array.size

    def __bool__(self) -> bool:
        return bool(self._array)  # which may be true although its length is 0

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __setitem__(self, selection: Any, value: Any) -> NoReturn:
        raise TypeError("a SyncReader only reads; write by its array: reader.array[...] = values")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._array.__array__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._array == other.array if isinstance(other, SyncReader) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # like an array

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, also of a subclass, without what is cached."""
        return vars(self) | {"_chunks": None, "_last_path": None}

    def __repr__(self) -> str:
        error = value_or_error(self._check_reads_directly)
        how = reason_of(error) or "small selections are read directly"
        left = "zarr reads it: " if isinstance(error, LeftToZarr) else ""
        return f"<SyncReader of {self._array!r}: {left}{how}>"

    def _check_reads_directly(self) -> None:
        """Raise `LeftToZarr` if zarr reads the array, whatever is selected."""
        chunks = self._find_chunks()
        locations = chunks.locate()
        if not locations.is_in_memory:
            locations.file_extent_of(chunks.first.path)
            if why := why_read_whole(self._array):
                raise LeftToZarr(why)

    def __getitem__(self, selection: Any) -> Any:
        bugs: list[Exception] = []
        try:
            return self._read(selection)
        except RecursionError as error:
            raise_interrupt(error)
            # zarr reads in another thread, and needs fewer frames in this one
        except LeftToZarr as why:
            raise_interrupt(why.__cause__)
            # What is in memory is read directly, but not counted; so a trace lets zarr read it.
            if traces.active and not isinstance(why, AlreadyInMemory):
                name = traces.ArrayName(name_of_store(self._array.store), self._array.path)
                traces.record_array(name, {("why_not_direct", str(why)): 1})
        except Exception as error:
            if is_of_caller(error) or not own_bugs.is_own_bug(error):
                raise
            bugs.append(error)
        try:
            return self._array[selection]
        except Exception as error:
            own_bugs.forget_alike(bugs, error)
            raise
        finally:
            own_bugs.log_all(bugs)

    def _read(self, selection: Any) -> Any:
        """Read a selection in this thread; raise `LeftToZarr` if zarr has to read it."""
        chunks = self._find_chunks()
        locations = chunks.locate()
        if (out := self._read_by_form(selection, chunks, locations)) is not None:
            return out
        layout, shape = chunks.layout, chunks.metadata.shape
        selected = select(selection, shape, chunks.spec.shape, MAX_CHUNKS)
        num_bytes = math.prod(selected.shape) * layout.dtype.itemsize
        if not num_bytes:
            raise LeftToZarr("it selects nothing")
        if selected.num_chunks > MAX_CHUNKS:
            raise LeftToZarr(f"it selects more than {MAX_CHUNKS} chunks or shards")
        if num_bytes > MAX_BYTES:
            raise LeftToZarr(f"it selects more than {MAX_BYTES >> 20} MiB")
        out = np.empty(selected.shape, layout.dtype, chunks.order)
        reads = [self._locate(each, chunks, locations) for each in selected.chunks()]
        num_threads = chunks.access.num_threads if len(reads) > 1 else 1
        read_here(reads, Output.of_caller(out), locations.max_gap, num_threads)
        _check_outcomes(reads, chunks)
        return out[()] if selected.is_scalar else out

    def _read_by_form(
        self, selection: Any, chunks: "ArrayChunks", locations: "ChunkLocations"
    ) -> Any:
        """Read a selection of a form; return None if it has none, or its chunk is not as usual."""
        found = form_key(selection)
        if found is None or traces.active:  # a trace counts what `ChunkRead` records
            return None
        key, starts = found
        layout, is_in_memory = chunks.layout, locations.is_in_memory
        form = chunks.forms.form_of(key, layout.num_bytes if is_in_memory else locations.max_gap)
        if form is None or form.num_bytes > MAX_BYTES:
            return None
        position = form.position(starts)
        if position is None:
            return None
        path, inner_position = self._path_of(chunks, position)
        out = np.empty(form.shape, layout.dtype, chunks.order)
        if is_in_memory:
            stored = bytes_in_memory(locations.store, path)
            if stored is None or not read_form_in_memory(form, layout, stored, inner_position, out):
                return None
        else:
            extent = locations.file_extent_of(path)
            outcome = read_form_in_file(form, layout, extent, inner_position, out)
            if outcome == "missing" and chunks.may_be_missing:
                out[...] = fill_value_or_default(chunks.spec)
            elif outcome != "present":
                return None
        return out[()] if form.is_scalar else out

    def _path_of(
        self, chunks: "ArrayChunks", position: tuple[list[int], int]
    ) -> tuple[str, InnerPosition]:
        """Return the path of a chunk, or shard, and where a selection begins in it."""
        coords, offset = position
        last = self._last_path
        if last is None or last[0] is not chunks or last[1] != coords:
            last = self._last_path = chunks, coords, *chunks.path_in(coords)
        return last[2], InnerPosition(last[3], offset)

    def _locate(
        self, selected: ChunkSelection, chunks: "ArrayChunks", locations: "ChunkLocations"
    ) -> ChunkRead:
        """Return what is read of a chunk, and where it is."""
        chunk_coords, chunk_selection, out_selection = selected
        path, spec, layout = chunks.path_of(chunk_coords), chunks.spec, chunks.layout
        name, extent = ChunkName(self._array.store, path), locations.file_extent_of(path)
        # A member of a zip archive has a checksum.
        checks_crc = extent.find_member is not None and selected.is_all_of_chunk(
            chunks.metadata.shape, spec.shape
        )
        request = ChunkRequest(name, spec, chunk_selection, out_selection, checks_crc)
        return ChunkRead(request, chunk_selection, out_selection, layout, extent)

    def _find_chunks(self) -> "ArrayChunks":
        """Return the chunks of the array; raise `LeftToZarr` if zarr has to read them."""
        array, found = self._array, self._chunks
        if found is not None and found.is_valid(array):
            return found
        if type(array) is not zarr.Array or type(array.async_array) is not zarr.AsyncArray:
            raise LeftToZarr(f"{name_of_class(array)} may read in another way")
        pipeline: Any = array.async_array.codec_pipeline
        if why := other_pipeline(type(pipeline)):
            raise LeftToZarr(why)
        chunks: ArrayChunks = pipeline.access.chunks_of(array)
        self._chunks = chunks
        return chunks


def _check_outcomes(reads: Sequence[ChunkRead], chunks: "ArrayChunks") -> None:
    """Raise `LeftToZarr` if zarr has to read the chunks; else tell `trace` what became of them."""
    if left := [chunk.outcome.why for chunk in reads if chunk.outcome.is_left]:
        raise LeftToZarr(max(left))  # after one that is left, others are not read: ""
    are_missing = any(chunk.outcome.status == "missing" for chunk in reads)
    if are_missing and not chunks.may_be_missing:
        raise LeftToZarr("a chunk is missing")
    if traces.active:  # only now: what is left to zarr is read again, and traced, as a whole
        name = chunks.access.name_of_array(chunks.first, chunks.spec)
        traces.record_array(name, *[chunk.counts() for chunk in reads])
