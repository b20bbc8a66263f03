"""BytesCodec, the zarr-python codec: literal bytes, both pipelines, sharding, refusals.

Tests named after a row of the comparison with other implementations say so: "zarr 3.1.6 ...".
"""

import asyncio
import copy
import itertools
import json
import pickle
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.codecs.numcodecs
import zarr.storage
from data_types import ENDIANS, RECORD, SIMPLE, flat_bytes, laid_out
from helpers import (
    BY_ENDIAN,
    BY_LAYOUT,
    HAS_STRUCT,
    ZARR_CASES,
    bytes_codec,
    ignore_unstable_data_types,
    sharded,
    spec_of,
    write_array,
)
from zarr.core.buffer import BufferPrototype, cpu

from numcodecs_bytes._core.dtypes import NATIVE_ENDIAN, has_byte_order
from numcodecs_bytes.zarr import BytesCodec

ZARR_VERSION = tuple(map(int, zarr.__version__.split(".")[:2]))
BY_NAME = pytest.mark.parametrize("case", ZARR_CASES, ids=lambda c: c.name)
pytestmark = ignore_unstable_data_types


def encode(codec, array, spec):
    buffer = spec.prototype.nd_buffer.from_ndarray_like(array)
    return codec.evolve_from_array_spec(spec)._encode_sync(buffer, spec)


def decode(codec, stored, spec):
    buffer = spec.prototype.buffer.from_bytes(stored)
    return codec.evolve_from_array_spec(spec)._decode_sync(buffer, spec).as_ndarray_like()


class TestStoredBytes:
    @pytest.mark.matrix
    @BY_LAYOUT
    @BY_ENDIAN
    @BY_NAME
    def test_elements_are_in_c_order_and_the_byte_order_of_endian(self, case, endian, layout):
        """zarr 3.1.6 stores and reads big-endian structured types wrongly: ours must not."""
        array, order = laid_out(case, layout)
        before = array.copy()
        spec = spec_of(array.shape, case.dtype)
        native = spec.dtype.to_native_dtype()

        encoded = encode(BytesCodec(endian=endian), array, spec)

        assert encoded.to_bytes() == case.stored(endian, order)
        assert array.tolist() == before.tolist()
        decoded = decode(BytesCodec(endian=endian), case.stored(endian, order), spec)
        assert decoded.dtype == native
        assert decoded.shape == array.shape
        assert decoded.tolist() == before.astype(native).tolist()

    @BY_ENDIAN
    @pytest.mark.parametrize(
        "case",
        [c for c in ZARR_CASES if has_byte_order(c.dtype) and not c.native_only],
        ids=lambda c: c.name,
    )
    def test_an_array_of_the_other_byte_order_is_stored_right(self, case, endian):
        array = case.array(case.dtype.newbyteorder("S"))
        spec = spec_of(array.shape, case.dtype)
        assert encode(BytesCodec(endian=endian), array, spec).to_bytes() == case.stored(endian)
        with_padding = np.dtype(case.dtype.descr, align=True) if case.dtype.names else case.dtype
        array = case.array(with_padding)
        assert encode(BytesCodec(endian=endian), array, spec).to_bytes() == case.stored(endian)

    @BY_ENDIAN
    def test_a_view_is_stored_without_the_rest_of_its_base(self, endian):
        """`raw.view(">f4")` mends data that were read in the wrong byte order."""
        for dtype in (">f4", "<f4"):
            memory = struct.pack(f"{dtype[0]}3f", 1, 2, 3)
            array = np.frombuffer(memory, np.dtype(dtype).newbyteorder("S")).copy().view(dtype)
            stored = encode(BytesCodec(endian=endian), array, spec_of((3,), "f4")).to_bytes()
            assert stored == struct.pack({"little": "<3f", "big": ">3f"}[endian], 1, 2, 3)
        with pytest.raises(TypeError, match="array does not fit the chunk"):
            encode(BytesCodec(endian=endian), np.zeros(3, "c8").real, spec_of((3,), "c8"))

    @pytest.mark.matrix
    @BY_ENDIAN
    @BY_NAME
    @pytest.mark.usefixtures("pipeline")
    def test_a_stored_array_is_read_and_written(self, tmp_path, case, endian):
        array = case.array().reshape(3, 4)
        created = zarr.create_array(
            tmp_path,
            shape=(3, 4),
            chunks=(2, 3),
            dtype=case.dtype,
            compressors=None,
            serializer=BytesCodec(endian=endian),
            config={"write_empty_chunks": True},
        )
        created[:] = array
        assert (tmp_path / "c/0/0").read_bytes() == case.stored(endian, [0, 1, 2, 4, 5, 6])
        opened = zarr.open_array(tmp_path, mode="r+")
        assert type(opened.metadata.codecs[0]) is BytesCodec
        assert opened[:].tolist() == array.tolist()
        assert opened[1:, 2].tolist() == array[1:, 2].tolist()
        opened[0, 1:] = array[2, 1:]
        array[0, 1:] = array[2, 1:]
        assert zarr.open_array(tmp_path)[:].tolist() == array.tolist()

    @BY_ENDIAN
    @pytest.mark.parametrize("data_type", ["datetime64", "timedelta64"])
    @pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")
    @pytest.mark.usefixtures("pipeline")
    def test_datetimes_without_a_unit_are_swapped(self, tmp_path, data_type, endian):
        """NumPy 2.5 casts them to the other byte order without swapping them."""
        values = [0, 1, -2, 100]
        stored = struct.pack({"little": "<4q", "big": ">4q"}[endian], *values)
        unit = {"unit": "generic", "scale_factor": 1}
        data_type = {"name": f"numpy.{data_type}", "configuration": unit}
        path = write_array(tmp_path, stored, data_type, [bytes_codec(endian)], fill_value="NaT")
        opened = zarr.open_array(path, mode="r+")
        assert opened[:].view("i8").tolist() == values
        assert opened[1:3].view("i8").tolist() == values[1:3]
        opened[:] = opened[:][::-1]
        assert (path / "c/0").read_bytes() == (
            struct.pack({"little": "<4q", "big": ">4q"}[endian], *values[::-1])
        )


@pytest.mark.usefixtures("pipeline")
class TestCodecChains:
    @pytest.fixture(params=itertools.product(ENDIANS, ENDIANS), ids="-".join)
    def endians(self, request):
        return request.param

    def round_trip(self, path, codecs, data_type="int32", dtype="<i4"):
        data = np.arange(8 * 6).reshape(8, 6).astype(dtype)
        write_array(path, None, data_type, codecs, shape=(8, 6), chunks=(4, 6))
        zarr.open_array(path, mode="r+")[:] = data
        opened = zarr.open_array(path)
        assert (opened[:] == data).all()
        assert (opened[1:5, 2] == data[1:5, 2]).all()
        return data, opened

    def test_sharding_uses_the_codec_inside_and_for_the_index(self, tmp_path, endians):
        inner, index = endians
        index_codecs = [bytes_codec(index), {"name": "crc32c"}]
        shards = sharded([2, 3], bytes_codec(inner), index_codecs=index_codecs)
        data, opened = self.round_trip(tmp_path, [shards])
        (codec,) = opened.metadata.codecs
        assert type(codec.codecs[0]) is type(codec.index_codecs[0]) is BytesCodec
        shard = (tmp_path / "c/0/0").read_bytes()
        offsets = struct.unpack({"little": "<", "big": ">"}[index] + "8Q", shard[-68:-4])[::2]
        expected = data[:2, :3].astype(np.dtype("i4").newbyteorder(inner)).tobytes()
        assert expected in [shard[o : o + 24] for o in offsets]

    def test_transposed_and_checked(self, tmp_path, endians):
        transpose = {"name": "transpose", "configuration": {"order": [1, 0]}}
        data, _ = self.round_trip(
            tmp_path, [transpose, bytes_codec(endians[0]), {"name": "crc32c"}]
        )
        expected = data[:4].T.astype(np.dtype("i4").newbyteorder(endians[0])).tobytes()
        assert (tmp_path / "c/0/0").read_bytes()[:-4] == expected

    def test_a_filter_that_views_its_input_gets_the_declared_dtype(self, tmp_path, endians):
        """zarr 3.1.6 hands numcodecs' Delta a lazily swapped view, which it reads wrongly."""
        delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}
        self.round_trip(tmp_path, [delta, bytes_codec(endians[0])])

    def test_a_filter_that_hands_on_floats_viewed_as_integers(self, tmp_path, endians):
        bit_round = {"name": "numcodecs.bitround", "configuration": {"keepbits": 5}}
        codecs = [bit_round, bytes_codec(endians[0])]
        self.round_trip(tmp_path, codecs, data_type="float32", dtype="<f4")

    def test_compressed(self, tmp_path, endians):
        zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
        self.round_trip(tmp_path, [bytes_codec(endians[0]), zstd])

    def test_a_filter_that_widens_single_bytes(self, tmp_path, endians):
        """zarr 3.1.6 evolves codecs for int8 here, and forgets the endian of the int16 chunks."""
        as_type = {
            "name": "numcodecs.astype",
            "configuration": {"encode_dtype": "<i2", "decode_dtype": "|i1"},
        }
        path = write_array(
            tmp_path,
            np.array([1, -2, 3, 4]).astype(np.dtype("i2").newbyteorder(endians[0])).tobytes(),
            "int8",
            [as_type, bytes_codec(endians[0])],
        )
        opened = zarr.open_array(path, mode="r+")
        assert opened[:].tolist() == [1, -2, 3, 4]
        opened[:] = [5, 6, 7, 8]
        opened.attrs["units"] = "m"  # writes the metadata
        assert json.loads((path / "zarr.json").read_text())["codecs"][1] == bytes_codec(endians[0])
        assert zarr.open_array(path)[:].tolist() == [5, 6, 7, 8]

    def test_missing_endian_behind_a_filter_that_widens_single_bytes(self, tmp_path):
        """zarr 3.1.6 writes such arrays, and takes the machine's byte order."""
        as_type = {
            "name": "numcodecs.astype",
            "configuration": {"encode_dtype": "<i2", "decode_dtype": "|i1"},
        }
        stored = np.array([1, -2, 3, 4], "=i2").tobytes()
        path = write_array(tmp_path, stored, "int8", [as_type, bytes_codec()])
        if HAS_STRUCT:
            with pytest.raises(ValueError, match="`endian` configuration needs to be specified"):
                zarr.open_array(path)[:]
        else:
            assert zarr.open_array(path)[:].tolist() == [1, -2, 3, 4]
            zarr.open_array(path, mode="r+")[:2] = [5, 6]
            assert zarr.open_array(path)[:].tolist() == [5, 6, 3, 4]


@pytest.mark.usefixtures("pipeline")
class TestInvalidBools:
    """zarr passes bytes other than 0 and 1 on, into memory and back to disk: ours must not."""

    STORED = bytes([0, 1, 2, 255])
    RIGHT = bytes([0, 1, 1, 1])

    def test_invalid_bools_read_as_true(self, tmp_path):
        opened = zarr.open_array(write_array(tmp_path, self.STORED, "bool", [bytes_codec()]))
        assert opened[:].tobytes() == self.RIGHT
        assert opened[1:3].tobytes() == self.RIGHT[1:3]

    def test_invalid_bools_are_mended_by_a_partial_write(self, tmp_path):
        path = write_array(tmp_path, self.STORED, "bool", [bytes_codec()])
        zarr.open_array(path, mode="r+")[0] = True
        assert (path / "c/0").read_bytes() == bytes([1, 1, 1, 1])

    def test_invalid_bools_are_written_as_true(self, tmp_path):
        path = write_array(tmp_path, None, "bool", [bytes_codec()])
        zarr.open_array(path, mode="r+")[:] = np.frombuffer(self.STORED, "?")
        assert (path / "c/0").read_bytes() == self.RIGHT

    @pytest.mark.parametrize("endian", [None, "little", "big"])
    def test_invalid_bools_in_a_shard_that_is_read_whole(self, tmp_path, endian):
        """The fused pipeline reads dense shards without calling the codec."""
        shards = sharded([2], bytes_codec(endian), index_codecs=[bytes_codec("little")])
        shard = self.STORED + struct.pack("<4Q", 0, 2, 2, 2)
        opened = zarr.open_array(write_array(tmp_path, shard, "bool", [shards]))
        assert opened[:].tobytes() == self.RIGHT
        assert opened[2:].tobytes() == self.RIGHT[2:]


class TestMetadata:
    @BY_ENDIAN
    def test_the_older_name_is_read_and_written_as_bytes(self, tmp_path, endian):
        """zarr registers "endian", the name before specification 1.0, but can't read it."""
        stored = np.arange(4).astype(np.dtype("i2").newbyteorder(endian)).tobytes()
        path = write_array(tmp_path, stored, "int16", [bytes_codec(endian, name="endian")])
        before = (path / "zarr.json").read_text()

        opened = zarr.open_array(path, mode="r+")
        assert opened[:].tolist() == [0, 1, 2, 3]
        assert (path / "zarr.json").read_text() == before

        opened.attrs["units"] = "m"
        written = json.loads((path / "zarr.json").read_text())
        assert written["codecs"] == [bytes_codec(endian)]
        assert zarr.open_array(path)[:].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "data_type", ["int16", "float64", "complex64", {"name": "fixed_length_utf32"}]
    )
    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_missing_endian_is_an_error_when_the_array_is_opened(
        self, tmp_path, data_type, is_sharded
    ):
        """But zarr 3.1.6 takes it as native, with this package and without."""
        if isinstance(data_type, dict):
            data_type = {**data_type, "configuration": {"length_bytes": 8}}
        codec = bytes_codec()
        if is_sharded:
            codec = sharded([4], codec, index_codecs=[bytes_codec("little")])
        fill_value = "" if isinstance(data_type, dict) else 0
        fill_value = [0, 0] if data_type == "complex64" else fill_value
        path = write_array(tmp_path, None, data_type, [codec], fill_value=fill_value)
        if not HAS_STRUCT:
            zarr.open_array(path)[:] = "a" if fill_value == "" else 1
            with zarr.config.set({"codecs.bytes": "zarr.codecs.bytes.BytesCodec"}):
                alone = zarr.open_array(path)[:]
            assert np.array_equal(zarr.open_array(path)[:], alone)
            return
        with pytest.raises(ValueError, match="`endian` configuration needs to be specified"):
            zarr.open_array(path)

    def test_missing_endian_of_the_shard_index_is_an_error(self, tmp_path):
        shards = sharded([4], bytes_codec(), index_codecs=[bytes_codec()])
        path = write_array(tmp_path, bytes(4) + struct.pack("<2Q", 0, 4), "int8", [shards])
        if not HAS_STRUCT:
            assert zarr.open_array(path)[:].tolist() == [0] * 4
            return
        with pytest.raises(ValueError, match="`endian` configuration needs to be specified"):
            zarr.open_array(path)[:]

    def test_superfluous_endian_is_dropped(self, tmp_path):
        path = write_array(tmp_path, b"\1\2\3\4", "uint8", [bytes_codec("big")])
        opened = zarr.open_array(path)
        assert opened.metadata.codecs[0] == zarr.codecs.BytesCodec(endian=None)
        assert opened[:].tolist() == [1, 2, 3, 4]

    def test_a_bool_array_is_written_without_endian(self, tmp_path):
        """zarr 3.1.6 wrote it with this package, and zarrita.js reverses such bools."""
        zarr.create_array(tmp_path, shape=4, dtype="bool", serializer=bytes_codec("big"))
        zarr.open_array(tmp_path, mode="r+").attrs["units"] = "1"
        codecs = json.loads((tmp_path / "zarr.json").read_text())["codecs"]
        assert bytes_codec() in codecs

    @pytest.mark.parametrize(
        ("codec", "error", "message"),
        [
            (bytes_codec("middle"), ValueError, "endian must be one of .* got 'middle'"),
            (bytes_codec("BIG"), ValueError, "got 'BIG'"),
            (bytes_codec(1), TypeError, "endian must be one of .* got 1"),
            (bytes_codec(["big"]), TypeError, r"got \['big'\]"),
            (
                {"name": "bytes", "configuration": {"endian": None}},
                ValueError,
                "`endian` configuration needs to be specified",
            ),
            (
                {"name": "bytes", "configuration": {"endian": "big", "order": "C"}},
                ValueError,
                "no configuration key 'order'; expected only 'endian'",
            ),
            (
                {"name": "endian", "configuration": {"edian": "big"}},
                ValueError,
                "no configuration key 'edian'",
            ),
            ({"name": "bytes", "configuration": "big"}, (TypeError, ValueError), "."),
        ],
        ids=repr,
    )
    def test_bad_metadata_is_refused_when_the_array_is_opened(
        self, tmp_path, codec, error, message
    ):
        with pytest.raises(error, match=message):
            zarr.open_array(write_array(tmp_path, None, "int16", [codec]))

    def test_names_other_than_bytes_and_endian_are_refused(self):
        for data in ({"name": "zstd"}, {}, "bytes", 3):
            with pytest.raises(ValueError, match="not the metadata of a bytes codec: got "):
                BytesCodec.from_dict(data)

    @pytest.mark.parametrize("name", ["structured", "struct"])
    @BY_ENDIAN
    @pytest.mark.usefixtures("pipeline")
    def test_structured_types(self, tmp_path, name, endian):
        """zarr 3.1.6 reads big-endian `structured` wrongly; `struct` it does not know."""
        if name == "struct" and not HAS_STRUCT:
            pytest.skip("this zarr has no data type struct")
        fields = (
            [["a", "int16"], ["b", "float64"]]
            if name == "structured"
            else [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "float64"}]
        )
        stored = struct.pack({"little": "<", "big": ">"}[endian] + "hdhd", 1, 1.5, -2, 1e9)
        fill_value = "AAAAAAAAAAAAAA=="
        path = write_array(
            tmp_path,
            stored,
            {"name": name, "configuration": {"fields": fields}},
            [bytes_codec(endian)],
            shape=(2,),
            fill_value=fill_value,
        )
        opened = zarr.open_array(path, mode="r+")
        assert opened[:].tolist() == [(1, 1.5), (-2, 1e9)]
        opened[:1] = np.array([(3, 4.5)], [("a", ">i2"), ("b", "<f8")])
        assert (path / "c/0").read_bytes()[:10] == (
            struct.pack({"little": "<", "big": ">"}[endian] + "hd", 3, 4.5)
        )

    def test_structured_without_endian_is_little(self, tmp_path):
        """Written by zarr 3.1.6 itself; newer versions of zarr warn, and so does this class."""
        path = write_array(
            tmp_path,
            struct.pack("<hd", 1, 1.5),
            {"name": "structured", "configuration": {"fields": [["a", "int16"], ["b", "float64"]]}},
            [bytes_codec()],
            shape=(1,),
            fill_value="AAAAAAAAAAAAAA==",
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            opened = zarr.open_array(path)
        said = [str(w.message) for w in caught if "Missing 'endian'" in str(w.message)]
        assert len(said) == (1 if HAS_STRUCT else 0)
        assert opened[:].tolist() == [(1, 1.5)]
        assert opened.metadata.codecs[0].to_dict() == bytes_codec("little")


class TestBadChunks:
    @pytest.mark.parametrize("num_bytes", [0, 1, 15, 17, 12, 20, 32])
    @pytest.mark.parametrize("dtype", ["int32", "struct"])
    @pytest.mark.usefixtures("pipeline")
    def test_a_chunk_of_another_length_is_an_error(self, tmp_path, num_bytes, dtype):
        """zarr raises NumPy's reshape and view errors; zarrita.js fills with zeros or cuts."""
        data_type, fill_value = "int32", 0
        if dtype == "struct":
            fields = [["a", "int16"], ["b", "int16"]]
            data_type = {"name": "structured", "configuration": {"fields": fields}}
            fill_value = "AAAAAA=="
        path = write_array(
            tmp_path, bytes(num_bytes), data_type, [bytes_codec("big")], (2, 2), None, fill_value
        )
        message = (
            rf"chunk .*holds {num_bytes} bytes, expected 16 for shape \(2, 2\) of .*; it may be"
        )
        opened = zarr.open_array(path, mode="r+")
        with pytest.raises(ValueError, match=message):
            opened[:]
        with pytest.raises(ValueError, match=message):
            opened[0, 0] = opened[:0, :0].sum() if dtype == "int32" else (1, 1)
        assert (path / "c/0/0").read_bytes() == bytes(num_bytes)

    @pytest.mark.parametrize("shape", [(2, 2), (2, 4), (5,), (7,), ()])
    def test_an_array_of_another_size_is_not_encoded(self, shape):
        """zarr and NumPy would store these bytes without a word."""
        with pytest.raises(ValueError, match=r"got shape .*, expected \(2, 3\)"):
            encode(BytesCodec(endian="big"), np.zeros(shape, "i4"), spec_of((2, 3), "i4"))

    def test_masked_bools_are_stored(self):
        """Their methods are others than those of an array."""
        bools = np.ma.masked_array(np.arange(6) % 2 == 0)
        array = zarr.create_array({}, shape=6, dtype="?", compressors=None)
        array[:] = bools
        assert array[:].tolist() == bools.tolist()

    @pytest.mark.parametrize("shape", [(6,), (3, 2), (1, 2, 3)])
    def test_a_reshaped_chunk_is_encoded(self, shape):
        """numcodecs filters hand on flat arrays, in C order; others do what they don't declare."""
        array = np.arange(6, dtype="i2").reshape(shape)
        encoded = encode(BytesCodec(endian="big"), array, spec_of((2, 3), "i2"))
        assert encoded.to_bytes() == struct.pack(">6h", *range(6))

    @pytest.mark.parametrize(
        ("chunk", "other"),
        [
            ("i4", "i8"),
            ("f4", "i1"),
            ("S4", "i4"),
            ("c8", "f8"),
            ("c8", "i8"),
            ("i8", "U2"),
            ("i4", SIMPLE),
            (SIMPLE, [("b", "f8"), ("a", "i2")]),
            (SIMPLE, [("a", "f8"), ("b", "i2")]),
            (SIMPLE, [("a", "i2"), ("c", "f8")]),
            (SIMPLE, "V10"),
        ],
        ids=str,
    )
    def test_an_array_of_another_data_type_is_not_encoded(self, chunk, other):
        """zarr lets a structure of the same width with other fields through."""
        with pytest.raises(TypeError, match=r"got data type .*, expected .* convert the array"):
            encode(BytesCodec(endian="big"), np.zeros(3, other), spec_of((3,), chunk))

    @pytest.mark.parametrize(
        ("chunk", "other"),
        [
            ("i4", "u4"),
            ("f4", "i4"),
            ("f8", "M8[s]"),
            ("M8[s]", "M8[ms]"),
            ("V4", "S4"),
            ("u1", "?"),
            ("i2", ml_dtypes.bfloat16),
            ("i4", "U1"),
        ],
        ids=str,
    )
    def test_other_numbers_that_are_swapped_alike_are_stored_as_zarr_stores_them(
        self, chunk, other
    ):
        """Filters that are declared wrongly, but can be undone, hand them on."""
        spec = spec_of((3,), chunk)
        memory = np.arange(3 * np.dtype(chunk).itemsize, dtype="u1") % 2
        for endian in ENDIANS:
            array = memory.view(other)
            ours = encode(BytesCodec(endian=endian), array, spec).to_bytes()
            zarrs = encode(zarr.codecs.BytesCodec(endian=endian), array, spec).to_bytes()
            swapped = array if array.dtype != ml_dtypes.bfloat16 else memory.view("i2")
            stored = swapped.astype(swapped.dtype.newbyteorder(endian)).tobytes()
            assert ours == stored
            assert zarrs == stored or array.dtype.kind == "V"  # zarr swaps no bfloat16

    @pytest.mark.usefixtures("pipeline")
    def test_a_filter_that_declares_another_data_type(self, tmp_path):
        """zarr alone writes this chain and reads it again: `delta` undoes what it did."""
        path = write_array(
            tmp_path,
            None,
            "float64",
            [
                {
                    "name": "numcodecs.astype",
                    "configuration": {"encode_dtype": "<f4", "decode_dtype": "<f8"},
                },
                {"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}},
                bytes_codec("big"),
            ],
        )
        data = np.array([1.5, -2.5, 1e10, 0])
        zarr.open_array(path, mode="r+")[:] = data
        assert (path / "c/0").stat().st_size == 16
        assert zarr.open_array(path)[:].tolist() == data.tolist()

    @pytest.mark.usefixtures("pipeline")
    def test_an_assignment_of_other_fields_leaves_the_chunk_alone(self, tmp_path):
        created = zarr.create_array(
            tmp_path,
            shape=(2,),
            dtype=SIMPLE,
            compressors=None,
            serializer=BytesCodec(endian="big"),
            config={"write_empty_chunks": True},
        )
        created[:] = np.array([(1, 1.5), (2, 2.5)], SIMPLE)
        before = (tmp_path / "c/0").read_bytes()
        with pytest.raises(TypeError, match="array does not fit the chunk"):
            created[:] = np.zeros(2, [("b", "f8"), ("a", "i2")])
        assert (tmp_path / "c/0").read_bytes() == before

    def test_variable_size_and_objects(self):
        for data_type in (zarr.dtype.VariableLengthUTF8(), zarr.dtype.VariableLengthBytes()):
            spec = replace(spec_of((1,), "i4"), dtype=data_type)
            array = np.zeros(1, data_type.to_native_dtype())
            buffer = spec.prototype.nd_buffer.from_ndarray_like(array)
            for act in (
                lambda spec=spec, buffer=buffer: BytesCodec()._encode_sync(buffer, spec),
                lambda spec=spec: BytesCodec()._decode_sync(cpu.Buffer.from_bytes(b""), spec),
            ):
                with pytest.raises(TypeError, match="vlen-utf8 and vlen-bytes"):
                    act()

    @pytest.mark.parametrize(
        ("dtype", "error", "message"),
        [("bytes", TypeError, "vlen-bytes"), (str, ValueError, "must be `VLenUTF8Codec`")],
    )
    def test_variable_size_is_refused_before_an_array_is_created(
        self, tmp_path, dtype, error, message
    ):
        data_type = zarr.dtype.VariableLengthBytes() if dtype == "bytes" else dtype
        with pytest.raises(error, match=message):
            zarr.create_array(
                tmp_path, shape=(3,), dtype=data_type, serializer=BytesCodec(endian="big")
            )
        assert not (tmp_path / "zarr.json").exists()

    def test_missing_endian_of_a_codec_that_was_never_opened(self):
        spec = spec_of((1,), "i4")
        codec = BytesCodec(endian=None)
        buffer = cpu.NDBuffer.from_ndarray_like(np.zeros(1, "i4"))
        for act in (
            lambda: codec._encode_sync(buffer, spec),
            lambda: codec._decode_sync(cpu.Buffer.from_bytes(bytes(4)), spec),
        ):
            with pytest.raises(ValueError, match="`endian` configuration needs to be specified"):
                act()


class TestBuffers:
    def test_decode_shares_memory_and_stays_writable(self):
        """zarr's tests notice neither a copy nor a read-only array here."""
        memory = np.arange(6, dtype=np.dtype("f8").newbyteorder(NATIVE_ENDIAN)).view(np.uint8)
        spec = spec_of((2, 3), "f8")
        codec = BytesCodec(endian=NATIVE_ENDIAN)
        decoded = codec._decode_sync(cpu.Buffer.from_array_like(memory), spec).as_ndarray_like()
        assert np.shares_memory(decoded, memory)
        assert decoded.flags.writeable

    @pytest.mark.skipif(ZARR_VERSION < (3, 3), reason="stores keep what they are given")
    def test_encode_shares_memory(self):
        array = np.zeros((2, 3))
        encoded = encode(BytesCodec(endian=NATIVE_ENDIAN), array, spec_of((2, 3), "f8"))
        assert np.shares_memory(encoded.as_array_like(), array)

    @BY_ENDIAN
    @pytest.mark.usefixtures("pipeline")
    def test_a_memory_store_is_safe_from_later_changes(self, endian):
        """zarr 3.1.6's MemoryStore keeps the caller's array (zarr-python#4156)."""
        data = np.arange(4.0)
        created = zarr.create_array(
            zarr.storage.MemoryStore(),
            shape=(4,),
            dtype="f8",
            compressors=None,
            serializer=BytesCodec(endian=endian),
        )
        created[:] = data
        data[:] = -1
        assert created[:].tolist() == [0, 1, 2, 3]

    def test_the_prototype_of_the_chunk_is_honoured(self):
        """zarr's tests do not notice a codec that always makes CPU buffers."""

        class MyBuffer(cpu.Buffer):
            pass

        class MyNDBuffer(cpu.NDBuffer):
            pass

        spec = spec_of((2,), "i2", BufferPrototype(buffer=MyBuffer, nd_buffer=MyNDBuffer))
        codec = BytesCodec(endian="big")
        encoded = codec._encode_sync(MyNDBuffer.from_ndarray_like(np.zeros(2, "i2")), spec)
        assert type(encoded) is MyBuffer
        assert type(codec._decode_sync(encoded, spec)) is MyNDBuffer

    def test_records_are_decoded_as_structures(self):
        spec = spec_of((1,), RECORD)
        decoded = decode(BytesCodec(endian="big"), struct.pack(">hd", 1, 1.5), spec)
        assert decoded.tolist() == [(1, 1.5)]


class TestInstances:
    @pytest.mark.parametrize("endian", [None, *ENDIANS])
    def test_equal_to_zarrs_own_codec(self, endian):
        codec, zarrs = BytesCodec(endian=endian), zarr.codecs.BytesCodec(endian=endian)
        assert codec == zarrs
        assert zarrs == codec
        assert hash(codec) == hash(zarrs)
        assert len({codec, zarrs}) == 1
        assert codec.to_dict() == zarrs.to_dict()
        for other in {None, *ENDIANS} - {endian}:
            assert codec != zarr.codecs.BytesCodec(endian=other)
            assert codec != BytesCodec(endian=other)
        assert codec != zarr.codecs.Crc32cCodec()

    @pytest.mark.parametrize("endian", [None, *ENDIANS])
    def test_pickle_copy_and_repr(self, endian):
        codec = BytesCodec(endian=endian)
        for same in (
            pickle.loads(pickle.dumps(codec)),  # noqa: S301
            copy.copy(codec),
            copy.deepcopy(codec),
            replace(codec),
            eval(repr(codec)),  # noqa: S307
            *([BytesCodec.from_dict(codec.to_dict())] if endian or HAS_STRUCT else []),
        ):
            assert type(same) is BytesCodec
            assert same == codec
            assert hash(same) == hash(codec)
        assert repr(codec) == f"BytesCodec(endian={endian!r})"

    def test_an_evolved_codec_keeps_what_it_knows(self):
        """sharding takes an evolved codec only where it is not equal to the one before."""
        before = BytesCodec(endian=None)
        evolved = before.evolve_from_array_spec(spec_of((2,), "?"))
        assert before.is_fixed_size
        assert not evolved.is_fixed_size
        assert not pickle.loads(pickle.dumps(evolved)).is_fixed_size  # noqa: S301
        assert evolved != before
        assert evolved == zarr.codecs.BytesCodec(endian=None)
        assert BytesCodec(endian="big").evolve_from_array_spec(spec_of((2,), "u8")).is_fixed_size

    def test_default_is_the_machines_byte_order(self):
        assert BytesCodec() == BytesCodec(endian=NATIVE_ENDIAN)

    @pytest.mark.filterwarnings("ignore:.*Endian:DeprecationWarning")
    def test_zarrs_enum_is_taken(self):
        assert BytesCodec(endian=zarr.codecs.Endian.big) == BytesCodec(endian="big")

    @pytest.mark.parametrize(
        ("endian", "error"), [("middle", ValueError), (1, TypeError), (b"big", TypeError)]
    )
    def test_bad_endian(self, endian, error):
        with pytest.raises(error, match="endian must be one of"):
            BytesCodec(endian=endian)

    def test_the_asynchronous_methods_answer_like_the_synchronous(self):
        spec = spec_of((2,), "i2")
        codec = BytesCodec(endian="big")

        async def round_trip():
            buffer = cpu.NDBuffer.from_ndarray_like(np.array([1, 2], "i2"))
            (encoded,) = await codec.encode([(buffer, spec)])
            (decoded,) = await codec.decode([(encoded, spec)])
            return encoded.to_bytes(), decoded.as_ndarray_like().tolist()

        assert asyncio.run(round_trip()) == (b"\0\1\0\2", [1, 2])

    @pytest.mark.usefixtures("pipeline")
    def test_threads_share_an_array(self, tmp_path):
        data = np.arange(64 * 16, dtype="i4").reshape(64, 16)
        shared = zarr.create_array(
            tmp_path,
            shape=data.shape,
            chunks=(1, 16),
            dtype="i4",
            compressors=None,
            serializer=BytesCodec(endian="big"),
        )

        def write(row):
            shared[row] = data[row]
            return shared[row].tolist()

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(write, range(64))) == data.tolist()
        assert flat_bytes(zarr.open_array(tmp_path)[:]) == flat_bytes(data)

    def test_numcodecs_and_zarr_codec_store_the_same_bytes(self):
        for case, endian in itertools.product(ZARR_CASES, ENDIANS):
            native = case.array(case.dtype.newbyteorder("="))
            config = {"id": "bytes", **({"endian": endian} if has_byte_order(native.dtype) else {})}
            spec = spec_of(native.shape, native.dtype)
            ours = encode(BytesCodec(endian=endian), native, spec).to_bytes()
            assert bytes(numcodecs.get_codec(config).encode(native)) == ours
