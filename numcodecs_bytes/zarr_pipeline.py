"""Codec pipelines that read parts of every uncompressed chunk: Zarr v2, column-major, transposed.

zarr's own pipelines ask for parts of a chunk only where the bytes codec stands alone. With one of
these as zarr's ``codec_pipeline.path``, so are read

- Zarr v2 arrays without filters and compressor, or with `Bytes` as the only one of them, of either
  ``order``
- Zarr v3 arrays whose codecs are `transpose`, any number of them, and then `bytes`.

What else there is, and all writes, go to zarr's pipeline:

>>> import zarr
>>> zarr.config.set(
...     {"codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.PartialReadPipeline"}
... )  # doctest: +SKIP
"""

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import zarr
import zarr.codecs
import zarr.registry
from zarr.codecs import TransposeCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline

from numcodecs_bytes._dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    has_byte_order,
    leaf_dtypes,
    ml_dtype_name,
    stored_dtype,
)
from numcodecs_bytes._partial_read.fetch import Chunk
from numcodecs_bytes._zarr_versions import FusedCodecPipeline
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr import BytesCodec

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FusedPartialReadPipeline", "PartialReadPipeline"]

PIPELINE = "numcodecs_bytes.zarr_pipeline.PartialReadPipeline"


class _Layout(NamedTuple):
    """How the elements of a chunk are stored: as which dtype, and along which axes."""

    dtype: AnyDType
    stored: AnyDType
    axis_order: tuple[int, ...] | None


class _Reader(BytesCodec):
    """Reads parts of chunks that are stored otherwise than the bytes codec stores them alone.

    zarr's pipelines call its partial methods and no others, in `PartialRead.read`.
    """

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> "_Reader":  # noqa: ARG002
        """Return the codec itself: it looks at each chunk's own specification."""
        return self

    def layout(self, chunk_spec: ArraySpec) -> _Layout | None:
        """Return how a chunk is stored, None where zarr's own pipeline is to read it."""
        raise NotImplementedError

    def _chunk(self, selection: Any, chunk_spec: ArraySpec) -> Chunk:
        layout = self.layout(chunk_spec)
        if layout is None:
            raise TypeError(f"chunks of one array differ: {chunk_spec} can't be read in part")
        return Chunk(
            selection,
            chunk_spec.shape,
            layout.dtype,
            layout.stored,
            chunk_spec.prototype,
            layout.axis_order,
        )


class _V2Reader(_Reader):
    """Reads Zarr v2 chunks, stored by `Bytes` or by no codec at all."""

    _bytes: Bytes | None

    def __init__(self, codec: Bytes | None) -> None:
        super().__init__(endian=None)
        object.__setattr__(self, "_bytes", codec)

    def layout(self, chunk_spec: ArraySpec) -> _Layout | None:
        dtype = chunk_spec.dtype.to_native_dtype()
        if dtype.hasobject or dtype.kind == "T":
            return None
        codec, stored = self._bytes, dtype
        if codec is not None and (codec.dtype is not None or codec.endian != NATIVE_ENDIAN):
            # To NumPy, None is float64.
            if codec.dtype is None or codec.dtype != dtype:
                return None
            if codec.endian is None and has_byte_order(dtype):
                return None
            stored = stored_dtype(dtype, codec.endian)
        is_column_major = chunk_spec.order == "F"
        axis_order = tuple(range(len(chunk_spec.shape)))[::-1] if is_column_major else None
        return _Layout(dtype, stored, axis_order)


class _TransposeReader(_Reader):
    """Reads Zarr v3 chunks, transposed and then stored by the bytes codec."""

    _transposes: tuple[TransposeCodec, ...]
    _bytes: zarr.codecs.BytesCodec

    def __init__(
        self, transposes: tuple[TransposeCodec, ...], codec: zarr.codecs.BytesCodec
    ) -> None:
        super().__init__(endian=None)
        object.__setattr__(self, "_transposes", transposes)
        object.__setattr__(self, "_bytes", codec)

    def layout(self, chunk_spec: ArraySpec) -> _Layout | None:
        axis_order = tuple(range(len(chunk_spec.shape)))
        for codec in self._transposes:
            axis_order = tuple(axis_order[axis] for axis in codec.order)
        if isinstance(self._bytes, BytesCodec):
            return _Layout(*self._bytes._dtypes(chunk_spec), axis_order)  # noqa: SLF001
        # zarr's own. It stores some data types otherwise.
        dtype = chunk_spec.dtype.to_native_dtype()
        endian = getattr(self._bytes.endian, "value", self._bytes.endian)
        if dtype.hasobject or dtype.kind == "T" or (endian is None and has_byte_order(dtype)):
            return None
        if any(map(ml_dtype_name, leaf_dtypes(dtype))):
            return None
        try:
            return _Layout(dtype, stored_dtype(dtype, endian), axis_order)
        except TypeError:  # a data type of somebody's own
            return None


def _find_reader(pipeline: Any) -> _Reader | None:
    """Return what reads parts of chunks that a pipeline of zarr's reads whole."""
    if pipeline.bytes_bytes_codecs:
        return None
    codec, before = pipeline.array_bytes_codec, pipeline.array_array_codecs
    if type(codec) is V2Codec and not before:
        stored_by = (*(codec.filters or ()), *([codec.compressor] if codec.compressor else ()))
        if not stored_by:
            return _V2Reader(None)
        return _V2Reader(stored_by[0]) if [type(c) for c in stored_by] == [Bytes] else None
    is_ours = type(codec) is BytesCodec
    if not is_ours and type(codec) is not zarr.codecs.BytesCodec:
        return None
    if (is_ours and not before) or any(type(c) is not TransposeCodec for c in before):
        return None  # zarr's pipeline asks ours for parts by itself
    return _TransposeReader(before, codec)


def can_read_parts(array: "zarr.Array[Any]") -> bool:
    """Whether these pipelines read parts of an array's chunks that zarr's read whole."""
    metadata: Any = array.metadata
    is_v2 = metadata.zarr_format == 2
    codecs = [V2Codec(metadata.filters, metadata.compressor)] if is_v2 else metadata.codecs
    reader = _find_reader(BatchedCodecPipeline.from_codecs(codecs))
    return reader is not None and None is not reader.layout(
        ArraySpec(
            shape=array.chunks,
            dtype=metadata.dtype,
            fill_value=metadata.fill_value,
            config=ArrayConfig(order=metadata.order if is_v2 else "C", write_empty_chunks=False),
            prototype=default_buffer_prototype(),
        )
    )


class PartialRead:
    """Mixed into a pipeline of zarr's: reads what it can in parts, hands all else on."""

    @functools.cached_property
    def _reading(self) -> Any:
        """The pipeline of zarr's that reads parts, None where this one is to read."""
        reader = _find_reader(self)
        if reader is None:
            return None
        zarrs: Any = next(c for c in type(self).__mro__ if c.__module__.startswith("zarr."))
        reading = zarrs.from_codecs([reader], batch_size=self.batch_size)  # type: ignore[attr-defined]
        # zarr 3.1.6 evolves no pipelines; its fused one, which it has not, is to be evolved.
        return reading if zarrs is BatchedCodecPipeline else reading.evolve_from_array_spec(None)

    async def read(
        self, batch_info: "Iterable[Any]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, as zarr's pipeline does."""
        zarrs: Any = super()
        if self._reading is None:
            return await zarrs.read(batch_info, out, drop_axes)
        batch = list(batch_info)
        if not all(self._reads(chunk_spec) for _, chunk_spec, *_ in batch[:1]):
            return await zarrs.read(batch, out, drop_axes)
        return await self._reading.read(batch, out, drop_axes)

    def _reads(self, chunk_spec: ArraySpec) -> bool:
        """Whether chunks of an array can be read in part."""
        is_on_cpu = issubclass(chunk_spec.prototype.nd_buffer, cpu.NDBuffer)
        return is_on_cpu and self._reading.array_bytes_codec.layout(chunk_spec) is not None


class PartialReadPipeline(PartialRead, BatchedCodecPipeline):
    """zarr's default pipeline, which also reads parts of Zarr v2 and of transposed chunks.

    To be chosen as ``codec_pipeline.path`` in zarr's config, or by the environment variable
    ``ZARR_CODEC_PIPELINE__PATH``: ``numcodecs_bytes.zarr_pipeline.PartialReadPipeline``.
    """


if FusedCodecPipeline is None:
    __all__ = ["PartialReadPipeline"]
else:

    class FusedPartialReadPipeline(PartialRead, FusedCodecPipeline):  # type: ignore[misc]
        """zarr's fused pipeline (since 3.2), which also reads parts, like `PartialReadPipeline`."""

    zarr.registry.register_pipeline(FusedPartialReadPipeline)
