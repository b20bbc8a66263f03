"""What a store answers to requests for ranges."""

from typing import Literal, NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array

_NOTHING = np.empty(0, np.uint8)


class Answer(NamedTuple):
    """What a store answers to a request for a range, or to all those for an object.

    It sends the range ("read"); says that there is no such object ("missing"); has another version
    than before ("changed"); does not send what was requested ("wrong"); sends nothing, because it
    is overloaded or the connection is lost ("failed"); or leaves open what has to be known, so that
    zarr has to read the object ("unclear").
    """

    kind: Literal["read", "missing", "changed", "wrong", "failed", "unclear"]
    why: str = ""  # the reason why nothing was read: the same for all chunks of an array
    raw: UInt8Array = _NOTHING  # what was read

    @property
    def is_strike(self) -> bool:
        """Whether it is a strike against the store if zarr then reads the object."""
        return self.kind in ("missing", "changed", "wrong")


MISSING = Answer("missing", "chunks are missing if parts of them are requested")
CHANGED = Answer(
    "changed", "chunks are overwritten all the time, or each answer has another version"
)
