"""Entry point of zarr's data types: importing `zarr_data_types` registers all of them."""

import zarr.dtype

from numcodecs_bytes._host.defaults import step_aside

__all__ = ["RawBits"]

try:
    from numcodecs_bytes.zarr_data_types import RawBits
except Exception as error:  # noqa: BLE001 # zarr must keep working without us
    # zarr registers whatever it loads here, so give it one of its own data types.
    RawBits = zarr.dtype.Bool  # type: ignore[misc,assignment]
    step_aside("data types", error)
