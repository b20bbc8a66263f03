"""Random selections of every data type and layout, in files and by ranges, against NumPy."""

import random

import numpy as np
import pytest
import zarr
import zarr.codecs
from data_types import ENDIANS, ORDER
from helpers import (
    EVERYTHING,
    HAS_STRUCTURES_IN_SHARDS,
    OUR_PIPELINES,
    ZARR_CASES,
    ignore_unstable_data_types,
    random_selections,
    select,
)
from test_shards import open_stores
from zarr.codecs import Crc32cCodec, ShardingCodec, TransposeCodec

import numcodecs_bytes
from numcodecs_bytes.zarr_codec import BytesCodec

CODECS = ["zarr.codecs.bytes.BytesCodec", "numcodecs_bytes.zarr_codec.BytesCodec"]
SMALL = "that is faster: the chunk is small, or the gaps are short"


def random_numbers(rng):
    """Return a gap, a block and more: no size is special."""
    return {
        "GAP_BYTES": rng.choice([0, 1, 10, 100, 1 << 12]),
        "BLOCK_BYTES": rng.choice([1, 30, 200, 1000, 1 << 20]),
        "GROUP_BYTES": rng.choice([1, 100, 1000, 1 << 23]),
        "MIN_READINTO_BYTES": rng.choice([0, 20, 1 << 12]),
        "MIN_RUNS_TO_PROBE": rng.choice([1, 3, 5]),
        "PARALLEL_BYTES": rng.choice([10, 1 << 19]),
        "LATENCY_BYTES": rng.choice([1, 30, 1000, 2_500_000]),
        "MIN_SUBRANGE_BYTES": rng.choice([1, 30, 1000, 1 << 21]),
        "MIN_MESH_SIZE": rng.choice([0, 0, 1 << 12]),
        "MIN_SAVED_BYTES": rng.choice([1, 30, 1000, 1 << 16]),
    }


def random_settings(rng, case, layout, endian, shape):
    """Return how an array is stored, for zarr's `create_array`; and the shape of inner chunks."""
    chunks = tuple(rng.randint(1, n + 1) for n in shape)
    if layout.startswith("v2"):
        dtype = case.dtype.newbyteorder(ORDER[endian])
        settings = {"zarr_format": 2, "filters": None, "compressors": None, "order": layout[-1]}
        if layout.startswith("v2 Bytes"):
            dtype, codec = case.dtype, numcodecs_bytes.Bytes(endian, case.dtype)
            settings |= rng.choice([{"filters": [codec]}, {"compressors": codec}])
        return settings | {"chunks": chunks, "dtype": dtype}, None
    codecs, inner = [BytesCodec(endian=endian)], None
    for _ in range(rng.randint(layout == "transposed", 3) if layout != "v3" else 0):
        order = tuple(rng.sample(range(len(shape)), len(shape)))
        codecs.insert(0, TransposeCodec(order=order))
    if layout == "shards":
        inner, chunks = chunks, tuple(n * rng.randint(1, 4) for n in chunks)
        index_codec = BytesCodec(endian=rng.choice(ENDIANS))
        sharding = ShardingCodec(
            chunk_shape=inner,
            codecs=codecs,
            index_codecs=[index_codec, *[Crc32cCodec()] * rng.randint(0, 1)],
            index_location=rng.choice(["start", "end"]),
        )
        codecs = [sharding]
    more = {"filters": codecs[:-1], "serializer": codecs[-1], "compressors": None}
    return {"chunks": chunks, "dtype": case.dtype, **more}, inner


def write_invalid(rng, folder, dtype):
    """Write other bytes that mean the same: any nonzero bool is true, high bits do not count."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith((".z", "zarr.")):
            continue
        raw = np.frombuffer(path.read_bytes(), np.uint8)
        noise = np.frombuffer(rng.randbytes(len(raw)), np.uint8)
        raw = raw | (raw * (noise & 0xFE)) if dtype.kind == "b" else raw | (noise & 0xF0)
        path.write_bytes(raw.tobytes())


def make_array(rng, folder, case, layout, endian):
    """Write a random array; return its values."""
    num_axes = rng.choice([0, 1, 1, 2, 2, 3, 4, 8][layout == "shards" :])
    shape = tuple(rng.randint(1, 14 if num_axes < 8 else 2) for _ in range(num_axes))
    settings, inner = random_settings(rng, case, layout, endian, shape)
    array = zarr.create_array(folder, shape=shape, fill_value=None, **settings)
    # zarr stores no chunk of -0.0 of types of ml_dtypes, which is the second element.
    elements = np.array([i for i in range(12) if i != 1 or not case.native_only])
    values = case.array()[
        np.random.default_rng(rng.randrange(1 << 32)).choice(elements, shape), ...
    ]
    array[...] = values
    if case.name in ("bool", "int4") and not inner:
        write_invalid(rng, folder, case.dtype)
    if rng.random() < 0.3 and shape:  # a chunk is missing, or an inner one
        first = tuple(slice(0, n) for n in settings["chunks"])
        fill = array.metadata.dtype.default_scalar()
        if inner and rng.random() < 0.7:
            first = tuple(slice(0, n) for n in inner)
            array[first] = np.full(values[first].shape, fill, case.dtype)
        else:
            is_v2, zeros = "zarr_format" in settings, "0" * len(shape)
            name = ".".join(zeros) if is_v2 else "c/" + "/".join(zeros)
            folder.joinpath(name).unlink(missing_ok=True)
        values[first] = fill
    return values


def assert_same(got, expected, which):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, which
    if got.dtype.kind == "b":  # zarr passes on what it reads whole, as 0xFF for true
        got = got.view("u1") != 0
    assert got.tobytes() == expected.astype(got.dtype).tobytes(), which


def combinations():
    """Yield data types and layouts, save those of which zarr has no such arrays."""
    for case in ZARR_CASES:
        for layout in ("v3", "transposed", "shards", "v2 C", "v2 F", "v2 Bytes C", "v2 Bytes F"):
            is_void_in_shard = layout == "shards" and case.dtype.kind == "V"
            is_in_v2 = not case.native_only and not case.name.startswith("struct in")
            if is_void_in_shard and not HAS_STRUCTURES_IN_SHARDS:
                continue
            if is_in_v2 or "v2" not in layout:
                yield pytest.param(case, layout, id=f"{case.name}-{layout}")


@ignore_unstable_data_types
@pytest.mark.matrix
@pytest.mark.parametrize("endian", ENDIANS)
@pytest.mark.parametrize(("case", "layout"), list(combinations()))
def test_random_selections_are_what_numpy_selects(tmp_path, set_constants, case, endian, layout):
    """With any gap and block; in files, zarr need not help."""
    rng, num_chunks = random.Random(f"{case.name} {endian} {layout}"), 0  # noqa: S311 # no secret
    for k in range(3 if EVERYTHING else 2):
        values = make_array(rng, tmp_path / str(k), case, layout, endian)
        # zarr's own codec stores structures and types of ml_dtypes in another way.
        kinds = CODECS[case.native_only or case.dtype.kind == "V" :]
        with open_stores(tmp_path / str(k), is_sharded=layout == "shards") as stores:
            for how, store in stores.items():
                set_constants(**random_numbers(rng))
                config = {
                    "codec_pipeline.path": rng.choice(OUR_PIPELINES),
                    "codecs.bytes": rng.choice(kinds),
                    "numcodecs_bytes.max_gap_bytes": rng.choice([None, None, 0, 30, 10**6]),
                }
                with zarr.config.set(config), numcodecs_bytes.trace() as traced:
                    array = zarr.open_array(store, mode="r", config={"order": rng.choice("CF")})
                    for way, selection, expect in random_selections(rng, values.shape, 1):
                        which = k, how, way, selection, array.metadata, config
                        assert_same(select(array, way, selection), expect(values), which)
                report = traced.report()
                num_chunks += report["total"]["chunks"]
                assert set(report["total"]["why_whole"]) <= {SMALL}
                # zarr reads what is requested whole, and finds that references are missing.
                assert not report["not_seen"] or "requests" in how or "parts" in how
    assert num_chunks
