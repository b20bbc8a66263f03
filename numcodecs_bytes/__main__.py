"""python -m numcodecs_bytes: who answers for "bytes" here, and why."""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numcodecs.registry
import zarr
import zarr.dtype
import zarr.registry

OURS = ("numcodecs_bytes.codec.Bytes", "numcodecs_bytes.zarr.BytesCodec")


def report() -> dict[str, Any]:
    """Return who answers for "bytes" in numcodecs and zarr, and which settings override it."""
    answers = [
        _answer("numcodecs", "bytes", lambda: type(numcodecs.registry.get_codec({"id": "bytes"}))),
        _answer("zarr", "bytes", lambda: zarr.registry.get_codec_class("bytes")),
        _answer("zarr", "endian", lambda: zarr.registry.get_codec_class("endian")),
    ]
    return {
        "picked_up": all(a["class"] in OURS for a in answers if a["name"] == "bytes"),
        "versions": {
            name: version(name) for name in ("numcodecs-bytes", "numcodecs", "zarr", "numpy")
        },
        "answers": answers,
        "overrides": [*_overrides("bytes"), *_overrides("endian")],
        "finds_data_types": _finds_data_types(),
    }


def _finds_data_types() -> bool:
    """Whether zarr finds the types of zarr_data_types by itself, as it does since 3.4.1."""
    try:
        zarr.dtype.data_type_registry.match_json("r8", zarr_format=3)
    except ValueError:
        return False
    return True


def _answer(host: str, name: str, find_class: Callable[[], type]) -> dict[str, Any]:
    answer = {"host": host, "name": name, "class": None, "file": None, "error": None}
    try:
        found = find_class()
    except Exception as error:  # noqa: BLE001 # what a wrong setting leads to is for the host to say
        return answer | {"error": f"{type(error).__name__}: {error}"}
    return answer | {
        "class": f"{found.__module__}.{found.__qualname__}",
        "file": inspect.getfile(found),
    }


def _overrides(name: str) -> Iterator[dict[str, str]]:
    """Yield what sets `codecs.<name>` from outside, the last one being what counts."""
    config = zarr.config

    def setting(collected: dict[str, Any]) -> Any:
        codecs = collected.get("codecs", {})
        return codecs.get(name) if isinstance(codecs, dict) else codecs

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
        if variable.removeprefix(config.env_prefix).lower() in ("codecs", f"codecs__{name}")
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
            yield _override(name, value, source)
    current = setting(config.config)
    if name == "bytes" and current != value:
        yield _override(name, current, "zarr.config.set")


def _override(name: str, value: Any, source: str) -> dict[str, str]:
    return {"key": f"codecs.{name}", "value": str(value), "source": source}


def _format(found: dict[str, Any]) -> str:
    versions = found["versions"]
    hosts = " and ".join(f"{host} {versions[host]}" for host in ("numcodecs", "zarr"))
    if found["picked_up"]:
        lines = [f'"bytes" is picked up: {hosts} use numcodecs_bytes {versions["numcodecs-bytes"]}']
    else:
        missing = " and ".join(
            f"{a['host']} {versions[a['host']]}"
            for a in found["answers"]
            if a["name"] == "bytes" and a["class"] not in OURS
        )
        lines = [f'"bytes" is not picked up by {missing}']
    lines += [
        f"  {a['host']}, {a['name']}: {a['class'] or a['error']}"
        + (f" from {a['file']}" if a["file"] else "")
        for a in found["answers"]
    ]
    how = "found" if found["finds_data_types"] else "import numcodecs_bytes.zarr_data_types first"
    lines += [f"  zarr, data types r*, bfloat16, ...: {how}"]
    lines += [f"  {o['key']} is {o['value']!r} by {o['source']}" for o in found["overrides"]]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the report; return 1 where the package is not picked up."""
    parser = argparse.ArgumentParser(
        prog="python -m numcodecs_bytes",
        description='Say who answers for "bytes" in numcodecs and zarr; exit status 1 where it is '
        "not numcodecs_bytes.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    as_json = parser.parse_args(arguments).json
    found = report()
    print(json.dumps(found, indent=2) if as_json else _format(found))
    return 0 if found["picked_up"] else 1


if __name__ == "__main__":
    sys.exit(main())
