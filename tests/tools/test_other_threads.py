"""What other threads notice of the commands: nothing. They share zarr's config, and warnings."""

import warnings

import pytest
import zarr
from helpers import CountingStore, bytes_codec, ranges_from, run_program, write_array, write_v2

from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

BOOLS = {"name": "struct", "configuration": {"fields": [["a", "bool"], ["b", "bool"]]}}
WITHOUT_ENDIAN = {"name": "structured", "configuration": {"fields": [["a", "int16"]]}}


class Watching(CountingStore):
    """Notes which warnings are filtered whenever it is asked."""

    filters = ()

    async def get(self, *args, **kwargs):
        self.filters = [*self.filters, list(warnings.filters)]
        return await super().get(*args, **kwargs)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store that serves ranges, while nothing may change zarr's config."""
    zarr.create_group(tmp_path, zarr_format=2)
    with ranges_from(Watching):
        monkeypatch.setattr(zarr.config, "set", None)
        yield Watching(tmp_path)


def assert_nothing_changed(store):
    assert store.filters
    assert all(filters == list(warnings.filters) for filters in store.filters)


@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_check(store):
    """It made all threads request each run, and read bools as they are stored."""
    write_array(store.root / "plain", bytes(4), "uint8", [bytes_codec()])
    write_array(store.root / "bools", bytes(8), BOOLS, [bytes_codec()], fill_value={})
    zstd = zarr.codecs.ZstdCodec().to_dict()
    write_array(store.root / "zipped", None, "bool", [bytes_codec(), zstd], fill_value=False)
    found = {report.path: report for report in check(store)}
    assert [report.problems for report in found.values()] == [[]] * 3
    assert found["plain"].partial_reads == "yes"
    assert ("plain/c/0", 1) in [(key, num_bytes) for key, _, num_bytes in store.requests]
    assert_nothing_changed(store)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_migrate(store):
    write_v2(store.root / "a", bytes(4), "|i1")
    write_v2(store.root / "b", bytes(8), ">i2", filters=[{"id": "delta", "dtype": ">i2"}])
    assert {report.status for report in migrate(store, dry_run=True)} == {"to be migrated"}
    assert_nothing_changed(store)


@pytest.mark.parametrize("command", ["check", "migrate"])
def test_the_command_line_warns_of_nothing(tmp_path, command):
    """Its process is its own, and warnings would hide what it prints."""
    write_array(tmp_path, None, WITHOUT_ENDIAN, [bytes_codec()], fill_value="AAA=")
    done = run_program("-W", "always", "-m", "numcodecs_bytes", command, tmp_path, status=1)
    assert "arning" not in done.stderr
