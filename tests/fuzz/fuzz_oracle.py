"""What the fuzz target compares with: the specification, one element and one byte at a time.

NumPy's casts, zarr and numcodecs_bytes have no part in it.
"""

import json
import re
import sys

import numpy as np
from data_types import CASES
from fuzz_mutator import CONFIGURED, chunk_shape_of
from helpers import bytes_codec


def stored_bytes(array, endian):
    """Return what the specification says is stored; NumPy's casts and copies have no part in it."""
    return _reordered(np.ascontiguousarray(array).tobytes(), array.dtype, endian)


def native_elements(stored, dtype, endian):
    """Return flat elements in the machine's byte order from stored bytes, as many as are whole."""
    packed = dtype.newbyteorder("=")
    whole = len(stored) // packed.itemsize * packed.itemsize
    return np.frombuffer(_reordered(stored[:whole], packed, sys.byteorder, endian), packed)


def _reordered(memory, dtype, endian, in_memory=None):
    """Return elements packed and in another byte order, from the dtype's own or a given one."""
    size = dtype.itemsize
    elements = (memory[i : i + size] for i in range(0, len(memory), size or 1))
    return b"".join(_reordered_element(element, dtype, endian, in_memory) for element in elements)


def _reordered_element(memory, dtype, endian, in_memory):
    if dtype.subdtype is not None:
        return _reordered(memory, dtype.subdtype[0], endian, in_memory)
    if dtype.names is not None:
        fields = (dtype.fields[name][:2] for name in dtype.names)
        return b"".join(
            _reordered(memory[offset : offset + field.itemsize], field, endian, in_memory)
            for field, offset in fields
        )
    if dtype.kind == "b":
        return bytes([memory != b"\0"])
    if dtype.type.__module__ == "ml_dtypes":
        unit = min(dtype.itemsize, 2)
        if unit == 1:
            num_bits = int(re.match("u?[a-z]+([0-9])", dtype.name)[1])
            return bytes([memory[0] & (2**num_bits - 1)])
    elif dtype.kind in "SV":
        return memory
    else:
        unit = {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)
    if (in_memory or {"<": "little", ">": "big"}.get(dtype.byteorder, sys.byteorder)) == endian:
        return memory
    return b"".join(memory[i : i + unit][::-1] for i in range(0, len(memory), unit))


# By their metadata in Zarr v3.
_V3_DTYPES = {json.dumps(case.name): case.dtype for case in CASES if case.dtype.kind not in "mMSU"}
_V3_DTYPES |= {json.dumps(data_type): dtype for data_type, dtype, _ in CONFIGURED}


def v3_dtype(data_type):
    """Return NumPy's name for a data type of Zarr v3, None where the oracle does not know it."""
    if isinstance(data_type, str) and re.fullmatch(r"r\d+", data_type, re.ASCII):
        return np.dtype(f"V{int(data_type[1:]) // 8}") if int(data_type[1:]) % 8 == 0 else None
    return _V3_DTYPES.get(json.dumps(data_type))


_V2_NAMES = re.compile(r"[<>|]([iu]\d+|b1|f[248]|c8|c16|[SUV]\d+|M8\[\d*s\])", re.ASCII)


def v2_dtype(data):
    """Return the dtype that a plain Zarr v2 name or list says, None where it is not plain."""
    if isinstance(data, str):
        if data in ("bfloat16", "r16", "uint2"):
            return v3_dtype(data)
        return np.dtype(data) if _V2_NAMES.fullmatch(data) else None
    fields = [(name, v2_dtype(field)) for name, field in data]
    is_plain = all(name and dtype is not None for name, dtype in fields)
    return np.dtype(fields) if is_plain else None


def expected_elements(document):
    """Return dtype, endian and memory order where the document is plain, else None.

    Plain: no codec but ours, spelt as the specification does, for a data type that NumPy has.
    """
    try:
        if document["zarr_format"] == 2:
            codec = {"id": "bytes", "endian": "big", "dtype": document["dtype"]}
            dtype, order = v2_dtype(document["dtype"]), document["order"]
            endian = document["filters"][0]["endian"]
            is_plain = document["filters"] == [{**codec, "endian": endian}] and not (
                document["compressor"] or document["fill_value"] is None
            )
        else:
            (codec,) = document["codecs"]
            dtype, order = v3_dtype(document["data_type"]), "C"
            endian = codec.get("configuration", {}).get("endian", "little")
            named = (bytes_codec(endian, name) for name in ("bytes", "endian"))
            is_plain = codec in (bytes_codec(), *named)
        # A chunk of nothing zarr 3.1.6 lets through, and fails at later.
        sizes = [*document.get("shape", ()), *(n - 1 for n in chunk_shape_of(document))]
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    if any(type(size) is not int or size < 0 for size in sizes):
        return None
    if not is_plain or endian not in ("big", "little") or order not in ("C", "F"):
        return None
    if dtype is None or not dtype.itemsize:
        return None
    return dtype, endian, order
