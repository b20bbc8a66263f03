"""Writes to inner chunks in the file of a shard.

A shard is *complete* if it has space for all of its inner chunks: then its index never changes
again, and they are written like chunks. A shard that lacks space is replaced by a copy that has
more, in which all offsets stay the same, so that readers with the old index read the same.

Zeros take no space on disk, so a shard is completed at once if the fill value is zero. If not, it
gets space for at least as many more inner chunks as it has, so that it is copied only a few times.
"""

import operator
from collections.abc import Sequence

import numpy as np

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt64Array
from numcodecs_bytes._plan.out_selections import OutSelection, mesh
from numcodecs_bytes._plan.outcome import UnusualIndex
from numcodecs_bytes._plan.plan import plan_axes
from numcodecs_bytes._plan.selection import Axis
from numcodecs_bytes._plan.shards import MISSING, AnyShardPlan, ShardLayout, ShardPointsPlan
from numcodecs_bytes._sources import files
from numcodecs_bytes._sources.shard_index import index_of
from numcodecs_bytes._write import locks, write_file
from numcodecs_bytes._write.chunk_file import FileSpace, InPlaceBatch, WritableFile, WritePlan
from numcodecs_bytes._write.chunk_write import ChunkWrite
from numcodecs_bytes._write.locks import LockedFile
from numcodecs_bytes._write.write_file import PlacedElements, WrittenFile
from numcodecs_bytes._zarr_api.private_names import encode_index


class ShardFile(WritableFile[AnyShardPlan]):
    """The file of a shard, and what is written to its inner chunks."""

    def __init__(self, chunk: ChunkWrite, shard: ShardLayout, batch: InPlaceBatch) -> None:
        super().__init__(chunk, batch)
        self._shard = shard
        # Where inner chunks may begin: after the index, if that is at the start.
        self._data_start = shard.index_bytes if shard.is_index_first else 0

    def _make_plan(self) -> WritePlan[AnyShardPlan]:
        selection, item_size = self.chunk.request.chunk_selection, self._layout.item_size
        selected = self._shard.plan_of(selection, self._batch.drop_axes, max_gap=0)
        if isinstance(selected, ShardPointsPlan):
            # Their places in most complete shards, as if the file were an axis of bytes.
            numbers = np.ravel_multi_index(selected.coordinates, self._shard.grid_shape)
            points = Axis(numbers * self._layout.num_bytes + selected.offsets, 1, 0)
            plans = [plan_axes((points,), item_size, max_gap=0)]
        else:
            plans = selected.plans
        in_hulls = write_file.are_faster_in_hulls(plans, item_size)
        return WritePlan(selected, self._elements_of(selected.shape), in_hulls)

    def _find_space(self, file: LockedFile) -> FileSpace:
        raw = np.empty(self._shard.index_bytes, np.uint8)
        files.read_exactly(file.descriptor, self._shard.index_start(file.num_bytes), raw.data)
        index = index_of(self._shard, raw)
        return self._space(file, index, self._check_index(index, file.num_bytes))

    def _space(self, file: LockedFile | None, index: UInt64Array, end: int) -> FileSpace:
        """Return what has space in a file, in its order, and what has none."""
        inner_chunks = self._plan.runs.inner_chunks(index, 0, end)
        placed = [
            PlacedElements(runs, self._select(out_selection), start)
            for runs, start, out_selection in inner_chunks.present
        ]
        placed.sort(key=operator.attrgetter("start"))
        return FileSpace(file, placed, list(map(self._select, inner_chunks.missing)), index, end)

    def _select(self, out_selection: OutSelection) -> Array:
        """Return the elements of an inner chunk, given its region in the selection."""
        return self._plan.elements[(*mesh(out_selection, self._plan.elements.shape), ...)]

    def _check_index(self, index: UInt64Array, num_bytes: int) -> int:
        """Return where the inner chunks of a shard of `num_bytes` end; raise if it is unusual."""
        entries, length = index.reshape(-1, 2), self._layout.num_bytes
        entries = entries[(entries != MISSING).any(axis=1)]
        starts = np.sort(entries[:, 0])
        end = int(starts[-1]) + length if len(starts) else self._data_start
        are_inside = (starts >= self._data_start).all() and (
            end <= self._data_start + num_bytes - self._shard.index_bytes
        )
        are_apart = (np.diff(starts) >= length).all()
        if not (are_inside and are_apart and (entries[:, 1] == length).all()):
            raise UnusualIndex(
                f"its index is unusual: inner chunks do not have {length} bytes, overlap each "
                "other or the index, or end beyond the file"
            )
        return end

    def _lay_out(self, new: WrittenFile, old: FileSpace) -> Sequence[PlacedElements]:
        shard, length, data_start = self._shard, self._layout.num_bytes, self._data_start
        fill_value = self._stored_fill_value()
        index, end = np.full((*shard.grid_shape, 2), MISSING, np.uint64), data_start
        if old.index is not None:
            index, end = old.index.copy(), old.end
        is_new = self._gets_space(index, are_free=not fill_value.any())
        num = int(np.count_nonzero(is_new))
        index[is_new, 0] = end + length * np.arange(num)
        index[is_new, 1] = length
        data_end = end + length * num
        raw = as_bytes(encode_index(shard.codec, index))
        locks.set_length(new.descriptor, data_end + (0 if shard.is_index_first else len(raw)))
        if old.file is not None:
            write_file.copy_range(old.file.descriptor, new, range(data_start, end))
        write_file.write_repeated(new, fill_value, range(end, data_end))
        index_start = 0 if shard.is_index_first else data_end
        write_file.write_runs(new, raw, [index_start], len(raw))
        return self._space(None, index, data_end).placed

    def _gets_space(self, index: UInt64Array, *, are_free: bool) -> Array:
        """Return which inner chunks get space, as bools in the shape of their grid."""
        is_missing: Array = index[..., 0] == MISSING
        if are_free:
            return is_missing
        is_new = np.zeros_like(is_missing)
        is_new[self._plan.runs.coordinates] = True
        is_new &= is_missing
        num_more = np.count_nonzero(~is_missing) - np.count_nonzero(is_new)
        others = np.flatnonzero(is_missing & ~is_new)
        is_new.flat[others[: max(num_more, 0)]] = True
        return is_new
