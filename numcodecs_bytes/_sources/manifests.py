"""What VirtualiZarr's store requests from obstore's stores, and which files those read."""

import contextlib
import copy
import functools
import re
import types
import uuid
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, SupportsInt

from zarr.core.buffer import cpu

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._plan.outcome import LeftToZarr, NoReference, NothingToFetch
from numcodecs_bytes._sources.store_states import state_of


class Request(NamedTuple):
    """A range of an object, in bytes, that VirtualiZarr's store requests from an object store."""

    objects: object
    path: str
    start: int
    end: int


def requests_of(store: Any) -> Callable[[str], Request]:
    """Return a function that says what VirtualiZarr's store would request for a chunk.

    VirtualiZarr's own code, of any version, resolves its manifests: `get` of a copy of the store
    runs until it requests something from an object store.
    """
    registry: Any = getattr(store, "_registry", None)

    @functools.cache
    def resolve(url: str) -> tuple[object, str]:
        """Return what stands for an object store, and hands requests to whoever runs `get`."""
        objects, path = registry.resolve(url)

        @types.coroutine
        def get_range_async(
            path: str, *, start: SupportsInt, end: SupportsInt
        ) -> Generator[Request]:
            yield Request(objects, path, int(start), int(end))  # they may be uint64

        names = [name for name in ("prefix", "url") if hasattr(objects, name)]
        attributes = {name: getattr(objects, name) for name in names}  # they make a URL a path
        return types.SimpleNamespace(get_range_async=get_range_async, **attributes), path

    recording = copy.copy(store)
    recording._registry = types.SimpleNamespace(resolve=resolve)

    def find(path: str) -> Request:
        try:
            with contextlib.closing(recording.get(path, cpu.buffer_prototype)) as getting:
                request = getting.send(None)
        except StopIteration as ended:
            if ended.value is None:
                raise NoReference("its manifest does not have it") from None
            raise NothingToFetch("it is inlined in its manifest") from None
        except Exception as error:  # another version may raise anything
            raise LeftToZarr("its manifest is of an unknown form") from error
        if not isinstance(request, Request) or request.end <= request.start:
            raise LeftToZarr("its manifest is of an unknown form")
        return request

    return find


def folder_of(objects: Any) -> str | None:
    """Return the folder that an obstore LocalStore reads, without "/" at the end.

    Returns None if that is not certain. Its `prefix` is only the path that it was given, whose
    links it resolved when it was made. Only its errors name the folder itself, which never changes.
    """
    state = state_of(objects)
    if state.folder is None:
        name = f"no-object-{uuid.uuid4().hex}"
        pattern = f"Object at location ((?:/.*)?)/{name} not found: "
        found = re.match(pattern, str(value_or_error(objects.head, name)), re.DOTALL)
        if found and "\ufffd" not in found[1]:  # which stands for bytes that are no text
            state.folder = found[1]
    return state.folder


def is_file_name(path: str) -> bool:
    """Whether an obstore LocalStore reads a path just as the system does.

    It refuses names that end with "#1", reads "C|" as "C:" at the root, and in version 0.8 "x:y" as
    "x:/y"; it leaves out empty segments at either end. Paths that are not printable count as
    different, to be safe.
    """
    is_plain = path.isprintable() and not any(char in path for char in "#|:\\")
    return is_plain and not {"", ".", ".."}.intersection(path.split("/"))
