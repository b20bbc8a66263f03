"""Data types of the Zarr v3 specification and its registry that zarr-python lacks.

Importing this module registers them with zarr. zarr 3.4.1 and newer import it when they
first need a data type; with older versions, ``import numcodecs_bytes.zarr_data_types``.

Source: https://github.com/zarr-developers/zarr-extensions/tree/main/data-types, and for ``r*`` and
fill values https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html#data-types.

If zarr, or a package imported earlier, has registered a data type of the same name, the class here
is the registered one. Those of ml_dtypes are registered only if it is installed, and new enough:
otherwise, opening an array of one of them raises zarr's own error.

Deviations from the specification, all of them to read what others wrote: fill values of ``r*`` may
also be base64, as TensorStore writes them; fields missing from the fill value of a ``struct`` are
zero, as in zarr.
"""

import base64
import math
import numbers
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self, SupportsFloat, TypeGuard, cast

import numpy as np
import zarr.dtype
from zarr.core.common import JSON, ZarrFormat
from zarr.core.dtype.common import HasEndianness, HasItemSize

from numcodecs_bytes._core.configuration import dtype_from_name, parse_dtype
from numcodecs_bytes._core.copy import decode_array
from numcodecs_bytes._core.dtypes import (
    ML_DTYPES,
    NATIVE_ENDIAN,
    AnyDType,
    Endian,
    MLDType,
    check_storable,
    fields_of,
    installed_ml_dtypes,
    name_of_ml_dtype,
    pack_dtype,
    stored_dtype,
    why_missing,
)
from numcodecs_bytes._core.invalid_bytes import with_valid_bytes
from numcodecs_bytes._zarr_api.names import add_name_of_array
from numcodecs_bytes._zarr_api.versions import DataTypeValidationError, check_class

AnyDataType = zarr.dtype.ZDType[Any, Any]
Scalar = Any  # an element; NumPy's types do not cover those of ml_dtypes


def __getattr__(name: str) -> type[AnyDataType]:
    """Raise AttributeError; for a class that `_register` did not make, it says what to install."""
    why = why_missing([row.name for row in ML_DTYPES if row.class_name == name])
    raise AttributeError(why or f"module {__name__!r} has no attribute {name!r}")


def parse_numpy_descr(descr: list[object]) -> AnyDataType:
    """Return the `struct` data type for a list of fields in the notation of NumPy's `dtype.descr`.

    Early drafts of the struct data type used such lists as `data_type`. zarr rejects them before it
    calls any plugin: rewrite the metadata with ``parse_numpy_descr(descr).to_json(zarr_format=3)``.

    The list has pairs ``[name, type]``, nested for nested structures. Its byte orders are dropped,
    because in Zarr v3 the byte order is a setting of the bytes codec. Raises TypeError if `descr`
    is not such a list, and ValueError if a field is an array, which `struct` does not support.
    """
    if not isinstance(descr, list):
        raise TypeError(f"expected a list such as [['age', '<i4'], ...], got {descr!r}")
    return struct_of(parse_dtype(descr).newbyteorder("="))


def struct_of(dtype: AnyDType) -> AnyDataType:
    """Return the `struct` data type for a structured dtype; padding is dropped."""
    fields: list[tuple[str, AnyDataType]] = []
    for name, field in fields_of(pack_dtype(dtype)):
        if field.subdtype is not None:
            raise ValueError(
                f"field {name!r} is an array of shape {field.shape}, which the data type struct "
                "does not support; use a separate field for each element"
            )
        if field.names is not None:
            data_type = struct_of(field)
        elif field.type is np.void:
            data_type = RawBits(length=field.itemsize)
        else:
            data_type = zarr.dtype.parse_dtype(field, zarr_format=3)
        fields.append((name, data_type))
    return Struct(fields=tuple(fields))


def _name_in(data: object) -> Any:
    """Return the data type name in Zarr v3 metadata: a string, or an object with only a name."""
    if isinstance(data, Mapping) and not data.get("configuration"):
        return data.get("name")
    return data


class _NoMatch:
    """Mixin for data types that zarr must never choose for a NumPy dtype, which has another one."""

    @classmethod
    def from_native_dtype(cls, dtype: AnyDType) -> Self:
        raise DataTypeValidationError(f"{dtype} is {cls.__name__} only if the metadata says so")


def _item(data: object) -> object:
    """Return the element of a 0-d array, which zarr returns for a single element."""
    return data[()] if isinstance(data, np.ndarray) and data.ndim == 0 else data


def _not_a_value(name: object, data: object, expected: str) -> TypeError:
    """Return the error for an invalid value: TypeError, as zarr hides the text of a ValueError."""
    error = TypeError(f"not a value of {name}: got {data!r}, expected {expected}")
    add_name_of_array(error)
    return error


def _from_base64(data: object, num_bytes: int) -> bytes | None:
    """Return the bytes of a fill value in base64, or None unless it holds `num_bytes` bytes."""
    try:
        raw = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except ValueError:
        return None
    return raw if len(raw) == num_bytes else None


class _Raw(np.void):  # type: ignore[misc] # final in the stubs only
    """A hashable scalar, because zarr hashes the fill values of sharded arrays."""

    def __hash__(self) -> int:
        return hash(self.tobytes())


class RawBits(_NoMatch, zarr.dtype.RawBytes):
    """Raw bytes, `r8`, `r16`, ...: elements of `length` bytes that are never byte-swapped."""

    _zarr_v3_name: ClassVar[Any] = "r*"

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        name = _name_in(data)
        if isinstance(name, str) and name.startswith("r") and (dtype := dtype_from_name(name)):
            return cls(length=dtype.itemsize)
        raise DataTypeValidationError(f"not a raw data type such as 'r16': {data!r}")

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        """Return the data type as it is written in metadata."""
        return super().to_json(2) if zarr_format == 2 else f"r{8 * self.length}"

    def cast_scalar(self, data: object) -> Scalar:
        """Return bytes, raw bytes, or a list of byte values as a scalar."""
        raw = _item(data)
        if isinstance(raw, np.void):
            raw = raw.tobytes()
        if isinstance(raw, (list, tuple)) and all(type(v) is int and v in range(256) for v in raw):
            raw = bytes(raw)
        if not isinstance(raw, (bytes, bytearray)) or len(raw) != self.length:
            expected = f"{self.length} bytes, or a list of that many byte values"
            raise _not_a_value(self.to_json(3), data, expected)
        return np.ndarray((), np.dtype((_Raw, self.to_native_dtype())), bytes(raw))[()]

    def default_scalar(self) -> Scalar:
        """Return zeros."""
        return self.cast_scalar(bytes(self.length))

    def from_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Scalar:
        """Return a fill value in metadata as a scalar."""
        return self.cast_scalar(_from_base64(data, self.length) or data)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        """Return a scalar as a fill value in metadata."""
        raw = self.cast_scalar(data).tobytes()
        return base64.b64encode(raw).decode() if zarr_format == 2 else list(raw)


class _MLDataType(AnyDataType, HasItemSize):
    """A data type of ml_dtypes; subclasses have fill values of another kind."""

    dtype_cls: ClassVar[Any] = np.dtype
    _row: ClassVar[MLDType]

    @classmethod
    def from_native_dtype(cls, dtype: AnyDType) -> Self:
        if name_of_ml_dtype(dtype) != cls._row.name:
            raise DataTypeValidationError(f"{dtype} is not {cls._row.name}")
        return cls()

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        if _name_in(data) != cls._row.name:
            raise DataTypeValidationError(f"{data!r} is not {cls._row.name}")
        return cls()

    _from_json_v2 = _from_json_v3  # a plain name, as TensorStore writes it

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        name = self._row.name
        return {"name": name, "object_codec_id": None} if zarr_format == 2 else name

    def to_native_dtype(self) -> AnyDType:
        return cast("AnyDType", dtype_from_name(self._row.name))

    @property
    def item_size(self) -> int:
        return self.to_native_dtype().itemsize

    def cast_scalar(self, data: object) -> Scalar:
        """Return a number as a scalar, or raise TypeError."""
        data = _item(data)
        if type(data) is self.to_native_dtype().type:
            return data
        data = data.item() if isinstance(data, np.generic) else data
        return self.from_json_scalar(data, zarr_format=3)

    def _check_scalar(self, data: object) -> bool:
        raise NotImplementedError  # only zarr's `cast_scalar` uses it, not ours

    def default_scalar(self) -> Scalar:
        return np.zeros((), self.to_native_dtype())[()]

    def from_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Scalar:
        return _float_from_json(data, self.to_native_dtype())

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> JSON:
        return _float_to_json(self.cast_scalar(data))


class _Complex(_MLDataType):
    def cast_scalar(self, data: object) -> Scalar:
        """Return a number, or a list of its real and imaginary part, as a scalar."""
        data = _item(data)
        if isinstance(data, numbers.Complex) and not isinstance(data, bool):
            data = [data.real, data.imag]
        return super().cast_scalar(data)

    def from_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Scalar:
        if not isinstance(data, (list, tuple)) or len(data) != 2:
            raise _not_a_value(self._row.name, data, "a list of its real and imaginary part")
        dtype = parse_dtype(self._row.component)
        components = np.array([_float_from_json(number, dtype) for number in data], dtype)
        return components.view(type(self)().to_native_dtype())[0]

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> JSON:
        components = np.array([self.cast_scalar(data)]).view(parse_dtype(self._row.component))
        return list(map(_float_to_json, components))


class _Integer(_MLDataType):
    def from_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Scalar:
        import ml_dtypes  # optional

        limits = cast("Any", ml_dtypes).iinfo(self.to_native_dtype())
        if _is_number(data) and limits.min <= data <= limits.max and int(data) == data:
            return self.to_native_dtype().type(int(data))
        expected = f"an integer from {limits.min} to {limits.max}"
        raise _not_a_value(self._row.name, data, expected)

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> int:
        return int(self.cast_scalar(data))


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _is_number(data: object) -> TypeGuard[int | float]:
    return isinstance(data, (int, float)) and not isinstance(data, bool)


def _float_from_json(data: object, dtype: AnyDType) -> Scalar:
    """Return a number, "NaN", "Infinity", "-Infinity" or hexadecimal bits as a scalar."""
    num_digits = 2 * dtype.itemsize
    if isinstance(data, str) and re.fullmatch(f"0x[0-9a-fA-F]{{{num_digits}}}", data):
        bits = np.array([int(data, 16)], f"u{dtype.itemsize}")
        return with_valid_bytes(bits.view(dtype))[0]
    import ml_dtypes  # optional

    limits = cast("Any", ml_dtypes).finfo(dtype)
    smallest, largest = float(limits.min), float(limits.max)
    number = _NOT_FINITE.get(data, data) if isinstance(data, str) else data
    if _is_number(number) and not largest < abs(number) < math.inf:
        scalar = _as_float(number, dtype)
        if scalar is not None:
            return scalar
    names = [repr(name) for name, n in _NOT_FINITE.items() if _as_float(n, dtype) is not None]
    of_bits = f"or its bits as '0x' followed by {num_digits} hexadecimal digits"
    expected = ", ".join([f"a number from {smallest} to {largest}", *names, of_bits])
    raise _not_a_value(name_of_ml_dtype(dtype) or dtype.name, data, expected)


def _as_float(number: float, dtype: AnyDType) -> Scalar | None:
    """Return a number as a scalar; None if the data type lacks NaN, infinity, zero or a sign."""
    with np.errstate(over="ignore", invalid="ignore"):
        scalar = np.array([number], float).astype(dtype)[0]
    # Types that lack one of these silently convert it to another value.
    is_same = all(is_kind(number) == is_kind(scalar) for is_kind in (math.isfinite, math.isnan))
    return scalar if is_same else None


def _float_to_json(scalar: SupportsFloat) -> float | str:
    """Return a scalar as JSON: a number, or a string unless it is finite."""
    number = float(scalar)
    if not math.isnan(number):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, number)
    array = np.array([scalar])
    if array.tobytes() == np.array([math.nan]).astype(array.dtype).tobytes():
        return "NaN"
    bits = array.view(f"u{array.itemsize}")[0]
    return f"0x{bits:0{2 * array.itemsize}x}"


@dataclass(frozen=True, kw_only=True)
class _HasByteOrder(HasEndianness):
    """Mixin for data types whose byte order zarr's own codec sets to get the stored dtype."""

    endianness: Endian = NATIVE_ENDIAN

    def to_native_dtype(self) -> Any:
        """Return the NumPy dtype."""
        dtype = super().to_native_dtype()  # type: ignore[misc] # the other base class has it
        if self.endianness == NATIVE_ENDIAN:
            return dtype
        if isinstance(self, _Complex):
            raise TypeError(
                f"ml_dtypes byte-swaps {self._row.name} incorrectly, and zarr's own bytes codec "
                "relies on that; do not set codecs.bytes in zarr's config, so that ours is used"
            )
        return dtype.newbyteorder(self.endianness)


@dataclass(frozen=True, kw_only=True)
class Struct(_NoMatch, _HasByteOrder, zarr.dtype.Structured):
    """Structures, `struct`: consecutive fields without padding, for zarr 3.1.6."""

    _zarr_v3_name: ClassVar[Any] = "struct"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(dict(self.fields)) < len(self.fields):
            raise ValueError(f"fields of a struct must have distinct names, got {self.fields}")
        for name, field in self.fields:
            with _of_field(name):
                check_storable(field.to_native_dtype())

    @classmethod
    def _from_json_v3(cls, data: object) -> Self:
        match data:
            case {"name": "struct", "configuration": {"fields": [*fields], **others}} if not others:
                return cls(fields=tuple(map(_parse_field, fields)))
        raise DataTypeValidationError(f"not a struct: {data!r}")

    def to_json(self, zarr_format: ZarrFormat) -> Any:
        """Return the data type as it is written in metadata."""
        if zarr_format == 2:
            return super().to_json(2)
        fields = [{"name": n, "data_type": d.to_json(zarr_format=3)} for n, d in self.fields]
        return {"name": "struct", "configuration": {"fields": fields}}

    def cast_scalar(self, data: object) -> Scalar:
        """Return a tuple or a structured scalar as a structured scalar."""
        raw = np.dtype((_Raw, self.to_native_dtype()))
        return np.array([super().cast_scalar(data)], raw)[0]

    def default_scalar(self) -> Scalar:
        """Return zeros."""
        return self.cast_scalar(np.zeros((), self.to_native_dtype())[()])

    def from_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Scalar:
        """Return a fill value in metadata, a JSON object of the fields or base64, as a scalar."""
        dtype = self.to_native_dtype()
        stored = stored_dtype(dtype, "little")
        if raw := _from_base64(data, stored.itemsize):
            return self.cast_scalar(decode_array(np.frombuffer(raw, np.uint8), stored, dtype)[0])
        if not isinstance(data, Mapping):
            raise _not_a_value("struct", data, "a JSON object of its fields")
        values = {name: field.default_scalar() for name, field in self.fields}
        for name, field in self.fields:
            with _of_field(name):
                if name in data:
                    values[name] = field.from_json_scalar(data[name], zarr_format=zarr_format)
        return self.cast_scalar(tuple(values.values()))

    def to_json_scalar(self, data: object, *, zarr_format: ZarrFormat) -> Any:
        """Return a scalar as a fill value in metadata."""
        scalar = self.cast_scalar(data)
        if zarr_format == 2:
            return super().to_json_scalar(scalar, zarr_format=zarr_format)
        return {n: d.to_json_scalar(scalar[n], zarr_format=3) for n, d in self.fields}


def _parse_field(field: Any) -> tuple[str, AnyDataType]:
    """Return the name and data type of a field; like zarr, accept the pairs of `structured`."""
    match field:
        case {"name": str(name), "data_type": data} | [str(name), data] if name:
            with _of_field(name):
                return name, zarr.dtype.data_type_registry.match_json(_name_in(data), zarr_format=3)
    raise DataTypeValidationError(f"not a field of a struct: {field!r}")


@contextmanager
def _of_field(name: str) -> Iterator[None]:
    """Name the field of a struct in an error: zarr's data types raise anything for bad metadata."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TypeError(f"field {name!r} of a struct is not valid: {error}") from error


class ComplexFloat32(_NoMatch, zarr.dtype.Complex64):
    """`complex_float32`, another name of `complex64`."""

    _zarr_v3_name: ClassVar[Any] = "complex_float32"


class ComplexFloat64(_NoMatch, zarr.dtype.Complex128):
    """`complex_float64`, another name of `complex128`."""

    _zarr_v3_name: ClassVar[Any] = "complex_float64"


def _register() -> None:
    """Register the data types that zarr lacks, and use the registered class for the others."""
    contents = zarr.dtype.data_type_registry.contents
    classes: list[Any] = [RawBits, Struct, ComplexFloat32, ComplexFloat64]
    for row in installed_ml_dtypes():
        kind = {"float": _MLDataType, "complex": _Complex, "integer": _Integer}[row.kind]
        bases = (kind,) if row.num_bits <= 8 else (_HasByteOrder, kind)
        members = {"__module__": __name__, "__doc__": f"`{row.name}`.", "_zarr_v3_name": row.name}
        classes.append(type(row.class_name, bases, {**members, "_row": row}))
    for cls in (RawBits, Struct, ComplexFloat32, _Complex, _Integer):
        check_class(cls)
    for cls in classes:
        # Instances can be pickled only if their class is an attribute of this module.
        globals()[cls.__name__] = contents.setdefault(cls._zarr_v3_name, cls)


_register()
