"""Written in place inside shards: complete ones, compact ones, odd ones, and none."""

import errno
import fcntl
import itertools
import os
import random
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.codecs
from helpers import (
    EVERYTHING,
    OUR_PIPELINES,
    ZARRS_PIPELINE,
    random_selections,
    run_program,
    set_costs,
)
from zarr.codecs import Crc32cCodec, ShardingCodec, TransposeCodec

import numcodecs_bytes
from numcodecs_bytes._parts import locks
from numcodecs_bytes._parts.in_place import write_to_files
from numcodecs_bytes.zarr import BytesCodec

MISSING = 2**64 - 1
DATA = np.arange(1.0, 65).reshape(8, 8)
ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "numcodecs_bytes.write_in_place": False}


@pytest.fixture(params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1], autouse=True)
def _required(request):
    """Write in place, or raise."""
    options = {"codec_pipeline.path": request.param, "numcodecs_bytes.write_in_place": "require"}
    with zarr.config.set(options):
        yield


def create(path, shape=(8, 8), shards=None, chunks=(4, 4), dtype="f8", **settings):
    """Return an array of shards whose inner codecs are `codecs`."""
    more = {
        k: settings.pop(k) for k in ("codecs", "index_codecs", "index_location") & settings.keys()
    }
    codec = ShardingCodec(chunk_shape=chunks, **{"codecs": [BytesCodec()]} | more)
    zarr.create_array(
        path,
        shape=shape,
        chunks=shards or shape,
        dtype=dtype,
        serializer=codec,
        compressors=None,
        overwrite=True,
        **settings,
    )
    return zarr.open_array(path, mode="r+")


def alone(path, **config):
    """Open an array as zarr alone does."""
    with zarr.config.set(ALONE | config):
        return zarr.open_array(path, mode="r+")


def write_alone(path, selection, values):
    with zarr.config.set(ALONE):
        zarr.open_array(path, mode="r+")[selection] = values


def index_of(shard, num=4, *, at_start=False):
    """Return the offsets and lengths in the index of a shard, which has a checksum."""
    raw = shard.read_bytes()
    raw = raw[: 16 * num] if at_start else raw[-16 * num - 4 : -4]
    return np.frombuffer(raw, "<u8").reshape(num, 2)


INNER = {
    "as they are": [BytesCodec()],
    "big-endian": [BytesCodec(endian="big")],
    "transposed": [TransposeCodec(order=(1, 0)), BytesCodec(endian="big")],
    "zarr's codec": [zarr.codecs.BytesCodec(endian="big")],
}
INDEX = {
    "checked": {},
    "unchecked": {"index_codecs": [BytesCodec()]},
    "at the start": {"index_location": "start"},
    "big-endian": {"index_codecs": [BytesCodec(endian="big"), Crc32cCodec()]},
}


class TestCompleteShards:
    @pytest.mark.parametrize("inner", INNER)
    @pytest.mark.parametrize("index", INDEX)
    @pytest.mark.parametrize("fill_value", [0.0, -0.0, 7.0])
    def test_a_new_one_is_what_zarr_stores_of_all(self, tmp_path, inner, index, fill_value):
        settings = {"codecs": INNER[inner], "fill_value": fill_value} | INDEX[index]
        shape = {"shape": (12, 20), "shards": (12, 20), "chunks": (4, 4)}
        array = create(tmp_path / "ours", **shape, **settings)
        data = np.full((12, 20), fill_value)
        for k, part in enumerate([np.s_[3:6, 7], np.s_[::5, 1:18:3], np.s_[8:12, 8:12]]):
            array[part] = data[part] = k + 1
        with zarr.config.set(ALONE):
            create(tmp_path / "zarr's", **shape, **settings, config={"write_empty_chunks": True})
        with zarr.config.set(ALONE | {"array.write_empty_chunks": True}):
            zarr.open_array(tmp_path / "zarr's", mode="r+")[...] = data
        ours, zarrs = tmp_path / "ours/c/0/0", tmp_path / "zarr's/c/0/0"
        assert ours.read_bytes() == zarrs.read_bytes()
        assert list(ours.parent.iterdir()) == [ours]

    def test_only_the_selected_bytes_are_written(self, tmp_path, monkeypatch):
        array = create(tmp_path)
        array[...] = DATA
        before = np.fromfile(tmp_path / "c/0/0", np.uint8)
        written, pwrite = [], os.pwrite
        monkeypatch.setattr(
            os, "pwrite", lambda d, v, p: written.append((p, len(v))) or pwrite(d, v, p)
        )
        with numcodecs_bytes.trace() as traced:
            array[3:5, 2:5] = -1
        # In Morton order: (0, 0), (1, 0), (0, 1), (1, 1), of 128 bytes each.
        assert written == [(112, 16), (128 + 16, 16), (256 + 96, 8), (384, 8)]
        changed = np.flatnonzero(np.fromfile(tmp_path / "c/0/0", np.uint8) != before)
        assert set(changed) <= {k for start, num in written for k in range(start, start + num)}
        total = traced.report()["total"]
        assert total["chunks_in_place"] == 1
        assert total["bytes_in_place"] == 48

    def test_values_that_are_fill_values_alone_make_none(self, tmp_path):
        array = create(tmp_path, (16, 8), (8, 8), fill_value=3)
        array[1:5, 2:7] = 3
        assert not (tmp_path / "c").exists()
        with zarr.config.set({"array.write_empty_chunks": True}):
            zarr.open_array(tmp_path, mode="r+")[1:5, 2:7] = 3
        assert (tmp_path / "c/0/0").stat().st_size == 4 * 128 + 68

    def test_it_is_sparse(self, tmp_path):
        (tmp_path / "empty").touch()
        os.truncate(tmp_path / "empty", 1 << 25)
        if (tmp_path / "empty").stat().st_blocks:
            pytest.skip("this file system has no holes")
        array = create(tmp_path / "a", (1 << 22,), chunks=(1 << 16,))
        array[5:7] = 1
        found = (tmp_path / "a/c/0").stat()
        assert found.st_size == (1 << 25) + 64 * 16 + 4
        assert found.st_blocks * 512 <= 1 << 20

    @pytest.mark.parametrize("without", [None, "O_TMPFILE", "copy_file_range"])
    def test_the_first_of_many_wins(self, tmp_path, monkeypatch, without):
        """Whoever makes it, no element is lost."""
        if without is not None:
            monkeypatch.delattr(os, without, raising=False)
        array = create(tmp_path, (64, 64), chunks=(8, 8))
        threads = [
            threading.Thread(target=array.__setitem__, args=(np.s_[k::8, 1:], k + 1))
            for k in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = np.arange(64) % 8 + 1
        assert (array[:, 1:] == expected[:, np.newaxis]).all()
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]


class TestCompactShards:
    @pytest.mark.parametrize("is_first", [False, True], ids=["end", "start"])
    @pytest.mark.parametrize("fill_value", [0.0, 7.0])
    def test_what_is_there_stays_and_what_is_missing_follows(self, tmp_path, is_first, fill_value):
        location = {"index_location": "start" if is_first else "end"}
        array = create(tmp_path, fill_value=fill_value, **location)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        shard = tmp_path / "c/0/0"
        old = index_of(shard, at_start=is_first)
        array[6, 6] = -1  # there: nothing moves
        assert np.array_equal(index_of(shard, at_start=is_first), old)
        before = shard.stat()
        array[1, 5:7] = [-2, -3]
        new = index_of(shard, at_start=is_first)
        first = 68 if is_first else 0
        assert old.tolist() == [[MISSING] * 2] * 2 + [[first, 128], [first + 128, 128]]
        # Missing ones follow in Morton order: (0, 0), then (0, 1).
        assert new[:2].tolist() == [[first + 256, 128], [first + 384, 128]]
        assert new[2:].tolist() == old[2:].tolist()
        assert shard.stat().st_size == 4 * 128 + 68
        assert shard.stat().st_ino != before.st_ino
        expected = np.full((8, 8), fill_value)
        expected[4:], expected[6, 6], expected[1, 5:7] = DATA[4:], -1, [-2, -3]
        for opened in (array, alone(tmp_path)):
            assert np.array_equal(opened[...], expected)
        assert [path.name for path in shard.parent.iterdir()] == ["0"]

    def test_fill_values_complete_nothing(self, tmp_path):
        array = create(tmp_path)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        before = (tmp_path / "c/0/0").read_bytes()
        array[:4, 1:] = 0
        assert (tmp_path / "c/0/0").read_bytes() == before
        array[2:6, 1:] = np.array([0, 0, 5, 5])[:, np.newaxis]  # of which some are there
        assert (tmp_path / "c/0/0").stat().st_size == len(before)
        assert array[2:6, 0].tolist() == [0, 0, *DATA[4:6, 0]]
        assert (array[2:6, 1:].sum(axis=1) == [0, 0, 35, 35]).all()

    @pytest.mark.parametrize("seed", range(30 if EVERYTHING else 8))
    def test_any_write_to_any(self, tmp_path, seed, monkeypatch):
        """NumPy says what must be read."""
        rng = random.Random(seed)  # noqa: S311
        num_axes = rng.randint(1, 3)
        chunks = tuple(rng.randint(1, 3) for _ in range(num_axes))
        shards = tuple(n * rng.randint(1, 4) for n in chunks)
        shape = tuple(n + rng.randint(0, 5) for n in shards)
        order = tuple(rng.sample(range(num_axes), num_axes))
        endian = {"endian": rng.choice(["little", "big"])}
        codecs = [BytesCodec(**endian)]
        if rng.random() < 0.5:
            codecs = [TransposeCodec(order=order), zarr.codecs.BytesCodec(**endian)]
        location = {"index_location": rng.choice(["start", "end"])}
        dtype, fill = rng.choice(["u1", "<i2", ">f8", "c16"]), rng.choice([0, 3])
        settings = {"codecs": codecs, "fill_value": fill, "dtype": dtype} | location
        array = create(tmp_path, shape, shards, chunks, **settings)
        set_costs(monkeypatch, write_to_files, small_bytes=rng.choice([0, 1 << 20]))
        data = np.full(shape, fill, dtype)
        numbers = np.random.default_rng(seed)
        for way, selection, of_numpy in itertools.islice(random_selections(rng, shape, 6), 24):
            places = of_numpy(np.arange(data.size).reshape(shape))
            values = numbers.integers(0, 5, np.shape(places)).astype(dtype)
            if rng.random() < 0.3:
                box = tuple(slice(rng.randrange(n), None) for n in shape)
                data[box] = fill if rng.random() < 0.5 else 4
                write_alone(tmp_path, box, data[box])
            if len(np.unique(places)) < np.size(places):
                values = np.full(np.shape(places), 2, dtype)
            (array if way == "basic" else getattr(array, way))[selection] = values
            data.ravel()[np.ravel(places)] = np.ravel(values)
            for opened in (array, alone(tmp_path)):
                np.testing.assert_array_equal(opened[...], data)


def change_index(shard, change):
    """Change the unchecked index of a shard of four inner chunks."""
    raw = bytearray(shard.read_bytes())
    change(np.frombuffer(raw, "<u8", 8, len(raw) - 64).reshape(4, 2))
    shard.write_bytes(raw)


def overlap(index):
    index[1, 0] = index[0, 0] + 64


def another_length(index):
    index[3, 1] -= 8


def beyond(index):
    index[2, 0] += 1 << 40


def in_the_index(index):
    index[3, 0] += 60


class TestOddShards:
    """Each is left to zarr, or refused; a damaged index is never written over."""

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (overlap, "inner chunks overlap"),
            (another_length, r"the index has inner chunk \(1, 1\) at byte 384 with 120 bytes"),
            (beyond, r"the index has inner chunk \(1, 0\) at byte .* expected 128 bytes"),
            (in_the_index, "overlaps the index"),
        ],
    )
    def test_its_index_says_so(self, tmp_path, change, why):
        create(tmp_path, index_codecs=[BytesCodec()])
        write_alone(tmp_path, ..., DATA)
        shard = tmp_path / "c/0/0"
        change_index(shard, change)
        before = shard.read_bytes()
        array = zarr.open_array(tmp_path, mode="r+")
        with pytest.raises(RuntimeError, match=f"c/0/0.*require.*{why}"):
            array[0, 1:3] = -1
        assert shard.read_bytes() == before

    @pytest.mark.parametrize("mode", [True, "require"])
    def test_a_damaged_index_stays(self, tmp_path, mode):
        create(tmp_path)
        write_alone(tmp_path, ..., DATA)
        shard = tmp_path / "c/0/0"
        raw = bytearray(shard.read_bytes())
        raw[-20] ^= 1
        for damaged in (bytes(raw), bytes(raw[:40]), bytes(raw[200:])):
            shard.write_bytes(damaged)
            array = zarr.open_array(tmp_path, mode="r+")
            with (
                zarr.config.set({"numcodecs_bytes.write_in_place": mode}),
                pytest.raises(Exception, match=r"c/0/0|[Cc]hecksum|short|reshape"),
            ):
                array[0, 1:3] = -1
            assert shard.read_bytes() == damaged

    def test_another_order_is_kept(self, tmp_path):
        """Where inner chunks lie is what the index says."""
        array = create(tmp_path, index_codecs=[BytesCodec()])
        write_alone(tmp_path, ..., DATA)
        shard = tmp_path / "c/0/0"
        raw = shard.read_bytes()
        order = [3, 1, 0, 2]
        parts = [raw[128 * k : 128 * (k + 1)] for k in order]
        shard.write_bytes(b"".join(parts) + raw[512:])
        morton = [0, 2, 1, 3]  # where each is in an index in C order
        places = {chunk: order.index(morton[chunk]) for chunk in range(4)}

        def move(index):
            index[:, 0] = [128 * places[k] for k in range(4)]

        change_index(shard, move)
        moved = shard.read_bytes()
        assert np.array_equal(array[...], DATA)
        array[2:7, 3:6] = -1
        expected = DATA.copy()
        expected[2:7, 3:6] = -1
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert shard.read_bytes()[512:] == moved[512:]


class Paused(threading.Thread):
    """Completes a shard by writing to it, and waits at a moment of that."""

    def __init__(self, monkeypatch, array, owner, name, number=0):
        super().__init__(target=self._write, args=(array,))
        self.reached, self.may_go_on, self.error = threading.Event(), threading.Event(), None
        function, calls = getattr(owner, name), itertools.count()

        def pause(*args, **kwargs):
            if self._is_ours(*args) and next(calls) == number:
                self.reached.set()
                assert self.may_go_on.wait(30)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, pause)

    @staticmethod
    def _is_ours(*args):
        """Whether a call is of the file that is made, or of the shard that is locked."""
        path = str(args[0])
        if isinstance(args[0], int):
            path = str(Path(f"/proc/self/fd/{args[0]}").readlink())
        return "/c/0" in path

    def _write(self, array):
        try:
            array[1, 5:7] = [-2, -3]
        except Exception as error:  # noqa: BLE001
            self.error = error


MOMENTS = {
    "before the lock": (fcntl, "flock", 0),
    "with the shared lock": (os, "fstat", 0),
    "with the exclusive lock": (os, "fstat", 1),
    "before the copy": (os, "ftruncate", 0),
    "with part of the copy": (os, "copy_file_range", 0),
    "before the length": (os, "ftruncate", 1),
    "before the index": (os, "pwrite", 0),
    "before the values": (os, "pwrite", 1),
    "before the rename": (Path, "replace", 0),
}


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="this system copies otherwise")
@pytest.mark.parametrize("moment", MOMENTS)
class TestPauses:
    """Somebody else does something at a moment of a completion."""

    @pytest.fixture
    def array(self, tmp_path):
        array = create(tmp_path)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        return array

    EXPECTED = np.concatenate([np.zeros((4, 8)), DATA[4:]])

    def test_a_reader(self, tmp_path, array, monkeypatch, moment):
        paused = Paused(monkeypatch, array, *MOMENTS[moment])
        paused.start()
        assert paused.reached.wait(30)
        assert np.array_equal(alone(tmp_path)[...], self.EXPECTED)
        paused.may_go_on.set()
        paused.join()
        expected = self.EXPECTED.copy()
        expected[1, 5:7] = [-2, -3]
        assert paused.error is None
        assert np.array_equal(alone(tmp_path)[...], expected)

    @pytest.mark.parametrize("part", [np.s_[6, 1:4], np.s_[2, 1:4]], ids=["there", "missing"])
    def test_a_writer_in_place(self, tmp_path, array, monkeypatch, moment, part):
        paused = Paused(monkeypatch, array, *MOMENTS[moment])
        paused.start()
        assert paused.reached.wait(30)
        other = threading.Thread(target=array.__setitem__, args=(part, 9))
        other.start()
        other.join(0.05)
        paused.may_go_on.set()
        paused.join()
        other.join()
        expected = self.EXPECTED.copy()
        expected[1, 5:7], expected[part] = [-2, -3], 9
        assert paused.error is None
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]

    @pytest.mark.parametrize("value", [9, 0], ids=["written", "deleted"])
    def test_a_whole_write(self, tmp_path, array, monkeypatch, moment, value):
        """Whoever is last wins, and the shard is whole."""
        paused = Paused(monkeypatch, array, *MOMENTS[moment])
        paused.start()
        assert paused.reached.wait(30)
        other = threading.Thread(target=array.__setitem__, args=(..., value))
        other.start()
        other.join(0.05)
        paused.may_go_on.set()
        paused.join()
        other.join()
        assert paused.error is None
        found = alone(tmp_path)[...]
        assert found[1, 5:7].tolist() in ([value] * 2, [-2, -3])
        found[1, 5:7] = value
        assert (found == value).all()

    def test_it_is_replaced_by_zarr(self, tmp_path, array, monkeypatch, moment):
        """zarr alone takes no lock: one of the two is lost, and no other element."""
        paused = Paused(monkeypatch, array, *MOMENTS[moment])
        paused.start()
        assert paused.reached.wait(30)
        write_alone(tmp_path, np.s_[4:, :], 2 * DATA[4:])
        paused.may_go_on.set()
        paused.join()
        assert paused.error is None
        found = alone(tmp_path)[...]
        assert found[1, 5:7].tolist() == [-2, -3]
        found[1, 5:7] = 0
        assert (found[:4] == 0).all()
        if moment != "before the rename":
            assert np.array_equal(found[4:], 2 * DATA[4:])


PAUSED_WRITER = """
import os, sys, time, zarr
from pathlib import Path
import fcntl
path, pipeline, owner, name, number = sys.argv[1:]
owner, left = {"os": os, "fcntl": fcntl, "Path": Path}[owner], [int(number)]
function = getattr(owner, name)
def stop(*args, **kwargs):
    found = os.readlink(f"/proc/self/fd/{args[0]}") if type(args[0]) is int else str(args[0])
    if "/c/0" in found:
        if not left[0]:
            os.kill(os.getpid(), 9)
        left[0] -= 1
    return function(*args, **kwargs)
setattr(owner, name, stop)
zarr.config.set({"codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require"})
zarr.open_array(path, mode="r+")[1, 5:7] = [-2, -3]
"""


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="this system copies otherwise")
def test_a_writer_that_is_killed_at_any_moment_harms_nobody(tmp_path):
    pipeline = zarr.config.get("codec_pipeline.path")
    for owner, name, number in MOMENTS.values():
        array = create(tmp_path)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        arguments = [tmp_path, pipeline, owner.__name__, name, str(number)]
        run_program("-c", PAUSED_WRITER, *arguments, status=-9)
        expected = np.concatenate([np.zeros((4, 8)), DATA[4:]])
        assert np.array_equal(alone(tmp_path)[...], expected)
        array[2, 1:7] = expected[2, 1:7] = 5
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]


def test_a_full_disk(tmp_path, monkeypatch):
    """Nothing is left, and nothing lost."""
    array = create(tmp_path)
    write_alone(tmp_path, np.s_[4:, :], DATA[4:])
    before = (tmp_path / "c/0/0").read_bytes()
    for name in ("copy_file_range", "pwrite", "ftruncate"):

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patching:
            patching.setattr(os, name, full, raising=False)
            with pytest.raises(OSError, match="No space left") as caught:
                array[1, 5:7] = 3
        assert "while writing chunk 'c/0/0'" in caught.value.__notes__[0]
        assert (tmp_path / "c/0/0").read_bytes() == before
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_shard_that_is_longer_than_a_file_may_be_is_written_by_zarr(
    tmp_path, monkeypatch, exists
):
    array, ftruncate = create(tmp_path), os.ftruncate
    if exists:
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])

    def truncate(descriptor, num_bytes):
        if num_bytes > 400:
            raise OSError(errno.EFBIG, "File too large")
        ftruncate(descriptor, num_bytes)

    monkeypatch.setattr(os, "ftruncate", truncate)
    with pytest.raises(RuntimeError, match="it would be too long .File too large"):
        array[1, 5:7] = 3
    with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
        array[1, 5:7] = 3
    assert array[1].tolist() == [0] * 5 + [3, 3, 0]
    assert np.array_equal(array[4:], exists * DATA[4:])


class TestOtherFillValues:
    """What is not zero takes space: a shard grows as it is written, but not each time."""

    def test_it_doubles(self, tmp_path, monkeypatch):
        set_costs(monkeypatch, write_to_files, small_bytes=0)
        array = create(tmp_path, (16, 16), fill_value=np.nan)
        expected, sizes, inodes = np.full((16, 16), np.nan), [], set()
        for k in range(16):
            part = np.s_[4 * (k % 4) + 1, 4 * (k // 4) : 4 * (k // 4) + 3]
            array[part] = expected[part] = k
            found = (tmp_path / "c/0/0").stat()
            sizes.append((found.st_size - 260) // 128)
            inodes.add(found.st_ino)
            for opened in (array, alone(tmp_path)):
                assert np.array_equal(opened[...], expected, equal_nan=True)
        assert sizes[0] == 1
        assert sizes[-1] == 16
        assert all(size <= 2 * (k + 1) for k, size in enumerate(sizes))
        assert sizes == sorted(sizes)
        assert len(set(sizes)) <= 6

    def test_what_is_written_at_once_gets_its_place_at_once(self, tmp_path, monkeypatch):
        set_costs(monkeypatch, write_to_files, small_bytes=0)
        array = create(tmp_path, (16, 16), fill_value=1.5)
        array[1:9, 3:14] = 2
        assert (tmp_path / "c/0/0").stat().st_size == 12 * 128 + 260
        array[1:9, 3:14] = 1.5
        array[13, 13] = 1.5
        assert (tmp_path / "c/0/0").stat().st_size == 12 * 128 + 260
        assert (alone(tmp_path)[...] == 1.5).all()

    def test_a_disk_that_is_nearly_full(self, tmp_path, monkeypatch):
        """There is room for what is written where there is none for twice as much."""
        array, ftruncate = create(tmp_path, (16, 16), fill_value=1.5), os.ftruncate
        limits = [260 + 128 * n for n in (1, 2, 3, 4, 5, 3)]
        expected = np.full((16, 16), 1.5)

        def truncate(descriptor, num_bytes):
            if num_bytes > limits[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            ftruncate(descriptor, num_bytes)

        monkeypatch.setattr(os, "ftruncate", truncate)
        for k in range(5):
            array[4 * (k % 4) + 1, 4 * (k // 4) + 1] = expected[
                4 * (k % 4) + 1, 4 * (k // 4) + 1
            ] = k
            assert (tmp_path / "c/0/0").stat().st_size == limits.pop(0)
        with pytest.raises(OSError, match="No space left"):
            array[13, 13] = 0
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]

    def test_a_disk_that_is_full_of_small_inner_chunks(self, tmp_path, monkeypatch):
        """Zeros take space, too, where blocks of the disk are longer than inner chunks."""
        array, write_at = create(tmp_path, (16, 16)), locks.write_at

        def write(descriptor, raw, position):
            if position + len(raw) > 260 + 128:
                raise OSError(errno.ENOSPC, "No space left on device")
            write_at(descriptor, raw, position)

        monkeypatch.setattr(locks, "write_at", write)
        array[13, 13] = 5
        assert (tmp_path / "c/0/0").stat().st_size == 260 + 128
        assert alone(tmp_path)[13, 13] == 5

    def test_a_write_that_is_cancelled_fills_no_file(self, tmp_path):
        answers = iter([True, True, False])
        with (tmp_path / "file").open("w+b") as file, pytest.raises(InterruptedError):
            locks.fill_with(file.fileno(), np.ones(8, "u1"), 0, 1 << 25, lambda: next(answers))
        assert (tmp_path / "file").stat().st_size == 2 * locks.STEP_BYTES


def test_memory_follows_the_selection(tmp_path, track):
    """A completion copies in blocks."""
    array = create(tmp_path, (1 << 22,), chunks=(1 << 18,))
    write_alone(tmp_path, np.s_[: 1 << 21], 1)
    array[5:9] = 2
    peak, _ = track(lambda: array.__setitem__(slice(-5, None), 3))
    assert (tmp_path / "c/0").stat().st_size == (1 << 25) + 16 * 16 + 4
    assert peak < 1 << 21


def test_it_waits_for_its_lock_as_long_as_it_must(tmp_path):
    """Beside writers of what is there, who share theirs; and others need not wait for it."""
    array = create(tmp_path, (16, 8), (8, 8))
    write_alone(tmp_path, np.s_[4:, :], 1)
    with (tmp_path / "c/0/0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        thread = threading.Thread(target=array.__setitem__, args=(np.s_[1, 1:], 5))
        thread.start()
        time.sleep(0.3)
        array[5, 1:] = 6
        array[9, 1:] = 7
        assert thread.is_alive()
    thread.join(30)
    assert array[1].tolist() == [0] + [5] * 7
    assert array[5].tolist() == [1] + [6] * 7
    assert array[9].tolist() == [1] + [7] * 7


def test_a_copy_of_hard_links_keeps_what_it_holds(tmp_path):
    array = create(tmp_path / "a")
    write_alone(tmp_path / "a", np.s_[4:, :], DATA[4:])
    shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=os.link)
    array[1, 5:7] = [-2, -3]
    assert array[1].tolist() == [0, 0, 0, 0, 0, -2, -3, 0]
    assert not alone(tmp_path / "copy")[:4].any()
    assert np.array_equal(alone(tmp_path / "copy")[4:], DATA[4:])
