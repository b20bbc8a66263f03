"""Counts what is fetched and written, for `trace`."""

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._zarr_api.names import name_of_type, other_pipeline, plural

# By column, or by kind and reason, such as ("why_whole", "the chunk is small"). The kind "not_seen"
# is for chunks that zarr has read by itself.
Counts = dict[str | tuple[str, str], int]
Totals = dict[str, Any]  # by column; or by kind, a dict by reason

# What is counted for an array, and the heading of its column in the table.
_COLUMNS = {
    "chunks": "chunks",
    "chunks_whole": "read whole",
    "requests": "requests",
    "bytes_fetched": "fetched",
    "bytes_zarr_alone": "zarr alone",
    "bytes_selected": "selected",
    "bytes_in_place": "written in place",
}
_NUM_CHARACTERS = 100  # the largest width of the table
_WHY_GAPS = (
    "short gaps between selected bytes are fetched along with them; "
    "numcodecs_bytes.max_gap_bytes limits their length"
)


def _zero_totals() -> Totals:
    numbers = dict.fromkeys((*_COLUMNS, "bytes_in_gaps", "chunks_missing", "chunks_in_place"), 0)
    kinds = ("why_whole", "why_not_in_place", "why_not_direct", "not_seen")
    return numbers | {kind: {} for kind in kinds}


def _add_up(totals: Totals, counts: Counts) -> None:
    for key, num in counts.items():
        kind, name = key if isinstance(key, tuple) else ("", key)
        numbers = totals[kind] if kind else totals
        numbers[name] = numbers.get(name, 0) + num


class ArrayName(NamedTuple):
    """The store of an array, as messages name it, and the path of the array in it."""

    store: str
    path: str

    def __str__(self) -> str:
        return f"{self.store}/{self.path}".rstrip("/")


_Key = tuple[int, int, ArrayName]  # thread, depth, array


class Trace:
    """Counts of what was read and written; see `trace`.

    Threads share it without a lock, which a forked process could inherit locked: each thread
    replaces only its own counts, and never changes a `Counter` that it has stored.
    """

    def __init__(self) -> None:
        self._counts: dict[_Key, Counter[str | tuple[str, str]]] = {}
        # By thread: how many calls of `add` run, each of which interrupts the one before.
        self._depths: dict[int, int] = {}
        self._was_entered = False

    def __enter__(self) -> Self:
        self._was_entered = True
        active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        active.remove(self)

    def add(self, name: ArrayName, counts: Counts) -> None:
        """Add counts of an array."""
        thread = threading.get_ident()
        depth = self._depths.get(thread, 0)
        self._depths[thread] = depth + 1  # a read in a signal handler has another key
        try:
            key = thread, depth, name
            self._counts[key] = self._counts.get(key, Counter()) + Counter(counts)
        finally:
            self._depths[thread] = depth

    def report(self) -> dict[str, Totals]:
        """Return the counts as a dict: for each array in "arrays", and their sum in "total".

        ``chunks`` counts chunks and shards of which something was read, ``chunks_missing`` those
        that do not exist, and ``chunks_whole`` and ``why_whole`` (by reason) those fetched whole
        although less was selected. ``requests`` counts requests and reads of files. Of the elements
        that were selected, ``bytes_selected`` is the size, ``bytes_fetched`` what was fetched for
        them, ``bytes_in_gaps`` how much of that lies in gaps between them, and ``bytes_zarr_alone``
        what zarr alone fetches, also to write part of a chunk.
        ``chunks_in_place`` and ``bytes_in_place`` count what was written in place, and
        ``why_not_in_place`` the other chunks by reason, if the option ``write_in_place`` is on.
        ``why_not_direct`` counts the selections that `SyncReader` left to zarr, by reason.

        "not_seen" holds the number of chunks that zarr read itself, by reason, and
        "arrays_not_seen" the same for each array.
        """
        arrays, total = dict[str, Totals](), _zero_totals()
        for (_, _, name), counts in self._counts.copy().items():
            _add_up(arrays.setdefault(str(name), _zero_totals()), counts)
            _add_up(total, counts)
        not_seen = {name: totals.pop("not_seen") for name, totals in arrays.items()}
        return {
            "arrays": {name: totals for name, totals in arrays.items() if any(totals.values())},
            "total": total,
            "not_seen": total.pop("not_seen"),
            "arrays_not_seen": {name: reasons for name, reasons in not_seen.items() if reasons},
        }

    def __repr__(self) -> str:
        if not self._was_entered:
            return "nothing was counted: this trace was not entered, as in `with trace() as seen:`"
        names = {name for _, _, name in self._counts.copy()}
        are_in_one_store = len({name.store for name in names}) == 1
        paths = {str(name): f"/{name.path}" for name in names if name.path and are_in_one_store}
        return "\n".join(_lines(self.report(), paths))


# The open traces: one that is entered twice is here twice, but counts once.
active: list[Trace] = []


def trace() -> Trace:
    """Count what is fetched from Zarr arrays, and written in place, in a ``with`` statement.

    Returns a `Trace`: printed, it is a table; `Trace.report` returns the same as a dict. For
    compressed chunks, and for shards that zarr reads, only the number is known. With a codec
    pipeline that is not from this package, nothing is counted. All threads of the process are
    counted, but no other processes. A `Trace` that is entered again goes on counting.
    """
    return Trace()


def record_array(name: ArrayName, *counts: Counts) -> None:
    """Add to the counts of an array, such as those of each chunk of a batch."""
    total = sum(map(Counter, counts), Counter[str | tuple[str, str]]())
    for each in set(active) if total else ():
        each.add(name, total)


def _lines(report: dict[str, Totals], paths: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the table, and the reasons; `paths` are shorter names of arrays."""
    arrays, total = report["arrays"], report["total"]
    reasons = {
        (noun, what): {name: counts[key] for name, counts in arrays.items()}
        for noun, what, key in (
            ("chunk", "read whole", "why_whole"),
            ("chunk", "not written in place", "why_not_in_place"),
            ("selection", "left to zarr by SyncReader", "why_not_direct"),
        )
    }
    reasons["chunk", "read by zarr, whole"] = report["arrays_not_seen"]
    if not arrays and not report["not_seen"]:
        yield _why_nothing()
    rows = {name: counts for name, counts in arrays.items() if any(map(counts.get, _COLUMNS))}
    if len(rows) > 1:
        rows["all arrays"] = total
    yield from _table(rows)
    if num := total["chunks_missing"]:
        yield f"{plural(num, 'chunk')} missing, read as the fill value"
    # Fewer bytes than a tenth of what was fetched are not worth a line.
    with_gaps = {
        name: counts["bytes_in_gaps"]
        for name, counts in arrays.items()
        if counts["bytes_in_gaps"] > 0.1 * counts["bytes_fetched"]
    }
    if with_gaps:
        counted = _size(sum(with_gaps.values()))
        yield f"{counted} of {_names(with_gaps, paths)} fetched, but not selected: {_WHY_GAPS}"
    for (noun, what), by_array in reasons.items():
        for why in dict.fromkeys(itertools.chain(*by_array.values())):
            numbers = {name: counts[why] for name, counts in by_array.items() if why in counts}
            counted = plural(sum(numbers.values()), noun)
            reason = " ".join(why.split()).replace(": ", " - ")  # it is one line, with one colon
            yield f"{counted} of {_names(numbers, paths)} {what}: {reason}"


def _names(numbers: dict[str, int], paths: dict[str, str]) -> str:
    """Return the names of arrays that have a number, the first five of them."""
    names = [paths.get(name, name) for name in numbers]
    more = [f"{len(names) - 5} more"] if len(names) > 5 else []
    return ", ".join(names[:5] + more)


def _why_nothing() -> str:
    """Return what it means that nothing was counted."""
    if "zarr" in sys.modules:
        import zarr.registry  # only here: `import numcodecs_bytes` imports no zarr

        pipeline = value_or_error(zarr.registry.get_pipeline_class)
        if isinstance(pipeline, type) and other_pipeline(pipeline):
            name, how = name_of_type(pipeline), "run `numcodecs-bytes` to see what sets it"
            return f"nothing was counted: zarr's codec pipeline is {name}; {how}"
    return "nothing was read through zarr in this process"


def _table(rows: dict[str, Totals]) -> Iterator[str]:
    """Yield the lines of a table of counts, without the columns that are zero in all rows."""
    columns = []
    for key, head in _COLUMNS.items():
        show = _size if key.startswith("bytes") else str
        if any(counts[key] for counts in rows.values()):
            cells = [head, *[show(counts[key]) for counts in rows.values()]]
            width = max(map(len, cells))
            columns.append([cell.rjust(width) for cell in cells])
    if not columns:
        return
    # Long names lose their beginning: paths differ at the end.
    max_width = _NUM_CHARACTERS - sum([2 + len(head) for head, *_ in columns])
    names = [n if len(n) <= max_width else f"...{n[3 - max_width :]}" for n in ("array", *rows)]
    width = max(map(len, names))
    for name, *cells in zip(names, *columns, strict=True):
        yield "  ".join([name.ljust(width), *cells])


def _size(num_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
