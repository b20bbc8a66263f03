"""Packages that stand on zarr end the same with and without this package, and read less with it.

The dependency group `ecosystem` brings them, in the newest versions that this Python gets.
"""

import json
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import OUR_PIPELINES, run_python
from programs import PROGRAMS

PROGRAM = Path(__file__).with_name("programs.py")
MAX_ROW_BYTES = 8_000  # of which 2,048 are the row; some hundred are of the event loop


def run(folder, *arguments):
    folder.mkdir()
    done = run_python(PROGRAM, folder, *arguments, options={"timeout": 300})
    return json.loads(done.stdout.splitlines()[-1])  # some packages print


needs_packages = pytest.mark.skipif(
    find_spec("anndata") is None, reason="pip install --group ecosystem"
)


@needs_packages
@pytest.mark.parametrize("package", PROGRAMS)
def test_programs_end_the_same(package, tmp_path, capsys):
    with_us, alone = run(tmp_path / "with", package), run(tmp_path / "alone", package, "alone")
    assert (with_us["codec"], alone["codec"]) == ("numcodecs_bytes.zarr_codec", "zarr.codecs.bytes")
    assert with_us["values"] == alone["values"]
    assert not [value for value in alone["values"].values() if "Error" in value]
    read_in_part = {name for name, num in with_us["row_bytes"].items() if num < MAX_ROW_BYTES}
    assert read_in_part == {
        name
        for name in with_us["row_bytes"]
        # tifffile's own store has no byte ranges.
        if "compressed" not in name and (package != "tifffile" or "virtual-tiff" in name)
    }
    with capsys.disabled():
        print(f"\n{package} {version(package)}: {len(read_in_part)} arrays are read in part")


@needs_packages
def test_anndata_keeps_our_fused_pipeline():
    """Which is how its users get both: it replaces only what is called "Batched"."""
    program = """
import sys, anndata, zarr
zarr.config.set({"codec_pipeline.path": sys.argv[1]})
with anndata._io.zarr.fast_zarr_context():
    print(zarr.config.get("codec_pipeline.path"))
"""
    done = run_python("-W", "ignore", "-c", program, OUR_PIPELINES[1])
    assert done.stdout.split() == [OUR_PIPELINES[1]]
