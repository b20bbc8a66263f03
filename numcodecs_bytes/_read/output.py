"""Scatters what was read of a chunk to the output. NumPy's copy swaps bytes."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.copy import copy_elements, may_be_mapped
from numcodecs_bytes._core.dtypes import AnyDType, Array, GPUArray, UInt8Array, byteswap_dtype
from numcodecs_bytes._core.invalid_bytes import with_valid_bytes
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.out_selections import (
    OutSelection,
    are_slices,
    mesh,
    out_selection_within,
)
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.plan import RunPlan
from numcodecs_bytes._runtime.threads import IsWanted


class Output(NamedTuple):
    """The array that a batch is read into, for one of the threads that fill it.

    The array is as `check_output` requires. A thread of a pool changes it only while it holds its
    lock, and after `raise_if_cancelled`; the event loop needs neither. A caller that was cancelled
    takes the lock once: from then on, the array is the caller's alone.
    """

    array: Array
    drop_axes: tuple[int, ...]  # the axes of chunks that the array lacks
    is_wanted: IsWanted
    lock: threading.Lock

    @classmethod
    def of_caller(cls, array: Array, drop_axes: tuple[int, ...] = ()) -> "Output":
        """Return an output that the calling thread fills, which always wants it."""
        return cls(array, drop_axes, _always, threading.Lock())

    @property
    def may_be_cancelled(self) -> bool:
        """Whether a caller may want the array back while it is filled."""
        return self.is_wanted is not _always

    def for_thread(self, is_wanted: IsWanted) -> "Output":
        """Return the output for another thread."""
        return self._replace(is_wanted=is_wanted, lock=threading.Lock())

    def raise_if_cancelled(self) -> None:
        """Raise CancelledError if the array must not be changed any more."""
        if not self.is_wanted():
            raise CancelledError("the read was cancelled")


def _always() -> bool:
    return True


def check_output(out: Array | GPUArray, dtype: AnyDType, *, is_on_gpu: bool = False) -> None:
    """Raise `LeftToZarr` unless chunks of a dtype can be read into an output part by part.

    They can if the result is that of assigning whole chunks: nothing is converted, no two elements
    share memory, and the memory is the caller's own, not that of a file.
    """
    if not is_on_gpu:
        if type(out) is not np.ndarray or out.dtype.hasobject:
            raise LeftToZarr("the output is not a plain NumPy array")
        if not out.flags.writeable:
            raise LeftToZarr("the output is read-only")
        if out.base is not None and may_be_mapped(out):
            raise LeftToZarr("the memory of the output may be mapped from a file")
    if out.dtype != dtype:
        raise LeftToZarr(f"the output has the data type {out.dtype}, the array {dtype}")
    if not out.flags.c_contiguous and _may_overlap(out):
        raise LeftToZarr("elements of the output may overlap each other")


def _may_overlap(array: Array | GPUArray) -> bool:
    """Whether two elements of an array may share memory, judging by its strides."""
    along = sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
    end = array.itemsize  # the extent of the elements along the axes with smaller strides
    for stride, num in along:
        if stride < end:
            return True
        end += stride * (num - 1)
    return False


def scatter(
    raw: bytes | memoryview | UInt8Array,
    plan: RunPlan,
    layout: Layout,
    out: Array,
    out_selection: OutSelection,
) -> None:
    """Copy what is selected of the runs of a plan, which `raw` holds end to end, to the output."""
    if not plan.num_runs:
        return
    window: Array = np.ndarray(plan.window_shape, layout.stored_dtype, raw, 0, plan.window_strides)
    if plan.needs_take:
        window = window[mesh(plan.take_index, plan.window_shape)]
    elements = decoded_elements(window, layout)
    if are_slices(out_selection) and (view := out[(*out_selection, ...)]).shape == elements.shape:
        copy_elements(view, elements)
    else:
        out[out_selection] = elements


def decoded_elements(elements: Array, layout: Layout) -> Array:
    """Return what stored elements hold, as an array that NumPy copies into one of `layout.dtype`.

    Shares memory with them, unless codecs convert them, NumPy can't swap that dtype, or there are
    invalid bytes.
    """
    if layout.element_codecs is not None:
        return layout.element_codecs.decode(elements)
    if layout.is_converted_by_copy:
        return elements
    dtype = layout.dtype
    if dtype.kind == "b":
        return np.not_equal(elements.view(np.uint8), 0)
    if byteswap_dtype(dtype) != dtype:
        elements = elements.astype(byteswap_dtype(dtype), copy=False).view(dtype)
    return with_valid_bytes(elements)


def view_of(
    out: Output, outer: OutSelection
) -> tuple[Output, Callable[[OutSelection], OutSelection]]:
    """Return the output, or its view at `outer`, and what maps selections within `outer` to it."""
    if are_slices(outer):
        view = out.array[(*outer, ...)]
        return out._replace(array=view), lambda inner: mesh(inner, view.shape)
    return out, partial(out_selection_within, outer)


def direct_view(
    out: Array, out_selection: OutSelection, plan: RunPlan, layout: Layout
) -> UInt8Array | None:
    """Return a view of the output, in bytes, if what it selects is the runs of a plan in order."""
    if not (plan.is_dense and layout.is_stored_as_in_memory and are_slices(out_selection)):
        return None
    view = out[(*out_selection, ...)].transpose(plan.stored_axes)
    return view.reshape(-1).view(np.uint8) if view.flags.c_contiguous else None
