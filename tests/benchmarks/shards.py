"""Parts of shards: in local files, and far away."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.storage
from far import LINKS, against_zarr, served, store_of
from measure import Settings, as_size, cases, is_slower, measure, medians, table
from whole import OUR_PIPELINES, PIPELINES, ZARRS, opened

# Shape, shard and inner chunk of float32.
ARRAYS = (
    ((256, 256, 256), (256, 256, 256), (64, 64, 64)),
    ((512, 512, 256), (512, 512, 256), (256, 256, 64)),
    ((256, 256, 64), (256, 256, 64), (16, 16, 4)),
    ((256, 256, 128), (64, 64, 32), (32, 32, 16)),
)
QUICK_ARRAYS = (((64, 64, 64), (64, 64, 64), (16, 16, 16)),)
FAR_ARRAYS = ARRAYS[:2]


def create(path: Path, shape: Any, shard: Any, inner: Any, endian: str) -> None:
    codecs = [zarr.codecs.BytesCodec(endian=endian)]
    zarr.create_array(
        path,
        shape=shape,
        chunks=shard,
        dtype="f4",
        compressors=None,
        filters=None,
        serializer=zarr.codecs.ShardingCodec(chunk_shape=inner, codecs=codecs),
    )[...] = np.random.default_rng(0).random(shape, "f4")


def selections(shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    points = tuple(rng.integers(0, n, 1000) for n in shape)
    crop = tuple(slice(n // 4 + 1, n // 2 + 1) for n in shape)
    return {
        "whole": lambda a: a[...],
        "crop": lambda a: a[crop],
        "series": lambda a: a[:, shape[1] // 3, shape[2] // 3],
        "row": lambda a: a[shape[0] // 3, shape[1] // 3],
        "element": lambda a: a[1, 1, 1],
        "1000 points": lambda a: a.vindex[points],
    }


def section(settings: Settings) -> str:
    return LOCAL.format(table=_local(settings)) + FAR.format(table=_far(settings))


def _local(settings: Settings) -> str:
    rows = []
    arrays = QUICK_ARRAYS if settings.quick else ARRAYS
    for (shape, shard, inner), endian in cases(
        "shards", itertools.product(arrays, ("little", "big"))
    ):
        path = settings.folder / f"shards-{inner}-{endian}"
        create(path, shape, shard, inner, endian)
        by = {f"zarr, {name}": opened(path, "zarr", p) for name, p in PIPELINES.items()}
        by |= {p.rsplit(".", 1)[-1]: opened(path, "ours", p) for p in OUR_PIPELINES.values()}
        by["zarrs"] = opened(path, "ours", ZARRS)
        for name, select in selections(shape).items():
            contenders = {who: functools.partial(select, array) for who, array in by.items()}
            seconds, least = (0.05, 3) if settings.quick else (1.0, 11)
            times = measure(contenders, seconds, least=least)
            found = medians(times)
            slower = [
                theirs
                for theirs in by
                if theirs.startswith("zarr,") and is_slower(times, "BytesPipeline", theirs)
            ]
            label = f"{as_size(4 * int(np.prod(shard)))} of {as_size(4 * int(np.prod(inner)))}"
            rows.append([f"{int(np.prod(shape) / np.prod(shard))} x {label}", endian, name])
            rows[-1] += [f"{found[who] * 1e3:.2f}" for who in by] + [", ".join(slower)]
    return table(["shards", "endian", "selection", *by, "BytesPipeline is slower than"], rows)


def _far(settings: Settings) -> str:
    rows = []
    arrays = QUICK_ARRAYS if settings.quick else FAR_ARRAYS
    for i, array in enumerate(arrays):
        create(settings.folder / f"far-shards-{i}", *array, "big")
    links = LINKS[1:] if settings.quick else LINKS
    for link, kind, i in cases(
        "far shards", itertools.product(links, ("obstore", "fsspec"), range(len(arrays)))
    ):
        with served(settings.folder, *link) as address:
            shape, shard, inner = arrays[i]
            store = functools.partial(store_of, kind, f"{address}/far-shards-{i}")
            by = {"zarr": opened(store(), "zarr", PIPELINES["default"])}
            by["BytesPipeline"] = opened(store(), "ours", OUR_PIPELINES["default"])
            for name, select in selections(shape).items():
                label = f"{as_size(4 * int(np.prod(shard)))} of {as_size(4 * int(np.prod(inner)))}"
                cells = against_zarr(by, select, 3 if settings.quick else 11, most=21)
                rows.append(["{} ms, {} MB/s".format(*link), kind, label, name, *cells])
    return table(["link", "store", "shard", "selection", *by, "ratio", "slower"], rows)


LOCAL = """\
## Shards in LocalStore, in ms

Uncompressed float32 in the page cache. crop: a quarter along each axis, not aligned; series: along
the first axis; row: along the last one. slower: in more rounds than chance gives once in 700 times.

{table}
"""
FAR = """\
## Shards in a far object store, in ms

The server of the section before, zarr's default pipeline and ours over it. The index takes a
request of its own, unless most of a shard is read.

{table}"""
