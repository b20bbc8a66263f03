"""The commands and stores that were made to do harm: what these hold never runs."""

import contextlib
import pickle
from pathlib import Path

import numcodecs
import pytest
import zarr
from helpers import write_v2

from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate


class Touch:
    """Creates a file if it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class OwnPickle(numcodecs.Pickle):
    codec_id = "own_pickle"


class TestCodecsThatRunCode:
    @pytest.fixture(autouse=True)
    def are_allowed(self, monkeypatch):
        """As in numcodecs before 0.16.6, where nothing had to be allowed."""
        monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
        monkeypatch.setitem(numcodecs.registry.codec_registry, "own_pickle", OwnPickle)
        with zarr.config.set({"array.allow_unsafe_pickle_decode": True}):
            yield

    @pytest.mark.parametrize(
        ("dtype", "codecs"),
        [
            # zarr takes the data type from the first of these filters.
            ("|O", {"filters": [{"id": "vlen-utf8"}, {"id": "pickle"}], "fill_value": ""}),
            (
                "|O",
                {
                    "filters": [{"id": "vlen-utf8"}],
                    "compressor": {"id": "pickle"},
                    "fill_value": "",
                },
            ),
            ("<i2", {"filters": [{"id": "own_pickle"}]}),
            ("|b1", {"compressor": {"id": "own_pickle"}}),
        ],
        ids=str,
    )
    def test_neither_command_runs_it(self, tmp_path, dtype, codecs):
        """`check` did, and a chunk may hold any code."""
        touched = tmp_path / "touched"
        path = write_v2(tmp_path / "a", pickle.dumps(Touch(touched)), dtype, **codecs)
        (report,) = check(path)
        (problem,) = report.problems
        assert problem.startswith("its chunks were not decoded, because the codec pickle runs what")
        (refused,) = migrate(path)
        (reason,) = refused.reasons
        assert reason.startswith("Zarr v3 has no counterpart of the codec ")
        assert not touched.exists()
        with contextlib.suppress(Exception):
            zarr.open_array(path, mode="r")[...]
        assert touched.exists()  # zarr runs it
