"""Runs become ranges to request, and what was fetched of them runs again: numbers only."""

import random

import numpy as np
import pytest
from helpers import EVERYTHING

from numcodecs_bytes._plan.ranges import coalesce, copy_runs, sorted_runs, subranges

ALL = 1 << 40


def ranges_of(starts, lengths, max_gap=0, max_bytes=ALL, *, is_split=False):
    runs = sorted_runs(np.array(starts), np.array(lengths))
    ranges = coalesce(runs, max_gap=max_gap, max_range_bytes=max_bytes)
    return list(subranges(ranges, max_bytes) if is_split else ranges)


def bounds_of(*arguments, **settings):
    return [(found.start, found.end) for found in ranges_of(*arguments, **settings)]


@pytest.mark.parametrize(
    ("starts", "lengths", "settings", "expected"),
    [
        ([], [], {}, []),
        ([5], [3], {}, [(5, 8)]),
        ([5, 8], [3, 2], {}, [(5, 10)]),
        ([9, 0], [1, 1], {}, [(0, 1), (9, 10)]),
        ([9, 0], [1, 1], {"max_gap": 7}, [(0, 1), (9, 10)]),
        ([9, 0], [1, 1], {"max_gap": 8}, [(0, 10)]),
        ([0, 4, 8], [1, 1, 1], {"max_gap": 8, "max_bytes": 5}, [(0, 5), (8, 9)]),
        ([0], [10], {"max_bytes": 5}, [(0, 10)]),
        ([0], [10], {"max_bytes": 5, "is_split": True}, [(0, 5), (5, 10)]),
        ([0], [10], {"max_bytes": 4, "is_split": True}, [(0, 5), (5, 10)]),
        ([3, 3, 3], [2, 2, 2], {}, [(3, 5)]),
        ([0, 2], [10, 3], {}, [(0, 10)]),
        ([0, 2], [10, 3], {"max_bytes": 8}, [(0, 10)]),
        ([0, 2, 9], [10, 3, 3], {"max_bytes": 8}, [(0, 10), (9, 12)]),
    ],
)
def test_runs_that_are_close_share_a_range(starts, lengths, settings, expected):
    assert bounds_of(starts, lengths, **settings) == expected


def test_what_is_fetched_of_random_runs_is_what_was_asked_for():
    """Runs that overlap, too: what was copied of one ran over those after it."""
    rng = random.Random(0)  # noqa: S311
    stored = np.random.default_rng(0).integers(0, 256, 200, np.uint8)
    for _ in range(3000 if EVERYTHING else 300):
        num = rng.randint(1, 12)
        lengths = [rng.choice([1, 3, rng.randint(1, 60)]) for _ in range(num)]
        starts = [rng.randint(0, len(stored) - length) for length in lengths]
        settings = {name: rng.choice([1, 10, 50, ALL]) for name in ("max_gap", "max_bytes")}
        settings["is_split"] = rng.random() < 0.5
        memory = np.zeros(sum(lengths), np.uint8)
        for found in ranges_of(starts, lengths, **settings):
            copy_runs(stored[found.start : found.end], found, memory)
        runs = [stored[s : s + n] for s, n in zip(starts, lengths, strict=True)]
        np.testing.assert_array_equal(memory, np.concatenate(runs))
