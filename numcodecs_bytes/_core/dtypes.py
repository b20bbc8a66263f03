"""NumPy data types: which ones the codec stores, and how.

Nothing here touches array data. The *stored dtype* describes the bytes of a chunk: structures have
no padding and no titles, every multi-byte number is in the byte order of `endian`, and types that
NumPy does not byte-swap correctly are replaced by integers of the same size.

To add a data type of ml_dtypes, add a row to `ML_DTYPES`; the rest is in ``docs/contributing.md``.
"""

import contextlib
import functools
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

import numpy as np

Endian = Literal["little", "big"]
ByteOrder = Literal["=", "<", ">", "|"]  # as NumPy's `dtype.byteorder`
AnyDType = np.dtype[Any]
Array = np.ndarray[Any, AnyDType]
UInt8Array = np.ndarray[Any, np.dtype[np.uint8]]
UInt64Array = np.ndarray[Any, np.dtype[np.uint64]]
GPUArray = Any  # CuPy has no types, and need not be installed

NATIVE_ENDIAN: Endian = sys.byteorder


class MLDType(NamedTuple):
    """A data type of the package ml_dtypes."""

    name: str  # as in the Zarr extensions registry
    class_name: str  # its class in `zarr_data_types`
    kind: Literal["float", "complex", "integer"]  # the kind of its fill values in metadata
    num_bits: int  # bits of an element that are used: the low ones of a byte, if fewer than 8
    name_in_ml_dtypes: str = ""  # empty if it equals `name`
    component: str = ""  # registered or NumPy name of the type of real and imaginary component
    since: tuple[int, int] = (0, 4)  # the version of ml_dtypes; older ones do not run on NumPy 2


ML_DTYPES = (
    MLDType("bfloat16", "BFloat16", "float", 16),
    MLDType("float8_e3m4", "Float8E3M4", "float", 8, since=(0, 5)),
    MLDType("float8_e4m3", "Float8E4M3", "float", 8, since=(0, 5)),
    MLDType("float8_e4m3b11fnuz", "Float8E4M3B11FNUZ", "float", 8),
    MLDType("float8_e4m3fn", "Float8E4M3FN", "float", 8),
    MLDType("float8_e4m3fnuz", "Float8E4M3FNUZ", "float", 8),
    MLDType("float8_e5m2", "Float8E5M2", "float", 8),
    MLDType("float8_e5m2fnuz", "Float8E5M2FNUZ", "float", 8),
    MLDType("float8_e8m0fnu", "Float8E8M0FNU", "float", 8, since=(0, 5)),
    MLDType("float6_e2m3fn", "Float6E2M3FN", "float", 6, since=(0, 5)),
    MLDType("float6_e3m2fn", "Float6E3M2FN", "float", 6, since=(0, 5)),
    MLDType("float4_e2m1fn", "Float4E2M1FN", "float", 4, since=(0, 5)),
    MLDType("int2", "Int2", "integer", 2, since=(0, 5)),
    MLDType("int4", "Int4", "integer", 4),
    MLDType("uint2", "UInt2", "integer", 2, since=(0, 5)),
    MLDType("uint4", "UInt4", "integer", 4),
    MLDType("complex_bfloat16", "ComplexBFloat16", "complex", 32, "bcomplex32", "bfloat16", (0, 6)),
    MLDType("complex_float16", "ComplexFloat16", "complex", 32, "complex32", "float16", (0, 6)),
)


def pack_dtype(dtype: AnyDType) -> AnyDType:
    """Return a dtype without padding and titles; fields keep their order and byte order."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((pack_dtype(base), shape))
    if dtype.names is None:
        return dtype
    return np.dtype([(name, pack_dtype(field)) for name, field in fields_of(dtype)])


def fields_of(dtype: AnyDType) -> Iterator[tuple[str, AnyDType]]:
    """Yield the name and dtype of each field; `dtype.fields` would include titles."""
    for name in dtype.names or ():
        yield name, dtype[name]


def leaf_dtypes(dtype: AnyDType) -> Iterator[AnyDType]:
    """Yield the dtypes of the numbers, strings and raw bytes that a dtype consists of."""
    if dtype.subdtype is not None:
        yield from leaf_dtypes(dtype.subdtype[0])
    elif dtype.names is not None:
        for _, field in fields_of(dtype):
            yield from leaf_dtypes(field)
    else:
        yield dtype


def has_variable_length(dtype: AnyDType) -> bool:
    """Whether elements are Python objects or strings of variable length."""
    return dtype.hasobject or dtype.kind == "T"


def find_ml_dtype(dtype: AnyDType) -> MLDType | None:
    """Return the row of a data type of ml_dtypes; None for other data types."""
    if dtype.type.__module__ != "ml_dtypes":
        return None
    name = dtype.type.__name__
    return next((row for row in ML_DTYPES if name == (row.name_in_ml_dtypes or row.name)), None)


def name_of_ml_dtype(dtype: AnyDType) -> str | None:
    """Return the registered name of a data type of ml_dtypes; None for other data types."""
    row = find_ml_dtype(dtype)
    return None if row is None else row.name


def installed_ml_dtypes() -> list[MLDType]:
    """Return the data types that the installed version of ml_dtypes has, if it is installed."""
    version = tuple(map(int, re.findall("[0-9]+", _version_of_ml_dtypes())[:2]))
    return [row for row in ML_DTYPES if row.since <= version]


def _version_of_ml_dtypes() -> str:
    """Return the version of ml_dtypes, or "" if it is not installed.

    It is not imported, which would take 4 ms and 2.5 MiB in every program that uses zarr; to find
    its version takes 1 ms.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # frozen programs
        if "ml_dtypes" not in sys.modules:
            return importlib.metadata.version("ml_dtypes")
    try:
        import ml_dtypes
    except ImportError:
        return ""
    return getattr(ml_dtypes, "__version__", "")  # a folder of that name has none


def why_missing(names: Iterable[str]) -> str:
    """Return what to install for one of these data types if ml_dtypes lacks it, or ""."""
    for name in names:
        try:
            ml_dtype_from_name(name)
        except ImportError as error:
            return str(error)
    return ""


def ml_dtype_from_name(name: str) -> AnyDType | None:
    """Return the data type of ml_dtypes with a registered name; None for other names."""
    row = next((row for row in ML_DTYPES if row.name == name), None)
    if row is None:
        return None
    try:
        import ml_dtypes  # optional, and rarely needed
    except ImportError as error:
        raise ImportError(
            f"data type {name!r} needs the package ml_dtypes, which is not installed: "
            "pip install ml_dtypes"
        ) from error
    if scalar := getattr(ml_dtypes, row.name_in_ml_dtypes or name, None):
        return cast("AnyDType", np.dtype(scalar))
    raise ImportError(
        f"data type {name!r} needs a newer ml_dtypes, got {_version_of_ml_dtypes() or 'a folder'}: "
        "pip install -U ml_dtypes"
    )


@functools.lru_cache(maxsize=256)
def byteswap_dtype(dtype: AnyDType) -> AnyDType:
    """Return a dtype of the same layout and byte order that NumPy byte-swaps correctly.

    NumPy does not swap datetimes without a unit when it casts them to the other byte order, and the
    numbers of ml_dtypes are opaque to it, so both are copied as integers.
    """
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((byteswap_dtype(base), shape))
    if dtype.names is not None:
        fields = [byteswap_dtype(field) for _, field in fields_of(dtype)]
        offsets = [cast("Any", dtype.fields)[name][1] for name in dtype.names]
        layout = {"formats": fields, "offsets": offsets, "itemsize": dtype.itemsize}
        copied: AnyDType = np.dtype(cast("Any", {"names": dtype.names, **layout}))
        return dtype if copied == dtype else copied
    if dtype.kind in "mM":
        return np.dtype("i8").newbyteorder(dtype.byteorder)
    row = find_ml_dtype(dtype)
    if row is None:
        return dtype
    size = dtype.itemsize
    integers = f"u{size // 2},u{size // 2}" if row.kind == "complex" else f"u{size}"
    return np.dtype(integers).newbyteorder(dtype.byteorder)


@functools.lru_cache(maxsize=256)
def swap_unit(dtype: AnyDType) -> AnyDType | None:
    """Return the integer dtype of which an element is a sequence, or None if there is none.

    NumPy byte-swaps integers at memory speed, but complex64 at half that speed, and unicode and
    structures at an eighth of it.
    """
    units = set()
    for leaf in leaf_dtypes(dtype):
        if leaf.kind in "SV":
            return None
        size = {"c": leaf.itemsize // 2, "U": 4}.get(leaf.kind, leaf.itemsize)
        units.add(np.dtype(f"{leaf.byteorder}u{size}"))
    is_packed = pack_dtype(dtype) == dtype  # False if fields are in another order in memory
    return units.pop() if len(units) == 1 and is_packed else None


@functools.lru_cache(maxsize=256)
def has_byte_order(dtype: AnyDType) -> bool:
    """Whether the stored bytes depend on `endian`.

    Structured dtypes always report the byte order '|', so whole dtypes are compared.
    """
    copied = byteswap_dtype(dtype)
    return copied.newbyteorder("<") != copied.newbyteorder(">")


def has_same_elements(dtype: AnyDType, other: AnyDType) -> bool:
    """Whether two dtypes have the same fields and types, apart from byte order and padding."""
    return dtype == other or (
        pack_dtype(dtype).newbyteorder("<") == pack_dtype(other).newbyteorder("<")
    )


def are_swapped_alike(dtype: AnyDType, other: AnyDType) -> bool:
    """Whether two unstructured dtypes have the same item size and are byte-swapped alike."""

    def unit_bytes(dtype: AnyDType) -> int:
        unit = swap_unit(byteswap_dtype(dtype)) if has_byte_order(dtype) else None
        return 1 if unit is None else unit.itemsize

    if dtype.names is not None or other.names is not None or dtype.itemsize != other.itemsize:
        return False
    return unit_bytes(dtype) == unit_bytes(other)


@functools.lru_cache(maxsize=256)
def stored_dtype(dtype: AnyDType, endian: Endian | None) -> AnyDType:
    """Return the stored dtype of elements of `dtype`; raise if it can't be stored that way."""
    check_storable(dtype)
    packed = byteswap_dtype(pack_dtype(dtype))
    if endian is not None:
        return packed.newbyteorder(endian)
    if has_byte_order(dtype):
        raise missing_endian(dtype)
    return packed


class EndianError(ValueError):
    """A multi-byte data type has no `endian`."""


class DataTypeError(TypeError):
    """Elements of a data type can't be stored."""


def missing_endian(dtype: AnyDType) -> EndianError:
    """Return the error for a multi-byte data type without `endian`."""
    return EndianError(
        "The `endian` configuration needs to be specified for multi-byte data types: "
        f"got none for {dtype}; add the byte order of the stored chunks, 'little' or 'big', to the "
        "configuration of the bytes codec"
    )


@functools.lru_cache(maxsize=256)
def check_storable(dtype: AnyDType) -> None:
    """Raise TypeError unless elements have a fixed size and a defined memory layout."""
    for leaf in leaf_dtypes(dtype):
        # `isbuiltin` is 2 for types defined by other packages, whose byte layout is unknown.
        # Some bytes of a longdouble are padding.
        if name_of_ml_dtype(leaf) is None and (
            leaf.hasobject
            or leaf.kind not in "biufcmMSUV"
            or leaf.isbuiltin == 2
            or leaf.itemsize > {"f": 8, "c": 16}.get(leaf.kind, leaf.itemsize)
        ):
            of_strings = "; for variable-length strings use the codecs vlen-utf8 and vlen-bytes"
            raise DataTypeError(
                f"the bytes codec cannot store data type {dtype}: expected a fixed-size type of "
                "NumPy (with floats of up to 64 bits), a structure of them, or a registered type "
                f"of ml_dtypes{of_strings if leaf.hasobject else ''}"
            )
