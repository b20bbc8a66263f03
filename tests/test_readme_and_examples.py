"""The code of the README and of docs/, and the examples, run and show what they say."""

import json
import os
import re
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from helpers import has, run_python
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (
        *(ROOT / "README.md", ROOT / ".github/SECURITY.md"),
        *sorted((ROOT / "docs").glob("*.md")),
    )
}
PYTHON = re.compile(  # and what it prints, if the next block is that
    r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What starts many processes, or imports much.
LONG = (
    *("docs/recipes.md", "dask_cluster.py", "icechunk_virtual.py"),
    *("kerchunk_netcdf3.py", "write_in_place.py", "xarray_lazy.py", "xarray_regions.py"),
)
# Of AnnData, which only sets an option of pandas.
WARNING_OF_OTHERS = "ignore:The 'future.infer_string' option"
# Run before and after a recipe; the processes that it starts run it, too.
BEFORE = """
import numcodecs_bytes
traced = numcodecs_bytes.trace().__enter__()
"""
AFTER = """
if __name__ == "__main__":
    total = traced.report()["total"]
    assert total["chunks"] and not total["chunks_whole"], traced
"""

# What CI does not install: the recipes that need it are run by hand before a release.
TOO_LARGE = ("torch",)

WITH_STAND_IN = """
import runpy, sys, standin_cupy
sys.modules["cupy"] = standin_cupy
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def parameter(values, file, name):
    return pytest.param(*values, id=name, marks=[pytest.mark.long] if file in LONG else [])


BLOCKS = [
    parameter((block, shown or None), page, f"{page}-{number}")
    for page, text in PAGES.items()
    for number, (block, shown) in enumerate(PYTHON.findall(text))
]
EXAMPLES = [parameter((path,), path.name, path.name) for path in sorted(ROOT.glob("examples/*.py"))]


def run_or_skip(*arguments, folder, **environment):
    """Run a program in a fresh process; skip the test if it lacks a package."""
    done = run_python(*arguments, status=None, options={"cwd": folder}, **environment)
    last_line = done.stderr.rstrip().rpartition("\n")[2]
    if last_line.startswith(("ModuleNotFoundError", "ImportError")):
        pytest.skip(f"{last_line}: pip install '.[examples]'")
    assert done.returncode == 0, done.stderr
    return done.stdout


def missing_packages(block):
    """Yield what the first line of a recipe installs, but this environment lacks."""
    commands = re.match("# pip install (.*)", block)
    requirements = shlex.split(commands[1], comments=True) if commands else ()
    for requirement in map(Requirement, requirements):
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield str(requirement)
        else:
            if installed not in requirement.specifier:
                yield f"{requirement}, got {installed}"


def test_package_pages_and_workflow_name_the_same_versions_of_python():
    """Python 3.14 was tested, but neither the package's classifiers nor its limits said so."""
    classifiers = (ROOT / "pyproject.toml").read_text("utf-8")
    workflow = (ROOT / ".github/workflows/test.yml").read_text("utf-8")
    versions = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', classifiers)
    assert f"python: {json.dumps(versions)}\n" in workflow
    for page in ("README.md", "docs/limits.md", "docs/contributing.md"):
        assert f"{versions[0]} to {versions[-1]}" in PAGES[page], page


@pytest.mark.parametrize(("block", "shown"), BLOCKS)
def test_code_of_a_page(block, shown, tmp_path, request):
    """In an empty folder, and without a warning; a recipe reads nothing whole that need not be.

    What the page shows below a block is what it prints.
    """
    environment = request.getfixturevalue("s3") if "S3Store" in block else {}
    if missing := next(missing_packages(block), None):
        why = "too large to install" if missing.startswith(TOO_LARGE) else "needs"
        pytest.skip(f"{why}: {missing}")
    if request.node.callspec.id.startswith("docs/recipes.md"):
        block = BEFORE + block + AFTER
    script, folder = tmp_path / "block.py", tmp_path / "empty"
    script.write_text(block, "utf-8")
    folder.mkdir()
    warnings = "-W", "error", "-W", WARNING_OF_OTHERS
    printed = run_or_skip(*warnings, script, folder=folder, **environment)
    assert shown is None or printed == shown


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example, tmp_path):
    """Without what its packages no longer recommend; with a stand-in for CuPy."""
    program, environment = [example], {}
    if example.name == "gpu.py":
        program = ["-c", WITH_STAND_IN, example]
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    warnings = "-W", "error::DeprecationWarning"
    printed = run_or_skip(*warnings, *program, folder=tmp_path, **environment)
    assert "numcodecs_bytes.zarr_" in printed  # a pipeline, or the codec
    if example.name == "quickstart.py":  # on Windows, it ended with a traceback
        why = "so zarr wrote the whole chunk: this system has no flock"
        assert ("a row of a chunk, in place" in printed) == has("fcntl")
        assert (why in printed) != has("fcntl")


@pytest.fixture
def s3(s3_server, s3_client):
    """Return the environment that leads S3 to a server with the bucket that the pages name."""
    pytest.importorskip("s3fs", reason="the extra stores is not installed")
    s3_client.create_bucket(Bucket="my-bucket")
    environment = {"AWS_ENDPOINT_URL": s3_server, "AWS_DEFAULT_REGION": "us-east-1"}
    environment |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    return environment | {"AWS_ALLOW_HTTP": "true"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """Links to files and to their headings; a package index has no files beside its page."""
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if "://" in link:
            continue
        assert page != "docs/pypi.md", link
        file, _, heading = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.is_file(), link
        assert not heading or heading in anchors_of(target), link


def anchors_of(page):
    """Return what links to the headings of a page end with."""
    titles = re.findall(r"^#+ (.*)", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)
    anchors = [re.sub(r"[^\w\- ]", "", title).strip().lower() for title in titles]
    return [anchor.replace(" ", "-") for anchor in anchors]


def test_links_of_the_navigation_lead_to_headings():
    """mkdocs does not check these."""
    configuration = ROOT.joinpath(".ci", "mkdocs.yml").read_text("utf-8")
    links = re.findall(r": /([\w-]+)/#(.*)", configuration)
    assert links
    for page, heading in links:
        assert heading in anchors_of(ROOT / "docs" / f"{page}.md")
