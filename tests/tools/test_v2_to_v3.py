"""What is said if an array's first chunk does not read the same as Zarr v3."""

import json

import numpy as np
import pytest
import zarr
import zarr.storage

from numcodecs_bytes._tools.v2_to_v3 import compare, v3_document


@pytest.fixture
def documents(tmp_path):
    """Return the metadata of Zarr v2, and those of Zarr v3 in the wrong byte order."""
    settings = {"compressors": None, "filters": None, "zarr_format": 2}
    array = zarr.create_array(tmp_path, shape=(4, 4), chunks=(4, 4), dtype="<i4", **settings)
    array[:] = np.arange(16).reshape(4, 4)
    old = json.loads((tmp_path / ".zarray").read_text())
    new = v3_document(old)
    assert new["codecs"] == [{"name": "bytes", "configuration": {"endian": "little"}}]
    new["codecs"][0]["configuration"]["endian"] = "big"
    return old, new


def test_which_chunk_differs(tmp_path, documents):
    at = zarr.storage.StorePath(zarr.storage.LocalStore(tmp_path))
    with pytest.raises(ValueError, match=r"chunk 0\.0 would read different values as Zarr v3"):
        compare(at, *documents)


def test_which_chunk_can_not_be_read(tmp_path, documents):
    (tmp_path / "0.0").write_bytes(b"")
    at = zarr.storage.StorePath(zarr.storage.LocalStore(tmp_path))
    with pytest.raises(ValueError, match=r"chunk 0\.0 can't be read: ValueError"):
        compare(at, *documents)
