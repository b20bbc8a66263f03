"""What a store answers to requests for ranges."""

from typing import Literal, NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._plan.outcome import LeftToZarr

_NOTHING = np.empty(0, np.uint8)


class Answer(NamedTuple):
    """What a store answers to a request for a range, or to all those for an object.

    | kind    | the store                         | what follows                                  |
    |---------|-----------------------------------|-----------------------------------------------|
    | read    | sends the range                   | it is copied to the output                    |
    | missing | says that there is no such object | a chunk is filled, if the store has answered  |
    |         |                                   | a range before; else, the same as if wrong    |
    | changed | has another version than before   | all is requested again; then, as if wrong     |
    | wrong   | does not send what was requested  | no more of the batch is requested; zarr reads |
    |         |                                   | the object, and if it can, that is a strike   |
    | failed  | sends nothing: it is overloaded,  | zarr reads the object; if that can be read    |
    |         | or the connection is lost         | `MAX_FAILURES` times in a row: a strike       |

    If zarr, too, says that a chunk is missing, that is no strike.
    """

    kind: Literal["read", "missing", "changed", "wrong", "failed"]
    why: str = ""  # it was not read; the same for all chunks of an array
    raw: UInt8Array = _NOTHING  # what was read


MISSING = Answer("missing", "chunks are missing if parts of them are requested")


class UnexpectedAnswer(LeftToZarr):
    """Carries an answer through the client that received it, before the bytes arrive."""

    @property
    def answer(self) -> Answer:
        """The answer, which is its only argument."""
        answer: Answer = self.args[0]
        return answer
