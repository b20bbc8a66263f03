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

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._parts.names import name_of_store

logger = logging.getLogger("numcodecs_bytes")


# How long it is remembered that a store refuses ranges. Its server may be replaced; to ask again
# costs one request.
REMEMBERED_SECONDS = 600.0


class ReadWhole(Exception):  # noqa: N818 # not an error
    """Ranges of this chunk are not reliable: it must be read whole.

    Parameters
    ----------
    refusal : str or None
        How the store showed that it does not support ranges; None if that may be specific to this
        chunk.
    raw : numpy.ndarray or None
        The whole chunk, if it was received already.
    why : str
        What else is the reason, for `numcodecs_bytes.trace`.
    """

    def __init__(
        self, refusal: str | None = None, raw: UInt8Array | None = None, why: str = ""
    ) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.raw = raw
        self.why = f"the store {refusal}" if refusal else why


# How stores show that they do not support ranges, if no server answers with a status.
_REFUSING_ERRORS = (NotImplementedError, io.UnsupportedOperation)
_REFUSALS = re.compile(
    "content.?range|unexpected.?range|range.?not.?supported|no.range|unexpected keyword",
    re.IGNORECASE,
)
_STATUS = re.compile(r"status code: (\d\d\d)\b")  # of obstore, whose errors have no attribute
# What a connection that is lost, or was never made, is called by obstore, whose class for that is
# also the one for statuses, at the end of its first line; and the names of other clients' classes,
# which are neither Python's ConnectionError nor TimeoutError.
_LOST = re.compile("error sending request|connection|timed out", re.IGNORECASE)
_LOST_CLASSES = {
    "ClientConnectionError",  # aiohttp
    "ClientPayloadError",
    "ConnectionError",  # botocore
    "HTTPClientError",
    "ServiceRequestError",  # Azure
    "ServiceResponseError",
    "TransportError",
}


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status, at least 300, that was answered; None if an error has none."""
    for cause in _causes_of(error):
        for status in _statuses_of(cause):
            if isinstance(status, int) and 300 <= status < 1000:
                return status
    return None


def _statuses_of(error: BaseException) -> Iterator[Any]:
    yield getattr(error, "status", None)  # aiohttp, where `code` is deprecated
    yield getattr(error, "status_code", None)  # Azure
    yield getattr(error, "code", None)  # gcsfs
    response = getattr(error, "response", None)
    yield getattr(response, "status_code", None)  # requests
    if isinstance(response, dict):  # botocore
        yield response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if match := _STATUS.search(str(error)):
        yield int(match[1])


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
            raise ReadWhole(f"answers with status {status}") from error
        for cause in _causes_of(error):
            if (
                isinstance(cause, _REFUSING_ERRORS)
                or type(cause).__name__ == "NotSupportedError"  # obstore's
                or (not isinstance(cause, OSError) and _REFUSALS.search(str(cause)))
            ):
                raise ReadWhole(f"raises {type(cause).__name__}") from error
        if _is_lost(error):
            raise
        raise ReadWhole(why=f"a range of it failed with {type(error).__name__}") from error


class _Stores:
    """A set of weakly referenced stores, compared by identity because they are not hashable.

    Parameters
    ----------
    seconds : float
        How long each of them is remembered.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds = seconds
        self._references: dict[int, tuple[weakref.ref[Any], str, float]] = {}

    def __contains__(self, store: object) -> bool:
        found = self._references.get(id(store))
        return found is not None and found[0]() is store and time.monotonic() < found[2]

    def add(self, store: object, why: str = "") -> None:
        """Remember a store, if its class supports weak references."""
        key = id(store)
        with contextlib.suppress(TypeError):
            reference = weakref.ref(store, lambda _: self._references.pop(key, None))
            self._references[key] = reference, why, time.monotonic() + self._seconds

    def why(self, store: object) -> str:
        """Return why a store was added."""
        return self._references[id(store)][1]


answering = _Stores()  # those that answered a range request correctly
refusing = _Stores(REMEMBERED_SECONDS)
untagged = _Stores()  # those whose answers do not tell the version of an object
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
