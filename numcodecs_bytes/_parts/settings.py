"""The options that are set: by `set_options`, else in zarr's config under ``numcodecs_bytes``.

Each raises ValueError if its value is wrong. A zarr that refuses unknown keys has none of ours.
"""

import contextlib
from typing import Any

import zarr

from numcodecs_bytes._options import PARSERS, chosen

_SPELLINGS = {"numcodecs_bytes", "numcodecs-bytes"}  # to zarr's config, they are the same


def _option(name: str) -> Any:
    """Return an option, or None if it is not set."""
    if name in chosen:
        return chosen[name]
    # This takes a tenth of the time of zarr.config.get.
    known = getattr(zarr.config, "config", None)
    if not isinstance(known, dict) or _SPELLINGS.isdisjoint(known):
        return None
    value = None
    with contextlib.suppress(KeyError, AttributeError, ValueError, TypeError):
        value = zarr.config.get(f"numcodecs_bytes.{name}", None)
    return None if value is None or value == "" else PARSERS[name](value)


def configured_gap_bytes() -> int | None:
    """Return the largest gap over which ranges are coalesced in bytes, or None if it is not set."""
    return _option("max_gap_bytes")  # type: ignore[no-any-return]


def splits_requests() -> bool:
    """Return whether a long part of an object is fetched with several requests."""
    return _option("split_requests") is not False


def configured_write_in_place() -> bool | str:
    """Return whether parts of chunks are written in place: True, "require", or else False."""
    return _option("write_in_place") or False


def stores_with_ranges() -> list[str]:
    """Return the classes that the user says have reliable byte ranges."""
    return _option("stores_with_ranges") or []
