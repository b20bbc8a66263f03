"""Read and write arrays, and print what became of each, for `run.py`.

    python program.py {alone|ours|unguarded} FOLDER

"alone" makes the arrays in FOLDER, and reads and writes with zarr's own classes; the others use
ours, "unguarded" without the checks of zarr's classes, and without the net that lets zarr read if
this package itself fails.
"""

import contextlib
import hashlib
import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import zarr
import zarr.codecs
import zarr.storage

import numcodecs_bytes

warnings.simplefilter("ignore")
MODE, FOLDER = sys.argv[1], Path(sys.argv[2])
DATA = np.arange(4096, dtype="f8").reshape(64, 64)
SETTINGS = {
    "native": {},
    "swapped": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
    "shards": {"shards": (64, 64)},
    "v2": {"zarr_format": 2, "filters": None},
    "v2 F": {"zarr_format": 2, "filters": None, "order": "F"},
    "compressed": {"compressors": zarr.codecs.ZstdCodec()},
}
SELECTIONS = {
    "all": lambda array: array[...],
    "row": lambda array: array[17],
    "row by SyncReader": lambda array: numcodecs_bytes.SyncReader(array)[17],
    "box": lambda array: array[3:40, 5:9],
    "points": lambda array: array.vindex[[1, 50, 33], [2, 60, 2]],
    "indices": lambda array: array.oindex[[50, 3], [7, 2, 60]],
}


def setting(name, value):
    """Return a context in which an option of this package is set, if zarr's config takes it."""
    with contextlib.suppress(KeyError):
        return zarr.config.set({f"numcodecs_bytes.{name}": value})
    return contextlib.nullcontext()


class Ranges(zarr.storage.LocalStore):
    """A store that is named as one that answers byte ranges."""


def opened(name, kind=zarr.storage.LocalStore):
    return zarr.open_array(kind(FOLDER / name), mode="r+")


def write_part(name):
    """Write to a part of a copy of an array, and read all of it."""
    if (FOLDER / "copy").exists():
        shutil.rmtree(FOLDER / "copy")
    shutil.copytree(FOLDER / name, FOLDER / "copy")
    array = opened("copy")
    array[10:20, 3] = -1
    return array[...]


def value_or_error(function, *arguments):
    """Return the digest of an array, or the name of the error."""
    try:
        values = np.asarray(function(*arguments))
    except Exception as error:  # noqa: BLE001 # whatever it is
        return type(error).__name__
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


if MODE == "alone":
    module, _, kind = zarr.config.get("codec_pipeline.path").rpartition(".")
    # A new string: what is identical to zarr's default is not a choice.
    zarr.config.set({"codec_pipeline.path": f"{module}.{kind}"})
    zarr.config.set({"codecs.bytes": "zarr.codecs.bytes.BytesCodec"})
    if not FOLDER.exists():
        for name, settings in SETTINGS.items():
            made = {"chunks": (16, 16), "compressors": None, "dtype": "f8"} | settings
            zarr.create_array(FOLDER / name, shape=DATA.shape, **made)[...] = DATA
elif MODE == "unguarded":
    with contextlib.suppress(Exception):  # then the package steps aside
        from numcodecs_bytes._zarr_api import versions

        versions.check_class = lambda *_: None
        from numcodecs_bytes._runtime import own_bugs

        own_bugs.is_own_bug = lambda _: False
setting("stores_with_ranges", [Ranges])
setting("max_gap_bytes", 0)
RESULTS = {
    f"{kind.__name__}, {name}, {what}": value_or_error(
        lambda k=kind, n=name, r=read: r(opened(n, k))
    )
    for kind in (zarr.storage.LocalStore, Ranges)
    for name in SETTINGS
    for what, read in SELECTIONS.items()
}
for in_place in (False, True):
    with setting("write_in_place", in_place):
        RESULTS |= {f"write, {in_place}, {n}": value_or_error(write_part, n) for n in SETTINGS}
print(json.dumps(RESULTS))
