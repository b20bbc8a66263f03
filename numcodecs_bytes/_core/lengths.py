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
# What helps instead if it can't be decoded.
_IF_DAMAGED: dict[Reference, str] = {
    "to a whole file": "otherwise, restore the file",
    "inlined": "otherwise, make the references again",
}
# To rewrite a shard whose index is taken for another loses the inner chunks that are intact.
_OF_INNER = (
    "if it is damaged, restore it; if the metadata, or a consolidated copy of them, state the "
    "wrong data type, chunk shape, codecs or, of a shard, index_codecs or index_location, correct "
    "them; until then, write nothing to it"
)


class LengthError(ValueError):
    """A chunk has the wrong length."""

    num_elements: int | None = None  # how many elements it holds, unless it ends within one


class Advice(NamedTuple):
    """What may be wrong with a chunk, and what to do, which other chunks of its array may tell."""

    text: str  # while nothing is known of the others
    if_others: str = ""  # if others can be read; empty if that makes no difference
    if_none: str = ""  # if none can
    what: str = ""  # what is wrong in any case

    def __str__(self) -> str:
        return self.given(others_can_be_read=None)

    def given(self, *, others_can_be_read: bool | None) -> str:
        """Return the text for what is known of other chunks."""
        text = self.text
        if others_can_be_read is not None:
            text = (self.if_others if others_can_be_read else self.if_none) or text
        return f"{self.what}: {text}" if self.what else text


def advise(seems: str, if_others: str, if_none: str, others: str = "chunks") -> Advice:
    """Return advice that names what a chunk seems to be, or "", and two causes or remedies."""
    seems = seems and f"{seems}; "
    return Advice(
        f"{seems}if other {others} can be read, {if_others}; otherwise, {if_none}",
        f"{seems}other {others} can be read, so {if_others}",
        f"{seems}{if_none}",
    )


class SuspectChunk(NamedTuple):
    """What is known of a chunk that has the wrong length, or that its codecs can't decode."""

    num_bytes: int
    expected: int
    start: bytes = b""  # its first bytes, if they are known
    reference: Reference = ""
    may_lack_padding: bool = False  # if it is at the edge of the array, which is not known

    def explain(self) -> Advice:
        """Return what may be wrong, and what to do."""
        if not self.num_bytes and not self.reference:
            return Advice(EMPTY)
        if advice := self.explain_start():
            return advice
        metadata, wrong = (
            "the metadata, or a consolidated copy of them,",
            "the wrong data type, chunk shape or codecs",
        )
        correct = f"if {metadata} state {wrong}, correct them"
        if self.reference:
            remedy = _REMEDIES[self.reference]
            return Advice(f"{remedy}; {correct}", if_others=remedy)
        if_none = f"{metadata} seem to state {wrong}: correct them"
        if self.num_bytes < self.expected:
            at_edge = "if it is at the edge of the array and lacks padding, keep it, and pad it; "
            pad = at_edge if self.may_lack_padding else ""
            return Advice(
                f"{pad}if it is truncated, restore or rewrite it; {correct}",
                f"{pad}it seems to be truncated: restore or rewrite it",
                if_none,
            )
        damaged = "this one is damaged, or was written by another program: restore or rewrite it"
        return advise("", damaged, if_none)

    def explain_start(self) -> Advice | None:
        """Return what a chunk seems to be, given its first bytes, and what to do, if known."""
        codec = self._compressor()
        name = codec if codec in _OF_ZARR_V3 else f"numcodecs.{codec}"
        of_v3 = json.dumps({"name": name, "configuration": _OF_ZARR_V3.get(codec, {})})
        return self._explain_start(
            f"add that codec to the metadata, in zarr.json as {of_v3} after the codec "
            f'"bytes", or in .zarray as "compressor": {{"id": "{codec}"}}'
        )

    def explain_inner(self) -> Advice | None:
        """Return what an inner chunk of a shard seems to be, and what to do, if known."""
        return self._explain_start(
            "add that codec to the metadata, in a shard to the `codecs` in the configuration of "
            "sharding_indexed"
        )

    def _explain_start(self, add_codec: str) -> Advice | None:
        if why := explain_stand_in(self.start):
            return Advice(why)
        if not (codec := self._compressor()):
            return None
        seems = f"it seems to be compressed by {codec}: keep it"
        by_another = "it was written by another program: decompress or restore it"
        return advise(seems, by_another, add_codec)

    def explain_encoding(self, codecs: Iterable[str]) -> Advice | None:
        """Return how a chunk seems to be encoded if not by these codecs, and what to do."""
        if not self.num_bytes and not self.start:
            return Advice(EMPTY)
        if why := explain_stand_in(self.start):
            return Advice(why)
        names, codec = {name.removeprefix("numcodecs.") for name in codecs}, self._compressor()
        may_be_plain = names & _COMPRESSORS and names <= _COMPRESSORS | _OF_SAME_LENGTH
        if codec and not any(codec in name for name in names):  # such as imagecodecs_zstd
            seems = f"it seems to be compressed by {codec}"
        elif not codec and may_be_plain and self.num_bytes == self.expected:
            seems = "it has the length of elements that are not encoded"
        else:
            return None
        return advise(
            f"{seems}, contrary to the metadata: keep it",
            "it was written by another program: convert or restore it",
            "correct the codecs in the metadata",
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
        advice = wrong.explain()
        if may_be_inner:
            advice = wrong.explain_inner() or Advice(_OF_INNER)
        error = LengthError(
            f"{name} holds {num_bytes} bytes, expected {expected} for shape {shape} of {dtype}; "
            f"{advice}{FIND_OTHERS}"
        )
        if not num_bytes % max(stored.itemsize, 1):
            error.num_elements = num_bytes // max(stored.itemsize, 1)
        raise error


def advise_on_codecs(reference: Reference) -> Advice:
    """Return what to do with a chunk that its codecs can't decode."""
    correct = (
        "if the metadata, or a consolidated copy of them, state the wrong data type, chunk shape "
        "or codecs, correct them"
    )
    if reference:
        return Advice(f"{correct}; {_IF_DAMAGED.get(reference) or _REMEDIES[reference]}")
    return Advice(
        f"{correct}; if it is damaged, restore or rewrite it",
        "other chunks can be read, so this one is damaged, or was written by another program: "
        "restore or rewrite it",
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
