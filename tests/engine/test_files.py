"""Files that are not what they should be: read as zarr alone reads them, or a clear error."""

import asyncio
import base64
import errno
import gc
import gzip
import io
import math
import os
import re
import socket
import sys
import tarfile
import threading
import weakref
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import OPEN_FILES, ZARR_ALONE, CountingStore, bytes_codec, create, ranges_from
from test_local_files import DATA, GAPS, opened, opened_references, opened_zip, outcome

import numcodecs_bytes
from numcodecs_bytes.check import check

pytestmark = pytest.mark.usefixtures("our_pipeline")


V2 = {"chunks": (8, 10), "filters": None, "compressors": None}


class Encrypting(zarr.storage.LocalStore):
    """A store whose files are longer than the chunks in them."""

    _supports_sync_io = False  # what the fused pipeline asks

    async def get(self, key, prototype=None, byte_range=None):
        buffer = await super().get(key, prototype, byte_range)
        return buffer if buffer is None or key.endswith((".json", ".zarray")) else buffer[16:]

    async def set(self, key, value, *_):
        if not key.endswith((".json", ".zarray")):
            value = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(16) + value.to_bytes())
        await super().set(key, value)


@pytest.fixture
def folder(tmp_path):
    """Return the folder of an array of 6 x 4 chunks of 640 bytes."""
    create(tmp_path / "a", (48, 40), (8, 10), fill_value=7)[:] = DATA
    return tmp_path / "a"


@pytest.fixture
def chunk(folder):
    return folder / "c/1/2"


class TestLength:
    def test_a_wrong_one_costs_no_more_requests_than_its_name(self, folder, our_pipeline):
        """All chunks of a batch were requested again."""
        chunks = zarr.create_array(folder / "v2", data=DATA, zarr_format=2, **V2)
        name = "1.2"
        (folder / "v2" / name).write_bytes(bytes(5))
        lengths = []

        class Store(CountingStore):
            async def getsize(self, key):
                lengths.append(key)
                return await super().getsize(key)

        store = Store(folder / "v2")
        message = f"chunk '{name}' of .* holds 5 bytes, expected 640"
        with ranges_from(Store), pytest.raises(ValueError, match=message):
            zarr.open_array(store)[...]
        asked = [key for key, *_ in store.requests]
        asked.remove(name)  # its first bytes, which tell whether it is compressed
        assert len(asked) == len(set(asked)) <= math.prod(chunks.cdata_shape)
        # zarr's fused pipeline does not tell of which chunk its error is.
        assert lengths == [name] if "Fused" not in our_pipeline else lengths[-1] == name

    @pytest.mark.matrix
    @pytest.mark.parametrize("shards", [None, (4,)], ids=["chunks", "shards"])
    @pytest.mark.parametrize("lies", [False, True], ids=["lengths", "no lengths"])
    @pytest.mark.parametrize("damaged", [1, 250])
    def test_one_of_many(self, our_pipeline, damaged, lies, shards):
        """If a dozen requests do not find it, the array is named, and how to find it."""

        class Store(zarr.storage.MemoryStore):
            num_requests, _supports_sync_io = 0, False

            async def get(self, *args, **kwargs):
                self.num_requests += 1
                return await super().get(*args, **kwargs)

            async def getsize(self, key):
                self.num_requests += 1
                return 0 if lies else len(self._store_dict[key])

        store = Store()
        settings = {"chunks": (1 if shards else 4,), "shards": shards, "compressors": None}
        array = zarr.create_array(store, name="a/b", shape=1200, dtype="i4", **settings)
        array[:] = np.arange(1200)
        num_before = store.num_requests
        assert array[1:].size == 1199
        num_alone = store.num_requests - num_before
        raw = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(5))
        zarr.core.sync.sync(store.set(f"a/b/c/{damaged}", raw))
        num_before = store.num_requests
        known = [] if shards else [Store]
        with ranges_from(*known), pytest.raises(ValueError, match=".") as caught:
            array[1:]
        assert store.num_requests - num_before <= num_alone + 12
        name = f"chunk 'a/b/c/{damaged}' of MemoryStore.*"
        notes = getattr(caught.value, "__notes__", [])
        assert any("a shard may be damaged: restore" in note for note in notes) == bool(shards)
        if "Batched" in our_pipeline and shards:
            assert re.match(f"while reading {name}", caught.value.__notes__[0])
        elif "Batched" in our_pipeline or (damaged == 1 and not lies and not shards):
            assert re.match(f"{name} holds 5 bytes, expected 16", str(caught.value))
        else:
            note = "while reading 300 chunks of MemoryStore.*/a/b; `numcodecs-bytes check` finds"
            assert re.match(note, caught.value.__notes__[0])

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize("compressors", [None, "auto"])
    def test_one_of_many_that_are_written(self, tmp_path, our_pipeline, zarr_format, compressors):
        """Another one was named, whose name could be taken for that of the one to delete."""
        settings = {"chunks": (10, 10), "compressors": compressors, "zarr_format": zarr_format}
        zarr.create_array(tmp_path, shape=(100, 100), dtype="f4", **settings)[:] = 1
        name = "5.0" if zarr_format == 2 else "c/5/0"
        os.truncate(tmp_path / name, 7)
        with pytest.raises((ValueError, RuntimeError)) as caught:
            zarr.open_array(tmp_path)[5:95, 5:95] = 7
        said = "; ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        if is_fused := "Fused" in our_pipeline:  # it does not tell of which chunk its error is
            assert re.search("while writing [0-9]+ chunks of LocalStore", said)
        elif compressors is None:
            assert re.match(f"chunk '{name}' of .* holds 7 bytes, expected 400", said)
        assert re.findall("chunk '([^']+)'", said) == ([] if is_fused else [name])

    def test_of_what_is_replaced(self, folder, chunk):
        """Does not matter: it would hide the error of the store."""

        class Store(zarr.storage.LocalStore):
            _supports_sync_io = False  # what the fused pipeline asks

            async def set(self, *_):
                raise ValueError("the store's own")

        chunk.write_bytes(bytes(5))
        array = zarr.open_array(Store(folder))
        with pytest.raises(ValueError, match="the store's own"):
            array[8:16, 20:30] = 1
        with pytest.raises(ValueError, match="holds 5 bytes"):
            array[8:16, 20:29] = 1

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("mode", [False, True, "require"])
    def test_a_shard_whose_index_is_damaged(self, tmp_path, mode):
        """That zarr could write it, if the option were True, was not so."""
        settings = {"shards": (32, 32), "chunks": (16, 16), "dtype": "f4", "compressors": None}
        zarr.create_array(tmp_path, shape=(64, 64), **settings)[:] = 1
        os.truncate(tmp_path / "c/1/0", 1000)
        array = zarr.open_array(tmp_path)
        with (
            zarr.config.set({"numcodecs_bytes.write_in_place": mode}),
            pytest.raises((ValueError, RuntimeError)) as caught,
        ):
            array[20:60, :4] = 7
        said = "; ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
        assert "restore it; if the metadata" in said
        assert set(re.findall("chunk '([^']+)'", said)) <= {"c/1/0"}
        assert "set the option to True" not in said

    def test_a_shard_of_which_nothing_is_wrong(self, tmp_path):
        """Its removal is not advised if the store refuses a write."""
        settings = {"shards": (4,), "chunks": (2,), "dtype": "i4", "compressors": None}
        zarr.create_array(tmp_path, shape=8, **settings)[:] = 1
        with pytest.raises(ValueError, match="read-only") as caught:
            zarr.open_array(tmp_path, mode="r")[1:7] = 2
        assert "may be damaged" not in "; ".join(getattr(caught.value, "__notes__", []))

    def test_many_of_many(self):
        """zarr goes on with others after the first error: each asked for its length."""

        class Store(zarr.storage.MemoryStore):
            num_lengths = 0

            async def getsize(self, key):
                self.num_lengths += 1
                return await super().getsize(key)

        store = Store()
        array = zarr.create_array(store, shape=1200, chunks=4, dtype="i4", compressors=None)
        array[:] = 1
        raw = zarr.core.buffer.cpu.Buffer.from_bytes(bytes(5))
        for number in range(300):
            zarr.core.sync.sync(store.set(f"c/{number}", raw))
        with ranges_from(Store), pytest.raises(ValueError, match="holds 5 bytes"):
            array[1:]
        assert store.num_lengths <= 12

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_of_a_store_that_is_not_known(self, tmp_path, zarr_format):
        """What it stores may be longer: zarr's error became "it may be compressed"."""
        settings = {"zarr_format": zarr_format, "compressors": None}
        array = zarr.create_array(Encrypting(tmp_path), shape=(4,), dtype="f8", **settings)
        array[:] = [1, 2, 3, 4]
        name = "0" if zarr_format == 2 else "c/0"
        assert (tmp_path / name).stat().st_size == 48
        with pytest.raises(ValueError, match="broadcast") as caught:
            array[1:3] = np.ones((2, 2))
        assert "holds" not in str(caught.value)
        assert array[1:].tolist() == [2, 3, 4]

    def test_that_is_written_keeps_the_error_of_zarr(self, folder, chunk):
        """Which may be about something else, unless it is the same."""

        class Store(zarr.storage.LocalStore):
            _supports_sync_io = False  # what the fused pipeline asks

            async def get(self, key, *args, **kwargs):
                if key == "c/1/2":
                    raise ValueError("the store's own")
                return await super().get(key, *args, **kwargs)

        chunk.write_bytes(bytes(5))
        with ranges_from(Store):
            for store, cause in ((folder, None), (Store(folder), "the store's own")):
                with pytest.raises(ValueError, match="holds 5 bytes") as caught:
                    opened(store)[8:16, 20:29] = 1
                assert str(caught.value.__cause__) == str(cause)

    @pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
    def test_nothing_of_a_failed_one_is_kept(self, writes):
        """The task kept the error, its frames and the output, until it read again."""

        async def fail(array):
            memory = np.ones((5, 7), "i4")
            out = zarr.core.buffer.cpu.NDBuffer(memory)
            read = partial(array.get_orthogonal_selection, np.s_[:, 1:], out=out)
            write = partial(array.setitem, np.s_[:, 1:], memory)
            with pytest.raises(ValueError, match="holds 5 bytes"):
                await (write if writes else read)()
            return weakref.ref(memory)

        async def is_forgotten():
            store = zarr.storage.MemoryStore()
            settings = {"shape": (5, 8), "dtype": "i4", "compressors": None}
            array = await zarr.api.asynchronous.create_array(store, **settings)
            await store.set("c/0/0", zarr.core.buffer.cpu.Buffer.from_bytes(bytes(5)))
            kept = await fail(array)
            for _ in range(20):  # the loop has handles of what has ended
                await asyncio.sleep(0.01)
                gc.collect()
                if kept() is None:
                    return True
            return False

        assert asyncio.run(is_forgotten())

    @pytest.mark.parametrize("num_bytes", [0, 5, 639, 641, 5000])
    def test_the_wrong_one(self, folder, chunk, num_bytes):
        """Also if the selected bytes are there: zarrs does not notice."""
        chunk.write_bytes(bytes(num_bytes))
        why = (
            "if it is truncated" if num_bytes < 640 else "if other chunks can be read, this one is"
        )
        why = why if num_bytes else "it is empty"
        message = (
            rf"chunk 'c/1/2' of LocalStore.* holds {num_bytes} bytes, expected 640 for shape "
            rf"\(8, 10\) of float64; {why}.*`numcodecs-bytes check` finds all"
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
        with pytest.raises(ValueError, match="'c/1/2' .* holds 100 bytes, expected 640"):
            opened(chunk.parents[2])[8:16, columns]
        assert calls.num_closed == len(calls.opened)


@pytest.mark.needs(OPEN_FILES)
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

    def test_a_file_where_a_folder_is_expected(self, folder):
        (folder / "c/1").rename(folder / "before")
        (folder / "c/1").touch()
        assert outcome(folder, np.s_[:]) == outcome(folder, np.s_[:], ZARR_ALONE)


@pytest.mark.needs("/proc/version")
def test_a_file_whose_length_the_system_gives_as_0(tmp_path):
    """As of /proc, and of some network mounts; zarr alone reads to its end."""
    raw = Path("/proc/version").read_bytes()
    assert not Path("/proc/version").stat().st_size
    create(tmp_path, (len(raw),), dtype="u1", fill_value=7)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0").symlink_to("/proc/version")
    with numcodecs_bytes.trace() as traced:
        assert opened(tmp_path)[...].tobytes() == raw
        assert opened(tmp_path)[2:4].tobytes() == raw[2:4]
    assert "the system gives its length as 0" in str(traced)
    (report,) = check(tmp_path)
    assert report.problems == []


class TestWhatIsMissing:
    """A chunk is missing if there is no file, or no member; no other error says so."""

    @pytest.mark.parametrize("num_bytes", [5, 640])
    def test_errors_that_the_store_takes_for_a_missing_chunk(self, folder, chunk, num_bytes):
        """Of a chunk that was cut, the fill value was read."""
        pytest.importorskip("fsspec", reason="the extra stores is not installed")
        chunk.write_bytes(bytes(num_bytes))
        whatever = {"allowed_exceptions": (Exception,)}
        store = zarr.storage.FsspecStore.from_url(folder.as_uri(), **whatever)
        for selection in (np.s_[:], np.s_[9, 21]):
            expected = outcome(store, selection, ZARR_ALONE)
            assert outcome(store, selection) == expected
            assert isinstance(expected, type) == (num_bytes == 5)
        chunk.unlink()
        assert opened(store)[9, 21] == 7

    @pytest.mark.needs("os.pread")
    @pytest.mark.parametrize(
        "error", [pytest.param(KeyError, marks=pytest.mark.own_bug), FileNotFoundError]
    )
    def test_errors_while_a_member_is_read(self, folder, tmp_path, calls, error):
        """They were taken for a member that is missing; zarr reads it."""
        array = opened_zip(folder, tmp_path)

        def fail():
            raise error(errno.ENOENT, "c/1/2")

        calls.at_read = fail
        assert array[9, 21] == DATA[9, 21]
        array.store.close()


@pytest.mark.skipif(
    "IO" not in str(zarr.storage.ZipStore.__init__.__annotations__["path"]),
    reason="this zarr opens archives by their paths only",  # before 3.3
)
class TestArchivesOfOpenFiles:
    """What an open file object hands out need not be what its descriptor refers to."""

    @pytest.fixture
    def archive(self, folder, tmp_path):
        opened_zip(folder, tmp_path).store.close()
        return tmp_path / "a.zip"

    def check(self, file):
        with zarr.storage.ZipStore(file) as store:
            np.testing.assert_array_equal(opened(store)[...], DATA)
            assert opened(store)[9, 21] == DATA[9, 21]

    def test_compressed(self, archive, tmp_path):
        """Its descriptor is that of the compressed file: values were wrong."""
        with gzip.open(tmp_path / "a.zip.gz", "wb") as file:
            file.write(archive.read_bytes())
        with gzip.open(tmp_path / "a.zip.gz") as file:
            self.check(file)

    def test_at_an_offset(self, archive, tmp_path):
        class Part(io.RawIOBase):
            """Bytes of a file from an offset on, with the descriptor of that file."""

            def __init__(self, file, start):
                super().__init__()
                self.file, self.start = file, start

            def seek(self, position, whence=0):
                offset = self.start if whence == 0 else 0
                return self.file.seek(position + offset, whence) - self.start

            def tell(self):
                return self.file.tell() - self.start

            def readinto(self, memory):
                return self.file.readinto(memory)

            def fileno(self):
                return self.file.fileno()

            readable = seekable = lambda _: True

        (tmp_path / "file").write_bytes(bytes(1000) + archive.read_bytes())
        with (tmp_path / "file").open("rb") as file:
            self.check(Part(file, 1000))

    def test_in_a_tar_archive(self, archive, tmp_path):
        """It has no descriptor."""
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            tar.add(archive, "a.zip")
        with tarfile.open(tmp_path / "a.tar") as tar:
            self.check(tar.extractfile("a.zip"))

    def test_a_plain_file(self, archive):
        with archive.open("rb") as file:
            self.check(file)


class TestPartsOfFiles:
    """Members of zip archives, and references into a file."""

    @pytest.mark.needs("os.pread")
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

    @pytest.mark.needs("os.pread")
    @pytest.mark.parametrize("name", ["a", "\u00e9", "\u65e5\u672c"])
    def test_names_of_members(self, tmp_path, name):
        """Those that are not ASCII were called damaged, if they were written just before."""
        data = np.arange(64.0).reshape(8, 8)
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            settings = {"chunks": (8, 8), "compressors": None}
            array = zarr.create_array(store, name=name, data=data, **settings)
            for opened_now in (array, zarr.open_array(store, path=name)):
                with numcodecs_bytes.trace() as traced:
                    np.testing.assert_array_equal(opened_now[:2, 3], data[:2, 3])
                assert traced.report()["total"]["why_whole"].keys() <= {GAPS}
                assert not traced.report()["not_seen"]

    @pytest.mark.needs("os.pread")
    def test_a_member_that_is_written_after_its_archive_was_opened(self, tmp_path, monkeypatch):
        """It may still be in the buffer of the archive's file."""
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            array = create(store, (8, 4), (4, 4), fill_value=7)
            array[:4] = 1
            duplicate, rows = os.dup, np.full((4, 4), 2.0, ">f8")

            lock = threading.Lock()  # two threads may open the archive at once

            def write(descriptor):
                with lock:
                    if "c/1/0" not in store._zf.namelist():
                        store._zf.writestr("c/1/0", rows.tobytes())
                return duplicate(descriptor)

            monkeypatch.setattr(os, "dup", write)
            with numcodecs_bytes.trace() as traced:
                assert array[2:6, 3].tolist() == [1, 1, 2, 2]
            assert not traced.report()["not_seen"]
            assert traced.report()["total"]["why_whole"].keys() <= {GAPS}

    def test_references_of_odd_lengths_and_names(self, folder, tmp_path, caplog):
        """To the rest of a file, and to one that no system has: as by zarr alone."""
        for other in ([str(tmp_path / "all"), 23 * 640, -1], ["\0", 0, 640], ["\ud800", 0, 640]):
            store = opened_references(folder, tmp_path, {"c/5/3": other}).store
            for selection in (np.s_[:], np.s_[40:, 30], np.s_[2, 3]):
                expected = outcome(store, selection, ZARR_ALONE)
                assert outcome(store, selection) == expected
        assert not caplog.records

    def test_references_that_are_missing_inline_or_beyond_the_file(self, folder, tmp_path):
        inline = "base64:" + base64.b64encode(bytes(640)).decode()
        whole_file = [str(folder / "c/0/2")]
        for other in (None, inline, whole_file, [str(tmp_path / "all"), 24 * 640 - 8, 640]):
            store = opened_references(folder, tmp_path, {"c/1/2": other}).store
            for selection in (np.s_[:], np.s_[9, 20:25]):
                expected = outcome(store, selection, ZARR_ALONE)
                assert outcome(store, selection) == expected


BIG, TRANSPOSED = {"serializer": bytes_codec("big")}, zarr.codecs.TransposeCodec(order=(1, 0))
# The shape of the array, and how it is stored: in chunks of up to 7 MiB, some cut off at an edge.
MEMBERS = {
    "plain": ((64, 96), {"chunks": (32, 48)}),
    "swapped": ((64, 96), {"chunks": (32, 48), **BIG}),
    "transposed": ((64, 96), {"chunks": (32, 48), "filters": TRANSPOSED}),
    "edge": ((50, 80), {"chunks": (32, 48)}),
    "long rows at an edge": ((5, 3000), {"chunks": (8, 8000)}),
    "large": ((1500, 600), {"chunks": (1500, 600)}),
    "large, swapped": ((1500, 600), {"chunks": (1500, 600), **BIG}),
    "large edge": ((1400, 500), {"chunks": (1500, 600), **BIG}),
    "shards": ((64, 96), {"chunks": (8, 12), "shards": (32, 48)}),
    "shards at an edge": ((50, 80), {"chunks": (8, 12), "shards": (32, 48)}),
    "v2": ((64, 96), {"chunks": (32, 48), "zarr_format": 2, "dtype": ">f8"}),
    "v2, order F": ((50, 80), {"chunks": (32, 48), "zarr_format": 2, "order": "F"}),
}
ALL = {
    "all": lambda array: array[...],
    "SyncReader": lambda array: numcodecs_bytes.SyncReader(array)[:],
    "lists": lambda array: array.oindex[[*range(array.shape[0])], [*range(array.shape[1])]],
}


def read_member(path, how, settings):
    """Return what is read of an array in an archive, or the error."""
    with zarr.config.set(settings), zarr.storage.ZipStore(path, mode="r") as store:
        array = zarr.open_array(store, mode="r")
        try:
            return np.asarray(ALL[how](array))
        except zipfile.BadZipFile as error:
            return str(error)


@pytest.mark.parametrize("kind", MEMBERS)
class TestChecksumsOfMembers:
    """Of which all bytes are read, or all that the array has of a chunk."""

    @pytest.fixture
    def archive(self, tmp_path, kind):
        shape, settings = MEMBERS[kind]
        path, data = tmp_path / "a.zip", np.random.default_rng(0).random(shape)
        with zarr.storage.ZipStore(path, mode="w") as store:
            settings = {"dtype": "f8", "compressors": None, **settings}
            zarr.create_array(store, shape=shape, **settings)[...] = data
        return path, data

    @pytest.mark.parametrize("how", ALL)
    def test_a_damaged_one(self, archive, kind, how):
        """Values were wrong, without a word. zarr alone raises an error."""
        if how == "lists" and ("edge" in kind or kind == "v2, order F"):
            pytest.skip("zarr does not tell that this is all that the array has of a chunk")
        if kind == "shards at an edge" and sys.version_info >= (3, 14):
            pytest.skip("zarr reads it in part, and zipfile checks no checksum then any more")
        path, _ = archive
        raw = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as members:
            member = members.infolist()[-1]
        start = member.header_offset + 30 + len(member.filename)
        for position in (0, member.file_size // 3, member.file_size - 1):
            raw[start + position] ^= 0x55
            path.write_bytes(raw)
            raw[start + position] ^= 0x55
            expected = f"Bad CRC-32 for file {member.filename!r}"
            assert read_member(path, how, ZARR_ALONE) == expected
            assert read_member(path, how, {}) == expected

    @pytest.mark.needs("os.pread")
    @pytest.mark.parametrize("how", ["all", "SyncReader", "lists"])
    def test_is_computed_of_what_is_read_anyway(self, archive, kind, how):
        """Its bytes are read once, and the index of a shard twice."""
        path, data = archive
        with zipfile.ZipFile(path) as members:
            sizes = [
                m.file_size for m in members.infolist() if m.filename.split("/")[-1][-1].isdigit()
            ]
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(read_member(path, how, {}), data)
        total = traced.report()["total"]
        assert total["why_whole"].keys() <= {GAPS}
        assert total["bytes_fetched"] <= 1.05 * sum(sizes)


@pytest.mark.needs("os.pread")
def test_members_whose_checksums_follow_them(tmp_path):
    """As in an archive that was written to a pipe; and of one that is still written."""
    data = np.arange(64.0).reshape(8, 8)

    class Pipe(io.RawIOBase):
        def __init__(self):
            super().__init__()
            self.raw = bytearray()

        def write(self, raw):
            self.raw += raw
            return len(raw)

        def writable(self):
            return True

    pipe = Pipe()
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        array = zarr.create_array(store, data=data, chunks=(8, 8), compressors=None)
        np.testing.assert_array_equal(array[...], data)
    with zipfile.ZipFile(tmp_path / "a.zip") as source, zipfile.ZipFile(pipe, "w") as target:
        for name in ("zarr.json", "c/0/0"):
            target.writestr(name, source.read(name))
    (tmp_path / "b.zip").write_bytes(pipe.raw)
    with numcodecs_bytes.trace() as traced:
        np.testing.assert_array_equal(read_member(tmp_path / "b.zip", "all", {}), data)
    assert not traced.report()["total"]["why_whole"]
