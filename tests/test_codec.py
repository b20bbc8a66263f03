"""Bytes, the numcodecs codec: literal bytes, layouts, buffers, refusals, Zarr v2 on disk.

More data types and layouts are searched in test_properties.py.
"""

import array
import copy
import functools
import itertools
import json
import mmap
import pickle
import reprlib
import struct
import sys
from pathlib import Path

import numcodecs
import numcodecs.abc
import numpy as np
import pytest
import zarr
from data_types import (
    ALIGNED,
    CASES,
    ENDIANS,
    LAYOUTS,
    MIXED,
    NESTED,
    SIMPLE,
    TITLED,
    flat_bytes,
    laid_out,
)
from helpers import BY_ENDIAN, case_of
from numcodecs.compat import ensure_bytes, ensure_ndarray

import numcodecs_bytes
from numcodecs_bytes import Bytes

FOREIGN_ENDIAN = "big" if sys.byteorder == "little" else "little"
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
DEEP = functools.reduce(lambda inner, _: [["a", inner]], range(3000), "<i2")
OLD_BYTES = Path(__file__).parent / "fixtures" / "bytes_0.1.0.json"

# Ways to hand the memory of an array on, each with a buffer of its own kind.
BUFFERS = [
    bytes,
    bytearray,
    memoryview,
    lambda memory: memoryview(bytearray(b"x" + memory))[1:],
    lambda memory: array.array("B", memory),
    # numcodecs' own tests hand every codec an array of signed bytes.
    lambda memory: array.array("b", memory),
    lambda memory: memoryview(memory).cast("c"),
    lambda memory: np.frombuffer(memory, np.uint8),
    lambda memory: np.frombuffer(memory, np.uint8).reshape(1, -1),
    lambda memory: np.repeat(np.frombuffer(memory, np.uint8), 2)[::2],
]
OUTS = [
    bytearray,
    lambda num_bytes: memoryview(bytearray(num_bytes)),
    lambda num_bytes: array.array("b", bytes(num_bytes)),
    lambda num_bytes: np.zeros(num_bytes, np.uint8),
    lambda num_bytes: np.zeros(num_bytes and 1, f"V{num_bytes}"),
    lambda num_bytes: mmap.mmap(-1, num_bytes) if num_bytes else bytearray(),
]


def assert_same(got, expected):
    """Compare dtype, shape and every element, NaN and subarrays included."""
    assert got.dtype == expected.dtype
    assert got.dtype.type is expected.dtype.type
    assert got.shape == expected.shape
    assert repr(got.tolist()) == repr(expected.tolist())


def assert_holds(decoded, elements):
    """Check what was decoded as numcodecs does: in the memory order of what was encoded."""
    order = "F" if elements.flags.f_contiguous else "C"
    got = ensure_ndarray(decoded).view(elements.dtype).reshape(elements.shape, order=order)
    assert repr(got.tolist()) == repr(elements.tolist())


class TestStoredBytes:
    @BY_NAME
    def test_elements_are_in_c_order_and_the_byte_order_of_endian(self, case):
        """Guards against every symmetric mistake: a round trip would not show it."""
        for dtype, endian, layout in itertools.product(case.dtypes(), ENDIANS, LAYOUTS):
            with case_of(dtype, endian, layout):
                elements, order = laid_out(case, layout, dtype)
                before = elements.copy()
                codec = Bytes(endian, dtype=dtype)

                encoded = codec.encode(elements)

                assert bytes(encoded) == case.stored(endian, order)
                assert_same(elements, before)
                assert_same(codec.decode(bytes(encoded)), before.reshape(-1))
                # An array that was encoded is decoded in its memory order, as numcodecs does.
                assert_holds(codec.decode(encoded), elements)
                out = np.zeros(elements.shape, dtype, order="F" if elements.flags.fnc else "C")
                assert codec.decode(encoded, out=out) is out
                assert_same(out, before)

    @BY_ENDIAN
    @pytest.mark.parametrize("dtype", ["<M8", ">m8", [("a", ">M8"), ("b", "<m8")]])
    def test_datetimes_without_a_unit_are_swapped(self, dtype, endian):
        """NumPy 2.5 casts them to the other byte order without swapping them."""
        dtype = np.dtype(dtype)
        as_integers = np.dtype(">i8,<i8" if dtype.names else dtype.str[0] + "i8")
        integers = np.array([0, 1, -2, 100, -(2**63)]).astype(as_integers)
        stored = integers.astype(as_integers.newbyteorder(endian)).tobytes()
        codec = Bytes(endian, dtype=dtype)
        assert bytes(codec.encode(integers.view(dtype))) == stored
        assert codec.decode(stored).dtype == dtype
        assert codec.decode(stored).tobytes() == integers.tobytes()
        out = np.zeros(5, as_integers).view(dtype)
        assert codec.decode(stored, out=out).tobytes() == integers.tobytes()

    @BY_ENDIAN
    def test_an_invalid_bool_is_true_in_memory_and_on_disk(self, endian):
        """0xFF is what Fortran writes; NumPy sums and compares it wrongly, others refuse it."""
        invalid = np.array([0, 1, 2, 255], np.uint8)
        codec = Bytes(endian, dtype="?")
        assert bytes(codec.encode(invalid.view("?"))) == b"\0\1\1\1"
        assert bytes(codec.encode(invalid.view("?")[::-1])) == b"\1\1\1\0"
        for out in (None, np.zeros(4, "?"), bytearray(4)):
            assert bytes(codec.decode(invalid, out=out)) == b"\0\1\1\1"
        assert invalid.tolist() == [0, 1, 2, 255]
        dtype = np.dtype([("a", "<u2"), ("b", [("c", "?", (2,)), ("d", "u1")])])
        codec = Bytes("big", dtype=dtype)
        stored = bytes.fromhex("0102 02 ff ff")
        assert codec.decode(stored).tobytes() == bytes.fromhex("0201 01 01 ff")
        assert bytes(codec.encode(np.frombuffer(stored, dtype))) == bytes.fromhex("0201 01 01 ff")

    @pytest.mark.parametrize("dtype", ["<f8", ">f8", "?", "S3", "<M8[s]", SIMPLE.newbyteorder("<")])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_nothing_is_copied_where_nothing_moves(self, dtype, order):
        elements = np.zeros((3, 4), dtype, order=order)
        endian = "big" if elements.dtype.str.startswith(">") else "little"
        codec = Bytes(endian, dtype=dtype)
        encoded = codec.encode(elements)
        assert np.shares_memory(encoded, elements)
        decoded = codec.decode(encoded)
        assert np.shares_memory(decoded, elements)
        assert decoded.flags.writeable

    def test_padding_is_zero(self):
        decoded = Bytes("little", dtype=ALIGNED).decode(b"\xff" * 10 * 3)
        assert decoded.tobytes() == (b"\xff" * 2 + bytes(6) + b"\xff" * 8) * 3


class TestBuffers:
    @BY_NAME
    def test_arrays_and_buffers_of_their_memory_are_encoded_alike(self, case):
        """Zarr v2 stores the memory of a column-major chunk, and numcodecs flattens by it."""
        layouts = "1-d", "C", "F", "3-d F", "empty"
        for endian, layout in itertools.product(ENDIANS, layouts):
            elements, _ = laid_out(case, layout)
            memory = elements.tobytes(order="A")
            codec = Bytes(endian, dtype=elements.dtype)
            stored = ensure_bytes(codec.encode(elements))
            for number, make in enumerate(BUFFERS):
                with case_of(endian, layout, number):
                    given, taken = make(memory), make(stored)
                    assert ensure_bytes(codec.encode(given)) == stored
                    assert_holds(codec.decode(taken), elements)
                    assert (bytes(given), bytes(taken)) == (memory, stored)
            for number, make in enumerate(OUTS):
                with case_of(endian, layout, number):
                    out = make(elements.nbytes)
                    assert codec.decode(stored, out=out) is out
                    assert_holds(out, elements)

    def test_typed_buffers_have_elements(self):
        expected = struct.pack(">3d", 1.5, -2, 1e300)
        typed = array.array("d", [1.5, -2, 1e300])
        for buffer in (typed, memoryview(typed), np.array(typed)):
            assert bytes(Bytes("big").encode(buffer)) == expected
        assert bytes(Bytes("big").encode(np.float64(1.5))) == expected[:8]

    @pytest.mark.parametrize(("dtype", "stored"), [("<u2", b"\0\1\0\0"), ("?", b"\1\0")])
    def test_masked_arrays_are_their_elements(self, dtype, stored):
        masked = np.ma.MaskedArray([[1, 0]], mask=[[True, False]], dtype=dtype)
        assert bytes(Bytes("big", dtype=dtype).encode(masked)) == stored


class TestWithoutDtype:
    """The element size is unknown when decoding: whatever would be guessed is refused."""

    @pytest.mark.parametrize("out", [None, np.zeros(4, np.uint8), bytearray(4), np.zeros(2, "S2")])
    def test_foreign_bytes_of_unknown_elements_are_refused(self, out):
        with pytest.raises(ValueError, match="in .zarray, the array's own dtype"):
            Bytes(FOREIGN_ENDIAN).decode(b"\0\1\0\2", out=out)
        assert out is None or bytes(memoryview(out)) == bytes(4)

    def test_a_typed_out_tells_the_elements(self):
        elements = np.arange(3, dtype="=u2")
        out = Bytes(FOREIGN_ENDIAN).decode(Bytes(FOREIGN_ENDIAN).encode(elements), out=elements * 0)
        assert out.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("dtype", ["u1", "?", "S2", [("a", "u1"), ("b", "S3")], None], ids=str)
    def test_single_bytes_are_not_stored_in_a_foreign_byte_order(self, dtype):
        """An array of Zarr v2 was written, and could not be read again."""
        elements = b"\0\1" if dtype is None else np.zeros(3, dtype)
        for endian in (None, sys.byteorder):
            assert bytes(Bytes(endian).decode(Bytes(endian).encode(elements))) == bytes(elements)
        with pytest.raises(ValueError, match="can't byte-swap elements of unknown data type"):
            Bytes(FOREIGN_ENDIAN).encode(elements)

    @pytest.mark.parametrize("dtype", ["|b1", "int4", [("a", "u1"), ("ok", "|b1")]], ids=str)
    def test_the_output_of_another_codec_is_not_mended(self, dtype):
        """`filters=[PackBits(), Bytes("little", "|b1")]` made every byte of it 0 or 1."""
        packed = numcodecs.PackBits().encode(np.arange(64) % 3 == 0)[1:]
        codec = Bytes("little", dtype)
        for raw in (packed, bytes(packed)):
            with pytest.raises(ValueError, match="a byte that is not a valid value"):
                codec.encode(raw)
        assert bytes(codec.encode(np.zeros(8, np.uint8))) == bytes(8)

    @pytest.mark.parametrize("dtype", ["u2", MIXED])
    def test_an_array_whose_byte_order_would_be_lost_is_refused(self, dtype):
        foreign = np.zeros(3, np.dtype(dtype).newbyteorder(FOREIGN_ENDIAN))
        with pytest.raises(ValueError, match="would be lost") as caught:
            Bytes(sys.byteorder).encode(foreign)
        _, _, advice = str(caught.value).partition("; add ")
        added = json.loads(f"{{{advice.removesuffix(' to the configuration of the bytes codec')}}}")
        codec = Bytes(sys.byteorder, **added)
        assert codec.decode(codec.encode(foreign)).dtype == foreign.dtype
        assert Bytes(FOREIGN_ENDIAN).encode(foreign).nbytes == foreign.nbytes
        for endian in ENDIANS:
            with pytest.raises(ValueError, match="would be lost"):
                Bytes(endian).encode(np.zeros(3, MIXED))


def test_where_the_other_codec_is():
    with pytest.raises(AttributeError, match=r"call numcodecs_bytes\.zarr_codec\.BytesCodec.*; or"):
        _ = numcodecs_bytes.BytesCodec


@pytest.mark.parametrize(
    "entry", json.loads(OLD_BYTES.read_text()), ids=lambda entry: str(entry["config"])
)
def test_chunks_of_version_0_1_0_are_read(entry):
    """Guards against a version that reads it otherwise, or another configuration for the same."""
    codec = numcodecs.get_codec(json.loads(json.dumps(entry["config"])))
    assert isinstance(codec, numcodecs.abc.Codec)
    assert type(codec) is Bytes
    decoded = codec.decode(bytes.fromhex(entry["stored"]))
    assert decoded.tobytes().hex() == entry["elements"]
    assert bytes(codec.encode(decoded)).hex() == entry.get("written", entry["stored"])
    assert json.loads(json.dumps(codec.get_config())) == entry["config"]
    assert eval(repr(codec)) == codec  # noqa: S307 # that it evaluates is the point


class TestConfiguration:
    def test_absent_endian_is_not_given_while_the_constructor_says_little(self):
        assert Bytes.from_config({}).endian is None
        assert Bytes().endian == "little"

    def test_instances_pickle_copy_hash_and_compare(self):
        codec = Bytes("big", dtype=NESTED)
        for same in (pickle.loads(pickle.dumps(codec)), copy.copy(codec), copy.deepcopy(codec)):  # noqa: S301
            assert same == codec
            assert hash(same) == hash(codec)
            assert same.dtype == codec.dtype
        assert codec != Bytes("little", dtype=NESTED)
        assert codec != Bytes("big")
        assert codec != numcodecs.Zlib()

    def test_titles_and_list_names_of_numpys_descr_are_read(self):
        descr = json.loads(json.dumps(TITLED.newbyteorder("<").descr))
        assert Bytes("big", dtype=descr) == Bytes("big", dtype=SIMPLE.newbyteorder("<"))

    @pytest.mark.parametrize(
        ("config", "error", "message"),
        [
            ({"endian": "native"}, ValueError, "endian must be one of .* got 'native'"),
            ({"endian": True}, TypeError, "endian must be one of .* got True"),
            ({"edian": "big"}, ValueError, "no configuration key 'edian'; expected only 'id', "),
            ({"dtype": "f9"}, TypeError, "dtype must be a data type .* got 'f9'"),
            ({"dtype": [["a"]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": [["a", None]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": [["", "<i4"]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": [["a", "<i4"], ["a", "<i4"]]}, TypeError, "dtype must be a data type"),
            ({"dtype": {"names": ["a"], "formats": ["<i2"], "itemsize": 2**70}}, TypeError, "must"),
            ({"dtype": DEEP}, TypeError, "dtype must be a data type"),
            ({"dtype": []}, ValueError, "at least one byte long"),
            ({"dtype": "S"}, ValueError, "at least one byte long"),
            ({"dtype": "(2,)i4"}, ValueError, "replace a subarray type with its base type"),
            ({"dtype": "longdouble"}, TypeError, "cannot store data type .* of ml_dtypes$"),
            ({"dtype": [["a", "<i4"], ["b", "|O"]]}, TypeError, "cannot store data type"),
            ({"dtype": np.dtypes.StringDType()}, TypeError, "cannot store data type"),
        ],
        ids=reprlib.repr,
    )
    def test_bad_configuration_is_refused(self, config, error, message):
        with pytest.raises(error, match=message):
            numcodecs.get_codec({"id": "bytes", **config})


class TestBadInput:
    @pytest.mark.parametrize("num_bytes", [1, 7, 9, 15])
    def test_bytes_that_do_not_divide_into_elements(self, num_bytes):
        codec = Bytes("big", dtype="<f8")
        message = f"got {num_bytes} bytes, expected a multiple of 8"
        for act in (codec.decode, codec.encode):
            with pytest.raises(ValueError, match=message):
                act(bytes(num_bytes))

    @pytest.mark.parametrize("num_bytes", [0, 8, 15, 17, 24, 32])
    @pytest.mark.parametrize("make_out", [lambda: np.ones((1, 2)), lambda: bytearray(b"x" * 16)])
    def test_out_of_another_size_is_left_alone(self, num_bytes, make_out):
        out = make_out()
        for codec in (Bytes("big", dtype="f8"), Bytes(sys.byteorder)):
            message = f"out holds 16 bytes, but the chunk decodes to {num_bytes}: "
            if codec.dtype is not None:
                elements = "no whole number of" if num_bytes % 8 else f"an out of {num_bytes // 8}"
                message += f".* {elements} elements of .?f"
            with pytest.raises(ValueError, match=message):
                codec.decode(bytes(num_bytes), out=out)
        assert bytes(out) == bytes(make_out())

    @pytest.mark.parametrize(
        ("dtype", "out", "error", "message"),
        [
            ("f8", np.ones(1, "i8"), TypeError, "got int64, expected float64"),
            ("f8", bytes(8), ValueError, "out must be writable, .*pass a writable array"),
            ("f8", np.broadcast_to(np.float64(1), 1), ValueError, "out must be writable"),
            ("f8", np.float64(1), ValueError, "out must be writable"),
            ("f8", np.zeros((2, 8), "u1")[:, ::2], ValueError, "untyped out must be contiguous"),
            ("f8", bytearray(9), ValueError, "out holds 9 bytes, expected a multiple of 8"),
            # Bytes in place of objects are pointers to anywhere.
            ("f8", np.array([1], object), TypeError, "cannot store data type object.* vlen-utf8"),
            (None, np.array(["a"], object), TypeError, "cannot store data type object"),
        ],
        ids=str,
    )
    def test_out_of_another_kind_is_left_alone(self, dtype, out, error, message):
        before = copy.copy(out)
        with pytest.raises(error, match=message):
            Bytes(sys.byteorder, dtype=dtype).decode(bytes(8), out=out)
        assert np.array_equal(out, before)

    @BY_NAME
    def test_missing_endian(self, case):
        codec = Bytes(None, dtype=case.dtype)
        if not case.has_byte_order:
            assert bytes(codec.encode(case.array())) == case.stored("little")
            return
        for act in (
            lambda: codec.encode(case.array()),
            lambda: Bytes(None).encode(case.array()),
            lambda: codec.decode(case.stored("little")),
            lambda: Bytes(None).decode(case.stored("little"), out=case.array()),
        ):
            with pytest.raises(ValueError, match="`endian` configuration needs to be specified"):
                act()

    @pytest.mark.parametrize(
        ("dtype", "other"),
        [
            *[("<f8", other) for other in (">f8", "<i8", "<M8[s]", [("a", "<f8")], "i1", "V8")],
            (SIMPLE, [("b", "f8"), ("a", "i2")]),
            (SIMPLE, [("a", "i2"), ("c", "f8")]),
            (SIMPLE, [("a", "i2")]),
        ],
        ids=str,
    )
    def test_an_array_of_another_dtype_is_not_reinterpreted(self, dtype, other):
        """A v2 array of another byte order than its filter's would read back wrong."""
        with pytest.raises(TypeError, match="not that of the codec: got .*, expected "):
            Bytes("big", dtype=dtype).encode(np.zeros(8, other))

    def test_an_array_of_another_byte_order_in_zarr(self):
        """It was told to convert values with astype, which zarr undoes; and no byte order."""
        filters = [Bytes("big", dtype=">f4")]
        array = zarr.create_array({}, shape=4, dtype="<f4", filters=filters, zarr_format=2)
        said = (
            'got "<f4", expected ">f4"; set dtype in the configuration of the bytes codec to "<f4"'
        )
        for values in (np.ones(4, "<f4"), np.ones(4, ">f4")):
            with pytest.raises(TypeError, match=said):
                array[:] = values

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ([1, 2], "expected an array or an object that supports the buffer protocol"),
            ("text", "expected an array or an object that supports the buffer protocol"),
            (np.array(["a", None], object), "cannot store data type|array of Python objects"),
        ],
    )
    def test_lists_text_and_python_objects(self, given, message):
        codec = Bytes("big", dtype="<f8")
        for act in (Bytes("big").encode, codec.encode, codec.decode):
            with pytest.raises(TypeError, match=message):
                act(given)
        with pytest.raises(TypeError, match="expected out to be an array"):
            codec.decode(bytes(16), out=[0, 0])


@pytest.mark.matrix
@BY_ENDIAN
@pytest.mark.parametrize("role", ["filters", "compressor"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<i4", ">i4", "<c8", ">M8[s]", "|b1", "|S3", ">U2", "<i2,>f8"])
def test_zarr_v2_round_trip_and_bytes_on_disk(tmp_path, dtype, order, role, endian):
    codec = Bytes(endian, dtype=dtype)
    data = np.arange(24).reshape(4, 6).astype("i8").astype(dtype)
    settings = {"shape": (4, 6), "chunks": (3, 4), "order": order, "fill_value": None}
    filters, compressor = ([codec], None) if role == "filters" else (None, codec)
    settings |= {"zarr_format": 2, "filters": filters, "compressors": compressor}
    zarr.create_array(tmp_path, dtype=data.dtype, **settings)[:] = data

    assert json.loads((tmp_path / ".zarray").read_text())[role] == (
        [codec.get_config()] if role == "filters" else codec.get_config()
    )
    chunk = data[:3, :4].astype(data.dtype.newbyteorder(endian))
    assert (tmp_path / "0.0").read_bytes() == chunk.tobytes(order=order)
    opened = zarr.open_array(tmp_path, mode="r+")
    assert flat_bytes(opened[:]) == flat_bytes(data)
    opened[1:3, 2:5] = data[:2, :3]
    data[1:3, 2:5] = data[:2, :3].copy()
    assert flat_bytes(zarr.open_array(tmp_path)[:]) == flat_bytes(data)
