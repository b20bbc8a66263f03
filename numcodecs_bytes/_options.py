"""The options of this package: keys under ``numcodecs_bytes`` in zarr's config.

Like all of zarr's, they are set by environment variables such as
``ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE``, in YAML files, or by ``zarr.config.set``, and are looked
up when they are used.
"""

import contextlib
import functools
import logging
import pkgutil
import warnings
from typing import Any

import zarr

from numcodecs_bytes._core.lengths import parse_size

NAMES = ("max_gap_bytes", "stores_with_ranges", "untested_zarr", "write_in_place")


class OptionError(ValueError):
    """An option has a wrong value."""


def max_gap_bytes() -> int | None:
    """Return the largest gap that is fetched with the runs around it; None if not set."""
    value = _value_of("max_gap_bytes")
    num_bytes = parse_size(value)
    if num_bytes is None and value is not None:
        raise _error("max_gap_bytes", "a number of bytes, or a size such as '64 KiB'", value)
    return num_bytes


def stores_with_ranges() -> list[type]:
    """Return the classes that the user says have reliable byte ranges, if they are installed."""
    value = _value_of("stores_with_ranges")
    if value is None:
        return []
    classes, expected = [], "a list of classes such as 'package.module.Store'"
    for named in value if isinstance(value, list | tuple) else [value]:
        try:
            kind = pkgutil.resolve_name(named) if isinstance(named, str) else named
        except Exception as error:  # modules can raise anything
            if isinstance(error, ImportError) and "." in named:
                continue  # its package is not installed here
            raise _error("stores_with_ranges", expected, named) from error
        if not isinstance(kind, type):
            raise _error("stores_with_ranges", expected, named)
        classes.append(kind)
    return classes


def untested_zarr() -> bool | None:
    """Return whether to read and write with a version of zarr that was not tested; None if unset.

    It is looked up once, when the pipelines are loaded.
    """
    value = _value_of("untested_zarr")
    chosen = _parse_bool(value)
    if chosen is None and value is not None:
        raise _error("untested_zarr", "True or False", value)
    return chosen


def write_in_place() -> bool | str:
    """Return whether parts of chunks are written in place: True, False or "require"."""
    value = _value_of("write_in_place")
    if isinstance(value, str) and value.strip().lower() == "require":
        return "require"
    chosen = _parse_bool(value)
    if chosen is None and value is not None:
        raise _error("write_in_place", "True, False or 'require'", value)
    return bool(chosen)


def _parse_bool(value: object) -> bool | None:
    """Return a bool, which variables write as a number or a word; None for anything else."""
    word = value.strip().lower() if isinstance(value, str) else value
    is_bool = isinstance(word, int | str) and word in (0, 1, "true", "false")
    return word in (1, "true") if is_bool else None


def _value_of(name: str) -> Any:
    """Return the value of an option; None if it is not set, or set to an empty variable."""
    warn_of_unknown_keys()  # again, because they may be set after an array is opened
    value = zarr.config.get(f"numcodecs_bytes.{name}", None)
    return None if isinstance(value, str) and not value.strip() else value


def _error(name: str, expected: str, value: object) -> OptionError:
    return OptionError(
        f"numcodecs_bytes.{name} in zarr's config must be {expected}, got {value!r}; "
        "run `numcodecs-bytes` to see what sets it"
    )


def unknown_keys() -> list[str]:
    """Return the keys of zarr's config that look like options of this package, but are not."""
    unknown = []
    for section, options in list(zarr.config.config.items()):  # which other threads may change
        if "numcodec" not in (name := str(section)):
            continue
        name = name.replace("-", "_")
        if name == "numcodecs_bytes" and isinstance(options, dict):
            names = [key for key in list(options) if str(key).replace("-", "_") not in NAMES]
            unknown += [f"numcodecs_bytes.{key}" for key in names]
        elif name.startswith(("numcodecs_byte", "numcodec_bytes")):  # misspelt, or one underscore
            unknown.append(str(section))
    return unknown


def warn_of_unknown_keys() -> None:
    """Log which keys have no effect, once each."""
    if unknown := unknown_keys():
        _warn_of(", ".join(unknown))


@functools.cache
def _warn_of(keys: str) -> None:
    # Logged, because a warning would blame a line of the program, but a file may have set the key.
    logging.getLogger("numcodecs_bytes").warning(
        "%s in zarr's config has no effect: the options of numcodecs_bytes are numcodecs_bytes.%s "
        "(in environment variables, ZARR_NUMCODECS_BYTES__%s, with two underscores)",
        keys,
        ", numcodecs_bytes.".join(NAMES),
        NAMES[-1].upper(),
    )


def warn_of_other_pipeline(when: str) -> None:
    """Warn if write_in_place is "require", but zarr is to use a pipeline that ignores it.

    Once when this package is "loaded", and once when it is "used": a program may have set either in
    the meantime.
    """
    path = str(zarr.config.get("codec_pipeline.path", None))
    if path.startswith("numcodecs_bytes."):
        return
    with contextlib.suppress(Warning, ValueError):  # a wrong value raises an error where it is used
        if write_in_place() == "require":
            _warn_of_pipeline(path, when)


@functools.cache
def _warn_of_pipeline(path: str, _when: str) -> None:
    warnings.warn(
        f"numcodecs_bytes.write_in_place is 'require', but codec_pipeline.path is {path}: arrays "
        "that are opened with it are not written in place, nor is an error raised; set it to "
        "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline (run `numcodecs-bytes` to see what "
        "sets it now)",
        stacklevel=3,
    )
