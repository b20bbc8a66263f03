"""Groups of chunks that are read or written through memory of a limited size."""

from collections.abc import Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from numcodecs_bytes._plan.places import Box, Place, are_slices, shape_of, size_of


class HasPlace(Protocol):
    """A chunk that is read or written."""

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


def groups_of(chunks: Sequence[Chunk], most: int) -> Iterator[Group[Chunk]]:
    """Yield chunks that follow each other, in boxes of at most `most` elements.

    The place of each chunk becomes that in the box. A chunk alone may be larger.
    """
    first = 0
    while first < len(chunks):
        group = _next_group(chunks[first:], most)
        for chunk in group.chunks:
            chunk.place = _place_in_box(group.box, chunk.place)
        yield group
        first += len(group.chunks)


def _next_group(chunks: Sequence[Chunk], most: int) -> Group[Chunk]:
    """Return the group of the first chunk: a full box, if that is not much smaller."""
    box = chunks[0].place
    if not are_slices(box):
        return Group(chunks[:1], box, is_full=True)
    full, num_full, num, size = box, 1, 1, size_of(box)
    for chunk in chunks[1:]:
        place = chunk.place
        if not are_slices(place) or size_of(hull := _hull(box, place)) > most:
            break
        box, num, size = hull, num + 1, size + size_of(place)
        if size == size_of(box):
            full, num_full = box, num
    if 2 * num_full >= num:
        return Group(chunks[:num_full], full, is_full=True)
    return Group(chunks[:num], box, is_full=False)


def _hull(box: Box, place: Box) -> Box:
    """Return the smallest box around both."""
    return tuple(
        slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(box, place, strict=True)
    )


def _place_in_box(box: Place, place: Place) -> Place:
    """Return where in a box a place is; arrays of indices are a box of their own."""
    if not (are_slices(box) and are_slices(place)):
        return tuple(slice(0, size) for size in shape_of(box))
    return tuple(
        slice(s.start - of_box.start, s.stop - of_box.start)
        for s, of_box in zip(place, box, strict=True)
    )
