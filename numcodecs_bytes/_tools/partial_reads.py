"""Whether arrays are read in part, and if not, why: `why_read_whole`."""

from typing import Any

import zarr

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._plan.outcome import LeftToZarr, NoReference, NotOpen
from numcodecs_bytes._zarr_api.defaults import why_aside
from numcodecs_bytes._zarr_api.names import instead_of_array, other_pipeline
from numcodecs_bytes._zarr_api.options import OptionError


def why_read_whole(array: "zarr.Array[Any]") -> str:
    """Return why the chunks of an array are read whole, or "" if they are read in part.

    That is what the settings, the metadata, the store and the place of the first chunk say;
    nothing is requested. Gaps may still make a selection fetch a whole chunk: `trace` counts
    what it fetches.

    Parameters
    ----------
    array : zarr.Array
        An array of any store.

    Returns
    -------
    str
        The reason, as `trace` gives it, such as "compressed or filtered by zstd"; or "".

    Raises
    ------
    TypeError
        If that is not a `zarr.Array`.

    Examples
    --------
    >>> import zarr, numcodecs_bytes
    >>> numcodecs_bytes.why_read_whole(zarr.create_array({}, shape=(4, 3), dtype="f4"))
    'compressed or filtered by zstd'
    """
    if not isinstance(array, zarr.Array):
        raise TypeError(f"why_read_whole takes a zarr.Array, {instead_of_array(array)}")
    found = value_or_error(_check_reads_in_part, array)
    # A missing chunk says nothing of the others, and zarr opens a store before it reads.
    return "" if isinstance(found, NoReference | NotOpen | OSError) else reason_of(found)


def reason_of(error: object) -> str:
    """Return why an array is not read here, given what a check raised, or "" if it raised nothing.

    Other errors than `LeftToZarr` are those of options, of stores, or bugs.
    """
    if not isinstance(error, Exception):
        return ""
    is_reason = isinstance(error, LeftToZarr | OptionError)
    return str(error) if is_reason else f"{type(error).__name__}: {error}"


def check_pipeline(array: "zarr.Array[Any]") -> None:
    """Raise `LeftToZarr` if the codec pipeline of an array reads nothing in part."""
    if why := other_pipeline(type(array.async_array.codec_pipeline)):
        raise LeftToZarr(why_aside.get("arrays", why))


def _check_reads_in_part(array: "zarr.Array[Any]") -> None:
    check_pipeline(array)
    pipeline: Any = array.async_array.codec_pipeline
    pipeline.access.check_reads_in_part(array)
