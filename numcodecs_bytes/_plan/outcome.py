"""What became of a chunk, and the one way to give it up."""

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from numcodecs_bytes._core.interrupts import raise_if_of_caller, raise_interrupt


class LeftToZarr(Exception):  # noqa: N818 # not an error
    """A chunk is left to zarr, which reads or writes all of it; the message says why.

    Raised by anything that can't deal with a chunk: a store, a selection, a file, the index of a
    shard, a request, a lock. `leave` makes it the outcome of the chunk.
    """


class NothingToFetch(LeftToZarr):
    """A chunk is left to zarr, which need not fetch it: it is in memory or missing, for example."""


class Fetched(NamedTuple):
    """What was fetched to read a chunk."""

    num_requests: int = 0
    num_bytes: int = 0
    num_bytes_by_zarr: int | None = None  # by zarr alone, if that is not all of the chunk


class Outcome(NamedTuple):
    """What became of a chunk."""

    status: Literal["present", "missing", "written whole", "written in place", "left to zarr"]
    why: str = ""  # it is left to zarr; remains when zarr has read it
    is_by_zarr: bool = False  # whether zarr has read it
    fetched: Fetched = Fetched()

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


def leave(chunks: Iterable[HasOutcome], why: Exception) -> None:
    """Leave chunks to zarr: the one place where the reason becomes an outcome.

    It is a `LeftToZarr`, or an error of the system that zarr may raise as well; it is raised again
    if it is, or comes from, an interrupt of the thread.
    """
    if isinstance(why, LeftToZarr):
        raise_interrupt(why.__cause__)
    else:
        raise_if_of_caller(why)
    for chunk in chunks:
        chunk.outcome = Outcome("left to zarr", str(why) or type(why).__name__)
