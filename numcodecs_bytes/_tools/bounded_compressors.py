"""Codecs with a limit on the decoded size, so that a damaged chunk can't exhaust memory.

gzip, zlib, bz2 and lzma are decoded in pieces until they exceed the limit. zstd, lz4 and blosc
declare the decoded size in their headers, vlen-utf8, vlen-bytes and vlen-array the number of
elements. Other codecs are not limited.
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
from typing import Any, NamedTuple, Self

import numcodecs.abc
import numpy as np
from zarr.abc.codec import BytesBytesCodec

from numcodecs_bytes._core.dtypes import has_variable_length

_PIECE = 1 << 20
# Text takes several times its encoded size as Python's strings.
_TEXT_FACTOR = 8
_STREAMED = {"gzip", "zlib", "bz2", "lzma"}
COMPRESSORS = {*_STREAMED, "zstd", "lz4", "blosc"}
_VARIABLE_LENGTH = {"vlen-utf8", "vlen-bytes", "vlen-array"}
# An LZ4 block of n bytes decodes to fewer than 255 * n.
_LZ4_FACTOR = 255
# Limit for zstd streams that do not declare their size; each block counts as a full one.
UNDECLARED_BYTES = 100_000_000
_ZSTD, _ZSTD_SKIPPABLE, _ZSTD_BLOCK = 0xFD2FB528, 0x184D2A50, 1 << 17


class LimitExceededError(ValueError):
    """A chunk of unknown decoded size exceeds the limit."""


def bounded(metadata: Any, max_bytes: int) -> Any:
    """Return array metadata whose codecs raise an error instead of exceeding a limit.

    The error is a ValueError if a chunk decodes to more bytes than its elements take. If their size
    is unknown, it is a `LimitExceededError`, for more than `max_bytes`.

    Parameters
    ----------
    metadata : ArrayV2Metadata or ArrayV3Metadata
        Metadata of an array that is only read.
    max_bytes : int
        Limit for the decoded bytes of a chunk, or of an inner chunk, whose size does not follow
        from its elements: they have variable length, or pass through filters of Zarr v2.

    Returns
    -------
    ArrayV2Metadata or ArrayV3Metadata
        A copy with limited codecs.
    """
    if metadata.zarr_format == 3:
        codecs = tuple(
            bound for codec in metadata.codecs for bound in _bounded_v3(codec, max_bytes)
        )
        return dataclasses.replace(metadata, codecs=codecs)
    filters, dtype = metadata.filters or (), metadata.dtype.to_native_dtype()
    bound = _Bound.of(metadata.chunks, dtype, max_bytes)
    if filters and bound.is_exact:  # which may change the size
        bound = bound._replace(max_bytes=max_bytes, is_exact=False)
    compressor = metadata.compressor
    return dataclasses.replace(
        metadata,
        filters=tuple(_bounded_v2(codec, bound) for codec in filters) or None,
        compressor=compressor and _bounded_v2(compressor, bound),
    )


def _bounded_v3(codec: Any, max_bytes: int) -> Iterator[Any]:
    if hasattr(codec, "index_codecs"):
        codecs = tuple(bound for inner in codec.codecs for bound in _bounded_v3(inner, max_bytes))
        yield dataclasses.replace(codec, codecs=codecs)
        return
    document: Any = codec.to_dict()
    name = document["name"].removeprefix("numcodecs.")
    configuration = document.get("configuration") or {}
    if hasattr(codec, "_codec"):  # of numcodecs, with its defaults
        configuration = codec._codec.get_config()  # noqa: SLF001
    if name in COMPRESSORS:
        yield _BoundedV3(codec, name, configuration, max_bytes)
        return
    yield codec
    if name in _VARIABLE_LENGTH:  # zarr wants these of exactly its own class
        yield _BoundedV3(None, name, configuration, max_bytes)


def _bounded_v2(codec: Any, bound: "_Bound") -> Any:
    is_bounded = codec.codec_id in {*COMPRESSORS, *_VARIABLE_LENGTH}
    return _BoundedV2(codec, bound) if is_bounded else codec


def max_encoded(num_bytes: int) -> int:
    """Return the largest encoded size of `num_bytes` incompressible bytes, with checksums."""
    return num_bytes + num_bytes // 8 + (1 << 16)


class _Bound(NamedTuple):
    """How many bytes a chunk may decode to, and whether that follows from its elements."""

    max_bytes: int
    is_exact: bool
    num_elements: int

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: Any, limit: int) -> Self:
        """Return the bound for elements, including what codecs like crc32c add to them."""
        num_elements = math.prod(shape)
        if has_variable_length(dtype):
            return cls(limit // _TEXT_FACTOR, is_exact=False, num_elements=num_elements)
        max_bytes = max_encoded(num_elements * dtype.itemsize)
        return cls(max_bytes, is_exact=True, num_elements=num_elements)

    def refuse(self, what: str) -> ValueError:
        """Return the error for a chunk that exceeds the bound."""
        kind = ValueError if self.is_exact else LimitExceededError
        return kind(f"{what}, expected at most {self.max_bytes}")


class _BoundedV2(numcodecs.abc.Codec):  # type: ignore[misc]
    codec_id = "bounded"  # zarr reads it from the class

    def __init__(self, codec: Any, bound: _Bound) -> None:
        self.codec, self.bound = codec, bound

    def encode(self, _: Any) -> Any:
        raise NotImplementedError

    def decode(self, buf: Any, out: Any = None) -> Any:
        raw = np.asarray(buf).reshape(-1).view(np.uint8).data
        decoded = _decode(self.codec.codec_id, self.codec.get_config(), raw, self.bound)
        return self.codec.decode(buf, out) if decoded is None else decoded

    def get_config(self) -> Any:
        return self.codec.get_config()


@dataclasses.dataclass(frozen=True)
class _BoundedV3(BytesBytesCodec):
    """A bounded codec; without one, the bytes of the codec before are checked and passed on."""

    codec: Any
    name: str
    configuration: dict[str, Any]
    max_bytes: int

    is_fixed_size = False

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        dtype = chunk_spec.dtype.to_native_dtype()
        bound = _Bound.of(chunk_spec.shape, dtype, self.max_bytes)
        raw = np.asarray(chunk_bytes.as_array_like()).view(np.uint8).data
        decoded = await asyncio.to_thread(_decode, self.name, self.configuration, raw, bound)
        if decoded is not None:
            return chunk_spec.prototype.buffer.from_bytes(decoded)
        if self.codec is None:
            return chunk_bytes
        return await self.codec._decode_single(chunk_bytes, chunk_spec)  # noqa: SLF001

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        size = input_byte_length
        if self.codec is not None:
            size = self.codec.compute_encoded_size(input_byte_length, chunk_spec)
        return size

    def to_dict(self) -> Any:
        return {"name": self.name, "configuration": self.configuration}


def _decode(name: str, configuration: Any, raw: memoryview, bound: _Bound) -> bytes | None:
    """Return the decoded bytes, or None if the codec may decode them itself.

    Raises
    ------
    ValueError
        If there are more than the bound, or the header contradicts the chunk.
    """
    if name in _STREAMED:
        pieces, num_bytes = [], 0
        for piece in _pieces(name, configuration, raw):
            num_bytes += len(piece)
            if num_bytes > bound.max_bytes:
                raise bound.refuse(f"{name} decodes to {num_bytes} bytes or more")
            pieces.append(piece)
        return b"".join(pieces)
    if name in _VARIABLE_LENGTH:
        if _int(raw[:4]) != bound.num_elements:
            raise ValueError(
                f"{name} declares {_int(raw[:4])} elements, expected {bound.num_elements}"
            )
        if len(raw) > bound.max_bytes:
            raise bound.refuse(f"{name} has {len(raw)} bytes")
        return None
    num_bytes = _declared_size(name, raw)
    if num_bytes > bound.max_bytes:
        raise bound.refuse(f"{name} declares a size of {num_bytes} bytes")
    if name == "zstd" and (num_bytes := _undeclared_size(raw)) > UNDECLARED_BYTES:
        raise LimitExceededError(f"zstd declares no size, and may decode to {num_bytes} bytes")
    return None


def _pieces(name: str, configuration: Any, raw: memoryview) -> Iterator[bytes]:
    if name == "zlib":
        yield from _zlib_pieces(raw)
        return
    source = io.BytesIO(raw)
    stream: Any
    if name == "lzma":
        options = {key: configuration.get(key) for key in ("format", "filters")}
        stream = lzma.LZMAFile(source, **options)  # noqa: SIM115 # there is no file to close
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
            raise EOFError("the zlib stream is truncated")
        yield piece


def _declared_size(name: str, raw: memoryview) -> int:
    """Return the decoded size that a header declares, 0 if it is truncated or unknown.

    Parsed here, because numcodecs has no function for zstd, and only a private one for blosc.
    """
    if name == "zstd":
        return sum(size for size, is_declared in _zstd_frames(raw) if is_declared)
    if name == "lz4":
        if _int(raw[:4]) > _LZ4_FACTOR * len(raw):
            raise ValueError(
                f"lz4 declares a size of {_int(raw[:4])} bytes, more than {_LZ4_FACTOR} times its "
                f"encoded {len(raw)} bytes"
            )
        return _int(raw[:4])
    if name == "blosc" and len(raw) >= 16:
        if _int(raw[12:16]) > len(raw):  # blosc would read beyond the end
            raise ValueError(
                f"blosc declares an encoded size of {_int(raw[12:16])} bytes, got {len(raw)}"
            )
        return _int(raw[4:8])
    return 0


def _undeclared_size(raw: memoryview) -> int:
    """Return the decoded size of the zstd frames that declare none, at most."""
    return sum(size for size, is_declared in _zstd_frames(raw) if not is_declared)


def _zstd_frames(raw: memoryview) -> Iterator[tuple[int, bool]]:
    """Yield the decoded size of each zstd frame, or an upper bound, and whether it is declared.

    Source: RFC 8878, 3.1.1.
    """
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
        num_bytes = _int(size) + (256 if size_length == 2 else 0)
        is_last = False
        while len(raw) > 3 and not is_last:
            block = _int(raw[:3])
            is_last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            if not size_length:
                num_bytes += length if kind < 2 else _ZSTD_BLOCK
            raw = raw[3 + (1 if kind == 1 else length) :]
        raw = raw[4 * has_checksum :]
        yield num_bytes, bool(size_length)


def _int(raw: memoryview) -> int:
    return int.from_bytes(raw, "little")
