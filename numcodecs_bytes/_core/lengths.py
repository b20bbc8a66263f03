"""Chunks of the wrong length: what is wrong with them, and what to do.

A chunk of the wrong length may be intact, and its metadata wrong. An empty one may be the inner
chunk of a shard that holds others, so that no message advises to remove it.
"""

import contextlib
import json
import math
import re
import zlib
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from numcodecs_bytes._core.dtypes import AnyDType

NUM_START_BYTES = 96  # how many of a chunk's first bytes tell what it is
# The end of the message of an error that a read raises.
FIND_OTHERS = " (`numcodecs-bytes check` finds all such chunks)"
# What to do with a chunk that its codecs can't decode.
CORRECT_OR_RESTORE = (
    "if the metadata, or a consolidated copy of them, state the wrong data type, chunk shape or "
    "codecs, correct them; if it is damaged, restore or rewrite it"
)
EMPTY = "it is empty: restore or rewrite it"
# What compressed data begin with.
_STARTS = {
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "gzip": re.compile(rb"\x1f\x8b\x08"),
    "bz2": re.compile(rb"BZh[1-9]1AY&SY"),
    "lzma": re.compile(rb"\xfd7zXZ\0"),
}
# Compressors, and codecs that leave the length as it is.
_COMPRESSORS = {*_STARTS, "blosc", "lz4", "zlib"}
_OF_SAME_LENGTH = {"bytes", "endian", "shuffle", "transpose"}
BLOSC_START = b"\2\1"  # the versions of its format, of all that numcodecs has written
# What stands for a file that was not fetched, and what to do.
_STAND_INS = (
    (
        re.compile(rb"\s*(<\?xml[^>]*>\s*)?<(!doctype\s+h|html)", re.IGNORECASE),
        "it is a web page, such as a login form: log in at its server, or restore it",
    ),
    (
        re.compile(rb"(\xef\xbb\xbf)?(<\?xml[^>]*>\s*)?<Error>"),
        "it is an error of an object store, in XML: fetch it again, or restore it",
    ),
    (
        re.compile(rb"\s*\{\s*\"(code|detail|error|message|status)\"|[45]\d\d [A-Z][a-z]+\b"),
        "it is the answer of a server to a request that failed: fetch it again, or restore it",
    ),
    (
        re.compile(rb"/annex/objects/"),
        "it is a pointer of git-annex: fetch the data, with git annex get",
    ),
    (
        re.compile(rb"version https://git-lfs"),
        "it is a pointer of Git LFS: fetch the data, with git lfs pull",
    ),
)
# Configurations that decode whatever the codec wrote; for others, zarr needs an empty one.
_OF_ZARR_V3: dict[str, dict[str, Any]] = {
    "zstd": {"level": 0, "checksum": False},
    "gzip": {"level": 5},
    "blosc": {"cname": "zstd", "clevel": 5, "shuffle": "noshuffle", "blocksize": 0},
}
# What a chunk is if it is no object of its own, and what helps if it has the wrong length.
Reference = Literal["", "to part of a file", "to a whole file", "inlined", "in a repository"]
_REMEDIES: dict[Reference, str] = {
    "to part of a file": (
        "if the reference is wrong, make the references again; if the file that it points to is "
        "truncated, restore that"
    ),
    "to a whole file": (
        "the reference means all of its file, because it has no offset and length: add these, or "
        "restore the file"
    ),
    "inlined": "make the references again",
    "in a repository": "restore the repository or, if the chunk is virtual, the file that it is in",
}
# To rewrite a shard whose index is taken for another loses the inner chunks that are intact.
_OF_INNER = (
    "if it is damaged, restore it; if the metadata, or a consolidated copy of them, state the "
    "wrong data type, chunk shape, codecs or, of a shard, index_codecs or index_location, correct "
    "them; until then, write nothing to it"
)


class LengthError(ValueError):
    """A chunk has the wrong length."""


class SuspectChunk(NamedTuple):
    """What is known of a chunk that has the wrong length, or that its codecs can't decode."""

    num_bytes: int
    expected: int
    start: bytes = b""  # its first bytes, if they are known
    reference: Reference = ""
    others_fit: bool | None = None  # whether other chunks have the right length, if that is known
    may_lack_padding: bool = False  # if it is at the edge of the array, which is not known

    def explain(self) -> str:
        """Return what may be wrong, and what to do."""
        if not self.num_bytes and not self.reference:
            return EMPTY
        if why := self.explain_start():
            return why
        metadata, wrong = (
            "the metadata, or a consolidated copy of them,",
            "the wrong data type, chunk shape or codecs",
        )
        correct = "" if self.others_fit else f"; if {metadata} state {wrong}, correct them"
        if self.reference:
            return f"{_REMEDIES[self.reference]}{correct}"
        if self.others_fit is False:
            return f"{metadata} seem to state {wrong}: correct them"
        if self.num_bytes < self.expected:
            truncated = "it seems to be truncated: " if self.others_fit else "if it is truncated, "
            at_edge = "if it is at the edge of the array and lacks padding, keep it, and pad it; "
            pad = at_edge if self.may_lack_padding else ""
            return f"{pad}{truncated}restore or rewrite it{correct}"
        damaged = "damaged, or was written by another program: restore or rewrite it"
        if self.others_fit:
            return f"other chunks have the right length, and this one is {damaged}"
        return (
            f"if other chunks can be read, this one is {damaged}; otherwise, {metadata} state "
            f"{wrong}: correct them"
        )

    def explain_start(self) -> str:
        """Return what a chunk seems to be, given its first bytes, and what to do; or ""."""
        if why := explain_stand_in(self.start):
            return why
        if not (codec := self._compressor()):
            return ""
        keep = f"it seems to be compressed by {codec}: keep it"
        by_another = "it was written by another program: decompress or restore it"
        if self.others_fit:
            return f"{keep}; other chunks have the right length, so {by_another}"
        name = codec if codec in _OF_ZARR_V3 else f"numcodecs.{codec}"
        of_v3 = json.dumps({"name": name, "configuration": _OF_ZARR_V3.get(codec, {})})
        unless = ", and"
        if self.others_fit is None:
            unless = f"; if other chunks can be read, {by_another}; otherwise,"
        return (
            f"{keep}{unless} add that codec to the metadata, in zarr.json as {of_v3} after the "
            f'codec "bytes", or in .zarray as "compressor": {{"id": "{codec}"}}'
        )

    def explain_inner(self, remedy: str) -> str:
        """Return what may be wrong with what may be an inner chunk; else, the remedy."""
        if why := explain_stand_in(self.start):
            return why
        if not (codec := self._compressor()):
            return remedy
        return (
            f"it seems to be compressed by {codec}: keep it; if other chunks can be read, restore "
            "it; otherwise, add that codec to the metadata, in a shard to the `codecs` in the "
            "configuration of sharding_indexed"
        )

    def explain_encoding(self, codecs: Iterable[str]) -> str:
        """Return how a chunk seems to be encoded if not by these codecs, and what to do; or ""."""
        if why := explain_stand_in(self.start):
            return why
        names, codec = {name.removeprefix("numcodecs.") for name in codecs}, self._compressor()
        may_be_plain = names & _COMPRESSORS and names <= _COMPRESSORS | _OF_SAME_LENGTH
        if codec and codec not in names:
            seems = f"it seems to be compressed by {codec}"
        elif not codec and may_be_plain and self.num_bytes == self.expected:
            seems = "it has the length of elements that are not encoded"
        else:
            return ""
        return (
            f"{seems}, contrary to the metadata: keep it; if other chunks can be read, it was "
            "written by another program: convert or restore it; otherwise, correct the codecs in "
            "the metadata"
        )

    def _compressor(self) -> str:
        """Return the codec by which a chunk seems to be compressed, or ""."""
        start = self.start
        if codec := codec_at(start):
            return codec
        if start.startswith(b"x") and len(start) > 1:
            with contextlib.suppress(zlib.error):
                zlib.decompressobj().decompress(start, 1)
                return "zlib"
        words = [int.from_bytes(start[i : i + 4], "little") for i in range(0, 16, 4)]
        # Its versions, flags and item size; the lengths of decoded data, of a block, of the chunk.
        if start.startswith(BLOSC_START) and (
            words[1] == self.expected or words[3] == self.num_bytes
        ):
            return "blosc"
        is_lz4 = words[0] == self.expected and _may_be_lz4(start[4:], self.num_bytes - 4)
        return "lz4" if is_lz4 else ""


def check_length(  # noqa: PLR0913 # what the message says
    num_bytes: int,
    shape: tuple[int, ...],
    dtype: AnyDType,
    stored: AnyDType,
    name: str,
    *,
    start: Any = b"",
    reference: Reference = "",
    may_be_inner: bool = False,
) -> None:
    """Raise LengthError unless `num_bytes` is the length of a chunk of this shape and dtype.

    `start` is a buffer of the chunk, or of its first bytes, if these are known; `may_be_inner` says
    that the chunk may be one in a shard.
    """
    expected = math.prod(shape) * stored.itemsize
    if num_bytes != expected:
        are_rows = any(n > 1 and num_bytes % max(expected // n, 1) == 0 for n in shape)
        wrong = SuspectChunk(
            num_bytes,
            expected,
            bytes(start[:NUM_START_BYTES]),
            reference,
            may_lack_padding=are_rows,
        )
        why = wrong.explain_inner(_OF_INNER) if may_be_inner else wrong.explain()
        raise LengthError(
            f"{name} holds {num_bytes} bytes, expected {expected} for shape {shape} of {dtype}; "
            f"{why}{FIND_OTHERS}"
        )


def explain_stand_in(start: bytes) -> str:
    """Return what stands for a chunk, or a document, and what to do, given its start; or ""."""
    return next((why for pattern, why in _STAND_INS if pattern.match(start)), "")


def codec_at(start: bytes) -> str:
    """Return the codec whose compressed data begin so, or ""."""
    return next((codec for codec, pattern in _STARTS.items() if pattern.match(start)), "")


def _may_be_lz4(block: bytes, num_bytes: int) -> bool:
    """Whether a block of LZ4 of so many bytes may begin so.

    It begins with some literals, then says how far back to copy from.
    """
    num_literals, start = block[0] >> 4 if block else 0, 1
    if num_literals == 15:  # the bytes that follow are added to it, up to one that is not 255
        while start < len(block) and block[start] == 255:
            start += 1
        num_literals += sum(block[1 : start + 1])
        start += 1
    end = start + num_literals
    if end + 2 > len(block):
        return end == num_bytes or len(block) < num_bytes
    distance = int.from_bytes(block[end : end + 2], "little")
    return 0 < distance <= num_literals
