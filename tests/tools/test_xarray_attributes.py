"""Attributes that xarray reads: the same masked and unpacked values before and after migrate."""

import base64
import json
import struct
import traceback

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import HAS_STRUCT, metadata_v2, write_v2
from zarr.core.buffer import default_buffer_prototype

from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

xr = pytest.importorskip("xarray", reason="pip install '.[examples]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # xarray warns of most of these attributes
NUMBERS = [1, -999, 0, 100]
# The elements of an array, and fill values in .zarray, by data type.
DTYPES = {
    "<f4": ([1, -999, 0, np.nan, -999.9], [None, 0, -999, "NaN"]),
    ">f8": ([1, -999, 0, np.nan, -999.9], [None, 0, -999.9, "NaN", "-Infinity"]),
    "<f2": (NUMBERS, [None, 0, -999]),
    "|i1": ([1, -1, 0, 100], [None, 0, -1]),
    "<i2": (NUMBERS, [None, 0, -999]),
    ">i4": (NUMBERS, [None, -999]),
    "<i8": ([1, -999, 0, 2**60 + 1], [None, 0, -999, 2**60 + 1]),
    "|u1": ([1, 255, 0, 100], [None, 0, 255]),
    "<u8": ([1, 2**64 - 1, 0, 100], [None, 0, 2**64 - 1]),
    "|b1": ([1, 0, 1, 0], [None, False, True]),
    "<c8": ([1, -999, 0, 5j], [None, [0, 0], [-999, 0], [0, 5]]),
    "<U4": (["a", "-999", "", "b"], [None, "", "-999"]),
    "|S4": ([b"a", b"-999", b"", b"b"], [None, "", "LTk5OQ=="]),
    "|S1": ([b"a", b"9", b"", b"b"], [None, ""]),
    "|V2": ([b"ab", b"cd", b"\0\0", b"ef"], [None, "AAA="]),
    "<M8[s]": ([1, -999, 0, 5], [None, 0, "NaT"]),
    "<m8[s]": ([1, -999, 0, 5], [None, 0]),
    "text": (["a", "-999", "", "b"], [None, "", "-999"]),
    "bytes": ([b"a", b"-999", b"", b"b"], [None, ""]),
}
SPELLED = {
    "float": -999.0,
    "int": -999,
    "0": 0,
    "255": 255,
    "-1": -1,
    "[float]": [-999.0],
    "[[float]]": [[-999.0]],
    "[float, 0]": [-999.0, 0],
    "[float, -999]": [-999.0, -999],
    "-999.9": -999.9,
    "fraction": 0.5,
    "text": "-999",
    "no text": "",
    "[text]": ["-999", "b"],
    "base64": "AAAAAAAA+H8=",
    "mixed": ["a", -999],
    "null": None,
    "[null, float]": [None, -999.0],
    "[]": [],
    "NaN": float("nan"),
    "[NaN]": [float("nan")],
    "true": True,
    "1e300": 1e300,
    "2**60 + 1": 2**60 + 1,
    "2**64 - 1": 2**64 - 1,
    "2**70": 2**70,
    "10**25": 10**25,
    "{}": {},
    "[{}]": [{}],
    "ragged": [[1], [1, 2]],
}
FEW = {name: SPELLED[name] for name in ("float", "-1", "[float]", "text", "null", "[]", "NaN")}
SCALES = {
    "float": 0.5,
    "int": 2,
    "text": "0.5",
    "[float]": [0.5],
    "[[float]]": [[0.5]],
    "[int]": [2],
    "[float, float]": [0.5, 2.0],
    "[]": [],
    "null": None,
    "NaN": float("nan"),
    "true": True,
    "2**70": 2**70,
    "{}": {},
}
# Attributes by the name of a case, and the spellings that each may have.
PACKED = {"scale_factor": 0.5, "add_offset": 1.0}
CASES = {
    "_FillValue": (SPELLED, {}),
    "missing_value": (SPELLED, {}),
    "_FillValue, packed": (SPELLED, {"_FillValue": None, **PACKED}),
    "_FillValue, a text is missing": (FEW, {"missing_value": "a"}),
    "_FillValue, a number is missing": (FEW, {"missing_value": [0]}),
    "_FillValue, packed, nothing is missing": (FEW, {"missing_value": [], "add_offset": 10}),
    "_FillValue, _Unsigned": (SPELLED, {"_Unsigned": "true"}),
    "_FillValue, not _Unsigned": (SPELLED, {"_Unsigned": "false"}),
    "missing_value, _Unsigned": (FEW, {"_Unsigned": "true"}),
    "_FillValue of numbers of seconds": (FEW, {"units": "seconds since 2000-01-01"}),
    "_FillValue of durations": (FEW, {"units": "seconds"}),
    "_FillValue of bools": (FEW, {"dtype": "bool"}),
    "scale_factor": (SCALES, {}),
    "add_offset": (SCALES, {}),
    "scale_factor, with an offset": (SCALES, {"add_offset": 1.0}),
    "scale_factor, masked": (SCALES, {"missing_value": 0}),
    "valid_min": (FEW, {}),
    "valid_max": (FEW, {}),
    "valid_range": (FEW, {}),
}


def put(store, key, document):
    raw = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    store._store_dict[key] = raw


def store_of(dtype, elements, fill_value, attributes, names=("x",)):
    """Return a group of Zarr v2 with one array; its dimensions have names, if there are any."""
    store = zarr.storage.MemoryStore()
    put(store, ".zgroup", {"zarr_format": 2})
    vlen = {"text": "vlen-utf8", "bytes": "vlen-bytes"}.get(dtype)
    document = metadata_v2("|O" if vlen else dtype, [len(elements)], fill_value=fill_value)
    document["filters"] = [{"id": vlen}] if vlen else None
    put(store, "a/.zarray", document)
    names = {"_ARRAY_DIMENSIONS": list(names)} if names else {}
    put(store, "a/.zattrs", names | attributes)
    array = zarr.open_array(store, path="a", zarr_format=2)
    array[...] = np.array(elements, dtype=object if vlen else None).astype(array.dtype)
    return store


def read(store, zarr_format):
    """Return the dimensions, data type and values that xarray reads, or why it can't."""
    try:
        settings = {"chunks": None, "consolidated": False, "zarr_format": zarr_format}
        opened = xr.open_zarr(store, **settings)["a"].load()
    except Exception as error:  # noqa: BLE001 # xarray raises anything
        return error
    return opened.dims, opened.dtype, opened.to_numpy()


def assert_same(store):
    """The array reads the same after migrate, unless it can't be read before, or is refused."""
    before = read(store, 2)
    report = migrate(store)[0]
    if report.status == "refused":
        assert isinstance(before, Exception) or "but can't be told so" in report.reasons[0]
        return
    assert report.status == "migrated"
    if isinstance(before, Exception):
        return
    after = read(store, 3)
    assert not isinstance(after, Exception), after
    (dims, dtype, values), (dims_after, dtype_after, values_after) = before, after
    assert dims_after == dims
    if any("is dropped: no" in note for note in report.notes):  # for these, integers become floats
        values_after = values_after.astype(dtype)
    else:
        assert dtype_after == dtype
    # As text, for NaN equals itself then, also in arrays of objects.
    assert repr(values_after.tolist()) == repr(values.tolist())


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [(dtype, fill_value) for dtype, (_, values) in DTYPES.items() for fill_value in values],
)
def test_xarray_reads_the_same(dtype, fill_value, everything):
    """A plain number as _FillValue made xarray raise; another than fill_value masked other ones."""
    failed, number = [], len(dtype)
    # All take five minutes, and depend little on zarr: one half with old versions, one with new.
    step, first = (2, int(HAS_STRUCT)) if everything else (9, 0)
    for case, (spelled, others) in CASES.items():
        for name, value in spelled.items():
            number += 1
            if number % step != first:
                continue
            attributes = others | {case.partition(",")[0].partition(" ")[0]: value}
            if dtype == ">i4" and "_Unsigned" in attributes:
                continue  # of Zarr v2, xarray masks wrong elements then
            if dtype == "|b1" and "add_offset" in attributes:
                continue  # which xarray can add to floats alone
            store = store_of(dtype, DTYPES[dtype][0], fill_value, attributes)
            try:
                assert_same(store)
            except AssertionError as error:
                failed.append(f"{case} {name}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    "names",
    ["x", ["x"], [None], ["x", "y"], [], None, [0], {"x": 1}, [["x"]]],
    ids=str,
)
def test_names_of_dimensions(names):
    """Those that Zarr v3 can't hold are refused: xarray could not read the array any more."""
    store = store_of("<f4", [1, 2], 0, {"_ARRAY_DIMENSIONS": names})
    before = read(store, 2)
    report = migrate(store)[0]
    after = read(store, 3)
    if report.status == "refused":
        assert isinstance(before, Exception) or names in ([0], {"x": 1})
        assert (
            f"its attribute _ARRAY_DIMENSIONS is {names!r}, expected 1 names" in report.reasons[0]
        )
    else:
        assert after[0] == before[0]
        assert after[2].tolist() == before[2].tolist() == [1, 2]


def test_names_of_dimensions_in_nczarr(tmp_path):
    """NetCDF's own library names them in .zarray."""
    zarr.create_group(tmp_path, zarr_format=2)
    stored = np.array([1, -999], "<f4").tobytes()
    names = {"dimrefs": ["/lat", "/lon"]}
    write_v2(tmp_path / "a", stored, "<f4", [2, 1], fill_value=-999, _NCZARR_ARRAY=names)
    (tmp_path / "a/.zattrs").write_text('{"units": "K"}')
    before = xr.open_zarr(tmp_path, consolidated=False, zarr_format=2)["a"].load()
    assert before.dims == ("lat", "lon")
    assert {report.status for report in migrate(tmp_path)} == {"migrated"}
    after = xr.open_zarr(tmp_path, consolidated=False, zarr_format=3)["a"].load()
    xr.testing.assert_identical(after, before)


@pytest.mark.parametrize(
    ("fill_value", "given", "expected", "note"),
    [
        (None, -999.0, -999, None),
        (None, [-999.0], -999, None),
        (0, -999, 0, "attribute _FillValue -999 is dropped: xarray masks the fill value 0.0"),
        (-999, -999, -999, None),
        (None, "-999", None, "attribute _FillValue '-999' is dropped: no float32 equals it"),
    ],
)
def test_where_the_attribute_goes(fill_value, given, expected, note):
    store = store_of("<f4", [1, -999, 0], fill_value, {"_FillValue": given, "units": "K"})
    report = migrate(store)[0]
    assert report.notes == ([note] if note else [])
    attributes = dict(zarr.open_array(store, path="a", zarr_format=3).attrs)
    assert attributes.pop("units") == "K"
    encoded = attributes.pop("_FillValue", None)
    assert attributes == {}
    if expected is None:
        assert encoded is None
    else:
        assert struct.unpack("<d", base64.b64decode(encoded)) == (expected,)


def test_arrays_that_are_not_xarrays_keep_their_attributes():
    """Without names of dimensions, xarray reads an array in neither format."""
    attributes = {"_FillValue": "-999", "scale_factor": "x", "missing_value": {}}
    store = store_of("|S4", [b"a"], "", attributes, names=None)
    assert migrate(store)[0].status == "migrated"
    assert dict(zarr.open_array(store, path="a", zarr_format=3).attrs) == attributes


def test_arrays_without_dimensions_need_no_names(tmp_path):
    """Not in Zarr v3: there, xarray would decode the attribute of one that it could not read."""
    zarr.create_group(tmp_path, zarr_format=2)
    write_v2(tmp_path / "a", None, "<f4", [])
    (tmp_path / "a/0").write_bytes(np.float32(1).tobytes())
    (tmp_path / "a/.zattrs").write_text('{"_FillValue": -999.0, "units": "K"}')
    report = migrate(tmp_path)[0]
    assert report.notes == ["attribute _FillValue -999.0 is dropped: xarray could not decode it"]
    opened = xr.open_zarr(tmp_path, consolidated=False, zarr_format=3)["a"]
    assert (float(opened), opened.attrs) == (1, {"units": "K"})


def test_check_names_attributes_that_xarray_can_not_decode():
    """One such attribute makes xarray raise for the whole group; check said 0 problems."""
    undecodable = 0
    for dtype, (elements, _) in DTYPES.items():
        for name, value in SPELLED.items():
            store = store_of(dtype, elements, None, {})
            assert migrate(store)[0].status == "migrated"
            document = json.loads(store._store_dict["a/zarr.json"].to_bytes())
            put(store, "a/zarr.json", document | {"attributes": {"_FillValue": value}})
            after = read(store, 3)
            problems = next(report.problems for report in check(store))
            is_named = any("attribute _FillValue" in problem for problem in problems)
            is_refused = isinstance(after, Exception) and "FillValueCoder" in "".join(
                traceback.format_exception(after)
            )
            assert is_named == is_refused, (dtype, name, after, problems)
            undecodable += is_named
    assert undecodable > 100


def test_check_says_how_to_mend_it():
    store = store_of("<f4", [1, 2], None, {})
    migrate(store)
    document = json.loads(store._store_dict["a/zarr.json"].to_bytes())
    put(store, "a/zarr.json", document | {"attributes": {"_FillValue": -999.0}})
    (report,) = check(store)
    (problem,) = report.problems
    assert problem == (
        "xarray can't read its group: the attribute _FillValue is -999.0, which it can't decode "
        'for float32: replace it by "AAAAAAA4j8A="'
    )
    put(store, "a/zarr.json", document | {"attributes": {"_FillValue": "AAAAAAA4j8A="}})
    (report,) = check(store)
    assert not report.problems
