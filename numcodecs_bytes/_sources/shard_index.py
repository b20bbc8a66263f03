"""The index of a shard: where its inner chunks are."""

import os
from collections.abc import Hashable
from typing import Any

import numpy as np
from zarr.abc.store import RangeByteRequest
from zarr.storage import StorePath

from numcodecs_bytes._core.catch import async_value_or_error
from numcodecs_bytes._core.dtypes import EndianError, UInt8Array, UInt64Array
from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._core.lengths import (
    EMPTY,
    NUM_START_BYTES,
    Advice,
    SuspectChunk,
    advise,
    explain_stand_in,
)
from numcodecs_bytes._plan.outcome import DamagedShard, FetchCounts, ZarrFails
from numcodecs_bytes._plan.shards import MISSING, NO_INDEX_ENDIAN, REMEDY, ShardLayout
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.files import OpenExtent
from numcodecs_bytes._sources.stores import start_of
from numcodecs_bytes._zarr_api.private_names import decode_index
from numcodecs_bytes._zarr_api.versions import has_index_checksum

# How many bytes of indices the process caches. That of 4,096 inner chunks takes 64 KiB; to read and
# check it again, a row takes 1.3 times as long, and 1.9 times with 65,536 inner chunks.
MAX_INDEX_BYTES = 1 << 22

# What an entry takes besides its index: its key, and the page at which its buffer begins.
ENTRY_BYTES = 5 << 10

CHECKSUM_BYTES = 4  # the last ones of an index


def index_of(shard: ShardLayout, raw: UInt8Array) -> UInt64Array:
    """Return the index of a shard: offsets and lengths in bytes, shape ``(*grid_shape, 2)``.

    Raises `ZarrFails` if its checksum is wrong, or its codec has no `endian`.
    """
    try:
        return decode_index(shard.codec, raw, shard.grid_shape)
    except EndianError as error:
        raise ZarrFails(NO_INDEX_ENDIAN) from error
    except ValueError as error:
        raise_if_of_caller(error)
        raise DamagedShard("the index of the shard can't be decoded") from error


async def explain_shard(shard: StorePath, layout: object) -> Advice | None:
    """Return what is wrong with a shard, and what to do, if that is known.

    `layout` is a `ShardLayout` unless inner chunks are not read in part.
    """
    num_bytes: Any = await async_value_or_error(shard.store.getsize(shard.path))
    if num_bytes == 0:
        return Advice(EMPTY)
    if why := explain_stand_in(await start_of(shard)):
        return Advice(why)
    if not isinstance(layout, ShardLayout) or not isinstance(num_bytes, int):
        first = await async_value_or_error(shard.get(byte_range=RangeByteRequest(0, 1)))
        if first is None or isinstance(first, Exception) or len(first) < 2:
            return None
        how = "download the array, or use a server that supports byte ranges"
        return Advice(f"the server ignores byte ranges, and sends whole shards: {how}")
    is_certain = False
    try:
        index = await _fetch_index(shard, layout, layout.index_start(num_bytes))
        is_certain = has_index_checksum(layout.codec)
        advice = await _explain_index(shard, layout, index, num_bytes)
    except DamagedShard as error:
        advice = REMEDY._replace(what=str(error))
    except ZarrFails as error:
        advice = Advice(str(error))
    other_end = num_bytes - layout.index_bytes if layout.is_index_first else 0
    if not advice or is_certain or not await _is_index_at(other_end, shard, layout, num_bytes):
        return advice
    location = "end" if layout.is_index_first else "start"
    return advise(
        f"its index is at the {location} (write nothing to it until that is corrected)",
        "it was written by another program: restore it",
        f'write "index_location": "{location}" in the configuration of sharding_indexed in the '
        "metadata",
        others="shards",
    )


async def _fetch_index(shard: StorePath, layout: ShardLayout, start: int) -> UInt64Array | None:
    """Return the index of a shard, or None; raise `ZarrFails` if it is damaged."""
    part = RangeByteRequest(start, start + layout.index_bytes)
    raw = await async_value_or_error(shard.get(byte_range=part))
    if raw is None or isinstance(raw, Exception) or len(raw) != layout.index_bytes:
        return None
    return index_of(layout, np.frombuffer(raw.to_bytes(), np.uint8))


async def _is_index_at(start: int, shard: StorePath, layout: ShardLayout, num_bytes: int) -> bool:
    """Whether the index of a shard of `num_bytes` begins at `start`."""
    try:
        index = None if start < 0 else await _fetch_index(shard, layout, start)
    except ZarrFails:
        return False
    if index is None or (index == MISSING).all():
        return False
    return layout.find_unusual(index, num_bytes) is None


async def _explain_index(
    shard: StorePath, layout: ShardLayout, index: UInt64Array | None, num_bytes: int
) -> Advice | None:
    """Return which inner chunk is not as usual in a shard of `num_bytes`, and what to do."""
    unusual = None if index is None else layout.find_unusual(index, num_bytes)
    if unusual is None:
        return None
    what, offset, stated = unusual
    part = RangeByteRequest(offset, min(offset + stated, offset + NUM_START_BYTES, num_bytes))
    inner = None
    if part.start < part.end:
        inner = await async_value_or_error(shard.get(byte_range=part))
    advice = None
    if inner is not None and not isinstance(inner, Exception):
        advice = SuspectChunk(stated, layout.inner.num_bytes, inner.to_bytes()).explain_inner()
    return (advice or REMEDY)._replace(what=what)


def _read_index(shard: ShardLayout, extent: OpenExtent) -> tuple[UInt64Array, bytes]:
    """Return the index of a shard in an open file, and the last bytes of what is stored of it."""
    buffer, start = files.page_aligned(shard.index_bytes), shard.index_start(extent.num_bytes)
    files.read_exactly(extent.descriptor, extent.start + start, buffer)
    return index_of(shard, np.asarray(buffer)), bytes(buffer[-CHECKSUM_BYTES:])


def read_whole_index(shard: ShardLayout, extent: OpenExtent) -> tuple[UInt64Array, FetchCounts]:
    """Return the index of a shard in an open file, and what was fetched of it."""
    return _read_index(shard, extent)[0], FetchCounts(1, shard.index_bytes)


class IndexCache:
    """The indices of shards that were read last.

    One is used if its file still holds the same checksum, which is read each time: all that the
    system says of a file, such as its times, may stay the same when the file changes.

    They fill one table after the other, each for half of the bytes; the last two are kept. Threads
    may share it without a lock: at worst, they read an index again.
    """

    def __init__(self) -> None:
        self._indices: dict[Hashable, tuple[UInt64Array, bytes]] = {}
        self._older: dict[Hashable, tuple[UInt64Array, bytes]] = {}
        self._num_bytes = 0  # of the first

    def read(self, shard: ShardLayout, extent: OpenExtent) -> tuple[UInt64Array, FetchCounts]:
        """Return the index of a shard in an open file, and what was fetched of it."""
        if not has_index_checksum(shard.codec):
            return read_whole_index(shard, extent)
        fetched = FetchCounts(1, shard.index_bytes)
        status = os.fstat(extent.descriptor)
        in_file = status.st_dev, status.st_ino, status.st_size, extent.start, extent.num_bytes
        key = in_file, shard.index_key
        cached = self._indices.get(key) or self._older.get(key)
        if cached is not None:
            index, checksum = cached
            end = extent.start + shard.index_start(extent.num_bytes) + shard.index_bytes
            starts = [end - CHECKSUM_BYTES]
            tail = files.fetch_runs(extent.descriptor, starts, CHECKSUM_BYTES, files.page_aligned)
            if tail == checksum:
                self._add(key, index, checksum)
                return index, FetchCounts(1, CHECKSUM_BYTES)
            fetched = FetchCounts(2, CHECKSUM_BYTES + shard.index_bytes)
        index, checksum = _read_index(shard, extent)
        self._add(key, index, checksum)
        return index, fetched

    def read_in_memory(self, shard: ShardLayout, raw: UInt8Array) -> UInt64Array:
        """Return the index of a shard, given all of its bytes; they may change at any time."""
        start = shard.index_start(len(raw))
        stored = bytes(raw[start : start + shard.index_bytes])
        key = id(raw), len(raw), shard.index_key
        cached = self._indices.get(key) or self._older.get(key)
        if cached is not None and cached[1] == stored:
            index = cached[0]
        else:
            index = index_of(shard, np.frombuffer(stored, np.uint8))
        self._add(key, index, stored)
        return index

    def _add(self, key: Hashable, index: UInt64Array, checksum: bytes) -> None:
        if key not in self._indices:
            half = MAX_INDEX_BYTES // 2
            num_bytes = index.nbytes + len(checksum) + ENTRY_BYTES
            if num_bytes > half:
                return
            if self._num_bytes + num_bytes > half:
                self._older, self._indices, self._num_bytes = self._indices, {}, 0
            self._num_bytes += num_bytes
        self._indices[key] = index, checksum


cached_indices = IndexCache()  # of the process
