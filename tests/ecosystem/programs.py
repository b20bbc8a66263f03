"""Programs that use zarr through other packages, for a process of their own.

    python programs.py FOLDER PACKAGE [alone]

Reads arrays through a package and prints, as JSON, a digest of what each selection returns (or the
error), how many bytes this process reads from files for a row of each array, and which codec zarr
has. With `alone`, zarr does not find numcodecs_bytes.
"""

import hashlib
import importlib.metadata
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# What zarr and Dask call an array, or a function that returns one.
Arrays = Iterator[tuple[str, Any]]
IMAGE = np.arange(4096 * 512, dtype=">f4").reshape(4096, 512)
ROWS, COLUMNS = np.array([0, 4095, 2047]), np.array([0, 511, 256])
SELECTIONS: dict[str, Callable[[Any], Any]] = {
    "all": lambda array: array[...],
    "row": lambda array: array[5],
    "column": lambda array: array[:, 7],
    "box": lambda array: array[1365:2049, 170:257],
    "steps": lambda array: array[1::7, ::3],
    "last": lambda array: array[4095, 511],
    "points": lambda array: array.vindex[ROWS, COLUMNS],
    "mesh": lambda array: array.oindex[ROWS, COLUMNS],
}


def tifffile(folder: Path) -> Arrays:
    """TIFF files: strips, tiles, compressed, big-endian, and pyramids."""
    import tifffile
    import zarr
    from virtual_tiff import VirtualTIFF

    image = IMAGE.astype("<f4")
    kinds: dict[str, dict[str, Any]] = {
        "strip": {"rowsperstrip": len(IMAGE)},
        "tiles": {"tile": (32, 48)},
        "compressed": {"tile": (64, 64), "compression": "zlib", "predictor": True},
    }
    for (name, options), byte_order in itertools.product(kinds.items(), "<>"):
        path = folder / f"{name}-{'big' if byte_order == '>' else 'little'}.tif"
        tifffile.imwrite(path, image, byteorder=byte_order, **options)
        for chunk_mode in ("strile", "page"):
            store = tifffile.imread(path, aszarr=True, chunkmode=chunk_mode)
            yield f"{path.stem}, {chunk_mode}", zarr.open(store, mode="r")
        if name == "strip":
            store = virtual_store(path, VirtualTIFF(ifd=0))
            (array,) = zarr.open_group(store, mode="r", zarr_format=3).array_values()
            yield f"virtual-tiff, {path.stem}", array
    path = folder / "pyramid.tif"
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        writer.write(image, subifds=1, tile=(32, 32))
        writer.write(image[::2, ::2], subfiletype=1, tile=(32, 32))
    yield "pyramid", zarr.open(tifffile.imread(path, aszarr=True), mode="r")["0"]


def virtual_store(path: Path, parser: Any) -> Any:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return parser(url=path.as_uri(), registry=registry)


def virtualizarr(folder: Path) -> Arrays:
    """NetCDF-3, HDF5 and FITS files in place, and kerchunk's references to a file."""
    import astropy.io.fits
    import h5py
    import zarr
    from scipy.io import netcdf_file
    from virtualizarr.parsers import FITSParser, HDFParser, KerchunkJSONParser, NetCDF3Parser

    with netcdf_file(folder / "image.nc", "w") as file:
        for name, size in zip("yx", IMAGE.shape, strict=True):
            file.createDimension(name, size)
        file.createVariable("image", ">f4", tuple("yx"))[:] = IMAGE
    with h5py.File(folder / "image.h5", "w") as file:
        file["image"] = IMAGE  # contiguous
        file.create_dataset("compressed", data=IMAGE, chunks=(512, 512), compression="gzip")
    astropy.io.fits.PrimaryHDU(IMAGE).writeto(folder / "image.fits")
    for name, parser in {
        "image.nc": NetCDF3Parser(),
        "image.h5": HDFParser(),
        "image.fits": FITSParser(),
    }.items():
        store = virtual_store(folder / name, parser)
        for path, array in zarr.open_group(store, mode="r", zarr_format=3).arrays():
            yield f"{name}, {path}", array
        if name == "image.nc":
            references = folder / "references.json"
            virtual = store.to_virtual_dataset(loadable_variables=[])
            virtual.vz.to_kerchunk(str(references), format="json")
            again = virtual_store(references, KerchunkJSONParser())
            yield "references", zarr.open_group(again, mode="r", zarr_format=3)["image"]


def ome_zarr(folder: Path) -> Arrays:
    """Images as OME-Zarr, of both versions of the format."""
    import zarr
    from ome_zarr.format import FormatV04, FormatV05
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    from ome_zarr.writer import write_image

    versions = ((FormatV04(), "compressor"), (FormatV05(), "compressors"))
    for (form, compressor), compressed in itertools.product(versions, (False, True)):
        path = folder / f"{'compressed ' * compressed}{form.version}.zarr"
        options = {"chunks": IMAGE.shape} | ({} if compressed else {compressor: None})
        group = zarr.open_group(parse_url(str(path), mode="w", fmt=form).store, mode="r+")
        image = IMAGE.astype("f4")
        write_image(image, group, axes="yx", scaler=None, storage_options=options, fmt=form)
        (node,) = Reader(parse_url(str(path)))()
        yield path.stem, node.data[0]


def anndata(folder: Path) -> Arrays:
    """Tables of cells: dense, sparse and strings; written, read, lazily and backed."""
    import anndata
    import pandas as pd
    import scipy.sparse
    import zarr

    # It reads with zarrs where that is installed, which asks no codec of Python.
    anndata._io.zarr.find_spec = lambda _name: None
    kinds, names = pd.Categorical(list("abcd") * 1024), [f"cell {i}" for i in range(4096)]
    cells = anndata.AnnData(
        IMAGE.astype("f4"),
        obs=pd.DataFrame({"kind": kinds}, index=names),
        layers={
            "counts": scipy.sparse.random(4096, 512, 0.01, "csr", rng=np.random.default_rng(0))
        },
    )
    for zarr_format, compressor in ((2, "compressor"), (3, "compressors")):
        anndata.settings.zarr_write_format = zarr_format
        path = folder / f"{zarr_format}.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
        anndata.io.write_elem(group, "/", cells, dataset_kwargs={compressor: None})
        again = anndata.read_zarr(path)
        yield f"{zarr_format}: counts", again.layers["counts"].toarray
        yield f"{zarr_format}: kind", again.obs["kind"].cat.codes.to_numpy
        group = zarr.open_group(path, mode="r")
        yield f"{zarr_format}: lazily", group["X"]
        sparse = anndata.io.sparse_dataset(group["layers/counts"])
        yield f"{zarr_format}: some rows", lambda s=sparse: s[7:30].toarray()

    def pipeline() -> str:
        """Return the pipeline that it reads and writes whole tables with."""
        with anndata._io.zarr.fast_zarr_context():
            return zarr.config.get("codec_pipeline.path")

    yield "pipeline without zarrs", pipeline
    anndata._io.zarr.find_spec = lambda _name: True
    yield "pipeline with zarrs", pipeline


PROGRAMS = {
    "tifffile": tifffile,
    "virtualizarr": virtualizarr,
    "ome-zarr": ome_zarr,
    "anndata": anndata,
}


def digest(read: Callable[..., Any], *arguments: Any) -> str:
    """Return what tells an array from another one, or the error."""
    try:
        array = np.asarray(read(*arguments))
    except Exception as error:  # noqa: BLE001 # whatever it is, both are to have it
        return f"{type(error).__name__}: {error}"
    name = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    return f"{array.dtype} {array.shape} {name}"


def bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def main(folder: str, package: str, *modes: str) -> None:
    if modes == ("alone",):
        every = importlib.metadata.distributions
        importlib.metadata.distributions = lambda **context: (
            d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
        )
    import zarr.registry

    values, row_bytes = {}, {}
    for name, array in PROGRAMS[package](Path(folder)):
        if callable(array):
            values[name] = digest(array)
            continue
        for how, select in SELECTIONS.items():
            if how in ("points", "mesh") and not isinstance(array, zarr.Array):
                continue
            before = bytes_read()
            values[f"{name}: {how}"] = digest(select, array)
            if how == "row":  # after "all", which has loaded what is loaded once
                row_bytes[name] = bytes_read() - before
    codec = zarr.registry.get_codec_class("bytes").__module__
    print(json.dumps({"codec": codec, "values": values, "row_bytes": row_bytes}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
