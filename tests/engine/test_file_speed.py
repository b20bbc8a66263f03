"""What follows from how long reads of a file take: a table of cases, without files or clocks."""

import pytest

from numcodecs_bytes._plan import constants
from numcodecs_bytes._read.file_speed import gap_worth_reading, helps_prefetching, seconds_waited

LIMIT, FAST, SLOW = 2e-5, 1e-6, 5e-3


@pytest.mark.parametrize(
    ("probes", "last_slow_seconds", "expected"),
    [
        ([], 0.0, 0.0),
        ([FAST] * 5, 0.0, 0.0),
        ([SLOW], 0.0, 0.0),
        ([SLOW, FAST, FAST, FAST, FAST], 0.0, 0.0),
        ([SLOW, SLOW], 0.0, SLOW),
        ([FAST, SLOW, FAST, SLOW], 0.0, SLOW),
        ([SLOW, 2 * SLOW], 0.0, SLOW),
        ([SLOW], 3 * SLOW, SLOW),
        ([FAST, SLOW], SLOW, 0.0),
        ([FAST], SLOW, 0.0),
        ([LIMIT, LIMIT], 0.0, 0.0),
    ],
)
def test_two_reads_must_be_slow(probes, last_slow_seconds, expected):
    """A busy machine stops one; the last one before counts if the next confirms it."""
    assert seconds_waited(probes, LIMIT, last_slow_seconds) == expected


@pytest.mark.parametrize(
    ("prefetched", "expected"),
    [([], True), ([SLOW, SLOW, FAST], True), ([SLOW, SLOW, SLOW], False)],
)
def test_prefetching_helps_if_one_read_takes_no_time(prefetched, expected):
    assert helps_prefetching(prefetched, SLOW) is expected


@pytest.mark.parametrize(
    ("seconds", "prefetching_helps", "expected"),
    [
        (0.0, False, constants.GAP_BYTES),
        (1e-4, False, 1 << 17),
        (1e-3, False, 1 << 20),
        (1.0, False, 1 << 21),
        (1e-4, True, constants.GAP_BYTES),
        (1e-3, True, 1 << 16),
        (1.0, True, 1 << 17),
    ],
)
def test_the_gap_takes_as_long_as_another_request(seconds, prefetching_helps, expected):
    """At 2 GB/s; requests that are answered together share it."""
    assert gap_worth_reading(seconds, prefetching_helps=prefetching_helps) == expected
