"""What zarr passes to its pipelines for each chunk that is read or written."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from zarr.core.array_spec import ArraySpec


class ChunkRequest(NamedTuple):
    """A chunk, and what is selected of it: still the tuple that zarr's own pipelines take."""

    byte_getter: Any  # or setter
    spec: ArraySpec
    chunk_selection: Any
    out_selection: Any  # in the output, or in the values
    is_complete: bool  # whether the whole chunk is selected


class ChunkName(NamedTuple):
    """What names a chunk, as zarr's byte getters do."""

    store: Any
    path: str  # of the chunk in the store


def chunk_requests_of(batch_info: Iterable[Any]) -> list[ChunkRequest]:
    """Return the chunks of a batch: no other function takes zarr's tuples apart."""
    return list(map(ChunkRequest._make, batch_info))
