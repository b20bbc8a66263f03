"""What the commands report: errors in words, or as bugs; of `check`, findings, limits, progress."""

import errno
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.client import responses
from importlib.metadata import packages_distributions
from numbers import Integral
from traceback import walk_tb
from types import ModuleType
from typing import Literal, NoReturn, ParamSpec, Protocol, TypeVar

from numcodecs_bytes._core.catch import value_or_error

P = ParamSpec("P")
T = TypeVar("T")

# What helps if the system can't read a file.
_OF_SYSTEM = {
    errno.EACCES: ": give this user permission to read it",
    errno.ELOOP: ": correct the link",
}
# What this package raises on purpose, and what odd metadata or a lack of something lead to.
_EXPECTED = (ImportError, MemoryError, OSError, RecursionError, ValueError, Warning)


def printable(line: str) -> str:
    """Return a line with unprintable characters escaped, because names may contain anything."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def describe_error(error: Exception) -> str:
    """Return the class of an error, and the first line of its message."""
    text = str(error).strip().partition("\n")[0].removeprefix("x ")  # Icechunk draws a tree
    if isinstance(error, RecursionError):  # its message says nothing about the metadata
        text = "it is nested too deeply"
    return f"{type(error).__name__.lstrip('_')}: {text}".removesuffix(": ")


def describe_failure(
    error: Exception,
    *,
    is_reference: bool = False,
    is_named: bool = True,
    options: str = "storage options",
) -> str:
    """Describe the error with which a store does not return something, and say what helps.

    `is_named` says that what is meant, or what a reference to it points to, is named beside it;
    `options` says where credentials go.
    """
    if type(error).__name__ == "ReferenceNotReachable" and isinstance(error.__cause__, Exception):
        error = error.__cause__
    status = getattr(error, "status", None)  # of aiohttp
    if found := re.search(r"status code: (\d{3})", str(error)):  # of obstore
        status = int(found[1])
    if is_reference and isinstance(error, KeyError) and str(*error.args[:1]).isalnum():
        what = f"its target has another protocol, {error}, than others that fsspec opened"
        return f"can't be read: {what}: write all targets with the same"
    if is_reference and (isinstance(error, FileNotFoundError) or status in (404, 410)):
        return "can't be read: its file is missing: restore it, or make the references again"
    if is_reference and isinstance(error, IsADirectoryError):
        return "can't be read: its file is a folder: make the references again"
    if not isinstance(status, int) or status not in responses:
        text = explain_error(error)
        if is_named and isinstance(error, OSError) and error.strerror:  # without the path
            text = f"{type(error).__name__}: {error.strerror}"
        return f"can't be read: {text}{_remedy_for(error, options)}"
    what = f"can't be read: the server answers {status} ({responses[status]})"
    if status in (401, 403):
        return f"{what}: log in, or give credentials in the {options}"
    return f"{what}: try again later" if status in (429, *range(500, 600)) else what


def _remedy_for(error: Exception, options: str) -> str:
    """Return what helps after an error of a store that has such options, or ""."""
    if type(error).__name__ == "BadZipFile":
        return ": restore the archive"
    text = str(error)
    is_of_icechunk = type(error).__module__.startswith("icechunk")
    is_lost = "not found" in text or "range was invalid" in text
    if is_of_icechunk and is_lost and "virtual" not in text:
        return ": restore the repository, or read an earlier snapshot"
    if type(error).__name__ == "NoCredentialsError":
        return f": give credentials in the {options} or, if the data are public, anon"
    if re.fullmatch("(?i)forbidden|access ?denied", text):  # of an object store
        return f": log in, or give credentials in the {options}"
    number = error.errno if isinstance(error, OSError) else None
    return _OF_SYSTEM.get(number or 0, "")


def explain_error(error: Exception) -> str:
    """Return the message of an error that says everything, and describe other errors."""
    says_all = isinstance(error, FileNotFoundError | ImportError | ValueError)
    says_all = says_all or (isinstance(error, OSError) and error.errno is None)
    return str(error) if says_all and str(error) else describe_error(error)


def is_bug(error: Exception) -> bool:
    """Whether an error of Python was raised by a line of this package, and not on purpose.

    For a read, more is an own bug (`_runtime.own_bugs`): it knows what each function that it calls
    may raise, whereas a ValueError is how a command learns that metadata are wrong.

    Code of others, such as stores and codecs, is called by `value_or_error` where its errors are
    expected; where they are not, the innermost frame tells whose the error is.
    """
    if isinstance(error, _EXPECTED) or type(error).__module__ != "builtins":
        return False
    installed = packages_distributions()
    for frame, _ in reversed(list(walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package == "numcodecs_bytes":
            return True
        if package in installed:
            return False
    return True  # a frame of `__main__`, for example


def value_or_expected_error(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | Exception:
    """Return what a function of this package returns, or its error; raise that if it is a bug."""
    value = value_or_error(function, *args, **kwargs)
    if isinstance(value, Exception) and is_bug(value):
        raise value
    return value


class _Module(ModuleType):
    def __call__(self, *_args: object, **_options: object) -> NoReturn:
        function = self.__name__.rpartition(".")[2]
        raise TypeError(f"{self.__name__} is a module: call {self.__name__}.{function}(...)")


def refuse_calls(module: str) -> None:
    """Let a module say what to do if it is called like the function in it that has its name."""
    sys.modules[module].__class__ = _Module


@dataclass
class ArrayReport:
    """The findings for an array, or for a group that has problems.

    Attributes
    ----------
    path : str
        Path of the array or group in the store.
    kind : {'array', 'group'}
        Which of these it is, as far as that is known.
    data_type : str
        NumPy's name, or such as "struct of 3 fields"; empty for a group, or if zarr can't open the
        array.
    partial_reads : str
        "yes", or "no: " or "not known: " and the reason.
    num_chunks : int
        Number of chunks, or shards of a sharded array, that were checked.
    problems : list of str
        What is damaged, read incorrectly, or rejected by other implementations; the first ten.
    num_problems : int
        Number of all problems.
    notes : list of str
        What needs no action.
    """

    path: str
    kind: Literal["array", "group"] = "array"
    data_type: str = ""
    partial_reads: str = "no: it can't be opened"
    num_chunks: int = 0
    problems: list[str] = field(default_factory=list)
    num_problems: int = 0
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return self.format()

    def format(self, location: str = "") -> str:
        """Return a line for the array, whose store is at a location, and one for each finding."""
        name = f"{location}/{self.path}"
        lines = [f"{name:32} {self.data_type:16} partial reads: {self.partial_reads}"]
        if self.kind == "group":
            lines = [f"{name:32} group"]
        lines += [f"  PROBLEM {problem}" for problem in self.problems]
        if self.num_problems > len(self.problems):
            lines.append(f"  PROBLEM ... and {self.num_problems - len(self.problems)} more")
        lines += [f"  note    {note}" for note in self.notes]
        return "\n".join(map(printable, lines))

    def add_problem(self, problem: str) -> None:
        """Count a problem, unless it is listed, and list it if it is one of the first ten."""
        if problem in self.problems:
            return
        self.num_problems += 1
        if len(self.problems) < 10:
            self.problems.append(problem)


@dataclass(frozen=True)
class Limits:
    """How much of each array is checked.

    Attributes
    ----------
    max_chunks : int or None
        Largest number of chunks, or shards of a sharded array, to check; None checks all.
    max_chunk_bytes : int
        (Inner) chunks with more bytes in memory than this are not decoded, and longer members of
        zip archives are not read to check their CRC-32.
    """

    max_chunks: int | None = None
    max_chunk_bytes: int = 100_000_000

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError if a limit is no number, or negative."""
        for name, limit in vars(self).items():
            if limit is None and name == "max_chunks":
                continue
            if not isinstance(limit, Integral) or isinstance(limit, bool):
                what = "whole number of bytes" if name == "max_chunk_bytes" else "whole number"
                raise TypeError(f"{name} must be a {what}, got {limit!r}")
            if limit < 0:
                raise ValueError(f"{name} must be at least 0, got {limit!r}")


class ProgressBar(Protocol):
    """What `check` and `migrate` use of a progress bar of tqdm."""

    total: float | None

    def update(self, n: int = 1, /) -> object: ...
    def refresh(self) -> object: ...
    def reset(self, total: float | None = None, /) -> object: ...
    def set_description(self, text: str, /) -> object: ...
    def external_write_mode(self) -> AbstractContextManager[object]: ...


def check_progress(progress: object) -> None:
    """Raise TypeError unless this is a progress bar, or None."""
    if progress is not None and not callable(getattr(progress, "update", None)):
        raise TypeError(f"progress must be a progress bar such as tqdm.tqdm(), got {progress!r}")
