"""Where a command prints, and its exit status."""

import enum
import os
import sys
import traceback

from numcodecs_bytes._tools.bugs import is_bug
from numcodecs_bytes._tools.reporting import explain_error, printable


class Status(enum.IntEnum):
    """The exit status of a command; of several stores, the highest."""

    FINE = 0
    PROBLEMS = 1  # or nothing is found
    FAILED = 2  # a store can't be read or written, or an argument is wrong
    BUG = 3  # of this package
    INTERRUPTED = 130  # by Ctrl-C, as in shells
    CLOSED = 141  # stdout was closed, as by `head`; the same


def status_of(error: Exception) -> Status:
    """Return the exit status after an error."""
    return Status.BUG if is_bug(error) else Status.FAILED


def reason_of(error: Exception) -> str:
    """Return what an error says, and whether it is a bug."""
    why = explain_error(error)
    return f"this is a bug of numcodecs_bytes, please report it: {why}" if is_bug(error) else why


def print_or_exit(text: str, status: Status) -> None:
    """Print to stdout; if that fails, exit: with `status` if it was closed on purpose."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # may lack characters of names
    encoded = _printable_lines(text).encode(encoding, "backslashreplace")
    try:
        print(encoded.decode(encoding), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # as by `head`
            status = Status.FAILED
            print_to_stderr(f"can't print the report: {error.strerror}")
        sys.exit(status)


def print_to_stderr(text: str) -> None:
    """Print what is no part of the report."""
    print(_printable_lines(text), file=sys.stderr)


def print_error(what: str, error: Exception) -> None:
    """Print what failed and why; or, with a traceback, that this is a bug."""
    if is_bug(error):
        print_to_stderr("".join(traceback.format_exception(error)) + reason_of(error))
    else:
        print_to_stderr(f"{what}: {reason_of(error)}")


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
