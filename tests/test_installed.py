"""What installing the package changes, in fresh processes that only import zarr; and leaving it."""

import pickle
import warnings

import numpy as np
import pytest
import zarr
from helpers import OUR_PIPELINES, PIPELINES, WITHOUT_ENTRY_POINTS, run_program, run_python

import numcodecs_bytes

# One chunk of 8 MiB, or a shard of two inner chunks. Lines of 8 KiB are contiguous.
SHAPE = (1024, 2048)
SETTINGS = {"shape": SHAPE, "chunks": SHAPE, "dtype": "<f4", "compressors": None}
V2 = {"zarr_format": 2, "filters": None}
KINDS = {
    "v3": {},
    "v2": V2,
    "v2 in order F": V2 | {"order": "F"},
    "v2 with a filter": V2 | {"filters": [numcodecs_bytes.Bytes("little", "<f4")]},
    "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "shards": {"shards": SHAPE, "chunks": (512, 2048)},
}
# What the programs begin with: `line` reads a contiguous line of 8 KiB, and checks it; `num_read`
# returns how many bytes this process has read; `measure` prints how many of them a line takes.
SETUP = """
import sys, zarr
import numpy as np

def num_read():
    with open("/proc/self/io") as io:
        return int(io.readline().split()[1])

def line(array, k):
    found = array[:, k] if array.shape[0] == 2048 else array[k]
    assert np.array_equal(found, np.arange(2048) + k * 2048)

def measure(array):
    before = num_read()
    line(array, 1)
    print(num_read() - before)
"""

needs_proc = pytest.mark.needs("/proc/self/io")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Return the path of a group of all kinds of arrays."""
    folder = tmp_path_factory.mktemp("arrays")
    data = np.arange(np.prod(SHAPE), dtype="<f4").reshape(SHAPE)
    group = zarr.create_group(folder)
    for name, options in KINDS.items():
        values = data.T if name in ("v2 in order F", "transposed") else data
        settings = SETTINGS | {"shape": values.shape, "chunks": values.shape} | options
        zarr.create_array(folder / name, **settings)[...] = values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata are not specified
        zarr.consolidate_metadata(group.store)
    return folder


def run(program, *arguments, **environment):
    """Run a program that knows the above; return the words that it printed."""
    done = run_program("-W", "ignore", "-c", SETUP + program, *arguments, **environment)
    return done.stdout.split()


def assert_in_part(words, num_arrays):
    """Assert that arrays which a program has measured are read in part."""
    assert len(words) == num_arrays
    assert max(map(int, words)) < 300_000


@needs_proc
class TestReadsInPart:
    def test_arrays_in_files(self, arrays, tmp_path):
        """Opened by their paths, in their group, or just created."""
        program = """
for kind in sys.argv[3:]:
    measure(zarr.open_array(sys.argv[1] + "/" + kind))
measure(zarr.open_group(sys.argv[1], use_consolidated=False)["v3"])
measure(zarr.open_consolidated(sys.argv[1])["v3"])
data = np.arange(1024 * 2048, dtype="f4").reshape(1024, 2048)
measure(zarr.create_array(sys.argv[2], data=data, chunks=data.shape, compressors=None))
"""
        assert_in_part(run(program, arrays, tmp_path / "a", *KINDS), len(KINDS) + 3)

    def test_threads_that_open_their_first_arrays_at_once(self, arrays):
        program = """
from concurrent.futures import ThreadPoolExecutor
paths = [sys.argv[1] + "/" + kind for kind in ("v3", "v2", "shards", "transposed")] * 4
before = num_read()
with ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda path: line(zarr.open_array(path), 7), paths))
print(num_read() - before)
"""
        (num,) = run(program, arrays)  # what is imported is among it
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
        paths = [arrays / "v2", arrays / "v3"]
        assert_in_part(run_python(tmp_path / "program.py", *paths).stdout.split(), 4)


# In a process that begins so, nothing of the package can be had.
WITHOUT_PACKAGE = "import sys; sys.modules['numcodecs_bytes'] = None" + WITHOUT_ENTRY_POINTS


def test_without_the_package_what_it_wrote_is_read(tmp_path):
    """Written in place, too, and arrays that were pickled. Only the filter `bytes` is ours.

    And so is the codec of a Zarr v3 array that is opened, unless it is in shards.
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
        if name != "big-endian":
            arrays = [created, opened] if name.startswith(("shards", "v2")) else [created]
            (tmp_path / name / "pickled").write_bytes(pickle.dumps(arrays))
    program = """
import os, pickle, sys, zarr
import numpy as np
for path in sys.argv[1:]:
    arrays = [zarr.open_array(path)]
    if os.path.exists(f"{path}/pickled"):
        with open(f"{path}/pickled", "rb") as file:
            arrays += pickle.load(file)
    for array in arrays:
        assert array.async_array.codec_pipeline == arrays[0].async_array.codec_pipeline
        assert type(array.async_array.codec_pipeline).__module__ == "zarr.core.codec_pipeline"
        assert np.array_equal(array[...].ravel(), np.arange(64 * 64)), path
"""
    run_program("-W", "error", "-c", WITHOUT_PACKAGE + program, *tmp_path.iterdir())


IN_PLACE = "ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE"


class TestRequire:
    """Whoever has one of our pipelines writes in place, or gets an error."""

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("pipeline", OUR_PIPELINES)
    def test_a_process_that_sets_it_and_gets_a_pickled_array(self, tmp_path, pipeline):
        """Whatever the array is: it has the pipeline of that process, which does not rewrite."""
        kinds = {
            "compressed": {"compressors": "auto"},
            "compressed v2": V2 | {"compressors": "auto"},
            "compressed shards": {"compressors": "auto", "shards": (64,), "chunks": (8,)},
            "plain": {},
        }
        for name, options in kinds.items():
            settings = {"shape": 64, "dtype": "i4", "compressors": None} | options
            created = zarr.create_array(tmp_path / name, **settings)
            created[:] = 1
            opened = zarr.open_array(tmp_path / name, mode="r+")
            (tmp_path / name / "pickled").write_bytes(pickle.dumps([created, opened]))
        (tmp_path / "program.py").write_text("""
import multiprocessing, pathlib, pickle, sys

def write(pickled):
    for array in pickle.loads(pickled):
        kind = type(array.async_array.codec_pipeline)
        assert f"{kind.__module__}.{kind.__name__}" == sys.argv[1], kind
        try:
            array[3:5] = 0
        except RuntimeError as error:
            assert "can't be written in place" in str(error)
            assert "compressed" in array.store_path.store.root.name
        else:
            assert array.store_path.store.root.name == "plain"

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(write, [pathlib.Path(path, "pickled").read_bytes() for path in sys.argv[2:]])
""")
        variables = {IN_PLACE: "require", "ZARR_CODEC_PIPELINE__PATH": pipeline}
        paths = [tmp_path / name for name in kinds]
        run_python("-W", "error", tmp_path / "program.py", pipeline, *paths, **variables)
        for name in kinds:
            expected = [0, 0] if name == "plain" else [1, 1]
            assert zarr.open_array(tmp_path / name)[3:5].tolist() == expected

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("path", [PIPELINES[0], OUR_PIPELINES[-1]])
    def test_another_pipeline_by_a_variable(self, tmp_path, path):
        """Loading warns, once, and so does the first use; neither ever fails.

        A program can still choose another one.
        """
        for kind, options in (("v2", V2), ("v3", {})):
            settings = {"shape": 8, "dtype": "i4", "compressors": None} | options
            zarr.create_array(tmp_path / kind, **settings)[...] = 1
        program = f"""
import sys, zarr
for kind in ("v2", "v3", "v2", "v3"):
    assert zarr.open_array(f"{{sys.argv[1]}}/{{kind}}")[:].tolist() == [1] * 8
    print("---", file=sys.stderr)
zarr.config.set({{"codec_pipeline.path": {OUR_PIPELINES[0]!r}}})
import numcodecs_bytes
with numcodecs_bytes.trace() as traced:
    zarr.open_array(sys.argv[1] + "/v2", mode="r+")[:2] = 1
assert traced.report()["total"]["chunks_in_place"] == 1
"""
        variables = {"ZARR_CODEC_PIPELINE__PATH": path, IN_PLACE: "require"}
        said = run_program("-c", program, tmp_path, **variables).stderr.split("---")
        where = "set by environment variable ZARR_CODEC_PIPELINE__PATH"
        named = f"is 'require', but codec_pipeline.path is {path}, {where}: "
        expected = [1, 1, 0, 0, 0] if path in PIPELINES else [0] * 5
        assert [each.count(named) for each in said] == expected
        run_program("-W", "error", "-c", program, tmp_path, **variables)

    def test_no_other_pipeline(self, tmp_path):
        """The first array warned of zarr's default, which ours was about to replace."""
        zarr.create_array(tmp_path, shape=8, dtype="i4", compressors=None)
        program = "import sys, zarr; zarr.open_array(sys.argv[1])"
        assert run_program("-c", program, tmp_path, **{IN_PLACE: "require"}).stderr == ""

    @pytest.mark.needs("fcntl")
    def test_another_pipeline_by_a_program(self, tmp_path):
        """Which loading can't know of: the next array warns, once for each pipeline.

        That array is zarr's, and is written as zarr writes it, without an error.
        """
        zarr.create_array(tmp_path, shape=8, dtype="i4", compressors=None)
        program = f"""
import sys, zarr
zarr.open_array(sys.argv[1])
zarr.config.set({{"numcodecs_bytes.write_in_place": "require"}})
array = zarr.open_array(sys.argv[1], mode="r+")
for path in {[*PIPELINES, *OUR_PIPELINES]!r}:
    print("---", file=sys.stderr)
    with zarr.config.set({{"codec_pipeline.path": path}}):
        for value in (1, 0):
            zarr.open_array(sys.argv[1], mode="r+")[3:5] = value  # 0 deletes the chunk
        array[:1] = 0
"""
        said = run_program("-c", program, tmp_path).stderr.split("---")
        expected = [0] + [1] * len(PIPELINES) + [0] * len(OUR_PIPELINES)
        assert [each.count("is 'require', but codec") for each in said] == expected
        run_program("-W", "error", "-c", program, tmp_path)
