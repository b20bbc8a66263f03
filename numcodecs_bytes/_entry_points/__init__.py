"""The entry points, which zarr loads in every program that uses zarr in this environment.

They must never fail: with an unsupported version of zarr, each module warns once and leaves zarr
unchanged.
"""

import contextlib
import warnings

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
