"""What differs between the versions of zarr that are supported: 3.1.6, and 3.4 and newer."""

from typing import Any

import zarr
import zarr.core.codec_pipeline
import zarr.dtype
import zarr.errors

# The data type `struct`, with zarr's warning where a structure has no `endian`; 3.1.6 has
# `structured` alone, which is little endian.
HAS_STRUCT = hasattr(zarr.dtype, "Struct")

# 3.1.6 evolves codecs for the array's data type, whatever its filters make of it, and writes the
# metadata of the evolved codecs.
DROPS_ENDIAN_BEFORE_FILTERS = not HAS_STRUCT

# 3.1.6 reads metadata without `endian` in the byte order of the machine.
MISSING_ENDIAN_IS_NATIVE = not HAS_STRUCT

# Before 3.3, MemoryStore keeps the very buffer that it is given, and so the caller's array where
# nothing had to be copied on the way (zarr-python#4156).
STORES_KEEP_BUFFERS = tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 3)

# Since 3.2.
FusedCodecPipeline: Any = getattr(zarr.core.codec_pipeline, "FusedCodecPipeline", None)

# 3.1.6 has it among the data types.
DataTypeValidationError: Any = (
    zarr.errors if hasattr(zarr.errors, "DataTypeValidationError") else zarr.dtype
).DataTypeValidationError
