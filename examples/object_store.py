"""Read slices of an array on a web server or in a bucket, and count what the server sends.

The server is a small one that this example runs in a thread: it serves byte ranges, as S3, Google
Cloud Storage and web servers do, and counts the bytes. zarr reads from it through obstore; with
another of obstore's stores, such as `S3Store("bucket", ...)`, the same code reads a bucket.

Nothing below imports numcodecs_bytes: installing it is enough.

Needs ``pip install ".[examples]"``.
"""

import functools
import http.server
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import zarr
from obstore.store import HTTPStore

OURS = "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline"
ALONE = "zarr.core.codec_pipeline.BatchedCodecPipeline"
SHAPE = (2048, 2048)
# What is selected from one chunk of 16 MiB, the number of requests for it, and the bytes sent.
SLICES = {
    "a row": (np.s_[1000], 1, 2048 * 4),
    "eight rows": (np.s_[1000:1008], 1, 8 * 2048 * 4),
    # Gaps of up to 250 kB are read, too: a request takes longer.
    "a box of 64 x 64": (np.s_[512:576, 1024:1088], 1, (63 * 2048 + 64) * 4),
    "every 100th row": (np.s_[::100], 21, 21 * 2048 * 4),
    # Long ranges are requested in parts of 2 MiB or more: a connection has a limited rate.
    "the whole array": (np.s_[:], 8, 2048 * 2048 * 4),
}


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Answers GET requests, with part of a file if `Range` asks for it."""

    protocol_version = "HTTP/1.1"  # keeps the connection open
    sent: ClassVar[list[int]] = []  # how many bytes of a chunk each answer had

    def do_GET(self) -> None:  # noqa: D102
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        num_bytes = len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked:
            first, last = int(asked[1]), min(int(asked[2]), num_bytes - 1)
            content = content[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{num_bytes}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        # The version of the file. Without it, parts of a long range could be of several versions.
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.end_headers()
        if path.name != "zarr.json":
            self.sent.append(len(content))
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


@contextmanager
def serve(folder: str) -> Iterator[str]:
    """Serve a folder in a thread, at the address that is yielded."""
    handler = functools.partial(RangeHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def main() -> None:
    """Read the same slices with this package and with zarr alone; print what was sent."""
    data = np.random.default_rng(7).normal(size=SHAPE).astype("f4")
    with tempfile.TemporaryDirectory() as folder, serve(folder) as url:
        array = zarr.create_array(
            folder,
            shape=SHAPE,
            chunks=SHAPE,
            dtype="float32",
            compressors=None,
            serializer={"name": "bytes", "configuration": {"endian": "big"}},
        )
        array[:] = data
        http_store = HTTPStore(url, client_options={"allow_http": True})
        store = zarr.storage.ObjectStore(http_store, read_only=True)

        print(f"{'selection':18}{'read by':45}{'requests':>9}{'bytes':>10}")
        for name, (selection, *expected) in SLICES.items():
            for chosen in (OURS, ALONE):
                with zarr.config.set({"codec_pipeline.path": chosen} if chosen == ALONE else {}):
                    array = zarr.open_array(store, mode="r", zarr_format=3)
                pipeline = type(array.async_array.codec_pipeline)
                assert f"{pipeline.__module__}.{pipeline.__qualname__}" == chosen
                RangeHandler.sent.clear()
                assert np.array_equal(array[selection], data[selection])
                sent = [len(RangeHandler.sent), sum(RangeHandler.sent)]
                assert sent == ([1, data.nbytes] if chosen == ALONE else expected)
                print(f"{name:18}{chosen:45}{sent[0]:>9}{sent[1]:>10}")


if __name__ == "__main__":
    main()
