"""The one way to give up a chunk."""


class LeftToZarr(Exception):  # noqa: N818 # not an error
    """A chunk is left to zarr, which reads or writes all of it; the message says why.

    Raised by anything that can't deal with a chunk: a store, a selection, a file, the index of a
    shard, a request, a lock. `chunks.leave` makes it the outcome of the chunk.
    """


class NothingLost(LeftToZarr):
    """A chunk is left to zarr, which need not fetch it: it is in memory, or missing."""
