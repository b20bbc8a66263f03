"""Whole arrays, read and written in LocalStore and MemoryStore, against all peers."""

import functools
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import plots
import tensorstore
import zarr
import zarr.core.codec_pipeline
import zarr.storage
from measure import MIB, Contenders, Settings, as_ratio, cases, measure, medians, table

CODECS = {"ours": "numcodecs_bytes.zarr.BytesCodec", "zarr": "zarr.codecs.bytes.BytesCodec"}
PIPELINES = {"default": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):  # since zarr 3.2
    PIPELINES["fused"] = "zarr.core.codec_pipeline.FusedCodecPipeline"
OUR_PIPELINES = {"default": "numcodecs_bytes.zarr_pipeline.BytesPipeline"}
if "fused" in PIPELINES:
    OUR_PIPELINES["fused"] = "numcodecs_bytes.zarr_pipeline.FusedBytesPipeline"
ZARRS = "zarrs.ZarrsCodecPipeline"
# Name, shape and chunks of float64.
ARRAYS = (
    ("256 KiB", (2048, 4096), (128, 256)),
    ("8 MiB", (8192, 4096), (1024, 1024)),
    ("128 MiB", (8192, 4096), (4096, 4096)),
)
QUICK_ARRAYS = (("256 KiB", (512, 1024), (128, 256)), ("2 MiB", (512, 1024), (512, 512)))
PEERS = ("zarr, default", "ours, fused", "zarr, fused", "zarrs", "tensorstore")


def create(store: Any, shape: tuple[int, ...], chunks: tuple[int, ...], endian: str) -> None:
    zarr.create_array(
        store,
        shape=shape,
        chunks=chunks,
        dtype="f8",
        compressors=None,
        serializer=zarr.codecs.BytesCodec(endian=endian),
    )


def opened(store: Any, codec: str, pipeline: str, mode: str = "r") -> zarr.Array:
    """Open an array with a codec and a pipeline; raise where zarr takes another pipeline.

    With our codec, our pipeline over zarr's default, or fused, one takes the place of that.
    """
    if codec == "ours":
        over = dict(zip(PIPELINES.values(), OUR_PIPELINES.values(), strict=True))
        pipeline = over.get(pipeline, pipeline)
    with zarr.config.set({"codecs.bytes": CODECS[codec], "codec_pipeline.path": pipeline}):
        array = zarr.open_array(store, mode=mode)
    got = type(array.async_array.codec_pipeline).__name__
    if got != pipeline.rsplit(".", 1)[-1]:
        raise RuntimeError(f"zarr took {got}, expected {pipeline}")
    return array


def opened_by_tensorstore(store: Path | zarr.storage.MemoryStore) -> Any:
    """Open an array of a folder, or an empty one like it in TensorStore's own memory store.

    Without its fsync after each chunk, which zarr does not do.
    """
    context = tensorstore.Context({"file_io_sync": False})
    kvstore = {"driver": "file", "path": str(store)}
    if not isinstance(store, Path):
        kvstore = {"driver": "memory", "path": "array/"}
        metadata = store._store_dict["zarr.json"].to_bytes()
        memory = tensorstore.KvStore.open(kvstore, context=context).result()
        memory.write("zarr.json", metadata).result()
    return tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, context=context).result()


def contenders_of(
    store: Path | zarr.storage.MemoryStore, data: np.ndarray
) -> dict[str, Contenders]:
    """Return who writes the data, and who reads them."""
    arrays: dict[str, Any] = {
        f"{codec}, {name}": opened(store, codec, pipeline, "r+")
        for (name, pipeline), codec in itertools.product(PIPELINES.items(), CODECS)
    }
    if isinstance(store, Path):
        arrays["zarrs"] = opened(store, "ours", ZARRS, "r+")
    write = {who: functools.partial(a.__setitem__, ..., data) for who, a in arrays.items()}
    read = {who: functools.partial(a.__getitem__, ...) for who, a in arrays.items()}
    theirs = opened_by_tensorstore(store)
    write["tensorstore"] = lambda: theirs.write(data).result()
    # Files are opened anew, in 0.05 ms: an array that was read before may keep chunks.
    read["tensorstore"] = lambda: (
        (opened_by_tensorstore(store) if isinstance(store, Path) else theirs).read().result()
    )
    return {"write": write, "read": read}


def section(settings: Settings) -> str:
    data_of = functools.cache(np.random.default_rng(0).random)
    arrays = QUICK_ARRAYS if settings.quick else ARRAYS
    rows, plotted = [], {}
    for store_name, (size, shape, chunks), endian in cases(
        "whole arrays",
        itertools.product(("LocalStore", "MemoryStore"), arrays, ("little", "big")),
    ):
        store: Any = zarr.storage.MemoryStore()
        if store_name == "LocalStore":
            store = settings.folder / f"whole-{size}-{endian}"
        create(store, shape, chunks, endian)
        contenders = contenders_of(store, data_of(shape))
        for what in ("write", "read"):
            found = medians(
                measure(
                    contenders[what], 0.1 if settings.quick else 4, least=3 if settings.quick else 7
                )
            )
            if found["zarr, default"] < found["ours, default"]:
                # The two alone and more often: better rounds, whichever way they go.
                both = {who: contenders[what][who] for who in ("ours, default", "zarr, default")}
                found |= medians(measure(both, 2, least=5 if settings.quick else 25))
            ours = found.pop("ours, default")
            rows.append(
                [store_name, what, size, endian, f"{ours * 1e3:.1f}"]
                + [as_ratio(found.get(peer), ours) for peer in PEERS]
                + [as_ratio(found.get("zarr, fused"), found.get("ours, fused"))]
            )
            if endian == "big":
                gigabytes = data_of(shape).nbytes / 1e9
                plotted[f"{what} {store_name[:-5]}, {size}"] = {
                    who: gigabytes / t for who, t in {"ours, default": ours, **found}.items()
                }
            if what == "write":
                assert all((read() == data_of(shape)).all() for read in contenders["read"].values())
                os.sync()  # else the writing goes on while the reading is measured
    plots.bars(
        settings.out / "plots/whole-arrays.svg",
        {"GB/s, big-endian float64 (more is better)": plotted},
    )
    small, large = (data_of(shape).nbytes // MIB for _, shape, _ in (arrays[0], arrays[-1]))
    header = ["store", "what", "chunks", "endian", "ours, default", *PEERS, "fused: zarr / ours"]
    introduction = INTRODUCTION.format(small=small, large=large, chunk=arrays[0][0])
    return f"## Whole arrays\n\n{introduction}\n{table(header, rows)}"


INTRODUCTION = """\
float64, {small} MiB in chunks of {chunk}, {large} MiB in larger ones, uncompressed, in the page
cache. Ours in zarr's default pipeline in ms, the others as times of it: 2 means that they take
twice as long. The last column compares both codecs in the fused pipeline. zarrs reads and writes
files only; TensorStore has a memory store of its own, and its fsync after each chunk is off.

![whole arrays](plots/whole-arrays.svg)
"""
