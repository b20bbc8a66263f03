"""The codec on a GPU: arrays are swapped there; with a stand-in for CuPy, whose limits it has."""

import helpers
import numpy as np
import pytest
import standin_cupy
from data_types import CASES, ENDIANS
from helpers import decode_chunk, encode_chunk
from zarr.core.buffer import gpu

from numcodecs_bytes.zarr_codec import BytesCodec

NUMBERS = [c for c in CASES if c.dtype.kind in "biufc" and not c.native_only]

pytestmark = pytest.mark.usefixtures("cupy")


def spec_of(shape, dtype):
    return helpers.spec_of(shape, dtype, gpu.buffer_prototype)


def encode(array, spec, endian="big"):
    codec = BytesCodec(endian=endian).evolve_from_array_spec(spec)
    return encode_chunk(codec, standin_cupy.ndarray(array), spec).as_array_like().get().tobytes()


def decode(stored, spec, endian="big"):
    codec = BytesCodec(endian=endian).evolve_from_array_spec(spec)
    raw = standin_cupy.frombuffer(stored, np.uint8)
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


@pytest.mark.parametrize("dtype", ["u2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("num", [0, 1, 2, 3, 4, 1001])
@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
def test_any_length_at_any_address(dtype, num, offset):
    """The kernel swaps words of 8 bytes; what is not made of them is swapped without it."""
    array = np.random.default_rng(0).integers(0, 256, 16 * num, np.uint8).view(dtype)
    raw = array.astype(array.dtype.newbyteorder(">")).tobytes()
    stored = standin_cupy.frombuffer(bytes(offset) + raw, np.uint8)[offset:]
    codec = BytesCodec(endian="big").evolve_from_array_spec(spec_of(array.shape, dtype))
    decoded = decode_chunk(codec, stored, spec_of(array.shape, dtype)).as_ndarray_like().get()
    assert decoded.tobytes() == array.tobytes()
    assert encode(array, spec_of(array.shape, dtype)) == raw


def test_an_array_on_another_gpu():
    """A kernel runs on the current one, which may not get at the memory of others."""
    spec = spec_of((4,), "f4")
    with standin_cupy.Device(1):
        array = standin_cupy.asarray(np.arange(4, dtype="f4"))
    codec = BytesCodec(endian="big").evolve_from_array_spec(spec)
    encoded = encode_chunk(codec, array, spec)
    assert encoded.as_array_like().device.id == 1
    assert encoded.to_bytes() == np.arange(4, dtype=">f4").tobytes()
    decoded = decode_chunk(codec, encoded.as_array_like(), spec).as_ndarray_like()
    assert decoded.device.id == 1
    assert decoded.get().tolist() == [0, 1, 2, 3]


def test_an_invalid_bool_is_true():
    spec = spec_of((3,), "?")
    assert decode(b"\0\xff\2", spec).tobytes() == b"\0\1\1"
    assert encode(np.frombuffer(b"\0\xff\2", "?"), spec) == b"\0\1\1"


def test_into_host_memory():
    """zarr decodes the index of a shard into host memory, even if it has all of it on a GPU."""
    codec = BytesCodec(endian="big").evolve_from_array_spec(helpers.spec_of((3,), "u8"))
    raw = standin_cupy.frombuffer(np.arange(3, dtype=">u8").tobytes(), np.uint8)
    decoded = decode_chunk(codec, raw, helpers.spec_of((3,), "u8"))
    assert decoded.as_numpy_array().tolist() == [0, 1, 2]


def test_bad_chunks_are_refused_as_on_the_cpu():
    spec = spec_of((3,), "f4")
    with pytest.raises(ValueError, match="chunk holds 11 bytes, expected 12"):
        decode(bytes(11), spec)
    with pytest.raises(ValueError, match="array does not fit the chunk: got shape \\(4,\\)"):
        encode(np.zeros(4, "f4"), spec)
    for dtype in ([("a", "i4"), ("b", "i4")], "M8[s]", "U2"):
        with pytest.raises(TypeError, match="expected a numeric data type of CuPy"):
            decode(bytes(24), spec_of((3,), dtype))
