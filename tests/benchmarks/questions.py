"""The questions. Each yields the cases that answer it: the rows of its table."""

import contextlib
import functools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import contenders
import fsspec
import numpy as np
import obstore.fsspec
import obstore.store
import zarr.storage
from numcodecs.zarr3 import FixedScaleOffset

sys.path.append(str(Path(__file__).parents[1] / "engine"))
import slow_mounts

NATIVE = sys.byteorder
SWAPPED = "big" if NATIVE == "little" else "little"
READ_NO_POINTS = ("h5py", "netCDF4", "zarrista", "GDAL", "GDAL, kept open")
LINKS = ((30, 100), (1, 1000))  # latency in ms, and MB/s of each connection


class Case(NamedTuple):
    selection: str
    of: str
    seconds: contenders.Seconds
    is_pictured: bool


def selections(rows: int, columns: int) -> dict[str, contenders.Selection]:
    row, column = rows // 3, columns // 3
    points = np.random.default_rng(0).choice(rows * columns, 1000, replace=False)
    return {
        "row": np.s_[row, :],
        "box of 64 x 64": np.s_[row : row + 64, column : column + 64],
        "1,000 points": np.divmod(points, columns),
        "column": np.s_[:, column],
        "all": np.s_[:, :],
    }


def one_large_chunk(folder: Path, *, quick: bool) -> Iterator[Case]:
    n = 512 if quick else 4096
    for endian in (NATIVE, SWAPPED):
        path = folder / endian
        contenders.create(path, endian, shape=(n, n), chunks=(n, n), dtype="f8")
        os.sync()  # else the writing goes on while the reading is measured
        arrays = contenders.opened_in_files(lambda _who, path=path: path)
        drop = functools.partial(drop_from_page_cache, path / "c/0/0")
        for name, selection in selections(n, n).items():
            if name.startswith("box"):
                continue
            if endian == SWAPPED and name in ("row", "all"):
                seconds = contenders.measure_reads(arrays, selection, quick=quick)
                yield Case(name, "swapped, page cache", seconds, is_pictured=False)
            if endian == NATIVE and drop():
                seconds = contenders.measure_reads(arrays, selection, quick=quick, before=drop)
                yield Case(name, "native, disk", seconds, is_pictured=True)


def drop_from_page_cache(path: Path) -> bool:
    """Drop a file from the page cache; return whether it is surely gone."""
    with path.open("rb") as file:
        try:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except (AttributeError, OSError):  # this system can't, or this file system can't tell
            return False
    return False


def rivals(folder: Path, *, quick: bool) -> Iterator[Case]:
    shape, tile = (256, 512) if quick else (4096, 8192), (64, 128)
    mib, num = math.prod(shape) >> 17, math.prod(shape) // math.prod(tile)
    values = np.random.default_rng(0).random(shape)
    for of, settings in {
        f"a chunk of {mib} MiB": {"chunks": shape},
        f"{num:,} chunks of 64 KiB": {"chunks": tile},
        f"a shard of {mib} MiB": {"chunks": tile, "shards": shape},
    }.items():
        inside = folder / of.replace(" ", "-")
        inside.mkdir()
        arrays = contenders.readers(inside, values, NATIVE, settings)
        if not quick:
            os.sync()  # else the writing goes on while the reading is measured
        for name, selection in selections(*shape).items():
            reads = {
                who: contenders.read_of(who, contenders.indexed(array, selection))
                for who, array in arrays.items()
                if not (who in READ_NO_POINTS and "points" in name)
            }
            turn_seconds = 0.0 if quick else 0.02
            seconds = contenders.measure(reads, selection, quick=quick, turn_seconds=turn_seconds)
            yield Case(name, of, seconds, is_pictured=settings["chunks"] == shape)
        shutil.rmtree(inside)


def many_chunks(folder: Path, *, quick: bool) -> Iterator[Case]:
    num = 64 if quick else 1024
    for rows, columns in ((64, 256), (256, 512)):
        kib, shape = rows * columns // 128, (rows, columns * num)
        cell = f"{num:,} of {kib} KiB" if kib < 1024 else f"{num:,} of {kib // 1024} MiB"
        path = folder / cell.replace(" ", "-")
        contenders.create(path, NATIVE, dtype="f8", shape=shape, chunks=(rows, columns))
        os.sync()
        arrays = contenders.opened_in_files(lambda _who, path=path: path)
        for name in ("row", "all"):
            seconds = contenders.measure_reads(arrays, selections(*shape)[name], quick=quick)
            yield Case(name, cell, seconds, is_pictured=rows == 64)
        shutil.rmtree(path)


def whole_reads(folder: Path, *, quick: bool) -> Iterator[Case]:
    """Yield cases of all of an array, in files of its own, and from byte 8 of files of others."""
    for num, kib in ((1024, 64), (128, 1024), (16, 8192), (1, 1 << 17)):
        num_chunks, rows = (num // 8 or 1, 1) if quick else (num, kib // 8)
        path, shape = folder / f"{kib}", (num_chunks * rows, 1024)
        contenders.create(path, NATIVE, dtype="f8", shape=shape, chunks=(rows, 1024))
        found = {"zarr.json": (path / "zarr.json").read_text("utf-8")}
        for k in range(num_chunks):
            file = path.with_name(f"{kib}-{k}.tif")
            raw = (path / f"c/{k}/0").read_bytes()
            file.write_bytes(bytes(8) + raw)
            found[f"c/{k}/0"] = [str(file), 8, len(raw)]
        os.sync()
        options: dict[str, Any] = {"asynchronous": True, "skip_instance_cache": True}
        files = fsspec.filesystem("reference", fo=found, remote_protocol="file", **options)
        store = zarr.storage.FsspecStore(files, read_only=True, path="")
        size = f"{kib} KiB" if kib < 1024 else f"{kib >> 10} MiB"
        of = f"{num_chunks:,} of {size}" if num_chunks > 1 else f"one of {size}"
        for what, arrays in {
            of: contenders.opened_in_files(lambda _who, path=path: path),
            f"{of}, from byte 8": contenders.opened_by_all(lambda _who, store=store: store),
        }.items():
            seconds = contenders.measure_reads(arrays, np.s_[:, :], quick=quick)
            yield Case("all", what, seconds, is_pictured=False)


def far_stores(folder: Path, *, quick: bool) -> Iterator[Case]:
    n, num = (128, 20) if quick else (512, 1000)
    contenders.create(folder / "array", NATIVE, shape=(64, n, n), chunks=(16, n, n), dtype="f4")
    shape = (num, 64, 256)
    contenders.create(folder / "file", NATIVE, shape=shape, chunks=shape, dtype="f4")
    for link, kind in zip(LINKS, ("fsspec", "obstore"), strict=True):
        with served(folder, *link) as url:
            store_of = functools.partial(far_store, kind, f"{url}/array")
            array = contenders.opened_by_all(store_of, lambda _who, url=url: f"{url}/array/")
            store_of = functools.partial(references, kind, f"{url}/file/c/0/0/0", folder)
            for name, arrays, selection in (
                ("row", array, np.s_[3, 7]),
                ("all", array, np.s_[:, :, :]),
                (f"all of {num:,} references", contenders.opened_by_all(store_of), np.s_[:, :, :]),
            ):
                seconds = contenders.measure_reads(arrays, selection, quick=quick)
                yield Case(name, f"{link[0]} ms, {kind}", seconds, is_pictured=link == LINKS[0])


@contextlib.contextmanager
def served(folder: Path, milliseconds: float, megabytes_per_second: float) -> Iterator[str]:
    """Serve a folder as a far store does; give its URL."""
    script = str(Path(__file__).with_name("far_server.py"))
    arguments = [sys.executable, script, folder, f"{milliseconds}", f"{megabytes_per_second}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"  # type: ignore[union-attr]
        finally:
            server.kill()


def far_store(kind: str, url: str, _who: str) -> Any:
    if kind == "fsspec":
        return zarr.storage.FsspecStore.from_url(url, read_only=True)
    store = obstore.store.HTTPStore.from_url(url, client_options={"allow_http": True})
    return zarr.storage.ObjectStore(store, read_only=True)


def references(kind: str, url: str, folder: Path, _who: str) -> Any:
    """Return a store in which each index of the array in the folder is a chunk of its file."""
    metadata = json.loads((folder / "file/zarr.json").read_text("utf-8"))
    num, *shape = metadata["shape"]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [1, *shape]
    length = 4 * int(np.prod(shape))
    targets = {f"c/{i}/0/0": [url, i * length, length] for i in range(num)}
    options: dict[str, Any] = {"asynchronous": True, "skip_instance_cache": True}
    if kind == "fsspec":
        http = fsspec.filesystem("http", **options)
    else:
        client = {"allow_http": True}
        http = obstore.fsspec.FsspecStore("http", client_options=client, asynchronous=True)
    targets["zarr.json"] = json.dumps(metadata)
    file_system = fsspec.filesystem("reference", fo=targets, fs={"http": http}, **options)
    return zarr.storage.FsspecStore(file_system, read_only=True, path="")


def slow_mount(folder: Path, *, quick: bool) -> Iterator[Case]:
    n = 512 if quick else 4096
    with contextlib.ExitStack() as stack:
        try:
            mount = stack.enter_context(slow_mounts.slow_mount(folder, reads=1))
        except slow_mounts.CantMountError as error:
            print(f"no slow mount: {error}", file=sys.stderr)
            return
        for of, chunks in {"one chunk": (n, n), "32 chunks": (n // 8, n // 4)}.items():
            name = of.replace(" ", "-")
            contenders.create(mount.below / name, NATIVE, shape=(n, n), chunks=chunks, dtype="f4")
            path = mount.folder / name
            arrays = contenders.opened_in_files(lambda _who, path=path: path)
            for what in ("row", "column", "all"):
                selection = selections(n, n)[what]
                seconds = contenders.measure_reads(
                    arrays, selection, quick=quick, before=mount.forget
                )
                yield Case(what, of, seconds, is_pictured=of == "one chunk")


def elementwise(folder: Path, *, quick: bool) -> Iterator[Case]:
    n = 512 if quick else 4096
    codec = FixedScaleOffset(offset=0, scale=100, dtype="<f4", astype="<i2")
    created = zarr.create_array(
        folder / "scaled", shape=(n, n), chunks=(n, n), dtype="f4", compressors=None, filters=codec
    )
    created[...] = np.random.default_rng(0).integers(-999, 999, (n, n)) / np.float32(100)
    arrays = contenders.opened_by_all(lambda _who: folder / "scaled")
    for name, selection in selections(n, n).items():
        seconds = contenders.measure_reads(arrays, selection, quick=quick)
        yield Case(name, "float32 as int16", seconds, is_pictured=True)


def whole_chunks(folder: Path, *, quick: bool) -> Iterator[Case]:
    for num, rows, columns in ((2048, 16, 64), (1024, 64, 256), (16, 2048, 1024)):
        num_chunks, kib = num // 8 if quick else num, rows * columns // 256
        length = f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"
        shape, chunks = (rows * num_chunks, columns), (rows, columns)
        values = np.random.default_rng(0).random(shape, np.float32)
        names = [*contenders.PIPELINES, "TensorStore", "os.write"]
        paths = {who: folder / f"{rows}-{who}" for who in names}
        for path in paths.values():
            contenders.create(path, NATIVE, shape=shape, chunks=chunks, dtype="f4")
        writers = {
            who: functools.partial(array.__setitem__, np.s_[:, :], values)
            for who, array in contenders.opened_in_files(paths.get, mode="r+").items()
        }
        files = {
            str(paths["os.write"] / f"c/{i}/0"): raw.data
            for i, raw in enumerate(np.split(values, num_chunks))
        }
        writers["os.write"] = functools.partial(replace, files)
        seconds = contenders.measure(writers, quick=quick)
        for who in writers:
            if not np.array_equal(zarr.open_array(paths[who], mode="r")[...], values):
                raise RuntimeError(f"{who} did not write the values")
        yield Case("all", f"{num_chunks:,} of {length}", seconds, is_pictured=True)
        for path in paths.values():
            shutil.rmtree(path)


def replace(files: dict[str, memoryview]) -> None:
    """Replace files, one after the other, with as few calls of the system as possible."""
    for path, raw in files.items():
        name = f"{path}.new"
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT, 0o666)
        os.write(descriptor, raw)
        os.close(descriptor)
        os.replace(name, path)  # noqa: PTH105 # a Path takes 2 us


def writes_in_place(folder: Path, *, quick: bool) -> Iterator[Case]:
    edge = 512 if quick else 4096
    names = ("row", "1,000 points", "column")
    shard = {"chunks": (edge // 4, edge // 4), "shards": (2 * edge, 2 * edge)}
    yield from writes(folder / "chunk", edge, names, quick=quick, chunks=(edge, edge))
    yield from writes(folder / "shard", 2 * edge, ("row",), quick=quick, **shard)


def writes(path: Path, n: int, names: Any, *, quick: bool, **array: Any) -> Iterator[Case]:
    """Yield the cases of an array that is one chunk or shard; each contender has a copy of it."""
    contenders.create(path, NATIVE, shape=(n, n), dtype="f8", **array)

    def path_of(who: str) -> Path:
        return path.with_name(f"{path.name}-{who}")

    for who in (*contenders.PIPELINES, "TensorStore", "os.pwrite"):
        shutil.copytree(path, path_of(who))
    os.sync()
    arrays, file = contenders.opened_in_files(path_of, mode="r+"), path_of("os.pwrite") / "c/0/0"
    for name in names:
        selection = selections(n, n)[name]
        value = -np.arange(n * n, dtype="f8").reshape(n, n)[selection]
        writers = {
            who: functools.partial(
                contenders.indexed(array, selection).__setitem__, selection, value
            )
            for who, array in arrays.items()
        }
        writers["os.pwrite"] = functools.partial(pwrite, file, ranges(file, n, selection))
        with zarr.config.set({"numcodecs_bytes.write_in_place": "require"}):
            seconds = contenders.measure(writers, quick=quick)
        for who in writers:
            written = zarr.open_array(path_of(who), mode="r")
            if not np.array_equal(contenders.indexed(written, selection)[selection], value):
                raise RuntimeError(f"{who} did not write the values")
        yield Case(name, f"{path.name} of {8 * n * n >> 20} MiB", seconds, is_pictured=True)


def ranges(file: Path, n: int, selection: contenders.Selection) -> list[tuple[int, bytes]]:
    """Return offset and new bytes of each contiguous range of a selection in a file.

    The file says where each element is, for it holds their numbers, or the negative ones.
    """
    numbers = np.abs(np.fromfile(file, count=n * n)).astype(int)
    is_selected = np.zeros((n, n), bool)
    is_selected[selection] = True
    at = np.flatnonzero(is_selected.ravel()[numbers])
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    return [(8 * int(p[0]), (-numbers[p].astype("f8")).tobytes()) for p in runs]


def pwrite(file: Path, runs: list[tuple[int, bytes]]) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    for offset, data in runs:
        os.pwrite(descriptor, data, offset)
    os.close(descriptor)
