"""What installing the package changes, in fresh processes that only import zarr; and leaving it."""

import contextlib
import os
import pickle
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import (
    OUR_PIPELINES,
    PIPELINES,
    WITHOUT_ENTRY_POINTS,
    run_program,
    run_python,
    start_program,
)

import numcodecs_bytes

# One chunk of 32 MiB, or a shard of two inner chunks. Lines of 16 KiB are contiguous.
SHAPE, NAMES = (2048, 4096), ["y", "x"]
LINE_BYTES, ACROSS_BYTES = 300_000, 4_000_000  # what may be read of a line, and of one across them
V2 = {"zarr_format": 2, "filters": None}
KINDS = {
    "v3": {},
    "v2": V2,
    "v2 in order F": V2 | {"order": "F"},
    "v2 with a filter": V2 | {"filters": [numcodecs_bytes.Bytes("little", "<f4")]},
    "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "shards": {"shards": SHAPE, "chunks": (1024, 4096)},
}
IN_F = ("v2 in order F", "transposed")
# What the programs begin with: `line` reads a line of 16 KiB, or one across them, and checks it;
# `num_read` returns how many bytes this process has read; `measure` prints how many these take. Of
# several lines across, because more is read from a disk that is busy.
SETUP = """
import sys, zarr
import numpy as np

def num_read():
    with open("/proc/self/io") as io:
        return int(io.readline().split()[1])

def line(array, k, across=False):
    in_f = array.shape[0] == 4096
    found = array[:, k] if in_f != across else array[k]
    expected = np.arange(2048) * 4096 + k if across else np.arange(4096) + k * 4096
    assert np.array_equal(found, expected)

def measure(array):
    counts = [num_read()]
    for k, across in enumerate([False] + [True] * 5):
        line(array, k, across)
        counts.append(num_read())
    along, *across = np.diff(counts)
    print(along, min(across))
"""

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="this system does not count what is read"
)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Return a folder with a group of all kinds of arrays; most of them share one file."""
    folder = tmp_path_factory.mktemp("arrays")
    data = np.arange(np.prod(SHAPE), dtype="<f4").reshape(SHAPE)
    data.tofile(folder / "chunk")
    zarr.create_group(folder / "group")
    for name, options in KINDS.items():
        in_f = name in IN_F
        shape = SHAPE[::-1] if in_f else SHAPE
        settings = {"shape": shape, "chunks": shape, "dtype": "<f4", "compressors": None} | options
        array = zarr.create_array(folder / "group" / name, **settings)
        if name == "shards":
            array[...] = data
            continue
        chunk = folder / "group" / name / ("0.0" if array.metadata.zarr_format == 2 else "c/0/0")
        chunk.parent.mkdir(parents=True, exist_ok=True)
        os.link(folder / "chunk", chunk)
    return folder


def run(program, *arguments, **environment):
    """Run a program that knows the above; return the words that it printed."""
    done = run_program("-W", "ignore", "-c", SETUP + program, *arguments, **environment)
    return done.stdout.split()


def assert_in_part(program, *arguments, **environment):
    """Assert that a program that measures an array reads little."""
    along, across = map(int, run(program, *arguments, **environment)[-2:])
    assert along < LINE_BYTES
    assert across < ACROSS_BYTES


@needs_proc
class TestReadsInPart:
    @pytest.mark.parametrize("kind", KINDS)
    def test_an_array_in_files(self, arrays, kind):
        assert_in_part("measure(zarr.open_array(sys.argv[1]))", arrays / "group" / kind)

    def test_kerchunk_references(self, arrays):
        pytest.importorskip("fsspec")
        program = """
import fsspec
refs = {".zarray": open(sys.argv[1] + "/group/v2/.zarray").read()}
refs["0.0"] = ["file://" + sys.argv[1] + "/chunk", 0, 2048 * 4096 * 4]
files = fsspec.filesystem("reference", fo=refs, remote_protocol="file", asynchronous=True)
measure(zarr.open_array(zarr.storage.FsspecStore(files, read_only=True), mode="r"))
"""
        assert_in_part(program, arrays)

    def test_an_array_that_was_just_created(self, arrays, tmp_path):
        program = """
import os
options = {"shape": (2048, 4096), "chunks": (2048, 4096), "dtype": "<f4", "compressors": None}
array = zarr.create_array(sys.argv[2], **options)
os.makedirs(sys.argv[2] + "/c/0")
os.link(sys.argv[1] + "/chunk", sys.argv[2] + "/c/0/0")
measure(array)
"""
        assert_in_part(program, arrays, tmp_path / "a")

    def test_in_a_group(self, arrays):
        assert_in_part("measure(zarr.open_group(sys.argv[1])['v3'])", arrays / "group")

    @pytest.mark.parametrize(
        ("zarr_format", "names"),
        [(2, {"attributes": {"_ARRAY_DIMENSIONS": NAMES}}), (3, {"dimension_names": NAMES})],
    )
    @pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
    def test_in_consolidated_metadata_and_xarray(self, arrays, tmp_path, zarr_format, names):
        group = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
        settings = {"shape": SHAPE, "chunks": SHAPE, "dtype": "<f4", "compressors": None}
        array = group.create_array("a", **settings, **names)
        chunk = tmp_path / "g/a" / array.metadata.encode_chunk_key((0, 0))
        chunk.parent.mkdir(parents=True, exist_ok=True)
        os.link(arrays / "chunk", chunk)
        zarr.consolidate_metadata(tmp_path / "g")
        assert_in_part("measure(zarr.open_consolidated(sys.argv[1])['a'])", tmp_path / "g")
        pytest.importorskip("xarray")
        program = """
import xarray
measure(xarray.open_zarr(sys.argv[1], chunks=None, mask_and_scale=False)["a"])
"""
        assert_in_part(program, tmp_path / "g")

    def test_with_dask(self, arrays):
        pytest.importorskip("dask.array")
        program = """
import dask, dask.array
dask.config.set(scheduler="sync")
stored = zarr.open_array(sys.argv[1])
lazy = dask.array.from_array(stored, chunks=(8, 4096))
line(lazy, 9)  # imports much
before = num_read()
line(lazy, 7)
print(num_read() - before, 0)
"""
        assert_in_part(program, arrays / "group/v2")

    def test_with_icechunk(self, arrays, tmp_path):
        icechunk = pytest.importorskip("icechunk")
        storage = icechunk.local_filesystem_storage(str(tmp_path))
        session = icechunk.Repository.create(storage).writable_session("main")
        settings = {"shape": SHAPE, "chunks": SHAPE, "dtype": "<f4", "compressors": None}
        zarr.create_array(session.store, **settings)[...] = zarr.open_array(arrays / "group/v3")[
            ...
        ]
        session.commit("a")
        program = """
import icechunk
repository = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
store = repository.readonly_session("main").store
array = zarr.open_array(store, mode="r")
before = num_read()
line(array, 7)
print(num_read() - before, 0)
"""
        assert_in_part(program, tmp_path)

    def test_threads_that_open_their_first_arrays_at_once(self, arrays):
        program = """
import threading
begin, errors = threading.Barrier(16), []
def read(kind):
    begin.wait()
    try:
        line(zarr.open_array(f"{sys.argv[1]}/{kind}"), 7)
    except BaseException as error:
        errors.append(error)
kinds = ["v3", "v2", "shards", "transposed"] * 4
threads = [threading.Thread(target=read, args=(kind,)) for kind in kinds]
before = num_read()
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
print(num_read() - before)
"""
        (num,) = run(program, arrays / "group")  # what is imported is among it
        assert int(num) < 16 << 20

    @pytest.mark.parametrize("kind", ["v2", "v3"])
    def test_in_other_processes(self, arrays, tmp_path, kind):
        """Arrays travel by pickle, and nobody imports the package; or are inherited."""
        (tmp_path / "program.py").write_text(f"""{SETUP}
import multiprocessing, os, warnings
from concurrent.futures import ProcessPoolExecutor

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    array = zarr.open_array(sys.argv[1])
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(measure, array).result()
    line(array, 9)
    if not os.fork():
        measure(array)
        sys.stdout.flush()
        os._exit(0)
    assert os.wait()[1] == 0
""")
        counts = list(
            map(int, run_python(tmp_path / "program.py", arrays / "group" / kind).stdout.split())
        )
        assert len(counts) == 4
        assert max(counts[::2]) < LINE_BYTES
        assert max(counts[1::2]) < ACROSS_BYTES

    def test_two_variables_switch_it_off(self, arrays):
        variables = {
            "ZARR_CODEC_PIPELINE__PATH": PIPELINES[0],
            "ZARR_CODECS__BYTES": "zarr.codecs.bytes.BytesCodec",
        }
        program = """
array = zarr.open_array(sys.argv[1])
measure(array)
for used in (array.async_array.codec_pipeline, array.metadata.codecs[0]):
    assert type(used).__module__.startswith("zarr.")
"""
        assert min(map(int, run(program, arrays / "group/v3", **variables))) > 32 << 20


# In a process that begins so, nothing of the package can be had.
WITHOUT_PACKAGE = "import sys; sys.modules['numcodecs_bytes'] = None" + WITHOUT_ENTRY_POINTS


class TestLeaving:
    """Without the package, nothing that it wrote stands in the way."""

    def test_stores_are_read(self, tmp_path):
        """Written by our pipeline and codec, in place, too; but the filter `bytes` is ours."""
        data = np.arange(64 * 64, dtype="<f4").reshape(64, 64)
        more = {
            "big-endian": {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}},
            "compressed": {"compressors": "auto"},
            "shards": {"shards": (64, 64), "chunks": (16, 16)},
        }
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            for name, options in (KINDS | more).items():
                if name == "v2 with a filter":
                    continue
                sizes = {"shape": (64, 64), "chunks": (32, 64)}
                settings = {"dtype": "<f4", "compressors": None} | sizes | options
                zarr.create_array(tmp_path / name, **settings)[1:] = data[1:]
                zarr.open_array(tmp_path / name, mode="r+")[:2] = data[:2]
        program = (
            WITHOUT_PACKAGE
            + SETUP
            + """
for path in sys.argv[1:]:
    array = zarr.open_array(path)
    assert type(array.async_array.codec_pipeline).__module__ == "zarr.core.codec_pipeline"
    assert np.array_equal(array[...].ravel(), np.arange(64 * 64)), path
"""
        )
        run_program("-W", "error", "-c", program, *tmp_path.iterdir())

    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_a_pickled_array_that_we_neither_read_nor_write(self, tmp_path, zarr_format):
        """Compressed: its pickle names nothing of ours."""
        array = zarr.create_array(tmp_path / "a", shape=8, dtype="i4", zarr_format=zarr_format)
        array[:] = range(8)
        if zarr_format == 2:
            array = zarr.open_array(tmp_path / "a")
        pickled = pickle.dumps(array)
        assert b"numcodecs_bytes" not in pickled
        (tmp_path / "pickled").write_bytes(pickled)
        program = (
            WITHOUT_PACKAGE
            + """
import pickle
with open(sys.argv[1], "rb") as file:
    assert pickle.load(file)[:].tolist() == list(range(8))
"""
        )
        run_program("-W", "error", "-c", program, tmp_path / "pickled")


IN_PLACE = "numcodecs_bytes.write_in_place"
ZSTD = "compressed or filtered by zstd"


class TestRequire:
    """Writes to parts of chunks that are not made in place raise, and say why."""

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"compressors": "auto"}, ZSTD),
            ({"compressors": numcodecs.Zstd(), "zarr_format": 2}, ZSTD),
            ({"filters": [numcodecs.Delta("i4")], "zarr_format": 2}, "filtered by delta"),
            (
                {"shards": (8, 8), "chunks": (4, 8), "compressors": "auto"},
                "compressed or filtered by zstd",
            ),
            ({"dtype": str}, "stored by .*VLenUTF8Codec"),
            ({"store": None}, "zarr.storage._memory.MemoryStore is not zarr's LocalStore"),
            ({"zarr_format": 2, "store": None}, "is not zarr's LocalStore"),
        ],
        ids=str,
    )
    @pytest.mark.usefixtures("our_pipeline")
    def test_the_reason(self, tmp_path, options, why):
        """And nothing is half written; whole chunks are written in any case."""
        settings = {"store": tmp_path, "shape": (8, 8), "chunks": (8, 8), "dtype": "i4"}
        settings |= {"compressors": None} | options
        if "store" in options:
            settings["store"] = zarr.storage.MemoryStore()
        array = zarr.create_array(**settings)
        with zarr.config.set({IN_PLACE: "require"}):
            array[...] = np.full((8, 8), 1, array.dtype)
            before = array[...].tolist()
            with pytest.raises(RuntimeError, match=why) as raised:
                array[2, 1:] = np.full(7, 2, array.dtype)
        assert f"{IN_PLACE} requires" in str(raised.value)
        assert "run `numcodecs-bytes` to see what sets that option" in str(raised.value)
        assert array[...].tolist() == before

    @pytest.mark.parametrize("compressors", [None, "auto"])
    def test_our_codec_in_another_pipeline(self, tmp_path, compressors):
        """It can't tell what is in place: every write raises; with True it warns once."""
        settings = {"shape": (8, 8), "dtype": "i4", "compressors": compressors}
        zarr.create_array(tmp_path, **settings)[...] = 1
        with zarr.config.set({"codec_pipeline.path": PIPELINES[-1]}):
            array = zarr.open_array(tmp_path, mode="r+")
        for selection in (np.s_[2, 1:], np.s_[...]):
            with (
                zarr.config.set({IN_PLACE: "require"}),
                pytest.raises(RuntimeError, match="is set, but this array was opened with"),
            ):
                array[selection] = 2
        assert (array[...] == 1).all()
        program = f"""
import sys, zarr
zarr.config.set({{{IN_PLACE!r}: True, "codec_pipeline.path": {PIPELINES[-1]!r}}})
array = zarr.open_array(sys.argv[1], mode="r+")
array[2, 1:] = array[3, 1:] = 2
"""
        said = run_program("-c", program, tmp_path).stderr
        assert said.count("write_in_place is set, but this array was opened with") == 1

    @pytest.mark.parametrize("path", [*PIPELINES, *OUR_PIPELINES])
    def test_another_pipeline_by_a_variable(self, tmp_path, path):
        """Loading the entry points warns, for the sake of Zarr v2, but never fails."""
        for kind, options in (("v2", V2), ("v3", {})):
            settings = {"shape": 8, "dtype": "i4", "compressors": None} | options
            zarr.create_array(tmp_path / kind, **settings)[...] = 1
        program = """
import sys, zarr
for kind in ("v2", "v3", "v2"):
    assert zarr.open_array(f"{sys.argv[1]}/{kind}")[:].tolist() == [1] * 8
"""
        variables = {
            "ZARR_CODEC_PIPELINE__PATH": path,
            "ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE": "require",
        }
        said = run_program("-c", program, tmp_path, **variables).stderr
        named = f"is 'require', but codec_pipeline.path is {path}: parts of Zarr v2 chunks will not"
        assert (said.count("Warning"), said.count(named)) == (
            (1, 1) if path in PIPELINES else (0, 0)
        )
        run_program("-W", "error", "-c", program, tmp_path, **variables)

    def test_eight_processes_write_to_one_chunk(self, tmp_path):
        """Both keys are set, in spite of a variable that names another pipeline: none is lost."""
        settings = {"shape": (64, 64), "chunks": (64, 64), "dtype": "i4", "compressors": None}
        zarr.create_array(tmp_path, **settings, **V2)[...] = -1
        program = f"""
import os, sys
os.environ["ZARR_CODEC_PIPELINE__PATH"] = {PIPELINES[0]!r}
import zarr
zarr.config.set({{{IN_PLACE!r}: "require", "codec_pipeline.path": {OUR_PIPELINES[0]!r}}})
array, first = zarr.open_array(sys.argv[1], mode="r+"), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for time in range(20):
    for row in range(first, 64, 8):
        array[row] = row + 64 * time
"""
        with contextlib.ExitStack() as stack:
            arguments = [("-c", program, tmp_path, k) for k in range(8)]
            writers = [start_program(*each) for each in arguments]
            for writer in writers:
                stack.callback(writer.close)
                assert writer.stdout.readline() == "ready\n"
            for writer in writers:
                writer.stdin.write("go\n")
                writer.stdin.flush()
            assert [writer.wait(60) for writer in writers] == [0] * 8
        expected = np.arange(64)[:, None] + 64 * 19
        assert (zarr.open_array(tmp_path)[...] == expected).all()
