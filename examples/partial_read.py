"""Read a slice of a NetCDF-3 file in place, as a Zarr v3 array, fetching only the slice's bytes.

The file is written by scipy: its variable is big-endian, uncompressed and one piece, 64 MiB of the
sun's height over the globe. VirtualiZarr says where in the file it lies, and hands it to zarr as a
store. Nothing of the file is copied, and nothing below imports numcodecs_bytes: that it is
installed is enough.

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

SHAPE = (64, 512, 512)
SLICES = {
    "a row": np.s_[40, 100],
    "a point in time": np.s_[40],
    "Europe, all times": np.s_[:, 376:456, 242:314],
    "one place, all times": np.s_[:, 400, 270],
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


class CountingStore(zarr.storage.WrapperStore):
    """Count what is fetched from the file."""

    num_requests = num_bytes = 0

    async def get(self, key, prototype, byte_range=None):  # noqa: ANN001, ANN201, D102
        buffer = await super().get(key, prototype, byte_range)
        if "/c" in key and buffer is not None:
            self.num_requests += 1
            self.num_bytes += len(buffer)
        return buffer


def main() -> None:
    """Read the same slices with this package and with zarr alone; print what each fetched."""
    # Chunks of a class that is not known are read whole, unless the class is named: this example's,
    # and VirtualiZarr's before version 2.8.
    manifest_store = "virtualizarr.manifests.store.ManifestStore"
    names = [f"{__name__}.CountingStore", manifest_store]
    zarr.config.set({"numcodecs_bytes.stores_with_ranges": names})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sun.nc")
        write_netcdf(path)
        registry = ObjectStoreRegistry({"file://": LocalStore()})
        manifest_store = NetCDF3Parser()(url=path.as_uri(), registry=registry)
        with netcdf_file(path) as file:
            expected = file.variables["height"][:].astype("f4")

        print(f"{path.name}: height, {' x '.join(map(str, SHAPE))}, {path.stat().st_size} bytes\n")
        print(f"{'selection':22}{'read by':37}{'requests':>9}{'bytes':>12}")
        for name, selection in SLICES.items():
            fetched = []
            for chosen in ("numcodecs_bytes.zarr.BytesCodec", "zarr.codecs.bytes.BytesCodec"):
                store = CountingStore(manifest_store)
                with zarr.config.set({"codecs.bytes": chosen}):
                    array = zarr.open_group(store, mode="r", zarr_format=3)["height"]
                codec = type(array.metadata.codecs[0])
                assert f"{codec.__module__}.{codec.__qualname__}" == chosen
                assert np.array_equal(array[selection], expected[selection])
                fetched.append(store.num_bytes)
                print(f"{name:22}{chosen:37}{store.num_requests:>9}{store.num_bytes:>12}")
            ours, zarr_alone = fetched
            assert zarr_alone == expected.nbytes
            # Europe: each time is one request, for all that lies between its first and last value.
            assert (
                ours
                == {
                    "a row": 512 * 4,
                    "a point in time": 512 * 512 * 4,
                    "Europe, all times": 64 * (79 * 512 + 72) * 4,
                    "one place, all times": 64 * 4,
                }[name]
            )


if __name__ == "__main__":
    main()
