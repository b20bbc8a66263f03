"""A server like a far object store: each request waits, each connection has a limited rate.

    python far_server.py FOLDER MILLISECONDS MEGABYTES_PER_SECOND

Prints its port. Answers GET and HEAD, with byte ranges and an ETag, on connections that it keeps.
"""

import asyncio
import re
import sys
from pathlib import Path

PACKET_BYTES = 1 << 16


async def answer(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    folder: Path,
    seconds: float,
    rate: float,
) -> None:
    """Answer the requests of a connection, one after the other."""
    loop = asyncio.get_running_loop()
    try:
        while request := await reader.readuntil(b"\r\n\r\n"):
            line, *headers = request.decode().split("\r\n")
            method, target, _ = line.split(" ")
            await asyncio.sleep(seconds)
            path = folder / target.lstrip("/")
            if not path.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            total = path.stat().st_size
            status, more, first, last = "200 OK", "", 0, total - 1
            for header in headers:
                if found := re.match(r"range: *bytes=(\d*)-(\d*)", header, re.IGNORECASE):
                    if found[1]:
                        first, last = int(found[1]), min(int(found[2] or last), last)
                    else:
                        first = max(total - int(found[2]), 0)
                    status = "206 Partial Content"
                    more = f"Content-Range: bytes {first}-{last}/{total}\r\n"
            num_bytes = last + 1 - first
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Length: {num_bytes}\r\n{more}"
                f'ETag: "{path.stat().st_mtime_ns}"\r\nAccept-Ranges: bytes\r\n'
                "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n".encode()
            )
            body = b""
            if method == "GET":
                with path.open("rb") as file:
                    file.seek(first)
                    body = file.read(num_bytes)
            begin = loop.time()
            for start in range(0, len(body), PACKET_BYTES):
                writer.write(body[start : start + PACKET_BYTES])
                await writer.drain()
                await asyncio.sleep(begin + (start + PACKET_BYTES) / rate - loop.time())
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(folder: Path, seconds: float, rate: float) -> None:
    """Serve a folder until the process is ended."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(reader, writer, folder, seconds, rate)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2]) / 1e3, float(sys.argv[3]) * 1e6))
