"""The planner: the ranges hold what is selected, and no cheaper plan was passed over."""

import numpy as np
import pytest
from helpers import bounded
from hypothesis import given
from hypothesis import strategies as st

from numcodecs_bytes._parts import plan as planning
from numcodecs_bytes._parts.assemble import copy_pieces, select_fetched
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.open_file import BLOCK_BYTES
from numcodecs_bytes._parts.plan import (
    DENSE_FRACTION,
    MAX_CACHED,
    MAX_CACHED_PIECES,
    NEARLY_WHOLE,
)
from numcodecs_bytes._parts.ranges import NO_COSTS, Coalescing, Costs
from numcodecs_bytes._parts.stores import LOCAL_COSTS, LOCAL_MAX_GAP_BYTES


def plan_read(selection, shape, item_size, coalescing, axis_order=None):
    """Plan for a chunk of elements of some size."""
    layout = layout_of(shape, item_size, axis_order)
    return planning.plan_read(selection, layout, coalescing)


def layout_of(shape, item_size, axis_order=None):
    dtype = np.dtype(f"V{item_size}")
    return Layout(shape, dtype, dtype, axis_order)


@st.composite
def selections(draw, shape):
    """Draw a selection as zarr hands it to codecs."""
    kind = draw(st.sampled_from(["basic", "mesh", "beside slices", "points"]))
    size = st.integers(0, 6)

    def slices(n):
        bounds = st.lists(st.integers(0, n), min_size=2, max_size=2).map(sorted)
        return st.builds(lambda b, step: slice(b[0], b[1], step), bounds, st.integers(1, 3))

    def integers(n, num):
        return st.lists(st.integers(0, n - 1), min_size=num, max_size=num).map(
            lambda values: np.array(values, np.intp)
        )

    if kind == "basic":
        return tuple(draw(st.one_of(st.integers(0, n - 1), slices(n))) for n in shape)
    if kind == "mesh":
        return np.ix_(*(draw(integers(n, draw(size))) for n in shape))
    if kind == "points":
        num = draw(size)
        return tuple(draw(integers(n, num)) for n in shape)
    axis = draw(st.integers(0, len(shape) - 1))
    mask = st.lists(st.booleans(), min_size=shape[axis], max_size=shape[axis]).map(np.array)
    array = draw(st.one_of(integers(shape[axis], draw(size)), mask))
    return tuple(array if k == axis else draw(slices(n)) for k, n in enumerate(shape))


gaps = st.sampled_from([0, 1, 8, 40, 100, 10**9])
some_costs = st.sampled_from([NO_COSTS, Costs(0, 100, 50, 8), Costs(20, 300, 200, 3)])


any_gap = gaps.map(Coalescing)
any_costs = st.tuples(gaps, gaps, some_costs).map(
    lambda drawn: Coalescing(drawn[0], dense_bytes=drawn[1], costs=drawn[2])
)


@st.composite
def cases(draw, coalescings=any_gap):
    """Draw the arguments of plan_read."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=5)))
    return (
        draw(selections(shape)),
        shape,
        draw(st.sampled_from([1, 2, 8, 12])),
        draw(coalescings),
        draw(st.one_of(st.none(), st.permutations(range(len(shape))).map(tuple))),
    )


def fetch(ranges, raw):
    """Lay the pieces of ranges end to end."""
    fetched = np.zeros(ranges.num_kept_bytes, np.uint8)
    for start, end, place, piece_starts, piece_lengths in ranges.requests():
        assert (piece_starts >= 0).all()
        assert (piece_starts + piece_lengths <= end - start).all()
        out = fetched[place : place + piece_lengths.sum()]
        copy_pieces(out, raw[start:end], piece_starts, piece_lengths)
    return fetched


def selects_by_array(selection):
    return any(isinstance(selector, np.ndarray) for selector in selection)


def as_stored(array, axis_order):
    """Return the array with its axes in the order in which they are stored."""
    return array if axis_order is None else array.transpose(axis_order)


def fewest(selection, shape, item_size, coalescing, axis_order):
    """Return requests and bytes of the best plan: every gap for itself, over all elements."""
    needed = np.zeros(shape, bool)
    needed[selection] = True
    items = np.flatnonzero(as_stored(needed, axis_order))
    gaps = (np.diff(items) - 1) * item_size
    read = gaps <= coalescing.max_gap_bytes
    return int(items.size > 0) + int((~read).sum()), items.size * item_size + int(gaps[read].sum())


@bounded(1000)
@given(cases(any_costs))
def test_plan_fetch_and_place_give_what_numpy_selects(case):
    selection, shape, item_size, _, axis_order = case
    raw = np.random.default_rng(0).integers(0, 256, np.prod(shape) * item_size, np.uint8)
    dtype = np.dtype(f"V{item_size}")
    stored_shape = shape if axis_order is None else tuple(shape[k] for k in axis_order)
    chunk = raw.view(dtype).reshape(stored_shape)
    if axis_order is not None:
        chunk = chunk.transpose(np.argsort(axis_order))
    expected = chunk[selection]

    plan = plan_read(*case)

    got = select_fetched(fetch(plan.ranges, raw), dtype, plan, selection)
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()
    assert plan.is_whole or plan.selection or plan.shape == expected.shape
    if plan.is_solid:
        assert plan.ranges.num_bytes == expected.nbytes
        assert plan.is_whole or plan.shape == expected.shape
    assert plan.ranges.num_bytes <= raw.size
    assert plan.ranges.num_kept_bytes <= plan.ranges.num_bytes
    assert (plan.ranges.starts[1:] >= plan.ranges.ends[:-1]).all()
    assert (plan.ranges.starts < plan.ranges.ends).all()


@bounded(1000)
@given(cases())
def test_no_other_plan_is_cheaper_unless_the_selection_is_dense(case):
    selection, shape, item_size, coalescing, _ = case
    max_gap_bytes = coalescing.max_gap_bytes
    plan = plan_read(*case)
    num_requests, num_bytes = fewest(*case)
    best = num_requests * max_gap_bytes + num_bytes
    if plan.num_requests * max_gap_bytes + plan.ranges.num_bytes != best:
        assert plan.selection or (plan.is_whole and selects_by_array(selection))
        num_bytes = plan.ranges.num_bytes * (NEARLY_WHOLE if plan.is_whole else 1)
        assert num_bytes <= DENSE_FRACTION * np.empty(shape)[selection].size * item_size


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ((3, slice(None)), [(24, 32)]),
        ((slice(1, 3), slice(0, 8)), [(8, 24)]),
        ((slice(2, 5), slice(2, 4)), [(18, 36)]),
        ((slice(0, 8, 2), slice(2, 4)), [(2, 4), (18, 20), (34, 36), (50, 52)]),
        ((slice(0, 8, 7), slice(7, 8)), [(7, 8), (63, 64)]),
        ((np.array([0, 1, 5]), slice(0, 2)), [(0, 10), (40, 42)]),
        (np.ix_([5, 0, 0], [1, 1, 7]), [(1, 8), (41, 48)]),
        ((np.array([7, 0, 0]), np.array([7, 1, 0])), [(0, 2), (63, 64)]),
        ((slice(3, 3), slice(None)), []),
        ((np.array([], int), np.array([], int)), []),
        ((2, 5), [(21, 22)]),
    ],
    ids=str,
)
def test_ranges_of_an_8_by_8_chunk(selection, expected):
    """One byte an item, and a request as dear as 8 bytes: gaps of up to 8 are coalesced."""
    plan = plan_read(selection, (8, 8), 1, Coalescing(8))
    assert [(start, end) for start, end, *_ in plan.ranges.requests()] == expected


@pytest.mark.parametrize(
    "selection",
    [
        (slice(None), slice(None)),
        (slice(0, 8), slice(0, 8, 1)),
        (),
        (np.arange(8), slice(None)),
        (slice(None, None, -1), slice(None)),
        (..., 1),
        (None, 1),
        (True, 1),
        (np.ones((8, 8), bool),),
        (1, 1, 1),
        np.array([1, 2]).reshape(1, 2),
        (np.array([True] * 8), np.array([True, False] * 4)),
    ],
    ids=str,
)
def test_the_whole_chunk_is_read_where_it_is_needed_or_the_selection_is_of_no_known_kind(selection):
    plan = plan_read(selection, (8, 8), 1, Coalescing(8))
    assert plan.is_whole
    assert [(start, end) for start, end, *_ in plan.ranges.requests()] == [(0, 64)]


@pytest.mark.parametrize(
    ("selection", "coalescing", "expected"),
    [
        ((np.array([3, 2]), np.array([0, 7])), Coalescing(0, dense_bytes=8), (16, 32)),
        ((np.array([3, 3]), np.array([2, 6])), Coalescing(0, dense_bytes=8), (26, 31)),
        ((np.array([5, 2]), np.array([1, 3])), Coalescing(0, dense_bytes=16), (17, 44)),
        (np.ix_([6, 6, 1], range(8)), Coalescing(0), (8, 56)),
        ((np.array([4, 5, 4, 6] * 2), slice(2, 8, 2)), Coalescing(0), (34, 55)),
        ((np.array([7] * 8), slice(1, 4)), Coalescing(0), (57, 60)),
        ((slice(2, 7, 2), np.array([1, 5, 3, 6, 0])), Coalescing(0), (16, 55)),
        ((np.array([1]), 1), Coalescing(0), (9, 10)),
    ],
    ids=str,
)
def test_a_dense_selection_by_arrays_is_one_range(selection, coalescing, expected):
    """A mask of half of 64 MiB was planned element by element: 6.6 s, zarr alone 1.3 s."""
    chunk = np.arange(64, dtype=np.uint8)
    plan = plan_read(selection, (8, 8), 1, coalescing)
    assert not plan.is_whole
    assert [(start, end) for start, end, *_ in plan.ranges.requests()] == [expected]
    selected = select_fetched(chunk[slice(*expected)], np.dtype("u1"), plan, selection)
    np.testing.assert_array_equal(selected, chunk.reshape(8, 8)[selection])


@pytest.mark.parametrize(
    ("selection", "coalescing"),
    [
        ((np.array([0, 7]), np.array([0, 7])), Coalescing(0, dense_bytes=31)),
        ((np.array([0, 7]), slice(None)), Coalescing(0)),  # two pieces, however long they are
        (np.ix_([0, 7], [0, 1, 7]), Coalescing(0)),
        (np.ix_([0, 7], [0, 2, 3, 4, 5]), Coalescing(0, dense_bytes=16)),  # two rows, far apart
    ],
    ids=str,
)
def test_a_sparse_selection_by_arrays_is_planned(selection, coalescing):
    plan = plan_read(selection, (8, 8), 1, coalescing)
    assert plan.num_requests > 1


def test_a_mask_of_nothing_needs_nothing():
    assert plan_read((np.array([False]),), (1,), 1, Coalescing(0)).num_requests == 0


def test_a_chunk_without_axes_is_read_whole():
    assert plan_read((), (), 8, Coalescing(0)).is_whole


@pytest.mark.parametrize(
    "selection",
    [(8, 0), (-1, 0), (np.array([8]), slice(None)), (np.array([-1]), np.array([0]))],
    ids=str,
)
def test_an_index_out_of_the_chunk_is_left_to_numpy(selection):
    """If the chunk is missing, zarr gives the fill value without looking at the selection."""
    assert plan_read(selection, (8, 8), 1, Coalescing(8)).is_whole


@pytest.mark.parametrize("shape", [(2**61, 8), (2**63,), (2**31, 2**31, 2**31)], ids=str)
def test_a_chunk_that_no_integer_reaches_is_read_whole(shape):
    """Offsets beyond 2**63 wrapped: the last element was read where the first one is."""
    last = tuple(n - 1 for n in shape)
    for selection in (last, np.ix_(*([k] for k in last)), tuple(np.array([k]) for k in last)):
        assert plan_read(selection, shape, 8, Coalescing(0)).is_whole


def test_a_range_with_gaps_is_no_longer_than_two_blocks():
    """Gaps that are read must not need as much memory as the chunk."""
    plan = plan_read((slice(None), 3), (1000, 100), 8, Coalescing(10**9, 4096))
    assert (plan.ranges.ends - plan.ranges.starts).max() <= 2 * 4096
    assert plan.num_requests == pytest.approx(1000 * 800 / 4096, abs=1)
    whole_rows = plan_read((slice(None, None, 5), slice(None)), (100, 1000), 8, Coalescing(0, 4096))
    assert whole_rows.num_requests == 20  # a piece is never cut


@bounded(300)
@given(cases(), st.integers(1, 50), st.sampled_from([0, 10, 10**9]))
def test_ranges_split_anywhere_are_the_same_ranges(case, num, num_bytes):
    ranges = plan_read(*case).ranges
    parts = ranges.split(num, num_bytes)
    assert len(parts[0].starts) <= num
    assert parts[0].num_bytes <= num_bytes or len(parts[0].starts) == 1
    if num_bytes == 10**9:
        assert len(parts[0].starts) == min(num, len(ranges.starts))
    for whole, *halves in zip(ranges[:4], parts[0][:4], parts[1][:4], strict=True):
        np.testing.assert_array_equal(np.concatenate(halves), whole)
    raw = np.arange(np.prod(case[1]) * case[2]).astype(np.uint8)
    halves = [fetch(part, raw) for part in parts if len(part.starts)]
    np.testing.assert_array_equal(np.concatenate([[], *halves]), fetch(ranges, raw))


@bounded(300)
@given(cases(), st.integers(0, 50))
def test_ranges_without_their_first_pieces_are_those_of_the_others(case, num):
    ranges = plan_read(*case).ranges
    left = ranges.without(min(num, len(ranges.piece_starts)))
    starts, ends = ranges.piece_starts[num:], ranges.piece_ends[num:]
    for got, expected in zip(left[:4], case[3].coalesce(starts, ends)[:4], strict=True):
        np.testing.assert_array_equal(got, expected)


@bounded(300)
@given(cases(), st.sampled_from([1, 20, 10**9]))
def test_contiguous_ranges_have_the_same_pieces(case, block_bytes):
    ranges = plan_read(*case).ranges
    coalescing = Coalescing(30, block_bytes, is_contiguous=True)
    contiguous = coalescing.coalesce(ranges.piece_starts, ranges.piece_ends)
    distances = contiguous.starts[1:] - contiguous.ends[:-1]
    assert ((distances == 0) | (distances > 30)).all()
    raw = np.arange(np.prod(case[1]) * case[2]).astype(np.uint8)
    if len(ranges.starts):
        np.testing.assert_array_equal(fetch(contiguous, raw), fetch(ranges, raw))


def test_planning_does_not_depend_on_the_number_of_elements():
    """A slice of a terabyte is a few integers, not an index for every element."""
    shape = (10**6, 10**6)
    plan = plan_read((slice(5, 10**6 - 5), slice(0, 10**6, 2)), shape, 1, Coalescing(1))
    assert (plan.num_requests, plan.ranges.num_bytes) == (1, (10**6 - 11) * 10**6 + 10**6 - 1)


@pytest.mark.parametrize("cost", [1 << 10, 1 << 17, 1 << 20])
def test_the_number_of_requests_is_bounded_by_their_cost(cost):
    """Every gap that is not read is dearer than a request: a column does not become 10,000."""
    shape, item_size = (10_000, 1_000), 8
    num_bytes = 10_000 * 1_000 * item_size
    rng = np.random.default_rng(0)
    for selection in (
        (slice(None), 5),
        (np.sort(rng.choice(10_000, 5_000, replace=False)), slice(3, 5)),
        (rng.integers(0, 10_000, 100_000), rng.integers(0, 1_000, 100_000)),
        np.ix_(rng.integers(0, 10_000, 2_000), rng.integers(0, 1_000, 500)),
    ):
        plan = plan_read(selection, shape, item_size, Coalescing(cost))
        assert plan.is_whole or plan.num_requests <= num_bytes // cost + 1


class TestFiles:
    """What a file in the page cache costs: decided from sizes, before anything is planned."""

    COALESCING = Coalescing(
        LOCAL_MAX_GAP_BYTES, BLOCK_BYTES, dense_bytes=LOCAL_MAX_GAP_BYTES, costs=LOCAL_COSTS
    )

    @pytest.mark.parametrize(
        "selection",
        [
            (slice(None), 5),
            (slice(None, None, 4), slice(None, None, 4)),
            np.ix_([3, 200], [7, 300]),
            (np.array([3, 200]), np.array([7, 300])),
        ],
        ids=str,
    )
    def test_pieces_of_a_mebibyte_are_one_read(self, selection):
        plan = plan_read(selection, (362, 362), 8, self.COALESCING)
        assert plan.num_requests == 1
        assert plan.ranges.num_bytes <= 362 * 362 * 8

    def test_a_part_of_a_mebibyte_that_is_contiguous_is_that_part(self):
        for selection, num_items in (((3, 5), 1), ((3, slice(None)), 362)):
            plan = plan_read(selection, (362, 362), 8, self.COALESCING)
            assert plan.ranges.num_bytes == num_items * 8
        plan = plan_read((slice(100, 200), slice(100, 200)), (362, 362), 8, self.COALESCING)
        assert (plan.num_requests, plan.ranges.num_bytes) == (1, (99 * 362 + 100) * 8)
        assert plan.is_slab

    def test_pieces_of_128_mebibytes_are_pieces(self):
        plan = plan_read((slice(None), 5), (4096, 4096), 8, self.COALESCING)
        assert (plan.num_requests, plan.ranges.num_bytes) == (4096, 4096 * 8)

    def test_few_indices_that_are_near_are_that_part(self):
        """Of two mebibytes, all were read for a single point."""
        for selection in (np.ix_([3], [5]), (np.array([3]), np.array([5]))):
            assert plan_read(selection, (512, 512), 8, self.COALESCING).ranges.num_bytes == 8

    def test_slices_that_count_from_the_end(self):
        for selection in ((slice(None, -390), slice(5, 6)), (slice(-400, -399), slice(5, 6))):
            plan = plan_read(selection, (400, 400), 8, self.COALESCING)
            array = np.arange(160_000.0).reshape(400, 400)
            fetched = fetch(plan.ranges, array.view(np.uint8).ravel())
            got = select_fetched(fetched, array.dtype, plan, selection)
            np.testing.assert_array_equal(got, array[selection])

    def test_slices_are_planned_once(self):
        shape = 1000, 1001  # of no other test
        plans = [plan_read((slice(0, 50), k), shape, 8, self.COALESCING) for k in (5, 5, 6)]
        assert plans[0] is plans[1] is not plans[2]

    def test_parts_are_those_of_a_shape(self):
        """An output of another shape is no box of the selection, before and after it is known."""
        planner = planning.Planner(layout_of((1000, 1003), 8), self.COALESCING)
        selection = slice(0, 50), slice(3, 7)
        plan = planner.plan(selection)
        for shape, are_known in [((50, 4), True), ((4, 50), False), ((50, 4), True)] * 2:
            assert (planner.parts(selection, plan, shape, 400) is not None) == are_known

    def test_plans_that_are_kept_are_few_and_small(self):
        for k in range(2 * MAX_CACHED):
            plan_read((slice(0, 50), k), (1000, 1200), 8, self.COALESCING)
            plan_read((slice(None, None, 2), k), (1000, 1200), 8, self.COALESCING)
        plans = planning.planner_of(layout_of((1000, 1200), 8), self.COALESCING)._plans
        assert 0 < len(plans) <= MAX_CACHED
        assert max(len(plan.ranges.piece_starts) for plan in plans.values()) <= MAX_CACHED_PIECES


def test_ranges_are_cut():
    """Into no longer ones, with the same pieces end to end."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        edges = np.sort(rng.choice(200, 2 * rng.integers(1, 12), replace=False))
        ranges = Coalescing(int(rng.integers(0, 30))).coalesce(edges[::2], edges[1::2])
        max_bytes = int(rng.integers(1, 40))
        cut = ranges.cut(max_bytes)
        sizes = cut.ends - cut.starts
        assert (sizes > 0).all()
        assert (sizes <= max_bytes).all()
        assert set(cut.starts) <= set(cut.piece_starts)
        assert set(cut.ends) <= set(cut.piece_ends)
        raw = np.arange(200)
        kept = [raw[s:e] for s, e in zip(ranges.piece_starts, ranges.piece_ends, strict=True)]
        got = [
            raw[r.start : r.end][s : s + n]
            for r in cut.requests()
            for s, n in zip(r.piece_starts, r.piece_lengths, strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(got), np.concatenate(kept))
