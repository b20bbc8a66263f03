"""What zarr loads through its entry points: the classes of zarr_data_types.

zarr loads all of them when it first needs a data type, whichever that is. This runs in every zarr
program of the environment, so it never fails: on a zarr that is not the one we know it hands back a
data type that zarr has anyway, with one warning.
"""

from typing import Any

import zarr.dtype

from numcodecs_bytes._step_aside import step_aside

_data_types: Any = None
try:
    from numcodecs_bytes import zarr_data_types as _data_types
except Exception as error:  # noqa: BLE001 # whatever it is, zarr must go on without us
    step_aside("data types", error)


def __getattr__(name: str) -> Any:
    return zarr.dtype.Bool if _data_types is None else getattr(_data_types, name)
