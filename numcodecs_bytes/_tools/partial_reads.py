"""Whether parts of an array's chunks can be read, and if not, why."""

from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from numcodecs_bytes._engine.files import File, Left, length_of_file
from numcodecs_bytes._engine.remote import Object
from numcodecs_bytes._engine.stores import Remote, Whole, find_source
from numcodecs_bytes._engine.strikes import Failed, Unexpected
from numcodecs_bytes._tools.check_report import PartialReads
from numcodecs_bytes.zarr_pipeline import ReadsParts, stored_as


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
                length_of_file(source)
            except Left as why:
                return PartialReads(why_not=str(why))
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
        Length of the chunk in bytes.
    """
    source = find_source(StorePath(array.store, key))
    if isinstance(source, Remote):
        target = Object(source)
        if not target.state.answers:
            sync(_ask(target, array, num_bytes))


async def _ask(target: Object, array: Any, num_bytes: int) -> None:
    middle = target.remote.start + num_bytes // 2
    try:
        answer = await target.ask(middle, middle + 1)
    except Failed as why:
        name = "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"
        if not await _answers_only_whole(array.store_path / name):
            return  # the error was not about the range
        target.state.strike(array.store, why)
    except Unexpected as why:
        target.state.strike(array.store, why)
    else:
        if answer is None:
            why_not = "chunks are missing if parts of them are requested"
            target.state.strike(array.store, Unexpected(why_not))


async def _answers_only_whole(at: Any) -> bool:
    """Whether a short object, the array's metadata, can be read, but no range of it."""
    source = find_source(at)
    try:
        buffer = await at.get(default_buffer_prototype())
        if buffer is not None and isinstance(source, Remote):
            await Object(source).ask(0, 1)
    except Unexpected:
        return True
    except Exception:  # noqa: BLE001 # stores and networks raise anything
        return False
    return False


def _partial_reads_of_codecs(array: Any) -> PartialReads:
    pipeline = array.async_array.codec_pipeline
    stored = stored_as(array)
    why_not = stored.why if isinstance(stored, Whole) else ""
    if not why_not and not isinstance(pipeline, ReadsParts):
        why_not = f"{type(pipeline).__module__}.{type(pipeline).__qualname__} is the codec pipeline"
    if why_not:
        return PartialReads(why_not=why_not)
    return PartialReads("yes: inner chunks in part" if array.shards else "yes")
