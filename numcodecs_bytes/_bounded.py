"""Compressors that decode to so many bytes at most, so that a damaged chunk can't fill memory.

gzip, zlib, bz2 and lzma are decoded piece by piece until they exceed the limit. zstd, lz4 and blosc
say in their headers how many bytes they hold. Other codecs are left as they are.
"""

import asyncio
import bz2
import dataclasses
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Iterator
from typing import Any

import numcodecs.abc
import numpy as np
from zarr.abc.codec import BytesBytesCodec

_PIECE = 1 << 20
_STREAMED = {"gzip", "zlib", "bz2", "lzma"}
_ZSTD, _ZSTD_SKIPPABLE, _ZSTD_BLOCK = 0xFD2FB528, 0x184D2A50, 1 << 17


def bounded(metadata: Any, max_bytes: int) -> Any:
    """Return metadata of an array whose compressors raise where they would decode to much more.

    Parameters
    ----------
    metadata : ArrayV2Metadata or ArrayV3Metadata
        Of an array that is only read.
    max_bytes : int
        Of what a chunk, or an inner chunk, decodes to where its elements do not say it: they are
        of variable length, or pass filters of Zarr v2.
    """
    if metadata.zarr_format == 3:
        codecs = tuple(_bounded_v3(codec, max_bytes) for codec in metadata.codecs)
        return dataclasses.replace(metadata, codecs=codecs)
    filters = metadata.filters or ()
    num_bytes = max_bytes
    if not filters:
        num_bytes = _num_bytes(metadata.chunks, metadata.dtype.to_native_dtype(), max_bytes)
    return dataclasses.replace(
        metadata,
        filters=tuple(_bounded_v2(codec, max_bytes) for codec in filters) or None,
        compressor=metadata.compressor and _bounded_v2(metadata.compressor, num_bytes),
    )


def _bounded_v3(codec: Any, max_bytes: int) -> Any:
    if hasattr(codec, "index_codecs"):
        codecs = tuple(_bounded_v3(inner, max_bytes) for inner in codec.codecs)
        return dataclasses.replace(codec, codecs=codecs)
    if not isinstance(codec, BytesBytesCodec):
        return codec
    getattr(codec, "_codec", None)  # made when it is first used: raise what is wrong with it
    document: Any = codec.to_dict()
    name = document["name"].removeprefix("numcodecs.")
    return _BoundedV3(codec, name, document.get("configuration") or {}, max_bytes)


def _bounded_v2(codec: Any, max_bytes: int) -> Any:
    return _BoundedV2(codec, max_bytes) if codec.codec_id in _DECODERS else codec


def _num_bytes(shape: tuple[int, ...], dtype: Any, max_bytes: int) -> int:
    """Return how many bytes elements may take when a codec like crc32c has added its own."""
    if dtype.hasobject or dtype.kind == "T":
        return max_bytes
    return max_encoded(math.prod(shape) * dtype.itemsize)


def max_encoded(num_bytes: int) -> int:
    """Return how many bytes may become of some that do not compress, checksums included."""
    return num_bytes + num_bytes // 8 + (1 << 16)


class _BoundedV2(numcodecs.abc.Codec):  # type: ignore[misc]
    codec_id = "bounded"  # zarr looks for it in the class

    def __init__(self, codec: Any, max_bytes: int) -> None:
        self.codec, self.max_bytes = codec, max_bytes

    def encode(self, _: Any) -> Any:
        raise NotImplementedError

    def decode(self, buf: Any, out: Any = None) -> Any:
        raw = np.asarray(buf).reshape(-1).view(np.uint8).data
        decoded = _decode(self.codec.codec_id, self.codec.get_config(), raw, self.max_bytes)
        return self.codec.decode(buf, out) if decoded is None else decoded

    def get_config(self) -> Any:
        return self.codec.get_config()


@dataclasses.dataclass(frozen=True)
class _BoundedV3(BytesBytesCodec):
    codec: Any
    name: str
    configuration: dict[str, Any]
    max_bytes: int

    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        dtype = chunk_spec.dtype.to_native_dtype()
        max_bytes = _num_bytes(chunk_spec.shape, dtype, self.max_bytes)
        raw = np.asarray(chunk_bytes.as_array_like()).view(np.uint8).data
        decoded = await asyncio.to_thread(_decode, self.name, self.configuration, raw, max_bytes)
        if decoded is None:
            return await self.codec._decode_single(chunk_bytes, chunk_spec)  # noqa: SLF001
        return chunk_spec.prototype.buffer.from_bytes(decoded)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        size: int = self.codec.compute_encoded_size(input_byte_length, chunk_spec)
        return size

    def to_dict(self) -> Any:
        return self.codec.to_dict()


def _decode(name: str, configuration: Any, raw: memoryview, max_bytes: int) -> bytes | None:
    """Return the decoded bytes, None where the codec may decode them itself, or raise."""
    if name in _STREAMED:
        pieces, num_bytes = [], 0
        for piece in _pieces(name, configuration, raw):
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise ValueError(f"{name} decodes to more than the {max_bytes} bytes expected")
            pieces.append(piece)
        return b"".join(pieces)
    num_bytes = _declared_size(name, raw)
    if num_bytes > max_bytes:
        raise ValueError(f"{name} says that it holds {num_bytes} bytes, expected {max_bytes}")
    return None


def _pieces(name: str, configuration: Any, raw: memoryview) -> Iterator[bytes]:
    if name == "zlib":
        yield from _zlib_pieces(raw)
        return
    source = io.BytesIO(raw)
    stream: Any
    if name == "lzma":
        options = {key: configuration.get(key) for key in ("format", "filters")}
        stream = lzma.LZMAFile(source, **options)  # noqa: SIM115 # it holds no file
    else:
        stream = gzip.GzipFile(fileobj=source) if name == "gzip" else bz2.BZ2File(source)
    yield from iter(lambda: stream.read(_PIECE), b"")


def _zlib_pieces(raw: memoryview) -> Iterator[bytes]:
    decoder = zlib.decompressobj()
    rest: bytes | memoryview = raw
    while not decoder.eof:
        piece = decoder.decompress(rest, _PIECE)
        rest = decoder.unconsumed_tail
        if not piece and not decoder.eof:
            raise EOFError("the zlib stream is cut off")
        yield piece


def _declared_size(name: str, raw: memoryview) -> int:
    """Return how many bytes a header says there are, 0 where it is cut off or unknown."""
    if name == "zstd":
        return _zstd_size(raw)
    if name == "lz4":
        return _int(raw[:4])
    if name == "blosc" and len(raw) >= 16:
        if _int(raw[12:16]) != len(raw):  # blosc would read beyond the end
            raise ValueError(f"blosc says that it takes {_int(raw[12:16])} bytes, got {len(raw)}")
        return _int(raw[4:8])
    return 0


def _zstd_size(raw: memoryview) -> int:
    """Return how many bytes the frames of zstd hold, or may hold (RFC 8878, 3.1.1)."""
    num_bytes = 0
    while len(raw) > 8:
        magic = _int(raw[:4])
        if magic & ~0xF == _ZSTD_SKIPPABLE:
            raw = raw[8 + _int(raw[4:8]) :]
            continue
        if magic != _ZSTD:
            break
        flags = raw[4]
        has_checksum, is_single_segment = bool(flags & 4), bool(flags & 32)
        start = 5 + (not is_single_segment) + (0, 1, 2, 4)[flags & 3]
        size_length = (int(is_single_segment), 2, 4, 8)[flags >> 6]
        raw, size = raw[start + size_length :], raw[start : start + size_length]
        if size_length:
            num_bytes += _int(size) + (256 if size_length == 2 else 0)
        is_last = False
        while len(raw) > 3 and not is_last:
            block = _int(raw[:3])
            is_last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            if not size_length:
                num_bytes += length if kind < 2 else _ZSTD_BLOCK
            raw = raw[3 + (1 if kind == 1 else length) :]
        raw = raw[4 * has_checksum :]
    return num_bytes


def _int(raw: memoryview) -> int:
    return int.from_bytes(raw, "little")


_DECODERS = {*_STREAMED, "zstd", "lz4", "blosc"}
