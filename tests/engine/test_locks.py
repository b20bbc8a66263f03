"""Files that are written in place: locked, checked and made, whatever others do."""

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from numcodecs_bytes._engine import locks
from numcodecs_bytes._engine.locks import LockedError, NotInPlace, ReplacedError

HOW = {"shared": False, "exclusive": True}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0").write_bytes(bytes(64))
    return tmp_path / "c/0"


def lock(path, *, is_exclusive=True):
    """Lock a file for a moment, as often as it is replaced; return its length."""
    for _ in range(5):
        with (
            contextlib.suppress(ReplacedError),
            locks.locked(str(path), is_exclusive=is_exclusive) as (_, num_bytes),
        ):
            return num_bytes
    raise AssertionError("it keeps being replaced")


def create(path, raw):
    """Make a file as a writer does; return whether it was the first one."""
    with locks.temporary(str(path)) as (descriptor, name):
        locks.set_length(descriptor, len(raw))
        os.write(descriptor, raw)
        return locks.publish(name, str(path))


@pytest.mark.parametrize("held", HOW)
@pytest.mark.parametrize("wanted", HOW)
def test_who_waits_for_whom(path, held, wanted):
    """Only shared locks are held together."""
    with locks.locked(str(path), is_exclusive=HOW[held]):
        if held == wanted == "shared":
            assert lock(path, is_exclusive=False) == 64
        else:
            with pytest.raises(LockedError):
                lock(path, is_exclusive=HOW[wanted])
    assert lock(path, is_exclusive=HOW[wanted]) == 64


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file(path, make):
    path.unlink()
    make(path)
    with pytest.raises(NotInPlace, match="it is not a regular file"):
        lock(path)


REFUSED = {
    "open": (os, "open", "it can't be made"),
    "flock": (fcntl, "flock", "it can't be locked"),
    "length": (os, "ftruncate", "it can't be given its length"),
    "link": (os, "link", "it can't be made, because it needs a second name for a moment"),
}


@pytest.mark.parametrize("refused", REFUSED)
def test_what_the_system_refuses_is_left_to_zarr(tmp_path, path, monkeypatch, refused):
    """And a file that can't be made leaves nothing."""
    module, name, why = REFUSED[refused]

    def refuse(*_):
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(module, name, refuse)
    with pytest.raises(NotInPlace, match=rf"{why} \(no\)"):
        create(tmp_path / "d/0", b"ab")
    if refused in ("open", "flock"):
        with pytest.raises(NotInPlace, match=r"it can't be (opened for writing|locked) \(no\)"):
            lock(path)
    monkeypatch.undo()
    assert not list((tmp_path / "d").iterdir())


class TestNewFiles:
    def test_the_first_one_wins(self, tmp_path):
        """Its mode is that of any file."""
        path = tmp_path / "c/0/0"
        assert create(path, b"ab")
        assert not create(path, b"cd")
        assert path.read_bytes() == b"ab"
        assert list(path.parent.iterdir()) == [path]
        (tmp_path / "1").touch()
        assert path.stat().st_mode == (tmp_path / "1").stat().st_mode

    def test_two_names_at_a_moment(self, tmp_path):
        """Nobody takes a file for a hard link while its maker has not removed its first name."""
        path = str(tmp_path / "0")
        with locks.temporary(path) as (_, name):
            assert locks.publish(name, path)
            assert Path(path).stat().st_nlink == 2
            with Path(path).open("rb") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                pytest.skip("on this file system (FUSE), names have locks of their own")
            with pytest.raises(LockedError):
                lock(path, is_exclusive=False)
        assert lock(path, is_exclusive=False) == 0

    @pytest.mark.parametrize("is_linked", [False, True], ids=["", "hard-linked"])
    def test_the_first_name_of_a_killed_maker_is_removed(self, path, is_linked):
        """That of a copy made of hard links is not."""
        others = ["0.def.partial", "00.abc.in-place.partial"]  # zarr's, and of another chunk
        path.with_name("0.abc.in-place.partial").hardlink_to(path)
        for name in others:
            path.with_name(name).write_bytes(b"of another file")
        if is_linked:
            path.with_name("copy").hardlink_to(path)
        with pytest.raises(NotInPlace, match="hard") if is_linked else contextlib.nullcontext():
            lock(path)
        expected = sorted(["0", *others, *(["copy"] if is_linked else [])])
        assert sorted(p.name for p in path.parent.iterdir()) == expected

    def test_a_number_of_names_that_is_a_second_old(self, path, monkeypatch):
        """FUSE remembers it until the mode is set."""
        fstat, fchmod, remembered = os.fstat, os.fchmod, [2]

        def old_number(descriptor):
            found = list(fstat(descriptor))
            found[stat.ST_NLINK] = remembered[0] if remembered else found[stat.ST_NLINK]
            return os.stat_result(found)

        def forget(*args):
            fchmod(*args)
            remembered.clear()

        monkeypatch.setattr(os, "fstat", old_number)
        monkeypatch.setattr(os, "fchmod", forget)
        assert lock(path) == 64


@pytest.mark.parametrize(
    ("module", "name"), [(os, "lstat"), (os, "open"), (fcntl, "flock"), (os, "fstat")]
)
@pytest.mark.parametrize("is_linked", [False, True], ids=["", "hard-linked"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["replaced", "deleted"])
def test_a_file_that_is_replaced_at_that_moment(  # noqa: PLR0917
    path, monkeypatch, module, name, is_linked, is_deleted
):
    """It is never taken for the one that has its name: its number of names is then another's."""
    new, function = path.with_name("new"), getattr(module, name)
    new.write_bytes(bytes(32))
    if is_linked:
        path.with_name("copy").hardlink_to(path)

    def replace(*args, **kwargs):
        result = function(*args, **kwargs)
        if new.exists():
            new.replace(path)
            if is_deleted:
                path.unlink()
        return result

    monkeypatch.setattr(module, name, replace)
    if is_deleted:
        with pytest.raises(FileNotFoundError):
            lock(path)
    else:
        assert lock(path) == 32  # of the new file


def test_a_copy_takes_the_place_of_a_locked_file_only(path):
    """The old one is open while it is compared, so that no other one may get its number."""
    with locks.locked(str(path), is_exclusive=True) as (old, _):
        for _ in range(20):
            path.unlink()
            path.write_bytes(bytes(32))
        with locks.temporary(str(path)) as (_, name), pytest.raises(ReplacedError):
            locks.replace(name, str(path), old)
    with (
        locks.locked(str(path), is_exclusive=True) as (old, _),
        locks.temporary(str(path)) as (_, name),
    ):
        locks.replace(name, str(path), old)
    assert [p.name for p in path.parent.iterdir()] == ["0"]
    assert lock(path) == 0


def test_a_lock_that_a_forked_process_holds_is_given_back(path, monkeypatch):
    copies, flock = [], fcntl.flock

    def fork(descriptor, how):
        copies.append(os.dup(descriptor))  # as fork does
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", fork)
    lock(path)
    monkeypatch.undo()
    assert lock(path) == 64
    for copy in copies:
        os.close(copy)
