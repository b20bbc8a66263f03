"""Read a crop and a spectrum of an ENVI image in place, fetching only their bytes.

An ENVI image is a file of raw numbers, and a header of text with their type, shape and order. A
reference, in the format that kerchunk defined, tells zarr where the numbers are; `transpose` puts
the bands first, wherever the file has them. No data are copied. Installing numcodecs_bytes is
enough; it is imported below only to count.

Needs ``pip install ".[examples]"``.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import zarr
from zarr.storage import FsspecStore

import numcodecs_bytes

BANDS, LINES, SAMPLES = 50, 300, 400
DATA_TYPES = {1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 12: "u2", 13: "u4", 14: "i8", 15: "u8"}
# The axes in the file, of an array of bands x lines x samples.
ORDERS = {"bsq": [0, 1, 2], "bil": [1, 0, 2], "bip": [1, 2, 0]}
SELECTIONS = {"a crop": np.s_[20, 100:110, 50:60], "a spectrum": np.s_[:, 123, 234]}


def write_envi(path: Path, image: np.ndarray, interleave: str) -> None:
    """Write an image of big-endian int16, and its header."""
    path.write_bytes(image.transpose(ORDERS[interleave]).astype(">i2").tobytes())
    path.with_suffix(".hdr").write_text(
        f"ENVI\nsamples = {SAMPLES}\nlines = {LINES}\nbands = {BANDS}\nheader offset = 0\n"
        f"data type = 2\ninterleave = {interleave}\nbyte order = 1\n"
    )


def open_envi(path: Path) -> zarr.Array:
    """Return an image as an array of bands x lines x samples, in one chunk."""
    header = {}
    for line in path.with_suffix(".hdr").read_text().splitlines():
        key, _, value = line.partition("=")
        header[key.strip().lower()] = value.strip()
    shape = [int(header[name]) for name in ("bands", "lines", "samples")]
    dtype = np.dtype(DATA_TYPES[int(header["data type"])])
    order = ORDERS[header["interleave"].lower()]
    endian = "big" if header["byte order"] == "1" else "little"
    codecs = [
        {"name": "transpose", "configuration": {"order": order}},
        {"name": "bytes", "configuration": {"endian": endian}},
    ]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
    }
    num_bytes = dtype.itemsize * int(np.prod(shape))
    references = {
        "zarr.json": json.dumps(document),
        "c/0/0/0": [path.as_uri(), int(header["header offset"]), num_bytes],
    }
    options = {"fo": references, "remote_protocol": "file", "asynchronous": True}
    store = FsspecStore.from_url("reference://", storage_options=options, read_only=True)
    return zarr.open_array(store, mode="r", zarr_format=3)


def main() -> None:
    """Write images in each order; read parts of them, and print what was fetched."""
    image = np.random.default_rng(0).integers(0, 10_000, (BANDS, LINES, SAMPLES), "i2")
    print(f"{'interleave':12}{'selection':12}{'selected':>9}{'fetched':>9}  of {image.nbytes:,}")
    with tempfile.TemporaryDirectory() as folder:
        for interleave in ORDERS:
            path = Path(folder, f"{interleave}.img")
            write_envi(path, image, interleave)
            array = open_envi(path)
            for name, selection in SELECTIONS.items():
                with numcodecs_bytes.trace() as traced:
                    values = array[selection]
                assert np.array_equal(values, image[selection])
                total = traced.report()["total"]
                # What is selected, plus short gaps.
                selected, fetched = total["bytes_selected"], total["bytes_fetched"]
                assert fetched <= image.nbytes // 4
                print(f"{interleave:12}{name:12}{selected:>9,}{fetched:>9,}")
    print(f"\nread by {zarr.config.get('codec_pipeline.path')}")


if __name__ == "__main__":
    main()
