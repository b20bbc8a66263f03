"""Rewrite structured arrays whose data type is NumPy's list of fields, so that zarr opens them.

An early draft of the Zarr v3 data type `struct` had such lists in the metadata:

    "data_type": [["name", ">U10"], ["age", ">i4"], ["weight", ">f4"]]

zarr refuses them before it calls any plugin. The chunks hold the same bytes as those of a `struct`,
so only the metadata change: the data type, the fill value, and the byte order, which moves from
each field to the codec.
"""

import base64
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.errors

from numcodecs_bytes import Bytes
from numcodecs_bytes.zarr_data_types import parse_numpy_descr


def byte_orders(descr: list[Any]) -> set[str]:
    """Return the byte orders of the numbers in a list of fields: '<', '>', both or none."""
    found: set[str] = set()
    for _, data_type in descr:
        found |= byte_orders(data_type) if isinstance(data_type, list) else {data_type[0]}
    return found & {"<", ">"}


def with_endian(codecs: list[Any], endian: str) -> list[Any]:
    """Return the codecs, with `endian` added to bytes codecs that have none, also in shards."""
    rewritten = []
    for codec in codecs:
        name, configuration = codec["name"], dict(codec.get("configuration", {}))
        if name == "bytes":
            configuration.setdefault("endian", endian)
        elif name == "sharding_indexed":
            configuration["codecs"] = with_endian(configuration["codecs"], endian)
        rewritten.append({"name": name, "configuration": configuration})
    return rewritten


def rewrite(document: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an array with `struct` in place of its list of fields."""
    descr = document["data_type"]
    data_type = parse_numpy_descr(descr)
    # Without `endian`, the numbers are as the list says.
    found = byte_orders(descr)
    if len(found) > 1:
        raise ValueError(f"struct has one byte order for all fields, got both: {descr}")
    endian = "big" if ">" in found else "little"
    fill_value = data_type.default_scalar()
    if document["fill_value"]:  # the bytes of an element in base64, or 0, or null
        raw = base64.b64decode(document["fill_value"])
        (fill_value,) = Bytes(endian, data_type.to_native_dtype()).decode(raw)
    return {
        **document,
        "data_type": data_type.to_json(zarr_format=3),
        "fill_value": data_type.to_json_scalar(fill_value, zarr_format=3),
        "codecs": with_endian(document["codecs"], endian),
    }


def write_example(path: Path) -> None:
    """Write an array of two people as the draft had it, by hand."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [2],
        "data_type": [["name", ">U10"], ["age", ">i4"], ["weight", ">f4"]],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": base64.b64encode(bytes(43) + b"\1" + bytes(4)).decode(),
        "codecs": [{"name": "bytes"}],
        "attributes": {},
    }
    people = [("Rex", 9, 81.0), ("Fido", 3, 27.0)]
    stored = b"".join(
        name.ljust(10, "\0").encode("utf-32-be") + struct.pack(">if", age, weight)
        for name, age, weight in people
    )
    path.joinpath("c").mkdir(parents=True)
    path.joinpath("c", "0").write_bytes(stored)
    path.joinpath("zarr.json").write_text(json.dumps(document))


def main() -> None:
    """Write such an array, rewrite its metadata, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "people.zarr")
        write_example(path)
        try:
            zarr.open_array(path)
        except (ValueError, TypeError) as error:
            print(f"as it is: {type(error).__name__}: {error}")
        else:
            raise AssertionError("this zarr opens NumPy's lists itself: nothing to rewrite")

        metadata = path / "zarr.json"
        rewritten = rewrite(json.loads(metadata.read_text()))
        metadata.write_text(json.dumps(rewritten))
        print("rewritten:", json.dumps(rewritten["data_type"], indent=2))

        people = zarr.open_array(path, mode="r+")
        codec = type(people.metadata.codecs[0])
        print(f"read by {codec.__module__}.{codec.__qualname__}:", people[:].tolist())
        assert people.fill_value["age"] == 1
        assert people[:].tolist() == [("Rex", 9, 81.0), ("Fido", 3, 27.0)]
        people[1] = np.array(("Fido", 4, 28.5), people.dtype)
        assert zarr.open_array(path)[1:]["age"].tolist() == [4]


if __name__ == "__main__":
    main()
