"""Counts what is fetched and written, for `trace`."""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from numcodecs_bytes._names import name_of_store

Counts = dict[str, Any]

# What is counted of an array, and the head of its column in the table.
_COLUMNS = {
    "chunks": "chunks",
    "chunks_whole": "read whole",
    "requests": "requests",
    "bytes_fetched": "fetched",
    "bytes_zarr_alone": "zarr alone",
    "bytes_selected": "selected",
    "bytes_in_place": "written in place",
}
_REASONS = {"why_whole": "read whole", "why_not_in_place": "not written in place"}
_NUMBERS = (*_COLUMNS, "chunks_missing", "chunks_in_place")


def _nothing() -> Counts:
    return dict.fromkeys(_NUMBERS, 0) | {name: {} for name in _REASONS}


def _add(counts: Counts, more: Counts) -> None:
    """Add numbers, and those of the reasons, to others of the same names."""
    for name, value in more.items():
        if isinstance(value, dict):
            _add(counts[name], value)
        else:
            counts[name] = counts.get(name, 0) + value


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
            ``not_seen``: maps the reason why zarr read chunks itself to their number. Counts are

            - ``chunks``: chunks, or shards, of which something was read; ``chunks_missing``: those
              of them that do not exist, and were read as the fill value
            - ``chunks_whole``: those that were fetched whole, or nearly, although less was
              selected; ``why_whole``: the reasons, and how many chunks each
            - ``requests``: requests to the store, or reads of a file
            - ``bytes_fetched``, ``bytes_selected``: bytes that were fetched, and those of the
              selected elements
            - ``bytes_zarr_alone``: bytes that zarr alone fetches for the same: chunks as a whole;
              of a shard, its index and the inner chunks of which something is selected; to write a
              part of a chunk that we write in place, all of it, before it writes all of it
            - ``chunks_in_place``, ``bytes_in_place``: chunks of which parts were written in place,
              and the bytes of these parts; ``why_not_in_place``: why others were not, though that
              was asked for, and how many
        """
        with _lock:
            total, arrays = _nothing(), {name: _nothing() for name in self._arrays}
            for name, counts in self._arrays.items():
                _add(total, counts)
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

    Of compressed chunks, and of shards that zarr reads, only the number is known. With another
    codec pipeline than those of this package, nothing is counted. All threads of the process are
    counted, but no other process.

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
    >>> total["bytes_selected"], total["bytes_fetched"], total["chunks_whole"]
    (32, 128, 1)
    """
    return Trace()


class Fetched(NamedTuple):
    """What was fetched to read a chunk."""

    num_requests: int = 0
    num_bytes: int = 0
    why: str = ""  # why the chunk was read whole
    num_bytes_alone: int | None = None  # what zarr alone fetches, if that is not all of the chunk


def note_read(
    byte_getter: object, num_axes: int, num_bytes: int, fetched: Fetched, num_selected: int | None
) -> None:
    """Count a chunk of `num_bytes`; `num_selected` is in bytes, and None if it is missing."""
    alone = num_bytes if fetched.num_bytes_alone is None else fetched.num_bytes_alone
    counts: Counts = {
        "chunks": 1,
        "chunks_missing": int(num_selected is None),
        "requests": fetched.num_requests,
        "bytes_fetched": fetched.num_bytes,
        "bytes_zarr_alone": 0 if num_selected is None else alone,
        "bytes_selected": num_selected or 0,
    }
    # It counts as read whole if nine tenths of it were fetched, and less was selected.
    if num_selected is not None and num_selected < 0.9 * num_bytes <= fetched.num_bytes:
        why = fetched.why or "one read takes less: small, or what is selected is close together"
        counts |= {"chunks_whole": 1, "why_whole": {why: 1}}
    note(byte_getter, num_axes, counts)


def note(byte_getter: Any, num_axes: int, counts: Counts) -> None:
    """Add to the counts of the array of a chunk, given its byte getter or setter."""
    path = path_of_array(byte_getter.path, num_axes)
    name = f"{name_of_store(byte_getter.store)}/{path}".rstrip("/")
    with _lock:
        for traced in active:
            _add(traced._arrays.setdefault(name, _nothing()), counts)  # noqa: SLF001


def note_not_seen(why: str, num: int = 1) -> None:
    """Count chunks that zarr read itself."""
    with _lock:
        for traced in active:
            _add(traced._not_seen, {why: num})  # noqa: SLF001


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
    rows, total = dict(report["arrays"]), report["total"]
    if len(rows) > 1:
        rows["all arrays"] = total
    if rows:
        width = max(map(len, rows))
        yield "  ".join(["array".ljust(width), *_COLUMNS.values()])
        for name, counts in rows.items():
            cells = []
            for key, head in _COLUMNS.items():
                show = _size if key.startswith("bytes") else str
                cells.append(show(counts[key]).rjust(len(head)))
            yield "  ".join([name.ljust(width), *cells])
    elif not report["not_seen"]:
        zarr = sys.modules.get("zarr")
        path = zarr.config.get("codec_pipeline.path") if zarr else ""
        yield (
            "numcodecs_bytes read and wrote nothing "
            f"(codec_pipeline.path is {path!r}): run `numcodecs-bytes` to see if it is in use, or "
            "what prevents it; other processes are not counted"
        )
    if total["chunks_missing"]:
        yield f"{total['chunks_missing']} missing, read as the fill value"
    for what, reasons in (
        *((what, total[key]) for key, what in _REASONS.items()),
        ("read by zarr, whole", report["not_seen"]),
    ):
        for why, num in reasons.items():
            yield f"{num} {what}: {why}"


def _size(num_bytes: int) -> str:
    """Return a number of bytes as people read it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes} B"
