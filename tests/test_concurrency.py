"""Threads and processes that share an array, and threads that share a codec.

What holds while others write: LocalStore writes a chunk to a file of its own and renames it, on
zarr 3.1.6 as on 3.4, so a file is always a whole chunk. A read that gets its part of a chunk with
one request sees one version of it; with several requests each element is of some version. A chunk
that is first written while several of its ranges are read is an error that says so: the ranges
before it are missing, those after it are there.

The children of spawned processes import this module, and are to find the codec by themselves: so it
imports nothing that imports numcodecs_bytes.
"""

import itertools
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numcodecs
import numpy as np
import pytest
import zarr
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


def check_read(array, selection, versions=VERSIONS):
    """Read once; every element is of some version."""
    got = array[selection]
    is_of_a_version = (got == versions[(slice(None), *selection)]).any(axis=0)
    assert is_of_a_version.all(), f"{got[~is_of_a_version]} were never written"


def check_chunk(array, row, column, versions=VERSIONS):
    """Read a chunk at once; all of it is of the same version."""
    chunk = (slice(row, row + CHUNKS[0]), slice(column, column + CHUNKS[1]))
    assert (array[chunk] == versions[(slice(None), *chunk)]).all(axis=(1, 2)).any()


def check_final(path):
    array = zarr.open_array(path)
    assert_ours(array)
    assert np.array_equal(array[...], data_of(NUM_VERSIONS - 1))


def is_not_yet_whole(error):
    return "was not read whole" in str(error)


def read_until(is_over, array, *, may_be_incomplete):
    """Read everything again and again, once more when the writers are done."""
    num_after_the_last_write = 0
    for selection in itertools.cycle(SELECTIONS):
        num_after_the_last_write += is_over()
        try:
            check_read(array, selection)
            for row, column in itertools.product(range(0, 64, 8), (0, 16)):
                check_chunk(array, row, column)
        except ValueError as error:
            if not (may_be_incomplete and is_not_yet_whole(error)):
                raise
        if num_after_the_last_write == len(SELECTIONS):
            break


@pytest.mark.usefixtures("pipeline")
class TestThreads:
    @pytest.mark.parametrize("cost", [None, 0], ids=["one request", "many requests"])
    @pytest.mark.parametrize("is_written", [True, False], ids=["chunks exist", "chunks are new"])
    def test_readers_see_whole_versions_while_writers_write(self, tmp_path, cost, is_written):
        """Guards against state that calls share: a codec, its plans, its caches of data types."""
        array = create(tmp_path)
        if is_written:
            array[...] = FILL_VALUE
        with (
            zarr.config.set({"numcodecs_bytes.request_cost_bytes": cost}),
            ThreadPoolExecutor(6) as pool,
        ):
            writers = [pool.submit(write_rows, array, row, row + 16) for row in range(0, 64, 16)]
            readers = [
                pool.submit(
                    read_until,
                    lambda: all(writer.done() for writer in writers),
                    opened,
                    may_be_incomplete=cost == 0 and not is_written,
                )
                for opened in (array, zarr.open_array(tmp_path))
            ]
            for future in (*writers, *readers):
                future.result()
        check_final(tmp_path)

    def test_a_chunk_that_is_new_is_there_or_an_error(self, tmp_path):
        """Guards against fill values beside written ones where one write wrote them all."""
        array = create(tmp_path)
        with (
            zarr.config.set({"numcodecs_bytes.request_cost_bytes": 0}),
            ThreadPoolExecutor(2) as pool,
        ):
            writing = pool.submit(write_rows, array, 0, 64)
            while not writing.done():
                try:
                    column = array[:8, 3]
                except ValueError as error:
                    assert is_not_yet_whole(error)  # noqa: PT017 # another error is a failure
                    continue
                assert (column == FILL_VALUE).all() or (column != FILL_VALUE).all()
            writing.result()
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
        from test_zarr import spec_of  # noqa: PLC0415 # which imports what children must not

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
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, spawn, max_tasks_per_child=1) as pool:
            writers = [
                pool.submit(write_opened, str(tmp_path), 0, 32),
                pool.submit(write_pickled, array, codec, 32, 64),
            ]
            read_until(
                lambda: all(writer.done() for writer in writers), array, may_be_incomplete=False
            )
            for writer in writers:
                writer.result()
        check_final(tmp_path)
