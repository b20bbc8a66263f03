"""Many chunks in local files: every size, selection and byte order, every contender in turn."""

import functools
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plots
import zarr
from measure import KIB, MIB, Contenders, Settings, as_size, cases, is_slower, measure, table
from partial_read import read_by_tensorstore
from whole import OUR_PIPELINES, PIPELINES, ZARRS, create, opened

# Bytes and shape of a chunk of float64, and bytes of the array.
SIZES = (
    (4 * KIB, (32, 16), 8 * MIB),
    (16 * KIB, (64, 32), 16 * MIB),
    (64 * KIB, (128, 64), 32 * MIB),
    (256 * KIB, (256, 128), 64 * MIB),
    (MIB, (512, 256), 64 * MIB),
    (8 * MIB, (1024, 1024), 128 * MIB),
)
QUICK_SIZES = ((4 * KIB, (32, 16), MIB), (64 * KIB, (128, 64), 2 * MIB))
PEERS = ("zarrs", "tensorstore")
# Who is to be no slower than whom, and how the columns of ratios are called.
PAIRS = {
    "BytesPipeline / zarr, default": ("BytesPipeline", "zarr, default"),
    "BytesPipeline / zarr, fused": ("BytesPipeline", "zarr, fused"),
    "BytesPipeline / zarrs": ("BytesPipeline", "zarrs"),
    "BytesPipeline / tensorstore": ("BytesPipeline", "tensorstore"),
}


def selections(shape: tuple[int, ...], chunk: tuple[int, ...]) -> dict[str, tuple[str, Any]]:
    """Return what to select, and how."""
    rng = np.random.default_rng(1)
    mesh = tuple(np.sort(rng.choice(n, n // 4, replace=False)) for n in shape)
    return {
        "whole": ("basic", tuple(slice(0, n) for n in shape)),
        "one element per chunk": (
            "basic",
            tuple(slice(c // 2, n, c) for n, c in zip(shape, chunk, strict=True)),
        ),
        "1000 points": ("vindex", tuple(rng.integers(0, n, 1000) for n in shape)),
        "crop": ("basic", tuple(slice(n // 8, n // 8 + n // 4) for n in shape)),
        "column": ("basic", (slice(0, shape[0]), shape[1] // 2)),
        "oindex": ("oindex", mesh),
    }


def select(array: zarr.Array, way: str, selection: Any) -> Any:
    return array[selection] if way == "basic" else getattr(array, way)[selection]


def contenders_of(path: Path, way: str, selection: Any) -> Contenders:
    """Return who reads a selection; the second zarr of a pipeline is the same one again."""
    arrays = {}
    for name, pipeline in PIPELINES.items():
        arrays |= {f"{who}, {name}": opened(path, "zarr", pipeline) for who in ("zarr", "again")}
    arrays |= {p.rsplit(".", 1)[-1]: opened(path, "ours", p) for p in OUR_PIPELINES.values()}
    arrays["zarrs"] = opened(path, "ours", ZARRS)
    contenders: Contenders = {
        who: functools.partial(select, array, way, selection) for who, array in arrays.items()
    }
    if way == "basic":
        contenders["tensorstore"] = functools.partial(read_by_tensorstore, path, selection)
    return contenders


def section(settings: Settings) -> str:
    rows, slower, plotted = [], [], {}
    sizes = QUICK_SIZES if settings.quick else SIZES
    for (size, chunk, total), endian in cases(
        "many chunks", itertools.product(sizes, ("little", "big"))
    ):
        path = settings.folder / f"many-{size}-{endian}"
        num = total // size
        along = 1 << ((num.bit_length() - 1) // 2 + (num.bit_length() - 1) % 2)
        shape = (chunk[0] * along, chunk[1] * (num // along))
        create(path, shape, chunk, endian)
        zarr.open_array(path)[...] = np.random.default_rng(0).random(shape)
        os.sync()
        for name, (way, selection) in selections(shape, chunk).items():
            contenders = contenders_of(path, way, selection)
            # is_slower can say yes of ten rounds or more.
            seconds, least = (0.05, 3) if settings.quick else (1.5, 11)
            times = measure(contenders, seconds, least=least)
            found = {who: float(np.median(of_one)) for who, of_one in times.items()}
            case = [f"{num} x {as_size(size)}", endian, name]
            rows.append([*case, *(f"{found[w] * 1e3:.2f}" if w in found else "-" for w in WHO)])
            for label, (ours, theirs) in PAIRS.items():
                if theirs in times and ours in times and is_slower(times, ours, theirs):
                    ratio = f"{found[theirs] / found[ours]:.2f}"
                    slower.append([*case, label, ratio])
            if endian == "big" and name in ("whole", "one element per chunk", "crop"):
                shown = ("zarr, fused", "BytesPipeline", *PEERS)
                plotted[f"{as_size(size)}, {name}"] = {
                    who: found[who] * 1e3 for who in shown if who in found
                }
    plots.bars(
        settings.out / "plots/many-chunks.svg",
        {"ms, big-endian float64 (less is better)": plotted},
        log=True,
    )
    return "\n".join(
        [
            MANY.format(table=table(["chunks", "endian", "selection", *WHO], rows)),
            SLOWER.format(
                table=table(["chunks", "endian", "selection", "pair", "theirs / ours"], slower)
            ),
            peak_memory(settings),
        ]
    )


WHO = (
    *(f"{who}, {name}" for name in PIPELINES for who in ("zarr", "again")),
    *(p.rsplit(".", 1)[-1] for p in OUR_PIPELINES.values()),
    *PEERS,
)
MANY = """\
## Many chunks in LocalStore, in ms

float64 in the page cache. zarr: its own codec, in its default and its fused pipeline; again: the
same once more, for the noise. crop: a quarter along each axis, oindex: a quarter of the indices
along each axis. TensorStore opens its array anew in each turn.

![many chunks](plots/many-chunks.svg)

{table}"""
SLOWER = """\
### Where ours is slower

In more rounds than chance gives once in 700 times.

{table}"""


def peak_memory(settings: Settings) -> str:
    """Return how much the memory of a process grows while it reads, beyond the result."""
    side = 1024 if settings.quick else 8192
    rows = []
    for chunk in (64 * KIB,) if settings.quick else (64 * KIB, 8 * MIB, 128 * MIB):
        path = settings.folder / f"memory-{chunk}"
        edge = min(int((chunk // 8) ** 0.5), side)
        create(path, (side, side // 2), (edge, min(edge, side // 2)), "big")
        zarr.open_array(path)[...] = 1
        for what in ("whole", "half"):
            grown = {who: peak_of(path, who, what) for who in MEMORY}
            rows.append([as_size(chunk), what, *(f"{g / MIB:.0f}" for g in grown.values())])
    size = as_size(side * side // 2 * 8)
    return PEAK.format(size=size, table=table(["chunks", "selection", *MEMORY], rows))


MEMORY = {
    **{f"zarr, {name}": ("zarr", path) for name, path in PIPELINES.items()},
    **{p.rsplit(".", 1)[-1]: ("ours", p) for p in OUR_PIPELINES.values()},
    "zarrs": ("ours", ZARRS),
}
PEAK = """\
### Peak memory in MiB

What reading big-endian float64 adds to the largest resident set of a process, without the result:
all of {size}, or every second column of it.

{table}"""


def peak_of(path: Path, who: str, what: str) -> int:
    arguments = [sys.executable, "-W", "ignore", __file__, str(path), *MEMORY[who], what]
    return int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def read_and_print_peak(path: str, codec: str, pipeline: str, what: str) -> None:
    def peak() -> int:  # not ru_maxrss, which a process inherits from the one that starts it
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) * KIB  # type: ignore[index]

    array = opened(path, codec, pipeline)
    array[:1, :1]
    before = peak()
    result = array[:, ::2] if what == "half" else array[...]
    print(peak() - before - result.nbytes)


if __name__ == "__main__":
    read_and_print_peak(*sys.argv[1:])
