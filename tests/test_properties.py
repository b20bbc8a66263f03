"""What holds for every array, every history of an array and every document, searched for.

The same examples are tried in every run. ``HYPOTHESIS_MAX_EXAMPLES=5000 pytest
tests/test_properties.py`` tries that many of each, other ones every time.
"""

import contextlib
import json
import math
import random
import shutil
import tempfile

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
import zarr.storage
from data_types import CASES, ENDIANS, LAYOUTS
from fuzz_bytes import check_one, seed_inputs
from fuzz_mutator import NESTED_V2
from fuzz_oracle import stored_bytes
from helpers import (
    HAS_STRUCT,
    HAS_STRUCTURES_IN_SHARDS,
    OUR_PIPELINES,
    PIPELINES,
    ZARR_CASES,
    bounded,
    has_nested_structures,
    ignore_unstable_data_types,
    random_selections,
    run_program,
    select,
)
from hypothesis import given
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from numcodecs_bytes import Bytes
from numcodecs_bytes.zarr_codec import BytesCodec

pytestmark = ignore_unstable_data_types

# Data types and arrays of any bytes: NaN payloads, invalid bools and code points, NaT.

leaves = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(endianness="?", min_len=1, max_len=5),
    hnp.unicode_string_dtypes(endianness="?", min_len=1, max_len=3),
    st.sampled_from([case.dtype for case in CASES if case.native_only]),
    st.sampled_from(["V1", "V5", "<M8", ">M8", "<m8", ">m8"]).map(np.dtype),
)


@st.composite
def structures(draw, fields):
    """Draw a structured dtype: aligned, padded or neither, with titles and subarrays or without."""
    formats = draw(st.lists(fields, min_size=1, max_size=3))
    shapes = st.sampled_from([(), (), (2,), (1, 3), (0,)])
    formats = [np.dtype((field, draw(shapes))) for field in formats]
    names = [f"f{i}" for i in range(len(formats))]
    titles = [f"title {name}" if draw(st.booleans()) else None for name in names]
    spec = {"names": names, "formats": formats, "titles": titles}
    layout = draw(st.sampled_from(["packed", "aligned", "padded", "backwards"]))
    if layout == "padded":
        spec["offsets"] = [
            2 + 3 * i + sum(f.itemsize for f in formats[:i]) for i in range(len(names))
        ]
        spec["itemsize"] = spec["offsets"][-1] + formats[-1].itemsize + 1
    elif layout == "backwards":
        spec["offsets"] = [sum(f.itemsize for f in formats[i + 1 :]) for i in range(len(names))]
    return np.dtype(spec, align=layout == "aligned")


data_types = st.one_of(
    st.sampled_from([case.dtype for case in CASES]),
    leaves,
    st.recursive(leaves, structures, max_leaves=6),
).filter(lambda dtype: stored_bytes(np.zeros(1, dtype), "little") and dtype.itemsize < 300)


def byte_orders(dtype):
    """Return the dtype and, where ml_dtypes lets it, the same in the other byte order."""
    return st.sampled_from([dtype] if is_native_only(dtype) else [dtype, dtype.newbyteorder("S")])


def is_native_only(dtype):
    if dtype.subdtype is not None or dtype.names is None:
        return dtype.base.type.__module__ == "ml_dtypes"
    return any(is_native_only(dtype[name]) for name in dtype.names)


@st.composite
def arrays(draw, dtypes):
    """Draw an array of any bytes in any layout: axes in any order, any steps, misaligned."""
    dtype = draw(dtypes)
    memory = draw(st.binary(min_size=1, max_size=dtype.itemsize * 3))
    if draw(st.booleans()):
        count = 12
        base = np.frombuffer(np.resize(np.frombuffer(memory, "u1"), count * dtype.itemsize), dtype)
        return LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](base.copy())
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    steps = [draw(st.sampled_from([1, 1, 2, -1, -2])) for _ in shape]
    whole = [n * abs(step) for n, step in zip(shape, steps, strict=True)]
    shift = draw(st.sampled_from([0, 0, 1]))
    raw = np.resize(np.frombuffer(memory, "u1"), math.prod(whole) * dtype.itemsize + shift)
    base = np.ndarray(whole, dtype, raw, shift, order=draw(st.sampled_from("CF")))
    array = base[(..., *(slice(None, None, step) for step in steps))]
    return array.transpose(draw(st.permutations(range(len(shape)))))


class TestBytes:
    @bounded(600)
    @given(array=arrays(data_types), endian=st.sampled_from(ENDIANS))
    def test_encode_is_what_the_specification_says(self, array, endian):
        """Guards against a data type or layout that the table of cases does not have."""
        codec = Bytes(endian, dtype=array.dtype)
        expected = stored_bytes(array, endian)
        assert bytes(codec.encode(array)) == expected
        assert stored_bytes(array, endian) == expected

        decoded = codec.decode(expected)
        assert decoded.dtype == codec.dtype
        assert decoded.shape == (array.size,)
        assert stored_bytes(decoded, endian) == expected
        # JSON must not lose a part of the data type.
        again = Bytes.from_config(json.loads(json.dumps(codec.get_config())))
        assert again == codec
        assert stored_bytes(again.decode(expected), endian) == expected

    @bounded(600)
    @given(data=st.data(), array=arrays(data_types), endian=st.sampled_from(ENDIANS))
    def test_every_out_holds_the_elements(self, data, array, endian):
        """Guards against an out whose layout, byte order or padding is taken for another."""
        dtype, shape = array.dtype, array.shape
        codec = Bytes(endian, dtype=dtype)
        other = data.draw(byte_orders(dtype))
        stored = stored_bytes(array, endian)
        kind = data.draw(st.sampled_from(["C", "F", "strided", "memory", "input"]))
        if kind == "C":
            out = elements = np.zeros(shape, other)
        elif kind == "F":
            out = elements = np.zeros(shape, other, order="F")
            stored = codec.encode(np.asfortranarray(array))
        elif kind == "strided":
            out = elements = np.zeros((array.size, 2), other)[::-1, 1]
        elif kind == "memory":
            out = np.zeros((array.size, dtype.itemsize), np.uint8)
            elements = out.reshape(-1).view(dtype)
        else:
            shift = data.draw(st.integers(0, 9))
            memory = np.frombuffer(stored + bytes(array.nbytes + shift), np.uint8).copy()
            out = elements = np.ndarray(shape, other, memory, shift)
            stored = memory[: len(stored)]
        assert codec.decode(stored, out=out) is out
        assert stored_bytes(elements, endian) == stored_bytes(array, endian)


# One array of zarr's against an array of NumPy's.


def drawn_selections(data, shape):
    """Draw a selection of each kind, or all of an array that has no elements."""
    if not math.prod(shape):
        return [("basic", ..., lambda array: array[...])]
    seed = data.draw(st.integers(0, 2**16), label="seed of selections")
    return list(random_selections(random.Random(seed), shape, 1))  # noqa: S311


class ArrayHistory(RuleBasedStateMachine):
    """An array that is written, read, resized and opened again, and NumPy's idea of it."""

    directory = None

    def __init__(self):
        super().__init__()
        self.config = contextlib.ExitStack()

    @initialize(
        data=st.data(),
        case=st.sampled_from(ZARR_CASES),
        endian=st.sampled_from(ENDIANS),
        kind=st.sampled_from(["memory", "local", "asynchronous"]),
        sides=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    )
    def create(self, data, case, endian, kind, sides):
        self.case, self.endian = case, endian
        self.shape = tuple(sides) if len(sides) < 3 else tuple(min(n, 4) for n in sides)
        self.chunks = tuple(data.draw(st.integers(1, n + 1)) for n in self.shape)
        shards = None
        if data.draw(st.booleans()) and (HAS_STRUCTURES_IN_SHARDS or case.dtype.kind != "V"):
            shards = tuple(n * data.draw(st.integers(1, 2)) for n in self.chunks)
        self.is_sharded = shards is not None
        if kind == "memory":
            self.store = zarr.storage.MemoryStore()
        else:
            self.directory = tempfile.mkdtemp()
            self.store = zarr.storage.LocalStore(self.directory)
        if kind == "asynchronous":
            self.store = zarr.storage.LoggingStore(self.store, log_level="ERROR")
        # Of a structure of both byte orders, zarr 3.1.6 misreads the fill value that it wrote.
        dtype = case.dtype if HAS_STRUCT else case.dtype.newbyteorder("=")
        # And all take -0.0 for a fill value of 0 in types of ml_dtypes, and store no chunk of it.
        fill_values = case.array(dtype)[[3] if case.native_only else [0, 3]]
        self.fill_value = data.draw(st.sampled_from(fill_values))
        zarr.create_array(
            self.store,
            shape=self.shape,
            chunks=self.chunks,
            shards=shards,
            dtype=dtype,
            fill_value=self.fill_value,
            compressors=None,
            serializer=BytesCodec(endian=endian),
        )
        self.reopen(OUR_PIPELINES[0], write_empty_chunks=False, cost=None)
        self.model = np.full(self.shape, self.fill_value, self.array.dtype)

    def teardown(self):
        self.config.close()
        if self.directory is not None:
            shutil.rmtree(self.directory)

    @rule(
        pipeline=st.sampled_from([*OUR_PIPELINES, PIPELINES[-1]]),
        write_empty_chunks=st.booleans(),
        cost=st.sampled_from([None, 0, 8]),
    )
    def reopen(self, pipeline, write_empty_chunks, cost):
        self.config.close()
        self.config.enter_context(
            zarr.config.set(
                {"codec_pipeline.path": pipeline, "numcodecs_bytes.max_gap_bytes": cost}
            )
        )
        self.array = zarr.open_array(
            self.store, mode="r+", config={"write_empty_chunks": write_empty_chunks}
        )
        (codec,) = self.array.metadata.codecs
        assert type(codec.codecs[0] if self.is_sharded else codec) is BytesCodec

    def values(self, data, shape):
        """Draw values of the case, native or not, column-major or not."""
        seed = data.draw(st.integers(0, 2**16), label="seed")
        dtype = data.draw(byte_orders(self.model.dtype), label="dtype")
        order = data.draw(st.sampled_from("CF"), label="order")
        chosen = np.random.default_rng(seed).integers(12, size=shape)
        return np.asarray(self.case.array(dtype)[chosen], order=order)

    @rule(data=st.data())
    def write(self, data):
        # Others may name an element twice: engine/test_random_writes.py.
        selections = drawn_selections(data, self.shape)
        way, selection, _ = data.draw(st.sampled_from([selections[0], selections[-1]]))
        values = self.values(data, self.model[selection].shape)
        if data.draw(st.booleans()):
            values = data.draw(st.sampled_from([self.fill_value, self.values(data, ())[()]]))
        (self.array if way == "basic" else self.array.vindex)[selection] = values
        self.model[selection] = values

    @rule(data=st.data())
    def read(self, data):
        for way, selection, of_numpy in drawn_selections(data, self.shape):
            self.assert_same(select(self.array, way, selection), of_numpy(self.model))

    @rule(data=st.data())
    def resize(self, data):
        shape = tuple(data.draw(st.integers(0, n + 2).filter(lambda n: n < 9)) for n in self.shape)
        for axis, size in enumerate(shape):
            # What a smaller shape hides zarr keeps in the chunks at its edge, and shows again.
            self.array[(*[slice(None)] * axis, slice(size, None))] = self.fill_value
        self.array.resize(shape)
        before, self.model = self.model, np.full(shape, self.fill_value, self.model.dtype)
        common = tuple(slice(min(sizes)) for sizes in zip(shape, self.shape, strict=True))
        self.model[common] = before[common]
        self.shape = shape

    @precondition(lambda self: max(self.shape) < 9)
    @rule(data=st.data())
    def append(self, data):
        axis = data.draw(st.integers(0, len(self.shape) - 1))
        shape = [*self.shape]
        shape[axis] = data.draw(st.integers(1, 3))
        values = self.values(data, shape)
        self.array.append(values, axis=axis)
        self.model = np.concatenate([self.model, values], axis).astype(self.model.dtype)
        self.shape = self.model.shape

    @invariant()
    def every_element_is_the_models(self):
        self.assert_same(self.array[...], self.model)

    @precondition(lambda self: not self.is_sharded)
    @invariant()
    def every_stored_byte_is_the_specifications(self):
        num_chunks = [-(-n // chunk) for n, chunk in zip(self.shape, self.chunks, strict=True)]
        for index in np.ndindex(*num_chunks):
            chunk = np.full(self.chunks, self.fill_value, self.model.dtype)
            region = tuple(
                slice(i * n, (i + 1) * n) for i, n in zip(index, self.chunks, strict=True)
            )
            visible = self.model[region]
            chunk[tuple(map(slice, visible.shape))] = visible
            stored = self.read_chunk("/".join(("c", *map(str, index))))
            if stored is None:
                self.assert_same(chunk, np.full_like(chunk, self.fill_value))
            else:
                assert stored == stored_bytes(chunk, self.endian)

    def read_chunk(self, key):
        chunk = sync(self.store.get(key, default_buffer_prototype()))
        return None if chunk is None else chunk.to_bytes()

    def assert_same(self, got, expected):
        """Compare bits; scalars of strings have lengths of their own, and the type of the array."""
        dtype = self.model.dtype
        got, expected = (a if a.shape else np.array(a, dtype) for a in (got, expected))
        assert got.dtype == expected.dtype == dtype
        assert got.shape == expected.shape
        assert stored_bytes(got, "big") == stored_bytes(expected, "big")


def test_an_array_with_a_history_is_what_numpy_says():
    """Guards against state that one operation leaves behind for another: zarr against NumPy."""
    run_state_machine_as_test(ArrayHistory, settings=bounded(120, stateful_step_count=20))


class TestFuzzTarget:
    """What atheris runs, run everywhere; see fuzz_bytes.py."""

    @pytest.mark.parametrize("data", seed_inputs(), ids=range(len(seed_inputs())))
    def test_documents_that_are_not_changed_are_read_right(self, data):
        """Guards against a target that refuses all it is given."""
        is_known = has_nested_structures() or data[0] != NESTED_V2
        assert check_one(data) == ("right" if is_known else "refused")

    @bounded(1500)
    @given(st.binary(min_size=24, max_size=60))
    def test_changed_documents_are_read_right_or_refused_in_our_words(self, data):
        check_one(data)


def test_a_unit_that_is_a_fraction_of_nothing_is_refused():
    """NumPy divides by zero: a .zarray with such a filter ended the process that opened it."""
    program = """
import numcodecs
for dtype in (
    "<M8[s/0]", [["a", "m8[s/0]"]], {"names": ["a"], "formats": ["datetime64[s/0]"]}
):
    try:
        numcodecs.get_codec({"id": "bytes", "dtype": dtype})
    except TypeError as error:
        print("dtype must be" in str(error))
"""
    assert run_program("-c", program).stdout.split() == ["True"] * 3
