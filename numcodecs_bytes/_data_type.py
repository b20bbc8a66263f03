"""Which data types there are, and the byte order that each is stored in.

Nothing here touches array data. A *stored* dtype is what the bytes of a chunk are: structured
types without padding and titles, every multi-byte number in the byte order of ``endian``, and types
that NumPy does not swap as the integers of their size.
"""

import functools
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import numpy as np

Endian = Literal["little", "big"]
AnyDType = np.dtype[Any]

NATIVE_ENDIAN: Endian = sys.byteorder

# The data types of the package ml_dtypes, by their names in the registry of Zarr extensions: the
# names there, and the largest byte of a value (the bits above are ignored when read).
_ML_DTYPES = {
    "bfloat16": ("bfloat16", 0xFF),
    "complex_bfloat16": ("bcomplex32", 0xFF),
    "complex_float16": ("complex32", 0xFF),
    "float4_e2m1fn": ("float4_e2m1fn", 0x0F),
    "float6_e2m3fn": ("float6_e2m3fn", 0x3F),
    "float6_e3m2fn": ("float6_e3m2fn", 0x3F),
    "float8_e3m4": ("float8_e3m4", 0xFF),
    "float8_e4m3": ("float8_e4m3", 0xFF),
    "float8_e4m3b11fnuz": ("float8_e4m3b11fnuz", 0xFF),
    "float8_e4m3fn": ("float8_e4m3fn", 0xFF),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 0xFF),
    "float8_e5m2": ("float8_e5m2", 0xFF),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 0xFF),
    "float8_e8m0fnu": ("float8_e8m0fnu", 0xFF),
    "int2": ("int2", 0x03),
    "int4": ("int4", 0x0F),
    "uint2": ("uint2", 0x03),
    "uint4": ("uint4", 0x0F),
}
_NAMES_IN_ML_DTYPES = {name: registered for registered, (name, _) in _ML_DTYPES.items()}


def parse_endian(endian: object) -> Endian | None:
    """Return ``endian`` where it is 'little', 'big' or None (not given)."""
    if endian is None:
        return None
    if isinstance(endian, str) and endian in ("little", "big"):
        return cast("Endian", endian)
    error = ValueError if isinstance(endian, str) else TypeError
    raise error(
        f"endian must be one of ['little', 'big'], got {endian!r}; "
        "leave it out for data types that have no byte order"
    )


def parse_configuration(configuration: object, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the configuration, with an `endian` of None where it has none."""
    if not isinstance(configuration, Mapping):
        raise TypeError(f"the configuration must be a JSON object, got {configuration!r}")
    unknown = sorted(map(repr, set(configuration) - set(known)))
    if unknown:
        raise ValueError(
            f"the bytes codec has no configuration key {', '.join(unknown)}; "
            f"expected only {', '.join(map(repr, known))}"
        )
    return {"endian": None, **configuration}


def pack_dtype(dtype: AnyDType) -> AnyDType:
    """Return the dtype without padding and titles; fields keep their order and byte order."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((pack_dtype(base), shape))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, pack_dtype(field)) for name, field in fields_of(dtype)])


def fields_of(dtype: AnyDType) -> Iterator[tuple[str, AnyDType]]:
    """Yield name and dtype of each field; `dtype.fields` would name titles, too."""
    for name in dtype.names or ():
        yield name, dtype[name]


def leaf_dtypes(dtype: AnyDType) -> Iterator[AnyDType]:
    """Yield the dtypes of the numbers, strings and raw bytes that a dtype is made of."""
    if dtype.subdtype is not None:
        yield from leaf_dtypes(dtype.subdtype[0])
    elif dtype.names is not None:
        for _, field in fields_of(dtype):
            yield from leaf_dtypes(field)
    else:
        yield dtype


def ml_dtype_name(dtype: AnyDType) -> str | None:
    """Return the registered name of a data type of ml_dtypes, None for all others."""
    scalar = dtype.type
    return _NAMES_IN_ML_DTYPES.get(scalar.__name__) if scalar.__module__ == "ml_dtypes" else None


def dtype_of_name(name: str) -> AnyDType | None:
    """Return the dtype of a registered name that NumPy does not know; None for other names.

    Source: https://github.com/zarr-developers/zarr-extensions/tree/main/data-types, and for `r*`
    https://zarr-specs.readthedocs.io/en/latest/v3/data-types/index.html.
    """
    if name in _ML_DTYPES:
        try:
            import ml_dtypes  # noqa: PLC0415 # optional, and met by few
        except ImportError as error:
            raise ImportError(
                f"data type {name!r} needs the package ml_dtypes, which is not installed: "
                "pip install 'numcodecs-bytes[ml_dtypes]'"
            ) from error
        in_ml_dtypes = _ML_DTYPES[name][0]
        if not hasattr(ml_dtypes, in_ml_dtypes):
            raise ImportError(
                f"data type {name!r} needs a newer ml_dtypes, got {ml_dtypes.__version__}: "
                "pip install -U ml_dtypes"
            )
        dtype: AnyDType = np.dtype(getattr(ml_dtypes, in_ml_dtypes))
        return dtype
    if re.fullmatch("r[0-9]+", name):
        num_bytes, rest = divmod(int(name[1:12]), 8)
        # NumPy has no larger elements than of 2 GiB.
        if rest or not num_bytes or len(name) > 11 or num_bytes >= 2**31:
            raise ValueError(
                f"raw data types have a multiple of 8 bits, at least 8, got {name[:20]!r}, "
                "expected 'r8', 'r16', 'r24', ... and below 2**34 bits"
            )
        return np.dtype(f"V{num_bytes}")
    if name in ("complex_float32", "complex_float64"):
        return np.dtype("c8" if name == "complex_float32" else "c16")
    return None


def max_byte(dtype: AnyDType) -> int:
    """Return the largest byte that is a value of a bool or small number; 0xFF for other types."""
    if dtype.kind == "b":
        return 1
    name = ml_dtype_name(dtype)
    return 0xFF if name is None else _ML_DTYPES[name][1]


@functools.lru_cache(maxsize=256)
def has_unused_bits(dtype: AnyDType) -> bool:
    """Whether some bytes of the dtype's elements are no values, so that they are to be checked."""
    return any(max_byte(leaf) < 0xFF for leaf in leaf_dtypes(dtype))


@functools.lru_cache(maxsize=256)
def copied_as(dtype: AnyDType) -> AnyDType:
    """Return a dtype of the same layout and byte order, as which NumPy swaps bytes right.

    NumPy does not swap datetimes without a unit when it casts them to the other byte order, and
    knows the numbers of ml_dtypes as opaque: both are copied as integers.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((copied_as(base), shape))
    if dtype.names is not None:
        fields = [copied_as(field) for _, field in fields_of(dtype)]
        if all(new is field for new, (_, field) in zip(fields, fields_of(dtype), strict=True)):
            return dtype
        offsets = [cast("Any", dtype.fields)[name][1] for name in dtype.names]
        return np.dtype(
            {
                "names": dtype.names,
                "formats": fields,
                "offsets": offsets,
                "itemsize": dtype.itemsize,
            }
        )
    if dtype.kind in "mM":
        return np.dtype("i8").newbyteorder(dtype.byteorder)
    name = ml_dtype_name(dtype)
    if name is None:
        return dtype
    integers = np.dtype("u2,u2" if name.startswith("complex") else f"u{dtype.itemsize}")
    return integers.newbyteorder(dtype.byteorder)


@functools.lru_cache(maxsize=256)
def swap_unit(dtype: AnyDType) -> AnyDType | None:
    """Return the integers that an element is a row of; None where it is not.

    NumPy swaps these at the speed of memory, but complex64 at half, unicode and structures at an
    eighth of it.
    """
    units = set()
    for leaf in leaf_dtypes(dtype):
        if leaf.kind in "SV":
            return None
        size = {"c": leaf.itemsize // 2, "U": 4}.get(leaf.kind, leaf.itemsize)
        units.add(np.dtype(f"{leaf.byteorder}u{size}"))
    if len(units) > 1 or pack_dtype(dtype).itemsize != dtype.itemsize:
        return None
    return units.pop()


@functools.lru_cache(maxsize=256)
def has_byte_order(dtype: AnyDType) -> bool:
    """Whether the stored bytes depend on `endian`.

    Structured dtypes report the byte order '|' whatever their fields are, so whole dtypes are
    compared.
    """
    numbers = copied_as(dtype)
    return numbers.newbyteorder("<") != numbers.newbyteorder(">")


def has_same_elements(dtype: AnyDType, other: AnyDType) -> bool:
    """Whether two dtypes hold the same fields and types, byte order and padding aside."""
    return dtype == other or (
        pack_dtype(dtype).newbyteorder("<") == pack_dtype(other).newbyteorder("<")
    )


def are_swapped_alike(dtype: AnyDType, other: AnyDType) -> bool:
    """Whether the elements of two types, no structures, are of one size and swapped by one unit."""

    def unit_bytes(dtype: AnyDType) -> int:
        unit = swap_unit(copied_as(dtype)) if has_byte_order(dtype) else None
        return 1 if unit is None else unit.itemsize

    is_plain = dtype.names is None and other.names is None
    return is_plain and dtype.itemsize == other.itemsize and unit_bytes(dtype) == unit_bytes(other)


@functools.lru_cache(maxsize=256)
def stored_dtype(dtype: AnyDType, endian: Endian | None) -> AnyDType:
    """Return the dtype of the stored bytes, or raise where there is none."""
    check_storable(dtype)
    packed = copied_as(pack_dtype(dtype))
    if endian is not None:
        return packed.newbyteorder(endian)
    if has_byte_order(dtype):
        raise missing_endian(dtype)
    return packed


def missing_endian(dtype: AnyDType) -> ValueError:
    """Return the error for a multi-byte data type without `endian`."""
    return ValueError(
        "The `endian` configuration needs to be specified for multi-byte data types: "
        f"got none for {dtype}, expected 'little' or 'big' in the configuration of the bytes codec"
    )


@functools.lru_cache(maxsize=256)
def check_storable(dtype: AnyDType) -> None:
    """Raise TypeError unless the elements are of one fixed size and hold their own bytes."""
    for leaf in leaf_dtypes(dtype):
        # `isbuiltin` is 2 for types that another package defines: nothing says what their bytes
        # mean. Of a longdouble, some bytes are no value.
        if ml_dtype_name(leaf) is None and (
            leaf.hasobject
            or leaf.kind not in "biufcmMSUV"
            or leaf.isbuiltin == 2
            or leaf.itemsize > {"f": 8, "c": 16}.get(leaf.kind, leaf.itemsize)
        ):
            raise TypeError(
                f"the bytes codec cannot store data type {dtype}: expected a fixed-size type of "
                "NumPy (bool, integer, float of up to 64 bits, complex, datetime, "
                "fixed-length string, raw bytes or a structure of them) or a registered one of "
                "ml_dtypes, got one of Python objects, of variable size, of this platform alone "
                "or of another package; variable-length strings have codecs of their own, "
                "vlen-utf8 and vlen-bytes"
            )


def parse_dtype(data: object) -> AnyDType:
    """Return the dtype of a name in the registry, in Zarr v2 metadata, or in NumPy."""
    try:
        dtype: AnyDType = np.dtype(_from_descr(data))  # type: ignore[call-overload]
    except ImportError:
        raise
    except Exception as error:  # NumPy raises whatever comes up
        raise TypeError(
            f"dtype must be a data type as Zarr v2 writes it, such as '<f8' or "
            f"[['name', '<i4'], ['name', '<f4', [2]]], or a registered name such as 'bfloat16' or "
            f"'r16', got {reprlib.repr(data)} ({error})"
        ) from error
    check_storable(dtype)
    if any(ml_dtype_name(leaf) and not leaf.isnative for leaf in leaf_dtypes(dtype)):
        raise TypeError(
            "the types of ml_dtypes have no byte order in a configuration, got one in that of the "
            "other machine, expected it in native order"
        )
    if dtype.subdtype is not None or pack_dtype(dtype).itemsize == 0:
        raise ValueError(
            f"dtype must be the type of an array's elements and at least one byte long, got "
            f"{data!r}; give strings and raw bytes their length (as in '|S8') and an array its "
            "base type"
        )
    return dtype


def _from_descr(data: object) -> object:
    """Return names and nested lists (JSON has no tuples) as what NumPy takes for a dtype."""
    types: object = data if isinstance(data, str) else ""
    if isinstance(data, Mapping):
        types = [value for key, value in data.items() if key not in ("names", "titles")]
    if re.search(r"[0-9]\[[^]]*/", str(types)):
        # NumPy divides by what follows the slash, and 0 ends the process.
        raise ValueError("expected a unit of time that is no fraction")
    if isinstance(data, str):
        return data if (dtype := dtype_of_name(data)) is None else dtype
    if not isinstance(data, list):
        return data
    return [_field_from_descr(field) for field in data]


def _field_from_descr(field: object) -> tuple[Any, ...]:
    if not isinstance(field, (list, tuple)) or len(field) not in (2, 3):
        raise TypeError(f"expected [name, type] or [name, type, shape], got {field!r}")
    name, data, *shape = field
    name = name[-1] if isinstance(name, (list, tuple)) and name else name  # without its title
    if not isinstance(name, str) or not name or data is None:
        raise TypeError(f"expected a name and a type, got {field!r}")
    return (
        name,
        _from_descr(data),
        *(tuple(s) if isinstance(s, list) else s for s in shape),
    )


def dtype_to_json(dtype: AnyDType) -> str | list[Any]:
    """Return the dtype as Zarr v2 writes it: a string, or nested lists for structured types."""
    if dtype.names is None:
        return ml_dtype_name(dtype) or dtype.str
    fields = []
    for name, field in fields_of(dtype):
        if field.subdtype is None:
            fields.append([name, dtype_to_json(field)])
        else:
            base, shape = field.subdtype
            fields.append([name, dtype_to_json(base), list(shape)])
    return fields
