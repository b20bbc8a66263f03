"""What the fuzz target reads: metadata that are right, and how a few bytes change them.

A document is a zarr.json or a .zarray. It is changed in its structure.
"""

import contextlib
import copy
import math
import re

import numpy as np
from helpers import bytes_codec, metadata, metadata_v2, sharded
from ml_dtypes import bfloat16

MAX_NUMBER = 4096  # of a size in metadata
MAX_ELEMENTS = 512
MAX_CHUNKS = 64


def _v3(data_type, codecs, shape=(3, 4), chunks=(2, 3), fill_value=0):
    return metadata(data_type, codecs, list(shape), list(chunks), fill_value)


def _v2(dtype, endian, order="C", **more):
    codec = {"id": "bytes", "endian": endian, "dtype": dtype}
    return metadata_v2(dtype, [3, 4], [2, 3], order=order, filters=[codec], **more)


_FIELDS = [["a", "int16"], ["b", "bool"]]
_STRUCT_FIELDS = [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "bfloat16"}]
_V2_FIELDS = [["a", "<i2"], ["b", [["c", "|b1"], ["d", ">f4"]]]]
_TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}

# Data types of Zarr v3 with a configuration, NumPy's names of them, and fill values.
CONFIGURED = [
    ({"name": name, "configuration": configuration}, np.dtype(dtype), fill_value)
    for name, configuration, dtype, fill_value in (
        ("fixed_length_utf32", {"length_bytes": 8}, "U2", "a"),
        ("null_terminated_bytes", {"length_bytes": 3}, "S3", "YQ=="),
        ("raw_bytes", {"length_bytes": 3}, "V3", "AAAA"),
        ("numpy.datetime64", {"unit": "s", "scale_factor": 1}, "M8[s]", "NaT"),
        ("structured", {"fields": _FIELDS}, [("a", "i2"), ("b", "?")], "AAAA"),
        ("struct", {"fields": _STRUCT_FIELDS}, [("a", "i2"), ("b", bfloat16)], {"a": 1}),
    )
]
SEEDS = [
    _v3("int32", [bytes_codec("big")]),
    _v3("float64", [bytes_codec("little")], fill_value="NaN"),
    _v3("bool", [bytes_codec()], fill_value=True),
    _v3("uint8", [bytes_codec("big", "endian")], (), ()),
    _v3("complex64", [bytes_codec("big")], (5,), (2,), [0.0, "Infinity"]),
    _v3("float16", [_TRANSPOSE, bytes_codec("big")]),
    _v3("int64", [bytes_codec("big"), {"name": "crc32c"}]),
    _v3("int16", [sharded([1, 3], bytes_codec("big"))]),
    *(_v3(kind, [bytes_codec("big")], fill_value=value) for kind, _, value in CONFIGURED),
    _v3("bfloat16", [bytes_codec("big")], fill_value="0x7fc1"),
    _v3("float4_e2m1fn", [bytes_codec()], fill_value=-6),
    _v3("complex_bfloat16", [bytes_codec("little")], fill_value=[0, "NaN"]),
    _v3("int4", [bytes_codec()], fill_value=-8),
    _v3("r16", [bytes_codec()], fill_value=[0, 255]),
    _v2("<f4", "big"),
    _v2(">i2", "little", "F"),
    _v2("|b1", "big", fill_value=False),
    _v2(_V2_FIELDS, "big", fill_value="AAAAAAAAAA=="),
]
# A structure in a structure, which zarr does not know before 3.4.1.
NESTED_V2 = next(i for i, seed in enumerate(SEEDS) if seed.get("dtype") is _V2_FIELDS)

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
    *(bytes_codec("big"), bytes_codec(), sharded([1, 1], bytes_codec("big")), _TRANSPOSE),
    *(_FIELDS, _V2_FIELDS),
    *(seed["data_type"] for seed in SEEDS if "data_type" in seed),
    *_WORDS,
]


class Choices:
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


def _places(node, kept):
    """Yield (container, key) of everything in a document that is mutated."""
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if key not in kept:
            yield node, key
            if isinstance(value, (dict, list)):
                yield from _places(value, kept)


def mutate(document, choices, kept=()):
    """Change something in a document at random, but nothing of the keys that are kept."""
    places = list(_places(document, kept))
    if not places:
        return
    node, key = choices.of(places)
    value = node[key]
    operation = choices.below(8)
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
    elif operation == 5 or isinstance(value, int):
        node[key] = choices.below(8) - 1
    else:
        node[key] = copy.deepcopy(choices.of(_VALUES))


def _numbers(node):
    """Yield every number in a document that may be a size, also those in names of data types."""
    if isinstance(node, dict):
        node = [value for key, value in node.items() if key != "fill_value"]
    if isinstance(node, list):
        for value in node:
            yield from _numbers(value)
    elif isinstance(node, (str, int)):
        yield from map(int, re.findall(r"\d+", str(node), re.ASCII))


def is_small(document):
    """Whether reading what a document describes costs little."""
    if any(MAX_NUMBER < number < 2**40 for number in _numbers(document)):
        return False  # what is larger is to be refused, not made
    shape, chunk_shape = document.get("shape", []), chunk_shape_of(document)
    if any(number > MAX_NUMBER for number in _numbers([shape, chunk_shape])):
        return False
    try:
        num_chunks = math.prod(-(-n // chunk) for n, chunk in zip(shape, chunk_shape, strict=True))
        num_elements = max(math.prod(shape), math.prod(chunk_shape))
    except (TypeError, ValueError, ZeroDivisionError):
        return True  # zarr is to refuse them
    return num_elements <= MAX_ELEMENTS and num_chunks <= MAX_CHUNKS


def chunk_shape_of(document):
    try:
        if document["zarr_format"] == 2:
            return document["chunks"]
        return document["chunk_grid"]["configuration"]["chunk_shape"]
    except (LookupError, TypeError):
        return []
