"""Zarr v3 metadata with which the chunks of a Zarr v2 array read the same.

zarr's own `migrate_v2_to_v3` loses the byte order of structures, and rejects the codec `bytes`,
filters of bytes such as `shuffle`, and variable-length text and bytes.
"""

import json
import math
from typing import Any

import numpy as np
from numcodecs import Blosc
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.numcodec import Numcodec
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.registry import get_codec_class
from zarr.storage import MemoryStore, StorePath

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject, dtype_to_json
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    Array,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    pack_dtype,
)
from numcodecs_bytes._core.lengths import LengthError
from numcodecs_bytes._tools.arrays import array_of, why_not_opened
from numcodecs_bytes._tools.reporting import explain_error
from numcodecs_bytes._tools.stored_chunks import StoredChunk, find_chunks
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr_data_types import struct_of


class MixedByteOrderError(ValueError):
    """A structure has fields of both byte orders, which Zarr v3 metadata can't express."""


def v3_document(old: JSONObject) -> JSONObject:
    """Return Zarr v3 metadata, without attributes, with which the chunks of an array read the same.

    Raises ValueError if Zarr v3 can't express `.zarray`, or zarr can't open it.
    """
    metadata = value_or_error(ArrayV2Metadata.from_dict, old)
    if isinstance(metadata, Exception):  # a TypeError, if the configuration of a codec is wrong
        advice = why_not_opened(old) or "if .zarray is damaged, correct or restore it"
        why = explain_error(metadata).rstrip(".")
        if isinstance(metadata, KeyError):
            why = f".zarray lacks {metadata}"
        raise ValueError(f"{why}; {advice}") from metadata  # noqa: TRY004
    dtype = pack_dtype(metadata.dtype.to_native_dtype())
    filters, serializer, of_bytes = _split_codecs(metadata)
    _refuse_ambiguous_filters(filters, dtype)
    before = [_v3_codec(codec, dtype) for codec in filters]
    after = [_v3_codec(codec, dtype) for codec in of_bytes]
    if metadata.order == "F":
        order = list(reversed(range(len(metadata.shape))))
        before.insert(0, {"name": "transpose", "configuration": {"order": order}})
    new = _without_codecs(old, metadata, dtype)
    name = serializer.codec_id if serializer and not isinstance(serializer, Bytes) else "bytes"
    why = "in either byte order"
    configurations: list[JSONObject] = [{}]
    # Filters may change the byte order, even from none to one, which not every zarr insists on
    # being told. Where elements are single bytes, zarr ignores it.
    if name == "bytes" and (filters or has_byte_order(dtype)):
        configurations = [{"configuration": {"endian": endian}} for endian in ("little", "big")]
    for configuration in configurations:
        new["codecs"] = [*before, {"name": name, **configuration}, *after]
        is_same = value_or_error(_reads_the_same, old, new, dtype)
        if isinstance(is_same, Exception):  # text in the wrong byte order may be invalid
            why = f"({is_same})"
        elif is_same:
            return new
    _refuse_mixed_byte_orders(dtype)
    if isinstance(serializer, Bytes) and not filters:
        wrong = why_wrong_dtype(serializer, dtype) or why_no_endian(serializer.endian, dtype)
        if wrong:
            raise ValueError(f"{wrong}; then run migrate again")
    names = ", ".join(codec.codec_id for codec in (*filters, *of_bytes)) or name
    raise ValueError(
        f"in Zarr v3, {dtype} can't be restored from the codecs {names} {why}: if it can "
        "be read, copy it to an array with other codecs"
    )


def why_no_endian(endian: str | None, dtype: AnyDType) -> str:
    """Return that a codec `bytes` lacks an `endian`, if the data type needs one, or ""."""
    if endian is not None or not has_byte_order(dtype):
        return ""
    return (
        f'the bytes codec has no "endian", which {dtype} needs: some implementations assume '
        "little-endian, others raise an error; add the byte order that it was written with"
    )


def why_wrong_dtype(codec: Bytes, dtype: AnyDType) -> str:
    """Return what is wrong with the `dtype` of the first filter of an array, or ""."""
    right = f'"dtype": {json.dumps(dtype_to_json(dtype))}'
    if codec.dtype is not None:
        if pack_dtype(codec.dtype) == pack_dtype(dtype):
            return ""
        wrong = json.dumps(dtype_to_json(codec.dtype))
        return (
            f'the bytes codec has "dtype": {wrong}, which is not that of the array: write {right} '
            "there in .zarray, and compare some values"
        )
    if codec.endian is None or (codec.endian == NATIVE_ENDIAN and dtype.isnative):
        return ""
    why = f"the bytes codec has no dtype, which it needs to store {dtype} as {codec.endian}-endian"
    if codec.endian != NATIVE_ENDIAN:
        return f"{why}: add {right} to it in .zarray"
    other = "big" if codec.endian == "little" else "little"
    return (
        f"{why}: zarr reads it as {other}-endian; if these values are right, write "
        f'"endian": "{other}", {right} there in .zarray, otherwise add only the dtype'
    )


def _refuse_mixed_byte_orders(dtype: AnyDType) -> None:
    """Raise MixedByteOrderError if the fields of a structure have both byte orders."""
    if has_variable_length(dtype):  # NumPy does not know the byte order of text
        return
    orders = {leaf.isnative for leaf in leaf_dtypes(dtype) if has_byte_order(leaf)}
    if len(orders) > 1:
        raise MixedByteOrderError(
            f"its fields have both byte orders ({dtype}), which Zarr v3 structures do not support: "
            "copy the array to one whose fields have one byte order"
        )


def _without_codecs(old: JSONObject, metadata: ArrayV2Metadata, dtype: AnyDType) -> JSONObject:
    data_type = struct_of(dtype) if dtype.names else metadata.dtype
    scalar: object = metadata.fill_value
    if old.get("fill_value") is None:  # it is what zarr reads of a missing chunk
        missing = old | {"shape": [1], "chunks": [1], "order": "C"}
        scalar = np.asarray(array_of(missing, StorePath(MemoryStore()))[...])[0]
    if dtype.names:
        scalar = np.asarray(scalar).astype(data_type.to_native_dtype())[()]
    separator = metadata.dimension_separator
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(metadata.shape),
        "data_type": data_type.to_json(zarr_format=3),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(metadata.chunks)}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": separator}},
        "fill_value": data_type.to_json_scalar(scalar, zarr_format=3),
        "attributes": {},
        "storage_transformers": [],
    }


Codecs = list[Numcodec]


def _split_codecs(metadata: ArrayV2Metadata) -> tuple[Codecs, Numcodec | None, Codecs]:
    """Split codecs: filters of arrays; `Bytes`, a codec of variable-length data or None; others."""
    filters, serializer, of_bytes = Codecs(), None, Codecs()
    for codec in [*(metadata.filters or ()), metadata.compressor]:
        if codec is None:
            continue
        is_of_text = codec.codec_id in ("vlen-utf8", "vlen-bytes")  # codecs of both formats
        is_serializer = isinstance(codec, Bytes) or is_of_text
        kind = value_or_error(get_codec_class, f"numcodecs.{codec.codec_id}")
        if not (is_serializer or isinstance(kind, type)):
            raise ValueError(
                f"Zarr v3 has no counterpart of the codec {codec.codec_id}: copy the array to one "
                "with another codec"
            )
        is_of_bytes = isinstance(kind, type) and issubclass(kind, BytesBytesCodec)
        if not is_serializer and (is_of_bytes or codec is metadata.compressor):
            of_bytes.append(codec)
        elif serializer or of_bytes:
            raise ValueError(
                f"the filter {codec.codec_id} follows one that returns bytes, which is not "
                "possible in Zarr v3: copy the array to one with other filters"
            )
        elif is_serializer:
            serializer = codec
        else:
            filters.append(codec)
    return filters, serializer, of_bytes


def _refuse_ambiguous_filters(filters: Codecs, dtype: AnyDType) -> None:
    """Raise ValueError if one version of zarr would read what another one could not, or not so.

    Versions hand chunks to filters in different byte orders, and differ in how they check packbits.
    """
    names = [codec.codec_id for codec in filters]
    has_big_endian = ">" in "".join(str(codec.get_config()) for codec in filters)
    is_of_bools = dtype.kind == "b" and (has_big_endian or "packbits" in names[1:] + names[:-1])
    if is_of_bools or (has_big_endian and "quantize" in names):
        raise ValueError(
            f"in Zarr v3, versions of zarr read {dtype} behind {', '.join(names)} differently: "
            "copy the array to one with other filters"
        )


def _v3_codec(codec: Numcodec, dtype: AnyDType) -> JSONObject:
    """Return the counterpart in Zarr v3 of a codec other than `Bytes`."""
    config = dict(codec.get_config())
    name = config.pop("id")
    if name == "blosc":
        config["typesize"] = dtype.itemsize
        names = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}
        names[Blosc.AUTOSHUFFLE] = names[2 if dtype.itemsize == 1 else 1]  # Zarr v3 has no name
        if (shuffle := config["shuffle"]) not in list(names):
            expected = f"expected one of {list(names)}"
            raise ValueError(
                f"blosc has the shuffle {shuffle!r}, {expected}: correct it in .zarray"
            )
        config["shuffle"] = names[shuffle]
    is_specified = name in ("blosc", "gzip", "zstd")
    return {"name": name if is_specified else f"numcodecs.{name}", "configuration": config}


def _reads_the_same(old: JSONObject, new: JSONObject, dtype: AnyDType) -> bool:
    """Whether a small chunk that is written as Zarr v2 reads the same when read as Zarr v3."""
    shape = tuple(max(1, min(n, 4)) for n in old["chunks"])
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    store_path = StorePath(MemoryStore())
    document = old | {"shape": shape, "chunks": shape}
    written = array_of(document, store_path, {"write_empty_chunks": True})
    read = array_of(new | {"shape": shape, "chunk_grid": grid}, store_path)
    written[...] = _sample(dtype, shape).astype(written.dtype)
    return _are_same(np.asarray(written[...]), np.asarray(read[...]))


def _are_same(values: Array, migrated: Array) -> bool:
    """Whether two arrays hold the same values, bit by bit, in any byte order."""
    if has_variable_length(values.dtype):
        return bool(values.tolist() == migrated.tolist())
    return bool(values.astype(migrated.dtype).tobytes() == migrated.tobytes())


def _sample(dtype: AnyDType, shape: tuple[int, ...]) -> Array:
    """Return an array whose values would differ in the other byte order."""
    if dtype.names:
        sample = np.zeros(shape, dtype)
        for name in dtype.names:
            sample[name] = _sample(dtype[name], shape)
        return sample
    numbers = np.arange(1, math.prod(shape) + 1).reshape(shape)
    if dtype.hasobject:
        return numbers.astype("S").astype(dtype)
    if dtype.type is np.void:
        raw = np.arange(numbers.size * dtype.itemsize).astype(np.uint8)
        return raw.view(dtype).reshape(shape)
    # Single bytes have no byte order; bools and the smallest integers can only hold 0 and 1.
    return (numbers % (2 if dtype.itemsize == 1 else 100)).astype(dtype)


def compare(store_path: StorePath, old: JSONObject, new: JSONObject) -> None:
    """Raise ValueError unless an array's first chunk reads the same with either metadata."""
    arrays = [array_of(document, store_path) for document in (old, new)]
    first, misnamed = None, ""
    for found in find_chunks(arrays[0]):
        if not isinstance(found, StoredChunk):
            misnamed = found.name if found.kind == "misnamed" else misnamed
        elif not isinstance(found.error, IsADirectoryError):
            first = found
            break
    if misnamed and first is None:
        raise ValueError(
            f"no chunk has the name that .zarray gives it, but there is {misnamed}: see "
            "numcodecs-bytes check"
        )
    if first is None:
        return
    name = f"chunk {arrays[0].metadata.encode_chunk_key(first.chunk_coords)}"
    both = value_or_error(lambda: [np.asarray(a.blocks[first.chunk_coords]) for a in arrays])
    if isinstance(both, LengthError):  # it names the chunk, and says what helps
        raise both
    if isinstance(both, Exception):
        why = explain_error(both)
        raise ValueError(f"{name} can't be read: {why}; see numcodecs-bytes check") from both  # noqa: TRY004
    if not _are_same(*both):
        raise ValueError(
            f"{name} would read different values as Zarr v3: copy the array to one with other "
            "codecs"
        )


def disagreements(old: JSONObject, new: JSONObject) -> list[str]:
    """Return each property that differs between an array's Zarr v2 and Zarr v3 metadata.

    Codecs are compared by what affects the values: their names, byte order and axis order.
    """
    try:
        of_v2 = _compared_properties(v3_document(old))
    except MixedByteOrderError as error:
        return [str(error)]
    of_v3 = _compared_properties(new)
    differing = [name for name, value in of_v2.items() if value != of_v3[name]]
    return [f"{n} is {of_v2[n]} in .zarray, {of_v3[n]} in zarr.json" for n in differing]


def _compared_properties(document: JSONObject) -> dict[str, object]:
    """Return the properties that must be equal in two Zarr v3 documents, by name."""
    array: Any = array_of(document, StorePath(MemoryStore()))
    described = []
    for codec in array.metadata.codecs:
        codec_document: JSONObject = codec.to_dict()
        settings = codec_document.get("configuration", {})
        if isinstance(codec, BytesBytesCodec):
            settings = {}  # decoders do not need the compression level, for example
        text = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
        described.append(f"{codec_document['name'].removeprefix('numcodecs.')}({text})")
    fill_value = np.asarray(array.fill_value)
    return {
        "the shape": array.shape,
        "the chunk shape": array.chunks,
        "the data type": str(pack_dtype(array.dtype)),
        "the fill value": f"{fill_value} ({fill_value.tobytes().hex()})",
        "the key of the first chunk": array.metadata.encode_chunk_key((0,) * array.ndim),
        "the list of codecs": " ".join(described),
    }
