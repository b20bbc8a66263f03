"""Who may import whom: docs/contributing.md says so, and the imports keep to it."""

import ast
import re
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
    "_encode_shard_index_sync _encode_sync _ensure_open _get_index_chunk_spec "
    "_index_codecs_sync_capable _is_open _lazy_load_list _lock _shard_index_size _store "
    "_store_dict _zf _zipfile",
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
OTHERS = {"_cat_file", "_end_offset", "_strip_protocol", "_registry"}
OTHERS |= {
    "_exit",
    "_exit_function",
    "_make",
    "_replace",
    "_dtypes",
    "_read_by_zarr",
    "_write_by_zarr",
}


def private_attribute(node):
    """Return the name of a private attribute of another object that a node uses, or ""."""
    name = ""
    if isinstance(node, ast.Attribute):
        is_own = ast.unparse(node).startswith(("self._", "cls._", "zarr."))
        name = "" if is_own else node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
        name = getattr(node.args[1], "value", "")
    return name if re.match("_[^_]", name) and name not in OTHERS else ""


def names_of_zarr(nodes):
    """Yield (module, name) for what nodes use of zarr's private modules, or of private names."""
    for node in nodes:
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        if attribute := private_attribute(node):
            yield "attributes of objects", attribute
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
        used |= set(names_of_zarr(ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    is_module = {(m.rpartition(".")[0], m.rpartition(".")[2]) for m in PRIVATE_NAMES}
    listed = {(module, name) for module, names in PRIVATE_NAMES.items() for name in names.split()}
    assert sorted(used - is_module - {("zarr.codecs.sharding", "__name__")}) == sorted(listed)


def test_names_of_zarr_with_an_underscore_are_used_in_one_room():
    """There, it says of each what would end it. Elsewhere, strings tell classes by their paths."""
    for module, path in MODULES.items():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        used = names_of_zarr(node for node in nodes if not isinstance(node, ast.Constant))
        private = [pair for pair in used if re.search(r"\b_[^_]", ".".join(pair))]
        assert not private or module.startswith("_zarr_api/"), (module, private)


def test_no_function_is_longer_than_50_lines_or_has_more_than_6_positional_parameters():
    """What is longer, or takes more, is not understood in one reading."""
    for module, node in functions():
        where = f"{module}: {node.name}"
        assert node.end_lineno - node.lineno < 50, where
        assert len(node.args.posonlyargs + node.args.args) <= 6, where


def test_every_module_has_a_layer_and_imports_none_above_it():
    layer_of = layers()
    imports = {(module, other) for module, path in MODULES.items() for other in imported_by(path)}
    assert len(imports) > len(MODULES)
    assert [pair for pair in sorted(imports) if layer_of[pair[1]] > layer_of[pair[0]]] == []


def reached_from(*places):
    """Return the modules that those in folders, or single ones, import, and what these import."""
    found, waiting = set(), [m for m in MODULES if m.startswith(places)]
    assert len(waiting) >= len(places)
    while waiting:
        new = set(imported_by(MODULES[waiting.pop()])) - found
        found |= new
        waiting += new
    return found


# The four verbs of a read, and what each does not know; writes stand beside them.
@pytest.mark.parametrize(
    ("places", "unknown"),
    [
        (["_sources/stores", "_sources/files"], ["_plan/plan", "_plan/selection", "_plan/ranges"]),
        (["_plan/"], ["_sources/", "_runtime/", "_zarr_api/"]),
        (["_read/local", "_read/in_file"], ["_read/remote", "_read/object_plans"]),
        (["_read/remote", "_read/object_plans"], ["_read/local", "_read/in_file"]),
        (["_read/output", "_core/copy"], ["_sources/", "_read/local", "_read/remote"]),
        (["_read/", "_gpu/output"], ["_write/"]),
        (["_write/", "_gpu/values"], ["_read/"]),
    ],
    ids=["locate", "plan", "fetch from files", "request", "scatter", "read", "write"],
)
def test_what_a_verb_does_not_know(places, unknown):
    """Nor does what it imports: so it can be read, and changed, without knowing that."""
    assert all(any(m.startswith(name) for m in MODULES) for name in unknown)
    assert [m for m in sorted(reached_from(*places)) if m.startswith(tuple(unknown))] == []


# What reads files, waits, asks for the time, or runs elsewhere.
NOT_PURE = {"asyncio", "concurrent", "io", "mmap", "os", "pathlib", "socket", "threading", "time"}


def test_plans_are_made_of_numbers_alone():
    """They are tested, and cached, without files, threads and clocks."""
    for module in [m for m in MODULES if m.startswith("_plan/")]:
        for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & NOT_PURE, module


def test_what_plans_and_copies_imports_no_zarr():
    """Nor what it imports: these layers can be read, and tested, without knowing zarr."""
    names = [
        m.replace("/", ".") for m in MODULES if m.startswith(("_core/", "_plan/", "_gpu/kernels"))
    ]
    imported = [f"numcodecs_bytes.{name.removesuffix('.__init__')}" for name in names]
    run_python("-c", f"import sys, {', '.join(imported)}\nassert 'zarr' not in sys.modules")
