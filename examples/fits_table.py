"""Read rows of a FITS table and pixels of a FITS image in place, fetching only their bytes.

FITS is big-endian: a binary table is an array of packed big-endian records; in Zarr v3, that is the
data type `struct` and the codec `bytes` with `endian: big`. astropy writes the file and gives the
offsets of the data in it; references, in the format that kerchunk defined, pass them on to zarr.
FITS stores unsigned 16-bit images, such as those of cameras, as int16 from which `BZERO` = 32768
was subtracted: the codec `numcodecs.fixedscaleoffset` adds it to the pixels that are selected.
VirtualiZarr's parser describes images in this way, too, as float64; it declines tables. No data are
copied.

Installing numcodecs_bytes is enough to read in part; the imports below count what is fetched,
describe the table, and give zarr 3.1.6 the data type `struct`.

Needs ``pip install ".[examples]"``.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.dtype
from astropy.io import fits
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from virtualizarr.parsers import FITSParser
from zarr.storage import FsspecStore

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
    image = fits.PrimaryHDU(60_000 + image.astype("u2"))
    image.name = "SKY"
    fits.HDUList([image, fits.BinTableHDU(stars, name="STARS")]).writeto(path)


def refer_to(hdu: Any, path: Path) -> dict[str, Any]:
    """Return references to the data of a header-data unit, as an array of one chunk."""
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "big"}}]
    if isinstance(hdu, fits.BinTableHDU):
        data_type = parse_numpy_descr(hdu.columns.dtype.descr)
        shape = [hdu.header["NAXIS2"]]
    else:
        data_type = zarr.dtype.parse_dtype(fits.BITPIX2DTYPE[hdu.header["BITPIX"]], zarr_format=3)
        shape = list(hdu.shape)
        if hdu.header.get("BZERO") == 32768:
            data_type = zarr.dtype.parse_dtype("uint16", zarr_format=3)
            zero = {"offset": 32768, "scale": 1, "dtype": "<u2", "astype": ">i2"}
            codecs.insert(0, {"name": "numcodecs.fixedscaleoffset", "configuration": zero})
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type.to_json(zarr_format=3),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": data_type.to_json_scalar(data_type.default_scalar(), zarr_format=3),
        "codecs": codecs,
    }
    num_bytes = data_type.to_native_dtype().itemsize * int(np.prod(shape))
    chunk = "/".join(["c", *"0" * len(shape)])
    return {
        f"{hdu.name}/zarr.json": json.dumps(document),
        f"{hdu.name}/{chunk}": [path.as_uri(), hdu.fileinfo()["datLoc"], num_bytes],
    }


def open_references(references: dict[str, Any]) -> zarr.Group:
    """Return the group of the arrays that references describe."""
    group = {"zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"})}
    options = {"fo": group | references, "remote_protocol": "file", "asynchronous": True}
    store = FsspecStore.from_url("reference://", storage_options=options, read_only=True)
    return zarr.open_group(store, mode="r", zarr_format=3)


def main() -> None:
    """Read rows and pixels through zarr and through astropy; print what was fetched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "field.fits")
        write_fits(path)
        references: dict[str, Any] = {}
        with fits.open(path) as file:
            file.info()
            for hdu in file:
                if hdu.size:
                    references |= refer_to(hdu, path)
            expected = {hdu.name: np.array(hdu.data) for hdu in file if hdu.size}
        group = open_references(references)
        stars, sky = group["STARS"], group["SKY"]
        parser = FITSParser(skip_variables=["STARS"])
        store = parser(url=path.as_uri(), registry=ObjectStoreRegistry({"file://": LocalStore()}))
        parsed = zarr.open_group(store, mode="r", zarr_format=3)["SKY"]

        print(f"\nread by {zarr.config.get('codec_pipeline.path')}")
        print(f"{'selection':26}{'bytes in all':>12}{'selected':>10}{'fetched':>10}")
        for selected, array, selection in (
            ("a star", stars, np.s_[250_000]),
            ("ten stars", stars, np.s_[1000:1010]),
            ("every 100,000th star", stars, np.s_[7::100_000]),
            ("a line of the image", sky, np.s_[512]),
            # A single read, from the first to the last pixel of the box.
            ("16 x 16 pixels", sky, np.s_[500:516, 500:516]),
            ("by VirtualiZarr", parsed, np.s_[500:516, 500:516]),
        ):
            if array.dtype == "i2":  # by VirtualiZarr 2.5, whose data type ignores BZERO
                continue
            with numcodecs_bytes.trace() as traced:
                values = array[selection]
            assert np.array_equal(values, expected[array.basename][selection])
            total = traced.report()["total"]
            # What is selected, plus short gaps.
            assert total["bytes_fetched"] <= array.nbytes // 4
            print(
                f"{selected:26}{array.nbytes:>12}{total['bytes_selected']:>10}"
                f"{total['bytes_fetched']:>10}"
            )
        star = stars[250_000]
        print("\nstar 250,000:", dict(zip(star.dtype.names, star.tolist(), strict=True)))


if __name__ == "__main__":
    main()
