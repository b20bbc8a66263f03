"""Groups of chunks that are read or written through memory of a limited size."""

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from numcodecs_bytes._plan.outcome import HasOutcome
from numcodecs_bytes._plan.places import Box, Place, are_slices, shape_of, size_of


class HasPlace(HasOutcome, Protocol):
    """A chunk that is read or written, and where that belongs."""

    place: Place


Chunk = TypeVar("Chunk", bound=HasPlace)


class Group(NamedTuple, Generic[Chunk]):
    """Chunks whose places lie in a box of the output, or of the values."""

    chunks: Sequence[Chunk]
    box: Place
    is_full: bool  # whether their places fill the box

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the box."""
        return shape_of(self.box)

    def place_outside(self, chunk: Chunk) -> Place:
        """Return the place of a chunk in the output, or in the values."""
        if not are_slices(self.box):
            return self.box
        return _moved(chunk.place, [along.start for along in self.box])


def groups_of(chunks: Sequence[Chunk], most: int) -> Iterator[Group[Chunk]]:
    """Yield chunks that follow each other, in boxes of at most `most` elements.

    The place of each chunk becomes that in the box. A chunk alone may be larger.
    """
    first = 0
    while first < len(chunks):
        group = _next_group(chunks[first:], most)
        for chunk in group.chunks:
            if are_slices(group.box):
                chunk.place = _moved(chunk.place, [-along.start for along in group.box])
            else:  # it is the place of a single chunk
                chunk.place = tuple(slice(0, size) for size in group.shape)
        yield group
        first += len(group.chunks)


def _next_group(chunks: Sequence[Chunk], most: int) -> Group[Chunk]:
    """Return the group of the first chunk: a full box, if that is not much smaller."""
    first = chunks[0].place
    box = full = _box_around(first)
    if not are_slices(first) and size_of(box) > most:
        return Group(chunks[:1], first, is_full=True)  # without what lies between
    num = num_full = size = 0
    for chunk in chunks:
        hull = _hull(box, _box_around(chunk.place))
        if num and size_of(hull) > most:
            break
        box, num, size = hull, num + 1, size + size_of(chunk.place)
        if size == size_of(box):
            full, num_full = box, num
    if num_full and 2 * num_full >= num:
        return Group(chunks[:num_full], full, is_full=True)
    return Group(chunks[:num], box, is_full=False)


def _box_around(place: Place) -> Box:
    """Return the smallest box around a place."""
    return tuple(
        s if isinstance(s, slice) else slice(int(s.min()), int(s.max()) + 1) for s in place
    )


def _hull(box: Box, other: Box) -> Box:
    """Return the smallest box around both."""
    return tuple(
        slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(box, other, strict=True)
    )


def _moved(place: Place, by: Sequence[int]) -> Place:
    """Return a place so many elements further along each axis."""
    return tuple(
        slice(s.start + num, s.stop + num) if isinstance(s, slice) else s + num
        for s, num in zip(place, by, strict=True)
    )
