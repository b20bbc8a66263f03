"""`numcodecs_bytes.set_options`, and zarr's config."""

import functools

import pytest
import zarr
from helpers import OUR_PIPELINES, PIPELINES, create, run_program

import numcodecs_bytes
from numcodecs_bytes import _settings as settings
from numcodecs_bytes._options import PARSERS
from numcodecs_bytes._zarr_versions import FusedCodecPipeline


def test_options_take_precedence_over_zarrs_config():
    """And end with their ``with``; a False is not "not set"."""
    with zarr.config.set(
        {"numcodecs_bytes.max_gap_bytes": 7, "numcodecs_bytes.write_in_place": True}
    ):
        assert settings.configured_gap_bytes() == 7
        with numcodecs_bytes.set_options(max_gap_bytes=0, write_in_place=False):
            assert settings.configured_gap_bytes() == 0
            assert settings.configured_write_in_place() is False
            with numcodecs_bytes.set_options(max_gap_bytes=5):
                assert settings.configured_gap_bytes() == 5
            assert settings.configured_gap_bytes() == 0
        assert settings.configured_gap_bytes() == 7
        assert settings.configured_write_in_place() is True
    assert settings.configured_gap_bytes() is None


def test_an_empty_environment_variable_sets_nothing():
    """As in ``NUMCODECS_BYTES_WRITE_IN_PLACE= python ...``; 1 is True."""
    names = [f"numcodecs_bytes.{name}" for name in PARSERS]
    with zarr.config.set(dict.fromkeys(names, "")):
        assert settings.configured_gap_bytes() is None
        assert settings.configured_write_in_place() is False
        assert settings.splits_requests() is True
        assert settings.stores_with_ranges() == []
    with zarr.config.set({"numcodecs_bytes.write_in_place": 1}):
        assert settings.configured_write_in_place() is True


def test_options_for_good():
    """Called as a function, without importing zarr unless a pipeline is set."""
    code = """
        import sys, numcodecs_bytes
        numcodecs_bytes.set_options(max_gap_bytes=3, stores_with_ranges=["a.B"])
        assert "zarr" not in sys.modules
        from numcodecs_bytes import _settings as settings
        assert settings.configured_gap_bytes() == 3
        assert settings.stores_with_ranges() == ["a.B"]
        numcodecs_bytes.set_options(pipeline="BytesPipeline")
        import zarr
        array = zarr.create_array({}, shape=4, dtype="i4")
        assert type(array.async_array.codec_pipeline).__name__ == "BytesPipeline"
    """
    run_program("-W", "error", "-c", "\n".join(line[8:] for line in code.splitlines()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_gap_bytes": -1}, "max_gap_bytes must be a number of bytes, 0 or more, got -1"),
        ({"split_requests": "no"}, "split_requests must be True or False, got 'no'"),
        ({"stores_with_ranges": [1]}, "stores_with_ranges must be a list of classes"),
        ({"write_in_place": [True]}, "write_in_place must be True, False or 'require'"),
        ({"write_in_place": "yes"}, "write_in_place must be True, False or 'require', got 'yes'"),
        ({"pipeline": "Bytes"}, "pipeline must be 'BytesPipeline' or"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_values_set_nothing(options, message):
    """The error names the option, and what it may be."""
    path = zarr.config.get("codec_pipeline.path")
    with pytest.raises(ValueError, match=message):
        numcodecs_bytes.set_options(**{"max_gap_bytes": 11, "pipeline": "BytesPipeline"} | options)
    assert settings.configured_gap_bytes() is None
    assert zarr.config.get("codec_pipeline.path") == path


def pipeline_here():
    """Return the pipeline that arrays opened in this process get."""
    return zarr.registry.get_pipeline_class().__name__


@pytest.mark.parametrize("mode", [True, "require"])
def test_writes_in_place_choose_a_pipeline(mode):
    """Unless one was chosen."""
    before = pipeline_here()
    with numcodecs_bytes.set_options(write_in_place=mode):
        assert pipeline_here() == "BytesPipeline"
        assert settings.configured_write_in_place() == mode
    assert pipeline_here() == before
    with zarr.config.set({"codec_pipeline.path": OUR_PIPELINES[-1]}):
        with numcodecs_bytes.set_options(write_in_place=mode):
            assert pipeline_here() == OUR_PIPELINES[-1].rsplit(".", 1)[-1]
        with numcodecs_bytes.set_options(write_in_place=False):
            assert pipeline_here() == OUR_PIPELINES[-1].rsplit(".", 1)[-1]


def test_a_requirement_with_another_pipeline():
    """Writers who count on it are not let down in silence; the text may be that of the default."""
    another = "".join(zarr.config.get("codec_pipeline.path"))
    with zarr.config.set({"codec_pipeline.path": "".join([another[:5], another[5:]])}):
        with pytest.raises(ValueError, match="write_in_place='require' needs a pipeline of numc"):
            numcodecs_bytes.set_options(write_in_place="require", max_gap_bytes=3)
        assert settings.configured_gap_bytes() is None
        assert settings.configured_write_in_place() is False
        with numcodecs_bytes.set_options(write_in_place=True):
            assert pipeline_here() == another.rsplit(".", 1)[-1]


WRITER = """
import sys, warnings, zarr
warnings.simplefilter("error")
set_before, sys.argv[1:3] = eval(sys.argv[2]), [sys.argv[1]]
zarr.config.set(set_before)
array = zarr.create_array(sys.argv[1], shape=(8, 8), dtype="f8", compressors=None, overwrite=True)
other = zarr.open_array(sys.argv[1], mode="r+")
for handle in (array, other):
    handle[1, 1:] = 2
names = [type(handle.async_array.codec_pipeline).__name__ for handle in (array, other)]
zarr.config.reset()
print(*names, zarr.config.get("codec_pipeline.path").rsplit(".", 1)[-1])
"""


class TestFirstPipeline:
    """What the environment and zarr's config say when zarr first looks up a pipeline."""

    VARIABLE = "NUMCODECS_BYTES_WRITE_IN_PLACE"

    def run(self, tmp_path, variables, config=None, status=0):
        code = ("-c", WRITER, tmp_path / "a", repr(config or {}))
        done = run_program(*code, status=status, **variables)
        return done.stderr if status else done.stdout.split()

    @pytest.mark.parametrize("mode", ["True", "require"])
    def test_the_environment(self, tmp_path, mode):
        """It outlives `zarr.config.reset`, and holds for arrays that are created, too."""
        found = self.run(tmp_path, {self.VARIABLE: mode})
        assert found == ["BytesPipeline"] * 3

    @pytest.mark.parametrize("value", ["", "False", "perhaps", "yes", "REQUIRE"])
    def test_it_is_not_asked_for(self, tmp_path, value):
        """A value that means nothing is an error when something is written, and not before."""
        if value not in ("", "False"):
            error = self.run(tmp_path, {self.VARIABLE: value}, status=1)
            assert f"must be True, False or 'require', got {value!r}" in error
            assert not (tmp_path / "a/c").exists()  # nor by an array that was created
        else:
            assert set(self.run(tmp_path, {self.VARIABLE: value})) == {"BatchedCodecPipeline"}

    def test_zarrs_environment(self, tmp_path):
        """As long as zarr takes variables that it does not know."""
        variables = {"ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE": "require"}
        assert self.run(tmp_path, variables) == ["BytesPipeline"] * 3

    @pytest.mark.parametrize("name", OUR_PIPELINES)
    def test_the_option_pipeline(self, tmp_path, name):
        name = name.rsplit(".", 1)[-1]
        assert self.run(tmp_path, {"NUMCODECS_BYTES_PIPELINE": name}) == [name] * 3
        others = {"NUMCODECS_BYTES_PIPELINE": name, self.VARIABLE: "require"}
        assert self.run(tmp_path, others) == [name] * 3

    @pytest.mark.parametrize("variable", ["NUMCODECS_BYTES_PIPELINE", VARIABLE])
    @pytest.mark.parametrize("scope", ["zarr.config.set", "numcodecs_bytes.set_options", "False"])
    def test_a_scope_that_is_open_when_it_is_looked_up(self, variable, scope):
        """What is configured counts as soon as it ends, and never before."""
        code = """
            import zarr, numcodecs_bytes
            def open_one():
                array = zarr.create_array({}, shape=4, dtype="i4")
                return type(array.async_array.codec_pipeline).__module__
            with SCOPE as scope:
                print(open_one())
            print(open_one())
            zarr.config.reset()
            print(open_one())
            numcodecs_bytes.set_options(pipeline="BytesPipeline")
            numcodecs_bytes.set_options(reset=True)
            print(open_one())
        """
        code = "\n".join(line[12:] for line in code.splitlines())
        given = {
            "zarr.config.set": f"zarr.config.set({{'codec_pipeline.path': '{PIPELINES[0]}'}})",
            "numcodecs_bytes.set_options": "numcodecs_bytes.set_options(pipeline='BytesPipeline')",
            "False": "numcodecs_bytes.set_options(write_in_place=False)",
        }[scope]
        value = "BytesPipeline" if variable.endswith("PIPELINE") else "require"
        done = run_program("-c", code.replace("SCOPE", given), **{variable: value})
        ours = "numcodecs_bytes.zarr_pipeline"
        inside = PIPELINES[0].rsplit(".", 1)[0] if scope == "zarr.config.set" else ours
        assert done.stdout.split() == [inside, ours, ours, ours]

    def test_a_program_that_asks_for_writes_in_place_for_a_while(self):
        """It chooses no pipeline for good."""
        code = f"""if True:
            import zarr
            def open_one():
                array = zarr.create_array({{}}, shape=4, dtype="i4")
                return type(array.async_array.codec_pipeline).__module__
            options = {{"numcodecs_bytes.write_in_place": True}}
            with zarr.config.set(options | {{"codec_pipeline.path": {PIPELINES[0]!r}}}):
                open_one()
            print(open_one())
        """
        assert run_program("-c", code).stdout.strip() == PIPELINES[0].rsplit(".", 1)[0]

    def test_what_is_set_for_good_before_the_first_lookup(self):
        """And is forgotten after it: what is configured counts then."""
        code = """
            import zarr, numcodecs_bytes
            numcodecs_bytes.set_options(pipeline="BytesPipeline")
            zarr.create_array({}, shape=4, dtype="i4")
            before = zarr.config.get("codec_pipeline.path")
            numcodecs_bytes.set_options(reset=True)
            array = zarr.create_array({}, shape=4, dtype="i4")
            assert zarr.config.get("codec_pipeline.path") is not before
            print(type(array.async_array.codec_pipeline).__module__)
        """
        code = "\n".join(line[12:] for line in code.splitlines())
        done = run_program("-c", code, NUMCODECS_BYTES_PIPELINE="BytesPipeline")
        assert done.stdout.strip() == "numcodecs_bytes.zarr_pipeline"

    def test_defaults_of_another_package(self):
        """They are a choice."""
        code = f"""if True:
            import zarr
            zarr.config.update_defaults({{"codec_pipeline": {{"path": {PIPELINES[0]!r}}}}})
            array = zarr.create_array({{}}, shape=4, dtype="i4")
            print(type(array.async_array.codec_pipeline).__module__)
        """
        done = run_program("-c", code, NUMCODECS_BYTES_PIPELINE="BytesPipeline")
        assert done.stdout.strip() == PIPELINES[0].rsplit(".", 1)[0]

    def test_the_option_pipeline_is_wrong(self, tmp_path):
        """An error when an array is opened, unless another pipeline was chosen."""
        variables = {"NUMCODECS_BYTES_PIPELINE": "Bytes"}
        error = self.run(tmp_path, variables, status=1)
        assert "the option numcodecs_bytes.pipeline must be 'BytesPipeline' or" in error
        assert "got 'Bytes' (set by environment variable NUMCODECS_BYTES_PIPELINE)" in error
        variables["ZARR_CODEC_PIPELINE__PATH"] = PIPELINES[0]
        assert set(self.run(tmp_path, variables)) == {PIPELINES[0].rsplit(".", 1)[-1]}

    def test_a_file(self, tmp_path):
        (tmp_path / "zarr.yaml").write_text("numcodecs_bytes: {write_in_place: require}")
        found = self.run(tmp_path, {"ZARR_CONFIG": str(tmp_path / "zarr.yaml")})
        assert found == ["BytesPipeline"] * 3

    def test_the_config(self, tmp_path):
        found = self.run(tmp_path, {}, {"numcodecs_bytes.write_in_place": "require"})
        assert found[:2] == ["BytesPipeline"] * 2

    @pytest.mark.parametrize("path", [*PIPELINES, OUR_PIPELINES[-1]])
    def test_a_pipeline_that_was_chosen(self, tmp_path, path):
        """It stays; required writes fail with another one than ours."""
        variables = {"ZARR_CODEC_PIPELINE__PATH": path, self.VARIABLE: "require"}
        if path in PIPELINES:
            error = self.run(tmp_path, variables, status=1)
            assert "write_in_place requires a pipeline of numcodecs_bytes" in error
            assert f"codec_pipeline.path is {path}" in error
        else:
            assert self.run(tmp_path, variables) == [path.rsplit(".", 1)[-1]] * 3


SETTINGS = """
import sys, warnings
from numcodecs_bytes import _settings as settings
import numcodecs_bytes, zarr
zarr.config.set({"numcodecs_bytes.max_gap_bytes": 2, "numcodecs_bytes.split_requests": False})
values = settings.configured_gap_bytes(), settings.splits_requests()
with numcodecs_bytes.set_options(max_gap_bytes=1, split_requests=True):
    print(*values, settings.configured_gap_bytes(), settings.splits_requests())
"""


class TestVariables:
    def test_precedence(self):
        """`set_options`, variables of ours, zarr's config."""
        done = run_program("-c", SETTINGS, NUMCODECS_BYTES_MAX_GAP_BYTES=3)
        assert done.stdout.split() == ["3", "False", "1", "True"]
        assert run_program("-c", SETTINGS).stdout.split() == ["2", "False", "1", "True"]

    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("write_in_place", "1", True),
            ("write_in_place", "true", True),
            ("write_in_place", "FALSE", False),
            ("write_in_place", "require", "require"),
            ("max_gap_bytes", " 4096 ", 4096),
            ("max_gap_bytes", "", None),
            ("split_requests", "False", False),
            ("split_requests", "0", False),
            ("stores_with_ranges", "a.B", ["a.B"]),
            ("stores_with_ranges", "['a.B', 'c.D']", ["a.B", "c.D"]),
        ],
    )
    def test_values(self, name, text, value):
        code = f"from numcodecs_bytes import _settings; print(_settings._option({name!r}))"
        done = run_program("-c", code, **{f"NUMCODECS_BYTES_{name.upper()}": text})
        assert done.stdout.strip() == repr(value).strip("'")

    def test_a_wrong_value(self, tmp_path):
        """It is an error where the option is used, and not before."""
        create(tmp_path, (64, 64), (64, 64))[:] = 1
        code = f"import zarr; a = zarr.open_array({str(tmp_path)!r}); print('opened'); a[3]"
        done = run_program("-c", code, status=1, NUMCODECS_BYTES_MAX_GAP_BYTES="4 KiB")
        assert done.stdout == "opened\n"
        assert "numcodecs_bytes.max_gap_bytes must be a number of bytes, 0 or more" in done.stderr
        assert "got '4 KiB' (set by environment variable NUMCODECS_BYTES_MAX_GAP" in done.stderr

    OPENS = "import zarr; [zarr.create_array({}, shape=4, dtype='i4')[:] for _ in range(3)]"

    def test_unknown_ones_are_named_once(self, tmp_path):
        (tmp_path / "zarr.yaml").write_text("numcodecs_bytes: {write_inplace: true}")
        variables = {"NUMCODECS_BYTES_GAP": "{[]}", "ZARR_CONFIG": tmp_path / "zarr.yaml"}
        done = run_program("-c", self.OPENS, NUMCODECS_BYTES_TESTS="all", **variables)
        assert done.stderr.count("Warning") == 1
        assert "ignores 'gap' (set by environment variable NUMCODECS_BYTES_GAP)" in done.stderr
        assert "'write_inplace' (set by zarr's config): its options are pip" in done.stderr
        run_program("-W", "error", "-c", self.OPENS, **variables)

    def test_the_one_of_the_tests_is_known(self):
        run_program("-W", "error", "-c", self.OPENS, NUMCODECS_BYTES_TESTS="all")


class TestReset:
    def test_of_options(self):
        with numcodecs_bytes.set_options(max_gap_bytes=3, write_in_place=False):
            with numcodecs_bytes.set_options(reset=True, write_in_place=True):
                assert settings.configured_gap_bytes() is None
                assert settings.configured_write_in_place() is True
            assert settings.configured_gap_bytes() == 3
            assert settings.configured_write_in_place() is False

    @pytest.mark.parametrize("chosen", [None, *PIPELINES])
    def test_of_the_pipeline(self, chosen):
        """It is the one from before, and it is the default if that was."""
        with zarr.config.set({} if chosen is None else {"codec_pipeline.path": "".join(chosen)}):
            before = zarr.config.get("codec_pipeline.path")
            for name in OUR_PIPELINES:
                numcodecs_bytes.set_options(pipeline=name.rsplit(".", 1)[-1])
            assert zarr.config.get("codec_pipeline.path") == OUR_PIPELINES[-1]
            with numcodecs_bytes.set_options(reset=True):
                assert zarr.config.get("codec_pipeline.path") is before
                with numcodecs_bytes.set_options(pipeline="BytesPipeline"):
                    assert pipeline_here() == "BytesPipeline"
                assert zarr.config.get("codec_pipeline.path") is before
            assert zarr.config.get("codec_pipeline.path") == OUR_PIPELINES[-1]
            numcodecs_bytes.set_options(reset=True)
            assert zarr.config.get("codec_pipeline.path") is before
            numcodecs_bytes.set_options(reset=True)
            assert zarr.config.get("codec_pipeline.path") is before

    def test_writes_in_place_need_no_pipeline_that_is_forgotten(self):
        with numcodecs_bytes.set_options(pipeline=OUR_PIPELINES[-1].rsplit(".", 1)[-1]):
            with numcodecs_bytes.set_options(write_in_place=True, reset=True):
                assert pipeline_here() == "BytesPipeline"
            assert zarr.config.get("codec_pipeline.path") == OUR_PIPELINES[-1]

    def test_of_what_another_program_has_replaced(self):
        """It stays."""
        with zarr.config.set({"codec_pipeline.path": PIPELINES[0]}):
            numcodecs_bytes.set_options(pipeline="BytesPipeline")
            zarr.config.set({"codec_pipeline.path": OUR_PIPELINES[-1]})
            numcodecs_bytes.set_options(reset=True)
            assert zarr.config.get("codec_pipeline.path") == OUR_PIPELINES[-1]

    def test_a_requirement_is_judged_by_what_is_left(self):
        with zarr.config.set({"codec_pipeline.path": "".join(PIPELINES[0])}):
            numcodecs_bytes.set_options(pipeline="BytesPipeline")
            with numcodecs_bytes.set_options(write_in_place="require"):
                assert pipeline_here() == "BytesPipeline"
            other = "zarr.core.codec_pipeline.Batched" + "CodecPipeline"
            with zarr.config.set({"codec_pipeline.path": other}):
                numcodecs_bytes.set_options(pipeline="BytesPipeline")
                with pytest.raises(ValueError, match="needs a pipeline of numcodecs_bytes"):
                    numcodecs_bytes.set_options(write_in_place="require", reset=True)
                assert pipeline_here() == "BytesPipeline"
                numcodecs_bytes.set_options(reset=True)


@pytest.mark.skipif(FusedCodecPipeline is not None, reason="this zarr has a fused pipeline")
def test_fused_pipeline_of_a_zarr_without_one():
    with pytest.raises(ValueError, match="FusedBytesPipeline needs zarr 3.3 or newer, this is 3"):
        numcodecs_bytes.set_options(pipeline="FusedBytesPipeline")


class TypedConfig:
    """A config that refuses keys that zarr does not know, as in zarr-python#4101."""

    def __init__(self, config):
        self._config = config
        self.config = object()  # not a dict

    def get(self, key, *default):
        self._check(key)
        return self._config.get(key, *default)

    def set(self, given):
        for key in given:
            self._check(key)
        return self._config.set(given)

    def _check(self, key):
        if key.partition(".")[0] not in self._config.defaults[0]:
            raise KeyError(f"unknown key {key}")


def test_a_config_that_refuses_unknown_keys(tmp_path, monkeypatch):
    """Options are set by `set_options` then, and nothing fails without them."""
    create(tmp_path, (64, 64), (64, 64))[:] = 1
    monkeypatch.setattr(zarr, "config", TypedConfig(zarr.config))
    with pytest.raises(KeyError, match="unknown key"):
        zarr.config.set({"numcodecs_bytes.max_gap_bytes": 1})
    assert settings.configured_gap_bytes() is None
    assert zarr.open_array(tmp_path)[3, 3] == 1
    with numcodecs_bytes.set_options(pipeline="BytesPipeline", write_in_place="require"):
        array = zarr.open_array(tmp_path, mode="r+")
        with numcodecs_bytes.trace() as traced:
            array[3] = 2
    assert traced.report()["total"]["bytes_in_place"] == 64 * 8
    assert zarr.open_array(tmp_path)[3, 3] == 2


def test_workers_of_dask():
    """One line reaches all workers, those that start later, too."""
    distributed = pytest.importorskip("distributed")
    options = functools.partial(numcodecs_bytes.set_options, pipeline="BytesPipeline")
    settings_of_cluster = {"dashboard_address": None, "silence_logs": "ERROR"}
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, **settings_of_cluster
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert set(client.run(pipeline_here).values()) == {"BatchedCodecPipeline"}
        client.register_worker_callbacks(options)
        cluster.scale(2)
        client.wait_for_workers(2)
        assert list(client.run(pipeline_here).values()) == ["BytesPipeline"] * 2
    assert pipeline_here() != "BytesPipeline"
