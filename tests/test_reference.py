"""docs/api.md gives the signature of everything that is public."""

import dataclasses
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from helpers import OUR_PIPELINES

import numcodecs_bytes.check
import numcodecs_bytes.migrate
import numcodecs_bytes.zarr_pipeline

PAGE = Path(__file__).parents[1].joinpath("docs/api.md").read_text("utf-8")
BLOCKS = "".join(re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LINES = re.sub(r"\(\s+(.*)\s+\)", r"(\1)", BLOCKS).splitlines()  # each signature on one line
NAMES = [line.partition("(")[0] for line in LINES]
# Of the classes that the page calls by their short names.
MODULES = {"Bytes": "numcodecs_bytes.", "Trace": "numcodecs_bytes._runtime.traces."}


def resolve(name):
    return pkgutil.resolve_name(MODULES.get(name.partition(".")[0], "") + name)


@pytest.mark.parametrize("line", [line for line in LINES if "(" in line])
def test_signature(line):
    """Without types, as the page has them."""
    name, _, _ = line.partition("(")
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in inspect.signature(resolve(name)).parameters.values()
        if parameter.name != "self"
    ]
    assert line == name + str(inspect.Signature(parameters)).replace("'", '"')


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("Report")])
def test_attributes_of_a_report(name):
    for field in dataclasses.fields(resolve(name)):
        assert f"`{field.name}`" in PAGE


@pytest.mark.parametrize("pipeline", OUR_PIPELINES)
def test_pipelines(pipeline):
    assert pipeline in NAMES


@pytest.mark.parametrize(
    "module", [numcodecs_bytes, numcodecs_bytes.check, numcodecs_bytes.migrate]
)
def test_nothing_is_left_out(module):
    public = set(module.__all__) - {"__version__"}
    assert {f"{module.__name__}.{name}" for name in public} <= set(NAMES)
