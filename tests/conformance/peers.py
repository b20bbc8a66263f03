"""The other implementations, each as what writes and reads whole arrays that metadata describes.

`write_all` and `read_all` take folders that hold a zarr.json, and return for each what came: None
or the native array, or the exception. Tests ask for nothing that is known to be wrong.
"""

import json
import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from arrays import DataType

# Strict: it would leave what it does not know to zarr-python, and so to our codec.
_ZARRS = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True}


def _each(do: Any, *arguments: Any) -> list[Any]:
    answers: list[Any] = []
    for one in zip(*arguments, strict=True):
        try:
            answers.append(do(*one))
        except Exception as error:  # noqa: BLE001 # an answer like others
            answers.append(error)
    return answers


class _Peer:
    """What all have in common."""

    def misreads(self, *_: Any) -> bool:
        """Whether it is known to read arrays of a data type, endian and layout wrong."""
        return False

    miswrites = misreads

    def write_all(self, paths: list[Path], arrays: list[Any]) -> list[Any]:
        return _each(self.write, paths, arrays)  # type: ignore[attr-defined]

    def read_all(self, paths: list[Path], dtypes: list[Any]) -> list[Any]:
        return _each(self.read, paths, dtypes)  # type: ignore[attr-defined]


class TensorStore(_Peer):
    """TensorStore, with its Python package."""

    def __init__(self) -> None:
        import tensorstore  # optional

        self._module = tensorstore
        self.provenance = {"implementation": "tensorstore", "version": version("tensorstore")}

    def open(self, path: Path, **more: Any) -> Any:
        kvstore = {"driver": "file", "path": str(path)}
        return self._module.open({"driver": "zarr3", "kvstore": kvstore, **more}).result()

    def write(self, path: Path, array: Any) -> None:
        if array.dtype.names:
            for field in array.dtype.names:
                self.open(path, field=field).write(array[field]).result()
            return
        if array.dtype.kind == "V" and array.dtype.isbuiltin != 2:  # an axis of bytes
            array = array.reshape(*array.shape, 1).view(np.uint8)
        # A copy: 0.1.86 asks NumPy for the C order of the array itself.
        self.open(path).write(np.array(array)).result()

    def read(self, path: Path, dtype: Any) -> Any:
        if dtype.names:
            fields = [self.open(path, field=f).read().result() for f in dtype.names]
            array = np.zeros(fields[0].shape, dtype)
            for name, field in zip(dtype.names, fields, strict=True):
                array[name] = field
            return array
        if dtype.kind == "V" and dtype.isbuiltin != 2:  # an axis of bytes
            raw = self._module.cast(self.open(path), self._module.uint8).read().result()
            return np.ascontiguousarray(raw).view(dtype).reshape(raw.shape[:-1])
        return self.open(path).read().result()


class Zarrs(_Peer):
    """zarrs, as codec pipeline of zarr-python, which reads the metadata."""

    def __init__(self) -> None:
        import zarrs  # noqa: F401 # optional

        self.provenance = {"implementation": "zarrs", "version": version("zarrs")}

    def misreads(self, data_type: DataType, endian: str, layout: str) -> bool:
        """Of parts of chunks, it swaps the halves of big-endian complex numbers (0.2.3)."""
        is_partial = layout in ("edge", "transposed", "crc32c", "sharded")
        return endian == "big" and is_partial and data_type.name.startswith("complex")

    def write(self, path: Path, array: Any) -> None:
        with zarr.config.set(_ZARRS):
            zarr.open_array(path, mode="r+")[...] = array

    def read(self, path: Path, _: Any) -> Any:
        with zarr.config.set(_ZARRS):
            return np.asarray(zarr.open_array(path)[...])


class Zarrita(_Peer):
    """zarrita.js, in one process of Node for all arrays."""

    def __init__(self) -> None:
        self.modules = os.environ.get("ZARRITA_MODULES", "")
        if not shutil.which("node") or not Path(self.modules, "node_modules", "zarrita").is_dir():
            raise ImportError("ZARRITA_MODULES names no folder with zarrita.js")
        versions = self._run("version", None)
        self.provenance = {"implementation": "zarrita.js", "version": versions.pop("zarrita")}
        self.provenance |= versions

    def misreads(self, data_type: DataType, endian: str, layout: str) -> bool:
        """It reverses bools that are declared big-endian (0.7.5)."""
        return (data_type.name, endian) == ("bool", "big")

    miswrites = misreads

    def _run(self, command: str, request: Any) -> Any:
        script = Path(__file__).with_name("zarrita.mjs")
        options = {"input": json.dumps(request), "capture_output": True, "text": True}
        done = subprocess.run(["node", script, command], check=True, **options)  # noqa: S607
        return json.loads(done.stdout)

    def write_all(self, paths: list[Path], arrays: list[Any]) -> list[Any]:
        requests = [
            {"path": str(path), "values": [_to_json(v) for v in array.ravel().tolist()]}
            for path, array in zip(paths, arrays, strict=True)
        ]
        return [RuntimeError(a["error"]) if a else None for a in self._run("write", requests)]

    def read_all(self, paths: list[Path], dtypes: list[Any]) -> list[Any]:
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


def peer_or_skip(name: str) -> Any:
    """Return an implementation, or skip the test that needs it."""
    try:
        return PEERS[name]()
    except ImportError as error:
        pytest.skip(f"{name} is not installed: {error}")
