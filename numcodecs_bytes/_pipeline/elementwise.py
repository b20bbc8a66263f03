"""The codecs that convert each element by itself, and what several of them do together."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from zarr.codecs import TransposeCodec
from zarr.core.array_spec import ArraySpec

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.dtypes import AnyDType, Array, ByteOrder, name_of_ml_dtype
from numcodecs_bytes._plan.layout import ElementCodecs
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._zarr_api.names import name_of_class
from numcodecs_bytes._zarr_api.private_names import decode_elements, numcodecs_codec_of

# Of these classes, a part of a chunk is decoded to the same part of the decoded chunk.
# Subclasses may do anything.
_OF_NUMCODECS = {
    "numcodecs.astype.AsType",  # casts each element
    "numcodecs.bitround.BitRound",  # rounds each float to some bits; decoding changes nothing
    "numcodecs.fixedscaleoffset.FixedScaleOffset",  # one scale and one offset for all elements
    "numcodecs.quantize.Quantize",  # rounds each float to some digits; decoding casts it
}
_OF_ZARR = {  # new in zarr 3.2
    "zarr.codecs.cast_value.CastValue",  # casts each element, or looks it up in a table
    "zarr.codecs.scale_offset.ScaleOffset",  # one scale and one offset for all elements
}
_WRAPPERS = {  # zarr's classes for codecs of numcodecs in Zarr v3
    "zarr.codecs.numcodecs._codecs.AsType": "numcodecs.astype.AsType",
    "zarr.codecs.numcodecs._codecs.BitRound": "numcodecs.bitround.BitRound",
    "zarr.codecs.numcodecs._codecs.FixedScaleOffset": (
        "numcodecs.fixedscaleoffset.FixedScaleOffset"
    ),
    "zarr.codecs.numcodecs._codecs.Quantize": "numcodecs.quantize.Quantize",
}


def is_elementwise(codec: object) -> bool:
    """Whether a codec is exactly of a class that converts each element by itself."""
    name = name_of_class(codec)
    return name in _OF_ZARR or name in _OF_NUMCODECS or name in _WRAPPERS


def byte_order_of(codecs: Sequence[Any]) -> ByteOrder | Literal[""] | None:
    """Return the byte order of what the last codec encodes to; "" without codecs, None if unknown.

    numcodecs' codecs take what they decode for elements of that dtype, which before 3.3, zarr does
    not always know.
    """
    filters = [codec for codec in codecs if type(codec) is not TransposeCodec]
    if not filters:
        return None if codecs else ""
    configuration = getattr(filters[-1], "codec_config", {})
    names = [configuration.get(key) for key in ("encode_dtype", "astype", "dtype")]
    dtype = value_or_error(np.dtype, next(filter(None, names), "V"))
    return dtype.byteorder if isinstance(dtype, np.dtype) and dtype.kind in "iufc" else None


class _Step(NamedTuple):
    """What a codec does to elements."""

    decode: Callable[[Array], Array]
    encoded_dtype: AnyDType


def element_codecs_of_filters(filters: Sequence[Any], dtype: AnyDType) -> ElementCodecs:
    """Return what the filters of a Zarr v2 array of a dtype do; may raise `LeftToZarr`."""
    steps, encoded_dtype = list[_Step](), dtype
    for codec in filters:
        steps.append(_step_of_numcodecs(codec, encoded_dtype))
        encoded_dtype = steps[-1].encoded_dtype
    decoders = [step.decode for step in reversed(steps)]
    return ElementCodecs(encoded_dtype, (*decoders, lambda flat: flat.view(dtype)))


def element_codecs_of(codecs: Sequence[Any], spec: ArraySpec) -> tuple[ElementCodecs, ArraySpec]:
    """Return what codecs of Zarr v3 do, but for transposing, and what they encode chunks to.

    Raises `LeftToZarr` if it depends on more than the element, or if zarr itself fails.
    """
    dtype, steps = spec.dtype.to_native_dtype(), list[_Step]()
    if not spec.shape:  # NumPy returns scalars, which have no byte order
        raise LeftToZarr("a single element is converted")
    # FixedScaleOffset flattens chunks, so zarr can't transpose them after it.
    names = [name_of_class(codec).rpartition(".")[2] for codec in codecs]
    flattened = names.index("FixedScaleOffset") if "FixedScaleOffset" in names else len(names)
    if "TransposeCodec" in names[flattened:]:
        raise LeftToZarr("numcodecs.fixedscaleoffset is followed by transpose")
    try:
        for codec in codecs:
            decoded, spec = spec, codec.resolve_metadata(spec)
            if type(codec) is not TransposeCodec:
                steps.append(_step_of_zarr(codec, decoded, spec))
    except (ArithmeticError, ImportError, LookupError, TypeError, ValueError) as error:
        raise LeftToZarr(f"converted in an unknown way: {error}") from error
    decoders = [step.decode for step in reversed(steps)]
    decode = (*decoders, lambda flat: flat.astype(dtype, copy=False))
    return ElementCodecs(spec.dtype.to_native_dtype(), decode), spec


def _step_of_zarr(codec: Any, decoded: ArraySpec, encoded: ArraySpec) -> _Step:
    """Return what a codec of zarr does, between the specifications of a chunk before and after."""
    dtype, encoded_dtype = decoded.dtype.to_native_dtype(), encoded.dtype.to_native_dtype()
    _check_numbers(dtype, encoded_dtype)
    if name_of_class(codec) in _OF_ZARR:
        return _Step(partial(decode_elements, codec, decoded), encoded_dtype)
    inner = numcodecs_codec_of(codec)
    if name_of_class(inner) != _WRAPPERS[name_of_class(codec)]:
        raise LeftToZarr(f"converted by {name_of_class(inner)}")
    step = _step_of_numcodecs(inner, dtype)
    if step.encoded_dtype.itemsize != encoded_dtype.itemsize:
        raise LeftToZarr("a codec encodes to elements of another size than zarr expects")
    return step


def _step_of_numcodecs(codec: Any, dtype: AnyDType) -> _Step:
    """Return what a codec of numcodecs does to elements of a dtype.

    Raises `LeftToZarr` unless it takes elements of that size: it would see others in their bytes.
    """
    name = name_of_class(codec)
    if name == "numcodecs.bitround.BitRound":
        decoded, encoded = dtype, dtype
        if dtype.kind != "f":
            raise LeftToZarr("BitRound can't round anything but floats")
    elif name == "numcodecs.astype.AsType":
        decoded, encoded = codec.decode_dtype, codec.encode_dtype
    else:
        decoded, encoded = codec.dtype, codec.astype
        numbers = [vars(codec).get(key, 0) for key in ("scale", "offset", "digits")]
        if not all(type(number) in (int, float) for number in numbers):
            raise LeftToZarr("a scale, an offset or digits are not plain numbers")
    _check_numbers(dtype, decoded, encoded)
    if dtype.itemsize != decoded.itemsize:
        raise LeftToZarr("a codec decodes to elements of another size than the array's")
    return _Step(codec.decode, encoded)


def _check_numbers(*dtypes: AnyDType) -> None:
    """Raise `LeftToZarr` unless all are integers or floats of NumPy of up to 8 bytes."""
    for dtype in dtypes:
        if dtype.kind not in "iuf" or dtype.itemsize > 8 or name_of_ml_dtype(dtype) is not None:
            raise LeftToZarr(f"{dtype} is converted")
