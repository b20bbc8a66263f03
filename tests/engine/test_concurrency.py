"""Threads and processes that share an array or a codec, cancelled reads, programs that end.

Of a chunk that others overwrite, delete or create meanwhile, a read sees one version, however many
runs it takes.
"""

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import random
import re
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import quick_start
import zarr
import zarr.storage
from helpers import (
    EVERYTHING,
    OPEN_FILES,
    IgnoringStore,
    cancelled,
    create,
    decode_chunk,
    encode_chunk,
    eventually,
    ranges_from,
    run_python,
    spec_of,
    use_threads,
)
from zarr.core.buffer import cpu
from zarr.core.sync import sync
from zarr.registry import get_codec_class

from numcodecs_bytes._runtime import threads
from numcodecs_bytes._sources import store_states

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


def create_chunks(path, shape=SHAPE):
    config = {"write_empty_chunks": True}
    return create(path, shape, CHUNKS, "i8", fill_value=FILL_VALUE, config=config)


def write_rows(array, first, last):
    """Write whole chunks, one version after the other."""
    for version in range(NUM_VERSIONS):
        data = data_of(version)
        for row in range(first, last, CHUNKS[0]):
            array[row : row + CHUNKS[0]] = data[row : row + CHUNKS[0]]


CHUNK_OF = np.add.outer(np.arange(64) // CHUNKS[0] * 2, np.arange(32) // CHUNKS[1])


def check_read(array, selection):
    """Read once; all of a chunk is of the same version."""
    got = array[selection]
    is_of_version = got == VERSIONS[(slice(None), *selection)]
    chunk_of = CHUNK_OF[selection]
    for chunk in np.unique(chunk_of):
        assert is_of_version[:, chunk_of == chunk].all(axis=1).any(), got[chunk_of == chunk]


@pytest.mark.needs(OPEN_FILES)
@pytest.mark.usefixtures("our_pipeline")
@pytest.mark.parametrize("gap", [1 << 13, 0], ids=["one run", "many runs"])
@pytest.mark.parametrize("is_written", [True, False], ids=["chunks exist", "chunks are new"])
def test_readers_see_whole_versions_while_writers_write(tmp_path, set_constants, gap, is_written):
    """Guards against state that calls share: a codec, its plans, its caches of data types."""
    set_constants(GAP_BYTES=gap)
    array = create_chunks(tmp_path)
    if is_written:
        array[...] = FILL_VALUE
    readers = [array, zarr.open_array(tmp_path)]
    with ThreadPoolExecutor(6) as pool:
        writes = [pool.submit(write_rows, array, row, row + 16) for row in range(0, 64, 16)]
        while not all(write.done() for write in writes):
            for selection in SELECTIONS:
                list(pool.map(check_read, readers, [selection] * 2))
        for write in writes:
            write.result()
    assert np.array_equal(zarr.open_array(tmp_path)[...], data_of(NUM_VERSIONS - 1))


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
@pytest.mark.filterwarnings("ignore:The data type:FutureWarning")
def test_threads_share_a_codec(request):
    """Guards against a codec that keeps something of one call for the next."""
    dtypes = ("<i2", ">i4", "<f8", ">c8", "<U3", "<M8[s]", "<i2,>f8,?", ">u8", "<f2,S3")
    specs = [spec_of((2, 3), np.dtype(dtype).newbyteorder("=")) for dtype in dtypes]
    of_numcodecs = numcodecs.get_codec({"id": "bytes", "endian": "big"})
    of_zarr = get_codec_class("bytes")(endian="big")

    def use(number):
        spec = specs[number % len(specs)]
        dtype = spec.dtype.to_native_dtype()
        # Elements of bytes 0 and 1, which are bools too.
        pattern = np.array([int(digit) for digit in f"{number + 5:b}"], np.uint8)
        data = np.resize(pattern, 6 * dtype.itemsize).view(dtype).reshape(2, 3)
        expected = data.astype(dtype.newbyteorder(">")).tobytes()
        assert bytes(of_numcodecs.encode(data)) == expected
        assert of_numcodecs.decode(expected, np.zeros_like(data)).tobytes() == data.tobytes()
        codec = of_zarr.evolve_from_array_spec(spec)
        assert encode_chunk(codec, data, spec).to_bytes() == expected
        assert decode_chunk(codec, expected, spec).as_ndarray_like().tobytes() == data.tobytes()

    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # as often as can be
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(200)))


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


BY_STORE = pytest.mark.parametrize("open_array", [open_local, open_by_obstore, open_by_fsspec])
# obstore's of a file that is cut while it is read whole.
CUT = "expected 1024 for shape|Out of range of file"


@pytest.mark.needs(OPEN_FILES)
@BY_STORE
@pytest.mark.usefixtures("our_pipeline")
def test_no_selection_mixes_versions_that_another_process_writes(
    tmp_path, set_constants, open_array
):
    """LocalStore mixed 0.2 to 2 % of selections, ObjectStore 4 to 9 %, fsspec 15 %."""
    set_constants(GAP_BYTES=0)
    versions = VERSIONS[:, : CHUNKS[0], : CHUNKS[1]]
    create_chunks(tmp_path, CHUNKS)[...] = versions[1]
    array = open_array(tmp_path)
    selections = [np.ix_(range(8), [3]), np.ix_([1, 4, 7], range(4, 9)), np.ix_([7, 0, 3], [0, 9])]
    is_over = quick_start.CONTEXT.Event()
    writer = quick_start.CONTEXT.Process(target=change_until, args=(str(tmp_path), is_over))
    writer.start()
    num_short, num_zeroed, seen = 0, 0, set()
    try:
        for num_reads, selection in enumerate(itertools.cycle(selections)):
            # Until the writer has been seen at work, however late it starts.
            if num_reads >= (1000 if EVERYTHING else 500) and num_short and len(seen) > 2:
                break
            assert writer.is_alive()
            try:
                got = array.oindex[tuple(map(np.ravel, selection))]
            except Exception as error:
                if not re.search(CUT, str(error)):
                    raise
                num_short += 1
                continue
            expected = versions[(slice(None), *selection)]
            is_of_version = (got == expected).all(axis=(1, 2))
            seen.update(np.flatnonzero(is_of_version))
            if not is_of_version.any():
                # The kernel zeroes what is truncated while somebody's read(2) copies it.
                assert ((got == expected) | (got == 0)).all(axis=(1, 2)).any(), got
                num_zeroed += 1
                assert num_zeroed < 3
    finally:
        is_over.set()
        writer.join()


async def tasks_of_loop():
    """Return what else runs on the event loop."""
    return asyncio.all_tasks() - {asyncio.current_task()}


def num_open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.needs("/proc/self/fd")
@BY_STORE
class TestNothingIsLeft:
    @pytest.fixture
    def array(self, open_array, tmp_path):
        create_chunks(tmp_path)[...] = data_of(0)
        return open_array(tmp_path)

    @pytest.mark.usefixtures("our_pipeline")
    def test_no_file_no_task_and_no_thread_after_many_reads(self, array):
        for number in range(200):
            for row in (number % 64, -1, 7):
                array[row, 3:9:2]
            if number == 20:
                num_files, num_threads = num_open_files(), threading.active_count()
        assert eventually(lambda: num_open_files() <= num_files)
        assert eventually(lambda: not sync(tasks_of_loop()))
        # Obstore starts some, and so do we while files are slow; not one for each read.
        assert threading.active_count() < num_threads + 100

    def test_no_file_and_no_task_after_cancelled_reads(self, array):
        async def read_and_cancel():
            for number in range(100):
                reading = asyncio.ensure_future(array.async_array.getitem((slice(None), 3)))
                await asyncio.sleep(0.0001 * (number % 20))
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
            assert asyncio.all_tasks() == {asyncio.current_task()}

        before = num_open_files()
        asyncio.run(read_and_cancel())
        assert eventually(lambda: num_open_files() <= before)


@pytest.mark.usefixtures("our_pipeline")
class TestManyReads:
    def test_a_short_one_does_not_wait_for_long_ones(self, tmp_path, calls):
        """Whose threads, as many as there may be, all wait for their files."""
        num = 5
        for name in ("long", "short"):
            create_chunks(tmp_path / name)[...] = data_of(0)
        is_waiting, go_on = threading.Semaphore(0), threading.Event()

        def wait(path):
            if "/long/" in path:
                is_waiting.release()
                assert go_on.wait(60)

        calls.at_open = wait
        settings = {"threading.max_workers": 16, "codec_pipeline.max_workers": 16}
        with zarr.config.set(settings), ThreadPoolExecutor(num) as pool:
            reads = [pool.submit(lambda: open_local(tmp_path / "long")[...]) for _ in range(num)]
            for _ in range(num):
                assert is_waiting.acquire(timeout=60)
            try:
                with zarr.config.set({"async.timeout": 60}):
                    got = open_local(tmp_path / "short")[...]
            finally:
                go_on.set()
            for read in reads:
                assert np.array_equal(read.result(), got)
        assert np.array_equal(got, data_of(0))

    def test_all_threads_of_one_are_waited_for(self, tmp_path, calls):
        create_chunks(tmp_path)[...] = data_of(0)

        def wait(_):
            time.sleep(0.3 if "helpers" in threading.current_thread().name else 0.01)

        calls.at_open = wait
        with use_threads(4):
            assert np.array_equal(open_local(tmp_path)[...], data_of(0))
        assert calls.num_closed == len(calls.opened)  # nobody fills the output any more

    def test_a_cancelled_one_leaves_its_output_alone(self, tmp_path, calls):
        create_chunks(tmp_path, (800, 16))[...] = 1
        calls.opened.clear()
        array = open_local(tmp_path)
        out = cpu.NDBuffer(np.zeros((800, 16), "i8"))
        is_reading, is_cancelled = threading.Event(), threading.Event()

        def wait(_):
            if len(calls.opened) >= 3:
                is_reading.set()
                assert is_cancelled.wait(60)

        async def cancel():
            selection = (slice(None), slice(None))
            reading = asyncio.ensure_future(
                array.async_array.get_orthogonal_selection(selection, out=out)
            )
            assert await asyncio.to_thread(is_reading.wait, 60)
            reading.cancel()
            await asyncio.sleep(0)
            is_cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await reading
            out.as_numpy_array()[...] = 7

        calls.at_open = wait
        asyncio.run(cancel())
        num = len(calls.opened)
        assert num < 50
        assert np.array_equal(array[::8], np.ones((100, 16)))
        assert len(calls.opened) == num + 100
        assert (out.as_numpy_array() == 7).all()


@contextlib.contextmanager
def all_are_busy(pool):
    """Let all threads of a pool wait, as for a mount that does not answer."""
    go_on = threading.Event()
    waiting = [pool.submit(go_on.wait) for _ in range(threads.MAX_FILE_THREADS)]
    while pool._work_queue.qsize():
        time.sleep(0.001)
    try:
        yield
    finally:
        go_on.set()
        for future in waiting:
            future.result()


@pytest.mark.usefixtures("our_pipeline")
class TestTheQueueOfAPoolKeepsNoOutput:
    def test_of_a_read_whose_helpers_have_found_no_thread(self, tmp_path):
        array = create_chunks(tmp_path)
        array[...] = data_of(0)
        out = np.zeros(SHAPE, "i8")
        kept = weakref.ref(out)
        with all_are_busy(threads.helper_pool()), use_threads(8):
            array.get_basic_selection(..., out=cpu.NDBuffer(out))
            assert np.array_equal(out, data_of(0))
            del out
            assert eventually(lambda: kept() is None)

    def test_of_a_read_that_has_ended(self, tmp_path):
        """It took a garbage collection: 128 MiB took 8 times as long to read each time."""
        array = create_chunks(tmp_path)
        array[...] = data_of(0)
        gc.collect()
        gc.disable()
        try:
            for num in (1, 8):
                out = np.zeros(SHAPE, "i8")
                kept = weakref.ref(out)
                with use_threads(num):
                    array.get_basic_selection(..., out=cpu.NDBuffer(out))
                del out
                assert eventually(lambda kept=kept: kept() is None, collect=lambda: None)
        finally:
            gc.enable()

    def test_of_a_read_that_was_cancelled_before_it_began(self, tmp_path):
        array, pool = create_chunks(tmp_path), threads.file_pool()

        async def cancel():
            out = np.zeros(SHAPE, "i8")
            selection = (slice(None), slice(None))
            reading = asyncio.ensure_future(
                array.async_array.get_orthogonal_selection(selection, out=cpu.NDBuffer(out))
            )
            while not pool._work_queue.qsize():  # noqa: ASYNC110 # which has no events
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            return weakref.ref(out)

        with all_are_busy(pool):
            kept = asyncio.run(cancel())
            assert eventually(lambda: kept() is None)


@pytest.mark.usefixtures("our_pipeline")
def test_a_read_that_is_cancelled_twice_logs_no_error(tmp_path, calls, caplog):
    """asyncio logs errors that nobody has asked for."""
    create_chunks(tmp_path)[...] = data_of(0)
    array = open_local(tmp_path)
    is_reading, is_cancelled = threading.Event(), threading.Event()

    def wait(_):
        is_reading.set()
        assert is_cancelled.wait(60)

    async def cancel():
        reading = asyncio.ensure_future(array.async_array.getitem((slice(None), 3)))
        assert await asyncio.to_thread(is_reading.wait, 60)
        for _ in range(2):
            reading.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await reading
        is_cancelled.set()
        together = threading.Barrier(threads.MAX_FILE_THREADS)  # with the thread that has read
        pool = threads.file_pool()
        ended = [pool.submit(together.wait) for _ in range(threads.MAX_FILE_THREADS)]
        await asyncio.gather(*map(asyncio.wrap_future, ended))

    calls.at_open = wait
    asyncio.run(cancel())
    gc.collect()
    assert not caplog.records


LARGE = 1 << 26


@pytest.mark.usefixtures("our_pipeline")
@pytest.mark.parametrize("endian", ["little", "big"])
class TestCancelledWithinAChunk:
    """Of 64 MiB: millions of elements changed after the read had returned."""

    @pytest.fixture
    def cancel(self, tmp_path, endian, calls):
        """Return what cancels a read of the chunk during its third read, and refills the output."""
        create(tmp_path, (LARGE // 8,), dtype="i8", endian=endian, fill_value=1)
        (tmp_path / "c").mkdir()
        (tmp_path / "c/0").touch()
        os.truncate(tmp_path / "c/0", LARGE)
        is_reading, may_go_on = threading.Event(), threading.Event()

        def wait():
            if len(calls.reads) == 2:
                is_reading.set()
                assert may_go_on.wait(60)

        async def read(out, *, answers):
            array = open_local(tmp_path).async_array
            reading = array.get_orthogonal_selection((slice(None),), out=out)
            await cancelled(reading, is_reading, may_go_on, answers=answers)
            out.as_numpy_array()[...] = 7
            may_go_on.set()

        calls.at_read = wait
        return lambda out, *, answers: asyncio.run(read(out, answers=answers))

    @pytest.mark.parametrize("is_cold", [False, True])
    @pytest.mark.parametrize("answers", [True, False])
    def test_its_output_is_left_alone(self, cancel, calls, is_cold, answers):
        """The caller waits for one block; but not for long, if the system does not answer."""
        if not answers and not is_cold:
            pytest.skip("what is in memory does not wait")
        calls.is_cold = is_cold
        out = cpu.NDBuffer(np.empty(LARGE // 8, "i8"))
        cancel(out, answers=answers)
        assert eventually(lambda: calls.num_closed == len(calls.opened))
        assert len(calls.reads) == 3
        values = out.as_numpy_array()
        assert all((part == 7).all() for part in np.array_split(values, 64))


# The stack of a thread is larger than there are addresses.
NO_THREADS = """
import sys, threading
import numpy as np, zarr

folder, pipeline, kind = sys.argv[1:]
zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"})
for name in ("a", "b"):
    zarr.create_array(f"{folder}/{name}", shape=(4, 8), chunks=(4, 8), dtype="i8",
        compressors=None, fill_value=1)[...] = 2
zarr.config.set({"codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require"})
arrays = []
for name in ("a", "b"):
    arrays.append(zarr.open_array(f"{folder}/{name}"))
arrays[0].metadata  # zarr's own loop runs
threads = threading.active_count()
values = np.full((1, 8), 3)
out = zarr.core.buffer.cpu.NDBuffer(np.zeros((4, 8), "i8"))

def run(array):
    if kind == "write":
        array[1:2] = values
    else:
        array.get_basic_selection(..., out=out)

threading.stack_size(1 << 46)
run(arrays[0])
assert threading.active_count() == threads
threading.stack_size(0)
values[...] = 9
out.as_numpy_array()[...] = 9
if kind == "write":
    arrays[1][2:3] = 5
else:
    arrays[1][2:3]
assert threading.active_count() > threads  # which takes what waits for it
for array in arrays:
    array[0]
assert (arrays[0][1] == (3 if kind == "write" else 2)).all()
assert (out.as_numpy_array() == 9).all()
"""


@pytest.mark.skipif(sys.maxsize < 1 << 62, reason="there are fewer addresses")
@pytest.mark.parametrize("kind", [pytest.param("write", marks=pytest.mark.needs("fcntl")), "read"])
def test_what_found_no_thread_does_not_run_once_more(tmp_path, our_pipeline, kind):
    """Of a limited number: the pool queues it, and a thread that is started later takes it."""
    options = {"timeout": 100}
    run_python("-c", NO_THREADS, tmp_path, our_pipeline, kind, options=options)


def read_twice(array, number):
    """Read in a thread that stops for another one that reads, at a line of `store_states`.

    It is the line with this number that is executed before the first request. Returns whether there
    is such a line.
    """
    others, left = [], itertools.count(number, -1)

    def read():
        return asyncio.run(array.async_array.getitem((0, 1)))

    def stop(frame, event, _):
        if frame.f_code.co_filename != store_states.__file__ or array.store.requests:
            return None
        if event == "line" and not next(left):
            with ThreadPoolExecutor(1) as pool:
                others.append(pool.submit(read).result())
        return stop

    def read_and_stop():
        sys.settrace(stop)
        return read()

    with ThreadPoolExecutor(1) as pool:
        assert {pool.submit(read_and_stop).result(), *others} == {1}
    return bool(others)


def test_two_threads_that_read_first_from_a_store(tmp_path, caplog):
    """It ignores ranges, and each of them remembered that for itself, and warned."""
    create(tmp_path, (200, 200))[:] = 1
    for number in itertools.count():
        caplog.clear()
        array = zarr.open_array(IgnoringStore(tmp_path), mode="r")
        with ranges_from(IgnoringStore):
            is_over = not read_twice(array, number)
        assert len(caplog.records) == 1
        if is_over:
            break
    assert number > 5


PROGRAM = """
import atexit, os, sys, threading
import numpy as np, zarr, zarr.codecs

class Dict(zarr.storage.MemoryStore):  # a user's store, which needs no threads
    pass

folder, pipeline, kind = sys.argv[1:]
zarr.config.set({"codec_pipeline.path": pipeline})
checksums = [zarr.codecs.Crc32cCodec()] if kind == "crc32c" else None
store = folder if kind == "files" else Dict()
array = zarr.create_array(store, shape=(4, 1 << 18), chunks=(1, 1 << 18), dtype="f8",
    compressors=checksums, serializer={"name": "bytes", "configuration": {"endian": "big"}})
array = zarr.open_array(store)
assert type(array.metadata.codecs[0]).__module__ == "numcodecs_bytes.zarr_codec"
data = np.arange(4.0 * (1 << 18)).reshape(4, -1)

def write():
    for row in range(4):
        array[row] = data[row]

def read(name):
    for row in range(4):
        assert (array[row] == data[row]).all()
        assert (array[row, 5:90:7] == data[row, 5:90:7]).all()
    assert (array[:, 5::1000] == data[:, 5::1000]).all()
    os.write(1, name + b" ")

def work(name):
    if threading.current_thread() is not threading.main_thread():
        threading.main_thread().join()
    write()
    read(name)

write()
"""
# Before anything was read, no thread of this package has been started.
ENDS = """
threading.Thread(target=work, args=(b"thread",)).start()
atexit.register(work, b"atexit")
"""
FORKS = """
read(b"first")
if os.fork() == 0:
    read(b"child")
    sys.exit()
assert os.wait()[1] == 0
atexit.register(work, b"atexit")
for _ in range(8):
    threading.Thread(target=read, args=(b"thread",)).start()
"""


@pytest.mark.parametrize(
    ("kind", "program", "names"),
    [
        *((kind, ENDS, ["thread", "atexit"]) for kind in ("bytes", "crc32c")),
        # to files, which zarr alone can't do then
        pytest.param("files", ENDS, ["thread", "atexit"], marks=pytest.mark.needs("fcntl")),
        pytest.param(
            *("files", FORKS, ["first", "child", *["thread"] * 8, "atexit"]),
            marks=pytest.mark.needs("os.fork"),
        ),
    ],
    ids=["bytes", "crc32c", "files", "fork"],
)
def test_programs_that_end_or_fork(tmp_path, our_pipeline, kind, program, names):
    """Chunks of 1 MiB and more were lost: no thread is started any more."""
    if kind != "files" and "Fused" in our_pipeline:
        pytest.skip("zarr's own fused pipeline can't write then")
    arguments = ("-W", "ignore", "-c", PROGRAM + program, tmp_path, our_pipeline, kind)
    done = run_python(*arguments, options={"timeout": 100})
    assert (done.stdout.split(), done.stderr) == (names, "")
