"""The index of a shard: where its inner chunks are."""

import os
import time
from collections.abc import Hashable
from typing import Any

import numpy as np

from numcodecs_bytes._core.dtypes import UInt64Array
from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._host.zarr_versions import decode_index
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.shards import REMEDY, ShardLayout
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import OpenFile

# An index is cached only if its file has not changed for so long before it was read: later changes
# in the same tick of the file system's clock could not be told from the one before.
SETTLED_SECONDS = 2.0

# What an entry takes besides its index: its key, and the page at which its memory begins.
ENTRY_BYTES = 5 << 10


def index_of(shard: ShardLayout, raw: Any) -> UInt64Array:
    """Return the index of a shard: offsets and lengths in bytes, shape ``(*grid_shape, 2)``.

    Raises `LeftToZarr` if its checksum is wrong.
    """
    try:
        return decode_index(shard.codec, raw, shard.grid_shape)
    except ValueError as error:
        raise_if_of_caller(error)
        raise LeftToZarr(f"the index of the shard is damaged: {REMEDY}") from error


def read_index(shard: ShardLayout, file: OpenFile) -> UInt64Array:
    """Read the index of a shard in an open file; see `index_of`."""
    raw = files.new_memory(shard.index_bytes)
    files.read_exactly(file.descriptor, file.start + shard.index_start(file.num_bytes), raw)
    return index_of(shard, np.asarray(raw))


class IndexCache:
    """The indices of shards that were read last, as long as their files are the same.

    They fill one table after the other, each for half of the bytes; the last two are kept. Threads
    may share it without a lock: at worst, they read an index again.
    """

    def __init__(self, max_bytes: int) -> None:
        self._indices: dict[Hashable, UInt64Array] = {}
        self._older: dict[Hashable, UInt64Array] = {}
        self._num_bytes, self._half_bytes = 0, max_bytes // 2  # of the first

    def read(self, shard: ShardLayout, file: OpenFile) -> UInt64Array:
        """Return the index of a shard in an open file, which is read unless it is cached."""
        status = os.fstat(file.descriptor)
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        times = status.st_mtime_ns, status.st_ctime_ns
        key = status.st_dev, status.st_ino, status.st_size, times, file.start
        index = self._indices.get(key)
        if index is None and (index := self._older.get(key)) is not None:
            self._add(key, index)
        if index is None:
            now_ns = time.time_ns()
            index = read_index(shard, file)
            if now_ns - changed_ns > SETTLED_SECONDS * 1e9:
                self._add(key, index)
        return index

    def _add(self, key: Hashable, index: UInt64Array) -> None:
        num_bytes = index.nbytes + ENTRY_BYTES
        if num_bytes > self._half_bytes:
            return
        if self._num_bytes + num_bytes > self._half_bytes:
            self._older, self._indices, self._num_bytes = self._indices, {}, 0
        self._indices[key] = index
        self._num_bytes += num_bytes
