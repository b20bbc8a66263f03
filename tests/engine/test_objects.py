"""VirtualiZarr's manifests are resolved; obstore's LocalStore is read as files; as by zarr alone.

That both are read in part: test_stores.py.
"""

import asyncio
import os
import pickle
import random
import string
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import ZARR_ALONE, create, random_selections, ranges_from, select

import numcodecs_bytes
from numcodecs_bytes._sources.obstore_local import folder_of, is_file_name

obstore = pytest.importorskip("obstore", reason="the extra stores is not installed")
obstore_store = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
pytestmark = pytest.mark.usefixtures("our_pipeline", "_files_are_fast")

NUM, NUM_BYTES, GAP = 40, 20 << 10, 4
DATA = np.random.default_rng(0).integers(0, 256, (NUM, NUM_BYTES), np.uint8)
RECORDS = b"".join(row.tobytes() + bytes(GAP) for row in DATA)
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


class Records:
    """Chunks that are records of a file, by VirtualiZarr's store."""

    def __init__(self, path):
        self.manifests = pytest.importorskip("virtualizarr.manifests")
        path.write_bytes(RECORDS)
        self.path, self.url = path, path.as_uri()
        self.metadata = create(
            {}, DATA.shape, (1, NUM_BYTES), dtype="u1", endian=None, fill_value=9
        ).metadata

    def open(self, url=None, objects=None, registered="file://", changed=None):
        """Return the array; `changed` are other entries of its manifest."""
        from obspec_utils.registry import ObjectStoreRegistry

        step = NUM_BYTES + GAP
        entries = {
            f"{number}.0": {"path": url or self.url, "offset": number * step, "length": NUM_BYTES}
            for number in range(NUM)
        }
        entries |= changed or {}
        manifest = self.manifests.ChunkManifest(entries)
        array = self.manifests.ManifestArray(metadata=self.metadata, chunkmanifest=manifest)
        group = self.manifests.ManifestGroup(arrays={"a": array})
        nested = self.manifests.ManifestGroup(groups={"g": group})
        registry = ObjectStoreRegistry({registered: objects or obstore_store.LocalStore()})
        store = self.manifests.ManifestStore(nested, registry=registry)
        return zarr.open_array(store, path="g/a", mode="r", zarr_format=3)


@pytest.fixture
def records(tmp_path):
    return Records(tmp_path / "file")


@pytest.fixture(scope="module")
def server():
    with pytest.importorskip("servers").Server({"in/file": RECORDS}).running() as running:
        yield running


class Http:
    """Records on a server: all requests go through its one kind of answers."""

    def __init__(self, server, kind="properly"):
        token = f"{random.randrange(10**12)}"  # noqa: S311
        self.url, self.requests = f"{server.url(kind, token)}/in/file", server.requests[token]
        root = self.url.removesuffix("/file")
        http = {"client_options": {"allow_http": True}}
        objects = obstore_store.HTTPStore.from_url(root, **http)
        self.where = {"url": self.url, "objects": objects, "registered": server.address}


class TestManifests:
    def test_any_selection(self, records, server):
        for array in (records.open(), records.open(**Http(server).where)):
            for way, selection, expected in random_selections(random.Random(0), DATA.shape, 5):  # noqa: S311
                np.testing.assert_array_equal(select(array, way, selection), expected(DATA))

    @pytest.mark.needs("os.pread")
    def test_a_column_of_records_in_a_local_file(self, records, calls):
        """All of them were requested: 800 KiB."""
        array = records.open()
        assert array[:, 7:11].tolist() == DATA[:, 7:11].tolist()
        assert (calls.opened, calls.num_closed) == ([str(records.path)], 1)
        assert sorted(calls.reads) == [(k * (NUM_BYTES + GAP) + 7, 4) for k in range(NUM)]

    def test_a_column_of_records_on_a_server(self, records, server):
        """Each was requested alone, and whole; now, as references are."""
        http = Http(server)
        array = records.open(**http.where)
        assert array[:, 7:11].tolist() == DATA[:, 7:11].tolist()
        assert len(http.requests) < NUM
        step = NUM_BYTES + GAP
        with zarr.config.set(EXACT):
            http.requests.clear()
            assert array[:, 7:11].tolist() == DATA[:, 7:11].tolist()
        asked = sorted(
            int(asked.removeprefix("bytes=").split("-")[0]) for _, asked in http.requests
        )
        assert asked == [k * step + 7 for k in range(NUM)]

    def test_ranges_of_one_version(self, records, server):
        """Old and new bytes were mixed; now, what changes meanwhile is requested once more."""
        http = Http(server, "overwritten once")
        array = records.open(**http.where)
        with zarr.config.set(EXACT):
            got = array[0, [7, 900, 9000]]
        assert got.tolist() == (DATA[0, [7, 900, 9000]] + np.uint8(1)).tolist()

    def test_entries_that_reach_beyond_the_object(self, records, server):
        """Part of such a chunk was read."""
        end = len(RECORDS)
        for where in ({}, Http(server).where):
            for start in (end - NUM_BYTES + 1, end, end + 1000):
                entry = {"path": where.get("url", records.url), "offset": start}
                changed = {"3.0": entry | {"length": NUM_BYTES}}

                def open_array(where=where, changed=changed):
                    return records.open(**where, changed=changed)

                selections = np.s_[3, 5], np.s_[:, 5], np.s_[...], np.s_[4:, 5]
                with zarr.config.set(EXACT):
                    results = assert_like_zarr(open_array, *selections)
                assert [isinstance(each, type) for each in results] == [True] * 3 + [False]

    @pytest.mark.parametrize("length", [1, NUM_BYTES - 1, NUM_BYTES + 1])
    def test_entries_of_another_length(self, records, length):
        changed = {"3.0": {"path": records.url, "offset": 0, "length": length}}
        results = assert_like_zarr(
            lambda: records.open(changed=changed), np.s_[3, 5], np.s_[:], np.s_[4, 5]
        )
        assert results[:2] == [ValueError] * 2

    def test_missing_and_inlined_chunks(self, records):
        changed = {"3.0": {"path": "", "offset": 0, "length": 0}}
        inlined = {"path": "", "offset": 0, "length": NUM_BYTES, "data": DATA[7].tobytes()}
        if "_inlined" in self.annotations(records):  # new in VirtualiZarr 2.7
            changed["5.0"] = inlined
        for selection in (np.s_[:, 5], np.s_[3], np.s_[5, ::9], np.s_[3:6]):
            (expected,) = assert_like_zarr(lambda: records.open(changed=changed), selection)
        assert expected[0] == [9] * NUM_BYTES
        with numcodecs_bytes.trace() as traced:
            records.open(changed=changed)[[3, 5], 7]
        total, num_inlined = traced.report()["total"], int("5.0" in changed)
        reasons = {"it is inlined in its manifest": 1} if num_inlined else {}
        assert (total["why_whole"], total["chunks_missing"]) == (reasons, 1)
        # An older VirtualiZarr reads the chunk of row 5 from its file.
        assert (total["requests"], total["bytes_fetched"]) == (1 - num_inlined,) * 2

    @staticmethod
    def annotations(records):
        return records.manifests.ChunkManifest.__annotations__

    @pytest.mark.needs("os.pread")
    def test_a_registry_with_prefixes(self, records, tmp_path, calls):
        """A prefix that differs from the URL is not removed, and some other file is read."""
        (tmp_path / "b").mkdir()
        (tmp_path / "b/file").write_bytes(RECORDS[::-1])
        for url, objects, registered in (
            (records.url, obstore_store.LocalStore(tmp_path), "file://"),
            (records.url, obstore_store.LocalStore(tmp_path), tmp_path.as_uri()),
            (f"{tmp_path.as_uri()}/b/file", obstore_store.LocalStore(tmp_path), "file://"),
            ("file:///file", obstore_store.LocalStore(tmp_path / "b"), "file://"),
            ("file:///b/file", obstore_store.LocalStore(tmp_path / "b"), "file://"),
        ):
            calls.opened.clear()
            (got,) = assert_like_zarr(lambda: records.open(url, objects, registered), np.s_[2, 5])  # noqa: B023
            assert isinstance(got, type) or len(calls.opened) == 1

    @pytest.mark.parametrize("name", ["a b", "a%20b", "ä", "%C3%A4", "a#b", "a?b", "a;b", "a|b"])
    def test_names_and_their_urls(self, records, tmp_path, name):
        """Whatever VirtualiZarr makes of them: each file has other bytes."""
        (tmp_path / name).write_bytes(RECORDS)
        (tmp_path / "a").write_bytes(RECORDS[1:] + b"\0")
        urls = (tmp_path / name).as_uri(), f"{tmp_path.as_uri()}/{name}"
        for url in (*urls, f"{tmp_path.as_uri()}//{name}", f"{tmp_path.as_uri()}/x/../{name}"):
            assert_like_zarr(lambda: records.open(url), np.s_[2, 5])  # noqa: B023

    def test_objects_in_memory(self, records):
        memory = obstore_store.MemoryStore()
        memory.put("file", RECORDS)
        array = records.open("s3://bucket/file", memory, "s3://bucket")
        assert array[:, 5].tolist() == DATA[:, 5].tolist()

    def test_object_stores_of_others(self, records, monkeypatch):
        """They are asked through VirtualiZarr's store."""
        asked, get = [], Subclass.get_range_async

        async def count(self, path, *, start, end):
            asked.append((start, end))
            return await get(self, path, start=start, end=end)

        monkeypatch.setattr(Subclass, "get_range_async", count)
        array = records.open(objects=Subclass())
        with zarr.config.set(EXACT):
            assert array[2, 5] == DATA[2, 5]
        start = 2 * (NUM_BYTES + GAP) + 5
        assert asked == [(start, start + 1)]

    @pytest.mark.parametrize("change", ["waits", "asks otherwise"])
    def test_a_version_that_resolves_in_another_way(self, records, monkeypatch, change):
        """Is left to zarr."""
        store = records.manifests.ManifestStore
        get = store.get

        async def wait(self, key, prototype, byte_range=None):
            await asyncio.sleep(0)
            return await get(self, key, prototype, byte_range)

        async def ask(self, key, prototype, byte_range=None):
            if key.endswith("zarr.json"):
                return await get(self, key, prototype, byte_range)
            objects, path = self._registry.resolve(records.url)
            row = int(key.split("/")[-2])
            start = row * (NUM_BYTES + GAP)
            raw = await obstore.get_range_async(objects, path, start=start, length=NUM_BYTES)
            return prototype.buffer.from_bytes(raw)

        array = records.open()
        monkeypatch.setattr(store, "get", {"waits": wait, "asks otherwise": ask}[change])
        assert array[:, 5].tolist() == DATA[:, 5].tolist()

    def test_a_file_that_is_overwritten_or_cut(self, records):
        array = records.open()
        assert array[2, 5] == DATA[2, 5]
        records.path.write_bytes(bytes(len(RECORDS)))
        assert array[2, 5] == 0
        os.truncate(records.path, NUM_BYTES)
        assert array[0, 5] == 0
        assert_like_zarr(lambda: array, np.s_[2, 5], np.s_[2, :])
        records.path.unlink()
        assert_like_zarr(lambda: array, np.s_[0, 5])


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
        """By the errors of obstore, which tell the path; some versions change "C|" and "x:y"."""
        objects = obstore_store.LocalStore()
        some = [*string.printable, "\x85", "\xa0", "\xad", "\u200b", "ä", "a\u0308", "日", "😀"]
        names = {form.format(char) for char in some for form in ("{}", "x{}y", "{}1", "C{}", "1{}")}
        names |= {"..", "a/..", "../a", "./a", "a/.", "a//b", "a/", "/a", "%2e%2e", "%2F", "%20"}
        asked = [name for name in sorted(names) if is_file_name(name)]
        assert {"a", " ", "%20", "x%y", "C:", "x\\y", "x|y", "x#y"} & set(asked) == {
            *("a", " ", "%20", "x%y")
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
