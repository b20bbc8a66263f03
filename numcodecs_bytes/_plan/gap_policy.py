"""Which gaps are fetched with the runs around them: where that is faster than another request."""

from collections.abc import Iterable
from typing import NamedTuple

from numcodecs_bytes._plan import constants
from numcodecs_bytes._plan.plan import RunPlan
from numcodecs_bytes._plan.ranges import num_subranges

# The gap that takes as long as another request, if a chunk has one request in flight: a latency of
# 30 ms at 100 MB/s is worth 3 MB. The requests in flight share it. Reads took up to 20 times as
# long with a quarter of it, 4.9 times with four times as much, and 3.2 times if it was not shared.
LATENCY_BYTES = 2_500_000

# Long ranges are requested in parts of at least this size, because a connection has a limited rate.
MIN_SUBRANGE_BYTES = 1 << 21

# MAX_RANGE_BYTES limits ranges over gaps, and so the memory of a request, unless an object has one
# request at a time: subranges would be requested one after the other. MAX_SHARD_GAP_BYTES limits
# the gaps in shards, where long ones are many inner chunks, and from near stores: zarr 3.4 has the
# same. From a near store, ranges of 1 to 16 MiB took the same time: a column of a shard of 512 MiB
# took 240 MiB of memory with ranges of 16 MiB, 70 to 97 with 4 MiB, and 1,030 in one (zarr 3.1.6:
# 138).
MAX_RANGE_BYTES = 1 << 24
MAX_NEAR_RANGE_BYTES = 1 << 22
MAX_SHARD_GAP_BYTES = 1 << 20

# A store that has answered within NEAR_SECONDS is near: there, requests do not wait, but take turns
# on the same cores. A gap is worth reading if the store sends it in less time than two of its
# fastest answers took: 100 points took 1.1 of zarr's time, and 1.7 with one answer. The rate is
# NEAR_BYTES_PER_SECOND until it is known. With the gap of a far store, parts of 16 MiB took
# Icechunk 1.7 times as long as all of it in a folder.
NEAR_SECONDS = 1e-3
NEAR_BYTES_PER_SECOND = 4e9

# If files are slow, gaps are read over that take less time than another request: what is read at
# BYTES_PER_SECOND meanwhile, up to MAX_SLOW_GAP_BYTES. The requests that are prefetched share it.
# One after the other, 1 ms each, parts of 64 MiB took 0.8 to 1.0 of zarr's time.
BYTES_PER_SECOND = 2e9
MAX_SLOW_GAP_BYTES = 1 << 21
NUM_PREFETCHED = 16

# A chunk is left to zarr if a range would save no more than this: at 1 ms and 1 GB/s, parts of 400
# chunks of 64 KiB took 1.1 to 1.2 times as long as the chunks.
MIN_SAVED_BYTES = 1 << 16

# Gaps of up to this size are parts of the runs that are planned; which longer ones are fetched is
# decided where requests are made, and then they are not copied: a box through four chunks of 16
# MiB, 1 ms away, took 0.57 to 0.91 of zarr's time, and 0.82 to 1.19 if they were copied.
MAX_COPIED_GAP_BYTES = 1 << 9

# Chunks in one object that are at most this far apart are requested together. zarr alone fetches
# nothing between them.
MAX_SIBLING_GAP_BYTES = 1 << 14

# How many requests are made at once if zarr's `async.concurrency` is None.
UNLIMITED = 1000

ANY_LENGTH = 1 << 62  # to which an offset can still be added


class GapPolicy(NamedTuple):
    """Which gaps between runs are fetched, in ranges of which length, and what that must save.

    | made for     | max_gap takes as long as | but at most         | max_range_bytes      |
    |--------------|--------------------------|---------------------|----------------------|
    | a chunk      | a request, shared by all |                     | MAX_RANGE_BYTES      |
    | a shard      | a request, shared by all | MAX_SHARD_GAP_BYTES | MAX_RANGE_BYTES      |
    | a near store | two answers              | MAX_SHARD_GAP_BYTES | MAX_NEAR_RANGE_BYTES |
    | a slow file  | a wait                   | MAX_SLOW_GAP_BYTES  | any                  |

    With one request at a time, ranges have any length, unless the store is near. A gap that the
    user has set is kept exactly; then no run is split, and a chunk need save nothing.
    """

    max_gap: int  # the largest gap over which runs are fetched together, in bytes
    max_range_bytes: int = ANY_LENGTH  # the longest range over gaps
    min_saved_bytes: int = 0  # a chunk, or a shard, that saves no more is left to zarr
    num_requests: int = 1  # how many may be in flight
    is_set_by_user: bool = False  # whether the user has set the gap

    @classmethod
    def for_chunk(cls, num_requests: int, max_gap: int | None = None) -> "GapPolicy":
        """Return the policy for a chunk, or several, of which so many requests are in flight.

        `max_gap` is what the user has set.
        """
        max_range_bytes = MAX_RANGE_BYTES if num_requests > 1 else ANY_LENGTH
        if max_gap is not None:
            return cls(max_gap, max_range_bytes, 0, num_requests, is_set_by_user=True)
        max_gap = LATENCY_BYTES // num_requests
        return cls(max_gap, max_range_bytes, MIN_SAVED_BYTES, num_requests)

    @classmethod
    def for_shard(cls, num_requests: int, max_gap: int | None = None) -> "GapPolicy":
        """Return the policy for a shard; see `for_chunk`."""
        policy = cls.for_chunk(num_requests, max_gap)
        if max_gap is None:
            max_gap = min(policy.max_gap, MAX_SHARD_GAP_BYTES)
        # The index takes one more request, which is worth a gap.
        return policy._replace(max_gap=max_gap, min_saved_bytes=max_gap)

    @classmethod
    def for_slow_file(cls, seconds: float, *, prefetching_helps: bool) -> "GapPolicy":
        """Return the policy for a file that a read waits so long for."""
        num = NUM_PREFETCHED if prefetching_helps else 1
        max_gap = int(min(seconds * BYTES_PER_SECOND, MAX_SLOW_GAP_BYTES) / num)
        # It is rounded down to a power of two, so that few plans are cached.
        return cls(max(1 << max_gap.bit_length() >> 1, constants.GAP_BYTES))

    def for_near_store(self, seconds: float, bytes_per_second: float | None) -> "GapPolicy":
        """Return the policy for a store whose fastest answer took so long: this one if it is far.

        `bytes_per_second` is the rate of its long answers, if that is known.
        """
        if self.is_set_by_user or seconds > NEAR_SECONDS:
            return self
        near_gap = int(2 * seconds * (bytes_per_second or NEAR_BYTES_PER_SECOND))
        if near_gap <= self.max_gap:
            return self
        max_gap = max(min(near_gap, MAX_SHARD_GAP_BYTES), self.max_gap)
        return self._replace(max_gap=max_gap, max_range_bytes=MAX_NEAR_RANGE_BYTES)

    def for_ranges(self, num_bytes: int) -> "GapPolicy":
        """Return the policy for ranges of so many bytes together, short enough for all requests."""
        if self.is_set_by_user or self.num_requests == 1:
            return self
        fair_share = max(MIN_SUBRANGE_BYTES, -(-num_bytes // self.num_requests))
        return self._replace(max_range_bytes=min(fair_share, self.max_range_bytes))

    def splits(self, num_bytes: int) -> bool:
        """Whether a run of that length is requested in subranges, if they can be compared."""
        return not self.is_set_by_user and num_subranges(num_bytes, self.max_range_bytes) > 1

    def may_pay(self, num_bytes: int) -> bool:
        """Whether a request pays that saves so many bytes, at most those of the chunk."""
        return num_bytes > self.min_saved_bytes

    def cost_of(self, plans: Iterable[RunPlan]) -> int:
        """Return what it costs to fetch plans, in bytes: a request costs as much as `max_gap`."""
        gap = self.max_gap
        return sum([min(p.span_bytes, p.num_runs * (p.run_bytes + gap)) for p in plans])

    def pays(self, num_bytes: int, cost: int, *, tells_versions: bool) -> bool:
        """Whether ranges of that cost save enough of an object, or all of it is split for speed."""
        if self.may_pay(num_bytes - cost):
            return True
        return tells_versions and self.for_ranges(num_bytes).splits(num_bytes)

    @property
    def max_copied_gap(self) -> int:
        """The largest gap that is a part of the runs that are planned, in bytes."""
        return min(self.max_gap, MAX_COPIED_GAP_BYTES)

    @property
    def max_sibling_gap(self) -> int:
        """The largest gap between chunks in an object that are requested together, in bytes."""
        return self.max_gap if self.is_set_by_user else MAX_SIBLING_GAP_BYTES
