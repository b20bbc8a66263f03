"""Files that are written in place: opened, locked, made and replaced.

A writer of selected bytes holds a shared lock (``flock``) on the file. A writer that writes back
bytes that it has read, or replaces the file, holds the exclusive lock. No writer waits for a lock
while it holds another one. A file is checked under its lock: its name must still refer to it, and
it must have no other name, as the files of a copy made with hard links do.

A new file is complete, and closed, before it gets its name, by a link. Until its temporary name is
removed, it has two names. Whoever opens it then finds the other one by the number of the file (its
inode), without a look at the whole folder, and removes it.

A fork copies open files with their locks, which last until the last copy is closed or one of them
is unlocked. So a child closes the files that other threads had locked, and unlocks none.
"""

import contextlib
import enum
import errno
import itertools
import os
import stat
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from numcodecs_bytes._plan.outcome import LeftToZarr, Protected, ZarrFails
from numcodecs_bytes._write.write_file import make_file

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# How temporary names end. zarr's own end with ".partial", too, and are not ours to remove.
_TEMPORARY = ".in-place.partial"

# The descriptors of files that may be locked, and the thread of each. They are open as long as they
# are here, so they can't be those of other files.
_may_be_locked: dict[int, int] = {}

# The threads that fork this process now, and a new object for each fork that begins.
_forking: dict[int, None] = {}
_last_fork: deque[object] = deque([None], maxlen=1)

# How long to wait until no other thread forks. Its own hooks may wait for this one.
FORK_SECONDS = 0.1


def _record_fork() -> None:
    _last_fork.append(object())
    _forking[threading.get_ident()] = None


# Each `next` forgets the thread that calls it. No step is one of Python's: at one, the error of a
# signal handler would leave the thread there for ever.
_forget_fork = map(_forking.pop, iter(threading.get_ident, None), itertools.repeat(None))


def _close_in_child() -> None:
    """Close what other threads had locked: they do not go on here."""
    for descriptor, thread in _may_be_locked.items():
        if thread != threading.get_ident():
            with contextlib.suppress(OSError):  # of what the parent could not write
                os.close(descriptor)
    _may_be_locked.clear()


def _does_another_fork() -> bool:
    """Whether another thread forks this process: then a child may inherit what is opened."""
    return any(thread != threading.get_ident() for thread in _forking.copy())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_record_fork,
        after_in_parent=partial(next, _forget_fork),
        after_in_child=_forking.clear,
    )
    os.register_at_fork(after_in_child=_close_in_child)


class Lock(enum.Enum):
    """Which lock to take: whether it is exclusive, and what to try next."""

    SHARED = (False,)
    EXCLUSIVE = (True,)
    EXCLUSIVE_IF_FREE = (True, False)


class LockedError(Exception):
    """Another writer holds a lock on the file: try again later."""


class ReplacedError(Exception):
    """Another writer has made, replaced or deleted the file just now: try again at once."""


class LockedFile(NamedTuple):
    """An open file that is locked."""

    descriptor: int
    num_bytes: int
    is_exclusive: bool  # whether the lock is exclusive


@contextlib.contextmanager
def locked(path: str, lock: Lock) -> Iterator[LockedFile | None]:
    """Open a file and lock it; yield None if there is none.

    Raises LockedError, ReplacedError or LeftToZarr.
    """
    descriptor = _open(path)
    if descriptor is None:
        yield None
        return
    try:
        is_exclusive = _lock(descriptor, lock)
        status = os.fstat(descriptor)
        # After fstat: if the path still names this file now, it was not being replaced by then, and
        # fstat counts the names that it has.
        check_name(descriptor, path)
        if status.st_nlink != 1:
            _refuse_other_names(descriptor, path)
        yield LockedFile(descriptor, status.st_size, is_exclusive)
    finally:
        _release(descriptor)


def _open(path: str) -> int | None:
    """Open a regular file for reading and writing; return None if there is no file."""
    with contextlib.suppress(FileNotFoundError), _explained("opened for writing"):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            if stat.S_ISDIR(mode):
                raise ZarrFails("a folder has its name; move it away")
            if stat.S_ISLNK(mode) and not os.path.exists(path):  # path is a str
                raise ZarrFails("it is a symbolic link to a missing file: restore that first")
            link = "a symbolic link, which zarr replaces by a file"
            raise LeftToZarr(f"it is {link if stat.S_ISLNK(mode) else 'not a regular file'}")
        return _open_to_lock(partial(os.open, path, os.O_RDWR))
    return None


def _open_to_lock(open_file: Callable[[], int]) -> int:
    """Open a file; enter its descriptor unless a child may have inherited it before that."""
    end = time.monotonic() + FORK_SECONDS
    last_fork = _last_fork[0]
    while _does_another_fork() and time.monotonic() < end:
        time.sleep(FORK_SECONDS / 100)
        last_fork = _last_fork[0]
    descriptor = open_file()
    _may_be_locked[descriptor] = threading.get_ident()
    if _last_fork[0] is not last_fork:
        del _may_be_locked[descriptor]
    return descriptor


def _lock(descriptor: int, lock: Lock) -> bool:
    """Lock a file; return whether the lock is exclusive. Raises LockedError."""
    if descriptor not in _may_be_locked:
        raise LockedError  # a child would keep the lock
    with _explained("locked"):
        for is_exclusive in lock.value:
            how = fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
                return bool(is_exclusive)
    raise LockedError


def _release(descriptor: int) -> None:
    """Unlock and close a file, which may still be open in a child; in a child, only close it."""
    try:
        if descriptor in _may_be_locked:
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _may_be_locked.pop(descriptor, None)
        os.close(descriptor)


def check_name(descriptor: int, path: str) -> None:
    """Raise ReplacedError unless a path still refers to an open file."""
    try:
        is_same = os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        is_same = False
    if not is_same:
        raise ReplacedError


def _refuse_other_names(descriptor: int, path: str) -> None:
    """Raise LeftToZarr if a locked file has another hard link, ReplacedError if that is gone now.

    A writer that was killed, or is about to go on, has left the temporary name of a file that it
    made: it is removed. Setting the mode makes FUSE count the names anew.
    """
    status = os.fstat(descriptor)
    is_temporary = True
    with _explained("freed of its temporary name"):
        try:
            os.unlink(_name_by_inode(path, status))
        except FileNotFoundError:
            is_temporary = False
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    if is_temporary or os.fstat(descriptor).st_nlink == 1:
        raise ReplacedError
    check_name(descriptor, path)
    raise LeftToZarr("it has another name (a hard link), which keeps the old values if zarr writes")


def _name_by_inode(path: str, status: os.stat_result) -> str:
    """Return the temporary name from which a new file is linked, which its inode tells."""
    return f"{path}.{status.st_ino}{_TEMPORARY}"


@contextlib.contextmanager
def new_file(path: str, old: LockedFile | None) -> Iterator[int]:
    """Make a file; yield its descriptor; then give it its name, that of `old` if it replaces it.

    Raises ReplacedError if another writer was first.
    """
    name = f"{path}.{uuid.uuid4().hex}{_TEMPORARY}"
    with _explained("made"):
        try:
            descriptor = _open_to_lock(partial(make_file, name))
        except FileNotFoundError:  # the folder was deleted just then
            raise ReplacedError from None
    try:
        try:
            _lock(descriptor, Lock.EXCLUSIVE)
            yield descriptor
        finally:
            _release(descriptor)
        _publish(name, path, old)
    finally:
        with contextlib.suppress(FileNotFoundError):  # the name is gone once it is published
            os.unlink(name)


def set_length(descriptor: int, num_bytes: int) -> None:
    """Give a new file its length in bytes; it then holds zeros, which take no space."""
    with _explained("given its length"):
        os.ftruncate(descriptor, num_bytes)


def _publish(name: str, path: str, old: LockedFile | None) -> None:
    """Give a new file its name; raise ReplacedError if another writer was first."""
    try:
        if old is None:
            _link(name, path)
        else:
            check_name(old.descriptor, path)  # zarr takes no locks
            os.replace(name, path)
    except (FileExistsError, FileNotFoundError):  # not found: a temporary name was removed
        raise ReplacedError from None


def _link(name: str, path: str) -> None:
    """Give a new file its name by a link; raise FileExistsError if there is one."""
    linked = _name_by_inode(path, os.lstat(name))
    expected = FileExistsError, FileNotFoundError
    try:
        with _explained("given its name by a hard link", expected=expected):
            os.rename(name, linked)
            os.link(linked, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(linked)


@contextlib.contextmanager
def _explained(
    what: str, *, expected: tuple[type[OSError], ...] = (FileNotFoundError,)
) -> Iterator[None]:
    """Leave what the system does not allow to zarr, which can do it, or raises the error."""
    try:
        yield
    except expected:
        raise
    except OSError as error:
        kinds = {errno.EROFS: ZarrFails, errno.EACCES: Protected}
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = ZarrFails if is_full else kinds.get(error.errno or 0, LeftToZarr)
        raise kind(f"it can't be {what} ({error.strerror})") from error
