"""The kernels for arrays on a GPU (CuPy's): array -> stored bytes and back, on the device."""

from typing import Any

import numpy as np

from numcodecs_bytes._dtypes import AnyDType, ml_dtype_name


def as_numpy(array: Any) -> Any:
    """Return an array as NumPy's, where it is not on a GPU: CuPy refuses that."""
    if isinstance(array, np.ndarray):
        return array
    try:
        return np.asarray(array)
    except TypeError:
        return array


def encode_on_device(array: Any, stored: AnyDType) -> Any:
    """Return the stored bytes of an array on a GPU as flat uint8, where it is."""
    flat = array.reshape(-1)
    if not flat.flags.c_contiguous:
        flat = flat.copy()
    raw = flat.view(np.uint8)
    if array.dtype.kind == "b":
        return (raw != 0).view(np.uint8)
    return _swap_on_device(raw, array.dtype, stored)


def decode_on_device(raw: Any, stored: AnyDType, dtype: AnyDType) -> Any:
    """Return flat uint8 bytes on a GPU as a flat array of dtype, where they are."""
    if dtype.kind == "b":
        return raw != 0
    return _swap_on_device(raw, stored, dtype).view(dtype)


def _swap_on_device(raw: Any, source: AnyDType, out: AnyDType) -> Any:
    # CuPy has no dtypes in the other byte order: bytes are swapped as bytes.
    for dtype in (source, out):
        if dtype.kind not in "iufc" or ml_dtype_name(dtype):
            raise TypeError(f"arrays on a GPU hold numbers of CuPy, got {dtype}; use the CPU")
    if source == out:
        return raw
    size = source.itemsize // 2 if source.kind == "c" else source.itemsize
    return raw.reshape(-1, size)[:, ::-1].copy().reshape(-1)
