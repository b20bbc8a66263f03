"""Codec pipelines that read uncompressed chunks in batches, in part, and of every layout.

zarr's own pipelines hand one chunk after the other to the codec, and read parts of a chunk only if
``bytes`` is the only codec. With one of these as zarr's ``codec_pipeline.path``, the chunks of a
selection are read together if they are in local files, and others in part, of

- Zarr v3 arrays whose codecs are any number of ``transpose``, followed by ``bytes``
- shards whose inner chunks are stored so
- Zarr v2 arrays without filters and compressor, or with `Bytes` as the only one of them, in either
  ``order``.

Of these, parts of chunks in local files are written in place if `numcodecs_bytes.write_in_place`
asks for it. Everything else is left to zarr's pipeline.

>>> import zarr
>>> zarr.config.set(
...     {"codec_pipeline.path": "numcodecs_bytes.zarr_pipeline.BytesPipeline"}
... )  # doctest: +SKIP
"""

import dataclasses
import functools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.codecs
import zarr.registry
from zarr.codecs import TransposeCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import StorePath

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import encode_array
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    name_of_ml_dtype,
    stored_dtype,
)
from numcodecs_bytes._parts.batch import Batch, read_files
from numcodecs_bytes._parts.fetch import AT_ONCE_BYTES
from numcodecs_bytes._parts.in_place import (
    Writes,
    encode_unchecked,
    files_of,
    hand_on,
    write_in_place,
)
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.names import name_of_chunk
from numcodecs_bytes._parts.objects import read_objects
from numcodecs_bytes._parts.settings import configured_gap_bytes, configured_write_in_place
from numcodecs_bytes._parts.shards import Shard, fetch_shard, fetch_shard_sync
from numcodecs_bytes._parts.stores import LOCAL_COSTS, File, Whole, is_in_shard, source_finder
from numcodecs_bytes._zarr_versions import (
    DECODES_INDEX_AT_ONCE,
    HAS_RESULTS,
    HAS_STRUCT,
    FusedCodecPipeline,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr import BytesCodec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BytesPipeline", "FusedBytesPipeline"]

PIPELINE = "numcodecs_bytes.zarr_pipeline.BytesPipeline"


class _Reader(BytesCodec):
    """Reads parts of uncompressed chunks.

    zarr's pipelines, called by `ReadsBatches.read`, use only its partial decoding methods.
    """

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> "_Reader":  # noqa: ARG002
        """Return the codec itself, which uses the specification of each chunk."""
        return self

    def layout(self, chunk_spec: ArraySpec) -> Layout | None:
        """Return how a chunk is stored, or None if zarr's own pipeline must read it."""
        raise NotImplementedError

    def _layout(self, chunk_spec: ArraySpec) -> Layout:
        if (layout := self.layout(chunk_spec)) is None:
            raise TypeError(f"the array's chunks differ: {chunk_spec} does not allow partial reads")
        return layout

    @property
    def makes_valid(self) -> bool:
        """Whether the array's codec writes no bools other than 0 and 1."""
        raise NotImplementedError

    def layout_of(self, chunk_spec: ArraySpec) -> Layout | Shard:
        """Return how a chunk is stored."""
        return self._layout(chunk_spec)


class _V2Reader(_Reader):
    """Reads Zarr v2 chunks, stored by `Bytes` or without any codec."""

    _bytes: Bytes | None

    def __init__(self, codec: Bytes | None) -> None:
        super().__init__(endian=None)
        object.__setattr__(self, "_bytes", codec)

    @property
    def makes_valid(self) -> bool:
        return self._bytes is not None

    def layout(self, chunk_spec: ArraySpec) -> Layout | None:
        dtype = chunk_spec.dtype.to_native_dtype()
        if has_variable_length(dtype):
            return None
        codec, stored = self._bytes, dtype
        if codec is not None and (codec.dtype is not None or codec.endian != NATIVE_ENDIAN):
            # In a comparison, NumPy takes None as float64.
            if codec.dtype is None or codec.dtype != dtype:
                return None
            if codec.endian is None and has_byte_order(dtype):
                return None
            stored = stored_dtype(dtype, codec.endian)
        is_column_major = chunk_spec.order == "F"
        axis_order = tuple(range(len(chunk_spec.shape)))[::-1] if is_column_major else None
        return Layout(chunk_spec.shape, dtype, stored, axis_order)


class _TransposeReader(_Reader):
    """Reads Zarr v3 chunks that are transposed, or not, and then stored by the bytes codec."""

    _transposes: tuple[TransposeCodec, ...]
    _bytes: zarr.codecs.BytesCodec

    def __init__(
        self, transposes: tuple[TransposeCodec, ...], codec: zarr.codecs.BytesCodec
    ) -> None:
        super().__init__(endian=None)
        object.__setattr__(self, "_transposes", transposes)
        object.__setattr__(self, "_bytes", codec)

    @property
    def makes_valid(self) -> bool:
        return isinstance(self._bytes, BytesCodec)

    def layout(self, chunk_spec: ArraySpec) -> Layout | None:
        axis_order = tuple(range(len(chunk_spec.shape)))
        for codec in self._transposes:
            axis_order = tuple(axis_order[axis] for axis in codec.order)
        if isinstance(self._bytes, BytesCodec):
            dtypes = self._bytes._dtypes(chunk_spec)  # noqa: SLF001
            return Layout(chunk_spec.shape, *dtypes, axis_order)
        # zarr's own codec, which stores some data types differently.
        dtype = chunk_spec.dtype.to_native_dtype()
        endian = getattr(self._bytes.endian, "value", self._bytes.endian)
        if has_variable_length(dtype) or (endian is None and has_byte_order(dtype)):
            return None
        if any(map(name_of_ml_dtype, leaf_dtypes(dtype))):
            return None
        try:
            return Layout(chunk_spec.shape, dtype, stored_dtype(dtype, endian), axis_order)
        except TypeError:  # a data type of another package
            return None


class _ShardReader(_Reader):
    """Reads shards whose inner chunks are stored like the chunks that `_TransposeReader` reads."""

    _codec: Any
    _inner: _TransposeReader

    def __init__(self, codec: zarr.codecs.ShardingCodec, inner: _TransposeReader) -> None:
        super().__init__(endian=None)
        object.__setattr__(self, "_codec", codec)
        object.__setattr__(self, "_inner", inner)

    def layout(self, chunk_spec: ArraySpec) -> Layout | None:
        layout = self._inner.layout(self._codec._get_chunk_spec(chunk_spec))  # noqa: SLF001
        # zarr 3.1.6 can't read its own structures in shards.
        if layout is None or (layout.dtype.kind == "V" and not HAS_STRUCT):
            return None
        return layout if layout.item_size else None

    def layout_of(self, chunk_spec: ArraySpec) -> Shard:
        return Shard(self._codec, chunk_spec, self._layout(chunk_spec))

    async def _decode_partial_single(
        self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec
    ) -> Any:
        return await fetch_shard(byte_getter, self.layout_of(chunk_spec), selection)

    def _decode_partial_sync(self, byte_getter: Any, selection: Any, chunk_spec: ArraySpec) -> Any:
        return fetch_shard_sync(byte_getter, self.layout_of(chunk_spec), selection)


def _find_shard_reader(codec: zarr.codecs.ShardingCodec) -> _ShardReader | None:
    """Return the reader for shards, or None if zarr's own pipeline must read them."""
    inner = _find_reader(BatchedCodecPipeline.from_codecs(codec.codecs))
    # New in 3.3; where a codec for the index needs an event loop, threads can't decode it.
    is_sync: Any = getattr(codec, "_index_codecs_sync_capable", bool)
    can_decode_index = not hasattr(codec, "_decode_shard_index_sync") or is_sync()
    is_plain = type(inner) is _TransposeReader and can_decode_index
    return _ShardReader(codec, inner) if is_plain else None  # type: ignore[arg-type]


def _find_reader(pipeline: Any) -> _Reader | None:
    """Return the reader for the chunks of a pipeline, or None if they are not uncompressed."""
    if pipeline.bytes_bytes_codecs:
        return None
    codec, before = pipeline.array_bytes_codec, pipeline.array_array_codecs
    if type(codec) is V2Codec and not before:
        codecs = (*(codec.filters or ()), *([codec.compressor] if codec.compressor else ()))
        if not codecs:
            return _V2Reader(None)
        only = codecs[0] if len(codecs) == 1 else None
        return _V2Reader(only) if type(only) is Bytes else None
    if type(codec) is zarr.codecs.ShardingCodec and not before:
        return _find_shard_reader(codec)
    if type(codec) is not BytesCodec and type(codec) is not zarr.codecs.BytesCodec:
        return None
    if any(type(c) is not TransposeCodec for c in before):
        return None
    return _TransposeReader(before, codec)


def can_read_parts(array: "zarr.Array[Any]") -> bool:
    """Whether these pipelines read parts of an array's chunks."""
    metadata: Any = array.metadata
    is_v2 = metadata.zarr_format == 2
    codecs = [V2Codec(metadata.filters, metadata.compressor)] if is_v2 else metadata.codecs
    reader = _find_reader(BatchedCodecPipeline.from_codecs(codecs))
    return reader is not None and None is not reader.layout(
        ArraySpec(
            shape=array.shards or array.chunks,
            dtype=metadata.dtype,
            fill_value=metadata.fill_value,
            config=ArrayConfig(order=metadata.order if is_v2 else "C", write_empty_chunks=False),
            prototype=default_buffer_prototype(),
        )
    )


def _note_left(item: Any, why: str, *, is_required: bool) -> None:
    """Note why a chunk is left to zarr, or raise if a part of one must not be."""
    byte_setter, spec, _, _, is_complete, *_ = item
    if is_required and not is_complete:
        raise RuntimeError(
            f"part of {name_of_chunk(byte_setter)} can't be written in place, as the option "
            f"numcodecs_bytes.write_in_place requires: {why}"
        )
    if _trace.active:
        counts = {"why_not_in_place": {"the whole chunk is written" if is_complete else why: 1}}
        _trace.note(byte_setter, len(spec.shape), counts)


def _in_our_pipeline(codec: Any) -> Any:
    """Return the codec for a pipeline of ours, with the codecs inside of it."""
    if isinstance(codec, BytesCodec):
        return codec.in_our_pipeline()
    if type(codec) is not zarr.codecs.ShardingCodec:
        return codec
    return dataclasses.replace(
        codec,
        codecs=tuple(map(_in_our_pipeline, codec.codecs)),
        index_codecs=tuple(map(_in_our_pipeline, codec.index_codecs)),
    )


class ReadsBatches:
    """Mixin for one of zarr's pipelines: reads batches of uncompressed chunks."""

    _setting: str  # zarr's setting for the number of threads

    @functools.cached_property
    def _reader(self) -> _Reader | None:
        return _find_reader(self)

    @functools.cached_property
    def _reading(self) -> Any:
        """A pipeline of zarr's that contains the reader."""
        return self._zarrs([self._reader], None)

    def _zarrs(self, codecs: "Iterable[Any]", chunk_spec: ArraySpec | None) -> Any:
        """Return a pipeline of zarr's."""
        zarrs: Any = next(c for c in type(self).__mro__ if c.__module__.startswith("zarr."))
        pipeline = zarrs.from_codecs(list(codecs), batch_size=self.batch_size)  # type: ignore[attr-defined]
        # The fused pipeline must be evolved; the batched one, the only one of zarr 3.1.6, need not.
        if zarrs is BatchedCodecPipeline:
            return pipeline
        return pipeline.evolve_from_array_spec(chunk_spec)

    async def read(
        self, batch_info: "Iterable[Any]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        zarrs: Any = super()
        if self._reader is None and not _trace.active:
            return await zarrs.read(batch_info, out, drop_axes)
        batch = list(batch_info)
        if self._reader is None:
            codec: Any = self.array_bytes_codec  # type: ignore[attr-defined]
            if type(codec) is V2Codec:  # others call our codec
                _trace.note_not_seen("compressed or filtered, Zarr v2", len(batch))
            return await zarrs.read(batch, out, drop_axes)
        if not batch or not self._reads(batch[0][1]):
            return await zarrs.read(batch, out, drop_axes)
        exist = await self._read_together(batch, out, drop_axes)
        if exist is None:
            return await self._reading.read(batch, out, drop_axes)
        results: list[Any] = [{"status": "present" if exists else "missing"} for exists in exist]
        left = [k for k, exists in enumerate(exist) if exists is None]
        if left:
            others = await self._reading.read([batch[k] for k in left], out, drop_axes)
            for k, result in zip(left, others or (), strict=HAS_RESULTS):
                results[k] = result
        return tuple(results) if HAS_RESULTS else None

    async def write(
        self, batch_info: "Iterable[Any]", value: Any, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write to the selections of chunks from `value`, like zarr's pipeline.

        Raises
        ------
        RuntimeError
            If `numcodecs_bytes.write_in_place` is "require", and a part of a chunk can't be written
            in place. Others may be.
        """
        batch = list(batch_info)
        try:
            await self._write(batch, value, drop_axes)
        except Exception as error:
            notes = getattr(error, "__notes__", ())
            if batch and not any(note.startswith("while writing chunk") for note in notes):
                others = f", or another one of {len(batch)}" if len(batch) > 1 else ""
                error.add_note(f"while writing {name_of_chunk(batch[0][0])}{others}")
            raise

    async def _write(self, batch: "Sequence[Any]", value: Any, drop_axes: tuple[int, ...]) -> None:
        zarrs: Any = super()
        mode = configured_write_in_place()
        if not mode or not batch or is_in_shard(batch[0][0]):
            await zarrs.write(batch, value, drop_axes)
            return
        if self._can_write_in_place(batch[0][1]):
            await self._write_in_place(batch, value, drop_axes, is_required=mode == "require")
            return
        why = "its codecs, or its data type, do not allow it; if it was just created, open it again"
        if isinstance(self._reader, _ShardReader):
            why = "it is a shard"
        for item in batch:
            _note_left(item, why, is_required=mode == "require")
        await self._writing(batch[0][1]).write(batch, value, drop_axes)

    async def _write_in_place(
        self, batch: "Sequence[Any]", value: Any, drop_axes: tuple[int, ...], *, is_required: bool
    ) -> None:
        files, parts = files_of(batch), {}
        for k, (item, file) in enumerate(zip(batch, files, strict=True)):
            if item[4] or isinstance(file, Whole):
                _note_left(item, getattr(file, "why", ""), is_required=is_required)
            else:
                parts[k] = file
        # Others first: the values may be the memory of a part, which changes.
        zarrs = self._writing(batch[0][1])
        write = partial(zarrs.write, value=value, drop_axes=drop_axes)
        await hand_on(batch, {k: files[k] for k in range(len(batch)) if k not in parts}, write)
        if not parts:
            return
        reader: Any = self._reader  # of no shard
        encode = encode_array if reader.makes_valid else encode_unchecked
        writes = Writes(batch, value.as_ndarray_like(), drop_axes, reader.layout_of, encode)
        left = await write_in_place(writes, parts)
        for k, (why, _) in left.items():
            _note_left(batch[k], why, is_required=is_required)
        await hand_on(batch, {k: files[k] for k in left if left[k].values is None}, write)
        for k, (_, copied) in left.items():
            if copied is not None:
                item = (*batch[k][:3], ..., False)
                values = type(value).from_ndarray_like(copied)
                await hand_on([item], {0: files[k]}, partial(zarrs.write, value=values))

    def _writing(self, chunk_spec: ArraySpec) -> Any:
        """Return a pipeline of zarr's with codecs that know that ours has handed on to them.

        Copies: the array's own codecs may belong to several handles.
        """
        if "_marked" not in self.__dict__:
            codecs: Any = map(_in_our_pipeline, self)  # type: ignore[call-overload]
            self.__dict__["_marked"] = self._zarrs(codecs, chunk_spec)
        return self.__dict__["_marked"]

    def _can_write_in_place(self, chunk_spec: ArraySpec) -> bool:
        """Whether parts of an array's chunks can be written in place."""
        return not isinstance(self._reader, _ShardReader) and self._reads(chunk_spec)

    def _reads(self, chunk_spec: ArraySpec) -> bool:
        """Whether parts of an array's chunks can be read."""
        reader = self._reader
        is_on_cpu = issubclass(chunk_spec.prototype.nd_buffer, cpu.NDBuffer)
        return reader is not None and is_on_cpu and reader.layout(chunk_spec) is not None

    async def _read_together(
        self, batch: "Sequence[Any]", out: Any, drop_axes: tuple[int, ...]
    ) -> "Sequence[bool | None] | None":
        """Read the chunks in local files, or those that lie together in objects.

        Returns whether each exists, or None if it is left; None if all of them are left.
        """
        array = out.as_ndarray_like()
        if type(out) is not cpu.NDBuffer or type(array) is not np.ndarray or array.dtype.hasobject:
            return None
        find = source_finder()
        if type(batch[0][0]) is not StorePath:
            return None
        sources = [find(byte_getter) for byte_getter, *_ in batch[:NUM_LOOKED_AT]]
        reader: Any = self._reader
        is_short, is_shard = array.nbytes <= AT_ONCE_BYTES, isinstance(reader, _ShardReader)
        gap, num_workers = configured_gap_bytes(), self._num_workers()
        if not any(isinstance(source, File) for source in sources):
            if is_shard or not any(getattr(source, "object", None) for source in sources):
                return None
            of_objects = Batch(batch, array, drop_axes, reader.layout_of, gap, num_workers)
            return await read_objects(of_objects, reader.layout_of(batch[0][1]))
        if is_short and not is_shard and isinstance(self, BatchedCodecPipeline):
            is_small = reader.layout_of(batch[0][1]).num_bytes <= LOCAL_COSTS.any_plan
            if len(batch) <= (FEW_SMALL if is_small else FEW):
                return None
        at_once = is_short and is_shard and len(batch) <= FEW and DECODES_INDEX_AT_ONCE
        return await read_files(
            Batch(batch, array, drop_axes, reader.layout_of, gap, num_workers, at_once)
        )

    def _num_workers(self) -> int | None:
        """Return the number of threads that zarr's setting for the pipeline says, if it is set."""
        num = zarr.config.get(self._setting, None)
        return max(num, 1) if isinstance(num, int) else None


# A short selection of up to FEW chunks, or FEW_SMALL small ones, is read on the event loop: a
# thread would take as long to begin.
FEW, FEW_SMALL = 2, 8
# References of a store may point to files and to elsewhere, or be missing. So many are looked at.
NUM_LOOKED_AT = 8


class BytesPipeline(ReadsBatches, BatchedCodecPipeline):
    """zarr's default pipeline, but uncompressed chunks in local files are read in batches.

    Uncompressed chunks elsewhere, including Zarr v2 and transposed ones, are read in part.

    To use it, set ``codec_pipeline.path`` in zarr's config, or the environment variable
    ``ZARR_CODEC_PIPELINE__PATH``, to ``numcodecs_bytes.zarr_pipeline.BytesPipeline``.
    """

    _setting = "threading.max_workers"


zarr.registry.register_pipeline(BytesPipeline)

if FusedCodecPipeline is None:
    __all__ = ["BytesPipeline"]
else:

    class FusedBytesPipeline(ReadsBatches, FusedCodecPipeline):  # type: ignore[misc]
        """zarr's fused pipeline (3.3 and newer) with the reads of `BytesPipeline`."""

        _setting = "codec_pipeline.max_workers"

    zarr.registry.register_pipeline(FusedBytesPipeline)
