"""What follows from how long reads of a file take: a table of cases, without files or clocks."""

import pytest

from numcodecs_bytes._read.pace import helps_prefetching, seconds_waited

LIMIT, FAST, SLOW = 2e-5, 1e-6, 5e-3


@pytest.mark.parametrize(
    ("probes", "suspicion", "expected"),
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
def test_two_reads_must_be_slow(probes, suspicion, expected):
    """A busy machine stops one; a suspicion counts if the next read confirms it."""
    assert seconds_waited(probes, LIMIT, suspicion) == expected


@pytest.mark.parametrize(
    ("prefetched", "expected"),
    [([], True), ([SLOW, SLOW, FAST], True), ([SLOW, SLOW, SLOW], False)],
)
def test_prefetching_helps_if_one_read_takes_no_time(prefetched, expected):
    assert helps_prefetching(prefetched, SLOW) is expected
