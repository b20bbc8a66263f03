"""Check the chunks of an array for `check`: their lengths, decoding errors, invalid bools."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
import zarr.dtype
from zarr.core.sync import sync

from numcodecs_bytes._core.configuration import dtype_to_json
from numcodecs_bytes._core.dtypes import (
    AnyDType,
    fields_of,
    has_variable_length,
    leaf_dtypes,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._tools.bounded_compressors import (
    COMPRESSORS,
    LimitExceededError,
    bounded,
    max_encoded,
)
from numcodecs_bytes._tools.check_report import ArrayReport, Limits, count
from numcodecs_bytes._tools.hierarchy import (
    MAX_UNLISTED,
    Listing,
    chunks_of,
    describe_error,
    join,
    sizes_of,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr_data_types import struct_of
from numcodecs_bytes.zarr_pipeline import stored_as

# How much of a shard is read at a time, in bytes and in inner chunks.
READ_BYTES, MAX_INNER = 1 << 26, 1 << 12
# Codecs that treat uint8 like bool.
CODECS_OF_ANY_TYPE = {
    *("bytes", "endian", "transpose", "sharding_indexed", "crc32c"),
    *COMPRESSORS,
    *(f"numcodecs.{name}" for name in COMPRESSORS),
}


def check_chunks(
    array: Any, codecs: list[str], report: ArrayReport, limits: Limits, bar: Any
) -> tuple[str, int] | None:
    """Add the problems of an array's chunks, which the named codecs stored, to a report.

    Return the key in the store and the size in bytes of the first chunk that has 2 bytes or more
    and is not too large to be read whole; None if there is none.
    """
    try:
        chunk_shape = array.shards or array.chunks
    except NotImplementedError as error:
        report.notes.append(f"its chunks were not checked: {error}")
        return None
    grid = [-(-size // n) for size, n in zip(array.shape, chunk_shape, strict=True)]
    is_alone = codecs in ([], ["bytes"], ["endian"])
    num_bytes = math.prod(chunk_shape) * _stored_item_size(array) if is_alone else None
    readable = _readable(array, codecs, report, limits, is_alone=is_alone)
    full_bytes, num_full = _bytes_of_full_shard(array), 0
    listing = Listing()
    undecoded: list[str] = []
    first: tuple[str, int] | None = None
    present = _chunks_present(array, grid, bar, listing)
    for index, key, size in itertools.islice(present, limits.max_chunks):
        report.num_chunks += 1
        if isinstance(size, Exception):
            report.add_problem(f"chunk {key} can't be read: {describe_error(size)}")
            continue
        num_full += size == full_bytes
        first = first or ((key, size) if size >= 2 else None)  # a store may send all
        problem = _wrong_length(size, num_bytes)
        if problem is not None:
            report.add_problem(f"chunk {key} {problem}")
        elif readable is not None:
            try:
                for problem in _problems_in(readable, array.dtype, index, size, limits):
                    report.add_problem(f"chunk {key} {problem}")
            except LimitExceededError as error:
                undecoded.append(f"chunk {key}: {error}")
    if undecoded:
        report.notes.append(f"chunks that were not decoded: {len(undecoded)}; {undecoded[0]}")
    _add_listing(listing, math.prod(grid), num_full, report, limits)
    return first


def _readable(
    array: Any, codecs: list[str], report: ArrayReport, limits: Limits, *, is_alone: bool
) -> Any:
    """Return the array as it is to be read; None if only the sizes of its chunks are checked."""
    readable = None if is_alone else array
    if any(leaf.kind == "b" for leaf in leaf_dtypes(array.dtype)):
        readable = _with_bytes_for_bools(array, codecs, report)
    return None if readable is None else _within(limits.max_chunk_bytes, readable, report)


def _bytes_of_full_shard(array: Any) -> int | None:
    """Return the length of a shard with all of its inner chunks, if these are uncompressed."""
    try:
        stored = stored_as(array)
    except Exception:  # noqa: BLE001 # metadata may say anything; what is wrong is found elsewhere
        return None
    return stored.num_bytes + stored.index_bytes if isinstance(stored, Shard) else None


def _chunks_present(
    array: Any, grid: list[int], bar: Any, listing: Listing
) -> Iterator[tuple[tuple[int, ...], str, int | Exception]]:
    """Yield the index and key of each chunk that exists, and its size in bytes or an error."""
    for batch in chunks_of(array, grid, bar, listing):
        keys = [join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        for index, key, size in zip(batch, keys, sync(sizes_of(array.store, keys)), strict=True):
            if size is not None:
                yield index, key, size


def _within(max_bytes: int, array: Any, report: ArrayReport) -> Any:
    """Return the array with limited compressors, or None if its chunks are too large."""
    num_bytes = math.prod(array.chunks) * array.dtype.itemsize
    if num_bytes > max_bytes:
        report.notes.append(
            f"its chunks were not decoded: they have {num_bytes} bytes each, the limit is "
            f"{max_bytes}"
        )
        return None
    return zarr.Array(zarr.AsyncArray(bounded(array.metadata, max_bytes), array.store_path))


def _wrong_length(size: int, expected: int | None) -> str | None:
    """Return the problem with a chunk's size in bytes, or None; encoded chunks expect None."""
    if expected is None:
        return "holds 0 bytes: it is truncated" if size == 0 else None
    if size == expected:
        return None
    why = "it is truncated" if size < expected else "it has another shape or is compressed"
    return f"holds {size} bytes, expected {expected}: {why}"


def _add_listing(
    listing: Listing, num_in_all: int, num_full: int, report: ArrayReport, limits: Limits
) -> None:
    """Report folders that can't be listed, how many chunks there are, and which other files."""
    for error in listing.errors:
        report.add_problem(f"a folder of chunks can't be listed: {describe_error(error)}")
    is_cut_short = report.num_chunks == limits.max_chunks
    if is_cut_short:
        report.notes.append(f"{report.num_chunks} of {num_in_all} chunks were checked")
    elif num_in_all > MAX_UNLISTED and not listing.is_listed:
        report.notes.append(
            f"{MAX_UNLISTED} of {num_in_all} chunks were checked: the store can't list them"
        )
    elif report.num_chunks < num_in_all:
        others = "were not found" if listing.errors else "read as the fill value"
        report.notes.append(
            f"{report.num_chunks} of {num_in_all} chunks are present; the others {others}"
        )
    if listing.num_others and not is_cut_short:
        are = "is not a chunk" if listing.num_others == 1 else "are not chunks"
        names = [*listing.others, *["..."][: listing.num_others - len(listing.others)]]
        report.notes.append(
            f"{count(listing.num_others, 'file')} {are} of the array, so zarr does not read "
            f"{'it' if listing.num_others == 1 else 'them'}: {', '.join(names)}"
        )
    if num_full:
        report.notes.append(f"{num_full} of {report.num_chunks} shards have their full length")


def _stored_item_size(array: Any) -> int:
    if array.metadata.zarr_format == 2 and not array.filters:
        return int(array.dtype.itemsize)
    return stored_dtype(pack_dtype(array.dtype), "little").itemsize


def _problems_in(
    array: Any, dtype: AnyDType, index: tuple[int, ...], size: int, limits: Limits
) -> Iterator[str]:
    """Yield the problems of a chunk; `dtype` is the array's own, before uint8 replaced bool."""
    chunk_shape = array.shards or array.chunks
    steps: tuple[int, ...] = array.chunks
    if not has_variable_length(dtype):
        steps = _block_shape(chunk_shape, array.chunks, dtype.itemsize)
    if size > max_encoded(limits.max_chunk_bytes) and steps == chunk_shape:
        why = f"it has {size} bytes, the limit is {limits.max_chunk_bytes}"
        if has_variable_length(dtype):
            raise LimitExceededError(why)
        yield f"was not read: {why}"
        return
    axes = zip(index, chunk_shape, array.shape, steps, strict=True)
    starts = [range(i * n, min((i + 1) * n, size), step) for i, n, size, step in axes]
    num_invalid = 0
    for start in itertools.product(*starts):
        region = tuple(slice(s, s + step) for s, step in zip(start, steps, strict=True))
        try:
            elements = np.asarray(array[region])
        except LimitExceededError:
            raise
        except Exception as error:  # noqa: BLE001 # damaged chunks raise anything
            yield f"can't be read: {describe_error(error)}"
            break
        num_invalid += 0 if array.dtype == dtype else _count_invalid(elements, dtype)
    if num_invalid:
        plural = "s that are" if num_invalid > 1 else " that is"
        yield (
            f"holds {num_invalid} bool{plural} neither 0 nor 1: read as true here, and unchanged "
            "by other libraries"
        )


def _block_shape(
    chunk_shape: tuple[int, ...], inner_shape: tuple[int, ...], item_size: int
) -> tuple[int, ...]:
    """Return the shape of the block to read at a time: some inner chunks of a large shard."""
    block, num_left = list(inner_shape), MAX_INNER
    for axis in reversed(range(len(block))):
        num_fitting = READ_BYTES // (math.prod(block) * max(item_size, 1))
        num = max(min(num_fitting, num_left, chunk_shape[axis] // block[axis]), 1)
        block[axis] *= num
        num_left //= num
    return tuple(block)


def _count_invalid(elements: Any, dtype: AnyDType) -> int:
    """Count bytes other than 0 and 1 in bool elements, which are uint8 in `elements`."""
    if dtype.subdtype is not None:
        return _count_invalid(elements, dtype.subdtype[0])
    if dtype.names is not None:
        return sum(_count_invalid(elements[name], f) for name, f in fields_of(dtype))
    return int(np.count_nonzero(elements > 1)) if dtype.kind == "b" else 0


def _with_bytes_for_bools(array: Any, codecs: list[str], report: ArrayReport) -> Any:
    """Return the array with uint8 in place of bool, or unchanged if a codec does not allow it."""
    if set(codecs) - CODECS_OF_ANY_TYPE:
        report.notes.append("its bools were not checked: a codec may need that data type")
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
