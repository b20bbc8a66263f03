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

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.codecs
import zarr.registry
from zarr.abc.codec import ArrayBytesCodec
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
from numcodecs_bytes._parts.open_file import AT_ONCE_BYTES, SHORT
from numcodecs_bytes._parts.selection import key_of
from numcodecs_bytes._parts.shards import Shard
from numcodecs_bytes._parts.stores import File, Whole, is_in_shard, source_finder
from numcodecs_bytes._settings import (
    configured_gap_bytes,
    configured_pipeline,
    configured_write_in_place,
)
from numcodecs_bytes._zarr_versions import (
    HAS_RESULTS,
    HAS_STRUCT,
    FusedCodecPipeline,
    default_pipeline,
    has_sync_index,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr import BytesCodec, ReadsParts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BytesPipeline", "FusedBytesPipeline"]


# Takes the specification of a chunk; returns how it is stored, or None if zarr's own pipeline must
# read it.
LayoutOf = Callable[[ArraySpec], Layout | Shard | None]


def _layout_of_v2(codec: Bytes | None, chunk_spec: ArraySpec) -> Layout | None:
    """Return how a Zarr v2 chunk is stored, by `Bytes` or without any codec."""
    dtype = chunk_spec.dtype.to_native_dtype()
    if has_variable_length(dtype):
        return None
    stored = dtype
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


def _layout_of_v3(
    transposes: tuple[TransposeCodec, ...], codec: zarr.codecs.BytesCodec, chunk_spec: ArraySpec
) -> Layout | None:
    """Return how a Zarr v3 chunk is stored: transposed, or not, then by the bytes codec."""
    axis_order = None
    for transpose in transposes:
        before = axis_order or range(len(transpose.order))
        axis_order = tuple(before[axis] for axis in transpose.order)
    if isinstance(codec, BytesCodec):
        return Layout(chunk_spec.shape, *codec._dtypes(chunk_spec), axis_order)  # noqa: SLF001
    # zarr's own codec, which stores some data types differently.
    dtype = chunk_spec.dtype.to_native_dtype()
    endian = getattr(codec.endian, "value", codec.endian)
    if has_variable_length(dtype) or (endian is None and has_byte_order(dtype)):
        return None
    if any(map(name_of_ml_dtype, leaf_dtypes(dtype))):
        return None
    try:
        return Layout(chunk_spec.shape, dtype, stored_dtype(dtype, endian), axis_order)
    except TypeError:  # a data type of another package
        return None


def _layout_of_shard(codec: Any, layout_of_inner: LayoutOf, chunk_spec: ArraySpec) -> Shard | None:
    """Return how a shard is stored."""
    layout = layout_of_inner(codec._get_chunk_spec(chunk_spec))  # noqa: SLF001
    # zarr 3.1.6 can't read its own structures in shards.
    if not isinstance(layout, Layout) or (layout.dtype.kind == "V" and not HAS_STRUCT):
        return None
    return Shard(codec, chunk_spec, layout) if layout.item_size else None


def _find_layout_of_shards(codec: zarr.codecs.ShardingCodec) -> LayoutOf | None:
    """Do the same as `_find_layout_of` for shards, whose inner chunks must be no shards."""
    codec = _in_our_pipeline(codec)
    pipeline = BatchedCodecPipeline.from_codecs(codec.codecs)
    inner = _find_layout_of(pipeline)
    if inner is None or type(pipeline.array_bytes_codec) is zarr.codecs.ShardingCodec:
        return None
    # Where a codec of the index needs an event loop, threads can't decode it.
    return partial(_layout_of_shard, codec, inner) if has_sync_index(codec) else None


def _find_layout_of(pipeline: Any) -> LayoutOf | None:
    """Return what says how the chunks of a pipeline are stored, or None if not uncompressed."""
    if pipeline.bytes_bytes_codecs:
        return None
    codec, before = pipeline.array_bytes_codec, pipeline.array_array_codecs
    if type(codec) is V2Codec and not before:
        codecs = (*(codec.filters or ()), *([codec.compressor] if codec.compressor else ()))
        only: Any = codecs[0] if len(codecs) == 1 else None
        return partial(_layout_of_v2, only) if not codecs or type(only) is Bytes else None
    if type(codec) is zarr.codecs.ShardingCodec and not before:
        return _find_layout_of_shards(codec)
    if type(codec) is not BytesCodec and type(codec) is not zarr.codecs.BytesCodec:
        return None
    if any(type(c) is not TransposeCodec for c in before):
        return None
    return partial(_layout_of_v3, before, codec)


def _why_no_shard(codec: zarr.codecs.ShardingCodec) -> str:
    """Return what in the inner codecs of shards prevents writes in place, or ""."""
    inner = BatchedCodecPipeline.from_codecs(codec.codecs)
    if type(inner.array_bytes_codec) is zarr.codecs.ShardingCodec:
        return "its inner chunks are shards"
    if inner.bytes_bytes_codecs:
        names = ", ".join(str(c.to_dict()["name"]) for c in inner.bytes_bytes_codecs)
        return f"its inner chunks are compressed or checked ({names})"
    return ""


def _certain_layout(layout_of: Any, chunk_spec: ArraySpec) -> Layout | Shard:
    """Return how a chunk is stored: of the chunks of an array, all or none can be read in part."""
    found: Layout | Shard | None = layout_of(chunk_spec)
    if found is None:
        raise TypeError(f"the array's chunks differ: {chunk_spec} does not allow partial reads")
    return found


@dataclasses.dataclass(frozen=True)
class _OneByOne(ReadsParts, ArrayBytesCodec):
    """What a pipeline of zarr's calls to read the chunks that are not read together.

    It reads parts of them, and does nothing else.
    """

    layout_of: Callable[[ArraySpec], Layout | Shard]

    def _layout(self, chunk_spec: ArraySpec) -> Layout | Shard:
        return self.layout_of(chunk_spec)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:  # noqa: ARG002
        return input_byte_length

    def _decode_sync(self, *_: Any) -> Any:
        """Tell zarr's fused pipeline by its existence that no event loop is needed."""
        raise NotImplementedError

    _encode_sync = _decode_sync


def stored_as(array: "zarr.Array[Any]") -> Layout | Shard | None:
    """Return how an array's chunks are stored; None if these pipelines don't read parts of them."""
    metadata: Any = array.metadata
    is_v2 = metadata.zarr_format == 2
    codecs = [V2Codec(metadata.filters, metadata.compressor)] if is_v2 else metadata.codecs
    layout_of = _find_layout_of(BatchedCodecPipeline.from_codecs(codecs))
    return layout_of and layout_of(
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


def _note_encoded(batch: "Sequence[Any]", out: Any, *, are_shards: bool) -> None:
    """Tell `numcodecs_bytes.trace` of compressed or filtered chunks that zarr reads."""
    find, what = source_finder(), "compressed or filtered"
    for byte_getter, spec, _, place, *_ in batch:
        if is_in_shard(byte_getter):  # which is noted
            continue
        source = find(byte_getter)
        if are_shards or not isinstance(source, File):
            _trace.note_not_seen(what)
            continue
        counts: dict[str, Any] = {"chunks": 1, "requests": 1}
        try:
            with contextlib.closing(source.open()) as file:
                num_bytes = file.num_bytes
        except source.missing:
            counts["chunks_missing"] = 1
        except Exception:  # noqa: BLE001 # compressed again in a zip file, or zarr raises the error
            _trace.note_not_seen(what)
            continue
        else:
            num = math.prod(out[place].shape)
            counts |= {"bytes_fetched": num_bytes, "bytes_zarr_alone": num_bytes}
            counts["bytes_selected"] = num * out.dtype.itemsize
            if num < _trace.WHOLE * math.prod(spec.shape):
                counts |= {"chunks_whole": 1, "why_whole": {what: 1}}
        _trace.note(byte_getter, len(spec.shape), counts)


def _makes_valid(pipeline: Any) -> bool:
    """Whether an array's codec writes no bools other than 0 and 1: it is one of ours."""
    codec = pipeline.array_bytes_codec
    if type(codec) is zarr.codecs.ShardingCodec:
        return _makes_valid(BatchedCodecPipeline.from_codecs(codec.codecs))
    has_codec = type(codec) is V2Codec and (codec.filters or codec.compressor)
    return isinstance(codec, BytesCodec) or bool(has_codec)


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

    @classmethod
    def from_codecs(cls, *codecs: Any, **settings: Any) -> Any:
        """Return the pipeline of codecs, like zarr's.

        Raises ValueError if this is the default only because the option `pipeline` is wrong.
        """
        if zarr.config.get("codec_pipeline.path") is default_pipeline():
            configured_pipeline()
        zarrs: Any = super()
        return zarrs.from_codecs(*codecs, **settings)

    @functools.cached_property
    def _layout_of(self) -> LayoutOf | None:
        return _find_layout_of(self)

    @functools.cached_property
    def _certain_layout_of(self) -> Callable[[ArraySpec], Layout | Shard]:
        return partial(_certain_layout, self._layout_of)

    @functools.cached_property
    def _reading(self) -> Any:
        """A pipeline of zarr's that reads one chunk after the other, in part."""
        return self._zarrs([_OneByOne(self._certain_layout_of)], None)

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
        batch = list(batch_info)
        stored = self._stored(batch[0][1]) if batch else None
        if stored is None:
            if _trace.active and batch and self._layout_of is None:
                _note_encoded(batch, out, are_shards=self._has_shards())
                # Its codecs are marked, and do not note the same.
                return await self._writing(batch[0][1]).read(batch, out, drop_axes)
            return await zarrs.read(batch, out, drop_axes)
        exist = await self._read_together(batch, stored, out, drop_axes)
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
        stored = self._stored(batch[0][1])
        if stored is not None:
            await self._write_in_place(batch, value, drop_axes, is_required=mode == "require")
            return
        why = "its codecs, or its data type, do not allow it; if it was just created, open it again"
        if self._has_shards():
            why = _why_no_shard(self.array_bytes_codec) or why  # type: ignore[attr-defined]
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
        to_zarr = partial(hand_on, are_shards=self._has_shards())
        await to_zarr(batch, {k: files[k] for k in range(len(batch)) if k not in parts}, write)
        if not parts:
            return
        encode = encode_array if _makes_valid(self) else encode_unchecked
        layout_of = self._certain_layout_of
        writes = Writes(batch, value.as_ndarray_like(), drop_axes, layout_of, encode)
        left = await write_in_place(writes, parts)
        for k, (why, _) in left.items():
            _note_left(batch[k], why, is_required=is_required)
        await to_zarr(batch, {k: files[k] for k in left if left[k].values is None}, write)
        for k, (_, copied) in left.items():
            if copied is not None:
                item = (*batch[k][:3], ..., False)
                values = type(value).from_ndarray_like(copied)
                await to_zarr([item], {0: files[k]}, partial(zarrs.write, value=values))

    def _writing(self, chunk_spec: ArraySpec) -> Any:
        """Return a pipeline of zarr's with codecs that know that ours has handed on to them.

        Copies: the array's own codecs may belong to several handles.
        """
        if "_marked" not in self.__dict__:
            codecs: Any = map(_in_our_pipeline, self)  # type: ignore[call-overload]
            self.__dict__["_marked"] = self._zarrs(codecs, chunk_spec)
        return self.__dict__["_marked"]

    def _has_shards(self) -> bool:
        return isinstance(self.array_bytes_codec, zarr.codecs.ShardingCodec)  # type: ignore[attr-defined]

    def _stored(self, chunk_spec: ArraySpec) -> Layout | Shard | None:
        """Return how an array's chunks are stored; None if zarr's own pipeline must read them."""
        is_on_cpu = issubclass(chunk_spec.prototype.nd_buffer, cpu.NDBuffer)
        return self._layout_of(chunk_spec) if self._layout_of and is_on_cpu else None

    async def _read_together(
        self, batch: "Sequence[Any]", stored: Layout | Shard, out: Any, drop_axes: tuple[int, ...]
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
        gap, num_workers = configured_gap_bytes(), self._num_workers()
        together = Batch(batch, array, drop_axes, self._certain_layout_of, gap, num_workers)
        if not any(isinstance(source, File) for source in sources):
            lie_in_objects = any(getattr(source, "object", None) for source in sources)
            if isinstance(stored, Shard) or not lie_in_objects:
                return None
            return await read_objects(together, stored)
        is_short = array.nbytes <= AT_ONCE_BYTES
        # To plan what arrays select takes long, and there are many pieces.
        is_quick = array.size <= SHORT or key_of(batch[0][2]) is not None
        at_once = is_short and is_quick and len(batch) <= FEW
        return await read_files(together._replace(at_once=at_once))

    def _num_workers(self) -> int | None:
        """Return the number of threads that zarr's setting for the pipeline says, if it is set."""
        num = zarr.config.get(self._setting, None)
        return max(num, 1) if isinstance(num, int) else None


# A short selection of up to FEW chunks is read on the event loop, if they are in the page cache: a
# thread would take as long to begin.
FEW = 8
# References of a store may point to files and to elsewhere, or be missing. So many are looked at.
NUM_LOOKED_AT = 8


class BytesPipeline(ReadsBatches, BatchedCodecPipeline):
    """zarr's default pipeline, but uncompressed chunks in local files are read in batches.

    Uncompressed chunks elsewhere, including Zarr v2 and transposed ones, are read in part.

    To use it, call ``numcodecs_bytes.set_options(pipeline="BytesPipeline")``, or run
    ``numcodecs-bytes enable``.
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
