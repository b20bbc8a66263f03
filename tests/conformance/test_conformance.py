"""We read golden arrays of every data type, ours are as the specifications say, others read them.

The golden files: write_golden.py. Other implementations run where they are installed (the group
`peers`; zarrita.js where ZARRITA_MODULES names its folder).
"""

import json
import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.storage
from arrays import (
    DATA_TYPES,
    every_array,
    native_elements,
    read_chunks,
    reference_chunks,
    write_files,
)
from data_types import flat_bytes
from helpers import EVERYTHING, HAS_STRUCT, ignore_unstable_data_types
from peers import PEERS

from numcodecs_bytes.check import check
from numcodecs_bytes.zarr import BytesCodec

pytestmark = [
    ignore_unstable_data_types,
    pytest.mark.filterwarnings("ignore:The dtype `Structured.*:UserWarning"),
]
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "data-types.md"
NUM_ARRAYS = {"reference": 540, "tensorstore": 360, "zarrs": 216, "zarrita.js": 84}
BY_DATA_TYPE = pytest.mark.parametrize("name", DATA_TYPES)
# zarr 3.1.6 can't hash the fill values of its own data types `raw_bytes` and `structured`.
CANNOT_BE_SHARDED = () if HAS_STRUCT else ("raw_bytes", "structured")


@cache
def golden(implementation):
    """Return the golden arrays of an implementation: data type, endian, layout -> chunks."""
    lines = (HERE / "golden" / f"{implementation}.jsonl").read_text().splitlines()
    provenance, *arrays = map(json.loads, lines)
    assert {"implementation", "written", "by"} <= set(provenance)
    return {
        tuple(which): {key: bytes.fromhex(chunk) for key, chunk in chunks.items()}
        for *which, chunks in arrays
    }


def arrays_of(name):
    for data_type, endian, layout in every_array():
        if data_type.name == name and not (layout == "sharded" and name in CANNOT_BE_SHARDED):
            yield data_type, endian, layout


def some_arrays_of(name):
    """Yield all arrays of a data type, or a ninth of them, others for the next data type."""
    shift = list(DATA_TYPES).index(name)
    for number, which in enumerate(arrays_of(name)):
        if EVERYTHING or (number + shift) % 9 == 0:
            yield which


@pytest.mark.parametrize("implementation", NUM_ARRAYS)
def test_the_golden_files_are_whole(implementation):
    assert len(golden(implementation)) == NUM_ARRAYS[implementation]


@pytest.mark.usefixtures("pipeline")
@pytest.mark.parametrize("implementation", NUM_ARRAYS)
@BY_DATA_TYPE
def test_their_arrays_are_read(tmp_path, implementation, name):
    """Whole, and parts of it."""
    for number, which in enumerate(some_arrays_of(name)):
        chunks = golden(implementation).get((name, *which[1:]))
        if chunks is None:
            continue
        array = zarr.open_array(write_files(tmp_path / str(number), which, chunks), mode="r")
        expected = native_elements(which[0], which[2])
        selections = [(), ...] if which[2] == "0-d" else [..., 1, (slice(1, 3), slice(0, 4, 3))]
        for selection in selections:
            selected = array[selection]
            assert getattr(selected, "dtype", expected.dtype) == expected.dtype or not expected.ndim
            selected, right = (
                np.asarray(a, expected.dtype) for a in (selected, expected[selection])
            )
            assert flat_bytes(selected) == flat_bytes(right), (which, selection)


@pytest.mark.usefixtures("pipeline")
@BY_DATA_TYPE
def test_written_chunks_are_those_of_the_reference(tmp_path, name):
    for number, which in enumerate(some_arrays_of(name)):
        path = write_files(tmp_path / str(number), which)
        with zarr.config.set({"array.write_empty_chunks": True}):
            zarr.open_array(path, mode="r+")[...] = native_elements(which[0], which[2])
        ours, reference = read_chunks(path), reference_chunks(*which)
        if which[2] == "sharded":  # zarr writes inner chunks in Morton order
            ours, reference = (
                _inner_chunks(chunks["c/0/0"], which[1]) for chunks in (ours, reference)
            )
        assert ours == reference, which


@BY_DATA_TYPE
def test_check_finds_what_is_damaged_and_nothing_else(tmp_path, name):
    """python -m numcodecs_bytes check, on these arrays and on a copy with a byte cut off."""
    for which in some_arrays_of(name):
        write_files(tmp_path.joinpath(*which[1:]), which, reference_chunks(*which))
    store = zarr.storage.LocalStore(tmp_path, read_only=True)
    assert [found.problems for found in check(store)] == [[]] * len(list(some_arrays_of(name)))
    chunks = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "zarr.json"]
    for file in chunks:
        file.write_bytes(file.read_bytes()[:-1])
    assert sum(found.num_problems for found in check(store)) == len(chunks)


def _inner_chunks(shard, endian):
    """Return the four inner chunks of a shard, in the order of its index."""
    index = np.frombuffer(shard[-68:-4], {"little": "<u8", "big": ">u8"}[endian])
    return [shard[start : start + length] for start, length in index.reshape(4, 2).tolist()]


@pytest.fixture(scope="module")
def read_by_peers(tmp_path_factory):
    """Return how a peer reads what we write: data type, endian, layout -> array or exception."""

    @cache
    def read(implementation):
        try:
            peer = PEERS[implementation]()
        except ImportError as error:
            pytest.skip(f"{implementation} is not installed: {error}")
        asked = [
            which
            for which in every_array()
            if not peer.misreads(*which)
            and not (which[2] == "sharded" and which[0].name in CANNOT_BE_SHARDED)
        ]
        folder = tmp_path_factory.mktemp("ours")
        paths = [write_files(folder / str(i), which) for i, which in enumerate(asked)]
        for path, (data_type, _, layout) in zip(paths, asked, strict=True):
            array = zarr.open_array(path, mode="r+")
            (codec,) = (c for c in _flat(array.metadata.codecs) if c.to_dict()["name"] == "bytes")
            assert type(codec) is BytesCodec
            array[...] = native_elements(data_type, layout)
        elements = [native_elements(data_type, layout) for data_type, _, layout in asked]
        answers = peer.read(paths, [e.dtype for e in elements])
        return {
            (data_type.name, endian, layout): (expected, answer)
            for (data_type, endian, layout), expected, answer in zip(
                asked, elements, answers, strict=True
            )
        }

    return read


def _flat(codecs):
    for codec in codecs:
        yield from getattr(codec, "codecs", [codec])


@BY_DATA_TYPE
@pytest.mark.parametrize("implementation", PEERS)
def test_our_arrays_are_read_right_or_refused_by_theirs(read_by_peers, implementation, name):
    for which, (expected, answer) in read_by_peers(implementation).items():
        if which[0] == name and not isinstance(answer, Exception):
            assert np.asarray(answer).shape == expected.shape, which
            assert flat_bytes(np.asarray(answer)) == flat_bytes(expected), which


def test_the_table_of_data_types_is_true(read_by_peers):
    """To write it anew: WRITE_TABLE=1 pytest tests/conformance -k table."""
    cells = {
        (name, peer): _cell(read_by_peers(peer), golden(peer), name)
        for name in DATA_TYPES
        for peer in PEERS
    }
    names_of: dict[tuple[str, ...], list[str]] = {}
    for name in DATA_TYPES:
        names_of.setdefault(tuple(cells[name, peer] for peer in PEERS), []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in names_of.items()]
    head = [f"| data type | {' | '.join(PEERS)} |", "|---" * (1 + len(PEERS)) + "|"]
    before, mark, rest = PAGE.read_text().partition("<!-- made by tests/conformance -->\n")
    table, end, after = rest.partition("\n<!-- end -->")
    assert mark
    assert end
    if os.environ.get("WRITE_TABLE"):
        PAGE.write_text(before + mark + "\n".join(head + rows) + end + after)
        return
    claims_of = {}
    for row in table.splitlines()[2:]:
        names, *claims = (cell.strip() for cell in row.strip("|").split("|"))
        claims_of |= dict.fromkeys(re.findall("`(.*?)`", names), claims)
    for name in DATA_TYPES:
        for peer, claim in zip(PEERS, claims_of.pop(name), strict=True):
            # An implementation may have learned more since.
            assert claim in ("-", cells[name, peer]), (name, peer)
    assert not claims_of


def _cell(read, written, name):
    answers = [answer for which, (_, answer) in read.items() if which[0] == name]
    reads = not any(isinstance(answer, Exception) for answer in answers)
    writes = any(which[0] == name for which in written)
    cell = {(1, 1): "both", (1, 0): "reads ours", (0, 1): "we read theirs"}.get(
        (reads, writes), "-"
    )
    return cell + "*" * (reads and len(answers) < sum(1 for _ in arrays_of(name)))
