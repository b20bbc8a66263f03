"""Cost over work: time per byte, time per chunk, and peak memory."""

import functools
import itertools
import tracemalloc
from typing import Any

import numpy as np
import plots
import raw
import zarr.storage
from measure import GIB, KIB, MIB, Settings, as_size, cases, measure, medians, table
from whole import CODECS, PIPELINES, create, opened

CHUNK_ITEMS = 64


def section(settings: Settings) -> str:
    size, per_byte = time_per_byte(settings)
    count, per_chunk = time_per_chunk(settings)
    plots.lines(
        settings.out / "plots/cost.svg",
        {"ns per byte over bytes of the chunk": size, "µs per chunk over chunks": count},
    )
    heading = "## Cost over work\n\n![cost over work](plots/cost.svg)\n"
    return "\n".join([heading, per_byte, per_chunk, peak_memory(settings)])


Lines = dict[str, dict[float, float]]


def time_per_byte(settings: Settings) -> tuple[Lines, str]:
    sizes = [KIB << k for k in range(0, 21, 2) if not settings.quick or k <= 12]
    assert sizes[-1] == GIB or settings.quick
    found: dict[Any, dict[str, float]] = {}
    for endian, size in cases("bytes", itertools.product((raw.NATIVE, raw.SWAPPED), sizes)):
        contenders = raw.contenders_of("encode C", "f8", endian, size)
        seconds = 0.01 if settings.quick else 0.3
        found[endian, size] = medians(measure(contenders, seconds, least=3))
    raw.random_bytes.cache_clear()
    swapped = {size: found[raw.SWAPPED, size] for size in sizes}
    points = {
        f"{who}, swapped": {size: m[who] / size * 1e9 for size, m in swapped.items()}
        for who in ("ours", "zarr", "memcpy")
    }
    points["ours, native"] = {s: found[raw.NATIVE, s]["ours"] / s * 1e9 for s in sizes}
    rows = (
        [as_size(s), *(f"{points[who][s]:.3f}" for who in list(points)[:3])]
        + [f"{found[raw.NATIVE, s][who] * 1e6:.2f}" for who in ("ours", "zarr")]
        for s in sizes
    )
    header = [
        *("bytes", "ours, ns per byte", "zarr, ns per byte", "memcpy, ns per byte"),
        *("native: ours, µs", "native: zarr, µs"),
    ]
    return points, f"### Encoding float64 to the other byte order\n\n{table(header, rows)}"


def time_per_chunk(settings: Settings) -> tuple[Lines, str]:
    points: Lines = {}
    rows = []
    counts = [10**k for k in range(3 if settings.quick else 6)]
    for count, what in cases("chunks", itertools.product(counts, ("write", "read"))):
        data = np.random.default_rng(0).random(count * CHUNK_ITEMS)
        store = zarr.storage.MemoryStore()
        create(store, data.shape, (CHUNK_ITEMS,), "big")
        arrays = {
            f"{codec}, {name}": opened(store, codec, pipeline, "r+")
            for (name, pipeline), codec in itertools.product(PIPELINES.items(), CODECS)
        }
        arrays["ours, default"][:] = data
        contenders = {
            who: functools.partial(a.__getitem__, ...)
            if what == "read"
            else functools.partial(a.__setitem__, ..., data)
            for who, a in arrays.items()
        }
        seconds, least = (0.05 if settings.quick else 1), (2 if count >= 10_000 else 5)
        found = medians(measure(contenders, seconds, least))
        if what == "read":
            for who, took in found.items():
                points.setdefault(who, {})[count] = took / count * 1e6
        row = [f"{took / count * 1e6:.1f}" for took in found.values()]
        ratios = (found[f"zarr, {p}"] / found[f"ours, {p}"] for p in PIPELINES)
        rows.append([f"{count:,}", what, *row, *(f"{r:.2f}" for r in ratios)])
    title = f"### Chunks of {CHUNK_ITEMS} big-endian float64 in MemoryStore, in µs per chunk\n"
    header = ["chunks", "what", *points, *(f"{p}: zarr / ours" for p in PIPELINES)]
    return points, f"{title}\n{table(header, rows)}"


def peak_memory(settings: Settings) -> str:
    shape = (512, 1024) if settings.quick else (8192, 4096)
    data = np.random.default_rng(0).random(shape)
    rows = []
    for chunks, what in cases("memory", itertools.product((8, 2), ("write", "read"))):
        row = [what, as_size(data.nbytes // chunks)]
        for pipeline, codec in itertools.product(PIPELINES, CODECS):
            path = settings.folder / f"memory-{chunks}"
            if not path.exists():
                create(path, shape, (shape[0] // 2, shape[1] * 2 // chunks), "big")
            array = opened(path, codec, PIPELINES[pipeline], "r+")
            peaks = []
            for _ in range(3):
                tracemalloc.start()
                array.__setitem__(..., data) if what == "write" else array[...]
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            row.append(f"{max(peaks) / MIB:.1f}")
        rows.append(row)
    return (
        f"### Peak memory of reading and writing {data.nbytes // MIB} MiB in LocalStore, in MiB\n\n"
        "The largest of three runs by tracemalloc. Reading includes the result, writing not the "
        "data; big-endian float64.\n\n"
        + table(
            ["what", "chunks", *(f"{c}, {p}" for p, c in itertools.product(PIPELINES, CODECS))],
            rows,
        )
    )
