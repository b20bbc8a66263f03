"""Check the chunks of an array for `check`: their lengths, decoding errors, invalid bools.

Chunks are decoded by zarr's own codecs, and take as much memory as they do in zarr.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
import zarr.dtype

from numcodecs_bytes._core.configuration import dtype_to_json
from numcodecs_bytes._core.dtypes import (
    AnyDType,
    fields_of,
    has_variable_length,
    leaf_dtypes,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes._tools.check_report import ArrayReport, Limits, count
from numcodecs_bytes._tools.hierarchy import (
    MAX_UNLISTED,
    Index,
    Listing,
    describe_error,
    grid_of,
    stored_chunks,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr_data_types import struct_of

# How much of a shard is decoded at a time, in bytes and in inner chunks.
BLOCK_BYTES, BLOCK_CHUNKS = 1 << 26, 1 << 12
# How many files that are not chunks are named.
MAX_NAMED = 3
_OF_ANY_TYPE = {
    *("bytes", "endian", "transpose", "sharding_indexed", "crc32c"),
    *("gzip", "zlib", "bz2", "lzma", "zstd", "lz4", "blosc"),
}


def is_of_any_type(codec: str) -> bool:
    """Whether a codec, by its name, treats uint8 like bool, and leaves the data type as it is."""
    return codec.removeprefix("numcodecs.") in _OF_ANY_TYPE


def check_chunks(
    array: Any, codecs: list[str], report: ArrayReport, limits: Limits, bar: Any
) -> tuple[str, int] | None:
    """Report the problems of an array's chunks, which the named codecs stored.

    Return the key and the length in bytes of the first chunk of two bytes or more, if any.
    """
    try:
        num_in_all = math.prod(grid_of(array))
    except NotImplementedError as error:
        report.notes.append(f"its chunks were not checked: {error}")
        return None
    if bar is not None:
        bar.total = (bar.total or 0) + num_in_all
        bar.refresh()
    is_alone = codecs in ([], ["bytes"], ["endian"])
    expected = math.prod(array.chunks) * _stored_item_size(array) if is_alone else None
    decoded = _array_to_decode(array, codecs, report, limits, is_alone=is_alone)
    listing = Listing()
    first: tuple[str, int] | None = None
    for index, key, size in itertools.islice(stored_chunks(array, listing), limits.max_chunks):
        report.num_chunks += 1
        if bar is not None:
            bar.update(1)
        if isinstance(size, int) and size >= 2:
            first = first or (key, size)
        problem = _problem_with_size(size, expected)
        if not problem and decoded is not None:
            problem = _problem_in(decoded, array.dtype, index)
        if problem:
            report.add_problem(f"chunk {key} {problem}")
    if bar is not None:
        bar.update(num_in_all - report.num_chunks)
    _report_listing(listing, num_in_all, report, is_cut=report.num_chunks == limits.max_chunks)
    return first


def _array_to_decode(
    array: Any, codecs: list[str], report: ArrayReport, limits: Limits, *, is_alone: bool
) -> Any:
    """Return the array as it is to be read; None if only the sizes of its chunks are checked."""
    has_bools = any(leaf.kind == "b" for leaf in leaf_dtypes(array.dtype))
    if is_alone and not has_bools:
        return None
    num_bytes = math.prod(array.chunks) * array.dtype.itemsize
    if num_bytes > limits.max_chunk_bytes:
        report.notes.append(
            f"its chunks were not decoded: they have {num_bytes} bytes each, the limit is "
            f"{limits.max_chunk_bytes}"
        )
        return None
    if has_bools and not all(map(is_of_any_type, codecs)):
        report.notes.append("its bools were not checked: a codec may need that data type")
        return array
    return _with_bytes_for_bools(array) if has_bools else array


def _problem_with_size(size: int | Exception, expected: int | None) -> str:
    """Return the problem with a chunk's size in bytes, or ""; encoded chunks expect None."""
    if isinstance(size, IsADirectoryError):
        return "is a folder, so zarr reads the fill value: remove it, or write the chunk again"
    if isinstance(size, Exception):
        return f"can't be read: {describe_error(size)}"
    if expected is None:
        return "" if size else "holds 0 bytes: it is truncated"
    if size == expected:
        return ""
    why = "it is truncated" if size < expected else "it has another shape or is compressed"
    return f"holds {size} bytes, expected {expected}: {why}"


def _report_listing(
    listing: Listing, num_in_all: int, report: ArrayReport, *, is_cut: bool
) -> None:
    """Report folders that can't be listed, how many chunks there are, and which other files."""
    for error in listing.errors:
        report.add_problem(f"a folder of chunks can't be listed: {describe_error(error)}")
    num_chunks, num_others = report.num_chunks, len(listing.others)
    if is_cut:
        report.notes.append(f"{num_chunks} of {num_in_all} chunks were checked")
    elif num_in_all > MAX_UNLISTED and not listing.is_listed:
        report.notes.append(
            f"{MAX_UNLISTED} of {num_in_all} chunks were checked: the store can't list them"
        )
    elif num_chunks < num_in_all:
        others = "were not found" if listing.errors else "read as the fill value"
        report.notes.append(f"{num_chunks} of {num_in_all} chunks are present; the others {others}")
    if num_others and not is_cut:
        are = "is not a chunk" if num_others == 1 else "are not chunks"
        names = [*listing.others[:MAX_NAMED], *["..."][: num_others - MAX_NAMED]]
        report.notes.append(
            f"{count(num_others, 'file')} {are} of the array, so zarr does not read "
            f"{'it' if num_others == 1 else 'them'}: {', '.join(names)}"
        )


def _stored_item_size(array: Any) -> int:
    if array.metadata.zarr_format == 2 and not array.filters:
        return int(array.dtype.itemsize)
    return stored_dtype(pack_dtype(array.dtype), "little").itemsize


def _problem_in(array: Any, dtype: AnyDType, index: Index) -> str:
    """Decode a chunk and return its problem, or ""; `dtype` may have bool, `array` has uint8."""
    num_invalid = 0
    try:
        for region in _blocks_of(array, index):
            elements = np.asarray(array[region])
            num_invalid += 0 if array.dtype == dtype else _count_invalid(elements, dtype)
    except Exception as error:  # noqa: BLE001 # damaged chunks raise anything
        return f"can't be read: {describe_error(error)}"
    if not num_invalid:
        return ""
    return (
        f"holds {num_invalid} bool{'s that are' if num_invalid > 1 else ' that is'} neither 0 nor "
        "1: read as true here, and unchanged by other libraries"
    )


def _blocks_of(array: Any, index: Index) -> Iterator[tuple[slice, ...]]:
    """Yield the regions of a chunk to decode at a time: some inner chunks of a large shard."""
    chunk_shape = array.shards or array.chunks
    block, num_left = list(array.chunks), BLOCK_CHUNKS
    for axis in reversed(range(0 if has_variable_length(array.dtype) else len(block))):
        num_fitting = BLOCK_BYTES // (math.prod(block) * max(array.dtype.itemsize, 1))
        num = max(min(num_fitting, num_left, chunk_shape[axis] // block[axis]), 1)
        block[axis] *= num
        num_left //= num
    axes = zip(index, chunk_shape, array.shape, block, strict=True)
    starts = [range(i * n, min((i + 1) * n, size), step) for i, n, size, step in axes]
    for start in itertools.product(*starts):
        yield tuple(slice(s, s + step) for s, step in zip(start, block, strict=True))


def _count_invalid(elements: Any, dtype: AnyDType) -> int:
    """Count bytes other than 0 and 1 in bool elements, which are uint8 in `elements`."""
    if dtype.subdtype is not None:
        return _count_invalid(elements, dtype.subdtype[0])
    if dtype.names is not None:
        return sum(_count_invalid(elements[name], f) for name, f in fields_of(dtype))
    return int(np.count_nonzero(elements > 1)) if dtype.kind == "b" else 0


def _with_bytes_for_bools(array: Any) -> Any:
    """Return the array with uint8 in place of bool."""
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
            struct_of(dtype) if dtype.names else zarr.dtype.parse_dtype("uint8", zarr_format=3)
        )
        document["data_type"] = data_type.to_json(zarr_format=3)
        document["fill_value"] = data_type.to_json_scalar(data_type.default_scalar(), zarr_format=3)
    return zarr.Array(zarr.AsyncArray(document, array.store_path))


def _taking_bytes(codec: Any, dtype: AnyDType) -> Any:
    """Return a codec of an array of `dtype`; a `Bytes` codec with uint8 in place of bool."""
    if not isinstance(codec, Bytes):
        return codec
    return Bytes(codec.endian, _bytes_for_bools(dtype if codec.dtype is None else codec.dtype))


def _bytes_for_bools(dtype: AnyDType) -> AnyDType:
    if dtype.subdtype is not None:
        return np.dtype((_bytes_for_bools(dtype.subdtype[0]), dtype.shape))
    if dtype.names is not None:
        return np.dtype([(name, _bytes_for_bools(f)) for name, f in fields_of(dtype)])
    return np.dtype("u1") if dtype.kind == "b" else dtype
