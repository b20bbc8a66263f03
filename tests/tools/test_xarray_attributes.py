"""Attributes that xarray reads: the same masked and unpacked values before and after migrate."""

import json
import traceback

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import EVERYTHING, HAS_STRUCT, metadata_v2, write_v2
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

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
NAN = float("nan")
FEW = [-999.0, -1, [-999.0], "-999", None, [], NAN]
SPELLED = [
    *(*FEW, -999, 0, 255, -999.9, 0.5, True, 1e300, 2**60 + 1, 2**64 - 1, 2**70, 10**25),
    *([[-999.0]], [-999.0, 0], [-999.0, -999], [None, -999.0], [NAN], [[1], [1, 2]], {}, [{}]),
    *("", ["-999", "b"], "AAAAAAAA+H8=", ["a", -999]),
]
SCALES = [0.5, 2, "0.5", [0.5], [[0.5]], [2], [0.5, 2.0], [], None, NAN, True, 2**70, {}]
# An attribute, the values that it may have, and other attributes beside it.
CASES = [
    ("_FillValue", SPELLED, {}),
    ("missing_value", SPELLED, {}),
    ("_FillValue", SPELLED, {"scale_factor": 0.5, "add_offset": 1.0}),
    ("_FillValue", FEW, {"missing_value": "a"}),
    ("_FillValue", FEW, {"missing_value": [0]}),
    ("_FillValue", FEW, {"missing_value": [], "add_offset": 10}),
    ("_FillValue", SPELLED, {"_Unsigned": "true"}),
    ("_FillValue", SPELLED, {"_Unsigned": "false"}),
    ("missing_value", FEW, {"_Unsigned": "true"}),
    ("_FillValue", FEW, {"units": "seconds since 2000-01-01"}),
    ("_FillValue", FEW, {"units": "seconds"}),
    ("_FillValue", FEW, {"dtype": "bool"}),
    ("scale_factor", SCALES, {}),
    ("add_offset", SCALES, {}),
    ("scale_factor", SCALES, {"add_offset": 1.0}),
    ("scale_factor", SCALES, {"missing_value": 0}),
    *((f"valid_{name}", FEW, {}) for name in ("min", "max", "range")),
]


def put(store, key, document):
    raw = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    sync(store.set(key, raw))


def with_fill_value(store, value):
    """Give the array of Zarr v3 another attribute `_FillValue`; return what check says of it."""
    raw = sync(store.get("a/zarr.json", default_buffer_prototype())).to_bytes()
    put(store, "a/zarr.json", json.loads(raw) | {"attributes": {"_FillValue": value}})
    (report,) = check(store)
    return report.problems


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
        why = report.reasons[0]  # dates and times are never masked
        is_explained = "but can't be told to" in why and "time" not in why
        assert isinstance(before, Exception) or is_explained, why
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
def test_xarray_reads_the_same(dtype, fill_value):
    """A plain number as _FillValue made xarray raise; another than fill_value masked other ones."""
    failed = []
    cases = [others | {name: value} for name, values, others in CASES for value in values]
    # All take five minutes, and depend little on zarr: every time, other ones for each data type.
    step, first = (7, int(HAS_STRUCT)) if EVERYTHING else (40, 0)
    for attributes in cases[(first - len(dtype)) % step :: step]:
        # Of Zarr v2, xarray masks wrong elements, and adds an offset to floats alone.
        is_wrong = dtype == ">i4" and "_Unsigned" in attributes
        if is_wrong or (dtype == "|b1" and "add_offset" in attributes):
            continue
        try:
            assert_same(store_of(dtype, DTYPES[dtype][0], fill_value, attributes))
        except AssertionError as error:
            failed.append(f"{attributes}: {error}")
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


def test_arrays_that_are_not_xarrays_keep_their_attributes():
    """Without names of dimensions, xarray reads an array in neither format."""
    attributes = {"_FillValue": "-999", "scale_factor": "x", "missing_value": {}}
    store = store_of("|S4", [b"a"], "", attributes, names=None)
    assert migrate(store)[0].status == "migrated"
    assert dict(zarr.open_array(store, path="a", zarr_format=3).attrs) == attributes


def test_arrays_without_dimensions_need_no_names(tmp_path):
    """Not in Zarr v3: there, xarray would decode the attribute of one that it could not read."""
    zarr.create_group(tmp_path, zarr_format=2)
    write_v2(tmp_path / "a", np.float32(1).tobytes(), "<f4", [])
    (tmp_path / "a/.zattrs").write_text('{"_FillValue": -999.0, "units": "K"}')
    report = migrate(tmp_path)[0]
    assert report.notes == ["attribute _FillValue -999.0 is dropped: xarray could not decode it"]
    opened = xr.open_zarr(tmp_path, consolidated=False, zarr_format=3)["a"]
    assert (float(opened), opened.attrs) == (1, {"units": "K"})


def test_check_names_attributes_that_xarray_can_not_decode():
    """One such attribute makes xarray raise for the whole group; how to mend it is said."""
    undecodable = 0
    for number, (dtype, (elements, _)) in enumerate(DTYPES.items()):
        store = store_of(dtype, elements, None, {})
        assert migrate(store)[0].status == "migrated"
        for value in SPELLED if EVERYTHING else SPELLED[number % 5 :: 5]:
            problems, after = with_fill_value(store, value), read(store, 3)
            is_named = any("attribute _FillValue" in problem for problem in problems)
            is_refused = isinstance(after, Exception) and "FillValueCoder" in "".join(
                traceback.format_exception(after)
            )
            assert is_named == is_refused, (dtype, value, after, problems)
            undecodable += is_named
    assert undecodable > 20
    store = store_of("<f4", [1, 2], None, {})
    migrate(store)
    (problem,) = with_fill_value(store, -999.0)
    assert problem == (
        "xarray can't read its group: the attribute _FillValue is -999.0, which it can't decode "
        'for float32: replace it with "AAAAAAA4j8A="'
    )
    assert with_fill_value(store, "AAAAAAA4j8A=") == []
