"""How zarr and numcodecs pick the package up, in fresh processes that never import it."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numcodecs
import numcodecs.registry
import pytest
import zarr
from helpers import (
    HAS_STRUCT,
    LOADS_DATA_TYPES,
    OUR_PIPELINES,
    PIPELINES,
    UNTESTED_ZARR,
    WITHOUT_ENTRY_POINTS,
    WITHOUT_ML_DTYPES,
    run_program,
    run_python,
    write_v2,
)

import numcodecs_bytes
from numcodecs_bytes.__main__ import main
from numcodecs_bytes._zarr_api.defaults import NEWEST_MINOR, is_tested

OURS, ZARRS = "numcodecs_bytes.zarr_codec.BytesCodec", "zarr.codecs.bytes.BytesCodec"
KEYS = ["codecs.bytes", "codec_pipeline.path"]
DEFAULTS = [OURS, OUR_PIPELINES[0]]  # of these, by installing the package
ZARRS_RS = ["zarrs.ZarrsCodecPipeline"] if importlib.util.find_spec("zarrs") else []
# What somebody may choose, the defaults among it.
CHOICES = [[ZARRS, pipeline] for pipeline in (*PIPELINES, *ZARRS_RS)]
CHOICES += [[OURS, pipeline] for pipeline in OUR_PIPELINES]
BY_CHOICE = pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: chosen[1])
NO_OPTION = pytest.mark.skipif(
    UNTESTED_ZARR in os.environ, reason="all tests run with the option for an untested zarr"
)


# What every program below begins with. `show` prints the classes that the keys of zarr's config
# chose; CHOICE and SECTIONS are what to give to it.
SETUP = """
import json, sys, zarr
PATH, CODEC, PIPELINE = sys.argv[1:4]
CHOICE = {"codecs.bytes": CODEC, "codec_pipeline.path": PIPELINE}

def sections():
    pairs = [key.split(".") + [value] for key, value in CHOICE.items()]
    return {section: zarr.config.get(section) | {name: value} for section, name, value in pairs}

def show():
    array = zarr.open_array(PATH)
    assert array[:].tolist() == [1, 2, 3, 4]
    for cls in map(type, (array.metadata.codecs[0], array.async_array.codec_pipeline)):
        print(f"{cls.__module__.removesuffix('.pipeline')}.{cls.__name__}")  # of zarrs
"""


@pytest.fixture
def run(tmp_path):
    """Return what runs a program, to which a big-endian array is given, that zarr has written.

    It returns what was printed to stdout and stderr.
    """
    codec = zarr.codecs.BytesCodec(endian="big")
    settings = {"shape": (4,), "dtype": "int16", "compressors": None, "serializer": codec}
    zarr.create_array(tmp_path / "array.zarr", **settings)[:] = [1, 2, 3, 4]

    def run(program, *options, chosen=("", ""), **environment):
        arguments = *options, "-c", program, tmp_path / "array.zarr", *chosen
        done = run_program(*arguments, **environment)
        return done.stdout.split(), done.stderr

    return run


class TestPickedUp:
    def test_entry_points(self):
        """Of "endian", too, which was the name of the codec "bytes"."""
        for name in ("bytes", "endian"):
            (entry,) = entry_points(group="zarr.codecs", name=name)
            assert f"{entry.load().__module__}.{entry.load().__qualname__}" == OURS

    def test_numcodecs_finds_it_without_zarr(self, run):
        program = "import sys, numcodecs; print(numcodecs.get_codec({'id': 'bytes'}))"
        assert run(f"{program}; print('zarr' in sys.modules)") == (
            ["Bytes(endian=None)", "False"],
            "",
        )

    @pytest.mark.parametrize("first", ["", "zarr.config.reset()\n"], ids=["", "after a reset"])
    def test_an_array_that_is_opened_uses_it_without_a_warning(self, run, first):
        program = f"{first}show()\nzarr.config.reset()\nshow()\nzarr.config.refresh()\nshow()\n"
        program += f"print(*map(zarr.config.get, {KEYS}))"
        assert run(SETUP + program, "-W", "error") == (DEFAULTS * 4, "")

    def test_a_program_without_entry_points_imports_it(self, run):
        """If it is frozen, for example: importing the pipeline is enough, for the codec, too."""
        program = "show()\nimport numcodecs_bytes.zarr_pipeline\nshow()"
        out, _ = run(WITHOUT_ENTRY_POINTS + SETUP + program, "-W", "error")
        assert out == [ZARRS, PIPELINES[0], *DEFAULTS]


IN_SCOPE = "with zarr.config.set({}):\n    show()\nshow()"
NESTED = """
with zarr.config.set({"codecs": dict(zarr.config.get("codecs")), "codecs.gzip": "a"}):
    with zarr.config.set(CHOICE | {"async.concurrency": 3}):
        show()
    show()
show()
"""
CHOOSE = "zarr.config.set(CHOICE)\nshow()\n"
# Programs that choose, and the classes that they use: those that were chosen, or our defaults. What
# equals zarr's default is a choice, too. What a `with` puts back when it ends is the default from
# before the first array.
PROGRAMS = {
    "before the first array": (f"{CHOOSE}zarr.config.reset()\nshow()\n{CHOOSE}", [1, 0, 1]),
    "in a scope": (IN_SCOPE.format("CHOICE"), [1, 0]),
    "in a scope of sections": (IN_SCOPE.format("sections()"), [1, 0]),
    "in nested scopes": (NESTED, [1, 0, 0]),
    "before a scope": (
        f"zarr.config.set(CHOICE)\n{IN_SCOPE}".format(dict(zip(KEYS, DEFAULTS, strict=True))),
        [0, 1],
    ),
    # The very object of zarr's default: who sets that can't be told from who sets nothing.
    "what zarr's config returns": (
        "zarr.config.set({key: zarr.config.get(key) for key in CHOICE})\nshow()",
        [0],
    ),
    "the defaults of a package": ("zarr.config.update_defaults(sections())\nshow()", [1]),
}


class TestChoice:
    """What a person chose wins."""

    @pytest.mark.matrix
    @BY_CHOICE
    @pytest.mark.parametrize("is_file", [False, True], ids=["variables", "YAML"])
    def test_from_outside(self, run, tmp_path, chosen, is_file):
        variables = {"ZARR_CONFIG": tmp_path / "zarr.yaml"}
        if not is_file:
            names = [f"ZARR_{key.replace('.', '__')}".upper() for key in KEYS]
            variables = dict(zip(names, chosen, strict=True))
        text = f"codecs: {{bytes: {chosen[0]}}}\ncodec_pipeline: {{path: {chosen[1]}}}"
        (tmp_path / "zarr.yaml").write_text(text)
        out, _ = run(f"{SETUP}show()\nzarr.config.reset()\nshow()", **variables)
        assert out == chosen * 2

    @pytest.mark.matrix
    @BY_CHOICE
    @pytest.mark.parametrize("program", PROGRAMS)
    def test_by_a_program(self, run, program, chosen):
        text, are_chosen = PROGRAMS[program]
        out, _ = run(SETUP + text, chosen=chosen)
        assert out == [name for is_so in are_chosen for name in (chosen if is_so else DEFAULTS)]


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

    @pytest.mark.parametrize(
        ("change", "used"),
        [
            (NEW_DEFAULT, [OURS, "zarr.core.codec_pipeline.NewPipeline"]),
            ("zarr.config.defaults = []", [ZARRS, PIPELINES[0]]),
            ("del zarr.codecs.TransposeCodec", DEFAULTS),  # zarr's pipeline under our name
            ("del zarr.config.defaults[0]['codec_pipeline']", [OURS, PIPELINES[0]]),
            ("zarr.config.collect = lambda: {'codecs': 3}", [ZARRS, DEFAULTS[1]]),
        ],
    )
    def test_one_warning_and_arrays_are_read(self, run, change, used):
        program = f"{SETUP}{change}\nshow()\nshow()"
        out, err = run(program)
        assert (out, err.count(self.SAID)) == (used * 2, 1)
        if change == self.NEW_DEFAULT:
            assert run(program, "-W", "error") == (used * 2, "")

    @pytest.mark.parametrize("pipeline", OUR_PIPELINES)
    @pytest.mark.parametrize(
        ("change", "codec"),
        [
            ("zarr.config.defaults = {}", OURS),
            ("del zarr.codecs.BytesCodec._encode_sync", ZARRS),
        ],
    )
    def test_what_zarrs_config_names_exists(self, run, change, codec, pipeline):
        """No array could be opened: "not found in registered pipelines", or codecs."""
        variables = {"ZARR_CODECS__BYTES": OURS, "ZARR_CODEC_PIPELINE__PATH": pipeline}
        out, err = run(f"{SETUP}{change}\nshow()", **variables)
        assert (out, err.count(self.SAID)) == ([codec, pipeline], 1)

    @pytest.mark.skipif(len(PIPELINES) == 1, reason="this zarr has one pipeline")
    def test_the_fused_pipeline_by_default(self, run):
        """Ours that extends it takes its place."""
        change = self.NEW_DEFAULT.replace("NewPipeline", "FusedCodecPipeline").partition("\nzarr.c")
        out, err = run(f"{SETUP}zarr.c{change[2]}show()")
        assert (out, err) == ([OURS, OUR_PIPELINES[-1]], "")


@NO_OPTION
class TestUntestedZarr:
    """A zarr that is newer than those that were tested reads and writes by its own pipelines."""

    VERSION = "zarr.__version__ = '3.99.1'\n"
    REQUIRE = "zarr.config.set({'numcodecs_bytes.write_in_place': 'require'})\n"
    IS_OURS = "print(hasattr(zarr.open_array(PATH).async_array.codec_pipeline, 'reads_partially'))"
    WRITE = """
array = zarr.open_array(PATH)
for value in (zarr.open_array(PATH), pickle.loads(pickle.dumps(array))):
    try:
        value[1:] = 9
    except RuntimeError as error:
        print(str(error).partition(",")[0].replace(" ", "_"))
        assert "was tested with zarr" in str(error) and "let zarr write, if" in str(error)
print(*array[:])
"""

    def test_one_warning_that_names_the_option(self, run):
        program = f"{SETUP}{self.VERSION}show()\nshow()\n{self.IS_OURS}"
        out, err = run(program)
        assert out == [*DEFAULTS * 2, "False"]
        assert err.count("numcodecs_bytes leaves arrays to zarr alone") == 1
        assert "numcodecs_bytes.untested_zarr" in err
        assert UNTESTED_ZARR in err
        assert run(program, "-W", "error") == (out, "")

    def test_the_report_says_why(self, run):
        """Also where a class of our name is used."""
        program = f"import sys, zarr\n{self.VERSION}sys.argv[1:] = []\n"
        program += "from numcodecs_bytes.__main__ import main\nmain()"
        out, _ = run(program, ZARR_CODEC_PIPELINE__PATH=OUR_PIPELINES[0])
        lines = " ".join(out)
        assert "partial reads: off: numcodecs_bytes leaves arrays to zarr alone" in lines
        assert "writes in place: off" in lines

    @pytest.mark.parametrize(("value", "is_ours"), [("true", "True"), ("0", "False")])
    def test_the_option(self, run, value, is_ours):
        """To try it all the same, or to silence the warning."""
        out, err = run(f"{SETUP}{self.VERSION}show()\n{self.IS_OURS}", **{UNTESTED_ZARR: value})
        assert (out, err) == ([*DEFAULTS, is_ours], "")

    def test_a_wrong_value_of_the_option(self, run):
        out, err = run(f"{SETUP}{self.VERSION}show()", **{UNTESTED_ZARR: "maybe"})
        assert out == DEFAULTS
        assert "numcodecs_bytes.untested_zarr in zarr's config must be True or False" in err
        assert "upgrade numcodecs_bytes" not in err

    @pytest.mark.parametrize("change", ["", "pipeline.read = lambda self, out, batch: None"])
    def test_the_tools_do_not_bring_ours_back(self, run, change):
        """`check` and `dask_chunks` imported our pipelines, which became the default."""
        program = f"{SETUP}{'' if change else self.VERSION}import numcodecs_bytes.check\n"
        program += "from zarr.core.codec_pipeline import BatchedCodecPipeline as pipeline\n"
        program += f"read = pipeline.read\n{change}\nshow = zarr.open_array(PATH)\n"
        program += "pipeline.read = read\nprint(numcodecs_bytes.dask_chunks(show, 64))\n"
        program += "(report,) = numcodecs_bytes.check.check(PATH)\n"
        program += f"print('leaves' in report.partial_reads)\n{self.IS_OURS}"
        out, _ = run(program, "-W", "ignore")
        assert out[-2:] == ["True", "False"]

    @pytest.mark.parametrize("path", ["BatchedBytesPipeline", "FusedBytesPipeline"])
    def test_our_pipelines_by_name(self, run, path):
        """Programs that followed the documentation set them: BadConfigError."""
        name = f"numcodecs_bytes.zarr_pipeline.{path}"
        variables = {"ZARR_CODEC_PIPELINE__PATH": name}
        program = f"{SETUP}{self.VERSION}import pickle\nshow(){self.WRITE}"
        out, _ = run(program, **variables)
        assert out == [OURS, name, "1", "9", "9", "9"]

    @pytest.mark.parametrize("path", ["", "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline"])
    def test_nothing_is_written_if_it_must_be_in_place(self, run, path):
        """Upgrading zarr would have turned that off silently."""
        variables = {"ZARR_CODEC_PIPELINE__PATH": path} if path else {}
        for set_before in (self.REQUIRE, f"zarr.open_array(PATH)\n{self.REQUIRE}"):
            program = f"{SETUP}{self.VERSION}import pickle\n{set_before}{self.WRITE}"
            out, _ = run(program, **variables)
            why = "nothing_can_be_written_in_place:_numcodecs_bytes_leaves_arrays_to_zarr_alone:"
            assert [each.startswith(why) for each in out[:2]] == [True, True]
            assert out[2:] == ["1", "2", "3", "4"]

    def test_nothing_is_written_if_it_had_to_be_where_it_was_pickled(self, run):
        program = f"{SETUP}{self.VERSION}import pickle\n{self.REQUIRE}"
        program += "pickled = pickle.dumps(zarr.open_array(PATH))\n"
        for value in ("None", "False"):
            program += f"zarr.config.set({{'numcodecs_bytes.write_in_place': {value}}})\n"
            program += "try:\n    pickle.loads(pickled)[1:] = 9\n"
            program += "except RuntimeError as error:\n    print('set it to' in str(error))\n"
            program += "print(*pickle.loads(pickled)[:])\n"
        out, _ = run(program)
        assert out == ["True", "1", "2", "3", "4", "1", "9", "9", "9"]

    def test_a_method_that_takes_something_else(self, run):
        """Opening an array raised TypeError, although zarr's own pipeline was used."""
        program = f"{SETUP}{self.VERSION}import pickle\n"
        program += "from zarr.core.codec_pipeline import BatchedCodecPipeline as pipeline\n"
        program += "evolve = pipeline.evolve_from_array_spec\n"
        program += "new = lambda self, chunk_spec, *, more=None: evolve(self, chunk_spec)\n"
        program += f"pipeline.evolve_from_array_spec = new\nshow()\n{self.IS_OURS}"
        program += "\narray = zarr.open_array(PATH)\n"
        program += "print(*pickle.loads(pickle.dumps(array))[:])"
        out, _ = run(program)
        assert out == [*DEFAULTS, "False", "1", "2", "3", "4"]

    def test_pickled_arrays_load_without_this_package(self, run, tmp_path):
        """They take the pipeline that is configured there."""
        dump = "import pickle\nraw = pickle.dumps(array.async_array.codec_pipeline)\n"
        dump += "open(PIPELINE, 'wb').write(raw)"
        native = "array = zarr.create_array({}, shape=(4,), dtype='u1', compressors=None)\n"
        chosen = "", str(tmp_path / "pickle")
        run(f"{SETUP}{self.VERSION}{native}{dump}", chosen=chosen)
        load = "print(type(__import__('pickle').load(open(PIPELINE, 'rb'))).__module__)"
        out, _ = run(f"{WITHOUT_ENTRY_POINTS}{SETUP}{load}", chosen=chosen)
        assert out == [PIPELINES[0].rpartition(".")[0]]

    @pytest.mark.parametrize(
        "change",
        [
            "codec._decode_sync = lambda self, chunk, spec: None",
            "del codec._encode_sync",
            "async def evolve(self, array_spec): pass\ncodec.evolve_from_array_spec = evolve",
        ],
    )
    def test_methods_of_the_codec_that_changed(self, run, change):
        program = f"{SETUP}from zarr.codecs.bytes import BytesCodec as codec\n{change}\n"
        program += "print(zarr.registry.get_codec_class('bytes').__module__)"
        out, err = run(program)
        assert (out, err.count(TestUnknownZarr.SAID)) == ([ZARRS.rpartition(".")[0]], 1)

    def test_which_versions_were_tested(self):
        newest = ".".join(map(str, NEWEST_MINOR))
        tested = ["3.1.6", "3.1.7", "3.2.0", f"{newest}.0", f"{newest}.99", f"{newest}.2.post1"]
        tested += [zarr.__version__, f"{newest}.2+local.1"]
        untested = ["3.4.3.dev12+g123", "3.5.0rc1", "3.5.0", "4.0.0", "3.1.5", "0.0.0", "2.18.3"]
        untested += ["3.4.3a1", "unknown", "", "0+unknown", "3.4.2.dev0", "3"]
        assert [v for v in tested if not is_tested(v)] == []
        assert [v for v in untested if is_tested(v)] == []


class TestReport:
    """python -m numcodecs_bytes"""

    @NO_OPTION
    def test_what_is_on(self):
        lines = run_program("-m", "numcodecs_bytes").stdout.splitlines()
        assert lines[0].startswith(f"numcodecs-bytes {numcodecs_bytes.__version__} with zarr ")
        them = "them" if HAS_STRUCT else "them (and struct)"
        alone = f"off: this zarr does not load {them}; import numcodecs_bytes.zarr_data_types first"
        assert lines[1:] == [
            "partial reads: on",
            "writes in place: off: numcodecs_bytes.write_in_place is False, as by default",
            'codec "bytes" of Zarr v3: on',
            'filter "bytes" of Zarr v2: on',
            f"data types r24, complex_float32, ...: {'on' if LOADS_DATA_TYPES else alone}",
            f"data types bfloat16, int4, ...: {'on' if LOADS_DATA_TYPES else alone}",
        ]

    def test_without_ml_dtypes(self):
        program = "from numcodecs_bytes.__main__ import main; main([])"
        lines = run_program("-c", WITHOUT_ML_DTYPES + program).stdout.splitlines()
        said = "needs the package ml_dtypes, which is not installed: pip install ml_dtypes"
        assert lines[6] == f"data types bfloat16, int4, ...: off: data type 'bfloat16' {said}"

    @NO_OPTION
    def test_options_and_what_sets_them(self, tmp_path):
        """And those that do not exist."""
        file = tmp_path / "zarr.yaml"
        given = "gap: 1, in_place: 1, max_gap_bytes: 1, write-in-place: true"
        file.write_text(f"{{numcodecs_bytes: {{{given}}}}}")
        key = "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"
        variables = {"ZARR_CONFIG": file, "ZARR_NUMCODECS_BYTES_GAP": 3, key: "2 KiB"}
        done = run_program("-m", "numcodecs_bytes", status=1, **variables)
        lines = done.stdout.splitlines()
        assert f"writes in place: on, set by file {file}" in lines
        names = "max_gap_bytes, stores_with_ranges, untested_zarr, write_in_place"
        why = f"has no effect: it is not an option ({names}), set by"
        meant = "(did you mean numcodecs_bytes.write_in_place?)"
        assert sorted(lines[7:]) == [
            f"numcodecs_bytes.gap {why} file {file}",
            f"numcodecs_bytes.in_place {meant} {why} file {file}",
            f"numcodecs_bytes.max_gap_bytes is 2048, set by environment variable {key}",
            f"numcodecs_bytes_gap {why} environment variable ZARR_NUMCODECS_BYTES_GAP",
        ]
        assert not done.stderr  # each is said once

    @NO_OPTION
    @pytest.mark.parametrize("mode", ["", "true", "require"])
    def test_a_zarr_that_was_not_tested(self, mode):
        """The exit status was 0, and it was said twice."""
        program = "import zarr; zarr.__version__ = '99.1.0'\n"
        program += "from numcodecs_bytes.__main__ import main; main() and sys.exit(1)"
        variables = {"ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE": mode}
        done = run_program("-c", f"import sys; {program}", status=1, **variables)
        newest = ".".join(map(str, NEWEST_MINOR))
        assert f"; the newest zarr that was tested is {newest}\n" in done.stdout
        assert (done.stdout + done.stderr).count("and this is 99.1.0") == 1
        off = "write_in_place is False"
        expected = "arrays are left to zarr alone" if mode else off
        assert re.search(f"writes in place: off: .*{expected}", done.stdout)

    @pytest.mark.parametrize(
        ("key", "value", "status", "said"),
        [
            (KEYS[1], PIPELINES[0], 1, f"partial reads: off: zarr uses {PIPELINES[0]}"),
            *[
                (KEYS[1], path, 1, rf"zarr uses {path} \({ours} is the same with partial reads\)")
                for path, ours in zip(PIPELINES[1:], OUR_PIPELINES[1:], strict=True)
            ],
            ("numcodecs_bytes.write_in_place", "require", 0, "writes in place: on"),
            (
                *("numcodecs_bytes.write_in_place", "always", 1),
                "writes in place: off: .*'require', got 'always'",
            ),
            (
                *("numcodecs_bytes.stores_with_ranges", "not_here.Store", 0),
                r"is \[\] \(ignored, because their packages are not installed: not_here.Store\)",
            ),
            # zarr opens no array then, whichever codec it would use.
            (KEYS[1], "numcodecs_bytes.No", 1, r"partial reads: off: BadConfigError.*\]"),
            (KEYS[0], "no.Such", 1, r'codec "bytes" of Zarr v3: off: .*no\.Such.*'),
            (KEYS[0], ZARRS, 1, f'codec "bytes" of Zarr v3: off: zarr uses {ZARRS}'),
            ("numcodecs_bytes.max_gap_bytes", "wide", 1, "such as '64 KiB', got 'wide'"),
            ("numcodecs_bytes.stores_with_ranges", "zarr.storag.X", 1, r"'zarr.storag.X' \(.*\)"),
        ],
    )
    def test_settings(self, capsys, key, value, status, said):
        with zarr.config.set({key: value}):
            assert main([]) == status
            assert re.search(f"{said}, set by zarr.config.set\n", capsys.readouterr().out)
            main(["--json"])
        found = json.loads(capsys.readouterr().out)
        assert "zarr.config.set" in [each["set_by"] for each in found["parts"] + found["options"]]

    @pytest.mark.parametrize("path", [*PIPELINES, *ZARRS_RS, *OUR_PIPELINES])
    @pytest.mark.parametrize("mode", [True, "require"])
    def test_writes_in_place_with_another_pipeline(self, capsys, path, mode):
        """What somebody has set has no effect, and may be relied on."""
        is_ours = path in OUR_PIPELINES
        with zarr.config.set({KEYS[1]: path, "numcodecs_bytes.write_in_place": mode}):
            assert main([]) == (0 if is_ours else 1)
        (line,) = re.findall("writes in place: (.*)", capsys.readouterr().out)
        assert line.startswith("on" if is_ours else "off")
        assert (f"zarr uses {path}" in line) == (not is_ours)

    def test_a_file_that_zarr_can_not_parse(self, tmp_path):
        (tmp_path / "zarr.yaml").write_text("codecs: [")
        done = run_program("-m", "numcodecs_bytes", status=2, ZARR_CONFIG=tmp_path)
        assert done.stderr.startswith("zarr can't be imported: ValueError: A config file at ")
        assert len(done.stderr.splitlines()) == 1

    def test_versions_that_are_not_supported(self, capsys, monkeypatch):
        """numcodecs 0.16.5 was "on", with status 0."""
        numbers = {"zarr": zarr.__version__, "numcodecs": "0.16.5", "numpy": "2.1.0.dev0+1"}
        monkeypatch.setattr("numcodecs_bytes._tools.requirements.version", numbers.get)
        assert main(["--json"]) == 1
        (said,) = json.loads(capsys.readouterr().out)["unsupported_versions"]
        assert said.startswith(
            "numcodecs 0.16.5 is installed, but numcodecs-bytes needs numcodecs "
        )
        assert main([]) == 1
        assert capsys.readouterr().out.splitlines()[1] == said

    def test_zarr_2(self, tmp_path):
        """It was an error of an import that named no version."""
        (tmp_path / "zarr").mkdir()
        (tmp_path / "zarr/__init__.py").write_text("__version__ = '2.18.7'")
        (tmp_path / "zarr-2.18.7.dist-info").mkdir()
        (tmp_path / "zarr-2.18.7.dist-info/METADATA").write_text("Name: zarr\nVersion: 2.18.7")
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        done = run_python("-m", "numcodecs_bytes", status=2, PYTHONPATH=path)
        lines = done.stderr.splitlines()
        assert lines[0].startswith("zarr can't be imported: ModuleNotFoundError")
        assert lines[1].startswith("zarr 2.18.7 is installed, but numcodecs-bytes needs zarr >=3")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
    def test_a_full_disk(self):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            options = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
            done = run_python("-m", "numcodecs_bytes", status=2, options=options | {"text": True})
        assert done.stderr == "can't print the report: No space left on device\n"

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

    def test_the_version(self, capsys):
        for option in ("-V", "--version"):
            with pytest.raises(SystemExit, match="0"):
                main([option])
            assert capsys.readouterr().out == f"{numcodecs_bytes.__version__}\n"

    @pytest.mark.parametrize("arguments", [(), ("--json",)], ids=str)
    def test_stderr_is_closed(self, tmp_path, arguments):
        """Its progress bar ended the check, and what is for stderr was printed to stdout."""
        zarr.create_array(tmp_path / "a", shape=4, dtype="i1", compressors=None)[...] = 1
        program = "import os, runpy, sys; sys.stderr = None; "
        program += "runpy.run_module('numcodecs_bytes', run_name='__main__')"
        for name, status in (("a", 0), ("none", 2)):
            done = run_python("-c", program, "check", *arguments, tmp_path / name, status=status)
            assert "NoneType" not in done.stdout
            if arguments:
                json.loads(done.stdout)

    @pytest.mark.parametrize("is_long", [False, True])
    def test_without_tqdm(self, tmp_path, capsys, monkeypatch, is_long):
        """Who waits for long before a terminal is told that there can be a progress bar."""
        zarr.create_array(tmp_path, shape=4, dtype="i1", compressors=None)
        monkeypatch.setitem(sys.modules, "tqdm", None)
        monkeypatch.setattr("numcodecs_bytes.__main__.LONG_SECONDS", 0.0 if is_long else 600.0)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert main(["check", str(tmp_path)]) == 0
        said = "for a progress bar, install tqdm: pip install tqdm\n" if is_long else ""
        assert capsys.readouterr().err == said

    @pytest.mark.needs("os.killpg")  # Windows has no signals like these
    def test_ctrl_c(self):
        """While zarr's event loop waits for a server: no traceback, and the status of shells."""
        pytest.importorskip("aiohttp", reason="the extra stores is not installed")
        program = """
import runpy, signal, sys

def interrupt(*_):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
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
                for _ in range(60):  # again and again: see WAITING in test_writers.py
                    process.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=1)
                        break
                process.kill()  # if it is still there
                out, err = process.communicate()
                connection.close()
        assert process.returncode == 130
        assert (out, err.splitlines()[-1]) == ("", "interrupted")
        assert "Traceback" not in err
