"""What follows from how long reads of a file take: a table of cases, without files or clocks."""

import pytest

from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.gap_policy import GapPolicy
from numcodecs_bytes._read import file_speed
from numcodecs_bytes._read.file_speed import (
    FileSpeed,
    WaitTotal,
    helps_prefetching,
    seconds_waited,
)

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
    policy = GapPolicy.for_slow_file(seconds, prefetching_helps=prefetching_helps)
    assert policy.max_gap == expected


def num_until_probe(speed, num_runs=1):
    """Return after how many chunks one is probed."""
    return next(num for num in range(1000) if speed.needs_probe(num_runs))


@pytest.mark.parametrize(
    ("record", "max_gap", "is_slow", "expected"),
    [
        (lambda _: None, None, False, 0),
        (lambda speed: speed.record_fast(), None, False, file_speed.PROBE_EVERY),
        (lambda speed: speed.record_one_slow(SLOW), None, False, 0),
        (
            lambda speed: speed.record_slow(SLOW, prefetching_helps=True),
            1 << 17,
            True,
            file_speed.PROBE_EVERY_SLOW,
        ),
    ],
    ids=["at first", "fast", "one slow", "slow"],
)
def test_a_verdict_holds_for_some_chunks(record, max_gap, is_slow, expected):
    """After one slow read, the next chunk is probed, and decides."""
    speed = FileSpeed(None, num_until_probe=0)
    record(speed)
    assert speed.verdict == (max_gap, is_slow, is_slow)
    assert num_until_probe(speed) == expected


def test_many_runs_are_probed_unless_files_are_slow():
    """Nothing is read of a chunk without runs."""
    speed, many = FileSpeed(None), file_speed.MIN_RUNS_TO_PROBE
    assert [speed.needs_probe(num) for num in (0, 1, many - 1, many)] == [False] * 3 + [True]
    speed.record_slow(SLOW, prefetching_helps=False)
    assert not speed.needs_probe(many)


def test_a_read_that_waited_for_threads_or_a_busy_machine_is_not_slow():
    speed, limits = FileSpeed(None), (LIMIT, constants.CERTAIN_WAIT_SECONDS)
    assert [speed.cached_read_limit(has_helpers=has) for has in (False, True)] == list(limits)
    speed.record_one_slow(SLOW)
    assert speed.cached_read_limit(has_helpers=False) == limits[1]


def test_short_waits_add_up_to_a_long_one():
    """What each takes at most is not counted."""
    total = WaitTotal()
    for _ in range(100):
        total.add(file_speed.SHORT_SECONDS)
    assert not total.is_long
    for _ in range(11):
        total.add(2 * file_speed.SHORT_SECONDS)
    assert total.is_long
