"""Every golden array that Zarr v2 can hold: sound by check, and the same values after migrate.

In this process, and in one in which zarr does not find numcodecs_bytes.
"""

import hashlib
import json
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.storage
from arrays import DATA_TYPES, native_elements, reference_chunks
from data_types import ENDIANS, flat_bytes
from helpers import EVERYTHING, HAS_STRUCT, metadata_v2, run_python

from numcodecs_bytes._core.configuration import dtype_to_json
from numcodecs_bytes._core.dtypes import leaf_dtypes, pack_dtype
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
READ_ALONE = """
import hashlib, json, sys, warnings
sys.path.insert(0, sys.argv[1])
from programs import leave_zarr_alone
leave_zarr_alone()
warnings.simplefilter("ignore")
import numpy as np
import zarr
found = {}
for path in json.load(sys.stdin):
    try:
        array = zarr.open_array(f"{sys.argv[2]}/{path}", zarr_format=3, mode="r")
        native = np.asarray(array[...]).astype(array.dtype.newbyteorder("="))
        found[path] = hashlib.sha256(native.tobytes()).hexdigest()
    except Exception as error:
        found[path] = type(error).__name__
assert "numcodecs_bytes" not in sys.modules
print(json.dumps(found))
"""


def v2_dtype_of(data_type, endian):
    """Return the dtype that Zarr v2 has for a data type, None where it has none."""
    if data_type.name in _ALIASES:
        return None
    dtype = pack_dtype(data_type.case.dtype).newbyteorder("<" if endian == "little" else ">")
    written = dtype_to_json(dtype)
    descr = [tuple(field) for field in written] if isinstance(written, list) else written
    try:
        is_same = np.dtype(_as_tuples(descr)) == dtype
    except TypeError:
        return None
    return written if is_same else None


def _as_tuples(descr):
    if not isinstance(descr, list):
        return descr
    return [(name, _as_tuples(inner), *shape) for name, inner, *shape in descr]


def written(folder):
    """Write the arrays as Zarr v2; return paths and elements of those that zarr can read.

    All of them, or a seventh: each data type in one layout or two.
    """
    elements, number = {}, 0
    for name, data_type in DATA_TYPES.items():
        for endian in ENDIANS:
            dtype = v2_dtype_of(data_type, endian)
            if dtype is None or (isinstance(dtype, list) and not HAS_STRUCT):
                continue  # zarr 3.1.6 has no structures of Zarr v3
            for layout, settings in LAYOUTS.items():
                number += 1
                if not EVERYTHING and number % 7:
                    continue
                path = f"{name}, {endian}, {layout}"
                document = metadata_v2(dtype, [3, 4], fill_value=None) | settings
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
    _assert_the_same_alone(tmp_path, elements)


def _assert_the_same_alone(folder, elements):
    """zarr alone has no data types of ml_dtypes."""
    ecosystem = Path(__file__).parents[1] / "ecosystem"
    names = json.dumps(list(elements))
    done = run_python("-c", READ_ALONE, ecosystem, folder, options={"input": names})
    found = json.loads(done.stdout)
    unread = {
        path
        for path, expected in elements.items()
        if found[path] != hashlib.sha256(flat_bytes(expected)).hexdigest()
    }
    assert unread == {
        path
        for path, array in elements.items()
        if any(leaf.isbuiltin == 2 for leaf in leaf_dtypes(array.dtype))
    }
