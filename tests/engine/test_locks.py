"""Files that are written in place: locked, checked, made and replaced, whatever others do."""

import contextlib
import errno
import fcntl
import functools
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from numcodecs_bytes._engine import constants, locks
from numcodecs_bytes._engine.locks import LockedError, NotInPlace, ReplacedError

HOW = {"shared": False, "exclusive": True}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0").write_bytes(bytes(64))
    return tmp_path / "c/0"


def lock(path, *, is_exclusive=True):
    """Lock a file for a moment; return its length."""
    with locks.locked(str(path), is_exclusive=is_exclusive) as (_, num_bytes):
        return num_bytes


def fail(error, *_, **__):
    raise error


def create(path, raw):
    """Make a file as a writer does; return whether it was the first one."""
    with locks.temporary(str(path)) as (descriptor, name):
        os.write(descriptor, raw)
        return locks.publish(name, str(path))


@pytest.mark.parametrize("how", HOW)
def test_the_length_of_a_locked_file(path, how):
    assert lock(path, is_exclusive=HOW[how]) == 64
    with pytest.raises(FileNotFoundError):
        lock(path.with_name("1"), is_exclusive=HOW[how])


@pytest.mark.parametrize("held", HOW)
@pytest.mark.parametrize("wanted", HOW)
def test_who_waits_for_whom(path, held, wanted):
    """Only shared locks are held together; a lock is refused after a moment, and can be retried."""
    with locks.locked(str(path), is_exclusive=HOW[held]):
        if held == wanted == "shared":
            assert lock(path, is_exclusive=False) == 64
        else:
            with pytest.raises(LockedError):
                lock(path, is_exclusive=HOW[wanted])
    assert lock(path, is_exclusive=HOW[wanted]) == 64


def make_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def make_pipe(path):
    path.unlink()
    os.mkfifo(path)


def make_folder(path):
    path.unlink()
    path.mkdir()


def make_hard_link(path):
    path.with_name("copy").hardlink_to(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (make_link, "it is a symbolic link"),
        (make_pipe, "it is not a regular file"),
        (make_folder, "it is not a regular file"),
        (make_hard_link, r"it has another name \(a hard link\)"),
    ],
)
def test_files_that_are_not_written_in_place(path, change, why):
    change(path)
    with pytest.raises(NotInPlace, match=why):
        lock(path)


@pytest.mark.parametrize("name", ["O_NOFOLLOW", "preadv", "pwrite"])
def test_systems_that_lack_what_it_takes(path, monkeypatch, name):
    monkeypatch.delattr(os, name)
    with pytest.raises(NotInPlace, match="no preadv and pwrite"):
        lock(path)


def test_systems_without_locks(path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    with pytest.raises(NotInPlace, match="no flock"):
        lock(path)
    with pytest.raises(NotInPlace, match="no flock"):
        create(path, b"")


@pytest.mark.parametrize(
    ("module", "name", "why"),
    [
        (os, "open", "it can't be opened for writing"),
        (fcntl, "flock", "it can't be locked"),
    ],
)
def test_what_the_system_refuses_is_left_to_zarr(path, monkeypatch, module, name, why):
    """One rule for errors: whatever is refused before a byte is written."""
    monkeypatch.setattr(module, name, functools.partial(fail, OSError(errno.ENOTSUP, "no")))
    with pytest.raises(NotInPlace, match=rf"{why} \(no\)"):
        lock(path)


@pytest.mark.parametrize(
    ("module", "name", "why"),
    [
        (os, "open", "it can't be made"),
        (fcntl, "flock", "it can't be locked"),
        (os, "link", "it can't be made, as it needs a second name for a moment"),
    ],
)
def test_a_file_that_can_not_be_made_leaves_nothing(tmp_path, monkeypatch, module, name, why):
    monkeypatch.setattr(module, name, functools.partial(fail, OSError(errno.EPERM, "no")))
    with pytest.raises(NotInPlace, match=rf"{why} \(no\)"):
        create(tmp_path / "c/0", b"ab")
    monkeypatch.undo()
    assert not list((tmp_path / "c").iterdir())


def test_a_file_that_would_be_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "ftruncate", functools.partial(fail, OSError(errno.EFBIG, "too long")))
    with (
        pytest.raises(NotInPlace, match=r"it can't be made that long \(too long\)"),
        locks.temporary(str(tmp_path / "0")) as (descriptor, _),
    ):
        locks.set_length(descriptor, 100)
    assert not list(tmp_path.iterdir())


class TestNewFiles:
    def test_the_first_one_wins(self, tmp_path):
        path = tmp_path / "c/0/0"
        assert create(path, b"ab")
        assert not create(path, b"cd")
        assert path.read_bytes() == b"ab"
        assert list(path.parent.iterdir()) == [path]

    def test_their_mode_is_that_of_any_file(self, tmp_path):
        create(tmp_path / "0", b"ab")
        (tmp_path / "1").touch()
        assert (tmp_path / "0").stat().st_mode == (tmp_path / "1").stat().st_mode

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

    @pytest.mark.parametrize("how", HOW)
    def test_the_first_name_of_a_killed_maker_is_removed(self, path, how):
        path.with_name("0.abc.in-place.partial").hardlink_to(path)
        path.with_name("0.def.partial").write_bytes(b"of zarr's")
        path.with_name("00.abc.in-place.partial").write_bytes(b"of another chunk")
        assert lock(path, is_exclusive=HOW[how]) == 64
        assert path.stat().st_nlink == 1
        assert sorted(p.name for p in path.parent.iterdir()) == [
            "0",
            "0.def.partial",
            "00.abc.in-place.partial",
        ]

    def test_both_a_first_name_and_a_hard_link(self, path):
        path.with_name("0.abc.in-place.partial").hardlink_to(path)
        make_hard_link(path)
        with pytest.raises(NotInPlace, match="hard link"):
            lock(path)

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
        make_hard_link(path)

    def replace(*args, **kwargs):
        result = function(*args, **kwargs)
        if new.exists():
            new.replace(path)
            if is_deleted:
                path.unlink()
        return result

    monkeypatch.setattr(module, name, replace)
    try:
        num_bytes = lock(path)
    except (ReplacedError, FileNotFoundError):
        monkeypatch.undo()
        assert not is_deleted or not path.exists()
        return
    assert num_bytes == 32  # of the new file
    assert not is_deleted


def test_a_file_whose_inode_number_comes_back(path):
    """The old file is open while it is compared, so that no other one may get its number."""
    with locks.locked(str(path), is_exclusive=True) as (descriptor, _):
        for _ in range(20):
            path.unlink()
            path.write_bytes(bytes(64))
        with pytest.raises(ReplacedError):
            locks.check_name(descriptor, str(path))


def test_a_copy_takes_the_place_of_a_locked_file_only(path):
    with locks.locked(str(path), is_exclusive=True) as (old, _):
        with locks.temporary(str(path)) as (_, name):
            locks.replace(name, str(path), old)
        with locks.temporary(str(path)) as (_, name), pytest.raises(ReplacedError):
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


class TestFilling:
    @pytest.mark.parametrize("item", [b"\x01", b"abc", b"\x00\x00"])
    def test_the_same_bytes_over_and_over(self, tmp_path, monkeypatch, item):
        monkeypatch.setattr(constants, "BLOCK_BYTES", 16)
        with (tmp_path / "0").open("w+b") as file:
            locks.set_length(file.fileno(), 3 + 90)
            locks.fill(file.fileno(), np.frombuffer(item, "u1"), range(3, 93), lambda: True)
        assert (tmp_path / "0").read_bytes() == bytes(3) + item * (90 // len(item))

    @pytest.mark.parametrize("what", ["fill", "copy"])
    def test_zeros_take_no_space(self, tmp_path, what):
        with (tmp_path / "0").open("w+b") as file:
            file.truncate(1 << 25)
            if os.fstat(file.fileno()).st_blocks:
                pytest.skip("this file system has no holes")
            with (tmp_path / "1").open("w+b") as new:
                span = range(1 << 25)
                locks.set_length(new.fileno(), len(span))
                if what == "fill":
                    locks.fill(new.fileno(), np.zeros(8, "u1"), span, lambda: True)
                else:
                    locks.copy(file.fileno(), new.fileno(), span, lambda: True)
                assert os.fstat(new.fileno()).st_blocks * 512 < 1 << 20

    def test_a_copy_in_steps(self, tmp_path, monkeypatch):
        monkeypatch.setattr(constants, "BLOCK_BYTES", 16)
        raw = np.random.default_rng(0).integers(0, 3, 100, "u1")
        (tmp_path / "0").write_bytes(raw)
        with (tmp_path / "0").open("rb") as old, (tmp_path / "1").open("w+b") as new:
            locks.set_length(new.fileno(), 95)
            locks.copy(old.fileno(), new.fileno(), range(5, 95), lambda: True)
        assert (tmp_path / "1").read_bytes() == bytes(5) + raw[5:95].tobytes()

    @pytest.mark.parametrize("what", ["fill", "copy"])
    def test_it_stops_when_the_write_is_cancelled(self, tmp_path, what):
        answers = iter([True, True, False])
        span, ones = range(4 << 20), np.ones(8, "u1")
        with (tmp_path / "0").open("w+b") as file, (tmp_path / "1").open("w+b") as new:
            locks.fill(file.fileno(), ones, span, lambda: True)
            cancelled = functools.partial(next, answers)
            run = functools.partial(locks.fill, new.fileno(), ones, span)
            if what == "copy":
                run = functools.partial(locks.copy, file.fileno(), new.fileno(), span)
            with pytest.raises(InterruptedError):
                run(cancelled)
        assert next(answers, None) is None

    def test_short_writes(self, tmp_path, monkeypatch):
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda d, v, p: pwrite(d, v[:3], p))
        with (tmp_path / "0").open("w+b") as file:
            locks.write_at(file.fileno(), memoryview(b"abcdefgh"), 2)
        assert (tmp_path / "0").read_bytes() == b"\0\0abcdefgh"
