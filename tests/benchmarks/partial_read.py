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
import zarr.codecs
import zarr.storage
from measure import MIB, Settings, cases, measure, medians, table
from whole import OUR_PIPELINES, PIPELINES, ZARRS, create, opened, opened_by_tensorstore
from zarr.core.sync import sync

from numcodecs_bytes._engine import files
from numcodecs_bytes._engine.layout import layout_of
from numcodecs_bytes._engine.plan import plan_of, split

LATENCY, BANDWIDTH = 0.03, 100e6
# Edge of the chunk in float64, 128 MiB and 1 GiB. zarr's own codec reads the smaller one only.
EDGES = (4096, 11584)
QUICK_EDGES = (2112,)
ENDIANS = ("little", "big")
WHO = ("ours", "zarr", "zarrs", "tensorstore", "bare")


def selections(n: int) -> dict[str, tuple[Any, Callable[[zarr.Array], Any]]]:
    rng = np.random.default_rng(1)
    points = rng.integers(0, n, 1000), rng.integers(0, n, 1000)
    return {
        "row": ((n // 2, slice(0, n)), lambda a: a[n // 2]),
        "64x64 box": ((slice(1000, 1064), slice(2000, 2064)), lambda a: a[1000:1064, 2000:2064]),
        "1000 points": (points, lambda a: a.vindex[points]),
        "column": ((slice(0, n), 7), lambda a: a[:, 7]),
        "every 16th row": ((slice(0, n, 16), slice(0, n)), lambda a: a[::16]),
        "whole chunk": ((slice(0, n), slice(0, n)), lambda a: a[...]),
    }


def bare(path: Path, selection: Any, shape: tuple[int, int]) -> Callable[[], Any]:
    """Return what reads the same ranges from the file itself, in one thread."""

    def read() -> None:
        layout = layout_of(shape, np.dtype("f8"), np.dtype("f8"))
        plan: Any = plan_of(selection, layout)
        descriptor = files.open_file(str(path / "c/0/0"))
        try:
            for _, part in split(plan, layout.item_size):
                starts = part.starts().tolist()
                files.read_pieces(descriptor, starts, part.length, files.memory_of)
        finally:
            os.close(descriptor)

    async def in_a_thread() -> None:
        await asyncio.to_thread(read)

    return lambda: sync(in_a_thread())


def section(settings: Settings) -> str:
    edges = QUICK_EDGES if settings.quick else EDGES
    reads = partial_reads(settings, edges)
    introduction = INTRODUCTION.format(chunk=as_mib(edges[0]))
    others = other_chunks(settings, edges[0])
    return "\n".join(
        [introduction, reads, WHERE_SLOWER, others, simulated_store(settings, edges[0])]
    )


INTRODUCTION = """\
## Partial reads of a single chunk in LocalStore, in ms

zarr, tensorstore: on the chunk of {chunk} only, which they read whole; bare: the same ranges of the
file, in a thread, without zarr.

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
    all_cases = (
        case
        for edge in edges
        for case in itertools.product([edge], ENDIANS, selections(edge).items(), PIPELINES.items())
        if edge == edges[0] or case[2][0] != "whole chunk"
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
    what = f"from a chunk of {as_mib(edges[0])}, big-endian float64 (less is better)"
    plots.bars(settings.out / "plots/partial-reads.svg", {f"ms, {what}": times}, log=True)
    return table(["chunk", "endian", "selection", "pipeline", *WHO, "zarr / ours"], rows)


WHERE_SLOWER = """\
Where ours is slower than zarrs: that reads and indexes in Rust, without zarr's event loop. What a
row and a small box take beyond the bare ranges is zarr's own indexing, pipeline and event loop, and
50 to 100 µs for the plan and the file.
"""


OTHERS = """\
## Partial reads of chunks that zarr's own codec pipelines read whole, in ms

A big-endian chunk of {chunk} in LocalStore, by `BytesPipeline` and zarr's default pipeline,
and by `FusedBytesPipeline` and zarr's fused one. Along: a line whose elements are neighbours
in the file; across: a line of the other axis.

"""


def create_other(path: Path, layout: str, n: int) -> None:
    """Write a chunk of a layout that zarr reads whole."""
    settings: dict[str, Any] = {"shape": (n, n), "chunks": (n, n), "compressors": None}
    if layout == "v3, transposed":
        settings |= {
            "dtype": "f8",
            "filters": zarr.codecs.TransposeCodec(order=(1, 0)),
            "serializer": zarr.codecs.BytesCodec(endian="big"),
        }
    else:
        settings |= {"dtype": ">f8", "order": layout[-1], "zarr_format": 2, "filters": None}
    zarr.create_array(path, **settings)[:] = np.random.default_rng(0).random((n, n))
    os.sync()


def other_chunks(settings: Settings, n: int) -> str:
    rows = []
    for layout, (name, pipeline) in cases(
        "other chunks",
        itertools.product(("v2, C", "v2, F", "v3, transposed"), OUR_PIPELINES.items()),
    ):
        path = settings.folder / f"{n} {layout}"
        if not path.exists():
            create_other(path, layout, n)
        arrays = {"ours": opened(path, "ours", pipeline)}
        arrays["zarr"] = opened(path, "zarr", PIPELINES[name])
        row, column = (lambda a: a[n // 2]), (lambda a: a[:, n // 2])
        along, across = (row, column) if layout == "v2, C" else (column, row)
        for what, select in {
            "along": along,
            "across": across,
            "64x64 box": lambda a: a[1000:1064, 2000:2064],
            "whole chunk": lambda a: a[...],
        }.items():
            contenders = {who: functools.partial(select, a) for who, a in arrays.items()}
            found = medians(measure(contenders, 0.05 if settings.quick else 0.4, least=3))
            times = [f"{found[who] * 1e3:.2f}" for who in arrays]
            rows.append([layout, what, name, *times, f"{found['zarr'] / found['ours']:.1f}"])
    names = ["layout", "selection", "pipeline", "ours", "zarr", "zarr / ours"]
    return OTHERS.format(chunk=as_mib(n)) + table(names, rows)


class SimulatedStore(zarr.storage.LocalStore):
    """A store that answers after 30 ms, all answers sharing a link of 100 MB/s."""

    _supports_sync_io = False
    link: asyncio.Lock

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        buffer = await super().get(key, prototype, byte_range)
        await asyncio.sleep(LATENCY)
        async with self.link:
            await asyncio.sleep(0 if buffer is None else len(buffer) / BANDWIDTH)
        return buffer


def simulated_store(settings: Settings, edge: int) -> str:
    zarr.config.set({"numcodecs_bytes.stores_with_ranges": [f"{__name__}.SimulatedStore"]})
    store = SimulatedStore(settings.folder / f"{edge}-big", read_only=True)
    store.link = asyncio.Lock()
    array = opened(store, "ours", PIPELINES["default"])
    gaps = (1 << 20, 1 << 24) if settings.quick else (0, *(1 << k for k in range(12, 25)))
    rows = []
    parts = {k: v for k, v in selections(edge).items() if k != "whole chunk"}
    for name, (_, select) in cases("simulated store", parts.items()):
        found: dict[int | None, float] = {}
        for gap in (None, *gaps):  # None: no setting
            if gap is None or gap >= 1 << 15 or name != "column":
                with zarr.config.set({"numcodecs_bytes.max_gap_bytes": gap}):
                    start = time.perf_counter()
                    select(array)
                    found[gap] = time.perf_counter() - start
        best, default = min(found, key=lambda gap: found[gap]), found[None]
        measured = f"{default:.3f}", f"{found[best]:.3f}", f"{best}", f"{default / found[best]:.2f}"
        rows.append([as_mib(edge), name, *measured])
    return (
        f"## A simulated store: {LATENCY * 1e3:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s, in s\n\n"
        "best: of the default, and of largest gaps from 0 to 16 MiB in powers of two.\n\n"
        + table(["chunk", "selection", "default", "best", "with gaps of", "default / best"], rows)
    )
