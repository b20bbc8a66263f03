"""Entry point of zarr's codec pipelines: `BatchedBytesPipeline`, which becomes zarr's default.

zarr loads all pipelines when it opens its first array, before it looks up in its config which one
to use.
"""

from numcodecs_bytes._zarr_api.defaults import or_step_aside

__all__ = ["BatchedBytesPipeline"]


class NoPipeline:
    """A placeholder for zarr to register under a name that nobody chooses."""


BatchedBytesPipeline: type = NoPipeline
with or_step_aside("arrays"):
    from numcodecs_bytes._zarr_api.options import warn_of_other_pipeline
    from numcodecs_bytes.zarr_pipeline import BatchedBytesPipeline

    warn_of_other_pipeline("loaded")
