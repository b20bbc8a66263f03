"""Bytes, the numcodecs codec: literal bytes, layouts, buffers, refusals.

And what numcodecs asks of a codec, as its own tests check each of theirs: every way in with every
way out, the memory order that it goes by, chains with other codecs, bytes stored by 0.1.0.
"""

import array
import copy
import json
import mmap
import pickle
import struct
from pathlib import Path

import numcodecs
import numcodecs.abc
import numpy as np
import pytest
import zarr
from data_types import (
    CASES,
    ENDIANS,
    MIXED,
    NESTED,
    PADDED_NESTED,
    SIMPLE,
    TITLED,
    flat_bytes,
    laid_out,
)
from helpers import BY_ENDIAN, BY_LAYOUT
from numcodecs.compat import ensure_bytes, ensure_ndarray

from numcodecs_bytes import Bytes
from numcodecs_bytes._core.dtypes import NATIVE_ENDIAN, has_byte_order

FOREIGN_ENDIAN = "big" if NATIVE_ENDIAN == "little" else "little"
BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
OLD_BYTES = Path(__file__).parent / "fixtures" / "bytes_0.1.0.json"

# Ways to hand the memory of an array on, each with a buffer of its own kind.
BUFFERS = [
    bytes,
    bytearray,
    memoryview,
    lambda memory: memoryview(bytearray(memory)),
    lambda memory: array.array("B", memory),
    lambda memory: np.frombuffer(memory, np.uint8),
    lambda memory: np.frombuffer(memory, np.uint8).reshape(1, -1),
]
OUTS = [
    bytearray,
    lambda num_bytes: memoryview(bytearray(num_bytes)),
    lambda num_bytes: array.array("B", bytes(num_bytes)),
    lambda num_bytes: np.zeros(num_bytes, np.uint8),
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
    @pytest.mark.matrix
    @BY_LAYOUT
    @BY_ENDIAN
    @BY_NAME
    def test_elements_are_in_c_order_and_the_byte_order_of_endian(self, case, endian, layout):
        """Guards against every symmetric mistake: a round trip would not show it."""
        elements, order = laid_out(case, layout)
        before = elements.copy()
        codec = Bytes(endian, dtype=elements.dtype)

        encoded = codec.encode(elements)

        assert bytes(encoded) == case.stored(endian, order)
        assert_same(elements, before)
        assert_same(codec.decode(bytes(encoded)), before.reshape(-1))

    @pytest.mark.matrix
    @BY_LAYOUT
    @BY_ENDIAN
    @pytest.mark.parametrize(
        "case",
        [c for c in CASES if has_byte_order(c.dtype) and not c.native_only],
        ids=lambda c: c.name,
    )
    def test_the_byte_order_in_memory_makes_no_difference(self, case, endian, layout):
        swapped = case.dtype.newbyteorder("S")
        elements, order = laid_out(case, layout, swapped)
        codec = Bytes(endian, dtype=swapped)

        assert bytes(codec.encode(elements)) == case.stored(endian, order)
        assert_same(codec.decode(case.stored(endian, order)), elements.reshape(-1))

    @BY_ENDIAN
    @BY_NAME
    def test_a_native_array_needs_no_dtype_to_be_encoded(self, case, endian):
        native = case.array(case.dtype.newbyteorder("="))
        endian = endian if has_byte_order(case.dtype) else None
        assert bytes(Bytes(endian).encode(native)) == case.stored(endian or "little")

    @BY_ENDIAN
    def test_unused_bits_survive(self, endian):
        """NaN payloads, signalling NaNs and code points beyond Unicode are bytes like others."""
        for code, dtype, bits in [
            ("I", "f4", [0x7F800001, 0xFFC12345]),
            ("Q", "f8", [0x7FF0000000000001, 0xFFF8DEADBEEF0001]),
            ("H", "f2", [0x7C01, 0xFE12]),
            ("I", "U1", [0xFFFFFFFF, 0x0011FFFF]),
        ]:
            order = {"little": "<", "big": ">"}
            memory = struct.pack(f"={len(bits)}{code}", *bits)
            stored = struct.pack(f"{order[endian]}{len(bits)}{code}", *bits)
            codec = Bytes(endian, dtype=dtype)
            assert bytes(codec.encode(np.frombuffer(memory, dtype))) == stored
            assert codec.decode(stored).tobytes() == memory

    @BY_ENDIAN
    @pytest.mark.parametrize("order", ["<", ">"])
    @pytest.mark.parametrize("kind", ["M8", "m8"])
    def test_datetimes_without_a_unit_are_swapped(self, kind, order, endian):
        """NumPy 2.5 casts them to the other byte order without swapping them."""
        values = [0, 1, -2, 100, -(2**63)]
        memory = struct.pack(f"{order}5q", *values)
        stored = struct.pack({"little": "<5q", "big": ">5q"}[endian], *values)
        dtype = np.dtype(order + kind)
        elements = np.frombuffer(memory, np.uint8).view(dtype)
        codec = Bytes(endian, dtype=dtype)
        assert bytes(codec.encode(elements)) == stored
        assert codec.decode(stored).dtype == dtype
        assert codec.decode(stored).tobytes() == memory
        out = np.zeros(5, "i8").view(dtype)
        assert codec.decode(stored, out=out).tobytes() == memory
        structure = np.dtype([("a", dtype), ("b", "u1")])
        codec = Bytes(endian, dtype=structure)
        memory, stored = memory[8:16] + b"x", stored[8:16] + b"x"
        assert bytes(codec.encode(np.frombuffer(memory, structure))) == stored
        assert codec.decode(stored).tobytes() == memory

    @BY_ENDIAN
    def test_an_invalid_bool_is_true_in_memory_and_on_disk(self, endian):
        """0xFF is what Fortran writes; NumPy sums and compares it wrongly, others refuse it."""
        invalid = np.array([0, 1, 2, 255], np.uint8)
        codec = Bytes(endian, dtype="?")
        for encoded in (
            codec.encode(invalid.view("?")),
            codec.encode(invalid.view("?")[::-1])[::-1],
        ):
            assert bytes(encoded) == b"\0\1\1\1"
        assert codec.decode(invalid).tobytes() == b"\0\1\1\1"
        assert codec.decode(invalid, out=np.zeros(4, "?")).tobytes() == b"\0\1\1\1"
        assert codec.decode(invalid, out=bytearray(4)) == b"\0\1\1\1"
        assert invalid.tolist() == [0, 1, 2, 255]

    def test_an_invalid_bool_in_a_structure_is_true(self):
        dtype = np.dtype([("a", "<u2"), ("b", [("c", "?", (2,)), ("d", "u1")])])
        codec = Bytes("big", dtype=dtype)
        stored = bytes.fromhex("0102 02 ff ff")
        assert codec.decode(stored).tobytes() == bytes.fromhex("0201 01 01 ff")
        assert bytes(codec.encode(np.frombuffer(stored, dtype))) == bytes.fromhex("0201 01 01 ff")


class TestColumnMajor:
    @pytest.mark.matrix
    @BY_ENDIAN
    @pytest.mark.parametrize("layout", ["F", "3-d F"])
    @BY_NAME
    def test_a_column_major_array_keeps_its_memory_order(self, case, endian, layout):
        """Zarr v2 stores the memory order of `order: "F"` chunks, numcodecs flattens by it."""
        elements, order = laid_out(case, layout)
        codec = Bytes(endian, dtype=elements.dtype)

        encoded = codec.encode(elements)

        assert encoded.shape == elements.shape
        assert encoded.flags.f_contiguous
        assert bytes(encoded) == case.stored(endian, order)
        in_memory = np.arange(12).reshape(elements.shape).ravel(order="F")
        assert ensure_bytes(encoded) == case.stored(endian, [order[i] for i in in_memory])
        assert_same(codec.decode(encoded), elements.ravel(order="F"))
        out = np.zeros(elements.shape, elements.dtype, order="F")
        assert codec.decode(encoded, out=out) is out
        assert_same(out, elements)

    def test_c_order_bytes_do_not_belong_into_a_column_major_out(self):
        """The documented price of numcodecs' convention: memory order in, memory order out."""
        elements = np.asfortranarray(np.arange(6, dtype="<u2").reshape(2, 3))
        codec = Bytes("big", dtype="<u2")
        out = codec.decode(bytes(codec.encode(elements)), out=np.zeros((2, 3), "<u2", order="F"))
        assert out.tolist() == [[0, 2, 4], [1, 3, 5]]


class TestNoCopy:
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

    def test_padding_is_never_old_memory(self):
        codec = Bytes("little", dtype=PADDED_NESTED)
        decoded = codec.decode(b"\xff" * 7 * 3)
        assert decoded.tobytes().count(b"\xff") == 7 * 3
        assert decoded.tobytes().count(b"\0") == (32 - 7) * 3


class TestBuffers:
    STORED = struct.pack(">3d", 1.5, -2, 1e300)
    VALUES = (1.5, -2.0, 1e300)

    def buffers(self, tmp_path):
        file = tmp_path / "buffer"
        file.write_bytes(self.STORED)
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        yield self.STORED
        yield bytearray(self.STORED)
        yield memoryview(self.STORED)
        yield memoryview(b"x" + self.STORED)[1:]
        yield array.array("B", self.STORED)
        yield mapped
        yield np.frombuffer(self.STORED, ">f8")
        yield np.frombuffer(self.STORED, ">f8").reshape(3, 1)
        yield np.repeat(np.frombuffer(self.STORED, np.uint8), 2)[::2]

    def test_any_buffer_is_decoded(self, tmp_path):
        codec = Bytes("big", dtype="<f8")
        for buffer in self.buffers(tmp_path):
            decoded = codec.decode(buffer)
            assert decoded.dtype == "<f8"
            assert tuple(decoded.tolist()) == self.VALUES

    def test_any_buffer_is_encoded(self, tmp_path):
        """Bytes and uint8 are the memory of elements of dtype, here already big-endian."""
        codec = Bytes("little", dtype=">f8")
        expected = struct.pack("<3d", *self.VALUES)
        for buffer in self.buffers(tmp_path):
            assert bytes(codec.encode(buffer)) == expected

    def test_typed_buffers_have_elements(self):
        expected = struct.pack(">3d", *self.VALUES)
        typed = array.array("d", self.VALUES)
        for buffer in (typed, memoryview(typed), np.array(self.VALUES)):
            assert bytes(Bytes("big").encode(buffer)) == expected
        assert bytes(Bytes("big").encode(np.float64(1.5))) == expected[:8]

    @pytest.mark.parametrize(
        "make_out",
        [
            lambda: np.zeros(6, "<i4"),
            lambda: np.zeros((2, 3), "<i4"),
            lambda: np.zeros((2, 6), "<i4")[:, ::2],
            lambda: np.zeros((3, 2), ">i4")[::-1],
            lambda: np.zeros((6, 1), ">i4"),
        ],
    )
    def test_an_array_out_is_filled_in_c_order(self, make_out):
        stored = struct.pack(">6i", *range(6))
        for codec in (Bytes("big", dtype="<i4"), Bytes("big")):
            out = make_out()
            assert codec.decode(stored, out=out) is out
            assert out.ravel().tolist() == list(range(6))

    @pytest.mark.parametrize(
        "make_out",
        [
            lambda: bytearray(24),
            lambda: memoryview(bytearray(24)),
            lambda: array.array("B", bytes(24)),
            lambda: mmap.mmap(-1, 24),
            lambda: np.zeros((4, 6), np.uint8),
            lambda: np.zeros(3, "V8"),
        ],
    )
    def test_an_untyped_out_gets_the_memory_of_the_elements(self, make_out):
        out = make_out()
        assert Bytes("big", dtype="<i4").decode(struct.pack(">6i", *range(6)), out=out) is out
        assert bytes(memoryview(out)) == struct.pack("<6i", *range(6))

    def test_the_memory_of_padded_elements_is_padded_both_ways(self):
        dtype = np.dtype([("a", "u1"), ("b", "<i4")], align=True)
        elements = np.array([(i, -i) for i in range(5)], dtype)
        codec = Bytes("big", dtype)
        stored = codec.encode(elements.view(np.uint8))
        assert bytes(stored) == b"".join(struct.pack(">Bi", i, -i) for i in range(5))
        assert codec.decode(stored).tolist() == elements.tolist()
        out = bytearray(40)
        assert np.frombuffer(codec.decode(stored, out=out), dtype).tolist() == elements.tolist()

    def test_out_may_be_the_input(self):
        stored = bytearray(struct.pack(">6i", *range(6)))
        Bytes("big", dtype="<i4").decode(stored, out=stored)
        assert stored == struct.pack("<6i", *range(6))

    def test_an_input_buffer_is_never_changed(self):
        stored = bytearray(struct.pack(">6i", *range(6)))
        codec = Bytes("big", dtype="<i4")
        codec.decode(stored)
        codec.encode(stored)
        assert stored == struct.pack(">6i", *range(6))

    def test_masked_arrays_and_matrices_are_their_elements(self):
        masked = np.ma.MaskedArray([[1, 2]], mask=[[True, False]], dtype="<u2")
        assert bytes(Bytes("big", dtype="<u2").encode(masked)) == b"\0\1\0\2"


class TestWithoutDtype:
    """The element size is unknown when decoding: whatever would be guessed is refused."""

    def test_the_machines_own_byte_order_gives_the_bytes(self):
        elements = np.arange(3, dtype="=u2")
        codec = Bytes(NATIVE_ENDIAN)
        assert codec.decode(codec.encode(elements)).tobytes() == elements.tobytes()
        assert codec.decode(codec.encode(b"abc")).tobytes() == b"abc"
        assert Bytes(None).decode(Bytes(None).encode(b"abc")).tobytes() == b"abc"

    @pytest.mark.parametrize(
        "out",
        [
            None,
            np.zeros(4, np.uint8),
            bytearray(4),
            np.zeros(2, "V2"),
            np.zeros(2, "S2"),
            np.zeros(2, [("a", "V2")]),
        ],
    )
    def test_foreign_bytes_of_unknown_elements_are_refused(self, out):
        with pytest.raises(ValueError, match=f"got endian {FOREIGN_ENDIAN!r} without dtype"):
            Bytes(FOREIGN_ENDIAN).decode(b"\0\1\0\2", out=out)
        assert out is None or bytes(memoryview(out)) == bytes(4)

    def test_a_typed_out_tells_the_elements(self):
        elements = np.arange(3, dtype="=u2")
        out = Bytes(FOREIGN_ENDIAN).decode(Bytes(FOREIGN_ENDIAN).encode(elements), out=elements * 0)
        assert out.tolist() == [0, 1, 2]

    @pytest.mark.parametrize("dtype", ["u1", "?", "i1", "S2", [("a", "u1"), ("b", "S3")]], ids=str)
    def test_single_bytes_are_not_stored_in_a_foreign_byte_order(self, dtype):
        """An array of Zarr v2 was written, and could not be read again."""
        elements = np.zeros(3, dtype)
        assert bytes(Bytes(None).encode(elements)) == elements.tobytes()
        assert bytes(Bytes(NATIVE_ENDIAN).encode(elements)) == elements.tobytes()
        with pytest.raises(ValueError, match="can't byte-swap elements of unknown data type"):
            Bytes(FOREIGN_ENDIAN).encode(elements)
        assert bytes(Bytes(FOREIGN_ENDIAN, dtype).encode(elements)) == elements.tobytes()

    @pytest.mark.parametrize("dtype", ["|b1", "int4", [("a", "u1"), ("ok", "|b1")]], ids=str)
    def test_the_output_of_another_codec_is_not_mended(self, dtype):
        """`filters=[PackBits(), Bytes("little", "|b1")]` made every byte of it 0 or 1."""
        packed = numcodecs.PackBits().encode(np.arange(64) % 3 == 0)[1:]
        codec = Bytes("little", dtype)
        for raw in (packed, bytes(packed), memoryview(packed)):
            with pytest.raises(ValueError, match="a byte that is not a valid value"):
                codec.encode(raw)
        valid = np.zeros(8, np.uint8)
        assert bytes(codec.encode(valid)) == bytes(8)

    @pytest.mark.parametrize("raw", [b"\0\1", bytearray(2), memoryview(b"\0\1")])
    def test_raw_bytes_are_not_stored_in_a_foreign_byte_order(self, raw):
        with pytest.raises(ValueError, match="can't byte-swap elements of unknown data type"):
            Bytes(FOREIGN_ENDIAN).encode(raw)

    @pytest.mark.parametrize("dtype", ["u2", MIXED])
    def test_an_array_whose_byte_order_would_be_lost_is_refused(self, dtype):
        foreign = np.zeros(3, np.dtype(dtype).newbyteorder(FOREIGN_ENDIAN))
        with pytest.raises(ValueError, match=r'would be lost.*add "dtype": '):
            Bytes(NATIVE_ENDIAN).encode(foreign)
        assert Bytes(FOREIGN_ENDIAN).encode(foreign).nbytes == foreign.nbytes

    def test_a_structure_of_mixed_byte_orders_is_refused_in_both(self):
        for endian in ENDIANS:
            with pytest.raises(ValueError, match="would be lost"):
                Bytes(endian).encode(np.zeros(3, MIXED))


class TestConfiguration:
    @pytest.mark.parametrize(
        ("config", "dtype"),
        [
            ({"id": "bytes"}, None),
            ({"id": "bytes", "endian": "big"}, None),
            ({"id": "bytes", "endian": "big", "dtype": "<f8"}, np.dtype("<f8")),
            ({"id": "bytes", "endian": "little", "dtype": ">M8[15m]"}, np.dtype(">M8[15m]")),
            ({"id": "bytes", "dtype": "|S7"}, np.dtype("S7")),
            (
                {"id": "bytes", "endian": "big", "dtype": [["a", "<i2"], ["b", ">f8", [2, 3]]]},
                np.dtype([("a", "<i2"), ("b", ">f8", (2, 3))]),
            ),
            (
                {"id": "bytes", "endian": "big", "dtype": [["a", [["b", "|u1"], ["c", "<U2"]]]]},
                np.dtype([("a", [("b", "u1"), ("c", "<U2")])]),
            ),
        ],
    )
    def test_json_round_trip(self, config, dtype):
        codec = numcodecs.get_codec(json.loads(json.dumps(config)))
        assert type(codec) is Bytes
        assert codec.dtype == dtype
        assert json.loads(json.dumps(codec.get_config())) == config
        assert eval(repr(codec)) == codec  # noqa: S307 # that it evaluates is the point

    @BY_NAME
    def test_every_data_type_is_written_as_json(self, case):
        codec = Bytes("big", dtype=case.dtype)
        again = numcodecs.get_codec(json.loads(json.dumps(codec.get_config())))
        assert again == codec
        assert bytes(again.encode(again.decode(case.stored("big")))) == case.stored("big")

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
            ({"endian": "middle"}, ValueError, "endian must be one of .* got 'middle'"),
            ({"endian": "Big"}, ValueError, "got 'Big'"),
            ({"endian": ">"}, ValueError, "got '>'"),
            ({"endian": ""}, ValueError, "got ''"),
            ({"endian": 1}, TypeError, "endian must be one of .* got 1"),
            ({"endian": True}, TypeError, "got True"),
            ({"endian": ["big"]}, TypeError, r"got \['big'\]"),
            (
                {"edian": "big"},
                ValueError,
                "no configuration key 'edian'; expected only 'id', 'endian', 'dtype'",
            ),
            ({"dtype": "f9"}, TypeError, "dtype must be a data type .* got 'f9'"),
            ({"dtype": {}}, ValueError, "at least one byte long"),
            ({"dtype": 8}, TypeError, "dtype must be a data type"),
            ({"dtype": [["a"]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": [["a", None]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": [["", "<i4"]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": [[3, "<i4"]]}, TypeError, r"expected \[name, type\]"),
            ({"dtype": "longdouble"}, TypeError, "cannot store data type"),
            ({"dtype": [["a", "<i4", "x"]]}, TypeError, "dtype must be a data type"),
            ({"dtype": [["a", "<i4"], ["a", "<i4"]]}, TypeError, "dtype must be a data type"),
            ({"dtype": []}, ValueError, "at least one byte long"),
            ({"dtype": "S"}, ValueError, "at least one byte long"),
            ({"dtype": "U0"}, ValueError, "at least one byte long"),
            ({"dtype": "(2,)i4"}, ValueError, "replace a subarray type by its base type"),
            ({"dtype": "O"}, TypeError, "cannot store data type object"),
            ({"dtype": [["a", "<i4"], ["b", "|O"]]}, TypeError, "cannot store data type"),
            ({"dtype": np.dtypes.StringDType()}, TypeError, "cannot store data type"),
        ],
        ids=repr,
    )
    def test_bad_configuration_is_refused(self, config, error, message):
        with pytest.raises(error, match=message):
            numcodecs.get_codec({"id": "bytes", **config})


class TestBadInput:
    @pytest.mark.parametrize("num_bytes", [1, 7, 9, 15])
    def test_bytes_that_do_not_divide_into_elements(self, num_bytes):
        codec = Bytes("big", dtype="<f8")
        for act in (codec.decode, codec.encode):
            with pytest.raises(
                ValueError, match=f"got {num_bytes} bytes, expected a multiple of 8"
            ):
                act(bytes(num_bytes))

    @pytest.mark.parametrize("num_bytes", [0, 8, 15, 17, 24, 32])
    @pytest.mark.parametrize("make_out", [lambda: np.ones((1, 2)), lambda: bytearray(b"x" * 16)])
    def test_out_of_another_size_is_left_alone(self, num_bytes, make_out):
        out = make_out()
        for codec in (Bytes("big", dtype="f8"), Bytes(NATIVE_ENDIAN)):
            with pytest.raises(ValueError, match=f"got {num_bytes} bytes, expected 16"):
                codec.decode(bytes(num_bytes), out=out)
        assert bytes(out) == bytes(make_out())

    def test_out_of_another_type_is_left_alone(self):
        out = np.ones(2, "i8")
        with pytest.raises(TypeError, match="got int64, expected float64"):
            Bytes("big", dtype="f8").decode(bytes(16), out=out)
        assert out.tolist() == [1, 1]

    def test_read_only_out(self):
        for out in (bytes(8), np.broadcast_to(np.float64(1), 1), np.float64(1)):
            with pytest.raises(ValueError, match="out must be writable"):
                Bytes("big", dtype="f8").decode(bytes(8), out=out)

    def test_untyped_out_without_elements(self):
        codec = Bytes("big", dtype="f8")
        with pytest.raises(ValueError, match="untyped out must be contiguous"):
            codec.decode(bytes(8), out=np.zeros((2, 8), np.uint8)[:, ::2])
        with pytest.raises(ValueError, match="do not hold a whole number of elements: got 9"):
            codec.decode(bytes(8), out=bytearray(9))

    @BY_NAME
    def test_missing_endian(self, case):
        codec = Bytes(None, dtype=case.dtype)
        if not has_byte_order(case.dtype):
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
        "dtype", [">f8", "<f4", "<i8", "<M8[s]", [("a", "<f8")], "i1", "V8", "S8"]
    )
    def test_an_array_of_another_dtype_is_not_reinterpreted(self, dtype):
        """A v2 array of another byte order than its filter's would read back wrong."""
        with pytest.raises(TypeError, match="not that of the codec: got .*, expected float64"):
            Bytes("big", dtype="<f8").encode(np.zeros(8, dtype))

    @pytest.mark.parametrize(
        "fields", [[("b", "<f8"), ("a", "<i2")], [("a", "<i2"), ("c", "<f8")], [("a", "<i2")]]
    )
    def test_a_structure_with_other_fields_is_not_reinterpreted(self, fields):
        with pytest.raises(TypeError, match="not that of the codec"):
            Bytes("big", dtype=SIMPLE.newbyteorder("<")).encode(np.zeros(3, fields))

    @pytest.mark.parametrize(
        "elements",
        [
            np.array(["a", None], object),
            np.zeros(2, [("a", "O")]),
            np.zeros(2, "longdouble"),
            np.array(["a"], np.dtypes.StringDType()),
        ],
    )
    def test_python_objects_and_variable_size(self, elements):
        for codec in (Bytes("big"), Bytes("big", dtype="<f8")):
            with pytest.raises(TypeError, match="cannot store data type"):
                codec.encode(elements)

    @pytest.mark.parametrize("buffer", [[1, 2], "text", 3, None])
    def test_objects_without_a_buffer(self, buffer):
        for act in (Bytes("big").encode, Bytes("big", dtype="<f8").decode):
            with pytest.raises(
                TypeError, match="expected an array or an object that supports the buffer protocol"
            ):
                act(buffer)


class TestEveryWayInAndOut:
    @pytest.mark.matrix
    @pytest.mark.parametrize("layout", ["1-d", "C", "F", "3-d F", "empty"])
    @BY_ENDIAN
    @BY_NAME
    def test_arrays_and_buffers_of_their_memory_are_encoded_alike(self, case, endian, layout):
        """Guards against a column-major array whose bytes and whose buffer are stored apart."""
        elements, _ = laid_out(case, layout)
        codec = Bytes(endian, dtype=elements.dtype)
        stored = ensure_bytes(codec.encode(elements))
        for make in BUFFERS:
            assert ensure_bytes(codec.encode(make(elements.tobytes(order="A")))) == stored
            assert_holds(codec.decode(make(stored)), elements)
        for out in (np.zeros_like(elements), *(make(elements.nbytes) for make in OUTS)):
            assert codec.decode(stored, out=out) is out
            assert_holds(out, elements)

    @pytest.mark.parametrize("dtype", [None, "<f8"])
    def test_nothing_is_decoded_into_objects(self, dtype):
        """numcodecs asks for a TypeError: bytes in their place are pointers to anywhere."""
        out = np.array([1, "a", None], object)
        with pytest.raises(TypeError, match="cannot store data type object"):
            Bytes("little", dtype=dtype).decode(bytes(24), out=out)
        assert out.tolist() == [1, "a", None]

    @pytest.mark.parametrize(
        "make",
        [
            lambda memory: array.array("b", memory),
            lambda memory: memoryview(memory).cast("b"),
            lambda memory: memoryview(memory).cast("c"),
        ],
        ids=["array.array b", "memoryview b", "memoryview c"],
    )
    @pytest.mark.parametrize("way", ["encode", "out"])
    def test_a_buffer_of_single_bytes_is_memory_whatever_it_calls_them(self, make, way):
        """numcodecs' own tests hand every codec an array.array("b"), signed."""
        elements = np.array([1.5, -2.0])
        codec = Bytes("big", dtype="<f8")
        if way == "encode":
            assert bytes(codec.encode(make(elements.tobytes()))) == elements.astype(">f8").tobytes()
        else:
            out = make(bytearray(16))
            codec.decode(codec.encode(elements), out=out)
            assert bytes(out) == elements.tobytes()


class TestAmongOtherCodecs:
    @pytest.mark.matrix
    @pytest.mark.parametrize("layout", ["C", "F", "3-d F", "strided", "broadcast"])
    @BY_NAME
    def test_encoded_chunks_are_taken_by_other_codecs(self, case, layout):
        """Guards against a result without a plain buffer, or with its memory in another order."""
        elements, _ = laid_out(case, layout)
        order = "F" if elements.flags.f_contiguous else "C"
        codec = Bytes("big", dtype=elements.dtype)
        for other in (numcodecs.Zlib(), numcodecs.Blosc(), numcodecs.Zstd(), numcodecs.CRC32()):
            stored = other.decode(other.encode(codec.encode(elements)))
            out = np.zeros(elements.shape, elements.dtype, order=order)
            codec.decode(stored, out=out)
            assert repr(out.tolist()) == repr(elements.tolist())

    def test_numcodecs_finds_a_codec(self):
        codec = numcodecs.get_codec({"id": "bytes", "endian": "big"})
        assert isinstance(codec, numcodecs.abc.Codec)
        assert numcodecs.registry.codec_registry["bytes"] is type(codec) is Bytes


@pytest.mark.parametrize(
    "entry", json.loads(OLD_BYTES.read_text()), ids=lambda entry: str(entry["config"])
)
def test_chunks_of_version_0_1_0_are_read(entry):
    """Guards against a version that reads it otherwise, or another configuration for the same."""
    codec = numcodecs.get_codec(entry["config"])
    decoded = codec.decode(bytes.fromhex(entry["stored"]))
    assert decoded.tobytes().hex() == entry["elements"]
    assert bytes(codec.encode(decoded)).hex() == entry.get("written", entry["stored"])
    assert codec.get_config() == entry["config"]


class TestZarrV2:
    """A v2 array that names the codec as a filter or as the compressor."""

    @BY_ENDIAN
    @pytest.mark.parametrize("role", ["filters", "compressor"])
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["<i4", ">i4", "<c8", ">M8[s]", "|b1", "|S3", ">U2"])
    def test_round_trip_and_bytes_on_disk(self, tmp_path: Path, dtype, order, role, endian):
        codec = Bytes(endian, dtype=dtype)
        data = np.arange(24).reshape(4, 6).astype("i8").astype(dtype)
        zarr_array = zarr.create_array(
            tmp_path,
            shape=data.shape,
            chunks=(3, 4),
            dtype=dtype,
            order=order,
            zarr_format=2,
            fill_value=None,
            **(
                {"filters": [codec], "compressors": None}
                if role == "filters"
                else {"compressors": codec, "filters": None}
            ),
        )
        zarr_array[:] = data

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

    def test_a_structured_array(self, tmp_path):
        dtype = np.dtype([("a", "<i2"), ("b", ">f8")])
        zarr_array = zarr.create_array(
            tmp_path,
            shape=(2,),
            dtype=dtype,
            zarr_format=2,
            filters=[Bytes("big", dtype=dtype)],
            compressors=None,
            fill_value=None,
        )
        zarr_array[:] = np.array([(1, 1.5), (2, -2)], dtype)
        assert (tmp_path / "0").read_bytes() == struct.pack(">hdhd", 1, 1.5, 2, -2)
        assert zarr.open_array(tmp_path)[:].tolist() == [(1, 1.5), (2, -2)]

    def test_a_filter_of_another_dtype_is_caught_on_write(self, tmp_path):
        zarr_array = zarr.create_array(
            tmp_path,
            shape=(2,),
            dtype=">i4",
            zarr_format=2,
            filters=[Bytes("big", dtype="<i4")],
            compressors=None,
        )
        with pytest.raises(TypeError, match="not that of the codec"):
            zarr_array[:] = [1, 2]
        assert not (tmp_path / "0").exists()

    def test_a_filter_without_dtype_is_never_wrong(self, tmp_path):
        """The machine's own byte order reads back; the other is written, then refused."""
        for endian in ENDIANS:
            zarr_array = zarr.create_array(
                tmp_path / endian,
                shape=(2,),
                dtype="=i4",
                zarr_format=2,
                filters=[Bytes(endian)],
                compressors=None,
            )
            zarr_array[:] = [1, 2]
        assert zarr.open_array(tmp_path / NATIVE_ENDIAN)[:].tolist() == [1, 2]
        with pytest.raises(ValueError, match="in .zarray, the array's own dtype"):
            zarr.open_array(tmp_path / FOREIGN_ENDIAN)[:]

    def test_the_codec_stands_between_other_filters(self, tmp_path):
        zarr_array = zarr.create_array(
            tmp_path,
            shape=(6,),
            dtype="<i4",
            zarr_format=2,
            filters=[numcodecs.Delta(dtype="<i4"), Bytes("big", dtype="<i4")],
            compressors=numcodecs.Zlib(),
        )
        zarr_array[:] = [5, 6, 8, 1, 0, -1]
        assert zarr.open_array(tmp_path)[:].tolist() == [5, 6, 8, 1, 0, -1]
        assert numcodecs.Zlib().decode((tmp_path / "0").read_bytes()) == struct.pack(
            ">6i", 5, 1, 2, -7, -1, -1
        )
