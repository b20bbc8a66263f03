"""Files that are written in place: opened, locked, made and replaced.

A writer of selected bytes holds a shared lock (``flock``) on the file. A writer that writes back
bytes that it has read, or replaces the file, holds the exclusive lock. No writer waits for a lock
while it holds another one. A file is checked under its lock: its name must still refer to it, and
it must have no other name, as the files of a copy made with hard links do.

A new file is complete before it gets its name, by a link. It stays locked until its temporary name
is removed: until then, it has two names.
"""

import contextlib
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from numcodecs_bytes._plan.outcome import LeftToZarr

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# How temporary names end. zarr's own end with ".partial", too, and are not ours to remove.
_TEMPORARY = ".in-place.partial"


class MissingFileError(Exception):
    """There is no file of that name."""


class LockedError(Exception):
    """Another writer holds a lock on the file: try again later."""


class ReplacedError(Exception):
    """The name now refers to another file, or the file had another name: try again."""


class LockedFile(NamedTuple):
    """An open file that is locked."""

    descriptor: int
    num_bytes: int
    is_exclusive: bool  # whether the lock is exclusive


@contextlib.contextmanager
def locked(path: str, *, is_exclusive: bool) -> Iterator[LockedFile]:
    """Open a file and lock it.

    Raises MissingFileError, LockedError, ReplacedError or LeftToZarr.
    """
    try:
        with _explained("opened for writing"):
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode):
                what = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
                raise LeftToZarr(f"it is {what}")
            descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        raise MissingFileError from None
    try:
        _lock(descriptor, is_exclusive=is_exclusive)
        status = os.fstat(descriptor)
        # After fstat, because replacing the file takes a name from it.
        check_name(descriptor, path)
        if status.st_nlink != 1:
            _refuse_other_names(descriptor, path)
        yield LockedFile(descriptor, status.st_size, is_exclusive)
    finally:
        _release(descriptor)


def _lock(descriptor: int, *, is_exclusive: bool) -> None:
    """Lock a file, or raise LockedError."""
    how = fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH
    with _explained("locked"):
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError from None


def _release(descriptor: int) -> None:
    """Unlock and close a file: if a process was forked meanwhile, the file stays open there."""
    try:
        with contextlib.suppress(OSError):  # its file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def check_name(descriptor: int, path: str) -> None:
    """Raise ReplacedError unless a path still refers to an open file."""
    try:
        is_same = os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:  # it was deleted
        is_same = False
    if not is_same:
        raise ReplacedError


def _refuse_other_names(descriptor: int, path: str) -> None:
    """Raise LeftToZarr if a locked file has another hard link, ReplacedError if that is gone now.

    The process that made the file gave it a temporary name first, and may have been killed before
    it removed that. On FUSE, that process may also be alive: there, each name has its own locks, a
    removed name is only hidden until the file is closed, and the number of names that is reported
    may be a second old, unless the mode is set.
    """
    folder, name = os.path.split(path)
    is_temporary = False
    with _explained("searched for other names"):
        for other in os.listdir(folder):
            if other.startswith(f"{name}.") and other.endswith(_TEMPORARY):
                Path(folder, other).unlink(missing_ok=True)
                is_temporary = True
            is_temporary |= other.startswith(".fuse_hidden")
    status = os.fstat(descriptor)
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    if is_temporary or os.fstat(descriptor).st_nlink == 1:
        raise ReplacedError
    check_name(descriptor, path)
    raise LeftToZarr("it has another name (a hard link)")


def make_file(name: str) -> int:
    """Make a file, and its folder if there is none; return the descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    try:
        return os.open(name, flags, 0o666)
    except FileNotFoundError:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        return os.open(name, flags, 0o666)


@contextlib.contextmanager
def temporary(path: str) -> Iterator[tuple[int, str]]:
    """Make a file beside another one; yield its descriptor and its temporary name.

    The file is locked exclusively until that name is removed, when the context ends.
    """
    name = f"{path}.{uuid.uuid4().hex}{_TEMPORARY}"
    with _explained("made"):
        try:
            descriptor = make_file(name)
        except FileNotFoundError:  # the folder was deleted just then
            raise ReplacedError from None
    try:
        _lock(descriptor, is_exclusive=True)
        yield descriptor, name
    finally:
        try:
            with contextlib.suppress(FileNotFoundError):  # it was renamed
                os.unlink(name)
        finally:
            _release(descriptor)


def set_length(descriptor: int, num_bytes: int) -> None:
    """Give a new file its length in bytes; it then holds zeros, which take no space."""
    with _explained("given its length"):
        os.ftruncate(descriptor, num_bytes)


def publish(name: str, path: str) -> bool:
    """Give a new file its name; return False if another writer was first, or removed the file."""
    with _explained("given its name by a hard link"):
        try:
            os.link(name, path)
        except (FileExistsError, FileNotFoundError):  # which another one took for a leftover
            return False
        return True


def replace(name: str, path: str, descriptor: int) -> None:
    """Give a new file the name of another one, which is open and locked exclusively."""
    check_name(descriptor, path)  # zarr takes no locks
    try:
        os.replace(name, path)
    except FileNotFoundError:  # another writer took it for a leftover
        raise ReplacedError from None


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Leave what the system does not allow to zarr, which can do it, or raises the error."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LeftToZarr(f"it can't be {what} ({error.strerror})") from error
