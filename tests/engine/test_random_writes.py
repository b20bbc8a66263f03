"""Random writes to random arrays: the values are NumPy's, and the bytes those of zarr alone."""

import random

import numpy as np
import pytest
import zarr
import zarr.codecs
from helpers import (
    DTYPES,
    EVERYTHING,
    HAS_STRUCT,
    OUR_PIPELINES,
    ZARRS_PIPELINE,
    random_array,
    random_selections,
)
from zarr.codecs import TransposeCodec

import numcodecs_bytes
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.layout import layout_of
from numcodecs_bytes.zarr import BytesCodec

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 spec", "ignore:.*structured dtype"
)
ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "numcodecs_bytes.write_in_place": False}


def random_settings(rng, chunks, dtype):
    num_axes, way = len(chunks), rng.choice(["ours", "zarr's", "transposed", "v2", "v2 bytes"])
    endian = rng.choice(["little", "big"])
    settings = {"compressors": None, "filters": None}
    settings["config"] = {"write_empty_chunks": rng.random() < 0.5}
    if rng.random() < 0.5 and dtype.kind in "fiu":
        settings["fill_value"] = rng.choice([0, 1, 7]) if dtype.kind != "f" else -0.0
    if way.startswith("v2"):
        codec = numcodecs_bytes.Bytes(endian, dtype)
        filters = [codec] if way == "v2 bytes" else None
        return settings | {"zarr_format": 2, "order": rng.choice("CF"), "filters": filters}
    codec = zarr.codecs.BytesCodec if way == "zarr's" else BytesCodec
    settings["serializer"] = codec(endian=endian)
    if way == "transposed":
        order = tuple(rng.sample(range(num_axes), num_axes))
        settings["filters"] = [TransposeCodec(order=order)]
    if rng.random() < 0.5 and (HAS_STRUCT or dtype.kind != "V"):
        shape = tuple(n * rng.randint(1, 3) for n in chunks)
        location = rng.choice(["start", "end"])
        settings["shards"] = {"shape": shape, "index_location": location}
    return settings


class Arrays:
    """An array that is written by zarr alone, the same in place, and what NumPy makes of it."""

    def __init__(self, rng, folder):
        self.rng, self.folder = rng, folder
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 3)))
        chunks = tuple(rng.randint(1, n) for n in shape)
        dtypes = DTYPES + [[("a", ">i4"), ("b", "<f8"), ("c", "?")]] * HAS_STRUCT
        self.dtype = np.dtype(rng.choice(dtypes))
        settings = random_settings(rng, chunks, self.dtype)
        options = {"shape": shape, "chunks": chunks, "dtype": self.dtype, **settings}
        if not shape:
            options.pop("shards", None)
        self.is_sharded = bool(options.get("shards"))
        self.ours = zarr.create_array(folder / "ours", **options)
        with zarr.config.set(ALONE):
            self.alone = zarr.create_array(folder / "alone", **options)
        self.data = np.full(shape, self.alone.fill_value, self.dtype)

    def write(self):
        """Write random values to a random selection."""
        rng, array = self.rng, self.data
        selections = [("basic", (), lambda a: a)]
        if array.shape:
            selections = list(random_selections(rng, array.shape, 1))
        if self.is_sharded and not HAS_STRUCT:  # zarr 3.1.6 can't write others to shards
            selections = [each for each in selections if each[0] == "basic"]
        way, selection, of_numpy = rng.choice(selections)
        places = of_numpy(np.arange(array.size).reshape(array.shape))
        values = random_array(self.dtype, np.shape(places))
        values = np.ravel(values)[np.random.default_rng(rng.randrange(99)).permutation(values.size)]
        values = values.reshape(np.shape(places))
        if rng.random() < 0.3:
            values = values.ravel()[0] if values.size else self.alone.fill_value
        if rng.random() < 0.2:
            values = self.alone.fill_value
        # Of several values for an element, zarr itself keeps any, and in shards another one.
        is_any = np.size(places) > len(np.unique(places)) and np.ndim(values)
        if is_any and self.is_sharded:
            values, is_any = values.ravel()[0], False
        for opened, config in ((self.ours, {}), (self.alone, ALONE)):
            with zarr.config.set(config):
                (opened if way == "basic" else getattr(opened, way))[selection] = values
        if is_any:
            self.read()
        else:
            values = np.broadcast_to(values, np.shape(places))
            array.reshape(-1)[np.ravel(places)] = np.ravel(values)

    def read(self):
        """Take what zarr alone has written for what is expected."""
        with zarr.config.set(ALONE):
            self.data = np.array(self.alone[...], self.dtype, order="C")

    def change(self):
        """Delete a chunk, resize or append."""
        rng, root = self.rng, self.folder / "alone"
        kind = rng.choice(["delete", "resize", "append"])
        if kind == "delete" or not self.data.shape:
            files = [p for p in root.rglob("*") if p.is_file() and "z" not in p.name]
            for path in rng.sample(sorted(files), min(1, len(files))):
                path.unlink()
                (self.folder / "ours" / path.relative_to(root)).unlink(missing_ok=True)
        elif kind == "resize":
            shape = tuple(rng.randint(1, 9) for _ in self.data.shape)
            for opened in (self.ours, self.alone):
                opened.resize(shape)
        else:
            more = random_array(self.dtype, (2, *self.data.shape[1:]))
            for opened, config in ((self.ours, {}), (self.alone, ALONE)):
                with zarr.config.set(config):
                    opened.append(more)
        self.read()

    def check(self):
        for name in ("ours", "alone"):
            with zarr.config.set(ALONE):
                found = zarr.open_array(self.folder / name, mode="r")[...]
            np.testing.assert_array_equal(found, self.data, err_msg=name)
        root = self.folder / "alone"
        for path in (p for p in root.rglob("*") if p.is_file() and "z" not in p.name):
            other = self.folder / "ours" / path.relative_to(root)
            if not self.is_sharded:  # ours has all inner chunks
                assert other.read_bytes() == path.read_bytes()
        assert not list(self.folder.rglob("*.partial"))


@pytest.mark.parametrize("pipeline", OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
@pytest.mark.parametrize("seed", range(400 if EVERYTHING else 25))
def test_the_same_as_numpy_and_zarr(tmp_path, monkeypatch, pipeline, seed):
    """After each of 20 writes; each size of the engine is drawn at random, so none is special."""
    rng = random.Random(seed)  # noqa: S311
    for name, numbers in {
        "BLOCK_BYTES": [16, 64, 1 << 20],
        "REWRITE_FROM": [0, 2, 8],
        "GAP_BYTES": [0, 16, 1 << 13],
        "GROUP_BYTES": [16, 1 << 23],
        "PARALLEL_BYTES": [0, 1 << 19],
        "COPIED_BYTES": [0, 1 << 26],
    }.items():
        monkeypatch.setattr(constants, name, rng.choice(numbers))
    layout_of.cache_clear()
    settings = {"codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require"}
    with zarr.config.set(settings):
        arrays = Arrays(rng, tmp_path)
        for _ in range(20):
            arrays.write()
            if rng.random() < 0.15:
                arrays.change()
            arrays.check()
    layout_of.cache_clear()
