"""Converts to Zarr v3 the attributes by which xarray names dimensions and masks elements.

In a Zarr v2 array, xarray masks the fill value or, if that is null, the attribute `_FillValue`. In
a Zarr v3 array, it masks only that attribute, which must be a number in a special encoding
(`xarray.backends.zarr.FillValueCoder`); any other value makes it reject the whole group. Text is
masked through the attribute `missing_value`, in both formats. Dates and times are never masked.
"""

import base64
import contextlib
import json
import math
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from zarr.types import AnyArray

from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.dtypes import AnyDType

_DIMENSIONS = "_ARRAY_DIMENSIONS"  # the attribute with the names of dimensions in Zarr v2


def why_wrong_dimensions(document: JSONObject, attributes: JSONObject) -> str:
    """Return why xarray can't read an array of Zarr v2, or ""; it takes a text for its letters."""
    names, num = attributes.get(_DIMENSIONS), len(document["shape"])
    if _DIMENSIONS not in attributes or (isinstance(names, list | str) and len(names) == num):
        return ""
    return _expected_names(f"attribute {_DIMENSIONS}", names, num, ".zattrs")


def dimensions_of(
    array: AnyArray, document: JSONObject, attributes: JSONObject
) -> dict[str, int] | None:
    """Return the sizes of an array's named dimensions; None if it has no names.

    xarray can't read such an array. Of one that has no dimensions, or whose names are not known,
    the dict is empty.
    """
    names: Any = getattr(array.metadata, "dimension_names", None)
    is_nczarr = "_nczarr_array" in [str(name).lower() for name in (*document, *attributes)]
    if array.metadata.zarr_format == 2:
        names = attributes.get(_DIMENSIONS, [] if is_nczarr else None)
    if isinstance(names, list | tuple):
        sizes = zip(names, array.shape, strict=False)
        return {name: size for name, size in sizes if isinstance(name, str)}
    return None if names is None and array.ndim else {}


def problems_with_dimensions(
    dimensions: dict[str, dict[str, int] | None], groups: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the path of each group that xarray can't read, and why.

    Given are `dimensions_of` the array at each path, which are empty for other nodes.
    """
    by_group: dict[str, dict[str, dict[str, int] | None]] = defaultdict(dict)
    for path, sizes in dimensions.items():
        group, _, name = path.rpartition("/")
        if name:
            by_group[group][name] = sizes
    for group, arrays in by_group.items():
        unnamed = sorted(name for name, sizes in arrays.items() if sizes is None)
        if group in groups and unnamed and any(arrays.values()):
            what = f"{unnamed[0]} has no names of dimensions, unlike others of its arrays"
            yield group, f"xarray can't read it: {what}: add these, or move it to another group"
        named = {name: sizes or {} for name, sizes in arrays.items()}
        of_others = [
            (name, other)
            for other, sizes in named.items()
            for name in sizes
            if name != other and name in named.get(name, {})
        ]
        if of_others and not group and "" not in dimensions:
            coordinate, _ = of_others[0]
            what = f"it has no zarr.json or .zgroup, but {coordinate} is a coordinate of others"
            how = "restore that; until then, open them by their paths"
            yield group, f"{what}, as in a group: {how}"
        for name, other in of_others:
            num, of_other = (named[each][name] for each in (name, other))
            if num != of_other:
                what = f"dimension {name} has {num} elements in {name}, but {of_other} in {other}"
                how = "if an append was interrupted, repeat it, or resize those that have more"
                yield group, f"xarray can't read it: {what}: {how}"
                break


def _expected_names(what: str, given: object, num: int, file: str) -> str:
    return f"its {what} is {given!r}, expected {num} names: correct or remove it in {file}"


def convert_attributes(
    document: JSONObject, attributes: JSONObject, dtype: AnyDType, fill_value: object
) -> tuple[JSONObject, list[str]]:
    """Return members of `zarr.json` from which xarray reads the same, and notes on what changed.

    Raises ValueError if xarray would read something else from Zarr v3.
    """
    names = _dimension_names(document, attributes)
    given = attributes.get("_FillValue")
    specials = (_DIMENSIONS, "_FillValue")
    others = {name: value for name, value in attributes.items() if name not in specials}
    if names is not None:
        masks, why_dropped = _masks(attributes, dtype, fill_value)
        members = {"attributes": others | masks, "dimension_names": names}
    elif document["shape"] or "_FillValue" not in attributes or is_decodable(given, dtype):
        return {"attributes": attributes}, []  # without names, xarray reads it in neither format
    else:
        members, why_dropped = {"attributes": others}, "xarray could not decode it"
    is_dropped = given is not None and why_dropped
    notes = [f"attribute _FillValue {given!r} is dropped: {why_dropped}"] if is_dropped else []
    return members, notes


def _dimension_names(document: JSONObject, attributes: JSONObject) -> list[str | None] | None:
    """Return the names of dimensions that xarray reads from Zarr v2, or None.

    Raises ValueError if they can't be converted.
    """
    given: Any = attributes.get(_DIMENSIONS)
    names, what, file = given, f"attribute {_DIMENSIONS}", ".zattrs"
    if _DIMENSIONS in attributes:
        names = [names] if isinstance(names, str) else names
    elif "_NCZARR_ARRAY" in document:
        what, file, given = "_NCZARR_ARRAY", ".zarray", document["_NCZARR_ARRAY"]
        names = given
        with contextlib.suppress(AttributeError, KeyError, TypeError):  # it may be anything
            names = [name.rpartition("/")[2] for name in given["dimrefs"]]
    else:
        return None
    num = len(document["shape"])
    is_list = isinstance(names, list) and len(names) == num
    if is_list and all(isinstance(name, str | None) for name in names):
        return list(names)
    raise ValueError(_expected_names(what, given, num, file))


def _masks(attributes: JSONObject, dtype: AnyDType, fill_value: Any) -> tuple[JSONObject, str]:
    """Return the attributes that mask the same in Zarr v3, and why `_FillValue` is dropped."""
    if dtype.kind in "mM":
        return {}, "xarray does not mask dates and times"
    given: Any = attributes.get("_FillValue")
    if fill_value is None:
        value, why_dropped = given, ""
        with contextlib.suppress(ValueError):  # it has not exactly one element
            value = np.ravel(given).item()
    else:
        value = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
        is_same = given in (value, [value]) or (given != given and value != value)  # noqa: PLR0124 # NaN
        why_dropped = "" if is_same else f"xarray masks the fill value {value!r}"
    if value is None:
        return {}, why_dropped
    if dtype.kind in "biufc" and not isinstance(value, list | dict):
        try:
            if (dtype.kind, attributes.get("_Unsigned")) in (("i", "true"), ("u", "false")):
                # xarray reads it as a signed integer, whether or not it reads the elements as such.
                value = np.array(int(value)).astype(f"i{dtype.itemsize}").item()
            return {"_FillValue": encode_mask(value, dtype)}, why_dropped
        except (OverflowError, TypeError, ValueError):
            return {}, f"no {dtype} equals it"
    elif isinstance(value, str) and attributes.get("missing_value", value) == value:
        return {"missing_value": value}, why_dropped
    raise ValueError(
        f"xarray masks elements that are {value!r}, but can't be told to for {dtype} in Zarr v3: "
        "correct or remove _FillValue and missing_value in .zattrs, or set fill_value to null in "
        ".zarray"
    )


def encode_mask(value: Any, dtype: AnyDType) -> Any:
    """Return the attribute `_FillValue` that makes xarray mask a number in Zarr v3."""
    if isinstance(value, str):  # the types below would parse it
        raise TypeError(f"expected a number, got {value!r}")
    if dtype.kind == "f":
        return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
    if dtype.kind == "c":
        number = complex(value)
        return [encode_mask(real, np.dtype("f8")) for real in (number.real, number.imag)]
    as_stored = bool(value) if dtype.kind == "b" else int(value)
    if as_stored != value:
        raise ValueError(f"no {dtype} equals {value!r}")
    return as_stored


def is_decodable(value: Any, dtype: AnyDType) -> bool:
    """Whether xarray can decode the attribute `_FillValue` of a Zarr v3 array."""
    try:
        if dtype.kind == "f":
            struct.unpack("<d", base64.standard_b64decode(value))
        elif dtype.kind == "c":
            is_pair = isinstance(value, list) and len(value) == 2
            return is_pair and all(is_decodable(real, np.dtype("f8")) for real in value)
        elif dtype.kind in "iu":
            return isinstance(value, int | float) and math.isfinite(value)
    except (TypeError, ValueError, struct.error):
        return False
    return dtype.kind in "bf"


def how_to_decode(value: Any, dtype: AnyDType) -> str:
    """Return how to fix the attribute `_FillValue` of a Zarr v3 array that xarray can't decode."""
    if dtype.kind not in "biufc" or isinstance(value, dict):
        return "remove it"
    with contextlib.suppress(OverflowError, TypeError, ValueError):  # it is no number, or several
        (number,) = np.ravel(value).tolist()
        if isinstance(number, bool | int | float):
            return f"replace it with {json.dumps(encode_mask(number, dtype))}"
    return "remove it, or rename it to missing_value"
