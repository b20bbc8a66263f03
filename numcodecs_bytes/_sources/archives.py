"""Members of zip archives, as ranges of the archive's file."""

import os
import struct
import zipfile
from typing import Any

from zarr.storage import ZipStore

from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.files import new_memory, read_exactly


def open_archive(store: ZipStore) -> int:
    """Return a descriptor of an open zip archive."""
    with store._lock:  # noqa: SLF001
        archive = _archive_of(store)
        archive.fp.flush()
        # The archive's own file has one position for all threads, and may be closed at any time.
        return os.dup(archive.fp.fileno())


def _archive_of(store: ZipStore) -> Any:
    if not store._is_open:  # noqa: SLF001 # closed meanwhile
        raise LeftToZarr("the archive was closed")
    return store._zf  # noqa: SLF001


def locate_member(store: ZipStore, path: str, descriptor: int) -> tuple[int, int] | None:
    """Return the offset and the length of a member of an archive, in bytes; None if it is missing.

    Raises `LeftToZarr` if the member is damaged or compressed, or the archive was truncated
    meanwhile.
    """
    with store._lock:  # noqa: SLF001
        archive = _archive_of(store)
        try:
            member = archive.getinfo(path)
        except KeyError:
            return None
        is_stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        if not is_stored or member.compress_size != member.file_size:
            raise LeftToZarr("it is compressed, or encrypted, in its zip archive")
        try:
            archive.open(member).close()
        except Exception as error:  # the header of the member is damaged, or of a newer version
            raise LeftToZarr(str(error)) from error
    # The 30 bytes of the header end with the lengths of the name and the extra field after it.
    header = new_memory(30)
    read_exactly(descriptor, member.header_offset, header)
    return member.header_offset + 30 + sum(struct.unpack("<26xHH", header)), member.file_size
