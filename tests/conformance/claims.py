"""What this package and others do with a few arrays: what the table of peers in the README says.

    python claims.py WHO FOLDER

in a process of its own, for zarr alone is a zarr that does not find this package. Prints which
claims hold, as JSON. The arrays are written by hand, by `write_arrays`.
"""

import importlib.metadata
import json
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROW_BYTES, NUM_ROWS = 1 << 13, 1 << 11
# Data type and fill value, stored bytes, shape.
ARRAYS: dict[str, tuple[Any, Any, bytes, list[int]]] = {
    "large": ("float32", 0, bytes(ROW_BYTES * NUM_ROWS), [NUM_ROWS, ROW_BYTES // 4]),
    "shard": (
        "float32",
        0,
        bytes(ROW_BYTES * NUM_ROWS)
        + struct.pack(">8Q", *(n * ROW_BYTES * NUM_ROWS // 4 for k in range(4) for n in (k, 1))),
        [NUM_ROWS, ROW_BYTES // 4],
    ),
    "bfloat16": ("bfloat16", 0, bytes.fromhex("3f80 c000"), [2]),
    "int4": ("int4", 0, bytes.fromhex("01 0f"), [2]),
}


BIG = {"name": "bytes", "configuration": {"endian": "big"}}
SHARDED = {
    "chunk_shape": [NUM_ROWS // 4, ROW_BYTES // 4],
    "codecs": [BIG],
    "index_codecs": [BIG],
    "index_location": "end",
}
CODECS = {"shard": [{"name": "sharding_indexed", "configuration": SHARDED}]}


def write_arrays(folder: Path) -> None:
    for name, (data_type, fill_value, stored, shape) in ARRAYS.items():
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": fill_value,
            "codecs": CODECS.get(name, [BIG]),
            "attributes": {},
        }
        chunk = folder.joinpath(name, "c", *("0" for _ in shape))
        chunk.parent.mkdir(parents=True)
        chunk.write_bytes(stored)
        folder.joinpath(name, "zarr.json").write_text(json.dumps(document))


def claims(
    read: Callable[..., Any], write: Callable[[str, Any, Any], None]
) -> dict[str, Callable[[], bool]]:
    """Return what is claimed.

    Both functions take the name of an array and a selection, `write` a value, too.
    """

    def fetches_only_a_row(name: str = "large") -> bool:
        read(name, 0)
        before = _bytes("rchar")
        read(name, 7)
        return _bytes("rchar") - before < 8 * ROW_BYTES

    def writes_only_a_row(name: str = "large") -> bool:
        write(name, 5, 1)
        before = _bytes("rchar") + _bytes("wchar")
        write(name, 7, 1)
        return _bytes("rchar") + _bytes("wchar") - before < 8 * ROW_BYTES

    return {
        "fetches only the bytes of a selection": fetches_only_a_row,
        "also from shards": lambda: fetches_only_a_row("shard"),
        "writes parts of chunks in place, if asked to": writes_only_a_row,
        "also into shards": lambda: writes_only_a_row("shard"),
        "bfloat16, int4": lambda: (
            read("bfloat16").astype(float).tolist() == [1, -2]
            and read("int4").astype(int).tolist() == [1, -1]
        ),
    }


def _bytes(which: str) -> int:
    """Return how many bytes this process has read or written so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)[which])


def _holds(claim: Callable[[], bool]) -> bool:
    try:
        return claim()
    except Exception:  # noqa: BLE001 # however it refuses
        return False


Functions = tuple[Callable[..., Any], Callable[[str, Any, Any], None]]


def implementation(who: str, folder: Path) -> Functions:
    """Return what reads, and what writes."""
    if who == "TensorStore":
        return by_tensorstore(folder)
    if who != "this package":
        every = importlib.metadata.distributions
        importlib.metadata.distributions = lambda **context: (
            d for d in every(**context) if d.metadata["Name"] != "numcodecs-bytes"
        )
    import zarr  # noqa: PLC0415

    settings: dict[str, Any] = {}
    if who == "this package":
        import numcodecs_bytes.zarr_data_types  # noqa: F401, PLC0415 # for zarr 3.1.6

        settings["codec_pipeline.path"] = "numcodecs_bytes.zarr_pipeline.BytesPipeline"
    if who == "zarrs":
        zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})

    def read(name: str, selection: Any = ...) -> Any:
        with zarr.config.set(settings if name == "shard" else {}):
            return zarr.open_array(folder / name, mode="r")[selection]

    def write(name: str, selection: Any, value: Any) -> None:
        with zarr.config.set(settings | {"numcodecs_bytes.write_in_place": bool(settings)}):
            zarr.open_array(folder / name, mode="r+")[selection] = value

    return read, write


def by_tensorstore(folder: Path) -> Functions:
    import tensorstore  # noqa: PLC0415 # an extra

    def spec_of(name: str) -> dict[str, Any]:
        return {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(folder / name)},
        }

    def read(name: str, selection: Any = ...) -> Any:
        return tensorstore.open(spec_of(name)).result()[selection].read().result()

    def write(name: str, selection: Any, value: Any) -> None:
        tensorstore.open(spec_of(name)).result()[selection].write(value).result()

    return read, write


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = claims(*implementation(sys.argv[1], Path(sys.argv[2])))
    print(json.dumps({name: _holds(claim) for name, claim in found.items()}))
