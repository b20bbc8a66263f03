"""The options: keys under ``numcodecs_bytes`` in zarr's config, however that is set."""

import pytest
import zarr
from helpers import CountingStore, create, ranges_from, run_program

import numcodecs_bytes

KEY = "numcodecs_bytes.write_in_place"
# Prints how many chunks are written in place, and what is said of it.
WRITE = """
import sys, zarr, numcodecs_bytes
array = zarr.open_array(sys.argv[1], mode="r+")
with numcodecs_bytes.trace() as traced:
    array[3, 1:] = 2
print(traced.report()["total"]["chunks_in_place"])
"""


@pytest.fixture
def path(tmp_path):
    create(tmp_path / "a", (64, 64))[:] = 1
    return tmp_path / "a"


def num_in_place(path):
    """Return how many chunks are written in place if a part of one is written."""
    array = zarr.open_array(path, mode="r+")
    with numcodecs_bytes.trace() as traced:
        array[3, 1:] = 2
    return traced.report()["total"]["chunks_in_place"]


def num_requests(path):
    """Return how many requests it takes to read a column of 64 rows of 512 bytes."""
    array = zarr.open_array(CountingStore(path), mode="r")
    with ranges_from(CountingStore):
        assert array[:, 3].tolist() == [1] * 64
    return len(array.store.requests)


class TestValues:
    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            *((value, 1) for value in (True, "require", "Require ", "true", "TRUE", 1)),
            *((value, 0) for value in (False, "false", "False", 0, "", None)),
        ],
    )
    def test_writes_in_place(self, path, value, expected):
        """An empty variable sets nothing."""
        with zarr.config.set({KEY: value}):
            assert num_in_place(path) == expected
        assert num_in_place(path) == 0

    @pytest.mark.needs("fcntl")
    @pytest.mark.parametrize("section", ["numcodecs_bytes", "numcodecs-bytes"])
    @pytest.mark.parametrize("others", [{}, {"numcodecs_bytes.max_gap_bytes": 1}], ids=str)
    def test_hyphens(self, path, section, others):
        """As in the names that pip and the command have."""
        for name in ("write_in_place", "write-in-place"):
            with zarr.config.set(others | {f"{section}.{name}": True}):
                assert num_in_place(path) == 1

    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0, 64), (503, 64), (504, 1), ("504", 1), (" 0.5 KiB", 1), ("504 b", 1), ("0.5kb", 64)],
    )
    def test_gaps(self, path, value, expected):
        """Between the 8 bytes of each row there are 504."""
        with zarr.config.set({"numcodecs_bytes.max_gap_bytes": value}):
            assert num_requests(path) == expected

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("max_gap_bytes", "much", "a whole number of bytes, or a size such as '64 KiB'"),
            ("max_gap_bytes", -1, "a whole number of bytes"),
            ("max_gap_bytes", 1.5, "a whole number of bytes"),
            ("max_gap_bytes", True, "a whole number of bytes"),
            ("stores_with_ranges", [1], "a list of classes such as 'package.module.Store'"),
            ("stores_with_ranges", 3, "a list of classes"),
            ("write_in_place", "yes", "True, False or 'require'"),
            ("write_in_place", [True], "True, False or 'require'"),
            ("write_in_place", 2, "True, False or 'require'"),
        ],
    )
    def test_a_wrong_kind_raises_where_it_is_used(self, path, name, value, expected):
        """Not where an array is opened; the error names the key, and nothing is written."""
        array = zarr.open_array(CountingStore(path) if name == "stores_with_ranges" else path)
        use = array.__setitem__ if name == "write_in_place" else lambda at, _: array[at]
        message = rf"numcodecs_bytes\.{name} in zarr's config must be {expected}.*got \[?'?"
        message += rf"{str(value).strip('[]')}.*, set in this program by zarr.config.set"
        with (
            zarr.config.set({f"numcodecs_bytes.{name}": value}),
            pytest.raises(ValueError, match=message) as caught,
        ):
            use((3, slice(1, None)), 2)
        assert not hasattr(caught.value, "__notes__")  # it named a chunk
        assert array[3, 3] == 1


class TestWhereTheyAreSet:
    VARIABLE = "ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE"

    def run(self, path, program=WRITE, **variables):
        """Return how often chunks are written in place; nothing is said of it."""
        return run_program("-W", "error", "-c", program, path, **variables).stdout.split()

    @pytest.mark.needs("fcntl")
    def test_by_a_yaml_file(self, path, tmp_path):
        """A variable takes precedence over it."""
        file = tmp_path / "zarr.yaml"
        file.write_text("numcodecs_bytes: {write-in-place: true}")
        assert self.run(path, ZARR_CONFIG=tmp_path) == ["1"]
        file.write_text("numcodecs_bytes: {write_in_place: true}")
        assert self.run(path, ZARR_CONFIG=file, **{self.VARIABLE: "False"}) == ["0"]

    @pytest.mark.needs("fcntl")
    def test_by_a_program(self, path):
        """It takes precedence over both, for arrays that are open, too, until a scope ends."""
        program = WRITE.replace("with", f"zarr.config.set({{{KEY!r}: True}})\nwith")
        assert self.run(path, program, **{self.VARIABLE: "0"}) == ["1"]
        with zarr.config.set({KEY: True}):
            with zarr.config.set({KEY: False}):
                assert num_in_place(path) == 0
            assert num_in_place(path) == 1

    @pytest.mark.parametrize("is_file", [True, False])
    def test_an_error_says_where(self, path, tmp_path, is_file):
        """It named a command that looks at another process."""
        (tmp_path / "zarr.yaml").write_text("numcodecs_bytes: {write_in_place: 'yes'}")
        variables = {"ZARR_CONFIG": tmp_path} if is_file else {self.VARIABLE: "yes"}
        done = run_program("-c", WRITE, path, status=1, **variables)
        file, variable = f"file {tmp_path / 'zarr.yaml'}", f"environment variable {self.VARIABLE}"
        where = file if is_file else variable
        assert f"must be True, False or 'require', got 'yes', set by {where}\n" in done.stderr

    @pytest.mark.needs("fcntl")
    def test_an_error_of_require_says_where_and_what_to_do(self, tmp_path):
        array = zarr.create_array(tmp_path, shape=4, dtype="i1")
        with (
            zarr.config.set({KEY: "require"}),
            pytest.raises(RuntimeError, match="compressed or filtered by zstd") as caught,
        ):
            array[0] = 1
        said = str(caught.value)
        assert "written in place: compressed" in said
        remedy = "create the array with compressors=None, or set the option to True to let zarr"
        assert f"; {remedy} write the chunk, if nothing else writes to it meanwhile (" in said
        assert said.endswith(f" ({KEY} is 'require', set in this program by zarr.config.set)")


class TestUnknownKeys:
    def test_they_are_named_in_one_warning(self, path, tmp_path):
        """With the known ones; one has one underscore short of two."""
        (tmp_path / "zarr.yaml").write_text("numcodecs_bytes: {write_inplace: true}")
        variables = {
            "ZARR_NUMCODECS_BYTES_WRITE_IN_PLACE": "1",
            "ZARR_NUMCODECS_BYTES__GAP": "1",
            "ZARR_CONFIG": tmp_path / "zarr.yaml",
        }
        done = run_program("-c", WRITE * 2, path, **variables)
        assert done.stdout.split() == ["0", "0"]
        (said,) = [line for line in done.stderr.splitlines() if "have no effect" in line]
        meant = f" (did you mean {KEY}?)"
        variable = "ZARR_NUMCODECS_BYTES_WRITE_IN_PLACE (did you mean ZARR_NUMCODECS_BYTES__"
        for name in (variable, "numcodecs_bytes.gap", f"numcodecs_bytes.write_inplace{meant}"):
            assert name in said.partition("have no effect")[0]
        known = [
            f"numcodecs_bytes.{name}"
            for name in ("max_gap_bytes", "stores_with_ranges", "untested_zarr")
        ]
        assert f"{', '.join(known)}, {KEY}" in said
        assert "ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE, with two underscores" in said

    @pytest.mark.parametrize("key", ["write_in_place", "write-in-place"])
    def test_keys_without_the_name_of_the_package(self, key, path, caplog):
        """They had no effect, in silence."""
        with zarr.config.set({key: True}):
            assert num_in_place(path) == 0
        (said,) = caplog.messages
        assert said.startswith(f"{key} (did you mean {KEY}?) has no effect: the options of")

    @pytest.mark.parametrize("key", ["numcodecs_bytes.in_place", "numcodecs_byte.write_in_place"])
    def test_keys_that_are_set_after_an_array_is_opened(self, key, caplog):
        array = zarr.create_array({}, shape=4, dtype="i1", compressors=None)
        with zarr.config.set({key: True}):
            array[:1] = 1
            array[1:2] = 1
        (said,) = caplog.messages
        assert said.startswith(key.removesuffix(".write_in_place"))
        assert ("(did you mean numcodecs_bytes?)" in said) is ("byte." in key)
        assert "has no effect" in said

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("NUMCODECS_BYTES__MAX_GAP_BYTES", "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"),
            ("NUMCODECS_BYTES_UNTESTED_ZARR", "ZARR_NUMCODECS_BYTES__UNTESTED_ZARR"),
            ("ZARR_NUMCODECSBYTES__MAX_GAP_BYTES", "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"),
            ("ZARR_NUMCODEC_BYTES__MAX_GAP_BYTES", "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"),
            ("ZARR_NUMCODECS__MAX_GAP_BYTES", "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"),
            ("ZARR_NUMCODECS_BYTE__MAX_GAP_BYTES", "ZARR_NUMCODECS_BYTES__MAX_GAP_BYTES"),
            ("ZARR_NUMCODECS_BYTES__WRITE_INPLACE", "ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE"),
            ("ZARR_CODEC__BYTES", "ZARR_CODECS__BYTES"),
            ("ZARR_PIPELINE__PATH", "ZARR_CODEC_PIPELINE__PATH"),
            ("ZARR_CODEC_PIPELINES__PATH", "ZARR_CODEC_PIPELINE__PATH"),
            ("ZARR_CODEC_PIPELINE_PATH", "ZARR_CODEC_PIPELINE__PATH"),
            ("CODECS__BYTES", "ZARR_CODECS__BYTES"),
        ],
    )
    def test_misspelt_variables(self, name, meant, path):
        """They had no effect, in silence; those of others, such as that of our tests, have none."""
        others = {"NUMCODECS_BYTES_TESTS": "sample", "PIPELINE_PATH": "1", "CODEC_PIPELINE": "1"}
        variables = {name: "1", **others}
        done = run_program("-c", WRITE * 2, path, **variables)
        assert done.stdout.split() == ["0", "0"]
        assert done.stderr.count(f"{name} (did you mean {meant}?) has no effect") == 1
        assert "NUMCODECS_BYTES_TESTS" not in done.stderr
        done = run_program("-m", "numcodecs_bytes", status=1, **variables)
        assert f"{name} (did you mean {meant}?) has no effect" in done.stdout
        assert done.stdout.count("has no effect") == 1
        if "NUMCODECS" in meant:
            assert not run_program("-c", WRITE, path, **{meant: "1"}).stderr

    @pytest.mark.parametrize(
        ("variable", "instead"),
        [("ZARR_CODEC_PIPELINE", "codec_pipeline.path"), ("ZARR_CODECS", "codecs.bytes")],
    )
    def test_variables_that_break_zarr(self, variable, instead):
        """They were said to have no effect, and `zarr.config.set` to have set them."""
        done = run_program("-m", "numcodecs_bytes", status=1, **{variable: "x"})
        section = instead.partition(".")[0]
        said = f"{section} is 'x', set by environment variable {variable}: remove it, or set"
        assert f"arrays to zarr alone: {said} {instead} instead\n" in done.stdout
        assert "has no effect" not in done.stdout
        assert "zarr.config.set" not in done.stdout

    def test_a_value_without_an_option(self, path):
        """It said that numcodecs_bytes had no effect."""
        done = run_program("-c", WRITE, path, ZARR_NUMCODECS_BYTES="require")
        assert "numcodecs_bytes = 'require' has no effect: the options of" in done.stderr

    def test_keys_that_a_thread_sets_meanwhile(self, path, monkeypatch):
        """A read that met the start or the end of another thread's scope raised RuntimeError."""
        options = {}

        class Key(str):
            __slots__ = ()

            def __str__(self):
                options[f"set {len(options)}"] = True
                monkeypatch.setitem(zarr.config.config, f"set {len(options)}", 1)
                return super().__str__()

        array = zarr.open_array(path, mode="r")
        options[Key("one")] = options[Key("two")] = True
        monkeypatch.setitem(zarr.config.config, "numcodecs_bytes", options)
        monkeypatch.setitem(zarr.config.config, Key("three"), 1)
        assert array[3].tolist() == [1] * 64
        assert len(options) > 2
