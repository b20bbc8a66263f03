"""Access to the chunks of an array: how they are stored, where they are, and their keys.

A pipeline makes one for its array. Its reads and writes use it, and `SyncReader` does.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import zarr
from zarr.core.array import create_codec_pipeline
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.storage import MemoryStore, StorePath
from zarr.types import AnyArray

from numcodecs_bytes._core.interrupts import raise_interrupt
from numcodecs_bytes._pipeline.array_layouts import (
    ArrayLayouts,
    Codecs,
    chunk_spec_of,
    first_chunk_spec_of,
)
from numcodecs_bytes._pipeline.elementwise import byte_order_of
from numcodecs_bytes._plan.gap_policy import UNLIMITED, GapPolicy
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.shards import AnyLayout, ShardLayout
from numcodecs_bytes._runtime import traces
from numcodecs_bytes._sources.files import FileExtent, length_of_file
from numcodecs_bytes._sources.store_states import StoreState, state_of
from numcodecs_bytes._sources.stores import (
    ChunkLocator,
    ObjectExtent,
    locator_for,
    may_be_cached,
    store_of,
)
from numcodecs_bytes._zarr_api import options
from numcodecs_bytes._zarr_api.batch_items import ChunkRequest
from numcodecs_bytes._zarr_api.names import keys_are_v2, name_of_store, path_of_array
from numcodecs_bytes._zarr_api.pickling import PickledAsConfigured
from numcodecs_bytes._zarr_api.v2_codec import V2Codec
from numcodecs_bytes._zarr_api.versions import COPIES_SWAP_BYTES
from numcodecs_bytes.zarr_codec import BytesCodec

if TYPE_CHECKING:
    from numcodecs_bytes._plan.forms import FormCache


class ChunkLocations(NamedTuple):
    """Where the chunks of an array are, as long as its store and the options stay.

    It is cached: to find it out again takes 4 to 6 % of the time in which zarr reads a small chunk.
    """

    store: Any
    attributes: list[object] | None  # of the store, such as its folder; None if it does not tell
    state: StoreState
    options: object  # of this package, which may name the class of the store
    prototype: object  # the kind of memory that chunks are read into
    locator: ChunkLocator | None = None  # None: zarr reads all chunks
    why_left: LeftToZarr = LeftToZarr()
    max_gap: int | None = None  # the largest gap to read, in bytes, if the user has set it
    are_short_objects: bool = False  # whether chunks are too short to be requested in parts

    @property
    def may_be_cached(self) -> bool:
        """Whether it stays right: a strike ends after a while."""
        return may_be_cached(self.store) and not self.state.is_struck

    @property
    def is_in_memory(self) -> bool:
        """Whether chunks are in a dict of this process, as they are in zarr's own MemoryStore."""
        return type(self.store) is MemoryStore

    def is_valid(self, byte_getter: object, spec: ArraySpec) -> bool:
        """Whether it still says where a chunk is."""
        store = self.store
        if self.attributes is None or getattr(byte_getter, "store", None) is not store:
            return False
        # A store may be moved, opened, or given another file system: then its attributes are other
        # objects. Those that are equal, but not the same, only cost the time to find it out again;
        # one that is new was not used.
        if not all(map(operator.is_, [*vars(store).values()], self.attributes)):
            return False
        # zarr makes an equal prototype for each selection.
        is_same = spec.prototype == self.prototype and _options() == self.options
        return is_same and not self.state.is_struck

    def file_extent_of(self, path: str) -> FileExtent:
        """Return where a chunk is in its file; raise `LeftToZarr` if it is not in a file."""
        if self.locator is None:
            raise self.why_left.without_frames()
        extent = self.locator(path)
        if not isinstance(extent, FileExtent):
            raise LeftToZarr("its chunks are requested")
        return extent

    def leaves_all_to_zarr(self, requests: Sequence[ChunkRequest]) -> bool:
        """Whether zarr reads all chunks of a batch, because it must, or is just as fast."""
        if self.locator is None:
            return True
        return self.are_short_objects and all(request.is_complete for request in requests)


class ArrayChunks(NamedTuple):
    """The keys of an array's chunks, and what the array knows of them.

    zarr's array passes that to its pipeline with each chunk; `SyncReader` does without.
    """

    access: "ArrayAccess"
    metadata: Any
    buffers: object  # which zarr's config sets
    spec: ArraySpec
    layout: AnyLayout
    prefix: str  # of the paths of chunks
    first: StorePath  # of the chunk at the start of the array, whether it exists or not
    may_be_missing: bool  # else a missing chunk is an error
    order: Any  # of the axes of results in memory, "C" or "F"
    forms: "FormCache"

    def is_valid(self, array: AnyArray) -> bool:
        """Whether neither the metadata of the array nor zarr's buffers have been replaced."""
        return self.metadata is array.metadata and self.buffers == _buffers()

    def path_of(self, chunk_coords: tuple[int, ...]) -> str:
        """Return the path of a chunk in the store."""
        key: str = self.metadata.encode_chunk_key(chunk_coords)
        return self.prefix + key

    def path_in(self, coords: list[int]) -> tuple[str, tuple[int, ...]]:
        """Return the path of a chunk, or of a shard and the coordinates of an inner chunk in it.

        `coords` are those of the inner chunk in the array.
        """
        layout = self.layout
        if not isinstance(layout, ShardLayout):
            return self.path_of(tuple(coords)), ()
        pairs = list(map(divmod, coords, layout.grid_shape))
        shard_coords, inner_coords = zip(*pairs, strict=True)
        return self.path_of(shard_coords), inner_coords

    def locate(self) -> ChunkLocations:
        """Return where the chunks are; raise `LeftToZarr` as `ArrayAccess.locate` does."""
        return self.access.locate(self.first, self.spec)


class ArrayAccess:
    """How the chunks of an array are stored, and where they are.

    Threads share it without a lock, which a forked child could inherit locked: each attribute is
    replaced at once.
    """

    def __init__(self, pipeline: Any, threads_setting: str, *, has_v2_keys: bool | None) -> None:
        self.codec = pipeline.array_bytes_codec  # the codec between the array and bytes
        self.is_v2 = type(self.codec) is V2Codec
        # Whether keys of chunks are like those of Zarr v2.
        self._has_v2_keys = self.is_v2 if has_v2_keys is None else has_v2_keys
        self.codecs = Codecs.of(pipeline)
        self._layouts: ArrayLayouts | None = None  # made when they are first needed
        self.locations: ChunkLocations | None = None  # as found last
        self.own_bug = ""  # why zarr reads the array from now on
        self._threads_setting = threads_setting

    def layout_of(self, spec: ArraySpec) -> AnyLayout:
        """Return how a chunk is stored; raise `LeftToZarr` if zarr's own pipeline must read it."""
        layouts = self._layouts
        if layouts is None:
            layouts = self._layouts = ArrayLayouts(self.codecs)
        return layouts.of(spec)

    @property
    def num_threads(self) -> int | None:
        """Zarr's setting for the number of threads, if the user has set it."""
        num = zarr.config.get(self._threads_setting, None)
        return max(num, 1) if isinstance(num, int) else None

    def locate(self, byte_getter: Any, spec: ArraySpec) -> ChunkLocations:
        """Return where the chunks of the array are, given one of them.

        Raises `LeftToZarr` if zarr does not ask its store directly, or because of an own bug.
        """
        if self.own_bug:
            raise LeftToZarr("numcodecs_bytes itself failed before")
        locations = self.locations
        if locations is None or not locations.is_valid(byte_getter, spec):
            locations = self._find_locations(byte_getter, spec)
            if locations.may_be_cached:
                self.locations = locations
        return locations

    def _find_locations(self, byte_getter: Any, spec: ArraySpec) -> ChunkLocations:
        store = store_of(byte_getter)
        attributes = list(vars(store).values()) if hasattr(store, "__dict__") else None
        found = ChunkLocations(store, attributes, state_of(store), _options(), spec.prototype)
        try:
            layout, locator = self.layout_of(spec), locator_for(store)
        except LeftToZarr as why:
            raise_interrupt(why.__cause__)  # an interrupt must not become the cached reason
            return found._replace(why_left=why.without_frames())
        is_short = _is_short_object(locator, byte_getter.path, layout)
        max_gap = options.max_gap_bytes()
        return found._replace(locator=locator, max_gap=max_gap, are_short_objects=is_short)

    def chunks_of(self, array: AnyArray) -> ArrayChunks:
        """Return the chunks of the array; raise `LeftToZarr` if zarr has to read them."""
        from numcodecs_bytes._plan.forms import FormCache  # only if it is needed

        buffers = _buffers()
        if default_buffer_prototype() != cpu.buffer_prototype:
            raise LeftToZarr("zarr's config sets other buffers, such as those of a GPU")
        metadata, spec = array.metadata, chunk_spec_of(array)
        first = array.store_path / metadata.encode_chunk_key((0,) * array.ndim)
        prefix = f"{array.path}/" if array.path else ""
        may_be_missing = getattr(array.config, "read_missing_chunks", True)  # new in zarr 3.4
        layout, order = self.layout_of(spec), array.order
        inner = layout.inner if isinstance(layout, ShardLayout) else layout
        forms = FormCache(metadata.shape, inner, order)
        return ArrayChunks(
            self, metadata, buffers, spec, layout, prefix, first, may_be_missing, order, forms
        )

    def check_reads_in_part(self, array: AnyArray) -> None:
        """Raise `LeftToZarr` if all of a chunk is fetched, whatever is selected of it.

        The first chunk stands for the others; nothing is requested.
        """
        spec = first_chunk_spec_of(array)
        first = array.store_path / array.metadata.encode_chunk_key((0,) * array.ndim)
        locations = self.locate(first, spec)
        if locations.locator is None:
            raise locations.why_left.without_frames()
        layout, extent = self.layout_of(spec), locations.locator(first.path)
        if isinstance(extent, FileExtent):
            if extent.find_member is not None:
                length_of_file(extent)  # raises if the member of the archive is compressed
        elif extent.num_bytes is None and isinstance(layout, Layout):
            policy = GapPolicy.for_chunk(UNLIMITED, locations.max_gap)
            if not policy.may_pay(layout.num_bytes):
                raise LeftToZarr("a part would take as long, since the chunk is small")

    def metadata_path(self, chunk: ChunkRequest) -> str:
        """Return the path of the array's metadata in the store, given one of its chunks."""
        path = self._path_of_array(chunk.byte_getter.path, chunk.spec)
        return f"{path}/{'.zarray' if self.is_v2 else 'zarr.json'}".lstrip("/")

    def name_of_array(self, byte_getter: object, spec: ArraySpec) -> traces.ArrayName:
        """Return the name of the array for `numcodecs_bytes.trace`, given one of its chunks."""
        path = self._path_of_array(getattr(byte_getter, "path", ""), spec)
        return traces.ArrayName(name_of_store(getattr(byte_getter, "store", byte_getter)), path)

    def _path_of_array(self, path: str, spec: ArraySpec) -> str:
        return path_of_array(path, len(spec.shape), has_v2_keys=self._has_v2_keys)


class ArrayAccessMixin(PickledAsConfigured):
    """Mixin for one of zarr's pipelines: makes and keeps the access to its array."""

    array_bytes_codec: Any  # of zarr's pipeline
    _threads_setting: str  # zarr's setting for the number of threads

    @classmethod
    def from_codecs(cls, codecs: Iterable[Any], **settings: Any) -> Any:
        """Return a pipeline of the codecs, like zarr's."""
        options.warn_of_unknown_keys()
        options.warn_of_other_pipeline("used")
        codecs = list(codecs)
        for position, codec in enumerate(codecs if COPIES_SWAP_BYTES else ()):
            if type(codec) is BytesCodec:
                byte_order = byte_order_of(codecs[:position])
                codecs[position] = codec if byte_order is None else codec.for_filter(byte_order)
        pipeline: Any = super()
        return pipeline.from_codecs(codecs, **settings)

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: object) -> Any:
        """Return the pipeline of an array, like zarr's, which also knows how chunks are named."""
        if not getattr(store, "read_only", True):
            # It is imported now: a child that is forked while another thread imports it could never
            # write.
            import numcodecs_bytes._write.batch  # noqa: F401
        pipeline = create_codec_pipeline(array_metadata)
        vars(pipeline)["_keys_are_v2"] = keys_are_v2(array_metadata)
        return pipeline

    @property
    def access(self) -> ArrayAccess:
        """The access to the array of this pipeline."""
        attributes = vars(self)  # zarr's pipelines are frozen
        if "_access" not in attributes:
            has_v2_keys = attributes.get("_keys_are_v2")
            access = ArrayAccess(self, self._threads_setting, has_v2_keys=has_v2_keys)
            attributes.setdefault("_access", access)  # that of another thread stays
        found: ArrayAccess = attributes["_access"]
        return found


def _buffers() -> object:
    """Return which buffers zarr's config sets, faster than `default_buffer_prototype`."""
    config = zarr.config.config
    return config.get("buffer"), config.get("ndbuffer")


def _options() -> object:
    """Return a copy of the options that are set, faster than `zarr.config.get`."""
    config = zarr.config.config
    given = config.get("numcodecs_bytes") or config.get("numcodecs-bytes")  # as YAML may write it
    if not isinstance(given, dict):
        return given
    # Other threads may set options meanwhile, and the list of classes may be changed in place.
    names_and_values = list(given.items())
    return {name: list(v) if isinstance(v, list) else v for name, v in names_and_values}


def _is_short_object(locator: ChunkLocator, path: str, layout: AnyLayout) -> bool:
    """Whether a chunk is an object that is requested, and read whole just as fast by zarr."""
    try:
        extent = locator(path)
    except LeftToZarr as why:  # other chunks may be short objects
        raise_interrupt(why.__cause__)
        return False
    if not (isinstance(extent, ObjectExtent) and extent.is_object and isinstance(layout, Layout)):
        return False
    # The more requests there may be, the shorter are the ranges.
    policy, num_bytes = GapPolicy.for_chunk(UNLIMITED), layout.num_bytes
    return not policy.pays(num_bytes, cost=num_bytes, tells_versions=True)
