"""Runs of an object -> the byte ranges to request, and back. Works on numbers only: no I/O."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine.selection import Indices


class Run(NamedTuple):
    """Contiguous bytes of an object that are kept, and where in memory."""

    start: int  # in the object, in bytes
    length: int
    offset: int  # in the memory


class Range(NamedTuple):
    """What one request fetches: the bytes from `start` up to `end`, with runs and gaps."""

    start: int
    end: int
    runs: list[Run]  # in the order of their starts; a run may be larger than the range


def sorted_runs(starts: Indices, lengths: Indices) -> list[Run]:
    """Return runs that lie end to end in memory, in the order of their starts in the object."""
    offsets = np.cumsum(lengths) - lengths
    order = np.argsort(starts, kind="stable")
    columns = [column[order].tolist() for column in (starts, lengths, offsets)]
    return list(map(Run, *columns))


def coalesce(
    runs: list[Run], *, gap: int, most_with_gaps: int, longest_part: int
) -> Iterator[Range]:
    """Yield the ranges that fetch runs, which are given in the order of their starts.

    Runs with gaps of up to `gap` bytes share a range, if that has up to `most_with_gaps` bytes. A
    range that has more than `longest_part` bytes is cut into parts. Runs may overlap.
    """
    together: list[Run] = []
    start = end = 0
    for run in runs:
        run_end = run.start + run.length
        if together and (run.start - end > gap or max(end, run_end) - start > most_with_gaps):
            yield from _split_range(Range(start, end, together), longest_part)
            together = []
        if not together:
            start, end = run.start, run_end
        together.append(run)
        end = max(end, run_end)
    if together:
        yield from _split_range(Range(start, end, together), longest_part)


def num_parts(num_bytes: int, longest_part: int) -> int:
    """Return how many parts of about `longest_part` bytes a range is cut into."""
    return max(1, round(num_bytes / longest_part))


def _split_range(whole: Range, longest_part: int) -> Iterator[Range]:
    """Yield the parts of a range."""
    num_bytes = whole.end - whole.start
    step = -(-num_bytes // num_parts(num_bytes, longest_part))
    for start in range(whole.start, whole.end, step):
        yield Range(start, min(start + step, whole.end), whole.runs)


def copy_runs(raw: UInt8Array, fetched: Range, memory: UInt8Array) -> None:
    """Copy the runs in a range, as far as it reaches, to their places in memory."""
    source, target = raw.data, memory.data
    for start, length, offset in fetched.runs:
        first, end = max(start, fetched.start), min(start + length, fetched.end)
        if first < end:
            copied = source[first - fetched.start : end - fetched.start]
            target[offset + first - start : offset + end - start] = copied


class ContentRange(NamedTuple):
    """What an answer says that it holds of an object."""

    start: int
    end: int  # exclusive
    num_bytes: int | None  # the length of the object, if the server knows it


def parse_content_range(text: str) -> ContentRange | None:
    """Return what the value of the header ``Content-Range`` says; None for anything else.

    https://www.rfc-editor.org/rfc/rfc9110.html#name-content-range
    """
    match = re.fullmatch(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)", text)
    if match is None:
        return None
    first, last, total = match.groups()
    return ContentRange(int(first), int(last) + 1, None if total == "*" else int(total))
