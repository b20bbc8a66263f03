"""Arrays of other implementations are read with equal values, and they read ours.

Run where the extra `interop` is installed (tensorstore, and zarrs as zarr-python's pipeline).
"""

import numpy as np
import pytest
import zarr
from data_types import ENDIANS
from test_zarr import HAS_STRUCT, bytes_codec, metadata, write_array

from numcodecs_bytes.zarr import BytesCodec

NUMBERS = [
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
SHARDED = pytest.mark.parametrize("sharded", [False, True], ids=["chunks", "shards"])
BY_ENDIAN = pytest.mark.parametrize("endian", ENDIANS)
BY_NUMBER = pytest.mark.parametrize("data_type", NUMBERS)


def data_of(data_type):
    data = np.arange(8 * 6).reshape(8, 6) * 5
    if data_type == "bool":
        return data % 3 == 0
    return (data % 3 + 1j * data if "complex" in data_type else data).astype(data_type)


def codecs_of(endian, *, sharded):
    if not sharded:
        return [bytes_codec(endian)]
    configuration = {
        "chunk_shape": [2, 3],
        "codecs": [bytes_codec(endian)],
        "index_codecs": [bytes_codec(endian), {"name": "crc32c"}],
    }
    return [{"name": "sharding_indexed", "configuration": configuration}]


def create_ours(path, data_type, endian, *, sharded):
    fill_value = {"bool": False, "complex64": [0, 0], "complex128": [0, 0]}.get(data_type, 0)
    codecs = codecs_of(endian, sharded=sharded)
    write_array(path, None, data_type, codecs, [8, 6], [4, 6], fill_value)
    array = zarr.open_array(path, mode="r+")
    (codec,) = array.metadata.codecs
    assert type(codec.codecs[0] if sharded else codec) is BytesCodec
    return array


class TestTensorStore:
    @pytest.fixture
    def tensorstore(self):
        return pytest.importorskip("tensorstore", reason="the extra interop is not installed")

    def open(self, tensorstore, path, **more):
        kvstore = {"driver": "file", "path": str(path)}
        return tensorstore.open({"driver": "zarr3", "kvstore": kvstore, **more}).result()

    @SHARDED
    @BY_ENDIAN
    @BY_NUMBER
    def test_we_read_theirs(self, tmp_path, tensorstore, data_type, endian, sharded):
        document = metadata(
            data_type, codecs_of(endian, sharded=sharded), [8, 6], [4, 6], fill_value=None
        )
        for key in ("fill_value", "attributes"):
            del document[key]
        theirs = self.open(tensorstore, tmp_path / "array", metadata=document, create=True)
        theirs.write(data_of(data_type)).result()
        assert (zarr.open_array(tmp_path / "array")[:] == data_of(data_type)).all()

    @SHARDED
    @BY_ENDIAN
    @BY_NUMBER
    def test_they_read_ours(self, tmp_path, tensorstore, data_type, endian, sharded):
        ours = create_ours(tmp_path / "array", data_type, endian, sharded=sharded)
        ours[:] = data_of(data_type)
        theirs = self.open(tensorstore, tmp_path / "array").read().result()
        assert (theirs == data_of(data_type)).all()

    @BY_ENDIAN
    def test_structures(self, tmp_path, tensorstore, endian):
        data_type = {
            "name": "struct" if HAS_STRUCT else "structured",
            "configuration": {
                "fields": [
                    {"name": "a", "data_type": "int16"},
                    {"name": "b", "data_type": "float64"},
                ]
                if HAS_STRUCT
                else [["a", "int16"], ["b", "float64"]]
            },
        }
        fill_value = {"a": 0, "b": 0} if HAS_STRUCT else "AAAAAAAAAAAAAA=="
        write_array(tmp_path, None, data_type, [bytes_codec(endian)], [3], None, fill_value)
        data = np.array([(1, 1.5), (-2, 1e9), (3, -0.0)], [("a", "i2"), ("b", "f8")])
        zarr.open_array(tmp_path, mode="r+")[:] = data
        for field in ("a", "b"):
            theirs = self.open(tensorstore, tmp_path, field=field).read().result()
            assert theirs.tolist() == data[field].tolist()


class TestZarrs:
    """Whole chunks: of parts of chunks, zarrs swaps the halves of big-endian complex numbers."""

    @pytest.fixture
    def zarrs(self):
        pytest.importorskip("zarrs", reason="the extra interop is not installed")
        return {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}

    @SHARDED
    @BY_ENDIAN
    @BY_NUMBER
    def test_we_read_theirs(self, tmp_path, zarrs, data_type, endian, sharded):
        with zarr.config.set(zarrs):
            theirs = create_ours(tmp_path / "array", data_type, endian, sharded=sharded)
            theirs[:] = data_of(data_type)
        assert (zarr.open_array(tmp_path / "array")[:] == data_of(data_type)).all()

    @SHARDED
    @BY_ENDIAN
    @BY_NUMBER
    def test_they_read_ours(self, tmp_path, zarrs, data_type, endian, sharded):
        ours = create_ours(tmp_path / "array", data_type, endian, sharded=sharded)
        ours[:] = data_of(data_type)
        with zarr.config.set(zarrs):
            theirs = zarr.open_array(tmp_path / "array")[:]
        assert (theirs == data_of(data_type)).all()
