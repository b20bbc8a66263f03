"""The index of a shard: where its inner chunks are."""

from typing import Any

from numcodecs_bytes._core.dtypes import UInt64Array
from numcodecs_bytes._host.zarr_versions import decode_index
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.shards import ShardLayout


def index_of(shard: ShardLayout, raw: Any) -> UInt64Array:
    """Return the index of a shard: offsets and lengths in bytes, shape ``(*grid_shape, 2)``.

    Raises `LeftToZarr` if its checksum is wrong.
    """
    try:
        return decode_index(shard.codec, raw, shard.grid_shape)
    except ValueError as error:
        raise LeftToZarr("the index of the shard is damaged") from error
