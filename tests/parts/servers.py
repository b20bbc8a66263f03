"""HTTP servers that answer byte ranges in unusual ways, and count what they are asked for."""

import contextlib
import http.server
import re
import socket
import threading
from pathlib import Path


class Server:
    """Serves a folder.

    Attributes
    ----------
    address : str
        The URL of the folder.
    requests : list of tuple
        Path, range (or None), status, and length of the body of each request so far.
    answer : callable
        Takes the path, the first byte and the end (exclusive) of a range, and the body of the
        file; returns status, headers and body. By default what it should be.
    """

    def __init__(self, folder, answer=None, tag=None):
        self.folder, self.requests = Path(folder), []
        self.answer = answer or self.partial
        self.tag = tag or (lambda _path, body: f'"{hash(bytes(body))}"')
        self._lock = threading.Lock()

    def partial(self, path, first, end, body):
        headers = {"Content-Range": f"bytes {first}-{end - 1}/{len(body)}"}
        return 206, headers | self.version(path, body), body[first:end]

    def version(self, path, body):
        tag = self.tag(path, body)
        return {"ETag": tag} if tag else {}

    def whole(self, path, body):
        """Return what is answered to a request without a range."""
        return 200, self.version(path, body), body

    def respond(self, path, asked):
        """Return status, headers and body."""
        file = self.folder / path
        if not file.is_file():
            return 404, {}, b""
        body = file.read_bytes()
        if asked is None:
            return self.whole(path, body)
        first, last = re.fullmatch("bytes=([0-9]*)-([0-9]*)", asked).groups()
        if not first:
            return self.answer(path, max(len(body) - int(last), 0), len(body), body)
        return self.answer(path, int(first), min(int(last) + 1, len(body)), body)

    @property
    def num_bytes(self):
        """How many bytes were sent."""
        return sum(length for *_, length in self.requests)

    def of_chunks(self):
        """Return the requests of chunks, not of metadata."""
        return [request for request in self.requests if "zarr.json" not in request[0]]

    @contextlib.contextmanager
    def running(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self, *, has_body=True):
                path, asked = self.path.lstrip("/").partition("?")[0], self.headers.get("Range")
                status, headers, body = server.respond(path, asked)
                with server._lock:
                    server.requests.append((path, asked, status, len(body) * has_body))
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    if "Content-Length" not in headers:
                        self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    if has_body:
                        self.wfile.write(body)
                    self.close_connection |= "Connection" in headers

            def do_HEAD(self):
                self.do_GET(has_body=False)

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
            listening.daemon_threads = True
            thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
            thread.start()
            self.address = f"http://127.0.0.1:{listening.server_address[1]}"
            try:
                yield self
            finally:
                listening.shutdown()
                thread.join()


class DeadServer:
    """Closes each connection, or does not accept any; counts them."""

    def __init__(self):
        self.num = 0

    def __enter__(self):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._close_all, daemon=True).start()
        return self

    def _close_all(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.num += 1
            connection.recv(1)
            connection.close()

    def __exit__(self, *_):
        self._socket.close()
