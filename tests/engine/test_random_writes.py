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
    HAS_STRUCTURES_IN_SHARDS,
    ZARR_ALONE,
    random_array,
    random_selections,
)
from zarr.codecs import Crc32cCodec, ShardingCodec, TransposeCodec

import numcodecs_bytes
from numcodecs_bytes.zarr_codec import BytesCodec

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have a Zarr V3 spec", "ignore:.*structured dtype"
)
ENDIANS = "little", "big"


def random_settings(rng, chunks, dtype):
    settings = {"compressors": None, "filters": None, "chunks": chunks, "dtype": dtype}
    settings["config"] = {"write_empty_chunks": rng.random() < 0.5}
    if rng.random() < 0.5 and dtype.kind in "fiu":
        settings["fill_value"] = rng.choice([0, 1, 7]) if dtype.kind != "f" else -0.0
    if rng.random() < 0.3:
        codec = numcodecs_bytes.Bytes(rng.choice(ENDIANS), dtype)
        filters = rng.choice([None, [codec]])
        return settings | {"zarr_format": 2, "order": rng.choice("CF"), "filters": filters}
    codec = rng.choice([BytesCodec, zarr.codecs.BytesCodec])(endian=rng.choice(ENDIANS))
    order = tuple(rng.sample(range(len(chunks)), len(chunks)))
    transposes = [TransposeCodec(order=order)] * rng.randint(0, 1)
    is_refused = dtype.kind == "V" and not HAS_STRUCTURES_IN_SHARDS
    if not chunks or rng.random() < 0.5 or is_refused:
        return settings | {"serializer": codec, "filters": transposes}
    sharding = ShardingCodec(
        chunk_shape=chunks,
        codecs=[*transposes, codec],
        index_codecs=[BytesCodec(endian=rng.choice(ENDIANS)), *[Crc32cCodec()] * rng.randint(0, 1)],
        index_location=rng.choice(["start", "end"]),
    )
    shards = tuple(n * rng.randint(1, 3) for n in chunks)
    return settings | {"chunks": shards, "serializer": sharding}


class Arrays:
    """An array that is written by zarr alone, the same in place, and what NumPy makes of it."""

    def __init__(self, rng, folder):
        self.rng, self.folder = rng, folder
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 3)))
        chunks = tuple(rng.randint(1, n) for n in shape)
        dtypes = DTYPES + [[("a", ">i4"), ("b", "<f8"), ("c", "?")]] * HAS_STRUCT
        self.dtype = np.dtype(rng.choice(dtypes))
        settings = random_settings(rng, chunks, self.dtype)
        self.is_sharded = isinstance(settings.get("serializer"), ShardingCodec)
        self.ours = zarr.create_array(folder / "ours", shape=shape, **settings)
        zarr.create_array(folder / "alone", shape=shape, **settings)
        self.config = settings["config"]
        self.open_alone()
        self.elements = random_array(self.dtype, (999,))
        self.data = np.full(shape, self.alone.fill_value, self.dtype)

    def open_alone(self):
        """Open both as zarr alone does."""
        with zarr.config.set(ZARR_ALONE):
            self.alone, self.ours_alone = (
                zarr.open_array(self.folder / name, mode="r+", config=self.config)
                for name in ("alone", "ours")
            )

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
        values = np.resize(self.elements[rng.randrange(99) :], np.shape(places))
        if rng.random() < 0.2:
            values = self.alone.fill_value
        # Of several values for an element, zarr itself keeps any.
        elif rng.random() < 0.3 or np.size(places) > len(np.unique(places)):
            values = rng.choice(self.elements)
        for opened, config in ((self.ours, {}), (self.alone, ZARR_ALONE)):
            with zarr.config.set(config):
                (opened if way == "basic" else getattr(opened, way))[selection] = values
        array.reshape(-1)[places] = values

    def change(self):
        """Delete a chunk, resize or append."""
        rng, root = self.rng, self.folder / "alone"
        kind = rng.choice(["delete", "resize", "append"])
        if kind == "delete" or not self.data.shape:
            files = sorted(chunks_in(root))
            for path in rng.sample(files, min(1, len(files))):
                path.unlink()
                (self.folder / "ours" / path.relative_to(root)).unlink(missing_ok=True)
        elif kind == "resize":
            shape = tuple(rng.randint(1, 9) for _ in self.data.shape)
            for opened in (self.ours, self.alone):
                opened.resize(shape)
        else:
            more = np.resize(self.elements, (2, *self.data.shape[1:]))
            for opened, config in ((self.ours, {}), (self.alone, ZARR_ALONE)):
                with zarr.config.set(config):
                    opened.append(more)
        self.open_alone()
        with zarr.config.set(ZARR_ALONE):
            self.data = np.array(self.alone[...], self.dtype, order="C")

    def check(self):
        """Read what is written in place as zarr alone does, and compare the files."""
        with zarr.config.set(ZARR_ALONE):
            np.testing.assert_array_equal(self.ours_alone[...], self.data)
        for path in chunks_in(self.folder / "alone"):
            other = self.folder / "ours" / path.relative_to(self.folder / "alone")
            if not self.is_sharded:  # ours has all inner chunks
                assert other.read_bytes() == path.read_bytes()
        assert not list(self.folder.rglob("*.partial"))


def chunks_in(folder):
    return [path for path in folder.rglob("*") if path.is_file() and "z" not in path.name]


@pytest.mark.usefixtures("_in_place")
@pytest.mark.parametrize("seed", range(60 if EVERYTHING else 5))
def test_the_same_as_numpy_and_zarr(tmp_path, set_constants, seed):
    """After each of 20 writes; each size of the engine is drawn at random, so none is special."""
    rng = random.Random(seed)  # noqa: S311
    set_constants(
        BLOCK_BYTES=rng.choice([16, 64, 1 << 20]),
        MIN_RUNS_PER_HULL=rng.choice([0, 2, 8]),
        GAP_BYTES=rng.choice([0, 16, 1 << 13]),
        GROUP_BYTES=rng.choice([16, 1 << 23]),
        PARALLEL_BYTES=rng.choice([0, 1 << 19]),
        MAPPED_COPY_BYTES=rng.choice([0, 1 << 26]),
    )
    arrays = Arrays(rng, tmp_path)
    for _ in range(20):
        arrays.write()
        if rng.random() < 0.15:
            arrays.change()
        arrays.check()
    with zarr.config.set(ZARR_ALONE):
        np.testing.assert_array_equal(arrays.alone[...], arrays.data)
