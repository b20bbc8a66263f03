"""BytesCodec, the ``bytes`` codec for zarr-python and so for Zarr v3.

The array -> bytes codec of https://zarr-specs.readthedocs.io/en/latest/v3/codecs/bytes/ (1.0).
Configuration::

    {"name": "bytes", "configuration": {"endian": "little" | "big"}}

``endian`` is required where the data type has a byte order and dropped where it has none.
Installing the package is enough to have zarr use this class for every array that it opens.

Deviations from the specification, all towards reading what others wrote: the older name ``endian``
is read (and written as ``bytes``); structured types without ``endian`` are taken as little endian,
with zarr's own warning; bools other than 0x00 and 0x01 are read as true.
"""

import enum
import math
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zarr
import zarr.codecs
import zarr.dtype

from numcodecs_bytes._copy import as_bytes, decode_array, encode_array
from numcodecs_bytes._data_type import (
    AnyDType,
    check_storable,
    has_bool,
    has_byte_order,
    has_same_elements,
    missing_endian,
    parse_configuration,
    parse_endian,
    stored_dtype,
)

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.common import JSON

# Before 3.3, zarr's MemoryStore keeps the very buffer that it is given, and so the caller's array
# where nothing had to be copied on the way (zarr-python#4156).
_STORES_KEEP_BUFFERS = tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 3)

# zarr 3.1.6 evolves codecs for the array's data type, whatever its filters make of it, and writes
# what they evolved to.
_DROPS_ENDIAN_BEFORE_FILTERS = not hasattr(zarr.dtype, "Struct")

# zarr warns of a structured type without `endian` since it has the data type `struct`; zarr 3.1.6
# wrote such arrays itself.
_WARNS_OF_STRUCT_WITHOUT_ENDIAN = hasattr(zarr.dtype, "Struct")


class BytesCodec(zarr.codecs.BytesCodec):
    """Store the elements of a chunk as bytes, in C order and in the byte order of `endian`.

    A subclass of zarr's own codec, because zarr's sharding and others ask for that class, and equal
    to it where the `endian` is the same.

    Parameters
    ----------
    endian : {'little', 'big'} or None
        Byte order of the stored elements, by default the machine's. None: not given, for data
        types without byte order.

    Raises
    ------
    TypeError
        If `endian` is no string.
    ValueError
        If `endian` is another string.

    Examples
    --------
    >>> import zarr
    >>> array = zarr.create_array(
    ...     {}, shape=(2, 2), dtype="int16", compressors=None, serializer=BytesCodec(endian="big")
    ... )
    >>> array[:] = [[1, 2], [3, 4]]
    >>> array.serializer
    BytesCodec(endian='big')
    """

    # The declared byte order where `evolve_from_array_spec` dropped it, because the array's data
    # type has none: zarr 3.1.6 does that even where a filter hands the codec another data type.
    _dropped_endian: Any = None

    def __init__(self, *, endian: Any = sys.byteorder) -> None:
        parse_endian(endian.value if isinstance(endian, enum.Enum) else endian)
        super().__init__(endian=endian)

    @classmethod
    def from_dict(cls, data: "Mapping[str, JSON]") -> Self:
        """Return the codec that an entry of `codecs` in Zarr v3 metadata describes."""
        if not isinstance(data, Mapping) or data.get("name") not in ("bytes", "endian"):
            raise ValueError(
                f"no metadata of the bytes codec: got {data!r}, expected "
                '{"name": "bytes", "configuration": {"endian": "little" or "big"}}'
            )
        return cls(**parse_configuration(data.get("configuration", {}), known=("endian",)))

    def to_dict(self) -> "dict[str, JSON]":
        """Return the codec's entry of `codecs` in Zarr v3 metadata."""
        if self.endian is None and self._dropped_endian and _DROPS_ENDIAN_BEFORE_FILTERS:
            return {"name": "bytes", "configuration": {"endian": self._dropped_endian}}
        return super().to_dict()

    def evolve_from_array_spec(self, array_spec: "ArraySpec") -> Self:
        """Return the codec for chunks of a data type: `endian` where it counts, else without.

        Raises
        ------
        ValueError
            If `endian` is missing and the data type has a byte order.
        TypeError
            If the data type holds Python objects.
        """
        dtype = array_spec.dtype.to_native_dtype()
        if dtype.kind == "T":
            return self  # zarr itself names the codec that variable-length strings need
        check_storable(dtype)
        evolved = self
        if not has_byte_order(dtype):
            evolved = type(self)(endian=None)
            object.__setattr__(evolved, "_dropped_endian", self._endian or self._dropped_endian)
        elif self.endian is None:
            if dtype.names is None:
                raise missing_endian(dtype)
            if _WARNS_OF_STRUCT_WITHOUT_ENDIAN:
                warnings.warn(
                    "Missing 'endian' for structured dtype with multi-byte fields. "
                    f"Assuming little-endian for {dtype}; add endian to the metadata.",
                    UserWarning,
                    stacklevel=2,
                )
            evolved = type(self)(endian="little")
        if has_bool(dtype):
            # zarr's sharding reads dense shards of a fixed-size BytesCodec without calling it, and
            # so would pass invalid bools on.
            object.__setattr__(evolved, "is_fixed_size", False)
        return evolved

    def _decode_sync(self, chunk_bytes: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        raw = chunk_bytes.as_array_like()
        if not isinstance(raw, np.ndarray):
            return super()._decode_sync(chunk_bytes, chunk_spec)
        dtype = chunk_spec.dtype.to_native_dtype()
        stored = self._stored_dtype(dtype)
        expected = math.prod(chunk_spec.shape) * stored.itemsize
        if raw.nbytes != expected:
            raise ValueError(
                f"chunk holds {raw.nbytes} bytes, expected {expected} for shape "
                f"{chunk_spec.shape} of {dtype}; it may be "
                f"{'truncated' if raw.nbytes < expected else 'of another shape or compressed'}"
            )
        # Not a lazily swapped view: numcodecs filters view what they get as their own dtype.
        array: Any = decode_array(raw, stored, dtype).reshape(chunk_spec.shape)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(array)

    def _encode_sync(self, chunk_array: "NDBuffer", chunk_spec: "ArraySpec") -> "Buffer | None":
        array = chunk_array.as_ndarray_like()
        if not isinstance(array, np.ndarray):
            return super()._encode_sync(chunk_array, chunk_spec)
        dtype = chunk_spec.dtype.to_native_dtype()
        stored = self._stored_dtype(dtype)
        if isinstance(array.base, np.ndarray) and has_same_elements(array.base.dtype, dtype):
            # numcodecs' BitRound hands on floats viewed as integers.
            array = array.view(array.base.dtype)
        if not has_same_elements(array.dtype, dtype):
            raise TypeError(
                f"array does not fit the chunk: got data type {array.dtype}, expected {dtype} in "
                "either byte order; convert it with astype"
            )
        # numcodecs filters flatten what they encode, in C order.
        if array.shape not in (chunk_spec.shape, (math.prod(chunk_spec.shape),)):
            raise ValueError(
                f"array does not fit the chunk: got shape {array.shape}, expected "
                f"{chunk_spec.shape}; transpose or reshape it"
            )
        raw: Any = as_bytes(encode_array(array, stored))
        if _STORES_KEEP_BUFFERS and np.may_share_memory(raw, array):
            raw = raw.copy()
        return chunk_spec.prototype.buffer.from_array_like(raw)

    @property
    def _endian(self) -> Any:
        """'little', 'big' or None; on zarr 3.1.6 `endian` is an Enum."""
        return getattr(self.endian, "value", self.endian)

    def _stored_dtype(self, dtype: AnyDType) -> AnyDType:
        return stored_dtype(dtype, self._endian or self._dropped_endian)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, zarr.codecs.BytesCodec):
            return NotImplemented
        # Between two of this class `is_fixed_size` counts: zarr's sharding takes an evolved codec
        # only where it differs from the one before. Never against zarr's own.
        return self.endian == other.endian and (
            not isinstance(other, BytesCodec) or self.is_fixed_size == other.is_fixed_size
        )

    __hash__ = zarr.codecs.BytesCodec.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}(endian={self._endian!r})"
