"""Reads into an output of the caller's: the same values, or the same error, as by zarr alone.

An output of another data type, of other strides, that is read-only, whose elements share memory, or
that is mapped from the file of a chunk: zarr assigns decoded chunks to it, as NumPy does.
"""

import random
import warnings

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    EVERYTHING,
    ZARR_ALONE,
    CountingStore,
    create,
    ignore_unstable_data_types,
    ranges_from,
    spec_of,
)
from zarr.core.buffer import cpu

import numcodecs_bytes

pytestmark = [pytest.mark.usefixtures("our_pipeline"), ignore_unstable_data_types]
SHAPE = (6, 8)
DTYPES = ["?", "u1", "i4", "i8", "f4", "f8", ">f8", "c8", "c16", "U3", "U5", "S2", "S4"]
DTYPES += ["M8[s]", "M8[ms]", "m8[s]", "m8[ms]"]
STRUCTURES = [[("x", "i4"), ("y", "f8")], [("y", "f8"), ("x", "i4")], [("x", "i8"), ("y", "f8")]]


def zarr_swaps_structures():
    """Whether zarr alone reads big-endian structures correctly: since 3.3."""
    codec, buffer = zarr.codecs.BytesCodec(endian="big"), cpu.Buffer.from_bytes(b"\0\1")
    decoded = codec._decode_sync(buffer, spec_of((1,), [("x", "i2")]))
    return decoded.as_numpy_array()["x"].tolist() == [1]


def data_of(dtype):
    dtype = np.dtype(dtype)
    if dtype.names:
        data = np.zeros(SHAPE, dtype)
        for name in dtype.names:
            data[name] = data_of(dtype[name])
        return data
    return (np.arange(48).reshape(SHAPE) % 11).astype(dtype.newbyteorder("="))


KINDS = {
    "v3": {"chunks": (2, 3), "endian": "big"},
    "little": {"chunks": (2, 3), "endian": "little"},
    "one chunk": {"chunks": SHAPE, "endian": "little"},
    "transposed": {"chunks": (2, 3), "filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "shards": {"chunks": (2, 2), "shards": (6, 4)},
}


def write(path, kind, dtype, *, is_complete):
    """Store an array, of which a chunk may be missing."""
    dtype = np.dtype(dtype)
    if kind.startswith("v2"):
        more = {"zarr_format": 2, "filters": None, "compressors": None, "order": kind[-1]}
        array = zarr.create_array(path, shape=SHAPE, chunks=(2, 3), dtype=dtype, **more)
    else:
        settings = {"fill_value": 3} if dtype.kind in "iuf" else {}
        array = create(path, SHAPE, dtype=dtype.newbyteorder("="), **settings | KINDS[kind])
    data = data_of(dtype)
    array[...] = data
    if not is_complete:
        name = "0.1" if kind.startswith("v2") else "c/0/1"
        (path / name).unlink(missing_ok=True)


def selections(rng):
    """Return a method, its selection, and the shape of what it selects."""
    rows, columns = sorted(rng.sample(range(7), 2)), sorted(rng.sample(range(9), 2))
    box, shape = (slice(*rows), slice(*columns)), (rows[1] - rows[0], columns[1] - columns[0])
    points = [np.array([rng.randrange(n) for _ in range(5)]) for n in SHAPE]
    mask = np.random.default_rng(rng.randrange(1 << 32)).random(SHAPE) < 0.4
    return rng.choice(
        [
            ("get_basic_selection", box, shape),
            ("get_basic_selection", (rows[0], slice(None, None, 2)), (4,)),
            ("get_orthogonal_selection", (points[0], box[1]), (5, shape[1])),
            ("get_coordinate_selection", tuple(points), (5,)),
            ("get_mask_selection", mask, (int(mask.sum()),)),
            ("get_block_selection", (0, slice(None)), (2, 8)),
        ]
    )


def memory_of(layout, shape, dtype):
    """Return an array whose memory is laid out in some way, and the array that owns the memory."""
    dtype = np.dtype(dtype)
    whole = np.zeros([2 * n + 1 for n in shape], dtype)
    if layout == "strided":
        return whole[tuple([slice(2 * n - 1, None if n else 0, -2) for n in shape])], whole
    if layout == "overlapping":
        strides = [dtype.itemsize] * len(shape)
        return np.lib.stride_tricks.as_strided(whole, shape, strides), whole
    array = np.zeros(shape, dtype, order="F" if layout == "F" else "C")
    if layout == "read-only":
        array.flags.writeable = False
    return array, array


def read_into(store, method, selection, array, config=None):
    """Return the memory after a read into it, or the class of the error."""
    with zarr.config.set(config or {}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = zarr.open_array(store, mode="r")
        try:
            getattr(opened, method)(selection, out=cpu.NDBuffer(array))
        except Exception as error:  # noqa: BLE001 # whatever zarr raises
            return type(error)
    return None


@pytest.mark.parametrize("kind", [*KINDS, "v2 C", "v2 F"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["files", "requests"])
def test_random_outputs_are_filled_as_by_zarr_alone(tmp_path, kind, is_remote):
    """An integer was read into a float bit by bit, and a datetime into one of another unit."""
    rng = random.Random(f"{kind} {is_remote}")  # noqa: S311
    num_filled = num_errors = 0
    with ranges_from(CountingStore), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        for number in range(60 if EVERYTHING else 25):
            path = tmp_path / str(number)
            has_structures = rng.random() < 0.1 and zarr_swaps_structures()
            stored, wanted = rng.choices(STRUCTURES if has_structures else DTYPES, k=2)
            if stored[:2] == "m8" and wanted[0] in "SU":  # NumPy 2.0.0 writes beyond the strings
                wanted = stored
            write(path, kind, stored, is_complete=rng.random() < 0.7)
            layout = rng.choice(["C", "F", "strided", "read-only"])
            if kind == "one chunk":  # with several, zarr assigns them in any order
                layout = rng.choice([layout, "overlapping"])
            method, selection, shape = selections(rng)
            array, memory = memory_of(layout, shape, rng.choice([wanted, stored]))
            other, expected = memory_of(layout, shape, array.dtype)
            store = CountingStore(path) if is_remote else path
            error = read_into(path, method, selection, other, ZARR_ALONE)
            case = (stored, array.dtype, layout, method, selection)
            assert read_into(store, method, selection, array) == error, case
            if error is None:
                assert memory.tobytes() == expected.tobytes(), case
            num_filled += error is None
            num_errors += error is not None
    assert num_filled > num_errors > 0


@pytest.mark.parametrize("is_swapped", [False, True])
def test_an_output_mapped_from_the_file_of_a_chunk(tmp_path, is_swapped):
    """Reads of some blocks saw what those before had written."""
    data = np.arange(1 << 19, dtype="i8").reshape(1024, 512)
    create(tmp_path, data.shape, dtype="i8", endian="big" if is_swapped else "little")[...] = data
    stored = np.array(np.memmap(tmp_path / "c/0/0", "u1"))

    def read():
        (tmp_path / "c/0/0").write_bytes(stored)
        mapped = np.memmap(tmp_path / "c/0/0", "i8", "r+", shape=data.shape)
        out = cpu.NDBuffer(np.asarray(mapped)[::-1])  # from back to front
        zarr.open_array(tmp_path, mode="r").get_basic_selection(..., out=out)
        return np.array(mapped)

    with zarr.config.set(ZARR_ALONE):
        expected = read()
    np.testing.assert_array_equal(read(), expected)
    np.testing.assert_array_equal(expected, data[::-1])


@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_outputs_that_can_be_are_filled_in_part(tmp_path, layout):
    """What the tests above compare is not always left to zarr."""
    create(tmp_path, (64, 512))[...] = 1
    array, _ = memory_of(layout, (64, 2), "f8")
    with numcodecs_bytes.trace() as traced, zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        zarr.open_array(tmp_path).get_basic_selection(np.s_[:, 4:6], out=cpu.NDBuffer(array))
    assert traced.report()["total"]["bytes_fetched"] == array.nbytes
    assert (array == 1).all()


def test_why_an_output_is_left_to_zarr_is_said(tmp_path):
    create(tmp_path, (4, 4))[...] = 1
    opened = zarr.open_array(tmp_path, mode="r")
    with numcodecs_bytes.trace() as traced:
        opened.get_basic_selection(..., out=cpu.NDBuffer(np.zeros((4, 4), "i4")))
    assert traced.report()["not_seen"] == {
        "the output has the data type int32, the array float64": 1
    }
