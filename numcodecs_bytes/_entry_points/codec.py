"""Entry points of zarr's codecs: `BytesCodec`, which becomes zarr's default for "bytes".

zarr loads the entry points of a codec when it first needs that codec, before it looks up in its
config which class to use.
"""

import zarr.codecs
import zarr.registry

from numcodecs_bytes._zarr_api.defaults import or_step_aside

__all__ = ["BytesCodec"]

BytesCodec: type = zarr.codecs.BytesCodec
with or_step_aside("arrays"):
    from numcodecs_bytes.zarr_codec import BytesCodec
if BytesCodec is zarr.codecs.BytesCodec:
    with or_step_aside("arrays"):  # zarr's config may name ours
        for name in ("bytes", "endian"):
            path = "numcodecs_bytes.zarr_codec.BytesCodec"
            zarr.registry.register_codec(name, BytesCodec, qualname=path)
