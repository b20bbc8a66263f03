"""The configuration of the codec: `endian`, `dtype`, data type names in metadata."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from numcodecs_bytes._core.dtypes import (
    AnyDType,
    Endian,
    check_storable,
    fields_of,
    leaf_dtypes,
    ml_dtype_from_name,
    name_of_ml_dtype,
    pack_dtype,
)
from numcodecs_bytes._core.interrupts import interrupt_of

JSONObject = dict[str, Any]  # metadata, a configuration or settings


def parse_endian(endian: object) -> Endian | None:
    """Return `endian` if it is 'little', 'big' or None (not specified), else raise."""
    if endian is None or (isinstance(endian, str) and endian in ("little", "big")):
        return cast("Endian | None", endian)
    error = ValueError if isinstance(endian, str) else TypeError
    raise error(
        f"endian must be one of ['little', 'big'], got {endian!r}; "
        "omit it for data types that have no byte order"
    )


def parse_configuration(configuration: object, keys: tuple[str, ...]) -> JSONObject:
    """Return the configuration as a dict, with `endian` set to None if it is missing."""
    if not isinstance(configuration, Mapping):
        raise TypeError(f"the configuration must be a JSON object, got {configuration!r}")
    unknown = sorted(map(repr, set(configuration) - set(keys)))
    if unknown:
        raise ValueError(
            f"the bytes codec has no configuration key {', '.join(unknown)}; "
            f"expected only {', '.join(map(repr, keys))}: remove it, or correct its name"
        )
    return {"endian": None, **configuration}


def parse_dtype(data: object) -> AnyDType:
    """Return the dtype for a registered name, Zarr v2 metadata, or anything that NumPy accepts."""
    try:
        dtype: AnyDType = np.dtype(_from_descr(data))  # type: ignore[call-overload]
    except ImportError:
        raise
    except Exception as error:  # noqa: BLE001 # NumPy raises errors of many types
        raise TypeError(
            f"dtype must be a data type as Zarr v2 writes it, such as '<f8' or "
            f"[['name', '<i4'], ['name', '<f4', [2]]], or a registered name such as 'bfloat16' or "
            f"'r16', got {reprlib.repr(data)} ({error})"
        ) from interrupt_of(error)
    check_storable(dtype)
    if any(name_of_ml_dtype(leaf) and not leaf.isnative for leaf in leaf_dtypes(dtype)):
        raise TypeError(
            "the types of ml_dtypes have no byte order in a configuration: got one in non-native "
            "byte order, expected native"
        )
    if dtype.subdtype is not None or pack_dtype(dtype).itemsize == 0:
        raise ValueError(
            f"dtype must be the type of an array's elements and at least one byte long, got "
            f"{data!r}; give strings and raw bytes a length (as in '|S8'), and replace a subarray "
            "type with its base type"
        )
    return dtype


def dtype_from_name(name: str) -> AnyDType | None:
    """Return the dtype for a registered name that NumPy does not know; None for other names.

    Source: https://github.com/zarr-developers/zarr-extensions/tree/main/data-types, and for `r*`
    https://zarr-specs.readthedocs.io/en/latest/v3/data-types/index.html.
    """
    if re.fullmatch("r[0-9]+", name):
        num_bytes, rest = divmod(int(name[1:12]), 8)
        # NumPy's elements are smaller than 2 GiB.
        if rest or len(name) > 11 or not 0 < num_bytes < 2**31:
            raise ValueError(
                f"raw data types have a multiple of 8 bits, at least 8, got {name[:20]!r}; "
                "expected 'r8', 'r16', 'r24', ..., below 2**34 bits"
            )
        return np.dtype(f"V{num_bytes}")
    if name in ("complex_float32", "complex_float64"):
        return np.dtype("c8" if name == "complex_float32" else "c16")
    return ml_dtype_from_name(name)


def _from_descr(data: object) -> object:
    """Convert names and nested lists (JSON has no tuples) to what NumPy accepts as a dtype."""
    types: object = data if isinstance(data, str) else ""
    if isinstance(data, Mapping):
        types = [value for key, value in data.items() if key not in ("names", "titles")]
    if re.search(r"[0-9]\[[^]]*/", str(types)):
        # NumPy divides by the number after the slash, and crashes the process if that is 0.
        raise ValueError("fractional time units are not supported")
    if isinstance(data, str):
        return dtype_from_name(data) or data
    return [_field_from_descr(field) for field in data] if isinstance(data, list) else data


def _field_from_descr(field: object) -> tuple[object, ...]:
    """Convert a field; if it has a title and a name, only the name is kept."""
    match field:
        case [[*_, str(name)] | str(name), data, *shape] if (
            name and len(shape) < 2 and data is not None
        ):
            shape = [tuple(n) if isinstance(n, list) else n for n in shape]
            return (name, _from_descr(data), *shape)
    raise TypeError(f"expected [name, type] or [name, type, shape], got {field!r}")


def dtype_to_json(dtype: AnyDType) -> str | list[object]:
    """Return a dtype in Zarr v2 notation: a string, or nested lists for structured types."""
    if dtype.names is None:
        return name_of_ml_dtype(dtype) or dtype.str
    fields: list[object] = []
    for name, field in fields_of(dtype):
        if field.subdtype is None:
            fields.append([name, dtype_to_json(field)])
        else:
            base, shape = field.subdtype
            fields.append([name, dtype_to_json(base), list(shape)])
    return fields
