"""Odd stores: what they hold never runs, and the commands say in their own words what is wrong."""

import contextlib
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numcodecs
import pytest
import zarr
import zarr.storage
from helpers import HAS_STRUCT, bytes_codec, metadata, write_array, write_v2
from zarr.core.sync import sync

from numcodecs_bytes._tools import documents
from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

PLAIN = [bytes_codec()]


class Touch:
    """Creates a file if it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class OwnPickle(numcodecs.Pickle):
    codec_id = "own_pickle"


class TestCodecsThatRunCode:
    @pytest.fixture(autouse=True)
    def are_allowed(self, monkeypatch):
        """As in numcodecs before 0.16.6, where nothing had to be allowed."""
        monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
        monkeypatch.setitem(numcodecs.registry.codec_registry, "own_pickle", OwnPickle)
        with zarr.config.set({"array.allow_unsafe_pickle_decode": True}):
            yield

    @pytest.mark.parametrize(
        ("dtype", "codecs"),
        [
            # zarr takes the data type from the first of these filters.
            ("|O", {"filters": [{"id": "vlen-utf8"}, {"id": "pickle"}], "fill_value": ""}),
            (
                "|O",
                {
                    "filters": [{"id": "vlen-utf8"}],
                    "compressor": {"id": "pickle"},
                    "fill_value": "",
                },
            ),
            ("<i2", {"filters": [{"id": "own_pickle"}]}),
            ("|b1", {"compressor": {"id": "own_pickle"}}),
        ],
        ids=str,
    )
    def test_neither_command_runs_it(self, tmp_path, dtype, codecs):
        """`check` did, and a chunk may hold any code."""
        touched = tmp_path / "touched"
        path = write_v2(tmp_path / "a", pickle.dumps(Touch(touched)), dtype, **codecs)
        (report,) = check(path)
        (problem,) = report.problems
        assert problem.startswith("its chunks were not decoded, because the codec pickle runs what")
        (refused,) = migrate(path)
        (reason,) = refused.reasons
        assert reason.startswith("Zarr v3 has no counterpart of the codec ")
        assert not touched.exists()
        with contextlib.suppress(Exception):
            zarr.open_array(path, mode="r")[...]
        assert touched.exists()  # zarr runs it


class TestArchives:
    @pytest.fixture
    def archive(self, tmp_path):
        """Return the path of an archive with a damaged array, and a function that adds members."""
        write_array(tmp_path / "a" / "damaged", bytes(3), "int8", PLAIN)
        path = shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "a")

        def add(**members):
            with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as members_of:
                for name, content in members.items():
                    members_of.writestr(name, content)
            return {report.path: report.problems for report in check(path)}

        return add

    @pytest.mark.parametrize("folder", ["a/../e", "./e", "e/."])
    def test_names_that_no_path_has(self, archive, folder):
        """The check ended, and a damaged array beside it was never reported."""
        found = archive(**{f"{folder}/zarr.json": json.dumps(metadata("int8", PLAIN))})
        assert "holds 3 bytes, expected 4" in found.pop("damaged")[0]
        ((problem,),) = found.values()
        assert problem.startswith("its metadata can't be read: The path ")

    def test_names_that_no_path_has_in_consolidated_metadata(self):
        class Unlisted(zarr.storage.MemoryStore):
            supports_listing = False

        store, document = Unlisted(), metadata("int8", PLAIN)
        zarr.create_array(store, name="a", shape=4, chunks=4, dtype="i1", compressors=None)[:] = 1
        nodes = {"metadata": {"b/../c": document, "a": document}}
        root = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": nodes}
        buffer = zarr.core.buffer.cpu.Buffer.from_bytes(json.dumps(root).encode())
        sync(store.set("zarr.json", buffer))
        found = {report.path: report for report in check(store)}
        assert found["b/../c"].problems[0].startswith("its metadata can't be read: The path ")
        assert (found["a"].num_chunks, found["a"].problems) == (1, [])

    def test_documents_that_inflate(self, archive, monkeypatch):
        """400 MiB of spaces took 840."""
        monkeypatch.setattr(documents, "_MAX_MEMBER_BYTES", 10_000)
        found = archive(**{"e/zarr.json": " " * 10_001, "f/zarr.json": " " * 9_998 + "{}"})
        why = (
            "its metadata can't be read: e/zarr.json has more than 10000 bytes, so it was not read"
        )
        assert found["e"] == [why]
        assert found["f"][0].startswith("zarr can't open it: ")
        assert "holds 3 bytes, expected 4" in found["damaged"][0]


class TestOwnWords:
    """NumPy's or Python's were reported instead, which say nothing of the store."""

    @pytest.mark.parametrize(
        ("codec", "reason"),
        [
            ("base64", "Zarr v3 has no counterpart of the codec base64: copy the array"),
            ("packbits", "in Zarr v3, StringDType() can't be restored from the codecs packbits ("),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
    def test_text_behind_codecs_that_zarr_v3_lacks(self, tmp_path, codec, reason):
        """Cannot use DescrNewByteOrder for this new style DTypes."""
        text = {"filters": [{"id": "vlen-utf8"}], "compressor": {"id": codec}, "fill_value": ""}
        write_v2(tmp_path, None, "|O", **text)
        (refused,) = migrate(tmp_path)
        assert refused.reasons[0].startswith(reason)

    @pytest.mark.parametrize("dtype", ["<i1", ">u1", "<V3", "<S3", [["a", "<i1"], ["b", "<i2"]]])
    def test_a_byte_order_of_single_bytes(self, tmp_path, dtype):
        """netCDF-C writes it; zarr 3.1.6 knows none of these data types, and others not all."""
        write_v2(tmp_path, None, dtype, fill_value=None)
        (report,), (node,) = check(tmp_path), migrate(tmp_path, dry_run=True)
        given = dtype if isinstance(dtype, str) else dtype[0][1]
        advice = f'"{given}" has a byte order that means nothing: write "|{given[1:]}" in .zarray'
        if report.problems:
            assert report.problems[0].endswith(f"; {advice}")
            assert node.reasons[0].endswith(f"; {advice}")
            right = json.loads(json.dumps(dtype).replace(given, f"|{given[1:]}"))
            write_v2(tmp_path, None, right, fill_value=None)
            (report,) = check(tmp_path)
        assert (report.problems, advice in report.notes) == ([], False)

    @pytest.mark.skipif(HAS_STRUCT, reason="this zarr takes it for 1")
    def test_chunks_of_no_length(self, tmp_path):
        """ZeroDivisionError: integer division or modulo by zero."""
        path = write_v2(tmp_path / "a", None, "<i2", chunks=[0])
        why = "its chunk shape is (0,): expected at least 1 along each axis"
        (report,), (node,) = check(path), migrate(path)
        assert report.problems == [f"it can't be checked: ValueError: {why}"]
        assert node.reasons == [why]
        (report,) = check(write_v2(tmp_path / "b", None, "<i2", [0], chunks=[0]))
        assert report.problems == []

    def test_metadata_that_zarr_nests_too_deeply(self, tmp_path):
        codecs = '{"name":"sharding_indexed","configuration":{"chunk_shape":[2],"codecs":['
        text = json.dumps(metadata("int16", [1])).replace("[1]", f"[{codecs * 400}{']}}' * 400}]")
        (tmp_path / "zarr.json").write_text(text)
        (report,) = check(tmp_path)
        (problem,) = report.problems
        unread = "its metadata can't be read: zarr.json is nested too deeply; correct it"
        assert "RecursionError: it is nested too deeply" in problem or problem.startswith(unread)

    @pytest.mark.parametrize("given", [{}, 5, {"dimrefs": [1]}], ids=str)
    def test_dimensions_of_netcdf(self, tmp_path, given):
        """KeyError: 'dimrefs'."""
        write_v2(tmp_path, None, "<i2", _NCZARR_ARRAY=given)
        (node,) = migrate(tmp_path)
        why = f"its _NCZARR_ARRAY is {given}, expected 1 names: correct or remove it in .zarray"
        assert node.reasons == [why]

    @pytest.mark.parametrize("more", [{"attributes": 5}, {"shape": 7}, {"shape": ["x"]}], ids=str)
    def test_metadata_beside_zarr_v2_that_no_array_has(self, tmp_path, more):
        """TypeError: object of type 'int' has no len()."""
        write_v2(tmp_path, None, "<i2")
        document = {"zarr_format": 3, "node_type": "array", "attributes": {}, "shape": [4], **more}
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        (node,) = migrate(tmp_path, overwrite=True)
        assert node.reasons[0].startswith("zarr.json has what would be lost, so it is kept: ")
