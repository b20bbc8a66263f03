"""Plans read the selected bytes, small gaps, and no more; blocks have a limited size.

What of a selection is stored where: the values of test_random_selections.py.
"""

import itertools
import operator
import random

import numpy as np
import pytest

from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.plan import plan_of, split
from numcodecs_bytes._plan.selection import moved_to_start

I4, BIG_I4, U1 = np.dtype("i4"), np.dtype(">i4"), np.dtype("u1")


def apply(plan, raw, layout, start=0):
    """Return what a plan selects from the bytes of an object."""
    runs = b"".join([raw[s : s + plan.run_bytes] for s in plan.starts(start).tolist()])
    window = np.ndarray(
        plan.window_shape, layout.stored_dtype, runs or bytes(4), 0, plan.window_strides
    )
    if not plan.needs_take:
        return window
    along = [np.arange(n)[i] for i, n in zip(plan.take_index, plan.window_shape, strict=True)]
    return window[np.ix_(*along)]


def random_selection(rng, shape):
    """Return a selection as zarr passes it to codecs, and the axes to drop."""
    if shape and rng.random() < 0.25:
        num = rng.randint(0, 200)
        return tuple(np.array([rng.randrange(n) for _ in range(num)], np.intp) for n in shape), ()
    selection, kinds = [], rng.choice(["is", "isa"])
    for n in shape:
        kind = rng.choice(kinds)
        if kind == "i":
            selection.append(rng.randrange(n))
        elif kind == "s":
            start, stop = sorted((rng.randint(0, n), rng.randint(0, n)))
            selection.append(slice(start, stop, rng.choice([1, 1, 2, 3])))
        else:
            num = rng.randint(0, 2 * n)
            selection.append(np.array([rng.randrange(n) for _ in range(num)], np.intp))
    arrays = [s for s in selection if isinstance(s, np.ndarray)]
    ints = tuple(k for k, s in enumerate(selection) if isinstance(s, int))
    if len(arrays) < 2 and not (arrays and ints):
        return tuple(selection), ()
    along = [np.atleast_1d(np.arange(n)[s]) for s, n in zip(selection, shape, strict=True)]
    return np.ix_(*along), ints


def test_plans_and_their_parts_select_what_numpy_selects(set_constants):
    """For any gap and block; a gap of 0 reads no byte that is not selected."""
    rng = random.Random(1)  # noqa: S311
    for _ in range(300):
        set_constants(
            GAP_BYTES=rng.choice([0, 1, 7, 64, 4096]),
            BLOCK_BYTES=rng.choice([1, 8, 50, 1 << 20]),
            RUN_OVERHEAD_BYTES=rng.choice([1, 16, 1 << 7]),
            GROUP_BYTES=0,
        )
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 4)))
        order = tuple(rng.sample(range(len(shape)), len(shape)))
        array = np.arange(np.prod(shape, dtype=int), dtype=I4).reshape(shape)
        layout = Layout(shape, I4, BIG_I4, order)
        raw = bytes(5) + array.astype(BIG_I4).transpose(order).tobytes()
        selection, drop_axes = random_selection(rng, shape)
        expected = array[selection].squeeze(axis=drop_axes)
        gap = rng.choice([None, 0, 5])
        plan = plan_of(selection, layout, drop_axes, gap)
        np.testing.assert_array_equal(apply(plan, raw, layout, 5), expected)
        at_start, distances = moved_to_start(selection, shape, (1,) * len(shape))
        distance = sum(map(operator.mul, distances, layout.strides))
        moved = plan_of(at_start, layout, drop_axes, gap)
        assert moved.starts(distance).tolist() == plan.starts().tolist()
        np.testing.assert_array_equal(apply(moved, raw, layout, 5 + distance), expected)
        for _ in range(2):  # the second time, plans may be cached
            out = np.full(expected.shape, -1, I4)
            for where, block in split(plan, 4):
                assert block.memory_bytes <= max(constants.BLOCK_BYTES, 4)
                out[where] = apply(block, raw, layout, 5)
            np.testing.assert_array_equal(out, expected)
        if plan.is_dense:
            runs = [raw[s : s + plan.run_bytes] for s in plan.starts(5).tolist()]
            stored = np.asarray(expected, BIG_I4).transpose(plan.stored_axes)
            assert b"".join(runs) == stored.tobytes()
        if plan.max_gap == 0:
            read = {b for s in plan.starts().tolist() for b in range(s, s + plan.run_bytes)}
            selected = apply(plan, np.arange(len(raw) // 4, dtype=BIG_I4).tobytes(), layout)
            assert read == {4 * int(k) + b for k in selected.ravel() for b in range(4)}


@pytest.mark.parametrize(
    ("selection", "moved"),
    [
        ((5, slice(2, 9, 3)), ((0, slice(0, 7, 3)), [5, 2])),
        ((5, slice(2, 9)), ((0, slice(0, 7, None)), [5, 2])),
        ((0, slice(0, 9)), ((0, slice(0, 9)), [0, 0])),
        *[
            (odd, (odd, [0, 0]))
            for odd in [(-1, slice(9, 2)), (8, slice(2, 11)), (True, slice(9, 2, -1))]
        ],
    ],
    ids=repr,
)
def test_a_selection_that_is_moved_to_the_start(selection, moved):
    """What is out of bounds, or of another kind, is not moved: it is refused when it is planned."""
    assert repr(moved_to_start(selection, (8, 10), (1, 1))) == repr(moved)


def test_a_selection_that_is_moved_by_inner_chunks():
    """It begins in the first one along each axis where it was."""
    selection = 5, slice(7, 9), slice(1, 3)
    assert moved_to_start(selection, (8, 10, 4), (2, 3, 2)) == (
        (1, slice(1, 3), slice(1, 3)),
        [2, 2, 0],
    )


@pytest.mark.parametrize(
    ("selection", "num_runs", "length"),
    [
        ((slice(0, 100), slice(0, 10_000)), 1, 1_000_000),
        ((5, slice(0, 10_000)), 1, 10_000),
        ((slice(0, 100), 7), 100, 1),
        ((slice(0, 100), slice(100, 200)), 100, 100),
        ((slice(0, 100), slice(0, 1_000, 300)), 100, 901),
        ((slice(0, 100), slice(0, 6_000)), 1, 996_000),
        ((slice(3, 3), slice(0, 100)), 0, 0),
    ],
    ids=["whole", "row", "column", "box", "steps", "small gaps", "nothing"],
)
def test_what_is_read_of_100_rows_of_10000_bytes(selection, num_runs, length):
    plan = plan_of(selection, Layout((100, 10_000), U1, U1), max_gap=1 << 13)
    assert (plan.num_runs, plan.run_bytes) == (num_runs, length)


def test_dense_points_in_disorder_are_grouped_by_block_and_read_once(set_constants):
    set_constants(BLOCK_BYTES=1 << 10, GROUP_BYTES=1 << 10)
    layout = Layout((1 << 14,), U1, U1)
    points = np.random.default_rng(1).integers(0, 1 << 14, 4000)
    blocks = list(split(plan_of((points,), layout), 1))
    assert sum(block.num_bytes for _, block in blocks) <= 1 << 14
    assert all((np.diff(where) > 0).all() for (where,), _ in blocks)  # and stay in order


def test_parts_follow_each_other_in_the_file(set_constants):
    """Files are read in their order, however the axes of a chunk are stored."""
    set_constants(BLOCK_BYTES=1 << 4, RUN_OVERHEAD_BYTES=1, GROUP_BYTES=0)
    for order, selection in itertools.product(
        itertools.permutations(range(3)),
        [np.s_[0:5, 0:7, 0:9], np.s_[1:5:2, 2:6, 0:9:4], (3, slice(0, 7), slice(0, 9, 2))],
    ):
        plan = plan_of(selection, Layout((5, 7, 9), U1, U1, order), max_gap=1)
        ends = [
            (block.starts()[0], block.starts()[-1] + block.run_bytes) for _, block in split(plan, 1)
        ]
        assert len(ends) > 1
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))


def test_points_that_are_sparse_in_some_blocks_only(set_constants):
    """A run for each of them would take more memory than their block."""
    set_constants(BLOCK_BYTES=1 << 10, GROUP_BYTES=1 << 10)
    layout = Layout((1 << 14,), U1, U1)
    points = np.append(np.arange(1 << 13), np.arange(1 << 13, 1 << 14, 3))
    points = np.random.default_rng(1).permutation(points)
    raw = np.random.default_rng(2).integers(0, 256, 1 << 14, np.uint8)
    out = np.zeros(len(points), U1)
    for where, block in split(plan_of((points,), layout, max_gap=1), 1):
        assert block.memory_bytes <= 1 << 10
        out[where] = apply(block, raw.tobytes(), layout)
    np.testing.assert_array_equal(out, raw[points])


def test_sparse_points_are_neither_sorted_nor_spread():
    """Half a million of them are no tuple of Python's integers either."""
    points = np.arange(0, 1 << 33, 1 << 14)[::-1]
    plan = plan_of((points,), Layout((1 << 33,), U1, U1), max_gap=1 << 13)
    assert plan.num_runs == len(points)
    np.testing.assert_array_equal(plan.starts(), points)


@pytest.mark.parametrize(
    "selection",
    [
        slice(0, 2),
        (slice(0, 2),),
        (slice(4, 0, -1), slice(0, 8)),
        (6, 0),
        (-1, 0),
        (True, 0),
        ("field", 0),
        (..., 0),
        (np.array([6]), slice(0, 8)),
        (np.array([-1]), slice(0, 8)),
        (np.array([1.0]), slice(0, 8)),
        (np.array([True]), slice(0, 8)),
        (np.array([1, 2]), np.array([1, 8])),
        (np.array([1, 2]), np.array([1, 2, 3])),
        (np.array(1), np.array(2)),
        (np.ma.masked_array([1, 2], [False, True]), slice(0, 8)),  # was an own bug
    ],
    ids=repr,
)
def test_selections_of_another_kind_or_out_of_bounds_are_left_to_zarr(selection):
    with pytest.raises(LeftToZarr, match="its selection is of an unknown kind"):
        plan_of(selection, Layout((6, 8), I4, I4))
