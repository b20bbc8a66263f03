"""Bytes, the ``bytes`` codec for numcodecs and thus for Zarr v2.

Stores the elements of an array in lexicographical (C) order, each in the byte order of ``endian``:
the ``bytes`` codec 1.0 of Zarr v3, https://zarr-specs.readthedocs.io/en/latest/v3/codecs/bytes/.

Configuration:

    {"id": "bytes", "endian": "little" | "big", "dtype": "<f8" | [["name", "<i4"], ...]}

Without ``endian``, only data types without a byte order can be stored. ``dtype``, which is not in
the specification, is the data type of the decoded elements in the notation of Zarr v2 metadata.
Without it, the codec does not know the size of elements when it decodes, and raises an error
wherever a wrong guess would return wrong values.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self, TypeVar, overload

import numcodecs.abc
import numpy as np
from numcodecs.compat import ensure_ndarray

from numcodecs_bytes._core.configuration import (
    JSONObject,
    dtype_to_json,
    parse_configuration,
    parse_dtype,
    parse_endian,
)
from numcodecs_bytes._core.copy import (
    as_bytes,
    decode_array,
    decode_into,
    encode_array,
    is_column_major,
)
from numcodecs_bytes._core.dtypes import (
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
from numcodecs_bytes._core.invalid_bytes import has_invalid_bytes
from numcodecs_bytes._zarr_api.names import add_name_of_array

if TYPE_CHECKING:
    from numpy.typing import DTypeLike
    from typing_extensions import Buffer

    ArrayOrBuffer = Array | np.generic | Buffer

Out = TypeVar("Out", bound="ArrayOrBuffer")


class Bytes(numcodecs.abc.Codec):  # type: ignore[misc] # numcodecs has no types
    """Store the elements of an array as bytes, in C order and in the byte order of `endian`.

    For Zarr v3 arrays, use `numcodecs_bytes.zarr_codec.BytesCodec`.

    Parameters
    ----------
    endian : {'little', 'big'} or None, default 'little'
        Byte order of the stored elements; None only for data types without a byte order.
    dtype : dtype-like or list, optional
        Data type of the decoded elements, including their byte order: anything that NumPy accepts,
        the lists ``[name, type]`` and ``[name, type, shape]`` of Zarr v2, or a registered name such
        as ``"bfloat16"`` (from the package ml_dtypes) or ``"r16"`` (raw bytes). In a Zarr v2 array,
        this is the array's own dtype.

    Raises
    ------
    TypeError, ValueError
        If `endian` is anything else, or `dtype` is not a data type of fixed size.
    ImportError
        If `dtype` is a type of ml_dtypes and ml_dtypes is not installed.

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

    def __init__(self, endian: Endian | None = "little", dtype: "DTypeLike | None" = None) -> None:
        self.endian: Endian | None = parse_endian(endian)
        self.dtype: AnyDType | None = None if dtype is None else parse_dtype(dtype)

    def encode(self, buf: "ArrayOrBuffer") -> Array:
        """Return the stored bytes of an array.

        Parameters
        ----------
        buf : array or buffer
            An array of any shape and layout. If the codec has a `dtype`: of exactly that dtype
            (apart from padding), or bytes or uint8, the memory of such elements. Otherwise, in
            native byte order, or in the stored byte order.

        Returns
        -------
        numpy.ndarray
            uint8, shape ``(num_bytes,)``. For a column-major array: a column-major array of the
            same shape in the stored byte order, because Zarr v2 arrays of ``order: "F"`` need the
            memory order preserved; ``bytes()`` of it is nevertheless in C order. Shares memory with
            `buf` if no byte has to change.

        Raises
        ------
        TypeError, ValueError
            If the input is anything else, or could not be decoded with this configuration.
        """
        elements = self._elements(buf)
        stored = stored_dtype(elements.dtype, self.endian)
        if not is_column_major(elements):
            return as_bytes(encode_array(elements, stored))
        return encode_array(elements.T, stored).T

    @overload
    def decode(self, buf: "ArrayOrBuffer", out: None = None) -> Array: ...
    @overload
    def decode(self, buf: "ArrayOrBuffer", out: Out) -> Out: ...
    def decode(self, buf: "ArrayOrBuffer", out: "ArrayOrBuffer | None" = None) -> "ArrayOrBuffer":
        """Return the elements that stored bytes hold.

        Parameters
        ----------
        buf : array or buffer
            The stored bytes. An array is read in memory order, as in numcodecs.
        out : array or writable buffer, optional
            Filled in its own memory order, and returned. To fill a column-major `out`, pass the
            column-major *array* that `encode` returned, not ``bytes()`` of it, which is in C order.
            If the codec has no `dtype`, the elements have the data type of `out`, unless that is
            untyped: uint8, raw bytes, or a plain buffer.

        Returns
        -------
        numpy.ndarray or `out`
            Shape ``(num_elements,)``, of exactly the codec's `dtype` (the bytes as uint8 if it has
            none). Shares memory with `buf` if no byte has to change, and is then read-only if `buf`
            is. A bool is true if its byte is not 0.

        Raises
        ------
        TypeError, ValueError
            If `out` is of another data type or read-only, there are too few or too many bytes, or
            `endian` or `dtype` is missing, but needed.
        """
        raw = _flat_bytes(buf)
        if out is None:
            if self.dtype is None:
                self._check_untyped()
                return raw
            stored = stored_dtype(self.dtype, self.endian)
            self._check_whole(raw, stored.itemsize)
            return decode_array(raw, stored, self.dtype)
        out_view = self._out_view(out)
        stored = stored_dtype(out_view.dtype, self.endian)
        if raw.size != out_view.size * stored.itemsize:
            raise _wrong_out(raw.size, out_view, stored.itemsize)
        decode_into(raw, stored, out_view)
        return out

    def get_config(self) -> JSONObject:
        """Return the configuration as JSON, without the keys that are not set."""
        config: JSONObject = {"id": self.codec_id}
        if self.endian is not None:
            config["endian"] = self.endian
        if self.dtype is not None:
            config["dtype"] = dtype_to_json(self.dtype)
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Return the codec for a configuration; a missing `endian` means None, not 'little'."""
        try:
            configuration = parse_configuration(config, keys=("id", "endian", "dtype"))
            return cls(configuration["endian"], configuration.get("dtype"))
        except (ImportError, TypeError, ValueError) as error:
            add_name_of_array(error)
            raise

    def __repr__(self) -> str:
        dtype = "" if self.dtype is None else f", dtype={dtype_to_json(self.dtype)!r}"
        return f"{type(self).__name__}(endian={self.endian!r}{dtype})"

    def __hash__(self) -> int:
        return hash(repr(self))

    def _elements(self, buf: "ArrayOrBuffer") -> Array:
        """Return the input as an array of elements that this codec can encode."""
        elements = _as_array(buf)
        check_storable(elements.dtype)
        if self.dtype is None:
            self._check_can_be_decoded(elements.dtype)
            return elements
        if pack_dtype(elements.dtype) == pack_dtype(self.dtype):
            return elements
        if elements.dtype != np.uint8:
            # `str` of a dtype in native byte order hides that.
            dtypes = elements.dtype, self.dtype
            got, expected = [json.dumps(dtype_to_json(dtype)) for dtype in dtypes]
            raise TypeError(
                f"the array's data type is not that of the codec: got {got}, expected {expected}; "
                f"set dtype in the configuration of the bytes codec to {got}; or, if you call "
                "encode yourself, convert the array with astype"
            )
        raw = _flat_bytes(elements)
        self._check_whole(raw, self.dtype.itemsize)
        viewed: Array = raw.view(self.dtype)
        if has_invalid_bytes(viewed):
            raise ValueError(
                f"the bytes do not hold elements of {self.dtype}: got a byte that is not a valid "
                "value, such as 2 for a bool; if another codec produced these bytes, set dtype in "
                'the configuration of the bytes codec to "|u1"'
            )
        return viewed

    def _check_can_be_decoded(self, dtype: AnyDType) -> None:
        """Raise if a codec without dtype would encode such elements irreversibly."""
        if not has_byte_order(dtype):
            self._check_untyped()
        elif self.endian and dtype not in map(dtype.newbyteorder, ("=", self.endian)):
            added = json.dumps(dtype_to_json(pack_dtype(dtype)))
            raise ValueError(
                f"the byte order of the array would be lost: got {dtype}, to be stored as "
                f"{self.endian}-endian without dtype, expected native byte order; add "
                f'"dtype": {added} to the configuration of the bytes codec'
            )

    def _check_untyped(self) -> None:
        """Raise unless elements of unknown type can be stored without byte-swapping."""
        if self.endian not in (None, NATIVE_ENDIAN):
            raise ValueError(
                "the bytes codec can't byte-swap elements of unknown data type: got endian "
                f"{self.endian!r} without dtype on a {NATIVE_ENDIAN}-endian machine; set dtype in "
                "its configuration (for a Zarr v2 array: in .zarray, the array's own dtype) or, "
                "when decoding, pass an out of that dtype"
            )

    def _check_whole(self, raw: Array, item_size: int) -> None:
        if raw.size % item_size:
            raise ValueError(
                f"the bytes do not hold a whole number of elements: got {raw.size} bytes, "
                f"expected a multiple of {item_size} for {self.dtype}; they are truncated, or of "
                "another data type"
            )

    def _out_view(self, out: "ArrayOrBuffer") -> Array:
        """Return `out` as an array of the elements that are decoded into it."""
        out_view = _as_array(out, "out to be ")
        if isinstance(out, np.generic) or not out_view.flags.writeable:
            got = type(out).__name__
            raise ValueError(f"out must be writable, got a read-only {got}; pass a writable array")
        dtype = out_view.dtype
        check_storable(dtype)
        if self.dtype is None:
            if not has_byte_order(dtype):
                self._check_untyped()
            return out_view
        if has_same_elements(dtype, self.dtype):
            return out_view
        if dtype != np.uint8 and (dtype.type is not np.void or dtype.names is not None):
            raise TypeError(
                f"the data type of out is not that of the codec: got {dtype}, expected "
                f"{self.dtype} in either byte order, or uint8"
            )
        if not (out_view.flags.c_contiguous or out_view.flags.f_contiguous):
            raise ValueError(
                f"an untyped out must be contiguous, got strides {out_view.strides} for shape "
                f"{out_view.shape} of {out_view.dtype}; pass an out of {self.dtype}"
            )
        memory = as_bytes(out_view)
        if memory.size % self.dtype.itemsize:
            multiple = f"a multiple of {self.dtype.itemsize} for {self.dtype}"
            raise ValueError(f"out holds {memory.size} bytes, expected {multiple}")
        return memory.view(self.dtype)


def _wrong_out(num_bytes: int, out_view: Array, item_size: int) -> ValueError:
    """Return the error for an `out` of another size than the chunk, which has `num_bytes`."""
    num_elements, rest = divmod(num_bytes, item_size)
    how = f"pass an out of {num_elements} elements of {out_view.dtype}"
    if rest:
        how = f"that is no whole number of elements of {out_view.dtype}, so it may be truncated"
    return ValueError(
        f"out holds {out_view.size * item_size} bytes, but the chunk decodes to {num_bytes}: {how}"
    )


def _as_array(buf: "ArrayOrBuffer", what: str = "") -> Array:
    if type(buf) is np.ndarray:
        return buf
    if isinstance(buf, np.generic):
        return np.asarray(buf)
    try:
        elements: Array = ensure_ndarray(buf)
    except TypeError:
        raise TypeError(
            f"expected {what}an array or an object that supports the buffer protocol, got "
            f"{type(buf).__name__}{'' if what else ': convert it with numpy.asarray'}"
        ) from None
    if not isinstance(buf, np.ndarray) and elements.dtype in ("i1", "S1"):
        return elements.view(np.uint8)  # a buffer of single bytes, whatever its format
    return elements


def _flat_bytes(buf: "ArrayOrBuffer") -> Array:
    """Return an array or buffer as flat uint8 in memory order; copies only if not contiguous."""
    elements = _as_array(buf)
    if elements.dtype.hasobject:
        raise TypeError(f"expected bytes, got an array of Python objects ({elements.dtype})")
    if not elements.flags.c_contiguous:
        elements = np.ascontiguousarray(elements.reshape(-1, order="A"))
    return as_bytes(elements)
