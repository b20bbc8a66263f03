"""migrate killed, run in parallel and out of space: every node stays readable, in both formats."""

import contextlib
import os
import shutil
import signal
import subprocess
from contextlib import closing

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import EVERYTHING, run_program, start_program, write_v2

from numcodecs_bytes.migrate import migrate

pytestmark = [
    pytest.mark.filterwarnings("ignore:Both zarr", "ignore:Object at", "ignore:Consolidated"),
    pytest.mark.needs("os.killpg", "resource"),  # signals and limits
]
DATA = np.arange(4, dtype="i2")
ARRAYS = ("x", "deep/y", "deep/in/z")
# Kills itself just before a number of calls that change files, in any thread.
PROGRAM = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import numcodecs_bytes.migrate
from numcodecs_bytes.__main__ import main
number, kind, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3].removeprefix("file://")
num_calls = 0
def count(event, arguments):
    global num_calls
    is_change = event in ("os.rename", "os.remove", "os.link", "os.truncate")
    is_change |= event == "open" and bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
    if is_change and folder in str(arguments[0]):
        num_calls += 1
        if num_calls == number:
            os.kill(os.getpid(), getattr(signal, kind))
sys.addaudithook(count)
status = main(["migrate", *sys.argv[3:]])
print(num_calls)
sys.exit(status)
"""


@pytest.fixture
def path(tmp_path):
    """Return the path of a consolidated hierarchy."""
    for group in ("", "deep", "deep/in"):
        zarr.create_group(tmp_path / "a" / group, zarr_format=2)
    for name in ARRAYS:
        write_v2(tmp_path / "a" / name, DATA.tobytes(), "<i2", [4])
    zarr.consolidate_metadata(tmp_path / "a", zarr_format=2)
    return tmp_path / "a"


def run(*arguments, number=0, kind="SIGKILL", before=""):
    """Run migrate until as many calls have changed files, and other code before."""
    return run_program("-c", before + PROGRAM, number, kind, *arguments, status=None)


def assert_readable(path, excluded=()):
    """Each array, by its own path and from the root, by either format, consolidated or not."""
    for zarr_format, is_consolidated in ((None, None), (None, False), (2, None)):
        options = {"zarr_format": zarr_format, "use_consolidated": is_consolidated}
        root = zarr.open_group(path, mode="r", **options)
        shown = set(ARRAYS) - set(excluded if root.metadata.zarr_format == 3 else ())
        assert {name for name, _ in root.members(max_depth=None)} >= shown, zarr_format
        for name in ARRAYS:
            array = zarr.open_array(path, path=name, mode="r", zarr_format=zarr_format)
            for found in (array, *([root[name]] if name in shown else [])):
                assert found[:].tolist() == DATA.tolist(), (zarr_format, name)


def assert_completed(path, options=()):
    """Once more, and nothing is left to do, or left over."""
    is_undo = "--undo" in options
    migrate(path, undo=is_undo)
    done = {report.status for report in migrate(path, undo=is_undo)}
    assert done == {"Zarr v2 already" if is_undo else "Zarr v3 already"}
    assert_readable(path)
    assert len(list(path.rglob("zarr.json"))) == (0 if is_undo else 6)


EXCLUDE = ("--exclude", "deep/y")


@pytest.mark.parametrize(
    "options", [(), ("--undo",), pytest.param(EXCLUDE, marks=pytest.mark.long)], ids=str
)
@pytest.mark.parametrize("scheme", ["", pytest.param("file://", marks=pytest.mark.long)])
def test_killed(tmp_path, path, options, scheme):
    if "--undo" in options:
        migrate(path)
    whole = run(scheme + str(shutil.copytree(path, tmp_path / "whole")), *options)
    num_calls = int(whole.stdout.split()[-1])
    assert num_calls >= 6
    for number in range(1, num_calls + 1, 1 if EVERYTHING else 1 + num_calls // 2):
        copy = shutil.copytree(path, tmp_path / str(number))
        kind = "SIGTERM" if number % 2 else "SIGKILL"
        done = run(f"{scheme}{copy}", *options, number=number, kind=kind)
        assert (done.returncode, done.stderr) == (-getattr(signal, kind), "")
        assert_readable(copy, ["deep/y"])
        run(copy, *options, number=2)  # with what the first has left behind
        assert_readable(copy, ["deep/y"])
        assert_completed(copy, options)


@pytest.mark.parametrize("options", [(), ("--undo",), EXCLUDE], ids=str)
def test_in_parallel(path, options):
    """Of the same nodes or different ones: what is left is completed by one more migration."""
    if "--undo" in options:
        migrate(path)
    command = ("-m", "numcodecs_bytes", "migrate", path)
    each = [["--exclude", name] for name in ARRAYS] if "--exclude" in options else [options] * 3
    with contextlib.ExitStack() as stack:
        for program in [stack.enter_context(closing(start_program(*command, *o))) for o in each]:
            status, said = program.wait(60), program.stdout.read() + program.stderr.read()
            # Of the root, each has other nodes in its consolidated metadata.
            is_of_another = options == EXCLUDE and "zarr.json has changed since it was" in said
            assert status == 0 or is_of_another, said
            assert_readable(path, ARRAYS)
    assert_completed(path, options)


LOCATIONS = ["{}", "file://{}", pytest.param("local://{}", marks=pytest.mark.long)]


@pytest.mark.parametrize("location", LOCATIONS)
def test_out_of_space(path, location):
    """Files may not grow beyond a number of bytes, as on a full disk."""
    if "://" in location:
        pytest.importorskip("fsspec", reason="the extra stores is not installed")
    for num_bytes in (0, 100, 2500):
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({num_bytes},) * 2)"
        done = run(location.format(path), before=limited)
        assert done.returncode == 2
        assert "can't be written: OSError: File too large; fix that and run" in done.stderr
        assert_readable(path)
    assert_completed(path)


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_full_disk(tmp_path, path, location):
    """fsspec left half a zarr.json beside an intact .zarray, which could not be opened any more."""
    if "://" in location:
        pytest.importorskip("fsspec", reason="the extra stores is not installed")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount file systems")
    try:
        copy = shutil.copytree(path, disk / "a")
        filler = disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        returncodes: list[int] = []
        for _ in range(8):  # with room for a file more each time, as another program may leave it
            done = run(location.format(copy))
            returncodes.append(done.returncode)
            assert_readable(copy)
            if done.returncode == 0:
                break
            assert "No space left on device; fix that and run migrate again" in done.stderr
            os.truncate(filler, filler.stat().st_size - 4096)
        assert (returncodes[0], returncodes[-1]) == (2, 0)
        filler.unlink()
        assert_completed(copy)
    finally:
        subprocess.run([shutil.which("umount"), str(disk)], check=True)
