"""What is in the folder of an array beside its chunks, and which of these are missing."""

import json
import os
import re
import shlex
import sys

from zarr.types import AnyArray

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._tools.documents import join, local_path
from numcodecs_bytes._tools.reporting import ArrayReport, Limits
from numcodecs_bytes._tools.stored_chunks import LEFTOVER, MAX_UNLISTED, Listed, chunks_at
from numcodecs_bytes._zarr_api.file_systems import missing_parquet_file
from numcodecs_bytes._zarr_api.names import plural

# What a program may have made of the name of a chunk, such as c/0/1.gz, C/0/1 or .0.1.aB3dEf.
_LIKE_CHUNK = re.compile(r"\.?([A-Za-z][./])*[0-9]+([./][0-9]+)*(\.[A-Za-z0-9]+)?")


def report_listing(
    array: AnyArray,
    beside: list[Listed],
    num_in_all: int,
    report: ArrayReport,
    limits: Limits,
) -> None:
    """Report folders that can't be listed, how many chunks there are, misnamed and other files."""
    errors = [each.name for each in beside if each.kind == "error"]
    for error in errors:
        report.add_problem(f"a folder of chunks can't be listed: {error}")
    dangling = [each.name for each in beside if each.kind == "dangling"]
    for name in dangling:
        what = "is a symbolic link that leads nowhere, so that chunks seem to be missing"
        report.add_problem(f"{name} {what}: restore what it leads to")
    _report_leftovers(array, [each.name for each in beside if each.kind == "leftover"], report)
    _report_outside(array, [each.name for each in beside if each.kind == "outside"], report)
    misnamed = set(_report_misnamed(array, beside, report))
    num_misnamed = len({each.chunk_coords for each in misnamed})
    unread = [each for each in beside if each.kind in ("other", "misnamed")]
    others = [each.name for each in unread if each not in misnamed]
    num_chunks = report.num_chunks
    if num_chunks == limits.max_chunks and num_chunks < num_in_all:
        report.notes.append(f"{num_chunks} of {num_in_all} chunks were checked")
        return
    num_tried = num_in_all
    if num_in_all and any(each.kind == "unlisted" for each in beside):
        num_tried = min(num_in_all, MAX_UNLISTED)
        if num_tried < num_in_all:
            tried = f"{num_tried} of {num_in_all} possible chunk names were tried"
            report.notes.append(f"{tried}, because the store does not list its chunks")
    if num_chunks + num_misnamed < num_tried == num_in_all:
        missing = "others were not found" if errors else "missing ones are read as the fill value"
        file = value_or_error(missing_parquet_file, array.store, array.path, num_in_all)
        if isinstance(file, str) and file:
            missing += f"; {file} does not exist: if it was lost, restore it"
        report.notes.append(f"{num_chunks} of {num_in_all} chunks are present; the {missing}")
    may_be_empty = not (num_chunks or num_misnamed or errors or dangling)
    _report_others(others, report, may_be_empty=may_be_empty)


def _report_others(names: list[str], report: ArrayReport, *, may_be_empty: bool) -> None:
    """Report files that zarr does not read: if there are no chunks, some may be chunks."""
    similar = [name for name in names if _LIKE_CHUNK.fullmatch(name)]
    if similar and may_be_empty:
        report.add_problem(
            f"it has no chunks, but {plural(len(similar), 'file')} with a similar name, such as "
            f"{similar[0]}: if these are chunks, rename them"
        )
        return
    if not names:
        return
    files = plural(len(names), "file")
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    report.notes.append(f"zarr does not read {files}, because no chunk has such a name: {listed}")


def _report_outside(array: AnyArray, names: list[str], report: ArrayReport) -> None:
    """Report files with the names of chunks outside the array, as after two appends at once."""
    if names:
        have = "file has the name of a chunk" if len(names) == 1 else "files have names of chunks"
        example = f"such as {names[0]}" if len(names) > 1 else names[0]
        report.add_problem(
            f"{len(names)} {have} outside the shape {array.shape}, {example}: if the array was "
            "longer, or had smaller chunks, correct the metadata; if it was made shorter, move "
            "them away, because they would be read if it grew"
        )


def _report_leftovers(array: AnyArray, names: list[str], report: ArrayReport) -> None:
    """Report the temporary files that writes have left, and how to remove them."""
    if not names:
        return
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    folder = local_path(array.store, array.path)
    how = ""
    if folder is not None and os.name == "posix" and str(folder).isprintable():
        find, extended = "find", " -regextype posix-extended"
        if sys.platform != "linux":
            find, extended = "find -E", ""
        path = shlex.quote(str(folder.resolve()))
        how = f": {find} {path}{extended} -type f -regex '{LEFTOVER.pattern}' -delete"
    files = "file is a leftover" if len(names) == 1 else "files are leftovers"
    report.notes.append(
        f"{len(names)} {files} of killed writes, or of writes that are not finished: {listed}; "
        f"remove them while nobody writes{how}"
    )


def _report_misnamed(array: AnyArray, beside: list[Listed], report: ArrayReport) -> list[Listed]:
    """Report chunks that are missing, but have another name; return these."""
    misnamed = [each for each in beside if each.kind == "misnamed"]
    present = {each.chunk_coords for each in chunks_at(array, [e.chunk_coords for e in misnamed])}
    missing = [each for each in misnamed if each.chunk_coords not in present]
    if missing:
        name, num = missing[0].name, len({each.chunk_coords for each in missing})
        key = join(array.path, array.metadata.encode_chunk_key(missing[0].chunk_coords))
        are = "chunk is missing, but has" if num == 1 else "chunks are missing, but have"
        how = "rename the files" if report.num_chunks else _how_to_name(array, name)
        if num < len(missing):
            how = "several files are for the same chunk: rename the right ones"
        report.add_problem(
            f"{num} {are} another name, such as {join(array.path, name)} instead of {key}: {how}"
        )
    return missing


def _how_to_name(array: AnyArray, name: str) -> str:
    """Return what to write in the metadata of an array, so that a chunk has a name."""
    encoding = "default" if name.startswith("c") else "v2"
    separator = "." if "." in name or (encoding == "v2" and "/" not in name) else "/"
    if array.metadata.zarr_format == 3:
        named = {"name": encoding, "configuration": {"separator": separator}}
        return f'write "chunk_key_encoding": {json.dumps(named)} in zarr.json'
    if encoding == "v2":
        return f'write "dimension_separator": "{separator}" in .zarray'
    return "rename the files"
