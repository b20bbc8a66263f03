"""python -m numcodecs_bytes check: find problems in the arrays of a Zarr hierarchy.

It never writes. If the bytes codec is the only codec, only the sizes of chunks are requested, local
files are opened, and members of zip archives are read. Bools, and chunks that were stored with
other codecs, are decoded by zarr, about 64 MiB at a time.
"""

import contextlib
import math
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs.errors
import numpy as np
import zarr
import zarr.dtype
import zarr.errors
from zarr.abc.store import Store
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.sync import sync
from zarr.storage import StorePath
from zarr.types import AnyArray

from numcodecs_bytes import zarr_data_types
from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.dtypes import AnyDType
from numcodecs_bytes._core.lengths import explain_stand_in
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.shards import NO_INDEX_ENDIAN, ShardLayout
from numcodecs_bytes._read.remote_object import RemoteObject
from numcodecs_bytes._sources.files import FileExtent
from numcodecs_bytes._sources.store_states import state_of
from numcodecs_bytes._sources.stores import find_extent
from numcodecs_bytes._tools.arrays import (
    Grid,
    array_of,
    layout_for_partial_reads,
    layout_of,
    why_not_opened,
)
from numcodecs_bytes._tools.check_chunks import check_chunks
from numcodecs_bytes._tools.documents import Broken, Document, as_json, document_at, join
from numcodecs_bytes._tools.hierarchy import FoundNode, Kind, find_nodes
from numcodecs_bytes._tools.installation import explain_other_codec, explain_wrong_setting
from numcodecs_bytes._tools.locations import open_store
from numcodecs_bytes._tools.reporting import (
    ArrayReport,
    Limits,
    ProgressBar,
    check_progress,
    describe_error,
    describe_failure,
    is_bug,
    refuse_calls,
    value_or_expected_error,
)
from numcodecs_bytes._tools.stored_chunks import ChunkCoords
from numcodecs_bytes._tools.v2_to_v3 import disagreements, why_no_endian, why_wrong_dtype
from numcodecs_bytes._tools.xarray_attributes import (
    dimensions_of,
    encode_mask,
    how_to_decode,
    is_decodable,
    problems_with_dimensions,
    why_wrong_dimensions,
)
from numcodecs_bytes._zarr_api.file_systems import references_of
from numcodecs_bytes._zarr_api.private_names import are_data_types_unloaded
from numcodecs_bytes.codec import Bytes

__all__ = ["ArrayReport", "Limits", "check"]

_DISAGREE = "zarr reads zarr.json: correct the one that is wrong"
_WHILE_INSTALLED = "only while numcodecs-bytes is installed"


def check(
    store: Store | str | Path,
    limits: Limits | None = None,
    progress: ProgressBar | None = None,
    *,
    storage_options: JSONObject | None = None,
    icechunk_ref: dict[str, str] | None = None,
) -> Iterator[ArrayReport]:
    """Check the arrays in a store, and the metadata of its groups.

    Parameters
    ----------
    store : zarr.abc.store.Store, str or Path
        A store of any kind, or the path or URL of one; it is only read.
    limits : Limits, optional
        How much of each array is checked.
    progress : optional
        A progress bar with tqdm's interface; it counts chunks.
    storage_options : dict, optional
        Settings of fsspec for a URL, or for kerchunk references.
    icechunk_ref : dict, optional
        Which version of an Icechunk repository to check: the name of a "branch", "tag" or
        "snapshot", under that key; by default the branch main.

    Yields
    ------
    ArrayReport
        The report on each array, as soon as it is checked, and on each group that has problems.
    """
    if not isinstance(limits, Limits | None):
        raise TypeError(f"limits must be Limits(max_chunks=...), got {limits!r}")
    check_progress(progress)
    kinds = ({"branch"}, {"tag"}, {"snapshot"})
    is_dict = isinstance(icechunk_ref, dict)
    if icechunk_ref is not None and not (is_dict and icechunk_ref.keys() in (*kinds, set())):
        expected = "a dict with 'branch', 'tag' or 'snapshot', such as {'branch': 'main'}"
        raise TypeError(f"icechunk_ref must be {expected}, got {icechunk_ref!r}")
    opened = open_store(store, storage_options=storage_options, icechunk_ref=icechunk_ref)
    with contextlib.nullcontext() if opened is store else contextlib.closing(opened):
        yield from _check_arrays(opened, limits or Limits(), progress)


def _check_arrays(
    store: Store, limits: Limits, progress: ProgressBar | None
) -> Iterator[ArrayReport]:
    """Yield the report on each array, and each group with problems; raise a bug in the end."""
    bugs: list[Exception] = []
    groups: set[str] = set()
    dimensions: dict[str, dict[str, int] | None] = {}  # as `dimensions_of` each array
    for node in find_nodes(store):
        report = _report_on(node.path, node.kind)
        report.notes += filter(None, [node.note])
        sizes = value_or_error(_check_node, store, node, report, limits, progress)
        if not isinstance(sizes, Exception):
            dimensions[node.path] = sizes
        elif is_bug(sizes):
            sizes.add_note(f"while checking {node.kind} /{node.path}")
            bugs.append(sizes)
            continue
        else:
            report.add_problem(f"it can't be checked: {describe_error(sizes)}")
        for problem in node.problems:
            report.add_problem(problem)
        if node.kind == "group" and node.document is not None:
            groups.add(node.path)
        if node.kind == "array" or report.problems:
            yield report
    for path, problem in problems_with_dimensions(dimensions, groups):
        report = _report_on(path, "group")
        report.add_problem(problem)
        yield report
    if bugs:
        raise bugs[0]


def _report_on(path: str, kind: Kind) -> ArrayReport:
    report = ArrayReport(path, kind)
    if kind == "group":
        report.partial_reads = "no: it is a group"
    return report


def _check_node(
    store: Store,
    node: FoundNode,
    report: ArrayReport,
    limits: Limits,
    progress: ProgressBar | None,
) -> dict[str, int] | None:
    """Report what is wrong with an array or a group, and return `dimensions_of` an array."""
    document = node.document
    if isinstance(document, Broken):
        report.add_problem(f"its metadata {describe_failure(document.error, is_named=False)}")
    elif document is not None and node.kind == "group":
        _compare_attributes(node.attributes_of_v2, document.get("attributes"), report)
    elif document is not None:
        return _check_array(StorePath(store, node.path), document, report, limits, progress)
    return {}


def _check_array(
    store_path: StorePath,
    document: JSONObject,
    report: ArrayReport,
    limits: Limits,
    progress: ProgressBar | None,
) -> dict[str, int] | None:
    array = value_or_error(array_of, document, store_path)
    if isinstance(array, Exception):
        lacking = re.search("missing [0-9]+ required keyword-only arguments?: (.*)", str(array))
        name = str(array) if isinstance(array, KeyError) else lacking and lacking[1]
        of_metadata = f"its metadata lack {name}" if name else describe_error(array).rstrip(".")
        why = explain_wrong_setting(array) or f": {of_metadata}"
        hint = why_not_opened(document)
        report.add_problem(f"zarr can't open it{why}{hint and f'; {hint}'}")
        report.notes += filter(None, [explain_other_codec()])
        return {}
    names = array.dtype.names
    report.data_type = f"struct of {len(names)} fields" if names else str(array.dtype)
    is_in_part = _report_partial_reads(array, report)
    if _is_our_data_type(array.metadata.dtype):
        after = ""
        if are_data_types_unloaded():
            after = f", and zarr {zarr.__version__} only after `import {zarr_data_types.__name__}`"
        report.notes.append(f"zarr opens its data type {_WHILE_INSTALLED}{after}")
    if array.metadata.zarr_format == 3:
        attributes: JSONObject = {}
        _check_v3_codecs(array, document, report)
        _check_fill_value_attribute(array, report)
        _compare_with_v2(store_path, document, report)
        codecs = [name for name, *_ in _codecs_in(document["codecs"])]
    else:
        v2_codecs: Any = (*array.filters, *array.compressors)
        _check_v2_codecs(array, v2_codecs, report)
        attributes = _v2_document(store_path, ".zattrs", report) or {}
        if isinstance(document["shape"], list) and (
            why := why_wrong_dimensions(document, attributes)
        ):
            report.add_problem(f"xarray can't read it: {why}")
        codecs = [codec.codec_id for codec in v2_codecs]
    first = check_chunks(array, codecs, report, limits, progress)
    if array.metadata.zarr_format == 2 and "pickle" not in codecs:
        _check_masked_zeros(array, attributes, first, report, limits)
    if is_in_part and report.num_chunks:
        _check_byte_ranges(array, first, report)
    return dimensions_of(array, document, attributes)


def _check_byte_ranges(array: AnyArray, first: ChunkCoords | None, report: ArrayReport) -> None:
    """Report whether a byte range can be read of the first chunk that can be read, if any."""
    if first is None:
        report.partial_reads = "not known: no chunk can be read"
        return
    failure = value_or_expected_error(sync, _request_a_byte(array, first))
    if isinstance(failure, Exception) and not isinstance(failure, LeftToZarr):
        key = join(array.path, array.metadata.encode_chunk_key(first))
        problem = f"chunk {key} {describe_failure(failure)}"
        report.add_problem(problem)
        report.partial_reads = "not known: a chunk can't be read"
        return
    is_in_part = _report_partial_reads(array, report)  # again: a strike is remembered
    if is_in_part and isinstance(failure, str):
        report.partial_reads = f"not known: the request for a byte range failed ({failure})"


async def _request_a_byte(array: AnyArray, chunk_coords: ChunkCoords) -> str | None:
    """Request one byte of a chunk; if that fails, but its store returns the chunk, return why.

    If the store's answer is wrong, it is a strike. Raises the store's error if it does not return
    the chunk either, although it states a length.
    """
    chunk = array.store_path / array.metadata.encode_chunk_key(chunk_coords)
    extent = find_extent(chunk)
    if isinstance(extent, FileExtent):
        return None
    start, layout = extent.start, layout_of(array, chunk_coords)
    if isinstance(layout, ShardLayout):
        start, _ = layout.index_range(start, extent.num_bytes)
    # Not all stores serve the end of an object, where most shards have their index.
    byte_range = (-1, None) if start < 0 else (start, start + 1)
    answer = await RemoteObject(extent).get_range(*byte_range)
    is_refused = answer.is_strike or answer.kind == "failed"
    if not is_refused or await chunk.get() is None:
        return None
    if answer.is_strike:
        state_of(chunk.store).strike(answer)
    return answer.why


def _report_partial_reads(array: AnyArray, report: ArrayReport) -> bool:
    """Report whether chunks are read in part, and return it."""
    try:
        layout_for_partial_reads(array)
    except LeftToZarr as why:
        report.partial_reads = f"no: {why}"
        return False
    report.partial_reads = "yes: inner chunks in part" if Grid.of(array).is_sharded else "yes"
    return True


def _is_our_data_type(data_type: object) -> bool:
    fields = getattr(data_type, "fields", ())
    is_ours = type(data_type).__module__ == zarr_data_types.__name__
    return is_ours or any(_is_our_data_type(field) for _, field in fields)


def _compare_with_v2(store_path: StorePath, document: JSONObject, report: ArrayReport) -> None:
    """Report where an array's Zarr v2 metadata, if any, disagree with its Zarr v3 metadata."""
    old = _v2_document(store_path, ".zarray", report)
    if old is None:
        return
    of_v2 = _v2_document(store_path, ".zattrs", report)
    _compare_attributes(of_v2, document.get("attributes"), report)
    unknown_codec = (numcodecs.errors.UnknownCodecError, zarr.errors.UnknownCodecError)
    opened = value_or_error(ArrayV2Metadata.from_dict, old)
    if isinstance(opened, Exception) and not isinstance(opened, unknown_codec):
        hint = why_not_opened(old)
        report.add_problem(
            f".zarray can't be opened: {describe_error(opened)}{hint and f'; {hint}'}"
        )
        return
    found = value_or_error(disagreements, old, document)
    if isinstance(found, Exception):  # for example, a codec has no counterpart
        report.notes.append(f".zarray and zarr.json can't be compared: {describe_error(found)}")
        return
    for disagreement in found:
        report.add_problem(f".zarray and zarr.json disagree: {disagreement}; {_DISAGREE}")


def _compare_attributes(of_v2: Document, of_v3: object, report: ArrayReport) -> None:
    """Report attributes that differ in both formats, but those that xarray expects to differ."""
    of_v3 = of_v3 or {}
    if not isinstance(of_v2, dict) or not isinstance(of_v3, dict):
        return
    names = {**of_v2, **of_v3}.keys() - {"_ARRAY_DIMENSIONS", "_FillValue", "missing_value"}
    for name in sorted(names):
        values = [reprlib.repr(a[name]) if name in a else "missing" for a in (of_v2, of_v3)]
        if as_json(of_v2.get(name)) != as_json(of_v3.get(name)):
            report.add_problem(
                f".zattrs and zarr.json disagree: attribute {name} is {values[0]} in .zattrs, "
                f"{values[1]} in zarr.json; {_DISAGREE}"
            )


def _v2_document(store_path: StorePath, name: str, report: ArrayReport) -> JSONObject | None:
    """Return a Zarr v2 document, or None if it does not exist or is broken, which is reported."""
    document = document_at(store_path.store, join(store_path.path, name))
    # An error of another type is the store's; some web servers send a page for what is missing.
    is_page = isinstance(document, Broken) and explain_stand_in(document.raw or b"")
    if isinstance(document, Broken) and isinstance(document.error, ValueError) and not is_page:
        report.add_problem(f"its metadata can't be read: {document.error}")
    return document if isinstance(document, dict) else None


def _codecs_in(
    codecs: list[str | JSONObject], *, is_index: bool = False
) -> Iterator[tuple[str, JSONObject, bool]]:
    """Yield the name and configuration of each codec, and whether it encodes a shard index."""
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec["name"]
        configuration = {} if isinstance(codec, str) else codec.get("configuration") or {}
        yield name, configuration, is_index
        if name == "sharding_indexed":
            yield from _codecs_in(configuration.get("codecs", []), is_index=is_index)
            yield from _codecs_in(configuration.get("index_codecs", []), is_index=True)


def _check_v3_codecs(array: AnyArray, document: JSONObject, report: ArrayReport) -> None:
    data_type = document["data_type"]
    name = data_type["name"] if isinstance(data_type, dict) else data_type
    registered = {"structured": "struct", "raw_bytes": "r8, r16, ..."}.get(name)
    if registered:
        note = f"data type {name} is specific to zarr-python; the registered one is {registered}"
        report.notes.append(note)
    is_filtered = False  # whether a codec may have changed the data type
    for name, configuration, is_index in _codecs_in(document["codecs"]):
        if name == "endian":
            renamed = 'codec "endian" was renamed to "bytes" in version 1.0'
            report.notes.append(f"{renamed}: zarr opens it {_WHILE_INSTALLED}")
        if name not in ("bytes", "endian"):
            is_filtered = is_filtered or name not in ("transpose", "sharding_indexed")
            _check_byte_orders(name, configuration, report)
        elif is_index and configuration.get("endian") is None:
            report.add_problem(NO_INDEX_ENDIAN)
        elif not is_index and not is_filtered:
            _check_endian(configuration.get("endian"), array.dtype, report)


def _check_byte_orders(name: str, configuration: JSONObject, report: ArrayReport) -> None:
    """Report the data type of a codec of numcodecs whose byte order zarr does not give it.

    Where `astype` is given, zarr gives all but "quantize" what that says.
    """
    key = "astype" if configuration.get("astype") else "dtype"
    names = ("delta", "fixedscaleoffset", "quantize") if key == "dtype" else ("quantize",)
    if name not in [f"numcodecs.{each}" for each in names]:
        return
    dtype = value_or_error(np.dtype, configuration.get(key))
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        report.add_problem(
            f"the {key} of codec {name} is {dtype.str!r}, but zarr passes it elements in the byte "
            "order of the machine: values are wrong, or depend on the version of zarr; write "
            f"{dtype.newbyteorder().str!r} in zarr.json, and compare some of them"
        )


def _check_fill_value_attribute(array: Any, report: ArrayReport) -> None:
    """Report an attribute at which xarray, which needs named dimensions, raises an error."""
    attributes, names = array.attrs.asdict(), array.metadata.dimension_names
    if "_FillValue" not in attributes or len(names or ()) != len(array.shape):
        return
    given = attributes["_FillValue"]
    if not is_decodable(given, array.dtype):
        report.add_problem(
            f"xarray can't read its group: the attribute _FillValue is {given!r}, which it can't "
            f"decode for {array.dtype}: {how_to_decode(given, array.dtype)}"
        )


def _check_masked_zeros(
    array: AnyArray,
    attributes: JSONObject,
    first: ChunkCoords | None,
    report: ArrayReport,
    limits: Limits,
) -> None:
    """Report the fill value 0 of references, which xarray masks, if no attribute asks for that.

    kerchunk and VirtualiZarr write it for variables that have no fill value.
    """
    fill_value: Any = array.metadata.fill_value
    is_zero = array.dtype.kind in "iufc" and fill_value is not None and fill_value == 0
    if not is_zero or references_of(array.store) is None or "_ARRAY_DIMENSIONS" not in attributes:
        return
    zeros = (0, [0], encode_mask(0, array.dtype))
    if any(attributes.get(name) in zeros for name in ("_FillValue", "missing_value")):
        return
    elements: Any = None
    if (
        first is not None
        and math.prod(array.chunks) * array.dtype.itemsize <= limits.max_chunk_bytes
    ):
        elements = value_or_error(lambda: array[Grid.of(array).region(first, first)])
    why = (
        'because the references give it the fill value 0: if zeros are values, set "fill_value" '
        'to null in its .zarray; if they mark missing values, add "_FillValue": 0 to its .zattrs'
    )
    if isinstance(elements, np.ndarray) and not elements.all():
        report.add_problem(f"xarray reads its zeros as NaN, {why}")
    else:
        report.notes.append(f"xarray would read zeros as NaN, {why}")


def _check_v2_codecs(array: AnyArray, codecs: tuple[Any, ...], report: ArrayReport) -> None:
    for position, codec in enumerate(codecs):
        if not isinstance(codec, Bytes):
            if codec.codec_id == "bytes":
                report.notes.append(explain_other_codec())
            continue
        report.notes.append(f'zarr opens the filter or compressor "bytes" {_WHILE_INSTALLED}')
        dtype = array.dtype if codec.dtype is None else codec.dtype
        _check_endian(codec.endian, dtype, report)
        # Others store the output of the previous filter.
        if not position and (why := why_wrong_dtype(codec, array.dtype)):
            report.add_problem(why)


def _check_endian(endian: str | None, dtype: AnyDType, report: ArrayReport) -> None:
    if why := why_no_endian(endian, dtype):
        report.add_problem(why)


refuse_calls(__name__)
