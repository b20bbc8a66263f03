"""Which gaps are fetched, in which ranges, is one policy: numbers only."""

import numpy as np
import pytest

from numcodecs_bytes._plan import gap_policy
from numcodecs_bytes._plan.gap_policy import ANY_LENGTH, GapPolicy

KB, MB = 1 << 10, 1 << 20
NEAR, FAR = 1e-4, 3e-2


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (GapPolicy.for_chunk(1), (2_500_000, ANY_LENGTH, 64 * KB)),
        (GapPolicy.for_chunk(10), (250_000, 16 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10, 5), (5, 16 * MB, 0)),
        (GapPolicy.for_shard(1), (MB, ANY_LENGTH, MB)),
        (GapPolicy.for_shard(10), (250_000, 16 * MB, 250_000)),
        (GapPolicy.for_shard(1, 2 * MB), (2 * MB, ANY_LENGTH, 2 * MB)),
        (GapPolicy.for_slow_file(1e-3, prefetching_helps=False), (MB, ANY_LENGTH, 0)),
        (GapPolicy.for_slow_file(1e-3, prefetching_helps=True), (64 * KB, ANY_LENGTH, 0)),
        (GapPolicy.for_chunk(10).for_near_store(NEAR, None), (800_000, 4 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10).for_near_store(NEAR, 1e12), (MB, 4 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10).for_near_store(NEAR, 1e9), (250_000, 16 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10).for_near_store(FAR, 1e12), (250_000, 16 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10, 5).for_near_store(NEAR, 1e12), (5, 16 * MB, 0)),
        (GapPolicy.for_chunk(1).for_near_store(NEAR, 1e12), (2_500_000, 4 * MB, 64 * KB)),
        (GapPolicy.for_shard(1).for_near_store(NEAR, 1e12), (MB, 4 * MB, MB)),
        (GapPolicy.for_chunk(10).for_ranges(40 * MB), (250_000, 4 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10).for_ranges(4000 * MB), (250_000, 16 * MB, 64 * KB)),
        (GapPolicy.for_chunk(10, 5).for_ranges(40 * MB), (5, 16 * MB, 0)),
    ],
)
def test_the_table(policy, expected):
    assert (policy.max_gap, policy.max_range_bytes, policy.min_saved_bytes) == expected


@pytest.mark.parametrize("make", [GapPolicy.for_chunk, GapPolicy.for_shard])
@pytest.mark.parametrize("num_requests", [1, 2, 3, 10, 1000])
def test_a_near_store_never_makes_gaps_shorter(make, num_requests):
    """They were 1 MiB at 0.4 ms and 2.5 MB at 0.3 ms: a column took 512 requests instead of 8."""
    policy = make(num_requests)
    for seconds in np.linspace(0, 2e-3, 100):
        for rate in (None, 1e8, 1e10):
            assert policy.for_near_store(seconds, rate).max_gap >= policy.max_gap


@pytest.mark.parametrize(("num_requests", "max_gap"), [(10, None), (1, None), (10, 5)])
def test_a_run_is_split_for_several_requests_unless_the_gap_is_set(num_requests, max_gap):
    policy = GapPolicy.for_chunk(num_requests, max_gap)
    is_split = [policy.for_ranges(num).splits(num) for num in (2 * MB, 4 * MB, 400 * MB)]
    can_split = num_requests > 1 and max_gap is None
    assert is_split == [False, can_split, can_split]
    assert policy.max_sibling_gap == (max_gap or gap_policy.MAX_SIBLING_GAP_BYTES)


@pytest.mark.parametrize(
    ("num_bytes", "cost", "pays"),
    [(64 * KB, 0, False), (64 * KB + 1, 0, True), (MB, MB, False), (4 * MB, 4 * MB, "if split")],
)
def test_what_pays(num_bytes, cost, pays):
    """Saving more than `MIN_SAVED_BYTES`, or subranges, whose versions have to be known."""
    policy = GapPolicy.for_chunk(10)
    assert policy.pays(num_bytes, cost, tells_versions=True) == (pays in (True, "if split"))
    assert policy.pays(num_bytes, cost, tells_versions=False) == (pays is True)
    assert policy.may_pay(num_bytes) == (num_bytes > 64 * KB)
