"""Write to inner chunks in the file of a shard.

A shard is *complete* if all of its inner chunks have a place: then its index never changes again,
and they are written like chunks. A shard that lacks a place is replaced by a copy that has more, in
which everything else is where it was, so that whoever has read the old index reads the same.

Zeros take no space in a file, so a shard is completed at once if the fill value is zero. If not, it
gets as many more places as it has, so that it is copied a few times and not often.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._engine import files, locks
from numcodecs_bytes._engine.layout import layout_of
from numcodecs_bytes._engine.locks import NotInPlace
from numcodecs_bytes._engine.output import mesh
from numcodecs_bytes._engine.plan import plan_axes
from numcodecs_bytes._engine.selection import Axis, axes_of
from numcodecs_bytes._engine.shards import MISSING
from numcodecs_bytes._engine.write_chunk import ChunkFile
from numcodecs_bytes._engine.write_file import Part, elements_of, part_of, shape_of
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import encode_index


class ShardFile(ChunkFile):
    """The file of a shard, and what is written to its inner chunks: see `ChunkFile`."""

    _index: Any = None  # offsets and lengths in the file that was looked at last
    _end = 0  # where the inner chunks in it end in bytes

    @staticmethod
    def _layout_of(stored: Any) -> Any:
        return stored.layout

    def _parts_of(self, selection: Any, values: Any) -> list[Part]:
        shard, layout = self._stored, self._layout
        try:
            self._items = shard.items_of(selection)
        except files.Left as why:
            raise NotInPlace(str(why)) from None
        if self._items.within is not None:
            self._elements = elements_of(layout, self._items.within.shape, values)
            usual = np.arange(math.prod(shard.grid_shape)).reshape(shard.grid_shape)
            starts = usual[self._items.coordinates] * layout.num_bytes
            return [self._points_at(starts + self._items.within, self._elements)]
        whole = layout_of(shard.spec.shape, layout.dtype, layout.stored, layout.axis_order)
        elements = elements_of(layout, shape_of(axes_of(selection, whole) or ()), values)
        parts, alike = [], dict[int, Part]()
        for plan, where in self._items.plans:
            some = elements[(*mesh(where, elements.shape), ...)]
            part = alike.get(id(plan))
            if part is None:
                part = alike[id(plan)] = part_of(plan_axes(plan.axes, layout, 0), layout, some)
            parts.append(part._replace(elements=some))
        return parts

    def _points_at(self, positions: Any, elements: Any) -> Part:
        """Return what is written to points, which lie at positions in the file in bytes."""
        pieces = plan_axes((Axis(positions, 1, 0),), self._layout, 0)
        return part_of(pieces, self._layout, elements)

    def _find(self, descriptor: int, num_bytes: int) -> Any:
        """Do the same; raise NotInPlace if the index is unusual, as zarr reads it or raises."""
        shard = self._stored
        try:
            first, end = shard.index_range(num_bytes)
            raw = np.empty(end - first, np.uint8)
            files.fill(descriptor, first, raw.data)
            self._index = shard.decode_index(raw)
        except files.Left as why:
            raise NotInPlace(str(why)) from why.__cause__
        self._end = self._end_of_data(num_bytes)
        return self._starts(self._index)

    @property
    def _is_index_first(self) -> bool:
        num_bytes: int = self._stored.index_bytes
        return bool(self._stored.index_range(num_bytes + 1) == (0, num_bytes))

    def _end_of_data(self, num_bytes: int) -> int:
        """Return where the last inner chunk ends in bytes; raise NotInPlace if any is unusual."""
        index_bytes, length = int(self._stored.index_bytes), int(self._layout.num_bytes)
        is_first = self._is_index_first
        first, end = (index_bytes, num_bytes) if is_first else (0, num_bytes - index_bytes)
        entries = self._index.reshape(-1, 2)
        entries = entries[(entries != MISSING).any(axis=1)]
        if not len(entries):
            return first
        starts = np.sort(entries[:, 0])
        if (entries[:, 1] != length).any():
            raise NotInPlace(f"the index has inner chunks that have not {length} bytes")
        if starts[0] < first or int(starts[-1]) + length > end:
            raise NotInPlace("the index has inner chunks that overlap it, or reach beyond the file")
        if (np.diff(starts) < length).any():
            raise NotInPlace("the index has inner chunks that overlap")
        return int(starts[-1]) + length

    def _starts(self, index: Any) -> Any:
        """Return where each inner chunk, or that of each point, begins; `MISSING` if nowhere."""
        return index[(*self._items.coordinates, 0)]

    def _placed(self, starts: Any) -> Iterable[tuple[Part, int]]:
        is_there = starts != MISSING
        if self._items.within is None:
            return [(self._parts[k], int(starts[k])) for k in np.flatnonzero(is_there).tolist()]
        if not is_there.any():
            return []
        positions = (starts.astype(np.intp) + self._items.within)[is_there]
        return [(self._points_at(positions, self._elements[is_there]), 0)]

    def _lacks_any(self, starts: Any) -> bool:
        is_missing = starts == MISSING
        if not is_missing.any():
            return False
        if self._items.within is None:
            missing = [self._parts[k] for k in np.flatnonzero(is_missing).tolist()]
        else:
            missing = [self._parts[0]._replace(elements=self._elements[is_missing])]
        return not self._are_only_fill_values(missing)

    def _make(self, old: int | None, new: int, is_wanted: IsWanted) -> Any:
        """Do the same: a shard with more places."""
        shard, length = self._stored, self._layout.num_bytes
        first = shard.index_bytes if self._is_index_first else 0
        index, end = np.full((*shard.grid_shape, 2), MISSING, np.uint64), first
        if old is not None:
            index, end = self._index.copy(), self._end
        is_new = self._new_places(index)
        num = np.count_nonzero(is_new)
        index[is_new, 0] = end + length * np.arange(num)
        index[is_new, 1] = length
        data_end = end + length * int(num)
        raw = as_bytes(encode_index(shard.codec, index))
        locks.set_length(new, data_end + (0 if first else len(raw)))
        if old is not None:
            locks.copy(old, new, range(first, end), is_wanted)
        locks.fill(new, self._fill_value, range(end, data_end), is_wanted)
        locks.write_at(new, raw.data, 0 if first else data_end)
        return self._starts(index)

    def _new_places(self, index: Any) -> Any:
        """Return which inner chunks get a place, bool, in the shape of their grid."""
        is_missing = index[..., 0] == MISSING
        if not self._fill_value.any():
            return is_missing
        is_new = np.zeros_like(is_missing)
        is_new[self._items.coordinates] = True
        is_new &= is_missing
        num_more = np.count_nonzero(~is_missing) - np.count_nonzero(is_new)
        others = np.flatnonzero(is_missing & ~is_new)
        is_new.flat[others[: max(num_more, 0)]] = True
        return is_new
