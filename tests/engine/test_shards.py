"""Shards in local files: their index and what is selected; what is wrong with one is zarr's.

Values of any selection: test_random_selections.py.
"""

import contextlib
import importlib
import itertools
import os
import random
import zipfile

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
    has,
    module_or_none,
    random_selections,
    ranges_from,
)
from test_local_files import opened, outcome
from zarr.codecs import Crc32cCodec, ShardingCodec, ZstdCodec

import numcodecs_bytes
from numcodecs_bytes.zarr_codec import BytesCodec

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


def shards_in(folder):
    return [path for path in sorted(folder.glob("c/**/*")) if path.is_file()]


def zipped(folder, compression=zipfile.ZIP_STORED):
    """Return a store of a folder in a zip archive."""
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in [folder / "zarr.json", *shards_in(folder)]:
            archive.write(file, file.relative_to(folder).as_posix())
    return zarr.storage.ZipStore(path, mode="r")


REQUESTED = [CountingStore]  # what the tests name as stores whose byte ranges can be relied on
local_files = module_or_none("fsspec.implementations.local")
if local_files:

    class RequestedFiles(local_files.LocalFileSystem):
        """Files that are not known to be local."""

    REQUESTED.append(RequestedFiles)


def in_one_file(folder, kind):
    """Return a store of references: the shards of a folder lie in one file, with other bytes.

    `kind` is the class of file systems that reads the file.
    """
    fsspec = importlib.import_module("fsspec")
    wrapper = importlib.import_module("fsspec.implementations.asyn_wrapper")
    path, other = folder.with_suffix(".bin"), bytes(range(1, 100))
    parts, raw = {"zarr.json": (folder / "zarr.json").read_text()}, other
    for shard in shards_in(folder):
        name = shard.relative_to(folder).as_posix()
        parts[name] = [path.as_uri(), len(raw), shard.stat().st_size]
        raw += shard.read_bytes() + other
    path.write_bytes(raw)
    how = {"asynchronous": True, "skip_instance_cache": True}
    by_protocol = {"file": wrapper.AsyncFileSystemWrapper(kind(), **how)}
    files = fsspec.filesystem("reference", fo=parts, fs=by_protocol, **how)
    return zarr.storage.FsspecStore(files, read_only=True)


@contextlib.contextmanager
def open_stores(folder, *, is_sharded=True):
    """Give stores of a folder, by how they are read; shards lie in parts of files as well."""
    stores = {"files": folder, "requests": CountingStore(folder)}
    with contextlib.ExitStack() as archives, ranges_from(*REQUESTED):
        if is_sharded and has("os.pread"):
            stores["members of an archive"] = archives.enter_context(zipped(folder))
            opened(stores["members of an archive"])  # else zarr 3.1.6 can't close it
        if is_sharded and local_files:
            stores["parts of a file"] = in_one_file(folder, local_files.LocalFileSystem)
            stores["requests for parts"] = in_one_file(folder, RequestedFiles)
        yield stores


@pytest.mark.usefixtures("_files_are_fast")
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


@pytest.mark.usefixtures("_files_are_fast")
class TestPartsOfFiles:
    """Shards that are members of a zip archive, or references into a file, with other bytes."""

    @pytest.fixture(params=["start", "end"])
    def folder(self, request, tmp_path):
        """Return a folder of two shards, side by side."""
        array = create_shards(tmp_path / "a", (32, 64), index_location=request.param)
        array[...] = np.hstack([DATA, -DATA])
        return tmp_path / "a"

    @pytest.mark.needs("os.pread")
    @pytest.mark.parametrize(
        "how", ["members of an archive", "parts of a file", "requests for parts"]
    )
    def test_what_is_read(self, folder, calls, set_constants, how):
        """As of a file of its own; a file is opened once, and no byte of others is read."""
        set_constants(GAP_BYTES=0, LATENCY_BYTES=0)
        with open_stores(folder) as stores:
            array = opened(stores.get(how) or pytest.skip("there are no such stores"))
            calls.opened.clear()
            with numcodecs_bytes.trace() as traced:
                assert array[9, 18:54:32].tolist() == [DATA[9, 18], -DATA[9, 18]]
                points = array.vindex[[31, 0, 9], [63, 31, 18]]
                assert points.tolist() == [-DATA[31, 31], DATA[0, 31], DATA[9, 18]]
        total, num_shards, num_elements = traced.report()["total"], 4, 5
        assert total["bytes_fetched"] == num_shards * NUM_INDEX_BYTES + num_elements * 4
        assert total["requests"] == num_shards + num_elements
        assert traced.report()["not_seen"] == total["why_whole"] == {}
        assert len(calls.opened) == (2 if how == "parts of a file" else 0)
        if how != "requests for parts":
            num_header_bytes = (
                (30 + len("c/0/0")) * num_shards if how == "members of an archive" else 0
            )
            assert calls.num_bytes == total["bytes_fetched"] + num_header_bytes

    @pytest.mark.skipif(not local_files, reason="fsspec is not installed")
    def test_a_reference_and_an_entry_beyond_any_file(self, tmp_path):
        """Its position was negative, and counted from the end of the file."""
        unchecked = {"index_codecs": [BytesCodec(endian="little")], "index_location": "start"}
        create_shards(tmp_path, (8, 4), (8, 4), (4, 4), **unchecked)[...] = DATA[:8, :4]
        shard = tmp_path / "c/0/0"
        index = np.array([32, 64, 2**64 - 200, 64], "<u8").tobytes()
        shard.write_bytes(index + shard.read_bytes()[len(index) :])
        with open_stores(tmp_path) as stores:
            for store in (stores["parts of a file"], stores["requests for parts"]):
                store.fs.references["c/0/0"][2] = 2**64
                assert opened(store)[2, 3] == DATA[2, 3]
                expected = outcome(store, np.s_[5, 3], ZARR_ALONE)
                assert isinstance(expected, type)
                assert outcome(store, np.s_[5, 3]) == expected

    @pytest.mark.needs("os.pread")
    def test_a_compressed_member_is_zarr_s(self, folder):
        with zipped(folder, zipfile.ZIP_DEFLATED) as archive, numcodecs_bytes.trace() as traced:
            np.testing.assert_array_equal(opened(archive)[:, 5], DATA[:, 5])
        assert "compressed, or encrypted, in its zip archive" in str(traced.report()["not_seen"])


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
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
            yield

    @pytest.mark.matrix
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
        selections = (np.s_[:], np.s_[5, 2], np.s_[:, 1], np.s_[2:6])
        with open_stores(tmp_path) as stores:
            for selection, name in itertools.product(selections, stores):
                expected = outcome(stores[name], selection, alone)
                array = opened(stores[name])
                with numcodecs_bytes.trace() as traced:
                    if not isinstance(expected, type):
                        assert array[selection].tolist() == expected, (selection, name)
                        continue
                    with pytest.raises(Exception, match=".") as caught:
                        array[selection]
                assert "chunk 'c/0/0' " in "".join(caught.value.__notes__)
                is_zarr_s = "requests" in name and selection == np.s_[:]  # without an attempt
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
        for _ in range(30 if EVERYTHING else 15):
            set_constants(
                MIN_SUBRANGE_BYTES=rng.choice([1, 20, 50]), LATENCY_BYTES=rng.choice([1, 100])
            )
            changed = bytearray(raw)
            entries = np.frombuffer(changed, "<u8", 16, begin).reshape(8, 2)
            for entry in [entries[k] for k in rng.sample(range(8), rng.randint(1, 8))]:
                entry[0] = rng.choice([*entries[:, 0], rng.randrange(len(raw) - 64)])
                if rng.random() < 0.05:
                    changes = rng.choice(list(ENTRIES.values()))(int(entry[0]), len(raw))
                    entry[:] = [number % 2**64 for number in changes]
            path.write_bytes(changed)
            with open_stores(tmp_path) as stores:
                for way, selection, _ in random_selections(rng, (16, 8), 1):
                    expected = outcome(tmp_path, selection, ZARR_ALONE, way)
                    if isinstance(expected, type):  # also of inner chunks that are not selected
                        continue
                    for name, store in stores.items():
                        got = outcome(store, selection, way=way)
                        assert got == expected, (name, way, selection)
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
