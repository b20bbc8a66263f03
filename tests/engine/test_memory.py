"""Reads take the memory of the output and some blocks, however large chunks are."""

import itertools
import os
import sys
import tracemalloc

import numpy as np
import pytest
import zarr
from helpers import HAS_RECTILINEAR, create, eventually, select

import numcodecs_bytes
from numcodecs_bytes._plan import plan, shards
from numcodecs_bytes._plan.layout import Layout

MIB = 1 << 20
SHAPE = (1 << 13, 1 << 12)  # 256 MiB
RNG = np.random.default_rng(0)
POINTS = tuple(RNG.integers(0, n, 10**5) for n in SHAPE)
FEW_ROWS, FEW_COLUMNS = (RNG.integers(0, n, 500) for n in SHAPE)


@pytest.fixture
def sparse(tmp_path):
    """Return a function that makes an array of chunks that take no space; all elements are 0."""

    def make(shape, chunks, **settings):
        create(tmp_path / "a", shape, chunks, **settings)
        for k in range(-(-shape[0] // chunks[0])):
            path = tmp_path / "a" / "c" / "/".join([str(k), *["0"] * (len(shape) - 1)])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, 8 * int(np.prod(chunks)))
        return zarr.open_array(tmp_path / "a", mode="r")

    return make


@pytest.mark.usefixtures("our_pipeline")
@pytest.mark.parametrize("endian", ["little", "big"])
def test_of_a_large_chunk(sparse, track, endian):
    array = sparse(SHAPE, SHAPE, endian=endian)
    for way, selection, num_indices in [
        ("basic", np.s_[77], 0),
        ("basic", np.s_[:, 7], 0),
        ("basic", np.s_[1000:1064, 2000:2064], 0),
        ("basic", np.s_[3:1000, 1:-1], 0),
        ("basic", np.s_[40:8000:40], 0),
        ("basic", np.s_[:, ::64], 0),
        ("oindex", (FEW_ROWS, FEW_COLUMNS), 0),
        ("oindex", (FEW_ROWS, slice(None)), 0),
        ("oindex", (slice(None), FEW_COLUMNS[:40]), 0),
        ("vindex", POINTS, 10**5),
        ("vindex", tuple(np.sort(p) for p in POINTS), 10**5),
    ]:
        select(array, way, np.s_[0] if way == "basic" else ([0], [0]))  # plans, threads, modules
        peak, result = track(lambda w=way, s=selection: select(array, w, s))
        assert not result.any()
        # zarr itself makes up to seven arrays of indices.
        assert peak <= result.nbytes + 16 * MIB + 10 * 8 * num_indices, (way, selection)


def test_of_many_short_runs_into_a_contiguous_output(sparse, track):
    """Of 2 KiB: they took twice the memory of the result."""
    array = sparse(SHAPE, SHAPE, endian="little")
    array[:2, :2]
    peak, result = track(lambda: array[:, 256:512])
    assert not result.any()
    assert peak <= result.nbytes + 5 * MIB


@pytest.mark.usefixtures("_files_are_fast", "our_pipeline")
@pytest.mark.parametrize("dtype", ["i1", "<i2", ">i2"])
@pytest.mark.parametrize("is_slow", [False, True])
def test_of_very_many_runs_without_gaps(tmp_path, track, each_byte_takes, dtype, is_slow):
    """Every second element, without reading those between: they took 30 MiB and more."""
    num = 1 << 20
    create(tmp_path, (num,), (num,), dtype)[...] = np.arange(num)
    array = zarr.open_array(tmp_path, mode="r")
    if is_slow:
        each_byte_takes(1e-3)
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        array[:2]
        peak, result = track(lambda: array[::2])
    assert np.array_equal(result, np.arange(num).astype(dtype)[::2])
    assert peak <= result.nbytes + 4 * MIB


@pytest.mark.usefixtures("our_pipeline")
def test_of_very_many_requests(tmp_path, counting, track):
    """Every second element, which took 2 KiB each: 17 MiB for these."""
    num = 1 << 14
    create(tmp_path, (num,), (num,), "i1")[...] = np.arange(num)
    array = zarr.open_array(counting)
    with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        peak, result = track(lambda: array[::2])
    assert np.array_equal(result, np.arange(num).astype("i1")[::2])
    assert len(counting.requests) >= num // 2
    assert peak <= result.nbytes + 8 * MIB


@pytest.mark.usefixtures("our_pipeline")
def test_of_a_trace(sparse, track):
    """What was read by an array of indices was copied to count it: 32 MiB more."""
    array = sparse((1 << 13, 1 << 9), (1 << 13, 1 << 9))
    indices = np.random.default_rng(0).permutation(1 << 13)
    array.oindex[indices]
    least, _ = track(lambda: array.oindex[indices])
    peaks = []
    for _ in range(3):  # a thread that reads for the first time makes its block
        with numcodecs_bytes.trace() as traced:
            peak, result = track(lambda: array.oindex[indices])
        assert traced.report()["total"]["bytes_selected"] == result.nbytes
        peaks.append(peak)
    assert min(peaks) <= least + MIB


def test_of_selections_that_differ_from_chunk_to_chunk(sparse, track):
    """Ten threads have a block of 2 MiB each; with zarr alone, a chunk, which is as large."""
    array = sparse((30 << 21,), (1 << 21,))
    peak, result = track(lambda: array[::521])
    assert not result.any()
    assert peak <= result.nbytes + 26 * MIB


def test_of_an_inner_chunk_of_a_large_shard(tmp_path, track):
    """Of 32 MiB, of which a row and a column are selected."""
    shape = 1 << 11, 1 << 12
    create(tmp_path, shape, (1 << 10, 1 << 12), shards=shape)[:2] = 1
    array = zarr.open_array(tmp_path, mode="r")
    for selection, num_ones in ((np.s_[1], 4096), (np.s_[:, 5], 2)):
        peak, result = track(lambda s=selection: array[s])
        assert result.sum() == num_ones
        assert peak <= result.nbytes + 8 * MIB


class TestWhatIsCached:
    """Plans, and how chunks are stored: so many, and each takes little."""

    @pytest.fixture
    def check_cached(self, set_constants):
        """Return a function that calls another, and checks how much memory stays in use."""
        set_constants(BLOCK_BYTES=1 << 12)  # each thread has a block of its own

        def check(use, most):
            plan._cached_plan.cache_clear()  # what was cached before is not counted
            shards._cached_plans.clear()
            tracemalloc.start()
            try:
                use()
                assert eventually(lambda: tracemalloc.get_traced_memory()[0] <= most)
            finally:
                tracemalloc.stop()

        return check

    @pytest.mark.long
    def test_of_windows_that_slide_over_a_shard(self, tmp_path, check_cached):
        """60 of them over 65,536 inner chunks took 619 MiB; these would take 3.3 and 1 MiB."""
        for num, num_windows in ((1 << 13, 3), (shards.CACHED_INNER_CHUNKS, 50)):
            folder = tmp_path / str(num)
            create(folder, (num,), (1,), "u1", shards=(num,))[0] = 1
            array = zarr.open_array(folder, mode="r")
            assert array[:].sum() == 1
            check_cached(lambda a=array, n=num_windows: [a[first:] for first in range(n)], MIB // 2)

    @pytest.mark.parametrize(
        ("num_arrays", "num_rows", "num_columns", "most"),
        [(30, 256, 60, 4 * MIB), (1, 1 << 16, 16, MIB)],
        ids=["many selections of many arrays", "many runs"],
    )
    def test_of_columns(self, check_cached, num_arrays, num_rows, num_columns, most):
        """These would take 5 and 8 MiB: each column has a run for each row."""
        sizes = [(num_rows, 200 + k) for k in range(num_arrays)]
        layouts = [Layout(size, np.dtype("u1"), np.dtype("u1")) for size in sizes]

        def plan_columns():
            for layout, column in itertools.product(layouts, range(num_columns)):
                of_column = plan.plan_of((slice(0, num_rows), column), layout, max_gap=0)
                assert len(of_column.starts()) == num_rows

        check_cached(plan_columns, most)

    @pytest.mark.long
    @pytest.mark.skipif(not HAS_RECTILINEAR, reason="this zarr has no rectilinear chunk grids")
    def test_of_chunks_of_many_shapes(self, tmp_path, check_cached):
        """These would take 1.8 MiB."""
        heights, widths = range(1, 41), range(50, 90)
        with zarr.config.set({"array.rectilinear_chunks": True}):
            chunks, shape = [list(heights), list(widths)], (sum(heights), sum(widths))
            array = zarr.create_array(
                tmp_path, shape=shape, chunks=chunks, dtype="u1", compressors=None, fill_value=1
            )
            array[:] = 0
            assert not zarr.open_array(tmp_path, mode="r")[:].any()
            arrays = []

            def use():
                arrays.append(zarr.open_array(tmp_path, mode="r"))
                assert not any(arrays[0][k:, k:].any() for k in range(3))

            # Since Python 3.14, a tuple takes 8 bytes more.
            check_cached(use, (1.4 if sys.version_info < (3, 14) else 1.5) * MIB)
