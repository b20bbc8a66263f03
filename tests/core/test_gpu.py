"""Arrays on a GPU: swapped there, with what CuPy has.

Where there is no GPU, an array type with CuPy's documented limits stands in: no dtypes in the
other byte order, no implicit conversion to NumPy.
"""

import numpy as np
import pytest
from data_types import CASES, ENDIANS
from helpers import bytes_codec, decode_chunk, encode_chunk, spec_of, write_array

from numcodecs_bytes.zarr import BytesCodec

NUMBERS = [c for c in CASES if c.dtype.kind in "biufc" and not c.native_only]


class DeviceArray:
    """A NumPy array that nobody gets at, and that knows native dtypes only."""

    base = None
    __hash__ = None

    def __init__(self, array):
        assert array.dtype.isnative
        self._array = array

    def __getattr__(self, name):
        if name not in ("dtype", "shape", "ndim", "size", "nbytes", "flags", "itemsize"):
            raise AttributeError(name)
        return getattr(self._array, name)

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

    def __getitem__(self, selection):
        return DeviceArray(self._array[selection])

    def __ne__(self, other):
        return DeviceArray(self._array != other)

    def get(self):
        """Return the array on the CPU, as CuPy does."""
        return self._array


def encode(array, spec, endian="big"):
    codec = BytesCodec(endian=endian).evolve_from_array_spec(spec)
    return encode_chunk(codec, DeviceArray(array), spec).as_array_like().get().tobytes()


def decode(stored, spec, endian="big"):
    codec = BytesCodec(endian=endian).evolve_from_array_spec(spec)
    raw = DeviceArray(np.frombuffer(stored, np.uint8))
    return decode_chunk(codec, raw, spec).as_ndarray_like().get()


@pytest.mark.parametrize("endian", ENDIANS)
@pytest.mark.parametrize("case", NUMBERS, ids=lambda c: c.name)
def test_numbers_are_swapped_where_they_are(case, endian):
    """zarr's own codec asks for dtypes in the other byte order, which CuPy does not have."""
    array = case.array(case.dtype.newbyteorder("=")).reshape(3, 4)
    spec = spec_of((3, 4), array.dtype)
    assert encode(array, spec, endian) == case.stored(endian)
    decoded = decode(case.stored(endian), spec, endian)
    assert (decoded.shape, decoded.dtype) == ((3, 4), array.dtype)
    assert decoded.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "select",
    [
        lambda a: a.T,
        lambda a: a[1, 1:2].reshape(()),
        lambda a: a.reshape(-1)[::-1],
        lambda a: a[:, ::2],
        lambda a: np.broadcast_to(a[0, :1], (5,)),
    ],
)
def test_any_layout(select):
    """CuPy views no array as bytes whose elements are not next to each other."""
    given = select(np.arange(12, dtype="f4").reshape(3, 4))
    for endian in ENDIANS:
        expected = np.ascontiguousarray(given).astype(np.dtype("f4").newbyteorder(endian))
        assert encode(given, spec_of(given.shape, "f4"), endian) == expected.tobytes()


def test_an_invalid_bool_is_true():
    spec = spec_of((3,), "?")
    assert decode(b"\0\xff\2", spec).tobytes() == b"\0\1\1"
    assert encode(np.frombuffer(b"\0\xff\2", "?"), spec) == b"\0\1\1"


def test_bad_chunks_are_refused_as_on_the_cpu():
    spec = spec_of((3,), "f4")
    with pytest.raises(ValueError, match="chunk holds 11 bytes, expected 12"):
        decode(bytes(11), spec)
    with pytest.raises(ValueError, match="array does not fit the chunk: got shape \\(4,\\)"):
        encode(np.zeros(4, "f4"), spec)
    for dtype in ([("a", "i4"), ("b", "i4")], "M8[s]", "U2"):
        with pytest.raises(TypeError, match="expected a numeric data type of CuPy"):
            decode(bytes(24), spec_of((3,), dtype))


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
