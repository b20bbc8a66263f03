"""Arrays on a GPU: swapped there, with what CuPy has.

Where there is no GPU, an array type with CuPy's documented limits stands in: no dtypes in the
other byte order, no implicit conversion to NumPy.
"""

import numpy as np
import pytest
from data_types import CASES, ENDIANS
from helpers import bytes_codec, spec_of, write_array

from numcodecs_bytes.zarr import BytesCodec

NUMBERS = [c for c in CASES if c.dtype.kind in "biufc" and not c.native_only]


class DeviceArray:
    """A NumPy array that nobody gets at, and that knows native dtypes only."""

    def __init__(self, array):
        assert array.dtype.isnative
        self._array = array

    dtype = property(lambda self: self._array.dtype)
    shape = property(lambda self: self._array.shape)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    flags = property(lambda self: self._array.flags)
    itemsize = property(lambda self: self._array.itemsize)
    base = None

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def view(self, dtype):
        if not np.dtype(dtype).isnative:
            raise ValueError("Unsupported dtype")
        return DeviceArray(self._array.view(dtype))

    def reshape(self, *shape):
        return DeviceArray(self._array.reshape(*shape))

    def copy(self):
        return DeviceArray(self._array.copy(order="C"))

    def transpose(self):
        return DeviceArray(self._array.transpose())

    def __getitem__(self, selection):
        return DeviceArray(self._array[selection])

    def __ne__(self, other):
        return DeviceArray(self._array != other)

    __hash__ = None

    def get(self):
        """Return the array on the CPU, as CuPy does."""
        return self._array


def buffers(spec, array, stored):
    nd_buffer = spec.prototype.nd_buffer.from_ndarray_like(DeviceArray(array))
    raw = DeviceArray(np.frombuffer(stored, np.uint8))
    return nd_buffer, spec.prototype.buffer.from_array_like(raw)


@pytest.mark.parametrize("endian", ENDIANS)
@pytest.mark.parametrize("case", NUMBERS, ids=lambda c: c.name)
def test_numbers_are_swapped_where_they_are(case, endian):
    """zarr's own codec asks for dtypes in the other byte order, which CuPy does not have."""
    array = case.array(case.dtype.newbyteorder("=")).reshape(3, 4)
    spec = spec_of((3, 4), array.dtype)
    codec = BytesCodec(endian=endian).evolve_from_array_spec(spec)
    nd_buffer, buffer = buffers(spec, array, case.stored(endian))

    encoded = codec._encode_sync(nd_buffer, spec).as_array_like()
    assert encoded.get().tobytes() == case.stored(endian)
    decoded = codec._decode_sync(buffer, spec).as_ndarray_like()
    assert decoded.shape == (3, 4)
    assert decoded.dtype == array.dtype
    assert decoded.get().tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "select",
    [
        lambda a: a.T,
        lambda a: a[1, 1:2].reshape(()),
        lambda a: a.reshape(-1)[::2],
        lambda a: a.reshape(-1)[::-1],
        lambda a: a[:, ::2],
        lambda a: a[:, :1],
        lambda a: np.broadcast_to(a[0, :1], (5,)),
    ],
)
def test_any_layout(select):
    """CuPy views no array as bytes whose elements are not next to each other."""
    given = select(np.arange(12, dtype="f4").reshape(3, 4))
    for endian in ENDIANS:
        spec = spec_of(given.shape, "f4")
        nd_buffer, _ = buffers(spec, given, b"")
        encoded = BytesCodec(endian=endian)._encode_sync(nd_buffer, spec).as_array_like()
        stored = np.dtype("f4").newbyteorder(endian)
        assert encoded.get().tobytes() == np.ascontiguousarray(given).astype(stored).tobytes()


def test_an_invalid_bool_is_true():
    spec = spec_of((3,), "?")
    stored = b"\0\xff\2"
    nd_buffer, buffer = buffers(spec, np.frombuffer(stored, "?"), stored)
    codec = BytesCodec(endian=None)
    assert codec._decode_sync(buffer, spec).as_ndarray_like().get().tobytes() == b"\0\1\1"
    assert codec._encode_sync(nd_buffer, spec).as_array_like().get().tobytes() == b"\0\1\1"


def test_bad_chunks_are_refused_as_on_the_cpu():
    spec = spec_of((3,), "f4")
    nd_buffer, buffer = buffers(spec, np.zeros(4, "f4"), bytes(11))
    with pytest.raises(ValueError, match="chunk holds 11 bytes, expected 12"):
        BytesCodec(endian="big")._decode_sync(buffer, spec)
    with pytest.raises(ValueError, match="array does not fit the chunk: got shape \\(4,\\)"):
        BytesCodec(endian="big")._encode_sync(nd_buffer, spec)
    for dtype in ([("a", "i4"), ("b", "i4")], "M8[s]", "U2"):
        spec = spec_of((3,), dtype)
        _, buffer = buffers(spec, np.zeros(3, "f4"), bytes(24))
        with pytest.raises(TypeError, match="expected a numeric data type of CuPy"):
            BytesCodec(endian="big")._decode_sync(buffer, spec)


def test_on_a_gpu(tmp_path):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    zarr = pytest.importorskip("zarr")
    if not cupy.cuda.is_available():
        pytest.skip("there is no GPU")
    data = np.arange(12, dtype="f4")
    path = write_array(
        tmp_path, data.astype(">f4").tobytes(), "float32", [bytes_codec("big")], (12,)
    )
    with zarr.config.enable_gpu():
        array = zarr.open_array(path, mode="r+")
        assert cupy.asnumpy(array[:]).tolist() == data.tolist()
        array[:] = cupy.asarray(data[::-1])
    assert (path / "c" / "0").read_bytes() == data[::-1].astype(">f4").tobytes()
