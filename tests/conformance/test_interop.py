"""Other implementations, as far as the golden arrays do not go.

Whole shards through zarrs: those of the golden arrays reach over the edge of the array, where it
swaps the halves of big-endian complex numbers, and its pipeline is strict there. And what the
versions that are installed write: the golden files are of the versions of their day.

Run where the group `peers` is installed; zarrita.js where ZARRITA_MODULES names its folder.
"""

import random

import numpy as np
import pytest
import zarr
from arrays import every_array, native_elements, write_files
from data_types import flat_bytes
from helpers import (
    BY_ENDIAN,
    EVERYTHING,
    ZARRS_PIPELINE,
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
IN_PLACE = {
    "codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BytesPipeline",
    "numcodecs_bytes.write_in_place": "require",
}
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


class TestHistoriesOfShards:
    """All write to the same shards in turns, and each reads what the others wrote."""

    def writers(self, path):
        """Return what assigns to a selection, and what reads all, by name."""
        ts = pytest.importorskip("tensorstore", reason="pip install --group peers")
        pytest.importorskip("zarrs", reason="pip install --group peers")

        def by_zarr(config):
            def assign(selection, values):
                with zarr.config.set(config):
                    zarr.open_array(path, mode="r+")[selection] = values

            def read():
                with zarr.config.set(config):
                    return zarr.open_array(path, mode="r")[...]

            return assign, read

        def opened():
            kvstore = {"driver": "file", "path": str(path)}
            return ts.open({"driver": "zarr3", "kvstore": kvstore}).result()

        def assign(selection, values):
            opened()[selection] = values

        return {
            "zarr": by_zarr({"codec_pipeline.path": ZARRS_PIPELINE}),
            "zarrs": by_zarr({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}),
            "tensorstore": (assign, lambda: opened().read().result()),
            "in place": by_zarr(IN_PLACE),
        }

    @pytest.mark.parametrize("seed", range(20 if EVERYTHING else 4))
    def test_the_same_as_numpy(self, tmp_path, seed):
        rng = random.Random(seed)  # noqa: S311
        writers = self.writers(tmp_path)
        dtype = np.dtype(rng.choice(["uint8", "int16", "float64"]))
        inner = (rng.randint(1, 3), rng.randint(1, 3))
        shards = tuple(n * rng.randint(1, 4) for n in inner)
        shape = tuple(n * 2 for n in shards)
        before = [{"name": "transpose", "configuration": {"order": [1, 0]}}] * rng.randint(0, 1)
        index = [bytes_codec(rng.choice(["little", "big"]))]
        index += [{"name": "crc32c"}] * rng.randint(0, 1)
        codec = bytes_codec(rng.choice(["little", "big"]))
        sharding = sharded(list(inner), *before, codec, index_codecs=index)
        sharding["configuration"]["index_location"] = rng.choice(["start", "end"])
        fill_value = rng.choice([0, 7])
        write_array(tmp_path, None, dtype.name, [sharding], shape, shards, fill_value)
        data = np.full(shape, fill_value, dtype)
        for step in range(24):
            name = "in place" if rng.random() < 0.4 else rng.choice(list(writers))
            box = tuple(slice(*sorted(rng.sample(range(n + 1), 2))) for n in shape)
            values = np.full(
                data[box].shape, fill_value if rng.random() < 0.3 else step + 10, dtype
            )
            writers[name][0](box, values)
            data[box] = values
            for reader, (_, read) in writers.items():
                np.testing.assert_array_equal(read(), data, err_msg=f"{step}: {name}, {reader}")
