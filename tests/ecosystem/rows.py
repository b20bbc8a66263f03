"""How many bytes a row takes through the packages that people use, for a process of its own.

    python rows.py FOLDER [alone]

Prints, as JSON, how many bytes this process reads from files for one row of 2,048 bytes in a chunk
of 16 MiB, for each way to read it. With `alone`, zarr does not find numcodecs_bytes.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from programs import leave_zarr_alone, virtual_store

IMAGE = np.arange(8192 * 512, dtype=">f4").reshape(8192, 512)
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
Ways = Iterator[tuple[str, Callable[[int], Any]]]


def written(folder: Path) -> dict[str, Path]:
    """Write the image as each kind of file."""
    import astropy.io.fits
    import h5py
    import tifffile
    from scipy.io import netcdf_file

    paths = {kind: folder / f"image.{kind}" for kind in ("nc", "h5", "fits", "tif")}
    with netcdf_file(paths["nc"], "w") as file:
        for name, size in zip("yx", IMAGE.shape, strict=True):
            file.createDimension(name, size)
        file.createVariable("image", ">f4", tuple("yx"))[:] = IMAGE
    with h5py.File(paths["h5"], "w") as file:
        file["image"] = IMAGE
    astropy.io.fits.PrimaryHDU(IMAGE).writeto(paths["fits"])
    tifffile.imwrite(paths["tif"], IMAGE.astype("<f4"), rowsperstrip=8192)
    return paths


def of_zarr(folder: Path) -> Ways:
    """An uncompressed array in a folder, through xarray and Dask, too."""
    import dask.array
    import xarray
    import zarr

    settings = {"chunks": IMAGE.shape, "compressors": None, "dimension_names": ["y", "x"]}
    zarr.create_group(folder).create_array("image", data=IMAGE, serializer=BIG, **settings)
    array = zarr.open_array(folder / "image", mode="r")
    yield "zarr", lambda i: array[i]
    dataset = xarray.open_zarr(folder, consolidated=False, chunks=None)
    yield "xarray", lambda i: dataset["image"][i].to_numpy()
    rows = dask.array.from_zarr(str(folder / "image"), chunks=(1, 512))
    yield "Dask, tasks of a row", lambda i: rows[i].compute()
    sharded = zarr.create_array(
        folder / "shards", shape=IMAGE.shape, dtype="f4", chunks=(64, 512), shards=IMAGE.shape,
        compressors=None,
    )  # fmt: skip
    sharded[:] = IMAGE
    yield "zarr, shards", lambda i: sharded[i]


def of_virtualizarr(paths: dict[str, Path]) -> Ways:
    """Files read in place."""
    import zarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import FITSParser, HDFParser, KerchunkJSONParser, NetCDF3Parser

    for name, kind, parser in (
        ("VirtualiZarr, NetCDF-3", "nc", NetCDF3Parser()),
        ("VirtualiZarr, HDF5 (contiguous)", "h5", HDFParser()),
        ("VirtualiZarr, FITS", "fits", FITSParser()),
    ):
        store = virtual_store(paths[kind], parser)
        (array,) = zarr.open_group(store, mode="r", zarr_format=3).array_values()
        yield name, lambda i, a=array: a[i]
    references = paths["nc"].with_suffix(".json")
    virtual = virtual_store(paths["nc"], NetCDF3Parser()).to_virtual_dataset(loadable_variables=[])
    virtual.vz.to_kerchunk(str(references), format="json")
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    store = KerchunkJSONParser()(url=references.as_uri(), registry=registry)
    again = zarr.open_group(store, mode="r", zarr_format=3)["image"]
    yield "VirtualiZarr, kerchunk references to NetCDF-3", lambda i: again[i]


def of_tiff(path: Path) -> Ways:
    """A TIFF file of one strip."""
    import tifffile
    import zarr
    from virtual_tiff import VirtualTIFF

    store = virtual_store(path, VirtualTIFF(ifd=0))
    (array,) = zarr.open_group(store, mode="r", zarr_format=3).array_values()
    yield "virtual-tiff", lambda i: array[i]
    strips = zarr.open_array(tifffile.imread(path, aszarr=True), mode="r")
    yield "tifffile, aszarr", lambda i: strips[i]


def of_icechunk(folder: Path, paths: dict[str, Path]) -> Ways:
    """Repositories with chunks of their own, and with virtual ones."""
    import icechunk
    import zarr
    from virtualizarr.parsers import HDFParser, NetCDF3Parser

    config = icechunk.RepositoryConfig.default()
    prefix = f"{folder.as_uri()}/"
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    for name, kind, parser in (
        ("Icechunk, chunks of its own", "", None),
        ("Icechunk, virtual NetCDF-3", "nc", NetCDF3Parser()),
        ("Icechunk, virtual HDF5 (contiguous)", "h5", HDFParser()),
    ):
        repository = icechunk.Repository.create(
            icechunk.local_filesystem_storage(str(folder / f"icechunk {kind}")),
            config,
            authorize_virtual_chunk_access={prefix: None},
        )
        session = repository.writable_session("main")
        if kind:
            virtual = virtual_store(paths[kind], parser).to_virtual_dataset(loadable_variables=[])
            virtual.vz.to_icechunk(session.store)
        else:
            group = zarr.create_group(session.store)
            settings = {"chunks": IMAGE.shape, "serializer": BIG, "compressors": None}
            group.create_array("image", data=IMAGE, **settings)
        session.commit("written")
        array = zarr.open_group(repository.readonly_session("main").store, mode="r")["image"]
        yield name, lambda i, a=array: a[i]


def of_other_formats(folder: Path) -> Ways:
    """An image of OME-Zarr, a matrix of AnnData."""
    import anndata
    import zarr
    from ome_zarr.format import FormatV05
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    from ome_zarr.writer import write_image

    anndata._io.zarr.find_spec = lambda _name: None  # it would read with zarrs
    path = folder / "image.zarr"
    location = parse_url(str(path), mode="w", fmt=FormatV05())
    write_image(
        IMAGE.astype("f4"),
        zarr.open_group(location.store, mode="r+"),
        axes="yx",
        scaler=None,
        storage_options={"chunks": IMAGE.shape, "compressors": None},
        fmt=FormatV05(),
    )
    (node,) = Reader(parse_url(str(path)))()
    yield "ome-zarr", lambda i: node.data[0][i].compute()
    anndata.settings.zarr_write_format = 3
    for name, shards in (("AnnData, not sharded", False), ("AnnData as it comes", True)):
        anndata.settings.auto_shard_zarr_v3 = shards
        path = folder / f"{shards}.zarr"
        anndata.io.write_elem(
            zarr.open_group(path, mode="w", zarr_format=3),
            "X",
            IMAGE.astype("f4"),
            dataset_kwargs={"compressors": None} | ({} if shards else {"chunks": IMAGE.shape}),
        )
        cells = zarr.open_group(path, mode="r")["X"]
        yield name, lambda i, a=cells: a[i]


def bytes_read() -> int:
    """Return how many bytes this process has read from files."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == "rchar":
            return int(value)
    raise RuntimeError("no rchar in /proc/self/io")


def main(folder: Path, *modes: str) -> None:
    if modes == ("alone",):
        leave_zarr_alone()
    paths = written(folder)
    found = {}
    for ways in (
        of_zarr(folder / "zarr"),
        of_virtualizarr(paths),
        of_tiff(paths["tif"]),
        of_icechunk(folder, paths),
        of_other_formats(folder),
    ):
        for name, read in ways:
            read(7)  # what is loaded first
            before = bytes_read()
            row = np.asarray(read(4321)).reshape(-1)
            found[name] = bytes_read() - before
            if not np.array_equal(row, IMAGE[4321]):
                raise ValueError(f"{name}: another row")
    print(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), *sys.argv[2:])
