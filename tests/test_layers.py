"""Who may import whom: docs/contributing.md says so, and the imports keep to it."""

import ast
import re
import sys
from pathlib import Path

import pytest
from helpers import run_python

import numcodecs_bytes

# All names of zarr that this package uses although they are not public: by their module, or as
# attributes of zarr's objects. `check_class` looks at the methods that are overridden.
PRIVATE_NAMES = {
    "zarr.codecs._v2": "V2Codec",
    "zarr.codecs.numcodecs._codecs": "AsType BitRound FixedScaleOffset Quantize",
    "zarr.codecs.sharding": "_ShardIndex",
    "zarr.core.array": "create_codec_pipeline",
    "zarr.core.array_spec": "ArrayConfig ArraySpec",
    "zarr.core.buffer": "ArrayLike Buffer BufferPrototype NDArrayLike NDBuffer cpu "
    "default_buffer_prototype gpu",
    "zarr.core.codec_pipeline": "BatchedCodecPipeline FusedCodecPipeline",
    "zarr.core.common": "JSON ZarrFormat concurrent_map",
    "zarr.core.dtype.common": "HasEndianness HasItemSize",
    "zarr.core.metadata.v2": "ArrayV2Metadata",
    "zarr.core.sync": "sync",
    "zarr.storage._fsspec": "FsspecStore",
    "zarr.storage._local": "LocalStore",
    "zarr.storage._memory": "MemoryStore",
    "zarr.storage._obstore": "ObjectStore",
    "zarr.storage._zip": "ZipStore",
    "attributes of objects": "_codec _decode_shard_index_sync _decode_sync "
    "_encode_shard_index_sync _encode_sync _ensure_open _get_chunk_spec _get_chunks_per_shard "
    "_get_index_chunk_spec _index_codecs_sync_capable _is_open _lock "
    "_shard_index_size _zf _zipfile",
}

PACKAGE = Path(numcodecs_bytes.__file__).parent
PAGE = PACKAGE.parent / "docs" / "contributing.md"
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")
}


def layers():
    """Return the layer of each module, as the page lists them, the lowest first."""
    text = PAGE.read_text(encoding="utf-8").partition("## The layers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    names = {name: i for i, row in enumerate(rows) for name in re.findall("`(.*?)`", row)}
    assert len(rows) >= 5
    names |= {"_gpu/__init__": 0}
    return {m: names[m if m in names else m.partition("/")[0]] for m in MODULES}


def imported_by(path):
    """Yield the modules of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            module = rest.replace(".", "/")
            if package == PACKAGE.name and module in MODULES:
                yield module


def functions():
    """Yield each function of the package, with the name of its module."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield module, node


# Attributes that begin with an underscore, but are fsspec's, VirtualiZarr's, Python's or our own.
OTHERS = {"_cat_file", "_strip_protocol", "_registry"}
OTHERS |= {
    "_exit",
    "_exit_function",
    "_make",
    "_replace",
    "_dtypes",
    "_read_by_zarr",
    "_write_by_zarr",
}


def names_of_zarr(tree):
    """Yield (module, name) for what a file uses of zarr's private modules, or of private names."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            is_own = names[0].startswith(("self._", "cls._", "zarr."))
            if re.match("_[^_]", node.attr) and not is_own and node.attr not in OTHERS:
                yield "attributes of objects", node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        for name in names:
            module = max(
                (m for m in PRIVATE_NAMES if name.startswith(f"{m}.")), key=len, default=""
            )
            if module:
                yield module, name.removeprefix(f"{module}.").partition(".")[0]
            elif re.fullmatch(r"zarr\.core(\.\w+)*\.\w+|zarr\.([a-z]\w*\.)*_[^_]\w*(\.\w+)*", name):
                yield name.rpartition(".")[0], name.rpartition(".")[2]


def test_names_of_zarr_that_are_not_public_stand_in_one_list():
    """Those are what a new version of zarr may change without saying so."""
    used = set()
    for path in MODULES.values():
        used |= set(names_of_zarr(ast.parse(path.read_text(encoding="utf-8"))))
    is_module = {(m.rpartition(".")[0], m.rpartition(".")[2]) for m in PRIVATE_NAMES}
    listed = {(module, name) for module, names in PRIVATE_NAMES.items() for name in names.split()}
    assert sorted(used - is_module - {("zarr.codecs.sharding", "__name__")}) == sorted(listed)


def test_no_function_is_longer_than_50_lines_or_has_more_than_6_positional_parameters():
    """What is longer, or takes more, is not understood in one reading."""
    found = list(functions())
    assert len(found) > 300
    for module, node in found:
        where = f"{module}: {node.name}"
        assert node.end_lineno - node.lineno < 50, where
        assert len(node.args.posonlyargs + node.args.args) <= 6, where


def test_every_module_has_a_layer_and_imports_none_above_it():
    layer_of = layers()
    imports = {(module, other) for module, path in MODULES.items() for other in imported_by(path)}
    assert len(imports) > len(MODULES)
    assert [pair for pair in sorted(imports) if layer_of[pair[1]] > layer_of[pair[0]]] == []


def test_writes_import_nothing_of_reads_nor_reads_of_writes():
    """What both need stands below both."""
    imports = {(module, other) for module, path in MODULES.items() for other in imported_by(path)}
    rooms = {(module.partition("/")[0], other.partition("/")[0]) for module, other in imports}
    assert not rooms & {("_write", "_read"), ("_read", "_write")}


def test_what_plans_and_copies_imports_no_zarr():
    """Nor what it imports: these layers can be read, and tested, without knowing zarr."""
    names = [m.replace("/", ".") for m in MODULES if m.startswith(("_core/", "_plan/"))]
    imported = [f"numcodecs_bytes.{name.removesuffix('.__init__')}" for name in names]
    run_python("-c", f"import sys, {', '.join(imported)}\nassert 'zarr' not in sys.modules")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="profiles of all threads are new in 3.12")
def test_a_row_and_a_small_chunk_pass_few_functions(tmp_path):
    """What an array knows of its store was looked up again for each read: 30 functions more."""
    printed = run_python("-c", COUNT_FUNCTIONS, tmp_path)
    num_read, num_written = map(int, printed.stdout.split())
    assert num_read <= 70  # 55, and more where the system can't read without waiting
    assert num_written <= 56


COUNT_FUNCTIONS = """
import os, sys, threading
import numpy as np, zarr
import numcodecs_bytes.zarr_pipeline

PACKAGE = os.path.join(os.path.dirname(numcodecs_bytes.__file__), "")
functions = set()

def note(frame, event, _):
    path, name = frame.f_code.co_filename, frame.f_code.co_qualname
    if event == "call" and path.startswith(PACKAGE) and "comp>" not in name:
        functions.add((path, name))

def count(call):
    call()
    call()
    functions.clear()
    threading.setprofile_all_threads(note)
    call()
    threading.setprofile_all_threads(None)
    print(len(functions))

array = zarr.create_array(
    sys.argv[1] + "/a", shape=(64, 1024), chunks=(64, 1024), dtype="f8", compressors=None
)
values = np.ones((64, 1024))
array[:] = values
count(lambda: array[5])
count(lambda: array.__setitem__(slice(None), values))
"""
