"""Files that are written in place: how they are opened, locked, judged, made and replaced.

Whoever changes a chunk has a lock (``flock``) on its file:

- a shared one, to write selected bytes, or to put another file in its place
- an exclusive one, to write bytes that were read before, or to copy the file.

Nobody waits for a lock while having an exclusive one, so there are no deadlocks.

A file is judged on the descriptor that is written, under its lock: it is a regular file, it has no
other name, and its name still stands for it. A file with another name (a copy made of hard links),
and a shard without a place for what is written, is copied to a new one that takes its place, with
what is written; another name keeps the old one. A new file that needs a name before it is complete
is called ``<chunk>.unfinished``. It is locked exclusively by whoever makes it, so one without a
lock was left by a writer that was killed, and is removed.
"""

import contextlib
import errno
import functools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from numcodecs_bytes._core.dtypes import UInt8Array
from numcodecs_bytes._threads import IsWanted

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_NEEDED = ("O_NOFOLLOW", "preadv", "pwrite")  # of the os module
# How long to wait before trying to lock a file again, at first and at last: 1.5 ms in all.
FIRST_WAIT_SECONDS, LAST_WAIT_SECONDS = 5e-5, 8e-4
# How often a file that is replaced or deleted meanwhile is opened again.
MAX_TRIES = 1000
# In how many bytes at a time a file is filled, read ahead or copied; and in how many at most one
# system call copies, reads or writes: macOS refuses 2 GiB, and nothing else stops a copy.
STEP_BYTES, CALL_BYTES = 1 << 20, 1 << 26
# What says that there are no locks, that a file can't be opened for writing, that one can't be made
# or get a second name, and that the system can't copy between two files.
_NOT_SUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_WITHOUT_LOCKS = (*_NOT_SUPPORTED, errno.ENOLCK)
_NOT_ALLOWED = (errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.ELOOP)
_NOT_WRITABLE = (*_NOT_ALLOWED, errno.ETXTBSY, errno.EISDIR, errno.ENXIO)
_WITHOUT_NAMES = (*_NOT_WRITABLE, *_NOT_SUPPORTED, errno.EEXIST, errno.EXDEV, errno.ENAMETOOLONG)
_WITHOUT_COPIES = (*_NOT_SUPPORTED, errno.EXDEV, errno.EPERM, errno.ETXTBSY, errno.EBADF)

Fill = Callable[[int], None]  # writes to a file with a descriptor


class NotInPlace(Exception):  # noqa: N818 # not an error
    """A chunk can't be written in place, but as zarr does it."""


class LockedError(Exception):
    """Somebody else has a lock on the file."""


class _MissingError(Exception):
    """There is no such file."""


class _ReplacedError(Exception):
    """The name stands for another file than before."""


class Change(NamedTuple):
    """What is done to a file.

    Attributes
    ----------
    check : callable
        Takes the descriptor and the length of the locked file. Raises if it is wrong, and returns
        what makes a copy of it that can be written, or None if the file itself can be written.
    write : callable
        Writes to the file with a descriptor.
    make : callable
        Makes a file that is missing, most likely by `create`; returns whether that was all.
    is_wanted : callable
        Whether to go on.
    is_exclusive : bool
        Whether `write` writes bytes that it has read before.
    """

    check: Callable[[int, int], Fill | None]
    write: Fill
    make: Callable[[], bool]
    is_wanted: IsWanted
    is_exclusive: bool


def change(path: str, how: Change) -> None:
    """Write to a file that has no other name, or to a copy that takes its place, or make it.

    Raises
    ------
    LockedError
        If somebody else has locked it. Nothing is written: try again.
    NotInPlace
        If it is no regular file, or can't be opened, locked, made or copied.
    """
    is_missing = must_copy = False
    for _ in range(MAX_TRIES):
        try:
            if is_missing:
                is_missing = False
                if how.make():
                    return
            may_copy = how.is_exclusive or must_copy
            with _locked(path, is_exclusive=may_copy) as (descriptor, found):
                fill = how.check(descriptor, found.st_size)
                if _has_other_name(descriptor, path, found) and fill is None:
                    fill = functools.partial(copy_to, descriptor, found.st_size, how.is_wanted)
                if fill is None:
                    how.write(descriptor)
                    return
                if may_copy:
                    _replace(descriptor, path, (fill, how.write))
                    return
                must_copy = True
        except _MissingError:
            is_missing = True
        except _ReplacedError:
            must_copy = False
    raise NotInPlace("it keeps being replaced")


@contextlib.contextmanager
def _locked(
    path: str, mode: int = os.O_RDWR, *, is_exclusive: bool
) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file, and lock it; yield its descriptor, and its state under the lock.

    The path stands for this file, a regular one.
    """
    descriptor = _open(path, mode)
    try:
        _take(descriptor, is_exclusive=is_exclusive)
        yield descriptor, _state_of(descriptor, path)
    finally:
        _release(descriptor)


def _open(path: str, mode: int) -> int:
    if fcntl is None or not all(hasattr(os, name) for name in _NEEDED):
        raise NotInPlace("this system has no flock, or no preadv and pwrite")
    try:
        # Opening a pipe would affect those who write to it.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise NotInPlace("it is a symbolic link, or not a regular file")
        return os.open(path, mode | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _MissingError from None
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise NotInPlace(f"it can't be opened for writing ({error.strerror})") from error


def _take(descriptor: int, *, is_exclusive: bool) -> None:
    """Lock a file."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    how = fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH
    seconds = FIRST_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if seconds > LAST_WAIT_SECONDS:
                raise LockedError from None
            time.sleep(seconds)
            seconds *= 2
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise
            raise NotInPlace(f"its file system has no locks ({error.strerror})") from error
        else:
            return


def _release(descriptor: int) -> None:
    """Unlock and close a file; one that was forked meanwhile may stay open elsewhere."""
    assert fcntl is not None  # noqa: S101 # for the type checker
    try:
        with contextlib.suppress(OSError):  # it has no locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _state_of(descriptor: int, path: str) -> os.stat_result:
    """Return the state of a file, or raise unless the path stands for it."""
    found = os.fstat(descriptor)
    try:
        named = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise _MissingError from None
    if not os.path.samestat(found, named):
        raise _ReplacedError
    return found


def change_whole(path: str, change: Callable[[], None], *, may_be_copied: bool) -> None:
    """Replace or delete a file while nobody copies it, who would undo that.

    Parameters
    ----------
    path : str
        The file.
    change : callable
        What replaces or deletes it.
    may_be_copied : bool
        Whether it may be copied even if it has no other name.

    Raises
    ------
    LockedError
        If somebody copies it, or rewrites blocks of it. Nothing is changed.
    """
    with contextlib.suppress(OSError):
        may_be_copied = may_be_copied or os.lstat(path).st_nlink != 1
    if not may_be_copied:
        change()
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(path, os.O_RDONLY, is_exclusive=False))
        except (_MissingError, NotInPlace, OSError):
            pass  # `change` finds out why, or makes a file where there is none to copy
        except _ReplacedError:
            raise LockedError from None
        change()


def _has_other_name(descriptor: int, path: str, found: os.stat_result) -> bool:
    """Whether a locked file has another name than its path.

    The name that its maker gave it before is removed, in case that one was killed.
    """
    if found.st_nlink == 1:
        return False
    unfinished = f"{path}.unfinished"
    with contextlib.suppress(OSError):
        if os.path.samestat(os.lstat(unfinished), found):
            Path(unfinished).unlink()
    # FUSE remembers the number of names for a second, unless the file's mode is set.
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
    # Who replaces the file meanwhile takes a name from it, too.
    return _state_of(descriptor, path).st_nlink != 1


def create(path: str, fill: Fill) -> bool:
    """Make a file, unless somebody else has made it meanwhile; return whether it was made.

    It gets its name when it is complete. Errors are those that `change` expects of its `make`.
    """
    with _explained("made"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            if _link_unnamed(path, fill):
                return True
            with _unfinished(path, fill) as unfinished:
                try:
                    os.link(unfinished, path)
                finally:
                    Path(unfinished).unlink()
                return True
    return False


def _replace(descriptor: int, path: str, fills: Sequence[Fill]) -> None:
    """Put a copy in the place of a file, which must be locked exclusively."""

    def fill(copy: int) -> None:
        for each in fills:
            each(copy)

    with _explained("copied to a new file"), _unfinished(path, fill) as unfinished:
        _state_of(descriptor, path)  # zarr takes no locks
        Path(unfinished).replace(path)


def copy_to(descriptor: int, num_bytes: int, is_wanted: IsWanted, copy: int) -> None:
    """Copy the first bytes of a file to another one, which gets this length; holes stay holes."""
    os.ftruncate(copy, num_bytes)
    for start, end in _data_of(descriptor, num_bytes):
        _copy(descriptor, copy, start, end, is_wanted)


def fill_with(
    descriptor: int, repeated: UInt8Array, start: int, end: int, is_wanted: IsWanted
) -> None:
    """Fill a part of a new file with the same bytes, over and over."""
    if len(repeated) < end - start and not repeated.any():
        return  # the system fills it with zeros
    num = min(STEP_BYTES, end - start) // len(repeated)
    block = np.tile(repeated, num).data if num > 1 else repeated.data
    for position in range(start, end, len(block)):
        if not is_wanted():
            raise InterruptedError("the write was cancelled while it filled a new file")
        write_at(descriptor, block[: end - position], position)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:  # somebody removed the folder
        raise _ReplacedError from None
    except OSError as error:
        if error.errno not in _WITHOUT_NAMES:
            raise
        raise NotInPlace(f"it can't be {what} ({error.strerror})") from error


def _link_unnamed(path: str, fill: Fill) -> bool:
    """Make a chunk from a file without a name; return False if this system can't."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        descriptor = os.open(Path(path).parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno in (*_NOT_SUPPORTED, errno.EISDIR):
            return False
        raise
    try:
        fill(descriptor)
        try:
            # With `src_dir_fd`, Python calls linkat, which follows the link.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
        except FileExistsError:
            raise
        except FileNotFoundError:
            if Path("/proc/self/fd").exists():
                raise
            return False
        except OSError as error:
            if error.errno not in _WITHOUT_NAMES:
                raise
            return False
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def _unfinished(path: str, fill: Fill) -> Iterator[str]:
    """Make a file that is to become another; yield its name, and remove it in case of an error."""
    name = f"{path}.unfinished"
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    except FileExistsError:
        _remove_unfinished(name)
        raise _ReplacedError from None
    try:
        _take(descriptor, is_exclusive=True)
        try:
            _state_of(descriptor, name)
        except _MissingError:  # another took it for one that was left
            raise _ReplacedError from None
        try:
            fill(descriptor)
            yield name
        except BaseException:
            with contextlib.suppress(OSError, _MissingError, _ReplacedError):
                _state_of(descriptor, name)
                Path(name).unlink()
            raise
    finally:
        _release(descriptor)


def _remove_unfinished(name: str) -> None:
    """Remove what was left by a writer that was killed, unless it is locked, and so not left."""
    try:
        with _locked(name, is_exclusive=True):
            Path(name).unlink()
    except _MissingError:
        pass
    except NotInPlace as why:
        raise NotInPlace(
            f"{Path(name).name}, which is in the way, can't be removed: {why}"
        ) from why


def _data_of(descriptor: int, num_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield first byte and end of what is no hole in a file."""
    end = 0
    while end < num_bytes:
        start = end
        try:
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except (AttributeError, OSError) as error:
            if getattr(error, "errno", None) == errno.ENXIO:
                return  # nothing but a hole up to the end
            end = num_bytes
        yield start, min(end, num_bytes)


def _copy(source: int, target: int, start: int, end: int, is_wanted: IsWanted) -> None:
    has_copy = hasattr(os, "copy_file_range")
    while start < end:
        if not is_wanted():
            raise InterruptedError("the write was cancelled while it copied the chunk")
        if has_copy:
            size = min(end - start, CALL_BYTES)
            try:
                num = os.copy_file_range(source, target, size, start, start)
            except OSError as error:
                if error.errno not in _WITHOUT_COPIES:
                    raise
                has_copy = False
                continue
            if not num:
                raise EOFError("the file was truncated meanwhile")
            start += num
        else:
            block = np.empty(min(end - start, STEP_BYTES), np.uint8)
            read_at(source, block, start)
            write_at(target, block.data, start)
            start += len(block)


def write_at(descriptor: int, view: memoryview, position: int) -> None:
    """Write all bytes of a view at a position."""
    while len(view):
        num = os.pwrite(descriptor, view[:CALL_BYTES], position)
        view, position = view[num:], position + num


def read_at(descriptor: int, out: UInt8Array, position: int) -> None:
    """Fill an array with the bytes at a position, or raise EOFError."""
    view = out.data
    while len(view):
        num = os.preadv(descriptor, [view[:CALL_BYTES]], position)
        if not num:
            raise EOFError("the file was truncated meanwhile")
        view, position = view[num:], position + num
