"""python -m numcodecs_bytes check: what is amiss in the arrays of a Zarr hierarchy.

Reads, never writes. Of a chunk that the bytes codec alone has stored only the size is asked for.
Chunks that pass other codecs, too, and bools are read, one at a time: that is all it keeps, and
none may decode to more bytes than its elements have.
"""

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numcodecs.errors
import numpy as np
import zarr
import zarr.abc.store
import zarr.errors
import zarr.storage
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync

from numcodecs_bytes._bounded import bounded, max_encoded
from numcodecs_bytes._data_type import (
    NATIVE_ENDIAN,
    AnyDType,
    dtype_to_json,
    fields_of,
    has_byte_order,
    leaf_dtypes,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes._hierarchy import (
    MAX_UNLISTED,
    can_list,
    chunks_of,
    describe,
    document_at,
    find_arrays,
    join,
    sizes_of,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.migrate import MixedByteOrderError, disagreements
from numcodecs_bytes.zarr import BytesCodec
from numcodecs_bytes.zarr_data_types import _struct_of, parse_numpy_descr
from numcodecs_bytes.zarr_pipeline import PIPELINE, PartialRead, can_read_parts

MAX_LISTED = 10
# Three times as many are in memory: encoded, decoded, and as an array.
MAX_CHUNK_BYTES = 100_000_000
# How much of a shard is read at a time, in bytes and in inner chunks.
READ_BYTES, MAX_INNER = 1 << 26, 1 << 12
# Codecs that take uint8 for bool.
_COMPRESSORS = {"gzip", "zstd", "blosc", "zlib", "lz4", "bz2", "lzma"}
_OF_ANY_TYPE = {
    *("bytes", "endian", "transpose", "sharding_indexed", "crc32c"),
    *_COMPRESSORS,
    *(f"numcodecs.{name}" for name in _COMPRESSORS),
}
_LEGACY_DATA_TYPES = {"structured": "struct", "raw_bytes": "r8, r16, ..."}


@dataclass
class ArrayReport:
    """What was found of an array.

    Attributes
    ----------
    path : str
        In the store.
    data_type : str
        As NumPy calls it, "struct of 3 fields"; empty where zarr can't open the array.
    partial_reads : str
        "yes", or "no: " and why not.
    num_chunks : int
        Number of chunks, of shards in a sharded array, that were looked at.
    problems : list of str
        What is read wrongly, refused by others, or damaged; of chunks the first ten.
    num_problems : int
        Their number, also of those that are not listed.
    notes : list of str
        What may be left as it is.
    """

    path: str
    data_type: str = ""
    partial_reads: str = "no: it can't be opened"
    num_chunks: int = 0
    problems: list[str] = field(default_factory=list)
    num_problems: int = 0
    notes: list[str] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        """Count a problem, and list it where it is one of the first."""
        self.num_problems += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(problem)


@dataclass(frozen=True)
class Limits:
    """How much of each array is looked at.

    Attributes
    ----------
    max_chunks : int or None
        Number of chunks, of shards in a sharded array; None looks at all.
    max_chunk_bytes : int
        Chunks, and inner chunks of shards, that have more bytes when decoded are not decoded.
    """

    max_chunks: int | None = None
    max_chunk_bytes: int = MAX_CHUNK_BYTES


def check(
    store: zarr.abc.store.Store, limits: Limits | None = None, bar: Any = None
) -> Iterator[ArrayReport]:
    """Yield a report of each array in a store.

    Parameters
    ----------
    store : zarr.abc.store.Store
        Of any kind; it is only read.
    limits : Limits, optional
        How much of each array is looked at.
    bar : optional
        A progress bar as tqdm has it, of chunks.

    Yields
    ------
    ArrayReport
        Of each array as soon as it is checked.

    Examples
    --------
    >>> import zarr
    >>> store = zarr.storage.MemoryStore()
    >>> array = zarr.create_array(store, shape=4, chunks=2, dtype="i4", compressors=None)
    >>> array[:2] = 1
    >>> [(report.partial_reads, report.problems, report.notes) for report in check(store)]
    [('yes', [], ['1 of 2 chunks are present; the others read as the fill value'])]
    """
    for path, document in find_arrays(store):
        report = ArrayReport(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what zarr warns of is in the report, or not ours
            try:
                at = zarr.storage.StorePath(store, path)
                _check_array(at, document, report, limits or Limits(), bar)
            except Exception as error:  # noqa: BLE001 # the arrays after it are to be checked, too
                report.add_problem(f"it can't be checked: {describe(error)}")
        yield report


def _check_array(
    at: zarr.storage.StorePath, document: Any, report: ArrayReport, limits: Limits, bar: Any
) -> None:
    if isinstance(document, Exception):
        report.add_problem(f"its metadata can't be read: {describe(document)}")
        return
    try:
        array: Any = zarr.Array(zarr.AsyncArray(document, at))
    except Exception as error:  # noqa: BLE001 # whatever it is, the user is to know
        report.add_problem(_why_not_opened(document, error))
        return
    if 0 in _chunk_shape_in(document):
        report.add_problem("its chunks have a length of 0, expected at least 1")
        return
    names = array.dtype.names
    report.data_type = f"struct of {len(names)} fields" if names else str(array.dtype)
    report.partial_reads = _partial_reads(array)
    if array.metadata.zarr_format == 3:
        _check_v3_codecs(array, document, report)
        _compare_with_v2(at, document, report)
        codecs = [name for name, *_ in _codecs_in(document["codecs"])]
    else:
        _check_v2_codecs(array, report)
        _v2_document(at, ".zattrs", report)
        codecs = [codec.codec_id for codec in (*array.filters, *array.compressors)]
    _check_chunks(array, codecs, report, limits, bar)


def _compare_with_v2(
    at: zarr.storage.StorePath, document: dict[str, Any], report: ArrayReport
) -> None:
    """Report what the metadata of Zarr v2 beside those of an array, if any, say differently."""
    old = _v2_document(at, ".zarray", report)
    if old is None:
        return
    _v2_document(at, ".zattrs", report)
    try:
        ArrayV2Metadata.from_dict(old)
    except (numcodecs.errors.UnknownCodecError, zarr.errors.UnknownCodecError) as error:
        report.notes.append(f".zarray and zarr.json can't be compared: {describe(error)}")
        return
    except Exception as error:  # noqa: BLE001 # as where it is opened
        report.add_problem(f".zarray, beside zarr.json, can't be opened: {describe(error)}")
        return
    try:
        for disagreement in disagreements(old, document):
            report.add_problem(f".zarray and zarr.json disagree: {disagreement}")
    except MixedByteOrderError as error:
        report.add_problem(f".zarray and zarr.json disagree: {error}")
    except Exception as error:  # noqa: BLE001 # of codecs that have no counterpart, for one
        report.notes.append(f".zarray and zarr.json can't be compared: {describe(error)}")


def _v2_document(at: zarr.storage.StorePath, name: str, report: ArrayReport) -> Any:
    """Return a document of Zarr v2, None where there is none, or a broken one, which is reported.

    What a store does not give, an object store without listing for one, is no problem of an array.
    """
    document = document_at(at.store, join(at.path, name))
    if isinstance(document, TypeError | ValueError):
        report.add_problem(f"{name} can't be read: {describe(document)}")
    return document if isinstance(document, dict) else None


def _chunk_shape_in(document: dict[str, Any]) -> Any:
    if document["zarr_format"] == 2:
        return document["chunks"]
    return document["chunk_grid"].get("configuration", {}).get("chunk_shape", ())


def _why_not_opened(document: dict[str, Any], error: Exception) -> str:
    data_type = document.get("data_type")
    if isinstance(data_type, list):
        with contextlib.suppress(TypeError, ValueError):
            struct = parse_numpy_descr(data_type).to_json(zarr_format=3)
            return (
                "its data type is a list of fields, as NumPy writes it, which zarr refuses: "
                f'replace it by {json.dumps(struct)}, and say its byte order as "endian" of the '
                "bytes codec (examples/numpy_descr.py)"
            )
    return f"zarr can't open it: {describe(error)}"


def _partial_reads(array: Any) -> str:
    if array.metadata.zarr_format == 2:
        codecs = (*array.filters, *array.compressors)
        names = [codec.codec_id for codec in codecs]
        is_plain = False
    else:
        codecs = array.metadata.codecs
        names = [codec.to_dict()["name"] for codec in codecs]
        is_plain = isinstance(codecs[0], BytesCodec)
    others = [name for name in names if name != "bytes"]
    if others == ["sharding_indexed"]:
        return "no: of a shard, zarr reads whole inner chunks"
    can_be_read = can_read_parts(array)
    if can_be_read and isinstance(array.async_array.codec_pipeline, PartialRead):
        return "yes"
    if array.metadata.zarr_format == 3 and not others:
        codec = type(codecs[0])
        return "yes" if is_plain else f"no: {codec.__module__}.{codec.__qualname__} is chosen"
    if can_be_read:
        said = f"no: zarr's own codec pipeline needs whole chunks; {PIPELINE} does not"
        is_v2 = array.metadata.zarr_format == 2
        return f"{said}, nor does Zarr v3 (migrate)" if is_v2 else said
    return f"no: {', '.join(others or names)} needs whole chunks"


def _codecs_in(
    codecs: list[Any], *, is_index: bool = False
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield name and configuration of codecs in metadata, and whether they are of an index."""
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec["name"]
        configuration = {} if isinstance(codec, str) else codec.get("configuration") or {}
        yield name, configuration, is_index
        if name == "sharding_indexed":
            yield from _codecs_in(configuration.get("codecs", []), is_index=is_index)
            yield from _codecs_in(configuration.get("index_codecs", []), is_index=True)


def _check_v3_codecs(array: Any, document: dict[str, Any], report: ArrayReport) -> None:
    data_type = document["data_type"]
    name = data_type["name"] if isinstance(data_type, dict) else data_type
    if name in _LEGACY_DATA_TYPES:
        report.notes.append(
            f"data type {name} is of zarr-python alone; the registered one is "
            f"{_LEGACY_DATA_TYPES[name]}"
        )
    is_filtered = False  # the elements may be others, then
    for name, configuration, is_index in _codecs_in(document["codecs"]):
        if name == "endian":
            report.notes.append('codec "endian" is called "bytes" since version 1.0')
        if name not in ("bytes", "endian"):
            is_filtered = is_filtered or name not in _OF_ANY_TYPE
        elif is_index or not is_filtered:
            dtype = np.dtype("u8") if is_index else array.dtype
            _check_endian(configuration.get("endian"), dtype, report)


def _check_v2_codecs(array: Any, report: ArrayReport) -> None:
    for position, codec in enumerate((*array.filters, *array.compressors)):
        if not isinstance(codec, Bytes):
            continue
        dtype = array.dtype if codec.dtype is None else codec.dtype
        _check_endian(codec.endian, dtype, report)
        if position:
            continue  # what it stores is what the filter before made
        if pack_dtype(dtype) != pack_dtype(array.dtype):
            report.add_problem(
                f"the bytes codec decodes {dtype_to_json(dtype)!r}, which is read as the array's "
                f"{dtype_to_json(array.dtype)!r}: wrong values, unless both are the same"
            )
        elif codec.dtype is None and _needs_dtype(codec, dtype):
            report.add_problem(
                f"the bytes codec has no dtype, which it needs to store {dtype} as "
                f'{codec.endian} endian: add "dtype": {dtype_to_json(dtype)!r}'
            )


def _needs_dtype(codec: Bytes, dtype: AnyDType) -> bool:
    """Whether the bytes codec of a Zarr v2 array of dtype swaps, or leaves what is not native."""
    if codec.endian in (None, NATIVE_ENDIAN):
        return codec.endian is not None and dtype != dtype.newbyteorder("=")
    return True


def _check_endian(endian: str | None, dtype: AnyDType, report: ArrayReport) -> None:
    if endian is None and has_byte_order(dtype):
        report.add_problem(
            f'the bytes codec has no "endian", which {dtype} needs: some take it as little endian, '
            "others refuse it; add the one that it was written with"
        )
    elif endian is not None and not has_byte_order(dtype):
        report.notes.append(f'"endian" says nothing for {dtype}; it may be left out')


def _check_chunks(
    array: Any, codecs: list[str], report: ArrayReport, limits: Limits, bar: Any
) -> None:
    try:
        chunk_shape = array.shards or array.chunks
    except NotImplementedError as error:
        report.notes.append(f"its chunks were not looked at: {error}")
        return
    grid = [-(-size // n) for size, n in zip(array.shape, chunk_shape, strict=True)]
    is_alone = codecs in ([], ["bytes"], ["endian"])
    num_bytes = math.prod(chunk_shape) * _stored_item_size(array) if is_alone else None
    readable = None if is_alone else array
    if any(leaf.kind == "b" for leaf in leaf_dtypes(array.dtype)):
        readable = _with_bytes_for_bools(array, codecs, report)
    if readable is not None:
        readable = _within(limits.max_chunk_bytes, readable, report)
    for index, key, size in itertools.islice(_chunks_present(array, grid, bar), limits.max_chunks):
        report.num_chunks += 1
        problem = _wrong_length(size, num_bytes)
        if problem is not None:
            report.add_problem(f"chunk {key} {problem}")
        elif readable is not None:
            for problem in _problems_in(readable, array.dtype, index, size, limits):
                report.add_problem(f"chunk {key} {problem}")
    _note_missing(array, math.prod(grid), report, limits)


def _chunks_present(
    array: Any, grid: list[int], bar: Any
) -> Iterator[tuple[tuple[int, ...], str, int]]:
    """Yield index, key and size in bytes of each chunk that the store has."""
    for batch in chunks_of(array, grid, bar):
        keys = [join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        for index, key, size in zip(batch, keys, sync(sizes_of(array.store, keys)), strict=True):
            if size is not None:
                yield index, key, size


def _within(max_bytes: int, array: Any, report: ArrayReport) -> Any:
    """Return the same array with compressors that are bounded, None where chunks are too large."""
    num_bytes = math.prod(array.chunks) * array.dtype.itemsize
    if num_bytes > max_bytes:
        report.notes.append(
            f"its chunks were not decoded: of {num_bytes} bytes each, the limit is {max_bytes}"
        )
        return None
    return zarr.Array(zarr.AsyncArray(bounded(array.metadata, max_bytes), array.store_path))


def _wrong_length(size: int, expected: int | None) -> str | None:
    """Return what is wrong with a chunk's size in bytes; None is expected of what is encoded."""
    if expected is None:
        return "holds 0 bytes: it is cut off" if size == 0 else None
    if size == expected:
        return None
    why = "it is cut off" if size < expected else "of another shape, or compressed"
    return f"holds {size} bytes, expected {expected}: {why}"


def _note_missing(array: Any, num_in_all: int, report: ArrayReport, limits: Limits) -> None:
    if report.num_chunks == limits.max_chunks:
        report.notes.append(f"{report.num_chunks} of {num_in_all} chunks were looked at")
    elif num_in_all > MAX_UNLISTED and not can_list(array):
        report.notes.append(
            f"{MAX_UNLISTED} of {num_in_all} chunks were looked at: the store can't list them"
        )
    elif report.num_chunks < num_in_all:
        report.notes.append(
            f"{report.num_chunks} of {num_in_all} chunks are present; the others read as the fill "
            "value"
        )


def _stored_item_size(array: Any) -> int:
    if array.metadata.zarr_format == 2 and not array.filters:
        return int(array.dtype.itemsize)
    return stored_dtype(pack_dtype(array.dtype), "little").itemsize


def _problems_in(
    array: Any, dtype: AnyDType, index: tuple[int, ...], size: int, limits: Limits
) -> Iterator[str]:
    """Yield what is wrong in a chunk of an array of dtype, which may have uint8 for bool."""
    chunk_shape = array.shards or array.chunks
    steps = _block_shape(chunk_shape, array.chunks, dtype.itemsize)
    if size > max_encoded(limits.max_chunk_bytes) and steps == chunk_shape:
        yield f"was not read: it takes {size} bytes, the limit is {limits.max_chunk_bytes}"
        return
    axes = zip(index, chunk_shape, array.shape, steps, strict=True)
    starts = [range(i * n, min((i + 1) * n, size), step) for i, n, size, step in axes]
    num_invalid = 0
    for start in itertools.product(*starts):
        region = tuple(slice(s, s + step) for s, step in zip(start, steps, strict=True))
        try:
            elements = np.asarray(array[region])
        except Exception as error:  # noqa: BLE001 # as where it is opened
            yield f"can't be read: {describe(error)}"
            break
        num_invalid += 0 if array.dtype == dtype else _count_invalid(elements, dtype)
    if num_invalid:
        yield (
            f"holds {num_invalid} bools that are neither 0 nor 1: they are read as true, and by "
            "other libraries as they are"
        )


def _block_shape(
    chunk_shape: tuple[int, ...], inner_shape: tuple[int, ...], item_size: int
) -> tuple[int, ...]:
    """Return the shape of what to read at a time: of large shards, some inner chunks."""
    block, num_left = list(inner_shape), MAX_INNER
    for axis in reversed(range(len(block))):
        num_fitting = READ_BYTES // (math.prod(block) * max(item_size, 1))
        num = max(min(num_fitting, num_left, chunk_shape[axis] // block[axis]), 1)
        block[axis] *= num
        num_left //= num
    return tuple(block)


def _count_invalid(elements: Any, dtype: AnyDType) -> int:
    """Return the number of bools that are none, in elements with uint8 for bool."""
    if dtype.subdtype is not None:
        return _count_invalid(elements, dtype.subdtype[0])
    if dtype.names is not None:
        return sum(_count_invalid(elements[name], f) for name, f in fields_of(dtype))
    return int(np.count_nonzero(elements > 1)) if dtype.kind == "b" else 0


def _with_bytes_for_bools(array: Any, codecs: list[str], report: ArrayReport) -> Any:
    """Return the same array with uint8 for bool, as it is where its codecs do not take that."""
    if set(codecs) - _OF_ANY_TYPE:
        report.notes.append("its bools were not looked at: a codec takes nothing else")
        return array
    dtype = _bytes_for_bools(pack_dtype(array.dtype))
    document: Any = dict(array.metadata.to_dict())
    if document["zarr_format"] == 2:
        document |= {"dtype": dtype_to_json(dtype), "fill_value": None}
        document["filters"] = [_taking_bytes(f, array.dtype) for f in array.filters] or None
        document["compressor"] = next(
            (_taking_bytes(c, array.dtype) for c in array.compressors), None
        )
    else:
        data_type: Any = (
            _struct_of(dtype) if dtype.names else zarr.dtype.parse_dtype("uint8", zarr_format=3)
        )
        document["data_type"] = data_type.to_json(zarr_format=3)
        document["fill_value"] = data_type.to_json_scalar(data_type.default_scalar(), zarr_format=3)
    return zarr.Array(zarr.AsyncArray(document, array.store_path))


def _taking_bytes(codec: Any, dtype: AnyDType) -> Any:
    """Return a codec of an array of dtype as it is, the bytes codec with uint8 for bool."""
    if not isinstance(codec, Bytes):
        return codec
    return Bytes(codec.endian, _bytes_for_bools(dtype if codec.dtype is None else codec.dtype))


def _bytes_for_bools(dtype: AnyDType) -> AnyDType:
    if dtype.subdtype is not None:
        return np.dtype((_bytes_for_bools(dtype.subdtype[0]), dtype.shape))
    if dtype.names is not None:
        return np.dtype([(name, _bytes_for_bools(f)) for name, f in fields_of(dtype)])
    return np.dtype("u1") if dtype.kind == "b" else dtype
