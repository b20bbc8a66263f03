"""Zarr v2 hierarchies made Zarr v3: values are the same, chunks are not touched."""

import errno
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import (
    CHUNKS,
    DTYPES,
    HAS_STRUCT,
    SHAPE,
    bytes_codec,
    random_array,
    run_python,
    write_array,
    write_v2,
)
from zarr.core.buffer import default_buffer_prototype
from zarr.metadata.migrate_v3 import migrate_v2_to_v3

import numcodecs_bytes
from numcodecs_bytes import migrate as migration
from numcodecs_bytes.__main__ import main
from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 specification",
    "ignore:Both zarr",
    "ignore:Object at",
    "ignore:Missing 'endian'",
    "ignore:Consolidated metadata",
    "ignore:Numcodecs codecs are not in the Zarr version 3",
)
BIG = [("a", ">i4"), ("b", ">f8"), ("c", "?"), ("d", "S3"), ("e", [("f", ">u2"), ("g", ">U2")])]
LITTLE = [("a", "<i4"), ("b", "<f8"), ("c", "?")]
STRUCTURES = [BIG, LITTLE] if HAS_STRUCT else []


def create(path, data, chunks=CHUNKS, **settings):
    settings = {"compressors": None, "filters": None} | settings
    array = zarr.create_array(
        path, shape=data.shape, chunks=chunks, dtype=data.dtype, zarr_format=2, **settings
    )
    array[:4] = data[:4]
    return array


def chunks_in(path):
    return {
        file.relative_to(path): (file.stat().st_mtime_ns, file.read_bytes())
        for file in Path(path).rglob("*")
        if file.is_file() and file.name[0].isdigit()
    }


def migrated(path, **options):
    """Migrate a folder and return the status of each path; chunks and Zarr v2 stay as they are."""
    old = {f: f.read_bytes() for f in Path(path).rglob(".z*")}
    before = chunks_in(path)
    found = {r.path: r for r in migrate(path, **options)}
    assert chunks_in(path) == before
    assert {f: f.read_bytes() for f in Path(path).rglob(".z*")} == old
    return found


def edited(path, **changes):
    """Change a document, and return its new text."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path.read_text()


def assert_same(path, data):
    array = zarr.open_array(path, zarr_format=3, mode="r")
    assert array[:4].astype(data.dtype).tobytes() == data[:4].tobytes()
    old = zarr.open_array(path, zarr_format=2, mode="r")
    assert array[4:].astype(data.dtype).tobytes() == old[4:].tobytes()


def read_without_us(path):
    """Return what zarr alone reads at index 1, or its error."""
    program = """
import importlib.metadata, sys
every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **context: (
    d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
)
import zarr
try:
    print(zarr.open_array(sys.argv[1], zarr_format=3)[1].tolist())
except ValueError as error:
    print(error)
assert "numcodecs_bytes" not in sys.modules
"""
    return run_python("-W", "ignore", "-c", program, path).stdout.strip()


# Older versions of numcodecs have it only beside another package.
CRC32C = getattr(numcodecs, "CRC32C", numcodecs.CRC32)


class TestArrays:
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", [*DTYPES, *STRUCTURES], ids=str)
    def test_every_data_type(self, tmp_path, dtype, order):
        """zarr's own tool takes every structure for little endian: 1 would be 16777216."""
        data = random_array(dtype, SHAPE)
        create(tmp_path, data, order=order)
        (report,) = migrated(tmp_path).values()
        assert (report.status, report.reasons) == ("migrated", [])
        assert_same(tmp_path, data)
        assert problems_of(tmp_path) == []

    @pytest.mark.matrix
    @pytest.mark.parametrize("endian", ["little", "big"])
    @pytest.mark.parametrize("where", ["filters", "compressors"])
    @pytest.mark.parametrize("dtype", ["<f8", ">i4", "?", ">U3", *STRUCTURES[1:]], ids=str)
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_the_codec_bytes(self, tmp_path, dtype, where, endian, order):
        data = random_array(dtype, SHAPE)
        codec = numcodecs_bytes.Bytes(endian, data.dtype)
        create(tmp_path, data, order=order, **{where: [codec] if where == "filters" else codec})
        (report,) = migrated(tmp_path).values()
        assert (report.status, report.reasons) == ("migrated", [])
        assert_same(tmp_path, data)

    @pytest.mark.matrix
    @pytest.mark.parametrize(
        "compressor",
        [
            numcodecs.Zstd(3),
            numcodecs.GZip(1),
            numcodecs.Blosc("lz4", shuffle=1),
            numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.AUTOSHUFFLE),
            numcodecs.Zlib(1),
            numcodecs.BZ2(1),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("dtype", ["<f8", ">i4", *STRUCTURES[:1]], ids=str)
    @pytest.mark.parametrize("is_filtered", [False, True])
    def test_compressors(self, tmp_path, dtype, compressor, is_filtered):
        data = random_array(dtype, SHAPE)
        filters = [numcodecs_bytes.Bytes("big", data.dtype)] if is_filtered else None
        create(tmp_path, data, compressors=compressor, filters=filters)
        (report,) = migrated(tmp_path).values()
        assert (report.status, report.reasons) == ("migrated", [])
        is_specified = compressor.codec_id in ("zstd", "gzip", "blosc")
        assert bool(report.notes) != is_specified
        assert_same(tmp_path, data)

    def test_filters(self, tmp_path):
        data = np.arange(np.prod(SHAPE), dtype="<i4").reshape(SHAPE)
        for name, filters in {
            "alone": [numcodecs.Delta("<i4")],
            "and bytes": [numcodecs.Delta("<i4"), numcodecs_bytes.Bytes("big", "<i4")],
        }.items():
            create(tmp_path / name, data, filters=filters)
            (report,) = migrated(tmp_path / name).values()
            assert (report.status, report.reasons) == ("migrated", []), name
            assert_same(tmp_path / name, data)

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["<f8", ">i4"])
    @pytest.mark.parametrize(
        "case",
        [
            ([numcodecs.Shuffle(4)], numcodecs.Zlib(1), ["shuffle", "zlib"]),
            ([numcodecs.Shuffle(8)], None, ["shuffle"]),
            ([numcodecs.Shuffle(2), numcodecs.Zlib(1)], numcodecs.Zstd(), ["shuffle", "zlib"]),
            (["bytes", numcodecs.Shuffle(4)], numcodecs.Blosc(), ["shuffle"]),
            (["delta", numcodecs.Shuffle(4)], numcodecs.GZip(), ["delta", "shuffle"]),
            ([numcodecs.CRC32()], numcodecs.LZ4(), ["crc32", "lz4"]),
            ([numcodecs.Adler32(), CRC32C()], None, ["adler32", CRC32C.codec_id]),
            ([numcodecs.Fletcher32()], numcodecs.BZ2(), ["fletcher32", "bz2"]),
            ([numcodecs.JenkinsLookup3()], None, ["jenkins_lookup3"]),
        ],
        ids=str,
    )
    def test_filters_of_bytes(self, tmp_path, case, dtype, order):
        """shuffle and zlib, the classic of HDF5, were refused."""
        filters, compressor, names = case
        data = random_array(dtype, SHAPE)
        of_array = {
            "bytes": numcodecs_bytes.Bytes("big", dtype),
            "delta": numcodecs.Delta(dtype, dtype),
        }
        create(
            tmp_path,
            data,
            filters=[of_array.get(f, f) if isinstance(f, str) else f for f in filters],
            compressors=compressor,
            order=order,
        )
        (report,) = migrated(tmp_path).values()
        assert (report.status, report.reasons) == ("migrated", [])
        assert_same(tmp_path, data)
        found = [
            codec["name"] for codec in json.loads((tmp_path / "zarr.json").read_text())["codecs"]
        ]
        assert [n for n in found if n.startswith("numcodecs.")] == [f"numcodecs.{n}" for n in names]
        (note,) = report.notes
        assert all(f"numcodecs.{name}" in note for name in names)

    @pytest.mark.parametrize(
        ("dtype", "filters"),
        [
            ("<i4", [numcodecs.Delta("<i4", ">i2")]),
            ("<f8", [numcodecs.FixedScaleOffset(0, 1, "<f8", ">i2")]),
            (">f8", [numcodecs.AsType("<f4", ">f8")]),
            (">f8", [numcodecs.Quantize(2, ">f8")]),
            ("|u1", [numcodecs.Delta("|u1", ">i2")]),
        ],
        ids=str,
    )
    def test_filters_that_hand_on_another_byte_order(self, tmp_path, dtype, filters):
        """The first chunk is zeros, which are the same in both; as are arrays without chunks."""
        data = np.zeros(4, dtype)
        array = create(tmp_path, data, chunks=(2,), filters=filters, fill_value=1)
        array[:] = [0, 0, 1, 2]
        expected = array[:].tolist()
        (report,) = migrated(tmp_path).values()
        if report.status == "migrated":
            assert zarr.open_array(tmp_path, zarr_format=3)[:].tolist() == expected
        else:
            assert report.status == "refused"

    @pytest.mark.parametrize("dtype", ["<c8", "<U3", ">i4", "<f4", "S3", "V3", "?", ">M8[s]"])
    def test_no_fill_value(self, tmp_path, dtype):
        write_v2(tmp_path / "a", None, dtype=np.dtype(dtype).str, fill_value=None)
        expected = zarr.open_array(tmp_path / "a", zarr_format=2)[:]
        (report,) = migrated(tmp_path / "a").values()
        assert (report.status, report.reasons) == ("migrated", [])
        got = zarr.open_array(tmp_path / "a", zarr_format=3)[:]
        assert got.astype(expected.dtype).tobytes() == expected.tobytes()

    def test_text_and_bytes_of_any_length(self, tmp_path):
        """zarr's own tool refuses their filters."""
        text = zarr.create_array(
            tmp_path / "text", shape=3, chunks=2, dtype=str, fill_value="?", zarr_format=2
        )
        text[:2] = ["a", "b\u00e9"]
        raw = zarr.create_array(
            tmp_path / "raw",
            shape=(2, 2),
            dtype=zarr.dtype.VariableLengthBytes(),
            order="F",
            compressors=None,
            zarr_format=2,
        )
        raw[:] = np.array([[b"a", b"bb"], [b"", b"d"]], dtype=object)
        zarr.create_group(tmp_path, zarr_format=2)
        assert {r.status for r in migrated(tmp_path).values()} == {"migrated"}
        group = zarr.open_group(tmp_path, zarr_format=3, mode="r")
        assert group["text"][:].tolist() == ["a", "b\u00e9", "?"]
        assert group["raw"][:].tolist() == [[b"a", b"bb"], [b"", b"d"]]
        assert not [p for r in check(zarr.storage.LocalStore(tmp_path)) for p in r.problems]

    def test_names_separator_fill_value_and_attributes(self, tmp_path):
        data = random_array("<f4", SHAPE)
        attributes = {"units": "K", "_ARRAY_DIMENSIONS": ["time", "lat", "lon"]}
        create(
            tmp_path,
            data,
            fill_value=float("nan"),
            attributes=attributes,
            chunk_key_encoding={"name": "v2", "separator": "/"},
        )
        migrated(tmp_path)
        array = zarr.open_array(tmp_path, zarr_format=3)
        assert array.metadata.dimension_names == ("time", "lat", "lon")
        assert array.attrs.asdict() == {"units": "K", "_FillValue": "AAAAAAAA+H8="}  # NaN
        np.testing.assert_array_equal(array[:4], data[:4])
        assert np.isnan(array[4:]).all()

    def test_xarray_reads_the_same(self, tmp_path):
        xr = pytest.importorskip("xarray")
        dataset = xr.Dataset(
            {"sst": (("lat", "lon"), np.arange(12.0).reshape(3, 4), {"units": "K"})},
            {"lat": [1.0, 2.0, 3.0]},
            {"title": "a"},
        )
        dataset.to_zarr(tmp_path, zarr_format=2, consolidated=True)
        assert {r.status for r in migrated(tmp_path).values()} == {"migrated"}
        opened = xr.open_zarr(tmp_path, zarr_format=3, consolidated=True)
        xr.testing.assert_identical(opened.load(), dataset)

    def test_structures_need_a_zarr_that_has_them(self, tmp_path):
        """zarr 3.1.6 opens the result only after an import: programs that worked would stop."""
        create(tmp_path, random_array([("a", ">i4"), ("b", ">f8")], SHAPE))
        (report,) = migrated(tmp_path).values()
        if HAS_STRUCT:
            assert report.status == "migrated"
        else:
            assert report.status == "refused"
            assert "does not have the data type struct" in report.reasons[0]
            assert not (tmp_path / "zarr.json").exists()

    @pytest.mark.skipif(not HAS_STRUCT, reason="this zarr has no structures of Zarr v3")
    def test_missing_chunks_of_structures_with_text(self, tmp_path):
        dtype = [["a", "|b1"], ["s", "|S2"], ["u", "<U2"]]
        path = tmp_path / "a"
        write_v2(path, None, dtype=dtype, fill_value=None)
        before = zarr.open_array(path, zarr_format=2)[:].tolist()
        assert migrated(path)[""].status == "migrated"
        assert zarr.open_array(path, zarr_format=3)[:].tolist() == before

    def test_without_this_package_the_values_are_the_same(self, tmp_path):
        data = random_array(">i4", (4, 3))
        create(tmp_path, data, chunks=(4, 3), filters=[numcodecs_bytes.Bytes("little", data.dtype)])
        migrated(tmp_path)
        assert read_without_us(tmp_path) == str(data[1].tolist())

    @pytest.mark.parametrize(
        ("name", "other", "error"),
        [
            ("complex_float32", "complex64", "No Zarr data type found that matches"),
            ("complex_float64", "complex128", "No Zarr data type found that matches"),
            ("endian", "bytes", "Expected 'bytes'. Got endian instead"),
        ],
    )
    def test_names_to_be_replaced_before_an_uninstallation(self, tmp_path, name, other, error):
        """What "If you uninstall it" in docs/check-and-migrate.md says of them."""
        data = np.array([1, 2], "c16" if name.endswith("64") else "c8")
        codec = bytes_codec("little", name if name == "endian" else "bytes")
        data_type = "complex64" if name == "endian" else name
        write_array(tmp_path, data.tobytes(), data_type, [codec], [2], fill_value=[0, 0])
        assert zarr.open_array(tmp_path, mode="r")[1] == 2
        assert error in read_without_us(tmp_path)
        text = (tmp_path / "zarr.json").read_text()
        (tmp_path / "zarr.json").write_text(text.replace(f'"{name}"', f'"{other}"', 1))
        assert read_without_us(tmp_path) == "(2+0j)"


REFUSED = {
    "mixed": ({"dtype": [["a", "<i4"], ["b", ">f8"]], "fill_value": None}, "both byte orders"),
    "other type": (
        {"filters": [{"id": "bytes", "endian": "big", "dtype": "<i4"}]},
        "decodes int32, but the array is of float32",
    ),
    "no type": ({"filters": [{"id": "bytes", "endian": "big"}]}, "has no dtype"),
    "behind": (
        {
            "filters": [
                {"id": "bytes", "endian": "big", "dtype": "<f4"},
                {"id": "delta", "dtype": "u1"},
            ]
        },
        "another filter follows",
    ),
    "shuffled": (
        {"filters": [{"id": "shuffle", "elementsize": 4}, {"id": "delta", "dtype": "u1"}]},
        "another filter follows the filter shuffle",
    ),
    "bytes of bytes": (
        {
            "filters": [{"id": "shuffle", "elementsize": 4}],
            "compressor": {"id": "bytes", "endian": "little"},
        },
        "another filter follows the filter shuffle",
    ),
    "unknown": ({"filters": [{"id": "nobody's"}]}, "nobody's"),
    "broken": ({"shape": "x"}, ""),
}


class Changed(zarr.storage.LocalStore):
    """A folder that another program changes just before the first document of it is written."""

    def __init__(self, folder, change):
        super().__init__(folder)
        self.changes = [change]

    async def set(self, key, value):
        self._change()
        await super().set(key, value)

    async def delete(self, key):
        self._change()
        await super().delete(key)

    def _change(self):
        if self.changes:
            self.changes.pop()()


class TestHierarchies:
    @pytest.fixture
    def folder(self, tmp_path):
        group = zarr.create_group(tmp_path / "group", zarr_format=2, attributes={"title": "a"})
        for name in ("x", "deep/in/y"):
            create(f"{tmp_path}/group/{name}", random_array("<i4", SHAPE))
        group.require_group("deep").require_group("in")
        return tmp_path / "group"

    def test_all_of_it(self, folder):
        found = migrated(folder)
        assert {path: (r.kind, r.status) for path, r in found.items()} == {
            **dict.fromkeys(["", "deep", "deep/in"], ("group", "migrated")),
            **dict.fromkeys(["x", "deep/in/y"], ("array", "migrated")),
        }
        group = zarr.open_group(folder, zarr_format=3, mode="r")
        assert group.attrs["title"] == "a"
        assert group["deep/in/y"].metadata.zarr_format == 3
        # Once more: nothing is to be done.
        before = {f: f.read_bytes() for f in folder.rglob("zarr.json")}
        assert {r.status for r in migrated(folder).values()} == {"Zarr v3 already"}
        assert {f: f.read_bytes() for f in folder.rglob("zarr.json")} == before

    def test_a_dry_run_writes_nothing(self, folder):
        assert {r.status for r in migrated(folder, dry_run=True).values()} == {"to be migrated"}
        assert not list(folder.rglob("zarr.json"))

    @pytest.mark.parametrize("name", REFUSED)
    def test_groups_above_a_refused_array_are_not_written(self, folder, name):
        """Their Zarr v3 metadata would hide it."""
        settings, reason = REFUSED[name]
        write_v2(folder / "deep/bad", None, **({"dtype": "<f4"} | settings))
        found = migrated(folder)
        assert found["deep/bad"].status == "refused"
        assert reason in found["deep/bad"].reasons[0]
        for path in ("deep", ""):
            assert found[path].status == "refused"
            assert "deep/bad" in found[path].reasons[0]
            assert not (folder / path / "zarr.json").exists()
        assert found["deep/in"].status == found["x"].status == "migrated"
        assert zarr.open_group(folder, zarr_format=2)["deep/in/y"][0, 0, 0] is not None

    def test_other_metadata_is_not_overwritten_unless_asked_for(self, folder):
        migrated(folder)
        before = edited(folder / "x/zarr.json", fill_value=7)
        found = migrated(folder)
        assert found["x"].status == "refused"
        assert "not with the fill_value that would be written; --overwrite" in found["x"].reasons[0]
        assert found[""].status == "Zarr v3 already"
        assert (folder / "x/zarr.json").read_text() == before
        (folder / "zarr.json").unlink()
        found = migrated(folder)
        assert found[""].status == "refused"
        assert "would hide" in found[""].reasons[0]
        assert {r.status for r in migrated(folder, overwrite=True).values()} == {
            "migrated",
            "Zarr v3 already",
        }
        assert zarr.open_array(folder / "x", zarr_format=3).fill_value == 0

    def test_appended_elements_are_never_overwritten(self, tmp_path):
        """The first refusal advised --overwrite, with which the array was as short as before."""
        create(tmp_path / "x", np.arange(6, dtype="<i4"), chunks=(2,))
        zarr.create_group(tmp_path, zarr_format=2)
        migrated(tmp_path)
        array = zarr.open_array(tmp_path / "x", mode="a", zarr_format=3)
        array.append(np.arange(6, 12, dtype="<i4"))
        for options in ({}, {"overwrite": True}):
            found = {report.path: report for report in migrate(tmp_path, **options)}
            assert found["x"].status == "refused"
            assert "the shape [12], not [6]" in found["x"].reasons[0]
            assert "--overwrite" not in found["x"].reasons[0]
            assert found[""].status == "Zarr v3 already"
            array = zarr.open_array(tmp_path / "x", mode="r", zarr_format=3)
            assert array[6:].tolist() == [6, 7, 8, 9, 10, 11]

    @pytest.mark.parametrize(
        ("path", "changes", "what"),
        [
            ("x", {"shape": [7, 7, 8]}, "the shape [7, 7, 8], not [6, 7, 8]"),
            ("x", {"attributes": {"units": "K"}}, "the attribute units 'K'"),
            ("", {"attributes": {"title": "b"}}, "the attribute title 'b', not 'a'"),
            ("", {"attributes": {"title": "a", "more": 1}}, "the attribute more 1"),
            ("x", {"dimension_names": ["a", "b", "c"]}, "the dimension names ['a', 'b', 'c']"),
        ],
    )
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_attributes_and_members_of_zarr_v3_alone_are_kept(
        self, folder, path, changes, what, overwrite
    ):
        migrated(folder)
        before = edited(folder / path / "zarr.json", **changes)
        (reason,) = migrated(folder, overwrite=overwrite)[path].reasons
        assert what in reason
        assert (folder / path / "zarr.json").read_text() == before

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_nodes_that_only_zarr_v3_has_are_named(self, folder, overwrite):
        migrated(folder)
        zarr.create_array(folder / "deep/new", shape=3, dtype="i1", zarr_format=3)
        assert {r.status for r in migrated(folder).values()} == {"Zarr v3 already"}
        (folder / "deep/.zattrs").write_text('{"a": 1}')
        (reason,) = migrated(folder, overwrite=overwrite)["deep"].reasons
        assert "the node deep/new" in reason
        assert sorted(zarr.open_group(folder / "deep", zarr_format=3)) == ["in", "new"]

    def test_chunks_that_only_zarr_v3_has(self, folder):
        zarr.create_array(folder / "x", shape=SHAPE, dtype="<i4", zarr_format=3)[...] = 1
        (reason,) = migrated(folder, overwrite=True)["x"].reasons
        assert "chunks under other keys, {'name': 'default'" in reason
        assert (zarr.open_array(folder / "x", zarr_format=3)[...] == 1).all()

    def test_names_that_contain_each_other(self, tmp_path):
        """x is not above a/x: its metadata hide nothing there."""
        for name in ("", "x", "a", "a/x"):
            zarr.create_group(tmp_path / name, zarr_format=2)
        write_v2(tmp_path / "a/x/bad", None, **REFUSED["mixed"][0])
        found = migrated(tmp_path)
        assert found["x"].status == "migrated"
        assert found["a/x"].status == found["a"].status == found[""].status == "refused"

    def test_consolidated_metadata(self, folder):
        zarr.consolidate_metadata(folder, zarr_format=2)
        migrated(folder)
        group = zarr.open_consolidated(folder, zarr_format=3)
        assert sorted(group.metadata.consolidated_metadata.flattened_metadata) == [
            "deep",
            "deep/in",
            "deep/in/y",
            "x",
        ]
        assert {r.status for r in migrated(folder).values()} == {"Zarr v3 already"}

    def test_consolidated_metadata_that_is_there_already(self, tmp_path):
        """They would hide what is new, and say of what is changed what it was."""
        group = zarr.create_group(tmp_path, zarr_format=3)
        group.create_array("a", shape=2, dtype="i1")
        zarr.consolidate_metadata(tmp_path, zarr_format=3)
        create(tmp_path / "b", random_array("<i4", SHAPE))
        found = migrated(tmp_path)
        assert found["b"].status == found[""].status == "migrated"
        assert sorted(zarr.open_group(tmp_path, zarr_format=3)) == ["a", "b"]
        assert {r.status for r in migrated(tmp_path).values()} == {"Zarr v3 already"}
        old = json.loads((tmp_path / "b/.zarray").read_text())
        (tmp_path / "b/.zarray").write_text(json.dumps(old | {"dtype": ">i4"}))
        migrated(tmp_path, overwrite=True)
        root = zarr.open_group(tmp_path, zarr_format=3)
        assert (root["b"][...] == zarr.open_array(tmp_path / "b", zarr_format=2)[...]).all()

    @pytest.mark.parametrize(("undo", "status"), [(False, "migrated"), (True, "undone")])
    def test_a_change_meanwhile(self, folder, tmp_path, undo, status):
        """What another program wrote is not overwritten, unless it is the same."""
        after = shutil.copytree(folder, tmp_path / "after")
        migrated(folder if undo else after)
        name = "x/zarr.json" if undo else "zarr.json"  # one of the last that are written
        target = folder / name
        with pytest.raises(OSError, match=f"^{name} was changed by another program meanwhile"):
            migrate(Changed(folder, lambda: target.write_text('{"of": "another"}')), undo=undo)
        assert target.read_text() == '{"of": "another"}'
        target.unlink()
        if undo:
            migrate(folder, overwrite=True)

        def change_likewise():
            for path in (path for path in folder.rglob("zarr.json") if undo):
                path.unlink()
            shutil.copytree(after, folder, dirs_exist_ok=True)

        found = migrate(Changed(folder, change_likewise), undo=undo)
        assert {report.status for report in found} <= {status, "Zarr v3 already"}

    def test_a_group_whose_metadata_can_not_be_consolidated_is_not_written(self, folder):
        zarr.consolidate_metadata(folder, zarr_format=2)
        zarr.create_array(folder / "z", shape=3, dtype="i1")
        document = json.loads((folder / "z/zarr.json").read_text()) | {"codecs": [{"name": "no"}]}
        (folder / "z/zarr.json").write_text(json.dumps(document))
        for _ in range(2):
            assert migrated(folder)[""].status == "refused"
            assert not (folder / "zarr.json").exists()

    def test_a_store_that_can_not_list(self):
        class Unlisted(zarr.storage.MemoryStore):
            supports_listing = False

        with pytest.raises(ValueError, match="can't list"):
            migrate(Unlisted())

    def test_an_array_of_zarr_v3_in_the_place_of_a_group(self, folder):
        zarr.create_array(folder, shape=3, dtype="i1", zarr_format=3)
        for overwrite in (False, True):
            (reason,) = migrated(folder, overwrite=overwrite)[""].reasons
            assert "a node of type 'array', not 'group'" in reason
        assert zarr.open_array(folder, zarr_format=3).shape == (3,)

    def test_a_link_to_a_folder_above(self, folder):
        (folder / "deep/loop").symlink_to(folder)
        assert {r.status for r in migrated(folder).values()} == {"migrated"}

    def test_a_thousand_folders(self):
        path = "/".join("a" * 1100)
        buffer = default_buffer_prototype().buffer.from_bytes(b'{"zarr_format": 2}')
        (report,) = migrate(zarr.storage.MemoryStore({f"{path}/.zgroup": buffer}))
        assert (report.path, report.status) == (path, "migrated")


def documents_in(path):
    return {f.relative_to(path).as_posix() for f in Path(path).rglob("zarr.json")}


class TestUndo:
    """Zarr v3 metadata that migrate wrote are removed again, and nothing else."""

    @pytest.fixture
    def folder(self, tmp_path):
        zarr.create_group(tmp_path / "a", zarr_format=2, attributes={"title": "a"})
        for name in ("deep", "deep/in"):
            zarr.create_group(tmp_path / "a" / name, zarr_format=2)
        attributes = {"_ARRAY_DIMENSIONS": ["a", "b", "c"], "valid_min": float("nan")}
        for name in ("x", "deep/y", "deep/in/z"):
            create(tmp_path / "a" / name, random_array("<i4", SHAPE), attributes=attributes)
        return tmp_path / "a"

    @pytest.mark.parametrize("is_consolidated", [False, True])
    def test_all_of_it(self, folder, is_consolidated):
        if is_consolidated:
            for path in ("deep", ""):
                zarr.consolidate_metadata(folder, path=path, zarr_format=2)
        before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        migrated(folder)
        written = documents_in(folder)
        assert len(written) == 6
        reports = migrate(folder, undo=True, dry_run=True)
        assert {r.status for r in reports} == {"to be undone"}
        assert documents_in(folder) == written
        reports = migrate(folder, undo=True)
        assert {r.status for r in reports} == {"undone"}
        assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before
        assert {r.status for r in migrate(folder, undo=True)} == {"Zarr v2 already"}

    def test_parents_come_first(self, folder):
        """A Zarr v3 group would hide a node below it that has no Zarr v3 metadata any more."""
        migrated(folder)
        paths = [report.path for report in migrate(folder, undo=True)]
        assert paths[0] == ""
        assert paths.index("deep") < paths.index("deep/in") < paths.index("deep/in/z")

    @pytest.mark.parametrize(
        ("path", "changes"),
        [
            ("x", {"shape": [7, 7, 8]}),
            ("x", {"attributes": {"units": "K"}}),
            ("deep", {"attributes": {"units": "K"}}),
        ],
    )
    def test_a_zarr_json_that_differs_is_kept_and_named(self, folder, path, changes):
        migrated(folder)
        edited(folder / path / "zarr.json", **changes)
        before = documents_in(folder)
        found = {report.path: report for report in migrate(folder, undo=True)}
        assert {report.status for report in found.values()} == {"kept"}
        (name,) = changes
        assert f"its {name} in zarr.json differ from what" in found[path].reasons[0]
        other = "deep/in/z"
        assert found[other].reasons == [f"the same Zarr v3 group has {path}, which is kept"]
        assert documents_in(folder) == before

    def test_attributes_and_members_of_zarr_v3_alone_are_kept(self, folder):
        migrated(folder)
        zarr.create_array(folder / "deep/new", shape=3, dtype="i1", zarr_format=3)
        found = {report.path: report for report in migrate(folder, undo=True)}
        assert found["deep/new"].reasons == ["ValueError: it has no Zarr v2 metadata"]
        assert {report.status for report in found.values()} == {"kept"}

    def test_groups_apart_are_undone_apart(self, folder):
        """Where a group is still Zarr v2, what it shows does not depend on Zarr v3."""
        migrated(folder)
        (folder / "zarr.json").unlink()
        edited(folder / "deep/y/zarr.json", shape=[9, 9, 9])
        found = {report.path: report.status for report in migrate(folder, undo=True)}
        kept = ["deep", "deep/y", "deep/in", "deep/in/z"]
        assert found == {"": "Zarr v2 already", "x": "undone", **dict.fromkeys(kept, "kept")}

    @pytest.mark.parametrize("raw", ["{", "[1]", "null"])
    def test_broken_metadata_is_kept(self, folder, raw):
        migrated(folder)
        (folder / "x/zarr.json").write_text(raw)
        found = {report.path: report.status for report in migrate(folder, undo=True)}
        assert set(found.values()) == {"kept"}
        assert (folder / "x/zarr.json").read_text() == raw

    def test_structures_on_an_older_zarr(self, folder, monkeypatch):
        """They can't be migrated there, but what was can be undone."""
        if HAS_STRUCT:
            create(folder / "s", random_array(LITTLE, SHAPE))
            migrated(folder)
            monkeypatch.setattr(migration, "HAS_STRUCT", False)
            assert {report.status for report in migrate(folder, undo=True)} == {"undone"}

    def test_not_together_with_overwrite(self, folder, capsys):
        for options in ({"overwrite": True}, {"exclude": ["x"]}):
            with pytest.raises(ValueError, match="undo can't be combined with"):
                migrate(folder, undo=True, **options)
        with pytest.raises(SystemExit):
            main(["migrate", str(folder), "--undo", "--overwrite"])
        assert "not allowed with" in capsys.readouterr().err

    def test_the_command(self, folder, capsys):
        assert main(["migrate", str(folder)]) == 0
        capsys.readouterr()
        assert main(["migrate", str(folder), "--undo"]) == 0
        out = capsys.readouterr().out
        assert "/deep                            group  undone\n" in out
        assert out.endswith("6 arrays and groups, 0 kept\n")
        assert main(["migrate", str(folder)]) == 0
        edited(folder / "x/zarr.json", shape=[7, 7, 8])
        capsys.readouterr()
        assert main(["migrate", str(folder), "--undo", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["num_kept"] == 6


def shown(path):
    """Return the paths of all nodes that a Zarr v3 group shows, by itself and consolidated."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Object at bad is not recognized"
        for is_consolidated in (False, None):
            group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=is_consolidated)
            found.append(sorted(name for name, _ in group.members(max_depth=None)))
    assert found[0] == found[1]
    return found[0]


class TestExclude:
    """What can't be migrated, or is not to be, does not keep the groups above it in Zarr v2."""

    @pytest.fixture
    def folder(self, tmp_path):
        """Groups with an array that can be migrated and one that can't in each."""
        folder = tmp_path / "a"
        for path in ("", "deep", "deep/in"):
            zarr.create_group(folder / path, zarr_format=2)
            write_v2(folder / path / "good", bytes(16), "<f4", [4])
            write_v2(folder / path / "bad", None, **REFUSED["mixed"][0])
        return folder

    BAD = ("bad", "deep/bad", "deep/in/bad")
    GOOD = ("deep", "deep/good", "deep/in", "deep/in/good", "good")

    @pytest.mark.parametrize("is_consolidated", [False, True])
    def test_arrays(self, folder, is_consolidated):
        if is_consolidated:
            for path in ("deep", ""):
                zarr.consolidate_metadata(folder, path=path, zarr_format=2)
        found = migrated(folder, exclude=["/bad/", *self.BAD[1:]])
        assert {path for path, report in found.items() if report.status == "excluded"} == {
            *self.BAD
        }
        assert {path for path, report in found.items() if report.status == "migrated"} == {
            "",
            *self.GOOD,
        }
        (reason,) = found["deep/bad"].reasons
        assert reason.startswith("it stays in Zarr v2, which groups of Zarr v3 do not show: ")
        assert shown(folder) == [*self.GOOD]
        document = json.loads((folder / "zarr.json").read_text())
        assert ("consolidated_metadata" in document) == is_consolidated
        # What the report says of them.
        assert zarr.open_array(folder, path="deep/bad", mode="r").metadata.zarr_format == 2
        old = zarr.open_group(folder, mode="r", zarr_format=2)
        assert old["deep/bad"].shape == zarr.open_array(folder / "deep/bad", mode="r").shape
        again = migrated(folder, exclude=self.BAD)
        assert {report.status for report in again.values()} == {"excluded", "Zarr v3 already"}

    def test_groups(self, folder):
        """With all that is below them."""
        zarr.consolidate_metadata(folder, zarr_format=2)
        found = migrated(folder, exclude=["bad", "deep"])
        assert {path: report.status for path, report in found.items()} == {
            **dict.fromkeys(["", "good"], "migrated"),
            **dict.fromkeys([*self.BAD, *self.GOOD[:-1]], "excluded"),
        }
        assert shown(folder) == ["good"]
        assert documents_in(folder) == {"zarr.json", "good/zarr.json"}

    @pytest.mark.parametrize("exclude", [[], ["old"]], ids=["refused", "excluded"])
    @pytest.mark.parametrize("kind", ["null", "more", "fewer"])
    def test_a_group_of_zarr_v3_below_which_nothing_changes_stays_as_it_is(
        self, tmp_path, kind, exclude
    ):
        """Whatever its consolidated metadata say: zarr before 3.1.4 wrote null."""
        group = zarr.create_group(tmp_path, zarr_format=3)
        group.create_array("new", shape=4, dtype="i4")
        write_v2(tmp_path / "old", None, **REFUSED["mixed"][0])
        with warnings.catch_warnings(action="ignore"):
            zarr.consolidate_metadata(tmp_path, zarr_format=3)
        metadata = json.loads((tmp_path / "zarr.json").read_text())["consolidated_metadata"]
        if kind == "more":
            metadata["metadata"]["remote"] = metadata["metadata"]["new"]
        if kind == "fewer":
            del metadata["metadata"]["new"]
        edited(tmp_path / "zarr.json", consolidated_metadata=None if kind == "null" else metadata)
        before = (tmp_path / "zarr.json").read_bytes()
        migrated(tmp_path, exclude=exclude)
        assert (tmp_path / "zarr.json").read_bytes() == before

    @pytest.mark.parametrize("exclude", [[""], ["good", "/"], [None], b"good"], ids=repr)
    def test_what_is_no_path_below_the_root(self, folder, exclude):
        with pytest.raises(
            ValueError, match="expected the path of an array or group below the root"
        ):
            migrated(folder, exclude=exclude)

    def test_a_name_that_begins_likewise_is_not_excluded(self, folder):
        zarr.create_group(folder / "deeper", zarr_format=2)
        found = migrated(folder, exclude=["deep", "bad"])
        assert found["deeper"].status == "migrated"

    def test_what_is_refused_still_keeps_the_groups_above_it(self, folder):
        found = migrated(folder, exclude=["deep/bad"])
        assert "could not be migrated: bad, deep, deep/in, deep/in/bad; " in found[""].reasons[0]
        assert (
            found["deep"]
            .reasons[0]
            .endswith("exclude those that can't be migrated (--exclude PATH)")
        )
        assert {path for path, report in found.items() if report.status == "migrated"} == {
            *("good", "deep/good", "deep/in/good"),
        }

    def test_a_later_migration_completes_it(self, folder):
        zarr.consolidate_metadata(folder, zarr_format=2)
        migrated(folder, exclude=["deep/in", *self.BAD[:2]])
        assert shown(folder) == ["deep", "deep/good", "good"]
        for path in self.BAD:
            write_v2(folder / path, bytes(16), "<f4", [4])
        found = migrated(folder)
        assert found[""].status == found["deep/in/bad"].status == "migrated"
        assert found["good"].status == "Zarr v3 already"
        assert shown(folder) == sorted([*self.BAD, *self.GOOD])
        assert {report.status for report in migrated(folder).values()} == {"Zarr v3 already"}

    def test_consolidated_metadata_is_completed_after_an_interruption(self, folder):
        """The array was written, the group was not: it was left without it for ever."""
        zarr.consolidate_metadata(folder, zarr_format=2)
        migrated(folder, exclude=["good", *self.BAD])
        before = (folder / "zarr.json").read_text()
        migrated(folder, exclude=self.BAD)
        (folder / "zarr.json").write_text(before)
        assert migrated(folder, exclude=self.BAD)[""].status == "migrated"
        assert shown(folder) == [*self.GOOD]

    def test_what_has_zarr_v3_metadata_stays_as_it_is(self, folder):
        migrated(folder)
        before = edited(folder / "good/zarr.json", shape=[9])
        found = migrated(folder, exclude=["good", *self.BAD])
        assert found["good"].status == "excluded"
        assert found["good"].reasons == ["its Zarr v3 metadata stays as it is"]
        assert (folder / "good/zarr.json").read_text() == before
        assert shown(folder) == [*self.GOOD]

    @pytest.mark.parametrize("is_consolidated", [False, True])
    def test_undo(self, folder, is_consolidated):
        if is_consolidated:
            zarr.consolidate_metadata(folder, zarr_format=2)
        before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
        migrated(folder, exclude=self.BAD)
        found = {report.path: report.status for report in migrate(folder, undo=True)}
        assert {path for path, status in found.items() if status == "undone"} == {"", *self.GOOD}
        assert {found[path] for path in self.BAD} == {"Zarr v2 already"}
        assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before

    def test_what_is_no_node(self, folder, capsys):
        for path in ("god", "good/0", "dee"):
            assert main(["migrate", str(folder), "--exclude", path]) == 2
            said = capsys.readouterr().err
            assert f"can't exclude {path!r}: expected the path of an array or group" in said
        assert documents_in(folder) == set()
        with pytest.raises(TypeError, match="exclude must be a collection of paths, got 'good'"):
            migrate(folder, exclude="good")

    def test_the_command(self, folder, capsys):
        """The advice to remove Zarr v2 metadata would be wrong."""
        command = ["migrate", str(folder)]
        for path in self.BAD:
            command += ["--exclude", path]
        assert main([*command, "--dry-run"]) == 0
        assert "/deep                            group  to be migrated" in capsys.readouterr().out
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "/deep/bad                        array  excluded\n  it stays in Zarr v2" in out
        assert out.endswith("9 arrays and groups, 0 refused, 3 excluded\n")
        assert main([*command, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        excluded = [node["path"] for node in found["nodes"] if node["status"] == "excluded"]
        assert sorted(excluded) == [*self.BAD]


class Bar:
    """What is called of a progress bar, and how far it got in each phase."""

    def __init__(self):
        self.phases = []

    def set_description(self, what):
        self.phases.append([what, 0, None])

    def reset(self, total):
        self.phases[-1][2] = total

    def update(self):
        self.phases[-1][1] += 1


class TestProgress:
    @pytest.fixture
    def folder(self, tmp_path):
        zarr.create_group(tmp_path / "a", zarr_format=2)
        for name in ("x", "y"):
            write_v2(tmp_path / "a" / name, None, "<i2")
        return tmp_path / "a"

    def test_a_folder(self, folder):
        phases = [["reading metadata", 3, None], ["comparing", 3, 3], ["writing", 3, 3]]
        for options in ({"dry_run": True}, {}, {"undo": True}):
            bar = Bar()
            migrate(folder, bar=bar, **options)
            assert bar.phases == phases[: 2 if "dry_run" in options else 3]

    @pytest.mark.parametrize("is_terminal", [False, True])
    def test_it_is_shown_on_a_terminal_alone(self, folder, capsys, monkeypatch, is_terminal):
        pytest.importorskip("tqdm")
        monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
        assert main(["migrate", str(folder), "--json"]) == 0
        said = capsys.readouterr()
        assert ("writing: 100%" in said.err) == is_terminal
        assert bool(said.err) == is_terminal
        assert json.loads(said.out)["num_refused"] == 0

    def test_tqdm_is_optional(self, folder, capsys, monkeypatch):
        monkeypatch.setitem(sys.modules, "tqdm", None)
        assert main(["migrate", str(folder)]) == 0
        assert main(["check", str(folder)]) == 0
        assert capsys.readouterr().err == ""


def problems_of(path):
    (report,) = check(zarr.storage.LocalStore(path))
    return report.problems


class TestCheck:
    """Metadata of both formats beside each other."""

    def test_errors_of_zarrs_own_tool_are_found(self, tmp_path):
        """It takes structures for little endian: 1 reads as 16777216."""
        dtype = [("a", ">i4"), ("b", ">f8")]
        create(tmp_path, random_array(dtype, SHAPE))
        migrate_v2_to_v3(input_store=zarr.storage.LocalStore(tmp_path))
        problems = problems_of(tmp_path)
        assert [p for p in problems if "bytes(endian=big)" in p] or not HAS_STRUCT, problems

    def test_arrays_of_one_format_alone_are_no_problem(self, tmp_path):
        """Who wrote the Zarr v3 metadata may know better than zarr's own tool."""
        create(tmp_path, random_array("<f4", SHAPE))
        migrated(tmp_path)
        old = json.loads((tmp_path / ".zarray").read_text())
        (tmp_path / ".zarray").write_text(json.dumps(old | {"filters": [{"id": "nobody's"}]}))
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        assert report.problems == []
        assert any("can't be compared" in note for note in report.notes)

    def test_filters_of_other_settings_are_a_problem(self, tmp_path):
        scaled = numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="<f8", astype="<i2")
        create(tmp_path, np.array([1.0, 2, 3, 4]), chunks=(4,), filters=[scaled])
        migrated(tmp_path)
        document = json.loads((tmp_path / "zarr.json").read_text())
        document["codecs"][0]["configuration"]["scale"] = 100
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        assert "disagree: the list of codecs is " in report.problems[0]

    def test_a_codec_of_two_names_is_no_problem(self, tmp_path):
        create(tmp_path, np.arange(4.0), chunks=(4,), compressors=numcodecs.Zstd())
        migrated(tmp_path)
        text = (tmp_path / "zarr.json").read_text()
        document = json.loads(text)
        assert document["codecs"][1]["name"] == "zstd"
        document["codecs"][1] = {"name": "numcodecs.zstd", "configuration": {"level": 1}}
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        assert not report.problems

    def test_a_structure_of_both_byte_orders_is_a_problem(self, tmp_path):
        data = random_array([("a", "<i4"), ("b", ">f8")], SHAPE)
        create(tmp_path, data)
        migrate_v2_to_v3(input_store=zarr.storage.LocalStore(tmp_path))
        assert any("both byte orders" in problem for problem in problems_of(tmp_path))

    @pytest.mark.parametrize(
        ("key", "value", "what"),
        [
            ("shape", [6, 7, 9], "the shape is (6, 7, 8) in .zarray, (6, 7, 9) in zarr.json"),
            (
                "chunk_grid",
                {"name": "regular", "configuration": {"chunk_shape": [4, 7, 4]}},
                "the chunk shape is (4, 7, 3) in .zarray, (4, 7, 4) in zarr.json",
            ),
            ("data_type", "int32", "the data type is float32 in .zarray, int32 in zarr.json"),
            ("fill_value", 1, "the fill value is 0.0 (00000000) in .zarray, 1.0 (0000803f)"),
            (
                "chunk_key_encoding",
                {"name": "default"},
                "the key of the first chunk is 0.0.0 in .zarray, c/0/0/0 in zarr.json",
            ),
            (
                "codecs",
                [{"name": "bytes", "configuration": {"endian": "little"}}],
                "the list of codecs is bytes(endian=big) in .zarray, bytes(endian=little)",
            ),
        ],
    )
    def test_a_disagreement_is_a_problem(self, tmp_path, key, value, what):
        create(tmp_path, random_array(">f4", SHAPE))
        migrated(tmp_path)
        document = json.loads((tmp_path / "zarr.json").read_text())
        (tmp_path / "zarr.json").write_text(json.dumps(document | {key: value}))
        assert any(f".zarray and zarr.json disagree: {what}" in p for p in problems_of(tmp_path))


class TestCommand:
    def test_the_report_names_the_status_of_each_node(self, tmp_path, capsys):
        data = random_array(">i2", (4,))
        create(tmp_path / "a", data, chunks=(4,))
        zarr.create_group(tmp_path, zarr_format=2)
        assert main(["migrate", str(tmp_path), "--dry-run"]) == 0
        assert "/a                               array  to be migrated" in capsys.readouterr().out
        assert main(["migrate", str(tmp_path)]) == 0
        out = capsys.readouterr().out
        assert "2 arrays and groups, 0 refused" in out
        assert "zarr remove-metadata v2" in out
        assert main(["--json", "migrate", str(tmp_path)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [node["status"] for node in found["nodes"]] == ["Zarr v3 already"] * 2

    def test_the_last_advice_names_the_notes(self, tmp_path, capsys):
        """Without Zarr v2 metadata, TensorStore could not read the array any more."""
        create(tmp_path, random_array("<i2", (4,)), chunks=(4,), compressors=numcodecs.Zlib())
        for _ in range(2):
            assert main(["migrate", str(tmp_path)]) == 0
            out = capsys.readouterr().out
            assert "\n  note    numcodecs.zlib in Zarr v3" in out
            assert "read Zarr v3, also what the notes name, remove" in out

    def test_exit_status(self, tmp_path, capsys):
        assert main(["migrate", str(tmp_path)]) == 1
        assert "no Zarr v2 metadata" in capsys.readouterr().out
        assert main(["migrate", str(tmp_path / "nowhere")]) == 2
        write_v2(tmp_path / "bad", None, **REFUSED["mixed"][0])
        assert main(["migrate", str(tmp_path)]) == 1
        out = capsys.readouterr().out
        assert "refused\n  MixedByteOrderError: its fields have both byte orders" in out

    def test_a_store_that_can_not_be_written(self, tmp_path, capsys, monkeypatch):
        create(tmp_path, random_array(">i2", SHAPE))
        with pytest.raises(ValueError, match="read-only"):
            migrate(zarr.storage.LocalStore(tmp_path, read_only=True))

        async def refuse(*_args, **_kwargs):
            raise PermissionError("denied")

        monkeypatch.setattr(zarr.storage.LocalStore, "set", refuse)
        assert main(["migrate", str(tmp_path)]) == 2
        assert "zarr.json can't be written: PermissionError: denied" in capsys.readouterr().err

    def test_a_store_that_can_not_be_read(self):
        """It was reported as one array that is refused."""

        class Forbidden(zarr.storage.MemoryStore):
            async def get(self, *_args, **_kwargs):
                raise PermissionError("forbidden")

        with pytest.raises(PermissionError, match="forbidden"):
            migrate(Forbidden())

    def test_a_report_is_readable(self, tmp_path, capsys):
        """Printed, it is what the command prints."""
        write_v2(tmp_path / "a", None, "<i2")
        (report,) = migrate(tmp_path, dry_run=True)
        assert main(["migrate", str(tmp_path), "--dry-run"]) == 0
        assert capsys.readouterr().out.startswith(f"{report}\n1 array")

    def test_no_error_names_a_temporary_file(self, tmp_path, capsys, monkeypatch):
        """What zarr and we write first has a random name, which helps nobody."""
        write_v2(tmp_path / "a", None, "<i2")

        async def fail(*_args):
            raise OSError(errno.ENOSPC, "No space left on device", "zarr.0123abcd.partial")

        monkeypatch.setattr(zarr.storage.LocalStore, "set", fail)
        assert main(["migrate", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "a/zarr.json can't be written: OSError: No space left on device; " in said

    @pytest.mark.parametrize("command", ["migrate", "check"])
    def test_a_closed_pipe_ends_the_report_alone(self, tmp_path, command):
        """`migrate STORE | head -1` stopped after two nodes, and said that a pipe is broken."""
        zarr.create_group(tmp_path, zarr_format=2)
        for i in range(60):  # more than is buffered
            write_v2(tmp_path / f"{i:0200}", None, "<i2")
        reading, writing = os.pipe()
        os.close(reading)
        done = run_python(
            *("-m", "numcodecs_bytes", command, tmp_path),
            status=0 if command == "migrate" else 2,
            options={"capture_output": False, "stdout": writing, "stderr": subprocess.PIPE},
        )
        os.close(writing)
        assert done.stderr == ""
        assert len(list(tmp_path.rglob("zarr.json"))) == (61 if command == "migrate" else 0)

    def test_names_that_the_terminal_can_not_show(self, tmp_path):
        write_v2(tmp_path / "\u6f22", None, "<i2")
        done = run_python("-m", "numcodecs_bytes", "migrate", tmp_path, PYTHONIOENCODING="ascii")
        assert done.stdout.startswith("/\\u6f22 ")

    def test_a_url(self, tmp_path):
        pytest.importorskip("fsspec")
        data = random_array(">i2", SHAPE)
        create(tmp_path, data)
        (report,) = migrate(f"file://{tmp_path}")
        assert report.status == "migrated"
        assert_same(tmp_path, data)
        (report,) = check(f"file://{tmp_path}")
        assert not report.problems

    @pytest.mark.parametrize("name", ["a.zip", "a.zarr"])
    def test_a_zip_archive_is_refused(self, tmp_path, capsys, name):
        """An interruption while zarr has it open would destroy it."""
        with zarr.storage.ZipStore(tmp_path / name, mode="w") as store:
            create(store, random_array(">i2", SHAPE))
            with pytest.raises(ValueError, match="zip"):
                migrate(store)
        before = (tmp_path / name).read_bytes()
        for options in ([], ["--dry-run"], ["--undo"]):
            assert main(["migrate", str(tmp_path / name), *options]) == 2
            why = "a zip archive can't be changed: unpack it, migrate, and pack it again"
            assert capsys.readouterr().err == f"can't migrate {tmp_path / name}: {why}\n"
        assert (tmp_path / name).read_bytes() == before
        fsspec = pytest.importorskip("fsspec")
        assert main(["migrate", f"memory://{name}.zip"]) == 2
        files = fsspec.filesystem("zip", fo=str(tmp_path / name), mode="a")
        wrapper = pytest.importorskip("fsspec.implementations.asyn_wrapper")
        wrapped = wrapper.AsyncFileSystemWrapper(files, asynchronous=True)
        with pytest.raises(ValueError, match="unpack it, migrate, and pack it again"):
            migrate(zarr.storage.FsspecStore(wrapped))
