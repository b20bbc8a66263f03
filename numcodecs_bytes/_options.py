"""The options of this package: keys under ``numcodecs_bytes`` in zarr's config.

Like all of zarr's, they are set by environment variables such as
``ZARR_NUMCODECS_BYTES__WRITE_IN_PLACE``, in YAML files, or by ``zarr.config.set``, and are looked
up when they are used. A zarr whose config refuses unknown keys has none of them.
"""

import functools
import importlib
import operator
import sys
import warnings
from typing import Any

import zarr

from numcodecs_bytes._core.lengths import parse_size

NAMES = ("max_gap_bytes", "stores_with_ranges", "write_in_place")


def max_gap_bytes() -> int | None:
    """Return the largest gap between two byte ranges that are fetched as one; None if not set."""
    value = _value_of("max_gap_bytes")
    if (num_bytes := parse_size(value)) is None:
        _raise_if_set(value, "max_gap_bytes", "a number of bytes, or a size such as '64 KiB'")
    return num_bytes


def stores_with_ranges() -> list[type]:
    """Return the classes that the user says have reliable byte ranges, as far as installed.

    Raises
    ------
    ValueError
        If a module does not have the class that is named.
    """
    value = _value_of("stores_with_ranges")
    named = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(one, str | type) for one in named):
        return [kind for one in named if (kind := _class_of(one)) is not None]
    _raise_if_set(value, "stores_with_ranges", "a list of classes such as 'package.module.Store'")
    return []


def _class_of(named: str | type) -> type | None:
    """Return a class, or the one of a dotted path; None if its module is not installed."""
    if isinstance(named, type):
        return named
    module, _, names = named, "", ""
    while "." in module:
        module, _, name = module.rpartition(".")
        names = f"{name}.{names}" if names else name
        try:
            found: Any = sys.modules.get(module) or importlib.import_module(module)
            found = operator.attrgetter(names)(found)
        except ImportError:
            continue
        except AttributeError:
            found = None
        kind = found if isinstance(found, type) else None
        if kind is None:
            raise ValueError(_expected("stores_with_ranges", f"classes that {module} has", named))
        return kind
    if "." not in named:
        raise ValueError(_expected("stores_with_ranges", "classes with their modules", named))
    return None


def write_in_place() -> bool | str:
    """Return whether parts of chunks are written in place: True, False or "require"."""
    value = _value_of("write_in_place")
    word = value.strip().lower() if isinstance(value, str) else value
    if word == "require":
        return "require"
    if isinstance(word, int | str) and word in (0, 1, "true", "false"):
        return word in (1, "true")
    _raise_if_set(value, "write_in_place", "True, False or 'require'")
    return False


def _value_of(name: str) -> Any:
    """Return the value of an option, None if it is not set, or set to an empty variable."""
    try:
        value = zarr.config.get(f"numcodecs_bytes.{name}", None)
    except (AttributeError, KeyError, TypeError, ValueError):  # an unknown key, to this zarr
        return None
    return None if isinstance(value, str) and not value.strip() else value


def _raise_if_set(value: Any, name: str, expected: str) -> None:
    """Raise ValueError if an option has a value, which is none of the expected ones."""
    if value is not None:
        raise ValueError(_expected(name, expected, value))


def _expected(name: str, expected: str, value: Any) -> str:
    return (
        f"numcodecs_bytes.{name} in zarr's config must be {expected}, got {value!r}; "
        "run `numcodecs-bytes` to see what sets it"
    )


def unknown_keys() -> list[str]:
    """Return the keys of zarr's config that look like options of this package, but are none."""
    config: Any = getattr(zarr.config, "config", None)
    found = []
    for key in list(config) if isinstance(config, dict) else ():
        section = str(key).replace("-", "_")
        if section == "numcodecs_bytes" and isinstance(config[key], dict):
            found += [
                f"numcodecs_bytes.{name}"
                for name in list(config[key])
                if str(name).replace("-", "_") not in NAMES
            ]
        elif section.startswith("numcodecs_bytes"):
            found.append(str(key))
    return found


def warn_of_unknown_keys() -> None:
    """Warn of keys that have no effect, once each."""
    if unknown := unknown_keys():
        _warn_of(tuple(unknown))


@functools.cache
def _warn_of(unknown: tuple[str, ...]) -> None:
    known = ", ".join(f"numcodecs_bytes.{name}" for name in NAMES)
    warnings.warn(
        f"{', '.join(unknown)} in zarr's config has no effect: the options of numcodecs_bytes are "
        f"{known} (in environment variables, ZARR_NUMCODECS_BYTES__{NAMES[-1].upper()}, with two "
        "underscores before the name)",
        stacklevel=2,
    )
