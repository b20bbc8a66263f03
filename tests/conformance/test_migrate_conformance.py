"""Every golden array that Zarr v2 can hold: sound by check, and the same values after migrate."""

import itertools
import json

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.storage
from arrays import DATA_TYPES, native_elements, reference_chunks
from data_types import ENDIANS, flat_bytes
from helpers import EVERYTHING, HAS_STRUCT, metadata_v2

import numcodecs_bytes
from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 specification",
    "ignore:Both zarr",
    "ignore:Missing 'endian'",
    "ignore:Numcodecs codecs are not in the Zarr version 3",
)
LAYOUTS = {
    "single": {"chunks": [3, 4]},
    "edge": {"chunks": [2, 3]},
    "transposed": {"chunks": [2, 3], "order": "F"},
    "0-d": {"shape": [], "chunks": []},
    "zlib": {"chunks": [2, 3], "compressor": {"id": "zlib", "level": 1}},
}
# A second name for the elements of another one, or for Zarr v3 alone.
_ALIASES = {"raw_bytes", "r40, fill value in base64", "complex_float32", "complex_float64"}
_ALIASES |= {"structured"}


def v2_dtype_of(data_type, endian):
    """Return the dtype that Zarr v2 has for a data type, None where it has none."""
    dtype = data_type.case.dtype.newbyteorder("<" if endian == "little" else ">")
    try:
        written = numcodecs_bytes.Bytes(endian, dtype).get_config()["dtype"]
        np.dtype(_as_tuples(written))
    except TypeError:
        return None
    has_structures = HAS_STRUCT or not isinstance(written, list)  # of Zarr v3
    return written if has_structures and data_type.name not in _ALIASES else None


def _as_tuples(descr):
    if not isinstance(descr, list):
        return descr
    return [(name, _as_tuples(inner), *shape) for name, inner, *shape in descr]


def written(folder):
    """Write the arrays as Zarr v2; return paths and elements of those that zarr can read.

    All of them, or a seventh: each data type in one layout or two.
    """
    elements, number = {}, 0
    for (name, data_type), endian, layout in itertools.product(
        DATA_TYPES.items(), ENDIANS, LAYOUTS
    ):
        dtype = v2_dtype_of(data_type, endian)
        number += dtype is not None
        if dtype is None or (number % 7 and not EVERYTHING):
            continue
        path = f"{name}, {endian}, {layout}"
        document = metadata_v2(dtype, [3, 4], fill_value=None) | LAYOUTS[layout]
        folder.joinpath(path).mkdir()
        folder.joinpath(path, ".zarray").write_text(json.dumps(document))
        golden = "edge" if layout == "zlib" else layout
        for key, chunk in reference_chunks(data_type, endian, golden).items():
            raw = numcodecs.Zlib(1).encode(chunk) if layout == "zlib" else chunk
            file = key.removeprefix("c/").replace("/", ".").replace("c", "0")
            folder.joinpath(path, file).write_bytes(raw)
        elements[path] = native_elements(data_type, golden)
    folder.joinpath(".zgroup").write_text('{"zarr_format": 2}')
    return elements


def test_values_are_the_same_before_and_after(tmp_path):
    elements = written(tmp_path)
    assert len(elements) > (200 if EVERYTHING else 28)
    store = zarr.storage.LocalStore(tmp_path)

    def check_all(zarr_format):
        reports = {report.path: report.problems for report in check(store)}
        assert reports == {path: [] for path in elements}
        for path, expected in elements.items():
            array = zarr.open_array(tmp_path / path, zarr_format=zarr_format, mode="r")
            values = np.asarray(array[...]).astype(expected.dtype)
            assert flat_bytes(values) == flat_bytes(expected), path

    check_all(2)
    statuses = {report.path: (report.status, report.reasons) for report in migrate(store)}
    assert statuses == dict.fromkeys(["", *elements], ("migrated", []))
    check_all(3)
