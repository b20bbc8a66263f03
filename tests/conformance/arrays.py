"""What the golden arrays are: data type x byte order x layout, and a reference implementation.

The reference, `reference_chunks`, follows the specifications in plain Python: no NumPy, none of our
code, none of zarr's. It is the hand calculation of the golden files.
"""

import itertools
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from data_types import CASES, ENDIANS, Case
from helpers import bytes_codec, metadata, sharded

# The element of a 0-d array, never the fill value, whose chunks some leave out.
SCALAR = 3
LAYOUTS = ("single", "edge", "sharded", "crc32c", "transposed", "0-d")


def _named(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration}


def _struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return _named("struct", fields=[{"name": n, "data_type": d} for n, d in fields])


# `data_type` and fill value of the cases whose names are not the data types' own.
_METADATA: dict[str, tuple[Any, Any]] = {
    "datetime64[s]": (_named("numpy.datetime64", unit="s", scale_factor=1), 0),
    "timedelta64[ns]": (_named("numpy.timedelta64", unit="ns", scale_factor=1), 0),
    "bytes": (_named("null_terminated_bytes", length_bytes=5), ""),
    "unicode": (_named("fixed_length_utf32", length_bytes=12), ""),
    "void": ("r40", [0] * 5),
    "struct": (_struct(("a", "int16"), ("b", "float64")), {"a": 0, "b": 0}),
    "struct in a struct": (
        _struct(
            ("id", "uint32"), ("where", _struct(("x", "float32"), ("y", "int16"))), ("ok", "bool")
        ),
        {"id": 0, "where": {"x": 0, "y": 0}, "ok": False},
    ),
    "struct of ml_dtypes": (
        _struct(("a", "bfloat16"), ("b", "int4"), ("c", "int16")),
        {"a": 0, "b": 0, "c": 0},
    ),
}
# The same elements under another name, or another form of the metadata.
_ALIASES: dict[str, tuple[str, Any, Any]] = {
    "raw_bytes": ("void", _named("raw_bytes", length_bytes=5), "AAAAAAA="),
    "r40, fill value in base64": ("void", "r40", "AAAAAAA="),
    "complex_float32": ("complex64", "complex_float32", [0, 0]),
    "complex_float64": ("complex128", "complex_float64", [0, 0]),
    "structured": (
        "struct",
        _named("structured", fields=[["a", "int16"], ["b", "float64"]]),
        "AAAAAAAAAAAAAA==",
    ),
}
_SKIPPED = ("struct of mixed byte orders", "record")  # `struct` again: Zarr v3 has no byte orders


@dataclass(frozen=True)
class DataType:
    """A data type as metadata has it, with twelve elements of it."""

    name: str
    metadata: Any
    fill_value: Any
    case: Case

    @property
    def fill(self) -> bytes:
        """The stored fill value: zero bits, but 1.0 where there is no zero (bits 0x7F)."""
        return (
            b"\x7f"
            if self.name == "float8_e8m0fnu"
            else bytes(len(self.case.stored("little", [0])))
        )


def _data_types() -> Iterator[DataType]:
    by_name = {case.name: case for case in CASES if case.zarr_v3 and case.name not in _SKIPPED}
    for name, case in by_name.items():
        fill_value = [0, 0] if name.startswith("complex") else 1 if "e8m0" in name else 0
        fill_value = False if name == "bool" else fill_value
        data_type, fill_value = _METADATA.get(name, (name, fill_value))
        title = data_type["name"] if isinstance(data_type, dict) else data_type
        yield DataType(name if name.startswith("struct") else title, data_type, fill_value, case)
    for name, (of, data_type, fill_value) in _ALIASES.items():
        yield DataType(name, data_type, fill_value, by_name[of])


DATA_TYPES = {data_type.name: data_type for data_type in _data_types()}


def metadata_of(data_type: DataType, endian: str, layout: str) -> dict[str, Any]:
    """Return the zarr.json of an array."""
    shape = [] if layout == "0-d" else [3, 4]
    chunks = {"single": [3, 4], "sharded": [4, 4], "0-d": []}.get(layout, [2, 3])
    as_bytes, crc32c = bytes_codec(endian), {"name": "crc32c"}
    codecs: list[Any] = {
        "crc32c": [as_bytes, crc32c],
        "transposed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, as_bytes],
        "sharded": [sharded([2, 2], as_bytes, index_codecs=[as_bytes, crc32c])],
    }.get(layout, [as_bytes])
    return metadata(data_type.metadata, codecs, shape, chunks, data_type.fill_value)


def reference_chunks(data_type: DataType, endian: str, layout: str) -> dict[str, bytes]:
    """Return the chunks of an array, by their keys, calculated from the specifications."""
    elements = [data_type.case.stored(endian, [i]) for i in range(12)]

    def chunk(rows: range, columns: range) -> bytes:
        indices = list(itertools.product(rows, columns))
        if layout == "transposed":
            indices.sort(key=lambda index: index[::-1])
        return b"".join(
            elements[4 * row + column] if row < 3 and column < 4 else data_type.fill
            for row, column in indices
        )

    if layout == "0-d":
        return {"c": elements[SCALAR]}
    if layout == "single":
        return {"c/0/0": chunk(range(3), range(4))}
    if layout == "sharded":
        halves = (range(2), range(2, 4))
        inner = [chunk(*ranges) for ranges in itertools.product(halves, halves)]
        index = struct.pack(
            {"little": "<", "big": ">"}[endian] + "8Q",
            *(value for i, c in enumerate(inner) for value in (i * len(c), len(c))),
        )
        return {"c/0/0": b"".join(inner) + index + _crc32c(index)}
    chunks = {
        f"c/{i}/{j}": chunk(range(2 * i, 2 * i + 2), range(3 * j, 3 * j + 3))
        for i, j in itertools.product(range(2), range(2))
    }
    return {key: c + _crc32c(c) * (layout == "crc32c") for key, c in chunks.items()}


def _crc32c(raw: bytes) -> bytes:
    """Return the checksum of RFC 3720, as the codec crc32c stores it."""
    remainder = 0xFFFFFFFF
    for byte in raw:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return struct.pack("<I", remainder ^ 0xFFFFFFFF)


def native_elements(data_type: DataType, layout: str) -> np.ndarray[Any, Any]:
    """Return the elements as a native array, in the shape of a layout."""
    elements = data_type.case.array(data_type.case.dtype.newbyteorder("="))
    if layout == "0-d":
        return elements[SCALAR : SCALAR + 1].reshape(())
    return elements.reshape(3, 4)


def write_files(path: Path, which: Any, chunks: dict[str, bytes] | None = None) -> Path:
    """Write an array's zarr.json, and chunks."""
    path.mkdir(parents=True)
    path.joinpath("zarr.json").write_text(json.dumps(metadata_of(*which)))
    for key, chunk in (chunks or {}).items():
        file = path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chunk)
    return path


def read_chunks(path: Path) -> dict[str, bytes]:
    """Return the chunks that are stored in a folder, by their keys."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != "zarr.json")
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def every_array() -> Iterator[tuple[DataType, str, str]]:
    """Yield data type, endian and layout of each golden array."""
    yield from itertools.product(DATA_TYPES.values(), ENDIANS, LAYOUTS)
