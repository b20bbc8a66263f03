"""Entry point of zarr's codec pipelines: `BytesPipeline`, which users may choose.

zarr loads all pipelines when it opens its first array, before it looks up in its config which one
to use. Whoever asks for writes in place and has not chosen a pipeline gets ours, for good.

With an unsupported version of zarr this is a placeholder, and zarr tells users who chose our
pipeline that it does not exist.
"""

from typing import Any

import zarr

from numcodecs_bytes._entry_points import step_aside

__all__ = ["BytesPipeline"]


class NoPipeline:
    """A placeholder for zarr to register under a name that nobody chooses."""


def _make_default_of_writers() -> None:
    """Make BytesPipeline the default if writes in place are asked for."""
    from numcodecs_bytes._parts.settings import configured_write_in_place  # noqa: PLC0415
    from numcodecs_bytes._zarr_versions import has_default_pipeline  # noqa: PLC0415
    from numcodecs_bytes.zarr_pipeline import PIPELINE  # noqa: PLC0415

    try:
        is_wanted = configured_write_in_place()
    except ValueError:  # which our pipeline raises when something is written
        is_wanted = True
    if is_wanted and has_default_pipeline():
        # Modified in place, because zarr.config.reset() restores the defaults.
        config: Any = zarr.config
        config.defaults[0]["codec_pipeline"]["path"] = PIPELINE
        config.config["codec_pipeline"]["path"] = PIPELINE


BytesPipeline: Any = NoPipeline
try:
    from numcodecs_bytes.zarr_pipeline import BytesPipeline

    _make_default_of_writers()
except Exception as error:  # noqa: BLE001 # zarr must keep working without us
    step_aside("codec pipelines", error)
