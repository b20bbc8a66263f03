"""Other implementations, as far as the golden arrays do not go.

Whole shards through zarrs: those of the golden arrays reach over the edge of the array, where it
swaps the halves of big-endian complex numbers, and its pipeline is strict there. And what the
versions that are installed write: the golden files are of the versions of their day.

Run where the group `peers` is installed; zarrita.js where ZARRITA_MODULES names its folder.
"""

import numpy as np
import pytest
import zarr
from arrays import every_array, native_elements, write_files
from data_types import flat_bytes
from helpers import (
    BY_ENDIAN,
    bytes_codec,
    ignore_unstable_data_types,
    sharded,
    write_array,
)
from peers import PEERS

from numcodecs_bytes.zarr import BytesCodec

pytestmark = ignore_unstable_data_types
NUMBERS = [
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
BY_NUMBER = pytest.mark.parametrize("data_type", NUMBERS)


class TestWholeShardsOfZarrs:
    @pytest.fixture
    def zarrs(self):
        pytest.importorskip("zarrs", reason="pip install --group peers")
        return {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}

    def create(self, path, data_type, endian):
        fill_value = {"bool": False, "complex64": [0, 0], "complex128": [0, 0]}.get(data_type, 0)
        index_codecs = [bytes_codec(endian), {"name": "crc32c"}]
        shards = sharded([2, 3], bytes_codec(endian), index_codecs=index_codecs)
        write_array(path, None, data_type, [shards], [8, 6], [4, 6], fill_value)
        array = zarr.open_array(path, mode="r+")
        assert type(array.metadata.codecs[0].codecs[0]) is BytesCodec
        return array

    def data_of(self, data_type):
        data = np.arange(8 * 6).reshape(8, 6) * 5
        if data_type == "bool":
            return data % 3 == 0
        return (data % 3 + 1j * data if "complex" in data_type else data).astype(data_type)

    @BY_ENDIAN
    @BY_NUMBER
    def test_their_arrays_are_read(self, tmp_path, zarrs, data_type, endian):
        with zarr.config.set(zarrs):
            self.create(tmp_path, data_type, endian)[:] = self.data_of(data_type)
        assert (zarr.open_array(tmp_path)[:] == self.data_of(data_type)).all()

    @BY_ENDIAN
    @BY_NUMBER
    def test_our_shards_are_read_by_theirs(self, tmp_path, zarrs, data_type, endian):
        self.create(tmp_path, data_type, endian)[:] = self.data_of(data_type)
        with zarr.config.set(zarrs):
            theirs = zarr.open_array(tmp_path)[:]
        assert (theirs == self.data_of(data_type)).all()


@pytest.mark.parametrize("implementation", PEERS)
def test_arrays_of_the_installed_versions_are_read(tmp_path, implementation):
    try:
        peer = PEERS[implementation]()
    except ImportError as error:
        pytest.skip(f"{implementation} is not installed: {error}")
    asked = [
        which
        for which in every_array()
        if which[0].metadata in NUMBERS and not peer.miswrites(*which)
    ]
    paths = [write_files(tmp_path / str(i), which) for i, which in enumerate(asked)]
    elements = [native_elements(data_type, layout) for data_type, _, layout in asked]
    num_read = 0
    for which, path, expected, error in zip(
        asked, paths, elements, peer.write(paths, elements), strict=True
    ):
        if error is None:
            got = np.asarray(zarr.open_array(path, mode="r")[...])
            assert flat_bytes(got) == flat_bytes(expected), which
            num_read += 1
    assert num_read >= 80
