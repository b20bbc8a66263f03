"""The entry point of zarr's data types: importing `zarr_data_types` registers all of them."""

import zarr.dtype

from numcodecs_bytes._entry_points import step_aside

__all__ = ["RawBits"]

try:
    from numcodecs_bytes.zarr_data_types import RawBits
except Exception as error:  # noqa: BLE001 # whatever it is, zarr must go on without us
    # zarr registers what it loads, so it gets a data type of its own.
    RawBits = zarr.dtype.Bool  # type: ignore[misc,assignment]
    step_aside("data types", error)
