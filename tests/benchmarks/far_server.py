"""A server like a far object store: each request waits, each connection has a limited rate.

    python far_server.py FOLDER MILLISECONDS MEGABYTES_PER_SECOND

Prints its port. Answers GET and HEAD, with byte ranges and an ETag, on connections that it keeps.
"""

import asyncio
import contextlib
import re
import sys
from pathlib import Path

FOLDER, SECONDS, RATE = Path(sys.argv[1]), float(sys.argv[2]) / 1e3, float(sys.argv[3]) * 1e6
PACKET_BYTES = max(1 << 16, int(RATE / 1000))  # smaller ones would keep a core busy


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of a connection, one after the other."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            await asyncio.sleep(SECONDS)
            method, target, _ = head.split(" ", 2)
            path = FOLDER / target[1:]
            if not path.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            status, first, num_bytes = "200 OK", 0, path.stat().st_size
            if found := re.search(r"\nrange: *bytes=(\d+)-(\d+)", head, re.IGNORECASE):
                first, last = int(found[1]), min(int(found[2]), num_bytes - 1)
                status = f"206 Partial Content\r\nContent-Range: bytes {first}-{last}/{num_bytes}"
                num_bytes = last + 1 - first
            headers = f'Content-Length: {num_bytes}\r\nETag: "1"\r\n\r\n'
            writer.write(f"HTTP/1.1 {status}\r\n{headers}".encode())
            with path.open("rb") as file:
                file.seek(first)
                body = memoryview(file.read(num_bytes if method == "GET" else 0))
            begin = loop.time()
            for start in range(0, len(body), PACKET_BYTES):
                writer.write(body[start : start + PACKET_BYTES])
                await writer.drain()
                await asyncio.sleep(begin + (start + PACKET_BYTES) / RATE - loop.time())
    writer.close()


async def serve() -> None:
    """Serve the folder until the process is ended."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
