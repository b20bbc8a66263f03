"""`numcodecs_bytes.why_read_whole`: what it says of an array is what a read of it does."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import (
    HAS_RECTILINEAR,
    ZARR_ALONE,
    CountingStore,
    IgnoringStore,
    bytes_codec,
    metadata,
    ranges_from,
    reference_store,
    run_python,
)

import numcodecs_bytes
from numcodecs_bytes import why_read_whole
from numcodecs_bytes._pipeline.array_access import ArrayAccess


def why_of_a_read(array):
    """Return why a part of the array is read whole, as a trace says, or ""."""
    with numcodecs_bytes.trace() as traced:
        array[(slice(2), ...) if array.order == "C" else (..., slice(2))]
    report = traced.report()
    (why,) = report["not_seen"] | report["total"]["why_whole"] or [""]
    return why


PLAIN = {"shape": (400, 64), "chunks": (200, 64), "dtype": "f8", "compressors": None}
SHARDS = PLAIN | {"chunks": (50, 64), "shards": (200, 64)}
SETTINGS = {
    "plain": PLAIN,
    "Zarr v2": PLAIN | {"zarr_format": 2},
    "column-major": PLAIN | {"zarr_format": 2, "order": "F"},
    "shards": SHARDS,
}


@pytest.fixture
def array(tmp_path):
    array = zarr.create_array(tmp_path / "a", **PLAIN)
    array[:] = 1
    return array


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_it_says_nothing_of_arrays_that_are_read_in_part(tmp_path, settings):
    """As a test of a user's own may assert: before anything is written, too, and by requests."""
    array = zarr.create_array(tmp_path / "a", **settings)
    assert why_read_whole(array) == ""
    array[:] = 1
    assert why_read_whole(array) == why_of_a_read(array) == ""
    with ranges_from(CountingStore):
        store = CountingStore(tmp_path / "a")
        requested = zarr.open_array(store, mode="r")
        assert why_read_whole(requested) == ""
        assert store.requests == []
        assert why_of_a_read(requested) == ""


@pytest.mark.parametrize("shape", [(), (0,), (0, 3)], ids=str)
def test_arrays_without_axes_or_elements(tmp_path, shape):
    array = zarr.create_array(tmp_path, shape=shape, dtype="f8", compressors=None)
    assert why_read_whole(array) == ""


@pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
def test_chunks_of_several_shapes(tmp_path):
    with zarr.config.set({"array.rectilinear_chunks": True}):
        grid = {"shape": (6, 8), "chunks": [[1, 2, 3], [4, 4]], "dtype": "i2"}
        for number, expected in enumerate(["", "compressed or filtered by zstd"]):
            more = {} if expected else {"compressors": None}
            array = zarr.create_array(tmp_path / str(number), **grid, **more)
            array[:] = 1
            assert why_read_whole(array) == why_of_a_read(array) == expected


@pytest.mark.parametrize("more", [{}, {"zarr_format": 2}, {"shards": (4, 4)}], ids=str)
def test_compressed_arrays(tmp_path, more):
    settings = {"shape": (4, 4), "chunks": (2, 4), "dtype": "f8"}
    array = zarr.create_array(tmp_path, **settings, **more)
    array[:] = 1
    expected = "compressed or filtered by zstd"
    assert why_read_whole(array) == why_of_a_read(array) == expected


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (CountingStore, "helpers.CountingStore is not known to have reliable byte ranges"),
        (lambda _: zarr.storage.MemoryStore(), "it is in memory"),
    ],
    ids=["unknown", "in memory"],
)
def test_stores_that_are_read_whole(tmp_path, make, expected):
    array = zarr.create_array(make(tmp_path), **PLAIN)
    array[:] = 1
    assert why_read_whole(array) == why_of_a_read(array)
    assert why_read_whole(array).startswith(expected)


def test_a_store_that_does_not_serve_ranges(array):
    """It is known only after a read: until then, the store is believed."""
    with ranges_from(IgnoringStore):
        ignoring = zarr.open_array(IgnoringStore(array.store.root), mode="r")
        assert why_read_whole(ignoring) == ""
        why = why_of_a_read(ignoring)
        assert "bytes to a request for" in why
        assert why in why_read_whole(ignoring)


def test_small_chunks_that_are_requested(tmp_path):
    """A part of them saves no time, unless an option says how long gaps may be."""
    zarr.create_array(tmp_path, **PLAIN | {"chunks": (100, 64)})[:] = 1
    with ranges_from(CountingStore):
        array = zarr.open_array(CountingStore(tmp_path), mode="r")
        why = why_read_whole(array)
        assert why == "a part would take as long, since the chunk is small"
        assert why_of_a_read(array).startswith(why)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            assert why_read_whole(array) == why_of_a_read(array) == ""
    assert why_read_whole(zarr.open_array(tmp_path, mode="r")) == ""


@pytest.mark.needs("os.pread")
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_a_zip_archive(tmp_path, compression):
    path = tmp_path / "a.zip"
    with zarr.storage.ZipStore(path, mode="w", compression=compression) as store:
        zarr.create_array(store, **PLAIN)[:] = 1
    with zarr.storage.ZipStore(path, mode="r") as store:
        array = zarr.open_array(store, mode="r")
        assert why_read_whole(array) == why_of_a_read(array)
        assert bool(why_read_whole(array)) == (compression == zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [(None, ""), ("base64:AAAA", "it is inlined in its reference"), (["no://a", 0, 4], "")],
    ids=["missing", "inlined", "to an unknown protocol"],
)
def test_references(reference, expected):
    references = {"zarr.json": json.dumps(metadata("int32", [bytes_codec("little")]))}
    references |= {} if reference is None else {"c/0": reference}
    why = why_read_whole(zarr.open_array(reference_store(references), mode="r"))
    assert why == (expected or why)
    assert bool(why) == (reference is not None)


def test_settings(array):
    with zarr.config.set(ZARR_ALONE):
        other = zarr.open_array(array.store, mode="r")
    assert "BatchedCodecPipeline is the codec pipeline" in why_read_whole(other)
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": "x"}):
        assert "max_gap_bytes in zarr's config must be" in why_read_whole(array)
    assert why_read_whole(array) == ""


def test_a_store_that_is_not_open_yet(array):
    """zarr opens it to read."""
    assert why_read_whole(pickle.loads(pickle.dumps(array))) == ""  # noqa: S301


def test_it_raises_no_error_of_a_store(array, monkeypatch):
    def fail(*_):
        raise RuntimeError("of a store")

    monkeypatch.setattr(ArrayAccess, "locate", fail)
    assert why_read_whole(array) == "RuntimeError: of a store"


@pytest.mark.parametrize("other", ["a.zarr", np.ones(3), None], ids=["path", "NumPy", "None"])
def test_something_else(other):
    """What to do is said: a path is passed easily."""
    with pytest.raises(TypeError, match=r"takes a zarr\.Array, got .*; pass what zarr\.open_array"):
        why_read_whole(other)


def test_zarr_is_imported_when_it_is_needed():
    program = "import sys, numcodecs_bytes; assert 'zarr' not in sys.modules; "
    run_python("-c", program + "assert callable(numcodecs_bytes.why_read_whole)")


def test_the_reader_says_the_same(tmp_path):
    array = zarr.create_array(tmp_path, shape=(4,), dtype="f8")
    assert f": zarr reads it: {why_read_whole(array)}>" in repr(numcodecs_bytes.SyncReader(array))
