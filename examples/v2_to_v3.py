"""Rewrite Zarr v2 arrays with the `bytes` filter as Zarr v3 arrays, without copying their chunks.

A v2 chunk of the `bytes` filter is what the v3 codec `bytes` stores: only the metadata change, and
v3 reads chunks that are named as in v2. zarr's own `migrate_v2_to_v3` knows no v3 codec for the
filter and refuses. Where another filter comes first, the example copies the array.

Nothing below imports numcodecs_bytes: that it is installed is enough.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr.metadata.migrate_v3 import migrate_v2_to_v3

DATA = np.arange(90 * 70, dtype="f4").reshape(90, 70) / 8
BYTES = {"id": "bytes", "endian": "big", "dtype": "<f4"}
DELTA = {"id": "delta", "dtype": "<f4"}
ZSTD = {"id": "zstd", "level": 3}
# Filters, compressor, order of the v2 array.
ARRAYS: dict[str, tuple[list[dict[str, Any]], dict[str, Any] | None, str]] = {
    "bytes": ([BYTES], None, "C"),
    "bytes, zstd": ([BYTES], ZSTD, "C"),
    "bytes, order F": ([BYTES], None, "F"),
    "delta, bytes": ([DELTA, BYTES], None, "C"),
}
SAME_IN_V3 = {"zstd", "gzip"}


def rewrite(path: Path) -> str:
    """Make a Zarr v2 array whose last filter is `bytes` a v3 array; return what was needed."""
    old = zarr.open_array(path, zarr_format=2, mode="r")
    *others, last = [codec.get_config() for codec in old.filters]
    compressors = [codec.get_config() for codec in old.compressors]
    settings: dict[str, Any] = {
        "zarr_format": 3,
        "serializer": {"name": "bytes", "configuration": {"endian": last["endian"]}},
        "fill_value": old.fill_value,
        "attributes": old.attrs.asdict(),
    }
    if others or any(config["id"] not in SAME_IN_V3 for config in compressors):
        zarr.from_array(path.with_suffix(".v3"), data=old, filters=None, **settings)
        return "all chunks"
    # In column-major order the chunks hold the transposed array.
    order = [{"name": "transpose", "configuration": {"order": range(old.ndim)[::-1]}}]
    zarr.create_array(
        path,
        shape=old.shape,
        chunks=old.chunks,
        dtype=old.dtype.newbyteorder("="),
        filters=order if old.order == "F" else None,
        compressors=[{"name": c.pop("id"), "configuration": c} for c in compressors],
        chunk_key_encoding={"name": "v2", "separator": old.metadata.dimension_separator},
        **settings,
    )
    for name in (".zarray", ".zattrs"):
        path.joinpath(name).unlink(missing_ok=True)
    return "metadata only"


def refusal_by_zarr(path: Path) -> str:
    """Return what zarr's own tool says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # before it refuses, it may warn of the other filters
        try:
            migrate_v2_to_v3(input_store=zarr.storage.LocalStore(path))
        except ValueError as error:
            return str(error)
    raise AssertionError("zarr's own tool rewrites it: no need for this example")


def chunks_in(path: Path) -> dict[str, tuple[int, bytes]]:
    """Return the chunk files of an array, with the time of their last change."""
    files = [file for file in path.iterdir() if file.name[0].isdigit()]
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def main() -> None:
    """Rewrite each array; print what zarr's own tool says, and what was needed."""
    print(f"{'Zarr v2':16}{'rewritten':15}{'Zarr v3 codecs':42}read by")
    with tempfile.TemporaryDirectory() as folder:
        for name, (filters, compressor, order) in ARRAYS.items():
            path = Path(folder, name.replace(", ", "-"))
            array = zarr.create_array(
                path,
                zarr_format=2,
                shape=DATA.shape,
                chunks=(40, 30),
                dtype="<f4",
                filters=[numcodecs.get_codec(config) for config in filters],
                compressors=compressor and numcodecs.get_codec(compressor),
                order=order,
                fill_value=-1,
                attributes={"units": "K"},
            )
            array[:80] = DATA[:80]
            before = chunks_in(path)
            assert len(before) == 6

            refusal = refusal_by_zarr(path)
            rewritten = rewrite(path)
            if rewritten == "metadata only":
                assert chunks_in(path) == before
            else:
                path = path.with_suffix(".v3")
            opened = zarr.open_array(path)
            assert opened.metadata.zarr_format == 3
            assert np.array_equal(opened[:80], DATA[:80])
            assert (opened[80:] == -1).all()
            assert opened.attrs["units"] == "K"
            codecs = ", ".join(codec.to_dict()["name"] for codec in opened.metadata.codecs)
            codec = type(opened.serializer)
            assert f"{codec.__module__}.{codec.__qualname__}" == "numcodecs_bytes.zarr.BytesCodec"
            print(f"{name:16}{rewritten:15}{codecs:42}{codec.__module__}.{codec.__qualname__}")
    print(f"\nzarr's own migrate_v2_to_v3: {refusal}")


if __name__ == "__main__":
    main()
