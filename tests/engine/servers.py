"""A server in memory that counts what it is asked for, and answers ranges in many ways."""

import asyncio
import contextlib
import datetime as dt
import random
import re
import threading
from collections import Counter, defaultdict
from typing import NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import reference_store

import numcodecs_bytes

pytest.importorskip("aiohttp", reason="the extra stores is not installed")
pytest.importorskip("fsspec", reason="the extra stores is not installed")
obstore_store = pytest.importorskip("obstore.store", reason="the extra stores is not installed")


def objects_of(name, data, **how):
    """Return the objects of an uncompressed array by name."""
    stored = {}
    zarr.create_array(zarr.storage.MemoryStore(stored), data=data, compressors=None, **how)
    return {f"{name}/{key}": buffer.to_bytes() for key, buffer in stored.items()}


def store_of(client, url):
    """Return a store on a server, by one of two clients, which soon gives up."""
    if client == "fsspec":
        return zarr.storage.FsspecStore.from_url(url, read_only=True)
    short = dt.timedelta(milliseconds=1)
    backoff = {"init_backoff": short, "max_backoff": short, "base": 2}
    retry = {"max_retries": 1, "backoff": backoff, "retry_timeout": dt.timedelta(seconds=1)}
    options = {"client_options": {"allow_http": True}, "retry_config": retry}
    made = obstore_store.HTTPStore.from_url(url, **options)
    return zarr.storage.ObjectStore(made, read_only=True)


def references(url, parts, metadata):
    """Return a store of an array whose chunks are parts of a file on a server."""
    refs = {key: [url, *part] for key, part in parts.items()}
    return reference_store(refs | {"zarr.json": metadata.decode()}, "http")


def is_struck(array, selection):
    """Whether the store of an array is read by zarr, because it answered a range wrongly."""
    with numcodecs_bytes.trace() as traced, contextlib.suppress(Exception):
        array[selection]
    return "the store does not serve byte ranges as requested" in str(traced)


class Answer(NamedTuple):
    """What a server answers; `after` is what it does instead of keeping the connection."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    after: str = ""


class Asked(NamedTuple):
    """A request, as a server sees it; the end is exclusive, and None without a range."""

    start: int
    end: int | None
    is_suffix: bool
    num_before: int
    num_at_once: int
    body: bytes
    rng: random.Random


def proper(asked, tag='"1"', status=206):
    headers = {"ETag": tag} if tag else {}
    if asked.end is None:
        return Answer(200, headers, asked.body)
    headers["Content-Range"] = f"bytes {asked.start}-{asked.end - 1}/{len(asked.body)}"
    return Answer(status, headers, asked.body[asked.start : asked.end])


def with_status(status, **headers):
    """Return what answers ranges with a status, and a text as servers have it."""
    return lambda _asked: Answer(status, headers, b"<html>no</html>")


def of_range(asked, start, end):
    """Return an answer that says that it is another range."""
    return proper(asked._replace(start=start, end=end))


def replaced(asked, **headers):
    answer = proper(asked)
    return answer._replace(headers={**answer.headers, **headers})


def of_total(asked, total):
    return replaced(asked, **{"Content-Range": f"bytes {asked.start}-{asked.end - 1}/{total}"})


def cut(asked, claims):
    """Return an answer that ends early: it says so, or the connection ends."""
    answer = proper(asked)
    half = answer.body[: len(answer.body) // 2]
    if claims == "range":
        return of_range(asked, asked.start, asked.start + max(len(half), 1))
    if claims == "length":
        return answer._replace(body=half)
    whole = replaced(asked, **{"Content-Length": str(len(answer.body))})
    return whole._replace(body=half, after="end")


def multipart(asked):
    part = proper(asked)
    of = part.headers["Content-Range"]
    body = b"--b\r\nContent-Range: " + of.encode() + b"\r\n\r\n" + part.body + b"\r\n--b--\r\n"
    return Answer(206, {"Content-Type": "multipart/byteranges; boundary=b"}, body)


def sometimes(answer, share=0.3):
    return lambda asked: answer(asked) if asked.rng.random() < share else proper(asked)


def limited(status, most):
    def answer(asked):
        return with_status(status)(asked) if asked.num_at_once > most else proper(asked)

    return answer


def version(asked, number):
    """Return an answer from a version of the object: every byte is greater by a number."""
    body = bytes(np.frombuffer(asked.body, np.uint8) + np.uint8(number))
    return proper(asked._replace(body=body), f'"{number}"')


# What is answered to ranges; requests without a range are answered properly.
RANGES = {
    "properly": proper,
    "no ETag": lambda a: proper(a, ""),
    "an ETag of the content": lambda a: proper(a, f'"{hash(a.body)}"'),
    "weak ETag": lambda a: proper(a, 'W/"1"'),
    "ETags that flap": lambda a: proper(a, f'"{a.num_before}"'),
    "ETags of two replicas": lambda a: proper(a, f'"{a.num_before % 2}"'),
    "an ETag now and then": lambda a: proper(a, '"1"' if a.num_before % 3 else ""),
    "all, 200": lambda a: Answer(200, {"ETag": '"1"'}, a.body),
    "all, 206 without a Content-Range": lambda a: Answer(206, {"ETag": '"1"'}, a.body),
    "all, 206": lambda a: of_range(a, 0, len(a.body)),
    "no Content-Range": lambda a: Answer(206, {"ETag": '"1"'}, a.body[a.start : a.end]),
    "a status of 200": lambda a: proper(a, status=200),
    "shifted": lambda a: of_range(a, max(a.start - 1, 0), a.end - 1),
    "the first range of each object": lambda a: of_range(a, 0, a.end - a.start),
    "cut, and says so": lambda a: cut(a, "range"),
    "cut, and says not": lambda a: cut(a, "length"),
    "cut off": lambda a: cut(a, "all"),
    "cut off now and then": sometimes(lambda a: cut(a, "all")),
    "two Content-Ranges": lambda a: replaced(a, **{"content-range": "bytes 0-0/1"}),
    "twice": lambda a: proper(a)._replace(body=proper(a).body * 2),
    "gzip": lambda a: replaced(a, **{"Content-Encoding": "gzip"}),
    "identity": lambda a: replaced(a, **{"Content-Encoding": "identity"}),
    "another total": lambda a: of_total(a, 7777),
    "an unknown total": lambda a: of_total(a, "*"),
    "multipart": multipart,
    "no content, 204": lambda _: Answer(204, {}),
    "an empty body": lambda a: proper(a)._replace(body=b""),
    "a page of text": lambda _: Answer(200, {"Content-Type": "text/html"}, b"<html>hello</html>"),
    "to nothing, 302": with_status(302, Location="/nothing"),
    "to themselves, 302": with_status(302, Location=""),
    "not the first": lambda a: proper(a) if a.start == 0 else with_status(416)(a),
    "no suffix": lambda a: with_status(416)(a) if a.is_suffix else proper(a),
    "now and then, 500": sometimes(with_status(500)),
    "now and then, 404": sometimes(with_status(404), 1.0),
    "a reset": lambda _: Answer(0, {}, after="reset"),
    "a reset now and then": sometimes(lambda _: Answer(0, {}, after="reset")),
    "nothing, and ends": lambda _: Answer(0, {}, after="end"),
    "slow, and a reset": lambda _: Answer(0, {}, after="slow reset"),
    "slow": lambda a: proper(a)._replace(after="slow"),
    "garbage": lambda _: Answer(0, {}, b"hello\r\n\r\n", after="end"),
    **{f"status {n}": with_status(n) for n in (400, 401, 403, 404, 405, 410, 416, 500, 501, 503)},
    "limit, 429": limited(429, 2),
    "limit, 503": limited(503, 1),
    "to everything, 503": with_status(503),
    "overwritten once": lambda a: version(a, int(a.num_before > 0)),
    "overwritten all the time": lambda a: version(a, a.num_before % 200),
}
OVERWRITTEN = ("overwritten once", "overwritten all the time")
# What is answered to all requests for chunks, not only for ranges.
TO_ALL = (*OVERWRITTEN, "to everything, 503")
# Where zarr's own requests are ranges, too, luck decides which of them fail.
BY_LUCK = {k for k in RANGES if "now and then" in k or "limit" in k} | {*OVERWRITTEN}


class Server:
    """Serves objects in memory below ``/KIND/TOKEN/``, and notes the requests of each token."""

    def __init__(self, objects):
        self.objects, self.counts, self.at_once = objects, Counter(), Counter()
        self.requests = defaultdict(list)
        self.most_at_once = Counter()

    def url(self, kind, token):
        return f"{self.address}/{quote(kind)}/{token}"

    @contextlib.contextmanager
    def running(self):
        started, loop = threading.Event(), asyncio.new_event_loop()

        async def serve():
            self._stop = asyncio.Event()
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            started.set()
            await self._stop.wait()
            server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        started.wait()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(self._stop.set)
            thread.join()

    async def _serve(self, reader, writer):
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while await self._answer(*await _request(reader), writer):
                    pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _answer(self, method, path, asked_range, writer):
        kind, token, name = path.removeprefix("/").split("/", 2)
        kind, body = unquote(kind), self.objects.get(name)
        of_chunk = f"{token}/{name}"
        self.requests[token].append((name, asked_range))
        self.at_once[token] += 1
        self.most_at_once[token] = max(self.most_at_once[token], self.at_once[token])
        try:
            if body is None:
                answer = Answer(404, {})
            else:
                start, end, is_suffix = _bounds(asked_range, len(body))
                num = self.counts[of_chunk]
                self.counts[of_chunk] += end is not None or kind in TO_ALL
                rng = random.Random(f"{of_chunk}{num}")  # noqa: S311
                asked = Asked(start, end, is_suffix, num, self.at_once[token], body, rng)
                is_metadata = name.endswith("zarr.json") and kind in TO_ALL
                is_proper = is_metadata or (end is None and kind not in TO_ALL)
                answer = proper(asked) if is_proper else RANGES[kind](asked)
            await asyncio.sleep(0.03 * ("slow" in answer.after))
            return _send(writer, method, answer)
        finally:
            self.at_once[token] -= 1


async def _request(reader):
    line, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = line.split(" ")
    found = [re.match(r"range: *(bytes=.*)", h, re.IGNORECASE) for h in headers]
    return method, target, next((m[1] for m in found if m), None)


def _bounds(asked, length):
    """Return first byte and end of a range, and whether it is a suffix."""
    if asked is None:
        return 0, None, False
    first, last = re.fullmatch("bytes=([0-9]*)-([0-9]*)", asked).groups()
    if not first:
        return max(length - int(last), 0), length, True
    return int(first), min(int(last or length) + 1, length), False


def _send(writer, method, answer):
    """Send an answer; return whether the connection is kept."""
    if "reset" in answer.after:
        writer.transport.abort()
        return False
    if answer.status:
        headers = {"Content-Length": str(len(answer.body)), **answer.headers}
        headers |= {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        lines = [f"HTTP/1.1 {answer.status} So", *[f"{k}: {v}" for k, v in headers.items()]]
        writer.write("\r\n".join([*lines, "", ""]).encode())
    writer.write(answer.body if method == "GET" else b"")
    return answer.after != "end"
