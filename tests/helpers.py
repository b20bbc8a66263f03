"""What the tests share: metadata and arrays by hand, counting stores, selections, versions of zarr.

Nothing here imports numcodecs_bytes, so that a test decides when that is done.
"""

import asyncio
import contextlib
import functools
import gc
import importlib
import inspect
import json
import logging
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np
import pytest
import quick_start
import zarr
import zarr.storage
from data_types import CASES, ENDIANS
from hypothesis import HealthCheck, settings
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.dtype import parse_dtype

# Whether every combination and example is tried, or a sample of them: see conftest.py.
EVERYTHING = os.environ.get("NUMCODECS_BYTES_TESTS") == "all"
MAX_EXAMPLES = int(os.environ.get("HYPOTHESIS_MAX_EXAMPLES", "0"))

HAS_STRUCT = hasattr(zarr.dtype, "Struct")  # since zarr 3.2
# Whether zarr loads the entry points of data types by itself: since zarr 3.4.1.
_get = type(zarr.dtype.data_type_registry).get
LOADS_DATA_TYPES = "_lazy_load" in _get.__code__.co_names
HAS_RECTILINEAR = zarr.config.get("array.rectilinear_chunks", None) is not None  # in zarr 3.4
ZARRS_PIPELINE = "zarr.core.codec_pipeline.BatchedCodecPipeline"
PIPELINES = [ZARRS_PIPELINE]
OUR_PIPELINES = ["numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline"]
if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):  # since zarr 3.3
    PIPELINES.append("zarr.core.codec_pipeline.FusedCodecPipeline")
    OUR_PIPELINES.append("numcodecs_bytes.zarr_pipeline.FusedBytesPipeline")

OWN_BUG = "numcodecs_bytes has a bug"  # what is logged then
# Errors that no called function is known to raise.
OWN_BUGS = [AttributeError, TypeError, KeyError, IndexError, ValueError, RuntimeError]
# A function that raises an error may leave a coroutine behind that was not awaited.
ignore_coroutines = pytest.mark.filterwarnings(
    "ignore:coroutine:RuntimeWarning", "ignore:Exception ignored in. <coroutine"
)

UNTESTED_ZARR = "ZARR_NUMCODECS_BYTES__UNTESTED_ZARR"  # set to run all tests with such a zarr

# zarr without this package.
ZARR_ALONE = {"codec_pipeline.path": ZARRS_PIPELINE, "codecs.bytes": "zarr.codecs.bytes.BytesCodec"}

ZARR_CASES = [case for case in CASES if case.zarr_v3]
BY_ENDIAN = pytest.mark.parametrize("endian", ENDIANS)
ignore_unstable_data_types = pytest.mark.filterwarnings(
    # Of data types that Zarr v3 does not specify; which they are differs between zarr versions.
    "ignore:The data type:FutureWarning",
    "ignore:.*does not have a Zarr V3 specification",
    "ignore:.*Numcodecs codecs are not in the Zarr version 3 specification",
)


@contextlib.contextmanager
def case_of(*values):
    """Name a case of a test that loops over many, if it fails."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {values}")
        raise


def bounded(max_examples, **more):
    """Return settings for the same examples in every run: all of them, or a twentieth."""
    return settings(
        max_examples=MAX_EXAMPLES or (max_examples if EVERYTHING else max_examples // 20),
        derandomize=not MAX_EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        **more,
    )


def module_or_none(name):
    """Import a module that some systems lack."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def has(name):
    """Whether this system has a module, a function such as ``os.pread``, or a file of ``/proc``.

    A test that needs it has the mark `needs`. `OPEN_FILES` is a name as well.
    """
    if name == OPEN_FILES:
        return _open_files_can_be_replaced()
    if name.startswith("/"):
        return Path(name).exists() and "SIMULATED_SYSTEM" not in os.environ
    name, _, attribute = name.partition(".")
    module = module_or_none(name)
    return module is not None and (not attribute or hasattr(module, attribute))


OPEN_FILES = "way to replace open files"


@functools.cache
def _open_files_can_be_replaced():
    with tempfile.TemporaryDirectory() as folder:
        old, new = Path(folder, "old"), Path(folder, "new")
        old.touch()
        new.touch()
        with old.open("rb"):
            try:
                new.replace(old)
            except PermissionError:
                return False
    return True


class OwnBugs(logging.Handler):
    """For programs beside pytest: collect the own bugs that are logged from now on."""

    def __init__(self):
        super().__init__()
        self.found = []
        logging.getLogger("numcodecs_bytes").addHandler(self)

    def emit(self, record):
        if record.getMessage().startswith(OWN_BUG):
            self.found.append(self.format(record))


def is_called_by_package():
    """Whether a function of this package has called what calls this."""
    return sys._getframe(2).f_globals["__name__"].startswith("numcodecs_bytes.")


# What replaces functions, for each kind of code: that takes constants instead of these strings.


def _plain(*args, **options):
    find_error = "FIND_ERROR"
    function = "FUNCTION"
    if error := find_error():
        raise error
    return function(*args, **options)


def _generator(*args, **options):
    find_error = "FIND_ERROR"
    function = "FUNCTION"
    if error := find_error():
        raise error
    return (yield from function(*args, **options))


async def _coroutine(*args, **options):
    find_error = "FIND_ERROR"
    function = "FUNCTION"
    if error := find_error():
        raise error
    return await function(*args, **options)


def functions_of_package():
    """Return the functions of this package, but closures and asynchronous generators."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is types.FunctionType
        and (each.__module__ or "").startswith("numcodecs_bytes.")
        and not (each.__closure__ or inspect.isasyncgenfunction(each))
    ]


@contextlib.contextmanager
def before_calls(functions, find_error):
    """When one of some functions is called, raise what `find_error` returns for it, if anything.

    That happens in each thread, wherever they are imported: their code is replaced.
    """
    codes = [function.__code__ for function in functions]
    for function in functions:
        function.__code__ = _replaced(function, find_error)
    try:
        yield
    finally:
        for function, code in zip(functions, codes, strict=True):
            function.__code__ = code


def _replaced(function, find_error):
    """Return code that calls `find_error` before it does what a function does."""
    code = function.__code__
    original = types.FunctionType(code, function.__globals__, None, function.__defaults__)
    original.__kwdefaults__, original.__module__ = function.__kwdefaults__, None
    kind = _coroutine if inspect.iscoroutinefunction(function) else _plain
    kind = _generator if inspect.isgeneratorfunction(function) else kind
    instead = {"FIND_ERROR": functools.partial(find_error, function), "FUNCTION": original}
    constants = [
        instead[each] if each in ("FIND_ERROR", "FUNCTION") else each
        for each in kind.__code__.co_consts
    ]
    return kind.__code__.replace(co_consts=tuple(constants))


def run_python(*arguments, status=0, options=None, **environment):
    """Run a fresh interpreter, configured by nothing but what is given; return what it printed.

    `status` is the exit status that is expected, None for any, and `options` are those of
    `subprocess.run`.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=_environment(environment),
        check=False,
        **({"capture_output": True, "text": True} | (options or {})),
    )
    return _checked(done, status)


def run_program(*arguments, status=0, folder=None, **environment):
    """Run a program like `run_python`, in a third of the time; `quick_start` says what differs."""
    if not quick_start.HAS_FORKS:
        return run_python(*arguments, status=status, options={"cwd": folder}, **environment)
    done = quick_start.run(*arguments, folder=folder, environment=_environment(environment))
    return _checked(done, status)


def _checked(done, status):
    assert status in (None, done.returncode), done.stderr
    assert OWN_BUG not in str(done.stderr), done.stderr
    return done


def start_program(*arguments, files=(None, None, None)):
    """Start such a program; its standard input, output and error are pipes unless given."""
    return quick_start.Program(*arguments, files=files, environment=_environment({}))


def _environment(given):
    ours = ("ZARR_", "NUMCODECS_BYTES_")
    outside = {k: v for k, v in os.environ.items() if not k.startswith(ours) or k == UNTESTED_ZARR}
    return outside | {k: str(v) for k, v in given.items()}


# A program that begins so finds no entry points of this package, as if it were not installed.
WITHOUT_ENTRY_POINTS = """
import importlib.metadata
every = importlib.metadata.distributions
importlib.metadata.distributions = lambda **context: (
    d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
)
"""


# One that begins so has no ml_dtypes.
WITHOUT_ML_DTYPES = "import sys; sys.modules['ml_dtypes'] = None\n"


# Metadata and arrays, written with no code of zarr's or ours.


def bytes_codec(endian=None, name="bytes"):
    return {"name": name, **({"configuration": {"endian": endian}} if endian else {})}


def sharded(chunk_shape, *codecs, index_codecs=None):
    """Return the codec of a shard; its index is little endian and checked unless told."""
    configuration = {
        "chunk_shape": chunk_shape,
        "codecs": list(codecs),
        "index_codecs": index_codecs or [bytes_codec("little"), {"name": "crc32c"}],
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def metadata(data_type, codecs, shape=(4,), chunks=None, fill_value=0):
    """Return a zarr.json."""
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": chunks or shape},
        },
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": {},
    }


def metadata_v2(dtype, shape=(4,), chunks=None, **more):
    """Return a .zarray, of an uncompressed array unless told."""
    return {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks or shape,
        "dtype": dtype,
        "fill_value": 0,
        "order": "C",
        "compressor": None,
        "filters": None,
        **more,
    }


def write_array(path, stored, *args, **kwargs):
    """Write a single-chunk array of Zarr v3."""
    path.mkdir(parents=True, exist_ok=True)
    document = metadata(*args, **kwargs)
    (path / "zarr.json").write_text(json.dumps(document))
    if stored is not None:
        chunk = path.joinpath("c", *("0" for _ in document["shape"]))
        chunk.parent.mkdir(parents=True, exist_ok=True)
        chunk.write_bytes(stored)
    return path


def write_v2(path, stored, *args, **kwargs):
    """Write a single-chunk array of Zarr v2."""
    path.mkdir(parents=True, exist_ok=True)
    document = metadata_v2(*args, **kwargs)
    (path / ".zarray").write_text(json.dumps(document))
    if stored is not None:
        path.joinpath(".".join("0" for _ in document["shape"]) or "0").write_bytes(stored)
    return path


def spec_of(shape, dtype, prototype=None):
    data_type = parse_dtype(np.dtype(dtype), zarr_format=3)
    return ArraySpec(
        shape=shape,
        dtype=data_type,
        fill_value=data_type.default_scalar(),
        config=ArrayConfig.from_dict({}),
        prototype=prototype or default_buffer_prototype(),
    )


def _has_structures_in_shards():
    """Whether zarr can hash their fill value, which sharding asks for: since zarr 3.3."""
    try:
        hash(spec_of((1,), "V1"))
    except TypeError:
        return False
    return True


HAS_STRUCTURES_IN_SHARDS = _has_structures_in_shards()


def has_nested_structures():
    """Whether zarr reads a structure in a structure of Zarr v2: since zarr 3.4.1."""
    nested = {"name": [["a", [["b", "<i2"]]]], "object_codec_id": None}
    try:
        zarr.dtype.data_type_registry.match_json(nested, zarr_format=2)
    except ValueError:
        return False
    return True


def encode_chunk(codec, array, spec):
    """Return the buffer of the bytes to which a codec encodes an array."""
    buffer = spec.prototype.nd_buffer.from_ndarray_like(array)
    (encoded,) = sync(codec.encode([(buffer, spec)]))
    return encoded


def decode_chunk(codec, stored, spec):
    """Return the buffer of the array that bytes, or an array of them, hold."""
    make = spec.prototype.buffer
    buffer = make.from_bytes(stored) if isinstance(stored, bytes) else make.from_array_like(stored)
    (decoded,) = sync(codec.decode([(buffer, spec)]))
    return decoded


def create(store, shape, chunks=None, dtype="f8", endian="big", **kwargs):
    return zarr.create_array(
        store,
        shape=shape,
        chunks=chunks or shape,
        dtype=dtype,
        compressors=None,
        serializer=bytes_codec(endian),
        **kwargs,
    )


def eventually(is_true, collect=gc.collect):
    """Whether something comes true within ten seconds: a store's threads may let go of it later."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        collect()
        if is_true():
            return True
        time.sleep(0.01)
    return False


def ranges_from(*classes):
    """Name classes of stores whose byte ranges can be relied on, as users do; a context manager."""
    return zarr.config.set({"numcodecs_bytes.stores_with_ranges": classes})


def reference_store(references, protocol="file", **options):
    """Return a store of fsspec's references; skip the test if fsspec is missing."""
    fsspec = pytest.importorskip("fsspec", reason="the extra stores is not installed")
    how = {"asynchronous": True, "skip_instance_cache": True}
    remote = {"remote_protocol": protocol, "remote_options": how | options}
    files = fsspec.filesystem("reference", fo=references, **how, **remote)
    return zarr.storage.FsspecStore(files, read_only=True, path="")


class CountingStore(zarr.storage.LocalStore):
    """Count what is asked of a store for chunks, and answer as told."""

    _supports_sync_io = False  # what the fused pipeline asks

    def __init__(self, root, **kwargs):
        super().__init__(root, **kwargs)
        self.requests = []
        self.answer = lambda _, buffer: buffer

    async def get(self, key, prototype=None, byte_range=None):
        buffer = await super().get(key, prototype, byte_range)
        return self._count(key, byte_range, buffer)

    def _count(self, key, byte_range, buffer):
        if key.rpartition("/")[2].startswith((".z", "zarr.")):  # metadata
            return buffer
        self.requests.append((key, byte_range, 0 if buffer is None else len(buffer)))
        return self.answer(len(self.requests), buffer)

    @property
    def num_bytes(self):
        return sum(num_bytes for _, _, num_bytes in self.requests)


class CountingSyncStore(CountingStore):
    """The same for a store that is read synchronously."""

    _supports_sync_io = True

    def get_sync(self, key, *, prototype=None, byte_range=None):
        buffer = super().get_sync(key, prototype=prototype, byte_range=byte_range)
        return self._count(key, byte_range, buffer)


class IgnoringStore(CountingStore):
    """It answers a byte range with everything."""

    async def get(self, key, prototype=None, byte_range=None):
        return await super().get(key, prototype)


# Elements and selections.

SHAPE, CHUNKS = (6, 7, 8), (4, 7, 3)
DTYPES = ["?", "i1", "<u2", ">i4", "<f8", ">c16", ">M8[s]", "<m8[ms]", ">U3", "S5", "V6"]


def random_array(dtype, shape=SHAPE):
    """Return an array of random elements, each of them valid."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(0)
    if dtype.names:
        array = np.zeros(shape, dtype)
        for name in dtype.names:
            array[name] = random_array(dtype[name].base, array[name].shape)
        return array
    if dtype.kind in "fc":
        return rng.random(shape).astype(dtype)
    if dtype.kind in "SU":
        return rng.integers(0, 99, shape).astype(dtype)
    raw = rng.integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype).reshape(shape)


def random_selections(rng, shape, num):
    """Yield ways to select, `num` of each kind, each with what NumPy selects likewise."""

    def slices(n):
        start, stop = sorted((rng.randint(0, n), rng.randint(0, n)))
        return slice(start, stop, rng.choice([None, 1, 2, 3, n]))

    def indices(n):
        """Return repeated, unsorted, ascending or descending ones, perhaps none, or bools."""
        along = np.array([rng.randrange(n) for _ in range(rng.randint(0, 2 * n))], np.intp)
        bools = np.array([rng.random() < 0.5 for _ in range(n)])
        return rng.choice([along, np.unique(along), np.unique(along)[::-1], bools])

    yield "basic", (slice(None),) * len(shape), lambda a: a
    for _ in range(num):
        basic = tuple(rng.randrange(n) if rng.random() < 0.3 else slices(n) for n in shape)
        yield "basic", basic, lambda a, s=basic: a[s]
        if not shape:
            continue
        mesh = [rng.choice([indices, slices, rng.randrange])(n) for n in shape]
        ints = tuple(k for k, s in enumerate(mesh) if isinstance(s, int))
        along = [np.atleast_1d(np.arange(n)[s]) for n, s in zip(shape, mesh, strict=True)]
        yield "oindex", tuple(mesh), lambda a, i=along, d=ints: a[np.ix_(*i)].squeeze(axis=d)
        num_points = rng.randint(0, 100)
        points = [np.array([rng.randrange(n) for _ in range(num_points)], np.intp) for n in shape]
        yield "vindex", tuple(points), lambda a, s=tuple(points): a[s]
        mask = np.random.default_rng(rng.randrange(1 << 32)).random(shape) < rng.random()
        yield "vindex", mask, lambda a, s=mask: a[s]


def select(array, way, selection):
    return array[selection] if way == "basic" else getattr(array, way)[selection]


def owner_of(constant):
    """Return the module in which a number of this package stands."""
    names = []
    for room in ("_core", "_gpu", "_runtime", "_plan", "_sources", "_read", "_write"):
        package = importlib.import_module(f"numcodecs_bytes.{room}")
        names += [
            each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        ]
    (owner,) = [m for m in map(importlib.import_module, names) if constant in vars(m)]
    return owner


def use_threads(num):
    """Set the number of threads that read a batch; a context manager."""
    return zarr.config.set({"threading.max_workers": num, "codec_pipeline.max_workers": num})


async def cancelled(awaitable, has_begun, may_go_on, *, answers):
    """Cancel a read or a write once it has begun; if the file answers, let it go on 0.1 s later."""
    task = asyncio.ensure_future(awaitable)
    assert await asyncio.to_thread(has_begun.wait, 60)
    task.cancel()
    if answers:
        asyncio.get_running_loop().call_later(0.1, may_go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await task
