"""Bugs of this package in a command: a traceback, whose they are, and a status of their own."""

import json

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import bytes_codec, run_program, write_array, write_v2

import numcodecs_bytes.check
import numcodecs_bytes.migrate
from numcodecs_bytes.__main__ import main
from numcodecs_bytes._tools import hierarchy, installation

BUG = 3
SAYS = "\nthis is a bug of numcodecs_bytes, please report it: TypeError: boom\n"


def fail(*_args, **_kwargs):
    raise TypeError("boom")


def fail_for(name, function):
    """Return a function with a bug, in arrays with that name alone."""

    def call(array, *args):
        if getattr(array, "basename", "") == name:
            fail()
        return function(array, *args)

    return call


@pytest.fixture
def store(tmp_path):
    for name in "abc":
        write_array(tmp_path / name, bytes(4), "int8", [bytes_codec()])
    return tmp_path


class TestCheck:
    @pytest.fixture
    def has_bug_in_b(self, monkeypatch):
        module = numcodecs_bytes.check
        monkeypatch.setattr(module, "check_chunks", fail_for("b", module.check_chunks))

    @pytest.mark.usefixtures("has_bug_in_b")
    def test_in_one_array(self, store, capsys):
        """It was "PROBLEM it can't be checked", with status 1, as if the array were damaged."""
        assert main(["check", str(store)]) == BUG
        out, err = capsys.readouterr()
        assert [line.split()[0] for line in out.splitlines()] == ["/a", "/c", "2"]
        assert "PROBLEM" not in out
        assert err.startswith("Traceback (most recent call last):\n")
        assert "\nwhile checking array /b\n" in err
        assert err.endswith(SAYS)
        assert main(["check", str(store), "--json"]) == BUG
        found = json.loads(capsys.readouterr().out)
        assert [array["path"] for array in found["arrays"]] == ["a", "c"]
        assert found["unreadable"] == [{"store": str(store), "error": SAYS.strip()}]

    @pytest.mark.usefixtures("has_bug_in_b")
    def test_the_other_stores_are_checked(self, store, tmp_path, capsys):
        other = write_array(tmp_path / "other", bytes(3), "int8", [bytes_codec()])
        assert main(["check", str(store), str(other), str(tmp_path / "nowhere")]) == BUG
        assert "holds 3 bytes, expected 4" in capsys.readouterr().out

    @pytest.mark.usefixtures("has_bug_in_b")
    def test_from_python_it_is_raised_at_the_end(self, store):
        paths = []
        with pytest.raises(TypeError, match="boom"):
            paths.extend(report.path for report in numcodecs_bytes.check.check(store))
        assert paths == ["a", "c"]

    @pytest.mark.parametrize("name", ["names_in", "document_at"])
    def test_in_the_walk(self, store, monkeypatch, capsys, name):
        """It was "can't read STORE", with status 2."""
        monkeypatch.setattr(hierarchy, name, fail)
        assert main(["check", str(store)]) == BUG
        err = capsys.readouterr().err
        assert err.endswith(SAYS)
        assert "can't read" not in err


class TestMigrate:
    @pytest.mark.parametrize("options", [[], ["--undo"], ["--dry-run"]], ids=str)
    @pytest.mark.parametrize("name", ["v3_document", "document_at"])
    def test_nothing_is_changed(self, tmp_path, monkeypatch, capsys, name, options):
        """The array was refused, with status 1."""
        write_v2(tmp_path, bytes(8), "<i2")
        if options:
            numcodecs_bytes.migrate.migrate(tmp_path)
        before = sorted(tmp_path.iterdir())
        monkeypatch.setattr(numcodecs_bytes.migrate, name, fail)
        assert main(["migrate", str(tmp_path), *options]) == BUG
        assert sorted(tmp_path.iterdir()) == before
        assert capsys.readouterr().err.endswith(SAYS)


def test_in_the_report_on_the_installation(monkeypatch, capsys):
    """It was a traceback alone, with the status of a setting without effect."""
    monkeypatch.setattr(installation, "report", fail)
    assert main([]) == BUG
    assert capsys.readouterr().err.endswith(SAYS)


class TestErrorsOfOthers:
    """They are reported as before."""

    def test_a_codec_of_others(self, tmp_path, monkeypatch, capsys):
        class Failing(numcodecs.Delta):
            codec_id = "failing"
            decode = encode = fail

        monkeypatch.setitem(numcodecs.registry.codec_registry, "failing", Failing)
        write_v2(tmp_path, bytes(8), "<i2", filters=[{"id": "failing", "dtype": "<i2"}])
        assert main(["check", str(tmp_path)]) == 1
        assert "PROBLEM chunk 0 can't be read: TypeError: boom" in capsys.readouterr().out
        assert main(["migrate", str(tmp_path)]) == 1

    def test_a_file_system_of_others(self, capsys):
        """fsspec raises TypeError for a setting that it does not know."""
        pytest.importorskip("fsspec")
        options = ["--storage-options", '{"anonymous": true}']
        for command, verb in (("check", "read"), ("migrate", "migrate")):
            main([command, "ftp://127.0.0.1:1/a", *options])
            err = capsys.readouterr().err
            assert err.startswith(f"can't {verb} ftp://127.0.0.1:1/a: ")
            assert "bug" not in err

    def test_a_codec_whose_configuration_is_wrong(self, tmp_path, capsys):
        """Our own codec raises TypeError for it."""
        write_v2(tmp_path, None, "<i2", filters=[{"id": "bytes", "endian": 5}])
        assert main(["check", str(tmp_path)]) == 1
        assert main(["migrate", str(tmp_path)]) == 1
        out, err = capsys.readouterr()
        assert "TypeError: endian must be one of" in out
        assert err == ""


def test_the_status_of_the_program(tmp_path):
    """`run` hands it on."""
    write_array(tmp_path, bytes(4), "int8", [bytes_codec()])
    program = (
        "import numcodecs_bytes.check, numcodecs_bytes.__main__ as command\n"
        "numcodecs_bytes.check.check_chunks = None\n"
        f"command.sys.argv = ['', 'check', {str(tmp_path)!r}]\ncommand.run()"
    )
    done = run_program("-c", program, status=BUG)
    assert done.stderr.endswith("TypeError: 'NoneType' object is not callable\n")


def test_lines_of_errors_are_printable(tmp_path, capsys):
    """Names of arrays set the title of the terminal."""
    path = tmp_path / "a\x1b]0;title\x07\nb"
    assert main(["check", str(path)]) == 2
    assert main(["migrate", str(path)]) == 2
    np.save(tmp_path / "x.npy", np.zeros(1))
    zarr.create_group(tmp_path / "empty\x1b", zarr_format=3)
    assert main(["check", str(tmp_path / "empty\x1b")]) == 1
    out, err = capsys.readouterr()
    assert "\\x1b]0;title\\x07" in err
    assert all(character.isprintable() or character == "\n" for character in out + err)
