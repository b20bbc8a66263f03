"""Entry point of zarr's data types: importing `zarr_data_types` registers all of them."""

import zarr.dtype

from numcodecs_bytes._zarr_api.defaults import or_step_aside

__all__ = ["RawBits"]

RawBits: type = zarr.dtype.Bool  # zarr registers whatever it loads here
with or_step_aside("data types"):
    from numcodecs_bytes.zarr_data_types import RawBits
