"""Stores damaged at random, and what check says: python tests/fuzz/damaged_stores.py NUMBER.

Prints what went wrong: an exception, more than a minute, or damage that was not named although
zarr's own reading, a chunk's length or the other metadata reveal it. The process may not allocate
more than MAX_ADDRESS_SPACE.
"""

import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import zarr

import numcodecs_bytes
from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

MAX_SECONDS = 60
MAX_ADDRESS_SPACE = 4 << 30
READ_BY_ZARR = 1 << 24
SHAPE, CHUNKS = (6, 5), (2, 5)
SHARDS = {"chunks": (1, 5), "shards": (2, 5)}
VARIABLE_LENGTH = zarr.dtype.VariableLengthBytes()
V2 = {
    "text2": {"dtype": str, "compressors": None},
    "zipped_text2": {"dtype": str, "compressors": numcodecs.Zlib()},
    "bytes2": {"dtype": VARIABLE_LENGTH, "compressors": None},
    "plain2": {"compressors": None},
    "filtered2": {"compressors": None, "filters": [numcodecs_bytes.Bytes("big", "<f8")]},
    "delta2": {"compressors": numcodecs.Zlib(), "filters": [numcodecs.Delta("<f8")]},
    "bools2": {"compressors": numcodecs.LZ4(), "dtype": "?"},
    "struct2": {"compressors": None, "dtype": [("a", "<i4"), ("b", "<f8")]},
    **{
        f"{codec.codec_id}2": {"compressors": codec}
        for codec in (
            numcodecs.GZip(),
            numcodecs.Zlib(),
            numcodecs.BZ2(),
            numcodecs.LZMA(),
            numcodecs.Zstd(),
            numcodecs.Blosc(),
            numcodecs.LZ4(),
        )
    },
}
V3 = {
    "plain": {"compressors": None},
    "bools": {"compressors": None, "dtype": "?"},
    "gzip": {"compressors": zarr.codecs.GzipCodec()},
    "zstd": {"compressors": zarr.codecs.ZstdCodec()},
    "blosc": {"compressors": zarr.codecs.BloscCodec()},
    "checked": {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
    "shards": {"compressors": None, **SHARDS},
    "zipped_shards": {"compressors": zarr.codecs.GzipCodec(), **SHARDS},
    "text": {"dtype": str},
    "raw_text": {"dtype": str, "compressors": None},
    "bytes": {"dtype": VARIABLE_LENGTH, "compressors": None},
    "text_shards": {"dtype": str, "compressors": None, **SHARDS},
}
PLAIN = ("plain", "bools", "plain2", "filtered2", "struct2")


def write_healthy(root):
    rng = np.random.default_rng(1)
    for group, zarr_format, arrays in (
        (zarr.create_group(root / "v2", zarr_format=2), 2, V2),
        (zarr.create_group(root / "v3"), 3, V3),
    ):
        for name, settings in arrays.items():
            array = group.create_array(
                name, shape=SHAPE, **({"chunks": CHUNKS, "dtype": "<f8"} | settings)
            )
            numbers = rng.integers(1, 100, SHAPE)
            if array.dtype.kind in "OT":
                numbers = numbers.astype(str if settings["dtype"] is str else bytes)
            array[...] = numbers.astype(array.dtype)
        if zarr_format == 2:
            list(migrate(zarr.storage.LocalStore(root / "v2")))


def copy_some(healthy, root, rng):
    """Copy the groups, the arrays of a file or two, and one more; return these files."""
    files = sorted(path for path in healthy.rglob("*") if path.is_file())
    chosen = rng.sample(files, rng.choice([1, 1, 2]))
    names = {file.relative_to(healthy).parts[:2] for file in chosen}
    names.add(rng.choice(files).relative_to(healthy).parts[:2])
    for group in ("v2", "v3"):
        (root / group).mkdir(parents=True)
        for path in (healthy / group).iterdir():
            if path.is_file():
                shutil.copy(path, root / group)
            elif (group, path.name) in names:
                shutil.copytree(path, root / group / path.name)
    return [root / file.relative_to(healthy) for file in chosen]


def damage(root, files, rng):
    """Damage files; return what was done, to which array."""
    done = []
    for path in files:
        is_metadata = path.name in ("zarr.json", ".zarray", ".zgroup", ".zattrs")
        kinds = ["cut", "flip", "remove", "extend", "empty", "header", "folder"]
        kind = rng.choice([*kinds, "edit", "edit", "edit", "edit"] if is_metadata else kinds)
        raw = bytearray(path.read_bytes())
        if kind == "remove":
            path.unlink()
        elif kind == "cut":
            path.write_bytes(raw[: rng.randrange(len(raw))])
        elif kind == "empty":
            path.write_bytes(b"")
        elif kind == "extend":
            path.write_bytes(raw + rng.randbytes(rng.randint(1, 40)))
        elif kind == "header":
            path.write_bytes(rng.randbytes(4) + raw[4:])
        elif kind == "folder":
            path.unlink()
            path.mkdir()
        elif kind == "flip":
            for _ in range(rng.choice([1, 1, 4])):
                raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
            path.write_bytes(raw)
        else:
            document = json.loads(raw)
            _edit(document, rng)
            path.write_text(json.dumps(document))
        done.append((kind, path.relative_to(root).as_posix()))
    return done


def _edit(node, rng):
    """Change, remove or add something at random in a JSON document."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(node[key], dict | list) and node[key] and rng.random() < 0.7:
            node = node[key]
            continue
        break
    if rng.random() < 0.2:
        del node[key]
        return
    strange = [None, -1, 0, 1, 2, 3, 5, 2**31, 2**40, 2**63, 1.5, "", "x", [], {}, True, "NaN"]
    strange += ["<f4", ">f8", ">i4", "<i8", "|b1", "|O", "|V9", "<U7", "<M8[ns]", "float32", "F"]
    strange += ["big", "little", "bytes", "gzip", "crc32c", "sharding_indexed", [2, 5], [1, 1]]
    node[key] = rng.choice(strange)


def values_of(root):
    """Return what zarr reads of each array, or why it can't."""
    names = (*(f"v2/{name}" for name in V2), *(f"v3/{name}" for name in V3))
    return {name: _values_in(root / name) for name in names if (root / name).exists()}


def _values_in(folder, zarr_format=None):
    try:
        array = zarr.open_array(folder, mode="r", zarr_format=zarr_format)
        if array.nbytes > READ_BY_ZARR or np.prod(array.chunks) * array.dtype.itemsize > 1e7:
            return None
        return np.asarray(array[...]).tolist()
    except MemoryError:
        return None
    except Exception as error:  # whatever it is
        return error


def complaints_about(root, done):
    """Return what is wrong with what check says of a damaged store."""
    started = time.monotonic()
    try:
        store = zarr.storage.LocalStore(root, read_only=True)
        reports = {report.path: report for report in check(store)}
    except BaseException:
        return [traceback.format_exc()]
    complaints = []
    seconds = time.monotonic() - started
    if seconds > MAX_SECONDS:
        complaints.append(f"took {seconds:.0f} s")
    for name, values in values_of(root).items():
        changed = [d for d in done if d[1].startswith(f"{name}/")]
        has_metadata = any((root / name / f).exists() for f in ("zarr.json", ".zarray"))
        if not changed or not has_metadata:
            continue
        if name not in reports:
            complaints.append(f"{name} is not found")
            continue
        notes = [n for n in reports[name].notes if "present" in n or "compared" in n]
        said = reports[name].problems or notes
        if not said and _is_revealed(root / name, changed, values):
            complaints.append(f"{name}: nothing is said, zarr has {values!r:.300}")
    return complaints


def _is_revealed(folder, changed, values):
    """Whether zarr, a length or the other metadata tells that an array is damaged."""
    lengths = [k in ("cut", "extend", "empty", "folder") and "json" not in p for k, p in changed]
    if isinstance(values, Exception):
        return True
    if folder.name in PLAIN and any(lengths) and ".z" not in str(changed):
        return True
    if not all((folder / f).exists() for f in ("zarr.json", ".zarray")):
        return False
    both = [_values_in(folder, zarr_format) for zarr_format in (2, 3)]
    return None not in both and repr(both[0]) != repr(both[1])


def main(number, seed=0):
    warnings.simplefilter("ignore")
    num_failed = 0
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder, "healthy")
        write_healthy(healthy)
        for i in range(seed, seed + number):
            rng = random.Random(i)
            root = Path(folder, "damaged")
            done = damage(root, copy_some(healthy, root, rng), rng)
            complaints = complaints_about(root, done)
            for complaint in complaints:
                print(f"seed {i}, {done}: {complaint}", flush=True)
            num_failed += bool(complaints)
            shutil.rmtree(root)
    print(f"{number} stores, {num_failed} of them failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
