"""The options of this package: keys under ``numcodecs_bytes`` in zarr's config.

Like all of zarr's, they are set by environment variables such as
``ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE``, in YAML files, or by ``zarr.config.set``, and are looked
up when they are used.
"""

import contextlib
import difflib
import functools
import logging
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import zarr

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.sizes import parse_size

T = TypeVar("T")
WriteMode = bool | Literal["require"]  # of the option `write_in_place`
_warned: set[tuple[str, ...]] = set()  # what was warned of, once each


class OptionError(ValueError):
    """An option has a wrong value."""


def _parse_bool(value: object) -> bool | None:
    """Return a bool, which variables write as a number or a word."""
    word = value.strip().lower() if isinstance(value, str) else value
    is_bool = isinstance(word, int | str) and word in (0, 1, "true", "false")
    return word in (1, "true") if is_bool else None


def _parse_mode(value: object) -> WriteMode | None:
    is_required = isinstance(value, str) and value.strip().lower() == "require"
    return "require" if is_required else _parse_bool(value)


_resolve_installed = functools.cache(pkgutil.resolve_name)  # errors are not cached


def _resolve(name: str) -> object:
    """Return what a path names; None if its package is not installed here, at least not yet."""
    try:
        return _resolve_installed(name)
    except ImportError:
        if "." not in name:
            raise
        return None


def _as_list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]


def _parse_classes(value: object) -> list[type]:
    """Return those classes that are installed."""
    classes = []
    for named in _as_list(value):
        kind = _resolve(named) if isinstance(named, str) else named
        if isinstance(kind, type):
            classes.append(kind)
        elif kind is not None:
            raise TypeError(f"{named!r} is not a class")
    return classes


@dataclass(frozen=True)
class Option(Generic[T]):
    """An option; called, it returns the value, which an empty variable does not set."""

    key: str  # in zarr's config
    parse: Callable[[object], T | None]  # returns None, or raises an error, if a value is wrong
    expected: str
    unset: T  # the value if none is set

    @property
    def is_set(self) -> bool:
        """Whether it has a value, right or wrong."""
        return self._value() is not None

    def _value(self) -> object:
        value = zarr.config.get(self.key, None)
        return None if isinstance(value, str) and not value.strip() else value

    def __call__(self) -> T:
        warn_of_unknown_keys()  # again, because they may be set after an array is opened
        value = self._value()
        if value is None:
            return self.unset
        parsed = value_or_error(self.parse, value)  # which may import modules of others
        if parsed is None or isinstance(parsed, Exception):
            why = "" if parsed is None else f" ({parsed})"
            raise OptionError(
                f"{self.key} in zarr's config must be {self.expected}, got {value!r}{why}"
                f"{set_by(self.key)}"
            )
        return parsed


max_gap_bytes = Option[int | None](
    "numcodecs_bytes.max_gap_bytes",
    parse_size,
    "a whole number of bytes, or a size such as '64 KiB'",
    unset=None,
)
stores_with_ranges = Option[Sequence[type]](
    "numcodecs_bytes.stores_with_ranges",
    _parse_classes,
    "a list of classes such as 'package.module.Store'",
    unset=(),
)
untested_zarr = Option[bool | None](
    "numcodecs_bytes.untested_zarr", _parse_bool, "True or False", unset=None
)
write_in_place = Option[WriteMode](
    "numcodecs_bytes.write_in_place", _parse_mode, "True, False or 'require'", unset=False
)
OPTIONS = (max_gap_bytes, stores_with_ranges, untested_zarr, write_in_place)
_KEYS = [option.key for option in OPTIONS]
NAMES = tuple(key.partition(".")[2] for key in _KEYS)
_BARE_NAMES = {*NAMES, *[name.replace("_", "-") for name in NAMES]}  # without "numcodecs_bytes."


def _letters_of(variable: str) -> str:
    """Return what is left of a variable's name if it is misspelt by underscores or a prefix."""
    letters = variable.upper().removeprefix("ZARR_").replace("_", "")
    return re.sub("^NUMCODECS?(BYTES?)?", "NUMCODECSBYTES", letters)


_OF_ZARR = ("ZARR_CODEC_PIPELINE__PATH", "ZARR_CODECS__BYTES")  # which switch this package off
_VARIABLES = {
    _letters_of(name): name
    for name in (*_OF_ZARR, *[f"ZARR_NUMCODECS_BYTES__{name.upper()}" for name in NAMES])
}
# Behind ZARR_, natural names of a switch, which set other keys of zarr's, or break it.
_NATURAL = ("CODECPIPELINE", "CODECPIPELINECLASS", "PIPELINEPATH")


def _meant_by(variable: str) -> str:
    """Return the variable that is meant by a misspelt one, or ""."""
    letters = _letters_of(variable)
    if not variable.startswith("ZARR_"):
        return _VARIABLES.get(letters, "")
    if variable.upper() == "ZARR_CODEC_PIPELINE":  # see `why_section_is_wrong`
        return ""
    if letters in _NATURAL:
        return _OF_ZARR[0]
    close = difflib.get_close_matches(letters, _VARIABLES, n=1, cutoff=0.93)  # one letter in 14
    meant = _VARIABLES[close[0]] if close else ""
    return "" if variable.upper() == meant else meant


# Environment variables that are misspelt; zarr, too, looks at them only once.
_MISSPELT = {name: meant for name in os.environ if (meant := _meant_by(name))}


def classes_not_installed() -> list[str]:
    """Return the names in `stores_with_ranges` that are ignored: their packages are missing."""
    named = _as_list(zarr.config.get(stores_with_ranges.key, None))
    return [
        name for name in named if isinstance(name, str) and value_or_error(_resolve, name) is None
    ]


def unknown_keys() -> list[str]:
    """Return the keys and variables that look like options of this package, but are not."""
    unknown = list(_MISSPELT)
    # Where zarr puts what such a variable sets.
    set_by_them = [name.removeprefix("ZARR_").lower().partition("__") for name in unknown]
    of_variables = {section for section, _, _ in set_by_them}
    known = {*NAMES, *[key for section, _, key in set_by_them if section == "numcodecs_bytes"]}
    # An untested zarr may have a config of another kind, which refuses such keys by itself.
    config: Any = getattr(zarr.config, "config", {})
    for section, options in list(config.items()):  # which other threads may change
        if (name := str(section)) in _BARE_NAMES:
            unknown.append(name)
        if "numcodec" not in name:
            continue
        name = name.replace("-", "_")
        if name == "numcodecs_bytes" and isinstance(options, dict):
            names = [key for key in list(options) if str(key).replace("-", "_") not in known]
            unknown += [f"numcodecs_bytes.{key}" for key in names]
        elif name == "numcodecs_bytes":
            unknown.append(f"numcodecs_bytes = {options!r}")
        # It is misspelt, or has one underscore.
        elif re.match("numcodecs_byte|numcodec_bytes", name) and name not in of_variables:
            unknown.append(str(section))
    return unknown


def did_you_mean(key: str) -> str:
    """Return a question that names what is meant by a misspelt key, or variable, or ""."""
    if key in _MISSPELT:
        return f" (did you mean {_MISSPELT[key]}?)"
    name = key.replace("-", "_").removeprefix("numcodecs_bytes").lstrip("._").lower()
    if meant := difflib.get_close_matches(name, NAMES, n=1):
        return f" (did you mean numcodecs_bytes.{meant[0]}?)"
    return " (did you mean numcodecs_bytes?)" if name.startswith("numcodec") else ""


def is_misspelt_variable(key: str) -> bool:
    """Whether it is an environment variable of which is known what is meant."""
    return key in _MISSPELT


def warn_of_unknown_keys() -> None:
    """Log which keys have no effect, once each."""
    keys = tuple(unknown_keys())
    if not keys or keys in _warned:
        return
    _warned.add(keys)
    options = (
        f": the options of numcodecs_bytes are keys of zarr's config, {', '.join(_KEYS)} (in "
        f"environment variables, ZARR_NUMCODECS_BYTES__{NAMES[-1].upper()}, with two underscores)"
    )
    # Logged, because a warning would blame a line of the program, but a file may have set the key.
    logging.getLogger("numcodecs_bytes").warning(
        "%s %s no effect%s",
        ", ".join(f"{key}{did_you_mean(key)}" for key in keys),
        "has" if len(keys) == 1 else "have",
        "" if all(map(is_misspelt_variable, keys)) else options,
    )


def origin_of(key: str) -> str:
    """Return the file, variable or call that sets a key of zarr's config, or "" if none does.

    It is "", too, if an untested zarr has a config of another kind.
    """
    origin = value_or_error(_origin_of, key, zarr.config)
    return origin if isinstance(origin, str) else ""


def _origin_of(key: str, config: Any) -> str:
    # The last that has it wins.
    sources: list[tuple[str, object]] = [("", config.defaults[0])]
    for path in map(Path, config.paths):
        if os.access(path, os.R_OK):  # zarr ignores the others
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            names = [f for f in files if f == path or f.suffix in (".yaml", ".yml", ".json")]
            sources += [(f"file {f}", config.collect(paths=[str(f)], env={})) for f in names]
    for name, value in os.environ.items():
        if name.startswith(config.env_prefix):
            collected = config.collect(paths=[], env={name: value})
            sources.append((f"environment variable {name}", collected))
    having = [(name, _value_in(collected, key)) for name, collected in sources]
    origin, last = next((each for each in reversed(having) if each[1] is not None), ("", None))
    return origin if _value_in(config.config, key) == last else "zarr.config.set"


def set_by(key: str) -> str:
    """Return who sets a key of zarr's config, as the end of a clause in a message, or ""."""
    origin = origin_of(key)
    if origin == "zarr.config.set":
        return f", set in this program by {origin}"
    return f", set by {origin}" if origin else ""


def why_section_is_wrong() -> str:
    """Return which section of zarr's config is none, by which zarr fails, or ""."""
    for section, name in (("codec_pipeline", "path"), ("codecs", "bytes")):
        value = zarr.config.get(section, {})
        if not isinstance(value, Mapping):
            setter = "" if value is None else set_by(section)  # of None, that is not known
            return f"{section} is {value!r}{setter}: remove it, or set {section}.{name} instead"
    return ""


def _value_in(collected: object, key: str) -> object:
    """Return the value of a key, whose names YAML may write with hyphens, or None."""
    for name in key.split("."):
        if not isinstance(collected, Mapping):
            return None
        collected = collected.get(name, collected.get(name.replace("_", "-")))
    return collected


def warn_of_other_pipeline(when: str) -> None:
    """Warn if write_in_place is "require", but zarr is to use a pipeline that ignores it.

    Once when this package is "loaded", and once when it is "used": a program may have set either in
    the meantime. Before it is loaded, zarr's default is not replaced yet.
    """
    path = str(zarr.config.get("codec_pipeline.path", None))
    is_loaded = "numcodecs_bytes._entry_points.codec_pipeline" in sys.modules
    if not is_loaded or path.startswith("numcodecs_bytes.") or (path, when) in _warned:
        return
    with contextlib.suppress(Warning, ValueError):  # a wrong value raises an error where it is used
        if write_in_place() == "require":
            _warned.add((path, when))
            warnings.warn(
                f"numcodecs_bytes.write_in_place is 'require', but codec_pipeline.path is {path}"
                f"{set_by('codec_pipeline.path')}: it rewrites whole chunks without an error; "
                "set it to numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
                stacklevel=2,
            )
