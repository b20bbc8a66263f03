"""The Zarr ``bytes`` codec, for numcodecs (`Bytes`) and for zarr-python.

The zarr-python codec is `numcodecs_bytes.zarr.BytesCodec`. It is not imported here, so that using
`Bytes` through numcodecs does not import zarr.
"""

from numcodecs_bytes._dask_chunks import dask_chunks
from numcodecs_bytes._trace import trace
from numcodecs_bytes.codec import Bytes

__all__ = ["Bytes", "__version__", "dask_chunks", "trace"]

__version__ = "0.1.0"
