"""Processes and threads that write parts of the same chunks lose nothing, whatever happens to some.

Each starts when all are ready. Of everything, there are more of them, and they write more often.
"""

import contextlib
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import zarr
import zarr.codecs
from helpers import EVERYTHING, OUR_PIPELINES, run_python, start_program
from zarr.codecs import TransposeCodec

from numcodecs_bytes.zarr import BytesCodec

IN_PLACE = {"numcodecs_bytes.write_in_place": "require"}
BY_PIPELINE = pytest.mark.parametrize(
    "pipeline", OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1]
)
READY = """
import os, sys, time, numpy as np, zarr
path, pipeline, k, num, rounds = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
zarr.config.set({
    "codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require",
    "threading.max_workers": 2,
})
array = zarr.open_array(path, mode="r+")
print("ready", flush=True)
sys.stdin.readline()
"""
# Rows, every num-th column, points, boxes, and columns.
WRITES = """
n = array.shape[0] // 5
for r in range(1, rounds + 1):
    value = 100 * r + k
    array[k:n:num] = value
    array[n:2 * n, k::num] = value
    if not array.shards or r == rounds:
        points = np.arange(2 * n, 3 * n), (np.arange(n) + k) % num
        for row, column in zip(*points) if HAS_NO_POINTS else ():
            array[row, column] = value
        if not HAS_NO_POINTS:
            array.vindex[points] = value
    array[3 * n + 8 * k:3 * n + 8 * (k + 1), 3:40] = value
    array[4 * n:, 4 * k] = value
"""
NUM, ROUNDS = (8, 20) if EVERYTHING else (8, 3)
# zarr 3.1.6 writes no points to shards.
WRITES = WRITES.replace(
    "HAS_NO_POINTS", "(array.shards is not None and not hasattr(zarr.dtype, 'Struct'))"
)


@contextlib.contextmanager
def writing(path, pipeline, code=WRITES):
    """Start processes that write at once; end them if they have not ended."""
    command = ["-c", READY + code, path, pipeline]
    writers = [
        start_program(*command, k, NUM, ROUNDS, files=(None, None, sys.__stderr__))
        for k in range(NUM)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        yield writers
    finally:
        for writer in writers:
            writer.close()


def expected_of(array, ranks):
    data, n = np.full(array.shape, array.fill_value), array.shape[0] // 5
    for k in ranks:
        value = 100 * ROUNDS + k
        data[k:n:NUM] = value
        data[n : 2 * n, k::NUM] = value
        data[np.arange(2 * n, 3 * n), (np.arange(n) + k) % NUM] = value
        data[3 * n + 8 * k : 3 * n + 8 * (k + 1), 3:40] = value
        data[4 * n :, 4 * k] = value
    return data


SETTINGS = {
    "plain": {},
    "v2": {"zarr_format": 2},
    "order F": {"zarr_format": 2, "order": "F"},
    "transposed": {
        "filters": [TransposeCodec(order=(1, 0))],
        "serializer": BytesCodec(endian="big"),
    },
    "missing": {},
    "shards": {"chunks": (32, 16), "shards": (160, 64)},
    "missing shards": {"chunks": (32, 16), "shards": (160, 64)},
    "growing shards": {"chunks": (32, 16), "shards": (160, 64), "fill_value": 1.5},
}


def create(path, kind):
    """Return an array of two chunks, or of two shards that have one of their inner chunks."""
    settings = {"compressors": None, "filters": None, "chunks": (160, 64), **SETTINGS[kind]}
    array = zarr.create_array(path, shape=(320, 64), dtype="f8", **settings)
    if "missing" not in kind:
        array[0, 0] = array[160, 0] = 1
    return array


@BY_PIPELINE
@pytest.mark.parametrize("kind", SETTINGS)
def test_many_processes_lose_nothing(tmp_path, pipeline, kind):
    """Of chunks that all share; who writes every 8th column begins beside writers of rows."""
    array = create(tmp_path, kind)
    with writing(tmp_path, pipeline) as writers:
        assert [writer.wait(120) for writer in writers] == [0] * NUM
    assert np.array_equal(array[...], expected_of(array, range(NUM)))
    assert not list(tmp_path.rglob("*.partial"))


@BY_PIPELINE
@pytest.mark.parametrize("kind", ["missing", "growing shards"])
def test_many_threads_lose_nothing(tmp_path, pipeline, kind):
    with zarr.config.set({"codec_pipeline.path": pipeline, **IN_PLACE}):
        array = create(tmp_path, kind)
        names = {"array": array, "np": np, "zarr": zarr, "num": NUM, "rounds": ROUNDS}
        threads = [
            threading.Thread(target=exec, args=(WRITES, names | {"k": k})) for k in range(NUM)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert np.array_equal(array[...], expected_of(array, range(NUM)))


CREATE = """
for chunk in range(array.shape[0] // 8):
    array[8 * chunk + k, 1:] = k + 1
"""


@BY_PIPELINE
@pytest.mark.parametrize("shards", [None, (8, 16)], ids=["chunks", "shards"])
def test_many_processes_create_the_same_chunks(tmp_path, pipeline, shards):
    """A thousand of them: each one of the eight rows is written."""
    num = 1000 if EVERYTHING else 250
    array = zarr.create_array(
        tmp_path,
        shape=(8 * num, 16),
        chunks=(4, 8) if shards else (8, 16),
        shards=shards,
        dtype="i4",
        compressors=None,
    )
    with writing(tmp_path, pipeline, CREATE) as writers:
        assert [writer.wait(120) for writer in writers] == [0] * NUM
    assert (array[:, 0] == 0).all()
    assert (array[:, 1:].reshape(num, 8, 15) == np.arange(1, 9)[:, np.newaxis]).all()
    assert not list(tmp_path.rglob("*.partial"))


@BY_PIPELINE
@pytest.mark.parametrize("seed", range(10 if EVERYTHING else 1))
@pytest.mark.parametrize("kind", ["missing", "missing shards", "growing shards"])
def test_killed_writers_harm_nobody(tmp_path, pipeline, seed, kind):
    """Nothing half-made has the name of a chunk, and those who go on lose nothing."""
    rng, array = random.Random(seed), create(tmp_path, kind)  # noqa: S311
    with writing(tmp_path, pipeline) as writers:
        for k in (0, 1):
            time.sleep(rng.random() * 0.05)
            writers[k].kill()
        assert [writer.wait(120) for writer in writers[2:]] == [0] * (NUM - 2)
    data, expected = array[...], expected_of(array, range(NUM))
    of_killed = expected_of(array, (0, 1)) != expected_of(array, ())
    assert np.array_equal(data[~of_killed & (data != 1)], expected[~of_killed & (data != 1)])
    assert set(np.unique(data[of_killed] % 100).tolist()) <= {0.0, 1.0, 1.5}
    names = [p for p in tmp_path.rglob("c/*/*") if p.suffix != ".partial"]
    assert len(names) == 2
    assert len(list(tmp_path.rglob("*.partial"))) <= 2


@BY_PIPELINE
def test_a_copy_of_hard_links_keeps_what_it_holds(tmp_path, pipeline):
    """All writers are refused, and nothing is changed."""
    array = create(tmp_path / "a", "plain")
    shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=os.link)
    before = array[...]
    code = "try:\n    array[k, 1:] = 5\nexcept RuntimeError as e:\n    print(e, flush=True)"
    with writing(tmp_path / "a", pipeline, code) as writers:
        for writer in writers:
            assert "it has another name (a hard link)" in writer.stdout.readline()
            writer.wait(60)
    for name in ("a", "copy"):
        assert np.array_equal(zarr.open_array(tmp_path / name)[...], before)


@BY_PIPELINE
def test_a_writer_of_strides_beside_six_of_rows(tmp_path, pipeline):
    """It has its turn, again and again, while the others never stop."""
    array = create(tmp_path, "plain")
    code = """
if k == 7:
    for r in range(20):
        array[:160, ::2] = r
    open(path + "/done", "w").close()
until = time.monotonic() + 60
while k < 6 and not os.path.exists(path + "/done"):
    assert time.monotonic() < until
    for _ in range(20):
        array[k, 1:] = k
"""
    with writing(tmp_path, pipeline, code) as writers:
        assert [writer.wait(120) for writer in writers] == [0] * NUM
    assert (array[6:160, ::2] == 19).all()


def test_reads_meanwhile_see_old_or_new(tmp_path):
    array = zarr.create_array(
        tmp_path, shape=(256, 256), chunks=(256, 256), dtype="f8", compressors=None
    )
    array[...] = 1
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.update(np.unique(array[...]).tolist())

    thread = threading.Thread(target=read)
    thread.start()
    with zarr.config.set(IN_PLACE):
        for k in range(2, 40):
            array[:, 1::2] = k
            array[3, 1:] = k
    stop.set()
    thread.join()
    assert seen <= set(map(float, range(1, 40)))


@contextlib.contextmanager
def small_disk(folder):
    """Mount a disk of 1 MiB."""
    folder.mkdir()
    mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a small disk")
    try:
        yield
    finally:
        subprocess.run([shutil.which("umount"), str(folder)], check=True)


@BY_PIPELINE
@pytest.mark.parametrize("fill_value", [0.0, 1.5])
@pytest.mark.parametrize("shards", [None, (1 << 19,)], ids=["chunks", "shards"])
def test_a_full_disk(tmp_path, pipeline, shards, fill_value):
    """Zeros take no space until they are written; nothing that was written is lost."""
    chunks = (1 << 12,) if shards else (1 << 19,)
    options = {"codec_pipeline.path": pipeline, **IN_PLACE}
    with small_disk(tmp_path / "disk"), zarr.config.set(options):
        array = zarr.create_array(
            tmp_path / "disk/a",
            shape=(1 << 19,),
            chunks=chunks,
            shards=shards,
            dtype="f8",
            compressors=None,
            fill_value=fill_value,
        )
        if fill_value and not shards:
            with pytest.raises(OSError, match="No space"):
                array[:1000] = 1
            assert not [p for p in (tmp_path / "disk").rglob("c/*") if p.is_file()]
            return
        array[:1000] = 1
        with pytest.raises(OSError, match="No space"):
            array[1000 : 1 << 18] = 2
        (chunk,) = [p for p in (tmp_path / "disk/a").rglob("c/*") if p.is_file()]
        assert chunk.name == "0"
        assert (array[:1000] == 1).all()
        assert set(np.unique(array[1000:])) <= {fill_value, 2.0}


START = """
import atexit, os, signal, sys, threading, zarr
zarr.config.set({"codec_pipeline.path": sys.argv[2], "numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
array[1, 1:] = 5
"""
AT_EXIT = "atexit.register(lambda: array.__setitem__((2, slice(1, None)), 6))"
FORKED = """
if os.fork() == 0:
    try:
        zarr.open_array(sys.argv[1], mode="r+")[2, 1:] = 6
    finally:
        os._exit(0)
os.wait()
array[1, 1:] = 5
"""


@BY_PIPELINE
@pytest.mark.parametrize("code", [AT_EXIT, FORKED], ids=["while it ends", "forked"])
def test_a_program_that_writes_later(tmp_path, pipeline, code):
    if code == FORKED and not hasattr(zarr.core.sync, "reset_resources_after_fork"):
        pytest.skip("this zarr can't fork")
    array = create(tmp_path, "plain")
    options = {"timeout": 60, "capture_output": True, "text": True}
    run_python("-W", "ignore", "-c", START + code, tmp_path, pipeline, options=options)
    assert array[1:3, 1:].tolist() == [[5] * 63, [6] * 63]


WAITING = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background
print("ready", flush=True)
sys.stdin.readline()
part = (1, slice(1, None))
threads = [threading.Thread(target=array.__setitem__, args=(part, 6)) for _ in range(200)]
for thread in threads:
    thread.start()
print("waiting", flush=True)
array[2, 1:] = 6
"""


@BY_PIPELINE
def test_an_interrupt_ends_many_that_wait(tmp_path, pipeline):
    array, pipe = create(tmp_path, "plain"), subprocess.PIPE
    program = subprocess.Popen(
        [sys.executable, "-c", START + WAITING, str(tmp_path), pipeline],
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    try:
        assert program.stdout.readline() == "ready\n"
        before = array[...]
        with (tmp_path / "c/0/0").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            program.stdin.write("go\n")
            program.stdin.flush()
            assert program.stdout.readline() == "waiting\n"
            time.sleep(0.2)
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=30)
    finally:
        program.kill()
    assert "KeyboardInterrupt" in errors
    assert "the program ended while a write waited to lock chunk 'c/0/0'" in errors
    assert np.array_equal(array[...], before)
