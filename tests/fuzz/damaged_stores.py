"""Stores damaged at random, and what check says: python tests/fuzz/damaged_stores.py NUMBER.

Prints what went wrong: an exception, an own bug, more than a minute, or damage that was not named
although zarr's own reading, a chunk's length or the other metadata reveal it. The process may not
allocate more than MAX_ADDRESS_SPACE.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz_mutator import Choices, mutate
from helpers import OwnBugs

import numcodecs_bytes
from numcodecs_bytes.check import check
from numcodecs_bytes.migrate import migrate

MAX_SECONDS = 60
MAX_ADDRESS_SPACE = 4 << 30
READ_BY_ZARR = 1 << 24
SHAPE, CHUNKS = (6, 5), (2, 5)
SHARDS = {"chunks": (1, 5), "shards": (2, 5)}
COMPRESSORS = (
    *(numcodecs.GZip(), numcodecs.Zlib(), numcodecs.BZ2(), numcodecs.LZMA()),
    *(numcodecs.Zstd(), numcodecs.Blosc(), numcodecs.LZ4()),
)
# Settings of arrays, which are not compressed unless told.
ARRAYS = {
    "v2/text": {"dtype": str},
    "v2/plain": {},
    "v2/filtered": {"filters": [numcodecs_bytes.Bytes("big", "<f8")]},
    "v2/delta": {"compressors": numcodecs.Zlib(), "filters": [numcodecs.Delta("<f8")]},
    "v2/bools": {"compressors": numcodecs.LZ4(), "dtype": "?"},
    "v2/struct": {"dtype": [("a", "<i4"), ("b", "<f8")]},
    **{f"v2/{codec.codec_id}": {"compressors": codec} for codec in COMPRESSORS},
    "v3/plain": {},
    "v3/bools": {"dtype": "?"},
    "v3/gzip": {"compressors": zarr.codecs.GzipCodec()},
    "v3/zstd": {"compressors": zarr.codecs.ZstdCodec()},
    "v3/blosc": {"compressors": zarr.codecs.BloscCodec()},
    "v3/checked": {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]},
    "v3/shards": SHARDS,
    "v3/zipped_shards": {"compressors": zarr.codecs.GzipCodec(), **SHARDS},
    "v3/text": {"dtype": str, "compressors": "auto"},
    "v3/bytes": {"dtype": zarr.dtype.VariableLengthBytes()},
    "v3/text_shards": {"dtype": str, **SHARDS},
}
# Of which a chunk of another length is damaged.
PLAIN = ("v2/plain", "v2/filtered", "v2/struct", "v3/plain", "v3/bools")


def write_healthy(root):
    rng = np.random.default_rng(1)
    for zarr_format in (2, 3):
        zarr.create_group(root / f"v{zarr_format}", zarr_format=zarr_format)
    for name, settings in ARRAYS.items():
        more = {"shape": SHAPE, "chunks": CHUNKS, "dtype": "<f8", "compressors": None} | settings
        array = zarr.create_array(root / name, zarr_format=int(name[1]), **more)
        numbers = rng.integers(1, 100, SHAPE)
        if array.dtype.kind in "OT":
            numbers = numbers.astype(str if settings["dtype"] is str else bytes)
        array[...] = numbers.astype(array.dtype)
    list(migrate(zarr.storage.LocalStore(root / "v2")))


def copy_some(healthy, root, rng):
    """Copy the groups, the arrays of a file or two, and one more; return these files."""
    files = sorted(path for path in healthy.rglob("*") if path.is_file())
    chosen = rng.sample(files, rng.choice([1, 1, 2]))
    names = {file.relative_to(healthy).parts[:2] for file in (*chosen, rng.choice(files))}
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
    changes = {
        "cut": lambda raw: raw[: rng.randrange(len(raw))],
        "flip": lambda raw: _flip(raw, rng),
        "extend": lambda raw: raw + rng.randbytes(rng.randint(1, 40)),
        "empty": lambda _: b"",
        "header": lambda raw: rng.randbytes(4) + raw[4:],
        "edit": lambda raw: _edit(raw, rng),
    }
    done = []
    for path in files:
        is_metadata = path.name in ("zarr.json", ".zarray", ".zgroup", ".zattrs")
        kinds = ["cut", "flip", "remove", "extend", "empty", "header", "folder"]
        kind = rng.choice([*kinds, "edit", "edit", "edit", "edit"] if is_metadata else kinds)
        raw = path.read_bytes()
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind in changes:
            path.write_bytes(changes[kind](raw))
        done.append((kind, path.relative_to(root).as_posix()))
    return done


def _flip(raw, rng):
    raw = bytearray(raw)
    for _ in range(rng.choice([1, 1, 4])):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return raw


def _edit(raw, rng):
    document = json.loads(raw)
    mutate(document, Choices(rng.randbytes(8)))
    return json.dumps(document).encode()


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
    started = time.process_time()
    try:
        store = zarr.storage.LocalStore(root, read_only=True)
        reports = {report.path: report for report in check(store)}
    except BaseException:
        return [traceback.format_exc()]
    seconds = time.process_time() - started
    complaints = [f"took {seconds:.0f} s"] if seconds > MAX_SECONDS else []
    for name in ARRAYS:
        changed = [d for d in done if d[1].startswith(f"{name}/")]
        has_metadata = any((root / name / f).exists() for f in ("zarr.json", ".zarray"))
        if not changed or not has_metadata:
            continue
        if name not in reports:
            complaints.append(f"{name} is not found")
            continue
        notes = [n for n in reports[name].notes if "present" in n or "compared" in n]
        if not (reports[name].problems or notes) and (why := _revealed_by(root, name, changed)):
            complaints.append(f"{name}: nothing is said, {why}")
    return complaints


def _revealed_by(root, name, changed):
    """Return what tells that an array is damaged, or "": zarr, a length or the other metadata."""
    values = _values_in(root / name)
    if isinstance(values, Exception):
        return f"zarr raises {values!r:.300}"
    lengths = [k in ("cut", "extend", "empty", "folder") and "json" not in p for k, p in changed]
    if name in PLAIN and any(lengths) and ".z" not in str(changed):
        return "a chunk has another length"
    if not all((root / name / f).exists() for f in ("zarr.json", ".zarray")):
        return ""
    both = [_values_in(root / name, zarr_format) for zarr_format in (2, 3)]
    is_same = None in both or repr(both[0]) == repr(both[1])
    return "" if is_same else f"zarr reads {both!r:.600}"


def main(number, seed=0):
    warnings.simplefilter("ignore")
    num_failed, own_bugs = 0, OwnBugs()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    with tempfile.TemporaryDirectory() as folder:
        healthy = Path(folder, "healthy")
        write_healthy(healthy)
        for i in range(seed, seed + number):
            rng = random.Random(i)
            root = Path(folder, "damaged")
            done = damage(root, copy_some(healthy, root, rng), rng)
            complaints = complaints_about(root, done) + own_bugs.found
            own_bugs.found.clear()
            for complaint in complaints:
                print(f"seed {i}, {done}: {complaint}", flush=True)
            num_failed += bool(complaints)
            shutil.rmtree(root)
    print(f"{number} stores, {num_failed} of them failed")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
