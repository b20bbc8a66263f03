"""Whether parts of an array's chunks can be read, and if not, why."""

import contextlib
from typing import Any

import zarr

from numcodecs_bytes._engine.files import File, Left, length_of_file
from numcodecs_bytes._engine.stores import Whole, find_source
from numcodecs_bytes.zarr_pipeline import ReadsParts, stored_as


def partial_reads(array: Any) -> str:
    """Return "yes", with what is read in part, or "no: " and why; nothing is requested."""
    stored, pipeline = stored_as(array), array.async_array.codec_pipeline
    why_not = stored.why if isinstance(stored, Whole) else ""
    if not why_not and not isinstance(pipeline, ReadsParts):
        why_not = f"{type(pipeline).__module__}.{type(pipeline).__qualname__} is the codec pipeline"
    if not why_not:
        first = array.metadata.encode_chunk_key((0,) * array.ndim)
        why_not = _why_whole(find_source(array.store_path / first))
    if why_not:
        return f"no: {why_not}"
    return "yes: inner chunks in part" if array.shards else "yes"


def _why_whole(source: Any) -> str:
    """Return why a chunk is read whole from where it is stored, or ""."""
    if isinstance(source, File):
        try:
            length_of_file(source)
        except Left as why:
            return str(why)
        except Exception:  # noqa: BLE001, S110 # it is missing, or damaged, which is checked later
            pass
    return source.why if isinstance(source, Whole) else ""


def ask_for_a_range(array: Any, index: tuple[int, ...]) -> None:
    """Read an element of a chunk: if the store does not answer byte ranges, that is remembered."""
    start = tuple(i * n for i, n in zip(index, array.shards or array.chunks, strict=True))
    # Small chunks are requested whole unless a gap is set. Ranges are not why a read raises.
    with contextlib.suppress(Exception), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        array[start]
