"""The planner: the ranges hold what is selected, and no cheaper plan was passed over."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numcodecs_bytes._byte_ranges import plan_partial_read
from numcodecs_bytes._copy import select_fetched


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


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=5)))
    return (
        draw(selections(shape)),
        shape,
        draw(st.sampled_from([1, 2, 8, 12])),
        draw(st.sampled_from([0, 1, 8, 40, 100, 10**9])),
    )


def fetch(plan, stored):
    """Lay the pieces of a plan end to end; all else is not there."""
    fetched = np.zeros(stored.size, bool)
    for start, end in zip(plan.starts, plan.ends, strict=True):
        fetched[start:end] = True
    pieces = list(zip(plan.piece_starts, plan.piece_ends, strict=True))
    assert all(fetched[start:end].all() for start, end in pieces)
    return np.concatenate([np.zeros(0, np.uint8), *(stored[start:end] for start, end in pieces)])


def fewest(selection, shape, item_size, request_cost_bytes):
    """Return requests and bytes of the best plan: every gap for itself, over all elements."""
    needed = np.zeros(shape, bool)
    needed[selection] = True
    items = np.flatnonzero(needed)
    gaps = (np.diff(items) - 1) * item_size
    read = gaps <= request_cost_bytes
    return int(items.size > 0) + int((~read).sum()), items.size * item_size + int(gaps[read].sum())


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(cases())
def test_plan_fetch_and_place_give_what_numpy_selects(case):
    selection, shape, item_size, cost = case
    stored = np.random.default_rng(0).integers(0, 256, np.prod(shape) * item_size, np.uint8)
    dtype = np.dtype(f"V{item_size}")
    expected = stored.view(dtype).reshape(shape)[selection]

    plan = plan_partial_read(selection, shape, item_size, cost)

    if plan is None:  # the whole chunk
        assert fewest(selection, shape, item_size, cost) == (1, stored.size)
        return
    got = select_fetched(fetch(plan, stored), dtype, plan)
    assert got.shape == plan.shape == expected.shape
    assert got.tobytes() == expected.tobytes()
    assert plan.num_bytes <= stored.size
    assert (plan.starts[1:] >= plan.ends[:-1]).all()
    assert (plan.starts < plan.ends).all()


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(cases())
def test_no_other_plan_is_cheaper(case):
    *_, cost = case
    plan = plan_partial_read(*case)
    num_requests, num_bytes = fewest(*case)
    if plan is None:
        return
    best = num_requests * cost + num_bytes
    ours = plan.num_requests * cost + plan.num_bytes
    assert ours == best


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
    """One byte an item, and a request as dear as 8 bytes: gaps of up to 8 are read over."""
    plan = plan_partial_read(selection, (8, 8), 1, 8)
    assert list(zip(plan.starts.tolist(), plan.ends.tolist(), strict=True)) == expected


@pytest.mark.parametrize(
    "selection",
    [
        (slice(None), slice(None)),
        (slice(0, 8), slice(0, 8, 1)),
        (),
        (np.arange(8), slice(None)),
        (slice(None, None, -1), slice(None)),
        (np.array([1]), 1),
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
    assert plan_partial_read(selection, (8, 8), 1, 8) is None


def test_a_chunk_without_axes_is_read_whole():
    assert plan_partial_read((), (), 8, 0) is None


@pytest.mark.parametrize(
    "selection",
    [(8, 0), (-1, 0), (np.array([8]), slice(None)), (np.array([-1]), np.array([0]))],
    ids=str,
)
def test_an_index_out_of_the_chunk(selection):
    with pytest.raises(IndexError, match="expected 0 to 7"):
        plan_partial_read(selection, (8, 8), 1, 8)


def test_planning_does_not_depend_on_the_number_of_elements():
    """A slice of a terabyte is a few integers, not an index for every element."""
    shape = (10**6, 10**6)
    plan = plan_partial_read((slice(5, 10**6 - 5), slice(0, 10**6, 2)), shape, 1, 1)
    assert (plan.num_requests, plan.num_bytes) == (1, (10**6 - 11) * 10**6 + 10**6 - 1)


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
        plan = plan_partial_read(selection, shape, item_size, cost)
        assert plan is None or plan.num_requests <= num_bytes // cost + 1
