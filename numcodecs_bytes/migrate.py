"""python -m numcodecs_bytes migrate: add Zarr v3 metadata to Zarr v2, without touching chunks.

zarr's own `migrate_v2_to_v3` converts filters and compressors. What it gets wrong or does not
support is done here: the byte order of every data type, the codec `bytes` as a filter or
compressor, structures, dimension names, consolidated metadata, and hierarchies that can be migrated
only in part.
"""

import base64
import json
import math
import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.abc.store
import zarr.storage
from zarr.abc.codec import BytesBytesCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync
from zarr.metadata.migrate_v3 import migrate_v2_to_v3

from numcodecs_bytes._dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    Endian,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    pack_dtype,
)
from numcodecs_bytes._hierarchy import (
    describe,
    document_at,
    first_chunk,
    join,
    names_in,
    was_visited,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr_data_types import struct_of

_VARIABLE_LENGTH = ("vlen-utf8", "vlen-bytes")  # filters of Zarr v2 that are also codecs of Zarr v3
_DIMENSIONS = "_ARRAY_DIMENSIONS"  # the attribute with xarray's dimension names in Zarr v2


@dataclass
class NodeReport:
    """The outcome for an array or a group.

    Attributes
    ----------
    path : str
        Path of the node in the store.
    kind : {'array', 'group'}
        Kind of the node.
    status : {'migrated', 'to be migrated', 'Zarr v3 already', 'refused'}
        The outcome; "to be migrated" only in a dry run.
    reasons : list of str
        Why it was refused.
    """

    path: str
    kind: str
    status: str
    reasons: list[str] = field(default_factory=list)


class MixedByteOrderError(ValueError):
    """A structure has fields of both byte orders, which Zarr v3 metadata can't express."""


class _UnwritableError(OSError):
    """The store can't be written, so the migration stops."""


def migrate(
    store: zarr.abc.store.Store, *, dry_run: bool = False, overwrite: bool = False
) -> Iterator[NodeReport]:
    """Write Zarr v3 metadata next to Zarr v2 metadata, and report the outcome for each node.

    Chunks and Zarr v2 metadata are not changed. An array is migrated only if two chunks read the
    same with both metadata: a small one that is written as Zarr v2 in memory, and the first one of
    the array itself. The Zarr v3 metadata of a group hide all nodes below it that are still Zarr
    v2, so a group is migrated after all nodes below it, or not at all.

    Parameters
    ----------
    store : zarr.abc.store.Store
        Where to read and write.
    dry_run : bool
        Whether to write nothing.
    overwrite : bool
        Whether to replace existing Zarr v3 metadata that are different.

    Yields
    ------
    NodeReport
        The outcome for each array and group, children before their parents.

    Raises
    ------
    ValueError
        If the store is read-only, or can't list its contents.
    OSError
        If the store can't be written.
    """
    if store.read_only and not dry_run:
        raise ValueError("the store is read-only")
    if not store.supports_listing:
        raise ValueError("the store can't list its contents, so nodes might be missed")
    refused: list[str] = []
    written: list[str] = []
    for path, documents in reversed(list(_find_nodes(store))):
        kind = "array" if ".zarray" in documents else "group"
        status, reasons = "to be migrated" if dry_run else "migrated", []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about data types without a specification
                _refuse_to_hide(_below(path, refused) if kind == "group" else [])
                document = _convert(store, path, documents)
                is_changed = bool(_below(path, written))
                if _is_written(documents, document, is_changed=is_changed, overwrite=overwrite):
                    status = "Zarr v3 already"
                elif not dry_run:
                    _write(store, path, document, documents)
                if status != "Zarr v3 already":
                    written.append(path)
        except _UnwritableError:
            raise
        except Exception as error:  # noqa: BLE001 # the other nodes must still be migrated
            status, reasons = "refused", [describe(error)]
            refused.append(path)
        if status != "Zarr v3 already" or len(documents) > 1:
            yield NodeReport(path, kind, status, reasons)


def _refuse_to_hide(below: list[str]) -> None:
    if below:
        raise ValueError(
            "its Zarr v3 metadata would hide nodes below it that could not be migrated: "
            f"{', '.join(sorted(below))}"
        )


def _is_written(
    documents: dict[str, Any], document: Any, *, is_changed: bool, overwrite: bool
) -> bool:
    """Whether a node's Zarr v3 document exists and, if it is consolidated, is up to date."""
    found = documents.get("zarr.json")
    if found is None:
        return False
    if _without_consolidated(found) != document:
        if not overwrite:
            raise ValueError(
                "zarr.json exists and differs from what would be written; --overwrite replaces it"
            )
        return False
    is_consolidated = "consolidated_metadata" in found
    return not is_changed if is_consolidated else ".zmetadata" not in documents


def _below(path: str, others: list[str]) -> list[str]:
    return [other for other in others if other != path and (not path or f"{path}/" in f"{other}/")]


def _find_nodes(store: zarr.abc.store.Store) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and metadata documents of each Zarr v2 node, parents before their children.

    Also those of Zarr v3 groups with consolidated metadata.
    """
    paths, seen = [""], set[Path]()
    while paths:
        path = paths.pop()
        if was_visited(store, path, seen):
            continue
        names = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
        all_of_them = {name: document_at(store, join(path, name)) for name in names}
        found = {name: document for name, document in all_of_them.items() if document is not None}
        new: Any = found.get("zarr.json")
        is_object = isinstance(new, dict)
        if ".zarray" in found or ".zgroup" in found:
            yield path, found
        elif is_object and "consolidated_metadata" in new:
            yield path, {"zarr.json": new}
        is_array = ".zarray" in found or (
            ".zgroup" not in found and is_object and new.get("node_type") == "array"
        )
        if not is_array:
            listed = names_in(store, path)
            if ".zgroup" in found and ".zgroup" not in listed:
                raise ValueError("the store does not list its contents, so nodes might be missed")
            paths += [join(path, name) for name in listed if name not in names]


def _convert(store: zarr.abc.store.Store, path: str, documents: dict[str, Any]) -> dict[str, Any]:
    """Return the Zarr v3 document of a node, or raise the error that prevents its migration."""
    for document in documents.values():
        if isinstance(document, Exception):
            raise document
    if ".zarray" not in documents and ".zgroup" not in documents:
        return _without_consolidated(documents["zarr.json"])
    attributes = documents.get(".zattrs", {})
    if ".zarray" not in documents:
        return {"attributes": attributes, "zarr_format": 3, "node_type": "group"}
    document = v3_document(documents[".zarray"], attributes)
    _compare(zarr.storage.StorePath(store, path), documents[".zarray"], document)
    return document


def v3_document(document: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
    """Return Zarr v3 metadata with which the chunks of a Zarr v2 array read the same.

    Parameters
    ----------
    document : dict
        The Zarr v2 metadata of the array, ``.zarray``.
    attributes : dict
        Its attributes, ``.zattrs``.

    Returns
    -------
    dict
        The contents of ``zarr.json``.

    Raises
    ------
    ValueError
        If Zarr v3 can't express the array's metadata.
    Exception
        Whatever zarr raises for codecs that it can't migrate.
    """
    metadata: Any = ArrayV2Metadata.from_dict(document)
    dtype = pack_dtype(metadata.dtype.to_native_dtype())
    filters, compressor = list(metadata.filters or ()), metadata.compressor
    vlen_codec = filters.pop() if filters and filters[-1].codec_id in _VARIABLE_LENGTH else None
    endian = None if vlen_codec else _byte_order(dtype)
    has_bytes_codec = isinstance(compressor, Bytes) or any(isinstance(f, Bytes) for f in filters)
    if isinstance(compressor, Bytes):
        endian, compressor = _stored_order(compressor, dtype, filters), None
    elif filters and isinstance(filters[-1], Bytes):
        endian = _stored_order(filters.pop(), dtype, filters)
    if any(isinstance(codec, Bytes) for codec in filters):
        raise ValueError("another filter follows the filter bytes, whose output is not an array")
    settings = {
        "filters": [codec.get_config() for codec in filters] or None,
        "compressor": compressor and compressor.get_config(),
    }
    if document.get("fill_value") is None:  # zarr's own tool would turn None into a value
        data_type = metadata.dtype
        default = data_type.default_scalar()
        settings["fill_value"] = data_type.to_json_scalar(default, zarr_format=2)
    # zarr's own tool ignores the byte order of structures and rejects variable-length strings, so
    # it gets raw bytes instead.
    is_unsupported = bool(dtype.names or vlen_codec)
    if is_unsupported:
        zeros = base64.b64encode(bytes(dtype.itemsize)).decode()
        settings |= {"dtype": f"|V{dtype.itemsize}", "fill_value": zeros}
    migrated = _migrated_by_zarr(document | settings)
    if is_unsupported:
        data_type = struct_of(dtype) if dtype.names else metadata.dtype
        has_no_fill_value = document.get("fill_value") is None
        scalar = _missing_element(document) if has_no_fill_value else metadata.fill_value
        if dtype.names:
            scalar = np.asarray(scalar).astype(data_type.to_native_dtype())[()]
        migrated["data_type"] = data_type.to_json(zarr_format=3)
        migrated["fill_value"] = data_type.to_json_scalar(scalar, zarr_format=3)
    # The output of filters may have another byte order than the array, so both are tried.
    candidates = [endian, *(["little", "big"] if filters and not has_bytes_codec else [])]
    name = vlen_codec.codec_id if vlen_codec else "bytes"
    for candidate in candidates:
        has_order = candidate is not None and (filters or has_byte_order(dtype))
        configuration = {"configuration": {"endian": candidate}} if has_order else {}
        serializer = {"name": name} | configuration
        codecs = [serializer if codec["name"] == "bytes" else codec for codec in migrated["codecs"]]
        if _reads_the_same(document, migrated | {"codecs": codecs}, dtype):
            fill_value = None if document.get("fill_value") is None else metadata.fill_value
            return _with_names(migrated | {"codecs": codecs}, attributes, fill_value)
    raise ValueError("zarr's Zarr v3 codecs do not read what its Zarr v2 codecs write")


def _fill_value_for_xarray(value: Any) -> dict[str, Any]:
    """Return the attribute that makes xarray mask a number in Zarr v3 like the Zarr v2 fill value.

    xarray has no such attribute for text.
    """

    def encoded(number: Any) -> str:
        return base64.standard_b64encode(struct.pack("<d", number)).decode()

    kind = np.asarray(value).dtype.kind
    encode: dict[str, Callable[[Any], Any]] = {
        "b": bool,
        "i": int,
        "u": int,
        "f": encoded,
        "c": lambda number: [encoded(number.real), encoded(number.imag)],
    }
    return {"_FillValue": encode[kind](value)} if kind in encode else {}


def _with_names(
    migrated: dict[str, Any], attributes: dict[str, Any], fill_value: Any
) -> dict[str, Any]:
    """Add the attributes to a document; in Zarr v3, dimension names are not an attribute."""
    names: Any = attributes.get(_DIMENSIONS)
    are_names = isinstance(names, list) and all(isinstance(n, str | None) for n in names)
    if are_names and len(names) == len(migrated["shape"]):
        attributes = {name: value for name, value in attributes.items() if name != _DIMENSIONS}
        if fill_value is not None and "_FillValue" not in attributes:
            attributes |= _fill_value_for_xarray(fill_value)
        migrated = migrated | {"dimension_names": names}
    return migrated | {"attributes": attributes}


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
    documents: Any = (v3_document(old, {}), new)
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


def _compare(at: zarr.storage.StorePath, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise ValueError unless an array's first chunk reads the same with both metadata."""
    documents: Any = (old, new)
    arrays: list[Any] = [zarr.Array(zarr.AsyncArray(document, at)) for document in documents]
    region = first_chunk(arrays[0])
    if region is None:
        return
    values, migrated = (np.asarray(array[region]) for array in arrays)
    if not _are_same(values, migrated):
        raise ValueError("its first chunk would read different values as Zarr v3")


def _without_consolidated(document: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k != "consolidated_metadata"}


def _write(
    store: zarr.abc.store.Store, path: str, document: Any, documents: dict[str, Any]
) -> None:
    """Write a Zarr v3 document; undo that if the metadata below it can't be consolidated."""
    before = documents.get("zarr.json")
    consolidates = ".zmetadata" in documents or "consolidated_metadata" in (before or ())
    key = join(path, "zarr.json")

    def put(what: Any) -> None:
        raw = json.dumps(what, indent=2).encode()
        sync(store.set(key, default_buffer_prototype().buffer.from_bytes(raw)))

    try:
        put(document)
    except OSError as error:
        raise _UnwritableError(f"{key} can't be written: {describe(error)}") from error
    if not consolidates:
        return
    try:
        zarr.consolidate_metadata(store, path=path, zarr_format=3)
    except BaseException:
        if before is None:
            sync(store.delete(key))
        else:
            put(before)
        raise
