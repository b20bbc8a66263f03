"""BytesCodec, the ``bytes`` codec for zarr-python and so for Zarr v3.

The array -> bytes codec of https://zarr-specs.readthedocs.io/en/latest/v3/codecs/bytes/ (1.0).
Configuration:

    {"name": "bytes", "configuration": {"endian": "little" | "big"}}

``endian`` is required where the data type has a byte order and dropped where it has none.
Installing the package is enough to have zarr use this class for every array that it opens.

Deviations from the specification, all towards reading what others wrote: the older name ``endian``
is read (and written as ``bytes``); structured types without ``endian`` are taken as little endian,
with zarr's own warning; bools other than 0x00 and 0x01 are read as true.
"""

import asyncio
import enum
import math
import numbers
import sys
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zarr
import zarr.abc.store
import zarr.codecs
import zarr.dtype
import zarr.storage
from zarr.abc.codec import ArrayBytesCodecPartialDecodeMixin
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import cpu

from numcodecs_bytes._byte_ranges import is_whole_chunk, plan_partial_read
from numcodecs_bytes._copy import (
    as_bytes,
    decode_array,
    decode_on_device,
    encode_array,
    encode_on_device,
    ready_to_copy,
    select_fetched,
)
from numcodecs_bytes._data_type import (
    AnyDType,
    Endian,
    check_storable,
    copied_as,
    has_byte_order,
    has_same_elements,
    has_unused_bits,
    leaf_dtypes,
    missing_endian,
    ml_dtype_name,
    parse_configuration,
    parse_endian,
    stored_dtype,
)

if TYPE_CHECKING:
    from zarr.abc.store import ByteGetter
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer
    from zarr.core.common import JSON

    from numcodecs_bytes._byte_ranges import PartialReadPlan

# Before 3.3, zarr's MemoryStore keeps the very buffer that it is given, and so the caller's array
# where nothing had to be copied on the way (zarr-python#4156).
_STORES_KEEP_BUFFERS = tuple(map(int, zarr.__version__.split(".")[:2])) < (3, 3)

# zarr 3.1.6 evolves codecs for the array's data type, whatever its filters make of it, and writes
# what they evolved to.
_DROPS_ENDIAN_BEFORE_FILTERS = not hasattr(zarr.dtype, "Struct")

# zarr warns of a structured type without `endian` since it has the data type `struct`; zarr 3.1.6
# wrote such arrays itself.
_WARNS_OF_STRUCT_WITHOUT_ENDIAN = hasattr(zarr.dtype, "Struct")


# What a request costs, in bytes that could be read instead; `numcodecs_bytes.request_cost_bytes` in
# zarr's config sets it. Locally: LocalStore.get_sync takes 15 to 25 us in the page cache; it reads
# at 6 to 15 GB/s where memory is used again, at 2 GB/s where much of it is new. So reading over
# gaps of 128 KiB pays for a 64x64 box of a 1 GiB chunk (6 MiB in 0.5 ms, not 64 requests in
# 1.4 ms), but not for a column (1 GiB in 550 ms, not 11,584 requests in 190 ms).
LOCAL_REQUEST_COST_BYTES = 1 << 17
LOCAL_REQUEST_COST_BYTES_OF_MUCH = 1 << 16
MUCH_BYTES = 16 << 20
# Elsewhere: 30 ms at 100 MB/s are 3 MB, of which 10 requests at a time (zarr's `async.concurrency`)
# leave 0.3 MB each. In a simulation of such a store with rows, boxes, columns, steps and points,
# 256 KiB took at most 1.15 times as long as the best plan; 1 MiB, zarr's own gap, 3.3 times.
REMOTE_REQUEST_COST_BYTES = 1 << 18

# From this size a swap takes longer than a hop to a thread and back (50 us).
IN_A_THREAD_BYTES = 1 << 20

# After so long, reading byte ranges in a thread looks whether it is still wanted.
_SECONDS_IN_A_THREAD = 0.1

_GET = {"get", "get_sync"}
_NO_SUCH_RANGE = ("requested range", "invalid range", "invalidrange", "not satisfiable")
_REMEDY = (
    "read it with zarr's own codec, "
    "zarr.config.set({'codecs.bytes': 'zarr.codecs.bytes.BytesCodec'})"
)
_slots_of_loops: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[int | None, asyncio.Semaphore]
] = weakref.WeakKeyDictionary()


class BytesCodec(ArrayBytesCodecPartialDecodeMixin, zarr.codecs.BytesCodec):
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

    # Not an Enum, as `endian` is on zarr 3.1.6. It stays where `evolve_from_array_spec` drops the
    # endian, because the array's data type has none: zarr 3.1.6 does that even where a filter hands
    # the codec another data type.
    _declared_endian: Endian | None

    def __init__(self, *, endian: Any = sys.byteorder) -> None:
        declared = parse_endian(endian.value if isinstance(endian, enum.Enum) else endian)
        object.__setattr__(self, "_declared_endian", declared)
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
        if self.endian is None and self._declared_endian and _DROPS_ENDIAN_BEFORE_FILTERS:
            return {"name": "bytes", "configuration": {"endian": self._declared_endian}}
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
            object.__setattr__(evolved, "_declared_endian", self._declared_endian)
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
        if has_unused_bits(dtype) or any(map(ml_dtype_name, leaf_dtypes(dtype))):
            # zarr's sharding reads dense shards of a fixed-size BytesCodec without calling it: it
            # would pass invalid bools on, and leave the swap of bfloat16 to ml_dtypes.
            object.__setattr__(evolved, "is_fixed_size", False)
        return evolved

    def _decode_sync(self, chunk_bytes: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        raw: Any = chunk_bytes.as_array_like()
        dtype = chunk_spec.dtype.to_native_dtype()
        stored = self._stored_dtype(dtype)
        _check_length(raw.nbytes, chunk_spec, stored)
        # Not a lazily swapped view: numcodecs filters view what they get as their own dtype.
        decode = decode_array if isinstance(raw, np.ndarray) else decode_on_device
        array: Any = decode(raw, stored, dtype).reshape(chunk_spec.shape)
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(array)

    def _encode_sync(self, chunk_array: "NDBuffer", chunk_spec: "ArraySpec") -> "Buffer | None":
        array: Any = chunk_array.as_ndarray_like()
        dtype = chunk_spec.dtype.to_native_dtype()
        if array.dtype != dtype:
            array = _as_elements_of(dtype, array)
        # Of the array, whose dtype NumPy has hashed already.
        stored = self._stored_dtype(array.dtype)
        # numcodecs filters flatten what they encode, in C order.
        if array.shape != chunk_spec.shape and array.shape != (math.prod(chunk_spec.shape),):
            raise ValueError(
                f"array does not fit the chunk: got shape {array.shape}, expected "
                f"{chunk_spec.shape}; transpose or reshape it"
            )
        on_device = not isinstance(array, np.ndarray)
        raw: Any
        if on_device:
            raw = encode_on_device(array, stored)
        else:
            raw = as_bytes(encode_array(array, stored))
        if _STORES_KEEP_BUFFERS and (on_device or np.may_share_memory(raw, array)):
            raw = raw.copy()
        return chunk_spec.prototype.buffer.from_array_like(raw)

    async def _decode_single(self, chunk_bytes: "Buffer", chunk_spec: "ArraySpec") -> "NDBuffer":
        if self._moves_much(chunk_bytes.as_array_like(), chunk_spec):
            return await asyncio.to_thread(self._decode_sync, chunk_bytes, chunk_spec)
        return self._decode_sync(chunk_bytes, chunk_spec)

    async def _encode_single(
        self, chunk_array: "NDBuffer", chunk_spec: "ArraySpec"
    ) -> "Buffer | None":
        if self._moves_much(chunk_array.as_ndarray_like(), chunk_spec):
            return await asyncio.to_thread(self._encode_sync, chunk_array, chunk_spec)
        return self._encode_sync(chunk_array, chunk_spec)

    def _moves_much(self, array: Any, chunk_spec: "ArraySpec") -> bool:
        """Whether a chunk is worth a thread, so that others use the other cores meanwhile."""
        # CuPy's current device and stream are a thread's own.
        if not isinstance(array, np.ndarray) or array.nbytes < IN_A_THREAD_BYTES:
            return False
        dtype = chunk_spec.dtype.to_native_dtype()
        return self._stored_dtype(dtype) != copied_as(dtype)

    async def decode_partial(self, batch_info: Any) -> Any:
        """Return the selections of chunks, as zarr does; a single one without a task of its own."""
        batch = list(batch_info)
        if len(batch) == 1:
            return [await self._decode_partial_single(*batch[0])]
        return await super().decode_partial(batch)

    async def _decode_partial_single(
        self, byte_getter: "ByteGetter", selection: Any, chunk_spec: "ArraySpec"
    ) -> "NDBuffer | None":
        ranges = self._plan(byte_getter, selection, chunk_spec)
        if ranges is None:
            chunk_bytes = await byte_getter.get(chunk_spec.prototype)
            return self._select(chunk_bytes, selection, chunk_spec)
        if _reads_synchronously(getattr(byte_getter, "store", None)):
            # In one thread, not a hop for each range; back now and then, to notice a cancellation.
            while await asyncio.to_thread(ranges.fetch_sync, byte_getter, _SECONDS_IN_A_THREAD):
                pass
        else:
            await ranges.fetch(byte_getter)
        return ranges.selected()

    def _decode_partial_sync(
        self, byte_getter: Any, selection: Any, chunk_spec: "ArraySpec"
    ) -> "NDBuffer | None":
        ranges = self._plan(byte_getter, selection, chunk_spec)
        if ranges is None:
            chunk_bytes = byte_getter.get_sync(prototype=chunk_spec.prototype)
            return self._select(chunk_bytes, selection, chunk_spec)
        ranges.fetch_sync(byte_getter)
        return ranges.selected()

    def _plan(self, byte_getter: Any, selection: Any, chunk_spec: "ArraySpec") -> "_Ranges | None":
        """Return the byte ranges to fetch; None where the whole chunk is to be got."""
        if isinstance(selection, tuple) and is_whole_chunk(selection, chunk_spec.shape):
            return None
        stored = self._stored_dtype(chunk_spec.dtype.to_native_dtype())
        store = getattr(byte_getter, "store", None)
        # What is in memory is handed out as a view: nothing is cheaper than all of it.
        is_in_memory = (
            type(byte_getter).__module__ == zarr.codecs.sharding.__name__
            or type(store) is zarr.storage.MemoryStore
        )
        is_on_cpu = issubclass(chunk_spec.prototype.nd_buffer, cpu.NDBuffer)
        if is_in_memory or not is_on_cpu or not stored.itemsize:
            return None
        cost, cost_of_much = _request_costs(store)
        plan = plan_partial_read(selection, chunk_spec.shape, stored.itemsize, cost)
        if cost_of_much < cost and (plan is None or plan.num_bytes > MUCH_BYTES):
            plan = plan_partial_read(selection, chunk_spec.shape, stored.itemsize, cost_of_much)
        return None if plan is None else _Ranges(plan, chunk_spec, stored)

    def _select(
        self, chunk_bytes: "Buffer | None", selection: Any, chunk_spec: "ArraySpec"
    ) -> "NDBuffer | None":
        """Return the selection of a whole chunk; in the stored byte order, where it is a view."""
        if chunk_bytes is None:
            return None
        raw = chunk_bytes.as_array_like()
        if not isinstance(raw, np.ndarray):
            return self._decode_sync(chunk_bytes, chunk_spec)[selection]
        stored = self._stored_dtype(chunk_spec.dtype.to_native_dtype())
        _check_length(raw.nbytes, chunk_spec, stored)
        selected = np.asanyarray(raw.view(stored).reshape(chunk_spec.shape)[selection])
        array: Any = ready_to_copy(selected, chunk_spec.dtype.to_native_dtype())
        return chunk_spec.prototype.nd_buffer.from_ndarray_like(array)

    @property
    def _endian(self) -> Any:
        """'little', 'big' or None; on zarr 3.1.6 `endian` is an Enum."""
        return getattr(self.endian, "value", self.endian)

    def _stored_dtype(self, dtype: AnyDType) -> AnyDType:
        return stored_dtype(dtype, self._declared_endian)

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


def _as_elements_of(dtype: AnyDType, array: Any) -> Any:
    """Return the array where its elements are those of a chunk, or raise TypeError."""
    if (array.dtype.kind, dtype.kind) == ("i", "f") and array.itemsize == dtype.itemsize:
        # numcodecs' BitRound hands on floats viewed as integers, in the same byte order.
        as_float = dtype.newbyteorder(array.dtype.byteorder)
        if isinstance(array.base, np.ndarray) and array.base.dtype == as_float:
            return array.view(as_float)
    if not has_same_elements(array.dtype, dtype):
        raise TypeError(
            f"array does not fit the chunk: got data type {array.dtype}, expected {dtype} in "
            "either byte order; convert it with astype"
        )
    return array


def _check_length(num_bytes: int, chunk_spec: "ArraySpec", stored: AnyDType) -> None:
    expected = math.prod(chunk_spec.shape) * stored.itemsize
    if num_bytes != expected:
        raise ValueError(
            f"chunk holds {num_bytes} bytes, expected {expected} for {_describe(chunk_spec)}; "
            f"it may be {'truncated' if num_bytes < expected else 'of another shape or compressed'}"
        )


def _describe(chunk_spec: "ArraySpec") -> str:
    return f"shape {chunk_spec.shape} of {chunk_spec.dtype.to_native_dtype()}"


def _request_costs(store: Any) -> tuple[int, int]:
    """Return what a request costs in bytes, and where much is read."""
    cost = zarr.config.get("numcodecs_bytes.request_cost_bytes", None)
    if cost is None:
        if _reads_synchronously(store):
            return LOCAL_REQUEST_COST_BYTES, LOCAL_REQUEST_COST_BYTES_OF_MUCH
        return REMOTE_REQUEST_COST_BYTES, REMOTE_REQUEST_COST_BYTES
    if not isinstance(cost, numbers.Integral) or isinstance(cost, bool) or cost < 0:
        raise ValueError(
            "numcodecs_bytes.request_cost_bytes in zarr's config must be a number of bytes, 0 or "
            f"more, got {cost!r}"
        )
    return int(cost), int(cost)


def _reads_synchronously(store: Any) -> bool:
    """Whether the store can be read without an event loop, and then gives what `get` gives."""
    if not hasattr(store, "get_sync") or not getattr(store, "_supports_sync_io", True):
        return False
    # A subclass that overrides `get` alone wants it called, also where it is wrapped.
    owners = (c for c in type(store).__mro__ if not vars(c).keys().isdisjoint(_GET))
    owner = next(owners, object)
    inner = getattr(store, "_store", None)
    return "get_sync" in vars(owner) and (
        not isinstance(inner, zarr.abc.store.Store) or _reads_synchronously(inner)
    )


def _request_slots() -> asyncio.Semaphore:
    """Return what bounds the requests of all chunks, as zarr's `async.concurrency` says."""
    loop = asyncio.get_running_loop()
    limit = zarr.config.get("async.concurrency")
    slots = _slots_of_loops.setdefault(loop, {})
    return slots.setdefault(limit, asyncio.Semaphore(limit or sys.maxsize))


class _Ranges:
    """The byte ranges of one chunk while they are fetched."""

    def __init__(self, plan: "PartialReadPlan", chunk_spec: "ArraySpec", stored: AnyDType) -> None:
        self.plan = plan
        self.chunk_spec = chunk_spec
        self.stored = stored
        self.fetched: Any = None
        self._requests = self._iterate()
        self._num_present = self._num_missing = 0

    def _iterate(self) -> Iterator[tuple[RangeByteRequest, list[tuple[int, int, int]]]]:
        """Yield each range with what to keep of it: start, end, and place in what is fetched."""
        pieces = zip(self.plan.piece_starts.tolist(), self.plan.piece_ends.tolist(), strict=True)
        piece = next(pieces, None)
        place = 0
        for start, end in zip(self.plan.starts.tolist(), self.plan.ends.tolist(), strict=True):
            if self._num_missing:
                return  # nobody asks on for a chunk that is missing
            kept = []
            while piece is not None and piece[0] < end:
                kept.append((piece[0] - start, piece[1] - start, place))
                place += piece[1] - piece[0]
                piece = next(pieces, None)
            yield RangeByteRequest(start, end), kept

    def fetch_sync(self, byte_getter: Any, seconds: float = math.inf) -> bool:
        """Fetch one range after the other for a while; return whether there may be more."""
        end = time.monotonic() + seconds
        for request, kept in self._requests:
            try:
                answer = byte_getter.get_sync(
                    prototype=self.chunk_spec.prototype, byte_range=request
                )
            except Exception as error:
                self._explain(error, request)
                raise
            self._take(answer, request, kept)
            if time.monotonic() > end:
                return True
        return False

    async def fetch(self, byte_getter: Any) -> None:
        """Fetch the ranges concurrently."""
        slots = _request_slots()

        async def fetch_in_turn() -> None:
            for request, kept in self._requests:
                try:
                    async with slots:
                        answer = await byte_getter.get(self.chunk_spec.prototype, request)
                except Exception as error:
                    self._explain(error, request)
                    raise
                self._take(answer, request, kept)

        num_requests = self.plan.num_requests
        num_tasks = min(zarr.config.get("async.concurrency") or num_requests, num_requests)
        failure = None
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(num_tasks):
                    tasks.create_task(fetch_in_turn())
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        if failure is not None:
            raise failure  # as it is, with its own context

    def _explain(self, error: Exception, request: RangeByteRequest) -> None:
        """Say what was read; raise our own error where the store knows no such range."""
        what = f"bytes {request.start} to {request.end} of a chunk of {_describe(self.chunk_spec)}"
        text = str(error).lower()
        if "not supported" in text and "range" in text:
            raise ValueError(
                f"can't read {what}: the store or its server ignores byte ranges; {_REMEDY}"
            ) from error
        if any(phrase in text for phrase in _NO_SUCH_RANGE):
            raise ValueError(f"{what} are not there; the chunk may be truncated") from error
        error.add_note(f"while reading {what}")

    def _take(
        self, answer: "Buffer | None", request: RangeByteRequest, kept: list[tuple[int, int, int]]
    ) -> None:
        """Check an answer and put what is kept of it where it belongs."""
        if answer is None:
            self._num_missing += 1
            return
        self._num_present += 1
        expected = request.end - request.start
        if len(answer) != expected:
            raise ValueError(
                f"got {len(answer)} bytes for bytes {request.start} to {request.end} of a chunk of "
                f"{_describe(self.chunk_spec)}, expected {expected}; "
                + (
                    "it may be truncated"
                    if len(answer) < expected
                    else f"the store or its server may ignore byte ranges: {_REMEDY}"
                )
            )
        array = answer.as_numpy_array().view(np.uint8)
        if len(self.plan.piece_starts) == 1:
            self.fetched = array
            return
        if self.fetched is None:
            self.fetched = np.empty(self.plan.num_kept_bytes, np.uint8)
        for start, end, place in kept:
            self.fetched[place : place + end - start] = array[start:end]

    def selected(self) -> "NDBuffer | None":
        """Return the selection; None where the chunk is missing."""
        if self._num_missing and not self._num_present:
            return None
        if self._num_present != self.plan.num_requests:
            raise ValueError(
                f"a chunk of {_describe(self.chunk_spec)} was not read whole: "
                f"{self._num_present} of {self.plan.num_requests} byte ranges came, "
                f"{self._num_missing} found no chunk; it may be written to or deleted at the same "
                "time, or its store have cancelled a request: read it again"
            )
        selected = select_fetched(self.fetched, self.stored, self.plan)
        array: Any = ready_to_copy(selected, self.chunk_spec.dtype.to_native_dtype())
        return self.chunk_spec.prototype.nd_buffer.from_ndarray_like(array)
