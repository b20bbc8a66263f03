"""What messages say of chunks of the wrong length."""

import re

import numcodecs
import numpy as np
import pytest

from numcodecs_bytes._core.lengths import LengthError, SuspectChunk, check_length, explain_stand_in

ZSTD = bytes(numcodecs.Zstd().encode(bytes(80)))
ADD = (
    r'add that codec to the metadata, in zarr.json as .* after the codec "bytes", or in .zarray as'
)


@pytest.mark.parametrize(
    ("start", "num_bytes", "reference", "others_can_be_read", "expected"),
    [
        (b"", 90, "", None, "if other chunks can be read, this one is damaged, .*; otherwise"),
        (b"", 90, "", True, "other chunks can be read, so this one is damaged, or"),
        (b"", 90, "", False, "the metadata, .* seem to state the wrong data type.*correct them"),
        (b"", 70, "", None, "if it is truncated, restore .*; if the metadata, .*correct them$"),
        (b"", 70, "", True, "it seems to be truncated: restore or rewrite it$"),
        (b"", 70, "", False, "the metadata, .* seem to state"),
        (b"", 70, "to part of a file", None, "if the reference is wrong, .*; if the metadata"),
        (
            b"",
            70,
            "to part of a file",
            True,
            "if the reference is wrong, .* is truncated, restore that$",
        ),
        (b"", 70, "inlined", None, "make the references again; if the metadata"),
        (b"", 0, "", True, "it is empty: restore or rewrite it$"),
        (ZSTD, 90, "", None, rf".* zstd: keep it; if other .* restore it; otherwise, {ADD}"),
        (ZSTD, 90, "", True, ".* zstd: keep it; other .* program: decompress or restore it$"),
        (ZSTD, 90, "", False, rf".* zstd: keep it; {ADD}"),
    ],
)
def test_one_chunk_among_good_ones(start, num_bytes, reference, others_can_be_read, expected):
    """One that was damaged among good ones was to be mended by changing the metadata of all."""
    advice = SuspectChunk(num_bytes, 80, start, reference).explain()
    why = advice.given(others_can_be_read=others_can_be_read)
    assert re.match(expected, why)
    if others_can_be_read:
        assert "metadata" not in why


@pytest.mark.parametrize(
    ("num_bytes", "shape", "may_lack_padding"),
    [
        (80, (10, 4), True),
        (80, (4, 10), True),
        (4, (10,), True),
        (82, (10, 4), False),
        (8, (0, 4), False),
    ],
)
def test_a_chunk_without_padding(num_bytes, shape, may_lack_padding):
    """It was to be rewritten, although `check` said to keep it."""
    dtype = np.dtype("i4")
    with pytest.raises(LengthError) as caught:
        check_length(num_bytes, shape, dtype, dtype, "chunk")
    pad = "; if it is at the edge of the array and lacks padding, keep it, and pad it; if it is tr"
    assert (pad in str(caught.value)) == may_lack_padding


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"\n<!DOCTYPE html><html>", "it is a web page, such as a login form: log in"),
        (b"<HTML>", "it is a web page, such as a login form: log in"),
        (b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>', "it is an error of an object"),
        (b"\xef\xbb\xbf<?xml version='1.0' encoding='utf-8'?><Error>", "it is an error of an obj"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "it is a pointer of Git LFS: fetch"),
        (b"<?xml version='1.0'?>\n<!DOCTYPE html PUBLIC", "it is a web page, such as a login form"),
        (b"<Error><Code>NoSuchKey</Code>", "it is an error of an object store"),
        (b'{"message": "Not Found"}', "it is the answer of a server to a request that failed"),
        (b"404 Not Found", "it is the answer of a server to a request that failed"),
        (b"/annex/objects/SHA256E-s64--00", "it is a pointer of git-annex: fetch the data, with "),
        (b'{"a": 1}', ""),
        (b"404", ""),
        (b'<?xml version="1.0"?><data>', ""),
        (bytes(96), ""),
    ],
)
def test_what_stands_for_a_chunk(start, expected):
    """An error of S3 and a pointer of Git LFS were said to be of the wrong data type."""
    why = explain_stand_in(start)
    assert why.startswith(expected)
    assert bool(why) == bool(expected)


def test_integers_that_begin_with_the_length_are_not_lz4():
    """Plain ones were said to be compressed, so that a codec was to be added."""
    indices = [np.arange(n, n + 58, dtype="<i4") for n in (32, 240, 4080)]
    for values in (*indices, np.full(2, 64, "<u4"), np.array([64, 15])):
        why = SuspectChunk(values.nbytes, int(values[0]), values.tobytes()[:96]).explain().text
        assert "lz4" not in why
    for size in (4, 64, 5000):
        for data in (bytes(size), np.random.default_rng(0).bytes(size)):
            stored = bytes(numcodecs.LZ4().encode(data))
            why = SuspectChunk(len(stored), size, stored[:96]).explain().text
            assert "compressed by lz4" in why
