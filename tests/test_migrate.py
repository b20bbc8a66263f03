"""Zarr v2 hierarchies made Zarr v3: values are the same, chunks are not touched."""

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import numcodecs
import numcodecs.registry
import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import (
    CHUNKS,
    DTYPES,
    HAS_STRUCT,
    SHAPE,
    WITHOUT_ENTRY_POINTS,
    bytes_codec,
    has_nested_structures,
    random_array,
    run_program,
    run_python,
    write_array,
    write_v2,
)
from zarr.metadata.migrate_v3 import migrate_v2_to_v3

import numcodecs_bytes
import numcodecs_bytes.migrate as migrate_module
from numcodecs_bytes.__main__ import main
from numcodecs_bytes._tools.locations import open_store
from numcodecs_bytes._tools.v2_to_v3 import v3_document
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
# .zarray with random filters, and the zarr.json of each, or null if versions of zarr disagree.
FILTERS = Path(__file__).parent / "fixtures" / "migrated_filters.json"
BIG = [("a", ">i4"), ("b", ">f8"), ("c", "?"), ("d", "S3"), ("e", [("f", ">u2"), ("g", ">U2")])]
LITTLE = [("a", "<i4"), ("b", "<f8"), ("c", "?")]
MOVE = "; if Zarr v2 is right, move zarr.json out of the store and run this again"
STRUCTURES = [BIG if has_nested_structures() else BIG[:-1], LITTLE] if HAS_STRUCT else []


def create(path, data, chunks=CHUNKS, **settings):
    settings = {"compressors": None, "filters": None} | settings
    array = zarr.create_array(
        path, shape=data.shape, chunks=chunks, dtype=data.dtype, zarr_format=2, **settings
    )
    array[:4] = data[:4]
    return array


def files_in(path):
    """Return the contents of all files, but of those that migrate writes."""
    files = [file for file in Path(path).rglob("*") if file.is_file() and file.name != "zarr.json"]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def written_in(path):
    """Return the contents of the files that migrate writes."""
    found = Path(path).rglob("zarr.json")
    return {file.parent.relative_to(path).as_posix(): file.read_bytes() for file in found}


def migrated(path, **options):
    """Migrate a folder, return the report of each path; chunks and Zarr v2 stay as they are."""
    before = files_in(path)
    found = {report.path: report for report in migrate(path, **options)}
    assert files_in(path) == before
    return found


def statuses(path, **options):
    return {name: report.status for name, report in migrated(path, **options).items()}


def edited(path, **changes):
    """Change a document, and return its new text."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path.read_text()


def assert_migrated(path):
    """An array is migrated, check finds no problem, and the values are the same; return notes."""
    old = zarr.open_array(path, zarr_format=2, mode="r")[...]
    (report,) = migrated(path).values()
    assert (report.status, report.reasons) == ("migrated", [])
    new = zarr.open_array(path, zarr_format=3, mode="r")[...]
    if old.dtype.hasobject or old.dtype.kind == "T":
        assert new.tolist() == old.tolist()
    else:
        assert new.astype(old.dtype).tobytes() == old.tobytes()
    (checked,) = check(zarr.storage.LocalStore(path))
    assert checked.problems == []
    return report.notes


class TestArrays:
    @pytest.mark.matrix
    @pytest.mark.parametrize("where", ["filters", "compressors"])
    @pytest.mark.parametrize("endian", ["little", "big"])
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", [*DTYPES, *STRUCTURES], ids=str)
    def test_every_data_type(self, tmp_path, dtype, order, endian, where):
        """zarr's own tool takes every structure for little endian: 1 would be 16777216."""
        data = random_array(dtype, SHAPE)
        codec = numcodecs_bytes.Bytes(endian, data.dtype)
        codecs = {where: [codec] if where == "filters" else codec}
        for name, settings in {"without the codec bytes": {}, "with it": codecs}.items():
            create(tmp_path / name, data, order=order, **settings)
            assert assert_migrated(tmp_path / name) == []

    @pytest.mark.matrix
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["<f8", ">i4"])
    @pytest.mark.parametrize(
        "case",
        [
            ([], numcodecs.Zstd(3), ""),
            (["bytes"], numcodecs.GZip(1), ""),
            ([], numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.AUTOSHUFFLE), ""),
            (["bytes"], numcodecs.BZ2(1), "bz2"),
            (["delta", "bytes"], None, "delta"),
            ([numcodecs.Shuffle(4)], numcodecs.Zlib(1), "shuffle zlib"),
            (["delta", numcodecs.Shuffle(4)], numcodecs.GZip(), "delta shuffle"),
            ([numcodecs.CRC32(), numcodecs.Fletcher32()], numcodecs.LZ4(), "crc32 fletcher32 lz4"),
        ],
        ids=str,
    )
    def test_filters_and_compressors(self, tmp_path, case, dtype, order):
        """Those without a specification in Zarr v3 are noted."""
        filters, compressor, noted = case
        of_array = {
            "bytes": numcodecs_bytes.Bytes("big", dtype),
            "delta": numcodecs.Delta(dtype, dtype),
        }
        filters = [of_array.get(f, f) if isinstance(f, str) else f for f in filters] or None
        data = random_array(dtype, SHAPE)
        create(tmp_path, data, filters=filters, compressors=compressor, order=order)
        notes = assert_migrated(tmp_path)
        assert len(notes) == bool(noted)
        assert all(f"numcodecs.{name}" in notes[0] for name in noted.split())

    @pytest.mark.parametrize(
        ("dtype", "codec"),
        [
            ("<i4", numcodecs.Delta("<i4", ">i2")),
            ("<f8", numcodecs.FixedScaleOffset(0, 1, "<f8", ">i2")),
            (">f8", numcodecs.AsType("<f4", ">f8")),
            (">f8", numcodecs.Quantize(2, ">f8")),
            ("|u1", numcodecs.Delta("|u1", ">i2")),
        ],
        ids=str,
    )
    def test_filters_that_hand_on_another_byte_order(self, tmp_path, dtype, codec):
        """The first chunk is zeros, which are the same in both."""
        array = create(tmp_path, np.zeros(4, dtype), (2,), filters=[codec], fill_value=1)
        array[:] = [0, 0, 1, 2]
        expected = array[:].tolist()
        if statuses(tmp_path) == {"": "migrated"}:
            assert zarr.open_array(tmp_path, zarr_format=3)[:].tolist() == expected

    def test_every_version_of_zarr_writes_the_same(self):
        """zarr 3.1.6 took no endian behind `astype`, and zarr 3.4 could not open that."""
        for old, expected in json.loads(FILTERS.read_text()):
            if expected is None:
                with pytest.raises(ValueError, match="versions of zarr read"):
                    v3_document(old)
            else:
                assert json.loads(json.dumps(v3_document(old))) == expected

    @pytest.mark.parametrize(
        "dtype", ["<c8", "<U3", ">i4", "<f4", "|S3", "|V3", "|b1", ">M8[s]", ()]
    )
    def test_no_fill_value(self, tmp_path, dtype):
        if dtype == () and not HAS_STRUCT:
            pytest.skip("this zarr has no structures of Zarr v3")
        fields = [["a", "|b1"], ["s", "|S2"], ["u", "<U2"]]
        assert_migrated(write_v2(tmp_path, None, dtype or fields, fill_value=None))

    @pytest.mark.parametrize("dtype", [str, zarr.dtype.VariableLengthBytes()], ids=str)
    def test_text_and_bytes_of_any_length(self, tmp_path, dtype):
        """zarr's own tool refuses their filters."""
        settings = {"shape": (3, 2), "chunks": (2, 2), "order": "F", "zarr_format": 2}
        array = zarr.create_array(tmp_path, dtype=dtype, **settings)
        values = ["a", "b\u00e9"] if dtype is str else [b"a", b"bb"]
        array[:1] = np.array([values], dtype=object)
        assert_migrated(tmp_path)
        assert zarr.open_array(tmp_path, zarr_format=3)[0].tolist() == values

    def test_other_settings_and_attributes(self, tmp_path):
        create(
            tmp_path,
            random_array("<f4", SHAPE),
            fill_value=float("nan"),
            attributes={"units": "K", "_ARRAY_DIMENSIONS": ["time", "lat", "lon"]},
            chunk_key_encoding={"name": "v2", "separator": "/"},
            compressors=numcodecs.Blosc(shuffle=numcodecs.Blosc.AUTOSHUFFLE),
        )
        assert_migrated(tmp_path)
        array = zarr.open_array(tmp_path, zarr_format=3)
        blosc = array.metadata.codecs[-1].to_dict()["configuration"]
        assert (blosc["typesize"], blosc["shuffle"]) == (4, "shuffle")
        assert array.metadata.dimension_names == ("time", "lat", "lon")
        assert array.attrs.asdict() == {"units": "K", "_FillValue": "AAAAAAAA+H8="}  # NaN
        assert np.isnan(array[4:]).all()

    @pytest.mark.skipif(HAS_STRUCT, reason="this zarr has structures of Zarr v3")
    def test_structures_need_a_zarr_that_has_them(self, tmp_path):
        """zarr 3.1.6 opens the result only after an import: programs that worked would stop."""
        create(tmp_path, random_array(LITTLE, SHAPE))
        (report,) = migrated(tmp_path).values()
        assert report.status == "refused"
        assert "alone can't open structures of Zarr v3" in report.reasons[0]
        assert written_in(tmp_path) == {}

    def test_by_zarr_alone(self, tmp_path):
        """The same values, but for two names: see "If you uninstall it" in the documentation."""
        data = random_array(">i4", (4, 3))
        filters = [numcodecs_bytes.Bytes("little", data.dtype)]
        create(tmp_path / "migrated", data, chunks=(4, 3), filters=filters)
        migrated(tmp_path / "migrated")
        expected = []
        for name, data_type, codec, answer in (
            ("a", "complex_float32", "bytes", "No Zarr data type found that matches"),
            ("b", "complex64", "endian", "Expected 'bytes'. Got endian instead"),
            ("c", "complex64", "bytes", "(2+0j)"),
        ):
            raw, settings = np.array([1, 2], "c8").tobytes(), {"shape": [2], "fill_value": [0, 0]}
            codecs = [bytes_codec("little", codec)]
            path = write_array(tmp_path / name, raw, data_type, codecs, **settings)
            assert zarr.open_array(path, mode="r")[1] == 2
            expected.append(answer)
        program = f"""{WITHOUT_ENTRY_POINTS}
import sys, zarr
for path in sys.argv[1:]:
    try:
        print(zarr.open_array(path, zarr_format=3)[1].tolist())
    except ValueError as error:
        print(str(error).replace("\\n", " "))
assert "numcodecs_bytes" not in sys.modules
"""
        paths = sorted(tmp_path.iterdir())
        lines = run_program("-W", "ignore", "-c", program, *paths).stdout.splitlines()
        expected.append(str(data[1].tolist()))
        assert all(text in line for text, line in zip(expected, lines, strict=True)), lines


BYTES, SHUFFLE = {"id": "bytes", "endian": "big"}, {"id": "shuffle", "elementsize": 4}
DELTA = {"id": "delta", "dtype": "u1"}
MIXED = {"dtype": [["a", "<i4"], ["b", ">f8"]], "fill_value": None}
MIXED_REASON = "its fields have both byte orders"
# What is refused, and why.
REFUSED = {
    "mixed": (MIXED, MIXED_REASON),
    "other type": ({"filters": [BYTES | {"dtype": "<i4"}]}, 'write "dtype": "<f4" there in .zar'),
    "no type": (
        {"filters": [BYTES]},
        'add "dtype": "<f4" to it in .zarray; then run migrate again',
    ),
    "behind": ({"filters": [BYTES | {"dtype": "<f4"}, DELTA]}, "the filter delta follows one that"),
    "shuffled": ({"filters": [SHUFFLE, DELTA]}, "the filter delta follows one that returns bytes"),
    "bytes of bytes": (
        {"filters": [SHUFFLE], "compressor": BYTES},
        "the filter bytes follows one that returns bytes",
    ),
    "unknown": ({"filters": [{"id": "nobody's"}]}, "nobody's"),
    "broken": ({"shape": "x"}, ""),
    "empty": ({"stored": b""}, "it is empty: restore or rewrite it"),
}


@pytest.fixture
def folder(tmp_path):
    """Return the path of groups in each other, with two arrays each: x, and y."""
    for path in ("", "deep", "deep/in"):
        zarr.create_group(tmp_path / "a" / path, zarr_format=2, attributes={"title": "a"})
        for name in ("x", "y"):
            write_v2(tmp_path / "a" / path / name, bytes(range(16)), "<i4", [4])
            names = {"_ARRAY_DIMENSIONS": ["t"], "valid_min": float("nan")}
            (tmp_path / "a" / path / name / ".zattrs").write_text(json.dumps(names))
    return tmp_path / "a"


GROUPS = ["", "deep", "deep/in"]
ARRAYS = [f"{path}/{name}".lstrip("/") for path in GROUPS for name in ("x", "y")]
NODES = sorted(GROUPS + ARRAYS)
STATUSES = {"migrated", "Zarr v3 already", "excluded"}


def consolidate(folder):
    for path in ("deep", ""):
        zarr.consolidate_metadata(folder, path=path, zarr_format=2)


def shown(path):
    """Return the paths of all nodes that a Zarr v3 group shows, by itself and consolidated."""
    found = []
    for is_consolidated in (False, None):
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=is_consolidated)
        found.append(sorted(name for name, _ in group.members(max_depth=None)))
    assert found[0] == found[1]
    return found[0]


class TestHierarchies:
    @pytest.mark.parametrize("is_consolidated", [False, True])
    def test_migrated_and_undone(self, folder, is_consolidated):
        """Children come first, and last to undo: Zarr v3 groups do not show nodes of Zarr v2."""
        if is_consolidated:
            consolidate(folder)
        assert statuses(folder, dry_run=True) == dict.fromkeys(NODES, "to be migrated")
        assert written_in(folder) == {}
        paths = list(statuses(folder))
        assert paths.index("deep/in/x") < paths.index("deep/in") < paths.index("deep")
        assert shown(folder) == NODES[1:]
        group = zarr.open_group(folder, zarr_format=3, mode="r")
        assert (group.metadata.consolidated_metadata is not None) == is_consolidated
        assert group.attrs["title"] == "a"
        before = written_in(folder)
        assert statuses(folder) == dict.fromkeys(NODES, "Zarr v3 already")
        assert statuses(folder, undo=True, dry_run=True) == dict.fromkeys(NODES, "to be undone")
        assert written_in(folder) == before
        undone = statuses(folder, undo=True)
        assert undone == dict.fromkeys(NODES, "undone")
        assert list(undone) == list(reversed(paths))
        assert written_in(folder) == {}
        assert statuses(folder, undo=True) == dict.fromkeys(NODES, "Zarr v2 already")

    def test_groups_above_refused_arrays_are_not_written(self, folder):
        """Their Zarr v3 metadata would hide them."""
        refused = {f"deep/in {name}": settings for name, settings in REFUSED.items()}
        for path, (settings, _) in refused.items():  # beside a group whose path begins likewise
            write_v2(folder / path, **({"stored": None, "dtype": "<f4"} | settings))
        zarr.create_group(folder / "in mixed", zarr_format=2)  # of the same name, but not above it
        found = migrated(folder)
        assert {path for path, report in found.items() if report.status == "refused"} == {
            *("", "deep", *refused),
        }
        for path, (_, reason) in refused.items():
            assert reason in found[path].reasons[0]
        hidden = "hide nodes below it that could not be migrated: deep/in behind, deep/in broken"
        assert hidden in found["deep"].reasons[0]
        assert "exclude those that can't be migrated (--exclude PATH)" in found["deep"].reasons[0]
        assert written_in(folder).keys() == {*NODES, "in mixed"} - {"", "deep"}

    @pytest.mark.parametrize(
        ("path", "changes", "what"),
        [
            ("x", {"shape": [7]}, "shape [7]"),
            ("x", {"dimension_names": ["a"]}, "dimension_names"),
            ("x", {"chunk_key_encoding": {"name": "default"}}, "chunk_key_encoding"),
            ("x", {"attributes": {"units": "K"}}, "attribute units"),
            ("", {"attributes": {"title": "b"}}, "attribute title"),
            ("", {"node_type": "array", "shape": [3]}, "node_type, shape [3]"),
            ("deep", None, "node deep/new"),
            ("x", {"fill_value": 7}, None),
            ("x", {"shape": [3]}, None),
        ],
        ids=str,
    )
    def test_a_zarr_json_that_differs(self, folder, path, changes, what):
        """It is kept, replaced if asked for unless Zarr v2 lacks what it has, and never undone."""
        migrated(folder)
        if changes is None:
            zarr.create_array(folder / "deep/new", shape=3, dtype="i1", zarr_format=3)
            (folder / "deep/.zattrs").write_text('{"a": 1}')
        else:
            edited(folder / path / "zarr.json", **changes)
        before = written_in(folder)
        found = {report.path: report for report in migrate(folder, undo=True)}
        assert {report.status for report in found.values()} == {"kept"}
        names = ", ".join(changes or ["attributes"]).partition(", shape")[0]
        assert f"zarr.json differs from what migrate writes in {names}" in found[path].reasons[0]
        assert found["deep/in/x"].reasons[0].startswith("the same Zarr v3 group has ")
        assert written_in(folder) == before
        found = migrated(folder)
        refused = {name for name, report in found.items() if report.status == "refused"}
        assert refused == {path}
        assert (what or f"in {names}; if Zarr v2 is right, --overwrite replaces it") in found[
            path
        ].reasons[0]
        assert written_in(folder) == before
        assert statuses(folder, overwrite=True)[path] == ("refused" if what else "migrated")
        assert (written_in(folder) == before) == bool(what)

    @pytest.mark.parametrize("raw", ["{}}", "[1]", "null", '{"attributes": {"a', "\0 "])
    def test_broken_metadata_is_kept(self, folder, raw):
        migrated(folder)
        (folder / "x/zarr.json").write_text(raw)
        assert statuses(folder)["x"] == "refused"
        assert statuses(folder, undo=True)["x"] == "kept"
        assert (folder / "x/zarr.json").read_text() == raw

    @pytest.mark.parametrize("path", ["x", "deep/in", ""])
    def test_what_an_interrupted_write_leaves_is_replaced_or_undone(self, folder, path):
        """It was neither, and the array or group could not be opened."""
        consolidate(folder)
        migrated(folder)
        file, expected = folder / path / "zarr.json", written_in(folder)
        whole = file.read_bytes()
        for raw in (
            b"",
            b"{",
            whole[: len(whole) // 2],
            whole[:-1],
            bytes(9),
            whole[:9] + bytes(9),
        ):
            file.write_bytes(raw)
            assert statuses(folder)[path] == "migrated"
            assert written_in(folder) == expected
            file.write_bytes(raw)
            assert set(statuses(folder, undo=True).values()) == {"undone"}
            assert written_in(folder) == {}
            migrate(folder)

    def test_a_store_that_writes_half_a_document(self, folder):
        """What was there before is there again, or nothing; whole ones of others are kept."""

        class Full(zarr.storage.WrapperStore):
            num_failures = 0

            async def set(self, key, value):
                self.num_failures += 1
                half = len(value) // 2 if key == "x/zarr.json" else len(value)
                num_bytes = half if self.num_failures == 1 else len(value)
                await super().set(key, type(value).from_bytes(value.to_bytes()[:num_bytes]))
                if self.num_failures == 1:
                    raise OSError(28, "No space left on device", key)

        def failing():
            with pytest.raises(OSError, match="x/zarr.json can't be written: "):
                migrate(
                    Full(zarr.storage.LocalStore(folder)), overwrite=True, exclude=["y", "deep"]
                )

        failing()
        assert written_in(folder) == {}
        migrated(folder)
        edited(folder / "x/zarr.json", fill_value=7)
        before = written_in(folder)
        failing()
        assert json.loads((folder / "x/zarr.json").read_text()) == json.loads(before["x"])
        (folder / "x/zarr.json").unlink()
        (folder / "y/zarr.json").unlink()
        with pytest.raises(OSError, match="y/zarr.json can't be written: "):
            migrate(Full(zarr.storage.LocalStore(folder)))
        assert written_in(folder)["y"] == before["y"]

    @pytest.mark.parametrize("kind", ["file://", "local://", "a store"])
    def test_local_folders_of_fsspec_are_written_like_folders(self, folder, kind):
        """fsspec opens the file itself for writing: a full disk or a kill leaves half of it."""
        pytest.importorskip("fsspec")
        of_url = zarr.storage.FsspecStore.from_url
        location = of_url(f"file://{folder}") if kind == "a store" else f"{kind}{folder}"
        opened = open_store(location, read_only=False)
        assert isinstance(opened, zarr.storage.LocalStore)
        assert opened.root == folder
        assert set(statuses(folder, dry_run=True).values()) == {"to be migrated"}
        assert {report.status for report in migrate(location)} == {"migrated"}
        with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
            migrate(f"file://{folder}/nowhere")
        with pytest.raises(ValueError, match="this is a file: migrate needs a folder"):
            migrate(f"file://{folder}/x/0")

    def test_a_web_server(self, folder):
        """The advice was to fix status 501, and to run migrate again."""
        pytest.importorskip("aiohttp", reason="pip install '.[stores]'")
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_port}/"
            assert {each.status for each in migrate(url, dry_run=True)} == {"to be migrated"}
            advice = "web servers are rarely writable: run migrate on a copy in a folder$"
            with pytest.raises(OSError, match=advice):
                migrate(url)
            server.shutdown()

    def test_many_refused_nodes(self, tmp_path):
        """Each group compared its path with those of all nodes that were refused before."""

        def num_lines(number):
            count = 0

            def trace(frame, event, _):
                nonlocal count
                count += event == "line"
                return trace if frame.f_code.co_filename == migrate_module.__file__ else None

            for i in range(number):
                zarr.create_group(tmp_path / f"{number}/{i}", zarr_format=2)
                write_v2(tmp_path / f"{number}/{i}/x", None, "<f4", shape="x", chunks=[1])
            zarr.create_group(tmp_path / str(number), zarr_format=2)
            previous = sys.gettrace()
            sys.settrace(trace)
            try:
                reports = migrate(tmp_path / str(number))
            finally:
                sys.settrace(previous)
            assert {report.status for report in reports} == {"refused"}
            assert f"/x, and {2 * number - 10} more; to migrate it" in reports[-1].reasons[0]
            return count

        assert num_lines(40) < 4.4 * num_lines(10)

    def test_what_fails_without_a_text_is_not_undone(self, tmp_path, monkeypatch):
        """Its Zarr v3 metadata could not be compared, and were deleted."""
        settings = {"zarr_format": 2, "compressors": None, "filters": [numcodecs.Delta("i4")]}
        zarr.create_array(tmp_path, shape=(4,), dtype="i4", **settings)
        migrate(tmp_path)

        class Failing(numcodecs.Delta):
            def __init__(self, *_args, **_kwargs):
                raise ValueError

        monkeypatch.setitem(numcodecs.registry.codec_registry, "delta", Failing)
        (report,) = migrate(tmp_path, undo=True)
        assert report.status == "kept"
        assert "can't be compared with what migrate writes: ValueError; " in report.reasons[0]
        assert (tmp_path / "zarr.json").exists()

    @pytest.mark.parametrize("command", ["migrate", "migrate --undo"])
    def test_the_advice_after_a_failure(self, folder, command):
        """After a failed --undo, it was to run migrate again, which does the opposite."""

        class Full(zarr.storage.LocalStore):
            async def delete(self, key):
                raise OSError(28, "No space left on device", key)

            async def set(self, key, value):
                raise OSError(28, "No space left on device", key)

        is_undo = command.endswith("--undo")
        if is_undo:
            migrate(folder)
        advice = f"No space left on device; fix that and run {command} again to finish"
        with pytest.raises(OSError, match=advice):
            migrate(Full(folder), undo=is_undo)

    def test_groups_apart_are_undone_apart(self, folder):
        """Where a group is still Zarr v2, what it shows does not depend on Zarr v3."""
        migrated(folder)
        (folder / "zarr.json").unlink()
        edited(folder / "deep/y/zarr.json", shape=[9])
        zarr.create_array(folder / "new", shape=3, dtype="i1", zarr_format=3)
        found = migrated(folder, undo=True)
        assert found["new"].reasons[0].startswith("it has only Zarr v3 metadata")
        undone = [path for path, report in found.items() if report.status == "undone"]
        assert undone == ["x", "y"]
        assert written_in(folder).keys() == {"new", *NODES} - {"", "x", "y"}

    def test_what_is_zarr_v3_alone_does_not_keep_the_rest(self, folder):
        """It kept all of its group, most of which migrate had written a moment before."""
        zarr.create_array(folder / "deep/new", shape=3, dtype="i1", zarr_format=3)
        zarr.create_group(folder / "alone", zarr_format=3)
        write_v2(folder / "alone/old", None, "<i4")
        migrated(folder)
        found = migrated(folder, undo=True)
        kept = {path for path, report in found.items() if report.status == "kept"}
        assert kept == {"deep/new", "alone", "alone/old"} == written_in(folder).keys()
        assert found["deep/new"].reasons[0].startswith("it has only Zarr v3 metadata, so Zarr v2 ")
        assert "the same Zarr v3 group has alone" in found["alone/old"].reasons[0]

    def test_consolidated_metadata_is_completed(self, folder):
        """After an interruption, or if there are more nodes."""
        consolidate(folder)
        migrated(folder)
        before = json.loads((folder / "zarr.json").read_text())["consolidated_metadata"]
        del before["metadata"]["deep/x"]
        edited(folder / "zarr.json", consolidated_metadata=before)
        assert statuses(folder)[""] == "migrated"
        assert shown(folder) == NODES[1:]
        write_v2(folder / "z", bytes(16), "<i4", [4])
        assert statuses(folder)["x"] == "Zarr v3 already"
        assert shown(folder) == [*NODES[1:], "z"]

    @pytest.mark.parametrize("metadata", [None, {"kind": "inline", "metadata": {}}])
    def test_groups_that_are_zarr_v3_alone_stay_as_they_are(self, tmp_path, metadata):
        zarr.create_group(tmp_path, zarr_format=3)
        write_v2(tmp_path / "old", None, "<i4")
        before = edited(tmp_path / "zarr.json", consolidated_metadata=metadata)
        assert statuses(tmp_path) == {"old": "migrated"}
        assert (tmp_path / "zarr.json").read_text() == before

    def test_a_group_whose_metadata_can_not_be_consolidated_is_not_written(self, folder):
        consolidate(folder)
        zarr.create_array(folder / "z", shape=3, dtype="i1")
        edited(folder / "z/zarr.json", codecs=[{"name": "no"}])
        assert migrated(folder)[""].status == "refused"
        assert not (folder / "zarr.json").exists()

    def test_a_progress_bar_counts_nodes_and_documents(self, folder):
        bar = Mock()
        migrate(folder, progress=bar)
        assert [each.args for each in bar.reset.mock_calls] == [(None,), (9,), (9,)]
        assert bar.update.call_count == 3 * 9


class TestRemedies:
    """What a report advises works, and takes nothing away."""

    @pytest.mark.parametrize("path", ["x", "deep"])
    @pytest.mark.parametrize("raw", [None, "[1]"], ids=["changed", "broken"])
    def test_what_is_kept_can_be_undone(self, folder, tmp_path, path, raw):
        """It was said to be kept, but not what to do about that."""
        migrated(folder)
        edited(folder / path / "zarr.json", attributes={"new": 1})
        if raw:
            (folder / path / "zarr.json").write_text(raw)
        reasons = {name: report.reasons[0] for name, report in migrated(folder, undo=True).items()}
        assert reasons.pop(path).endswith(MOVE)
        assert all(f"has {path}, which is kept: see there" in each for each in reasons.values())
        (folder / path / "zarr.json").rename(tmp_path / "kept.json")
        assert set(statuses(folder, undo=True).values()) == {"undone", "Zarr v2 already"}
        assert written_in(folder) == {}

    def test_what_is_zarr_v3_alone_can_be_copied(self, folder):
        zarr.create_group(folder / "alone", zarr_format=3, attributes={"a": 1})
        migrated(folder)
        reason = migrated(folder, undo=True)["alone"].reasons[0]
        assert reason.endswith("open it by its path, or copy it to Zarr v2 (zarr_format=2)")
        zarr.create_group(folder / "alone", zarr_format=2, attributes={"a": 1})
        assert migrated(folder, undo=True)["alone"].status == "undone"
        assert "alone" in zarr.open_group(folder, mode="r")

    @pytest.mark.parametrize(
        ("name", "raw", "remedy"),
        [
            (".zarray", "{", "; correct it, or restore it from a backup"),
            (".zattrs", "[1]", "; correct it, or restore it from a backup"),
            (".zarray", '{"shape": "x"}', "; if .zarray is damaged, correct or restore it"),
            ("zarr.json", "[1]", MOVE),
            ("zarr.json", '{"attributes": {"new": 1}}', MOVE),
            (
                "zarr.json",
                "{}",
                "zarr.json is incomplete; if Zarr v2 is right, --overwrite replaces it",
            ),
            ("0", "damaged", "; see numcodecs-bytes check"),
        ],
    )
    def test_broken_files(self, folder, tmp_path, name, raw, remedy):
        zarr.create_array(folder / "z", shape=4, dtype="i4", zarr_format=2)[:] = 1
        (folder / "z/.zattrs").write_text("{}")
        file = folder / "z" / name
        intact = file.read_bytes() if file.exists() else None
        file.write_text(raw)
        found = migrated(folder)
        assert found["z"].reasons[0].endswith(remedy)
        assert set(statuses(folder, exclude=["z"]).values()) <= STATUSES
        file.rename(tmp_path / "moved")
        if intact:
            file.write_bytes(intact)
        assert set(statuses(folder).values()) <= STATUSES
        assert shown(folder) == [*NODES[1:], "z"]

    @pytest.mark.parametrize(
        ("array_dtype", "wrong", "right"),
        [
            ("<f4", {"endian": "big"}, {"dtype": "<f4"}),
            ("<f4", {"endian": "big", "dtype": ">f4"}, {"dtype": "<f4"}),
            ("<f4", {"endian": "big", "dtype": "<f8"}, {"dtype": "<f4"}),
            (">f4", {"endian": "big", "dtype": "<f4"}, {"dtype": ">f4"}),
            (">f4", {"endian": "little"}, {"endian": "big", "dtype": ">f4"}),
            (">f4", {"endian": "little"}, {"dtype": ">f4"}),
        ],
        ids=str,
    )
    @pytest.mark.skipif(sys.byteorder == "big", reason="bytes have other names there")
    def test_the_filter_bytes_with_a_wrong_dtype(self, tmp_path, array_dtype, wrong, right):
        """The dtype to write was not named, or in many words about something else."""
        endian = right.get("endian", wrong["endian"])
        stored = np.arange(4, dtype="<f4" if endian == "little" else ">f4")
        filters = [{"id": "bytes", **wrong}]
        write_v2(tmp_path, stored.tobytes(), array_dtype, filters=filters)
        (report,) = migrated(tmp_path).values()
        (checked,) = check(tmp_path)
        for shown in (*checked.problems, *report.reasons):
            assert json.dumps(right)[1:-1] in shown
            assert ".zarray" in shown
        edited(tmp_path / ".zarray", filters=[filters[0] | right])
        assert [each.problems for each in check(tmp_path)] == [[]]
        assert statuses(tmp_path) == {"": "migrated"}
        assert zarr.open_array(tmp_path, zarr_format=3)[:].tolist() == [0, 1, 2, 3]

    def test_reasons_are_not_said_twice(self, tmp_path):
        """A chunk was named twice, and so was `check`; a codec ended with two points."""
        write_v2(tmp_path / "a", bytes(3), "<i4")
        write_v2(tmp_path / "b", bytes(4), "<i4", compressor={"id": "nobody's"})
        reasons = {path: report.reasons for path, report in migrated(tmp_path).items()}
        assert reasons["a"][0].count("chunk '") == reasons["a"][0].count("check`") == 1
        assert ".;" not in reasons["b"][0]

    def test_an_array_that_only_consolidated_metadata_have(self, tmp_path):
        """zarr showed it before, and no more after."""
        group = zarr.create_group(tmp_path, zarr_format=2)
        for name in "ab":
            group.create_array(name, shape=3, dtype="i1")[:] = 1
        zarr.consolidate_metadata(tmp_path)
        document = (tmp_path / "a/.zarray").read_bytes()
        (tmp_path / "a/.zarray").unlink()
        found = migrated(tmp_path)
        assert {path: each.status for path, each in found.items()} == {
            "": "refused",
            "b": "migrated",
        }
        why = "only .zmetadata has a/.zarray: write that from it or, if the node was deleted, "
        assert found[""].reasons[0].startswith(why)
        (tmp_path / "a/.zarray").write_bytes(document)
        assert statuses(tmp_path)[""] == "migrated"
        assert sorted(zarr.open_group(tmp_path, mode="r")) == ["a", "b"]

    def test_a_group_that_only_consolidated_metadata_have(self, tmp_path):
        """zarr showed what is in it before, and no more after."""
        group = zarr.create_group(tmp_path, zarr_format=2)
        group.create_array("a/b", shape=3, dtype="i1")[:] = 1
        zarr.consolidate_metadata(tmp_path)
        (tmp_path / "a/.zgroup").unlink()
        why = "only .zmetadata has a/.zgroup: write that from it or, if the node was deleted, "
        assert migrated(tmp_path)[""].reasons[0].startswith(why)

    def test_links_to_what_is_missing_or_visited_under_another_name(self, tmp_path):
        group = zarr.create_group(tmp_path, zarr_format=2)
        group.create_array("a/b", shape=3, dtype="i1")[:] = 1
        (tmp_path / "latest").symlink_to("a", target_is_directory=True)
        (tmp_path / "README.pdf").symlink_to("nothing")
        zarr.consolidate_metadata(tmp_path)
        assert "latest/b/.zarray" in (tmp_path / ".zmetadata").read_text()
        assert set(statuses(tmp_path).values()) == {"migrated"}
        assert [report.problems for report in check(tmp_path)] == [[]]
        assert set(statuses(tmp_path, undo=True).values()) == {"undone"}
        (tmp_path / "a").rename(tmp_path / "c")
        lost = "a/.zgroup, latest/.zgroup, a/b/.zarray, latest/b/.zarray"
        assert f"only .zmetadata has {lost}: write" in str(migrated(tmp_path)[""])

    @pytest.mark.parametrize("metadata", [None, 5, [1], {"../a/.zarray": {}}])
    def test_odd_consolidated_metadata(self, tmp_path, metadata):
        zarr.create_group(tmp_path, zarr_format=2)
        document = {"zarr_consolidated_format": 1, "metadata": metadata}
        (tmp_path / ".zmetadata").write_text(json.dumps(document))
        assert statuses(tmp_path) == {"": "migrated"}

    @pytest.mark.parametrize("change", [{"shuffle": 3}, {"shuffle": "1"}, {"shape": True}])
    def test_metadata_that_zarr_reads_all_the_same(self, tmp_path, change):
        """They ended the migration of all other arrays, as a bug."""
        group = zarr.create_group(tmp_path, zarr_format=2)
        group.create_array("a", shape=4, dtype="i1")
        blosc = numcodecs.Blosc().get_config()
        group.create_array("b", shape=4, dtype="i1", compressors=numcodecs.Blosc())
        changed = {"compressor": blosc | change} if "shuffle" in change else change
        edited(tmp_path / "b/.zarray", **changed)
        found = migrated(tmp_path)
        assert (found["a"].status, found["b"].status) == ("migrated", "refused")
        assert "expected one of [0, 1, 2, -1]" in str(found["b"]) or "expected a list" in str(
            found["b"]
        )

    def test_chunks_with_other_names(self, tmp_path):
        """None was compared, and all values are fill values, before and after."""
        write_v2(tmp_path, bytes(4), "<i2", (1, 2))
        edited(tmp_path / ".zarray", dimension_separator="/")
        (report,) = migrated(tmp_path).values()
        why = "no chunk has the name that .zarray gives it, but there is 0.0: see numcodecs-bytes "
        assert report.reasons == [f"{why}check"]
        edited(tmp_path / ".zarray", dimension_separator=".")
        assert statuses(tmp_path) == {"": "migrated"}

    def test_metadata_that_can_not_be_consolidated(self, folder):
        file = folder / "new/zarr.json"
        zarr.create_array(folder / "new", shape=3, dtype="i1", zarr_format=3)
        consolidate(folder)
        intact = file.read_bytes()
        file.write_text("[")
        assert "new/zarr.json is not JSON: " in migrated(folder)[""].reasons[0]
        assert migrated(folder)[""].reasons[0].endswith("; correct it, or restore it from a backup")
        file.write_bytes(intact)
        assert statuses(folder)[""] == "migrated"

    @pytest.mark.parametrize(
        "name", [*(["mixed"] if HAS_STRUCT else []), "behind", "shuffled", "quantize"]
    )
    def test_what_zarr_v3_lacks_can_be_copied(self, folder, name):
        """To an array with other codecs, or another data type."""
        settings = {"filters": [{"id": "quantize", "digits": 1, "dtype": ">f4"}]}
        settings = {"stored": None, "dtype": "<f4"} | REFUSED.get(name, [settings])[0]
        old = zarr.open_array(write_v2(folder / "old", **settings), zarr_format=2)
        assert "copy the array to one " in migrated(folder)["old"].reasons[0]
        dtype = old.dtype.newbyteorder("<")
        new = zarr.create_array(folder / "new", shape=old.shape, dtype=dtype, zarr_format=2)
        new[...] = old[...].astype(dtype)
        found = statuses(folder, exclude=["old"])
        assert (found["old"], found["new"], found[""]) == ("excluded", "migrated", "migrated")


class TestExclude:
    """What can't be migrated, or is not to be, does not keep the groups above it in Zarr v2."""

    @pytest.mark.parametrize(
        ("exclude", "excluded"),
        [
            (["/x/", "deep/x"], ["x", "deep/x"]),
            (["x", "deep/in"], ["x", "deep/in", "deep/in/x", "deep/in/y"]),
            (["x", "deep"], ["x", *NODES[1:8]]),
        ],
        ids=str,
    )
    def test_nodes_and_all_below_them(self, folder, exclude, excluded):
        write_v2(folder / "x", None, **MIXED)
        zarr.create_group(folder / "deeper", zarr_format=2)  # which begins likewise
        nodes = [*NODES, "deeper"]
        consolidate(folder)
        found = migrated(folder, exclude=exclude)
        assert {path: report.status for path, report in found.items()} == {
            path: "excluded" if path in excluded else "migrated" for path in nodes
        }
        reason = found["x"].reasons[0]
        assert reason.startswith("it stays in Zarr v2, so it does not show in Zarr v3 groups: ")
        assert shown(folder) == sorted({*nodes} - {"", *excluded})
        # What the report says of them.
        assert zarr.open_array(folder, path="x", mode="r").metadata.zarr_format == 2
        assert "x" in zarr.open_group(folder, mode="r", zarr_format=2)
        again = statuses(folder, exclude=exclude)
        assert set(again.values()) == {"excluded", "Zarr v3 already"}
        write_v2(folder / "x", bytes(16), "<f4", [4])  # mended, it is migrated later
        assert statuses(folder)["x"] == "migrated"
        assert shown(folder) == sorted(nodes)[1:]
        assert set(statuses(folder, undo=True).values()) == {"undone"}

    def test_what_has_zarr_v3_metadata_stays_as_it_is(self, folder):
        migrated(folder)
        before = edited(folder / "x/zarr.json", shape=[9])
        found = migrated(folder, exclude=["x"])
        assert (found["x"].status, found["x"].reasons) == (
            *("excluded", ["its zarr.json stays as it is"]),
        )
        assert (folder / "x/zarr.json").read_text() == before


class TestWrongArguments:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"undo": True, "overwrite": True}, ValueError, "undo can't be combined with"),
            ({"undo": True, "exclude": ["x"]}, ValueError, "undo can't be combined with"),
            ({"exclude": "x"}, TypeError, "exclude must be a collection of paths, got 'x'"),
            ({"storage_options": {"a": 1}}, ValueError, "for paths and URLs, not for open stores"),
            ({}, OSError, r"zarr.json can't be written: .* read-only mode"),
        ],
        ids=str,
    )
    def test_they_raise(self, folder, options, error, message):
        with pytest.raises(error, match=message):
            migrate(zarr.storage.LocalStore(folder, read_only=True), **options)

    @pytest.mark.parametrize("exclude", ["x", 5], ids=str)
    def test_before_the_store_is_read(self, exclude):
        """A store of 200 arrays was read first."""

        class Unread(zarr.storage.MemoryStore):
            async def get(self, *_args, **_kwargs):
                raise AssertionError("the store was read")

        with pytest.raises(TypeError):
            migrate(Unread(), exclude=exclude)

    def test_what_is_no_path_below_the_root(self, folder):
        for exclude in ([""], ["x", "/"], [None], ["x/0"], ["dee"]):
            with pytest.raises(ValueError, match="the store has no such array or group below"):
                migrate(folder, exclude=exclude)
        with pytest.raises(ValueError, match="can't exclude '/'"):
            migrate(folder, exclude=["/"])
        with pytest.raises(TypeError, match=r"progress must be a progress bar .*, got True"):
            migrate(folder, progress=True)
        for exclude in (None, b"x", "x"):
            with pytest.raises(TypeError, match="exclude must be a collection of paths, got "):
                migrate(folder, exclude=exclude)
        for name in ("dry_run", "overwrite", "undo"):  # an undo of "no" was one
            with pytest.raises(TypeError, match=f"{name} must be True or False, got 'no'"):
                migrate(folder, **{name: "no"})
        assert written_in(folder) == {}

    def test_a_store_that_can_not_list_or_be_read(self, folder):
        """It was reported as one array that is refused."""

        class Unlisted(zarr.storage.LocalStore):
            supports_listing = False

        class Forbidden(zarr.storage.MemoryStore):
            async def get(self, *_args, **_kwargs):
                raise PermissionError("forbidden")

        with pytest.raises(ValueError, match="the store does not list its contents"):
            migrate(Unlisted(folder))
        with pytest.raises(PermissionError, match="forbidden"):
            migrate(Forbidden())


class TestCheck:
    """Metadata of both formats beside each other."""

    @pytest.mark.parametrize("dtype", [[("a", ">i4"), ("b", ">f8")], [("a", "<i4"), ("b", ">f8")]])
    def test_errors_of_zarrs_own_tool_are_found(self, tmp_path, dtype):
        """It takes structures for little endian: 1 reads as 16777216."""
        create(tmp_path, random_array(dtype, SHAPE))
        migrate_v2_to_v3(input_store=zarr.storage.LocalStore(tmp_path))
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        what = "bytes(endian=big)" if dtype[0][1] == ">i4" else "both byte orders"
        assert any(what in problem for problem in report.problems) or not HAS_STRUCT

    def test_disagreements_are_problems(self, tmp_path):
        create(tmp_path, random_array(">f4", SHAPE))
        migrated(tmp_path)
        edited(
            tmp_path / "zarr.json",
            shape=[6, 7, 9],
            chunk_grid={"name": "regular", "configuration": {"chunk_shape": [4, 7, 4]}},
            data_type="int32",
            fill_value=1,
            chunk_key_encoding={"name": "default"},
            codecs=[bytes_codec("little")],
        )
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        names = ["shape", "chunk shape", "data type", "fill value", "key of the first chunk"]
        found = [problem for problem in report.problems if "missing, but" not in problem]
        for name, problem in zip([*names, "list of codecs"], found, strict=True):
            assert problem.startswith(f".zarray and zarr.json disagree: the {name} is ")
        assert "bytes(endian=big) in .zarray, bytes(endian=little) in zarr.json; zarr re" in problem

    def test_attributes_that_differ(self, tmp_path):
        """Check found no problem, and migrate said that Zarr v2 lacked the attribute."""
        array = create(tmp_path, np.arange(4.0), chunks=(4,))
        array.attrs.update({"scale_factor": 1, "units": "m", "_ARRAY_DIMENSIONS": ["x"]})
        migrated(tmp_path)
        assert [report.problems for report in check(zarr.storage.LocalStore(tmp_path))] == [[]]
        of_v3 = zarr.open_array(tmp_path, zarr_format=3)
        of_v3.attrs.put({"scale_factor": 5, "of_v3": 0})
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        disagree = ".zattrs and zarr.json disagree: attribute"
        advice = "; zarr reads zarr.json: correct the one that is wrong"
        assert report.problems == [
            f"{disagree} of_v3 is missing in .zattrs, 0 in zarr.json{advice}",
            f"{disagree} scale_factor is 1 in .zattrs, 5 in zarr.json{advice}",
            f"{disagree} units is 'm' in .zattrs, missing in zarr.json{advice}",
        ]
        (node,) = migrate(tmp_path, overwrite=True)
        kept = "so it is kept: attribute scale_factor = 5 (1 in Zarr v2), attribute of_v3 = 0; "
        assert kept in node.reasons[0]

    @pytest.mark.parametrize("name", [".zarray", ".zattrs", "zarr.json"])
    @pytest.mark.parametrize("location", ["{}", "file://{}"])
    def test_links_to_metadata_that_are_not_there(self, tmp_path, name, location):
        """As those of git-annex: they were taken for missing, replaced, and the node hidden."""
        if "file" in location:
            pytest.importorskip("fsspec")
        zarr.create_group(tmp_path / "a", zarr_format=2)
        array = create(tmp_path / "a/b", np.arange(4.0), chunks=(4,))
        array.attrs["units"] = "m"
        if name == "zarr.json":
            migrated(tmp_path / "a")
        (tmp_path / "a/b" / name).unlink()
        (tmp_path / "a/b" / name).symlink_to("nothing")
        (report,) = check(location.format(tmp_path / "a"))
        why = f"b/{name} is a symbolic link to a missing file: restore that file first"
        assert any(why in problem for problem in report.problems)
        (node,) = [each for each in migrate(location.format(tmp_path / "a")) if each.path == "b"]
        assert node.status == "refused"
        assert why in node.reasons[0]
        assert (tmp_path / "a/b" / name).is_symlink()
        assert name == "zarr.json" or not (tmp_path / "a/zarr.json").exists()

    def test_a_link_into_another_store(self, tmp_path):
        """Metadata in the other one were written, and removed."""
        for name in ("a", "other"):
            zarr.create_group(tmp_path / name, zarr_format=2)
            create(tmp_path / name / "x", np.arange(4.0), chunks=(4,))
        (tmp_path / "a/y").symlink_to("../other/x", target_is_directory=True)
        before = sorted(path.name for path in (tmp_path / "other/x").iterdir())
        status = {node.path: node.status for node in migrate(tmp_path / "a")}
        assert status == {"": "refused", "x": "migrated", "y": "refused"}
        assert sorted(path.name for path in (tmp_path / "other/x").iterdir()) == before
        migrate(tmp_path / "a", exclude=["y"])
        migrate(tmp_path / "other")
        status = {node.path: node.status for node in migrate(tmp_path / "a", undo=True)}
        assert status == {"": "undone", "x": "undone", "y": "kept"}
        assert (tmp_path / "other/x/zarr.json").exists()
        assert sorted(zarr.open_group(tmp_path / "a", mode="r").array_keys()) == ["x", "y"]
        for undo, advice in (
            (False, "migrate it there, and exclude it here (--ex"),
            (True, "undo "),
        ):
            (node,) = [each for each in migrate(tmp_path / "a", undo=undo) if each.path == "y"]
            (reason,) = node.reasons
            where = "a symbolic link leads to it from another store"
            assert reason.startswith(f"{where}: {advice}")

    def test_a_link_that_leads_to_itself(self, tmp_path):
        """On Python 3.11, it was a bug of this package."""
        zarr.create_group(tmp_path, zarr_format=2)
        (tmp_path / "loop").symlink_to("loop")
        status = {node.path: node.status for node in migrate(tmp_path)}
        assert status[""] in ("migrated", "refused")

    def test_attributes_are_compared_once(self, folder):
        """They were requested for each consolidated group above an array."""
        requested = []

        class Counting(zarr.storage.LocalStore):
            async def get(self, key, *args, **kwargs):
                requested.append(key)
                return await super().get(key, *args, **kwargs)

        consolidate(folder)
        zarr.consolidate_metadata(folder, path="deep/in", zarr_format=2)
        assert [report.path for report in check(Counting(folder))] == sorted(ARRAYS)
        # Once to open the array, and once to compare.
        assert {requested.count(f"{name}/.zattrs") for name in ARRAYS} == {2}

    def test_settings_and_names_of_codecs(self, tmp_path):
        """Those of filters affect the values, unlike the level and the name of a compressor."""
        scaled = numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="<f8", astype="<i2")
        settings = {"filters": [scaled], "compressors": numcodecs.Zstd()}
        create(tmp_path, np.arange(4.0), chunks=(4,), **settings)
        migrated(tmp_path)
        codecs = json.loads((tmp_path / "zarr.json").read_text())["codecs"]
        codecs[2] = {"name": "numcodecs.zstd", "configuration": {"level": 1}}
        edited(tmp_path / "zarr.json", codecs=codecs)
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        assert report.problems == []
        codecs[0]["configuration"]["scale"] = 100
        edited(tmp_path / "zarr.json", codecs=codecs)
        (report,) = check(zarr.storage.LocalStore(tmp_path))
        (problem,) = report.problems
        assert "disagree: the list of codecs is " in problem


class TestCommand:
    def test_report(self, folder, capsys):
        """Only what is not as expected is listed, and a sum."""
        edited(folder / "y/.zarray", compressor={"id": "zlib", "level": 1})
        (folder / "y/0").unlink()
        all_of_them = [f"/{path}" for path in ("", *sorted(NODES[1:], key=lambda p: p.split("/")))]
        for options, listed, sums in (
            ("--dry-run", ["/y"], "0 refused, 9 to be migrated"),
            ("--dry-run --verbose", all_of_them, "0 refused, 9 to be migrated"),
            ("", ["/y"], "0 refused, 9 migrated"),
            ("--exclude x", ["/x", "/y"], "0 refused, 8 Zarr v3 already, 1 excluded"),
            ("--undo --verbose", all_of_them, "0 kept, 9 undone"),
            ("--undo", [], "0 kept, 9 Zarr v2 already"),
        ):
            command = ["migrate", str(folder), *options.split()]
            assert main(command) == 0
            out = capsys.readouterr().out
            lines = out.splitlines()
            assert [line.split()[0] for line in lines if line.startswith("/")] == listed
            assert f"9 arrays and groups: {sums}" in lines
            assert ("  note    numcodecs.zlib in Zarr v3" in out) == ("--undo" not in options)
            assert ("zarr remove-metadata v2" in out) == (not options)
            assert main(["--json", *command]) == 0
            found = json.loads(capsys.readouterr().out)
            wrong = "kept" if "--undo" in options else "refused"
            assert (found[f"num_{wrong}"], len(found["nodes"])) == (0, 9)

    def test_status_of_nodes_that_are_refused_or_kept(self, folder, capsys):
        write_v2(folder / "x", None, **MIXED)
        assert main(["migrate", str(folder)]) == 1
        assert "refused\n  its fields have both byte orders" in capsys.readouterr().out
        edited(folder / "deep/zarr.json", attributes={})
        assert main(["migrate", str(folder), "--undo", "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["num_kept"] == 6

    def test_status_without_anything_to_migrate(self, tmp_path, capsys):
        assert main(["migrate", str(tmp_path)]) == 1
        assert "no Zarr v2 metadata" in capsys.readouterr().out
        nowhere, file, netcdf = tmp_path / "nowhere", tmp_path / "a", tmp_path / "a.nc"
        file.write_bytes(b"a")
        netcdf.write_bytes(b"CDF")
        recipe = 'see "How do I read a NetCDF-3 file?" in the documentation, docs/recipes.md'
        need = "migrate needs a folder, or a URL that fsspec can write to, with Zarr v2 metadata"
        of_file = f"this is a file: {need}"
        for path, why in (
            (nowhere, f"there is no such file or folder: {nowhere}"),
            (file, of_file),
            (netcdf, f"this is a NetCDF-3 file, not Zarr: {recipe}"),
            ("", "expected the path or URL of a store, got an empty text"),
        ):
            assert main(["migrate", str(path), "--json"]) == 2
            assert json.loads(capsys.readouterr().out) == {"error": why}

    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [
            ("a.zarr", "check a.zarr"),
            ("--json data/a", "check data/a"),
            ("help", "--help"),
            ("info --json", "--help"),
            ("s3://data/old --max-chunks 1", "check s3://data/old --max-chunks 1"),
            ("check.zarr", "check check.zarr"),
            ("migrat data --undo", "migrate data --undo"),
            ("undo data", "migrate --undo data"),
            ("--exclude a data", "migrate --exclude a data"),
            ("--exclude=a data", "migrate --exclude=a data"),
        ],
    )
    def test_a_command_that_is_forgotten_or_mistyped(self, capsys, arguments, meant):
        """The answer was "invalid choice: 'a.zarr'"."""
        with pytest.raises(SystemExit, match="2"):
            main(arguments.split())
        first = arguments.removeprefix("--json ").split()[0]
        what = f"'{first}' is no command"
        if meant.startswith("migrate --"):
            what = f"--{first.strip('-').partition('=')[0]} is an option of migrate"
        answer = capsys.readouterr().err.replace("=a is", " is")
        assert answer.endswith(f"error: {what}: did you mean `numcodecs-bytes {meant}`?\n")

    @pytest.mark.parametrize("command", ["migrate", pytest.param("check", marks=pytest.mark.long)])
    def test_a_closed_pipe_ends_the_report_alone(self, tmp_path, command):
        """`migrate STORE | head -1` stopped after two nodes, and said that a pipe is broken."""
        zarr.create_group(tmp_path, zarr_format=2)
        for i in range(60):  # more than is buffered
            write_v2(tmp_path / f"{i:0200}", None, "<i2")
        reading, writing = os.pipe()
        os.close(reading)
        done = run_python(
            *(
                "-m",
                "numcodecs_bytes",
                command,
                tmp_path,
                *(["--verbose"] * (command == "migrate")),
            ),
            status=0 if command == "migrate" else 141,
            options={"capture_output": False, "stdout": writing, "stderr": subprocess.PIPE},
        )
        os.close(writing)
        assert not done.stderr
        assert len(written_in(tmp_path)) == (61 if command == "migrate" else 0)

    @pytest.mark.parametrize("name", ["a.zip", "a.zarr"])
    def test_a_zip_archive_is_refused(self, tmp_path, capsys, name):
        """An interruption while zarr has it open would destroy it."""
        with zarr.storage.ZipStore(tmp_path / name, mode="w") as store:
            create(store, random_array(">i2", SHAPE))
            wrapper = zarr.storage.LoggingStore(zarr.storage.WrapperStore(store))
            for each in (store, wrapper):
                with pytest.raises(ValueError, match="zip archive can't be changed: unpack it"):
                    migrate(each)
        before = files_in(tmp_path)
        for options in ([], ["--dry-run"], ["--undo"]):
            for location in (tmp_path / name, "memory://a.zip"):
                assert main(["migrate", str(location), *options]) == 2
                why = "a zip archive can't be changed: unpack it, migrate, and pack it again"
                assert capsys.readouterr().err == f"can't migrate {location}: {why}\n"
        assert files_in(tmp_path) == before


class EditsBeforeWriting:
    """A progress bar that calls a function when all is read, and a number of documents written."""

    total = None

    def __init__(self, edit, number=0):
        self._edit = edit
        self._number = number
        self._is_writing = False

    def set_description(self, text):
        self._is_writing = text == "writing"
        self.update(0)

    def reset(self, total=None):
        pass

    def update(self, n=1):
        if self._is_writing:
            self._number -= n
            if self._number == 0:
                self._is_writing = False
                self._edit()


@pytest.mark.parametrize("undo", [True, False], ids=["undo", "overwrite"])
def test_an_edit_while_it_runs_is_kept(tmp_path, undo):
    """It was lost: all documents are read before the first is written."""
    create(tmp_path / "a", np.arange(8.0), chunks=(4,))
    migrate(tmp_path)
    if not undo:
        zarr.open_array(tmp_path / "a", zarr_format=2).attrs["of_v2"] = 0

    def edit():
        zarr.open_array(tmp_path / "a", zarr_format=3).attrs["new"] = 1

    how = {"undo": True} if undo else {"overwrite": True}
    with pytest.raises(OSError, match="a/zarr.json has changed since it was read: run migrate"):
        migrate(tmp_path, progress=EditsBeforeWriting(edit), **how)
    assert zarr.open_array(tmp_path / "a", zarr_format=3).attrs["new"] == 1


def test_new_metadata_of_zarr_v3_are_kept(tmp_path):
    """What was written after all was read was replaced."""
    create(tmp_path, np.arange(8.0), chunks=(4,))

    def edit():
        migrate(tmp_path)
        zarr.open_array(tmp_path, zarr_format=3).attrs["new"] = 1

    with pytest.raises(OSError, match=r"^zarr.json has changed since it was read: run migrate"):
        migrate(tmp_path, progress=EditsBeforeWriting(edit))
    assert zarr.open_array(tmp_path, zarr_format=3).attrs["new"] == 1


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("undo", [False, True], ids=["migrate", "undo"])
def test_migrate_beside_undo(folder, undo, number):
    """Arrays were hidden, and both said that all is well."""
    if undo:
        migrate(folder)
    errors = []

    def other():
        try:
            migrate(folder, undo=not undo)
        except OSError as error:
            errors.append(error)

    try:
        migrate(folder, undo=undo, progress=EditsBeforeWriting(other, number))
    except OSError as error:
        errors.append(error)
    hidden = "x" not in zarr.open_group(folder, mode="r", use_consolidated=False)
    assert errors or not hidden
    for error in errors:
        assert "again, when nothing else migrates" in str(error)
    migrate(folder)
    assert shown(folder) == NODES[1:]


@pytest.mark.needs("os.symlink")
def test_an_array_that_a_link_names_as_well(tmp_path):
    """It was left out, and hidden in the group of Zarr v3."""
    zarr.create_group(tmp_path, zarr_format=2)
    create(tmp_path / "x", np.arange(8.0), chunks=(4,))
    (tmp_path / "link").symlink_to(tmp_path / "x")
    zarr.consolidate_metadata(tmp_path, zarr_format=2)
    assert {node.path for node in migrate(tmp_path)} == {"", "link", "x"}
    assert sorted(zarr.open_group(tmp_path, mode="r", zarr_format=3)) == ["link", "x"]


@pytest.mark.parametrize("wrong", ["array", "dict", None], ids=str)
def test_what_is_no_store(tmp_path, wrong):
    array = create(tmp_path / "a", np.arange(8.0), chunks=(4,))
    with pytest.raises(TypeError, match=r"expected a store, or the path or URL of one"):
        migrate({"array": array, "dict": {}}.get(wrong))
