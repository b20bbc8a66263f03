"""Threads and processes that share an array, threads that share a codec, and what is left over.

Of a chunk that others overwrite, delete or create meanwhile, a read sees one version, however many
requests it takes, where the table of stores says so.

The children of spawned processes import this module, and are to find the codec by themselves: so it
imports nothing that imports numcodecs_bytes.
"""

import asyncio
import contextlib
import gc
import itertools
import os
import random
import re
import sys
import time
import weakref
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import quick_start
import zarr
import zarr.storage
from zarr.registry import get_codec_class

CHUNKS = (8, 16)
SHAPE = (64, 32)
NUM_VERSIONS = 5
FILL_VALUE = -1
# Read with one request per chunk, and with one for each row or element of it.
SELECTIONS = [(Ellipsis,), (slice(8, 24), slice(16)), (slice(None), 3), (slice(1, None, 3), 31)]


def data_of(version):
    """Return numbers whose bytes are all of use, so that no swapped or torn one is another."""
    return np.arange(np.prod(SHAPE)).reshape(SHAPE) * 0x0102030405 + version * 0x10000000000001


VERSIONS = np.stack([np.full(SHAPE, FILL_VALUE), *map(data_of, range(NUM_VERSIONS))])


def create(path):
    zarr.create_array(
        path,
        shape=SHAPE,
        chunks=CHUNKS,
        dtype="int64",
        compressors=None,
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
        fill_value=FILL_VALUE,
        config={"write_empty_chunks": True},
    )
    return zarr.open_array(path, mode="r+")


def assert_ours(array):
    (codec,) = array.metadata.codecs
    assert (
        f"{type(codec).__module__}.{type(codec).__qualname__}" == "numcodecs_bytes.zarr.BytesCodec"
    )


def write_rows(array, first, last):
    """Write whole chunks, one version after the other."""
    for version in range(NUM_VERSIONS):
        data = data_of(version)
        for row in range(first, last, CHUNKS[0]):
            array[row : row + CHUNKS[0]] = data[row : row + CHUNKS[0]]


CHUNK_OF = np.add.outer(np.arange(64) // CHUNKS[0] * 2, np.arange(32) // CHUNKS[1])


def check_read(array, selection, versions=VERSIONS):
    """Read once; all of a chunk is of the same version."""
    got = array[selection]
    is_of_version = got == versions[(slice(None), *selection)]
    chunk_of = CHUNK_OF[selection]
    for chunk in np.unique(chunk_of):
        assert is_of_version[:, chunk_of == chunk].all(axis=1).any(), got[chunk_of == chunk]


def check_final(path):
    array = zarr.open_array(path)
    assert_ours(array)
    assert np.array_equal(array[...], data_of(NUM_VERSIONS - 1))


def read_until(is_over, array):
    """Read everything again and again, once more when the writers are done."""
    num_after_the_last_write = 0
    for selection in itertools.cycle(SELECTIONS):
        num_after_the_last_write += is_over()
        check_read(array, selection)
        if num_after_the_last_write == len(SELECTIONS):
            break


@pytest.mark.usefixtures("our_pipeline")
class TestThreads:
    @pytest.mark.parametrize("max_gap_bytes", [None, 0], ids=["one request", "many requests"])
    @pytest.mark.parametrize("is_written", [True, False], ids=["chunks exist", "chunks are new"])
    def test_readers_see_whole_versions_while_writers_write(
        self, tmp_path, max_gap_bytes, is_written
    ):
        """Guards against state that calls share: a codec, its plans, its caches of data types."""
        array = create(tmp_path)
        if is_written:
            array[...] = FILL_VALUE
        with (
            zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}),
            ThreadPoolExecutor(6) as pool,
        ):
            writers = [pool.submit(write_rows, array, row, row + 16) for row in range(0, 64, 16)]
            readers = [
                pool.submit(read_until, lambda: all(writer.done() for writer in writers), opened)
                for opened in (array, zarr.open_array(tmp_path))
            ]
            for future in (*writers, *readers):
                future.result()
        check_final(tmp_path)


def write_opened(path, first, last):
    """Open by path in a process that knows nothing of the package, and write."""
    assert not [name for name in sys.modules if name.startswith("numcodecs_bytes")]
    array = zarr.open_array(path, mode="r+")
    assert_ours(array)
    write_rows(array, first, last)


def write_pickled(array, codec, first, last):
    """Write through an array that came by pickle, and use a codec that did."""
    assert_ours(array)
    assert codec.decode(codec.encode(np.arange(3.0))).tolist() == [0, 1, 2]
    write_rows(array, first, last)


@pytest.fixture
def _hurried():
    """Switch threads as often as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_hurried")
class TestSharedCodecs:
    """Guards against a codec that keeps something of one call for the next."""

    DTYPES = ("<i2", ">i4", "<f8", ">c8", "<U3", "<M8[s]", "?", "<i2,>f8,?", ">u8", "<f2,S3")

    @staticmethod
    def in_threads(act):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(act, range(400)))

    @staticmethod
    def data_and_stored(dtype, number):
        """Return elements of bytes 0 and 1, which are bools too, and how they are stored."""
        native = np.dtype(dtype).newbyteorder("=")
        pattern = np.array([int(digit) for digit in f"{number + 5:b}"], np.uint8)
        data = np.resize(pattern, 6 * native.itemsize).view(native).reshape(2, 3)
        return data, data.astype(native.newbyteorder(">")).tobytes()

    def test_threads_share_an_instance_of_bytes(self):
        shared = numcodecs.get_codec({"id": "bytes", "endian": "big", "dtype": "<i4"})

        def use(number):
            data, stored = self.data_and_stored("<i4", number)
            out = np.empty_like(data)
            assert bytes(shared.encode(data)) == stored
            assert shared.decode(stored).tobytes() == data.tobytes()
            assert shared.decode(stored, out=out).tobytes() == data.tobytes()

        self.in_threads(use)

    def test_threads_share_an_instance_without_dtype(self):
        shared = numcodecs.get_codec({"id": "bytes", "endian": "big"})
        dtypes = [dtype for dtype in self.DTYPES if dtype != "?"]  # says nothing of elements

        def use(number):
            data, stored = self.data_and_stored(dtypes[number % len(dtypes)], number)
            assert bytes(shared.encode(data)) == stored
            assert shared.decode(stored, out=np.zeros_like(data)).tobytes() == data.tobytes()

        self.in_threads(use)

    @pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
    @pytest.mark.filterwarnings("ignore:The data type:FutureWarning")
    def test_threads_share_an_instance_of_zarrs_codec(self):
        from helpers import spec_of  # noqa: PLC0415 # which children do without

        shared = get_codec_class("bytes")(endian="big")
        specs = [spec_of((2, 3), np.dtype(dtype).newbyteorder("=")) for dtype in self.DTYPES]

        def use(number):
            spec = specs[number % len(specs)]
            data, expected = self.data_and_stored(spec.dtype.to_native_dtype(), number)
            codec = shared.evolve_from_array_spec(spec)
            stored = codec._encode_sync(spec.prototype.nd_buffer.from_ndarray_like(data), spec)
            assert stored.to_bytes() == expected
            assert codec._decode_sync(stored, spec).as_ndarray_like().tobytes() == data.tobytes()

        self.in_threads(use)


class TestProcesses:
    def test_writers_in_other_processes_find_the_codec(self, tmp_path):
        """Guards against a codec that only the process has that imported the package."""
        array = create(tmp_path)
        array[...] = FILL_VALUE
        codec = numcodecs.get_codec({"id": "bytes", "endian": "big", "dtype": "<f8"})
        with ProcessPoolExecutor(2, quick_start.CONTEXT, max_tasks_per_child=1) as pool:
            writers = [
                pool.submit(write_opened, str(tmp_path), 0, 32),
                pool.submit(write_pickled, array, codec, 32, 64),
            ]
            read_until(lambda: all(writer.done() for writer in writers), array)
            for writer in writers:
                writer.result()
        check_final(tmp_path)


def change_until(path, is_over):
    """Overwrite, delete, create and truncate the only chunk of an array, in another process."""
    chunk = Path(path, "c/0/0")
    rng = random.Random(0)  # noqa: S311
    while not is_over.is_set():
        stored = VERSIONS[rng.randrange(1, len(VERSIONS)), : CHUNKS[0], : CHUNKS[1]]
        raw = stored.astype(">i8").tobytes()
        act = rng.choice(["overwrite"] * 8 + ["delete", "cut", "truncate"])
        if act == "delete":
            chunk.unlink(missing_ok=True)
            continue
        if act == "truncate" and chunk.exists():
            os.truncate(chunk, 24)
            continue
        new = chunk.with_suffix(".new")
        new.write_bytes(raw[:40] if act == "cut" else raw)
        new.replace(chunk)


def open_local(path):
    return zarr.open_array(zarr.storage.LocalStore(path), mode="r")


def open_by_obstore(path):
    stores = pytest.importorskip("obstore.store", reason="the extra stores is not installed")
    return zarr.open_array(zarr.storage.ObjectStore(stores.LocalStore(str(path))), mode="r")


def open_by_fsspec(path):
    pytest.importorskip("fsspec", reason="the extra stores is not installed")
    return zarr.open_array(zarr.storage.FsspecStore.from_url(path.as_uri()), mode="r")


@pytest.mark.parametrize("open_array", [open_local, open_by_obstore, open_by_fsspec])
@pytest.mark.usefixtures("our_pipeline")
def test_no_selection_mixes_versions_that_another_process_writes(tmp_path, open_array, everything):
    """LocalStore mixed 0.2 to 2 % of selections, ObjectStore 4 to 9 %, fsspec 15 %."""
    zarr.create_array(
        tmp_path,
        shape=CHUNKS,
        dtype="int64",
        compressors=None,
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
        fill_value=FILL_VALUE,
    )[...] = VERSIONS[1, : CHUNKS[0], : CHUNKS[1]]
    array = open_array(tmp_path)
    versions = VERSIONS[:, : CHUNKS[0], : CHUNKS[1]]
    selections = [
        (slice(None), 3),
        (slice(1, 8, 3), slice(4, 9)),
        ([7, 0, 3], slice(None, None, 5)),
    ]
    is_over = quick_start.CONTEXT.Event()
    writer = quick_start.CONTEXT.Process(target=change_until, args=(str(tmp_path), is_over))
    writer.start()
    least = 2000 if everything else 1000
    num_short, num_zeroed, seen = 0, 0, set()
    try:
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            for num_reads, selection in enumerate(itertools.cycle(selections)):
                # Until the writer has been seen at work, however late it starts.
                if num_reads >= least and num_short and len(seen) > 2:
                    break
                assert writer.is_alive()
                try:
                    got = array.oindex[selection]
                except Exception as error:
                    # The second one is obstore's, of a file that is cut while it is read whole.
                    if not re.search("expected 1024 for shape|Out of range of file", str(error)):
                        raise
                    num_short += 1
                    continue
                rows, columns = (
                    np.atleast_1d(np.arange(n)[s]) for n, s in zip(CHUNKS, selection, strict=True)
                )
                expected = versions[:, rows][:, :, columns].reshape(-1, *got.shape)
                is_of_version = (got == expected).reshape(len(versions), -1).all(axis=1)
                if not is_of_version.any():
                    # The kernel zeroes what is truncated while somebody's read(2) copies it.
                    is_zeroed = ((got == expected) | (got == 0)).reshape(len(versions), -1)
                    assert is_zeroed.all(axis=1).any(), got
                    num_zeroed += 1
                    assert num_zeroed < 3
                    continue
                seen.update(np.flatnonzero(is_of_version))
    finally:
        is_over.set()
        writer.join()


def eventually(is_true):
    """Whether something comes true within ten seconds: a store's threads may let go of it later."""
    for _ in range(1000):
        gc.collect()
        if is_true():
            return True
        time.sleep(0.01)
    return False


class TestNothingIsLeft:
    @pytest.fixture(params=[open_local, open_by_obstore, open_by_fsspec])
    def array(self, request, tmp_path):
        create(tmp_path)[...] = data_of(0)
        return request.param(tmp_path)

    @staticmethod
    def open_files():
        folder = Path("/proc/self/fd")
        if not folder.exists():
            pytest.skip("this system has no /proc")
        return len(list(folder.iterdir()))

    @pytest.mark.usefixtures("our_pipeline")
    def test_no_file_and_no_task_after_many_reads(self, array, everything):
        before = None
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            for number in range(1000 if everything else 200):
                for row in (number % 64, -1, 7):
                    array[row, 3:9:2]
                if number == 20:
                    before = self.open_files()
        assert eventually(lambda: self.open_files() <= before)
        assert eventually(lambda: not asyncio.all_tasks(zarr.core.sync._get_loop()))

    def test_no_file_and_no_task_after_cancelled_reads(self, array, everything):
        async def read_and_cancel():
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
                for number in range(300 if everything else 100):
                    reading = asyncio.ensure_future(array._async_array.getitem((slice(None), 3)))
                    await asyncio.sleep(0.0001 * (number % 20))
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reading
            for _ in range(1000):
                if len(asyncio.all_tasks()) == 1:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(asyncio.all_tasks())

        before = self.open_files()
        asyncio.run(read_and_cancel())
        assert eventually(lambda: self.open_files() <= before)

    def test_no_event_loop_is_kept_alive(self, array):
        """Semaphores kept every loop that they had made wait: 61 after 60 of `asyncio.run`."""

        async def read():
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0, "async.concurrency": 2}):
                await asyncio.gather(
                    *(array._async_array.getitem((slice(None), column)) for column in range(4))
                )
            return weakref.ref(asyncio.get_running_loop())

        loops = [asyncio.run(read()) for _ in range(20)]
        # One in a hundred obstore keeps, with zarr's own codec as well.
        assert eventually(lambda: sum(loop() is not None for loop in loops) < 5)


class Nested(zarr.storage.LocalStore):
    """A store that reads another array inside `get`, in the same event loop or in a thread's."""

    _supports_sync_io = False
    in_thread = False

    async def get(self, key, prototype=None, byte_range=None):
        if not key.endswith("zarr.json"):
            if self.in_thread:
                loop = asyncio.get_running_loop()
                with ThreadPoolExecutor(1) as pool:
                    await loop.run_in_executor(pool, lambda: asyncio.run(self.read_another()))
            else:
                await self.read_another()
        return await super().get(key, prototype, byte_range)

    async def read_another(self):
        await self.another._async_array.getitem((slice(None), 3))


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("concurrency", [1, 10])
@pytest.mark.usefixtures("our_pipeline")
def test_a_store_that_reads_another_array_does_not_hang(tmp_path, concurrency, in_thread):
    """Nested requests waited for the places that their callers held."""
    data = np.arange(5 * 6).reshape(5, 6)
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        zarr.create_array(path, data=data, compressors=None)
    outer, inner = map(Nested, paths)
    inner.another = zarr.open_array(paths[1])
    outer.another = zarr.open_array(inner)
    outer.in_thread = in_thread
    array = zarr.open_array(outer)
    with zarr.config.set(
        {
            "numcodecs_bytes.max_gap_bytes": 0,
            "numcodecs_bytes.stores_with_ranges": [f"{__name__}.Nested"],
            "async.concurrency": concurrency,
            "async.timeout": 50,
        }
    ):
        assert np.array_equal(array[:, 5], data[:, 5])


AT_EXIT = """
import atexit, sys, threading
import numpy as np, zarr, zarr.codecs
from zarr.core.buffer import default_buffer_prototype

class Dict(zarr.storage.MemoryStore):  # a user's store, which needs no threads
    pass

checksums = [zarr.codecs.Crc32cCodec()] if sys.argv[2] == "crc32c" else None
store = Dict()
array = zarr.create_array(store, shape=(4, 1 << 19), chunks=(1, 1 << 19), dtype="f8",
    compressors=checksums, serializer={"name": "bytes", "configuration": {"endian": "big"}})
array = zarr.open_array(store)
assert type(array.metadata.codecs[0]).__module__ == "numcodecs_bytes.zarr"
data = np.arange(4.0 * (1 << 19)).reshape(4, -1)

def work():
    if sys.argv[1] == "thread":
        threading.main_thread().join()
    for row in range(4):
        array[row] = data[row]
        assert (array[row] == data[row]).all()
        assert (array[row, 5:90:7] == data[row, 5:90:7]).all()
    print("done")

if sys.argv[1] == "thread":
    threading.Thread(target=work).start()
else:
    atexit.register(work)
"""


@pytest.mark.parametrize("codecs", ["bytes", "crc32c"])
@pytest.mark.parametrize("when", ["thread", "atexit"])
def test_reads_and_writes_while_the_interpreter_ends(when, codecs):
    """Chunks of 1 MiB and more were lost: no thread is started any more."""
    from helpers import run_python  # noqa: PLC0415 # the same

    done = run_python("-c", AT_EXIT, when, codecs, status=None, options={"timeout": 100})
    assert done.stdout == "done\n", done.stderr
