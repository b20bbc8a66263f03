"""Bytes, the ``bytes`` codec for numcodecs and so for Zarr v2.

Stores the elements of an array in lexicographical (C) order, each in the byte order of ``endian``:
the ``bytes`` codec 1.0 of Zarr v3, https://zarr-specs.readthedocs.io/en/latest/v3/codecs/bytes/.

Configuration:

    {"id": "bytes", "endian": "little" | "big", "dtype": "<f8" | [["name", "<i4"], ...]}

Without ``endian`` only data types without byte order are stored. ``dtype`` is the data type of the
decoded elements, as Zarr v2 metadata write it (not in the specification, where the array's own
metadata say it). Without it the codec can't know the size of an element when it decodes, and
raises wherever a wrong guess would read back wrong values.
"""

import array
from collections.abc import Mapping
from typing import Any, Self, cast

import numcodecs.abc
import numpy as np
from numcodecs.compat import ensure_ndarray

from numcodecs_bytes._configuration import (
    dtype_to_json,
    parse_configuration,
    parse_dtype,
    parse_endian,
)
from numcodecs_bytes._copy import as_bytes, decode_array, decode_into, encode_array, is_column_major
from numcodecs_bytes._dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    Array,
    Endian,
    check_storable,
    has_byte_order,
    has_same_elements,
    pack_dtype,
    stored_dtype,
)
from numcodecs_bytes._unused_bits import has_invalid_bytes


class Bytes(numcodecs.abc.Codec):  # type: ignore[misc] # numcodecs has no types
    """Store the elements of an array as bytes, in C order and in the byte order of `endian`.

    Parameters
    ----------
    endian : {'little', 'big'} or None, default 'little'
        Byte order of the stored elements. None: not given, for data types without byte order.
    dtype : dtype-like or list, optional
        Data type of the decoded elements, its byte order included: anything that NumPy takes, the
        lists ``[name, type]`` and ``[name, type, shape]`` of Zarr v2, or a registered name such as
        ``"bfloat16"`` (of the package ml_dtypes) or ``"r16"`` (raw bytes). In a Zarr v2 array, the
        array's own dtype.

    Raises
    ------
    TypeError
        If `endian` is no string, or `dtype` no data type of fixed size.
    ValueError
        If `endian` is another string, or `dtype` a string type without length.
    ImportError
        If `dtype` is a type of ml_dtypes, which is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> codec = Bytes(endian="big", dtype="<u2")
    >>> bytes(codec.encode(np.array([[1, 2], [3, 4]], "<u2"))).hex(" ", 2)
    '0001 0002 0003 0004'
    >>> codec.decode(bytes.fromhex("0001 0002 0003 0004"))
    array([1, 2, 3, 4], dtype=uint16)
    >>> codec
    Bytes(endian='big', dtype='<u2')
    """

    codec_id = "bytes"

    def __init__(self, endian: Endian | None = "little", dtype: Any = None) -> None:
        self.endian = parse_endian(endian)
        self.dtype: AnyDType | None = None if dtype is None else parse_dtype(dtype)

    def encode(self, buf: Any) -> Array:
        """Return the stored bytes of an array.

        Parameters
        ----------
        buf : array or buffer
            An array of any shape and layout. With `dtype` given: of exactly that dtype (padding
            aside), or bytes or uint8, which are read as the memory of such elements. Without
            `dtype`: native byte order, or one that is stored as it is.

        Returns
        -------
        numpy.ndarray
            Flat uint8, shape ``(num_bytes,)``. From a column-major array: a column-major array of
            the same shape in the stored byte order, so that its memory order is kept, as Zarr v2
            arrays of ``order: "F"`` need it; ``bytes()`` of it is in C order all the same. Shares
            memory with `buf` where no byte has to move.

        Raises
        ------
        TypeError
            If the array is not of `dtype`, or of a data type that can't be stored.
        ValueError
            If `endian` is missing, bytes are no whole number of elements, or the result could not
            be decoded again without `dtype`.

        Examples
        --------
        >>> bytes(Bytes("big").encode(np.array([1, 256], "u2"))).hex(" ")
        '00 01 01 00'
        """
        elements = self._elements(buf)
        stored = stored_dtype(elements.dtype, self.endian)
        if not is_column_major(elements):
            return as_bytes(encode_array(elements, stored))
        return encode_array(elements.T, stored).T

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the elements that the stored bytes hold.

        Parameters
        ----------
        buf : array or buffer
            The stored bytes. An array is read in its memory order, as numcodecs does.
        out : array or writable buffer, optional
            Filled and returned, in its own memory order: a column-major one column by column. The
            bytes of a column-major *array* fit it, ``bytes()`` of such an array (C order) don't.
            Without `dtype`, its data type tells what the elements are, unless it is untyped:
            uint8, raw bytes, or a plain buffer.

        Returns
        -------
        numpy.ndarray or `out`
            Flat, shape ``(num_elements,)``, of exactly `dtype` (without `dtype`: the bytes as
            uint8). Shares memory with `buf` where no byte has to move, and is then read-only
            where `buf` is. A bool is true where its byte is not 0.

        Raises
        ------
        TypeError
            If `out` has elements of another type.
        ValueError
            If the bytes are too few or too many, `out` can't be written, `endian` is missing, or
            only `dtype` could tell what to swap.

        Examples
        --------
        >>> Bytes("big").decode(bytes.fromhex("00 01 01 00"), out=np.empty((1, 2), "u2"))
        array([[  1, 256]], dtype=uint16)
        """
        raw = _stored_bytes(buf)
        if out is None:
            if self.dtype is None:
                self._check_untyped()
                return raw
            stored = stored_dtype(self.dtype, self.endian)
            self._check_whole(raw, stored.itemsize)
            return decode_array(raw, stored, self.dtype)
        target = self._target(out)
        stored = stored_dtype(target.dtype if self.dtype is None else self.dtype, self.endian)
        expected = target.size * stored.itemsize
        if raw.size != expected:
            raise ValueError(
                f"the stored bytes do not fit out: got {raw.size} bytes, expected {expected} for "
                f"shape {target.shape} of {target.dtype}; the chunk may be damaged, or out of "
                "another shape"
            )
        decode_into(raw, stored, target)
        return out

    def get_config(self) -> dict[str, Any]:
        """Return the configuration as JSON, without what is not set."""
        config: dict[str, Any] = {"id": self.codec_id}
        if self.endian is not None:
            config["endian"] = self.endian
        if self.dtype is not None:
            config["dtype"] = dtype_to_json(self.dtype)
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the codec of a configuration; without `endian` it is not given, not 'little'."""
        configuration = parse_configuration(config, known=("id", "endian", "dtype"))
        return cls(configuration["endian"], configuration.get("dtype"))

    def __repr__(self) -> str:
        dtype = "" if self.dtype is None else f", dtype={dtype_to_json(self.dtype)!r}"
        return f"{type(self).__name__}(endian={self.endian!r}{dtype})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _elements(self, buf: Any) -> Array:
        """Return the input as an array of elements that this codec can encode."""
        elements = _as_array(buf)
        check_storable(elements.dtype)
        if self.dtype is None:
            self._check_can_be_decoded(buf, elements)
            return elements
        if pack_dtype(elements.dtype) == pack_dtype(self.dtype):
            return elements
        if elements.dtype != np.uint8:
            raise TypeError(
                f"the array's data type is not that of the codec: got {elements.dtype}, expected "
                f"{self.dtype}; convert the array with astype, or set dtype in the configuration "
                "of the bytes codec to the array's"
            )
        raw = _stored_bytes(elements)
        self._check_whole(raw, self.dtype.itemsize)
        viewed: Array = raw.view(self.dtype)
        if has_invalid_bytes(viewed):
            raise ValueError(
                f"the bytes are not the memory of {self.dtype}: got a byte that is no value of it, "
                "such as 2 for a bool, expected elements; if a codec before this one made them, "
                'set dtype in the configuration of the bytes codec to "|u1"'
            )
        return viewed

    def _check_can_be_decoded(self, buf: Any, elements: Array) -> None:
        """Raise where a codec without dtype would store what it can't give back."""
        dtype = elements.dtype
        is_array = isinstance(buf, (np.ndarray, np.generic, array.array)) or dtype.itemsize > 1
        if is_array and has_byte_order(dtype):
            native = dtype.newbyteorder("=")
            if self.endian is not None and dtype not in (native, dtype.newbyteorder(self.endian)):
                raise ValueError(
                    f"the byte order of the array would be lost: got {dtype} to be stored as "
                    f"{self.endian} endian without dtype, expected native byte order; add "
                    f'"dtype": {dtype_to_json(pack_dtype(dtype))!r} to the configuration of the '
                    "bytes codec"
                )
        else:
            self._check_untyped()

    def _check_untyped(self) -> None:
        """Raise unless bytes of unknown elements are stored as they are in memory."""
        if self.endian not in (None, NATIVE_ENDIAN):
            raise ValueError(
                f"the bytes codec can't swap bytes of unknown elements: got {self.endian} endian "
                f"without dtype on a {NATIVE_ENDIAN} endian machine, expected dtype in its "
                "configuration (for a Zarr v2 array: in .zarray, the array's own dtype) or, when "
                "decoding, an out of that dtype"
            )

    def _check_whole(self, raw: Array, item_size: int) -> None:
        if raw.size % item_size:
            raise ValueError(
                f"the bytes are no whole number of elements: got {raw.size} bytes, expected a "
                f"multiple of {item_size} for {self.dtype}; they may be truncated"
            )

    def _target(self, out: Any) -> Array:
        """Return out as an array of the elements that it is to hold."""
        target = _as_array(out)
        if isinstance(out, np.generic) or not target.flags.writeable:
            raise ValueError(
                f"out must be writable, got a read-only {type(out).__name__}; pass a copy"
            )
        dtype = target.dtype
        check_storable(dtype)
        if dtype == np.uint8 or (dtype.type is np.void and dtype.names is None):
            if self.dtype is None:
                self._check_untyped()
                return target
            return self._untyped_target(target, self.dtype)
        if self.dtype is None:
            if not has_byte_order(dtype):
                self._check_untyped()
        elif not has_same_elements(dtype, self.dtype):
            raise TypeError(
                f"out is of another data type than the codec: got {dtype}, expected {self.dtype} "
                "in either byte order, or uint8"
            )
        return target

    @staticmethod
    def _untyped_target(target: Array, dtype: AnyDType) -> Array:
        """Return the memory of an untyped out as elements of dtype."""
        if dtype == target.dtype:
            return target
        if not (target.flags.c_contiguous or target.flags.f_contiguous):
            raise ValueError(
                f"an untyped out must be contiguous, got strides {target.strides} for shape "
                f"{target.shape} of {target.dtype}; pass an out of {dtype}"
            )
        memory = as_bytes(target)
        if memory.size % dtype.itemsize:
            raise ValueError(
                f"out holds no whole number of elements: got {memory.size} bytes, expected a "
                f"multiple of {dtype.itemsize} for {dtype}"
            )
        return memory.view(dtype)


def _as_array(buf: Any) -> Array:
    """Return an array or buffer as an array on the same memory."""
    if type(buf) is np.ndarray:
        return buf
    if isinstance(buf, np.generic):
        return np.asarray(buf)
    try:
        elements = cast("Array", ensure_ndarray(buf))
    except TypeError as error:
        raise TypeError(
            f"expected an array or an object with a buffer, got {type(buf).__name__} ({error})"
        ) from error
    if not isinstance(buf, np.ndarray) and elements.dtype in ("i1", "S1"):
        return elements.view(np.uint8)  # a buffer of single bytes, whatever it calls them
    return elements


def _stored_bytes(buf: Any) -> Array:
    """Return an array or buffer as flat uint8, in memory order; copies only what is strided."""
    elements = _as_array(buf)
    if elements.dtype.hasobject:
        raise TypeError(f"expected bytes, got an array of Python objects ({elements.dtype})")
    if not elements.flags.c_contiguous:
        elements = np.ascontiguousarray(elements.reshape(-1, order="A"))
    return as_bytes(elements)
