"""BytesCodec, the zarr-python codec: literal bytes, both pipelines, sharding, refusals.

Tests named after a row of the comparison with other implementations say so: "zarr 3.1.6 ...". What
is stored in arrays of every data type: conformance/test_conformance.py.
"""

import copy
import itertools
import json
import pickle
import struct
import sys
import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.codecs.numcodecs
import zarr.storage
from data_types import ENDIANS, LAYOUTS, ORDER, SIMPLE, laid_out
from helpers import (
    BY_ENDIAN,
    HAS_STRUCT,
    HAS_STRUCTURES_IN_SHARDS,
    ZARR_CASES,
    bytes_codec,
    case_of,
    decode_chunk,
    encode_chunk,
    ignore_unstable_data_types,
    sharded,
    spec_of,
    write_array,
    write_v2,
)
from zarr.core.buffer import BufferPrototype, cpu
from zarr.storage import StorePath

from numcodecs_bytes.zarr_codec import BytesCodec

BY_NAME = pytest.mark.parametrize("case", ZARR_CASES, ids=lambda c: c.name)
MISSING = "`endian` configuration needs to be specified"
WIDEN = {
    "name": "numcodecs.astype",
    "configuration": {"encode_dtype": "<i2", "decode_dtype": "|i1"},
}
pytestmark = ignore_unstable_data_types


def encode(codec, array, spec):
    """Return the bytes of an array, encoded by a codec that knows the data type."""
    return encode_chunk(codec.evolve_from_array_spec(spec), array, spec).to_bytes()


def decode(codec, stored, spec):
    return decode_chunk(codec.evolve_from_array_spec(spec), stored, spec).as_ndarray_like()


def create(store, dtype, endian="big", shape=2):
    return zarr.create_array(
        store, shape=shape, dtype=dtype, compressors=None, serializer=BytesCodec(endian=endian)
    )


def test_a_codec_that_was_evolved_for_a_data_type_serves_others():
    """zarr evolves codecs once, but a filter may change the data type of the chunks."""
    codec = BytesCodec(endian="big").evolve_from_array_spec(spec_of((2,), "<i2"))
    for each in (codec, copy.deepcopy(codec)):
        for dtype, stored in [("<i2", "0001 0002"), ("<f4", "3f800000 40000000"), ("u1", "0102")]:
            spec = spec_of((2,), dtype)
            encoded = encode_chunk(each, np.array([1, 2], dtype), spec).to_bytes()
            assert encoded == bytes.fromhex(stored)
            decoded = decode_chunk(each, encoded, spec).as_ndarray_like()
            assert decoded.dtype == dtype
            assert decoded.tolist() == [1, 2]


class TestStoredBytes:
    @BY_NAME
    def test_elements_are_in_c_order_and_the_byte_order_of_endian(self, case):
        """zarr 3.1.6 stores and reads big-endian structured types wrongly: ours must not."""
        dtypes = case.dtypes()
        if case.dtype.names and not case.native_only:
            dtypes.append(np.dtype(case.dtype.descr, align=True))  # with padding
        for dtype, endian, layout in itertools.product(dtypes, ENDIANS, LAYOUTS):
            with case_of(dtype, endian, layout):
                codec = BytesCodec(endian=endian)
                array, order = laid_out(case, layout, dtype)
                before = array.copy()
                spec = spec_of(array.shape, case.dtype)
                native = spec.dtype.to_native_dtype()

                assert encode(codec, array, spec) == case.stored(endian, order)
                assert array.tolist() == before.tolist()
                decoded = decode(codec, case.stored(endian, order), spec)
                assert decoded.dtype == native
                assert decoded.shape == array.shape
                assert decoded.tolist() == before.astype(native).tolist()

    @BY_ENDIAN
    def test_a_view_is_stored_without_the_rest_of_its_base(self, endian):
        """`raw.view(">f4")` mends data that were read in the wrong byte order."""
        for dtype in (">f4", "<f4"):
            memory = struct.pack(f"{dtype[0]}3f", 1, 2, 3)
            array = np.frombuffer(memory, np.dtype(dtype).newbyteorder("S")).copy().view(dtype)
            stored = encode(BytesCodec(endian=endian), array, spec_of((3,), "f4"))
            assert stored == struct.pack(ORDER[endian] + "3f", 1, 2, 3)
        with pytest.raises(TypeError, match="array does not fit the chunk"):
            encode(BytesCodec(endian=endian), np.zeros(3, "c8").real, spec_of((3,), "c8"))


@pytest.mark.parametrize("dtype", ["u1", "u2", "f4", "c16", "U3", "M8[s]", "m8[ms]"])
@pytest.mark.usefixtures("our_pipeline")
def test_bytes_are_swapped_when_zarrs_own_codec_swaps_them(dtype):
    """Before 3.3, zarr does so as it copies the selection: crops took up to 1.3 times as long."""
    data = np.array([[1, 2], [3, 4]]).astype(dtype)
    spec, same = spec_of(data.shape, dtype), zarr.codecs.TransposeCodec(order=(0, 1))
    codecs = [kind(endian="big") for kind in (zarr.codecs.BytesCodec, BytesCodec)]
    of_zarr, codec = (each.evolve_from_array_spec(spec) for each in codecs)
    stored = encode_chunk(of_zarr, data, spec).to_bytes()

    def decoded(*codecs):
        pipeline = zarr.registry.get_pipeline_class().from_codecs(codecs)
        return decode_chunk(pipeline, stored, spec).as_ndarray_like()

    for _ in range(2):  # pipelines share the codec
        assert decoded(codec).dtype == decoded(of_zarr).dtype
        assert decoded(codec).tolist() == data.tolist()
        assert decoded(same, codec).dtype == data.dtype
        assert decoded(same, codec).tolist() == data.tolist()


@pytest.mark.usefixtures("pipeline")
class TestCodecChains:
    @BY_NAME
    @pytest.mark.parametrize("shards", [None, (6, 4)])
    def test_parts_of_compressed_chunks(self, case, shards):
        """Of every data type: zarr reads them, and changes parts of them."""
        if shards and issubclass(case.dtype.type, np.void) and not HAS_STRUCTURES_IN_SHARDS:
            pytest.skip("this zarr has no structures in shards")
        data = case.array().reshape(3, 4)
        settings = {"shape": (3, 4), "chunks": (3, 2), "shards": shards, "dtype": case.dtype}
        settings |= {"serializer": bytes_codec("big"), "compressors": zarr.codecs.ZstdCodec()}
        array = zarr.create_array({}, **settings)
        array[:2, :3] = data[:2, :3]
        array[:, 3], array[2, :3] = data[:, 3], data[2, :3]
        assert array[...].tolist() == data.tolist()
        assert array[1:, 1:3].tolist() == data[1:, 1:3].tolist()
        assert array.vindex[[2, 0, 1], [3, 3, 0]].tolist() == data[[2, 0, 1], [3, 3, 0]].tolist()

    @pytest.mark.parametrize("dtype", ["m8", "M8"])
    @pytest.mark.filterwarnings("ignore:.*unit for NumPy:DeprecationWarning")  # since NumPy 2.5
    def test_datetimes_without_a_unit_in_compressed_chunks(self, dtype):
        """NumPy swaps them when it copies them to a slice, but not to a list of indices."""
        data = np.array([1, 2, 3, 4]).view(dtype)
        settings = {"shape": 4, "chunks": 2, "dtype": dtype, "serializer": bytes_codec("big")}
        array = zarr.create_array({}, **settings)
        array[:] = data
        assert array.oindex[[2, 0, 3, 1]].view("i8").tolist() == [3, 1, 4, 2]
        assert array[1:].view("i8").tolist() == [2, 3, 4]

    @BY_ENDIAN
    @pytest.mark.parametrize(
        ("dtype", "filters"),
        [
            ("int32", {"numcodecs.delta": {"dtype": "<i4"}}),
            ("float32", {"numcodecs.bitround": {"keepbits": 5}}),
        ],
    )
    def test_filters_and_compressors(self, tmp_path, endian, dtype, filters):
        """zarr 3.1.6 hands on lazily swapped integers, or floats viewed as integers."""
        codecs = [{"name": k, "configuration": v} for k, v in filters.items()]
        codecs += [
            bytes_codec(endian),
            {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
        ]
        data = np.arange(8 * 6).reshape(8, 6).astype(dtype)
        write_array(tmp_path, None, dtype, codecs, shape=(8, 6), chunks=(4, 6))
        zarr.open_array(tmp_path, mode="r+")[:] = data
        opened = zarr.open_array(tmp_path)
        assert (opened[:] == data).all()
        assert (opened[1:5, 2] == data[1:5, 2]).all()

    @BY_ENDIAN
    def test_a_filter_that_widens_single_bytes(self, tmp_path, endian):
        """zarr 3.1.6 evolves codecs for int8 here, and forgets the endian of the int16 chunks."""
        stored = struct.pack(ORDER[endian] + "4h", 1, -2, 3, 4)
        path = write_array(tmp_path, stored, "int8", [WIDEN, bytes_codec(endian)])
        opened = zarr.open_array(path, mode="r+")
        assert opened[:].tolist() == [1, -2, 3, 4]
        opened[:] = [5, 6, 7, 8]
        opened.attrs["units"] = "m"  # writes the metadata
        assert json.loads((path / "zarr.json").read_text())["codecs"][1] == bytes_codec(endian)
        assert zarr.open_array(path)[:].tolist() == [5, 6, 7, 8]

    def test_missing_endian_behind_a_filter_that_widens_single_bytes(self, tmp_path):
        """zarr 3.1.6 writes such arrays, and takes the machine's byte order."""
        stored = np.array([1, -2, 3, 4], "=i2").tobytes()
        path = write_array(tmp_path, stored, "int8", [WIDEN, bytes_codec()])
        if HAS_STRUCT:
            with pytest.raises(ValueError, match=MISSING):
                zarr.open_array(path)[:]
        else:
            assert zarr.open_array(path)[:].tolist() == [1, -2, 3, 4]
            zarr.open_array(path, mode="r+")[:2] = [5, 6]
            assert zarr.open_array(path)[:].tolist() == [5, 6, 3, 4]


class TestMetadata:
    @BY_ENDIAN
    def test_the_older_name_is_read_and_written_as_bytes(self, tmp_path, endian):
        """zarr registers "endian", the name before specification 1.0, but can't read it."""
        stored = struct.pack(ORDER[endian] + "4h", *range(4))
        path = write_array(tmp_path, stored, "int16", [bytes_codec(endian, name="endian")])
        before = (path / "zarr.json").read_text()

        opened = zarr.open_array(path, mode="r+")
        assert opened[:].tolist() == [0, 1, 2, 3]
        assert (path / "zarr.json").read_text() == before

        opened.attrs["units"] = "m"
        written = json.loads((path / "zarr.json").read_text())
        assert written["codecs"] == [bytes_codec(endian)]

    @pytest.mark.parametrize(("data_type", "fill_value"), [("int16", 0), ("complex64", [0, 0])])
    @pytest.mark.parametrize("is_sharded", [False, True])
    def test_missing_endian_is_an_error_when_the_array_is_opened(
        self, tmp_path, data_type, fill_value, is_sharded
    ):
        """But zarr 3.1.6 takes it as native, with this package and without."""
        codec = bytes_codec()
        if is_sharded:
            codec = sharded([4], codec, index_codecs=[bytes_codec("little")])
        path = write_array(tmp_path, None, data_type, [codec], fill_value=fill_value)
        if HAS_STRUCT:
            with pytest.raises(ValueError, match=MISSING):
                zarr.open_array(path)
            return
        zarr.open_array(path)[:] = 1
        with zarr.config.set({"codecs.bytes": "zarr.codecs.bytes.BytesCodec"}):
            alone = zarr.open_array(path)[:]
        assert np.array_equal(zarr.open_array(path)[:], alone)

    def test_superfluous_endian_is_dropped(self, tmp_path):
        """Of bools zarr 3.1.6 wrote it with this package, and zarrita.js reverses such bools."""
        path = write_array(tmp_path / "a", b"\1\2\3\4", "uint8", [bytes_codec("big")])
        opened = zarr.open_array(path)
        assert opened.metadata.codecs[0] == zarr.codecs.BytesCodec(endian=None)
        assert opened[:].tolist() == [1, 2, 3, 4]
        zarr.create_array(tmp_path / "b", shape=4, dtype="bool", serializer=bytes_codec("big"))
        zarr.open_array(tmp_path / "b", mode="r+").attrs["units"] = "1"
        codecs = json.loads((tmp_path / "b/zarr.json").read_text())["codecs"]
        assert bytes_codec() in codecs

    @pytest.mark.parametrize(
        ("codec", "error", "message"),
        [
            (bytes_codec("BIG"), ValueError, "endian must be one of .* got 'BIG'"),
            ({"name": "bytes", "configuration": {"endian": None}}, ValueError, MISSING),
            (
                {"name": "endian", "configuration": {"edian": "big"}},
                ValueError,
                "no configuration key 'edian'; expected only 'endian'",
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
    @pytest.mark.parametrize("num_bytes", [0, 15, 17, 12, 32])
    @pytest.mark.usefixtures("pipeline")
    def test_a_chunk_of_another_length_is_an_error(self, tmp_path, num_bytes):
        """zarr raises NumPy's reshape and view errors; zarrita.js fills with zeros or cuts."""
        path = write_array(tmp_path, bytes(num_bytes), "int32", [bytes_codec("big")], (2, 2))
        message = rf"chunk .*holds {num_bytes} bytes, expected 16 for shape \(2, 2\) of int32; "
        opened = zarr.open_array(path, mode="r+")
        with pytest.raises(ValueError, match=message):
            opened[:]
        with pytest.raises(ValueError, match=message):
            opened[0, 0] = 1
        assert (path / "c/0/0").read_bytes() == bytes(num_bytes)

    def test_an_array_of_another_size_is_not_encoded(self):
        """zarr and NumPy would store these bytes without a word."""
        codec, spec = BytesCodec(endian="big"), spec_of((2, 3), "i2")
        for shape in ((2, 2), (2, 4), (5,), (7,), ()):
            with pytest.raises(ValueError, match=r"got shape .*, expected \(2, 3\)"):
                encode(codec, np.zeros(shape, "i2"), spec)
        # numcodecs filters hand on flat arrays, in C order; others do what they don't declare.
        for shape in ((6,), (3, 2), (1, 2, 3)):
            array = np.arange(6, dtype="i2").reshape(shape)
            assert encode(codec, array, spec) == struct.pack(">6h", *range(6))

    @pytest.mark.parametrize(
        ("chunk", "other"),
        [
            ("i4", "i8"),
            ("c8", "f8"),
            ("S4", "i4"),
            ("i8", "U2"),
            ("i4", SIMPLE),
            (SIMPLE, [("a", "f8"), ("b", "i2")]),
            (SIMPLE, [("a", "i2"), ("c", "f8")]),
            (SIMPLE, "V10"),
        ],
        ids=str,
    )
    def test_an_array_of_another_data_type_is_not_encoded(self, chunk, other):
        """zarr lets a structure of the same width with other fields through."""
        with pytest.raises(TypeError, match=r"got data type .*, expected .* use filters that"):
            encode(BytesCodec(endian="big"), np.zeros(3, other), spec_of((3,), chunk))

    @pytest.mark.parametrize(
        ("chunk", "other"),
        [("f4", "i4"), ("M8[s]", "M8[ms]"), ("V4", "S4"), ("i2", ml_dtypes.bfloat16), ("i4", "U1")],
        ids=str,
    )
    def test_other_numbers_that_are_swapped_alike_are_stored(self, chunk, other):
        """Filters that are declared wrongly, but can be undone, hand them on; zarr stores them."""
        memory = np.arange(3 * np.dtype(chunk).itemsize, dtype="u1") % 2
        numbers = memory.view("i2" if other == ml_dtypes.bfloat16 else other)
        for endian in ENDIANS:
            stored = encode(BytesCodec(endian=endian), memory.view(other), spec_of((3,), chunk))
            assert stored == numbers.astype(numbers.dtype.newbyteorder(endian)).tobytes()

    def test_variable_size_is_refused(self, tmp_path):
        """Before an array is created, or in a chunk."""
        data_type = zarr.dtype.VariableLengthBytes()
        with pytest.raises(TypeError, match="vlen-utf8 and vlen-bytes"):
            create(tmp_path, data_type)
        assert not (tmp_path / "zarr.json").exists()
        with pytest.raises(ValueError, match="must be `VLenUTF8Codec`"):
            create(tmp_path, zarr.dtype.VariableLengthUTF8())
        spec = replace(spec_of((1,), "i4"), dtype=data_type)
        with pytest.raises(TypeError, match="vlen-utf8 and vlen-bytes"):
            encode_chunk(BytesCodec(), np.zeros(1, object), spec)
        with pytest.raises(TypeError, match="vlen-utf8 and vlen-bytes"):
            decode_chunk(BytesCodec(), b"", spec)


class TestBuffers:
    def test_decode_shares_memory_and_stays_writable(self):
        """zarr's tests notice neither a copy nor a read-only array here."""
        memory = np.arange(6.0).view(np.uint8)
        decoded = decode(BytesCodec(endian=sys.byteorder), memory, spec_of((2, 3), "f8"))
        assert np.shares_memory(decoded, memory)
        assert decoded.flags.writeable

    @BY_ENDIAN
    @pytest.mark.usefixtures("pipeline")
    def test_a_memory_store_is_safe_from_later_changes(self, endian):
        """zarr 3.1.6's MemoryStore keeps the caller's array (zarr-python#4156)."""
        data = np.arange(4.0)
        created = create({}, "f8", endian, shape=4)
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
        assert type(encode_chunk(codec, np.zeros(2, "i2"), spec)) is MyBuffer
        assert type(decode_chunk(codec, bytes(4), spec)) is MyNDBuffer


class TestInstances:
    @pytest.mark.parametrize("endian", [None, *ENDIANS])
    def test_equality_pickle_copy_and_repr(self, endian):
        codec, zarrs = BytesCodec(endian=endian), zarr.codecs.BytesCodec(endian=endian)
        assert (codec, hash(codec), codec.to_dict()) == (zarrs, hash(zarrs), zarrs.to_dict())
        assert zarrs == codec
        for other in {None, *ENDIANS} - {endian}:
            assert codec != zarr.codecs.BytesCodec(endian=other)
            assert codec != BytesCodec(endian=other)
        assert codec != zarr.codecs.Crc32cCodec()
        for same in (
            pickle.loads(pickle.dumps(codec)),  # noqa: S301
            copy.deepcopy(codec),
            replace(codec),
            eval(repr(codec)),  # noqa: S307
            *([BytesCodec.from_dict(codec.to_dict())] if endian or HAS_STRUCT else []),
        ):
            assert (type(same), same, hash(same)) == (BytesCodec, codec, hash(codec))
        assert repr(codec) == f"BytesCodec(endian={endian!r})"

    @pytest.mark.usefixtures("pipeline")
    def test_one_codec_of_several_sharded_arrays(self):
        """It had the data type of the last one, and zarr's fused pipeline then read without it."""
        codec, names = BytesCodec(endian="big"), ["complex_bfloat16", "bool", "bfloat16", "float32"]
        data_types = [zarr.dtype.data_type_registry.match_json(n, zarr_format=3) for n in names]
        settings = {"shape": 8, "chunks": (4,), "shards": (8,), "compressors": None}
        for serializer in (codec, None):  # or the one of the array before
            arrays = []
            for data_type in data_types:
                used = serializer or (arrays[-1].serializer if arrays else codec)
                if used.endian is None:  # it has been dropped, as it is from zarr's own
                    used = codec
                arrays.append(zarr.create_array({}, dtype=data_type, serializer=used, **settings))
                arrays[-1][:] = 1
            for array in arrays:
                assert array[:].tolist() == [1] * 8
                assert array.serializer.is_fixed_size == (array is arrays[-1])
        assert (codec.is_fixed_size, repr(codec)) == (True, "BytesCodec(endian='big')")

    @pytest.mark.filterwarnings("ignore:.*Endian:DeprecationWarning")
    def test_what_endian_may_be(self):
        assert BytesCodec() == BytesCodec(endian=sys.byteorder)
        assert BytesCodec(endian=zarr.codecs.Endian.big) == BytesCodec(endian="big")


@pytest.mark.parametrize("endian", ["bigg", None])
def test_an_error_in_metadata_names_the_array(tmp_path, endian):
    """zarr does not tell a codec which array it opens: the error did not say where to look."""
    zarr.create_group(tmp_path)
    codec = {"name": "bytes", "configuration": {} if endian is None else {"endian": endian}}
    write_array(tmp_path / "a/b", None, "uint8" if endian else "int16", [codec])
    write_v2(tmp_path / "c", None, "<i2", filters=[{"id": "bytes", "endian": "bigg"}])
    group = zarr.open_group(tmp_path)
    ways = [("a/b", lambda: zarr.open_array(tmp_path / "a/b")), ("a/b", lambda: group["a/b"])]
    ways.append(("c", lambda: zarr.open_array(tmp_path / "c")))
    for path, open_array in ways if endian or HAS_STRUCT else ways[2:]:
        with pytest.raises(ValueError, match="endian") as caught:
            open_array()
        (note,) = caught.value.__notes__
        assert note == f"while opening or creating {StorePath(group.store, path)}"
