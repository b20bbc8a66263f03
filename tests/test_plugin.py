"""How zarr and numcodecs pick the package up, in fresh processes that never import it."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import tomllib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import numcodecs
import numcodecs.abc
import numcodecs.registry
import pytest
import zarr
from helpers import run_program, run_python, write_v2

import numcodecs_bytes
from numcodecs_bytes.__main__ import main
from numcodecs_bytes.check import check

OURS = "numcodecs_bytes.zarr.BytesCodec"
ZARRS = "zarr.codecs.bytes.BytesCodec"

# What every program below begins with: two arrays, and who answers when they are opened.
SETUP = """
import json, sys, zarr
import numpy as np

def answers(name="bytes"):
    cls = zarr.registry.get_codec_class(name)
    return f"{cls.__module__}.{cls.__qualname__}"

def opened(path):
    cls = type(zarr.open_array(path).metadata.codecs[0])
    return f"{cls.__module__}.{cls.__qualname__}"
"""


def run(program, *options, status=0, **environment):
    """Run a program in a fresh interpreter; return what it printed to stdout and stderr."""
    program = textwrap.dedent(SETUP + textwrap.dedent(program))
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
    return tmp_path / "array.zarr"


class TestPickedUp:
    def test_entry_points(self):
        (numcodecs_entry,) = entry_points(group="numcodecs.codecs", name="bytes")
        assert numcodecs_entry.load().codec_id == "bytes"
        for name in ("bytes", "endian"):
            (entry,) = entry_points(group="zarr.codecs", name=name)
            assert f"{entry.load().__module__}.{entry.load().__qualname__}" == OURS

    def test_numcodecs_finds_it(self):
        out, err = run("""
            import numcodecs
            print(repr(numcodecs.get_codec({"id": "bytes", "endian": "big", "dtype": "<f8"})))
        """)
        assert " ".join(out) == "Bytes(endian='big', dtype='<f8')"
        assert err == ""

    def test_an_array_that_is_opened_uses_it_without_a_warning(self, path):
        out, err = run(
            f"""
            print(opened({str(path)!r}), answers("endian"))
            print(*zarr.open_array({str(path)!r})[:].tolist())
            """,
            "-W",
            "error",
        )
        assert out == [OURS, OURS, "1", "2", "3", "4"]
        assert err == ""

    def test_the_package_does_not_import_zarr(self):
        program = "import sys, numcodecs_bytes; print('zarr' in sys.modules)"
        assert run_python("-c", program).stdout.strip() == "False"

    def test_a_reset_of_the_config_keeps_it(self, path):
        for before in (f"opened({str(path)!r})", "0"):
            out, _ = run(f"""
                {before}
                zarr.config.reset()
                print(opened({str(path)!r}), answers("endian"))
                zarr.config.refresh()
                print(opened({str(path)!r}), answers("endian"))
            """)
            assert out == [OURS] * 4


class TestOptingOut:
    def test_environment(self, path):
        out, _ = run(
            f"""
            print(opened({str(path)!r}), answers("endian"))
            zarr.config.reset()
            print(opened({str(path)!r}), answers("endian"))
            """,
            ZARR_CODECS__BYTES=ZARRS,
        )
        assert out == [ZARRS] * 4

    def test_environment_may_name_the_package(self, path):
        out, _ = run(f"print(opened({str(path)!r}), answers('endian'))", ZARR_CODECS__BYTES=OURS)
        assert out == [OURS] * 2

    def test_yaml_file(self, path, tmp_path):
        file = tmp_path / "zarr.yaml"
        file.write_text(f"codecs:\n  bytes: {ZARRS}\n")
        program = f"""
            print(opened({str(path)!r}), answers("endian"))
            zarr.config.reset()
            print(opened({str(path)!r}))
        """
        assert run(program, ZARR_CONFIG=file)[0] == [ZARRS] * 3

    @pytest.mark.parametrize("value", [repr(ZARRS), "zarr.codecs.bytes.__name__ + '.BytesCodec'"])
    def test_config_set_before_the_first_use(self, path, value):
        """A value that is equal to zarr's default is a choice all the same."""
        out, _ = run(f"""
            zarr.config.set({{"codecs.bytes": {value}}})
            print(opened({str(path)!r}), answers("endian"))
            zarr.config.reset()
            print(opened({str(path)!r}), answers("endian"))
        """)
        assert out == [ZARRS, ZARRS, OURS, OURS]

    def test_config_set_after_the_first_use(self, path):
        out, _ = run(f"""
            print(opened({str(path)!r}))
            zarr.config.set({{"codecs.bytes": {ZARRS!r}}})
            print(opened({str(path)!r}))
            zarr.config.set({{"codecs.bytes": {OURS!r}}})
            print(opened({str(path)!r}))
        """)
        assert out == [OURS, ZARRS, OURS]

    @pytest.mark.parametrize(
        ("settings", "inside"),
        [
            ({"codecs.bytes": ZARRS}, ZARRS),
            ({"codecs.bytes": OURS}, OURS),
            ({"codecs.endian": ZARRS}, OURS),
            ({"codecs.gzip": "other"}, OURS),
            ({"codecs": {"bytes": ZARRS}}, ZARRS),
            ({"codecs": {"bytes": OURS}}, OURS),
            ({"async.concurrency": 3}, OURS),
        ],
        ids=str,
    )
    def test_a_first_use_inside_of_with_config_set(self, path, settings, inside):
        """What a `with` puts back when it ends is the default from before the first use."""
        out, _ = run(f"""
            with zarr.config.set({settings!r}):
                print(opened({str(path)!r}))
            print(opened({str(path)!r}), answers("endian"))
        """)
        assert out == [inside, OURS, OURS]

    def test_nested_with_and_a_copy_of_all_codecs(self, path):
        out, _ = run(f"""
            with zarr.config.set({{"codecs": dict(zarr.config.get("codecs"))}}):
                with zarr.config.set({{"codecs.bytes": {ZARRS!r}}}):
                    print(opened({str(path)!r}))
                print(opened({str(path)!r}))
            print(opened({str(path)!r}))
        """)
        assert out == [ZARRS, OURS, OURS]

    def test_a_choice_from_before_a_with_stays(self, path):
        out, _ = run(f"""
            zarr.config.set({{"codecs.bytes": "".join({list(ZARRS)!r})}})
            with zarr.config.set({{"codecs.bytes": {OURS!r}}}):
                print(opened({str(path)!r}))
            print(opened({str(path)!r}))
        """)
        assert out == [OURS, ZARRS]


class TestUnknownZarr:
    """On a zarr whose API changed, zarr goes on as if the package were not there."""

    BREAKS = (
        "del zarr.codecs.BytesCodec._decode_sync",
        "del zarr.codecs.BytesCodec.is_fixed_size",
        "zarr.config.defaults = []",
        "zarr.__version__ = 'unknown'",
        "import zarr.dtype; sys.modules['zarr.dtype'] = None",
    )

    @pytest.mark.parametrize("change", BREAKS)
    def test_one_warning_and_zarrs_own_codec(self, change):
        """Looked up only: with parts of it missing, this zarr reads nothing."""
        program = f"{change}\nprint(answers(), answers('endian'))"
        out, err = run(program)
        assert out == [ZARRS] * 2
        assert err.count("adds no bytes codec, and leaves zarr's own in charge") == 1
        out, err = run(program, "-W", "error")
        assert out == [ZARRS] * 2
        assert err == ""

    @pytest.mark.parametrize(
        "change",
        [
            "zarr.config.defaults = []",
            "import gc; gc.get_referrers = None",
            "collect, zarr.config.collect = zarr.config.collect, lambda: {'codecs': 3}",
        ],
    )
    def test_arrays_are_still_read(self, path, change):
        """A default that zarr does not find would break them all."""
        program = f"""
            {change}
            print(opened({str(path)!r}), *zarr.open_array({str(path)!r})[:].tolist())
        """
        out, err = run(program)
        assert out == [ZARRS, "1", "2", "3", "4"]
        assert err.count("adds no bytes codec, and leaves zarr's own in charge") == 1


class TestProcesses:
    def test_spawned_processes_read_with_it(self, path, tmp_path):
        """Neither the program nor its workers import the package; arrays travel by pickle."""
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent(f"""
            import multiprocessing
            import sys
            from concurrent.futures import ProcessPoolExecutor

            import zarr

            def read(array, i):
                return array[i].item(), type(array.metadata.codecs[0]).__module__

            def read_path(path, i):
                return read(zarr.open_array(path), i)

            if __name__ == "__main__":
                spawn = multiprocessing.get_context("spawn")
                path = {str(path)!r}
                with ProcessPoolExecutor(2, mp_context=spawn) as pool:
                    array = zarr.open_array(path)
                    print(sorted(pool.map(read, [array] * 4, range(4))))
                    print(sorted(pool.map(read_path, [path] * 4, range(4))))
            """)
        )
        done = run_python(program)
        expected = [(i, "numcodecs_bytes.zarr") for i in range(1, 5)]
        assert done.stdout.splitlines() == [str(expected)] * 2


class TestReport:
    """python -m numcodecs_bytes"""

    def report(self, *arguments, status=0, **environment):
        done = run_program("-m", "numcodecs_bytes", *arguments, status=status, **environment)
        return done.stdout

    def test_picked_up_in_one_line(self):
        report = self.report()
        lines = report.splitlines()
        assert lines[0].startswith('"bytes" is picked up: numcodecs ')
        assert f"zarr {zarr.__version__} use numcodecs_bytes" in lines[0]
        assert any("numcodecs_bytes.codec.Bytes from" in line for line in lines)
        assert any(f"{OURS} from" in line for line in lines)
        # zarr 3.1.6 never loads the entry points.
        how = "found" if hasattr(zarr.dtype, "Struct") else "import numcodecs_bytes.zarr_data_types"
        assert any(f"data types r*, bfloat16, ...: {how}" in line for line in lines)
        assert "written in place" not in report

    @pytest.mark.parametrize(
        ("pipeline", "mode", "said"),
        [
            ("numcodecs_bytes.zarr_pipeline.BytesPipeline", "require", "yes"),
            ("numcodecs_bytes.zarr_pipeline.BytesPipeline", "True", "yes"),
            ("zarr.core.codec_pipeline.BatchedCodecPipeline", "True", "no: codec_pipeline.path"),
            ("numcodecs_bytes.zarr_pipeline.BytesPipeline", "always", "no: .*'require'"),
        ],
    )
    def test_written_in_place(self, pipeline, mode, said):
        variables = {"NUMCODECS_BYTES_WRITE_IN_PLACE": mode, "ZARR_CODEC_PIPELINE__PATH": pipeline}
        found = self.report(status=int(mode == "always"), **variables)
        assert re.search(f"written in place: {said}", found)

    def test_options_and_what_sets_them(self, tmp_path):
        file = tmp_path / "zarr.yaml"
        text = "{split_requests: false, max_gap_bytes: 1, write_in_place: true}"
        file.write_text(f"{{numcodecs_bytes: {text}}}")
        variables = {"NUMCODECS_BYTES_PIPELINE": "BytesPipeline", "ZARR_CONFIG": file}
        variables[mode := "NUMCODECS_BYTES_WRITE_IN_PLACE"] = "require"
        found = self.report(ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES=2, **variables).splitlines()
        assert [line.partition("numcodecs_bytes.")[2] for line in found[-4:]] == [
            "pipeline is 'BytesPipeline', set by environment variable NUMCODECS_BYTES_PIPELINE",
            "max_gap_bytes is '2', set by environment variable ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES",
            f"split_requests is 'False', set by file {file}",
            f"write_in_place is 'require', set by environment variable {mode}",
        ]

    def test_a_pipeline_that_does_not_exist(self):
        """zarr opens no array then, whichever codec it would use."""
        found = self.report(status=1, ZARR_CODEC_PIPELINE__PATH="numcodecs_bytes.BytesPipeline")
        assert "zarr, codec pipeline: BadConfigError" in found

    def test_json(self):
        found = json.loads(self.report("--json"))
        assert found["picked_up"]
        assert found["overrides"] == []
        pipeline = "zarr.core.codec_pipeline.BatchedCodecPipeline"
        classes = ["numcodecs_bytes.codec.Bytes", OURS, OURS, pipeline]
        assert [a["class"] for a in found["answers"]] == classes
        assert all(os.path.exists(a["file"]) for a in found["answers"])  # noqa: PTH110

    def test_the_pipeline_in_charge(self):
        path = "numcodecs_bytes.zarr_pipeline.BytesPipeline"
        assert f"zarr, codec pipeline: {path} from " in self.report(ZARR_CODEC_PIPELINE__PATH=path)

    def test_environment(self):
        out = self.report(status=1, ZARR_CODECS__BYTES=ZARRS)
        assert out.startswith(f'"bytes" is not picked up by zarr {zarr.__version__}')
        assert f"codecs.bytes is '{ZARRS}', set by environment variable ZARR_CODECS__BYTES" in out

    def test_yaml_file(self, tmp_path):
        file = tmp_path / "zarr.yaml"
        file.write_text(f"codecs:\n  bytes: {ZARRS}\n")
        for config in (file, tmp_path):
            found = json.loads(self.report("--json", status=1, ZARR_CONFIG=config))
            assert found["overrides"] == [
                {"key": "codecs.bytes", "value": ZARRS, "source": f"file {file}"}
            ]

    def test_config_set(self):
        out, _ = run(
            f"""
            from numcodecs_bytes.__main__ import main
            zarr.config.set({{"codecs.bytes": {ZARRS!r}}})
            sys.exit(main(["--json"]))
            """,
            status=1,
        )
        assert json.loads(" ".join(out))["overrides"] == [
            {"key": "codecs.bytes", "value": ZARRS, "source": "zarr.config.set"}
        ]

    def test_a_class_that_is_nowhere(self):
        out = self.report(status=1, ZARR_CODECS__BYTES="no.Such")
        assert "zarr, bytes: " in out
        assert "no.Such" in out

    def test_another_class_that_is_registered(self, tmp_path, capsys, monkeypatch):
        """Its arrays failed with a bare TypeError; which class that is, and what to do, is said."""

        class Other(numcodecs.abc.Codec):
            codec_id = "bytes"

            def __init__(self, endian):
                pass

            def encode(self, buf):
                return buf

            decode = encode

        monkeypatch.setitem(numcodecs.registry.codec_registry, "bytes", None)
        numcodecs.register_codec(Other)
        assert main([]) == 1
        printed = capsys.readouterr().out
        name = "test_another_class_that_is_registered.<locals>.Other"
        mend = "call numcodecs.register_codec(numcodecs_bytes.Bytes) after that"
        assert '"bytes" is not picked up by numcodecs' in printed
        assert f'{name} for "bytes", because a program or a package registered it' in printed
        assert mend in printed
        for i, more in enumerate(({"dtype": "<i2"}, {})):
            codec = {"id": "bytes", "endian": "big", **more}
            write_v2(tmp_path / str(i), None, "<i2", filters=[codec])
        fails, opens = check(tmp_path)
        assert fails.problems[0].startswith("zarr can't open it: numcodecs uses ")
        assert f"{name} for" in fails.problems[0]
        assert mend in fails.problems[0]
        assert mend in opens.notes[0]
        assert opens.partial_reads == 'no: its codec "bytes" is not that of numcodecs_bytes'
        numcodecs.register_codec(numcodecs_bytes.Bytes)
        assert main([]) == 0
        assert mend not in capsys.readouterr().out


class TestPrograms:
    """python -m numcodecs_bytes and numcodecs-bytes"""

    def test_both_are_called_by_their_names(self, monkeypatch, capsys):
        project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
        entry = EntryPoint("", project["project"]["scripts"]["numcodecs-bytes"], "console_scripts")
        monkeypatch.setattr(sys, "argv", ["/usr/bin/numcodecs-bytes", "check", "--help"])
        with pytest.raises(SystemExit, match="0"):
            entry.load()()
        assert capsys.readouterr().out.startswith("usage: numcodecs-bytes check ")
        printed = run_program("-m", "numcodecs_bytes", "check", "--help").stdout
        assert printed.startswith("usage: python -m numcodecs_bytes check ")

    @pytest.mark.parametrize("command", [(), ("check",), ("migrate",)], ids=str)
    def test_help_has_exit_statuses_and_an_example(self, command, capsys):
        with pytest.raises(SystemExit, match="0"):
            main([*command, "--help"])
        printed = capsys.readouterr().out
        assert "exit status:\n  0  " in printed
        assert f"example:\n  {' '.join(('numcodecs-bytes', *command))} " in printed
        assert "print the report as JSON" in printed

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals like these")
    def test_ctrl_c(self):
        """While zarr's event loop waits for a server: no traceback, and the status of shells."""
        pytest.importorskip("aiohttp", reason="the extra stores is not installed")
        asked, done = threading.Event(), threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.set()
                done.wait()

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever).start()
            program = """
                import runpy, signal, sys
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sys.argv[1:] = ["check", sys.argv[1]]
                runpy.run_module("numcodecs_bytes", run_name="__main__")
            """
            url = f"http://127.0.0.1:{server.server_port}"
            with subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program), url],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                assert asked.wait(60)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=60)
            done.set()
            server.shutdown()
        assert process.returncode == 130
        assert (out, err.splitlines()[-1]) == ("", "interrupted")
        assert "Traceback" not in err
