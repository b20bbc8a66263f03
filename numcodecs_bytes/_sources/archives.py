"""Members of zip archives, as ranges of the archive's file."""

import os
import struct
import sys
import zipfile
from typing import Any

from zarr.storage import ZipStore

from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.files import new_memory, read_exactly

# Flags of a member: its name is UTF-8; it is encrypted, or a patch.
_UTF_8, _OTHER_FLAGS = 0x800, 0x61


def open_archive(store: ZipStore) -> int:
    """Return a descriptor of a zip archive."""
    with store._lock:
        archive = _archive_of(store)
        archive.fp.flush()
        # The archive's own file has one position for all threads, and may be closed at any time.
        return os.dup(archive.fp.fileno())


def _archive_of(store: Any) -> Any:
    """Return the archive of a store, whose lock is held; open it if zarr opens it when needed."""
    if store._is_open:
        return store._zf
    if not hasattr(store, "_zipfile"):  # zarr 3.1.6, which makes another lock when it opens it
        raise LeftToZarr("the archive was closed")
    try:
        return store._zipfile()
    except Exception as error:  # whatever it is, zarr raises it as well
        raise LeftToZarr(f"the archive can't be opened: {error}") from error


def find_member(store: ZipStore, path: str, descriptor: int) -> tuple[int, int] | None:
    """Return the offset and the length of a member of an archive, in bytes; None if it is missing.

    Raises `LeftToZarr` if the member is damaged or compressed, or the archive was truncated
    meanwhile. Nothing is read while the lock of the store is held.
    """
    with store._lock:
        archive = _archive_of(store)
        try:
            member = archive.getinfo(path)
        except KeyError:
            return None
        archive.fp.flush()  # it may have been written after its archive was opened here
    is_stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & _OTHER_FLAGS
    if not is_stored or member.compress_size != member.file_size:
        raise LeftToZarr("it is compressed, or encrypted, in its zip archive")
    name_utf8 = member.orig_filename.encode("utf-8", "replace")
    # The header: signature, flags, the lengths of the name and of what follows it, and the name.
    header = new_memory(30 + len(name_utf8))  # no encoding of the name is longer
    read_exactly(descriptor, member.header_offset, header)
    signature, flags, num_name, num_extra = struct.unpack_from("<4s2xH18xHH", header)
    name = name_utf8 if flags & _UTF_8 else member.orig_filename.encode("cp437", "replace")
    start = member.header_offset + 30 + num_name + num_extra
    # Newer versions of Python refuse members that overlap the next one.
    end = getattr(member, "_end_offset", None) or sys.maxsize
    is_known = signature == b"PK\3\4" and bytes(header[30 : 30 + num_name]) == name
    if not is_known or start + member.file_size > end:
        raise LeftToZarr("its header in the zip archive is damaged, or of an unknown form")
    return start, member.file_size
