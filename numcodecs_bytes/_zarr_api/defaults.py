"""Make classes of this package zarr's defaults, in place of zarr's own, or step aside.

Works with any version of zarr.
"""

import contextlib
import gc
import re
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import zarr

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._zarr_api.options import OptionError, untested_zarr, why_section_is_wrong

OLDEST, NEWEST_MINOR = (3, 1, 6), (3, 4)  # the versions of zarr that the tests run with
why_aside: dict[str, str] = {}  # what is left to zarr, and why
_has_warned = False


class UntestedZarrError(Exception):
    """The version of zarr is none of those that this package was tested with."""


def is_tested(version: str) -> bool:
    """Whether a version of zarr is a release of a minor version that the tests run with."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(\.post\d+)?(\+[a-z0-9.]+)?", version)
    if match is None:  # a development version, a pre-release, or of an unknown form
        return False
    release = tuple(map(int, match.groups()[:3]))
    return release >= OLDEST and release[:2] <= NEWEST_MINOR


def check_version() -> None:
    """Raise UntestedZarrError if arrays are to be left to an untested version of zarr."""
    if not is_tested(zarr.__version__) and not untested_zarr():
        raise UntestedZarrError(f"{zarr.__version__} was not tested")


@contextlib.contextmanager
def or_step_aside(what: str) -> Iterator[None]:
    """Return a context whose errors leave something to zarr, with one warning.

    zarr must keep working without this package.
    """
    global _has_warned  # noqa: PLW0603
    is_silent = False
    try:
        yield
    except Exception as raised:  # noqa: BLE001 # a zarr of another version may raise anything
        raise_interrupt(raised)  # the next time that zarr loads it, it may work
        error = raised
    else:
        return
    if isinstance(error, UntestedZarrError):
        oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST_MINOR))
        why = (
            f"it was tested with zarr {oldest} to {newest}, and this is {zarr.__version__}; use "
            "another version of either, or set numcodecs_bytes.untested_zarr in zarr's config to "
            "True (ZARR_NUMCODECS_BYTES__UNTESTED_ZARR=true) to use it all the same, or to False "
            "to let zarr alone work, with no warning"
        )
        is_silent = untested_zarr() is False
    elif isinstance(error, OptionError):
        why = str(error)
    else:
        why = why_section_is_wrong() or (
            f"it does not support this version of zarr ({zarr.__version__}) or its config "
            f"({type(error).__name__}: {error}); upgrade numcodecs_bytes, or fix the config"
        )
    why_aside[what] = f"numcodecs_bytes leaves {what} to zarr alone: {why}"
    if not (_has_warned or is_silent):
        _has_warned = True
        with contextlib.suppress(Warning):
            warnings.warn(why_aside[what], RuntimeWarning, stacklevel=4)


def make_default(section: str, name: str, ours: str) -> None:
    """Make a class, given by its path, the value of a key unless the user has chosen another one.

    Raises AttributeError or KeyError if zarr's config is unlike that of the supported versions.
    """
    config: Any = zarr.config
    defaults = config.defaults[0][section]
    zarr_default = defaults[name]

    def replace() -> None:
        # A value that the user chose is a different object, even if its text is the same.
        if config.get(section)[name] is zarr_default:
            config.get(section)[name] = ours

    if config.get(section)[name] is not zarr_default:
        # Each open `with zarr.config.set(...)` restores zarr's own default at its end. donfig keeps
        # no list of them, so the garbage collector has to find them: that ends when it does, or
        # when zarr's config lets a package set a default.
        kind = type(zarr.config.set({}))
        for scope in gc.get_referrers(kind):
            if type(scope) is kind:
                weakref.finalize(scope, replace).atexit = False
    replace()
    # Modified in place, because in zarr.config.reset() the oldest defaults win.
    defaults[name] = ours
