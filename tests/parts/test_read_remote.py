"""Ranges of one object: what is known of it is checked with every answer."""

import asyncio
import types

import numpy as np
import pytest
from zarr.core.buffer import default_buffer_prototype

from numcodecs_bytes._parts.getters import Getter
from numcodecs_bytes._parts.ranges import Coalescing
from numcodecs_bytes._parts.read_remote import Known, RemoteObject
from numcodecs_bytes._parts.refusals import Changed, ReadWhole
from numcodecs_bytes._parts.stores import Answer, Remote

RAW = np.arange(100, dtype=np.uint8)
STARTS = np.array([3, 20, 24, 90])
RANGES = Coalescing(5).coalesce(STARTS, STARTS + 2)
EXPECTED = [3, 4, 20, 21, 24, 25, 90, 91]


class Store:
    """Can be referred to weakly, as stores can."""


class Asked:
    """An object that notes which ranges of it are requested; `answer` may change the answers."""

    def __init__(self, **more):
        self.ranges, self.answer = [], lambda _start, answer: answer
        at = types.SimpleNamespace(store=Store(), path="c/0")
        self.getter = Getter(at, default_buffer_prototype())
        self.remote = RemoteObject(self.getter, Remote(get=self.get, tells_version=True, **more))

    async def get(self, start, end):
        self.ranges.append((start, end))
        answer = Answer.of(RAW[start:end])._replace(num_bytes=len(RAW), version="a")
        return self.answer(start, answer)

    def read(self, known=Known()):  # noqa: B008 # immutable
        return asyncio.run(self.remote.read(RANGES, known))


@pytest.mark.parametrize("known", [Known(), Known(100), Known(None, "a")])
def test_pieces_end_to_end(known):
    asked = Asked()
    assert asked.read(known).tolist() == EXPECTED
    assert asked.ranges == [(3, 5), (20, 26), (90, 92)]
    assert (asked.getter.num_requests, asked.getter.num_bytes) == (3, 10)


def test_an_answer_that_is_there_is_not_requested_again():
    asked = Asked()
    first = Answer.of(RAW[3:5])._replace(version="a")
    assert asked.read(Known(100, "a", first)).tolist() == EXPECTED
    assert asked.ranges == [(20, 26), (90, 92)]


def test_no_other_version():
    asked = Asked()
    with pytest.raises(Changed):
        asked.read(Known(version="b"))
    asked.answer = lambda start, answer: answer._replace(version=start)
    with pytest.raises(Changed):
        asked.read()


def test_no_other_length():
    with pytest.raises(ReadWhole, match="says that a chunk of 99 bytes has 100"):
        Asked().read(Known(99))


@pytest.mark.parametrize("tells_missing", [False, True])
def test_missing(tells_missing):
    """After the first None nothing is requested; an object that was deleted meanwhile changed."""
    asked = Asked(tells_missing=tells_missing)
    asked.answer = lambda *_: None
    if tells_missing:
        assert asked.read() is None
    else:
        with pytest.raises(Changed):
            asked.read()
    assert len(asked.ranges) == 1
    asked.answer = lambda start, answer: answer if start == 3 else None
    with pytest.raises(Changed):
        asked.read()


def test_a_server_that_is_not_reached():
    """For no range, its error is raised; for one of several, they are requested in another way."""
    asked = Asked()

    def fail(start, answer):
        if start >= fails_from:
            raise ConnectionError
        return answer

    asked.answer = fail
    fails_from = 0
    with pytest.raises(ConnectionError):
        asked.read()
    fails_from = 20
    with pytest.raises(ReadWhole, match="a connection was lost"):
        asked.read()
