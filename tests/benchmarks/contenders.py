"""Who reads and writes, and how long it takes."""

import functools
import importlib.util
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr.codecs
import zarr.core.codec_pipeline

PIPELINES = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr again": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
    "ours": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
}
if not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):  # before zarr 3.3
    del PIPELINES["zarr fused"]
if importlib.util.find_spec("zarrs") is None:
    del PIPELINES["zarrs"]

Selection = tuple[Any, ...]
Seconds = dict[str, float]  # of each contender


def create(path: Path, endian: str, **array: Any) -> None:
    """Write an uncompressed array that counts its elements."""
    codec = zarr.codecs.BytesCodec(endian=endian)
    created = zarr.create_array(path, compressors=None, serializer=codec, **array)
    created[...] = np.arange(created.size, dtype=created.dtype).reshape(created.shape)


def opened_by_all(
    store_of: Callable[[str], Any], url_of: Callable[[str], str] | None = None, mode: str = "r"
) -> dict[str, Any]:
    """Return the array of each contender, in the store that is its own."""
    arrays = {}
    for who, path in PIPELINES.items():
        theirs = {"codecs.bytes": "zarr.codecs.bytes.BytesCodec", "codec_pipeline.path": path}
        with zarr.config.set({} if who == "ours" else theirs):  # ours needs no setting
            array = zarr.open_array(store_of(who), mode=mode)
        pipeline = type(array.async_array.codec_pipeline).__name__
        if path.endswith(f".{pipeline}"):
            arrays[who] = array
        elif who != "zarrs":  # which leaves a store to zarr that it does not support
            raise RuntimeError(f"zarr took {pipeline} for {who}, expected {path}")
    if url_of is not None and importlib.util.find_spec("tensorstore") is not None:
        arrays["TensorStore"] = TensorStoreArray(url_of("TensorStore"))
    return arrays


def opened_in_files(path_of: Callable[[str], Path], mode: str = "r") -> dict[str, Any]:
    return opened_by_all(path_of, lambda who: f"file://{path_of(who)}/", mode)


class TensorStoreArray:
    """An array that TensorStore opens anew for each selection: an open one may keep its chunks."""

    def __init__(self, url: str) -> None:
        import tensorstore  # optional

        context = tensorstore.Context({"file_io_sync": False})  # zarr does not sync either
        array = tensorstore.open({"driver": "zarr3", "kvstore": url}, context=context).result()
        # zarr does not read the metadata again either.
        spec = array.spec().to_json() | {"assume_metadata": True}
        self._open = functools.partial(tensorstore.open, spec, open=True, context=context)

    def __getitem__(self, selection: Selection) -> Any:
        return indexed(self._open().result(), selection)[selection].read().result()

    def __setitem__(self, selection: Selection, value: Any) -> None:
        indexed(self._open().result(), selection)[selection].write(value).result()


def indexed(array: Any, selection: Selection) -> Any:
    """Return what takes the selection in square brackets; arrays of indices select points."""
    are_points = isinstance(selection[0], np.ndarray) and hasattr(array, "vindex")
    return array.vindex if are_points else array


def measure_reads(arrays: dict[str, Any], selection: Selection, **options: Any) -> Seconds:
    contenders = {who: indexed(array, selection).__getitem__ for who, array in arrays.items()}
    return measure(contenders, selection, **options)


def is_noisy(seconds: Seconds) -> bool:
    """Whether two identical contenders differ so much that others can't be compared."""
    return not 0.77 < seconds["zarr"] / seconds["zarr again"] < 1.3


def measure(*arguments: Any, **options: Any) -> Seconds:
    """Measure as `measure_once` does; up to three times if it is noisy."""
    for _ in range(3):
        seconds = measure_once(*arguments, **options)
        if not is_noisy(seconds):
            break
    return seconds


def measure_once(
    contenders: dict[str, Callable[..., Any]],
    *arguments: Any,
    quick: bool,
    before: Callable[[], Any] = lambda: None,
) -> Seconds:
    """Return the median of the times of each contender, without what is done before.

    Contenders take turns, in an order that changes, so that whatever else the machine does meets
    all of them alike. A first turn does not count: there, all must return the same values.
    """
    seconds, least = (0.02, 1) if quick else (4, 3)
    expected = contenders["zarr"](*arguments)
    for who, run in contenders.items():
        if not np.array_equal(run(*arguments), expected):
            raise RuntimeError(f"{who} does not return what zarr alone returns")
    times: dict[str, list[float]] = {who: [] for who in contenders}
    names, order = list(contenders), random.Random(0)  # noqa: S311 # no secret
    end = time.perf_counter() + seconds
    while len(times["zarr"]) < least or time.perf_counter() < end:
        order.shuffle(names)
        for who in names:
            before()
            start = time.perf_counter()
            contenders[who](*arguments)
            times[who].append(time.perf_counter() - start)
    return {who: statistics.median(of_one) for who, of_one in times.items()}
