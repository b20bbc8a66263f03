"""The codec into which zarr wraps those of a Zarr v2 array: ends when it has a public name.

It lies alone: where a zarr lacks it, pipelines step aside, and `SyncReader` lets zarr read.
"""

from zarr.codecs._v2 import V2Codec

__all__ = ["V2Codec"]
