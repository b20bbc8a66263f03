"""Parts of inner chunks are written in place: in complete, compact, unusual and missing shards."""

import errno
import fcntl
import importlib.util
import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.codecs
from helpers import OUR_PIPELINES, ZARRS_PIPELINE, run_program
from zarr.codecs import Crc32cCodec, ShardingCodec, TransposeCodec

import numcodecs_bytes
from numcodecs_bytes._engine import constants
from numcodecs_bytes.zarr import BytesCodec

MISSING = 2**64 - 1
DATA = np.arange(1.0, 65).reshape(8, 8)
HALF = np.concatenate([np.zeros((4, 8)), DATA[4:]])
ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "numcodecs_bytes.write_in_place": False}
IF_POSSIBLE = {"numcodecs_bytes.write_in_place": True}


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
    return zarr.create_array(
        path,
        shape=shape,
        chunks=shards or shape,
        dtype=dtype,
        serializer=codec,
        compressors=None,
        overwrite=True,
        **settings,
    )


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


class TestComplete:
    @pytest.mark.matrix
    @pytest.mark.parametrize("inner", INNER)
    @pytest.mark.parametrize("index", INDEX)
    @pytest.mark.parametrize("fill_value", [0.0, 7.0])
    def test_a_new_one_is_what_zarr_reads(self, tmp_path, inner, index, fill_value):
        settings = {"codecs": INNER[inner], "fill_value": fill_value} | INDEX[index]
        array = create(tmp_path, (12, 20), **settings)
        data = np.full((12, 20), fill_value)
        for k, part in enumerate([np.s_[3:6, 7], np.s_[::5, 1:18:3], np.s_[8:12, 8:12]]):
            array[part] = data[part] = k + 1
            assert np.array_equal(alone(tmp_path)[...], data)
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]

    def test_only_the_selected_bytes_are_written(self, tmp_path, monkeypatch):
        """And as the same bytes as by zarr alone, which rewrites all of it."""
        array = create(tmp_path / "a")
        for path in ("a", "b"):
            create(tmp_path / path)
            write_alone(tmp_path / path, ..., DATA)
        before = np.fromfile(tmp_path / "a/c/0/0", np.uint8)
        written, pwrite = [], os.pwrite
        monkeypatch.setattr(
            os, "pwrite", lambda d, v, p: written.append((p, len(v))) or pwrite(d, v, p)
        )
        with numcodecs_bytes.trace() as traced:
            array[3:5, 2:5] = -1
        # In Morton order: (0, 0), (1, 0), (0, 1), (1, 1), of 128 bytes each.
        assert sorted(written) == [(112, 16), (128 + 16, 16), (256 + 96, 8), (384, 8)]
        after = np.fromfile(tmp_path / "a/c/0/0", np.uint8)
        changed = np.flatnonzero(after != before)
        assert set(changed) <= {k for start, num in written for k in range(start, start + num)}
        total = traced.report()["total"]
        assert (total["chunks_in_place"], total["bytes_in_place"]) == (1, 48)
        write_alone(tmp_path / "b", np.s_[3:5, 2:5], -1)
        assert (tmp_path / "b/c/0/0").read_bytes() == after.tobytes()

    @pytest.mark.parametrize("is_empty", [False, True])
    def test_values_that_are_fill_values_alone_make_none(self, tmp_path, is_empty):
        """Unless zarr is to write empty chunks."""
        create(tmp_path, (16, 8), (8, 8), fill_value=3)
        with zarr.config.set({"array.write_empty_chunks": is_empty}):
            zarr.open_array(tmp_path, mode="r+")[1:5, 2:7] = 3
        assert (tmp_path / "c/0/0").exists() == is_empty
        assert (alone(tmp_path)[...] == 3).all()

    def test_it_is_complete_at_once_and_sparse(self, tmp_path):
        (tmp_path / "empty").touch()
        os.truncate(tmp_path / "empty", 1 << 25)
        if (tmp_path / "empty").stat().st_blocks:
            pytest.skip("this file system has no holes")
        array = create(tmp_path / "a", (1 << 22,), chunks=(1 << 16,))
        array[5:7] = 1
        found = (tmp_path / "a/c/0").stat()
        assert found.st_size == (1 << 25) + 64 * 16 + 4
        assert found.st_blocks * 512 <= 1 << 20
        array[-7:] = 1  # nothing moves
        assert (tmp_path / "a/c/0").stat().st_ino == found.st_ino


class TestCompact:
    @pytest.mark.parametrize("is_first", [False, True], ids=["end", "start"])
    @pytest.mark.parametrize("fill_value", [0.0, 7.0])
    def test_what_is_there_stays_and_what_is_missing_follows(self, tmp_path, is_first, fill_value):
        """So whoever has read the old index reads the same in the new file."""
        location = {"index_location": "start" if is_first else "end"}
        array = create(tmp_path, fill_value=fill_value, **location)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        shard = tmp_path / "c/0/0"
        old, before = index_of(shard, at_start=is_first), shard.stat()
        array[6, 6] = -1  # there: nothing moves
        assert np.array_equal(index_of(shard, at_start=is_first), old)
        assert shard.stat().st_ino == before.st_ino
        array[1, 5:7] = [-2, -3]
        new = index_of(shard, at_start=is_first)
        assert old[:2].tolist() == [[MISSING] * 2] * 2
        assert new[2:].tolist() == old[2:].tolist()
        first = 68 if is_first else 0
        assert sorted(new[:2].tolist()) == [[first + 256, 128], [first + 384, 128]]
        assert shard.stat().st_size == 4 * 128 + 68
        expected = np.full((8, 8), fill_value)
        expected[4:], expected[6, 6], expected[1, 5:7] = DATA[4:], -1, [-2, -3]
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert [path.name for path in shard.parent.iterdir()] == ["0"]

    def test_fill_values_complete_nothing(self, tmp_path):
        array = create(tmp_path)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        before = (tmp_path / "c/0/0").read_bytes()
        array[:4, 1:] = 0
        assert (tmp_path / "c/0/0").read_bytes() == before
        array[2:6, 1:] = np.array([0, 0, 5, 5])[:, np.newaxis]  # of which some are there
        assert (tmp_path / "c/0/0").stat().st_size == len(before)
        expected = HALF.copy()
        expected[4:6, 1:] = 5
        assert np.array_equal(alone(tmp_path)[...], expected)

    @pytest.mark.skipif(not hasattr(zarr.dtype, "Struct"), reason="zarr 3.1.6 writes no points")
    @pytest.mark.parametrize("value", [5, 0])
    def test_points_in_inner_chunks_that_are_there_and_others(self, tmp_path, value):
        array, expected = create(tmp_path), HALF.copy()
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        points = np.array([7, 0, 5, 3]), np.array([7, 1, 2, 6])
        array.vindex[points] = expected[points] = value
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert (tmp_path / "c/0/0").stat().st_size == (4 if value else 2) * 128 + 68


class TestOtherFillValues:
    """What is not zero takes space: a shard grows as it is written, but not each time."""

    @pytest.mark.parametrize("others_write", [False, True])
    def test_it_doubles(self, tmp_path, others_write):
        """In zarr's, zarrs' and TensorStore's eyes at every stage; and zarr may write on."""
        array = create(tmp_path, (16, 16), fill_value=np.nan)
        expected, sizes = np.full((16, 16), np.nan), []
        for k in range(16):
            part = np.s_[4 * (k // 4) + 1, 4 * (k % 4) : 4 * (k % 4) + 3]
            expected[part] = k
            if others_write and k % 2:
                write_alone(tmp_path, part, k)
            else:
                array[part] = k
            sizes.append(((tmp_path / "c/0/0").stat().st_size - 260) // 128)
            for read in readers():
                assert np.array_equal(read(tmp_path), expected, equal_nan=True)
        assert sizes[0] == 1
        assert sizes[-1] == 16
        assert all(size <= 2 * (k + 1) for k, size in enumerate(sizes))
        assert others_write or len(set(sizes)) <= 6

    def test_what_is_written_at_once_gets_its_place_at_once(self, tmp_path):
        array = create(tmp_path, (16, 16), fill_value=1.5)
        array[1:9, 3:14] = 2
        assert (tmp_path / "c/0/0").stat().st_size == 12 * 128 + 260
        array[1:9, 3:14] = 1.5
        array[13, 13] = 1.5
        assert (tmp_path / "c/0/0").stat().st_size == 12 * 128 + 260
        assert (alone(tmp_path)[...] == 1.5).all()

    def test_the_first_row_of_a_large_one(self, tmp_path, track):
        """It takes the space of the inner chunks in which it lies, and a few blocks of memory."""
        array = create(tmp_path, (1 << 13, 1 << 13), chunks=(256, 256), fill_value=np.nan)
        peak, _ = track(lambda: array.__setitem__(5, 1.0))
        assert (tmp_path / "c/0/0").stat().st_size < 32 << 20
        assert peak < 1 << 23
        assert alone(tmp_path)[5, ::999].tolist() == [1.0] * 9


def readers():
    """Yield functions that read an array without this package."""
    yield lambda path: alone(path)[...]
    if importlib.util.find_spec("tensorstore"):
        import tensorstore  # noqa: PLC0415 # an optional peer

        def read(path):
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
            return tensorstore.open(spec).result().read().result()

        yield read
    if importlib.util.find_spec("zarrs"):
        import zarrs  # noqa: F401, PLC0415 # registers its pipeline

        def read_by_zarrs(path):
            with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
                return zarr.open_array(path, mode="r")[...]

        yield read_by_zarrs


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


class TestUnusual:
    """Each is left to zarr, or refused; a damaged index is never written over."""

    @pytest.mark.parametrize("change", [overlap, another_length, beyond, in_the_index])
    def test_its_index_says_so(self, tmp_path, change):
        create(tmp_path, index_codecs=[BytesCodec()])
        write_alone(tmp_path, ..., DATA)
        shard = tmp_path / "c/0/0"
        change_index(shard, change)
        before = shard.read_bytes()
        array = zarr.open_array(tmp_path, mode="r+")
        with pytest.raises(RuntimeError, match=r"c/0/0.*require.*its index is unusual"):
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
        raw, order, morton = shard.read_bytes(), [3, 1, 0, 2], [0, 2, 1, 3]
        shard.write_bytes(b"".join([raw[128 * k : 128 * (k + 1)] for k in order]) + raw[512:])

        def move(index):
            index[:, 0] = [128 * order.index(morton[chunk]) for chunk in range(4)]

        change_index(shard, move)
        moved, expected = shard.read_bytes(), DATA.copy()
        array[2:7, 3:6] = expected[2:7, 3:6] = -1
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert shard.read_bytes()[512:] == moved[512:]

    @pytest.mark.parametrize("exists", [False, True])
    def test_longer_than_a_file_may_be(self, tmp_path, monkeypatch, exists):
        array, ftruncate = create(tmp_path), os.ftruncate
        if exists:
            write_alone(tmp_path, np.s_[4:, :], DATA[4:])

        def truncate(descriptor, num_bytes):
            if num_bytes > 400:
                raise OSError(errno.EFBIG, "File too large")
            ftruncate(descriptor, num_bytes)

        monkeypatch.setattr(os, "ftruncate", truncate)
        with pytest.raises(RuntimeError, match="it can't be given its length .File too large"):
            array[1, 5:7] = 3
        with zarr.config.set(IF_POSSIBLE):
            array[1, 5:7] = 3
        assert array[1].tolist() == [0] * 5 + [3, 3, 0]

    @pytest.mark.parametrize("name", ["pwrite", "replace"])
    def test_a_full_disk(self, tmp_path, monkeypatch, name):
        """Nothing is left, and nothing lost."""
        array = create(tmp_path)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        before = (tmp_path / "c/0/0").read_bytes()

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, name, full)
        with pytest.raises(OSError, match="No space left") as caught:
            array[1, 5:7] = 3
        assert "while writing chunk 'c/0/0'" in caught.value.__notes__[0]
        assert (tmp_path / "c/0/0").read_bytes() == before
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]


class Paused(threading.Thread):
    """Completes a shard by writing to it, and waits at a moment of that."""

    def __init__(self, monkeypatch, array, owner, name, number=0):
        super().__init__(target=self._write, args=(array,))
        self.reached, self.may_go_on, self.error = threading.Event(), threading.Event(), None
        function, calls = getattr(owner, name), itertools.count()

        def pause(*args, **kwargs):
            if threading.current_thread().name.startswith("numcodecs_bytes_writes"):
                path = str(args[0])
                if isinstance(args[0], int):
                    path = str(Path(f"/proc/self/fd/{args[0]}").readlink())
                if "/c/0" in path and next(calls) == number:
                    self.reached.set()
                    assert self.may_go_on.wait(30)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, pause)
        self.start()
        assert self.reached.wait(30)

    def finish(self):
        self.may_go_on.set()
        self.join()
        assert self.error is None

    def _write(self, array):
        try:
            array[1, 5:7] = [-2, -3]
        except Exception as error:  # noqa: BLE001
            self.error = error


MOMENTS = {
    "before the lock": (fcntl, "flock", 0),
    "with the shared lock": (os, "fstat", 0),
    "with the exclusive lock": (os, "fstat", 2),
    "before the copy": (os, "ftruncate", 0),
    "with part of the copy": (os, "pwrite", 0),
    "before the index": (os, "pwrite", 1),
    "before the values": (os, "pwrite", 2),
    "before the rename": (os, "replace", 0),
}


@pytest.mark.parametrize("moment", MOMENTS)
class TestPauses:
    """Somebody else does something at a moment of a completion."""

    @pytest.fixture
    def array(self, tmp_path):
        array = create(tmp_path)
        write_alone(tmp_path, np.s_[4:, :], DATA[4:])
        return array

    def test_a_reader(self, tmp_path, array, monkeypatch, moment):
        paused, expected = Paused(monkeypatch, array, *MOMENTS[moment]), HALF.copy()
        assert np.array_equal(alone(tmp_path)[...], expected)
        paused.finish()
        expected[1, 5:7] = [-2, -3]
        assert np.array_equal(alone(tmp_path)[...], expected)

    @pytest.mark.parametrize("part", [np.s_[6, 1:4], np.s_[2, 1:4]], ids=["there", "missing"])
    def test_a_writer_in_place(self, tmp_path, array, monkeypatch, moment, part):
        paused, expected = Paused(monkeypatch, array, *MOMENTS[moment]), HALF.copy()
        other = threading.Thread(target=array.__setitem__, args=(part, 9))
        other.start()
        other.join(0.05)
        paused.finish()
        other.join()
        expected[1, 5:7], expected[part] = [-2, -3], 9
        assert np.array_equal(alone(tmp_path)[...], expected)
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]

    def test_it_is_replaced_by_zarr(self, tmp_path, array, monkeypatch, moment):
        """Who takes no lock: what it wrote is lost if the rename follows at once, and only then."""
        paused = Paused(monkeypatch, array, *MOMENTS[moment])
        write_alone(tmp_path, np.s_[4:, :], 2 * DATA[4:])
        paused.finish()
        found = alone(tmp_path)[...]
        assert found[1, 5:7].tolist() == [-2, -3]
        found[1, 5:7] = 0
        assert (found[:4] == 0).all()
        if moment != "before the rename":
            assert np.array_equal(found[4:], 2 * DATA[4:])


PAUSED_WRITER = """
import os, sys, time, zarr, fcntl
path, pipeline, owner, name, number = sys.argv[1:]
owner, left = {"os": os, "fcntl": fcntl}[owner], [int(number)]
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


def test_a_writer_that_is_killed_at_any_moment_harms_nobody(tmp_path):
    """At most, it leaves a stray file."""
    pipeline = zarr.config.get("codec_pipeline.path")
    for k, (owner, name, number) in enumerate(MOMENTS.values()):
        path = tmp_path / str(k)
        array, expected = create(path), HALF.copy()
        write_alone(path, np.s_[4:, :], DATA[4:])
        arguments = [path, pipeline, owner.__name__, name, str(number)]
        run_program("-c", PAUSED_WRITER, *arguments, status=-9)
        assert np.array_equal(alone(path)[...], expected)
        array[2, 1:7] = expected[2, 1:7] = 5
        assert np.array_equal(alone(path)[...], expected)
        others = [p.suffix for p in (path / "c/0").iterdir() if p.name != "0"]
        assert others in ([], [".partial"])


def test_it_waits_for_its_lock_as_long_as_it_must(tmp_path, monkeypatch):
    """Beside writers of what is there, who share theirs; and others need not wait for it."""
    monkeypatch.setattr(constants, "MAX_WAIT_SECONDS", 0.01)
    array = create(tmp_path, (16, 8), (8, 8))
    write_alone(tmp_path, np.s_[4:, :], 1)
    with (tmp_path / "c/0/0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        thread = threading.Thread(target=array.__setitem__, args=(np.s_[1, 1:], 5))
        thread.start()
        thread.join(0.2)
        array[5, 1:] = 6
        array[9, 1:] = 7
        assert thread.is_alive()
    thread.join(30)
    assert array[1].tolist() == [0] + [5] * 7
    assert array[5].tolist() == [1] + [6] * 7
    assert array[9].tolist() == [1] + [7] * 7
