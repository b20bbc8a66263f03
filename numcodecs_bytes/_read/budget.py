"""What an object may use of zarr's limit of requests, and over which gaps it is requested."""

from typing import NamedTuple

from numcodecs_bytes._plan.ranges import num_subranges
from numcodecs_bytes._zarr_api.versions import concurrency

# The gap that takes as long as another request, if a chunk has one request in flight: a latency of
# 30 ms at 100 MB/s is worth 3 MB. The requests in flight share it. Reads took up to 20 times as
# long with a quarter of it, 4.9 times with four times as much, and 3.2 times if it was not shared.
LATENCY_BYTES = 2_500_000

# Long ranges are requested in parts of at least this size, because a connection has a limited rate.
MIN_SUBRANGE_BYTES = 1 << 21

# LONGEST_RANGE_BYTES limits ranges over gaps, and so the memory of a request, unless an object has
# one request at a time: parts of a range would be requested one after the other. LONGEST_GAP_BYTES
# limits the gaps in shards and from near stores, unless the user has set the gap: zarr 3.4 has the
# same. From a near store, ranges of 1 to 16 MiB took the same time: a column of a shard of 512 MiB
# took 240 MiB of memory with ranges of 16 MiB, 70 to 97 with 4 MiB, and 1,030 in one (zarr 3.1.6:
# 138).
LONGEST_RANGE_BYTES = 1 << 24
LONGEST_GAP_BYTES = 1 << 20
NEAR_RANGE_BYTES = 1 << 22

# Gaps of up to this size are parts of the runs that are planned; which longer ones are fetched is
# decided where requests are made, and then they are not copied: a box through four chunks of 16
# MiB, 1 ms away, took 0.57 to 0.91 of zarr's time, and 0.82 to 1.19 if they were copied.
COPIED_GAP_BYTES = 1 << 9

# The number to use if zarr's `async.concurrency` is None.
UNLIMITED = 1000


class Budget(NamedTuple):
    """What an object may use of zarr's `async.concurrency`."""

    num_requests: int
    max_gap: int  # the largest gap over which runs are requested together, in bytes
    is_exact: bool  # whether the user has set the gap: then no range is split

    @classmethod
    def of(cls, num_objects: int, max_gap: int | None) -> "Budget":
        """Return the budget of each object if `num_objects` of them are read at once.

        `gap` is what the user has set.
        """
        num = max(1, (concurrency() or UNLIMITED) // num_objects)
        if max_gap is not None:
            return cls(num, max_gap, is_exact=True)
        return cls(num, LATENCY_BYTES // num, is_exact=False)

    def of_shard(self) -> "Budget":
        """Return the budget of a shard, in which long gaps are many inner chunks."""
        max_gap = self.max_gap if self.is_exact else min(self.max_gap, LONGEST_GAP_BYTES)
        return self._replace(max_gap=max_gap)

    def longest(self, num_bytes: int) -> int:
        """Return the largest length of a range, if all ranges have `num_bytes` together."""
        if self.num_requests == 1:  # parts would be requested one after the other
            return max(MIN_SUBRANGE_BYTES, num_bytes)
        if self.is_exact:
            return LONGEST_RANGE_BYTES
        return min(max(MIN_SUBRANGE_BYTES, -(-num_bytes // self.num_requests)), LONGEST_RANGE_BYTES)

    def would_split(self, num_bytes: int) -> bool:
        """Whether a run of that length is split, if its parts can be compared."""
        return not self.is_exact and num_subranges(num_bytes, self.longest(num_bytes)) > 1

    @property
    def copied_gap(self) -> int:
        """The largest gap that is a part of the runs that are planned, in bytes."""
        return min(self.max_gap, COPIED_GAP_BYTES)

    def gap_and_longest(self, longest: int, near_gap: int) -> tuple[int, int]:
        """Return the largest gap within a range, and the length of a range over gaps.

        `near_gap` is the gap that is worth reading if the store is near.
        """
        if near_gap <= self.max_gap:
            return self.max_gap, longest
        return min(near_gap, LONGEST_GAP_BYTES), NEAR_RANGE_BYTES


def may_be_split(num_bytes: int) -> bool:
    """Whether an object of that length may be requested in parts."""
    return num_subranges(num_bytes, MIN_SUBRANGE_BYTES) > 1
