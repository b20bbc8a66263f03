"""Read rows through an Icechunk repository: from a NetCDF-3 file, and from a chunk of its own.

The repository stores only references to the bytes of the file. Its variable is one
big-endian chunk of 16 MiB. For a row of 2,048 bytes, zarr alone reads the whole chunk; with this
package, it reads 2,048 bytes. Installing the package is enough; it is imported below only to count.

Needs ``pip install ".[examples]"``.
"""

import tempfile
from pathlib import Path

import icechunk
import numpy as np
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from scipy.io import netcdf_file
from virtualizarr.parsers import NetCDF3Parser

import numcodecs_bytes

SHAPE = (8192, 512)


def write_repository(folder: Path, values: np.ndarray) -> icechunk.Repository:
    """Write a NetCDF-3 file, and a repository that refers to it and holds a copy, too."""
    with netcdf_file(folder / "image.nc", "w") as file:
        for name, size in zip("yx", SHAPE, strict=True):
            file.createDimension(name, size)
        file.createVariable("in_place", ">f4", tuple("yx"))[:] = values

    prefix = f"{folder.as_uri()}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(folder)))
    )
    # Since icechunk 2.3, None for "no credentials" is deprecated.
    access = getattr(icechunk.credentials, "LocalFileSystemAccess", None)
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(folder / "repository")),
        config,
        authorize_virtual_chunk_access={prefix: access},
    )
    session = repository.writable_session("main")
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    found = NetCDF3Parser()(url=(folder / "image.nc").as_uri(), registry=registry)
    found.to_virtual_dataset(loadable_variables=[]).vz.to_icechunk(session.store)
    zarr.create_array(
        session.store,
        name="copied",
        data=values,
        chunks=SHAPE,
        serializer={"name": "bytes", "configuration": {"endian": "big"}},
        compressors=None,
    )
    session.commit("an image in place, and a copy")
    return repository


def main() -> None:
    """Write a repository; read a row of both arrays, and print what was fetched."""
    values = np.random.default_rng(0).random(SHAPE).astype(">f4")
    with tempfile.TemporaryDirectory() as folder:
        repository = write_repository(Path(folder), values)
        group = zarr.open_group(repository.readonly_session("main").store, mode="r")
        print(f"{'array':12}{'read by':46}{'bytes for a row':>16}")
        for name in ("in_place", "copied"):
            with numcodecs_bytes.trace() as traced:
                row = group[name][4321]
            assert np.array_equal(row, values[4321])
            total = traced.report()["total"]
            assert total["bytes_fetched"] == 2048
            pipeline = zarr.config.get("codec_pipeline.path")
            print(f"{name:12}{pipeline:46}{total['bytes_fetched']:>16,}")


if __name__ == "__main__":
    main()
