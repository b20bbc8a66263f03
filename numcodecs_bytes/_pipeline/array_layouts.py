"""How the chunks of an array are stored, by the codecs of its pipeline."""

import dataclasses
import json
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import zarr
import zarr.codecs
from zarr.codecs import TransposeCodec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, gpu
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.types import AnyArray

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import dtype_to_json
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    AnyDType,
    EndianError,
    byteswap_dtype,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    name_of_ml_dtype,
    stored_dtype,
)
from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._pipeline.elementwise import (
    byte_order_of,
    element_codecs_of,
    element_codecs_of_filters,
    is_elementwise,
)
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import Compressed, LeftToZarr
from numcodecs_bytes._plan.shards import AnyLayout, LayoutOf, ShardLayout
from numcodecs_bytes._zarr_api.names import name_of_class
from numcodecs_bytes._zarr_api.private_names import has_sync_index, index_bytes_of
from numcodecs_bytes._zarr_api.v2_codec import V2Codec
from numcodecs_bytes._zarr_api.versions import COPIES_SWAP_BYTES, HAS_STRUCT
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr_codec import BytesCodec

# For how many shapes of chunks an array caches the layout: all, if its grid is regular.
CACHED_SHAPES = 1 << 8

_PROTOTYPES = (cpu.buffer_prototype, gpu.buffer_prototype)  # others may do more than hold bytes


class Codecs(NamedTuple):
    """The codecs of a pipeline, under its names; the pipeline refers to `ArrayLayouts` itself."""

    array_array_codecs: tuple[Any, ...]
    array_bytes_codec: Any
    bytes_bytes_codecs: tuple[Any, ...]

    @classmethod
    def of(cls, pipeline: Any) -> "Codecs":
        """Return those of a pipeline."""
        return cls(*[getattr(pipeline, name) for name in cls._fields])

    @property
    def names(self) -> list[str]:
        """The name of each codec; of Zarr v2, those of the filters and the compressor."""
        of_bytes = [self.array_bytes_codec]
        if type(self.array_bytes_codec) is V2Codec:
            of_bytes = [*(of_bytes[0].filters or ()), of_bytes[0].compressor]
        codecs = [*self.array_array_codecs, *of_bytes, *self.bytes_bytes_codecs]
        return [name_of_codec(codec) for codec in codecs if codec is not None]


def name_of_codec(codec: Any) -> str:
    """Return the name of a codec of numcodecs or zarr; that of its class if it has none."""
    name: object = getattr(codec, "codec_id", None) or value_or_error(
        lambda: codec.to_dict()["name"]
    )
    return name if isinstance(name, str) else type(codec).__name__


class ArrayLayouts:
    """How the chunks of an array are stored: by their shape, as they differ in nothing else."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        self._find_layout: LayoutOf | None = None  # made when it is first needed
        # By shape. Threads may share it: a dict needs no lock.
        self._layouts: dict[tuple[int, ...], AnyLayout] = {}
        self._why_left: LeftToZarr | None = None

    def of(self, chunk_spec: ArraySpec) -> AnyLayout:
        """Return how a chunk is stored; raise `LeftToZarr` if zarr's own pipeline must read it."""
        if self._why_left is not None:
            raise self._why_left.without_frames()
        if self._find_layout is None:
            self._find_layout = self._parse_codecs()
        if chunk_spec.prototype not in _PROTOTYPES:
            raise LeftToZarr("chunks in memory of an unknown kind")
        layout = self._layouts.get(chunk_spec.shape)
        if layout is None:
            if len(self._layouts) >= CACHED_SHAPES:
                self._layouts.clear()
            layout = self._layouts[chunk_spec.shape] = self._find_layout(chunk_spec)
        return layout

    def _parse_codecs(self) -> LayoutOf:
        try:
            return _find_layout_of(self._codecs)
        except LeftToZarr as why:
            raise_interrupt(why.__cause__)  # an interrupt must not become the cached reason
            self._why_left = why.without_frames()
            raise


def check_readable(codec: Any, chunk_spec: ArraySpec) -> None:
    """Raise EndianError if chunks could be written by a codec of an array, but not read."""
    if type(codec) is not V2Codec:
        return
    codecs: Any = [c for c in (*(codec.filters or ()), codec.compressor) if c is not None]
    for each in codecs:
        is_typed = type(each) is not Bytes or each.dtype is not None
        if is_typed or each.endian in (None, NATIVE_ENDIAN):
            continue
        expected = '"dtype" of the elements that the codec before it returns'
        if each is codecs[0]:
            dtype = chunk_spec.dtype.to_native_dtype()
            if has_variable_length(dtype) or not has_byte_order(dtype):
                continue  # the first codec gets no elements that have a byte order
            expected = f'"dtype": {json.dumps(dtype_to_json(dtype))}'
        raise EndianError(
            "chunks could be written, but not read, because zarr tells no codec the data type: got "
            f'a codec "bytes" of endian {each.endian!r} without dtype on a {NATIVE_ENDIAN}-endian '
            f"machine, expected {expected}; add that to its configuration in .zarray"
        )


def layout_of_array(array: AnyArray, chunk_shape: tuple[int, ...]) -> AnyLayout:
    """Return how an array's chunks are stored; raise `LeftToZarr` if zarr must read them."""
    spec = chunk_spec_of(array, chunk_shape)
    return ArrayLayouts(Codecs.of(array.async_array.codec_pipeline)).of(spec)


def chunk_spec_of(
    array: "zarr.Array[Any]", chunk_shape: tuple[int, ...] | None = None
) -> ArraySpec:
    """Return the specification of an array's chunks, or of those of one shape.

    Raises `LeftToZarr` if no shape is given, and they have several.
    """
    metadata: Any = array.metadata
    try:
        shape = chunk_shape or array.shards or array.chunks
    except NotImplementedError as error:  # the grid is rectilinear
        raise LeftToZarr("chunks of several shapes") from error
    order: Any = metadata.order if metadata.zarr_format == 2 else "C"
    config = ArrayConfig(order=order, write_empty_chunks=False)
    return ArraySpec(shape, metadata.dtype, metadata.fill_value, config, cpu.buffer_prototype)


def first_chunk_spec_of(array: Any) -> ArraySpec:
    """Return the specification of an array's first chunk."""
    try:
        return chunk_spec_of(array)
    except LeftToZarr:  # the grid is rectilinear
        lengths = array.write_chunk_sizes
        return chunk_spec_of(array, tuple([each[0] if each else 1 for each in lengths]))


def _find_layout_of(pipeline: Any) -> LayoutOf:
    """Return a function from the specification of a chunk to its layout."""
    codec, before = pipeline.array_bytes_codec, pipeline.array_array_codecs
    others = [c for c in before if type(c) is not TransposeCodec and not is_elementwise(c)]
    others += pipeline.bytes_bytes_codecs
    if type(codec) is V2Codec:
        codecs = [c for c in (*(codec.filters or ()), codec.compressor) if c is not None]
        only: Any = codecs[0] if codecs else None
        if len(codecs) < 2 and (only is None or type(only) is Bytes):
            return partial(_layout_of_v2, only)
        if codec.compressor is None and all(map(is_elementwise, codecs)):
            return partial(_layout_of_filtered_v2, codecs)
        unknown = [c for c in codecs if type(c) is not Bytes and not is_elementwise(c)]
        others += unknown or codecs  # all are known: several `Bytes`, or one beside others
    if others:
        names = list(map(name_of_codec, others))
        compressors = [*pipeline.bytes_bytes_codecs, getattr(codec, "compressor", None)]
        are_compressors = all(any(c is each for each in compressors) for c in others)
        kind = Compressed if are_compressors else LeftToZarr
        raise kind(f"compressed or filtered by {' and '.join(names)}")
    if type(codec) is zarr.codecs.ShardingCodec:
        # If a codec of the index needs an event loop, threads can't decode the index.
        if before or not has_sync_index(codec):
            raise LeftToZarr("transposed or converted shards, or an index of an unknown codec")
        inner = _find_layout_of(BatchedCodecPipeline.from_codecs(codec.codecs))
        return partial(_layout_of_shard, codec, inner)
    if type(codec) is BytesCodec or type(codec) is zarr.codecs.BytesCodec:
        return partial(_layout_of_v3, before, codec)
    raise LeftToZarr(f"stored by {name_of_class(codec)}")


def _layout_of_v2(codec: Bytes | None, chunk_spec: ArraySpec) -> Layout:
    """Return how a Zarr v2 chunk is stored, by `Bytes` or without any codec."""
    dtype = chunk_spec.dtype.to_native_dtype()
    if has_variable_length(dtype):
        raise LeftToZarr(f"elements of variable length ({dtype})")
    stored = byteswap_dtype(dtype)  # the array's own order; NumPy copies some types as integers
    if codec is not None and (codec.dtype is not None or codec.endian != NATIVE_ENDIAN):
        # In a comparison, NumPy treats None as float64.
        is_of_array = codec.dtype is not None and codec.dtype == dtype
        if not is_of_array or (codec.endian is None and has_byte_order(dtype)):
            raise LeftToZarr(f'the codec "bytes" does not state endian and the dtype {dtype}')
        stored = stored_dtype(dtype, codec.endian)
    return Layout(chunk_spec.shape, dtype, stored, _axis_order_of_v2(chunk_spec))


def _layout_of_filtered_v2(filters: Sequence[Any], chunk_spec: ArraySpec) -> Layout:
    """Return how a Zarr v2 chunk is stored by filters that convert each element by itself."""
    dtype = chunk_spec.dtype.to_native_dtype()
    element_codecs = element_codecs_of_filters(filters, dtype)
    axis_order = _axis_order_of_v2(chunk_spec)
    return Layout(chunk_spec.shape, dtype, element_codecs.dtype, axis_order, element_codecs)


def _axis_order_of_v2(chunk_spec: ArraySpec) -> tuple[int, ...] | None:
    """Return the axes in the order in which a Zarr v2 chunk is stored; None for C order."""
    is_column_major = chunk_spec.order == "F"
    return tuple(range(len(chunk_spec.shape)))[::-1] if is_column_major else None


def _layout_of_v3(
    before: Sequence[Any], codec: zarr.codecs.BytesCodec, chunk_spec: ArraySpec
) -> Layout:
    """Return how a Zarr v3 chunk is stored: converted and transposed, or not, then by "bytes"."""
    transposes: list[TransposeCodec] = [c for c in before if type(c) is TransposeCodec]
    axis_order = None
    for transpose in transposes:
        order = axis_order or range(len(transpose.order))
        axis_order = tuple(order[axis] for axis in transpose.order)
    if len(transposes) == len(before):
        return Layout(chunk_spec.shape, *_dtypes_of(codec, chunk_spec), axis_order)
    element_codecs, converted_spec = element_codecs_of(before, chunk_spec)
    converted, stored = _dtypes_of(codec, converted_spec)
    if stored != converted and not isinstance(codec, BytesCodec):
        raise LeftToZarr("zarr's own codec does not swap bytes for the codecs before it")
    byte_order = byte_order_of(before) if COPIES_SWAP_BYTES else None
    if byte_order and converted != converted.newbyteorder(byte_order):
        raise LeftToZarr("a codec takes elements in another byte order than the array's")
    dtype = chunk_spec.dtype.to_native_dtype()
    return Layout(chunk_spec.shape, dtype, stored, axis_order, element_codecs)


def _dtypes_of(codec: zarr.codecs.BytesCodec, spec: ArraySpec) -> tuple[AnyDType, AnyDType]:
    """Return the dtype of elements, and the dtype that they are stored as."""
    if isinstance(codec, BytesCodec):
        return codec._dtypes(spec)
    # zarr's own codec, which stores some data types differently.
    dtype = spec.dtype.to_native_dtype()
    endian = getattr(codec.endian, "value", codec.endian)
    try:
        stored = stored_dtype(dtype, endian)
    except (TypeError, ValueError) as error:  # it is another package's, or has no endian
        raise_interrupt(error)
        stored = None
    is_unknown = has_variable_length(dtype) or any(map(name_of_ml_dtype, leaf_dtypes(dtype)))
    if stored is None or is_unknown:
        raise LeftToZarr(f"zarr's own codec stores {dtype}")
    return dtype, stored


def _layout_of_shard(codec: Any, layout_of_inner: LayoutOf, chunk_spec: ArraySpec) -> ShardLayout:
    inner = layout_of_inner(dataclasses.replace(chunk_spec, shape=codec.chunk_shape))
    if isinstance(inner, ShardLayout):
        raise LeftToZarr("shards in shards")
    # zarr 3.1.6 can't read its own structures in shards.
    if not inner.item_size or (inner.dtype.kind == "V" and not HAS_STRUCT):
        raise LeftToZarr(f"{inner.dtype} in shards")
    grid_shape = tuple(map(operator.floordiv, chunk_spec.shape, inner.shape))
    return ShardLayout(codec, grid_shape, inner, index_bytes_of(codec, grid_shape))
