"""The codecs that convert each element by itself, and what several of them do together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from zarr.codecs import TransposeCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu

from numcodecs_bytes._core.dtypes import AnyDType, Array, name_of_ml_dtype
from numcodecs_bytes._engine.conversion import Conversion
from numcodecs_bytes._engine.left_to_zarr import LeftToZarr
from numcodecs_bytes._engine.stores import name_of_class

# Of these classes, a part of a chunk is decoded to the same part of the decoded chunk, and encoded
# likewise. Subclasses may do anything.
_OF_NUMCODECS = {
    "numcodecs.astype.AsType",  # casts each element
    "numcodecs.bitround.BitRound",  # rounds each float to some bits; decodes to the same
    "numcodecs.fixedscaleoffset.FixedScaleOffset",  # one scale and one offset for all elements
    "numcodecs.quantize.Quantize",  # rounds each float to some digits; decoding casts it
}
_OF_ZARR = {  # zarr 3.2 and newer
    "zarr.codecs.cast_value.CastValue",  # casts each element, or looks it up in a table
    "zarr.codecs.scale_offset.ScaleOffset",  # one scale and one offset for all elements
}
_WRAPPERS = {  # of those of numcodecs, in Zarr v3
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


def conversion_of_filters(filters: Sequence[Any], dtype: AnyDType) -> Conversion:
    """Return what the filters of a Zarr v2 array of a dtype do; may raise `LeftToZarr`."""
    encoded = dtype
    for codec in filters:
        encoded = _encoded_dtype(codec, encoded)
    decoders: list[Callable[[Array], Array]] = [codec.decode for codec in reversed(filters)]
    decoders.append(lambda flat: flat.view(dtype))
    return Conversion(encoded, tuple([codec.encode for codec in filters]), tuple(decoders))


def conversion_of_codecs(codecs: Sequence[Any], spec: ArraySpec) -> tuple[Conversion, ArraySpec]:
    """Return what codecs of Zarr v3 do, but for transposing, and what they encode chunks to.

    Raises `LeftToZarr` if it depends on more than the element, or if zarr itself fails.
    """
    try:
        return _conversion_of_codecs(codecs, spec)
    except (ArithmeticError, ImportError, LookupError, TypeError, ValueError) as error:
        raise LeftToZarr(f"converted in an unknown way: {error}") from error


def _conversion_of_codecs(codecs: Sequence[Any], spec: ArraySpec) -> tuple[Conversion, ArraySpec]:
    if not spec.shape:  # NumPy returns scalars, which have no byte order
        raise LeftToZarr("a single element is converted")
    dtype = spec.dtype.to_native_dtype()
    encoders = list[Callable[[Array], Array]]()
    decoders = list[Callable[[Array], Array]]()
    for number, codec in enumerate(codecs):
        decoded, spec = spec, codec.resolve_metadata(spec)
        if type(codec) is TransposeCodec:
            continue
        if name_of_class(codec) in _OF_ZARR:
            encode = partial(_convert, codec._encode_sync, decoded)  # noqa: SLF001
            decode = partial(_convert, codec._decode_sync, decoded)  # noqa: SLF001
        else:
            _check_wrapper(codec, decoded, spec, codecs[number + 1 :])
            encode, decode = codec._codec.encode, codec._codec.decode  # noqa: SLF001
        encoders.append(encode)
        decoders.insert(0, decode)
    decoders.append(lambda flat: flat.astype(dtype, copy=False))
    encoded_dtype = spec.dtype.to_native_dtype()
    _check_numbers(dtype, encoded_dtype)
    return Conversion(encoded_dtype, tuple(encoders), tuple(decoders)), spec


def _convert(method: Any, spec: ArraySpec, flat: Array) -> Array:
    """Return what a method of a codec of zarr makes of elements."""
    elements = cpu.NDBuffer.from_numpy_array(flat)
    converted: Array = method(elements, replace(spec, shape=flat.shape)).as_numpy_array()
    return converted


def _check_wrapper(codec: Any, decoded: ArraySpec, encoded: ArraySpec, after: Any) -> None:
    """Raise `LeftToZarr` unless elements are converted alone by one of zarr's numcodecs codecs."""
    name, inner = name_of_class(codec), codec._codec  # noqa: SLF001
    if name_of_class(inner) != _WRAPPERS[name]:
        raise LeftToZarr(f"converted by {name_of_class(inner)}")
    if name.endswith("FixedScaleOffset") and any(type(c) is TransposeCodec for c in after):
        # It flattens chunks: zarr can't write them, and reads whole ones in another order.
        raise LeftToZarr("numcodecs.fixedscaleoffset is followed by transpose")
    dtype = _encoded_dtype(inner, decoded.dtype.to_native_dtype())
    if dtype.itemsize != encoded.dtype.to_native_dtype().itemsize:
        raise LeftToZarr("a codec encodes to elements of another size than zarr expects")


def _encoded_dtype(codec: Any, dtype: AnyDType) -> AnyDType:
    """Return what a codec of numcodecs encodes elements of a dtype to.

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
    return encoded


def _check_numbers(*dtypes: AnyDType) -> None:
    """Raise `LeftToZarr` unless all are integers or floats of NumPy of up to 8 bytes."""
    for dtype in dtypes:
        if dtype.kind not in "iuf" or dtype.itemsize > 8 or name_of_ml_dtype(dtype) is not None:
            raise LeftToZarr(f"{dtype} is converted")
