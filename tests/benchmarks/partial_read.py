"""Partial and whole reads against zarr's own codec, the zarrs pipeline and the bare store.

    python tests/benchmarks/partial_read.py [--quick] > tests/benchmarks/RESULTS.md

Everything in one process, the contenders in turn, medians. Needs about 3 GB in the folder for
temporary files; zarrs is left out where it is not installed. No test runs this.
"""

import argparse
import asyncio
import importlib.util
import itertools
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.core.codec_pipeline
import zarr.storage
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from numcodecs_bytes._byte_ranges import plan_partial_read
from numcodecs_bytes.zarr import (
    LOCAL_REQUEST_COST_BYTES,
    LOCAL_REQUEST_COST_BYTES_OF_MUCH,
    MUCH_BYTES,
    REMOTE_REQUEST_COST_BYTES,
)

MIB = 1 << 20
CODECS = {"ours": "numcodecs_bytes.zarr.BytesCodec", "zarr": "zarr.codecs.bytes.BytesCodec"}
PIPELINES = {"default": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
    PIPELINES["fused"] = "zarr.core.codec_pipeline.FusedCodecPipeline"
LATENCY, BANDWIDTH = 0.03, 100e6
SHORT = 0.005


def medians(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median time of each contender in seconds, the contenders taking turns.

    In a turn, what takes less than 5 ms runs five times, for the caches that the one before left
    are no property of it; the first run of a turn does not count then.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            turn: list[float] = []
            while not turn or (turn[0] < SHORT and len(turn) < 5):
                start = time.perf_counter()
                run()
                turn.append(time.perf_counter() - start)
            times[name] += turn[1:] or turn
    return {name: statistics.median(of_one) for name, of_one in times.items()}


def create(path: Path, shape: tuple[int, int], chunks: tuple[int, int], endian: str) -> None:
    array = zarr.create_array(
        path,
        shape=shape,
        chunks=chunks,
        dtype="f8",
        compressors=None,
        serializer=zarr.codecs.BytesCodec(endian=endian),
    )
    array[:] = np.random.default_rng(0).random(shape)
    os.sync()  # else the writing goes on while the reading is measured


def opened(store: Any, codec: str, pipeline: str) -> zarr.Array:
    with zarr.config.set({"codecs.bytes": CODECS[codec], "codec_pipeline.path": pipeline}):
        return zarr.open_array(store, mode="r")


def selections(n: int) -> dict[str, tuple[Any, Callable[[zarr.Array], Any]]]:
    rng = np.random.default_rng(1)
    points = rng.integers(0, n, 1000), rng.integers(0, n, 1000)
    return {
        "row": ((n // 2, slice(0, n)), lambda a: a[n // 2]),
        "64x64 box": ((slice(1000, 1064), slice(2000, 2064)), lambda a: a[1000:1064, 2000:2064]),
        "1000 points": (points, lambda a: a.vindex[points]),
        "column": ((slice(0, n), slice(7, 8)), lambda a: a[:, 7]),
    }


def bare(path: Path, selection: Any, shape: tuple[int, int]) -> Callable[[], Any]:
    """Return what gets the same ranges from the store itself, in one thread."""
    plan = plan_partial_read(selection, shape, 8, LOCAL_REQUEST_COST_BYTES)
    if plan is None or plan.num_bytes > MUCH_BYTES:
        plan = plan_partial_read(selection, shape, 8, LOCAL_REQUEST_COST_BYTES_OF_MUCH)
    chunk = zarr.storage.StorePath(zarr.storage.LocalStore(path, read_only=True), "c/0/0")
    sync(chunk.store._open())
    ranges = [None]
    if plan is not None:
        ranges = [
            RangeByteRequest(s, e)
            for s, e in zip(plan.starts.tolist(), plan.ends.tolist(), strict=True)
        ]

    def get_all() -> None:
        for byte_range in ranges:
            chunk.get_sync(prototype=default_buffer_prototype(), byte_range=byte_range)

    async def in_a_thread() -> None:
        await asyncio.to_thread(get_all)

    return lambda: sync(in_a_thread())


def partial_reads(folder: Path, rounds: int) -> None:
    print("\n## Partial reads of a single chunk in LocalStore, in ms\n")
    print("zarr: its own codec on the 128 MiB chunk; bare: the same ranges from the store alone.\n")
    print("| chunk | endian | selection | pipeline | ours | zarr | zarrs | bare | zarr / ours |")
    print("|---|---|---|---|---|---|---|---|---|")
    zarrs_own: dict[Any, Any] = {}
    for n, endian in itertools.product((4096, 11584), ("little", "big")):
        path = folder / f"{n}-{endian}"
        create(path, (n, n), (n, n), endian)
        for name, (selection, select) in selections(n).items():
            for pipeline, pipeline_path in PIPELINES.items():
                arrays = {"ours": opened(path, "ours", pipeline_path)}
                if n == 4096:
                    arrays["zarr"] = opened(path, "zarr", pipeline_path)
                if importlib.util.find_spec("zarrs"):
                    arrays["zarrs"] = opened(path, "ours", "zarrs.ZarrsCodecPipeline")
                contenders = {who: lambda a=a, s=select: s(a) for who, a in arrays.items()}
                contenders["bare"] = bare(path, selection, (n, n))
                slow = name == "column" and n > 4096
                found = medians(contenders, 3 if slow else rounds)
                zarrs_own.setdefault((endian, name, pipeline), found.get("zarr"))
                ratio = zarrs_own[endian, name, pipeline] / found["ours"]
                cells = [
                    f"{found[who] * 1e3:.2f}" if who in found else "-"
                    for who in ("ours", "zarr", "zarrs", "bare")
                ]
                print(
                    f"| {n * n * 8 // MIB} MiB | {endian} | {name} | {pipeline} | "
                    f"{' | '.join(cells)} | {ratio:.1f} |",
                    flush=True,
                )
    print(WHERE_SLOWER)


WHERE_SLOWER = """
Where ours is slower: zarrs reads and indexes in Rust, without zarr's event loop, and needs no
request to a store for a byte range, which opens the file each time: so a column takes what its
requests take, or reading over it. A row and a small box take what zarr's own indexing, pipeline,
event loop and thread take; of 0.25 ms, codec and store have 0.04 ms."""


def whole_reads(folder: Path, rounds: int) -> None:
    print("\n## Whole reads of 256 MiB in LocalStore, in ms\n")
    print("| chunks | endian | pipeline | ours | zarr | zarr / ours |")
    print("|---|---|---|---|---|---|")
    chunks = {"1 MiB": (32, 4096), "8 MiB": (256, 4096), "128 MiB": (4096, 4096)}
    for (size, chunk), endian in itertools.product(chunks.items(), ("little", "big")):
        path = folder / f"whole-{size}-{endian}"
        create(path, (8192, 4096), chunk, endian)
        for pipeline, pipeline_path in PIPELINES.items():
            arrays = {who: opened(path, who, pipeline_path) for who in CODECS}
            found = medians({who: lambda a=a: a[:] for who, a in arrays.items()}, rounds)
            print(
                f"| {size} | {endian} | {pipeline} | {found['ours'] * 1e3:.0f} | "
                f"{found['zarr'] * 1e3:.0f} | {found['zarr'] / found['ours']:.2f} |",
                flush=True,
            )


class SimulatedStore(zarr.storage.WrapperStore):
    """A store that answers after 30 ms, all answers sharing a link of 100 MB/s."""

    _supports_sync_io = False
    link: asyncio.Lock

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        buffer = await super().get(key, prototype, byte_range)
        await asyncio.sleep(LATENCY)
        async with self.link:
            await asyncio.sleep(0 if buffer is None else len(buffer) / BANDWIDTH)
        return buffer


def simulated_store(folder: Path) -> None:
    print(f"\n## A simulated store: {LATENCY * 1e3:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s, in s\n")
    print("best: the best of all request costs from 0 to 16 MiB in powers of two.\n")
    print("| chunk | selection | default | best | at a cost of | default / best |")
    print("|---|---|---|---|---|---|")
    path = folder / "4096-big"
    store = SimulatedStore(zarr.storage.LocalStore(path, read_only=True))
    store.link = asyncio.Lock()
    array = opened(store, "ours", PIPELINES["default"])
    for name, (_, select) in selections(4096).items():
        found = {}
        for cost in (REMOTE_REQUEST_COST_BYTES, 0, *(1 << k for k in range(12, 25))):
            if cost not in found and not (cost < 1 << 15 and name == "column"):
                with zarr.config.set({"numcodecs_bytes.request_cost_bytes": cost}):
                    start = time.perf_counter()
                    select(array)
                    found[cost] = time.perf_counter() - start
        best = min(found, key=lambda cost: found[cost])
        default = found[REMOTE_REQUEST_COST_BYTES]
        print(
            f"| 128 MiB | {name} | {default:.3f} | {found[best]:.3f} | {best} | "
            f"{default / found[best]:.2f} |",
            flush=True,
        )


def main() -> None:
    """Run everything and print it as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    warnings.simplefilter("ignore")
    zarr.registry.get_codec_class("bytes")
    packages = [
        p
        for p in ("numcodecs-bytes", "zarr", "numcodecs", "numpy", "zarrs")
        if p == "numcodecs-bytes" or importlib.util.find_spec(p)
    ]
    print("# Results\n")
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}; "
        + ", ".join(f"{p} {version(p)}" for p in packages)
        + f"; medians of {rounds} rounds in turn, data in the page cache."
    )
    with tempfile.TemporaryDirectory() as folder:
        partial_reads(Path(folder), rounds)
        simulated_store(Path(folder))
        whole_reads(Path(folder), rounds)


if __name__ == "__main__":
    main()
