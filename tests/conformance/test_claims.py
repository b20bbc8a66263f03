"""The table of peers in the README, each cell of it."""

import functools
import importlib.util
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from claims import write_arrays
from helpers import run_python

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
_, _, table = README.read_text("utf-8").partition("<!-- checked by tests/conformance -->\n")
HEAD, _, *ROWS = (
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in table.partition("\n<!-- end -->")[0].splitlines()
)
CELLS = [
    (row[0], column, cell) for row in ROWS for column, cell in zip(HEAD[1:], row[1:], strict=True)
]


@pytest.fixture(scope="module")
def found_by(tmp_path_factory):
    """Return what holds for a reader, which runs in a process of its own."""
    folder = tmp_path_factory.mktemp("claims")
    write_arrays(folder)

    @functools.cache
    def ask(who):
        return json.loads(run_python(HERE / "claims.py", who, folder).stdout)

    return ask


def test_every_claim_is_in_the_table(found_by):
    assert [row[0] for row in ROWS] == list(found_by("this package"))
    assert {cell for *_, cell in CELLS} == {"yes", "no"}


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts bytes read")
@pytest.mark.parametrize(("claim", "column", "cell"), CELLS, ids=lambda text: text)
def test_cell(found_by, claim, column, cell):
    """A "no" is of the version in the head: a newer one may have learned more."""
    who, *versions = column.split()
    if column == "this package":
        assert found_by(column)[claim] == (cell == "yes")
        return
    if importlib.util.find_spec(who.lower()) is None:
        pytest.skip(f"{who} is not installed: pip install --group peers")
    if who == "zarrs" and version("zarr").startswith("3.1."):
        pytest.skip("what zarrs leaves to zarr is that of the newest zarr")
    if not version(who).startswith(versions[0]) and (cell == "no" or who == "zarr"):
        pytest.skip(f"this is {who} {version(who)}")
    assert found_by(who)[claim] == (cell == "yes")
