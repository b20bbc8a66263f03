"""Data types of the Zarr v3 specification and its registry that zarr-python lacks.

Importing this module registers them with zarr. zarr 3.4.1 and newer import it by themselves when
they first need a data type; with older versions, ``import numcodecs_bytes.zarr_data_types``.

| ``data_type`` in the metadata | in memory | fill value |
|---|---|---|
| ``r8``, ``r16``, ``r24``, ... | raw bytes (``V``), never byte-swapped | list of bytes |
| ``bfloat16``, ``float8_*``, ``float6_*``, ``float4_e2m1fn`` | ml_dtypes | as for float32 |
| ``int2``, ``int4``, ``uint2``, ``uint4`` | ml_dtypes | as for int8 |
| ``complex_bfloat16``, ``complex_float16`` | ml_dtypes (0.6 and newer) | as for complex64 |
| ``complex_float32``, ``complex_float64`` | complex64, complex128 | as for complex64 |
| ``struct`` (on zarr 3.1.6) | structured dtype | JSON object of the fields |

Source: https://github.com/zarr-developers/zarr-extensions/tree/main/data-types, and for ``r*`` and
fill values https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html#data-types.

If zarr, or a package that was imported earlier, has registered a data type of the same name, the
name here refers to that class. Without ml_dtypes, opening an array of one of its types raises an
ImportError.

Deviations from the specification, all of them to read what others wrote: fill values of ``r*`` may
also be base64, as TensorStore writes them; fields missing from the fill value of a ``struct`` are
zero, as in zarr.

To add a data type of ml_dtypes:

1. Add a row to `_ML_DTYPES` in `_core/dtypes.py`.
2. Add a public class below with the registered name as `_zarr_v3_name`, and list it in
   `_DATA_TYPES`. Derive it from `_Float` (and `_HasByteOrder`, if it has more than one byte),
   `_Integer` (fewer than 8 bits), or `_Complex`.
3. Add a case with `_ml`, with values that the type holds, to `CASES` in ``tests/data_types.py``.
   If it has fewer than 8 bits, add its largest valid byte to ``tests/fuzz/fuzz_oracle.py`` and
   ``tests/test_zarr_data_types.py``, which are independent of this package.
4. Write the golden arrays with ``python tests/conformance/write_golden.py``; its docstring names
   the arguments. List the bugs of other implementations in ``tests/conformance/peers.py``, in
   `misreads` and `miswrites`.
5. Add it to the table above and follow ``docs/contributing.md``.

To add another name of a NumPy dtype, add it to `dtype_from_name` in `_core/configuration.py`, add a
class below that is derived from `_NoMatch` and zarr's class (see `ComplexFloat32`), list it in
`_DATA_TYPES`, and add the name to
`_ALIASES` in ``tests/conformance/arrays.py``.
"""

import base64
import contextlib
import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import zarr.dtype
import zarr.errors
from zarr.core.dtype.common import HasEndianness, HasItemSize, HasLength

from numcodecs_bytes._core.configuration import dtype_from_name, parse_dtype
from numcodecs_bytes._core.copy import decode_array
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    Endian,
    MLDType,
    check_storable,
    fields_of,
    find_ml_dtype,
    name_of_ml_dtype,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes._core.invalid_bytes import max_byte
from numcodecs_bytes._zarr_versions import DataTypeValidationError

_CONSTANTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def parse_numpy_descr(descr: list[Any]) -> zarr.dtype.ZDType[Any, Any]:
    """Return the `struct` data type for a list of fields in the notation of NumPy's `dtype.descr`.

    Early drafts of the struct data type used such lists as `data_type`. zarr rejects them before it
    calls any plugin: rewrite the metadata with ``parse_numpy_descr(descr).to_json(zarr_format=3)``.

    Parameters
    ----------
    descr : list
        Of ``[name, type]``; nested lists for nested structures. Byte orders in it are dropped,
        because in Zarr v3 the byte order is a setting of the bytes codec.

    Returns
    -------
    zarr.dtype.ZDType
        The data type `struct`, in native byte order.

    Raises
    ------
    TypeError
        If `descr` is not such a list.
    ValueError
        If a field is an array, which `struct` does not support.

    Examples
    --------
    >>> data_type = parse_numpy_descr([["age", "<i4"], ["weight", "<f4"]])
    >>> for field in data_type.to_json(zarr_format=3)["configuration"]["fields"]:
    ...     print(field)
    {'name': 'age', 'data_type': 'int32'}
    {'name': 'weight', 'data_type': 'float32'}
    """
    if not isinstance(descr, list):
        raise TypeError(f"expected a list such as [['age', '<i4'], ...], got {descr!r}")
    return struct_of(parse_dtype(descr).newbyteorder("="))


def struct_of(dtype: AnyDType) -> zarr.dtype.ZDType[Any, Any]:
    """Return the `struct` data type for a structured dtype; padding is dropped."""
    fields: list[tuple[str, zarr.dtype.ZDType[Any, Any]]] = []
    for name, field in fields_of(pack_dtype(dtype)):
        if field.subdtype is not None:
            raise ValueError(
                f"field {name!r} is an array of shape {field.shape}, which the data type struct "
                "does not support: expected a number, string, raw bytes or structure; use a "
                "separate field for each element"
            )
        if field.names is not None:
            data_type = struct_of(field)
        elif field.type is np.void:
            data_type = RawBits(length=field.itemsize)
        else:
            data_type = zarr.dtype.parse_dtype(field, zarr_format=3)
        fields.append((name, data_type))
    return Struct(fields=tuple(fields))


def _name_in(data: object) -> object:
    """Return the data type name in Zarr v3 metadata: a string, or an object with only a name."""
    if isinstance(data, Mapping) and not data.get("configuration"):
        return data.get("name")
    return data


class _NoMatch:
    """Mixin for data types that zarr must never choose for a NumPy dtype, which has another one."""

    @classmethod
    def from_native_dtype(cls, dtype: AnyDType) -> Self:
        """Raise DataTypeValidationError."""
        raise DataTypeValidationError(f"{dtype} is {cls.__name__} only if the metadata says so")

    @classmethod
    def _from_json_v2(cls, data: object) -> Self:
        raise DataTypeValidationError(f"{data!r} is not {cls.__name__}: Zarr v2 does not have it")


class _Scalars:
    """Mixin for data types that check scalars by casting them."""

    def cast_scalar(self, data: object) -> Any:
        """Return an object as a scalar, or raise TypeError."""
        raise NotImplementedError

    def _check_scalar(self, data: object) -> bool:
        try:
            self.cast_scalar(data)
        except TypeError:
            return False
        return True


def _item(data: object) -> object:
    """Return the element of a 0-d array, which zarr returns for a single element."""
    return data[()] if isinstance(data, np.ndarray) and data.ndim == 0 else data


class _Raw(np.void):  # type: ignore[misc] # final in the stubs only
    """A hashable scalar, because zarr hashes the fill values of sharded arrays."""

    def __hash__(self) -> int:
        return hash(self.tobytes())


@dataclass(frozen=True, kw_only=True)
class RawBits(_NoMatch, _Scalars, zarr.dtype.ZDType[Any, Any], HasLength, HasItemSize):
    """Raw bytes, `r8`, `r16`, ...: elements of `length` bytes that are never byte-swapped."""

    _zarr_v3_name: ClassVar[str] = "r*"
    dtype_cls: ClassVar[Any] = np.dtypes.VoidDType
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1 byte, got {self.length!r}")

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        name = _name_in(data)
        if (
            isinstance(name, str)
            and name[:1] == "r"
            and (dtype := dtype_from_name(name)) is not None
        ):
            return cls(length=dtype.itemsize)
        raise DataTypeValidationError(
            f"not a raw data type: got {data!r}, expected 'r8', 'r16', ..."
        )

    def to_json(self, zarr_format: int) -> Any:
        """Return the data type as it is written in metadata."""
        if zarr_format == 2:
            return {"name": f"|V{self.length}", "object_codec_id": None}
        return f"r{8 * self.length}"

    def to_native_dtype(self) -> AnyDType:
        """Return the NumPy dtype."""
        return np.dtype(f"V{self.length}")

    @property
    def item_size(self) -> int:
        """Size of an element in bytes."""
        return self.length

    def cast_scalar(self, data: object) -> np.void:
        """Return bytes, raw bytes, or a list of byte values as a scalar."""
        values = _item(data)
        if isinstance(values, np.void):
            values = values.tobytes()
        if isinstance(values, (list, tuple)) and all(
            type(v) is int and v in range(256) for v in values
        ):
            values = bytes(values)
        if not isinstance(values, (bytes, bytearray)) or len(values) != self.length:
            raise _no_value(
                self.to_json(3), data, f"{self.length} bytes, or a list of that many byte values"
            )
        raw = np.dtype((_Raw, self.to_native_dtype()))
        return cast("np.void", np.ndarray((), raw, bytes(values))[()])

    def default_scalar(self) -> np.void:
        """Return zeros."""
        return self.cast_scalar(bytes(self.length))

    def from_json_scalar(self, data: object, *, zarr_format: int) -> np.void:  # noqa: ARG002
        """Return a fill value in metadata as a scalar."""
        raw = _from_base64(data, self.length) if isinstance(data, str) else None
        return self.cast_scalar(data if raw is None else raw)

    def to_json_scalar(self, data: object, *, zarr_format: int) -> Any:
        """Return a scalar as a fill value in metadata."""
        raw = self.cast_scalar(data).tobytes()
        return base64.b64encode(raw).decode() if zarr_format == 2 else list(raw)


def _no_value(name: object, data: object, expected: str) -> TypeError:
    """Return the error for an invalid value, a TypeError: zarr hides the text of a ValueError."""
    return TypeError(f"not a value of {name}: got {data!r}, expected {expected}")


def _from_base64(data: str, num_bytes: int) -> bytes | None:
    """Return the bytes of a fill value in base64, or None unless it is one of `num_bytes` bytes."""
    with contextlib.suppress(ValueError):
        raw = base64.b64decode(data, validate=True)
        if len(raw) == num_bytes:
            return raw
    return None


class _Registered(_Scalars, zarr.dtype.ZDType[Any, Any], HasItemSize):
    """A data type of ml_dtypes, identified by its registered name."""

    dtype_cls: ClassVar[Any] = np.dtype

    @classmethod
    def from_native_dtype(cls, dtype: AnyDType) -> Self:
        """Return the data type of a NumPy dtype, or raise DataTypeValidationError."""
        if name_of_ml_dtype(dtype) != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{dtype} is not {cls._zarr_v3_name}")
        return cls()

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        if _name_in(data) != cls._zarr_v3_name:
            raise DataTypeValidationError(f"{data!r} is not {cls._zarr_v3_name}")
        dtype_from_name(cls._zarr_v3_name)  # raises if ml_dtypes is missing
        return cls()

    @classmethod
    def _from_json_v2(cls, data: object) -> Self:
        # A plain name, as TensorStore writes it; zarr passes it together with an object codec id.
        return cls._from_json_v3(data.get("name") if isinstance(data, Mapping) else data)

    def to_json(self, zarr_format: int) -> Any:
        """Return the data type as it is written in metadata."""
        if zarr_format == 2:
            return {"name": self._zarr_v3_name, "object_codec_id": None}
        return self._zarr_v3_name

    def to_native_dtype(self) -> AnyDType:
        """Return the dtype of ml_dtypes."""
        return cast("AnyDType", dtype_from_name(self._zarr_v3_name))

    @property
    def item_size(self) -> int:
        """Size of a stored element in bytes."""
        return self.to_native_dtype().itemsize

    def cast_scalar(self, data: object) -> Any:
        """Return a number as a scalar."""
        data = _item(data)
        if type(data) is self.to_native_dtype().type:
            return data
        return self._scalar_of(data.item() if isinstance(data, np.generic) else data)

    def _scalar_of(self, data: object) -> Any:
        raise NotImplementedError

    def default_scalar(self) -> Any:
        """Return the value whose bytes are all zero."""
        return np.zeros((), self.to_native_dtype())[()]

    def from_json_scalar(self, data: object, *, zarr_format: int) -> Any:  # noqa: ARG002
        """Return a fill value in metadata as a scalar."""
        return self._scalar_of(data)


@dataclass(frozen=True, kw_only=True)
class _HasByteOrder(_Registered, HasEndianness):
    endianness: Endian = NATIVE_ENDIAN

    def to_native_dtype(self) -> AnyDType:
        """Return the dtype of ml_dtypes."""
        return _in_byte_order(super().to_native_dtype(), self.endianness)


def _in_byte_order(dtype: AnyDType, endianness: Endian) -> AnyDType:
    """Return the dtype in a byte order; zarr's own codec gets its stored dtype this way."""
    return dtype if endianness == NATIVE_ENDIAN else dtype.newbyteorder(endianness)


class _Float(_Registered):
    def _scalar_of(self, data: object) -> Any:
        return _parse_float(data, self.to_native_dtype())

    def to_json_scalar(self, data: object, *, zarr_format: int) -> Any:  # noqa: ARG002
        """Return a scalar as a fill value in metadata."""
        return _float_to_json(self.cast_scalar(data))


class _Complex(_HasByteOrder):
    def to_native_dtype(self) -> AnyDType:
        """Return the dtype of ml_dtypes."""
        if self.endianness != NATIVE_ENDIAN:
            raise TypeError(
                f"ml_dtypes byte-swaps {self._zarr_v3_name} incorrectly, and zarr's own bytes "
                "codec relies on that; use the bytes codec of numcodecs_bytes"
            )
        return super().to_native_dtype()

    @property
    def _part_dtype(self) -> AnyDType:
        part = cast("MLDType", find_ml_dtype(super().to_native_dtype())).part
        return dtype_from_name(part) or np.dtype(part)

    def cast_scalar(self, data: object) -> Any:
        """Return a number, or a list of its real and imaginary part, as a scalar."""
        data = _item(data)
        if isinstance(data, numbers.Complex) and not isinstance(data, bool):
            data = [data.real, data.imag]
        return super().cast_scalar(data)

    def _scalar_of(self, data: object) -> Any:
        if not isinstance(data, (list, tuple)) or len(data) != 2:
            raise _no_value(self._zarr_v3_name, data, "a list of its real and imaginary part")
        parts = np.array([_parse_float(d, self._part_dtype) for d in data], self._part_dtype)
        return parts.view(type(self)().to_native_dtype())[0]

    def to_json_scalar(self, data: object, *, zarr_format: int) -> Any:  # noqa: ARG002
        """Return a scalar as a fill value in metadata."""
        return [
            _float_to_json(d) for d in np.array([self.cast_scalar(data)]).view(self._part_dtype)
        ]


class _Integer(_Registered):
    def _scalar_of(self, data: object) -> Any:
        is_signed = self._zarr_v3_name.startswith("int")
        num_values = max_byte(self.to_native_dtype()) + 1
        smallest = -num_values // 2 if is_signed else 0
        largest = smallest + num_values - 1
        if (
            isinstance(data, bool)
            or not isinstance(data, (int, float))
            or data % 1 != 0
            or not smallest <= data <= largest
        ):
            raise _no_value(self._zarr_v3_name, data, f"an integer from {smallest} to {largest}")
        return self.to_native_dtype().type(int(data))

    def to_json_scalar(self, data: object, *, zarr_format: int) -> int:  # noqa: ARG002
        """Return a scalar as a fill value in metadata."""
        return int(self.cast_scalar(data))


def _parse_float(data: object, dtype: AnyDType) -> Any:
    """Return a number, "NaN", "Infinity", "-Infinity" or hexadecimal bits as a scalar."""
    name = name_of_ml_dtype(dtype) or dtype.name
    num_digits = 2 * dtype.itemsize
    if isinstance(data, str) and re.fullmatch(f"0x[0-9a-fA-F]{{{num_digits}}}", data):
        bits = np.array([int(data, 16)], f"u{dtype.itemsize}")
        if dtype.itemsize == 1:
            bits &= max_byte(dtype)
        return bits.view(dtype)[0]
    number = _CONSTANTS.get(data) if isinstance(data, str) else data
    if (
        isinstance(number, bool)
        or not isinstance(number, (int, float))
        or (isinstance(number, int) and number.bit_length() > 1000)  # too large for a float
    ):
        raise _no_value(
            name,
            data,
            f"a number, {', '.join(map(repr, _CONSTANTS))}, or its bits as '0x' followed by "
            f"{num_digits} hexadecimal digits",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        scalar = np.array([float(number)]).astype(dtype)[0]
    # Types that lack NaN, infinity, zero or a sign silently convert these to other values.
    is_finite, largest = math.isfinite(number), float(_finfo(dtype).max)
    if (
        is_finite != math.isfinite(scalar)
        or math.isnan(number) != math.isnan(scalar)
        or (is_finite and abs(number) > largest)
    ):
        raise _no_value(
            name,
            data,
            f"a value that it can represent: the largest is {largest}, and not every data type has "
            "zero, infinity and NaN",
        )
    return scalar


def _finfo(dtype: AnyDType) -> Any:
    import ml_dtypes  # noqa: PLC0415 # optional

    return cast("Any", ml_dtypes).finfo(dtype)


def _float_to_json(scalar: Any) -> Any:
    number = float(scalar)
    if math.isfinite(number):
        return number
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    bits = np.array([scalar])
    is_canonical = bits.tobytes() == np.array([math.nan]).astype(bits.dtype).tobytes()
    return "NaN" if is_canonical else f"0x{bits[::-1].tobytes()[::-1].hex()}"


@dataclass(frozen=True, kw_only=True)
class Struct(_NoMatch, zarr.dtype.Structured, HasEndianness):
    """Structures, `struct`: consecutive fields without padding, for zarr 3.1.6."""

    _zarr_v3_name: ClassVar[Any] = "struct"
    endianness: Endian = NATIVE_ENDIAN

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [name for name, _ in self.fields]
        if not all(isinstance(n, str) and n for n in names) or len(set(names)) < len(names):
            raise ValueError(f"the fields of a struct must have distinct names, got {names!r}")
        for _, field in self.fields:
            check_storable(field.to_native_dtype())

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        if not isinstance(data, Mapping) or data.get("name") != "struct":
            raise DataTypeValidationError(f"not a struct: {data!r}")
        configuration = data.get("configuration")
        fields = configuration.get("fields") if isinstance(configuration, Mapping) else None
        if not isinstance(fields, (list, tuple)) or set(configuration or ()) != {"fields"}:
            raise ValueError(
                f"not the configuration of a struct: got {configuration!r}, expected "
                '{"fields": [{"name": ..., "data_type": ...}, ...]}'
            )
        return cls(fields=tuple(map(_parse_field, fields)))

    def to_json(self, zarr_format: int) -> Any:
        """Return the data type as it is written in metadata."""
        if zarr_format == 2:
            return super().to_json(2)
        fields = [{"name": n, "data_type": d.to_json(zarr_format=3)} for n, d in self.fields]
        return {"name": "struct", "configuration": {"fields": fields}}

    def to_native_dtype(self) -> Any:
        """Return the NumPy dtype."""
        return _in_byte_order(super().to_native_dtype(), self.endianness)

    def cast_scalar(self, data: object) -> Any:
        """Return a tuple or a structured scalar as a structured scalar."""
        raw = np.dtype((_Raw, self.to_native_dtype()))
        return np.array([super().cast_scalar(_item(data))], raw)[0]

    def default_scalar(self) -> Any:
        """Return zeros."""
        return self.cast_scalar(np.zeros((), self.to_native_dtype())[()])

    def from_json_scalar(self, data: Any, *, zarr_format: Any) -> Any:
        """Return a fill value in metadata, a JSON object of the fields or base64, as a scalar."""
        dtype = self.to_native_dtype()
        stored = stored_dtype(dtype, "little")
        raw = _from_base64(data, stored.itemsize) if isinstance(data, str) else None
        if raw is not None:
            return self.cast_scalar(decode_array(np.frombuffer(raw, np.uint8), stored, dtype)[0])
        if not isinstance(data, Mapping):
            raise _no_value("struct", data, "a JSON object of its fields")
        values = [
            field.from_json_scalar(data[name], zarr_format=zarr_format)
            if name in data
            else field.default_scalar()
            for name, field in self.fields
        ]
        return self.cast_scalar(tuple(values))

    def to_json_scalar(self, data: object, *, zarr_format: Any) -> Any:
        """Return a scalar as a fill value in metadata."""
        scalar = self.cast_scalar(data)
        if zarr_format == 2:
            return super().to_json_scalar(scalar, zarr_format=zarr_format)
        return {
            name: field.to_json_scalar(scalar[name], zarr_format=3) for name, field in self.fields
        }


def _parse_field(field: Any) -> tuple[str, zarr.dtype.ZDType[Any, Any]]:
    """Return the name and data type of a field; like zarr, also for the pairs of `structured`."""
    if isinstance(field, Mapping) and {"name", "data_type"} <= set(field):
        field = field["name"], field["data_type"]
    if not isinstance(field, (list, tuple)) or len(field) != 2:
        raise ValueError(
            f'not a field of a struct: got {field!r}, expected {{"name": ..., "data_type": ...}}'
        )
    name, data_type = field
    registry: Any = zarr.dtype.data_type_registry
    return name, registry.match_json(_name_in(data_type), zarr_format=3)


class BFloat16(_Float, _HasByteOrder):
    """`bfloat16`, the upper half of a float32."""

    _zarr_v3_name = "bfloat16"


class Float8E3M4(_Float):
    """`float8_e3m4`."""

    _zarr_v3_name = "float8_e3m4"


class Float8E4M3(_Float):
    """`float8_e4m3`."""

    _zarr_v3_name = "float8_e4m3"


class Float8E4M3B11FNUZ(_Float):
    """`float8_e4m3b11fnuz`."""

    _zarr_v3_name = "float8_e4m3b11fnuz"


class Float8E4M3FN(_Float):
    """`float8_e4m3fn`."""

    _zarr_v3_name = "float8_e4m3fn"


class Float8E4M3FNUZ(_Float):
    """`float8_e4m3fnuz`."""

    _zarr_v3_name = "float8_e4m3fnuz"


class Float8E5M2(_Float):
    """`float8_e5m2`."""

    _zarr_v3_name = "float8_e5m2"


class Float8E5M2FNUZ(_Float):
    """`float8_e5m2fnuz`."""

    _zarr_v3_name = "float8_e5m2fnuz"


class Float8E8M0FNU(_Float):
    """`float8_e8m0fnu`."""

    _zarr_v3_name = "float8_e8m0fnu"


class Float6E2M3FN(_Float):
    """`float6_e2m3fn`."""

    _zarr_v3_name = "float6_e2m3fn"


class Float6E3M2FN(_Float):
    """`float6_e3m2fn`."""

    _zarr_v3_name = "float6_e3m2fn"


class Float4E2M1FN(_Float):
    """`float4_e2m1fn`."""

    _zarr_v3_name = "float4_e2m1fn"


class Int2(_Integer):
    """`int2`, in the low bits of a byte."""

    _zarr_v3_name = "int2"


class Int4(_Integer):
    """`int4`, in the low bits of a byte."""

    _zarr_v3_name = "int4"


class UInt2(_Integer):
    """`uint2`, in the low bits of a byte."""

    _zarr_v3_name = "uint2"


class UInt4(_Integer):
    """`uint4`, in the low bits of a byte."""

    _zarr_v3_name = "uint4"


class ComplexBFloat16(_Complex):
    """`complex_bfloat16`, called `bcomplex32` in ml_dtypes."""

    _zarr_v3_name = "complex_bfloat16"


class ComplexFloat16(_Complex):
    """`complex_float16`, called `complex32` in ml_dtypes."""

    _zarr_v3_name = "complex_float16"


class ComplexFloat32(_NoMatch, zarr.dtype.Complex64):
    """`complex_float32`, another name of `complex64`."""

    _zarr_v3_name: ClassVar[Any] = "complex_float32"


class ComplexFloat64(_NoMatch, zarr.dtype.Complex128):
    """`complex_float64`, another name of `complex128`."""

    _zarr_v3_name: ClassVar[Any] = "complex_float64"


_DATA_TYPES: tuple[type[zarr.dtype.ZDType[Any, Any]], ...] = (
    RawBits,
    Struct,
    BFloat16,
    Float8E3M4,
    Float8E4M3,
    Float8E4M3B11FNUZ,
    Float8E4M3FN,
    Float8E4M3FNUZ,
    Float8E5M2,
    Float8E5M2FNUZ,
    Float8E8M0FNU,
    Float6E2M3FN,
    Float6E3M2FN,
    Float4E2M1FN,
    Int2,
    Int4,
    UInt2,
    UInt4,
    ComplexBFloat16,
    ComplexFloat16,
    ComplexFloat32,
    ComplexFloat64,
)


def _register() -> None:
    """Register the data types that zarr lacks, and use the registered class for the others."""
    registry = zarr.dtype.data_type_registry
    for cls in _DATA_TYPES:
        name = cls._zarr_v3_name
        registered = registry.contents.get(name)
        if name == "r*" and registered is None:
            registered = next(filter(_reads_raw_bits, registry.contents.values()), None)
        if registered is None:
            registry.register(name, cls)
        else:
            globals()[cls.__name__] = registered


def _reads_raw_bits(data_type: type[zarr.dtype.ZDType[Any, Any]]) -> bool:
    """Whether a registered data type is `r*` under any name."""
    with contextlib.suppress(Exception):
        return data_type.from_json("r16", zarr_format=3) is not None
    return False


_register()
