"""Partial reads against zarr's own codec, the zarrs pipeline, TensorStore and the bare store."""

import asyncio
import functools
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plots
import zarr
import zarr.storage
from measure import MIB, Settings, cases, measure, medians, table
from whole import PIPELINES, ZARRS, create, opened, opened_by_tensorstore
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

LATENCY, BANDWIDTH = 0.03, 100e6
# Edge of the chunk in float64, 128 MiB and 1 GiB. zarr's own codec reads the smaller one only.
EDGES = (4096, 11584)
QUICK_EDGES = (2112,)
ENDIANS = ("little", "big")
WHO = ("ours", "zarr", "zarrs", "tensorstore", "bare")
README_NAMES = {"zarr": "zarr alone", "ours": "with numcodecs_bytes"}


class CountingStore(zarr.storage.LocalStore):
    """Count the bytes that are fetched of chunks."""

    num_bytes = 0

    def count(self, key: str, buffer: Any) -> Any:
        self.num_bytes += 0 if key.endswith("zarr.json") or buffer is None else len(buffer)
        return buffer

    async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
        return self.count(key, await super().get(key, *args, **kwargs))

    def get_sync(self, key: str, *args: Any, **kwargs: Any) -> Any:
        return self.count(key, super().get_sync(key, *args, **kwargs))


def fetched_bytes(path: Path, codec: str, select: Callable[[zarr.Array], Any]) -> int:
    store = CountingStore(path, read_only=True)
    select(opened(store, codec, PIPELINES["default"]))
    return store.num_bytes


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


def section(settings: Settings) -> str:
    edges = QUICK_EDGES if settings.quick else EDGES
    reads = partial_reads(settings, edges)
    introduction = INTRODUCTION.format(chunk=as_mib(edges[0]))
    return "\n".join([introduction, reads, WHERE_SLOWER, simulated_store(settings, edges[0])])


INTRODUCTION = """\
## Partial reads of a single chunk in LocalStore, in ms

zarr, tensorstore: on the chunk of {chunk} only, which they read whole; bare: the same ranges from
the store alone.

![partial reads](plots/partial-reads.svg)
"""


def as_mib(edge: int) -> str:
    return f"{edge * edge * 8 // MIB} MiB"


def read_by_tensorstore(path: Path, selection: Any) -> Any:
    """Read a selection of an array opened anew (0.05 ms): one read before may keep the chunk."""
    array = opened_by_tensorstore(path)
    is_points = all(isinstance(s, np.ndarray) for s in selection)
    return (array.vindex[selection] if is_points else array[selection]).read().result()


def partial_reads(settings: Settings, edges: tuple[int, ...]) -> str:
    rows: list[list[str]] = []
    times: dict[str, dict[str, float]] = {}
    fetched: dict[str, dict[str, float]] = {}
    all_cases = (
        case
        for edge in edges
        for case in itertools.product([edge], ENDIANS, selections(edge).items(), PIPELINES.items())
    )
    for n, endian, (name, (selection, select)), (pipeline, pipeline_path) in cases(
        "partial reads", all_cases
    ):
        path = settings.folder / f"{n}-{endian}"
        if not path.exists():
            create(path, (n, n), (n, n), endian)
            zarr.open_array(path)[:] = np.random.default_rng(0).random((n, n))
            os.sync()  # else the writing goes on while the reading is measured
        arrays = {"ours": opened(path, "ours", pipeline_path)}
        if n == edges[0]:
            arrays["zarr"] = opened(path, "zarr", pipeline_path)
        arrays["zarrs"] = opened(path, "ours", ZARRS)
        contenders = {who: functools.partial(select, a) for who, a in arrays.items()}
        if n == edges[0]:
            contenders["tensorstore"] = functools.partial(read_by_tensorstore, path, selection)
        contenders["bare"] = bare(path, selection, (n, n))
        found = medians(measure(contenders, 0.05 if settings.quick else 0.4, least=3))
        rows.append(
            [as_mib(n), endian, name, pipeline]
            + [f"{found[who] * 1e3:.2f}" if who in found else "-" for who in WHO]
            + [f"{found['zarr'] / found['ours']:.1f}" if "zarr" in found else "-"]
        )
        if (n, endian, pipeline) == (edges[0], "big", "default"):
            times[name] = {who: found[who] * 1e3 for who in WHO[:-1]}
            fetched[name] = {who: fetched_bytes(path, who, select) / MIB for who in README_NAMES}
    what = f"from a chunk of {as_mib(edges[0])}, big-endian float64 (less is better)"
    plots.bars(settings.out / "plots/partial-reads.svg", {f"ms, {what}": times}, log=True)
    panels = {"MiB fetched": fetched, f"ms, {what}": times}
    plots.bars(
        settings.out / "plots/what-it-does.svg",
        {
            label: {
                name: {readable: of_one[who] for who, readable in README_NAMES.items()}
                for name, of_one in panel.items()
            }
            for label, panel in panels.items()
        },
        log=True,
    )
    return table(["chunk", "endian", "selection", "pipeline", *WHO, "zarr / ours"], rows)


WHERE_SLOWER = """\
Where ours is slower: zarrs reads and indexes in Rust, without zarr's event loop, and needs no
request to a store for a byte range, which opens the file each time: so a column takes what its
requests take, or reading over it. What a row and a small box take beyond the
bare requests is zarr's own indexing, pipeline and event loop.
"""


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


def simulated_store(settings: Settings, edge: int) -> str:
    array_store = zarr.storage.LocalStore(settings.folder / f"{edge}-big", read_only=True)
    store = SimulatedStore(array_store)
    store.link = asyncio.Lock()
    array = opened(store, "ours", PIPELINES["default"])
    costs = (1 << 20, 1 << 24) if settings.quick else (0, *(1 << k for k in range(12, 25)))
    rows = []
    for name, (_, select) in cases("simulated store", selections(edge).items()):
        found = {}
        for cost in (REMOTE_REQUEST_COST_BYTES, *costs):
            if cost not in found and not (cost < 1 << 15 and name == "column"):
                with zarr.config.set({"numcodecs_bytes.request_cost_bytes": cost}):
                    start = time.perf_counter()
                    select(array)
                    found[cost] = time.perf_counter() - start
        best = min(found, key=lambda cost: found[cost])
        default = found[REMOTE_REQUEST_COST_BYTES]
        measured = f"{default:.3f}", f"{found[best]:.3f}", str(best), f"{default / found[best]:.2f}"
        rows.append([as_mib(edge), name, *measured])
    return (
        f"## A simulated store: {LATENCY * 1e3:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s, in s\n\n"
        "best: the best of all request costs from 0 to 16 MiB in powers of two.\n\n"
        + table(["chunk", "selection", "default", "best", "at a cost of", "default / best"], rows)
    )
