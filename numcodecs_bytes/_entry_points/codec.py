"""Entry points of zarr's codecs: `BytesCodec`, which becomes zarr's default for "bytes".

zarr loads the entry points of a codec when it first needs that codec, before it looks up in its
config which class to use.
"""

import zarr
import zarr.codecs

from numcodecs_bytes._entry_points import now_and_after_scopes, step_aside

__all__ = ["BytesCodec"]

_CODEC_PATH = "numcodecs_bytes.zarr.BytesCodec"
_OVERRIDDEN = ("evolve_from_array_spec", "_decode_sync", "_encode_sync")


def _make_default() -> None:
    """Make BytesCodec the default for "bytes", and for "endian" wherever "bytes" uses it."""
    config = zarr.config
    defaults = config.defaults[0]["codecs"]
    zarrs_own = dict(defaults)
    # Whatever can fail comes first: a default that zarr can't import would break all arrays.
    from_outside = config.collect().get("codecs", {}).get("bytes", _CODEC_PATH)

    def replace_zarrs_own() -> None:
        # A value that the user set is a different object, even if the text is the same.
        chosen = config.get("codecs", {})
        if chosen.get("bytes") is zarrs_own["bytes"]:
            chosen["bytes"] = _CODEC_PATH
        if chosen.get("bytes") == _CODEC_PATH and chosen.get("endian") is zarrs_own["endian"]:
            chosen["endian"] = _CODEC_PATH

    now_and_after_scopes(replace_zarrs_own)
    # Modified in place, because in zarr.config.reset() the oldest defaults win.
    defaults["bytes"] = _CODEC_PATH
    if from_outside == _CODEC_PATH:
        defaults["endian"] = _CODEC_PATH


def _check_zarr() -> None:
    """Raise AttributeError if zarr's codec lacks what BytesCodec overrides."""
    missing = [name for name in _OVERRIDDEN if not hasattr(zarr.codecs.BytesCodec, name)]
    if missing or not zarr.codecs.BytesCodec.is_fixed_size:
        raise AttributeError(f"zarr.codecs.BytesCodec lacks {missing or 'is_fixed_size'}")


try:
    _check_zarr()
    from numcodecs_bytes.zarr import BytesCodec

    _make_default()
except Exception as error:  # noqa: BLE001 # zarr must keep working without us
    BytesCodec = zarr.codecs.BytesCodec  # type: ignore[misc,assignment]
    step_aside("bytes codec, and leaves zarr's own in charge", error)
