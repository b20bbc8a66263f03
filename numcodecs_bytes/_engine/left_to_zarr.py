"""The one way to give up a chunk."""


class LeftToZarr(Exception):  # noqa: N818 # not an error
    """A chunk is left to zarr, which reads or writes all of it; the message says why.

    Raised by anything that can't deal with a chunk: a store, a selection, a file, the index of a
    shard, a request, a lock. Where chunks are read, and where they are written, it is caught once
    and becomes the chunk's outcome. The message is empty if nothing is lost by it.
    """
