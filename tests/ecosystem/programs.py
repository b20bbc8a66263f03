"""Programs that use zarr through other packages, for a process of their own.

    python programs.py FOLDER PACKAGE [alone]

Runs the programs of a package and prints, as JSON, a digest of each array that they read, or the
error that they met, and which codec read them. With `alone`, zarr does not find numcodecs_bytes.
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

Results = Iterator[tuple[str, Callable[[], Any]]]
DATA = np.arange(150 * 200, dtype="u2").reshape(150, 200)
VOLUME = np.arange(24 * 60 * 80, dtype="f4").reshape(24, 60, 80) / 8


def selections(name: str, array: Any) -> Results:
    """Yield ways to read an array."""
    last = tuple(n - 1 for n in array.shape)
    half = tuple(slice(n // 3, n // 2 + 1) for n in array.shape)
    yield f"{name}: all", lambda: array[...]
    yield f"{name}: row", lambda: array[5]
    yield f"{name}: column", lambda: array[..., 7]
    yield f"{name}: box", lambda: array[half]
    yield f"{name}: steps", lambda: array[1::7, ::3]
    yield f"{name}: last", lambda: array[last]
    if hasattr(array, "vindex"):
        points = tuple(np.array([0, n - 1, n // 2]) for n in array.shape)
        yield f"{name}: points", lambda: array.vindex[points]
        yield f"{name}: mesh", lambda: array.oindex[points[:2]]


def tifffile(folder: Path) -> Results:
    """TIFF files as Zarr: strips, tiles, edge tiles, pyramids, compressed, big-endian."""
    import tifffile
    import zarr

    kinds: dict[str, dict[str, Any]] = {
        "strips": {"rowsperstrip": 16},
        "one strip": {},
        "tiles": {"tile": (32, 48)},
        "compressed": {"tile": (64, 64), "compression": "zlib"},
        "predictor": {"rowsperstrip": 20, "compression": "zlib", "predictor": True},
        "big-endian strips": {"byteorder": ">", "rowsperstrip": 16},
        "big-endian tiles": {"byteorder": ">", "tile": (32, 48)},
        "big-endian compressed": {"byteorder": ">", "compression": "zlib"},
    }
    for name, options in kinds.items():
        path = folder / f"{name}.tif"
        byteorder = options.pop("byteorder", "<")
        with tifffile.TiffWriter(path, byteorder=byteorder) as writer:
            writer.write(DATA, **options)
        for chunk_mode in ("strile", "page"):
            store = tifffile.imread(path, aszarr=True, chunkmode=chunk_mode)
            yield from selections(f"{name}, {chunk_mode}", zarr.open(store, mode="r"))
    path = folder / "stack.tif"
    tifffile.imwrite(path, VOLUME, byteorder=">", photometric="minisblack")
    yield from selections("stack", zarr.open(tifffile.imread(path, aszarr=True), mode="r"))
    path = folder / "pyramid.tif"
    with tifffile.TiffWriter(path, bigtiff=True) as writer:
        writer.write(DATA, subifds=2, tile=(32, 32))
        writer.write(DATA[::2, ::2], subfiletype=1, tile=(32, 32))
        writer.write(DATA[::4, ::4], subfiletype=1, tile=(32, 32))
    group = zarr.open(tifffile.imread(path, aszarr=True), mode="r")
    for level in ("0", "1", "2"):
        yield from selections(f"pyramid, level {level}", group[level])
    path = folder / "written.tif"
    tifffile.imwrite(path, np.zeros_like(DATA), tile=(32, 48), byteorder=">")

    def write() -> Any:
        array = zarr.open(tifffile.imread(path, mode="r+", aszarr=True), mode="r+")
        array[10:90, 30:150] = DATA[10:90, 30:150]
        return tifffile.imread(path)

    yield "written", write


def tiffslide(folder: Path) -> Results:
    """Regions of a slide in a tiled pyramid."""
    import tifffile
    import tiffslide

    image = np.stack([DATA % 251, DATA % 13, DATA % 97], axis=-1).astype("u1").repeat(4, 0)
    for name, compression in (("plain", None), ("compressed", "zlib")):
        path = folder / f"{name}.tif"
        with tifffile.TiffWriter(path, bigtiff=True) as writer:
            options = {"tile": (64, 64), "photometric": "rgb", "compression": compression}
            writer.write(image, subifds=1, resolution=(1, 1), resolutionunit=1, **options)
            writer.write(image[::2, ::2], subfiletype=1, **options)
        slide = tiffslide.TiffSlide(path)

        def read(slide: Any, box: Any) -> Any:
            return slide.read_region(*box, as_array=True)

        for level, size in itertools.product(range(slide.level_count), ((20, 30), (90, 70))):
            box = ((13, 27), level, size)
            yield f"{name}, {box}", lambda slide=slide, box=box: read(slide, box)
        yield f"{name}, thumbnail", lambda slide=slide: slide.get_thumbnail((64, 64))


def netcdf3(folder: Path) -> Path:
    from scipy.io import netcdf_file

    path = folder / "volume.nc"
    with netcdf_file(path, "w") as file:
        for name, size in zip("tyx", VOLUME.shape, strict=True):
            file.createDimension(name, size)
        file.createVariable("volume", ">f4", tuple("tyx"))[:] = VOLUME
    return path


def hdf5(folder: Path) -> Path:
    import h5py

    path = folder / "volume.h5"
    with h5py.File(path, "w") as file:
        file["volume"] = VOLUME.astype(">f4")  # contiguous
        file.create_dataset("chunked", data=VOLUME, chunks=(5, 60, 80))
        file.create_dataset("compressed", data=VOLUME, chunks=(5, 60, 80), compression="gzip")
    return path


def virtual_store(path: Path, parser: Any) -> Any:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    return parser(url=path.as_uri(), registry=registry)


def virtualizarr(folder: Path) -> Results:
    """NetCDF-3 and HDF5 files in place, and references to them."""
    import xarray
    import zarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser, KerchunkJSONParser, NetCDF3Parser

    for path, parser in ((netcdf3(folder), NetCDF3Parser()), (hdf5(folder), HDFParser())):
        store = virtual_store(path, parser)
        group = zarr.open_group(store, mode="r", zarr_format=3)
        for name in sorted(group.array_keys()):
            yield from selections(f"{path.name}, {name}", group[name])
        dataset = xarray.open_zarr(store, consolidated=False, zarr_format=3, chunks=None)
        yield f"{path.name}, xarray", lambda d=dataset: d["volume"][3:9, 5, ::7].to_numpy()
        references = path.with_suffix(".json")
        virtual = store.to_virtual_dataset(loadable_variables=[])
        virtual.vz.to_kerchunk(str(references), format="json")
        again = KerchunkJSONParser()(
            url=references.as_uri(), registry=ObjectStoreRegistry({"file://": LocalStore()})
        )
        group = zarr.open_group(again, mode="r", zarr_format=3)
        yield from selections(f"{path.name}, references", group["volume"])


def icechunk(folder: Path) -> Results:
    """Repositories with chunks of their own, and with virtual ones."""
    import icechunk
    import zarr

    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder / "own")))
    session = repository.writable_session("main")
    arrays = {
        "big": {
            "dtype": ">f4",
            "serializer": {"name": "bytes", "configuration": {"endian": "big"}},
        },
        "little": {"dtype": "f4"},
    }
    for name, options in arrays.items():
        array = zarr.create_array(
            session.store,
            name=name,
            shape=VOLUME.shape,
            chunks=(7, 60, 33),
            compressors=None,
            **options,
        )
        array[:] = VOLUME
        array[3, :, 5] = -1
    session.commit("written")
    group = zarr.open_group(repository.readonly_session("main").store, mode="r")
    for name in arrays:
        yield from selections(f"own, {name}", group[name])

    from virtualizarr.parsers import HDFParser, NetCDF3Parser

    config = icechunk.RepositoryConfig.default()
    prefix = f"{folder.as_uri()}/"
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    for path, parser in ((netcdf3(folder), NetCDF3Parser()), (hdf5(folder), HDFParser())):
        repository = icechunk.Repository.create(
            icechunk.local_filesystem_storage(str(folder / f"virtual {path.suffix}")),
            config,
            authorize_virtual_chunk_access={prefix: None},
        )
        session = repository.writable_session("main")
        virtual = virtual_store(path, parser).to_virtual_dataset(loadable_variables=[])
        virtual.vz.to_icechunk(session.store)
        session.commit("virtual")
        group = zarr.open_group(repository.readonly_session("main").store, mode="r")
        yield from selections(f"virtual, {path.name}", group["volume"])


def ome_zarr(folder: Path) -> Results:
    """Images as OME-Zarr, of both versions of the format."""
    import zarr
    from ome_zarr.format import FormatV04, FormatV05
    from ome_zarr.io import parse_url
    from ome_zarr.reader import Reader
    from ome_zarr.writer import write_image

    image = VOLUME.astype("u2")
    for name, form in (("0.4", FormatV04()), ("0.5", FormatV05())):
        for compressed in (False, True):
            path = folder / f"{name} {compressed}.zarr"
            location = parse_url(str(path), mode="w", fmt=form)
            options: dict[str, Any] = {"chunks": (8, 30, 40)}
            if not compressed:
                options["compressor" if name == "0.4" else "compressors"] = None
            group = zarr.open_group(location.store, mode="r+")
            write_image(image, group, axes="zyx", storage_options=options, fmt=form)
            (node,) = Reader(parse_url(str(path)))()
            for level, data in enumerate(node.data):
                label = f"{name}, compressed: {compressed}, level {level}"
                yield f"{label}: row", lambda d=data: d[1, 2].compute()
                yield f"{label}: all", lambda d=data: d.compute()


def anndata(folder: Path) -> Results:
    """Tables of cells: dense, sparse and strings; written, read, lazily and backed."""
    import anndata
    import pandas as pd
    import scipy.sparse
    import zarr

    # It reads with zarrs where that is installed, which asks no codec of Python.
    anndata._io.zarr.find_spec = lambda _name: None
    counts = scipy.sparse.random(120, 50, 0.2, "csr", rng=np.random.default_rng(0))
    cells = anndata.AnnData(
        VOLUME.reshape(-1)[: 120 * 50].reshape(120, 50),
        obs=pd.DataFrame(
            {"kind": pd.Categorical(list("abc") * 40), "is_good": np.arange(120) % 3 == 0},
            index=[f"cell {i}" for i in range(120)],
        ),
        layers={"counts": counts},
        obsm={"pca": VOLUME.reshape(-1)[:360].reshape(120, 3).astype(">f8")},
    )
    for zarr_format in (2, 3):
        path = folder / f"cells {zarr_format}.zarr"
        settings = anndata.settings
        settings.zarr_write_format = zarr_format
        options = {"compressors": None} if zarr_format == 3 else {"compressor": None}
        anndata.io.write_elem(
            zarr.open_group(path, mode="w", zarr_format=zarr_format),
            "/",
            cells,
            dataset_kwargs=options,
        )
        again = anndata.read_zarr(path)
        yield f"{zarr_format}: X", lambda a=again: a.X
        yield f"{zarr_format}: counts", lambda a=again: a.layers["counts"].toarray()
        yield f"{zarr_format}: pca", lambda a=again: a.obsm["pca"]
        yield f"{zarr_format}: kind", lambda a=again: a.obs["kind"].cat.codes.to_numpy()
        yield f"{zarr_format}: is_good", lambda a=again: a.obs["is_good"].to_numpy()
        group = zarr.open_group(path, mode="r")
        yield from selections(f"{zarr_format}: lazily", group["X"])
        sparse = anndata.io.sparse_dataset(group["layers/counts"])
        yield f"{zarr_format}: some rows", lambda s=sparse: s[7:30].toarray()


PROGRAMS = {
    "tifffile": tifffile,
    "tiffslide": tiffslide,
    "icechunk": icechunk,
    "virtualizarr": virtualizarr,
    "ome-zarr": ome_zarr,
    "anndata": anndata,
}


def digest(read: Callable[[], Any]) -> str:
    """Return what tells an array from another one, or the error."""
    try:
        array = np.asarray(read())
    except Exception as error:  # noqa: BLE001 # whatever it is, both are to have it
        return f"{type(error).__name__}: {error}"
    name = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    return f"{array.dtype} {array.shape} {name}"


def leave_zarr_alone() -> None:
    """Hide numcodecs_bytes from zarr, before it is loaded."""
    every = importlib.metadata.distributions
    importlib.metadata.distributions = lambda **context: (
        d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
    )


def main(folder: str, package: str, *modes: str) -> None:
    if modes == ("alone",):
        leave_zarr_alone()
    import zarr.registry

    results = {name: digest(read) for name, read in PROGRAMS[package](Path(folder))}
    codec = zarr.registry.get_codec_class("bytes").__module__
    print(json.dumps({"codec": codec, "results": results}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
