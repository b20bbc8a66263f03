"""Write a packed, big-endian dataset with xarray; read slices of it that fetch only their bytes.

Sea surface temperature is packed into int16 by the CF attributes `scale_factor`, `add_offset` and
`_FillValue`, as in many a climate archive, and stored uncompressed in two chunks of 16 MiB. xarray
hands zarr the codec that `encoding` names as `serializer`, indexes lazily, and decodes what comes.

Nothing below imports numcodecs_bytes: that it is installed is enough.

Needs ``pip install ".[examples]"``.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
import zarr

SHAPE = (64, 512, 512)
ENCODING = {
    "chunks": (32, 512, 512),
    "dtype": "int16",
    "scale_factor": 0.01,
    "add_offset": 15.0,
    "_FillValue": -32768,
    "serializer": {"name": "bytes", "configuration": {"endian": "big"}},
    "compressors": None,
}
SOME_DAYS = xr.DataArray([3, 40, 63], dims="point")
SOME_ROWS = xr.DataArray([10, 200, 400], dims="point")
# What is selected lazily, and the number of bytes that it takes.
SLICES = {
    "one day": (lambda sst: sst.sel(time="2024-02-10"), 512 * 512 * 2),
    "a parallel on one day": (lambda sst: sst.isel(time=40, lat=100), 512 * 2),
    "a box, mean over it": (
        lambda sst: sst.sel(time="2024-01-05", lat=slice(30, 46), lon=slice(-10, 36)).mean(),
        # The rows of the box lie so close that one request fetches all from its first to its last.
        (45 * 512 + 66) * 2,
    ),
    "one place, all times": (lambda sst: sst.sel(lat=0, lon=-30, method="nearest"), 64 * 2),
    "three places and days": (
        lambda sst: sst.isel(time=SOME_DAYS, lat=SOME_ROWS, lon=SOME_ROWS),
        3 * 2,
    ),
}


class CountingStore(zarr.storage.LocalStore):
    """Count what is fetched of the variable's chunks."""

    num_requests = num_bytes = 0

    async def get(self, key, prototype=None, byte_range=None):  # noqa: ANN001, ANN201, D102
        buffer = await super().get(key, prototype, byte_range)
        if key.startswith("sst/c/") and buffer is not None:
            self.num_requests += 1
            self.num_bytes += len(buffer)
        return buffer


def sea_surface_temperature() -> xr.Dataset:
    """Return 64 days of it in degrees Celsius, warm at the equator, without values on the land."""
    time = np.datetime64("2024-01-01", "ns") + np.arange(SHAPE[0]) * np.timedelta64(1, "D")
    lat = np.linspace(-90, 90, SHAPE[1])
    lon = np.linspace(-180, 180, SHAPE[2], endpoint=False)
    season = np.sin(2 * np.pi * np.arange(SHAPE[0]) / 365)[:, np.newaxis, np.newaxis]
    sst = 28 * np.cos(np.radians(lat))[:, np.newaxis] + season + np.cos(np.radians(3 * lon))
    sst[:, :, 300:360] = np.nan
    coordinates = {"time": time, "lat": lat, "lon": lon}
    return xr.Dataset({"sst": (tuple(coordinates), sst)}, coordinates)


def main() -> None:
    """Write the dataset; read slices with this package and zarr alone, print what each fetched."""
    # Chunks of a class that is not known are read whole, unless the class is named.
    zarr.config.set({"numcodecs_bytes.stores_with_ranges": [f"{__name__}.CountingStore"]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ocean.zarr")
        dataset = sea_surface_temperature()
        dataset.to_zarr(path, zarr_format=3, consolidated=False, encoding={"sst": ENCODING})
        document = json.loads(path.joinpath("sst/zarr.json").read_text())
        assert document["codecs"] == [ENCODING["serializer"]]
        stored = np.frombuffer(path.joinpath("sst/c/0/0/0").read_bytes(), ">i2")
        assert np.isclose(stored[0] * 0.01 + 15.0, dataset["sst"][0, 0, 0], atol=0.0051)
        print(f"{path.name}: sst, {' x '.join(map(str, SHAPE))}, int16, {document['codecs']}\n")

        print(f"{'selection':23}{'read by':37}{'requests':>9}{'bytes':>10}")
        for name, (select, expected_bytes) in SLICES.items():
            for chosen in ("numcodecs_bytes.zarr.BytesCodec", "zarr.codecs.bytes.BytesCodec"):
                store = CountingStore(path, read_only=True)
                with (
                    zarr.config.set({"codecs.bytes": chosen}),
                    xr.open_zarr(store, chunks=None, consolidated=False) as opened,
                ):
                    codec = type(opened["sst"].encoding["serializer"])
                    assert f"{codec.__module__}.{codec.__qualname__}" == chosen
                    assert store.num_requests == 0
                    values = select(opened["sst"]).load()
                # Packing rounds to 0.01 degrees.
                assert np.allclose(values, select(dataset["sst"]), atol=0.0051, equal_nan=True)
                if codec.__module__.startswith("numcodecs_bytes"):
                    assert store.num_bytes == expected_bytes
                else:
                    assert store.num_bytes >= 16 << 20
                print(f"{name:23}{chosen:37}{store.num_requests:>9}{store.num_bytes:>10}")


if __name__ == "__main__":
    main()
