"""migrate killed, run in parallel and out of space: every node stays readable, in both formats."""

import contextlib
import random
import shutil
import signal
import sys
from contextlib import closing

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import run_program, start_program, write_v2

from numcodecs_bytes.__main__ import main
from numcodecs_bytes.migrate import migrate

pytestmark = [
    pytest.mark.filterwarnings("ignore:Both zarr", "ignore:Object at", "ignore:Consolidated"),
    pytest.mark.skipif(sys.platform == "win32", reason="no such signals and limits there"),
]
DATA = np.arange(4, dtype="i2")
ARRAYS = ("x", "deep/y", "deep/in/z")
# Kills itself as soon as a number of lines of code that writes has run, in any thread.
PROGRAM = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
import zarr
import numcodecs_bytes.migrate
from numcodecs_bytes.__main__ import main
number, kind = int(sys.argv[1]), sys.argv[2]
files = "storage/_local.py"
num_lines = 0
def trace(frame, event, _):
    global num_lines
    code = frame.f_code
    in_write = code.co_filename.endswith("numcodecs_bytes/migrate.py") and code.co_name == "_write"
    if not in_write and not code.co_filename.endswith(files):
        return None
    if event == "line":
        num_lines += 1
        if num_lines == number:
            os.kill(os.getpid(), getattr(signal, kind))
    return trace
threading.settrace(trace)
sys.settrace(trace)
status = main(["migrate", *sys.argv[3:]])
sys.settrace(None)
print(num_lines)
sys.exit(status)
"""


def written(folder):
    """Write a consolidated hierarchy; return its path."""
    path = folder / "a"
    for group in ("", "deep", "deep/in"):
        zarr.create_group(path / group, zarr_format=2)
    for name in ARRAYS:
        write_v2(path / name, DATA.tobytes(), "<i2", [4])
    zarr.consolidate_metadata(path, zarr_format=2)
    return path


def run(*arguments, number=0, kind="SIGKILL", before=""):
    """Run migrate until as many lines of code that writes have run, and other code before."""
    return run_program("-c", before + PROGRAM, number, kind, *arguments, status=None)


def assert_readable(path, excluded=()):
    """Each array, by its own path and from the root, by either format that the root has."""
    for zarr_format in (None, 2):
        root = zarr.open_group(path, mode="r", zarr_format=zarr_format)
        shown = set(ARRAYS) - set(excluded if root.metadata.zarr_format == 3 else ())
        members = {name for name, found in root.members(max_depth=None) if hasattr(found, "shape")}
        assert members >= shown, zarr_format
        for name in ARRAYS:
            if name in shown:
                assert root[name][:].tolist() == DATA.tolist(), (zarr_format, name)
            array = zarr.open_array(path, path=name, mode="r", zarr_format=zarr_format)
            assert array[:].tolist() == DATA.tolist(), (zarr_format, name)


def assert_done(path, option="--overwrite"):
    """Nothing is left to do, and nothing is left over."""
    if option == "--undo":
        assert {report.status for report in migrate(path, undo=True)} == {"Zarr v2 already"}
        migrate(path)
    assert {report.status for report in migrate(path)} == {"Zarr v3 already"}
    assert_readable(path)
    assert zarr.open_group(path, zarr_format=3)["deep/in/z"].metadata.zarr_format == 3


OPTIONS = pytest.mark.parametrize("option", ["--overwrite", "--undo"])


def prepared(path, option):
    """Migrate what is to be undone."""
    if option == "--undo":
        migrate(path)
    return path


@pytest.mark.matrix
@OPTIONS
@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
def test_killed(tmp_path, option, by, everything):
    tmp_path.joinpath("template").mkdir()
    template = prepared(written(tmp_path / "template"), option)
    rng = random.Random(0)  # noqa: S311
    whole = run(shutil.copytree(template.parent, tmp_path / "whole") / template.name, option)
    num_lines = int(whole.stdout.split()[-1])
    assert num_lines > 30
    for i in range(8 if everything else 2):
        path = shutil.copytree(template.parent, tmp_path / str(i)) / template.name
        for _ in range(2):  # the second time, with what the first has left behind
            done = run(path, option, number=rng.randint(1, num_lines), kind=by)
            assert (done.returncode, done.stderr) in [(-getattr(signal, by), ""), (0, "")]
            assert_readable(path)
        assert main(["migrate", str(path), option]) == 0
        assert_done(path, option)


@pytest.mark.matrix
@pytest.mark.parametrize("ending", ["all", "undo"])
def test_killed_with_nodes_excluded(tmp_path, ending, everything):
    """Whatever is left, a later migration completes it, or it can be undone."""
    tmp_path.joinpath("template").mkdir()
    template = written(tmp_path / "template")
    exclude = ["--exclude", "deep/y"]
    rng = random.Random(1)  # noqa: S311
    whole = run(shutil.copytree(template.parent, tmp_path / "whole") / template.name, *exclude)
    num_lines = int(whole.stdout.split()[-1])
    for i in range(8 if everything else 3):
        path = shutil.copytree(template.parent, tmp_path / str(i)) / template.name
        run(path, *exclude, number=rng.randint(1, num_lines))
        assert_readable(path, ["deep/y"])
        if ending == "undo":
            migrate(path, undo=True)
        else:
            run(path, number=rng.randint(1, num_lines))
            assert_readable(path, ["deep/y"])
        assert main(["migrate", str(path)]) == 0
        assert_done(path)


@pytest.mark.matrix
@OPTIONS
def test_in_parallel(tmp_path, option):
    """Some may refuse, with the reason; none destroys what another has written."""
    path = prepared(written(tmp_path), option)
    assert 0 in run_in_parallel(path, [[option]] * 4)
    assert_done(path, option)


def test_in_parallel_with_nodes_excluded(tmp_path):
    """Of different nodes: what is left is completed by one more migration."""
    path = written(tmp_path)
    run_in_parallel(path, [["--exclude", name] for name in ARRAYS] + [[]], ARRAYS)
    assert main(["migrate", str(path)]) == 0
    assert_done(path)


def run_in_parallel(path, options, excluded=()):
    """Run migrate several times at once; return the exit statuses."""
    statuses = set()
    with contextlib.ExitStack() as stack:
        command = ("-m", "numcodecs_bytes", "migrate", path)
        programs = [stack.enter_context(closing(start_program(*command, *o))) for o in options]
        for program in programs:
            statuses.add(status := program.wait(60))
            said = program.stdout.read() + program.stderr.read()
            reasons = ("another process", "meanwhile", "kept")
            assert status == 0 or any(reason in said for reason in reasons), said
            assert_readable(path, excluded)
    return statuses


def test_out_of_space(tmp_path):
    """Files may not grow beyond a number of bytes, as on a full disk."""
    path = written(tmp_path)
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    for num_bytes in (0, 100, 1000, 2500):
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({num_bytes},) * 2)"
        done = run(path, before=limited)
        assert done.returncode == 2
        assert "OSError: " in done.stderr
        assert "File too large" in done.stderr
        after = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
        assert {f: raw for f, raw in after.items() if f.name != "zarr.json"} == before
        assert_readable(path)
    migrate(path)
    assert_done(path)
