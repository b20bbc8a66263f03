"""Whether parts of an array's chunks can be read, and if not, why."""

from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import StorePath

from numcodecs_bytes._parts.getters import OnLoop
from numcodecs_bytes._parts.read_remote import RemoteObject
from numcodecs_bytes._parts.refusals import ReadWhole, answering, explaining, refusing
from numcodecs_bytes._parts.stores import File, Remote, Whole, find_source
from numcodecs_bytes._tools.check_report import ArrayReport, PartialReads
from numcodecs_bytes.codec import Bytes
from numcodecs_bytes.zarr import BytesCodec
from numcodecs_bytes.zarr_pipeline import ReadsBatches, stored_as


def partial_reads(array: Any) -> PartialReads:
    """Return whether parts of chunks can be read, and if not, why; nothing is requested."""
    answer = _partial_reads_of_codecs(array)
    if answer.is_promised:
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
    getter = OnLoop(at, default_buffer_prototype())
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


async def _is_readable(getter: OnLoop, num_bytes: int) -> bool:
    """Whether the whole chunk can be read, so that an error was about the range."""
    try:
        buffer = await getter.get_whole()
    except Exception:  # noqa: BLE001 # as above
        return False
    return buffer is not None and len(buffer) == num_bytes


def advise(reports: list[ArrayReport], locations: list[str]) -> str:
    """Return how to choose BytesPipeline, if it would read parts of some arrays, or ""."""
    answers = [report._reads for report in reports]  # noqa: SLF001 # not part of the public report
    if not any(answer.with_pipeline for answer in answers):
        return ""
    advice = (
        'To choose BytesPipeline, call numcodecs_bytes.set_options(pipeline="BytesPipeline"), or '
        "run `numcodecs-bytes enable` for all programs of this environment"
    )
    can_migrate = not all(name.endswith((".json", ".parq", ".parquet")) for name in locations)
    is_old = can_migrate and any(answer.is_old for answer in answers)
    return (
        f"{advice}. Or migrate the Zarr v2 arrays, which then need no setting" if is_old else advice
    )


def _partial_reads_of_codecs(array: Any) -> PartialReads:
    metadata = array.metadata
    is_old = metadata.zarr_format == 2
    if is_old:
        codecs = (*array.filters, *array.compressors)
        names = [codec.codec_id for codec in codecs]
    else:
        codecs = metadata.codecs
        names = [codec.to_dict()["name"] for codec in codecs]
    others = [name for name in names if name != "bytes"]
    try:
        can_be_read = stored_as(array) is not None
    except NotImplementedError:  # chunks of several shapes, which zarr calls rectilinear
        can_be_read = False
    is_in_shards = others == ["sharding_indexed"]
    if can_be_read and isinstance(array.async_array.codec_pipeline, ReadsBatches):
        return PartialReads("yes: inner chunks in part" if is_in_shards else "yes")
    if not is_old and not others:
        kind = type(codecs[0])
        if issubclass(kind, BytesCodec):
            return PartialReads("yes")
        return PartialReads(why_not=f"{kind.__module__}.{kind.__qualname__} is chosen")
    if is_in_shards:
        would = "in part" if can_be_read else ""
        return PartialReads(why_not="inner chunks are read whole", with_pipeline=would)
    if can_be_read:
        is_old = is_old and array.order == "C"
        why = " and ".join(others) or ("Zarr v2" if is_old else "column-major")
        return PartialReads(why_not=why, with_pipeline="yes", is_old=is_old)
    if not others and not all(isinstance(codec, Bytes) for codec in codecs):
        return PartialReads(why_not='its codec "bytes" is not that of numcodecs_bytes')
    why = "the dtype of its bytes codec is missing, or differs from the array's"
    if others:
        why = f"{' and '.join(others)} need{'s' * (len(others) == 1)} whole chunks"
    return PartialReads(why_not=why)
