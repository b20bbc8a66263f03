"""Requests byte ranges of objects: a function for each way in which stores are asked.

Each checks what an answer says of itself, if possible before the bytes arrive.
"""

import contextlib
import re
import textwrap
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import cpu

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._sources.answers import MISSING, Answer

# Takes the length of an object and its version, as far as a store tells them. Returns what the
# answer is if they are not as expected, or None. It is called before the bytes arrive, if possible.
HeadCheck = Callable[[int | None, object], Answer | None]
# Takes the first byte and the end (exclusive) of a range, or minus the length of a suffix and None;
# and a `HeadCheck`.
RangeGetter = Callable[[int, int | None, HeadCheck], Awaitable[Answer]]

Errors = tuple[type[Exception], ...]

# What a server answers although it may answer the next request: a time-out, too early, too many.
_PASSING = (408, 425, 429)
_REFUSED_BY_OBSTORE = re.compile(
    "not supported|Content-Range|CONTENT_RANGE|Requested [0-9]+[.][.]"
    "|status code: 4(?!08|25|29)[0-9]{2}"
)

_WITH_SLASH = re.compile(r"\S*/\S*")

NOT_FOUND = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


async def from_store(
    store: Any, path: str, start: int, end: int | None, _check: HeadCheck
) -> Answer:
    """Request a range of a chunk from its store, which states neither length nor version."""
    request = SuffixByteRequest(-start) if end is None else RangeByteRequest(start, end)
    # It is read into host memory, also for an array on a GPU: a selection goes there all at once.
    buffer = await store.get(path, cpu.buffer_prototype, request)
    if buffer is None:
        return MISSING
    return Answer("read", raw=np.asarray(buffer.as_numpy_array()).view(np.uint8))


async def from_objects(
    objects: Any, path: str, start: int, end: int | None, check: HeadCheck
) -> Answer:
    """Request a range from obstore, which compares it with what the server says it is."""
    import obstore  # it is optional, but installed if there is such a store

    byte_range: Any = {"suffix": -start} if end is None else (start, end)
    try:
        response = await obstore.get_async(objects, path, options={"range": byte_range})
        unexpected = check(response.meta["size"], strong(response.meta["e_tag"]))
        if unexpected is not None:
            return unexpected
        raw: Any = await response.bytes_async()
        return Answer("read", raw=np.frombuffer(raw, np.uint8))
    except NOT_FOUND:
        return MISSING
    except obstore.exceptions.NotSupportedError:  # Azure supports no suffixes
        if end is not None:
            raise
    try:
        num_bytes = (await obstore.head_async(objects, path))["size"]
    except NOT_FOUND:
        return MISSING
    return await from_objects(objects, path, max(num_bytes + start, 0), num_bytes, check)


async def from_file_system(
    request: Any, missing: Errors, start: int, end: int | None, _check: HeadCheck
) -> Answer:
    """Request a range from a file system, which states neither length nor version.

    `missing` are the errors that the store takes for a missing object. Its user may have added any;
    those besides `NOT_FOUND` and PermissionError do not prove that the object is missing.
    """
    try:
        raw = await request(start=start, end=end)
    except missing as error:
        if isinstance(error, (*NOT_FOUND, PermissionError)):  # S3 may deny what does not exist
            return MISSING
        raise_interrupt(error)
        why = f"to the store, {type(error).__name__} means that a chunk is missing"
        return Answer("unclear", why)
    return Answer("read", raw=np.frombuffer(raw, np.uint8))


class _EndedEarly(Exception):  # noqa: N818 # not an error
    """Ends a request, through its client, after the headers of an unexpected response."""


async def from_http(
    request: Any, missing: Errors, start: int, end: int | None, check: HeadCheck
) -> Answer:
    """Request a range from a web server; its headers are checked before the body arrives."""
    # It stays this if the client calls nothing back, because it has a cache, for example.
    why = "its client does not show the headers of responses; aiohttp 3.9 does"
    unexpected: Answer | None = Answer("wrong", why)

    async def see(response: Any) -> None:
        nonlocal unexpected
        status, headers = response.status, response.headers
        # For other statuses, fsspec raises its own errors.
        unexpected = _check_http(status, headers, start, end, check) if status < 400 else None
        if unexpected is not None:
            response.close()  # instead of receiving the rest
            raise _EndedEarly

    async def request_and_see(**byte_range: int | None) -> bytes:
        with contextlib.suppress(_EndedEarly):
            raw: bytes = await request(**byte_range, raise_for_status=see)
            return raw
        return b""

    answer = await from_file_system(request_and_see, missing, start, end, check)
    return answer if unexpected is None or answer.kind == "unclear" else unexpected


def _check_http(
    status: int, headers: Any, start: int, end: int | None, check: HeadCheck
) -> Answer | None:
    """Return what a response is if it is not the range that was asked for, or None."""
    text = ", ".join(headers.getall("Content-Range", ()))
    asked = f"the last {-start} bytes" if end is None else f"bytes {start}-{end - 1}"
    content = parse_content_range(text)
    num_bytes = content and content.num_bytes
    if end is None and content:  # a suffix ends where the object does
        num_bytes = num_bytes or content.end
        start, end = max(num_bytes + start, 0), num_bytes
    is_right = status == 206 and content is not None and content[:2] == (start, end)
    encoding = headers.get("Content-Encoding")
    if not is_right or encoding is not None:
        answered = f"status {status} and {text or 'no Content-Range'}"
        if encoding is not None:
            answered = f"Content-Encoding {encoding}, {answered}"
        why = f"it answers a range with {answered} instead of {asked}"
        return Answer("wrong", why)
    return check(num_bytes, strong(headers.get("ETag")))


def answer_of(error: Exception) -> Answer:
    """Return what the error of a request says: that the store refuses ranges, or no answer."""
    return Answer("wrong" if _is_refusal(error) else "failed", _reason_of(error))


def _reason_of(error: Exception) -> str:
    """Return the first line of an error, without what only one request has, such as its URL."""
    line = traceback.format_exception_only(error)[0].partition("\n")[0]  # `str` may fail
    kind, colon, text = line.partition(": ")
    if type(error).__module__.startswith("obstore."):  # its texts begin with a duration
        text = text.partition(" - ")[2] or text
    reason = f"{kind}{colon}{re.sub(_WITH_SLASH, '...', text)}"
    return textwrap.shorten(reason, 200, placeholder=" ...")


def _is_refusal(error: Exception) -> bool:
    """Whether an error says that a store does not serve a range, not that a request failed."""
    if type(error).__module__.startswith("obstore."):  # its own errors tell nothing but a text
        return _REFUSED_BY_OBSTORE.search(str(error)) is not None
    status = _status_of(error)
    return isinstance(error, NotImplementedError) or (
        400 <= status < 500 and status not in _PASSING
    )


def _status_of(error: BaseException) -> int:
    """Return the status that an error of HTTP tells; 0 if it tells none."""
    with contextlib.suppress(Exception):  # any attribute of such an error may raise
        response: Any = getattr(error, "response", None)
        if isinstance(response, dict):  # of botocore
            return int(response["ResponseMetadata"]["HTTPStatusCode"])
        for name in ("status", "status_code", "code"):  # of aiohttp, Azure and Google
            if isinstance(status := getattr(error, name, None), int):
                return status
    cause = error.__cause__ if isinstance(error, OSError) else None  # s3fs raises such errors
    return 0 if cause is None else _status_of(cause)


class ContentRange(NamedTuple):
    """What an answer says that it holds of an object."""

    start: int
    end: int  # exclusive
    num_bytes: int | None  # the length of the object, if the server knows it


def parse_content_range(text: str) -> ContentRange | None:
    """Return what the value of the header ``Content-Range`` says; None for anything else.

    https://www.rfc-editor.org/rfc/rfc9110.html#name-content-range
    """
    match = re.fullmatch(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)", text)
    if match is None:
        return None
    first, last, total = match.groups()
    return ContentRange(int(first), int(last) + 1, None if total == "*" else int(total))


def strong(tag: str | None) -> str | None:
    """Return an ETag if it identifies the bytes of an object."""
    return None if not tag or tag.startswith("W/") else tag
