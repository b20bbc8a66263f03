"""Errors of reads: which chunk, what is wrong with it, and what to do, said once."""

import json
import traceback
from unittest.mock import Mock

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import HAS_STRUCT
from servers import Server, objects_of, references, store_of
from zarr.codecs import BytesCodec, ShardingCodec

import numcodecs_bytes
from numcodecs_bytes.check import check


def said(error):
    """Return all that Python shows of an error but its frames, one line for each message."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("  ", "Traceback")))


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (bytes(numcodecs.Zstd().encode(bytes(40))), "it seems to be compressed by zstd: keep it"),
        (b"<!DOCTYPE html><html>login</html>", "it is a web page, such as a login form: log in"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of Git LFS"),
        (bytes(39), "if it is truncated, restore or rewrite it"),
    ],
    ids=["zstd", "page", "LFS", "short"],
)
@pytest.mark.parametrize("client", ["obstore", "fsspec"])
@pytest.mark.usefixtures("our_pipeline")
def test_a_server_that_ignores_byte_ranges(client, stored, expected):
    """It hid what the chunk is, because its first bytes are asked for by a range."""
    objects = objects_of("a", np.ones(10), chunks=5) | {"a/c/1": stored}
    with Server(objects).running() as server:
        array = zarr.open_array(store_of(client, f"{server.url('all, 200', 't')}/a"), mode="r")
        for selection in (6, slice(None)):
            with pytest.raises(ValueError, match=f"'[^ ]*c/1' .* {len(stored)} bytes") as caught:
                array[selection]
            text = said(caught.value)
            assert f"of float64; {expected}" in text
            assert text.count("holds") == 1  # neither a note nor another traceback repeats it
            assert "while reading" not in text


def test_a_file_of_references_on_a_server_that_ignores_byte_ranges():
    """To make the references again was advised; the number of bytes was that of the file."""
    objects = objects_of("a", np.ones(8), chunks=8) | {"file": bytes(356)}
    with Server(objects).running() as server:
        url = f"{server.url('all, 200', 't')}/file"
        array = zarr.open_array(references(url, {"c/0": (100, 64)}, objects["a/zarr.json"]))
        message = (
            r"got 356 bytes for chunk 'c/0' \(64 bytes at offset 100 of .*: the server ignored the "
            "byte range and sent the whole file; use a server that serves byte ranges, or a local"
        )
        with pytest.raises(ValueError, match=message) as caught:
            array[6]
        assert "again" not in said(caught.value)


class OfUserError(Exception):
    """What a handler of a signal may raise."""


class TestShards:
    @pytest.fixture
    def shard(self, tmp_path):
        """Create an array of one shard of 4 inner chunks, without a checksum; return the shard."""
        sharding = ShardingCodec(chunk_shape=(4, 4), index_codecs=[BytesCodec()])
        settings = {"shape": (8, 8), "chunks": (8, 8), "dtype": "u1", "compressors": None}
        zarr.create_array(tmp_path, serializer=sharding, **settings)[:] = 1
        return tmp_path / "c/0/0"

    @pytest.mark.skipif(not HAS_STRUCT, reason="zarr 3.1.6 takes the byte order of the machine")
    @pytest.mark.usefixtures("our_pipeline")
    def test_an_index_codec_without_endian(self, shard, tmp_path):
        """An intact shard was said to be damaged."""
        document = json.loads((tmp_path / "zarr.json").read_text())
        (sharding,) = document["codecs"]
        (index_codec,) = sharding["configuration"]["index_codecs"]
        del index_codec["configuration"]
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        array = zarr.open_array(tmp_path)
        with numcodecs_bytes.trace() as traced, pytest.raises(ValueError, match="endian") as caught:
            array[3:5]
        for text in (said(caught.value), str(traced.report())):
            assert "the bytes codec in index_codecs has no endian: add it" in text
            assert "damaged" not in text

    @pytest.mark.parametrize("offset_and_length", [(2**63, 16), (0, 2**62), (0, 11), (0, 20)])
    @pytest.mark.usefixtures("our_pipeline")
    def test_a_damaged_index_without_a_checksum(self, shard, tmp_path, offset_and_length):
        """A MemoryError, an OSError or a group of errors did not say what to do."""
        raw = bytearray(shard.read_bytes())
        np.frombuffer(raw, "<u8", 8, 64).reshape(4, 2)[0] = offset_and_length
        self.check_advice(shard, tmp_path, raw)

    @pytest.mark.usefixtures("our_pipeline")
    def test_a_truncated_one_without_a_checksum(self, shard, tmp_path):
        self.check_advice(shard, tmp_path, shard.read_bytes()[:-20])

    @pytest.mark.usefixtures("our_pipeline")
    def test_what_stands_for_one(self, tmp_path):
        """A pointer of Git LFS was said to be a shard that may be damaged."""
        settings = {"shape": (8, 8), "chunks": (4, 4), "shards": (8, 8), "compressors": None}
        zarr.create_array(tmp_path, dtype="u1", **settings)[:] = 1
        (tmp_path / "c/0/0").write_bytes(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n" + bytes(90)
        )
        for selection in ((0, 0), ...):
            with pytest.raises(Exception, match=".*") as caught:
                zarr.open_array(tmp_path)[selection]
            what = caught.value.__notes__[1]
            assert what == "it is a pointer of Git LFS: fetch the data, with git lfs pull"

    @pytest.mark.usefixtures("our_pipeline")
    @pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
    @pytest.mark.parametrize("codec", ["auto", "gzip", "zlib", "bz2", "lzma", "lz4", "blosc"])
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_what_stands_for_a_compressed_chunk(self, tmp_path, zarr_format, codec):
        """zarr says that the codec can't decode it, by errors of many classes."""
        if codec != "auto":
            name = codec if codec in ("gzip", "blosc") else f"numcodecs.{codec}"
            codec = numcodecs.get_codec({"id": codec}) if zarr_format == 2 else {"name": name}
            if zarr_format == 3:
                codec["configuration"] = {}
        settings = {"shape": 4, "dtype": "u1", "zarr_format": zarr_format, "compressors": codec}
        array = zarr.create_array(tmp_path, **settings)
        array[:] = 1
        chunk = tmp_path / array.metadata.encode_chunk_key((0,))
        chunk.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
        with pytest.raises(Exception, match=".*") as caught:
            array[:]
        what = "it is a pointer of Git LFS: fetch the data, with git lfs pull"
        assert caught.value.__notes__[1:] == [what]
        chunk.write_bytes(b"damaged")
        with pytest.raises(Exception, match=".*") as caught:
            array[:]
        (remedy,) = caught.value.__notes__[1:]
        assert remedy.startswith("if the metadata, or a consolidated copy of them, state the wrong")

    @pytest.mark.usefixtures("our_pipeline")
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_a_chunk_that_was_encoded_otherwise(self, tmp_path, zarr_format):
        """To rewrite it was advised, although it is intact, and `check` says to keep it."""
        codec = numcodecs.Zstd() if zarr_format == 2 else zarr.codecs.ZstdCodec()
        settings = {"shape": 40, "dtype": "f4", "zarr_format": zarr_format, "compressors": codec}
        array = zarr.create_array(tmp_path, **settings)
        array[:] = 1
        chunk = tmp_path / array.metadata.encode_chunk_key((0,))
        for stored, seems in (
            (array[:].tobytes(), "it has the length of elements that are not encoded, contrary to"),
            (numcodecs.GZip().encode(bytes(160)), "it seems to be compressed by gzip, contrary to"),
            (b"", "it is empty: restore or rewrite it"),
        ):
            chunk.write_bytes(stored)
            with pytest.raises(Exception, match=".*") as caught:
                array[:]
            assert caught.value.__notes__[1].startswith(seems)
            (report,) = check(tmp_path)
            assert seems in report.problems[0]

    @pytest.mark.usefixtures("our_pipeline")
    def test_a_codec_whose_name_is_not_known(self, tmp_path, monkeypatch):
        """An error of the explanation was raised in place of that of the codec."""
        array = zarr.create_array(tmp_path, shape=4, dtype="u1")
        array[:] = 1
        (tmp_path / "c/0").write_bytes(b"damaged")
        monkeypatch.setattr(zarr.codecs.ZstdCodec, "to_dict", Mock(return_value=None))
        with pytest.raises(Exception, match=r"(?i)zstd|frame"):
            array[:]

    @pytest.mark.usefixtures("our_pipeline")
    @pytest.mark.parametrize("kind", [MemoryError, OfUserError])
    def test_what_is_no_damage(self, tmp_path, monkeypatch, kind):
        """A lack of memory, or what a handler of a signal raises: to mend the chunk was advised."""

        def decode(*_):
            raise kind

        array = zarr.create_array(tmp_path, shape=4, dtype="u1")
        array[:] = 1
        effect = decode if kind is OfUserError else Mock(side_effect=kind)
        monkeypatch.setattr(numcodecs.Zstd, "decode", effect)
        with pytest.raises(kind) as caught:
            array[:]
        assert len(caught.value.__notes__) == 1

    def check_advice(self, shard, folder, raw):
        shard.write_bytes(raw)
        with pytest.raises(Exception, match=".*") as caught:
            zarr.open_array(folder)[0, 0]
        where, *notes = caught.value.__notes__
        assert where.startswith("while reading chunk 'c/0/0' of LocalStore")
        assert "its index says that inner chunk (0, 0) has " in str(notes)
        advice = f"{notes} {caught.value}"
        assert advice.count("restore it; ") == 1
        assert advice.count("; until then, write nothing to it") == 1

    @pytest.mark.usefixtures("our_pipeline")
    def test_compressed_inner_chunks_of_which_metadata_say_nothing(self, tmp_path):
        """`check` did not say what an error said, to keep them, and what to add."""
        settings = {"shape": (8, 8), "chunks": (4, 4), "shards": (8, 8), "dtype": "f8"}
        zarr.create_array(tmp_path, compressors=zarr.codecs.ZstdCodec(), **settings)[:] = 1
        document = json.loads((tmp_path / "zarr.json").read_text())
        del document["codecs"][0]["configuration"]["codecs"][1:]
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        for selection in ((0, 0), ...):
            with pytest.raises(Exception, match=".*") as caught:
                zarr.open_array(tmp_path)[selection]
            text = f"{caught.value} {caught.value.__notes__}"
            assert "it seems to be compressed by zstd: keep it" in text
        (report,) = check(tmp_path)
        assert "it seems to be compressed by zstd: keep it" in report.problems[0]

    def test_an_empty_one(self, shard, tmp_path):
        """Inner chunks in it were to be kept."""
        shard.write_bytes(b"")
        with pytest.raises(ValueError, match="0 bytes") as caught:
            zarr.open_array(tmp_path)[0, 0]
        assert caught.value.__notes__[1] == "it is empty: restore or rewrite it"

    @pytest.mark.parametrize(
        "change", [{}, {"index_location": "start"}], ids=["codecs", "location"]
    )
    @pytest.mark.usefixtures("our_pipeline")
    def test_wrong_metadata_of_the_index(self, tmp_path, change):
        """To rewrite a shard was advised, and lost the inner chunks: all are intact."""
        settings = {"shape": (8, 8), "chunks": (4, 4), "shards": (8, 8), "dtype": "f8"}
        zarr.create_array(tmp_path, compressors=None, **settings)[:] = 1
        document = json.loads((tmp_path / "zarr.json").read_text())
        sharding = document["codecs"][0]["configuration"]
        sharding.update(change or {"index_codecs": sharding["index_codecs"][:1]})
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        with pytest.raises(Exception, match=".*") as caught:
            zarr.open_array(tmp_path)[:]
        (report,) = check(tmp_path)
        for text in (said(caught.value), str(report.problems)):
            assert "write nothing to" in text
            assert "index_location" in text
            assert "rewrite" not in text
            assert "empty" not in text

    @pytest.mark.usefixtures("our_pipeline")
    @pytest.mark.parametrize("index_codecs", [[], ["crc32c"], ["crc32c", "bytes"]], ids=str)
    def test_codecs_of_an_index_that_zarr_refuses(self, tmp_path, index_codecs):
        """That was logged as a bug of this package; fuzzing found it."""
        settings = {"shape": 8, "chunks": (2,), "shards": (4,), "dtype": "u1", "compressors": None}
        zarr.create_array(tmp_path, **settings)[:4] = 1
        document = json.loads((tmp_path / "zarr.json").read_text())
        codecs = [{"name": name} for name in index_codecs]
        document["codecs"][0]["configuration"]["index_codecs"] = codecs
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        array = zarr.open_array(tmp_path)
        assert array[4:].tolist() == [0] * 4
        with pytest.raises((TypeError, ValueError)):
            array[:3]
        (report,) = check(tmp_path)
        assert report.problems

    @pytest.mark.usefixtures("our_pipeline")
    def test_one_that_may_not_be_read(self, shard):
        """Says nothing about the data."""

        class Store(zarr.storage.LocalStore):
            _supports_sync_io = False

            async def get(self, key, *args, **kwargs):
                if key == "c/0/0":
                    raise PermissionError(13, "Permission denied")
                return await super().get(key, *args, **kwargs)

        with pytest.raises(PermissionError) as caught:
            zarr.open_array(Store(shard.parents[2]))[:]
        assert "damaged" not in said(caught.value)
