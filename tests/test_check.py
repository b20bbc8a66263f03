"""python -m numcodecs_bytes check: what it finds, and that it leaves everything as it is."""

import base64
import contextlib
import functools
import gzip
import http.server
import importlib.util
import io
import json
import operator
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from unittest.mock import Mock

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import (
    HAS_RECTILINEAR,
    HAS_STRUCT,
    WITHOUT_ENTRY_POINTS,
    WITHOUT_ML_DTYPES,
    bytes_codec,
    ignore_unstable_data_types,
    metadata,
    metadata_v2,
    run_program,
    run_python,
    sharded,
    write_array,
    write_v2,
)

import numcodecs_bytes
from numcodecs_bytes import check as checks
from numcodecs_bytes.__main__ import main
from numcodecs_bytes._tools import locations
from numcodecs_bytes._tools.locations import open_store
from numcodecs_bytes.migrate import migrate

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 specification", "ignore:Missing 'endian' for structured"
)
LOCATIONS = ["{}", "file://{}", "{}.zip"]
HEX = "0123456789abcdef" * 2  # in temporary names
PLAIN, BIG = bytes_codec(), bytes_codec("big")
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
BLOSC = numcodecs.Blosc().get_config()
V3_BLOSC = {"name": "blosc", "configuration": {"typesize": 2, "shuffle": "noshuffle"}}
DEFAULT_SHARDS = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2]}}
# What `zarr.create_array` is told of small arrays, but their shape.
SMALL = {
    kind: {"chunks": (1,), "dtype": "i1", "compressors": None} | more
    for kind, more in (
        ("plain", {}),
        ("sharded", {"shards": (2,)}),
        ("zipped", {"compressors": "auto"}),
    )
}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}}
FIELDS = {"fields": [["a", "int16"], ["b", "bool"]]}
STRUCT = {"name": "struct" if HAS_STRUCT else "structured", "configuration": FIELDS}
OF_INT4 = {"fields": [["a", "int16"], ["b", "int4"]]}
OF_STRUCT = {"fill_value": {} if HAS_STRUCT else "AAAA"}
NATIVE, OTHER = ("<", ">") if sys.byteorder == "little" else (">", "<")
SCALE = {"scale": 1, "offset": 1}
UNREADABLE, NO_ENDIAN = "its metadata can't be read: ", 'the bytes codec has no "endian", which '


def check(location):
    return {found.path: found for found in checks.check(location)}


def at(location, folder):
    """Return the location of a folder, which may be packed in a zip file, or a URL."""
    if "://" in location:
        pytest.importorskip("fsspec")
    if location.endswith(".zip"):  # with members for the folders
        shutil.make_archive(str(folder), "zip", folder)
    return location.format(folder)


def zstd(stored):
    return numcodecs.Zstd().encode(stored)


def v3(stored, *args, **kwargs):
    return lambda path: write_array(path, stored, *args, **kwargs)


def v2(stored, *args, **kwargs):
    return lambda path: write_v2(path, stored, *args, **kwargs)


def filtered(array_dtype, **configuration):
    """Return a Zarr v2 array with the filter "bytes"."""
    return v2(None, array_dtype, [2], filters=[{"id": "bytes", **configuration}])


def files(**contents):
    """Return a folder of files; an underscore stands for a dot."""

    def write(path):
        for name, content in contents.items():
            text = content if isinstance(content, str) else json.dumps(content)
            path.joinpath(name.replace("_", ".")).write_text(text)

    return write


# An array, and how the one problem that it has begins.
DAMAGED = {
    "empty": (v3(b"", "int16", [BIG]), "chunk c/0 holds 0 bytes, expected 8: it is empty: r"),
    "long": (v3(bytes(9), "int16", [BIG]), "chunk c/0 holds 9 bytes, expected 8: "),
    "short, v2": (v2(bytes(5), "<i2"), "chunk 0 holds 5 bytes, expected 8: if it is truncated"),
    "short behind zstd": (
        v3(zstd(bytes(7)), "int16", [BIG, ZSTD]),
        "chunk c/0 can't be read: once decoded, it holds 7 bytes, expected 8 for shape (4,)",
    ),
    # Of which zarr alone returns whatever lies in memory behind it.
    "blosc, v2": (
        v2(numcodecs.Blosc().encode(bytes(8))[:-1], "<i2", compressor=BLOSC),
        "chunk 0 holds 23 bytes, expected 24: if it is truncated",
    ),
    "blosc": (
        v3(numcodecs.Blosc().encode(bytes(8))[:-1], "int16", [BIG, V3_BLOSC]),
        "chunk c/0 holds 23 bytes, expected 24: if it is truncated",
    ),
    # zarr 3.1.6 reads it as fill values.
    "empty shard": (v3(b"", "int16", [sharded([2], BIG)]), "chunk c/0 holds 0 bytes: it is empty"),
    "no shard": (v3(b"no", "int8", [DEFAULT_SHARDS]), "chunk c/0 can't be read: "),
    "text": (
        v3(b"\1\0\0\0\5\0\0\0a", "string", [{"name": "vlen-utf8"}], (1,), fill_value=""),
        "chunk c/0 can't be read: ",
    ),
    "bools": (
        v3(b"\0\1\2\xff", "bool", [PLAIN], fill_value=False),
        "chunk c/0 holds 2 bools that are neither 0 nor 1: read as true here",
    ),
    "bools in a shard": (
        v3(
            b"\0\1\2\xff" + struct.pack("<QQ", 0, 4),
            "bool",
            [sharded([4], PLAIN, index_codecs=[bytes_codec("little")])],
            fill_value=False,
        ),
        "chunk c/0 holds 2 bools that are neither 0 nor 1",
    ),
    "bools in a structure": (
        v3(b"\1\2\1\1\2\0\1\2\7\xff\xff\1", STRUCT, [BIG], **OF_STRUCT),
        "chunk c/0 holds 1 bool that is neither 0 nor 1",
    ),
    "no endian": (
        v3(None, "int16", [PLAIN]),
        "zarr can't open it: EndianError: The `endian` configuration needs to be specified"
        if HAS_STRUCT
        else 'the bytes codec has no "endian", which int16 needs',
    ),
    "no endian of a structure": (v3(None, STRUCT, [PLAIN], **OF_STRUCT), NO_ENDIAN + "["),
    "no endian of an index behind a filter": (
        v3(None, "int16", [sharded([2], DELTA, BIG, index_codecs=[PLAIN, CRC])]),
        "the bytes codec in index_codecs has no endian: add it",
    ),
    **{
        f"{codec} of the other byte order": (
            v3(None, "uint16", [{"name": f"numcodecs.{codec}", "configuration": types}, *more]),
            f"the {key} of codec numcodecs.{codec} is '{OTHER}u2', but zarr passes it elements",
        )
        for codec, key, types, more in (
            ("delta", "dtype", {"dtype": f"{OTHER}u2"}, [BIG]),
            ("fixedscaleoffset", "dtype", SCALE | {"dtype": f"{OTHER}u2"}, [BIG, ZSTD]),
            (
                "quantize",
                "astype",
                {"digits": 1, "dtype": f"{NATIVE}u2", "astype": f"{OTHER}u2"},
                [BIG],
            ),
        )
    },
    "NumPy's list of fields": (v3(None, [["a", "<i2"]], [BIG]), "zarr can't open it: "),
    "no dtype of >i2, v2": (filtered(">i2", endian="little"), "the bytes codec has no dtype"),
    "other dtype, v2": (
        filtered("<i2", endian="big", dtype="<i4"),
        'the bytes codec has "dtype": "<i4", which is not that of the array: write "dtype": "<i2"',
    ),
    "no endian, v2": (filtered("<i2", dtype="<i2"), NO_ENDIAN + "int16 needs"),
    "empty metadata": (files(zarr_json=""), UNREADABLE + "zarr.json is not JSON: it is empty"),
    "a list": (files(zarr_json="[1]"), UNREADABLE + "zarr.json is not a JSON object, but [1]"),
    "nested lists": (files(zarr_json="[" * 100_000), UNREADABLE + "zarr.json is nested too deeply"),
    "many digits": (files(zarr_json="1" * 5000), UNREADABLE + "zarr.json has a number with too m"),
    "no node": (files(zarr_json={"zarr_format": 3, "node_type": 5}), "zarr can't open it: "),
    "broken .zarray": (files(_zarray="{"), UNREADABLE + ".zarray is not JSON: "),
    "broken .zattrs": (
        files(_zarray=metadata_v2("<i2"), _zattrs="{"),
        UNREADABLE + ".zattrs is not JSON: ",
    ),
    **{
        f"{raw} in .zarray beside Zarr v3": (
            files(zarr_json=metadata("int16", [BIG]), _zarray=raw),
            why,
        )
        for raw, why in (
            ("{", UNREADABLE + ".zarray is not JSON: "),
            ('{"zarr_format": 2, "shape": "x"}', ".zarray can't be opened: "),
        )
    },
}
SCALED = {"name": "numcodecs.fixedscaleoffset", "configuration": SCALE | {"dtype": f"{NATIVE}u2"}}
SCALED["configuration"] |= {"astype": f"{OTHER}u2"}  # of which zarr knows
# An array without problems, and its note.
NOTED = {
    "former name": (
        v3(bytes(4), "uint8", [bytes_codec(None, "endian")]),
        'codec "endian" was renamed to "bytes" in version 1.0',
    ),
    "former struct": (
        v3(bytes(12), STRUCT | {"name": "structured"}, [BIG], fill_value="AAAA"),
        "data type structured is specific to zarr-python; the registered one is struct",
    ),
    "missing chunks behind a filter": (
        v3(bytes(2), "uint16", [SCALED, BIG], (100,), chunks=(1,)),
        "1 of 100 chunks are present",
    ),
    "missing chunks": (
        v3(bytes(2), "int16", [BIG], (100,), chunks=(1,)),
        "1 of 100 chunks are present; the missing ones are read as the fill value",
    ),
    **{
        f"{codec} in .zarray": (
            files(
                zarr_json=metadata("int8", [PLAIN], (0,), (4,)),
                _zarray=metadata_v2("|i1", (0,), (4,), compressor={"id": codec}),
            ),
            ".zarray and zarr.json can't be compared: ",
        )
        for codec in ("packbits", "nobody's")  # without a counterpart in Zarr v3, or not known
    },
}


@ignore_unstable_data_types
@pytest.mark.parametrize("name", [*DAMAGED, *NOTED])
def test_what_is_found(tmp_path, name):
    write, expected = (DAMAGED | NOTED)[name]
    write(tmp_path)
    (report,) = checks.check(tmp_path)
    (found,) = report.problems if name in DAMAGED else report.notes
    assert found.startswith(expected)
    assert report.num_problems == (name in DAMAGED)


@pytest.fixture
def healthy(tmp_path):
    """Write a hierarchy of what there is: layouts, formats, edge chunks, missing chunks."""
    group = zarr.create_group(tmp_path / "healthy")
    settings = {"shape": (10, 7), "chunks": (4, 7), "dtype": "f4", "compressors": None}
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
    bools = {"filters": [numcodecs_bytes.Bytes("big", "?")], "dtype": "?"}
    for name, more in {
        "raw": {},
        "bytes": {"filters": [numcodecs_bytes.Bytes("big", "<f4")]},
        "zipped": {"compressors": numcodecs.Zstd()},
        "both": bools | {"compressors": numcodecs.Zstd()},
    }.items():
        old.create_array(name, **(settings | more))[:4] = 1
    return tmp_path / "healthy"


PARTIAL_READS = {
    "plain": "yes",
    "deep/in/shards": "yes: inner chunks in part",
    "text": "no: stored by zarr.codecs.vlen_utf8.VLenUTF8Codec",
    **dict.fromkeys(["bools", "point", "empty", "transposed", "v2/raw", "v2/bytes"], "yes"),
    **dict.fromkeys(["zipped", "v2/zipped", "v2/both"], "no: compressed or filtered by zstd"),
}


class TestWrongMetadata:
    """Chunks that do not fit the metadata of their array, because that is wrong."""

    @pytest.mark.parametrize(
        ("dtype", "num_bytes", "expected"),
        [
            (
                "f8",
                32,
                " (if the chunk shape (8,) is right, these may be int32, uint32 or float32; ",
            ),
            (
                "u2",
                64,
                " (if the chunk shape (8,) is right, these may be int64, uint64, float64 or comp",
            ),
            ("i4", 24, ""),  # no integers have 3 bytes
            ("i4", 33, ""),
        ],
    )
    def test_all_chunks_have_the_same_length(self, tmp_path, dtype, num_bytes, expected):
        """Each was said to be truncated."""
        array = zarr.create_array(tmp_path, shape=16, chunks=8, dtype=dtype, compressors=None)
        array[:] = 1
        for path in (tmp_path / "c").iterdir():
            path.write_bytes(bytes(num_bytes))
        (problem,) = check(tmp_path)[""].problems
        why = (
            "the metadata, or a consolidated copy of them, seem to state the wrong data type, "
            f"chunk shape or codecs: correct them{expected}"
        )
        if num_bytes == 24:
            why = "if the metadata, or a consolidated copy of them, state the wrong data type, "
        assert problem.startswith(
            f"each of its 2 chunks, such as c/0, holds {num_bytes} bytes, expected "
            f"{8 * array.dtype.itemsize}: {why}"
        )
        (tmp_path / "c/0").write_bytes(b"")
        assert [found.split()[1] for found in check(tmp_path)[""].problems] == ["c/0", "c/1"]
        (tmp_path / "c/0").write_bytes(bytes(num_bytes + 1))
        (problem,) = check(tmp_path)[""].problems
        assert re.match("each of its 2 chunks has the wrong length, such as c/., which", problem)
        (tmp_path / "c/0").unlink()
        (tmp_path / "c/0").mkdir()
        assert sorted(f.split()[1] for f in check(tmp_path)[""].problems) == ["c/0", "c/1"]

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("name", ["0.1", "0/1", "c.0.1", "c/0/1"])
    def test_chunks_have_other_names(self, tmp_path, zarr_format, name):
        """They read as the fill value, and that was only noted."""
        array = zarr.create_array(
            tmp_path / "a", shape=(2, 2), chunks=(1, 1), dtype="i1", zarr_format=zarr_format
        )
        array[:] = 1
        right = array.metadata.encode_chunk_key((0, 1))
        others = [tmp_path / "a" / other for other in (name, "0.1.9", "x0.1")]
        for path in others:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((tmp_path / "a" / right).read_bytes())
        report = check(tmp_path)["a"]
        assert report.problems == []
        assert f"does not read {2 + (name != right)} files" in report.notes[0]
        (tmp_path / "a" / right).unlink()
        report = check(tmp_path)["a"]
        if name != right:
            (problem,) = report.problems
            name_instead = f"such as a/{name} instead of a/{right}: rename the files"
            assert problem == f"1 chunk is missing, but has another name, {name_instead}"
        assert "does not read 2 files" in report.notes[-1]

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("encoding", ["v2", "default"])
    @pytest.mark.parametrize("separator", [".", "/"])
    def test_all_chunks_have_other_names(self, tmp_path, zarr_format, encoding, separator):
        """There was a problem for each chunk, and none said what to write."""
        if zarr_format == 2 and encoding == "default":
            pytest.skip("Zarr v2 has no such names")
        settings = {"shape": (2, 2), "chunks": (1, 1), "dtype": "i1", "zarr_format": zarr_format}
        key_encoding = {"name": encoding, "separator": separator}
        zarr.create_array(tmp_path, **settings, chunk_key_encoding=key_encoding)[:] = 1
        (path,) = (
            tmp_path / name for name in ("zarr.json", ".zarray") if (tmp_path / name).exists()
        )
        document = json.loads(path.read_text())
        other = "/" if separator == "." else "."
        if zarr_format == 2:
            document["dimension_separator"] = other
        else:
            document["chunk_key_encoding"]["configuration"]["separator"] = other
        path.write_text(json.dumps(document))
        (report,) = check(tmp_path).values()
        (problem,) = report.problems
        assert problem.startswith("4 chunks are missing, but have another name, such as ")
        assert report.notes == []
        line = problem.partition(": write ")[2].rpartition(" in ")[0]
        path.write_text(json.dumps(document | json.loads(f"{{{line}}}")))
        assert zarr.open_array(tmp_path)[:].all()

    @ignore_unstable_data_types
    @pytest.mark.parametrize("shards", [None, (4, 6)], ids=["chunks", "shards"])
    @pytest.mark.parametrize("endian", ["little", "big"])
    def test_a_filter_of_the_other_byte_order(self, tmp_path, endian, shards):
        """What zarr 3.1.6 alone reads right or not, and newer versions never, is right then."""
        dtype, data = f"{OTHER}u2", np.arange(24).reshape(4, 6) * 999
        how = {"shape": (4, 6), "chunks": (2, 3), "shards": shards, "compressors": None}
        how["filters"] = [{"name": "numcodecs.delta", "configuration": {"dtype": dtype}}]
        array = zarr.create_array(tmp_path, dtype=dtype, serializer=bytes_codec(endian), **how)
        array[...] = data
        (problem,) = check(tmp_path)[""].problems
        assert f"write '{NATIVE}u2' in zarr.json" in problem
        document = (tmp_path / "zarr.json").read_text().replace(dtype, f"{NATIVE}u2")
        (tmp_path / "zarr.json").write_text(document)
        assert zarr.open_array(tmp_path)[...].tolist() == data.tolist()
        assert check(tmp_path)[""].problems == []

    @ignore_unstable_data_types
    @pytest.mark.parametrize("endian", ["little", "big"])
    def test_a_filter_that_names_what_it_returns(self, tmp_path, endian):
        """With `astype`, which `migrate` writes, the values are right with each version of zarr."""
        dtype, data = f"{OTHER}u2", np.arange(24) * 999
        delta = {"dtype": dtype, "astype": dtype}
        path = write_array(
            tmp_path,
            np.diff(data, prepend=0).astype(f"{'<' if endian == 'little' else '>'}u2").tobytes(),
            "uint16",
            [{"name": "numcodecs.delta", "configuration": delta}, bytes_codec(endian)],
            (24,),
        )
        assert zarr.open_array(path)[...].tolist() == data.tolist()
        assert check(path)[""].problems == []


class TestHierarchies:
    def test_every_array_is_found_and_nothing_is_written(self, healthy):
        before = {file: file.read_bytes() for file in healthy.rglob("*") if file.is_file()}
        found = check(healthy)
        assert {path: report.partial_reads for path, report in found.items()} == PARTIAL_READS
        assert not any(report.problems for report in found.values())
        assert found["plain"].data_type == "float32"
        numbers = dict.fromkeys(PARTIAL_READS, 1) | {"empty": 0}
        assert {path: report.num_chunks for path, report in found.items()} == numbers
        assert before == {file: file.read_bytes() for file in healthy.rglob("*") if file.is_file()}

    @pytest.mark.parametrize("data_type", ["int4", STRUCT | {"configuration": OF_INT4}], ids=str)
    def test_a_data_type_without_ml_dtypes(self, tmp_path, data_type):
        """What zarr says of it is not enough."""
        path = write_array(tmp_path / "a", None, data_type, [PLAIN])
        program = "from numcodecs_bytes.__main__ import main; main(['check', sys.argv[1]])"
        done = run_program("-c", WITHOUT_ML_DTYPES + program, path)
        assert "zarr can't open it: " in done.stdout
        said = "needs the package ml_dtypes, which is not installed: pip install ml_dtypes"
        assert f"data type 'int4' {said}" in done.stdout

    @pytest.mark.parametrize("location", LOCATIONS)
    def test_a_healthy_store_has_no_notes(self, tmp_path, location):
        """Among them shards of full length, and a byte order of elements that need none."""
        group = zarr.create_group(tmp_path / "a")
        more = {"shards": (4,), "compressors": None}
        for name, settings in {"full": more, "zipped": {}, "bools": {"dtype": "?"}}.items():
            array = {"shape": 4, "chunks": (2,), "dtype": "i4"} | settings
            group.create_array(name, **array)[:] = 1
        write_array(tmp_path / "a/needless", bytes(4), "uint8", [bytes_codec("little")])
        delta = {"id": "delta", "dtype": "<i4", "astype": "<i2"}  # bytes stores what it returns
        filters = [delta, {"id": "bytes", "endian": "big", "dtype": "<i2"}]
        write_v2(tmp_path / "a/filtered", bytes(8), "<i4", filters=filters)
        found = check(at(location, tmp_path / "a"))
        assert found.keys() == {"full", "zipped", "bools", "needless", "filtered"}
        hidden, of_filter = found.pop("filtered").notes
        assert hidden.startswith("it is of Zarr v2, which a Zarr v3 group above it does not show: ")
        assert of_filter.startswith('zarr opens the filter or compressor "bytes" only')
        assert [(report.problems, report.notes) for report in found.values()] == [([], [])] * 4

    @pytest.mark.parametrize(
        "write",
        [
            filtered("<i4", endian="big", dtype="<i4"),
            v2(None, "<i4", compressor={"id": "bytes", "endian": "little", "dtype": "<i4"}),
            v3(None, "r24", [PLAIN], fill_value=[0, 0, 0]),
            v3(None, "uint8", [bytes_codec(None, "endian")]),
            v3(None, "uint8", [PLAIN]),
            v2(None, "<i4"),
        ],
        ids=["v2 filter", "v2 compressor", "data type", "former name", "zarr's, v3", "zarr's, v2"],
    )
    def test_what_zarr_opens_only_while_this_package_is_installed(self, tmp_path, write):
        """Only the pages said so."""
        write(tmp_path)
        program = "import zarr, sys; zarr.open_array(sys.argv[1])"
        arguments = ("-W", "ignore", "-c", WITHOUT_ENTRY_POINTS + program, tmp_path)
        done = run_python(*arguments, status=None)
        (report,) = checks.check(tmp_path)
        assert report.problems == []
        assert ("only while numcodecs-bytes is installed" in str(report)) == bool(done.returncode)

    @pytest.mark.parametrize(
        ("key", "remedy"),
        [
            ("codecs.bytes", ", which is no class that zarr knows: correct it"),
            ("codec_pipeline.path", ", which is no class that zarr knows: correct it"),
            ("codec_pipeline", ": remove it, or set codec_pipeline.path instead"),
        ],
    )
    def test_a_setting_that_is_wrong(self, tmp_path, key, remedy):
        """The array was blamed."""
        write_array(tmp_path, bytes(4), "uint8", [PLAIN])
        with zarr.config.set({key: "nobody.Class"}):
            (problem,) = check(tmp_path)[""].problems
        assert problem == (
            f"zarr can't open it because of a setting: {key} is 'nobody.Class', set in this "
            f"program by zarr.config.set{remedy}"
        )

    @pytest.mark.parametrize("name", ["zarr.json", "plain/zarr.json", "deep/in/zarr.json"])
    def test_broken_metadata_does_not_hide_other_arrays(self, healthy, name):
        healthy.joinpath(name).write_text("{")
        path = name.rpartition("/")[0]
        found = check(healthy)
        assert found.keys() == PARTIAL_READS.keys() | {path}
        assert [path for path, report in found.items() if report.problems] == [path]

    @pytest.mark.parametrize(
        ("name", "raw", "why"),
        [
            (".zmetadata", "{", "is not JSON: "),
            (".zmetadata", "version https://git-lfs", "is not JSON: it is a pointer of Git LFS"),
            (".zmetadata", "{}", 'has no object "metadata": consolidate them again, with zarr'),
            (".zgroup", "", "is not JSON: "),
            (".zattrs", "[1]", "is not a JSON object, but [1]; correct it, or restore it"),
        ],
    )
    def test_broken_metadata_of_a_group_of_zarr_v2(self, tmp_path, name, raw, why):
        """Nobody could open it, and no problem was found."""
        group = zarr.create_group(tmp_path / "g", zarr_format=2, attributes={"a": 1})
        group.create_array("a", shape=3, dtype="i1")
        zarr.consolidate_metadata(tmp_path / "g")
        assert [*check(tmp_path)] == ["g/a"]
        (tmp_path / "g" / name).write_text(raw)
        found = check(tmp_path)
        assert sorted(found) == ["g", "g/a"]
        assert f"{name} {why}" in found["g"].problems[0]

    @pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
    def test_consolidated_metadata_of_what_a_link_leads_to(self, tmp_path):
        """They were not compared, and zarr returned other values."""
        zarr.create_group(tmp_path).create_array("a", shape=3, dtype="i4")[:] = 1
        (tmp_path / "b").symlink_to("a", target_is_directory=True)
        zarr.consolidate_metadata(tmp_path)
        assert [*check(tmp_path)] == ["a"]
        document = json.loads((tmp_path / "zarr.json").read_text())
        document["consolidated_metadata"]["metadata"]["b"]["data_type"] = "float32"
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        found = check(tmp_path)
        assert sorted(found) == ["a", "b"]
        assert "the consolidated metadata of group / and its own differ" in str(found["b"])

    def test_two_names_of_one_chunk(self, tmp_path):
        """It was counted twice, and to rename both would have lost one."""
        zarr.create_array(tmp_path, shape=6, chunks=2, dtype="i1", compressors=None)[:4] = 1
        (tmp_path / "c/0").rename(tmp_path / "c.0")
        (tmp_path / "0").write_bytes(bytes(2))
        (report,) = check(tmp_path).values()
        assert report.notes[0].startswith("1 of 3 chunks are present")
        (problem,) = report.problems
        assert problem.startswith("1 chunk is missing, but has another name, such as ")
        assert problem.endswith("several files are for the same chunk: rename the right ones")

    def test_a_member_for_a_folder_in_a_zip_file(self, tmp_path):
        """It was counted as a chunk, so that none was missing."""
        zarr.create_array(tmp_path / "a", shape=4, chunks=2, dtype="i1", compressors=None)[:2] = 1
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name in ("zarr.json", "c/0"):
                archive.write(tmp_path / "a" / name, name)
            archive.writestr("c/0/", b"")
            archive.writestr("c/", b"")
        (report,) = check(tmp_path / "a.zip").values()
        assert (report.num_chunks, report.problems) == (1, [])
        assert report.notes[0].startswith("1 of 2 chunks are present")

    @pytest.mark.parametrize("change", [{"attributes": [1]}, {"zarr_format": "3"}], ids=str)
    def test_a_group_that_zarr_can_not_open(self, tmp_path, change):
        zarr.create_group(tmp_path).create_array("a", shape=3, dtype="i1")
        document = json.loads((tmp_path / "zarr.json").read_text())
        (tmp_path / "zarr.json").write_text(json.dumps(document | change))
        with pytest.raises(Exception, match=".*"):
            zarr.open_group(tmp_path, mode="r")
        found = check(tmp_path)
        assert sorted(found) == ["", "a"]
        assert "zarr can't open the group: " in str(found[""].problems)

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_groups_whose_metadata_are_lost(self, tmp_path, zarr_format, capsys):
        """Nothing but a note said that they do not show their arrays."""
        group = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
        for name in ("sub/a", "sub/b", "c"):
            group.create_array(name, shape=3, dtype="i1")[:] = 1
        assert not any(report.problems for report in check(tmp_path / "g").values())
        name = {2: ".zgroup", 3: "zarr.json"}[zarr_format]
        (tmp_path / "g/sub" / name).unlink()
        found = {path: each.problems for path, each in check(tmp_path / "g").items()}
        (problem,) = found.pop("sub")
        assert problem.startswith("it has no zarr.json or .zgroup, so that groups do not show what")
        assert not any(found.values())
        (tmp_path / "g/sub" / name).write_text("{")
        (problem,) = check(tmp_path / "g")["sub"].problems
        assert "is not JSON" in problem
        (tmp_path / "g/sub" / name).unlink()
        (tmp_path / "g" / name).unlink()
        assert main(["check", str(tmp_path / "nowhere"), str(tmp_path / "g")]) == 2
        what = f"{tmp_path / 'g'} is no Zarr group, because it has no zarr.json or .zgroup: open "
        assert what in capsys.readouterr().out
        assert main(["migrate", "--dry-run", str(tmp_path / "g")]) == (zarr_format == 3)
        assert (what in capsys.readouterr().out) == (zarr_format == 2)

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("location", LOCATIONS)
    def test_a_root_whose_metadata_are_lost(self, tmp_path, zarr_format, location, capsys):
        """Of a data set of xarray's; a folder of other stores need not be a group."""
        settings = {"shape": 4, "dtype": "i1", "zarr_format": zarr_format}
        for name in ("t", "u"):
            of_v2 = {"attributes": {"_ARRAY_DIMENSIONS": ["t"]}}
            named = of_v2 if zarr_format == 2 else {"dimension_names": ["t"]}
            zarr.create_array(tmp_path / "a", name=name, **settings | named)[:] = 1
            for other, more in (("b", {}), ("c", named)):
                zarr.create_array(tmp_path / other, name=f"{name}{name}", **settings | more)[:] = 1
        zarr.create_array(tmp_path / "c", name="unnamed", **settings)[:] = 1
        for path in ("a", "b", "c"):
            (tmp_path / path / (".zgroup" if zarr_format == 2 else "zarr.json")).unlink()
        found = check(at(location, tmp_path / "a"))
        (problem,) = found[""].problems
        assert problem.startswith("it has no zarr.json or .zgroup, but t is a coordinate of others")
        for path in ("b", "c"):
            assert not any(each.problems for each in check(at(location, tmp_path / path)).values())
        assert main(["check", "--only-problems", "--json", str(tmp_path / "a")]) == 1
        assert "is a coordinate of others" in capsys.readouterr().out

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_an_array_without_names_of_dimensions_among_others(self, tmp_path, zarr_format):
        """xarray raises a KeyError for the group; `check` passed it."""
        group = zarr.create_group(tmp_path, zarr_format=zarr_format)
        for name in ("t", "u"):
            of_v2 = {"attributes": {"_ARRAY_DIMENSIONS": ["t"]}}
            named = of_v2 if zarr_format == 2 else {"dimension_names": ["t"]}
            group.create_array(name, shape=4, dtype="i1", **named)[:] = 1
        group.create_array("number", shape=(), dtype="i1")[...] = 1
        assert not any(each.problems for each in check(tmp_path).values())
        group.create_array("v", shape=4, dtype="i1")[:] = 1
        (problem,) = check(tmp_path)[""].problems
        why = "xarray can't read it: v has no names of dimensions, unlike others of its arrays"
        assert problem == f"{why}: add these, or move it to another group"

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("longer", ["t", "u"])
    def test_an_append_that_was_interrupted(self, tmp_path, zarr_format, longer):
        """xarray can't read the group; `check` passed it."""
        group = zarr.create_group(tmp_path, zarr_format=zarr_format)
        for name in ("t", "u", "v"):
            of_v2 = {"attributes": {"_ARRAY_DIMENSIONS": ["t"]}}
            named = of_v2 if zarr_format == 2 else {"dimension_names": ["t"]}
            group.create_array(name, shape=4, dtype="i1", **named)[:] = 1
        assert not any(each.problems for each in check(tmp_path).values())
        group[longer].resize(8)
        (problem,) = check(tmp_path)[""].problems
        sizes = "8 elements in t, but 4 in u" if longer == "t" else "4 elements in t, but 8 in u"
        assert problem.startswith(f"xarray can't read it: dimension t has {sizes}: if an append")

    def test_levels_of_a_pyramid(self, tmp_path):
        """Those of OME-Zarr have the same dimensions, of other sizes, and no coordinates."""
        group = zarr.create_group(tmp_path)
        for level in range(3):
            names = {"dimension_names": ["y", "x"]}
            group.create_array(str(level), shape=(8 >> level,) * 2, dtype="i1", **names)[...] = 1
        assert not any(each.problems for each in check(tmp_path).values())

    def test_references_in_parquet_in_a_folder(self, tmp_path):
        """Healthy ones had a problem for each array, and wrong advice."""
        zarr.create_array(tmp_path / "a", shape=4, dtype="i1")[:] = 1
        metadata = {".zgroup": {"zarr_format": 2}, "b/.zarray": metadata_v2("|i1", (4,), (4,))}
        (tmp_path / "r.parq/b").mkdir(parents=True)
        document = {"metadata": metadata, "record_size": 10}
        (tmp_path / "r.parq/.zmetadata").write_text(json.dumps(document))
        assert {path: each.problems for path, each in check(tmp_path).items()} == {"a": []}

    @pytest.mark.needs("os.symlink")
    @pytest.mark.parametrize("name", ["g/a", "g/b/c", "g/b/c/0"])
    def test_folders_that_are_links_to_what_is_missing(self, tmp_path, name):
        """zarr reads fill values, or shows no array, and nothing was said."""
        group = zarr.create_group(tmp_path / "g")
        for each in ("a", "b"):
            group.create_array(each, shape=(4, 4), dtype="i1", compressors=None)[:] = 1
        shutil.rmtree(tmp_path / name)
        (tmp_path / name).symlink_to("/nowhere", target_is_directory=True)
        problems = [each.problems for each in check(tmp_path / "g").values()]
        assert "is a symbolic link that leads nowhere" in str(problems)

    @pytest.mark.parametrize("zarr_format", [[], {}, "3", 2.5, None])
    def test_an_odd_format(self, tmp_path, zarr_format):
        zarr.create_group(tmp_path).create_array("a", shape=3, dtype="i1")
        document = json.loads((tmp_path / "a/zarr.json").read_text())
        (tmp_path / "a/zarr.json").write_text(json.dumps(document | {"zarr_format": zarr_format}))
        assert check(tmp_path)["a"].problems

    def test_a_group_of_another_format(self, tmp_path):
        zarr.create_group(tmp_path, zarr_format=2).create_array("a", shape=3, dtype="i1")
        (tmp_path / ".zgroup").write_text("{}")
        assert ".zgroup has zarr_format None: write 2" in str(check(tmp_path)[""])

    def test_broken_consolidated_metadata_of_zarr_v3(self, tmp_path):
        zarr.create_group(tmp_path).create_array("a", shape=3, dtype="i1")
        document = json.loads((tmp_path / "zarr.json").read_text())
        document["consolidated_metadata"] = "x"
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        found = check(tmp_path)
        assert sorted(found) == ["", "a"]
        assert 'consolidated_metadata in zarr.json has no object "metadata"' in str(found[""])

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_an_array_whose_metadata_are_lost(self, tmp_path, zarr_format):
        """Its folder was passed over."""
        group = zarr.create_group(tmp_path, zarr_format=zarr_format)
        group.create_array("a/b", shape=3, dtype="i1")[:] = 1
        group.create_group("1").create_group("2")
        for name in ("other/data", "raw/2020", "raw/2021", "empty/c", "empty/0"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "raw/2020/x.tif").write_bytes(b"")
        (tmp_path / "log").mkdir()
        (tmp_path / "log/1").write_bytes(b"")
        assert [*check(tmp_path)] == ["a/b"]
        if zarr_format == 2:
            (tmp_path / "a/b/.zattrs").write_text("{}")
        (tmp_path / "a/b" / {2: ".zarray", 3: "zarr.json"}[zarr_format]).unlink()
        chunk = {2: "0", 3: "c"}[zarr_format]
        what = f"it holds {chunk}, as an array holds chunks, but no zarr.json or .zarray: if it was"
        assert check(tmp_path)["a/b"].problems == [f"{what} one, restore that"]

    def test_links_to_folders_are_followed_once(self, healthy):
        healthy.joinpath("deep", "up").symlink_to(healthy)
        healthy.joinpath("plain/c").rename(healthy.parent / "c")
        healthy.joinpath("plain/c").symlink_to(healthy.parent / "c", target_is_directory=True)
        found = check(healthy)
        assert found.keys() == PARTIAL_READS.keys()
        assert found["plain"].num_chunks == 1

    @pytest.mark.parametrize("location", LOCATIONS[:2])
    def test_links_that_lead_back_to_their_folder(self, tmp_path, location):
        """Two of them make 2^40 paths; one made `check` note 121 files."""
        group = zarr.create_group(tmp_path / "a")
        group.create_array("plain", shape=(4, 4), chunks=(2, 2), dtype="i2")[:] = 1
        for folder in ("", "plain", "plain/c", "plain/c/1"):
            for name in ("left", "right"):
                tmp_path.joinpath("a", folder, name).symlink_to(".", target_is_directory=True)
        found = check(at(location, tmp_path / "a"))
        assert found.keys() == {"plain"}
        assert (found["plain"].num_chunks, found["plain"].problems) == (4, [])
        assert found["plain"].notes == []

    def test_a_link_to_another_array(self, tmp_path):
        """Only the name of the link was reported."""
        group = zarr.create_group(tmp_path)
        group.create_array("b", shape=3, dtype="i2")
        group.create_array("c/d", shape=3, dtype="i2")
        (tmp_path / "a").symlink_to("b", target_is_directory=True)
        (tmp_path / "b/c").symlink_to("../c", target_is_directory=True)
        assert [*check(tmp_path)] == ["b", "c/d"]

    def test_a_link_to_other_chunks_of_the_array(self, tmp_path):
        """zarr reads them, so they are present."""
        array = zarr.create_array(tmp_path, shape=(4, 4), chunks=(2, 2), dtype="i2")
        array[:] = 1
        shutil.rmtree(tmp_path / "c/1")
        (tmp_path / "c/1").symlink_to("0", target_is_directory=True)
        (report,) = checks.check(tmp_path)
        assert (report.num_chunks, report.problems, report.notes) == (4, [], [])

    @pytest.mark.needs("os.mkfifo")
    def test_a_pipe_is_neither_metadata_nor_a_chunk(self, healthy):
        """Whoever opens it waits for its writer."""
        healthy.joinpath("plain/c/0/0").unlink()
        os.mkfifo(healthy / "plain/c/0/0")
        of_icechunk = ("repo", "refs/branch.main/ref.json")
        for name in ("pipe/zarr.json", "pipe/0", "pipes/0", "pipes/1", ".zmetadata", *of_icechunk):
            (healthy / name).parent.mkdir(exist_ok=True, parents=True)
            os.mkfifo(healthy / name)
        found = check(healthy)
        assert found.keys() == PARTIAL_READS.keys()
        assert found["plain"].num_problems == 1
        assert migrate(healthy, dry_run=True)

    def test_the_progress_bar_gets_to_its_end(self, healthy):
        bar = Mock(total=None)
        list(checks.check(healthy, progress=bar))
        assert sum(each.args[0] for each in bar.update.mock_calls) == bar.total == 31


COMPRESSORS = {
    "zstd": numcodecs.Zstd(),
    "gzip": numcodecs.GZip(),
    "zlib": numcodecs.Zlib(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
    "blosc": numcodecs.Blosc(),
    "lz4": numcodecs.LZ4(),
}


class TestAdvice:
    """No advice destroys good data: it was to remove each chunk of the wrong length."""

    @pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("codec", COMPRESSORS)
    @pytest.mark.parametrize("how", ["differ", "equal"])
    def test_a_compressed_chunk_of_which_metadata_say_nothing(
        self, tmp_path, codec, how, zarr_format
    ):
        """The error and `check` say to keep it, also if all chunks have the same length.

        They did not say what to add.
        """
        data = np.arange(2000, dtype="f8") if how == "differ" else np.zeros(2000)
        settings = {"shape": 2000, "chunks": 1000, "dtype": "f8", "zarr_format": zarr_format}
        array = zarr.create_array(tmp_path, compressors=None, **settings)
        for i in range(2):
            stored = COMPRESSORS[codec].encode(data[i * 1000 : (i + 1) * 1000])
            chunk = tmp_path / array.metadata.encode_chunk_key((i,))
            chunk.parent.mkdir(exist_ok=True)
            chunk.write_bytes(stored)
        problems = check(tmp_path)[""].problems
        assert all(f"it seems to be compressed by {codec}: keep it" in why for why in problems)
        start = "add that codec to the metadata"
        (advice,) = {start + problem.partition(start)[2] for problem in problems}
        for selection in (slice(3), slice(None)):
            with pytest.raises(ValueError, match=re.escape(advice)) as caught:
                array[selection]
            assert "remove" not in str(caught.value)
        in_place = zarr.config.set({"numcodecs_bytes.write_in_place": True})
        with in_place, pytest.raises(ValueError, match=re.escape(advice)):
            array[3] = 1
        self.follow(advice, tmp_path)
        assert zarr.open_array(tmp_path)[:].tolist() == data.tolist()
        assert check(tmp_path)[""].problems == []

    @staticmethod
    def follow(advice, folder):
        """Add the codec that an advice shows to the metadata of an array."""
        of_v3, of_v2 = re.search(
            r'in zarr.json as (.*) after the codec "bytes", or in .zarray as (.*)', advice
        ).groups()
        (path,) = (folder / name for name in ("zarr.json", ".zarray") if (folder / name).exists())
        document = json.loads(path.read_text())
        if path.name == ".zarray":
            document |= json.loads(f"{{{of_v2}}}")
        else:
            document["codecs"].append(json.loads(of_v3))
        path.write_text(json.dumps(document))

    @pytest.mark.parametrize("num_bytes", [5, 41])
    def test_a_chunk_that_may_be_intact(self, tmp_path, num_bytes):
        """None is removed; an empty one may be an inner chunk, beside others in its shard."""
        array = zarr.create_array(tmp_path, shape=10, chunks=5, dtype="f8", compressors=None)
        array[:] = 1
        for size, is_empty in ((num_bytes, False), (0, True)):
            (tmp_path / "c/1").write_bytes(bytes(size))
            (problem,) = check(tmp_path)[""].problems
            with pytest.raises(ValueError, match="holds") as caught:
                array[5:]
            advice = str(caught.value)
            assert "remove" not in problem + advice
            assert ("metadata" in advice) == (not is_empty)

    @pytest.mark.parametrize("number", [0, 3])
    def test_one_wrong_chunk_among_good_ones(self, tmp_path, number):
        """The metadata were to be changed, which made the others unreadable."""
        array = zarr.create_array(tmp_path, shape=20, chunks=5, dtype="f8", compressors=None)
        array[:] = 1
        answers = {
            bytes(41): "other chunks can be read, so this one is damaged",
            bytes(39): "it seems to be truncated: restore",
            zstd(bytes(40)): "it seems to be compressed by zstd: keep it; other chunks can be read",
        }
        for stored, answer in answers.items():
            (tmp_path / f"c/{number}").write_bytes(stored)
            (problem,) = check(tmp_path)[""].problems
            assert answer in problem
            assert "metadata" not in problem

    def test_references_with_the_fill_value_0(self, tmp_path):
        """kerchunk and VirtualiZarr write it: xarray reads zeros as NaN, and nothing said so."""
        pytest.importorskip("fsspec")
        names = {"_ARRAY_DIMENSIONS": ["x"]}
        cases = {
            "zeros": (0.0, names, [0, 1]),
            "none": (0.0, names, [2, 1]),
            "null": (None, names, [0, 1]),
            "asked": (0.0, names | {"_FillValue": "AAAAAAAAAAA="}, [0, 1]),
            "missing": (0.0, names | {"missing_value": 0}, [0, 1]),
            "other": (0.0, names | {"_FillValue": "AAAAAAAAAEA="}, [0, 1]),
            "unnamed": (0.0, {}, [0, 1]),
        }
        refs = {".zgroup": '{"zarr_format": 2}'}
        for name, (fill_value, attributes, data) in cases.items():
            document = metadata_v2("<f4", (2,), (2,), fill_value=fill_value)
            refs[f"{name}/.zarray"] = json.dumps(document)
            refs[f"{name}/.zattrs"] = json.dumps(attributes)
            raw = base64.b64encode(np.array(data, "<f4").tobytes()).decode()
            refs[f"{name}/0"] = f"base64:{raw}"
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
        found = check(tmp_path / "a.json")
        assert [name for name, each in found.items() if each.problems] == ["other", "zeros", ""]
        why = (
            "xarray can't read it: unnamed has no names of dimensions, unlike others of its arrays"
        )
        assert found[""].problems == [f"{why}: add these, or move it to another group"]
        assert [name for name, each in found.items() if each.notes] == ["none"]
        assert found["zeros"].problems[0].startswith("xarray reads its zeros as NaN, because")

    def test_of_what_is_no_store(self, tmp_path):
        """fsspec was asked for the protocol of `<Array file`; a module was "not callable"."""
        array = zarr.create_array(tmp_path, shape=1, dtype="i1")
        with pytest.raises(TypeError, match=r"got Array: pass array\.store or group\.store"):
            check(array)
        with pytest.raises(TypeError, match=r"call numcodecs_bytes\.check\.check"):
            checks(tmp_path)
        with pytest.raises(AttributeError, match=r"call numcodecs_bytes\.migrate\.migrate"):
            numcodecs_bytes.__getattr__("migrate")
        with pytest.raises(TypeError, match=r"progress must be a progress bar .*, got True"):
            list(checks.check(array.store, progress=True))
        assert list(checks.check(array.store))


class TestChunks:
    @pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
    def test_chunks_of_several_shapes(self, tmp_path):
        grid = {"shape": (6, 8), "chunks": [[1, 2, 3], [4, 4]], "dtype": "i2"}
        with zarr.config.set({"array.rectilinear_chunks": True}):
            array = zarr.create_array(tmp_path, **grid, compressors=None)
            array[:] = 1
            array.resize((5, 8))  # the last chunk then reaches beyond the end
            (found,) = check(tmp_path).values()
            assert (found.problems, found.notes, found.num_chunks) == ([], [], 6)
            assert found.partial_reads == "yes"
            os.truncate(tmp_path / "c/1/0", 5)
            (problem,) = check(tmp_path)[""].problems
            assert problem.startswith(
                "chunk c/1/0 holds 5 bytes, expected 16: it seems to be truncated"
            )

    @pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
    @pytest.mark.parametrize("shards", [False, True])
    def test_encoded_chunks_of_several_shapes(self, tmp_path, shards):
        """They were not decoded."""
        sizes = [[2, 4, 2], [4, 4]]
        grid = {"chunks": (2, 2), "shards": sizes} if shards else {"chunks": sizes}
        with zarr.config.set({"array.rectilinear_chunks": True}):
            array = zarr.create_array(tmp_path, shape=(8, 8), dtype="i2", **grid)
            array[:] = np.arange(64).reshape(8, 8)
            (found,) = check(tmp_path).values()
            assert (found.problems, found.notes, found.num_chunks) == ([], [], 6)
            chunk = tmp_path / "c/1/0"
            chunk.write_bytes(chunk.read_bytes()[:-3])
            (problem,) = check(tmp_path)[""].problems
            assert problem.startswith("chunk c/1/0 can't be read: ")

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("dtype", [str, "bytes"])
    def test_a_damaged_count_of_texts(self, tmp_path, zarr_format, dtype):
        """numcodecs allocates 8 bytes for each element that the header states: 16 GiB."""
        names = {str: "vlen-utf8", "bytes": "vlen-bytes"}
        codec = {"name": names[dtype]}
        data_type = "string" if dtype is str else "variable_length_bytes"
        header = (2**31 - 1).to_bytes(4, "little") + bytes(4)
        if zarr_format == 3:
            write_array(tmp_path, header, data_type, [codec], (1,), fill_value="")
        else:
            filters = [{"id": names[dtype]}]
            write_v2(tmp_path, header, "|O", [1], filters=filters, fill_value=None)
        tracemalloc.start()
        (report,) = checks.check(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        (problem,) = report.problems
        assert "it states that it holds 2147483647 elements, expected 1: if the met" in problem
        assert peak < 2**26

    @pytest.mark.parametrize(
        "names",
        [[f"c/0/0.{HEX}.partial"], ["c/1.5a.in-place.partial", f"zarr.{HEX}.partial"]],
    )
    def test_what_killed_writes_leave(self, tmp_path, names):
        """They were said to be files that zarr does not read, and nothing said what to do."""
        array = zarr.create_array(tmp_path / "it's", shape=(2, 2), dtype="i1", compressors=None)
        array[...] = 1
        # These were removed as well.
        others = ["data.csv.partial", f"film.{HEX}.partial", "thesis.2024.in-place.partial"]
        for name in (*names, *others):
            (tmp_path / "it's" / name).write_bytes(b"")
        note, other = check(tmp_path)["it's"].notes
        are = "file is a leftover" if len(names) == 1 else "files are leftovers"
        assert note.startswith(f"{len(names)} {are} of killed writes, ")
        assert all(name in note for name in names)
        if os.name == "posix":
            command = note.partition("while nobody writes: ")[2]
            subprocess.run(command, shell=True, check=True)  # noqa: S602 # it is quoted
            assert check(tmp_path)["it's"].notes == [other]
            assert array[...].tolist() == [[1, 1], [1, 1]]
        assert other.endswith(f"because no chunk has such a name: {', '.join(others)}")

    @pytest.mark.parametrize(
        ("dtype", "change", "hint"),
        [
            ("<i4", {"fill_value": "NaN"}, "its fill_value, 'NaN', is none of data type \"<i4\": "),
            ("|u1", {"fill_value": -1}, 'its fill_value, -1, is none of data type "|u1": correct'),
            ("|S4", {"fill_value": "abc"}, "its fill_value, 'abc', is none of data type \"|S4\": "),
            ("float32", {}, 'if these are elements of <f4, write "dtype": "<f4" in'),
            ("|O", {"filters": [{"id": "json2"}]}, "zarr 3 can't read objects stored by json2: "),
        ],
        ids=str,
    )
    def test_what_to_correct_in_metadata(self, tmp_path, dtype, change, hint):
        """What zarr says names no key; `migrate` said that intact metadata may be damaged."""
        write_v2(tmp_path, None, dtype, **{"fill_value": None} | change)
        (problem,) = check(tmp_path)[""].problems
        assert problem.startswith("zarr can't open it: ")
        assert hint in problem
        (node,) = migrate(tmp_path, dry_run=True)
        assert hint in node.reasons[0]

    @pytest.mark.parametrize(
        "change",
        [
            {"filters": 5},
            {"filters": [{"id": "vlen-utf8"}], "order": "X"},
        ],
        ids=str,
    )
    def test_texts_whose_metadata_are_wrong_otherwise(self, tmp_path, change):
        """zarr was said to read no text, or there was a bug."""
        write_v2(tmp_path, None, "|O", **{"fill_value": ""} | change)
        (problem,) = check(tmp_path)[""].problems
        assert "can't read objects" not in problem

    def test_the_fill_value_in_metadata_of_zarr_v3(self, tmp_path):
        write_array(tmp_path, None, "uint8", [PLAIN], fill_value=-1)
        (problem,) = check(tmp_path)[""].problems
        assert 'its fill_value, -1, is none of data type "uint8": correct it in zarr' in problem

    def test_a_group_without_arrays(self, tmp_path, capsys):
        """It was said to have no zarr.json."""
        zarr.create_group(tmp_path)
        assert main(["check", str(tmp_path)]) == 1
        assert "it is a group without arrays" in capsys.readouterr().err

    def test_modules_that_are_called(self):
        for module in (checks, sys.modules["numcodecs_bytes.migrate"]):
            with pytest.raises(TypeError, match=rf"is a module: call {module.__name__}\."):
                module("a.zarr")

    def test_dimensions_that_xarray_rejects(self, tmp_path):
        """Only `migrate` said so."""
        attributes = {"_ARRAY_DIMENSIONS": "a b"}
        settings = {"shape": (2, 2), "dtype": "i1", "zarr_format": 2, "attributes": attributes}
        zarr.create_array(tmp_path, **settings)
        (problem,) = check(tmp_path)[""].problems
        why = "its attribute _ARRAY_DIMENSIONS is 'a b', expected 2 names: correct or remove it in"
        assert problem == f"xarray can't read it: {why} .zattrs"

    @pytest.mark.parametrize("names", ["time", ["x", "y"], None])
    def test_dimensions_of_one_axis_that_xarray_rejects(self, tmp_path, names):
        settings = {"shape": 2, "dtype": "i1", "zarr_format": 2}
        zarr.create_array(tmp_path, attributes={"_ARRAY_DIMENSIONS": names}, **settings)
        (problem,) = check(tmp_path)[""].problems
        assert "xarray can't read it: its attribute _ARRAY_DIMENSIONS is " in problem

    def test_several_wrong_chunks_of_one_length(self, tmp_path):
        """Chunks of another data type were said to be damaged, and to be rewritten."""
        array = zarr.create_array(tmp_path, shape=8, chunks=2, dtype="f4", compressors=None)
        array[...] = 1
        for i in range(2):
            (tmp_path / f"c/{i}").write_bytes(np.ones(2).tobytes())
        for problem in check(tmp_path)[""].problems:
            assert "holds 16 bytes, expected 8: 2 chunks have that length, and may be i" in problem
            assert problem.endswith("before you write): keep them, and convert or restore them")
            assert "these may be int64, uint64, float64 or complex64; compare" in problem

    @pytest.mark.parametrize(
        "codec",
        [
            {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
            *({"id": name} for name in ("zstd", "zlib", "bz2", "lz4")),
        ],
        ids=operator.itemgetter("id"),
    )
    @pytest.mark.parametrize("how", ["plain", "gzip", "one plain"])
    def test_chunks_without_the_codec_in_their_metadata(self, tmp_path, codec, how):
        """It was advised to rewrite them."""
        data = np.arange(40, dtype="<f4") + 1
        compressor = numcodecs.GZip() if how == "gzip" else None
        settings = {"shape": 40, "chunks": 20, "dtype": "<f4", "zarr_format": 2}
        with_codec = numcodecs.get_codec(codec) if how == "one plain" else compressor
        zarr.create_array(tmp_path, compressors=with_codec, **settings)[:] = data
        if how == "one plain":
            (tmp_path / "1").write_bytes(data[20:].tobytes())
        document = json.loads((tmp_path / ".zarray").read_text())
        (tmp_path / ".zarray").write_text(json.dumps(document | {"compressor": codec}))
        (problem,) = check(tmp_path)[""].problems
        name = "chunk 1" if how == "one plain" else "each of its 2 chunks, such as 0,"
        seems = "it has the length of elements that are not encoded"
        if how == "gzip":
            seems = "it seems to be compressed by gzip"
        assert problem.startswith(f"{name} can't be read: {seems}, contrary to the metadata: keep")

    def test_chunks_that_are_not_of_blosc(self, tmp_path):
        """They were said to be damaged, also if all have another codec that nobody knows."""
        zarr.create_array(tmp_path, shape=4, chunks=2, dtype="f4", zarr_format=2)
        document = json.loads((tmp_path / ".zarray").read_text())
        document["compressor"] = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
        (tmp_path / ".zarray").write_text(json.dumps(document))
        for name in ("0", "1"):
            (tmp_path / name).write_bytes(b"\x5d\0\0\x80" * 5)
        (problem,) = check(tmp_path)[""].problems
        assert "can't be read: it does not begin like data of Blosc: if the metadata, " in problem

    def test_one_shard_whose_index_is_at_the_other_end(self, tmp_path):
        """To change the metadata was advised, by which all others could not be read."""
        settings = {"shape": 8, "chunks": (2,), "dtype": "f4", "compressors": None}
        for name, location in (("a", "end"), ("b", "start")):
            index = {"shards": {"shape": (4,), "index_location": location}}
            zarr.create_array(tmp_path / name, **settings | index)[:] = 1
        shutil.copy(tmp_path / "b/c/0", tmp_path / "a/c/0")
        (problem,) = check(tmp_path / "a")[""].problems
        assert (
            "its index is at the start (write nothing to it until that is corrected); other shards"
            in problem
        )

    @pytest.mark.parametrize("compressor", ["zstd", "blosc"])
    def test_encoded_chunks_that_are_cut(self, tmp_path, compressor):
        """They were said to be intact, and without padding, or of another data type."""
        codec = {"zstd": zarr.codecs.ZstdCodec(), "blosc": zarr.codecs.BloscCodec()}[compressor]
        settings = {"shape": 3500, "chunks": 1000, "dtype": "f8", "compressors": codec}
        data = np.random.default_rng(0).random(3500)
        zarr.create_array(tmp_path, **settings)[...] = data
        (tmp_path / "c/3").write_bytes(b"")
        for i in range(2):
            os.truncate(tmp_path / f"c/{i}", 4000)
        *cut, empty = sorted(check(tmp_path)[""].problems)
        assert empty == "chunk c/3 holds 0 bytes: it is empty: restore or rewrite it"
        assert len(cut) == 2
        assert not any("intact" in problem for problem in cut)

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("dtype", ["<f4", "?"])
    def test_encoded_chunks_without_padding(self, tmp_path, zarr_format, dtype):
        """They were to be restored, or the metadata corrected; uncompressed, to be padded."""
        codec = numcodecs.Zlib() if zarr_format == 2 else zarr.codecs.GzipCodec()
        settings = {"shape": 10, "chunks": 4, "dtype": dtype, "compressors": codec}
        zarr.create_array(tmp_path, zarr_format=zarr_format, **settings)[...] = 1
        chunk = tmp_path / ("2" if zarr_format == 2 else "c/2")
        compress = zlib.compress if zarr_format == 2 else gzip.compress
        for num_elements in (2, 3):
            chunk.write_bytes(compress(np.ones(num_elements, dtype).tobytes()))
            (problem,) = check(tmp_path)[""].problems
            assert "once decoded, it holds" in problem
            advice = "elements inside the array, of shape (2,), keep it, and pad it along each axis"
            assert (advice in problem) == (num_elements == 2)

    def test_what_only_seems_to_lack_padding(self, tmp_path):
        """Inner chunks, parts of elements, web pages, and chunks of another shape."""
        settings = {"shape": 10, "chunks": 4, "dtype": "f4"}
        plain = settings | {"compressors": None}
        sharded = {"shape": (16, 18), "shards": (16, 16), "chunks": (8, 8), "dtype": "u2"}
        encoded = settings | {"compressors": zarr.codecs.GzipCodec()}
        for name, given in (
            ("page", plain),
            ("other", encoded),
            ("odd", encoded),
            ("sharded", sharded | {"compressors": zarr.codecs.GzipCodec()}),
        ):
            zarr.create_array(tmp_path / name, **given)[...] = 1
        (tmp_path / "page/c/2").write_bytes(b"<html>  ")
        (tmp_path / "odd/c/2").write_bytes(gzip.compress(bytes(9)))
        for i in range(3):
            (tmp_path / f"other/c/{i}").write_bytes(gzip.compress(bytes(8)))
        document = json.loads((tmp_path / "sharded/zarr.json").read_text())
        document["data_type"] = "uint32"  # as many elements in an inner chunk as in the array here
        (tmp_path / "sharded/zarr.json").write_text(json.dumps(document))
        found = check(tmp_path)
        assert "an inner chunk holds 128 bytes, expected 256" in str(found["sharded"])
        assert not any("pad it" in str(report) for report in found.values())
        assert "it is a web page" in str(found["page"])
        assert found["other"].num_problems == 1

    @pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
    def test_converted_chunks_without_padding(self, tmp_path):
        """Those four times too long were to be padded."""
        codec = {"dtype": "<f8", "astype": "|u1", "scale": 1, "offset": 0}
        filters = [zarr.codecs.numcodecs.FixedScaleOffset(**codec)]
        settings = {"shape": 10, "chunks": 4, "dtype": "f8", "compressors": None}
        zarr.create_array(tmp_path, filters=filters, **settings)[...] = 1
        for num_bytes in (2, 16):
            (tmp_path / "c/2").write_bytes(bytes(num_bytes))
            (problem,) = check(tmp_path)[""].problems
            assert ("pad it" in problem) == (num_bytes == 2)

    def test_one_compressed_chunk_beside_one_with_invalid_bools(self, tmp_path):
        """To add a codec was advised, with which the other one could not be read."""
        settings = {"shape": 200, "chunks": 100, "dtype": "?", "compressors": None}
        zarr.create_array(tmp_path, **settings)[...] = True
        (tmp_path / "c/0").write_bytes(bytes([7] + [1] * 99))
        (tmp_path / "c/1").write_bytes(bytes(numcodecs.Zstd().encode(bytes(100))))
        first, second = sorted(check(tmp_path)[""].problems)
        assert first.startswith("chunk c/0 holds 1 bool that is neither 0 nor 1")
        assert "keep it; other chunks can be read, so it was written by an" in second

    def test_more_than_ten_wrong_chunks(self, tmp_path):
        """Of the first ten, it was said how many there are, and that all are like them."""
        zarr.create_array(tmp_path, shape=80, chunks=2, dtype="f4", compressors=None)[...] = 1
        for i in range(39):
            (tmp_path / f"c/{i}").write_bytes(bytes(16))
        problems = check(tmp_path)[""].problems
        assert all("expected 8: 39 chunks have that length, and may be int" in p for p in problems)
        (tmp_path / "c/39").write_bytes(bytes(17))
        (problem,) = check(tmp_path)[""].problems
        assert problem.startswith("each of its 40 chunks has the wrong length, such as c/")

    def test_what_a_group_of_zarr_v3_hides(self, tmp_path):
        """As after `migrate --exclude`: nothing said why the group does not show it."""
        group = zarr.create_group(tmp_path, zarr_format=3)
        group.create_array("new", shape=4, dtype="i1")
        settings = {"shape": 4, "dtype": "i1", "zarr_format": 2}
        zarr.create_array(tmp_path / "old", **settings)
        zarr.create_group(tmp_path / "a/b", zarr_format=2)
        zarr.create_array(tmp_path / "a/b/c", **settings)
        notes = {path: report.notes for path, report in check(tmp_path).items()}
        hidden = [path for path, said in notes.items() if "a Zarr v3 group above" in str(said)]
        assert hidden == ["a/b/c", "old"]

    @pytest.mark.parametrize("kind", ["folder", "file", "obstore"])
    def test_a_file_beside_an_array(self, tmp_path, kind):
        """It was taken for an array or a group, which can't be read."""
        zarr.create_group(tmp_path, zarr_format=2).create_array("a", shape=4, dtype="i1")
        (tmp_path / "README").write_text("text")
        store = tmp_path
        if kind == "file":
            pytest.importorskip("fsspec")
            store = f"file://{tmp_path}"
        elif kind == "obstore":
            obstore = pytest.importorskip("obstore.store")
            store = zarr.storage.ObjectStore(obstore.LocalStore(tmp_path))
        (report,) = checks.check(store)
        assert (report.path, report.problems) == ("a", [])

    @pytest.mark.parametrize(("codec", "dtype"), [({"endian": "little"}, "<f4"), ({}, "|u1")])
    def test_filters_that_need_no_dtype(self, tmp_path, codec, dtype):
        filters = [{"id": "bytes", **codec}]
        write_v2(tmp_path, bytes(4 * int(dtype[-1])), dtype, filters=filters)
        assert check(tmp_path)[""].problems == []

    def test_a_chunk_without_padding(self, tmp_path):
        """To rewrite it was advised, with intact elements in it."""
        settings = {"chunks": (4, 4), "dtype": "f4", "compressors": None}
        zarr.create_array(tmp_path / "a", shape=(10, 8), **settings)[...] = 1
        for i in range(2):
            (tmp_path / f"a/c/2/{i}").write_bytes(np.ones((2, 4), "f4").tobytes())
        for problem in check(tmp_path / "a")[""].problems:
            assert problem.endswith(
                "holds 32 bytes, expected 64: if another program wrote only the elements inside "
                "the array, of shape (2, 4), keep it, and pad it along each axis to (4, 4); "
                "otherwise, restore or rewrite it"
            )
        # To pad it was advised, which gave wrong values.
        zarr.create_array(tmp_path / "b", shape=(8, 6), **settings)[...] = 1
        os.truncate(tmp_path / "b/c/0/1", 32)
        (problem,) = check(tmp_path / "b")[""].problems
        assert problem.endswith("expected 64: it seems to be truncated: restore or rewrite it")

    @pytest.mark.needs("os.symlink")
    def test_links_to_chunks_that_are_not_there(self, tmp_path):
        """As git-annex makes them: it was said that chunks are missing."""
        array = zarr.create_array(tmp_path, shape=4, chunks=1, dtype="i1", compressors=None)
        (tmp_path / "c").mkdir()
        for i in range(2):
            (tmp_path / f"c/{i}").symlink_to("nothing")
        assert array[...].tolist() == [0] * 4
        (problem,) = check(tmp_path)[""].problems
        first = "each of its 2 chunks, such as c/0, is a symbolic link to a missing file, so zarr "
        assert problem.startswith(f"{first}reads the fill value: restore that")

    def test_a_damaged_shard(self, tmp_path):
        """Large shards are decoded in parts."""
        shape = (160, 2**20)
        array = zarr.create_array(
            tmp_path, shape=shape, chunks=(8, 2**20), shards=shape, dtype="u1"
        )
        array[0, 0] = array[-1, -1] = 1
        assert check(tmp_path)[""].problems == []
        chunk = tmp_path / "c/0/0"
        raw = chunk.read_bytes()
        for damaged in (bytes([raw[0] ^ 255]) + raw[1:], raw[:-1] + bytes([raw[-1] ^ 255])):
            chunk.write_bytes(damaged)
            (problem,) = check(tmp_path)[""].problems
            assert problem.startswith("chunk c/0/0 can't be read: ")

    @pytest.mark.parametrize("dtype", ["?", "f4"])
    def test_an_inner_chunk_of_the_wrong_length(self, tmp_path, dtype):
        """NumPy said that it "cannot reshape array"; and `check` advised to run `check`."""
        settings = {"shape": 4, "chunks": (2,), "dtype": dtype, "compressors": None}
        index = {"shards": {"shape": (4,), "index_location": "start"}}
        zarr.create_array(tmp_path, **settings | index)[:] = 1
        chunk, size = tmp_path / "c/0", np.dtype(dtype).itemsize
        raw = chunk.read_bytes()[36:]
        for offset, num_bytes in ((36, size), (36, 0), (5000, 2 * size)):
            places = struct.pack("<4Q", offset, num_bytes, 36 + 2 * size, 2 * size)
            chunk.write_bytes(numcodecs.CRC32C().encode(places).tobytes() + raw)
            (problem,) = check(tmp_path)[""].problems
            assert problem.startswith(
                f"chunk c/0 can't be read: its index says that inner chunk (0,) has {num_bytes} "
                f"bytes at offset {offset}, expected {2 * size} within the {36 + 4 * size} bytes of"
            )
            assert "until then, write nothing to it" in problem

    def test_metadata_of_shards_that_are_wrong(self, tmp_path):
        """The advice began with "restore it", although all shards had the same problem."""
        settings = {"shape": 8, "chunks": (2,), "dtype": "f4", "compressors": None}
        zarr.create_array(tmp_path, shards=(4,), **settings)[:] = 1
        document = json.loads((tmp_path / "zarr.json").read_text())
        document["codecs"][0]["configuration"]["chunk_shape"] = [4]
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        (problem,) = check(tmp_path)[""].problems
        assert "can't be decoded: if the metadata, or a consolidated copy of them, state" in problem
        assert problem.endswith("otherwise, restore the shards; until then, write nothing")

    @pytest.mark.parametrize(("location", "wrong"), [("start", "end"), ("end", "start")])
    @pytest.mark.parametrize("has_checksum", [True, False])
    def test_an_index_at_the_other_end(self, tmp_path, location, wrong, has_checksum):
        """It was said to be damaged."""
        settings = {"shape": 8, "chunks": (2,), "dtype": "f4", "compressors": None}
        index = {"shards": {"shape": (8,), "index_location": location}}
        array = zarr.create_array(tmp_path, **settings | index)
        array[:] = 1
        document = json.loads((tmp_path / "zarr.json").read_text())
        configuration = document["codecs"][0]["configuration"]
        if not has_checksum:
            del configuration["index_codecs"][1]
            (tmp_path / "zarr.json").write_text(json.dumps(document))
            zarr.open_array(tmp_path)[:] = 1
        configuration["index_location"] = wrong
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        until = "(write nothing to it until that is corrected); if other shards can be read, it was"
        where = f"its index is at the {location} {until} written by another program: restore it"
        (problem,) = check(tmp_path)[""].problems
        assert problem.startswith(f"chunk c/0 can't be read: {where}")
        assert f'otherwise, write "index_location": "{location}" in the configuration' in problem
        with pytest.raises(Exception, match=".*") as caught:
            zarr.open_array(tmp_path)[...]
        assert where in str(caught.value.__notes__)

    def test_wrong_checksums(self, tmp_path):
        """Both sums were printed, as bytes."""
        crc = zarr.codecs.Crc32cCodec()
        settings = {"shape": 4, "chunks": (2,), "dtype": "f4"}
        expected = {
            "plain": "chunk plain/c/0 can't be read: a checksum is wrong",
            "sharded": "chunk sharded/c/0 can't be read: a checksum is wrong (the shard may be d",
        }
        for name, more in (("plain", {"compressors": crc}), ("sharded", {"shards": (4,)})):
            zarr.create_array(tmp_path / name, **settings | more)[:] = 1
            chunk = tmp_path / name / "c/0"
            raw = chunk.read_bytes()
            chunk.write_bytes(raw[:-1] + bytes([raw[-1] ^ 255]))
        found = check(tmp_path)
        for name, start in expected.items():
            (problem,) = found[name].problems
            assert problem.startswith(start)

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

    @pytest.mark.parametrize("location", LOCATIONS)
    @pytest.mark.parametrize(
        ("settings", "others"),
        [
            ({}, ["c/2", "c/0/1/0", "c/0/0.partial", "x"]),
            ({"chunk_key_encoding": {"name": "v2", "separator": "."}}, ["0/0", "2.0.0"]),
            ({"zarr_format": 2}, ["0/0", "0.0.0", "2", ".DS_Store"]),
            ({"chunks": (1, 2), "shards": (2, 2)}, ["c/2", "c/0/0.unfinished"]),
            ({"shape": (), "chunks": ()}, ["d", "0"]),
            ({}, ["inner/zarr.json"]),
        ],
        ids=str,
    )
    def test_files_that_are_no_chunks(self, tmp_path, settings, others, location):
        """Leftovers, and keys in another notation."""
        settings = {"shape": (3, 2), "chunks": (2, 2), "dtype": "i2"} | settings
        array = zarr.create_array(tmp_path / "group/a", compressors=None, **settings)
        array[...] = 1
        zarr.create_group(tmp_path / "group", zarr_format=array.metadata.zarr_format)
        for name in (".zattrs", ".nczarray", *others):
            file = tmp_path / "group/a" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text("{}")
        (found,) = check(at(location, tmp_path / "group")).values()
        (note,) = found.notes
        assert (found.path, found.problems) == ("a", [])
        assert note.startswith(f"zarr does not read {len(others)} file")
        *named, last = note.rpartition(": ")[2].split(", ")
        assert (last == "...") == (len(others) > 3)
        assert set(named) | {last} - {"..."} <= set(others)

    @pytest.mark.parametrize("names", [("0.gz", "1.gz"), ("C/0", "C/1"), (".0.aB3dEf",)])
    def test_files_that_may_be_all_chunks(self, tmp_path, names):
        """They were noted like any other file, and zarr reads fill values."""
        zarr.create_array(tmp_path, shape=4, chunks=2, dtype="i1", compressors=None)
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(bytes(2))
        (problem,) = check(tmp_path)[""].problems
        files = "1 file" if len(names) == 1 else "2 files"
        assert problem.startswith(f"it has no chunks, but {files} with a similar name, such as ")

    def test_an_array_without_chunks_beside_other_files(self, tmp_path):
        zarr.create_array(tmp_path, shape=4, chunks=2, dtype="i1", compressors=None)
        for name in ("thumbnail_256.png", ".nfs00000012", "README.v2.md", "zarr.json.bak1"):
            (tmp_path / name).touch()
        assert check(tmp_path)[""].problems == []

    def test_an_array_without_chunks_on_a_web_server(self, tmp_path):
        """Each of its chunks was asked for, by two requests."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_array(tmp_path, shape=100, chunks=1, dtype="i1", compressors=None)
        requests = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args):
                requests.append(args)

        handler = functools.partial(Handler, directory=tmp_path)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            (report,) = check(f"http://127.0.0.1:{server.server_port}").values()
            server.shutdown()
        assert report.problems == []
        assert len(requests) < 20

    @pytest.mark.parametrize("location", LOCATIONS)
    @pytest.mark.parametrize(("zarr_format", "names"), [(2, ["4", "5"]), (3, ["c/4", "c/5"])])
    def test_chunks_outside_the_array(self, tmp_path, zarr_format, names, location):
        """As after two appends at once: they were noted like any other file."""
        settings = {"shape": 12, "chunks": 2, "dtype": "i1", "zarr_format": zarr_format}
        zarr.create_array(tmp_path / "a", **settings)[:] = 1
        document = tmp_path / "a" / (".zarray" if zarr_format == 2 else "zarr.json")
        metadata = json.loads(document.read_text())
        document.write_text(json.dumps(metadata | {"shape": [8]}))
        (found,) = check(at(location, tmp_path)).values()
        (problem,) = found.problems
        start = "2 files have names of chunks outside the shape (8,), such as "
        assert problem.startswith(start)
        assert problem.removeprefix(start).partition(":")[0] in names
        assert found.notes == []

    @pytest.mark.parametrize(("name", "key"), [(".zarray", "1"), ("zarr.json", "c/1")])
    def test_a_chunk_or_metadata_that_are_a_folder(self, tmp_path, name, key):
        """zarr reads the chunk as the fill value, without a word."""
        settings = {"shape": 4, "chunks": 2, "dtype": "i2", "zarr_format": 2 + (key != "1")}
        zarr.create_array(tmp_path / "a", compressors=None, **settings)[:] = 1
        (tmp_path / "a" / key).unlink()
        (tmp_path / "a" / key).mkdir()
        (tmp_path / "b" / name).mkdir(parents=True)
        found = check(tmp_path)
        (problem,) = found["a"].problems
        assert problem.startswith(f"chunk a/{key} is a folder, so zarr reads the fill value")
        assert found["b"].problems == [
            f"its metadata can't be read: b/{name} is a folder, which zarr ignores"
        ]

    def test_only_the_first_damaged_chunks_are_listed(self, tmp_path):
        array = zarr.create_array(tmp_path, shape=100, chunks=1, dtype="i1", compressors=None)
        array[:] = 1
        for path in (tmp_path / "c").iterdir():
            path.write_bytes(b"1" if path.name == "7" else b"123")
        (report,) = checks.check(tmp_path)
        assert (report.num_chunks, report.num_problems) == (100, 99)
        assert len(report.problems) == 10
        assert str(report).endswith("  PROBLEM ... and 89 more")


@contextlib.contextmanager
def denied(path, mode=0):
    """Change the mode of a path, and be no root, who may do everything."""
    if not hasattr(os, "geteuid"):
        pytest.skip("this system has no modes")
    user, before = os.geteuid(), path.stat().st_mode
    path.chmod(mode)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(before)


class TestPermissions:
    @pytest.fixture
    def folder(self):
        """A group of two arrays of two chunks, where other users may go, unlike in tmp_path."""
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            group = zarr.create_group(Path(name, "a"))
            for array, compressors in (("plain", None), ("zipped", "auto")):
                settings = {"shape": (2, 2), "chunks": (1, 2), "dtype": "i2"}
                group.create_array(array, compressors=compressors, **settings)[:] = 1
            yield Path(name, "a")

    @pytest.mark.parametrize(
        ("path", "mode", "problem"),
        [
            # The length of an uncompressed chunk alone does not tell.
            ("plain/c/1/0", 0, "chunk plain/c/1/0 can't be read: PermissionError: "),
            ("zipped/c/1/0", 0, "chunk zipped/c/1/0 can't be read: PermissionError: "),
            ("plain/c/1", 0, "a folder of chunks can't be listed: PermissionError: "),
            ("plain/c/1", 0o444, "chunk plain/c/1/0 can't be read: PermissionError: "),
            ("plain/c/1", 0o111, "a folder of chunks can't be listed: PermissionError: "),
            ("plain", 0, "its metadata can't be read: PermissionError: "),
            ("plain", 0o111, None),  # zarr reads it, so its chunks are looked for one by one
            ("plain/zarr.json", 0, "its metadata can't be read: PermissionError: "),
            ("deep", 0o111, "its metadata can't be read: PermissionError: "),
        ],
    )
    def test_what_may_not_be_read(self, folder, path, mode, problem):
        (folder / "deep").mkdir()
        urls = [f"file://{folder}"] if importlib.util.find_spec("fsspec") else []
        for location in (folder, *(urls if path.endswith("0") else [])):
            with denied(folder / path, mode=mode):
                found = check(location)
            report = found.pop(path.partition("/")[0])
            problems = [each.startswith(problem) for each in report.problems]
            assert problems == ([True] if problem else [])
            if "listed" in (problem or ""):
                assert report.notes == ["1 of 2 chunks are present; the others were not found"]
            assert not any(other.problems for other in found.values())

    def test_a_root_that_may_not_be_listed(self, folder):
        """fsspec's had "no Zarr array"."""
        urls = [f"file://{folder}"] if importlib.util.find_spec("fsspec") else []
        for location in (folder, *urls):
            with (
                denied(folder, mode=0o111),
                pytest.raises(OSError, match="Permission denied") as caught,
            ):
                check(location)
            assert "PermissionError" in repr(caught.value)

    def test_a_store_that_forbids_chunks(self, folder):
        """It was said of the array that it can't be checked, and nothing of its chunks."""

        class Forbidding(zarr.storage.LocalStore):
            async def getsize(self, _key):
                raise PermissionError("Forbidden")

        (report, _) = checks.check(Forbidding(folder))
        why = "can't be read: Forbidden: log in, or give credentials in the storage options"
        assert report.problems == [f"each of its 2 chunks, such as plain/c/0/0, {why}"]

    def test_references_to_what_needs_credentials(self, tmp_path):
        """It was not said in which of the storage options these are."""

        class NoCredentialsError(Exception):
            pass

        def cat_file(*_args, **_options):
            raise NoCredentialsError("Unable to locate credentials")

        write_references_to(tmp_path, cat_file)
        (report,) = checks.check(tmp_path / "a.json")
        (problem,) = report.problems
        assert "give credentials in the remote_options of the storage options or, if" in problem


@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
class TestConsolidatedMetadata:
    """zarr opens arrays by them from a group, and reads the fill value of arrays that are gone."""

    @pytest.fixture(params=[2, 3])
    @staticmethod
    def group(tmp_path, request):
        """Return a group of five arrays; two groups have consolidated metadata."""
        group = zarr.open_group(tmp_path, mode="w", zarr_format=request.param)
        settings = {"shape": 8, "chunks": 4, "dtype": "f8", "compressors": None}
        attributes = {"_FillValue": np.nan, "units": "m"}
        for name in ("a", "b", "c", "same", "below/e"):
            array = group.create_array(name, fill_value=np.nan, attributes=attributes, **settings)
            array[:] = 1
        for path in ("below", ""):
            zarr.consolidate_metadata(group.store, path=path, zarr_format=request.param)
        return zarr.open_group(tmp_path, use_consolidated=False)

    def test_groups_whose_formats_disagree(self, group):
        """It passed, and programs showed different attributes."""
        root, is_v2 = group.store.root, group.metadata.zarr_format == 2
        if is_v2:
            migrate(root)
            zarr.open_group(root, use_consolidated=False, zarr_format=3).attrs["a"] = "new"
        else:
            (root / ".zgroup").write_text('{"zarr_format": 2}')
            (root / ".zattrs").write_text('{"a": "old"}')
        found = [report for report in checks.check(root) if report.kind == "group"]
        ((path, problems),) = [(report.path, report.problems) for report in found]
        new, old = ("'new'", "missing") if is_v2 else ("missing", "'old'")
        disagree = f".zattrs and zarr.json disagree: attribute a is {old} in .zattrs, {new} in"
        assert path == ""
        assert any(problem.startswith(disagree) for problem in problems)

    @pytest.mark.parametrize("group", [2], indirect=True)
    def test_attributes_that_are_lost(self, group):
        """To consolidate again was the only advice, which loses the last copy."""
        (group.store.root / "a/.zattrs").unlink()
        (problem,) = check(group.store)["a"].problems
        assert problem.endswith("; if .zattrs was lost, write it from them first")

    @pytest.mark.parametrize("group", [2], indirect=True)
    def test_documents_of_arrays_that_have_attributes(self, group):
        """VirtualiZarr writes them empty into those of Zarr v2, where they mean nothing."""
        file = group.store.root / "a/.zarray"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"attributes": {}}))
        assert not any(report.problems for report in checks.check(group.store))

    def test_those_that_are_right(self, group):
        assert not any(report.problems for report in checks.check(group.store))

    @pytest.mark.parametrize("kind", ["a folder", "a zip file"])
    def test_those_that_are_not(self, group, kind, tmp_path):
        group["a"].resize(12)
        group["b"].attrs["units"] = "km"
        del group["c"]
        group["below/e"].append(np.ones(4))
        group.create_array("new", shape=8, chunks=4, dtype="f8", compressors=None)[:] = 1
        store = group.store
        if kind == "a zip file":
            store = shutil.make_archive(tmp_path.parent / "zipped", "zip", tmp_path)
        reports = {report.path: report.problems for report in checks.check(store)}
        again = "consolidate them again, with zarr.consolidate_metadata"
        of_root, name = "the consolidated metadata of group /", ".zarray"
        if group.metadata.zarr_format == 3:
            name = "zarr.json"
        lost = f"if it was deleted, {again}; if {name} was lost, write it from them first"
        # To consolidate one made a group unreadable by xarray that could be read.
        first = "; if an append was interrupted, repeat it first"
        assert reports == {
            "a": [f"{of_root} and its own differ in shape: if its own are right, {again}{first}"],
            "b": [f"{of_root} and its own differ in attributes: if its own are right, {again}"],
            "c": [f"it has no {name}, but {of_root} have it: {lost}"],
            "same": [],
            "below/e": [
                f"{of_root}{path} and its own differ in shape: if its own are right, {again}{first}"
                for path in ("", "below")
            ],
            "new": [f"{of_root} lack it: {again}"],
        }

    def test_one_that_zarr_can_not_open(self, group):
        is_v2 = group.metadata.zarr_format == 2
        file = group.store.root / (".zmetadata" if is_v2 else "zarr.json")
        document = json.loads(file.read_text())
        documents = document if is_v2 else document["consolidated_metadata"]
        documents["metadata"]["a/.zarray" if is_v2 else "a"]["shape"] = "x"
        file.write_text(json.dumps(document))
        problems = {report.path: report.problems for report in checks.check(group.store)}
        again = "consolidate them again, with zarr.consolidate_metadata"
        why = "have it in a way that zarr can't open"
        assert problems.pop("a") == [f"the consolidated metadata of group / {why}: {again}"]
        assert not any(problems.values())

    def test_a_group_that_is_stated_to_be_an_array(self, group):
        group.create_group("old")
        zarr.consolidate_metadata(group.store, zarr_format=group.metadata.zarr_format)
        shutil.rmtree(group.store.root / "old")
        settings = {"shape": 8, "dtype": "f8", "zarr_format": group.metadata.zarr_format}
        zarr.create_array(group.store, name="old", **settings)
        (problem,) = check(group.store)["old"].problems
        assert "the consolidated metadata of group / take it for a group: consolidate" in problem

    def test_those_of_groups_that_links_lead_to(self, group):
        """They passed."""
        is_v2 = group.metadata.zarr_format == 2
        (group.store.root / "link").symlink_to("below", target_is_directory=True)
        zarr.consolidate_metadata(group.store, zarr_format=group.metadata.zarr_format)
        assert not any(report.problems for report in checks.check(group.store))
        file = group.store.root / (".zmetadata" if is_v2 else "zarr.json")
        document = json.loads(file.read_text())
        nodes = (document if is_v2 else document["consolidated_metadata"])["metadata"]
        if is_v2:
            nodes["link/.zattrs"] = {"title": "old"}
        else:
            nodes["link"]["attributes"] = {"title": "old"}
        file.write_text(json.dumps(document))
        assert "differ in attributes" in str(check(group.store)["link"])

    @pytest.mark.parametrize("stated", [5, 0, True, "x", []])
    def test_those_that_are_no_object(self, tmp_path, stated):
        """Numbers ended the check with a bug."""
        document = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": stated}
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        assert 'has no object "metadata"' in str(check(tmp_path)[""].problems)

    def test_a_group_without_a_format(self, tmp_path):
        """zarr opens it, and it was a bug here."""
        (tmp_path / "zarr.json").write_text('{"node_type": "group"}')
        assert check(tmp_path) == {}

    def test_those_of_groups(self, group):
        """Groups with other attributes, new and deleted ones passed."""
        is_v2 = group.metadata.zarr_format == 2
        file = group.store.root / (".zmetadata" if is_v2 else "zarr.json")
        before = json.loads(file.read_text())
        name = ".zgroup" if is_v2 else "zarr.json"
        for path in ("old", "below/old"):
            group.create_group(path)
        zarr.consolidate_metadata(group.store, zarr_format=group.metadata.zarr_format)
        shutil.rmtree(group.store.root / "old")
        (group.store.root / "below/old" / name).unlink()
        group["below"].attrs["title"] = "other"
        group.create_group("new")
        again = "consolidate them again, with zarr.consolidate_metadata"
        lost = f"if it was deleted, {again}; if {name} was lost, write it from them first"
        of_root = "the consolidated metadata of group /"
        differ = f"{of_root} and its own differ in attributes: if its own are right, {again}"
        of_below = differ.replace("group /", "group /below")
        lost += "" if is_v2 else ", without its consolidated_metadata"
        deleted = [f"it has no {name}, but {of_root} have it: {lost}"]
        expected = {
            "below": [differ, of_below] if is_v2 else [differ],
            "new": [f"{of_root} lack it: {again}"],
            "old": deleted,
            "below/old": deleted,
        }
        reports = [report for report in checks.check(group.store) if report.kind == "group"]
        assert {report.path: report.problems for report in reports} == expected
        assert not any("partial reads" in str(report) for report in reports)
        if is_v2:  # only those of Zarr v2 have the attributes of the group itself
            before["metadata"][".zattrs"] = {"title": "old"}
            file.write_text(json.dumps(before))
            lost = "; if .zattrs was lost, write it from them first"
            assert check(group.store)[""].problems == [differ + lost]

    def test_an_array_of_the_other_format(self, group):
        """A group of Zarr v3 does not show arrays of Zarr v2, which `migrate` may have excluded."""
        other = 5 - group.metadata.zarr_format
        settings = {"shape": 8, "chunks": 4, "dtype": "f8", "zarr_format": other}
        zarr.create_array(group.store, name="other", **settings)
        assert not any(report.problems for report in checks.check(group.store))


def write_references_to(folder, cat_file):
    """Write references to a file system of fsspec that reads files by a function."""
    fsspec = pytest.importorskip("fsspec")
    methods = {"protocol": "tested", "cat_file": cat_file}
    kind = type("Tested", (fsspec.AbstractFileSystem,), methods)
    fsspec.register_implementation("tested", kind, clobber=True)
    refs = {"a/.zarray": json.dumps(metadata_v2("<i2", (4,), (4,))), "a/0": ["tested://b", 0, 8]}
    (folder / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))


@contextlib.contextmanager
def serving(folder, status, failing=None):
    """Serve files, but answer with a status for folders, and with others for failing requests.

    These are the ends of methods and paths, with " range" behind them if one is requested. The
    answer 200 is a login form.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_head(self):
            request = f"{self.command} {self.path}"
            ends = (request, f"{request} range") if "Range" in self.headers else (request,)
            answers = [
                answer
                for end, answer in (failing or {}).items()
                if any(each.endswith(end) for each in ends)
            ]
            if answers and answers[0] == 200:
                page = b"<!DOCTYPE html>\n<html><form>password</form></html>"
                self.send_response(200)
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                return io.BytesIO(page)
            if answers:
                self.send_error(answers[0])
                return None
            return super().send_head()

        def list_directory(self, _):
            self.send_error(status)

        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class TestKindsOfStores:
    @pytest.mark.parametrize("status", [403, 404])
    @pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
    def test_a_web_server_that_lists_nothing(self, healthy, status):
        """Arrays are found by consolidated metadata; Python's own server ignores ranges."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        healthy.joinpath("plain/c/0/0").write_bytes(bytes(5))
        zarr.consolidate_metadata(healthy / "v2", zarr_format=2)
        (healthy / "v2").rename(healthy.parent / "v2")
        zarr.consolidate_metadata(healthy)

        with serving(healthy.parent, status) as url:
            of_v2 = check(f"{url}/v2").items()
            found = check(f"{url}/healthy") | {f"v2/{path}": each for path, each in of_v2}
        present = "1 of 3 chunks are present; the missing ones are read as the fill value"
        assert (found["plain"].notes, found["empty"].notes) == ([present], [])
        assert found.keys() == PARTIAL_READS.keys()
        assert [path for path, report in found.items() if report.problems] == ["plain"]
        (problem,) = found["plain"].problems
        assert problem.startswith("chunk plain/c/0/0 holds 5 bytes, expected 112: if it is trunca")
        why = "it answers a range with status 200 and no Content-Range instead of bytes 0-0"
        no = f"no: the store does not serve byte ranges as requested ({why})"
        assert found["bools"].partial_reads == no

    def test_an_empty_object_in_a_bucket(self, s3_server, s3_client, caplog):
        """No byte of it can be requested, so the server was said to serve no ranges."""
        pytest.importorskip("s3fs", reason="pip install '.[stores]'")
        client = {"endpoint_url": s3_server, "region_name": "us-east-1"}
        options = {"key": "key", "secret": "secret", "client_kwargs": client}
        options["skip_instance_cache"] = True
        url = "s3://data/empty.zarr"
        store = zarr.storage.FsspecStore.from_url(url, storage_options=options)
        settings = {"shape": (2000, 100), "chunks": (1000, 100), "dtype": "f4"}
        zarr.create_array(store, compressors=None, **settings)[...] = 1
        s3_client.put_object(Bucket="data", Key="empty.zarr/c/0/0", Body=b"")
        (report,) = checks.check(store)
        assert report.partial_reads == "yes"
        (problem,) = report.problems
        assert problem.endswith("expected 400000: it is empty: restore or rewrite it")
        assert caplog.text == ""

    def test_a_web_server_that_fails_for_a_chunk(self, tmp_path):
        """fsspec says of every answer but a chunk that it is missing."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_array(tmp_path / "a", shape=3, chunks=1, dtype="i1", compressors=None)[1:] = 1
        with serving(tmp_path, 403, {"/a/c/1": 500}) as url:
            (report,) = check(f"{url}/a").values()
        (problem,) = report.problems
        assert problem.startswith("chunk c/1 can't be read: the server answers 500 (Int")

    @pytest.mark.parametrize("kind", SMALL)
    def test_a_web_server_that_wants_a_login(self, tmp_path, kind):
        """The data type, the shard or the compressed data was said to be wrong."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_array(tmp_path / "a", shape=4, **SMALL[kind])[:] = 1
        for names in (["/0", "/1", "/2", "/3"], ["/0"]):
            with serving(tmp_path, 403, dict.fromkeys(names, 200)) as url:
                (report,) = check(f"{url}/a").values()
            (problem,) = report.problems
            assert "it is a web page, such as a login form: log in at its server" in problem
            assert "shard" not in problem
        with serving(tmp_path, 403, {"": 200}) as url:
            (report,) = check(f"{url}/a").values()
        (problem,) = report.problems
        assert problem.startswith("its metadata can't be read: zarr.json is not JSON: it is a web")

    @pytest.mark.parametrize("kind", SMALL)
    def test_a_web_server_that_states_lengths_but_forbids_reads(self, tmp_path, kind):
        """Uncompressed arrays had no problems, and were read in part."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_array(tmp_path / "a", shape=2, **SMALL[kind])[:] = 1
        with serving(tmp_path, 403, {"GET /a/c/0": 403}) as url:
            (report,) = check(f"{url}/a").values()
        (problem,) = report.problems
        assert problem.startswith("chunk c/0 can't be read: the server answers 403 (F")
        assert "shard" not in problem
        assert ("not known" in report.partial_reads) is (kind != "zipped")

    @pytest.mark.parametrize("is_down", [False, True])
    def test_a_web_server_that_fails_for_ranges(self, tmp_path, is_down):
        """Arrays were said to be read in part, although no range was sent."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        settings = {"shape": 4, "chunks": 2, "dtype": "i1", "compressors": None}
        zarr.create_array(tmp_path / "a", **settings)[:] = 1
        failing = {"GET /a/c/0": 500, "GET /a/c/1": 500} if is_down else {" range": 500}
        with serving(tmp_path, 403, failing) as url:
            (report,) = check(f"{url}/a").values()
        assert len(report.problems) == is_down
        if not is_down:
            assert report.partial_reads.startswith("not known: the request for a byte range fail")
            assert "500" in report.partial_reads

    def test_a_web_server_that_wants_a_login_for_chunks(self, tmp_path):
        """It lists the folder of the array: the chunks were said to be missing."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        settings = {"shape": 4, "chunks": 2, "dtype": "i4", "compressors": None}
        zarr.create_array(tmp_path, **settings)[:] = 1
        (tmp_path / "index.html").write_text(
            '<a href="zarr.json">zarr.json</a> <a href="c/">c/</a>'
        )
        answers = dict.fromkeys(("/c/", "/c", "/c/0", "/c/1"), 200)
        with serving(tmp_path, 404, answers) as url:
            (report,) = check(url).values()
        assert "it is a web page, such as a login form" in str(report.problems)

    @pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_a_data_set_on_a_web_server_that_lists_nothing(self, tmp_path, zarr_format):
        """It was said to have lost the metadata of its root."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        group = zarr.create_group(tmp_path, zarr_format=zarr_format)
        for name in ("t", "below/u", "u"):
            of_v2 = {"attributes": {"_ARRAY_DIMENSIONS": ["t"]}}
            named = of_v2 if zarr_format == 2 else {"dimension_names": ["t"]}
            group.create_array(name, shape=4, dtype="i1", compressors=None, **named)[:] = 1
        zarr.consolidate_metadata(tmp_path, zarr_format=zarr_format)
        with serving(tmp_path, 404) as url:
            found = check(url)
        assert sorted(found) == ["below/u", "t", "u"]
        assert not any(each.problems for each in found.values())

    @pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
    def test_shards_on_a_web_server_without_byte_ranges(self, tmp_path):
        """They were said to be damaged, and to be restored."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        settings = {"shape": (8, 6), "shards": (4, 4), "chunks": (2, 2), "dtype": "i4"}
        zarr.create_group(tmp_path).create_array("a", **settings)[...] = 1
        zarr.consolidate_metadata(tmp_path)
        with serving(tmp_path, 404) as url:
            (report,) = check(url).values()
        why = "can't be read: the server ignores byte ranges, and sends whole shards: download the"
        assert report.problems
        assert all(why in problem for problem in report.problems)

    def test_what_another_package_prints(self, tmp_path, capsys):
        """The document in JSON was none."""

        def cat_file(*_args, **_options):
            sys.stdout.write("Corrupted thrift data")
            raise OSError("damaged")

        write_references_to(tmp_path, cat_file)
        assert main(["check", "--json", str(tmp_path / "a.json")]) == 1
        printed = capsys.readouterr()
        assert json.loads(printed.out)["num_problems"] == 1
        assert "Corrupted thrift data" in printed.err

    def test_a_web_server_that_sends_a_page_for_what_is_missing(self, tmp_path):
        """As those of single-page applications do: a healthy array had a problem."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_array(tmp_path, shape=4, dtype="i4", compressors=None)[:] = 1
        with serving(tmp_path, 200, dict.fromkeys(("/.zarray", "/.zattrs"), 200)) as url:
            assert not any(report.problems for report in check(url).values())

    @pytest.mark.parametrize("answer", ["file", "login"])
    def test_references_to_a_server_that_ignores_ranges(self, tmp_path, answer):
        """The bytes of each chunk were said to reach beyond the end of the file."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        (tmp_path / "file").write_bytes(bytes(64))
        refs = {".zarray": json.dumps(metadata_v2("<i2", (12,), (4,)))}
        with serving(tmp_path, 403, {"/file": 200} if answer == "login" else None) as url:
            refs |= {f"{i}": [f"{url}/file", 8 * i, 8] for i in range(3)}
            (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
            (report,) = check(tmp_path / "a.json").values()
        (problem,) = report.problems
        why = "it is a web page" if answer == "login" else "the server ignored the byte range, and "
        first = f"each of its 3 chunks, such as 0 (8 bytes at offset 0 of {url}/file), "
        assert problem.startswith(f"{first}can't be read: {why}")

    @pytest.mark.parametrize(
        ("answer", "why"),
        [
            (401, "the server answers 401 (Unauthorized): log in, or give credentials in the "),
            (403, "the server answers 403 (Forbidden): log in, or give credentials in the "),
            (404, "its file is missing: restore it, or make the references again"),
            (503, "the server answers 503 (Service Unavailable): try again later"),
        ],
    )
    def test_references_to_what_a_server_does_not_serve(self, tmp_path, answer, why):
        """Each chunk was listed, with its target twice, but without what the server answers."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        refs = {".zarray": json.dumps(metadata_v2("<i2", (12,), (4,)))}
        with serving(tmp_path, 403, {f"/file{i}": answer for i in range(3)}) as url:
            refs |= {f"{i}": [f"{url}/file{i}", 8 * i, 8] for i in range(3)}
            (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
            (report,) = check(tmp_path / "a.json").values()
        first = f"each of its 3 chunks, such as 0 (8 bytes at offset 0 of {url}/file0), "
        (problem,) = report.problems
        assert problem.startswith(f"{first}can't be read: {why}")

    def test_a_reference_to_a_folder(self, tmp_path):
        """To move the folder away was advised."""
        pytest.importorskip("fsspec")
        (tmp_path / "folder").mkdir()
        refs = {".zarray": json.dumps(metadata_v2("<i2", (4,), (4,)))}
        refs["0"] = [f"{tmp_path}/folder"]
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
        (report,) = check(tmp_path / "a.json").values()
        (problem,) = report.problems
        assert problem.endswith("can't be read: its file is a folder: make the references again")

    @pytest.mark.parametrize("name", ["a.zip", "a.json", "a"])
    @pytest.mark.parametrize("stored", ["version https://git-lfs", "<!DOCTYPE html><html>"])
    def test_what_stands_for_a_store(self, tmp_path, name, stored):
        """Each was said to be neither a zip file nor references, and perhaps plain numbers."""
        pytest.importorskip("fsspec")
        (tmp_path / name).write_text(stored)
        why = "Git LFS: fetch" if "git" in stored else "it is a web page, such as a login form"
        with pytest.raises((OSError, ValueError), match=why) as caught:
            check(tmp_path / name)
        assert "\n" not in str(caught.value)

    def test_a_url_of_references_without_their_file(self):
        """It named an argument of fsspec's."""
        pytest.importorskip("fsspec")
        with pytest.raises(ValueError, match="give the file or URL of the references instead"):
            check("reference://a")

    def test_a_web_server_that_forbids_to_list_a_group(self, tmp_path):
        """There was "no Zarr array"."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_group(tmp_path / "a").create_array("b", shape=4, dtype="i1")
        with serving(tmp_path, 403) as url, pytest.raises(OSError, match="403") as caught:
            check(f"{url}/a")
        assert "give the path or URL of an array, or consolidate metadata" in str(caught.value)

    def test_what_a_web_server_does_not_serve(self, tmp_path):
        """The answers named only the URL, an argument of fsspec, or a file that is there."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        zarr.create_group(tmp_path / "group").create_array("a", shape=4, dtype="i1")
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            zarr.create_array(store, shape=4, dtype="i1")
        answers = {
            "group": "it is a group whose arrays the store does not list: give the path or URL of ",
            "none.json": "there is no such file: http",
            "a.zip": "the server serves no byte ranges: download the zip file",
        }
        with serving(tmp_path, 404) as url:
            for name, answer in answers.items():
                with pytest.raises((OSError, ValueError), match=answer):
                    check(f"{url}/{name}")
            with pytest.raises(ValueError, match="takes no such storage options: .*'foo'"):
                list(checks.check(f"{url}/group", storage_options={"foo": 1}))

    @pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
    @pytest.mark.parametrize("kind", ["json", "parq"])
    @pytest.mark.parametrize(
        ("reference", "problem"),
        [
            (b"\xff1234567", ""),
            ("12345678", ""),
            (["{}", 2, 8], ""),
            (["{}"], "holds 20 bytes, expected 8: the reference means all of its fi"),
            (b"\xff234567", "holds 7 bytes, expected 8: make the references again; if the m"),
            (b"", "holds 0 bytes, expected 8: make the references again; if the m"),
            (["{}", 13, 8], "holds 7 bytes, expected 8: if the reference is wrong, "),
            (["memory://a", 2, 8], ""),
            (["memory://a", 13, 8], "can't be read: its 8 bytes end after the end of the file"),
            (["memory://no", 0, 8], "can't be read: "),
            (["{}no"], "can't be read: "),
        ],
        ids=str,
    )
    def test_what_references_hold(self, tmp_path, kind, reference, problem):
        """Bytes in base64 were taken for as many as it has characters."""
        fsspec = pytest.importorskip("fsspec")
        fsspec.filesystem("memory").pipe("/a", bytes(20))
        (tmp_path / "file").write_bytes(bytes(20))
        if isinstance(reference, bytes):
            reference = "base64:" + base64.b64encode(reference).decode()
        elif isinstance(reference, list):
            reference[0] = reference[0].format(f"file://{tmp_path}/file")
        refs = {".zgroup": json.dumps({"zarr_format": 2}), "a/2": reference}
        refs["a/.zarray"] = json.dumps(metadata_v2("<i2", (12,), (4,)))
        path = tmp_path / f"a.{kind}"
        if kind == "json":
            path.write_text(json.dumps({"version": 1, "refs": refs}))
        else:
            pytest.importorskip("fastparquet")
            path.mkdir()
            pytest.importorskip("kerchunk.df").refs_to_dataframe(refs, str(path))
        target, part = " (inlined in the references)", "8 bytes at offset {1} of "
        if isinstance(reference, list):
            target = f" ({part * (len(reference) > 1)}{{0}})".format(*reference)
        is_memory = "memory:" in str(reference)
        options = {"remote_protocol": "memory", "remote_options": {}} if is_memory else None
        (report,) = checks.check(path, storage_options=options)
        (note,) = report.notes
        assert note == "1 of 3 chunks are present; the missing ones are read as the fill value"
        assert len(report.problems) == bool(problem)
        assert all(found.startswith(f"chunk a/2{target} {problem}") for found in report.problems)

    @pytest.mark.parametrize(
        ("document", "why"),
        [
            ({"refs": [1, 2]}, 'not a kerchunk reference file, which is a JSON object with "refs"'),
            ({"refs": {"a/0": ["{{v}}/x"], ".zgroup": "{}"}}, "malformed: they lack 'v'; restore"),
        ],
    )
    def test_malformed_references(self, tmp_path, document, why):
        """Errors of fsspec were raised, without a remedy."""
        pytest.importorskip("fsspec")
        references = {"version": 1, "templates": {"u": "x"}} | document
        (tmp_path / "a.json").write_text(json.dumps(references))
        with pytest.raises(ValueError, match=re.escape(why)):
            check(tmp_path / "a.json")

    def test_relative_references(self, tmp_path, monkeypatch):
        """Their file was said to be missing."""
        pytest.importorskip("fsspec")
        refs = {"a/.zarray": json.dumps(metadata_v2("<i2", (4,), (4,))), "a/0": ["raw", 0, 8]}
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, "refs": refs}))
        (tmp_path / "raw").write_bytes(bytes(8))
        (tmp_path / "b").mkdir()
        monkeypatch.chdir(tmp_path / "b")
        (problem,) = check(tmp_path / "a.json")["a"].problems
        assert (
            f"raw is missing: it is relative to the current folder, {tmp_path / 'b'}: ru" in problem
        )
        monkeypatch.chdir(tmp_path)
        assert check(tmp_path / "a.json")["a"].problems == []

    def test_what_is_at_a_url(self, tmp_path):
        """It was judged by its name; what is not what its name says, was, too."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        (tmp_path / "a.nc").write_bytes(b"CDF\1")
        (tmp_path / "a.tif").write_bytes(b"II*\0")
        (tmp_path / "b.nc").write_bytes(b"")
        zarr.create_array(tmp_path / "zarr.nc", shape=4, dtype="i1")
        with serving(tmp_path, 404) as url:
            for name, what in {"a.nc": "a NetCDF-3 file", "a.tif": "a TIFF file"}.items():
                with pytest.raises(ValueError, match=f"this is {what}, not Zarr: see "):
                    check(f"{url}/{name}")
            assert check(f"{url}/b.nc") == {}
            assert check(f"{url}/zarr.nc").keys() == {""}

    @pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
    def test_references(self, tmp_path):
        """Those of kerchunk, in JSON and in Parquet."""
        io = pytest.importorskip("scipy.io")
        pytest.importorskip("fastparquet")
        netcdf_3 = pytest.importorskip("kerchunk.netCDF3")
        frames = pytest.importorskip("kerchunk.df")
        with io.netcdf_file(tmp_path / "a.nc", "w") as file:
            file.createDimension("x", 400)
            file.createVariable("v", "f4", ("x",))[:] = np.arange(400)
        references = netcdf_3.NetCDF3ToZarr((tmp_path / "a.nc").as_posix()).translate()
        (tmp_path / "a.json").write_text(json.dumps(references))
        (tmp_path / "a.parq").mkdir()
        frames.refs_to_dataframe(references, str(tmp_path / "a.parq"))
        for name in ("a.json", "a.parq"):
            (report,) = check(tmp_path / name).values()
            assert (report.path, report.num_chunks) == ("v", 1)
            assert (report.partial_reads, report.problems, report.notes) == ("yes", [], [])
        os.truncate(tmp_path / "a.nc", (tmp_path / "a.nc").stat().st_size - 1)
        (report,) = check(tmp_path / "a.json").values()
        target = f"1600 bytes at offset 80 of {(tmp_path / 'a.nc').as_posix()}"
        why = "holds 1599 bytes, expected 1600: if the reference is wrong, make the references ag"
        (problem,) = report.problems
        assert problem.startswith(f"chunk v/0 ({target}) {why}")
        (tmp_path / "a.nc").unlink()
        (report,) = check(tmp_path / "a.json").values()
        why = "its file is missing: restore it, or make the references again"
        assert f"{target}) can't be read: {why}" in report.problems[0]

    @pytest.mark.filterwarnings("ignore:Duplicate name")
    def test_a_chunk_that_is_twice_in_a_zip_file(self, tmp_path):
        """It was counted twice, as if no other was missing."""
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            array = zarr.create_array(store, shape=6, chunks=2, dtype="i2", compressors=None)
            array[:4] = 1
            array[:2] = 2
        (report,) = check(tmp_path / "a.zip").values()
        assert report.num_chunks == 2
        assert report.notes == [
            "2 of 3 chunks are present; the missing ones are read as the fill value"
        ]

    @pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
    @pytest.mark.parametrize("is_damaged", [False, True])
    def test_a_damaged_file_of_references_in_parquet(self, tmp_path, is_damaged):
        """zarr reads its chunks as missing, and so did this."""
        pytest.importorskip("fastparquet")
        frames = pytest.importorskip("kerchunk.df")
        refs = {".zgroup": json.dumps({"zarr_format": 2}), "a/.zattrs": "{}"}
        refs["a/.zarray"] = json.dumps(metadata_v2("<i2", (12,), (4,)))
        refs |= {f"a/{k}": [f"{tmp_path}/raw", 8 * k, 8] for k in range(3)}
        (tmp_path / "raw").write_bytes(bytes(24))
        path = tmp_path / "a.parq"
        path.mkdir()
        frames.refs_to_dataframe(refs, str(path), record_size=2)
        if is_damaged:
            (path / "a/refs.1.parq").write_bytes(b"PAR1 damaged")
        (report,) = checks.check(path)
        (path / "a/refs.0.parq").write_bytes(b"PAR1 damaged")  # fsspec reads it at once
        with pytest.raises(ValueError, match=r"malformed: .*; restore the references, or make"):
            open_store(path)
        assert len(report.problems) == is_damaged
        why = "can't be read: the file that holds its reference is damaged, so zarr reads the fill"
        assert all(problem.startswith(f"chunk a/2 {why} value") for problem in report.problems)

    @pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")
    def test_a_missing_file_of_references_in_parquet(self, tmp_path):
        """A note named no file, and stood at all arrays."""
        pytest.importorskip("fsspec")
        pytest.importorskip("fastparquet")
        frames = pytest.importorskip("kerchunk.df")
        refs = {".zgroup": json.dumps({"zarr_format": 2})}
        for name in "ab":
            refs[f"{name}/.zarray"] = json.dumps(metadata_v2("<i2", (12,), (4,)))
            refs |= {f"{name}/{k}": [f"{tmp_path}/raw", 8 * k, 8] for k in range(3)}
        (tmp_path / "raw").write_bytes(bytes(24))
        path = tmp_path / "a.parq"
        path.mkdir()
        frames.refs_to_dataframe(refs, str(path), record_size=1)
        (path / "b/refs.2.parq").unlink()
        found = {report.path: report.notes for report in checks.check(path)}
        assert found.pop("a") == []
        (note,) = found["b"]
        assert note.startswith("2 of 3 chunks are present; the missing ones are read as the fill")
        assert note.endswith(f"; {path}/b/refs.2.parq does not exist: if it was lost, restore it")

    def test_a_damaged_member_of_a_zip_file(self, healthy):
        """What precedes its bytes gives another name."""
        archive = Path(shutil.make_archive(str(healthy), "zip", healthy / "plain"))
        archive.write_bytes(archive.read_bytes().replace(b"c/0/0", b"c/9/0", 1))
        (report,) = check(archive).values()
        (problem,) = report.problems
        assert problem.startswith("chunk c/0/0 can't be read: BadZipFile: ")
        assert problem.count(": restore the archive") == 1

    def test_a_damaged_compressed_member_of_a_zip_file(self, tmp_path):
        """Its problem was an error of zlib, without a remedy."""
        zarr.create_array(tmp_path / "a", shape=2000, dtype="i8", compressors=None)[:] = 1
        with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("zarr.json", "c/0"):
                archive.write(tmp_path / "a" / name, name)
            start = archive.getinfo("c/0").header_offset
        raw = bytearray((tmp_path / "a.zip").read_bytes())
        raw[start + 40 : start + 60] = b"\xff" * 20
        (tmp_path / "a.zip").write_bytes(raw)
        (problem,) = check(tmp_path / "a.zip")[""].problems
        assert problem.endswith(": restore the archive")

    @pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    @pytest.mark.parametrize(
        "settings",
        [
            {"compressors": None},
            {"compressors": "auto"},
            {"compressors": None, "dtype": "?"},
            {"compressors": None, "chunks": (1, 1), "shards": (2, 2)},
        ],
        ids=["uncompressed", "compressed", "bools", "shards"],
    )
    def test_a_damaged_byte_in_a_zip_file(self, tmp_path, settings, compression):
        """Of uncompressed chunks, only the lengths were checked."""
        data = np.eye(4)
        chunks = {"chunks": (2, 2), "dtype": data.dtype} | settings
        path, name = tmp_path / "a.zip", "c/1/1"
        with zarr.storage.ZipStore(path, mode="w", compression=compression) as store:
            zarr.create_array(store, shape=data.shape, **chunks)[...] = data
        assert not check(path)[""].problems
        with zipfile.ZipFile(path) as archive:
            start = archive.getinfo(name).header_offset + 30 + len(name)
        raw = bytearray(path.read_bytes())
        raw[start + 3] ^= 1
        path.write_bytes(raw)
        (problem,) = check(path)[""].problems
        assert problem.startswith(f"chunk {name} can't be read: ")
        if settings.get("compressors") is None and compression == zipfile.ZIP_STORED:
            assert f"BadZipFile: Bad CRC-32 for file '{name}'" in problem

    @pytest.mark.parametrize("shards", [None, (4, 4)])
    def test_long_members_of_a_zip_file(self, tmp_path, shards):
        """Their checksums are not checked."""
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            array = zarr.create_array(
                store, shape=(4, 8), chunks=(2, 2), shards=shards, dtype="f8", compressors=None
            )
            array[...] = 1
        size, num = (16 * 8 + 4 * 16 + 4, 2) if shards else (4 * 8, 8)
        for limit in (size, size - 1):
            limits = checks.Limits(max_chunk_bytes=limit)
            (report,) = checks.check(tmp_path / "a.zip", limits)
            assert not report.problems
            what = f"the checksums of {num} of {num} members of the zip archive were not checked"
            expected = [] if limit == size else [f"{what}: the limit is {limit} bytes"]
            assert report.notes == expected

    @pytest.mark.long
    def test_a_store_that_can_not_list_is_not_asked_for_ever(self):
        class Unlisted(zarr.storage.MemoryStore):
            supports_listing = False

        store = Unlisted()
        zarr.create_array(store, shape=2**45, chunks=1, dtype="i1", compressors=None)[:3] = 1
        (report,) = checks.check(store)
        assert report.num_chunks == 3
        (note,) = report.notes
        assert note.startswith("10000 of 35184372088832 possible chunk names were tried, because")

    def test_a_missing_package_is_named(self, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ImportError, match=r"needs fsspec: pip install .*\[stores\]"):
            list(checks.check("http://127.0.0.1/a"))


class TestCommand:
    def test_report(self, healthy, capsys):
        """Arrays without problems are counted, but not printed with --only-problems."""
        assert main(["check", str(healthy)]) == 0
        out = capsys.readouterr().out
        assert "/plain                           float32          partial reads: yes\n" in out
        assert "12 arrays, 11 chunks, 0 problems\n" in out
        healthy.joinpath("plain/c/0/0").write_bytes(bytes(5))
        assert main(["check", str(healthy), "--only-problems"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["/plain", "PROBLEM", "note", "12"]
        assert lines[-1] == "12 arrays, 11 chunks, 1 problem (15 notes not shown)"
        assert main(["--json", "check", str(healthy), "--only-problems"]) == 1
        array = {"store": str(healthy), **vars(check(healthy)["plain"])}
        numbers = {"num_arrays": 12, "num_chunks": 11, "num_problems": 1}
        found = json.loads(capsys.readouterr().out)
        assert found == {**numbers, "arrays": [array], "unreadable": []}

    def test_names_with_line_breaks_stay_on_one_line(self, tmp_path, capsys):
        write_array(tmp_path / "a\nb\x1b[31m", None, "int16", [BIG])
        assert main(["check", str(tmp_path)]) == 0
        assert "/a\\nb\\x1b[31m " in capsys.readouterr().out

    def test_several_stores(self, tmp_path, capsys):
        good, bad, nowhere = stores = [str(tmp_path / name) for name in ("good", "bad", "nowhere")]
        write_array(tmp_path / "good", bytes(4), "int8", [PLAIN])
        write_array(tmp_path / "bad", bytes(3), "int8", [PLAIN])
        assert main(["check", good, bad]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"{good}/ ")
        assert lines[1].startswith(f"{bad}/ ")
        assert lines[-1] == "2 arrays, 2 chunks, 1 problem"
        assert main(["--json", "check", *stores]) == 2
        printed, why = capsys.readouterr(), f"there is no such file or folder: {nowhere}"
        found = json.loads(printed.out)
        assert [array["store"] for array in found["arrays"]] == [good, bad]
        assert found["unreadable"] == [{"store": nowhere, "error": why}]
        assert printed.err == f"can't read {nowhere}: {why}\n"

    def test_limits(self, healthy, capsys):
        note = "its chunks were not decoded: they have 112 bytes each, the limit is "
        for num_bytes, is_noted in (("111", True), ("112", False), ("0.1KiB", True)):
            limits = ["--max-chunks", "1", "--max-chunk-bytes", num_bytes]
            assert main(["check", str(healthy), *limits]) == 0
            out = capsys.readouterr().out
            assert "note    1 of 3 chunks were checked" in out
            assert (note in out) == is_noted
        for option, value in (("--max-chunks", "0"), ("--max-chunk-bytes", "much")):
            with pytest.raises(SystemExit):
                main(["check", str(healthy), option, value])
            assert f"got {value!r}" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("name", "content", "answer"),
        [
            ("zarr.json", "{}", "this is Zarr metadata: give its folder, {0}\n"),
            ("a.json", "[1]", "this is not a kerchunk reference file, which is a JSON object"),
            ("a.json", '{"refs": {', "this is not JSON, as kerchunk references are: Exp"),
            ("a.nc.gz", "\x1f\x8b\x08", "this is compressed by gzip: decompress it\n"),
            ("a.txt", "text", "neither a zip archive nor references, whose name ends in .json;"),
            ("a.nc", "", "the file is empty: expected an archive with zarr.json or .zarray"),
            (
                "a.nc",
                "CDF\1rest",
                'NetCDF-3 file, not Zarr: see "How do I read a NetCDF-3 file?"',
            ),
            (
                "a.b.nc",
                "\x89HDF",
                'NetCDF-4 file, not Zarr: see "How do I read an HDF5 file?" in t',
            ),
            ("a", "II+\0", 'TIFF file, not Zarr: see "How do I read a multi-page TIFF?" in the '),
            ("a", "SIMPLE  =", 'FITS file, not Zarr: see "How do I read a FITS image?" in the doc'),
            ("a", "\x93NUMPY\1", "NumPy file, not Zarr: open it with numpy.load"),
            ("a", "GRIB\0", "GRIB file, not Zarr: open it with xarray and cfgrib, or make refer"),
        ],
    )
    def test_files_that_are_no_stores(self, tmp_path, capsys, name, content, answer):
        """The answer says what to give instead, without a traceback."""
        if name == "a.json":
            pytest.importorskip("fsspec")
        path = tmp_path / name
        path.write_text(content, encoding="latin-1")
        assert main(["check", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"can't read {path}: {'this is ' if content else ''}")
        assert answer.replace("{0}", str(tmp_path)) in error

    @pytest.mark.parametrize(
        ("data_type", "fill_value"),
        [
            ("r24", [0, 0, 0]),
            ({"name": "struct", "configuration": FIELDS}, {}),
            ({"name": "struct", "configuration": {"fields": [["a", "r16"]]}}, {}),
            ("uint8", 0),
        ],
    )
    def test_what_zarr_opens_only_after_an_import(self, tmp_path, data_type, fill_value):
        """zarr before 3.4.1 loads no data types; its error does not say what to do."""
        write_array(tmp_path / "a", None, data_type, [BIG], fill_value=fill_value)
        open_it = f"import zarr; zarr.open_array({str(tmp_path / 'a')!r})"
        done = run_program("-W", "ignore", "-c", open_it, status=None)
        (report,) = checks.check(tmp_path / "a")
        hint = "import numcodecs_bytes.zarr_data_types"
        assert (hint in str(report.notes)) == bool(done.returncode)
        run_program("-W", "ignore", "-c", f"{hint}; {open_it}")

    def test_a_zip_file_that_is_truncated(self, tmp_path):
        """It was called neither a zip file nor references."""
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("zarr.json", "{}")
        os.truncate(tmp_path / "a.zip", 40)
        with pytest.raises(ValueError, match="the zip archive is damaged or truncated"):
            open_store(tmp_path / "a.zip")

    def test_files_and_folders_that_are_no_stores(self, tmp_path):
        """The error named a file that nobody had given, or nothing that helps."""
        zipfile.ZipFile(tmp_path / "a.zip", "w").close()
        (tmp_path / "b.zip").write_bytes(b"")
        write_array(tmp_path / "a.zarr", bytes(4), "int8", [PLAIN])
        answers = {
            "a.zip": "the zip archive is empty: expected an archive with zarr.json or .zarray",
            "b.zip": "the file is empty: expected an archive with zarr.json or .zarray",
            "a.zarr/c/0": "this is a file in a Zarr array or group: give its folder, "
            f"{tmp_path / 'a.zarr'}",
        }
        (tmp_path / "a.parq").write_bytes(b"PAR1")
        (tmp_path / "b.parq").mkdir()
        if importlib.util.find_spec("fastparquet") and importlib.util.find_spec("fsspec"):
            what = "references in Parquet are a folder: give the one that has the file .zmetadata"
            answers |= {"a.parq": what, "b.parq": what}
        for name, answer in answers.items():
            with pytest.raises(ValueError, match=re.escape(answer) + "$"):
                check(tmp_path / name)

    def test_recipes_that_answers_name(self):
        """They say how to read files of other formats."""
        recipes = Path(__file__).parents[1].joinpath("docs/recipes.md").read_text(encoding="utf-8")
        source = Path(locations.__file__).read_text(encoding="utf-8")
        named = re.findall(r"How do I [^\"']+\?", source)
        assert len(named) == 5
        assert all(f"## {recipe}\n" in recipes for recipe in named)

    @pytest.mark.parametrize(
        ("location", "status", "answer"),
        [
            ("{}/nowhere", 2, "there is no such file or folder"),
            ("{}", 1, "expected zarr.json or .zarray there"),
            ("no://such", 2, "can't read no://such: "),
            ("file://{}/nowhere", 2, "there is no such file or folder"),
            ("file:{}", 2, "; if this is a URL, it begins with file://"),
            ("~/nowhere", 2, "; shells replace ~ only if it is not quoted"),
            # fsspec lists a file as a folder that contains itself: the search had no end.
            ("file://{}/a.tif", 2, "this is a TIFF file, not Zarr: see "),
        ],
    )
    def test_nothing_to_check(self, tmp_path, capsys, location, status, answer):
        (tmp_path / "a.tif").write_bytes(b"II*")
        assert main(["check", at(location, tmp_path)]) == status
        printed = capsys.readouterr()
        assert answer in printed.err
        assert printed.out == ("0 arrays, 0 chunks, 0 problems\n" if status == 1 else "")

    @pytest.mark.parametrize("name", ["a.zip", ""])
    @pytest.mark.parametrize("is_hidden", [False, True])
    def test_a_store_that_may_not_be_read(self, tmp_path, monkeypatch, capsys, name, is_hidden):
        """Since CPython 3.14, `Path.exists` hides it: it was said not to exist."""
        if is_hidden:
            monkeypatch.setattr(Path, "exists", os.path.exists)
            monkeypatch.setattr(Path, "is_file", os.path.isfile)
        path = tmp_path / name
        with contextlib.suppress(IsADirectoryError):
            path.write_bytes(b"")
        main(["check", str(path)])  # imports what others may not be allowed to read
        capsys.readouterr()
        with denied(path):
            assert main(["check", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"can't read {path}: PermissionError: ")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "wrong", [{"limits": 10}, {"icechunk_ref": "main"}, {"storage_options": "x"}]
)
def test_arguments_of_a_wrong_type(tmp_path, wrong):
    with pytest.raises(TypeError, match=rf"{next(iter(wrong))} must be .*, got "):
        list(checks.check(tmp_path, **wrong))


@pytest.mark.parametrize(
    ("limits", "error"),
    [(("a",), TypeError), ((True,), TypeError), ((None, "1GB"), TypeError), ((-1,), ValueError)],
)
def test_limits_are_whole_numbers(limits, error):
    """They became problems of the data."""
    with pytest.raises(error, match="max_chunk.* must be"):
        checks.Limits(*limits)


def test_limits_of_numpy(tmp_path):
    array = zarr.create_array(tmp_path, shape=8, chunks=2, dtype="u1")
    array[...] = 1
    (report,) = checks.check(tmp_path, limits=checks.Limits(np.int64(1), np.uint32(8)))
    assert report.num_chunks == 1


def test_a_path_of_another_class(tmp_path):
    """Those of universal_pathlib, for example, were refused."""

    class OtherPath(os.PathLike):
        def __fspath__(self):
            return str(tmp_path)

        __str__ = __fspath__

    zarr.create_array(tmp_path, shape=8, dtype="u1")
    assert [report.path for report in checks.check(OtherPath())] == [""]


def test_references_in_many_groups_are_listed_at_once(tmp_path):
    """All were looked at for each group: to check 2,000 groups took twice as long."""
    pytest.importorskip("fsspec", reason="the extra stores is not installed")
    array = zarr.create_array({}, shape=16, chunks=1, dtype="u1", compressors=None, zarr_format=2)
    references = {".zgroup": '{"zarr_format": 2}', "g1/b/10": "x", "g1/b/2": "x"}
    for path in ("g1/a", "g1/b", "g10/a", "g1-/a", "g/a"):
        references[f"{path}/.zarray"] = json.dumps(array.metadata.to_dict())
        references[f"{path}/0"] = "x"
        references[f"{path.partition('/')[0]}/.zgroup"] = references[".zgroup"]
    (tmp_path / "r.json").write_text(json.dumps(references))
    num_looks = 0

    class Counted(dict):
        def __iter__(self):
            nonlocal num_looks
            num_looks += 1
            return super().__iter__()

    store = open_store(tmp_path / "r.json")
    store.fs.references = Counted(store.fs.references)
    num_chunks = {found.path: found.num_chunks for found in checks.check(store)}
    assert num_chunks == {"g/a": 1, "g1-/a": 1, "g1/a": 1, "g1/b": 3, "g10/a": 1}
    assert num_looks == 1


@pytest.mark.parametrize("wrong", [["FILE", 0], 5, None, [], ["FILE", -4, 8], ["FILE", 1, 2, 3]])
def test_a_malformed_reference_among_others(tmp_path, wrong):
    """No array was found."""
    pytest.importorskip("fsspec", reason="the extra stores is not installed")
    (tmp_path / "data").write_bytes(bytes(16))
    references = {".zgroup": '{"zarr_format": 2}'}
    for name in "ab":
        metadata = zarr.create_array(
            {}, shape=4, chunks=2, dtype="<i4", compressors=None, fill_value=None, zarr_format=2
        ).metadata
        references[f"{name}/.zarray"] = json.dumps(metadata.to_dict())
        for i in range(2):
            references[f"{name}/{i}"] = [str(tmp_path / "data"), 8 * i, 8]
    if isinstance(wrong, list):
        wrong = [str(tmp_path / "data") if each == "FILE" else each for each in wrong]
    references["a/1"] = wrong
    (tmp_path / "r.json").write_text(json.dumps(references))
    reports = check(tmp_path / "r.json")
    assert reports["b"].problems == []
    assert len(reports["a"].problems) == 1


def test_a_store_that_is_named_like_references(tmp_path):
    """It was taken for references."""
    array = zarr.create_array(tmp_path / "a.json", shape=4, dtype="i4", compressors=None)
    array[...] = 1
    assert check(tmp_path / "a.json")[""].num_chunks == 1


def test_a_key_with_more_digits_than_python_parses(tmp_path):
    pytest.importorskip("fsspec", reason="the extra stores is not installed")
    metadata = zarr.create_array({}, shape=4, dtype="<i4", compressors=None, zarr_format=2).metadata
    references = {".zarray": json.dumps(metadata.to_dict()), "1" * 5000: "x"}
    (tmp_path / "r.json").write_text(json.dumps(references))
    (report,) = check(tmp_path / "r.json").values()
    assert not any("checked" in problem for problem in report.problems)
