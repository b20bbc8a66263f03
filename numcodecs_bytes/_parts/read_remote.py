"""Read ranges of an object that is elsewhere, with requests: the only way to do that.

The ranges are those of a chunk, of inner chunks of a shard, or of several chunks to which
references point. Whatever may be known of the object is checked with every answer, and all answers
must be of one version of it. What a server does not answer as requested is left to zarr.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._options import max_gap_bytes
from numcodecs_bytes._parts.assemble import copy_pieces
from numcodecs_bytes._parts.getters import Getter, chunks_in_flight, in_flight_of, max_requests
from numcodecs_bytes._parts.ranges import Ranges, Request
from numcodecs_bytes._parts.refusals import (
    LIMITS,
    Changed,
    ReadWhole,
    answering,
    changing,
    explaining,
    limiting,
    remember_cut,
    remember_versions,
    status_of,
    untagged,
    versions_of,
)
from numcodecs_bytes._parts.stores import Answer, Remote

# How often ranges are requested before an object that keeps changing is read whole.
NUM_TRIES = 3
# How long to wait for the range requests of other chunks to end, and how often to look.
MAX_WAIT_SECONDS, WAIT_SECONDS = 10.0, 0.005
ANY_VERSION = object()


class Known(NamedTuple):
    """What is known of an object before ranges of it are requested.

    Attributes
    ----------
    num_bytes : int or None
        Its length.
    version : object
        The version that all answers must be of; `ANY_VERSION` if that is the one of the first.
    first : Answer or None
        The answer to the first range, if it has been requested.
    """

    num_bytes: int | None = None
    version: object = ANY_VERSION
    first: Answer | None = None

    def check_length(self, answer: Answer) -> None:
        """Raise `ReadWhole` if the object has another length."""
        if None not in (answer.num_bytes, self.num_bytes) and answer.num_bytes != self.num_bytes:
            how = f"says that a chunk of {self.num_bytes} bytes has {answer.num_bytes}"
            raise ReadWhole(how, is_sure=False)


class RemoteObject:
    """An object, or the part of one that is a chunk.

    Parameters
    ----------
    getter : Getter
        The getter of the chunk, or of one of those that lie in the object.
    source : Remote
        How to request ranges.
    """

    def __init__(self, getter: Getter, source: Remote) -> None:
        self.getter, self.source, self.store = getter, source, getter.store
        self._in_flight = in_flight_of(self.store)

    @classmethod
    async def of_many(cls, getter: Getter, source: Remote) -> Self:
        """Return the object of one of `chunks_in_flight`, which share zarr's limit of requests."""
        await asyncio.sleep(0)  # let the tasks start that zarr has started with this one
        num_requests = max(1, max_requests() // chunks_in_flight.num)
        gap_bytes = max(source.max_gap_bytes, source.costs.latency_bytes // num_requests)
        max_parts = min(source.max_parts, num_requests)
        if max_gap_bytes() is not None:
            max_parts = 1
        return cls(getter, source._replace(max_gap_bytes=gap_bytes, max_parts=max_parts))

    def num_parts(self, num_bytes: int) -> int:
        """Return in how many requests to fetch so many bytes, which must be of one version."""
        num = self.source.max_parts
        if num > 1 and self.store not in untagged and changing.of(*self.getter.object) is None:
            return max(1, min(num, num_bytes // self.source.costs.part_bytes))
        return 1

    def split(self, ranges: Ranges) -> Ranges:
        """Return the same ranges, long ones cut into several."""
        num = self.num_parts(ranges.num_bytes)
        return ranges.cut(-(-ranges.num_bytes // num)) if num > 1 else ranges

    async def read_chunk(self, ranges: Ranges, num_bytes: int) -> UInt8Array | None:
        """Do the same as `read` for a chunk, and try again if it is overwritten meanwhile.

        A whole chunk is tried only once, in parts: one request for it is of one version anyway.
        """
        if self.source.num_bytes not in (None, num_bytes):
            raise ReadWhole
        known, parts = Known(num_bytes), self.split(ranges)
        if len(parts.starts) > len(ranges.starts):
            with contextlib.suppress(Changed):
                # The beginning of the first answer tells the version.
                request = next(parts.requests())
                with self.requesting():
                    answer = await self.ask(request.start, request.end)
                if answer is None:
                    return None
                known.check_length(answer)
                if answer.version is not None:
                    return await self.read(parts, Known(num_bytes, answer.version, answer))
            self.note_changing()
        if ranges.num_bytes < num_bytes:
            for _ in range(NUM_TRIES if self.source.tells_version else 1):
                with contextlib.suppress(Changed):
                    return await self.read(ranges, known)
            self.note_changing()
        raise Changed

    async def read(
        self, ranges: Ranges, known: Known, *, of_shard: bool = False
    ) -> UInt8Array | None:
        """Return the pieces of ranges, end to end, or None if the object does not exist.

        Parameters
        ----------
        ranges : Ranges
            What to read.
        known : Known
            What is known of the object.
        of_shard : bool
            See `Getter.get_all`.

        Raises
        ------
        Changed
            If the object was overwritten, created or deleted meanwhile.
        ReadWhole
            If a range is not answered as requested.
        Exception
            Whatever the store raises if its server is not reached, for none of the ranges.
        """
        reading = _Reading(self, ranges, known)
        # A store that ignores ranges would return many whole chunks at once.
        first_alone = known.version is ANY_VERSION and self.store not in answering
        with contextlib.suppress(Changed):
            await self.getter.get_all(
                ranges, reading.get, first_alone=first_alone, of_shard=of_shard
            )
        if reading.failed is not None:
            if reading.num_present and not isinstance(reading.failed, ReadWhole):
                # One of many fails more often than the only one for all.
                raise ReadWhole(why="a connection was lost") from reading.failed
            raise reading.failed
        if reading.num_present:
            answering.add(self.store)
        if reading.num_present == len(ranges.starts):
            return reading.fetched
        if reading.is_missing and not reading.num_present and self.source.tells_missing:
            return None
        raise Changed

    async def ask(self, start: int, end: int | None) -> Answer | None:
        """Return the beginning of an answer, or None if the object does not exist.

        If `end` is None, `start` is negative, and counts from the end of the object.

        Raises
        ------
        ReadWhole
            If the versions of objects say nothing, because each replica of the server has its own.
        """
        getter, source = self.getter, self.source
        getter.num_requests += 1
        if source.get is None:
            buffer = await getter.get_range(start, end)
            return None if buffer is None else Answer.of(buffer.as_numpy_array())
        if getter.versions is None:
            getter.versions = versions_of(*getter.object)
        sent = getter.versions.now()
        answer = await source.get(start, end)
        if answer is not None and getter.versions.are_of_replicas(answer.version, sent):
            raise ReadWhole("has replicas with different tags for the same chunk")
        if answer is not None and source.tells_version and answer.version is None:
            untagged.add(self.store)
        return answer

    @contextlib.contextmanager
    def requesting(self) -> Iterator[None]:
        """Raise `ReadWhole` if a range request fails, or the store has just refused so many."""
        if (refusal := limiting.get(self.store)) is not None:
            raise ReadWhole(refusal)
        try:
            with self._in_flight, explaining():
                yield
        except ReadWhole as why:
            if status_of(why) in LIMITS:
                limiting.add(self.store, why.refusal)
            if why.is_cut:
                remember_cut(*self.getter.object)
            raise

    def note_changing(self) -> None:
        """Remember which versions of an object were found that kept changing."""
        if self.getter.versions is not None:
            remember_versions(*self.getter.object, self.getter.versions)


class _Reading:
    """The pieces of ranges, collected while these arrive in any order."""

    def __init__(self, source: RemoteObject, ranges: Ranges, known: Known) -> None:
        self._object, self._ranges, self._known = source, ranges, known
        self._version = known.version
        self.fetched = np.empty(0, np.uint8)
        self.num_present = 0
        self.is_missing = False
        self.failed: Exception | None = None  # how a request failed

    async def get(self, request: Request) -> None:
        """Get a range, unless the object is missing, or another range has failed."""
        answer = None
        if (refusal := limiting.get(self._object.store)) is not None:
            self.failed = self.failed or ReadWhole(refusal)  # those in flight are waited for
        if self.is_missing or self.failed is not None:
            return
        if request.start == self._ranges.starts[0]:
            answer = self._known.first
        try:
            with self._object.requesting():
                if answer is None:
                    answer = await self._object.ask(request.start, request.end)
                raw = None if answer is None else await answer.read()
        except Exception as error:
            if isinstance(error, ReadWhole) and status_of(error) is None:
                raise
            # The server was not reached, or answered with an error. The other requests are waited
            # for: it may limit how many it answers at once.
            self.failed = error
            return
        if answer is None or raw is None:
            self.is_missing = True
            return
        self._object.getter.num_bytes += raw.nbytes
        self._take(request, answer, raw.view(np.uint8))

    def _take(self, request: Request, answer: Answer, raw: UInt8Array) -> None:
        """Check an answer and copy its pieces to their place."""
        self._known.check_length(answer)
        expected = request.end - request.start
        if len(raw) != expected:
            # An answer that is too short may come from another version of the object.
            is_longer = len(raw) > expected
            refusal = f"returns {'more' if is_longer else 'fewer'} bytes than requested"
            raise ReadWhole(refusal, is_sure=is_longer)
        if self._version not in (ANY_VERSION, answer.version):
            raise Changed
        self._version = answer.version
        self.num_present += 1
        if len(self._ranges.starts) == 1 and len(request.piece_starts) == 1:
            self.fetched = raw
            return
        if not len(self.fetched):
            self.fetched = np.empty(self._ranges.num_kept_bytes, np.uint8)
        kept = self.fetched[request.place : request.place + int(request.piece_lengths.sum())]
        copy_pieces(kept, raw, request.piece_starts, request.piece_lengths)


async def let_others_end(getter: Getter) -> None:
    """Let range requests end if the server limits how many it answers at once."""
    end = time.monotonic() + MAX_WAIT_SECONDS
    while getter.store in limiting and in_flight_of(getter.store).num:
        if time.monotonic() > end:
            break
        await asyncio.sleep(WAIT_SECONDS)
