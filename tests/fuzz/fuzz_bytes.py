"""Fuzz target: metadata and chunks that nobody wrote, read by zarr with both codecs.

``python tests/fuzz/fuzz_bytes.py -max_total_time=60`` runs it with atheris; the arguments are
libFuzzer's. Without atheris, test_properties.py calls `check_one`.

A document is changed by fuzz_mutator.py, a chunk is any bytes. What is read from them is right by
fuzz_oracle.py, or refused in our own words: by a ``raise`` of the package, with a ValueError or a
TypeError. What zarr alone makes of bad metadata does not matter.
"""

import contextlib
import functools
import json
import linecache
import math
import random
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np
import zarr
import zarr.errors
import zarr.storage

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz_mutator import SEEDS, Choices, chunk_shape_of, is_small, mutate
from fuzz_oracle import expected_elements, native_elements, stored_bytes
from helpers import OUR_PIPELINES, OwnBugs, random_selections, select
from zarr.core.buffer import default_buffer_prototype

instrumented = contextlib.nullcontext
if __name__ == "__main__":
    import atheris

    instrumented = functools.partial(atheris.instrument_imports, ["numcodecs_bytes"])

with instrumented():
    import numcodecs_bytes.zarr_data_types
    import numcodecs_bytes.zarr_pipeline

PACKAGE = str(Path(numcodecs_bytes.__file__).parent)
ZARR = str(Path(zarr.__file__).parent)
KEPT = ("zarr_format", "node_type", "chunk_key_encoding", "attributes")


class _PlannedStore(zarr.storage.MemoryStore):
    """Read by byte ranges, since it is named below."""


class _AsynchronousStore(zarr.storage.MemoryStore):
    _supports_sync_io = False  # what zarr's fused pipeline looks at


_STORES = [zarr.storage.MemoryStore, _PlannedStore, _AsynchronousStore]
zarr.config.set({"numcodecs_bytes.stores_with_ranges": _STORES[1:]})


def check_one(data):
    """Read what fuzzed bytes describe: return 'right' or 'refused', or raise AssertionError."""
    choices = Choices(data)
    document = json.loads(json.dumps(choices.of(SEEDS)))
    # How many bytes more than fit; None: as many as there are.
    surplus, present = choices.of([0, 0, 0, 0, -1, 1, None]), choices.below(256)
    store_class, max_gap, seed = choices.of(_STORES), choices.of([0, 16, None]), choices.below(256)
    for _ in range(choices.below(4)):
        mutate(document, choices, KEPT)
    # NumPy divides by zero where zarr itself reads "<M8[s/0]", which ends the process.
    if not is_small(document) or "/" in json.dumps(document):
        return "refused"
    plain = expected_elements(document)
    chunk = choices.rest()
    if surplus is not None and plain is not None:
        num_elements = math.prod(chunk_shape_of(document))
        num_bytes = max(0, plain[0].itemsize * num_elements + surplus)
        chunk = (chunk or b"\1\2\xff") * (num_bytes // (len(chunk) or 3) + 1)
        chunk = chunk[:num_bytes]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = set()
        for pipeline in OUR_PIPELINES:
            options = {"numcodecs_bytes.max_gap_bytes": max_gap, "codec_pipeline.path": pipeline}
            with zarr.config.set(options):
                outcomes.add(_check_array(store_class, document, chunk, present, seed))
    assert len(outcomes) == 1, f"pipelines differ: {outcomes} of {document}"
    return outcomes.pop()


def fuzz_one(data):
    """Check data, like `check_one`, but return nothing, which atheris requires."""
    check_one(data)
    assert not own_bugs.found, own_bugs.found[0]


def _check_array(store_class, document, chunk, present, seed):
    """Read an array.

    Of every eight chunks there are those whose bit is in `present`, each the same; `seed` makes a
    selection.
    """
    keys = _chunk_keys(document, present)
    store = store_class(_contents(document, dict.fromkeys(keys, chunk)))
    try:
        array = zarr.open_array(store, mode="r", zarr_format=document["zarr_format"])
    except Exception as error:  # noqa: BLE001
        _assert_in_our_words(error, document)
        return "refused"
    if np.ndim(array.fill_value):  # which zarr lets through: NumPy broadcasts it, or raises
        return "refused"
    expected = whole = _read(lambda: array[...], document)
    plain = expected_elements(document)
    is_fitting = False
    if plain is not None:
        is_fitting = not keys or len(chunk) == math.prod(array.chunks) * plain[0].itemsize
        expected, is_visible = _expected_array(array, plain, chunk, keys.values())
        # Of a chunk at the edge, a part alone is read: too much or too little may go unnoticed.
        assert whole is not None or not is_fitting, f"refused {document}"
        assert whole is None or is_fitting or not is_visible, (
            f"read {len(chunk)} bytes of {document}"
        )
    if whole is not None:
        _assert_same(whole, expected, document)
    if array.size and array.ndim:
        rng = random.Random(seed)  # noqa: S311
        way, selection, of_numpy = rng.choice(list(random_selections(rng, array.shape, 1)))
        if all(isinstance(s, int) for s in selection):  # of some characters NumPy makes no scalar
            way, selection, of_numpy = "basic", ..., lambda a: a
        part = _read(lambda: select(array, way, selection), document)
        assert part is not None or not is_fitting, f"refused {way} {selection} of {document}"
        if part is not None and expected is not None:
            _assert_same(part, of_numpy(expected), document)
    return "refused" if whole is None else "right"


def _chunk_keys(document, present):
    """Return the index of each chunk that is there, by its key in the store."""
    try:
        shapes = zip(document["shape"], chunk_shape_of(document), strict=True)
        indices = list(np.ndindex(*(-(-n // size) for n, size in shapes)))
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        return {}
    indices = [index for i, index in enumerate(indices) if present >> i % 8 & 1]
    if document["zarr_format"] == 2:
        return {".".join(map(str, index)) or "0": index for index in indices}
    return {"/".join(("c", *map(str, index))): index for index in indices}


def _read(read, document):
    try:
        return np.asarray(read())
    except Exception as error:  # noqa: BLE001
        _assert_in_our_words(error, document)
        return None


def _expected_array(array, plain, chunk, indices):
    """Return the array as the specification has it, and whether a chunk is visible as a whole.

    A chunk that is too short is padded.
    """
    dtype, endian, order = plain
    num_bytes = math.prod(array.chunks) * dtype.itemsize
    elements = native_elements(chunk.ljust(num_bytes, b"\xa5")[:num_bytes], dtype, endian)
    elements = elements.reshape(array.chunks, order=order)
    expected = np.full(array.shape, array.fill_value, elements.dtype)
    is_visible = False
    for index in indices:
        region = (slice(i * n, (i + 1) * n) for i, n in zip(index, array.chunks, strict=True))
        visible = expected[(..., *region)]
        visible[...] = elements[tuple(map(slice, visible.shape))]
        is_visible |= visible.shape == array.chunks
    return expected, is_visible


def _assert_same(got, expected, document):
    got = got if got.shape else np.array(got, expected.dtype)
    expected = expected if expected.shape else np.array(expected, expected.dtype)
    assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), document
    assert got.shape == expected.shape, document
    assert stored_bytes(got, "big") == stored_bytes(expected, "big"), document


def _assert_in_our_words(error, document):
    """Raise unless an error is of zarr alone, or raised on purpose and of the right type."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            _assert_in_our_words(inner, document)
        return
    frames = traceback.extract_tb(error.__traceback__)
    # Our pipeline passes on what zarr's raises, and says more if a chunk has the wrong length.
    names = {frame.filename for frame in frames if frame.filename.startswith(PACKAGE)}
    if all(Path(name).parent.name == "_pipeline" for name in names):
        return
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno).strip()
    is_raised = last.filename.startswith((PACKAGE, ZARR)) and line.startswith("raise")
    if not (is_raised and isinstance(error, (ValueError, TypeError))):
        raise AssertionError(
            f"{type(error).__name__}: {error}\nat {last.filename}:{last.lineno}: {line}\n"
            f"for {document}"
        ) from error


def seed_inputs():
    """Return fuzzed bytes that leave each seed as it is, with a chunk that fits."""
    return [
        bytes([i, 0, 0b10110111, i, i, i, 0]) + _chunk_of(document)
        for i, document in enumerate(SEEDS)
    ]


def _chunk_of(document):
    """Return a chunk as zarr writes it, where codecs beside ours make what it has to be."""
    if len(document.get("codecs", [])) < 2 and "sharding" not in json.dumps(document):
        return b"\1\2\xff"
    contents = _contents(document)
    zarr.open_array(zarr.storage.MemoryStore(contents), mode="r+")[...] = 1
    return contents["c/0/0"].to_bytes()


def _contents(document, chunks=()):
    """Return what a store in memory holds."""
    name = ".zarray" if document["zarr_format"] == 2 else "zarr.json"
    raw = {name: json.dumps(document).encode(), **dict(chunks)}
    make = default_buffer_prototype().buffer.from_bytes
    return {key: make(value) for key, value in raw.items()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seed_inputs()):
            Path(corpus, str(number)).write_bytes(seed)
        own_bugs = OwnBugs()
        atheris.Setup([*sys.argv, "-timeout=20", "-max_len=512", corpus], fuzz_one)
        atheris.Fuzz()
