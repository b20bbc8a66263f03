"""What zarr loads through its entry point: PartialReadPipeline, for those who choose it.

zarr loads all pipelines when it opens its first array, whichever it uses. This runs in every zarr
program of the environment, so it never fails: on a zarr that is not the one we know it hands back
a class that is no pipeline. Who has chosen ours is told by zarr that there is none.
"""

import contextlib
import warnings
from typing import Any

import zarr

__all__ = ["PartialReadPipeline"]


class NoPipeline:
    """What zarr registers under this name, which nobody chooses."""


PartialReadPipeline: Any = NoPipeline
try:
    from numcodecs_bytes.zarr_pipeline import PartialReadPipeline
except Exception as error:  # noqa: BLE001 # whatever it is, zarr must go on without us
    with contextlib.suppress(Warning):
        warnings.warn(
            f"numcodecs_bytes adds no codec pipelines, not knowing this zarr ({zarr.__version__}; "
            f"{type(error).__name__}: {error}); look for a newer numcodecs_bytes",
            RuntimeWarning,
            stacklevel=2,
        )
