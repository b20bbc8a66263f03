"""What installing the package changes, in fresh processes that only import zarr; and leaving it."""

import os
import pickle
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import OUR_PIPELINES, PIPELINES, WITHOUT_ENTRY_POINTS, run_program, run_python

import numcodecs_bytes

# One chunk of 32 MiB, or a shard of two inner chunks. Lines of 16 KiB are contiguous.
SHAPE, NAMES = (2048, 4096), ["y", "x"]
LINE_BYTES, ACROSS_BYTES = 300_000, 4_000_000  # what may be read of a line, and of one across them
SETTINGS = {"shape": SHAPE, "chunks": SHAPE, "dtype": "<f4", "compressors": None}
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
        shape = SHAPE[::-1] if name in IN_F else SHAPE
        settings = SETTINGS | {"shape": shape, "chunks": shape} | options
        array = zarr.create_array(folder / "group" / name, **settings)
        if name == "shards":
            array[...] = data
        else:
            link_chunk(folder, folder / "group" / name, array)
    return folder


def link_chunk(arrays, path, array):
    """Put the file that `arrays` share into an array, which has one chunk."""
    chunk = path / ("0.0" if array.metadata.zarr_format == 2 else "c/0/0")
    chunk.parent.mkdir(parents=True, exist_ok=True)
    os.link(arrays / "chunk", chunk)


def run(program, *arguments, **environment):
    """Run a program that knows the above; return the words that it printed."""
    done = run_program("-W", "ignore", "-c", SETUP + program, *arguments, **environment)
    return done.stdout.split()


def assert_in_part(words, num_arrays=1):
    """Assert that arrays which a program has measured are read in part."""
    counts = list(map(int, words[-2 * num_arrays :]))
    assert len(counts) == 2 * num_arrays
    assert max(counts[::2]) < LINE_BYTES
    assert max(counts[1::2]) < ACROSS_BYTES


@needs_proc
class TestReadsInPart:
    def test_arrays_in_files(self, arrays, tmp_path):
        """Opened by their paths, in their group, or just created."""
        program = """
import os
for kind in sys.argv[3:]:
    measure(zarr.open_array(sys.argv[1] + "/group/" + kind))
measure(zarr.open_group(sys.argv[1] + "/group")["v3"])
options = {"shape": (2048, 4096), "chunks": (2048, 4096), "dtype": "<f4", "compressors": None}
array = zarr.create_array(sys.argv[2], **options)
os.makedirs(sys.argv[2] + "/c/0")
os.link(sys.argv[1] + "/chunk", sys.argv[2] + "/c/0/0")
measure(array)
"""
        assert_in_part(run(program, arrays, tmp_path / "a", *KINDS), len(KINDS) + 2)

    def test_kerchunk_references(self, arrays):
        pytest.importorskip("fsspec")
        program = """
import fsspec
refs = {".zarray": open(sys.argv[1] + "/group/v2/.zarray").read()}
refs["0.0"] = ["file://" + sys.argv[1] + "/chunk", 0, 2048 * 4096 * 4]
files = fsspec.filesystem("reference", fo=refs, remote_protocol="file", asynchronous=True)
measure(zarr.open_array(zarr.storage.FsspecStore(files, read_only=True), mode="r"))
"""
        assert_in_part(run(program, arrays))

    @pytest.mark.parametrize(
        ("zarr_format", "names"),
        [(2, {"attributes": {"_ARRAY_DIMENSIONS": NAMES}}), (3, {"dimension_names": NAMES})],
    )
    @pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
    def test_in_consolidated_metadata_and_xarray(self, arrays, tmp_path, zarr_format, names):
        group = zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
        link_chunk(arrays, tmp_path / "g/a", group.create_array("a", **SETTINGS, **names))
        zarr.consolidate_metadata(tmp_path / "g")
        program = "measure(zarr.open_consolidated(sys.argv[1])['a'])"
        assert_in_part(run(program, tmp_path / "g"))
        pytest.importorskip("xarray")
        program = """
import xarray
measure(xarray.open_zarr(sys.argv[1], chunks=None, mask_and_scale=False)["a"])
"""
        assert_in_part(run(program, tmp_path / "g"))

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
        assert_in_part(run(program, arrays / "group/v2"))

    def test_with_icechunk(self, arrays, tmp_path):
        icechunk = pytest.importorskip("icechunk")
        storage = icechunk.local_filesystem_storage(str(tmp_path))
        session = icechunk.Repository.create(storage).writable_session("main")
        data = zarr.open_array(arrays / "group/v3")[...]
        zarr.create_array(session.store, **SETTINGS)[...] = data
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
        assert_in_part(run(program, tmp_path))

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

    def test_in_other_processes(self, arrays, tmp_path):
        """Arrays travel by pickle, and nobody imports the package; or are inherited."""
        (tmp_path / "program.py").write_text(f"""{SETUP}
import multiprocessing, warnings
from concurrent.futures import ProcessPoolExecutor

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    arrays = [zarr.open_array(path) for path in sys.argv[1:]]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(measure, arrays))
    for array in arrays:
        line(array, 9)
        child = multiprocessing.get_context("fork").Process(target=measure, args=[array])
        child.start()
        child.join()
        assert child.exitcode == 0
""")
        paths = [arrays / "group/v2", arrays / "group/v3"]
        assert_in_part(run_python(tmp_path / "program.py", *paths).stdout.split(), 4)

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


def test_without_the_package_what_it_wrote_is_read(tmp_path):
    """Written in place, too. Only the filter `bytes` is ours.

    A pickled array that we neither read nor write names nothing of ours: if it is compressed.
    """
    data = np.arange(64 * 64, dtype="<f4").reshape(64, 64)
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    more = {
        "big-endian": {"serializer": big},
        "compressed": {"compressors": "auto"},
        "compressed v2": V2 | {"compressors": "auto"},
        "shards": {"shards": (64, 64), "chunks": (16, 16)},
    }
    for name, options in (KINDS | more).items():
        if name == "v2 with a filter":
            continue
        sizes = {"shape": (64, 64), "chunks": (32, 64)}
        with zarr.config.set({"numcodecs_bytes.write_in_place": True}):
            created = zarr.create_array(tmp_path / name, **SETTINGS | sizes | options)
            created[1:] = data[1:]
            opened = zarr.open_array(tmp_path / name, mode="r+")
            opened[:2] = data[:2]
        if name.startswith("compressed"):  # our codec is in a Zarr v3 array that is opened
            pickled = pickle.dumps(opened if "v2" in name else created)
            (tmp_path / name / "pickled").write_bytes(pickled)
    program = """
import os, pickle, sys, zarr
import numpy as np
for path in sys.argv[1:]:
    arrays = [zarr.open_array(path)]
    if os.path.exists(f"{path}/pickled"):
        with open(f"{path}/pickled", "rb") as file:
            arrays.append(pickle.load(file))
    for array in arrays:
        assert type(array.async_array.codec_pipeline).__module__ == "zarr.core.codec_pipeline"
        assert np.array_equal(array[...].ravel(), np.arange(64 * 64)), path
"""
    run_program("-W", "error", "-c", WITHOUT_PACKAGE + program, *tmp_path.iterdir())


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
            ({"shards": (8, 8), "chunks": (4, 8), "compressors": "auto"}, ZSTD),
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

    @pytest.mark.parametrize("path", [PIPELINES[0], *OUR_PIPELINES])
    def test_another_pipeline_by_a_variable(self, tmp_path, path):
        """Loading the entry points warns, for the sake of Zarr v2, but never fails.

        A program can still choose another one.
        """
        for kind, options in (("v2", V2), ("v3", {})):
            settings = {"shape": 8, "dtype": "i4", "compressors": None} | options
            zarr.create_array(tmp_path / kind, **settings)[...] = 1
        program = f"""
import sys, zarr
for kind in ("v2", "v3", "v2"):
    assert zarr.open_array(f"{{sys.argv[1]}}/{{kind}}")[:].tolist() == [1] * 8
zarr.config.set({{"codec_pipeline.path": {OUR_PIPELINES[0]!r}}})
import numcodecs_bytes
with numcodecs_bytes.trace() as traced:
    zarr.open_array(sys.argv[1] + "/v2", mode="r+")[:2] = 1
assert traced.report()["total"]["chunks_in_place"] == 1
"""
        variables = {"ZARR_CODEC_PIPELINE__PATH": path}
        variables["ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE"] = "require"
        said = run_program("-c", program, tmp_path, **variables).stderr
        named = f"is 'require', but codec_pipeline.path is {path}: parts of Zarr v2 chunks will not"
        expected = (1, 1) if path in PIPELINES else (0, 0)
        assert (said.count("Warning"), said.count(named)) == expected
        run_program("-W", "error", "-c", program, tmp_path, **variables)
