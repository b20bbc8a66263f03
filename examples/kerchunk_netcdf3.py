"""Read parts of a NetCDF-3 file through its kerchunk references, and parts of a Zarr v2 store.

Kerchunk references are Zarr v2, as many archives are. Here, they refer to a file on a web server,
whose variable is one chunk: 32 MiB of big-endian float32. zarr alone fetches all of it. With this
package, only the bytes of a selection are fetched, even by Dask tasks that are smaller than the
chunk. Installing the package is enough; it is imported below only to count.

Needs ``pip install ".[examples]"``.
"""

import functools
import http.server
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from kerchunk.netCDF3 import NetCDF3ToZarr

import numcodecs_bytes

SHAPE = (32, 512, 512)
# What is selected lazily, and the number of bytes that it takes.
SLICES = {
    "one day": (lambda sst: sst.isel(time=20), 512 * 512 * 4),
    "a parallel on one day": (lambda sst: sst.isel(time=20, lat=100), 512 * 4),
    "one place, all times": (lambda sst: sst.isel(lat=300, lon=7), 32 * 4),
}


def serve(folder: Path) -> str:
    """Serve the files of a folder, with byte ranges; return the address."""
    handler = functools.partial(Handler, folder)
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class Server(http.server.ThreadingHTTPServer):
    """A server that does not complain if a client closes the connection early."""

    def handle_error(self, *_: object) -> None:  # noqa: D102
        pass


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests for files and ranges of them."""

    def __init__(self, folder: Path, *args: Any) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_GET(self) -> None:
        """Send a file, or the range of it that is asked for."""
        body = self.folder.joinpath(self.path.lstrip("/")).read_bytes()
        total, wanted = len(body), self.headers["Range"]
        if wanted:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            body = body[first : last + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


def main() -> None:
    """Write a NetCDF-3 file, its references and a Zarr v2 store; read parts of both."""
    warnings.filterwarnings("ignore", "The specified chunks separate", UserWarning)
    values = np.random.default_rng(0).random(SHAPE, "f4")
    dataset = xr.Dataset({"sst": (("time", "lat", "lon"), values)})
    with tempfile.TemporaryDirectory() as folder:
        dataset.to_netcdf(Path(folder, "sst.nc"), engine="scipy", format="NETCDF3_64BIT")
        references = NetCDF3ToZarr(f"{serve(Path(folder))}/sst.nc", inline_threshold=0).translate()
        assert '"dtype":">f4"' in references["refs"]["sst/.zarray"]
        encoding = {"sst": {"chunks": SHAPE, "compressors": None}}
        path = Path(folder, "sst.zarr")
        dataset.to_zarr(path, zarr_format=2, consolidated=False, encoding=encoding)

        # Dask chunks of a day, in a stored chunk of all days.
        remote = {"storage_options": {"remote_protocol": "http"}, "chunks": {"time": 1}}
        opened = {
            "references": xr.open_dataset(references, engine="kerchunk", **remote),
            "Zarr v2": xr.open_zarr(path, consolidated=False, chunks={"time": 1}),
        }
        print(f"read by {zarr.config.get('codec_pipeline.path')}, from a chunk of 32 MiB\n")
        print(f"{'from':12}{'selection':23}{'requests':>9}{'bytes':>12}")
        for what, of_one in opened.items():
            for name, (select, expected) in SLICES.items():
                with numcodecs_bytes.trace() as traced:
                    got = select(of_one["sst"]).load()
                assert np.array_equal(got, select(dataset["sst"]))
                total = traced.report()["total"]
                # From a slow disk, more is read at once.
                is_local = what == "Zarr v2"
                assert total["bytes_fetched"] <= (values.nbytes // 4 if is_local else expected)
                print(f"{what:12}{name:23}{total['requests']:>9}{total['bytes_fetched']:>12,}")


if __name__ == "__main__":
    main()
