"""Bugs of this package in a command, which say nothing about the store."""

from importlib.metadata import packages_distributions
from traceback import walk_tb

# What this package raises on purpose, and what odd metadata or a lack of something lead to.
_EXPECTED = (ImportError, MemoryError, OSError, RecursionError, ValueError, Warning)


def is_bug(error: Exception) -> bool:
    """Whether an error of Python was raised by a line of this package, and not on purpose.

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
    return True  # in `__main__`, for example


def raise_if_bug(error: object) -> None:
    """Raise an error again if it is a bug."""
    if isinstance(error, Exception) and is_bug(error):
        raise error
