"""BytesCodec, the ``bytes`` codec for zarr-python and thus for Zarr v3.

The array -> bytes codec of https://zarr-specs.readthedocs.io/en/latest/v3/codecs/bytes/ (1.0).
Configuration:

    {"name": "bytes", "configuration": {"endian": "little" | "big"}}

``endian`` is required if the data type has a byte order, and dropped if it has none. Once the
package is installed, zarr uses this class for every Zarr v3 array that it opens: importing this
module, as the entry points do, makes the class zarr's default.

Deviations from the specification, all of them to read what others wrote: the older codec name
``endian`` is read (and written as ``bytes``); structured types without ``endian`` are read as
little-endian, with zarr's own warning; bools other than 0x00 and 0x01 are read as true.
"""

import copy
import enum
import functools
import math
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import zarr
import zarr.codecs
import zarr.core.array_spec
import zarr.dtype
import zarr.registry
from zarr.core.buffer import cpu

from numcodecs_bytes._core.configuration import parse_configuration, parse_endian
from numcodecs_bytes._core.copy import as_bytes, as_numpy, decode_array, encode_array
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    ByteOrder,
    Endian,
    are_swapped_alike,
    byteswap_dtype,
    check_storable,
    has_byte_order,
    has_same_elements,
    leaf_dtypes,
    missing_endian,
    name_of_ml_dtype,
    stored_dtype,
)
from numcodecs_bytes._core.invalid_bytes import has_unused_bits
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._gpu.kernels import decode_on_device, encode_on_device
from numcodecs_bytes._runtime.threads import compute_pool, run_in_thread
from numcodecs_bytes._zarr_api.defaults import make_default, or_step_aside
from numcodecs_bytes._zarr_api.names import add_name_of_array
from numcodecs_bytes._zarr_api.options import warn_of_other_pipeline
from numcodecs_bytes._zarr_api.versions import HAS_STRUCT, STORES_KEEP_BUFFERS, check_class

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import ArrayLike, Buffer, NDArrayLike, NDBuffer
    from zarr.core.common import JSON


# Writing chunks of at least this size that need byte-swapping is 1.1 to 2 times as fast in threads
# (zarr's default pipeline, two cores). For chunks of half the size it makes no difference.
IN_A_THREAD_BYTES = 1 << 21
_ENDIAN_IF_MISSING = None if HAS_STRUCT else NATIVE_ENDIAN  # zarr 3.1.6 takes the machine's


class BytesCodec(zarr.codecs.BytesCodec):
    """Store the elements of a chunk as bytes, in C order and in the byte order of `endian`.

    A subclass of zarr's own codec, for which zarr's sharding and other code checks. The two compare
    equal if their `endian` is the same.

    For Zarr v2 arrays and numcodecs, use `numcodecs_bytes.Bytes`.

    Parameters
    ----------
    endian : {'little', 'big'} or None
        Byte order of the stored elements, by default the machine's; None only for data types
        without a byte order.

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

    # The `endian` that was given, even if `evolve_from_array_spec` drops it: zarr 3.1.6 evolves the
    # codec for the array's data type, whatever filters make of that.
    _declared_endian: Endian | None
    # Whether zarr's sharding may decode dense shards without the codec, which would return invalid
    # bools, and leave byte-swapping bfloat16 to ml_dtypes.
    is_fixed_size = True
    # The data type that `evolve_from_array_spec` was given, and the dtype and stored dtype of its
    # elements. zarr takes up to 1.3 us to make the dtype, as long as encoding a small chunk.
    _evolved: tuple[object, tuple[AnyDType, AnyDType] | None] = None, None
    # In the pipelines of this package, before zarr 3.3: whether zarr's copies may swap bytes, as
    # there is no filter; else the byte order that the filter takes, or None if that is not known.
    _copies_swap_bytes = False
    _filter_byte_order: ByteOrder | None = None

    def __init__(self, *, endian: enum.Enum | str | None = sys.byteorder) -> None:
        declared = parse_endian(endian.value if isinstance(endian, enum.Enum) else endian)
        super().__init__(endian=declared)
        vars(self)["_declared_endian"] = declared  # zarr's dataclass is frozen

    @classmethod
    def from_dict(cls, data: "Mapping[str, JSON]") -> Self:
        """Return the codec for an entry of `codecs` in Zarr v3 metadata."""
        if not isinstance(data, Mapping) or data.get("name") not in ("bytes", "endian"):
            raise ValueError(
                f"not the metadata of a bytes codec: got {data!r}, expected "
                '{"name": "bytes", "configuration": {"endian": "little" or "big"}}'
            )
        try:
            configuration = parse_configuration(data.get("configuration", {}), keys=("endian",))
            if HAS_STRUCT or data.get("configuration"):
                return cls(**configuration)
        except (TypeError, ValueError) as error:
            add_name_of_array(error)
            raise
        codec = cls()  # zarr 3.1.6 takes a missing endian to be that of the machine
        vars(codec)["_declared_endian"] = None
        return codec

    def to_dict(self) -> "dict[str, JSON]":
        """Return the codec's entry of `codecs` in Zarr v3 metadata."""
        if self.endian is None and self._declared_endian and not HAS_STRUCT:
            return {"name": "bytes", "configuration": {"endian": self._declared_endian}}
        return super().to_dict()

    def evolve_from_array_spec(self, array_spec: "ArraySpec") -> Self:
        """Return the codec for chunks of a data type, without `endian` if that has no effect.

        Raises ValueError if `endian` is missing and the data type has a byte order, and TypeError
        if it can't be stored: Python objects, for example.
        """
        dtype = array_spec.dtype.to_native_dtype()
        if dtype.kind == "T":
            return self  # zarr's own error names the codec that variable-length strings need
        warn_of_other_pipeline("used")
        try:
            check_storable(dtype)
            has_order = has_byte_order(dtype)
            endian = (self.endian or _assumed_endian(dtype)) if has_order else None
        except (TypeError, ValueError) as error:
            add_name_of_array(error)
            raise
        evolved = type(self)(endian=endian)  # a new one, as `self` may be the codec of other arrays
        if not has_order and dtype.kind != "b":  # other libraries would swap the bytes of bools
            vars(evolved)["_declared_endian"] = self._declared_endian
        if has_unused_bits(dtype) or any(map(name_of_ml_dtype, leaf_dtypes(dtype))):
            vars(evolved)["is_fixed_size"] = False
        vars(evolved)["_evolved"] = array_spec.dtype, evolved._dtypes(array_spec)
        return evolved

    def _decode_sync(self, chunk_bytes: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        raw = as_numpy(chunk_bytes.as_array_like())
        if not isinstance(raw, np.ndarray) and chunk_spec.prototype.nd_buffer is cpu.NDBuffer:
            raw = raw.get()  # the index of a shard, which zarr takes from all of it on a GPU
        dtype, stored = self._dtypes(chunk_spec)
        start = raw if isinstance(raw, np.ndarray) else b""
        shape = chunk_spec.shape
        check_length(raw.nbytes, shape, dtype, stored, "chunk", start=start, may_be_inner=True)
        if self._leaves_swap_to_copy(chunk_spec):
            dtype = dtype.newbyteorder(stored.byteorder)
        elif self._filter_byte_order and chunk_spec.prototype.nd_buffer is cpu.NDBuffer:
            dtype = dtype.newbyteorder(self._filter_byte_order)
        decode = decode_array if isinstance(raw, np.ndarray) else decode_on_device
        array: Any = decode(raw, stored, dtype).reshape(chunk_spec.shape)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(array)

    def _encode_sync(self, chunk_array: "NDBuffer", chunk_spec: "ArraySpec") -> "Buffer | None":
        array = as_numpy(chunk_array.as_ndarray_like())
        dtype, stored = self._dtypes(chunk_spec)
        # Data types other than the declared one are accepted if they are swapped alike: filters
        # return them (`bitround` floats as integers), and zarr's own codec stores them.
        if not has_same_elements(array.dtype, dtype) and not are_swapped_alike(array.dtype, dtype):
            raise TypeError(
                f"array does not fit the chunk: got data type {array.dtype}, expected {dtype} in "
                "either byte order; use filters that return this data type"
            )
        # The shapes may differ: some numcodecs filters flatten arrays in C order, or reshape them.
        if array.shape != chunk_spec.shape and array.size != math.prod(chunk_spec.shape):
            raise ValueError(
                f"array does not fit the chunk: got shape {array.shape}, expected "
                f"{chunk_spec.shape}; use filters that keep the number of elements"
            )
        if array.dtype != dtype:
            stored = self._stored_dtype(array.dtype)
        on_device = not isinstance(array, np.ndarray)
        raw: Any
        if on_device:
            raw = encode_on_device(array, stored)
        else:
            raw = as_bytes(encode_array(array, stored))
        if STORES_KEEP_BUFFERS and (on_device or np.may_share_memory(raw, array)):
            raw = raw.copy()
        return chunk_spec.prototype.buffer.from_array_like(raw)

    async def _decode_single(self, chunk_bytes: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        is_copied_later = self._leaves_swap_to_copy(chunk_spec)
        if is_copied_later or not self._takes_long(chunk_bytes.as_array_like(), chunk_spec):
            return self._decode_sync(chunk_bytes, chunk_spec)
        decode = functools.partial(self._decode_sync, chunk_bytes, chunk_spec)
        return await run_in_thread(compute_pool(), decode)

    async def _encode_single(
        self, chunk_array: "NDBuffer", chunk_spec: "ArraySpec"
    ) -> "Buffer | None":
        if not self._takes_long(chunk_array.as_ndarray_like(), chunk_spec):
            return self._encode_sync(chunk_array, chunk_spec)
        encode = functools.partial(self._encode_sync, chunk_array, chunk_spec)
        return await run_in_thread(compute_pool(), encode)

    def _takes_long(self, array: "ArrayLike | NDArrayLike", chunk_spec: "ArraySpec") -> bool:
        """Whether to decode or encode a chunk in a thread, so that others can use other cores."""
        # Arrays on a GPU stay here: CuPy's current device and stream are thread-local.
        if not isinstance(array, np.ndarray) or array.nbytes < IN_A_THREAD_BYTES:
            return False
        dtype, stored = self._dtypes(chunk_spec)
        return stored != byteswap_dtype(dtype)

    def for_filter(self, byte_order: ByteOrder | Literal[""]) -> Self:
        """Return the codec for a pipeline, given the byte order that the filter before it takes.

        It is "" if there is no filter: then zarr's copies swap bytes.
        """
        codec = copy.copy(self)  # `self` may be the codec of other pipelines
        vars(codec)["_copies_swap_bytes"] = not byte_order
        vars(codec)["_filter_byte_order"] = byte_order or None
        return codec

    def _leaves_swap_to_copy(self, chunk_spec: "ArraySpec") -> bool:
        """Whether elements are decoded to their stored byte order, which zarr's copy changes.

        Not if filters follow: those of numcodecs view elements as another data type.
        """
        if not self._copies_swap_bytes or chunk_spec.prototype.nd_buffer is not cpu.NDBuffer:
            return False  # CuPy has no other byte orders
        dtype, _ = self._dtypes(chunk_spec)
        # NumPy copies datetimes without a unit to a list of indices without swapping them.
        return dtype.kind in "iufcUmM" and dtype.str[1:] not in ("m8", "M8")

    def _dtypes(self, chunk_spec: "ArraySpec") -> tuple[AnyDType, AnyDType]:
        """Return the dtype of a chunk's elements in memory, and their stored dtype."""
        data_type, dtypes = self._evolved
        if dtypes and chunk_spec.dtype is data_type:
            return dtypes
        dtype = chunk_spec.dtype.to_native_dtype()
        return dtype, self._stored_dtype(dtype)

    def _stored_dtype(self, dtype: AnyDType) -> AnyDType:
        return stored_dtype(dtype, self._declared_endian or _ENDIAN_IF_MISSING)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, zarr.codecs.BytesCodec):
            return NotImplemented
        # zarr's sharding uses an evolved codec only if it differs from the original, so between two
        # codecs of this class, `is_fixed_size` matters. It does not for zarr's own codec.
        return self.endian == other.endian and (
            not isinstance(other, BytesCodec) or self.is_fixed_size == other.is_fixed_size
        )

    __hash__ = zarr.codecs.BytesCodec.__hash__

    def __repr__(self) -> str:
        endian = getattr(self.endian, "value", self.endian)  # an Enum on zarr 3.1.6
        return f"{type(self).__name__}(endian={endian!r})"


def _assumed_endian(dtype: AnyDType) -> Endian:
    """Return the `endian` of structures stored without one, warning as zarr does; else raise."""
    if dtype.names is None:
        raise missing_endian(dtype)
    if HAS_STRUCT:
        warnings.warn(
            "Missing 'endian' for structured dtype with multi-byte fields. "
            f"Assuming little-endian for {dtype}; add endian to the metadata.",
            UserWarning,
            stacklevel=3,
        )
    return "little"


def _use_by_default() -> None:
    """Make zarr use `BytesCodec` for "bytes", and for "endian" unless "bytes" is set otherwise."""
    ours = f"{BytesCodec.__module__}.{BytesCodec.__qualname__}"
    for name in ("bytes", "endian"):
        zarr.registry.register_codec(name, BytesCodec)
    with or_step_aside("arrays"):  # who names the codec in zarr's config gets it all the same
        chosen = zarr.config.collect().get("codecs", {}).get("bytes", ours)
        for name in ("bytes", "endian") if chosen == ours else ("bytes",):
            make_default("codecs", name, ours)


_OVERRIDDEN = ("evolve_from_array_spec", "_decode_sync", "_encode_sync", "is_fixed_size")
check_class(BytesCodec, _OVERRIDDEN)
check_class(zarr.core.array_spec.ArraySpec, ("shape", "dtype", "prototype"))
check_class(zarr.dtype.ZDType, ("to_native_dtype",))
_use_by_default()
