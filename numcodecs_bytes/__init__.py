"""The Zarr ``bytes`` codec, for numcodecs (`Bytes`) and for zarr-python.

The zarr-python codec is `numcodecs_bytes.zarr.BytesCodec`. It is not imported here, so that using
`Bytes` through numcodecs does not import zarr.
"""

from numcodecs_bytes.codec import Bytes

__all__ = ["Bytes", "__version__"]

__version__ = "0.1.0"
