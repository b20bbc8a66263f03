"""The README's code and the examples run, and show what they say."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
)
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


def test_the_readme_has_code():
    assert len(BLOCKS) >= 2
    assert EXAMPLES


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_code(block, tmp_path):
    subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, check=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example(example, tmp_path):
    """In a fresh process, as a user runs it."""
    for package in NEEDS.get(example.name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install '.[examples]'")
    done = subprocess.run(
        [sys.executable, example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "numcodecs_bytes.zarr" in done.stdout
