"""Parts of chunks and shards written in place, and as zarr and zarrs write them."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from measure import Settings, as_ratio, as_size, cases, is_slower, measure, medians, table
from whole import OUR_PIPELINES, PIPELINES, ZARRS, opened

SHAPE, QUICK_SHAPE = (4096, 4096), (256, 256)
IN_PLACE = {"numcodecs_bytes.write_in_place": "require"}


def writes(shape: tuple[int, int]) -> dict[str, Any]:
    """Return what is written: a selection, and whether by `vindex`."""
    n, rng = shape[0], np.random.default_rng(0)
    side = min(64, n // 4)
    return {
        "row": (np.s_[n // 3], False),
        f"{side} x {side}": (np.s_[side + 1 : 2 * side + 1, side + 3 : 2 * side + 3], False),
        "column": (np.s_[:, n // 3], False),
        "1000 points": (tuple(rng.integers(0, n, 1000) for _ in shape), True),
        "every 2nd element": (np.s_[:, ::2], False),
        "every 2nd row": (np.s_[::2], False),
        "all but a row": (np.s_[1:], False),
    }


def section(settings: Settings) -> str:
    shape = QUICK_SHAPE if settings.quick else SHAPE
    inner = (shape[0] // 8, shape[1] // 4)
    sizes = {
        "size": as_size(8 * shape[0] * shape[1]),
        "inner": as_size(2 * shape[0] * shape[1] // 8),
    }
    return TEXT.format(
        chunks=_table(settings, shape), shards=_table(settings, shape, inner), lost=_lost(), **sizes
    )


def _table(settings: Settings, shape: tuple[int, int], inner: tuple[int, int] | None = None) -> str:
    seconds, least = (0.05, 3) if settings.quick else (2.0, 7)
    rows = []
    where = "in place, shards" if inner else "in place"
    for fill_value, endian in cases(where, ((0.0, "little"), (1.5, "big"))):
        by = _arrays(settings.folder, shape, inner, fill_value, endian)
        for name, (selection, are_points) in writes(shape).items():
            value = np.random.default_rng(0).random(np.empty(shape)[selection].shape)
            contenders = {
                who: functools.partial(_write, array, selection, value, are_points=are_points)
                for who, array in by.items()
            }
            with zarr.config.set(IN_PLACE):
                times = measure(contenders, seconds, least)
            rows.append([endian, name, *_cells(times, by)])
        contenders = {who: functools.partial(_write, a, 1, 7.0) for who, a in by.items()}
        delete = functools.partial(_delete, list(by.values()))
        with zarr.config.set(IN_PLACE):
            times = measure(contenders, seconds, least, before=delete)
        what = f"a row of a new {'shard' if inner else 'chunk'}, filled with {fill_value}"
        rows.append([endian, what, *_cells(times, by)])
    header = ["endian", "written", *by, "ratio", "slower than"]
    return table(header, rows)


def _lost() -> str:
    """Return what the example says is lost."""
    example = Path(__file__).parents[2] / "examples/write_in_place.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    return "\n".join(f"- {line}" for line in done.stdout.splitlines() if "processes" in line)


def _arrays(
    folder: Path,
    shape: tuple[int, int],
    inner: tuple[int, int] | None,
    fill_value: float,
    endian: str,
) -> dict[str, Any]:
    found, chunks = {}, {"chunks": inner, "shards": shape} if inner else {"chunks": shape}
    for who, (library, pipeline) in {
        **{f"zarr, {name}": ("zarr", path) for name, path in PIPELINES.items()},
        **{path.rsplit(".", 1)[-1]: ("ours", path) for path in OUR_PIPELINES.values()},
        "zarrs": ("zarr", ZARRS),  # with our codec, required writes may fail
    }.items():
        path = folder / f"in-place-{endian}-{who}-{inner}"
        codec = zarr.codecs.BytesCodec(endian=endian)
        settings = {"compressors": None, "fill_value": fill_value, "serializer": codec}
        zarr.create_array(path, shape=shape, dtype="f8", **chunks, **settings)[...] = 1
        found[who] = opened(path, library, pipeline, mode="r+")
    return found


def _write(array: Any, selection: Any, value: Any, *, are_points: bool = False) -> None:
    (array.vindex if are_points else array)[selection] = value


def _delete(arrays: list[Any]) -> None:
    for array in arrays:
        (array.store.root / "c/0/0").unlink(missing_ok=True)


def _cells(times: Any, by: dict[str, Any]) -> list[str]:
    found = medians(times)
    theirs = [who for who in by if who.startswith("zarr")]
    slower = [who for who in theirs if is_slower(times, "BytesPipeline", who)]
    fastest = min(found[who] for who in theirs)
    return [
        *(f"{found[who] * 1e3:.2f}" for who in by),
        as_ratio(fastest, found["BytesPipeline"]),
        ", ".join(slower),
    ]


TEXT = """\
## Parts of a chunk of {size}, written in place, in ms

float64 in the page cache. zarr and zarrs rewrite the chunk. ratio: the fastest of these to ours.

{chunks}
## Parts of a shard of {size} with inner chunks of {inner}, written in place, in ms

The same, of one shard that has all of its inner chunks.

{shards}
`examples/write_in_place.py`, in which eight processes write rows of one chunk, or shard, at the
same time:

{lost}
"""
