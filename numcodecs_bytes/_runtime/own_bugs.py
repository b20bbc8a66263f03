"""If this package itself fails, zarr reads or writes instead.

An error is an own bug if no called function is known to raise it: a mistake of this package, or a
change in zarr.
"""

import concurrent.futures
import logging
import traceback
from collections.abc import Callable
from typing import NamedTuple

from numcodecs_bytes._core.dtypes import DataTypeError, EndianError
from numcodecs_bytes._core.interrupts import interrupt_of
from numcodecs_bytes._core.lengths import LengthError
from numcodecs_bytes._zarr_api.options import OptionError

_KNOWN = (
    OSError,
    MemoryError,
    concurrent.futures.CancelledError,
    DataTypeError,
    EndianError,
    LengthError,
    OptionError,
)
logged: set[tuple[type, str]] = set()  # the class, file and line of each


def is_own_bug(error: Exception) -> bool:
    """Whether an error is an own bug, so that zarr reads or writes instead."""
    if isinstance(error, _KNOWN) or is_lost(error):
        return False
    return interrupt_of(error) is None


def is_lost(error: Exception) -> bool:
    """Whether a connection was lost, or never made."""
    names = " ".join([kind.__name__ for kind in type(error).__mro__])
    if "GenericError" in names:  # obstore's; the end of the first line says why
        why = str(error).partition("\n")[0].partition(" - ")[2].lower()
        return any(text in why for text in ("error sending request", "connection", "timed out"))
    # The errors of Python and aiohttp (two), of botocore, and of Azure.
    lost = ("ConnectionError", "TimeoutError", "HTTPClientError", "ServiceRequestError")
    return any(name in names for name in lost)


class catch(NamedTuple):  # noqa: N801
    """A context whose own bugs are recorded instead of raised.

    It is a class because contexts made by `contextlib` change errors, and those of some stores
    can't be changed.
    """

    record: Callable[[Exception], None]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception) or not is_own_bug(error):
            return False
        self.record(error)
        return True


def forget_alike(bugs: list[Exception], error: Exception) -> bool:
    """Forget the own bugs that equal the error zarr then raises; return whether there were any.

    NumPy, for example, has at most 64 dimensions, with zarr alone as well.
    """
    others = [bug for bug in bugs if _text_of(bug) != _text_of(error)]
    has_alike = len(others) < len(bugs)
    bugs[:] = others
    return has_alike


def _text_of(error: Exception) -> str:
    """Return the class of an error and its message, without notes, even if `str` fails."""
    return traceback.format_exception_only(error)[0]


def log_all(bugs: list[Exception]) -> None:
    """Log own bugs, and forget them: their frames refer to the arrays that were read or written."""
    while bugs:
        log(bugs.pop(0))


def log(error: Exception) -> None:
    """Log an own bug with its traceback, once for each kind and place."""
    kind = type(error), str(traceback.extract_tb(error.__traceback__, limit=-1))
    if kind not in logged:
        logged.add(kind)
        logging.getLogger("numcodecs_bytes").error(
            "numcodecs_bytes has a bug, so zarr reads or writes instead: please report this, with "
            "the traceback",
            exc_info=error,
        )
