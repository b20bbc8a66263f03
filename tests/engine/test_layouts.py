"""Chunks of literal bytes, of every data type and layout: written by `struct`, by no codec."""

import json
import random

import numpy as np
import pytest
import zarr
from data_types import ENDIANS
from helpers import (
    HAS_STRUCT,
    ZARR_CASES,
    bytes_codec,
    ignore_unstable_data_types,
    random_selections,
    select,
    sharded,
)

import numcodecs_bytes

pytestmark = [ignore_unstable_data_types, pytest.mark.usefixtures("our_pipeline")]
SHAPE, CHUNKS = (7, 5, 6), (4, 5, 3)


def codecs_of(layout, endian):
    if layout == "transposed":
        transpose = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
        return [transpose, bytes_codec(endian)]
    if layout == "shards":
        return [sharded([2, 5, 3], bytes_codec(endian), index_codecs=[bytes_codec("big")])]
    return [bytes_codec(endian)]


def stored_chunk(case, indices, layout, endian):
    """Return the bytes of a chunk; `indices` says which element of the case is where."""
    if layout == "transposed":
        indices = indices.transpose(2, 0, 1)
    if layout != "shards":
        return case.stored(endian, indices.ravel())
    upper, lower = (case.stored(endian, part.ravel()) for part in (indices[:2], indices[2:]))
    entries = [len(lower), len(upper), 0, len(lower)]  # the lower one is stored first
    return lower + upper + b"".join(n.to_bytes(8, "big") for n in entries)


def write(folder, case, indices, layout, endian):
    """Write an array's metadata by zarr, then put in our codecs, and chunks."""
    is_v2 = layout.startswith("v2")
    more = {"zarr_format": 2, "order": layout[-1], "filters": None} if is_v2 else {}
    dtype = case.dtype.newbyteorder({"little": "<", "big": ">"}[endian]) if is_v2 else case.dtype
    if layout == "v2 Bytes C":
        more["filters"] = [numcodecs_bytes.Bytes(endian, case.dtype)]
        dtype = case.dtype
    settings = {"shape": SHAPE, "chunks": CHUNKS, "compressors": None, "dtype": dtype}
    zarr.create_array(folder, **settings | more)
    if not is_v2:
        document = json.loads((folder / "zarr.json").read_text())
        document["codecs"] = codecs_of(layout, endian)
        (folder / "zarr.json").write_text(json.dumps(document))
    for k, m in np.ndindex(2, 2):
        chunk = np.zeros(CHUNKS, int)
        part = indices[4 * k : 4 * k + 4, :, 3 * m : 3 * m + 3]
        chunk[: len(part)] = part
        if is_v2:
            order = chunk.ravel(order=layout[-1])
            (folder / f"{k}.0.{m}").write_bytes(case.stored(endian, order))
            continue
        path = folder / f"c/{k}/0/{m}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored_chunk(case, chunk, layout, endian))


def combinations():
    """Yield data types and layouts, save those of which zarr has no such arrays."""
    for case in ZARR_CASES:
        for layout in ("v3", "transposed", "shards", "v2 C", "v2 F", "v2 Bytes C"):
            is_struct = case.dtype.names is not None
            is_unknown_to_v2 = layout.startswith("v2") and (case.native_only or is_struct)
            is_void_in_shard = layout == "shards" and case.dtype.kind == "V" and not HAS_STRUCT
            if not is_unknown_to_v2 and not is_void_in_shard:  # zarr 3.1.6 can't read the latter
                yield pytest.param(case, layout, id=f"{case.name}-{layout}")


@pytest.mark.matrix
@pytest.mark.parametrize("endian", ENDIANS)
@pytest.mark.parametrize(("case", "layout"), list(combinations()))
def test_every_data_type_and_layout(tmp_path, case, endian, layout, set_constants):
    """Swapped are the elements: zarrs swaps real and imaginary parts of complex numbers."""
    rng = random.Random(str((case.name, endian, layout)))  # noqa: S311 # no secret
    indices = np.array([rng.randrange(12) for _ in range(210)]).reshape(SHAPE)
    write(tmp_path, case, indices, layout, endian)
    data, array = case.array()[indices], zarr.open_array(tmp_path, mode="r")
    with numcodecs_bytes.trace() as traced:
        for gap in (0, 100):
            set_constants(GAP_BYTES=gap)
            for way, selection, expected in random_selections(rng, SHAPE, 1):
                got = np.asarray(select(array, way, selection))
                assert got.tolist() == expected(data).tolist()
        assert array[...].tolist() == data.tolist()
    assert traced.report()["arrays"]
    assert not traced.report()["not_seen"]  # by zarr
