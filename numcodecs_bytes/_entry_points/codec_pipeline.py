"""Entry point of zarr's codec pipelines: `BytesPipeline`, which users may choose.

zarr loads all pipelines when it opens its first array, before it looks up in its config which one
to use. If nobody has chosen one there, what this package's own option says is used, for good.

With an unsupported version of zarr this is a placeholder, and zarr tells users who chose our
pipeline that it does not exist.
"""

import contextlib
import warnings
from typing import Any

import zarr

from numcodecs_bytes._entry_points import now_and_after_scopes, step_aside

__all__ = ["BytesPipeline"]


class NoPipeline:
    """A placeholder for zarr to register under a name that nobody chooses."""


def _set_default() -> None:
    """Make the configured pipeline the default, or BytesPipeline if it is to write in place."""
    from numcodecs_bytes._options import PIPELINE_MODULE, PIPELINES  # noqa: PLC0415
    from numcodecs_bytes._settings import (  # noqa: PLC0415
        configured_pipeline,
        is_set_outside,
        is_write_in_place_configured,
    )

    ours = f"{PIPELINE_MODULE}.{PIPELINES[0]}"
    try:
        path = configured_pipeline() or (ours if is_write_in_place_configured() else None)
    except ValueError:  # which our pipeline raises when an array is opened or written
        path = ours
    config: Any = zarr.config
    defaults = config.defaults[0]["codec_pipeline"]
    zarrs_own = defaults["path"]
    is_chosen = config.get("codec_pipeline.path") is not zarrs_own
    if path is None or (is_chosen and not is_set_outside("pipeline", "write_in_place")):
        return

    def replace_zarrs_own() -> None:
        # One that was chosen is a different object, even if the text is the same.
        chosen = config.get("codec_pipeline")
        if chosen["path"] is zarrs_own:
            chosen["path"] = path

    if is_chosen:  # by a scope that is open, perhaps
        now_and_after_scopes(replace_zarrs_own)
    else:
        replace_zarrs_own()
    defaults["path"] = path  # modified in place, because zarr.config.reset() restores the defaults


def _warn_of_unknown() -> None:
    """Warn of options that there are not; never raise."""
    from numcodecs_bytes._options import PARSERS  # noqa: PLC0415
    from numcodecs_bytes._settings import unknown_options  # noqa: PLC0415

    with contextlib.suppress(Warning, ValueError):  # of a file that is damaged, as above
        if unknown := unknown_options():
            warnings.warn(
                f"numcodecs_bytes ignores {', '.join(unknown)}: its options are "
                f"{', '.join(PARSERS)}",
                stacklevel=3,
            )


BytesPipeline: Any = NoPipeline
try:
    from numcodecs_bytes.zarr_pipeline import BytesPipeline

    _set_default()
    _warn_of_unknown()
except Exception as error:  # noqa: BLE001 # zarr must keep working without us
    step_aside("codec pipelines", error)
