"""Read rows of a FITS table and pixels of a FITS image in place, fetching only their bytes.

FITS is big-endian: a binary table is an array of packed big-endian records, in Zarr v3 the data
type `struct` and the codec `bytes` with `endian: big`. astropy writes the file and says where in it
the data lie; VirtualiZarr hands that place to zarr as a store. (VirtualiZarr's own FITSParser does
so for images, but declines tables.) Nothing of the file is copied.

The bytes codec is found by itself; the imports below count what is fetched, describe the table, and
give zarr 3.1.6 the data type `struct`.

Needs ``pip install ".[examples]"``.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.dtype
from astropy.io import fits
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.manifests import ChunkManifest, ManifestArray, ManifestGroup, ManifestStore
from zarr.core.metadata.v3 import ArrayV3Metadata

import numcodecs_bytes
from numcodecs_bytes.zarr_data_types import parse_numpy_descr

NUM_STARS = 400_000


def write_fits(path: Path) -> None:
    """Write an image of 1024 x 1024 pixels, and a catalogue of the stars in it."""
    rng = np.random.default_rng(2024)
    stars = np.zeros(
        NUM_STARS,
        [("id", "i8"), ("ra", "f8"), ("dec", "f8"), ("magnitude", "f4"), ("error", "f4")],
    )
    stars["id"] = np.arange(NUM_STARS)
    stars["ra"] = rng.uniform(10, 11, NUM_STARS)
    stars["dec"] = rng.uniform(-30, -29, NUM_STARS)
    stars["magnitude"] = rng.normal(18, 2, NUM_STARS)
    stars["error"] = rng.uniform(0.01, 0.2, NUM_STARS)
    image, _, _ = np.histogram2d(stars["dec"], stars["ra"], 1024)
    table = fits.BinTableHDU(stars, name="STARS")
    image = fits.ImageHDU(image.astype("f4"), name="SKY")
    fits.HDUList([fits.PrimaryHDU(), table, image]).writeto(path)


def refer_to(hdu: Any, path: Path) -> ManifestArray:
    """Return the data of a header-data unit as a virtual array of one chunk, where they lie."""
    if isinstance(hdu, fits.BinTableHDU):
        data_type = parse_numpy_descr(hdu.columns.dtype.descr)
        shape = [hdu.header["NAXIS2"]]
    else:
        data_type = zarr.dtype.parse_dtype(fits.BITPIX2DTYPE[hdu.header["BITPIX"]], zarr_format=3)
        shape = list(hdu.shape)
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type.to_json(zarr_format=3),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": data_type.to_json_scalar(data_type.default_scalar(), zarr_format=3),
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
    }
    num_bytes = data_type.to_native_dtype().itemsize * int(np.prod(shape))
    place = {"path": path.as_uri(), "offset": hdu.fileinfo()["datLoc"], "length": num_bytes}
    return ManifestArray(
        metadata=ArrayV3Metadata.from_dict(document),
        chunkmanifest=ChunkManifest({".".join("0" * len(shape)): place}),
    )


def main() -> None:
    """Read rows and pixels through zarr and through astropy; print what was fetched."""
    # Only needed before VirtualiZarr 2.8: chunks of its stores are read whole, unless it is named.
    names = ["virtualizarr.manifests.store.ManifestStore"]
    numcodecs_bytes.set_options(stores_with_ranges=names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "field.fits")
        write_fits(path)
        with fits.open(path) as file:
            file.info()
            arrays = {hdu.name: refer_to(hdu, path) for hdu in file if hdu.size}
            expected = {hdu.name: np.array(hdu.data) for hdu in file if hdu.size}
        registry = ObjectStoreRegistry({"file://": LocalStore()})
        store = ManifestStore(ManifestGroup(arrays=arrays), registry=registry)
        group = zarr.open_group(store, mode="r", zarr_format=3)

        print(f"\n{'selection':26}{'bytes in all':>12}{'fetched':>9}  read by")
        for selected, name, selection, num_bytes in (
            ("a star", "STARS", np.s_[250_000], 32),
            ("ten stars", "STARS", np.s_[1000:1010], 10 * 32),
            ("every 100,000th star", "STARS", np.s_[7::100_000], 4 * 32),
            ("a line of the image", "SKY", np.s_[512], 1024 * 4),
            # One request, for all that lies between the box's first and its last pixel.
            ("16 x 16 pixels", "SKY", np.s_[500:516, 500:516], (15 * 1024 + 16) * 4),
        ):
            array = group[name]
            with numcodecs_bytes.trace() as traced:
                values = array[selection]
            assert np.array_equal(values, expected[name][selection])
            assert traced.report()["total"]["bytes_fetched"] == num_bytes
            codec = type(array.metadata.codecs[0])
            assert f"{codec.__module__}.{codec.__qualname__}" == "numcodecs_bytes.zarr.BytesCodec"
            print(
                f"{selected:26}{array.nbytes:>12}{num_bytes:>9}  "
                f"{codec.__module__}.{codec.__qualname__}"
            )
        star = group["STARS"][250_000]
        print("\nstar 250,000:", dict(zip(star.dtype.names, star.tolist(), strict=True)))


if __name__ == "__main__":
    main()
