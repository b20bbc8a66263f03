"""Chunks of the wrong length: what is wrong with them, and what to do.

A chunk of the wrong length may be intact, and its metadata wrong. An empty one may be the inner
chunk of a shard that holds others, so that no message advises to remove it.
"""

import contextlib
import math
import re
import zlib
from typing import Any

from numcodecs_bytes._core.dtypes import AnyDType

NUM_START_BYTES = 16  # how many of a chunk's first bytes tell by what it is compressed
# What compressed data begin with.
_STARTS = {
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    "lzma": re.compile(rb"\xfd7zXZ\0"),
}


class LengthError(ValueError):
    """A chunk has the wrong length."""


def check_length(  # noqa: PLR0913 # what the message says
    num_bytes: int,
    shape: tuple[int, ...],
    dtype: AnyDType,
    stored: AnyDType,
    name: str,
    *,
    start: Any = b"",
    is_reference: bool = False,
) -> None:
    """Raise LengthError unless `num_bytes` is the length of a chunk of this shape and dtype.

    `start` is a buffer of the chunk, or of its first bytes, if these are known.
    """
    expected = math.prod(shape) * stored.itemsize
    if num_bytes != expected:
        start = bytes(start[:NUM_START_BYTES])
        why = explain_length(num_bytes, expected, start, is_reference=is_reference)
        raise LengthError(
            f"{name} holds {num_bytes} bytes, expected {expected} for shape {shape} of {dtype}; "
            f"{why} (`numcodecs-bytes check` finds all such chunks)"
        )


def explain_length(num_bytes: int, expected: int, start: bytes, *, is_reference: bool) -> str:
    """Return what may be wrong with a chunk of the wrong length, and what to do."""
    if not num_bytes and not is_reference:
        return "it is empty: restore or rewrite it"
    if codec := compressor_of(start, num_bytes, expected):
        return keep_compressed(codec)
    metadata, wrong = (
        "the metadata, or a consolidated copy of them,",
        "the wrong data type, chunk shape or codecs",
    )
    correct = f"if {metadata} state {wrong}, correct them"
    if is_reference:
        return (
            "if the reference is wrong, make the references again; if the file that it points to "
            f"is truncated, restore that; {correct}"
        )
    if num_bytes < expected:
        return f"if it is truncated, restore or rewrite it; {correct}"
    return f"{metadata} seem to state {wrong}: correct them"


def keep_compressed(codec: str) -> str:
    """Return what to do with a chunk that seems to be compressed by a codec."""
    return f"it seems to be compressed by {codec}: keep it, and add that codec to the metadata"


def compressor_of(start: bytes, num_bytes: int, num_decoded: int) -> str:
    """Return the codec by which a chunk seems to be compressed, given its first bytes, or ""."""
    for codec, pattern in _STARTS.items():
        if pattern.match(start):
            return codec
    if start.startswith(b"x") and len(start) > 1:
        with contextlib.suppress(zlib.error):
            zlib.decompressobj().decompress(start, 1)
            return "zlib"
    words = [int.from_bytes(start[i : i + 4], "little") for i in range(0, NUM_START_BYTES, 4)]
    # Its versions, flags and item size; the lengths of decoded data, of a block, of the chunk.
    if start.startswith(b"\2\1") and (words[1] == num_decoded or words[3] == num_bytes):
        return "blosc"
    return "lz4" if num_bytes > 4 and words[0] == num_decoded else ""
