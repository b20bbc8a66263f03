"""Names of chunks, stores and arrays, and numbers of them, in messages."""

import contextlib
import inspect
from typing import Any

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._zarr_api import file_systems

_NUM_CHARACTERS = 200  # longer names of stores are cut


def plural(number: int, what: str) -> str:
    """Return a number of things, such as "2 arrays"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def name_of_type(kind: type) -> str:
    """Return the name of a class with its module, as "zarr.storage._local.LocalStore"."""
    return f"{kind.__module__}.{kind.__qualname__}"


def name_of_class(instance: object) -> str:
    """Return the name of the class of an instance with its module."""
    return name_of_type(type(instance))


_HOW_TO_GET_ARRAY = {  # by the name of the class that was passed instead
    "Group": 'pass one of its arrays, group["NAME"]',
    "SyncReader": "pass its array, reader.array",
    "AsyncArray": "pass zarr.Array(async_array)",
    "DataArray": 'pass the array in its store, zarr.open_group(STORE, mode="r")["NAME"]',
    "Dataset": 'pass an array in its store, zarr.open_group(STORE, mode="r")["NAME"]',
}


def instead_of_array(
    instance: object, otherwise: str = "pass what zarr.open_array(STORE) returns"
) -> str:
    """Return what was passed instead of an array, and how to get one."""
    how = _HOW_TO_GET_ARRAY.get(type(instance).__name__, otherwise)
    return f"got {name_of_class(instance).removeprefix('builtins.')}; {how}"


def other_pipeline(kind: type) -> str:
    """Return that a class of pipelines reads nothing in part, or ""; zarr's may have our name."""
    is_ours = getattr(kind, "reads_partially", False)
    return "" if is_ours else f"{name_of_type(kind)} is the codec pipeline"


def name_of_chunk(byte_getter: object) -> str:
    """Return the name of a chunk, and of its store if the byte getter has one."""
    coordinates = getattr(byte_getter, "chunk_coords", None)
    if coordinates is not None:
        return f"inner chunk {coordinates} of a shard"
    path = getattr(byte_getter, "path", None)
    if path is None:
        return "a chunk"
    store = getattr(byte_getter, "store", None)
    return f"chunk {path!r}{reference_of(store, path) or f' of {name_of_store(store)}'}"


def reference_of(store: Any, path: str) -> str:
    """Return what fsspec's reference to a chunk points to, in parentheses, or ""."""
    reference = value_or_error(file_systems.reference_to, store, path)
    if file_systems.is_inlined(reference):
        return " (inlined in the references)"
    found = value_or_error(file_systems.target_of_chunk, store, path)
    if isinstance(found, Exception):  # a name is not worth an error
        return ""
    url, part = found
    return f" ({part[1]} bytes at offset {part[0]} of {url})" if part else f" ({url})"


def name_of_store(store: object) -> str:
    """Return the `repr` of a store, and which references it reads; the end, if that is long.

    If it is no more than an address, or fails, return the name of its class and its own address.
    """
    text, kind = value_or_error(repr, store), type(store).__name__
    name = " ".join(text.split()) if isinstance(text, str) else ""
    if not name or " at 0x" in name:
        return f"{kind} at {id(store):#x}"
    origin = value_or_error(_origin_of, store)  # a name is not worth an error
    name += origin if isinstance(origin, str) else ""
    return name if len(name) <= _NUM_CHARACTERS else f"{kind}(...{name[-_NUM_CHARACTERS:]}"


def _origin_of(store: object) -> str:
    """Return where the references, or the archive, of a file system of fsspec are, or ""."""
    files = file_systems.unwrapped(getattr(store, "fs", None))
    first = files.storage_args[:1] if file_systems.references_of(store) is not None else ()
    opened = getattr(files, "storage_options", {}).get("fo", *first)
    if opened is None:
        return ""
    if isinstance(opened, str):
        return f" of {_without_secrets(opened)}"
    target = value_or_error(_first_target, files)
    to_file = f", to {_without_secrets(target)}" if isinstance(target, str) else ""
    return f" of memory://{id(opened)}{to_file}"


def _first_target(files: Any) -> str:
    """Return the URL of the first reference of a file system that is not inlined."""
    pointers = (each for each in files.references.values() if not isinstance(each, (str, bytes)))
    url, _ = file_systems.target_of(next(pointers), files)
    return url


def _without_secrets(url: str) -> str:
    """Return a URL without what may be a password, before "@", or a key, after "?" or "#"."""
    protocol, slashes, rest = url.partition("?")[0].partition("#")[0].partition("//")
    host, slash, path = rest.partition("/")
    return f"{protocol}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def keys_are_v2(metadata: Any) -> bool:
    """Whether keys of chunks are like those of Zarr v2, and do not begin with "c"."""
    key = str(value_or_error(metadata.encode_chunk_key, (0,) * len(metadata.shape)))
    return not key.startswith("c")


def path_of_array(path: str, num_axes: int, *, has_v2_keys: bool) -> str:
    """Return the path of the array to which the path of a chunk belongs."""
    names = path.split("/")
    coords = names[len(names) - num_axes :]
    if coords and all(map(str.isdecimal, coords)):  # "c/0/1", or "0/1" in Zarr v2
        names = names[:-num_axes]
        return "/".join(names[:-1] if names[-1:] == ["c"] and not has_v2_keys else names)
    return "/".join(names[:-1])  # "c.0.1", "0.1", "c" or "0"


def add_name(error: Exception, byte_getter: object, doing: str = "reading", num: int = 1) -> None:
    """Add a note that names the chunk, or one of `num` chunks, to an error that names none."""
    if "chunk '" in str(value_or_error(str, error)):
        return
    others = f", or another one of {num}" if num > 1 else ""
    add_note(error, f"while {doing} {name_of_chunk(byte_getter)}{others}")


def add_name_of_array(error: Exception) -> None:
    """Add a note that names the array that zarr opens or creates to an error in its metadata.

    zarr does not tell a codec which array that is, but the functions that call it know: to search
    their frames ends when zarr names the array in its errors.
    """
    frame = inspect.currentframe()
    while frame is not None:
        store_path = frame.f_locals.get("store_path")
        if type(store_path).__name__ == "StorePath":  # a user's variable may have this name
            add_note(error, f"while opening or creating {value_or_error(str, store_path)}")
            return
        frame = frame.f_back


def add_note(error: Exception, note: str) -> None:
    """Add a note to an error, unless it has one with the same first word, such as "while"."""
    first_word = f"{note.partition(' ')[0]} "
    with contextlib.suppress(AttributeError, TypeError):  # some errors are immutable
        if not any(other.startswith(first_word) for other in getattr(error, "__notes__", ())):
            error.add_note(note)
