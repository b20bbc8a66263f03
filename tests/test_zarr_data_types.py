"""zarr_data_types: metadata both ways, fill values, stored bits, and nothing in zarr's way."""

import json
import pickle
import re
import struct
import sys
from pathlib import Path

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
from data_types import CASES, ENDIANS, ORDER, flat_bytes
from helpers import (
    HAS_STRUCT,
    LOADS_DATA_TYPES,
    WITHOUT_ENTRY_POINTS,
    WITHOUT_ML_DTYPES,
    bytes_codec,
    ignore_unstable_data_types,
    run_program,
    write_array,
    write_v2,
)
from packaging.version import Version

from numcodecs_bytes import Bytes, zarr_data_types
from numcodecs_bytes.migrate import migrate
from numcodecs_bytes.zarr_data_types import parse_numpy_descr

pytestmark = ignore_unstable_data_types
ML_CASES = [c for c in CASES if c.native_only and c.dtype.names is None]
FILL_VALUES = {"float8_e8m0fnu": 1.0, "complex_bfloat16": [0, 0], "complex_float16": [0, 0]}
BY_ML_CASE = pytest.mark.parametrize("case", ML_CASES, ids=lambda c: c.name)
BY_ENDIAN = pytest.mark.parametrize("endian", ENDIANS)
IMPORT = "" if LOADS_DATA_TYPES else "import numcodecs_bytes.zarr_data_types\n"


def data_type_of(data):
    return zarr.dtype.data_type_registry.match_json(data, zarr_format=3)


@pytest.mark.usefixtures("pipeline")
class TestStoredBytes:
    @BY_ML_CASE
    def test_a_type_is_known_by_each_of_its_names(self, tmp_path, case):
        """zarr-python knows none of them."""
        settings = {"compressors": None, "serializer": bytes_codec("big"), "overwrite": True}
        for dtype in (case.dtype, case.dtype.type, case.name):
            array = zarr.create_array(tmp_path, shape=12, dtype=dtype, **settings)
            assert not any(array[:].tobytes())  # the default fill value
            array[:] = case.array()
            assert (tmp_path / "c/0").read_bytes() == case.stored("big")
        document = json.loads((tmp_path / "zarr.json").read_text())
        assert document["data_type"] == case.name
        document["data_type"] = {"name": case.name, "configuration": {}}
        document["fill_value"] = FILL_VALUES.get(case.name, 0)
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        array = zarr.open_array(tmp_path, mode="r+")
        assert array.dtype == case.dtype
        assert flat_bytes(array[1:9:2]) == flat_bytes(case.array()[1:9:2])
        array.update_attributes({})
        written = json.loads((tmp_path / "zarr.json").read_text())
        assert written == document | {"data_type": case.name}
        data_type = array.metadata.data_type
        assert pickle.loads(pickle.dumps(data_type)) == data_type  # noqa: S301
        assert data_type.item_size == case.dtype.itemsize
        codec = numcodecs.get_codec({"id": "bytes", "endian": "big", "dtype": case.name})
        assert codec.dtype == case.dtype
        assert codec.get_config()["dtype"] == case.name
        assert codec == eval(repr(codec), {"Bytes": Bytes})  # noqa: S307

    @pytest.mark.parametrize("case", ML_CASES + CASES[:1], ids=lambda c: c.name)
    def test_unused_bits_are_ignored_and_never_passed_on(self, tmp_path, case):
        """ml_dtypes computes wrong values from a float4 or float6 with upper bits."""
        num_bits = re.match("(?:u?int|float)([246])", case.name)
        largest = 2 ** int(num_bits[1]) - 1 if num_bits else 255
        every_byte = bytes(range(256))
        valid = bytes(b & largest for b in every_byte)
        if case.name == "bool":
            valid = bytes(b > 0 for b in every_byte)
        num_elements = 256 // case.dtype.itemsize
        fill_value = False if case.name == "bool" else FILL_VALUES.get(case.name, 0)
        codecs = [bytes_codec("little")]
        path = write_array(
            tmp_path, every_byte, case.name, codecs, (num_elements,), None, fill_value
        )
        array = zarr.open_array(path, mode="r+")
        assert array[:].tobytes() == valid
        assert array[3:].tobytes() == valid[3 * case.dtype.itemsize :]
        assert array.vindex[[num_elements - 1, 5]][0].tobytes() == valid[-case.dtype.itemsize :]
        array[0] = array[1]
        assert (path / "c" / "0").read_bytes()[4:] == valid[4:]
        array[:] = np.frombuffer(every_byte, case.dtype)
        assert (path / "c" / "0").read_bytes() == valid

    @pytest.mark.parametrize("case", ML_CASES + CASES[:1], ids=lambda c: c.name)
    def test_unused_bits_in_shards(self, tmp_path, case):
        """zarr's sharding reads dense shards of fixed-size types without asking the codec."""
        settings = {"shape": (256,), "chunks": (64,), "shards": (128,), "dtype": case.dtype}
        serializer = bytes_codec("big")
        array = zarr.create_array(tmp_path, compressors=None, serializer=serializer, **settings)
        raw = np.arange(256 * case.dtype.itemsize).astype("u1").view(case.dtype)
        array[:] = raw
        if not case.name.startswith("complex"):  # which ml_dtypes swaps wrongly
            with zarr.config.set({"codecs.bytes": "zarr.codecs.bytes.BytesCodec"}):
                zarr.open_array(tmp_path, mode="r+")[:] = raw
        codec = Bytes("big", case.dtype)
        valid = codec.decode(codec.encode(raw)).tobytes()
        assert zarr.open_array(tmp_path)[:].tobytes() == valid

    def test_with_zarrs_own_codec(self, tmp_path):
        """Whoever opts out of ours keeps the data types, but for those that are swapped wrongly."""
        case = next(c for c in CASES if c.name == "bfloat16")
        codecs = [bytes_codec("big")]
        path = write_array(tmp_path / "a", case.stored("big"), "bfloat16", codecs, (12,))
        other = write_array(tmp_path / "b", bytes(16), "complex_float16", codecs, fill_value=[0, 0])
        with zarr.config.set({"codecs.bytes": "zarr.codecs.bytes.BytesCodec"}):
            array = zarr.open_array(path, mode="r+")
            assert array[:].tobytes() == case.array().tobytes()
            array[:] = case.array()[::-1]
            with pytest.raises(TypeError, match="ml_dtypes byte-swaps complex_float16 incorrectly"):
                zarr.open_array(other)[:]
        assert (path / "c" / "0").read_bytes() == case.stored("big", range(11, -1, -1))

    @pytest.mark.parametrize("fill_value", [[1, 255], "Af8="])
    def test_raw_bits(self, tmp_path, fill_value):
        """TensorStore writes the fill value as base64; the specification says a list."""
        codecs = [bytes_codec("big")]
        path = write_array(tmp_path, b"abcdef\1\xff", "r16", codecs, (6,), (4,), fill_value)
        array = zarr.open_array(path, mode="r+")
        assert array.dtype == "V2"
        assert array[:].tobytes() == b"abcdef\1\xff\1\xff\1\xff"
        assert array[1:3].tobytes() == b"cdef"
        array[4:] = np.frombuffer(b"wxyz", "V2")
        assert (path / "c" / "1").read_bytes() == b"wxyz\1\xff\1\xff"
        array.update_attributes({"a": 1})
        document = json.loads((path / "zarr.json").read_text())
        assert (document["data_type"], document["fill_value"]) == ("r16", [1, 255])
        if HAS_STRUCT:  # zarr 3.1.6 keeps an endian that says nothing
            assert document["codecs"] == [bytes_codec()]

    def test_raw_bits_in_shards(self):
        """zarr hashes the fill value there, and NumPy can't hash raw bytes."""
        store = {}
        settings = {"shape": (8,), "chunks": (2,), "shards": (4,), "compressors": None}
        raw = np.arange(24).astype("u1").view("V3")
        zarr.create_array(store, dtype="r24", **settings)[:] = raw
        assert zarr.open_array(store)[:].tobytes() == raw.tobytes()

    @BY_ML_CASE
    def test_in_zarr_v2_and_migrated(self, tmp_path, case):
        """TensorStore writes the registered names into .zarray, too."""
        compressor = {"id": "bytes", "endian": "big", "dtype": case.name}
        settings = {"fill_value": FILL_VALUES.get(case.name, 0), "compressor": compressor}
        write_v2(tmp_path / "1-d", case.stored("big"), case.name, [12], **settings)
        write_v2(tmp_path / "0-d", case.stored("big", [3]), case.name, [], **settings)
        for path, expected in (("1-d", case.array()), ("0-d", case.array()[3])):
            assert zarr.open_array(tmp_path / path)[...].tobytes() == expected.tobytes()
            (report,) = migrate(tmp_path / path)
            assert (report.status, report.reasons) == ("migrated", [])
            opened = zarr.open_array(tmp_path / path, zarr_format=3)
            assert opened[...].tobytes() == expected.tobytes()


class TestFillValues:
    @pytest.mark.parametrize(
        ("name", "data", "bits", "written"),
        [
            ("bfloat16", 0.1, 0x3DCD, 0.10009765625),
            ("bfloat16", -0.0, 0x8000, -0.0),
            ("bfloat16", "NaN", 0x7FC0, "NaN"),
            ("bfloat16", "0xFFC0", 0xFFC0, "0xffc0"),
            ("bfloat16", "-Infinity", 0xFF80, "-Infinity"),
            ("float8_e3m4", "NaN", 0x78, "NaN"),
            ("float8_e4m3", "NaN", 0x7C, "NaN"),
            ("float8_e4m3fn", "NaN", 0x7F, "NaN"),
            ("float8_e4m3fnuz", "NaN", 0x80, "NaN"),
            ("float8_e5m2", "NaN", 0x7E, "NaN"),
            ("float8_e8m0fnu", "NaN", 0xFF, "NaN"),
            ("float8_e8m0fnu", 1, 0x7F, 1.0),
            ("float8_e8m0fnu", "0x00", 0x00, 2.0**-127),
            ("float6_e3m2fn", "0x3f", 0x3F, -28.0),
            ("float4_e2m1fn", "0xf7", 0x07, 6.0),
            ("int4", -8.0, 0x08, -8),
            ("uint4", 15, 0x0F, 15),
            ("complex_bfloat16", [1.5, "-Infinity"], 0xFF803FC0, [1.5, "-Infinity"]),
            ("complex_float16", ["NaN", "0x3c00"], 0x3C007E00, ["NaN", 1.0]),
        ],
        ids=str,
    )
    def test_fill_values_are_read_and_written_as_the_registry_says(
        self, tmp_path, name, data, bits, written
    ):
        path = write_array(
            tmp_path, None, name, [bytes_codec("little")], shape=(2,), fill_value=data
        )
        array = zarr.open_array(path, mode="r+")
        raw = bits.to_bytes(array.dtype.itemsize, sys.byteorder)
        assert array[:].tobytes() == 2 * raw
        array.update_attributes({"a": 1})
        again = json.loads((path / "zarr.json").read_text())["fill_value"]
        assert repr(again) == repr(written)
        assert zarr.open_array(path)[:].tobytes() == 2 * raw

    @pytest.mark.parametrize(
        ("name", "data", "message"),
        [
            ("bfloat16", 1e39, r"not a value of bfloat16: got 1e\+39, expected a number from -3.3"),
            ("bfloat16", "nan", "got 'nan', expected .*or its bits as '0x' followed by 4 hex"),
            ("bfloat16", 10**400, "got 1000"),
            ("bfloat16", "0x7fc0 ", "4 hexadecimal digits"),
            ("bfloat16", True, "got True"),
            ("float8_e8m0fnu", 0, "expected a number from 5.8.* to 1.7.*, 'NaN', or its bits"),
            (
                "float8_e4m3fn",
                449,
                "got 449, expected a number from -448.0 to 448.0, 'NaN', or its",
            ),
            ("float8_e4m3fn", "Infinity", "expected a number from -448.0 to 448.0, 'NaN', or its"),
            ("float4_e2m1fn", "NaN", "expected a number from -6.0 to 6.0, or its bits"),
            ("float8_e5m2", 1e9, "57344.0, 'NaN', 'Infinity', '-Infinity', or its bits"),
            ("int4", 8, "not a value of int4: got 8, expected an integer from -8 to 7"),
            ("uint4", -1, "got -1, expected an integer from 0 to 15"),
            ("complex_float16", [1], r"got \[1\], expected a list of its real and imaginary part"),
            ("r16", [1], "expected 2 bytes, or a list of that many byte values"),
            ("r16", [1, 256], r"not a value of r16: got \[1, 256\]"),
        ],
        ids=lambda value: str(value)[:20],
    )
    def test_invalid_fill_values_are_refused(self, tmp_path, name, data, message):
        path = write_array(tmp_path, None, name, [bytes_codec("little")], fill_value=data)
        with pytest.raises(TypeError, match=message) as caught:
            zarr.open_array(path)
        assert caught.value.__notes__ == [f"while opening or creating {path.as_uri()}"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("bfloat16", v) for v in (2, 2.0, np.float32(2), np.int64(2), ml_dtypes.bfloat16(2))],
            ("complex_float16", 1 - 1.5j),
            ("r16", b"ab"),
        ],
        ids=str,
    )
    def test_of_create_array(self, name, value):
        """A number, or an element of an array, which zarr 3.4 hands out as a 0-d array."""
        array = zarr.create_array({}, shape=2, dtype=name, fill_value=value)
        assert array[0] == np.array(value, array.dtype)
        element = np.asarray(array[0])
        assert zarr.create_array({}, shape=2, dtype=name, fill_value=element)[1] == array[1]


class TestInZarr:
    def test_data_types_are_found_and_ml_dtypes_is_imported_where_met(self, tmp_path):
        """Without an import of the program's own."""
        for name in ("int32", "bfloat16"):
            write_array(tmp_path / name, None, name, [bytes_codec("big")], fill_value=3)
        program = """
import sys, zarr
for name in ("int32", "bfloat16"):
    print(zarr.open_array(sys.argv[1] + "/" + name)[0], "ml_dtypes" in sys.modules)
"""
        done = run_program("-W", "error", "-c", IMPORT + program, tmp_path)
        assert done.stdout.splitlines() == ["3 False", "3 True"]

    def test_a_type_that_zarr_has_is_zarrs(self):
        """Registering replaces the type of the same name, zarr's own too."""
        program = (
            "import zarr, zarr.dtype\n"
            "class Theirs(zarr.dtype.RawBytes):\n"
            "    _zarr_v3_name = 'bfloat16'\n"
            "zarr.dtype.data_type_registry.register('bfloat16', Theirs)\n"
            "from numcodecs_bytes import zarr_data_types as ours\n"
            "contents = zarr.dtype.data_type_registry.contents\n"
            "assert contents['bfloat16'] is ours.BFloat16 is Theirs\n"
            "assert contents['int4'] is ours.Int4\n"
            "print(ours.Struct.__module__)"
        )
        # Before any import of ours, so that no zarr needs one.
        out = run_program("-c", program).stdout
        assert out.startswith("zarr.core" if HAS_STRUCT else "numcodecs_bytes.zarr_")

    @pytest.mark.skipif(not LOADS_DATA_TYPES, reason="this zarr never loads the entry points")
    def test_a_zarr_that_is_not_known_gets_no_data_types_and_one_warning(self):
        """zarr loads all entry points at its first data type: an exception would break them all."""
        program = (
            "import sys, zarr\n"
            "sys.modules['numcodecs_bytes.zarr_data_types'] = None\n"
            "print(zarr.dtype.parse_dtype('V2', zarr_format=3))"
        )
        done = run_program("-c", program)
        assert done.stdout.startswith("RawBytes")
        assert done.stderr.count("numcodecs_bytes leaves data types to zarr alone") == 1

    def test_a_folder_named_like_ml_dtypes(self):
        """A clone of its repository, for example: all of our data types were gone."""
        program = (
            "import sys, types\n"
            "sys.modules['ml_dtypes'] = types.ModuleType('ml_dtypes')\n"
            "import zarr, numcodecs_bytes.zarr_data_types\n"
            "array = zarr.create_array({}, shape=(4,), dtype='i4')\n"
            "print(numcodecs_bytes.zarr_data_types.RawBits(length=3))\n"
            "from numcodecs_bytes.__main__ import main\n"
            "main([])"
        )
        done = run_program("-c", program)
        assert "RawBits(length=3)" in done.stdout
        assert "needs a newer ml_dtypes, got a folder" in done.stdout
        assert done.stderr == ""

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("r0", "a multiple of 8 bits, at least 8, got 'r0'"),
            ("r12", "a multiple of 8 bits, at least 8, got 'r12'"),
            ("r80000000000000", "below 2\\*\\*34 bits"),
            ("r00000000000008", "below 2\\*\\*34 bits"),
            *[(name, "No Zarr data type found") for name in ("r", "r16 ", "r-8", "bfloat", "int3")],
        ],
    )
    def test_wrong_names(self, tmp_path, name, message):
        path = write_array(tmp_path, None, name, [bytes_codec()], fill_value=[])
        with pytest.raises(ValueError, match=message):
            zarr.open_array(path)

    @pytest.mark.parametrize("name", ["bfloat16", "complex_bfloat16", "struct of ml_dtypes"])
    def test_arrays_of_the_other_byte_order_are_stored_right(self, name):
        """NumPy swaps bfloat16 in `astype`; `tolist` of the result is wrong."""
        case = next(c for c in CASES if c.name == name)
        swapped = case.dtype.newbyteorder("S")
        integers = {"bfloat16": "u2", "complex_bfloat16": "u2,u2"}.get(name, "u2,u1,u2")
        array = case.array().view(integers)
        array = array.astype(array.dtype.newbyteorder("S")).view(swapped)
        store = {}
        zarr.create_array(
            store, shape=12, dtype=case.dtype, compressors=None, serializer=bytes_codec("big")
        )
        zarr.open_array(store, mode="r+")[:] = array
        assert store["c/0"].to_bytes() == case.stored("big")
        assert zarr.open_array(store)[:].tobytes() == case.array().tobytes()
        assert bytes(Bytes("big", case.dtype).encode(case.array())) == case.stored("big")
        with pytest.raises(TypeError, match="the types of ml_dtypes have no byte order"):
            Bytes("big", swapped)
        with pytest.raises(TypeError, match="the array's data type is not that of the codec"):
            Bytes("big", case.dtype).encode(array)


# Prints what zarr knows and what it can't use, and how arrays of bfloat16 end.
OF_REGISTRY = """
import json, sys, zarr, zarr.dtype
ends, unusable = [], []
for use in (
    lambda: zarr.open_array(sys.argv[1]),
    lambda: zarr.create_array({}, shape=1, dtype="bfloat16"),
    lambda: zarr.dtype.parse_dtype({"name": "bfloat16"}, zarr_format=3),
):
    try:
        use()
        ends.append("")
    except Exception as error:
        ends.append(repr(error))
contents = zarr.dtype.data_type_registry.contents
for name, cls in contents.items():
    try:
        cls().default_scalar()
    except ImportError:
        unusable.append(name)
    except TypeError:  # of a type with parameters
        pass
print(json.dumps([ends, sorted(contents), unusable]))
"""
SINCE = {
    **dict.fromkeys((case.name for case in ML_CASES), "0.4"),
    **dict.fromkeys(("float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "int2", "uint2"), "0.5"),
    **dict.fromkeys(("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"), "0.5"),
    **dict.fromkeys(("complex_bfloat16", "complex_float16"), "0.6"),
}
# An older ml_dtypes, made of the one that is installed; in a frozen program, without metadata.
OLDER = """
__path__ = [{real!r}]
__version__ = {version!r}
from ml_dtypes import _ml_dtypes_ext
from ml_dtypes._finfo import finfo
globals().update({{name: getattr(_ml_dtypes_ext, name) for name in {names}}})
"""
FROZEN = """
import importlib.metadata
find = importlib.metadata.version
def version(name):
    if name == "ml_dtypes":
        raise importlib.metadata.PackageNotFoundError(name)
    return find(name)
importlib.metadata.version = version
"""


def of_registry(tmp_path, before):
    """Return how arrays of bfloat16 end, which types zarr knows, and which it can't use."""
    path = write_array(tmp_path / "a", None, "bfloat16", [bytes_codec("big")])
    done = run_program("-W", "ignore", "-c", before + OF_REGISTRY, path)
    ends, names, unusable = json.loads(done.stdout)
    return ends, set(names), unusable


class TestWithoutMLDtypes:
    def test_all_ends_as_without_this_package(self, tmp_path):
        """18 types were registered, and raised an ImportError wherever they were used."""
        ends, names, unusable = of_registry(tmp_path, WITHOUT_ML_DTYPES + IMPORT)
        ends_alone, names_alone, _ = of_registry(tmp_path, WITHOUT_ML_DTYPES + WITHOUT_ENTRY_POINTS)
        assert all(ends)
        assert (ends, unusable) == (ends_alone, [])
        ours = {"r*", "struct", "complex_float32", "complex_float64"}
        assert names - names_alone == ours - names_alone

    @pytest.mark.parametrize("metadata", ["", FROZEN], ids=["installed", "frozen"])
    @pytest.mark.parametrize("version", ["0.3.2", "0.4.1", "0.5.0rc1", "0.10"])
    def test_other_versions(self, tmp_path, version, metadata):
        """Only what they have is registered."""
        release = Version(version).release
        has = {name for name, since in SINCE.items() if Version(since).release <= release}
        others = {"complex_bfloat16": "bcomplex32", "complex_float16": "complex32"}
        names = [others.get(name, name) for name in has]
        real = str(Path(ml_dtypes.__file__).parent)
        for file, text in (
            ("ml_dtypes/__init__.py", OLDER.format(real=real, version=version, names=names)),
            (f"ml_dtypes-{version}.dist-info/METADATA", f"Name: ml_dtypes\nVersion: {version}\n"),
        ):
            (tmp_path / file).parent.mkdir()
            (tmp_path / file).write_text(text)
        before = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{metadata}{IMPORT}"
        ends, found, unusable = of_registry(tmp_path, before)
        assert (found & SINCE.keys(), unusable) == (has, [])
        assert [bool(end) for end in ends] == [version == "0.3.2"] * 3

    def test_names_of_this_package(self):
        """The error of numcodecs, and of a class that is missing, says what to install."""
        program = """
import numcodecs, numcodecs_bytes.zarr_data_types as ours
for use in (lambda: numcodecs.get_codec({"id": "bytes", "dtype": "int4"}), lambda: ours.Int4):
    try:
        use()
    except (ImportError, AttributeError) as error:
        print(error)
print(hasattr(ours, "Int4"), hasattr(ours, "Int5"), "Int4" in dir(ours), "RawBits" in dir(ours))
"""
        done = run_program("-W", "error", "-c", WITHOUT_ML_DTYPES + program)
        what = "data type 'int4' needs the package ml_dtypes, which is not installed: pip install"
        assert done.stdout.splitlines() == [
            *2 * [f"{what} ml_dtypes"],
            "False False False True",
        ]


def test_names_in_structures_of_numcodecs():
    dtype = [["a", "bfloat16"], ["b", "r24"], ["c", [["d", "int4", [2]]]]]
    codec = Bytes("big", dtype)
    assert codec.get_config()["dtype"] == [dtype[0], ["b", "|V3"], dtype[2]]
    decoded = codec.decode(bytes.fromhex("3fc0 010203 f70f"))
    assert decoded["a"].tolist() == [1.5]
    assert decoded["c"]["d"].view("u1").tolist() == [[7, 15]]
    assert bytes(codec.encode(decoded)).hex() == "3fc0010203070f"
    assert Bytes("big", "complex_float32").dtype == "c8"


def struct_of(fields):
    fields = [{"name": name, "data_type": data_type} for name, data_type in fields]
    return {"name": "struct", "configuration": {"fields": fields}}


def test_numpy_descr_gives_the_canonical_struct():
    descr = [["a", [["b", ">i2"], ["c", [["d", "|u1"]]]]], ["e", "bfloat16"], ["f", "|V3"]]
    descr += [["flux64[W/m2]", "<f4"], ["name", "<U10"]]
    text = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 40}}
    inner = struct_of([("b", "int16"), ("c", struct_of([("d", "uint8")]))])
    fields = [("a", inner), ("e", "bfloat16"), ("f", "r24"), ("flux64[W/m2]", "float32")]
    data_type = parse_numpy_descr(descr)
    assert data_type.to_json(zarr_format=3) == struct_of([*fields, ("name", text)])
    assert type(data_type) is zarr_data_types.Struct
    with pytest.raises(ValueError, match="field 'b' is an array of shape \\(3,\\)"):
        parse_numpy_descr([["a", [["b", "<f4", 3]]]])
    with pytest.raises(TypeError, match="expected a list such as .*, got '<f4'"):
        parse_numpy_descr("<f4")


FIELDS = [("a", "int16"), ("b", struct_of([("c", "float64")])), ("d", "int4")]


@pytest.mark.usefixtures("pipeline")
class TestStruct:
    """On zarr 3.1.6 the class is ours, on newer versions zarr's: both must do this."""

    @BY_ENDIAN
    @pytest.mark.parametrize(
        "fill_value",
        [{"a": 7, "b": {"c": "NaN"}, "d": -1}, "BwAAAAAAAAD4fw8="],
        ids=["fields", "b64"],
    )
    def test_is_read_and_written(self, tmp_path, endian, fill_value):
        order, codecs = ORDER[endian], [bytes_codec(endian)]
        stored = struct.pack(order + "hdBhdB", 1, 1.5, 2, -2, 1e9, 0xFF)
        path = write_array(tmp_path, stored, struct_of(FIELDS), codecs, (4,), (2,), fill_value)
        array = zarr.open_array(path, mode="r+")
        assert repr(array[:].tolist()) == (
            "[(1, (1.5,), 2), (-2, (1000000000.0,), -1), (7, (nan,), -1), (7, (nan,), -1)]"
        )
        assert array[1:2]["b"]["c"].tolist() == [1e9]
        array[1] = array[0]
        assert (path / "c" / "0").read_bytes() == 2 * struct.pack(order + "hdB", 1, 1.5, 2)
        array.update_attributes({"x": 1})
        document = json.loads((path / "zarr.json").read_text())
        assert document["data_type"] == struct_of(FIELDS)
        assert document["fill_value"] == {"a": 7, "b": {"c": "NaN"}, "d": -1}
        assert document["codecs"] == [bytes_codec(endian)]

    def test_of_create_array_declares_its_endian(self):
        """`struct` must have one where it has a multi-byte field."""
        store = {}
        zarr.create_array(store, shape=2, dtype=data_type_of(struct_of(FIELDS)), compressors=None)
        assert zarr.open_array(store).metadata.codecs[0].to_dict() == bytes_codec("little")

    @pytest.mark.parametrize(
        "data_type",
        [
            struct_of([]),
            struct_of([("a", "int16")] * 2),
            struct_of([("a", "int3")]),
            struct_of([("a", "string")]),
            {"name": "struct", "configuration": {"fields": [{"name": "a"}]}},
            {"name": "struct", "configuration": {}},
        ],
        ids=str,
    )
    def test_bad_metadata_is_refused(self, tmp_path, data_type):
        path = write_array(tmp_path, None, data_type, [bytes_codec("big")], fill_value={})
        with pytest.raises((ValueError, TypeError, KeyError)):
            zarr.open_array(path)

    @pytest.mark.skipif(
        zarr_data_types.Struct.__module__ != zarr_data_types.__name__,
        reason="the data type is this zarr's own",
    )
    @pytest.mark.parametrize(
        ("field", "fill_value"),
        [
            ({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": [1]}}, 0),
            ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 2**70}}, ""),
            ("int16", 2**70),
        ],
        ids=str,
    )
    def test_the_field_of_bad_metadata_is_named(self, tmp_path, field, fill_value):
        """zarr's data types raise what they meet: OverflowError, or '<' is not supported."""
        data_type = struct_of([("n", "int8"), ("a", field)])
        path = write_array(
            tmp_path, None, data_type, [bytes_codec("big")], fill_value={"a": fill_value}
        )
        with pytest.raises(TypeError, match="field 'a' of a struct is not valid: "):
            zarr.open_array(path)
