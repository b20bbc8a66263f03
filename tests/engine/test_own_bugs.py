"""If this package itself fails, zarr has the last word."""

import asyncio
import errno
import os
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import zarr
from helpers import ZARR_ALONE, CountingStore, create, ranges_from

import numcodecs_bytes

pytestmark = pytest.mark.usefixtures("our_pipeline")
DATA = np.arange(64.0).reshape(8, 8)
IN_PLACE = "numcodecs_bytes.write_in_place"


@pytest.fixture
def array(tmp_path):
    written = create(tmp_path / "array", DATA.shape, (4, 4))
    written[...] = DATA
    return written


@pytest.fixture
def broken(monkeypatch):
    """Return a function that has a function of the system raise if this package calls it."""

    def fail(error, name="fstat"):
        """Return a list, which gets longer with each call."""
        system, calls = getattr(os, name), []

        def call(*args, **kwargs):
            if sys._getframe(1).f_globals["__name__"].startswith("numcodecs_bytes."):
                calls.append(args)
                raise error("a mistake of ours")
            return system(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
        return calls

    return fail


OWN_BUGS = [AttributeError, TypeError, KeyError, IndexError, ValueError, RuntimeError]


@pytest.mark.own_bug
@pytest.mark.parametrize("error", OWN_BUGS)
def test_zarr_reads_what_we_can_t(array, broken, caplog, error):
    """It is logged once, with the traceback."""
    broken(error)
    for _ in range(2):  # the second time, it is not tried
        assert np.array_equal(array[1:6, 3], DATA[1:6, 3])
    (record,) = caplog.records
    assert "please report this" in record.message
    assert record.exc_info[0] is error


@pytest.mark.own_bug
@pytest.mark.parametrize(
    "place",
    [
        "_pipeline.array_access.ArrayLayouts",
        "_pipeline.batch_read.chunk_reads",
        "_read.chunk_read.ChunkRead.report_to_traces",
    ],
)
def test_a_mistake_before_or_after_chunks_are_read(array, monkeypatch, place):
    """It reached the user."""

    def fail(*_, **__):
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(f"numcodecs_bytes.{place}", fail)
    array = zarr.open_array(array.store_path, mode="r")
    with numcodecs_bytes.trace():
        assert np.array_equal(array[1:6, 3], DATA[1:6, 3])


@pytest.mark.own_bug
def test_zarr_s_error_is_raised_if_it_fails_as_well(tmp_path, array, broken):
    """Ours is a note."""
    broken(TypeError)

    (tmp_path / "array/c/0/0").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds 5 bytes") as raised:
        array[1]
    assert "numcodecs_bytes itself had failed: TypeError: a mistake of ours" in str(
        raised.value.__notes__
    )


@pytest.fixture
def unknown_codecs(monkeypatch):
    """Zarr's codecs are not as this package knows them."""

    def fail(_pipeline):
        raise AttributeError("a mistake of ours")

    monkeypatch.setattr("numcodecs_bytes._pipeline.array_layouts._find_layout_of", fail)


@pytest.mark.own_bug
@pytest.mark.usefixtures("unknown_codecs")
@pytest.mark.parametrize("mode", [False, True])
def test_a_mistake_about_the_codecs(tmp_path, mode):
    """Whole chunks could not be written: AttributeError."""
    array = create(tmp_path / "new", DATA.shape, (4, 4))
    with zarr.config.set({IN_PLACE: mode}):
        array[...] = DATA
        array[1, 3] = -1
    assert (array[1, 3], array[1, 4]) == (-1, DATA[1, 4])


@pytest.mark.own_bug
@pytest.mark.usefixtures("unknown_codecs")
def test_a_mistake_about_the_codecs_hides_no_error_of_zarr_s(tmp_path):
    array = create(tmp_path / "new", DATA.shape, (4, 4))
    array[...] = DATA
    (tmp_path / "new/c/0/0").write_bytes(b"short")
    with pytest.raises(ValueError, match="while reading"):
        array[1]


@pytest.mark.own_bug
@pytest.mark.parametrize(
    "place",
    [
        "numcodecs_bytes._read.object_plans.plan_of",
        "numcodecs_bytes._read.remote_object.copy_runs",
        "numcodecs_bytes._read.remote.direct_target",
    ],
    ids=["plan", "copy", "fill"],
)
def test_a_mistake_while_requests_are_planned_or_answered(tmp_path, monkeypatch, place):
    """It reached the user."""
    create(tmp_path, (4, 1 << 18), (4, 1 << 18), endian=sys.byteorder)[...] = 1
    array = zarr.open_array(CountingStore(tmp_path))

    def fail(*_):
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(place, fail)
    with ranges_from(CountingStore):
        assert (array[::2, :1000] == 1).all()


def test_nothing_is_read(array, caplog):
    """As zarr's own methods may ask; that was a mistake of ours."""
    pipeline = array.async_array.codec_pipeline
    asyncio.run(pipeline.read([], zarr.core.buffer.cpu.NDBuffer(np.zeros(0))))
    assert np.array_equal(array[1, :3], DATA[1, :3])
    assert not caplog.records


@pytest.mark.own_bug
def test_a_mistake_is_made_once_for_an_array(array, broken):
    """Each read tried again, and everything was fetched twice."""
    calls = broken(TypeError)
    for _ in range(3):
        assert np.array_equal(array[1, :3], DATA[1, :3])
    assert len(calls) == 1


@pytest.mark.usefixtures("array")
def test_an_error_of_the_store_that_can_t_be_changed(tmp_path, caplog):
    """It is the store's, which is asked once: FrozenInstanceError, after three requests."""

    @dataclass(frozen=True)
    class FrozenError(Exception):
        text: str

    class Store(CountingStore):
        async def get(self, key, prototype=None, byte_range=None):
            if key.startswith("c/"):
                self.requests.append(key)
                raise FrozenError(key)
            return await super().get(key, prototype, byte_range)

    store = Store(tmp_path / "array")
    with pytest.raises(FrozenError):
        zarr.open_array(store)[:3, :3]
    assert len(store.requests) == 1
    assert not caplog.records


@pytest.mark.usefixtures("array")
@pytest.mark.parametrize("is_named", [False, True])
def test_an_error_of_the_store_that_has_no_text(tmp_path, is_named):
    """Reads and writes compared its text with that of mistakes, and raised what `str` raises."""

    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    class Store(CountingStore):
        async def get(self, key, prototype=None, byte_range=None):
            if key.startswith("c/"):
                raise UnprintableError
            return await super().get(key, prototype, byte_range)

    array = zarr.open_array(Store(tmp_path / "array"))
    with ranges_from(*[Store] * is_named):
        for use in (lambda: array[:3, :3], lambda: array.set_basic_selection((0, 0), 1.0)):
            with pytest.raises(UnprintableError):
                use()


@pytest.mark.usefixtures("array")
def test_a_read_whose_event_loop_ends_before_it(tmp_path):
    """Its coroutine is closed later, in another context: "Exception ignored", of ours."""

    async def begin():
        array = await zarr.api.asynchronous.open_array(store=CountingStore(tmp_path / "array"))
        array.store.get = lambda *_, **__: asyncio.Event().wait()
        reading = array.getitem((0, 0))
        while not asyncio.isfuture(reading.send(None)):
            pass
        return reading

    asyncio.run(begin()).close()


def test_what_zarr_can_t_do_either_is_no_mistake_of_ours(tmp_path, caplog):
    """NumPy has no arrays of 65 dimensions, and a traceback asked for a report."""
    array = zarr.create_array(tmp_path, shape=(1,) * 65, dtype="u1", compressors=None)
    with pytest.raises(ValueError, match="maximum supported dimension"):
        array[...] = 1
    assert not caplog.records


@pytest.mark.own_bug
def test_one_of_several_is_zarr_s(array, monkeypatch, caplog):
    """Then the others were neither logged nor named."""
    shared, ours = ValueError("of both"), TypeError("a mistake of ours")

    async def fail(self, chunks, *_):
        for error in (ours, shared):
            self.bugs.record(chunks, error)
        raise ValueError("of both")

    monkeypatch.setattr("numcodecs_bytes._pipeline.batch_read.BatchRead._read_files", fail)
    with pytest.raises(ValueError, match="of both") as raised:
        array[1]
    assert [record.exc_info[1] for record in caplog.records] == [ours]
    assert "itself had failed: TypeError: a mistake of ours" in str(raised.value.__notes__)


@pytest.mark.own_bug
def test_zarr_fails_in_another_way(tmp_path, array, broken):
    broken(TypeError)
    (tmp_path / "array/c/0/0").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds 5 bytes"):
        array[1]


@pytest.mark.parametrize("error", [MemoryError, partial(PermissionError, errno.EACCES)])
def test_what_is_expected_is_no_mistake(array, broken, caplog, error):
    broken(error)
    if error is MemoryError:
        with pytest.raises(MemoryError):
            array[1]
    else:
        assert np.array_equal(array[1], DATA[1])
    assert not caplog.records


def test_our_own_errors_are_raised(tmp_path, array, caplog):
    (tmp_path / "array/c/0/0").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds 5 bytes, expected 128"):
        array[1]
    wrong = {"numcodecs_bytes.max_gap_bytes": "far"}
    with zarr.config.set(wrong), pytest.raises(ValueError, match="max_gap_bytes .* must be"):
        array[5]
    assert not caplog.records


def test_zarr_is_not_asked_twice_for_what_it_could_not_read(tmp_path, caplog):
    create(tmp_path, (4, 1 << 18), (4, 1 << 18))[...] = 1

    class Store(CountingStore):
        async def get(self, key, prototype=None, byte_range=None):
            self.requests.append((key, byte_range, 0))
            if key.startswith("c/"):
                raise KeyError(key)
            return await super().get(key, prototype, byte_range)

    store = Store(tmp_path)
    array = zarr.open_array(store)
    store.requests.clear()
    with ranges_from(Store), pytest.raises(KeyError):
        array[0, :5]
    assert len(store.requests) == 2  # a range, and then by zarr
    assert not [r for r in caplog.records if "report this" in r.message]


class NoConversion:
    """Values that raise an error when they become an array of NumPy's."""

    def __init__(self, data, error):
        self._data, self._error = data, error
        self.shape, self.dtype, self.ndim, self.size = data.shape, data.dtype, data.ndim, data.size
        self.nbytes = data.nbytes

    def __array__(self, dtype=None, copy=None):
        raise self._error("a mistake of theirs")

    def __getitem__(self, key):
        return NoConversion(self._data[key], self._error)

    def astype(self, dtype, **_):
        return NoConversion(self._data.astype(dtype), self._error)


class NoIndexing(np.ndarray):
    """Values that raise an error when they are indexed."""

    def __getitem__(self, key):
        raise self.error("a mistake of theirs")


def values_that_raise(data, kind, error):
    if kind == "converted":
        return NoConversion(data, error)
    values = data.copy().view(NoIndexing)
    NoIndexing.error = error
    return values


@pytest.mark.parametrize("values", [np.ones((2, 3)), np.ones((3, 3, 1)), np.ones(3)], ids=np.shape)
def test_values_that_do_not_fit_are_no_mistake_of_ours(array, caplog, values):
    """It was logged, with a traceback, before zarr's error."""
    with zarr.config.set(ZARR_ALONE), pytest.raises(Exception) as expected:  # noqa: PT011
        zarr.open_array(array.store)[:3, 1:4] = values
    with zarr.config.set({IN_PLACE: True}), pytest.raises(type(expected.value)) as raised:
        array[:3, 1:4] = values
    assert str(raised.value) == str(expected.value)
    assert not caplog.records


@pytest.mark.parametrize("mode", [True, pytest.param("require", marks=pytest.mark.needs("fcntl"))])
@pytest.mark.parametrize("error", [*OWN_BUGS, OSError, np.ma.MaskError])
@pytest.mark.parametrize("kind", ["indexed", "converted"])
def test_an_error_of_the_values_is_no_mistake_of_ours(array, caplog, kind, error, mode):
    """Whatever they raise while they are taken: MaskError was logged as our mistake."""
    values = values_that_raise(DATA[:3, 1:4], kind, error)
    with zarr.config.set({IN_PLACE: mode}), pytest.raises(error, match="a mistake of theirs"):
        array[:3, 1:4] = values
    assert np.array_equal(array[...], DATA)
    assert not caplog.records


# What fails in a write, and to where: some elements of chunks, or whole ones.
MISTAKES = [
    ("numcodecs_bytes._write.batch.may_be_mapped", np.s_[1:6, ::2]),
    ("numcodecs_bytes._plan.plan.axes_of", np.s_[1:6, ::3]),  # of which no plan is kept
    ("fcntl.flock", np.s_[1:6, ::2]),
    ("numcodecs_bytes._write.whole.encode_array", np.s_[...]),
    ("numcodecs_bytes._write.whole._elements_of", np.s_[...]),
    ("numcodecs_bytes._write.chunk_write.PoolWorkers", np.s_[...]),
]


@pytest.mark.needs("fcntl")
class TestWrites:
    @pytest.mark.own_bug
    @pytest.mark.parametrize("error", [TypeError, ValueError, IndexError])
    @pytest.mark.parametrize(("place", "selection"), MISTAKES, ids=lambda which: str(which)[-12:])
    def test_zarr_writes_as_long_as_nothing_is_written(
        self, array, monkeypatch, place, selection, error
    ):
        """Also if it is an error that the values may raise."""

        def fail(*_args, **_options):
            raise error("a mistake of ours")

        expected = DATA.copy()
        expected[selection] = -1
        with monkeypatch.context() as context, zarr.config.set({IN_PLACE: True}):
            context.setattr(place, fail)
            array[selection] = -1
        assert np.array_equal(array[...], expected)

    @pytest.mark.parametrize(
        ("name", "mode"), [("lstat", "require"), ("pwrite", "require"), ("pwrite", True)]
    )
    def test_the_error_is_raised(self, array, broken, name, mode):
        """If a write must be in place, or has begun: then it is never repeated."""
        broken(TypeError, name)
        with zarr.config.set({IN_PLACE: mode}), pytest.raises(TypeError, match="a mistake"):
            array[1, 3] = -1
        assert np.array_equal(array[...], DATA)

    @pytest.mark.own_bug
    def test_counting_fails_no_write(self, array, monkeypatch):
        def fail(*_args, **_options):
            raise TypeError("a mistake of ours")

        monkeypatch.setattr("numcodecs_bytes._write.chunk_write.ChunkWrite.report_to_traces", fail)
        with zarr.config.set({IN_PLACE: True}), numcodecs_bytes.trace():
            array[1, 3] = -1
        assert array[1, 3] == -1

    @pytest.mark.own_bug
    @pytest.mark.parametrize("error", OWN_BUGS)
    def test_zarr_writes_a_chunk_that_could_not_be_made(self, tmp_path, monkeypatch, error):
        """Nothing is written before a new file gets its name."""

        def fail(*_args, **_options):
            raise error("a mistake of ours")

        monkeypatch.setattr("numcodecs_bytes._write.write_file.write_all", fail)
        new = create(tmp_path / "new", DATA.shape, (4, 4))
        with zarr.config.set({IN_PLACE: True}):
            new[1:6, 3] = 1
        assert np.array_equal(new[1:6, 3], np.ones(5))
