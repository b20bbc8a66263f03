"""python -m numcodecs_bytes check: what is amiss in the arrays of a Zarr hierarchy.

Reads, never writes. Of a chunk that the bytes codec alone has stored only the size is asked for.
Chunks that pass other codecs, too, and bools are read, one at a time: that is all it keeps.
"""

import contextlib
import itertools
import json
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
import zarr.abc.store
import zarr.storage
from zarr.core.sync import sync

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
# How much of a shard is read at a time, in bytes and in inner chunks.
READ_BYTES, MAX_INNER = 1 << 26, 1 << 12
# Codecs that take uint8 for bool.
_OF_ANY_TYPE = {
    *("bytes", "endian", "transpose", "sharding_indexed", "crc32c", "gzip", "zstd", "blosc"),
    *("zlib", "lz4", "bz2", "lzma"),
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


def check(store: zarr.abc.store.Store, bar: Any = None) -> Iterator[ArrayReport]:
    """Yield a report of each array in a store.

    Parameters
    ----------
    store : zarr.abc.store.Store
        Of any kind; it is only read.
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
                _check_array(zarr.storage.StorePath(store, path), document, report, bar)
            except Exception as error:  # noqa: BLE001 # the arrays after it are to be checked, too
                report.add_problem(f"it can't be checked: {describe(error)}")
        yield report


def _check_array(at: zarr.storage.StorePath, document: Any, report: ArrayReport, bar: Any) -> None:
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
        _compare_with_v2(document_at(at.store, join(at.path, ".zarray")), document, report)
        codecs = [name for name, *_ in _codecs_in(document["codecs"])]
    else:
        _check_v2_codecs(array, report)
        codecs = [codec.codec_id for codec in (*array.filters, *array.compressors)]
    _check_chunks(array, codecs, report, bar)


def _compare_with_v2(old: Any, document: dict[str, Any], report: ArrayReport) -> None:
    """Report what the metadata of Zarr v2 beside those of an array, if any, say differently."""
    if not isinstance(old, dict):
        return
    try:
        for disagreement in disagreements(old, document):
            report.add_problem(f".zarray and zarr.json disagree: {disagreement}")
    except MixedByteOrderError as error:
        report.add_problem(f".zarray and zarr.json disagree: {error}")
    except Exception as error:  # noqa: BLE001 # of codecs that have no counterpart, for one
        report.notes.append(f".zarray and zarr.json can't be compared: {describe(error)}")


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
        return f"{said}, nor does Zarr v3 (examples/v2_to_v3.py)" if is_v2 else said
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
    is_native = codec.endian == NATIVE_ENDIAN and dtype == dtype.newbyteorder("=")
    return codec.endian is not None and has_byte_order(dtype) and not is_native


def _check_endian(endian: str | None, dtype: AnyDType, report: ArrayReport) -> None:
    if endian is None and has_byte_order(dtype):
        report.add_problem(
            f'the bytes codec has no "endian", which {dtype} needs: some take it as little endian, '
            "others refuse it; add the one that it was written with"
        )
    elif endian is not None and not has_byte_order(dtype):
        report.notes.append(f'"endian" says nothing for {dtype}; it may be left out')


def _check_chunks(array: Any, codecs: list[str], report: ArrayReport, bar: Any) -> None:
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
    for batch in chunks_of(array, grid, bar):
        keys = [join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        sizes = sync(sizes_of(array.store, keys))
        for index, key, size in zip(batch, keys, sizes, strict=True):
            if size is None:
                continue
            report.num_chunks += 1
            if num_bytes not in (None, size):
                why = "it is cut off" if size < num_bytes else "of another shape, or compressed"
                report.add_problem(f"chunk {key} holds {size} bytes, expected {num_bytes}: {why}")
            elif readable is not None:
                for problem in _problems_in(readable, array.dtype, index):
                    report.add_problem(f"chunk {key} {problem}")
    _note_missing(array, math.prod(grid), report)


def _note_missing(array: Any, num_in_all: int, report: ArrayReport) -> None:
    if num_in_all > MAX_UNLISTED and not can_list(array):
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


def _problems_in(array: Any, dtype: AnyDType, index: tuple[int, ...]) -> Iterator[str]:
    """Yield what is wrong in a chunk of an array of dtype, which may have uint8 for bool."""
    chunk_shape = array.shards or array.chunks
    steps = _block_shape(chunk_shape, array.chunks, dtype.itemsize)
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
