"""Whether parts of an array's chunks can be read, and if not, why."""

import contextlib
from typing import Any, NamedTuple

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from numcodecs_bytes._engine.files import File, Left, length_of_file
from numcodecs_bytes._engine.remote import Object
from numcodecs_bytes._engine.stores import Remote, Whole, find_source
from numcodecs_bytes._engine.strikes import Unexpected, state_of
from numcodecs_bytes.zarr_pipeline import ReadsParts, stored_as


class PartialReads(NamedTuple):
    """What is read in part, "yes" or empty, and why nothing is; `str` says it in words."""

    now: str = ""
    why_not: str = ""

    def __str__(self) -> str:
        return self.now or f"no: {self.why_not}"


def partial_reads(array: Any) -> PartialReads:
    """Return whether parts of chunks can be read, and if not, why; nothing is requested."""
    stored, pipeline = stored_as(array), array.async_array.codec_pipeline
    why_not = stored.why if isinstance(stored, Whole) else ""
    if not why_not and not isinstance(pipeline, ReadsParts):
        why_not = f"{type(pipeline).__module__}.{type(pipeline).__qualname__} is the codec pipeline"
    if not why_not:
        first = array.metadata.encode_chunk_key((0,) * array.ndim)
        why_not = _why_not_from(find_source(array.store_path / first))
    if why_not:
        return PartialReads(why_not=why_not)
    return PartialReads("yes: inner chunks in part" if array.shards else "yes")


def _why_not_from(source: Any) -> str:
    """Return why a chunk is not read in part from where it lies, or ""."""
    if isinstance(source, File):
        try:
            length_of_file(source)
        except Left as why:
            return str(why)
        except (KeyError, OSError):
            pass  # it is missing, or what is amiss is found elsewhere
    return source.why if isinstance(source, Whole) else ""


def ask_for_a_range(array: Any, key: str, num_bytes: int) -> None:
    """Ask for one byte of a chunk, unless it is known that its store answers ranges.

    As with any read, a store is remembered if it does not, but returns the chunk as a whole.
    """
    source = find_source(StorePath(array.store, key))
    if isinstance(source, Remote) and not state_of(array.store).answers:
        sync(_ask(Object(source), array, key, num_bytes // 2))


async def _ask(target: Object, array: Any, key: str, offset: int) -> None:
    start = target.remote.start + offset
    try:
        await target.ask(start, start + 1)
    except Unexpected as why:
        with contextlib.suppress(Exception):  # an error here has nothing to do with ranges
            if await array.store.get(key, default_buffer_prototype()) is not None:
                target.state.strike(array.store, why)
