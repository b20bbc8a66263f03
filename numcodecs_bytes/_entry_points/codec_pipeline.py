"""What zarr loads through its entry point: PartialReadPipeline, for those who choose it.

zarr loads all pipelines when it opens its first array, whichever it uses. This runs in every zarr
program of the environment, so it never fails: on a zarr that is not the one we know it hands back
a class that is no pipeline. Who has chosen ours is told by zarr that there is none.
"""

from typing import Any

from numcodecs_bytes._entry_points import step_aside

__all__ = ["PartialReadPipeline"]


class NoPipeline:
    """What zarr registers under this name, which nobody chooses."""


PartialReadPipeline: Any = NoPipeline
try:
    from numcodecs_bytes.zarr_pipeline import PartialReadPipeline
except Exception as error:  # noqa: BLE001 # whatever it is, zarr must go on without us
    step_aside("codec pipelines", error)
