"""Change members of a zip archive, which stays complete at every moment.

The archive is only read: a copy with the changes is written beside it, read back, and put in its
place. Other members are copied as they are stored, not compressed again.
"""

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile, ZipInfo

from numcodecs_bytes._engine.locks import fcntl

# The copy's name: a dot, the archive's name, this, and random letters.
_MARK = ".migrate-"
# What a new member takes besides its contents and its name, in bytes, at most.
_MEMBER_BYTES = 1000
_PIECE = 1 << 20


class Archive:
    """A zip archive, as it is when this object is made."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve(strict=True)  # a link stays a link
        self._state = _state_of(self.path)

    def replace(self, changes: Mapping[str, bytes | None]) -> None:
        """Put an archive with changed members in its place.

        Parameters
        ----------
        changes : mapping
            The contents of new members by their names; None removes one.

        Raises
        ------
        OSError
            If there is too little space, or the archive was changed meanwhile or is being changed.
        ValueError
            If a member of it is damaged.
        """
        prefix = f".{self.path.name}{_MARK}"
        with self._locked() as is_locked, _naming_no_copy():
            if is_locked:  # otherwise these may belong to a process that still runs
                of_mkstemp = re.compile(f"{re.escape(prefix)}[a-z0-9_]{{8}}")
                for leftover in self.path.parent.iterdir():
                    if of_mkstemp.fullmatch(leftover.name):
                        leftover.unlink(missing_ok=True)
            self._refuse_if_changed()
            self._need_space(changes)
            descriptor, name = tempfile.mkstemp(prefix=prefix, dir=self.path.parent)
            copy = Path(name)
            try:
                with open(descriptor, "w+b") as target, self.path.open("rb") as source:  # noqa: PTH123 # of an open file
                    _write(source, target, changes)
                    target.flush()
                    os.fsync(descriptor)
                _verify(self.path, copy, changes)
                self._hand_on_owner_and_mode(copy)
                self._refuse_if_changed()
                copy.replace(self.path)
            except BaseException:
                copy.unlink(missing_ok=True)
                raise
            _sync_folder(self.path.parent)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Keep other processes from replacing the archive; yield whether that is possible here."""
        if fcntl is None:  # Windows, which can't replace a file that is open either
            yield False
            return
        with self.path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError("another process is changing it: wait until that has ended") from None
            except OSError:  # not every file system has locks
                yield False
                return
            yield True

    def _refuse_if_changed(self) -> None:
        if _state_of(self.path) != self._state:
            raise OSError("it was changed by another program meanwhile: run this again")

    def _need_space(self, changes: Mapping[str, bytes | None]) -> None:
        added = sum(
            len(raw) + 2 * len(name) + _MEMBER_BYTES for name, raw in changes.items() if raw
        )
        num_bytes = self.path.stat().st_size + added
        usage = shutil.disk_usage(self.path.parent)
        if usage.total and usage.free < num_bytes:
            raise OSError(
                errno.ENOSPC,
                f"a copy of it needs {num_bytes} bytes in {self.path.parent}, where "
                f"{usage.free} are free",
            )

    def _hand_on_owner_and_mode(self, copy: Path) -> None:
        state = self.path.stat()
        if hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):
                os.chown(copy, state.st_uid, state.st_gid)
        shutil.copystat(self.path, copy)
        os.utime(copy)


@contextlib.contextmanager
def _naming_no_copy() -> Iterator[None]:
    """Say in errors that the copy failed, instead of its random name."""
    try:
        yield
    except OSError as error:
        if _MARK not in str(error.filename):
            raise
        why = (
            f"a copy of it can't be made beside it; the archive is left as it is: {error.strerror}"
        )
        raise OSError(error.errno, why) from error


def _state_of(path: Path) -> tuple[int, ...]:
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def _write(source: BinaryIO, target: BinaryIO, changes: Mapping[str, bytes | None]) -> None:
    """Copy an archive except for the changed members, and append those."""
    with ZipFile(source) as old, ZipFile(target, "w") as new:
        new.comment = old.comment
        starts = sorted({info.header_offset for info in old.infolist()})
        ends = dict(zip(starts, [*starts[1:], old.start_dir], strict=True))
        _copy(source, target, 0, min(ends, default=0))  # what precedes the first member
        kept = [info for info in old.infolist() if info.filename not in changes]
        for info in sorted(kept, key=lambda info: info.header_offset):
            start, info.header_offset = info.header_offset, target.tell()
            _copy(source, target, start, ends[start])
        new.filelist = kept
        new.NameToInfo = {info.filename: info for info in kept}
        new.start_dir = target.tell()
        for name, raw in changes.items():
            if raw is not None:
                info = ZipInfo(name, time.localtime()[:6])
                info.external_attr = 0o644 << 16
                new.writestr(info, raw)


def _copy(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    while start < end:
        piece = source.read(min(_PIECE, end - start))
        if not piece:
            raise EOFError("the archive is truncated")
        target.write(piece)
        start += len(piece)


def _verify(path: Path, copy: Path, changes: Mapping[str, bytes | None]) -> None:
    """Raise an error unless a copy holds what it is to hold, and each member can be read."""
    with ZipFile(path) as old, ZipFile(copy) as new:
        kept = [_described(info) for info in old.infolist() if info.filename not in changes]
        added = {name: raw for name, raw in changes.items() if raw is not None}
        members = new.infolist()
        try:
            damaged = new.testzip()
        except (NotImplementedError, RuntimeError, ValueError, zlib.error) as error:
            why = f"{type(error).__name__}: {error}"
            raise OSError(
                f"its copy can't be read; the archive is left as it is ({why})"
            ) from error
        if damaged is not None:
            raise ValueError(f"its member {damaged!r} is damaged; the archive is left as it is")
        is_complete = (
            [_described(info) for info in members[: len(kept)]] == kept
            and [info.filename for info in members[len(kept) :]] == list(added)
            and all(new.read(name) == raw for name, raw in added.items())
        )
        if not is_complete:
            raise OSError("its copy reads differently; the archive is left as it is")


def _described(info: ZipInfo) -> tuple[Any, ...]:
    sizes = info.CRC, info.file_size, info.compress_size
    return info.filename, *sizes, info.compress_type, info.date_time, info.external_attr


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
