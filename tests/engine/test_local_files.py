"""Arrays in local files: outputs, what is read, systems that lack functions, and threads.

Values of any selection: test_random_selections.py. What is wrong with a file: test_files.py.
"""

import os
import random
import re
import signal
import threading
import time
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import (
    ZARR_ALONE,
    create,
    eventually,
    random_selections,
    reference_store,
    run_python,
    select,
    use_threads,
)
from zarr.core.buffer import cpu

import numcodecs_bytes
from numcodecs_bytes._core.lengths import LengthError
from numcodecs_bytes._runtime import threads
from numcodecs_bytes._sources import files, stores

pytestmark = pytest.mark.usefixtures("our_pipeline")
KIB, MIB = 1 << 10, 1 << 20
GAPS = "the gaps between the selected bytes are short"
DATA = np.random.default_rng(0).random((48, 40))


@pytest.fixture
def folder(tmp_path):
    """Return the folder of an array of 6 x 4 big-endian chunks of 640 bytes."""
    create(tmp_path / "a", (48, 40), (8, 10), fill_value=7)[:] = DATA
    return tmp_path / "a"


def opened(path, **config):
    return zarr.open_array(path, mode="r", config=config or None)


def assert_reads(array, num=3):
    """Compare all ways to select with NumPy's."""
    rng = random.Random(0)  # noqa: S311 # no secret
    for way, selection, expected in random_selections(rng, DATA.shape, num):
        np.testing.assert_array_equal(select(array, way, selection), expected(DATA))


def outcome(path, selection, settings=None, way="basic"):
    """Return what is selected, or the error."""
    with zarr.config.set(settings) if settings else nullcontext():
        try:
            return select(opened(path), way, selection).tolist()
        except Exception as error:  # noqa: BLE001 # compared with zarr's
            return ValueError if type(error) is LengthError else type(error)


def opened_zip(folder, tmp_path, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", compression) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return opened(zarr.storage.ZipStore(tmp_path / "a.zip", read_only=True))


def opened_many_references(tmp_path, num_files):
    """Return an array with two chunks in each of many files."""
    data = np.random.default_rng(0).random((2 * num_files, 32))
    create(tmp_path / "a", data.shape, (1, 32))
    references = {"zarr.json": (tmp_path / "a/zarr.json").read_text()}
    for number, rows in enumerate(data.reshape(num_files, 2, 32)):
        path = tmp_path / f"{number}"
        path.write_bytes(rows.astype(">f8").tobytes())
        for row in range(2):
            references[f"c/{2 * number + row}/0"] = [str(path), row * 256, 256]
    return opened(reference_store(references)), data


def opened_references(folder, tmp_path, changed=None):
    """Return an array whose chunks lie in one file; `changed` are other references."""
    references = {"zarr.json": (folder / "zarr.json").read_text()}
    with (tmp_path / "all").open("wb") as file:
        for chunk in sorted(folder.glob("c/*/*")):
            name = chunk.relative_to(folder).as_posix()
            references[name] = [str(tmp_path / "all"), file.tell(), chunk.stat().st_size]
            file.write(chunk.read_bytes())
    references |= changed or {}
    references = {name: place for name, place in references.items() if place is not None}
    return opened(reference_store(references))


class TestOutputs:
    @pytest.mark.parametrize("endian", ["little", "big"])
    @pytest.mark.parametrize("layout", ["C", "F", "strided", "f4", "memmap", "swapped", "object"])
    def test_of_any_layout_and_type(self, tmp_path, layout, endian):
        data = np.random.default_rng(0).random((6, 8))
        create(tmp_path / "a", (6, 8), (2, 3), endian=endian)[...] = data
        memory = {
            "C": lambda: np.zeros((6, 8)),
            "F": lambda: np.zeros((6, 8), order="F"),
            "strided": lambda: np.zeros((12, 24))[::-2, ::3],
            "f4": lambda: np.zeros((6, 8), "f4"),
            "memmap": lambda: np.memmap(tmp_path / "m", "f8", "w+", shape=(6, 8)),
            "swapped": lambda: np.zeros((6, 8), np.dtype("f8").newbyteorder()),
            "object": lambda: np.zeros((6, 8), object),
        }[layout]()
        opened(tmp_path / "a").get_basic_selection(..., out=cpu.NDBuffer(memory))
        np.testing.assert_array_equal(memory, data.astype(memory.dtype))

    def test_what_does_not_take_the_elements_raises_an_error_that_names_the_chunk(self, tmp_path):
        """Or the array: zarr's fused pipeline does not tell of which chunk its error is."""
        v2 = {"zarr_format": 2, "dtype": "U3", "compressors": None, "filters": None}
        zarr.create_array(tmp_path, shape=4, chunks=2, **v2)[:] = "abc"
        with pytest.raises(ValueError, match="convert") as caught:
            opened(tmp_path).get_basic_selection(..., out=cpu.NDBuffer(np.zeros(4)))
        note = "while reading (chunk '[01]'|2 chunks) of LocalStore"
        assert re.match(note, "".join(caught.value.__notes__))

    def test_numpy_s_error_state_is_the_caller_s(self, tmp_path, our_pipeline):
        if "Fused" in our_pipeline:
            pytest.skip("the threads of zarr's fused pipeline do not know it either")
        create(tmp_path, (4, 8), (1, 8))[...] = 1e300
        out = cpu.NDBuffer(np.zeros((4, 8), "f4"))
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            opened(tmp_path).get_basic_selection(..., out=out)

    def test_buffers_of_another_class_are_filled_their_own_way(self, folder, calls):
        class Buffer(cpu.NDBuffer):
            pass

        out = Buffer.create(shape=(48, 40), dtype="f8")
        opened(folder).get_basic_selection(..., out=out)
        np.testing.assert_array_equal(out.as_numpy_array(), DATA)
        assert calls.opened == []


FILL_VALUES = {
    "NaN": {"fill_value": np.nan},
    "v2, none": {"fill_value": None, "zarr_format": 2, "filters": None},
    "shards": {"fill_value": 7, "shards": (8, 8)},
}


@pytest.mark.parametrize("name", FILL_VALUES)
def test_missing_chunks_are_the_fill_value(tmp_path, name):
    """Whatever is selected; they are counted."""
    settings = {"shape": (16, 16), "chunks": (4, 4), "dtype": "f8", "compressors": None}
    array = zarr.create_array(tmp_path, **settings | FILL_VALUES[name])
    array[:8, :8] = 1
    with numcodecs_bytes.trace() as traced:
        for selection in (np.s_[9], np.s_[3:13:3, 2:15:5], ([12, 0, 15], [12, 0, 0])):
            expected = outcome(tmp_path, selection, ZARR_ALONE)
            np.testing.assert_equal(outcome(tmp_path, selection), expected)
    assert traced.report()["total"]["chunks_missing"] >= 3


class TestSystems:
    """What some systems lack, and answers that are allowed, but rare."""

    @pytest.mark.parametrize(
        "lacks",
        [
            ["posix_fadvise"],
            ["posix_fadvise", "preadv"],
            ["posix_fadvise", "preadv", "pread", "O_NONBLOCK"],
        ],
        ids=["macOS", "old macOS", "Windows"],
    )
    def test_without_some_functions(self, folder, monkeypatch, set_constants, lacks):
        """Several threads must not share the position in a file."""
        for name in lacks:
            monkeypatch.delattr(os, name, raising=False)
        set_constants(MIN_RUNS_TO_PROBE=1, GAP_BYTES=30)
        for num in (1, 4):
            with use_threads(num):
                assert_reads(opened(folder))
                assert_reads(opened_zip(folder, folder.parent))
                assert_reads(opened_references(folder, folder.parent))

    def test_paths_have_the_separator_of_the_system(self, folder, monkeypatch):
        r"""On Windows, long paths begin with \\\\?\\, and then have no slashes."""
        store = opened(folder).store
        monkeypatch.setattr(os, "sep", "\\")
        assert stores.locator_for(store)("a/c/0").open.args[0] == rf"{folder}\a\c\0"

    @pytest.mark.needs("os.preadv")
    def test_a_short_answer_is_not_the_end_of_a_file(self, folder, monkeypatch, set_constants):
        """As of network file systems, or after a signal."""
        preadv, pread = os.preadv, os.pread
        monkeypatch.setattr(os, "preadv", lambda d, b, at: preadv(d, [b[0][:50]], at))
        monkeypatch.setattr(os, "pread", lambda d, num, at: pread(d, min(num, 50), at))
        assert_reads(opened(folder))
        set_constants(MIN_READINTO_BYTES=0)
        assert_reads(opened(folder))

    def test_a_file_that_can_t_be_read_is_zarr_s(self, folder, calls):
        """A disk that fails now and then; `trace` tells."""

        def fail():
            raise OSError(5, "Input/output error")

        calls.at_read = fail
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(opened(folder)[:, 3], DATA[:, 3])
        why = "[Errno 5] Input/output error"
        assert traced.report()["total"]["why_whole"][why] == 6
        assert calls.num_closed == len(calls.opened)


@pytest.fixture
def says_what_is_in_memory(tmp_path):
    """Whether the file system can read what it has in memory: overlay, tmpfs and FUSE can't."""
    (tmp_path / "file").write_bytes(b"1")
    with (tmp_path / "file").open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except (AttributeError, OSError):
            return False
    return True


@pytest.mark.usefixtures("_files_are_fast")
class TestWhatIsRead:
    @pytest.fixture
    def large(self, tmp_path):
        """Return the values of an array of one chunk: 256 rows of 32 KiB; and the array."""
        data = np.arange(1 << 20).reshape(256, 4096).astype("f8")
        create(tmp_path / "large", data.shape, endian="little")[:] = data
        return data, opened(tmp_path / "large")

    @pytest.mark.needs("os.pread")
    @pytest.mark.parametrize("selection", [np.s_[0, 3:5], np.s_[:, 7]], ids=str)
    def test_of_a_file_system_that_returns_less(self, large, monkeypatch, selection):
        """Than it is asked for, as some of FUSE do: zarr read the chunk, 8 MiB for 16 bytes."""
        data, array = large
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, num, start: pread(fd, min(num, 5), start))
        with numcodecs_bytes.trace() as traced:
            assert np.array_equal(array[selection], data[selection])
        assert traced.report()["total"]["bytes_fetched"] == data[selection].nbytes

    @pytest.mark.parametrize(
        ("selection", "num_reads", "num_bytes"),
        [
            (np.s_[:], 1, 8 * MIB),
            (np.s_[100:132], 1, 32 * 32 * KIB),
            (np.s_[0, 3:5], 1, 16),
            (np.s_[255, 4095], 1, 8),
            (np.s_[:, 7], 256, 256 * 8),
            (np.s_[100:200, 10:74], 100, 100 * 64 * 8),
            (np.s_[::16], 16, 16 * 32 * KIB),
            (np.s_[9, ::16], 1, 255 * 128 + 8),
            # In blocks of up to 2 MiB; the gap between them is not read.
            (np.s_[100:200, 10:3500], 2, 99 * 32 * KIB + 3490 * 8 - 606 * 8),
            (np.s_[5:5, 3], 0, 0),
            # Each point and each row is a run.
            (([255, 3, 90], [0, 4095, 7]), 3, 24),
            ([200, 5, 9], 3, 3 * 32 * KIB),
        ],
        ids=str,
    )
    def test_of_one_chunk(  # noqa: PLR0917
        self, large, says_what_is_in_memory, calls, selection, num_reads, num_bytes
    ):
        """Pieces and small gaps; `trace` counts the same."""
        data, array = large
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(array[selection], data[selection])
        total = traced.report()["total"]
        assert total["bytes_fetched"] == calls.num_bytes == num_bytes
        if num_bytes == 8 * MIB and not says_what_is_in_memory:
            num_reads = 4  # by blocks
        assert total["requests"] == len(calls.reads) == num_reads
        assert len(calls.opened) == calls.num_closed == (num_reads > 0)

    @pytest.mark.parametrize(
        ("selection", "num_chunks"),
        [(np.s_[:], 24), (np.s_[5::8, 7::10], 24), (np.s_[:, 3], 6), (np.s_[0:16, 0:20], 4)],
        ids=str,
    )
    def test_each_of_many_chunks_is_opened_and_read_once(
        self, folder, calls, selection, num_chunks
    ):
        np.testing.assert_array_equal(opened(folder)[selection], DATA[selection])
        assert len(set(calls.opened)) == len(calls.opened) == calls.num_closed == num_chunks
        assert len(calls.reads) == num_chunks

    def test_small_chunks_are_read_by_one_thread(self, folder, calls):
        """Threads wait for each other: most of the time is spent in Python."""
        np.testing.assert_array_equal(opened(folder)[:], DATA)
        assert len(set(calls.threads)) == 1
        assert "zarr_io" not in calls.threads[0]


def num_from_disk():
    """Return how many bytes this process has caused to be read from a disk."""
    with open("/proc/self/io") as io:  # noqa: PTH123
        return int(io.read().partition("\nread_bytes: ")[2].split()[0])


@pytest.mark.needs("/proc/self/io", "os.posix_fadvise")
@pytest.mark.usefixtures("_files_are_fast")
@pytest.mark.parametrize("stored", ["chunk", "shard"])
def test_of_a_cold_file_runs_are_read_and_no_more(tmp_path, stored):
    """40 bytes each of two places 1 MiB apart took 1 MiB from a disk, or over a network."""
    data = np.arange(1 << 22, dtype="f8").reshape(2048, 2048)
    inner = {"chunks": (128, 1024), "shards": (2048, 2048)}
    settings = inner if stored == "shard" else {"chunks": (2048, 2048)}
    zarr.create_array(tmp_path / "a", data=data, compressors=None, **settings)
    array = opened(tmp_path / "a")
    points = tuple(np.random.default_rng(0).integers(0, 2048, (2, 40)))
    for selection in (np.s_[5, 7], np.s_[0:60:59, 5], np.s_[::128, 100:164], points):
        from_disk = []
        for _ in range(3):  # the system may need something else for this process, but not each time
            with (tmp_path / "a/c/0/0").open("rb+") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before = num_from_disk()
            with numcodecs_bytes.trace() as traced:
                got = array[selection]
            from_disk.append(num_from_disk() - before)
            np.testing.assert_array_equal(got, data[selection])
            # And the index of a shard.
            assert traced.report()["total"]["bytes_fetched"] <= got.nbytes + KIB
        assert min(from_disk) <= 2 * MIB  # the system reads ahead


class Delayed:
    """Looks at a file of which some take 5 ms, as if the thread had been stopped meanwhile."""

    def __init__(self, monkeypatch, is_delayed):
        self.num_looks = 0
        read = files.seconds_to_read

        def look(descriptor, position):
            read(descriptor, position)
            self.num_looks += 1
            return 0.005 if is_delayed(self.num_looks - 1) else 1e-6

        monkeypatch.setattr(files, "seconds_to_read", look)


class TestOneSlowLook:
    """A busy machine made a column of 200 rows of a chunk of 32 MiB fetch 3,211,296 bytes."""

    @pytest.fixture(params=["a chunk", "chunks", "a shard"])
    def array(self, request, tmp_path):
        data = np.random.default_rng(0).random((512, 4096))
        sizes = {
            "a chunk": {"chunks": data.shape},
            "chunks": {"chunks": (128, 2048)},
            "a shard": {"chunks": (128, 2048), "shards": data.shape},
        }[request.param]
        zarr.create_array(tmp_path / "a", data=data, compressors=None, **sizes)
        return zarr.open_array(tmp_path / "a", mode="r"), data

    def fetched(self, array, data):
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(array[:200, 7], data[:200, 7])
            np.testing.assert_array_equal(array[::64, ::2], data[::64, ::2])
        return traced.report()["total"]["bytes_fetched"]

    def test_nothing_more_is_fetched(self, array, monkeypatch, set_constants):
        set_constants(CERTAIN_WAIT_SECONDS=1)  # reading an index may really take long here
        looks = Delayed(monkeypatch, lambda _: False)
        least = self.fetched(*array)
        assert looks.num_looks >= 4
        for which in range(looks.num_looks):
            Delayed(monkeypatch, lambda number, which=which: number == which)
            assert self.fetched(*array) == least

    @pytest.mark.parametrize("array", ["a shard"], indirect=True)
    def test_of_a_slow_index_as_well(self, array, monkeypatch, calls):
        """An index that takes 5 ms, and then one look, unless it is the first."""
        looks = Delayed(monkeypatch, lambda _: False)
        least, unread = self.fetched(*array), []

        def read():
            while unread:  # an index is read first
                unread.pop()
                time.sleep(0.005)

        calls.at_open, calls.at_read = unread.append, read
        for which in (None, *range(1, looks.num_looks // 2)):
            Delayed(monkeypatch, lambda number, which=which: number == which)
            assert self.fetched(*array) == least

    def test_but_if_all_are_slow(self, array, monkeypatch):
        Delayed(monkeypatch, lambda _: False)
        least = self.fetched(*array)
        Delayed(monkeypatch, lambda _: True)
        assert self.fetched(*array) > 2 * least


@pytest.mark.needs("os.posix_fadvise")
class TestSlowShards:
    """If an index is slow, all inner chunks are asked for at once, before the first is read."""

    @pytest.fixture
    def events(self, monkeypatch, each_byte_takes):
        """Return what is prefetched and read: how, the first position, and the end."""
        events, advise, pread, preadv = [], os.posix_fadvise, os.pread, os.preadv

        def note_prefetch(descriptor, start, length, advice):
            events.append(("prefetch", start, start + length))
            advise(descriptor, start, length, advice)

        def note_pread(descriptor, length, start):
            events.append(("read", start, start + length))
            return pread(descriptor, length, start)

        def note_preadv(descriptor, views, start, *flags):
            events.append(("read", start, start + sum(map(len, views))))
            return preadv(descriptor, views, start, *flags)

        each_byte_takes(0.0)  # as it is prefetched
        monkeypatch.setattr(os, "posix_fadvise", note_prefetch)
        monkeypatch.setattr(os, "pread", note_pread)
        monkeypatch.setattr(os, "preadv", note_preadv)
        return events

    def read(self, path, events, set_constants, by_reader, selection):
        """Read a shard of which each answer is slow; return the bytes of its index as well."""
        data = np.random.default_rng(0).random((64, 512, 8))
        settings = {"chunks": (1, 512, 8), "shards": data.shape}
        zarr.create_array(path, data=data, compressors=None, **settings)
        array = opened(path)
        set_constants(CERTAIN_WAIT_SECONDS=0)
        events.clear()
        reader = numcodecs_bytes.SyncReader(array) if by_reader else array
        np.testing.assert_array_equal(reader[selection], data[selection])
        size = (path / "c/0/0/0").stat().st_size
        return ("read", size - 64 * 16 - 4, size), size

    @pytest.mark.parametrize("by_reader", [False, True], ids=["array", "SyncReader"])
    @pytest.mark.parametrize("rows", [[3, 30, 60], [3, 4, 5], slice(3, 40, 9)])
    def test_inner_chunks(self, tmp_path, events, set_constants, by_reader, rows):
        selection = (rows, slice(100, 110))
        index, _ = self.read(tmp_path, events, set_constants, by_reader, selection)
        assert events[0] == index
        num = [kind for kind, *_ in events].index("read", 1)
        prefetched, reads = events[1:num], events[num:]
        for kind, start, end in reads:
            assert kind == "read"
            assert any(first <= start and end <= last for _, first, last in prefetched)
        assert sum(end - start for _, start, end in prefetched) < 3 << 15

    @pytest.mark.parametrize("by_reader", [False, True], ids=["array", "SyncReader"])
    @pytest.mark.parametrize("is_short", [False, True])
    def test_all_of_a_short_shard(self, tmp_path, events, set_constants, by_reader, is_short):
        """With its index: zarr alone reads it whole, which takes one request."""
        set_constants(MAX_SLOW_GAP_BYTES=1 << (23 if is_short else 20), BYTES_PER_SECOND=1e15)
        selection = (slice(None), 7)
        index, size = self.read(tmp_path, events, set_constants, by_reader, selection)
        before = events[: events.index(index)]
        assert (sum(end - start for _, start, end in before) == size) == is_short

    def test_the_largest_gap_that_a_user_sets(self, tmp_path, events, set_constants):
        """Nothing that is not selected is prefetched."""
        set_constants(MAX_SLOW_GAP_BYTES=1 << 23, BYTES_PER_SECOND=1e15)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            selection = (slice(None), 7)
            index, _ = self.read(tmp_path, events, set_constants, None, selection)
        prefetched = [end - start for kind, start, end in events if kind == "prefetch"]
        assert events[0] == index
        assert max(prefetched) == 64


class TestPartsOfFiles:
    """Members of zip archives, and references into a file, which stays open for several chunks."""

    @pytest.mark.needs("os.pread")
    def test_an_archive(self, folder, tmp_path, calls, monkeypatch):
        duplicate, duplicates = os.dup, []
        monkeypatch.setattr(os, "dup", lambda d: duplicates.append(duplicate(d)) or duplicates[-1])
        array = opened_zip(folder, tmp_path)
        with numcodecs_bytes.trace() as traced, use_threads(4):
            assert_reads(array, num=1)
            duplicates.clear()
            np.testing.assert_array_equal(array[:, ::3], DATA[:, ::3])
        assert 1 <= len(duplicates) <= 4
        for descriptor in duplicates:
            with pytest.raises(OSError, match="descriptor"):
                os.fstat(descriptor)
        assert calls.reads
        assert set(traced.report()["total"]["why_whole"]) <= {GAPS}
        array.store.close()

    @pytest.mark.needs("os.pread")
    def test_a_file_with_references(self, folder, tmp_path, calls):
        array = opened_references(folder, tmp_path)
        with use_threads(4):
            assert_reads(array, num=1)
            calls.opened.clear()
            calls.num_closed = 0
            np.testing.assert_array_equal(array[:, ::3], DATA[:, ::3])
        assert calls.num_closed == len(calls.opened) <= 4
        assert set(calls.opened) == {str(tmp_path / "all")}

    @pytest.mark.parametrize("num_files", [64, 2000])
    def test_many_files(self, tmp_path, calls, num_files):
        """Each stayed open until the end: other threads had too many open files."""
        most = 0

        def count(_):
            nonlocal most
            most = max(most, len(calls.opened) - calls.num_closed)

        array, data = opened_many_references(tmp_path, num_files)
        calls.opened.clear()
        calls.num_closed = 0
        calls.at_open = count
        np.testing.assert_array_equal(array[:, 3], data[:, 3])
        assert calls.num_closed == len(calls.opened) == num_files
        assert most <= 48

    def test_files_that_are_slow_to_open(self, tmp_path, calls):
        """They were opened one after the other: a column of 200 references took 4.4 s."""
        lock, num, most = threading.Lock(), 0, 0

        def wait(_):
            nonlocal num, most
            with lock:
                num += 1
                most = max(most, num)
            time.sleep(0.01)
            with lock:
                num -= 1

        array, data = opened_many_references(tmp_path, 200)
        calls.opened.clear()
        calls.at_open = wait
        np.testing.assert_array_equal(array[:, 3], data[:, 3])
        assert most >= 4
        assert len(calls.opened) == 200  # two threads would wait for the same bytes


class TestThreads:
    @pytest.mark.parametrize("num", [1, 3])
    def test_as_many_as_zarr_s_setting_says(self, folder, calls, our_pipeline, num):
        together = threading.Barrier(num)
        calls.at_open = lambda _: len(calls.opened) <= num and together.wait(30)
        settings = {"codec_pipeline.max_workers": 9, "threading.max_workers": 9}
        is_fused = "Fused" in our_pipeline
        settings["codec_pipeline.max_workers" if is_fused else "threading.max_workers"] = num
        with zarr.config.set(settings):
            np.testing.assert_array_equal(opened(folder)[:], DATA)
        assert len(set(calls.threads)) == num

    @pytest.mark.needs("os.sched_setaffinity")
    def test_a_process_bound_to_one_core_uses_one_thread(self, tmp_path, our_pipeline):
        """It used as many as the machine has cores. Helpers, which wait for slow files, may run."""
        create(tmp_path / "a", (8, 1 << 18), (1, 1 << 18))[...] = 1
        program = """
import os, sys, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import zarr
zarr.config.set({"codec_pipeline.path": sys.argv[2]})
assert zarr.open_array(sys.argv[1], mode="r")[...].all()
names = [thread.name for thread in threading.enumerate()]
print(*[name for name in names if name.startswith("numcodecs_bytes_files")])
"""
        done = run_python("-W", "ignore", "-c", program, tmp_path / "a", our_pipeline)
        assert done.stdout == "numcodecs_bytes_files_0\n"

    @pytest.mark.needs("os.sched_getaffinity")
    @pytest.mark.parametrize(
        ("quota", "num"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1)]
    )
    def test_the_quota_of_a_control_group(self, tmp_path, monkeypatch, quota, num):
        group = tmp_path / "groups/a/b"
        group.mkdir(parents=True)
        (group / "cpu.max").write_text("max 100000")
        (group.parent / "cpu.max").write_text(quota)
        (tmp_path / "group").write_text("1:cpu:/\n0::/a/b\n")
        monkeypatch.setattr(threads, "_GROUP_FILE", tmp_path / "group")
        monkeypatch.setattr(threads, "_GROUPS", tmp_path / "groups")
        threads._quota.cache_clear()
        try:
            assert threads.num_cores() == min(num or 999, len(os.sched_getaffinity(0)))
        finally:
            threads._quota.cache_clear()

    def test_as_many_as_zarr_has_if_files_are_slow_to_open(self, folder, calls):
        """On macOS and Windows, one thread read all: 6 to 12 times zarr's time."""
        have_met = threading.Event()
        together = threading.Barrier(5, have_met.set)

        def open_slowly(_):
            time.sleep(0.005)
            if len(calls.opened) > 1 and not have_met.is_set():
                together.wait(30)

        calls.at_open = open_slowly
        with zarr.config.set({"async.concurrency": 5, "async.timeout": 60}):
            np.testing.assert_array_equal(opened(folder)[:32], DATA[:32])  # 16 chunks
        assert have_met.is_set()
        assert len(set(calls.threads)) == 5

    def test_others_need_not_wait_until_the_first_file_is_open(self, folder, calls, set_constants):
        """On a mount where that takes as long as to read it, 4 chunks took 1.5 of zarr's time."""
        set_constants(CERTAIN_WAIT_SECONDS=0.2)  # on a busy machine, a thread may start late
        together = threading.Barrier(3)
        calls.at_open = lambda _: together.wait(30)
        np.testing.assert_array_equal(opened(folder)[:24, 5], DATA[:24, 5])  # 3 chunks
        assert len(set(calls.threads)) == 3

    def test_files_that_open_slowly_are_read_beside_each_other(self, folder, calls, set_constants):
        """By `SyncReader`, too, which reads the first one itself."""
        reader = numcodecs_bytes.SyncReader(opened(folder))
        set_constants(CERTAIN_WAIT_SECONDS=0, SHORT_SECONDS=0)
        have_met = threading.Event()
        together = threading.Barrier(4, have_met.set)

        def meet(*_):
            if not have_met.is_set():
                together.wait(30)

        calls.at_read = meet  # of the first file, when the others have been opened
        calls.at_open = lambda _: meet() if len(calls.opened) > 1 else None
        np.testing.assert_array_equal(reader[:32, 5], DATA[:32, 5])
        assert have_met.is_set()
        assert calls.threads.count(threading.current_thread().name) == 1
        assert calls.num_closed == len(calls.opened) == 4

    def test_one_file_that_opens_slowly_is_no_proof(self, folder, calls, set_constants):
        """A busy machine may have delayed it: what is read next is read as ever."""
        reader = numcodecs_bytes.SyncReader(opened(folder))
        calls.at_open = lambda _: set_constants(
            CERTAIN_WAIT_SECONDS=60 * (len(calls.opened) > 1), SHORT_SECONDS=0
        )
        np.testing.assert_array_equal(reader[:32, 5], DATA[:32, 5])
        calls.threads.clear()
        with numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(reader[:32, 5], DATA[:32, 5])
        assert set(calls.threads) == {threading.current_thread().name}
        assert not traced.report()["total"]["why_not_direct"]

    @pytest.mark.parametrize("which", range(4))
    def test_errors_in_files_that_open_slowly(self, folder, calls, set_constants, which):
        """A missing file, a folder, which is missing to zarr, too, and a wrong length."""
        set_constants(CERTAIN_WAIT_SECONDS=0, SHORT_SECONDS=0)
        path = folder / f"c/{which}/0"
        reader, expected = numcodecs_bytes.SyncReader(opened(folder)), DATA[:32, 5].copy()
        expected[8 * which : 8 * which + 8] = 7
        for change in (path.unlink, path.mkdir):
            change()
            np.testing.assert_array_equal(reader[:32, 5], expected)
        path.rmdir()
        path.write_bytes(b"short")
        with pytest.raises(LengthError):
            reader[:32, 5]
        assert eventually(lambda: calls.num_closed == len(calls.opened))  # by others, too

    @pytest.mark.needs("signal.SIGUSR1")
    def test_an_interrupt_does_not_wait_for_other_threads(self, folder, calls, set_constants):
        """What a signal handler raises while others read is raised at once."""
        reader = numcodecs_bytes.SyncReader(opened(folder))
        set_constants(CERTAIN_WAIT_SECONDS=0, SHORT_SECONDS=0)
        others_read, may_go_on = threading.Event(), threading.Event()
        first = threading.Lock()  # a later signal might find the handler gone

        def read_slowly():
            if threading.current_thread() is not threading.main_thread():
                if first.acquire(blocking=False):
                    signal.raise_signal(signal.SIGUSR1)
                others_read.set()
                may_go_on.wait(60)
            elif len(calls.opened) > 1:  # else others may find nothing to do
                others_read.wait(60)

        def interrupt(*_):
            raise RuntimeError("time is up")

        calls.at_read, before = read_slowly, signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(RuntimeError, match="time is up"):
                reader[:32, 5]
        finally:
            signal.signal(signal.SIGUSR1, before)
            may_go_on.set()
        assert eventually(lambda: calls.num_closed == len(calls.opened))

    @pytest.mark.parametrize("kind", ["files", "inner chunks"])
    def test_as_many_as_zarr_has_if_it_takes_long_to_learn_what_is_missing(
        self, tmp_path, monkeypatch, calls, kind
    ):
        """On a mount, to learn that there is nothing takes as long as to read it."""
        is_sharded = kind == "inner chunks"
        shards = {"chunks": (1,), "shards": (2,)} if is_sharded else {"chunks": (2,)}
        settings = shards | {"compressors": None, "fill_value": 3}
        array = zarr.create_array(tmp_path, shape=(66,), dtype="i4", **settings)
        array[::2] = 1
        present = tmp_path / "c" / "32"
        if not is_sharded:
            for path in present.parent.iterdir():
                if path != present:
                    path.unlink()
        threads, open_file = set(), os.open

        def wait():
            threads.add(threading.current_thread().name)
            time.sleep(0.01)

        def open_slowly(*args):
            wait()
            return open_file(*args)

        if is_sharded:
            calls.at_read = wait
        else:
            monkeypatch.setattr(os, "open", open_slowly)
        with zarr.config.set({"async.concurrency": 5}):
            got = zarr.open_array(tmp_path).oindex[np.arange(1, 64, 2)]
        assert (got == 3).all()
        assert len(threads) == 5

    def test_none_can_be_started(self, folder, monkeypatch):
        """Those of containers may be limited; zarr's own run already, or fail with zarr alone."""
        np.testing.assert_array_equal(opened(folder)[:], DATA)
        start = threading.Thread.start

        def fail(thread):
            if thread.name.startswith("numcodecs_bytes"):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", fail)
        with use_threads(20):
            assert_reads(opened(folder))
