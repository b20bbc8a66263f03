"""Shards of uncompressed inner chunks: an index, and inner chunks that begin where it says.

What a selection takes from each inner chunk is planned and read as for any chunk. Whatever is wrong
with a shard is left to zarr, which raises the error, or reads it.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._engine.files import Left, OpenFile
from numcodecs_bytes._engine.layout import Layout, layout_of
from numcodecs_bytes._engine.output import are_slices, place_within
from numcodecs_bytes._engine.plan import Plan, Where, plan_axes
from numcodecs_bytes._engine.read_file import read
from numcodecs_bytes._engine.selection import Axis, axes_of, key_of
from numcodecs_bytes._zarr_versions import decode_index, fill_value_or_default

MISSING = np.iinfo(np.uint64).max  # offset and length of a missing inner chunk in the index


class Items(NamedTuple):
    """What a selection takes from the inner chunks of a shard.

    Attributes
    ----------
    coordinates : tuple of numpy.ndarray
        The index of each inner chunk along each axis of their grid, shape ``(num_chunks,)``. For
        points, the inner chunk of each point.
    plans : list of (Plan, tuple)
        The plan for each inner chunk, and where its elements belong in the selection.
    within : numpy.ndarray or None
        For points, where each begins in its inner chunk, in bytes.
    """

    coordinates: tuple[Any, ...]
    plans: list[tuple[Plan, Where]]
    within: Any = None


class Shard:
    """How the shards of an array are stored.

    Parameters
    ----------
    codec : zarr.codecs.ShardingCodec
        zarr's own codec.
    spec : zarr.core.array_spec.ArraySpec
        The specification of the shard.
    layout : Layout
        How an inner chunk is stored.
    """

    def __init__(self, codec: Any, spec: ArraySpec, layout: Layout) -> None:
        self.codec, self.spec, self.layout = codec, spec, layout
        self.grid_shape = codec._get_chunks_per_shard(spec)  # noqa: SLF001
        self.index_bytes = int(codec._shard_index_size(self.grid_shape))  # noqa: SLF001
        self.num_chunks = math.prod(self.grid_shape)
        self._items: dict[Any, Items] = {}

    @property
    def num_bytes(self) -> int:
        """Length of all inner chunks in bytes."""
        return math.prod(self.spec.shape) * self.layout.item_size

    def index_range(self, num_bytes: int) -> tuple[int, int]:
        """Return first byte and end of the index of a shard of so many bytes."""
        location = self.codec.index_location  # an Enum on zarr 3.1.6
        is_first = getattr(location, "value", location) == "start"
        start = 0 if is_first else num_bytes - self.index_bytes
        if num_bytes < self.index_bytes:
            raise Left("the shard is too short for its index")
        return start, start + self.index_bytes

    def decode_index(self, raw: Any) -> Any:
        """Return offsets and lengths in bytes, uint64, shape ``(*grid_shape, 2)``.

        Raises `Left` if its checksum is wrong.
        """
        try:
            return decode_index(self.codec, raw, self.grid_shape)
        except ValueError as error:
            raise Left("the index of the shard is damaged") from error

    def items_of(
        self, selection: Any, drop_axes: tuple[int, ...] = (), gap: int | None = None
    ) -> Items:
        """Return what a selection takes from the inner chunks; kept unless it has arrays.

        Raises `Left` if the selection is of an unknown kind.
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
        if axes is None:
            raise Left("the selection is of an unknown kind")
        if len(axes) < len(shape):
            pairs = [np.divmod(a, n) for a, n in zip(selection, inner.shape, strict=True)]
            coordinates, within = zip(*pairs, strict=True)
            strides = inner.strides
            return Items(
                coordinates, [], sum([a * s for a, s in zip(within, strides, strict=True)])
            )
        order = inner.axis_order
        moved = [a._replace(stride=inner.strides[k]) for a, k in zip(axes, order, strict=True)]
        parts = [_each_chunk(a, inner.shape[k]) for a, k in zip(moved, order, strict=True)]
        made: dict[Any, Plan] = {}
        num_axes, at, plans = sum([a.to is not None for a in axes]), [], []
        for combined in itertools.product(*map(list, parts)):
            where: list[Any] = [slice(None)] * num_axes
            for _, axis, cut in combined:
                if axis.to is not None:
                    where[axis.to] = cut
            of_chunk = tuple([axis for _, axis, _ in combined])
            key = tuple([a.indices if type(a.indices) is range else id(a) for a in of_chunk])
            if key not in made:
                made[key] = plan_axes(of_chunk, inner, gap)
            at.append([k for k, *_ in combined])
            plans.append((made[key], tuple(where)))
        of_axis = np.array(at, np.intp).reshape(len(plans), len(order)).T
        return Items(tuple(of_axis[np.argsort(order)]), plans)

    def locate(self, index: Any, coordinates: tuple[Any, ...], num_bytes: int) -> tuple[Any, Any]:
        """Return where inner chunks begin in bytes, and which of them are missing.

        Parameters
        ----------
        index : numpy.ndarray
            As `decode_index` returns it.
        coordinates : tuple of numpy.ndarray
            Which inner chunks, shape ``(num_chunks,)``.
        num_bytes : int
            Length of the shard in bytes.

        Raises
        ------
        Left
            If one has another length than a chunk, or reaches beyond the shard.
        """
        entries = index[(*coordinates, slice(None))].reshape(-1, 2)
        starts, lengths, length = entries[:, 0], entries[:, 1], self.layout.num_bytes
        is_missing = (starts == MISSING) & (lengths == MISSING)
        is_wrong = (lengths != length) | (starts > max(num_bytes - length, 0))
        if (is_wrong & ~is_missing).any():
            raise Left("the index has an inner chunk of another length, or beyond the shard")
        return starts.astype(np.int64), is_missing

    def parts_of(
        self, index: Any, items: Items, num_bytes: int, gap: int
    ) -> tuple[list[tuple[Plan, int, Where]], list[Where], Any]:
        """Return what to read of inner chunks that an index has, where it begins, where it belongs.

        And where those belong that are missing, and where the others begin. See `locate`.
        """
        starts, is_missing = self.locate(index, items.coordinates, num_bytes)
        present, missing = np.flatnonzero(~is_missing), np.flatnonzero(is_missing)
        begins = starts[present]
        if items.within is None:
            plans = [items.plans[k] for k in present]
            parts = [(p, b, w) for (p, w), b in zip(plans, begins.tolist(), strict=True)]
            return parts, [items.plans[k][1] for k in missing], begins
        axis = Axis(begins + items.within[present], 1, 0)
        parts = [(plan_axes((axis,), self.layout, gap), 0, (present,))] if len(present) else []
        return parts, [(missing,)] if len(missing) else [], begins

    def num_bytes_alone(self, starts: Any) -> int:
        """Return how many bytes zarr alone reads of inner chunks that begin at `starts`.

        zarr 3.4 reads short gaps between them, too.
        """
        config, length, num = self.spec.config, self.layout.num_bytes, self.index_bytes
        max_gap = getattr(config, "sharding_coalesce_max_gap_bytes", -1)
        max_bytes = getattr(config, "sharding_coalesce_max_bytes", 0)
        first = last = 0
        for start in np.unique(starts).tolist():
            end = start + length
            if last and start - last <= max_gap and end - first <= max_bytes:
                num += end - last
            else:
                num, first = num + length, start
            last = end
        return num


def _each_chunk(axis: Axis, size: int) -> Iterator[tuple[int, Axis, Any]]:
    """Yield the inner chunks along an axis: index, what is selected in it, and where it belongs."""
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


def read_shard(  # noqa: PLR0913, PLR0917
    descriptor: int,
    shard: Shard,
    selection: Any,
    out: Array,
    place: Any,
    drop_axes: tuple[int, ...] = (),
    gap: int | None = None,
) -> tuple[int, int, Any]:
    """Read a selection of a shard to its place in the output.

    Parameters
    ----------
    descriptor : int
        The open file of the shard.
    shard : Shard
        How it is stored.
    selection, out, place, drop_axes, gap
        As in `plan.plan_of` and `read_file.read`.

    Returns
    -------
    num_requests, num_bytes : int
        How many reads there were, and of how many bytes.
    starts : numpy.ndarray
        Where the inner chunks begin of which something was read.

    Raises
    ------
    Left
        If zarr is to read the shard, or to raise the error: its index is damaged, for example.
    EOFError
        If the file was truncated meanwhile.
    """
    items, layout = shard.items_of(selection, drop_axes, gap), shard.layout
    num_bytes = files.length_of(descriptor)
    first, end = shard.index_range(num_bytes)
    raw = files.memory_of(end - first)
    files.fill(descriptor, first, raw)
    index = shard.decode_index(np.asarray(raw))
    starts, is_missing = shard.locate(index, items.coordinates, num_bytes)
    place = place if isinstance(place, tuple) else (place,)
    if are_slices(place):
        out, place = out[(*place, ...)], None

    def place_of(where: Where) -> Where:
        return where if place is None else place_within(place, where)

    present, missing = np.flatnonzero(~is_missing), np.flatnonzero(is_missing)
    fill_value = fill_value_or_default(shard.spec) if len(missing) else None
    num_requests, num_read = 1, shard.index_bytes
    if items.within is not None:
        if len(missing):
            out[place_of((missing,))] = fill_value
        plan = plan_axes((Axis((starts + items.within)[present], 1, 0),), layout, gap)
        num, num_bytes = read(OpenFile(descriptor), layout, plan, out, place_of((present,)))
        return num_requests + num, num_read + num_bytes, starts[present]
    for k in missing.tolist():
        out[place_of(items.plans[k][1])] = fill_value
    chunks = [
        (OpenFile(descriptor, int(starts[k]), is_asked_for=True), *items.plans[k])
        for k in present[np.argsort(starts[present], kind="stable")].tolist()
    ]
    _ask_for(chunks)
    for file, plan, where in chunks:
        num, num_bytes = read(file, layout, plan, out, place_of(where))
        num_requests, num_read = num_requests + num, num_read + num_bytes
    return num_requests, num_read, starts[present]


def _ask_for(chunks: list[tuple[OpenFile, Plan, Where]]) -> None:
    """Have the system read all pieces of inner chunks, unless they seem to be in memory."""
    some = chunks[:: max(len(chunks) // constants.NUM_LOOKED_AT, 1)]
    firsts = [int(s) for file, plan, _ in some for s in plan.starts(file.start)[:1]]
    num_pieces = sum([plan.num_pieces for _, plan, _ in chunks])
    if num_pieces >= constants.LOOK_FROM and files.is_cold(chunks[0][0].descriptor, firsts):
        for file, plan, _ in chunks:
            files.ask_for(file.descriptor, plan.starts(file.start).tolist(), plan.length)
