"""Reads selections of chunks, and of shards, that are requested from stores.

An object is a chunk, a shard, or a part of a file into which references point. All pieces of it are
coalesced, requested at once, and must be of one version. If something is not answered as requested,
zarr reads it, and all that was not asked for yet, when all requests in flight have ended.
"""

import asyncio
import contextlib
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.core.common import concurrent_map

from numcodecs_bytes import _trace
from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine import constants
from numcodecs_bytes._engine.batch import Batch
from numcodecs_bytes._engine.files import Left
from numcodecs_bytes._engine.layout import Layout
from numcodecs_bytes._engine.output import memory_of, within, write_selected
from numcodecs_bytes._engine.plan import Plan, plan_of
from numcodecs_bytes._engine.selection import Indices
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._engine.stores import Remote, sources_of
from numcodecs_bytes._engine.strikes import (
    Changed,
    Failed,
    NotBelieved,
    Unexpected,
    is_lost,
    state_of,
)
from numcodecs_bytes._names import add_name
from numcodecs_bytes._options import max_gap_bytes
from numcodecs_bytes._zarr_versions import fill_value_or_default

# Lets zarr read chunks of a batch, given what was requested of each; returns whether each exists.
ReadWhole = Callable[[Sequence[int], Sequence[_trace.Fetched]], Awaitable[Sequence[bool]]]


class _InFlight(threading.local):
    """How many objects are read at once by the event loop of this thread."""

    num = 0


_in_flight = _InFlight()


class Share(NamedTuple):
    """What an object may have of zarr's `async.concurrency`.

    Attributes
    ----------
    num_requests : int
        How many requests at once.
    gap : int
        Over which gaps pieces are requested together, in bytes.
    is_exact : bool
        Whether a person has set the gap: then no range is made shorter than that makes it.
    """

    num_requests: int
    gap: int
    is_exact: bool

    @classmethod
    def of(cls, num_in_flight: int) -> "Share":
        """Return the share of each of so many objects that are read at once."""
        limit = zarr.config.get("async.concurrency") or constants.UNLIMITED
        num, gap = max(1, limit // max(1, num_in_flight)), max_gap_bytes()
        return cls(num, constants.LATENCY_BYTES // num if gap is None else gap, gap is not None)

    def most(self, num_bytes: int) -> int:
        """Return how long a range is at most, if all of them have so many bytes."""
        if self.is_exact:
            return sys.maxsize
        return max(constants.PART_BYTES, -(-num_bytes // self.num_requests))


class Object:
    """An object while it is read: all answers must be of one version, and of one length.

    Parameters
    ----------
    remote : Remote
        How to get ranges of it.
    num_bytes : int, optional
        Its length, if it is known.

    Attributes
    ----------
    num_requests, num_bytes : int
        How often it was asked, and how many bytes were answered.
    length : int or None
        The length that the answers tell.
    """

    def __init__(self, remote: Remote, num_bytes: int | None = None) -> None:
        self.remote, self.state = remote, state_of(remote.store)
        self.num_requests = self.num_bytes = 0
        self._expected = num_bytes
        self.forget()

    def forget(self) -> None:
        """Take any version again."""
        self._told: tuple[int | None, object] | None = None
        self._has_answered = self._is_split = False

    @property
    def length(self) -> int | None:
        """The length of the object in bytes, if answers tell it."""
        return None if self._told is None else self._told[0]

    def may_split(self) -> bool:
        """Whether parts of a range can be compared."""
        return self.remote.tells_versions and self.state.tells_versions

    def _check(self, num_bytes: int | None, version: object) -> None:
        """Raise if an answer is of another object than expected, as far as it tells."""
        if self._expected is not None and num_bytes not in (None, self._expected):
            raise Unexpected(f"it says that a chunk of {self._expected} bytes has {num_bytes}")
        is_same = self._told in (None, (num_bytes, version))
        self._told = num_bytes, version
        if self._is_split and (version is None or not is_same):
            self.state.tells_versions = False  # zarr's own request costs as much as another try
            raise Left("the parts of a long range can't be compared, or it was overwritten")
        if not is_same:
            raise Changed("chunks are overwritten all the time, or each answer has another version")

    async def ask(self, start: int, end: int | None) -> UInt8Array | None:
        """Return a range, or None if the object is missing; see `stores.Get`.

        Raises
        ------
        Unexpected
            If anything else than the range is answered, or nothing, but soon.
        Exception
            Whatever the store raises if a connection is lost after long: not to be asked again.
        """
        begin = time.monotonic()
        self.num_requests += 1
        try:
            raw = await self.remote.get(start, end, self._check)
        except Left:
            raise
        except Exception as error:  # stores and their clients raise anything
            is_long = time.monotonic() - begin > constants.PATIENCE_SECONDS
            if is_long and self.state.answers and is_lost(error):
                raise
            first_line = str(error).partition("\n")[0]
            raise Failed(f"{type(error).__name__}: {first_line}"[:200]) from None
        if raw is None:
            return None
        self.num_bytes += raw.nbytes
        expected = -start if end is None else end - start
        if raw.nbytes != expected:
            raise Unexpected(f"it answers with {raw.nbytes} bytes to a request for {expected}")
        self.state.answers = self._has_answered = True
        return raw

    async def fetch(
        self,
        parts: Sequence[tuple[Plan, int]],
        share: Share,
        memory: UInt8Array | None = None,
    ) -> list[UInt8Array] | None:
        """Return the pieces of plans, each end to end; None if the object is missing.

        Parameters
        ----------
        parts : sequence of (Plan, int)
            What to read, and where the chunk begins in the object in bytes.
        share : Share
            How many requests to make, over which gaps.
        memory : numpy.ndarray, optional
            Where to put the pieces if there are several requests.

        Raises
        ------
        Left, Exception
            As `ask`, and if the answers are of several versions, after all requests have ended.
        """
        most = share.most(sum([plan.num_bytes for plan, _ in parts]))
        longest = most if self.may_split() else sys.maxsize
        (plan, start), *others = parts
        if plan.num_pieces == 1 and not others and _num_parts(plan.length, longest) == 1:
            start += plan.start
            raw = await self.ask(start, start + plan.length)
            return None if raw is None else [raw]
        pieces = _Pieces(parts, longest, memory)
        self._is_split = pieces.are_split
        is_missing, errors = False, list[Exception]()

        async def get(at: Indices, start: int, end: int) -> None:
            nonlocal is_missing
            if errors or is_missing:  # those in flight are waited for
                return
            try:
                raw = await self.ask(start, end)
            except Exception as error:  # noqa: BLE001 # raised when all have ended
                errors.append(error)
                return
            if raw is None:
                is_missing = True
            else:
                pieces.take(at, start, raw)

        await concurrent_map(pieces.ranges(share.gap, most), get, share.num_requests)
        if errors and self._has_answered and not isinstance(errors[0], Left):
            raise Unexpected("it loses connections")  # one of many is lost more often than one
        if errors:
            raise errors.pop()
        if is_missing and self._has_answered:
            raise Changed("chunks are deleted while they are read")
        return None if is_missing else pieces.of_parts()


class _Pieces:
    """The pieces of plans, which are copied from ranges while these arrive in any order.

    Pieces that are longer than `longest` bytes are several.
    """

    def __init__(
        self, parts: Sequence[tuple[Plan, int]], longest: int, memory: UInt8Array | None
    ) -> None:
        self._num_bytes = [plan.num_bytes for plan, _ in parts]
        starts: Indices = np.concatenate([plan.starts(start) for plan, start in parts])
        lengths = np.repeat([plan.length for plan, _ in parts], [p.num_pieces for p, _ in parts])
        nums = np.maximum(np.rint(lengths / longest), 1).astype(np.intp)
        self.are_split = bool((nums > 1).any())
        if self.are_split:
            step = np.repeat(-(-lengths // nums), nums)
            before = (np.arange(len(step)) - np.repeat(np.cumsum(nums) - nums, nums)) * step
            starts = np.repeat(starts, nums) + before
            lengths = np.minimum(step, np.repeat(lengths, nums) - before)
        self._starts, self._lengths = starts, lengths
        self._to = np.cumsum(lengths) - lengths
        num_bytes = sum(self._num_bytes)
        self._fetched: UInt8Array = np.empty(num_bytes, np.uint8) if memory is None else memory

    def ranges(self, gap: int, most: int) -> Iterator[tuple[Indices, int, int]]:
        """Yield ranges with gaps of up to `gap` bytes, of one piece or of up to `most` bytes.

        Each is the pieces in it, its first byte, and its end.
        """
        order = np.argsort(self._starts, kind="stable")
        starts = self._starts[order]
        ends = np.maximum.accumulate(starts + self._lengths[order])
        after_gaps = np.append(np.flatnonzero(starts[1:] - ends[:-1] > gap) + 1, len(starts))
        first = 0
        while first < len(starts):
            start = int(starts[first])
            last = int(np.searchsorted(ends, min(start + most, sys.maxsize), side="right"))
            end = int(after_gaps[np.searchsorted(after_gaps, first, side="right")])
            end = min(end, max(last, first + 1))
            yield order[first:end], start, int(ends[end - 1])
            first = end

    def take(self, at: Indices, start: int, raw: UInt8Array) -> None:
        """Copy pieces from the bytes that begin at `start` to where they belong."""
        starts, lengths = self._starts[at] - start, self._lengths[at]
        to, fetched = self._to[at], self._fetched
        if len(at) == 1:
            fetched[to[0] : to[0] + len(raw)] = raw
            return
        for length in np.unique(lengths).tolist():
            # What begins at each byte. Unlike as_strided, this raises beyond the memory.
            kind, some = f"V{length}", lengths == length
            here: Any = np.ndarray(len(raw) - length + 1, kind, raw, strides=(1,))
            there: Any = np.ndarray(len(fetched) - length + 1, kind, fetched, strides=(1,))
            there[to[some]] = here[starts[some]]

    def of_parts(self) -> list[UInt8Array]:
        """Return the pieces of each plan."""
        ends = itertools.accumulate(self._num_bytes)
        return [self._fetched[end - n : end] for n, end in zip(self._num_bytes, ends, strict=True)]


class _Job(NamedTuple):
    """What is read of an object: which chunks of the batch, where each begins, how it is stored."""

    remote: Remote
    chunks: list[int]
    starts: list[int]
    stored: Layout | Shard


_WHOLE = Left("small, or the selected bytes are close together")


async def read(
    batch: Batch, left: Sequence[int], read_whole: ReadWhole, metadata: str
) -> list[bool | None]:
    """Read the selections of chunks that are requested from a store into the output.

    Parameters
    ----------
    batch, left
        The selections of chunks of an array, and which of them to read.
    source_of, read_whole : callable
        Say where the chunks of the store lie, and let zarr read chunks.
    metadata : str
        The name of the array's metadata: "zarr.json" or ".zarray".

    Returns
    -------
    list of (bool or None)
        Whether each chunk exists; None if it is left to zarr.

    Raises
    ------
    Exception
        Whatever zarr raises if it can't read a chunk, or the store if a connection is lost.
    """
    reader = _Reader(batch, read_whole, metadata)
    if reader.has_short_chunks(left[0]):
        return reader.exist
    jobs = list(reader.jobs(left))
    limit = zarr.config.get("async.concurrency")
    num = min(len(jobs), limit or constants.UNLIMITED)
    _in_flight.num += num
    try:
        await asyncio.sleep(0)  # let those begin, and be counted, that were started with this one
        reader.share = Share.of(_in_flight.num)
        planned = [(job, reader.is_whole(job)) for job in jobs]
        if not all([is_whole for _, is_whole in planned]):  # noqa: C419 # else zarr has them together
            await concurrent_map(planned, reader.read, limit)
    finally:
        _in_flight.num -= num
    if reader.errors:
        raise reader.errors.pop()
    if reader.failed is not None:
        await reader.read_rest(left)
    return reader.exist


class _Reader:
    """Reads objects in which chunks of a batch lie; see `read`."""

    share: Share

    def __init__(self, batch: Batch, read_whole: ReadWhole, metadata: str) -> None:
        self._batch = batch
        self._read_whole, self._metadata = read_whole, metadata
        self._has_asked, self._asking = False, asyncio.Lock()
        self._plans: dict[int, Plan | None] = {}
        self._alone = Share.of(1)  # what zarr, too, gives to each shard
        self._worth_bytes = 0 if self._alone.is_exact else constants.WORTH_BYTES
        self.exist: list[bool | None] = [None] * len(batch.items)
        self.errors: list[Exception] = []
        self.failed: Unexpected | None = None
        self._fetched: dict[int, _trace.Fetched] = {}  # of chunks that failed

    def jobs(self, left: Sequence[int]) -> Iterator[_Job]:
        """Yield what to read: chunks alone, or those that lie side by side in an object."""
        together: dict[Any, list[tuple[int, int, Remote]]] = {}
        for k in left:
            stored = self._batch.stored_as(self._batch.items[k][1])
            remote = self._batch.sources[k]
            if not isinstance(remote, Remote) or not stored.num_bytes:
                continue
            if isinstance(stored, Shard) or remote.num_bytes is None:
                yield _Job(remote, [k], [remote.start], stored)
            elif remote.num_bytes == stored.num_bytes:
                together.setdefault((remote.key or k, stored), []).append((remote.start, k, remote))
        num = sum(map(len, together.values()))
        for (_, layout), found in together.items():
            for run in _runs(found, layout.num_bytes, layout.num_bytes * num):
                starts, chunks, remotes = zip(*run, strict=True)
                yield _Job(remotes[0], list(chunks), list(starts), layout)

    def has_short_chunks(self, k: int) -> bool:
        """Whether to read parts of chunks takes longer than to fetch all of them."""
        stored, source = self._batch.stored_as(self._batch.items[k][1]), self._batch.sources[k]
        is_alone = isinstance(source, Remote) and source.num_bytes is None
        is_short = isinstance(stored, Layout) and stored.num_bytes <= self._worth_bytes
        return is_alone and is_short

    def is_whole(self, job: _Job) -> bool:
        """Whether zarr's own request is as good."""
        stored, share = job.stored, self._share_of(job)
        if len(job.chunks) > 1:
            return False
        (k,) = job.chunks
        if isinstance(stored, Shard):
            selection = self._batch.items[k][2]
            try:
                items = stored.items_of(selection, self._batch.drop_axes, share.gap)
            except Left:
                return True
            num_bytes = sum([plan.num_bytes for plan, _ in items.plans])
            if len(items.plans) < stored.num_chunks or stored.num_bytes - num_bytes > share.gap:
                return False
        else:
            plan = self._plans[k] = self._plan(k, stored, share)
            if plan is not None and stored.num_bytes - plan.num_bytes > self._worth_bytes:
                return False
            num_bytes = stored.num_bytes
        may_split = job.remote.tells_versions and state_of(job.remote.store).tells_versions
        return not (may_split and _num_parts(num_bytes, share.most(num_bytes)) > 1)

    def _share_of(self, job: _Job) -> Share:
        if isinstance(job.stored, Shard):
            return self._alone
        # The gap within chunks that are read together is that of one which is read alone.
        return self.share if len(job.chunks) == 1 else self.share._replace(gap=self._alone.gap)

    def _plan(self, k: int, layout: Layout, share: Share) -> Plan | None:
        return plan_of(self._batch.items[k][2], layout, self._batch.drop_axes, share.gap)

    async def read(self, job: _Job, is_whole: bool) -> None:  # noqa: FBT001
        """Read an object, or let zarr read it; note the errors of either."""
        of_object = isinstance(job.stored, Layout) and job.remote.num_bytes is None
        target = Object(job.remote, job.stored.num_bytes if of_object else None)
        if self.errors or self.failed is not None or target.state.why_struck:
            return
        try:
            why = _WHOLE if is_whole else await self._why_left(job, target)
            if why is None:
                return
            fetched = _trace.Fetched(target.num_requests, target.num_bytes, str(why))
            if isinstance(why, Unexpected):
                self.failed = self.failed or why
                self._fetched[job.chunks[0]] = fetched
                return
            exist = await self._read_whole(job.chunks, [fetched] * len(job.chunks))
        except Exception as error:  # noqa: BLE001 # raised when all have ended
            add_name(error, self._batch.items[job.chunks[0]][0])
            traceback.clear_frames(error.__traceback__)  # which hold what was fetched
            self.errors.append(error)
            return
        for k, exists in zip(job.chunks, exist, strict=True):
            self.exist[k] = exists

    async def read_rest(self, left: Sequence[int]) -> None:
        """Let zarr read what is left after a failure; if that works, it is a strike."""
        rest = [k for k in left if self.exist[k] is None]
        fetched = [self._fetched.get(k, _trace.Fetched(why=str(self.failed))) for k in rest]
        for k, exists in zip(rest, await self._read_whole(rest, fetched), strict=True):
            self.exist[k] = exists
        store: Any = self._batch.items[rest[0]][0].store
        if self.failed is not None:
            state_of(store).strike(store, self.failed)

    async def _why_left(self, job: _Job, target: Object) -> Left | None:
        """Read an object; return why it is left to zarr, or None."""
        read = self._read_shard if isinstance(job.stored, Shard) else self._read_chunks
        try:
            try:
                await read(job, target)
            except Changed:
                target.forget()
                await read(job, target)
        except Left as why:
            return why.with_traceback(None)
        return None

    async def _read_chunks(self, job: _Job, target: Object) -> None:
        """Read chunks that lie in an object, side by side."""
        layout: Any = job.stored
        share = self._share_of(job)
        k = job.chunks[0]
        plan = self._plans.pop(k, None) or self._plan(k, layout, share)
        plans: list[Any] = [plan, *[self._plan(k, layout, share) for k in job.chunks[1:]]]
        if None in plans:
            raise Left("its selection is of an unknown kind")
        places = [self._batch.place(k) for k in job.chunks]
        memory = None if len(plans) > 1 else memory_of(self._batch.out, places[0], plans[0], layout)
        raw = await target.fetch(list(zip(plans, job.starts, strict=True)), share, memory)
        if raw is None:
            await self._note_missing(job, target)
            return
        for part, plan, place in zip(raw, plans, places, strict=True):
            if memory is None or not np.may_share_memory(part, memory):
                write_selected(part, plan, layout, self._batch.out, place)
        self._note(job, target)

    async def _read_shard(self, job: _Job, target: Object) -> None:
        """Read a shard: its index, then what is selected of its inner chunks."""
        shard: Any = job.stored
        layout, share = shard.layout, self._alone
        _, spec, selection, *_ = self._batch.items[job.chunks[0]]
        items = shard.items_of(selection, self._batch.drop_axes, share.gap)
        is_first = shard.index_range(shard.index_bytes + 1)[0] == 0
        num = shard.index_bytes
        index = await target.ask(0 if is_first else -num, num if is_first else None)
        if index is None:
            await self._note_missing(job, target)
            return
        try:
            entries = shard.decode_index(index)
        except Left as why:
            raise Unexpected(str(why)) from None
        length = target.length or sys.maxsize
        parts, missing, num_alone = shard.parts_of(entries, items, length)
        raw = await target.fetch([part[:2] for part in parts], share) if parts else []
        if raw is None:
            raise Changed("a shard was deleted while it was read")
        out, place_of = within(self._batch.out, self._batch.place(job.chunks[0]))
        for where in missing:
            out[place_of(where)] = fill_value_or_default(spec)
        for pieces, (plan, _, where) in zip(raw, parts, strict=True):
            write_selected(pieces, plan, layout, out, place_of(where))
        self._note(job, target, num_alone)

    async def _note_missing(self, job: _Job, target: Object) -> None:
        """Fill a chunk that is missing; raise if the store is not believed.

        It is if it answers a range of an object that exists, the array's metadata: one byte of it.
        """
        (k,) = job.chunks
        byte_getter, spec, *_ = self._batch.items[k]
        async with self._asking:
            if not target.state.answers and not self._has_asked:
                self._has_asked = True
                path = _trace.path_of_array(byte_getter.path, len(spec.shape))
                source_of = sources_of(byte_getter.store)
                remote = source_of(f"{path}/{self._metadata}".lstrip("/"))
                if isinstance(remote, Remote):
                    target.num_requests += 1
                    with contextlib.suppress(Left):
                        await Object(remote).ask(0, 1)
        if not target.state.answers:
            raise NotBelieved("chunks are missing if parts of them are requested")
        self._batch.fill_missing(k)
        self._note(job, target, exists=False)

    def _note(
        self, job: _Job, target: Object, alone: int | None = None, *, exists: bool = True
    ) -> None:
        """Note that chunks were read, and tell `numcodecs_bytes.trace` what was requested."""
        fetched = _trace.Fetched(target.num_requests, target.num_bytes, "", alone)
        for k in job.chunks:
            self.exist[k] = exists
            self._batch.note(k, fetched, exists=exists)
            fetched = _trace.Fetched(why="it is next to others, and was read with them")


def _num_parts(num_bytes: int, most: int) -> int:
    """Return in how many requests to get a range."""
    return max(1, round(num_bytes / most))


def _runs(
    found: list[tuple[int, int, Remote]], num_bytes: int, total: int
) -> Iterator[list[tuple[int, int, Remote]]]:
    """Yield chunks that lie side by side in an object, as many together as to keep all busy.

    Of each where it begins in bytes, its position in the batch, and its source; each has
    `num_bytes`, and all that lie in parts of objects have `total`.
    """
    alone = Share.of(1)
    beside = alone.gap if alone.is_exact else constants.BESIDE_BYTES
    most = min(constants.PART_BYTES, total // alone.num_requests)
    run: list[tuple[int, int, Remote]] = []
    end = 0
    for one in sorted(found, key=lambda each: each[:2]):
        start = one[0]
        is_near = end <= start <= end + beside
        if run and not (is_near and (len(run) + 1) * num_bytes <= most):
            yield run
            run = []
        run.append(one)
        end = start + num_bytes
    if run:
        yield run
