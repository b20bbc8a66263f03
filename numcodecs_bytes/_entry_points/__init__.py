"""What zarr and its registries load by themselves, in every zarr program of the environment.

Nothing here ever fails: on a zarr that it does not know, each module steps aside with one warning.
"""

import contextlib
import warnings

import zarr


def step_aside(what: str, error: Exception) -> None:
    """Warn once that this package does not add something to zarr; never raise."""
    with contextlib.suppress(Warning):
        warnings.warn(
            f"numcodecs_bytes adds no {what}, not knowing this zarr ({zarr.__version__}; "
            f"{type(error).__name__}: {error}); look for a newer numcodecs_bytes",
            RuntimeWarning,
            stacklevel=3,
        )
