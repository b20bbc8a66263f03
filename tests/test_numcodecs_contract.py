"""What numcodecs asks of a codec, as its own tests check each of theirs, and old stored bytes.

Most of it test_codec.py has: JSON and repr, pickling, wrong sizes, objects, one buffer after the
other. Here is what is left: every way in with every way out, the memory order that numcodecs goes
by, chains with other codecs, and what version 0.1.0 stored.
"""

import array
import json
import mmap
from pathlib import Path

import numcodecs
import numcodecs.abc
import numpy as np
import pytest
from data_types import CASES, ENDIANS, laid_out
from numcodecs.compat import ensure_bytes, ensure_ndarray

from numcodecs_bytes import Bytes

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
BY_ENDIAN = pytest.mark.parametrize("endian", ENDIANS)
OLD_BYTES = Path(__file__).parent / "fixtures" / "bytes_0.1.0.json"

# Ways to hand the memory of an array on, each with a buffer of its own kind.
BUFFERS = [
    bytes,
    bytearray,
    memoryview,
    lambda memory: memoryview(bytearray(memory)),
    lambda memory: array.array("B", memory),
    lambda memory: np.frombuffer(memory, np.uint8),
    lambda memory: np.frombuffer(memory, np.uint8).reshape(1, -1),
]
OUTS = [
    bytearray,
    lambda num_bytes: memoryview(bytearray(num_bytes)),
    lambda num_bytes: array.array("B", bytes(num_bytes)),
    lambda num_bytes: np.zeros(num_bytes, np.uint8),
    lambda num_bytes: mmap.mmap(-1, num_bytes) if num_bytes else bytearray(),
]


def assert_holds(decoded, elements):
    """Check what was decoded as numcodecs does: in the memory order of what was encoded."""
    order = "F" if elements.flags.f_contiguous else "C"
    got = ensure_ndarray(decoded).view(elements.dtype).reshape(elements.shape, order=order)
    assert repr(got.tolist()) == repr(elements.tolist())


class TestEveryWayInAndOut:
    @pytest.mark.parametrize("layout", ["1-d", "C", "F", "3-d F", "empty"])
    @BY_ENDIAN
    @BY_NAME
    def test_arrays_and_their_memory_are_the_same(self, case, endian, layout):
        """Guards against a column-major array whose bytes and whose buffer are stored apart."""
        elements, _ = laid_out(case, layout)
        codec = Bytes(endian, dtype=elements.dtype)
        stored = ensure_bytes(codec.encode(elements))
        for make in BUFFERS:
            assert ensure_bytes(codec.encode(make(elements.tobytes(order="A")))) == stored
            assert_holds(codec.decode(make(stored)), elements)
        for out in (np.zeros_like(elements), *(make(elements.nbytes) for make in OUTS)):
            assert codec.decode(stored, out=out) is out
            assert_holds(out, elements)

    @pytest.mark.parametrize("dtype", [None, "<f8"])
    def test_nothing_is_decoded_into_objects(self, dtype):
        """numcodecs asks for a TypeError: bytes in their place are pointers to anywhere."""
        out = np.array([1, "a", None], object)
        with pytest.raises(TypeError, match="cannot store data type object"):
            Bytes("little", dtype=dtype).decode(bytes(24), out=out)
        assert out.tolist() == [1, "a", None]

    @pytest.mark.parametrize(
        "make",
        [
            lambda memory: array.array("b", memory),
            lambda memory: memoryview(memory).cast("b"),
            lambda memory: memoryview(memory).cast("c"),
        ],
        ids=["array.array b", "memoryview b", "memoryview c"],
    )
    @pytest.mark.parametrize("way", ["encode", "out"])
    def test_a_buffer_of_single_bytes_is_memory_whatever_it_calls_them(self, make, way):
        """numcodecs' own tests hand every codec an array.array("b"), signed."""
        elements = np.array([1.5, -2.0])
        codec = Bytes("big", dtype="<f8")
        if way == "encode":
            assert bytes(codec.encode(make(elements.tobytes()))) == elements.astype(">f8").tobytes()
        else:
            out = make(bytearray(16))
            codec.decode(codec.encode(elements), out=out)
            assert bytes(out) == elements.tobytes()


class TestAmongOtherCodecs:
    @pytest.mark.parametrize("layout", ["C", "F", "3-d F", "strided", "broadcast"])
    @BY_NAME
    def test_what_it_encodes_another_codec_takes(self, case, layout):
        """Guards against a result without a plain buffer, or with its memory in another order."""
        elements, _ = laid_out(case, layout)
        order = "F" if elements.flags.f_contiguous else "C"
        codec = Bytes("big", dtype=elements.dtype)
        for other in (numcodecs.Zlib(), numcodecs.Blosc(), numcodecs.Zstd(), numcodecs.CRC32()):
            stored = other.decode(other.encode(codec.encode(elements)))
            out = np.zeros(elements.shape, elements.dtype, order=order)
            codec.decode(stored, out=out)
            assert repr(out.tolist()) == repr(elements.tolist())

    def test_it_is_found_and_is_a_codec(self):
        codec = numcodecs.get_codec({"id": "bytes", "endian": "big"})
        assert isinstance(codec, numcodecs.abc.Codec)
        assert numcodecs.registry.codec_registry["bytes"] is type(codec) is Bytes


@pytest.mark.parametrize(
    "entry", json.loads(OLD_BYTES.read_text()), ids=lambda entry: str(entry["config"])
)
def test_what_version_0_1_0_stored(entry):
    """Guards against a version that reads it otherwise, or another configuration for the same."""
    codec = numcodecs.get_codec(entry["config"])
    decoded = codec.decode(bytes.fromhex(entry["stored"]))
    assert decoded.tobytes().hex() == entry["elements"]
    assert bytes(codec.encode(decoded)).hex() == entry.get("written", entry["stored"])
    assert codec.get_config() == entry["config"]
