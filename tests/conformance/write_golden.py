"""Write the golden files: python tests/conformance/write_golden.py [tensorstore zarrs zarrita.js].

`golden/reference.jsonl` is the calculation in arrays.py, the others are what each implementation
that is installed writes for the same elements (zarrita.js: see zarrita.mjs). Tests only read them.
An array is a line: data type, endian, layout, and the files of it as hexadecimal digits. Metadata
are those of `metadata_of`, the elements those of tests/data_types.py.
"""

import datetime as dt
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from arrays import every_array, native_elements, read_chunks, reference_chunks, write_files
from peers import PEERS

import numcodecs_bytes.zarr_data_types  # noqa: F401 # zarr 3.1.6 does not find them by itself

GOLDEN = Path(__file__).with_name("golden")


def main() -> None:
    """Write the files of the implementations that are named, by default of all."""
    arrays = [(*array_of(*which), reference_chunks(*which)) for which in every_array()]
    save({"implementation": "calculated by arrays.py"}, arrays, "reference")
    for name in sys.argv[1:] or PEERS:
        peer = PEERS[name]()
        asked = [which for which in every_array() if not peer.miswrites(*which)]
        with tempfile.TemporaryDirectory() as folder:
            paths = [write_files(Path(folder, str(i)), which) for i, which in enumerate(asked)]
            elements = [native_elements(data_type, layout) for data_type, _, layout in asked]
            answers = peer.write(paths, elements)
            written = [
                (*array_of(*which), read_chunks(path))
                for path, which, answer in zip(paths, asked, answers, strict=True)
                if answer is None
            ]
        save(peer.provenance, written, name)


def array_of(data_type: Any, endian: str, layout: str) -> tuple[str, str, str]:
    """Return what names an array."""
    return data_type.name, endian, layout


def save(provenance: dict[str, str], arrays: list[Any], name: str) -> None:
    """Write a golden file: a line of provenance, and a line for each array."""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    lines = [{**provenance, "written": today, "by": "tests/conformance/write_golden.py"}]
    lines += [
        [*which, {key: chunk.hex() for key, chunk in chunks.items()}] for *which, chunks in arrays
    ]
    GOLDEN.mkdir(exist_ok=True)
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    GOLDEN.joinpath(f"{name}.jsonl").write_text(text + "\n")
    print(f"{name}: {len(arrays)} arrays of {len({a[0] for a in arrays})} data types")


if __name__ == "__main__":
    main()
