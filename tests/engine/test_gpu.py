"""Arrays on a GPU: read in part and written through host memory; with a stand-in for CuPy."""

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import os
import random
import re
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import standin_cupy
import zarr
import zarr.codecs
from data_types import ENDIANS, ORDER
from helpers import (
    EVERYTHING,
    OUR_PIPELINES,
    ZARR_ALONE,
    ZARR_CASES,
    CountingStore,
    create,
    eventually,
    has,
    ignore_coroutines,
    is_called_by_package,
    random_selections,
    ranges_from,
    run_python,
    select,
)
from test_random_selections import make_array
from test_shards import open_stores
from zarr.core.buffer import gpu as zarr_gpu

import numcodecs_bytes
from numcodecs_bytes._gpu import buffers
from numcodecs_bytes._runtime import threads

# zarr's own codecs say so of checksums.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Creating a zarr.buffer.gpu", "ignore:Numcodecs codecs are not in the Zarr version 3"
)
MIB = 1 << 20
NUMBERS = [case for case in ZARR_CASES if case.dtype.kind in "biufc" and not case.native_only]
LAYOUTS = "v3", "transposed", "shards", "v2 C", "v2 F", "v2 Bytes C"
ON_HOST = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}


@pytest.fixture(autouse=True)
def _gpu(cupy):  # noqa: ARG001 # which is there
    with zarr.config.enable_gpu():
        yield


@pytest.fixture
def in_buffers_of(monkeypatch, set_constants):
    """Return a function that sets the size of buffers."""

    def change(num_bytes):
        set_constants(BUFFER_BYTES=num_bytes)
        monkeypatch.setattr(buffers, "_buffers", buffers._Buffers())

    return change


def on_host(function):
    """Return what a function returns without a GPU."""
    with zarr.config.set(ON_HOST):
        return function()


def traced(function):
    """Return what a function returns, and the totals of `trace()`."""
    with numcodecs_bytes.trace() as trace:
        result = function()
    return result, trace.report()["total"]


def is_on_gpu(array):
    return isinstance(array, standin_cupy.ndarray)


def assert_equal(got, expected, which=""):
    expected = np.asarray(expected)
    assert is_on_gpu(got) or not expected.ndim, which
    got = got.get() if is_on_gpu(got) else np.asarray(got)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), which
    if got.dtype.kind == "b":  # zarr passes on what it reads whole, as 0xFF for true
        got, expected = got.view("u1") != 0, expected.view("u1") != 0
    assert got.tobytes() == expected.tobytes(), which


@pytest.mark.usefixtures("_files_are_fast")
class TestReads:
    """The same values as on the host, by the same requests."""

    @pytest.mark.matrix
    @pytest.mark.parametrize("endian", ENDIANS)
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("case", NUMBERS, ids=lambda case: case.name)
    def test_random_selections(self, tmp_path, in_buffers_of, case, layout, endian):
        if layout in ("v2 C", "v2 F") and not case.dtype.newbyteorder(ORDER[endian]).isnative:
            pytest.skip("zarr asks CuPy for this dtype: see test_zarr_v2_of_a_foreign_byte_order")
        rng = random.Random(f"gpu {case.name} {endian} {layout}")  # noqa: S311 # no secret
        for k in range(3 if EVERYTHING else 1):
            folder = tmp_path / str(k)
            values = on_host(lambda folder=folder: make_array(rng, folder, case, layout, endian))
            with open_stores(folder, is_sharded=layout == "shards") as stores:
                for how, store in stores.items():
                    # zarr reads small chunks, but numcodecs' codecs take no arrays of CuPy.
                    if not (how == "requests" and layout == "v2 Bytes C"):
                        self.check(rng, store, how, values, in_buffers_of)

    def check(self, rng, store, how, values, in_buffers_of):
        # Which gap pays depends on how long requests take.
        config = {"codec_pipeline.path": rng.choice(OUR_PIPELINES)}
        config["numcodecs_bytes.max_gap_bytes"] = rng.choice([0, 100])
        with zarr.config.set(config):
            array = zarr.open_array(store, mode="r", config={"order": rng.choice("CF")})
            for way, selection, expect in random_selections(rng, values.shape, 2):
                if way == "vindex":  # zarr itself converts the result to a NumPy array
                    continue
                in_buffers_of(rng.choice([1, 50, 1000, 1 << 24]))

                def read(way=way, selection=selection):
                    return select(array, way, selection)

                which = how, way, selection, array.metadata, config
                # A store that has answered nothing yet is asked once more, if this is traced.
                on_host(lambda read=read: traced(read))
                expected, totals_on_host = on_host(lambda read=read: traced(read))
                got, totals = traced(read)
                assert_equal(got, expected, which)
                assert_equal(got, expect(values).astype(expected.dtype), which)
                if buffers.BUFFER_BYTES == 1 << 24:
                    assert totals == totals_on_host, which

    def test_ranges_arrive_in_host_memory(self, tmp_path, monkeypatch):
        """Each went to the GPU and back, before the result went there."""
        downloads, get = [], standin_cupy.ndarray.get

        def count(self, out=None):
            downloads.append(self.nbytes)
            return get(self, out)

        array = on_host(lambda: create(tmp_path, (8, 1 << 18), (2, 1 << 18), "u1"))
        on_host(lambda: array.set_basic_selection(..., 1))
        no_gaps = zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0})
        with ranges_from(CountingStore), no_gaps:
            array = zarr.open_array(CountingStore(tmp_path), mode="r")
            monkeypatch.setattr(standin_cupy.ndarray, "get", count)
            got, totals = traced(lambda: array[:, :9])
        assert (totals["bytes_fetched"], downloads) == (8 * 9, [])
        assert (got.get() == 1).all()

    def test_into_any_output(self, tmp_path):
        data = np.random.default_rng(0).random((60, 50), np.float32)
        array = on_host(lambda: create(tmp_path / "a", data.shape, (16, 16), "f4"))
        on_host(lambda: array.set_basic_selection(..., data))
        base = standin_cupy.empty((2, 60, 70), np.float32)
        outputs = [base[1][:, :50], base[0][:, 5:55], base[0][:, :50].copy()]
        outputs += [standin_cupy.empty((60, 50), np.float32, order="F")]
        with standin_cupy.Device(1):
            outputs.append(standin_cupy.empty((60, 50), np.float32))
        for out in outputs:
            buffer = zarr_gpu.NDBuffer.from_ndarray_like(out)
            _, totals = traced(lambda buffer=buffer: array.get_basic_selection(..., out=buffer))
            np.testing.assert_array_equal(out.get(), data)
            assert totals["chunks"] == 16
            assert not totals["chunks_missing"]

    def test_an_output_of_another_dtype_is_left_to_zarr(self, tmp_path):
        array = on_host(lambda: create(tmp_path / "a", (8,), (4,), "f4"))
        on_host(lambda: array.set_basic_selection(..., 1.5))
        out = zarr_gpu.NDBuffer.create(shape=(8,), dtype="f8")
        array.get_basic_selection(..., out=out)
        assert out.as_numpy_array().tolist() == [1.5] * 8

    @pytest.mark.usefixtures("our_pipeline")
    def test_what_is_left_to_zarr_goes_its_own_way(self, tmp_path, monkeypatch):
        """With zarr's own items: codecs that run on a GPU, as nvCOMP's do, get what is there."""
        seen, decode = [], zarr.codecs.GzipCodec._decode_sync

        def record(self, chunk_bytes, chunk_spec):
            seen.append((type(chunk_bytes), chunk_spec.prototype))
            return decode(self, chunk_bytes, chunk_spec)

        if not callable(decode):
            pytest.skip("this zarr's codecs have no such method")
        monkeypatch.setattr(zarr.codecs.GzipCodec, "_decode_sync", record)
        codec = zarr.codecs.GzipCodec()
        settings = {"chunks": (4,), "compressors": [codec], "dtype": "f4", "shape": (8,)}
        array = on_host(lambda: zarr.create_array(tmp_path / "a", **settings))
        on_host(lambda: array.set_basic_selection(..., 1.5))
        assert array[:].get().tolist() == [1.5] * 8
        assert seen == [(zarr_gpu.Buffer, zarr_gpu.buffer_prototype)] * 2

    def test_chunks_that_only_zarr_reads_among_others(self, tmp_path, monkeypatch):
        """Nothing overwrites what zarr has read, whatever lies around it."""
        data = np.random.default_rng(0).random((32, 32), np.float32)
        array = on_host(lambda: create(tmp_path / "a", data.shape, (8, 8), "f4"))
        on_host(lambda: array.set_basic_selection(..., data))
        stat, numbers = os.fstat, itertools.count()

        def fail_at_times(descriptor):
            if is_called_by_package() and next(numbers) % 3 == 0:
                raise OSError(errno.EIO, "a file of an unknown kind")
            return stat(descriptor)

        monkeypatch.setattr(os, "fstat", fail_at_times)
        rows, columns = [30, 2, 11, 9, 3], [31, 1, 17, 9]
        for _ in range(10):
            np.testing.assert_array_equal(array[:].get(), data)
            got = array.oindex[rows, columns]
            np.testing.assert_array_equal(got.get(), data[np.ix_(rows, columns)])
        assert next(numbers) >= 10 * 16

    def test_most_of_a_large_chunk_is_left_to_zarr(self, tmp_path, in_buffers_of, set_constants):
        in_buffers_of(1000)
        set_constants(GAP_BYTES=0)
        data = np.arange(4000, dtype="f4").reshape(40, 100)
        array = on_host(lambda: create(tmp_path / "a", data.shape, (20, 100), "f4"))
        on_host(lambda: array.set_basic_selection(..., data))
        for selection, num_bytes in (
            (np.s_[:], 16000),
            (np.s_[:, :60], 16000),
            (np.s_[:25], 8000 + 2000),
            (np.s_[:, :40], 6400),
        ):
            got, totals = traced(lambda selection=selection: array[selection])
            np.testing.assert_array_equal(got.get(), data[selection])
            assert totals["bytes_fetched"] == num_bytes

    def test_after_an_error_nothing_more_is_read(self, tmp_path, in_buffers_of, calls):
        """Whoever reads 1,000 chunks need not wait for the others."""
        in_buffers_of(100)
        array = on_host(lambda: create(tmp_path / "a", (1000, 64), (1, 64), "u1"))
        on_host(lambda: array.set_basic_selection(..., 1))
        (tmp_path / "a/c/3/0").write_bytes(bytes(60))
        calls.opened.clear()
        with pytest.raises(ValueError, match="60 bytes, expected 64"):
            array[:, :50]
        assert len(calls.opened) < 100

    def test_a_store_that_is_left_to_zarr_is_the_reason(self, in_buffers_of):
        """It was, for large chunks: "most of a large chunk is read to a GPU"."""
        in_buffers_of(1000)
        array = on_host(lambda: create(zarr.storage.MemoryStore(), (4000,), dtype="f4"))
        on_host(lambda: array.set_basic_selection(..., 1))
        _, expected = on_host(lambda: traced(lambda: array[:]))
        _, totals = traced(lambda: array[:])
        assert totals == expected

    def test_a_bad_chunk_is_named_as_on_the_host(self, tmp_path):
        array = on_host(lambda: create(tmp_path / "a", (8, 8), (4, 8), "f4"))
        on_host(lambda: array.set_basic_selection(..., 1))
        (tmp_path / "a/c/1/0").write_bytes(bytes(100))
        with pytest.raises(ValueError, match="100 bytes, expected 128") as on_gpu:
            array[:, :3]
        with pytest.raises(ValueError, match="100 bytes") as expected:
            on_host(lambda: array[:, :3])
        assert str(on_gpu.value) == str(expected.value)

    def test_an_error_of_the_store_that_can_t_be_changed(self, tmp_path):
        """It was replaced by a FrozenInstanceError, where contexts of `contextlib` changed it."""

        @dataclasses.dataclass(frozen=True)
        class FrozenError(Exception):
            text: str

        class Store(CountingStore):
            async def get(self, key, prototype=None, byte_range=None):
                if key.startswith("c/"):
                    raise FrozenError(key)
                return await super().get(key, prototype, byte_range)

        array = on_host(lambda: create(tmp_path, (4, 1 << 18), (2, 1 << 18), "u1"))
        on_host(lambda: array.set_basic_selection(..., 1))
        with ranges_from(Store):
            array = zarr.open_array(Store(tmp_path), mode="r")
            with pytest.raises(FrozenError):
                array[:, :9]

    @pytest.mark.parametrize("num_bytes", [1, 1 << 24])
    def test_codecs_that_convert_elements(self, tmp_path, in_buffers_of, num_bytes):
        """zarr's own take no arrays on a GPU."""
        in_buffers_of(num_bytes)
        codec = zarr.codecs.numcodecs.FixedScaleOffset(offset=3, scale=10, dtype="f4", astype="i2")
        settings = {"shape": (9, 8), "chunks": (4, 8), "dtype": "f4", "filters": [codec]}
        array = on_host(lambda: zarr.create_array(tmp_path, compressors=None, **settings))
        on_host(lambda: array.set_basic_selection(..., np.arange(72, dtype="f4").reshape(9, 8)))
        for selection in (np.s_[:], np.s_[1:7, 2:5]):
            expected = on_host(lambda s=selection: array[s])
            np.testing.assert_array_equal(array[selection].get(), expected)


def write_both(folder, settings, selections):
    """Write to an array on a GPU and to one on the host; return both folders."""
    for name in ("gpu", "host"):
        on_host(lambda name=name: zarr.create_array(folder / name, fill_value=0, **settings))
    on_gpu, expected = (zarr.open_array(folder / name, mode="r+") for name in ("gpu", "host"))
    rng = np.random.default_rng(0)
    for way, selection in selections:
        shape = on_host(lambda s=selection, w=way: select(expected, w, s)).shape
        new = rng.integers(0, 2 if on_gpu.dtype.kind == "b" else 100, shape).astype(on_gpu.dtype)
        assign(on_gpu, way, selection, standin_cupy.asarray(new))
        on_host(lambda s=selection, w=way, new=new: assign(expected, w, s, new))
    return folder / "gpu", folder / "host"


def assign(array, way, selection, values):
    (array if way == "basic" else array.oindex)[selection] = values


def files_of(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.usefixtures("_files_are_fast", "our_pipeline")
class TestWrites:
    """The same files as from the host."""

    @pytest.mark.matrix
    @pytest.mark.parametrize("mode", [False, True])
    @pytest.mark.parametrize("kind", ["chunks", "shards", "transposed", "v2"])
    @pytest.mark.parametrize("case", NUMBERS, ids=lambda case: case.name)
    def test_files(self, tmp_path, in_buffers_of, case, kind, mode):
        if kind == "shards" and not mode and "Fused" in zarr.config.get("codec_pipeline.path"):
            pytest.skip("zarr's fused pipeline can't write parts of shards from a GPU")
        in_buffers_of(500)
        selections = [("basic", np.s_[:]), ("basic", np.s_[8:24, 10:])]  # whole chunks, and parts
        selections += [("basic", s) for s in (np.s_[3:30, 4:27], np.s_[5], np.s_[::3, ::7])]
        if kind != "shards" or (mode and has("fcntl")):  # zarr 3.1.6 fails, on the host as well
            selections += [("oindex", ([30, 2, 9], slice(3, 20)))]
        dtype = case.dtype.newbyteorder("=")
        settings = {"shape": (40, 30), "chunks": (8, 10), "dtype": dtype, "compressors": None}
        settings |= {
            "chunks": {},
            "shards": {"shards": (16, 20)},
            "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
            "v2": {"zarr_format": 2},
        }[kind]
        for endian in ENDIANS if kind != "v2" else ("little",):
            if kind != "v2":
                settings["serializer"] = numcodecs_bytes.zarr_codec.BytesCodec(endian=endian)
            with zarr.config.set({"numcodecs_bytes.write_in_place": mode}):
                on_gpu, expected = write_both(tmp_path / endian, settings, selections)
            assert files_of(on_gpu) == files_of(expected)

    def test_values_of_another_shape(self, tmp_path):
        """zarr broadcasts them, or raises its own error."""
        array = on_host(lambda: create(tmp_path / "a", (8, 8), (8, 4), "f4"))
        array[:5, :4] = standin_cupy.asarray(np.full((1, 4), 3, np.float32))
        expected = np.zeros((8, 8), np.float32)
        expected[:5, :4] = 3
        np.testing.assert_array_equal(on_host(lambda: array[:]), expected)
        with pytest.raises(ValueError, match="could not broadcast"):
            array[:, :] = standin_cupy.asarray(np.full((8, 1), 3, np.float32))

    @pytest.mark.needs("fcntl")
    def test_one_value_for_all(self, tmp_path):
        array = on_host(lambda: create(tmp_path / "a", (8, 8), (4, 8), "f4"))
        array[:] = 7
        with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
            array[:, 3] = 5
        expected = np.full((8, 8), 7, np.float32)
        expected[:, 3] = 5
        np.testing.assert_array_equal(on_host(lambda: array[:]), expected)

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("is_on_gpu", [False, True])
    def test_of_nothing(self, tmp_path, is_on_gpu):
        """To a slice that ends before it begins: ValueError with zarr 3.1.6."""
        array = on_host(lambda: create(tmp_path / "a", (64, 4), (8, 2), "f4"))
        on_host(lambda: array.set_basic_selection(..., 1))
        for selection in np.s_[12:10], np.s_[40:10], np.s_[:, 3:2], np.s_[70:]:
            nothing = on_host(lambda s=selection: array[s])
            with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
                if is_on_gpu:
                    array[selection] = standin_cupy.asarray(nothing)
                else:
                    on_host(lambda s=selection, n=nothing: array.set_basic_selection(s, n))
        assert (on_host(lambda: array[:]) == 1).all()

    @pytest.mark.needs("fcntl")
    def test_parts_are_written_in_place_if_they_must_be(self, tmp_path):
        array = on_host(lambda: create(tmp_path / "a", (8, 8), (4, 8), "f4"))
        on_host(lambda: array.set_basic_selection(..., 1))
        with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
            new = standin_cupy.asarray(np.full((8, 2), 3, np.float32))
            _, totals = traced(lambda: array.__setitem__(np.s_[:, 2:4], new))
        assert totals["chunks_in_place"] == 2
        assert totals["bytes_in_place"] == 8 * 2 * 4

    @pytest.mark.needs("fcntl")
    def test_a_cancelled_write_that_a_slow_file_keeps_waiting(
        self, tmp_path, monkeypatch, set_constants
    ):
        """Its memory is nobody else's: the file got the values of the array that was read next."""
        settings = {"shape": (512, 512), "dtype": "f4", "endian": sys.byteorder}
        written, other = (on_host(lambda n=n: create(tmp_path / n, **settings)) for n in "ab")
        on_host(lambda: written.set_basic_selection(..., 1))
        on_host(lambda: other.set_basic_selection(..., 9))
        set_constants(CANCEL_GRACE_SECONDS=0.01)
        begun, may_go_on, ended, pwrite = (*[threading.Event() for _ in range(3)], os.pwrite)

        def wait(*args):
            begun.set()
            assert may_go_on.wait(30)
            try:
                return pwrite(*args)
            finally:
                ended.set()

        async def cancel_and_read():
            new = standin_cupy.asarray(np.full((256, 512), 2, np.float32))
            writing = asyncio.ensure_future(written.async_array.setitem(np.s_[:256], new))
            assert await asyncio.to_thread(begun.wait, 30)
            writing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await writing
            return await other.async_array.getitem(np.s_[:256])

        monkeypatch.setattr(os, "pwrite", wait)
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            got = asyncio.run(cancel_and_read())
        may_go_on.set()
        assert ended.wait(30)
        assert (got.get() == 9).all()
        assert set(np.unique(on_host(lambda: written[:]))) <= {1, 2}


def memory_of(function):
    """Return the most host memory that a function takes, page-locked or not, in bytes."""
    tracemalloc.start()
    try:
        function()
        return standin_cupy.PinnedMemory.counted.most, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.usefixtures("_files_are_fast")
class TestHostMemory:
    """At most 256 MiB in the process, page-locked or not, and none that is not used."""

    @pytest.fixture
    def array(self, tmp_path, in_buffers_of, monkeypatch):
        in_buffers_of(MIB)
        monkeypatch.setattr(standin_cupy.PinnedMemory, "counted", standin_cupy.PageLocked())
        array = on_host(lambda: create(tmp_path / "a", (64, 1 << 18), (1, 1 << 15), "f4"))
        on_host(lambda: array.set_basic_selection(..., 1))
        return array

    @pytest.fixture
    def _one_thread(self, monkeypatch):
        """Let one thread read and write files: each that converts elements has a block of 1 MiB."""
        pools = threads.file_pool, threads.write_pool
        monkeypatch.setattr(threads, "MAX_FILE_THREADS", 1)
        for pool in pools:
            pool.cache_clear()
        yield
        for pool in pools:
            pool.cache_clear()

    @pytest.mark.usefixtures("_one_thread")
    def test_a_large_read(self, array):
        page_locked, other = memory_of(lambda: array[:])
        assert page_locked == MIB
        assert other < 4 * MIB

    @pytest.mark.own_bug
    def test_an_error_loses_no_buffer(self, array, monkeypatch):
        """Any but a MemoryError did; reads then waited for buffers that nobody used."""

        def fail(_):
            raise AttributeError("a CuPy that is not as we know it")

        with monkeypatch.context() as patched:
            patched.setattr(standin_cupy.cuda, "PinnedMemory", fail)
            for _ in range(buffers.MAX_BUFFERS + 1):
                zarr.open_array(array.store)[:]  # a new one: after an own bug, zarr reads
        page_locked, _ = memory_of(lambda: array[:])
        assert page_locked == MIB

    @pytest.mark.needs("fcntl")
    @pytest.mark.usefixtures("_one_thread")
    def test_a_large_write(self, array):
        values = standin_cupy.asarray(np.full(array.shape, 2, np.float32))
        page_locked, other = memory_of(lambda: array.__setitem__(slice(None), values))
        assert page_locked == MIB
        assert other < 4 * MIB
        assert (on_host(lambda: array[:]) == 2).all()

    def test_of_all_threads_together(self, array, monkeypatch):
        """24 threads read at once, of which some fail."""
        assert buffers.MAX_BUFFERS * (1 << 24) == 256 * MIB
        wrong, set_ = [], standin_cupy.ndarray.set

        def fail_at_times(self, array, stream=None):
            if random.random() < 0.05:  # noqa: S311 # no secret
                raise MemoryError("out of memory")
            set_(self, array, stream)

        monkeypatch.setattr(standin_cupy.ndarray, "set", fail_at_times)

        def read(number):
            first = number % 40
            for num in (3, 20):
                with contextlib.suppress(MemoryError):
                    got = array[first : first + num].get()
                    if not (got == 1).all():
                        wrong.append(number)

        def read_together():
            threads = [threading.Thread(target=read, args=(n,)) for n in range(24)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        page_locked, _ = memory_of(read_together)
        assert MIB <= page_locked <= buffers.MAX_BUFFERS * MIB
        assert not wrong
        assert len(buffers._buffers._unused) == buffers.MAX_BUFFERS  # each was given back

    def test_reads_wait_for_each_other(self, array, monkeypatch, set_constants):
        set_constants(MAX_BUFFERS=1)
        monkeypatch.setattr(buffers, "_buffers", buffers._Buffers())

        async def read_together():
            async_array = array.async_array
            return await asyncio.gather(*[async_array.getitem(np.s_[n : n + 5]) for n in range(20)])

        def read():
            for got in asyncio.run(read_together()):
                assert (got.get() == 1).all()

        page_locked, _ = memory_of(read)
        assert page_locked == MIB

    def test_a_read_does_not_wait_for_ever(self, array, monkeypatch):
        """Other reads may: for a store that does not answer, or in a stopped event loop."""
        monkeypatch.setattr(buffers._buffers, "_unused", [])
        assert (array[:9].get() == 1).all()
        assert buffers._buffers._unused == []

    @pytest.mark.parametrize("in_other_loop", [False, True])
    def test_it_is_freed_when_it_is_not_used(self, array, set_constants, in_other_loop):
        """Also if the event loop has ended before, and nothing else is read."""
        set_constants(IDLE_SECONDS=0.05)
        counted = standin_cupy.PinnedMemory.counted
        for _ in range(3):
            if in_other_loop:
                asyncio.run(array.async_array.getitem(np.s_[:3]))
            else:
                array[:3]
        assert counted.most == MIB
        assert eventually(lambda: not counted.num_bytes)
        assert (array[:3].get() == 1).all()

    def test_a_program_that_can_t_start_a_thread(self, array, monkeypatch):
        """It ends, or has too many: then nothing is kept for later."""
        array[:3, :9]  # starts the other threads, and takes no buffer

        def refuse(_thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert (array[:3].get() == 1).all()
        counted = standin_cupy.PinnedMemory.counted
        assert counted.most == MIB
        assert eventually(lambda: not counted.num_bytes)

    def test_a_system_that_locks_no_memory(self, array, monkeypatch, caplog):
        monkeypatch.setattr(standin_cupy.PinnedMemory.counted, "limit", 0)
        caplog.set_level("DEBUG", "numcodecs_bytes")
        assert (array[:9].get() == 1).all()
        assert "memory that is not page-locked" in caplog.text


class SlowStore(CountingStore):
    """Count how many requests are in flight."""

    num_in_flight = most_in_flight = 0

    async def get(self, *args, **kwargs):
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        await asyncio.sleep(0.01)
        self.num_in_flight -= 1
        return await super().get(*args, **kwargs)


class TestRequestsInFlight:
    """As many as without a GPU, or nearly."""

    @pytest.mark.parametrize("num_bytes", [1, 1 << 10, 3 << 10, 5 << 10, 1 << 24])
    def test_of_chunks_side_by_side(self, tmp_path, in_buffers_of, num_bytes):
        """However many a buffer holds."""
        array = on_host(lambda: create(tmp_path, (64, 1 << 17), (1, 1 << 17), "u1"))
        on_host(lambda: array.set_basic_selection(..., 1))
        in_buffers_of(num_bytes)
        with ranges_from(SlowStore):
            store = SlowStore(tmp_path)
            got, totals = traced(lambda: zarr.open_array(store)[:, 1000 : 1000 + (1 << 10)])
        assert (got.get() == 1).all()
        assert totals["bytes_fetched"] == 64 << 10
        assert 7 <= store.most_in_flight <= 13

    def test_of_shuffled_rows(self, tmp_path, in_buffers_of):
        """Not as few as there are buffers: the rows of each chunk are small."""
        data = np.arange(192, dtype="u1")[:, np.newaxis] + np.zeros(1 << 15, "u1")
        array = on_host(lambda: create(tmp_path, data.shape, (3, 1 << 15), "u1"))
        on_host(lambda: array.set_basic_selection(..., data))
        in_buffers_of(1 << 20)
        shuffled = np.random.default_rng(0).permutation(192)[:128]
        with ranges_from(SlowStore), zarr.config.set({"async.concurrency": 64}):
            store = SlowStore(tmp_path)
            got = zarr.open_array(store).oindex[shuffled]
        np.testing.assert_array_equal(got.get(), data[shuffled])
        assert store.most_in_flight >= 48


class TestIfSomethingFails:
    """What this package itself fails to do is done by zarr."""

    @pytest.fixture
    def array(self, tmp_path):
        array = on_host(lambda: create(tmp_path / "a", (8, 8), (4, 4), "f4"))
        on_host(lambda: array.set_basic_selection(..., 1))
        return array

    @ignore_coroutines
    @pytest.mark.own_bug
    @pytest.mark.needs("fcntl")
    def test_zarr_reads_and_writes(self, array, find_faults):
        """Whichever function raises an error, in a CuPy that is not as we know it, for example."""
        expected = np.full((8, 8), 2, np.float32)
        expected[2:5, 1:7] = 3

        def begin():
            on_host(lambda: array.set_basic_selection(..., 1))
            new = zarr.open_array(array.store_path)

            def use():
                new[:] = standin_cupy.asarray(np.full((8, 8), 2, np.float32))
                new[2:5, 1:7] = standin_cupy.asarray(np.full((3, 6), 3, np.float32))
                return new[:].get()

            return use

        def judge(result, error):
            assert error or np.array_equal(result, expected)
            assert error or np.array_equal(on_host(lambda: array[:]), expected)
            return "an error is raised" if error else ""

        found = find_faults(begin, judge)
        assert len(found) <= 38, "\n".join(found)

    @pytest.mark.parametrize("method", ["set", "get"])
    def test_a_gpu_without_memory_is_an_error(self, array, monkeypatch, method):
        def fail(*_, **__):
            raise MemoryError("out of memory")

        new = standin_cupy.asarray(np.full((8, 8), 2, np.float32))
        monkeypatch.setattr(standin_cupy.ndarray, method, fail)
        with pytest.raises(MemoryError):
            array[:] if method == "set" else array.__setitem__(slice(None), new)


def test_zarr_v2_of_a_foreign_byte_order(tmp_path):
    """zarr asks CuPy for the array's own dtype, which CuPy lacks: with and without us."""
    dtype = np.dtype("f4").newbyteorder()
    on_host(lambda: zarr.create_array(tmp_path, shape=4, dtype=dtype, zarr_format=2))
    for config in ({}, ZARR_ALONE):
        with zarr.config.set(config), pytest.raises(ValueError, match="Unsupported dtype"):
            zarr.open_array(tmp_path, mode="r")[:]


@pytest.mark.long
def test_the_script_for_a_gpu():
    script = Path(__file__).parents[1] / "gpu/run.py"
    done = run_python("-W", "ignore", script, "--quick", "--stand-in")
    assert re.match(r"values: \d{2,} compared, 0 wrong\n", done.stdout)
    assert "| swap of 0.125 MiB, 8 bytes each" in done.stdout
