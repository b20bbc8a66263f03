"""Zip archives that migrate changes: their members, and that none of them is ever lost."""

import errno
import os
import shutil
import stat
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr
import zarr.storage
from helpers import write_v2
from zarr.core.sync import sync

from numcodecs_bytes.__main__ import main
from numcodecs_bytes._tools import zip_archives
from numcodecs_bytes._tools.zip_archives import Archive
from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

pytestmark = pytest.mark.filterwarnings("ignore:Both zarr", "ignore:Object at")
DATA = np.arange(4, dtype="i2")


def zipped(folder, archive, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(archive, "w", compression) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(folder).as_posix())
    return archive


@pytest.fixture
def archive(tmp_path):
    """Write a group with an array of two chunks."""
    zarr.create_group(tmp_path / "a", zarr_format=2, attributes={"title": "b"})
    write_v2(tmp_path / "a/x", DATA[:2].tobytes(), "<i2", [4], [2])
    (tmp_path / "a/x/1").write_bytes(DATA[2:].tobytes())
    zipped(tmp_path / "a", tmp_path / "a.zip")
    shutil.rmtree(tmp_path / "a")
    return tmp_path / "a.zip"


def assert_migrated(archive):
    """An archive has each member once, and reads the same in both formats."""
    with zipfile.ZipFile(archive) as file:
        assert file.testzip() is None
        names = file.namelist()
        assert len(names) == len(set(names))
    for zarr_format in (2, 3):
        with zarr.storage.ZipStore(archive, mode="r") as store:
            group = zarr.open_group(store, mode="r", zarr_format=zarr_format)
            assert group["x"].metadata.zarr_format == zarr_format
            assert group["x"][:].tolist() == DATA.tolist()
    assert not any(report.problems for report in check(archive))


def files_beside(archive):
    return sorted(path.name for path in archive.parent.iterdir())


class TestMembers:
    @pytest.mark.parametrize("location", [str, Path])
    def test_members_are_unchanged(self, archive, location):
        """In the same order, with the same dates, modes and bytes; also one that is there twice."""
        with zipfile.ZipFile(archive, "a") as file:
            file.comment = b"from a scientist"
            info = zipfile.ZipInfo("notes/d\u00e9j\u00e0.txt", (1999, 12, 31, 23, 58, 58))
            info.external_attr, info.compress_type = 0o100400 << 16, zipfile.ZIP_DEFLATED
            info.comment = b"old"
            file.writestr(info, b"vu" * 1000)
            with pytest.warns(UserWarning, match="Duplicate"):
                file.writestr(".zattrs", b'{"title": "c"}')
        with zipfile.ZipFile(archive) as file:
            before = [(vars_of(i), file.read(i)) for i in file.infolist()]
        reports = migrate(location(archive))
        assert [(r.path, r.status) for r in reports] == [("x", "migrated"), ("", "migrated")]
        with zipfile.ZipFile(archive) as file:
            after = [(vars_of(i), file.read(i)) for i in file.infolist()]
            assert file.comment == b"from a scientist"
            assert file.testzip() is None
        assert after[: len(before)] == before
        assert [member["filename"] for member, _ in after[len(before) :]] == [
            "x/zarr.json",
            "zarr.json",
        ]

    def test_bytes_before_the_first_member_stay(self, archive):
        """Self-extracting archives begin with a program."""
        archive.write_bytes(b"#!/bin/sh\n" + archive.read_bytes())
        migrate(archive)
        assert archive.read_bytes().startswith(b"#!/bin/sh\nPK")
        assert_migrated(archive)

    def test_a_changed_member_is_there_once(self, archive):
        with zarr.storage.ZipStore(archive, mode="a") as store:
            zarr.create_array(store, name="x", shape=4, chunks=2, dtype="i1", zarr_format=3)
        migrate(archive, overwrite=True)
        assert_migrated(archive)

    def test_removed_members(self, archive):
        before = archive.read_bytes()
        migrate(archive)
        assert {r.status for r in migrate(archive, undo=True)} == {"undone"}
        assert archive.read_bytes() == before
        Archive(archive).replace(dict.fromkeys(zipfile.ZipFile(archive).namelist()))
        assert zipfile.ZipFile(archive).namelist() == []

    def test_large_archives(self, archive):
        """Directories of more than 4 GiB have other fields; a hole takes no space."""
        hole = 5 << 30
        with archive.open("r+b") as file:
            old = file.read()
            file.truncate(0)
            file.seek(hole)
            file.write(old)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(zip_archives, "_copy", _copy_holes)
            Archive(archive).replace({"new": b"1"})
        with zipfile.ZipFile(archive) as file:
            assert file.testzip() is None
            assert min(info.header_offset for info in file.infolist()) == hole
            assert file.read("new") == b"1"


def _copy_holes(source, target, start, end):
    """Copy, but leave the hole at the start a hole."""
    if start == 0 and end > 1 << 30:
        target.seek(end)
    else:
        source.seek(start)
        target.write(source.read(end - start))


def vars_of(info):
    names = "filename date_time compress_type comment external_attr CRC file_size compress_size"
    return {name: getattr(info, name) for name in names.split()}


class TestArchive:
    def test_the_archive_is_only_read(self, archive):
        """A second name of the file keeps what it was: the file itself is not written."""
        before = archive.read_bytes()
        os.link(archive, archive.with_name("b.zip"))
        migrate(archive)
        assert_migrated(archive)
        assert archive.with_name("b.zip").read_bytes() == before
        assert files_beside(archive) == ["a.zip", "b.zip"]

    def test_nothing_to_migrate(self, archive):
        migrate(archive)
        before, raw = archive.stat(), archive.read_bytes()
        assert {r.status for r in migrate(archive)} == {"Zarr v3 already"}
        assert (archive.stat().st_ino, archive.stat().st_mtime_ns) == (
            before.st_ino,
            before.st_mtime_ns,
        )
        assert archive.read_bytes() == raw

    def test_a_dry_run(self, archive):
        before = archive.read_bytes()
        assert {r.status for r in migrate(archive, dry_run=True)} == {"to be migrated"}
        with zarr.storage.ZipStore(archive, mode="a") as store:
            assert {r.status for r in migrate(store, dry_run=True)} == {"to be migrated"}
        assert archive.read_bytes() == before

    @pytest.mark.skipif(sys.platform == "win32", reason="no modes there")
    def test_a_link_its_target_and_mode(self, archive):
        folder = archive.parent / "elsewhere"
        folder.mkdir()
        target = archive.rename(folder / "real.zip")
        target.chmod(0o640)
        if os.geteuid() == 0:  # others can't give files away
            os.chown(target, 1234, 5678)
        before = target.stat()
        os.utime(target, (1, 1))
        archive.symlink_to("elsewhere/real.zip")
        migrate(archive)
        assert archive.readlink() == Path("elsewhere/real.zip")
        after = target.stat()
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
        assert stat.S_IMODE(after.st_mode) == 0o640
        assert target.stat().st_mtime > 1
        assert_migrated(target)
        assert files_beside(target) == ["real.zip"]

    @pytest.mark.parametrize("mode", ["r", "a"])
    def test_an_open_store_is_refused(self, archive, mode):
        """It would be written in place."""
        before = archive.read_bytes()
        store = sync(zarr.storage.ZipStore.open(archive, mode=mode))
        with pytest.raises(ValueError, match="close it and give its path"):
            migrate(zarr.storage.LoggingStore(store) if mode == "r" else store)
        store.close()
        assert archive.read_bytes() == before

    def test_an_archive_opened_by_fsspec_is_refused(self, archive):
        zipped = pytest.importorskip("fsspec.implementations.zip")
        wrapper = pytest.importorskip("fsspec.implementations.asyn_wrapper")
        before = archive.read_bytes()
        file_system = zipped.ZipFileSystem(archive, mode="a")
        wrapped = wrapper.AsyncFileSystemWrapper(file_system, asynchronous=True)
        store = zarr.storage.FsspecStore(wrapped, path="")
        with pytest.raises(ValueError, match="close it and give its path"):
            migrate(store)
        file_system.close()
        assert archive.read_bytes() == before

    def test_a_file_that_is_no_archive_is_left_alone(self, archive, capsys):
        whole = archive.read_bytes()
        damaged = bytearray(whole)
        damaged[whole.index(b"PK\1\2")] ^= 0xFF
        for raw in (b"", b"PK", b"x" * 1000, whole[:-30], whole[: len(whole) // 2], damaged):
            archive.write_bytes(raw)
            assert main(["migrate", str(archive)]) == 2
            assert "not a zip file, or a damaged one" in capsys.readouterr().err
            assert archive.read_bytes() == raw
        assert files_beside(archive) == ["a.zip"]

    def test_a_damaged_member(self, archive):
        """All are read back, so that an archive that was damaged before is not taken for whole."""
        raw = archive.read_bytes().replace(b"x/1" + DATA[2:].tobytes(), b"x/1oops")
        archive.write_bytes(raw)
        with pytest.raises(ValueError, match="its member 'x/1' is damaged"):
            Archive(archive).replace({"zarr.json": b"{}"})
        assert archive.read_bytes() == raw
        assert files_beside(archive) == ["a.zip"]

    def test_a_compression_that_python_can_not_decode(self, archive):
        with zipfile.ZipFile(archive, "a") as file:
            file.writestr("notes", b"1")
        raw = bytearray(archive.read_bytes())
        entry = raw.rindex(b"notes") - 46  # of the central directory
        raw[entry + 10 : entry + 12] = b"\x63\0"  # a method of compression
        archive.write_bytes(raw)
        with pytest.raises(OSError, match="its copy can't be read; .* compression method"):
            migrate(archive)
        assert archive.read_bytes() == raw
        assert files_beside(archive) == ["a.zip"]

    def test_too_little_space(self, archive, capsys, monkeypatch):
        before = archive.read_bytes()
        usage = shutil.disk_usage(archive)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
        assert main(["migrate", str(archive)]) == 2
        error = capsys.readouterr().err
        assert f"needs {len(before)}" not in error
        assert "where 1000 are free" in error
        assert archive.read_bytes() == before
        assert files_beside(archive) == ["a.zip"]

    def test_a_change_meanwhile(self, archive, monkeypatch):
        testzip = zipfile.ZipFile.testzip

        def change(*args):
            found = testzip(*args)
            archive.write_bytes(b"changed")
            return found

        monkeypatch.setattr(zipfile.ZipFile, "testzip", change)
        with pytest.raises(OSError, match="changed by another program meanwhile"):
            migrate(archive)
        assert archive.read_bytes() == b"changed"
        assert files_beside(archive) == ["a.zip"]

    def test_another_archive_in_its_place(self, archive):
        """Between looking at its members and writing them."""
        opened = Archive(archive)
        shutil.copy(archive, archive.with_name("b.zip"))
        archive.with_name("b.zip").replace(archive)
        before = archive.read_bytes()
        with pytest.raises(OSError, match="changed by another program meanwhile"):
            opened.replace({"zarr.json": b"{}"})
        assert archive.read_bytes() == before

    @pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
    def test_only_one_process_at_a_time(self, archive):
        opened = Archive(archive)
        with (
            Archive(archive)._locked(),
            pytest.raises(OSError, match="another process is changing it"),
        ):
            opened.replace({})

    @pytest.mark.skipif(sys.platform == "win32", reason="no such locks there")
    def test_a_file_system_without_locks(self, archive, monkeypatch):
        """What may belong to a process that runs is not removed there."""

        def refuse(*_):
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr("fcntl.flock", refuse)
        archive.with_name(".a.zip.migrate-0_1a2b3c").write_bytes(b"of another process")
        migrate(archive)
        assert_migrated(archive)
        assert files_beside(archive) == [".a.zip.migrate-0_1a2b3c", "a.zip"]

    def test_a_system_without_locks_and_owners(self, archive, monkeypatch):
        """Asked for what it has, not for its name."""
        monkeypatch.setattr(zip_archives, "fcntl", None)
        monkeypatch.delattr(os, "chown", raising=False)
        migrate(archive)
        assert_migrated(archive)
        assert files_beside(archive) == ["a.zip"]

    def test_what_is_left_over_is_removed_and_nothing_else(self, archive):
        archive.with_name(".a.zip.migrate-0_1a2b3c").write_bytes(b"of a process that was killed")
        notes = archive.with_name(".a.zip.migrate-notes.txt")
        notes.write_bytes(b"of the user")
        migrate(archive)
        assert files_beside(archive) == [notes.name, "a.zip"]

    def test_a_url_is_refused(self, archive):
        pytest.importorskip("fsspec")
        before = archive.read_bytes()
        with pytest.raises(ValueError, match="a zip file at a URL can't be changed"):
            migrate(f"file://{archive}")
        assert archive.read_bytes() == before

    def test_a_dry_run_of_a_url(self, archive):
        pytest.importorskip("fsspec", "2026.9")  # older ones raise KeyError for missing members
        assert {r.status for r in migrate(f"file://{archive}", dry_run=True)} == {"to be migrated"}

    def test_dates_of_new_members(self, archive):
        before = time.localtime()[:5]
        migrate(archive)
        with zipfile.ZipFile(archive) as file:
            info = file.getinfo("zarr.json")
        assert info.date_time[:5] >= before
        assert info.external_attr >> 16 == 0o644
