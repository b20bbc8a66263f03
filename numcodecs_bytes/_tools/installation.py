"""Which classes numcodecs and zarr use in this environment, and what sets that, and options."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numcodecs.registry
import zarr
import zarr.dtype
import zarr.registry

from numcodecs_bytes import _options
from numcodecs_bytes.codec import Bytes

OURS = ("numcodecs_bytes.codec.Bytes", "numcodecs_bytes.zarr.BytesCodec")
_PIPELINES = "numcodecs_bytes.zarr_pipeline."  # the module of ours
_FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"


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
        "why_no_parts": _why_no_parts(answers[-1]),
        "writes_in_place": _writes_in_place(answers[-1]),
        "other_codec": explain_other_codec(),
        "options": _list_options(),
        "unknown_options": _options.unknown_keys(),
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


def _why_no_parts(pipeline: Mapping[str, Any]) -> str:
    """Return what prevents partial reads of arrays that are opened, or ""."""
    path = pipeline["class"]
    if path is None:
        return str(pipeline["error"])
    if path.startswith(_PIPELINES):
        return ""
    hint = f"; {_PIPELINES}FusedBytesPipeline is the same with partial reads"
    return f"the codec pipeline is {path}{hint if path == _FUSED else ''}"


def _writes_in_place(pipeline: Mapping[str, Any]) -> str | None:
    """Return whether parts of chunks are written in place, and if not why; None if not asked for.

    Zarr's config is looked at, not an array: one that is open may have another pipeline.
    """
    try:
        if not _options.write_in_place():
            return None
    except ValueError as error:
        return f"no: {error}"
    why_not = _why_no_parts(pipeline)
    return f"no: {why_not}" if why_not else "yes"


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


def _list_options() -> list[dict[str, str]]:
    """Return the options that are set, what sets them, and what is wrong with them."""
    found = []
    for name in _options.NAMES:
        key = f"numcodecs_bytes.{name}"
        found += [*_overrides(key)][-1:]
        try:
            getattr(_options, name)()
        except ValueError as error:
            found[-1]["error"] = str(error)
    return found


def _overrides(key: str) -> Iterator[dict[str, str]]:
    """Yield the files, variables and calls that set a key of zarr's config; the last one wins."""
    config, names = zarr.config, key.split(".")

    def setting(collected: Any) -> Any:
        for name in names:  # in YAML, perhaps with hyphens
            is_section = isinstance(collected, Mapping)
            hyphened = name.replace("_", "-")
            collected = collected.get(name, collected.get(hyphened)) if is_section else None
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
