"""Fuzz target: metadata and chunks that nobody wrote, read by both codecs.

``python tests/fuzz_bytes.py -max_total_time=60`` runs it with atheris, guided by the coverage of
`numcodecs_bytes`; the arguments are libFuzzer's. Without atheris, `check_one` is a function that
test_properties.py calls.

A document (zarr.json, .zarray or a configuration of Bytes) is changed in its structure, a chunk is
any bytes. What is read from them is right by an oracle of its own, or refused in our own words:
by a ``raise`` of the package, with a ValueError or a TypeError. What zarr itself makes of
bad metadata is its own business, as long as no code of the package takes part.
"""

import contextlib
import copy
import functools
import json
import linecache
import math
import re
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import zarr
import zarr.errors
import zarr.storage
from zarr.core.buffer import default_buffer_prototype

instrumented = contextlib.nullcontext
if __name__ == "__main__":
    import atheris

    instrumented = functools.partial(atheris.instrument_imports, ["numcodecs_bytes"])

with instrumented():
    from conftest import PIPELINES

    import numcodecs_bytes._entry_points.codec
    import numcodecs_bytes.zarr_data_types

PACKAGE = str(Path(numcodecs_bytes.__file__).parent)
ZARR = str(Path(zarr.__file__).parent)
MAX_NUMBER = 4096  # of a size in metadata
MAX_ELEMENTS = 512
MAX_CHUNKS = 64


def _bytes(endian=None, name="bytes"):
    return {"name": name, **({"configuration": {"endian": endian}} if endian else {})}


def _sharded(chunk_shape, *codecs):
    index_codecs = [_bytes("little"), {"name": "crc32c"}]
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": chunk_shape,
            "codecs": list(codecs),
            "index_codecs": index_codecs,
        },
    }


def _v3(data_type, codecs, shape=(3, 4), chunk_shape=(2, 3), fill_value=0):
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": {},
    }


def _v2(dtype, endian, order="C", **more):
    codec = {"id": "bytes", "endian": endian, "dtype": dtype}
    return {
        "zarr_format": 2,
        "shape": [3, 4],
        "chunks": [2, 3],
        "dtype": dtype,
        "fill_value": 0,
        "order": order,
        "compressor": None,
        "filters": [codec],
        **more,
    }


def _named(name, **configuration):
    return {"name": name, "configuration": configuration}


_FIELDS = [["a", "int16"], ["b", "bool"]]
_STRUCT_FIELDS = [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "bfloat16"}]
_V2_FIELDS = [["a", "<i2"], ["b", [["c", "|b1"], ["d", ">f4"]]]]
_OFFSETS = {"names": ["a", "b"], "formats": ["<i2", "|b1"], "offsets": [2, 0], "itemsize": 5}
_UNIT = {"unit": "s", "scale_factor": 1}
_TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}

SEEDS = [
    _v3("int32", [_bytes("big")]),
    _v3("float64", [_bytes("little")], fill_value="NaN"),
    _v3("bool", [_bytes()], fill_value=True),
    _v3("uint8", [_bytes("big", "endian")], (), ()),
    _v3("complex64", [_bytes("big")], (5,), (2,), [0.0, "Infinity"]),
    _v3("float16", [_TRANSPOSE, _bytes("big")]),
    _v3("int64", [_bytes("big"), {"name": "crc32c"}]),
    _v3("int16", [_sharded([1, 3], _bytes("big"))]),
    _v3(_named("fixed_length_utf32", length_bytes=8), [_bytes("big")], fill_value="a"),
    _v3(_named("null_terminated_bytes", length_bytes=3), [_bytes()], fill_value="YQ=="),
    _v3(_named("raw_bytes", length_bytes=3), [_bytes()], fill_value="AAAA"),
    _v3(_named("numpy.datetime64", **_UNIT), [_bytes("big")], fill_value="NaT"),
    _v3(_named("structured", fields=_FIELDS), [_bytes("big")], fill_value="AAAA"),
    _v3(_named("struct", fields=_STRUCT_FIELDS), [_bytes("big")], fill_value={"a": 1}),
    _v3("bfloat16", [_bytes("big")], fill_value="0x7fc1"),
    _v3("float4_e2m1fn", [_bytes()], fill_value=-6),
    _v3("complex_bfloat16", [_bytes("little")], fill_value=[0, "NaN"]),
    _v3("int4", [_bytes()], fill_value=-8),
    _v3("r16", [_bytes()], fill_value=[0, 255]),
    _v2("<f4", "big"),
    _v2(">i2", "little", "F"),
    _v2("|b1", "big", fill_value=False),
    _v2(_V2_FIELDS, "big", fill_value="AAAAAAAAAA=="),
    {"id": "bytes", "endian": "big", "dtype": "<f8"},
    {"id": "bytes", "endian": "big", "dtype": "bfloat16"},
    {"id": "bytes", "endian": "big", "dtype": _V2_FIELDS},
    {"id": "bytes", "endian": "little", "dtype": [["a", ">u2", [2, 2]], ["b", "<M8[3s]"]]},
    {"id": "bytes", "endian": "big", "dtype": _OFFSETS},
    {"id": "bytes"},
]

# Which zarr 3.1.6 does not know: a structure in a structure.
NESTED_V2 = next(
    i for i, seed in enumerate(SEEDS) if "filters" in seed and seed["dtype"] is _V2_FIELDS
)

_WORDS = [
    *("", "big", "little", "Big", "bytes", "endian", "name", "configuration", "id", "dtype", "NaN"),
    *("bool", "int8", "uint16", "int32", "uint64", "float16", "float64", "complex128", "string"),
    *("|b1", "<i2", ">f8", "<c16", "|S3", ">U2", "|V5", "<M8[ns]", "<M8", "|O", "(2,)i4", "<f16"),
    *("r16", "r7", "r80000000000000", "bfloat16", "uint2", "float8_e5m2", "f8,i2", "-Infinity"),
    *("0xff", "0x7fff", "?", "\0", "structured", "struct", "a", "S", "U", "V0", "chunk_shape", "C"),
]
_VALUES = [
    *(None, True, False, 0, 1, 2, 3, 7, -1, 255, 2**31, 2**63, 2**70, 10**400, 1.5),
    *([], {}, [[]], [None], {"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}),
    *(_bytes("big"), _bytes(), _sharded([1, 1], _bytes("big")), _TRANSPOSE, _FIELDS, _V2_FIELDS),
    *(seed["data_type"] for seed in SEEDS if "data_type" in seed),
    *_WORDS,
]


class _Choices:
    """Fuzzed bytes, read as choices; zero where there are no more."""

    def __init__(self, data):
        self._data = data

    def below(self, number):
        first, self._data = self._data[:1], self._data[1:]
        return int.from_bytes(first) % number if number else 0

    def of(self, sequence):
        return sequence[self.below(len(sequence))]

    def rest(self):
        return self._data


def _places(node):
    """Yield (container, key) of everything in a document that is mutated."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if key not in ("zarr_format", "node_type", "chunk_key_encoding", "attributes"):
            yield node, key
            if isinstance(value, (dict, list)):
                yield from _places(value)


def _mutate(document, choices):
    places = list(_places(document))
    if not places:
        return
    node, key = choices.of(places)
    value = node[key]
    operation = choices.below(9)
    if operation == 0:
        del node[key]
    elif operation == 1:
        node[key] = [value]
    elif operation == 2:
        other, other_key = choices.of(places)
        with contextlib.suppress(LookupError):
            node[key] = copy.deepcopy(other[other_key])
    elif operation == 3 and isinstance(node, list):
        node.insert(key, copy.deepcopy(value))
    elif operation == 3:
        node[choices.of(_WORDS)] = copy.deepcopy(choices.of(_VALUES))
    elif operation == 4 and isinstance(value, str):
        at = choices.below(len(value) + 1)
        node[key] = value[:at] + chr(choices.below(128)) + value[at + choices.below(2) :]
    elif operation == 5 and isinstance(value, str):
        node[key] = value.title()
    elif operation == 6 or isinstance(value, int):
        node[key] = choices.below(8) - 1
    else:
        node[key] = copy.deepcopy(choices.of(_VALUES))


def _numbers(node):
    """Yield every number in a document that may be a size, also those in names of data types."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key != "fill_value":
                yield from _numbers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _numbers(value)
    elif isinstance(node, str):
        yield from map(int, re.findall(r"\d+", node, re.ASCII))
    elif isinstance(node, int):
        yield node


def _is_small(document):
    if "zarr_format" not in document and "{" not in json.dumps(document)[1:]:
        return True  # sizes of plain data types cost nothing
    if any(MAX_NUMBER < number < 2**40 for number in _numbers(document)):
        return False  # what is larger is to be refused, not made
    shape, chunk_shape = document.get("shape", []), _chunk_shape(document)
    if any(number > MAX_NUMBER for number in _numbers([shape, chunk_shape])):
        return False
    try:
        num_chunks = math.prod(-(-n // chunk) for n, chunk in zip(shape, chunk_shape, strict=True))
        num_elements = max(math.prod(shape), math.prod(chunk_shape))
    except (TypeError, ValueError, ZeroDivisionError):
        return True  # zarr is to refuse them
    return num_elements <= MAX_ELEMENTS and num_chunks <= MAX_CHUNKS


def _chunk_shape(document):
    try:
        if document["zarr_format"] == 2:
            return document["chunks"]
        return document["chunk_grid"]["configuration"]["chunk_shape"]
    except (LookupError, TypeError):
        return []


# The oracle: the specification, one element and one byte at a time.

_SMALL_NUMBERS = {
    **dict.fromkeys(("int2", "uint2"), 0x03),
    **dict.fromkeys(("int4", "uint4", "float4_e2m1fn"), 0x0F),
    **dict.fromkeys(("float6_e2m3fn", "float6_e3m2fn"), 0x3F),
}


def stored_bytes(array, endian):
    """Return what the specification says is stored; NumPy's casts and copies have no part in it."""
    return _reordered(np.ascontiguousarray(array).tobytes(), array.dtype, endian)


def native_elements(stored, dtype, endian):
    """Return flat elements in the machine's byte order from stored bytes, as many as are whole."""
    packed = dtype.newbyteorder("=")
    whole = len(stored) // packed.itemsize * packed.itemsize
    return np.frombuffer(_reordered(stored[:whole], packed, sys.byteorder, endian), packed)


def _reordered(memory, dtype, endian, in_memory=None):
    """Return elements packed and in another byte order, from the dtype's own or a given one."""
    size = dtype.itemsize
    elements = (memory[i : i + size] for i in range(0, len(memory), size or 1))
    return b"".join(_reordered_element(element, dtype, endian, in_memory) for element in elements)


def _reordered_element(memory, dtype, endian, in_memory):
    if dtype.subdtype is not None:
        return _reordered(memory, dtype.subdtype[0], endian, in_memory)
    if dtype.names is not None:
        fields = (dtype.fields[name][:2] for name in dtype.names)
        return b"".join(
            _reordered(memory[offset : offset + field.itemsize], field, endian, in_memory)
            for field, offset in fields
        )
    if dtype.kind == "b":
        return bytes([memory != b"\0"])
    if dtype.type.__module__ == "ml_dtypes":
        unit = min(dtype.itemsize, 2)
        if unit == 1:
            return bytes([memory[0] & _SMALL_NUMBERS.get(dtype.name, 0xFF)])
    elif dtype.kind in "SV":
        return memory
    else:
        unit = {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)
    if (in_memory or {"<": "little", ">": "big"}.get(dtype.byteorder, sys.byteorder)) == endian:
        return memory
    return b"".join(memory[i : i + unit][::-1] for i in range(0, len(memory), unit))


_NUMBERS = {
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{name: name for name in ("bool", "float16", "float32", "float64", "complex64", "complex128")},
    **{name: getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e5m2", "int4", "uint2")},
    "float4_e2m1fn": ml_dtypes.float4_e2m1fn,
    "complex_bfloat16": ml_dtypes.bcomplex32,
}


def v3_dtype(data_type):
    """Return NumPy's name for a data type of Zarr v3, None where the oracle does not know it."""
    if isinstance(data_type, str):
        if re.fullmatch(r"r\d+", data_type, re.ASCII):
            return np.dtype(f"V{int(data_type[1:]) // 8}") if int(data_type[1:]) % 8 == 0 else None
        return np.dtype(_NUMBERS[data_type]) if data_type in _NUMBERS else None
    configuration = data_type["configuration"]
    match data_type["name"]:
        case "fixed_length_utf32":
            return np.dtype(f"U{configuration['length_bytes'] // 4}")
        case "null_terminated_bytes":
            return np.dtype(f"S{configuration['length_bytes']}")
        case "raw_bytes":
            return np.dtype(f"V{configuration['length_bytes']}")
        case "numpy.datetime64":
            return np.dtype(f"M8[{configuration['scale_factor']}{configuration['unit']}]")
        case "structured":
            fields = [(name, v3_dtype(field)) for name, field in configuration["fields"]]
        case "struct":
            fields = [(f["name"], v3_dtype(f["data_type"])) for f in configuration["fields"]]
        case _:
            return None
    return None if None in dict(fields).values() else np.dtype(fields)


def v2_dtype(data):
    """Return the dtype that a plain Zarr v2 name or list says."""
    if isinstance(data, str):
        if data in ("bfloat16", "r16", "uint2"):
            return v3_dtype(data)
        is_plain = re.fullmatch(
            r"[<>|]([iu]\d+|b1|f[248]|c8|c16|[SUV]\d+|M8\[\d*s\])", data, re.ASCII
        )
        return np.dtype(data) if is_plain else None
    fields = [(name, v2_dtype(field), *shape) for name, field, *shape in data]
    is_plain = all(
        name and dtype is not None and all(isinstance(s, list) for s in shape)
        for name, dtype, *shape in fields
    )
    return (
        np.dtype([(*field[:2], *map(tuple, field[2:])) for field in fields]) if is_plain else None
    )


def expected_elements(document):
    """Return dtype, endian and memory order where the document is plain, else None.

    Plain: no codec but ours, spelt as the specification does, for a data type that NumPy has.
    """
    try:
        if "zarr_format" not in document:
            dtype = v2_dtype(document["dtype"])
            is_plain = document["id"] == "bytes" and len(document) == 3
            endian, order = document["endian"], "C"
        elif document["zarr_format"] == 2:
            codec = {"id": "bytes", "endian": "big", "dtype": document["dtype"]}
            dtype, order = v2_dtype(document["dtype"]), document["order"]
            endian = document["filters"][0]["endian"]
            is_plain = document["filters"] == [{**codec, "endian": endian}] and not (
                document["compressor"] or document["fill_value"] is None
            )
        else:
            (codec,) = document["codecs"]
            dtype, order = v3_dtype(document["data_type"]), "C"
            endian = codec.get("configuration", {}).get("endian", "little")
            names = ("bytes", "endian")
            is_plain = codec in (_bytes(name=names[0]), *(_bytes(endian, name) for name in names))
        # A chunk of nothing zarr 3.1.6 lets through, and fails at later.
        sizes = [*document.get("shape", ()), *(n - 1 for n in _chunk_shape(document))]
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    if any(type(size) is not int or size < 0 for size in sizes):
        return None
    if not is_plain or endian not in ("big", "little") or order not in ("C", "F"):
        return None
    if dtype is None or not dtype.itemsize:
        return None
    return dtype, endian, order


# The check.


class _PlannedStore(zarr.storage.MemoryStore):
    """Read by byte ranges, since it is not MemoryStore itself."""


class _AsynchronousStore(zarr.storage.MemoryStore):
    _supports_sync_io = False


_STORES = [zarr.storage.MemoryStore, _PlannedStore, _AsynchronousStore]


def check_one(data):
    """Read what fuzzed bytes describe: return 'right' or 'refused', or raise AssertionError."""
    choices = _Choices(data)
    document = json.loads(json.dumps(choices.of(SEEDS)))
    # How many bytes more than fit; None: as many as there are.
    surplus, present = choices.of([0, 0, 0, 0, -1, 1, None]), choices.below(256)
    store_class, cost = choices.of(_STORES), choices.of([0, 16, None])
    draws = [choices.below(256) for _ in range(8)]
    for _ in range(choices.below(4)):
        _mutate(document, choices)
    # NumPy divides by zero where zarr itself reads "<M8[s/0]", which ends the process.
    if not _is_small(document) or "/" in json.dumps(document):
        return "refused"
    plain = expected_elements(document)
    chunk = choices.rest()
    if surplus is not None and plain is not None:
        num_elements = 4 if "zarr_format" not in document else math.prod(_chunk_shape(document))
        chunk = _resized(chunk, max(0, plain[0].itemsize * num_elements + surplus))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "zarr_format" not in document:
            return _check_configuration(document, plain, chunk)
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": cost}):
            return check_document(document, chunk, present, store_class, draws)


def _resized(chunk, num_bytes):
    repeated = (chunk or b"\1\2\xff") * (num_bytes // (len(chunk) or 3) + 1)
    return repeated[:num_bytes]


def fuzz_one(data):
    """Do the same, and return nothing, as atheris asks."""
    check_one(data)


def check_document(document, chunk=b"", present=0, store_class=zarr.storage.MemoryStore, draws=()):
    """Read an array in every pipeline: all right, or all refused.

    Of every eight chunks there are those whose bit is in `present`, each the same; `draws` make a
    selection.
    """
    outcomes = set()
    for pipeline in PIPELINES:
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            outcomes.add(_check_array(store_class(), document, chunk, present, [*draws, *range(8)]))
    assert len(outcomes) == 1, f"pipelines differ: {outcomes} of {document}"
    return outcomes.pop()


def _check_configuration(document, plain, chunk):
    decoded = None
    try:
        decoded = numcodecs_bytes.Bytes.from_config(document).decode(chunk)
    except Exception as error:  # noqa: BLE001
        _assert_in_our_words(error, document, is_ours=True)
    if plain is not None:
        dtype, endian, _ = plain
        is_whole = not len(chunk) % dtype.itemsize
        assert (decoded is not None) == is_whole, f"{len(chunk)} bytes of {document}"
    if decoded is None:
        return "refused"
    assert not _is_misspelt(document), f"took {document}"
    if plain is not None:
        expected = native_elements(chunk, dtype, endian)
        assert decoded.dtype == dtype
        assert stored_bytes(decoded, endian) == stored_bytes(expected, endian), document
    return "right"


def _check_array(store, document, chunk, present, draws):
    keys = _chunk_keys(document, present)
    metadata = {".zarray" if document["zarr_format"] == 2 else "zarr.json": document}
    contents = {key: json.dumps(value).encode() for key, value in metadata.items()}
    for key, value in (contents | dict.fromkeys(keys.values(), chunk)).items():
        store._store_dict[key] = default_buffer_prototype().buffer.from_bytes(value)
    try:
        array = zarr.open_array(store, mode="r", zarr_format=document["zarr_format"])
    except Exception as error:  # noqa: BLE001
        _assert_in_our_words(error, document)
        return "refused"
    assert not _is_misspelt(document), f"took {document}"
    kind, selection, select = _selection(array, draws)
    whole = _read(lambda: array[...], document)
    part = _read(lambda: select(array), document)
    expected = whole
    plain = expected_elements(document)
    if plain is not None and np.ndim(array.fill_value) == 0:
        is_whole = len(chunk) == math.prod(array.chunks) * plain[0].itemsize
        if is_whole or not keys:
            assert whole is not None, f"refused {document}"
        elif any(_visible_shape(i, array.chunks, array.shape) == array.chunks for i in keys):
            # Of chunks at the edge, a part alone is read: too much or too little may go unnoticed.
            assert whole is None, f"read {document} of {len(chunk)} bytes"
        expected = _expected_array(array, plain, chunk, keys)
    if whole is not None:
        _assert_same(whole, expected, document)
        # Of characters beyond Unicode NumPy makes no scalar, which zarr asks for.
        is_read = part is not None or (array.dtype.kind == "U" and not selection)
        # An empty shard zarr 3.1.6 takes for a missing one, but only where it reads all of it.
        assert is_read or plain is None, f"refused {kind} {selection} of {document}"
    if part is not None and expected is not None:
        _assert_same(part, _numpy_selection(expected, kind, selection), document)
    return "refused" if whole is None else "right"


def _chunk_keys(document, present):
    """Return the key in the store for the index of each chunk that is there."""
    try:
        shapes = zip(document["shape"], _chunk_shape(document), strict=True)
        indices = list(np.ndindex(*(-(-n // size) for n, size in shapes)))
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        return {}
    indices = [index for i, index in enumerate(indices) if present >> i % 8 & 1]
    if document["zarr_format"] == 2:
        return {index: ".".join(map(str, index)) or "0" for index in indices}
    return {index: "/".join(("c", *map(str, index))) for index in indices}


def _is_misspelt(document):
    """Whether a configuration of ours has another endian or another key than there are."""
    if "zarr_format" not in document:
        configurations, keys = [document], {"id", "endian", "dtype"}
    elif document["zarr_format"] == 2:
        filters = document.get("filters") if isinstance(document.get("filters"), list) else []
        configurations, keys = [*filters, document.get("compressor")], {"id", "endian", "dtype"}
        configurations = [
            c for c in configurations if isinstance(c, dict) and c.get("id") == "bytes"
        ]
    else:
        codecs = [c for c in document["codecs"] if isinstance(c, dict)]
        configurations, keys = (
            [c.get("configuration") for c in codecs if c.get("name") == "bytes"],
            {"endian"},
        )
    return any(
        isinstance(configuration, dict)
        and (
            configuration.keys() - keys
            or configuration.get("endian") not in (None, "big", "little")
        )
        for configuration in configurations
    )


def _read(read, document):
    try:
        return np.asarray(read())
    except Exception as error:  # noqa: BLE001
        _assert_in_our_words(error, document)
        return None


def _selection(array, draws):
    """Return a selection of a kind, and what reads it."""
    shape = array.shape
    first, draws = draws[0], iter(draws[1:] * 2)
    if first % 3 == 0 or not array.size:
        selection = tuple(
            # No integer for the last axis: not all that is fuzzed NumPy makes a scalar of.
            draw % n
            if draw % 4 == 0 and n and axis + 1 < len(shape)
            else slice(draw % (n + 1), None, draw % 3 + 1)
            for axis, (n, draw) in enumerate(zip(shape, draws, strict=False))
        )
        return "basic", selection, lambda a: a[selection]
    if first % 3 == 1:
        selection = tuple(
            np.array([draw % n, next(draws) % n]) if draw % 2 else slice(draw % n, None)
            for n, draw in zip(shape, draws, strict=False)
        )
        return "oindex", selection, lambda a: a.oindex[selection]
    selection = tuple(
        np.array([next(draws) % n, next(draws) % n]) for n, _ in zip(shape, draws, strict=False)
    )
    return "vindex", selection, lambda a: a.vindex[selection] if selection else a[()]


def _numpy_selection(array, kind, selection):
    if kind == "oindex":
        selection = np.ix_(*(np.arange(n)[s] for n, s in zip(array.shape, selection, strict=True)))
    return array[(*selection, ...)] if kind == "basic" else array[selection]


def _expected_array(array, plain, chunk, keys):
    """Return the array as the specification has it, a chunk that is too short padded."""
    dtype, endian, order = plain
    shape = array.chunks
    num_bytes = math.prod(shape) * dtype.itemsize
    elements = native_elements(chunk.ljust(num_bytes, b"\xa5")[:num_bytes], dtype, endian)
    elements = elements.reshape(shape, order=order)
    expected = np.full(array.shape, array.fill_value, elements.dtype)
    for index in keys:
        region = (slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))
        visible = expected[(..., *region)]
        visible[...] = elements[tuple(map(slice, visible.shape))]
    return expected


def _visible_shape(index, chunk_shape, shape):
    return tuple(min(n, size - i * n) for i, n, size in zip(index, chunk_shape, shape, strict=True))


def _assert_same(got, expected, document):
    got = got if got.shape else np.array(got, expected.dtype)
    expected = expected if expected.shape else np.array(expected, expected.dtype)
    assert got.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), document
    assert got.shape == expected.shape, document
    assert stored_bytes(got, "big") == stored_bytes(expected, "big"), document


def _assert_in_our_words(error, document, *, is_ours=False):
    """Raise unless an error is of zarr alone, or raised on purpose and of the right type."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            _assert_in_our_words(inner, document)
        return
    frames = traceback.extract_tb(error.__traceback__)
    if not (is_ours or any(frame.filename.startswith(PACKAGE) for frame in frames)):
        return
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno).strip()
    is_raised = last.filename.startswith((PACKAGE, ZARR)) and line.startswith("raise")
    if not (is_raised and isinstance(error, (ValueError, TypeError))):
        raise AssertionError(
            f"{type(error).__name__}: {error}\nat {last.filename}:{last.lineno}: {line}\n"
            f"for {document}"
        ) from error


def seed_inputs():
    """Return fuzzed bytes that leave each seed as it is, with a chunk that fits."""
    return [
        bytes([i, 0, 0b10110111, i, i, *range(i, i + 8), 0]) + _chunk_of(document)
        for i, document in enumerate(SEEDS)
    ]


def _chunk_of(document):
    """Return a chunk as zarr writes it, where codecs beside ours make what it has to be."""
    if len(document.get("codecs", [])) < 2 and "sharding" not in json.dumps(document):
        return b"\1\2\xff"
    store = zarr.storage.MemoryStore()
    metadata = default_buffer_prototype().buffer.from_bytes(json.dumps(document).encode())
    store._store_dict["zarr.json"] = metadata
    zarr.open_array(store, mode="r+")[...] = 1
    return store._store_dict["c/0/0"].to_bytes()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seed_inputs()):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([*sys.argv, "-timeout=20", "-max_len=512", corpus], fuzz_one)
        atheris.Fuzz()
