"""Whole chunks are written together: the files are those of zarr alone, and its errors."""

import asyncio
import contextlib
import errno
import os
import random
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.codecs
from data_types import CASES
from helpers import (
    EVERYTHING,
    HAS_STRUCT,
    OUR_PIPELINES,
    PIPELINES,
    ZARR_ALONE,
    random_selections,
    start_program,
)
from zarr.codecs import TransposeCodec
from zarr.core.buffer import cpu

import numcodecs_bytes
from numcodecs_bytes.zarr_codec import BytesCodec

pytestmark = [
    pytest.mark.usefixtures("our_pipeline"),
    pytest.mark.filterwarnings(
        "ignore:.*does not have a Zarr V3 spec",
        "ignore:.*structured dtype",
        "ignore:Numcodecs codecs",
        "ignore:The data type",
    ),
]
ENDIANS = "little", "big"


# zarr refuses titles, padding and arrays in structures, and 3.1.6 any structure in Zarr v3.
CASES_OF_ZARR = [c for c in CASES if c.zarr_v3 and (c.dtype.names is None or HAS_STRUCT)]


def files_in(folder):
    """Return the content and mode of each file, and the mode of each folder."""
    return {
        str(path.relative_to(folder)): (
            stat.S_IMODE(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def array_settings(rng, case, chunks):
    """Return what `zarr.create_array` takes, for an uncompressed array."""
    dtype = rng.choice(case.dtypes())
    settings = {"dtype": dtype, "chunks": chunks, "compressors": None, "filters": None}
    settings["config"] = {"write_empty_chunks": rng.random() < 0.3}
    if dtype.kind in "fc":
        settings["fill_value"] = rng.choice([0.0, -0.0, float("nan"), 1.5])
    elif dtype.kind in "iu":
        settings["fill_value"] = rng.choice([0, 1, 7])
    if rng.random() < 0.4 and not case.native_only:
        codec = numcodecs_bytes.Bytes(rng.choice(ENDIANS), dtype)
        filters = rng.choice([None, [codec]])
        return settings | {"zarr_format": 2, "order": rng.choice("CF"), "filters": filters}
    kinds = [BytesCodec] if case.native_only else [BytesCodec, zarr.codecs.BytesCodec]
    order = tuple(rng.sample(range(len(chunks)), len(chunks)))
    return settings | {
        "serializer": rng.choice(kinds)(endian=rng.choice(ENDIANS)),
        "filters": [TransposeCodec(order=order)] * rng.randint(0, 1),
    }


def some_elements(rng, case, dtype, fill_value, num):
    """Return elements of which many are alike, so that some chunks hold nothing but those."""
    elements = np.resize(case.array(dtype), num)
    for _ in range(rng.randint(0, 3)):
        first, last = sorted((rng.randrange(num), rng.randrange(num)))
        elements[first:last] = rng.choice([fill_value, elements[first]])
    return elements


def in_some_layout(rng, array, folder):
    """Return the same values in memory of another kind."""
    kind = rng.choice(["C", "F", "strided", "reversed", "read-only", "swapped", "mapped", "masked"])
    if kind == "F":
        return np.asfortranarray(array)
    if kind == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if kind == "reversed":
        return array[::-1].copy()[::-1] if array.ndim else array
    if kind == "read-only":
        array.flags.writeable = False
    if kind == "swapped" and array.dtype.kind in "iufcMm":
        return array.astype(array.dtype.newbyteorder("S"))
    if kind == "mapped" and array.size and array.ndim and array.dtype.kind in "iuf":
        mapped = np.memmap(folder / f"{rng.random()}", array.dtype, "w+", shape=array.shape)
        mapped[...] = array
        return mapped
    if kind == "masked" and array.size and array.dtype.kind in "iuf":
        return np.ma.masked_array(array, array == array.reshape(-1)[:1])
    return array


def some_values(rng, elements, selected, folder):
    """Return values for a selection: an array, a scalar, or what has another type or shape."""
    values = np.resize(elements, np.shape(selected))
    is_repeated = np.size(selected) > len(np.unique(selected))  # of several, zarr itself keeps any
    kind = rng.random()
    if is_repeated or kind < 0.15:
        return rng.choice(elements)
    if kind < 0.25 and values.dtype.kind in "iuf":
        return values.astype(rng.choice(["<f8", "i1", ">i4", "?"]))
    if kind < 0.3:
        return values[..., :1] if values.ndim else values
    if kind < 0.35 and values.ndim:
        return np.broadcast_to(values[:1], values.shape)
    return in_some_layout(rng, values, folder)


class Arrays:
    """Two arrays with the same settings: one is written by zarr's pipeline, one by ours."""

    def __init__(self, rng, folder, our_pipeline):
        self.rng, self.folder = rng, folder
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 3)))
        chunks = tuple(rng.randint(1, n) for n in shape)
        self.case = rng.choice(CASES_OF_ZARR)
        self.settings = array_settings(rng, self.case, chunks)
        # The codec of zarr alone, or ours in both: they differ in what is no value of a data type.
        self.codec = {}
        if rng.random() < 0.5 and not self.case.native_only:
            self.codec = {"codecs.bytes": ZARR_ALONE["codecs.bytes"]}
        pipeline = PIPELINES[OUR_PIPELINES.index(our_pipeline)]
        self.config = self.codec | {"codec_pipeline.path": pipeline}
        self.is_opened = rng.random() < 0.5  # else it has the codec that it was made with
        self.size = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        with zarr.config.set(self.config):
            self.alone = self.create(folder / "alone", shape)
        with zarr.config.set(self.codec):
            self.ours = self.create(folder / "ours", shape)

    def create(self, path, shape):
        array = zarr.create_array(path, shape=shape, **self.settings)
        if not self.is_opened:
            return array
        return zarr.open_array(path, mode="r+", config=self.settings["config"])

    def write(self):
        """Write random values to a random selection of both; return whether they fit."""
        rng, selections = self.rng, [("basic", ..., lambda a: a)] * 4
        if self.size.shape:
            selections += list(random_selections(rng, self.size.shape, 1))
        way, selection, of_numpy = rng.choice(selections)
        dtype = self.alone.dtype
        elements = some_elements(rng, self.case, dtype, self.alone.fill_value, 997)
        with np.errstate(invalid="ignore"):
            values = some_values(rng, elements, of_numpy(self.size), self.folder)
        errors = []
        for array, config in ((self.alone, self.config), (self.ours, self.codec)):
            with zarr.config.set(config), np.errstate(all="ignore"):
                try:
                    (array if way == "basic" else getattr(array, way))[selection] = values
                except Exception as error:  # noqa: BLE001
                    errors.append(error)
                else:
                    errors.append(None)
        assert type(errors[0]) is type(errors[1]), (errors, way, selection, self.settings)
        return errors[0] is None

    def check(self):
        assert files_in(self.folder / "ours") == files_in(self.folder / "alone"), self.settings


@pytest.mark.parametrize("seed", range(60 if EVERYTHING else 10))
def test_the_same_files_as_zarr_alone(tmp_path, set_constants, our_pipeline, seed):
    """After each of 10 writes; some make files, some replace them, some delete them."""
    rng = random.Random(seed)  # noqa: S311
    set_constants(
        BLOCK_BYTES=rng.choice([16, 64, 1 << 20]),
        GROUP_BYTES=rng.choice([16, 64, 1 << 23]),
        LARGE_WHOLE_BYTES=rng.choice([0, 1 << 17]),
    )
    umask = os.umask(rng.choice([0, 0o22, 0o77]))
    try:
        arrays = Arrays(rng, tmp_path, our_pipeline)
        for _ in range(10):
            if not arrays.write():
                break  # zarr itself may go on to write other chunks
            arrays.check()
    finally:
        os.umask(umask)


def create(folder, shape=(8, 8), chunks=(4, 4), **settings):
    """Return an array of float64 in local files, as it is when it is opened."""
    settings = {"dtype": "f8", "compressors": None, "fill_value": 0, **settings}
    zarr.create_array(folder, shape=shape, chunks=chunks, **settings)
    return zarr.open_array(folder, mode="r+")


DATA = np.arange(1.0, 65.0).reshape(8, 8)
LARGE = 1 << 17  # of one chunk, in bytes: two threads and more write


def temporary_files(calls):
    """Return the temporary files that were opened, each in the thread that opened it."""
    opened = zip(calls.opened, calls.threads, strict=True)
    return [(path, thread) for path, thread in opened if path.endswith(".partial")]


@pytest.mark.needs("fcntl")
class TestByWhom:
    """zarr opens files without ``os.open``, so each that `calls` has was opened here."""

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.usefixtures("_files_are_fast")
    def test_small_chunks_by_one_thread(self, tmp_path, calls, zarr_format):
        array = create(tmp_path, (8, 400), (1, 4), zarr_format=zarr_format)
        calls.opened.clear()
        calls.threads.clear()
        array[...] = 1
        opened = temporary_files(calls)
        assert len(opened) == 800
        assert len({path for path, _ in opened}) == 800
        assert len({thread for _, thread in opened}) == 1
        assert (array[...] == 1).all()

    def test_as_many_as_zarr_s_setting_says(self, tmp_path, calls):
        array = create(tmp_path, (4, LARGE), (1, LARGE))
        with zarr.config.set({"threading.max_workers": 1, "codec_pipeline.max_workers": 1}):
            array[...] = 1
        assert len({thread for _, thread in temporary_files(calls)}) == 1

    @pytest.mark.parametrize("columns", [4, LARGE], ids=["small", "large"])
    def test_more_if_files_are_slow(self, tmp_path, calls, columns):
        """As many wait for them as zarr itself would use."""
        array = create(tmp_path, (24, columns), (1, columns))
        calls.at_open = lambda path: path.endswith(".partial") and time.sleep(0.1)
        array[...] = 1
        assert (array[...] == 1).all()
        assert len({thread for _, thread in temporary_files(calls)}) >= 8

    @pytest.mark.parametrize("num", [3, 4])
    def test_also_what_zarr_puts_together(self, tmp_path, calls, num):
        """Scalars, and chunks at an edge."""
        array = create(tmp_path, (num, 4), (2, 4))
        for value in (1, np.ones(array.shape)):
            calls.opened.clear()
            calls.threads.clear()
            array[...] = value
            assert len(temporary_files(calls)) == 2
            assert (array[...] == 1).all()

    @pytest.mark.usefixtures("_files_are_fast")
    def test_no_more_than_two_for_each_core(self, tmp_path, calls):
        """More of them took 4 times the memory of zarr's fused pipeline."""
        array = create(tmp_path, (40, LARGE), (1, LARGE))
        array[...] = 1
        assert len({thread for _, thread in temporary_files(calls)}) <= 2 * os.cpu_count()

    @pytest.mark.parametrize(
        "settings",
        [
            {"compressors": zarr.codecs.GzipCodec()},
            {"chunks": (2, 2), "shards": (4, 4)},
        ],
        ids=["compressed", "shards"],
    )
    def test_other_chunks_by_zarr(self, tmp_path, calls, settings):
        array = create(tmp_path, **settings)
        array[...] = DATA.astype(array.dtype)
        assert not temporary_files(calls)
        assert np.array_equal(array[...], DATA.astype(array.dtype))

    @pytest.mark.parametrize("kind", ["subclass", "values", "part"])
    def test_others_by_zarr(self, tmp_path, calls, kind):
        class Store(zarr.storage.LocalStore):
            pass

        class Values(np.ndarray):
            pass

        create(tmp_path)
        store = Store(tmp_path) if kind == "subclass" else tmp_path
        array = zarr.open_array(store, mode="r+")
        if kind == "part":
            array[1:4, 1:4] = DATA[1:4, 1:4]
        else:
            array[...] = DATA.view(Values) if kind == "values" else DATA
        assert not temporary_files(calls)
        assert array[2, 2] == DATA[2, 2]


def both_ways(folder, our_pipeline, prepare, **settings):
    """Write all of an array that was prepared, as zarr alone and as we do; compare the two.

    Returns the error, which must be the same, and the files.
    """
    errors, written = [], []
    for name, path in (("alone", ZARR_ALONE["codec_pipeline.path"]), ("ours", our_pipeline)):
        with zarr.config.set({"codec_pipeline.path": path}):
            array = create(folder / name, **settings)
            array[...] = -1
            prepare(folder / name)
            try:
                array[...] = DATA
            except OSError as error:
                errors.append((type(error), error.errno))
            else:
                errors.append(None)
        # After an error, zarr alone may still be writing other chunks.
        written.append(files_in(folder / name) if name == "ours" or not errors[0] else {})
    assert errors[0] == errors[1]
    assert written[0] == written[1] or errors[0]
    return errors[1], written[1]


class TestWhatIsInTheWay:
    def test_a_link_is_replaced(self, tmp_path, our_pipeline):
        def link(path):
            (path / "c/0/0").rename(path / "other")
            (path / "c/0/0").symlink_to(path / "other")
            os.link(path / "c/0/1", path / "another")

        _, written = both_ways(tmp_path, our_pipeline, link)
        assert written["other"][1] == written["another"][1] == np.full(16, -1.0).tobytes()
        assert not (tmp_path / "ours/c/0/0").is_symlink()

    @pytest.mark.needs("fcntl")  # else zarr writes, and other chunks may still be on their way
    def test_a_folder(self, tmp_path, our_pipeline):
        def make_folder(path):
            (path / "c/1/0").unlink()
            (path / "c/1/0").mkdir()

        error, written = both_ways(tmp_path, our_pipeline, make_folder)
        assert error == (IsADirectoryError, errno.EISDIR)
        assert not [name for name in written if "partial" in name]
        assert written["c/0/0"][1] == DATA[:4, :4].tobytes()

    def test_a_link_to_a_folder_that_would_be_deleted(self, tmp_path, our_pipeline):
        """zarr does not follow it, and raises an error."""
        (tmp_path / "folder").mkdir()

        def link(path):
            (path / "c/1/0").unlink()
            (path / "c/1/0").symlink_to(tmp_path / "folder")

        for name, pipeline in (
            ("alone", ZARR_ALONE["codec_pipeline.path"]),
            ("ours", our_pipeline),
        ):
            with zarr.config.set({"codec_pipeline.path": pipeline}):
                array = create(tmp_path / name)
                array[...] = DATA
                link(tmp_path / name)
                with pytest.raises(OSError, match=r"c/1/0|symbolic link"):
                    array[...] = 0
            assert (tmp_path / name / "c/1/0").is_symlink()

    def test_a_folder_that_holds_nothing_but_fill_values_is_deleted(self, tmp_path):
        array = create(tmp_path)
        (tmp_path / "c/1/0/more").mkdir(parents=True)
        array[...] = 0
        assert not (tmp_path / "c/1/0").exists()

    def test_a_file_instead_of_a_folder(self, tmp_path, our_pipeline):
        def make_file(path):
            for name in ("c/1/0", "c/1/1"):
                (path / name).unlink()
            (path / "c/1").rmdir()
            (path / "c/1").touch()

        error, _ = both_ways(tmp_path, our_pipeline, make_file)
        assert error in ((NotADirectoryError, errno.ENOTDIR), (FileExistsError, errno.EEXIST))

    def test_no_folder_at_all(self, tmp_path, our_pipeline):
        def remove(path):
            for file in path.rglob("*"):
                if file.is_file():
                    file.unlink()
            for name in ("c/0", "c/1", "c", ""):
                (path / name).rmdir()

        _, written = both_ways(tmp_path, our_pipeline, remove)
        assert written["c/0/0"][1] == DATA[:4, :4].tobytes()

    def test_a_read_only_store(self, tmp_path):
        create(tmp_path)[...] = 1
        store = zarr.storage.LocalStore(tmp_path)
        array = zarr.open_array(store, mode="r+")
        array.store_path.store._read_only = True  # which zarr asks when it writes
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 2
        assert (array[...] == 1).all()

    @pytest.mark.needs("fcntl")
    def test_a_full_disk(self, tmp_path, monkeypatch):
        """zarr, which asks otherwise, writes the chunk."""
        array, pwrite = create(tmp_path), os.pwrite

        def write(descriptor, raw, position):
            if bytes(raw[:8]) == DATA[0, 4].tobytes():
                raise OSError(errno.ENOSPC, "No space left on device")
            return pwrite(descriptor, raw, position)

        monkeypatch.setattr(os, "pwrite", write)
        array[...] = DATA
        assert np.array_equal(array[...], DATA)
        assert not list(tmp_path.rglob("*.partial"))

    @pytest.mark.needs("fcntl")
    def test_short_writes(self, tmp_path, monkeypatch):
        array, pwrite = create(tmp_path), os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, raw, start: pwrite(fd, raw[:5], start))
        array[...] = DATA
        assert np.array_equal(array[...], DATA)


class TestValues:
    @pytest.mark.needs("fcntl")  # Windows does not replace a file that is mapped
    @pytest.mark.parametrize("endian", ENDIANS)
    def test_mapped_from_the_chunks_that_are_written(self, tmp_path, endian):
        array = create(tmp_path, chunks=(8, 8), serializer=BytesCodec(endian=endian))
        array[...] = DATA
        stored = "<f8" if endian == "little" else ">f8"
        mapped = np.memmap(tmp_path / "c/0/0", stored, "r+", shape=(8, 8))
        array[...] = mapped[::-1]
        assert np.array_equal(array[...], DATA[::-1])
        assert np.array_equal(mapped, DATA)

    @pytest.mark.parametrize("endian", ENDIANS)
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_memory_is_that_of_zarr_alone_at_most(self, tmp_path, track, endian, order):
        """Of what is converted, only blocks."""
        values = np.ones((1024, 4096), order=order)
        peaks = []
        for name, path in (("alone", ZARR_ALONE["codec_pipeline.path"]), ("ours", None)):
            with zarr.config.set({"codec_pipeline.path": path} if path else {}):
                codec = BytesCodec(endian=endian)
                array = create(tmp_path / name, values.shape, (512, 4096), serializer=codec)
                peak, _ = track(lambda array=array: array.__setitem__(..., values))
                peaks.append(peak)
        assert peaks[1] <= peaks[0] + (1 << 20)

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_invalid_bools_are_stored_as_the_codec_stores_them(self, tmp_path, zarr_format):
        """zarr's own, and Zarr v2 without a codec, as they are; ours as 1."""
        values = np.array([0, 1, 2, 255], np.uint8).view(bool)
        settings = {"dtype": "?", "zarr_format": zarr_format}
        with zarr.config.set({"codecs.bytes": ZARR_ALONE["codecs.bytes"]}):
            create(tmp_path, (4,), (4,), **settings)[...] = values
        (name,) = [n for n in files_in(tmp_path) if n in ("0", "c/0")]
        assert (tmp_path / name).read_bytes() == bytes([0, 1, 2, 255])
        zarr.open_array(tmp_path, mode="r+")[...] = values
        as_they_are = bytes([0, 1, 2, 255]) if zarr_format == 2 else bytes([0, 1, 1, 1])
        assert (tmp_path / name).read_bytes() == as_they_are


@pytest.mark.needs("fcntl")
def test_what_was_cancelled_and_has_returned_writes_nothing_more(tmp_path, calls):
    array = create(tmp_path, (100, 4), (1, 4))
    array[...] = 1
    is_waiting, go_on = threading.Event(), threading.Event()

    def wait(path):
        if path.endswith(".partial") and "/c/9/" in path:
            is_waiting.set()
            go_on.wait(60)

    async def cancel():
        writing = asyncio.ensure_future(array.async_array.setitem(..., np.full((100, 4), 2.0)))
        await asyncio.to_thread(is_waiting.wait, 60)
        writing.cancel()
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await writing

    calls.at_open = wait
    with zarr.config.set({"threading.max_workers": 1, "codec_pipeline.max_workers": 1}):
        asyncio.run(cancel())
    before = files_in(tmp_path)
    assert array[8, 0] == 2
    assert array[9, 0] == array[99, 0] == 1
    time.sleep(0.05)
    assert files_in(tmp_path) == before
    assert not list(tmp_path.rglob("*.partial"))


def test_what_was_cancelled_deletes_nothing(tmp_path, monkeypatch, set_constants):
    """A comparison with the fill value may take longer than the caller waits."""
    array = create(tmp_path)
    array[...] = DATA
    set_constants(CANCEL_GRACE_SECONDS=0.01)
    is_comparing, go_on, is_done = threading.Event(), threading.Event(), threading.Event()
    all_equal = cpu.NDBuffer.all_equal

    def compare(*args):
        is_comparing.set()
        go_on.wait(60)
        threading.Timer(0.2, is_done.set).start()
        return all_equal(*args)

    async def cancel():
        writing = asyncio.ensure_future(array.async_array.setitem(..., np.zeros((8, 8))))
        await asyncio.to_thread(is_comparing.wait, 60)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing

    monkeypatch.setattr(cpu.NDBuffer, "all_equal", compare)
    asyncio.run(cancel())
    go_on.set()
    assert is_done.wait(60)
    assert np.array_equal(array[...], DATA)


WRITER = """
import sys, numpy as np, zarr
array = zarr.open_array(sys.argv[1], mode="r+")
zarr.config.set({"codec_pipeline.path": sys.argv[2]})
array = zarr.open_array(sys.argv[1], mode="r+")
print("ready", flush=True)
for value in range(1, 1 << 30):
    array[...] = value
"""


def is_on_fuse(path):
    """Whether the file system is FUSE's: there, a name that is replaced is missing for a moment."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    types = {place: kind for _, place, kind, *_ in mounts if path.is_relative_to(place)}
    return types[max(types, key=len)].startswith("fuse")


@pytest.mark.needs("fcntl", "os.fork", "/proc/mounts")
def test_a_killed_writer_leaves_whole_chunks(tmp_path, our_pipeline):
    """Of one write or the other; and a reader sees nothing else meanwhile."""
    create(tmp_path, (16, 4096), (1, 4096))[...] = 0
    for number in range(8 if EVERYTHING else 3):
        program = start_program("-c", WRITER, tmp_path, our_pipeline)
        with contextlib.closing(program):  # which kills it
            assert program.stdout.readline() == "ready\n"
            until = time.monotonic() + 0.05 * (number + 1)
            while time.monotonic() < until:
                for path in tmp_path.glob("c/*/0"):
                    try:
                        raw = path.read_bytes()
                    except FileNotFoundError:
                        assert is_on_fuse(tmp_path)
                        continue
                    assert len(raw) == 4096 * 8
                    assert len(set(np.frombuffer(raw))) == 1
    values = zarr.open_array(tmp_path)[...]
    assert (values == values[:, :1]).all()


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("mode", [True, "require"])
def test_parts_and_whole_chunks_of_one_write(tmp_path, calls, mode):
    array = create(tmp_path)
    array[...] = -1
    with zarr.config.set({"numcodecs_bytes.write_in_place": mode}):
        array[:6] = DATA[:6]
    assert len(temporary_files(calls)) == 4 + 2
    assert np.array_equal(array[...], np.concatenate([DATA[:6], np.full((2, 8), -1)]))
