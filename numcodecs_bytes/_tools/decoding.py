"""Arrays as `check` decodes them: by zarr's own codecs, and believing no number in a chunk."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numcodecs
from numcodecs.compat import ensure_bytes
from zarr.abc.codec import ArrayBytesCodec, Codec
from zarr.codecs import BytesCodec, ShardingCodec, VLenBytesCodec, VLenUTF8Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.types import AnyArray

from numcodecs_bytes._core.dtypes import leaf_dtypes
from numcodecs_bytes._tools.arrays import Grid, array_of
from numcodecs_bytes._tools.reporting import ArrayReport, Limits
from numcodecs_bytes._zarr_api.v2_codec import V2Codec

# Codecs whose chunks begin with how many elements they hold, for which numcodecs allocates memory.
_WITH_COUNTS = ("vlen-utf8", "vlen-bytes", "vlen-array")


def array_to_decode(
    array: AnyArray, codecs: list[str], report: ArrayReport, limits: Limits, *, is_encoded: bool
) -> AnyArray | None:
    """Return the array as it is to be read; None if only the sizes of its chunks are checked."""
    has_bools = any(leaf.kind == "b" for leaf in leaf_dtypes(array.dtype))
    if not is_encoded and not has_bools:
        return None
    of_v2 = [*array.filters, *array.compressors]
    if "pickle" in codecs or any(isinstance(codec, numcodecs.Pickle) for codec in of_v2):
        report.add_problem(
            "its chunks were not decoded, because the codec pickle runs whatever code they hold: "
            "if you trust them, copy the array to one with another codec, such as vlen-utf8"
        )
        return None
    grid = Grid.of(array)
    chunk_shape = grid.inner_shape or grid.max_chunk_shape
    num_bytes = math.prod(chunk_shape) * array.dtype.itemsize
    if num_bytes > limits.max_chunk_bytes:
        report.notes.append(
            f"its chunks were not decoded: they have {num_bytes} bytes each, the limit is "
            f"{limits.max_chunk_bytes}"
        )
        return None
    if not has_bools and not any(name in _WITH_COUNTS for name in codecs):
        return array
    metadata = array.metadata
    decoded = array_of(metadata.to_dict(), array.store_path)
    if isinstance(metadata, ArrayV2Metadata):
        filters: Any = metadata.filters or ()
        filters = tuple(_CountedV2Filter(each, chunk_shape, each.codec_id) for each in filters)
        of_zarr: list[Codec] = [V2Codec(filters=filters, compressor=metadata.compressor)]
    else:
        of_zarr = [_codec_to_decode(codec) for codec in metadata.codecs]
    # zarr's config would set the pipeline as well, but for all threads.
    pipeline = BatchedCodecPipeline.from_codecs(of_zarr)
    object.__setattr__(decoded.async_array, "codec_pipeline", pipeline)
    return decoded


def _codec_to_decode(codec: Codec) -> Codec:
    """Return the codec that decodes in place of another one, also in shards.

    zarr's own codec "bytes" passes bools on as they are stored; ours reads all but 0 as true.
    """
    if isinstance(codec, ShardingCodec):
        return replace(codec, codecs=tuple(map(_codec_to_decode, codec.codecs)))
    if isinstance(codec, VLenUTF8Codec | VLenBytesCodec):
        return _CountedVLen(codec)
    if isinstance(codec, BytesCodec):  # zarr 3.1.6 needs an endian for any structure
        return BytesCodec(endian=codec.endian or "little")
    return codec


@dataclass(frozen=True)
class _CountedVLen(ArrayBytesCodec):
    """A codec of elements of variable length that believes no count in a damaged chunk."""

    codec: VLenUTF8Codec | VLenBytesCodec
    is_fixed_size = False

    async def decode(
        self, chunks_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        chunks = list(chunks_and_specs)
        for chunk, spec in chunks:
            if chunk is not None:
                _check_count(chunk[:4].to_bytes(), spec.shape)
        return await self.codec.decode(chunks)

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        raise NotImplementedError  # it is not known


class _CountedV2Filter(NamedTuple):
    """A filter of a Zarr v2 array that believes no count in a damaged chunk."""

    codec: Any
    chunk_shape: tuple[int, ...]
    codec_id: str

    def decode(self, buf: Any) -> Any:
        if self.codec_id in _WITH_COUNTS:
            _check_count(bytes(ensure_bytes(buf)[:4]), self.chunk_shape)
        return self.codec.decode(buf)


def _check_count(header: bytes, chunk_shape: tuple[int, ...]) -> None:
    """Raise ValueError if a chunk states another number of elements: they would be allocated."""
    stated, expected = int.from_bytes(header, "little"), math.prod(chunk_shape)
    if stated != expected:
        raise ValueError(f"it states that it holds {stated} elements, expected {expected}")
