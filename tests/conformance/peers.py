"""The other implementations, each as what writes and reads whole arrays that metadata describes.

`write` and `read` take folders that hold a zarr.json, and return for each what came: None or the
native array, or the exception. What is known to be wrong, crash or hang is not asked for.
"""

import json
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from arrays import DataType

Answers = list[Any]
# Strict: it would leave what it does not know to zarr-python, and so to our codec.
_ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}


def _each(do: Any, *arguments: Any) -> Answers:
    answers: Answers = []
    for one in zip(*arguments, strict=True):
        try:
            answers.append(do(*one))
        except Exception as error:  # noqa: BLE001 # an answer like others
            answers.append(error)
    return answers


class Peer:
    """What all have in common."""

    provenance: dict[str, str]

    def misreads(self, data_type: DataType, endian: str, layout: str) -> bool:  # noqa: ARG002
        """Whether it is known to read such arrays wrong."""
        return False

    def miswrites(self, data_type: DataType, endian: str, layout: str) -> bool:  # noqa: ARG002
        """Whether it is known to write such arrays wrong."""
        return False


class TensorStore(Peer):
    """TensorStore, with its Python package."""

    def __init__(self) -> None:
        self.provenance = {"implementation": "tensorstore", "version": version("tensorstore")}

    def _open(self, path: Path, **more: Any) -> Any:
        import tensorstore as ts  # noqa: PLC0415 # optional

        kvstore = {"driver": "file", "path": str(path)}
        return ts.open({"driver": "zarr3", "kvstore": kvstore, **more}).result()

    def write(self, paths: list[Path], arrays: list[Any]) -> Answers:
        """Write each array."""

        def write(path: Path, array: Any) -> None:
            if array.dtype.names:
                for field in array.dtype.names:
                    self._open(path, field=field).write(array[field]).result()
                return
            if array.dtype.kind == "V" and array.dtype.isbuiltin != 2:  # an axis of bytes
                array = array.reshape(*array.shape, 1).view(np.uint8)
            # A copy: 0.1.86 asks NumPy for the C order of the array itself.
            self._open(path).write(np.array(array)).result()

        return _each(write, paths, arrays)

    def read(self, paths: list[Path], dtypes: list[Any]) -> Answers:
        """Read each array."""
        import tensorstore as ts  # noqa: PLC0415 # optional

        def read(path: Path, dtype: Any) -> Any:
            if dtype.names:
                fields = [self._open(path, field=f).read().result() for f in dtype.names]
                array = np.zeros(fields[0].shape, dtype)
                for name, field in zip(dtype.names, fields, strict=True):
                    array[name] = field
                return array
            if dtype.kind == "V" and dtype.isbuiltin != 2:  # an axis of bytes
                raw = ts.cast(self._open(path), ts.uint8).read().result()
                return np.ascontiguousarray(raw).view(dtype).reshape(raw.shape[:-1])
            return self._open(path).read().result()

        return _each(read, paths, dtypes)


class Zarrs(Peer):
    """zarrs, as codec pipeline of zarr-python, which reads the metadata."""

    def __init__(self) -> None:
        import zarrs  # noqa: F401, PLC0415 # optional

        self.provenance = {"implementation": "zarrs", "version": version("zarrs")}

    def misreads(self, data_type: DataType, endian: str, layout: str) -> bool:
        """Of parts of chunks, it swaps the halves of big-endian complex numbers (0.2.3)."""
        is_partial = layout in ("edge", "transposed", "crc32c", "sharded")
        return endian == "big" and is_partial and data_type.name.startswith("complex")

    def write(self, paths: list[Path], arrays: list[Any]) -> Answers:
        """Write each array."""

        def write(path: Path, array: Any) -> None:
            with zarr.config.set(_ZARRS):
                zarr.open_array(path, mode="r+")[...] = array

        return _each(write, paths, arrays)

    def read(self, paths: list[Path], dtypes: list[Any]) -> Answers:
        """Read each array."""

        def read(path: Path, _: Any) -> Any:
            with zarr.config.set(_ZARRS):
                return np.asarray(zarr.open_array(path)[...])

        return _each(read, paths, dtypes)


class Zarrita(Peer):
    """zarrita.js, in one process of Node for all arrays."""

    def __init__(self) -> None:
        self.modules = os.environ.get("ZARRITA_MODULES", "")
        if not shutil.which("node") or not Path(self.modules, "node_modules", "zarrita").is_dir():
            raise ImportError("ZARRITA_MODULES names no folder with zarrita.js")
        versions = self._run("version", None)
        self.provenance = {
            "implementation": "zarrita.js",
            "version": versions["zarrita"],
            "node": versions["node"],
        }

    def misreads(self, data_type: DataType, endian: str, layout: str) -> bool:  # noqa: ARG002
        """It reverses bools that are declared big-endian (0.7.5)."""
        return (data_type.name, endian) == ("bool", "big")

    miswrites = misreads

    def _run(self, command: str, request: Any) -> Any:
        script = Path(__file__).with_name("zarrita.mjs")
        done = subprocess.run(
            ["node", script, command],  # noqa: S607
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    def write(self, paths: list[Path], arrays: list[Any]) -> Answers:
        """Write each array."""
        requests = [
            {"path": str(path), "values": [_to_json(v) for v in array.ravel().tolist()]}
            for path, array in zip(paths, arrays, strict=True)
        ]
        return [RuntimeError(a["error"]) if a else None for a in self._run("write", requests)]

    def read(self, paths: list[Path], dtypes: list[Any]) -> Answers:
        """Read each array."""

        def parse(answer: Any, dtype: Any) -> Any:
            if "error" in answer:
                raise RuntimeError(answer["error"])
            make = int if dtype.kind in "iu" else float
            values = [make(v) if isinstance(v, str) else v for v in answer["values"]]
            return np.array(values, dtype).reshape(answer["shape"])

        return _each(parse, self._run("read", list(map(str, paths))), dtypes)


def _to_json(value: Any) -> Any:
    """Return an element as zarrita.mjs wants it: a string where JSON has no exact number."""
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    return str(value).replace("inf", "Infinity")


PEERS = {"tensorstore": TensorStore, "zarrs": Zarrs, "zarrita.js": Zarrita}
