"""The options of this package, and the values that they accept: `set_options`.

This module does not import zarr, because importing numcodecs must stay quick. Environment variables
and files are read in ``_settings.py``.
"""

import importlib
import numbers
from collections.abc import Callable
from typing import Any, Self

PIPELINES = ("BytesPipeline", "FusedBytesPipeline")
PIPELINE_MODULE = "numcodecs_bytes.zarr_pipeline"


def parse_pipeline(name: Any) -> str:
    """Return zarr's path of `pipeline`, or raise ValueError."""
    import zarr  # noqa: PLC0415 # not by `import numcodecs_bytes`

    from numcodecs_bytes._zarr_versions import FusedCodecPipeline  # noqa: PLC0415

    if name not in PIPELINES:
        raise _wrong("pipeline", " or ".join(map(repr, PIPELINES)), name)
    if name == "FusedBytesPipeline" and FusedCodecPipeline is None:
        raise ValueError(f"FusedBytesPipeline needs zarr 3.3 or newer, this is {zarr.__version__}")
    return f"{PIPELINE_MODULE}.{name}"


def parse_gap_bytes(gap: Any) -> int:
    """Return `max_gap_bytes`, or raise ValueError."""
    if not isinstance(gap, numbers.Integral) or isinstance(gap, bool) or gap < 0:
        raise _wrong("max_gap_bytes", "a number of bytes, 0 or more", gap)
    return int(gap)


def parse_split_requests(splits: Any) -> bool:
    """Return `split_requests`, or raise ValueError."""
    if not isinstance(splits, int) or splits not in (0, 1):  # as in an environment variable
        raise _wrong("split_requests", "True or False", splits)
    return bool(splits)


def parse_stores_with_ranges(names: Any) -> list[str]:
    """Return `stores_with_ranges`, or raise ValueError."""
    names = [names] if isinstance(names, str) else names  # in an environment variable
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise _wrong(
            "stores_with_ranges", "a list of classes such as 'package.module.Store'", names
        )
    return list(names)


def parse_write_in_place(mode: Any) -> bool | str:
    """Return `write_in_place`, or raise ValueError."""
    if isinstance(mode, int) and mode in (0, 1):  # as in an environment variable
        return bool(mode)
    if not isinstance(mode, str) or mode != "require":
        raise _wrong("write_in_place", "True, False or 'require'", mode)
    return "require"


def _wrong(name: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"the option numcodecs_bytes.{name} must be {expected}, got {value!r}")


PARSERS: dict[str, Callable[[Any], Any]] = {
    "pipeline": parse_pipeline,
    "max_gap_bytes": parse_gap_bytes,
    "split_requests": parse_split_requests,
    "stores_with_ranges": parse_stores_with_ranges,
    "write_in_place": parse_write_in_place,
}
chosen: dict[str, Any] = {}  # what `set_options` has set, as parsed
_before: Any = None  # zarr's pipeline before `set_options` set one, None if nobody has chosen it


class set_options:  # noqa: N801 # used like a function, as in xarray
    """Set options of this package in this process, for good or inside a ``with``.

    They hold for all threads; leaving a ``with`` restores the earlier values. What is not set here
    is looked up in environment variables (``NUMCODECS_BYTES_MAX_GAP_BYTES``), then in zarr's config
    (``numcodecs_bytes.max_gap_bytes``), then in what ``numcodecs-bytes enable`` wrote.

    Parameters
    ----------
    pipeline : {'BytesPipeline', 'FusedBytesPipeline'}, optional
        The codec pipeline of arrays that are opened from now on: zarr's ``codec_pipeline.path``.
        Arrays that are open keep theirs.
    max_gap_bytes : int, optional
        Largest gap between two byte ranges that are fetched as one, in bytes.
    split_requests : bool, optional
        Whether a long part of an object is fetched with several requests.
    stores_with_ranges : list of str, optional
        Further classes of stores and file systems whose byte ranges are reliable.
    write_in_place : bool or 'require', optional
        Whether parts of chunks in local files are written in place, which a pipeline of this
        package does: ``BytesPipeline``, unless another one was chosen. With 'require', a part
        that can't be written in place raises an error.
    reset : bool
        Whether to undo earlier calls first.

    Raises
    ------
    ValueError
        If a value is wrong, or `write_in_place` is 'require' and the chosen pipeline is not one of
        this package. Then nothing is set.

    Examples
    --------
    >>> import numcodecs_bytes
    >>> with numcodecs_bytes.set_options(pipeline="BytesPipeline", write_in_place=True):
    ...     pass

    On all workers of a Dask cluster, also on those that start later:

    >>> from functools import partial
    >>> options = partial(numcodecs_bytes.set_options, pipeline="BytesPipeline")
    >>> client.register_worker_callbacks(options)  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0913 # one for each option
        self,
        *,
        pipeline: str | None = None,
        max_gap_bytes: int | None = None,
        split_requests: bool | None = None,
        stores_with_ranges: list[str] | None = None,
        write_in_place: bool | str | None = None,
        reset: bool = False,
    ) -> None:
        given = {
            "pipeline": pipeline,
            "max_gap_bytes": max_gap_bytes,
            "split_requests": split_requests,
            "stores_with_ranges": stores_with_ranges,
            "write_in_place": write_in_place,
        }
        parsed = {n: PARSERS[n](value) for n, value in given.items() if value is not None}
        if parsed.get("write_in_place") and pipeline is None:
            parsed |= _pipeline_that_writes(parsed["write_in_place"], is_reset=reset)
        forgotten = set(chosen) - set(parsed) if reset else set()
        self._before = {name: chosen.get(name) for name in (*parsed, *forgotten)}
        has_pipeline = "pipeline" in self._before
        self._scope = _set_pipeline(parsed.get("pipeline")) if has_pipeline else None
        for name in forgotten:
            del chosen[name]
        chosen.update(parsed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                chosen.pop(name, None)
            else:
                chosen[name] = value
        scope, self._scope = self._scope, None  # whose end may be waited for: see _entry_points
        if scope is not None:
            scope.__exit__(None, None, None)


def _pipeline_that_writes(mode: bool | str, *, is_reset: bool) -> dict[str, str]:  # noqa: FBT001
    """Return the pipeline to set so that parts are written in place; none if one is chosen.

    Raises ValueError if what is required has been made impossible by the choice of another one.
    """
    import zarr  # noqa: PLC0415 # not by `import numcodecs_bytes`

    from numcodecs_bytes._settings import configured_pipeline  # noqa: PLC0415
    from numcodecs_bytes._zarr_versions import default_pipeline  # noqa: PLC0415

    path = _pipeline_of_others() if is_reset else zarr.config.get("codec_pipeline.path")
    if path is default_pipeline():
        return {"pipeline": configured_pipeline() or f"{PIPELINE_MODULE}.{PIPELINES[0]}"}
    if mode == "require" and path not in [f"{PIPELINE_MODULE}.{ours}" for ours in PIPELINES]:
        raise ValueError(
            "write_in_place='require' needs a pipeline of numcodecs_bytes, but zarr's "
            f"codec_pipeline.path is {path}: add pipeline='BytesPipeline'"
        )
    return {}


def _pipeline_of_others() -> Any:
    """Return zarr's pipeline if `set_options` sets none."""
    import zarr  # noqa: PLC0415 # not by `import numcodecs_bytes`

    from numcodecs_bytes._zarr_versions import default_pipeline  # noqa: PLC0415

    current = zarr.config.get("codec_pipeline.path")
    if current is not chosen.get("pipeline"):
        return current
    return default_pipeline() if _before is None else _before  # which may have changed meanwhile


def _set_pipeline(path: str | None) -> Any:
    """Set zarr's pipeline, None to that of others; return what restores it."""
    import zarr  # noqa: PLC0415 # not by `import numcodecs_bytes`

    from numcodecs_bytes._zarr_versions import default_pipeline  # noqa: PLC0415

    global _before  # noqa: PLW0603
    others = _pipeline_of_others()
    _before = None if others is default_pipeline() else others
    if path is not None:
        importlib.import_module(PIPELINE_MODULE)  # programs that are frozen have no entry points
    return zarr.config.set({"codec_pipeline.path": path or others})
