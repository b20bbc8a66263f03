"""Groups of chunks that are read or written through memory of a limited size."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from numcodecs_bytes._plan.out_selections import Box, OutSelection, are_slices, shape_of, size_of
from numcodecs_bytes._plan.outcome import HasOutcome


class HasOutSelection(HasOutcome, Protocol):
    """A chunk that is read or written, and its region in the output, or in the values."""

    out_selection: OutSelection


Chunk = TypeVar("Chunk", bound=HasOutSelection)


class Group(NamedTuple, Generic[Chunk]):
    """Chunks that lie in a box of the output, or of the values."""

    chunks: list[Chunk]
    box: OutSelection  # a `Box`, or the `out_selection` of the only chunk, if that is scattered


def groups_of(chunks: Sequence[Chunk], max_elements: int) -> list[Group[Chunk]]:
    """Return chunks in groups, in boxes of at most `max_elements`, unless a single chunk has more.

    zarr passes chunks in C order. Those that follow each other fill their box, unless some in
    between are left out.
    """
    groups: list[Group[Chunk]] = []
    for chunk in chunks:
        box = _box_around(chunk.out_selection)
        if groups and are_slices(groups[-1].box):
            larger = _box_around_both(groups[-1].box, box)
            if size_of(larger) <= max_elements:
                groups[-1].chunks.append(chunk)
                groups[-1] = groups[-1]._replace(box=larger)
                continue
        groups.append(Group([chunk], box if size_of(box) <= max_elements else chunk.out_selection))
    return groups


def _box_around(out_selection: OutSelection) -> Box:
    """Return the smallest box around what is selected."""
    return tuple(
        s if isinstance(s, slice) else slice(int(s.min()), int(s.max()) + 1) for s in out_selection
    )


def _box_around_both(box: Box, other: Box) -> Box:
    return tuple(
        slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(box, other, strict=True)
    )


def out_selection_in_box(box: OutSelection, out_selection: OutSelection) -> OutSelection:
    """Return the region of a chunk in the box of its group, given its region in the output."""
    if not are_slices(box):  # the box is the chunk's own region
        return tuple(slice(0, size) for size in shape_of(out_selection))
    return _moved(out_selection, [-along.start for along in box])


def out_selection_outside_box(box: OutSelection, out_selection: OutSelection) -> OutSelection:
    """Return the region of a chunk in the output, or in the values, given its region in its box."""
    return _moved(out_selection, [along.start for along in box]) if are_slices(box) else box


def _moved(out_selection: OutSelection, by: Sequence[int]) -> OutSelection:
    """Return what is selected so many elements further along each axis."""
    return tuple(
        slice(s.start + num, s.stop + num) if isinstance(s, slice) else s + num
        for s, num in zip(out_selection, by, strict=True)
    )
