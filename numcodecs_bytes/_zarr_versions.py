"""Differences between the supported versions of zarr: 3.1.6 and newer.

User-visible differences are in ``docs/compatibility.md``.
"""

from typing import Any

import zarr
import zarr.abc.codec
import zarr.codecs
import zarr.core.chunk_grids
import zarr.core.codec_pipeline
import zarr.dtype
import zarr.errors

# Newer versions have the data type `struct`, and warn if a structure has no `endian`. 3.1.6 has
# only `structured`, which is little-endian.
HAS_STRUCT = hasattr(zarr.dtype, "Struct")

# 3.1.6 evolves codecs for the array's data type, even if filters change the data type, and writes
# the metadata of the evolved codecs.
DROPS_ENDIAN_BEFORE_FILTERS = not HAS_STRUCT

# 3.1.6 takes a missing `endian` in metadata as native byte order.
MISSING_ENDIAN_IS_NATIVE = not HAS_STRUCT

# Before 3.3, MemoryStore keeps the buffer that it is given without copying it. If encoding did not
# copy either, that is the caller's array (zarr-python#4156).
STORES_KEEP_BUFFERS = tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 3)

# New in 3.3.
FusedCodecPipeline: Any = getattr(zarr.core.codec_pipeline, "FusedCodecPipeline", None)

# New in 3.3: the index of a shard is decoded without an event loop.
DECODES_INDEX_AT_ONCE = hasattr(zarr.codecs.ShardingCodec, "_decode_shard_index_sync")

# New in 3.2: pipelines return whether each chunk exists.
HAS_RESULTS = hasattr(zarr.abc.codec, "GetResult")

_pipelines: Any = zarr.core.codec_pipeline  # which has it from elsewhere in newer versions
fill_value_or_default = _pipelines.fill_value_or_default

# 3.1.6 has this in `zarr.dtype`.
_errors: Any = zarr.errors if hasattr(zarr.errors, "DataTypeValidationError") else zarr.dtype
DataTypeValidationError: Any = _errors.DataTypeValidationError


def chunk_grid_of(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> Any:
    """Return the regular grid by which an array, or a shard, is divided into chunks."""
    if hasattr(_grids.ChunkGrid, "from_sizes"):
        return _grids.ChunkGrid.from_sizes(shape, chunk_shape)
    return _grids.RegularChunkGrid(chunk_shape=chunk_shape)


_grids: Any = zarr.core.chunk_grids


def has_default_pipeline() -> bool:
    """Whether nobody has chosen a codec pipeline in zarr's config.

    A pipeline that was chosen is a different object than the default, even if the text is the same.
    """
    config: Any = zarr.config
    path = config.get("codec_pipeline.path")
    return any(path is default.get("codec_pipeline", {}).get("path") for default in config.defaults)
