"""Write parts of uncompressed chunks in local files at their places, and no other byte.

So disjoint writers need not wait for each other, and lose nothing. `write_file` says how a chunk is
written, `write_chunk` and `write_shard` what belongs where in a file, `locks` what writers wait
for. Threads only try to get a lock. Who does not get it waits on the event loop, and tries again.
"""

import asyncio
import functools
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec
from zarr.core.indexing import is_scalar
from zarr.storage import LocalStore, StorePath

from numcodecs_bytes._core.copy import encode_array
from numcodecs_bytes._core.dtypes import AnyDType, Array, leaf_dtypes
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.locks import LockedError, NotInPlace
from numcodecs_bytes._engine.stores import Whole, name_of_class
from numcodecs_bytes._engine.write_chunk import ChunkFile
from numcodecs_bytes._engine.write_file import Encode
from numcodecs_bytes._engine.write_shard import ShardFile
from numcodecs_bytes._names import add_name, name_of_chunk
from numcodecs_bytes._threads import IsWanted, is_ending, run_while_wanted, write_pool

logger = logging.getLogger("numcodecs_bytes")


def writable_path(byte_setter: Any) -> str | Whole:
    """Return the path of a chunk's file, or why it is not written in place."""
    if type(byte_setter) is not StorePath:
        return Whole(f"{name_of_class(byte_setter)} is not a StorePath")
    store: Any = byte_setter.store
    if type(store) is not LocalStore:
        return Whole(f"{name_of_class(store)} is not zarr's LocalStore")
    if type(store.root) is not type(Path()):
        return Whole(f"{name_of_class(store.root)} is not a path of Python's own")
    if "set" in vars(store):  # which may encrypt, for example
        return Whole("the method `set` of this LocalStore is replaced")
    if store.read_only or not store._is_open:  # noqa: SLF001
        return Whole("the store is read-only, or closed")
    return f"{store.root}/{byte_setter.path}"


class Left(NamedTuple):
    """What is left to zarr: why, and its values if they were copied."""

    why: str
    copied: Any


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
    stored_as : callable
        Takes the specification of a chunk and returns how it is stored.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    """

    items: Sequence[Any]
    value: Any
    drop_axes: tuple[int, ...]
    stored_as: Callable[[ArraySpec], Any]
    encode: Encode

    async def write(self, files: Mapping[int, str]) -> dict[int, Left]:
        """Write those items whose files are given; return which of these are left to zarr.

        Raises
        ------
        ValueError
            If a chunk has the wrong length. It is not changed.
        OSError
            If a chunk can't be written. Some of the selected bytes may be.
        """
        job = _Job(self, files)
        waiting, told, since, ending_since = list(files), set[int](), time.monotonic(), 0.0
        seconds = constants.LAST_WAIT_SECONDS
        while waiting := await job.write(waiting):
            now = time.monotonic()
            for k in set(waiting) - told if now - since > constants.LONG_SECONDS else ():
                told.add(k)
                logger.warning(
                    "waiting for a lock on %s: another thread or process has locked its file",
                    name_of_chunk(self.items[k][0]),
                )
            if is_ending():
                ending_since = ending_since or now
                if now - ending_since > constants.EXIT_SECONDS:
                    name = name_of_chunk(self.items[waiting[0]][0])
                    raise InterruptedError(f"the program ended while a write waited to lock {name}")
            seconds = min(2 * seconds, constants.MAX_WAIT_SECONDS)
            await asyncio.sleep(seconds)
        return job.left

    def num_bytes(self) -> int:
        """Return how many bytes the values have in the dtype of the chunks."""
        dtype: AnyDType = self.items[0][1].dtype.to_native_dtype()
        return int(math.prod(np.shape(self.value))) * dtype.itemsize

    def values_of(self, k: int) -> Any:
        """Return the values for an item, in the shape of its selection."""
        _, spec, selection, place, *_ = self.items[k]
        if selection == () or is_scalar(self.value, spec.dtype.to_native_dtype()):
            return self.value
        values = np.asarray(self.value[place])
        if self.drop_axes:
            axes = range(len(spec.shape))
            values = values[tuple(None if k in self.drop_axes else slice(None) for k in axes)]
        return values


class _Job:
    """What the writes of several chunks have in common; `left` is what is left to zarr."""

    def __init__(self, writes: Writes, files: Mapping[int, str]) -> None:
        self._writes, self._files = writes, files
        self.left: dict[int, Left] = {}
        self._stored: dict[Any, Any] = {}
        self._copies: dict[int, Any] = {}
        self._locked: dict[int, ChunkFile] = {}
        self._is_array = isinstance(writes.value, np.ndarray)
        # Others may compute their values, or take them from what one can't see here.
        self._may_be_memory = not self._is_array or may_be_mapped(writes.value)

    async def write(self, waiting: Sequence[int]) -> list[int]:
        """Write items; return those whose files somebody else has locked."""
        num_bytes, num = self._writes.num_bytes(), 1
        if self._may_be_memory and num_bytes <= constants.COPIED_BYTES:
            # Before any chunk is changed.
            self._copies = await run_while_wanted(write_pool(), self._copy)
            self._may_be_memory = False
        if self._is_array and num_bytes > constants.PARALLEL_BYTES * len(waiting):
            num = min(os.cpu_count() or 1, len(waiting))  # one thread for what is no array
        todo = deque(waiting)
        runs = [
            run_while_wanted(write_pool(), functools.partial(self._run, todo)) for _ in range(num)
        ]
        for error in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error
        return list(self._locked)

    def _copy(self, is_wanted: IsWanted) -> dict[int, Any]:
        """Return copies of the values of each item."""
        return {k: np.array(self._writes.values_of(k)) for k in self._files if is_wanted()}

    def _run(self, todo: deque[int], is_wanted: IsWanted) -> None:
        """Write one item after the other, as other threads do."""
        while todo and is_wanted():
            try:
                k = todo.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                chunk = self._locked.pop(k, None) or self._chunk(k)
                chunk.write(is_wanted)
            except LockedError:
                self._locked[k] = chunk
            except NotInPlace as why:
                self.left[k] = Left(str(why), self._copies.get(k))
            except Exception as error:
                add_name(error, self._writes.items[k][0], "writing")
                raise

    def _chunk(self, k: int) -> ChunkFile:
        item = self._writes.items[k]
        shape = item[1].shape  # of the chunks of an array, nothing else differs
        if shape not in self._stored:
            self._stored[shape] = self._writes.stored_as(item[1])
        stored = self._stored[shape]
        kind = ChunkFile if isinstance(stored, Layout) else ShardFile
        values = self._copies[k] if k in self._copies else self._writes.values_of(k)
        more = values, self._writes.encode
        return kind(item, self._files[k], stored, *more, is_memory=self._may_be_memory)


def may_be_mapped(array: Any) -> bool:
    """Whether the memory of an array may be that of a file, and not of this process alone."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array is not None and not isinstance(array, bytes | bytearray)


def encode_unchecked(elements: Array, stored: AnyDType) -> Array:
    """Return elements as stored, like `encode_array`; but bools are what they are in memory."""
    if any(leaf.kind == "b" for leaf in leaf_dtypes(elements.dtype)):
        return np.ascontiguousarray(elements.astype(stored, copy=False))
    return encode_array(elements, stored)
