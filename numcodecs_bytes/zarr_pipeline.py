"""Codec pipelines that read uncompressed chunks in part, and many of them together.

zarr's own pipelines read whole chunks. Importing this module, as the entry points do, makes
`BatchedBytesPipeline` zarr's default. It reads only what a selection needs, from

- Zarr v3 arrays stored by ``bytes``, with or without ``transpose`` and codecs that convert each
  element by itself before it
- shards whose inner chunks are stored that way
- Zarr v2 arrays of either ``order`` without a compressor, whose filters, if any, convert each
  element by itself; or with `Bytes` as the only filter or compressor

if the chunks are in files, or in a store that serves byte ranges reliably. Whole chunks of such
arrays in local files are written together; parts of them are written in place if
`numcodecs_bytes.write_in_place` asks for it. Everything else is left to zarr's pipeline.

With a version of zarr that this package was not tested with, the classes here are zarr's own
pipelines, which do not write while `numcodecs_bytes.write_in_place` is "require".
"""

from typing import Any

from numcodecs_bytes._zarr_api.defaults import check_version, or_step_aside

_pipelines: Any = None
with or_step_aside("arrays"):
    check_version()
    from numcodecs_bytes._pipeline import pipelines

    pipelines.use_by_default()
    _pipelines = pipelines
if _pipelines is None:
    from numcodecs_bytes._pipeline import fallback_pipelines as _pipelines

BatchedBytesPipeline = _pipelines.BatchedBytesPipeline
"""zarr's default pipeline, but it reads only what a selection needs of uncompressed chunks."""
__all__ = ["BatchedBytesPipeline"]
if hasattr(_pipelines, "FusedBytesPipeline"):
    FusedBytesPipeline = _pipelines.FusedBytesPipeline
    """zarr's fused pipeline (3.3 and newer) with the reads of `BatchedBytesPipeline`."""
    __all__ += ["FusedBytesPipeline"]
