"""Shards in local files: their index and what is selected; what is wrong with one is zarr's.

Values of any selection: test_random_selections.py.
"""

import os
import random

import numpy as np
import pytest
import zarr
import zarr.codecs
import zarr.storage
from helpers import (
    EVERYTHING,
    OPEN_FILES,
    OUR_PIPELINES,
    PIPELINES,
    ZARR_ALONE,
    CountingStore,
    random_selections,
    ranges_from,
)
from test_local_files import opened, opened_references, opened_zip, outcome
from zarr.codecs import Crc32cCodec, ShardingCodec, ZstdCodec

import numcodecs_bytes
from numcodecs_bytes.zarr import BytesCodec

pytestmark = pytest.mark.usefixtures("our_pipeline")
DATA = np.arange(1, 1025, dtype="f4").reshape(32, 32)
NUM_INDEX_BYTES = 16 * 16 + 4


def create_shards(store, shape=(32, 32), shard=(32, 32), inner=(8, 8), **settings):
    """Create an array; `settings` are those of the sharding codec."""
    settings = {"codecs": [BytesCodec(endian="little")], **settings}
    codec = settings.pop("kind", ShardingCodec)(chunk_shape=inner, **settings)
    return zarr.create_array(
        store, shape=shape, chunks=shard, dtype="f4", serializer=codec, compressors=None
    )


@pytest.mark.usefixtures("_never_looks")
class TestWhatIsRead:
    """Of a shard of 4 x 4 inner chunks of 8 x 8 float32."""

    @pytest.fixture(params=["start", "end"])
    def folder(self, request, tmp_path):
        create_shards(tmp_path / "a", index_location=request.param)[...] = DATA
        return tmp_path / "a"

    def test_an_element(self, folder, calls):
        raw = (folder / "c/0/0").read_bytes()
        is_first = '"start"' in (folder / "zarr.json").read_text()
        start = 0 if is_first else len(raw) - NUM_INDEX_BYTES
        offsets = np.frombuffer(raw, "<u8", 32, start).reshape(4, 4, 2)[..., 0]
        assert opened(folder)[9, 18] == DATA[9, 18]
        element = int(offsets[1, 2]) + (8 * 1 + 2) * 4
        assert calls.reads == [(start, NUM_INDEX_BYTES), (element, 4)]
        assert len(calls.opened) == calls.num_closed == 1

    @pytest.mark.parametrize(("gap", "num_bytes"), [(0, 32 * 4), (28, 4 * (7 * 32 + 4))])
    def test_a_column(self, folder, calls, set_constants, gap, num_bytes):
        """Of each inner chunk its part of the column, with the gaps if they are small."""
        set_constants(GAP_BYTES=gap)
        np.testing.assert_array_equal(opened(folder)[:, 30], DATA[:, 30])
        assert calls.num_bytes == NUM_INDEX_BYTES + num_bytes

    def test_points(self, folder, calls, set_constants):
        set_constants(GAP_BYTES=0)
        points = np.array([31, 0, 9, 9]), np.array([0, 31, 18, 18])
        np.testing.assert_array_equal(opened(folder).vindex[points], DATA[points])
        assert calls.num_bytes <= NUM_INDEX_BYTES + 4 * 4

    def test_inner_chunks_that_are_missing(self, tmp_path, calls):
        """Only the index is read, and of a shard that is missing nothing."""
        array = create_shards(tmp_path / "a", (32, 64))
        array[:8, :8] = 1
        array = opened(tmp_path / "a")
        expected = np.zeros((32, 64), "f4")
        expected[:8, :8] = 1
        np.testing.assert_array_equal(array[...], expected)
        assert calls.num_bytes == NUM_INDEX_BYTES + 256
        calls.reads.clear()
        assert array.vindex[[31, 0, 9], [0, 63, 18]].tolist() == [0, 0, 0]
        assert calls.num_bytes == NUM_INDEX_BYTES


# What the index of a shard says of its second inner chunk, from what it says of the first one.
ENTRIES = {
    "length": lambda offset, _: (offset + 64, 60),
    "empty": lambda offset, _: (offset + 64, 0),
    "beyond": lambda _, end: (end - 10, 64),
    "far beyond": lambda *_: (2**63, 64),
    "wraps": lambda *_: (2**64 - 32, 64),
    "half missing": lambda *_: (2**64 - 1, 64),
    "missing": lambda *_: (2**64 - 1, 2**64 - 1),
    "the same twice": lambda offset, _: (offset, 64),
    "overlap": lambda offset, _: (offset + 8, 64),
    "at the end": lambda _, end: (end - 64, 64),
    "at the beginning": lambda *_: (0, 64),
}
SHARDS = {
    "short": lambda raw: raw[:63],
    "no bytes": lambda _: b"",
    "begins late": lambda raw: bytes(64) + raw,
    "goes on": lambda raw: raw + bytes(64),
}


def damage(raw, kind, start):
    """Return a shard of inner chunks of 64 bytes, damaged; its index begins at `start`."""
    if kind in SHARDS:
        return SHARDS[kind](raw)
    raw = bytearray(raw)
    index = np.frombuffer(raw, "<u8", 8, start).reshape(4, 2)
    index[1] = ENTRIES[kind](int(index[0, 0]), len(raw))
    return bytes(raw)


class TestDamage:
    @pytest.fixture
    def _exact(self):
        with (
            ranges_from(CountingStore),
            zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}),
        ):
            yield

    @pytest.mark.parametrize("location", ["start", "end"])
    @pytest.mark.parametrize("kind", [*ENTRIES, *SHARDS])
    @pytest.mark.parametrize("index", ["checked", "unchecked"])
    @pytest.mark.usefixtures("_exact")
    def test_is_read_as_by_zarr_alone(self, tmp_path, our_pipeline, location, kind, index):
        """The same values, or an error that names the shard; never others."""
        # Before 3.4.1, of zarr's pipelines the fused one raises an error if a shard is empty.
        alone = ZARR_ALONE | {"codec_pipeline.path": PIPELINES[OUR_PIPELINES.index(our_pipeline)]}
        index_codecs = [BytesCodec(endian="little")] + [Crc32cCodec()] * (index == "checked")
        create_shards(
            *(tmp_path, (16, 4), (16, 4), (4, 4)),
            index_codecs=index_codecs,
            index_location=location,
        )[...] = np.arange(1, 65).reshape(16, 4)
        path = tmp_path / "c/0/0"
        raw, size = path.read_bytes(), 64 + 4 * (index == "checked")
        path.write_bytes(damage(raw, kind, 0 if location == "start" else len(raw) - size))
        for selection in (np.s_[:], np.s_[5, 2], np.s_[:, 1], np.s_[2:6]):
            for store in (tmp_path, CountingStore(tmp_path)):
                expected = outcome(store, selection, alone)
                array = opened(store)
                with numcodecs_bytes.trace() as traced:
                    if not isinstance(expected, type):
                        assert array[selection].tolist() == expected, selection
                        continue
                    with pytest.raises(Exception, match=".") as caught:
                        array[selection]
                assert "chunk 'c/0/0' of " in "".join(caught.value.__notes__)
                is_zarr_s = store != tmp_path and selection == np.s_[:]  # without an attempt
                assert traced.report()["not_seen"] or is_zarr_s

    @pytest.mark.parametrize("location", ["start", "end"])
    def test_random_indexes_are_read_as_by_zarr_alone(self, tmp_path, set_constants, location):
        """Inner chunks that share bytes: what was copied of one ran over those after it."""
        rng = random.Random(location)  # noqa: S311
        create_shards(
            *(tmp_path, (16, 8), (16, 8), (4, 4)),
            index_codecs=[BytesCodec(endian="little")],
            index_location=location,
        )[...] = np.arange(1, 129).reshape(16, 8)
        path, size = tmp_path / "c/0/0", 16 * 8
        raw = path.read_bytes()
        begin = 0 if location == "start" else len(raw) - size
        num_same = 0
        for _ in range(60 if EVERYTHING else 20):
            set_constants(PART_BYTES=rng.choice([1, 20, 50]), LATENCY_BYTES=rng.choice([1, 100]))
            changed = bytearray(raw)
            entries = np.frombuffer(changed, "<u8", 16, begin).reshape(8, 2)
            for entry in [entries[k] for k in rng.sample(range(8), rng.randint(1, 8))]:
                entry[0] = rng.choice([*entries[:, 0], rng.randrange(len(raw) - 64)])
                if rng.random() < 0.05:
                    changes = rng.choice(list(ENTRIES.values()))(int(entry[0]), len(raw))
                    entry[:] = [number % 2**64 for number in changes]
            path.write_bytes(changed)
            for way, selection, _ in random_selections(rng, (16, 8), 1):
                expected = outcome(tmp_path, selection, ZARR_ALONE, way)
                if isinstance(expected, type):  # also of inner chunks that are not selected
                    continue
                for store in (tmp_path, CountingStore(tmp_path)):
                    with ranges_from(CountingStore):
                        assert outcome(store, selection, way=way) == expected, (way, selection)
                    num_same += 1
        assert num_same > 20

    def test_a_shard_that_is_shorter_than_its_inner_chunk(self, tmp_path):
        """Its first bytes are lost: bytes of its index were taken for elements."""
        create_shards(tmp_path, (40,), (40,), (20,), index_location="end")[:20] = 7
        path = tmp_path / "c/0"
        path.write_bytes(path.read_bytes()[40:])
        with pytest.raises(ValueError, match="76 bytes, expected 80"):
            opened(tmp_path)[:3]

    @pytest.mark.needs(OPEN_FILES)
    def test_a_file_that_is_replaced_after_its_index_was_read(self, tmp_path, calls):
        """All is of the first version; in the second one, inner chunks are elsewhere."""
        for name, first_row in (("a", 0), ("b", 8)):
            create_shards(tmp_path / name)[first_row:] = DATA[first_row:] * (1 - first_row)
        path, new = tmp_path / "a/c/0/0", tmp_path / "b/c/0/0"
        calls.at_read = lambda: calls.reads and new.exists() and new.replace(path)
        np.testing.assert_array_equal(opened(tmp_path / "a")[:, 5], DATA[:, 5])
        assert not new.exists()
        np.testing.assert_array_equal(opened(tmp_path / "a")[8:, 5], DATA[8:, 5] * -7)

    def test_a_file_that_is_truncated_after_its_index_was_read(self, tmp_path, calls):
        create_shards(tmp_path)[...] = DATA
        calls.at_read = lambda: calls.reads and os.truncate(tmp_path / "c/0/0", 300)
        with pytest.raises(Exception, match=".") as caught:
            opened(tmp_path)[:, 5]
        assert "chunk 'c/0/0' of LocalStore" in "".join(caught.value.__notes__)
        assert calls.num_closed == len(calls.opened)


@pytest.mark.parametrize("dtype", ["i8", "u1"])
@pytest.mark.parametrize("is_remote", [False, True], ids=["files", "requests"])
def test_unsorted_indices_along_two_axes_of_one_shard(tmp_path, dtype, is_remote):
    """zarr 3.1.6 takes unsigned ones for sorted, and places them by slices: an error was raised."""
    create_shards(tmp_path / "a")[...] = DATA
    store = CountingStore(tmp_path / "a") if is_remote else tmp_path / "a"
    rows, columns = (np.array(i, dtype) for i in ([6, 3, 30, 1], [5, 1, 26, 7, 0]))
    with ranges_from(CountingStore):
        got = opened(store).oindex[rows, columns]
    np.testing.assert_array_equal(got, DATA[np.ix_(rows, columns)])


class Unknown(ShardingCodec):
    """What it does is not known."""


OTHERS = {
    "compressed": {"codecs": [BytesCodec(), ZstdCodec()]},
    "checked": {"codecs": [BytesCodec(), Crc32cCodec()]},
    "nested": {"codecs": [ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()])]},
    "a subclass": {"kind": Unknown},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_shards_are_zarr_s(tmp_path, name):
    array = create_shards(tmp_path, (16, 16), (8, 8), (4, 4), **OTHERS[name])
    array[...] = data = DATA[:16, :16]
    with numcodecs_bytes.trace() as traced:
        for selection in (np.s_[:], np.s_[3:9, 2], np.s_[::5, 1:15:3]):
            np.testing.assert_array_equal(array[selection], data[selection])
    assert traced.report()["arrays"] == {}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_shards_in_parts_of_files_are_zarr_s(tmp_path):
    create_shards(tmp_path / "a", (32, 64))[...] = np.hstack([DATA, -DATA])
    for open_array in (opened_zip, opened_references):
        array = open_array(tmp_path / "a", tmp_path)
        assert array[9, 18] == -array[9, 50] == DATA[9, 18]
        np.testing.assert_array_equal(array[...], np.hstack([DATA, -DATA]))
        array.store.close()
