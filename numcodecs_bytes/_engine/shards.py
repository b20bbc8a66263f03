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
from numcodecs_bytes._engine import kept
from numcodecs_bytes._engine.layout import Layout, layout_of
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.plan import Plan, Where, plan_axes
from numcodecs_bytes._engine.selection import Axis, axes_of, key_of
from numcodecs_bytes._zarr_versions import decode_index

MISSING = np.iinfo(np.uint64).max  # offset and length of a missing inner chunk in the index


class Items(NamedTuple):
    """What a selection takes from the inner chunks of a shard."""

    coordinates: tuple[Any, ...]  # of the inner chunks, along each axis of their grid
    plan_of_each: list[Plan]
    # For each axis of the selection, where the elements of the inner chunks along it belong.
    parts: list[list[Any]]
    gap: int | None  # the largest gap that was planned with, in bytes
    within: Any = None  # for points only: the offset of each in its inner chunk, in bytes

    @property
    def plans(self) -> list[tuple[Plan, Where]]:
        """The plan for each inner chunk, and where its elements belong in the selection."""
        return list(zip(self.plan_of_each, itertools.product(*self.parts), strict=True))

    @property
    def most_memory(self) -> int:
        """See `kept.Kept`."""
        num_along: int = sum(map(len, self.parts)) + sum([each.size for each in self.coordinates])
        num_bytes = 1024 + 256 * len(self.coordinates) + 80 * num_along
        plans = {id(plan): plan.most_memory for plan in self.plan_of_each}
        return num_bytes + 8 * len(self.plan_of_each) + sum(plans.values())


class Shard:
    """How the shards of an array are stored: by zarr's codec, with inner chunks of a layout."""

    def __init__(self, codec: Any, spec: ArraySpec, layout: Layout) -> None:
        self.codec, self.spec, self.layout = codec, spec, layout
        self.grid_shape = codec._get_chunks_per_shard(spec)  # noqa: SLF001
        self.index_bytes = int(codec._shard_index_size(self.grid_shape))  # noqa: SLF001
        self.num_chunks = math.prod(self.grid_shape)

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

    @property
    def most_memory(self) -> int:
        """See `kept.Kept`; the specification of a shard holds a fill value."""
        return 2048 + 128 * len(self.spec.shape) + self.layout.item_size

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
        key = self, key_of(selection), drop_axes, gap
        try:
            items: Items | None = kept.find(key)
        except TypeError:  # an array has no hash
            return self._make_items(selection, drop_axes, gap)
        if items is None:
            items = self._make_items(selection, drop_axes, gap)
            items = kept.add(key, items)
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
            return Items(coordinates, [], [[]], gap, starts)
        indices, parts, insides, order = [], [], [], inner.axis_order
        for k, position in enumerate(np.argsort(order).tolist()):
            axis = axes[position]._replace(stride=inner.strides[k])
            along = list(_each_chunk(axis, inner.shape[k]))
            indices.append([index for index, *_ in along])
            insides.append([inside for _, inside, _ in along])
            if axis.output_axis is not None:  # if it is dropped, there is one inner chunk along it
                parts.append([part for *_, part in along])
        made: dict[Any, Plan] = {}  # many inner chunks have the same plan
        plan_of_each = []
        for each in itertools.product(*insides):
            key = tuple(map(id, each))
            if key not in made:
                made[key] = plan_axes(tuple([each[k] for k in order]), inner, gap)
            plan_of_each.append(made[key])
        return Items(np.ix_(*indices), plan_of_each, parts, gap)

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
            plans, places = items.plan_of_each, list(itertools.product(*items.parts))
            of_present = zip(present.tolist(), begins.tolist(), strict=True)
            parts = [(plans[k], start, places[k]) for k, start in of_present]
            return parts, [places[k] for k in missing], num_alone
        axis = Axis(begins + items.within[present], 1, 0)
        plan = plan_axes((axis,), self.layout, items.gap)
        parts = [(plan, 0, (present,))] if len(present) else []
        return parts, [(missing,)] if len(missing) else [], num_alone


def _each_chunk(axis: Axis, size: int) -> Iterator[tuple[int, Axis, Any]]:
    """Yield the inner chunks along an axis: index, what is selected, and where that belongs.

    If the same is selected from several of them, that is the same object.
    """
    indices: Any = axis.indices
    if not len(indices):
        return
    if type(indices) is range:
        first, last, step = indices[0], indices[-1], indices.step
        made: dict[range, Axis] = {}
        for k in range(first // size, last // size + 1):
            begin = max(-((first - k * size) // step), 0)
            end = min(-((first - (k + 1) * size) // step), len(indices))
            if begin < end:
                low = first + begin * step - k * size
                inside = range(low, low + (end - begin) * step, step)
                if inside not in made:
                    made[inside] = axis._replace(indices=inside)
                yield k, made[inside], slice(begin, end)
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
