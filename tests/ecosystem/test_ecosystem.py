"""Packages that stand on zarr end the same with and without this package.

The dependency group `ecosystem` brings them, in the newest versions that this Python gets.
"""

import importlib.util
import json
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from helpers import run_python
from programs import PROGRAMS

HERE = Path(__file__).parent


PAGE = HERE.parents[1] / "docs" / "works-with.md"


def run(folder, program, *arguments):
    if importlib.util.find_spec("virtualizarr") is None:  # before processes are started
        pytest.skip("virtualizarr is not installed: pip install --group ecosystem")
    folder.mkdir()
    done = run_python(HERE / program, folder, *arguments, status=None, options={"timeout": 120})
    last_line = done.stderr.rstrip().rpartition("\n")[2]
    if last_line.startswith("ModuleNotFoundError"):
        pytest.skip(f"{last_line}: pip install --group ecosystem")
    # icechunk 1 and 2 may abort while the interpreter ends, also without this package.
    is_alone = "alone" in arguments
    assert done.returncode == 0 or (is_alone and done.stdout), done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # some packages print


@pytest.mark.parametrize("package", PROGRAMS)
def test_programs_end_the_same(package, tmp_path, capsys):
    """tifffile's store has no byte ranges, others stand on files that are read in place."""
    start = time.monotonic()
    with_us = run(tmp_path / "with", "programs.py", package)
    alone = run(tmp_path / "alone", "programs.py", package, "alone")
    assert (with_us["codec"], alone["codec"]) == ("numcodecs_bytes.zarr", "zarr.codecs.bytes")
    assert with_us["results"] == alone["results"]
    assert not [result for result in alone["results"].values() if "Error" in result]
    with capsys.disabled():
        seconds = time.monotonic() - start
        print(
            f"\n{package} {version(package)}, zarr {version('zarr')}: {len(alone['results'])} "
            f"reads are the same with and without numcodecs_bytes ({seconds:.0f} s)"
        )


def shown(num_bytes):
    """Return a number of bytes as the page has it; some hundred are of the event loop."""
    unit, name = (2**20, "MiB") if num_bytes >= 2**20 else (2**10, "KiB")
    return f"{num_bytes // unit} {name}"


def test_bytes_for_a_row_are_as_documented(tmp_path):
    found = [run(tmp_path / "with", "rows.py")]
    if not version("zarr").startswith("3.1."):  # by itself, it reads smaller parts of a shard
        found.append(run(tmp_path / "alone", "rows.py", "alone"))
    rows = [
        line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if "iB |" in line
    ]
    assert sorted(name for name, *_ in rows) == sorted(found[0])
    for name, *documented in rows:
        for cell, by in zip(documented, found, strict=False):
            assert shown(by[name]) == cell, (name, cell)
