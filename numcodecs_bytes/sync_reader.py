"""Reads small selections of local, uncompressed arrays in the thread that calls it.

zarr passes every read through an event loop in another thread, which takes 0.3 ms, also for a few
bytes. `SyncReader` reads an array's files directly, with the plans and checks of the pipelines.
Whatever it does not read itself, it hands to the array.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import zarr
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._core.interrupts import is_of_caller, raise_interrupt
from numcodecs_bytes._plan.array_selection import ChunkSelection, select
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.selection import moved_to_start
from numcodecs_bytes._plan.shards import AnyLayout
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._read.local import read_here
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._runtime import own_bugs, traces
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.names import keys_are_v2, name_of_class, name_of_store
from numcodecs_bytes._zarr_api.options import OptionError

if TYPE_CHECKING:
    from numcodecs_bytes._pipeline.chunk_finder import ChunkFinder

# Selections of more chunks, or bytes, are left to zarr's way, whose threads wait for several files
# at a time from the first one on. In the page cache, this thread is faster even for 64 chunks; see
# `tests/benchmarks/samples.py`.
MAX_CHUNKS = 4
MAX_BYTES = 1 << 20


class ChunkName(NamedTuple):
    """What names a chunk, as zarr's byte getters do."""

    store: Any
    path: str


class _Snapshot(NamedTuple):
    """What is known of an array as long as its metadata and zarr's buffers are the same."""

    metadata: Any
    buffers: object
    pipeline: Any
    spec: ArraySpec
    layout: AnyLayout
    first: ChunkRequest  # a chunk, of which zarr's own pipeline would be asked
    prefix: str  # of the paths of chunks
    may_be_missing: bool  # else a missing chunk is an error


class SyncReader:
    """Reads selections of an array in the calling thread, without an event loop.

    ``reader[selection]`` returns what ``array[selection]`` returns: the same values, data type and
    shape, or an error of the same type. It reads itself what is selected by integers, slices,
    Ellipsis, and a list or array of integers along one axis, if that is up to 1 MiB in up to 4
    chunks, or shards, that `numcodecs_bytes` reads in part from local files. Everything else is
    read by ``array[selection]``.

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
            raise TypeError(f"SyncReader reads a zarr.Array, got {type(array).__name__}")
        self._array = array
        self._snapshot: _Snapshot | None = None

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

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._array.__array__(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return self._array == other.array if isinstance(other, SyncReader) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # like an array

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, also of a subclass, without what is cached."""
        return vars(self) | {"_snapshot": None}

    def __repr__(self) -> str:
        how = "small selections are read directly"
        try:
            snapshot = self._find_snapshot()
            snapshot.pipeline.chunk_finder(snapshot.first).file_of(snapshot.first.byte_getter.path)
        except LeftToZarr as why:
            how = f"zarr reads it: {why}"
        except OptionError as error:
            how = str(error)
        return f"<SyncReader of {self._array!r}: {how}>"

    def __getitem__(self, selection: Any) -> Any:
        bugs: list[Exception] = []
        try:
            return self._read(selection)
        except RecursionError as error:
            raise_interrupt(error)
            # zarr reads in another thread, and needs fewer frames in this one
        except LeftToZarr as why:
            raise_interrupt(why.__cause__)
            if traces.active:
                name = traces.ArrayName(name_of_store(self._array.store), self._array.path)
                traces.note_array(name, {("why_not_direct", str(why)): 1})
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
        snapshot = self._find_snapshot()
        finder = snapshot.pipeline.chunk_finder(snapshot.first)
        shape, dtype = snapshot.metadata.shape, snapshot.layout.dtype
        selected = select(selection, shape, snapshot.spec.shape, MAX_CHUNKS)
        num_bytes = math.prod(selected.shape) * dtype.itemsize
        if not num_bytes:
            raise LeftToZarr("it selects nothing")
        if selected.num_chunks > MAX_CHUNKS:
            raise LeftToZarr(f"it selects more than {MAX_CHUNKS} chunks or shards")
        if num_bytes > MAX_BYTES:
            raise LeftToZarr(f"it selects more than {MAX_BYTES >> 20} MiB")
        out: Array = np.empty(selected.shape, dtype, self._array.order)
        self._read_chunks(snapshot, finder, selected.chunks(), out)
        return out[()] if selected.is_scalar else out

    def _read_chunks(
        self,
        snapshot: _Snapshot,
        finder: "ChunkFinder",
        chunks: Iterable[ChunkSelection],
        out: Array,
    ) -> None:
        """Read what is selected of chunks to the result."""
        layout, reads = snapshot.layout, []
        for selected in chunks:
            coordinates, selection, out_selection = selected
            at_start, distance = selection, 0
            if isinstance(layout, Layout):  # so random samples share a plan
                at_start, distance = moved_to_start(selection, layout.shape, layout.strides)
            path = snapshot.prefix + snapshot.metadata.encode_chunk_key(coordinates)
            getter = ChunkName(self._array.store, path)
            file = finder.file_of(path)
            # A member of a zip archive has a checksum.
            is_complete = file.find_member is not None and selected.is_all_of_chunk(
                snapshot.metadata.shape, snapshot.spec.shape
            )
            item = ChunkRequest(getter, snapshot.spec, at_start, out_selection, is_complete)
            reads.append(ChunkRead(item, out_selection, layout, file, distance=distance))
        num_threads = snapshot.pipeline._num_threads() if len(reads) > 1 else 1
        read_here(reads, Output.of_caller(out), finder.max_gap, num_threads)
        if left := [chunk.outcome.why for chunk in reads if chunk.outcome.is_left]:
            raise LeftToZarr(max(left))  # after one that is left, others are not read: ""
        are_missing = any(chunk.outcome.status == "missing" for chunk in reads)
        if are_missing and not snapshot.may_be_missing:
            raise LeftToZarr("a chunk is missing")
        if traces.active:  # only now: what is left to zarr is read again, and traced, as a whole
            has_v2_keys = keys_are_v2(snapshot.metadata)
            for chunk in reads:
                chunk.trace(has_v2_keys=has_v2_keys)

    def _find_snapshot(self) -> _Snapshot:
        """Return what is known of the array; raise `LeftToZarr` if zarr has to read it."""
        array, snapshot = self._array, self._snapshot
        if snapshot and snapshot.metadata is array.metadata and snapshot.buffers == _buffers():
            return snapshot
        if type(array) is not zarr.Array or type(array.async_array) is not zarr.AsyncArray:
            raise LeftToZarr(f"{name_of_class(array)} may read in another way")
        pipeline: Any = array.async_array.codec_pipeline
        if not getattr(
            pipeline, "reads_partially", False
        ):  # it may be zarr's, under the name of ours
            raise LeftToZarr(f"{name_of_class(pipeline)} is the codec pipeline")
        buffers = _buffers()  # the config of a zarr that we do not know has no such thing
        if default_buffer_prototype() != cpu.buffer_prototype:
            raise LeftToZarr("zarr's config sets other buffers, such as those of a GPU")
        from numcodecs_bytes._pipeline.array_layouts import chunk_spec_of  # with a zarr we know

        metadata, spec = array.metadata, chunk_spec_of(array)
        layout = pipeline._layout_of(spec)
        getter = array.store_path / metadata.encode_chunk_key((0,) * array.ndim)
        prefix = f"{array.path}/" if array.path else ""
        first = ChunkRequest(getter, spec, (), (), is_complete=False)
        may_be_missing = getattr(array.config, "read_missing_chunks", True)  # new in zarr 3.4
        snapshot = _Snapshot(
            metadata, buffers, pipeline, spec, layout, first, prefix, may_be_missing
        )
        self._snapshot = snapshot
        return snapshot


def _buffers() -> object:
    """Return which buffers zarr's config sets, faster than `default_buffer_prototype`."""
    config = zarr.config.config
    return config.get("buffer"), config.get("ndbuffer")
