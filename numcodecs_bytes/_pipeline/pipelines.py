"""The pipelines of `zarr_pipeline`, for the versions of zarr that this package was tested with."""

from collections.abc import Iterable, Sequence
from typing import Any

import zarr
import zarr.registry
from zarr.core.buffer import NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline

from numcodecs_bytes._pipeline.explain import explained
from numcodecs_bytes._pipeline.reads import PartialReadMixin
from numcodecs_bytes._pipeline.writes import PartialWriteMixin
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest, chunk_requests_of
from numcodecs_bytes._zarr_api.defaults import make_default
from numcodecs_bytes._zarr_api.versions import FusedCodecPipeline, check_class

# The module whose attributes these classes are, as users set `codec_pipeline.path` to them.
_MODULE = "numcodecs_bytes.zarr_pipeline"


# Its name contains "Batched": so AnnData, for example, uses a faster pipeline for its own reads.
class BatchedBytesPipeline(PartialReadMixin, PartialWriteMixin, BatchedCodecPipeline):
    """zarr's default pipeline, but it reads only what a selection needs of uncompressed chunks."""

    __module__ = _MODULE
    _threads_setting = "threading.max_workers"

    async def read_batch(
        self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read some of the chunks of a batch, by default one, like zarr's pipeline."""
        requests = chunk_requests_of(batch_info)
        reading = super().read_batch(requests, out, drop_axes)
        return await explained(reading, requests, self.access, "reading")

    async def write_batch(
        self, batch_info: Iterable[Any], value: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write some of the chunks of a batch, by default one, like zarr's pipeline."""
        requests = chunk_requests_of(batch_info)
        writing = super().write_batch(requests, value, drop_axes)
        await explained(writing, requests, self.access, "writing")


_PIPELINES: dict[type, type] = {BatchedCodecPipeline: BatchedBytesPipeline}
if FusedCodecPipeline is not None:

    class FusedBytesPipeline(PartialReadMixin, PartialWriteMixin, FusedCodecPipeline):  # type: ignore[misc]
        """zarr's fused pipeline (3.3 and newer) with the reads of `BatchedBytesPipeline`."""

        __module__ = _MODULE
        _threads_setting = "codec_pipeline.max_workers"

        async def _read_by_zarr(
            self, requests: Sequence[ChunkRequest], out: NDBuffer, drop_axes: tuple[int, ...]
        ) -> Any:
            reading = super()._read_by_zarr(requests, out, drop_axes)
            return await explained(reading, requests, self.access, "reading")

        async def _write_by_zarr(
            self, requests: Sequence[ChunkRequest], value: NDBuffer, drop_axes: tuple[int, ...]
        ) -> None:
            writing = super()._write_by_zarr(requests, value, drop_axes)
            await explained(writing, requests, self.access, "writing")

    _PIPELINES[FusedCodecPipeline] = FusedBytesPipeline


def use_by_default() -> None:
    """Make the pipeline that extends zarr's default pipeline the default."""
    needed = ("read", "write", "array_array_codecs", "array_bytes_codec", "bytes_bytes_codecs")
    check_class(BatchedBytesPipeline, (*needed, "read_batch", "write_batch"))
    replaces = {}
    for pipeline, ours in _PIPELINES.items():
        check_class(ours, needed)
        zarr.registry.register_pipeline(ours)
        path = f"{pipeline.__module__}.{pipeline.__name__}"
        replaces[path] = f"{_MODULE}.{ours.__name__}"
    default: str = zarr.config.defaults[0]["codec_pipeline"]["path"]
    if default not in (*replaces, *replaces.values()):
        raise AttributeError(f"zarr's default pipeline is {default}")
    make_default("codec_pipeline", "path", replaces.get(default, default))
