"""The entry points, which zarr loads in every program that uses zarr in this environment.

They must never fail: with an unsupported version of zarr, each module warns once and leaves zarr
unchanged.
"""

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable

import zarr


def step_aside(what: str, error: Exception) -> None:
    """Warn that this package does not add something to zarr; never raise."""
    with contextlib.suppress(Warning):
        warnings.warn(
            f"numcodecs_bytes adds no {what}: it does not support this version of zarr "
            f"({zarr.__version__}) or its config ({type(error).__name__}: {error}); upgrade "
            "numcodecs_bytes, or fix the config",
            RuntimeWarning,
            stacklevel=3,
        )


def now_and_after_scopes(replace: Callable[[], None]) -> None:
    """Call a function now, and when each `with zarr.config.set(...)` ends that is open now.

    Such a scope restores the value that it replaced, zarr's own default. A program whose first
    array is opened inside it would go back to that for the rest of the process, with nothing to say
    why. donfig keeps no list of open scopes, so only the garbage collector can find them: once, in
    45 ms if there are 700,000 objects.
    """
    config_set = type(zarr.config.set({}))
    open_scopes = [s for s in gc.get_referrers(config_set) if type(s) is config_set]
    replace()
    for scope in open_scopes:
        weakref.finalize(scope, replace).atexit = False
