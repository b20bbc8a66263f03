"""Who reads and writes, and how long it takes."""

import contextlib
import functools
import importlib.util
import math
import operator
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr.codecs
import zarr.core.codec_pipeline

from numcodecs_bytes import SyncReader


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


PIPELINES = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr again": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarr fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
    "ours": "numcodecs_bytes.zarr_pipeline.BatchedBytesPipeline",
}
if not hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):  # before zarr 3.3
    del PIPELINES["zarr fused"]
if not has("zarrs"):
    del PIPELINES["zarrs"]

Selection = tuple[Any, ...]
Read = Callable[[Any], Any]
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
    if url_of is not None and has("tensorstore"):
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


def readers(folder: Path, values: Any, endian: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Write values in a layout, and return what reads them, and stays open, by its name."""
    path, dtype = folder / "array", values.dtype.newbyteorder(endian)
    create(path, endian, shape=values.shape, dtype="f8", **settings)
    zarr.open_array(path)[...] = values
    arrays = opened_by_all(lambda _: path)
    arrays["SyncReader"] = SyncReader(arrays["ours"])
    if settings["chunks"] == values.shape:  # one file, without a header
        arrays["np.memmap"] = np.memmap(path / "c/0/0", dtype, "r", shape=values.shape)
        if has("h5py"):
            import h5py

            file = h5py.File(folder / "h5", "w")
            arrays["h5py"] = file.create_dataset("values", data=values, dtype=dtype)
        if has("netCDF4"):
            arrays["netCDF4"] = netcdf_variable(folder / "nc", values, dtype, endian)
    if has("zarrista"):
        import zarrista
        import zarrista.store

        arrays["zarrista"] = zarrista.Array.open(zarrista.store.FilesystemStore(str(path)))
    if has("tensorstore"):
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": f"file://{path}/", "open": True}
        arrays["TensorStore"] = tensorstore.open(spec).result()
    if has("rasterio"):
        import rasterio

        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        open_it = functools.partial(rasterio.open, f'ZARR:"{path}"')
        with contextlib.suppress(
            rasterio.errors.RasterioIOError
        ):  # it has no shards, or no Zarr v3
            dataset = open_it()
            arrays["GDAL"] = open_it
            arrays["GDAL, kept open"] = functools.partial(contextlib.nullcontext, dataset)
    return arrays


def netcdf_variable(path: Path, values: Any, dtype: Any, endian: str) -> Any:
    """Write values to a file of NetCDF-4, contiguously, and return its variable."""
    import netCDF4  # optional

    data = netCDF4.Dataset(path, "w")
    for axis, size in zip("yx", values.shape, strict=True):
        data.createDimension(axis, size)
    options = {"contiguous": True, "endian": endian}
    variable = data.createVariable("values", dtype, ("y", "x"), **options)
    data.set_auto_maskandscale(False)  # as the others do
    variable[...] = values
    data.sync()
    return variable


def read_of(who: str, array: Any) -> Read:
    """Return what reads a selection to memory, as an array of NumPy or a scalar."""
    if who == "TensorStore":
        return lambda selection: array[selection].read().result()
    if who == "zarrista":  # which keeps the axes of integers
        return lambda selection: array[selection].to_numpy().squeeze()
    if who == "np.memmap":
        return lambda selection: np.array(array[selection])
    if who.startswith("GDAL"):
        return functools.partial(read_by_gdal, array)
    return functools.partial(operator.getitem, array)


def read_by_gdal(dataset: Callable[[], Any], selection: Selection) -> Any:
    """Read what slices with bounds, or integers, select."""
    with dataset() as opened:
        sides = zip(selection, opened.shape, strict=True)
        rows, columns = (s.indices(n)[:2] if isinstance(s, slice) else (s, s + 1) for s, n in sides)
        return opened.read(1, window=(rows, columns)).squeeze()


def measure_reads(arrays: dict[str, Any], selection: Selection, **options: Any) -> Seconds:
    contenders = {who: indexed(array, selection).__getitem__ for who, array in arrays.items()}
    return measure(contenders, selection, **options)


def rates_of_copies(num_bytes: int = 1 << 22) -> str:
    """Say how fast the system copies from the page cache, and how fast where that may be slow."""
    if not hasattr(os, "preadv"):
        return ""
    memory = np.zeros(num_bytes + 8192, np.uint8)
    page = -memory.ctypes.data % 4096
    rates = []
    with tempfile.TemporaryFile() as file:
        file.write(memory)
        file.flush()
        for begin in (page + 2048, page + 8):
            target, best = memory[begin : begin + num_bytes].data, math.inf
            for _ in range(25):
                start = time.perf_counter()
                os.preadv(file.fileno(), [target], 0)
                best = min(best, time.perf_counter() - start)
            rates.append(num_bytes / best / 1e9)
    return (
        f"It copies {rates[0]:.0f} GB/s from the page cache, and {rates[1]:.0f} to 8 bytes after "
        "the source, modulo a page."
    )


def load() -> float:
    """Return how many programs have wanted a core in the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


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
    turn_seconds: float = 0.0,
) -> Seconds:
    """Return the median of the times of each contender, without what is done before.

    A turn is one call, or as many as take `turn_seconds`. Contenders take turns, in an order that
    changes, so that whatever else the machine does meets all of them alike. A first turn does not
    count: there, all must return the same values.
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
            start, num, took = time.perf_counter(), 0, -1.0
            while took < turn_seconds:
                contenders[who](*arguments)
                num, took = num + 1, time.perf_counter() - start
            times[who].append(took / num)
    return {who: statistics.median(of_one) for who, of_one in times.items()}
