"""Fixtures: codec pipelines and counting stores; and which tests are run.

A test with the mark `matrix` has many combinations of parameters. Unless NUMCODECS_BYTES_TESTS is
"all", as many of them are run as it takes for each value of each parameter to occur, and none that
has the mark `long`. Each of the other tests that run in several pipelines is run in one of them,
another one for the next test.
"""

import collections
import importlib.util
import itertools
import logging
import sys
import tempfile
import tracemalloc

import pytest
import standin_cupy
import zarr
from helpers import (
    EVERYTHING,
    LOADS_DATA_TYPES,
    OUR_PIPELINES,
    OWN_BUG,
    PIPELINES,
    CountingStore,
    CountingSyncStore,
    has,
    owner_of,
    ranges_from,
)

from numcodecs_bytes._runtime import own_bugs
from numcodecs_bytes._sources import files

collect_ignore = ["gpu/run.py"]  # which needs CuPy

if not LOADS_DATA_TYPES:
    import numcodecs_bytes.zarr_data_types  # noqa: F401

# Modules that tests skip without, by the extra or the dependency group that installs them.
OPTIONAL = {
    "peers": ["tensorstore", "zarrs"],
    "servers": ["moto"],
    "stores": ["aiohttp", "fsspec", "obstore", "s3fs"],
    "examples": [
        *("astropy", "dask", "distributed", "icechunk", "kerchunk", "virtualizarr", "xarray"),
    ],
    "ecosystem": ["anndata", "fastparquet", "h5py", "imagecodecs", "ome_zarr", "tifffile"],
}


def pytest_configure(config):
    config.addinivalue_line("markers", "matrix: many combinations, of which a sample is run")
    config.addinivalue_line("markers", "long: run only with all tests")
    config.addinivalue_line("markers", "own_bug: one must be logged, else none may be")
    config.addinivalue_line("markers", "needs(*names): what not every system has: see helpers.has")


def _is_of_a_test(record):
    """Whether a message is not about the HTTP sessions that fsspec leaves open."""
    return not record.getMessage().startswith("Unclosed")


logging.getLogger("asyncio").addFilter(_is_of_a_test)  # a test may look at what is logged


# The own bugs that were logged, in a file that forked processes share.
_own_bugs = logging.StreamHandler(tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115
_own_bugs.addFilter(lambda record: record.getMessage().startswith(OWN_BUG))
logging.getLogger("numcodecs_bytes").addHandler(_own_bugs)


@pytest.fixture(autouse=True)
def _no_own_bug(request):
    """Fail if zarr did what this package should have done; the mark `own_bug` expects that.

    Other processes than forked ones say so in what they print: see `helpers.run_python`.
    """
    yield
    own_bugs.logged.clear()  # else the next test does not log it again
    _own_bugs.stream.seek(0)
    bugs = _own_bugs.stream.read()
    _own_bugs.stream.seek(0)
    _own_bugs.stream.truncate()
    if request.node.get_closest_marker("own_bug"):
        assert bugs, "no own bug was logged"
    else:
        assert not bugs, bugs


def pytest_report_header():
    header = ["numcodecs_bytes: every combination of parameters, every example"]
    if not EVERYTHING:
        header = [
            "numcodecs_bytes: a sample of the combinations in long tests (others are deselected)",
            "numcodecs_bytes: a twentieth of the examples that hypothesis draws",
            "numcodecs_bytes: to run all: NUMCODECS_BYTES_TESTS=all python -m pytest",
        ]
    without = [name for name, modules in OPTIONAL.items() if not all(map(_is_there, modules))]
    if without:
        header.append(
            f"numcodecs_bytes: tests that need {', '.join(without)} are skipped: see "
            "docs/contributing.md"
        )
    return header


def _is_there(module):
    return importlib.util.find_spec(module) is not None


def pytest_collection_modifyitems(config, items):
    for item in items:
        names = [name for mark in item.iter_markers("needs") for name in mark.args]
        if missing := [name for name in names if not has(name)]:
            item.add_marker(pytest.mark.skip(reason=f"this system has no {missing[0]}"))
    if EVERYTHING:
        return
    matrices, others = {}, []
    for item in items:
        if not hasattr(item, "callspec"):
            continue
        if item.get_closest_marker("matrix"):
            matrices.setdefault((item.parent, item.originalname), []).append(item)
        else:
            others.append(item)
    left_out = {item for matrix in matrices.values() for item in set(matrix) - set(_sample(matrix))}
    left_out |= {item for item in items if item.get_closest_marker("long")}
    left_out |= set(_in_other_pipelines(others))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _sample(matrix):
    """Yield items until each value of each parameter occurs, in as many pairs as there may be."""
    # A value is the same object in each combination. Numbered, so that all processes choose alike.
    numbers = {}
    values = {
        item: {
            numbers.setdefault((name, id(value)), len(numbers))
            for name, value in item.callspec.params.items()
        }
        for item in matrix
    }
    pairs = {item: list(itertools.combinations(sorted(values[item]), 2)) for item in matrix}
    missing = set().union(*values.values())
    times = collections.Counter()
    while missing:
        best = max(
            matrix,
            key=lambda item: (len(values[item] & missing), -sum(times[p] for p in pairs[item])),
        )
        missing -= values[best]
        times.update(pairs[best])
        yield best


def _in_other_pipelines(items):
    """Yield items until each test is left in one pipeline, and the next test in another one."""
    tests = {}
    for item in items:
        params = item.callspec.params
        others = {name: params[name] for name in params if "pipeline" not in name}
        if len(others) < len(params):
            values = tuple((name, id(value)) for name, value in others.items())
            tests.setdefault((item.parent, item.originalname, values), []).append(item)
    for number, in_pipelines in enumerate(tests.values()):
        chosen = in_pipelines[number % len(in_pipelines)]
        yield from (item for item in in_pipelines if item is not chosen)


@pytest.fixture(
    params=[*PIPELINES, *OUR_PIPELINES] if EVERYTHING else [OUR_PIPELINES[0], PIPELINES[-1]],
    ids=lambda path: path.rsplit(".", 1)[-1],
)
def pipeline(request):
    """Run a test of the codec in the default pipeline, and in one of zarr's own."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        yield request.param


@pytest.fixture(params=OUR_PIPELINES, ids=lambda path: path.rsplit(".", 1)[-1])
def our_pipeline(request):
    """Run a test in this package's pipelines, over zarr's default and its fused one."""
    with zarr.config.set({"codec_pipeline.path": request.param}):
        assert hasattr(zarr.registry.get_pipeline_class(), "reads_partially"), "this is zarr's own"
        yield request.param


@pytest.fixture(params=[CountingStore, CountingSyncStore], ids=["asynchronous", "synchronous"])
def counting(request, tmp_path):
    """Return a counting store on tmp_path, read through the event loop or not."""
    with ranges_from(request.param):
        yield request.param(tmp_path)


@pytest.fixture(scope="module")
def s3_server():
    """Return the address of an S3 server."""
    moto_server = pytest.importorskip("moto.server", reason="the group servers is not installed")
    logging.getLogger("werkzeug").disabled = True
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture
def s3_client(s3_server):
    """Return a client of the S3 server, which has the bucket `data`."""
    boto3 = pytest.importorskip("boto3", reason="the group servers is not installed")
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    client = boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="data")
    return client


def pytest_ignore_collect(collection_path, config):
    """Leave out programs, and the benchmarks, which need more than the tests do, unless named."""
    if collection_path.name in ("changed_zarr", "systems"):
        return True
    named = any("benchmarks" in str(argument) for argument in config.invocation_params.args)
    return True if collection_path.name == "benchmarks" and not named else None


@pytest.fixture
def track():
    """Return a function that calls another, and returns its peak of memory and its result."""

    def tracked(function):
        tracemalloc.start()
        try:
            result = function()
            return tracemalloc.get_traced_memory()[1], result
        finally:
            tracemalloc.stop()

    return tracked


@pytest.fixture
def set_constants(monkeypatch):
    """Return a function that changes constants of this package."""

    def change(**numbers):
        for name, number in numbers.items():
            monkeypatch.setattr(owner_of(name), name, number)

    return change


@pytest.fixture
def each_byte_takes(monkeypatch):
    """Return a function that has each probe of a file take so many seconds, as it is told."""

    def change(seconds):
        monkeypatch.setattr(files, "seconds_to_read", lambda *_: seconds)

    return change


@pytest.fixture
def cupy(monkeypatch):
    """Put a stand-in in the place of CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", standin_cupy)
    monkeypatch.setattr("zarr.core.buffer.gpu.cp", standin_cupy)
    return standin_cupy
