"""Cases of every data type with their stored bytes, made with `struct`; and memory layouts."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

ENDIANS = ("little", "big")
ORDER = {"little": "<", "big": ">"}
NUM_ELEMENTS = 12


@dataclass(frozen=True)
class Case:
    """Twelve elements of a data type, and how `struct` writes each of them."""

    name: str
    dtype: np.dtype[Any]
    values: list[Any]
    pack: Callable[[Any, str], bytes]
    zarr_v3: bool = True
    # ml_dtypes knows no byte order but the machine's.
    native_only: bool = False

    def array(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Return the elements, shape (12,), in the case's dtype or an equal one."""
        return np.array(self.values, self.dtype).astype(self.dtype if dtype is None else dtype)

    def stored(self, endian: str, order: Any = range(NUM_ELEMENTS)) -> bytes:
        """Return the stored bytes of the elements of these indices."""
        return b"".join(self.pack(self.values[i], ORDER[endian]) for i in order)

    def dtypes(self) -> list[np.dtype[Any]]:
        """Return the dtype and, where there is one, the same in the other byte order."""
        has_other = self.has_byte_order and not self.native_only
        return [self.dtype, self.dtype.newbyteorder("S")] if has_other else [self.dtype]

    @property
    def has_byte_order(self) -> bool:
        """Whether the stored bytes depend on `endian`."""
        return self.stored("little") != self.stored("big")


def _number(name: str, code: str, values: list[Any]) -> Case:
    return Case(name, np.dtype(name), values, lambda v, o: struct.pack(o + code, v))


def _complex(name: str, code: str) -> Case:
    return Case(
        name,
        np.dtype(name),
        [complex(i - 3.5, 2.0**i) for i in range(NUM_ELEMENTS)],
        lambda v, o: struct.pack(f"{o}2{code}", v.real, v.imag),
    )


def _ints(low: int, high: int) -> list[int]:
    return [low, high, *range(1, NUM_ELEMENTS - 1)]


FLOATS = [0.0, -0.0, 1.5, -2.25, float("inf"), -float("inf"), 1024.0, *map(float, range(3, 8))]
SIMPLE = np.dtype([("a", "i2"), ("b", "f8")])
ALIGNED = np.dtype([("a", "i2"), ("b", "f8")], align=True)
MIXED = np.dtype([("a", ">i2"), ("b", "<f8")])
TITLED = np.dtype([(("the a", "a"), "i2"), (("the b", "b"), "f8")])
NESTED = np.dtype(
    [
        ("id", "u4"),
        ("where", [("x", "f4"), ("y", ">i2", (2, 2))]),
        ("name", "S3"),
        ("label", "U2"),
        ("ok", "?"),
    ]
)
RECORD = np.dtype((np.record, [("a", "i2"), ("b", "f8")]))
PAIRS = [(i - 5, 1.5 * i) for i in range(NUM_ELEMENTS)]


def _pair(value: Any, order: str) -> bytes:
    return struct.pack(order + "hd", *value)


def _nested(value: Any, order: str) -> bytes:
    number, (x, ((a, b), (c, d))), name, label, ok = value
    return (
        struct.pack(order + "If4h", number, x, a, b, c, d)
        + name.ljust(3, b"\0")
        + _unicode(label, order, 2)
        + bytes([ok])
    )


def _unicode(value: str, order: str, length: int) -> bytes:
    return struct.pack(f"{order}{length}I", *map(ord, value.ljust(length, "\0")))


def _bfloat16(value: float, order: str) -> bytes:
    upper_half = struct.pack(">f", value)[:2]
    return upper_half if order == ">" else upper_half[::-1]


def _small_float(num_exponent_bits: int, num_mantissa_bits: int, bias: int) -> Callable[..., bytes]:
    """Return what packs a number exactly, calculated from the format's definition."""

    def pack(value: float, _: str) -> bytes:
        mantissa, exponent = math.frexp(abs(value))
        biased, fraction = exponent - 1 + bias, 2 * mantissa - 1
        if biased < 1 or not value:  # subnormal
            biased, fraction = 0, math.ldexp(abs(value), bias - 1)
        bits = biased << num_mantissa_bits | int(math.ldexp(fraction, num_mantissa_bits))
        return bytes([(value < 0) << (num_exponent_bits + num_mantissa_bits) | bits])

    return pack


def _ml(name: str, values: list[Any], pack: Callable[[Any, str], bytes], dtype: str = "") -> Case:
    dtype_of_name = np.dtype(getattr(ml_dtypes, dtype or name))
    return Case(name, dtype_of_name, values, pack, native_only=True)


def _small_int(name: str, num_bits: int) -> Case:
    low = -(2 ** (num_bits - 1)) if name.startswith("int") else 0
    values = [low + i % 2**num_bits for i in range(NUM_ELEMENTS)]
    return _ml(name, values, lambda v, _: bytes([v % 2**num_bits]))


SMALL_FLOATS = [0.0, 1.0, -1.0, 1.5, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, -1.5, 4.0]
WITH_ML_DTYPES = np.dtype([("a", ml_dtypes.bfloat16), ("b", ml_dtypes.int4), ("c", "i2")])

CASES = [
    Case("bool", np.dtype("?"), [i % 3 == 0 for i in range(12)], lambda v, _: bytes([v])),
    _number("int8", "b", _ints(-128, 127)),
    _number("uint8", "B", _ints(0, 255)),
    _number("int16", "h", _ints(-(2**15), 2**15 - 1)),
    _number("uint16", "H", _ints(0, 2**16 - 1)),
    _number("int32", "i", _ints(-(2**31), 2**31 - 1)),
    _number("uint32", "I", _ints(0, 2**32 - 1)),
    _number("int64", "q", _ints(-(2**63), 2**63 - 1)),
    _number("uint64", "Q", _ints(0, 2**64 - 1)),
    _number("float16", "e", FLOATS),
    _number("float32", "f", FLOATS),
    _number("float64", "d", FLOATS),
    _complex("complex64", "f"),
    _complex("complex128", "d"),
    _number("datetime64[s]", "q", _ints(-(2**63), 2**40)),
    _number("timedelta64[ns]", "q", _ints(-(2**63), -(2**40))),
    Case(
        "bytes",
        np.dtype("S5"),
        [bytes([65 + i]) * (i % 5) for i in range(12)],
        lambda v, _: v.ljust(5, b"\0"),
    ),
    Case(
        "unicode",
        np.dtype("U3"),
        ["äß\U0001f600"[: i % 4] for i in range(12)],
        lambda v, o: _unicode(v, o, 3),
    ),
    Case("void", np.dtype("V5"), [bytes([i, 0, 255, i, 0]) for i in range(12)], lambda v, _: v),
    Case("struct", SIMPLE, PAIRS, _pair),
    Case("struct of mixed byte orders", MIXED, PAIRS, _pair),
    Case("aligned struct", ALIGNED, PAIRS, _pair, zarr_v3=False),
    Case("titled struct", TITLED, PAIRS, _pair, zarr_v3=False),
    Case("record", RECORD, PAIRS, _pair),
    Case(
        "nested struct",
        NESTED,
        [
            (2**32 - 1 - i, (i / 4, [[i, -i], [300, -2]]), b"ab"[: i % 3], "ä"[: i % 2], i % 2 == 0)
            for i in range(12)
        ],
        _nested,
        zarr_v3=False,
    ),
    Case(
        "struct in a struct",
        np.dtype([("id", "u4"), ("where", [("x", "f4"), ("y", ">i2")]), ("ok", "?")]),
        [(i, (i / 2, -i), i % 2 == 0) for i in range(12)],
        lambda v, o: struct.pack(o + "Ifh?", v[0], *v[1], v[2]),
    ),
    _ml("bfloat16", FLOATS, _bfloat16),
    _ml(
        "complex_bfloat16",
        [complex(i - 3.5, 2.0**i) for i in range(NUM_ELEMENTS)],
        lambda v, o: _bfloat16(v.real, o) + _bfloat16(v.imag, o),
        dtype="bcomplex32",
    ),
    _ml(
        "complex_float16",
        [complex(i - 3.5, 2.0**i) for i in range(NUM_ELEMENTS)],
        lambda v, o: struct.pack(o + "2e", v.real, v.imag),
        dtype="complex32",
    ),
    _ml("float8_e3m4", SMALL_FLOATS, _small_float(3, 4, 3)),
    _ml("float8_e4m3", SMALL_FLOATS, _small_float(4, 3, 7)),
    _ml("float8_e4m3b11fnuz", SMALL_FLOATS, _small_float(4, 3, 11)),
    _ml("float8_e4m3fn", SMALL_FLOATS, _small_float(4, 3, 7)),
    _ml("float8_e4m3fnuz", SMALL_FLOATS, _small_float(4, 3, 8)),
    _ml("float8_e5m2", SMALL_FLOATS, _small_float(5, 2, 15)),
    _ml("float8_e5m2fnuz", SMALL_FLOATS, _small_float(5, 2, 16)),
    _ml("float8_e8m0fnu", [2.0**i for i in range(-6, 6)], lambda v, _: bytes([_log2(v) + 127])),
    _ml("float6_e2m3fn", SMALL_FLOATS, _small_float(2, 3, 1)),
    _ml("float6_e3m2fn", SMALL_FLOATS, _small_float(3, 2, 3)),
    _ml("float4_e2m1fn", SMALL_FLOATS, _small_float(2, 1, 1)),
    _small_int("int2", 2),
    _small_int("int4", 4),
    _small_int("uint2", 2),
    _small_int("uint4", 4),
    Case(
        "struct of ml_dtypes",
        WITH_ML_DTYPES,
        [(i / 2 - 1, i % 8 - 3, -i) for i in range(NUM_ELEMENTS)],
        lambda v, o: _bfloat16(v[0], o) + bytes([v[1] % 16]) + struct.pack(o + "h", v[2]),
        native_only=True,
    ),
]


def _log2(value: float) -> int:
    return math.frexp(value)[1] - 1


def _strided(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    sparse = np.zeros((3, 8), a.dtype)
    sparse[:, ::2] = a.reshape(3, 4)
    return sparse[:, ::2]


def _read_only(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    a = a.reshape(3, 4).copy()
    a.flags.writeable = False
    return a


def _misaligned(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    memory = np.zeros(a.nbytes + 1, np.uint8)
    shifted = memory[1:].view(a.dtype)
    shifted[...] = a
    return shifted.reshape(3, 4)


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "0-d": lambda a: a[:1].reshape(()),
    "empty": lambda a: a[:0].reshape(0, 4),
    "1-d": lambda a: a,
    "C": lambda a: a.reshape(3, 4),
    "F": lambda a: np.asfortranarray(a.reshape(3, 4)),
    "3-d F": lambda a: np.asfortranarray(a.reshape(3, 2, 2)),
    "transposed": lambda a: a.reshape(3, 2, 2).transpose(1, 2, 0),
    "strided": _strided,
    "negative stride": lambda a: a.reshape(3, 4)[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:4], (3, 4)),
    "read-only": _read_only,
    "misaligned": _misaligned,
}


def laid_out(case: Case, layout: str, dtype: Any = None) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Return a case's array in a layout, and the indices of its elements in C order."""
    array = LAYOUTS[layout](case.array(dtype))
    order = LAYOUTS[layout](np.arange(NUM_ELEMENTS)).ravel(order="C").tolist()
    return array, order


def flat_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Return the memory of an array's elements in C order, independent of the buffer protocol."""
    return np.ascontiguousarray(array).tobytes()
