"""Write parts of uncompressed chunks in local files at their places, and no other byte.

So disjoint writers need not wait for each other, and lose nothing. Locks (``flock``) tell those who
write parts from those who rewrite blocks:

- Few pieces are written one by one, under a shared lock.
- Many short ones take the lock exclusively. The blocks that contain them are read, changed and
  written.

A file is written only if it is still, under the lock, the one that its name stands for, a regular
file of the right length, and has no other name: a copy made of hard links shares it. A chunk that
does not exist is made at full length without a name, and then linked to its name; whoever is first
wins. Files are not memory-mapped: a full disk behind a sparse file would kill the process.
"""

import asyncio
import contextlib
import errno
import functools
import glob
import itertools
import math
import os
import secrets
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import zarr.registry
from zarr.core.array_spec import ArraySpec
from zarr.core.indexing import is_scalar

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes, encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, UInt8Array, leaf_dtypes
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._parts.boxes import Box, box_of
from numcodecs_bytes._parts.fetch import Chunk, add_name
from numcodecs_bytes._parts.getters import IsWanted
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.plan import strides_of
from numcodecs_bytes._parts.ranges import Indices
from numcodecs_bytes._parts.settings import configured_write_in_place
from numcodecs_bytes._parts.stores import Whole, file_to_write
from numcodecs_bytes._threads import is_ending, run_in_thread, write_pool
from numcodecs_bytes._zarr_versions import fill_value_or_default

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# From SHORT_PER_BLOCK pieces per block of BLOCK_BYTES on, to read and rewrite the block takes less
# time than to write them one by one: 45 us, and 1.5 us for each piece.
BLOCK_BYTES, SHORT_PER_BLOCK = 1 << 18, 32
# In how many bytes at a time a new file is filled.
FILL_BYTES = 1 << 20
# How often a file that is replaced or deleted meanwhile is opened again.
MAX_TRIES = 1000
# Points that are so close to each other on average are not sorted: all between the first and the
# last is read and rewritten.
DENSE_BYTES = 256
# How many pieces are planned at a time.
MAX_PIECES = 1 << 16
# How long to wait before trying to lock a file again, at first and at most.
WAIT_SECONDS, MAX_WAIT_SECONDS = 5e-5, 5e-3
# How long a write that is cancelled waits for its thread, and a thread for a lock at exit.
LAST_SECONDS, EXIT_SECONDS = 1.0, 5.0
# What says that there are no locks, that a file can't be opened for writing, and that one can't be
# made or get a second name.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NOT_WRITABLE = (
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOTDIR),
    *(errno.ELOOP, errno.ETXTBSY, errno.EISDIR, errno.ENXIO),
)
_WITHOUT_NAMES = (
    *(errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
    *(errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV),
)


class NotInPlace(Exception):  # noqa: N818 # not an error
    """A chunk can't be written in place, but as zarr does it."""


Encode = Callable[[Array, AnyDType], Array]


class Writes(NamedTuple):
    """Values to write to parts of chunks.

    Attributes
    ----------
    items : sequence of tuple
        What zarr passes to the `write` of its pipelines: byte setter, specification of the chunk,
        selection of it, selection of `value`, and whether that is all of the chunk.
    value : numpy.ndarray
        The values.
    drop_axes : tuple of int
        Axes of length 1 of the selections that are missing in `value`.
    chunk_of : callable
        Takes the specification of a chunk and returns the chunk, with any selection.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    """

    items: Sequence[Any]
    value: Array
    drop_axes: tuple[int, ...]
    chunk_of: Callable[[ArraySpec], Chunk]
    encode: Encode


def encode_unchecked(elements: Array, stored: AnyDType) -> Array:
    """Return elements as stored, like `encode_array`; but bools are what they are in memory."""
    if any(leaf.kind == "b" for leaf in leaf_dtypes(elements.dtype)):
        return np.ascontiguousarray(elements.astype(stored, copy=False))
    return encode_array(elements, stored)


def warn_without_pipeline() -> None:
    """Warn, once, if `numcodecs_bytes.write_in_place` is set, but not one of our pipelines."""
    if configured_write_in_place() and not has_pipeline():
        _warn()


def has_pipeline() -> bool:
    """Whether arrays that are opened now are written by one of our pipelines."""
    return hasattr(zarr.registry.get_pipeline_class(), "_write_in_place")


@functools.cache
def _warn() -> None:
    warnings.warn(
        "numcodecs_bytes.write_in_place is set, but codec_pipeline.path is "
        f"{zarr.config.get('codec_pipeline.path')}: arrays that are opened with it are written as "
        "by zarr alone; set it to numcodecs_bytes.zarr_pipeline.BytesPipeline before",
        stacklevel=2,
    )


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
    if not _has_own_memory(writes.value):  # perhaps it is one of the chunks, mapped
        writes = writes._replace(value=writes.value.copy())
    is_cancelled, caller, ending_since = False, threading.get_ident(), 0.0

    def is_wanted() -> bool:
        nonlocal ending_since
        if is_cancelled or threading.get_ident() == caller or not is_ending():
            return not is_cancelled
        ending_since = ending_since or time.monotonic()
        return time.monotonic() - ending_since < EXIT_SECONDS

    def run() -> dict[int, str]:
        left = {}
        for k, item in enumerate(writes.items):
            if (why := _write_or_leave(writes, item, is_wanted)) is not None:
                left[k] = why
        return left

    # Not the pool of reads, which need not wait for a lock.
    writing = asyncio.ensure_future(run_in_thread(write_pool(), run))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        is_cancelled = True
        done, _ = await asyncio.wait([writing], timeout=LAST_SECONDS)
        for write in done:
            write.exception()  # or asyncio logs it
        writing.cancel()
        raise


def _has_own_memory(array: Any) -> bool:
    """Whether the memory of an array is NumPy's own, and not that of a file, for example."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array is None


def _write_or_leave(writes: Writes, item: Any, is_wanted: IsWanted) -> str | None:
    """Write an item; return why it is left to zarr, or None."""
    byte_setter, _, _, _, is_complete, *_ = item
    if is_complete:
        return ""
    path = file_to_write(byte_setter)
    if isinstance(path, Whole):
        return path.why
    try:
        _write(writes, path, item, is_wanted)
    except NotInPlace as why:
        return str(why)
    except Exception as error:
        add_name(error, byte_setter, "writing")
        raise
    return None


def _values(writes: Writes, spec: ArraySpec, selection: Any, place: Any) -> Any:
    """Return what zarr assigns to the selection of a chunk."""
    value = writes.value
    if selection == () or is_scalar(value, spec.dtype.to_native_dtype()):
        return value
    value = value[place]
    if writes.drop_axes:
        axes = range(len(spec.shape))
        value = value[tuple(None if k in writes.drop_axes else slice(None) for k in axes)]
    return value


class _Box:
    """A selection of slices and integers, and what to write to it.

    Attributes
    ----------
    elements : numpy.ndarray
        The elements in memory, in the shape of the box.
    are_short : bool
        Whether to rewrite the blocks that contain its runs.
    """

    def __init__(self, chunk: Chunk, box: Box, values: Any, encode: Encode) -> None:
        self._stored, self._box, self._encode = chunk.stored, box, encode
        is_plain = type(values) is np.ndarray and values.dtype == chunk.dtype
        if is_plain and values.shape == box.shape:
            self.elements: Array = values
        elif box.shape:
            self.elements = np.empty(box.shape, chunk.dtype)
            self.elements[...] = values
        else:  # NumPy takes other values for an element than for an array without axes
            one = np.empty((1,) * len(chunk.shape), chunk.dtype)
            one[(0,) * one.ndim] = values
            self.elements = one.reshape(())
        self.are_short = box.num_runs > SHORT_PER_BLOCK * box.num_parts(BLOCK_BYTES)

    def write(self, descriptor: int) -> None:
        """Write each run."""
        box = self._box
        elements = self.elements.transpose([box.kept.index(k) for k in box.order if k in box.kept])
        starts, length = box.runs()
        raw = as_bytes(self._encode(np.ascontiguousarray(elements), self._stored))
        _Pieces(starts, length, raw).write(descriptor)

    def rewrite(self, descriptor: int) -> None:
        """Read the blocks that contain the box, change them and write them."""
        item = np.dtype(f"V{self._box.item_size}")
        for place, part in self._box.split(BLOCK_BYTES):
            elements = np.ascontiguousarray(self.elements[place])
            raw = as_bytes(self._encode(elements, self._stored)).view(item)
            block = np.empty(part.num_bytes, np.uint8)
            _read_at(descriptor, block, part.start)
            strides = [part.steps[k] for k in part.kept]
            selected: Array = np.ndarray(part.shape, item, block, strides=strides)
            selected[...] = raw.reshape(part.shape)
            _write_at(descriptor, block.data, part.start)


class _Indices:
    """Any other selection, and what to write to it; attributes are those of `_Box`."""

    def __init__(
        self, chunk: Chunk, selectors: tuple[Any, ...], values: Any, encode: Encode
    ) -> None:
        self._chunk, self._encode = chunk, encode
        self._along = _along_axes(selectors, chunk.shape)
        self._positions: Any = None
        if self._along is None:
            self._positions = _positions(chunk, selectors)
            shape = self._positions.shape
        else:
            shape = tuple(map(len, self._along))
        self.elements: Array = np.empty(shape, chunk.dtype)
        self.elements[...] = values
        self._is_dense = False
        if self._positions is not None and self._positions.size > SHORT_PER_BLOCK:
            self._first = int(self._positions.min())
            self._num_bytes = int(self._positions.max()) + chunk.stored.itemsize - self._first
            self._is_dense = self._num_bytes < DENSE_BYTES * self._positions.size
        first = None if self._is_dense else next(self._pieces(), None)
        self.are_short = self._is_dense or (first is not None and first.are_short)

    def write(self, descriptor: int) -> None:
        """Write each piece."""
        for pieces in self._pieces():
            pieces.write(descriptor)

    def rewrite(self, descriptor: int) -> None:
        """Read the blocks that contain the pieces, change them and write them."""
        if not self._is_dense:
            for pieces in self._pieces():
                pieces.rewrite(descriptor)
            return
        raw = as_bytes(self._encode(np.ascontiguousarray(self.elements), self._chunk.stored))
        block = np.empty(self._num_bytes, np.uint8)
        _read_at(descriptor, block, self._first)
        _set_pieces(block, self._positions.ravel() - self._first, raw, self._chunk.stored.itemsize)
        _write_at(descriptor, block.data, self._first)

    def _pieces(self) -> "Iterator[_Pieces]":
        """Yield some pieces after the other; of the same elements, the last ones win."""
        if self._along is None:
            yield self._sorted(self._positions.ravel(), self.elements.ravel())
            return
        order = self._chunk.axis_order or range(len(self._along))
        strides = strides_of(self._chunk.shape, self._chunk.axis_order)
        along = [self._along[k] * (strides[k] * self._chunk.stored.itemsize) for k in order]
        elements = self.elements.transpose(order)
        # A row of neighbours is one piece.
        is_row = bool((np.diff(along[-1]) == self._chunk.stored.itemsize).all())
        outer = along[:-1] if is_row else along
        for some in _slabs([len(offsets) for offsets in outer], MAX_PIECES):
            starts = along[-1][:1] if is_row else np.zeros(1, np.intp)
            for offsets, part in zip(outer, some, strict=True):
                starts = np.add.outer(starts, offsets[part]).ravel()
            yield self._sorted(starts, elements[some].reshape(len(starts), -1))

    def _sorted(self, starts: Indices, elements: Array) -> "_Pieces":
        if (np.diff(starts) <= 0).any():
            order = np.argsort(starts, kind="stable")
            is_last = np.append(np.diff(starts[order]) > 0, [True])  # of those at the same place
            starts, elements = starts[order[is_last]], elements[order[is_last]]
        raw = as_bytes(self._encode(np.ascontiguousarray(elements), self._chunk.stored))
        return _Pieces(starts, len(raw) // max(len(starts), 1), raw)


def _along_axes(selectors: tuple[Any, ...], shape: tuple[int, ...]) -> list[Indices] | None:
    """Return the indices along each axis; None if the selection is not a product of these."""
    arrays = [s for s in selectors if not isinstance(s, slice)]
    if not all(isinstance(s, np.ndarray) for s in arrays):
        return None
    is_mesh = len(arrays) == len(shape) and all(
        s.ndim == len(shape) and s.size == s.shape[k] for k, s in enumerate(arrays)
    )
    if not is_mesh and (len(arrays) != 1 or arrays[0].ndim != 1):
        return None
    flat = [s if isinstance(s, slice) else s.ravel() for s in selectors]
    return [np.arange(size)[s] for size, s in zip(shape, flat, strict=True)]


def _slabs(nums: list[int], max_num: int) -> Iterator[tuple[slice, ...]]:
    """Yield parts of an array of so many elements along each axis, in C order."""
    if not nums:
        yield ()
        return
    inner = [math.prod(nums[k + 1 :]) for k in range(len(nums))]
    depth = next(k for k, num in enumerate(inner) if num <= max_num)
    num, rest = max_num // max(inner[depth], 1), [slice(None)] * (len(nums) - depth - 1)
    for lead in np.ndindex(*nums[:depth]):
        for first in range(0, nums[depth], num):
            yield (*(slice(k, k + 1) for k in lead), slice(first, first + num), *rest)


class _Pieces(NamedTuple):
    """Pieces of a chunk.

    Attributes
    ----------
    starts : numpy.ndarray
        Where each piece begins in the chunk in bytes, ascending, shape ``(num_pieces,)``.
    length : int
        Length of each piece in bytes.
    raw : numpy.ndarray
        The pieces end to end, uint8.
    """

    starts: Indices
    length: int
    raw: UInt8Array

    @property
    def are_short(self) -> bool:
        """Whether to rewrite the blocks that contain the pieces."""
        num_blocks = 1 + int(np.count_nonzero(np.diff(self.starts // BLOCK_BYTES)))
        return len(self.starts) > SHORT_PER_BLOCK * num_blocks

    def write(self, descriptor: int) -> None:
        """Write each piece; adjacent ones at once."""
        starts, length, raw = self.starts, self.length, self.raw.data
        is_edge = np.ones(len(starts) + 1, bool)
        is_edge[1:-1] = np.diff(starts) != length
        first = np.flatnonzero(is_edge)
        places = first * length
        for start, place, end in zip(
            starts[first[:-1]].tolist(), places[:-1].tolist(), places[1:].tolist(), strict=True
        ):
            _write_at(descriptor, raw[place:end], start)

    def rewrite(self, descriptor: int) -> None:
        """Read the blocks that contain the pieces, change them and write them."""
        starts, length = self.starts, self.length
        cuts = np.flatnonzero(np.diff(starts // BLOCK_BYTES)) + 1
        edges = [0, *cuts.tolist(), len(starts)]
        for first, last in itertools.pairwise(edges):
            begin = int(starts[first])
            block = np.empty(int(starts[last - 1]) + length - begin, np.uint8)
            _read_at(descriptor, block, begin)
            raw = self.raw[first * length : last * length]
            _set_pieces(block, starts[first:last] - begin, raw, length)
            _write_at(descriptor, block.data, begin)


def _set_pieces(block: UInt8Array, starts: Indices, raw: UInt8Array, length: int) -> None:
    """Copy pieces of one length into a block; of those at the same place, the last one."""
    pieces = raw.view(f"V{length}")
    # The piece that begins at each byte.
    at = np.ndarray(len(block) - length + 1, pieces.dtype, block, strides=(1,))
    at[starts] = pieces


def _work_of(chunk: Chunk, values: Any, encode: Encode) -> "_Box | _Indices":
    """Return what to write of a chunk."""
    selectors = chunk.selection if isinstance(chunk.selection, tuple) else (chunk.selection,)
    selectors += (slice(None),) * (len(chunk.shape) - len(selectors))
    if all(isinstance(s, slice | int) for s in selectors):
        box = box_of(selectors, chunk.shape, chunk.stored.itemsize, chunk.axis_order)
        if box is not None:
            return _Box(chunk, box, values, encode)
    return _Indices(chunk, selectors, values, encode)


def _positions(chunk: Chunk, selectors: tuple[Any, ...]) -> Indices:
    """Return where each selected element begins in bytes, in the shape of the selection."""
    positions: Any = 0
    num_axes = len(chunk.shape)
    for k, stride in enumerate(strides_of(chunk.shape, chunk.axis_order)):
        along = np.arange(chunk.shape[k]).reshape([-1 if j == k else 1 for j in range(num_axes)])
        along = along * (stride * chunk.stored.itemsize)
        # A view without memory of its own: NumPy applies the selection, whatever it is.
        positions = positions + np.broadcast_to(along, chunk.shape)[selectors]
    return np.asarray(positions, np.intp)


def _write(writes: Writes, path: str, item: Any, is_wanted: IsWanted) -> None:
    byte_setter, spec, selection, place, *_ = item
    chunk = writes.chunk_of(spec)._replace(selection=selection)
    if not chunk.stored.itemsize:
        raise NotInPlace("its elements have no bytes")
    work = _work_of(chunk, _values(writes, spec, selection, place), writes.encode)
    if not work.elements.size:
        return
    name = name_of_chunk(byte_setter)
    for _ in range(MAX_TRIES):
        try:
            with _locked(path, is_wanted, is_exclusive=work.are_short) as descriptor:
                size = os.fstat(descriptor).st_size
                check_length(size, chunk.shape, chunk.dtype, chunk.stored, name)
                (work.rewrite if work.are_short else work.write)(descriptor)
                if _trace.active:
                    num_bytes = work.elements.size * chunk.stored.itemsize
                    counts = {"chunks_in_place": 1, "bytes_in_place": num_bytes}
                    _trace.note(byte_setter, len(chunk.shape), counts)
                return
        except _MissingError:
            if _is_empty(work.elements, spec):
                return
            _create(path, chunk, spec, writes.encode)
        except _ReplacedError:
            pass
    raise NotInPlace("it keeps being replaced")


def _is_empty(elements: Array, spec: ArraySpec) -> bool:
    """Whether zarr would not store a chunk of these values and of fill values."""
    if spec.config.write_empty_chunks:
        return False
    written: Any = spec.prototype.nd_buffer.from_numpy_array(elements)
    return bool(written.all_equal(fill_value_or_default(spec)))


class _MissingError(Exception):
    """There is no such chunk."""


class _ReplacedError(Exception):
    """The name stands for another file."""


@contextlib.contextmanager
def _locked(path: str, is_wanted: IsWanted, *, is_exclusive: bool) -> Iterator[int]:
    """Open the file of a chunk, and lock it."""
    if fcntl is None:
        raise NotInPlace("this system has no flock")
    descriptor = _open(path)
    try:
        _lock(descriptor, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH, is_wanted)
        try:
            _check(descriptor, path)
            yield descriptor
        finally:
            # Not only by closing it: a process that was forked meanwhile may hold it open.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise NotInPlace("it is not a regular file, or a symbolic link")
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _MissingError from None
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise NotInPlace(f"it can't be opened for writing ({error.strerror})") from error


def _lock(descriptor: int, how: int, is_wanted: IsWanted) -> None:
    """Wait for a lock, as long as the write is wanted: a thread that waits can't be cancelled."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    seconds = WAIT_SECONDS
    while is_wanted():
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(seconds)
            seconds = min(2 * seconds, MAX_WAIT_SECONDS)
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            raise NotInPlace(f"its file system has no locks ({error.strerror})") from error
        else:
            return
    raise InterruptedError("the write was cancelled while it waited for a lock")


def _check(descriptor: int, path: str) -> None:
    """Raise unless a locked file is the one that the name stands for, and only that name."""
    found = os.fstat(descriptor)
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        raise _MissingError from None
    if not os.path.samestat(found, named):
        raise _ReplacedError
    if found.st_nlink != 1 and not _removed_debris(path, found):
        raise NotInPlace("it has another name, a hard link")


def _removed_debris(path: str, found: os.stat_result) -> bool:
    """Remove the other name of a chunk whose writer was killed between linking and unlinking."""
    for unfinished in _unfinished(path):
        with contextlib.suppress(OSError):
            if os.path.samestat(unfinished.lstat(), found):
                unfinished.unlink()
    return Path(path).lstat().st_nlink == 1


def _unfinished(path: str) -> list[Path]:
    """Return the files that are to become a chunk, where files need a name."""
    return list(Path(path).parent.glob(f"{glob.escape(Path(path).name)}.*.unfinished"))


def _create(
    path: str, chunk: Chunk, spec: ArraySpec, encode: Callable[[Array, AnyDType], Array]
) -> None:
    """Make a chunk of fill values, unless somebody else has made it meanwhile."""
    nd_buffer = spec.prototype.nd_buffer
    fill_value = fill_value_or_default(spec)
    element = nd_buffer.create(shape=(1,), dtype=chunk.dtype, order="C", fill_value=fill_value)
    item = as_bytes(encode(element.as_numpy_array(), chunk.stored))
    fill = functools.partial(_fill, chunk.num_bytes, item)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        if not _link_unnamed(path, fill):
            _link_named(path, fill)
    except FileNotFoundError:
        return  # the folder was deleted: try again
    except OSError as error:
        if error.errno not in _WITHOUT_NAMES:
            raise
        raise NotInPlace(f"it can't be made ({error.strerror})") from error


def _fill(num_bytes: int, item: UInt8Array, descriptor: int) -> None:
    os.ftruncate(descriptor, num_bytes)
    if not item.any():
        return  # the system fills it with zeros
    block = np.tile(item, max(FILL_BYTES // len(item), 1)).data
    for start in range(0, num_bytes, len(block)):
        _write_at(descriptor, block[: num_bytes - start], start)


def _link_unnamed(path: str, fill: Callable[[int], None]) -> bool:
    """Make a chunk from a file without a name; return False if this system can't."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        descriptor = os.open(Path(path).parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return False
        raise
    try:
        fill(descriptor)
        try:
            # With `src_dir_fd`, Python calls linkat, which follows the link.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
        except FileExistsError:
            pass
        except FileNotFoundError:
            return Path("/proc/self/fd").exists()
    finally:
        os.close(descriptor)
    return True


def _link_named(path: str, fill: Callable[[int], None]) -> None:
    """Make a chunk from a file of another name, which is locked as long as it has one."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    for debris in _unfinished(path):
        _remove_unlocked(debris)
    unfinished = f"{path}.{secrets.token_hex(8)}.unfinished"
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _lock(descriptor, fcntl.LOCK_EX, lambda: True)
        try:
            fill(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(unfinished, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # somebody removed the folder
                Path(unfinished).unlink()
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _remove_unlocked(debris: Path) -> None:
    """Remove a file that a killed writer left: nobody has a lock on it."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    with contextlib.suppress(OSError), debris.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        debris.unlink()


def _write_at(descriptor: int, view: memoryview, position: int) -> None:
    while len(view):
        num = os.pwrite(descriptor, view, position)
        view, position = view[num:], position + num


def _read_at(descriptor: int, out: UInt8Array, position: int) -> None:
    view = out.data
    while len(view):
        num = os.preadv(descriptor, [view], position)
        if not num:
            raise EOFError("the file was truncated meanwhile")
        view, position = view[num:], position + num
