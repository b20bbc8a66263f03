"""Read a slice of a NetCDF-3 file in place, as a Zarr v3 array, fetching only the slice's bytes.

The file is written by scipy: its variable, the sun's height over the globe, is 64 MiB, big-endian,
uncompressed and contiguous. VirtualiZarr finds its offset in the file, and hands it to zarr as a
store. No data are copied. Installing numcodecs_bytes is enough; it is imported below only to count.

Needs ``pip install ".[examples]"``.
"""

import tempfile
from pathlib import Path

import numpy as np
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from scipy.io import netcdf_file
from virtualizarr.parsers import NetCDF3Parser

import numcodecs_bytes

SHAPE = (64, 512, 512)
# What is selected, and the requests and bytes that it takes.
SLICES = {
    "a row": (np.s_[40, 100], 1, 512 * 4),
    "a point in time": (np.s_[40], 1, 512 * 512 * 4),
    # Each time is one request, for everything from its first to its last value.
    "Europe, all times": (np.s_[:, 376:456, 242:314], 64, 64 * (79 * 512 + 72) * 4),
    "one place, all times": (np.s_[:, 400, 270], 64, 64 * 4),
}


def write_netcdf(path: Path) -> None:
    """Write the sine of the sun's height at an equinox: 64 times of a day, latitude, longitude."""
    time = np.linspace(0, 2 * np.pi, SHAPE[0], endpoint=False)[:, np.newaxis, np.newaxis]
    latitude = np.linspace(-np.pi / 2, np.pi / 2, SHAPE[1])[:, np.newaxis]
    longitude = np.linspace(-np.pi, np.pi, SHAPE[2], endpoint=False)
    with netcdf_file(path, "w") as file:
        for name, size in zip(("time", "latitude", "longitude"), SHAPE, strict=True):
            file.createDimension(name, size)
        variable = file.createVariable("height", "f4", ("time", "latitude", "longitude"))
        variable[:] = np.cos(latitude) * np.cos(longitude + time)


def main() -> None:
    """Read slices, and print what each fetched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sun.nc")
        write_netcdf(path)
        registry = ObjectStoreRegistry({"file://": LocalStore()})
        store = NetCDF3Parser()(url=path.as_uri(), registry=registry)
        array = zarr.open_group(store, mode="r", zarr_format=3)["height"]
        with netcdf_file(path) as file:
            expected = file.variables["height"][:].astype("f4")

        print(f"{path.name}: height, {' x '.join(map(str, SHAPE))}, one chunk of 64 MiB")
        print(f"read by {zarr.config.get('codec_pipeline.path')}\n")
        print(f"{'selection':22}{'requests':>9}{'bytes fetched':>15}{'selected':>12}")
        for name, (selection, num_requests, num_bytes) in SLICES.items():
            with numcodecs_bytes.trace() as traced:
                values = array[selection]
            assert np.array_equal(values, expected[selection])
            total = traced.report()["total"]
            assert (total["requests"], total["bytes_fetched"]) == (num_requests, num_bytes)
            print(f"{name:22}{num_requests:>9}{num_bytes:>15,}{total['bytes_selected']:>12,}")


if __name__ == "__main__":
    main()
