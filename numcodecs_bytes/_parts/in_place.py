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
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, TypeVar

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
from numcodecs_bytes._parts.fetch import add_name
from numcodecs_bytes._parts.getters import IsWanted
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.ranges import Indices
from numcodecs_bytes._parts.selection import (
    Axis,
    are_points,
    as_array,
    parse_axes,
    parse_points,
    selectors_of,
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
# After more than PARALLEL_BYTES of a chunk, all cores together are faster than one thread. A chunk
# that takes SLOW_SECONDS longer than its bytes at BYTES_PER_SECOND is not in the page cache; then
# SLOW_WORKERS threads wait for files.
PARALLEL_BYTES, SLOW_SECONDS, BYTES_PER_SECOND, SLOW_WORKERS = 1 << 19, 1e-3, 5e8, 10
# In how many bytes at a time a new file is filled.
FILL_BYTES = 1 << 20
# Values that may be a chunk's own memory are copied to memory up to this size, others to a file.
COPIED_BYTES = 1 << 23
# A new chunk of up to SMALL_BYTES, or MOST times what is selected of it, is put together in memory.
SMALL_BYTES, MOST = 1 << 20, 4
# How often a file that is replaced or deleted meanwhile is opened again.
MAX_TRIES = 1000
# How long the event loop waits before a lock is tried again, at first and at most. Locks of blocks
# are held for less than a millisecond.
FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS = 1e-3, 0.1
# After which time a log message says what a write is waiting for.
LONG_SECONDS = 5.0
# How long a write that is cancelled waits for its thread, and how long one waits for a lock while
# the interpreter ends.
LAST_SECONDS, EXIT_SECONDS = 1.0, 1.0

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
    layout_of : callable
        Takes the specification of a chunk and returns how it is stored.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    """

    items: Sequence[Any]
    value: Any
    drop_axes: tuple[int, ...]
    layout_of: Callable[[ArraySpec], Layout]
    encode: Encode


class Left(NamedTuple):
    """What is left to zarr.

    Attributes
    ----------
    why : str
        Why.
    values : object
        What to write, in the shape of the selection of the chunk; None means that of `Writes`.
    """

    why: str
    values: Any = None


def encode_unchecked(elements: Array, stored: AnyDType) -> Array:
    """Return elements as stored, like `encode_array`; but bools are what they are in memory."""
    if any(leaf.kind == "b" for leaf in leaf_dtypes(elements.dtype)):
        return np.ascontiguousarray(elements.astype(stored, copy=False))
    return encode_array(elements, stored)


def files_of(items: Sequence[Any]) -> list[str | Whole]:
    """Return the files of chunks, or why they can't be written in place."""
    find = writable_file_finder()
    return [find(byte_setter) for byte_setter, *_ in items]


async def write_in_place(writes: Writes, files: Mapping[int, str]) -> dict[int, Left]:
    """Write parts of chunks in local files.

    Parameters
    ----------
    writes : Writes
        All that is written.
    files : mapping
        Which of it are parts to write in place, and the files of their chunks.

    Returns
    -------
    dict
        Which of these are left to zarr.

    Raises
    ------
    ValueError
        If a chunk has the wrong length. It is not changed.
    OSError
        If a chunk can't be written. Some of the selected bytes may be.
    """
    job = _Job(writes, files)
    await _until_locked({k: writes.items[k][0] for k in files}, job.write)
    return job.left


async def hand_on(
    items: Sequence[Any],
    files: Mapping[int, str | Whole],
    write: Callable[[list[Any]], Awaitable[None]],
) -> None:
    """Let zarr write chunks; those that somebody else copies meanwhile, again.

    Parameters
    ----------
    items : sequence of tuple
        See `Writes`.
    files : mapping
        Which of them to write, and their files.
    write : callable
        Takes items and writes them.
    """

    async def run(waiting: Mapping[int, Any]) -> dict[int, Any]:
        await write([(path, *items[k][1:]) for k, path in waiting.items()])
        return {k: path for k, path in waiting.items() if getattr(path, "is_copied", False)}

    await _until_locked(
        {
            k: _UncopiedPath(items[k][0], file) if isinstance(file, str) else items[k][0]
            for k, file in files.items()
        },
        run,
    )


class _UncopiedPath(StorePath):
    """Replaces or deletes a chunk unless somebody copies it, who would undo that.

    Attributes
    ----------
    is_copied : bool
        Whether somebody did, and nothing was changed.
    """

    def __init__(self, path: StorePath, file: str) -> None:
        super().__init__(path.store, path.path)
        self._file = file
        self.is_copied = False

    async def set(self, value: Any) -> None:
        await run_in_thread(write_pool(), functools.partial(self.set_sync, value))

    async def delete(self) -> None:
        await run_in_thread(write_pool(), self.delete_sync)

    def set_sync(self, value: Any) -> None:
        store: Any = self.store
        self._change(functools.partial(store.set_sync, self.path, value))

    def delete_sync(self) -> None:
        store: Any = self.store
        self._change(functools.partial(store.delete_sync, self.path))

    def _change(self, change: Callable[[], None]) -> None:
        self.is_copied = False
        try:
            chunk_files.change_whole(self._file, change)
        except LockedError:
            self.is_copied = True


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
    while waiting:
        waiting = await run(waiting)
        if waiting:
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
    files : mapping
        See `write_in_place`.

    Attributes
    ----------
    left : dict
        Which items are left to zarr.
    """

    def __init__(self, writes: Writes, files: Mapping[int, str]) -> None:
        self._writes, self._files = writes, files
        self.left: dict[int, Left] = {}
        self._own: dict[int, Any] | None = None  # values that had to be copied
        self._first: dict[int, Any] = {}  # values that were computed already
        self._works: dict[int, _Work] = {}

    async def write(self, waiting: Mapping[int, Any]) -> dict[int, Any]:
        """Write chunks; return those that somebody else has locked."""
        todo, locked = deque(waiting), list[int]()
        num = await _in_thread(functools.partial(self._run, todo, locked, may_stop=True))
        runs = [functools.partial(self._run, todo, locked) for _ in range(min(num, len(todo)))]
        for found in await asyncio.gather(*map(_in_thread, runs), return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
        return {k: waiting[k] for k in locked}

    def _run(
        self, todo: deque[int], locked: list[int], is_wanted: IsWanted, *, may_stop: bool = False
    ) -> int:
        """Write chunks; return how many threads are worth their while for those that are left."""
        if self._own is None:
            try:
                self._own = self._copied() if self._must_be_copied() else {}
            except OSError as error:
                why = f"the values, which may be its memory, can't be copied ({error})"
                self.left.update(dict.fromkeys(todo, Left(why)))
                return 0
        pace = _Pace()
        while todo:
            start = time.perf_counter()
            try:
                k = todo.popleft()
            except IndexError:  # another thread has taken it
                break
            num_bytes = self._write(k, locked, pace, is_wanted)
            seconds = time.perf_counter() - start
            # What else takes an index may not be read by several threads.
            if may_stop and isinstance(self._writes.value, np.ndarray):
                if seconds > SLOW_SECONDS + num_bytes / BYTES_PER_SECOND:
                    return SLOW_WORKERS
                if num_bytes > PARALLEL_BYTES:
                    return os.cpu_count() or 1
        return 0

    def _write(self, k: int, locked: list[int], pace: "_Pace", is_wanted: IsWanted) -> int:
        """Write a chunk, unless it is locked or left to zarr; return how many bytes of it."""
        byte_setter = self._writes.items[k][0]
        try:
            work = self._works.pop(k, None) or self._work(k)
            if work.parts.num_pieces:
                work.write(pace, is_wanted)
        except LockedError:
            self._works[k] = work
            locked.append(k)
        except NotInPlace as why:
            own: Any = self._own
            self.left[k] = Left(str(why), own.get(k))
        except Exception as error:
            add_name(error, byte_setter, "writing")
            raise
        else:
            return work.num_bytes
        return 0

    def _must_be_copied(self) -> bool:
        """Whether the values may be the memory of one of the chunks, which changes them."""
        value: Any = self._writes.value
        if not isinstance(value, np.ndarray):
            if not getattr(value, "shape", ()):
                return False
            k = next(iter(self._files))
            place, shape = self._writes.items[k][3], value.shape
            selectors = place if isinstance(place, tuple) else (place,)
            if any(isinstance(selector, np.ndarray) for selector in selectors):
                value = value[(slice(0, 1),) * len(shape)]  # a view, if it has any
            else:
                value = self._first[k] = self._values_of(k)
        return _may_be_mapped(np.asarray(value)) and any(map(os.path.lexists, self._files.values()))

    def _copied(self) -> dict[int, Any]:
        """Return copies of the values of each chunk, in a file without a name if they are many."""
        copies: dict[int, Any] = {}
        num_bytes = 0
        with contextlib.ExitStack() as stack:
            file: Any = None
            for k in self._files:
                values = np.asarray(self._values_of(k))
                num_bytes += values.nbytes
                if num_bytes <= COPIED_BYTES:
                    copies[k] = values.copy()
                    continue
                if file is None:
                    folder = self._writes.items[k][0].store.root
                    file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                copies[k] = _write_to(file, values)
        return copies

    def _values_of(self, k: int) -> Any:
        """Return what zarr assigns to the selection of a chunk."""
        if k in self._first:
            return self._first.pop(k)
        value = self._writes.value
        _, spec, selection, place, *_ = self._writes.items[k]
        if selection == () or is_scalar(value, spec.dtype.to_native_dtype()):
            return value
        values = np.asarray(value[place])
        if self._writes.drop_axes:
            axes = range(len(spec.shape))
            dropped = self._writes.drop_axes
            values = values[tuple(None if axis in dropped else slice(None) for axis in axes)]
        return values

    def _work(self, k: int) -> "_Work":
        _, spec, selection, *_ = self._writes.items[k]
        layout = self._writes.layout_of(spec)
        if not layout.item_size:
            raise NotInPlace("its elements have no bytes")
        own: Any = self._own
        values = own[k] if k in own else self._values_of(k)
        parts = _parts_of(layout, selection, values, self._writes.encode)
        return _Work(self._writes.items[k], self._files[k], layout, parts)


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


def _write_to(file: BinaryIO, array: Array) -> Array:
    """Write an array to the end of a file, and map it from there."""
    start = file.seek(0, os.SEEK_END)
    size = max(FILL_BYTES // array.itemsize, 1)
    blocks: Any = np.nditer(
        array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=size
    )
    file.writelines(as_bytes(np.ascontiguousarray(block)).data for block in blocks)
    file.flush()
    return np.memmap(file, array.dtype, "r", start, array.shape)


class _Work:
    """What is written to a chunk.

    Parameters
    ----------
    item : tuple
        See `Writes`.
    path : str
        The file of the chunk.
    layout : Layout
        How it is stored.
    parts : _Product or _Points
        The values, and where they belong.

    Attributes
    ----------
    num_bytes : int
        How many bytes are selected.
    """

    def __init__(self, item: Any, path: str, layout: Layout, parts: "_Product | _Points") -> None:
        self.parts = parts
        self._byte_setter, self._spec, self._selection, *_ = item
        self._path, self._layout = path, layout
        self.num_bytes = parts.elements.size * layout.item_size
        self._rewrites = parts.num_pieces > SHORT_PER_BLOCK * parts.num_blocks
        self._since = 0.0  # when the lock was refused first

    def write(self, pace: "_Pace", is_wanted: IsWanted) -> None:
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
                    is_missing = False
                    if self._create():
                        return
                is_exclusive = self._rewrites or has_other_name
                with chunk_files.locked(self._path, is_exclusive=is_exclusive) as (file, found):
                    self._check_length(found.st_size)
                    has_other_name = chunk_files.has_other_name(file, self._path, found)
                    if not has_other_name:
                        self._write(file, pace, is_wanted)
                        return
                    if is_exclusive:
                        chunk_files.replace(file, self._path, found.st_size, is_wanted)
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

    def _check_length(self, num_bytes: int) -> None:
        layout = self._layout
        if num_bytes != layout.num_bytes:
            name = name_of_chunk(self._byte_setter)
            check_length(num_bytes, layout.shape, layout.dtype, layout.stored, name)

    def _write(self, descriptor: int, pace: "_Pace", is_wanted: IsWanted) -> None:
        if self._rewrites:
            for block in self.parts.blocks():
                _stop_unless(is_wanted())
                block.rewrite(descriptor)
        else:
            pace.begin()
            for pieces in self.parts.pieces():
                _stop_unless(is_wanted())
                pieces.write(descriptor, pace)
        self._note()

    def _note(self) -> None:
        if _trace.active:
            counts = {"chunks_in_place": 1, "bytes_in_place": self.num_bytes}
            _trace.note(self._byte_setter, len(self._layout.shape), counts)

    def _is_empty(self) -> bool:
        """Whether zarr would not store a chunk of these values and of fill values."""
        elements = self.parts.elements
        if self._spec.config.write_empty_chunks:
            return False
        nd_buffer: Any = self._spec.prototype.nd_buffer
        fill_value = fill_value_or_default(self._spec)
        some = elements[(slice(0, 1),) * elements.ndim]  # most often, this one is different
        return all(nd_buffer.from_numpy_array(e).all_equal(fill_value) for e in (some, elements))

    def _create(self) -> bool:
        """Make a chunk of fill values, unless somebody else makes it.

        Returns whether it is written: one that is small, or mostly selected, in one go.
        """
        layout, elements = self._layout, self.parts.elements
        num_bytes = self.parts.block_bytes if self._rewrites else self.num_bytes
        is_whole = layout.num_bytes <= max(SMALL_BYTES, MOST * num_bytes)
        shape = layout.shape if is_whole else (1,) * len(layout.shape)
        filled: Any = self._spec.prototype.nd_buffer.create(
            shape=shape,
            dtype=layout.dtype,
            order="C",
            fill_value=fill_value_or_default(self._spec),
        ).as_numpy_array()
        if is_whole:
            filled[self._selection] = elements
            filled = filled.transpose(layout.axis_order or range(len(shape)))
        raw = as_bytes(self.parts.encode(filled, layout.stored))
        is_made = chunk_files.create(self._path, functools.partial(_fill, layout.num_bytes, raw))
        if is_made and is_whole:
            self._note()
        return is_made and is_whole


def _stop_unless(is_wanted: bool) -> None:  # noqa: FBT001
    if not is_wanted:
        raise InterruptedError("the write was cancelled")


def _fill(num_bytes: int, repeated: UInt8Array, descriptor: int) -> None:
    os.ftruncate(descriptor, num_bytes)
    if len(repeated) < num_bytes and not repeated.any():
        return  # the system fills it with zeros
    num = min(FILL_BYTES, num_bytes) // len(repeated)
    block = np.tile(repeated, num).data if num > 1 else repeated.data
    for start in range(0, num_bytes, len(block)):
        write_at(descriptor, block[: num_bytes - start], start)


def _parts_of(layout: Layout, selection: Any, values: Any, encode: Encode) -> "_Product | _Points":
    """Return where values belong in a chunk."""
    shape = layout.shape
    selectors = selectors_of(selection, len(shape))
    strides = tuple(stride * layout.item_size for stride in layout.strides)
    arrays = [s for s in selectors if isinstance(s, np.ndarray) and s.dtype != bool]
    if len(shape) == len(arrays) == 1 or (arrays and are_points(selectors)):
        positions = parse_points(selectors, shape, strides)
        if positions is not None:
            return _Points(layout, positions, values, encode)
    elif (axes := parse_axes(selectors, shape)) is not None:
        return _Product(layout, axes, strides, values, encode)
    raise NotInPlace(f"its selection, {selection!r}, is not known")


def _elements_of(layout: Layout, shape: tuple[int, ...], values: Any) -> Array:
    """Return values in the shape of a selection, in the dtype of the chunk."""
    if type(values) is np.ndarray and values.dtype == layout.dtype:
        if values.shape == shape:
            return values
        if values.ndim <= len(shape):
            with contextlib.suppress(ValueError):  # NumPy's own below is the one that is known
                return np.broadcast_to(values, shape)
    if shape:
        elements: Array = np.empty(shape, layout.dtype)
        elements[...] = values
        return elements
    # NumPy takes other values for an element than for an array without axes.
    one = np.empty((1,) * len(layout.shape), layout.dtype)
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
    num_blocks, block_bytes : int
        Number of blocks that contain them, and of the bytes of these at most.
    """

    def __init__(
        self,
        layout: Layout,
        axes: list[Axis],
        strides: tuple[int, ...],
        values: Any,
        encode: Encode,
    ) -> None:
        self.encode, self._stored = encode, layout.stored
        shape = tuple(axis.num_selected for axis in axes if not axis.is_dropped)
        self.elements = _elements_of(layout, shape, values)
        self._expand = tuple(None if axis.is_dropped else slice(None) for axis in axes)
        # From here on, axes are in the order in which they are stored.
        self._order = layout.axis_order or tuple(range(len(axes)))
        self._offsets = [_times(axes[k].indices, strides[k]) for k in self._order]
        self._sources = [_last_of(axes[k]) for k in self._order]
        if not all(map(len, self._offsets)):
            self.num_pieces = self.num_blocks = self.block_bytes = 0
            return
        item_size = layout.item_size
        outer, length = _runs(self._offsets, item_size)
        self.num_pieces = math.prod(map(len, outer))
        self._blocks = _cuts(self._offsets, item_size, BLOCK_BYTES)
        self.num_blocks = math.prod(map(len, self._blocks))
        self.block_bytes = self.num_blocks * BLOCK_BYTES
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

    def __init__(self, layout: Layout, positions: Indices, values: Any, encode: Encode) -> None:
        self.encode, self._stored = encode, layout.stored
        self.elements = _elements_of(layout, positions.shape, values)
        self._positions: Indices = positions.ravel()
        self._order: Indices | None = None
        self.num_pieces = self.num_blocks = num = len(self._positions)
        self.block_bytes = 0
        if not num:
            return
        self._edges = [0, num]
        span = int(self._positions.max()) - int(self._positions.min())
        self.block_bytes = span
        if num <= SHORT_PER_BLOCK or span >= DENSE_BYTES * num:
            self._sort(span)
            self.block_bytes = (len(self._edges) - 1) * BLOCK_BYTES
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
            starts = positions - start if start else positions
            yield _Block(start, end - start, starts, (), (), raw)

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

    def begin(self) -> None:
        """Begin with another file, of which nothing is known unless the last one was slow."""
        if not self.reads_ahead:
            self._times, self._is_decided = [], False

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
