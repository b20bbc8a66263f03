"""The code of the README and of docs/, and the examples, run and show what they say."""

import importlib.util
import re
from pathlib import Path

import pytest
from helpers import run_python

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, text in PAGES.items()
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    )
]
NEEDS = {
    "dask_cluster.py": ("dask", "distributed"),
    "fits_table.py": ("astropy", "virtualizarr", "obstore"),
    "icechunk_virtual.py": ("icechunk", "obstore", "scipy", "virtualizarr"),
    "kerchunk_netcdf3.py": ("aiohttp", "dask", "kerchunk", "scipy", "xarray"),
    "object_store.py": ("obstore",),
    "partial_read.py": ("virtualizarr", "kerchunk", "obstore"),
    "xarray_lazy.py": ("xarray",),
}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_is_code():
    assert PAGES["README.md"].count("\n```python\n") >= 2
    assert len(BLOCKS) == sum(text.count("\n```python\n") for text in PAGES.values())
    assert EXAMPLES


@pytest.mark.parametrize("block", BLOCKS)
def test_code_of_a_page(block, tmp_path):
    """In a fresh process and an empty folder, and without a warning."""
    run_python("-W", "error", "-c", block, options={"cwd": tmp_path})


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    """Relative links, and the headings that they name, as a forge shows them."""
    for link in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        target = (ROOT / name).parent / file if file else ROOT / name
        assert target.is_file(), link
        if heading:
            assert heading in headings(target.read_text("utf-8")), link


def headings(text):
    """Return the anchors of a page's headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example, tmp_path):
    """In a fresh process, as a user runs it."""
    for package in NEEDS.get(example.name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[examples]'")
    assert "numcodecs_bytes.zarr" in run_python(example, options={"cwd": tmp_path}).stdout
