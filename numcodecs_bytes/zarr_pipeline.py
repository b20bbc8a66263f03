"""Codec pipelines that read uncompressed chunks in part, and many of them together.

zarr's own pipelines read whole chunks. Importing this module, as the entry points do, makes
`BatchedBytesPipeline` zarr's default. It reads only what a selection needs, from

- Zarr v3 arrays whose codecs are any number of ``transpose``, followed by ``bytes``
- shards whose inner chunks are stored that way
- Zarr v2 arrays without filters or a compressor, or with `Bytes` as the only one of them, in either
  ``order``

if the chunks are in files, or in a store that answers byte ranges reliably. Parts of chunks in
local files are written in place if `numcodecs_bytes.write_in_place` asks for it. Everything else is
left to zarr's pipeline.
"""

import contextlib
import copyreg
import dataclasses
import warnings
from collections.abc import Callable
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
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    copied_as,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    name_of_ml_dtype,
    stored_dtype,
)
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._defaults import make_default
from numcodecs_bytes._engine import kept
from numcodecs_bytes._engine.batch import Batch, read_files
from numcodecs_bytes._engine.files import File
from numcodecs_bytes._engine.layout import Layout, layout_of
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._engine.stores import Remote, Whole, is_in_shard, name_of_class, sources_of
from numcodecs_bytes._names import add_name, name_of_chunk
from numcodecs_bytes._options import max_gap_bytes, warn_of_unknown_keys, write_in_place
from numcodecs_bytes._zarr_versions import (
    HAS_RESULTS,
    HAS_STRUCT,
    FusedCodecPipeline,
    has_sync_index,
)
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr import BytesCodec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BatchedBytesPipeline", "FusedBytesPipeline"]


# Takes the specification of a chunk, and returns how it is stored, or why zarr has to read it.
LayoutOf = Callable[[ArraySpec], Layout | Shard | Whole]


def _layout_of_v2(codec: Bytes | None, chunk_spec: ArraySpec) -> Layout | Whole:
    """Return how a Zarr v2 chunk is stored, by `Bytes` or without any codec."""
    dtype = chunk_spec.dtype.to_native_dtype()
    if has_variable_length(dtype):
        return Whole(f"elements of variable length ({dtype})")
    stored = copied_as(dtype)  # native order, but NumPy copies some types only as integers
    if codec is not None and (codec.dtype is not None or codec.endian != NATIVE_ENDIAN):
        # In a comparison, NumPy treats None as float64.
        is_of_array = codec.dtype is not None and codec.dtype == dtype
        if not is_of_array or (codec.endian is None and has_byte_order(dtype)):
            return Whole(f'the codec "bytes" has a dtype other than the array\'s, {dtype}')
        stored = stored_dtype(dtype, codec.endian)
    is_column_major = chunk_spec.order == "F"
    axis_order = tuple(range(len(chunk_spec.shape)))[::-1] if is_column_major else None
    return layout_of(chunk_spec.shape, dtype, stored, axis_order)


def _layout_of_v3(
    transposes: tuple[TransposeCodec, ...], codec: zarr.codecs.BytesCodec, chunk_spec: ArraySpec
) -> Layout | Whole:
    """Return how a Zarr v3 chunk is stored: transposed, or not, then by the bytes codec."""
    axis_order = None
    for transpose in transposes:
        before = axis_order or range(len(transpose.order))
        axis_order = tuple(before[axis] for axis in transpose.order)
    if isinstance(codec, BytesCodec):
        return layout_of(chunk_spec.shape, *codec._dtypes(chunk_spec), axis_order)  # noqa: SLF001
    # zarr's own codec, which stores some data types differently.
    dtype = chunk_spec.dtype.to_native_dtype()
    endian = getattr(codec.endian, "value", codec.endian)
    try:
        stored = stored_dtype(dtype, endian)
    except (TypeError, ValueError):  # a data type of another package, or without its endian
        stored = None
    is_unknown = has_variable_length(dtype) or any(map(name_of_ml_dtype, leaf_dtypes(dtype)))
    if stored is None or is_unknown:
        return Whole(f"zarr's own codec stores {dtype}")
    return layout_of(chunk_spec.shape, dtype, stored, axis_order)


def _layout_of_shard(codec: Any, layout_of_inner: LayoutOf, chunk_spec: ArraySpec) -> Shard | Whole:
    """Return how a shard is stored."""
    inner = layout_of_inner(codec._get_chunk_spec(chunk_spec))  # noqa: SLF001
    if isinstance(inner, Whole):
        return inner
    if isinstance(inner, Shard):
        return Whole("shards in shards")
    # zarr 3.1.6 can't read its own structures in shards.
    if not inner.item_size or (inner.dtype.kind == "V" and not HAS_STRUCT):
        return Whole(f"{inner.dtype} in shards")
    return Shard(codec, chunk_spec, inner)


def _find_layout_of(pipeline: Any) -> LayoutOf | Whole:
    """Return what says how the chunks of a pipeline are stored, or why zarr must read them."""
    codec, transposes = pipeline.array_bytes_codec, pipeline.array_array_codecs
    others = [*(c for c in transposes if type(c) is not TransposeCodec)]
    others += pipeline.bytes_bytes_codecs
    if type(codec) is V2Codec:
        codecs = [c for c in (*(codec.filters or ()), codec.compressor) if c is not None]
        only: Any = codecs[0] if codecs else None
        if len(codecs) < 2 and (only is None or type(only) is Bytes):
            return partial(_layout_of_v2, only)
        others += [c for c in codecs if type(c) is not Bytes] or codecs
    if others:
        names = [getattr(c, "codec_id", None) or c.to_dict()["name"] for c in others]
        return Whole(f"compressed or filtered by {' and '.join(names)}")
    if type(codec) is zarr.codecs.ShardingCodec:
        # If a codec of the index needs an event loop, threads can't decode the index.
        if transposes or not has_sync_index(codec):
            return Whole("transposed shards, or an index encoded by an unknown codec")
        codec = _in_our_pipeline(codec)
        inner = _find_layout_of(BatchedCodecPipeline.from_codecs(codec.codecs))
        return inner if isinstance(inner, Whole) else partial(_layout_of_shard, codec, inner)
    if type(codec) is BytesCodec or type(codec) is zarr.codecs.BytesCodec:
        return partial(_layout_of_v3, transposes, codec)
    return Whole(f"stored by {name_of_class(codec)}")


def stored_as(array: "zarr.Array[Any]") -> Layout | Shard | Whole:
    """Return how an array's chunks are stored, or why these pipelines can't read parts of them."""
    metadata: Any = array.metadata
    is_v2 = metadata.zarr_format == 2
    codecs = [V2Codec(metadata.filters, metadata.compressor)] if is_v2 else metadata.codecs
    try:
        shape = array.shards or array.chunks
    except NotImplementedError:  # which zarr calls rectilinear
        return Whole("chunks of several shapes")
    config = ArrayConfig(order=metadata.order if is_v2 else "C", write_empty_chunks=False)
    fill_value, prototype = metadata.fill_value, default_buffer_prototype()
    layout_of = _find_layout_of(BatchedCodecPipeline.from_codecs(codecs))
    chunk_spec = ArraySpec(shape, metadata.dtype, fill_value, config, prototype)
    return layout_of if isinstance(layout_of, Whole) else layout_of(chunk_spec)


def _note_left(item: Any, why: str, *, is_required: bool) -> None:
    """Note why a chunk is left to zarr; raise if a write to part of it must be in place."""
    byte_setter, spec, _, _, is_complete, *_ = item
    if is_required and not is_complete:
        raise RuntimeError(
            f"part of {name_of_chunk(byte_setter)} can't be written in place, as "
            f"numcodecs_bytes.write_in_place requires: {why}; run `numcodecs-bytes` to see what "
            "sets that option"
        )
    if _trace.active:
        counts = {"why_not_in_place": {"the whole chunk is written" if is_complete else why: 1}}
        _trace.note(byte_setter, len(spec.shape), counts)


async def _check_lengths(items: "Sequence[Any]", stored_as: Callable[[ArraySpec], Any]) -> None:
    """Raise ValueError if a chunk has the wrong length, which zarr's own error does not mention."""
    for byte_getter, spec, *_ in items:
        raw, layout = await byte_getter.get(spec.prototype), stored_as(spec)
        if raw is not None:
            name = name_of_chunk(byte_getter)
            check_length(len(raw), layout.shape, layout.dtype, layout.stored, name)


def _is_array(out: Any) -> bool:
    """Whether an output is a NumPy array in memory whose elements are not Python objects."""
    array = out.as_ndarray_like()
    return type(out) is cpu.NDBuffer and type(array) is np.ndarray and not array.dtype.hasobject


def _in_our_pipeline(codec: Any) -> Any:
    """Return a codec, and the codecs inside it, for a pipeline of ours."""
    if isinstance(codec, BytesCodec):
        return codec.in_our_pipeline()
    if type(codec) is not zarr.codecs.ShardingCodec or not _is_ours(codec):
        return codec
    return dataclasses.replace(
        codec,
        codecs=tuple(map(_in_our_pipeline, codec.codecs)),
        index_codecs=tuple(map(_in_our_pipeline, codec.index_codecs)),
    )


def _is_ours(codec: Any) -> bool:
    """Whether a codec, or one inside it, is from this package."""
    if type(codec) is zarr.codecs.ShardingCodec:
        return any(map(_is_ours, (*codec.codecs, *codec.index_codecs)))
    if type(codec) is V2Codec:
        return any(map(_is_ours, (*(codec.filters or ()), codec.compressor)))
    return isinstance(codec, BytesCodec | Bytes)


class _Once:
    """Like functools.cached_property, but no lock, which on Python 3.11 a child may find taken."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return vars(instance).setdefault(self._name, self._make(instance))


class ReadsParts:
    """Mixin for one of zarr's pipelines: reads and writes parts of uncompressed chunks."""

    _setting: str  # zarr's setting for the number of threads

    @classmethod
    def from_codecs(cls, codecs: "Iterable[Any]", **settings: Any) -> Any:
        """Return a pipeline of the codecs, like zarr's."""
        warn_of_unknown_keys()
        zarrs: Any = super()
        # Copies: the codecs may belong to several arrays.
        return zarrs.from_codecs([_in_our_pipeline(codec) for codec in codecs], **settings)

    @_Once
    def _layout_of(self) -> LayoutOf | Whole:
        return _find_layout_of(self)

    def __reduce__(self) -> Any:
        """Pickle as zarr's own pipeline if nothing of ours is used, so that others can load it."""
        kind, codecs = type(self), list(self)  # type: ignore[call-overload]
        is_whole = isinstance(self._layout_of, Whole)
        if is_whole and not any(map(_is_ours, codecs)) and not write_in_place():
            kind = self._zarrs_class()
        make: Any = copyreg._reconstructor  # type: ignore[attr-defined] # noqa: SLF001
        return make, (kind, object, None), self._fields()

    def __eq__(self, other: object) -> bool:
        """Whether zarr's pipelines would be equal, so that an array equals its pickled copy."""
        if type(other) not in {type(self), self._zarrs_class()}:
            return NotImplemented
        return self._fields() == ReadsParts._fields(other)  # type: ignore[arg-type]

    def __hash__(self) -> int:
        return hash(tuple(self._fields().values()))

    @classmethod
    def _zarrs_class(cls) -> Any:
        return next(kind for kind in cls.__mro__ if kind.__module__.startswith("zarr."))

    def _fields(self) -> dict[str, Any]:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: getattr(self, field.name) for field in fields}

    async def read(
        self, batch_info: "Iterable[Any]", out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read the selections of chunks into `out`, like zarr's pipeline."""
        zarrs: Any = super()
        batch = list(batch_info)
        if not batch or not _is_array(out):
            return await zarrs.read(batch, out, drop_axes)
        stored, byte_getter = self._stored(batch[0][1]), batch[0][0]
        if not isinstance(stored, Whole) and type(byte_getter) is not StorePath:
            stored = Whole(f"{name_of_class(byte_getter)} is no StorePath")
        if isinstance(stored, Whole):
            if _trace.active and not is_in_shard(byte_getter):  # else the shard is noted
                _trace.note_not_seen(stored.why, len(batch))
            return await zarrs.read(batch, out, drop_axes)
        together = self._batch(batch, out.as_ndarray_like(), drop_axes)
        read_whole = partial(self._read_whole, together, out)
        exist = await self._read_parts(together, read_whole)
        left = [k for k, exists in enumerate(exist) if exists is None]
        if left:
            fetched = [_trace.Fetched(why=together.why_left.get(k, "")) for k in left]
            for k, exists in zip(left, await read_whole(left, fetched), strict=True):
                exist[k] = exists
        results = tuple({"status": "present" if exists else "missing"} for exists in exist)
        return results if HAS_RESULTS else None

    def _batch(self, items: "Sequence[Any]", out: Any, drop_axes: tuple[int, ...]) -> Batch:
        """Return what to read, and where each chunk is stored."""
        source_of = sources_of(items[0][0].store)
        sources = [source_of(byte_getter.path) for byte_getter, *_ in items]
        why_left = {k: s.why for k, s in enumerate(sources) if isinstance(s, Whole)}
        num = zarr.config.get(self._setting, None)
        num_workers = max(num, 1) if isinstance(num, int) else None
        stored_as, gap = self._stored, max_gap_bytes()
        return Batch(items, sources, out, drop_axes, stored_as, why_left, num_workers, gap)

    async def _read_parts(self, batch: Batch, read_whole: Any) -> list[bool | None]:
        """Read chunks in part; return whether each exists, or None if it is left to zarr."""
        exist: list[bool | None] = [None] * len(batch.items)
        kinds = set(map(type, batch.sources))
        if File in kinds:
            exist = await read_files(batch)
        if Remote not in kinds:
            return exist
        from numcodecs_bytes._engine import remote  # noqa: PLC0415 # only if it is needed

        left = [k for k, source in enumerate(batch.sources) if isinstance(source, Remote)]
        metadata = ".zarray" if self._is_v2() else "zarr.json"
        found = await remote.read(batch, left, read_whole, metadata)
        return [b if a is None else a for a, b in zip(exist, found, strict=True)]

    async def _read_whole(
        self, batch: Batch, out: Any, ks: "Sequence[int]", fetched: "Sequence[_trace.Fetched]"
    ) -> list[bool]:
        """Let zarr read chunks, of which something may have been fetched before."""
        zarrs: Any = super()
        items = [batch.items[k] for k in ks]
        try:
            results = await zarrs.read(items, out, batch.drop_axes)
        except Exception as error:
            for before in fetched:
                if before.why:
                    _trace.note_not_seen(before.why)
            if isinstance(error, ValueError) and self._is_v2():
                await _check_lengths(items, self._stored)
            add_name(error, items[0][0], "reading", len(items))
            raise
        exist = [result["status"] == "present" for result in results or ()] or [True] * len(ks)
        for k, exists, before in zip(ks, exist, fetched, strict=True):
            batch.note_whole(k, before, exists=exists)
        return exist

    async def write(
        self, batch_info: "Iterable[Any]", value: Any, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write to the selections of chunks from `value`, like zarr's pipeline.

        Raises RuntimeError if `numcodecs_bytes.write_in_place` is "require", and part of a chunk
        can't be written in place. Other chunks may have been written by then.
        """
        batch = list(batch_info)
        try:
            await self._write(batch, value, drop_axes)
        except Exception as error:
            if batch:
                add_name(error, batch[0][0], "writing", len(batch))
            raise

    async def _write(self, batch: "Sequence[Any]", value: Any, drop_axes: tuple[int, ...]) -> None:
        zarrs: Any = super()
        mode = write_in_place()
        if not mode or not batch or is_in_shard(batch[0][0]):
            await zarrs.write(batch, value, drop_axes)
            return
        stored = self._stored(batch[0][1])
        if not isinstance(stored, Whole):
            await self._write_in_place(batch, value, drop_axes, is_required=mode == "require")
            return
        for item in batch:
            _note_left(item, stored.why, is_required=mode == "require")
        await zarrs.write(batch, value, drop_axes)

    async def _write_in_place(
        self, batch: "Sequence[Any]", value: Any, drop_axes: tuple[int, ...], *, is_required: bool
    ) -> None:
        # Imported here, because most programs only read.
        from numcodecs_bytes._engine.write import (  # noqa: PLC0415
            Writes,
            with_own_memory,
            writable_path,
        )

        zarrs: Any = super()
        files = dict[int, str]()
        for k, item in enumerate(batch):
            file = writable_path(item[0])
            if item[4] or isinstance(file, Whole):
                _note_left(item, getattr(file, "why", ""), is_required=is_required)
            else:
                files[k] = file
        if files:
            value = type(value).from_ndarray_like(await with_own_memory(value.as_ndarray_like()))
        # Whole chunks first: the values may be mapped from a file that writes in place change.
        if others := [item for k, item in enumerate(batch) if k not in files]:
            await zarrs.write(others, value, drop_axes)
        left = {}
        if files:
            writes = Writes(batch, value.as_ndarray_like(), drop_axes, self._stored)
            left = await writes.write(files)
        for k, why in left.items():
            _note_left(batch[k], why, is_required=is_required)
        if left:
            await zarrs.write([batch[k] for k in left], value, drop_axes)

    def _is_v2(self) -> bool:
        return type(self.array_bytes_codec) is V2Codec  # type: ignore[attr-defined]

    def _stored(self, chunk_spec: ArraySpec) -> Layout | Shard | Whole:
        """Return how a chunk is stored, or why zarr's own pipeline must read it."""
        prototype = chunk_spec.prototype  # others may do more than hold bytes
        if isinstance(self._layout_of, Whole):
            return self._layout_of
        if (prototype.buffer, prototype.nd_buffer) != (cpu.Buffer, cpu.NDBuffer):
            return Whole("chunks on a GPU, or in memory of another kind")
        key = self._layout_of, chunk_spec.shape  # the chunks of an array differ in nothing else
        stored: Layout | Shard | Whole | None = kept.find(key)
        if stored is None:
            stored = self._layout_of(chunk_spec)
            if not isinstance(stored, Whole):
                stored = kept.add(key, stored)
        return stored


class BatchedBytesPipeline(ReadsParts, BatchedCodecPipeline):
    """zarr's default pipeline, but it reads only what a selection needs of uncompressed chunks."""

    _setting = "threading.max_workers"


zarr.registry.register_pipeline(BatchedBytesPipeline)
# Our replacement for each of zarr's pipelines that may be its default, as paths of classes.
_REPLACES = {
    f"{BatchedCodecPipeline.__module__}.BatchedCodecPipeline": f"{__name__}.BatchedBytesPipeline"
}

if FusedCodecPipeline is None:
    __all__ = ["BatchedBytesPipeline"]
else:

    class FusedBytesPipeline(ReadsParts, FusedCodecPipeline):  # type: ignore[misc]
        """zarr's fused pipeline (3.3 and newer) with the reads of `BatchedBytesPipeline`."""

        _setting = "codec_pipeline.max_workers"

    zarr.registry.register_pipeline(FusedBytesPipeline)
    fused = f"{FusedCodecPipeline.__module__}.FusedCodecPipeline"
    _REPLACES[fused] = f"{__name__}.FusedBytesPipeline"


def warn_if_not_chosen() -> None:
    """Warn if writes in place are required, but arrays will get a pipeline that can't make them."""
    path = zarr.config.get("codec_pipeline.path")
    with contextlib.suppress(Warning, ValueError):  # a wrong value raises an error where it is used
        if write_in_place() == "require" and path not in _REPLACES.values():
            warnings.warn(
                f"numcodecs_bytes.write_in_place is 'require', but codec_pipeline.path is {path}: "
                "parts of Zarr v2 chunks will not be written in place; set it to "
                f"{BatchedBytesPipeline.__module__}.BatchedBytesPipeline",
                stacklevel=2,
            )


def _use_by_default() -> None:
    """Make the pipeline that extends zarr's default pipeline the default."""
    default: str = zarr.config.defaults[0]["codec_pipeline"]["path"]
    if default not in (*_REPLACES, *_REPLACES.values()):
        raise AttributeError(f"zarr's default pipeline is {default}")
    make_default("codec_pipeline", "path", _REPLACES.get(default, default))


_use_by_default()
