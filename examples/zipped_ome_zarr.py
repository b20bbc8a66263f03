"""Read parts of a zipped OME-Zarr image with shards, fetching only their bytes.

The image is one zip archive of uncompressed members, each a shard of 64 inner chunks. zarr alone
reads whole inner chunks. With this package, only the index of the shard, what is selected and short
gaps are read from the archive. Installing it is enough; it is imported below only to count.

Needs nothing but zarr.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import zarr
from zarr.storage import ZipStore

import numcodecs_bytes

SHAPE, SHARD, INNER = (4, 1024, 1024), (1, 1024, 1024), (1, 128, 128)


def write_image(path: Path, image: np.ndarray) -> None:
    """Write an image of channels x y x x, at one resolution."""
    axes = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space"} for n in "yx")]
    scale = {"type": "scale", "scale": [1, 0.5, 0.5]}
    levels = [{"path": "0", "coordinateTransformations": [scale]}]
    ome = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    settings = {"chunks": INNER, "shards": SHARD, "compressors": None}
    with ZipStore(path, mode="w") as store:  # which does not compress its members
        group = zarr.create_group(store, attributes={"ome": ome})
        group.create_array("0", data=image, dimension_names=list("cyx"), **settings)


def main() -> None:
    """Write an image; read parts of it, and print what was fetched."""
    image = np.random.default_rng(0).integers(0, 4096, SHAPE, dtype="u2")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image.ozx")
        write_image(path, image)
        with ZipStore(path, mode="r") as store:
            group = zarr.open_group(store, mode="r")
            array = group[group.attrs["ome"]["multiscales"][0]["datasets"][0]["path"]]
            print(f"read by {zarr.config.get('codec_pipeline.path')}\n")
            print(f"{'selection':28}{'bytes fetched':>14}{'zarr alone':>12}")
            for name, selection in (
                ("a row of a channel", np.s_[2, 700]),
                ("32 x 32 pixels of a channel", np.s_[1, 300:332, 500:532]),
                ("a pixel, all channels", np.s_[:, 512, 512]),
            ):
                with numcodecs_bytes.trace() as traced:
                    values = array[selection]
                assert np.array_equal(values, image[selection])
                total = traced.report()["total"]
                num_bytes, by_zarr = total["bytes_fetched"], total["bytes_zarr_alone"]
                # On Windows, zarr reads archives.
                assert num_bytes <= by_zarr // 3 or not hasattr(os, "pread")
                print(f"{name:28}{num_bytes:>14,}{by_zarr:>12,}")


if __name__ == "__main__":
    main()
