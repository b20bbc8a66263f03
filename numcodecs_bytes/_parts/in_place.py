"""Write parts of uncompressed chunks in local files at their places, and no other byte.

So disjoint writers need not wait for each other, and lose nothing. Few pieces are written one by
one, under a shared lock. Many short ones take the lock exclusively: the blocks that contain them
are read, changed and written. `chunk_files` says what the locks protect.

Threads only try to get a lock. Whoever does not get it waits on the event loop, and tries again.

Files are not memory-mapped: a full disk behind a sparse file would kill the process.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import math
import os
import pickle
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import zarr.registry
from zarr.core.array_spec import ArraySpec
from zarr.core.indexing import is_scalar
from zarr.storage import StorePath

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, UInt8Array, leaf_dtypes
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._parts import chunk_files
from numcodecs_bytes._parts.chunk_files import (
    LockedError,
    MissingError,
    NotInPlace,
    ReplacedError,
    read_at,
    write_at,
)
from numcodecs_bytes._parts.fetch import Chunk, add_name
from numcodecs_bytes._parts.getters import IsWanted
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.ranges import Indices
from numcodecs_bytes._parts.selection import (
    Axis,
    are_points,
    as_array,
    parse_axes,
    parse_points,
    selectors_of,
    strides_of,
)
from numcodecs_bytes._parts.settings import configured_write_in_place
from numcodecs_bytes._parts.stores import Whole, writable_file_finder
from numcodecs_bytes._threads import is_ending, run_in_thread, write_pool
from numcodecs_bytes._zarr_versions import fill_value_or_default

logger = logging.getLogger("numcodecs_bytes")
T = TypeVar("T")
K = TypeVar("K")

# From SHORT_PER_BLOCK pieces per block of BLOCK_BYTES on, to read and rewrite the block takes less
# time than to write them one by one: 45 us, and 1.5 us for each piece.
BLOCK_BYTES, SHORT_PER_BLOCK, PIECE_SECONDS = 1 << 18, 32, 1.5e-6
# Points that are so close to each other on average are not sorted: all between the first and the
# last is read and rewritten.
DENSE_BYTES = 256
# How many pieces, and how many bytes of them, are encoded and written at a time.
MAX_PIECES, MAX_BYTES = 1 << 16, 1 << 23
# If NUM_TIMED times NUM_PIECES_TIMED pieces take SLOW_PIECE_SECONDS each, they are not in the page
# cache: there, pieces take 1.5 to 4 us. Then AHEAD_BYTES are read at a time, if that is faster.
SLOW_PIECE_SECONDS, NUM_TIMED, NUM_PIECES_TIMED, AHEAD_BYTES = 1e-5, 3, 8, 1 << 20
# In how many bytes at a time a new file is filled.
FILL_BYTES = 1 << 20
# Values that may be a chunk's own memory are copied up to this size. Otherwise a new file takes the
# place of each chunk.
COPIED_BYTES, BYTES_PER_SECOND = 1 << 26, 1e9
# How often a file that is replaced or deleted meanwhile is opened again.
MAX_TRIES = 1000
# How long the event loop waits before a lock is tried again, at first and at most. Locks of blocks
# are held for less than a millisecond.
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1e-3, 0.1
# After which time a log message says what a write is waiting for.
LONG_SECONDS = 5.0
# How long a write that is cancelled waits for its thread, and how long one waits for a lock while
# the interpreter ends.
LAST_SECONDS, EXIT_SECONDS = 1.0, 2.0

Encode = Callable[[Array, AnyDType], Array]


class Writes(NamedTuple):
    """Values to write to parts of chunks.

    Attributes
    ----------
    items : sequence of tuple
        What zarr passes to the `write` of its pipelines: byte setter, specification of the chunk,
        selection of it, selection of `value`, and whether that is all of the chunk.
    value : object
        The values, in whatever zarr takes as an array.
    drop_axes : tuple of int
        Axes of length 1 of the selections that are missing in `value`.
    chunk_of : callable
        Takes the specification of a chunk and returns the chunk, with any selection.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    """

    items: Sequence[Any]
    value: Any
    drop_axes: tuple[int, ...]
    chunk_of: Callable[[ArraySpec], Chunk]
    encode: Encode


def encode_unchecked(elements: Array, stored: AnyDType) -> Array:
    """Return elements as stored, like `encode_array`; but bools are what they are in memory."""
    if any(leaf.kind == "b" for leaf in leaf_dtypes(elements.dtype)):
        return np.ascontiguousarray(elements.astype(stored, copy=False))
    return encode_array(elements, stored)


async def write_in_place(writes: Writes) -> dict[int, str]:
    """Write parts of chunks in local files.

    Returns
    -------
    dict
        Which items are left to zarr, and why: "" if an item is a whole chunk.

    Raises
    ------
    ValueError
        If a chunk has the wrong length. It is not changed.
    OSError
        If a chunk can't be written. Some of the selected bytes may be.
    """
    left: dict[int, str] = {}
    paths: dict[int, str] = {}
    find = writable_file_finder()
    for k, (byte_setter, _, _, _, is_complete, *_) in enumerate(writes.items):
        path = Whole() if is_complete else find(byte_setter)
        if isinstance(path, Whole):
            left[k] = path.why
        else:
            paths[k] = path
    if paths:
        job = _Job(writes, paths, left)
        waiting = {k: writes.items[k][0] for k in paths}
        await _until_locked(waiting, lambda some: _in_thread(functools.partial(job.run, some)))
    return left


def with_locks(items: Sequence[Any]) -> list[Any]:
    """Return what zarr writes to whole chunks, with byte setters that lock the chunks' files."""
    find = writable_file_finder()
    found = [(item, find(item[0])) for item in items]
    return [
        item if isinstance(path, Whole) else (_LockingPath(item[0], path), *item[1:])
        for item, path in found
    ]


class _LockingPath(StorePath):
    """Replaces or deletes a chunk while nobody copies it, which would undo that."""

    def __init__(self, path: StorePath, file: str) -> None:
        super().__init__(path.store, path.path)
        self._file = file

    async def set(self, value: Any) -> None:
        await self._change(functools.partial(self._store.set_sync, self.path, value))

    async def delete(self) -> None:
        await self._change(functools.partial(self._store.delete_sync, self.path))

    def set_sync(self, value: Any) -> None:
        self._change_sync(functools.partial(self._store.set_sync, self.path, value))

    def delete_sync(self) -> None:
        self._change_sync(functools.partial(self._store.delete_sync, self.path))

    @property
    def _store(self) -> Any:
        return self.store

    async def _change(self, change: Callable[[], None]) -> None:
        patience = _Patience()
        while True:
            refused = await run_in_thread(write_pool(), functools.partial(self._refused, change))
            if not refused:
                return
            await asyncio.sleep(patience.seconds(refused))

    def _change_sync(self, change: Callable[[], None]) -> None:
        patience = _Patience()
        while refused := self._refused(change):
            time.sleep(patience.seconds(refused))

    def _refused(self, change: Callable[[], None]) -> dict[str, Any]:
        """Change the chunk; return it if somebody else has locked it."""
        try:
            chunk_files.change_whole(self._file, change)
        except LockedError:
            return {self._file: self}
        return {}


class _Patience:
    """How long to wait for locks, and when to say so."""

    def __init__(self) -> None:
        self._seconds = FIRST_WAIT_SECONDS / 2
        self._since, self._ending_since = time.monotonic(), 0.0
        self._told: set[Any] = set()

    def seconds(self, refused: Mapping[Any, Any]) -> float:
        """Return when to try again to lock some chunks, given by their byte setters.

        Raises
        ------
        InterruptedError
            If the program ends.
        """
        now = time.monotonic()
        for k in refused.keys() - self._told if now - self._since > LONG_SECONDS else ():
            self._told.add(k)
            logger.warning(
                "waiting for a lock on %s: another thread or process has locked its file",
                name_of_chunk(refused[k]),
            )
        if is_ending():
            self._ending_since = self._ending_since or now
            if now - self._ending_since > EXIT_SECONDS:
                name = name_of_chunk(next(iter(refused.values())))
                raise InterruptedError(f"the program ended while a write waited to lock {name}")
        self._seconds = min(2 * self._seconds, MAX_WAIT_SECONDS)
        return self._seconds


async def _until_locked(
    waiting: Mapping[K, Any], run: Callable[[Mapping[K, Any]], Awaitable[Mapping[K, Any]]]
) -> None:
    """Run a function until it has done everything, and need not wait for locks any more.

    Parameters
    ----------
    waiting : mapping
        The byte setters of chunks.
    run : callable
        Takes chunks like these, and returns those that somebody else has locked.
    """
    patience = _Patience()
    while True:
        waiting = await run(waiting)
        if not waiting:
            return
        await asyncio.sleep(patience.seconds(waiting))


async def _in_thread(run: Callable[[IsWanted], T]) -> T:
    """Return the result of a function, which is told when it is cancelled."""
    is_cancelled = False
    # Not the pool of reads, which need not wait for writes.
    running = asyncio.ensure_future(
        run_in_thread(write_pool(), lambda: run(lambda: not is_cancelled))
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        is_cancelled = True
        done, _ = await asyncio.wait([running], timeout=LAST_SECONDS)
        for one in done:
            one.exception()  # or asyncio logs it
        running.cancel()
        raise


class _Job:
    """What the writes of several chunks have in common.

    Parameters
    ----------
    writes : Writes
        All that is written.
    paths : mapping
        The files of those items that may be written in place.
    left : dict
        Which items are left to zarr, and why; others may be added.
    """

    def __init__(self, writes: Writes, paths: Mapping[int, str], left: dict[int, str]) -> None:
        self._writes, self._paths, self._left = writes, paths, left
        self._value = writes.value
        # Whether the values may be the memory of one of the chunks, which would change them.
        self._may_be_mapped = False
        self._values: dict[int, Any] = {}
        self._works: dict[int, _Work] | None = None

    def run(self, waiting: Mapping[int, Any], is_wanted: IsWanted) -> dict[int, Any]:
        """Write chunks; return those that somebody else has locked."""
        if self._works is None:
            self._works = {}
            self._own_values()
        locked = {}
        for k, byte_setter in waiting.items():
            try:
                work = self._works.pop(k, None) or self._work(k)
                if work.parts.num_pieces:
                    work.write(is_wanted)
            except LockedError:
                self._works[k] = work
                locked[k] = byte_setter
            except NotInPlace as why:
                self._left[k] = str(why)
            except Exception as error:
                add_name(error, byte_setter, "writing")
                raise
        return locked

    def _own_values(self) -> None:
        """Copy values that may be the memory of one of the chunks, unless they are many."""
        value = self._value
        is_small = getattr(value, "nbytes", 0) <= COPIED_BYTES
        if isinstance(value, np.ndarray):
            self._may_be_mapped = _may_be_mapped(value)
            if self._may_be_mapped and is_small:
                self._value, self._may_be_mapped = value.copy(), False
        elif is_small:
            for k in self._paths:
                values = self._values_of(k)
                is_mapped = isinstance(values, np.ndarray) and _may_be_mapped(values)
                self._values[k] = values.copy() if is_mapped else values

    def _values_of(self, k: int) -> Any:
        """Return what zarr assigns to the selection of a chunk."""
        value = self._value
        _, spec, selection, place, *_ = self._writes.items[k]
        if selection == () or is_scalar(value, spec.dtype.to_native_dtype()):
            return value
        value = value[place]
        if self._writes.drop_axes:
            axes = range(len(spec.shape))
            dropped = self._writes.drop_axes
            value = value[tuple(None if axis in dropped else slice(None) for axis in axes)]
        return np.asarray(value)

    def _work(self, k: int) -> "_Work":
        byte_setter, spec, selection, *_ = self._writes.items[k]
        chunk = self._writes.chunk_of(spec)._replace(selection=selection)
        if not chunk.stored.itemsize:
            raise NotInPlace("its elements have no bytes")
        values = self._values.pop(k, None) if k in self._values else self._values_of(k)
        may_be_mapped = self._may_be_mapped or (
            not isinstance(self._value, np.ndarray)
            and isinstance(values, np.ndarray)
            and _may_be_mapped(values)
        )
        parts = _parts_of(chunk, values, self._writes.encode)
        return _Work(byte_setter, self._paths[k], chunk, spec, parts, may_be_mapped)


def _may_be_mapped(array: Any) -> bool:
    """Whether the memory of an array may be that of a file, and not of this process alone."""
    while True:
        if isinstance(array, memoryview):
            array = array.obj
        elif isinstance(array, pickle.PickleBuffer):
            array = array.raw()
        elif array is None or isinstance(array, bytes | bytearray):
            return False
        elif not hasattr(array, "base"):
            return True
        else:
            array = array.base


class _Work:
    """What is written to a chunk.

    Parameters
    ----------
    byte_setter : zarr.abc.store.ByteSetter
        The byte setter of the chunk.
    path : str
        Its file.
    chunk : Chunk
        The chunk, and the selection of it.
    spec : zarr.core.array_spec.ArraySpec
        Its specification.
    parts : _Product or _Points
        The values, and where they belong.
    may_be_mapped : bool
        Whether the values may be the memory of the file.
    """

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        byte_setter: Any,
        path: str,
        chunk: Chunk,
        spec: ArraySpec,
        parts: "_Product | _Points",
        may_be_mapped: bool,  # noqa: FBT001
    ) -> None:
        self.parts = parts
        self._byte_setter, self._path, self._chunk, self._spec = byte_setter, path, chunk, spec
        self._may_be_mapped = may_be_mapped
        self._rewrites = parts.num_pieces > SHORT_PER_BLOCK * parts.num_blocks
        self._since = 0.0  # when the lock was refused first

    def write(self, is_wanted: IsWanted) -> None:
        """Write all of it.

        Raises
        ------
        LockedError
            If somebody else has locked the file. Nothing is written.
        NotInPlace
            If it is left to zarr.
        """
        is_missing = has_other_name = False
        for _ in range(MAX_TRIES):
            try:
                if is_missing:
                    self._create()
                    is_missing = self._may_be_mapped = False
                is_exclusive = self._rewrites or self._may_be_mapped or has_other_name
                with chunk_files.locked(self._path, is_exclusive=is_exclusive) as (file, found):
                    self._check_length(found.st_size)
                    has_other_name = chunk_files.has_other_name(file, self._path, found)
                    if not has_other_name and not self._may_be_mapped:
                        self._write(file, is_wanted)
                        return
                    if is_exclusive:
                        chunk_files.replace(file, self._path, found.st_size, is_wanted)
                        self._may_be_mapped = False
            except MissingError:
                if self._is_empty():
                    return
                is_missing = True
            except ReplacedError:
                has_other_name = False
            except LockedError:
                self._be_patient()
                raise
        raise NotInPlace("it keeps being replaced")

    def _be_patient(self) -> None:
        """Do without an exclusive lock if that takes less time than to wait for it any longer.

        Who writes piece by piece never waits for others who do.
        """
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > self.parts.num_pieces * PIECE_SECONDS:
            self._rewrites = False
        if self._may_be_mapped and now - self._since > COPIED_BYTES / BYTES_PER_SECOND:
            self.parts.own_elements()
            self._may_be_mapped = False

    def _check_length(self, num_bytes: int) -> None:
        chunk = self._chunk
        if num_bytes != chunk.num_bytes:
            name = name_of_chunk(self._byte_setter)
            check_length(num_bytes, chunk.shape, chunk.dtype, chunk.stored, name)

    def _write(self, descriptor: int, is_wanted: IsWanted) -> None:
        if self._rewrites:
            for block in self.parts.blocks():
                _stop_unless(is_wanted())
                block.rewrite(descriptor)
        else:
            pace = _Pace()
            for pieces in self.parts.pieces():
                _stop_unless(is_wanted())
                pieces.write(descriptor, pace)
        if _trace.active:
            num_bytes = self.parts.elements.size * self._chunk.stored.itemsize
            counts = {"chunks_in_place": 1, "bytes_in_place": num_bytes}
            _trace.note(self._byte_setter, len(self._chunk.shape), counts)

    def _is_empty(self) -> bool:
        """Whether zarr would not store a chunk of these values and of fill values."""
        if self._spec.config.write_empty_chunks:
            return False
        nd_buffer: Any = self._spec.prototype.nd_buffer
        written = nd_buffer.from_numpy_array(self.parts.elements)
        return bool(written.all_equal(fill_value_or_default(self._spec)))

    def _create(self) -> None:
        """Make a chunk of fill values, unless somebody else makes it."""
        nd_buffer, chunk = self._spec.prototype.nd_buffer, self._chunk
        fill_value = fill_value_or_default(self._spec)
        element = nd_buffer.create(shape=(1,), dtype=chunk.dtype, order="C", fill_value=fill_value)
        item = as_bytes(self.parts.encode(element.as_numpy_array(), chunk.stored))
        chunk_files.create(self._path, functools.partial(_fill, chunk.num_bytes, item))


def _stop_unless(is_wanted: bool) -> None:  # noqa: FBT001
    if not is_wanted:
        raise InterruptedError("the write was cancelled")


def _fill(num_bytes: int, item: UInt8Array, descriptor: int) -> None:
    os.ftruncate(descriptor, num_bytes)
    if not item.any():
        return  # the system fills it with zeros
    block = np.tile(item, max(FILL_BYTES // len(item), 1)).data
    for start in range(0, num_bytes, len(block)):
        write_at(descriptor, block[: num_bytes - start], start)


def _parts_of(chunk: Chunk, values: Any, encode: Encode) -> "_Product | _Points":
    """Return where values belong in a chunk."""
    shape = chunk.shape
    selectors = selectors_of(chunk.selection, len(shape))
    strides = tuple(
        stride * chunk.stored.itemsize for stride in strides_of(shape, chunk.axis_order)
    )
    arrays = [s for s in selectors if isinstance(s, np.ndarray) and s.dtype != bool]
    if len(shape) == len(arrays) == 1 or (arrays and are_points(selectors)):
        positions = parse_points(selectors, shape, strides)
        if positions is not None:
            return _Points(chunk, positions, values, encode)
    elif (axes := parse_axes(selectors, shape)) is not None:
        return _Product(chunk, axes, strides, values, encode)
    raise NotInPlace(f"its selection, {chunk.selection!r}, is not known")


def _elements_of(chunk: Chunk, shape: tuple[int, ...], values: Any) -> Array:
    """Return values in the shape of a selection, in the dtype of the chunk."""
    if type(values) is np.ndarray and values.dtype == chunk.dtype:
        if values.shape == shape:
            return values
        if values.ndim <= len(shape):
            with contextlib.suppress(ValueError):  # NumPy's own below is the one that is known
                return np.broadcast_to(values, shape)
    if shape:
        elements: Array = np.empty(shape, chunk.dtype)
        elements[...] = values
        return elements
    # NumPy takes other values for an element than for an array without axes.
    one = np.empty((1,) * len(chunk.shape), chunk.dtype)
    one[(0,) * one.ndim] = values
    return one.reshape(())


class _Product:
    """Elements that belong to a product of one set of indices per axis.

    Attributes
    ----------
    elements : numpy.ndarray
        The elements in memory, in the shape of the selection.
    encode : callable
        See `Writes`.
    num_pieces : int
        Number of contiguous pieces.
    num_blocks : int
        Number of blocks that contain them.
    """

    def __init__(
        self,
        chunk: Chunk,
        axes: list[Axis],
        strides: tuple[int, ...],
        values: Any,
        encode: Encode,
    ) -> None:
        self.encode, self._stored = encode, chunk.stored
        shape = tuple(axis.num_selected for axis in axes if not axis.is_dropped)
        self.elements = _elements_of(chunk, shape, values)
        self._expand = tuple(None if axis.is_dropped else slice(None) for axis in axes)
        # From here on, axes are in the order in which they are stored.
        self._order = chunk.axis_order or tuple(range(len(axes)))
        self._offsets = [_times(axes[k].indices, strides[k]) for k in self._order]
        self._sources = [_last_of(axes[k]) for k in self._order]
        if not all(map(len, self._offsets)):
            self.num_pieces = 0
            return
        item_size = chunk.stored.itemsize
        outer, length = _runs(self._offsets, item_size)
        self.num_pieces = math.prod(map(len, outer))
        self._blocks = _cuts(self._offsets, item_size, BLOCK_BYTES)
        self.num_blocks = math.prod(map(len, self._blocks))
        self._piece_bytes = min(MAX_BYTES, MAX_PIECES * length)

    def own_elements(self) -> None:
        """Copy the elements."""
        self.elements = self.elements.copy()

    def pieces(self) -> "Iterator[_Pieces]":
        """Yield some pieces after the other, in the order in which they are stored."""
        packed: list[range] = []
        step = self._stored.itemsize
        for along in reversed(self._offsets):
            packed.insert(0, range(0, step * len(along), step))
            step *= len(along)
        for cut in itertools.product(*_cuts(packed, self._stored.itemsize, self._piece_bytes)):
            offsets = [along[part] for along, part in zip(self._offsets, cut, strict=True)]
            outer, length = _runs(offsets, self._stored.itemsize)
            start = sum(int(along[0]) for along in offsets)
            starts = _sums(outer) + (start - sum(int(along[0]) for along in outer))
            raw = as_bytes(self.encode(self._elements_in(cut), self._stored))
            yield _Pieces(starts, length, raw)

    def blocks(self) -> "Iterator[_Block]":
        """Yield some blocks after the other, in the order in which they are stored."""
        item_size = self._stored.itemsize
        for cut in itertools.product(*self._blocks):
            offsets = [along[part] for along, part in zip(self._offsets, cut, strict=True)]
            start = sum(int(along[0]) for along in offsets)
            steady = [k for k, along in enumerate(offsets) if isinstance(along, range)]
            others = [k for k in range(len(offsets)) if k not in steady]
            starts = _sums([offsets[k] for k in others])
            elements = self._elements_in(cut).transpose([*others, *steady])
            raw = as_bytes(self.encode(elements, self._stored))
            yield _Block(
                start,
                _span(offsets, item_size),
                starts - int(starts[0]),
                tuple(len(offsets[k]) for k in steady),
                tuple(int(getattr(offsets[k], "step", 0)) for k in steady),
                raw.view(f"V{item_size}"),
            )

    def _elements_in(self, cut: tuple[slice, ...]) -> Array:
        elements: Any = self.elements[(*self._expand, ...)].transpose(self._order)
        sources = list(zip(self._sources, cut, strict=True))
        elements = elements[(*(c if s is None else slice(None) for s, c in sources), ...)]
        for k, (source, part) in enumerate(sources):
            if source is not None:
                elements = elements.take(source[part], k)
        return elements  # type: ignore[no-any-return]


def _times(indices: range | Indices, stride: int) -> range | Indices:
    """Return the offsets of indices along an axis, in bytes."""
    if isinstance(indices, range):
        return range(indices.start * stride, indices.stop * stride, indices.step * stride)
    return indices * stride


def _last_of(axis: Axis) -> Indices | None:
    """Return where each of the indices was selected last; None if all were selected in order."""
    if axis.order is None:
        return None
    last = np.empty(len(axis.indices), np.intp)
    last[axis.order] = np.arange(len(axis.order))
    return last


def _runs(offsets: Sequence[Any], item_size: int) -> tuple[list[Any], int]:
    """Return the offsets along the axes along which contiguous runs lie, and a run's length."""
    outer, length = list(offsets), item_size
    while outer and (len(outer[-1]) == 1 or getattr(outer[-1], "step", None) == length):
        length *= len(outer.pop())
    return outer, length


def _span(offsets: Sequence[Any], item_size: int) -> int:
    """Return the number of bytes from the first to the last element."""
    return item_size + sum(int(along[-1]) - int(along[0]) for along in offsets)


def _sums(offsets: Sequence[Any]) -> Indices:
    """Return the sums of the offsets along all axes, in C order."""
    sums: Indices = np.zeros(1, np.intp)
    for along in offsets:
        sums = np.add.outer(sums, as_array(along)).ravel()
    return sums


def _cuts(offsets: Sequence[Any], item_size: int, max_bytes: int) -> list[list[slice]]:
    """Cut a product along its axes; no part spans more than `max_bytes`, or it is one element."""
    cuts = [[slice(0, len(along))] for along in offsets]
    for k, along in enumerate(offsets):
        inner = _span(offsets[k + 1 :], item_size)
        room = max(max_bytes - inner, 0)
        if isinstance(along, range):
            num = 1 + room // along.step
            cuts[k] = [slice(i, min(i + num, len(along))) for i in range(0, len(along), num)]
        else:
            starts = np.flatnonzero(np.diff((along - along[0]) // (room + 1))) + 1
            edges = [0, *starts.tolist(), len(along)]
            cuts[k] = [slice(*pair) for pair in itertools.pairwise(edges)]
        if inner <= max_bytes:
            break
    return cuts


class _Points:
    """Elements that belong to points; attributes are those of `_Product`."""

    def __init__(self, chunk: Chunk, positions: Indices, values: Any, encode: Encode) -> None:
        self.encode, self._stored = encode, chunk.stored
        self.elements = _elements_of(chunk, positions.shape, values)
        self._positions: Indices = positions.ravel()
        self._order: Indices | None = None
        self.num_pieces = num = len(self._positions)
        if not num:
            return
        self._edges = [0, num]
        span = int(self._positions.max()) - int(self._positions.min())
        if num <= SHORT_PER_BLOCK or span >= DENSE_BYTES * num:
            self._sort(span)
        self.num_blocks = len(self._edges) - 1

    def _sort(self, span: int) -> None:
        """Sort by block; of the points at one place, the last one stays the last."""
        blocks = self._positions // BLOCK_BYTES
        if (np.diff(blocks) < 0).any():
            # NumPy sorts short integers without comparing them.
            is_short = span // BLOCK_BYTES < np.iinfo(np.uint16).max
            keys = (blocks - blocks.min()).astype(np.uint16) if is_short else blocks
            self._order = np.argsort(keys, kind="stable")
            self._positions, blocks = self._positions[self._order], blocks[self._order]
        cuts = np.flatnonzero(np.diff(blocks)) + 1
        self._edges = [0, *cuts.tolist(), self.num_pieces]

    def own_elements(self) -> None:
        """Copy the elements."""
        self.elements = self.elements.copy()

    def pieces(self) -> "Iterator[_Pieces]":
        """Yield some points after the other."""
        for first in range(0, self.num_pieces, MAX_PIECES):
            some = slice(first, first + MAX_PIECES)
            yield _Pieces(self._positions[some], self._stored.itemsize, self._raw(some))

    def blocks(self) -> "Iterator[_Block]":
        """Yield some blocks after the other."""
        item_size = self._stored.itemsize
        for first, last in itertools.pairwise(self._edges):
            positions = self._positions[first:last]
            start, end = int(positions.min()), int(positions.max()) + item_size
            raw = self._raw(slice(first, last)).view(f"V{item_size}")
            yield _Block(start, end - start, positions - start, (), (), raw)

    def _raw(self, some: slice) -> UInt8Array:
        elements = self.elements.ravel()
        elements = elements[some] if self._order is None else elements[self._order[some]]
        return as_bytes(self.encode(elements, self._stored))


class _Block(NamedTuple):
    """Bytes that are read, changed and written.

    Attributes
    ----------
    start, num_bytes : int
        First byte of it in the chunk, and its length.
    starts : numpy.ndarray
        Where elements begin in the block in bytes, shape ``(num,)``.
    shape, steps : tuple of int
        How many elements belong to each of these along further axes, and their distances in bytes.
    raw : numpy.ndarray
        The elements as stored, of dtype ``V``, in C order of `starts` and the further axes.
    """

    start: int
    num_bytes: int
    starts: Indices
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    raw: Array

    def rewrite(self, descriptor: int) -> None:
        """Read it, change it and write it; of elements at the same place, the last one wins."""
        block = np.empty(self.num_bytes, np.uint8)
        read_at(descriptor, block, self.start)
        further = sum((n - 1) * step for n, step in zip(self.shape, self.steps, strict=True))
        # What begins at each byte.
        shape = (self.num_bytes - further - self.raw.itemsize + 1, *self.shape)
        at: Array = np.ndarray(shape, self.raw.dtype, block, strides=(1, *self.steps))
        if len(self.starts) == 1:
            at[self.starts[0]] = self.raw.reshape(self.shape)
        else:
            at[self.starts] = self.raw.reshape(len(self.starts), *self.shape)
        write_at(descriptor, block.data, self.start)


class _Pieces(NamedTuple):
    """Pieces of a chunk.

    Attributes
    ----------
    starts : numpy.ndarray
        Where each piece begins in the chunk in bytes, shape ``(num_pieces,)``.
    length : int
        Length of each piece in bytes.
    raw : numpy.ndarray
        The pieces end to end, uint8.
    """

    starts: Indices
    length: int
    raw: UInt8Array

    def write(self, descriptor: int, pace: "_Pace") -> None:
        """Write each piece; adjacent ones at once."""
        raw, pwrite = self.raw.data, os.pwrite
        is_edge = np.ones(len(self.starts) + 1, bool)
        is_edge[1:-1] = np.diff(self.starts) != self.length
        edges = np.flatnonzero(is_edge)
        starts, places = self.starts[edges[:-1]], edges * self.length
        ends = starts + np.diff(places)
        first = 0
        while first < len(starts):
            some = slice(first, pace.num_pieces(starts[first:], ends[first:]) + first)
            begin = time.perf_counter()
            if pace.reads_ahead and some.stop > first + 1:
                low, high = int(starts[some].min()), int(ends[some].max())
                if high - low <= AHEAD_BYTES:
                    read_at(descriptor, np.empty(high - low, np.uint8), low)
            for start, place, end in zip(
                starts[some].tolist(),
                places[some].tolist(),
                places[first + 1 : some.stop + 1].tolist(),
                strict=True,
            ):
                if (
                    end - place > MAX_BYTES
                    or pwrite(descriptor, raw[place:end], start) < end - place
                ):
                    write_at(descriptor, raw[place:end], start)
            pace.note(some.stop - first, time.perf_counter() - begin)
            first = some.stop


class _Pace:
    """Whether to read what contains short pieces before they are written.

    To change a part of a page that is not in the page cache, the system reads that page first, one
    page after the other. If that is slow, longer reads may take less time.

    Attributes
    ----------
    reads_ahead : bool
        Whether pieces are read first.
    """

    def __init__(self) -> None:
        self.reads_ahead = False
        self._times: list[float] = []  # per piece
        self._is_decided = False

    def num_pieces(self, starts: Indices, ends: Indices) -> int:
        """Return how many of some pieces to write at a time."""
        if self.reads_ahead:
            return max(int(np.searchsorted(ends, starts[0] + AHEAD_BYTES)), 1)
        return len(starts) if self._is_decided else min(NUM_PIECES_TIMED, len(starts))

    def note(self, num: int, seconds: float) -> None:
        """Decide how to go on after some pieces took so long."""
        if self._is_decided:
            return
        self._times.append(seconds / num)
        if self.reads_ahead:
            self.reads_ahead = num > 1 and self._times[-1] < min(self._times[:-1])
            self._is_decided = True
        elif self._times[-1] < SLOW_PIECE_SECONDS:
            self._is_decided = True
        else:
            self.reads_ahead = len(self._times) == NUM_TIMED


def check_pipeline() -> None:
    """Say that a chunk is not written in place: it is not written by one of our pipelines.

    Raises
    ------
    RuntimeError
        If `numcodecs_bytes.write_in_place` is "require".
    """
    if not (mode := configured_write_in_place()):
        return
    if mode == "require":
        raise RuntimeError(
            "the option numcodecs_bytes.write_in_place requires a pipeline of numcodecs_bytes, but "
            f"this array was opened with another one; {_remedy()}"
        )
    _warn()


def _remedy() -> str:
    if has_pipeline():
        return "open it again"
    return (
        f"codec_pipeline.path is {zarr.config.get('codec_pipeline.path')}: set it to "
        "numcodecs_bytes.zarr_pipeline.BytesPipeline, and open the array again"
    )


def has_pipeline() -> bool:
    """Whether arrays that are opened now are written by one of our pipelines."""
    return hasattr(zarr.registry.get_pipeline_class(), "_write_in_place")


@functools.cache
def _warn() -> None:
    warnings.warn(
        "numcodecs_bytes.write_in_place is set, but an array that was opened with another pipeline "
        f"than those of numcodecs_bytes is written as by zarr alone; {_remedy()}",
        stacklevel=2,
    )
