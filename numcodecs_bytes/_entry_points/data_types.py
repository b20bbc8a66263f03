"""Entry point of zarr's data types: importing `zarr_data_types` registers all of them."""

import zarr.dtype

from numcodecs_bytes._host.defaults import step_aside

__all__ = ["RawBits"]

RawBits: type = zarr.dtype.Bool  # zarr registers whatever it loads here
try:
    from numcodecs_bytes.zarr_data_types import RawBits
except Exception as error:  # noqa: BLE001 # zarr must keep working without us
    step_aside("data types", error)
