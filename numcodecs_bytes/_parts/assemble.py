"""The bytes of a partial read -> the selected elements."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType, Array, copied_as
from numcodecs_bytes._core.invalid_bytes import with_valid_bytes
from numcodecs_bytes._parts.plan import Plan
from numcodecs_bytes._parts.ranges import Indices


def copy_pieces(out: Array, raw: Array, starts: Indices, lengths: Indices) -> None:
    """Copy pieces of `raw` into `out`, end to end.

    Parameters
    ----------
    out : numpy.ndarray
        Writable, contiguous, uint8, shape ``(lengths.sum(),)``. Does not overlap `raw`.
    raw : numpy.ndarray
        Contiguous, uint8, shape ``(num_bytes,)``.
    starts, lengths : numpy.ndarray
        Position in `raw` and length of each piece in bytes, shape ``(num_pieces,)``, at least one
        piece. The pieces must lie within `raw`.

    Raises
    ------
    IndexError
        If pieces of one common length, at most `SMALL_PIECE_BYTES`, reach beyond `raw`. Others are
        not checked.
    """
    length = int(lengths[0])
    if length <= SMALL_PIECE_BYTES and (lengths == length).all():
        # The piece that begins at each byte. Unlike as_strided, this raises beyond the memory.
        pieces_at = np.ndarray(len(raw) - length + 1, f"V{length}", raw, strides=(1,))
        out.view(pieces_at.dtype)[:] = pieces_at[starts]
        return
    place = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        out[place : place + length] = raw[start : start + length]
        place += length


SMALL_PIECE_BYTES = 1 << 12


def select_fetched(fetched: Array, stored: AnyDType, plan: Plan, selection: Any) -> Array:
    """Return the selected elements of a chunk in the stored dtype.

    Parameters
    ----------
    fetched : numpy.ndarray
        uint8, shape ``(num_bytes,)``: the pieces of `plan.ranges` end to end, or the whole chunk if
        `plan.is_whole`.
    stored : numpy.dtype
        The stored dtype of the elements.
    plan : Plan
        Made for this selection.
    selection : tuple
        As in `plan_read`; used only if `plan.is_whole`.

    Returns
    -------
    numpy.ndarray
        Dtype `stored`, shape `plan.shape` (or that of the selection, if `plan.is_whole`). A view of
        `fetched`, or for index arrays a copy; no intermediate copy is larger than both the
        fetched and the selected elements.

    Raises
    ------
    IndexError
        If `plan.is_whole` and the selection is out of bounds.
    TypeError, ValueError
        If there are fewer bytes than the plan needs.
    """
    if not plan.is_whole and math.prod(plan.shape) == 0:
        return np.empty(plan.shape, stored)
    item_size = stored.itemsize
    strides = [stride * item_size for stride in plan.window_strides]
    # Unlike as_strided, this raises if the window reaches beyond the memory.
    raw = np.ascontiguousarray(fetched)
    selected: Array = np.ndarray(plan.window_shape, stored, raw, strides=strides)
    if plan.is_whole or plan.selection is not None:
        return np.asanyarray(selected[selection if plan.is_whole else plan.selection])

    def pick(positions: tuple[Any, ...], axes: Iterable[int]) -> None:
        nonlocal selected
        for axis in axes:
            if positions[axis] is not None:
                # Not take(), which would first make a contiguous copy of its source.
                selected = selected[(slice(None),) * axis + (positions[axis],)]

    num_axes = len(plan.window_shape)
    pick(plan.index, range(num_axes))
    growth = [
        1.0 if order is None else len(order) / length
        for order, length in zip(plan.order, selected.shape, strict=True)
    ]
    pick(plan.order, sorted(range(num_axes), key=growth.__getitem__))
    return selected.reshape(plan.shape)


def ready_to_copy(selected: Array, dtype: AnyDType) -> Array:
    """Return stored elements as an array that NumPy copies correctly into an array of `dtype`.

    Byte-swapping is left to that copy, except for dtypes that NumPy does not swap correctly.

    Parameters
    ----------
    selected : numpy.ndarray
        Elements in their stored dtype, any shape and layout.
    dtype : numpy.dtype
        The dtype of the elements in memory.

    Returns
    -------
    numpy.ndarray
        Same shape. In the stored dtype, or in `dtype` if `copied_as` replaces that. Shares memory
        with `selected` if neither byte-swapping nor invalid bytes require a copy.
    """
    copied = copied_as(dtype)
    if copied == dtype:
        return with_valid_bytes(selected)
    return with_valid_bytes(selected.astype(copied, copy=False).view(dtype))
