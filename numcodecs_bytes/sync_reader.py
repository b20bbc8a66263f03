"""Reads small selections of local, uncompressed arrays in the thread that calls it.

zarr passes every read through an event loop in another thread, which takes 0.3 ms, also for a few
bytes. `SyncReader` reads an array's files directly, with the plans and checks of the pipelines.
Whatever it does not read itself, it hands to the array.
"""

import math
import threading
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._host import own_bugs, trace
from numcodecs_bytes._host.items import Item
from numcodecs_bytes._host.names import name_of_store
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.selection import Selector
from numcodecs_bytes._plan.shards import AnyLayout
from numcodecs_bytes._read.chunks import ChunkRead
from numcodecs_bytes._read.local import read_file
from numcodecs_bytes._read.output import Output
from numcodecs_bytes._read.pace import Pace
from numcodecs_bytes._sources.shard_index import IndexCache
from numcodecs_bytes._sources.stores import name_of_class

# Selections of more chunks, or bytes, are left to zarr, whose threads wait for several files at a
# time. In the page cache, this thread is faster even for 64 chunks; but from a mount that answers
# after 1 ms, four chunks take as long as by zarr's pipeline with ours, eight twice as long; see
# `tests/benchmarks/samples.py`.
MAX_CHUNKS = 4
MAX_BYTES = 1 << 20
WHY_SIZE = f"it selects nothing, or more than {MAX_CHUNKS} chunks or {MAX_BYTES >> 20} MiB"

# How many bytes of indices of shards a reader caches. That of 4,096 inner chunks takes 64 KiB; to
# read and check it takes most of the time of a row.
MAX_INDEX_BYTES = 1 << 22


class _Getter(NamedTuple):
    """What names a chunk, as zarr's byte getters do."""

    store: Any
    path: str


class _Along(NamedTuple):
    """What is selected of the chunks at a position along an axis of their grid."""

    position: int
    selector: Any  # in the chunk
    place: Selector | None  # in the result; None if the axis is dropped


class _Known(NamedTuple):
    """What is known of an array as long as it has the same metadata."""

    metadata: Any
    pipeline: Any
    spec: ArraySpec
    layout: AnyLayout
    first: Item  # a chunk, of which zarr's own pipeline would be asked
    prefix: str  # of the paths of chunks


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
        self._known: _Known | None = None
        self._indices = IndexCache(MAX_INDEX_BYTES)

    @property
    def array(self) -> "zarr.Array[Any]":
        """The array that is read."""
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array, in elements."""
        return self._array.shape

    @property
    def dtype(self) -> Any:
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

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._array.__array__(*args, **kwargs)

    def __reduce__(self) -> Any:
        return SyncReader, (self._array,)

    def __repr__(self) -> str:
        how = "small selections are read directly"
        try:
            known = self._find_layout()
            known.pipeline.find_chunks(known.first).file_of(known.first.byte_getter.path)
        except LeftToZarr as why:
            how = f"zarr reads it: {why}"
        return f"<SyncReader of {self._array!r}: {how}>"

    def __getitem__(self, selection: Any) -> Any:
        try:
            return self._read(selection)
        except (LeftToZarr, OSError) as why:
            if trace.active:
                self._note_left(why)
        except Exception as error:
            if not own_bugs.is_own_bug(error):
                raise
            own_bugs.log(error)
        return self._array[selection]

    def _read(self, selection: Any) -> Any:
        """Read a selection in this thread; raise `LeftToZarr` or OSError if zarr has to read it."""
        known = self._find_layout()
        finder = known.pipeline.find_chunks(known.first)
        if finder.find is None:
            raise LeftToZarr(finder.why_by_zarr)
        keys, has_ellipsis = _keys_of(selection, len(known.metadata.shape))
        shape, along, num_chunks = list[int](), list[list[_Along]](), 1
        for key, size, length in zip(keys, known.metadata.shape, known.spec.shape, strict=True):
            num, pieces = _cut(key, size, length)
            along.append(pieces)
            num_chunks *= len(pieces)
            if num is not None:
                shape.append(num)
        num_bytes = math.prod(shape) * known.layout.dtype.itemsize
        if not 0 < num_chunks <= MAX_CHUNKS or not 0 < num_bytes <= MAX_BYTES:
            raise LeftToZarr(WHY_SIZE)
        if not shape and not all(type(key) is int for key in keys):
            raise LeftToZarr("zarr decides whether the result is a scalar")
        out: Array = np.empty(shape, known.layout.dtype, self._array.order)
        self._read_chunks(known, finder, along, out)
        return out[()] if has_ellipsis and not shape else out

    def _read_chunks(
        self, known: _Known, finder: Any, along: list[list[_Along]], out: Array
    ) -> None:
        """Read what is selected of chunks to the result."""
        output, chunks = Output(out, (), _is_wanted, threading.Lock()), list[ChunkRead]()
        pace = Pace(finder.gap, leaves_slow_files=True, indices=self._indices)
        for pieces in product(*along):
            key = known.metadata.encode_chunk_key(tuple([each.position for each in pieces]))
            path, selected = known.prefix + key, tuple([each.selector for each in pieces])
            place = tuple([each.place for each in pieces if each.place is not None])
            file = finder.file_of(path)
            getter = _Getter(self._array.store, path)
            item = Item(getter, known.spec, selected, place, is_complete=False)
            chunk = ChunkRead(item, selected, place, known.layout, file)
            read_file(iter([chunk]), output, pace)
            if chunk.outcome.is_left:
                raise LeftToZarr(chunk.outcome.why)
            chunks.append(chunk)
        if trace.active:  # only now: what is left to zarr is read again, and traced, as a whole
            for chunk in chunks:
                chunk.trace(is_v2=known.metadata.zarr_format == 2)

    def _find_layout(self) -> _Known:
        """Return what is known of the array; raise `LeftToZarr` if zarr has to read it."""
        array = self._array
        if default_buffer_prototype() != cpu.buffer_prototype:  # for what is read next
            raise LeftToZarr("zarr's config sets other buffers, such as those of a GPU")
        if self._known is not None and self._known.metadata is array.metadata:
            return self._known
        if type(array) is not zarr.Array or type(array.async_array) is not zarr.AsyncArray:
            raise LeftToZarr(f"{name_of_class(array)} may read in another way")
        pipeline: Any = array.async_array.codec_pipeline
        if not getattr(pipeline, "reads_parts", False):  # it may be zarr's, under the name of ours
            raise LeftToZarr(f"{name_of_class(pipeline)} is the codec pipeline")
        from numcodecs_bytes._pipeline.array_layouts import chunk_spec_of  # with a zarr we know

        metadata, spec = array.metadata, chunk_spec_of(array)
        layout = pipeline._layout_of(spec)
        getter = array.store_path / metadata.encode_chunk_key((0,) * array.ndim)
        prefix = f"{array.path}/" if array.path else ""
        first = Item(getter, spec, (), (), is_complete=False)
        self._known = _Known(metadata, pipeline, spec, layout, first, prefix)
        return self._known

    def _note_left(self, why: Exception) -> None:
        name = trace.ArrayName(name_of_store(self._array.store), self._array.path)
        trace.note_array(name, {("why_not_direct", str(why)): 1})


def _is_wanted() -> bool:
    return True


def _keys_of(selection: Any, num_axes: int) -> tuple[list[Any], bool]:
    """Return what is selected along each axis, and whether by an Ellipsis.

    Raises `LeftToZarr` for what zarr takes in another sense than axis by axis, or not at all.
    """
    keys = list(selection) if type(selection) is tuple else [selection]
    kinds = list(map(type, keys))
    num_lists = kinds.count(list) + kinds.count(np.ndarray)
    has_ellipsis = type(Ellipsis) in kinds
    # Beside a list, zarr takes neither an Ellipsis nor NumPy's integers.
    others = [key for key in keys if key is Ellipsis or isinstance(key, np.integer)]
    if num_lists > 1 or (num_lists and others) or kinds.count(type(Ellipsis)) > 1:
        raise LeftToZarr("the selection is of another kind")
    if has_ellipsis:
        at = kinds.index(type(Ellipsis))
        keys[at : at + 1] = [slice(None)] * (num_axes - len(keys) + 1)
    keys += [slice(None)] * (num_axes - len(keys))
    if not num_axes or len(keys) != num_axes:
        raise LeftToZarr("the array has no axes, or fewer than are selected")
    return keys, has_ellipsis


def _cut(key: Any, size: int, length: int) -> tuple[int | None, list[_Along]]:
    """Cut what is selected along an axis at the edges of chunks of a length.

    Returns how many elements are selected, or None if the axis is dropped. Raises `LeftToZarr` for
    what may be an error.
    """
    if type(key) is int or (isinstance(key, np.integer) and not isinstance(key, np.timedelta64)):
        index = int(key) + (size if key < 0 else 0)
        if not 0 <= index < size:
            raise LeftToZarr("an index is out of bounds")
        return None, [_Along(index // length, index % length, None)]
    if type(key) is slice:
        return _cut_slice(key, size, length)
    is_list = type(key) is list and all(type(index) is int for index in key)
    if not is_list and type(key) is not np.ndarray:
        raise LeftToZarr("the selection is of another kind")
    indices = np.asarray(key)
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or not indices.size:
        raise LeftToZarr("the selection is of another kind")
    # Versions of zarr refuse unsigned indices of 64 bits, and add the size to short ones as such.
    is_short = indices.dtype != np.intp and indices.min() < 0
    if is_short or not np.can_cast(indices.dtype, np.intp):
        raise LeftToZarr("the indices are of a data type that zarr may refuse")
    indices = indices.astype(np.intp)
    indices[indices < 0] += size
    if indices.min() < 0 or indices.max() >= size:
        raise LeftToZarr("an index is out of bounds")
    positions = indices // length
    pieces, unique = [], np.unique(positions).tolist()
    if len(unique) > MAX_CHUNKS:
        raise LeftToZarr(WHY_SIZE)
    for position in unique:
        (place,) = np.nonzero(positions == position)
        pieces.append(_Along(position, indices[place] - position * length, place))
    return indices.size, pieces


def _cut_slice(key: slice, size: int, length: int) -> tuple[int, list[_Along]]:
    try:
        indices = range(*key.indices(size))
    except (TypeError, ValueError):
        raise LeftToZarr("the selection is of another kind") from None
    if indices.step < 0:
        raise LeftToZarr("a step is negative")
    if not indices:
        return 0, []
    pieces, begin, step = list[_Along](), 0, indices.step
    while begin < len(indices):
        if len(pieces) == MAX_CHUNKS:
            raise LeftToZarr(WHY_SIZE)
        position = indices[begin] // length
        edge = position * length
        end = min(-((indices.start - edge - length) // step), len(indices))
        within = slice(indices[begin] - edge, indices[end - 1] - edge + 1, step)
        pieces.append(_Along(position, within, slice(begin, end)))
        begin = end
    return len(indices), pieces
