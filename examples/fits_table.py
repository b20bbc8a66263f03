"""Read rows of a FITS table in place, fetching only their bytes.

A binary table is an array of packed big-endian records. In Zarr v3, that is the data type `struct`
with the codec `bytes` and `endian: big`. astropy writes the file and says at which offset the table
begins; a reference in kerchunk's format tells zarr. No data are copied. VirtualiZarr's parser
does not read tables; for images, see docs/recipes.md.

Installing numcodecs_bytes is enough to read in part. It is imported below to count what is fetched,
to describe the table, and to give zarr 3.1.6 the data type `struct`.

Needs ``pip install ".[examples]"``.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from astropy.io import fits
from zarr.storage import FsspecStore

import numcodecs_bytes
from numcodecs_bytes.zarr_data_types import parse_numpy_descr

NUM_STARS = 400_000


def write_fits(path: Path) -> None:
    """Write a catalogue of stars."""
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
    fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU(stars, name="STARS")]).writeto(path)


def refer_to(table: fits.BinTableHDU, path: Path) -> dict[str, Any]:
    """Return references to a table, as an array of one chunk."""
    data_type = parse_numpy_descr(table.columns.dtype.descr)
    num_rows = table.header["NAXIS2"]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [num_rows],
        "data_type": data_type.to_json(zarr_format=3),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [num_rows]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": data_type.to_json_scalar(data_type.default_scalar(), zarr_format=3),
        "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
    }
    num_bytes = data_type.to_native_dtype().itemsize * num_rows
    return {
        "zarr.json": json.dumps(document),
        "c/0": [path.as_uri(), table.fileinfo()["datLoc"], num_bytes],
    }


def open_references(references: dict[str, Any]) -> zarr.Array:
    """Return the array that references describe."""
    options = {"fo": references, "remote_protocol": "file", "asynchronous": True}
    store = FsspecStore.from_url("reference://", storage_options=options, read_only=True)
    return zarr.open_array(store, mode="r", zarr_format=3)


def main() -> None:
    """Read rows through zarr and through astropy; print what was fetched."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stars.fits")
        write_fits(path)
        with fits.open(path) as file:
            file.info()
            stars = open_references(refer_to(file["STARS"], path))
            expected = np.array(file["STARS"].data)

        print(f"\nread by {zarr.config.get('codec_pipeline.path')}")
        print(f"{'selection':26}{'bytes in all':>12}{'selected':>10}{'fetched':>10}")
        for selected, selection in (
            ("a star", np.s_[250_000]),
            ("ten stars", np.s_[1000:1010]),
            ("every 100,000th star", np.s_[7::100_000]),
        ):
            with numcodecs_bytes.trace() as traced:
                values = stars[selection]
            assert np.array_equal(values, expected[selection])
            total = traced.report()["total"]
            # What is selected, plus short gaps.
            assert total["bytes_fetched"] <= stars.nbytes // 4
            print(
                f"{selected:26}{stars.nbytes:>12}{total['bytes_selected']:>10}"
                f"{total['bytes_fetched']:>10}"
            )
        star = stars[250_000]
        print("\nstar 250,000:", dict(zip(star.dtype.names, star.tolist(), strict=True)))


if __name__ == "__main__":
    main()
