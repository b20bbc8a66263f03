"""Store a NetCDF-3 variable as Zarr v2 and v3 arrays in both byte orders, and read them back.

The data: daily mean insolation at the top of the atmosphere, in W/m2, for every day of the year
and every degree of latitude. It is written to a NetCDF-3 file first, whose variables are
big-endian and uncompressed, as decades of climate data are.

Nothing below imports numcodecs_bytes: that it is installed is enough.
"""

import struct
import tempfile
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from scipy.io import netcdf_file

CHUNKS = (73, 181)


def insolation() -> np.ndarray:
    """Return the daily mean insolation in W/m2, shape (365 days, 181 degrees of latitude)."""
    day = np.arange(1, 366)[:, np.newaxis]
    latitude = np.radians(np.linspace(-90, 90, 181))
    declination = np.radians(23.44) * np.sin(2 * np.pi * (day - 81) / 365)
    distance = 1 + 0.033 * np.cos(2 * np.pi * day / 365)
    # The hour angle of sunset; clipped, it is polar night (0) or polar day (pi).
    sunset = np.arccos(np.clip(-np.tan(latitude) * np.tan(declination), -1, 1))
    sine = np.sin(latitude) * np.sin(declination)
    cosine = np.cos(latitude) * np.cos(declination)
    return 1361 / np.pi * distance * (sunset * sine + cosine * np.sin(sunset))


def write_netcdf(path: Path) -> None:
    """Write the insolation to a NetCDF-3 file."""
    with netcdf_file(path, "w") as file:
        file.createDimension("day", 365)
        file.createDimension("latitude", 181)
        variable = file.createVariable("insolation", "f4", ("day", "latitude"))
        variable.units = "W/m2"
        variable[:] = insolation()


def class_of(codec: object) -> str:
    """Return the module and name of a codec's class."""
    return f"{type(codec).__module__}.{type(codec).__qualname__}"


def main() -> None:
    """Store, read back, compare, and print what was stored how and which class read it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "insolation.nc")
        write_netcdf(source)
        with netcdf_file(source, mmap=False) as file:
            data = file.variables["insolation"][:]
        assert data.dtype == ">f4"
        assert 0 <= data.min() < data.max() < 600
        print(f"{source.name}: insolation, {data.dtype}, {data.shape[0]} x {data.shape[1]}\n")

        rows = [("Zarr", "endian", "dtype", "bytes on disk", "first value", "read by")]
        for endian in ("big", "little"):
            path = Path(folder, f"v3-{endian}.zarr")
            array = zarr.create_array(
                path,
                shape=data.shape,
                chunks=CHUNKS,
                dtype="float32",
                compressors=None,
                serializer={"name": "bytes", "configuration": {"endian": endian}},
            )
            array[:] = data
            opened = zarr.open_array(path)
            codec = opened.metadata.codecs[0]
            rows.append(check("v3", endian, opened, path / "c", "0/0", data, codec))

            path = Path(folder, f"v2-{endian}.zarr")
            array = zarr.create_array(
                path,
                shape=data.shape,
                chunks=CHUNKS,
                dtype=data.dtype,
                zarr_format=2,
                compressors=None,
                filters=[
                    numcodecs.get_codec({"id": "bytes", "endian": endian, "dtype": data.dtype.str})
                ],
            )
            array[:] = data
            opened = zarr.open_array(path)
            rows.append(check("v2", endian, opened, path, "0.0", data, opened.filters[0]))

        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip())


def check(
    version: str,
    endian: str,
    opened: zarr.Array,
    chunks: Path,
    first: str,
    data: np.ndarray,
    codec: object,
) -> tuple[str, ...]:
    """Assert that the array reads back and lies on disk as declared; return a table row."""
    assert class_of(codec).startswith("numcodecs_bytes.")
    assert np.array_equal(opened[:], data)
    assert np.array_equal(opened[100:110, 90], data[100:110, 90])

    stored = (chunks / first).read_bytes()
    values = data[: CHUNKS[0], : CHUNKS[1]].ravel().tolist()
    assert stored == struct.pack(f"{'>' if endian == 'big' else '<'}{len(values)}f", *values)
    num_bytes = sum(p.stat().st_size for p in chunks.rglob("*[0-9]") if p.is_file())
    assert num_bytes == data.nbytes
    dtype = opened.dtype.str
    return version, endian, dtype, str(num_bytes), stored[:4].hex(" "), class_of(codec)


if __name__ == "__main__":
    main()
