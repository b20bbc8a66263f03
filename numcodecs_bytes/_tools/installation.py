"""Which classes numcodecs and zarr use for the codec, and what sets options; `enable` sets some."""

import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numcodecs.registry
import zarr
import zarr.dtype
import zarr.registry

from numcodecs_bytes._options import PARSERS
from numcodecs_bytes._parts.in_place import has_pipeline
from numcodecs_bytes._settings import (
    FILE,
    ZARRS_CONFIG,
    configured,
    configured_write_in_place,
    options_in,
)
from numcodecs_bytes._zarr_versions import default_pipeline
from numcodecs_bytes.codec import Bytes

OURS = ("numcodecs_bytes.codec.Bytes", "numcodecs_bytes.zarr.BytesCodec")


def report() -> dict[str, Any]:
    """Return which classes numcodecs and zarr use for "bytes", and which settings override them."""
    answers = [
        _answer("numcodecs", "bytes", _numcodecs_class),
        _answer("zarr", "bytes", lambda: zarr.registry.get_codec_class("bytes")),
        _answer("zarr", "endian", lambda: zarr.registry.get_codec_class("endian")),
        _answer("zarr", "codec pipeline", zarr.registry.get_pipeline_class),
    ]
    return {
        "picked_up": all(a["class"] in OURS for a in answers if a["name"] == "bytes"),
        "versions": {
            name: version(name) for name in ("numcodecs-bytes", "numcodecs", "zarr", "numpy")
        },
        "answers": answers,
        "writes_in_place": _writes_in_place(),
        "other_codec": explain_other_codec(),
        "options": _options(),
        "overrides": [
            override
            for key in ("codecs.bytes", "codecs.endian", "codec_pipeline.path")
            for override in _overrides(key)
        ],
        "finds_data_types": _finds_data_types(),
    }


def _numcodecs_class() -> type:
    """Return the class that numcodecs uses, which may not be made without settings."""
    registered: Any = numcodecs.registry.codec_registry.get("bytes")
    return registered or type(numcodecs.registry.get_codec({"id": "bytes"}))


def explain_other_codec() -> str:
    """Return which other class numcodecs uses and how to mend that, or ""."""
    try:
        found = _numcodecs_class()
    except Exception:  # noqa: BLE001 # an entry point can raise anything
        return ""
    if issubclass(found, Bytes):
        return ""
    return (
        f'numcodecs uses {found.__module__}.{found.__qualname__} for "bytes", because a program or '
        f"a package registered it in place of {OURS[0]}; to use ours, call "
        "numcodecs.register_codec(numcodecs_bytes.Bytes) after that"
    )


def _writes_in_place() -> str | None:
    """Return whether parts of chunks are written in place, and if not why; None if not asked for.

    Zarr's config is looked at, not an array: one that is open may have another pipeline.
    """
    try:
        if not configured_write_in_place():
            return None
        return (
            "yes"
            if has_pipeline()
            else "no: codec_pipeline.path is not a pipeline of numcodecs_bytes"
        )
    except Exception as error:  # noqa: BLE001 # a wrong setting can raise anything
        return f"no: {error}"


def _finds_data_types() -> bool:
    """Whether zarr loads the types of `zarr_data_types` by itself, as 3.4.1 and newer do."""
    try:
        zarr.dtype.data_type_registry.match_json("r8", zarr_format=3)
    except ValueError:
        return False
    return True


def _answer(host: str, name: str, find_class: Callable[[], type]) -> dict[str, Any]:
    answer = {"host": host, "name": name, "class": None, "file": None, "error": None}
    try:
        found = find_class()
    except Exception as error:  # noqa: BLE001 # a wrong setting can raise anything
        return answer | {"error": f"{type(error).__name__}: {error}"}
    return answer | {
        "class": f"{found.__module__}.{found.__qualname__}",
        "file": inspect.getfile(found),
    }


def _options() -> list[dict[str, str]]:
    """Return the options that are set, what sets them, and what is wrong with them."""
    found = []
    for name, parse in PARSERS.items():
        try:
            for value, source in configured(name):
                key = f"numcodecs_bytes.{name}"
                exact = [*_overrides(key)][-1:] if source == ZARRS_CONFIG else []
                found += exact or [_override(key, value, source)]
                parse(value)
                break
        except ValueError as error:  # of a file that is damaged, the same for each option
            if not any(each.get("error") == str(error) for each in found):
                found.append(_override(f"numcodecs_bytes.{name}", "", "") | {"error": str(error)})
    return found


def _overrides(key: str) -> Iterator[dict[str, str]]:
    """Yield the files, variables and calls that set a key of zarr's config; the last one wins."""
    config, names = zarr.config, key.split(".")

    def setting(collected: Any) -> Any:
        for name in names:
            collected = collected.get(name) if isinstance(collected, Mapping) else None
        return collected

    files = [
        file
        for path in map(Path, config.paths)
        for file in (sorted(path.iterdir()) if path.is_dir() else [path])
        if file == path or file.suffix.lower() in (".yaml", ".yml", ".json")
    ]
    sources = [(f"file {file}", config.collect(paths=[str(file)], env={})) for file in files]
    variables = [
        variable
        for variable in os.environ
        if variable.removeprefix(config.env_prefix).lower() in (names[0], "__".join(names))
    ]
    sources.append(
        (
            f"environment variable {' and '.join(variables)}",
            config.collect(paths=[], env=os.environ),
        )
    )
    value = setting(config.defaults[0])
    for source, collected in sources:
        found = setting(collected)
        if found is not None:
            value = found
            yield _override(key, value, source)
    current = setting(config.config)
    if key != "codecs.endian" and current != value:
        yield _override(key, current, "zarr.config.set")


def _override(key: str, value: Any, source: str) -> dict[str, str]:
    return {"key": key, "value": str(value), "source": source}


def enable(options: Mapping[str, Any]) -> tuple[Path, list[str]]:
    """Write options for all programs of this environment, in place of earlier ones.

    Returns the file, and the names of those that it does not set any more. Raises ValueError if a
    value is wrong, and OSError if the file can't be written. Then an earlier one is unchanged.
    """
    lines = [
        "# Options of numcodecs_bytes for all programs of this environment, as written by",
        "# `numcodecs-bytes enable`; `numcodecs-bytes disable` removes them.",
    ]
    for name, value in options.items():
        PARSERS[name](value)
        lines.append(f"{name} = {json.dumps(value)}")
    path = Path(sys.prefix) / FILE
    # Whoever can use the environment can read them, whatever the umask.
    for folder in reversed([parent for parent in path.parents if not parent.exists()]):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    try:
        dropped = [name for name in options_in(path) if name not in options]
    except (OSError, ValueError):  # it is missing, or damaged
        dropped = []
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_text("\n".join([*lines, ""]))
        unfinished.chmod(0o644)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path, dropped


def overriding(options: Mapping[str, Any]) -> str:
    """Return which of the options that `enable` has written are overridden, or ""."""
    found = []
    for name, value in options.items():
        first = next(configured(name), None)
        if first is None or first.value != value:
            found.append(name)
    if "pipeline" not in found and zarr.config.get("codec_pipeline.path") is not default_pipeline():
        found.append("codec_pipeline.path")
    return ", ".join(found)


def disable() -> Path | None:
    """Remove what `enable` wrote; return the file, or None if there is none."""
    path = Path(sys.prefix) / FILE
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return path
