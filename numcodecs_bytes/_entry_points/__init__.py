"""The entry points, which zarr loads in every program that uses zarr in this environment.

They must never fail: with an unsupported version of zarr, they warn once and leave zarr unchanged.
"""

import contextlib
import warnings

import zarr

_has_warned = False


def step_aside(error: Exception) -> None:
    """Warn once that this package leaves arrays to zarr; never raise."""
    global _has_warned  # noqa: PLW0603
    if _has_warned:
        return
    _has_warned = True
    with contextlib.suppress(Warning):
        warnings.warn(
            "numcodecs_bytes leaves arrays to zarr alone: it does not support this version of zarr "
            f"({zarr.__version__}) or its config ({type(error).__name__}: {error}); upgrade "
            "numcodecs_bytes, or fix the config",
            RuntimeWarning,
            stacklevel=3,
        )
