"""Whether parts of an array's chunks can be read, and if not, why."""

from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from numcodecs_bytes._parts.getters import Getter
from numcodecs_bytes._parts.read_remote import RemoteObject
from numcodecs_bytes._parts.refusals import ReadWhole, answering, explaining, refusing
from numcodecs_bytes._parts.stores import File, Remote, Whole, find_source
from numcodecs_bytes._tools.check_report import PartialReads
from numcodecs_bytes.zarr_pipeline import ReadsParts, why_no_parts


def partial_reads(array: Any) -> PartialReads:
    """Return whether parts of chunks can be read, and if not, why; nothing is requested."""
    answer = _partial_reads_of_codecs(array)
    if answer.now:
        first = array.metadata.encode_chunk_key((0,) * array.ndim)
        source = find_source(array.store_path / first)
        if isinstance(source, Whole) and source.why:
            return PartialReads(why_not=source.why)
        if isinstance(source, File):
            try:
                source.open().close()
            except ReadWhole as why:
                return PartialReads(why_not=why.why) if why.why else answer
            except (KeyError, OSError):
                return answer  # it is missing, or what is amiss is found elsewhere
    return answer


def ask_for_a_range(array: Any, key: str, num_bytes: int) -> None:
    """Find out whether a store answers byte ranges, unless that is known, with one byte of a chunk.

    Parameters
    ----------
    array : zarr.Array
        The array.
    key : str
        Key of a chunk in the store.
    num_bytes : int
        Length of the chunk, at least 2 bytes: a store may return all of them.
    """
    at = StorePath(array.store, key)
    source = find_source(at)
    if isinstance(source, Remote) and at.store not in answering:
        refusal = sync(_refusal(at, source, num_bytes))
        if refusal is not None:
            refusing.add(at.store, refusal)


async def _refusal(at: Any, source: Remote, num_bytes: int) -> str | None:
    """Return how a store shows that it does not support byte ranges; None if it does not."""
    getter = Getter(at, default_buffer_prototype())
    start = num_bytes // 2
    try:
        with explaining():
            answer = await RemoteObject(getter, source).ask(start, start + 1)
            num_received = 0 if answer is None else len(await answer.read())
    except ReadWhole as why:
        refusal = why.refusal_of(at.store, at.path)
        return refusal if refusal and await _is_readable(getter, num_bytes) else None
    except Exception:  # noqa: BLE001 # stores and networks raise anything
        return None
    if num_received == 1:
        answering.add(at.store)
    return "returns more bytes than requested" if num_received > 1 else None


async def _is_readable(getter: Getter, num_bytes: int) -> bool:
    """Whether the whole chunk can be read, so that an error was about the range."""
    try:
        buffer = await getter.get_whole()
    except Exception:  # noqa: BLE001 # as above
        return False
    return buffer is not None and len(buffer) == num_bytes


def _partial_reads_of_codecs(array: Any) -> PartialReads:
    pipeline = array.async_array.codec_pipeline
    why_not = why_no_parts(array)
    if not why_not and not isinstance(pipeline, ReadsParts):
        why_not = f"{type(pipeline).__module__}.{type(pipeline).__qualname__} is the codec pipeline"
    if why_not:
        return PartialReads(why_not=why_not)
    return PartialReads("yes: inner chunks in part" if array.shards else "yes")
