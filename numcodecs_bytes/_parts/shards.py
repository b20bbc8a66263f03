"""How shards of uncompressed inner chunks are stored.

An inner chunk is a part of a file or of an object: the ranges of each are planned as for any chunk,
moved to where it begins, and coalesced with those of others. Whatever is unusual in a shard, such
as inner chunks of another length or a damaged index, is left to zarr's own codec, which reads whole
inner chunks, or raises the error.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec
from zarr.core.indexing import get_indexer

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._parts.items import Item
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.open_file import OpenFile
from numcodecs_bytes._parts.plan import Plan, plan_read
from numcodecs_bytes._parts.ranges import Coalescing, Indices
from numcodecs_bytes._parts.refusals import ReadWhole
from numcodecs_bytes._parts.selection import key_of
from numcodecs_bytes._parts.stores import Remote, coalescing_of
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import (
    chunk_grid_of,
    decode_index,
    encode_index,
    fill_value_or_default,
    morton_order,
)

MISSING = np.iinfo(np.uint64).max  # offset and length of a missing inner chunk in the index
MAX_GAP_BYTES = 1 << 20  # of zarr's own ranges in shards, by default


class ShardParts(NamedTuple):
    """What a selection takes from which inner chunks.

    Attributes
    ----------
    shape, flat_shape, coordinates
        As those of a `ShardSelection`.
    inner : list of tuple
        The selection of each inner chunk, and its place.
    """

    shape: tuple[int, ...]
    flat_shape: tuple[int, ...]
    coordinates: tuple[Indices, ...]
    inner: list[tuple[Any, Any]]


class ShardSelection(NamedTuple):
    """What is read from a shard.

    Attributes
    ----------
    shape : tuple of int
        The shape of the selection.
    flat_shape : tuple of int
        The shape to which the places of the inner selections refer; points are flat.
    coordinates : tuple of numpy.ndarray
        Which inner chunks are selected: an index along each axis of their grid, shape
        ``(num_chunks,)``.
    inner : list of Item
        What is selected from each of them.
    num_bytes : int
        Number of bytes to read, if no inner chunk is missing.
    """

    shape: tuple[int, ...]
    flat_shape: tuple[int, ...]
    coordinates: tuple[Indices, ...]
    inner: list[Item]
    num_bytes: int


class GrownShard(NamedTuple):
    """A shard in which more inner chunks have a place than before.

    Attributes
    ----------
    index : numpy.ndarray
        Offsets and lengths in bytes, uint64, shape ``(*grid_shape, 2)``.
    raw_index : numpy.ndarray
        The same as stored, uint8.
    start, end : int
        Where the inner chunks that are new begin and end in bytes.
    start_of_index : int
        Where the index begins.
    """

    index: Any
    raw_index: UInt8Array
    start: int
    end: int
    start_of_index: int

    @property
    def num_bytes(self) -> int:
        """Length of the shard in bytes."""
        return max(self.end, self.start_of_index + len(self.raw_index))


class Shard:
    """How the shards of an array are stored.

    Parameters
    ----------
    codec : zarr.codecs.ShardingCodec
        zarr's own codec, exactly that class.
    spec : zarr.core.array_spec.ArraySpec
        The specification of the shard.
    layout : Layout
        How an inner chunk is stored.

    Attributes
    ----------
    num_chunks : int
        The number of inner chunks.
    """

    def __init__(self, codec: Any, spec: ArraySpec, layout: Layout) -> None:
        self.codec, self.spec, self.layout = codec, spec, layout
        self._grid_shape = codec._get_chunks_per_shard(spec)  # noqa: SLF001
        self.num_chunks = math.prod(self._grid_shape)

    @functools.cached_property
    def index_bytes(self) -> int:
        """Length of the index in bytes."""
        return int(self.codec._shard_index_size(self._grid_shape))  # noqa: SLF001

    @property
    def index_range(self) -> tuple[int, int | None]:
        """First byte and end (exclusive) of the index, or a negative number and None at the end."""
        location = self.codec.index_location  # an Enum on zarr 3.1.6
        is_first = getattr(location, "value", location) == "start"
        return (0, self.index_bytes) if is_first else (-self.index_bytes, None)

    @property
    def num_bytes(self) -> int:
        """Length of a shard in bytes without missing inner chunks."""
        return math.prod(self.spec.shape) * self.layout.item_size + self.index_bytes

    def coalescing(self, source: Remote, gap: int | None) -> Coalescing:
        """Return how the pieces of inner chunks are coalesced, over no larger gaps than by zarr."""
        coalescing = coalescing_of(source, gap)
        if gap is not None:
            return coalescing
        zarrs = getattr(self.spec.config, "sharding_coalesce_max_gap_bytes", MAX_GAP_BYTES)
        # In several requests, because a connection has a limited rate.
        return coalescing._replace(
            max_gap_bytes=min(coalescing.max_gap_bytes, zarrs), block_bytes=source.costs.part_bytes
        )

    def select(self, selection: Any, coalescing: Coalescing) -> ShardSelection:
        """Return what a selection takes from which inner chunks.

        Parameters
        ----------
        selection : tuple
            As zarr passes it to codecs.
        coalescing : Coalescing
            How the pieces of an inner chunk are coalesced.
        """
        parts, inner = self.parts_of(selection), []
        planned: dict[Any, tuple[Plan, int]] = {}
        num_bytes = 0
        for of_chunk, place in parts.inner:
            key = key_of(of_chunk) if isinstance(of_chunk, tuple) else None
            if key is None or key not in planned:
                plan = plan_read(of_chunk, self.layout, coalescing)
                planned[key] = plan, plan.ranges.num_kept_bytes
            plan, num_kept = planned[key]
            inner.append(Item(of_chunk, place, plan, num_kept))
            num_bytes += plan.ranges.num_bytes
        return ShardSelection(*parts[:3], inner, num_bytes)

    def parts_of(self, selection: Any) -> ShardParts:
        """Return what a selection takes from which inner chunks."""
        grid = chunk_grid_of(self.spec.shape, self.codec.chunk_shape)
        indexer: Any = get_indexer(selection, self.spec.shape, grid)
        found = list(indexer)
        coordinates = np.array([each[0] for each in found], np.intp)
        coordinates = coordinates.reshape(len(found), len(self._grid_shape))
        shape = tuple(getattr(indexer, "sel_shape", indexer.shape))
        inner = [(of_chunk, place) for _, of_chunk, place, *_ in found]
        return ShardParts(shape, tuple(indexer.shape), tuple(coordinates.T), inner)

    def locate(
        self, index: Any, coordinates: tuple[Indices, ...], num_bytes: int | None
    ) -> tuple[Indices, Indices, Indices]:
        """Return inner chunks in the order in which they are stored.

        Parameters
        ----------
        index : numpy.ndarray
            Offsets and lengths in bytes, uint64, shape ``(*grid_shape, 2)``.
        coordinates : tuple of numpy.ndarray
            The index of each inner chunk along each axis of their grid, shape ``(num_chunks,)``.
        num_bytes : int or None
            Length of the shard in bytes, if known.

        Returns
        -------
        present : numpy.ndarray
            Positions in `coordinates` of those that exist.
        starts : numpy.ndarray
            Where each of these begins in bytes, ascending.
        missing : numpy.ndarray
            Positions in `coordinates` of those that do not exist.

        Raises
        ------
        ReadWhole
            If one has another length, reaches beyond the shard, or overlaps another one.
        """
        found, starts, missing = self._find(index, coordinates, num_bytes)
        order = np.argsort(starts, kind="stable")
        self._raise_if_overlapping(starts[order])
        return found[order], starts[order], missing

    def _raise_if_overlapping(self, starts: Indices) -> None:
        """Raise ReadWhole unless inner chunks that begin at `starts`, ascending, are apart."""
        if (np.diff(starts) < self.layout.num_bytes).any():
            raise ReadWhole(why="inner chunks overlap")

    def _find(
        self, index: Any, coordinates: tuple[Indices, ...], num_bytes: int | None
    ) -> tuple[Indices, Indices, Indices]:
        """Do the same as `locate`, but in the order of `coordinates`; some may overlap."""
        entries = index[(*coordinates, slice(None))].reshape(-1, 2)
        is_missing = (entries == MISSING).all(axis=1)
        found = np.flatnonzero(~is_missing)
        starts, lengths, length = entries[found, 0], entries[found, 1], self.layout.num_bytes
        limit = np.iinfo(np.int64).max if num_bytes is None else num_bytes
        is_odd = (lengths != length) | (starts > max(limit - length, 0)) | (length > limit)
        if is_odd.any():
            k = int(is_odd.argmax())
            name = tuple(int(along[found[k]]) for along in coordinates)
            of_all = f" in a shard of {num_bytes}" if num_bytes is not None else ""
            raise ReadWhole(
                why=f"the index has inner chunk {name} at byte {starts[k]} with {lengths[k]} "
                f"bytes, expected {length} bytes{of_all}"
            )
        return found, starts.astype(np.int64), np.flatnonzero(is_missing)

    def locate_selected(
        self, index: Any, selected: ShardSelection, num_bytes: int | None
    ) -> tuple[list[Item], Indices, list[Item]]:
        """Do the same as `locate` for the inner chunks of a selection, and return these."""
        present, starts, missing = self.locate(index, selected.coordinates, num_bytes)
        inner = selected.inner
        return [inner[k] for k in present.tolist()], starts, [inner[k] for k in missing.tolist()]

    def num_bytes_alone(self, starts: Indices) -> int:
        """Return how many bytes zarr alone fetches for inner chunks that begin at `starts`.

        These ascend. The newest zarr fetches short gaps between them, too.
        """
        config, length = self.spec.config, self.layout.num_bytes
        max_gap = getattr(config, "sharding_coalesce_max_gap_bytes", -1)
        max_bytes = getattr(config, "sharding_coalesce_max_bytes", 0)
        num, first, last = self.index_bytes, 0, 0
        for start in starts.tolist():
            end = start + length
            if last and start - last <= max_gap and end - first <= max_bytes:
                num += end - last
            else:
                num, first = num + length, start
            last = end
        return num

    def read_index(self, file: OpenFile, is_wanted: IsWanted) -> UInt8Array:
        """Return the bytes of the index of a shard in a file."""
        if file.num_bytes < self.index_bytes:
            raise ReadWhole(why="the shard is too short for its index")
        raw = np.empty(self.index_bytes, np.uint8)
        file.read_into(raw, self.index_range[0] % file.num_bytes, is_wanted)
        return raw

    def decode_index(self, raw: Any) -> Any:
        """Return the offsets and lengths of the inner chunks."""
        return decode_index(self.codec, raw, self._grid_shape)

    def grid_of(self, out: Array) -> tuple[Array, tuple[Indices, ...]]:
        """Return a view of a whole shard that is indexed by inner chunks first, and their grid.

        The axes of an inner chunk follow in the order in which they are stored.
        """
        shapes = list(zip(self._grid_shape, self.layout.shape, strict=True))
        num_axes = len(shapes)
        order = self.layout.axis_order or range(num_axes)
        axes = [*range(0, 2 * num_axes, 2), *(2 * k + 1 for k in order)]
        view = out.reshape([n for shape in shapes for n in shape]).transpose(axes)
        return view, self._all_coordinates

    @functools.cached_property
    def _all_coordinates(self) -> tuple[Indices, ...]:
        return tuple(np.indices(self._grid_shape).reshape(-1, self.num_chunks))

    @property
    def _begins_with_index(self) -> bool:
        return self.index_range[0] == 0

    @property
    def start_of_data(self) -> int:
        """Where the first inner chunk may begin in bytes."""
        return self.index_bytes if self._begins_with_index else 0

    def end_of_data(self, index: Any, num_bytes: int) -> int:
        """Return where the last inner chunk of a shard of so many bytes ends.

        Raises
        ------
        ReadWhole
            As `locate`, for any of them; and if one overlaps the index.
        """
        _, starts, _ = self._find(index, self._all_coordinates, num_bytes)
        starts.sort()
        self._raise_if_overlapping(starts)
        first, end = self.start_of_data, num_bytes
        end -= 0 if self._begins_with_index else self.index_bytes
        if not len(starts):
            return first
        if starts[0] < first or starts[-1] + self.layout.num_bytes > end:
            raise ReadWhole(why="an inner chunk overlaps the index")
        return int(starts[-1]) + self.layout.num_bytes

    @functools.cached_property
    def no_index(self) -> Any:
        """Offsets and lengths of missing inner chunks only."""
        return np.full((*self._grid_shape, 2), MISSING, np.uint64)

    @functools.cached_property
    def new(self) -> GrownShard:
        """A complete shard where there was none."""
        return self.grown(self.no_index, self.start_of_data)

    def grown(
        self,
        index: Any,
        end: int,
        needed: tuple[Indices, ...] | None = None,
        *,
        doubles: bool = True,
    ) -> GrownShard:
        """Return a shard in which missing inner chunks follow the others, which end at `end`.

        They do in Morton order, as zarr stores them.

        Parameters
        ----------
        index : numpy.ndarray
            Offsets and lengths in bytes, uint64, shape ``(*grid_shape, 2)``.
        end : int
            Where those that are there end in bytes.
        needed : tuple of numpy.ndarray, optional
            Which inner chunks must have a place, as coordinates. By default, all get one.
        doubles : bool
            Whether at least as many missing ones get a place as there are others, so that a shard
            seldom grows. Only with `needed`.
        """
        order = tuple(morton_order(self._grid_shape).T)
        is_missing = index[(*order, 0)] == MISSING
        if needed is not None:
            is_needed = np.zeros(self._grid_shape, bool)
            is_needed[needed] = True
            is_new = is_missing & is_needed[order]
            num_present = self.num_chunks - np.count_nonzero(is_missing) if doubles else 0
            others = np.flatnonzero(is_missing & ~is_new)
            last = np.flatnonzero(is_new)[-1]
            others = np.roll(others, -np.searchsorted(others, last))  # those that follow first
            is_new[others[: max(num_present - np.count_nonzero(is_new), 0)]] = True
            is_missing = is_new
        missing = tuple(along[is_missing] for along in order)
        num, length, index = np.count_nonzero(is_missing), self.layout.num_bytes, index.copy()
        index[(*missing, 0)] = end + length * np.arange(num)
        index[(*missing, 1)] = length
        new_end = end + int(num) * length
        start_of_index = 0 if self._begins_with_index else new_end
        raw_index = as_bytes(encode_index(self.codec, index))
        return GrownShard(index, raw_index, end, new_end, start_of_index)

    def fill(self, out: Array, missing: Sequence[Item]) -> None:
        """Write the fill value to where inner chunks are missing."""
        fill_value = fill_value_or_default(self.spec) if missing else None
        for inner in missing:
            out[inner.place] = fill_value
