"""Writes to inner chunks in the file of a shard.

A shard is *complete* if it has space for all of its inner chunks: then its index never changes
again, and they are written like chunks. A shard that lacks space is replaced by a copy that has
more, in which all offsets stay the same, so that readers with the old index read the same.

Zeros take no space on disk, so a shard is completed at once if the fill value is zero. If not, it
gets space for at least as many more inner chunks as it has, so that it is copied only a few times.
"""

from typing import Any

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._engine import files, locks, write_file
from numcodecs_bytes._engine.layout import layout_of
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.output import mesh
from numcodecs_bytes._engine.plan import Plan, plan_axes
from numcodecs_bytes._engine.selection import Axis, axes_of
from numcodecs_bytes._engine.shards import MISSING
from numcodecs_bytes._engine.write_chunk import ChunkFile, Located, PlacedPart
from numcodecs_bytes._engine.write_file import Part
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import encode_index


class ShardFile(ChunkFile):
    """The file of a shard, and what is written to its inner chunks."""

    def _plan(self, selection: Any) -> list[Part]:
        shard, layout = self.stored, self.stored.layout
        self._layout, index_bytes = layout, shard.index_bytes
        # Where inner chunks may begin: after the index, if that is at the start.
        self._first = index_bytes if shard.index_range(index_bytes + 1)[0] == 0 else 0
        self._items = items = shard.items_of(selection, self.drop_axes, gap=0)
        if items.within is not None:
            self._elements = write_file.elements_of(self.values, layout, items.within.shape)
            # Where points are in most complete shards: this tells whether hulls are faster.
            starts = np.ravel_multi_index(items.coordinates, shard.grid_shape) * layout.num_bytes
            return [self._points_at(starts + items.within, self._elements)]
        whole = layout_of(shard.spec.shape, layout.dtype, layout.stored, layout.axis_order)
        shape = write_file.shape_of(axes_of(selection, whole, self.drop_axes))
        elements = write_file.elements_of(self.values, layout, shape)
        parts, hulls = [], dict[int, Plan]()
        for plan, where in items.plans:
            if id(plan) not in hulls:  # many inner chunks have the same plan
                hulls[id(plan)] = write_file.hulls_of(plan, layout)
            selected = elements[(*mesh(where, shape), ...)]
            parts.append(Part(plan, hulls[id(plan)], selected, layout))
        return parts

    def _points_at(self, positions: Any, elements: Array) -> Part:
        """Return what is written to points; their positions are offsets in the file, in bytes."""
        runs = plan_axes((Axis(positions, 1, 0),), self._layout, 0)
        return Part(runs, write_file.hulls_of(runs, self._layout), elements, self._layout)

    def _locate(self, descriptor: int, num_bytes: int) -> Located:
        first, end = self.stored.index_range(num_bytes)
        raw = np.empty(end - first, np.uint8)
        files.fill(descriptor, first, raw.data)
        index = self.stored.decode_index(raw)
        located = self._located(index)
        located.end = self._check_index(index, num_bytes)
        return located

    def _check_index(self, index: Any, num_bytes: int) -> int:
        """Return where the inner chunks of a shard of `num_bytes` end; raise if it is unusual."""
        entries, length = index.reshape(-1, 2), self._layout.num_bytes
        entries = entries[(entries != MISSING).any(axis=1)]
        starts = np.sort(entries[:, 0])
        end = int(starts[-1]) + length if len(starts) else self._first
        are_inside = (starts >= self._first).all() and (
            end <= self._first + num_bytes - self.stored.index_bytes
        )
        are_apart = (np.diff(starts) >= length).all()
        if not (are_inside and are_apart and (entries[:, 1] == length).all()):
            raise LeftToZarr(
                f"its index is unusual: inner chunks do not have {length} bytes, overlap each "
                "other or the index, or end beyond the file"
            )
        return end

    def _located(self, index: Any) -> Located:
        """Return what has space according to an index, and what has none."""
        starts = index[(*self._items.coordinates, 0)].reshape(-1)
        placed = self._parts_at(starts, np.flatnonzero(starts != MISSING))
        missing = self._parts_at(starts, np.flatnonzero(starts == MISSING))
        return Located(placed, [part for part, _ in missing], index)

    def _parts_at(self, starts: Any, which: Any) -> list[PlacedPart]:
        """Return parts whose inner chunks begin at `starts`, or what is written to some points."""
        within = self._items.within
        if within is None:
            return [PlacedPart(self._parts[k], int(starts[k])) for k in which.tolist()]
        if not len(which):
            return []
        positions = starts[which].astype(np.intp) + within[which]
        return [PlacedPart(self._points_at(positions, self._elements[which]), 0)]

    def _fill(
        self, new: int, old: int | None, located: Located | None, is_wanted: IsWanted
    ) -> list[PlacedPart]:
        shard, length, first = self.stored, self._layout.num_bytes, self._first
        fill_value = self._stored_fill_value()
        index, end = np.full((*shard.grid_shape, 2), MISSING, np.uint64), first
        if located is not None:
            index, end = located.index.copy(), located.end
        is_new = self._new_places(index, are_free=not fill_value.any())
        num = np.count_nonzero(is_new)
        index[is_new, 0] = end + length * np.arange(num)
        index[is_new, 1] = length
        data_end = end + length * int(num)
        raw = as_bytes(encode_index(shard.codec, index))
        locks.set_length(new, data_end + (0 if first else len(raw)))
        if old is not None:
            write_file.copy_span(old, new, range(first, end), is_wanted)
        write_file.fill_span(new, fill_value, range(end, data_end), is_wanted)
        write_file.write_runs(new, raw, [0 if first else data_end], len(raw), is_wanted)
        return self._located(index).placed

    def _new_places(self, index: Any, *, are_free: bool) -> Any:
        """Return which inner chunks get space, as bools in the shape of their grid."""
        is_missing = index[..., 0] == MISSING
        if are_free:
            return is_missing
        is_new = np.zeros_like(is_missing)
        is_new[self._items.coordinates] = True
        is_new &= is_missing
        num_more = np.count_nonzero(~is_missing) - np.count_nonzero(is_new)
        others = np.flatnonzero(is_missing & ~is_new)
        is_new.flat[others[: max(num_more, 0)]] = True
        return is_new
