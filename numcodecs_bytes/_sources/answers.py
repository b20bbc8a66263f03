"""What a store answers to requests for ranges."""

from typing import Literal, NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._plan.outcome import LeftToZarr

_NOTHING = np.empty(0, np.uint8)


class Answer(NamedTuple):
    """What a store answers to a request for a range, or to all those for an object.

    It sends the range ("read"); says that there is no such object ("missing"); has another version
    than before ("changed"); does not send what was requested ("wrong"); or sends nothing, because
    it is overloaded or the connection is lost ("failed").
    """

    kind: Literal["read", "missing", "changed", "wrong", "failed"]
    why: str = ""  # it was not read; the same for all chunks of an array
    raw: UInt8Array = _NOTHING  # what was read


MISSING = Answer("missing", "chunks are missing if parts of them are requested")
CHANGED = Answer(
    "changed", "chunks are overwritten all the time, or each answer has another version"
)


class UnexpectedAnswer(LeftToZarr):
    """Carries an answer through the client that received it, before the bytes arrive."""

    @property
    def answer(self) -> Answer:
        """The answer, which is its only argument."""
        answer: Answer = self.args[0]
        return answer
