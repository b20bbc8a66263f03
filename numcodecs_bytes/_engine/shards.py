"""Shards of uncompressed inner chunks: an index, and inner chunks at the offsets that it holds.

What a selection takes from each inner chunk is planned and read as for any chunk. If anything is
wrong with a shard, it is left to zarr, which raises the error or reads it.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import AnyDType
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.layout import Layout, layout_of
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.plan import Plan, Where, plan_axes
from numcodecs_bytes._engine.selection import Axis, axes_of, key_of
from numcodecs_bytes._zarr_versions import decode_index

MISSING = np.iinfo(np.uint64).max  # offset and length of a missing inner chunk in the index


class Items(NamedTuple):
    """What a selection takes from the inner chunks of a shard."""

    coordinates: tuple[Any, ...]  # of each inner chunk along each axis of their grid
    plans: list[tuple[Plan, Where]]  # for each, and where its elements belong in the selection
    gap: int | None  # the largest gap that was planned with, in bytes
    within: Any = None  # for points only: the offset of each in its inner chunk, in bytes


class Shard:
    """How the shards of an array are stored: by zarr's codec, with inner chunks of a layout."""

    def __init__(self, codec: Any, spec: ArraySpec, layout: Layout) -> None:
        self.codec, self.spec, self.layout = codec, spec, layout
        self.grid_shape = codec._get_chunks_per_shard(spec)  # noqa: SLF001
        self.index_bytes = int(codec._shard_index_size(self.grid_shape))  # noqa: SLF001
        self.num_chunks = math.prod(self.grid_shape)
        self._items: dict[Any, Items] = {}

    @property
    def item_size(self) -> int:
        """The length of an element in bytes."""
        return self.layout.item_size

    @property
    def dtype(self) -> AnyDType:
        """The dtype of elements in memory."""
        return self.layout.dtype

    @property
    def num_bytes(self) -> int:
        """The total length of the inner chunks."""
        return math.prod(self.spec.shape) * self.layout.item_size

    def index_range(self, num_bytes: int) -> tuple[int, int]:
        """Return the first byte and the end of the index of a shard of `num_bytes`."""
        location = self.codec.index_location  # an Enum on zarr 3.1.6
        is_first = getattr(location, "value", location) == "start"
        start = 0 if is_first else num_bytes - self.index_bytes
        if num_bytes < self.index_bytes:
            raise LeftToZarr("the shard is too short for its index")
        return start, start + self.index_bytes

    def decode_index(self, raw: Any) -> Any:
        """Return offsets and lengths in bytes, uint64, shape ``(*grid_shape, 2)``.

        Raises `LeftToZarr` if its checksum is wrong.
        """
        try:
            return decode_index(self.codec, raw, self.grid_shape)
        except ValueError as error:
            raise LeftToZarr("the index of the shard is damaged") from error

    def items_of(
        self, selection: Any, drop_axes: tuple[int, ...] = (), gap: int | None = None
    ) -> Items:
        """Return what a selection takes from the inner chunks; it is kept, unless it has arrays.

        Raises `LeftToZarr` if the selection is of an unknown kind.
        """
        key = key_of(selection), drop_axes, gap
        try:
            items = self._items.get(key)
        except TypeError:  # an array has no hash
            return self._make_items(selection, drop_axes, gap)
        if items is None:
            if len(self._items) >= constants.MAX_PLANS:
                self._items.clear()
            items = self._items[key] = self._make_items(selection, drop_axes, gap)
        return items

    def _make_items(self, selection: Any, drop_axes: tuple[int, ...], gap: int | None) -> Items:
        inner, shape = self.layout, self.spec.shape
        axes = axes_of(
            selection, layout_of(shape, inner.dtype, inner.stored, inner.axis_order), drop_axes
        )
        if len(axes) < len(shape):
            pairs = [np.divmod(a, n) for a, n in zip(selection, inner.shape, strict=True)]
            coordinates, within = zip(*pairs, strict=True)
            starts = sum([a * s for a, s in zip(within, inner.strides, strict=True)])
            return Items(coordinates, [], gap, starts)
        order = inner.axis_order
        moved = [a._replace(stride=inner.strides[k]) for a, k in zip(axes, order, strict=True)]
        parts = [_each_chunk(a, inner.shape[k]) for a, k in zip(moved, order, strict=True)]
        made: dict[Any, Plan] = {}
        num_axes, at, plans = sum([a.output_axis is not None for a in axes]), [], []
        for combined in itertools.product(*map(list, parts)):
            where: list[Any] = [slice(None)] * num_axes
            for _, axis, cut in combined:
                if axis.output_axis is not None:
                    where[axis.output_axis] = cut
            of_chunk = tuple([axis for _, axis, _ in combined])
            key = tuple([a.indices if type(a.indices) is range else id(a) for a in of_chunk])
            if key not in made:
                made[key] = plan_axes(of_chunk, inner, gap)
            at.append([k for k, *_ in combined])
            plans.append((made[key], tuple(where)))
        of_axis = np.array(at, np.intp).reshape(len(plans), len(order)).T
        return Items(tuple(of_axis[np.argsort(order)]), plans, gap)

    def parts_of(
        self, index: Any, items: Items, num_bytes: int
    ) -> tuple[list[tuple[Plan, int, Where]], list[Where], int]:
        """Return what to read of the inner chunks of a shard of `num_bytes`.

        These are the plans, each with the offset of its chunk and where its elements belong in the
        selection; where missing elements belong; and how many bytes zarr alone reads. Raises
        `LeftToZarr` if the length of an inner chunk is not its layout's, or it ends beyond the
        shard.
        """
        entries = index[(*items.coordinates, slice(None))].reshape(-1, 2)
        starts, lengths, length = entries[:, 0], entries[:, 1], self.layout.num_bytes
        is_missing = (starts == MISSING) & (lengths == MISSING)
        is_wrong = (lengths != length) | (starts > max(num_bytes - length, 0))
        if (is_wrong & ~is_missing).any():
            raise LeftToZarr("the index has an inner chunk of a wrong length, or beyond the shard")
        present, missing = np.flatnonzero(~is_missing), np.flatnonzero(is_missing)
        begins = starts[present].astype(np.int64)
        num_alone = 0
        if _trace.active:
            num_alone = self.index_bytes + len(set(begins.tolist())) * length
        if items.within is None:
            plans = [items.plans[k] for k in present]
            parts = [(p, b, w) for (p, w), b in zip(plans, begins.tolist(), strict=True)]
            return parts, [items.plans[k][1] for k in missing], num_alone
        axis = Axis(begins + items.within[present], 1, 0)
        plan = plan_axes((axis,), self.layout, items.gap)
        parts = [(plan, 0, (present,))] if len(present) else []
        return parts, [(missing,)] if len(missing) else [], num_alone


def _each_chunk(axis: Axis, size: int) -> Iterator[tuple[int, Axis, Any]]:
    """Yield the inner chunks along an axis: index, what is selected, and where that belongs."""
    indices: Any = axis.indices
    if not len(indices):
        return
    if type(indices) is range:
        first, last, step = indices[0], indices[-1], indices.step
        for k in range(first // size, last // size + 1):
            begin = max(-((first - k * size) // step), 0)
            end = min(-((first - (k + 1) * size) // step), len(indices))
            if begin < end:
                low = first + begin * step - k * size
                inside = range(low, low + (end - begin) * step, step)
                yield k, axis._replace(indices=inside), slice(begin, end)
        return
    chunks, order = indices // size, None
    if not (chunks[1:] >= chunks[:-1]).all():
        order = np.argsort(chunks, kind="stable")
        indices, chunks = indices[order], chunks[order]
    edges = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(indices)]
    for begin, end in itertools.pairwise(edges):
        k = int(chunks[begin])
        inside = indices[begin:end] - k * size
        where = slice(begin, end) if order is None else order[begin:end]
        yield k, axis._replace(indices=inside), where
