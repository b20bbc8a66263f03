"""Read parts of a NetCDF-3 file through its kerchunk references, and of a Zarr v2 store.

All kerchunk references, and many archives, are Zarr v2, of which zarr reads whole chunks: here the
variable on a web server, 32 MiB of big-endian float32. With this package's codec pipeline only the
bytes of a selection are fetched, also by Dask tasks that are smaller than the chunk.

Needs ``pip install ".[examples]"``.
"""

import http.server
import tempfile
import threading
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
import zarr
from kerchunk.netCDF3 import NetCDF3ToZarr

SHAPE = (32, 512, 512)
PIPELINES = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "ours": "numcodecs_bytes.zarr_pipeline.BytesPipeline",
}
WHOLE = 4 * SHAPE[0] * SHAPE[1] * SHAPE[2]
# What is selected lazily, and the number of bytes that it takes.
SLICES = {
    "one day": (lambda sst: sst.isel(time=20), 512 * 512 * 4),
    "a parallel on one day": (lambda sst: sst.isel(time=20, lat=100), 512 * 4),
    "one place, all times": (lambda sst: sst.isel(lat=300, lon=7), 32 * 4),
}


class Server(http.server.ThreadingHTTPServer):
    """Serve the files of a folder, with byte ranges, and count the bytes that are sent."""

    num_bytes = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that has seen enough."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests; each is counted before it is sent."""

    server: Server

    def do_GET(self) -> None:
        """Send a file, or the range of it that is asked for."""
        body = self.server.folder.joinpath(self.path.lstrip("/")).read_bytes()
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
        self.server.num_bytes += len(body)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


class CountingStore(zarr.storage.LocalStore):
    """Count what is fetched of the variable's chunks."""

    num_bytes = 0

    async def get(self, key, prototype=None, byte_range=None):  # noqa: ANN001, ANN201, D102
        buffer = await super().get(key, prototype, byte_range)
        if buffer is not None and key.startswith("sst/") and "/." not in key:
            self.num_bytes += len(buffer)
        return buffer


def open_references(references: dict, store: CountingStore) -> xr.Dataset:  # noqa: ARG001
    """Open a NetCDF-3 file by its references: Dask chunks of a day in a chunk of all days."""
    return xr.open_dataset(
        references,
        engine="kerchunk",
        storage_options={"remote_protocol": "http"},
        chunks={"time": 1},
    )


def open_v2(references: dict, store: CountingStore) -> xr.Dataset:  # noqa: ARG001
    """Open the Zarr v2 store likewise."""
    return xr.open_zarr(store, consolidated=False, chunks={"time": 1})


def main() -> None:
    """Write a NetCDF-3 file, its references and a Zarr v2 store; read parts of both."""
    # Chunks of a class that is not known are read whole, unless the class is named.
    zarr.config.set({"numcodecs_bytes.stores_with_ranges": [f"{__name__}.CountingStore"]})
    warnings.filterwarnings("ignore", "The specified chunks separate", UserWarning)
    values = np.random.default_rng(0).random(SHAPE, "f4")
    dataset = xr.Dataset({"sst": (("time", "lat", "lon"), values)})
    with tempfile.TemporaryDirectory() as folder:
        dataset.to_netcdf(Path(folder, "sst.nc"), engine="scipy", format="NETCDF3_64BIT")
        server = Server(Path(folder))
        references = NetCDF3ToZarr(f"{server.url}/sst.nc", inline_threshold=0).translate()
        assert '"dtype":">f4"' in references["refs"]["sst/.zarray"]
        encoding = {"sst": {"chunks": SHAPE, "compressors": None}}
        path = Path(folder, "sst.zarr")
        dataset.to_zarr(path, zarr_format=2, consolidated=False, encoding=encoding)

        print(f"{'read from':12}{'selection':23}{'by':56}{'bytes':>12}")
        for what, open_dataset in {"references": open_references, "Zarr v2": open_v2}.items():
            for name, (select, expected) in SLICES.items():
                for who, pipeline in PIPELINES.items():
                    with zarr.config.set({"codec_pipeline.path": pipeline}):
                        store = CountingStore(path, read_only=True)
                        opened = open_dataset(references, store)
                        before = server.num_bytes
                        got = select(opened["sst"]).load()
                    num_bytes = server.num_bytes - before + store.num_bytes
                    assert np.array_equal(got, select(dataset["sst"]))
                    assert num_bytes == expected if who == "ours" else num_bytes >= WHOLE
                    print(f"{what:12}{name:23}{pipeline:56}{num_bytes:>12}")


if __name__ == "__main__":
    main()
