"""Write to the file of a chunk: in place, to a copy that takes its place, or to a new one."""

import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from numcodecs_bytes import _trace
from numcodecs_bytes._core.copy import as_bytes
from numcodecs_bytes._core.dtypes import Array, UInt8Array
from numcodecs_bytes._core.lengths import check_length
from numcodecs_bytes._engine import constants, locks
from numcodecs_bytes._engine.locks import LockedError, NotInPlace, ReplacedError
from numcodecs_bytes._engine.plan import plan_of
from numcodecs_bytes._engine.write_file import Encode, Part, Writer, is_faster_in_hulls, part_of
from numcodecs_bytes._names import name_of_chunk
from numcodecs_bytes._threads import IsWanted
from numcodecs_bytes._zarr_versions import fill_value_or_default


class ChunkFile:
    """The file of a chunk, and what is written to it.

    Parameters
    ----------
    item : tuple
        What zarr passes to the `write` of its pipelines.
    path : str
        The file.
    stored : Layout
        How the chunk is stored.
    values : object
        In the shape of the selection, or what NumPy broadcasts to it.
    encode : callable
        Takes elements and their stored dtype, and returns them as stored, C-contiguous.
    is_memory : bool
        Whether the values may be the memory of the file: then a copy takes its place.

    Raises
    ------
    NotInPlace
        If the selection is not known, or the elements have no bytes.
    """

    def __init__(  # noqa: PLR0913
        self, item: Any, path: str, stored: Any, values: Any, encode: Encode, *, is_memory: bool
    ) -> None:
        self._byte_setter, self._spec, selection, *_ = item
        self._path, self._stored, self._encode, self._is_memory = path, stored, encode, is_memory
        self._layout = self._layout_of(stored)
        if not self._layout.item_size:
            raise NotInPlace("its elements have no bytes")
        self._parts = self._parts_of(selection, values)
        self._num_pieces = sum([part.pieces.num_pieces for part in self._parts])
        self._in_hulls = is_faster_in_hulls(self._parts)
        self._locked_since = 0.0

    @staticmethod
    def _layout_of(stored: Any) -> Any:
        """Return how the elements are stored."""
        return stored

    def _parts_of(self, selection: Any, values: Any) -> list[Part]:
        """Return what is written to each of the chunks in the file."""
        pieces = plan_of(selection, self._layout, gap=0)
        if pieces is None:
            raise NotInPlace(f"its selection, {selection!r}, is not known")
        return [part_of(pieces, self._layout, values)]

    def _find(self, descriptor: int, num_bytes: int) -> Any:  # noqa: ARG002
        """Return where the chunks begin in bytes; raise ValueError or NotInPlace if it is wrong."""
        layout = self._layout
        if num_bytes != layout.num_bytes:
            name = name_of_chunk(self._byte_setter)
            check_length(num_bytes, layout.shape, layout.dtype, layout.stored, name)
        return [0]

    def write(self, is_wanted: IsWanted) -> None:
        """Write everything.

        Raises
        ------
        LockedError, NotInPlace
            If nothing was written.
        """
        if not self._num_pieces:
            return
        must_copy = is_missing = False
        for _ in range(constants.MAX_TRIES):
            try:
                if is_missing:
                    is_missing = False
                    if self._create(is_wanted):
                        return
                elif self._change(is_wanted, must_copy=must_copy):
                    return
                else:
                    must_copy = True
            except FileNotFoundError:
                is_missing = True
            except ReplacedError:
                must_copy = False
            except LockedError:
                # Who writes pieces need not wait for others who do, so nobody waits for longer than
                # that takes.
                now = time.monotonic()
                self._locked_since = self._locked_since or now
                if now - self._locked_since > self._num_pieces * constants.PIECE_SECONDS:
                    self._in_hulls = False
                raise
        raise NotInPlace("it keeps being replaced")

    def _change(self, is_wanted: IsWanted, *, must_copy: bool) -> bool:
        """Write to the file; return False if it must be copied, unless `must_copy`."""
        is_exclusive = must_copy or self._in_hulls
        with locks.locked(self._path, is_exclusive=is_exclusive) as (descriptor, num_bytes):
            starts = self._find(descriptor, num_bytes)
            if not (self._is_memory or self._lacks_any(starts)):
                self._write(descriptor, starts, is_wanted)
            elif must_copy:
                with locks.temporary(self._path) as (new, name):
                    self._write(new, self._make(descriptor, new, is_wanted), is_wanted)
                    locks.replace(name, self._path, descriptor)
            else:
                return False
        self._note(num_bytes)
        return True

    def _create(self, is_wanted: IsWanted) -> bool:
        """Make the file, unless zarr would not; return False if somebody else has made it."""
        if self._are_only_fill_values(self._parts):
            return True
        with locks.temporary(self._path) as (new, name):
            self._write(new, self._make(None, new, is_wanted), is_wanted)
            is_made = locks.publish(name, self._path)
        if is_made:
            self._note(0)
        return is_made

    def _make(self, old: int | None, new: int, is_wanted: IsWanted) -> Any:
        """Fill a new file, with what is in the old one; return where the chunks begin."""
        span = range(self._layout.num_bytes)
        locks.set_length(new, len(span))
        if old is None:
            locks.fill(new, self._fill_value, span, is_wanted)
        else:
            locks.copy(old, new, span, is_wanted)
        return [0]

    def _write(self, descriptor: int, starts: Any, is_wanted: IsWanted) -> None:
        writer = Writer(self._layout, self._encode, self._in_hulls, is_wanted)
        for part, start in self._placed(starts):
            writer.write(descriptor, part, start)

    def _placed(self, starts: Any) -> Iterable[tuple[Part, int]]:
        """Return what is written to each chunk that has a place, and where that begins."""
        return zip(self._parts, starts, strict=True)

    def _lacks_any(self, starts: Any) -> bool:  # noqa: ARG002
        """Whether a chunk has no place that zarr would store."""
        return False

    def _are_only_fill_values(self, parts: Sequence[Part]) -> bool:
        """Whether zarr would store no chunks of these elements: they have nothing else."""
        if self._spec.config.write_empty_chunks:
            return not any(part.elements.size for part in parts)
        fill_value = fill_value_or_default(self._spec)
        nd_buffer: Any = self._spec.prototype.nd_buffer
        return all(
            nd_buffer.from_numpy_array(some).all_equal(fill_value)
            for part in parts
            for some in _blocks_of(part.elements)
        )

    @functools.cached_property
    def _fill_value(self) -> UInt8Array:
        """The fill value as stored."""
        nd_buffer: Any = self._spec.prototype.nd_buffer
        one = nd_buffer.create(
            shape=(1,) * len(self._layout.shape),
            dtype=self._layout.dtype,
            order="C",
            fill_value=fill_value_or_default(self._spec),
        )
        return as_bytes(self._encode(one.as_numpy_array(), self._layout.stored))

    def _note(self, num_bytes_before: int) -> None:
        """Tell `numcodecs_bytes.trace` what was written to a file of so many bytes."""
        if _trace.active:
            num = sum([part.elements.size for part in self._parts])
            counts = {
                "chunks_in_place": 1,
                "bytes_in_place": num * self._layout.item_size,
                "bytes_zarr_alone": num_bytes_before,
            }
            _trace.note(self._byte_setter, len(self._spec.shape), counts)


def _blocks_of(elements: Array) -> Iterator[Array]:
    """Yield one element, which is most often enough to know, and then all in blocks."""
    yield elements[(slice(0, 1),) * elements.ndim]
    if elements.size > 1:
        along = int(np.argmax(elements.shape))
        num = -(-constants.BLOCK_BYTES * elements.shape[along] // elements.nbytes)
        for first in range(0, elements.shape[along], num):
            yield elements[(slice(None),) * along + (slice(first, first + num),)]
