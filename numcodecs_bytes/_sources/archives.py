"""Members of zip archives, as ranges of the archive's file."""

import os
import struct
import sys
import zipfile

from zarr.storage import ZipStore

from numcodecs_bytes._core.interrupts import raise_if_of_caller
from numcodecs_bytes._plan.outcome import LeftToZarr
from numcodecs_bytes._sources.files import OpenExtent
from numcodecs_bytes._zarr_api.private_names import flush_zip, zip_file_of

# Flags of a member: its name is UTF-8; it is encrypted, or a patch.
_UTF_8, _OTHER_FLAGS = 0x800, 0x61
_CLOSED = "the archive was closed"


def open_archive(store: ZipStore) -> int:
    """Return a descriptor of a zip archive."""
    file = _archive_of(store).fp
    if file is None:
        raise LeftToZarr(_CLOSED)
    # The archive's own file has one position for all threads, and may be closed at any time.
    descriptor = os.dup(file.fileno())
    if file.closed:  # perhaps just before: the descriptor may be that of another file
        os.close(descriptor)
        raise LeftToZarr(_CLOSED)
    return descriptor


def _archive_of(store: ZipStore) -> zipfile.ZipFile:
    """Return the archive of a store; open it if zarr opens it when needed.

    The lock of the store is taken only where an archive is opened, or may be written: if a thread
    has it while this process is forked, the child can never take it.
    """
    try:
        archive = zip_file_of(store)
    except Exception as error:  # zarr raises the same error
        raise LeftToZarr(f"the archive can't be opened: {error}") from error
    if archive is None:
        raise LeftToZarr(_CLOSED)
    if archive.mode != "r":
        flush_zip(store, archive)  # members may have been written since
    return archive


def find_member(store: ZipStore, path: str, descriptor: int) -> OpenExtent | None:
    """Return where a member is in an open archive; None if it is missing.

    Raises `LeftToZarr` if the member is damaged or compressed, or the archive was truncated
    meanwhile.
    """
    archive = _archive_of(store)
    try:
        member = archive.getinfo(path)
    except KeyError as error:
        raise_if_of_caller(error)
        return None
    is_stored = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & _OTHER_FLAGS
    if not is_stored or member.compress_size != member.file_size:
        raise LeftToZarr("it is compressed, or encrypted, in its zip archive")
    name_utf8 = member.orig_filename.encode("utf-8", "replace")
    # The header: signature, flags, the lengths of the name and of what follows it, and the name.
    num_bytes = 30 + len(name_utf8)  # UTF-8 is the longest encoding of a name
    header = os.pread(descriptor, num_bytes, member.header_offset)
    if len(header) < num_bytes:
        raise LeftToZarr("the archive was truncated")
    signature, flags, num_name, num_extra = struct.unpack_from("<4s2xH18xHH", header)
    name = name_utf8 if flags & _UTF_8 else member.orig_filename.encode("cp437", "replace")
    start = member.header_offset + 30 + num_name + num_extra
    # Newer versions of Python refuse members that overlap the next one.
    end = getattr(member, "_end_offset", None) or sys.maxsize
    is_known = signature == b"PK\3\4" and header[30 : 30 + num_name] == name
    if not is_known or start + member.file_size > end:
        raise LeftToZarr("its header in the zip archive is damaged, or of an unknown form")
    return OpenExtent(descriptor, start, member.file_size, crc=member.CRC)
