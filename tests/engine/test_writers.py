"""Processes and threads that write parts of the same chunks lose nothing, whatever happens to some.

Each begins when all are ready. Of everything, they write more often.
"""

import json
import random
import signal
import sys
import textwrap
import threading

import numpy as np
import pytest
import zarr
from helpers import EVERYTHING, OUR_PIPELINES, run_python, start_program

pytestmark = pytest.mark.needs("fcntl", "os.fork", "signal.alarm")
# Rows, every num-th column, points, boxes, and columns.
WRITES = """
n = array.shape[0] // 5
for r in range(1, rounds + 1):
    value = 100 * r + k
    array[k:n:num] = value
    array[n:2 * n, k::num] = value
    for point in range(0, n, 4):
        array[2 * n + point, (point // 4 + k) % num] = value
    array[3 * n + 8 * k:3 * n + 8 * (k + 1), 3:40] = value
    array[4 * n:, 4 * k] = value
"""
NUM, ROUNDS = 8, 20 if EVERYTHING else 3

# Forks processes that write: a line of standard input says where, what each of them runs, and after
# how many seconds the first ones are killed.
FORKS = """
import json, multiprocessing, os, signal, sys, time
import numpy as np, zarr, numcodecs_bytes.zarr_pipeline
pipeline, num, rounds = sys.argv[1], *map(int, sys.argv[2:])
zarr.config.set({
    "codec_pipeline.path": pipeline, "numcodecs_bytes.write_in_place": "require",
    "threading.max_workers": 2,
})
fork = multiprocessing.get_context("fork")

def write(path, code, k, ready, begin):
    signal.alarm(120)
    os.close(begin[1])
    array = zarr.open_array(path, mode="r+")
    os.write(ready[1], b".")
    # Until all others have closed their end. Not a Barrier: while they leave it, processes hold its
    # lock, and if one is killed then, the others wait for ever.
    os.read(begin[0], 1)
    exec(code, globals() | {"path": path, "array": array, "k": k})

for line in sys.stdin:
    path, code, seconds = json.loads(line)
    ready, begin = os.pipe(), os.pipe()
    arguments = [(path, code, k, ready, begin) for k in range(num)]
    writers = [fork.Process(target=write, args=each) for each in arguments]
    for writer in writers:
        writer.start()
    for _ in writers:
        os.read(ready[0], 1)
    os.close(begin[1])
    for k, pause in enumerate(seconds):
        time.sleep(pause)
        writers[k].kill()
    for writer in writers:
        writer.join()
    for descriptor in (*ready, begin[0]):
        os.close(descriptor)
    print(*[writer.exitcode for writer in writers], flush=True)
"""


class Writers:
    """Processes that write at once."""

    def __init__(self, pipeline):
        arguments = ["-W", "ignore", "-c", FORKS, pipeline, NUM, ROUNDS]
        self.program = start_program(*arguments, files=(None, None, sys.__stderr__))

    def write(self, path, code=WRITES, kill_after=()):
        """Return their exit statuses; the first ones are killed after so many seconds each."""
        print(json.dumps([str(path), code, kill_after]), file=self.program.stdin, flush=True)
        return list(map(int, self.program.stdout.readline().split()))


@pytest.fixture(scope="module", params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def writers(request):
    writers = Writers(request.param)
    yield writers
    writers.program.close()


def expected_of(array, ranks):
    data, n = np.full(array.shape, array.fill_value), array.shape[0] // 5
    for k in ranks:
        value = 100 * ROUNDS + k
        data[k:n:NUM] = value
        data[n : 2 * n, k::NUM] = value
        data[np.arange(2 * n, 3 * n, 4), (np.arange(n // 4) + k) % NUM] = value
        data[3 * n + 8 * k : 3 * n + 8 * (k + 1), 3:40] = value
        data[4 * n :, 4 * k] = value
    return data


SETTINGS = {
    "plain": {},
    "missing": {},
    "shards": {"chunks": (32, 16), "shards": (160, 64)},
    "growing shards": {"chunks": (32, 16), "shards": (160, 64), "fill_value": 1.5},
}


def create(path, kind):
    """Return an array of two chunks, or of two shards that have one of their inner chunks."""
    settings = {"compressors": None, "filters": None, "chunks": (160, 64), **SETTINGS[kind]}
    array = zarr.create_array(path, shape=(320, 64), dtype="f8", **settings)
    if kind != "missing":
        array[0, 0] = array[160, 0] = 1
    return array


@pytest.mark.parametrize("kind", SETTINGS)
def test_many_processes_lose_nothing(tmp_path, writers, kind):
    """Of chunks that all share; who writes every 8th column begins beside writers of rows."""
    array = create(tmp_path, kind)
    assert writers.write(tmp_path) == [0] * NUM
    assert np.array_equal(array[...], expected_of(array, range(NUM)))
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.usefixtures("_in_place")
def test_many_threads_lose_nothing(tmp_path):
    array = create(tmp_path, "growing shards")
    names = {"array": array, "np": np, "zarr": zarr, "num": NUM, "rounds": ROUNDS}
    threads = [threading.Thread(target=exec, args=(WRITES, names | {"k": k})) for k in range(NUM)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(array[...], expected_of(array, range(NUM)))


CREATE = """
for chunk in range(array.shape[0] // 8):
    array[8 * chunk + k, 1:] = k + 1
"""


@pytest.mark.parametrize("shards", [None, (8, 16)], ids=["chunks", "shards"])
def test_many_processes_create_the_same_chunks(tmp_path, writers, shards):
    """Many of them: each one of the eight rows is written."""
    num, chunks = 1000 if EVERYTHING else 50, (4, 8) if shards else (8, 16)
    settings = {"chunks": chunks, "shards": shards, "dtype": "i4", "compressors": None}
    array = zarr.create_array(tmp_path, shape=(8 * num, 16), **settings)
    assert writers.write(tmp_path, CREATE) == [0] * NUM
    assert (array[:, 0] == 0).all()
    assert (array[:, 1:].reshape(num, 8, 15) == np.arange(1, 9)[:, np.newaxis]).all()
    assert not list(tmp_path.rglob("*.partial"))


# Those that are killed write until then.
KILLED = f"while True:\n{textwrap.indent(WRITES, '    ')}\n    if k > 1:\n        break"


@pytest.mark.parametrize("seed", range(3 if EVERYTHING else 1))
@pytest.mark.parametrize("kind", ["missing", "growing shards"])
def test_killed_writers_harm_nobody(tmp_path, writers, seed, kind):
    """Nothing half-made has the name of a chunk, and those who go on lose nothing."""
    rng, array = random.Random(seed), create(tmp_path, kind)  # noqa: S311
    kill_after = [rng.random() * 0.05 for _ in range(2)]
    statuses = writers.write(tmp_path, KILLED, kill_after)
    assert statuses == [-signal.SIGKILL] * 2 + [0] * (NUM - 2)
    data, expected = array[...], expected_of(array, range(NUM))
    of_killed = expected_of(array, (0, 1)) != expected_of(array, ())
    assert np.array_equal(data[~of_killed & (data != 1)], expected[~of_killed & (data != 1)])
    assert set(np.unique(data[of_killed] % 100).tolist()) <= {0.0, 1.0, 1.5}
    names = [p for p in tmp_path.rglob("c/*/*") if p.suffix != ".partial"]
    assert len(names) == 2
    assert len(list(tmp_path.rglob("*.partial"))) <= 2


START = """
import atexit, os, signal, sys, threading, time, zarr
zarr.config.set({"codec_pipeline.path": sys.argv[2], "numcodecs_bytes.write_in_place": "require"})
array = zarr.open_array(sys.argv[1], mode="r+")
array[1, 1:] = 5
"""
LATER = """
if os.fork() == 0:
    zarr.open_array(sys.argv[1], mode="r+")[2, 1:] = 6
    sys.exit()
assert os.wait()[1] == 0
array[3, 1:] = 7
atexit.register(lambda: array.__setitem__((4, slice(1, None)), 8))
"""


def test_a_program_that_writes_after_a_fork_and_while_it_ends(tmp_path, our_pipeline):
    array, options = create(tmp_path, "plain"), {"timeout": 60}
    run_python("-W", "ignore", "-c", START + LATER, tmp_path, our_pipeline, options=options)
    assert array[1:5, 1:].tolist() == [[k] * 63 for k in range(5, 9)]


WAITING = """
import fcntl
file = open(sys.argv[1] + "/c/0/0", "rb")
fcntl.flock(file, fcntl.LOCK_EX)  # as another process would

def interrupt(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt

def press():
    # Again and again: if a signal arrives just before the main thread waits, CPython raises
    # KeyboardInterrupt only after the wait, or when another signal ends it.
    while True:
        time.sleep(0.8)  # then all wait
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, interrupt)
part = (1, slice(1, None))
threads = [threading.Thread(target=array.__setitem__, args=(part, 6)) for _ in range(40)]
for thread in threads:
    thread.start()
threading.Thread(target=press, daemon=True).start()
array[2, 1:] = 6
"""


def test_an_interrupt_ends_many_that_wait(tmp_path, our_pipeline):
    array, options = create(tmp_path, "plain"), {"timeout": 60}
    arguments = "-c", START + WAITING, tmp_path, our_pipeline
    errors = run_python(*arguments, status=None, options=options).stderr
    assert "KeyboardInterrupt" in errors
    assert "the program ended while a write waited to lock chunk 'c/0/0'" in errors
    assert array[1:3, 1:].tolist() == [[5] * 63, [0] * 63]
