"""The values that are written to parts of chunks, which may be the memory of these chunks."""

import contextlib
import os
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
from zarr.core.indexing import is_scalar

from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array
from numcodecs_bytes._parts.locks import STEP_BYTES


class Values:
    """What zarr assigns to the selections of chunks.

    Parameters
    ----------
    items, value, drop_axes
        See `in_place.Writes`.

    Attributes
    ----------
    copies : dict
        The values for chunks of which they had to be copied.
    """

    def __init__(self, items: Sequence[Any], value: Any, drop_axes: tuple[int, ...]) -> None:
        self._items, self._value, self._drop_axes = items, value, drop_axes
        self._first: dict[int, Any] = {}  # those that were computed already
        self.copies: dict[int, Any] = {}

    def may_be_mapped(self, k: int) -> bool:
        """Whether the values may be the memory of a file; `k` is a chunk to which they belong."""
        value, shape = self._value, getattr(self._value, "shape", ())
        if not isinstance(value, np.ndarray):
            if not shape:
                return False
            place = self._items[k][3]
            selectors = place if isinstance(place, tuple) else (place,)
            if any(isinstance(selector, np.ndarray) for selector in selectors):
                value = value[(slice(0, 1),) * len(shape)]  # a view, if it has any
            else:
                value = self._first[k] = self.of(k)
        return may_be_mapped(np.asarray(value))

    def copy(self, chunks: Iterable[int], max_bytes: int) -> None:
        """Copy the values for chunks to memory; what is more, to a file without a name."""
        num_bytes = 0
        with contextlib.ExitStack() as stack:
            file: Any = None
            copies = {}
            for k in chunks:
                values = np.asarray(self.of(k))
                num_bytes += values.nbytes
                if num_bytes <= max_bytes:
                    copies[k] = values.copy()
                    continue
                if file is None:
                    folder = self._items[k][0].store.root
                    file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                copies[k] = _write_to(file, values)
        self.copies = copies

    def of(self, k: int) -> Any:
        """Return the values for a chunk, in the shape of its selection."""
        if k in self.copies:
            return self.copies[k]
        if k in self._first:
            return self._first.pop(k)
        _, spec, selection, place, *_ = self._items[k]
        if selection == () or is_scalar(self._value, spec.dtype.to_native_dtype()):
            return self._value
        values = np.asarray(self._value[place])
        if self._drop_axes:
            axes = range(len(spec.shape))
            values = values[tuple(None if k in self._drop_axes else slice(None) for k in axes)]
        return values


def may_be_mapped(array: Any) -> bool:
    """Whether the memory of an array may be that of a file, and not of this process alone."""
    while True:
        if isinstance(array, memoryview):
            array = array.obj
        elif isinstance(array, pickle.PickleBuffer):
            array = array.raw()
        elif array is None or isinstance(array, bytes | bytearray):
            return False
        elif not hasattr(array, "base"):
            return True
        else:
            array = array.base


def _write_to(file: BinaryIO, array: Array) -> Array:
    """Write an array to the end of a file, and map it from there."""
    start = file.seek(0, os.SEEK_END)
    size = max(STEP_BYTES // array.itemsize, 1)
    blocks: Any = np.nditer(
        array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=size
    )
    file.writelines(as_bytes(np.ascontiguousarray(block)).data for block in blocks)
    file.flush()
    return np.memmap(file, array.dtype, "r", start, array.shape)
