"""What stores and servers answer to byte ranges that they do not support, and which did."""

import contextlib
import io
import logging
import math
import re
import time
import weakref
from collections.abc import Iterator
from typing import Any

from numcodecs_bytes._parts.names import name_of_store

logger = logging.getLogger("numcodecs_bytes")


# How long it is remembered that a store refuses ranges. Its server may be replaced; to ask again
# costs one request.
REMEMBERED_SECONDS = 600.0


class ReadWhole(Exception):  # noqa: N818 # not an error
    """A chunk, or a shard, is left to zarr, which reads chunks, or inner chunks, whole.

    Parameters
    ----------
    refusal : str or None
        How the store showed that it does not support ranges; None if that may be specific to this
        chunk.
    why : str
        What else is the reason, for `numcodecs_bytes.trace` and errors.
    is_sure : bool
        Whether no overwritten chunk can be the cause of a refusal.
    is_cut : bool
        Whether a connection was lost in the middle of an answer.
    """

    def __init__(
        self,
        refusal: str | None = None,
        why: str = "",
        *,
        is_sure: bool = True,
        is_cut: bool = False,
    ) -> None:
        self.why = f"the store {refusal}" if refusal else why
        super().__init__(self.why)
        self.refusal, self.is_sure, self.is_cut = refusal, is_sure, is_cut

    def refusal_of(self, store: object, path: str) -> str | None:
        """Return the refusal, if it is to be remembered of the store.

        One that is not sure is only if the store has answered no range as requested. Otherwise it
        is remembered of the chunk.
        """
        if self.refusal is None or self.is_sure or store not in answering:
            return self.refusal
        if len(odd.get(store) or ()) >= MAX_OBJECTS:
            return self.refusal
        odd.note(store, path, self.refusal)
        return None


class Changed(ReadWhole):
    """An object was overwritten, created or deleted between two requests."""

    def __init__(self) -> None:
        super().__init__(
            why="it is deleted or keeps being overwritten, or its store reports no versions"
        )


# How stores show that they do not support ranges, if no server answers with a status.
_REFUSING_ERRORS = (NotImplementedError, io.UnsupportedOperation)
_REFUSALS = re.compile(
    "content.?range|unexpected.?range|range.?not.?supported|no.ranges|unexpected keyword",
    re.IGNORECASE,
)
_STATUS = re.compile(r"status code: (\d\d\d)\b")  # of obstore, whose errors have no attribute
# What a connection that is lost, or was never made, is called by obstore, whose class for that is
# also the one for statuses, at the end of its first line; and the names of other clients' classes,
# which are neither Python's ConnectionError nor TimeoutError.
_LOST = re.compile("error sending request|connection|timed out", re.IGNORECASE)
# What is said of a connection that is lost in the middle of an answer.
_CUT = re.compile("payload is not completed|response body", re.IGNORECASE)
_LOST_CLASSES = {
    "ClientConnectionError",  # aiohttp
    "ConnectionError",  # botocore
    "HTTPClientError",
    "ServiceRequestError",  # Azure
    "ServiceResponseError",
    "TransportError",
}
RANGE_NOT_SATISFIABLE = 416
# With these, a server also refuses more requests at once than it likes.
LIMITS = {429, 503}
# Their other errors are answers, too: redirections to nowhere, or compressed ranges, for example.
_CLIENTS = {"aiohttp", "azure", "botocore", "gcsfs", "obstore"}


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status, at least 300, that was answered; None if an error has none."""
    for cause in _causes_of(error):
        with contextlib.suppress(Exception):  # of other people's attributes
            for status in _statuses_of(cause):
                if isinstance(status, int) and 300 <= status < 1000:
                    return status
    return None


def _statuses_of(error: BaseException) -> Iterator[Any]:
    client = _client_of(error)
    if client == "obstore" or isinstance(error, FileNotFoundError):
        if match := _STATUS.search(str(error)):
            yield int(match[1])
        return
    yield getattr(error, "status", None)  # aiohttp
    yield getattr(error, "status_code", None)  # Azure
    if client == "gcsfs":
        yield getattr(error, "code", None)
    response = getattr(error, "response", None)
    yield getattr(response, "status_code", None)  # requests
    if isinstance(response, dict):  # botocore
        yield response["ResponseMetadata"]["HTTPStatusCode"]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 # other people's code
        return ""


def _client_of(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _causes_of(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _is_lost(error: BaseException) -> bool:
    """Whether a server was not reached, or did not answer."""
    return any(
        isinstance(cause, TimeoutError | ConnectionError)
        or not _LOST_CLASSES.isdisjoint(kind.__name__ for kind in type(cause).__mro__)
        or (
            type(cause).__name__ == "GenericError"  # obstore's
            and _LOST.search(str(cause).partition("\n")[0].rpartition(" - ")[2])
        )
        for cause in _causes_of(error)
    )


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """Raise `ReadWhole` if a range request fails, after which to read the chunk whole.

    If the chunk can't be read at all, that raises zarr's own error. But if the server was not
    reached, the caller should not wait for it twice: that error is raised.
    """
    try:
        yield
    except ReadWhole:
        raise
    except Exception as error:
        if (status := status_of(error)) is not None:
            # 416 is also the answer for a chunk that is shorter than it was.
            is_sure = status != RANGE_NOT_SATISFIABLE
            raise ReadWhole(f"answers with status {status}", is_sure=is_sure) from error
        for cause in _causes_of(error):
            if (
                isinstance(cause, _REFUSING_ERRORS)
                or type(cause).__name__ == "NotSupportedError"  # obstore's
                or (not isinstance(cause, OSError) and _REFUSALS.search(_text_of(cause)))
            ):
                raise ReadWhole(f"raises {type(cause).__name__}") from error
        if _is_lost(error):
            raise
        if _client_of(error) in _CLIENTS:
            if _CUT.search(str(error).partition("\n")[0]):
                raise ReadWhole(why=CUT, is_cut=True) from error
            raise ReadWhole(f"raises {type(error).__name__}", is_sure=False) from error
        raise ReadWhole(why=f"a range of it failed with {type(error).__name__}") from error


class Stores:
    """What is known of weakly referenced stores, compared by identity as they are not hashable.

    Parameters
    ----------
    seconds : float
        How long it is remembered of each of them.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._references: dict[int, tuple[weakref.ref[Any], Any, float]] = {}

    def __contains__(self, store: object) -> bool:
        return self.get(store) is not None

    def get(self, store: object) -> Any:
        """Return what is known of a store, or None."""
        if (found := self._references.get(id(store))) is None:
            return None
        reference, known, until = found
        return known if reference() is store and time.monotonic() < until else None

    def add(self, store: object, known: Any = "") -> None:
        """Remember a store, if its class supports weak references."""
        key = id(store)
        with contextlib.suppress(TypeError):
            reference = weakref.ref(store, lambda _: self._references.pop(key, None))
            self._references[key] = reference, known, time.monotonic() + self._seconds

    def discard(self, store: object) -> None:
        """Forget a store, if it was remembered."""
        self._references.pop(id(store), None)


class Objects(Stores):
    """What is known of objects for some minutes, by their store and path there."""

    def __init__(self) -> None:
        super().__init__(REMEMBERED_SECONDS)

    def of(self, store: object, path: str) -> Any:
        """Return what is known of an object, or None."""
        return (self.get(store) or {}).get(path)

    def note(self, store: object, path: str, known: object) -> None:
        """Remember an object; of very many, only the last ones."""
        objects: dict[str, Any] = self.get(store) or {}
        if len(objects) >= MAX_OBJECTS:
            objects.clear()
        objects[path] = known
        self.add(store, objects)


answering = Stores()  # those that answered the last range requests correctly
refusing = Stores(REMEMBERED_SECONDS)  # and why
untagged = Stores()  # those whose answers do not tell the version of an object
# For so long, those that limit how many requests they answer at once; and why.
limiting = Stores(60.0)
odd = Objects()  # what was odd in an answer to a range
changing = Objects()  # the versions of those that kept changing while they were read
_cut = Objects()  # those whose answers were cut off once
MAX_OBJECTS, MAX_VERSIONS = 1000, 100
CUT = "loses the connection while it answers a range"
_warned_of: weakref.WeakSet[type] = weakref.WeakSet()


def remember_refusal(store: Any, refusal: str, num_bytes: int) -> None:
    """Read whole chunks from a store from now on, and log it: a warning, then INFO, per class."""
    if store is None or store in refusing:
        return
    refusing.add(store, refusal)
    kind = type(store)
    if store in refusing or kind not in _warned_of:
        logger.log(
            logging.INFO if kind in _warned_of else logging.WARNING,
            "%s does not support byte ranges (it %s): whole chunks of %d bytes are read instead",
            name_of_store(store),
            refusal,
            num_bytes,
        )
    _warned_of.add(kind)


class Versions:
    """The versions of an object that its store has told, and when: requests overlap."""

    def __init__(self) -> None:
        self._clock = 0
        # When an answer with each version arrived first; and when one with another version did,
        # to a request that was sent after that.
        self._first: dict[object, int] = {}
        self._replaced: dict[object, int] = {}

    def __len__(self) -> int:
        return len(self._first)

    def now(self) -> int:
        """Return the time, which passes with every request that is sent or answered."""
        self._clock += 1
        return self._clock

    def are_of_replicas(self, version: object, sent: int) -> bool:
        """Note the version, or None, that was found by a request that was sent at a time.

        Returns whether another version had taken its place before, or only some answers tell one,
        so that the object was not overwritten: its server has replicas that tell versions in their
        own way.
        """
        now = self.now()
        for other, first in self._first.items():
            if other != version and first < sent:
                self._replaced.setdefault(other, now)
        self._first.setdefault(version, now)
        is_untold = None in self._first and len(self._first) > 1
        return is_untold or self._replaced.get(version, sent) < sent


def versions_of(store: object, path: str) -> Versions:
    """Return the versions of an object that were found when it kept changing, else none."""
    return changing.of(store, path) or Versions()


def remember_versions(store: object, path: str, versions: Versions) -> None:
    """Remember the versions of an object that kept changing: one may come back."""
    changing.note(store, path, versions if len(versions) <= MAX_VERSIONS else Versions())


def remember_cut(store: object, path: str) -> None:
    """Remember that an answer was cut off: if it is the second one, not to ask for ranges."""
    (odd if _cut.of(store, path) else _cut).note(store, path, CUT)
