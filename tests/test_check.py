"""python -m numcodecs_bytes check: what it finds, and that it leaves everything as it is."""

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import shutil
import tempfile
import threading
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import (
    HAS_STRUCT,
    PIPELINES,
    bytes_codec,
    run_program,
    sharded,
    write_array,
    write_v2,
)

import numcodecs_bytes
from numcodecs_bytes import check as checks
from numcodecs_bytes.__main__ import main
from numcodecs_bytes._tools.locations import open_store

HAS_RECTILINEAR = zarr.config.get("array.rectilinear_chunks", None) is not None  # in zarr 3.4
BIG = bytes_codec("big")
SHARDS = sharded([2], BIG)
NO_INDEX_ENDIAN = sharded([2], BIG, index_codecs=[bytes_codec(), {"name": "crc32c"}])
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
STRUCT = {
    "name": "struct" if HAS_STRUCT else "structured",
    "configuration": {"fields": [["a", "int16"], ["b", "bool"]]},
}


def check(location):
    return {found.path: found for found in checks.check(open_store(str(location)))}


def problems_of(path):
    """Return the problems of the one array in a folder."""
    (found,) = check(path).values()
    assert len(found.problems) == found.num_problems
    return found.problems


@pytest.fixture
def healthy(tmp_path):
    """Write a hierarchy of what there is: layouts, formats, edge chunks, missing chunks."""
    group = zarr.create_group(tmp_path / "healthy")
    settings = {"shape": (10, 7), "chunks": (4, 7), "dtype": "f4", "compressors": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of strings, for one
        for name, more in {
            "plain": {"serializer": BIG},
            "transposed": {"filters": zarr.codecs.TransposeCodec(order=(1, 0))},
            "zipped": {"compressors": "auto"},
            "deep/in/shards": {"chunks": (2, 7), "shards": (4, 7)},
            "bools": {"dtype": "?"},
            "point": {"shape": (), "chunks": ()},
            "empty": {"shape": (0, 7)},
            "text": {"dtype": "str"},
        }.items():
            array = group.create_array(name, **(settings | more))
            if array.size:
                array[slice(4) if array.shape else ...] = "x" if name == "text" else 1
        old = zarr.create_group(tmp_path / "healthy" / "v2", zarr_format=2)
        for name, more in {
            "raw": {},
            "bytes": {"filters": [numcodecs_bytes.Bytes("big", "<f4")]},
            "zipped": {"compressors": numcodecs.Zstd()},
            "both": {
                "filters": [numcodecs_bytes.Bytes("big", "?")],
                "compressors": numcodecs.Zstd(),
                "dtype": "?",
            },
        }.items():
            old.create_array(name, **(settings | more))[:4] = 1
    return tmp_path / "healthy"


PARTIAL_READS = {
    "plain": "yes",
    "deep/in/shards": "yes: inner chunks in part",
    "text": f"no: its elements ({zarr.dtype.VariableLengthUTF8().to_native_dtype()}) are of "
    "variable length",
    **dict.fromkeys(["bools", "point", "empty", "transposed", "v2/raw", "v2/bytes"], "yes"),
    **dict.fromkeys(["zipped", "v2/zipped", "v2/both"], "no: it is compressed or filtered by zstd"),
}


class TestHealthyStores:
    def test_every_array_is_found(self, healthy):
        before = {file: file.read_bytes() for file in healthy.rglob("*") if file.is_file()}
        found = check(healthy)
        assert {path: report.partial_reads for path, report in found.items()} == PARTIAL_READS
        assert not any(report.problems for report in found.values())
        assert found["plain"].data_type == "float32"
        assert {p: r.num_chunks for p, r in found.items()} == {
            **dict.fromkeys(PARTIAL_READS, 1),
            **dict.fromkeys(["empty"], 0),
        }
        assert before == {file: file.read_bytes() for file in healthy.rglob("*") if file.is_file()}

    @pytest.mark.parametrize("location", ["{}", "file://{}", "{}.zip"])
    def test_a_healthy_store_has_no_notes(self, tmp_path, location):
        """Among them shards of full length, and a byte order of elements that need none."""
        if "file:" in location:
            pytest.importorskip("fsspec")
        group = zarr.create_group(tmp_path / "a")
        more = {"shards": (4,), "compressors": None}
        for name, settings in {"full": more, "zipped": {}, "bools": {"dtype": "?"}}.items():
            array = {"shape": 4, "chunks": (2,), "dtype": "i4"} | settings
            group.create_array(name, **array)[:] = 1
        write_array(tmp_path / "a/needless", bytes(4), "uint8", [bytes_codec("little")])
        shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "a")
        found = check(location.format(tmp_path / "a"))
        assert found.keys() == {"full", "zipped", "bools", "needless"}
        assert [(report.problems, report.notes) for report in found.values()] == [([], [])] * 4

    def test_the_progress_bar_gets_to_its_end(self, healthy):
        class Bar:
            total = None
            num_done = 0

            def refresh(self):
                pass

            def update(self, num_chunks):
                self.num_done += num_chunks

        bar = Bar()
        list(checks.check(open_store(str(healthy)), bar=bar))
        assert bar.num_done == bar.total == 31

    def test_other_stores(self, healthy, tmp_path):
        """A zip file, a URL, and a web server, which lists nothing: each with a damaged chunk."""
        healthy.joinpath("plain/c/0/0").write_bytes(bytes(5))

        def problems(found):
            return [problem for report in found.values() for problem in report.problems]

        archive = tmp_path / "healthy.zip"
        with zipfile.ZipFile(archive, "w") as members:
            for path in healthy.rglob("*"):
                members.write(path, path.relative_to(healthy))
        found = check(str(archive))
        assert found.keys() == PARTIAL_READS.keys()
        assert problems(found) == ["chunk plain/c/0/0 holds 5 bytes, expected 112: it is truncated"]

        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        pytest.importorskip("fsspec", reason="pip install '.[stores]'")
        assert check(f"file://{healthy}") == found

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # v3 has no specification of it
            zarr.consolidate_metadata(healthy)
            zarr.consolidate_metadata(healthy / "v2", zarr_format=2)

        class Handler(http.server.SimpleHTTPRequestHandler):
            def list_directory(self, _):
                self.send_error(404)

            def log_message(self, *_):
                pass

        handler = functools.partial(Handler, directory=healthy)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever).start()
            url = f"http://127.0.0.1:{server.server_port}"
            try:
                found, found_v2 = check(url), check(f"{url}/v2")
            finally:
                server.shutdown()
        assert found.keys() | {f"v2/{path}" for path in found_v2} == PARTIAL_READS.keys()
        assert len(found_v2) == 4
        assert len(problems(found)) == 1
        assert not problems(found_v2)

    @pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
    @pytest.mark.parametrize("filters", [None, zarr.codecs.TransposeCodec(order=(1, 0))], ids=str)
    def test_chunks_of_several_shapes(self, tmp_path, filters):
        """zarr's `Array.chunks` raises for them, which was reported as a problem."""
        with zarr.config.set({"array.rectilinear_chunks": True}):
            array = zarr.create_array(
                tmp_path,
                shape=(6, 8),
                chunks=[[1, 2, 3], [4, 4]],
                dtype="i2",
                filters=filters,
                compressors=None,
            )
            array[:] = 1
            (found,) = check(tmp_path).values()
        assert found.problems == []
        assert any("its chunks were not checked" in note for note in found.notes)

    @pytest.mark.parametrize("path", PIPELINES)
    def test_zarrs_own_classes(self, healthy, path):
        """With zarr's codec parts are read, too, but not by zarr's pipelines."""
        with zarr.config.set({"codecs.bytes": "zarr.codecs.bytes.BytesCodec"}):
            assert check(healthy / "plain")[""].partial_reads == "yes"
        with zarr.config.set({"codec_pipeline.path": path}):
            (report,) = check(healthy / "plain").values()
        assert report.partial_reads == f"no: {path} is the codec pipeline"


class TestMetadata:
    def test_missing_endian(self, tmp_path):
        path = write_array(tmp_path / "number", None, "int16", [bytes_codec()])
        (problem,) = problems_of(path)
        if STRUCT["name"] == "structured":  # zarr 3.1.6, which takes it as native
            assert problem.startswith('the bytes codec has no "endian", which int16 needs')
        else:
            assert problem.startswith("zarr can't open it: ")
            assert "`endian` configuration needs to be specified" in problem

        path = write_array(tmp_path / "struct", None, STRUCT, [bytes_codec()], fill_value={})
        if STRUCT["name"] == "structured":
            path = write_array(
                tmp_path / "struct", None, STRUCT, [bytes_codec()], fill_value="AAAA"
            )
        (problem,) = problems_of(path)
        assert 'the bytes codec has no "endian"' in problem

        path = write_array(tmp_path / "index", None, "int16", [NO_INDEX_ENDIAN])
        (problem,) = problems_of(path)
        assert 'the bytes codec has no "endian", which uint64 needs' in problem

    def test_the_former_name_of_the_codec(self, tmp_path):
        path = write_array(tmp_path, bytes(4), "uint8", [bytes_codec(None, "endian")])
        (found,) = check(path).values()
        assert not found.problems
        assert found.notes == ['codec "endian" was renamed to "bytes" in version 1.0']

    def test_data_types_of_older_drafts(self, tmp_path):
        path = write_array(tmp_path / "list", None, [["a", "<i2"], ["b", "|b1"]], [BIG])
        (problem,) = problems_of(path)
        assert (
            'replace it by {"name": "struct", "configuration": {"fields": '
            '[{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "bool"}]}}'
        ) in problem
        structured = STRUCT | {"name": "structured"}
        path = write_array(tmp_path / "pairs", None, structured, [BIG], fill_value="AAAA")
        (found,) = check(path).values()
        assert any("data type structured is specific to zarr-python" in n for n in found.notes)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", "its metadata can't be read: JSONDecodeError: "),
            ("{", "its metadata can't be read: JSONDecodeError: "),
            ("[1]", "its metadata can't be read: TypeError: expected a JSON object, got [1]"),
            ("[" * 100_000, "its metadata can't be read: RecursionError: "),
            ('{"node_type": "array"}', "zarr can't open it: "),
            ('{"node_type": "array", "zarr_format": 3, "data_type": 7}', "zarr can't open it: "),
        ],
    )
    def test_files_that_are_no_metadata(self, tmp_path, text, expected):
        """One bad document does not hide the others."""
        zarr.create_array(tmp_path / "good", shape=2, dtype="i2")
        tmp_path.joinpath("bad").mkdir()
        tmp_path.joinpath("bad", "zarr.json").write_text(text)
        found = check(tmp_path)
        assert found["bad"].problems[0].startswith(expected)
        assert not found["good"].problems

    def test_a_broken_group_does_not_hide_its_arrays(self, healthy):
        healthy.joinpath("zarr.json").write_text("{")
        found = check(healthy)
        assert found.keys() == PARTIAL_READS.keys() | {""}
        assert [path for path, report in found.items() if report.problems] == [""]

    def test_a_link_is_followed_once(self, healthy):
        healthy.joinpath("deep", "up").symlink_to(healthy)
        assert check(healthy).keys() == PARTIAL_READS.keys()

    def test_missing_endian_of_an_index_behind_a_filter(self, tmp_path):
        delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}}
        shard = sharded([2], delta, BIG, index_codecs=[bytes_codec(), {"name": "crc32c"}])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = write_array(tmp_path, None, "int16", [shard])
        (problem,) = problems_of(path)
        assert "which uint64 needs" in problem

    @pytest.mark.parametrize(
        ("dtype", "configuration", "expected"),
        [
            ("<i2", {"endian": "big"}, "the bytes codec has no dtype"),
            ("<i2", {"endian": "big", "dtype": "<i4"}, "the bytes codec decodes '<i4'"),
            (">i2", {"endian": "little"}, "the bytes codec has no dtype"),
            ("<i2", {"dtype": "<i2"}, 'the bytes codec has no "endian"'),
            ("<i2", {"dtype": "|u1"}, "the bytes codec decodes '|u1'"),
        ],
    )
    def test_configurations_that_read_wrong_in_zarr_v2(
        self, tmp_path, dtype, configuration, expected
    ):
        write_v2(tmp_path, None, dtype, [2], filters=[{"id": "bytes", **configuration}])
        (problem,) = problems_of(tmp_path)
        assert problem.startswith(expected)

    def test_a_swap_of_unknown_elements(self, tmp_path):
        """The codec refuses every chunk of it, those of one byte, too."""
        write_v2(tmp_path, None, "|u1", filters=[{"id": "bytes", "endian": "big"}])
        (problem,) = problems_of(tmp_path)
        assert problem.startswith("the bytes codec has no dtype, which it needs to store uint8")

    @pytest.mark.parametrize("name", [".zarray", ".zattrs"])
    def test_broken_metadata_of_zarr_v2(self, healthy, name):
        """Beside those of Zarr v3, or alone: zarr needs both files."""
        (healthy / "v2/raw" / name).write_text("{")
        problems = check(healthy)["v2/raw"].problems
        assert any("JSONDecodeError" in problem for problem in problems)
        (healthy / "plain/.zarray").write_text((healthy / "v2/zipped/.zarray").read_text())
        (healthy / "plain" / name).write_text("{")
        assert f"{name} can't be read: JSONDecodeError" in str(check(healthy)["plain"].problems)

    def test_nonsense_in_metadata_of_zarr_v2(self, healthy):
        (healthy / "plain/.zarray").write_text('{"zarr_format": 2, "shape": "x"}')
        (problem,) = check(healthy)["plain"].problems
        assert problem.startswith(".zarray, next to zarr.json, can't be opened: ")

    def test_neither_array_nor_group(self, healthy):
        document = json.loads((healthy / "zarr.json").read_text())
        (healthy / "zarr.json").write_text(json.dumps(document | {"node_type": 5}))
        found = check(healthy)
        assert found.keys() == {"", *PARTIAL_READS}
        assert found[""].num_problems == 1

    def test_chunks_of_broken_arrays_are_no_arrays(self, healthy):
        healthy.joinpath("plain", "zarr.json").write_text("{")
        assert check(healthy).keys() == PARTIAL_READS.keys()


class TestChunks:
    @pytest.mark.parametrize(
        ("num_bytes", "why"),
        [
            (0, "it is truncated"),
            (7, "it is truncated"),
            (9, "it has another shape or is compressed"),
        ],
    )
    def test_wrong_length(self, tmp_path, num_bytes, why):
        path = write_array(tmp_path, bytes(num_bytes), "int16", [BIG])
        assert problems_of(path) == [f"chunk c/0 holds {num_bytes} bytes, expected 8: {why}"]

    def test_wrong_length_in_zarr_v2(self, healthy):
        healthy.joinpath("v2/bytes/0.0").write_bytes(bytes(5))
        assert problems_of(healthy / "v2/bytes") == [
            "chunk 0.0 holds 5 bytes, expected 112: it is truncated"
        ]

    def test_wrong_length_behind_other_codecs(self, tmp_path):
        zipped = numcodecs.Zstd().encode(bytes(7))
        path = write_array(tmp_path / "zstd", zipped, "int16", [BIG, ZSTD])
        (problem,) = problems_of(path)
        assert problem.startswith(
            "chunk c/0 can't be read: ValueError: chunk holds 7 bytes, expected 8"
        )

        path = tmp_path / "shards"
        write_array(path, None, "int16", [SHARDS])
        zarr.open_array(path)[:] = 1
        shard = path / "c/0"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
        (problem,) = problems_of(path)
        assert problem.startswith("chunk c/0 can't be read: ")

    @pytest.mark.parametrize("codecs", [[bytes_codec()], [bytes_codec(), ZSTD]], ids=len)
    def test_invalid_bools(self, tmp_path, codecs):
        stored = b"\0\1\2\xff"
        stored = numcodecs.Zstd().encode(stored) if len(codecs) > 1 else stored
        path = write_array(tmp_path, stored, "bool", codecs, fill_value=False)
        (problem,) = problems_of(path)
        assert problem.startswith("chunk c/0 holds 2 bools that are neither 0 nor 1")

    def test_invalid_bools_in_structures(self, tmp_path):
        fill_value = "AAAA" if STRUCT["name"] == "structured" else {}
        stored = b"\1\2\1\1\2\0\1\2\7\xff\xff\1"
        path = write_array(tmp_path, stored, STRUCT, [BIG], fill_value=fill_value)
        (problem,) = problems_of(path)
        assert problem.startswith("chunk c/0 holds 1 bool")

    def test_invalid_bools_in_zarr_v2(self, healthy):
        zipped = numcodecs.Zstd().encode(b"\2" + bytes(27))
        healthy.joinpath("v2/both/1.0").write_bytes(zipped)
        (problem,) = problems_of(healthy / "v2/both")
        assert problem.startswith("chunk 1.0 holds 1 bool")

    def test_a_filter_of_bools(self, tmp_path):
        """What takes bools alone is read as it is, and said not to be checked."""
        array = zarr.create_array(
            tmp_path,
            shape=9,
            dtype="?",
            zarr_format=2,
            compressors=None,
            filters=[numcodecs_bytes.Bytes(None, "?"), numcodecs.PackBits()],
        )
        array[:] = True
        (found,) = check(tmp_path).values()
        assert not found.problems
        assert found.notes == ["its bools were not checked: a codec may need that data type"]

    def test_invalid_bools_of_a_compressor_in_zarr_v2(self, tmp_path):
        zarr.create_array(
            tmp_path,
            shape=2,
            dtype="?",
            zarr_format=2,
            compressors=numcodecs_bytes.Bytes(None, "?"),
        )
        tmp_path.joinpath("0").write_bytes(b"\1\2")
        (problem,) = problems_of(tmp_path)
        assert problem.startswith("chunk 0 holds 1 bool")

    def test_default_codecs_of_shards(self, tmp_path):
        shard = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2]}}
        path = write_array(tmp_path, b"no shard", "uint8", [shard])
        (problem,) = problems_of(path)
        assert problem.startswith("chunk c/0 can't be read: ")

    @pytest.mark.long
    def test_large_shards_are_read_in_blocks(self, tmp_path):
        """Of at most 4096 inner chunks."""
        path = tmp_path / "shards"
        write_array(path, None, "int16", [sharded([1], BIG)], [4100])
        zarr.open_array(path)[:] = np.arange(1, 4101)
        assert not problems_of(path)
        shard = path / "c/0"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
        assert len(problems_of(path)) == 1

    def test_missing_chunks_are_not_read(self, tmp_path):
        """Nor is a chunk of fill values made: of 64 GiB here; and the grid is not walked."""
        write_array(tmp_path / "large", None, "int16", [BIG, ZSTD], (2**36,), chunks=(2**35,))
        write_array(tmp_path / "many", None, "int16", [BIG], (2**40, 2**40), chunks=(1, 1))
        chunk = tmp_path / "many/c/7/9"
        chunk.parent.mkdir(parents=True)
        chunk.write_bytes(b"1")
        found = check(tmp_path)
        assert found["large"].num_problems == found["large"].num_chunks == 0
        assert found["many"].num_problems == found["many"].num_chunks == 1

    def test_files_that_are_no_chunks(self, tmp_path):
        """A file in place of a folder, and keys beside the grid."""
        path = write_array(tmp_path / "file", None, "int16", [BIG])
        path.joinpath("c").write_bytes(b"")
        assert not problems_of(path)
        path = write_array(tmp_path / "beside", bytes(8), "int16", [BIG])
        for name in ("1", "00", "0.1", "x0"):
            path.joinpath("c", name).write_bytes(b"1")
        (found,) = check(path).values()
        assert (found.num_chunks, found.problems) == (1, [])
        assert found.notes == [
            "4 files are not chunks of the array, so zarr does not read them: c/0.1, c/00, c/1, ..."
        ]

    @pytest.mark.parametrize("is_circle", [False, True])
    def test_links_to_folders_are_followed(self, tmp_path, is_circle):
        """As zarr does when it reads, but not in circles."""
        zarr.create_array(tmp_path / "a", shape=4, chunks=2, dtype="i2", compressors=None)[:] = 1
        (tmp_path / "a/c").rename(tmp_path / "c")
        (tmp_path / "a/c").symlink_to(tmp_path / "c", target_is_directory=True)
        (tmp_path / "c/1").write_bytes(b"x")
        if is_circle:
            (tmp_path / "c/again").symlink_to(tmp_path / "c", target_is_directory=True)
        found = check(tmp_path / "a")[""]
        assert found.num_chunks == 2
        (problem,) = found.problems
        assert problem.startswith("chunk c/1 holds 1 bytes, expected 4")

    @pytest.mark.parametrize("location", ["{0}", "file://{0}", "{0}.zip"])
    @pytest.mark.parametrize(
        ("settings", "others"),
        [
            ({}, ["c/2/0", "c/0/1", "c/0/0.5a.partial", "x"]),
            ({"chunk_key_encoding": {"name": "v2", "separator": "."}}, ["0/0", "2.0"]),
            ({"zarr_format": 2}, ["0/0", "0.0.0", "2.0", ".DS_Store"]),
            ({"chunks": (1, 2), "shards": (2, 2)}, ["c/2/0", "c/0/0.unfinished"]),
            ({"shape": (), "chunks": ()}, ["d", "0"]),
            ({"shape": (), "chunks": (), "zarr_format": 2}, ["1"]),
            ({}, ["inner/zarr.json", "inner/.zarray"]),
        ],
        ids=str,
    )
    def test_values_that_nobody_reads(self, tmp_path, settings, others, location):
        """Chunks beyond the shape after it shrank, leftovers, and keys in another notation."""
        if "file:" in location:
            pytest.importorskip("fsspec")
        settings = {
            "shape": (3, 2),
            "chunks": (2, 2),
            "dtype": "i2",
            "compressors": None,
        } | settings
        array = zarr.create_array(tmp_path / "group/a", **settings)
        array[...] = 1
        zarr.create_group(tmp_path / "group", zarr_format=array.metadata.zarr_format)
        for name in (".zattrs", ".nczarray"):
            (tmp_path / "group/a" / name).write_text("{}")

        def notes():
            if location.endswith(".zip"):  # with members for the folders
                shutil.make_archive(str(tmp_path / "group"), "zip", tmp_path / "group")
            (found,) = check(location.format(tmp_path / "group")).values()
            assert (found.path, found.problems) == ("a", [])
            return found.notes

        assert notes() == []
        for name in others:
            file = tmp_path / "group/a" / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(b"1")
        (note,) = notes()
        what = (
            "1 file is not a chunk" if len(others) == 1 else f"{len(others)} files are not chunks"
        )
        assert note.startswith(f"{what} of the array, so zarr does not read ")
        *named, last = note.rpartition(": ")[2].split(", ")
        assert (last == "...") == (len(others) > 3)
        assert set(named) | {last} - {"..."} <= set(others)

    @pytest.mark.parametrize("is_empty", [True, False])
    @pytest.mark.parametrize(("zarr_format", "key"), [(2, "1"), (3, "c/1")])
    def test_a_chunk_that_is_a_folder(self, tmp_path, zarr_format, key, is_empty):
        """zarr reads it as the fill value, without a word."""
        settings = {"shape": 4, "chunks": 2, "dtype": "i2", "zarr_format": zarr_format}
        zarr.create_array(tmp_path, compressors=None, **settings)[:] = 1
        (tmp_path / key).unlink()
        (tmp_path / key).mkdir()
        if not is_empty:
            (tmp_path / key / "0").write_bytes(bytes(4))
        (problem,) = problems_of(tmp_path)
        assert problem.startswith(f"chunk {key} is a folder, so zarr reads the fill value")

    def test_chunks_without_length(self, tmp_path):
        path = write_array(tmp_path, None, "int16", [BIG], chunks=(0,))
        assert problems_of(path)

    def test_empty_files(self, tmp_path):
        """zarr 3.1.6 reads an empty shard as one of fill values."""
        write_array(tmp_path / "shard", b"", "int16", [SHARDS])
        write_array(tmp_path / "zstd", b"", "int16", [BIG, ZSTD])
        for path, report in check(tmp_path).items():
            assert report.problems == [f"chunk {path}/c/0 holds 0 bytes: it is truncated"]

    def test_only_the_first_damaged_chunks_are_listed(self, tmp_path):
        path = write_array(tmp_path, None, "int16", [BIG], (100,), chunks=(1,))
        path.joinpath("c").mkdir()
        for i in range(100):
            path.joinpath("c", str(i)).write_bytes(b"1")
        (found,) = check(path).values()
        assert found.num_problems == found.num_chunks == 100
        assert len(found.problems) == 10
        assert all("holds 1 bytes, expected 2: it is truncated" in p for p in found.problems)


@contextlib.contextmanager
def denied(*paths):
    """Have nobody read some paths, not even root, who becomes another user meanwhile."""
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no modes")
    user, modes = os.geteuid(), [path.stat().st_mode for path in paths]
    for path in paths:
        path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


class TestPermissions:
    @pytest.fixture
    def folder(self):
        """A group of arrays of two chunks each, where other users may go, unlike in tmp_path."""
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            yield self.written(Path(name, "a"))

    def written(self, folder):
        group = zarr.create_group(folder)
        settings = {"shape": (2, 2), "chunks": (1, 2), "dtype": "i2", "compressors": None}
        for name, more in {
            "plain": {},
            "bools": {"dtype": "?"},
            "zipped": {"compressors": "auto"},
            "shards": {"chunks": (1, 1), "shards": (1, 2)},
        }.items():
            group.create_array(name, **(settings | more))[:] = 1
        return folder

    @pytest.mark.parametrize("location", ["{}", "file://{}"])
    @pytest.mark.parametrize("name", ["plain", "bools", "zipped", "shards"])
    def test_a_chunk_that_may_not_be_read(self, folder, name, location):
        """The length of an uncompressed chunk is right, so there were 0 problems."""
        if "file:" in location:
            pytest.importorskip("fsspec")
        with denied(folder / name / "c/1/0"):
            found = check(location.format(folder))
        (problem,) = found.pop(name).problems
        assert problem.startswith(f"chunk {name}/c/1/0 can't be read: PermissionError: ")
        assert not any(report.problems for report in found.values())

    def test_a_folder_of_chunks_that_may_not_be_listed(self, folder):
        """Its chunks were said to be missing, and to read as the fill value."""
        with denied(folder / "plain/c/1"):
            found = check(folder)
        report = found.pop("plain")
        (problem,) = report.problems
        assert problem.startswith("a folder of chunks can't be listed: PermissionError: ")
        assert "plain/c/1" in problem
        assert report.notes == ["1 of 2 chunks are present; the others were not found"]
        assert not any(report.problems for report in found.values())

    @pytest.mark.parametrize("mode", [0o444, 0o111])
    def test_a_folder_that_may_be_listed_or_searched_alone(self, folder, mode):
        (folder / "plain/c/1").chmod(mode)
        with denied():
            (problem,) = check(folder)["plain"].problems
        (folder / "plain/c/1").chmod(0o755)
        assert "PermissionError: " in problem

    def test_an_array_that_may_be_searched_alone(self, folder):
        """zarr reads it, so its chunks are looked for one by one."""
        (folder / "plain").chmod(0o111)
        with denied():
            report = check(folder)["plain"]
        (folder / "plain").chmod(0o755)
        assert (report.num_chunks, report.problems, report.notes) == (2, [], [])

    @pytest.mark.parametrize("name", ["", "/zarr.json"])
    def test_an_array_that_may_not_be_read(self, folder, name):
        with denied(Path(f"{folder}/plain{name}")):
            (problem,) = check(folder)["plain"].problems
        assert problem.startswith("its metadata can't be read: PermissionError: ")

    def test_a_store_that_forbids_one_chunk(self, folder):
        """It was said of the array that it can't be checked, and nothing of its other chunks."""

        class Forbidding(zarr.storage.LocalStore):
            async def getsize(self, key):
                if key.endswith("plain/c/0/0"):
                    raise PermissionError("Forbidden")
                return await super().getsize(key)

        (folder / "plain/c/1/0").write_bytes(b"1")
        found = {report.path: report for report in checks.check(Forbidding(folder))}
        assert found["plain"].problems == [
            "chunk plain/c/0/0 can't be read: PermissionError: Forbidden",
            "chunk plain/c/1/0 holds 1 bytes, expected 4: it is truncated",
        ]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
    def test_a_pipe_is_no_chunk(self, folder):
        """zarr would wait for its writer; it was said to be missing."""
        (folder / "plain/c/1/0").unlink()
        os.mkfifo(folder / "plain/c/1/0")
        assert check(folder)["plain"].num_problems == 1

    def test_a_damaged_member_of_a_zip_file(self, folder):
        """What precedes its bytes gives another name; none of the chunks was checked."""
        with zipfile.ZipFile(f"{folder}.zip", "w") as archive:
            for path in ("zarr.json", "c/0/0", "c/1/0"):
                archive.write(folder / "plain" / path, path)
        archive = Path(f"{folder}.zip")
        archive.write_bytes(archive.read_bytes().replace(b"c/1/0", b"c/9/0", 1))
        (report,) = check(archive).values()
        assert report.num_chunks == 2
        (problem,) = report.problems
        assert problem.startswith("chunk c/1/0 can't be read: BadZipFile: ")

    def test_a_remote_chunk_takes_one_request(self):
        """Opening it, as a local file is, would take another one."""
        requests = []

        class Counting(zarr.storage.MemoryStore):
            async def getsize(self, key):
                requests.append(("size", key))
                return 2

            async def list_prefix(self, prefix):
                requests.append(("list", prefix))
                async for key in super().list_prefix(prefix):
                    yield key

            async def get(self, key, *more, **options):
                requests.append(("get", key))
                return await super().get(key, *more, **options)

        store = Counting()
        zarr.create_array(store, shape=2, chunks=1, dtype="i2", compressors=None)[:] = 1
        requests.clear()
        (report,) = checks.check(store)
        assert report.num_chunks == 2
        of_chunks = [(how, key) for how, key in requests if key[:2] in ("c/", "")]
        assert sorted(of_chunks) == [("list", ""), ("size", "c/0"), ("size", "c/1")]


class TestLimits:
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_chunks_of_many_bytes_are_not_decoded(self, tmp_path, zarr_format):
        array = zarr.create_array(tmp_path, shape=8, chunks=8, dtype="i2", zarr_format=zarr_format)
        array[:] = 1
        (tmp_path / array.metadata.encode_chunk_key((0,))).write_bytes(b"x")
        (report,) = checks.check(tmp_path, checks.Limits(max_chunk_bytes=15))
        assert (report.problems, report.notes) == (
            [],
            ["its chunks were not decoded: they have 16 bytes each, the limit is 15"],
        )
        (report,) = checks.check(tmp_path, checks.Limits(max_chunk_bytes=16))
        assert report.num_problems == 1

    @pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
    @pytest.mark.parametrize("shards", [None, (4,)])
    def test_text_is_decoded(self, tmp_path, shards):
        array = zarr.create_array(tmp_path, shape=(4,), chunks=(2,), shards=shards, dtype=str)
        array[:] = np.array(["a", "bc", "d", "e"], dtype=object)
        (report,) = checks.check(tmp_path)
        assert (report.problems, report.notes) == ([], [])
        chunk = tmp_path / "c/0"
        chunk.write_bytes(chunk.read_bytes()[:-1])
        assert problems_of(tmp_path)[0].startswith("chunk c/0 can't be read: ")

    def test_some_chunks(self, healthy, capsys):
        assert main(["check", str(healthy / "plain"), "--max-chunks", "1"]) == 0
        assert "note    1 of 3 chunks were checked" in capsys.readouterr().out
        assert main(["check", str(healthy), "--max-chunk-bytes", "10"]) == 0
        assert "they have 112 bytes each, the limit is 10" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["check", str(healthy), "--max-chunks", "0"])


class TestKindsOfStores:
    @pytest.fixture
    def netcdf(self, tmp_path):
        """A NetCDF-3 file, and kerchunk's references to it."""
        io = pytest.importorskip("scipy.io")
        kerchunk = pytest.importorskip("kerchunk.netCDF3")
        with io.netcdf_file(tmp_path / "a.nc", "w") as file:
            file.createDimension("x", 100)
            file.createVariable("v", "f4", ("x",))[:] = np.arange(100)
        reader = kerchunk.NetCDF3ToZarr(str(tmp_path / "a.nc"), inline_threshold=0)
        return reader.translate()

    def test_references(self, tmp_path, netcdf):
        (tmp_path / "a.json").write_text(json.dumps(netcdf))
        (report,) = check(tmp_path / "a.json").values()
        assert (report.path, report.num_chunks, report.problems) == ("v", 1, [])
        assert report.notes == []
        netcdf["refs"]["v/0"][2] = 300
        (tmp_path / "bad.json").write_text(json.dumps(netcdf))
        (problem,) = problems_of(tmp_path / "bad.json")
        assert problem == "chunk v/0 holds 300 bytes, expected 400: it is truncated"
        os.truncate(tmp_path / "a.nc", (tmp_path / "a.nc").stat().st_size - 1)
        (problem,) = problems_of(tmp_path / "a.json")
        assert problem == "chunk v/0 holds 399 bytes, expected 400: it is truncated"
        (tmp_path / "a.nc").unlink()
        (problem,) = problems_of(tmp_path / "a.json")
        assert problem.startswith("chunk v/0 can't be read: FileNotFoundError: ")

    @pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
    def test_references_in_parquet(self, tmp_path, netcdf):
        pytest.importorskip("fastparquet")
        frames = pytest.importorskip("kerchunk.df")
        (tmp_path / "a.parq").mkdir()
        frames.refs_to_dataframe(netcdf, str(tmp_path / "a.parq"))
        (report,) = check(tmp_path / "a.parq").values()
        assert (report.path, report.num_chunks, report.problems) == ("v", 1, [])
        assert (report.partial_reads, report.notes) == ("yes", [])

    @pytest.mark.parametrize("is_named", [False, True])
    def test_an_unknown_store(self, healthy, is_named):
        """It is not read in part, and what to do about it is said."""
        store = zarr.storage.LoggingStore(zarr.storage.LocalStore(healthy / "plain"))
        name = "zarr.storage._logging.LoggingStore"
        with zarr.config.set({"numcodecs_bytes.stores_with_ranges": [name] if is_named else []}):
            (report,) = checks.check(store)
        assert report.partial_reads == (
            "yes"
            if is_named
            else f"no: {name} is not known to have reliable byte ranges; if it has, name it in "
            "the option numcodecs_bytes.stores_with_ranges"
        )

    def test_a_file_system_without_ranges(self, healthy):
        pytest.importorskip("fsspec")
        archive = shutil.make_archive(str(healthy), "zip", healthy / "plain")
        (report,) = check(f"zip://::file://{archive}").values()
        assert report.partial_reads == (
            "no: fsspec.implementations.zip.ZipFileSystem is not known to have reliable byte ranges"
        )

    def test_metadata_is_not_searched_for_arrays(self, healthy):
        """obstore raises an error for zarr.json/zarr.json, which was reported as a problem."""
        stores = pytest.importorskip("obstore.store")
        store = zarr.storage.ObjectStore(stores.LocalStore(healthy), read_only=True)
        found = {report.path: report for report in checks.check(store)}
        assert found.keys() == PARTIAL_READS.keys()
        assert not any(report.problems for report in found.values())

    def test_a_store_that_fails_is_named_once(self):
        """An object store without credentials, for one."""

        class Failing(zarr.storage.MemoryStore):
            async def get(self, *_args, **_kwargs):
                raise PermissionError("denied")

            async def list_dir(self, _prefix):
                raise PermissionError("denied")
                yield

        with pytest.raises(PermissionError):
            list(checks.check(Failing()))

    def test_a_folder_that_can_not_be_listed(self, healthy):
        class Denied(zarr.storage.LocalStore):
            async def list_dir(self, prefix):
                if prefix.strip("/") == "deep":
                    raise PermissionError("denied")
                async for name in super().list_dir(prefix):
                    yield name

        found = {report.path: report for report in checks.check(Denied(healthy))}
        assert found.keys() == {"deep", *PARTIAL_READS} - {"deep/in/shards"}
        assert found["deep"].problems == ["its metadata can't be read: PermissionError: denied"]

    def test_an_icechunk_repository(self, tmp_path):
        icechunk = pytest.importorskip("icechunk")
        storage = icechunk.local_filesystem_storage(str(tmp_path))
        session = icechunk.Repository.create(storage).writable_session("main")
        zarr.create_array(session.store, name="v", shape=4, dtype="i2", compressors=None)[:] = 1
        session.commit("a")
        (report,) = check(tmp_path).values()
        assert (report.path, report.num_chunks, report.problems) == ("v", 1, [])
        assert (report.partial_reads, report.notes) == ("yes", [])

    def test_a_zip_file_on_a_web_server(self, tmp_path):
        pytest.importorskip("aiohttp")
        write_array(tmp_path / "a", bytes(3), "int8", [bytes_codec()])
        shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "a")
        handler = functools.partial(WithRanges, directory=tmp_path)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            (problem,) = problems_of(f"http://127.0.0.1:{server.server_port}/a.zip")
            server.shutdown()
        assert "holds 3 bytes, expected 4" in problem

    @pytest.mark.long
    def test_a_store_that_can_not_list_is_not_asked_for_ever(self):
        class Unlisted(zarr.storage.MemoryStore):
            supports_listing = False

        store = Unlisted()
        zarr.create_array(store, shape=2**45, chunks=1, dtype="i1", compressors=None)[:3] = 1
        (report,) = checks.check(store)
        assert report.num_chunks == 3
        assert report.notes == [
            "100000 of 35184372088832 chunks were checked: the store can't list them"
        ]

    def test_a_shard_of_a_hundred_million_inner_chunks(self, tmp_path):
        """One at a time, they took 5 GB and 41 s, of a file of 100 bytes."""
        shape = {"shape": (2**27,), "chunks": (1,), "shards": (2**27,), "dtype": "?"}
        zarr.create_array(tmp_path, compressors=None, **shape)
        (tmp_path / "c").mkdir()
        (tmp_path / "c/0").write_bytes(bytes(100))
        tracemalloc.start()
        (report,) = check(tmp_path).values()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert report.num_problems
        assert peak < 2**28

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ImportError, match=r"needs fsspec: pip install .*\[stores\]"):
            open_store("http://127.0.0.1/a")


class WithRanges(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        raw = Path(self.translate_path(self.path)).read_bytes()
        wanted = self.headers["Range"]
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        part = raw[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(raw)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)

    def end_headers(self):
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def log_message(self, *_):
        pass


class TestCommand:
    def run(self, *arguments, status):
        done = run_program("-m", "numcodecs_bytes", "check", *arguments, status=status)
        return done.stdout + done.stderr

    def test_report(self, healthy):
        out = self.run(healthy, status=0)
        assert "/plain                           float32          partial reads: yes\n" in out
        assert "12 arrays, 11 chunks, 0 problems\n" in out
        healthy.joinpath("plain/c/0/0").write_bytes(bytes(5))
        out = self.run(healthy, status=1)
        assert "\n  PROBLEM chunk plain/c/0/0 holds 5 bytes, expected 112: " in out
        assert "12 arrays, 11 chunks, 1 problem\n" in out

    def test_only_problems(self, healthy, capsys):
        """Arrays without problems are counted, but not printed."""
        healthy.joinpath("plain/c/0/0").write_bytes(bytes(5))
        assert main(["check", str(healthy), "--only-problems"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["/plain", "PROBLEM", "note", "12"]
        assert lines[-1] == "12 arrays, 11 chunks, 1 problem"
        assert main(["check", str(healthy), "--only-problems", "--json"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert [array["path"] for array in found["arrays"]] == ["plain"]
        assert (found["num_arrays"], found["num_chunks"], found["num_problems"]) == (12, 11, 1)

    def test_a_report_is_readable(self, tmp_path, capsys):
        """Printed, it is what the command prints; in a list, it takes one line."""
        write_array(tmp_path / "a", bytes(3), "int8", [bytes_codec()])
        (report,) = checks.check(tmp_path)
        assert main(["check", str(tmp_path)]) == 1
        assert capsys.readouterr().out.startswith(f"{report}\n1 array")
        assert repr(report) == "<ArrayReport /a int8: 1 problem, partial reads: yes>"

    def test_names_with_line_breaks_stay_on_one_line(self, tmp_path):
        write_array(tmp_path / "a\nb\x1b[31m", None, "int16", [BIG])
        assert "/a\\nb\\x1b[31m " in self.run(tmp_path, status=0)

    def test_json(self, tmp_path, capsys):
        write_array(tmp_path, bytes(7), "int16", [BIG])
        assert main(["check", "--json", str(tmp_path)]) == 1
        found = json.loads(capsys.readouterr().out)
        assert found["num_problems"] == 1
        assert found["arrays"][0]["problems"] == [
            "chunk c/0 holds 7 bytes, expected 8: it is truncated"
        ]
        assert main(["--json", "check", str(tmp_path)]) == 1
        assert json.loads(capsys.readouterr().out) == found

    def test_several_stores(self, tmp_path, capsys):
        good, bad, nowhere = (str(tmp_path / name) for name in ("good", "bad", "nowhere"))
        write_array(tmp_path / "good", bytes(4), "int8", [bytes_codec()])
        write_array(tmp_path / "bad", bytes(3), "int8", [bytes_codec()])
        assert main(["check", good, bad]) == 1
        out = capsys.readouterr().out
        assert f"{good}/" in out
        assert f"{bad}/" in out
        assert out.endswith("2 arrays, 2 chunks, 1 problem\n")
        assert main(["--json", "check", good, nowhere]) == 2
        printed = capsys.readouterr()
        found = json.loads(printed.out)
        assert [array["store"] for array in found["arrays"]] == [good]
        assert [store["store"] for store in found["unreadable"]] == [nowhere]
        assert main(["--json", "check", nowhere]) == 2
        (why,) = json.loads(capsys.readouterr().out)["unreadable"]
        assert why["error"] == "there is no such file or folder"
        assert printed.err == f"can't read {nowhere}: there is no such file or folder\n"

    def test_missing_chunks_are_counted(self, tmp_path):
        array = zarr.create_array(tmp_path, shape=100, chunks=1, dtype="i1", compressors=None)
        array[:95] = 1
        (report,) = check(tmp_path).values()
        assert report.notes == ["95 of 100 chunks are present; the others read as the fill value"]

    def test_compressed_chunks_of_zarr_v2_are_read(self, tmp_path):
        array = zarr.create_array(
            tmp_path, shape=4, dtype="i4", zarr_format=2, compressors=numcodecs.Zlib()
        )
        array[:] = 1
        chunk = tmp_path / "0"
        chunk.write_bytes(chunk.read_bytes()[:-6])
        (problem,) = problems_of(tmp_path)
        assert problem.startswith("chunk 0 can't be read: ")

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
    def test_a_pipe_is_no_metadata(self, tmp_path):
        os.mkfifo(tmp_path / "zarr.json")
        assert check(tmp_path) == {}

    def test_a_thousand_folders(self):
        key = "/".join("a" * 1100) + "/zarr.json"
        store = zarr.storage.MemoryStore()
        zarr.create_array(store, shape=1, dtype="i1")
        store._store_dict[key] = store._store_dict.pop("zarr.json")
        (report,) = checks.check(store)
        assert report.problems == []

    def test_nothing_to_check(self, tmp_path):
        assert "there is no such file or folder" in self.run(tmp_path / "nowhere", status=2)
        out = self.run(tmp_path, status=1)
        assert out.startswith("0 arrays, 0 chunks, 0 problems\n")
        assert "expected zarr.json or .zarray there" in out
        assert not (tmp_path / "nowhere").exists()
        tmp_path.joinpath("file").write_bytes(b"PK")
        assert "but not a zip file" in self.run(tmp_path / "file", status=2)
        assert "can't read no://such: " in self.run("no://such", status=2)

    @pytest.mark.parametrize(
        ("name", "content", "answer"),
        [
            ("zarr.json", "{}", "this is Zarr metadata: give its folder, {0}\n"),
            (".zarray", "{}", "this is Zarr metadata: give its folder, {0}\n"),
            ("a.json", '{"zarr_format": 3}', "this is Zarr metadata: give the folder of the array"),
            ("a.json", "[1]", "this is JSON, but not kerchunk references: expected an object"),
            ("a.json", '{"type": "x"}', "this is JSON, but not kerchunk references: expected an"),
            ("a.json", "{", "this is not JSON, as kerchunk references are: "),
            ("a.txt", "text", "this is a file, but not a zip file"),
            ("a.nc", "CDF\1rest", "NetCDF-3 file, not Zarr: make references first:\n  python -c"),
            ("a.b.nc", "\x89HDF", "{0}/a.b.nc').translate(), open('a.b.json', 'w'))\"\n"),
            ("a", "II*\0", "this is a TIFF file, not Zarr: make references first:\n  python -c"),
            ("a", "II+\0", "TiffFile('{0}/a').aszarr().write_fsspec('a.json', url='{0}')"),
        ],
    )
    def test_files_that_are_no_stores(self, tmp_path, capsys, name, content, answer):
        """The answer says what to give instead, without a traceback."""
        path = tmp_path / name
        path.write_text(content, encoding="latin-1")
        assert main(["check", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"can't read {path}: this is ")
        assert answer.replace("{0}", str(tmp_path)) in error

    def test_the_line_that_makes_references(self, tmp_path, capsys):
        """It works as it is printed."""
        io = pytest.importorskip("scipy.io")
        pytest.importorskip("kerchunk.netCDF3")
        with io.netcdf_file(tmp_path / "a.nc", "w") as file:
            file.createDimension("x", 4)
            file.createVariable("v", "f4", ("x",))[:] = np.arange(4)
        assert main(["check", str(tmp_path / "a.nc")]) == 2
        line = capsys.readouterr().err.partition('python -c "')[2].rpartition('"')[0]
        run_program("-W", "ignore", "-c", line, folder=tmp_path)
        (report,) = check(tmp_path / "a.json").values()
        assert (report.path, report.num_problems) == ("v", 0)

    def test_a_url_of_a_file(self, tmp_path, capsys):
        """fsspec lists a file as a folder that contains itself: the search had no end."""
        pytest.importorskip("fsspec")
        (tmp_path / "a.tif").write_bytes(b"II*")
        assert main(["check", f"file://{tmp_path}/a.tif"]) == 1
        assert "this is a TIFF file, not Zarr: make references" in capsys.readouterr().err

    def test_what_may_not_be_read(self, tmp_path, capsys):
        file = tmp_path / "a.zip"
        file.touch()
        with denied(tmp_path, file):
            assert main(["check", str(tmp_path)]) == 2
            assert main(["check", str(file)]) == 2
        folder_error, file_error = capsys.readouterr().err.splitlines()
        assert folder_error.startswith(f"can't read {tmp_path}: PermissionError: ")
        assert file_error.startswith(f"can't read {file}: PermissionError: ")

    def test_a_home_directory_that_can_not_be_read(self, tmp_path, monkeypatch, capsys):
        """fsspec, which zarr imports, raises an error if it can't read its configuration."""

        def fail(_options):
            raise PermissionError(13, "Permission denied", "/home/a/.config/fsspec")

        monkeypatch.setattr("numcodecs_bytes.__main__._check", fail)
        assert main(["check", str(tmp_path)]) == 2
        assert capsys.readouterr().err == (
            "can't start: [Errno 13] Permission denied: '/home/a/.config/fsspec'\n"
        )
