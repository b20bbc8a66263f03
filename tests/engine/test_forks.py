"""A child process works, whatever other threads of its parent were doing when it was forked."""

import pytest
import zarr.core.codec_pipeline
from helpers import EVERYTHING, run_python

pytestmark = pytest.mark.needs("os.fork")
# A thread stops at each line where it may hold something (and at some other lines, which change as
# the code does), and the main thread forks: the child must not wait for it.
PROGRAM = """
import ast, functools, logging, os, pathlib, signal, sys, threading, traceback
import numpy as np, zarr, numcodecs_bytes

class Named(zarr.storage.MemoryStore):
    pass

logging.disable()  # a write that has been stopped for seconds says that it waits
folder, pipeline = sys.argv[1:3]
OTHERS = int(sys.argv[3])  # one line of so many
zarr.config.set({
    "codec_pipeline.path": pipeline,
    "numcodecs_bytes.write_in_place": True,
    "numcodecs_bytes.stores_with_ranges": [Named],
})
PACKAGE = str(pathlib.Path(numcodecs_bytes.__file__).parent)
is_armed, stops, place = False, set(), None
has_stopped, go_on, alone = threading.Semaphore(0), threading.Semaphore(0), threading.Lock()

@functools.cache
def lines_in_with(file):
    nodes = ast.walk(ast.parse(pathlib.Path(file).read_text()))
    found = [node for node in nodes if isinstance(node, ast.With | ast.AsyncWith)]
    return {line for node in found for line in range(node.body[0].lineno, node.end_lineno + 1)}

def may_hold(frame):
    # A property that is cached has a lock on Python 3.11.
    is_cached = frame.f_back and frame.f_back.f_code.co_filename == functools.__file__
    return is_cached or frame.f_lineno in lines_in_with(frame.f_code.co_filename)

def stop(frame, event, _):
    global place
    line = frame.f_code.co_filename, frame.f_lineno
    if is_armed and line not in stops and (not line[1] % OTHERS or may_hold(frame)):
        with alone:
            stops.add(line)
            place = line
            has_stopped.release()
            go_on.acquire()
    return stop

def trace(frame, *_):
    return stop if frame.f_code.co_filename.startswith(PACKAGE) else None

def make(name, size):
    stores = []
    for more in ({"chunks": (4, size)}, {"chunks": (2, size), "shards": (4, size)}):
        settings = {"shape": (8, size), "dtype": ">i4", "compressors": None, **more}
        for store in (f"{folder}/{name}/{len(stores)}", Named()):
            zarr.create_array(store, **settings)[:3] = 1
            stores.append(store)
    return stores

def use(stores, size):
    data = np.arange(8 * size).reshape(8, size)
    with numcodecs_bytes.trace() as trace:
        for store in stores:
            array = zarr.open_array(store)
            array[1:] = data[1:]
            assert (array[1:, 2] == data[1:, 2]).all()
            assert (array[1, 2:] == data[1, 2:]).all()
    assert len(trace.report()["arrays"]) == 4, trace

def use_and_stop():
    global place
    use(make("parent", 90), 90)
    place = None
    has_stopped.release()

threading.settrace(trace)  # of all threads that are started from now on
stores = make("child", 80)
use(stores, 80)  # imports everything
is_armed = True
threading.Thread(target=use_and_stop).start()
while has_stopped.acquire(timeout=60) and place:
    child = os.fork()
    if not child:
        threading.settrace(None)
        is_armed = False
        signal.alarm(20)
        try:
            use(stores, 80)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(f"a child failed with status {status} when a thread was at {place}", flush=True)
        os._exit(1)
    go_on.release()
print(len(stops))
"""


def skip_unless_pipeline_survives_forks(pipeline):
    has_reset = hasattr(zarr.core.codec_pipeline, "_reset_pool_after_fork")
    if pipeline.endswith("FusedBytesPipeline") and not has_reset:  # before zarr 3.4.2
        pytest.skip("the threads of this zarr's fused pipeline are missing in a child")


def test_while_another_thread_is_in_the_package(tmp_path, our_pipeline):
    """It found the lock of traces taken."""
    skip_unless_pipeline_survives_forks(our_pipeline)
    arguments = "-W", "ignore", "-c", PROGRAM, tmp_path, our_pipeline, 4 if EVERYTHING else 40
    done = run_python(*arguments, status=None)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert int(done.stdout) > 20


# Children read an archive, whatever its readers in the parent do: two threads read it all the time,
# or one has stopped while zarr reads a compressed chunk.
ZIPPED = """
import os, signal, sys, threading, traceback, zipfile
import numpy as np, zarr
from numcodecs_bytes import SyncReader

path, pipeline, how, num_children = sys.argv[1:]
zarr.config.set({"codec_pipeline.path": pipeline})
data = np.arange(64 * 64).reshape(64, 64)
with zarr.storage.ZipStore(path, mode="w") as store:
    for name, more in {"plain": {"compressors": None}, "compressed": {}}.items():
        zarr.create_array(store, name=name, data=data, chunks=(16, 64), **more)
group = zarr.open_group(zarr.storage.ZipStore(path, mode="r"), mode="r")
array, compressed = group["plain"], group["compressed"]
reader, has_stopped, read = SyncReader(array), threading.Event(), zipfile.ZipExtFile.read

def check(k):
    assert (array[:, k] == data[:, k]).all()
    assert (array[16:32] == data[16:32]).all()
    assert (reader[k] == data[k]).all()

def stop(*args):
    has_stopped.set()
    threading.Event().wait()

def read_for_ever():
    while True:
        check(7)

check(3)
if how == "stopped":
    zipfile.ZipExtFile.read = stop
    threading.Thread(target=compressed.__getitem__, args=(0,), daemon=True).start()
    has_stopped.wait()
else:
    for _ in range(2):
        threading.Thread(target=read_for_ever, daemon=True).start()
for k in range(int(num_children)):
    child = os.fork()
    if not child:
        zipfile.ZipExtFile.read = read
        signal.alarm(20)
        try:
            check(k)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        print(f"child {k} failed with status {status}", flush=True)
        os._exit(1)
os._exit(0)
"""


@pytest.mark.needs("os.pread")
@pytest.mark.parametrize("how", ["reading", "stopped"])
def test_while_other_threads_read_a_zip_archive(tmp_path, our_pipeline, how):
    """A child waited for zarr's lock of the store, which a thread held: it hung."""
    skip_unless_pipeline_survives_forks(our_pipeline)
    num = 40 if EVERYTHING else 10
    arguments = "-W", "ignore", "-c", ZIPPED, tmp_path / "a.zip", our_pipeline, how, num
    done = run_python(*arguments, status=None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
