"""Write a packed, big-endian dataset with xarray; read slices of it, fetching only their bytes.

Sea surface temperature is packed into int16 by the CF attributes `scale_factor`, `add_offset` and
`_FillValue`, as in many climate archives, and stored uncompressed in two chunks of 16 MiB. The key
`serializer` of `encoding` chooses the codec. xarray reads only what is selected, and then decodes.

Installing numcodecs_bytes is enough; it is imported below only to count.

Needs ``pip install ".[examples]"``.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
import zarr

import numcodecs_bytes

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
SLICES = {
    "one day": lambda sst: sst.sel(time="2024-02-10"),
    "a parallel on one day": lambda sst: sst.isel(time=40, lat=100),
    # The rows of the box are so close together that one read fetches everything between them, too.
    "a box, mean over it": lambda sst: sst.sel(
        time="2024-01-05", lat=slice(30, 46), lon=slice(-10, 36)
    ).mean(),
    "one place, all times": lambda sst: sst.sel(lat=0, lon=-30, method="nearest"),
    "three places and days": lambda sst: sst.isel(time=SOME_DAYS, lat=SOME_ROWS, lon=SOME_ROWS),
}


def sea_surface_temperature() -> xr.Dataset:
    """Return 64 days of it in degrees Celsius, warm at the equator, without values on land."""
    time = np.datetime64("2024-01-01", "ns") + np.arange(SHAPE[0]) * np.timedelta64(1, "D")
    lat = np.linspace(-90, 90, SHAPE[1])
    lon = np.linspace(-180, 180, SHAPE[2], endpoint=False)
    season = np.sin(2 * np.pi * np.arange(SHAPE[0]) / 365)[:, np.newaxis, np.newaxis]
    sst = 28 * np.cos(np.radians(lat))[:, np.newaxis] + season + np.cos(np.radians(3 * lon))
    sst[:, :, 300:360] = np.nan
    coordinates = {"time": time, "lat": lat, "lon": lon}
    return xr.Dataset({"sst": (tuple(coordinates), sst)}, coordinates)


def main() -> None:
    """Write the dataset; read slices, and print what each fetched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ocean.zarr")
        dataset = sea_surface_temperature()
        dataset.to_zarr(path, zarr_format=3, consolidated=False, encoding={"sst": ENCODING})
        document = json.loads(path.joinpath("sst/zarr.json").read_text())
        assert document["codecs"] == [ENCODING["serializer"]]
        stored = np.frombuffer(path.joinpath("sst/c/0/0/0").read_bytes(), ">i2")
        assert np.isclose(stored[0] * 0.01 + 15.0, dataset["sst"][0, 0, 0], atol=0.0051)
        print(f"{path.name}: sst, {' x '.join(map(str, SHAPE))}, int16, {document['codecs']}\n")

        print(f"{'selection':23}{'requests':>9}{'bytes':>10}")
        with xr.open_zarr(path, chunks=None, consolidated=False) as opened:
            for name, select in SLICES.items():
                with numcodecs_bytes.trace() as traced:
                    values = select(opened["sst"]).load()
                # Packing rounds to 0.01 degrees.
                assert np.allclose(values, select(dataset["sst"]), atol=0.0051, equal_nan=True)
                total = traced.report()["total"]
                assert total["bytes_fetched"] <= total["bytes_zarr_alone"] // 4
                print(f"{name:23}{total['requests']:>9}{total['bytes_fetched']:>10,}")
        print(f"\nread by {zarr.config.get('codec_pipeline.path')}, from chunks of 16 MiB")


if __name__ == "__main__":
    main()
