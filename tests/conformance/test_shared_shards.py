"""zarr, zarrs, TensorStore and writes in place take turns on the same shards."""

import random

import numpy as np
import pytest
import zarr
from helpers import EVERYTHING, ZARRS_PIPELINE, bytes_codec, sharded, write_array
from peers import peer_or_skip

PIPELINES = {
    "zarr": {"codec_pipeline.path": ZARRS_PIPELINE},
    "zarrs": {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"},
    "in place": {
        "codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
        "numcodecs_bytes.write_in_place": "require",
    },
}


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("seed", range(20 if EVERYTHING else 4))
def test_each_reads_what_all_have_written(tmp_path, seed):
    rng = random.Random(seed)  # noqa: S311
    peer_or_skip("zarrs")
    tensorstore = peer_or_skip("tensorstore")

    def open_array(name):
        return tensorstore.open(tmp_path) if name == "tensorstore" else zarr.open_array(tmp_path)

    dtype = np.dtype(rng.choice(["uint8", "int16", "float64"]))
    inner = (rng.randint(1, 3), rng.randint(1, 3))
    shards = tuple(n * rng.randint(1, 4) for n in inner)
    shape = tuple(n * 2 for n in shards)
    transpose = [{"name": "transpose", "configuration": {"order": [1, 0]}}] * rng.randint(0, 1)
    index = [bytes_codec(rng.choice(["little", "big"])), *[{"name": "crc32c"}] * rng.randint(0, 1)]
    codec = bytes_codec(rng.choice(["little", "big"]))
    sharding = sharded(list(inner), *transpose, codec, index_codecs=index)
    sharding["configuration"]["index_location"] = rng.choice(["start", "end"])
    fill_value = rng.choice([0, 7])
    write_array(tmp_path, None, dtype.name, [sharding], shape, shards, fill_value)
    data = np.full(shape, fill_value, dtype)
    for step in range(24):
        writer = "in place" if rng.random() < 0.4 else rng.choice([*PIPELINES, "tensorstore"])
        box = tuple(slice(*sorted(rng.sample(range(n + 1), 2))) for n in shape)
        data[box] = fill_value if rng.random() < 0.3 else step + 10
        with zarr.config.set(PIPELINES.get(writer, {})):
            open_array(writer)[box] = data[box]
        for reader in (*PIPELINES, "tensorstore"):
            with zarr.config.set(PIPELINES.get(reader, {})):
                found = np.asarray(open_array(reader)[:])
            np.testing.assert_array_equal(found, data, err_msg=f"{step}: {writer}, {reader}")
