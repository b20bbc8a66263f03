"""Files that are not what they should be: read as zarr alone reads them, or a clear error."""

import base64
import os
import socket
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import ZARR_ALONE, create
from test_local_files import DATA, opened, opened_references, opened_zip, outcome

import numcodecs_bytes

pytestmark = pytest.mark.usefixtures("our_pipeline")


@pytest.fixture
def folder(tmp_path):
    """Return the folder of an array of 6 x 4 chunks of 640 bytes."""
    create(tmp_path / "a", (48, 40), (8, 10), fill_value=7)[:] = DATA
    return tmp_path / "a"


@pytest.fixture
def chunk(folder):
    return folder / "c/1/2"


class TestLength:
    @pytest.mark.parametrize("num_bytes", [0, 5, 639, 641, 5000])
    def test_the_wrong_one(self, folder, chunk, num_bytes):
        """Also if the selected bytes are there: zarrs does not notice."""
        chunk.write_bytes(bytes(num_bytes))
        why = "truncated" if num_bytes < 640 else "compressed or have another shape"
        message = (
            rf"chunk 'c/1/2' of LocalStore.* holds {num_bytes} bytes, expected 640 for shape "
            rf"\(8, 10\) of float64; it may be {why}"
        )
        array = opened(folder)
        for selection in (np.s_[:], np.s_[8, 20], np.s_[:, 29], np.s_[8:40:16, ::5]):
            with pytest.raises(ValueError, match=message):
                array[selection]
        np.testing.assert_array_equal(array[16:], DATA[16:])

    @pytest.mark.parametrize("in_memory", [False, True])
    def test_the_wrong_one_in_zarr_v2(self, tmp_path, in_memory):
        """Of a chunk in memory, too, of which zarr's own error says nothing."""
        stored = {}
        store = zarr.storage.MemoryStore(stored) if in_memory else tmp_path
        v2 = {"dtype": "i2", "zarr_format": 2, "compressors": None, "filters": None}
        array = zarr.create_array(store, shape=(4, 6), chunks=(4, 6), **v2)
        stored["0.0"] = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(30))
        (tmp_path / "0.0").write_bytes(bytes(30))
        message = r"chunk '0.0' of .*Store.* holds 30 bytes, expected 48 for shape \(4, 6\)"
        for selection in (np.s_[:], 0):
            with pytest.raises(ValueError, match=message):
                array[selection]

    @pytest.mark.parametrize("columns", [np.s_[20:30], 27], ids=["one run", "many runs"])
    @pytest.mark.parametrize("when", ["at_open", "at_read"])
    def test_one_that_is_truncated_meanwhile(self, chunk, calls, set_constants, when, columns):
        """After it was opened, or after its length was checked."""
        set_constants(GAP_BYTES=0)
        setattr(calls, when, lambda *_: os.truncate(chunk, 100))
        with pytest.raises(ValueError, match=r"(?s)holds 100 bytes, expected 640.*'c/1/2'"):
            opened(chunk.parents[2])[8:16, columns]
        assert calls.num_closed == len(calls.opened)


@pytest.mark.parametrize("when", ["at_open", "at_read"])
def test_a_file_that_is_replaced_meanwhile(folder, chunk, calls, set_constants, when):
    """All of a chunk is of one version."""
    set_constants(GAP_BYTES=0)
    new = folder / "new"
    new.write_bytes(bytes(640))
    setattr(calls, when, lambda *_: new.exists() and new.replace(chunk))
    column = np.s_[8:16, 25]
    np.testing.assert_array_equal(opened(folder)[column], DATA[column])
    assert not opened(folder)[column].any()


NOT_FILES = {
    "a folder": lambda path: path.mkdir(),
    "a link to a folder": lambda path: path.symlink_to(path.parent),
    "a dangling link": lambda path: path.symlink_to(path.with_name("nothing")),
    "a loop": lambda path: path.symlink_to(path),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a link to another chunk": lambda path: path.symlink_to(path.with_name("1")),
    "a file that may not be read": lambda path: path.write_bytes(bytes(640)) and path.chmod(0),
    "a socket": lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)),
}


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such files")
@pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning")
class TestNoFile:
    @pytest.mark.parametrize("kind", NOT_FILES)
    def test_is_read_as_by_zarr_alone(self, folder, chunk, monkeypatch, kind):
        """A batch, and a chunk alone."""
        monkeypatch.chdir(folder)  # names of sockets are short
        chunk.unlink()
        NOT_FILES[kind](chunk)
        for selection in (np.s_[:], np.s_[9, 21]):
            assert outcome(folder, selection) == outcome(folder, selection, ZARR_ALONE)

    def test_the_writer_of_a_pipe_is_not_killed(self, folder, chunk):
        """zarr alone reads what it writes."""
        chunk.unlink()
        os.mkfifo(chunk)
        program = f"open({str(chunk)!r}, 'wb').write(bytes(640))"
        with subprocess.Popen([sys.executable, "-c", program]) as writer:
            assert not opened(folder)[8:16, 20:30].any()
        assert writer.returncode == 0

    def test_a_file_where_a_folder_is_expected(self, folder):
        (folder / "c/1").rename(folder / "before")
        (folder / "c/1").touch()
        assert outcome(folder, np.s_[:]) == outcome(folder, np.s_[:], ZARR_ALONE)


class TestPartsOfFiles:
    """Members of zip archives, and references into a file."""

    def test_compressed_members_are_zarr_s(self, folder, tmp_path):
        array = opened_zip(folder, tmp_path, zipfile.ZIP_DEFLATED)
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(array[:, 3], DATA[:, 3])
        assert any("compressed" in why for why in traced.report()["total"]["why_whole"])
        array.store.close()

    def test_a_member_of_two_lengths_is_refused_as_by_zarr(self, folder, tmp_path):
        opened_zip(folder, tmp_path).store.close()
        raw = bytearray((tmp_path / "a.zip").read_bytes())
        entry = raw.rindex(b"c/1/2") - 46  # in the directory at the end
        assert raw[entry : entry + 4] == b"PK\1\2"
        raw[entry + 20 : entry + 24] = (320).to_bytes(4, "little")  # the compressed size
        (tmp_path / "a.zip").write_bytes(raw)
        store = zarr.storage.ZipStore(tmp_path / "a.zip", read_only=True)
        expected = outcome(store, np.s_[8, 20], ZARR_ALONE)
        assert isinstance(expected, type)
        assert outcome(store, np.s_[8, 20]) == expected
        store.close()

    def test_references_that_are_missing_inline_or_beyond_the_file(self, folder, tmp_path):
        inline = "base64:" + base64.b64encode(bytes(640)).decode()
        whole_file = [str(folder / "c/0/2")]
        for other in (None, inline, whole_file, [str(tmp_path / "all"), 24 * 640 - 8, 640]):
            store = opened_references(folder, tmp_path, {"c/1/2": other}).store
            for selection in (np.s_[:], np.s_[9, 20:25]):
                expected = outcome(store, selection, ZARR_ALONE)
                assert outcome(store, selection) == expected
