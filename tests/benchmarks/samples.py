"""How long small selections take that are read one at a time, and from where on zarr is faster.

    python tests/benchmarks/samples.py [--quick]

Prints two tables. The first compares `SyncReader` with others, in microseconds for a selection at
a random position; those that are installed take part. The second is behind `MAX_CHUNKS` and
`MAX_BYTES` of `numcodecs_bytes.sync_reader`: `SyncReader` without these limits, and zarr.
"""

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import contenders
import numpy as np
import zarr

from numcodecs_bytes import SyncReader, sync_reader

sys.path.append(str(Path(__file__).parents[1] / "engine"))
import slow_mounts

TURN_SECONDS = 0.01
NAMES = ("np.memmap", "h5py", "zarr", "zarrista", "TensorStore", "ours", "SyncReader")


def layouts(shape: tuple[int, int], tile: int) -> dict[str, dict[str, Any]]:
    """Return how the same float64 are stored."""
    a_row = (1, shape[1])
    return {
        "one chunk": {"chunks": shape},
        "one chunk, big-endian": {"chunks": shape},
        "a row a chunk": {"chunks": a_row},
        f"chunks of {tile} x {tile}": {"chunks": (tile, tile)},
        "a shard, a row a chunk": {"chunks": a_row, "shards": shape},
    }


def measure(
    reads: dict[str, contenders.Read],
    selections: list[Any],
    *,
    quick: bool,
    before: Callable[[], Any] | None = None,
) -> dict[str, float]:
    """Return the median over turns, in an order that changes, of the microseconds for a read.

    A turn is many reads, or a single one if something is done before, which does not count.
    """
    expected = [np.asarray(reads["ours"](selection)) for selection in selections[:8]]
    num_reads: dict[str, int] = {}
    for who, read in reads.items():
        start = time.perf_counter()
        for selection, values in zip(selections, expected, strict=False):
            if not np.array_equal(np.asarray(read(selection)).reshape(values.shape), values):
                raise RuntimeError(f"{who} does not return what the others return")
        seconds = (time.perf_counter() - start) / len(expected)
        many = min(max(int(TURN_SECONDS / seconds), 1), len(selections))
        num_reads[who] = 1 if quick or before else many
    times: dict[str, list[float]] = {who: [] for who in reads}
    names, order = list(reads), random.Random(0)  # noqa: S311 # no secret
    for _ in range(1 if quick else 5 if before else 15):
        order.shuffle(names)
        for who in names:
            some, read = order.sample(selections, num_reads[who]), reads[who]
            if before:
                before()
            start = time.perf_counter()
            for selection in some:
                read(selection)
            times[who].append(1e6 * (time.perf_counter() - start) / len(some))
    return {who: statistics.median(of_one) for who, of_one in times.items()}


def compare(folder: Path, *, quick: bool) -> None:
    """Print the microseconds of each contender."""
    shape, tile = ((256, 256), 128) if quick else ((4096, 2048), 512)
    rng = np.random.default_rng(0)
    values, box = rng.random(shape), 64
    rows = rng.integers(0, shape[0] - box, 200).tolist()
    print_row("selection", "of", *NAMES, "gain")
    print_row("---", "---", *["---:"] * (len(NAMES) + 1))
    for number, (name, settings) in enumerate(layouts(shape, tile).items()):
        inside = folder / str(number)
        inside.mkdir()
        arrays = contenders.readers(inside, values, "big" if "big" in name else "little", settings)
        time.sleep(0 if quick else 2.1)  # a file that has just changed has no cached index
        quarter, across = slice(30, 30 + shape[1] // 4), slice(50, 50 + box)
        for what, selections in (
            ("row", [(row, slice(None)) for row in rows]),
            ("quarter row", [(row, quarter) for row in rows]),
            (f"box of {box} x {box}", [(slice(row, row + box), across) for row in rows]),
            ("element", [(row, 7) for row in rows]),
        ):
            reads = {who: contenders.read_of(who, arrays[who]) for who in NAMES if who in arrays}
            took = measure(reads, selections, quick=quick)
            times = [f"{took[who]:,.0f}" if who in took else "" for who in NAMES]
            print_row(what, name, *times, f"{took['ours'] / took['SyncReader']:.1f}")


def limits(folder: Path, *, quick: bool) -> None:
    """Print from how many chunks on others are faster, without the limits of `SyncReader`."""
    sync_reader.MAX_CHUNKS = sync_reader.MAX_BYTES = 1 << 40
    height, length = 64 if quick else 1024, 4096  # of float32: 16 KiB
    grids = {"chunks of 16 KiB": (1, length), "one chunk": (height, length)}
    numbers = {"chunks of 16 KiB": (1, 2, 4, 8, 16, 32, 64), "one chunk": (4, 64, 512)}
    print_row("rows of 16 KiB", "of", "zarr", "ours", "SyncReader", "gain")
    print_row("---:", "---", "---:", "---:", "---:", "---:")
    with contextlib.ExitStack() as stack:
        places: dict[str, tuple[Path, Path, Callable[[], Any] | None]] = {}
        places["page cache"] = folder, folder, None
        try:
            mount = stack.enter_context(slow_mounts.slow_mount(folder, reads=1))
            places["slow mount (1 ms)"] = mount.below, mount.folder, mount.forget
        except slow_mounts.CantMountError as error:
            print(f"no slow mount: {error}", file=sys.stderr)
        for (where, (below, above, before)), grid in product(places.items(), grids):
            name = grid.replace(" ", "-")
            shape = height, length
            contenders.create(below / name, "little", shape=shape, chunks=grids[grid], dtype="f4")
            arrays = contenders.opened_by_all(lambda _, path=above / name: path)
            reads = {who: partial(getitem, arrays[who]) for who in ("zarr", "ours")}
            reads["SyncReader"] = partial(getitem, SyncReader(arrays["ours"]))
            for number in numbers[grid][: 2 if quick else None]:
                starts = range(0, height - number + 1, max((height - number) // 100, 1))
                selections = [(slice(start, start + number),) for start in starts]
                took = measure(reads, selections, quick=quick, before=before)
                gain = f"{min(took['zarr'], took['ours']) / took['SyncReader']:.2f}"
                times = [f"{each:,.0f}" for each in took.values()]
                print_row(str(number), f"{grid}, {where}", *times, gain)


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small arrays: does it work?")
    arguments = parser.parse_args()
    for table in (compare, limits):
        print(f"\nzarr {zarr.__version__}, {os.cpu_count()} cores, load {contenders.load():.1f}\n")
        with tempfile.TemporaryDirectory() as folder:
            table(Path(folder), quick=arguments.quick)


if __name__ == "__main__":
    main()
