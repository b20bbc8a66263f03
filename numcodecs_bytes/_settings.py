"""Options: those of `set_options`, or else the configured ones.

Configured are, in order of precedence: environment variables; zarr's config (its files, its
variables, and what a program sets there); and the file that ``numcodecs-bytes enable`` writes,
which zarr does not read, so that it is harmless without this package.

Each option raises ValueError if its value is wrong. A zarr that refuses unknown keys has none of
ours.
"""

import ast
import functools
import logging
import os
import site
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import zarr

from numcodecs_bytes._options import PARSERS, chosen

PREFIX = "NUMCODECS_BYTES_"
FILE = Path("etc", "zarr", "numcodecs_bytes.toml")  # in the folder of an environment
ZARRS_CONFIG = "zarr's config"
_NOT_OPTIONS = {"tests"}
_logger = logging.getLogger("numcodecs_bytes")


class Given(NamedTuple):
    """A value of an option, and what sets it."""

    value: Any
    source: str


def configured(name: str) -> Iterator[Given]:
    """Yield the configured values of an option, in order of precedence."""
    for options, known in _configured_options():
        given = options.get(name) if name in known else None
        if given is not None and given.value is not None and given.value != "":
            yield given


def _configured_options() -> Iterator[tuple[Mapping[str, Given], Collection[str]]]:
    """Yield the options of each source, and the names that are valid there."""
    yield _in_variables(), PARSERS
    # zarr has its own key for the pipeline, which a program may set for a while.
    yield _in_zarrs_config(getattr(zarr.config, "config", None)), PARSERS.keys() - {"pipeline"}
    yield _in_file(), PARSERS


def is_set_outside(*names: str) -> bool:
    """Whether one of some options is set in a variable or a file, for the whole program."""
    sources = (_in_variables(), _in_zarrs_config(zarr.config.collect()), _in_file())
    given = [each[name] for each in sources for name in names if name in each]
    return any(one.value is not None and one.value != "" for one in given)


def _option(name: str) -> Any:
    """Return an option, or None if it is not set."""
    return chosen[name] if name in chosen else _configured_option(name)


def _configured_option(name: str) -> Any:
    """Return a configured option, ignoring `set_options`; None if it is not set."""
    in_zarr = _in_zarrs_config(getattr(zarr.config, "config", None))
    if not (in_zarr or _in_variables() or _in_file()):  # as is usual
        return None
    for value, source in configured(name):
        try:
            return PARSERS[name](value)
        except ValueError as error:
            raise ValueError(f"{error} (set by {source})") from None
    return None


@functools.cache
def _in_variables() -> Mapping[str, Given]:
    """Return the options in environment variables."""
    found = {}
    for variable, text in os.environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if variable.startswith(PREFIX) and name not in _NOT_OPTIONS:
            found[name] = Given(_parse(text), f"environment variable {variable}")
    return found


def _parse(text: str) -> Any:
    """Return the value that a text stands for: a literal of Python, also `true`, or itself."""
    text = text.strip()
    try:
        return ast.literal_eval(text.title() if text.lower() in {"true", "false"} else text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):  # all of which it may
        return text


def _in_zarrs_config(config: Any) -> Mapping[str, Given]:
    """Return the options in zarr's config; this takes a tenth of the time of zarr.config.get."""
    if not isinstance(config, dict):
        return {}
    options = config.get("numcodecs_bytes") or config.get("numcodecs-bytes")  # to zarr the same
    if not isinstance(options, dict):
        return {}
    given = dict(options)  # which another thread may change
    return {str(k).replace("-", "_"): Given(v, ZARRS_CONFIG) for k, v in given.items()}


@functools.cache
def _in_file() -> Mapping[str, Given]:
    """Return the options in the file of the environment; else in that of the one it is based on."""
    for path in environment_files():
        try:
            return options_in(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            _logger.warning("numcodecs_bytes can't read its options: %s", error)
    return {}


def options_in(path: Path) -> Mapping[str, Given]:
    """Return the options in a file; raise OSError, or ValueError if it is damaged."""
    try:
        options = tomllib.loads(path.read_text("utf-8-sig"))  # as some editors save it
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): correct it or delete it") from error
    return {name: Given(value, f"file {path}") for name, value in options.items()}


def environment_files() -> list[Path]:
    """Return the files that are read: that of this environment, and of the one it is based on."""
    prefixes = [sys.prefix, *getattr(site, "PREFIXES", [])]
    return [Path(prefix) / FILE for prefix in dict.fromkeys(prefixes)]


def unknown_options() -> list[str]:
    """Return the options that are set but have no effect, each with its source."""
    return [
        f"{name!r} (set by {given.source}"
        + ("; use codec_pipeline.path there)" if name in PARSERS else ")")
        for options, known in _configured_options()
        for name, given in options.items()
        if name not in known
    ]


def configured_pipeline() -> str | None:
    """Return the path of the codec pipeline to use unless zarr's config has another one."""
    return _configured_option("pipeline")  # type: ignore[no-any-return]


def is_write_in_place_configured() -> bool:
    """Return whether parts of chunks are written in place unless `set_options` says otherwise."""
    return bool(_configured_option("write_in_place"))


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
