"""Files that are not what they should be: read as zarr alone reads them, or a clear error."""

import os
import subprocess
import sys

import numpy as np
import pytest
import zarr
from helpers import OUR_PIPELINES, create
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import numcodecs_bytes
from numcodecs_bytes._engine import files


@pytest.fixture(params=OUR_PIPELINES)
def array(request, tmp_path):
    """Return an array of two chunks of 16 bytes, read by a pipeline of ours."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        create(tmp_path / "a", (8,), (4,), "i4", fill_value=7)[:] = np.arange(8)
        yield zarr.open_array(tmp_path / "a", mode="r")


@pytest.fixture
def chunk(array):
    return array.store.root / "c" / "0"


def test_symbolic_links_are_read(array, chunk, tmp_path):
    chunk.rename(tmp_path / "elsewhere")
    chunk.symlink_to(tmp_path / "elsewhere")
    np.testing.assert_array_equal(array[:], np.arange(8))


def test_a_symbolic_loop_is_zarrs_error(array, chunk):
    chunk.unlink()
    chunk.symlink_to(chunk)
    with pytest.raises(OSError, match="symbolic links"):
        array[:]


@pytest.mark.parametrize("is_folder", [False, True])
def test_missing_chunks_and_folders_are_the_fill_value(array, chunk, is_folder):
    chunk.unlink()
    if is_folder:
        chunk.mkdir()
    np.testing.assert_array_equal(array[:], [7, 7, 7, 7, 4, 5, 6, 7])


@pytest.mark.parametrize(("raw", "why"), [(b"123", "truncated"), (bytes(17), "another shape")])
def test_the_wrong_length_names_the_chunk(array, chunk, raw, why):
    """Also if only bytes are selected that are there."""
    chunk.write_bytes(raw)
    with pytest.raises(
        ValueError, match=rf"chunk 'c/0' .* holds {len(raw)} bytes, expected 16.*{why}"
    ):
        array[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_the_writer_of_a_pipe_is_not_killed(array, chunk):
    """zarr alone reads what it writes."""
    chunk.unlink()
    os.mkfifo(chunk)
    program = f"open({str(chunk)!r}, 'wb').write(bytes(16))"
    with subprocess.Popen([sys.executable, "-c", program]) as writer:
        np.testing.assert_array_equal(array[:4], np.zeros(4))
    assert writer.returncode == 0


def test_a_file_that_is_truncated_meanwhile_is_an_error(chunk):
    descriptor = files.open_file(str(chunk))
    with pytest.raises(EOFError, match="truncated"):
        files.fill(descriptor, 8, memoryview(bytearray(16)))
    with pytest.raises(EOFError, match="truncated"):
        files.read_runs(descriptor, [0, 14], 4, lambda _: None)
    os.close(descriptor)


DAMAGE = {
    "the index of the shard is damaged": (True, -1),  # its checksum
    "the index has an inner chunk of a wrong length, or beyond the shard": (False, -56),  # a length
}


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
@pytest.mark.parametrize("why", DAMAGE)
def test_damaged_shards_are_left_to_zarr(tmp_path, pipeline, why):
    """With a reason that `trace` shows, and never wrong values: zarr raises the error."""
    has_checksum, position = DAMAGE[why]
    index_codecs = [BytesCodec(endian="little"), *([Crc32cCodec()] if has_checksum else [])]
    codec = ShardingCodec(
        chunk_shape=(2,), codecs=[BytesCodec(endian="little")], index_codecs=index_codecs
    )
    more = {"serializer": codec, "compressors": None, "dtype": "i4"}
    array = zarr.create_array(tmp_path / "a", shape=(8,), chunks=(8,), **more)
    array[:] = np.arange(1, 9)
    shard = tmp_path / "a" / "c" / "0"
    raw = bytearray(shard.read_bytes())
    raw[position] ^= 1
    shard.write_bytes(raw)
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        opened = zarr.open_array(tmp_path / "a", mode="r")
        with numcodecs_bytes.trace() as traced, pytest.raises((ValueError, RuntimeError)):
            opened[0:3]
    assert f"left to zarr: {why}" in traced.report()["not_seen"]


def test_a_thread_knows_whether_it_waited():
    before = files.usage()
    assert before is None or not files.has_waited(before)
