"""We read golden arrays of every data type, ours are as the specifications say, others read them.

The golden files: write_golden.py. Other implementations run where they are installed (the group
`peers`; zarrita.js where ZARRITA_MODULES names its folder).
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zarr
from arrays import (
    DATA_TYPES,
    every_array,
    native_elements,
    read_chunks,
    reference_chunks,
    write_files,
)
from data_types import flat_bytes
from helpers import (
    EVERYTHING,
    HAS_STRUCT,
    HAS_STRUCTURES_IN_SHARDS,
    ignore_unstable_data_types,
)
from peers import PEERS, peer_or_skip

from numcodecs_bytes.zarr_codec import BytesCodec

pytestmark = [
    ignore_unstable_data_types,
    pytest.mark.filterwarnings("ignore:The dtype `Structured.*:UserWarning"),
]
# How many arrays are in a golden file; how many of ours others must at least read.
NUM_GOLDEN = {"reference": 540, "tensorstore": 360, "zarrs": 216, "zarrita.js": 84}
NUM_READ = {"tensorstore": 330, "zarrs": 190, "zarrita.js": 120}
BY_DATA_TYPE = pytest.mark.parametrize("name", DATA_TYPES)
BY_PEER = pytest.mark.parametrize("implementation", PEERS)


def can_be_stored(data_type, _, layout):
    """Before 3.3, zarr can't hash the fill values of its own data types that are structures."""
    of_zarr = ("raw_bytes", "structured", *["struct"] * HAS_STRUCT)
    return HAS_STRUCTURES_IN_SHARDS or layout != "sharded" or data_type.name not in of_zarr


def some_arrays_of(name):
    """Return all arrays of a data type, or a ninth of them, others for the next data type."""
    arrays = [which for which in every_array() if which[0].name == name and can_be_stored(*which)]
    return arrays if EVERYTHING else arrays[(-list(DATA_TYPES).index(name)) % 9 :: 9]


def assert_same(got, expected, which):
    assert np.shape(got) == expected.shape, which
    assert flat_bytes(np.asarray(got, expected.dtype)) == flat_bytes(expected), which


@cache
def golden(implementation):
    """Return the golden arrays of an implementation: data type, endian, layout -> chunks."""
    file = Path(__file__).with_name("golden") / f"{implementation}.jsonl"
    arrays = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert len(arrays) == NUM_GOLDEN[implementation]
    return {
        tuple(which): {key: bytes.fromhex(chunk) for key, chunk in chunks.items()}
        for *which, chunks in arrays
    }


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("implementation", NUM_GOLDEN)
@BY_DATA_TYPE
def test_their_arrays_are_read(tmp_path, implementation, name):
    """Whole, and parts of it."""
    for number, which in enumerate(some_arrays_of(name)):
        chunks = golden(implementation).get((name, *which[1:]))
        if chunks is None:
            continue
        array = zarr.open_array(write_files(tmp_path / str(number), which, chunks), mode="r")
        expected = native_elements(which[0], which[2])
        assert array.dtype.newbyteorder("=") == expected.dtype
        parts = [(), ...] if which[2] == "0-d" else [..., 1, (slice(1, 3), slice(0, 4, 3))]
        for selection in parts:
            assert_same(array[selection], np.asarray(expected[selection]), (which, selection))


@pytest.mark.usefixtures("pipeline")
@BY_DATA_TYPE
def test_written_chunks_are_those_of_the_reference(tmp_path, name):
    for number, which in enumerate(some_arrays_of(name)):
        path = write_files(tmp_path / str(number), which)
        with zarr.config.set({"array.write_empty_chunks": True}):
            zarr.open_array(path, mode="r+")[...] = native_elements(which[0], which[2])
        ours, reference = read_chunks(path), reference_chunks(*which)
        if which[2] == "sharded":  # zarr writes inner chunks in Morton order
            ours, reference = (inner_chunks(c["c/0/0"], which[1]) for c in (ours, reference))
        assert ours == reference, which


def inner_chunks(shard, endian):
    """Return the four inner chunks of a shard, in the order of its index."""
    index = np.frombuffer(shard[-68:-4], {"little": "<u8", "big": ">u8"}[endian])
    return [shard[start : start + length] for start, length in index.reshape(4, 2).tolist()]


@BY_PEER
def test_our_arrays_are_read_right_or_refused_by_theirs(tmp_path, implementation):
    """In the installed versions."""
    peer = peer_or_skip(implementation)
    asked = [w for w in every_array() if can_be_stored(*w) and not peer.misreads(*w)]
    paths = [write_files(tmp_path / str(i), which) for i, which in enumerate(asked)]
    elements = [native_elements(data_type, layout) for data_type, _, layout in asked]
    for path, expected in zip(paths, elements, strict=True):
        array = zarr.open_array(path, mode="r+")
        codecs = [c for codec in array.metadata.codecs for c in getattr(codec, "codecs", [codec])]
        assert any(type(codec) is BytesCodec for codec in codecs)
        array[...] = expected
    answers = peer.read_all(paths, [expected.dtype for expected in elements])
    read = [
        (which, expected, answer)
        for which, expected, answer in zip(asked, elements, answers, strict=True)
        if not isinstance(answer, Exception)
    ]
    for which, expected, answer in read:
        assert_same(answer, expected, which)
    assert len(read) >= NUM_READ[implementation]
