"""Own bugs while a batch is read: zarr reads its chunks, and the array from now on."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from numcodecs_bytes._pipeline.array_access import ArrayAccess
from numcodecs_bytes._plan.outcome import LeftToZarr, leave_to_zarr
from numcodecs_bytes._read.chunk_read import ChunkRead
from numcodecs_bytes._runtime import own_bugs


@dataclass(slots=True, eq=False)
class BatchBugs:
    """The own bugs of a batch, which are logged when it ends, unless zarr fails just so."""

    access: ArrayAccess
    errors: list[Exception] = field(default_factory=list)

    def catch(self, chunks: Sequence[ChunkRead] = ()) -> own_bugs.catch:
        """Return a context that leaves chunks to zarr after an own bug."""
        return own_bugs.catch(partial(self.record, chunks))

    def record(self, chunks: Sequence[ChunkRead], error: Exception) -> None:
        """Record an own bug: chunks are left to zarr, and the array is from now on."""
        self.errors.append(error)
        self.access.own_bug = _text_of(error)
        leave_to_zarr(chunks, LeftToZarr("numcodecs_bytes itself failed"))

    def forget_or_mention(self, error: Exception) -> None:
        """Forget own bugs if zarr fails just so; else name them in its error."""
        if own_bugs.forget_alike(self.errors, error):
            self.access.own_bug = ""
        if self.errors:  # of another kind
            self.access.own_bug = _text_of(self.errors[-1])
        if self.access.own_bug:
            with contextlib.suppress(AttributeError, TypeError):  # some errors are immutable
                had_failed = f"numcodecs_bytes itself had failed: {self.access.own_bug}"
                error.add_note(f"before, {had_failed}")


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
