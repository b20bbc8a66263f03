"""python -m numcodecs_bytes check: what is amiss in the arrays of a Zarr hierarchy.

Reads, never writes. Of a chunk that the bytes codec alone has stored only the size is asked for.
Chunks that pass other codecs, too, and bools are read, one at a time: that is all it keeps.
"""

import asyncio
import contextlib
import itertools
import json
import math
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.abc.store
import zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from numcodecs_bytes._data_type import (
    AnyDType,
    dtype_to_json,
    fields_of,
    has_byte_order,
    leaf_dtypes,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr import BytesCodec
from numcodecs_bytes.zarr_data_types import _struct_of, parse_numpy_descr

MAX_LISTED = 10
_SIZES_AT_ONCE = 64
# Codecs that take uint8 for bool.
_OF_ANY_TYPE = {"bytes", "endian", "transpose", "sharding_indexed", "crc32c", "gzip", "zstd"}
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
        Number of chunks, of shards in a sharded array, that were looked at or for.
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


def open_store(location: str) -> zarr.abc.store.Store:
    """Return a folder, a zip file, or what fsspec finds at a URL, as a read-only store."""
    if "://" in location:
        return zarr.storage.FsspecStore.from_url(location, read_only=True)
    if not Path(location).exists():
        raise FileNotFoundError(
            f"no Zarr hierarchy at {location}: expected a folder, a zip file or a URL"
        )
    if Path(location).is_file():
        if not zipfile.is_zipfile(location):
            raise ValueError("it is a file, but no zip file, or one that is cut off")
        archive: zarr.abc.store.Store = sync(zarr.storage.ZipStore.open(location, mode="r"))
        return archive
    return zarr.storage.LocalStore(location, read_only=True)


def check(store: zarr.abc.store.Store, bar: Any = None) -> Iterator[ArrayReport]:
    """Yield a report of each array in a store; `bar` is a progress bar as tqdm has it."""
    for path, document in _find_arrays(store, ""):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what zarr warns of is in the report, or not ours
            report = _check_array(zarr.storage.StorePath(store, path), document, bar)
        yield report


def _find_arrays(store: zarr.abc.store.Store, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and metadata document of each array; the text where it is no JSON object."""
    documents = (_document(store, path, name) for name in ("zarr.json", ".zarray"))
    document = next((d for d in documents if d is not None), None)
    is_broken = isinstance(document, str)
    if is_broken or (document is not None and document.get("node_type") != "group"):
        yield path, document
        if not is_broken:
            return
    names = sync(_list(store, path))
    for name in names:
        # What is broken may be an array: its chunks are no arrays.
        if not (is_broken and (name == "c" or name[0].isdigit())):
            yield from _find_arrays(store, _join(path, name))
    if not names and not is_broken:
        yield from _consolidated(store, path, document)


def _consolidated(store: zarr.abc.store.Store, path: str, group: Any) -> Iterator[tuple[str, Any]]:
    """Yield the same from the metadata of a group; a web server lists no folders."""
    if group is None:
        consolidated = _document(store, path, ".zmetadata")
    else:
        consolidated = group.get("consolidated_metadata")
    documents = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    for key, document in (documents or {}).items():
        name, _, file = key.rpartition("/") if group is None else (key, "", ".zarray")
        if file == ".zarray" and document.get("node_type") != "group":
            yield _join(path, name), document


def _document(store: zarr.abc.store.Store, path: str, name: str) -> Any:
    raw = None
    with contextlib.suppress(NotADirectoryError):
        raw = sync(store.get(_join(path, name), default_buffer_prototype()))
    if raw is None:
        return None
    text = raw.to_bytes().decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        document = json.loads(text)
        if isinstance(document, dict):
            return document
    return text


async def _list(store: zarr.abc.store.Store, path: str) -> list[str]:
    if not store.supports_listing:
        return []
    with contextlib.suppress(NotADirectoryError):
        return sorted([name async for name in store.list_dir(path)])
    return []


def _join(path: str, name: str) -> str:
    return f"{path}/{name}".strip("/")


def _check_array(at: zarr.storage.StorePath, document: Any, bar: Any) -> ArrayReport:
    report = ArrayReport(at.path)
    if isinstance(document, str):
        report.add_problem(f"its metadata are no JSON object: {document[:80]!r}")
        return report
    try:
        array: Any = zarr.Array(zarr.AsyncArray(document, at))
    except Exception as error:  # noqa: BLE001 # whatever it is, the user is to know, and of the rest, too
        report.add_problem(_why_not_opened(document, error))
        return report
    names = array.dtype.names
    report.data_type = f"struct of {len(names)} fields" if names else str(array.dtype)
    report.partial_reads = _partial_reads(array)
    if array.metadata.zarr_format == 3:
        _check_v3_codecs(array, document, report)
        codecs = [name for name, *_ in _codecs_in(document["codecs"])]
    else:
        _check_v2_codecs(array, report)
        codecs = [codec.codec_id for codec in (*array.filters, *array.compressors)]
    if not codecs or {"bytes", "endian"} & set(codecs):
        _check_chunks(array, codecs, report, bar)
    else:
        report.notes.append("its chunks were not looked at: they are none of the bytes codec")
    return report


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
    return f"zarr can't open it: {type(error).__name__}: {error}"


def _partial_reads(array: Any) -> str:
    if array.metadata.zarr_format == 2:
        return "no: Zarr v2 reads whole chunks"
    codecs = array.metadata.codecs
    others = [codec.to_dict()["name"] for codec in codecs if codec.to_dict()["name"] != "bytes"]
    if others == ["sharding_indexed"]:
        return "no: of a shard, zarr reads whole inner chunks"
    if others:
        return f"no: {', '.join(others)} needs whole chunks"
    if not isinstance(codecs[0], BytesCodec):
        return f"no: {type(codecs[0]).__module__}.{type(codecs[0]).__qualname__} is chosen"
    return "yes"


def _codecs_in(
    codecs: list[Any], *, is_index: bool = False
) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Yield name and configuration of codecs in metadata, and whether they are of an index."""
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec["name"]
        configuration = {} if isinstance(codec, str) else codec.get("configuration") or {}
        yield name, configuration, is_index
        if name == "sharding_indexed":
            yield from _codecs_in(configuration["codecs"], is_index=is_index)
            yield from _codecs_in(configuration.get("index_codecs", []), is_index=True)


def _check_v3_codecs(array: Any, document: dict[str, Any], report: ArrayReport) -> None:
    data_type = document["data_type"]
    name = data_type["name"] if isinstance(data_type, dict) else data_type
    if name in _LEGACY_DATA_TYPES:
        report.notes.append(
            f"data type {name} is of zarr-python alone; the registered one is "
            f"{_LEGACY_DATA_TYPES[name]}"
        )
    for name, configuration, is_index in _codecs_in(document["codecs"]):
        if name == "endian":
            report.notes.append('codec "endian" is called "bytes" since version 1.0')
        if name in ("bytes", "endian"):
            dtype = np.dtype("u8") if is_index else array.dtype
            _check_endian(configuration.get("endian"), dtype, report)
        elif not is_index and name not in _OF_ANY_TYPE | {"blosc"}:
            return  # a filter, after which the elements may be others


def _check_v2_codecs(array: Any, report: ArrayReport) -> None:
    for codec in (*array.filters, *array.compressors):
        if isinstance(codec, Bytes):
            _check_endian(codec.endian, array.dtype if codec.dtype is None else codec.dtype, report)


def _check_endian(endian: str | None, dtype: AnyDType, report: ArrayReport) -> None:
    if endian is None and has_byte_order(dtype):
        report.add_problem(
            f'the bytes codec has no "endian", which {dtype} needs: structures are read as little '
            "endian here, others refuse them; add the one that it was written with"
        )
    elif endian is not None and not has_byte_order(dtype):
        report.notes.append(f'"endian" says nothing for {dtype}; it may be left out')


def _check_chunks(array: Any, codecs: list[str], report: ArrayReport, bar: Any) -> None:
    try:
        chunk_shape = array.shards or array.chunks
    except NotImplementedError as error:
        report.notes.append(f"its chunks were not looked at: {error}")
        return
    grid_shape = [math.ceil(s / n) for s, n in zip(array.shape, chunk_shape, strict=True)]
    report.num_chunks = math.prod(grid_shape)
    if bar is not None:
        bar.total = (bar.total or 0) + report.num_chunks
        bar.refresh()
    has_bools = any(leaf.kind == "b" for leaf in leaf_dtypes(array.dtype))
    readable = _with_bytes_for_bools(array, codecs) if has_bools else array
    if readable is None:
        report.notes.append("its bools were not looked at: a codec of theirs takes nothing else")
        readable = array
    is_alone = codecs in ([], ["bytes"], ["endian"])
    chunk_bytes = math.prod(chunk_shape) * _stored_item_size(array) if is_alone else 0
    indices = iter(np.ndindex(*grid_shape))
    while batch := list(itertools.islice(indices, _SIZES_AT_ONCE)):
        keys = [_join(array.path, array.metadata.encode_chunk_key(index)) for index in batch]
        sizes = sync(_sizes(array.store, keys)) if is_alone else [None] * len(keys)
        for index, key, size in zip(batch, keys, sizes, strict=True):
            if size is not None and size != chunk_bytes:
                why = "it is cut off" if size < chunk_bytes else "of another shape, or compressed"
                report.add_problem(f"chunk {key} holds {size} bytes, expected {chunk_bytes}: {why}")
            elif (size is not None and has_bools) or not is_alone:
                region = zip(index, chunk_shape, strict=True)
                problem = _read(
                    readable, array.dtype, tuple(slice(i * n, (i + 1) * n) for i, n in region)
                )
                if problem:
                    report.add_problem(f"chunk {key} {problem}")
            if bar is not None:
                bar.update()


def _stored_item_size(array: Any) -> int:
    if array.metadata.zarr_format == 2 and not array.filters:
        return int(array.dtype.itemsize)
    return stored_dtype(pack_dtype(array.dtype), "little").itemsize


async def _sizes(store: zarr.abc.store.Store, keys: list[str]) -> list[int | None]:
    """Return the sizes of chunks in bytes, None of those that do not exist."""

    async def size_of(key: str) -> int | None:
        with contextlib.suppress(FileNotFoundError):
            return await store.getsize(key)
        return None

    return await asyncio.gather(*map(size_of, keys))


def _read(array: Any, dtype: AnyDType, region: tuple[slice, ...]) -> str:
    """Return what is wrong in a region of an array of dtype, which may have uint8 for bool."""
    try:
        elements = np.asarray(array[region])
    except Exception as error:  # noqa: BLE001 # as where it is opened
        return f"can't be read: {error}"
    num_invalid = 0 if array.dtype == dtype else _count_invalid(elements, dtype)
    if not num_invalid:
        return ""
    return (
        f"holds {num_invalid} bools that are neither 0 nor 1: they are read as true, and by other "
        "libraries as they are"
    )


def _count_invalid(elements: Any, dtype: AnyDType) -> int:
    """Return the number of bools that are none, in elements with uint8 for bool."""
    if dtype.subdtype is not None:
        return _count_invalid(elements, dtype.subdtype[0])
    if dtype.names is not None:
        return sum(_count_invalid(elements[name], f) for name, f in fields_of(dtype))
    return int(np.count_nonzero(elements > 1)) if dtype.kind == "b" else 0


def _with_bytes_for_bools(array: Any, codecs: list[str]) -> Any:
    """Return the same array with uint8 for bool, None where its codecs do not take that."""
    dtype = _bytes_for_bools(pack_dtype(array.dtype))
    document: Any = dict(array.metadata.to_dict())
    if document["zarr_format"] == 2:
        if set(codecs) - _OF_ANY_TYPE - {"blosc", "zlib", "lz4", "bz2", "lzma"}:
            return None
        document |= {"dtype": dtype_to_json(dtype), "fill_value": None}
        document["filters"] = [
            Bytes(f.endian, _bytes_for_bools(array.dtype if f.dtype is None else f.dtype))
            for f in array.filters
        ] or None
    else:
        if set(codecs) - _OF_ANY_TYPE - {"blosc"}:
            return None
        data_type: Any = (
            _struct_of(dtype) if dtype.names else zarr.dtype.parse_dtype("uint8", zarr_format=3)
        )
        document["data_type"] = data_type.to_json(zarr_format=3)
        document["fill_value"] = data_type.to_json_scalar(data_type.default_scalar(), zarr_format=3)
    return zarr.Array(zarr.AsyncArray(document, array.store_path))


def _bytes_for_bools(dtype: AnyDType) -> AnyDType:
    if dtype.subdtype is not None:
        return np.dtype((_bytes_for_bools(dtype.subdtype[0]), dtype.shape))
    if dtype.names is not None:
        return np.dtype([(name, _bytes_for_bools(f)) for name, f in fields_of(dtype)])
    return np.dtype("u1") if dtype.kind == "b" else dtype
