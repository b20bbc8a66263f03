"""If this package itself fails, zarr reads or writes instead.

An error is an own bug if no called function is known to raise it: a mistake of this package, or a
change in zarr.
"""

import concurrent.futures
import contextlib
import functools
import logging
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from numcodecs_bytes._core.dtypes import DataTypeError, EndianError, LengthError
from numcodecs_bytes._host.options import OptionError

P = ParamSpec("P")
T = TypeVar("T")
_Coroutine = Coroutine[Any, Any, T]

_KNOWN = (
    OSError,
    MemoryError,
    concurrent.futures.CancelledError,
    DataTypeError,
    EndianError,
    LengthError,
    OptionError,
)
is_caught = True  # not in most of the tests
_logged: set[tuple[type, str]] = set()
_waiting: ContextVar[list[Exception] | None] = ContextVar("_waiting", default=None)


def is_own_bug(error: Exception) -> bool:
    """Whether an error is an own bug, so that zarr reads or writes instead."""
    return is_caught and not isinstance(error, _KNOWN) and not is_lost(error)


def is_lost(error: Exception) -> bool:
    """Whether a connection was lost, or never made."""
    names = " ".join([kind.__name__ for kind in type(error).__mro__])
    if "GenericError" in names:  # obstore's; the end of the first line says why
        why = str(error).partition("\n")[0].partition(" - ")[2].lower()
        return any(text in why for text in ("error sending request", "connection", "timed out"))
    # The errors of Python and aiohttp (two), of botocore, and of Azure.
    lost = ("ConnectionError", "TimeoutError", "HTTPClientError", "ServiceRequestError")
    return any(name in names for name in lost)


@contextlib.contextmanager
def only_logged() -> Iterator[None]:
    """Return a context of what only counts: its own bugs are logged, and fail no read or write."""
    try:
        yield
    except Exception as error:
        if not is_own_bug(error):
            raise
        log(error)


def logged_after_zarr(method: Callable[P, _Coroutine[T]]) -> Callable[P, _Coroutine[T]]:
    """Log own bugs at the end of a read or write, unless zarr then raises the same error.

    NumPy, for example, has at most 64 dimensions, with zarr alone as well.
    """

    @functools.wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        errors, others = list[Exception](), _waiting.get()
        _waiting.set(errors)
        try:
            return await method(*args, **kwargs)
        except Exception as error:
            errors[:] = [each for each in errors if _text_of(each) != _text_of(error)]
            raise
        finally:
            _waiting.set(others)  # not `reset`: a read may be closed in another context
            while errors:  # whose frames refer to this one, and to the output
                log(errors.pop(0))

    return call


def _text_of(error: Exception) -> str:
    """Return the class of an error and its message, without notes, even if `str` fails."""
    return traceback.format_exception_only(error)[0]


def log(error: Exception) -> None:
    """Log an own bug with its traceback, once for each kind and place."""
    if (waiting := _waiting.get()) is not None:
        waiting.append(error)
        return
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    code = innermost and innermost.tb_frame.f_code
    kind = type(error), f"{code and code.co_filename}:{innermost and innermost.tb_lineno}"
    if kind not in _logged:
        _logged.add(kind)
        logging.getLogger("numcodecs_bytes").error(
            "numcodecs_bytes failed in a way that it should not: zarr makes this write instead, or "
            "reads this array from now on; please report this, with the traceback",
            exc_info=error,
        )
