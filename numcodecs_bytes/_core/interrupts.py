"""Interrupts: errors that have nothing to do with the line at which they are raised.

In its caller's thread, any line may raise anything: what the handler of a signal raises (PyTorch's
of SIGCHLD a RuntimeError), a profile or trace function, or ``PyThreadState_SetAsyncExc``. That is
the caller's, and goes up: it says nothing about a file, and is no own bug.

`raise_if_of_caller` follows calls of our own, of zarr, NumPy or the system; `raise_interrupt`
follows code of others, which may raise anything.
"""

import inspect
import sys
import traceback
from types import FrameType

# The packages that a read in its caller's thread calls, if it asks no client of a store.
_CALLED = {"donfig", "google_crc32c", "numcodecs", "numcodecs_bytes", "numpy", "zarr"}
_CALLED |= sys.stdlib_module_names


def interrupt_of(error: BaseException | None) -> BaseException | None:
    """Return the interrupt among an error and its causes, if there is one.

    It has passed through a function that was handed its caller's frame: a handler of a signal, a
    profile or a trace function.
    """
    seen: set[int] = set()  # `set[int]()` takes a microsecond
    while error is not None and id(error) not in seen:  # some are their own cause
        if any(map(_is_handler, _frames_below(error))):
            return error
        seen.add(id(error))
        error = error.__cause__
    return None


def _frames_below(error: BaseException) -> list[FrameType]:
    """Return the frames that an error has passed through, below the one that caught it."""
    entry = error.__traceback__ and error.__traceback__.tb_next
    return [frame for frame, _ in traceback.walk_tb(entry)] if entry else []


def _is_handler(frame: FrameType) -> bool:
    names, others, _, values = inspect.getargvalues(frame)
    given, rest = list(map(values.get, names)), values.get(others) if others else ()
    given += rest if isinstance(rest, tuple) else ()  # a function may assign its `*args` anew
    return any(isinstance(each, FrameType) and each is frame.f_back for each in given)


def raise_interrupt(error: BaseException | None) -> None:
    """Raise an error, or its cause, again if it is an interrupt, whatever code was called."""
    interrupt = interrupt_of(error)
    if interrupt is None:
        return
    context = interrupt.__context__
    try:
        raise interrupt
    finally:
        interrupt.__context__ = context  # without the error that is handled here


def is_of_caller(error: Exception) -> bool:
    """Whether none of the packages that we know, nor the system, has raised an error.

    ``PyThreadState_SetAsyncExc`` leaves no frame, but knows no ``errno`` nor any arguments. An
    OSError with an ``errno`` of a handler that has deleted its frame argument is not noticed.
    """
    if not _is_of_called(type(error).__module__) or interrupt_of(error) is not None:
        return True
    if isinstance(error, OSError):  # its frames say nothing: pyfakefs wraps calls of the system
        return error.errno is None
    modules = [frame.f_globals.get("__name__", "") for frame in _frames_below(error)]
    is_explained = bool(error.args) or isinstance(error, AssertionError | MemoryError)
    return not (is_explained and all(map(_is_of_called, modules)))


def _is_of_called(module: str) -> bool:
    return module.partition(".")[0] in _CALLED


def raise_if_of_caller(error: Exception) -> None:
    """Raise an error again if only the caller can have raised it; see `is_of_caller`."""
    if is_of_caller(error):
        raise error
