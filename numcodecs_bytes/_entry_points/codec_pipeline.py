"""Entry point of zarr's codec pipelines: `BytesPipeline`, which users may choose.

zarr loads all pipelines when it opens its first array, whichever one it uses. With an unsupported
version of zarr this is a placeholder, and zarr tells users who chose our pipeline that it does not
exist.
"""

from typing import Any

from numcodecs_bytes._entry_points import step_aside

__all__ = ["BytesPipeline"]


class NoPipeline:
    """A placeholder for zarr to register under a name that nobody chooses."""


BytesPipeline: Any = NoPipeline
try:
    from numcodecs_bytes.zarr_pipeline import BytesPipeline
except Exception as error:  # noqa: BLE001 # zarr must keep working without us
    step_aside("codec pipelines", error)
