"""The kernels: swap units and tiles give what NumPy's own cast gives."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from numcodecs_bytes import Bytes
from numcodecs_bytes._core import copy
from numcodecs_bytes._core.copy import copy_elements, decode_into, encode_array
from numcodecs_bytes._core.dtypes import byteswap_dtype, stored_dtype

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


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 8 x 3 elements, in arrays of any size."""
    for name, value in {"LENGTH": 8, "WIDTH": 3}.items():
        monkeypatch.setattr(copy, f"TILE_{name}", value)
    monkeypatch.setattr(copy, "TILED_BYTES", 1)
    monkeypatch.setattr(copy, "FAR_BYTES", 1)


TITLED = np.dtype([(("title", "a"), "<i2"), ("b", ">f8")])
PADDED = np.dtype("u1,<f8,S3,>i2", align=True)


def arrays_in_any_order(dtype, num=60):
    """Yield views of arrays of random elements, and the same views of zeros, with their memory."""
    rng = np.random.default_rng(11)
    for _ in range(num):
        shape = rng.choice([1, 2, 3, 5, 6, 7, 8, 9, 16, 17], rng.integers(1, 5))
        axes = rng.permutation(len(shape))
        steps = tuple(slice(None, None, step) for step in rng.choice([1, 1, 2, -1], len(shape)))
        zeros = np.zeros(shape, dtype)
        yield array_of(shape, dtype).transpose(axes)[steps], zeros.transpose(axes)[steps], zeros


IN_TILES = [*DTYPES, "m8[ms]", ">U2", ml_dtypes.bfloat16, ml_dtypes.int4, TITLED, PADDED]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("dtype", IN_TILES, ids=str)
def test_tiles_encode_each_element(dtype, endian):
    num_tiled = 0
    for array, _, _ in arrays_in_any_order(dtype):
        for view in (array, np.broadcast_to(array[:1], array.shape)):
            stored = stored_dtype(view.dtype, endian)
            expected = view.view(byteswap_dtype(view.dtype)).astype(stored, order="C")
            assert encode_array(view, stored).tobytes() == expected.tobytes()
            num_tiled += is_tiled(np.empty(view.shape, stored), view)
    assert num_tiled >= 10


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("dtype", IN_TILES, ids=str)
def test_tiles_decode_each_element_and_change_nothing_else(dtype, endian):
    num_tiled = 0
    for values, out, memory in arrays_in_any_order(dtype):
        if copy.is_column_major(out):
            continue  # is filled column by column
        stored = stored_dtype(out.dtype, endian)
        elements = values.view(byteswap_dtype(out.dtype)).astype(stored, order="C")
        expected = np.zeros(memory.shape, dtype)
        np.ndarray(  # the same view of other memory
            out.shape, byteswap_dtype(out.dtype), expected, offset_of(out, memory), out.strides
        )[...] = elements
        decode_into(elements.reshape(-1).view(np.uint8), stored, out)
        assert memory.tobytes() == expected.tobytes()
        num_tiled += is_tiled(out, elements)
    assert num_tiled >= 5


def offset_of(view, memory):
    """Return where the first element of a view is in its memory, in bytes."""
    return view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]


def is_tiled(out, source):
    return copy._plan_tiles(out, source) != [...]


@pytest.mark.parametrize("num_lines", [255, 256, 263, 264, 265])
@pytest.mark.parametrize("length", [255, 256, 511, 512, 513, 1025])
@pytest.mark.parametrize("dtype", ["<f4", ">i8"])
def test_sizes_around_those_of_tiles(num_lines, length, dtype):
    array = np.arange(num_lines * 2048, dtype=dtype).reshape(num_lines, 2048)[:, :length].T
    for order in "<>":
        stored = array.dtype.newbyteorder(order)
        out = np.empty(array.shape, stored)
        assert is_tiled(out, array) == (length >= 256)
        assert encode_array(array, stored).tobytes() == array.astype(stored, order="C").tobytes()


def test_a_large_array_that_is_transposed_onto_itself():
    """NumPy copies the source first; tiles would read what others have overwritten."""
    array = np.arange(1 << 18, dtype="<i8").reshape(512, 512)
    expected = array.T.copy()
    copy_elements(array, array.T)
    assert np.array_equal(array, expected)


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
