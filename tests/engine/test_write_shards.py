"""Parts of inner chunks are written in place: in complete, compact, unusual and missing shards."""

import errno
import itertools
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.codecs
from helpers import ZARR_ALONE, module_or_none, run_program
from zarr.codecs import ShardingCodec

import numcodecs_bytes
from numcodecs_bytes.zarr_codec import BytesCodec

fcntl = module_or_none("fcntl")
MISSING = -1  # offset and length
DATA = np.arange(1.0, 65).reshape(8, 8)
HALF = np.concatenate([np.zeros((4, 8)), DATA[4:]])
pytestmark = pytest.mark.usefixtures("_in_place")


def create(path, shape=(8, 8), chunks=(4, 4), fill_value=0, **settings):
    """Return an array of one shard, with these settings of its codec."""
    return zarr.create_array(
        path,
        shape=shape,
        chunks=shape,
        dtype="f8",
        serializer=ShardingCodec(chunk_shape=chunks, codecs=[BytesCodec()], **settings),
        compressors=None,
        fill_value=fill_value,
    )


class Alone:
    """An array that zarr alone reads and writes."""

    def __init__(self, path):
        self._path = path

    def __getitem__(self, selection):
        with zarr.config.set(ZARR_ALONE):
            return zarr.open_array(self._path, mode="r")[selection]

    def __setitem__(self, selection, values):
        with zarr.config.set(ZARR_ALONE):
            zarr.open_array(self._path, mode="r+")[selection] = values


def create_half(path, **settings):
    """Return an array of a shard to which zarr has written only the last two inner chunks."""
    array = create(path, **settings)
    Alone(path)[4:] = DATA[4:]
    return array


def index_of(raw, end=None):
    """Return the offsets and lengths in the index of four inner chunks, which ends there."""
    end = len(raw) if end is None else end
    return np.frombuffer(raw, "<i8", 8, end - 64).reshape(4, 2)


class TestComplete:
    @pytest.mark.needs("fcntl")
    def test_only_the_selected_bytes_are_written(self, tmp_path, written):
        """And as the same bytes as by zarr alone, which rewrites all of it."""
        array = create(tmp_path / "a")
        create(tmp_path / "b")
        Alone(tmp_path / "a")[...] = Alone(tmp_path / "b")[...] = DATA
        with numcodecs_bytes.trace() as traced:
            array[3:5, 2:5] = -1
        found = [
            (lock, position, len(raw)) for kind, lock, position, raw in written if kind == "write"
        ]
        # In Morton order: (0, 0), (1, 0), (0, 1), (1, 1), of 128 bytes each.
        places = [(112, 16), (128 + 16, 16), (256 + 96, 8), (384, 8)]
        assert sorted(found) == [("shared", *place) for place in places]
        total = traced.report()["total"]
        assert (total["chunks_in_place"], total["bytes_in_place"]) == (1, 48)
        Alone(tmp_path / "b")[3:5, 2:5] = -1
        assert (tmp_path / "b/c/0/0").read_bytes() == (tmp_path / "a/c/0/0").read_bytes()

    @pytest.mark.needs("fcntl")
    def test_what_changes_nothing_is_not_counted(self, tmp_path):
        """The fill value, written to an inner chunk that is missing, was."""
        array = create(tmp_path / "a")
        Alone(tmp_path / "a")[:4, :4] = 1  # zarr stores one inner chunk
        before = (tmp_path / "a/c/0/0").read_bytes()
        with numcodecs_bytes.trace() as traced:
            array[5, 5] = array.fill_value
        assert (tmp_path / "a/c/0/0").read_bytes() == before
        assert traced.report()["total"]["chunks_in_place"] == 0

    @pytest.mark.needs("fcntl")
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


@pytest.mark.needs("fcntl")
class TestCompact:
    @pytest.mark.parametrize(("location", "first", "end"), [("end", 0, -4), ("start", 68, 64)])
    @pytest.mark.parametrize("fill_value", [0.0, 7.0])
    def test_what_is_there_stays_and_what_is_missing_follows(
        self, tmp_path, location, first, end, fill_value
    ):
        """So whoever has read the old index reads the same in the new file."""
        array = create_half(tmp_path, fill_value=fill_value, index_location=location)
        shard = tmp_path / "c/0/0"
        before, inode = shard.read_bytes(), shard.stat().st_ino
        old = index_of(before, end % len(before))
        array[6, 6] = -1  # there: nothing moves
        after = shard.read_bytes()
        assert np.array_equal(index_of(after, end % len(after)), old)
        assert shard.stat().st_ino == inode
        array[1, 5:7] = [-2, -3]
        after = shard.read_bytes()
        new = index_of(after, end % len(after))
        assert old[:2].tolist() == [[MISSING] * 2] * 2
        assert new[2:].tolist() == old[2:].tolist()
        assert sorted(new[:2].tolist()) == [[first + 256, 128], [first + 384, 128]]
        assert len(after) == 4 * 128 + 68
        expected = np.full((8, 8), fill_value)
        expected[4:], expected[6, 6], expected[1, 5:7] = DATA[4:], -1, [-2, -3]
        assert np.array_equal(Alone(tmp_path)[...], expected)
        assert [path.name for path in shard.parent.iterdir()] == ["0"]

    def test_fill_values_complete_nothing(self, tmp_path):
        array = create_half(tmp_path)
        before = (tmp_path / "c/0/0").read_bytes()
        array[:4, 1:] = 0
        assert (tmp_path / "c/0/0").read_bytes() == before
        array[2:6, 1:] = np.array([0, 0, 5, 5])[:, np.newaxis]  # of which some are there
        assert (tmp_path / "c/0/0").stat().st_size == len(before)
        expected = HALF.copy()
        expected[4:6, 1:] = 5
        assert np.array_equal(Alone(tmp_path)[...], expected)


class TestOtherFillValues:
    """What is not zero takes space: a shard grows as it is written, but not each time."""

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("others_write", [False, True])
    def test_it_doubles(self, tmp_path, others_write):
        """zarr reads it at every stage, and may write on."""
        array = create(tmp_path, (16, 16), fill_value=np.nan)
        expected, sizes = np.full((16, 16), np.nan), []
        for k in range(16):
            part = np.s_[4 * (k // 4) + 1, 4 * (k % 4) : 4 * (k % 4) + 3]
            expected[part] = k
            (Alone(tmp_path) if others_write and k % 2 else array)[part] = k
            sizes.append(((tmp_path / "c/0/0").stat().st_size - 260) // 128)
            assert np.array_equal(Alone(tmp_path)[...], expected, equal_nan=True)
        assert sizes[0] == 1
        assert sizes[-1] == 16
        assert all(size <= 2 * (k + 1) for k, size in enumerate(sizes))
        assert others_write or len(set(sizes)) <= 6


UNUSUAL = {  # row and column in the index, and what is added there
    "overlap": (1, 0, -192),
    "another length": (3, 1, -8),
    "beyond the shard": (2, 0, 1 << 40),
    "in the index": (3, 0, 60),
}


class TestUnusual:
    """Each is left to zarr, or refused; a damaged index is never written over."""

    @pytest.fixture
    def array(self, tmp_path):
        array = create(tmp_path, index_codecs=[BytesCodec()])
        Alone(tmp_path)[...] = DATA
        return array

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("unusual", UNUSUAL)
    def test_its_index_says_so(self, tmp_path, array, unusual):
        row, column, difference = UNUSUAL[unusual]
        shard = tmp_path / "c/0/0"
        raw = bytearray(shard.read_bytes())
        index_of(raw)[row, column] += difference
        shard.write_bytes(raw)
        message = (
            r"c/0/0.* in place: its index is unusual.*restore it.*write nothing to it.*require"
        )
        with pytest.raises(RuntimeError, match=message):
            array[0, 1:3] = -1
        assert shard.read_bytes() == raw

    @pytest.mark.parametrize("mode", [True, "require"])
    def test_a_damaged_index_stays(self, tmp_path, mode):
        create(tmp_path)
        Alone(tmp_path)[...] = DATA
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

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("name", ["pwrite", "replace"])
    def test_a_full_disk(self, tmp_path, monkeypatch, name):
        """Nothing is left, and nothing lost."""
        array = create_half(tmp_path)
        before = (tmp_path / "c/0/0").read_bytes()

        def full(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, name, full)
        with pytest.raises(OSError, match="No space left") as caught:
            array[1, 5:7] = 3
        assert "while writing chunk 'c/0/0'" in caught.value.__notes__[0]
        assert (tmp_path / "c/0/0").read_bytes() == before
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]


class Paused:
    """A write that completes a shard, and waits at a moment of that."""

    def __init__(self, monkeypatch, array, owner, name, number):
        reached, self._may_go_on = threading.Event(), threading.Event()
        function, calls = getattr(owner, name), itertools.count()

        def pause(*args, **kwargs):
            if threading.current_thread().name.startswith("numcodecs_bytes_writes"):
                path = str(args[0])
                if isinstance(args[0], int):
                    path = str(Path(f"/proc/self/fd/{args[0]}").readlink())
                if "/c/0" in path and next(calls) == number:
                    reached.set()
                    assert self._may_go_on.wait(30)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, pause)
        self._write = ThreadPoolExecutor(1).submit(array.__setitem__, np.s_[1, 5:7], [-2, -3])
        assert reached.wait(30)

    def finish(self):
        self._may_go_on.set()
        self._write.result()


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


@pytest.mark.needs("fcntl")
@pytest.mark.parametrize("moment", MOMENTS)
class TestPauses:
    """Somebody else does something at a moment of a completion."""

    @pytest.fixture
    def array(self, tmp_path):
        return create_half(tmp_path)

    @pytest.mark.parametrize("part", [np.s_[6, 1:4], np.s_[2, 1:4]], ids=["there", "missing"])
    def test_a_writer_in_place(self, tmp_path, array, monkeypatch, moment, part):
        paused, expected = Paused(monkeypatch, array, *MOMENTS[moment]), HALF.copy()
        assert np.array_equal(Alone(tmp_path)[...], expected)
        other = threading.Thread(target=array.__setitem__, args=(part, 9))
        other.start()
        other.join(0.05)
        paused.finish()
        other.join()
        expected[1, 5:7], expected[part] = [-2, -3], 9
        assert np.array_equal(Alone(tmp_path)[...], expected)
        assert [path.name for path in (tmp_path / "c/0").iterdir()] == ["0"]

    def test_it_is_replaced_by_zarr(self, tmp_path, array, monkeypatch, moment):
        """Who takes no lock: what it wrote is lost if the rename follows at once, and only then."""
        paused = Paused(monkeypatch, array, *MOMENTS[moment])
        Alone(tmp_path)[4:] = 2 * DATA[4:]
        paused.finish()
        found = Alone(tmp_path)[...]
        assert found[1, 5:7].tolist() == [-2, -3]
        found[1, 5:7] = 0
        assert (found[:4] == 0).all()
        if moment != "before the rename":
            assert np.array_equal(found[4:], 2 * DATA[4:])


KILLED = """
import fcntl, json, os, sys, zarr, numcodecs_bytes.zarr_pipeline
zarr.config.set({"codec_pipeline.path": sys.argv[1], "numcodecs_bytes.write_in_place": "require"})

def write(path, owner, name, number):
    owner = {"os": os, "fcntl": fcntl}[owner]
    function, left = getattr(owner, name), [number]
    def stop(*args, **kwargs):
        found = os.readlink(f"/proc/self/fd/{args[0]}") if type(args[0]) is int else str(args[0])
        if "/c/0" in found:
            if not left[0]:
                os.kill(os.getpid(), 9)
            left[0] -= 1
        return function(*args, **kwargs)
    setattr(owner, name, stop)
    zarr.open_array(path, mode="r+")[1, 5:7] = [-2, -3]

for arguments in json.loads(sys.argv[2]):
    if os.fork() == 0:
        write(*arguments)
        sys.exit()
    assert os.wait()[1] == 9, arguments
"""


@pytest.mark.needs("fcntl")
def test_a_writer_that_is_killed_at_any_moment_harms_nobody(tmp_path, our_pipeline):
    """At most, it leaves a stray file."""
    paths = [tmp_path / str(k) for k in range(len(MOMENTS))]
    arrays = list(map(create_half, paths))
    moments = [
        (str(path), owner.__name__, name, number)
        for path, (owner, name, number) in zip(paths, MOMENTS.values(), strict=True)
    ]
    run_program("-W", "ignore", "-c", KILLED, our_pipeline, json.dumps(moments))
    for path, array in zip(paths, arrays, strict=True):
        expected = HALF.copy()
        assert np.array_equal(Alone(path)[...], expected)
        array[2, 1:7] = expected[2, 1:7] = 5
        assert np.array_equal(Alone(path)[...], expected)
        others = [p.suffix for p in (path / "c/0").iterdir() if p.name != "0"]
        assert others in ([], [".partial"])


@pytest.mark.needs("fcntl")
def test_it_waits_for_its_lock_as_long_as_it_must(tmp_path, set_constants):
    """Beside writers of what is there, who share theirs."""
    set_constants(MAX_WAIT_SECONDS=0.01)
    array = create_half(tmp_path)
    with (tmp_path / "c/0/0").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        thread = threading.Thread(target=array.__setitem__, args=(np.s_[1, 1:], 5))
        thread.start()
        thread.join(0.2)
        array[5, 1:] = 6
        assert thread.is_alive()
    thread.join(30)
    assert array[[1, 5], 1:].tolist() == [[5] * 7, [6] * 7]
