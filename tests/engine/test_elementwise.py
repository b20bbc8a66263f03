"""Codecs that convert each element by itself: parts are what zarr makes of whole chunks."""

import random
import shutil

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.codecs.numcodecs as wrappers
from data_types import ENDIANS
from helpers import (
    EVERYTHING,
    HAS_STRUCT,
    OUR_PIPELINES,
    PIPELINES,
    ZARR_ALONE,
    CountingStore,
    module_or_none,
    random_selections,
    ranges_from,
    select,
    write_array,
    write_v2,
)
from zarr.codecs import Crc32cCodec, ShardingCodec, TransposeCodec

import numcodecs_bytes
from numcodecs_bytes.zarr import BytesCodec

pytestmark = pytest.mark.filterwarnings("ignore:.*Numcodecs codecs are not in the Zarr version 3")
HAS_CAST = module_or_none("cast_value_rs") is not None and hasattr(zarr.codecs, "CastValue")
DTYPES = ["i1", "u1", "<i2", ">i2", "<u2", ">i4", "<u4", "<i8", "<f2", "<f4", ">f4", "<f8", ">f8"]
OURS = {"codecs.bytes": "numcodecs_bytes.zarr.BytesCodec"}
NUM_ROUNDS = 12


def random_codec(rng, dtype, zarr_format):
    """Return a codec that takes elements of a dtype, or one of the same size, and what it returns.

    What is stored are multiples of 8, from 0 to 120.
    """
    encoded = np.dtype(rng.choice(DTYPES))
    kinds = ["FixedScaleOffset", "AsType"] + ["BitRound", "Quantize"] * (dtype.kind == "f")
    if zarr_format == 3 and HAS_STRUCT:
        kinds += ["ScaleOffset", *["CastValue"] * HAS_CAST] * 2
    name = rng.choice(kinds)
    if name == "ScaleOffset":
        numbers = [0, 1, 2, 4, -5] if dtype.kind != "f" else [0.5, 3.0, -1.25, 1e3]
        scale, offset = rng.choice([n for n in numbers if n]), rng.choice(numbers)
        return zarr.codecs.ScaleOffset(scale=scale, offset=offset), dtype
    if name == "CastValue":
        encoded = encoded.newbyteorder("=")
        ways = ["nearest-even", "towards-zero", "nearest-away"]
        codec = zarr.codecs.CastValue(
            data_type=encoded.name,
            rounding=rng.choice(ways),
            out_of_range=rng.choice([None, "clamp"]),
        )
        return codec, encoded
    # A dtype in the other byte order: numcodecs views elements as such.
    decoded = dtype.newbyteorder(rng.choice("==S"))
    settings = {
        "AsType": {"encode_dtype": encoded.str, "decode_dtype": decoded.str},
        "BitRound": {"keepbits": rng.randrange(np.finfo(dtype).nmant) if dtype.kind == "f" else 0},
        "Quantize": {"digits": rng.randint(0, 3), "dtype": decoded.str},
        "FixedScaleOffset": {
            "offset": rng.choice([0, 7, 3.5]),
            "scale": rng.choice([1, 2, 0.5, 0.1]),
            "dtype": decoded.str,
            "astype": encoded.str,
        },
    }[name]
    if name == "Quantize" and zarr_format == 2:
        encoded = np.dtype(rng.choice(["<f4", ">f8"]))
        settings["astype"] = encoded.str
    if name in ("BitRound", "Quantize") and zarr_format == 3:
        encoded = dtype
    if name == "BitRound":
        encoded = dtype
    return getattr(wrappers if zarr_format == 3 else numcodecs, name)(**settings), encoded


class Arrays:
    """An array behind codecs, and its `twin`: the same stored bytes without conversion."""

    def __init__(self, rng, folder, layout, *, is_full=False):
        self.rng, self.folder, self.path = rng, folder, folder / "array"
        self.is_full = is_full
        shape = tuple(rng.randint(1, 14) for _ in range(rng.choice([0, 1, 1, 2, 2, 3])))
        if layout == "shards" and not shape:
            shape = (9,)
        chunks = tuple(rng.randint(1, n + 1) for n in shape)
        self.dtype = encoded = np.dtype(rng.choice(DTYPES))
        zarr_format, codecs, transposes = 2 if layout.startswith("v2") else 3, [], []
        for _ in range(rng.randint(1, 3)):
            codec, encoded = random_codec(rng, encoded, zarr_format)
            codecs.append(codec)
            if layout in ("transposed", "shards") and rng.random() < 0.4:
                order = tuple(rng.sample(range(len(shape)), len(shape)))
                codecs.append(TransposeCodec(order=order))
        transposes = [codec for codec in codecs if isinstance(codec, TransposeCodec)]
        self.zarr_format = zarr_format
        self.conversions = [codec for codec in codecs if codec not in transposes]
        settings = {"shape": shape, "compressors": None, "fill_value": rng.choice([0, 0, 8])}
        settings["config"] = {"write_empty_chunks": is_full or rng.random() < 0.7}
        if zarr_format == 2:
            settings |= {"zarr_format": 2, "order": layout[-1], "chunks": chunks}
            behind, alone = {"filters": codecs}, {"filters": None}
        elif layout == "shards":
            shards = tuple(n * rng.randint(1, 3) for n in chunks)
            settings |= {"chunks": shards, "filters": None}
            endian, start = rng.choice(ENDIANS), rng.choice(["start", "end"])
            crc = [Crc32cCodec()] * rng.randint(0, 1)

            def sharding(some):
                return {
                    "serializer": ShardingCodec(
                        chunk_shape=chunks,
                        codecs=[*some, BytesCodec(endian=endian)],
                        index_codecs=[BytesCodec(), *crc],
                        index_location=start,
                    )
                }

            behind, alone = sharding(codecs), sharding(transposes)
        else:
            settings |= {"chunks": chunks, "serializer": BytesCodec(endian=rng.choice(ENDIANS))}
            behind, alone = {"filters": codecs}, {"filters": transposes}
        self.settings = settings
        self.twin = zarr.create_array(folder / "twin", dtype=encoded, **settings, **alone)
        self.fill()
        zarr.create_array(self.path, dtype=self.dtype, **settings, **behind)
        copy_chunks(folder / "twin", self.path)

    def fill(self):
        """Write a random array without the codecs; some chunks are missing."""
        stored = np.random.default_rng(self.rng.randrange(1 << 32)).integers(0, 16, self.twin.shape)
        self.twin[...] = (8 * stored).astype(self.twin.dtype)
        if self.twin.ndim and not self.is_full and self.rng.random() < 0.3:
            first = tuple(slice(0, n) for n in self.twin.chunks)
            self.twin[first] = self.twin.fill_value

    def open(self, path, pipeline, **config):
        with zarr.config.set({"codec_pipeline.path": pipeline, **OURS}):
            return zarr.open_array(path, mode="r+", config=self.settings["config"] | config)

    def stored(self, path):
        """Return what is stored in the chunks of an array, without conversion."""
        copy_chunks(path, self.folder / "twin")
        return np.array(self.twin[...], order="C")


def copy_chunks(source, target):
    """Copy all but metadata."""
    for path in source.rglob("*"):
        if path.is_file() and not path.name.startswith((".z", "zarr.")):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def outcome(function):
    """Return the value of a function, or the class of its error."""
    try:
        return np.asarray(function())
    except BaseException as error:  # noqa: BLE001 # cast_value_rs panics if memory is not aligned
        return type(error)


def assert_same(got, expected, which):
    """Compare outcomes; zarr also raises the errors of elements that were not selected."""
    if isinstance(expected, type):
        assert got is expected or isinstance(got, np.ndarray), which
    else:
        assert not isinstance(got, type), (got, which)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), which
        assert got.tobytes() == expected.tobytes(), which


# Codecs: name, settings, data type of the array, byte order of what is stored, elements, and the
# bytes that are stored.
STORED = {
    "FITS, BZERO": (
        "numcodecs.fixedscaleoffset",
        {"offset": 32768, "scale": 1, "dtype": "<u2", "astype": ">i2"},
        *("uint16", "big", [0, 32767, 32768, 65535], "8000 ffff 0000 7fff"),
    ),
    "fixedscaleoffset": (
        "numcodecs.fixedscaleoffset",
        {"offset": 10.0, "scale": 4, "dtype": "<f8", "astype": "|u1"},
        *("float64", "little", [10, 10.25, 14, 73.75], "00 01 10 ff"),
    ),
    "astype": (
        "numcodecs.astype",
        {"encode_dtype": "<i2", "decode_dtype": "<f4"},
        *("float32", "little", [0, -2, 258, -32768], "0000 feff 0201 0080"),
    ),
    "bitround": (
        "numcodecs.bitround",
        {"keepbits": 2},
        *("float32", "little", [1, 1.25, -0.5, 96], "0000803f 0000a03f 000000bf 0000c042"),
    ),
    "quantize": (
        "numcodecs.quantize",
        {"digits": 1, "dtype": "<f4"},
        *("float32", "little", [1, 0.5, -0.25, 64], "0000803f 0000003f 000080be 00008042"),
    ),
    "scale_offset": (
        "scale_offset",
        {"offset": 5, "scale": 2},
        *("int32", "big", [5, 6, 4, 133], "00000000 00000002 fffffffe 00000100"),
    ),
    "cast_value": (
        "cast_value",
        {"data_type": "int16"},
        *("float64", "big", [0, -2, 258, -32768], "0000 fffe 0102 8000"),
    ),
}

V2 = [case for case in STORED if STORED[case][0].startswith("numcodecs.")]


@pytest.fixture(params=[*(f"{case}, v3" for case in STORED), *(f"{case}, v2" for case in V2)])
def stored(tmp_path, request):
    """Return the path of an array of literal bytes, its elements, and those bytes."""
    case, _, zarr_format = request.param.rpartition(", v")
    name, settings, dtype, endian, values, raw = STORED[case]
    if not {"scale_offset": HAS_STRUCT, "cast_value": HAS_CAST}.get(name, True):
        pytest.skip("zarr has no such codec")
    raw, values = bytes.fromhex(raw), np.array(values, dtype)
    if zarr_format == "3":
        convert = {"name": name, "configuration": settings}
        codecs = [convert, {"name": "bytes", "configuration": {"endian": endian}}]
        return write_array(tmp_path / "a", raw, dtype, codecs), values, raw
    filters = [{"id": name.removeprefix("numcodecs."), **settings}]
    return write_v2(tmp_path / "a", raw, values.dtype.str, filters=filters), values, raw


EXACT = {"numcodecs_bytes.max_gap_bytes": 0}


@pytest.mark.usefixtures("our_pipeline", "_never_looks")
class TestLiteralBytes:
    """Of a chunk of four elements, only those that are selected are read or written."""

    def test_by_zarr_alone(self, stored):
        path, values, _ = stored
        with zarr.config.set(ZARR_ALONE):
            assert zarr.open_array(path, mode="r")[...].tolist() == values.tolist()

    @pytest.mark.needs("os.pread")
    def test_in_a_file(self, stored, calls):
        path, values, raw = stored
        size = len(raw) // 4
        array = zarr.open_array(path, mode="r")
        with zarr.config.set(EXACT):
            assert array[2] == values[2]
            assert calls.reads == [(2 * size, size)]
            assert array[::3].tolist() == values[::3].tolist()
            assert calls.reads[1:] == [(0, size), (3 * size, size)]
        assert array[...].tolist() == values.tolist()

    def test_in_a_store_that_is_requested(self, stored):
        path, values, raw = stored
        size = len(raw) // 4
        array = zarr.open_array(CountingStore(path, read_only=True), mode="r")
        with ranges_from(CountingStore), zarr.config.set(EXACT):
            with numcodecs_bytes.trace() as traced:
                assert array[2] == values[2]
                assert array[::3].tolist() == values[::3].tolist()
            assert array[...].tolist() == values.tolist()
        total = traced.report()["total"]
        assert (total["requests"], total["bytes_fetched"]) == (3, 3 * size)
        starts = [(asked.start, num) for _, asked, num in array.store.requests[:3]]
        assert sorted(starts) == [(0, size), (2 * size, size), (3 * size, size)]

    @pytest.mark.usefixtures("_in_place")
    def test_written_in_place(self, stored):
        """Zero bytes around an element stay."""
        path, values, raw = stored
        size = len(raw) // 4
        (chunk,) = [file for file in path.rglob("0") if file.is_file()]
        chunk.write_bytes(bytes(len(raw)))
        zarr.open_array(path, mode="r+")[1] = values[1]
        assert chunk.read_bytes() == bytes(size) + raw[size : 2 * size] + bytes(2 * size)


LAYOUTS = ["v2 C", "v2 F", "v3", "transposed", "shards"]


def arrays(folder, layout, seed, num=NUM_ROUNDS, **kwargs):
    """Yield random arrays; zarr refuses to make some."""
    rng = random.Random(f"{layout} {seed}")  # noqa: S311 # no secret
    for number in range(num):
        try:
            made = Arrays(rng, folder / str(number), layout, **kwargs)
        except (ArithmeticError, TypeError, ValueError):
            continue
        yield rng, made


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("seed", range(60 if EVERYTHING else 2))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_selections(tmp_path, set_constants, layout, seed):
    num_in_part = 0
    for rng, made in arrays(tmp_path, layout, seed):
        set_constants(
            BLOCK_BYTES=rng.choice([1, 30, 1 << 20]),
            WORTH_BYTES=rng.choice([1, 1 << 16]),
            PART_BYTES=rng.choice([1, 100, 1 << 21]),
        )
        expected = made.open(made.path, PIPELINES[0])
        for store in (made.path, CountingStore(made.path)):
            with ranges_from(CountingStore), numcodecs_bytes.trace() as traced:
                array = made.open(store, rng.choice(OUR_PIPELINES))
                for way, selection, _ in random_selections(rng, array.shape, 1):
                    which = way, selection, array.metadata
                    got = outcome(lambda a=array, w=way, s=selection: select(a, w, s))
                    want = outcome(lambda a=expected, w=way, s=selection: select(a, w, s))
                    assert_same(got, want, which)
            report = traced.report()
            num_in_part += report["total"]["chunks"] - report["total"]["chunks_whole"]
    assert num_in_part


LEFT = {"the whole chunk is written", "numcodecs.fixedscaleoffset is followed by transpose"}
LEFT.add("a single element is converted")
CANNOT = {"an element can't be converted"}


def encoded_by_zarr(made, value):
    """Return how zarr stores an element, alone in its chunk, or the class of its error."""
    names = [made.folder / name for name in ("element", "encoded")]
    more = {"shape": (1,), "chunks": (1,), "compressors": None, "overwrite": True}
    more["zarr_format"] = made.zarr_format
    if made.zarr_format == 3:
        more["serializer"] = BytesCodec(endian="little")
    zarr.create_array(names[0], dtype=made.dtype, filters=made.conversions, **more)
    with zarr.config.set({"array.write_empty_chunks": True}):
        element = zarr.open_array(names[0])
    encoded = zarr.create_array(names[1], dtype=made.twin.dtype, filters=None, **more)
    error = outcome(lambda: element.__setitem__(..., value))
    copy_chunks(*names)
    return error if isinstance(error, type) else encoded[0]


@pytest.mark.needs("fcntl")
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("seed", range(12 if EVERYTHING else 2))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_writes_in_place(tmp_path, set_constants, layout, seed):
    """What was selected is stored as by zarr alone; all else stays as it was."""
    # Few tests: those that Windows can't run are at most a sixth (../systems/run.py).
    num, num_in_place = 5 * NUM_ROUNDS if EVERYTHING else NUM_ROUNDS, 0
    for rng, made in arrays(tmp_path, layout, 1000 + seed, num, is_full=True):
        set_constants(BLOCK_BYTES=rng.choice([1, 30, 1 << 20]), REWRITE_FROM=rng.choice([1, 100]))
        before = made.stored(made.path)
        numbers = np.arange(before.size).reshape(before.shape)
        stored = {number: encoded_by_zarr(made, number) for number in range(0, 128, 8)}
        errors = {number for number, element in stored.items() if isinstance(element, type)}
        for way, selection, of_numpy in random_selections(rng, before.shape, 1):
            places = of_numpy(numbers)
            values = np.resize(rng.sample(range(0, 128, 8), 16), places.shape)
            if places.size > len(np.unique(places)):  # zarr keeps any of several values
                values[...] = rng.choice(list(stored))
            array = made.open(made.path, OUR_PIPELINES[0])
            writer = array if way == "basic" else getattr(array, way)
            given, in_place = values.astype(array.dtype), {"numcodecs_bytes.write_in_place": True}
            with zarr.config.set(in_place), numcodecs_bytes.trace() as traced:
                result = outcome(lambda w=writer, s=selection, v=given: w.__setitem__(s, v))
            expected, which = before.copy(), (way, selection, values, array.metadata)
            before, total = made.stored(made.path), traced.report()["total"]
            num_in_place += total["chunks_in_place"]
            if left := total["why_not_in_place"]:  # then zarr has written, or raised its own error
                reasons = {why.partition(":")[0] for why in left}
                has_errors = not errors.isdisjoint(values.ravel().tolist())
                assert reasons <= LEFT | (CANNOT if has_errors else set()), which
                continue
            assert not isinstance(result, type), which
            encoded = np.array([stored[number] for number in values.ravel()], before.dtype)
            expected.reshape(-1)[places.ravel()] = encoded
            assert_same(before, expected, which)
    assert num_in_place
