"""How zarr and numcodecs pick the package up, in fresh processes that never import it."""

import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path

import numcodecs
import numcodecs.registry
import pytest
import zarr
from helpers import (
    HAS_STRUCT,
    OUR_PIPELINES,
    PIPELINES,
    WITHOUT_ENTRY_POINTS,
    run_program,
    run_python,
    write_v2,
)

import numcodecs_bytes
from numcodecs_bytes.__main__ import main

OURS = "numcodecs_bytes.zarr.BytesCodec"
ZARRS = "zarr.codecs.bytes.BytesCodec"
# Each key, what installing the package makes its default, and zarr's own.
KEYS = {"codecs.bytes": (OURS, ZARRS), "codec_pipeline.path": (OUR_PIPELINES[0], PIPELINES[0])}
BY_KEY = pytest.mark.parametrize("key", KEYS)
ZARRS_RS = ["zarrs.ZarrsCodecPipeline"] if importlib.util.find_spec("zarrs") else []
# What somebody may choose, the defaults among it.
CHOICES = [("codecs.bytes", name) for name in (ZARRS, OURS)]
CHOICES += [("codec_pipeline.path", name) for name in (*PIPELINES, *OUR_PIPELINES, *ZARRS_RS)]
BY_CHOICE = pytest.mark.parametrize(("key", "value"), CHOICES)

# What every program below begins with. `opened` prints the class that a key of zarr's config chose.
SETUP = """
import json, sys, zarr

def opened(path, key="codecs.bytes"):
    array = zarr.open_array(path)
    assert array[:].tolist() == [1, 2, 3, 4]
    pipeline = array.async_array.codec_pipeline
    cls = type(pipeline if key == "codec_pipeline.path" else array.metadata.codecs[0])
    module = cls.__module__.removesuffix(".pipeline")  # of zarrs
    print(f"{module}.{cls.__name__}")
"""


def run(program, *options, status=0, **environment):
    """Run a program in a fresh interpreter; return what it printed to stdout and stderr."""
    program = SETUP + textwrap.dedent(program)
    done = run_program(*options, "-c", program, status=status, **environment)
    return done.stdout.split(), done.stderr


@pytest.fixture
def path(tmp_path):
    """Return the path of a stored big-endian array, written by zarr's own codec."""
    array = zarr.create_array(
        tmp_path / "array.zarr",
        shape=(4,),
        dtype="int16",
        compressors=None,
        serializer=zarr.codecs.BytesCodec(endian="big"),
    )
    array[:] = [1, 2, 3, 4]
    return str(tmp_path / "array.zarr")


class TestPickedUp:
    def test_entry_points(self):
        """Of "endian", too, which was the name of the codec "bytes"."""
        for name in ("bytes", "endian"):
            (entry,) = entry_points(group="zarr.codecs", name=name)
            assert f"{entry.load().__module__}.{entry.load().__qualname__}" == OURS

    def test_numcodecs_finds_it(self):
        out, err = run("import numcodecs; print(numcodecs.get_codec({'id': 'bytes'}))")
        assert (out, err) == (["Bytes(endian=None)"], "")

    @pytest.mark.parametrize("first", ["", "zarr.config.reset()\n"], ids=["", "after a reset"])
    def test_an_array_that_is_opened_uses_it_without_a_warning(self, path, first):
        show = "".join(f"opened({path!r}, {key!r})\n" for key in KEYS)
        program = f"{first}{show}zarr.config.reset()\n{show}zarr.config.refresh()\n{show}"
        program += f"print(*map(zarr.config.get, {list(KEYS)}))"
        assert run(program, "-W", "error") == ([ours for ours, _ in KEYS.values()] * 4, "")

    def test_the_package_does_not_import_zarr(self):
        program = "import sys, numcodecs_bytes; print('zarr' in sys.modules)"
        assert run_python("-c", program).stdout.strip() == "False"

    def test_a_program_without_entry_points_imports_it(self, path):
        """If it is frozen, for example: importing the pipeline is enough, for the codec, too."""
        program = f"""
opened({path!r})
import numcodecs_bytes.zarr_pipeline
opened({path!r})
opened({path!r}, "codec_pipeline.path")
"""
        done = run_program("-W", "error", "-c", WITHOUT_ENTRY_POINTS + SETUP + program)
        assert done.stdout.split() == [ZARRS, OURS, OUR_PIPELINES[0]]


class TestChoice:
    """What a person chose wins."""

    @pytest.mark.matrix
    @BY_CHOICE
    @pytest.mark.parametrize("is_file", [False, True], ids=["variable", "YAML"])
    def test_from_outside(self, path, tmp_path, key, value, is_file):
        section, _, name = key.partition(".")
        (tmp_path / "zarr.yaml").write_text(f"{section}:\n  {name}: {value}\n")
        variables = {f"ZARR_{section}__{name}".upper(): value}
        if is_file:
            variables = {"ZARR_CONFIG": tmp_path / "zarr.yaml"}
        program = f"opened({path!r}, {key!r})\nzarr.config.reset()\nopened({path!r}, {key!r})"
        assert run(program, **variables)[0] == [value] * 2

    @BY_CHOICE
    def test_by_the_program(self, path, key, value):
        """Before the first array, where a value that equals zarr's default is a choice, too."""
        ours = KEYS[key][0]
        choose = f"zarr.config.set({{{key!r}: {value!r}}})"
        show = f"opened({path!r}, {key!r})"
        out, _ = run(f"{choose}\n{show}\nzarr.config.reset()\n{show}\n{choose}\n{show}")
        assert out == [value, ours, value]

    @pytest.mark.matrix
    @BY_CHOICE
    @pytest.mark.parametrize("of_section", [False, True], ids=["key", "section"])
    def test_by_a_scope_in_which_the_first_array_is_opened(self, path, key, value, of_section):
        """What a `with` puts back when it ends is the default from before the first array."""
        section, _, name = key.partition(".")
        options = repr({key: value})
        if of_section:
            options = f"{{{section!r}: zarr.config.get({section!r}) | {{{name!r}: {value!r}}}}}"
        show = f"opened({path!r}, {key!r})"
        out, _ = run(f"with zarr.config.set({options}):\n    {show}\n{show}")
        assert out == [value, KEYS[key][0]]

    def test_nested_scopes_and_other_keys(self, path):
        out, _ = run(f"""
            with zarr.config.set({{"codecs": dict(zarr.config.get("codecs")), "codecs.gzip": "a"}}):
                with zarr.config.set({{"codecs.bytes": {ZARRS!r}, "async.concurrency": 3}}):
                    opened({path!r})
                opened({path!r})
            opened({path!r})
        """)
        assert out == [ZARRS, OURS, OURS]

    @BY_KEY
    def test_from_before_a_scope(self, path, key):
        ours, zarrs = KEYS[key]
        before = f"zarr.config.set({{{key!r}: {zarrs!r}[:4] + {zarrs!r}[4:]}})"
        show = f"opened({path!r}, {key!r})"
        scope = f"with zarr.config.set({{{key!r}: {ours!r}}}):\n    {show}"
        assert run(f"{before}\n{scope}\n{show}")[0] == [ours, zarrs]

    def test_defaults_of_another_package(self, path):
        """They are a choice."""
        out, _ = run(f"""
            zarr.config.update_defaults({{"codec_pipeline": {{"path": {PIPELINES[-1]!r}}}}})
            opened({path!r}, "codec_pipeline.path")
        """)
        assert out == PIPELINES[-1:]


class TestUnknownZarr:
    """On a zarr whose API changed, zarr goes on as if the package were not there."""

    SAID = "numcodecs_bytes leaves arrays to zarr alone: it does not support this version of zarr"
    NEW_DEFAULT = """
import zarr.core.codec_pipeline as module
class NewPipeline(module.BatchedCodecPipeline):
    __module__ = module.__name__
zarr.registry.register_pipeline(NewPipeline)
zarr.config.defaults[0]["codec_pipeline"]["path"] = "zarr.core.codec_pipeline.NewPipeline"
zarr.config.refresh()
"""

    SHOW_PIPELINE = "opened(PATH, 'codec_pipeline.path')"
    # With parts of it missing, this zarr reads nothing.
    SHOW_CODEC = "print(zarr.registry.get_codec_class('bytes').__module__)"

    @pytest.mark.parametrize(
        ("change", "show", "used"),
        [
            (NEW_DEFAULT, SHOW_PIPELINE, "zarr.core.codec_pipeline.NewPipeline"),
            ("zarr.config.defaults = []", SHOW_PIPELINE, PIPELINES[0]),
            ("del zarr.codecs.TransposeCodec", SHOW_PIPELINE, PIPELINES[0]),
            ("del zarr.config.defaults[0]['codec_pipeline']", SHOW_PIPELINE, PIPELINES[0]),
            ("zarr.config.collect = lambda: {'codecs': 3}", SHOW_PIPELINE, PIPELINES[0]),
            ("del zarr.codecs.BytesCodec.is_fixed_size", SHOW_CODEC, "zarr.codecs.bytes"),
            (
                "import zarr.dtype; sys.modules['zarr.dtype'] = None",
                SHOW_CODEC,
                "zarr.codecs.bytes",
            ),
        ],
    )
    def test_one_warning_and_arrays_are_read(self, path, change, show, used):
        program = f"PATH = {path!r}\n{change}\n{show}\n{show}"
        out, err = run(program)
        assert (out, err.count(self.SAID)) == ([used] * 2, 1)
        if change == self.NEW_DEFAULT:
            assert run(program, "-W", "error") == ([used] * 2, "")

    @pytest.mark.skipif(len(PIPELINES) == 1, reason="this zarr has one pipeline")
    def test_the_fused_pipeline_by_default(self, path):
        """Ours that extends it takes its place."""
        change = self.NEW_DEFAULT.replace("NewPipeline", "FusedCodecPipeline").partition("\nzarr.c")
        out, err = run(f"zarr.c{change[2]}opened({path!r}, 'codec_pipeline.path')")
        assert (out, err) == (OUR_PIPELINES[-1:], "")


IN_PLACE, PATH = "NUMCODECS_BYTES__WRITE_IN_PLACE", "CODEC_PIPELINE__PATH"
CODEC = "CODECS__BYTES"


class TestReport:
    """python -m numcodecs_bytes"""

    def report(self, *arguments, status=0, **environment):
        done = run_program("-m", "numcodecs_bytes", *arguments, status=status, **environment)
        return done.stdout

    def test_what_is_on(self):
        lines = self.report().splitlines()
        assert lines[0].startswith(f"numcodecs-bytes {numcodecs_bytes.__version__} with zarr ")
        # zarr 3.1.6 never loads the entry points of data types.
        alone = "off: this zarr does not load them; import numcodecs_bytes.zarr_data_types first"
        assert lines[1:] == [
            "partial reads: on",
            "writes in place: off: numcodecs_bytes.write_in_place is not True",
            'codec "bytes" of Zarr v3: on',
            'filter "bytes" of Zarr v2: on',
            f"data types bfloat16, int4, r24, ...: {'on' if HAS_STRUCT else alone}",
        ]

    @pytest.mark.parametrize("path", PIPELINES)
    def test_another_pipeline(self, tmp_path, path):
        """Which it is, what sets it, and which is the same with partial reads."""
        (tmp_path / "zarr.yaml").write_text(f"codec_pipeline: {{path: {path}}}")
        variable = "ZARR_CODEC_PIPELINE__PATH"
        hint = f" ({OUR_PIPELINES[-1]} is the same with partial reads)" * (path != PIPELINES[0])
        for source, variables in {
            f"file {tmp_path / 'zarr.yaml'}": {"ZARR_CONFIG": tmp_path},
            f"environment variable {variable}": {variable: path},
        }.items():
            line = self.report(**variables).splitlines()[1]
            assert line.startswith(f"partial reads: off: zarr uses {path}")
            assert line.endswith(f"{hint}, set by {source}")
        part = json.loads(self.report("--json", **variables))["parts"][0]
        assert (part["class"], part["set_by"]) == (path, source)

    def test_options_and_what_sets_them(self, tmp_path):
        """And those that do not exist."""
        file = tmp_path / "zarr.yaml"
        file.write_text("{numcodecs_bytes: {gap: 1, max_gap_bytes: 1, write-in-place: true}}")
        key = "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"
        lines = self.report(ZARR_CONFIG=file, ZARR_NUMCODECS_BYTES_GAP=3, **{key: "2 KiB"})
        assert f"writes in place: on, set by file {file}" in lines
        assert sorted(lines.splitlines()[6:]) == [
            "numcodecs_bytes.gap has no effect: it is not an option",
            f"numcodecs_bytes.max_gap_bytes is 2048, set by environment variable {key}",
            "numcodecs_bytes_gap has no effect: it is not an option",
        ]

    @pytest.mark.parametrize(
        ("variable", "value", "status", "said"),
        [
            (IN_PLACE, "require", 0, "writes in place: on"),
            (IN_PLACE, "always", 1, "writes in place: off: .*'require', got 'always'"),
            # zarr opens no array then, whichever codec it would use.
            (PATH, "numcodecs_bytes.No", 1, "partial reads: off: BadConfigError.*"),
            (CODEC, "no.Such", 1, r'codec "bytes" of Zarr v3: off: .*no\.Such.*'),
            (CODEC, ZARRS, 1, f'codec "bytes" of Zarr v3: off: zarr uses {ZARRS}'),
            ("NUMCODECS_BYTES__MAX_GAP_BYTES", "wide", 1, "such as '64 KiB', got 'wide'"),
            ("NUMCODECS_BYTES__STORES_WITH_RANGES", "zarr.storag.X", 1, "got 'zarr.storag.X'"),
        ],
    )
    def test_settings(self, variable, value, status, said):
        out = self.report(status=status, **{f"ZARR_{variable}": value})
        assert re.search(f"{said}, set by environment variable ZARR_{variable}\n", out)

    def test_a_file_that_zarr_can_not_parse(self, tmp_path):
        (tmp_path / "zarr.yaml").write_text("codecs: [")
        done = run_program("-m", "numcodecs_bytes", status=2, ZARR_CONFIG=tmp_path)
        assert done.stderr.startswith("zarr can't be imported: ValueError: A config file at ")
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
    def test_a_full_disk(self):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            options = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
            done = run_python("-m", "numcodecs_bytes", status=2, options=options | {"text": True})
        assert done.stderr == "can't print the report: No space left on device\n"

    def test_a_program_that_sets_another_codec(self, capsys):
        with zarr.config.set({"codecs.bytes": ZARRS}):
            assert main([]) == 1
        assert f"off: zarr uses {ZARRS}, set by zarr.config.set\n" in capsys.readouterr().out

    def test_another_class_that_is_registered(self, tmp_path, capsys, monkeypatch):
        """Which class that is, and what to do, is said; by check, too."""

        class Other(numcodecs.Zlib):
            codec_id = "bytes"

        monkeypatch.setitem(numcodecs.registry.codec_registry, "bytes", None)
        numcodecs.register_codec(Other)
        write_v2(tmp_path, None, "<i2", filters=[{"id": "bytes"}])
        assert main([]) == 1
        assert main(["check", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        why = 'Other for "bytes", because a program or a package registered it in place of '
        mend = "call numcodecs.register_codec(numcodecs_bytes.Bytes) after that"
        assert printed.count(why) == printed.count(mend) == 2
        numcodecs.register_codec(numcodecs_bytes.Bytes)
        assert main([]) == 0


class TestPrograms:
    """python -m numcodecs_bytes and numcodecs-bytes"""

    @pytest.mark.parametrize("command", [(), ("check",), ("migrate",)], ids=str)
    def test_help_has_exit_statuses(self, command, capsys):
        (program,) = entry_points(group="console_scripts", name="numcodecs-bytes")
        assert program.value == "numcodecs_bytes.__main__:run"
        with pytest.raises(SystemExit, match="0"):
            main([*command, "--help"])
        printed = capsys.readouterr().out
        assert "Exit status: 0 " in printed
        assert printed.startswith(" ".join(("usage: numcodecs-bytes", *command)))
        assert "print the report as JSON" in printed

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals like these")
    def test_ctrl_c(self):
        """While zarr's event loop waits for a server: no traceback, and the status of shells."""
        pytest.importorskip("aiohttp", reason="the extra stores is not installed")
        program = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[1:] = ["check", sys.argv[1]]
runpy.run_module("numcodecs_bytes", run_name="__main__")
"""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            with subprocess.Popen([sys.executable, "-c", program, url], **pipes) as process:
                connection, _ = server.accept()
                assert connection.recv(3) == b"GET"
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
                connection.close()
        assert process.returncode == 130
        assert (out, err.splitlines()[-1]) == ("", "interrupted")
        assert "Traceback" not in err
