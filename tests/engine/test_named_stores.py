"""Stores of Python's that people name: whatever they answer or raise, as with zarr alone."""

import asyncio
import dataclasses
import gc
import re
import weakref

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import create, ranges_from
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync

import numcodecs_bytes

pytestmark = pytest.mark.usefixtures("our_pipeline")
DATA = np.arange(100, 124).reshape(4, 6)
NUM_BYTES = 48
RAW = DATA.astype(">i2").tobytes()


class Answering(zarr.storage.LocalStore):
    """A store that notes requests for chunks, and answers these and all ranges as told.

    `answer` takes the number of requests so far, the range or None, and the buffer. `before` is
    awaited before each request for a chunk; it takes the name of the chunk, and the range or None.
    """

    _supports_sync_io = False

    def __init__(self, root, **kwargs):
        super().__init__(root, **kwargs)
        self.asked, self.answer = [], lambda _num, _range, buffer: buffer
        self.before = lambda _key, _range: asyncio.sleep(0)

    async def get(self, key, prototype=None, byte_range=None):
        if key.startswith("c/"):
            await self.before(key, byte_range)
            self.asked.append(byte_range)
        buffer = await super().get(key, prototype, byte_range)
        if not key.startswith("c/") and byte_range is None:
            return buffer
        return self.answer(len(self.asked), byte_range, buffer)


def of_bytes(raw):
    return default_buffer_prototype().buffer.from_bytes(raw)


@pytest.fixture
def array(tmp_path):
    """Return an array of one chunk of 48 bytes, read from a store that is named."""
    create(tmp_path, (4, 6), dtype="i2")[:] = DATA
    with ranges_from(Answering), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        yield zarr.open_array(Answering(tmp_path), mode="r")


class CausedByItselfError(Exception):
    """What `raise error from error` makes, by mistake."""

    def __init__(self):
        self.__cause__ = self


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    text: str


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


ERRORS = [
    NotImplementedError("no ranges"),
    RuntimeError("503 Service Unavailable"),
    KeyError("c/0/0"),
    PermissionError("/data/orange/c/0/0: invalid range"),
    ConnectionResetError(104, "reset by peer"),
    CausedByItselfError(),
    FrozenError("no notes"),
    UnprintableError(),
]


def fail(error):
    raise error


# What is answered to ranges, instead of a buffer.
ANSWERS = {
    repr(ERRORS[0]): lambda _buffer: fail(ERRORS[0]),
    **{
        f"{n} bytes": lambda _buffer, n=n: of_bytes(RAW.ljust(n, b"\0")[:n])
        for n in (0, 11, 13, NUM_BYTES, 49)
    },
    "missing": lambda _buffer: None,
}
SELECTIONS = np.s_[1], np.s_[:, 3], np.s_[2], np.s_[1:4:2, ::4]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_range_that_is_not_answered_as_requested(array, caplog, name):
    """The chunk is read whole, and the store from then on, with one warning at most."""
    array.store.answer = lambda _num, asked, buffer: ANSWERS[name](buffer) if asked else buffer
    for selection in SELECTIONS:
        np.testing.assert_array_equal(array[selection], DATA[selection])
    assert array.store.asked == [RangeByteRequest(12, 24), None, None, None, None]
    records = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(records) == (name != "missing")
    assert all("does not serve byte ranges as requested" in r.getMessage() for r in records)
    again = zarr.open_array(array.store, mode="r")  # the store is known
    assert again[3].tolist() == DATA[3].tolist()
    assert array.store.asked[5:] == [None]


class TestRequestsThatFail:
    """They say nothing about ranges: a single 503 made a store be read whole for ten minutes."""

    RANGE = RangeByteRequest(12, 24)

    @pytest.fixture
    def answering(self, array):
        """Return an array whose store has answered a range."""
        assert array[0].tolist() == DATA[0].tolist()
        array.store.asked.clear()
        return array

    def test_the_first_of_all(self, array, caplog):
        """The store may be down: it is asked as by zarr alone, at once."""
        array.store.answer = lambda num, _range, buffer: fail(ERRORS[1]) if num == 1 else buffer
        for _ in range(2):
            assert array[1].tolist() == DATA[1].tolist()
        assert array.store.asked == [self.RANGE, None, self.RANGE]
        assert not caplog.records

    @pytest.mark.parametrize("error", ERRORS[1:], ids=repr)
    def test_once(self, answering, caplog, error):
        """The range is requested once more."""
        array = answering
        array.store.answer = lambda num, _range, buffer: fail(error) if num == 1 else buffer
        for _ in range(2):
            assert array[1].tolist() == DATA[1].tolist()
        assert array.store.asked == [self.RANGE] * 3
        assert not caplog.records

    def test_one_of_many(self, tmp_path):
        """It is requested no more than twice, while others are answered."""
        create(tmp_path, (200, 6), dtype="i2")[:] = 1
        with ranges_from(Answering), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            array = zarr.open_array(Answering(tmp_path), mode="r")
            assert array[0, 0] == 1
            array.store.answer = lambda _num, asked, buffer: (
                fail(ERRORS[1]) if asked and asked.start == 18 else buffer
            )
            assert (array[:, 3] == 1).all()
        assert array.store.asked.count(RangeByteRequest(18, 20)) == 2
        assert array.store.asked.count(None) == 1

    @pytest.mark.parametrize("error", ERRORS[1:], ids=repr)
    def test_twice(self, answering, caplog, error):
        """The chunk is left to zarr, and the next read begins with a range again."""
        array = answering
        array.store.answer = lambda num, _range, buffer: fail(error) if num <= 2 else buffer
        for _ in range(2):
            assert array[1].tolist() == DATA[1].tolist()
        assert array.store.asked == [self.RANGE, self.RANGE, None, self.RANGE]
        assert not caplog.records

    def test_always(self, answering, caplog):
        """After three objects in a row, the store is read whole: it refuses ranges in its way."""
        array = answering
        array.store.answer = lambda _num, asked, buffer: fail(ERRORS[1]) if asked else buffer
        for _ in range(5):
            assert array[1].tolist() == DATA[1].tolist()
        once, twice = [self.RANGE, None], [self.RANGE, self.RANGE, None]
        assert array.store.asked == [*twice, *once, *once, None, None]
        (record,) = caplog.records
        assert "(RuntimeError: 503 Service Unavailable)" in record.getMessage()

    def test_not_in_a_row(self, answering, caplog):
        array = answering
        array.store.answer = lambda num, _range, buffer: (
            fail(ERRORS[1]) if num % 4 in (1, 2) else buffer
        )
        for _ in range(9):
            assert array[1].tolist() == DATA[1].tolist()
        assert array.store.asked == [self.RANGE, self.RANGE, None, self.RANGE] * 4 + (
            [self.RANGE, self.RANGE, None]
        )
        assert not caplog.records

    def test_those_that_fail_together_are_one_failure(self, tmp_path, caplog):
        """A server that is overloaded for a moment was asked for whole chunks from then on."""
        data = np.arange(60).reshape(10, 6)
        zarr.create_array(tmp_path, data=data, chunks=(1, 6), compressors=None)
        with ranges_from(Answering), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            array = zarr.open_array(Answering(tmp_path), mode="r")
            assert array[0, :2].tolist() == data[0, :2].tolist()
            failing = iter(range(11))  # all of the next ranges, one of them twice
            array.store.answer = lambda _num, asked, buffer: (
                fail(ERRORS[1]) if asked and next(failing, None) is not None else buffer
            )
            for _ in range(2):
                assert array[:, 3].tolist() == data[:, 3].tolist()
        assert array.store.asked.count(None) == 10
        assert None not in array.store.asked[-10:]
        assert not caplog.records

    def test_a_range_that_is_answered_between(self, array):
        """The third failure was a strike, although it was after an answer for the same chunk."""
        array.store.answer = lambda _num, asked, buffer: fail(ERRORS[1]) if asked else buffer
        for _ in range(2):
            assert array[1].tolist() == DATA[1].tolist()
        array.store.asked.clear()
        array.store.answer = lambda num, _range, buffer: (
            fail(ERRORS[1]) if num in (2, 3) else buffer
        )
        with zarr.config.set({"async.concurrency": 1}):
            assert array[:, 3].tolist() == DATA[:, 3].tolist()
        assert array[1].tolist() == DATA[1].tolist()
        assert array.store.asked[3:] == [None, self.RANGE]

    def test_after_a_while(self, array, set_constants):
        """It is not requested again: its client has done that."""
        set_constants(MAX_SECONDS_TO_REPEAT=0.02)
        array.store.before = lambda _key, asked: asyncio.sleep(0.04 if asked else 0)
        array.store.answer = lambda _num, asked, buffer: fail(ERRORS[1]) if asked else buffer
        assert array[1].tolist() == DATA[1].tolist()
        assert array.store.asked == [self.RANGE, None]


@pytest.mark.parametrize("selection", [(1,), (slice(None), 3)], ids=str)
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_failure_of_the_whole_chunk_too_is_zarr_s_error(array, error, selection):
    """With a note that names the chunk; the next read begins with a range again."""
    array.store.answer = lambda *_: fail(error)
    for _ in range(2):
        with pytest.raises(type(error)) as caught:
            array[selection]
    assert caught.value is error
    if not isinstance(error, FrozenError):
        (note,) = error.__notes__
        del error.__notes__
        assert re.fullmatch(r"while reading chunk 'c/0/0' of LocalStore.*", note)
    array.store.answer = lambda _num, _range, buffer: buffer
    array.store.asked.clear()
    assert array[1].tolist() == DATA[1].tolist()
    assert array.store.asked == [RangeByteRequest(12, 24)]


@pytest.mark.parametrize("first", range(1, 5))
def test_a_chunk_that_appears_or_vanishes_is_there_whole_or_not_at_all(array, first):
    assert array[0].tolist() == DATA[0].tolist()
    num = len(array.store.asked) + first
    array.store.answer = lambda n, _range, buffer: None if n < num else buffer
    assert array[:, 3].tolist() in (DATA[:, 3].tolist(), [0] * 4)
    array.store.asked.clear()
    array.store.answer = lambda n, _range, buffer: buffer if n < first else None
    assert array[:, 3].tolist() in (DATA[:, 3].tolist(), [0] * 4)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_request_that_the_store_cancels(array, is_first):
    """A task group takes a cancelled task for done; its bytes never came."""

    def answer(num, byte_range, buffer):
        if byte_range is not None and num == (1 if is_first else 3):
            raise asyncio.CancelledError
        return buffer

    array.store.answer = answer

    async def read():
        return await array.async_array.getitem((slice(None), 3))

    try:
        got = asyncio.run(read())
    except asyncio.CancelledError:
        return  # as with zarr alone
    assert got.tolist() == DATA[:, 3].tolist()


@pytest.mark.parametrize("concurrency", [1, 10])
def test_a_store_that_reads_another_array_does_not_hang(tmp_path, concurrency):
    data = np.arange(5 * 6).reshape(5, 6)
    for name in "abc":
        zarr.create_array(tmp_path / name, data=data, compressors=None)
    array = zarr.open_array(Answering(tmp_path / "a"))
    for name in "bc":
        another, array = array, zarr.open_array(Answering(tmp_path / name))
        array.store.before = lambda *_, a=another: a.async_array.getitem((slice(None), 3))
    config = {"numcodecs_bytes.max_gap_bytes": 0, "async.concurrency": concurrency}

    async def read_many():
        reads = [array.async_array.getitem((slice(None), k % 6)) for k in range(20)]
        return await asyncio.gather(*reads)

    with ranges_from(Answering), zarr.config.set(config | {"async.timeout": 50}):
        assert np.array_equal(array[:, 5], data[:, 5])
        for k, column in enumerate(sync(read_many())):
            assert np.array_equal(column, data[:, k % 6])


FLAT = np.random.default_rng(0).integers(0, 256, 8 << 20, np.uint8)
EVERY = slice(None, None, 700_000)
SOME = slice((3 << 20) + 5, (3 << 20) + 9)


class TestLostConnections:
    """A store loses the connection to one of eight chunks of 1 MiB, after long."""

    @pytest.fixture
    def lost(self, tmp_path, set_constants):
        set_constants(MAX_SECONDS_TO_REPEAT=0.02)
        zarr.create_array(tmp_path, data=FLAT, chunks=(1 << 20,), compressors=None)
        array = zarr.open_array(Answering(tmp_path), mode="r")
        array.store.seconds, array.store.is_lost = 0.04, lambda _range: True

        async def lose(key, byte_range):
            if key == "c/3" and array.store.is_lost(byte_range):
                await asyncio.sleep(array.store.seconds)
                raise ConnectionError("lost")

        array.store.before = lose
        with ranges_from(Answering):
            yield array

    def test_zarr_s_error_is_raised(self, lost):
        """Once zarr has asked as well. No task is left."""

        async def read():
            with pytest.raises(ConnectionError, match="lost") as caught:
                await lost.async_array.getitem(EVERY)
            return len(asyncio.all_tasks()), caught.value

        num_tasks, error = sync(read())
        assert num_tasks == 1
        assert "while reading chunk 'c/3'" in error.__notes__[0]

    def test_the_other_chunks_are_read_in_part(self, lost):
        """All of them were read whole, by zarr."""
        lost.store.is_lost = lambda byte_range: byte_range is not None
        assert np.array_equal(lost[EVERY], FLAT[EVERY])
        assert lost.store.asked.count(None) == 1

    def test_nothing_else_is_requested_after_an_error(self, lost):
        """A server that is down was waited for again for each chunk."""
        with zarr.config.set({"async.concurrency": 1}), pytest.raises(ConnectionError):
            lost[EVERY]
        assert len(lost.store.asked) == 3  # a range of each chunk before it

    def test_a_read_that_is_cancelled(self, lost):
        async def read():
            task = asyncio.ensure_future(lost.async_array.getitem(EVERY))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            return len(asyncio.all_tasks())

        lost.store.seconds = 30
        assert sync(read()) == 1
        lost.store.is_lost = lambda _range: False
        assert np.array_equal(lost[EVERY], FLAT[EVERY])


def test_an_error_before_zarr_reads_its_share(tmp_path):
    """With one request at a time: "coroutine 'PartialReadMixin._read_left' was never awaited"."""
    zarr.create_array(tmp_path, data=FLAT[:80], chunks=(40,), compressors=None)
    array = zarr.open_array(Answering(tmp_path), mode="r")
    array.store.answer = lambda *_: fail(RuntimeError("lost"))
    with ranges_from(Answering), zarr.config.set({"async.concurrency": 1}):
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}), pytest.raises(RuntimeError):
            array[20:]  # of the first chunk a range, and all of the second
        gc.collect()


def test_a_wrong_answer_keeps_no_output(tmp_path):
    """Although zarr had read it all, the output took memory until a garbage collection."""
    create(tmp_path, (64, 64), (32, 32), dtype="i2", shards=(64, 64))[...] = 1
    array = zarr.open_array(Answering(tmp_path), mode="r")
    array.store.answer = lambda num, _range, buffer: of_bytes(bytes(68)) if num == 1 else buffer
    gc.collect()
    gc.disable()
    try:
        out = np.zeros((1, 64), "i2")
        kept = weakref.ref(out)
        with ranges_from(Answering):
            array.get_basic_selection(np.s_[:1], out=cpu.NDBuffer(out))
        assert out.all()
        del out
        sync(asyncio.sleep(0))
        assert kept() is None
    finally:
        gc.enable()


def test_what_zarr_reads_is_known_from_the_first_read_on(tmp_path):
    """Whole chunks, or all: until something else is selected, counted, or named."""
    create(tmp_path, (4, 6), dtype="i2")[:] = DATA
    row = RangeByteRequest(12, 24)
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        array = zarr.open_array(Answering(tmp_path), mode="r")
        for _ in range(2):  # its class is not known
            assert array[1].tolist() == DATA[1].tolist()
        with ranges_from(Answering):
            for _ in range(2):
                assert array[...].tolist() == DATA.tolist()
            assert array[1].tolist() == DATA[1].tolist()
            with numcodecs_bytes.trace() as traced:
                assert array[...].tolist() == DATA.tolist()
            assert traced.report()["total"]["bytes_fetched"] == NUM_BYTES
        assert array[1].tolist() == DATA[1].tolist()
    assert array.store.asked == [None] * 4 + [row] + [None] * 2
