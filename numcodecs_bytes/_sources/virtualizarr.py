"""What VirtualiZarr's store requests for a chunk, by its manifests."""

import contextlib
import copy
import functools
import types
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, SupportsInt

from zarr.core.buffer import cpu

from numcodecs_bytes._plan.outcome import AlreadyInMemory, LeftToZarr, NoReference


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
            yield Request(objects, path, int(start), int(end))  # they may be NumPy's uint64

        names = [name for name in ("prefix", "url") if hasattr(objects, name)]
        attributes = {name: getattr(objects, name) for name in names}  # to resolve URLs
        return types.SimpleNamespace(get_range_async=get_range_async, **attributes), path

    recording = copy.copy(store)
    recording._registry = types.SimpleNamespace(resolve=resolve)

    def find(path: str) -> Request:
        try:
            with contextlib.closing(recording.get(path, cpu.buffer_prototype)) as getting:
                request = getting.send(None)
        except StopIteration as ended:
            if ended.value is None:
                raise NoReference("its manifest does not have it") from ended
            raise AlreadyInMemory("it is inlined in its manifest") from ended
        except Exception as error:  # another version may raise anything
            raise LeftToZarr("its manifest is of an unknown form") from error
        if not isinstance(request, Request) or request.end <= request.start:
            raise LeftToZarr("its manifest is of an unknown form")
        return request

    return find
