"""Partial reads through zarr: right for every selection, frugal with requests, loud when wrong."""

import asyncio
import dataclasses
import gc
import io
import json
import os
import random
import re
import struct
import threading
import tracemalloc
import weakref
from contextlib import suppress

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    BY_ENDIAN,
    EVERYTHING,
    ZARR_CASES,
    CountingStore,
    bytes_codec,
    create,
    ignore_unstable_data_types,
    random_selections,
    ranges_from,
    select,
    spec_of,
    write_array,
)
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.registry import get_pipeline_class

from numcodecs_bytes._parts import getters, refusals, stores
from numcodecs_bytes._parts.refusals import answering
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [ignore_unstable_data_types, pytest.mark.usefixtures("our_pipeline")]
MIB = 1 << 20
DATA = np.arange(100, 124).reshape(4, 6)


@pytest.fixture
def counting(tmp_path):
    """Return a counting store on tmp_path."""
    with ranges_from(CountingStore):
        yield CountingStore(tmp_path)


class TestValues:
    @pytest.mark.matrix
    @BY_ENDIAN
    @pytest.mark.parametrize("case", ZARR_CASES, ids=lambda c: c.name)
    def test_every_data_type_and_selection(self, tmp_path, counting, case, endian):
        shape, chunks = (7, 5, 6), (4, 5, 3)
        rng = random.Random(str((case.name, endian)))  # noqa: S311
        data = case.array(case.dtype.newbyteorder("="))[
            np.array([rng.randrange(12) for _ in range(np.prod(shape))]).reshape(shape)
        ]
        create(tmp_path, shape, chunks, case.dtype, endian)[:] = data
        array = zarr.open_array(counting)
        for max_gap_bytes in (0, 100, None):
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}):
                for way, selection, expected in random_selections(rng, shape, 2):
                    selected = select(array, way, selection)
                    assert np.asarray(selected).tolist() == expected(data).tolist()

    @pytest.mark.parametrize("shape", [(), (1,), (17,), (3, 1, 4), (2, 3, 2, 3, 2)], ids=str)
    def test_every_number_of_axes(self, tmp_path, counting, shape):
        data = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype("i4")
        create(tmp_path, shape, dtype="i4")[...] = data
        array = zarr.open_array(counting)
        assert np.array_equal(array[...], data)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 8}):
            rng = random.Random(0)  # noqa: S311
            for way, selection, expected in random_selections(rng, shape, 10 if shape else 0):
                assert np.array_equal(select(array, way, selection), expected(data))

    def test_blocks_and_the_order_of_the_result(self, tmp_path, counting):
        data = np.arange(35).reshape(7, 5).astype("i2")
        create(tmp_path, (7, 5), (3, 5), "i2")[:] = data
        for order in ("C", "F"):
            array = zarr.open_array(counting, config={"order": order})
            assert np.array_equal(array.blocks[1], data[3:6])
            assert np.array_equal(array.blocks[2, 0], data[6:])
            assert np.array_equal(array[1:6, 2:4], data[1:6, 2:4])

    def test_sharded_arrays(self, tmp_path, counting):
        data = np.arange(64).reshape(8, 8).astype("i4")
        create(tmp_path, (8, 8), (2, 4), "i4", shards=(4, 8))[:] = data
        array = zarr.open_array(counting)
        assert type(array.metadata.codecs[0].codecs[0]) is BytesCodec
        assert np.array_equal(array[3, 2:7], data[3, 2:7])
        assert np.array_equal(array.vindex[[0, 7, 3], [1, 6, 3]], data[[0, 7, 3], [1, 6, 3]])

    def test_literal_bytes(self, tmp_path):
        stored = struct.pack(">6h", *range(6))
        array = zarr.open_array(
            write_array(tmp_path, stored, "int16", [bytes_codec("big")], (2, 3)), mode="r"
        )
        assert array[1, 1:].tolist() == [4, 5]
        assert array[:, 2].tolist() == [2, 5]

    def test_big_endian_complex_numbers(self, tmp_path, counting):
        """zarrs swaps real and imaginary parts in partial reads."""
        data = np.arange(20).reshape(4, 5) * (1 - 2j)
        create(tmp_path, (4, 5), dtype="c16")[:] = data
        assert np.array_equal(zarr.open_array(counting)[1:3, 1:3], data[1:3, 1:3])

    def test_invalid_bools_are_true(self, tmp_path, counting):
        write_array(tmp_path, bytes([0, 255, 2, 1, 0, 9]), "bool", [bytes_codec()], (2, 3))
        array = zarr.open_array(counting)
        assert array[0, :2].tobytes() == b"\0\1"
        assert array[:, 2].tobytes() == b"\1\1"
        assert array.vindex[[1, 0], [2, 1]].tobytes() == b"\1\1"

    def test_missing_chunks_are_the_fill_value(self, tmp_path, counting):
        array = create(tmp_path, (100, 100), (50, 50), fill_value=7)
        array[:50, :50] = 1
        array = zarr.open_array(counting)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            selected = array[40:60, ::9]
            assert (selected[:10, :6] == 1).all()
            assert (selected[10:] == 7).all()
            assert array.vindex[[60, 99, 0], [60, 3, 0]].tolist() == [7, 7, 1]
        # Nobody asks on for a chunk that is not there.
        missing = [request for request in counting.requests if request[2] == 0]
        assert len(missing) <= 5 * zarr.config.get("async.concurrency")


class TestRequests:
    @pytest.fixture
    def array(self, tmp_path, counting):
        """Return a chunk of 8 MiB: 1024 rows of 8 KiB."""
        data = np.arange(MIB).reshape(1024, 1024).astype("f8")
        create(tmp_path, data.shape)[:] = data
        return zarr.open_array(counting)

    def test_a_contiguous_selection_is_one_request_for_its_bytes(self, array, counting):
        for selection, num_bytes in [
            ((5, slice(None)), 8192),
            ((slice(100, 300), slice(None)), 200 * 8192),
            ((0, slice(3, 5)), 16),
            ((1023, 1023), 8),
        ]:
            counting.requests.clear()
            array[selection]
            assert len(counting.requests) == 1
            assert counting.num_bytes == num_bytes

    def test_a_box_reads_over_gaps_that_are_cheaper_than_requests(self, array, counting):
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 4096}):
            array[100:200, 10:1020]
        assert len(counting.requests) == 1
        assert counting.num_bytes == 99 * 8192 + 1010 * 8
        assert counting.num_bytes <= 1.05 * 100 * 1010 * 8
        counting.requests.clear()
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 4096}):
            array[100:200, 10:20]
        assert len(counting.requests) == 100
        assert counting.num_bytes == 100 * 80

    def test_a_point_is_one_item(self, array, counting):
        array.vindex[[500], [500]]
        assert [num_bytes for _, _, num_bytes in counting.requests] == [8]

    def test_points_never_fetch_more_than_the_chunk(self, array, counting):
        rng = np.random.default_rng(0)
        points = tuple(rng.integers(0, 1024, 10_000 if EVERYTHING else 2_000) for _ in "xy")
        for max_gap_bytes in (0, 64, 4096, 10**9):
            counting.requests.clear()
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}):
                selected = array.vindex[points]
            assert np.array_equal(selected, points[0] * 1024.0 + points[1])
            assert counting.num_bytes <= 8 * MIB
            assert not max_gap_bytes or len(counting.requests) <= 8 * MIB // max_gap_bytes + 1

    def test_an_empty_selection_asks_for_nothing(self, array, counting):
        assert array[5:5].shape == (0, 1024)
        assert array[5:5, 3].shape == (0,)
        assert counting.requests == []

    def test_the_whole_chunk_is_one_plain_request(self, array, counting):
        array[:]
        assert [byte_range for _, byte_range, _ in counting.requests] == [None]

    def test_the_memory_of_a_small_selection_follows_the_selection(self, tmp_path):
        array = create(tmp_path / "sparse", (1 << 15, 1 << 12))
        chunk = tmp_path / "sparse/c/0/0"
        chunk.parent.mkdir(parents=True)
        with chunk.open("wb") as file:
            file.truncate(1 << 30)
        rng = np.random.default_rng(0)
        points = rng.integers(0, 1 << 15, 1000), rng.integers(0, 1 << 12, 1000)
        for act, num_bytes in (
            (lambda: array[77], 8 << 12),
            (lambda: array[1000:1064, 2000:2064], 64 * 64 * 8),
            (lambda: array.vindex[points], 8 * 1000),
            (lambda: array[40:4040:40, :], 100 * (8 << 12)),
        ):
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
                act()
                tracemalloc.start()
                act()
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            assert peak < 2 * num_bytes + MIB

    @pytest.mark.parametrize(
        "selection",
        [
            [[0, 50, 99]],
            [[1, 3, 99], slice(None), [5, 7, 8]],
            [slice(None), [1, 3, 60], slice(None)],
            [[0] * 2000, [5, 6, 99], [0, 1, 50]],
            [[3, 1, 2] * 9, [9, 0, 0] * 9, slice(None)],
        ],
        ids=range(5),
    )
    def test_the_memory_of_index_arrays_follows_the_selection(self, tmp_path, selection):
        """A window on coalesced ranges shows the same bytes many times: it must not be copied."""
        data = np.arange(10**6).reshape(100, 100, 100).astype("f4")
        create(tmp_path, data.shape, dtype="f4")[:] = data
        array = zarr.open_array(tmp_path)
        selected = array.oindex[tuple(selection)]
        indices = [np.arange(100)[s] for s in (*selection, slice(None), slice(None))[:3]]
        assert np.array_equal(selected, data[np.ix_(*indices)])
        tracemalloc.start()
        array.oindex[tuple(selection)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 * (data.nbytes + selected.nbytes) + MIB

    @pytest.mark.parametrize("shape", [(11585, 11585), (1 << 17, 1 << 10)], ids=str)
    def test_of_a_gibibyte_a_column_takes_the_memory_of_a_column(self, tmp_path, shape):
        """Where ranges are coalesced, too."""
        num_rows, num_columns = shape
        create(tmp_path, shape)
        (tmp_path / "c/0").mkdir(parents=True)
        with (tmp_path / "c/0/0").open("wb") as chunk:
            chunk.truncate(num_rows * num_columns * 8)
            chunk.seek((num_columns * (num_rows - 1) + 7) * 8)
            chunk.write(struct.pack(">d", 5))
        array = zarr.open_array(tmp_path)
        array[:, 8]
        tracemalloc.start()
        column = array[:, 7]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert column.tolist() == [0] * (num_rows - 1) + [5]
        # Where many pieces are picked from few ranges, their places take more than they do.
        assert peak < 2 * column.nbytes + MIB + (num_rows * 64 if num_rows > num_columns else 0)


class TestMaxGap:
    def requests_of_a_column(self, array, counting):
        counting.requests.clear()
        array[:, 0]
        return len(counting.requests)

    @pytest.mark.parametrize(("gap", "num_requests"), [(0, 1), (8, 4)])
    def test_default(self, tmp_path, counting, gap, num_requests):
        """The gap between two elements of a column is a row less an element."""
        num_columns = (stores.REMOTE_MAX_GAP_BYTES + gap) // 8 + 1
        create(tmp_path, (4, num_columns), config={"write_empty_chunks": True})[:] = 0
        array = zarr.open_array(counting)
        assert self.requests_of_a_column(array, counting) == num_requests

    @pytest.mark.parametrize(
        ("num_chunks", "requests_per_chunk"), [(1, 4), (2, 4), (5, 1), (10, 1), (30, 1)]
    )
    def test_chunks_that_are_fetched_at_once(self, tmp_path, num_chunks, requests_per_chunk):
        """Each has a part of the requests: to read many chunks took 3.5 times as long as whole."""
        num_columns = 3 * stores.REMOTE_MAX_GAP_BYTES // 8  # two chunks have five requests each
        create(tmp_path, (4 * num_chunks, num_columns), (4, num_columns))
        (tmp_path / "c").mkdir()
        for k in range(num_chunks):
            (tmp_path / f"c/{k}").mkdir()
            with (tmp_path / f"c/{k}/0").open("wb") as chunk:
                chunk.truncate(4 * num_columns * 8)
        store = CountingStore(tmp_path)
        with ranges_from(CountingStore), zarr.config.set({"async.concurrency": 10}):
            array = zarr.open_array(store)
            num_requests = self.requests_of_a_column(array, store)
            # The last ones of many may have more requests to themselves.
            most = num_chunks * requests_per_chunk + (9 if num_chunks > 10 else 0)
            assert num_chunks * requests_per_chunk <= num_requests <= most
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
                assert self.requests_of_a_column(array, store) == num_chunks * 4
        assert getters.chunks_in_flight.num == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_chunks_of_another_process_are_not_counted(self):
        counter = getters.chunks_in_flight
        with counter, counter._lock:
            if not (child := os.fork()):
                os._exit(counter.num or counter._lock.locked())
        assert os.waitpid(child, 0)[1] == 0

    def test_config(self, tmp_path, counting):
        create(tmp_path, (4, 1000))[:] = 1
        array = zarr.open_array(counting)
        for max_gap_bytes, num_requests in ((0, 4), (7991, 4), (np.int64(7992), 1), (10**12, 1)):
            with zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}):
                assert self.requests_of_a_column(array, counting) == num_requests

    @pytest.mark.parametrize("max_gap_bytes", [-1, "1 mile", True])
    def test_a_bad_gap_is_refused(self, tmp_path, counting, max_gap_bytes):
        create(tmp_path, (4, 4))[:] = 1
        array = zarr.open_array(counting)
        with (
            zarr.config.set({"numcodecs_bytes.max_gap_bytes": max_gap_bytes}),
            pytest.raises(ValueError, match="must be a number of bytes, or a size"),
        ):
            array[0]


class CausedByItselfError(Exception):
    """What `raise error from error` makes, by mistake."""

    def __init__(self):
        self.__cause__ = self


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    text: str


class TestBadAnswers:
    @pytest.fixture
    def array(self, tmp_path, counting):
        create(tmp_path, (4, 6), dtype="i2")[:] = DATA
        return zarr.open_array(counting)

    @pytest.fixture(autouse=True)
    def _every_store_is_the_first_of_its_class(self):
        refusals._warned_of.clear()

    @pytest.fixture(autouse=True)
    def _every_range_is_a_request(self):
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            yield

    @staticmethod
    def resized(num_bytes):
        def answer(_, buffer):
            stored = buffer.to_bytes().ljust(num_bytes, b"\0")[:num_bytes]
            return default_buffer_prototype().buffer.from_bytes(stored)

        return answer

    def asked(self, counting):
        """Return what was asked for since the last call: the ranges, None for the whole chunk."""
        asked = [byte_range for _, byte_range, _ in counting.requests]
        counting.requests.clear()
        return asked

    @pytest.mark.parametrize("num_bytes", [0, 11])
    def test_a_range_that_is_too_short_says_nothing_of_other_chunks(
        self, array, counting, caplog, num_bytes
    ):
        """This one may have been shorter at that moment."""
        as_told = self.resized(num_bytes)
        assert array[0].tolist() == DATA[0].tolist()
        counting.answer = lambda n, buffer: buffer if len(buffer) == 48 else as_told(n, buffer)
        for row in (1, 2):
            assert array[row].tolist() == DATA[row].tolist()
        assert self.asked(counting)[2:] == [None, None]
        assert counting not in refusals.refusing
        assert not caplog.records

    @pytest.mark.parametrize("num_bytes", [13, 49])
    def test_ranges_of_another_length_are_not_relied_on(self, array, counting, caplog, num_bytes):
        """zarrs skips the length check on partial reads."""
        as_told = self.resized(num_bytes)
        counting.answer = lambda n, buffer: buffer if len(buffer) == 48 else as_told(n, buffer)
        assert array[1].tolist() == DATA[1].tolist()
        assert self.asked(counting) == [RangeByteRequest(12, 24), None]
        # From now on the store is asked for whole chunks, also in other ways.
        assert array[:, 3].tolist() == DATA[:, 3].tolist()
        assert zarr.open_array(counting)[2].tolist() == DATA[2].tolist()
        assert self.asked(counting) == [None, None]
        (record,) = caplog.records
        assert record.name == "numcodecs_bytes"
        assert re.search(
            "(Counting|Wrapper)?.*Store.* does not support byte ranges .* 48 bytes",
            record.getMessage(),
        )

    def test_an_answer_that_is_the_whole_chunk_is_no_range(self, array, counting):
        """A server that ignores byte ranges sends the chunk, twice at the first request."""
        whole = default_buffer_prototype().buffer.from_bytes(DATA.astype(">i2").tobytes())
        counting.answer = lambda *_: whole
        assert array[1].tolist() == DATA[1].tolist()
        assert self.asked(counting) == [RangeByteRequest(12, 24), None]
        assert array[2].tolist() == DATA[2].tolist()
        assert self.asked(counting) == [None]

    @pytest.mark.parametrize(
        "error",
        [
            NotImplementedError("no ranges"),
            TypeError("unexpected keyword argument"),
            ValueError("no ranges"),
            io.UnsupportedOperation("seek"),
            RuntimeError('Failed to parse value for CONTENT_RANGE header: "bytes 10-19/*"'),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("is_cause", [False, True], ids=["raised", "as a cause"])
    def test_a_store_that_refuses_ranges_is_read_whole(
        self, array, counting, caplog, error, is_cause
    ):
        def answer(_, buffer):
            if len(buffer) == 48:
                return buffer
            if is_cause:
                raise RuntimeError("not reached") from error
            raise error

        counting.answer = answer
        assert array[1].tolist() == DATA[1].tolist()
        assert array[:, 3].tolist() == DATA[:, 3].tolist()
        assert self.asked(counting) == [RangeByteRequest(12, 24), None, None]
        assert len(caplog.records) == 1

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("416, message='Requested Range Not Satisfiable'"),
            RuntimeError("503 Service Unavailable"),
            json.JSONDecodeError("a garbled token", "", 0),
            KeyError("c/0/0"),
            TypeError("unsupported operand"),
            ValueError("could not be decoded"),
            AttributeError("'NoneType' object has no attribute 'request'"),
            CausedByItselfError(),
        ],
        ids=repr,
    )
    def test_a_range_that_fails_says_nothing_of_the_next_one(self, array, counting, caplog, error):
        """The chunk may have been shorter at that moment, or the server restarted."""

        def answer(_, buffer):
            if len(buffer) == 48:
                return buffer
            raise error

        counting.answer = answer
        for row in (1, 2):
            assert array[row].tolist() == DATA[row].tolist()
        assert self.asked(counting)[1::2] == [None, None]
        assert not caplog.records

    def test_where_the_whole_chunk_fails_too_that_error_goes_up(self, array, counting, caplog):
        def answer(_, buffer):
            raise NotImplementedError("no ranges") if len(buffer) < 48 else PermissionError("no")

        counting.answer = answer
        with pytest.raises(PermissionError, match="no"):
            array[1]
        counting.answer = lambda _, buffer: buffer
        assert array[1].tolist() == DATA[1].tolist()
        assert self.asked(counting) == [RangeByteRequest(12, 24), None, RangeByteRequest(12, 24)]
        assert not caplog.records

    @pytest.mark.parametrize("num_bytes", [30, 60])
    def test_a_chunk_of_another_length_is_an_error_that_names_it(
        self, array, tmp_path, caplog, num_bytes
    ):
        chunk = tmp_path / "c/0/0"
        chunk.write_bytes(chunk.read_bytes().ljust(num_bytes)[:num_bytes])
        message = (
            rf"(?s)(?=.*chunk 'c/0/0' of .*Store).*holds {num_bytes} bytes, expected 48 for shape "
            rf"\(4, 6\) of int16; it may be {'trunc' if num_bytes < 48 else 'compressed or have'}"
        )
        # A store that does not tell the length is believed where the ranges are there.
        assert array[1].tolist() == DATA[1].tolist()
        for selection in [slice(None), *([2, 3] if num_bytes < 48 else [])]:
            with pytest.raises(ValueError, match=message):
                array[selection]
        assert not caplog.records

    @pytest.mark.parametrize("selection", [(1,), (slice(None), 3)], ids=str)
    @pytest.mark.parametrize(
        "error",
        [
            PermissionError("not yours"),
            ConnectionResetError(104, "reset by peer"),
            OSError(5, "Input/output error"),
            KeyError("c/0/0"),
            TypeError("unsupported operand"),
            ValueError("could not be decoded"),
            RuntimeError("503 Service Unavailable"),
            PermissionError("/data/orange/c/0/0: invalid range"),
            RuntimeError("https://host/arrangement/c"),
            RuntimeError("list index out of range"),
            FrozenError("no notes"),
        ],
        ids=repr,
    )
    def test_a_failure_goes_up_and_partial_reads_stay_on(self, array, counting, error, selection):
        def answer(num_requests, buffer):
            if num_requests >= len(selection):
                raise error
            return buffer

        error.__dict__.pop("__notes__", None)
        counting.answer = answer
        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                array[selection]
        assert raised.value is error
        if not isinstance(error, FrozenError):
            (note,) = error.__notes__
            assert re.fullmatch(r"while reading chunk 'c/0/0' of .*Store.*", note)
        counting.answer = lambda _, buffer: buffer
        counting.requests.clear()
        assert array[1].tolist() == DATA[1].tolist()
        assert self.asked(counting) == [RangeByteRequest(12, 24)]

    def test_of_several_requests_one_may_fail(self, array, counting):
        """Else a selection would fail several times as often as a whole chunk."""

        def answer(num_requests, buffer):
            if num_requests == 3:
                raise ConnectionResetError(104, "reset by peer")
            return buffer

        counting.answer = answer
        assert array[:, 3].tolist() == DATA[:, 3].tolist()
        assert self.asked(counting)[-1] is None

    def test_a_store_is_asked_for_one_range_before_it_is_asked_for_several(self, array, counting):
        """One that ignores ranges would send many whole chunks at a time."""
        whole = default_buffer_prototype().buffer.from_bytes(DATA.astype(">i2").tobytes())
        counting.answer = lambda *_: whole
        assert array[:, 3].tolist() == DATA[:, 3].tolist()
        assert len(self.asked(counting)) == 2

    @pytest.mark.usefixtures("_answering_is_named")
    def test_a_failure_keeps_nothing_of_what_was_read(self):
        """Exceptions hold frames, which hold bytes, until the garbage collector runs."""
        held = []

        class Failing:
            async def get(self, _prototype, byte_range=None):
                if byte_range is None or byte_range.start >= 1600:
                    raise OSError("gone")
                buffer = default_buffer_prototype().buffer.from_bytes(b"x" * 8)
                held.append(weakref.ref(buffer))
                return buffer

        async def read():
            with suppress(OSError):
                await read_column(in_store(Failing()))

        gc.disable()
        try:
            asyncio.run(read())
            assert held
            assert not [buffer for buffer in held if buffer() is not None]
        finally:
            gc.enable()

    def test_the_context_of_an_error_is_kept(self, array, counting):
        def answer(*_):
            try:
                raise FileNotFoundError("inner")  # noqa: TRY301
            except FileNotFoundError:
                raise OSError("outer")  # noqa: B904 # what is kept

        counting.answer = answer
        with pytest.raises(OSError, match="outer") as raised:
            array[:, 3]
        assert isinstance(raised.value.__context__, FileNotFoundError)

    def test_a_chunk_that_vanishes_is_asked_for_once_more(self, array, counting):
        counting.answer = lambda num_requests, buffer: buffer if num_requests < 3 else None
        assert array[:, 3].tolist() == [0] * 4
        assert self.asked(counting)[-1] is None

    def test_a_chunk_that_appears_is_there_whole_or_not_at_all(self, array, counting):
        for first in range(1, 5):
            num_before = len(counting.requests) + first
            counting.answer = lambda n, buffer, last=num_before: None if n < last else buffer
            assert array[:, 3].tolist() in (DATA[:, 3].tolist(), [0] * 4)
        counting.requests.clear()
        counting.answer = lambda n, buffer: None if n == 4 else buffer
        assert array[:, 3].tolist() == DATA[:, 3].tolist()
        assert self.asked(counting)[-1] is None


class Answering:
    """A store that answered a range before, so that several are requested at a time."""

    def __init__(self, byte_getter):
        self.byte_getter = byte_getter
        answering.add(self)

    async def get(self, _key, prototype, byte_range=None):
        return await self.byte_getter.get(prototype, byte_range)


def in_store(byte_getter):
    """Return a path to a chunk in a named store, where `byte_getter` gets it."""
    return zarr.storage.StorePath(Answering(byte_getter), "c")


async def read_column(byte_getter):
    """Read the first column of a chunk by zarr's pipeline; each of its elements is a request."""
    spec, pipeline = spec_of((100, 100), "f8"), get_pipeline_class()
    out = spec.prototype.nd_buffer.create(shape=(100,), dtype=np.dtype("f8"))
    batch = [(byte_getter, spec, (slice(None), 0), slice(None), False)]
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        await pipeline.from_codecs([BytesCodec(endian="big")]).read(batch, out)
    return out.as_ndarray_like()


@pytest.fixture
def _answering_is_named():
    with ranges_from(Answering):
        yield


@pytest.mark.usefixtures("_answering_is_named")
class TestCancellation:
    async def read_cancelled(self, byte_getter, is_reading):
        """Cancel a read as soon as `is_reading`; return the tasks that are left."""
        reading = asyncio.ensure_future(read_column(byte_getter))
        while not is_reading():  # noqa: ASYNC110 # a thread may be reading
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    def test_no_task_goes_on_reading(self):
        limit = zarr.config.get("async.concurrency")
        asked = []

        class Slow:
            async def get(self, _prototype, byte_range=None):
                asked.append(byte_range)
                await asyncio.Event().wait()

        reading = self.read_cancelled(in_store(Slow()), lambda: len(asked) == limit)
        assert asyncio.run(reading) == []
        assert len(asked) == limit

    def test_no_thread_goes_on_reading(self, tmp_path, monkeypatch):
        create(tmp_path, (100, 100))[:] = 1
        is_cancelled = threading.Event()
        num_read = 0

        def waiting(*arguments):
            nonlocal num_read
            num_read += 1
            assert num_read == 1 or is_cancelled.wait(100)
            return pread(*arguments)

        async def read():
            left = await self.read_cancelled(
                zarr.storage.StorePath(store, "c/0/0"), lambda: num_read == 2
            )
            is_cancelled.set()
            return left

        pread = os.pread
        monkeypatch.setattr(os, "pread", waiting)
        store = zarr.storage.LocalStore(tmp_path)
        sync(store._open())
        assert asyncio.run(read()) == []  # which waits for its threads
        assert 1 < num_read < 50

    def test_a_failure_ends_the_other_requests(self):
        ended = []

        class Failing:
            async def get(self, _prototype, byte_range=None):
                if byte_range is None or byte_range.start == 1600:
                    raise OSError("gone")
                try:
                    await asyncio.sleep(10)
                finally:
                    ended.append(byte_range)

        async def read():
            with pytest.raises(OSError, match="gone"):
                await read_column(in_store(Failing()))
            return len(asyncio.all_tasks())

        assert asyncio.run(read()) == 1
        assert len(ended) == zarr.config.get("async.concurrency") - 1

    @pytest.mark.parametrize("start", [0, 1600])
    def test_a_request_that_the_store_cancels(self, start):
        """A task group takes a cancelled task for done; its bytes never came."""

        class Cancelling:
            async def get(self, _prototype, byte_range=None):
                if byte_range is None:
                    return default_buffer_prototype().buffer.from_bytes(bytes(range(200)) * 400)
                if byte_range.start == start:
                    raise asyncio.CancelledError
                return default_buffer_prototype().buffer.from_bytes(bytes(8))

        try:
            selected = asyncio.run(read_column(in_store(Cancelling())))
        except asyncio.CancelledError:
            return  # as zarr alone
        expected = np.frombuffer(bytes(range(200)) * 400, ">f8").reshape(100, 100)[:, 0]
        assert selected.tobytes() == expected.tobytes()

    def test_the_requests_of_all_chunks_share_the_concurrency(self, tmp_path):
        in_flight, most = 0, 0

        class Watching(zarr.storage.LocalStore):
            async def get(self, key, prototype=None, byte_range=None):
                nonlocal in_flight, most
                in_flight += byte_range is not None
                most = max(most, in_flight)
                try:
                    return await super().get(key, prototype, byte_range)
                finally:
                    in_flight -= byte_range is not None

        for chunks in ((10, 100), (200, 100)):
            create(tmp_path, (200, 100), chunks, overwrite=True)[:] = 1
            most = 0
            settings = {"numcodecs_bytes.max_gap_bytes": 0, "async.concurrency": 7}
            with zarr.config.set(settings), ranges_from(Watching):
                assert zarr.open_array(Watching(tmp_path))[:, 3].tolist() == [1] * 200
            # One for each chunk that zarr reads at a time, more while there is room.
            assert 7 <= most < 14
        assert most == 7
