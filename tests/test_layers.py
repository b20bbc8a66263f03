"""Who may import whom: docs/contributing.md says so, and the imports keep to it."""

import ast
import re
from pathlib import Path

import numcodecs_bytes

PACKAGE = Path(numcodecs_bytes.__file__).parent
PAGE = PACKAGE.parent / "docs" / "contributing.md"
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")
}


def layers():
    """Return the layer of each module, as the page lists them, the lowest first."""
    text = PAGE.read_text(encoding="utf-8").partition("## Layers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    names = {name: i for i, row in enumerate(rows) for name in re.findall("`(.*?)`", row)}
    assert len(rows) >= 5
    return {module: names[module.partition("/")[0]] for module in MODULES}


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
