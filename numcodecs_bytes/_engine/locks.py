"""Files that are written in place: opened, locked, checked, made and replaced.

Who writes selected bytes has a shared lock (``flock``) on the file. Who writes back bytes that it
has read before, or puts another file in its place, has the exclusive one. Nobody waits for a lock
while having another one. A file is checked under its lock: its name still stands for it, and it has
no other name, as copies made of hard links do.

A new file is complete before it gets its name, by a link. It stays locked until its temporary name
is removed: until then, it has two names.
"""

import contextlib
import os
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._engine import constants, files
from numcodecs_bytes._threads import IsWanted

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NEEDED = ("O_NOFOLLOW", "preadv", "pwrite")  # of the os module
# How temporary names end. zarr's own end with ".partial", too, and are not ours to remove.
_TEMPORARY = ".in-place.partial"
# How often to look for a name that a file system hides.
_MAX_LOOKS = 50
# macOS refuses to write 2 GiB and more at once.
_AT_ONCE_BYTES = 1 << 30


class NotInPlace(Exception):  # noqa: N818 # not an error
    """A chunk is written as zarr does it; the message says why."""


class LockedError(Exception):
    """Somebody else has a lock on the file: try again."""


class ReplacedError(Exception):
    """The name stands for another file than before: try again."""


@contextlib.contextmanager
def locked(path: str, *, is_exclusive: bool) -> Iterator[tuple[int, int]]:
    """Open a file and lock it; yield its descriptor, and its length in bytes.

    Raises
    ------
    FileNotFoundError
        If there is none.
    LockedError, ReplacedError
        If nothing was done.
    NotInPlace
        If it is no regular file, has another name, or can't be opened or locked.
    """
    if fcntl is None or not all(hasattr(os, name) for name in _NEEDED):
        raise NotInPlace("this system has no flock, or no preadv and pwrite")
    with _explained("opened for writing"):
        mode = os.lstat(path).st_mode  # to open a pipe and close it again would kill its writer
        if stat.S_ISLNK(mode):
            raise NotInPlace("it is a symbolic link")
        if not stat.S_ISREG(mode):
            raise NotInPlace("it is not a regular file")
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        with _explained("locked"):
            _lock(descriptor, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
        found = os.fstat(descriptor)
        # After fstat: who replaces the file takes a name from it.
        check_name(descriptor, path)
        if found.st_nlink != 1 and _has_other_name(descriptor, path, found):
            raise NotInPlace("it has another name (a hard link)")
        yield descriptor, found.st_size
    finally:
        _release(descriptor)


def _lock(descriptor: int, how: int) -> None:
    """Lock a file, or raise LockedError if it takes more than a moment."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    seconds = constants.FIRST_WAIT_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return
        if seconds > constants.LAST_WAIT_SECONDS:
            raise LockedError
        time.sleep(seconds)
        seconds *= 2


def _release(descriptor: int) -> None:
    """Unlock and close a file: in a process that was forked meanwhile, it may stay open."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    try:
        with contextlib.suppress(OSError):  # it has no locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def check_name(descriptor: int, path: str) -> None:
    """Raise ReplacedError unless a path stands for an open file."""
    if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
        raise ReplacedError


def _has_other_name(descriptor: int, path: str, found: os.stat_result) -> bool:
    """Whether a locked file has another name than the one that its maker gave it first.

    That one is removed, in case that the maker was killed before it did. A maker who lives tries
    again: on FUSE, where names have locks and numbers of their own, that may happen.
    """
    folder, name = os.path.split(path)
    for k in range(_MAX_LOOKS):
        names = os.listdir(folder)  # noqa: PTH208
        for other in names:
            if other.startswith(f"{name}.") and other.endswith(_TEMPORARY):
                Path(folder, other).unlink(missing_ok=True)
        # FUSE remembers the number of names for a second, unless the file's mode is set; and it
        # hides a name that is removed, until its maker has closed the file.
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        if os.fstat(descriptor).st_nlink == 1:
            check_name(descriptor, path)
            return False
        if k and not any(other.startswith(".fuse_hidden") for other in names):
            break
        time.sleep(constants.LAST_WAIT_SECONDS)
    check_name(descriptor, path)
    return True


@contextlib.contextmanager
def temporary(path: str) -> Iterator[tuple[int, str]]:
    """Make a file beside another one; yield its descriptor and its temporary name.

    It is locked exclusively until that name is removed, in the end.
    """
    if fcntl is None:
        raise NotInPlace("this system has no flock")
    name = f"{path}.{uuid.uuid4().hex}{_TEMPORARY}"
    with _explained("made"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with _explained("locked"):
            _lock(descriptor, fcntl.LOCK_EX)
        yield descriptor, name
    finally:
        with contextlib.suppress(FileNotFoundError):  # it was renamed
            os.unlink(name)  # noqa: PTH108 # name is a string
        _release(descriptor)


def set_length(descriptor: int, num_bytes: int) -> None:
    """Give a new file its length in bytes; it is filled with zeros, which take no space."""
    with _explained("made that long"):
        os.ftruncate(descriptor, num_bytes)


def publish(name: str, path: str) -> bool:
    """Give a new file its name; return False if there is a file of that name already."""
    with _explained("made, as it needs a second name for a moment"):
        try:
            os.link(name, path)
        except FileExistsError:
            return False
        return True


def replace(name: str, path: str, descriptor: int) -> None:
    """Give a new file the name of another one, which is open and locked exclusively."""
    check_name(descriptor, path)  # zarr takes no locks
    os.replace(name, path)  # noqa: PTH105 # a Path would be made for nothing


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Leave to zarr what the system does not allow: zarr can do it, or raises the error."""
    try:
        yield
    except (FileNotFoundError, InterruptedError):
        raise
    except OSError as error:
        raise NotInPlace(f"it can't be {what} ({error.strerror})") from error


def fill(descriptor: int, repeated: UInt8Array, span: range, is_wanted: IsWanted) -> None:
    """Fill a part of a new file with the same bytes, over and over; zeros take no space."""
    if not repeated.any():
        return
    block = np.tile(repeated, max(constants.BLOCK_BYTES // len(repeated), 1)).data
    for start in range(span.start, span.stop, len(block)):
        raise_unless(is_wanted)
        write_at(descriptor, block[: span.stop - start], start)


def copy(source: int, target: int, span: range, is_wanted: IsWanted) -> None:
    """Copy a part of a file to the same place in a new one; blocks of zeros take no space there."""
    block = np.empty(constants.BLOCK_BYTES, np.uint8)
    for start in range(span.start, span.stop, len(block)):
        raise_unless(is_wanted)
        part = block[: span.stop - start]
        files.fill(source, start, part.data)
        if part.any():
            write_at(target, part.data, start)


def raise_unless(is_wanted: IsWanted) -> None:
    """Raise InterruptedError if a write is not wanted any more."""
    if not is_wanted():
        raise InterruptedError("the write was cancelled")


def write_at(descriptor: int, view: memoryview, position: int) -> None:
    """Write all bytes of a view at a position."""
    while view:
        num = os.pwrite(descriptor, view[:_AT_ONCE_BYTES], position)
        view, position = view[num:], position + num
