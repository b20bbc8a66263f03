"""Selected elements of the chunks in a file are written, in any way, and no other byte."""

import os
import random

import numpy as np
import pytest
from helpers import EVERYTHING, random_array

from numcodecs_bytes._core.copy import encode_array
from numcodecs_bytes._parts.layout import Layout
from numcodecs_bytes._parts.locks import NotInPlace
from numcodecs_bytes._parts.product import parse_product
from numcodecs_bytes._parts.write_file import Assignment, Changes, Pace, WriteCosts

SEEDS = range(1000 if EVERYTHING else 200)
DTYPES = ["u1", "f8", "i4", "S5", "c16"]


def random_layout(rng):
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(0, 3)))
    dtype = np.dtype(rng.choice(DTYPES))
    order = rng.choice([None, tuple(rng.sample(range(len(shape)), len(shape)))])
    return Layout(shape, dtype, dtype.newbyteorder(rng.choice("<>")), order)


def random_selection(rng, shape):
    """Return a selection as zarr passes it to codecs."""
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    kind = rng.choice(["slices", "points", "mesh", "mask of an axis"])
    if kind == "points" and shape:
        num = rng.choice([0, 1, 5, 40, 200])
        return tuple(numbers.integers(0, n, num) for n in shape)
    if kind == "mesh" and shape:
        return np.ix_(*(numbers.integers(0, n, rng.randint(0, 12)) for n in shape))
    slices = [slice(*sorted(numbers.integers(0, n + 1, 2)), rng.randint(1, 3)) for n in shape]
    if kind == "mask of an axis" and shape:
        k = rng.randrange(len(shape))
        slices[k] = numbers.random(shape[k]) < 0.5
    else:
        slices = [
            s if rng.random() < 0.7 else rng.randrange(n)
            for s, n in zip(slices, shape, strict=True)
        ]
    return tuple(slices)


def random_costs(rng):
    return WriteCosts(
        block_bytes=rng.choice([1, 16, 64, 1 << 18]),
        pieces_per_block=rng.choice([0, 2, 32]),
        dense_bytes=rng.choice([0, 20, 256]),
        memory_bytes=rng.choice([0, 8, 64, 1 << 23]),
        piece_memory=rng.choice([0, 5, 128]),
        num_pieces_timed=rng.choice([1, 8]),
        slow_piece_seconds=rng.choice([0, 1e-5]),
    )


def chunk_in(raw, layout, start):
    """Return a view of a chunk that begins at a byte of `raw`."""
    order = layout.axis_order or tuple(range(len(layout.shape)))
    shape = [layout.shape[k] for k in order]
    return np.ndarray(shape, layout.stored, raw, start).transpose(np.argsort(order, kind="stable"))


def write(path, items, starts, costs, in_blocks=None):
    """Write to a file as `Changes` would, or the other way."""
    changes = Changes(items, costs)
    with path.open("r+b") as file:
        in_blocks = changes.suits_blocks(lambda: starts) if in_blocks is None else in_blocks
        changes.write(file.fileno(), starts, Pace(costs), lambda: True, in_blocks=in_blocks)
    return changes


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_as_numpy(tmp_path, seed):
    """Chunks that differ, one after the other in a file; of elements at one place, the last."""
    rng = random.Random(seed)  # noqa: S311
    layouts = [random_layout(rng) for _ in range(rng.randint(1, 3))]
    starts = np.cumsum([3, *(layout.num_bytes + 5 for layout in layouts)]).tolist()
    expected = np.random.default_rng(seed).integers(0, 256, starts.pop(), np.uint8)
    expected.tofile(tmp_path / "file")
    items, num_bytes = [], 0
    for layout, start in zip(layouts, starts, strict=True):
        selection, chunk = random_selection(rng, layout.shape), chunk_in(expected, layout, start)
        values = random_array(layout.dtype, np.shape(chunk[selection]))
        if rng.random() < 0.3 and values.size:
            values = values.ravel()[0]
        chunk[selection] = values
        num_bytes += np.size(chunk[selection]) * layout.item_size
        items.append((Assignment(layout, selection, np.asarray(values), encode_array), start))
    unplaced = random_layout(rng)
    nothing = Assignment(unplaced, random_selection(rng, unplaced.shape), 1, encode_array)
    changes = Changes([nothing], WriteCosts())
    num_bytes += changes.num_bytes
    items.append((nothing, None))
    rng.shuffle(items)
    items, starts = zip(*items, strict=True)
    in_blocks = rng.choice([None, True, False])
    changes = write(tmp_path / "file", items, starts, random_costs(rng), in_blocks)
    assert changes.num_bytes == num_bytes
    assert (tmp_path / "file").read_bytes() == expected.tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_products_are_cut_by_bytes(seed):
    """Parts are all elements, in order; none spans more bytes than it may, or it is one element."""
    rng = random.Random(seed)  # noqa: S311
    layout, start = random_layout(rng), rng.randrange(100)
    selection = random_selection(rng, layout.shape)
    numbers = np.arange(np.prod(layout.shape, dtype=int)) * layout.item_size
    numbers = numbers.reshape([layout.shape[k] for k in layout.as_stored])
    numbers = numbers.transpose(np.argsort(layout.as_stored, kind="stable"))
    selected = parse_product(selection, layout)
    stored = selected.as_stored(numbers[selection] + start).ravel().tolist()
    assert selected.shape == np.shape(numbers[selection])
    if selected.expand is not None:
        stored = sorted(set(stored))
    if not stored:
        return
    product = selected.product._replace(start=start)
    assert product.span == (min(stored), max(stored) + layout.item_size)
    runs, length = product.runs()
    inside = np.arange(0, length, layout.item_size)
    assert np.add.outer(runs, inside).ravel().tolist() == stored
    assert product.count_runs() == (len(runs), length)
    for in_pieces in (False, True)[: 2 if selected.expand else 1]:
        max_bytes = rng.choice([1, 10, 100, 1000])
        parts = [part for _, part in product.split(product.cuts(max_bytes, in_pieces=in_pieces))]
        found = [
            np.add.outer(part.runs()[0], np.arange(0, part.runs()[1], layout.item_size))
            for part in parts
        ]
        if selected.expand is not None:
            assert [i for positions in found for i in positions.ravel().tolist()] == stored
        for part, positions in zip(parts, found, strict=True):
            low, high = part.span
            size = positions.size * layout.item_size if in_pieces else high - low
            assert size <= max_bytes or positions.size == 1 or selected.expand is None


@pytest.mark.parametrize("seed", range(3))
def test_points_are_written_in_the_order_in_which_they_are_stored(tmp_path, monkeypatch, seed):
    """Adjacent ones at once, in whatever order they come."""
    layout = Layout((1 << 16,), np.dtype("f8"), np.dtype("f8"))
    (tmp_path / "file").write_bytes(bytes(layout.num_bytes))
    numbers, written, pwrite = np.random.default_rng(seed), [], os.pwrite

    def record(descriptor, raw, start):
        written.append((start, len(raw)))
        return pwrite(descriptor, raw, start)

    runs = np.arange(0, 1 << 16, 1 << 12)
    points = numbers.permutation(np.add.outer(runs, np.arange(7)).ravel())
    monkeypatch.setattr(os, "pwrite", record)
    item = Assignment(layout, (points,), points.astype("f8"), encode_array)
    write(tmp_path / "file", [item], [0], WriteCosts(pieces_per_block=1000))
    assert written == [(8 * start, 7 * 8) for start in runs]
    expected = np.zeros(1 << 16)
    expected[points] = points
    assert np.array_equal(np.fromfile(tmp_path / "file"), expected)


def test_a_selection_that_is_not_known():
    layout = Layout((4, 4), np.dtype("f8"), np.dtype("f8"))
    with pytest.raises(NotInPlace, match="its selection.*is not known"):
        Changes(
            [Assignment(layout, (slice(None, None, -1), 0), np.ones(4), encode_array)], WriteCosts()
        )


def test_what_is_not_wanted_any_more_is_not_written(tmp_path):
    layout = Layout((4,), np.dtype("f8"), np.dtype("f8"))
    changes = Changes([Assignment(layout, (slice(2),), np.ones(2), encode_array)], WriteCosts())
    (tmp_path / "file").write_bytes(bytes(32))
    with (tmp_path / "file").open("r+b") as file:
        for in_blocks in (False, True):
            with pytest.raises(InterruptedError, match="cancelled"):
                changes.write(
                    file.fileno(), [0], Pace(WriteCosts()), lambda: False, in_blocks=in_blocks
                )
    assert (tmp_path / "file").read_bytes() == bytes(32)
