"""What zarr selects becomes indices along stored axes, or points; all else is left to zarr."""

import numpy as np
import pytest

from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._plan.selection import axes_of, key_of, selection_of

I4 = np.dtype("i4")
LAYOUT = Layout((6, 8), I4, I4).geometry
TRANSPOSED = Layout((6, 8), I4, I4, (1, 0)).geometry


def test_basic_selections_are_ranges_and_integers_drop_their_axis():
    rows, column = axes_of((slice(1, 6, 2), 3), LAYOUT)
    assert (rows.indices, rows.stride, rows.selection_axis) == (range(1, 6, 2), 32, 0)
    assert (column.indices, column.stride, column.selection_axis) == (range(3, 4), 4, None)


def test_axes_come_in_stored_order():
    columns, rows = axes_of((slice(1, 3), slice(0, 8)), TRANSPOSED)
    assert (columns.selection_axis, columns.stride) == (1, 24)
    assert (rows.selection_axis, rows.stride) == (0, 4)


def test_arrays_of_a_mesh_are_ranges_where_their_step_is_constant():
    rows, columns = axes_of(np.ix_([4, 0, 4], [2, 4, 6]), LAYOUT)
    assert rows.indices.tolist() == [4, 0, 4]
    assert columns.indices == range(2, 7, 2)


def test_axes_to_drop_have_no_place_in_the_selection():
    rows, columns = axes_of(np.ix_([4], [5, 2]), LAYOUT, (0,))
    assert (rows.selection_axis, columns.selection_axis) == (None, 0)


@pytest.mark.parametrize(("layout", "flat"), [(LAYOUT, [13, 45]), (TRANSPOSED, [31, 35])])
def test_points_are_one_axis_of_positions_as_they_are_stored(layout, flat):
    (points,) = axes_of((np.array([1, 5]), np.array([5, 5])), layout)
    assert np.asarray(points.indices).tolist() == flat
    assert (points.stride, points.selection_axis) == (4, 0)


def test_bools_select_along_an_axis():
    rows, _ = axes_of((np.array([True, False, True, True, False, False]), slice(0, 8)), LAYOUT)
    assert rows.indices.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    "selection",
    [
        slice(0, 2),
        (slice(0, 2),),
        (slice(4, 0, -1), slice(0, 8)),
        (6, 0),
        (-1, 0),
        (True, 0),
        ("field", 0),
        (..., 0),
        (np.array([6]), slice(0, 8)),
        (np.array([-1]), slice(0, 8)),
        (np.array([1.0]), slice(0, 8)),
        (np.array([True]), slice(0, 8)),
        (np.array([1, 2]), np.array([1, 8])),
        (np.array([1, 2]), np.array([1, 2, 3])),
        (np.array(1), np.array(2)),
    ],
    ids=repr,
)
def test_selections_of_another_kind_or_out_of_bounds_are_left(selection):
    with pytest.raises(LeftToZarr, match="its selection is of an unknown kind"):
        axes_of(selection, LAYOUT)


def test_slices_and_integers_have_keys_that_tell_them_apart():
    slices = slice(0, 2), slice(0, 3), slice(0, 2, 2)
    keys = [key_of((s, 1)) for s in slices]
    assert len({*keys, key_of((slice(0, 2), 1))}) == len(keys)
    assert [selection_of(key) for key in keys] == [(s, 1) for s in slices]
