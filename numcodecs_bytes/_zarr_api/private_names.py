"""What is used of zarr although its name begins with an underscore, and what would end that use.

No other module uses such names, but `v2_codec`, and codecs that override methods of zarr's classes.
Those of the index of a shard end when zarr's codec has public, synchronous methods for it.
"""

import zipfile
from typing import Any

import numpy as np
import zarr.codecs.sharding
import zarr.dtype
from zarr.abc.codec import ArrayBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu
from zarr.storage import WrapperStore

from numcodecs_bytes._core.dtypes import Array, UInt8Array, UInt64Array


def has_sync_index(codec: Any) -> bool:
    """Whether the index of shards can be decoded and encoded without an event loop."""
    first, *others = codec.index_codecs or (None,)
    if not isinstance(first, ArrayBytesCodec):  # zarr refuses them once it reads an index
        return False
    if hasattr(codec, "_index_codecs_sync_capable"):  # new in 3.3
        return bool(codec._index_codecs_sync_capable())
    are_checksums = all(isinstance(each, zarr.codecs.Crc32cCodec) for each in others)
    return isinstance(first, zarr.codecs.BytesCodec) and are_checksums


def index_bytes_of(codec: Any, grid_shape: tuple[int, ...]) -> int:
    """Return the length of the index of a shard, in bytes."""
    return int(codec._shard_index_size(grid_shape))


def decode_index(codec: Any, raw: Any, grid_shape: tuple[int, ...]) -> UInt64Array:
    """Return offsets and lengths, shape ``(*grid_shape, 2)``, from the bytes of a shard's index."""
    buffer: Any = cpu.Buffer.from_array_like(raw)
    if hasattr(codec, "_decode_shard_index_sync"):  # new in 3.3
        index: Any = codec._decode_shard_index_sync(buffer, grid_shape)
        return np.asarray(index.offsets_and_lengths)
    spec = codec._get_index_chunk_spec(grid_shape)
    for index_codec in reversed(codec.index_codecs):
        buffer = index_codec._decode_sync(buffer, spec)
    return np.asarray(buffer.as_numpy_array())


def encode_index(codec: Any, entries: UInt64Array) -> UInt8Array:
    """Return the bytes of the index of a shard, uint8, from offsets and lengths."""
    index: Any = zarr.codecs.sharding._ShardIndex.create_empty(entries.shape[:-1])
    index.offsets_and_lengths[...] = entries
    if hasattr(codec, "_encode_shard_index_sync"):
        return np.asarray(codec._encode_shard_index_sync(index).as_numpy_array())
    spec = codec._get_index_chunk_spec(entries.shape[:-1])
    buffer: Any = cpu.NDBuffer.from_numpy_array(index.offsets_and_lengths)
    for index_codec in codec.index_codecs:
        buffer = index_codec._encode_sync(buffer, spec)
    return np.asarray(buffer.as_numpy_array())


def decode_elements(codec: Any, spec: ArraySpec, encoded: Array) -> Array:
    """Return what a codec decodes elements to: ends when zarr has a public `decode_sync`."""
    buffer = cpu.NDBuffer.from_numpy_array(encoded)
    decoded: Array = codec._decode_sync(buffer, spec).as_numpy_array()
    return decoded


def numcodecs_codec_of(codec: Any) -> Any:
    """Return the codec of numcodecs in zarr's: ends when `zarr.codecs.numcodecs` has it public."""
    return codec._codec


def is_open(store: Any) -> bool:
    """Whether a store has been opened: ends when zarr's stores tell that."""
    return bool(store._is_open)


def store_in_wrappers(store: Any) -> Any:
    """Return the store that wrappers of zarr pass requests on to: ends when they have it public."""
    return store_in_wrappers(store._store) if isinstance(store, WrapperStore) else store


async def ensure_open(store: Any) -> None:
    """Open a store if it is not open: ends with zarr 3.1.6, which does not for each request."""
    await store._ensure_open()


def bytes_in_memory(store: Any, path: str) -> UInt8Array | None:
    """Return the bytes that a MemoryStore has under a path, uint8; None if they are not as usual.

    Ends with zarr 3.1.6, whose MemoryStore has no `get_sync`.
    """
    mapping = store._store_dict
    buffer = mapping.get(path) if type(mapping) is dict else None
    if type(buffer) is not cpu.Buffer:
        return None
    raw: Any = buffer.as_array_like()
    is_usual = type(raw) is np.ndarray and raw.dtype == np.uint8 and raw.flags.c_contiguous
    return raw if is_usual else None


def zip_file_of(store: Any) -> zipfile.ZipFile | None:
    """Return the archive of a ZipStore; open it if zarr opens it when needed; None if it is closed.

    Ends, with `flush_zip`, when zarr's ZipStore tells where a member is. Raises whatever opening it
    raises.
    """
    if not is_open(store):
        if not hasattr(store, "_zipfile"):  # zarr 3.1.6, which makes another lock when it opens it
            return None
        store._zipfile()
    archive: zipfile.ZipFile = store._zf
    return archive


def flush_zip(store: Any, archive: zipfile.ZipFile) -> None:
    """Write members to the archive of a ZipStore that zarr has written, but may have buffered."""
    with store._lock:
        if archive.fp is not None:
            archive.fp.flush()


def are_data_types_unloaded() -> bool:
    """Whether data types of entry points are still to be loaded: ends with zarr 3.4.0.

    Versions before 3.4.1 parse the data type of an array before they load any.
    """
    return bool(getattr(zarr.dtype.data_type_registry, "_lazy_load_list", ()))
