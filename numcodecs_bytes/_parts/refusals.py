"""How stores refuse byte ranges, and which did."""

import contextlib
import io
import logging
import re
import weakref
from typing import Any

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._parts.names import name_of_store

logger = logging.getLogger("numcodecs_bytes")


class ReadWhole(Exception):  # noqa: N818 # not an error
    """Ranges of this chunk are not reliable: it must be read whole.

    Parameters
    ----------
    refusal : str or None
        How the store showed that it does not support ranges; None if that may be specific to this
        chunk.
    raw : numpy.ndarray or None
        The whole chunk, if it was received already.
    """

    def __init__(self, refusal: str | None = None, raw: UInt8Array | None = None) -> None:
        super().__init__(refusal)
        self.refusal = refusal
        self.raw = raw


# How stores and servers show that they do not support ranges at all. Subclasses of ValueError, such
# as JSONDecodeError, have other causes.
_REFUSING_ERRORS = (TypeError, ValueError)
_REFUSING_STATUS = (405, 501)  # HTTP status codes
_REFUSALS = re.compile("content.?range|unexpected.?range|range.?not.?supported", re.IGNORECASE)


def explain_failure(error: BaseException, num_requests: int) -> ReadWhole | None:
    """Return why to read a chunk whole after a range request failed; None to raise its error.

    If the chunk can't be read at all, reading it whole raises zarr's own error. But after a timeout
    or a lost connection the caller should not wait for another one, unless this was one of several
    requests: one of many fails more often than the single request for the whole chunk.
    """
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    for cause in causes:
        if (
            isinstance(cause, (NotImplementedError, io.UnsupportedOperation))
            or type(cause) in _REFUSING_ERRORS
            or type(cause).__name__ == "NotSupportedError"  # obstore's
            or getattr(cause, "status", None) in _REFUSING_STATUS
            or (not isinstance(cause, OSError) and _REFUSALS.search(str(cause)))
        ):
            return ReadWhole(f"raises {type(cause).__name__}")
    return (
        None
        if isinstance(error, (TimeoutError, ConnectionError)) and num_requests == 1
        else ReadWhole()
    )


class _Stores:
    """A set of weakly referenced stores, compared by identity because they are not hashable."""

    def __init__(self) -> None:
        self._references: dict[int, tuple[weakref.ref[Any], str]] = {}

    def __contains__(self, store: object) -> bool:
        reference, _ = self._references.get(id(store), (None, ""))
        return reference is not None and reference() is store

    def add(self, store: object, why: str = "") -> None:
        """Remember a store, if its class supports weak references."""
        key = id(store)
        with contextlib.suppress(TypeError):
            reference = weakref.ref(store, lambda _: self._references.pop(key, None))
            self._references[key] = reference, why

    def why(self, store: object) -> str:
        """Return why a store was added."""
        return self._references[id(store)][1]


answering = _Stores()  # those that answered a range request correctly
refusing = _Stores()
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
