"""Codec pipelines that read uncompressed chunks in part, and many of them together.

zarr's own pipelines read whole chunks. `BytesPipeline`, which importing this module makes zarr's
default, as the entry points do, reads what a selection needs, of

- Zarr v3 arrays whose codecs are any number of ``transpose``, followed by ``bytes``
- shards whose inner chunks are stored so
- Zarr v2 arrays without filters and compressor, or with `Bytes` as the only one of them, in either
  ``order``

where the chunks are in files, or in a store that answers byte ranges reliably. Parts of chunks in
local files are written in place if `numcodecs_bytes.write_in_place` asks for it. Everything else is
left to zarr's pipeline.
"""

import contextlib
import copyreg
import dataclasses
import functools
import math
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
from numcodecs_bytes._core.copy import encode_array
from numcodecs_bytes._core.dtypes import (
    NATIVE_ENDIAN,
    copied_as,
    has_byte_order,
    has_variable_length,
    leaf_dtypes,
    name_of_ml_dtype,
    stored_dtype,
)
from numcodecs_bytes._defaults import make_default
from numcodecs_bytes._engine.batch import Batch, read_files
from numcodecs_bytes._engine.files import File, length_of_file
from numcodecs_bytes._engine.layout import Layout, layout_of
from numcodecs_bytes._engine.shards import Shard
from numcodecs_bytes._engine.stores import (
    Whole,
    find_source,
    is_in_shard,
    sources_of,
)
from numcodecs_bytes._names import name_of_chunk
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

__all__ = ["BytesPipeline", "FusedBytesPipeline"]


# Takes the specification of a chunk; returns how it is stored, or None if zarr's own pipeline must
# read it.
LayoutOf = Callable[[ArraySpec], Layout | Shard | None]


def _layout_of_v2(codec: Bytes | None, chunk_spec: ArraySpec) -> Layout | None:
    """Return how a Zarr v2 chunk is stored, by `Bytes` or without any codec."""
    dtype = chunk_spec.dtype.to_native_dtype()
    if has_variable_length(dtype):
        return None
    stored = copied_as(dtype)  # in native order, but NumPy copies some types only as others
    if codec is not None and (codec.dtype is not None or codec.endian != NATIVE_ENDIAN):
        # In a comparison, NumPy takes None as float64.
        if codec.dtype is None or codec.dtype != dtype:
            return None
        if codec.endian is None and has_byte_order(dtype):
            return None
        stored = stored_dtype(dtype, codec.endian)
    is_column_major = chunk_spec.order == "F"
    axis_order = tuple(range(len(chunk_spec.shape)))[::-1] if is_column_major else None
    return layout_of(chunk_spec.shape, dtype, stored, axis_order)


def _layout_of_v3(
    transposes: tuple[TransposeCodec, ...], codec: zarr.codecs.BytesCodec, chunk_spec: ArraySpec
) -> Layout | None:
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
    if has_variable_length(dtype) or (endian is None and has_byte_order(dtype)):
        return None
    if any(map(name_of_ml_dtype, leaf_dtypes(dtype))):
        return None
    try:
        return layout_of(chunk_spec.shape, dtype, stored_dtype(dtype, endian), axis_order)
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


def _why_not_in_parts(pipeline: Any, chunk_spec: ArraySpec) -> str:
    """Return what prevents partial reads and writes of an array for which no layout was found."""
    if not issubclass(chunk_spec.prototype.nd_buffer, cpu.NDBuffer):
        return "its chunks are on a GPU"
    codec, before = pipeline.array_bytes_codec, pipeline.array_array_codecs
    if type(codec) is V2Codec:
        others = [c.codec_id for c in (*(codec.filters or ()), codec.compressor) if c is not None]
    else:
        others = [_name_of_codec(c) for c in (*before, *pipeline.bytes_bytes_codecs)]
    others = [name for name in others if name not in {"transpose", "bytes"}]
    if others:
        return f"it is compressed or filtered by {' and '.join(others)}"
    if type(codec) is zarr.codecs.ShardingCodec:
        return _why_no_parts_of_shards(codec, chunk_spec, is_transposed=bool(before))
    dtype = chunk_spec.dtype.to_native_dtype()
    if has_variable_length(dtype) or dtype.hasobject:
        return f"its elements ({dtype}) are of variable length"
    if type(codec) is V2Codec:
        if any(type(c) is not Bytes for c in (*(codec.filters or ()), codec.compressor) if c):
            return 'its codec "bytes" is not that of numcodecs_bytes'
        return f'the dtype of its codec "bytes" is not {dtype}, that of the array'
    return f"its codec {_name_of_codec(codec)} stores {dtype} in an unknown way"


def _why_no_parts_of_shards(codec: Any, chunk_spec: ArraySpec, *, is_transposed: bool) -> str:
    """Do the same for shards."""
    if is_transposed:
        return "its shards are transposed"
    inner = BatchedCodecPipeline.from_codecs(codec.codecs)
    if type(inner.array_bytes_codec) is zarr.codecs.ShardingCodec:
        return "its inner chunks are shards"
    if not has_sync_index(codec):
        return "the index of its shards is encoded by a codec of another package"
    return _why_not_in_parts(inner, chunk_spec).replace("it is", "its inner chunks are", 1)


def _name_of_codec(codec: Any) -> str:
    """Return the name of a codec in the metadata."""
    return str(codec.codec_id if hasattr(codec, "codec_id") else codec.to_dict()["name"])


def stored_as(array: "zarr.Array[Any]") -> Layout | Shard | None:
    """Return how an array's chunks are stored; None if these pipelines don't read parts of them."""
    pipeline, chunk_spec = _pipeline_and_spec_of(array)
    layout_of = _find_layout_of(pipeline)
    return layout_of and layout_of(chunk_spec)


def why_no_parts(array: "zarr.Array[Any]") -> str:
    """Return what in an array's codecs prevents that parts of its chunks are read, or ""."""
    try:
        stored = stored_as(array)
    except NotImplementedError:
        return "its chunks are of several shapes"  # which zarr calls rectilinear
    return "" if stored else _why_not_in_parts(*_pipeline_and_spec_of(array))


def _pipeline_and_spec_of(array: "zarr.Array[Any]") -> tuple[Any, ArraySpec]:
    """Return zarr's pipeline for the codecs of an array, and the specification of its chunks."""
    metadata: Any = array.metadata
    is_v2 = metadata.zarr_format == 2
    codecs = [V2Codec(metadata.filters, metadata.compressor)] if is_v2 else metadata.codecs
    return BatchedCodecPipeline.from_codecs(codecs), ArraySpec(
        shape=array.shards or array.chunks,
        dtype=metadata.dtype,
        fill_value=metadata.fill_value,
        config=ArrayConfig(order=metadata.order if is_v2 else "C", write_empty_chunks=False),
        prototype=default_buffer_prototype(),
    )


def _note_left(item: Any, why: str, *, is_required: bool) -> None:
    """Note why a chunk is left to zarr, or raise if a part of one must not be."""
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


def _note_encoded(batch: "Sequence[Any]", out: Any, *, are_shards: bool) -> None:
    """Tell `numcodecs_bytes.trace` of compressed or filtered chunks that zarr reads."""
    what = "compressed or filtered"
    for byte_getter, spec, _, place, *_ in batch:
        if is_in_shard(byte_getter):  # which is noted
            continue
        source = find_source(byte_getter)
        if are_shards or not isinstance(source, File):
            _trace.note_not_seen(what)
            continue
        counts: dict[str, Any] = {"chunks": 1, "requests": 1}
        try:
            num_bytes = length_of_file(source)
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


def _note_whole(
    batch: "Sequence[Any]",
    stored: Layout | Shard,
    out: Any,
    results: Any,
    fetched: "Sequence[_trace.Fetched]",
) -> None:
    """Tell `numcodecs_bytes.trace` of uncompressed chunks that zarr has read."""
    for k, (byte_getter, spec, _, place, *_) in enumerate(batch):
        source, before = find_source(byte_getter), fetched[k] if fetched else _trace.Fetched()
        why = before.why
        if isinstance(source, Whole):
            why = why or source.why or "nothing to save: in memory, for example"
        if isinstance(stored, Shard):
            _trace.note_not_seen("inner chunks of shards, which zarr reads")
            if why:
                _trace.note(byte_getter, len(spec.shape), {"why_whole": {why: 1}})
            continue
        is_missing = bool(results) and results[k]["status"] == "missing"
        num_bytes = math.prod(spec.shape) * stored.item_size
        more = _trace.Fetched(
            before.num_requests + 1,
            before.num_bytes + (0 if is_missing else num_bytes),
            why,
        )
        num = None if is_missing else np.size(out[place]) * stored.item_size
        _trace.note_read(byte_getter, len(spec.shape), num_bytes, more, num)


def _add_note(error: Exception, batch: "Sequence[Any]", doing: str) -> None:
    """Say which chunk, or which of several, was read or written when an error was raised."""
    if batch and not any(n.startswith("while ") for n in getattr(error, "__notes__", ())):
        others = f", or another one of {len(batch)}" if len(batch) > 1 else ""
        with contextlib.suppress(Exception):  # some errors are immutable
            error.add_note(f"while {doing} {name_of_chunk(batch[0][0])}{others}")


def _is_array(out: Any) -> bool:
    """Whether an output is a NumPy array in memory, whose elements are no Python objects."""
    array = out.as_ndarray_like()
    return type(out) is cpu.NDBuffer and type(array) is np.ndarray and not array.dtype.hasobject


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
    if type(codec) is not zarr.codecs.ShardingCodec or not _is_ours(codec):
        return codec
    return dataclasses.replace(
        codec,
        codecs=tuple(map(_in_our_pipeline, codec.codecs)),
        index_codecs=tuple(map(_in_our_pipeline, codec.index_codecs)),
    )


def _is_ours(codec: Any) -> bool:
    """Whether a codec, or one inside of it, is of this package."""
    if type(codec) is zarr.codecs.ShardingCodec:
        return any(map(_is_ours, (*codec.codecs, *codec.index_codecs)))
    if type(codec) is V2Codec:
        return any(map(_is_ours, (*(codec.filters or ()), codec.compressor)))
    return isinstance(codec, BytesCodec | Bytes)


_CPU = cpu.Buffer, cpu.NDBuffer


class ReadsParts:
    """Mixin for one of zarr's pipelines: reads and writes parts of uncompressed chunks."""

    _setting: str  # zarr's setting for the number of threads

    @classmethod
    def from_codecs(cls, codecs: "Iterable[Any]", **settings: Any) -> Any:
        """Return the pipeline of codecs, like zarr's."""
        warn_of_unknown_keys()
        zarrs: Any = super()
        # Copies: the codecs may belong to several arrays.
        return zarrs.from_codecs([_in_our_pipeline(codec) for codec in codecs], **settings)

    @functools.cached_property
    def _layout_of(self) -> LayoutOf | None:
        return _find_layout_of(self)

    @functools.cached_property
    def _kept(self) -> dict[Any, Layout | Shard | None]:
        """How chunks are stored, by their shape: of an array, they differ in nothing else."""
        return {}

    def __reduce__(self) -> Any:
        """Pickle as zarr's own pipeline where nothing of ours is used, so that nobody needs us."""
        kind, codecs = type(self), list(self)  # type: ignore[call-overload]
        if self._layout_of is None and not any(map(_is_ours, codecs)) and not write_in_place():
            kind = self._zarrs_class()
        make: Any = copyreg._reconstructor  # type: ignore[attr-defined] # noqa: SLF001
        return make, (kind, object, None), self._fields()

    def __eq__(self, other: object) -> bool:
        """Whether zarr's pipelines would be equal, as an array is to what it was pickled as."""
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
        stored = self._stored(batch[0][1]) if batch else None
        if stored is None or not _is_array(out) or type(batch[0][0]) is not StorePath:
            if _trace.active and batch and self._layout_of is None:
                _note_encoded(batch, out, are_shards=self._has_shards())
            return await zarrs.read(batch, out, drop_axes)
        why_left: dict[int, str] = {}
        exist = await self._read_parts(batch, stored, out, drop_axes, why_left)
        left = [k for k, exists in enumerate(exist) if exists is None]
        if len(left) == len(batch) and not why_left:
            return await self._read_whole(batch, stored, out, drop_axes)
        results: list[Any] = [{"status": "present" if exists else "missing"} for exists in exist]
        if left:
            some, why = [batch[k] for k in left], [why_left.get(k, "") for k in left]
            fetched = [_trace.Fetched(why=each) for each in why]
            others = await self._read_whole(some, stored, out, drop_axes, fetched)
            for k, result in zip(left, others or (), strict=HAS_RESULTS):
                results[k] = result
        return tuple(results) if HAS_RESULTS else None

    async def _read_parts(
        self,
        batch: "Sequence[Any]",
        stored: Layout | Shard,
        out: Any,
        drop_axes: tuple[int, ...],
        why_left: dict[int, str],
    ) -> "list[bool | None]":
        """Read chunks in part; return whether each exists, None if it is left to zarr, and why."""
        source_of = sources_of(batch[0][0].store)
        exist: list[bool | None] = [None] * len(batch)
        sources = [source_of(byte_getter.path) for byte_getter, *_ in batch[:NUM_LOOKED_AT]]
        if all(isinstance(source, Whole) for source in sources):
            return exist

        def find(byte_getter: Any) -> File | None:
            source = source_of(byte_getter.path)
            return source if isinstance(source, File) else None

        stored_as, num_waiting = self._stored_for_certain, zarr.config.get("async.concurrency")
        array, gap = out.as_ndarray_like(), max_gap_bytes()
        limits = self._num_workers(), num_waiting, gap
        together = Batch(batch, array, drop_axes, stored_as, find, why_left, *limits)
        if any(isinstance(source, File) for source in sources):
            exist = await read_files(together)
        if all(isinstance(source, File) for source in sources):
            return exist
        from numcodecs_bytes._engine import remote  # noqa: PLC0415 # if it is needed

        async def read_whole(ks: "Sequence[int]", fetched: Any) -> list[bool]:
            some = [batch[k] for k in ks]
            results = await self._read_whole(some, stored, out, drop_axes, fetched)
            return [result["status"] == "present" for result in results or ()] or [True] * len(ks)

        left = [k for k, exists in enumerate(exist) if exists is None]
        metadata = ".zarray" if type(self.array_bytes_codec) is V2Codec else "zarr.json"  # type: ignore[attr-defined]
        found = await remote.read(together, left, source_of, read_whole, metadata) if left else []
        return [b if a is None else a for a, b in zip(exist, found or exist, strict=True)]

    async def _read_whole(
        self,
        batch: "Sequence[Any]",
        stored: Layout | Shard,
        out: Any,
        drop_axes: tuple[int, ...],
        fetched: "Sequence[_trace.Fetched]" = (),
    ) -> Any:
        """Let zarr read chunks, of which something was fetched before, perhaps."""
        zarrs: Any = super()
        try:
            results = await zarrs.read(batch, out, drop_axes)
        except Exception as error:
            _add_note(error, batch, "reading")
            for (byte_getter, spec, *_), before in zip(batch, fetched, strict=False):
                if before.why:
                    _trace.note(byte_getter, len(spec.shape), {"why_whole": {before.why: 1}})
            raise
        if _trace.active:
            _note_whole(batch, stored, out.as_ndarray_like(), results, fetched)
        return results

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
            _add_note(error, batch, "writing")
            raise

    async def _write(self, batch: "Sequence[Any]", value: Any, drop_axes: tuple[int, ...]) -> None:
        zarrs: Any = super()
        mode = write_in_place()
        if not mode or not batch or is_in_shard(batch[0][0]):
            await zarrs.write(batch, value, drop_axes)
            return
        stored = self._stored(batch[0][1])
        if stored is not None:
            await self._write_in_place(batch, value, drop_axes, is_required=mode == "require")
            return
        why = _why_not_in_parts(self, batch[0][1])
        for item in batch:
            _note_left(item, why, is_required=mode == "require")
        await zarrs.write(batch, value, drop_axes)

    async def _write_in_place(
        self, batch: "Sequence[Any]", value: Any, drop_axes: tuple[int, ...], *, is_required: bool
    ) -> None:
        # Most programs only read.
        from numcodecs_bytes._engine.write import (  # noqa: PLC0415
            Writes,
            encode_unchecked,
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
        # Others first: the values may be the memory of a part, which changes.
        if others := [item for k, item in enumerate(batch) if k not in files]:
            await zarrs.write(others, value, drop_axes)
        if not files:
            return
        encode = encode_array if _makes_valid(self) else encode_unchecked
        array, stored_as = value.as_ndarray_like(), self._stored_for_certain
        left = await Writes(batch, array, drop_axes, stored_as, encode).write(files)
        for k, (why, _) in left.items():
            _note_left(batch[k], why, is_required=is_required)
        if others := [batch[k] for k, (_, copied) in left.items() if copied is None]:
            await zarrs.write(others, value, drop_axes)
        for k, (_, copied) in left.items():
            if copied is not None:
                item = (*batch[k][:3], ..., False)
                await zarrs.write([item], type(value).from_ndarray_like(copied))

    def _has_shards(self) -> bool:
        return isinstance(self.array_bytes_codec, zarr.codecs.ShardingCodec)  # type: ignore[attr-defined]

    def _stored(self, chunk_spec: ArraySpec) -> Layout | Shard | None:
        """Return how a chunk is stored; None if zarr's own pipeline must read it."""
        prototype = chunk_spec.prototype  # others may do more than hold bytes
        if not self._layout_of or (prototype.buffer, prototype.nd_buffer) != _CPU:
            return None
        kept, shape = self._kept, chunk_spec.shape
        if shape not in kept:
            kept[shape] = self._layout_of(chunk_spec)
        return kept[shape]

    def _stored_for_certain(self, chunk_spec: ArraySpec) -> Layout | Shard:
        """Do the same for another chunk of an array: all or none can be read in part."""
        stored = self._stored(chunk_spec)
        if stored is None:
            raise TypeError(f"the array's chunks differ: {chunk_spec} does not allow partial reads")
        return stored

    def _num_workers(self) -> int | None:
        """Return the number of threads that zarr's setting for the pipeline says, if it is set."""
        num = zarr.config.get(self._setting, None)
        return max(num, 1) if isinstance(num, int) else None


# References of a store may point to files and to elsewhere, or be missing. So many are looked at.
NUM_LOOKED_AT = 8


class BytesPipeline(ReadsParts, BatchedCodecPipeline):
    """zarr's default pipeline, but of uncompressed chunks it reads what a selection needs.

    zarr's default once this package is installed.
    """

    _setting = "threading.max_workers"


zarr.registry.register_pipeline(BytesPipeline)
# What takes the place of zarr's own default, whichever that is.
_REPLACES = {f"{BatchedCodecPipeline.__module__}.BatchedCodecPipeline": BytesPipeline}

if FusedCodecPipeline is None:
    __all__ = ["BytesPipeline"]
else:

    class FusedBytesPipeline(ReadsParts, FusedCodecPipeline):  # type: ignore[misc]
        """zarr's fused pipeline (3.3 and newer) with the reads of `BytesPipeline`."""

        _setting = "codec_pipeline.max_workers"

    zarr.registry.register_pipeline(FusedBytesPipeline)
    _REPLACES[f"{FusedCodecPipeline.__module__}.FusedCodecPipeline"] = FusedBytesPipeline


def warn_if_not_chosen() -> None:
    """Warn if writes in place are required, but arrays will get a pipeline that makes none."""
    path = zarr.config.get("codec_pipeline.path")
    with contextlib.suppress(Warning, ValueError):  # a wrong value is raised where it is used
        if write_in_place() == "require" and path not in _OURS:
            warnings.warn(
                f"numcodecs_bytes.write_in_place is 'require', but codec_pipeline.path is {path}: "
                f"parts of Zarr v2 chunks will not be written in place; set it to {_OURS[0]}",
                stacklevel=2,
            )


_OURS = [f"{kind.__module__}.{kind.__name__}" for kind in _REPLACES.values()]


def _use_by_default() -> None:
    """Make the pipeline that extends zarr's default the default."""
    default: str = zarr.config.defaults[0]["codec_pipeline"]["path"]
    if default not in _OURS and default not in _REPLACES:
        raise AttributeError(f"zarr's default pipeline is {default}")
    paths: dict[str, str] = dict(zip(_REPLACES, _OURS, strict=True))
    make_default("codec_pipeline", "path", paths.get(default, default))


_use_by_default()
