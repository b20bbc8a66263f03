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


def main() -> None:
    reference = [(which, reference_chunks(*which)) for which in every_array()]
    save("reference", {"implementation": "calculated by arrays.py"}, reference)
    for name in sys.argv[1:] or PEERS:
        try:
            peer = PEERS[name]()
        except ImportError as error:
            print(f"{name} is skipped: {error}")
            continue
        asked = [which for which in every_array() if not peer.miswrites(*which)]
        with tempfile.TemporaryDirectory() as folder:
            paths = [write_files(Path(folder, str(i)), which) for i, which in enumerate(asked)]
            elements = [native_elements(data_type, layout) for data_type, _, layout in asked]
            answers = zip(asked, paths, peer.write_all(paths, elements), strict=True)
            save(
                name, peer.provenance, [(w, read_chunks(p)) for w, p, error in answers if not error]
            )


def save(name: str, provenance: dict[str, str], arrays: list[Any]) -> None:
    """Write a golden file: a line of provenance, and a line for each array."""
    today = dt.datetime.now(dt.UTC).date().isoformat()
    lines: list[Any] = [{**provenance, "written": today, "by": "tests/conformance/write_golden.py"}]
    for (data_type, endian, layout), chunks in arrays:
        stored = {key: chunk.hex() for key, chunk in chunks.items()}
        lines.append([data_type.name, endian, layout, stored])
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    Path(__file__).with_name("golden").joinpath(f"{name}.jsonl").write_text(text + "\n")
    print(f"{name}: {len(arrays)} arrays")


if __name__ == "__main__":
    main()
