"""What zarr loads through its entry points: BytesCodec, made the default choice for "bytes".

zarr loads the entry points of a codec when it first needs that codec, before it reads from its
config which class to use. This runs in every zarr program of the environment, so it never fails:
on a zarr that is not the one we know it steps aside, with one warning, for zarr's own codec.
"""

import contextlib
import gc
import warnings
import weakref

import zarr
import zarr.codecs

__all__ = ["BytesCodec"]

_CODEC_PATH = "numcodecs_bytes.zarr.BytesCodec"
_OVERRIDDEN = ("evolve_from_array_spec", "_decode_sync", "_encode_sync")


def _make_default() -> None:
    """Make BytesCodec the default for "bytes", and for "endian" wherever "bytes" is ours."""
    config = zarr.config
    defaults = config.defaults[0]["codecs"]
    zarrs_own = dict(defaults)
    # What may fail comes first: a default that zarr does not find would break all arrays.
    from_outside = config.collect().get("codecs", {}).get("bytes", _CODEC_PATH)
    config_set = type(config.set({}))
    open_scopes = [s for s in gc.get_referrers(config_set) if type(s) is config_set]

    def replace_zarrs_own() -> None:
        # What a user chose is another object than the default, even where it is the same text.
        chosen = config.get("codecs", {})
        if chosen.get("bytes") is zarrs_own["bytes"]:
            chosen["bytes"] = _CODEC_PATH
        if chosen.get("bytes") == _CODEC_PATH and chosen.get("endian") is zarrs_own["endian"]:
            chosen["endian"] = _CODEC_PATH

    replace_zarrs_own()
    # In place: zarr.config.reset() lets the oldest of its defaults win.
    defaults["bytes"] = _CODEC_PATH
    if from_outside == _CODEC_PATH:
        defaults["endian"] = _CODEC_PATH
    # A `with config.set(...)` that is open now puts zarr's own default back when it ends.
    for scope in open_scopes:
        weakref.finalize(scope, replace_zarrs_own).atexit = False


def _check_zarr() -> None:
    """Raise where zarr would not call, or not be content with, what BytesCodec overrides."""
    missing = [name for name in _OVERRIDDEN if not hasattr(zarr.codecs.BytesCodec, name)]
    if missing or not zarr.codecs.BytesCodec.is_fixed_size:
        raise AttributeError(f"zarr.codecs.BytesCodec lacks {missing or 'is_fixed_size'}")


try:
    _check_zarr()
    from numcodecs_bytes.zarr import BytesCodec

    _make_default()
except Exception as error:  # noqa: BLE001 # whatever it is, zarr must go on without us
    BytesCodec = zarr.codecs.BytesCodec  # type: ignore[misc,assignment]
    with contextlib.suppress(Warning):
        warnings.warn(
            f"numcodecs_bytes leaves zarr's own bytes codec in charge, not knowing this zarr "
            f"({zarr.__version__}) or its config ({type(error).__name__}: {error}); look for a "
            "newer numcodecs_bytes, or mend the config",
            RuntimeWarning,
            stacklevel=2,
        )
