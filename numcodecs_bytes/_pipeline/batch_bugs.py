"""Own bugs while a batch is read or written: zarr does it instead."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from numcodecs_bytes._pipeline.array_access import ArrayAccess
from numcodecs_bytes._plan.outcome import HasOutcome, LeftToZarr, leave_to_zarr
from numcodecs_bytes._runtime import own_bugs
from numcodecs_bytes._zarr_api.names import add_note


@dataclass(slots=True, eq=False)
class BatchBugs:
    """The own bugs of a batch, which are logged when it ends, unless zarr fails just so."""

    access: ArrayAccess
    stops_reads: bool  # whether they stop our reads of the array; those of a write do not
    errors: list[Exception] = field(default_factory=list)

    def catch(self, chunks: Iterable[HasOutcome] = ()) -> own_bugs.catch:
        """Return a context that leaves chunks to zarr after an own bug."""
        return own_bugs.catch(partial(self.record, chunks))

    def record(self, chunks: Iterable[HasOutcome], error: Exception) -> None:
        """Record an own bug, and leave chunks to zarr."""
        self.errors.append(error)
        if self.stops_reads:
            self.access.own_bug = _summary_of(error)
        leave_to_zarr(chunks, LeftToZarr("numcodecs_bytes itself failed"))

    def forget_or_mention(self, error: Exception) -> None:
        """Forget own bugs if zarr fails just so; else name them in its error."""
        name = self.access.own_bug if self.stops_reads else ""
        if own_bugs.forget_alike(self.errors, error):
            name = ""
        if self.errors:
            name = _summary_of(self.errors[-1])
        if self.stops_reads:
            self.access.own_bug = name
        if name:
            add_note(error, f"before, numcodecs_bytes itself had failed: {name}")


def _summary_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
