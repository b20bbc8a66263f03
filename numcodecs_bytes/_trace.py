"""Counts what is fetched and written, for `trace`."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

MAX_NAME_LENGTH, MAX_STORE_LENGTH = 48, 200  # of an array in the table, and of a store
HEAD = ("chunks", "read whole", "requests", "fetched", "zarr alone", "selected", "written in place")
# A chunk counts as read whole if so much of it was fetched, and less was selected.
WHOLE = 0.9

Counts = dict[str, Any]
_NOTHING: Counts = {
    "chunks": 0,
    "chunks_missing": 0,
    "chunks_whole": 0,
    "why_whole": {},
    "requests": 0,
    "bytes_fetched": 0,
    "bytes_zarr_alone": 0,
    "bytes_selected": 0,
    "chunks_in_place": 0,
    "bytes_in_place": 0,
    "why_not_in_place": {},
}


def _add(counts: Counts, more: Counts) -> None:
    """Add numbers, and those of the reasons, to others of the same names."""
    for name, value in more.items():
        if isinstance(value, dict):
            _add(counts[name], value)
        else:
            counts[name] = counts.get(name, 0) + value


def _nothing() -> Counts:
    return {name: dict(v) if isinstance(v, dict) else v for name, v in _NOTHING.items()}


class Trace:
    """Counts of what was read and written; see `trace`."""

    def __init__(self) -> None:
        self._arrays: dict[str, Counts] = {}
        self._not_seen: dict[str, int] = {}

    def __enter__(self) -> Self:
        global active  # noqa: PLW0603 # a plain tuple, because it is looked at for every chunk
        with _lock:
            active = (*active, self)
        return self

    def __exit__(self, *_: object) -> None:
        global active  # noqa: PLW0603
        with _lock:
            active = tuple(one for one in active if one is not self)

    def report(self) -> dict[str, Any]:
        """Return the counts of each array, their totals, and the chunks that were not seen.

        Returns
        -------
        dict
            ``arrays``: maps each array's name to its counts. ``total``: the sum of these.
            ``not_seen``: maps what is known of other chunks to their number. Counts are

            - ``chunks``: chunks, or shards, of which something was read; ``chunks_missing``: those
              of them that do not exist, and were read as the fill value
            - ``chunks_whole``: those that were fetched whole, or nearly, although less was
              selected; ``why_whole``: the reasons, and how many chunks each
            - ``requests``: requests to the store, or reads of a file
            - ``bytes_fetched``, ``bytes_selected``: bytes that were fetched, and those of the
              selected elements
            - ``bytes_zarr_alone``: bytes that zarr alone fetches for the same: chunks as a whole;
              of a shard, its index and the inner chunks of which something is selected (zarr 3.4:
              and short gaps between them); to write a part of a chunk that we write in place, all
              of it, before it writes all of it
            - ``chunks_in_place``, ``bytes_in_place``: chunks of which parts were written in place,
              and the bytes of these parts; ``why_not_in_place``: why others were not, though that
              was asked for, and how many
        """
        with _lock:
            total, arrays = _nothing(), {}
            for name, counts in self._arrays.items():
                _add(total, counts)
                arrays[name] = _nothing()
                _add(arrays[name], counts)
            return {"arrays": arrays, "total": total, "not_seen": dict(self._not_seen)}

    def __repr__(self) -> str:
        return "\n".join(_lines(self.report()))


active: tuple[Trace, ...] = ()
_lock = threading.Lock()


def _reset() -> None:
    """Start without traces in a forked process, where nobody would release the lock."""
    global active, _lock
    active, _lock = (), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


def trace() -> Trace:
    """Count what is fetched of Zarr arrays, and written in place.

    Of compressed chunks, and wherever zarr fetches chunks itself, only the count is known, or the
    length if they are in local files. With another codec pipeline than those of this package, only
    chunks that pass its codec are counted. All threads of the process are counted, but no other
    process.

    Returns
    -------
    Trace
        A context manager, which counts inside its ``with``. Printed, it is a table;
        `Trace.report` returns the same as a dict.

    Examples
    --------
    >>> import numcodecs_bytes, zarr
    >>> array = zarr.create_array({}, shape=(4, 8), dtype="i4", compressors=None)
    >>> array[:] = 1
    >>> with numcodecs_bytes.trace() as traced:
    ...     row = zarr.open_array(array.store)[0]
    >>> total = traced.report()["total"]
    >>> total["bytes_selected"], total["bytes_fetched"], total["why_whole"]
    (32, 128, {'nothing to save: in memory, for example': 1})
    """
    return Trace()


class Fetched(NamedTuple):
    """What was fetched to read a chunk.

    Attributes
    ----------
    num_requests, num_bytes : int
        Requests to the store, or reads of a file, and the bytes that they returned.
    why : str
        Why the chunk was read whole; empty if it was to be read in part.
    num_bytes_alone : int or None
        Bytes that zarr alone fetches; None if these are all of the chunk.
    """

    num_requests: int = 0
    num_bytes: int = 0
    why: str = ""
    num_bytes_alone: int | None = None


def note_read(
    byte_getter: object, num_axes: int, num_bytes: int, fetched: Fetched, num_selected: int | None
) -> None:
    """Count a chunk that was read.

    Parameters
    ----------
    byte_getter, num_axes
        See `note`.
    num_bytes : int
        Length of the chunk in bytes.
    fetched : Fetched
        What was fetched of it.
    num_selected : int or None
        Bytes of the selected elements, None if the chunk is missing.
    """
    alone = num_bytes if fetched.num_bytes_alone is None else fetched.num_bytes_alone
    counts: Counts = {
        "chunks": 1,
        "chunks_missing": int(num_selected is None),
        "requests": fetched.num_requests,
        "bytes_fetched": fetched.num_bytes,
        "bytes_zarr_alone": 0 if num_selected is None else alone,
        "bytes_selected": num_selected or 0,
    }
    if num_selected is not None and num_selected < WHOLE * num_bytes <= fetched.num_bytes:
        why = fetched.why or "small, or the selected bytes are close together"
        counts |= {"chunks_whole": 1, "why_whole": {why: 1}}
    note(byte_getter, num_axes, counts)


def note(byte_getter: object, num_axes: int, counts: Counts) -> None:
    """Add to the counts of a chunk's array; never raise.

    Parameters
    ----------
    byte_getter : object
        The byte getter or byte setter of the chunk.
    num_axes : int
        The number of axes of the array.
    counts : dict
        What was read or written.
    """
    name = _name_of_array(byte_getter, num_axes)
    if not name:
        note_not_seen("inner chunks of shards, which zarr fetches and writes")
        return
    with _lock:
        for traced in active:
            _add(traced._arrays.setdefault(name, _nothing()), counts)  # noqa: SLF001


def note_not_seen(what: str, num: int = 1) -> None:
    """Count chunks of which nothing else is known."""
    with _lock:
        for traced in active:
            _add(traced._not_seen, {what: num})  # noqa: SLF001


def _name_of_array(byte_getter: Any, num_axes: int) -> str:
    """Return the store and path of the array to which the key of a chunk belongs, or ""."""
    name, path, store = "", None, None
    with contextlib.suppress(Exception):  # a name is not worth an error
        path = byte_getter.path
        store = byte_getter.store
        name = " ".join(str(store).split())
    if not isinstance(path, str):
        return ""
    if not 0 < len(name) <= MAX_STORE_LENGTH:
        name = type(store).__name__
    at = path_of_array(path, num_axes)
    return f"{name}/{at}" if at else name


def path_of_array(path: str, num_axes: int) -> str:
    """Return the path of the array to which the path of a chunk belongs."""
    parts = path.split("/")
    indices = parts[len(parts) - num_axes :]
    if indices and all(part.isdecimal() for part in indices):  # "c/0/1", or "0/1" in Zarr v2
        parts = parts[:-num_axes]
        parts = parts[:-1] if parts[-1:] == ["c"] else parts
    else:
        parts.pop()  # "c.0.1", "0.1", "c" or "0"
    return "/".join(parts)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table."""
    rows = list(report["arrays"].items())
    if len(rows) > 1:
        rows.append(("all arrays", report["total"]))
    width = min(max([len(name) for name, _ in rows], default=0), MAX_NAME_LENGTH)
    if rows:
        yield "  ".join(["array".ljust(width), *HEAD])
    for name, counts in rows:
        cells = (
            counts["chunks"],
            counts["chunks_whole"],
            counts["requests"],
            _size(counts["bytes_fetched"]),
            _size(counts["bytes_zarr_alone"]),
            _size(counts["bytes_selected"]),
            _size(counts["bytes_in_place"]),
        )
        shown = name if len(name) <= width else f"...{name[3 - width :]}"
        aligned = (str(cell).rjust(len(head)) for cell, head in zip(cells, HEAD, strict=True))
        yield "  ".join([shown.ljust(width), *aligned])
    total = report["total"]
    if not report["arrays"] and not report["not_seen"]:
        yield (
            "numcodecs_bytes read and wrote nothing: run `numcodecs-bytes` to see if it is in use; "
            "other processes are not counted"
        )
    if total["chunks_missing"]:
        yield f"{total['chunks_missing']} missing, read as the fill value"
    for what, reasons in (
        ("read whole", total["why_whole"]),
        ("not written in place", total["why_not_in_place"]),
        ("not seen", report["not_seen"]),
    ):
        for why, num in reasons.items():
            yield f"{num} {what}: {why}"


def _size(num_bytes: int) -> str:
    """Return a number of bytes as people read it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
