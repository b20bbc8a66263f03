"""Differences between the supported versions of zarr: 3.1.6 and newer.

User-visible differences are in ``docs/limits.md``.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import zarr
import zarr.abc.codec
import zarr.codecs
import zarr.core.codec_pipeline
import zarr.dtype
import zarr.errors

# New in 3.2: the data type `struct`. 3.1.6 has only `structured`, which is little-endian. 3.1.6
# treats a missing `endian` in metadata as native, evolves codecs for the array's data type, even if
# filters change that, and writes the metadata of the evolved codecs.
HAS_STRUCT = hasattr(zarr.dtype, "Struct")

# New in 3.3.
FusedCodecPipeline: Any = getattr(zarr.core.codec_pipeline, "FusedCodecPipeline", None)

# Before 3.3, MemoryStore keeps the buffer that it is given without copying it. If encoding did not
# copy either, that buffer is the caller's array (zarr-python#4156).
STORES_KEEP_BUFFERS = FusedCodecPipeline is None

# Before 3.3, zarr's codec `bytes` swaps no bytes when it decodes: the copy to the output does.
COPIES_SWAP_BYTES = FusedCodecPipeline is None

# New in 3.2: pipelines return whether each chunk exists.
HAS_RESULTS = hasattr(zarr.abc.codec, "GetResult")

_pipelines: Any = zarr.core.codec_pipeline  # newer versions define it elsewhere, and import it
fill_value_or_default = _pipelines.fill_value_or_default


# 3.1.6 has this in `zarr.dtype`.
_errors: Any = zarr.errors if hasattr(zarr.errors, "DataTypeValidationError") else zarr.dtype
DataTypeValidationError: type[ValueError] = _errors.DataTypeValidationError


def concurrency() -> int | None:
    """Return how many requests zarr makes at once; None if it sets no limit."""
    # A key may be missing while another thread changes the config (zarr-python#3547).
    limit = zarr.config.get("async.concurrency", 10)
    return limit if isinstance(limit, int | None) else 10  # where zarr uses it, it raises


def check_class(checked: type, needed: Iterable[str] = ()) -> None:
    """Raise TypeError unless a class of zarr, or one derived from it, is as we know it.

    The methods that are overridden must have the same positional parameters as ours, and be
    asynchronous if ours are. zarr's class must have attributes of the names in `needed`.
    """
    own = [kind for kind in checked.__mro__ if kind.__module__.startswith("numcodecs_bytes.")]
    theirs = [kind for kind in checked.__mro__ if kind not in own]
    inherited: dict[str, Any] = {}
    for kind in reversed(theirs):
        inherited |= vars(kind).get("__dataclass_fields__", {}) | vars(kind)
    if missing := [name for name in needed if name not in inherited]:
        raise TypeError(f"zarr's {checked.__name__} lacks {', '.join(missing)}")
    for name in {name for kind in own for name in vars(kind) if not name.startswith("__")}:
        expected, form = _form_of(getattr(checked, name)), _form_of(inherited.get(name))
        if form and expected and form != expected:
            raise TypeError(f"zarr's {name} is {form}, but {checked.__name__} expects {expected}")


def _form_of(method: Any) -> str:
    """Return the positional parameters of a method, and whether it is asynchronous, or ""."""
    function = getattr(method, "__func__", method)  # of a classmethod
    if not inspect.isfunction(function):
        return ""
    parameters = inspect.signature(function).parameters.values()
    kinds = {each.kind for each in parameters}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return ""  # a wrapper that passes everything on
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return f"{'async ' * inspect.iscoroutinefunction(function)}({', '.join(names)})"


def has_index_checksum(codec: Any) -> bool:
    """Whether the index of a shard ends with its checksum."""
    return type(codec.index_codecs[-1]) is zarr.codecs.Crc32cCodec
