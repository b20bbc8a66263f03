"""Whole chunks are written together: the files are those of zarr alone, and its errors."""

import os
import random
import stat

import numpy as np
import pytest
import zarr
import zarr.codecs
from data_types import CASES
from helpers import (
    EVERYTHING,
    HAS_STRUCT,
    OUR_PIPELINES,
    PIPELINES,
    ZARR_ALONE,
    random_selections,
)
from zarr.codecs import TransposeCodec

import numcodecs_bytes
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [
    pytest.mark.usefixtures("our_pipeline"),
    pytest.mark.filterwarnings(
        "ignore:.*does not have a Zarr V3 spec",
        "ignore:.*structured dtype",
        "ignore:Numcodecs codecs",
        "ignore:The data type",
    ),
]
ENDIANS = "little", "big"


# zarr refuses titles, padding and arrays in structures, and 3.1.6 any structure in Zarr v3.
CASES_OF_ZARR = [c for c in CASES if c.zarr_v3 and (c.dtype.names is None or HAS_STRUCT)]


def files_in(folder):
    """Return the content and mode of each file, and the mode of each folder."""
    return {
        str(path.relative_to(folder)): (
            stat.S_IMODE(path.lstat().st_mode),
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def array_settings(rng, case, chunks):
    """Return what `zarr.create_array` takes, for an uncompressed array."""
    dtype = rng.choice(case.dtypes())
    settings = {"dtype": dtype, "chunks": chunks, "compressors": None, "filters": None}
    settings["config"] = {"write_empty_chunks": rng.random() < 0.3}
    if dtype.kind in "fc":
        settings["fill_value"] = rng.choice([0.0, -0.0, float("nan"), 1.5])
    elif dtype.kind in "iu":
        settings["fill_value"] = rng.choice([0, 1, 7])
    if rng.random() < 0.4 and not case.native_only:
        codec = numcodecs_bytes.Bytes(rng.choice(ENDIANS), dtype)
        filters = rng.choice([None, [codec]])
        return settings | {"zarr_format": 2, "order": rng.choice("CF"), "filters": filters}
    kinds = [BytesCodec] if case.native_only else [BytesCodec, zarr.codecs.BytesCodec]
    order = tuple(rng.sample(range(len(chunks)), len(chunks)))
    return settings | {
        "serializer": rng.choice(kinds)(endian=rng.choice(ENDIANS)),
        "filters": [TransposeCodec(order=order)] * rng.randint(0, 1),
    }


def some_elements(rng, case, dtype, fill_value, num):
    """Return elements of which many are alike, so that some chunks hold nothing but those."""
    elements = np.resize(case.array(dtype), num)
    for _ in range(rng.randint(0, 3)):
        first, last = sorted((rng.randrange(num), rng.randrange(num)))
        elements[first:last] = rng.choice([fill_value, elements[first]])
    return elements


def in_some_layout(rng, array, folder):
    """Return the same values in memory of another kind."""
    kind = rng.choice(["C", "F", "strided", "reversed", "read-only", "swapped", "mapped", "masked"])
    if kind == "F":
        return np.asfortranarray(array)
    if kind == "strided":
        return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
    if kind == "reversed":
        return array[::-1].copy()[::-1] if array.ndim else array
    if kind == "read-only":
        array.flags.writeable = False
    if kind == "swapped" and array.dtype.kind in "iufcMm":
        return array.astype(array.dtype.newbyteorder("S"))
    if kind == "mapped" and array.size and array.ndim and array.dtype.kind in "iuf":
        mapped = np.memmap(folder / f"{rng.random()}", array.dtype, "w+", shape=array.shape)
        mapped[...] = array
        return mapped
    if kind == "masked" and array.size and array.dtype.kind in "iuf":
        return np.ma.masked_array(array, array == array.reshape(-1)[:1])
    return array


def some_values(rng, elements, selected, folder):
    """Return values for a selection: an array, a scalar, or what has another type or shape."""
    values = np.resize(elements, np.shape(selected))
    is_repeated = np.size(selected) > len(np.unique(selected))  # of several, zarr itself keeps any
    kind = rng.random()
    if is_repeated or kind < 0.15:
        return rng.choice(elements)
    if kind < 0.25 and values.dtype.kind in "iuf":
        return values.astype(rng.choice(["<f8", "i1", ">i4", "?"]))
    if kind < 0.3:
        return values[..., :1] if values.ndim else values
    if kind < 0.35 and values.ndim:
        return np.broadcast_to(values[:1], values.shape)
    return in_some_layout(rng, values, folder)


class Arrays:
    """Two arrays with the same settings: one is written by zarr's pipeline, one by ours."""

    def __init__(self, rng, folder, our_pipeline):
        self.rng, self.folder = rng, folder
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 3)))
        chunks = tuple(rng.randint(1, n) for n in shape)
        self.case = rng.choice(CASES_OF_ZARR)
        self.settings = array_settings(rng, self.case, chunks)
        # The codec of zarr alone, or ours in both: they differ in what is no value of a data type.
        self.codec = {}
        if rng.random() < 0.5 and not self.case.native_only:
            self.codec = {"codecs.bytes": ZARR_ALONE["codecs.bytes"]}
        pipeline = PIPELINES[OUR_PIPELINES.index(our_pipeline)]
        self.config = self.codec | {"codec_pipeline.path": pipeline}
        self.is_opened = rng.random() < 0.5  # else it has the codec that it was made with
        self.size = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        with zarr.config.set(self.config):
            self.alone = self.create(folder / "alone", shape)
        with zarr.config.set(self.codec):
            self.ours = self.create(folder / "ours", shape)

    def create(self, path, shape):
        array = zarr.create_array(path, shape=shape, **self.settings)
        if not self.is_opened:
            return array
        return zarr.open_array(path, mode="r+", config=self.settings["config"])

    def write(self):
        """Write random values to a random selection of both; return whether they fit."""
        rng, selections = self.rng, [("basic", ..., lambda a: a)] * 4
        if self.size.shape:
            selections += list(random_selections(rng, self.size.shape, 1))
        way, selection, of_numpy = rng.choice(selections)
        dtype = self.alone.dtype
        elements = some_elements(rng, self.case, dtype, self.alone.fill_value, 997)
        with np.errstate(invalid="ignore"):
            values = some_values(rng, elements, of_numpy(self.size), self.folder)
        errors = []
        for array, config in ((self.alone, self.config), (self.ours, self.codec)):
            with zarr.config.set(config), np.errstate(all="ignore"):
                try:
                    (array if way == "basic" else getattr(array, way))[selection] = values
                except Exception as error:  # noqa: BLE001
                    errors.append(error)
                else:
                    errors.append(None)
        assert type(errors[0]) is type(errors[1]), (errors, way, selection, self.settings)
        return errors[0] is None

    def check(self):
        assert files_in(self.folder / "ours") == files_in(self.folder / "alone"), self.settings


@pytest.mark.parametrize("seed", range(300 if EVERYTHING else 20))
def test_the_same_files_as_zarr_alone(tmp_path, set_constants, our_pipeline, seed):
    """After each of 10 writes; some make files, some replace them, some delete them."""
    rng = random.Random(seed)  # noqa: S311
    set_constants(
        BLOCK_BYTES=rng.choice([16, 64, 1 << 20]), WHOLE_PARALLEL_BYTES=rng.choice([0, 1 << 17])
    )
    umask = os.umask(rng.choice([0, 0o22, 0o77]))
    try:
        arrays = Arrays(rng, tmp_path, our_pipeline)
        for _ in range(10):
            if not arrays.write():
                break  # zarr itself may go on to write other chunks
            arrays.check()
    finally:
        os.umask(umask)
