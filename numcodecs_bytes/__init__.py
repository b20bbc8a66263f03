"""Partial reads of uncompressed Zarr chunks, and the ``bytes`` codec, for zarr and numcodecs.

Once this package is installed, zarr reads only the selected bytes of uncompressed chunks, through
`numcodecs_bytes.zarr_pipeline`; nothing has to be imported or set. `trace` counts what is fetched,
`why_read_whole` says why an array is not read in part, and `dask_chunks` chooses chunks for Dask.

The ``bytes`` codec is `Bytes` for numcodecs and Zarr v2, and
`numcodecs_bytes.zarr_codec.BytesCodec` for Zarr v3. This module imports neither the latter nor the
pipelines, so that using `Bytes` through numcodecs does not import zarr.
"""

import importlib
from typing import TYPE_CHECKING, Any

from numcodecs_bytes._runtime.traces import trace
from numcodecs_bytes._tools.dask_chunks import dask_chunks
from numcodecs_bytes.codec import Bytes

if TYPE_CHECKING:
    from numcodecs_bytes._tools.partial_reads import why_read_whole
    from numcodecs_bytes.sync_reader import SyncReader

__all__ = ["Bytes", "SyncReader", "__version__", "dask_chunks", "trace", "why_read_whole"]

__version__ = "0.1.0"

_MODULES = {"SyncReader": "sync_reader", "why_read_whole": "_tools.partial_reads"}
# The modules of what people look for here.
_ELSEWHERE = {"BytesCodec": "zarr_codec", "check": "check", "migrate": "migrate"}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import what imports zarr when it is first needed."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    module, how = f"{__name__}.{_ELSEWHERE.get(name)}", ""
    if name in _ELSEWHERE:
        how = f": import {module}, and call {module}.{name}(...)"
    if name == "BytesCodec":
        how += f"; or, for numcodecs and Zarr v2, call {__name__}.Bytes(...)"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{how}")
