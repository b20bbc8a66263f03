"""Read slices of a NetCDF-3 file in place, as Zarr v3 arrays, fetching only their bytes.

The file is written by scipy. One variable, the sun's height over the globe, is 64 MiB, big-endian,
uncompressed and contiguous: one chunk. The other, a cloud cover, has 1,000 records of 20 KiB, each
of which is a chunk. VirtualiZarr finds their offsets, and gives zarr a store that knows them. No
data are copied. Installing numcodecs_bytes is enough; it is imported below only to count.

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
RECORDS = (1000, 64, 80)
# What is selected, and the requests and bytes that it takes.
SLICES = {
    "a row": ("height", np.s_[40, 100], 1, 512 * 4),
    "a point in time": ("height", np.s_[40], 1, 512 * 512 * 4),
    # Each time is one request, for everything from its first to its last value.
    "Europe, all times": ("height", np.s_[:, 376:456, 242:314], 64, 64 * (79 * 512 + 72) * 4),
    "one place, all times": ("height", np.s_[:, 400, 270], 64, 64 * 4),
    # zarr alone reads all records, 20 MB.
    "one place, all records": ("cloud", np.s_[:, 32, 40], 1000, 1000 * 4),
}


def write_netcdf(path: Path) -> None:
    """Write the sine of the sun's height at 64 times of an equinox, and 1,000 days of clouds."""
    time = np.linspace(0, 2 * np.pi, SHAPE[0], endpoint=False)[:, np.newaxis, np.newaxis]
    latitude = np.linspace(-np.pi / 2, np.pi / 2, SHAPE[1])[:, np.newaxis]
    longitude = np.linspace(-np.pi, np.pi, SHAPE[2], endpoint=False)
    with netcdf_file(path, "w") as file:
        file.createDimension("day", None)  # of no fixed length: variables of it have records
        dimensions = ("time", "latitude", "longitude", "y", "x")
        for name, size in zip(dimensions, SHAPE + RECORDS[1:], strict=True):
            file.createDimension(name, size)
        variable = file.createVariable("height", "f4", ("time", "latitude", "longitude"))
        variable[:] = np.cos(latitude) * np.cos(longitude + time)
        clouds = file.createVariable("cloud", "f4", ("day", "y", "x"))
        clouds[:] = np.random.default_rng(0).random(RECORDS, "f4")


def main() -> None:
    """Read slices, and print what each fetched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sun.nc")
        write_netcdf(path)
        registry = ObjectStoreRegistry({"file://": LocalStore()})
        store = NetCDF3Parser()(url=path.as_uri(), registry=registry)
        group = zarr.open_group(store, mode="r", zarr_format=3)
        with netcdf_file(path, mmap=False) as file:
            expected = {name: file.variables[name][:].astype("f4") for name in group}

        for name, array in group.arrays():
            print(f"{path.name}: {name}, {array.shape} in chunks of {array.chunks}")
        print(f"read by {zarr.config.get('codec_pipeline.path')}\n")
        print(f"{'selection':24}{'requests':>9}{'bytes fetched':>15}{'selected':>12}")
        for name, (variable, selection, num_requests, num_bytes) in SLICES.items():
            with numcodecs_bytes.trace() as traced:
                values = group[variable][selection]
            assert np.array_equal(values, expected[variable][selection])
            total = traced.report()["total"]
            assert (total["requests"], total["bytes_fetched"]) == (num_requests, num_bytes)
            print(f"{name:24}{num_requests:>9}{num_bytes:>15,}{total['bytes_selected']:>12,}")


if __name__ == "__main__":
    main()
