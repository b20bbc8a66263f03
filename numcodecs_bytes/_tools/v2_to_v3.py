"""Zarr v3 metadata with which the chunks of a Zarr v2 array read the same.

zarr's own `migrate_v2_to_v3` converts filters and compressors. What it gets wrong or does not
support is done here: the byte order of every data type, the codec `bytes` as a filter or
compressor, structures, and text and bytes of variable length.
"""

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
import zarr.abc.store
import zarr.errors
import zarr.storage
from numcodecs import Blosc
from zarr.abc.codec import BytesBytesCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.metadata.migrate_v3 import migrate_v2_to_v3
from zarr.registry import get_codec_class

from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    Endian,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    pack_dtype,
)
from numcodecs_bytes._tools.hierarchy import describe_error, document_at, first_chunk
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr_data_types import struct_of

_VARIABLE_LENGTH = ("vlen-utf8", "vlen-bytes")  # filters of Zarr v2 that are also codecs of Zarr v3


class MixedByteOrderError(ValueError):
    """A structure has fields of both byte orders, which Zarr v3 metadata can't express."""


def v3_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return Zarr v3 metadata with which the chunks of a Zarr v2 array read the same.

    Parameters
    ----------
    document : dict
        The Zarr v2 metadata of the array, ``.zarray``.

    Returns
    -------
    dict
        The contents of ``zarr.json``, without attributes.

    Raises
    ------
    ValueError
        If Zarr v3 can't express the array's metadata.
    Exception
        Whatever zarr raises for codecs that it can't migrate.
    """
    metadata: Any = ArrayV2Metadata.from_dict(document)
    dtype = pack_dtype(metadata.dtype.to_native_dtype())
    filters, serializer, of_bytes = _split(metadata)
    is_vlen = serializer is not None and not isinstance(serializer, Bytes)
    endian = None if is_vlen else _byte_order(dtype)
    if isinstance(serializer, Bytes):
        endian = _stored_order(serializer, dtype, filters)
    has_no_fill_value = document.get("fill_value") is None
    settings: dict[str, Any] = {"filters": None, "compressor": None}
    if filters:
        settings["filters"] = [codec.get_config() for codec in filters]
    if has_no_fill_value:  # zarr's own tool would turn None into a value
        data_type = metadata.dtype
        default = data_type.default_scalar()
        settings["fill_value"] = data_type.to_json_scalar(default, zarr_format=2)
    # zarr's own tool ignores the byte order of structures and rejects variable-length strings, so
    # it gets raw bytes instead.
    is_unsupported = bool(dtype.names or is_vlen)
    if is_unsupported:
        zeros = base64.b64encode(bytes(dtype.itemsize)).decode()
        settings |= {"dtype": f"|V{dtype.itemsize}", "fill_value": zeros}
    migrated = _migrated_by_zarr(document | settings)
    if is_unsupported:
        data_type = struct_of(dtype) if dtype.names else metadata.dtype
        scalar = _missing_element(document) if has_no_fill_value else metadata.fill_value
        if dtype.names:
            scalar = np.asarray(scalar).astype(data_type.to_native_dtype())[()]
        migrated["data_type"] = data_type.to_json(zarr_format=3)
        migrated["fill_value"] = data_type.to_json_scalar(scalar, zarr_format=3)
    before = migrated["codecs"][:-1]
    alone = document | settings | {"filters": None}
    after = [_codec_of_bytes(codec, dtype, alone) for codec in of_bytes]
    # The output of filters may have another byte order than the array, so both are tried.
    candidates = [endian, *(["little", "big"] if filters and serializer is None else [])]
    name = serializer.codec_id if serializer is not None and is_vlen else "bytes"
    for candidate in candidates:
        has_order = candidate is not None and (filters or has_byte_order(dtype))
        configuration = {"configuration": {"endian": candidate}} if has_order else {}
        migrated["codecs"] = [*before, {"name": name} | configuration, *after]
        if _reads_the_same(document, migrated, dtype):
            return migrated
    names = [codec["name"] for codec in migrated["codecs"]]
    raise ValueError(
        f"as Zarr v3, zarr does not read what it writes as Zarr v2: the codecs {', '.join(names)} "
        f"do not restore the dtype {dtype} from the filters "
        f"{', '.join(str(codec) for codec in metadata.filters or ())}, with neither byte order"
    )


def _codec_of_bytes(codec: Any, dtype: AnyDType, document: dict[str, Any]) -> dict[str, Any]:
    """Return the counterpart in Zarr v3 of a codec of the bytes of an array."""
    config = codec.get_config()
    if config.get("shuffle") == Blosc.AUTOSHUFFLE:  # which has no name in Zarr v3
        config["shuffle"] = Blosc.BITSHUFFLE if dtype.itemsize == 1 else Blosc.SHUFFLE
    migrated: dict[str, Any] = _migrated_by_zarr(document | {"compressor": config})["codecs"][-1]
    return migrated


def _split(metadata: Any) -> tuple[list[Any], Any, list[Any]]:
    """Split the codecs of a Zarr v2 array.

    Returns the filters of the array; what turns it into bytes, `Bytes` or a codec of variable
    length, or None; and the filters of those bytes, with the compressor.
    """
    compressor = metadata.compressor
    codecs = [*(metadata.filters or ()), *([] if compressor is None else [compressor])]
    are_of_bytes = [
        not isinstance(codec, Bytes) and (codec is compressor or _is_of_bytes(codec))
        for codec in codecs
    ]
    first = are_of_bytes.index(True) if True in are_of_bytes else len(codecs)
    filters, of_bytes, serializer = codecs[:first], codecs[first:], None
    if filters and (isinstance(filters[-1], Bytes) or filters[-1].codec_id in _VARIABLE_LENGTH):
        serializer = filters.pop()
    others = [codec for codec in filters if isinstance(codec, Bytes)]
    if others or not all(are_of_bytes[first:]):
        name = (others or of_bytes)[0].codec_id
        raise ValueError(f"another filter follows the filter {name}, whose output is not an array")
    return filters, serializer, of_bytes


def _is_of_bytes(codec: Any) -> bool:
    """Whether a codec of Zarr v2 has a counterpart in Zarr v3 from bytes to bytes."""
    try:
        kind = get_codec_class(f"numcodecs.{codec.codec_id}")
    except (KeyError, zarr.errors.UnknownCodecError):
        return False
    return issubclass(kind, BytesBytesCodec)


def _missing_element(document: dict[str, Any]) -> Any:
    """Return an element of a missing chunk, as zarr reads it."""
    at = zarr.storage.StorePath(zarr.storage.MemoryStore())
    one: Any = document | {"shape": [1], "chunks": [1], "order": "C"}
    return np.asarray(zarr.Array(zarr.AsyncArray(one, at))[...])[0]


def _reads_the_same(old: dict[str, Any], new: dict[str, Any], dtype: AnyDType) -> bool:
    """Whether a small chunk that is written as Zarr v2 reads the same as Zarr v3."""
    shape = tuple(min(n, 4) for n in old["chunks"])
    grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
    documents: Any = [
        old | {"shape": shape, "chunks": shape},
        new | {"shape": shape, "chunk_grid": grid, "attributes": {}},
    ]
    at = zarr.storage.StorePath(zarr.storage.MemoryStore())
    try:
        written, read = (zarr.Array(zarr.AsyncArray(document, at)) for document in documents)
        with zarr.config.set({"array.write_empty_chunks": True}):
            written[...] = _sample(dtype, shape).astype(written.dtype)
        values: Any = np.asarray(written[...])
        migrated: Any = np.asarray(read[...])
    except (TypeError, ValueError):
        return False
    return _are_same(values, migrated)


def _are_same(values: Any, migrated: Any) -> bool:
    """Whether two arrays hold the same values, bit by bit, in any byte order."""
    if has_variable_length(values.dtype):
        return bool(values.tolist() == migrated.tolist())
    return bool(values.astype(migrated.dtype).tobytes() == migrated.tobytes())


def _sample(dtype: AnyDType, shape: tuple[int, ...]) -> Any:
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


def disagreements(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Find the differences between the Zarr v2 and Zarr v3 metadata of one array.

    Codecs are compared by what affects the values: their names, byte order and axis order.

    Parameters
    ----------
    old, new : dict
        The Zarr v2 and the Zarr v3 metadata.

    Yields
    ------
    str
        A property, and its value in each of the two.

    Raises
    ------
    Exception
        As in `v3_document`, if Zarr v3 can't express the Zarr v2 metadata.
    """
    documents: Any = (v3_document(old), new)
    store = zarr.storage.StorePath(zarr.storage.MemoryStore())
    of_v2, of_v3 = (
        _compared_properties(zarr.Array(zarr.AsyncArray(document, store))) for document in documents
    )
    for name, value in of_v2.items():
        if value != of_v3[name]:
            yield f"{name} is {value} in .zarray, {of_v3[name]} in zarr.json"


def _compared_properties(array: Any) -> dict[str, Any]:
    described = []
    for codec in array.metadata.codecs:
        document = codec.to_dict()
        settings = document.get("configuration", {})
        if isinstance(codec, BytesBytesCodec):
            settings = {}  # decoders do not need the compression level, for example
        text = ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
        described.append(f"{document['name'].removeprefix('numcodecs.')}({text})")
    index = (0,) * len(array.shape)
    fill_value = np.asarray(array.fill_value)
    return {
        "the shape": array.shape,
        "the chunk shape": array.chunks,
        "the data type": str(pack_dtype(array.dtype)),
        "the fill value": f"{fill_value} ({fill_value.tobytes().hex()})",
        "the key of the first chunk": array.metadata.encode_chunk_key(index),
        "the list of codecs": " ".join(described),
    }


def _byte_order(dtype: AnyDType) -> Endian | None:
    """Return the byte order of the numbers in a dtype, or None if they have none."""
    swapped = {">": "big", "<": "little", "=": NATIVE_ENDIAN}
    leaves = {swapped[leaf.byteorder] for leaf in leaf_dtypes(dtype) if has_byte_order(leaf)}
    if len(leaves) > 1:
        raise MixedByteOrderError(
            f"its fields have both byte orders ({dtype}), which Zarr v3 structures do not support"
        )
    return leaves.pop() if leaves else None  # type: ignore[return-value]


def _stored_order(codec: Bytes, dtype: AnyDType, filters: list[Any]) -> Endian | None:
    """Return the byte order in which the bytes codec of Zarr v2 stores the elements."""
    if codec.dtype is None:
        if codec.endian not in (None, NATIVE_ENDIAN):
            raise ValueError("the bytes codec has no dtype, so its byte order is unknown")
        return _byte_order(dtype)
    if not filters and pack_dtype(codec.dtype) != dtype:
        raise ValueError(
            f"the bytes codec decodes {codec.dtype}, but the array is of {dtype}: one of them is "
            "wrong"
        )
    return codec.endian


def _migrated_by_zarr(document: dict[str, Any]) -> dict[str, Any]:
    buffer = default_buffer_prototype().buffer
    raw = json.dumps(document).encode()
    store = zarr.storage.MemoryStore({".zarray": buffer.from_bytes(raw)})
    migrate_v2_to_v3(input_store=store)
    migrated: dict[str, Any] = document_at(store, "zarr.json")
    return migrated


def compare(at: zarr.storage.StorePath, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise ValueError unless an array's first chunk reads the same with both metadata."""
    documents: Any = (old, new)
    arrays: list[Any] = [zarr.Array(zarr.AsyncArray(document, at)) for document in documents]
    region = first_chunk(arrays[0])
    if region is None:
        return
    index = tuple(axis.start // n for axis, n in zip(region, arrays[0].chunks, strict=True))
    name = f"chunk {arrays[0].metadata.encode_chunk_key(index)}"
    try:
        values, migrated = (np.asarray(array[region]) for array in arrays)
    except Exception as error:
        raise ValueError(f"{name} can't be read: {describe_error(error)}") from error
    if not _are_same(values, migrated):
        raise ValueError(
            f"{name} would read different values as Zarr v3: {_change(values, migrated)}"
        )


def _change(values: Any, migrated: Any) -> str:
    """Return the first element that differs."""
    pairs = zip(values.ravel(), migrated.ravel(), strict=True)
    for k, (old, new) in enumerate(pairs):
        if not _are_same(np.asarray(old), np.asarray(new)):
            place = tuple(map(int, np.unravel_index(k, values.shape)))
            return f"its element {place} would be {new} instead of {old}"
    return "of another data type"
