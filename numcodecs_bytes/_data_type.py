"""Which data types there are, and the byte order that each is stored in.

Nothing here touches array data. A *stored* dtype is what the bytes of a chunk are: structured
types without padding and titles, every multi-byte number in the byte order of ``endian``.
"""

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import numpy as np

Endian = Literal["little", "big"]
AnyDType = np.dtype[Any]

NATIVE_ENDIAN: Endian = sys.byteorder


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


@functools.lru_cache(maxsize=256)
def has_bool(dtype: AnyDType) -> bool:
    """Whether any element of the dtype is a bool, whose bytes are to be checked."""
    return any(leaf.kind == "b" for leaf in leaf_dtypes(dtype))


@functools.lru_cache(maxsize=256)
def has_byte_order(dtype: AnyDType) -> bool:
    """Whether the stored bytes depend on `endian`.

    Structured dtypes report the byte order '|' whatever their fields are, so whole dtypes are
    compared.
    """
    return dtype.newbyteorder("<") != dtype.newbyteorder(">")


def has_same_elements(dtype: AnyDType, other: AnyDType) -> bool:
    """Whether two dtypes hold the same fields and types, byte order and padding aside."""
    return dtype == other or (
        pack_dtype(dtype).newbyteorder("<") == pack_dtype(other).newbyteorder("<")
    )


@functools.lru_cache(maxsize=256)
def stored_dtype(dtype: AnyDType, endian: Endian | None) -> AnyDType:
    """Return the dtype of the stored bytes, or raise where there is none."""
    check_storable(dtype)
    packed = pack_dtype(dtype)
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


def check_storable(dtype: AnyDType) -> None:
    """Raise TypeError unless the elements are of one fixed size and hold their own bytes."""
    for leaf in leaf_dtypes(dtype):
        # `isbuiltin` is 2 for types that another package defines: their byte order is not NumPy's
        # to change (bfloat16 ignores `newbyteorder`). Of a longdouble, some bytes are no value.
        if (
            leaf.hasobject
            or leaf.kind not in "biufcmMSUV"
            or leaf.isbuiltin == 2  # noqa: PLR2004
            or leaf.itemsize > {"f": 8, "c": 16}.get(leaf.kind, leaf.itemsize)
        ):
            raise TypeError(
                f"the bytes codec cannot store data type {dtype}: expected a fixed-size type of "
                "NumPy's own (bool, integer, float of up to 64 bits, complex, datetime, "
                "fixed-length string, raw bytes or a structure of them), got one of Python "
                "objects, of variable size, of this platform alone or of another package; "
                "variable-length strings have codecs of their own, vlen-utf8 and vlen-bytes"
            )


def parse_dtype(data: object) -> AnyDType:
    """Return the dtype that Zarr v2 metadata, or anything that NumPy takes for a dtype, names."""
    try:
        dtype: AnyDType = np.dtype(_from_descr(data))  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError) as error:
        raise TypeError(
            f"dtype must be a data type as Zarr v2 writes it, such as '<f8' or "
            f"[['name', '<i4'], ['name', '<f4', [2]]], got {data!r} ({error})"
        ) from error
    check_storable(dtype)
    if dtype.subdtype is not None or dtype.itemsize == 0:
        raise ValueError(
            f"dtype must be the type of an array's elements and at least one byte long, got "
            f"{data!r}; give strings and raw bytes their length (as in '|S8') and an array its "
            "base type"
        )
    return dtype


def _from_descr(data: object) -> object:
    """Return nested lists (JSON has no tuples) as the lists of tuples that NumPy takes."""
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
        return dtype.str
    fields = []
    for name, field in fields_of(dtype):
        if field.subdtype is None:
            fields.append([name, dtype_to_json(field)])
        else:
            base, shape = field.subdtype
            fields.append([name, dtype_to_json(base), list(shape)])
    return fields
