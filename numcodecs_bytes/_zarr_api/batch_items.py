"""What zarr passes to its pipelines for each chunk that is read or written."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from zarr.core.array_spec import ArraySpec


class ByteGetter(Protocol):
    """What zarr asks for a chunk, as a `StorePath` is, or what names it in messages."""

    @property
    def store(self) -> Any: ...  # that holds the chunk

    @property
    def path(self) -> str: ...  # of the chunk in the store


class ChunkRequest(NamedTuple):
    """A chunk, and what is selected of it: still the tuple that zarr's own pipelines take."""

    byte_getter: Any  # or setter
    spec: ArraySpec
    selection: Any
    out_selection: Any  # in the output, or in the values
    is_complete: bool  # whether the whole chunk is selected


def chunk_requests_of(batch_info: Iterable[Any]) -> list[ChunkRequest]:
    """Return the items of a batch: no other function takes zarr's tuples apart."""
    return list(map(ChunkRequest._make, batch_info))
