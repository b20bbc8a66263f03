"""Turn Zarr v2 into Zarr v3, without touching a chunk: ``python -m numcodecs_bytes migrate``.

zarr's own ``zarr migrate v3`` rejects the filter `bytes`, and reads every structure as
little-endian. Below, a group that has such a filter and big-endian structures is migrated, and
reads as before. An array that Zarr v3 can't express is refused, with the reason.
"""

import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from zarr.metadata.migrate_v3 import migrate_v2_to_v3

DATA = np.arange(90 * 70, dtype="f4").reshape(90, 70) / 8
BYTES = {"id": "bytes", "endian": "big", "dtype": "<f4"}
# The filters, compressor, order and data type of each Zarr v2 array.
ARRAYS = {
    "bytes": ([BYTES], None, "C", "<f4"),
    "bytes-zstd": ([BYTES], {"id": "zstd", "level": 3}, "C", "<f4"),
    "bytes-order-F": ([BYTES], None, "F", "<f4"),
    "delta-bytes": ([{"id": "delta", "dtype": "<f4"}, BYTES], None, "C", "<f4"),
}
if hasattr(zarr.dtype, "Struct"):  # not in zarr 3.1.6
    ARRAYS["structure"] = ([], None, "C", [("a", ">f4"), ("b", ">f4")])


def values_of(dtype: np.dtype) -> np.ndarray:
    """Return the data; of a structure, all fields hold them."""
    values = np.empty(DATA.shape, dtype)
    for part in [values[name] for name in dtype.names or ()] or [values]:
        part[...] = DATA
    return values


def refusal_by_zarr(path: Path) -> str:
    """Return what zarr's own tool says about the filter."""
    try:
        migrate_v2_to_v3(input_store=zarr.storage.LocalStore(path))
    except ValueError as error:
        return str(error)
    raise AssertionError("zarr's own tool migrates it: no need for ours")


def migrate(path: Path) -> subprocess.CompletedProcess:
    """Run the command."""
    command = [sys.executable, "-m", "numcodecs_bytes", "migrate", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def chunks_in(path: Path) -> dict[Path, tuple[int, bytes]]:
    """Return the chunk files, with the time of their last change."""
    files = [file for file in path.rglob("*") if file.name[0].isdigit()]
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def main() -> None:
    """Write the arrays, migrate them, and compare; then try one that can't be migrated."""
    warnings.simplefilter("ignore")  # zarr's, about data types and codecs without a specification
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "old")
        zarr.create_group(path, zarr_format=2)
        for name, (filters, compressor, order, dtype) in ARRAYS.items():
            array = zarr.create_array(
                path / name,
                zarr_format=2,
                shape=DATA.shape,
                chunks=(40, 30),
                dtype=np.dtype(dtype),
                filters=[numcodecs.get_codec(config) for config in filters] or None,
                compressors=compressor and numcodecs.get_codec(compressor),
                order=order,
                attributes={"units": "K"},
            )
            array[:] = values_of(array.dtype)
        print(f"zarr's own migrate_v2_to_v3: {refusal_by_zarr(path / 'bytes')}\n")

        before = chunks_in(path)
        done = migrate(path)
        assert done.returncode == 0, done
        assert chunks_in(path) == before
        print(done.stdout)
        for name in ARRAYS:
            opened = zarr.open_array(path / name, zarr_format=3)
            codecs = [codec.to_dict()["name"] for codec in opened.metadata.codecs]
            assert np.array_equal(opened[:], values_of(opened.dtype))
            assert opened.attrs["units"] == "K"
            codec = type(opened.serializer)
            print(f"{name:15} {', '.join(codecs):32} {codec.__module__}.{codec.__qualname__}")

        mixed = np.dtype([("a", "<i4"), ("b", ">f8")])
        zarr.create_array(path / "mixed", shape=3, dtype=mixed, zarr_format=2)
        done = migrate(path / "mixed")
        assert done.returncode == 1
        assert "both byte orders" in done.stdout
        print(f"\n{done.stdout}")


if __name__ == "__main__":
    main()
