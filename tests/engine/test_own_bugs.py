"""If this package itself fails, zarr has the last word."""

import asyncio
import collections
import errno
import os
import shutil
import sys
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import zarr
from helpers import (
    OWN_BUGS,
    ZARR_ALONE,
    CountingStore,
    before_calls,
    create,
    functions_of_package,
    ignore_coroutines,
    ignore_unstable_data_types,
    is_called_by_package,
    ranges_from,
)

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
            if is_called_by_package():
                calls.append(args)
                raise error("a mistake of ours")
            return system(*args, **kwargs)

        monkeypatch.setattr(os, name, call)
        return calls

    return fail


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
def transposed(tmp_path, monkeypatch):
    """Return an array with a codec of zarr's that is not as this package knows it."""

    def order_of(codec):
        if is_called_by_package():
            raise AttributeError("a mistake of ours")
        return vars(codec)["order"]

    order = property(order_of, lambda codec, axes: vars(codec).update(order=axes))
    monkeypatch.setattr(zarr.codecs.TransposeCodec, "order", order, raising=False)
    return create(
        tmp_path / "new", DATA.shape, (4, 4), filters=[zarr.codecs.TransposeCodec(order=(1, 0))]
    )


@pytest.mark.own_bug
@pytest.mark.parametrize("mode", [False, True])
def test_a_mistake_about_the_codecs(transposed, mode):
    """Whole chunks could not be written: AttributeError."""
    with zarr.config.set({IN_PLACE: mode}):
        transposed[...] = DATA
        transposed[1, 3] = -1
    assert (transposed[1, 3], transposed[1, 4]) == (-1, DATA[1, 4])


@pytest.mark.own_bug
def test_a_mistake_about_the_codecs_hides_no_error_of_zarr_s(tmp_path, transposed):
    transposed[...] = DATA
    (tmp_path / "new/c/0/0").write_bytes(b"short")
    with pytest.raises(ValueError, match="while reading"):
        transposed[1]


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
def test_one_of_several_is_zarr_s(tmp_path, caplog):
    """Then the others were neither logged nor named."""
    create(tmp_path, (8, 1 << 18), (4, 1 << 18))[...] = 1

    class Store(CountingStore):
        async def get(self, key, prototype=None, byte_range=None):
            if key == "c/0/0" and byte_range is None:
                raise ValueError("of both")
            return await super().get(key, prototype, byte_range)

    def read(functions, find_error):
        array = zarr.open_array(Store(tmp_path, read_only=True))
        with ranges_from(Store), before_calls(functions, find_error):
            return array[::2, :1000]

    read([], None)
    called, num_both = collections.Counter(), 0
    read(functions_of_package(), lambda function: called.update([function]))
    for function in [each for each, num in called.items() if num > 1]:
        ours = type("OwnBug", (TypeError,), {"__module__": "numcodecs_bytes"})("a mistake of ours")
        errors = [ours, ValueError("of both")]
        caplog.clear()
        notes: list[str] = []
        try:
            read([function], lambda _: errors.pop(0) if errors else None)  # noqa: B023
        except (ValueError, type(ours)) as error:
            notes = getattr(error, "__notes__", notes)
        logged = [record.exc_info[1] for record in caplog.records if record.exc_info]
        is_named = "itself had failed: OwnBug: a mistake of ours" in str(notes)
        num_both += not errors and logged == [ours] and is_named
    assert num_both


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


@pytest.mark.needs("fcntl")
class TestWrites:
    @pytest.mark.parametrize(
        ("name", "mode"), [("lstat", "require"), ("pwrite", "require"), ("pwrite", True)]
    )
    def test_the_error_is_raised(self, array, broken, name, mode):
        """If a write must be in place, or has begun: then it is never repeated."""
        broken(TypeError, name)
        with zarr.config.set({IN_PLACE: mode}), pytest.raises(TypeError, match="a mistake"):
            array[1, 3] = -1
        assert np.array_equal(array[...], DATA)


# Reads: of which array, of what, and in how many functions a bug may have been forgotten.
READS = {
    "chunks": (np.s_[1:6, 3], 13),
    "native": (np.s_[1:6], 13),
    "shards": (np.s_[1:6, 3], 15),
    "converted": (np.s_[1:6, 3], 26),
    "chunks.zip": (np.s_[1:6, 3], 20),
    "large": (np.s_[::2, :1000], 32),
    "objects in shards": (np.s_[1:6, 3], 32),
    "a reader of chunks": (np.s_[1:6, 3], 5),
    "a reader of shards": (np.s_[1:6, 3], 5),
}
# Writes likewise, and whether there are files before.
WRITES = {
    "chunks": (np.s_[1:6, ::2], True, 27),
    "new chunks": (np.s_[1:6, ::2], False, 22),
    "whole chunks": (np.s_[...], True, 22),
    "shards": (np.s_[1:6, ::2], True, 28),
    "new shards": (np.s_[1:6, ::2], False, 22),
}


@ignore_coroutines
@ignore_unstable_data_types
@pytest.mark.own_bug
class TestABugInAnyFunction:
    """A function raises an error, at its first call, at its last one or between them.

    No value is wrong, ever. In few functions, such as those around what catches own bugs, one is
    raised although zarr could have read or written, or not logged. There should not be more.
    """

    @pytest.fixture
    def folder(self, tmp_path):
        """Return a folder of arrays."""
        settings = {"shape": DATA.shape, "fill_value": 7.0}
        as_type = {"encode_dtype": "<f4", "decode_dtype": "<f8"}
        converted = {"filters": [{"name": "numcodecs.astype", "configuration": as_type}]}
        for name, how in {
            "chunks": {"chunks": (4, 4)},
            "native": {"chunks": (4, 4), "endian": sys.byteorder},
            "shards": {"chunks": (2, 2), "shards": (4, 8)},
            "converted": {"chunks": (4, 4)} | converted,
            "large": {"shape": (4, 1 << 18)},
        }.items():
            create(tmp_path / name, **settings | how)[...] = 1 if name == "large" else DATA
        with zarr.storage.ZipStore(tmp_path / "chunks.zip", mode="w") as store:
            create(store, chunks=(4, 4), **settings)[...] = DATA
        return tmp_path

    @pytest.mark.parametrize("name", READS)
    def test_read(self, folder, find_faults, name):
        selection, most = READS[name]
        path, data = folder / name.split()[-1], np.ones((4, 1 << 18)) if name == "large" else DATA

        def begin():
            is_requested = name.startswith(("large", "objects"))
            kind = CountingStore if is_requested else zarr.storage.LocalStore
            kind = zarr.storage.ZipStore if name.endswith(".zip") else kind
            array = zarr.open_array(kind(path, read_only=True), mode="r")
            array = numcodecs_bytes.SyncReader(array) if "reader" in name else array
            return lambda: array[selection]

        def judge(result, error):
            assert error or np.array_equal(result, data[selection])
            return "an error is raised" if error else ""

        found = find_faults(begin, judge)
        assert len(found) <= most, "\n".join(found)

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("name", WRITES)
    def test_write(self, folder, find_faults, name):
        selection, exists, most = WRITES[name]
        path, source = folder / "written", folder / name.split()[-1]
        old = DATA if exists else np.full(DATA.shape, 7.0)
        new = old.copy()
        new[selection] = -1

        def begin():
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(source, path, ignore=shutil.ignore_patterns(*["c"] * (not exists)))
            array = zarr.open_array(path, mode="r+")

            def write():
                with zarr.config.set({IN_PLACE: True}):
                    array[selection] = -1

            return write

        def judge(_, error):
            with zarr.config.set(ZARR_ALONE):
                got = zarr.open_array(path, mode="r")[...]
            is_old, is_new = got == old, got == new
            assert (is_old | is_new).all()
            assert error or is_new.all()
            if {each.name for each in path.rglob("*")} - {"zarr.json", "c", "0", "1"}:
                return "a file is left over"
            return "an error is raised" if error and (is_old.all() or is_new.all()) else ""

        found = find_faults(begin, judge)
        assert len(found) <= most, "\n".join(found)
