"""The attributes by which xarray names dimensions and masks elements, of Zarr v2 in Zarr v3.

Of a Zarr v2 array, xarray masks the fill value or, if that is null, what the attribute `_FillValue`
says. Of a Zarr v3 array it masks what the attribute says, which must be a number in an encoding of
its own (`xarray.backends.zarr.FillValueCoder`); any other one makes it refuse the whole group. The
attribute `missing_value` is masked, too, as it is written, in both: it takes what the other can't.
Dates and times are never masked.
"""

import base64
import contextlib
import json
import math
import struct
from typing import Any

import numpy as np

from numcodecs_bytes._core.dtypes import AnyDType

_DIMENSIONS = "_ARRAY_DIMENSIONS"  # the attribute with the names of dimensions in Zarr v2


def convert_attributes(
    document: dict[str, Any], attributes: dict[str, Any], dtype: AnyDType, fill_value: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return metadata of Zarr v3 from which xarray reads the same, and notes on what changed.

    Parameters
    ----------
    document, attributes : dict
        The Zarr v2 metadata and attributes of an array.
    dtype : numpy.dtype
        Its data type.
    fill_value : scalar or None
        Its fill value.

    Returns
    -------
    dict
        The members ``attributes`` and, if the dimensions have names, ``dimension_names``.
    list of str
        What was replaced, and why.

    Raises
    ------
    ValueError
        If xarray can't read the array, or could not read the same of Zarr v3.
    """
    names = _dimension_names(document, attributes)
    others = {k: v for k, v in attributes.items() if k not in (_DIMENSIONS, "_FillValue")}
    if names is None:  # xarray can't read it, except for a Zarr v3 array without dimensions
        given = attributes.get("_FillValue")
        if document["shape"] or "_FillValue" not in attributes or is_decodable(given, dtype):
            return {"attributes": attributes}, []
        return {"attributes": others}, _dropped(attributes, "xarray could not decode it")
    masks, notes = _masks(attributes, dtype, fill_value)
    return {"attributes": others | masks, "dimension_names": names}, notes


def _dimension_names(document: dict[str, Any], attributes: dict[str, Any]) -> list[Any] | None:
    """Return the names of dimensions that xarray reads from Zarr v2, or None."""
    names: Any
    if _DIMENSIONS in attributes:
        names = attributes[_DIMENSIONS]
        names = [names] if isinstance(names, str) else names
    elif "_NCZARR_ARRAY" in document:
        names = [name.rpartition("/")[2] for name in document["_NCZARR_ARRAY"]["dimrefs"]]
    else:
        return None
    num, is_name = len(document["shape"]), lambda name: isinstance(name, str | None)
    if isinstance(names, list) and len(names) == num and all(map(is_name, names)):
        return names
    raise ValueError(
        f"its attribute {_DIMENSIONS} is {names!r}, expected {num} names: correct or remove it in "
        ".zattrs"
    )


def _masks(
    attributes: dict[str, Any], dtype: AnyDType, fill_value: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the attributes that make xarray mask the same elements in Zarr v3, and notes."""
    if dtype.kind in "mM":
        return {}, _dropped(attributes, "xarray masks no dates and times")
    given = attributes.get("_FillValue")  # null is as good as none
    _refuse_packing(attributes, dtype, given if fill_value is None else fill_value)
    if fill_value is not None:
        return _masks_of_fill_value(attributes, dtype, fill_value)
    if given is None:
        return {}, []
    if dtype.kind not in "biufc":
        return _also_missing(attributes, given), []
    values = _elements("_FillValue", given)
    is_text = bool(values) and all(isinstance(value, str) for value in values)
    if _is_unsigned(attributes, dtype) and values:
        if is_text or isinstance(given, list):
            raise _unreadable("_FillValue", given, "a number, since there is _Unsigned")
        values = [_signed(given, dtype)]
    if is_text or not (values or dtype.kind in "fc"):
        return {}, _dropped(attributes, f"no {dtype} equals it")
    try:
        (value,) = values or [math.nan]
        return {"_FillValue": _encode(value, dtype)}, []
    except ValueError:
        return _also_missing(attributes, given), []


def _masks_of_fill_value(
    attributes: dict[str, Any], dtype: AnyDType, fill_value: Any
) -> tuple[dict[str, Any], list[str]]:
    value = fill_value.item() if isinstance(fill_value, np.generic) else fill_value
    given = attributes.get("_FillValue")
    is_same = given in (value, [value]) or (given != given and value != value)  # noqa: PLR0124 # NaN
    notes = [] if is_same else _dropped(attributes, f"xarray masks the fill value {value!r}")
    if dtype.kind in "biufc":
        number = _signed(fill_value, dtype) if _is_unsigned(attributes, dtype) else value
        return {"_FillValue": _encode(number, dtype)}, notes
    if isinstance(value, str):
        return _also_missing(attributes, value), notes
    raise ValueError(
        f"xarray masks elements that are the fill value {value!r}, but can't be told so for "
        f"{dtype} in Zarr v3: set fill_value to null in .zarray if they are valid"
    )


def _dropped(attributes: dict[str, Any], why: str) -> list[str]:
    """Return a note on the attribute `_FillValue`, if there is one."""
    given = attributes.get("_FillValue")
    return [] if given is None else [f"attribute _FillValue {given!r} is dropped: {why}"]


def _elements(name: str, value: Any) -> list[Any]:
    """Return the different values that an attribute lists, without null and NaN, as xarray does."""
    try:
        values = set(np.ravel(value))
    except (TypeError, ValueError):
        raise _unreadable(name, value, "a number, a text, or a list of these") from None
    found = [v.item() if isinstance(v, np.generic) else v for v in values]
    return [v for v in found if v is not None and v == v]  # noqa: PLR0124 # NaN


def _also_missing(attributes: dict[str, Any], value: Any) -> dict[str, Any]:
    """Return the attribute `missing_value` with one more value, or list of values."""
    if "missing_value" not in attributes:
        return {"missing_value": value}
    missing = attributes["missing_value"]
    both = [*np.ravel(missing).tolist(), *np.ravel(value).tolist()]
    expected = {*_elements("missing_value", missing), *_elements("_FillValue", value)}
    if {*_elements("missing_value", both)} != expected:  # NumPy makes texts of numbers beside texts
        raise ValueError(
            f"xarray masks {value!r} and, by the attribute missing_value, {missing!r}, which can't "
            "be listed together in Zarr v3: correct or remove one of them in .zattrs"
        )
    return {"missing_value": both}


def _refuse_packing(attributes: dict[str, Any], dtype: AnyDType, fill_value: Any) -> None:
    """Raise ValueError if xarray can't mask or unpack the array."""
    masked = _elements("missing_value", attributes.get("missing_value"))
    if not isinstance(fill_value, np.void):
        masked += _elements("_FillValue", fill_value)
    packing = {"scale_factor", "add_offset"} & attributes.keys()
    if packing and attributes.get("missing_value") == []:
        raise ValueError(
            "its attribute missing_value is an empty list, with which xarray unpacks in another "
            "precision: remove it in .zattrs"
        )
    for name in packing:
        value = attributes[name]
        is_number = False
        with contextlib.suppress(ValueError):  # of lists of several lengths
            numbers = np.ravel(value)
            is_number = value is None or (numbers.size == 1 and numbers.dtype.kind in "biuf")
        if not is_number or dtype.kind not in "iufc":
            raise _unreadable(name, value, "a number, for elements that are numbers")
    scale = attributes.get("scale_factor")
    if masked and type(scale) is int and attributes.get("add_offset") is None:
        raise _unreadable("scale_factor", scale, f"{scale}.0, since elements are masked by NaN")


def _unreadable(name: str, value: Any, expected: str) -> ValueError:
    return ValueError(
        f"xarray can't read it: its attribute {name} is {value!r}, expected {expected}; correct or "
        "remove it in .zattrs"
    )


def _is_unsigned(attributes: dict[str, Any], dtype: AnyDType) -> bool:
    """Whether xarray reads integers as those of the other signedness."""
    return (dtype.kind, attributes.get("_Unsigned")) in (("i", "true"), ("u", "false"))


def _signed(value: Any, dtype: AnyDType) -> int:
    """Return a value as a signed integer, as which xarray takes it for either signedness."""
    if dtype.kind == "i" and not dtype.isnative:
        raise ValueError(
            "xarray masks wrong elements of big-endian integers that have the attribute _Unsigned: "
            "remove that in .zattrs"
        )
    try:
        return int(np.array(value, f"i{dtype.itemsize}"))
    except OverflowError:
        raise _unreadable("_FillValue", value, f"a number of {dtype.itemsize} bytes") from None


def _encode(value: Any, dtype: AnyDType) -> Any:
    """Return the attribute `_FillValue` that makes xarray mask a number in Zarr v3.

    Raises ValueError if none masks exactly the elements that equal the number.
    """
    if dtype.kind == "b" and value in (0, 1):
        return bool(value)
    if dtype.kind in "iu" and math.isfinite(value) and value == int(value):
        return int(value)
    is_large = isinstance(value, int) and not -(2**63) <= value < 2**64  # compared exactly
    if dtype.kind == "f" and not is_large:
        return _base64(value)
    if dtype.kind == "c" and not is_large:
        return [_base64(value.real), _base64(value.imag)]
    raise ValueError(f"{value!r} can't be encoded as _FillValue for {dtype}")


def _base64(number: float) -> str:
    return base64.standard_b64encode(struct.pack("<d", number)).decode()


def is_decodable(value: Any, dtype: AnyDType) -> bool:
    """Whether xarray can decode the attribute `_FillValue` of a Zarr v3 array."""
    try:
        if dtype.kind == "f":
            struct.unpack("<d", base64.standard_b64decode(value))
        elif dtype.kind == "c":
            parts = value if isinstance(value, list) else []
            return len(parts) == 2 and all(is_decodable(part, np.dtype("f8")) for part in parts)
        elif dtype.kind in "iu":
            return isinstance(value, int | float) and math.isfinite(value)
    except (TypeError, ValueError, struct.error):
        return False
    return dtype.kind in "bf"


def how_to_decode(value: Any, dtype: AnyDType) -> str:
    """Return how to mend the attribute `_FillValue` of a Zarr v3 array that xarray can't decode."""
    with contextlib.suppress(ValueError):  # of more or fewer than one element
        (number,) = np.ravel(value).tolist()
        if isinstance(number, bool | int | float):
            return f"replace it by {json.dumps(_encode(number, dtype))}"
    return "remove it, or name it missing_value"
