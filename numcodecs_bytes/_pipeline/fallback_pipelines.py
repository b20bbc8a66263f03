"""zarr's own pipelines under the names of ours, for a zarr that this package does not know.

Programs that set `codec_pipeline.path` to ours go on working with them. They read and write like
zarr, but raise instead of writing while `numcodecs_bytes.write_in_place` is "require": upgrading
zarr must not turn that off silently.
"""

import contextlib
import pkgutil
from typing import Any

import zarr
import zarr.registry

from numcodecs_bytes._zarr_api.defaults import make_default, why_aside
from numcodecs_bytes._zarr_api.options import set_by, write_in_place
from numcodecs_bytes._zarr_api.pickling import PickledAsConfigured

_MODULE = "numcodecs_bytes.zarr_pipeline"
_DEFAULT = "zarr.core.codec_pipeline.BatchedCodecPipeline"
_OF_ANOTHER_CONFIG = (AttributeError, LookupError, TypeError)  # if zarr's config is another
with contextlib.suppress(*_OF_ANOTHER_CONFIG):
    _DEFAULT = zarr.config.defaults[0]["codec_pipeline"]["path"]
_default: Any = pkgutil.resolve_name(_DEFAULT)
_fused: Any = _default
with contextlib.suppress(ImportError, AttributeError):
    _fused = pkgutil.resolve_name("zarr.core.codec_pipeline.FusedCodecPipeline")


class _WritesUnlessRequired(PickledAsConfigured):
    """Mixin for one of zarr's pipelines."""

    async def write(self, *args: Any, **kwargs: Any) -> Any:
        """Write like zarr, unless parts of chunks must be written in place."""
        self._check_required_is_set()
        if write_in_place() == "require":
            key, why = write_in_place.key, why_aside.get("arrays", "arrays are left to zarr")
            raise RuntimeError(
                f"nothing can be written in place: {why}; or set {key} to True to let zarr write, "
                f"if nothing else writes to it meanwhile (it is 'require'{set_by(key)})"
            )
        pipeline: Any = super()
        return await pipeline.write(*args, **kwargs)


class BatchedBytesPipeline(_WritesUnlessRequired, _default):  # type: ignore[misc]
    """zarr's default pipeline."""


class FusedBytesPipeline(_WritesUnlessRequired, _fused):  # type: ignore[misc]
    """zarr's fused pipeline, or else its default one."""


for pipeline in (BatchedBytesPipeline, FusedBytesPipeline):
    pipeline.__module__ = _MODULE
    zarr.registry.register_pipeline(pipeline)
# One is the default, as "require" may be set later. If that fails, zarr's config may name them.
with contextlib.suppress(*_OF_ANOTHER_CONFIG):
    name = "FusedBytesPipeline" if "Fused" in _DEFAULT else "BatchedBytesPipeline"
    make_default("codec_pipeline", "path", f"{_MODULE}.{name}")
