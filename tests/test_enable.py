"""`numcodecs-bytes enable` and `disable`: options of all programs of an environment."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import zarr
from helpers import OUR_PIPELINES, PIPELINES

ZARRS = PIPELINES[0].rsplit(".", 1)[-1]
ROW = """
import sys, zarr
array = zarr.create_array(sys.argv[1], shape=(64, 64), dtype="f8", compressors=None, overwrite=True)
array[...] = 1
array[3] = 2
print(type(array.async_array.codec_pipeline).__name__)
"""


class Environment:
    """A virtual environment with the packages of this one, and a home of its own."""

    def __init__(self, folder, *options):
        self.folder, self.home = folder, folder / "home"
        command = [sys.executable, "-m", "venv", "--without-pip", *options, folder]
        subprocess.run(command, check=True)
        self.home.mkdir()
        self.file = folder / "etc/zarr/numcodecs_bytes.toml"
        self.python = folder / ("Scripts/python" if os.name == "nt" else "bin/python")

    def run(self, *arguments, status=0, **variables):
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("ZARR_", "NUMCODECS"))}
        packages = [Path(__file__).parents[1], sysconfig.get_path("purelib")]
        paths = {"PYTHONPATH": os.pathsep.join(map(str, packages)), "HOME": str(self.home)}
        done = subprocess.run(
            [self.python, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=outside | paths | {k: str(v) for k, v in variables.items()},
        )
        assert done.returncode == status, done.stderr
        return done

    def command(self, *arguments, **more):
        return self.run("-m", "numcodecs_bytes", *arguments, **more)

    def pipeline(self, **variables):
        return self.run("-W", "error", "-c", ROW, self.folder / "array", **variables).stdout.strip()


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path / "environment")


@pytest.mark.parametrize("path", OUR_PIPELINES)
def test_programs_of_this_environment_have_the_pipeline(environment, path):
    name = path.rsplit(".", 1)[-1]
    done = environment.command("enable", "--pipeline", name)
    assert done.stdout.startswith(f"written to {environment.file}\n")
    assert f"zarr, codec pipeline: {path} from " in done.stdout
    assert f"numcodecs_bytes.pipeline is '{name}', set by file {environment.file}" in done.stdout
    assert "without any" not in done.stdout
    assert environment.pipeline() == name
    again = environment.command("--json").stdout
    assert json.loads(again)["options"][0]["source"] == f"file {environment.file}"
    assert environment.command("disable").stdout.startswith(f"removed {environment.file}\n")
    assert environment.pipeline() == ZARRS
    assert environment.command("disable").stdout.startswith("this environment had no options\n")
    assert list(environment.file.parent.iterdir()) == []


@pytest.mark.parametrize("mode", [True, "require"])
def test_writes_in_place(environment, mode):
    """And it is said what programs do that do not have this package."""
    arguments = ["--write-in-place"] if mode is True else ["--write-in-place", mode]
    done = environment.command("enable", *arguments)
    assert "lose each other's data without any" in done.stdout
    assert "ZARR_CODEC_PIPELINE__PATH=numcodecs_bytes.zarr_pipeline.BytesPipeline" in done.stdout
    code = "from numcodecs_bytes import _settings; print(_settings._option('write_in_place'))"
    assert environment.run("-c", code).stdout.strip() == str(mode)
    variable = {"NUMCODECS_BYTES_WRITE_IN_PLACE": "false"}
    assert environment.run("-c", code, **variable).stdout.strip() == "False"
    done = environment.command("enable")  # without
    assert "\nno longer set there: write_in_place\n" in done.stdout
    assert environment.run("-c", code).stdout.strip() == "None"


class TestPrecedence:
    """A program, a variable and the user's own file win."""

    @pytest.fixture(autouse=True)
    def _enabled(self, environment):
        environment.command("enable", "--write-in-place")

    def test_a_program(self, environment):
        ours = OUR_PIPELINES[0].rsplit(".", 1)[-1]
        code = f"import zarr; zarr.config.set({{'codec_pipeline.path': {PIPELINES[0]!r}}})"
        assert environment.run("-c", code + ROW, environment.folder / "a").stdout.strip() == ZARRS
        assert environment.pipeline() == ours

    def test_a_variable(self, environment):
        assert environment.pipeline(ZARR_CODEC_PIPELINE__PATH=PIPELINES[0]) == ZARRS
        ours = OUR_PIPELINES[-1].rsplit(".", 1)[-1]
        assert environment.pipeline(NUMCODECS_BYTES_PIPELINE=ours) == ours
        done = environment.command("enable", status=1, ZARR_CODEC_PIPELINE__PATH=PIPELINES[0])
        assert "written, but other settings take precedence: codec_pipeline.path" in done.stderr
        assert "set by environment variable ZARR_CODEC_PIPELINE__PATH" in done.stdout

    @pytest.mark.parametrize("key", ["numcodecs_bytes", "codec_pipeline"])
    def test_a_file_of_the_user(self, environment, key):
        file = environment.home / ".config/zarr/mine.yaml"
        file.parent.mkdir(parents=True)
        if key == "codec_pipeline":
            file.write_text(f"codec_pipeline: {{path: {PIPELINES[0]}}}")
            assert environment.pipeline() == ZARRS
        else:
            file.write_text("numcodecs_bytes: {write_in_place: require}")
        done = environment.command("enable", "--write-in-place", status=1)
        assert "other settings take precedence" in done.stderr
        assert f"set by file {file}" in done.stdout


def test_it_does_no_harm_without_this_package(environment):
    """zarr reads nothing of it: what it collects is the same."""
    code = "import zarr; print(zarr.config.collect())"
    before = environment.run("-c", code).stdout
    environment.command("enable", "--write-in-place", "require")
    assert environment.run("-c", code).stdout == before
    unwanted = "import sys; sys.modules['numcodecs_bytes'] = None; import zarr; zarr.config.reset()"
    environment.run("-W", "error", "-c", unwanted)


@pytest.mark.long
def test_an_environment_that_is_based_on_another_one(tmp_path):
    """It has the options of that one, until it has its own."""
    base = Environment(tmp_path / "base")
    other = Environment(tmp_path / "other")
    base.command("enable")
    prefixes = f"import site; site.PREFIXES[:0] = [{str(base.folder)!r}];"
    assert other.run("-c", prefixes + ROW, tmp_path / "a").stdout.strip() == "BytesPipeline"
    other.file.parent.mkdir(parents=True)
    other.file.write_text("")
    assert other.run("-c", prefixes + ROW, tmp_path / "a").stdout.strip() == ZARRS


@pytest.mark.long
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_wrong_variable(environment, json):
    """It is said, and what is written is written."""
    given = {"NUMCODECS_BYTES_WRITE_IN_PLACE": "bogus"}
    done = environment.command("enable", "--write-in-place", *json, status=1, **given)
    assert "other settings take precedence: write_in_place" in done.stderr
    assert "must be True, False or 'require', got 'bogus'" in done.stdout
    assert environment.file.exists()


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="there is no umask")
def test_all_users_can_read_it(environment):
    code = "import os, sys, runpy; os.umask(0o077); sys.argv = ['numcodecs-bytes', 'enable']; "
    environment.run("-c", code + "runpy.run_module('numcodecs_bytes', run_name='__main__')")
    assert environment.file.stat().st_mode & 0o777 == 0o644
    assert environment.file.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.long
def test_a_file_of_an_editor(environment):
    """With a mark of its encoding."""
    environment.command("enable")
    environment.file.write_bytes(b"\xef\xbb\xbf" + environment.file.read_bytes())
    assert environment.pipeline() == "BytesPipeline"


@pytest.mark.long
def test_a_damaged_file(environment):
    """An error when an array is opened; `disable` and `enable` mend it."""
    environment.file.parent.mkdir(parents=True)
    environment.file.write_bytes(b'pipeline = "Bytes\xff')
    done = environment.run("-c", ROW, environment.folder / "a", status=1)
    assert f"ValueError: {environment.file} is damaged" in done.stderr
    assert "correct it or delete it" in done.stderr
    said = environment.command(status=1).stdout
    assert said.count(f"  {environment.file} is damaged") == 1
    environment.command("enable")
    assert environment.pipeline() == "BytesPipeline"
    environment.file.write_text("pipeline = 3")
    environment.command("disable")
    assert environment.pipeline() == ZARRS


@pytest.mark.long
def test_a_file_that_can_not_be_written(environment):
    """Nothing is changed, and it is said why."""
    environment.file.parent.parent.write_text("a file in place of the folder")
    done = environment.command("enable", status=2)
    assert "can't enable: [Errno" in done.stderr
    environment.command("disable")
    assert environment.pipeline() == ZARRS


@pytest.mark.long
def test_a_full_disk_keeps_the_earlier_file(environment):
    environment.command("enable", "--write-in-place", "require")
    before = environment.file.read_text()
    code = """
import errno, pathlib
def write_text(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
pathlib.Path.write_text = write_text
from numcodecs_bytes.__main__ import main
raise SystemExit(main(["enable"]))
"""
    assert "No space left" in environment.run("-c", code, status=2).stderr
    assert environment.file.read_text() == before
    assert list(environment.file.parent.iterdir()) == [environment.file]


@pytest.mark.skipif(len(OUR_PIPELINES) > 1, reason=f"zarr {zarr.__version__} has a fused pipeline")
def test_a_pipeline_that_zarr_is_too_old_for(environment):
    done = environment.command("enable", "--pipeline", "FusedBytesPipeline", status=2)
    assert "can't enable: FusedBytesPipeline needs zarr 3.3 or newer" in done.stderr
    assert not environment.file.exists()
