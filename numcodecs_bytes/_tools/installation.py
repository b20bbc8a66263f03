"""Which parts of this package are in use in this environment, and what sets that."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numcodecs.registry
import zarr
import zarr.dtype
import zarr.registry

from numcodecs_bytes._core.catch import value_or_error
from numcodecs_bytes._core.configuration import JSONObject
from numcodecs_bytes._core.dtypes import ML_DTYPES, why_missing
from numcodecs_bytes._tools.requirements import unsupported_versions
from numcodecs_bytes._zarr_api import defaults, options
from numcodecs_bytes._zarr_api.names import name_of_type
from numcodecs_bytes.codec import Bytes


def report() -> JSONObject:
    """Return which parts of the package are in use, why others are not, and what sets that."""
    pipeline, why_no_parts = _class_in_use(zarr.registry.get_pipeline_class)
    why_aside = defaults.why_aside.get("arrays")
    why_no_parts = why_aside or why_no_parts
    codec, why_no_codec = _class_in_use(lambda: zarr.registry.get_codec_class("bytes"))
    codec_key = "" if options.why_section_is_wrong() else "codecs.bytes"  # else it is said twice
    filter_, why_no_filter = _class_in_use(_numcodecs_class)
    why_no_types = _why_no_data_types()
    why_no_ml_dtypes = why_missing([row.name for row in ML_DTYPES]) or why_no_types
    values = {option.key: _value_of(option) for option in options.OPTIONS}
    in_place = options.write_in_place.key
    mode, wrong_mode = values.pop(in_place)
    why_left = "arrays are left to zarr alone" if why_aside else why_no_parts  # it is said once
    if mode and why_left:
        wrong_mode = f"{in_place} is {mode!r}{options.set_by(in_place)}, but {why_left}"
    if mode == "require" and not wrong_mode:  # "on" does not say so
        values[in_place] = mode, ""
    unsupported = unsupported_versions()
    by_default = "" if options.origin_of(in_place) else ", as by default"
    why_no_writes = wrong_mode or ("" if mode else f"{in_place} is False{by_default}")
    rows = [
        ("partial reads", pipeline, why_no_parts, "" if why_aside else "codec_pipeline.path"),
        ("writes in place", pipeline, why_no_writes, "" if mode and why_left else in_place),
        ('codec "bytes" of Zarr v3', codec, why_no_codec, codec_key),
        ('filter "bytes" of Zarr v2', filter_, explain_other_codec() or why_no_filter, ""),
        ("data types r24, complex_float32, ...", None, why_no_types, ""),
        ("data types bfloat16, int4, ...", None, why_no_ml_dtypes, ""),
    ]
    for key in (unknown := options.unknown_keys()):
        error = f"{key}{options.did_you_mean(key)} has no effect"
        if not options.is_misspelt_variable(key):
            error += f": it is not an option ({', '.join(options.NAMES)})"
        values[key] = None, error
    is_wrong = wrong_mode or any(error for _, error in values.values())
    return {
        "is_in_use": not any((why_no_parts, why_no_codec, why_no_filter, is_wrong, unsupported)),
        "versions": {n: version(n) for n in ("numcodecs-bytes", "zarr", "numcodecs", "numpy")},
        "newest_tested_zarr": ".".join(map(str, defaults.NEWEST_MINOR)),
        "parts": [
            {"name": name, "class": kind, "why_not": why_not, "set_by": options.origin_of(key)}
            for name, kind, why_not, key in rows
        ],
        "options": list(_reported_options(values)),
        "unknown_options": unknown,
        "unsupported_versions": unsupported,
    }


def _reported_options(values: dict[str, tuple[object, str]]) -> Iterator[JSONObject]:
    """Yield the value of each option, its error, and what sets it, unless it is the default."""
    for key, (value, error) in values.items():
        set_by = options.origin_of(key)
        if error or set_by:
            yield {"key": key, "value": str(value), "error": error, "set_by": set_by}


def _why_no_data_types() -> str:
    """Return how to load our data types, or "": zarr 3.4.1 and newer load them by themselves."""
    r8 = value_or_error(zarr.dtype.data_type_registry.match_json, "r8", zarr_format=3)
    them = "them" if hasattr(zarr.dtype, "Struct") else "them (and struct)"
    how = f"this zarr does not load {them}; import numcodecs_bytes.zarr_data_types first"
    return how if isinstance(r8, Exception) else ""


def lines_of(document: JSONObject) -> Iterator[str]:
    """Yield the lines of a report."""
    package, *others = (" ".join(each) for each in document["versions"].items())
    newest = document["newest_tested_zarr"]
    yield f"{package} with {', '.join(others)}; the newest zarr that was tested is {newest}"
    yield from document["unsupported_versions"]
    for row in document["parts"]:
        yield f"{row['name']}: {'off: ' + row['why_not'] if row['why_not'] else 'on'}{_set_by(row)}"
    for option in document["options"]:
        yield (option["error"] or f"{option['key']} is {option['value']}") + _set_by(option)


def _set_by(row: JSONObject) -> str:
    return f", set by {row['set_by']}" if row["set_by"] else ""


def explain_other_codec() -> str:
    """Return which other class numcodecs uses and how to fix that, or ""."""
    kind = value_or_error(_numcodecs_class)
    if isinstance(kind, Exception) or issubclass(kind, Bytes):
        return ""
    return (
        f'numcodecs uses {name_of_type(kind)} for "bytes", because a program or a package '
        f"registered it in place of {name_of_type(Bytes)}; to use ours, call "
        "numcodecs.register_codec(numcodecs_bytes.Bytes) after that"
    )


def explain_wrong_setting(error: Exception) -> str:
    """Return which setting made zarr raise an error, or ""."""
    if why := options.why_section_is_wrong():
        return f" because of a setting: {why}"
    keys = ["codec_pipeline.path", *(f"codecs.{name}" for name in zarr.config.get("codecs", {}))]
    for key in keys:
        value = zarr.config.get(key, None)
        if repr(value) in str(error) and options.origin_of(key):
            wrong = f"{key} is {value!r}{options.set_by(key)}"
            return f" because of a setting: {wrong}, which is no class that zarr knows: correct it"
    return ""


def _numcodecs_class() -> type:
    """Return the class that numcodecs uses, without making an instance if it is registered."""
    registered: Any = numcodecs.registry.codec_registry.get("bytes")
    return registered or type(numcodecs.registry.get_codec({"id": "bytes"}))


def _value_of(option: options.Option[Any]) -> tuple[object, str]:
    """Return the value of an option, and what is wrong with it, or ""."""
    try:
        value = option()
    except ValueError as error:
        return None, str(error).removesuffix(options.set_by(option.key))
    if option is options.stores_with_ranges and (missing := options.classes_not_installed()):
        ignored = f"ignored, because their packages are not installed: {', '.join(missing)}"
        return f"{value} ({ignored})", ""
    return value, ""


def _class_in_use(find_class: Callable[[], type]) -> tuple[str | None, str]:
    """Return the name of a class, and why it is not ours, or ""."""
    kind = value_or_error(find_class)
    if isinstance(kind, Exception):  # a setting is wrong
        return None, options.why_section_is_wrong() or f"{type(kind).__name__}: {kind}".rstrip(".")
    name = name_of_type(kind)
    if name.startswith("numcodecs_bytes."):
        return name, ""
    ours = "numcodecs_bytes.zarr_pipeline.FusedBytesPipeline is the same with partial reads"
    hint = f" ({ours})" if name == "zarr.core.codec_pipeline.FusedCodecPipeline" else ""
    return name, f"zarr uses {name}{hint}"
