"""Prints what a command finds, as text or JSON, and says with which status it ends."""

import contextlib
import enum
import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._tools.reporting import describe_failure, is_bug, printable


class Status(enum.IntEnum):
    """The exit status of a command: the highest of all that it finds."""

    FINE = 0
    PROBLEMS = 1  # there are some, or nothing is found
    FAILED = 2  # a store can't be read or written, or an argument is wrong
    BUG = 3  # this package has one
    INTERRUPTED = 130  # Ctrl-C was pressed; shells use this number
    CLOSED = 141  # stdout was closed, for example by `head`; shells use this number


class Finding(NamedTuple):
    """What a command finds, yielded as soon as it is found; the last one has the JSON document."""

    status: Status = Status.FINE
    text: str = ""  # a part of the report
    message: str = ""  # for stderr: it is no part of the report
    document: JSONObject | None = None  # the report


def failure(what: str, error: Exception, document: JSONObject | None = None) -> Finding:
    """Return what failed and why; or, with a traceback, that this is a bug."""
    reason = reason_of(error)
    if is_bug(error):
        message = "".join(traceback.format_exception(error)) + reason
        return Finding(Status.BUG, message=message, document=document)
    return Finding(Status.FAILED, message=f"{what}: {reason}", document=document)


def reason_of(error: Exception) -> str:
    """Return what an error says, and whether it is a bug."""
    why = describe_failure(error, is_named=False).removeprefix("can't be read: ")
    return f"this is a bug of numcodecs_bytes, please report it: {why}" if is_bug(error) else why


def print_findings(findings: Iterable[Finding], *, as_json: bool) -> Status:
    """Print each finding as soon as it is yielded, or the document as JSON; return the status."""
    status = Status.FINE
    for finding in _to_stderr(findings):
        status = max(status, finding.status)
        is_last = finding.document is not None
        print_to_stderr(finding.message)
        if not as_json:
            _print_or_exit(finding.text, status if is_last else Status.CLOSED)
        elif is_last:  # JSON leaves DEL as it is
            text = json.dumps(finding.document, indent=2).replace("\x7f", "\\u007f")
            _print_or_exit(text, status)
    return status


def _to_stderr(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings; what other packages print meanwhile is no part of the report."""
    iterator = iter(findings)
    while True:
        with contextlib.redirect_stdout(sys.stderr):
            finding = next(iterator, None)
        if finding is None:
            return
        yield finding


def print_to_stderr(text: str) -> None:
    """Print what is no part of the report, if there is anything, and stderr is open."""
    if text and sys.stderr is not None:  # `print` takes None for stdout
        with contextlib.suppress(OSError):  # nobody can be told
            print(_printable_lines(text), file=sys.stderr)


def _print_or_exit(text: str, status: Status) -> None:
    """Print to stdout, if there is anything; if it was closed on purpose, exit with `status`."""
    if not text:
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # it may lack characters of names
    encoded = _printable_lines(text).encode(encoding, "backslashreplace")
    try:
        print(encoded.decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # `head` raises that
            status = Status.FAILED
            print_to_stderr(f"can't print the report: {error.strerror}")
        sys.exit(status)


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
