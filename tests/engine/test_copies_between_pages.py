"""Copies between files and memory: on some processors, none of 4 KiB and more is a slow one.

Those take eight times as long if the target begins 1 to 31 bytes after the source, modulo 4,096.
Addresses, offsets and lengths are recorded instead of times.
"""

import os

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import reference_store
from zarr.core.buffer import cpu

import numcodecs_bytes
from numcodecs_bytes._core import slow_copies

pytestmark = [
    pytest.mark.usefixtures("our_pipeline"),
    pytest.mark.needs("os.preadv"),
]
SLOW = range(1, 32)
SHAPE = (64, 2048)  # of float32: rows of 8 KiB
DATA = np.random.default_rng(0).random(SHAPE, np.float32)
LAYOUTS = {
    "a large chunk": {"chunks": SHAPE},
    "full rows": {"chunks": (16, 2048)},
    "half rows": {"chunks": (32, 1024)},
    "rows of 6 KiB": {"chunks": (32, 1536)},
    "column-major": {"chunks": (64, 2048), "zarr_format": 2, "order": "F"},
    "shards": {"chunks": (16, 1024), "shards": (64, 2048)},
    "v2": {"chunks": (16, 2048), "zarr_format": 2},
}


class Copies:
    """The distance from source to target, modulo 4,096, of each copy of 4 KiB and more."""

    def __init__(self, monkeypatch):
        self.distances = []
        self._preadv, self._pwrite, self._copyto = os.preadv, os.pwrite, np.copyto
        monkeypatch.setattr(os, "preadv", self._note_read)
        monkeypatch.setattr(os, "pwrite", self._note_write)
        monkeypatch.setattr(np, "copyto", self._note_copy)

    @property
    def slow(self):
        return [distance for distance in self.distances if distance in SLOW]

    def _note(self, source, target, num_bytes):
        if num_bytes >= 4096:
            self.distances.append((target - source) % 4096)

    def _note_read(self, descriptor, buffers, position, *flags):
        num_bytes = self._preadv(descriptor, buffers, position, *flags)
        self._note(position, address_of(buffers[0]), num_bytes)
        return num_bytes

    def _note_write(self, descriptor, raw, position):
        num_bytes = self._pwrite(descriptor, raw, position)
        self._note(address_of(raw), position, num_bytes)
        return num_bytes

    def _note_copy(self, out, source, **kwargs):
        self._copyto(out, source, **kwargs)
        source = np.broadcast_to(source, out.shape)
        if out.dtype != source.dtype:  # NumPy swaps elements one by one
            return
        if out.flags.f_contiguous:
            out, source = out.T, source.T
        for row_out, row in contiguous_parts(out, source):
            self._note(row.ctypes.data, row_out.ctypes.data, row.nbytes)


def address_of(buffer):
    return np.frombuffer(buffer, np.uint8).ctypes.data


def contiguous_parts(*arrays):
    """Yield parts of arrays of one shape, as large as they can be, that are contiguous in each."""
    if all(array.flags.c_contiguous for array in arrays):
        yield arrays
    elif arrays[0].ndim > 1:
        for parts in zip(*arrays, strict=True):
            yield from contiguous_parts(*parts)


@pytest.fixture
def copies(monkeypatch):
    return Copies(monkeypatch)


@pytest.fixture(params=[True, False], ids=["Zen 3", "others"])
def is_slow_processor(request, monkeypatch):
    """Whether this is such a processor; with others, there are copies at slow distances."""
    monkeypatch.setattr(slow_copies, "slow_distances", SLOW if request.param else range(0))
    return request.param


def array_at(begin, shape=SHAPE, dtype=np.float32):
    """Return an array that begins so many bytes after a page."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(num_bytes + 2 * 4096, np.uint8)
    first = -memory.ctypes.data % 4096 + begin
    return memory[first : first + num_bytes].view(dtype).reshape(shape)


class TestReads:
    @pytest.mark.parametrize("endian", ["little", "big"])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_whole_arrays_into_memory_of_any_alignment(
        self, tmp_path, layout, endian, copies, is_slow_processor
    ):
        settings = dict(LAYOUTS[layout])
        if settings.get("zarr_format") == 2:
            settings["dtype"] = "<f4" if endian == "little" else ">f4"
        else:
            settings |= {
                "dtype": "f4",
                "serializer": {"name": "bytes", "configuration": {"endian": endian}},
            }
        array = zarr.create_array(tmp_path / "a", shape=SHAPE, compressors=None, **settings)
        array[:] = DATA
        copies.distances.clear()
        for begin in (0, 16, 48, 2064, 3088):
            out = array_at(begin, dtype=array.dtype)
            array.get_basic_selection((), out=cpu.NDBuffer(out))
            np.testing.assert_array_equal(out, DATA)
        assert copies.distances
        if is_slow_processor:
            assert copies.slow == []
        elif endian == "little" and "rows" in layout:  # the recorder sees them
            assert copies.slow

    @pytest.mark.parametrize("offset", [0, 1, 8, 15, 512, 2048, 2880, 4080, 4095])
    def test_references_at_any_offset(self, tmp_path, offset, copies, is_slow_processor):
        """Those of TIFF often begin at 8, of FITS at multiples of 2,880, of HDF5 at 2,048."""
        array = references(tmp_path, [offset])
        for begin in (0, 16, 48):
            out = array_at(begin)
            array.get_basic_selection((), out=cpu.NDBuffer(out))
            np.testing.assert_array_equal(out, DATA)
        assert copies.distances
        if is_slow_processor:
            assert copies.slow == []

    def test_members_of_zip_archives(self, tmp_path, copies, is_slow_processor):
        """Each begins after a header, whose length depends on its name."""
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
            for name in ["b" * k for k in range(1, 16)]:
                settings = {"shape": SHAPE, "chunks": (16, 2048), "dtype": "f4"}
                zarr.create_array(store, name=name, compressors=None, **settings)[:] = DATA
        copies.distances.clear()
        with zarr.storage.ZipStore(tmp_path / "a.zip", mode="r") as store:
            for name in ["b" * k for k in range(1, 16)]:
                out = array_at(16)
                array = zarr.open_array(store, path=name, mode="r")
                array.get_basic_selection((), out=cpu.NDBuffer(out))
                np.testing.assert_array_equal(out, DATA)
        assert copies.distances
        if is_slow_processor:
            assert copies.slow == []

    def test_sync_reader(self, tmp_path, copies, is_slow_processor):
        """Where the memory of a result begins is not known before."""
        # An odd number: results may begin at two places in turn.
        offsets = [16 * k for k in range(257)]
        num_rows = 4
        array = references(tmp_path, offsets, num_rows)
        reader = numcodecs_bytes.SyncReader(array)
        for k in [*range(len(offsets))] * 8:  # as results may begin anywhere, too
            rows = reader[k * num_rows : (k + 1) * num_rows]
            np.testing.assert_array_equal(rows, DATA[:num_rows])
            assert rows.base is None
        assert bool(copies.slow) != is_slow_processor


def references(folder, offsets, num_rows=SHAPE[0]):
    """Return an array with a chunk of rows at each offset of a file, modulo 4,096."""
    chunk, step = DATA[:num_rows].tobytes(), DATA[:num_rows].nbytes + 4096
    raw = bytearray(step * (len(offsets) + 1))
    starts = [k * step + (offset - k * step) % 4096 for k, offset in enumerate(offsets)]
    for start in starts:
        raw[start : start + len(chunk)] = chunk
    path = folder / "raw"
    path.write_bytes(raw)
    zarr.create_array(
        folder / "a",
        shape=(num_rows * len(offsets), SHAPE[1]),
        chunks=(num_rows, SHAPE[1]),
        dtype="f4",
        compressors=None,
    )
    found = {f"c/{k}/0": [str(path), start, len(chunk)] for k, start in enumerate(starts)}
    found["zarr.json"] = (folder / "a/zarr.json").read_text()
    return zarr.open_array(reference_store(found), mode="r")


class TestWrites:
    @pytest.mark.parametrize("begin", [4080, 4088, 16, 0])
    @pytest.mark.parametrize("how", ["whole", "in place", "in place, in hulls"])
    def test_values_in_memory_of_any_alignment(
        self, tmp_path, how, begin, copies, is_slow_processor
    ):
        array = zarr.create_array(
            tmp_path / "a", shape=SHAPE, chunks=SHAPE, dtype="f4", compressors=None, fill_value=0
        )
        array[:] = DATA
        rows = {"whole": np.s_[:], "in place": np.s_[8:40], "in place, in hulls": np.s_[8:40, ::2]}
        selection = rows[how]
        values = array_at(begin, DATA[selection].shape)
        values[:] = DATA[::-1][selection]
        copies.distances.clear()
        with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
            array[selection] = values
        expected = DATA.copy()
        expected[selection] = values
        written = list(copies.slow)
        np.testing.assert_array_equal(array[:], expected)
        if is_slow_processor:
            assert written == []
        elif begin > 4064 and "hulls" not in how:
            assert written

    def test_copies_of_shards(self, tmp_path, copies, is_slow_processor):
        """A shard with its index at the start is copied from odd offsets to odd offsets."""
        codec = zarr.codecs.ShardingCodec(
            chunk_shape=(8, 1024),
            index_location="start",
            codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
        )
        array = zarr.create_array(
            tmp_path / "a",
            shape=SHAPE,
            chunks=SHAPE,
            dtype="f4",
            serializer=codec,
            compressors=None,
            fill_value=1,
        )
        copies.distances.clear()
        with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
            for row in range(0, 64, 8):
                array[row : row + 8] = DATA[row : row + 8]
        np.testing.assert_array_equal(array[:], DATA)
        if is_slow_processor:
            assert copies.slow == []
