"""What became of a chunk, and the one way to give it up."""

import sys
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol, Self

from numcodecs_bytes._core.interrupts import raise_if_of_caller, raise_interrupt


class LeftToZarr(Exception):  # noqa: N818 # not an error
    """A chunk is left to zarr, which reads or writes all of it; the message says why.

    `leave_to_zarr` makes it the outcome of the chunk. The message is for people only, and the same
    for all chunks of an array; what is decided by the reason has a class.
    """

    def without_frames(self) -> Self:
        """Return the same reason, to be kept: frames refer to others, and to the output."""
        return type(self)(*self.args)


class AlreadyInMemory(LeftToZarr):
    """zarr need not fetch a chunk: it is in the memory of its store, or in a reference."""


class Compressed(LeftToZarr):
    """Chunks are compressed; no other codec is in the way."""


class JustAsFast(LeftToZarr):
    """zarr reads a chunk just as fast; it has no text because `trace` has its own for that."""


class ZarrFails(LeftToZarr):
    """zarr fails with a chunk, too, or would lose values; the message says what helps."""


class DamagedShard(ZarrFails):
    """The index of a shard can't be read."""


class UnusualIndex(LeftToZarr):
    """The index of a shard does not fit its metadata: one of them may be wrong."""


class Protected(LeftToZarr):
    """The user may not write to a chunk's file, which zarr replaces if it may make another one."""


class NoReference(LeftToZarr):
    """A chunk is missing: nothing refers to it."""


class NotOpen(LeftToZarr):
    """A store is not open: zarr opens it, and raises if it is gone."""


class FetchCounts(NamedTuple):
    """What was fetched to read a chunk."""

    num_requests: int = 0
    num_bytes: int = 0
    num_bytes_by_zarr: int | None = None  # what zarr alone fetches, unless all of the chunk
    num_gap_bytes: int = 0  # how many of the bytes are in gaps; counted only for a trace


class Outcome(NamedTuple):
    """What became of a chunk."""

    status: Literal["present", "missing", "written whole", "written in place", "left to zarr"]
    why: str = ""  # why it is, or was, left to zarr
    kind: type[Exception] = LeftToZarr  # the class of that reason
    is_by_zarr: bool = False  # whether zarr has read it
    fetched: FetchCounts = FetchCounts()

    @property
    def is_left(self) -> bool:
        """Whether zarr still has to read or write it."""
        return self.status == "left to zarr"

    @property
    def is_read_here(self) -> bool:
        """Whether this package has read it."""
        return not (self.is_left or self.is_by_zarr)


# The initial outcome. A chunk that stays so is read by zarr, and `trace` shows no reason.
PENDING = Outcome("left to zarr")


class HasOutcome(Protocol):
    """A chunk that is read or written."""

    outcome: Outcome


def leave_to_zarr(chunks: Iterable[HasOutcome], why: Exception) -> None:
    """Leave chunks to zarr: the one place where the reason becomes an outcome.

    It is a `LeftToZarr`, or an error of the system that zarr may raise as well; it is raised again
    if it is, or comes from, an interrupt of the thread. What the system says names the file of one
    chunk, which is left out.
    """
    text = str(why)
    if isinstance(why, LeftToZarr):
        raise_interrupt(why.__cause__)
    else:
        raise_if_of_caller(why)
        text = text or type(why).__name__
    if isinstance(why, OSError) and why.strerror:
        text = str(OSError(why.errno, why.strerror))
    outcome = Outcome("left to zarr", sys.intern(text), type(why))
    for chunk in chunks:
        chunk.outcome = outcome
