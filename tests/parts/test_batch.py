"""Batches of chunks in local files: right for every array, frugal with calls, harmless when cut."""

import asyncio
import gc
import os
import random
import threading
import time
import tracemalloc
import zipfile

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    DTYPES,
    EVERYTHING,
    HAS_STRUCT,
    ZARRS_PIPELINE,
    create,
    end_interpreter,
    random_array,
    random_selections,
    run_python,
    select,
    set_costs,
    use_threads,
)
from zarr.codecs import TransposeCodec
from zarr.core.buffer import cpu

import numcodecs_bytes
from numcodecs_bytes import _threads, zarr_pipeline
from numcodecs_bytes._parts import batch, plan
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.product import parse_product
from numcodecs_bytes._parts.stores import LOCAL_COSTS, local_coalescing
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.*does not have a Zarr V3 spec", "ignore:.*structured dtype"
    ),
    pytest.mark.usefixtures("our_pipeline"),
]
MIB = 1 << 20
STRUCT = [[("a", ">i4"), ("b", "<f8"), ("c", "?")]]  # zarr 3.1.6 alone misreads a big-endian one
ZARR_ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "codecs.bytes": "zarr.codecs.bytes.BytesCodec"}


@pytest.fixture
def left(monkeypatch):
    """Return the list of the results of all batches, where None says that a chunk is left."""
    exist = []
    read_files = batch.read_files

    async def noting(a_batch):
        exist.extend(await read_files(a_batch))
        return exist[-len(a_batch.items) :]

    monkeypatch.setattr(zarr_pipeline, "read_files", noting)
    return exist


def random_settings(rng, num_axes):
    """Return how to store an uncompressed array: one of the ways that the pipelines read."""
    way = rng.choice(["ours", "zarr's", "transposed", "v2", "v2 bytes"])
    endian = rng.choice(["little", "big"])
    if way.startswith("v2"):
        settings = {"zarr_format": 2, "order": rng.choice("CF"), "filters": None}
        return settings, endian if way == "v2 bytes" else None
    codec = zarr.codecs.BytesCodec if way == "zarr's" else BytesCodec
    settings = {"serializer": codec(endian=endian)}
    if way == "transposed":
        order = tuple(rng.sample(range(num_axes), num_axes))
        settings["filters"] = [TransposeCodec(order=order)]
    return settings, None


@pytest.mark.parametrize("seed", range(150 if EVERYTHING else 40))
def test_any_selection_of_any_array(tmp_path, seed, monkeypatch, left):
    """Also in blocks of some bytes, with chunks that are missing, and in other memory orders."""
    rng = random.Random(seed)  # noqa: S311
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 4)))
    chunks = tuple(rng.randint(1, n) for n in shape)
    dtype = np.dtype(rng.choice(DTYPES + STRUCT * HAS_STRUCT))
    set_costs(
        monkeypatch,
        local_coalescing,
        block_bytes=rng.choice([64, 200, MIB]),
        whole_bytes=rng.choice([0, LOCAL_COSTS.whole_bytes]),
    )
    threads = use_threads(rng.choice([1, 2]))
    settings, endian = random_settings(rng, len(shape))
    if endian:
        codec = numcodecs_bytes.Bytes(endian, dtype)
        settings["filters"] = [codec]
    data = random_array(dtype, shape)
    written = zarr.create_array(
        tmp_path / "a", shape=shape, chunks=chunks, dtype=dtype, compressors=None, **settings
    )
    written[...] = data
    keys = [p for p in (tmp_path / "a").rglob("*") if p.is_file() and p.name[0] not in ".z"]
    for key in rng.sample(keys, rng.randint(0, min(3, len(keys)))):
        key.unlink()
    config = {"order": rng.choice("CF")}
    gap = rng.choice([None, None, 0, 30])
    with zarr.config.set(ZARR_ALONE):
        data = zarr.open_array(tmp_path / "a", mode="r")[...]
    with threads, zarr.config.set({"numcodecs_bytes.max_gap_bytes": gap}):
        array = zarr.open_array(tmp_path / "a", mode="r", config=config)
        for way, selection, of_numpy in random_selections(rng, shape, 5):
            np.testing.assert_array_equal(select(array, way, selection), of_numpy(data))
        np.testing.assert_array_equal(array[...], data)
    assert left
    assert None not in left


def test_a_zip_member_of_two_lengths_is_refused_as_by_zarr(tmp_path):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        create(store, 64, 8)[...] = 1
    raw = bytearray((tmp_path / "a.zip").read_bytes())
    entry = raw.rindex(b"c/7") - 46  # in the directory at the end
    assert raw[entry : entry + 4] == b"PK\1\2"
    assert raw[entry + 20 : entry + 24] == (64).to_bytes(4, "little")  # the compressed size
    raw[entry + 20 : entry + 24] = (32).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(raw)
    store = zarr.storage.ZipStore(tmp_path / "a.zip", read_only=True)
    with zarr.config.set(ZARR_ALONE), pytest.raises(Exception, match=".") as of_zarr:
        zarr.open_array(store, mode="r", zarr_format=3)[...]
    with pytest.raises(of_zarr.type):
        zarr.open_array(store, mode="r", zarr_format=3)[...]
    store.close()


def stores_of(tmp_path, data, **settings):
    """Yield an array of the same data in each store whose chunks are in local files."""
    fsspec = pytest.importorskip("fsspec")
    settings = {"shape": data.shape, "dtype": data.dtype, "compressors": None, **settings}
    local = zarr.create_array(tmp_path / "local", **settings)
    local[...] = data
    yield zarr.open_array(tmp_path / "local", mode="r")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in sorted((tmp_path / "local").rglob("*")):
            archive.write(file, file.relative_to(tmp_path / "local"))
    store = zarr.storage.ZipStore(tmp_path / "a.zip", read_only=True)
    yield zarr.open_array(store, mode="r", zarr_format=3)
    store.close()
    file_system = fsspec.filesystem("file", asynchronous=False)
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper  # noqa: PLC0415

    wrapped = AsyncFileSystemWrapper(file_system, asynchronous=True)
    store = zarr.storage.FsspecStore(wrapped, path=str(tmp_path / "local"), read_only=True)
    yield zarr.open_array(store, mode="r", zarr_format=3)
    references = {"zarr.json": (tmp_path / "local/zarr.json").read_text()}
    with (tmp_path / "all").open("wb") as file:
        for chunk in sorted((tmp_path / "local/c").rglob("*")):
            if chunk.is_file():
                name = chunk.relative_to(tmp_path / "local").as_posix()
                references[name] = [str(tmp_path / "all"), file.tell(), chunk.stat().st_size]
                file.write(chunk.read_bytes())
    target = fsspec.filesystem(
        "reference", fo=references, asynchronous=True, remote_options={"asynchronous": True}
    )
    store = zarr.storage.FsspecStore(target, read_only=True)
    yield zarr.open_array(store, mode="r", zarr_format=3)


def test_every_store_of_local_files(tmp_path, left):
    data = np.random.default_rng(0).random((40, 30))
    serializer = BytesCodec(endian="big")
    for array in stores_of(tmp_path, data, chunks=(7, 9), serializer=serializer):
        left.clear()
        np.testing.assert_array_equal(array[...], data)
        np.testing.assert_array_equal(array[3:20, ::4], data[3:20, ::4])
        np.testing.assert_array_equal(array.oindex[[3, 1, 39], :], data[[3, 1, 39]])
        assert left
        assert None not in left


def test_threads_share_a_zip_file(tmp_path, left, monkeypatch):
    """Since Python 3.12, zipfile mixes up members that are read in turn."""
    data = np.arange(64 * 64 * 8).reshape(64 * 8, 64)
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        create(store, data.shape, (8, 64), "i8")[...] = data
    store = zarr.storage.ZipStore(tmp_path / "a.zip", read_only=True)
    array = zarr.open_array(store, mode="r", zarr_format=3)
    seek = zipfile.ZipExtFile.seek
    monkeypatch.setattr(zipfile.ZipExtFile, "seek", lambda *a: time.sleep(1e-4) or seek(*a))
    with use_threads(4):
        for selection in [(slice(None, None, 3),), (slice(None), 63)] * 5:
            np.testing.assert_array_equal(array[selection], data[selection])
    assert None not in left
    store.close()


class Calls:
    """Counts what is asked of the system, for files below a path."""

    def __init__(self, monkeypatch):
        self.num = dict.fromkeys(["open", "stat", "fstat", "close", "preadv", "pread"], 0)
        self.num_bytes = 0
        for name in self.num:
            monkeypatch.setattr(os, name, self._counting(name, getattr(os, name)))

    def _counting(self, name, function):
        def counting(*arguments, **more):
            self.num[name] += 1
            result = function(*arguments, **more)
            if name == "preadv":
                self.num_bytes += result
            if name == "pread":
                self.num_bytes += len(result)
            return result

        return counting


class TestCalls:
    @pytest.fixture
    def array(self, tmp_path):
        """Return 64 chunks of 8 KiB."""
        data = np.arange(1 << 16).reshape(256, 256).astype("f8")
        create(tmp_path, (256, 256), (32, 32))[...] = data
        return zarr.open_array(tmp_path, mode="r")

    @pytest.mark.parametrize(
        ("selection", "num_chunks"),
        [
            ((slice(None), slice(None)), 64),
            ((slice(5, None, 32), slice(7, None, 32)), 64),
            ((slice(None), 3), 8),
            ((7, slice(None)), 8),
            ((slice(0, 16), slice(0, 64)), 2),
        ],
        ids=["whole", "one element per chunk", "column", "row", "box"],
    )
    def test_a_chunk_is_opened_once_and_read_at_once(
        self, array, monkeypatch, selection, num_chunks
    ):
        array[...]
        calls = Calls(monkeypatch)
        with use_threads(1):
            array[selection]
        names = ["open", "stat", "close", "preadv"]
        assert calls.num == dict.fromkeys(names, num_chunks) | {"fstat": 0, "pread": 0}
        assert calls.num_bytes == 8192 * num_chunks  # so small a chunk is read whole

    def test_the_same_selection_of_many_chunks_is_planned_once(self):
        layout = Layout((MIB // 64, 8), *[np.dtype("f8")] * 2)
        planner = plan.Planner(layout, plan.Coalescing(0))
        plans = [planner.plan((slice(0, 100), slice(3, 7))) for _ in range(3)]
        assert plans[0] is plans[1] is plans[2]

    def test_missing_chunks_are_asked_for_once(self, tmp_path, monkeypatch):
        create(tmp_path, (64, 64), (8, 8), fill_value=7)
        array = zarr.open_array(tmp_path, mode="r")
        calls = Calls(monkeypatch)
        assert (array[...] == 7).all()
        assert calls.num == dict.fromkeys(calls.num, 0) | {"stat": 64}

    def test_a_user_s_gap_is_kept(self, tmp_path, monkeypatch):
        create(tmp_path, (64, 64), (32, 64))[...] = 1
        array = zarr.open_array(tmp_path, mode="r")
        calls = Calls(monkeypatch)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            assert (array[:, 3] == 1).all()
        assert calls.num_bytes == 64 * 8

    def test_nothing_of_a_compressed_array_is_looked_at(self, tmp_path, monkeypatch, left):
        zarr.create_array(tmp_path, shape=64, chunks=8, dtype="f8")[...] = 1
        array = zarr.open_array(tmp_path, mode="r")
        calls = Calls(monkeypatch)
        assert (array[...] == 1).all()
        assert set(calls.num.values()) == {0}
        assert left == []


class TestLeftToTheChunk:
    """What is not read in a batch is read chunk by chunk, with the same errors."""

    @pytest.mark.parametrize("num_bytes", [0, 5, 63, 65, 1000])
    def test_wrong_lengths(self, tmp_path, num_bytes, left):
        create(tmp_path, (8, 8), (1, 8))[...] = 1
        (tmp_path / "c/3/0").write_bytes(bytes(num_bytes))
        array = zarr.open_array(tmp_path, mode="r")
        message = rf"(?s)holds {num_bytes} bytes, expected 64.*chunk 'c/3/0' of LocalStore"
        for selection in (slice(None), (slice(None), 3), (slice(2, 5), slice(None, None, 2))):
            with pytest.raises(ValueError, match=message):
                array[selection]
        assert left.count(None) == 3

    def test_a_file_that_is_cut_while_it_is_read(self, tmp_path, monkeypatch):
        create(tmp_path, (4, 8), (1, 8))[...] = 1
        array = zarr.open_array(tmp_path, mode="r")
        open_file = os.open

        def cut(path, *arguments, **more):
            descriptor = open_file(path, *arguments, **more)
            if str(path).endswith("c/2/0"):
                os.truncate(path, 40)
            return descriptor

        monkeypatch.setattr(os, "open", cut)
        with pytest.raises(ValueError, match=r"(?s)holds 40 bytes, expected 64.*c/2/0"):
            array[...]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read all")
    def test_a_file_that_may_not_be_read(self, tmp_path):
        create(tmp_path, (4, 8), (1, 8))[...] = 1
        (tmp_path / "c/2/0").chmod(0)
        with pytest.raises(PermissionError):
            zarr.open_array(tmp_path, mode="r")[...]

    def test_directories_and_pipes(self, tmp_path):
        """Whatever zarr makes of them, it is the same."""
        create(tmp_path, (4, 8), (1, 8), fill_value=3)[...] = 1
        (tmp_path / "c/2/0").unlink()
        (tmp_path / "c/2/0").mkdir()
        with zarr.config.set(ZARR_ALONE):
            expected = zarr.open_array(tmp_path, mode="r")[...]
        np.testing.assert_array_equal(zarr.open_array(tmp_path, mode="r")[...], expected)

    def test_a_pipe_is_read_once(self, tmp_path):
        if not hasattr(os, "mkfifo"):
            pytest.skip("this system has no named pipes")
        create(tmp_path, (4, 8), (1, 8))[...] = 1
        (tmp_path / "c/2/0").unlink()
        os.mkfifo(tmp_path / "c/2/0")
        chunk = np.full(8, 5, ">f8").tobytes()
        writer = threading.Thread(target=(tmp_path / "c/2/0").write_bytes, args=[chunk])
        writer.start()
        assert zarr.open_array(tmp_path, mode="r")[...].sum() == 24 + 40
        writer.join()

    def test_other_buffers_are_filled_their_own_way(self, tmp_path, left):
        class Buffer(cpu.NDBuffer):
            num_set = 0

            def __setitem__(self, key, value):
                type(self).num_set += 1
                super().__setitem__(key, value)

        create(tmp_path, (4, 8), (1, 8))[...] = 1
        array = zarr.open_array(tmp_path, mode="r")
        out = Buffer.create(shape=(4, 8), dtype="f8")
        array.get_basic_selection(..., out=out)
        assert (out.as_numpy_array() == 1).all()
        assert (Buffer.num_set, left) == (4, [])

    @pytest.mark.parametrize("layout", ["C", "F", "strided", "f4", "memmap", "swapped"])
    def test_the_output_may_have_any_layout(self, tmp_path, layout):
        data = np.random.default_rng(0).random((6, 8))
        create(tmp_path, (6, 8), (2, 3))[...] = data
        for array in (zarr.open_array(tmp_path, mode="r"),):
            memory = {
                "C": np.zeros((6, 8)),
                "F": np.zeros((6, 8), order="F"),
                "strided": np.zeros((12, 24))[::-2, ::3],
                "f4": np.zeros((6, 8), "f4"),
                "memmap": np.memmap(tmp_path / "m", "f8", "w+", shape=(6, 8)),
                "swapped": np.zeros((6, 8), ">f8"),
            }[layout]
            array.get_basic_selection(..., out=cpu.NDBuffer(memory))
            np.testing.assert_array_equal(memory, data.astype(memory.dtype))

    def test_an_output_that_is_read_only_raises_zarr_s_error(self, tmp_path):
        create(tmp_path, (6, 8), (2, 3), endian="little")[...] = 1
        memory = np.zeros((6, 8))
        memory.flags.writeable = False
        array = zarr.open_array(tmp_path, mode="r")
        with pytest.raises(ValueError, match="read-only"):
            array.get_basic_selection(..., out=cpu.NDBuffer(memory))
        assert not memory.any()


def test_a_defect_is_logged_once_and_counted(tmp_path, monkeypatch, caplog):
    """The values are right, since chunks are read again; but that must not stay unnoticed."""
    create(tmp_path, (64, 64), (8, 8))[...] = 1
    array = zarr.open_array(tmp_path, mode="r")
    preadv, failed = os.preadv, []

    class Defect(Exception):  # noqa: N818 # of another class than before: each is logged once
        pass

    def fail(*args):
        if len(failed) == 64:
            return preadv(*args)
        failed.append(args)
        raise Defect

    monkeypatch.setattr(os, "preadv", fail)
    with numcodecs_bytes.trace() as traced:
        assert (array[...] == 1).all()
    assert traced.report()["total"]["why_again"] == {"Defect in a batch": 64}
    assert "64 read again: Defect in a batch" in str(traced)
    (record,) = caplog.records
    assert record.exc_info[0] is Defect


class TestWorkers:
    @pytest.fixture
    def array(self, tmp_path):
        create(tmp_path, (64, 64), (8, 8))[...] = 1
        return zarr.open_array(tmp_path, mode="r")

    @pytest.fixture
    def at_once(self, monkeypatch):
        """Open files slowly; return how many were opened at once, at most."""
        most = [0]
        opening, lock, open_local = set(), threading.Lock(), os.open

        def slow(*arguments, **more):
            with lock:
                opening.add(threading.get_ident())
                most[0] = max(most[0], len(opening))
            time.sleep(0.002)
            with lock:
                opening.discard(threading.get_ident())
            return open_local(*arguments, **more)

        monkeypatch.setattr(os, "open", slow)
        return most

    @pytest.fixture
    def opened(self, monkeypatch):
        """Return the names of the threads that open chunks; `opened.then` is called by them."""

        class Opened(list):
            then = staticmethod(lambda: None)

        names, opening = Opened(), os.open

        def record(path, *arguments, **more):
            if "/c/" in str(path):
                names.append(threading.current_thread().name)
                names.then()
            return opening(path, *arguments, **more)

        monkeypatch.setattr(os, "open", record)
        return names

    def test_slow_files_are_waited_for_together(self, array, at_once):
        assert (array[...] == 1).all()
        assert 1 < at_once[0] <= batch.SLOW_WORKERS

    def test_as_many_as_zarr_s_setting_says(self, array, at_once, our_pipeline):
        is_fused = "Fused" in our_pipeline
        name, other = "codec_pipeline.max_workers", "threading.max_workers"
        if not is_fused:
            name, other = other, name
        with zarr.config.set({name: 3, other: 9}):
            assert (array[...] == 1).all()
        assert at_once == [3]

    def test_one_that_cannot_begin_is_not_waited_for(self, array, monkeypatch):
        def fail(*_, **__):
            raise MemoryError("no further thread")

        monkeypatch.setattr(batch, "FileReader", fail)
        with pytest.raises(MemoryError, match="no further thread"):
            array[...]

    def test_a_setting_of_a_million_starts_few(self, array, at_once):
        with use_threads(10**6):
            assert (array[...] == 1).all()
        assert at_once[0] <= _threads.MAX_FILE_THREADS + 1

    def test_one_that_comes_too_late_reads_nothing(self, array, monkeypatch, opened):
        """As threads do that the system could not start before."""
        make, is_over = batch.FileReader, threading.Event()

        def fail(*args, **more):
            if "helpers" in threading.current_thread().name:
                return make(*args, **more)
            raise MemoryError("no further thread")

        pool = _threads.helper_pool()
        for _ in range(_threads.MAX_FILE_THREADS):
            pool.submit(is_over.wait)
        out = cpu.NDBuffer(np.full((64, 64), 7.0))
        monkeypatch.setattr(batch, "FileReader", fail)
        try:
            with use_threads(4), pytest.raises(MemoryError, match="no further thread"):
                array.get_basic_selection(..., out=out)
        finally:
            is_over.set()
        while pool._work_queue.qsize():
            time.sleep(0.001)
        time.sleep(0.02)
        assert opened == []
        assert (out.as_numpy_array() == 7).all()

    def test_the_last_chunks_are_read_on_the_loop_while_the_interpreter_ends(
        self, array, monkeypatch, opened
    ):
        """It waits for the threads of pools, in which nothing more is read then."""
        opened.then = lambda: len(opened) == 10 and end_interpreter(monkeypatch)
        assert (array[...] == 1).all()
        assert len(opened) >= 64  # the last ones of some threads are read once more
        assert {name for name in opened[20:] if "zarr_io" not in name} == set()

    def test_numpy_s_error_state_is_the_caller_s(self, tmp_path):
        create(tmp_path, (4, 8), (1, 8))[...] = 1e300
        array = zarr.open_array(tmp_path, mode="r")
        if "Fused" in type(array.async_array.codec_pipeline).__name__:
            pytest.skip("the threads of zarr's fused pipeline do not know it either")
        out = cpu.NDBuffer(np.zeros((4, 8), "f4"))
        with np.errstate(over="raise"), pytest.raises(FloatingPointError):
            array.get_basic_selection(..., out=out)

    def test_one_for_small_chunks(self, array, monkeypatch, opened):
        monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # none of them is slow
        array[...]
        assert len(opened) == 64
        assert len(set(opened)) == 1


def test_memory_is_the_output_and_some_blocks(tmp_path, track):
    """Whatever the size of the chunks, which zarr alone holds whole."""
    size = (128 if EVERYTHING else 48) * MIB
    create(tmp_path / "a", (size // 8192, 1024), None, endian="big")[...] = 1
    array = zarr.open_array(tmp_path / "a", mode="r")
    for selection in [(), (slice(None), slice(0, 512)), (slice(None, None, 2),), (slice(3, -3),)]:
        peak, result = track(lambda s=selection: array[s])
        assert (result == 1).all()
        assert peak <= result.nbytes + 16 * MIB


def test_no_block_is_kept_after_a_read(tmp_path):
    create(tmp_path, (1 << 11, 1 << 10), (1 << 10, 1 << 10))[...] = 1
    array = zarr.open_array(tmp_path, mode="r")
    array[1::3, 1::3]
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(4):
            array[1::3, 1::3]
        end = time.monotonic() + 10
        while tracemalloc.get_traced_memory()[0] >= MIB // 2:  # of a block in each thread
            assert time.monotonic() < end  # other threads may not yet have let go of the result
            time.sleep(0.01)
    finally:
        tracemalloc.stop()
        gc.enable()


def test_memory_of_selections_that_differ_from_chunk_to_chunk(tmp_path, track):
    num, chunk = 60, 16 * MIB
    create(tmp_path, num * chunk // 8, chunk // 8)
    (tmp_path / "c").mkdir()
    for k in range(num):
        (tmp_path / f"c/{k}").touch()
        os.truncate(tmp_path / f"c/{k}", chunk)
    array = zarr.open_array(tmp_path, mode="r")
    peak, result = track(lambda: array[::521])
    assert (result == 0).all()
    assert peak <= result.nbytes + 16 * MIB


class TestCancellation:
    def test_the_output_is_left_alone_afterwards(self, tmp_path, monkeypatch):
        create(tmp_path, (200, 64), (1, 64), endian="little")[...] = 1
        array = zarr.open_array(tmp_path, mode="r")
        num_read, opening = [], os.open

        def slow(*arguments, **more):
            num_read.append(None)
            time.sleep(0.01)
            return opening(*arguments, **more)

        monkeypatch.setattr(os, "open", slow)
        out = cpu.NDBuffer(np.zeros((200, 64)))

        async def cancelled():
            reading = asyncio.ensure_future(
                array._async_array.get_orthogonal_selection((slice(None),) * 2, out=out)
            )
            while len(num_read) < 3:  # noqa: ASYNC110 # threads are reading
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            out.as_numpy_array()[...] = 7
            before = len(num_read)
            await asyncio.sleep(0.1)
            return len(num_read) - before

        assert asyncio.run(cancelled()) == 0
        assert (out.as_numpy_array() == 7).all()
        assert len(num_read) < 50


PROGRAM = """
import atexit, os, sys, threading
import numpy as np, zarr
zarr.config.set({"codec_pipeline.path": sys.argv[2]})
array = zarr.open_array(sys.argv[1], mode="r")
def read():
    os.write(1, b"%d\\n" % array[...].sum())
"""


@pytest.mark.parametrize(
    "when",
    [
        "read(); atexit.register(read)",
        "atexit.register(read)",
        "threading.Thread(target=read).start()",
        "threading._register_atexit(read)",
        "for thread in [threading.Thread(target=read) for _ in range(8)]: thread.start()",
        "read()\nif os.fork() == 0: read(); os._exit(0)\nos.wait()",
    ],
)
def test_at_exit_in_threads_and_after_a_fork(tmp_path, our_pipeline, when):
    if "fork" in when and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    create(tmp_path, (64, 64), (8, 8))[...] = 1
    done = run_python("-W", "ignore", "-c", PROGRAM + when, tmp_path, our_pipeline, options=None)
    lines = done.stdout.split()
    assert lines
    assert set(lines) == {"4096"}
    assert not done.stderr


def test_boxes_are_split_without_overlap():
    rng = random.Random(0)  # noqa: S311
    for _ in range(3000 if EVERYTHING else 300):
        shape = tuple(rng.randint(1, 7) for _ in range(rng.randint(0, 4)))
        order = tuple(rng.sample(range(len(shape)), len(shape)))
        selection = []
        for n in shape:
            start = rng.randrange(n)
            step = rng.randint(1, 3)
            kind = slice(start, rng.randint(start + 1, n), step)
            selection.append(start if rng.random() < 0.2 else kind)
        selected = parse_product(tuple(selection), Layout(shape, *[np.dtype("f8")] * 2, order))
        items = np.arange(np.prod(shape, dtype=int))
        chunk = items.reshape([shape[k] for k in order]).transpose(np.argsort(order))
        expected = chunk[tuple(selection)]
        most = rng.choice([8, 20, 64, 10**6])
        for in_pieces in (False, True):
            got, last = np.full(expected.shape, -1), -1
            for place, part in selected.boxes(most, in_pieces=in_pieces):
                values = chunk[part]
                assert (got[place] == -1).all()
                got[place] = values
                span = values.size if in_pieces else values.max() - values.min() + 1
                assert span * 8 <= max(most, 8)
                assert values.min() > last
                last = values.min()
            np.testing.assert_array_equal(got, expected)


def test_numcodecs_filters_are_not_read_by_batches(tmp_path, left):
    zarr.create_array(
        tmp_path,
        shape=8,
        chunks=2,
        dtype="f8",
        zarr_format=2,
        filters=[numcodecs.Delta("<f8")],
        compressors=None,
    )[...] = np.arange(8)
    assert zarr.open_array(tmp_path, mode="r")[...].tolist() == list(range(8))
    assert left == []
