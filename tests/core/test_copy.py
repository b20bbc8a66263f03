"""The kernels: swap units give what NumPy's own cast gives."""

import itertools

import numpy as np
import pytest

from numcodecs_bytes import Bytes
from numcodecs_bytes._core.copy import decode_into, encode_array
from numcodecs_bytes._core.dtypes import stored_dtype

SHAPES = [(30, 26), (7, 64, 3), (5, 7, 9, 4)]
DTYPES = [
    *("?", "u1", "i2", "f4", "f8", "c8", "c16", "M8[s]", "U3", "S5", "f4,f4", "i2,f8"),
    *(">f4,<f4", "f4,V4", [("a", "<f4", (2, 3)), ("b", "<c8")]),
]


def array_of(shape, dtype):
    """Return an array of random bytes that are values of the data type."""
    dtype = np.dtype(dtype)
    largest = 2 if dtype.kind == "b" else 16  # of bools; of characters that Unicode has
    raw = np.random.default_rng(7).integers(0, largest, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype)[..., 0]


def orders_of(array):
    for axes in itertools.permutations(range(array.ndim)):
        yield array.transpose(axes)
        yield array.transpose(axes)[::-1, ..., ::2]


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_order_of_axes_is_stored_and_filled_in_c_order(shape, dtype):
    elements = array_of(shape, dtype)
    for array in orders_of(elements):
        for endian in ("little", "big"):
            stored = stored_dtype(array.dtype, endian)
            encoded = encode_array(array, stored)
            assert encoded.flags.c_contiguous
            expected = array.astype(array.dtype.newbyteorder(endian), order="C")
            assert encoded.tobytes() == expected.tobytes()
    for out in orders_of(np.zeros_like(elements)):
        if out.flags.f_contiguous:
            continue  # is filled column by column
        values = np.resize(elements, out.shape).astype(out.dtype)
        decode_into(encode_array(values, stored).reshape(-1).view(np.uint8), stored, out)
        assert out.tobytes() == values.tobytes()


def test_an_out_that_overlaps_its_bytes():
    """Of one axis, NumPy's own copy reads what it has written."""
    memory = np.arange(20, dtype=np.uint8)
    out = Bytes("little", "u1").decode(memory[4:12], out=memory[0:16:2])
    assert out.tolist() == list(range(4, 12))


def test_an_out_without_axes_that_overlaps_its_bytes():
    """NumPy does not see that 0-d structures overlap."""
    memory = np.arange(24, dtype=np.uint8)
    out = np.ndarray((), ">i2,>f8", memory, 1)
    expected = np.frombuffer(memory[:10].tobytes(), "<i2,<f8")[0].tolist()
    Bytes("little", dtype="<i2,<f8").decode(memory[:10], out=out)
    assert out.tolist() == expected


def test_padding_beside_an_invalid_bool_is_zero():
    """NumPy copies structures without their padding: old memory would be handed out."""
    dtype = np.dtype([("a", "?"), ("b", "<i8")], align=True)
    stored = np.zeros((5000, 9), np.uint8)
    stored[:, 0] = 2
    for _ in range(3):
        old = [np.full(5000 * dtype.itemsize, 0xAB, np.uint8) for _ in range(8)]
        del old  # where the next arrays of that size are likely to lie
        decoded = Bytes("little", dtype).decode(stored.tobytes())
        assert decoded["a"].view(np.uint8).tolist() == [1] * 5000
        assert not decoded.view(np.uint8).reshape(-1, dtype.itemsize)[:, 1:8].any()


@pytest.mark.parametrize("endian", ["little", "big"])
def test_fields_in_another_order_than_in_memory(endian):
    """`array[["y", "x"]]` was stored in the order of the memory."""
    array = np.array([(1, 2), (3, 4)], [("x", "<i8"), ("y", "<i8")])[["y", "x"]]
    codec = Bytes(endian, array.dtype)
    stored = np.frombuffer(codec.encode(array), np.dtype("i8").newbyteorder(endian))
    assert stored.tolist() == [2, 1, 4, 3]
    assert codec.decode(stored).tolist() == array.tolist()
