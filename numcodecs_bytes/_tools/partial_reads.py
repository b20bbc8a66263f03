"""Whether parts of an array's chunks can be read, and if not, why."""

import contextlib

import zarr
from zarr.types import AnyArray

from numcodecs_bytes._host.defaults import why_aside
from numcodecs_bytes._plan.layout import Layout
from numcodecs_bytes._plan.outcome import LeftToZarr, NothingLost
from numcodecs_bytes._sources.files import File, length_of_file
from numcodecs_bytes._sources.stores import find_source, name_of_class


def read_in_part(array: AnyArray) -> Layout:
    """Return the layout of an array's (inner) chunks, parts of which can be read.

    Raises `LeftToZarr` if that is not so. Nothing is requested.
    """
    pipeline = array.async_array.codec_pipeline
    if not getattr(pipeline, "reads_parts", False):  # it may be zarr's, under the name of ours
        why = f"{name_of_class(pipeline)} is the codec pipeline"
        raise LeftToZarr(why_aside.get("arrays", why))
    from numcodecs_bytes._pipeline.array_layouts import (
        layout_of_array,  # not with any version of zarr
    )

    layout = layout_of_array(array)
    first = array.metadata.encode_chunk_key((0,) * array.ndim)
    try:
        source = find_source(array.store_path / first)
        if isinstance(source, File):
            length_of_file(source)
    except NothingLost:
        pass
    except LeftToZarr:
        raise
    except Exception:  # noqa: BLE001, S110 # it is missing, or damaged, which is checked later
        pass
    return layout if isinstance(layout, Layout) else layout.inner


def ask_for_a_range(array: AnyArray, index: tuple[int, ...]) -> None:
    """Read an element of a chunk: if the store does not serve byte ranges, that is remembered."""
    start = tuple(i * n for i, n in zip(index, array.shards or array.chunks, strict=True))
    # Small chunks are requested whole unless a gap is set. Ranges are not why a read raises.
    with contextlib.suppress(Exception), zarr.config.set({"numcodecs_bytes.max_gap_bytes": 0}):
        array[start]
