"""obstore's LocalStore is read as files, as by zarr alone.

That it is read in part: test_stores.py.
"""

import os
import pickle
import string
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import ZARR_ALONE, create, ranges_from, select

import numcodecs_bytes
from numcodecs_bytes._engine.objects import folder_of, is_file_name

obstore = pytest.importorskip("obstore", reason="the extra stores is not installed")
obstore_store = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
pytestmark = pytest.mark.usefixtures("our_pipeline", "_never_looks")

EXACT = {"numcodecs_bytes.max_gap_bytes": 0}


class Subclass(obstore_store.LocalStore):
    """A person's object store, under a name that zarr's ObjectStore takes."""

    __module__ = "obstore_of_others"


def outcome(array, selection, way="basic"):
    """Return what is selected, or the kind of the error."""
    try:
        return select(array, way, selection).tolist()
    except Exception as error:  # noqa: BLE001 # compared with zarr's
        return ValueError if isinstance(error, ValueError) else type(error)


def assert_like_zarr(open_array, *selections):
    """Compare what is selected, or the errors, with zarr's; return those."""
    got = [outcome(open_array(), selection) for selection in selections]
    with zarr.config.set(ZARR_ALONE):
        expected = [outcome(open_array(), selection) for selection in selections]
    assert got == expected
    return expected


SHAPE = (4, 5000)
VALUES = np.random.default_rng(0).random(SHAPE)


def opened(objects, path=""):
    store = zarr.storage.ObjectStore(objects, read_only=True)
    return zarr.open_array(store, path=path, mode="r", zarr_format=3)


def create_chunks(folder, **how):
    array = create(folder, SHAPE, (1, SHAPE[1]), fill_value=9, **how)
    array[:] = VALUES
    return array


def is_read_as_file(array, calls):
    """Compare a column; return whether it was read from the files."""
    calls.opened.clear()
    assert array[:, 7].tolist() == VALUES[:, 7].tolist()
    return bool(calls.opened)


FOLDERS = ["a", "a b", "a%20b", "ä€", "new\nline", "a|b#1", "#"]


class TestLocalStore:
    @pytest.mark.parametrize("name", FOLDERS)
    def test_folders(self, tmp_path, monkeypatch, calls, name):
        """Absolute, relative, behind a link, and none."""
        folder = tmp_path / name
        create_chunks(folder / "in")
        (tmp_path / "link").symlink_to(folder)
        monkeypatch.chdir(tmp_path)
        for prefix in (folder, f"{folder}/", name, f"./{name}/../{name}", "link"):
            objects = obstore_store.LocalStore(prefix)
            assert folder_of(objects) == os.path.realpath(folder)
            assert is_read_as_file(opened(objects, "in"), calls)
        in_root = (folder / "in").as_posix().removeprefix("/")
        assert folder_of(obstore_store.LocalStore()) == ""
        if "\n" not in name:
            array = opened(obstore_store.LocalStore(), in_root)
            assert is_read_as_file(array, calls) == is_file_name(in_root)

    def test_links_and_folders_that_change_later(self, tmp_path, monkeypatch, calls):
        create_chunks(tmp_path / "v1/a")
        create_chunks(tmp_path / "v2/a")[:] = 2
        (tmp_path / "link").symlink_to("v1")
        monkeypatch.chdir(tmp_path / "v1")
        stores = [obstore_store.LocalStore(prefix) for prefix in (tmp_path / "link", ".")]
        (tmp_path / "link").unlink()
        (tmp_path / "link").symlink_to("v2")
        monkeypatch.chdir(tmp_path / "v2")
        for objects in stores:
            assert is_read_as_file(opened(objects, "a"), calls)
            again = pickle.loads(pickle.dumps(opened(objects, "a")))  # noqa: S301
            assert again[0, 0] == 2  # it looks for its folder once more

    def test_names_that_are_those_of_files(self):
        """By the errors of obstore, which tell the path; "C|" is "C:" at the root."""
        objects = obstore_store.LocalStore()
        some = [*string.printable, "\x85", "\xa0", "\xad", "\u200b", "ä", "a\u0308", "日", "😀"]
        names = {form.format(char) for char in some for form in ("{}", "x{}y", "{}1", "C{}", "1{}")}
        names |= {"..", "a/..", "../a", "./a", "a/.", "a//b", "a/", "/a", "%2e%2e", "%2F", "%20"}
        asked = [name for name in sorted(names) if is_file_name(name)]
        assert {"a", " ", "%20", "x%y", "C:", "x\\y", "x|y", "x#y"} & set(asked) == {
            *("a", " ", "%20", "x%y", "C:")
        }
        for name in asked:
            with pytest.raises(FileNotFoundError) as caught:
                objects.head(f"{name}/no-object")
            assert str(caught.value).startswith(f"Object at location /{name}/no-object not found: ")

    @pytest.mark.parametrize("name", [*FOLDERS, "a/..", "a//b", "/a", "..", "a\\b"])
    def test_names_of_arrays(self, tmp_path, calls, name):
        objects = obstore_store.LocalStore(tmp_path / "in", mkdir=True)
        try:
            array = create_chunks(zarr.storage.StorePath(zarr.storage.ObjectStore(objects), name))
        except ValueError:  # obstore takes no such name
            return
        assert is_read_as_file(array, calls) == is_file_name(f"{array.path}/c/0/0")

    def test_chunks_that_are_missing_or_no_files(self, tmp_path):
        create_chunks(tmp_path)
        chunks = [tmp_path / f"c/{k}/0" for k in range(4)]
        for chunk in chunks[1:]:
            chunk.unlink()
        chunks[2].mkdir()
        chunks[3].parent.rmdir()
        chunks[3].parent.write_bytes(b"")
        objects = obstore_store.LocalStore(tmp_path)
        selections = [np.s_[k, 5] for k in range(4)] + [np.s_[:3, 5], np.s_[...]]
        results = assert_like_zarr(lambda: opened(objects), *selections)
        assert results[:3] == [VALUES[0, 5], 9, 9]
        assert isinstance(results[3], type)
        (tmp_path / "c").rename(tmp_path / "d")
        assert_like_zarr(lambda: opened(objects), *selections)

    def test_a_chunk_that_is_overwritten_replaced_or_cut(self, tmp_path, calls):
        create_chunks(tmp_path)
        array = opened(obstore_store.LocalStore(tmp_path))
        assert is_read_as_file(array, calls)
        chunk, raw = tmp_path / "c/1/0", VALUES[0].astype(">f8").tobytes()
        chunk.write_bytes(raw)
        assert array[1, 7] == VALUES[0, 7]
        (tmp_path / "new").write_bytes(VALUES[2].astype(">f8").tobytes())
        (tmp_path / "new").replace(chunk)
        assert array[1, 7] == VALUES[2, 7]
        for length in (100, len(raw) + 8, 0):
            chunk.write_bytes(raw.ljust(length)[:length])
            results = assert_like_zarr(lambda: array, np.s_[1, 7], np.s_[:, 7])
            assert results == [ValueError] * 2

    def test_its_folder_is_looked_for_once(self, tmp_path, monkeypatch):
        create_chunks(tmp_path)
        asked, head = [], obstore_store.LocalStore.head

        def count(self, path):
            asked.append(path)
            return head(self, path)

        monkeypatch.setattr(obstore_store.LocalStore, "head", count)
        array = opened(obstore_store.LocalStore(tmp_path))
        for row in range(4):
            assert array[row, 7] == VALUES[row, 7]
        assert len(asked) == 1

    @pytest.mark.parametrize(
        "error",
        [
            FileNotFoundError("{path} not found: No such file or directory"),
            FileNotFoundError("Object at location tmp/{path} not found: "),
            FileNotFoundError("Object at location /\ufffd/{path} not found: "),
            PermissionError("Object at location {path}: denied"),
            AttributeError("head"),
        ],
        ids=str,
    )
    def test_errors_that_do_not_tell_the_folder(self, tmp_path, monkeypatch, calls, error):
        """Files are requested as before."""

        def fail(_self, path):
            raise type(error)(str(error).replace("{path}", path))

        monkeypatch.setattr(obstore_store.LocalStore, "head", fail)
        create_chunks(tmp_path)
        array = opened(obstore_store.LocalStore(tmp_path))
        assert not is_read_as_file(array, calls)
        with numcodecs_bytes.trace() as traced, zarr.config.set(EXACT):
            array[2, 7]
        assert traced.report()["total"]["bytes_fetched"] == 8

    @pytest.mark.skipif(os.name == "nt", reason="paths are text on Windows")
    def test_a_folder_whose_name_is_no_text(self, tmp_path, calls):
        folder = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")
        try:
            Path(folder).mkdir()
        except OSError:
            pytest.skip("the file system refuses it")  # macOS
        create_chunks(folder)
        assert not is_read_as_file(opened(obstore_store.LocalStore(folder)), calls)

    def test_a_subclass_is_asked(self, tmp_path, calls):
        create_chunks(tmp_path)
        assert not is_read_as_file(opened(Subclass(tmp_path)), calls)

    def test_writes_are_obstore_s(self, tmp_path, calls):
        """Also in place, which needs zarr's LocalStore."""
        store = zarr.storage.ObjectStore(obstore_store.LocalStore(tmp_path))
        array = create_chunks(store)
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            calls.opened.clear()
            array[1, 3] = 5
        assert array[1, 2:4].tolist() == [VALUES[1, 2], 5]


def test_named_stores_are_asked(tmp_path, calls):
    """A wrapper that is named: what it does with a path is its own matter."""
    create_chunks(tmp_path)

    class Store(zarr.storage.ObjectStore):
        pass

    with ranges_from(Store):
        array = zarr.open_array(Store(obstore_store.LocalStore(tmp_path)), mode="r")
        assert not is_read_as_file(array, calls)
